//! The proof that a race about a page's count would be seen: a module that makes one.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot, Ran};
use crate::splat::{KCSAN, Splat};
use crate::{build, guest, proc};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The module that makes a race about a count; its name is in the trace of each side.
const TWIN: &str = "racy_count";

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
    use crate::race::judge;
    use crate::splat;

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
