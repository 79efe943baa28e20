//! `cargo xtask fresh`: a README's commands in a bare Debian 12, so that what a machine happens to
//! have cannot make them pass. The root lies in `target/fresh` and goes when the command ends.
//!
//! What is mounted there is mounted in a namespace of its own, and ends with the last process in
//! it. Of the host it has Rust, read-only; copies of cargo's downloads, of what lets apt reach
//! its servers, and of the host names; and `/dev` and `/sys`.

mod apt;
mod jail;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::fs::{FlockOperation, flock};
use xshell::{Shell, cmd};

use crate::packages::{self, Need};
use jail::{Interrupted, Jail};

/// What README asks for besides Rust: gcc, with the C library's headers that apt brings with it.
const PREREQUISITES: [&str; 2] = ["gcc", "libc6-dev"];

/// Debian 12.
const SUITE: &str = "bookworm";

/// Where the clone lies in the root.
const CLONE: &str = "/pinfold";

#[derive(Debug, Args)]
pub(crate) struct FreshArgs {
    /// The folder of the project whose README has the commands
    #[arg(long = "in", value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// Run only this one of README's commands, named by its last word: try or test
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Leave the root where it is; the next `fresh` removes it
    #[arg(long)]
    keep: bool,
    /// Lend it this folder, too, at the same path, and name the folder in this variable; what is
    /// written to it stays
    #[arg(long, value_name = "VARIABLE=FOLDER", value_parser = lent)]
    lend: Option<(String, PathBuf)>,
    /// Only see whether it can be done here; nothing is run
    #[arg(long, conflicts_with_all = ["folder", "only", "keep", "lend"])]
    check: bool,
}

/// Runs a README's commands in a bare root.
///
/// # Errors
/// If there can be no such root here; the first command that fails; a signal.
pub(crate) fn run(sh: &Shell, args: &FreshArgs) -> Result<()> {
    let interrupted = Interrupted::catch()?;
    ready(sh, &interrupted).context("there can be no bare root here")?;
    if args.check {
        println!("a bare root can be made here");
        return Ok(());
    }
    ensure!(args.folder.is_relative(), "{} is no folder of this repository", args.folder.display());
    let readme = sh.read_file(args.folder.join("README.md"))?;
    let commands = commands(&readme, args.only.as_deref())?;
    let folder = RootFolder::take(&sh.current_dir().canonicalize()?)?;
    let mut report = String::new();
    let ended = in_root(sh, args, &commands, &folder.root, &interrupted, &mut report);
    if args.keep {
        println!("fresh: the root stays in {}", folder.root.display());
    } else {
        folder.clear()?;
    }
    print!("{report}");
    ended
}

/// Whether we may, and have what it takes.
fn ready(sh: &Shell, interrupted: &Interrupted) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "that takes root");
    packages::bring(sh, &[Need::Root])?;
    cmd!(sh, "which mmdebstrap").quiet().ignore_stdout().run().context("no mmdebstrap")?;
    Jail::run(&["chroot", "/", "true"], interrupted).context("no namespaces to mount in")
}

/// The folder of the root; one run at a time has it.
struct RootFolder {
    root: PathBuf,
    _lock: File,
}

impl RootFolder {
    fn take(repository: &Path) -> Result<Self> {
        let folder = repository.join("target/fresh");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let lock = File::create(folder.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("another `fresh` is at work in {}", folder.display()))?;
        let folder = RootFolder { root: folder.join("root"), _lock: lock };
        // The root of an earlier run that was killed, or that was to keep it.
        folder.clear()?;
        Ok(folder)
    }

    fn clear(&self) -> Result<()> {
        let mounts = fs::read("/proc/self/mountinfo").context("cannot see what is mounted")?;
        let mounts = String::from_utf8_lossy(&mounts);
        if let Some(mount) = mounted_in(&mounts, &self.root) {
            bail!("{mount} is mounted, so {} is not removed", self.root.display());
        }
        // Processes that were killed a moment ago may still be writing. Ends: after this many
        // tries.
        for again in (0..50).rev() {
            match fs::remove_dir_all(&self.root) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
                Err(error) if again == 0 => {
                    let root = self.root.display();
                    return Err(error).with_context(|| format!("cannot remove {root}"));
                }
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(100)),
                Ok(()) => break,
            }
        }
        Ok(())
    }
}

/// What is mounted in a folder, of a `mountinfo`: it would be removed with the folder.
fn mounted_in<'a>(mountinfo: &'a str, folder: &Path) -> Option<&'a str> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.into_iter().find(|point| Path::new(point).starts_with(folder))
}

/// README's commands, each with the word that it ends in.
fn commands(readme: &str, only: Option<&str>) -> Result<Vec<(String, String)>> {
    let section = readme.split("\n## ").find(|section| section.starts_with("Two commands\n"));
    let block = section.and_then(|section| section.split("```").nth(1));
    let lines = block.context("README has no block of commands")?.lines().skip(1);
    let commands = lines.map(|line| line.split('#').next().unwrap_or_default().trim());
    let named = commands.filter_map(|command| {
        let name = command.split(' ').next_back()?;
        Some((name.to_owned(), command.to_owned()))
    });
    let wanted: Vec<_> =
        named.filter(|(name, _)| only.is_none_or(|only| only == name.as_str())).collect();
    ensure!(!wanted.is_empty(), "README has no command {}", only.unwrap_or("at all"));
    Ok(wanted)
}

/// Makes the root and runs the commands in it; `report` says what each took.
fn in_root(
    sh: &Shell,
    args: &FreshArgs,
    commands: &[(String, String)],
    root: &Path,
    interrupted: &Interrupted,
    report: &mut String,
) -> Result<()> {
    let mut timed = |what: &str, run: &mut dyn FnMut() -> Result<()>| {
        println!("fresh: {what}");
        let began = Instant::now();
        let ended = run();
        let how = if ended.is_ok() { "" } else { ", and failed" };
        // Writing to a string does not fail.
        let _ = writeln!(report, "fresh: {what}: {} s{how}", began.elapsed().as_secs());
        ended.with_context(|| format!("{what} failed"))
    };
    timed("making a bare Debian 12", &mut || {
        apt::make_root(sh, SUITE, &PREREQUISITES, root, interrupted)
    })?;
    let mut jail = Jail::new(root);
    // Everything is built once there.
    jail.variable("CARGO_INCREMENTAL", OsStr::new("0"));
    timed("lending it what it needs", &mut || {
        lend_rust(sh, &args.folder, root, &mut jail)?;
        clone(sh, root)?;
        args.lend.as_ref().map_or(Ok(()), |(variable, folder)| lend(&mut jail, variable, folder))
    })?;
    let there = Path::new(CLONE).join(&args.folder);
    for (_, command) in commands {
        timed(command, &mut || jail.shell(&there, command, interrupted))?;
    }
    Ok(())
}

/// The toolchain where it is, and what cargo has downloaded, complete for this project.
fn lend_rust(sh: &Shell, project: &Path, root: &Path, jail: &mut Jail) -> Result<()> {
    let manifest = project.join("Cargo.toml");
    cmd!(sh, "cargo fetch --quiet --locked --manifest-path {manifest}").run()?;
    let toolchain = PathBuf::from(cmd!(sh, "rustc --print sysroot").quiet().read()?);
    if toolchain == Path::new("/usr") {
        bail!("Rust is in /usr, which is not lent: use rustup's");
    }
    jail.lend(&toolchain, false);
    jail.path(&toolchain.join("bin"));
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home = home.context("where is cargo's folder? Neither CARGO_HOME nor HOME is set")?;
    let target = root.join("root/.cargo");
    fs::create_dir_all(target.join("registry"))?;
    for part in ["registry/index", "registry/cache", "git/db", "config.toml"] {
        let (from, to) = (home.join(part), target.join(part));
        if from.exists() {
            fs::create_dir_all(to.parent().unwrap_or(&target))?;
            cmd!(sh, "cp -a {from} {to}").quiet().run()?;
        }
    }
    Ok(())
}

/// The last commit, and nothing that is not in it.
fn clone(sh: &Shell, root: &Path) -> Result<()> {
    let here = sh.current_dir();
    if !cmd!(sh, "git status --porcelain").quiet().read()?.is_empty() {
        println!("fresh: what is not committed is not in the clone");
    }
    let there = root.join(CLONE.trim_start_matches('/'));
    cmd!(sh, "git init --quiet {there}").quiet().run()?;
    let origin = format!("file://{}", here.canonicalize()?.display());
    cmd!(sh, "git -C {there} fetch --quiet --depth 1 {origin} HEAD").quiet().run()?;
    Ok(cmd!(sh, "git -C {there} checkout --quiet FETCH_HEAD").quiet().run()?)
}

/// A variable and a folder, from the command line.
fn lent(argument: &str) -> Result<(String, PathBuf)> {
    let (variable, folder) = argument.split_once('=').context("no = in it")?;
    ensure!(!variable.is_empty() && !folder.is_empty(), "the variable or the folder is empty");
    Ok((variable.to_owned(), std::path::absolute(folder)?))
}

/// A folder of the host's, which is made if it is not there.
fn lend(jail: &mut Jail, variable: &str, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    jail.lend(folder, true);
    jail.variable(variable, folder.as_os_str());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = "# A\n\n```sh\nnot this\n```\n\n## Two commands\n\nText:\n\n\
        ```sh\ncargo run --release -- try    # read\ncargo xtask test   # all\n```\n\n## B\n";

    #[test]
    fn commands_are_readmes() {
        let named = |only| commands(README, only);
        assert_eq!(
            named(None).unwrap(),
            [("try", "cargo run --release -- try"), ("test", "cargo xtask test")]
                .map(|(name, command)| (name.to_owned(), command.to_owned()))
        );
        assert_eq!(named(Some("test")).unwrap().len(), 1);
        assert!(named(Some("tset")).unwrap_err().to_string().contains("tset"));
        commands("# No commands\n", None).unwrap_err();
    }

    #[test]
    fn the_shipped_readme_has_two() {
        let readme = include_str!("../../README.md");
        let names: Vec<_> = commands(readme, None).unwrap().into_iter().map(|c| c.0).collect();
        assert_eq!(names, ["try", "test"]);
    }

    #[test]
    fn what_is_lent_has_a_name() {
        assert_eq!(lent("A=/b=c").unwrap(), ("A".to_owned(), PathBuf::from("/b=c")));
        assert!(lent("A=b").unwrap().1.is_absolute());
        for wrong in ["/b", "=/b", "A="] {
            lent(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_folder_with_a_mount_in_it_is_noticed() {
        let mounts = "22 1 0:20 / /proc rw - proc proc rw\n\
            23 1 0:21 / /a/target/fresh/root/sys rw - sysfs sysfs rw\n";
        let within = |folder| mounted_in(mounts, Path::new(folder));
        assert_eq!(within("/a/target/fresh/root"), Some("/a/target/fresh/root/sys"));
        assert_eq!(within("/a/target/fresh/root2"), None);
        assert_eq!(within("/b"), None);
    }

    #[test]
    fn a_root_is_cleared_and_one_run_at_a_time_has_it() {
        let sh = Shell::new().unwrap();
        let repository = sh.create_temp_dir().unwrap();
        let first = RootFolder::take(repository.path()).unwrap();
        fs::create_dir_all(first.root.join("usr/bin")).unwrap();
        let error = RootFolder::take(repository.path()).err().unwrap().to_string();
        assert!(error.contains("another `fresh`"), "{error}");
        drop(first);
        let second = RootFolder::take(repository.path()).unwrap();
        assert!(!second.root.exists());
    }
}
