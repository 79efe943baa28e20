//! A user-space page cache: pages of files in the program's own memory, under a budget.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table.db");
//! # std::fs::write(&path, vec![7; 100_000]).unwrap();
//! use pinfold::{Cache, Options};
//!
//! let cache = Cache::new(Options::new(64 << 20))?; // never takes more than 64 MiB for pages
//! let file = cache.open(&path)?;
//! let page = file.get(3)?; // bytes 12288 to 16383 of the file, in place
//! assert_eq!(page[0], 7);
//! # Ok::<(), pinfold::Error>(())
//! ```
//!
//! [`Cache`] has the pages and the budget. [`File`] is a file or a block device read through it;
//! all threads may share one. [`source::Source`] is anything else with bytes to be cached.
//!
//! # Words
//!
//! - A *page* has 4096 bytes. Pages of a file are counted from 0.
//! - A *folio* is 1 to 512 pages, 4 KiB to 2 MiB, that follow each other in the file and in memory
//!   and are cached as one. The cache chooses the size: what is read in order gets large ones, of
//!   at most a 64th of the budget. So folios of 2 MiB take a budget of 128 MiB or more.
//! - A *hit* is a call that finds the page in the cache; a *miss* has to read it from the source.
//! - To *fill* a folio is to read it from the source.
//! - A *guard* is a value that gives you a page's bytes in place, and keeps them there.
//! - A *short read* is a `read_at` of at most 64 KiB within one folio, which takes no reference. It
//!   returns all bytes that were asked for.
//! - A *reference* keeps a folio in memory. It is counted in a word that all readers of the folio
//!   share. A *borrow* keeps a folio, too, by a *slot*: a word that only its own thread stores.
//!
//! # Which way in
//!
//! | you want | call | a hit costs | it keeps |
//! |---|---|---|---|
//! | some bytes, wherever they begin and end | [`File::read_at`] | a look-up and the copy | nothing |
//! | the same for code that takes a `Read`, `BufRead` or `Seek` | [`File::reader`] | the same | the page in `fill_buf` |
//! | to look at a page, on this thread | [`File::borrow`] | a look-up, and no store to shared memory | the page's folio |
//! | to keep a page, or to send it to another thread | [`File::get`] | a look-up, an atomic addition and subtraction | the page's folio |
//! | to keep a page in one struct with its file | [`FolioOf::new`] | the same, and a count of the file | the page's folio, the file |
//! | a range in one piece, to keep or to send anywhere | [`File::bytes`] | in place the same, and a count of the cache; across folios a copy | the range's folio, or a copy in the budget |
//! | to look at pages without holding any | [`File::optimistic`] | a look-up; you copy, and ask whether the copy is valid | nothing |
//! | addresses, for I/O that outlives the call | [`File::pin`] | a look-up, an atomic addition and subtraction for each folio; an addition and subtraction for the call | all folios of the range |
//! | a pointer to a range of a file, for code that knows nothing of the cache | [`Space::map_file`] | what memory costs, and for its first use in a map a fault of the kernel | nothing |
//! | memory of your own under the budget | [`Space::map_anon`], [`Space::map_private`] | what memory costs, and a fault for its first use | what was stored to, until it is in the swap |
//! | many pages at once | [`File::read_many`], [`File::get_many`], [`File::borrow_many`] | the same for each page, but the processor's cache misses overlap | the same for each page |
//! | a future, which blocks no thread | [`File::read_at_async`], [`File::get_async`], [`File::get_many_async`], [`File::read_many_async`], [`File::bytes_async`] | the same as without `async`, and some 20 instructions | the same as without `async`, once it is ready |
//! | reads for an event loop of your own, which waits for a descriptor | [`Completions`] | the same as a future, two allocations and a mutex | the same as without `async`, once it is taken |
//! | only what is cached at this moment | [`File::try_read_at`], [`File::try_get`], [`File::try_borrow`] | the same as without `try` | the same as without `try` |
//!
//! Reads take an offset in bytes; `bytes`, `pin`, `advise` and `invalidate` take a range of bytes;
//! the others take the number of a page.
//!
//! "No store to shared memory" holds for `borrow` and for short reads
//! ([`Options::short_read_max_bytes`]) but to note first reads, the first three uses of the folio,
//! and which parts of a large one are used (`docs/borrow.md` says when). Eviction forgets uses if
//! memory is short.
//!
//! Files are written to by [`File::write_at`], if they are opened so ([`FileOptions::write`]), and
//! own memory ([`Space::map_anon`]) by plain stores.
//!
//! # Examples
//!
//! Whole programs are in the repository, in `crates/pinfold/examples`. Its `README.md` lists them.
//!
//! # What blocks
//!
//! | what | waits for |
//! |---|---|
//! | a hit | at times, a thread that changes the file's index, which does no I/O meanwhile. One hit in each 64 KiB to 2 MiB of a sequential scan also starts the next readahead, as `prefetch` does: it may evict |
//! | the end of a guard, a pin given back | a short lock, if it was the last holder of a folio that had left its file; with [`Options::track_pins`], the lock of the list of pins |
//! | [`Borrowed::upgrade`] | at times, a thread that is just trying to evict or move the folio; it does no I/O meanwhile |
//! | a miss | the source. The cache sets no time limit. A source may set its own in `read_at`. [`source::Source::deadline`] limits what the cache hands over as requests: reads ahead, reads of futures, and all but the first read of a batch |
//! | a miss of a page that another thread reads already | that read, and gets its error; but if it was a read ahead, or had more than the call wants, it reads what it wants |
//! | a miss without free memory | eviction, by this thread. If nothing can be evicted, it fails with [`ErrorKind::NoMemory`] after two seconds in which no read of the cache ended, or after thirty if reads are under way |
//! | `pin` of a small folio that others hold | half a second at most, then it is an error ([`File::pin`], "Moving before pinning") |
//! | `read_at_async`, `get_async`, `get_many_async`, `read_many_async`, `bytes_async` | a poll may take the file's mutex for a moment, and may evict. It waits for no read and for no memory: the future is woken ([Futures](#futures)) |
//! | `Completions` | as for futures. [`Completions::next`] waits for nothing; the program waits for the descriptor |
//! | `try_read_at`, `try_get`, `try_borrow` | no read and no memory. A hit that starts the next readahead waits for what `prefetch` waits for |
//! | the first guard of a large folio, by whatever call | at times, the file's mutex, and readers of that folio; no I/O ([`File::get`], "What guards keep") |
//! | `prefetch`, `advise` | at times, a thread that changes the file's index. They start reads and do not wait for them, but may evict |
//! | `invalidate`, `open`, `attach` | the source, which says its length; never for guards or pins |
//! | [`File::write_at`], `append` | as a miss, for a page of which old bytes stay; a hole that is being punched there; with a quarter of the budget not durable, a sync, as long as something of it ends each thirty seconds |
//! | `set_len`, `punch_hole`, `sync_data`, `sync_range`, `sync_all`, the drop of the last handle of a file that was written to | the source, and such calls of other threads. The cache sets no time limit |
//! | an access to a map | as a miss, if the page is not cached; with [handler threads](Space::new) also until one of those threads is free |
//! | the drop of a map | faults that look for a page of the map. For no read |
//! | [`Map::hold`] | as `get`, for each absent page; older versions of its pages that are in use |
//! | `AnonMap`: `read_at`, `write_at`, `hold`, `advise` with `WillNeed` | as a miss, for each absent page |
//! | `AnonMap`: `page_out`, `discard`, the drop | writes of its pages to the swap that are under way; `page_out` writes itself |
//! | the drop of the last handle, pin or owned guard of a cache | its own threads, which are idle then. While reads, or writes to the swap, are under way it waits for nothing: they keep the cache's memory, which is freed when the last of them ends |
//!
//! Threads that wait sleep. No call waits for a guard, except where the table says so.
//!
//! With a swap ([`Options::swap_bytes`]), eviction hands own memory over to two threads that write
//! it, and goes on with what needs no write. So no call waits for a swap that hangs, but those that
//! read from it or say that they write: the table names them. Where only own memory could leave, a
//! miss waits for memory as above.
//!
//! # Futures
//!
//! The futures of the calls that end in `async` run on any runtime. A poll waits neither for a
//! source nor for memory. It may take a lock for a moment, evict what needs no write, and copy it
//! all.
//!
//! They can be sent to other threads, and borrow their file: a task that is spawned takes an
//! `Arc<File>` with it. A future that finds its page cached is ready at its first poll. Otherwise
//! the thread that completes the read wakes it. It may be dropped at any time: its read goes on,
//! into the cache.
//!
//! Wakers are woken, cloned and dropped while the cache holds no lock, so a waker may call what
//! waits for no read: [`try_get`](File::try_get) and its like, [`prefetch`](File::prefetch), the
//! poll of a future. It must not call [`get`](File::get): the thread may be the one that completes
//! reads. In a forked child a future returns what is cached, or [`ErrorKind::Forked`].
//!
//! A task that keeps guards while it waits for more pages may wait for memory that other such tasks
//! hold. It then fails with [`ErrorKind::NoMemory`], as a thread does. `get_many_async` holds no
//! page while it waits for memory, unless it wants more than a quarter of the budget, or has had to
//! begin anew many times. Of the latter, one batch of a cache at a time waits with its pages.
//!
//! `examples/range_server.rs` serves ten thousand requests at once under a small budget. An event
//! loop of one's own has [`Completions`].
//!
//! ```
//! # use pinfold::{Cache, Options, source::Memory};
//! # let cache = Cache::new(Options::new(8 << 20))?;
//! # let file = cache.attach("table", std::sync::Arc::new(Memory::new(vec![7; 100_000])))?;
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! let sum: u32 = runtime.block_on(async {
//!     let page = file.get_async(3).await?;
//!     let mut record = [0; 64];
//!     file.read_at_async(&mut record, 50_000).await?;
//!     Ok::<_, pinfold::Error>(page[..64].iter().chain(&record).map(|&byte| u32::from(byte)).sum())
//! })?;
//! assert_eq!(sum, 128 * 7);
//! # Ok::<(), pinfold::Error>(())
//! ```
//!
//! # What a guard keeps in memory
//!
//! - *Counted* guards ([`FolioRef`]) of n pages keep at most 2n pages, or a tenth of the budget,
//!   whichever is more: the large folios of a file that was read in order are split
//!   ([`File::get`] says when they cannot be). So do [`OwnedBytes`].
//! - A borrow keeps the *whole folio* of its page, and so does a pin: 4 KiB where pages are read at
//!   random, up to 2 MiB where a file was read in order. [`Options::folio_max_bytes`] limits that,
//!   and [`Hint::Random`] on a handle makes it read single pages.
//!
//! That memory is not evicted as long as they live. If they hold the whole budget, a miss fails
//! with [`ErrorKind::NoMemory`]; hits go on. Bytes never change under a guard: after
//! [`File::invalidate`] it still has the old ones, and [`FolioRef::is_current`] says so.
//!
//! # What is readable past a page's end
//!
//! - A guard's slice ends with its page, and in the file's last page with the file. A page without
//!   any byte of the file is an error ([`ErrorKind::BeyondEnd`]), while `read_at` then returns 0.
//! - [`FolioRef::folio`] is the slice of the whole folio. Which pages are of one folio depends on
//!   how the file was read, and on who else has guards of it.
//! - Rust code must not read past these slices, not even by raw pointers made from them. Only code
//!   that is outside of Rust's rules (assembly, C) may, and only within the 4096 bytes of the page.
//!   Bytes past the end of the file have no meaning. Past the folio another thread may be storing.
//!
//! # Features
//!
//! - `map`, on by default: [`Space`], maps and own memory.
//! - `serve`, on by default: [`Clients`], memory of other processes. It needs `map`.
//! - `testing` adds what only tests, benchmarks and comparisons need; each such item says so.

// Tests of the public interface are in `crates/pinfold/tests`; those that need internals in a
// `tests` module beside the code; those of protocols in `src/models`.

// loom builds without the public types, and models without the other tests: much is unused there.
#![cfg_attr(any(loom, shuttle), allow(dead_code, unused_imports, unreachable_pub))]

/// The README's program runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod access;
mod base;
#[cfg(not(loom))]
mod cache;
mod error;
#[cfg(not(loom))]
mod file;
mod frames;
mod index;
#[cfg(feature = "map")]
mod map;
#[cfg(feature = "map")]
mod mapped;
#[cfg(not(feature = "map"))]
#[path = "mapped/none.rs"]
mod mapped;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, shuttle))]
#[path = "models/whole/mod.rs"]
mod models;
mod options;
mod pages;
pub mod source;
mod stats;
#[cfg(not(loom))]
mod write;

pub use access::pin::PinnedRange;
pub use base::holders::PinHolder;
#[cfg(all(feature = "mutants", not(any(test, loom, shuttle))))]
pub use base::mutants;
pub use error::{Error, ErrorKind, Result};
#[cfg(all(feature = "serve", not(loom)))]
pub use map::clients::{
    ClientError, ClientEvent, ClientId, ClientMapping, ClientMemory, Clients, ClientsStats,
};
#[cfg(all(feature = "map", feature = "testing", not(loom)))]
pub use map::space::SpaceOptions;
#[cfg(feature = "map")]
pub use map::space::SpaceStats;
#[cfg(all(feature = "map", not(loom)))]
pub use map::space::{AnonMap, HeldBytes, HeldRange, Map, Space};
#[cfg(all(feature = "map", feature = "testing"))]
pub use map::space::{FaultIo, FaultLock, LockWaits, SpaceLocks};
#[cfg(feature = "testing")]
pub use options::Reference;
pub use options::{FileOptions, Options};
pub use source::Hint;
pub use stats::Stats;
#[cfg(not(loom))]
pub use {
    access::borrow::{Borrowed, FolioRef, Optimistic, Reader},
    access::many::ReadAt,
    cache::Cache,
    file::File,
    file::completions::{Completion, Completions},
    file::kept::{FolioOf, SharedFile},
    file::owned::OwnedBytes,
    file::reading::FileReader,
    file::refresh::Changed,
};
