//! The steps of a command that takes hours. Each that passes is recorded, so that after an
//! interruption, or a step that failed, the same command goes on with the first that has not passed.
//! It starts anew if anything below `kernel` has changed but documents and cargo's `target`, or the
//! tools have, and after all steps have passed.

use crate::paths::Paths;
use crate::{build, cc, prepare, proc};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The steps of one command that have passed.
#[derive(Debug)]
pub(crate) struct Steps {
    command: &'static str,
    file: PathBuf,
    inputs: String,
    passed: Mutex<BTreeSet<String>>,
    /// How many had passed before this run.
    before: usize,
    started: Instant,
}

impl Steps {
    /// The steps of a command that passed in an earlier run, with the same inputs.
    ///
    /// # Errors
    /// If an input cannot be read.
    pub(crate) fn of(paths: &Paths, command: &'static str) -> Result<Self> {
        let qemu = proc::output(Command::new("qemu-system-x86_64").arg("--version"))?;
        let tools = format!("{}\n{qemu}\n{}", cc::version()?, prepare::unpacked(paths)?);
        Self::with(paths, command, &tools)
    }

    fn with(paths: &Paths, command: &'static str, tools: &str) -> Result<Self> {
        let inputs = cc::hash(&(all_text(&paths.kernel)? + tools));
        let file = paths.cache.join("results").join(format!("passed-{command}"));
        let text = fs::read_to_string(&file).unwrap_or_default();
        let passed: BTreeSet<_> = match text.split_once('\n') {
            Some((of, steps)) if of == inputs => steps.lines().map(str::to_string).collect(),
            _ => BTreeSet::new(),
        };
        let before = passed.len();
        if before > 0 {
            println!("lab {command}: goes on where an earlier run ended; passed: {before} steps");
        }
        let (passed, started) = (Mutex::new(passed), Instant::now());
        Ok(Self { command, file, inputs, passed, before, started })
    }

    /// Whether a step has passed before.
    pub(crate) fn has(&self, step: &str) -> bool {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).contains(step)
    }

    /// Records that a step has passed.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(crate) fn pass(&self, step: &str) -> Result<()> {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.insert(step.to_string());
        let lines: Vec<_> = passed.iter().map(String::as_str).collect();
        fs::write(&self.file, format!("{}\n{}\n", self.inputs, lines.join("\n")))
            .with_context(|| format!("cannot write {}", self.file.display()))
    }

    /// Runs a step, unless it has passed, and says how long it took.
    ///
    /// # Errors
    /// If the step fails. The error has its name.
    pub(crate) fn step(&self, step: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.has(step) {
            println!("lab {}: {step}: passed before", self.command);
            return Ok(());
        }
        let started = Instant::now();
        run().with_context(|| format!("lab {}: {step}", self.command))?;
        println!("lab {}: {step}: passed in {}", self.command, minutes(started.elapsed()));
        self.pass(step)
    }

    /// Says that all have passed, and forgets them.
    ///
    /// # Errors
    /// If the record cannot be removed.
    pub(crate) fn end(self) -> Result<()> {
        prepare::remove_file(&self.file)?;
        let all = self.passed.into_inner().unwrap_or_else(PoisonError::into_inner).len();
        let earlier = match self.before {
            0 => String::new(),
            before => format!(", {before} of them in an earlier run"),
        };
        let time = minutes(self.started.elapsed());
        println!("lab {}: all {all} steps passed{earlier}, in {time}", self.command);
        Ok(())
    }
}

fn minutes(time: Duration) -> String {
    format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60)
}

/// The names and texts of all files of a folder that decide what the lab does.
fn all_text(dir: &Path) -> Result<String> {
    let mut all = String::new();
    let mut entries: Vec<_> = fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() && !path.ends_with("docs") && !path.ends_with("target") {
            all += &all_text(&path)?;
        } else if path.is_file() && path.extension().is_none_or(|e| e != "md") {
            let _ = write!(all, "{}\n{}", path.display(), build::read(&path)?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::cell::RefCell;

    #[test]
    fn a_run_goes_on_with_the_step_that_failed_unless_something_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path().join("kernel"), dir.path());
        for folder in ["kernel/series", "kernel/docs", "kernel/target", "results"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let write = |file: &str, text: &str| fs::write(paths.kernel.join(file), text).unwrap();
        let ran = |fails: &str, tools: &str| {
            let names = RefCell::new(Vec::new());
            let steps = Steps::with(&paths, "test", tools).unwrap();
            let run = |step: &'static str| {
                steps.step(step, || {
                    names.borrow_mut().push(step);
                    if step == fails {
                        bail!("why");
                    }
                    Ok(())
                })
            };
            let all = ["a", "b", "c"].into_iter().try_for_each(run);
            let error = match all {
                Ok(()) => steps.end().map(|()| String::new()).unwrap(),
                Err(error) => format!("{error:#}"),
            };
            (names.into_inner(), error)
        };
        assert_eq!(ran("b", ""), (vec!["a", "b"], "lab test: b: why".to_string()));
        assert_eq!(ran("b", "").0, ["b"]);
        // What is only read by people changes nothing, nor does what cargo has built.
        write("docs/runs.txt", "x");
        write("target/lab", "x");
        write("README.md", "x");
        assert_eq!(ran("c", "").0, ["b", "c"]);
        assert_eq!(ran("c", "gcc 13").0, ["a", "b", "c"]);
        write("series/0001.patch", "x");
        assert_eq!(ran("c", "gcc 13").0, ["a", "b", "c"]);
        write("series/0001.patch", "y");
        assert_eq!(ran("c", "gcc 13").0, ["a", "b", "c"]);
        assert_eq!(ran("", "gcc 13").0, ["c"]);
        // All have passed, so all run again.
        assert_eq!(ran("", "gcc 13").0, ["a", "b", "c"]);
    }
}
