//! The case `swap` of `pinfold bench fault`: anonymous memory that is read, stored to, and paged
//! out.
//!
//! Half of the threads go through the memory again and again: they check each page, and store to
//! every fourth. The others page out a part each (`MADV_PAGEOUT`, or `AnonMap::page_out`), again
//! and again, at a rate that is the same for all engines: else the one that is fastest at paging
//! out has the most to bring back. One more thread maps and unmaps a MiB, and rests, as in
//! `startup`.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memmap2::{MmapOptions, MmapRaw};
use pinfold::{AnonMap, Cache, Options, Space};

use super::fault_job::{Figure, Job, Outcome, figure};
use super::fault_maps::{Serving, counted, space};
use super::fault_race::{LOOK, Race, longest_write, race, slowest_over_mean};
use super::fault_touch::PAGE_BYTES;
use super::limited::CacheFigures;
use crate::say;

/// What the thread maps and unmaps that does nothing else.
const WRITER_BYTES: usize = 1 << 20;
/// How much is paged out by one call.
const PAGE_OUT_BYTES: usize = 1 << 20;
/// One page in so many is stored to in each round.
const STORED: usize = 4;
/// Two words of each page say which one it is; each thread has one of those between.
const WORDS: usize = PAGE_BYTES / size_of::<u64>();

/// Memory that can be paged out.
enum Memory {
    Kernel(MmapRaw),
    Pinfold(Cache, Space, AnonMap),
}

impl Memory {
    fn new(job: &Job, pinfold: Option<Serving<'_>>) -> Result<Self> {
        let bytes = job.file_bytes as usize;
        let Some(serving) = pinfold else { return Ok(Memory::Kernel(anonymous(bytes)?)) };
        let options = Options {
            swap_dir: job.dir.clone(),
            swap_bytes: 2 * job.file_bytes,
            ..Options::new(job.budget_bytes)
        };
        let cache = Cache::new(options)?;
        let space = space(&cache, serving)?;
        let map = space.map_anon(bytes)?;
        Ok(Memory::Pinfold(cache, space, map))
    }

    fn word(&self, page: usize, word: usize) -> &AtomicU64 {
        let (start, bytes) = match self {
            Memory::Kernel(map) => (map.as_mut_ptr(), map.len()),
            Memory::Pinfold(.., map) => (map.as_mut_ptr(), map.len()),
        };
        let at = page * PAGE_BYTES + word * size_of::<u64>();
        assert!(at + size_of::<u64>() <= bytes, "page {page} is not there");
        // SAFETY: in the mapping, aligned, and everybody uses it by atomics alone.
        unsafe { AtomicU64::from_ptr(start.wrapping_add(at).cast()) }
    }

    fn page_out(&self, range: Range<usize>) -> Result<()> {
        match self {
            Memory::Kernel(map) => {
                let at = map.as_mut_ptr().wrapping_add(range.start).cast();
                // SAFETY: a part of the mapping, whose bytes stay.
                match unsafe { libc::madvise(at, range.len(), libc::MADV_PAGEOUT) } {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()).context("cannot page out (MADV_PAGEOUT)"),
                }
            }
            Memory::Pinfold(.., map) => map.page_out(range).map(drop).map_err(Into::into),
        }
    }

    fn map_and_unmap(&self) -> Result<()> {
        match self {
            Memory::Kernel(_) => drop(anonymous(WRITER_BYTES)?),
            Memory::Pinfold(_, space, _) => drop(space.map_anon(WRITER_BYTES)?),
        }
        Ok(())
    }
}

fn anonymous(bytes: usize) -> Result<MmapRaw> {
    let map = MmapOptions::new().len(bytes).map_anon().context("cannot map anonymous memory")?;
    let map = MmapRaw::from(map);
    // SAFETY: the mapping; it changes how it is backed. Own memory has no huge pages either.
    let _ = unsafe { libc::madvise(map.as_mut_ptr().cast(), map.len(), libc::MADV_NOHUGEPAGE) };
    Ok(map)
}

/// Keeps a thread from paging out more each second than it should, or does not, if that is 0. What
/// the thread is late with, it leaves out.
struct Pace {
    bytes_per_s: u64,
    next: Instant,
}

impl Pace {
    fn new(bytes_per_s: u64) -> Self {
        Pace { bytes_per_s, next: Instant::now() }
    }

    /// Waits until it is time for so many more bytes, or the race is over.
    fn wait(&mut self, bytes: usize, race: &Race) {
        if self.bytes_per_s == 0 {
            return;
        }
        // Ends: the time passes.
        while !race.over() {
            let left = self.next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK));
        }
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        self.next = self.next.max(Instant::now()) + takes;
    }
}

/// What a thread did.
enum Part {
    Touched(u64),
    PagedOut(u64),
    Wrote(Duration),
}

/// Takes the sample.
pub fn outcome(job: &Job, pinfold: Option<Serving<'_>>) -> Result<Outcome> {
    let memory = Memory::new(job, pinfold)?;
    let (threads, pages) = (job.threads, job.file_bytes as usize / PAGE_BYTES);
    ensure!(threads <= WORDS - 2, "{threads} threads: a page has words for {}", WORDS - 2);
    for page in 0..pages {
        memory.word(page, 0).store(page as u64 + 1, Ordering::Relaxed);
        memory.word(page, WORDS - 1).store(!(page as u64), Ordering::Relaxed);
    }
    let ran = race(2 * threads + 1, job.length(), |worker, race| {
        if worker == 2 * threads {
            return longest_write(race, |_| memory.map_and_unmap()).map(Part::Wrote);
        }
        let mut done = 0;
        if worker >= threads {
            let part = job.file_bytes as usize / threads / PAGE_BYTES * PAGE_BYTES;
            let start = (worker - threads) * part;
            let mut pace = Pace::new(job.page_out_bytes.div_ceil(threads as u64));
            while !race.over() {
                for at in (start..start + part).step_by(PAGE_OUT_BYTES) {
                    let end = (at + PAGE_OUT_BYTES).min(start + part);
                    pace.wait(end - at, race);
                    if race.over() {
                        break;
                    }
                    memory.page_out(at..end)?;
                    done += ((end - at) / PAGE_BYTES) as u64;
                }
            }
            return Ok(Part::PagedOut(done));
        }
        let mut round = 0;
        // They begin at different places.
        let first = worker * pages / threads;
        while !race.over() {
            for n in 0..pages {
                let page = (first + n) % pages;
                check(&memory, page, worker, round)?;
                if race.over() {
                    break;
                }
                done += 1;
            }
            round += 1;
        }
        Ok(Part::Touched(done))
    })?;
    let (mut touched, mut paged_out, mut longest) = (Vec::new(), 0, Duration::ZERO);
    for part in ran.each {
        match part {
            Part::Touched(done) => touched.push(done),
            Part::PagedOut(done) => paged_out += done,
            Part::Wrote(wait) => longest = wait,
        }
    }
    let per_s = |done: u64| done as f64 / pages as f64 / ran.took.as_secs_f64();
    let mut figures = vec![
        figure("rounds_per_s", per_s(touched.iter().sum())),
        figure("slowest_over_mean", slowest_over_mean(&touched)),
        figure("pageout_rounds_per_s", per_s(paged_out)),
        figure("writer_longest_us", longest.as_secs_f64() * 1e6),
    ];
    let cache = match &memory {
        Memory::Kernel(_) => None,
        Memory::Pinfold(cache, space, _) => {
            figures.extend::<Vec<Figure>>(counted(&space.stats()));
            Some(CacheFigures::of(cache))
        }
    };
    Ok(Outcome { figures, cache })
}

/// Checks a page in the thread's round of that number, and stores to it if it is its turn. What a
/// thread has stored is the number of its round.
fn check(memory: &Memory, page: usize, worker: usize, round: u64) -> Result<()> {
    let [first, last] = [0, WORDS - 1].map(|word| memory.word(page, word).load(Ordering::Relaxed));
    ensure!(
        (first, last) == (page as u64 + 1, !(page as u64)),
        "page {page} reads as {first:x} and {last:x}"
    );
    if page.is_multiple_of(STORED) {
        let own = memory.word(page, 1 + worker);
        let stored = own.load(Ordering::Relaxed);
        ensure!(stored == round, "thread {worker}'s store {round} to page {page} is {stored}");
        own.store(round + 1, Ordering::Relaxed);
    }
    Ok(())
}

/// A swap file of the kernel's, which is switched off by the drop.
#[derive(Debug)]
pub struct KernelSwap {
    path: tempfile::TempPath,
}

/// Where a swap file's header is, and what is in it: a version, and the number of its last page.
const HEADER_AT: u64 = 1024;
const SIGNATURE: &[u8] = b"SWAPSPACE2";

impl KernelSwap {
    /// Switches one of this size on, in `dir`. Takes root.
    pub fn on(dir: &Path, bytes: u64) -> Result<Self> {
        let mut file = tempfile::NamedTempFile::new_in(dir).context("cannot make a swap file")?;
        let chunk = vec![0; 1 << 20];
        let mut left = bytes;
        // Ends: each turn writes some of what is left. A swap file has no holes.
        while left > 0 {
            let now = left.min(chunk.len() as u64) as usize;
            file.write_all(&chunk[..now]).context("cannot write a swap file")?;
            left -= now as u64;
        }
        write_header(file.as_file(), bytes).context("cannot write a swap file")?;
        file.as_file().sync_all().context("cannot write a swap file")?;
        let path = file.into_temp_path();
        let name = c_path(&path)?;
        // SAFETY: a path that ends with a zero.
        match unsafe { libc::swapon(name.as_ptr(), 0) } {
            0 => Ok(KernelSwap { path }),
            _ => Err(io::Error::last_os_error()).context("the kernel has no swap here (swapon)"),
        }
    }
}

fn write_header(file: &File, bytes: u64) -> io::Result<()> {
    let pages = u32::try_from(bytes / PAGE_BYTES as u64).map_err(io::Error::other)?;
    let mut header = 1_u32.to_ne_bytes().to_vec();
    header.extend((pages - 1).to_ne_bytes());
    file.write_all_at(&header, HEADER_AT)?;
    file.write_all_at(SIGNATURE, (PAGE_BYTES - SIGNATURE.len()) as u64)
}

fn c_path(path: &Path) -> Result<std::ffi::CString> {
    std::ffi::CString::new(path.as_os_str().as_bytes()).context("a path with a zero in it")
}

impl Drop for KernelSwap {
    fn drop(&mut self) {
        let Ok(name) = c_path(&self.path) else { return };
        // SAFETY: as above.
        if unsafe { libc::swapoff(name.as_ptr()) } != 0 {
            let why = io::Error::last_os_error();
            say::tell(format_args!(
                "cannot switch off the swap file {}: {why}",
                self.path.display()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long it takes to page out `mib` MiB, by pieces of one.
    fn paced(bytes_per_s: u64, mib: usize) -> Duration {
        let begun = Instant::now();
        race(1, Duration::from_secs(600), |_, race| {
            let mut pace = Pace::new(bytes_per_s);
            (0..mib).for_each(|_| pace.wait(PAGE_OUT_BYTES, race));
            Ok(())
        })
        .unwrap();
        begun.elapsed()
    }

    #[test]
    fn no_thread_pages_out_faster_than_it_should() {
        // The first piece waits for nothing.
        assert!(paced(100 << 20, 11) >= Duration::from_millis(100));
        assert!(paced(0, 1 << 20) < Duration::from_secs(300), "without a rate, it waits");
    }

    #[test]
    fn a_store_that_is_lost_is_found() {
        let memory = Memory::Kernel(anonymous(8 * PAGE_BYTES).unwrap());
        for page in 0..8 {
            memory.word(page, 0).store(page as u64 + 1, Ordering::Relaxed);
            memory.word(page, WORDS - 1).store(!(page as u64), Ordering::Relaxed);
        }
        for round in 0..3 {
            for page in 0..8 {
                check(&memory, page, 2, round).unwrap();
            }
        }
        memory.word(4, 3).store(2, Ordering::Relaxed);
        assert!(
            check(&memory, 4, 2, 3).unwrap_err().to_string().contains("store 3 to page 4 is 2")
        );
        memory.word(5, 0).store(5, Ordering::Relaxed);
        assert!(check(&memory, 5, 2, 3).unwrap_err().to_string().contains("page 5 reads as 5"));
    }
}
