//! Which of KCSAN's reports fail a run: those about a page's count. All other races
//! were there before the series. And the proof that such a report would be seen: a
//! module that makes the race.

use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot, Ran};
use crate::splat::{KCSAN, Splat};
use crate::{Config, Tree, build, guest, proc};
use anyhow::{Context, Result, bail};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where x86-64 has its array of struct pages: with four levels of page tables, and five.
const ARRAYS: [RangeInclusive<u64>; 2] =
    [0xffff_ea00_0000_0000..=0xffff_eaff_ffff_ffff, 0xffd4_0000_0000_0000..=0xffd5_ffff_ffff_ffff];

/// Offset of `_refcount` in a struct page, which is 64 bytes long here.
const COUNT_OFFSET: u64 = 0x34;
const PAGE_STRUCT_BYTES: u64 = 64;

/// The module that makes a race about a count; its name is in the trace of each side.
const TWIN: &str = "racy_count";

/// Where an access begins, and its length: `write to 0xADDRESS of N bytes by ...`.
fn access(line: &str) -> Option<(u64, u64)> {
    let (_, rest) = line.split_once(" to 0x")?;
    let (address, rest) = rest.split_once(" of ")?;
    let bytes = rest.split_whitespace().next()?.parse().ok()?;
    Some((u64::from_str_radix(address, 16).ok()?, bytes))
}

/// Whether an access touches a page's count.
fn covers_count((address, bytes): (u64, u64)) -> bool {
    let offset = address % PAGE_STRUCT_BYTES;
    let to_count = (COUNT_OFFSET + PAGE_STRUCT_BYTES - offset) % PAGE_STRUCT_BYTES;
    ARRAYS.iter().any(|array| array.contains(&address))
        && (to_count < bytes || to_count > PAGE_STRUCT_BYTES - 4)
}

/// Whether a KCSAN report is about a page's count: both accesses touch one. An access
/// that cannot be read counts as one that does.
fn is_about_count(splat: &Splat) -> bool {
    splat
        .lines
        .iter()
        .filter(|line| line.contains(" to 0x"))
        .all(|line| access(line).is_none_or(covers_count))
}

/// Splits complaints into those that fail a run and the number of data races
/// that KCSAN has found elsewhere.
pub(crate) fn judge(splats: Vec<Splat>) -> (Vec<Splat>, usize) {
    let all = splats.len();
    let serious: Vec<_> =
        splats.into_iter().filter(|s| s.kind != KCSAN || is_about_count(s)).collect();
    let elsewhere = all - serious.len();
    (serious, elsewhere)
}

/// Boots with a module that races about a page's count.
///
/// # Errors
/// If that race is not found, or anything else is.
pub(crate) fn prove(paths: &Paths, tree: Tree, image: &Path, accel: Accel) -> Result<()> {
    let name = format!("race-{}", tree.name());
    let ran = qemu::run(
        paths,
        &Boot {
            name: &name,
            image,
            root: &guest::root(paths, &[module(paths, tree)?])?,
            command: &format!("insmod /lab/{TWIN}.ko"),
            append: "kunit.enable=0",
            accel,
            limit: Duration::from_secs(300),
            mem_mib: 1024,
            args: &[],
        },
    )?;
    noticed(&ran).with_context(|| name.clone())?;
    println!("{name} ({}): a race about a page's count is seen", accel.name());
    Ok(())
}

fn noticed(ran: &Ran) -> Result<()> {
    let is_twin =
        |s: &Splat| s.kind == KCSAN && s.lines.iter().any(|l| l.contains(&format!("[{TWIN}]")));
    if let Some(other) = ran.splats.iter().find(|s| !is_twin(s)) {
        bail!("another complaint than the race:\n{}", other.shown());
    }
    match &ran.end {
        Err(error) => bail!("{error:#}"),
        Ok(status) if *status != 0 => bail!("failed with status {status}:\n{}", ran.output),
        Ok(_) if ran.splats.is_empty() => {
            bail!("a page's count was changed by plain stores, and no race about it was seen")
        }
        Ok(_) => Ok(()),
    }
}

/// Builds the module for a kernel that is built.
fn module(paths: &Paths, tree: Tree) -> Result<PathBuf> {
    let dir = paths.objects(tree, Config::Kcsan).join("lab-module");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let source = paths.kernel.join("guest").join(format!("{TWIN}.c"));
    fs::copy(&source, dir.join(format!("{TWIN}.c")))
        .with_context(|| format!("cannot copy {}", source.display()))?;
    fs::write(dir.join("Kbuild"), format!("obj-m := {TWIN}.o\n"))
        .with_context(|| format!("cannot write {}", dir.join("Kbuild").display()))?;
    let log = paths.log(&format!("build-{TWIN}-{}", tree.name()));
    let make = || build::make(paths, tree, Config::Kcsan);
    // Which symbols the kernel exports is written down by its own `modules` only.
    proc::run("listing what modules may use", make().arg("modules"), &log)?;
    let outside = format!("M={}", dir.display());
    proc::run(&format!("building {TWIN}"), make().args([&outside, "modules"]), &log)?;
    Ok(dir.join(format!("{TWIN}.ko")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splat;
    use std::fmt::Write as _;

    #[test]
    fn only_races_about_the_count_are_serious() {
        let races = |accesses: &[&str]| {
            let mut log = "BUG: KCSAN: data-race in a / b\n".to_string();
            for access in accesses {
                let _ = write!(log, "\n{access} by task 1 on cpu 0:\n f+0x1/0x2\n");
            }
            judge(splat::find(&log)).0.len()
        };
        let race = |access: &str| races(&[access]);
        for array in ["ffffea0001f6d3", "ffd4000001f6d3"].map(|a| format!("to 0x{a}")) {
            let race = |rest: &str| race(&format!("write {array}{rest}"));
            assert_eq!(race("34 of 4 bytes"), 1);
            assert_eq!(race("30 of 8 bytes"), 1);
            assert_eq!(race("36 of 1 bytes"), 1);
            assert_eq!(race("00 of 4096 bytes"), 1);
            assert_eq!(race("00 of 8 bytes"), 0);
            assert_eq!(race("38 of 8 bytes"), 0);
        }
        assert_eq!(race("write to 0xffff888000d0db34 of 4 bytes"), 0);
        assert_eq!(race("write to 0xff11000001f6d334 of 4 bytes"), 0);
        assert_eq!(race("race at unknown origin, with read to 0xffffea0001f6d334 of 4 bytes"), 1);
        let (all, list) = ("to 0xffffea0001f6d300 of 64 bytes", "to 0xffffea0001f6d308 of 8 bytes");
        assert_eq!(races(&[&format!("write {all}"), &format!("read {list}")]), 0);
        assert_eq!(races(&[&format!("write {all}"), &format!("read {all}")]), 1);
        assert_eq!(race("somewhere"), 1);
        assert_eq!(race("write to 0xhidden of 4 bytes"), 1);
        assert_eq!(judge(splat::find("WARNING: CPU: 0 PID: 1 at x\n")).0.len(), 1);
    }

    /// A page's list, as KCSAN has reported it: `const_folio_flags` reads whether it is a tail.
    #[test]
    fn a_race_about_a_pages_list_is_elsewhere() {
        let log = "BUG: KCSAN: data-race in const_folio_flags / lru_activate\n\n\
                   write (marked) to 0xffffea00012158c8 of 8 bytes by task 315 on cpu 0:\n \
                   lru_activate+0x1f8/0x7f0\n\n\
                   read to 0xffffea00012158c8 of 8 bytes by task 90 on cpu 1:\n \
                   const_folio_flags+0x15/0x80\n\n\
                   value changed: 0xffffea00012157c8 -> 0xffffea00012fd788\n";
        assert_eq!(judge(splat::find(log)), (Vec::new(), 1));
    }

    #[test]
    fn a_twin_that_is_not_seen_fails() {
        let ran = |log: &str, status| Ran {
            console: String::new(),
            output: String::new(),
            splats: judge(splat::find(log)).0,
            end: Ok(status),
        };
        let race = "BUG: KCSAN: data-race in by_accessors [racy_count] / by_stores [racy_count]\n\n\
                    read (marked) to 0xffffea0000030d34 of 4 bytes by task 62 on cpu 1:\n \
                    by_accessors+0x6f/0x160 [racy_count]\n kthread+0x1ac/0x1f0\n\n\
                    write to 0xffffea0000030d34 of 4 bytes by task 63 on cpu 0:\n \
                    by_stores+0x2e/0x60 [racy_count]\n kthread+0x1ac/0x1f0\n\n\
                    value changed: 0x000000c8 -> 0x000000c7\n";
        noticed(&ran(race, 0)).unwrap();
        let error = |ran: &Ran| noticed(ran).unwrap_err().to_string();
        assert!(error(&ran("", 0)).contains("no race"));
        assert!(error(&ran(&race.replace("0d34", "0d38"), 0)).contains("no race"));
        assert!(error(&ran(race, 1)).contains("status 1"));
        assert!(error(&ran(&race.replace("[racy_count]", ""), 0)).contains("another complaint"));
        assert!(error(&ran(&format!("{race} </TASK>\nBUG: x\n"), 0)).contains("BUG: x"));
    }
}
