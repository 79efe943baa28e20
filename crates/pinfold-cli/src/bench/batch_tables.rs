//! The rows of `pinfold bench batch`, and the tables that they make.

use super::batch_child::Outcome;
use super::batch_memory::BLOCK_BYTES;
use super::batch_nodes::{PAGE_BYTES, RING};
use super::by_engine::{ByEngine, distinct};
use super::report::{self, Row, rate};
use super::workers::Crew;
use crate::size::Size;

/// One thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The case.
    pub case: &'static str,
    /// Reads of a batch.
    pub batch: usize,
    /// Or so many single pages on their way.
    pub in_flight: Option<usize>,
    /// The threads.
    pub threads: usize,
    /// The engine.
    pub engine: &'static str,
}

/// Ratios that are shown where both engines were measured: over, under.
const IN_MEMORY: [(&str, &str); 8] = [
    ("pinfold-read-many", "pinfold-read"),
    ("pinfold-read-many", "mmap"),
    ("pinfold-read-many", "memcpy"),
    ("memcpy-prefetch", "pinfold-read-many"),
    ("pinfold-get-many", "pinfold-get"),
    ("pinfold-borrow-many", "pinfold-borrow"),
    ("pinfold-read-async", "pinfold-read"),
    ("pinfold-get-async", "pinfold-get"),
];
const UNDER_A_LIMIT: [(&str, &str); 6] = [
    ("pinfold-many", "pread-fadvise"),
    ("pinfold-many", "pread"),
    ("pinfold-many", "mmap"),
    ("pinfold-many", "pinfold-get"),
    ("pinfold-prefetch", "pread-fadvise"),
    ("pinfold-async", "pinfold-many"),
];

/// The label of a ratio: short, so that four columns fit beside it.
fn beside(over: &str, under: &str) -> String {
    let short = |engine: &str| engine.trim_start_matches("pinfold-").to_owned();
    format!("{}/{}", short(over), short(under))
}

/// Adds the ratios of the engines that were measured.
fn with_ratios<'a>(rows: impl Iterator<Item = &'a Row>) -> ByEngine<'a> {
    UNDER_A_LIMIT.iter().fold(ByEngine::new(rows), |table, &(over, under)| {
        table.pair(&beside(over, under), (over, under), |ratio| format!("{ratio:.2}"))
    })
}

/// The engine of the rows that say what the device allows another engine.
const LIMIT: &str = "limit";

impl Cell {
    fn row(&self, engine: &str, metric: &'static str, samples: Vec<f64>) -> Row {
        let crew = Crew::Threads(self.threads);
        let row = Row::new(engine, self.case, crew, metric, samples).with("batch", self.batch);
        match self.in_flight {
            None => row,
            Some(in_flight) => row.with("in_flight", in_flight),
        }
    }

    /// What is asked for at once, for people: what a rate counts, and what a time is of.
    fn asked(&self) -> (String, String) {
        let (block, batch) = (Size(PAGE_BYTES as u64), self.batch);
        match self.in_flight {
            None => (format!("batches of {batch} pages of {block}"), format!("batches of {batch}")),
            Some(in_flight) => (
                format!("single pages of {block}, {in_flight} in flight"),
                format!("pages, {in_flight} in flight,"),
            ),
        }
    }

    /// The row of a cell in memory.
    pub fn row_in_memory(&self, file_bytes: Size, samples: Vec<f64>) -> Row {
        let row = self.row(self.engine, "ops_per_s", samples);
        row.with("block_bytes", BLOCK_BYTES).with("file_bytes", file_bytes.0)
    }
}

/// A table for each case in memory and number of threads: engines down, batches across.
pub fn in_memory(rows: &[(Cell, Row)], file_bytes: Size) -> String {
    let tables = distinct(rows.iter().map(|(cell, _)| (cell.case, cell.threads)));
    let tables = tables.into_iter().map(|(case, threads)| {
        let here: Vec<&(Cell, Row)> =
            rows.iter().filter(|(cell, _)| (cell.case, cell.threads) == (case, threads)).collect();
        let engines = distinct(here.iter().map(|(cell, _)| cell.engine));
        let batches = distinct(here.iter().map(|(cell, _)| cell.batch));
        let row = |engine, batch| {
            let of = |(cell, _): &&&(Cell, Row)| cell.engine == engine && cell.batch == batch;
            &here.iter().find(of).expect("every engine was measured with every batch").1
        };
        let line = |label: &str, text: &dyn Fn(usize) -> String| {
            let texts = batches.iter().map(|&batch| text(batch));
            std::iter::once(label.to_owned()).chain(texts).collect::<Vec<_>>()
        };
        let rates = engines.iter().map(|&engine| line(engine, &|batch| rate(row(engine, batch))));
        let both =
            |(over, under): &&(&str, &str)| engines.contains(over) && engines.contains(under);
        let ratios = IN_MEMORY.iter().filter(both).map(|&(over, under)| {
            let ratio = |batch| format!("{:.2}", row(over, batch).ratio(row(under, batch)));
            line(&beside(over, under), &ratio)
        });
        let header = line("batch", &|batch| batch.to_string());
        let crew = Crew::Threads(threads);
        let block = Size(BLOCK_BYTES as u64);
        format!(
            "{case}, {} threads: {block} of {file_bytes}, reads per second\n{}",
            crew.label(),
            report::table(header, rates.chain(ratios).collect())
        )
    });
    tables.collect::<Vec<_>>().join("\n\n")
}

/// The rows of each cell under a limit: pages, times of batches, hits where they are known, and for
/// the cache what the device allows at these hits.
pub fn rows_under_a_limit(
    cells: &[Cell],
    outcomes: &[Vec<Outcome>],
    file_bytes: Size,
) -> Vec<Vec<Row>> {
    let of_cell = |(cell, outcomes_here): (&Cell, &Vec<Outcome>)| {
        let row = |engine: &str, metric, samples| {
            let row = cell.row(engine, metric, samples);
            row.with("block_bytes", PAGE_BYTES).with("file_bytes", file_bytes.0)
        };
        let rates = |outcomes: &[Outcome]| -> Vec<f64> {
            outcomes.iter().map(|outcome| outcome.ops_per_s).collect()
        };
        let p99 = outcomes_here.iter().map(|outcome| outcome.p99_ns as f64).collect();
        let mut rows = vec![
            row(cell.engine, "ops_per_s", rates(outcomes_here)),
            row(cell.engine, "p99_ns", p99),
        ];
        let hits: Option<Vec<f64>> =
            outcomes_here.iter().map(|outcome| outcome.hit_ratio).collect();
        let device = cells.iter().position(|other| *other == Cell { engine: RING, ..*cell });
        if let (Some(hits), Some(device)) = (&hits, device)
            && cell.engine.starts_with("pinfold")
            && hits.iter().all(|&hits| hits < 1.0)
        {
            let of_device = rates(&outcomes[device]);
            let limit = of_device.iter().zip(hits).map(|(rate, hits)| rate / (1.0 - hits));
            rows.push(row(LIMIT, "ops_per_s", limit.collect()).with("of", cell.engine));
        }
        rows.extend(hits.map(|hits| row(cell.engine, "hit_ratio", hits)));
        rows
    };
    cells.iter().zip(outcomes).map(of_cell).collect()
}

/// Two tables for each case under a limit and batch or number in flight: pages a second with hits
/// and what the device allows, and the times of batches. Engines down, threads across.
pub fn under_a_limit(cells: &[Cell], rows: &[Vec<Row>]) -> String {
    let what = |cell: &Cell| (cell.case, cell.asked());
    let tables = distinct(cells.iter().map(what)).into_iter().map(|(case, asked)| {
        let here: Vec<(&Cell, &Row)> = cells
            .iter()
            .zip(rows)
            .filter(|(cell, _)| what(cell) == (case, asked.clone()))
            .flat_map(|(cell, rows)| rows.iter().map(move |row| (cell, row)))
            .collect();
        let of = |metric| {
            let is = move |row: &&Row| row.metric == metric && row.engine != LIMIT;
            here.iter().map(|&(_, row)| row).filter(is)
        };
        let title = format!("{case}: {}, pages per second", asked.0);
        let mut table = with_ratios(of("ops_per_s"));
        let limits = here.iter().filter(|(_, row)| row.engine == LIMIT);
        for engine in distinct(limits.map(|(cell, _)| cell.engine)) {
            let at = |crew, limit: bool| {
                let is = |(cell, row): &&(&Cell, &Row)| {
                    let wanted = if limit { LIMIT } else { engine };
                    cell.engine == engine
                        && row.crew == crew
                        && row.metric == "ops_per_s"
                        && row.engine == wanted
                };
                here.iter().find(is).map(|(_, row)| *row)
            };
            let ratio = |crew| Some(at(crew, false)?.ratio(at(crew, true)?));
            table = table.line(&beside(engine, LIMIT), |_, crew| {
                ratio(crew).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
            });
        }
        for engine in distinct(of("hit_ratio").map(|row| row.engine.as_str())) {
            table = table.line(&format!("hits {engine}"), |_, crew| {
                let mut hits = of("hit_ratio").filter(|row| row.engine == engine);
                let hits = hits.find(|row| row.crew == crew);
                hits.map_or_else(|| "-".to_owned(), |row| format!("{:.1}%", 100.0 * row.median))
            });
        }
        let times = format!("{case}: what 99 of 100 {} take at most, ns", asked.1);
        let times = with_ratios(of("p99_ns")).draw(&times);
        format!("{}\n\n{times}", table.draw(&title))
    });
    tables.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(engine: &'static str, batch: usize) -> Cell {
        Cell { case: "graph", batch, in_flight: None, threads: 1, engine }
    }

    fn outcome(ops_per_s: f64, hit_ratio: Option<f64>) -> Outcome {
        Outcome { ops_per_s, p99_ns: 1500, hit_ratio, cache: None }
    }

    fn line(table: &str, begins: &str) -> Vec<String> {
        let line = table.lines().find(|line| line.trim_start().starts_with(begins));
        let line = line.unwrap_or_else(|| panic!("no line {begins} in:\n{table}"));
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_limit_is_the_devices_rate_over_the_part_that_misses() {
        let cells = [cell(RING, 8), cell("pread", 8), cell("pinfold-many", 8)];
        let outcomes = [
            vec![outcome(90e3, None), outcome(120e3, None)],
            vec![outcome(20e3, Some(0.5)), outcome(20e3, Some(0.5))],
            vec![outcome(60e3, Some(0.25)), outcome(60e3, Some(0.5))],
        ];
        let rows = rows_under_a_limit(&cells, &outcomes, Size(1 << 30));
        let limits: Vec<&Row> = rows.iter().flatten().filter(|row| row.engine == LIMIT).collect();
        assert_eq!(limits.len(), 1, "only the cache has one");
        let told = serde_json::to_value(limits[0]).unwrap();
        assert_eq!(told["of"], "pinfold-many");
        assert_eq!(told["samples"], serde_json::json!([120e3, 240e3]));
        let table = under_a_limit(&cells, &rows);
        assert_eq!(line(&table, "many/limit"), ["many/limit", "0.38"]);
        assert_eq!(line(&table, "many/pread "), ["many/pread", "3.00"]);
        assert_eq!(line(&table, "hits pread"), ["hits", "pread", "50.0%"]);
        assert!(!table.lines().any(|line| line.trim_start().starts_with("limit")), "{table}");
        assert!(table.contains("what 99 of 100 batches of 8 take at most, ns"), "{table}");
    }

    #[test]
    fn what_never_misses_has_no_limit() {
        let cells = [cell(RING, 8), cell("pinfold-get", 8), cell("pinfold-get", 16)];
        let all = |hits| vec![outcome(1e3, hits)];
        let outcomes = [all(None), all(Some(1.0)), all(Some(0.5))];
        let rows = rows_under_a_limit(&cells, &outcomes, Size(1 << 30));
        assert!(rows.iter().flatten().all(|row| row.engine != LIMIT), "nor has another batch");
        assert!(!under_a_limit(&cells, &rows).contains("/limit"));
    }

    #[test]
    fn batches_stand_side_by_side() {
        let row = |engine, batch, rate: f64| {
            let cell = Cell { case: "memory", ..cell(engine, batch) };
            (cell, cell.row_in_memory(Size(1 << 30), vec![rate; 3]))
        };
        let rows = [
            row("pinfold-read", 1, 10e6),
            row("pinfold-read-many", 1, 11e6),
            row("pinfold-read", 16, 10e6),
            row("pinfold-read-many", 16, 25e6),
        ];
        let table = in_memory(&rows, Size(1 << 30));
        assert!(table.starts_with("memory, 1 threads: 64 B of 1 GiB, reads per second\n"));
        assert_eq!(line(&table, "batch"), ["batch", "1", "16"]);
        let ratio = "read-many/read";
        assert_eq!(line(&table, ratio), [ratio, "1.10", "2.50"]);
        assert!(!table.contains("mmap"), "{table}");
    }
}
