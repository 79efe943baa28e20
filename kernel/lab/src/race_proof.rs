//! Proves that a race about a page's count would be seen: loads a module that makes one.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot, Ran};
use crate::splat::{KCSAN, Splat};
use crate::{build, guest, proc};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The module that races about a count. Its name is in the traces of both accesses.
const MODULE: &str = "racy_count";

/// Boots a kernel, and loads a module that races about a page's count.
///
/// # Errors
/// If KCSAN does not report that race, or the kernel reports something else.
pub(crate) fn prove(paths: &Paths, tree: Tree, image: &Path, accel: Accel) -> Result<()> {
    let name = format!("race-{}", tree.name());
    let ran = qemu::run(
        paths,
        &Boot {
            name: &name,
            image,
            root: &guest::root(paths, &[module(paths, tree)?])?,
            command: &format!("insmod /lab/{MODULE}.ko"),
            append: "kunit.enable=0",
            accel,
            limit: Duration::from_secs(300),
            mem_mib: 1024,
            args: &[],
        },
    )?;
    check(&ran).with_context(|| name.clone())?;
    println!("{name} ({}): a race about a page's count is seen", accel.name());
    Ok(())
}

fn check(ran: &Ran) -> Result<()> {
    let is_expected =
        |s: &Splat| s.kind == KCSAN && s.lines.iter().any(|l| l.contains(&format!("[{MODULE}]")));
    if let Some(other) = ran.splats.iter().find(|s| !is_expected(s)) {
        bail!("the kernel's log has another splat than the race:\n{}", other.shown());
    }
    match &ran.end {
        Err(error) => bail!("{error:#}"),
        Ok(status) if *status != 0 => bail!("failed with status {status}:\n{}", ran.output),
        Ok(_) if ran.splats.is_empty() => {
            bail!("a module changed a page's count by plain stores, and KCSAN reported no race")
        }
        Ok(_) => Ok(()),
    }
}

/// Builds the module for a kernel that was built before.
fn module(paths: &Paths, tree: Tree) -> Result<PathBuf> {
    let dir = paths.objects(tree, Config::Kcsan).join("lab-module");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let source = paths.kernel.join("guest").join(format!("{MODULE}.c"));
    fs::copy(&source, dir.join(format!("{MODULE}.c")))
        .with_context(|| format!("cannot copy {}", source.display()))?;
    fs::write(dir.join("Kbuild"), format!("obj-m := {MODULE}.o\n"))
        .with_context(|| format!("cannot write {}", dir.join("Kbuild").display()))?;
    let log = paths.log(&format!("build-{MODULE}-{}", tree.name()));
    let make = || build::make(paths, tree, Config::Kcsan);
    // Only the kernel's own `modules` target writes the list of exported symbols.
    proc::run("listing exported symbols", make().arg("modules"), &log)?;
    let outside = format!("M={}", dir.display());
    proc::run(&format!("building {MODULE}"), make().args([&outside, "modules"]), &log)?;
    Ok(dir.join(format!("{MODULE}.ko")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::race::classify;
    use crate::splat;

    #[test]
    fn a_race_that_is_not_seen_fails() {
        let ran = |log: &str, status| Ran {
            console: String::new(),
            output: String::new(),
            splats: classify(splat::find(log)).0,
            end: Ok(status),
        };
        let race = "BUG: KCSAN: data-race in by_accessors [racy_count] / by_stores [racy_count]\n\n\
                    read (marked) to 0xffffea0000030d34 of 4 bytes by task 62 on cpu 1:\n \
                    by_accessors+0x6f/0x160 [racy_count]\n kthread+0x1ac/0x1f0\n\n\
                    write to 0xffffea0000030d34 of 4 bytes by task 63 on cpu 0:\n \
                    by_stores+0x2e/0x60 [racy_count]\n kthread+0x1ac/0x1f0\n\n\
                    value changed: 0x000000c8 -> 0x000000c7\n";
        check(&ran(race, 0)).unwrap();
        let error = |ran: &Ran| check(ran).unwrap_err().to_string();
        assert!(error(&ran("", 0)).contains("no race"));
        assert!(error(&ran(&race.replace("0d34", "0d38"), 0)).contains("no race"));
        assert!(error(&ran(race, 1)).contains("status 1"));
        assert!(error(&ran(&race.replace("[racy_count]", ""), 0)).contains("another splat"));
        assert!(error(&ran(&format!("{race} </TASK>\nBUG: x\n"), 0)).contains("BUG: x"));
    }
}
