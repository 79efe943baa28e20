//! How many requests and calls of a cache's sources have begun and ended, and whether this thread
//! is in one: for threads that wait for memory, whether any may come.

use std::cell::Cell;
use std::sync::Arc;

use crate::base::sync::{AtomicU64, Ordering};

#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    begun: AtomicU64,
    ended: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Move {
    under_way: UnderWay,
    refused: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    /// Whether there was one a moment ago.
    pub(crate) under_way: bool,
    /// How many have ended. If none was under way, these are all that had ended then.
    pub(crate) ended: u64,
}

impl UnderWay {
    pub(super) fn begin(&self) -> Move {
        self.0.begun.fetch_add(1, Ordering::Relaxed); // these numbers order nothing else
        Move { under_way: self.clone(), refused: false }
    }

    pub(super) fn count(&self) -> u64 {
        // Relaxed: an estimate. Some may have begun and ended between the two loads.
        let ended = self.0.ended.load(Ordering::Relaxed);
        self.0.begun.load(Ordering::Relaxed).saturating_sub(ended)
    }

    pub(super) fn reads(&self) -> Reads {
        // Relaxed: loads of one word are in order: the second `ended` is no older than the first.
        let under_way =
            self.0.begun.load(Ordering::Relaxed) != self.0.ended.load(Ordering::Relaxed);
        Reads { under_way, ended: self.0.ended.load(Ordering::Relaxed) }
    }
}

impl Move {
    /// It was in vain, and does not count as ended.
    pub(super) fn refuse(mut self) {
        self.refused = true;
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        let numbers = &self.under_way.0;
        if self.refused {
            numbers.begun.fetch_sub(1, Ordering::Relaxed);
        } else {
            numbers.ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The calling thread calls a source, until this is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    #[cfg_attr(not(any(feature = "map", test)), expect(dead_code, reason = "its drop counts"))]
    moves: Move,
    _inside: Inside,
}

impl Call {
    pub(super) fn begin(under_way: &UnderWay) -> Self {
        Call { moves: under_way.begin(), _inside: Inside::enter() }
    }

    /// It brought nothing: who waits for memory does not wait anew for that.
    #[cfg(any(feature = "map", test))]
    pub(crate) fn fail(self) {
        self.moves.refuse();
    }
}

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

#[derive(Debug)]
pub(super) struct Inside(());

impl Inside {
    pub(super) fn enter() -> Self {
        CALLS.set(CALLS.get() + 1);
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CALLS.set(CALLS.get() - 1);
    }
}

/// Whether the calling thread carries out a source's call, which waits for what it asks for.
pub(crate) fn in_a_source() -> bool {
    CALLS.get() > 0
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_under_way_and_inside_until_it_ends() {
        let numbers = UnderWay::default();
        for (fails, ended) in [(false, 1), (true, 1)] {
            let call = Call::begin(&numbers);
            assert!(in_a_source() && numbers.reads().under_way);
            if fails {
                call.fail();
            } else {
                drop(call);
            }
            assert!(!in_a_source());
            assert!(matches!(numbers.reads(), Reads { under_way: false, ended: n } if n == ended));
        }
    }

    #[test]
    fn what_is_refused_has_not_ended() {
        let numbers = UnderWay::default();
        let (first, second) = (numbers.begin(), numbers.begin());
        first.refuse();
        assert!(matches!(numbers.reads(), Reads { under_way: true, ended: 0 }));
        drop(second);
        assert!(matches!(numbers.reads(), Reads { under_way: false, ended: 1 }));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;

    /// Loads the numbers while a read ends.
    fn look(reads: fn(&UnderWay) -> Reads) {
        loom::model(move || {
            let numbers = UnderWay::default();
            let read = numbers.begin();
            let ends = loom::thread::spawn(move || drop(read));
            let Reads { under_way, ended } = reads(&numbers);
            assert!(under_way || ended == 1, "the read is over and has not ended");
            ends.join().expect("it does not panic");
        });
    }

    #[test]
    fn a_read_that_is_over_has_ended() {
        look(UnderWay::reads);
    }

    #[test]
    #[should_panic(expected = "the read is over and has not ended")]
    fn the_other_order_is_caught() {
        look(|numbers| {
            let ended = numbers.reads().ended;
            Reads { ended, ..numbers.reads() }
        });
    }
}
