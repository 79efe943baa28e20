//! The ways to map a file that `pinfold bench fault` compares: the kernel's own mmap and the cache.
//!
//! Here: opening files with one of them, mapping, reading what is mapped, counters. Not here: what
//! is read (`fault_child.rs`).

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use memmap2::{Advice, MmapOptions, MmapRaw};
use pinfold::{
    Cache, FaultIo, FaultLock, Hint, LockWaits, Map, Options, Space, SpaceOptions, SpaceStats,
};
use pinfold_testing::pattern::CELL_BYTES;

use super::fault_job::{Figure, figure};
use super::fault_touch::{Numbered, PAGE_BYTES};
use super::scratch::open_plain;

/// Names of the locks and of what is done with them during I/O, as on the command line.
pub const LOCKS: [&str; 2] = ["vma", "space"];
/// As above.
pub const IOS: [&str; 2] = ["drop", "hold"];

/// Files that can be mapped.
#[derive(Debug)]
pub enum Mapper {
    /// By mmap(2).
    Kernel(Vec<File>),
    /// By a space of a cache.
    Pinfold(Cache, Space, Vec<pinfold::File>),
}

/// A mapping of a part of a file.
#[derive(Debug)]
pub enum Mapped {
    /// By mmap(2).
    Kernel(MmapRaw),
    /// By a space.
    Pinfold(Map),
}

/// Lengths of waits, as [`LockWaits::by_decade`] has them.
pub const DECADES: [&str; 8] =
    ["<1us", "<10us", "<100us", "<1ms", "<10ms", "<100ms", "<1s", ">=1s"];

/// How a space serves faults: its locks, its policy of I/O, and its handler threads.
#[derive(Clone, Copy, Debug)]
pub struct Serving<'a> {
    pub lock: &'a str,
    pub io: &'a str,
    pub handlers: usize,
}

/// The space of a cache that serves faults like this.
pub fn space(cache: &Cache, serving: Serving<'_>) -> Result<Space> {
    let lock = match serving.lock {
        "vma" => FaultLock::Vma,
        "space" => FaultLock::Space,
        other => bail!("no lock {other}"),
    };
    let io = match serving.io {
        "drop" => FaultIo::Drop,
        "hold" => FaultIo::Hold,
        other => bail!("no policy {other} of I/O"),
    };
    Ok(Space::with(cache, SpaceOptions { lock, io, handlers: serving.handlers })?)
}

/// Whether this system lets the cache map files. The error says why not.
pub fn check() -> Result<()> {
    let cache = Cache::new(Options::new(16 << 20))?;
    Space::new(&cache, 0)?;
    Ok(())
}

impl Mapper {
    /// Opens the files: by the kernel, or with a cache of this budget whose space serves faults
    /// like this.
    pub fn open(
        paths: &[PathBuf],
        budget_bytes: u64,
        pinfold: Option<Serving<'_>>,
    ) -> Result<Self> {
        let Some(serving) = pinfold else {
            let files = paths.iter().map(|path| open_plain(path)).collect::<Result<_>>()?;
            return Ok(Mapper::Kernel(files));
        };
        let cache = Cache::new(Options::new(budget_bytes))?;
        let space = space(&cache, serving)?;
        let files = paths.iter().map(|path| cache.open(path)).collect::<pinfold::Result<_>>()?;
        Ok(Mapper::Pinfold(cache, space, files))
    }

    /// Maps a part of the file of this number: whole pages.
    pub fn map(&self, file: usize, range: Range<u64>) -> Result<Mapped> {
        Ok(match self {
            Mapper::Kernel(files) => {
                let bytes = (range.end - range.start) as usize;
                let mut options = MmapOptions::new();
                let map = options.offset(range.start).len(bytes).map_raw_read_only(&files[file]);
                Mapped::Kernel(map.context("cannot map a file")?)
            }
            Mapper::Pinfold(_, space, files) => {
                Mapped::Pinfold(space.map_file(&files[file], range)?)
            }
        })
    }

    /// The cache, if this is one.
    pub fn cache(&self) -> Option<&Cache> {
        match self {
            Mapper::Kernel(_) => None,
            Mapper::Pinfold(cache, ..) => Some(cache),
        }
    }

    /// Faults so far whose page had to be read; none are known of the kernel's.
    pub fn absent(&self) -> u64 {
        match self {
            Mapper::Kernel(_) => 0,
            Mapper::Pinfold(_, space, _) => space.stats().absent,
        }
    }

    /// What its space has counted.
    pub fn counted(&self) -> Vec<Figure> {
        match self {
            Mapper::Kernel(_) => Vec::new(),
            Mapper::Pinfold(_, space, _) => counted(&space.stats()),
        }
    }
}

impl Mapped {
    /// Where it begins.
    pub fn as_ptr(&self) -> *const u8 {
        match self {
            Mapped::Kernel(map) => map.as_ptr(),
            Mapped::Pinfold(map) => map.as_ptr(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Mapped::Kernel(map) => map.len(),
            Mapped::Pinfold(map) => map.len(),
        }
    }

    /// The 64 bytes there: by plain loads, which may fault.
    #[inline(always)]
    pub fn cell(&self, at: usize) -> [u8; CELL_BYTES] {
        assert!(at + CELL_BYTES <= self.bytes(), "{at} is not mapped");
        // SAFETY: it is mapped; the bytes of the file do not change, as it has no name, and nobody
        // writes to it.
        unsafe { self.as_ptr().wrapping_add(at).cast::<[u8; CELL_BYTES]>().read() }
    }

    /// Touches pages of a file whose pages have their numbers; returns the nanoseconds a page, as
    /// [`Numbered::touch_all`] does.
    pub fn touch_all(&self, pages: &[u32], threads: usize) -> Result<f64> {
        let end = pages.iter().max().map_or(0, |&last| (last as usize + 1) * PAGE_BYTES);
        assert!(end <= self.bytes(), "{end} is not mapped");
        // SAFETY: as above; it stays mapped meanwhile.
        unsafe { Numbered::new(self.as_ptr()) }.touch_all(pages, threads)
    }

    /// Says that it will be read at random.
    pub fn at_random(&self) -> Result<()> {
        match self {
            Mapped::Kernel(map) => map.advise(Advice::Random).context("cannot advise a mapping"),
            Mapped::Pinfold(map) => Ok(map.advise(0..map.len(), Hint::Random)?),
        }
    }

    /// Unmaps it.
    pub fn unmap(self) {
        match self {
            Mapped::Kernel(map) => drop(map),
            Mapped::Pinfold(map) => drop(map),
        }
    }
}

/// What a space counted.
pub fn counted(stats: &SpaceStats) -> Vec<Figure> {
    let percent = |part: u64, of: u64| if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 };
    let mut figures = vec![
        figure("faults", stats.faults as f64),
        figure("retries", stats.retries as f64),
        figure("retry_io_miss", percent(stats.retry_io_miss, stats.retries)),
        figure("retry_space_lock", stats.locks.retries as f64),
    ];
    let locks = [
        ("vma", "readers", &stats.locks.map_readers),
        ("vma", "writers", &stats.locks.map_writers),
        ("space", "readers", &stats.locks.space_readers),
        ("space", "writers", &stats.locks.space_writers),
    ];
    for (of, by, waits) in locks {
        let LockWaits { acquired, waited, wait_ns, by_decade, .. } = *waits;
        let whose = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut add = |metric: &str, wait: Option<&str>, value: f64| {
            let mut of = vec![whose("lock_of", of), whose("by", by)];
            of.extend(wait.map(|wait| whose("wait", wait)));
            figures.push(Figure { metric: metric.to_owned(), of, value });
        };
        add("lock_acquired", None, acquired as f64);
        add("lock_waits", None, waited as f64);
        add("lock_wait_us", None, wait_ns as f64 / 1e3);
        for (decade, waits) in DECADES.iter().zip(by_decade) {
            add("lock_waits_of_length", Some(*decade), waits as f64);
        }
    }
    figures
}
