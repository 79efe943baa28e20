//! `pinfold try [FILE]`: the first command to run. It reads a file through a cache of a quarter of
//! its size, checks every byte, and compares the cache with `pread` and `mmap`.
//!
//! Here: the arguments, and the order of the steps. Checking is in `check.rs`, timing in
//! `measure.rs`, printing in `report.rs`. `pinfold bench` measures with more care.

mod check;
mod measure;
mod report;
mod subject;

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;
use pinfold::{Cache, Options};

use self::subject::{Subject, bytes_bar};
use crate::bench::scratch::{self, Scratch};
use crate::publish::{self, publish};
use crate::size::Size;

/// What happens, for people.
pub const HELP: &str = "\
The program reads the whole file through the cache, in order and at random, and compares every byte
with plain reads; the first difference ends it with an error. Then it times the cache beside pread
and mmap. The file is only read, and must not change meanwhile. Without FILE the program writes a
temporary file. That file has no name, and is gone when the program ends, in whatever way.

pread and mmap may use all of the machine's memory for the kernel's page cache. `cargo pinfold bench
miss` compares them with the cache under the same limit.";

/// The default budget is the file's length divided by this.
const BUDGET_PART: u64 = 4;

/// Arguments of `pinfold try`.
#[derive(Debug, Args)]
pub struct TryArgs {
    /// The file to read [default: one of 256 MiB, written for it]
    file: Option<PathBuf>,

    /// The cache's memory, such as 64M or 1G [default: a quarter of the file]
    #[arg(long, value_name = "SIZE")]
    budget: Option<Size>,

    /// Length of the file that is written if none is given
    #[arg(long, value_name = "SIZE", default_value = "256M", conflicts_with = "file")]
    file_bytes: Size,

    /// Directory of the file that is written [default: ./target if there is one, else the one for
    /// temporary files, or /var/tmp if that is in memory]
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    dir: Option<PathBuf>,

    /// The least time that each measurement takes
    #[arg(long, value_name = "S", default_value_t = 0.4, allow_negative_numbers = true)]
    seconds: f64,

    /// Write the result as one JSON object to FILE, or to standard output for -
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs it.
pub fn run(args: &TryArgs) -> Result<()> {
    ensure!(
        args.seconds > 0.0 && args.seconds <= 60.0,
        "--seconds {}: must be above 0 and at most 60",
        args.seconds
    );
    publish::check(args.json.as_deref())?;
    let written = match &args.file {
        Some(_) => None,
        None => Some(write(args)?),
    };
    let path = match (&args.file, &written) {
        (Some(path), _) => path.clone(),
        (None, Some((scratch, _))) => scratch.path(),
        (None, None) => unreachable!("one is written where none is given"),
    };
    // A first cache, as small as can be: it says what is wrong with the file, and how long it is.
    let bytes = Cache::new(Options::new(*Options::BUDGET_BYTES.start()))?.open(&path)?.len();
    if bytes == 0 {
        bail!("{} is empty: there is nothing to read", path.display());
    }
    let name = match &written {
        Some((_, dir)) => format!("a temporary file in {}", dir.display()),
        None => path.display().to_string(),
    };
    let subject = Subject { path, bytes, name };
    let budget_bytes = match args.budget {
        Some(budget) => budget.0,
        None => (bytes / BUDGET_PART)
            .clamp(*Options::BUDGET_BYTES.start(), *Options::BUDGET_BYTES.end()),
    };
    let cache = Cache::new(Options::new(budget_bytes))?;
    // A temporary file has no name by now, and what is cached of it goes with its last handle.
    let handle = cache.open(&subject.path)?;
    let checked = check::everything(&cache, &subject)?;
    let (stats, sources) = (cache.stats(), cache.sources());
    drop((handle, cache));
    let figures = measure::all(&subject, budget_bytes, args.seconds)?;
    let result = report::Report::new(&subject, &checked, &stats, &sources, figures)?;
    publish(args.json.as_deref(), &result.text(), &result)
}

fn write(args: &TryArgs) -> Result<(Scratch, PathBuf)> {
    let dir = args.dir.clone().unwrap_or_else(scratch::disk_dir);
    let bar = bytes_bar("writing a file", args.file_bytes.0);
    let scratch = Scratch::write(&dir, args.file_bytes.0, 1, |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    Ok((scratch, dir))
}
