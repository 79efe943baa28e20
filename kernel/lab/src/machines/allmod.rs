//! What the patches change, compiled in `allmodconfig`, which has drivers and file systems that no
//! other configuration here has.

use super::machine::{Machine, configure, make, name};
use crate::kernels::Tree;
use crate::paths::Paths;
use crate::{proc, series};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;

const ALLMOD: Machine = Machine {
    arch: "x86_64",
    fragments: &["allmod"],
    tree: Tree::Series,
    cross: "",
    base: "allmodconfig",
    target: "",
    boot: None,
};

/// The objects of the files that a patch changes: those of the kernel, and of this architecture.
fn objects(patch: &str) -> impl Iterator<Item = String> {
    let changed = patch.lines().filter_map(|line| line.strip_prefix("+++ b/"));
    let elsewhere = |file: &str| {
        file.starts_with("tools/") || (file.starts_with("arch/") && !file.starts_with("arch/x86/"))
    };
    changed
        .filter(move |file| !elsewhere(file))
        .filter_map(|file| Some(format!("{}.o", file.strip_suffix(".c")?)))
}

/// Compiles them, warnings being errors.
///
/// # Errors
/// If one does not compile.
pub(super) fn compile(paths: &Paths) -> Result<()> {
    let mut targets = BTreeSet::new();
    for patch in series::patches(paths, ALLMOD.tree)? {
        let text = fs::read_to_string(&patch)
            .with_context(|| format!("cannot read {}", patch.display()))?;
        targets.extend(objects(&text));
    }
    if targets.is_empty() {
        bail!("the patches change no file of C");
    }
    let (folder, log) = configure(paths, &ALLMOD)?;
    let what = format!("building {} objects of allmodconfig", targets.len());
    proc::run(&what, make(paths, &ALLMOD, &folder).args(&targets), &log)?;
    println!("{}: {} objects of allmodconfig compile", name(&ALLMOD), targets.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernels_own_files_of_c_are_compiled() {
        let files = ["mm/gup.c", "mm/gup.h", "tools/a.c", "arch/x86/mm/b.c", "arch/arm/c.c"];
        let patch: String = files.map(|f| format!("--- a/{f}\n+++ b/{f}\n@@ -1 +1 @@\n")).concat();
        assert_eq!(objects(&patch).collect::<Vec<_>>(), ["mm/gup.o", "arch/x86/mm/b.o"]);
    }
}
