//! Memory that shows files, or that is the program's own, under the budget of a cache.
//!
//! It stands on `cache.rs`, `file/` and `access/`; below the file's face it uses `pages/` and
//! `mapped/`. A file uses only those in the rows below it.
//!
//! ```text
//! clients/   memory of other processes, served from a file's mirror
//! space/     files and own memory as plain memory; how their faults are served
//! lend       moving folios from the arena to their file's mirror
//! around     which pages are read around one that a mapped access wants
//! ```

#[cfg(not(loom))]
pub(crate) mod around;
#[cfg(not(loom))]
pub(crate) mod clients;
#[cfg(not(loom))]
pub(crate) mod lend;
pub(crate) mod space;
