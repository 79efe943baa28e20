//! The cache proper: which pages of which files are in memory, and how they come and go. It stands
//! on `mapped/` and what is below that; a file uses only those below it.
//!
//! ```text
//! fill/       a miss: which thread fills, which wait; reading ahead
//! reclaim/    memory under the budget: allocation, eviction, the daemon, compaction
//! freeze/     what is done to a live folio under its file's mutex: freeze, split, migrate, drop
//! dirt        which folios are dirty, written, clean
//! handle      one value of `File`, with all that a hit needs in one cache line
//! core        the parts of one cache together; holding a folio, and letting it go
//! outside     what is asked and told of folios whose bytes are outside of the arena
//! mapping     one file: its index, its `change` mutex, its length, its source
//! written     what the source of a file has, and how its syncs stand
//! readers/    a record of slots for each reader, the scan of all, deferred folios
//! pressure/   watermarks; the threads and futures that wait for memory
//! residency   which folios are cached, in the policy's order; the ghosts
//! grants      which large folios counted guards may keep whole
//! stream      the pattern of reads of one handle, and how far to read ahead
//! failures    errors of failed fills, for the threads that waited
//! ```

pub(crate) mod core;
pub(crate) mod dirt;
pub(crate) mod failures;
pub(crate) mod fill;
pub(crate) mod freeze;
pub(crate) mod grants;
pub(crate) mod handle;
pub(crate) mod mapping;
pub(crate) mod outside;
pub(crate) mod pressure;
pub(crate) mod readers;
pub(crate) mod reclaim;
pub(crate) mod residency;
pub(crate) mod stream;
pub(crate) mod written;
