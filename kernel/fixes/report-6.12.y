To: stable@vger.kernel.org,
    regressions@lists.linux.dev
Cc: Muchun Song <muchun.song@linux.dev>,
    Greg Kroah-Hartman <gregkh@linuxfoundation.org>,
    Sasha Levin <sashal@kernel.org>,
    linux-mm@kvack.org,
    linux-kernel@vger.kernel.org
Subject: [REGRESSION] 6.12.y: hugetlb restores struct pages of tails as heads

In 6.12.117, hugetlb folios whose vmemmap was optimised and restored have
struct pages that say "head of a hugetlb folio" instead of tails: every
64th. Where pages are checked when they are freed, as with DEBUG_VM or
init_on_alloc=1, freeing the folio gives

  BUG: Bad page state in process sh  pfn:0e840
  page_type: f4(hugetlb)
  page dumped because: corrupted mapping in tail page

and the folio is lost. Elsewhere its pages go to the allocator with a page
type.

To reproduce, with HUGETLB_PAGE_OPTIMIZE_VMEMMAP and DEBUG_VM:

  echo 1 > /proc/sys/vm/hugetlb_optimize_vmemmap
  echo 8 > /proc/sys/vm/nr_hugepages
  echo 0 > /proc/sys/vm/nr_hugepages

It was introduced by the backport of "mm/hugetlb_vmemmap: fix incorrect
vmemmap restore in rollback". That commit makes vmemmap_restore_pte() copy
the whole page that is mapped. In mainline that is a page of tails. In
6.12.y it is the copy of the folio's first page of struct pages, which
begins with the head and the tails that describe the folio. Before the
backport the function filled all places with the last struct page of it.

6.18.51 lists the same backport; it was not tested.

A fix is in the mail "[PATCH 6.12.y] mm/hugetlb_vmemmap: restore tail struct
pages as tails". Mainline is not affected.

#regzbot introduced: <hash of the backport in linux-6.12.y>
