//! Who does what, and whether it goes on.
//!
//! Belongs here: the desks at which threads say what they do, the search for one that hangs, and
//! the board of places being read, which the shakers aim at.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::files::Subjects;

/// Where one thread says what it does. A cache line pair of its own, so that saying it costs a
/// reader nothing but a store.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Desk {
    pub(super) name: String,
    /// Index in [`DOINGS`].
    doing: AtomicU64,
    file: AtomicU64,
    offset: AtomicU64,
    bytes: AtomicU64,
    /// Things done; it stands still in a thread that hangs.
    done: AtomicU64,
    /// Reads that were checked and right, and their bytes.
    reads: AtomicU64,
    read_bytes: AtomicU64,
    /// Reads that met an injected error or a file cut short, as they may.
    excused: AtomicU64,
    /// How often the access to a map failed that this thread makes just now.
    pub(super) failing: AtomicU64,
    left: AtomicBool,
}

/// What threads do, for messages and for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Doing {
    Nothing,
    ReadCells,
    ReadBytes,
    ReadPages,
    ReadLarge,
    Scan,
    ReadEdge,
    ReadMany,
    Borrow,
    Hold,
    BorrowMany,
    HoldMany,
    Await,
    Drop,
    Invalidate,
    Split,
    Migrate,
    Compact,
    Advise,
    Reopen,
    Inject,
    Heal,
    Rewrite,
    Cut,
    Restore,
    Audit,
    Pin,
    Unpin,
    Map,
    Protect,
    Unmap,
    Access,
    AccessSlice,
    AccessCopy,
    AccessCall,
    Repeat,
    AdviseMap,
    Fork,
    WaitForMap,
    LastLook,
    Foreign,
}

pub(super) const DOINGS: [(Doing, &str); 41] = [
    (Doing::Nothing, "nothing"),
    (Doing::ReadCells, "reads of one 64-byte cell"),
    (Doing::ReadBytes, "reads of 1 to 256 bytes"),
    (Doing::ReadPages, "reads of up to 16 KiB"),
    (Doing::ReadLarge, "reads of up to 4 MiB"),
    (Doing::Scan, "sequential reads"),
    (Doing::ReadEdge, "reads around the end of the file"),
    (Doing::ReadMany, "reads in batches"),
    (Doing::Borrow, "pages borrowed"),
    (Doing::Hold, "pages held by a count"),
    (Doing::BorrowMany, "pages borrowed in batches"),
    (Doing::HoldMany, "pages held by a count, in batches"),
    (Doing::Await, "futures that ended"),
    (Doing::Drop, "futures dropped"),
    (Doing::Invalidate, "invalidate"),
    (Doing::Split, "split"),
    (Doing::Migrate, "migrate"),
    (Doing::Compact, "compact"),
    (Doing::Advise, "advise"),
    (Doing::Reopen, "open, read, drop"),
    (Doing::Inject, "faults injected"),
    (Doing::Heal, "faults healed"),
    (Doing::Rewrite, "files written anew"),
    (Doing::Cut, "files cut short"),
    (Doing::Restore, "files restored"),
    (Doing::Audit, "looks at the budget"),
    (Doing::Pin, "ranges pinned"),
    (Doing::Unpin, "pinned ranges looked at again"),
    (Doing::Map, "maps made"),
    (Doing::Protect, "maps made unreadable for a while"),
    (Doing::Unmap, "maps unmapped"),
    (Doing::Access, "accesses to maps, of one cell"),
    (Doing::AccessSlice, "slices of maps looked at"),
    (Doing::AccessCopy, "copies of bytes of maps"),
    (Doing::AccessCall, "system calls with addresses in maps"),
    (Doing::Repeat, "accesses to maps that failed, and were made again"),
    (Doing::AdviseMap, "hints for maps"),
    (Doing::Fork, "forks"),
    (Doing::WaitForMap, "waits for maps that others have"),
    (Doing::LastLook, "maps looked at in the end"),
    (Doing::Foreign, "files of another process, opened or refreshed, and read"),
];

// All accesses below are relaxed: these are counters and notes for a person. The one that
// decides something, `left`, is followed by a join.
impl Desk {
    /// Says what is done next.
    pub(super) fn begin(&self, doing: Doing, file: usize, offset: u64, bytes: u64) {
        self.doing.store(doing as u64, Ordering::Relaxed);
        self.file.store(file as u64, Ordering::Relaxed);
        self.offset.store(offset, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        bump(&self.done, 1);
    }

    /// Says that it waits until nobody has a map that it wants.
    pub(super) fn wait_for_map(&self) {
        self.begin(Doing::WaitForMap, usize::MAX, 0, 0);
    }

    /// Counts a read that was right.
    #[inline]
    pub(super) fn read(&self, bytes: usize) {
        bump(&self.reads, 1);
        bump(&self.read_bytes, bytes as u64);
    }

    /// Counts a read that was excused.
    pub(super) fn excuse(&self) {
        bump(&self.excused, 1);
    }

    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Moves on as long as the thread does.
    fn pulse(&self) -> u64 {
        let counts = [&self.done, &self.reads, &self.excused];
        counts.map(|count| count.load(Ordering::Relaxed)).iter().sum()
    }

    /// Whether it has ended, or waits for another thread, which is the one to find if it hangs.
    fn cannot_hang(&self) -> bool {
        let waits = self.doing.load(Ordering::Relaxed) == Doing::WaitForMap as u64;
        waits || self.left.load(Ordering::Relaxed)
    }

    pub(super) fn describe(&self, subjects: &Subjects) -> String {
        let (_, doing) = DOINGS[self.doing.load(Ordering::Relaxed) as usize];
        let file = self.file.load(Ordering::Relaxed) as usize;
        let failing = match self.failing.load(Ordering::Relaxed) {
            0 => String::new(),
            times => format!("; the access has failed {times} times"),
        };
        format!(
            "{doing}, {} bytes at {} of {}{failing}",
            self.bytes.load(Ordering::Relaxed),
            self.offset.load(Ordering::Relaxed),
            subjects.all.get(file).map_or("no file", |subject| &subject.name),
        )
    }
}

/// Only the desk's own thread stores, so this needs no atomic addition.
#[inline]
fn bump(count: &AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// All desks, and the places being read.
#[derive(Debug)]
pub(super) struct Watch {
    desks: Mutex<Vec<Arc<Desk>>>,
    /// One place in use for each file.
    spots: Vec<AtomicU64>,
    /// The file that somebody began to read last.
    latest: AtomicU64,
    counts: Mutex<HashMap<Doing, u64>>,
}

impl Watch {
    pub(super) fn new(subjects: &Subjects) -> Self {
        Watch {
            desks: Mutex::new(Vec::new()),
            spots: subjects.all.iter().map(|_| AtomicU64::new(0)).collect(),
            latest: AtomicU64::new(0),
            counts: Mutex::new(HashMap::new()),
        }
    }

    pub(super) fn desk(&self, name: &str) -> Arc<Desk> {
        let desk = Arc::new(Desk {
            name: name.to_owned(),
            doing: AtomicU64::new(0),
            file: AtomicU64::new(u64::MAX),
            offset: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            done: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            excused: AtomicU64::new(0),
            failing: AtomicU64::new(0),
            left: AtomicBool::new(false),
        });
        self.desks.lock().unwrap().push(desk.clone());
        desk
    }

    fn total(&self, of: fn(&Desk) -> &AtomicU64) -> u64 {
        self.desks.lock().unwrap().iter().map(|desk| of(desk).load(Ordering::Relaxed)).sum()
    }

    pub(super) fn reads(&self) -> u64 {
        self.total(|desk| &desk.reads)
    }

    pub(super) fn read_bytes(&self) -> u64 {
        self.total(|desk| &desk.read_bytes)
    }

    pub(super) fn excused(&self) -> u64 {
        self.total(|desk| &desk.excused)
    }

    pub(super) fn all_left(&self) -> bool {
        self.desks.lock().unwrap().iter().all(|desk| desk.left.load(Ordering::Relaxed))
    }

    /// What each thread does, a line each.
    pub(super) fn states(&self, subjects: &Subjects) -> String {
        let mut states = String::new();
        for desk in self.desks.lock().unwrap().iter() {
            let ended = desk.left.load(Ordering::Relaxed);
            let state = if ended { "has ended".to_owned() } else { desk.describe(subjects) };
            let _ = writeln!(states, "  {:10} {:>12} done  {state}", desk.name, desk.pulse());
        }
        states
    }

    /// Counts things done. Not for single reads: it takes a lock.
    pub(super) fn count(&self, doing: Doing, times: u64) {
        *self.counts.lock().unwrap().entry(doing).or_default() += times;
    }

    pub(super) fn counted(&self, doing: Doing) -> u64 {
        self.counts.lock().unwrap().get(&doing).copied().unwrap_or(0)
    }

    /// Notes that `file` is being read at `offset`. Relaxed, here and in the two below: a hint.
    pub(super) fn aim(&self, file: usize, offset: u64) {
        self.spots[file].store(offset, Ordering::Relaxed);
        self.latest.store(file as u64, Ordering::Relaxed);
    }

    /// The file that somebody began to read a moment ago.
    pub(super) fn latest(&self) -> usize {
        self.latest.load(Ordering::Relaxed) as usize
    }

    /// Where `file` was being read a moment ago.
    pub(super) fn spot(&self, file: usize) -> u64 {
        self.spots[file].load(Ordering::Relaxed)
    }
}

/// The search for threads that stand still.
pub(super) struct Hangs {
    allowed: Duration,
    /// What each desk's pulse was last, and when it was something else.
    seen: Vec<(u64, Duration)>,
}

impl Hangs {
    pub(super) fn new(allowed: Duration) -> Self {
        Hangs { allowed, seen: Vec::new() }
    }

    /// A thread that did not get on for too long, at `now` of the run's clock. To be asked often.
    pub(super) fn find(&mut self, watch: &Watch, now: Duration) -> Option<Arc<Desk>> {
        for (n, desk) in watch.desks.lock().unwrap().iter().enumerate() {
            let pulse = desk.pulse();
            if self.seen.len() <= n {
                self.seen.push((pulse, now));
            }
            let (last, since) = &mut self.seen[n];
            if *last != pulse || desk.cannot_hang() {
                (*last, *since) = (pulse, now);
            } else if now.saturating_sub(*since) > self.allowed {
                return Some(desk.clone());
            }
        }
        None
    }
}
