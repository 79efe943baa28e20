//! `pinfold sim`: replay traces against replacement policies.
//!
//! Here: the loop over traces, capacities and policies. Not here: the command's arguments
//! (`args.rs`) and errors (`error.rs`), traces (`trace.rs`, `generate.rs`), policies (`pinfold.rs`
//! drives the cache's own code, `lru.rs`, `tinylfu.rs`, `optimum.rs` are references), what is
//! printed (`report.rs`).
//!
//! Every page weighs one page. Percentages of capacity are of the distinct pages of the trace.

#[cfg(test)]
mod against_cache;
mod args;
mod engine;
mod error;
mod generate;
mod lists;
mod lru;
mod optimum;
mod pinfold;
mod report;
mod ring;
mod tinylfu;
mod trace;

#[cfg(test)]
mod tests;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pinfold_policy::{S3Fifo, S3FifoOptions};

pub(crate) use self::args::SimArgs;
use self::engine::{ENGINES, Engine};
pub(crate) use self::error::SimError;
use self::lru::Lru;
use self::pinfold::Driver;
use self::report::Row;
use self::ring::Ring;
use self::tinylfu::WTinyLfu;
use self::trace::Trace;
use crate::{publish, say};

/// Every engine but the optimum, which needs to know the future.
fn engine(name: &str, distinct: u32, capacity: u32, options: S3FifoOptions) -> Box<dyn Engine> {
    let pages = u64::from(capacity);
    match name {
        "pinfold" => {
            Box::new(Driver::new(S3Fifo::with_options(pages, options), distinct, capacity))
        }
        "clock" => Box::new(Ring::new(distinct, capacity, true)),
        "fifo" => Box::new(Ring::new(distinct, capacity, false)),
        "lru" => Box::new(Lru::new(distinct, capacity)),
        "w-tinylfu" => Box::new(WTinyLfu::new(distinct, capacity)),
        _ => unreachable!("{name} is in ENGINES but not known here"),
    }
}

/// Replays every trace against every policy at every capacity and prints the tables.
///
/// # Errors
/// If a trace cannot be read or made, or the JSON cannot be written.
pub(crate) fn run(args: &SimArgs) -> anyhow::Result<()> {
    publish::check(args.json.as_deref())?;
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
        let table = format_args!("{table}\n");
        if json_on_stdout { say::tell(table) } else { say::print(table)? }
    }
    if let Some(path) = &args.json {
        report::write_json(path, args, &rows)?;
    }
    Ok(())
}

fn load(name: &str, args: &SimArgs) -> Result<Trace, SimError> {
    if generate::NAMES.contains(&name) {
        generate::generate(name, args.pages, args.requests, args.skew, args.seed)
    } else {
        trace::read(name.as_ref(), args.format).map_err(|error| match error {
            SimError::Read { path, cause } => {
                SimError::Unknown { path, cause, generators: generate::NAMES.join(", ") }
            }
            other => other,
        })
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
