//! The second way in: borrowing pages in place. `view.rs` has which bytes guards show; `admit.rs`
//! splits large folios of which a counted guard would keep too much.
//!
//! | way | file | stores to shared memory | may it leave its thread? |
//! |---|---|---|---|
//! | announced, [`Borrowed`] | `slot.rs`, `reader.rs` | none: one store to a line of the thread's own, one at the end | no |
//! | stamped, [`Optimistic`] | `optimistic.rs` | none; its bytes are copied, and may be garbage | yes |
//! | counted, [`FolioRef`] | `counted.rs` | one add on the folio's count, one subtraction at the end | yes |
//!
//! Beside these, each notes uses (`frames/uses.rs`).

mod admit;
mod counted;
mod optimistic;
mod reader;
mod slot;
mod view;

pub(crate) use admit::admit;
#[cfg(not(loom))]
pub(crate) use admit::may_keep;
pub use counted::FolioRef;
pub use optimistic::Optimistic;
pub(crate) use reader::FreeSlots;
pub use reader::Reader;
pub use slot::Borrowed;
