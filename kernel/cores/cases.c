// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is measured: the kernel's own lookups, gets, puts, freezes and splits of
 * the index, called as the kernel calls them. Compiled with the kernel's
 * headers and flags. A new case is a new line of cores_cases.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/uio.h>
#include <linux/xarray.h>
#include <asm/msr.h>
#include "internal.h"
#include "cores.h"

/* So many lookups pass before a worker looks whether it has to stop. */
#define BATCH 64
/* As many as one node of the index has slots for, squared. */
#define PAGES 4096
#define HUGE 9
#define HUGE_PAGES (1 << HUGE)
/* 4 GiB, whose struct pages, 64 MiB, are in no cache when they are needed again. */
#define PINNED_PAGES (1UL << 20)
/* How often a freeze is tried before it counts as starved. */
#define TRIES 100000000

struct world {
	struct address_space mapping;
	struct page *pages;
	/* The folios have so many pages, as a power of two. */
	int order;
	/* A page that is never in the page cache. */
	struct page *spare;
};

static struct world *world_of(struct cores *c)
{
	return c->world;
}

/* As address_space_init_once() does. */
static void init_mapping(struct address_space *mapping)
{
	xa_init_flags(&mapping->i_pages, XA_FLAGS_LOCK_IRQ | XA_FLAGS_ACCOUNT);
}

static void store(struct address_space *mapping, struct folio *folio,
		  unsigned int order)
{
	XA_STATE_ORDER(xas, &mapping->i_pages, folio->index, order);

	xas_lock(&xas);
	xas_store(&xas, folio);
	xas_unlock(&xas);
	if (xas_error(&xas))
		cores_wrong("error of xas_store()", xas_error(&xas), 0);
}

/* The state of a page that nobody refers to; the trees have no common word for it. */
static void init_frozen(struct page *page)
{
	init_page_count(page);
	page_ref_freeze(page, 1);
}

/* As prep_compound_page() does. The pages are frozen. */
static void make_compound(struct page *head, unsigned int order)
{
	int i;

	__SetPageHead(head);
	for (i = 1; i < 1 << order; i++)
		prep_compound_tail(head, i);
	prep_compound_head(head, order);
}

/*
 * Pages in folios of one size, all in the page cache, which has a reference to
 * each page.
 */
static void init_world(struct cores *c, struct world *w, unsigned long nr_pages, int order)
{
	unsigned long i;

	cores_stubs_init(c);
	init_mapping(&w->mapping);
	w->pages = cores_alloc((nr_pages + 1) * sizeof(struct page), PAGE_SIZE);
	w->spare = w->pages + nr_pages;
	init_page_count(w->spare);
	w->order = order;
	c->world = w;
	for (i = 0; i < nr_pages; i++)
		init_frozen(&w->pages[i]);
	for (i = 0; i < nr_pages; i += 1 << order) {
		struct folio *folio = (struct folio *)&w->pages[i];

		folio->mapping = &w->mapping;
		folio->index = i;
		__folio_mark_uptodate(folio);
		if (order)
			make_compound(&folio->page, order);
		folio_ref_unfreeze(folio, 1 << order);
		store(&w->mapping, folio, order);
	}
}

static void setup(struct cores *c, unsigned long nr_pages, int order)
{
	init_world(c, cores_alloc(sizeof(struct world), PAGE_SIZE), nr_pages, order);
}

/* What two mutants leave at the end. */
static void mutant_end(struct cores *c)
{
	struct world *w = world_of(c);

	if (c->mutant == CORES_LIVE_TAIL)
		page_ref_unfreeze(&w->pages[1], 1);
	if (c->mutant == CORES_LEFT_ENTRY)
		store(&w->mapping, (struct folio *)w->spare, w->order);
}

/* After all workers have ended, only the page cache has references. */
static void check(struct cores *c, unsigned long nr_pages)
{
	struct world *w = world_of(c);
	unsigned long i;

	mutant_end(c);
	for (i = 0; i < nr_pages; i++) {
		unsigned long head = round_down(i, 1UL << w->order);
		int expected = i == head ? 1 << w->order : 0;

		if (!expected && folio_try_get((struct folio *)&w->pages[i]))
			cores_wrong("tails got", 1, 0);
		if (page_ref_count(&w->pages[i]) != expected)
			cores_wrong("references left at the end",
				    page_ref_count(&w->pages[i]), expected);
		if (xa_load(&w->mapping.i_pages, i) != &w->pages[head])
			cores_wrong("index with another folio than at the start", i, -1);
	}
}

static void quiescent(struct cores *c, int me)
{
	struct cores_worker *w = &c->worker[me];

	smp_store_release(&w->quiescent, w->quiescent + 1);
}

static void gone(struct cores *c, int me)
{
	smp_store_release(&c->worker[me].gone, 1);
}

/* The first lookups of a worker are followed by what a mutant does, once. */
static void mutant_put(struct cores *c, int me, struct folio *folio)
{
	struct world *w = world_of(c);

	if (me || c->worker[me].ops)
		return;
	if (c->mutant == CORES_WRONG_ENTRY)
		store(&w->mapping, (struct folio *)w->spare, w->order);
	if (c->mutant == CORES_LOST_PUT)
		folio_get(folio);
	if (c->mutant == CORES_EXTRA_PUT)
		folio_put(folio);
}

/* Something else was found than the folio of this index. */
static noinline void wrong_folio(struct folio *found, unsigned long index)
{
	cores_wrong("folio found at the index of another",
		    found && !xa_is_value(found) ? found->index : -1, index);
}

/* One folio, at index 0. */

static void one_setup(struct cores *c)
{
	setup(c, 1, 0);
}

static void one_check(struct cores *c)
{
	check(c, 1);
}

static noinline void one_batch(struct address_space *mapping, struct folio *expected)
{
	int i;

	for (i = 0; i < BATCH; i++) {
		struct folio *folio = filemap_get_entry(mapping, 0);

		if (unlikely(folio != expected))
			wrong_folio(folio, 0);
		folio_put(folio);
	}
}

static void one_work(struct cores *c, int me)
{
	struct world *w = world_of(c);

	while (!READ_ONCE(c->stop)) {
		one_batch(&w->mapping, (struct folio *)w->pages);
		mutant_put(c, me, (struct folio *)w->pages);
		c->worker[me].ops += BATCH;
	}
}

/* Many folios, which all workers visit in an order of their own. */

static void many_setup(struct cores *c)
{
	setup(c, PAGES, 0);
}

static void many_check(struct cores *c)
{
	check(c, PAGES);
}

/* Knuth's MMIX; the upper bits are the random ones. */
static unsigned long next(unsigned long *seed)
{
	*seed = *seed * 6364136223846793005UL + 1442695040888963407UL;
	return *seed >> 40;
}

static noinline void many_batch(struct world *w, unsigned long *seed)
{
	int i;

	for (i = 0; i < BATCH; i++) {
		unsigned long index = next(seed) % PAGES;
		struct folio *folio = filemap_get_entry(&w->mapping, index);

		if (unlikely(folio != (struct folio *)&w->pages[index]))
			wrong_folio(folio, index);
		folio_put(folio);
	}
}

static void many_work(struct cores *c, int me)
{
	struct world *w = world_of(c);
	unsigned long seed = me + 1;

	while (!READ_ONCE(c->stop)) {
		many_batch(w, &seed);
		mutant_put(c, me, (struct folio *)&w->pages[0]);
		c->worker[me].ops += BATCH;
	}
}

/* Freezing. */

static bool freeze(struct cores *c, struct folio *folio, int expected)
{
	if (c->mutant == CORES_NO_FREEZE)
		return true;
	return folio_ref_freeze(folio, expected);
}

static void unfreeze(struct cores *c, struct folio *folio, int count)
{
	if (c->mutant != CORES_NO_FREEZE)
		folio_ref_unfreeze(folio, count);
}

/*
 * A mutant that freezes nothing goes on only after the others have had time to
 * notice, even if they have to wait for a CPU: what it would do to a folio that
 * others use could end the program in another way.
 */
static void wait_to_be_noticed(struct cores *c)
{
	int i;

	for (i = 0; c->mutant == CORES_NO_FREEZE && i < TRIES; i++)
		cpu_relax();
}

/* The fences keep what is timed between the two readings. */
static u64 ticks_now(void)
{
	u64 now;

	mb();
	now = rdtsc();
	rmb();
	return now;
}

/* Whether a freezer has to stop. It freezes once, however long it has no CPU. */
static bool is_over(struct cores *c)
{
	return READ_ONCE(c->stop) && c->sections;
}

static void record(struct cores *c, u64 ticks)
{
	c->ticks[c->sections % CORES_MAX_SECTIONS] = min_t(u64, ticks, UINT_MAX);
	c->sections++;
}

/*
 * One round of a freezer: all other workers look up a folio that is frozen, so
 * that their gets fail until it is unfrozen. They have nothing when a round
 * begins.
 */

static void begin_round(struct cores *c)
{
	int i;

	WRITE_ONCE(c->frozen, 1);
	smp_store_release(&c->round, c->round + 1);
	for (i = 1; i < c->workers; i++)
		while (smp_load_acquire(&c->worker[i].entered) != c->round)
			cpu_relax();
}

static void end_round(struct cores *c)
{
	int i;

	for (i = 1; i < c->workers; i++)
		while (smp_load_acquire(&c->worker[i].left) != c->round)
			cpu_relax();
}

static void last_round(struct cores *c)
{
	WRITE_ONCE(c->over, 1);
	smp_store_release(&c->round, c->round + 1);
}

static void failing_getter(struct cores *c, int me, struct folio *expected)
{
	struct cores_worker *w = &c->worker[me];

	for (;;) {
		struct folio *folio;
		unsigned long round;

		while ((round = smp_load_acquire(&c->round)) == w->entered)
			quiescent(c, me);
		if (READ_ONCE(c->over))
			return;
		smp_store_release(&w->entered, round);
		folio = filemap_get_entry(&world_of(c)->mapping, 0);
		if (folio != expected)
			wrong_folio(folio, 0);
		if (READ_ONCE(c->frozen))
			cores_wrong("folios got while they were frozen", 1, 0);
		folio_put(folio);
		w->ops++;
		smp_store_release(&w->left, round);
	}
}

/*
 * What __split_huge_page_tail() does to a tail of a folio in the page cache,
 * but for the LRU, the idle flags and the last CPU.
 */
static void split_tail(struct folio *folio, int tail)
{
	struct page *head = &folio->page;
	struct page *page = head + tail;

	page->flags &= ~PAGE_FLAGS_CHECK_AT_PREP;
	page->flags |= (head->flags &
		       (BIT(PG_referenced) | BIT(PG_swapbacked) | BIT(PG_mlocked) |
			BIT(PG_uptodate) | BIT(PG_active) | BIT(PG_workingset) |
			BIT(PG_locked) | BIT(PG_unevictable) | BIT(PG_dirty)));
	page->mapping = head->mapping;
	page->index = head->index + tail;
	smp_wmb();
	clear_compound_head(page);
	page_ref_unfreeze(page, 2);
}

/*
 * Splits a huge folio in the page cache as split_huge_page_to_list_to_order()
 * and __split_huge_page() do it in the index and in the struct pages. The
 * caller has a reference. Returns false if others have one, too.
 */
static bool split(struct cores *c, struct folio *folio,
		  void (*frozen)(struct cores *c))
{
	struct address_space *mapping = folio->mapping;
	struct page *head = &folio->page;
	XA_STATE(xas, &mapping->i_pages, folio->index);
	u64 before;
	int i;

	xas_set_order(&xas, folio->index, 0);
	xas_split_alloc(&xas, folio, HUGE, GFP_KERNEL);
	if (xas_error(&xas))
		cores_wrong("error of xas_split_alloc()", xas_error(&xas), 0);
	xas_lock(&xas);
	xas_reset(&xas);
	if (xas_load(&xas) != folio)
		cores_wrong("index without its folio", folio->index, -1);
	for (i = 0; !freeze(c, folio, 1 + HUGE_PAGES); i++) {
		if (i == TRIES || is_over(c)) {
			xas_unlock(&xas);
			xas_destroy(&xas);
			return false;
		}
		cpu_relax();
	}
	frozen(c);
	wait_to_be_noticed(c);
	before = ticks_now();
	xas_split(&xas, folio, HUGE);
	for (i = HUGE_PAGES - 1; i >= 1; i--) {
		bool wrong = c->mutant == CORES_WRONG_ENTRY && i == 1;

		split_tail(folio, i);
		__xa_store(&mapping->i_pages, head[i].index, wrong ? head : head + i, 0);
	}
	ClearPageCompound(head);
	WRITE_ONCE(c->frozen, 0);
	WRITE_ONCE(folio->private, NULL);
	unfreeze(c, folio, 2);
	record(c, ticks_now() - before);
	xas_unlock(&xas);
	for (i = 1; i < HUGE_PAGES; i++)
		put_page(head + i);
	return true;
}

/*
 * Makes one folio of the pages again, so that there is something to split. The
 * kernel's way to this is khugepaged, by a new folio; here the pages stay where
 * they are, and one that somebody has is waited for.
 */
static void unite(struct cores *c, struct page *head)
{
	struct folio *folio = (struct folio *)head;
	int i, tries = 0;

	for (i = HUGE_PAGES - 1; i >= 0; i--) {
		struct folio *small = (struct folio *)(head + i);

		while (!freeze(c, small, i ? 1 : 2)) {
			if (++tries == TRIES)
				cores_wrong("tries to freeze a folio", tries, 0);
			cpu_relax();
		}
		WRITE_ONCE(small->private, (void *)1);
	}
	make_compound(head, HUGE);
	store(folio->mapping, folio, HUGE);
	WRITE_ONCE(folio->private, NULL);
	unfreeze(c, folio, HUGE_PAGES + 1);
}

/* The failed get against a split: the longest time for which a folio is frozen. */

static void huge_setup(struct cores *c)
{
	setup(c, HUGE_PAGES, HUGE);
}

static void huge_check(struct cores *c)
{
	check(c, HUGE_PAGES);
	if (!c->sections)
		cores_wrong("splits done", 0, 1);
}

static void split_under_gets(struct cores *c, int me)
{
	struct folio *folio = (struct folio *)world_of(c)->pages;

	folio_get(folio);
	while (!is_over(c)) {
		if (!split(c, folio, begin_round))
			break;
		end_round(c);
		unite(c, &folio->page);
		cores_synchronize(c, me);
		c->worker[me].ops++;
	}
	last_round(c);
	if (c->mutant != CORES_LOST_PUT)
		folio_put(folio);
}

static void failed_get_work(struct cores *c, int me)
{
	if (me)
		failing_getter(c, me, (struct folio *)world_of(c)->pages);
	else
		split_under_gets(c, me);
	gone(c, me);
}

/*
 * The failed get against a migration, which freezes for the time of one store:
 * what folio_migrate_mapping() does between freeze and unfreeze, with the folio
 * in the place of its successor.
 */

static void brief_check(struct cores *c)
{
	check(c, 1);
	if (!c->sections)
		cores_wrong("folios frozen", 0, 1);
}

static void migrate_under_gets(struct cores *c)
{
	struct folio *folio = (struct folio *)world_of(c)->pages;
	struct folio *successor = (struct folio *)world_of(c)->spare;

	while (!is_over(c)) {
		XA_STATE(xas, &folio->mapping->i_pages, folio->index);
		u64 before;

		xas_lock(&xas);
		if (!freeze(c, folio, 1))
			cores_wrong("references to a folio that nobody uses",
				    folio_ref_count(folio), 1);
		begin_round(c);
		wait_to_be_noticed(c);
		before = ticks_now();
		successor->index = folio->index;
		successor->mapping = folio->mapping;
		if (folio_test_swapbacked(folio))
			__folio_set_swapbacked(successor);
		if (folio_test_dirty(folio))
			folio_set_dirty(successor);
		xas_store(&xas, folio);
		WRITE_ONCE(c->frozen, 0);
		unfreeze(c, folio, 1);
		record(c, ticks_now() - before);
		xas_unlock(&xas);
		end_round(c);
		c->worker[0].ops++;
	}
	last_round(c);
	if (c->mutant == CORES_LOST_PUT)
		folio_get(folio);
}

static void failed_get_brief_work(struct cores *c, int me)
{
	if (me)
		failing_getter(c, me, (struct folio *)world_of(c)->pages);
	else
		migrate_under_gets(c);
}

/* Lookups beside splits: one worker splits and unites, the others look up. */

static void mixed_setup(struct cores *c)
{
	setup(c, PAGES, HUGE);
}

static void mixed_check(struct cores *c)
{
	check(c, PAGES);
	if (!c->sections)
		cores_wrong("splits done", 0, 1);
}

static void mark_private(struct cores *c)
{
	struct world *w = world_of(c);
	unsigned long huge = c->sections % (PAGES / HUGE_PAGES);

	WRITE_ONCE(w->pages[huge * HUGE_PAGES].private, 1);
}

/* So that most lookups find something that is not frozen. */
static void rest(struct cores *c)
{
	int i;

	for (i = 0; i < 500 && !READ_ONCE(c->stop); i++)
		cpu_relax();
}

static void splitter(struct cores *c, int me)
{
	struct world *w = world_of(c);

	while (!is_over(c)) {
		unsigned long huge = c->sections % (PAGES / HUGE_PAGES);
		struct folio *folio = (struct folio *)&w->pages[huge * HUGE_PAGES];
		bool done;

		folio_get(folio);
		done = split(c, folio, mark_private);
		rest(c);
		if (done)
			unite(c, &folio->page);
		folio_put(folio);
		cores_synchronize(c, me);
		rest(c);
	}
	if (c->mutant == CORES_LOST_PUT)
		folio_get((struct folio *)w->pages);
}

static noinline void mixed_batch(struct world *w, unsigned long *seed)
{
	int i;

	for (i = 0; i < BATCH; i++) {
		unsigned long index = next(seed) % PAGES;
		struct folio *folio = filemap_get_entry(&w->mapping, index);

		if (unlikely(!folio || xa_is_value(folio)))
			cores_wrong("index without a folio", index, -1);
		if (unlikely(index - folio->index >= folio_nr_pages(folio)))
			wrong_folio(folio, index);
		if (unlikely(READ_ONCE(folio->private)))
			cores_wrong("folios got while they were frozen", 1, 0);
		folio_put(folio);
	}
}

static void mixed_work(struct cores *c, int me)
{
	unsigned long seed = me + 1;

	if (!me)
		splitter(c, me);
	while (me && !READ_ONCE(c->stop)) {
		mixed_batch(world_of(c), &seed);
		quiescent(c, me);
		c->worker[me].ops += BATCH;
	}
	gone(c, me);
}

/* Unpinning an array of pages, in folios that no other worker unpins. */

struct pinned {
	struct page *pages;
	/* All pages, in order. */
	struct page **list;
	unsigned long nr_pages;
	int order;
};

static void pinned_setup(struct cores *c, unsigned long nr_pages, int order)
{
	struct pinned *p = cores_alloc(sizeof(*p), CORES_LINE);
	unsigned long i;

	p->pages = cores_alloc(nr_pages * sizeof(struct page), PAGE_SIZE);
	p->list = cores_alloc(nr_pages * sizeof(*p->list), PAGE_SIZE);
	p->nr_pages = nr_pages;
	p->order = order;
	c->world = p;
	for (i = 0; i < nr_pages; i++) {
		init_frozen(&p->pages[i]);
		p->list[i] = &p->pages[i];
	}
	for (i = 0; i < nr_pages; i += 1 << order) {
		if (order)
			make_compound(&p->pages[i], order);
		page_ref_unfreeze(&p->pages[i], 1);
	}
}

static void pinned_huge_setup(struct cores *c)
{
	pinned_setup(c, PINNED_PAGES, HUGE);
}

static void pinned_one_setup(struct cores *c)
{
	/* One folio for each worker. */
	pinned_setup(c, c->workers * HUGE_PAGES, HUGE);
}

static void pinned_small_setup(struct cores *c)
{
	pinned_setup(c, PINNED_PAGES, 0);
}

/* What a pin of each page of a folio does to it, without the statistics. */
static void pin_all(struct folio *folio, int order)
{
	if (order) {
		folio_ref_add(folio, 1 << order);
		atomic_add(1 << order, &folio->_pincount);
	} else {
		folio_ref_add(folio, GUP_PIN_COUNTING_BIAS);
	}
}

static noinline void pinned_batch(struct pinned *p, unsigned long first)
{
	unsigned long i;

	for (i = first; i < first + HUGE_PAGES; i += 1 << p->order)
		pin_all((struct folio *)&p->pages[i], p->order);
	unpin_user_pages(&p->list[first], HUGE_PAGES);
}

static void pinned_work(struct cores *c, int me)
{
	struct pinned *p = c->world;
	unsigned long of_each = round_down(p->nr_pages / c->workers, HUGE_PAGES);
	unsigned long at = 0;

	if (!me && c->mutant == CORES_LOST_PUT)
		pin_all((struct folio *)p->pages, p->order);
	while (!READ_ONCE(c->stop)) {
		pinned_batch(p, me * of_each + at);
		c->worker[me].ops += HUGE_PAGES;
		at += HUGE_PAGES;
		if (at == of_each)
			at = 0;
	}
}

static void pinned_check(struct cores *c)
{
	struct pinned *p = c->world;
	unsigned long i;

	for (i = 0; i < p->nr_pages; i += 1 << p->order) {
		struct folio *folio = (struct folio *)&p->pages[i];

		if (folio_ref_count(folio) != 1)
			cores_wrong("references left at the end", folio_ref_count(folio), 1);
		if (p->order && atomic_read(&folio->_pincount))
			cores_wrong("pins left at the end", atomic_read(&folio->_pincount), 0);
	}
}

/* Reads of 64 bytes of a cached file, from generic_file_read_iter() on. */

#define READ_BYTES 64
#define READ_WORDS (READ_BYTES / sizeof(u64))
/* 1 MiB, which the caches of a core hold, and their translations as well. */
#define READ_PAGES 256

struct reader {
	/* What it reads from: its own, or the first one's. */
	struct file *file;
	struct file own;
	/* What it reads to. */
	u64 buf[READ_WORDS] __aligned(64);
} __aligned(CORES_LINE);

struct reading {
	/* The first, as check() uses it as well. */
	struct world world;
	struct super_block sb;
	struct inode inode;
	struct reader *readers;
	unsigned long nr_pages;
};

/* What the file has at this offset, a multiple of 8. */
static u64 word_at(loff_t pos)
{
	return (pos + 1) * 0x9e3779b97f4a7c15UL;
}

static void protect(struct reading *r, const char *complaint)
{
	if (IS_ENABLED(CONFIG_SHORT_READS))
		cores_protect(r->world.pages,
			      PAGE_ALIGN((r->nr_pages + 1) * sizeof(struct page)), complaint);
}

static void reading_setup(struct cores *c, unsigned long nr_pages, bool one_file)
{
	struct reading *r = cores_alloc(sizeof(*r), PAGE_SIZE);
	struct world *w = &r->world;
	u64 *data;
	unsigned long i;

	init_world(c, w, nr_pages, 0);
	r->nr_pages = nr_pages;
	r->sb.s_maxbytes = MAX_LFS_FILESIZE;
	r->inode.i_sb = &r->sb;
	r->inode.i_mapping = &w->mapping;
	r->inode.i_size = c->mutant == CORES_SHORT_FILE ? READ_BYTES / 2 : nr_pages * PAGE_SIZE;
	w->mapping.host = &r->inode;
	/* In pages of their own, as those of the struct pages are protected. */
	r->readers = cores_alloc(c->workers * sizeof(*r->readers), PAGE_SIZE);
	for (i = 0; i < c->workers; i++) {
		struct file *file = &r->readers[i].own;

		r->readers[i].file = one_file ? &r->readers[0].own : file;
		file->f_mapping = &w->mapping;
		file->f_inode = &r->inode;
		file->f_flags = O_NOATIME;
		file->f_ra.prev_pos = -1;
	}
	/* As if the file had been read for a while. */
	for (i = 0; i < nr_pages; i++) {
		folio_set_referenced((struct folio *)&w->pages[i]);
		folio_set_active((struct folio *)&w->pages[i]);
	}
	/* The page behind the last is another file's. */
	data = cores_alloc((nr_pages + 1) * PAGE_SIZE, PAGE_SIZE);
	for (i = 0; i < nr_pages * PAGE_SIZE / sizeof(u64); i++)
		data[i] = word_at(i * sizeof(u64));
	vmemmap_base = (unsigned long)w->pages;
	page_offset_base = (unsigned long)data;
	protect(r, "struct pages written to by short reads");
}

static void reading_check(struct cores *c)
{
	struct reading *r = c->world;

	protect(r, NULL);
	if (c->mutant == CORES_LOST_PUT)
		folio_get((struct folio *)r->world.pages);
	check(c, r->nr_pages);
}

/* As new_sync_read() reads for pread(). */
static __always_inline void read_once(struct reader *reader, loff_t pos)
{
	struct kiocb kiocb;
	struct iov_iter iter;
	ssize_t done;

	init_sync_kiocb(&kiocb, reader->file);
	kiocb.ki_pos = pos;
	iov_iter_ubuf(&iter, ITER_DEST, (void __user *)reader->buf, READ_BYTES);
	done = generic_file_read_iter(&kiocb, &iter);
	if (unlikely(done != READ_BYTES))
		cores_wrong("bytes returned by a read", done, READ_BYTES);
}

/* After a batch: what its last read has read, which was at this offset. */
static noinline void check_sample(struct reader *reader, loff_t pos)
{
	int i;

	for (i = 0; i < READ_WORDS; i++) {
		if (READ_ONCE(reader->buf[i]) != word_at(pos + i * sizeof(u64)))
			cores_wrong("bytes read that are not the file's", pos, -1);
		/* So that the next batch has to write it. */
		WRITE_ONCE(reader->buf[i], 0);
	}
}

/* After its first reads, the first worker does what a mutant does. */
static void mutant_reads(struct cores *c, int me)
{
	if (me || c->worker[me].ops)
		return;
	if (c->mutant == CORES_WRONG_BYTES)
		page_offset_base += PAGE_SIZE;
#ifdef CONFIG_SHORT_READS
	if (c->mutant == CORES_NOT_SHORT)
		world_of(c)->mapping.i_pages_seq.sequence++;
#endif
}

static void read_one_setup(struct cores *c)
{
	reading_setup(c, 1, false);
}

static void read_shared_setup(struct cores *c)
{
	reading_setup(c, 1, true);
}

static noinline void read_one_batch(struct reader *reader)
{
	int i;

	for (i = 0; i < BATCH; i++)
		read_once(reader, 0);
	check_sample(reader, 0);
}

static void read_one_work(struct cores *c, int me)
{
	struct reading *r = c->world;

	while (!READ_ONCE(c->stop)) {
		read_one_batch(&r->readers[me]);
		mutant_reads(c, me);
		c->worker[me].ops += BATCH;
	}
}

static void read_many_setup(struct cores *c)
{
	reading_setup(c, READ_PAGES, false);
}

static void read_places_setup(struct cores *c)
{
	reading_setup(c, READ_PAGES, true);
}

static noinline void read_many_batch(struct reader *reader, unsigned long *seed)
{
	loff_t pos;
	int i;

	for (i = 0; i < BATCH; i++) {
		pos = next(seed) % (READ_PAGES * PAGE_SIZE / READ_BYTES) * READ_BYTES;
		read_once(reader, pos);
	}
	check_sample(reader, pos);
}

static void read_many_work(struct cores *c, int me)
{
	struct reading *r = c->world;
	unsigned long seed = me + 1;

	while (!READ_ONCE(c->stop)) {
		read_many_batch(&r->readers[me], &seed);
		mutant_reads(c, me);
		c->worker[me].ops += BATCH;
	}
}

#define COUNTS (BIT(CORES_LOST_PUT) | BIT(CORES_EXTRA_PUT) | BIT(CORES_WRONG_ENTRY) | \
		BIT(CORES_LEFT_ENTRY))
#define FROZEN (BIT(CORES_LOST_PUT) | BIT(CORES_NO_FREEZE) | BIT(CORES_LEFT_ENTRY))
#define HUGE_FROZEN (FROZEN | BIT(CORES_LIVE_TAIL))
/* On while the struct pages of hugetlb folios' tails are read-only aliases. */
#define HVO (&hugetlb_optimize_vmemmap_key)
#define READS (BIT(CORES_LOST_PUT) | BIT(CORES_LEFT_ENTRY) | BIT(CORES_WRONG_BYTES) | \
	       BIT(CORES_SHORT_FILE))
#ifdef CONFIG_SHORT_READS
#define SHORT_READS (&short_reads_key)
#define SHORT (READS | BIT(CORES_NOT_SHORT))
#else
#define SHORT_READS NULL
#define SHORT READS
#endif

const struct cores_case cores_cases[] = {
	{
		.name = "one-folio", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.mutants = COUNTS, .setup = one_setup,
		.work = one_work, .check = one_check,
	}, {
		.name = "many-folios", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.mutants = COUNTS, .setup = many_setup,
		.work = many_work, .check = many_check,
	}, {
		.name = "one-folio-hvo", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.branch = HVO, .mutants = COUNTS, .setup = one_setup,
		.work = one_work, .check = one_check,
	}, {
		.name = "many-folios-hvo", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.branch = HVO, .mutants = COUNTS, .setup = many_setup,
		.work = many_work, .check = many_check,
	}, {
		.name = "failed-get", .figure = CORES_NS, .min_workers = 1,
		.mutants = HUGE_FROZEN, .setup = huge_setup,
		.work = failed_get_work, .check = huge_check,
	}, {
		.name = "failed-get-brief", .figure = CORES_NS, .min_workers = 1,
		.mutants = FROZEN, .setup = one_setup,
		.work = failed_get_brief_work, .check = brief_check,
	}, {
		.name = "lookups-beside-splits", .figure = CORES_OPS_PER_S,
		.second = "splits-beside-lookups", .min_workers = 2,
		.mutants = HUGE_FROZEN | BIT(CORES_WRONG_ENTRY), .setup = mixed_setup,
		.work = mixed_work, .check = mixed_check,
	}, {
		.name = "unpin-2m", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.mutants = BIT(CORES_LOST_PUT), .setup = pinned_huge_setup,
		.work = pinned_work, .check = pinned_check,
	}, {
		.name = "unpin-2m-cached", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.mutants = BIT(CORES_LOST_PUT), .setup = pinned_one_setup,
		.work = pinned_work, .check = pinned_check,
	}, {
		.name = "unpin-4k", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.mutants = BIT(CORES_LOST_PUT), .setup = pinned_small_setup,
		.work = pinned_work, .check = pinned_check,
	}, {
		.name = "short-read", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.branch = SHORT_READS, .mutants = SHORT, .setup = read_one_setup,
		.work = read_one_work, .check = reading_check,
	}, {
		.name = "short-read-shared", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.branch = SHORT_READS, .mutants = SHORT, .setup = read_shared_setup,
		.work = read_one_work, .check = reading_check,
	}, {
		.name = "short-read-many", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.branch = SHORT_READS, .mutants = SHORT, .setup = read_many_setup,
		.work = read_many_work, .check = reading_check,
	}, {
		.name = "short-read-places", .figure = CORES_OPS_PER_S, .min_workers = 1,
		.branch = SHORT_READS, .mutants = SHORT, .setup = read_places_setup,
		.work = read_many_work, .check = reading_check,
	},
	{ }
};

const struct cores_stub cores_own[] = {
	{ "setup()", "in the place of the page allocator and filemap_add_folio()" },
	{ "split()", "what split_huge_page_to_list_to_order() and __split_huge_page() do to the "
		     "index, the struct pages and the counts; the head is unfrozen by a store; "
		     "no LRU, memcg or page tables" },
	{ "migrate_under_gets()", "what folio_migrate_mapping() does between freeze and unfreeze, "
				  "with the folio as its own successor; no statistics" },
	{ "enable()", "in the place of static_branch_enable(), before the workers start" },
	{ "pin_all()", "what pinning all pages of a folio does to its counts, in the place of "
		       "pin_user_pages(); timed" },
	{ "read_once()", "in the place of the system call, from pread64() to new_sync_read(); the "
			 "file is O_NOATIME; timed" },
	{ "apply_alternatives()", "the kernel's, for the features that are listed" },
	{ "unite()", "in the place of khugepaged, so that there is something to split; not timed" },
	{ }
};
