//! The users of freeze. Each is one function in one file, with its order of steps at its head.
//!
//! What they share: the caller holds nothing of the folio; the mapping's `change` mutex is held
//! from before the freeze until the folio is thawed, replaced or out of the index; the version is
//! odd all that time; the count is frozen from the index's own reference (1), so that anybody else's
//! reference or pin makes it fail. Then, with the version odd, they look whether anybody has
//! announced the folio, and if so put it back.
//!
//! | file | subject |
//! |---|---|
//! | `users.rs` | who may still use a folio in place |
//! | `batch.rs` | freezing many folios for one fence and one look |
//! | `drop.rs` | dropping folios of a range, held or not |
//! | `migrate.rs` | moving a folio's bytes to other frames |
//! | `split.rs` | making small folios of a large one; only tests do so yet (feature `testing`) |
//!
//! Nothing here allocates or evicts. Called by `reclaim` and everything above it.

mod batch;
mod drop;
mod migrate;
#[cfg(feature = "testing")]
mod split;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod users;

pub(crate) use batch::{Batch, Candidate, Frozen};
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use drop::discard;
pub(crate) use drop::{drop_clean, resize};
pub(crate) use migrate::{migrate, move_frozen};
#[cfg(feature = "testing")]
pub(crate) use split::split;
pub(crate) use users::{InUse, collect};
#[cfg(all(test, loom))]
pub(crate) use users::{freeze_alone, freeze_blindly, let_go};
