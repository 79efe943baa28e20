//! Memory that shows files, or that is the program's own, under the budget of a cache.
//!
//! It stands on `cache.rs`, `file/` and `access/`; it also uses `pages/` and `mapped/`, which ask
//! it nothing but what `pages/outside.rs` has. A file uses only those in the rows below it.
//!
//! ```text
//! outside    what the cache proper is answered and told of folios whose bytes are here
//! clients/   memory of other processes, served from a file's mirror
//! space/     files and own memory as plain memory; how their faults are served
//! bring      reading a page that a mapped access wants, and waiting for memory of its mirror
//! lend       moving folios from the arena to their file's mirror
//! around     which pages are read around one that a mapped access wants
//! writers    the threads that write own memory to the swap
//! pieces     which mapped folios are evicted, and when
//! lent       frames for folios whose bytes are outside
//! of         a cache, a file and its `change` mutex, as the others see them
//! ```

#[cfg(not(loom))]
pub(crate) mod around;
#[cfg(not(loom))]
pub(crate) mod bring;
#[cfg(all(feature = "serve", not(loom)))]
pub(crate) mod clients;
#[cfg(not(loom))]
pub(crate) mod lend;
#[cfg(not(loom))]
pub(crate) mod lent;
#[cfg(not(loom))]
pub(crate) mod of;
#[cfg(not(loom))]
mod outside;
#[cfg(not(loom))]
mod pieces;
pub(crate) mod space;
#[cfg(not(loom))]
mod writers;
