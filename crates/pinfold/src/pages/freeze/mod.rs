//! The users of freeze. Each is one function in one file, which begins with its steps.
//!
//! They have in common: the caller has no hold on the folio; the mapping's `change` mutex is held
//! from before the freeze until the folio is thawed, replaced or out of the index; the version is
//! odd all that time; the count is frozen from the index's own reference (1), so any other
//! reference or pin makes the freeze fail. Then, with the version odd, they scan the slots and thaw
//! the folio if a reader has announced it.
//!
//! | file | subject |
//! |---|---|
//! | `users.rs` | what may still use a folio in place |
//! | `batch.rs` | freezing many folios with one fence and one scan |
//! | `drop.rs` | dropping the folios of a range, held or not |
//! | `migrate.rs` | moving a folio's bytes to other frames |
//! | `lend.rs` | moving a folio's bytes to its file's mirror, used or not |
//! | `split.rs` | making small folios of a large one |
//! | `revoke.rs` | ending the grant of a large folio: guards of it have to be asked for |
//!
//! Nothing here allocates or evicts.

mod batch;
mod drop;
mod lend;
mod migrate;
mod revoke;
mod split;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod users;

pub(crate) use batch::{Candidate, Candidates, Frozen, FrozenBatch, To};
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use drop::discard;
#[cfg(not(loom))]
pub(crate) use drop::drop_own;
pub(crate) use drop::{drop_clean, drop_on_their_way, resize};
pub(crate) use lend::lend;
pub(crate) use migrate::{migrate, move_frozen};
pub(crate) use revoke::revoke;
pub(crate) use split::split;
pub(crate) use users::{InUse, collect, let_go};
#[cfg(all(test, loom))]
pub(crate) use users::{freeze_alone, freeze_blindly};
