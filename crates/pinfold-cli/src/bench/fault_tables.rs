//! The cells and rows of `pinfold bench fault`, and the tables that they make.

use std::fmt;

use anyhow::{Context, Result, ensure};

use super::by_engine::distinct;
use super::fault_job::{Figure, Outcome};
use super::fault_maps::DECADES;
use super::fault_touch::Order;
use super::report::{self, Row};
use super::workers::Crew;
use crate::size::Size;

/// One thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The case.
    pub case: &'static str,
    /// The engine.
    pub engine: &'static str,
    /// The threads.
    pub threads: usize,
    /// In which order pages are touched, where there are two.
    pub order: Option<Order>,
    /// How many pages are handled at once, where there are several numbers.
    pub run_pages: Option<usize>,
    /// The lock that a fault of the cache takes, and what becomes of it during I/O.
    pub policy: Option<(&'static str, &'static str)>,
}

/// What a sample's process may tell.
const METRICS: [&str; 14] = [
    "ns_per_page",
    "ops_per_s",
    "p99_us",
    "rounds_per_s",
    "slowest_over_mean",
    "pageout_rounds_per_s",
    "writer_longest_us",
    "faults",
    "retries",
    "retry_io_miss",
    "retry_space_lock",
    "lock_acquired",
    "lock_waits",
    "lock_wait_us",
];
/// Has a row for each length.
const OF_LENGTH: &str = "lock_waits_of_length";

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {} threads", self.case, self.label(), self.threads)
    }
}

impl Cell {
    /// The engine, with its lock and policy.
    fn label(&self) -> String {
        match self.policy {
            Some((lock, io))
                if matches!(self.case, "thrash" | "thrash-holes" | "startup" | "swap") =>
            {
                format!("{} {lock} {io}", self.engine)
            }
            _ => self.engine.to_owned(),
        }
    }

    /// A row of samples, with the dimensions of this cell.
    pub fn row(&self, metric: &'static str, samples: Vec<f64>) -> Row {
        let mut row =
            Row::new(self.engine, self.case, Crew::Threads(self.threads), metric, samples);
        if let Some(order) = self.order {
            row = row.with("order", order.name());
        }
        if let Some(pages) = self.run_pages {
            row = row.with("pages", pages);
        }
        if let Some((lock, io)) = self.policy {
            row = row.with("lock", lock).with("io", io);
        }
        row
    }

    /// A row for each figure, which every sample has.
    pub fn rows(&self, outcomes: &[Outcome]) -> Result<Vec<Row>> {
        let first = outcomes.first().context("no sample")?;
        ensure!(
            outcomes.iter().all(|outcome| {
                let same = |(a, b): (&Figure, &Figure)| a.metric == b.metric && a.of == b.of;
                outcome.figures.len() == first.figures.len()
                    && outcome.figures.iter().zip(&first.figures).all(same)
            }),
            "samples of {self} told of different figures"
        );
        let row = |(n, figure): (usize, &Figure)| {
            let known = METRICS.iter().chain([&OF_LENGTH]).find(|name| **name == figure.metric);
            let metric = known.with_context(|| format!("no metric {}", figure.metric))?;
            let samples = outcomes.iter().map(|outcome| outcome.figures[n].value).collect();
            let of = figure.of.iter();
            Ok(of
                .fold(self.row(metric, samples), |row, (key, value)| row.with(key, value.as_str())))
        };
        first.figures.iter().enumerate().map(row).collect()
    }
}

/// A cell and its rows.
type Measured = (Cell, Vec<Row>);

fn row_of<'a>((_, rows): &'a Measured, metric: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.metric == metric)
}

/// A number for people, as long as it has to be.
fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v > 0.0 => format!("{v:.2}"),
        _ => "0".to_owned(),
    }
}

/// The same of a row, with the spread of its samples.
fn spread(row: &Row) -> String {
    if row.median > 0.0 {
        format!("{} ±{:.0}%", number(row.median), 100.0 * row.stddev / row.median)
    } else {
        number(row.median)
    }
}

/// All tables. `sizes` says how many bytes a cell reads, and how much memory there is for them.
pub fn tables(measured: &[Measured], sizes: &dyn Fn(&Cell) -> (u64, u64)) -> String {
    let mut tables = Vec::new();
    for case in distinct(measured.iter().map(|(cell, _)| cell.case)) {
        let here: Vec<&Measured> = measured.iter().filter(|(cell, _)| cell.case == case).collect();
        let (bytes, memory) = sizes(&here[0].0);
        let all = Size(bytes);
        let by_order = |what: &str, base: &str| {
            let orders = distinct(here.iter().map(|(cell, _)| cell.order));
            let table = |order: Option<Order>| {
                let of: Vec<_> =
                    here.iter().filter(|(cell, _)| cell.order == order).copied().collect();
                let order = order.map_or("", Order::name);
                let title = format!("{case}, {order}: {what}, ns a page");
                beside(&title, "threads", &of, "ns_per_page", base, |cell| threads(cell.threads))
            };
            orders.into_iter().map(table).collect::<Vec<_>>()
        };
        let by_threads = |what: &str, metric: &str, base: &str| {
            let title = format!("{case}: {what}");
            beside(&title, "threads", &here, metric, base, |cell| threads(cell.threads))
        };
        match case {
            "install" => {
                tables.extend(by_order(&format!("touch {all} that are in memory"), "native"));
            }
            "warm" => {
                tables.extend(by_order(&format!("touch {all} that are cached"), "kernel-mmap"));
            }
            "fill" => {
                for (metric, unit) in
                    [("cpu_ns_per_page", "processor time"), ("ns_per_page", "time")]
                {
                    let title = format!("fill: pages from storage into memory, {unit}, ns a page");
                    tables.push(beside(&title, "pages at once", &here, metric, "read", run));
                }
            }
            "evict" => {
                for count in distinct(here.iter().map(|(cell, _)| cell.threads)) {
                    let of: Vec<_> =
                        here.iter().filter(|(cell, _)| cell.threads == count).copied().collect();
                    let count = threads(count);
                    let title =
                        format!("evict, {count} threads: mapped pages are taken away, ns a page");
                    tables.push(beside(&title, "pages at once", &of, "ns_per_page", "punch", run));
                }
            }
            "random" | "zipf" => {
                let memory = Size(memory);
                let how = if case == "random" { "at random" } else { "by Zipf's law" };
                let what = format!("64 bytes {how} of {all}, {memory} for them");
                tables.push(by_threads(
                    &format!("{what}, reads per second"),
                    "ops_per_s",
                    "kernel-mmap",
                ));
                let what = "what 99 of 100 reads take at most, us";
                tables.push(by_threads(what, "p99_us", "kernel-mmap"));
            }
            _ => {
                for count in distinct(here.iter().map(|(cell, _)| cell.threads)) {
                    let of: Vec<_> =
                        here.iter().filter(|(cell, _)| cell.threads == count).copied().collect();
                    tables.extend(rounds(&of, sizes(&of[0].0)));
                }
            }
        }
    }
    tables.join("\n\n")
}

fn threads(count: usize) -> String {
    Crew::Threads(count).label()
}

fn run(cell: &Cell) -> String {
    cell.run_pages.unwrap_or(1).to_string()
}

/// Engines down, one dimension across; beside each value its ratio to that of `base`.
fn beside(
    title: &str,
    corner: &str,
    measured: &[&Measured],
    metric: &str,
    base: &str,
    across: impl Fn(&Cell) -> String,
) -> String {
    let labels = distinct(measured.iter().map(|(cell, _)| cell.label()));
    let columns = distinct(measured.iter().map(|(cell, _)| across(cell)));
    let at = |label: &str, column: &str| {
        let is = |(cell, _): &&&Measured| cell.label() == label && across(cell) == column;
        measured.iter().find(is).and_then(|one| row_of(one, metric))
    };
    let has_base = labels.iter().any(|label| label == base);
    let titled = |column: &String| {
        if has_base { format!("{column}  ratio") } else { column.clone() }
    };
    let header = std::iter::once(corner.to_owned()).chain(columns.iter().map(titled)).collect();
    // In one column, so that they stay side by side.
    let value = |label: &str, column: &String| {
        let Some(row) = at(label, column) else { return "-".to_owned() };
        match at(base, column) {
            Some(base) => format!("{} {:>6}", spread(row), format!("{:.2}", row.ratio(base))),
            None => spread(row),
        }
    };
    let line = |label: &String| {
        let values = columns.iter().map(|column| value(label, column));
        std::iter::once(label.clone()).chain(values).collect()
    };
    let title = if has_base { format!("{title} (ratio: to {base})") } else { title.to_owned() };
    format!("{title}\n{}", report::table(header, labels.iter().map(line).collect()))
}

/// Of one number of threads: rounds, and what the spaces counted.
fn rounds(measured: &[&Measured], (bytes, memory): (u64, u64)) -> Vec<String> {
    let first = &measured[0].0;
    let (case, count) = (first.case, threads(first.threads));
    let what = if case == "startup" { "starts/s" } else { "rounds/s" };
    let title =
        format!("{case}, {count} threads: {} in all, {} for them", Size(bytes), Size(memory));
    let base = measured.iter().find(|(cell, _)| cell.engine == "kernel-mmap").copied();
    let writes = measured.iter().any(|one| row_of(one, "writer_longest_us").is_some());
    let mut header = vec!["engine".to_owned(), what.to_owned()];
    header.extend(base.map(|_| "/kernel-mmap".to_owned()));
    let columns = [
        ("slowest/mean", "slowest_over_mean"),
        ("page-out rounds/s", "pageout_rounds_per_s"),
        ("writer's longest, us", "writer_longest_us"),
    ];
    let has = |metric| measured.iter().any(|one| row_of(one, metric).is_some());
    let columns = columns
        .into_iter()
        .filter(|(title, metric)| has(*metric) || !writes && *title == "slowest/mean");
    let columns: Vec<_> = columns.collect();
    header.extend(columns.iter().map(|(title, _)| (*title).to_owned()));
    let line = |one: &&Measured| {
        let row = row_of(one, "rounds_per_s");
        let mut line = vec![one.0.label(), row.map_or_else(String::new, spread)];
        if let Some(base) = base {
            let ratio = row.zip(row_of(base, "rounds_per_s")).map(|(row, base)| row.ratio(base));
            line.push(ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")));
        }
        let more = |metric| row_of(one, metric).map_or_else(|| "-".to_owned(), spread);
        line.extend(columns.iter().map(|(_, metric)| more(metric)));
        line
    };
    let table = report::table(header, measured.iter().map(line).collect());
    let mut tables = vec![format!("{title}\n{table}{}", locks_compared(measured))];
    let spaces: Vec<&Measured> =
        measured.iter().filter(|(cell, _)| cell.policy.is_some()).copied().collect();
    if !spaces.is_empty() {
        tables.push(retries(case, &count, &spaces));
        tables.push(waits(case, &count, &spaces));
    }
    tables
}

/// What readers waited for locks of both kinds, us.
fn readers_wait_us((_, rows): &Measured) -> f64 {
    let waits = rows.iter().filter(|row| row.metric == "lock_wait_us");
    waits.filter(|row| row.of("by") == Some("readers")).map(|row| row.median).sum()
}

/// Lines that compare the two locks under each policy, if both were measured.
fn locks_compared(measured: &[&Measured]) -> String {
    let of =
        |lock, io| measured.iter().copied().find(move |(cell, _)| cell.policy == Some((lock, io)));
    let line = |io| {
        let (vma, space) = (of("vma", io)?, of("space", io)?);
        let ratio = row_of(vma, "rounds_per_s")?.ratio(row_of(space, "rounds_per_s")?);
        let waits = [vma, space].map(readers_wait_us);
        let times = if waits[1] > 0.0 {
            format!("faults wait for locks {:.3} times as long", waits[0] / waits[1])
        } else if waits[0] > 0.0 {
            format!("only with vma do faults wait for locks, {} us", number(waits[0]))
        } else {
            "no fault waits for a lock".to_owned()
        };
        Some(format!("\nvma/space, {io}: {ratio:.2} times the rate; {times}"))
    };
    ["drop", "hold"].into_iter().filter_map(line).collect()
}

fn policy(cell: &Cell) -> String {
    cell.policy.map_or_else(String::new, |(lock, io)| format!("{lock} {io}"))
}

fn retries(case: &str, count: &str, spaces: &[&Measured]) -> String {
    let columns = [
        ("faults", "faults"),
        ("retries", "retries"),
        ("found evicted, %", "retry_io_miss"),
        ("under space lock", "retry_space_lock"),
    ];
    let header = std::iter::once("pinfold").chain(columns.map(|(title, _)| title));
    let line = |one: &&Measured| {
        let value = |metric| row_of(one, metric).map_or_else(String::new, |row| number(row.median));
        std::iter::once(policy(&one.0)).chain(columns.map(|(_, metric)| value(metric))).collect()
    };
    let table =
        report::table(header.map(str::to_owned).collect(), spaces.iter().map(line).collect());
    format!("{case}, {count} threads: what a sample's faults had to do again\n{table}")
}

/// Acquisitions and waits of each lock that somebody waited for, and the number of waits by their
/// length.
fn waits(case: &str, count: &str, spaces: &[&Measured]) -> String {
    let mut lines = Vec::new();
    for one in spaces {
        for (lock, by) in
            [("vma", "readers"), ("vma", "writers"), ("space", "readers"), ("space", "writers")]
        {
            let value = |metric: &str, wait: Option<&str>| {
                let is = |row: &&Row| {
                    row.metric == metric
                        && row.of("lock_of") == Some(lock)
                        && row.of("by") == Some(by)
                        && row.of("wait") == wait
                };
                one.1.iter().find(is).map_or(0.0, |row| row.median)
            };
            let all = ["lock_acquired", "lock_waits", "lock_wait_us"].map(|name| value(name, None));
            if all[1] > 0.0 {
                let label = format!("{}: {lock}, {by}", policy(&one.0));
                lines.push((label, all, DECADES.map(|wait| value(OF_LENGTH, Some(wait)))));
            }
        }
    }
    if lines.is_empty() {
        return format!("{case}, {count} threads: nobody waited for a lock");
    }
    let occurs = |&wait: &usize| lines.iter().any(|(.., waits)| waits[wait] > 0.0);
    let lengths: Vec<usize> = (0..DECADES.len()).filter(occurs).collect();
    let header = ["lock", "acquired", "waits", "us in all"].into_iter();
    let header = header.chain(lengths.iter().map(|&wait| DECADES[wait]));
    let line = |(label, all, waits): &(String, [f64; 3], [f64; DECADES.len()])| {
        let numbers = all.iter().chain(lengths.iter().map(|&wait| &waits[wait]));
        std::iter::once(label.clone()).chain(numbers.map(|&value| number(value))).collect()
    };
    let table =
        report::table(header.map(str::to_owned).collect(), lines.iter().map(line).collect());
    format!(
        "{case}, {count} threads: a sample's waits for locks, by length; others were free\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(case: &'static str, policy: Option<(&'static str, &'static str)>) -> Cell {
        let engine = if policy.is_some() { "pinfold" } else { "kernel-mmap" };
        Cell { case, engine, threads: 1, order: None, run_pages: None, policy }
    }

    /// A metric, its further dimensions, and its value.
    type Told<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);

    fn outcome(figures: &[Told<'_>]) -> Outcome {
        let figure = |&(metric, of, value): &Told<'_>| Figure {
            metric: metric.to_owned(),
            of: of.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
            value,
        };
        Outcome { figures: figures.iter().map(figure).collect(), cache: None }
    }

    fn line(table: &str, begins: &str) -> Vec<String> {
        let line = table.lines().find(|line| line.trim_start().starts_with(begins));
        let line = line.unwrap_or_else(|| panic!("no line {begins} in:\n{table}"));
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Rounds a second, a wait of faults for each kind of lock, and one of writers.
    fn space(cell: Cell, rounds: f64, waits_us: [f64; 3]) -> Measured {
        let kinds = [("vma", "readers"), ("space", "readers"), ("space", "writers")];
        let dims = kinds.map(|(of, by)| [("lock_of", of), ("by", by)]);
        let lengths = kinds.map(|(of, by)| [("lock_of", of), ("by", by), ("wait", "<1ms")]);
        let mut figures: Vec<Told<'_>> = vec![("rounds_per_s", &[], rounds)];
        for n in 0..3 {
            figures.push(("lock_acquired", &dims[n], 7.0));
            figures.push(("lock_waits", &dims[n], 3.0));
            figures.push(("lock_wait_us", &dims[n], waits_us[n]));
            figures.push(("lock_waits_of_length", &lengths[n], 3.0));
        }
        let outcomes = vec![outcome(&figures); 2];
        (cell, cell.rows(&outcomes).unwrap())
    }

    #[test]
    fn the_locks_are_compared_under_the_same_policy() {
        let kernel = cell("thrash", None);
        let measured = [
            (kernel, kernel.rows(&[outcome(&[("rounds_per_s", &[], 40.0)])]).unwrap()),
            space(cell("thrash", Some(("vma", "drop"))), 60.0, [10.0, 0.0, 500.0]),
            space(cell("thrash", Some(("space", "drop"))), 20.0, [50.0, 150.0, 900.0]),
            space(cell("thrash", Some(("vma", "hold"))), 10.0, [1.0, 0.0, 0.0]),
        ];
        let text = tables(&measured, &|_| (16 << 20, 2 << 20));
        assert!(text.starts_with("thrash, 1 threads: 16 MiB in all, 2 MiB for them\n"), "{text}");
        assert_eq!(line(&text, "kernel-mmap "), ["kernel-mmap", "40.0", "±0%", "1.00", "-"]);
        assert_eq!(line(&text, "pinfold vma drop")[3..6], ["60.0", "±0%", "1.50"]);
        assert!(text.contains(
            "vma/space, drop: 3.00 times the rate; faults wait for locks 0.050 times as long"
        ));
        // Of the other policy there is no space.
        assert!(!text.contains("vma/space, hold"), "{text}");
        // Nobody is said to have waited for a lock that no row tells of.
        assert!(!text.contains("vma, writers"), "{text}");
        let waits = ["space", "drop:", "space,", "writers", "7.00", "3.00", "900", "3.00"];
        assert_eq!(line(&text, "space drop: space, writers"), waits);
        assert!(text.contains("<1ms") && !text.contains("<10us"), "{text}");
    }

    #[test]
    fn each_value_has_its_ratio_to_the_base_of_its_column() {
        let row = |engine, threads, ns: f64| {
            let cell =
                Cell { engine, threads, order: Some(Order::Random), ..cell("install", None) };
            (cell, vec![cell.row("ns_per_page", vec![ns; 3])])
        };
        let measured = [
            row("native", 1, 200.0),
            row("continue-1", 1, 3000.0),
            row("native", 2, 400.0),
            row("continue-1", 2, 5000.0),
        ];
        let text = tables(&measured, &|_| (1 << 20, 0));
        assert!(
            text.contains("install, random: touch 1 MiB that are in memory, ns a page"),
            "{text}"
        );
        let expected = ["continue-1", "3000", "±0%", "15.00", "5000", "±0%", "12.50"];
        assert_eq!(line(&text, "continue-1"), expected);
        // Without the base there is no ratio.
        let text = tables(&measured[1..2], &|_| (1 << 20, 0));
        assert_eq!(line(&text, "continue-1"), ["continue-1", "3000", "±0%"]);
        assert!(!text.contains("ratio"), "{text}");
    }

    #[test]
    fn samples_that_tell_of_different_figures_are_refused() {
        let cell = cell("thrash", None);
        let (one, other) = (outcome(&[("faults", &[], 1.0)]), outcome(&[("retries", &[], 1.0)]));
        let told = |outcomes: &[Outcome]| cell.rows(outcomes).unwrap_err().to_string();
        assert!(told(&[one, other]).contains("told of different figures"));
        assert!(told(&[outcome(&[("luck", &[], 1.0)])]).contains("no metric luck"));
    }
}
