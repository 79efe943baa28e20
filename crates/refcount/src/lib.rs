#![no_std]
//! A reference count with its own *frozen* bit: taking a reference is one atomic add.
//!
//! # The problem
//!
//! In a cache, a reader looks a page up while it holds nothing, then takes a reference to it. The
//! page may have been evicted between the two, so taking a reference must fail on a dead page: "add
//! one unless it is dead". If dead means that *the count is zero*, this takes a load and a
//! compare-and-swap loop, and when many cores want the same page, most of the swaps fail.
//!
//! # The word
//!
//! Here a bit of its own says dead, so the add can come first:
//!
//! ```text
//!  63      62 ........ 46  45 ...... 23  22 ....... 0
//! +--------+--------------+-------------+------------+
//! | frozen |  generation  |    pins     |    refs    |
//! +--------+--------------+-------------+------------+
//! ```
//!
//! - [`try_get`](RefCount::try_get) adds one and checks the result. Frozen bit clear: the caller
//!   holds a reference, even if the count was 0 before. Frozen bit set: the caller holds nothing,
//!   and its addition is wiped.
//! - [`put`](RefCount::put) subtracts one. A thread that makes the count 0 tries to swap that 0 for
//!   the frozen bit. If the swap succeeds, it was the last reference, and this thread destroys the
//!   page. If it fails, another thread took a reference (and will put it), or won the swap.
//! - [`freeze`](RefCount::freeze) swaps the frozen bit for the references, if there are exactly as
//!   many as the caller expects. The caller then holds the page alone, to move, split or evict it.
//!   [`thaw`](RefCount::thaw) is a plain store.
//! - The *generation* changes with each frozen period, so that a thread that stalled in the middle
//!   of a put cannot mistake the 0 of a later lifetime for its own.
//! - *Pins* are references for long use, such as I/O into the page. They are counted separately, by
//!   pages, which distinguishes a page that is only being read from one that must not move.
//!
//! The words *frozen*, *folio* (a run of 2^n pages that has one count) and the names of the
//! operations are those of the Linux kernel, for which this protocol was proposed.
//!
//! # Using it
//!
//! ```
//! use pinfold_refcount::{GetError, RefCount};
//!
//! let count = RefCount::frozen(); // free: nobody can take a reference
//! count.hand_out(1);              // allocated; the cache itself has this one
//!
//! count.try_get(1)?;              // a reader found the page, and checks that it is the right one
//! assert!(count.freeze(1).is_err(), "somebody reads it: it cannot be evicted now");
//! assert!(!count.put(1));         // the reader leaves
//!
//! assert!(count.freeze(1).is_ok()); // evicted
//! assert_eq!(count.try_get(1), Err(GetError::Frozen));
//! # Ok::<(), GetError>(())
//! ```
//!
//! There are three rules. Destroy the page exactly when `put`, `unpin` or `freeze` reports that you
//! hold it alone. Destroy what the page itself says it is, not what you remember of it. After
//! `try_get`, check again that the page is the one you looked for.
//!
//! # Cost
//!
//! An uncontended get and put are one locked instruction each. Every reader still writes the word's
//! cache line, so throughput does not grow with the cores: a read that must scale should not take a
//! reference at all. `pinfold bench ref` in the repository compares this with the alternatives.
//!
//! # How it was checked
//!
//! The shipped code runs under loom (all orderings that C11 allows, a few threads) and under an
//! explicit-state search; each property has a mutant of the protocol that the same test catches.
//! `docs/refcount.md` in the repository has the proof and the table.
//!
//! # Features
//!
//! - `usdt`: static probes on every operation, for `bpftrace`, `perf` and `gdb`; off by default.
//! - `loom`: the count on loom's atomics, for models; off by default.

#[doc(hidden)]
pub mod atomic;
mod count;
#[doc(hidden)]
pub mod protocol;
#[doc(hidden)]
pub mod rivals;
mod trace;
mod word;

pub use count::{GetError, RefCount};
pub use word::Word;

use atomic::AtomicWord;
use protocol::Protocol;
