//! The folios that mapped accesses have brought last, kept from eviction until others take their
//! place.
//!
//! Otherwise, where memory is short, a page could be evicted before its access is repeated, and no
//! thread get on. So the cache keeps references to the last few folios, [`KEPT_MAX_BYTES`] or a 16th
//! of the budget (`map/of.rs`).
//!
//! A folio that leaves its file is let go of (`freeze/users.rs`): the kernel would go on mapping
//! its bytes as long as it has a user. So is whatever a pin has to move, and what is in a run that
//! the arena takes back.

use std::collections::VecDeque;
// Not from `crate::base::sync`: loom's caches keep nothing here, and would pay for it with each
// drop.
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::base::sync::locks::Mutex;
use crate::frames::{FrameNumber, PAGE_BYTES};

/// The most that is kept from eviction, however large the budget is.
const KEPT_MAX_BYTES: usize = 1 << 20;

/// The heads of these folios, of each of which the caller has a reference.
#[derive(Debug)]
pub(crate) struct Recent {
    most_bytes: usize,
    kept: Mutex<RecentQueue>,
    /// How many there are, for those who would let go of them.
    len: AtomicUsize,
}

#[derive(Debug, Default)]
struct RecentQueue {
    /// The oldest first, with their sizes.
    queue: VecDeque<(FrameNumber, usize)>,
    bytes: usize,
}

impl Recent {
    pub(crate) fn new(frames: u32) -> Self {
        let most_bytes = (frames as usize * PAGE_BYTES / 16).min(KEPT_MAX_BYTES);
        Recent { most_bytes, kept: Mutex::default(), len: AtomicUsize::new(0) }
    }

    /// Adds a folio of `bytes` bytes. Returns those in whose place it is.
    pub(crate) fn keep(&self, head: FrameNumber, bytes: usize) -> Vec<FrameNumber> {
        let mut kept = self.kept.lock();
        kept.queue.push_back((head, bytes));
        kept.bytes += bytes;
        let mut gone = Vec::new(); // which allocates nothing as long as it is empty
        while kept.bytes > self.most_bytes
            && kept.queue.len() > 1
            && let Some((oldest, bytes)) = kept.queue.pop_front()
        {
            kept.bytes -= bytes;
            gone.push(oldest);
        }
        self.len.store(kept.queue.len(), Ordering::Relaxed); // see `take`
        drop(kept);
        // SeqCst: pairs with the one in `take`. The caller looks whether the folio has left its
        // file, after this; who drops it makes that visible before `take`. One of them sees the
        // other.
        fence(Ordering::SeqCst);
        gone
    }

    pub(crate) fn take(&self, goes: impl Fn(FrameNumber) -> bool) -> Vec<FrameNumber> {
        fence(Ordering::SeqCst); // pairs with the one in `keep`
        if self.len.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut kept = self.kept.lock();
        let RecentQueue { queue, bytes } = &mut *kept;
        let mut gone = Vec::new();
        queue.retain(|&(head, its_bytes)| {
            let goes = goes(head);
            if goes {
                *bytes -= its_bytes;
                gone.push(head);
            }
            !goes
        });
        self.len.store(queue.len(), Ordering::Relaxed);
        gone
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::base::mutant::{self, Mutant};
    use crate::{Cache, Options, Space};

    /// Whether a page can be pinned after an access, and what an access gets after the file was
    /// changed and invalidated.
    fn after_an_access() -> (bool, u8) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 4096]).unwrap();
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let opened = cache.open(file.path()).unwrap();
        let space = Space::new(&cache, 0).unwrap();
        let map = space.map_file(&opened, 0..4096).unwrap();
        // SAFETY: a byte of the map.
        let byte = || unsafe { map.as_ptr().read_volatile() };
        assert_eq!(byte(), 1);
        let is_pinned = opened.pin(0..4096).is_ok();
        assert_eq!(byte(), 1);
        std::fs::write(file.path(), [2; 4096]).unwrap();
        opened.invalidate(0..4096).unwrap();
        (is_pinned, byte())
    }

    #[test]
    fn what_was_brought_for_an_access_keeps_nobody_from_dropping_or_pinning_it() {
        assert_eq!(after_an_access(), (true, 2));
        let stays = mutant::with(Some(Mutant::RecentStays), after_an_access);
        assert_eq!(stays, (false, 1), "the mutant does nothing");
    }

    fn heads(heads: &[u32]) -> Vec<FrameNumber> {
        heads.iter().copied().map(FrameNumber).collect()
    }

    #[test]
    fn the_last_are_kept_up_to_a_bound() {
        let recent = Recent::new(16 * 5);
        assert_eq!(recent.take(|_| true), []);
        for head in 0..5 {
            assert_eq!(recent.keep(FrameNumber(head), 4096), []);
        }
        assert_eq!(recent.keep(FrameNumber(5), 2 * 4096), heads(&[0, 1]));
        assert_eq!(recent.take(|head| head.0 % 2 == 0), heads(&[2, 4]));
        assert_eq!(recent.keep(FrameNumber(6), 2 * 4096), []);
        // However large the last is, it is kept, alone.
        assert_eq!(recent.keep(FrameNumber(7), 6 * 4096), heads(&[3, 5, 6]));
        assert_eq!(recent.take(|_| true), heads(&[7]));
        assert_eq!(recent.keep(FrameNumber(8), 5 * 4096), []);
        assert_eq!(Recent::new(1 << 28).most_bytes, 1 << 20);
    }
}
