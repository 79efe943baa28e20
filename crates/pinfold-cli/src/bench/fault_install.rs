//! `pinfold bench fault`, the cases without a cache: how a page gets into a mapping (`install`),
//! into a memory file (`fill`), and out of both (`evict`).
//!
//! Their table is what the design of mapped memory rests on. Not here: the userfaultfd
//! (`fault_uffd.rs`), the tables (`fault_tables.rs`).

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw, UncheckedAdvice};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::time::{ClockId, clock_gettime};

use super::fault_touch::{Numbered, Order, PAGE_BYTES, number_pages};
use super::fault_uffd::{Filled, Served, Way};
use super::scratch::{Aligned, open_direct};
use super::workers::{cpus, pin_to_cpu};

/// The engines of `install`; the loop alone first, then the one that others are compared with.
pub const INSTALL: [&str; 13] = [
    "mapped",
    "native",
    "native-missing",
    "continue-1",
    "continue-16",
    "continue-128",
    "continue-512",
    "copy-1",
    "copy-16",
    "copy-128",
    "move-1",
    "move-16",
    "move-128",
];
/// The engines of `fill`, the limit first.
pub const FILL: [&str; 4] = ["read", "alias", "write", "copy"];
/// The engines of `evict`.
pub const EVICT: [&str; 3] = ["zap", "punch", "punch-unmapped"];

/// Memory for the copies that `install` makes, in lengths of the memory that it maps.
pub const INSTALL_COPIES: u64 = 3;

const CHUNK_BYTES: usize = 1 << 20;

/// How an engine answers faults, and in runs of how many pages; `None`: nobody is asked.
fn answered(engine: &str) -> Result<Option<(Way, usize)>> {
    let run = |way, pages: &str| -> Result<_> {
        Ok(Some((way, pages.parse().with_context(|| format!("no engine {engine}"))?)))
    };
    match engine.split_once('-') {
        None => Ok(None),
        Some(("native", _)) => Ok(Some((Way::Native, 1))),
        Some(("continue", pages)) => run(Way::Continue, pages),
        Some(("copy", pages)) => run(Way::Copy, pages),
        Some(("move", pages)) => run(Way::Move, pages),
        _ => bail!("no engine {engine}"),
    }
}

/// Whether this system lets the engine of `install` run. The error says why not.
pub fn check(engine: &str) -> Result<()> {
    answered(engine)?.map_or(Ok(()), |(way, _)| way.check())
}

/// A memory file, all its pages there.
#[derive(Debug)]
struct Memory {
    file: File,
    bytes: usize,
}

impl Memory {
    fn empty(bytes: usize) -> Result<Self> {
        let file = memfd_create("pinfold-bench", MemfdFlags::CLOEXEC)
            .context("cannot make a memory file (memfd_create)")?;
        let file = File::from(file);
        file.set_len(bytes as u64).context("cannot size a memory file")?;
        Ok(Memory { file, bytes })
    }

    fn numbered(bytes: usize) -> Result<Self> {
        let memory = Self::empty(bytes)?;
        let mut chunk = vec![0; CHUNK_BYTES.min(bytes)];
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            let part = &mut chunk[..CHUNK_BYTES.min(bytes - at)];
            number_pages(at as u64, part);
            memory.file.write_all_at(part, at as u64).context("cannot fill a memory file")?;
        }
        Ok(memory)
    }

    /// Maps it, shared; to be read, or to be written as well.
    fn map(&self, written: bool) -> Result<MmapRaw> {
        let mut options = MmapOptions::new();
        let map = options.len(self.bytes);
        let map = if written { map.map_raw(&self.file) } else { map.map_raw_read_only(&self.file) };
        map.context("cannot map a memory file")
    }

    /// Bytes of it that take memory.
    fn held_bytes(&self) -> Result<u64> {
        Ok(self.file.metadata().context("cannot look at a memory file")?.blocks() * 512)
    }

    fn punch(&self, at: usize, bytes: usize) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, at as u64, bytes as u64)
            .context("cannot punch a hole into a memory file (fallocate)")
    }
}

/// Private memory in single pages.
fn private(bytes: usize) -> Result<MmapMut> {
    let memory = MmapMut::map_anon(bytes).context("no memory for the pages")?;
    // Refused by kernels that have no huge pages.
    let _ = memory.advise(Advice::NoHugePage);
    Ok(memory)
}

/// The case `install`.
#[derive(Debug)]
pub struct Install {
    memory: Memory,
    orders: [Vec<u32>; 2],
}

impl Install {
    /// With so many bytes to map: whole pages.
    pub fn new(bytes: u64) -> Result<Self> {
        let pages = u32::try_from(bytes / PAGE_BYTES as u64).context("too much to map")?;
        let memory = Memory::numbered(bytes as usize)?;
        Ok(Install { memory, orders: Order::ALL.map(|order| order.of(pages)) })
    }

    /// Nanoseconds a page to touch all of a new mapping.
    pub fn sample(&self, engine: &str, order: Order, threads: usize) -> Result<f64> {
        let pages = &self.orders[order as usize];
        let touch = |map: &MmapRaw| {
            // SAFETY: the mapping is as long as there are pages, and nobody writes to what it shows
            // before it is gone.
            unsafe { Numbered::new(map.as_ptr()) }.touch_all(pages, threads)
        };
        let Some((way, run_pages)) = answered(engine)? else {
            let map = self.memory.map(false)?;
            if engine == "mapped" {
                touch(&map)?;
            }
            return touch(&map);
        };
        let served = |map: &MmapRaw, source: Option<&MmapMut>| {
            let served = Served::new(map, way, run_pages, source)?;
            let taken = touch(map);
            served.check()?;
            taken
        };
        if matches!(way, Way::Native | Way::Continue) {
            return served(&self.memory.map(false)?, None);
        }
        // Into private memory: `UFFDIO_MOVE` has no other.
        let mut source = private(self.memory.bytes)?;
        number_pages(0, &mut source);
        served(&MmapRaw::from(private(self.memory.bytes)?), Some(&source))
    }
}

/// The processor time of this thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.cast_unsigned() as u32)
}

/// What a page cost.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// In time.
    pub ns: f64,
    /// In processor time of the thread.
    pub cpu_ns: f64,
}

/// Has `each` handle the runs of so many pages of so many bytes, until all are handled or the time
/// is over: one run at least. Returns what a page cost, and how many bytes were handled.
fn cost_of_runs(
    bytes: usize,
    run_pages: usize,
    length: Duration,
    mut each: impl FnMut(usize, usize) -> Result<()>,
) -> Result<(Cost, usize)> {
    let run_bytes = run_pages * PAGE_BYTES;
    let (begun, cpu_begun, mut done) = (Instant::now(), cpu_time(), 0);
    for at in (0..=bytes - run_bytes).step_by(run_bytes) {
        each(at, run_bytes)?;
        done += run_bytes;
        if begun.elapsed() >= length {
            break;
        }
    }
    let (took, cpu_took) = (begun.elapsed(), cpu_time().saturating_sub(cpu_begun));
    let of_page = |time: Duration| time.as_nanos() as f64 / (done / PAGE_BYTES) as f64;
    Ok((Cost { ns: of_page(took), cpu_ns: of_page(cpu_took) }, done))
}

/// The case `fill`: pages of a file on a disk get into a memory file.
#[derive(Debug)]
pub struct Fill {
    direct: File,
    bytes: usize,
}

impl Fill {
    /// From the file there, whose pages are [numbered](number_pages).
    pub fn new(path: &Path, bytes: u64) -> Result<Self> {
        Ok(Fill { direct: open_direct(path)?, bytes: bytes as usize })
    }

    /// What a page costs in requests of this many.
    pub fn sample(&self, engine: &str, run_pages: usize, length: Duration) -> Result<Cost> {
        let memory = Memory::empty(self.bytes)?;
        let mut alias = memory.map(true)?;
        let view = memory.map(false)?;
        let filled = if engine == "copy" { Some(Filled::new(&view)?) } else { None };
        let mut arena = Aligned::zeroed(CHUNK_BYTES);
        // The cache's own memory was touched long ago.
        arena.bytes_mut().fill(1);
        let read = |buf: &mut [u8], at: usize| -> Result<()> {
            self.direct.read_exact_at(buf, at as u64).context("cannot read the file of `fill`")
        };
        let (cost, done) = cost_of_runs(self.bytes, run_pages, length, |at, run_bytes| {
            if engine == "alias" {
                return read(part_mut(&mut alias, at, run_bytes), at);
            }
            // Requests are parts of it.
            let buf = &mut arena.bytes_mut()[at % CHUNK_BYTES..][..run_bytes];
            read(buf, at)?;
            if let Some(filled) = &filled {
                filled.put(at, buf)?;
            } else if engine == "write" {
                memory.file.write_all_at(buf, at as u64).context("cannot fill a memory file")?;
            }
            Ok(())
        })?;
        if engine != "read" {
            let numbers: Vec<u32> = (0..(done / PAGE_BYTES) as u32).collect();
            // SAFETY: the alias is longer, and nobody writes to it any more.
            unsafe { Numbered::new(alias.as_ptr()) }.touch_all(&numbers, 1)?;
        }
        Ok(cost)
    }
}

/// A part of a mapping.
fn part_mut(map: &mut MmapRaw, at: usize, bytes: usize) -> &mut [u8] {
    assert!(at + bytes <= map.len());
    let begin = map.as_mut_ptr().wrapping_add(at);
    // SAFETY: it lies inside of the mapping, which can be written, and which is borrowed with it.
    unsafe { std::slice::from_raw_parts_mut(begin, bytes) }
}

/// The case `evict`: pages that are mapped are taken away.
#[derive(Debug)]
pub struct Evict {
    bytes: usize,
    order: Vec<u32>,
}

impl Evict {
    /// With so many bytes to take away: whole pages.
    pub fn new(bytes: u64) -> Result<Self> {
        let pages = u32::try_from(bytes / PAGE_BYTES as u64).context("too much to map")?;
        Ok(Evict { bytes: bytes as usize, order: Order::Sequential.of(pages) })
    }

    /// Nanoseconds a page, in runs of this many. All threads but one do nothing but run: so that
    /// the processors that they are on have to be told.
    pub fn sample(&self, engine: &str, run_pages: usize, threads: usize) -> Result<f64> {
        let memory = Memory::numbered(self.bytes)?;
        let map = memory.map(false)?;
        if engine != "punch-unmapped" {
            // SAFETY: it is as long, and nobody writes to it before all are read.
            unsafe { Numbered::new(map.as_ptr()) }.touch_all(&self.order, 1)?;
        }
        let (over, cpus) = (AtomicBool::new(false), cpus());
        let held = memory.held_bytes()?;
        let (cost, done) = std::thread::scope(|scope| {
            for worker in 1..threads {
                let (over, cpus) = (&over, &cpus);
                scope.spawn(move || {
                    let _ = pin_to_cpu(worker, cpus);
                    // Relaxed: only to stop.
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let taken = scope.spawn(|| {
                pin_to_cpu(0, &cpus)?;
                cost_of_runs(self.bytes, run_pages, Duration::MAX, |at, run_bytes| match engine {
                    "zap" => {
                        // SAFETY: the pages stay in the memory file.
                        unsafe {
                            map.unchecked_advise_range(UncheckedAdvice::DontNeed, at, run_bytes)
                        }
                        .context("cannot unmap pages (madvise)")
                    }
                    _ => memory.punch(at, run_bytes),
                })
            });
            let taken = taken.join().ok().context("the thread that evicts panicked");
            over.store(true, Ordering::Relaxed);
            taken?
        })?;
        let gone = held - memory.held_bytes()?;
        let expected = if engine == "zap" { 0 } else { done as u64 };
        ensure!(
            gone == expected,
            "{engine} took {gone} bytes out of the memory file, not {expected}"
        );
        Ok(cost.ns)
    }
}
