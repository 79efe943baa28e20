//! Folios whose bytes are outside of the arena, because maps show them: they have frames of a
//! *hollow* run, without memory (`frames/mobility.rs`). Of some files a few folios are hollow; of
//! others all are, always: such a file is [outside](Outside::is_outside), and the index's marks say
//! nothing of its dirtiness. The cache proper keeps, freezes, moves and evicts hollow folios as all
//! others. It asks here where their bytes are, and tells here before they go. `map/outside.rs`
//! answers; without the feature `map`, and in models of loom, the functions below do.
//!
//! Whoever gets a [`Changing`] is called under the file's `change` mutex; so are `leave_memory`,
//! `taken_in` and `left_in_use`, perhaps `freed`, and `is_unsettled`. Then an answer reads no
//! source, allocates no frame, and takes only locks that come after that mutex
//! (`pages/mapping.rs`). `settle` may be called under `resizing`. Others may evict.

use std::ops::Range;
use std::sync::Arc;

use pinfold_policy::Sweep;

use crate::error::Result;
use crate::frames::FrameNumber;
use crate::mapped::{Leaving, PieceTurns};
use crate::pages::mapping::{Changing, Mapping};
use crate::pages::residency::Candidate;

/// When dirty pages that are outside are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "map"), expect(dead_code, reason = "nothing is outside"))]
pub(crate) enum WriteWhen {
    /// By other threads.
    Later,
    /// Before the call returns, unless the last write has just failed.
    Now,
    /// Before the call returns, whatever became of the last write.
    NowAnyway,
}

#[derive(Debug, Default)]
pub(crate) struct WrittenOut {
    /// These were written, or tried to: they may be clean now.
    pub(crate) now: Vec<Candidate>,
    /// So many pages are on their way, and leave when they are written.
    pub(crate) on_their_way: u64,
}

/// Each function's own body is what holds where nothing is outside.
#[expect(unused_variables, reason = "the names say what a caller gives")]
pub(crate) trait Outside {
    /// Of a page of a hollow folio, to which the caller has a reference or the only right.
    fn outside_at(&self, mapping: &Mapping, page: u64) -> *mut u8 {
        unreachable!("no folio is hollow")
    }

    /// Copies bytes from byte `at` of the file on that lie in one page: those of a hollow folio
    /// that has or had that page, or others, or zeros.
    fn copy_outside(&self, mapping: &Mapping, at: u64, to: &mut [u8]) {
        unreachable!("no folio is hollow")
    }

    /// Whether all folios of the file are hollow, always: memory of the program's own.
    fn is_outside(&self, mapping: &Mapping) -> bool {
        false
    }

    /// How many pages no map has accessed of these hollow folios, as far as it is known: each with
    /// its pages, and those that are asked for, in the order of the file.
    fn unaccessed(&self, mapping: &Mapping, folios: &[(Range<u64>, Range<u64>)]) -> u64 {
        0
    }

    /// Before these pages leave without a write: those count as stored to that may have been.
    fn notice_stores(&self, changing: &mut Changing<'_>, pages: &[u64]) {}

    /// Whether the bytes of `page` are elsewhere, too.
    fn may_leave(&self, changing: &mut Changing<'_>, page: u64) -> bool {
        true
    }

    /// Takes pages of a file that is outside out of memory, in rising order, each with a number.
    /// Returns the numbers of those that the system keeps.
    fn leave_memory(&self, mapping: &Mapping, pages: &[(u64, usize)]) -> Vec<usize> {
        Vec::new()
    }

    /// These folios have just left the index, some of `mapping`: the bytes of hollow ones stay
    /// where they are until they are taken out of all maps by what this returns.
    fn leave<'a>(
        &self,
        changing: &mut Changing<'_>,
        mapping: &'a Mapping,
        gone: &[Candidate],
    ) -> Option<Leaving<'a>> {
        None
    }

    /// The bytes of a hollow folio have been copied to the arena.
    fn taken_in(&self, mapping: &Mapping, pages: Range<u64>) {}

    /// It leaves its file while it may be in use: its users keep its bytes, where they are.
    fn left_in_use(&self, mapping: &Mapping, head: FrameNumber, pages: Range<u64>) {}

    fn freed(&self, head: FrameNumber) {}

    /// Waits for those who are just putting bytes of `pages` outside, or taking them out.
    fn settle(&self, mapping: &Mapping, pages: &Range<u64>) {}

    /// Whether there is somebody to wait for.
    fn is_unsettled(&self, mapping: &Mapping, pages: &Range<u64>) -> bool {
        false
    }

    /// Gives back references that only keep hollow folios from eviction.
    fn let_go_of_kept(&self, goes: impl Fn(FrameNumber) -> bool) {}

    fn closed(&self, mapping: &Mapping) {}

    /// The policy offers this folio. True: it goes later, with others.
    fn offer(&self, turns: &mut PieceTurns, sweep: &mut Sweep, head: FrameNumber) -> bool {
        false
    }

    /// The next at most `most` folios that go together. Empty: it is the turn of none.
    fn next_in_turn(&self, turns: &mut PieceTurns, most: usize) -> Vec<Candidate> {
        Vec::new()
    }

    fn offer_no_more(&self, turns: &mut PieceTurns) {}

    /// What is left of a turn is the next eviction's.
    fn end_turns(&self, turns: PieceTurns) {}

    /// These folios stayed because they are dirty.
    fn write_dirty(
        &self,
        mappings: &[Arc<Mapping>],
        dirty: Vec<Candidate>,
        when: WriteWhen,
    ) -> WrittenOut {
        WrittenOut::default()
    }

    /// Whether what is dirty of this file cannot be written for now.
    fn stays_dirty(&self, mapping: &Mapping) -> bool {
        false
    }

    /// If the arena has fewer frames free than is enough, and nobody needs the run.
    fn take_run_back(&self, enough: u32) -> bool {
        false
    }

    /// Up to the high watermark, if there are hollow folios.
    fn keep_some_free(&self) {}

    /// Starts the threads that write.
    fn start(self: &Arc<Self>) -> Result<()> {
        Ok(())
    }
}
