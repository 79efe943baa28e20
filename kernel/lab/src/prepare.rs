//! Prepares the kernel sources: unpacks Debian's package once, as a git repository with one
//! commit, and makes a second work tree of it, which has the series.

use crate::git::{self, BASE_TAG, git};
use crate::kernels::Tree;
use crate::paths::Paths;
use crate::{proc, series};
use anyhow::{Context, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file in which Debian's package has the source.
const TARBALL: &str = "/usr/src/linux-source-6.12.tar.xz";

/// Prepares both source trees. If they are ready, it changes nothing.
///
/// # Errors
/// If the source or a program is missing, the disk is full, or a patch does not apply.
pub(crate) fn prepare(paths: &Paths) -> Result<()> {
    prepare_tree(paths, Tree::Series)
}

/// Prepares Debian's source and one patched tree. If they are ready, it changes nothing.
///
/// # Errors
/// The same.
pub(crate) fn prepare_tree(paths: &Paths, tree: Tree) -> Result<()> {
    unpack(paths, Path::new(TARBALL))?;
    series::apply(paths, tree)
}

/// What tells one tarball from another: path, length and time. A newer package is unpacked again.
fn stamp(tarball: &Path) -> Result<String> {
    let meta = fs::metadata(tarball).with_context(|| {
        let tarball = tarball.display();
        format!("the kernel source {tarball} is missing; `cargo lab prepare` installs it")
    })?;
    let time = meta.modified()?.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    Ok(format!("{} {} {time}\n", tarball.display(), meta.len()))
}

/// The file that records which tarball was unpacked.
fn stamp_file(paths: &Paths) -> PathBuf {
    paths.cache.join("src/unpacked")
}

/// The stamp of the tarball that the trees were unpacked from.
///
/// # Errors
/// If nothing was unpacked yet.
pub(crate) fn unpacked(paths: &Paths) -> Result<String> {
    fs::read_to_string(stamp_file(paths)).context("no kernel source; run `cargo lab prepare` first")
}

fn unpack(paths: &Paths, tarball: &Path) -> Result<()> {
    let stamp = stamp(tarball)?;
    let stamp_file = stamp_file(paths);
    let plain = paths.source(Tree::Plain);
    if fs::read_to_string(&stamp_file).ok().as_deref() == Some(stamp.as_str()) {
        git::untouched(&plain)?;
        if git(&plain, &["rev-parse", "HEAD"])? != git(&plain, &["rev-parse", BASE_TAG])? {
            println!("{}: resetting to Debian's source", plain.display());
            git::reset(&plain, BASE_TAG)?;
        }
        return Ok(());
    }
    // The stamp is removed first, so that a failure half-way does not look finished. Objects of
    // another source are removed, too: tar sets the files' times, and make might take the
    // objects for newer.
    remove_file(&stamp_file)?;
    for tree in Tree::ALL {
        remove(&paths.source(tree))?;
    }
    remove(&paths.cache.join("build"))?;
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
    let _bar = proc::announce("recording the plain tree");
    // One commit, so that git can apply, list and undo patches.
    for args in [
        &["init", "-q", "."][..],
        &["add", "-Af", "."],
        &["commit", "-qm", "Debian source"],
        &["tag", "-f", BASE_TAG],
    ] {
        git(&plain, args).context("cannot record the plain tree")?;
    }
    fs::write(&stamp_file, stamp).context("cannot record what was unpacked")
}

/// Removes a file, if it is there.
///
/// # Errors
/// If it cannot be removed.
pub(crate) fn remove_file(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", dir.display())),
    }
}

/// The version in a source tree's Makefile, such as `6.12.117`.
///
/// # Errors
/// If there is no Makefile, or it lacks the version.
pub(crate) fn version(source: &Path) -> Result<String> {
    let makefile = fs::read_to_string(source.join("Makefile"))
        .with_context(|| format!("no kernel source in {}", source.display()))?;
    let field = |name: &str| {
        makefile
            .lines()
            .find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix('=').map(str::trim))
            .with_context(|| format!("the Makefile in {} has no {name}", source.display()))
    };
    Ok(format!("{}.{}.{}", field("VERSION")?, field("PATCHLEVEL")?, field("SUBLEVEL")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tarball of a source with one file, which is older than anything here.
    fn tarball(dir: &Path, content: &str) -> PathBuf {
        let source = dir.join("linux");
        fs::create_dir_all(&source).unwrap();
        fs::write(source.join("Makefile"), content).unwrap();
        let tarball = dir.join("linux.tar.xz");
        let args = ["--mtime=@1000000000", "-cJf", "linux.tar.xz", "linux"];
        proc::output(Command::new("tar").args(args).current_dir(dir)).unwrap();
        tarball
    }

    fn paths_in(dir: &Path) -> Paths {
        let paths = Paths::new(dir.join("kernel"), dir.join("cache"));
        fs::create_dir_all(paths.cache.join("log")).unwrap();
        fs::create_dir_all(paths.cache.join("src")).unwrap();
        paths
    }

    #[test]
    fn a_missing_source_is_named_with_the_command_that_installs_it() {
        let dir = tempfile::tempdir().unwrap();
        let tarball = dir.path().join("linux-source.tar.xz");
        let error = unpack(&paths_in(dir.path()), &tarball).unwrap_err().to_string();
        assert!(error.contains("linux-source.tar.xz") && error.contains("prepare"), "{error}");
    }

    #[test]
    fn no_object_of_another_source_stays() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths_in(dir.path());
        unpack(&paths, &tarball(dir.path(), "VERSION = 6\n")).unwrap();
        let object = paths.objects(Tree::Plain, crate::kernels::Config::Fast).join("a.o");
        fs::create_dir_all(object.parent().unwrap()).unwrap();
        fs::write(&object, "").unwrap();
        unpack(&paths, &dir.path().join("linux.tar.xz")).unwrap();
        assert!(object.exists());
        unpack(&paths, &tarball(dir.path(), "VERSION = 6 # patched\n")).unwrap();
        assert!(!object.exists());
    }

    #[test]
    fn the_version_is_read_from_the_makefile() {
        let dir = tempfile::tempdir().unwrap();
        version(dir.path()).unwrap_err();
        let text = "# SPDX\nVERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 117\nEXTRAVERSION =\n";
        fs::write(dir.path().join("Makefile"), text).unwrap();
        assert_eq!(version(dir.path()).unwrap(), "6.12.117");
        fs::write(dir.path().join("Makefile"), "all:\n").unwrap();
        version(dir.path()).unwrap_err();
    }

    #[test]
    fn a_failed_unpacking_does_not_look_finished() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths_in(dir.path());
        let good = tarball(dir.path(), "VERSION = 6\n");
        unpack(&paths, &good).unwrap();
        let bad = dir.path().join("bad.tar.xz");
        fs::write(&bad, "no tarball").unwrap();
        unpack(&paths, &bad).unwrap_err();
        unpack(&paths, &good).unwrap();
        assert!(paths.source(Tree::Plain).join("Makefile").is_file());
    }

    #[test]
    fn an_edited_source_is_refused_and_a_commit_is_reset() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths_in(dir.path());
        let tarball = tarball(dir.path(), "VERSION = 6\n");
        unpack(&paths, &tarball).unwrap();
        let plain = paths.source(Tree::Plain);
        fs::write(plain.join("Makefile"), "VERSION = 7\n").unwrap();
        let error = unpack(&paths, &tarball).unwrap_err().to_string();
        assert!(error.contains("edited by hand") && error.contains("Makefile"), "{error}");
        git(&plain, &["commit", "-qam", "edit"]).unwrap();
        unpack(&paths, &tarball).unwrap();
        assert_eq!(fs::read_to_string(plain.join("Makefile")).unwrap(), "VERSION = 6\n");
    }
}
