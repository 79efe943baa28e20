//! Where maps of this process show pages of a mirror.
//!
//! Here: the addresses; taking pages out of the page tables there, and asking which are in them.
//! Not here: what an access does (`space/`), when pages leave (`reclaim/`).
//!
//! A page that is taken out of the page tables alone stays in the memfd: the kernel maps it again by
//! itself at the next access. So what is mapped again some time later was used, which nothing else
//! tells a program of its own memory.
//!
//! The addresses are there as long as they are known here: whoever unmaps them says so first.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::frame::{Order, PAGE_BYTES, PAGE_SHIFT, give_back};
use crate::sync::Mutex;
use crate::uffd::Uffd;

/// Where a map has pages of a file.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) uffd: &'a Uffd,
    pub(crate) pages: Range<u64>,
    /// The address of the first.
    pub(crate) start: usize,
}

impl Shown<'_> {
    /// The address of the first of `pages`, if it has all of them.
    pub(super) fn address(&self, pages: &Range<u64>) -> Option<*mut u8> {
        let has_all = self.pages.start <= pages.start && pages.end <= self.pages.end;
        let at = (pages.start.wrapping_sub(self.pages.start) << PAGE_SHIFT) as usize;
        has_all.then(|| std::ptr::with_exposed_provenance_mut(self.start + at))
    }
}

/// The addresses of one mirror.
#[derive(Debug)]
pub(crate) struct Showings(Mutex<Vec<Showing>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Showing {
    start: usize,
    pages: Range<u64>,
}

impl Showing {
    fn end(&self) -> usize {
        self.address(self.pages.end)
    }

    fn address(&self, page: u64) -> usize {
        self.start + ((page - self.pages.start) << PAGE_SHIFT) as usize
    }

    /// The addresses of those of `pages` that it has, and the first of these.
    fn part(&self, pages: &Range<u64>) -> Option<(Range<usize>, u64)> {
        let (first, end) = (pages.start.max(self.pages.start), pages.end.min(self.pages.end));
        (first < end).then(|| (self.address(first)..self.address(end), first))
    }
}

impl Showings {
    pub(super) fn new() -> Self {
        Showings(Mutex::new(Vec::new()))
    }

    /// A map shows pages from `page` on at these addresses.
    pub(crate) fn begin(&self, addresses: &Range<usize>, page: u64) {
        let pages = page..page + (addresses.len() / PAGE_BYTES) as u64;
        self.0.lock().push(Showing { start: addresses.start, pages });
    }

    /// These addresses will be unmapped: when this returns, no thread uses them here.
    pub(crate) fn end(&self, addresses: &Range<usize>) {
        let mut all = self.0.lock();
        let mut kept = Vec::with_capacity(all.len());
        for it in all.drain(..) {
            let page_at = |at: usize| it.pages.start + ((at - it.start) >> PAGE_SHIFT) as u64;
            let (from, to) = (addresses.start.max(it.start), addresses.end.min(it.end()));
            if from >= to {
                kept.push(it);
                continue;
            }
            let before = Showing { start: it.start, pages: it.pages.start..page_at(from) };
            let after = Showing { start: to, pages: page_at(to)..it.pages.end };
            kept.extend([before, after].into_iter().filter(|rest| !rest.pages.is_empty()));
        }
        *all = kept;
    }

    /// The addresses, and the pages that are there.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn all(&self) -> Vec<(usize, Range<u64>)> {
        self.0.lock().iter().map(|it| (it.start, it.pages.clone())).collect()
    }

    /// Takes `pages` out of the page tables of all maps. Best effort: what the system keeps looks
    /// used.
    ///
    /// Cost: for each map a system call, and an interrupt to each processor that runs the program.
    pub(crate) fn unmap(&self, pages: &Range<u64>) {
        for showing in self.0.lock().iter() {
            if let Some((part, _)) = showing.part(pages) {
                let at = std::ptr::with_exposed_provenance_mut(part.start);
                // SAFETY: a part of a shared mapping, whose pages the mirror keeps; it is there as
                // long as the mutex is held.
                let _ = unsafe { give_back(at, part.len()) };
            }
        }
    }

    /// Which of `pages`, at most those of the largest folio, some map has in its page table. None
    /// where the system does not tell. An address that is unmapped meanwhile says what is there then.
    ///
    /// Cost: two system calls, and one for each map that shows some of them.
    pub(crate) fn mapped(&self, pages: &Range<u64>) -> Mapped {
        let mut mapped = Mapped { first: pages.start, bits: [0; WORDS] };
        let parts: Vec<_> = self.0.lock().iter().filter_map(|it| it.part(pages)).collect();
        if parts.is_empty() {
            return mapped;
        }
        // Opened anew each time, as a forked child would find its parent's.
        if let Ok(pagemap) = File::open("/proc/self/pagemap") {
            for (addresses, first) in parts {
                mapped.note(&pagemap, &addresses, first);
            }
        }
        mapped
    }
}

const PAGES_MAX: usize = Order::MAX.frames() as usize;
const WORDS: usize = PAGES_MAX.div_ceil(64);

/// A set of pages.
#[derive(Debug)]
pub(crate) struct Mapped {
    first: u64,
    bits: [u64; WORDS],
}

impl Mapped {
    /// Pages beyond those that were asked for are not in it.
    pub(crate) fn has_any_of(&self, mut pages: Range<u64>) -> bool {
        pages.any(|page| {
            let n = page.wrapping_sub(self.first);
            self.bits.get((n / 64) as usize).is_some_and(|word| word >> (n % 64) & 1 == 1)
        })
    }

    /// Adds the pages from `first` on that are mapped at these addresses.
    fn note(&mut self, pagemap: &File, addresses: &Range<usize>, first: u64) {
        /// Of an entry of the file, which has one for each page (proc(5)).
        const PRESENT: u64 = 1 << 63;
        const ENTRY_BYTES: usize = 8;
        let mut entries = [0; PAGES_MAX * ENTRY_BYTES];
        let entries = &mut entries[..addresses.len() / PAGE_BYTES * ENTRY_BYTES];
        let at = (addresses.start / PAGE_BYTES * ENTRY_BYTES) as u64;
        if pagemap.read_exact_at(entries, at).is_err() {
            return;
        }
        for (entry, page) in entries.as_chunks::<ENTRY_BYTES>().0.iter().zip(first..) {
            if u64::from_ne_bytes(*entry) & PRESENT != 0 {
                let n = page - self.first;
                self.bits[n as usize / 64] |= 1 << (n % 64);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn showings(all: &[(usize, Range<u64>)]) -> Showings {
        let showings = Showings::new();
        for (start, pages) in all {
            let bytes = (pages.end - pages.start) as usize * PAGE_BYTES;
            showings.begin(&(*start..*start + bytes), pages.start);
        }
        showings
    }

    #[test]
    fn a_set_has_no_page_that_was_not_asked_for() {
        let mut mapped = Mapped { first: 1024, bits: [0; WORDS] };
        mapped.bits[WORDS - 1] = 1 << 63;
        let last = 1024 + PAGES_MAX as u64 - 1;
        assert!(mapped.has_any_of(last..last + 32) && mapped.has_any_of(1000..last + 1));
        assert!(!mapped.has_any_of(last + 1..last + 32) && !mapped.has_any_of(0..1024));
    }

    #[test]
    fn what_ends_is_taken_out_of_what_began() {
        const AT: usize = 1 << 30;
        let page = |n: usize| AT + n * PAGE_BYTES;
        let of = |ended: Range<usize>| {
            let showings = showings(&[(AT, 10..20), (1 << 31, 15..17)]);
            showings.end(&ended);
            showings.all()
        };
        let other = (1 << 31, 15..17);
        assert_eq!(of(page(20)..page(30)), [(AT, 10..20), other.clone()]);
        assert_eq!(of(AT - 99 * PAGE_BYTES..page(99)), std::slice::from_ref(&other));
        assert_eq!(of(page(7)..page(12)), [(AT, 10..17), other.clone()]);
        assert_eq!(of(AT..page(3)), [(page(3), 13..20), other.clone()]);
        assert_eq!(of(page(2)..page(5)), [(AT, 10..12), (page(5), 15..20), other]);
        assert_eq!(of(AT..1 << 40), []);
    }
}
