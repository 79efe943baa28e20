//! Booting a kernel: which accelerator really works here, the time limit, and
//! what a boot that went wrong has to say.

use crate::guest;
use crate::paths::Paths;
use crate::proc::{self, Ended};
use crate::race;
use crate::splat::{self, Splat};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How instructions are executed, and so what a figure from the guest means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accel {
    /// Real cores: times are times.
    Kvm,
    /// Emulated, a thread for each CPU: for tests; times mean nothing.
    Tcg,
    /// Emulated, one CPU, and its clock counts instructions.
    Icount,
}

impl Accel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Accel::Kvm => "KVM",
            Accel::Tcg => "TCG, multi-threaded",
            Accel::Icount => "TCG with -icount",
        }
    }

    fn args(self) -> &'static [&'static str] {
        match self {
            Accel::Kvm => &["-accel", "kvm", "-cpu", "host", "-smp", "2"],
            // No LA57: while a kernel identifies its boot CPU it forgets the feature for a
            // moment, and KASAN takes an interrupt's memory for no memory then. And
            // q35, because its table of interrupts is none that a method has to build: ACPI gives
            // a method 30 seconds, which a guest on a busy host may need.
            Accel::Tcg => &[
                "-machine",
                "q35",
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "max,la57=off",
                "-smp",
                "2",
            ],
            Accel::Icount => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=0,sleep=off",
                "-cpu",
                "max",
                "-smp",
                "1",
            ],
        }
    }
}

/// The longest that RCU offers, in seconds: a guest that the host stops for a minute comes
/// back to a grace period that is a minute old, and has done nothing wrong.
const STALL: &str = "rcupdate.rcu_cpu_stall_timeout=300";

/// One boot: what to boot, and what to run in it.
#[derive(Debug)]
pub(crate) struct Boot<'a> {
    pub(crate) name: &'a str,
    pub(crate) image: &'a Path,
    pub(crate) root: &'a Path,
    pub(crate) command: &'a str,
    pub(crate) append: &'a str,
    pub(crate) accel: Accel,
    pub(crate) limit: Duration,
    pub(crate) mem_mib: u32,
    /// More arguments for the emulator, which win over those before them.
    pub(crate) args: &'a [&'a str],
}

/// What a guest left: its programs' output, their exit status, the kernel's log.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) output: String,
    pub(crate) status: i32,
    pub(crate) console: String,
}

/// A boot as it went, before anybody has judged it.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) console: String,
    /// What the kernel complained of, races that do not concern the series left out.
    pub(crate) splats: Vec<Splat>,
    /// How the command ended, or why it did not.
    pub(crate) end: Result<(String, i32)>,
}

/// Takes the last line, `lab: exit N`, off a guest's output.
fn parse_output(text: &str) -> Option<(String, i32)> {
    let text = text.replace('\r', "");
    let (output, rest) = text.rsplit_once("lab: exit ")?;
    Some((output.to_string(), rest.trim().parse().ok()?))
}

/// Boots once, to the end of the command.
///
/// # Errors
/// A boot that does not come to its end, and every splat in the kernel's log,
/// with the lines that matter. The command's own failure is in the outcome.
pub(crate) fn boot(paths: &Paths, boot: &Boot) -> Result<Outcome> {
    let ran = run(paths, boot)?;
    if let Some(first) = ran.splats.first() {
        bail!(
            "{}: the kernel complained {} time(s), first ({}):\n{}\n(all of it: {})",
            boot.name,
            ran.splats.len(),
            first.kind,
            first.shown(),
            console(paths, boot).display()
        );
    }
    let (output, status) = ran.end?;
    Ok(Outcome { output, status, console: ran.console })
}

/// Where the kernel's log of a boot is kept.
pub(crate) fn console(paths: &Paths, boot: &Boot) -> PathBuf {
    paths.log(&format!("console-{}", boot.name))
}

/// Boots once, and leaves it to the caller what a splat or a hang means.
///
/// # Errors
/// If the guest cannot be packed or the emulator not be started.
pub(crate) fn run(paths: &Paths, boot: &Boot) -> Result<Ran> {
    let ran = once(paths, boot)?;
    // QEMU 7.2's multi-threaded emulator lets a CPU run into the breakpoint of code
    // that is being patched after it is gone: kernel/docs/runs.md. It happens to any
    // kernel, once in many boots; twice in two is something else.
    if boot.accel == Accel::Tcg && ran.splats.first().is_some_and(|s| s.kind == splat::INT3) {
        println!("{}: int3 under multi-threaded emulation; booting once more", boot.name);
        return once(paths, boot);
    }
    Ok(ran)
}

fn once(paths: &Paths, boot: &Boot) -> Result<Ran> {
    let initramfs = guest::initramfs(paths, boot.root, boot.command)?;
    let disk = guest::disk(paths)?;
    let console = console(paths, boot);
    let output = paths.log(&format!("output-{}", boot.name));
    for old in [&console, &output] {
        let _ = fs::remove_file(old);
    }
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-m", &format!("{}M", boot.mem_mib)])
        .args(boot.accel.args())
        .args(boot.args)
        .arg("-kernel")
        .arg(boot.image)
        .arg("-initrd")
        .arg(initramfs)
        .arg("-append")
        .arg(format!("console=ttyS0 panic=-1 rdinit=/init {STALL} {}", boot.append))
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-serial")
        .arg(format!("file:{}", output.display()))
        .arg("-drive")
        .arg(format!("file={},if=virtio,format=raw", disk.display()));
    let log = paths.log(&format!("qemu-{}", boot.name));
    let what = format!("{} under {}", boot.name, boot.accel.name());
    let ended = proc::run_limited(&what, &mut qemu, &log, Some(boot.limit))?;
    let text = read(&console);
    let (splats, elsewhere) = race::judge(splat::find(&text));
    if elsewhere > 0 {
        println!("{}: KCSAN reports {elsewhere} race(s), none about a page's count", boot.name);
    }
    Ok(Ran { end: end(boot, &ended, &console, &output, &log), console: text, splats })
}

fn read(path: &Path) -> String {
    fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
}

fn end(
    boot: &Boot,
    ended: &Ended,
    console: &Path,
    output: &Path,
    log: &Path,
) -> Result<(String, i32)> {
    match (ended, parse_output(&read(output))) {
        (Ended::Exited(_), Some(finished)) => Ok(finished),
        (Ended::TimedOut, _) => bail!(
            "{}: not done after {} s; the kernel's last lines:\n{}\nthe command's last lines:\n{}",
            boot.name,
            boot.limit.as_secs(),
            proc::tail(console),
            proc::tail(output)
        ),
        (Ended::Exited(status), None) => bail!(
            "{}: the guest ended ({status}) before its command did; qemu:\n{}\nthe kernel's last lines:\n{}",
            boot.name,
            proc::tail(log),
            proc::tail(console)
        ),
    }
}

/// Whether KVM boots this kernel here. The device file says nothing: a host may
/// offer a variant that starts no stock kernel. Asked once for each host kernel.
///
/// # Errors
/// If the answer cannot be kept.
pub(crate) fn kvm_works(paths: &Paths, image: &Path, root: &Path) -> Result<bool> {
    let host = proc::output(Command::new("uname").arg("-a"))?;
    let path = paths.cache.join("results/kvm");
    if let Ok(text) = fs::read_to_string(&path)
        && let Some(answer) = text.strip_prefix(&host)
    {
        return Ok(answer.trim() == "works");
    }
    let works = Path::new("/dev/kvm").exists()
        && boot(
            paths,
            &Boot {
                name: "kvm-probe",
                image,
                root,
                command: "true",
                append: "",
                accel: Accel::Kvm,
                limit: Duration::from_secs(20),
                mem_mib: 512,
                args: &[],
            },
        )
        .is_ok();
    let answer = if works { "works" } else { "boots nothing" };
    fs::write(&path, format!("{host}{answer}\n")).context("cannot keep what KVM does")?;
    eprintln!("lab: KVM {answer} here");
    Ok(works)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_exit_line_counts() {
        assert_eq!(parse_output("a\r\nb\nlab: exit 3\n"), Some(("a\nb\n".to_string(), 3)));
        assert_eq!(parse_output("lab: exit 1\nx\nlab: exit 0\n").unwrap().1, 0);
        assert_eq!(parse_output("a\n"), None);
        assert_eq!(parse_output("lab: exit "), None);
    }
}
