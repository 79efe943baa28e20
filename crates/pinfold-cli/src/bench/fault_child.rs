//! One sample of `pinfold bench fault` with a cache, taken by a process of its own: it enters the
//! memory control group, opens its engine and measures. `fault_ground.rs` starts it.
//!
//! Files have contents that know where they belong (`pinfold_testing::pattern`), and every page
//! that is touched is checked by 64 bytes of it. In the case `warm`, where a page takes less time
//! than that takes, pages hold their numbers, and the sum of these is checked.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use pinfold_testing::pattern::{CELL_BYTES, Pattern};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::fault_job::{Engine, Figure, IMAGE_MAP_BYTES, Job, Outcome, SEED, Task, figure};
use super::fault_maps::{Mapped, Mapper, Serving};
use super::fault_race::{longest_write, race, slowest_over_mean};
use super::fault_touch::{Order, PAGE_BYTES};
use super::limited::{self, CacheFigures, WARM_UP_WORKERS, numbers};
use super::ranks::Ranks;
use super::scratch::{Aligned, open_direct};
use super::shared::{Board, SharedBoard};
use super::times::Times;
use super::workers::{self, Work};
use super::{fault_ground, fault_swap};

/// The most bytes of a direct read that shows what the device can do. All threads' buffers together
/// are no more than the budget, too.
const DIRECT_BYTES_MAX: u64 = 1 << 20;

/// The exponent of `zipf`.
const SKEW: f64 = 0.99;
/// `pinfold bench fault-child`: its arguments.
#[derive(Debug, Args)]
pub struct ChildArgs {
    /// A [`Job`] as JSON.
    job: String,
}

/// Takes the sample and writes what came of it to standard output.
pub fn run(args: &ChildArgs) -> Result<()> {
    let job: Job = serde_json::from_str(&args.job).context("not a job for a child of fault")?;
    limited::begin(job.group.as_deref())?;
    fault_ground::allow_descriptors()?;
    crate::say::print(serde_json::to_string(&job.outcome()?)?)?;
    Ok(())
}

impl Job {
    /// How long to measure.
    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    fn outcome(&self) -> Result<Outcome> {
        let pinfold = match &self.engine {
            Engine::Direct => {
                let figures = self.device()?;
                return Ok(Outcome { figures, cache: None });
            }
            Engine::Mapped | Engine::Kernel => None,
            Engine::Pinfold { lock, io, handlers } => {
                Some(Serving { lock, io, handlers: *handlers })
            }
        };
        if self.task == Task::Swap {
            return fault_swap::outcome(self, pinfold);
        }
        let mapper = Mapper::open(&self.paths, self.budget_bytes, pinfold)?;
        let mut figures = match self.task {
            Task::Warm(order) => self.warm(&mapper, order)?,
            Task::Random | Task::Zipf => {
                self.random(&Reads::Mapped(mapper.map(0, 0..self.file_bytes)?))?
            }
            Task::Thrash { data } => self.thrash(&mapper, data)?,
            Task::Startup => self.startup(&mapper)?,
            Task::Swap => bail!("it has no files"),
        };
        if !matches!(self.task, Task::Warm(_) | Task::Random | Task::Zipf) {
            figures.extend(mapper.counted());
        }
        Ok(Outcome { figures, cache: mapper.cache().map(CacheFigures::of) })
    }

    fn direct_bytes(&self) -> u64 {
        let share = self.budget_bytes / self.threads as u64;
        DIRECT_BYTES_MAX.min(share.next_multiple_of(PAGE_BYTES as u64))
    }

    /// What the device can do with the same amount, without any mapping.
    fn device(&self) -> Result<Vec<Figure>> {
        let at_once = self.direct_bytes();
        match self.task {
            Task::Random | Task::Zipf => self.random(&Reads::Direct),
            Task::Thrash { .. } => {
                let ran = race(self.threads, self.length(), |worker, race| {
                    let mut direct = Direct::new(&self.paths[worker], at_once)?;
                    let (mut at, mut pages) = (0, 0);
                    while !race.over() {
                        pages += direct.read(at, self.file_bytes)? / PAGE_BYTES as u64;
                        at = (at + at_once) % self.file_bytes.next_multiple_of(at_once);
                    }
                    Ok(pages)
                })?;
                Ok(self.rounds(&ran.each, ran.took))
            }
            Task::Startup => {
                let ran = race(self.threads, Duration::MAX, |worker, race| {
                    let mut direct = Direct::new(&self.paths[0], at_once)?;
                    let mut at = worker as u64 * at_once;
                    while at < self.file_bytes && !race.over() {
                        direct.read(at, self.file_bytes)?;
                        at += self.threads as u64 * at_once;
                    }
                    Ok(Instant::now())
                })?;
                Ok(vec![starts_per_s(ran.begun, ran.each.into_iter())])
            }
            Task::Warm(_) | Task::Swap => bail!("it needs no device"),
        }
    }

    /// The first pass brings the pages, the second shows what it costs to map them anew.
    fn warm(&self, mapper: &Mapper, order: Order) -> Result<Vec<Figure>> {
        let pages = (self.file_bytes / PAGE_BYTES as u64) as u32;
        let pass = |order: Order| {
            let (map, pages) = (mapper.map(0, 0..self.file_bytes)?, order.of(pages));
            if self.engine == Engine::Mapped {
                map.touch_all(&pages, 1)?;
            }
            let ns = map.touch_all(&pages, self.threads)?;
            map.unmap();
            Ok::<f64, anyhow::Error>(ns)
        };
        pass(Order::Sequential)?;
        let before = mapper.absent();
        let ns = pass(order)?;
        let absent = mapper.absent() - before;
        ensure!(absent == 0, "{absent} pages had to be read that were to be cached");
        Ok(vec![figure("ns_per_page", ns)])
    }

    fn random(&self, reads: &Reads) -> Result<Vec<Figure>> {
        if let Reads::Mapped(map) = reads {
            map.at_random()?;
        }
        let shared = SharedBoard::new()?;
        let pages = self.file_bytes / PAGE_BYTES as u64;
        let ranks = match self.task {
            Task::Zipf => Some(Ranks::new(pages, SKEW)?),
            _ => None,
        };
        let sample = |phase, threads, seconds: f64| -> Result<_> {
            let walk = Walk { job: self, reads, ranks, phase, times: Mutex::new(Times::new()) };
            let length = Duration::from_secs_f64(seconds);
            let taken = workers::sample_threads(threads, &walk, shared.board(), length)?;
            Ok((taken, walk.times.into_inner().unwrap_or_else(PoisonError::into_inner)))
        };
        if self.warm_up_seconds > 0.0 && matches!(reads, Reads::Mapped(_)) {
            sample(0, WARM_UP_WORKERS, self.warm_up_seconds)?;
        }
        let (taken, times) = sample(1, self.threads, self.seconds)?;
        let p99_ns = times.at_most_ns(0.99).context("nothing was read")?;
        let p99_us = Duration::from_nanos(p99_ns).as_secs_f64() * 1e6;
        Ok(vec![figure("ops_per_s", taken.ops_per_s), figure("p99_us", p99_us)])
    }

    fn thrash(&self, mapper: &Mapper, data: bool) -> Result<Vec<Figure>> {
        let ran = race(self.threads, self.length(), |worker, race| {
            let expects = Expects::of(worker, data);
            let mut pages = 0;
            loop {
                let map = mapper.map(worker, 0..self.file_bytes)?;
                for at in (0..self.file_bytes).step_by(PAGE_BYTES) {
                    expects.check(&map, 0, at)?;
                    if race.over() {
                        break;
                    }
                    pages += 1;
                }
                map.unmap();
                if race.over() {
                    return Ok(pages);
                }
            }
        })?;
        Ok(self.rounds(&ran.each, ran.took))
    }

    /// A round is all pages of one file. Pages are counted, so that a part of a round counts.
    fn rounds(&self, pages: &[u64], took: Duration) -> Vec<Figure> {
        let file_pages = (self.file_bytes / PAGE_BYTES as u64) as f64;
        let rounds = pages.iter().sum::<u64>() as f64 / file_pages;
        vec![
            figure("rounds_per_s", rounds / took.as_secs_f64()),
            figure("slowest_over_mean", slowest_over_mean(pages)),
        ]
    }

    fn startup(&self, mapper: &Mapper) -> Result<Vec<Figure>> {
        let maps = (self.file_bytes / IMAGE_MAP_BYTES) as usize;
        let range = |map: usize| {
            let begin = map as u64 * IMAGE_MAP_BYTES;
            begin..begin + IMAGE_MAP_BYTES
        };
        let image: Vec<Mapped> =
            (0..maps).map(|map| mapper.map(0, range(map))).collect::<Result<_>>()?;
        let mut pages = Order::Sequential.of((self.file_bytes / PAGE_BYTES as u64) as u32);
        pages.shuffle(&mut Pcg64Mcg::seed_from_u64(5));
        let left = AtomicUsize::new(self.threads);
        let expects = Expects::of(0, true);
        let ran = race(self.threads + 1, Duration::MAX, |worker, race| {
            if worker == self.threads {
                let longest = longest_write(race, |turn| {
                    mapper.map(0, range(turn % maps))?.unmap();
                    Ok(())
                })?;
                return Ok(Part::Wrote(longest));
            }
            for &page in pages.iter().skip(worker).step_by(self.threads) {
                if race.over() {
                    break;
                }
                let at = u64::from(page) * PAGE_BYTES as u64;
                let map = at / IMAGE_MAP_BYTES;
                expects.check(&image[map as usize], map * IMAGE_MAP_BYTES, at)?;
            }
            // Relaxed: only to stop.
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                race.end();
            }
            Ok(Part::Touched(Instant::now()))
        })?;
        image.into_iter().for_each(Mapped::unmap);
        let (mut ends, mut longest) = (Vec::new(), Duration::ZERO);
        for part in ran.each {
            match part {
                Part::Touched(end) => ends.push(end),
                Part::Wrote(wait) => longest = wait,
            }
        }
        let longest = figure("writer_longest_us", longest.as_secs_f64() * 1e6);
        Ok(vec![starts_per_s(ran.begun, ends.into_iter()), longest])
    }
}

/// What a thread of `startup` did.
enum Part {
    /// It touched its pages, until then.
    Touched(Instant),
    /// It mapped and unmapped; this took longest.
    Wrote(Duration),
}

/// One start, from its begin to the last end, as a rate.
fn starts_per_s(begun: Instant, ends: impl Iterator<Item = Instant>) -> Figure {
    let took = ends.map(|end| end.duration_since(begun)).max().unwrap_or_default();
    figure("rounds_per_s", 1.0 / took.as_secs_f64())
}

/// A file that is read past the kernel's cache.
struct Direct {
    file: File,
    memory: Aligned,
}

impl Direct {
    /// For reads of so many bytes at most.
    fn new(path: &Path, bytes: u64) -> Result<Self> {
        let memory = Aligned::zeroed(bytes as usize);
        Ok(Direct { file: open_direct(path)?, memory })
    }

    /// Reads from there, up to the end; returns the number of bytes.
    fn read(&mut self, at: u64, file_bytes: u64) -> Result<u64> {
        let bytes = (self.memory.bytes_mut().len() as u64).min(file_bytes - at);
        self.exactly(bytes as usize, at)?;
        Ok(bytes)
    }

    fn exactly(&mut self, bytes: usize, at: u64) -> Result<&[u8]> {
        let buf = &mut self.memory.bytes_mut()[..bytes];
        self.file.read_exact_at(buf, at).with_context(|| format!("cannot read {bytes} at {at}"))?;
        Ok(buf)
    }
}

/// What a file holds.
#[derive(Debug, Clone, Copy)]
struct Expects {
    /// `None`: zeros, as it is one hole.
    pattern: Option<Pattern>,
}

impl Expects {
    fn of(file: usize, data: bool) -> Self {
        Expects { pattern: data.then(|| Pattern::new(SEED, file as u16)) }
    }

    /// Touches the page at `at` of the file, of which the mapping begins at `begin`. Another part
    /// of each page is looked at.
    #[inline(always)]
    fn check(self, map: &Mapped, begin: u64, at: u64) -> Result<()> {
        let at = at + (at / PAGE_BYTES as u64 * CELL_BYTES as u64) % PAGE_BYTES as u64;
        self.fits(at, &map.cell((at - begin) as usize))
    }

    #[inline(always)]
    fn fits(self, at: u64, cell: &[u8]) -> Result<()> {
        match self.pattern {
            Some(pattern) => pattern.check(at, cell).map_err(|wrong| anyhow!("{wrong}")),
            None if cell.iter().all(|&byte| byte == 0) => Ok(()),
            None => Err(anyhow!("the hole at {at} reads as {cell:x?}")),
        }
    }
}

/// How `random` and `zipf` read.
enum Reads {
    /// By direct reads of a page.
    Direct,
    /// By a mapping of the whole file.
    Mapped(Mapped),
}

/// What the workers of `random` and `zipf` do.
struct Walk<'a> {
    job: &'a Job,
    reads: &'a Reads,
    /// Of pages; all are equally likely without it.
    ranks: Option<Ranks>,
    /// Random numbers differ by it.
    phase: u64,
    times: Mutex<Times>,
}

impl Work for Walk<'_> {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        let mut random = numbers(self.phase, worker);
        let cells = self.job.file_bytes / CELL_BYTES as u64;
        let mut draw = || {
            let cell = (u128::from(random.next_u64()) * u128::from(cells)) >> u64::BITS;
            let at = cell as u64 * CELL_BYTES as u64;
            let page = self.ranks.map(|ranks| ranks.draw(&mut random) * PAGE_BYTES as u64);
            page.map_or(at, |page| page + at % PAGE_BYTES as u64)
        };
        let expects = Expects::of(0, true);
        let mut times = Times::new();
        let mut timed = |read: &mut dyn FnMut(u64) -> Result<()>| {
            workers::work(board, worker, 1, || {
                let at = draw();
                let begun = Instant::now();
                read(at)?;
                times.add(begun.elapsed());
                Ok(())
            })
        };
        match self.reads {
            Reads::Mapped(map) => timed(&mut |at| expects.fits(at, &map.cell(at as usize)))?,
            Reads::Direct => {
                let mut direct = Direct::new(&self.job.paths[0], PAGE_BYTES as u64)?;
                timed(&mut |at| {
                    let page = at - at % PAGE_BYTES as u64;
                    let bytes = direct.exactly(PAGE_BYTES, page)?;
                    expects.fits(at, &bytes[(at - page) as usize..][..CELL_BYTES])
                })?;
            }
        }
        self.times.lock().unwrap_or_else(PoisonError::into_inner).merge(&times);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault_ground::{Contents, Files};
    use super::*;

    const BYTES: u64 = 64 << 10;

    fn mapped(contents: Contents) -> Mapped {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::make(dir.path(), 1, BYTES, contents).unwrap();
        Mapper::open(&files.paths(1), 0, None).unwrap().map(0, 0..BYTES).unwrap()
    }

    #[test]
    fn what_a_page_holds_is_checked() {
        let (data, hole) = (mapped(Contents::Pattern), mapped(Contents::Hole));
        for at in (0..BYTES).step_by(PAGE_BYTES) {
            Expects::of(0, true).check(&data, 0, at).unwrap();
            Expects::of(0, false).check(&hole, 0, at).unwrap();
            // Of another file, of another page, zeros instead of data, data instead of zeros.
            let wrong = [
                Expects::of(1, true).check(&data, 0, at),
                Expects::of(0, true).fits(at + BYTES, &data.cell(at as usize)),
                Expects::of(0, true).check(&hole, 0, at),
                Expects::of(0, false).check(&data, 0, at),
            ];
            assert!(wrong.iter().all(Result::is_err), "{at}: {wrong:?}");
        }
        let longest = race(1, Duration::MAX, |_, race| {
            longest_write(race, |turn| {
                ensure!(turn < 3, "refused");
                Ok(())
            })
        });
        assert_eq!(longest.unwrap_err().to_string(), "refused");
    }

    #[test]
    fn a_start_ends_with_its_last_thread() {
        let begun = Instant::now();
        let ends = [10, 250, 100].map(|ms| begun + Duration::from_millis(ms));
        let told = starts_per_s(begun, ends.into_iter());
        assert_eq!(told.metric, "rounds_per_s");
        assert!((told.value - 4.0).abs() < 1e-9, "{told:?}");
    }
}
