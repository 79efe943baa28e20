//! Kernel sources: Debian's package unpacked once, as a git repository with one
//! commit, and a second work tree of it that carries the series.

use crate::paths::Paths;
use crate::{Tree, proc, series};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What unpacking, building and booting need: program and Debian package.
const PROGRAMS: &[(&str, &str)] = &[
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("git", "git"),
    ("make", "make"),
    ("gcc", "gcc"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("perl", "perl"),
    ("python3", "python3"),
    ("cpio", "cpio"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("mke2fs", "e2fsprogs"),
];

/// Where Debian's package puts the source.
const TARBALL: &str = "/usr/src/linux-source-6.12.tar.xz";

/// What they need besides: file and Debian package. The kernel's own build wants the
/// first of the headers, its selftests the others.
const FILES: &[(&str, &str)] = &[
    (TARBALL, "linux-source-6.12"),
    ("/usr/include/gelf.h", "libelf-dev"),
    ("/usr/include/numa.h", "libnuma-dev"),
    ("/usr/include/sys/capability.h", "libcap-dev"),
];

/// The one commit under everything; `git am` goes on top.
pub(crate) const BASE_TAG: &str = "lab-base";

/// Makes both source trees ready; a second call finds them so.
///
/// # Errors
/// A missing program or package, a full disk, or a patch that does not apply.
pub(crate) fn prepare(paths: &Paths) -> Result<()> {
    let missing = missing();
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|m| m.0).collect();
        bail!(
            "missing: {}; on Debian: apt-get install {}",
            names.join(", "),
            packages(&missing).join(" ")
        );
    }
    unpack(paths)?;
    series::apply(paths)
}

/// Programs and files that are not here, each with the package that brings it.
pub(crate) fn missing() -> Vec<(&'static str, &'static str)> {
    let programs = PROGRAMS.iter().filter(|(program, _)| !proc::on_path(program));
    let files = FILES.iter().filter(|(file, _)| !Path::new(file).is_file());
    programs.chain(files).copied().collect()
}

/// The packages that bring what is missing, each once.
pub(crate) fn packages(missing: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    let mut packages: Vec<_> = missing.iter().map(|m| m.1).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Which tarball the tree was unpacked from: a newer package is unpacked anew.
fn stamp(tarball: &Path) -> Result<String> {
    let meta = fs::metadata(tarball)?;
    let time = meta.modified()?.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    Ok(format!("{} {} {time}\n", tarball.display(), meta.len()))
}

/// Where it is written down which tarball was unpacked.
fn stamp_file(paths: &Paths) -> PathBuf {
    paths.cache.join("src/unpacked")
}

/// Which tarball the trees are of.
///
/// # Errors
/// If nothing was unpacked yet.
pub(crate) fn unpacked(paths: &Paths) -> Result<String> {
    fs::read_to_string(stamp_file(paths)).context("no kernel source; run `kernel prepare` first")
}

fn unpack(paths: &Paths) -> Result<()> {
    let tarball = Path::new(TARBALL);
    let stamp = stamp(tarball)?;
    let stamp_file = stamp_file(paths);
    let plain = paths.source(Tree::Plain);
    if fs::read_to_string(&stamp_file).ok().as_deref() == Some(stamp.as_str()) {
        return Ok(());
    }
    for tree in [Tree::Plain, Tree::Series] {
        remove(&paths.source(tree))?;
    }
    fs::create_dir_all(&plain)?;
    proc::run(
        "unpacking the kernel source",
        Command::new("tar")
            .arg("-xJf")
            .arg(tarball)
            .arg("-C")
            .arg(&plain)
            .arg("--strip-components=1"),
        &paths.log("unpack"),
    )?;
    // One commit, so that patches can be applied, listed and taken back by git.
    let script = "git init -q . && git config gc.auto 0 && git config user.name lab && \
                  git config user.email lab@localhost && git add -Af . && \
                  git commit -qm 'Debian source' && git tag -f lab-base";
    proc::run(
        "recording the plain tree",
        Command::new("sh").args(["-c", script]).current_dir(&plain),
        &paths.log("unpack-git"),
    )?;
    fs::write(&stamp_file, stamp).context("cannot record what was unpacked")
}

fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", dir.display())),
    }
}

/// The version that a source tree calls itself, such as `6.12.117`.
///
/// # Errors
/// If the tree is not there.
pub(crate) fn version(paths: &Paths) -> Result<String> {
    let makefile = fs::read_to_string(paths.source(Tree::Plain).join("Makefile"))
        .context("no kernel source; run `kernel prepare` first")?;
    let field = |name: &str| {
        makefile
            .lines()
            .find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix('=').map(str::trim))
            .unwrap_or("?")
            .to_string()
    };
    Ok(format!("{}.{}.{}", field("VERSION"), field("PATCHLEVEL"), field("SUBLEVEL")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_brings_two_things_is_named_once() {
        let missing = [("b", "two"), ("a", "one"), ("c", "two")];
        assert_eq!(packages(&missing), ["one", "two"]);
    }
}
