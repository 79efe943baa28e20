//! What a sample of `pinfold bench fault` with a cache is told, and what it tells: as JSON, between
//! the process that asks for it (`fault_ground.rs`) and the one that takes it (`fault_child.rs`).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::fault_touch::Order;
use super::limited::CacheFigures;

/// The seed of what the files hold; their number is the pattern's.
pub const SEED: u64 = 12;
/// The length of each mapping of an image.
pub const IMAGE_MAP_BYTES: u64 = 1 << 20;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Map a cached file anew and touch all of it.
    Warm(Order),
    /// Read 64 bytes at random.
    Random,
    /// The same of pages of which some are much more likely.
    Zipf,
    /// Map a file, touch all of it, unmap it, and again; each thread its own file.
    Thrash {
        /// Whether the files have data, or are one hole each.
        data: bool,
    },
    /// Read and store to anonymous memory, while as many other threads page it out.
    Swap,
    /// Touch all of many mappings of one file, while another thread maps and unmaps.
    Startup,
}

/// How.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Direct reads, nothing mapped: the device's limit.
    Direct,
    /// mmap(2), all pages mapped already: the limit of `warm`.
    Mapped,
    /// mmap(2).
    Kernel,
    /// The cache.
    Pinfold {
        /// Which lock a fault takes.
        lock: String,
        /// What becomes of it during I/O.
        io: String,
        /// The space's handler threads; 0: each thread serves its own faults.
        handlers: usize,
    },
}

/// One sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// What to do.
    pub task: Task,
    /// With what.
    pub engine: Engine,
    /// By this many threads.
    pub threads: usize,
    /// Of these files.
    pub paths: Vec<PathBuf>,
    /// How long each is; of `swap`, the memory.
    pub file_bytes: u64,
    /// Where the cache may make a file for its swap.
    pub dir: PathBuf,
    /// For the cache.
    pub budget_bytes: u64,
    /// How long to measure.
    pub seconds: f64,
    /// How long to read at random before.
    pub warm_up_seconds: f64,
    /// How much of `swap`'s memory is paged out each second; 0: as much as possible.
    pub page_out_bytes: u64,
    /// The control group to enter.
    pub group: Option<PathBuf>,
}

/// One number of a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The metric's name.
    pub metric: String,
    /// Of locks: which, and who takes it. Of waits: how long they were.
    pub of: Vec<(String, String)>,
    /// The number.
    pub value: f64,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// The same figures in every sample of an engine and a case.
    pub figures: Vec<Figure>,
    /// Of the cache.
    pub cache: Option<CacheFigures>,
}

/// One without a further dimension.
pub fn figure(metric: &str, value: f64) -> Figure {
    Figure { metric: metric.to_owned(), of: Vec::new(), value }
}
