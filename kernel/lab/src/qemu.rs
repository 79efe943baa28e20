//! Boots a kernel: finds out which accelerator works here, keeps a time limit, and explains a
//! boot that went wrong.

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

/// How QEMU executes instructions. It decides what a figure from the guest means.
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
            // Without LA57: while the kernel identifies its boot CPU, the feature is cleared for
            // a moment. KASAN computes the address of its shadow memory from it, and reports a
            // wild access in an interrupt that comes then.
            // With q35: its interrupt table needs no ACPI method. Linux gives a method 30
            // seconds, and on a busy host the guest may need longer.
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

/// The longest timeout that RCU offers, in seconds. If the host stops the guest for a minute, a
/// grace period takes a minute, and that is no fault of the kernel.
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
    /// More arguments for QEMU. They override those before them.
    pub(crate) args: &'a [&'a str],
}

/// What a boot left: the output of the command, its exit status, and the kernel's log.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) output: String,
    pub(crate) status: i32,
    pub(crate) console: String,
}

/// What a boot left, with its failures still in it: for callers that decide themselves which
/// failures count.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) console: String,
    pub(crate) output: String,
    /// The kernel's splats, without the races that are not about a page's count.
    pub(crate) splats: Vec<Splat>,
    /// The command's exit status, or why it has none.
    pub(crate) end: Result<i32>,
}

/// Splits a guest's output into the command's output and the exit status, which is the last
/// line, `lab: exit N`. Without that line there is no status.
fn parse_output(text: &str) -> (String, Option<i32>) {
    let text = text.replace('\r', "");
    let split = text.rsplit_once("lab: exit ");
    let status = split.and_then(|(_, rest)| rest.trim().parse().ok());
    match (split, status) {
        (Some((output, _)), Some(_)) => (output.to_string(), status),
        _ => (text, None),
    }
}

/// Boots once, to the end of the command. A command that fails is not an error: its status is in
/// the outcome.
///
/// # Errors
/// If the boot does not come to its end, or there is a splat in the kernel's log. The error
/// shows the lines that matter.
pub(crate) fn boot(paths: &Paths, boot: &Boot) -> Result<Outcome> {
    let ran = run(paths, boot)?;
    if let Some(first) = ran.splats.first() {
        bail!(
            "{}: the kernel's log has {} splat(s), the first ({}):\n{}\n(the whole log: {})",
            boot.name,
            ran.splats.len(),
            first.kind,
            first.shown(),
            console(paths, boot).display()
        );
    }
    Ok(Outcome { output: ran.output, status: ran.end?, console: ran.console })
}

/// The file with the kernel's log of a boot.
pub(crate) fn console(paths: &Paths, boot: &Boot) -> PathBuf {
    paths.log(&format!("console-{}", boot.name))
}

/// Boots once. The caller decides what a splat or a hang means.
///
/// # Errors
/// If the guest cannot be packed, or QEMU cannot be started.
pub(crate) fn run(paths: &Paths, boot: &Boot) -> Result<Ran> {
    let ran = once(paths, boot)?;
    // A fault of QEMU 7.2's multi-threaded emulation: a CPU may execute a breakpoint of code
    // patching after the kernel has removed it (kernel/docs/runs.md). It happens to any kernel,
    // once in many boots. If it happens twice in a row, it is another fault.
    if boot.accel == Accel::Tcg && is_int3_alone(&ran.splats) {
        println!("{}: int3 under multi-threaded emulation; booting once more", boot.name);
        return once(paths, boot);
    }
    Ok(ran)
}

/// Whether all splats are of that breakpoint and of the panic that follows it.
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
    let (splats, elsewhere) = race::classify(splat::find(&text));
    if elsewhere > 0 {
        println!("{}: KCSAN reports {elsewhere} race(s), none about a page's count", boot.name);
    }
    let (output, status) = parse_output(&read(&output));
    let end = end(boot, &ended, &text, &output, status, &log);
    Ok(Ran { console: text, output, splats, end })
}

/// The content of a file, or an empty text if it is not there.
fn read(path: &Path) -> String {
    fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
}

/// The command's exit status, if the boot came to its end and the kernel's log is complete.
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

/// Why a kernel's log is incomplete, if it is: then a splat may be missing from it.
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

/// The accelerator for tests: KVM where it works, emulation elsewhere.
///
/// # Errors
/// Those of [`kvm_works`].
pub(crate) fn accel(paths: &Paths, image: &Path, root: &Path) -> Result<Accel> {
    Ok(if kvm_works(paths, image, root)? { Accel::Kvm } else { Accel::Tcg })
}

/// Whether KVM boots this kernel here. That the device file exists does not show it: a host may
/// have a variant of KVM that boots no stock kernel. So a kernel is booted, once for each host
/// kernel and QEMU.
///
/// # Errors
/// If the result cannot be kept.
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
        eprintln!("lab: KVM starts this kernel, but the boot fails; the next run tries again");
        return Ok(false);
    };
    let answer = if works { WORKS } else { "boots nothing" };
    fs::write(&path, format!("{asked}{answer}\n")).context("cannot record whether KVM works")?;
    eprintln!("lab: KVM {answer} here");
    Ok(works)
}

const WORKS: &str = "works";

/// What a boot shows about KVM. If the kernel wrote to its log and then failed, the kernel may be
/// at fault, and there is no answer. If it wrote nothing, KVM never ran it.
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
    fn only_a_complete_log_counts_as_success() {
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
    fn int3_with_other_splats_is_no_reason_to_boot_again() {
        let alone = |log: &str| is_int3_alone(&splat::find(log));
        let int3 = "Oops: int3: 0000 [#1] SMP\nRIP: 0010:f+0xad/0x180\n </TASK>\n";
        assert!(alone(int3));
        assert!(alone(&format!("{int3}Kernel panic - not syncing: Fatal exception\n")));
        assert!(!alone(&format!("{int3}WARNING: CPU: 0 PID: 1 at mm/a.c:3 f\n")));
        assert!(!alone(&format!("WARNING: CPU: 0 PID: 1 at mm/a.c:3 f\n </TASK>\n{int3}")));
        assert!(!alone(""));
    }

    #[test]
    fn a_fault_of_the_kernel_shows_nothing_about_kvm() {
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
