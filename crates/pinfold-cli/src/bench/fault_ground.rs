//! Files on a disk, and a memory limit that each sample of `pinfold bench fault` sets anew.
//!
//! Like `limited.rs`, with several files and limits. Not here: what a sample is
//! (`fault_child.rs`), and control groups (`cgroup.rs`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pinfold_testing::pattern::Pattern;
use rustix::process::{Resource, getrlimit, setrlimit};

use super::cgroup::Group;
use super::fault_job::{Job, Outcome, SEED};
use super::fault_touch::number_pages;
use super::limited::{self, ALLOWANCE_BYTES};
use super::scratch::{self, Scratch};
use crate::size::Size;

/// Memory for each thread beside the budget: its stacks, and the page tables of its mapping.
const THREAD_ALLOWANCE_BYTES: u64 = 128 << 10;

/// Lets this process open as many files as it may: some samples have hundreds.
pub fn allow_descriptors() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of open files")
}

/// What files hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Pages have their numbers.
    Numbers,
    /// Cells know where they belong.
    Pattern,
    /// Nothing: each file is one hole.
    Hole,
}

/// Files of one length.
#[derive(Debug)]
pub struct Files {
    all: Vec<Scratch>,
    /// How long each is.
    pub file_bytes: u64,
}

impl Files {
    /// Makes so many of them in `dir`.
    pub fn make(dir: &Path, count: usize, file_bytes: u64, contents: Contents) -> Result<Self> {
        let make = |number: usize| match contents {
            Contents::Numbers => Scratch::filled(dir, file_bytes, number_pages),
            Contents::Pattern => {
                let pattern = Pattern::new(SEED, number as u16);
                Scratch::filled(dir, file_bytes, |at, part| pattern.fill(at, part))
            }
            Contents::Hole => Scratch::hole(dir, file_bytes),
        };
        Ok(Files { all: (0..count).map(make).collect::<Result<_>>()?, file_bytes })
    }

    /// The first so many, for other processes.
    pub fn paths(&self, count: usize) -> Vec<PathBuf> {
        self.all[..count].iter().map(Scratch::path).collect()
    }
}

/// Where samples are taken.
#[derive(Debug)]
pub struct Ground {
    dir: PathBuf,
    file_system: String,
    group: Result<Group, String>,
}

impl Ground {
    /// With files in `dir`, or where files on a disk go by default.
    pub fn new(dir: Option<&Path>) -> Result<Self> {
        let dir = dir.map_or_else(scratch::disk_dir, Path::to_owned);
        scratch::ensure_direct(&dir)?;
        let file_system = scratch::file_system(&dir)?;
        Ok(Ground { dir, file_system, group: Group::make(ALLOWANCE_BYTES) })
    }

    /// The directory of the files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The kind of file system that they are on.
    pub fn file_system(&self) -> &str {
        &self.file_system
    }

    /// How memory is limited.
    pub fn kind(&self) -> &'static str {
        self.group.as_ref().map_or("not limited", Group::kind)
    }

    /// Whose memory is limited to what, for people.
    pub fn limited(&self) -> String {
        match &self.group {
            Ok(group) => format!(
                "Every engine ran in a {} limited to that memory, {} for the process, and {} for \
                 each thread.",
                group.kind(),
                Size(ALLOWANCE_BYTES),
                Size(THREAD_ALLOWANCE_BYTES)
            ),
            Err(why) => format!(
                "kernel-mmap was NOT LIMITED: no control group ({why}). Run as root, or in a group \
                 that was delegated with its memory controller (systemd-run --user --scope -p \
                 Delegate=yes)."
            ),
        }
    }

    /// Has a process take a sample; nothing of its files is in memory when it begins. `limited`:
    /// what it may use is its budget.
    pub fn sample(&self, files: &Files, mut job: Job, limited: bool) -> Result<Outcome> {
        for file in &files.all {
            file.forget()?;
        }
        let group = self.group.as_ref().ok().filter(|_| limited);
        if let Some(group) = group {
            group.settle(ALLOWANCE_BYTES / 4);
            let threads = job.threads as u64;
            let bytes = job.budget_bytes + ALLOWANCE_BYTES + threads * THREAD_ALLOWANCE_BYTES;
            group.limit(bytes).context("cannot limit the memory of a control group")?;
        }
        job.group = group.map(|group| group.dir().to_owned());
        limited::sample_by("fault-child", &job)
    }
}
