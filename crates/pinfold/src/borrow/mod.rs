//! The second door: reading in place.
//!
//! | way | file | stores to shared memory | may it leave its thread? |
//! |---|---|---|---|
//! | announced, [`Borrowed`] | `slot.rs` | none: one store to a line of the thread's own, one at the end | no |
//! | stamped, [`Optimistic`] | `optimistic.rs` | none at all; its bytes are copied, and may be garbage | yes |
//! | counted, [`FolioRef`] | `counted.rs` | one add on the folio's count, one subtraction at the end | yes |
//!
//! Here: what the guards have in common, which bytes they show. Not here: what happens on a miss
//! (`fill`). Called by `file`.

mod counted;
mod optimistic;
mod reader;
mod slot;
mod view;

pub use counted::FolioRef;
pub use optimistic::Optimistic;
pub use reader::Reader;
pub use slot::Borrowed;

use crate::frame::{Frame, PAGE_SHIFT};

/// The file, the byte of it that the folio begins with, and how many bytes from there on may be
/// borrowed: none while a read should have more read ahead.
#[inline(always)]
fn readable(frame: &Frame) -> (u32, u64, u64) {
    let identity = frame.identity();
    let span = if frame.has_readahead_mark() { 0 } else { identity.order.bytes() as u64 };
    (identity.mapping, identity.index << PAGE_SHIFT, span)
}
