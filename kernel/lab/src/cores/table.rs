//! The figures of `lab cores`: their rows in JSON, their tables, and their limits.

use super::program::LAYOUTS;
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

    /// The middle of some values, and their range.
    fn shown(self, middle: f64, least: f64, most: f64) -> String {
        let (scale, digits, name) = match self {
            Unit::OpsPerS if middle >= 1e6 => (1e6, 2, "M"),
            Unit::OpsPerS => (1e3, 2, "k"),
            Unit::Ns => (1.0, 0, "ns"),
        };
        let value = |v: f64| format!("{:.digits$}", v / scale);
        format!("{} {name} ({} to {})", value(middle), value(least), value(most))
    }
}

/// The layout of the program in the sample of this turn. Each comes with both orders of the trees.
pub(crate) fn layout(turn: usize) -> usize {
    turn / 2 % LAYOUTS
}

/// # Panics
/// If there is no value.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// The least and the most.
fn range(values: &[f64]) -> (f64, f64) {
    let extend = |(least, most): (f64, f64), &v: &f64| (least.min(v), most.max(v));
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), extend)
}

/// How two figures compare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    /// The median of the ratios of samples that were taken one after the other. A virtual machine
    /// may be moved to cores that are nearer to each other, or farther; both trees' medians may
    /// then lie on different sides of the move.
    pub(crate) median: f64,
    /// The least and the most of the layouts' medians.
    least: f64,
    most: f64,
}

impl Ratio {
    /// # Panics
    /// If there is no sample.
    fn of(series: &Row, plain: &Row) -> Self {
        let all: Vec<_> = series.samples.iter().zip(&plain.samples).map(|(s, p)| s / p).collect();
        let of_layouts: Vec<_> = (0..LAYOUTS)
            .map(|l| (0..all.len()).filter(|&i| layout(i) == l).map(|i| all[i]).collect::<Vec<_>>())
            .filter(|ratios| !ratios.is_empty())
            .map(|ratios| median(&ratios))
            .collect();
        let (least, most) = range(&of_layouts);
        Ratio { median: median(&all), least, most }
    }

    fn shown(self) -> String {
        format!("{:.2} ({:.2} to {:.2})", self.median, self.least, self.most)
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
    /// The figure of each sample, in the order in which the trees took turns.
    pub(crate) samples: Vec<f64>,
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
        figure: impl Fn(&Sample) -> f64,
    ) -> Self {
        let figures: Vec<_> = samples.iter().map(figure).collect();
        let (least, most) = range(&figures);
        Row {
            tree: tree.to_string(),
            case: case.to_string(),
            threads,
            median: median(&figures),
            least,
            most,
            unit,
            samples: figures,
            disturbed: samples.iter().filter(|s| s.is_disturbed()).count(),
        }
    }

    /// Whether most of its samples were.
    fn is_disturbed(&self) -> bool {
        self.disturbed * 2 > self.samples.len()
    }

    fn cell(&self) -> String {
        let star = if self.is_disturbed() { " *" } else { "" };
        self.unit.shown(self.median, self.least, self.most) + star
    }
}

/// One run of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    pub(crate) figure: f64,
    /// The share of the time in which every worker had a CPU.
    pub(crate) cpu: f64,
    /// How often a second its freezer was done; 0 if it has none.
    pub(crate) sections: f64,
}

impl Sample {
    /// Whether other programs used the CPUs, too. Then workers that should have run at the same
    /// time ran one after the other, and got in each other's way less.
    pub(crate) fn is_disturbed(self) -> bool {
        self.cpu < 0.95
    }
}

/// All that `lab cores` has measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
    /// What `kernel/cores` writes out itself.
    pub(crate) own: Vec<Stub>,
    /// What `stubs.c` defines, and the C library.
    pub(crate) stubs: Vec<Stub>,
    /// The features of CPUs for which the kernel patches its code when it boots.
    #[serde(default)]
    pub(crate) features: Vec<Stub>,
    /// The symbols that end the program if they are used.
    pub(crate) traps: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    /// What the CPUs are on, as far as a virtual machine is told.
    pub(crate) cores: usize,
}

impl Machine {
    pub(crate) fn shown(&self) -> String {
        format!("{}, {} CPUs on {} cores", self.cpu, self.cpus, self.cores)
    }
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
        let mut pairs: Vec<_> = self.pairs().collect();
        // A case with two figures has its rows in turn.
        let first = |case: &str| self.rows.iter().position(|r| r.case == case);
        pairs.sort_by_key(|(plain, _)| first(&plain.case));
        for (plain, series) in pairs {
            let ratio = Ratio::of(series, plain).shown();
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
                "| {} | {} | {} | {ratio} |",
                plain.threads,
                plain.cell(),
                series.cell()
            );
        }
        if self.rows.iter().any(Row::is_disturbed) {
            text += "\n\\* Other programs used the CPUs during most of these samples.\n";
        }
        text
    }

    /// What is not the kernel's, in Markdown.
    pub(crate) fn not_the_kernels(&self) -> String {
        let mut text = String::new();
        for (title, list) in [
            ("Stubbed", &self.stubs),
            ("Written out in kernel/cores", &self.own),
            ("Patched by the kernel when it boots, for CPUs with", &self.features),
        ] {
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

/// The limit of one case at two threads.
struct Limit {
    case: &'static str,
    bound: f64,
    at_least: bool,
}

const LIMIT_THREADS: usize = 2;
const LIMITS: [Limit; 5] = [
    Limit { case: "short-read", bound: 3.0, at_least: true },
    Limit { case: "one-folio", bound: 1.2, at_least: true },
    Limit { case: "many-folios", bound: 0.98, at_least: true },
    Limit { case: "failed-get", bound: 1.1, at_least: false },
    Limit { case: "failed-get-brief", bound: 1.1, at_least: false },
];

/// The case in which the patched kernel may not do less with more threads.
const NO_FALL: &str = "short-read";

/// A sentence for each limit, and whether it is met. A figure that was not measured, or was not
/// measured alone, does not meet its limit.
pub(crate) fn verdicts(figures: &Figures) -> Vec<(String, bool)> {
    let mut all: Vec<_> = LIMITS.iter().map(|limit| limit.verdict(figures)).collect();
    all.push(no_fall(figures));
    all
}

/// Whether each number of threads does as much as the next smaller one, or more.
fn no_fall(figures: &Figures) -> (String, bool) {
    let of_case = |r: &&Row| r.tree == "series" && r.case == NO_FALL;
    let mut rows: Vec<_> = figures.rows.iter().filter(of_case).collect();
    rows.sort_by_key(|r| r.threads);
    let (Some(one), Some(most)) = (rows.first(), rows.last()) else {
        return (format!("{NO_FALL} of more threads: not measured"), false);
    };
    let what = format!("{NO_FALL} of {} threads", most.threads);
    if one.threads != 1 || most.threads == 1 {
        return (format!("{what}: not measured beside one thread"), false);
    }
    if rows.iter().any(|r| r.is_disturbed()) {
        return (format!("{what}: not measured alone, so it does not count"), false);
    }
    let steps = rows.windows(2).map(|w| w[1].median / w[0].median);
    let least = steps.fold(f64::INFINITY, f64::min);
    let met = least >= 1.0;
    let text = format!(
        "{what}: patched is {:.2} times patched at one thread; from each number of threads to the \
         next it is at least {least:.2} times as much, the limit is at least 1: {}",
        most.median / one.median,
        if met { "met" } else { "MISSED" }
    );
    (text, met)
}

impl Limit {
    fn verdict(&self, figures: &Figures) -> (String, bool) {
        let what = format!("{} at {LIMIT_THREADS} threads", self.case);
        let row = |tree| figures.row(tree, self.case, LIMIT_THREADS);
        let (Some(plain), Some(series)) = (row("plain"), row("series")) else {
            return (format!("{what}: not measured"), false);
        };
        if plain.is_disturbed() || series.is_disturbed() {
            return (format!("{what}: not measured alone, so it does not count"), false);
        }
        let ratio = Ratio::of(series, plain);
        let met =
            if self.at_least { ratio.median >= self.bound } else { ratio.median <= self.bound };
        let text = format!(
            "{what}: patched / plain is {}, the limit is {} {}: {}",
            ratio.shown(),
            if self.at_least { "at least" } else { "at most" },
            self.bound,
            if met { "met" } else { "MISSED" }
        );
        (text, met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(figure: f64, cpu: f64) -> Sample {
        Sample { figure, cpu, sections: 2.0 * figure }
    }

    fn row_of(tree: &str, case: &str, unit: Unit, samples: &[Sample]) -> Row {
        Row::new(tree, case, 2, unit, samples, |s| s.figure)
    }

    fn figures(rows: &[(&str, &str, usize, f64)]) -> Figures {
        let unit = |case: &str| if case.starts_with("failed") { Unit::Ns } else { Unit::OpsPerS };
        let row = |&(tree, case, threads, median): &(&str, &str, usize, f64)| {
            Row::new(tree, case, threads, unit(case), &[sample(median, 1.0)], |s| s.figure)
        };
        Figures {
            machine: Machine { cpu: "c".into(), cpus: 4, cores: 2 },
            rows: rows.iter().map(row).collect(),
            own: vec![Stub { name: "g()".into(), what: "by hand".into() }],
            stubs: vec![Stub { name: "f".into(), what: "nothing".into() }],
            features: vec![Stub { name: "i".into(), what: "not done".into() }],
            traps: vec!["h".into()],
        }
    }

    #[test]
    fn a_row_has_the_median_and_the_spread() {
        let samples = [3e6, 1e6, 2e6].map(|f| sample(f, 0.99));
        let row = row_of("plain", "one-folio", Unit::OpsPerS, &samples);
        assert_eq!((row.median, row.least, row.most, row.disturbed), (2e6, 1e6, 3e6, 0));
        assert_eq!(row.cell(), "2.00 M (1.00 to 3.00)");
        let splits =
            Row::new("plain", "splits", 2, Unit::OpsPerS, &[sample(1e3, 1.0)], |s| s.sections);
        assert_eq!(splits.cell(), "2.00 k (2.00 to 2.00)");
        let samples = [sample(3.0, 0.5), sample(5.0, 0.99), sample(4.0, 0.94)];
        let row = row_of("plain", "failed-get", Unit::Ns, &samples);
        assert_eq!(row.cell(), "4 ns (3 to 5) *");
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_ones() {
        for (values, middle) in
            [(&[5.0][..], 5.0), (&[3.0, 1.0], 2.0), (&[9.0, 1.0, 2.0, 4.0], 3.0)]
        {
            assert!((median(values) - middle).abs() < 1e-9, "{values:?}");
        }
    }

    #[test]
    fn a_move_of_the_machine_between_samples_does_not_count() {
        let row = |tree, figures: &[f64]| {
            let samples: Vec<_> = figures.iter().map(|&f| sample(f, 1.0)).collect();
            row_of(tree, "one-folio", Unit::OpsPerS, &samples)
        };
        // Half of the samples are of slow cores.
        let plain = row("plain", &[10.0, 10.0, 10.0, 30.0, 30.0]);
        let series = row("series", &[12.0, 12.0, 36.0, 36.0, 36.0]);
        assert!((series.median / plain.median - 3.6).abs() < 1e-9);
        assert!((Ratio::of(&series, &plain).median - 1.2).abs() < 1e-9);
    }

    #[test]
    fn what_the_layouts_differ_by_is_shown() {
        let plain = row_of("plain", "a", Unit::OpsPerS, &[sample(1.0, 1.0); 16]);
        // In turns 2, 3, 10 and 11, in which the second layout has its turn.
        let fast = |turn| if layout(turn) == 1 { 3.0 } else { 2.0 };
        let samples: Vec<_> = (0..16).map(|turn| sample(fast(turn), 1.0)).collect();
        let ratio = Ratio::of(&row_of("series", "a", Unit::OpsPerS, &samples), &plain);
        assert_eq!(ratio, Ratio { median: 2.0, least: 2.0, most: 3.0 });
        assert_eq!(ratio.shown(), "2.00 (2.00 to 3.00)");
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
             | 1 | 1.00 M (1.00 to 1.00) | 2.00 M (2.00 to 2.00) | 2.00 (2.00 to 2.00) |\n\
             \nfailed-get:\n\n| threads | before | after | cost |\n|---:|---:|---:|---:|\n\
             | 2 | 10 ns (10 to 10) | 20 ns (20 to 20) | 2.00 (2.00 to 2.00) |\n"
        );
        let text = figures.not_the_kernels();
        let begin =
            "Stubbed:\n\n- `f`: nothing\n\nWritten out in kernel/cores:\n\n- `g()`: by hand\n\n";
        let patched = "Patched by the kernel when it boots, for CPUs with:\n\n- `i`: not done\n\n";
        assert!(
            text.starts_with(&format!("{begin}{patched}Nothing provides 1 more symbols;")),
            "{text}"
        );
    }

    #[test]
    fn a_missed_figure_is_seen() {
        let met = |one: f64, many: f64, failed: f64| {
            let figures = figures(&[
                ("plain", "short-read", 2, 100.0),
                ("series", "short-read", 1, 200.0),
                ("series", "short-read", 2, one * 2.5),
                ("plain", "one-folio", 2, 100.0),
                ("plain", "many-folios", 2, 100.0),
                ("plain", "failed-get", 2, 100.0),
                ("plain", "failed-get-brief", 2, 100.0),
                ("series", "one-folio", 2, one),
                ("series", "many-folios", 2, many),
                ("series", "failed-get", 2, failed),
                ("series", "failed-get-brief", 2, failed),
            ]);
            verdicts(&figures).iter().map(|v| v.1).collect::<Vec<_>>()
        };
        assert_eq!(met(121.0, 99.0, 109.0), [true; LIMITS.len() + 1]);
        let missed = [[false; LIMITS.len()].as_slice(), &[true]].concat();
        assert_eq!(met(119.0, 97.0, 111.0), missed);
    }

    #[test]
    fn a_fall_with_more_threads_is_seen() {
        let of = |rows: &[(usize, f64)]| {
            let rows: Vec<_> = rows.iter().map(|&(n, f)| ("series", NO_FALL, n, f)).collect();
            no_fall(&figures(&rows))
        };
        let (text, met) = of(&[(1, 10.0), (4, 30.0), (2, 20.0)]);
        assert!(text.starts_with("short-read of 4 threads: patched is 3.00 times"), "{text}");
        assert!(met);
        assert!(of(&[(1, 10.0), (2, 10.0)]).1);
        // More than one thread, and less than three.
        let (text, met) = of(&[(1, 10.0), (3, 30.0), (4, 29.0)]);
        assert!(text.contains("at least 0.97 times") && text.ends_with("MISSED") && !met, "{text}");
        for rows in [&[][..], &[(1, 10.0)], &[(2, 10.0), (4, 20.0)]] {
            let (text, met) = of(rows);
            assert!(text.contains("not measured") && !met, "{text}");
        }
        let mut disturbed = figures(&[("series", NO_FALL, 1, 1.0), ("series", NO_FALL, 2, 2.0)]);
        assert!(no_fall(&disturbed).1);
        disturbed.rows[1].disturbed = 1;
        assert!(!no_fall(&disturbed).1);
        // Plain may.
        let plain = figures(&[("plain", NO_FALL, 1, 2.0), ("plain", NO_FALL, 2, 1.0)]);
        assert!(no_fall(&plain).0.contains("not measured"));
    }

    #[test]
    fn a_figure_that_was_not_measured_is_not_met() {
        let all = verdicts(&figures(&[
            ("plain", "one-folio", 2, 1.0),
            ("plain", "many-folios", 1, 1.0),
            ("series", "many-folios", 1, 1.0),
        ]));
        assert_eq!(all.len(), LIMITS.len() + 1);
        assert!(all.iter().all(|(text, met)| text.ends_with(": not measured") && !met), "{all:?}");
        // The workers of one tree had to wait for CPUs, and did not get in each other's way.
        let mut disturbed =
            figures(&[("plain", "one-folio", 2, 1.0), ("series", "one-folio", 2, 2.0)]);
        assert!(LIMITS[1].verdict(&disturbed).1);
        disturbed.rows[1].disturbed = 1;
        let (text, met) = LIMITS[1].verdict(&disturbed);
        assert!(text.contains("not measured alone") && !met, "{text}");
    }

    #[test]
    fn the_two_figures_of_a_case_have_a_table_each() {
        let text = figures(&[
            ("plain", "lookups", 2, 1e6),
            ("plain", "splits", 2, 1e6),
            ("series", "lookups", 2, 1e6),
            ("series", "splits", 2, 1e6),
            ("plain", "lookups", 4, 1e6),
            ("plain", "splits", 4, 1e6),
            ("series", "lookups", 4, 1e6),
            ("series", "splits", 4, 1e6),
        ])
        .tables();
        assert_eq!((text.matches("lookups:").count(), text.matches("splits:").count()), (1, 1));
        assert_eq!(text.matches("| 4 | 1.00 M").count(), 2);
    }
}
