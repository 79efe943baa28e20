//! `Space`, as a program sees it.

use std::ops::Range;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use super::anon_map::AnonMap;
use super::compared::Compared;
#[cfg(feature = "testing")]
use super::compared::{FaultIo, FaultLock};
use super::fault::SpaceShared;
use super::handlers::Handlers;
use super::map::{self, Map, check_own};
use super::signal;
use super::stats::SpaceStats;
use super::target::{self, SpaceCore};
use crate::cache::Cache;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::map::lend::Mapper;
use crate::mapped::uffd::{Ask, Uffd};

const HANDLERS_MAX: usize = 64;

/// Ways to serve the faults of a [`Space`]. Feature `testing`: for comparisons only.
#[cfg(feature = "testing")]
#[derive(Debug, Clone, Copy, Default)]
pub struct SpaceOptions {
    /// Which lock a fault takes again once its page was read.
    pub lock: FaultLock,
    /// What a fault does with its lock while its page is read.
    pub io: FaultIo,
    /// How many threads serve faults, as for [`Space::new`].
    pub handlers: usize,
}

/// Where files of one cache are mapped into the program's memory ([`map_file`](Self::map_file)),
/// and where the program has memory of its own under the cache's budget, which is written to a swap
/// where others need the room ([`map_anon`](Self::map_anon), [`map_private`](Self::map_private)).
///
/// ```
/// # use pinfold::{Cache, Options, source::Memory};
/// use pinfold::Space;
///
/// # let cache = Cache::new(Options::new(8 << 20))?;
/// # let file = cache.attach("table", std::sync::Arc::new(Memory::new(vec![7; 100_000])))?;
/// let space = Space::new(&cache, 0)?;
/// let map = space.map_file(&file, 0..file.len())?;
/// // SAFETY: nobody changes the file, and its bytes can be read.
/// let bytes = unsafe { map.as_slice() };
/// assert_eq!(bytes[99_999], 7);
/// # Ok::<(), pinfold::Error>(())
/// ```
///
/// An access to a page that is in memory for maps costs what memory costs. An access to another
/// page is a *fault*: it waits until the page was read from its file, or from the swap, as a call
/// of [`File::read_at`] would. [`AnonMap`] has more on own memory.
///
/// A clone is a handle to the same space. Maps stay when the space's last handle is dropped. As
/// long as the space or one of its maps exists, 2 MiB of the budget are reserved for maps.
///
/// # Who serves a fault
///
/// - **The thread that faults**, by default. The kernel sends it SIGBUS, whose handler reads the
///   page; then the access is repeated. That costs a miss, and a few microseconds. The first space
///   of the process installs the handler; what is not a fault of a map goes to the handler that was
///   there before. A program that installs one later has to pass signals on in the same way. If it
///   goes back to the default action, or to the handler that was there before, no map can be
///   accessed until the next space is made.
///   - A thread that accesses a map must not block SIGBUS: the kernel would end the process. It
///     needs 4 KiB of its stack, and what the kernel puts there for a signal; sources are called on
///     a stack of 2 MiB.
///   - A system call that gets an address in a map fails with `EFAULT` if a page is absent: use
///     [`Map::hold`], or handler threads.
///   - No access may happen where the thread could not call the cache: in a signal handler, for
///     example, or under a lock of a source that reads for the cache.
/// - **Threads of the space** ([`new`](Self::new)). The thread that faults waits in the kernel. Each
///   fault costs two switches of threads. A handler thread waits for no read, so one is enough for
///   any number of faults; more of them share the work of copying pages and evicting. A fault that
///   needs one of the cache's threads fails if other sources keep all of them for 30 seconds, in
///   which no read ends. System calls wait for their pages, too, if the process may have a
///   userfaultfd that serves them ([`SpaceStats::serves_system_calls`]); but one that writes to the
///   file of the map has that file's lock, for which the read of the page waits, and never ends:
///   [`Map::hold`] before it. Who waits for a page must have nothing that threads of the cache need:
///   - A signal handler may access a map, but not one that may have interrupted its thread in a call
///     of the cache or of the allocator, whose locks that thread has. So block such a signal in those
///     calls, or have it handled by a thread that makes none.
///   - A [`Source`](crate::source::Source) must not access maps of such a space: all threads that
///     read for sources could then wait for pages that only they read.
///
/// However faults are served, Rust's global allocator must not have its memory in a map: to serve a
/// fault takes an allocation. An allocator that the program alone calls may.
///
/// # A page that cannot be read
///
/// The access gets SIGBUS, as with mmap(2); so does one past the end of a file that has become
/// shorter. A program without a handler of its own for it ends. The next access tries again; but
/// where handler threads serve, the page stays *poisoned* (each access gets SIGBUS) until
/// [`Map::advise`] with [`DontNeed`](crate::Hint::DontNeed), until it is unmapped, or until the cache
/// evicts pages near it. [`last_failure`](Self::last_failure) tells the error, which
/// [`File::read_at`] would have returned.
///
/// # Forking
///
/// Maps are not inherited: an access in a forked child ends it, by SIGSEGV. Calls fail with
/// [`ErrorKind::Forked`]; a child may make a cache and a space of its own.
#[derive(Clone)]
pub struct Space {
    core: Arc<SpaceCore>,
}

// As for `Cache`.
impl UnwindSafe for Space {}
impl RefUnwindSafe for Space {}

impl std::fmt::Debug for Space {
    /// One line; [`Space::stats`] has the rest.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space").field("by", &self.core.shared.by).finish_non_exhaustive()
    }
}

impl Space {
    /// A space without maps, for files of `cache`, which it keeps alive.
    ///
    /// `handlers` is the number of threads that serve faults: up to 64; more are taken for 64. 0:
    /// none, and each thread serves its own faults ([`Space`], "Who serves a fault").
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the cache has less than 8 MiB: memory for maps is taken from
    /// its budget 2 MiB at a time. [`ErrorKind::System`] if the system refuses a userfaultfd, the
    /// handler of SIGBUS or the handler threads, or if the kernel is too old (handler threads need
    /// Linux 6.6): the message says what to do. [`ErrorKind::Forked`] in a forked child.
    pub fn new(cache: &Cache, handlers: usize) -> Result<Self> {
        Space::make(cache, Compared::default(), handlers)
    }

    /// [`new`](Self::new), with another way to serve faults. Feature `testing`: for comparisons
    /// only.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[cfg(feature = "testing")]
    pub fn with(cache: &Cache, options: SpaceOptions) -> Result<Self> {
        Space::make(cache, Compared::new(options.lock, options.io), options.handlers)
    }

    fn make(cache: &Cache, compared: Compared, handlers: usize) -> Result<Self> {
        cache.core().check_owner()?;
        let mapper = Mapper::new(cache.core())?;
        let handlers = handlers.min(HANDLERS_MAX);
        let ask = if handlers == 0 { Ask::Signal } else { Ask::Message };
        let uffd = Arc::new(Uffd::open(ask)?);
        let handlers = if handlers == 0 {
            let refused = |why| Cause::system("install a handler of SIGBUS", why);
            signal::install().map_err(refused)?;
            None
        } else {
            Some(Handlers::start(handlers, &uffd, target::serve_message)?)
        };
        let (cache, shared) = (cache.clone(), SpaceShared::new(compared, ask));
        let (last_failure, proc) = Default::default();
        let core = SpaceCore { shared, last_failure, uffd, proc, handlers, cache, _mapper: mapper };
        Ok(Space { core: Arc::new(core) })
    }

    /// Maps the bytes `range` of `file`, for reading. The range begins at a multiple of 4096, and
    /// ends with or before the file. Nothing is read.
    ///
    /// The file stays open as long as the map. The map is a handle of its own: readahead is told
    /// from its faults alone. Any number of maps may have the same pages, which are in memory once.
    ///
    /// Cost: some eight system calls. A map takes two of the kernel's VMAs, three at most, and
    /// whole pieces of 2 MiB of address space. The first map of a file also takes a descriptor, and
    /// addresses for twice the file's length, from 1 GiB to 64 GiB; accesses beyond these take 4
    /// GiB for each 4 GiB of the file.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a range that cannot be mapped, or if the file is of another
    /// cache; [`ErrorKind::BeyondEnd`] if the range ends beyond the file; [`ErrorKind::Busy`] if
    /// the file was ever served to other processes by this cache ([`Clients`](crate::Clients));
    /// [`ErrorKind::System`] if the system refuses (`ENOMEM`: the process has as many VMAs as
    /// `vm.max_map_count` allows, no more address space, or no memory; `EFBIG`: `ulimit -f`;
    /// `EMFILE`: the process has no descriptor left; or no userfaultfd for the cache's own view);
    /// [`ErrorKind::Forked`] in a forked child.
    pub fn map_file(&self, file: &File, range: Range<u64>) -> Result<Map> {
        Map::new(&self.core, file, range)
    }

    /// Anonymous memory of `len` bytes under the cache's budget, which can be paged out
    /// ([`AnonMap`]): zeros that can be read and stored to. Nothing takes memory before it is
    /// touched.
    ///
    /// Own memory of all maps together can have all of the budget at once but 2 MiB, or a 16th
    /// where that is more. Without a swap, no more than that can be stored to.
    ///
    /// ```
    /// # use pinfold::{Cache, Options, Space};
    /// # let dir = tempfile::tempdir().unwrap();
    /// let budget = Options::new(8 << 20);
    /// let swap = Options { swap_dir: dir.path().into(), swap_bytes: 64 << 20, ..budget };
    /// let cache = Cache::new(swap)?;
    /// let space = Space::new(&cache, 0)?;
    /// let memory = space.map_anon(32 << 20)?;
    /// memory.write_at(b"hello", 20 << 20)?;
    /// memory.page_out(0..memory.len())?;
    /// let mut back = [0; 5];
    /// memory.read_at(&mut back, 20 << 20)?;
    /// assert_eq!(&back, b"hello");
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    ///
    /// Cost: some eight system calls, one or two of the kernel's VMAs, and whole pieces of 2 MiB of
    /// address space; outside of the budget, 4 bytes for each 2 MiB of addresses (which stay for
    /// other maps), 16 for each 64 MiB, and 4 for each page of those in which something was stored, and
    /// the kernel's page tables, 4 KiB for each 2 MiB in which something was ever touched.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if `len` is 0; [`ErrorKind::System`] if the system refuses (`EINVAL`:
    /// it has no write protection by userfaultfd; it does not tell which pages are protected, which
    /// `x86_64` does since Linux 5.14; `/proc` is not mounted, or the process may not read
    /// `/proc/self/pagemap`, as after a change of its user (`PR_SET_DUMPABLE`); `ENOMEM`: it
    /// does not have so many addresses, or so much memory for what is kept of each page);
    /// [`ErrorKind::TooMany`]; [`ErrorKind::Forked`].
    pub fn map_anon(&self, len: usize) -> Result<AnonMap> {
        AnonMap::anonymous(&self.core, len)
    }

    /// A private view of the bytes `range` of `file`: memory that has the file's bytes until it is
    /// stored to. The file is never changed. Pages that were not stored to are read through the
    /// cache when they are touched, and copied; what was stored to goes to the swap ([`AnonMap`]).
    /// If somebody else changes the file, a page that was not stored to may have old or new bytes.
    ///
    /// Cost: as [`map_anon`](Self::map_anon). A page takes budget twice after its first access,
    /// until the cache evicts the file's own copy.
    ///
    /// # Errors
    /// As [`map_anon`](Self::map_anon) and [`map_file`](Self::map_file).
    pub fn map_private(&self, file: &File, range: Range<u64>) -> Result<AnonMap> {
        check_own(&self.core.cache, file)?;
        map::check(file, &range)?;
        AnonMap::private(&self.core, file, &range)
    }

    /// What has happened so far. All zeros in a forked child.
    pub fn stats(&self) -> SpaceStats {
        let stats = || self.core.shared.stats(self.core.uffd.serves_system_calls());
        self.core.cache.core().owner.is_here().then(stats).unwrap_or_default()
    }

    /// The error of the last access to any of its maps that failed. `None` in a forked child.
    pub fn last_failure(&self) -> Option<Error> {
        let here = self.core.cache.core().owner.is_here();
        here.then(|| self.core.last_failure.lock().clone()).flatten()
    }

    /// What its handler threads answer by.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn uffd(&self) -> &Uffd {
        &self.core.uffd
    }
}
