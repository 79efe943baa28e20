//! `lab stress` runs `kernel/guest/stress.sh` in one kernel for some minutes. If there are
//! splats in the patched kernel's log, the plain kernel runs the same stress. A splat that the
//! plain kernel has as well is not caused by the series; any other is an error. Wrong data is
//! always an error.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Boot, Ran};
use crate::splat::Splat;
use crate::{build, coverage, fsx, guest, proc, race_proof, smoke};
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::time::Duration;

/// How many seconds the guest works by default.
pub(crate) const SECONDS: u32 = 180;

/// What the guest does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) seconds: u32,
    /// Without workers that use the memory.
    pub(crate) idle: bool,
}

impl Default for Load {
    fn default() -> Self {
        Load { seconds: SECONDS, idle: false }
    }
}

/// How much longer than its working time a guest may take: swap is emptied at the end, and a
/// debug kernel under emulation is some fifty times slower than one on real cores.
const GRACE: Duration = Duration::from_secs(1500);

/// Boot parameters: movable memory that can go offline, and a device's memory at 1280 MiB. With
/// `vm_debug=-` the struct pages of offline memory are not poisoned, as without `DEBUG_VM`:
/// compaction and `split_huge_pages` read them without a lock in any kernel, and would take the
/// poison for a page's fields.
const APPEND: &str = "kunit.enable=0 movablecore=768M memhp_default_state=online_movable \
                      memmap=128M!1280M vm_debug=-";

/// Memory that the host plugs: a whole block of 128 MiB, and a part of a second one.
const DEVICES: &[&str] = &[
    "-m",
    "2048M,maxmem=2560M",
    "-object",
    "memory-backend-ram,id=plugged,size=256M",
    "-device",
    "virtio-mem-pci,memdev=plugged,requested-size=200M",
];

/// What the stress found in one kernel.
struct Found {
    splats: Vec<Splat>,
    /// Why the stress failed, if it did.
    failure: Option<Failure>,
    accel: &'static str,
}

/// Why a stress failed.
#[derive(Debug)]
struct Failure {
    /// What two failures of the same kind have in common, on whichever kernel.
    kind: String,
    text: String,
}

/// What is printed of a worker that reads data that was not written.
const WRONG_DATA: &str = "wrong data: ";

impl Found {
    /// The splats by signature: how many there are of each, and the first of them.
    fn kinds(&self) -> BTreeMap<String, (usize, &Splat)> {
        let mut kinds = BTreeMap::new();
        for splat in &self.splats {
            kinds.entry(splat.signature()).or_insert((0, splat)).0 += 1;
        }
        kinds
    }
}

/// The stress on the patched kernel.
///
/// # Errors
/// If the build or the boot fails, there is wrong data, or there is a splat that the plain kernel
/// does not have under the same stress.
pub(crate) fn series(paths: &Paths, config: Config, load: Load) -> Result<()> {
    let found = run(paths, Tree::Series, config, load)?;
    let name = format!("stress-series-{}", config.name());
    match &found.failure {
        Some(failure) if found.splats.is_empty() || failure.kind == WRONG_DATA => {
            bail!("{}", failure.text)
        }
        None if found.splats.is_empty() => {
            println!("{name} ({}): no splat", found.accel);
            return Ok(());
        }
        _ => {}
    }
    println!(
        "{name}: {} splat(s); the plain kernel runs the same stress to see whether it has them",
        found.splats.len()
    );
    let plain = run(paths, Tree::Plain, config, load)?;
    let new = new_splats(&found, &plain);
    if !new.is_empty() {
        bail!("{name}: splats that the plain kernel does not have:\n{}", new.join("\n"));
    }
    if let Some(failure) = new_failure(&found, &plain) {
        bail!(
            "{}\n(the plain kernel has the same splats, and does not fail in this way)",
            failure.text
        );
    }
    for (signature, (times, _)) in found.kinds() {
        println!("{name}: {times} x {signature}; the plain kernel has it, too");
    }
    Ok(())
}

/// The stress on the plain kernel, to see its splats.
///
/// # Errors
/// If the build fails, or QEMU does not start.
pub(crate) fn plain(paths: &Paths, config: Config, load: Load) -> Result<()> {
    let found = run(paths, Tree::Plain, config, load)?;
    let name = format!("stress-plain-{}", config.name());
    for (signature, (times, splat)) in found.kinds() {
        println!("{name}: {times} x {signature}\n{}\n", splat.shown());
    }
    if let Some(failure) = &found.failure {
        println!("{}", failure.text);
    }
    println!("{name} ({}): {} splat(s)", found.accel, found.splats.len());
    Ok(())
}

/// The failure of a kernel, unless the other kernel fails in the same way.
fn new_failure<'a>(found: &'a Found, other: &Found) -> Option<&'a Failure> {
    let failure = found.failure.as_ref()?;
    let shared = other.failure.as_ref().is_some_and(|f| f.kind == failure.kind);
    (!shared).then_some(failure)
}

/// The splats of a kernel that the other kernel does not have.
fn new_splats(found: &Found, other: &Found) -> Vec<String> {
    let known = other.kinds();
    found
        .kinds()
        .into_iter()
        .filter(|(signature, _)| !known.contains_key(signature))
        .map(|(signature, (times, splat))| format!("{times} x {signature}\n{}", splat.shown()))
        .collect()
}

fn run(paths: &Paths, tree: Tree, config: Config, load: Load) -> Result<Found> {
    let Load { seconds, idle } = load;
    let image = build::build(paths, tree, config)?;
    smoke::smoke(paths, tree, config)?;
    let accel = qemu::accel(paths, &image, &guest::root(paths, &[])?)?;
    if config == Config::Kcsan {
        race_proof::prove(paths, tree, &image, accel)?;
    }
    let name = format!("stress-{}-{}", tree.name(), config.name());
    let command = format!(
        "STRESS_S={seconds} STRESS_IDLE={}\n{}",
        u8::from(idle),
        include_str!("../../guest/stress.sh")
    );
    let root = guest::root(paths, &fsx::files(paths)?)?;
    let boot = Boot {
        name: &name,
        image: &image,
        root: &root,
        command: &command,
        append: APPEND,
        accel,
        limit: GRACE + Duration::from_secs(seconds.into()),
        mem_mib: 2048,
        args: DEVICES,
    };
    let ran = qemu::run(paths, &boot)?;
    print!("{}", ran.output);
    Ok(Found { failure: failure(&name, &ran, idle), splats: ran.splats, accel: accel.name() })
}

/// Why the stress failed, if it did.
fn failure(name: &str, ran: &Ran, idle: bool) -> Option<Failure> {
    let fail = |kind: &str, text| Some(Failure { kind: kind.to_string(), text });
    if let Some(line) = ran.output.lines().find(|l| l.contains(WRONG_DATA)) {
        return fail(WRONG_DATA, format!("{name}: {line}"));
    }
    match &ran.end {
        Err(error) => {
            let text = format!("{error:#}");
            // The kind is the error's text without the boot's name and the last lines of logs.
            let kind = text.trim_start_matches(name).split(';').next().unwrap_or_default();
            fail(kind, text.clone())
        }
        Ok(0) => {
            let missing = coverage::missing(&ran.output, idle).join(", ");
            (!missing.is_empty()).then(|| Failure {
                kind: format!("without {missing}"),
                text: format!("{name}: ended without {missing}"),
            })
        }
        Ok(status) => {
            let kind = format!("failed with status {status}");
            fail(&kind, format!("{name}: {kind}:\n{}", proc::last_lines(&ran.output)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splat;

    fn found(log: &str) -> Found {
        Found { splats: splat::find(log), failure: None, accel: "TCG" }
    }

    #[test]
    fn only_splats_that_plain_does_not_have_are_new() {
        let series = found("BUG: a\n </TASK>\nBUG: b\n </TASK>\nBUG: a\n </TASK>\n");
        assert_eq!(
            new_splats(&series, &found("BUG: a\n")),
            ["1 x BUG: BUG: b  []\nBUG: b\n </TASK>"]
        );
        assert_eq!(new_splats(&series, &found("BUG: b\n </TASK>\nBUG: a\n")), Vec::<String>::new());
        assert_eq!(new_splats(&found("BUG: a\n </TASK>\nBUG: a\n"), &found("")).len(), 1);
    }

    #[test]
    fn a_failure_of_the_same_kind_on_plain_is_not_new() {
        let failed = |kind: Option<&str>| Found {
            failure: kind.map(|k| Failure { kind: k.to_string(), text: String::new() }),
            ..found("")
        };
        let new = |series, plain| new_failure(&failed(series), &failed(plain)).is_some();
        assert!(new(Some("a"), None));
        assert!(new(Some("a"), Some("b")));
        assert!(!new(Some("a"), Some("a")));
        assert!(!new(None, Some("a")));
    }

    #[test]
    fn failures_are_told_apart_by_kind() {
        let kind = |output: &str, end| {
            let ran =
                Ran { console: String::new(), output: output.to_string(), splats: Vec::new(), end };
            failure("stress-x", &ran, false).unwrap().kind
        };
        let wrong = "mm_stress: read /tmp/a: wrong data: page 3 has 0x1 at byte 0, not 0x2\n";
        assert_eq!(kind(wrong, Ok(1)), WRONG_DATA);
        assert_eq!(kind(wrong, Err(anyhow::anyhow!("stress-x: not done"))), WRONG_DATA);
        assert_eq!(kind("", Ok(1)), "failed with status 1");
        assert_eq!(kind("", Ok(0)), "without two phases");
        let hang = anyhow::anyhow!("stress-x: not done after 7 s; the kernel's last lines:\nx");
        assert_eq!(kind("", Err(hang)), ": not done after 7 s");
    }
}
