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
#[path = "../support/forbid.rs"]
mod forbid;
#[path = "../support/fuse.rs"]
mod fuse;
#[path = "../support/patterned.rs"]
mod patterned;
#[path = "../support/starts.rs"]
mod starts;

mod anon;
mod block_device;
mod ext_times;
mod file_limit;
mod fork;
mod fork_batches;
mod fork_own_cache;
mod many_files;
mod odd_files;
mod own_kernel;
mod owned;
mod space_signals;
mod space_stacks;
mod threads;
