//! What is known of the file that clients are served from, whoever has asked: which of its pages
//! are zeros, and which run of pages around one can be mapped now.

use std::ops::Range;
use std::sync::Arc;

use super::pages::{PageSet, adjacent, widest};
use crate::base::mutant::{self, Mutant};
use crate::error::Result;
use crate::file::File;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::map::{around, lend};
use crate::pages::core::Held;
use crate::pages::handle::Handle;

/// The most pages of a run, and the aligned blocks within which runs are.
pub(super) const RUN_PAGES: u64 = 128;

/// So many pieces are remembered of what was seen to be zeros or not.
const KNOWN_MAX: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) file: Arc<File>,
    pub(super) pages: u64,
    /// Those that are zeros, as the program has said: all threads have one set.
    holes: Arc<PageSet>,
    /// Those that are zeros, as was seen here.
    zeros: PageSet,
    /// Those of which it was seen whether they are.
    known: PageSet,
}

/// Adjacent pages that are in the mirror, as long as this is there: it has references to all of
/// their folios, so eviction takes none of them away.
#[derive(Debug)]
pub(super) struct PresentRun<'a> {
    pub(super) pages: Range<u64>,
    held: HeldFolios<'a>,
}

/// References to the folios of a run, at most one for each page. The place for them is in it: see
/// "No allocation" in `mod.rs`.
#[derive(Debug)]
struct HeldFolios<'a> {
    all: [Option<Held<'a>>; RUN_PAGES as usize],
    count: usize,
}

impl<'a> HeldFolios<'a> {
    fn none() -> Self {
        HeldFolios { all: [const { None }; RUN_PAGES as usize], count: 0 }
    }

    fn add(&mut self, held: Option<Held<'a>>) {
        if held.is_some() {
            self.all[self.count] = held;
            self.count += 1;
        }
    }
}

impl PresentRun<'_> {
    /// The pages of its folios.
    pub(super) fn frames(&self) -> u32 {
        let all = self.held.all[..self.held.count].iter().flatten();
        all.map(|held| held.frame().order().frames()).sum()
    }
}

impl Snapshot {
    pub(super) fn new(file: &File) -> Self {
        let pages = file.len().div_ceil(PAGE_BYTES as u64);
        let (holes, zeros, known) = Default::default();
        Snapshot { file: Arc::new(file.clone()), pages, holes, zeros, known }
    }

    pub(super) fn another(&self) -> Self {
        Snapshot { holes: self.holes.clone(), ..Self::new(&self.file) }
    }

    pub(super) fn add_zeros(&mut self, pages: Range<u64>) {
        Arc::make_mut(&mut self.holes).add_all(pages.start..pages.end.min(self.pages));
    }

    pub(super) fn is_zero(&self, page: u64) -> bool {
        self.holes.has(page) || self.zeros.has(page)
    }

    /// Whether a page of the block of `page` is known to be zeros.
    pub(super) fn zeros_near(&self, page: u64) -> impl Fn(&u64) -> bool + use<'_> {
        let (holes, seen) = (self.holes.block_of(page), self.zeros.block_of(page));
        move |page| holes.has(*page) || seen.has(*page)
    }

    /// Whether `page` is zeros; `held` has it, in the mirror.
    fn learn(&mut self, handle: &Handle, _held: &Held<'_>, page: u64) -> bool {
        if !self.known.has(page) {
            let from = handle.mapping.mirror_of_folios().address(page);
            // SAFETY: the reference keeps the folio in the mirror, and its bytes do not change.
            let bytes = unsafe { std::slice::from_raw_parts(from, PAGE_BYTES) };
            self.note(page, bytes.iter().all(|&byte| byte == 0));
        }
        self.zeros.has(page)
    }

    /// Only a hint, which need not take any amount of memory.
    fn note(&mut self, page: u64, is_zero: bool) {
        if self.known.pieces() >= KNOWN_MAX {
            (self.known, self.zeros) = Default::default();
        }
        self.known.add(page);
        if is_zero {
            self.zeros.add(page);
        }
    }

    /// The pages of the aligned 128 KiB around `page` that may be read with it: none of those that
    /// are known to be zeros, and none behind them.
    pub(super) fn around(&self, page: u64) -> Range<u64> {
        let block = around::block(page);
        widest(page, &(block.start..block.end.min(self.pages)), self.zeros_near(page))
    }

    /// The parts of `pages` without those that are known to be zeros.
    pub(super) fn data(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let data: Vec<u64> = pages.filter(|&page| !self.is_zero(page)).collect();
        adjacent(&data).collect()
    }

    /// The run of pages around `page`, of those that are in the mirror and are not `installed`.
    /// `bounds` has at most [`RUN_PAGES`]. What is cached of its aligned 128 KiB gets there now, if
    /// there is memory at once. A page of zeros ends the run, or is the run. `None`: `page` is not
    /// cached, or there is no memory for it in the mirror.
    pub(super) fn run<'a>(
        &mut self,
        handle: &'a Handle,
        page: u64,
        bounds: &Range<u64>,
        installed: &PageSet,
    ) -> Result<Option<PresentRun<'a>>> {
        let Some(held) = lend::look_now(handle, page)? else { return Ok(None) };
        let mut run = PresentRun { pages: page..page + 1, held: HeldFolios::none() };
        if self.learn(handle, &held, page) {
            run.held.add(Some(held));
            return Ok(Some(run));
        }
        let (mut folio, near) = (Some(held), around::block(page));
        let mut joins = |held: &mut _, folio: &mut _, page| {
            !installed.has(page) && self.joins(handle, held, folio, page, near.contains(&page))
        };
        while run.pages.end < bounds.end && joins(&mut run.held, &mut folio, run.pages.end) {
            run.pages.end += 1;
        }
        run.held.add(folio.take());
        while run.pages.start > bounds.start
            && joins(&mut run.held, &mut folio, run.pages.start - 1)
        {
            run.pages.start -= 1;
        }
        run.held.add(folio);
        if mutant::on(Mutant::ClientRunUnheld) {
            run.held = HeldFolios::none();
        }
        Ok(Some(run))
    }

    /// Whether `page` is in the mirror, or gets there because it is `near`. Then `folio` has it;
    /// the one before is `held`.
    fn joins<'a>(
        &mut self,
        handle: &'a Handle,
        held: &mut HeldFolios<'a>,
        folio: &mut Option<Held<'a>>,
        page: u64,
        near: bool,
    ) -> bool {
        if self.is_zero(page) {
            return false;
        }
        let has_it = |held: &Held<'_>| {
            held.frame().identity().pages().contains(&page) && lend::reaches(held, page)
        };
        if !folio.as_ref().is_some_and(has_it) {
            // What the memory file has there is of no account: a client can put a page of zeros
            // there, by touching it through a mapping that is not registered.
            let look = if near { lend::look_beside } else { lend::in_mirror };
            let lent = look(handle, page);
            if lent.is_none() {
                return mutant::on(Mutant::ClientTrustsPresent);
            }
            held.add(std::mem::replace(folio, lent));
        }
        folio.as_ref().is_some_and(|it| !self.learn(handle, it, page))
    }

    pub(super) fn bytes_of(&self, page: u64) -> usize {
        let left = self.file.len().saturating_sub(page << PAGE_SHIFT);
        left.min(PAGE_BYTES as u64) as usize
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::pages::BLOCK_PAGES;
    use super::super::tests::{MIB, bytes, snapshot};
    use super::*;

    #[test]
    fn what_was_seen_of_a_long_file_takes_a_bounded_amount_of_memory() {
        let (_cache, file) = snapshot(16 * MIB, bytes(MIB));
        let mut snapshot = Snapshot::new(&file);
        for block in 0..3 * KNOWN_MAX as u64 {
            let page = block * BLOCK_PAGES;
            snapshot.note(page, true);
            assert!(snapshot.is_zero(page));
            assert!(snapshot.known.pieces() <= KNOWN_MAX && snapshot.zeros.pieces() <= KNOWN_MAX);
        }
        snapshot.note(1, false);
        assert!(!snapshot.is_zero(1));
    }
}
