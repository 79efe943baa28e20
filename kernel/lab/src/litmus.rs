//! The litmus tests of `kernel/litmus`. The lab reads each file and checks its form. If herd7
//! is on `PATH`, it also runs each test under the kernel's own memory model.
//!
//! A test that expects Never counts only beside a mutant (`NAME+mutant.litmus`): the same
//! question, put to code that is broken on purpose, must have the answer Sometimes.

use crate::kernels::Tree;
use crate::paths::Paths;
use crate::{prepare, proc};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// One litmus file, as far as the lab understands it.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    name: String,
    /// `Never`, `Sometimes` or `Always`, from the file's own comment.
    expected: String,
    processes: usize,
    /// The first sentence of the comment.
    about: String,
    /// The condition after `exists`, with one space between words.
    condition: String,
    /// A hash of the file, which binds it to its row in the README.
    hash: String,
}

/// FNV-1a: short, and the same on any machine. Nobody forges a litmus test here.
fn hash(text: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

const VERDICTS: [&str; 3] = ["Never", "Sometimes", "Always"];

/// How long herd7 may take for one test. The slowest takes seconds.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// Reads one test. An error names the part of a litmus test that is missing.
fn parse(name: &str, text: &str) -> Result<Test> {
    let first = text.lines().next().unwrap_or_default();
    if first != format!("C {name}") {
        bail!("{name}: the first line is `{first}`, not `C {name}`");
    }
    let comment = text
        .split_once("(*")
        .and_then(|(_, rest)| rest.split_once("*)"))
        .with_context(|| format!("{name}: no comment"))?
        .0;
    let lines: Vec<_> = comment.lines().map(|l| l.trim().trim_start_matches('*').trim()).collect();
    let expected = lines
        .iter()
        .find_map(|l| l.strip_prefix("Result:"))
        .map(|r| r.trim().to_string())
        .with_context(|| format!("{name}: no `Result:` in the comment"))?;
    if !VERDICTS.contains(&expected.as_str()) {
        bail!("{name}: `Result: {expected}` is none of {}", VERDICTS.join(", "));
    }
    let prose =
        lines.iter().filter(|l| !l.starts_with("Result:")).copied().collect::<Vec<_>>().join(" ");
    let about = prose.trim().split(". ").next().unwrap_or_default().trim_end_matches('.');
    let body = &text[text.find("*)").map_or(0, |at| at + 2)..];
    let (program, condition) =
        body.split_once("\nexists ").with_context(|| format!("{name}: no `exists`"))?;
    for (open, close) in [('{', '}'), ('(', ')')] {
        let count = |part: &str, c| part.matches(c).count();
        for part in [program, condition] {
            if count(part, open) != count(part, close) {
                bail!("{name}: `{open}` and `{close}` do not match");
            }
        }
    }
    if !program.trim_start().starts_with('{') {
        bail!("{name}: no initial state before the first process");
    }
    let mut processes = 0;
    // Ends: a test has finitely many processes, numbered without a gap.
    while program.contains(&format!("\nP{processes}(")) {
        processes += 1;
    }
    if processes < 2 {
        bail!("{name}: a race needs two processes, and this test has {processes}");
    }
    for part in condition.split(|c: char| !c.is_ascii_alphanumeric() && c != ':' && c != '_') {
        if let Some((process, _)) = part.split_once(':')
            && process.parse::<usize>().map_or(true, |p| p >= processes)
        {
            bail!("{name}: the condition names `{part}`, but there are {processes} processes");
        }
    }
    let condition = condition.split_whitespace().collect::<Vec<_>>().join(" ");
    let (name, about, hash) = (name.to_string(), about.to_string(), hash(text));
    Ok(Test { name, expected, processes, about, condition, hash })
}

/// Checks that every test has a mutant, and that the two have the same condition and expect
/// opposite verdicts.
fn check_pairs(tests: &[&Test]) -> Result<()> {
    for test in tests {
        let (other, of) = match test.name.strip_suffix("+mutant") {
            Some(base) => (base.to_string(), "test"),
            None => (format!("{}+mutant", test.name), "mutant"),
        };
        let Some(other) = tests.iter().find(|t| t.name == other) else {
            bail!("{}: has no {of} {other}.litmus", test.name);
        };
        if (other.expected == "Never") == (test.expected == "Never") {
            bail!(
                "{} and {} expect the same verdict, so the pair shows nothing",
                test.name,
                other.name
            );
        }
        if other.condition != test.condition {
            bail!(
                "{} asks `{}` and {} asks `{}`: a test and its mutant must ask the same",
                test.name,
                test.condition,
                other.name,
                other.condition
            );
        }
    }
    Ok(())
}

fn read_all(dir: &Path) -> Result<Vec<(PathBuf, Test)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "litmus") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            found.push((path.clone(), parse(&name, &text)?));
        }
    }
    // A test comes before its mutant, because its name is a prefix of the mutant's.
    found.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    Ok(found)
}

/// herd7's verdict, and the numbers of final states that fulfil the condition and that do not.
fn observation(output: &str) -> Option<(String, String)> {
    let line = output.lines().find(|l| l.starts_with("Observation "))?;
    let mut words = line.split_whitespace().skip(2);
    let verdict = words.next()?.to_string();
    Some((verdict, format!("{} / {}", words.next()?, words.next()?)))
}

fn run_herd7(model: &Path, path: &Path, test: &Test) -> Result<(String, String)> {
    let mut herd7 = Command::new("herd7");
    herd7.args(["-conf", "linux-kernel.cfg"]).arg(path).current_dir(model);
    let out = proc::capture(&mut herd7, LIMIT).with_context(|| test.name.clone())?;
    let text = String::from_utf8_lossy(&out.stdout);
    observation(&text).with_context(|| {
        format!(
            "{}: herd7 printed no verdict: {}",
            test.name,
            String::from_utf8_lossy(&out.stderr).trim()
        )
    })
}

/// The table of verdicts, and below it what each test asks.
fn table(rows: &[(&Test, String, String)]) -> String {
    let mut text = String::from(
        "| test | processes | expected | observed | states with / without | file |\n\
         |---|---|---|---|---|---|\n",
    );
    for (test, verdict, states) in rows {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} | {} |",
            test.name, test.processes, test.expected, verdict, states, test.hash
        );
    }
    text += "\n\"States with\" are the final states that fulfil the test's condition. \"File\" is a hash of \
             the\nfile that was run. What each asks:\n\n";
    for (test, ..) in rows {
        text += &question(test);
    }
    text
}

/// A list item with what a test asks, in lines of at most 100 columns.
fn question(test: &Test) -> String {
    let mut lines = vec![format!("- `{}`:", test.name)];
    for word in test.about.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= 100 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("  {word}")),
        }
    }
    lines.join("\n") + "\n"
}

const BEGIN: &str = "<!-- verdicts: written by `pinfold-lab litmus --write` -->\n";
const END: &str = "<!-- end of verdicts -->";

/// Writes the table between its two marks in the README.
fn write_readme(path: &Path, version: &str, table: &str) -> Result<()> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (head, rest) =
        text.split_once(BEGIN).context("the README lacks the mark before the table")?;
    let (_, foot) = rest.split_once(END).context("the README lacks the mark after the table")?;
    let new = format!("{head}{BEGIN}\n{version}\n\n{table}\n{END}{foot}");
    fs::write(path, new).with_context(|| format!("cannot write {}", path.display()))
}

/// Checks that the README has a verdict of each test as the file is now. Where there is no herd7,
/// it is the only one.
///
/// # Errors
/// If one was changed since it was run, was not run, or had another verdict.
fn check_readme(readme: &str, tests: &[&Test]) -> Result<()> {
    for test in tests {
        let row = readme.lines().find(|line| line.starts_with(&format!("| `{}` |", test.name)));
        let cells: Vec<_> = row.unwrap_or_default().split(" | ").collect();
        let [_, _, expected, observed, _, file] = cells[..] else {
            bail!("{}: the README has no verdict", test.name);
        };
        if file != format!("{} |", test.hash) {
            bail!("{}: changed since it was run; run it with --write", test.name);
        }
        if expected != test.expected || observed != test.expected {
            bail!("{}: the README has the verdict {observed}, not {}", test.name, test.expected);
        }
    }
    Ok(())
}

/// Checks every test, and runs it if herd7 is there.
///
/// # Errors
/// If a file is no litmus test, a test has no mutant, or a verdict is not the expected one.
pub(crate) fn run(paths: &Paths, model: Option<PathBuf>, write: bool) -> Result<()> {
    let dir = paths.kernel.join("litmus");
    let found = read_all(&dir)?;
    if found.is_empty() {
        bail!("no litmus tests in {}", dir.display());
    }
    let tests: Vec<_> = found.iter().map(|f| &f.1).collect();
    check_pairs(&tests)?;
    println!("litmus: {} tests are well-formed, half of them mutants", tests.len());
    if !write {
        let file = dir.join("README.md");
        let readme =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        check_readme(&readme, &tests)?;
        println!("litmus: the README has the verdict of each as it is now");
    }
    if !proc::on_path("herd7") {
        println!(
            "litmus: herd7 is not on PATH, so the tests were not run; it is part of herdtools7 \
             (its INSTALL.md says how to build it; version 7.57 is known to work)"
        );
        if write {
            bail!("--write needs herd7, which is not on PATH");
        }
        return Ok(());
    }
    let model = model.unwrap_or_else(|| paths.source(Tree::Plain).join("tools/memory-model"));
    if !model.join("linux-kernel.cfg").is_file() {
        bail!(
            "no memory model in {}: run `cargo lab prepare`, or give a folder by --model",
            model.display()
        );
    }
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    for (path, test) in &found {
        let start = Instant::now();
        let (verdict, states) = run_herd7(&model, path, test)?;
        let mark = if verdict == test.expected { "as expected" } else { "NOT as expected" };
        println!(
            "  {:<22} {:<9} {mark} ({:.1} s)",
            test.name,
            verdict,
            start.elapsed().as_secs_f64()
        );
        if verdict != test.expected {
            wrong.push(format!("{} is {verdict}, expected {}", test.name, test.expected));
        }
        rows.push((test, verdict, states));
    }
    if write {
        let herd = proc::output(Command::new("herd7").arg("-version"))?;
        let herd = herd.split(',').next().unwrap_or_default().trim().to_string();
        let source = model.join("../..");
        let version = format!(
            "herd7 {herd}, memory model of Linux {}.",
            prepare::version(&source).unwrap_or_else(|_| "(unknown)".into())
        );
        write_readme(&dir.join("README.md"), &version, &table(&rows))?;
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "C a\n\n(*\n * Result: Never\n *\n * One thing. More.\n *)\n\n{\n}\n\nP0(int *x)\n{\n}\n\nP1(int *x)\n{\n}\n\nexists (0:r=1 /\\ 1:r=0)\n";

    fn test(name: &str, expected: &str) -> Test {
        Test {
            name: name.into(),
            expected: expected.into(),
            processes: 2,
            about: String::new(),
            condition: "(0:r=1)".into(),
            hash: String::new(),
        }
    }

    #[test]
    fn a_good_test_parses() {
        let test = parse("a", GOOD).unwrap();
        assert_eq!((test.expected.as_str(), test.processes), ("Never", 2));
        assert_eq!(test.about, "One thing");
    }

    #[test]
    fn an_error_names_the_missing_part() {
        for (from, to, what) in [
            ("C a", "C b", "first line"),
            ("Result: Never", "Result: Mostly", "Mostly"),
            ("Result: Never", "", "Result:"),
            ("\nexists ", "\nexist ", "exists"),
            ("P1(", "P2(", "two processes"),
            ("1:r=0", "2:r=0", "2:r"),
            ("{\n}\n\nP0", "{\n\nP0", "match"),
        ] {
            let error = parse("a", &GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(what), "{from} -> {to}: {error}");
        }
    }

    #[test]
    fn a_test_without_a_mutant_that_fails_is_refused() {
        check_pairs(&[&test("a", "Never"), &test("a+mutant", "Sometimes")]).unwrap();
        check_pairs(&[&test("a", "Never")]).unwrap_err();
        check_pairs(&[&test("a+mutant", "Sometimes")]).unwrap_err();
        check_pairs(&[&test("a", "Never"), &test("a+mutant", "Never")]).unwrap_err();
    }

    #[test]
    fn a_mutant_with_another_condition_is_refused() {
        let base = parse("a", GOOD).unwrap();
        let mutant = |from: &str, to: &str| {
            let text = GOOD.replace("C a", "C a+mutant").replace("Never", "Sometimes");
            parse("a+mutant", &text.replace(from, to)).unwrap()
        };
        check_pairs(&[&base, &mutant("/\\ 1:r", "/\\\n\t1:r")]).unwrap();
        let error = check_pairs(&[&base, &mutant("1:r=0", "1:r=1")]).unwrap_err().to_string();
        assert!(error.contains("a asks `(0:r=1 /\\ 1:r=0)`"), "{error}");
        check_pairs(&[&base, &mutant(" /\\ 1:r=0", "")]).unwrap_err();
    }

    #[test]
    fn every_shipped_test_is_well_formed_and_has_a_mutant() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../litmus");
        let found = read_all(&dir).unwrap();
        assert!(found.len() >= 20, "{}", found.len());
        check_pairs(&found.iter().map(|f| &f.1).collect::<Vec<_>>()).unwrap();
        let readme = fs::read_to_string(dir.join("README.md")).unwrap();
        for (_, test) in &found {
            assert!(readme.contains(&format!("\n{}", question(test))), "{}", test.name);
        }
        check_readme(&readme, &found.iter().map(|f| &f.1).collect::<Vec<_>>()).unwrap();
    }

    #[test]
    fn a_test_that_was_changed_since_it_was_run_is_found() {
        let test = parse("a", GOOD).unwrap();
        let readme = table(&[(&test, "Never".into(), "0 / 4".into())]);
        check_readme(&readme, &[&test]).unwrap();
        let changed = parse("a", &GOOD.replace("int *x", "int *y")).unwrap();
        let error = |readme: &str, test| check_readme(readme, &[test]).unwrap_err().to_string();
        assert!(error(&readme, &changed).contains("changed since"));
        assert!(error(&readme.replace("`a`", "`b`"), &test).contains("no verdict"));
        let row = readme.replace("| Never | Never |", "| Never | Sometimes |");
        assert!(error(&row, &test).contains("verdict Sometimes"));
        // The published values of FNV-1a.
        assert_eq!((hash(""), hash("a")), ("cbf29ce484222325".into(), "af63dc4c8601ec8c".into()));
    }

    #[test]
    fn herd7s_output_is_understood() {
        let text = "Test a Allowed\nStates 2\nObservation a Sometimes 1 4\n";
        assert_eq!(observation(text), Some(("Sometimes".into(), "1 / 4".into())));
        assert_eq!(observation("Warning: x"), None);
    }
}
