//! Runs other programs: with their output in a log file and a time limit. They end with the
//! lab. Errors name the program and show the end of its log.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use std::fs::{self, File};
use std::io::{IsTerminal, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How many lines of a log an error shows.
const TAIL_LINES: usize = 15;

/// How a program with a time limit ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Exited(ExitStatus),
    TimedOut,
}

/// Whether a program of this name is in a folder of `PATH`, or in `/usr/sbin` or `/sbin`.
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

/// Says what is going on: a spinner on a terminal, a plain line elsewhere.
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

/// How long a step may take by default: a hundred times as long as it does.
const STEP: Duration = Duration::from_secs(20 * 60);

/// Starts a program in a process group of its own, so that the programs that it starts can be
/// killed with it. The kernel sends it SIGTERM when the lab ends, however the lab ends.
fn start(command: &mut Command) -> Result<Child> {
    command.stdin(Stdio::null()).process_group(0);
    // SAFETY: between fork and exec, only async-signal-safe functions are allowed, and this is
    // one system call.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
    }
    command
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))
}

/// Waits for a program. After `limit` it kills the program and all that it has started.
fn wait(child: &mut Child, limit: Duration) -> Result<Ended> {
    let started = Instant::now();
    // Ends: the child exits, or the limit passes.
    loop {
        if let Some(status) = child.try_wait().context("cannot wait")? {
            return Ok(Ended::Exited(status));
        }
        if started.elapsed() > limit {
            // This fails if they have ended in between, which is fine.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            child.wait().context("cannot wait")?;
            return Ok(Ended::TimedOut);
        }
        thread::sleep(Duration::from_millis(if started.elapsed().as_millis() < 50 {
            1
        } else {
            50
        }));
    }
}

/// Runs a program to its end with its output in `log`.
///
/// # Errors
/// If it cannot be started, fails, or does not end; the error shows the end of the log.
pub(crate) fn run(what: &str, command: &mut Command, log: &Path) -> Result<()> {
    run_for(what, command, log, STEP)
}

/// The same, with a time limit of the caller's.
///
/// # Errors
/// As `run`.
pub(crate) fn run_for(
    what: &str,
    command: &mut Command,
    log: &Path,
    limit: Duration,
) -> Result<()> {
    let how = match run_limited(what, command, log, limit)? {
        Ended::Exited(status) if status.success() => return Ok(()),
        Ended::Exited(status) => format!("failed ({status})"),
        Ended::TimedOut => format!("was not done after {} s", limit.as_secs()),
    };
    bail!("{what} {how}; the end of {}:\n{}", log.display(), tail(log))
}

/// Runs a program with its output in `log`, and kills it after `limit`.
///
/// # Errors
/// If it cannot be started or waited for.
pub(crate) fn run_limited(
    what: &str,
    command: &mut Command,
    log: &Path,
    limit: Duration,
) -> Result<Ended> {
    let bar = announce(what);
    let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let err = out.try_clone().context("cannot duplicate the log's descriptor")?;
    let ended = wait(&mut start(command.stdout(out).stderr(err))?, limit)?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(ended)
}

/// The output of a program that must succeed.
///
/// # Errors
/// If it cannot be started, fails, or does not end; the error has what it wrote to stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = capture(command, STEP)?;
    if !out.status.success() {
        bail!("{program} failed ({}): {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// How a program ended, and all that it wrote.
///
/// # Errors
/// If it cannot be started, or does not end within `limit`.
pub(crate) fn capture(command: &mut Command, limit: Duration) -> Result<Output> {
    let mut child = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let ended = wait(&mut child, limit)?;
    let (stdout, stderr) = (joined(out), joined(err));
    match ended {
        Ended::Exited(status) => Ok(Output { status, stdout, stderr }),
        Ended::TimedOut => bail!(
            "{} was not done after {} s: {}",
            command.get_program().to_string_lossy(),
            limit.as_secs(),
            String::from_utf8_lossy(&stderr).trim()
        ),
    }
}

/// Reads a pipe to its end in a thread of its own, so that its writer never blocks.
fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // After an error, the bytes read so far are still output of the program.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        bytes
    })
}

fn joined(reader: thread::JoinHandle<Vec<u8>>) -> Vec<u8> {
    reader.join().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program"));
    }

    /// Long enough for a shell to start, also on a busy machine.
    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn a_program_that_hangs_is_killed_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $!; sleep 60"]);
        let log = dir.path().join("log");
        let error = run_for("sleeping", &mut command, &log, SOON).unwrap_err().to_string();
        assert!(error.starts_with("sleeping was not done after 5 s"), "{error}");
        assert!(is_gone(fs::read_to_string(&log).unwrap().trim()));
    }

    #[test]
    fn output_of_a_program_that_hangs_is_not_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo why >&2; sleep 60"]);
        let error = capture(&mut command, SOON).unwrap_err().to_string();
        assert!(error.ends_with("5 s: why"), "{error}");
    }

    #[test]
    fn much_output_does_not_block_the_program() {
        let mut command = Command::new("sh");
        command.args(["-c", "seq 100000; seq 100000 >&2"]);
        assert_eq!(output(&mut command).unwrap().lines().count(), 100_000);
    }

    /// Whether a process has ended, or ends soon. If it was not killed, it sleeps for a minute.
    fn is_gone(pid: &str) -> bool {
        let state = || fs::read_to_string(format!("/proc/{pid}/stat"));
        (0..2000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            // It is a zombie if its parent has not waited for it.
            state().map_or(true, |stat| stat.contains(") Z "))
        })
    }

    /// Stands for a lab that is killed: this test runs itself in another process.
    #[test]
    fn programs_end_with_the_lab() {
        const ROLE: &str = "PINFOLD_LAB_TEST_LOG";
        if let Some(log) = std::env::var_os(ROLE) {
            let mut command = Command::new("sh");
            let _ =
                run("sleeping", command.args(["-c", "echo $$; exec sleep 60"]), Path::new(&log));
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut lab = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "proc::tests::programs_end_with_the_lab"])
            .env(ROLE, &log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = (0..6000).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n'))
        });
        lab.kill().unwrap();
        lab.wait().unwrap();
        assert!(is_gone(pid.unwrap().trim()));
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
