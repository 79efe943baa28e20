//! `kernel cores` measures the count on this machine's own cores, without booting: a built
//! kernel's own objects run in a program, plain and patched in turn (`kernel/cores`).

mod code;
mod program;
mod table;

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::{build, kept, prepare, proc};
use anyhow::{Context, Result, bail};
use program::Program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::Duration;
pub(crate) use table::Figures;
use table::{Machine, Row, Sample, Stub, Unit};

/// The name under which the figures are kept.
pub(crate) const CORES: &str = "cores";
/// The exit status of a program whose checks have failed.
const WRONG: i32 = 3;
/// How often a sample is taken again while other programs use the CPUs.
const RETRIES: usize = 10;
/// How long a mutant, and a case of the smoke test, runs.
const BRIEF_MS: u32 = 20;
/// Much longer than any run takes.
const LIMIT: Duration = Duration::from_secs(120);

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Write the figures to this file: `rows` of `tree`, `case`, `threads`, `median` and more.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The numbers of threads (default: powers of two up to the number of CPUs, and that).
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    threads: Vec<usize>,
    /// Only these cases.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// How many samples of each figure. Plain and patched take turns, and so do four places of
    /// the code in memory.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    samples: u16,
    /// How long a sample takes.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    ms: u32,
    /// Fail if a figure that was asked of the series is missed.
    #[arg(long)]
    strict: bool,
}

/// A case, as the program lists it.
#[derive(Debug, Clone, PartialEq)]
struct Case {
    name: String,
    unit: Unit,
    least_workers: usize,
    /// Also measured with processes in the place of threads.
    processes: bool,
    mutants: Vec<String>,
}

/// What a program lists.
#[derive(Debug, Default)]
struct List {
    cases: Vec<Case>,
    /// What `cases.c` writes out itself of the kernel.
    own: Vec<Stub>,
    stubs: Vec<Stub>,
}

fn parse_list(text: &str) -> Result<List> {
    let List { mut cases, mut own, mut stubs } = List::default();
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["case", name, unit, least, kind, ref mutants @ ..] => cases.push(Case {
                name: name.to_string(),
                unit: Unit::of(unit)?,
                least_workers: least.parse().with_context(|| line.to_string())?,
                processes: kind == "processes",
                mutants: mutants.iter().map(|m| (*m).to_string()).collect(),
            }),
            [kind @ ("own" | "stub"), name, ref what @ ..] => {
                let list = if kind == "own" { &mut own } else { &mut stubs };
                list.push(Stub { name: name.to_string(), what: what.join(" ") });
            }
            _ => bail!("the program lists `{line}`"),
        }
    }
    if let Some(case) = cases.iter().find(|c| c.mutants.is_empty()) {
        bail!("no mutant shows that {} is checked", case.name);
    }
    Ok(List { cases, own, stubs })
}

/// # Errors
/// If a symbol is stubbed and not named, or the other way round.
fn all_are_named(program: &Program, stubs: &[Stub]) -> Result<()> {
    let unnamed = program.stubs.iter().find(|s| !stubs.iter().any(|n| n.name == **s));
    let gone = stubs.iter().find(|n| !program.stubs.contains(&n.name)).map(|n| &n.name);
    match unnamed.or(gone) {
        Some(name) => bail!("{name} is not both a symbol of stubs.c and in its list"),
        None => Ok(()),
    }
}

/// How a run of a program ended.
#[derive(Debug)]
struct Ran {
    status: ExitStatus,
    out: String,
    err: String,
}

/// One run of a case. `kind` is `threads` or `processes`.
fn run(
    program: &Path,
    case: &str,
    workers: usize,
    ms: u32,
    kind: &str,
    mutant: Option<&str>,
) -> Result<Ran> {
    let mut command = Command::new(program);
    command.args(["run", case, &workers.to_string(), &ms.to_string(), kind]).args(mutant);
    let out = proc::capture(&mut command, LIMIT + Duration::from_millis(ms.into()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    Ok(Ran { status: out.status, out: text(&out.stdout), err: text(&out.stderr) })
}

/// The figure of a run.
///
/// # Errors
/// If the run failed: above all if a count was wrong at its end.
fn sample(ran: &Ran) -> Result<Sample> {
    if !ran.status.success() {
        bail!("{} ({})", ran.err, ran.status);
    }
    let ["figure", figure, "cpu", cpu, ..] = ran.out.split_whitespace().collect::<Vec<_>>()[..]
    else {
        bail!("the program printed `{}`", ran.out);
    };
    let sample = Sample { figure: figure.parse()?, cpu: cpu.parse()? };
    if !sample.figure.is_normal() || sample.figure < 0.0 {
        bail!("the program printed `{}`", ran.out);
    }
    Ok(sample)
}

/// Runs a case until it had the CPUs for itself, but not for ever.
fn undisturbed(mut once: impl FnMut() -> Result<Sample>) -> Result<Sample> {
    let mut best = once()?;
    for _ in 0..RETRIES {
        if !best.is_disturbed() {
            break;
        }
        let again = once()?;
        if again.cpu > best.cpu {
            best = again;
        }
    }
    Ok(best)
}

/// Runs each mutant of a program, and demands that the checks notice it.
fn prove(program: &Program, cases: &[Case]) -> Result<usize> {
    let mut seen = 0;
    for case in cases {
        for mutant in &case.mutants {
            let ran =
                run(program.binary(), &case.name, 2, BRIEF_MS, "threads", Some(mutant.as_str()))?;
            noticed(&ran).with_context(|| {
                format!("{}, the mutant {mutant} of {}", program.tree.name(), case.name)
            })?;
            seen += 1;
        }
    }
    Ok(seen)
}

fn noticed(ran: &Ran) -> Result<()> {
    match ran.status.code() {
        Some(WRONG) => Ok(()),
        Some(0) => bail!("is not noticed by the checks"),
        _ => bail!("ended with {}: {}", ran.status, ran.err),
    }
}

/// The programs of both trees, checked: their code is the kernels', what is stubbed is named,
/// and their checks notice mutants.
fn programs(paths: &Paths) -> Result<([Program; 2], List)> {
    let programs = [program::make(paths, Tree::Plain)?, program::make(paths, Tree::Series)?];
    let mut lists = Vec::new();
    for program in &programs {
        println!("{}", code::check(program)?);
        let text = proc::output(Command::new(program.binary()).arg("list"))?;
        let list = parse_list(&text)?;
        all_are_named(program, &list.stubs)?;
        let seen = prove(program, &list.cases)?;
        println!("{}: all {seen} mutants are noticed", program.tree.name());
        lists.push(list);
    }
    // The two are of one source.
    Ok((programs, lists.swap_remove(0)))
}

/// The numbers of threads: powers of two, and one for each CPU.
fn default_threads(cpus: usize) -> Vec<usize> {
    let mut all: Vec<_> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < cpus).collect();
    all.push(cpus);
    all
}

/// The name of a case with processes in the rows.
fn row_name(case: &str, kind: &str) -> String {
    if kind == "processes" { format!("{case}-processes") } else { case.to_string() }
}

/// Measures a case with so many workers, plain and patched in turn.
fn measure(
    programs: &[Program; 2],
    case: &Case,
    kind: &str,
    workers: usize,
    plan: &Plan,
) -> Result<[Row; 2]> {
    let mut samples = [Vec::new(), Vec::new()];
    for turn in 0..usize::from(plan.samples) {
        // Neither tree is always the first.
        for which in [turn % 2, 1 - turn % 2] {
            let program = &programs[which];
            // Neither does a layout always come with the same order.
            let binary = &program.binaries[turn / 2 % program.binaries.len()];
            let once = || sample(&run(binary, &case.name, workers, plan.ms, kind, None)?);
            samples[which].push(undisturbed(once).with_context(|| {
                format!("{} with {workers} {kind}, {}", case.name, program.tree.name())
            })?);
        }
    }
    let name = row_name(&case.name, kind);
    let row = |which: usize| {
        let tree = programs[which].tree.name();
        Row::new(tree, &name, workers, case.unit, &samples[which])
    };
    Ok([row(0), row(1)])
}

fn machine(cpus: usize) -> Machine {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = info
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown CPU", |(_, name)| name.trim());
    Machine { cpu: cpu.to_string(), cores: cpus }
}

/// The cases that the plan asks for.
///
/// # Errors
/// If one of them does not exist.
fn chosen(cases: Vec<Case>, names: &[String]) -> Result<Vec<Case>> {
    let known: Vec<_> = cases.iter().map(|c| c.name.clone()).collect();
    if let Some(name) = names.iter().find(|n| !known.contains(n)) {
        bail!("there is no case {name}; there are {}", known.join(", "));
    }
    Ok(cases.into_iter().filter(|c| names.is_empty() || names.contains(&c.name)).collect())
}

/// Builds both kernels, makes the programs of their objects, measures, prints the tables, and
/// keeps the figures.
///
/// # Errors
/// If a kernel or a program does not build; the code that is measured is not the kernel's; a
/// mutant is not noticed; or a count or a lookup is wrong. If the plan is strict, also if a
/// figure is missed.
pub(crate) fn cores(paths: &Paths, plan: &Plan) -> Result<()> {
    prepare::prepare(paths)?;
    for tree in [Tree::Plain, Tree::Series] {
        build::build(paths, tree, Config::Fast)?;
    }
    let (programs, list) = programs(paths)?;
    let cpus = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads =
        if plan.threads.is_empty() { default_threads(cpus) } else { plan.threads.clone() };
    let mut rows = Vec::new();
    for case in chosen(list.cases, &plan.cases)? {
        for kind in ["threads", "processes"] {
            if kind == "processes" && !case.processes {
                continue;
            }
            for &workers in threads.iter().filter(|n| **n >= case.least_workers) {
                rows.extend(measure(&programs, &case, kind, workers, plan)?);
            }
        }
    }
    let traps = programs[1].traps.clone();
    let figures = Figures { machine: machine(cpus), rows, own: list.own, stubs: list.stubs, traps };
    show(&programs, &figures);
    if let Some(file) = &plan.json {
        fs::write(file, serde_json::to_string_pretty(&figures)? + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if plan.cases.is_empty() && plan.threads.is_empty() {
        kept::keep(paths, CORES, &figures)?;
    }
    judge(&table::verdicts(&figures), plan.strict)
}

fn show(programs: &[Program; 2], figures: &Figures) {
    println!(
        "\n{}, {} cores; of the kernel's own objects:",
        figures.machine.cpu, figures.machine.cores
    );
    for program in programs {
        println!("  {}: {}", program.tree.name(), program.objects.join(", "));
    }
    println!("\n{}\n{}", figures.not_the_kernels(), figures.tables());
}

/// Prints the verdicts.
fn judge(verdicts: &[(String, bool)], strict: bool) -> Result<()> {
    for (text, _) in verdicts {
        println!("{text}");
    }
    let missed = verdicts.iter().filter(|v| !v.1).count();
    if strict && missed > 0 {
        bail!("{missed} figures are missed");
    }
    Ok(())
}

/// Runs everything once, briefly, on kernels that are built: the code, the mutants, and each case.
/// The figures of so short runs mean nothing.
///
/// # Errors
/// As `cores`.
pub(crate) fn smoke(paths: &Paths) -> Result<()> {
    let (programs, list) = programs(paths)?;
    let mut runs = 0;
    for program in &programs {
        for case in &list.cases {
            for kind in ["threads", "processes"] {
                if kind == "threads" || case.processes {
                    sample(&run(program.binary(), &case.name, 2, BRIEF_MS, kind, None)?)
                        .with_context(|| {
                            format!("{}, {} with 2 {kind}", program.tree.name(), case.name)
                        })?;
                    runs += 1;
                }
            }
        }
    }
    println!("cores: {runs} short runs, and no count was wrong");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const LIST: &str = "case one-folio ops/s 1 processes lost-put extra-put\n\
                        case failed-get ns 2 threads no-freeze\nown g() by hand\nstub f frees nothing\n";

    fn ran(code: i32, out: &str, err: &str) -> Ran {
        Ran { status: ExitStatus::from_raw(code << 8), out: out.into(), err: err.into() }
    }

    #[test]
    fn cases_and_stubs_are_listed() {
        let List { cases, own, stubs } = parse_list(LIST).unwrap();
        assert_eq!(own, [Stub { name: "g()".into(), what: "by hand".into() }]);
        assert_eq!(cases[0].mutants, ["lost-put", "extra-put"]);
        assert_eq!((cases[0].unit, cases[0].processes), (Unit::OpsPerS, true));
        assert_eq!((cases[1].unit, cases[1].least_workers), (Unit::Ns, 2));
        assert_eq!(stubs, [Stub { name: "f".into(), what: "frees nothing".into() }]);
        let error = parse_list("case a ns 1 threads\n").unwrap_err().to_string();
        assert_eq!(error, "no mutant shows that a is checked");
        assert!(parse_list("case a s 1 threads m\n").is_err());
        assert!(parse_list("something\n").is_err());
        assert_eq!(chosen(cases.clone(), &["failed-get".into()]).unwrap()[..], cases[1..]);
        let error = chosen(cases, &["x".into()]).unwrap_err().to_string();
        assert_eq!(error, "there is no case x; there are one-folio, failed-get");
    }

    #[test]
    fn a_stub_without_a_name_is_an_error() {
        let program = |stubs: &[&str]| Program {
            tree: Tree::Plain,
            binaries: vec![],
            vmlinux: PathBuf::new(),
            objects: vec![],
            stubs: stubs.iter().map(|s| (*s).to_string()).collect(),
            traps: vec![],
        };
        let stubs = parse_list(LIST).unwrap().stubs;
        all_are_named(&program(&["f"]), &stubs).unwrap();
        assert!(
            all_are_named(&program(&["f", "g"]), &stubs).unwrap_err().to_string().contains('g')
        );
        all_are_named(&program(&[]), &stubs).unwrap_err();
    }

    #[test]
    fn a_wrong_count_is_an_error_and_no_figure() {
        let good = sample(&ran(0, "figure 12.50 cpu 0.990 sections 3", "")).unwrap();
        assert_eq!(good, Sample { figure: 12.5, cpu: 0.99 });
        let error = sample(&ran(WRONG, "figure 1 cpu 1", "cores: wrong: 2")).unwrap_err();
        assert!(error.to_string().contains("cores: wrong: 2"), "{error}");
        for text in ["", "figure 0 cpu 1", "figure nan cpu 1", "cpu 1 figure 1"] {
            sample(&ran(0, text, "")).unwrap_err();
        }
    }

    #[test]
    fn only_the_checks_themselves_notice_a_mutant() {
        noticed(&ran(WRONG, "", "cores: wrong")).unwrap();
        let error = noticed(&ran(0, "figure 1 cpu 1", "")).unwrap_err().to_string();
        assert_eq!(error, "is not noticed by the checks");
        // It could not run, or ran into a missing stub.
        noticed(&ran(1, "", "")).unwrap_err();
        noticed(&ran(2, "", "")).unwrap_err();
        noticed(&Ran { status: ExitStatus::from_raw(14), out: String::new(), err: String::new() })
            .unwrap_err();
    }

    #[test]
    fn a_disturbed_sample_is_taken_again_but_not_for_ever() {
        let mut shares = [0.3, 0.5, 0.99, 0.2].into_iter();
        let mut once = || Ok(Sample { figure: 1.0, cpu: shares.next().unwrap() });
        assert!((undisturbed(&mut once).unwrap().cpu - 0.99).abs() < 1e-9);
        let mut runs = 0;
        let best = undisturbed(|| {
            runs += 1;
            Ok(Sample { figure: 1.0, cpu: if runs == 3 { 0.6 } else { 0.5 } })
        });
        assert!((best.unwrap().cpu - 0.6).abs() < 1e-9);
        assert_eq!(runs, 1 + RETRIES);
    }

    #[test]
    fn all_cpus_are_used() {
        assert_eq!(default_threads(1), [1]);
        assert_eq!(default_threads(2), [1, 2]);
        assert_eq!(default_threads(12), [1, 2, 4, 8, 12]);
    }

    #[test]
    fn a_missed_figure_fails_only_if_it_is_asked_for() {
        let missed = [("a: MISSED".to_string(), false), ("b: met".to_string(), true)];
        judge(&missed, false).unwrap();
        assert_eq!(judge(&missed, true).unwrap_err().to_string(), "1 figures are missed");
        judge(&missed[1..], true).unwrap();
    }
}
