//! What the patches change, compiled where nothing is booted: in `allmodconfig`, which has drivers
//! and file systems that no other configuration here has, and the fault handlers of other machines
//! in their `defconfig`.

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

/// The machines whose fault handlers are only compiled: `ARCH` and `CROSS_COMPILE`.
const HANDLERS: [(&str, &str); 4] = [
    ("arm", "arm-linux-gnueabi-"),
    ("powerpc", "powerpc64le-linux-gnu-"),
    ("riscv", "riscv64-linux-gnu-"),
    ("s390", "s390x-linux-gnu-"),
];

const fn handler((arch, cross): (&'static str, &'static str)) -> Machine {
    let (tree, fragments, base) = (Tree::Series, &["fault-waits"], "defconfig");
    Machine { arch, fragments, tree, cross, base, target: "", boot: None }
}

/// The objects of the files that a patch changes: those of the kernel, and of one architecture's
/// folder.
fn objects(patch: &str, folder: &str) -> impl Iterator<Item = String> {
    let own = format!("arch/{folder}/");
    let changed = patch.lines().filter_map(|line| line.strip_prefix("+++ b/"));
    let elsewhere = move |file: &str| {
        file.starts_with("tools/") || (file.starts_with("arch/") && !file.starts_with(&own))
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

/// Compiles the fault handlers of the machines that are not booted.
///
/// # Errors
/// If one does not compile, or no patch changes it.
pub(super) fn handlers(paths: &Paths) -> Result<()> {
    for machine in HANDLERS.map(handler) {
        let mut targets = of_tree(paths, machine.tree, machine.arch)?;
        targets.retain(|object| object.starts_with("arch/"));
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
        let files = ["mm/gup.c", "mm/gup.h", "tools/a.c", "arch/x86/mm/b.c", "arch/arm/c.c"];
        let patch: String = files.map(|f| format!("--- a/{f}\n+++ b/{f}\n@@ -1 +1 @@\n")).concat();
        assert_eq!(objects(&patch, "x86").collect::<Vec<_>>(), ["mm/gup.o", "arch/x86/mm/b.o"]);
        assert_eq!(objects(&patch, "arm").collect::<Vec<_>>(), ["mm/gup.o", "arch/arm/c.o"]);
    }

    /// A patch for a machine that no command builds for would be sent without ever being compiled.
    #[test]
    fn each_architecture_that_a_patch_changes_is_compiled() {
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let paths = Paths { kernel: kernel.into(), cache: "/nowhere".into() };
        let archs = MACHINES.iter().map(|machine| machine.arch);
        let known: BTreeSet<_> =
            archs.chain(HANDLERS.map(|(arch, _)| arch)).chain(["x86"]).collect();
        let mut changed = BTreeSet::new();
        for tree in PATCHED {
            for patch in series::patches(&paths, tree).unwrap() {
                let text = fs::read_to_string(patch).unwrap();
                let files = text.lines().filter_map(|line| line.strip_prefix("+++ b/arch/"));
                changed.extend(files.map(|file| file.split('/').next().unwrap().to_string()));
            }
        }
        assert!(changed.len() > HANDLERS.len(), "{changed:?}");
        let unknown: Vec<_> = changed.iter().filter(|arch| !known.contains(&***arch)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn machines_that_share_a_fragment_have_folders_of_their_own() {
        let names: BTreeSet<_> = HANDLERS.map(|of| name(&handler(of))).into();
        assert_eq!(names.len(), HANDLERS.len());
        assert!(names.contains("series-arm-fault-waits"), "{names:?}");
    }
}
