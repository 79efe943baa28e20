//! The ways in to cached pages. The fourth, mapping, is `map/`. It stands on `pages/`; a file uses
//! only those below it.
//!
//! ```text
//! futures/   copying and counted guards for asynchronous programs
//! many/      batches of the first two, prefetches, and `Hint::WillNeed`
//! pin/       the third way in: pinned ranges
//! borrow/    the second: reading in place: borrows, counted guards, optimistic reads
//! read       the first: copying out
//! found      the look-ups that all of them share
//! ```

pub(crate) mod borrow;
pub(crate) mod found;
pub(crate) mod futures;
pub(crate) mod many;
pub(crate) mod pin;
pub(crate) mod read;
