#![no_std]
//! A reference count with its own *frozen* bit: taking a reference is one atomic add.
//!
//! # The problem
//!
//! In a cache, readers find things without holding anything. A reader looks a page up, then takes
//! a reference to it, then checks that it still is the page it wanted. Between the look-up and the
//! reference the page may have been thrown out, so the reference must fail on a dead page: "add
//! one unless it is dead". If dead means that *the count is zero*, that is a load and a
//! compare-and-swap loop, and when many cores want the same page most of the swaps fail.
//!
//! # The word
//!
//! Here dead has a bit of its own, and the add can come first:
//!
//! ```text
//!  63      62 ........ 46  45 ...... 23  22 ....... 0
//! +--------+--------------+-------------+------------+
//! | frozen |  generation  |    pins     |    refs    |
//! +--------+--------------+-------------+------------+
//! ```
//!
//! - [`try_get`](RefCount::try_get) adds one and looks at the sum. Frozen bit clear: you hold a
//!   reference, even if the count was 0 before. Frozen bit set: you hold nothing, and what you
//!   added is wiped.
//! - [`put`](RefCount::put) subtracts one. Whoever makes it 0 tries to swap that 0 for the frozen
//!   bit. If the swap wins, it was the last reference, and the winner destroys the page. If it
//!   fails, somebody got a reference in between (and will put it), or another's swap won.
//! - [`freeze`](RefCount::freeze) swaps exactly the references you know of for the frozen bit: you
//!   are alone then, to move the page, split it or throw it out. [`unfreeze`](RefCount::unfreeze)
//!   is a plain store.
//! - Between frozen periods the *generation* moves on, so that a thread which stalled in the
//!   middle of a put cannot take a later lifetime's 0 for its own.
//! - *Pins* are references for long use (I/O into the page), counted by pages and apart, so that
//!   one can tell a page that is merely being read from one that must not move.
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
//! count.set(1);                   // allocated; the cache itself has this one
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
//! There are three rules. Destroy exactly when `put`, `unpin` or `freeze` says that you are alone;
//! destroy the page by what *it* says that it is, not by what you remember; and look again, after
//! `try_get`, that the page is the one you were looking for.
//!
//! # Cost
//!
//! An uncontended get and put are one locked instruction each. Contended, they are what an atomic
//! add costs; `pinfold bench ref` in the repository measures that beside the alternatives.
//! Every reader still writes the word's cache line, so throughput does not grow with the cores: a
//! read that must scale should not take a reference at all.
//!
//! # How it was checked
//!
//! The shipped code runs under loom (all orderings that C11 allows, a few threads) and under an
//! explicit-state search (three actors, any legal operations, as long as they like, 3 or 4 count
//! bits); each property has a mutant of the protocol that the same test catches.
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
