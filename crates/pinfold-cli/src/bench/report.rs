//! What a benchmark gives: rows of samples, and the machine they were taken on.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Crew;

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
    /// Puts the rows of `bench` together with the machine they were measured on.
    pub fn new(bench: &'static str, params: Value, rows: Vec<Row>) -> Self {
        Object { bench, version: env!("CARGO_PKG_VERSION"), machine: Machine::here(), params, rows }
    }
}

/// What was measured on.
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
pub fn memory_available_bytes() -> u64 {
    kib("MemAvailable") << 10
}

/// One engine in one case: its samples and what they come to.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Who was measured.
    pub engine: String,
    /// Doing what.
    pub case: &'static str,
    #[serde(flatten)]
    more: Map<String, Value>,
    /// What the samples are of.
    pub metric: &'static str,
    samples: Vec<f64>,
    /// The middle sample.
    pub median: f64,
    mean: f64,
    /// Of the samples, not of their mean.
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
        Row { engine, case, more, metric, samples, median, mean, stddev: variance.sqrt() }
    }

    /// With one more dimension.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
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

/// A table with a line under its header, numbers to the right.
pub fn table(header: Vec<String>, lines: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for line in lines {
        table.add_row(line);
    }
    for column in table.column_iter_mut() {
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
