//! Reads and writes of a file on a disk by processes whose memory is limited: what `miss`, `batch`
//! and `write` share.
//!
//! Here, of the benchmark: the file, the control group, having a process take a sample. Of that
//! process: how it begins, its random numbers, what it has had read from storage. Not here: what a
//! sample is (`miss_child.rs`, `batch_child.rs`, `write_child.rs`), and groups (`cgroup.rs`).
//!
//! A process for each sample, so that every sample begins with nothing in memory, and so that what
//! an engine uses is charged to this group and to no other.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use pinfold::Cache;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cgroup::{self, Group};
use super::processes;
use super::scratch::{self, Scratch};
use crate::size::Size;

/// Memory for the process itself beside the budget: program, stacks, page tables.
pub const ALLOWANCE_BYTES: u64 = 16 << 20;

/// Workers that fill memory before a sample: enough to keep any device busy.
pub const WARM_UP_WORKERS: usize = 32;

/// A file on a disk, and the limit of those that read it.
#[derive(Debug)]
pub struct Limited {
    budget: Size,
    file_bytes: Size,
    dir: PathBuf,
    file_system: String,
    scratch: Scratch,
    plain: File,
    group: Result<Group, String>,
}

impl Limited {
    /// Has the file written in `dir`, or where files on a disk go by default, and makes the group.
    pub fn new(
        dir: Option<&Path>,
        file_bytes: Size,
        budget: Size,
        write: impl FnOnce(&Path) -> Result<Scratch>,
    ) -> Result<Self> {
        let dir = dir.map_or_else(scratch::disk_dir, Path::to_owned);
        scratch::ensure_direct(&dir)?;
        let scratch = write(&dir)?;
        let plain = scratch::open_plain(&scratch.path())?;
        let file_system = scratch::file_system(&dir)?;
        let group = Group::make(budget.0 + ALLOWANCE_BYTES);
        Ok(Limited { budget, file_bytes, dir, file_system, scratch, plain, group })
    }

    /// The file, for the processes.
    pub fn path(&self) -> PathBuf {
        self.scratch.path()
    }

    /// The directory of the file.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The kind of file system that the file is on.
    pub fn file_system(&self) -> &str {
        &self.file_system
    }

    /// The group's directory, for the processes to enter; `None` if there is no group.
    pub fn group_dir(&self) -> Option<PathBuf> {
        self.group.as_ref().ok().map(|group| group.dir().to_owned())
    }

    /// How memory is limited.
    pub fn kind(&self) -> &'static str {
        self.group.as_ref().map_or("not limited", Group::kind)
    }

    /// Whose memory is limited to what, for people.
    pub fn limited(&self) -> String {
        match &self.group {
            Ok(group) => format!(
                "Every engine ran in a {} limited to {} and {} for the process",
                group.kind(),
                self.budget,
                Size(ALLOWANCE_BYTES)
            ),
            Err(why) => format!("The kernel's cache was NOT LIMITED: no control group ({why})"),
        }
    }

    /// The file and the limit, for people.
    pub fn told(&self) -> String {
        let (file, dir) = (self.file_bytes, self.dir.display());
        format!("A file of {file} in {dir} ({}). {}.", self.file_system, self.limited())
    }

    /// Has a process take one sample: `pinfold bench CHILD JOB`. Nothing of the file is in memory
    /// when it begins.
    pub fn sample<T: DeserializeOwned>(&self, child: &str, job: &impl Serialize) -> Result<T> {
        scratch::forget(&self.plain)?;
        if let Ok(group) = &self.group {
            group.settle(ALLOWANCE_BYTES / 4);
        }
        sample_by(child, job)
    }
}

/// Has a process take one sample: `pinfold bench CHILD JOB`.
pub fn sample_by<T: DeserializeOwned>(child: &str, job: &impl Serialize) -> Result<T> {
    let output = processes::this_program()?
        .args(["bench", child, &serde_json::to_string(job)?])
        .stdin(Stdio::null())
        .output()
        .context("cannot start a process for a sample")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let killed = output.status.signal() == Some(rustix::process::Signal::KILL.as_raw());
        let why = if killed { ", which the kernel also sends where memory is limited" } else { "" };
        bail!("the process of a sample failed: {}{why}; it said: {}", output.status, said.trim());
    }
    serde_json::from_slice(&output.stdout).context("the process of a sample gave no result")
}

/// A process of a sample begins: it ends with its parent, and enters the group if there is one.
pub fn begin(group: Option<&Path>) -> Result<()> {
    processes::end_with_parent()?;
    group.map_or(Ok(()), cgroup::enter)
}

/// What this process has had read from storage; `None` where the kernel does not count it.
pub fn storage_read_bytes() -> Result<Option<u64>> {
    let Ok(text) = std::fs::read_to_string("/proc/self/io") else { return Ok(None) };
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.map(|number| number.parse().context("/proc/self/io is not as expected")).transpose()
}

/// Random numbers of a worker's own, and of the phase's: a sample must not read again what its
/// warm-up has just read.
pub fn numbers(phase: u64, worker: usize) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64((phase << 32) | worker as u64)
}

/// What the cache tells of itself after the sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheFigures {
    /// Metadata, of the budget.
    pub metadata_percent: f64,
    /// What kind of source it read from.
    pub source: String,
}

impl CacheFigures {
    /// Those of this cache.
    pub fn of(cache: &Cache) -> Self {
        let stats = cache.stats();
        CacheFigures {
            metadata_percent: 100.0 * (stats.metadata_bytes + stats.directories_bytes) as f64
                / stats.budget_bytes as f64,
            source: cache.sources().first().map(|(_, told)| told.kind.clone()).unwrap_or_default(),
        }
    }
}

/// The figures of several samples: the most metadata, and the source of the first.
pub fn summed_up<'a>(figures: impl Iterator<Item = &'a CacheFigures>) -> Option<CacheFigures> {
    figures.cloned().reduce(|first, other| CacheFigures {
        metadata_percent: first.metadata_percent.max(other.metadata_percent),
        ..first
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::Rng;

    use super::*;

    #[test]
    fn no_two_workers_or_phases_read_the_same() {
        let begin = |phase, worker| {
            let mut numbers = numbers(phase, worker);
            [numbers.next_u64(), numbers.next_u64()]
        };
        let begins: BTreeSet<_> =
            (0..2).flat_map(|phase| (0..256).map(move |worker| begin(phase, worker))).collect();
        assert_eq!(begins.len(), 512);
    }
}
