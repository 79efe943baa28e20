//! One sample of `pinfold bench write --cases random`, taken by a process of its own: it enters the
//! memory control group, opens its engine, overwrites pages and syncs. `limited.rs` starts it.
//!
//! A page is its number, the number of the sample that wrote it, and bytes that are the same for
//! all: so the whole file can be compared, and to make a page costs nothing.

use std::cell::Cell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::batch_ring::Ring;
use super::engines::Reader;
use super::limited;
use super::scratch::{Scratch, open_plain};
use super::write_cases::mib_per_s;
use super::write_engines::{Engine, PAGE_BYTES, Visit, Writer, open_to_write, same};

/// Writes of the limit on their way at once.
const IN_FLIGHT: usize = 64;

/// `pinfold bench write-child`: its arguments.
#[derive(Debug, Args)]
pub struct ChildArgs {
    /// A [`Job`] as JSON.
    job: String,
}

/// One sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// With what.
    pub engine: String,
    /// To which file.
    pub path: PathBuf,
    /// How long it is.
    pub file_pages: u64,
    /// How much of it is overwritten, no page twice.
    pub pages: u64,
    /// For the cache.
    pub budget_bytes: u64,
    /// Which one it is, from 1 on.
    pub sample: u64,
    /// The control group to enter.
    pub group: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Outcome {
    /// Until all was durable.
    pub mib_per_s: f64,
}

impl Job {
    /// The pages to write, in their order.
    fn order(&self) -> Vec<u64> {
        let mut all: Vec<u64> = (0..self.file_pages).collect();
        let mut random = Pcg64Mcg::seed_from_u64(self.sample);
        let (some, _) = all.partial_shuffle(&mut random, self.pages as usize);
        some.to_vec()
    }
}

/// Pages that differ in their number and sample alone.
struct Pages([u8; PAGE_BYTES as usize]);

impl Pages {
    fn new() -> Self {
        let mut bytes = [0; PAGE_BYTES as usize];
        Pcg64Mcg::seed_from_u64(0).fill_bytes(&mut bytes);
        Pages(bytes)
    }

    fn page(&mut self, page: u64, sample: u64) -> &[u8] {
        self.0[..8].copy_from_slice(&page.to_le_bytes());
        self.0[8..16].copy_from_slice(&sample.to_le_bytes());
        &self.0
    }
}

/// Takes the sample and writes what came of it to standard output.
pub fn run(args: &ChildArgs) -> Result<()> {
    let job: Job = serde_json::from_str(&args.job).context("not a job for a child of write")?;
    limited::begin(job.group.as_deref())?;
    let took = take(&job)?;
    let outcome = Outcome { mib_per_s: mib_per_s(job.pages * PAGE_BYTES, took) };
    crate::say::print(serde_json::to_string(&outcome)?)?;
    Ok(())
}

fn take(job: &Job) -> Result<Duration> {
    let order = job.order();
    if job.engine == "pwrite-direct" {
        let file = open_to_write(&job.path, OFlags::DIRECT)?;
        let mut ring = Ring::new(file, IN_FLIGHT, PAGE_BYTES as usize)?;
        let mut pages = Pages::new();
        let since = Instant::now();
        ring.write_all(order.into_iter().map(|page| page * PAGE_BYTES), |offset, block| {
            block.copy_from_slice(pages.page(offset / PAGE_BYTES, job.sample));
        })?;
        return Ok(since.elapsed());
    }
    let engine = Engine::new(&job.engine, &job.path, job.budget_bytes)?;
    let took = Cell::new(Duration::ZERO);
    engine.visit(&Writing { job, order, took: &took })?;
    Ok(took.get())
}

struct Writing<'a> {
    job: &'a Job,
    order: Vec<u64>,
    took: &'a Cell<Duration>,
}

impl Visit for Writing<'_> {
    fn visit<W: Writer + Reader>(&self, engine: &W) -> Result<()> {
        let mut pages = Pages::new();
        let since = Instant::now();
        for &page in &self.order {
            engine.write(pages.page(page, self.job.sample), page * PAGE_BYTES)?;
        }
        engine.sync(0..self.job.file_pages * PAGE_BYTES)?;
        self.took.set(since.elapsed());
        Ok(())
    }
}

/// Makes a file of so many pages, none of which was written in a sample.
pub fn make(dir: &Path, file_pages: u64) -> Result<Scratch> {
    let mut pages = Pages::new();
    Scratch::filled(dir, file_pages * PAGE_BYTES, |offset, part| {
        for (n, bytes) in (offset / PAGE_BYTES..).zip(part.chunks_mut(PAGE_BYTES as usize)) {
            bytes.copy_from_slice(pages.page(n, 0));
        }
    })
}

/// Compares a file with what it should hold after this sample. `samples` says which wrote each page
/// last.
pub fn check(job: &Job, samples: &mut [u64]) -> Result<()> {
    for page in job.order() {
        samples[page as usize] = job.sample;
    }
    let mut file = std::io::BufReader::with_capacity(1 << 20, open_plain(&job.path)?);
    let (mut pages, mut got) = (Pages::new(), [0; PAGE_BYTES as usize]);
    for (page, &sample) in (0..).zip(&*samples) {
        file.read_exact(&mut got)?;
        same(&got, pages.page(page, sample), page * PAGE_BYTES)?;
    }
    let rest = file.read(&mut got)?;
    ensure!(rest == 0, "the file is longer than it was");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_writes_what_it_should_and_a_lost_write_is_found() {
        let scratch = make(&crate::bench::scratch::disk_dir(), 2000).unwrap();
        let mut samples = vec![0; 2000];
        for (engine, sample) in ["pwrite-direct", "pwrite", "mmap", "pinfold"].iter().zip(1..) {
            let job = Job {
                engine: (*engine).to_owned(),
                path: scratch.path(),
                file_pages: 2000,
                pages: 500,
                budget_bytes: 1 << 20,
                sample,
                group: None,
            };
            take(&job).unwrap();
            check(&job, &mut samples).unwrap();
            assert_eq!(samples.iter().filter(|it| **it == sample).count(), 500, "{engine}");
            let not_taken = Job { sample: 77, ..job };
            let error = check(&not_taken, &mut samples.clone()).unwrap_err().to_string();
            assert!(error.contains("wrong bytes were written"), "{error}");
        }
    }
}
