//! The cache beside `pread` and `mmap`, briefly: three things, each engine in turns. `pinfold
//! bench` measures the same with care.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use memmap2::Mmap;
use serde::Serialize;

use super::subject::{Subject, bytes_bar};
use crate::bench::engines::{Blocks, Bytes, Opened, Reader, mapping_of, options};
use crate::bench::report::median;
use crate::bench::scratch::{forget, open_plain};
use crate::bench::shared::{Board, SharedBoard};
use crate::bench::workers::{self, Work};

/// In the order of the table.
pub(super) const ENGINES: [&str; 3] = ["pinfold", "pread", "mmap"];

const ROUNDS: usize = 3;
const CHUNK_BYTES: usize = 1 << 20;
/// Reading front to back stops after as long: of a very large file only the beginning is timed.
const SCAN_TIME_MAX: Duration = Duration::from_secs(4);

/// What was measured of each of [`ENGINES`].
#[derive(Debug, Default, Serialize)]
pub(super) struct Figures {
    /// Nothing in memory at first.
    pub(super) front_to_back_mib_per_s: [f64; 3],
    /// In a range that the cache holds.
    pub(super) random_64_per_s: [f64; 3],
    /// The same.
    pub(super) random_4096_per_s: [f64; 3],
    /// How long that range is.
    pub(super) resident_bytes: u64,
    /// Of the file, after reading it front to back; `None` if the kernel does not tell.
    pub(super) memory_bytes: [Option<u64>; 3],
}

/// Measures everything.
pub(super) fn all(subject: &Subject, budget_bytes: u64, seconds: f64) -> Result<Figures> {
    let mut figures = Figures::default();
    let bar = bytes_bar("timing it front to back", subject.bytes * (ROUNDS * ENGINES.len()) as u64);
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (at, engine) in ENGINES.into_iter().enumerate() {
            let (rate, memory_bytes) = front_to_back(engine, subject, budget_bytes)?;
            samples[at].push(rate);
            figures.memory_bytes[at] = memory_bytes;
            bar.inc(subject.bytes);
        }
    }
    bar.finish_and_clear();
    figures.front_to_back_mib_per_s = samples.map(|samples| median(&samples));
    figures.resident_bytes = resident_bytes(subject.bytes, budget_bytes);
    for block_bytes in [64, 4096] {
        if figures.resident_bytes >= block_bytes {
            let rates =
                random(subject, budget_bytes, figures.resident_bytes, block_bytes, seconds)?;
            match block_bytes {
                64 => figures.random_64_per_s = rates,
                _ => figures.random_4096_per_s = rates,
            }
        }
    }
    Ok(figures)
}

/// Half of the budget: what the cache surely holds. Whole pages of the file, or all of it.
fn resident_bytes(file_bytes: u64, budget_bytes: u64) -> u64 {
    let half = budget_bytes / 2 / 4096 * 4096;
    file_bytes.min(half)
}

fn open(engine: &str, subject: &Subject, budget_bytes: u64) -> Result<Opened> {
    let paths = [subject.path.clone()];
    Ok(match engine {
        "pread" => Opened::Pread(paths.into()),
        "mmap" => Opened::Mmap(vec![mapping_of(&subject.path)?]),
        _ => Opened::cached(options(engine, budget_bytes)?, &paths)?,
    })
}

/// MiB per second, and the memory that the file's pages then take.
fn front_to_back(engine: &str, subject: &Subject, budget_bytes: u64) -> Result<(f64, Option<u64>)> {
    let plain = open_plain(&subject.path)?;
    forget(&plain)?;
    match open(engine, subject, budget_bytes)? {
        Opened::Mmap(maps) => Ok((scan(&Bytes(&maps[0]))?, kernel_bytes(&maps[0], &plain)?)),
        Opened::Pinfold(cache, files) => {
            let rate = scan(&files[0])?;
            let stats = cache.stats();
            Ok((rate, Some(stats.resident_bytes + stats.metadata_bytes)))
        }
        _ => {
            let rate = scan(&plain)?;
            Ok((rate, kernel_bytes(&mapping_of(&subject.path)?, &plain)?))
        }
    }
}

fn scan(reader: &impl Reader) -> Result<f64> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let begun = Instant::now();
    let mut offset = 0;
    // Ends: each turn gets forward, or is the last.
    while begun.elapsed() < SCAN_TIME_MAX {
        match reader.read(black_box(&mut chunk), offset)? {
            0 => break,
            bytes => offset += bytes as u64,
        }
    }
    Ok(offset as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64())
}

/// What the kernel's page cache holds of a file; the kernel reports it only to processes that may
/// write to the file.
fn kernel_bytes(map: &Mmap, file: &std::fs::File) -> Result<Option<u64>> {
    use std::os::unix::fs::MetadataExt;
    let user = rustix::process::geteuid();
    if !user.is_root() && file.metadata()?.uid() != user.as_raw() {
        return Ok(None);
    }
    let page_bytes = rustix::param::page_size();
    let mut pages = vec![0_u8; map.len().div_ceil(page_bytes)];
    // SAFETY: the range is that of a mapping that lives, and `pages` has a byte for each page.
    let done = unsafe { libc::mincore(map.as_ptr() as *mut _, map.len(), pages.as_mut_ptr()) };
    ensure!(
        done == 0,
        "cannot ask what the kernel holds (mincore): {}",
        std::io::Error::last_os_error()
    );
    let held = pages.iter().filter(|&page| page & 1 == 1).count();
    Ok(Some((held * page_bytes) as u64))
}

/// One thread that reads blocks of a range at random.
struct Random<'a> {
    opened: &'a Opened,
    blocks: Blocks,
}

impl Work for Random<'_> {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        self.opened.read_blocks(0, self.blocks, board, worker)
    }
}

fn random(
    subject: &Subject,
    budget_bytes: u64,
    below_bytes: u64,
    block_bytes: u64,
    seconds: f64,
) -> Result<[f64; 3]> {
    let mut opened = Vec::new();
    for engine in ENGINES {
        let one = open(engine, subject, budget_bytes)?;
        one.warm(0, below_bytes)?;
        opened.push(one);
    }
    let shared = SharedBoard::new()?;
    let length = Duration::from_secs_f64(seconds);
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (samples, opened) in samples.iter_mut().zip(&opened) {
            let blocks =
                Blocks { block_bytes: block_bytes as usize, random_below: Some(below_bytes) };
            let work = Random { opened, blocks };
            samples.push(workers::sample_threads(1, &work, shared.board(), length)?.ops_per_s);
        }
    }
    Ok(samples.map(|samples| median(&samples)))
}
