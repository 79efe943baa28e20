//! Processes in namespaces of their own: their mounts are visible to them only, and all of them end
//! when the first one or this program ends.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Mounts what each Linux has, then what is lent ($2 and on, each `ro` or `rw` and a folder, up to
/// `--`), and runs the rest there.
const ENTER: &str = r#"
set -eu
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mkdir -p "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$2" "$root$2"
    [ "$1" = rw ] || mount -o remount,bind,ro "$root$2"
    shift 2
done
shift
exec chroot "$root" "$@"
"#;

/// Variables without which there may be no network.
const VARIABLES: [&str; 9] = [
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "TERM",
    "CI",
];

/// Whether a signal asked this program to end. It is caught, so that there is time to clean up.
pub(super) struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    pub(super) fn catch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Interrupted(flag))
    }

    fn yes(&self) -> bool {
        // It says nothing of other memory.
        self.0.load(Ordering::Relaxed)
    }
}

/// A root, and what is lent to it.
pub(super) struct Jail {
    root: PathBuf,
    lent: Vec<OsString>,
    path: OsString,
    variables: Vec<OsString>,
}

impl Jail {
    pub(super) fn new(root: &Path) -> Self {
        let path = OsString::from("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        Jail { root: root.to_owned(), lent: Vec::new(), path, variables: Vec::new() }
    }

    /// Makes a folder of the host visible at the same path.
    pub(super) fn lend(&mut self, folder: &Path, writable: bool) {
        self.lent.push(if writable { "rw" } else { "ro" }.into());
        self.lent.push(folder.into());
    }

    /// Programs are looked for here first.
    pub(super) fn path(&mut self, folder: &Path) {
        let mut path = folder.as_os_str().to_owned();
        path.push(":");
        path.push(&self.path);
        self.path = path;
    }

    pub(super) fn variable(&mut self, name: &str, value: &OsStr) {
        let mut variable = OsString::from(name);
        variable.push("=");
        variable.push(value);
        self.variables.push(variable);
    }

    /// Runs a line of the shell in a folder of the root, with nothing of our environment.
    ///
    /// # Errors
    /// If it fails, or we are interrupted.
    pub(super) fn shell(&self, folder: &Path, line: &str, interrupted: &Interrupted) -> Result<()> {
        let mut command = jailed();
        command.args(["sh", "-c", ENTER, "sh"]).arg(&self.root).args(&self.lent).arg("--");
        command.args(["env", "-i", "HOME=/root", "LANG=C.UTF-8", "CARGO_NET_OFFLINE=true"]);
        let mut path = OsString::from("PATH=");
        path.push(&self.path);
        command.arg(path).args(&self.variables);
        for name in VARIABLES {
            if let Ok(value) = std::env::var(name) {
                command.arg(format!("{name}={value}"));
            }
        }
        // No `exec`: the shell is the first process, which has to bury the orphans.
        command.arg("sh").arg("-c").arg(format!("cd {} && {line}; exit $?", folder.display()));
        ended(&mut command, line, interrupted)
    }

    /// Runs a program of ours on our own root, but with mounts and processes of its own.
    ///
    /// # Errors
    /// As `shell`.
    pub(super) fn run(line: &[&str], interrupted: &Interrupted) -> Result<()> {
        ended(jailed().arg("--mount-proc").args(line), line[0], interrupted)
    }
}

/// The beginning of a command line, whose options may go on.
fn jailed() -> Command {
    // The first process ends with unshare, unshare with us, and all others with the first.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]);
    command.args(["--pid", "--fork", "--kill-child=KILL"]).stdin(Stdio::null());
    command
}

fn ended(command: &mut Command, what: &str, interrupted: &Interrupted) -> Result<()> {
    let mut child = command.spawn().context("cannot start setpriv and unshare, of util-linux")?;
    // Ends: the child exits, or we are interrupted.
    let status = loop {
        if let Some(status) = child.try_wait().context("cannot wait")? {
            break status;
        }
        if interrupted.yes() {
            // It may have ended in between, which is fine.
            let _ = child.kill();
            child.wait().context("cannot wait")?;
            bail!("interrupted");
        }
        thread::sleep(Duration::from_millis(50));
    };
    if interrupted.yes() {
        bail!("interrupted");
    }
    if !status.success() {
        bail!("`{what}` failed ({status})");
    }
    Ok(())
}
