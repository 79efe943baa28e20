//! What is done to a live folio under its mapping's `change` mutex.
//!
//! | file | subject | freezes | scans the slots | the folio then |
//! |---|---|---|---|---|
//! | `users.rs` | who may still use a folio in place; ending the grant of a large folio | the step itself | the step itself; not for a grant, as the bytes stay | is thawed |
//! | `together.rs` | many folios to be evicted or moved: one fence and one scan | yes | yes | leaves, or moves |
//! | `migrate.rs` | moving a folio's bytes to other frames | yes | yes | is replaced |
//! | `split.rs` | making small folios of a large one | yes | yes | is handed out as small ones |
//! | `change.rs` | a write: changing its bytes | yes, unless it is replaced by a changed copy | yes, unless its guards are counted | is thawed, or let go of |
//! | `drop.rs` | dropping the folios of a range, held or not | no | afterwards | is let go of |
//!
//! All hold the mutex until the folio is thawed, replaced or out of the index; till then the
//! version is odd. The count is frozen from the index's reference, so any other or a pin makes the
//! freeze fail. A folio that a reader has announced is thawed. Whoever drops leaves the folio to
//! its users; so does `map/`, where its bytes go outside. Nothing here allocates or evicts.

mod change;
mod drop;
mod migrate;
mod split;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod together;
mod users;

pub(crate) use change::{AfterChange, Length, Obstacle, change, open_to_borrows};
#[cfg(not(loom))]
pub(crate) use drop::drop_within;
pub(crate) use drop::{discard, drop_clean, drop_on_their_way, let_go_of_all, resize};
pub(crate) use migrate::{migrate, move_frozen};
pub(crate) use split::split;
pub(crate) use together::{Candidates, To};
pub(crate) use users::{InUse, collect, let_go, revoke};
