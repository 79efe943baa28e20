//! Where the bytes of each page of own memory are: the states of a page. The steps of a *page-out*
//! (writing a page to the swap so that it can leave memory) are in `map/space/anon/out.rs`. Whether
//! the page is in memory, the mapping's index says. The mapping's `change` mutex guards a value; so
//! each method is one step.
//!
//! # States
//!
//! | state | its bytes | in memory | write-protected there |
//! |---|---|---|---|
//! | `Origin` | zeros, or the file's of a private view | or not | yes |
//! | `Swapped(slot)` | in the slot | or not; then the same | yes |
//! | `Dirty` | in memory alone | yes | no |
//! | `Writing(slot)` | in memory; on their way to the slot | yes | yes |
//! | `Stale(slot)` | in memory alone; older ones are on their way to the slot | yes | no |
//! | `Lost` | nowhere: the program took the page out of memory by a system call of its own | no | |
//!
//! | from | to | step | by |
//! |---|---|---|---|
//! | `Origin`, `Swapped` | `Dirty` | [`PageStates::store`], which then ends the protection | a store to a protected page, which is a fault; a page that is brought for a store |
//! | `Writing` | `Stale` | the same | the same |
//! | `Dirty` | `Writing` | [`begin`], which then protects the page | a page-out |
//! | `Writing` | `Swapped`, or `Origin` if it is zeros | [`PageStates::end_write`] with that slot | the same page-out, when the write has ended |
//! | `Writing` | `Dirty` | the same, if the write failed; then the protection ends | |
//! | `Stale` | `Dirty` | the same | |
//! | `Origin`, `Swapped` | `Dirty` | [`PageStates::distrust`] | who would take the page out of memory, and finds it unprotected |
//! | `Dirty` | `Lost` | [`PageStates::miss`] | who finds that the page is not in memory |
//! | `Swapped`, `Dirty`, `Lost` | `Origin` | [`PageStates::forget`] | the program, which does not want the bytes any more |
//!
//! Pages that are `Origin` or `Swapped` may leave memory ([`PageStates::may_leave`]).
//!
//! # Why no store is lost
//!
//! `Writing` says that the page was protected before its bytes were read, and that no store came
//! since: a store would be a fault, which makes the page `Stale` before the protection ends. So if
//! the page is still `Writing` when the write has ended, the slot has its bytes. A fault that comes
//! later waits for the mutex under which the page leaves. The protection is the kernel's, and may
//! end without a fault: `space/anon/trust.rs`.
//!
//! The slot belongs to the page-out until [`PageStates::end_write`]. Until then the page stays in
//! memory, and no other page-out of it begins. The slot of a page that is on its way is being read: if
//! the page is forgotten meanwhile, who reads gives the slot back.

use std::collections::TryReserveError;
use std::ops::Range;

use super::slots::Slot;
use crate::base::mutant::{self, Mutant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    Origin,
    Swapped(Slot),
    Dirty,
    Writing(Slot),
    Stale(Slot),
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    InSlot,
    /// Its bytes are those of its origin: nothing was written.
    AsOrigin,
    Failed,
}

/// What the page table has for a page of which is said here that it is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The page; a store to it is a fault.
    Protected,
    /// The page; a store is none.
    Open,
    /// Nothing: any access is a fault.
    Absent,
}

/// A slot that is of no more use, or none.
#[must_use = "the slot would be lost"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unused(pub(crate) Option<Slot>);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IsWriting;

/// The memory of a mapping whose pages are the program's own: what eviction asks of it.
pub(crate) trait OwnMemory: std::fmt::Debug + Send + Sync {
    /// Takes pages out of memory. Called under the `change` mutex under which they leave the index.
    /// False: the system keeps some of them there.
    fn take_out_of_memory(&self, pages: Range<u64>) -> bool;

    /// Of these pages, in rising order, those that could leave memory without a write, and whose
    /// protection has ended without a fault, count as stored to from now on. Called under the
    /// `change` mutex, which guards `states`, right before pages leave. Returns slots of no more
    /// use.
    fn distrust(&self, states: &mut PageStates, pages: &[u64]) -> Vec<Unused>;

    /// Writes those of these pages of the mapping with the number `mapping`, in rising order, that
    /// are dirty and that nobody uses to the swap, so that they may leave memory. If the swap has
    /// just failed or was full, only with `now`. No lock may be held.
    fn write_out(&self, mapping: u32, pages: &[u64], now: bool);
}

#[derive(Debug)]
pub(crate) struct PageStates {
    n: u64,
    /// For each [`CHUNK`] pages a word for each page: the state in the lowest three bits, the slot
    /// above. An empty chunk is all `Origin`: so memory that is not used takes none here.
    chunks: Vec<Box<[u32]>>,
}

const TAG_BITS: u32 = 3;

/// Pages of a chunk: 64 MiB.
const CHUNK: u64 = 1 << 14;

impl PageStates {
    /// `n` pages, none of which was ever stored to. Takes 16 bytes for each [`CHUNK`] pages, and 4
    /// for each page of those in which one got into memory.
    pub(crate) fn new(n: u64) -> Result<Self, TryReserveError> {
        let mut chunks = Vec::new();
        let wanted = n.div_ceil(CHUNK) as usize;
        chunks.try_reserve_exact(wanted)?;
        chunks.resize_with(wanted, Box::default);
        Ok(PageStates { n, chunks })
    }

    fn place(&self, page: u64) -> (usize, usize) {
        debug_assert!(page < self.n, "page {page} of {}", self.n);
        ((page / CHUNK) as usize, (page % CHUNK) as usize)
    }

    /// The first page of the range that may be other than `Origin`.
    pub(crate) fn next_stored_to(&self, pages: Range<u64>) -> Option<u64> {
        let mut page = pages.start;
        // Ends: each turn gets on by a chunk.
        while page < pages.end && self.chunks[self.place(page).0].is_empty() {
            page = (page / CHUNK + 1) * CHUNK;
        }
        (page < pages.end).then_some(page)
    }

    pub(crate) fn get(&self, page: u64) -> PageState {
        let (chunk, at) = self.place(page);
        let word = self.chunks[chunk].get(at).copied().unwrap_or(0);
        let slot = Slot(word >> TAG_BITS);
        match word & ((1 << TAG_BITS) - 1) {
            0 => PageState::Origin,
            1 => PageState::Swapped(slot),
            2 => PageState::Dirty,
            3 => PageState::Writing(slot),
            4 => PageState::Stale(slot),
            _ => PageState::Lost,
        }
    }

    /// From now on a change of the state of this page takes no memory. False: there is none. To be
    /// called before the page gets into memory: then a store to it can always be noted.
    #[cfg(not(loom))]
    #[must_use = "without it, a store may end the process"]
    pub(crate) fn make_room(&mut self, page: u64) -> bool {
        let (chunk, _) = self.place(page);
        if self.chunks[chunk].is_empty() {
            let words = (self.n - chunk as u64 * CHUNK).min(CHUNK);
            let Some(words) = crate::base::heap::zeroed(words as usize) else { return false };
            self.chunks[chunk] = words;
        }
        true
    }

    fn set(&mut self, page: u64, state: PageState) {
        let word = match state {
            PageState::Origin => 0,
            PageState::Swapped(Slot(slot)) => slot << TAG_BITS | 1,
            PageState::Dirty => 2,
            PageState::Writing(Slot(slot)) => slot << TAG_BITS | 3,
            PageState::Stale(Slot(slot)) => slot << TAG_BITS | 4,
            PageState::Lost => 5,
        };
        let (chunk, at) = self.place(page);
        let left = self.n - chunk as u64 * CHUNK;
        let words = &mut self.chunks[chunk];
        if words.is_empty() {
            if word == 0 {
                return;
            }
            *words = vec![0; left.min(CHUNK) as usize].into();
        }
        words[at] = word;
    }

    /// A store to the page begins when this returns. If the page is protected, `allow` ends that:
    /// after the change of the state, as from then on the program may store.
    pub(crate) fn store(&mut self, page: u64, allow: impl FnOnce()) -> Unused {
        let before = self.get(page);
        let (state, unused) = match before {
            PageState::Swapped(slot) => (PageState::Dirty, Some(slot)),
            PageState::Writing(slot) if mutant::on(Mutant::SlotFreedEarly) => {
                (PageState::Dirty, Some(slot))
            }
            PageState::Writing(_) if mutant::on(Mutant::WriteForgotten) => (PageState::Dirty, None),
            // Its page-out gives the slot back.
            PageState::Writing(slot) | PageState::Stale(slot) => (PageState::Stale(slot), None),
            PageState::Origin | PageState::Dirty | PageState::Lost => (PageState::Dirty, None),
        };
        self.set(page, state);
        if !matches!(before, PageState::Dirty | PageState::Stale(_)) {
            allow();
        }
        Unused(unused)
    }

    /// The page table was looked up for a page, right before it would leave. If a store may have
    /// come without a fault, it counts as stored to. `None`: the system does not tell; then it may
    /// still be protected, and `allow` ends that.
    pub(crate) fn distrust(
        &mut self,
        page: u64,
        seen: Option<Seen>,
        allow: impl FnOnce(),
    ) -> Unused {
        let no_store_came = matches!(seen, Some(Seen::Protected | Seen::Absent));
        if no_store_came || !self.may_leave(page) || mutant::on(Mutant::ProtectionTrusted) {
            return Unused(None);
        }
        self.store(page, || {
            if seen.is_none() {
                allow();
            }
        })
    }

    pub(crate) fn may_leave(&self, page: u64) -> bool {
        match self.get(page) {
            PageState::Origin | PageState::Swapped(_) => true,
            PageState::Dirty => mutant::on(Mutant::LoseDirty),
            PageState::Writing(_) => mutant::on(Mutant::DropBeforeWritten),
            PageState::Stale(_) | PageState::Lost => false,
        }
    }

    /// The write of the page to `slot` has ended. If it failed, `allow` ends the page's protection.
    /// Returns the slot unless it has the page's bytes.
    pub(crate) fn end_write(
        &mut self,
        page: u64,
        slot: Slot,
        written: Written,
        allow: impl FnOnce(),
    ) -> Unused {
        let undisturbed = self.get(page) == PageState::Writing(slot);
        if !undisturbed && !mutant::on(Mutant::PageOutUnchecked) {
            if self.get(page) == PageState::Stale(slot) {
                self.set(page, PageState::Dirty);
            }
            let given = mutant::on(Mutant::SlotFreedEarly);
            return Unused((!given).then_some(slot));
        }
        match written {
            Written::InSlot => {
                self.set(page, PageState::Swapped(slot));
                return Unused(None);
            }
            Written::AsOrigin => self.set(page, PageState::Origin),
            Written::Failed => {
                self.set(page, PageState::Dirty);
                if !mutant::on(Mutant::FailedStaysProtected) {
                    allow();
                }
            }
        }
        Unused(Some(slot))
    }

    /// The page is not in memory, though it was put there and nobody of the cache took it out.
    pub(crate) fn miss(&mut self, page: u64) -> Result<(), IsWriting> {
        match self.get(page) {
            PageState::Writing(_) | PageState::Stale(_) => Err(IsWriting),
            PageState::Dirty => {
                let forgotten = mutant::on(Mutant::LossForgotten);
                self.set(page, if forgotten { PageState::Origin } else { PageState::Lost });
                Ok(())
            }
            // Elsewhere, or lost before.
            PageState::Origin | PageState::Swapped(_) | PageState::Lost => Ok(()),
        }
    }

    /// Whether the page, or an older version of it, is being written.
    pub(crate) fn is_being_written(&self, page: u64) -> bool {
        matches!(self.get(page), PageState::Writing(_) | PageState::Stale(_))
    }

    /// The bytes of the page are not wanted any more: it is as if it had never been stored to.
    pub(crate) fn forget(&mut self, page: u64) -> Result<Unused, IsWriting> {
        let unused = match self.get(page) {
            PageState::Writing(_) | PageState::Stale(_) => return Err(IsWriting),
            PageState::Swapped(slot) => Some(slot),
            PageState::Origin | PageState::Dirty | PageState::Lost => None,
        };
        self.set(page, PageState::Origin);
        Ok(Unused(unused))
    }
}

/// The first step of a page-out of `pages`, in rising order, each with the slot that it shall have:
/// those that are dirty are being written from now on, and `protect` has protected them when it
/// returns. The caller holds the mutex, and has seen that they are in memory. Returns them; the
/// slots of the others are the caller's.
pub(crate) fn begin(
    states: &mut PageStates,
    pages: impl Iterator<Item = (u64, Slot)>,
    mut protect: impl FnMut(std::ops::Range<u64>),
) -> Vec<(u64, Slot)> {
    let mut begun = Vec::new();
    for (page, slot) in pages {
        if states.get(page) == PageState::Dirty {
            states.set(page, PageState::Writing(slot));
            begun.push((page, slot));
        }
    }
    if !mutant::on(Mutant::PageOutUnprotected) {
        for run in begun.chunk_by(|one, next| one.0 + 1 == next.0) {
            protect(run[0].0..run[run.len() - 1].0 + 1);
        }
    }
    begun
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_its_state_and_slot() {
        let mut pages = PageStates::new(3).unwrap();
        let slot = Slot(super::super::slots::SLOTS_MAX - 1);
        let with_slot =
            [PageState::Swapped(slot), PageState::Writing(slot), PageState::Stale(slot)];
        for state in
            with_slot.into_iter().chain([PageState::Dirty, PageState::Lost, PageState::Origin])
        {
            pages.set(1, state);
            assert_eq!(pages.get(1), state);
        }
        assert_eq!((pages.get(0), pages.get(2)), (PageState::Origin, PageState::Origin));
    }

    #[test]
    fn what_was_never_stored_to_takes_no_memory_and_is_passed_over() {
        let n = (1 << 34) + 5;
        let mut pages = PageStates::new(n).unwrap();
        let all = |pages: &PageStates| pages.chunks.iter().filter(|it| !it.is_empty()).count();
        assert_eq!(pages.get(n - 1), PageState::Origin);
        assert_eq!(pages.forget(n / 2), Ok(Unused(None)));
        assert_eq!((all(&pages), pages.next_stored_to(0..n)), (0, None));
        for page in [n - 1, 3 * CHUNK + 7] {
            assert_eq!(pages.store(page, || {}), Unused(None));
            assert_eq!(pages.get(page), PageState::Dirty);
        }
        assert_eq!(all(&pages), 2);
        assert_eq!(pages.chunks.last().map(|it| it.len()), Some(5));
        assert_eq!(pages.next_stored_to(0..n), Some(3 * CHUNK));
        assert_eq!(pages.next_stored_to(3 * CHUNK + 9..n), Some(3 * CHUNK + 9));
        assert_eq!(pages.next_stored_to(4 * CHUNK..n), Some(1 << 34));
        assert_eq!(pages.next_stored_to(4 * CHUNK..n - 5), None);
        assert!(PageStates::new(u64::MAX).is_err());
    }

    #[test]
    fn a_page_out_writes_what_is_dirty_and_protects_it_in_runs() {
        let mut pages = PageStates::new(10).unwrap();
        for page in [1, 2, 4, 6] {
            assert_eq!(pages.store(page, || {}), Unused(None));
        }
        let mut protected = Vec::new();
        let wanted = (0..7).map(|page| (page, Slot(page as u32 + 20)));
        let begun = begin(&mut pages, wanted, |run| protected.push(run));
        assert_eq!(begun, [(1, Slot(21)), (2, Slot(22)), (4, Slot(24)), (6, Slot(26))]);
        assert_eq!(protected, [1..3, 4..5, 6..7]);
        assert!(!pages.may_leave(1) && pages.may_leave(0));
        assert_eq!(pages.forget(1), Err(IsWriting));
        // One was stored to, one is as its origin, one failed.
        assert_eq!(pages.store(2, || {}), Unused(None), "the slot is being written");
        assert_eq!(pages.end_write(1, Slot(21), Written::InSlot, || {}), Unused(None));
        assert_eq!(pages.end_write(2, Slot(22), Written::InSlot, || {}), Unused(Some(Slot(22))));
        assert_eq!(pages.end_write(4, Slot(24), Written::AsOrigin, || {}), Unused(Some(Slot(24))));
        assert_eq!(pages.end_write(6, Slot(26), Written::Failed, || {}), Unused(Some(Slot(26))));
        let states: Vec<_> = [1, 2, 4, 6].map(|page| pages.get(page)).into();
        let swapped = PageState::Swapped(Slot(21));
        assert_eq!(states, [swapped, PageState::Dirty, PageState::Origin, PageState::Dirty]);
        assert_eq!(pages.store(1, || {}), Unused(Some(Slot(21))));
        assert_eq!(pages.forget(1), Ok(Unused(None)));
        assert_eq!(pages.get(1), PageState::Origin);
    }

    #[test]
    fn what_was_taken_away_while_it_was_written_is_lost_whatever_was_written() {
        let mut pages = PageStates::new(1).unwrap();
        let _ = pages.store(0, || {});
        assert_eq!(begin(&mut pages, [(0, Slot(1))].into_iter(), |_| {}).len(), 1);
        assert_eq!(pages.miss(0), Err(IsWriting));
        assert_eq!(pages.store(0, || {}), Unused(None));
        assert_eq!(pages.end_write(0, Slot(1), Written::InSlot, || {}), Unused(Some(Slot(1))));
        assert_eq!((pages.miss(0), pages.get(0)), (Ok(()), PageState::Lost));
    }

    #[test]
    fn a_page_of_which_the_system_does_not_tell_is_not_protected_any_more() {
        let distrusted = |seen| {
            let (mut pages, mut allowed) = (PageStates::new(1).unwrap(), false);
            assert_eq!(pages.distrust(0, seen, || allowed = true), Unused(None));
            (pages.get(0), allowed)
        };
        // The next store to it would be a fault again and again: a dirty page is not protected.
        assert_eq!(distrusted(None), (PageState::Dirty, true));
        assert_eq!(distrusted(Some(Seen::Open)), (PageState::Dirty, false));
        assert_eq!(distrusted(Some(Seen::Protected)), (PageState::Origin, false));
        assert_eq!(distrusted(Some(Seen::Absent)), (PageState::Origin, false));
    }

    /// Whether a page can leave, be forgotten or be written again while an older version of it is
    /// being written.
    fn stored_to_while_written() -> (bool, bool) {
        let mut pages = PageStates::new(1).unwrap();
        let _ = pages.store(0, || {});
        let begin = |pages: &mut PageStates, slot| {
            super::begin(pages, [(0, slot)].into_iter(), |_| {}).len() == 1
        };
        assert!(begin(&mut pages, Slot(1)));
        assert_eq!(pages.store(0, || {}), Unused(None));
        assert!(!pages.may_leave(0));
        (begin(&mut pages, Slot(2)), pages.forget(0).is_ok())
    }

    #[test]
    fn a_page_stays_as_it_is_while_an_older_version_of_it_is_written() {
        assert_eq!(stored_to_while_written(), (false, false));
        let caught = mutant::with(Some(Mutant::WriteForgotten), stored_to_while_written);
        assert!(caught.0, "the mutant does nothing");
    }
}
