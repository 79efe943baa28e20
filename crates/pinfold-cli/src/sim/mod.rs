//! `pinfold sim`: replay traces against replacement policies.
//!
//! Here: the command's arguments, its errors, and the loop over traces, capacities and policies.
//! Not here: traces (`trace.rs`, `generate.rs`), policies (`pinfold.rs` drives the cache's own code,
//! `lru.rs`, `tinylfu.rs`, `optimum.rs` are references), what is printed (`report.rs`). Called by
//! the command's `main`.
//!
//! Every page weighs one page. Percentages of capacity are of the distinct pages of the trace.

mod generate;
mod lists;
mod lru;
mod optimum;
mod pinfold;
mod report;
mod tinylfu;
mod trace;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::str::FromStr;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pinfold_policy::{Clock, S3Fifo, S3FifoOptions, USES_MAX};

use self::lru::Lru;
use self::pinfold::Driver;
use self::report::Row;
use self::tinylfu::WTinyLfu;
use self::trace::{Format, Trace};

/// Arguments of `pinfold sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Generators:
  zipf       pages drawn from a Zipf distribution
  zipf-scan  the same over one half of the pages; every now and then a scan of the other half beside it
  loop       all pages in turn, again and again
  oltp       transactions: hot index pages, Zipf rows, appends to a history, now and then a range scan

A file holds one page number a line (blank lines and lines that start with # are skipped), or page
numbers as 64-bit little-endian words. A file with the name of a generator is reached as ./zipf.")]
pub(crate) struct SimArgs {
    /// Files or generators (zipf, zipf-scan, loop, oltp); a table each.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<String>,

    /// How a file is written; auto takes one with a NUL byte near its start for binary.
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    format: Format,

    /// Capacities: numbers of pages, or percentages of the trace's distinct pages.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1%,5%,10%,25%")]
    capacity: Vec<Capacity>,

    /// Generators: how many pages there are.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pages: u32,

    /// Generators: how many requests are made.
    #[arg(long, default_value_t = 2_000_000, value_name = "N")]
    requests: u32,

    /// Generators: the exponent of the Zipf distribution; 0 is uniform.
    #[arg(long, default_value_t = 0.9, value_name = "S")]
    skew: f64,

    /// Generators: the same seed gives the same trace.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Write the figures as JSON to FILE; to standard output if FILE is - (the table then goes to
    /// standard error).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    tuning: Tuning,
}

/// What can be chosen about pinfold's own policy.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Parameters of pinfold's policy")]
struct Tuning {
    /// The small queue's share of the capacity.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100),
          default_value_t = S3FifoOptions::default().small_percent)]
    small_percent: u32,

    /// How far the ghosts reach, of the capacity.
    #[arg(long, value_name = "PERCENT", default_value_t = S3FifoOptions::default().ghost_percent)]
    ghost_percent: u32,

    /// How far the main queue is filled with newcomers, of the capacity.
    #[arg(long, value_name = "PERCENT", default_value_t = S3FifoOptions::default().main_fill_percent)]
    main_fill_percent: u32,

    /// The uses that take a newcomer to the main queue.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(USES_MAX)),
          default_value_t = S3FifoOptions::default().promote_uses)]
    promote_uses: u8,

    /// The most pages spared in one search for a victim.
    #[arg(long, value_name = "N", default_value_t = S3FifoOptions::default().reprieves_max)]
    reprieves_max: u32,

    /// Whether pages evicted from the main queue leave a ghost too.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set,
          default_value_t = S3FifoOptions::default().main_ghosts)]
    main_ghosts: bool,
}

impl From<Tuning> for S3FifoOptions {
    fn from(tuning: Tuning) -> Self {
        Self {
            small_percent: tuning.small_percent,
            ghost_percent: tuning.ghost_percent,
            main_fill_percent: tuning.main_fill_percent,
            promote_uses: tuning.promote_uses,
            main_ghosts: tuning.main_ghosts,
            reprieves_max: tuning.reprieves_max,
        }
    }
}

/// A capacity as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Capacity {
    Pages(u32),
    Percent(f64),
}

impl Capacity {
    /// In pages of a trace; a percentage is rounded, but never to nothing.
    fn pages(self, distinct: u32) -> u32 {
        match self {
            Self::Pages(pages) => pages,
            Self::Percent(percent) => {
                let pages = (f64::from(distinct) * percent / 100.0).round();
                // A float cast saturates; the percentage is finite and above zero.
                #[expect(clippy::cast_sign_loss)]
                let pages = pages as u32;
                pages.max(1)
            }
        }
    }
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let zero = || format!("capacity {text} is zero: a cache needs at least one page");
        if let Some(number) = text.strip_suffix('%') {
            let percent = number.trim().parse::<f64>().ok().filter(|p| p.is_finite() && *p >= 0.0);
            let percent = percent.ok_or_else(|| format!("{text:?} is no percentage"))?;
            return if percent > 0.0 { Ok(Self::Percent(percent)) } else { Err(zero()) };
        }
        let pages = text
            .parse::<u32>()
            .map_err(|e| format!("{text:?} is neither a number of pages nor a percentage: {e}"))?;
        if pages == 0 { Err(zero()) } else { Ok(Self::Pages(pages)) }
    }
}

/// Why a simulation cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimError {
    /// The file cannot be read.
    #[error("cannot read trace {}: {source} (generators are: {})", .path.display(), generate::NAMES.join(", "))]
    Read { path: PathBuf, source: std::io::Error },
    /// A line is no page number.
    #[error("{}, line {line}: {text:?} is not a page number (a whole number below 2^64)", .path.display())]
    BadLine { path: PathBuf, line: u64, text: String },
    /// A binary trace ends inside a word.
    #[error("{}: {bytes} bytes are not a whole number of 64-bit page numbers", .path.display())]
    TornWord { path: PathBuf, bytes: u64 },
    /// There is nothing to replay.
    #[error("trace {name} is empty: {why}")]
    Empty { name: String, why: &'static str },
    /// Positions in a trace are kept in 32 bits.
    #[error(
        "trace {name} has {requests} requests; at most {} can be replayed",
        trace::REQUESTS_MAX
    )]
    TooLong { name: String, requests: usize },
    /// No generator can work like this.
    #[error("generator {name}: {why}")]
    BadGenerator { name: String, why: String },
    /// The figures cannot be written.
    #[error("cannot write {}: {source}", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// A policy under simulation, with its whole cache.
trait Engine {
    /// Requests a page; true if it was there. It is there afterwards.
    fn access(&mut self, page: u32) -> bool;
}

/// The policies compared, in the order of the table.
const ENGINES: [&str; 6] = ["optimum", "pinfold", "w-tinylfu", "lru", "clock", "fifo"];

/// Every engine but the optimum, which needs to know the future.
fn engine(name: &str, distinct: u32, capacity: u32, options: S3FifoOptions) -> Box<dyn Engine> {
    let pages = u64::from(capacity);
    match name {
        "pinfold" => {
            Box::new(Driver::new(S3Fifo::with_options(pages, options), distinct, capacity))
        }
        "clock" => Box::new(Driver::new(Clock::second_chance(pages), distinct, capacity)),
        "fifo" => Box::new(Driver::new(Clock::fifo(pages), distinct, capacity)),
        "lru" => Box::new(Lru::new(distinct, capacity)),
        "w-tinylfu" => Box::new(WTinyLfu::new(distinct, capacity)),
        _ => unreachable!("{name} is in ENGINES but not known here"),
    }
}

/// Replays every trace against every policy at every capacity and prints the tables.
///
/// # Errors
/// If a trace cannot be read or made, or the JSON cannot be written.
pub(crate) fn run(args: &SimArgs) -> Result<(), SimError> {
    let mut rows = Vec::new();
    let mut tables = Vec::new();
    for name in &args.traces {
        let trace = load(name, args)?;
        let first = rows.len();
        replay(&trace, args, &mut rows);
        tables.push(report::table(&trace, &rows[first..]));
    }
    let json_on_stdout = args.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    for table in tables {
        if json_on_stdout { eprintln!("{table}\n") } else { println!("{table}\n") }
    }
    match &args.json {
        Some(path) => report::write_json(path, args, &rows),
        None => Ok(()),
    }
}

fn load(name: &str, args: &SimArgs) -> Result<Trace, SimError> {
    if generate::NAMES.contains(&name) {
        generate::generate(name, args.pages, args.requests, args.skew, args.seed)
    } else {
        trace::read(name.as_ref(), args.format)
    }
}

/// Runs one trace; appends a row for each policy and capacity.
fn replay(trace: &Trace, args: &SimArgs, rows: &mut Vec<Row>) {
    let requests = &trace.requests[..];
    let next = optimum::next_uses(requests, trace.distinct);
    let bar = progress(&trace.name, requests.len() * args.capacity.len() * ENGINES.len());
    for asked in &args.capacity {
        let capacity = asked.pages(trace.distinct);
        for name in ENGINES {
            let hits = if name == "optimum" {
                let hits = optimum::hits(requests, &next, trace.distinct, capacity);
                bar.inc(requests.len() as u64);
                hits
            } else {
                let mut engine = engine(name, trace.distinct, capacity, args.tuning.into());
                count_hits(engine.as_mut(), requests, &bar)
            };
            rows.push(Row {
                engine: name,
                case: trace.name.clone(),
                asked: *asked,
                capacity_pages: capacity,
                requests: requests.len() as u64,
                hits,
            });
        }
    }
    bar.finish_and_clear();
}

fn count_hits(engine: &mut dyn Engine, requests: &[u32], bar: &ProgressBar) -> u64 {
    let mut hits = 0;
    for chunk in requests.chunks(1 << 16) {
        hits += chunk.iter().filter(|&&page| engine.access(page)).count() as u64;
        bar.inc(chunk.len() as u64);
    }
    hits
}

/// A bar on a terminal, nothing in a pipe: indicatif hides it where standard error is no terminal.
fn progress(name: &str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{prefix:10} {wide_bar} {percent:>3} % {eta}");
    bar.set_style(style.expect("the template is a constant"));
    bar.set_prefix(name.to_owned());
    bar
}
