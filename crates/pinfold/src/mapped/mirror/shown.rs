//! Where maps of this process show pages of a mirror: taking pages out of the page tables there,
//! and asking which are in them. What was taken out of these alone stays in the memfd, and the
//! kernel maps it again at the next access. So what is mapped some time later was used.
//!
//! The addresses are there as long as they are known here: whoever unmaps them says so first.

use std::ops::Range;

use super::samples::{Sample, beside, samples};
use crate::base::sync::Mutex;
use crate::frames::{Order, PAGE_BYTES, PAGE_SHIFT, give_back};
use crate::mapped::pagemap::{Pagemap, PagemapEntry};
use crate::mapped::uffd::Uffd;

/// Where a map has pages of a file.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) uffd: &'a Uffd,
    pub(crate) pages: Range<u64>,
    pub(crate) start: usize,
    /// Whether it is to be seen how much of what is put there is accessed.
    pub(crate) sampled: bool,
}

impl Shown<'_> {
    /// The address of the first of `pages`, if it has all of them.
    pub(super) fn address(&self, pages: &Range<u64>) -> Option<*mut u8> {
        let has_all = self.pages.start <= pages.start && pages.end <= self.pages.end;
        let at = (pages.start.wrapping_sub(self.pages.start) << PAGE_SHIFT) as usize;
        has_all.then(|| std::ptr::with_exposed_provenance_mut(self.start + at))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Showings(Mutex<Vec<Showing>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Showing {
    start: usize,
    pages: Range<u64>,
}

impl Showing {
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
    /// A map shows pages from `page` on at these addresses.
    pub(crate) fn begin(&self, addresses: &Range<usize>, page: u64) {
        let pages = page..page + (addresses.len() / PAGE_BYTES) as u64;
        self.0.lock().push(Showing { start: addresses.start, pages });
    }

    /// The map that begins at this address will be unmapped: when this returns, no thread uses its
    /// addresses here.
    pub(crate) fn end(&self, start: usize) {
        self.0.lock().retain(|it| it.start != start);
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

    /// Which of these folios some map has in its page table, in the order of the file. None where
    /// the system does not tell. An address that is unmapped meanwhile says what is there then.
    ///
    /// Cost: two system calls, and one for each map and for those that lie within 2 MiB.
    pub(crate) fn mapped(&self, folios: &[Range<u64>]) -> Vec<bool> {
        let mut mapped = vec![false; folios.len()];
        let (Some(first), Some(last)) = (folios.first(), folios.last()) else { return mapped };
        let shows_some = |it: &&Showing| it.part(&(first.start..last.end)).is_some();
        let showings: Vec<_> = self.0.lock().iter().filter(shows_some).cloned().collect();
        if showings.is_empty() {
            return mapped;
        }
        // Opened anew each time, as a forked child would find its parent's.
        let Ok(pagemap) = Pagemap::open() else { return mapped };
        let mut noted = 0;
        // Ends: no folio is longer than what is looked at together.
        while noted < folios.len() {
            let end = folios[noted].start + u64::from(Order::MAX.frames());
            let n = folios[noted..].iter().take_while(|it| it.end <= end).count();
            let together = noted..noted + n;
            for showing in &showings {
                note(&pagemap, showing, &folios[together.clone()], &mut mapped[together.clone()]);
            }
            noted += n;
        }
        mapped
    }

    /// How many pages no map has accessed of these folios, each with its pages, and those of them
    /// that are asked for, in the order of the file; as far as samples tell. Where a page beside a
    /// sample is not mapped either, all of it may have been taken out of the page tables.
    ///
    /// Cost: as [`mapped`](Self::mapped).
    pub(crate) fn unaccessed(&self, folios: &[(Range<u64>, Range<u64>)]) -> u64 {
        let of_folio = |(folio, asked): &(Range<u64>, Range<u64>)| {
            let asked = asked.clone();
            samples(folio).filter_map(move |sample| sample.within(&asked))
        };
        let all: Vec<Sample> = folios.iter().flat_map(of_folio).collect();
        let both = |sample: &Sample| {
            let (page, other) = (sample.page, beside(sample.page));
            [page.min(other), page.max(other)].map(|page| page..page + 1)
        };
        let mapped = self.mapped(&all.iter().flat_map(both).collect::<Vec<_>>());
        let is_unaccessed = |(sample, mapped): &(&Sample, &[bool; 2])| {
            let at = usize::from(beside(sample.page) < sample.page);
            !mapped[at] && mapped[1 - at]
        };
        let unaccessed = all.iter().zip(mapped.as_chunks::<2>().0).filter(is_unaccessed);
        let unaccessed: u64 = unaccessed.map(|(sample, _)| sample.pages()).sum();
        let asked: u64 = folios.iter().map(|(_, asked)| asked.end - asked.start).sum();
        let sampled: u64 = all.iter().map(Sample::pages).sum();
        (asked * unaccessed).checked_div(sampled).unwrap_or(0)
    }
}

/// Says which of these folios, all within the pages of a largest one, are mapped there.
fn note(pagemap: &Pagemap, showing: &Showing, folios: &[Range<u64>], mapped: &mut [bool]) {
    let (Some(first), Some(last)) = (folios.first(), folios.last()) else { return };
    let Some((addresses, first)) = showing.part(&(first.start..last.end)) else { return };
    let Ok(entries) = pagemap.entries(&addresses) else { return };
    let is_present = |page: u64| {
        let entry = page.checked_sub(first).and_then(|n| entries.get(n as usize));
        entry.copied().is_some_and(PagemapEntry::is_present)
    };
    for (folio, mapped) in folios.iter().zip(mapped) {
        *mapped |= folio.clone().any(is_present);
    }
}
