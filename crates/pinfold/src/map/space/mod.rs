//! The fourth way in: files as memory, larger than the budget.
//!
//! A `Space` has the userfaultfd and what all of its maps share; a `Map` is a mapped range of a
//! file. A page that is in the file's mirror (`mapped/mirror/`) is mapped by the kernel alone;
//! this folder is about the accesses to the others.
//! Accesses enter in `signal.rs` or `handlers.rs`, go by `target.rs` to the steps of a fault
//! (`fault.rs`), and find their map by `index.rs` and `vma.rs`.

#[cfg(all(test, not(any(loom, shuttle))))]
mod ahead_tests;
#[cfg(not(loom))]
mod anon;
#[cfg(not(loom))]
mod anon_map;
#[cfg(all(test, not(any(loom, shuttle))))]
mod anon_tests;
#[cfg(any(feature = "testing", loom, shuttle))]
pub(crate) mod compared;
#[cfg(not(any(feature = "testing", loom, shuttle)))]
#[path = "not_compared.rs"]
pub(crate) mod compared;
mod counter;
pub(crate) mod fault;
#[cfg(not(loom))]
mod handlers;
#[cfg(all(test, not(any(loom, shuttle))))]
mod handlers_tests;
#[cfg(not(loom))]
mod held;
pub(crate) mod index;
#[cfg(not(loom))]
mod making;
#[cfg(not(loom))]
mod map;
#[cfg(not(loom))]
mod signal;
#[cfg(not(loom))]
mod stacks;
pub(crate) mod stats;
#[cfg(not(loom))]
mod target;
pub(crate) mod vma;

#[cfg(not(loom))]
pub use anon::HeldRange;
#[cfg(not(loom))]
pub use anon_map::AnonMap;
#[cfg(any(feature = "testing", loom, shuttle))]
pub use compared::{FaultIo, FaultLock, LockWaits, SpaceLocks};
#[cfg(not(loom))]
pub use held::HeldBytes;
#[cfg(not(loom))]
pub use making::Space;
#[cfg(all(feature = "testing", not(loom)))]
pub use making::SpaceOptions;
#[cfg(not(loom))]
pub use map::Map;
pub use stats::SpaceStats;
