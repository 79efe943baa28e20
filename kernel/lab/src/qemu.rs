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
    pub(crate) output: String,
    /// What the kernel complained of, races that do not concern the series left out.
    pub(crate) splats: Vec<Splat>,
    /// The command's status, or why it has none.
    pub(crate) end: Result<i32>,
}

/// Takes the last line, `lab: exit N`, off a guest's output; without it there is no status.
fn parse_output(text: &str) -> (String, Option<i32>) {
    let text = text.replace('\r', "");
    let split = text.rsplit_once("lab: exit ");
    let status = split.and_then(|(_, rest)| rest.trim().parse().ok());
    match (split, status) {
        (Some((output, _)), Some(_)) => (output.to_string(), status),
        _ => (text, None),
    }
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
    Ok(Outcome { output: ran.output, status: ran.end?, console: ran.console })
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
    if boot.accel == Accel::Tcg && is_int3_alone(&ran.splats) {
        println!("{}: int3 under multi-threaded emulation; booting once more", boot.name);
        return once(paths, boot);
    }
    Ok(ran)
}

/// Whether nothing else is complained of than that breakpoint, and that it was the end.
fn is_int3_alone(splats: &[Splat]) -> bool {
    splats.first().is_some_and(|s| s.kind == splat::INT3)
        && splats.iter().all(|s| s.kind == splat::INT3 || s.kind == splat::PANIC)
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
    let ended = proc::run_limited(&what, &mut qemu, &log, boot.limit)?;
    let text = read(&console);
    let (splats, elsewhere) = race::judge(splat::find(&text));
    if elsewhere > 0 {
        println!("{}: KCSAN reports {elsewhere} race(s), none about a page's count", boot.name);
    }
    let (output, status) = parse_output(&read(&output));
    let end = end(boot, &ended, &text, &output, status, &log);
    Ok(Ran { console: text, output, splats, end })
}

/// What a file holds; of one that is not there, nothing.
fn read(path: &Path) -> String {
    fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
}

/// How the command ended, if the boot came to its own end and the kernel's log is whole.
fn end(
    boot: &Boot,
    ended: &Ended,
    console: &str,
    output: &str,
    status: Option<i32>,
    log: &Path,
) -> Result<i32> {
    let name = boot.name;
    let Ended::Exited(emulator) = ended else {
        bail!(
            "{name}: not done after {} s; the kernel's last lines:\n{}\nthe command's last lines:\n{}",
            boot.limit.as_secs(),
            proc::last_lines(console),
            proc::last_lines(output)
        );
    };
    let Some(status) = status else {
        bail!(
            "{name}: the guest ended ({emulator}) before its command did; qemu:\n{}\nthe kernel's last lines:\n{}",
            proc::tail(log),
            proc::last_lines(console)
        );
    };
    if !emulator.success() {
        bail!("{name}: qemu failed ({emulator}):\n{}", proc::tail(log));
    }
    if let Some(why) = incomplete(console) {
        bail!("{name}: the kernel's log {why}; its last lines:\n{}", proc::last_lines(console));
    }
    Ok(status)
}

/// What a log lacks in which nothing may be missed.
fn incomplete(console: &str) -> Option<&'static str> {
    let is = |line: Option<&str>, words| line.is_some_and(|l| l.contains(words));
    let mut lines = console.lines().filter(|l| !l.trim().is_empty());
    if !is(lines.next(), "Linux version") {
        return Some("does not begin with the kernel's version");
    }
    if !is(lines.next_back(), "reboot: machine restart") {
        return Some("does not end with the guest's restart");
    }
    console.contains("printk messages dropped").then_some("has lost messages")
}

/// What to boot tests with: KVM where it works, emulation where not.
///
/// # Errors
/// Those of [`kvm_works`].
pub(crate) fn accel(paths: &Paths, image: &Path, root: &Path) -> Result<Accel> {
    Ok(if kvm_works(paths, image, root)? { Accel::Kvm } else { Accel::Tcg })
}

/// Whether KVM boots this kernel here. The device file says nothing: a host may
/// offer a variant that starts no stock kernel. Asked once for each host kernel and
/// emulator.
///
/// # Errors
/// If the answer cannot be kept.
pub(crate) fn kvm_works(paths: &Paths, image: &Path, root: &Path) -> Result<bool> {
    if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(false);
    }
    let host = proc::output(Command::new("uname").arg("-a"))?;
    let emulator = proc::output(Command::new("qemu-system-x86_64").arg("--version"))?;
    let asked = format!("{host}{emulator}");
    let path = paths.cache.join("results/kvm");
    if let Ok(text) = fs::read_to_string(&path)
        && let Some(answer) = text.strip_prefix(&asked)
    {
        return Ok(answer.trim() == WORKS);
    }
    let ran = once(
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
    )?;
    let Some(works) = kvm_answer(&ran) else {
        eprintln!(
            "lab: KVM starts this kernel and does not bring it to its end; asked again next time"
        );
        return Ok(false);
    };
    let answer = if works { WORKS } else { "boots nothing" };
    fs::write(&path, format!("{asked}{answer}\n")).context("cannot keep what KVM does")?;
    eprintln!("lab: KVM {answer} here");
    Ok(works)
}

const WORKS: &str = "works";

/// What a boot says about KVM. A kernel that began to speak and then complained or
/// stopped may itself be at fault; one that never said a word was never run.
fn kvm_answer(ran: &Ran) -> Option<bool> {
    match &ran.end {
        Ok(_) if ran.splats.is_empty() => Some(true),
        Err(_) if ran.console.is_empty() => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_exit_line_counts() {
        assert_eq!(parse_output("a\r\nb\nlab: exit 3\n"), ("a\nb\n".to_string(), Some(3)));
        assert_eq!(parse_output("lab: exit 1\nx\nlab: exit 0\n").1, Some(0));
        assert_eq!(parse_output("a\r\n"), ("a\n".to_string(), None));
        assert_eq!(parse_output("lab: exit "), ("lab: exit ".to_string(), None));
    }

    const WHOLE: &str = "Linux version 6.12.117+ (lab@lab) #1 SMP\nRun /init as init process\n\
                         reboot: Restarting system\nreboot: machine restart\n";

    fn boot_end(ended: &Ended, console: &str, status: Option<i32>) -> Result<i32> {
        let boot = Boot {
            name: "b",
            image: Path::new(""),
            root: Path::new(""),
            command: "",
            append: "",
            accel: Accel::Tcg,
            limit: Duration::from_secs(7),
            mem_mib: 1,
            args: &[],
        };
        end(&boot, ended, console, "x\n", status, Path::new("/nonexistent"))
    }

    fn exited(code: i32) -> Ended {
        Ended::Exited(std::os::unix::process::ExitStatusExt::from_raw(code << 8))
    }

    #[test]
    fn only_a_whole_log_says_that_all_is_well() {
        assert_eq!(boot_end(&exited(0), WHOLE, Some(3)).unwrap(), 3);
        let error = |console: &str| boot_end(&exited(0), console, Some(0)).unwrap_err().to_string();
        assert!(error("").contains("does not begin"));
        assert!(error(WHOLE.split_once('\n').unwrap().1).contains("does not begin"));
        assert!(error(WHOLE.trim_end().rsplit_once('\n').unwrap().0).contains("does not end"));
        let dropped = WHOLE.replace("Run", "** 38 printk messages dropped **\nRun");
        assert!(error(&dropped).contains("has lost messages"));
    }

    #[test]
    fn an_emulator_that_fails_or_hangs_fails_the_boot() {
        let error = |ended: &Ended, status| boot_end(ended, WHOLE, status).unwrap_err().to_string();
        assert!(error(&exited(1), Some(0)).contains("qemu failed (exit status: 1)"));
        assert!(error(&exited(0), None).contains("before its command did"));
        assert!(error(&Ended::TimedOut, Some(0)).contains("not done after 7 s"));
    }

    #[test]
    fn int3_with_other_complaints_is_no_reason_to_boot_again() {
        let alone = |log: &str| is_int3_alone(&splat::find(log));
        let int3 = "Oops: int3: 0000 [#1] SMP\nRIP: 0010:f+0xad/0x180\n </TASK>\n";
        assert!(alone(int3));
        assert!(alone(&format!("{int3}Kernel panic - not syncing: Fatal exception\n")));
        assert!(!alone(&format!("{int3}WARNING: CPU: 0 PID: 1 at mm/a.c:3 f\n")));
        assert!(!alone(&format!("WARNING: CPU: 0 PID: 1 at mm/a.c:3 f\n </TASK>\n{int3}")));
        assert!(!alone(""));
    }

    #[test]
    fn a_kernels_own_fault_is_no_answer_about_kvm() {
        let ran = |console: &str, end| Ran {
            console: console.to_string(),
            output: String::new(),
            splats: splat::find(console),
            end,
        };
        let done = || Ok(0);
        let failed = || Err(anyhow::anyhow!("not done"));
        assert_eq!(kvm_answer(&ran(WHOLE, done())), Some(true));
        assert_eq!(kvm_answer(&ran("", failed())), Some(false));
        assert_eq!(kvm_answer(&ran("Linux version\n", failed())), None);
        assert_eq!(kvm_answer(&ran("Linux version\nBUG: x\n", failed())), None);
        assert_eq!(kvm_answer(&ran(&format!("BUG: x\n{WHOLE}"), done())), None);
    }
}
