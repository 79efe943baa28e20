//! What any floor may use. It stands on nothing of this crate; a file uses only those below it.
//!
//! ```text
//! wait       waiting for a change of a folio: threads sleep, futures leave a waker
//! barrier    membarrier and fences, in two halves
//! holders    the list of pins, with the call sites that asked for them
//! counters   counters, a shard for each thread
//! mutants    one mutant switched on for the whole process (feature `mutants`)
//! sync/      the one module that swaps std for a model checker's types
//! threads    starting the cache's threads, without signals
//! fork       forked children, and the process that owns a cache
//! heap       the program's allocator, where it may have no memory
//! guarded    calls of the program's code that may panic
//! limits     of the process, that the kernel answers by a signal; of pages that somebody holds
//! sizes      what is smaller under a model checker, and why
//! mutant     the list of mutants, and whether one is on
//! ```

pub(crate) mod barrier;
pub(crate) mod counters;
pub(crate) mod fork;
pub(crate) mod guarded;
pub(crate) mod heap;
pub(crate) mod holders;
pub(crate) mod limits;
pub(crate) mod mutant;
#[cfg(all(feature = "mutants", not(any(test, loom, shuttle))))]
pub mod mutants;
pub(crate) mod sizes;
pub(crate) mod sync;
pub(crate) mod threads;
pub(crate) mod wait;
