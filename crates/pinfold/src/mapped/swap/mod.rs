//! The swap: where pages of the program's own memory are while they are not in memory.
//!
//! Here: the source that has the slots: making it, reading, writing, counting. `slots.rs` says which
//! slots are free, `pages.rs` has the states of a page. `pages/reclaim/` decides what is paged out,
//! by the steps of `map/space/anon/out.rs`.

pub(crate) mod pages;
pub(crate) mod slots;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
// Not from `crate::base::sync`: counters.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, Mode, OFlags};

use crate::base::guarded::guarded;
use crate::base::limits::check_file_end;
use crate::base::sync::locks::Mutex;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::frames::PAGE_BYTES;
use crate::options::Options;
use crate::source::{
    Access, AlignedBuffer, Backing, Engine, Extent, Opened, Source, find, is_refusal, read_later,
};
use crate::stats::Stats;
use slots::{SLOTS_MAX, Slot, SwapSlots};

#[derive(Debug)]
pub(crate) struct Swap {
    /// Before the source: its address may be another one's once it is gone.
    _claim: Option<SwapClaim>,
    source: Arc<dyn Source>,
    /// `source` for reads that tasks wait for.
    backing: Backing,
    slots: SwapSlots,
    pub(crate) counters: SwapCounters,
    last_error: Mutex<Option<String>>,
    rest: Mutex<Rest>,
}

/// How long a swap is left alone that failed or was full: it grows until a write succeeds.
const REST_MIN: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(100);

/// How often its file is allocated, where signals interrupt that.
const TRIES_MAX: u32 = 100;

const INTERRUPTED: rustix::io::Result<()> = Err(rustix::io::Errno::INTR);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Failed,
    /// There was no slot. It ends when there is one.
    Full,
}

/// Since when a swap is left alone, and for how long.
#[derive(Debug, Default)]
struct Rest {
    now: Option<(Instant, Why)>,
    takes: Duration,
}

impl Rest {
    fn lasts(&self) -> bool {
        self.now.is_some_and(|(since, _)| since.elapsed() < self.takes)
    }
}

/// What is counted. Nothing depends on the order of these.
#[derive(Debug, Default)]
pub(crate) struct SwapCounters {
    pub(crate) pages_written: AtomicU64,
    writes: AtomicU64,
    pages_read: AtomicU64,
    reads: AtomicU64,
    pub(crate) zeros: AtomicU64,
    pub(crate) stored_meanwhile: AtomicU64,
    pub(crate) full: AtomicU64,
    write_errors: AtomicU64,
    read_errors: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed); // a count
}

pub(crate) fn open(options: &Options, engine: &Arc<Engine>) -> Result<Option<Swap>> {
    let bytes = options.swap_bytes;
    if bytes == 0 {
        return Ok(None);
    }
    let swap = Swap::new(options, engine).map_err(|cause| {
        let dir = options.swap_dir.display();
        let place = if options.swap_source.is_some() { "" } else { &format!(" in {dir}") };
        Cause::system(&format!("make a swap of {bytes} bytes{place}"), cause)
    });
    Ok(Some(swap?))
}

impl Swap {
    /// Error: it is less than a page; the file cannot be made, or its file system has no room; the
    /// source is another cache's swap, or has no alignment that can be.
    fn new(options: &Options, engine: &Arc<Engine>) -> io::Result<Self> {
        let slots = u32::try_from(options.swap_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        let slots = slots.min(SLOTS_MAX / 2);
        if slots == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a page has 4096 bytes"));
        }
        let claim = options.swap_source.as_ref().map(SwapClaim::of).transpose()?;
        let (source, backing) = if let Some(source) = &options.swap_source {
            (source.clone(), Backing::new(source.clone(), engine.clone()))
        } else {
            let bytes = u64::from(slots) * PAGE_BYTES as u64;
            let opened = make(&options.swap_dir, bytes, engine)?;
            (opened.source.clone(), Backing::of_file(opened, engine.clone()))
        };
        backing.check()?;
        let (counters, last_error, rest) = Default::default();
        let slots = SwapSlots::new(slots);
        Ok(Swap { _claim: claim, source, backing, slots, counters, last_error, rest })
    }

    pub(crate) fn slots(&self) -> &SwapSlots {
        &self.slots
    }

    /// Writes pages to adjacent slots, from `first` on. An extent has one or more.
    pub(crate) fn write(&self, first: Slot, pages: &[Extent<'_>]) -> io::Result<()> {
        let write = || self.source.write_extents_at(offset(first), pages);
        let done = guarded("write_extents_at", write);
        add(&self.counters.writes, 1);
        match &done {
            Ok(()) => {
                let bytes: usize = pages.iter().map(Extent::bytes).sum();
                add(&self.counters.pages_written, (bytes / PAGE_BYTES) as u64);
                *self.rest.lock() = Rest::default();
            }
            Err(why) => {
                self.slots.pass_over(first);
                self.write_failed(why);
            }
        }
        done
    }

    fn write_failed(&self, why: &io::Error) {
        self.rest(Why::Failed);
        add(&self.counters.write_errors, 1);
        self.remember(why);
    }

    /// There was no memory for a buffer, so nothing could be written.
    pub(crate) fn lacks_buffer(&self) {
        let text = "the program's allocator has no memory for a buffer (RLIMIT_AS, RLIMIT_DATA)";
        self.write_failed(&io::Error::new(io::ErrorKind::OutOfMemory, text));
    }

    /// It is left alone for a while. Who finds the same meanwhile does not make that longer.
    pub(crate) fn rest(&self, why: Why) {
        let mut rest = self.rest.lock();
        if !rest.lasts() {
            rest.takes = (rest.takes * 2).clamp(REST_MIN, REST_MAX);
            rest.now = Some((Instant::now(), why));
        } else if let (Some((_, before)), Why::Failed) = (&mut rest.now, why) {
            *before = why; // a slot does not end it
        }
    }

    pub(crate) fn rests(&self) -> bool {
        let rest = self.rest.lock();
        let has_slots = || self.slots.free() > 0;
        rest.lasts() && !matches!(rest.now, Some((_, Why::Full)) if has_slots())
    }

    /// Whether pages that are handed to it may get there now.
    pub(crate) fn takes_pages(&self) -> bool {
        self.slots.free() > 0 && !self.rests()
    }

    /// Reads adjacent slots, from `first` on.
    pub(crate) fn read(&self, first: Slot, to: &mut [u8]) -> io::Result<()> {
        let bytes = to.len();
        let read = || self.source.read_extents_at(offset(first), &[Extent::of(to)]);
        self.was_read(bytes, guarded("read_extents_at", read))
    }

    /// A read for a task: into the first `bytes` bytes of a buffer, which comes back.
    pub(crate) async fn read_later(
        &self,
        first: Slot,
        to: AlignedBuffer,
        bytes: usize,
    ) -> (AlignedBuffer, io::Result<()>) {
        let (to, done) = read_later(&self.backing, offset(first), to, bytes).await;
        let done = match done {
            Err(refused) if is_refusal(&refused) => Err(refused),
            done => self.was_read(bytes, done),
        };
        (to, done)
    }

    fn was_read(&self, bytes: usize, done: io::Result<usize>) -> io::Result<()> {
        let done = done.and_then(|got| match got {
            got if got == bytes => Ok(()),
            // The source ends there, though all of it was written.
            got => Err(io::Error::other(format!("the swap gave {got} bytes of {bytes}"))),
        });
        add(&self.counters.reads, 1);
        match &done {
            Ok(()) => add(&self.counters.pages_read, (bytes / PAGE_BYTES) as u64),
            Err(why) => {
                add(&self.counters.read_errors, 1);
                self.remember(why);
            }
        }
        done
    }

    fn remember(&self, why: &io::Error) {
        *self.last_error.lock() = Some(why.to_string());
    }

    /// Tells what has happened to it so far.
    pub(crate) fn count(&self, stats: &mut Stats) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let bytes = |slots: u32| u64::from(slots) * PAGE_BYTES as u64;
        let (all, counters) = (self.slots.all(), &self.counters);
        stats.swap_bytes = bytes(all);
        stats.swap_used_bytes = bytes(all - self.slots.free());
        stats.swap_pages_written = count(&counters.pages_written);
        stats.swap_writes = count(&counters.writes);
        stats.swap_pages_read = count(&counters.pages_read);
        stats.swap_reads = count(&counters.reads);
        stats.swap_zeros = count(&counters.zeros);
        stats.swap_stored_meanwhile = count(&counters.stored_meanwhile);
        stats.swap_full = count(&counters.full);
        stats.swap_write_errors = count(&counters.write_errors);
        stats.swap_read_errors = count(&counters.read_errors);
        stats.swap_last_error.clone_from(&self.last_error.lock());
    }

    /// What of it may explain that there is no memory.
    pub(crate) fn about(&self) -> String {
        let bytes = u64::from(self.slots.all()) * PAGE_BYTES as u64;
        let failed = self.counters.write_errors.load(Ordering::Relaxed);
        match &*self.last_error.lock() {
            _ if self.slots.free() == 0 => format!("the swap of {bytes} bytes is full"),
            Some(error) if failed > 0 => {
                format!("{failed} writes to the swap failed, of the last errors: {error}")
            }
            _ => format!("the swap of {bytes} bytes has room"),
        }
    }
}

/// The addresses of the sources that are swaps. No lock: a fork could leave it locked.
static CLAIMED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// A source is the swap of this cache, and of no other: each would take the other's slots for free.
/// Of more caches than [`CLAIMED`] has places, nothing is known.
#[derive(Debug)]
struct SwapClaim(Option<&'static AtomicUsize>);

impl SwapClaim {
    fn of(source: &Arc<dyn Source>) -> io::Result<Self> {
        let address = Arc::as_ptr(source).addr();
        // SeqCst, all of these, for each other: of two that come at once, one sees the other's.
        let (from, to) = (Ordering::SeqCst, Ordering::Relaxed);
        let takes = |place: &&AtomicUsize| place.compare_exchange(0, address, from, to).is_ok();
        let claim = SwapClaim(CLAIMED.iter().find(takes));
        let is = |place: &&AtomicUsize| place.load(Ordering::SeqCst) == address;
        let own = usize::from(claim.0.is_some());
        if CLAIMED.iter().filter(is).count() > own {
            let text = "the source is the swap of another cache, which may have pages there";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        Ok(claim)
    }
}

impl Drop for SwapClaim {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::SeqCst);
        }
    }
}

fn offset(Slot(slot): Slot) -> u64 {
    u64::from(slot) * PAGE_BYTES as u64
}

/// A file of `bytes` bytes in `dir`, which has no name any more when this returns: it goes with the
/// process. Its blocks are allocated where the file system can do that.
fn make(dir: &Path, bytes: u64, engine: &Engine) -> io::Result<Opened> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // Ends: a name that is taken is that of a process with this number that was killed in here.
    let (path, fd) = loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed); // the numbers only have to differ
        let path = dir.join(format!(".pinfold-swap-{}-{number}", std::process::id()));
        match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => break (path, fd),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let found = find(&path, Access::ReadWrite);
    let opened = found.and_then(|found| found.open(&path, None, engine));
    rustix::fs::unlink(&path)?;
    check_file_end(bytes)?;
    let allocate = || rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes);
    // A file system may begin anew after a signal, and signals may come for ever.
    let done = (0..TRIES_MAX).map(|_| allocate()).find(|done| *done != INTERRUPTED);
    let allocated = match done.unwrap_or(INTERRUPTED) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            rustix::fs::ftruncate(&fd, bytes)
        }
        done => done,
    };
    allocated?;
    opened.map_err(|why| io::Error::new(why.io_kind(), why))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::source::{EngineOptions, Memory};

    fn engine() -> Arc<Engine> {
        Arc::new(Engine::new(EngineOptions::default()))
    }

    #[test]
    fn a_name_that_a_killed_process_has_left_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let taken = |number: u32| dir.path().join(format!(".pinfold-swap-{}-{number}", process()));
        (0..100).for_each(|number| std::fs::write(taken(number), "").unwrap());
        make(dir.path(), 1 << 20, &engine()).unwrap();
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 100, "its own name is gone");
    }

    fn in_dir(dir: &Path, swap_bytes: u64) -> Options {
        Options { swap_dir: dir.to_owned(), swap_bytes, ..Options::new(8 << 20) }
    }

    fn in_memory(swap_bytes: u64) -> Options {
        let swap_source: Option<Arc<dyn Source>> = Some(Arc::new(Memory::new(Vec::new())));
        Options { swap_bytes, swap_source, ..Options::new(8 << 20) }
    }

    fn counted(swap: &Swap) -> Stats {
        let mut stats = Stats::default();
        swap.count(&mut stats);
        stats
    }

    fn process() -> u32 {
        std::process::id()
    }

    #[test]
    fn pages_come_back_from_their_slots_and_the_file_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let swap = Swap::new(&in_dir(dir.path(), 1 << 20), &engine()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let mut pages = crate::source::AlignedBuffer::zeroed(3 * PAGE_BYTES, PAGE_BYTES);
        for (n, byte) in pages.iter_mut().enumerate() {
            *byte = (n / PAGE_BYTES) as u8 + 1;
        }
        let extents: Vec<_> = pages.chunks_mut(PAGE_BYTES).map(Extent::of).collect();
        swap.write(Slot(7), &extents).unwrap();
        let mut back = crate::source::AlignedBuffer::zeroed(2 * PAGE_BYTES, PAGE_BYTES);
        swap.read(Slot(8), &mut back).unwrap();
        assert_eq!((back[0], back[PAGE_BYTES]), (2, 3));
        let stats = counted(&swap);
        assert_eq!((stats.swap_pages_written, stats.swap_writes), (3, 1));
        assert_eq!((stats.swap_pages_read, stats.swap_reads, stats.swap_bytes), (2, 1, 1 << 20));
    }

    #[test]
    fn a_swap_that_lost_its_bytes_says_so() {
        let swap = Swap::new(&in_memory(1 << 20), &engine()).unwrap();
        let error = swap.read(Slot(0), &mut [0; PAGE_BYTES]).unwrap_err();
        assert_eq!(error.to_string(), "the swap gave 0 bytes of 4096");
        let stats = counted(&swap);
        assert_eq!(stats.swap_read_errors, 1);
        assert_eq!(stats.swap_last_error.as_deref(), Some("the swap gave 0 bytes of 4096"));
    }

    #[test]
    fn who_is_full_rests_until_there_is_a_slot() {
        let swap = Swap::new(&in_memory(PAGE_BYTES as u64), &engine()).unwrap();
        assert!(!swap.rests());
        let taken: Vec<u32> = swap.slots.take(1).into_iter().flatten().collect();
        // Long enough for a slow machine.
        swap.rest.lock().takes = Duration::from_secs(100);
        swap.rest.lock().now = Some((Instant::now(), Why::Full));
        swap.rest(Why::Full);
        assert!(swap.rests());
        swap.slots.give(Slot(taken[0]));
        assert!(!swap.rests());
        swap.rest(Why::Failed);
        assert!(swap.rests(), "a write fails whether there are slots or not");
        let mut page = crate::source::AlignedBuffer::zeroed(PAGE_BYTES, PAGE_BYTES);
        swap.write(Slot(0), &[Extent::of(&mut page)]).unwrap();
        assert!(!swap.rests());
    }

    #[test]
    fn a_swap_without_room_for_a_page_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for options in [in_dir(dir.path(), 0), in_memory(0)] {
            let of = |swap_bytes| Swap::new(&Options { swap_bytes, ..options.clone() }, &engine());
            for bytes in [0, 1, 4095] {
                let error = of(bytes).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{bytes}: {error}");
            }
            assert_eq!(counted(&of(8191).unwrap()).swap_bytes, 4096);
        }
    }

    #[test]
    fn a_source_is_the_swap_of_one_cache_at_a_time() {
        let options = in_memory(1 << 20);
        let first = Swap::new(&options, &engine()).unwrap();
        let _other = Swap::new(&in_memory(1 << 20), &engine()).unwrap();
        for _ in 0..2 {
            let error = Swap::new(&options, &engine()).unwrap_err();
            assert!(error.to_string().contains("is the swap of another cache"), "{error}");
        }
        drop(first);
        Swap::new(&options, &engine()).unwrap();
    }

    /// Each alignment, and what it fails with.
    #[derive(Debug)]
    struct Aligned(Option<usize>);

    impl Source for Aligned {
        fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> io::Result<usize> {
            Ok(0)
        }

        fn len_bytes(&self) -> io::Result<u64> {
            Ok(0)
        }

        fn alignment(&self) -> usize {
            self.0.expect("it is not known")
        }

        fn kind(&self) -> std::borrow::Cow<'static, str> {
            "aligned".into()
        }
    }

    #[test]
    fn a_source_without_an_alignment_that_can_be_is_an_error() {
        let made = |alignment| {
            let source: Option<Arc<dyn Source>> = Some(Arc::new(Aligned(alignment)));
            Swap::new(&Options { swap_source: source, ..in_memory(1 << 20) }, &engine())
        };
        made(Some(4096)).unwrap();
        for (alignment, why) in [
            (None, "the source panicked in alignment: it is not known"),
            (Some(3000), "an alignment of 3000 bytes, which must be a power of two up to 4096"),
            (Some(8192), "an alignment of 8192 bytes"),
        ] {
            let error = made(alignment).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let error = Swap::new(&in_dir("/no/such/directory".as_ref(), 1 << 20), &engine());
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
