//! `Cache`: making a cache, opening files in it, and its statistics.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::access::borrow::Reader;
use crate::base::barrier::Barrier;
use crate::base::counters::Event;
use crate::base::holders::PinHolder;
use crate::base::sync::Ordering;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::file::refresh;
use crate::frames::{Frames, Order, PAGE_BYTES};
use crate::index::NodePool;
use crate::options::{self, FileOptions, Options};
use crate::pages::core::Core;
use crate::pages::mapping::{Mapping, ask_len, check_len};
use crate::pages::outside::Outside;
use crate::pages::pressure::Pressure;
use crate::pages::reclaim;
use crate::source::{
    self, Access, Backing, EngineOptions, FileIdentity, OpenError, Source, SourceStats,
};
use crate::stats::Stats;
use crate::write;

/// A page cache: file pages in this program's memory, under a budget. A clone is a handle to the
/// same cache, which lives as long as any handle to it or to one of its files, any
/// [`PinnedRange`](crate::PinnedRange), any guard made by
/// [`FolioRef::into_owned`](crate::FolioRef::into_owned), and any read that is under way.
///
/// # Forking
///
/// A cache belongs to the process that made it. A child of fork(2) may exec, exit, drop its
/// handles, guards and pins, and make caches of its own. It can still read what was cached and up
/// to date at the fork, from a private copy, but for pages that were brought through a
/// [`Map`](crate::Map): these are [`ErrorKind::Forked`], and reading a guard of one that was taken
/// before the fork ends the child by SIGSEGV. Whatever needs more (a miss, opening a file,
/// `prefetch`, a pin that must move a folio, advice, invalidation, a new [`Reader`]) fails with
/// [`ErrorKind::Forked`]. The `try_` calls return `None` for what was not cached,
/// [`stats`](Self::stats) are all zeros, [`pins`](Self::pins) are `None`. Dropping a handle in the
/// child frees nothing until it ends or calls exec.
///
/// Rust's standard library and glibc hold locks of the whole process while a thread starts or ends.
/// If one of the parent's threads did so at the fork, the first thread of a cache that the child
/// makes waits for ever. So if threads come and go, the child should call exec first.
///
/// open(2) warns of forking while direct I/O to private memory is in flight: before Linux 6.3 a
/// program that forks without an immediate exec should open files through the kernel's page cache
/// ([`FileOptions::direct`]).
#[derive(Clone)]
pub struct Cache {
    core: Arc<Core>,
}

// A caught panic leaves the cache consistent: none of the program's code runs while its state is
// half changed (`mapping.rs`, "Locks"), a source's panics are caught, and no lock is ever poisoned.
impl UnwindSafe for Cache {}
impl RefUnwindSafe for Cache {}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let frames = &self.core.frames;
        // A forked child does not look: the table may be locked for ever.
        let files =
            if self.core.check_owner().is_ok() { self.core.mappings.kept().files } else { 0 };
        f.debug_struct("Cache")
            .field("budget_bytes", &(u64::from(frames.frames()) * PAGE_BYTES as u64))
            .field("free_bytes", &(u64::from(frames.free_frames()) * PAGE_BYTES as u64))
            .field("files", &files)
            .finish_non_exhaustive()
    }
}

impl Cache {
    /// Makes a cache of `options.budget_bytes`. Reserves the budget, writes 1/64 of it (the frame
    /// table), and starts two threads: `pinfold-reclaim` evicts, and `pinfold-ring` drives
    /// `io_uring`; with a swap also two `pinfold-swap`. Others start when needed: up to 16
    /// `pinfold-read` for sources that the ring does not serve, `pinfold-clock` for deadlines,
    /// `pinfold-write` to sync in the background, and a `pinfold-sync` for each file that is synced
    /// because writers wait for it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the budget is none of [`Options::BUDGET_BYTES`], or
    /// [`Options::folio_max_bytes`] no size of a folio; [`ErrorKind::System`] if the system refuses
    /// the memory, the thread that evicts (`RLIMIT_NPROC`, or the limit of the control group), the
    /// fork handler or the swap ([`Options::swap_bytes`]).
    pub fn new(options: Options) -> Result<Self> {
        let asked_bytes = options.budget_bytes;
        if !Options::BUDGET_BYTES.contains(&asked_bytes) {
            let (&least_bytes, &most_bytes) =
                (Options::BUDGET_BYTES.start(), Options::BUDGET_BYTES.end());
            return Err(Cause::Budget { asked_bytes, least_bytes, most_bytes }.into());
        }
        let mut orders = Order::all();
        let Some(folio_order_max) = orders.find(|it| it.bytes() == options.folio_max_bytes) else {
            let (asked_bytes, most_bytes) = (options.folio_max_bytes, options::FOLIO_MAX_BYTES);
            return Err(
                Cause::FolioSize { asked_bytes, least_bytes: PAGE_BYTES, most_bytes }.into()
            );
        };
        let frames =
            Frames::open(asked_bytes).map_err(|cause| Cause::reserve(asked_bytes, cause.into()))?;
        let base = frames.base();
        let arena_bytes = frames.frames() as usize * PAGE_BYTES;
        // SAFETY: the arena stays mapped as long as `frames`, which `Core` drops after the nodes
        // and every index; `refill_nodes` hands out slabs that it allocated and never frees.
        let nodes = unsafe { NodePool::new(base, arena_bytes, PAGE_BYTES) };
        let mut engine = EngineOptions::default();
        if !options.io_uring {
            engine.ring_depth = 0;
        }
        let pressure = Pressure::new(frames.frames(), folio_order_max);
        let core = Core::new(options, frames, nodes, pressure, engine);
        let mut core = core.map_err(Cause::fork_handler)?;
        core.open_mapped()?;
        let core = Arc::new(core);
        reclaim::daemon::start(&core)?;
        core.start()?;
        Ok(Cache { core })
    }

    /// Opens the file or block device at `path` for reading. A file (device and inode) that is
    /// opened twice is cached once. Reads use direct I/O where they can ([`FileOptions::direct`]).
    ///
    /// # What others have written
    ///
    /// Reads return what the file had when it was opened: the cache compares its length, and the
    /// times of its last changes, with those before the cached pages were read. If they differ,
    /// these pages are dropped, and all handles of the file see the new length. Guards and pins
    /// keep the old bytes. Between two opens only [`File::refresh`] compares.
    ///
    /// Network file systems call this close-to-open consistency. Its gaps:
    /// - A store to a shared mapping of the file changes the times only if it is the first to its
    ///   page since the kernel has last written that page to the disk.
    /// - A write that is under way during the `open` and goes on for more than 20 ms may have
    ///   changed the times before the bytes. So may any write with `O_DIRECT`.
    /// - The times of a file on another machine are of its clock, and may be cached here.
    /// - A file system that is mounted in place of another one, from the same device, may have
    ///   another file with the same number, length and times: two images made reproducibly do.
    /// - Of a block device that is open, only the length is compared; closed, it keeps nothing.
    ///
    /// What was read of a file within 20 ms of its last change (2 s where times are whole seconds)
    /// is dropped by the next `open`: a second change in the same tick of the clock would have had
    /// the same time. What a [refresh](File::refresh) has kept of a file that has grown is dropped,
    /// too: the refresh compares a part of it only.
    ///
    /// # What can be opened
    ///
    /// The length is the one that the file system or the device reports. Refused are files whose
    /// content is longer, such as nearly all of `/proc` and `/sys`; and directories, pipes, sockets
    /// and character devices, which [`Error::io_kind`] tells apart. An empty file may be opened.
    ///
    /// # Cost
    ///
    /// An open file has one descriptor, however many handles it has; a second one once it is found
    /// longer than before, if it is read directly: its end is read through the kernel's page cache
    /// then. A closed file has none, and keeps what is cached; one that was mapped keeps one, and
    /// is forgotten once 32 others of this kind were closed. A call takes four system calls if the
    /// file is open already, and seven or eight otherwise (`cargo run --release -p pinfold
    /// --example open` measures them). It may block as `std::fs::File::open` does.
    ///
    /// # Errors
    /// [`ErrorKind::Open`]; [`ErrorKind::Read`] of the length, [`ErrorKind::Unsupported`] above
    /// 2^63 - 4096; [`ErrorKind::TooMany`]; [`ErrorKind::Forked`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, FileOptions::default())
    }

    /// [`open`](Self::open) with options. A file that is open keeps the options it has; one that is
    /// only cached takes these.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`ErrorKind::Open`] if direct I/O is demanded and not
    /// supported, or if the file is open already and read through the kernel's page cache.
    pub fn open_with(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File> {
        self.core.check_owner()?;
        let path = path.as_ref();
        let access = match (options.write, options.create) {
            (false, _) => Access::Read,
            (true, false) => Access::ReadWrite,
            (true, true) => Access::Create,
        };
        let found = source::find(path, access).map_err(Arc::new)?;
        let (file_id, contents) = (found.identity, found.contents);
        let mut file = if let Some(mapping) = self.core.mappings.open_again(file_id) {
            let file = File::opened(self.core.clone(), mapping, path);
            if options.write && !file.handle().mapping.backing.is_writable() {
                let opened = found.open(path, options.direct, &self.core.engine);
                let backing = Backing::of_file(opened.map_err(Arc::new)?, self.core.engine.clone());
                drop(file.handle().mapping.backing.adopt(&backing));
            }
            file
        } else {
            let opened = found.open(path, options.direct, &self.core.engine);
            let backing = Backing::of_file(opened.map_err(Arc::new)?, self.core.engine.clone());
            let len_bytes = match &contents {
                Some(contents) => check_len(contents.len_bytes, path)?,
                None => ask_len(&backing, path)?,
            };
            let identity = FileIdentity::of_file(file_id, contents);
            let mapping = self.mapping(path.to_owned(), Some(identity), backing, len_bytes)?;
            File::opened(self.core.clone(), mapping, path)
        };
        refresh::on_open(file.handle(), contents.as_ref())?;
        if options.write {
            file.writes = true;
            file.check_writes()?;
        }
        // It was open before, and keeps its source for as long as it has handles.
        if options.direct == Some(true) && file.handle().mapping.backing.is_buffered() {
            let why = "it is open already, buffered".to_owned();
            return Err(Arc::new(OpenError::NoDirect { path: path.to_owned(), why }).into());
        }
        Ok(file)
    }

    /// Reads a source of the program's own through the cache. `name` takes the place of a path in
    /// messages. Each call makes a new file, whose pages are dropped with its last handle, unless
    /// the source has an [identity](Source::identity): all attaches with the same key are one file.
    /// A file that is open keeps the source it has; one that is only cached takes the new one. If
    /// that has another version, the old pages are dropped; if the file is open, the call fails. So
    /// no handle ever sees bytes of two versions.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] if the object is open in another version; [`ErrorKind::Unsupported`]
    /// if [`Source::identity`] panics, the alignment is above 4096, or the length is above 2^63 -
    /// 4096; [`ErrorKind::Read`] if the source cannot report its length; [`ErrorKind::TooMany`];
    /// [`ErrorKind::Forked`].
    pub fn attach(&self, name: &str, source: Arc<dyn Source>) -> Result<File> {
        let path = PathBuf::from(name);
        let backing = Backing::new(source, self.core.engine.clone());
        let identity = backing.identity().map_err(bad_source(&path))?;
        self.core.check_owner()?;
        backing.check().map_err(bad_source(&path))?;
        let len_bytes = ask_len(&backing, &path)?;
        let known = identity.is_some();
        let writes = backing.is_writable();
        let mapping = self.mapping(path, identity, backing, len_bytes)?;
        let mut file = File::new(self.core.clone(), mapping);
        if known {
            // It may have been cached before, with the length it had then.
            refresh::length(file.handle())?;
        }
        file.writes = writes;
        Ok(file)
    }

    /// A mapping with a handle, which the caller takes over.
    fn mapping(
        &self,
        path: PathBuf,
        identity: Option<FileIdentity>,
        backing: Backing,
        len_bytes: u64,
    ) -> Result<Arc<Mapping>> {
        let opened = self.core.mappings.open(&self.core.nodes, identity, path, backing, len_bytes);
        let (mapping, outdated) = opened?;
        // This is the outdated mapping's only handle: dropping it drops the pages.
        drop(outdated.map(|mapping| File::new(self.core.clone(), mapping)));
        Ok(mapping)
    }

    #[cfg(any(feature = "map", test))]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// [`File::sync_data`] of each file that has bytes that are not durable, open or not. This is
    /// what a program calls before it ends: a drop of the last handle, which syncs, too, tells no
    /// error. The cache goes on as before.
    ///
    /// # Errors
    /// [`ErrorKind::Write`]: not all of it is durable. The message has the file, the bytes and the
    /// cause of the first failure, and how many other files have failed; what remains is in
    /// [`Stats::dirty_bytes`]. All files are tried. [`ErrorKind::Forked`].
    pub fn sync(&self) -> Result<()> {
        self.core.check_owner()?;
        let all = self.core.mappings.all().into_iter().filter(|it| it.written.needs_sync());
        let mut errors = all.filter_map(|it| write::sync::sync(&self.core, &it, true).err());
        let Some(first) = errors.next() else { return Ok(()) };
        match errors.count() {
            0 => Err(first),
            others => Err(Cause::SyncOfMany { first: first.into_cause(), others }.into()),
        }
    }

    /// Registers a reader, with which the calling thread can borrow pages ([`File::borrow`]). Keep
    /// one per thread: registering takes a mutex.
    ///
    /// # Errors
    /// [`ErrorKind::TooMany`] if all 4096 records are in use (a reader has one, and up to four
    /// after large batches of borrows); [`ErrorKind::Forked`].
    pub fn reader(&self) -> Result<Reader> {
        self.core.check_owner()?;
        self.core.readers.register().map(Reader::new)
    }

    /// Frees 2 MiB of memory in one piece by moving folios, unless there are 2 MiB free already.
    /// Helps the next large folio (a sequential read, a pin of 2 MiB). False if it could not: what
    /// is in the way is held or pinned, or too little memory is free. Copies up to 2 MiB for each
    /// attempt, two for each eight runs of the cache; does no I/O. Feature `testing`: the cache does this by itself
    /// where it needs to.
    #[cfg(feature = "testing")]
    pub fn compact(&self) -> bool {
        self.core.owner.is_here() && reclaim::compact(&self.core)
    }

    /// All pins, the oldest first; `None` unless the cache was made with [`Options::track_pins`],
    /// and in a forked child. A forgotten pin leaks the whole budget ([`Stats::pinned_bytes`]).
    pub fn pins(&self) -> Option<Vec<PinHolder>> {
        self.core.check_owner().ok()?;
        self.core.holders.all()
    }

    /// Free runs of 2 MiB, and how many there could be. Feature `testing`: for tests of what pins
    /// do to them.
    #[cfg(feature = "testing")]
    pub fn whole_runs(&self) -> (u32, u32) {
        let free =
            self.core.frames.stats().free_blocks[usize::from(crate::frames::Order::MAX.get())];
        (free, self.core.frames.whole_runs().count() as u32)
    }

    /// Of each file that is open or has cached pages: its name, and the calls of its source with
    /// their latencies, in no order. Empty in a forked child. Cost: more than a KiB for each file.
    pub fn sources(&self) -> Vec<(String, SourceStats)> {
        if !self.core.owner.is_here() {
            return Vec::new();
        }
        let of =
            |mapping: &Arc<Mapping>| (mapping.path.display().to_string(), mapping.backing.stats());
        self.core.mappings.all().iter().map(of).collect()
    }

    /// What the cache has done and what it holds, in all. Sums the counters of all threads and
    /// looks at each file: too slow to call per request. All zeros in a forked child.
    pub fn stats(&self) -> Stats {
        let core = &self.core;
        if !core.owner.is_here() {
            return Stats::default();
        }
        let sum = |event| core.counters.sum(event);
        let page = PAGE_BYTES as u64;
        let frames = core.frames.stats();
        let metadata_bytes = reclaim::metadata_bytes(core);
        let budget_bytes = u64::from(frames.total_frames) * page;
        let free_bytes =
            u64::from(frames.free_frames + frames.free_hollow + frames.held_frames) * page;
        let kept = core.mappings.kept();
        let (deferred_folios, deferred_pages) = core.deferred.outstanding(&core.frames);
        let ended = sum(Event::FillEnded);
        let readahead_dropped = sum(Event::ReadaheadDropped);
        // First: a pin and unpin between the two sums must not count as an unpin alone.
        let unpinned = sum(Event::UnpinnedPages);
        let mut stats = Stats {
            reads: core.counters.reads(),
            long_reads: sum(Event::LongRead),
            fallbacks_absent: sum(Event::Absent),
            fallbacks_changing: sum(Event::Changing),
            fallbacks_identity: sum(Event::Identity),
            fallbacks_readahead: sum(Event::ReadaheadMark),
            fallbacks_crosses: sum(Event::Crosses),
            fallbacks_end_of_file: sum(Event::EndOfFile),
            fallbacks_changed: sum(Event::Changed),
            counted_hits: sum(Event::CountedHit),
            misses: sum(Event::Miss),
            waits: sum(Event::Wait),
            readahead: sum(Event::Readahead).saturating_sub(readahead_dropped),
            readahead_dropped,
            fills_in_flight: sum(Event::FillStarted).saturating_sub(ended),
            fill_errors: sum(Event::FillError),
            evictions: sum(Event::Eviction),
            evicted_bytes: sum(Event::EvictedBytes),
            refaults: sum(Event::Refault),
            direct_reclaims: sum(Event::DirectReclaim),
            splits: sum(Event::Split),
            migrations: sum(Event::Migration),
            pin_migrations: sum(Event::PinMigration),
            membarrier: core.readers.barrier() == Barrier::Membarrier,
            membarriers: sum(Event::Membarrier),
            readers: core.readers.registered(),
            borrows_counted: sum(Event::BorrowCounted),
            put_back: sum(Event::Announced),
            deferred: sum(Event::Deferred),
            deferred_folios,
            deferred_bytes: deferred_pages * page,
            budget_bytes,
            resident_bytes: budget_bytes.saturating_sub(metadata_bytes + free_bytes),
            dirty_bytes: core.unsynced_pages.load(Ordering::Relaxed) * page,
            pinned_bytes: sum(Event::PinnedPages).saturating_sub(unpinned) * page,
            metadata_bytes,
            directories_bytes: kept.directories_bytes,
            files_bytes: kept.files_bytes,
            free_bytes,
            huge_pages: core.frames.huge_pages_advised(),
            files: kept.files,
            ..Stats::default()
        };
        let not_short = stats.long_reads
            + stats.fallbacks_absent
            + stats.fallbacks_changing
            + stats.fallbacks_identity
            + stats.fallbacks_readahead
            + stats.fallbacks_crosses
            + stats.fallbacks_end_of_file
            + stats.fallbacks_changed;
        stats.short_reads = stats.reads[1..].iter().sum::<u64>().saturating_sub(not_short);
        core.mapped.count(&mut stats);
        stats
    }
}

fn bad_source(path: &Path) -> impl Fn(std::io::Error) -> Error {
    |cause| Cause::BadSource { path: path.to_owned(), cause: Arc::new(cause) }.into()
}
