//! The result of a benchmark: rows of samples, and the machine they were taken on.

use std::ops::Range;

use anyhow::{Result, ensure};
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use serde::Serialize;
use serde_json::{Map, Value};

use super::workers::Crew;
use crate::size::Size;

/// The JSON object of one benchmark.
#[derive(Debug, Serialize)]
pub struct Object {
    bench: &'static str,
    version: &'static str,
    machine: Machine,
    params: Value,
    rows: Vec<Row>,
}

impl Object {
    /// The rows of `bench`, with the machine they were measured on.
    pub fn new(bench: &'static str, params: Value, rows: Vec<Row>) -> Self {
        Object { bench, version: env!("CARGO_PKG_VERSION"), machine: Machine::here(), params, rows }
    }
}

/// The machine.
#[derive(Debug, Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    mem_gib: u64,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        Machine {
            cpu: field("/proc/cpuinfo", "model name"),
            cores: super::workers::cpus().len(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            mem_gib: kib("MemTotal") >> 20,
        }
    }
}

fn field(file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

fn kib(name: &str) -> u64 {
    let told = field("/proc/meminfo", name);
    told.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Memory that programs can have without swapping.
fn memory_available_bytes() -> u64 {
    kib("MemAvailable") << 10
}

/// Refuses what would not fit in the machine's memory: it would measure swapping, or be killed.
pub fn ensure_memory(needed_bytes: u64, smaller: &str) -> Result<()> {
    let available_bytes = memory_available_bytes();
    ensure!(
        needed_bytes < available_bytes / 10 * 9,
        "the files and their copies need {} of memory, and {} are available: choose a smaller \
         {smaller}, or engines with --only",
        Size(needed_bytes),
        Size(available_bytes)
    );
    Ok(())
}

/// One engine in one case: its samples and what they come to.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The engine that was measured.
    pub engine: String,
    /// The case.
    pub case: &'static str,
    /// With how many workers; in the JSON under the crew's own key.
    #[serde(skip)]
    pub crew: Crew,
    #[serde(flatten)]
    more: Map<String, Value>,
    /// The metric.
    pub metric: &'static str,
    samples: Vec<f64>,
    /// The median sample.
    pub median: f64,
    mean: f64,
    /// The standard deviation of the samples, not of their mean.
    pub stddev: f64,
}

impl Row {
    /// A row of `samples`; there is at least one.
    pub fn new(
        engine: &str,
        case: &'static str,
        crew: Crew,
        metric: &'static str,
        samples: Vec<f64>,
    ) -> Self {
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let variance = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>()
            / (samples.len() as f64 - 1.0).max(1.0);
        let mut more = Map::new();
        more.insert(crew.kind().to_owned(), crew.workers().into());
        let median = median(&samples);
        let engine = engine.to_owned();
        Row { engine, case, crew, more, metric, samples, median, mean, stddev: variance.sqrt() }
    }

    /// Adds a dimension.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }

    /// The dimension of that name, if it is a text.
    pub fn of(&self, key: &str) -> Option<&str> {
        self.more.get(key).and_then(Value::as_str)
    }

    /// The median of this row's samples over `other`'s, taken pairwise: neighbours in time.
    pub fn ratio(&self, other: &Row) -> f64 {
        let pairs: Vec<f64> = self.samples.iter().zip(&other.samples).map(|(a, b)| a / b).collect();
        median(&pairs)
    }
}

/// The middle one; there is at least one.
pub fn median(samples: &[f64]) -> f64 {
    assert!(!samples.is_empty(), "a median of nothing");
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// How wide a table may be: a terminal as it opens.
const WIDTH: usize = 80;

/// A table with a line under its header, numbers to the right. Columns that do not fit beside the
/// others go into a further table below, with the first column again.
pub fn table(header: Vec<String>, lines: Vec<Vec<String>>) -> String {
    let lines: Vec<Vec<String>> = std::iter::once(header).chain(lines).collect();
    let pieces = pieces(&widths(&lines));
    let drawn = pieces.into_iter().map(|columns| {
        let of_piece = lines.iter().map(|line| {
            std::iter::once(&line[0]).chain(&line[columns.clone()]).map(String::as_str).collect()
        });
        draw(of_piece.collect())
    });
    drawn.collect::<Vec<_>>().join("\n")
}

/// What each column takes, with its padding and the gap before the next.
fn widths(lines: &[Vec<String>]) -> Vec<usize> {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    (0..lines[0].len()).map(|column| width(column).unwrap_or(0) + 3).collect()
}

/// The columns that stand beside the first, table by table; at least one in each.
fn pieces(widths: &[usize]) -> Vec<Range<usize>> {
    let (mut pieces, mut begin) = (Vec::new(), 1);
    // Ends: each turn takes a column at least.
    while begin < widths.len() {
        let mut room = WIDTH.saturating_sub(widths[0]);
        let fits = widths[begin..].iter().take_while(|&&width| {
            let left = room.checked_sub(width);
            room = left.unwrap_or(0);
            left.is_some()
        });
        let end = begin + fits.count().max(1);
        pieces.push(begin..end);
        begin = end;
    }
    pieces
}

/// The first line is the header, the first column has labels.
fn draw(lines: Vec<Vec<&str>>) -> String {
    let rule = LineStyle::none().fill('─').junction('─');
    let mut table = Table::new();
    table
        .load_style(TableStyle::new().header_separator(rule).bottom_border(rule))
        .set_content_arrangement(ContentArrangement::Disabled);
    let mut lines = lines.into_iter();
    if let Some(header) = lines.next() {
        table.set_header(header);
    }
    for line in lines {
        table.add_row(line);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// What the star in [`Crew::label`] means, if there is one.
pub fn footnote(crews: &[Crew]) -> String {
    let cpus = super::workers::cpus().len();
    if crews.iter().any(|crew| crew.workers() > cpus) {
        format!("\n* more workers than the {cpus} CPUs: they share them")
    } else {
        String::new()
    }
}

/// A rate for people: three digits and a prefix, with the spread of its samples.
pub fn rate(row: &Row) -> String {
    let (scale, unit) = match row.median {
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let value = row.median / scale;
    let digits = if value >= 100.0 { 0 } else { usize::from(value < 10.0) + 1 };
    format!("{value:.digits$}{unit} ±{:.0}%", 100.0 * row.stddev / row.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(columns: usize, text: &str) -> Vec<String> {
        vec![text.to_owned(); columns]
    }

    #[test]
    fn a_wide_table_goes_on_below() {
        let narrow = table(cells(4, "four"), vec![cells(4, "4")]);
        assert_eq!(narrow.matches('4').count(), 4);
        assert_eq!(narrow.lines().count(), 4, "{narrow}");
        let wide = table(cells(12, "ten digits"), vec![cells(12, "±0123456789")]);
        assert!(wide.lines().all(|line| line.chars().count() <= WIDTH), "{wide}");
        // Eleven columns, five beside the first at a time.
        assert_eq!(wide.matches("±0123456789").count(), 11 + 3, "{wide}");
    }

    #[test]
    fn a_column_that_is_too_wide_for_any_table_has_one_to_itself() {
        let long = "x".repeat(100);
        let drawn = table(cells(3, &long), vec![cells(3, "1")]);
        assert_eq!(drawn.matches(&long).count(), 4);
        assert_eq!(pieces(&[102, 102, 102]), [1..2, 2..3]);
    }
}
