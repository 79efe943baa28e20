//! `Cache`: opening one, opening files in it, and what it tells of itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::borrow::Reader;
use crate::core::Core;
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::file::File;
use crate::frame::{self, Frames, PAGE_BYTES};
use crate::holders::PinHolder;
use crate::index::NodePool;
use crate::mapping::ask_len;
use crate::options::{FileOptions, Options};
use crate::pressure::Pressure;
use crate::reclaim;
use crate::source::{self, Access, Backing, EngineOptions, Source};
use crate::stats::{BorrowStats, Fallbacks, Stats};

/// The smallest budget, in bytes: 1 MiB, with room for the frame table, some index nodes, and the
/// folios of a few readers at a time.
pub const BUDGET_MIN_BYTES: u64 = 1 << 20;

/// The largest budget, in bytes: 256 GiB, as far as index nodes reach.
pub const BUDGET_MAX_BYTES: u64 = 256 << 30;

/// A page cache: file pages in this program's memory, under a budget.
///
/// Clones are handles to the same cache. It lives as long as any of them, or any of its files.
///
/// ```
/// use pinfold::{Cache, Options, source::Memory};
/// use std::sync::Arc;
///
/// let cache = Cache::new(Options::new(8 << 20))?;
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("greeting");
/// # std::fs::write(&path, "hello, world").unwrap();
/// let file = cache.open(&path)?;
/// let mut buf = [0; 5];
/// assert_eq!(file.read_at(&mut buf, 7)?, 5);
/// assert_eq!(&buf, b"world");
///
/// // Any source of bytes can be read through the cache.
/// let memory = cache.attach("numbers", Arc::new(Memory::new(vec![1, 2, 3])))?;
/// assert_eq!(memory.read_at(&mut buf, 1)?, 2);
/// # Ok::<(), pinfold::Error>(())
/// ```
///
/// # Forking
///
/// A cache belongs to the process that made it. A child of fork(2) may exec, exit, or drop its
/// handles, guards and pins, and go on to make caches of its own. What was cached and up to date
/// at the fork can be read there too, from a copy (the memory is private: what either process does
/// to it the other does not see). Everything else (what is not cached; opening, pinning what has to
/// move, advice, invalidation, a new [`Reader`]) is [`Error::Forked`]: the child has none of the
/// cache's threads, and its locks may have been held by them. Dropping gives nothing back there:
/// the child keeps the cache's memory, as far as it differs from the parent's, until it ends or
/// calls exec.
///
/// open(2) warns of forking while direct I/O to private memory is on its way. Linux from 6.3 on
/// gives the child copies of such memory; on older kernels a program that forks without exec at once
/// should open files with [`Preference::Buffered`](crate::source::Preference::Buffered).
#[derive(Clone)]
pub struct Cache {
    core: Arc<Core>,
}

impl std::fmt::Debug for Cache {
    /// A line: [`Cache::stats`] tells the rest.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let frames = &self.core.frames;
        f.debug_struct("Cache")
            .field("budget_bytes", &(u64::from(frames.frames()) * PAGE_BYTES as u64))
            .field("free_bytes", &(u64::from(frames.free_frames()) * PAGE_BYTES as u64))
            .field("files", &self.core.mappings.count())
            .finish_non_exhaustive()
    }
}

impl Cache {
    /// Opens a cache of `options.budget_bytes`. Reserves all of it, touches 1/64 (the frame table),
    /// and starts a thread that evicts ahead of need.
    ///
    /// # Errors
    /// [`Error::Budget`] if the budget is below [`BUDGET_MIN_BYTES`] or above [`BUDGET_MAX_BYTES`],
    /// [`Error::Reserve`] if the system refuses.
    pub fn new(options: Options) -> Result<Self> {
        let asked_bytes = options.budget_bytes;
        if !(BUDGET_MIN_BYTES..=BUDGET_MAX_BYTES).contains(&asked_bytes) {
            let (least_bytes, most_bytes) = (BUDGET_MIN_BYTES, BUDGET_MAX_BYTES);
            return Err(Error::Budget { asked_bytes, least_bytes, most_bytes });
        }
        let reserve = |cause| Error::Reserve { bytes: asked_bytes, cause: Arc::new(cause) };
        let frames = Frames::open(asked_bytes).map_err(|cause| match cause {
            frame::OpenError::Reserve { cause, .. } => reserve(cause.into()),
            other => unreachable!("the budget was checked: {other}"),
        })?;
        let base = frames.base();
        let arena_bytes = frames.frames() as usize * PAGE_BYTES;
        // SAFETY: the arena stays mapped as long as `frames`, which `Core` drops after the nodes
        // and every index; `refill_nodes` hands out slabs that it allocated and never frees.
        let nodes = unsafe { NodePool::new(base, arena_bytes, PAGE_BYTES) };
        let mut engine = EngineOptions::default();
        if !options.io_uring {
            engine.ring_depth = 0;
        }
        let pressure = Pressure::new(frames.frames());
        let core = Core::new(options, frames, nodes, pressure, engine).map_err(reserve)?;
        let core = Arc::new(core);
        core.owner.keep(&core);
        reclaim::daemon::start(&core).map_err(reserve)?;
        Ok(Cache { core })
    }

    /// Opens the file or block device at `path` for reading. The same file opened twice (by device
    /// and inode) is cached once; if its length has changed meanwhile, all its handles have the new
    /// one. Bytes that somebody else changed are not noticed: see [`File::invalidate`]. Direct I/O
    /// where the file system can, else through the kernel's cache; [`Stats::sources`] tells.
    ///
    /// # Errors
    /// [`Error::Open`] with the path and the cause; [`Error::Length`] if its length cannot be had;
    /// [`Error::TooLong`] if that is above 2^63 - 4096.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, FileOptions::default())
    }

    /// [`open`](Self::open) with options. A file that is cached already keeps the ones it has.
    ///
    /// # Errors
    /// As [`open`](Self::open), and when direct I/O is demanded and cannot be had.
    pub fn open_with(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File> {
        self.core.check_owner()?;
        let path = path.as_ref();
        let opened = source::open(path, Access::Read, options.preference, &self.core.engine)
            .map_err(Arc::new)?;
        self.file(path.to_owned(), Some(opened.identity.into()), opened.source)
    }

    /// Reads a source of the program's own through the cache; `name` stands in messages where a
    /// path would. Each call makes a file of its own, whose pages go when its last handle does.
    ///
    /// Not so if the source has an [identity](Source::identity): then all attaches of its key are one
    /// file. While that is open it goes on with the source that it has; else with the new one. Where
    /// the new source has another version, the old one's pages are dropped, unless somebody has that
    /// open: then it is an error. So no handle ever sees bytes of two versions.
    ///
    /// # Errors
    /// [`Error::SourceChanged`] if the object is open in another version;
    /// [`Error::BadSource`] if the source panics when it is asked who it is, or the cache cannot keep
    /// its alignment; [`Error::Length`] if it cannot tell its length; [`Error::TooLong`] if that is
    /// above 2^63 - 4096.
    pub fn attach(&self, name: &str, source: Arc<dyn Source>) -> Result<File> {
        let path = PathBuf::from(name);
        let identity = source::guarded("identity", || Ok(source.identity()));
        let identity = identity.map_err(bad_source(&path))?.map(Into::into);
        self.file(path, identity, source)
    }

    fn file(
        &self,
        path: PathBuf,
        identity: Option<source::Identity>,
        source: Arc<dyn Source>,
    ) -> Result<File> {
        self.core.check_owner()?;
        let backing = Backing::new(source, self.core.engine.clone());
        backing.check().map_err(bad_source(&path))?;
        let len_bytes = ask_len(&backing, &path)?;
        let known = identity.is_some();
        let opened = self.core.mappings.open(&self.core.nodes, identity, path, backing, len_bytes);
        let (mapping, outdated) = opened?;
        // The drop of its one handle drops its pages.
        drop(outdated.map(|mapping| File::new(self.core.clone(), mapping)));
        let file = File::new(self.core.clone(), mapping);
        if known {
            // It may have been cached already, with the length that it had then.
            file.refresh_len()?;
        }
        Ok(file)
    }

    /// For tests inside the crate.
    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// A right to borrow pages, [`File::borrow`], for the calling thread alone. Keep it for long.
    ///
    /// # Errors
    /// [`Error::TooManyReaders`] if there are [`READERS_MAX`](crate::READERS_MAX) of them already.
    pub fn reader(&self) -> Result<Reader> {
        self.core.check_owner()?;
        self.core.readers.register().map(Reader::new)
    }

    /// Moves folios together until there is a free run of 2 MiB; false if that cannot be had.
    pub fn compact(&self) -> bool {
        self.core.owner.is_here() && reclaim::compact(&self.core)
    }

    /// Who pins what, the oldest first; `None` unless the cache was opened with
    /// [`Options::track_pins`], and in a forked child.
    pub fn pins(&self) -> Option<Vec<PinHolder>> {
        self.core.check_owner().ok()?;
        self.core.holders.all()
    }

    /// Gives this handle up, and says if something is pinned in the cache that should not be any more.
    ///
    /// A pin keeps the cache's memory, all of it, for as long as it lives, so a forgotten one is a
    /// leak of the whole budget. To be called where a program ends, or expects to be done with a cache:
    /// dropping the handle instead says nothing. Other handles and open files stay good either way.
    ///
    /// # Errors
    /// [`Error::StillPinned`], with who pins if the cache was opened with [`Options::track_pins`].
    pub fn close(self) -> Result<()> {
        match pinned_pages(&self.core) {
            0 => Ok(()),
            pages => Err(Error::StillPinned {
                pinned_bytes: pages * PAGE_BYTES as u64,
                holders: self.pins().unwrap_or_default(),
            }),
        }
    }

    /// Free runs of 2 MiB, and how many there could be. Feature `testing`: for tests of what pins do
    /// to them.
    #[cfg(feature = "testing")]
    pub fn whole_runs(&self) -> (u32, u32) {
        let free = self.core.frames.stats().free_blocks[usize::from(frame::Order::MAX.get())];
        (free, self.core.frames.whole_runs().count() as u32)
    }

    /// What the cache has done and holds. Adds up the threads' counters; not for every request.
    /// In a forked child all are zero.
    pub fn stats(&self) -> Stats {
        let core = &self.core;
        if !core.owner.is_here() {
            return Stats::default();
        }
        let sum = |event| core.counters.sum(event);
        let page = PAGE_BYTES as u64;
        let reads = core.counters.reads();
        let fallbacks = Fallbacks {
            absent: sum(Event::Absent),
            changing: sum(Event::Changing),
            identity: sum(Event::Identity),
            readahead: sum(Event::ReadaheadMark),
            crosses: sum(Event::Crosses),
            end_of_file: sum(Event::EndOfFile),
            changed: sum(Event::Changed),
        };
        let long_reads = sum(Event::LongRead);
        let frames = core.frames.stats();
        let metadata_bytes = reclaim::metadata_bytes(core);
        let budget_bytes = u64::from(frames.total_frames) * page;
        let free_bytes = u64::from(frames.free_frames + frames.held_frames) * page;
        let mappings = core.mappings.all();
        let directories_bytes: u64 =
            mappings.iter().map(|mapping| mapping.index.heap_bytes()).sum();
        let ended = sum(Event::FillEnded);
        Stats {
            short_reads: reads
                .iter()
                .sum::<u64>()
                .saturating_sub(reads[0] + long_reads + fallbacks.total()),
            reads,
            long_reads,
            fallbacks,
            counted_hits: sum(Event::CountedHit),
            misses: sum(Event::Miss),
            waits: sum(Event::Wait),
            readahead: sum(Event::Readahead),
            fills_in_flight: sum(Event::FillStarted).saturating_sub(ended),
            fill_errors: sum(Event::FillError),
            evictions: sum(Event::Eviction),
            evicted_bytes: sum(Event::EvictedBytes),
            refaults: sum(Event::Refault),
            direct_reclaims: sum(Event::DirectReclaim),
            splits: sum(Event::Split),
            migrations: sum(Event::Migration),
            pin_migrations: sum(Event::PinMigration),
            borrow: borrow_stats(core),
            budget_bytes,
            resident_bytes: budget_bytes.saturating_sub(metadata_bytes + free_bytes),
            dirty_bytes: 0,
            pinned_bytes: pinned_pages(core) * page,
            metadata_bytes,
            directories_bytes,
            free_bytes,
            huge_pages: core.frames.huge_pages_advised(),
            files: mappings.len() as u64,
            sources: mappings
                .iter()
                .map(|mapping| (mapping.path.display().to_string(), mapping.backing.stats()))
                .collect(),
        }
    }
}

/// What to say of a source that the cache cannot work with.
fn bad_source(path: &Path) -> impl Fn(std::io::Error) -> Error {
    |cause| Error::BadSource { path: path.to_owned(), cause: Arc::new(cause) }
}

fn borrow_stats(core: &Core) -> BorrowStats {
    let (deferred_folios, deferred_pages) = core.deferred.outstanding(&core.frames);
    BorrowStats {
        barrier: core.readers.barrier(),
        readers: core.readers.registered(),
        counted: core.counters.sum(Event::BorrowCounted),
        put_back: core.counters.sum(Event::Announced),
        deferred: core.counters.sum(Event::Deferred),
        deferred_folios,
        deferred_bytes: deferred_pages * PAGE_BYTES as u64,
        membarriers: core.counters.sum(Event::Membarrier),
    }
}

/// Each page as often as it is pinned.
fn pinned_pages(core: &Core) -> u64 {
    // The unpinned ones first: what is pinned and unpinned in between must not count for them alone.
    let unpinned = core.counters.sum(Event::UnpinnedPages);
    core.counters.sum(Event::PinnedPages).saturating_sub(unpinned)
}
