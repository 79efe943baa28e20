//! What the cache proper knows of mapped memory: where the bytes of a mirrored folio are, where own
//! memory goes, and how a fault is waited for. Which maps there are, and how faults are served, is
//! `map/`.
//!
//! It stands on `options`, `stats`, `error`, `source/`, `frames/` and `base/`. A file uses only
//! those in the rows below it. Where the feature `map` is off, `none.rs` stands in for all.
//!
//! ```text
//! parts     what a cache, a file and its `change` mutex have for mapped memory
//! load      how many pages threads bring at a time for mapped accesses
//! to_write  pages of own memory on their way to the swap
//! mirror/   the memfd of one file: which places are whose, which maps show it
//! swap/     where own memory goes that is paged out: slots, the states of a page
//! pieces    pieces of mirrors that wait to be evicted
//! closed    files that are closed and have mirrors
//! recent    what mapped accesses brought last, kept for a while
//! task      waiting for a fault: by a thread in place, or by a task of a handler
//! uffd/     a userfaultfd: registering, copying, waking, poisoning
//! reserved  addresses that a map has for itself
//! pagemap   what the kernel's page table has at an address
//! ```

pub(crate) mod closed;
pub(crate) mod load;
pub(crate) mod mirror;
pub(crate) mod pagemap;
pub(crate) mod parts;
pub(crate) mod pieces;
pub(crate) mod recent;
pub(crate) mod reserved;
pub(crate) mod swap;
pub(crate) mod task;
pub(crate) mod to_write;
pub(crate) mod uffd;

pub(crate) use mirror::Leaving;
pub(crate) use parts::{MappedOfCache, MappedOfFile, MappedStates};
pub(crate) use pieces::PieceTurns;
