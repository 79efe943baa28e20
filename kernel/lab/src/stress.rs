//! `kernel stress`: minutes of `kernel/guest/stress.sh` in one kernel. What the
//! patched kernel complains of is put to the plain one under the same load: a
//! complaint that plain makes as well is not the series' doing, any other fails.
//! Wrong data fails in any case.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Boot, Ran};
use crate::splat::Splat;
use crate::{build, coverage, guest, proc, race_proof, smoke};
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the guest works, unless asked for more or less.
pub(crate) const SECONDS: u32 = 180;

/// What the guest is put through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) seconds: u32,
    /// Without anybody who uses the memory.
    pub(crate) idle: bool,
}

impl Default for Load {
    fn default() -> Self {
        Load { seconds: SECONDS, idle: false }
    }
}

/// How much longer than it works a guest may take: swap is emptied at the end, and
/// a debug kernel under emulation is some fifty times slower than a real one.
const GRACE: Duration = Duration::from_secs(1500);

/// Memory to take out and put back, and memory that is a device, at 1280 MiB. The struct pages of
/// memory that is out keep what they say, as they do without `DEBUG_VM`: compaction and
/// `split_huge_pages` look at them without a lock in any kernel, and fall over poison.
const APPEND: &str = "kunit.enable=0 movablecore=768M memhp_default_state=online_movable \
                      memmap=128M!1280M vm_debug=-";

/// Memory that the host plugs in parts: of its second block of 128 MiB a part only.
const DEVICES: &[&str] = &[
    "-m",
    "2048M,maxmem=2560M",
    "-object",
    "memory-backend-ram,id=plugged,size=256M",
    "-device",
    "virtio-mem-pci,memdev=plugged,requested-size=200M",
];

/// What one kernel made of the stress.
struct Found {
    splats: Vec<Splat>,
    /// Why it did not come to a good end, if it did not.
    failure: Option<Failure>,
    accel: &'static str,
}

/// Why a stress is no good.
#[derive(Debug)]
struct Failure {
    /// What is the same when another kernel fails in this way.
    kind: String,
    text: String,
}

/// What `mm_stress` says when it reads what nobody has written.
const WRONG_DATA: &str = "wrong data: ";

impl Found {
    /// How often it made each complaint, with the first of the kind.
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
/// A build or boot that fails, wrong data, and every splat that the plain kernel
/// does not show under the same stress.
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
        "{name}: {} complaint(s); plain is asked whether it makes them, too",
        found.splats.len()
    );
    let plain = run(paths, Tree::Plain, config, load)?;
    let new = not_in(&found, &plain);
    if !new.is_empty() {
        bail!("{name}: complaints that plain does not make:\n{}", new.join("\n"));
    }
    if let Some(failure) = own_failure(&found, &plain) {
        bail!("{}\n(plain made the same complaints, and did not fail so)", failure.text);
    }
    for (signature, (times, _)) in found.kinds() {
        println!("{name}: {times} x {signature}; plain does it, too");
    }
    Ok(())
}

/// The stress on the plain kernel, to see what it complains of.
///
/// # Errors
/// A build that fails, or an emulator that does not start.
pub(crate) fn plain(paths: &Paths, config: Config, load: Load) -> Result<()> {
    let found = run(paths, Tree::Plain, config, load)?;
    let name = format!("stress-plain-{}", config.name());
    for (signature, (times, splat)) in found.kinds() {
        println!("{name}: {times} x {signature}\n{}\n", splat.shown());
    }
    if let Some(failure) = &found.failure {
        println!("{}", failure.text);
    }
    println!("{name} ({}): {} complaint(s)", found.accel, found.splats.len());
    Ok(())
}

/// The failure of one kernel that is not another's as well.
fn own_failure<'a>(found: &'a Found, other: &Found) -> Option<&'a Failure> {
    let failure = found.failure.as_ref()?;
    let shared = other.failure.as_ref().is_some_and(|f| f.kind == failure.kind);
    (!shared).then_some(failure)
}

/// The complaints of one kernel that another does not make.
fn not_in(found: &Found, other: &Found) -> Vec<String> {
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
    let root = guest::root(paths, &[])?;
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

/// What is wrong with how the guest ended.
fn failure(name: &str, ran: &Ran, idle: bool) -> Option<Failure> {
    let fail = |kind: &str, text| Some(Failure { kind: kind.to_string(), text });
    if let Some(line) = ran.output.lines().find(|l| l.contains(WRONG_DATA)) {
        return fail(WRONG_DATA, format!("{name}: {line}"));
    }
    match &ran.end {
        Err(error) => {
            let text = format!("{error:#}");
            // Without the kernel's name, and the last lines of its log.
            let kind = text.trim_start_matches(name).split(';').next().unwrap_or_default();
            fail(kind, text.clone())
        }
        Ok(0) => {
            let lacking = coverage::lacking(&ran.output, idle).join(", ");
            (!lacking.is_empty()).then(|| Failure {
                kind: format!("without {lacking}"),
                text: format!("{name}: came to its end without {lacking}"),
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
    fn only_what_plain_does_not_say_is_new() {
        let series = found("BUG: a\n </TASK>\nBUG: b\n </TASK>\nBUG: a\n </TASK>\n");
        assert_eq!(not_in(&series, &found("BUG: a\n")), ["1 x BUG: BUG: b  []\nBUG: b\n </TASK>"]);
        assert_eq!(not_in(&series, &found("BUG: b\n </TASK>\nBUG: a\n")), Vec::<String>::new());
        assert_eq!(not_in(&found("BUG: a\n </TASK>\nBUG: a\n"), &found("")).len(), 1);
    }

    #[test]
    fn a_failure_is_plains_only_if_it_is_the_same() {
        let failed = |kind: Option<&str>| Found {
            failure: kind.map(|k| Failure { kind: k.to_string(), text: String::new() }),
            ..found("")
        };
        let own = |series, plain| own_failure(&failed(series), &failed(plain)).is_some();
        assert!(own(Some("a"), None));
        assert!(own(Some("a"), Some("b")));
        assert!(!own(Some("a"), Some("a")));
        assert!(!own(None, Some("a")));
    }

    #[test]
    fn a_bad_end_is_told_from_others() {
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
