//! Groups folios by mobility: some 2 MiB runs are kept for folios that never move, so that the
//! others can be emptied again; and by where their bytes are. Here is the kind of each run.
//!
//! | kind | what is put there | how a run becomes one |
//! |---|---|---|
//! | movable | folios that can be moved or evicted; pinned ones only if they fill the run | at open, and again when all of the run is free |
//! | unmovable | index nodes, folios pinned for long that are smaller than a run | claimed when the unmovable ones are full; the run in which the table ends, and a last one that is cut short, always are |
//! | hollow | folios whose bytes are outside of the arena (`pages/outside.rs`): the run's memory was given back to the system | made hollow when those that are hollow are full; it is movable again when all of it is free, or when the arena takes it back, unless it is the last while there are maps |
//!
//! `docs/pin.md` says why. A hollow folio that is in use blocks its run, too, but not from becoming
//! hollow again (`hollow.rs`). (After Linux: Gorman and Whitcroft, OLS 2006.)

use std::ops::Range;

use super::run_map::RunSet;
use super::units::{FrameNumber, Order};

/// The least frames that are left for index nodes.
const FOR_NODES_MIN: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Mobility {
    Movable,
    Unmovable,
    Hollow,
}

impl Mobility {
    pub(super) const COUNT: usize = 3;
}

#[derive(Debug)]
pub(super) struct RunKinds {
    /// And those that are hollow.
    movable: RunSet,
    hollow: RunSet,
    /// The runs in which every frame can be data; no other is ever movable.
    whole: Range<u32>,
    for_nodes: Range<u32>,
    frames: u32,
    /// For models, whose arenas have no whole run: the one frame that no pin may stay in.
    #[cfg(loom)]
    splinter: std::sync::atomic::AtomicU32,
}

fn run_of(frame: FrameNumber) -> u32 {
    frame.0 >> Order::MAX.get()
}

/// A 64th of the arena behind the table, or less: the rest of an aligned block in which the table
/// ends, so that no free block crosses their end. None where no run is whole: there pins stay.
fn for_nodes(frames: u32, table_frames: u32, whole: &Range<u32>) -> Range<u32> {
    let most = (frames / 64).max(FOR_NODES_MIN);
    let ends = Order::all().map(|order| table_frames.next_multiple_of(order.frames()));
    let fits = |end: &u32| *end <= frames && end - table_frames <= most && !whole.is_empty();
    table_frames..ends.filter(fits).max().unwrap_or(table_frames)
}

impl RunKinds {
    pub(super) fn new(frames: u32, table_frames: u32) -> Self {
        let run_frames = Order::MAX.frames();
        let whole = table_frames.div_ceil(run_frames)..frames / run_frames;
        let runs = RunKinds {
            movable: RunSet::new(frames),
            hollow: RunSet::new(frames),
            whole: whole.clone(),
            for_nodes: for_nodes(frames, table_frames, &whole),
            frames,
            #[cfg(loom)]
            splinter: std::sync::atomic::AtomicU32::new(u32::MAX),
        };
        for run in whole {
            runs.set(FrameNumber(run * run_frames), Mobility::Movable);
        }
        runs
    }

    pub(super) fn table_frames(&self) -> u32 {
        self.for_nodes.start
    }

    pub(super) fn whole(&self) -> impl DoubleEndedIterator<Item = FrameNumber> + use<> {
        self.whole.clone().map(|run| FrameNumber(run * Order::MAX.frames()))
    }

    pub(super) fn is_whole(&self, frame: FrameNumber) -> bool {
        frame.is_aligned(Order::MAX) && self.whole.contains(&run_of(frame))
    }

    pub(super) fn nth_whole(&self, nth: u32) -> Option<FrameNumber> {
        let run = self.whole.start + nth.checked_rem(self.whole.len() as u32)?;
        Some(FrameNumber(run * Order::MAX.frames()))
    }

    pub(super) fn for_nodes(&self) -> Range<u32> {
        self.for_nodes.clone()
    }

    /// The frames of the unmovable runs, without [`Self::for_nodes`]; first of runs never whole.
    pub(super) fn unmovable(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let first = self.for_nodes.end;
        let (one, other) = (run_of(FrameNumber(first)), run_of(FrameNumber(self.frames - 1)));
        let ends = [Some(one), (one < other).then_some(other)].into_iter().flatten();
        let ends = ends.filter(|run| !self.whole.contains(run));
        let claimed = self.whole().filter(|&run| !self.is_movable(run)).map(run_of);
        ends.chain(claimed).map(move |run| {
            let start = run * Order::MAX.frames();
            start.max(first)..(start + Order::MAX.frames()).min(self.frames)
        })
    }

    /// Whether no pin may stay in `frame`. Without the allocator's mutex this is valid for a folio
    /// whose version was even before the call and is unchanged after it: the kind was settled
    /// before the folio was allocated, and a later claim only makes "movable" out of date.
    #[inline]
    pub(super) fn is_movable(&self, frame: FrameNumber) -> bool {
        #[cfg(loom)]
        if self.splinter.load(std::sync::atomic::Ordering::Relaxed) == frame.0 {
            return true;
        }
        self.movable.contains(frame)
    }

    /// Valid as [`Self::is_movable`] is.
    pub(super) fn is_hollow(&self, frame: FrameNumber) -> bool {
        self.hollow.contains(frame)
    }

    #[cfg(feature = "map")]
    pub(super) fn hollow(&self) -> u32 {
        self.hollow.len()
    }

    pub(super) fn kind(&self, frame: FrameNumber) -> Mobility {
        match self.is_movable(frame) {
            true if self.is_hollow(frame) => Mobility::Hollow,
            true => Mobility::Movable,
            false => Mobility::Unmovable,
        }
    }

    /// Under the allocator's mutex. A run that is not whole stays unmovable.
    pub(super) fn set(&self, frame: FrameNumber, kind: Mobility) {
        if self.whole.contains(&run_of(frame)) {
            self.hollow.set(frame, kind == Mobility::Hollow);
            self.movable.set(frame, kind != Mobility::Unmovable);
        }
    }

    /// Marks `frame` as one that no pin may stay in.
    #[cfg(all(test, loom))]
    pub(super) fn set_splinter(&self, frame: FrameNumber) {
        self.splinter.store(frame.0, std::sync::atomic::Ordering::Relaxed);
    }
}
