//! What the patches change, compiled where nothing is booted: in `allmodconfig`, which has drivers
//! and file systems that no other configuration here has, and what only other machines have in
//! their `defconfig`.

use super::machine::{Machine, configure, make, name};
use crate::kernels::Tree;
use crate::paths::Paths;
use crate::{build, prepare, proc, series};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;

/// The kernels that have all patches, if taken together.
const PATCHED: [Tree; 2] = [Tree::Series, Tree::Hold];

const ALLMOD: Machine = Machine {
    arch: "x86_64",
    fragments: &["allmod"],
    tree: Tree::Series,
    cross: "",
    base: "allmodconfig",
    target: "",
    boot: None,
};

/// What is only compiled for a machine: its fault handler, and drivers that only it has. `ARCH`,
/// `CROSS_COMPILE`, and the fragments.
type Compiled = (&'static str, &'static str, &'static [&'static str]);

const COMPILED: [Compiled; 5] = [
    ("arm", "arm-linux-gnueabi-", &["compiled"]),
    ("powerpc", "powerpc64le-linux-gnu-", &["compiled"]),
    ("riscv", "riscv64-linux-gnu-", &["compiled"]),
    ("s390", "s390x-linux-gnu-", &["compiled"]),
    // The fault handler is in the kernel that boots.
    ("arm64", "aarch64-linux-gnu-", &["compiled", "arm64-compiled"]),
];

/// Drivers of arm64 that do not compile for another machine.
const DRIVERS: &str = "drivers/firmware/arm_ffa/";

const fn machine((arch, cross, fragments): Compiled) -> Machine {
    let tree = Tree::Series;
    Machine { arch, fragments, tree, cross, base: "defconfig", target: "", boot: None }
}

/// The objects of the files that a patch changes: those of the kernel, and of one architecture's
/// folder.
fn objects(patch: &str, folder: &str) -> impl Iterator<Item = String> {
    let own = format!("arch/{folder}/");
    let has_drivers = folder == "arm64";
    let changed = patch.lines().filter_map(|line| line.strip_prefix("+++ b/"));
    let elsewhere = move |file: &str| {
        file.starts_with("tools/")
            || (file.starts_with("arch/") && !file.starts_with(&own))
            || (file.starts_with(DRIVERS) && !has_drivers)
    };
    changed
        .filter(move |file| !elsewhere(file))
        .filter_map(|file| Some(format!("{}.o", file.strip_suffix(".c")?)))
}

/// The objects of all patches of a tree.
fn of_tree(paths: &Paths, tree: Tree, folder: &str) -> Result<BTreeSet<String>> {
    let mut targets = BTreeSet::new();
    for patch in series::patches(paths, tree)? {
        let text = fs::read_to_string(&patch)
            .with_context(|| format!("cannot read {}", patch.display()))?;
        targets.extend(objects(&text, folder));
    }
    Ok(targets)
}

/// Compiles them, warnings being errors.
fn compile(paths: &Paths, machine: &Machine, targets: &BTreeSet<String>) -> Result<()> {
    if targets.is_empty() {
        bail!("{}: the patches change no file of C", name(machine));
    }
    prepare::prepare_tree(paths, machine.tree)?;
    let (folder, log) = configure(paths, machine)?;
    let what = format!("building {} objects of {}", targets.len(), name(machine));
    let mut make = make(paths, machine, &folder);
    proc::run_for(&what, make.args(targets), &log, build::LONGEST)?;
    println!("{}: {} objects of {} compile", name(machine), targets.len(), machine.base);
    Ok(())
}

/// Compiles what the patches of each kernel change, in allmodconfig.
///
/// # Errors
/// If one object does not compile.
pub(super) fn allmod(paths: &Paths) -> Result<()> {
    for tree in PATCHED {
        compile(paths, &Machine { tree, ..ALLMOD }, &of_tree(paths, tree, "x86")?)?;
    }
    Ok(())
}

/// Compiles what only a machine has that is not booted with it.
///
/// # Errors
/// If one object does not compile, or no patch changes any of a machine.
pub(super) fn machines(paths: &Paths) -> Result<()> {
    for machine in COMPILED.map(machine) {
        let mut targets = of_tree(paths, machine.tree, machine.arch)?;
        targets.retain(|object| object.starts_with("arch/") || object.starts_with(DRIVERS));
        compile(paths, &machine, &targets)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::MACHINES;
    use super::*;
    use std::path::Path;

    #[test]
    fn only_the_kernels_own_files_of_c_are_compiled() {
        let driver = "drivers/firmware/arm_ffa/d.c";
        let files =
            ["mm/gup.c", "mm/gup.h", "tools/a.c", "arch/x86/mm/b.c", "arch/arm/c.c", driver];
        let patch: String = files.map(|f| format!("--- a/{f}\n+++ b/{f}\n@@ -1 +1 @@\n")).concat();
        let of = |folder| objects(&patch, folder).collect::<Vec<_>>();
        assert_eq!(of("x86"), ["mm/gup.o", "arch/x86/mm/b.o"]);
        assert_eq!(of("arm"), ["mm/gup.o", "arch/arm/c.o"]);
        assert_eq!(of("arm64"), ["mm/gup.o", "drivers/firmware/arm_ffa/d.o"]);
    }

    /// A patch for a machine that no command builds for would be sent without ever being compiled.
    #[test]
    fn each_architecture_that_a_patch_changes_is_compiled() {
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let paths = Paths::new(kernel, "/nowhere");
        let archs = MACHINES.iter().map(|machine| machine.arch);
        let known: BTreeSet<_> =
            archs.chain(COMPILED.map(|(arch, ..)| arch)).chain(["x86"]).collect();
        let mut changed = BTreeSet::new();
        for tree in PATCHED {
            for patch in series::patches(&paths, tree).unwrap() {
                let text = fs::read_to_string(patch).unwrap();
                let files = text.lines().filter_map(|line| line.strip_prefix("+++ b/arch/"));
                changed.extend(files.map(|file| file.split('/').next().unwrap().to_string()));
            }
        }
        assert!(changed.len() > COMPILED.len(), "{changed:?}");
        let unknown: Vec<_> = changed.iter().filter(|arch| !known.contains(&***arch)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn machines_that_share_a_fragment_have_folders_of_their_own() {
        let names: BTreeSet<_> = COMPILED.map(|of| name(&machine(of))).into();
        assert_eq!(names.len(), COMPILED.len());
        for name in ["series-arm-compiled", "series-arm64-compiled"] {
            assert!(names.contains(name), "{names:?}");
        }
    }
}
