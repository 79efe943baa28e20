//! Running other programs: output into a log file, a time limit if asked for,
//! and errors that name the program and show the end of its log.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::{self, File};
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How many lines of a log an error shows.
const TAIL_LINES: usize = 15;

/// What became of a program with a time limit.
#[derive(Debug)]
pub(crate) enum Ended {
    Exited(ExitStatus),
    TimedOut,
}

/// Whether a program of this name is in one of `PATH`'s folders.
pub(crate) fn on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path)
            .chain([Path::new("/usr/sbin").to_path_buf(), Path::new("/sbin").to_path_buf()])
            .any(|dir| dir.join(program).is_file())
    })
}

/// The last lines of a file, for an error message; empty if it cannot be read.
pub(crate) fn tail(path: &Path) -> String {
    let text = fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    last_lines(&text)
}

/// The last lines of a text, for an error message.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// A line that says what is going on: moving on a terminal, plain in a pipe.
pub(crate) fn announce(what: &str) -> Option<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        eprintln!("lab: {what}");
        return None;
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.set_message(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(200));
    Some(bar)
}

/// Runs a program to its end with its output in `log`.
///
/// # Errors
/// If it cannot be started or fails; the error shows the end of the log.
pub(crate) fn run(what: &str, command: &mut Command, log: &Path) -> Result<()> {
    match run_limited(what, command, log, None)? {
        Ended::Exited(status) if status.success() => Ok(()),
        Ended::Exited(status) => {
            bail!("{what} failed ({status}); the end of {}:\n{}", log.display(), tail(log))
        }
        Ended::TimedOut => unreachable!("no limit was given"),
    }
}

/// Runs a program with its output in `log`, and kills it after `limit`.
///
/// # Errors
/// If it cannot be started or waited for.
pub(crate) fn run_limited(
    what: &str,
    command: &mut Command,
    log: &Path,
    limit: Option<Duration>,
) -> Result<Ended> {
    let bar = announce(what);
    let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let err = out.try_clone().context("cannot duplicate the log's descriptor")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    let started = Instant::now();
    let ended = match limit {
        None => Ended::Exited(child.wait().context("cannot wait")?),
        Some(limit) => loop {
            // Ends: the child exits, or the limit passes.
            if let Some(status) = child.try_wait().context("cannot wait")? {
                break Ended::Exited(status);
            }
            if started.elapsed() > limit {
                // It may have ended in between; both are fine.
                let _ = child.kill();
                child.wait().context("cannot wait")?;
                break Ended::TimedOut;
            }
            thread::sleep(Duration::from_millis(50));
        },
    };
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(ended)
}

/// The output of a program that must succeed.
///
/// # Errors
/// If it cannot be started or fails; the error has what it wrote to stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {program}"))?;
    if !out.status.success() {
        bail!("{program} failed ({}): {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_on_the_path() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program"));
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let ended = run_limited(
            "sleep",
            Command::new("sleep").arg("60"),
            &dir.path().join("log"),
            Some(Duration::from_millis(100)),
        )
        .unwrap();
        assert!(matches!(ended, Ended::TimedOut));
    }

    #[test]
    fn a_failure_shows_the_end_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "seq 100; echo the reason >&2; exit 3"]);
        let text = run("counting", &mut command, &dir.path().join("log")).unwrap_err().to_string();
        assert!(text.contains("the reason") && text.contains("100"), "{text}");
        assert!(!text.contains("\n50\n"), "{text}");
    }
}
