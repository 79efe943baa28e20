//! A thread for each core, each with a runtime of its own, and one cache for all: tasks never leave
//! their thread, so they share files and pages by `Rc`.
//!
//! ```sh
//! cargo run --release -p pinfold --example thread_per_core [TASKS]
//! ```
//!
//! makes a file of 64 MiB whose pages say which pages come next, and has each thread walk through
//! it under a budget of 8 MiB, with 10,000 tasks at once on all threads together. Every byte is
//! checked.

use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use pinfold::{Cache, File, FolioOf, Hint, Options};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const PAGE: u64 = 4096;
const PAGES: u64 = 16 << 10;
const BUDGET: u64 = PAGES * PAGE / 8;
/// Pages of one walk.
const STEPS: usize = 20;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the file has in its words of 8 bytes.
fn word_at(index: u64) -> u64 {
    (index ^ 0x5DEE_CE66).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Whether these are the bytes of that page.
fn check(page: u64, bytes: &[u8]) -> Result<(), Failure> {
    let words = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word));
    let expected = (page * PAGE / 8..).take(PAGE as usize / 8).map(word_at);
    if words.eq(expected) { Ok(()) } else { Err(format!("wrong bytes in page {page}").into()) }
}

/// From page to page; each says which is the next. It holds none while it waits for the next: tasks
/// that wait for memory while they hold some may wait for each other.
async fn walk(file: Rc<File>, start: u64) -> Result<u64, Failure> {
    let mut page = start % PAGES;
    for step in 0..STEPS {
        let bytes = FolioOf::new(file.get_async(page).await?, file.clone());
        check(page, &bytes)?;
        let word = bytes.as_chunks().0[(start as usize + step) % (PAGE as usize / 8)];
        page = (u64::from_le_bytes(word) >> 20) % PAGES;
    }
    Ok(STEPS as u64)
}

/// What one thread does: all its tasks at once, on a runtime of its own.
fn work(cpu: usize, file: File, starts: std::ops::Range<u64>) -> Result<u64, Failure> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let (file, tasks) = (Rc::new(file), tokio::task::LocalSet::new());
    let walks: Vec<_> = starts.map(|start| tasks.spawn_local(walk(file.clone(), start))).collect();
    tasks.block_on(&runtime, async {
        let mut pages = 0;
        for walk in walks {
            pages += walk.await??;
        }
        Ok(pages)
    })
}

/// Has all cores together carry out so many walks through a new file in `dir`; returns how many
/// pages they read.
pub(crate) fn run(dir: &Path, tasks: u64) -> Result<u64, Failure> {
    let mut on_disk = tempfile::NamedTempFile::new_in(dir)?;
    on_disk.write_all(
        &(0..PAGES * PAGE / 8).flat_map(|index| word_at(index).to_le_bytes()).collect::<Vec<_>>(),
    )?;
    let cache = Cache::new(Options::new(BUDGET))?;
    let file = cache.open(on_disk.path())?;
    let allowed = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let share = |n: usize| n as u64 * tasks / cpus.len() as u64;
    let since = Instant::now();
    let pages = std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .enumerate()
            .map(|(n, &cpu)| {
                // A handle for each thread, and with it its own cache lines.
                let file = file.clone();
                scope.spawn(move || {
                    file.advise(0..0, Hint::Random)?;
                    work(cpu, file, share(n)..share(n + 1))
                })
            })
            .collect();
        let mut pages = 0;
        for thread in threads {
            pages += thread.join().expect("a thread panicked")?;
        }
        Ok::<_, Failure>(pages)
    })?;
    println!(
        "{tasks} walks on {} cores, {pages} pages in {:.2} s, every byte right; {} misses, \
         the budget has {}",
        cpus.len(),
        since.elapsed().as_secs_f64(),
        cache.stats().misses,
        BUDGET / PAGE,
    );
    Ok(pages)
}

fn main() -> Result<(), Failure> {
    let tasks = std::env::args().nth(1).map_or(Ok(10_000), |number| number.parse::<u64>())?;
    run(Path::new("."), tasks).map(drop)
}
