//! `pinfold stress`: readers of all sizes beside everything that moves or evicts pages.
//!
//! Belongs here: the options, the bar, the exit. The stress itself is `pinfold_testing::stress`,
//! the same that the library's tests run.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
#[cfg(feature = "mutants")]
use pinfold::mutants::Named;
use pinfold_testing::stress::{Options, Progress, Schedule, run as run_stress};

use crate::size::Size;

pub const HELP: &str = "\
Every 64 bytes of every file say which file and offset they are and carry a check sum, so each read
can be checked by itself. Some files are real, read directly or through the kernel's cache, and some
are in memory. One source fails now and then, one file is rewritten, and one is cut short and
restored. Other threads invalidate, split, move, advise and reopen the files that are being read, and
mappers map, access, change and unmap them in spaces of all kinds, while the process forks. An access
that fails, because its source does, is made again until it succeeds.
The schedule `mapping` is about maps. Each of the other schedules (--schedule) repeats one race, so that it is met more often.

The exit code is 0 if every byte was right and no thread hung, and 1 otherwise. On a wrong byte, the
program prints the file, the offset, what was expected, what was read, and where that belongs.";

/// `pinfold stress ...`
#[derive(Debug, Args)]
pub struct StressArgs {
    /// How long to run; 10 by default, or as long as --reads takes
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    seconds: Option<f64>,

    /// Run until this many reads were checked: 1000000000, 1e9
    #[arg(long, value_name = "N", value_parser = count)]
    reads: Option<u64>,

    /// Threads that read; twice the number of cores by default
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Threads that borrow and hold pages; one per core by default
    #[arg(long, value_name = "N")]
    holders: Option<usize>,

    /// Threads that evict, move and change pages meanwhile
    #[arg(long, value_name = "N", default_value_t = 2)]
    shakers: usize,

    /// Threads that map files and access them, three times as many in the schedule `mapping`; 2 by
    /// default, none with a budget below 8M, which is too small for maps
    #[arg(long, value_name = "N")]
    mappers: Option<usize>,

    /// Seed of the ranges and faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// The cache's budget; in the schedule `mixed`, the files are ten times as large
    #[arg(long, value_name = "SIZE", default_value = "8M")]
    budget: Size,

    /// The schedule: which files there are, and what happens to them
    #[arg(long, value_enum, default_value_t = ScheduleName::Mixed)]
    schedule: ScheduleName,

    /// Turn this mutant on, to see that the stress detects it
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "NAME", value_parser = mutant)]
    mutant: Option<Named>,

    /// Directory of the real files, which are removed at the end; direct I/O needs a disk there
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Give up when a thread has made no progress for this long
    #[arg(long, value_name = "S", default_value_t = 30.0, allow_negative_numbers = true)]
    hang_seconds: f64,
}

/// The smallest budget that maps are tried with.
const MAPS_MIN_BYTES: u64 = 8 << 20;

/// The schedules by their names.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ScheduleName {
    /// Files of all kinds, ten times the budget, and every kind of disturbance
    Mixed,
    /// Files that fit in the budget; their folios are split and moved, and nothing else is done
    Moving,
    /// Small files that are truncated and restored without pause
    Resizing,
    /// Small real files that are opened and closed all the time
    Reopening,
    /// Files of all kinds, twice the budget, most of which are accessed through maps
    Mapping,
    /// Small real files that another process writes, cuts, replaces and deletes meanwhile
    Foreign,
    /// Files that are written to through the cache; some sources fail now and then
    Writing,
}

/// A mutant by its name.
#[cfg(feature = "mutants")]
pub(crate) fn mutant(name: &str) -> Result<Named, String> {
    Named::find(name).ok_or_else(|| {
        let names: Vec<_> = Named::all().map(Named::name).collect();
        format!("not one of {}", names.join(", "))
    })
}

/// A whole number, or one like 1e9.
fn count(text: &str) -> Result<u64, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match text.parse::<f64>() {
        Ok(number) if number.fract() == 0.0 && (0.0..1e18).contains(&number) => Ok(whole(number)),
        _ => Err("not a number of reads".to_owned()),
    }
}

/// A float that is a whole number from 0 to 10^18, as an integer.
#[expect(clippy::cast_sign_loss, reason = "the caller has looked")]
fn whole(number: f64) -> u64 {
    number as u64
}

/// Runs the stress; an error is its failure.
pub fn run(args: &StressArgs) -> Result<()> {
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new()
        .prefix("pinfold-stress-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    let options = args.options(dir.path().to_owned())?;
    #[cfg(feature = "mutants")]
    Named::switch_on(args.mutant);
    let bar = Bar::new(args);
    let result = run_stress(options, |progress| bar.show(progress));
    bar.0.finish_and_clear();
    crate::say::print(result?)?;
    Ok(())
}

impl StressArgs {
    fn options(&self, dir: PathBuf) -> Result<Options> {
        let seconds = self.seconds.unwrap_or(match self.reads {
            Some(_) => 86_400.0,
            None => 10.0,
        });
        ensure!(
            seconds > 0.0 && seconds <= 1e6,
            "--seconds {seconds}: must be above 0 and at most 1000000"
        );
        let hang = self.hang_seconds;
        ensure!(hang > 0.0 && hang <= 1e6, "--hang-seconds {hang}: must be above 0");
        let mut options = Options::new(dir);
        options.readers = self.threads.unwrap_or(options.readers);
        ensure!(
            (1..=1024).contains(&options.readers),
            "--threads {}: must be from 1 to 1024",
            options.readers
        );
        ensure!(self.shakers <= 1024, "--shakers {}: must be at most 1024", self.shakers);
        ensure!(
            self.budget.0 <= 16 << 30,
            "--budget {}: at most 16 GiB, as the files are ten times as large",
            self.budget
        );
        options.holders = self.holders.unwrap_or(options.holders);
        ensure!(options.holders <= 1024, "--holders {}: must be at most 1024", options.holders);
        options.shakers = self.shakers;
        let mappers = if self.budget.0 < MAPS_MIN_BYTES { 0 } else { options.mappers };
        options.mappers = self.mappers.unwrap_or(mappers);
        ensure!(options.mappers <= 256, "--mappers {}: must be at most 256", options.mappers);
        options.time = Duration::from_secs_f64(seconds);
        options.reads = self.reads;
        options.seed = self.seed;
        options.schedule = match self.schedule {
            ScheduleName::Mixed => Schedule::Mixed,
            ScheduleName::Moving => Schedule::Moving,
            ScheduleName::Resizing => Schedule::Resizing,
            ScheduleName::Reopening => Schedule::Reopening,
            ScheduleName::Mapping => Schedule::Mapping,
            ScheduleName::Foreign => Schedule::Foreign,
            ScheduleName::Writing => Schedule::Writing,
        };
        options.budget_bytes = self.budget.0;
        options.data_bytes = 10 * self.budget.0;
        options.hang = Duration::from_secs_f64(hang);
        Ok(options)
    }
}

/// A bar on a terminal, nothing in a pipe: over the reads if a number of them is asked for, else
/// over the time.
struct Bar(ProgressBar, bool);

impl Bar {
    fn new(args: &StressArgs) -> Self {
        let (length, unit) = match args.reads {
            Some(reads) => (reads, "reads"),
            None => (whole(args.seconds.unwrap_or(10.0).clamp(0.0, 1e6) * 1000.0), "ms"),
        };
        let template = format!("{{bar:40}} {{human_pos}}/{{human_len}} {unit}, {{msg}}");
        let style = ProgressStyle::with_template(&template).expect("the template is well formed");
        Bar(ProgressBar::new(length).with_style(style), args.reads.is_some())
    }

    fn show(&self, progress: Progress) {
        let Progress { elapsed, reads } = progress;
        let rate = reads as f64 / elapsed.as_secs_f64().max(0.001) / 1e6;
        self.0.set_message(format!("{rate:.1} million reads/s"));
        self.0.set_position(if self.1 { reads } else { elapsed.as_millis() as u64 });
    }
}
