//! The figures of `kernel cores`: their rows in JSON, their tables, and what was asked of them.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// What a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    /// More is better.
    #[serde(rename = "ops/s")]
    OpsPerS,
    /// Less is better.
    #[serde(rename = "ns")]
    Ns,
}

impl Unit {
    /// # Errors
    /// If it is the name of no unit.
    pub(crate) fn of(name: &str) -> Result<Self> {
        serde_json::from_value(name.into()).with_context(|| format!("{name} is no unit"))
    }

    fn shown(self, value: f64) -> String {
        match self {
            Unit::OpsPerS => format!("{:.2} M", value / 1e6),
            Unit::Ns => format!("{value:.0} ns"),
        }
    }
}

/// The figure of one tree, case, and number of workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) tree: String,
    pub(crate) case: String,
    pub(crate) threads: usize,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) unit: Unit,
    pub(crate) samples: usize,
    /// So many of the samples had to share their CPUs with other programs.
    pub(crate) disturbed: usize,
}

impl Row {
    /// # Panics
    /// If there is no sample.
    pub(crate) fn new(
        tree: &str,
        case: &str,
        threads: usize,
        unit: Unit,
        samples: &[Sample],
    ) -> Self {
        let mut values: Vec<_> = samples.iter().map(|s| s.figure).collect();
        values.sort_by(f64::total_cmp);
        Row {
            tree: tree.to_string(),
            case: case.to_string(),
            threads,
            median: values[values.len() / 2],
            least: values[0],
            most: values[values.len() - 1],
            unit,
            samples: samples.len(),
            disturbed: samples.iter().filter(|s| s.is_disturbed()).count(),
        }
    }

    fn cell(&self) -> String {
        let shown = |value| self.unit.shown(value);
        let star = if self.disturbed * 2 > self.samples { " *" } else { "" };
        format!(
            "{} ({} to {}){star}",
            shown(self.median),
            shown(self.least).split(' ').next().unwrap_or_default(),
            shown(self.most).split(' ').next().unwrap_or_default()
        )
    }
}

/// One run of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    pub(crate) figure: f64,
    /// The share of the time in which every worker had a CPU.
    pub(crate) cpu: f64,
}

impl Sample {
    /// Whether other programs used the CPUs, too. Then workers that should have run at the same
    /// time ran one after the other, and got in each other's way less.
    pub(crate) fn is_disturbed(self) -> bool {
        self.cpu < 0.95
    }
}

/// All that `kernel cores` has measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
    /// What `cases.c` writes out itself.
    pub(crate) own: Vec<Stub>,
    /// What `stubs.c` defines.
    pub(crate) stubs: Vec<Stub>,
    /// The symbols that end the program if they are used.
    pub(crate) traps: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
}

/// What stands in the place of something of the kernel's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stub {
    pub(crate) name: String,
    pub(crate) what: String,
}

impl Figures {
    fn row(&self, tree: &str, case: &str, threads: usize) -> Option<&Row> {
        self.rows.iter().find(|r| r.tree == tree && r.case == case && r.threads == threads)
    }

    /// The plain rows, each with the patched one.
    fn pairs(&self) -> impl Iterator<Item = (&Row, &Row)> {
        let plain = self.rows.iter().filter(|r| r.tree == "plain");
        plain.filter_map(|p| Some((p, self.row("series", &p.case, p.threads)?)))
    }

    /// The seed's table for each case, in Markdown.
    pub(crate) fn tables(&self) -> String {
        let mut text = String::new();
        let mut case = "";
        for (plain, series) in self.pairs() {
            let ratio = series.median / plain.median;
            if plain.case != case {
                case = &plain.case;
                let last = if plain.unit == Unit::Ns { "cost" } else { "boost" };
                let _ = write!(
                    text,
                    "{}{case}:\n\n| threads | before | after | {last} |\n|---:|---:|---:|---:|\n",
                    if text.is_empty() { "" } else { "\n" }
                );
            }
            let _ = writeln!(
                text,
                "| {} | {} | {} | {ratio:.2} |",
                plain.threads,
                plain.cell(),
                series.cell()
            );
        }
        if self.rows.iter().any(|r| r.disturbed * 2 > r.samples) {
            text += "\n\\* Other programs used the CPUs during most of these samples.\n";
        }
        text
    }

    /// What is not the kernel's, in Markdown.
    pub(crate) fn not_the_kernels(&self) -> String {
        let mut text = String::new();
        for (title, list) in [("Stubbed", &self.stubs), ("Written out in cases.c", &self.own)] {
            let _ = writeln!(text, "{title}:\n");
            for stub in list {
                let _ = writeln!(text, "- `{}`: {}", stub.name, stub.what);
            }
            text += "\n";
        }
        let _ = writeln!(
            text,
            "Nothing provides {} more symbols; the program ends if one of them is used. Interrupts\n\
             are on, and workers are threads or processes, which the host may preempt.",
            self.traps.len()
        );
        text
    }
}

/// What is asked of one case at two threads.
struct Asked {
    case: &'static str,
    limit: f64,
    at_least: bool,
}

const ASKED_THREADS: usize = 2;
const ASKED: [Asked; 3] = [
    Asked { case: "one-folio", limit: 1.2, at_least: true },
    Asked { case: "many-folios", limit: 0.98, at_least: true },
    Asked { case: "failed-get", limit: 1.1, at_least: false },
];

/// A sentence for each figure that was asked for and measured, and whether it is met.
pub(crate) fn verdicts(figures: &Figures) -> Vec<(String, bool)> {
    ASKED
        .iter()
        .filter_map(|asked| {
            let [plain, series] = ["plain", "series"]
                .map(|tree| figures.row(tree, asked.case, ASKED_THREADS).map(|r| r.median));
            let ratio = series? / plain?;
            let met = if asked.at_least { ratio >= asked.limit } else { ratio <= asked.limit };
            let text = format!(
                "{} at {ASKED_THREADS} threads: patched / plain is {ratio:.2}, asked is {} {}: {}",
                asked.case,
                if asked.at_least { "at least" } else { "at most" },
                asked.limit,
                if met { "met" } else { "MISSED" }
            );
            Some((text, met))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(figure: f64, cpu: f64) -> Sample {
        Sample { figure, cpu }
    }

    fn figures(rows: &[(&str, &str, usize, f64)]) -> Figures {
        let unit = |case: &str| if case == "failed-get" { Unit::Ns } else { Unit::OpsPerS };
        let row = |&(tree, case, threads, median): &(&str, &str, usize, f64)| {
            Row::new(tree, case, threads, unit(case), &[sample(median, 1.0)])
        };
        Figures {
            machine: Machine { cpu: "c".into(), cores: 2 },
            rows: rows.iter().map(row).collect(),
            own: vec![Stub { name: "g()".into(), what: "by hand".into() }],
            stubs: vec![Stub { name: "f".into(), what: "nothing".into() }],
            traps: vec!["h".into()],
        }
    }

    #[test]
    fn a_row_has_the_median_and_the_spread() {
        let samples = [3e6, 1e6, 2e6].map(|f| sample(f, 0.99));
        let row = Row::new("plain", "one-folio", 2, Unit::OpsPerS, &samples);
        assert_eq!((row.median, row.least, row.most, row.disturbed), (2e6, 1e6, 3e6, 0));
        assert_eq!(row.cell(), "2.00 M (1.00 to 3.00)");
        let samples = [sample(3.0, 0.5), sample(5.0, 0.99), sample(4.0, 0.94)];
        let row = Row::new("plain", "failed-get", 2, Unit::Ns, &samples);
        assert_eq!(row.cell(), "4 ns (3 to 5) *");
    }

    #[test]
    fn a_row_of_json_has_the_names_that_were_asked_for() {
        let figures = figures(&[("plain", "failed-get", 2, 10.0)]);
        let json: serde_json::Value = serde_json::to_value(&figures).unwrap();
        let row = &json["rows"][0];
        assert_eq!(row["tree"], "plain");
        assert_eq!(row["case"], "failed-get");
        assert_eq!(row["threads"], 2);
        assert_eq!(row["median"], 10.0);
        assert_eq!(row["unit"], "ns");
    }

    #[test]
    fn the_table_compares_equal_threads() {
        let figures = figures(&[
            ("plain", "one-folio", 1, 1e6),
            ("series", "one-folio", 1, 2e6),
            ("plain", "one-folio", 2, 2e6),
            ("plain", "failed-get", 2, 10.0),
            ("series", "failed-get", 2, 20.0),
        ]);
        assert_eq!(
            figures.tables(),
            "one-folio:\n\n| threads | before | after | boost |\n|---:|---:|---:|---:|\n\
             | 1 | 1.00 M (1.00 to 1.00) | 2.00 M (2.00 to 2.00) | 2.00 |\n\
             \nfailed-get:\n\n| threads | before | after | cost |\n|---:|---:|---:|---:|\n\
             | 2 | 10 ns (10 to 10) | 20 ns (20 to 20) | 2.00 |\n"
        );
        let text = figures.not_the_kernels();
        let begin = "Stubbed:\n\n- `f`: nothing\n\nWritten out in cases.c:\n\n- `g()`: by hand\n\n";
        assert!(text.starts_with(&format!("{begin}Nothing provides 1 more symbols;")), "{text}");
    }

    #[test]
    fn a_missed_figure_is_seen() {
        let met = |one: f64, many: f64, failed: f64| {
            let figures = figures(&[
                ("plain", "one-folio", 2, 100.0),
                ("plain", "many-folios", 2, 100.0),
                ("plain", "failed-get", 2, 100.0),
                ("series", "one-folio", 2, one),
                ("series", "many-folios", 2, many),
                ("series", "failed-get", 2, failed),
            ]);
            verdicts(&figures).iter().map(|v| v.1).collect::<Vec<_>>()
        };
        assert_eq!(met(121.0, 99.0, 109.0), [true, true, true]);
        assert_eq!(met(119.0, 97.0, 111.0), [false, false, false]);
        assert!(verdicts(&figures(&[("plain", "one-folio", 2, 1.0)])).is_empty());
    }
}
