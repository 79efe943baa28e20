//! Tables with a line for each engine and a column for each number of workers, ratios below.
//!
//! Not here: how a table is drawn and made to fit (`report.rs`).

use super::report::{self, Row, rate};
use super::workers::Crew;

/// A table that is built line by line.
#[derive(Debug)]
pub struct ByEngine<'a> {
    rows: Vec<&'a Row>,
    crews: Vec<Crew>,
    lines: Vec<Vec<String>>,
}

impl<'a> ByEngine<'a> {
    /// Adds a line of rates for each engine of `rows`, with a column for each crew, in their order.
    /// Every engine was measured with every crew.
    pub fn new(rows: impl IntoIterator<Item = &'a Row>) -> Self {
        let rows: Vec<&Row> = rows.into_iter().collect();
        let crews = distinct(rows.iter().map(|row| row.crew));
        let engines = distinct(rows.iter().map(|row| row.engine.as_str()));
        let mut table = ByEngine { rows, crews, lines: Vec::new() };
        for engine in engines {
            table = table.line(engine, |table, crew| rate(table.measured(engine, crew)));
        }
        table
    }

    fn row(&self, engine: &str, crew: Crew) -> Option<&'a Row> {
        self.rows.iter().copied().find(|row| row.engine == engine && row.crew == crew)
    }

    fn measured(&self, engine: &str, crew: Crew) -> &'a Row {
        self.row(engine, crew).expect("every engine was measured with every crew")
    }

    fn has(&self, engine: &str) -> bool {
        self.rows.iter().any(|row| row.engine == engine)
    }

    /// Adds a line.
    #[must_use]
    pub fn line(mut self, label: &str, text: impl Fn(&Self, Crew) -> String) -> Self {
        let mut line = vec![label.to_owned()];
        line.extend(self.crews.iter().map(|&crew| text(&self, crew)));
        self.lines.push(line);
        self
    }

    /// Adds the line that `text` makes from the rows of two engines, if both were measured.
    #[must_use]
    pub fn pair(
        self,
        label: &str,
        (over, under): (&str, &str),
        text: impl Fn(f64) -> String,
    ) -> Self {
        if !self.has(over) || !self.has(under) {
            return self;
        }
        self.line(label, |table, crew| {
            text(table.measured(over, crew).ratio(table.measured(under, crew)))
        })
    }

    /// Adds the ratios of the pairs (over, under) of which both engines were measured.
    #[must_use]
    pub fn ratios(self, pairs: &[(&str, &str)]) -> Self {
        pairs.iter().fold(self, |table, &(over, under)| {
            table.pair(&format!("{over}/{under}"), (over, under), two_digits)
        })
    }

    /// Adds the ratio of `engine` to the best of `others`, with its name, if they were measured.
    #[must_use]
    pub fn over_best(self, engine: &str, others: &[&str], what: &str) -> Self {
        if !self.has(engine) || !others.iter().any(|other| self.has(other)) {
            return self;
        }
        self.line(&format!("{engine}/{what}"), |table, crew| {
            let measured = others.iter().filter_map(|other| table.row(other, crew));
            let best = measured.max_by(|a, b| a.median.total_cmp(&b.median));
            let best = best.expect("one of them was measured");
            format!("{:.2} {}", table.measured(engine, crew).ratio(best), best.engine)
        })
    }

    /// Adds the ratio of `engine` to itself with one worker, if both were measured.
    #[must_use]
    pub fn scaling(self, engine: &str) -> Self {
        let one = self.crews.iter().copied().find(|crew| crew.workers() == 1);
        let Some(one) = one.filter(|_| self.crews.len() > 1 && self.has(engine)) else {
            return self;
        };
        self.line(&format!("{engine}/its 1"), |table, crew| {
            two_digits(table.measured(engine, crew).ratio(table.measured(engine, one)))
        })
    }

    /// The table, under a title.
    pub fn draw(self, title: &str) -> String {
        let kind = self.crews.first().map_or("threads", |crew| crew.kind());
        let mut header = vec![kind.to_owned()];
        header.extend(self.crews.iter().map(|crew| crew.label()));
        format!("{title}\n{}", report::table(header, self.lines))
    }
}

fn two_digits(ratio: f64) -> String {
    format!("{ratio:.2}")
}

/// The distinct ones, in the order of their first appearance.
pub fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in all {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |engine, threads, rate| {
            Row::new(engine, "case", Crew::Threads(threads), "ops_per_s", vec![rate; 3])
        };
        vec![
            row("limit", 1, 8e6),
            row("ours", 1, 4e6),
            row("theirs", 1, 1e6),
            row("others", 1, 2e6),
            row("limit", 2, 16e6),
            row("ours", 2, 6e6),
            row("theirs", 2, 3e6),
            row("others", 2, 2e6),
        ]
    }

    fn line(table: &str, begins: &str) -> Vec<String> {
        let line = table.lines().find(|line| line.trim_start().starts_with(begins));
        let line = line.unwrap_or_else(|| panic!("no line {begins} in:\n{table}"));
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn ratios_are_of_the_right_rows() {
        let rows = rows();
        let table = ByEngine::new(&rows)
            .ratios(&[("limit", "ours"), ("ours", "nobody")])
            .over_best("ours", &["theirs", "others", "nobody"], "best")
            .scaling("ours")
            .draw("Title");
        assert!(table.starts_with("Title\n"));
        assert_eq!(line(&table, "threads"), ["threads", "1", "2"]);
        assert_eq!(line(&table, "ours "), ["ours", "4.00M", "±0%", "6.00M", "±0%"]);
        assert_eq!(line(&table, "limit/ours"), ["limit/ours", "2.00", "2.67"]);
        assert_eq!(line(&table, "ours/best"), ["ours/best", "2.00", "others", "2.00", "theirs"]);
        assert_eq!(line(&table, "ours/its"), ["ours/its", "1", "1.00", "1.50"]);
        assert!(!table.contains("nobody"));
    }

    #[test]
    fn what_was_not_measured_has_no_line() {
        let rows = rows();
        let of_one = || rows.iter().filter(|row| row.engine == "ours" && row.crew.workers() == 1);
        let table = ByEngine::new(of_one())
            .ratios(&[("limit", "ours")])
            .over_best("ours", &["theirs"], "best")
            .scaling("ours")
            .draw("");
        assert!(!table.contains('/'), "{table}");
    }
}
