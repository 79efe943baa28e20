//! Dirty pages of own memory on their way to the swap: who evicts hands them over, and threads of
//! the cache write them (`map/writers.rs`).
//!
//! So nobody who wants memory waits for the swap. While it hangs, these threads do, as many pages
//! as there is room for here stay where they are, and what is clean is evicted.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::frames::{FrameNumber, Identity};
// Not from `crate::base::sync` itself: no model has such threads.
use crate::base::sync::locks::{Condvar, Mutex};

/// The most pages at once: 2 MiB.
const PAGES_MAX: usize = 512;

/// Of these, the most that were written before and stayed all the same: they may stay again.
const STAYED_MAX: usize = PAGES_MAX / 2;

/// A page, as it was when it was handed over.
pub(crate) type Page = (FrameNumber, Identity);

/// The pages, as who evicts sees them.
#[derive(Debug, Default)]
pub(crate) struct ToWrite {
    pages: Arc<PagesToWrite>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The pages, as a thread sees them that writes.
#[derive(Debug, Default)]
pub(crate) struct PagesToWrite {
    now: Mutex<WriteQueue>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct WriteQueue {
    waiting: VecDeque<Page>,
    /// Those that wait, and those that are being written.
    all: HashSet<u32>,
    is_over: bool,
}

impl ToWrite {
    /// Hands pages over, as long as there is room. Of each is said whether it was written before,
    /// and stayed. Returns how many will leave, as far as is known, and had not been handed over
    /// before.
    pub(crate) fn add(&self, pages: impl IntoIterator<Item = (Page, bool)>) -> u64 {
        let mut now = self.pages.now.lock();
        let (before, mut leave) = (now.waiting.len(), 0);
        for (page, stayed) in pages {
            let most = if stayed { STAYED_MAX } else { PAGES_MAX };
            if now.all.len() < most && now.all.insert(page.0.0) {
                now.waiting.push_back(page);
                leave += u64::from(!stayed);
            }
        }
        let is_more = now.waiting.len() > before;
        drop(now);
        if is_more {
            self.pages.more.notify_all();
        }
        leave
    }

    /// Whether all that was handed over is written, or was not to be.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn is_idle(&self) -> bool {
        self.pages.now.lock().all.is_empty()
    }

    pub(crate) fn pages(&self) -> Arc<PagesToWrite> {
        self.pages.clone()
    }

    /// Sets one of the threads, which are joined when this is dropped.
    pub(crate) fn are_written_by(&self, thread: JoinHandle<()>) {
        self.threads.lock().push(thread);
    }
}

impl Drop for ToWrite {
    fn drop(&mut self) {
        self.pages.now.lock().is_over = true;
        self.pages.more.notify_all();
        for thread in self.threads.lock().drain(..) {
            // One of them may be the one that drops the cache.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl PagesToWrite {
    /// The next pages, `most` or fewer. `None`: the thread shall end.
    pub(crate) fn next(&self, most: usize) -> Option<Vec<Page>> {
        let mut now = self.now.lock();
        while now.waiting.is_empty() && !now.is_over {
            now = self.more.wait(now);
        }
        let n = now.waiting.len().min(most);
        (!now.is_over).then(|| now.waiting.drain(..n).collect())
    }

    /// These are written, or were not to be written any more.
    pub(crate) fn are_done(&self, pages: &[Page]) {
        let mut now = self.now.lock();
        for page in pages {
            now.all.remove(&page.0.0);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::frames::Order;

    #[test]
    fn a_page_is_handed_over_once_until_it_is_written_and_there_is_a_bound() {
        let to_write = ToWrite::default();
        let page = |n: u32| {
            let (mapping, index, order) = (1, u64::from(n), Order::MIN);
            (FrameNumber(n), Identity { mapping, index, order })
        };
        let add = |pages: &[u32]| to_write.add(pages.iter().map(|&n| (page(n), false)));
        let add_again = |pages: &[u32]| to_write.add(pages.iter().map(|&n| (page(n), true)));
        assert_eq!(add(&[1, 2, 1]), 2);
        let pages = to_write.pages();
        let first = pages.next(1).unwrap();
        assert_eq!(add(&[1, 2]), 0, "one is being written, the other waits");
        pages.are_done(&first);
        assert_eq!(add(&[1]), 1);
        let heads: Vec<_> = pages.next(100).unwrap().into_iter().map(|page| page.0.0).collect();
        assert_eq!(heads, [2, 1]);
        assert_eq!(add_again(&(1000..2000).collect::<Vec<_>>()), 0, "nothing says that they leave");
        assert_eq!(to_write.pages.now.lock().all.len(), STAYED_MAX);
        assert_eq!(add(&(10..1000).collect::<Vec<_>>()), (PAGES_MAX - STAYED_MAX) as u64);
        drop(to_write);
        assert!(pages.next(1).is_none());
    }
}
