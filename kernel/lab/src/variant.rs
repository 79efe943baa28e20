//! Kernels that differ from a built one in one object: a mutant, which a test must notice, and a
//! change that is taken back, to measure it. The other objects are those of the built kernel, so
//! that one is made in half a minute, and no source is edited.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::{build, cc, git, prepare, proc};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which kernel is changed, and by which file below `kernel`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant<'a> {
    pub(crate) tree: Tree,
    pub(crate) config: Config,
    pub(crate) patch: &'a str,
}

/// A variant that is built.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) image: PathBuf,
    pub(crate) vmlinux: PathBuf,
}

/// The only source file that a patch changes.
fn changed(patch: &str) -> Result<&str> {
    let mut files = patch.lines().filter_map(|l| l.strip_prefix("+++ b/"));
    match (files.next(), files.next()) {
        (Some(file), None) if Path::new(file).extension().is_some_and(|e| e == "c") => Ok(file),
        _ => bail!("it does not change exactly one .c file"),
    }
}

/// The command that Kbuild has recorded for an object, made to compile `other` instead of the
/// source.
fn compile_other(record: &str, object: &str, source: &Path, other: &Path) -> Result<String> {
    let command = record
        .lines()
        .find_map(|l| l.strip_prefix(&format!("savedcmd_{object} := ")))
        .with_context(|| format!("Kbuild's record has no command for {object}"))?;
    let name = source.to_string_lossy();
    let (Some(at), Some(folder)) = (command.find(&format!(" {name}")), source.parent()) else {
        bail!("the command for {object} does not compile {name}");
    };
    let (before, after) = (&command[..at], &command[at + 1 + name.len()..]);
    // The source includes files from its own folder by their names.
    Ok(format!("{before} -iquote {} {}{after}", folder.display(), other.display()))
}

/// Builds a variant, or finds the one that was built from the same.
///
/// # Errors
/// If the patch does not apply, or something does not build.
pub(crate) fn build(paths: &Paths, variant: Variant) -> Result<Built> {
    let Variant { tree, config, patch } = variant;
    build::build(paths, tree, config)?;
    let file = paths.kernel.join(patch);
    let of_file = || file.display().to_string();
    let text = build::read(&file)?;
    let source = changed(&text).with_context(of_file)?;
    let object = Path::new(source).with_extension("o").to_string_lossy().into_owned();

    // One folder for all variants of a kernel that change this object.
    let base = paths.objects(tree, config);
    let dir = PathBuf::from(format!("{}-variant", base.display()));
    let of = build::inputs(paths, tree, config)?;
    let (base_stamp, stamp) = (dir.join("lab-variant-of"), dir.join("lab-variant"));
    let made = Built { image: dir.join("arch/x86/boot/bzImage"), vmlinux: dir.join("vmlinux") };
    let inputs = format!("{of}\n{}\n", cc::hash(&text));
    if build::holds(&stamp, &inputs) {
        return Ok(made);
    }
    let log = paths.log(&format!("variant-{}-{}", tree.name(), config.name()));
    let what = |what: &str| format!("{what} {patch} for {} {}", tree.name(), config.name());
    prepare::remove_file(&stamp)?;
    if !build::holds(&base_stamp, &format!("{of}\n{object}\n")) {
        let _ = fs::remove_dir_all(&dir);
        let mut copy = Command::new("cp");
        copy.args(["-a", "--reflink=auto"]).arg(&base).arg(&dir);
        proc::run(&what("copying objects:"), &mut copy, &log)?;
        fs::write(&base_stamp, format!("{of}\n{object}\n"))?;
    }

    let folder = dir.join("lab-source");
    let other = folder.join(source);
    fs::create_dir_all(other.parent().context("a source without a folder")?)?;
    let original = paths.source(tree).join(source);
    fs::copy(&original, &other).with_context(|| format!("cannot copy {source}"))?;
    git::git(&folder, &["apply", &file.to_string_lossy()]).with_context(of_file)?;

    let record = object
        .rsplit_once('/')
        .map_or_else(|| format!(".{object}.cmd"), |(folder, name)| format!("{folder}/.{name}.cmd"));
    // The record of the built kernel, because that is the one that Kbuild has written.
    let command = compile_other(&build::read(&base.join(&record))?, &object, &original, &other)?;
    let mut sh = Command::new("sh");
    sh.args(["-e", "-c", &command]).current_dir(&dir);
    proc::run(&what("compiling"), &mut sh, &log)?;
    fs::copy(base.join(&record), dir.join(&record))?;
    let compiled = fs::read(dir.join(&object))?;
    if compiled == fs::read(base.join(&object))? {
        bail!("{}: changes nothing in {object}", file.display());
    }
    let mut make = build::make_in(paths, tree, &dir);
    proc::run_for(&what("linking"), make.arg("bzImage"), &log, build::LONGEST)?;
    if fs::read(dir.join(&object))? != compiled {
        bail!("Kbuild has compiled {object} again, without {}", file.display());
    }
    fs::write(&stamp, inputs).context("cannot record what a variant was built from")?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_changes_one_object() {
        assert_eq!(changed("--- a/mm/gup.c\n+++ b/mm/gup.c\n@@ -1 +1 @@\n").unwrap(), "mm/gup.c");
        changed("+++ b/mm/gup.h\n").unwrap_err();
        changed("+++ b/mm/gup.c\n+++ b/mm/mmap.c\n").unwrap_err();
        changed("").unwrap_err();
    }

    #[test]
    fn the_other_source_is_compiled_like_the_first() {
        let record = "savedcmd_mm/gup.o := gcc -O2 -I/src/mm -c -o mm/gup.o /src/mm/gup.c ; ./objtool mm/gup.o\n";
        let (source, other) = (Path::new("/src/mm/gup.c"), Path::new("/o/mm/gup.c"));
        assert_eq!(
            compile_other(record, "mm/gup.o", source, other).unwrap(),
            "gcc -O2 -I/src/mm -c -o mm/gup.o -iquote /src/mm /o/mm/gup.c ; ./objtool mm/gup.o"
        );
        compile_other(record, "mm/mmap.o", source, other).unwrap_err();
        compile_other(record, "mm/gup.o", Path::new("/elsewhere/gup.c"), other).unwrap_err();
    }
}
