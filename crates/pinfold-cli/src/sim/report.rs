//! Reports the results: a table for people, JSON for programs.

use std::path::Path;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use serde_json::{Value, json};

use super::args::{Capacity, SimArgs};
use super::engine::ENGINES;
use super::error::SimError;
use super::trace::Trace;

/// One policy on one trace at one capacity.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) engine: &'static str,
    pub(super) case: String,
    pub(super) asked: Capacity,
    pub(super) capacity_pages: u32,
    pub(super) requests: u64,
    pub(super) hits: u64,
}

impl Row {
    pub(super) fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.requests as f64
    }
}

/// The table of one trace: a line for each policy, a column for each capacity, hit ratios in
/// percent.
pub(super) fn table(trace: &Trace, rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let of_first = rows.iter().filter(|row| row.engine == ENGINES[0]);
    let heads = of_first.map(|row| match row.asked {
        Capacity::Percent(percent) => format!("{percent} % ({})", row.capacity_pages),
        Capacity::Pages(pages) => format!("{pages}"),
    });
    table.set_header(std::iter::once("hit ratio, %".to_owned()).chain(heads));
    for engine in ENGINES {
        let ratios = rows.iter().filter(|row| row.engine == engine).map(|row| {
            let percent = format!("{:.2}", row.hit_ratio() * 100.0);
            Cell::new(percent).set_alignment(CellAlignment::Right)
        });
        table.add_row(std::iter::once(Cell::new(engine)).chain(ratios));
    }
    format!(
        "{}: {} requests, {} distinct pages; capacities of the distinct pages (in pages)\n{table}",
        trace.name,
        trace.requests.len(),
        trace.distinct
    )
}

fn json(args: &SimArgs, rows: &[Row]) -> Value {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let ratio = row.hit_ratio();
            let percent = match row.asked {
                Capacity::Percent(percent) => Some(percent),
                Capacity::Pages(_) => None,
            };
            json!({
                "engine": row.engine, "case": row.case, "metric": "hit_ratio",
                "capacity_pages": row.capacity_pages, "capacity_percent": percent,
                "requests": row.requests, "hits": row.hits,
                // A simulation repeats exactly, so there is one sample.
                "samples": [ratio], "median": ratio, "mean": ratio, "stddev": 0.0,
            })
        })
        .collect();
    let tuning = args.tuning;
    json!({
        "bench": "sim",
        "version": env!("CARGO_PKG_VERSION"),
        "params": {
            "traces": args.traces, "pages": args.pages, "requests": args.requests,
            "skew": args.skew, "seed": args.seed,
            "small_percent": tuning.small_percent, "ghost_percent": tuning.ghost_percent,
            "main_fill_percent": tuning.main_fill_percent,
            "promote_uses": tuning.promote_uses, "reprieves_max": tuning.reprieves_max,
            "main_ghosts": tuning.main_ghosts,
        },
        "rows": rows,
    })
}

/// Writes the figures; `-` is standard output.
pub(super) fn write_json(path: &Path, args: &SimArgs, rows: &[Row]) -> Result<(), SimError> {
    let text = format!("{:#}", json(args, rows));
    let written = if path.as_os_str() == "-" {
        crate::say::try_print(text)
    } else {
        std::fs::write(path, text + "\n")
    };
    written.map_err(|cause| SimError::Write { path: path.to_owned(), cause })
}
