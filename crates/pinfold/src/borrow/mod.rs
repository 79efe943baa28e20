//! The second way in: borrowing pages in place.
//!
//! | way | file | stores to shared memory | may it leave its thread? |
//! |---|---|---|---|
//! | announced, [`Borrowed`] | `slot.rs` | none: one store to a line of the thread's own, one at the end | no |
//! | stamped, [`Optimistic`] | `optimistic.rs` | none at all; its bytes are copied, and may be garbage | yes |
//! | counted, [`FolioRef`] | `counted.rs` | one add on the folio's count, one subtraction at the end | yes |
//! | counted, with a share of its file, [`FolioOf`] | `kept.rs` | the same, and what the share costs | as the share |
//!
//! `view.rs` has what the guards share: which bytes they show. Misses are `fill`'s. Called by
//! `file`.

mod counted;
#[cfg(not(loom))]
mod kept;
mod optimistic;
mod reader;
mod slot;
mod view;

pub use counted::FolioRef;
#[cfg(not(loom))]
pub(crate) use kept::sealed::Share;
#[cfg(not(loom))]
pub use kept::{FolioOf, SharedFile};
pub use optimistic::Optimistic;
pub use reader::Reader;
pub use slot::Borrowed;
