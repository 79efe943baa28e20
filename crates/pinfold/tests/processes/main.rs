//! Tests of what concerns a whole process: forks, signals, limits and mounts.
//!
//! What must be the only one in its process runs by `alone`: this program again, for one test.
#![cfg(not(any(loom, shuttle)))] // the model checkers build without the public types

#[path = "../support/again.rs"]
mod again;
#[path = "../support/alone.rs"]
mod alone;
#[path = "../support/child.rs"]
mod child;
#[cfg(feature = "map")]
#[path = "../support/forbid.rs"]
mod forbid;
#[path = "../support/fuse.rs"]
mod fuse;
#[path = "../support/patterned.rs"]
mod patterned;
#[path = "../support/starts.rs"]
mod starts;

#[cfg(feature = "map")]
mod anon;
mod block_device;
#[cfg(feature = "map")]
mod file_limit;
mod fork;
mod fork_batches;
mod fork_own_cache;
#[cfg(feature = "serve")]
mod many_files;
mod odd_files;
#[cfg(feature = "map")]
mod own_kernel;
mod owned;
#[cfg(feature = "map")]
mod space_signals;
#[cfg(feature = "map")]
mod space_stacks;
#[cfg(feature = "map")]
mod threads;
