//! A word that lets an explicit-state search run shipped code one access at a time.
//!
//! An operation is deterministic but for what its accesses return. So an operation in progress is
//! its accesses' results so far: to go on, it is run again from its start, those results are given
//! back to it, the next access is made on the real word, and at the one after that the run is
//! unwound. What a loop (`update`) went through before its last attempt has no influence on what
//! comes, and is forgotten: this keeps the state space finite.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use pinfold_refcount::atomic::AtomicWord;

/// What an access returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    Value(u64),
    Swapped(Result<u64, u64>),
    /// An `update` whose last attempt met this instead of what it had seen.
    Retry(u64),
}

/// An operation in progress: the results of its accesses so far.
pub type History = Vec<Step>;

/// The outcome of one more access.
pub enum Run<R> {
    /// The operation goes on after this access.
    Paused,
    /// It returned.
    Finished(R),
    /// It panicked: an assertion of the shipped code.
    Panicked(String),
}

struct Tape {
    word: u64,
    history: History,
    at: usize,
    stepped: bool,
}

/// The word under the count.
#[derive(Clone)]
pub struct ReplayWord(Rc<RefCell<Tape>>);

struct Pause;

/// Makes one more access of `operation`, which has `history` behind it, on `word`.
pub fn step<R>(
    word: &mut u64,
    history: &mut History,
    operation: impl FnOnce(ReplayWord) -> R,
) -> Run<R> {
    let tape = Tape { word: *word, history: std::mem::take(history), at: 0, stepped: false };
    let tape = Rc::new(RefCell::new(tape));
    let outcome = catch_unwind(AssertUnwindSafe(|| operation(ReplayWord(tape.clone()))));
    let mut tape = tape.borrow_mut();
    *word = tape.word;
    *history = std::mem::take(&mut tape.history);
    match outcome {
        Ok(result) => Run::Finished(result),
        Err(payload) if payload.is::<Pause>() => Run::Paused,
        Err(payload) => {
            Run::Panicked(payload.downcast_ref::<String>().cloned().unwrap_or_default())
        }
    }
}

fn pause() -> ! {
    resume_unwind(Box::new(Pause))
}

impl ReplayWord {
    fn access(&self, make: impl FnOnce(&mut u64) -> Step) -> Step {
        let mut tape = self.0.borrow_mut();
        if let Some(&past) = tape.history.get(tape.at) {
            tape.at += 1;
            return past;
        }
        if tape.stepped {
            drop(tape);
            pause();
        }
        tape.stepped = true;
        let now = make(&mut tape.word);
        tape.history.push(now);
        tape.at += 1;
        now
    }

    fn value(&self, make: impl FnOnce(&mut u64) -> u64) -> u64 {
        let Step::Value(value) = self.access(|word| Step::Value(make(word))) else {
            unreachable!("the operation took another path than before")
        };
        value
    }

    fn swap(&self, current: u64, new: u64) -> Result<u64, u64> {
        let step = self.access(|word| {
            let found = *word;
            Step::Swapped(if found == current {
                *word = new;
                Ok(found)
            } else {
                Err(found)
            })
        });
        let Step::Swapped(result) = step else {
            unreachable!("the operation took another path than before")
        };
        result
    }

    fn retry(
        &self,
        mut seen: u64,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        let at = self.0.borrow().at;
        let past = self.0.borrow().history.get(at).copied();
        match past {
            Some(Step::Swapped(result)) => {
                self.0.borrow_mut().at += 1;
                return result;
            }
            Some(Step::Retry(now)) => seen = now,
            _ => {}
        }
        let Some(new) = change(seen) else {
            self.0.borrow_mut().at += usize::from(past.is_some());
            return Err(seen);
        };
        let mut tape = self.0.borrow_mut();
        if tape.stepped {
            drop(tape);
            pause();
        }
        tape.stepped = true;
        let found = tape.word;
        tape.history.truncate(at);
        if found == seen {
            tape.word = new;
            tape.history.push(Step::Swapped(Ok(new)));
            tape.at += 1;
            return Ok(new);
        }
        tape.history.push(Step::Retry(found));
        // Whether it declines now is decided without another access.
        if change(found).is_none() {
            tape.at += 1;
            return Err(found);
        }
        drop(tape);
        pause()
    }
}

impl AtomicWord<u64> for ReplayWord {
    fn new(_: u64) -> Self {
        unreachable!("a replayed word is made by `step`")
    }
    fn load(&self, _: Ordering) -> u64 {
        self.value(|word| *word)
    }
    fn store(&self, value: u64, _: Ordering) {
        self.value(|word| std::mem::replace(word, value));
    }
    fn fetch_add(&self, value: u64, _: Ordering) -> u64 {
        self.value(|word| std::mem::replace(word, word.wrapping_add(value)))
    }
    fn fetch_sub(&self, value: u64, _: Ordering) -> u64 {
        self.value(|word| std::mem::replace(word, word.wrapping_sub(value)))
    }
    fn compare_exchange(&self, current: u64, new: u64, _: Ordering) -> Result<u64, u64> {
        self.swap(current, new)
    }
    fn update(&self, seen: u64, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.retry(seen, change)
    }
}

/// The same for a 32-bit count.
impl AtomicWord<u32> for ReplayWord {
    fn new(_: u32) -> Self {
        unreachable!("a replayed word is made by `step`")
    }
    fn load(&self, _: Ordering) -> u32 {
        self.value(|word| *word) as u32
    }
    fn store(&self, value: u32, _: Ordering) {
        self.value(|word| std::mem::replace(word, u64::from(value)));
    }
    fn fetch_add(&self, value: u32, _: Ordering) -> u32 {
        self.value(|word| std::mem::replace(word, u64::from((*word as u32).wrapping_add(value))))
            as u32
    }
    fn fetch_sub(&self, value: u32, _: Ordering) -> u32 {
        self.value(|word| std::mem::replace(word, u64::from((*word as u32).wrapping_sub(value))))
            as u32
    }
    fn compare_exchange(&self, current: u32, new: u32, _: Ordering) -> Result<u32, u32> {
        self.swap(current.into(), new.into()).map(|v| v as u32).map_err(|v| v as u32)
    }
    fn update(&self, seen: u32, change: impl Fn(u32) -> Option<u32>) -> Result<u32, u32> {
        self.retry(seen.into(), |word| change(word as u32).map(u64::from))
            .map(|v| v as u32)
            .map_err(|v| v as u32)
    }
}
