//! The report of `pinfold try`, for people and as JSON.

use std::fmt::Write as _;

use anyhow::Result;
use pinfold::Stats;
use pinfold::source::SourceStats;
use serde::Serialize;

use super::check::Checked;
use super::measure::{ENGINES, Figures};
use super::subject::{Subject, file_system};
use crate::bench::report::{Machine, table};
use crate::size::Size;

/// Everything that is said.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: &'static str,
    machine: Machine,
    file: String,
    file_system: String,
    file_bytes: u64,
    source: String,
    checked: CheckedBytes,
    cache: CacheFigures,
    engines: [&'static str; 3],
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
struct CheckedBytes {
    whole_bytes: u64,
    random_reads: u64,
    random_bytes: u64,
    whole_source_bytes: u64,
    random_source_bytes: u64,
}

/// The cache's statistics after the check.
#[derive(Debug, Serialize)]
struct CacheFigures {
    budget_bytes: u64,
    resident_bytes: u64,
    metadata_bytes: u64,
    metadata_percent: f64,
    short_reads: u64,
    counted_hits: u64,
    misses: u64,
    readahead: u64,
    evicted_bytes: u64,
}

impl Report {
    pub(super) fn new(
        subject: &Subject,
        checked: &Checked,
        stats: &Stats,
        sources: &[(String, SourceStats)],
        figures: Figures,
    ) -> Result<Self> {
        let (_, source) =
            sources.first().ok_or_else(|| anyhow::anyhow!("a cache without files"))?;
        let Checked {
            whole_bytes,
            random_reads,
            random_bytes,
            whole_source_bytes,
            random_source_bytes,
        } = *checked;
        Ok(Report {
            version: env!("CARGO_PKG_VERSION"),
            machine: Machine::here(),
            file: subject.name.clone(),
            file_system: file_system(&subject.path),
            file_bytes: subject.bytes,
            source: source.kind.clone(),
            checked: CheckedBytes {
                whole_bytes,
                random_reads,
                random_bytes,
                whole_source_bytes,
                random_source_bytes,
            },
            cache: CacheFigures {
                budget_bytes: stats.budget_bytes,
                resident_bytes: stats.resident_bytes,
                metadata_bytes: stats.metadata_bytes + stats.directories_bytes,
                metadata_percent: 100.0 * (stats.metadata_bytes + stats.directories_bytes) as f64
                    / stats.budget_bytes as f64,
                short_reads: stats.short_reads,
                counted_hits: stats.counted_hits,
                misses: stats.misses,
                readahead: stats.readahead,
                evicted_bytes: stats.evicted_bytes,
            },
            engines: ENGINES,
            figures,
        })
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let (checked, cache) = (&self.checked, &self.cache);
        let mut text = String::new();
        let line = |text: &mut String, line: std::fmt::Arguments<'_>| {
            writeln!(text, "{line}").expect("a string takes what it is given");
        };
        line(
            &mut text,
            format_args!(
                "{} ({}, {}), through a cache of {}",
                self.file,
                self.file_system,
                Size(self.file_bytes),
                Size(cache.budget_bytes)
            ),
        );
        line(
            &mut text,
            format_args!(
                "checked: {} front to back and {} reads at random ({}), every byte as by plain reads",
                Size(checked.whole_bytes),
                checked.random_reads,
                Size(checked.random_bytes)
            ),
        );
        line(
            &mut text,
            format_args!(
                "read from the file for that: {} front to back, {} at random (whole pages)",
                Size(checked.whole_source_bytes),
                Size(checked.random_source_bytes)
            ),
        );
        line(
            &mut text,
            format_args!(
                "hits: {} reads without a reference and {} folios with one; misses: {} folios; \
                 read ahead: {} folios; evicted: {}",
                cache.short_reads,
                cache.counted_hits,
                cache.misses,
                cache.readahead,
                Size(cache.evicted_bytes)
            ),
        );
        line(
            &mut text,
            format_args!(
                "memory: {} of pages and {} of metadata ({:.2} %) in a budget of {}; source: {}\n",
                Size(cache.resident_bytes),
                Size(cache.metadata_bytes),
                cache.metadata_percent,
                Size(cache.budget_bytes),
                self.source
            ),
        );
        text + &self.table()
    }

    fn table(&self) -> String {
        let figures = &self.figures;
        let mut header = vec![String::new()];
        header.extend(self.engines.map(String::from));
        header.extend(["pinfold/pread", "pinfold/mmap"].map(String::from));
        let rates = |name: String, rates: [f64; 3]| {
            let mut line = vec![name];
            line.extend(rates.map(thousands));
            line.extend([1, 2].map(|other| format!("{:.2}", rates[0] / rates[other])));
            line
        };
        let resident = Size(figures.resident_bytes);
        let mut lines = vec![rates(
            "front to back from the file, MiB/s".to_owned(),
            figures.front_to_back_mib_per_s,
        )];
        for (block, figures) in
            [("64 B", figures.random_64_per_s), ("4 KiB", figures.random_4096_per_s)]
        {
            if figures.iter().all(|&rate| rate > 0.0) {
                lines.push(rates(format!("{block} random in {resident} cached, per s"), figures));
            }
        }
        let mut memory = vec!["memory after front to back".to_owned()];
        memory.extend(figures.memory_bytes.map(|bytes| {
            bytes.map_or_else(|| "not told".to_owned(), |bytes| Size(bytes).to_string())
        }));
        memory.extend([const { String::new() }; 2]);
        lines.push(memory);
        table(header, lines)
    }
}

/// A whole number with its thousands apart.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::thousands;

    #[test]
    fn numbers_are_grouped() {
        let shown = [0.4, 999.0, 1000.0, 123_456_789.0].map(thousands);
        assert_eq!(shown, ["0", "999", "1 000", "123 456 789"]);
    }
}
