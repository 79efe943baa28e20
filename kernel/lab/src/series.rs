//! Applies the fixes of `kernel/fixes` and then the patches of each sub-series, in order, by
//! `git am`, and tells whether the patched tree in the cache has exactly these.

use crate::git::{self, BASE_TAG, git};
use crate::kernels::Tree;
use crate::paths::Paths;
use crate::proc;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The folders of patches in the order in which they are applied: the fixes, and the sub-series,
/// which are built on them.
pub(crate) const FOLDERS: &[&str] = &["fixes", "series", "reads", "pins", "faults"];

/// The alternative to the last of them, which is only in a kernel of its own.
pub(crate) const ALTERNATIVE: &str = "faults-hold";

/// The sub-series that must also apply after the fixes alone, so that each can be sent without
/// the others.
const APART: &[&str] = &["reads", "pins", "faults"];

/// What is sent as a series, each with its cover letter.
pub(crate) const SENT: [&str; 5] = ["series", "reads", "pins", "faults", ALTERNATIVE];

/// The first patches of `faults`. They count what faults wait for, and `faults-hold`, which is
/// the alternative to the rest of `faults`, is built on them.
const COUNTING: usize = 3;

/// All patches of a tree in order.
///
/// # Errors
/// If a folder cannot be read.
pub(crate) fn patches(paths: &Paths, tree: Tree) -> Result<Vec<PathBuf>> {
    let folders: &[&str] = match tree {
        Tree::Plain => &[],
        Tree::Series => FOLDERS,
        Tree::Counted | Tree::Drop => &["fixes", "faults"],
        Tree::Hold => &["fixes", "faults", ALTERNATIVE],
    };
    let mut all = Vec::new();
    for folder in folders {
        let mut found = patches_in(paths, folder)?;
        if *folder == "faults" && matches!(tree, Tree::Counted | Tree::Hold) {
            found.truncate(COUNTING);
        }
        all.append(&mut found);
    }
    Ok(all)
}

/// The patches of one folder in order, without the cover letter.
///
/// # Errors
/// If the folder cannot be read.
pub(crate) fn patches_in(paths: &Paths, folder: &str) -> Result<Vec<PathBuf>> {
    let dir = paths.kernel.join(folder);
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "patch") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The text of all patches.
fn all_text(patches: &[PathBuf]) -> Result<String> {
    let mut all = String::new();
    for patch in patches {
        all += &fs::read_to_string(patch)
            .with_context(|| format!("cannot read {}", patch.display()))?;
    }
    Ok(all)
}

/// The file that records what a patched tree was made from.
fn record_file(paths: &Paths, tree: Tree) -> PathBuf {
    let src = paths.cache.join("src");
    match tree {
        Tree::Series => src.join("applied"),
        _ => src.join(format!("applied-{}", tree.name())),
    }
}

/// The record of these patches: the hash of the tree that git made of them, and their text.
fn applied(tree: &Path, patches: &str) -> Result<String> {
    Ok(format!("{}\n{patches}", git::tree_hash(tree)?))
}

/// Applies all patches of a tree to Debian's source. If the tree has them, it changes nothing.
///
/// # Errors
/// If a patch does not apply; the error names it, with git's reason. If the tree was edited, as
/// the edits would be lost.
pub(crate) fn apply(paths: &Paths, which: Tree) -> Result<()> {
    let patches = patches(paths, which)?;
    let tree = paths.source(which);
    let want = all_text(&patches)?;
    git::link(&paths.source(Tree::Plain), &tree)?;
    if let Ok(recorded) = fs::read_to_string(record_file(paths, which))
        && tree.is_dir()
    {
        git::untouched(&tree)?;
        if recorded == applied(&tree, &want)? {
            return Ok(());
        }
        if recorded.ends_with(&format!("\n{want}")) {
            println!("{}: not at the series' last commit; applying it again", tree.display());
        }
    }
    let before = Times::of(&tree);
    let tree = checkout(paths, which)?;
    for patch in &patches {
        apply_one(&tree, patch)?;
    }
    before.restore(&tree)?;
    record(paths, which)
}

/// Records that the tree has all patches as they are now.
///
/// # Errors
/// If a patch cannot be read, or the record cannot be written.
pub(crate) fn record(paths: &Paths, tree: Tree) -> Result<()> {
    let want = all_text(&patches(paths, tree)?)?;
    let text = applied(&paths.source(tree), &want)?;
    fs::write(record_file(paths, tree), text).context("cannot record which patches were applied")
}

/// Removes the record of a tree that is about to get another patch.
pub(crate) fn forget(paths: &Paths, tree: Tree) {
    let _ = fs::remove_file(record_file(paths, tree));
}

/// Whether the tree has all patches as they are now, and nothing else.
///
/// # Errors
/// As `apply`.
pub(crate) fn is_applied(paths: &Paths) -> Result<bool> {
    let tree = paths.source(Tree::Series);
    let Ok(recorded) = fs::read_to_string(record_file(paths, Tree::Series)) else {
        return Ok(false);
    };
    git::untouched(&tree)?;
    Ok(recorded == applied(&tree, &all_text(&patches(paths, Tree::Series)?)?)?)
}

/// The content and the times of the files of the series, before the tree is reset and patched
/// again. Most files come out the same. With their old times, make does not compile them again.
pub(crate) struct Times(Vec<(PathBuf, Vec<u8>, SystemTime)>);

impl Times {
    /// The files in which this tree differs from Debian's source; none if there is no tree.
    pub(crate) fn of(tree: &Path) -> Self {
        let names = git(tree, &["diff", "--name-only", BASE_TAG]).unwrap_or_default();
        let file = |name: &str| {
            let path = tree.join(name);
            let time = fs::metadata(&path).ok()?.modified().ok()?;
            Some((path.clone(), fs::read(&path).ok()?, time))
        };
        Self(names.lines().filter_map(file).collect())
    }

    /// Restores the times of the files that came out the same.
    ///
    /// # Errors
    /// If a time cannot be set.
    pub(crate) fn restore(self, tree: &Path) -> Result<()> {
        for (path, content, time) in self.0 {
            if fs::read(&path).is_ok_and(|now| now == content) {
                fs::File::options()
                    .write(true)
                    .open(&path)
                    .and_then(|file| file.set_modified(time))
                    .with_context(|| format!("cannot set the time of {}", path.display()))?;
            }
        }
        // The times in git's index are out of date now. Without this, git would read each file.
        git(tree, &["update-index", "-q", "--refresh"]).map(drop)
    }
}

/// Resets a patched tree to Debian's source, without any patch, and returns its path.
///
/// # Errors
/// If git cannot make the work tree.
pub(crate) fn checkout(paths: &Paths, which: Tree) -> Result<PathBuf> {
    let tree = paths.source(which);
    // The record is removed first, so that a failure half-way does not look finished.
    forget(paths, which);
    if tree.is_dir() {
        git::reset(&tree, BASE_TAG)?;
    } else {
        let plain = paths.source(Tree::Plain);
        git(&plain, &["worktree", "prune"])?;
        let path = tree.to_string_lossy();
        git(&plain, &["worktree", "add", "-q", "--detach", &path, BASE_TAG])
            .with_context(|| format!("cannot make the work tree {}", tree.display()))?;
    }
    Ok(tree)
}

/// Applies one patch to a tree.
///
/// # Errors
/// If it does not apply. Then the tree is as it was before.
pub(crate) fn apply_one(tree: &Path, patch: &Path) -> Result<()> {
    let file = patch.to_string_lossy();
    if let Err(error) = git(tree, &["am", "-q", "--keep-cr", &file]) {
        let _ = git(tree, &["am", "--abort"]);
        bail!(
            "{} does not apply to this kernel: {error:#}",
            patch.file_name().unwrap_or_default().to_string_lossy()
        );
    }
    Ok(())
}

/// The patches that a series is built on.
///
/// # Errors
/// If a folder cannot be read.
pub(crate) fn below(paths: &Paths, folder: &str) -> Result<Vec<PathBuf>> {
    let mut below = patches_in(paths, "fixes")?;
    if folder == ALTERNATIVE {
        below.extend(patches_in(paths, "faults")?.into_iter().take(COUNTING));
    }
    Ok(below)
}

/// The trees that git makes of Debian's source with the first of these patches, and with all of
/// them. Nothing is checked out: they are applied to an index of git's.
///
/// # Errors
/// The first patch that does not apply.
pub(crate) fn trees(paths: &Paths, below: &[PathBuf], patches: &[PathBuf]) -> Result<[String; 2]> {
    let plain = paths.source(Tree::Plain);
    let index = paths.cache.join("src/apart");
    let _ = fs::remove_file(&index);
    let git = |args: &[&str]| git::git_index(&plain, &index, args);
    git(&["read-tree", BASE_TAG])?;
    let tree = |patches: &[PathBuf]| {
        for patch in patches {
            let file = patch.to_string_lossy();
            git(&["apply", "--cached", &file]).with_context(|| format!("{file} does not apply"))?;
        }
        Ok(git(&["write-tree"])?.trim().to_string())
    };
    let trees: Result<_> = tree(below).and_then(|base| Ok([base, tree(patches)?]));
    fs::remove_file(&index).context("cannot remove the index of the check")?;
    trees
}

/// Checks that each of these patches applies to a tree by itself. The tree need not be prepared:
/// as for `trees`, an index of git's is enough.
///
/// # Errors
/// The first one that does not.
pub(crate) fn check_each(paths: &Paths, tree: Tree, each: &[PathBuf]) -> Result<()> {
    let plain = paths.source(Tree::Plain);
    let index = paths.cache.join("src/apart");
    let all = patches(paths, tree)?;
    let [_, patched] = trees(paths, &[], &all)?;
    let checked = git::git_index(&plain, &index, &["read-tree", &patched]).and_then(|_| {
        for patch in each {
            let file = patch.to_string_lossy();
            git::git_index(&plain, &index, &["apply", "--cached", "--check", &file])
                .with_context(|| format!("{file} does not apply to {}", tree.name()))?;
        }
        Ok(())
    });
    let _ = fs::remove_file(&index);
    checked
}

/// Checks that each sub-series of `APART` applies after the fixes alone.
///
/// # Errors
/// The first patch that does not apply.
pub(crate) fn check_apart(paths: &Paths) -> Result<()> {
    for folder in APART {
        trees(paths, &below(paths, folder)?, &patches_in(paths, folder)?)
            .context("after the fixes without the other sub-series")?;
    }
    Ok(())
}

/// Runs `checkpatch.pl --strict` on every patch. Two of its questions are switched off: the one
/// about MAINTAINERS, as `mm/` is listed there as a whole; and whether the commits exist that a
/// message names, as the trees have no history.
///
/// # Errors
/// If it finds something in a patch. The error has its output.
pub(crate) fn check_style(paths: &Paths) -> Result<usize> {
    let mut patches = patches(paths, Tree::Series)?;
    patches.append(&mut patches_in(paths, ALTERNATIVE)?);
    let script = paths.source(Tree::Plain).join("scripts/checkpatch.pl");
    for patch in &patches {
        let mut perl = Command::new("perl");
        perl.arg(&script)
            .args([
                "--strict",
                "-q",
                "--no-tree",
                "--ignore",
                "FILE_PATH_CHANGES,UNKNOWN_COMMIT_ID",
            ])
            .arg(patch)
            // It may leave a file in its working folder.
            .current_dir(paths.cache.join("log"));
        git::without_variables(&mut perl);
        // Without a repository, it takes every long number for the hash of a commit.
        perl.env("GIT_DIR", paths.source(Tree::Plain).join(".git"));
        let out = proc::capture(&mut perl, Duration::from_secs(2 * 60))?;
        let [text, complaint] = [out.stdout, out.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_string());
        if !out.status.success() || text.contains("CHECK:") {
            bail!("checkpatch.pl --strict on {}:\n{text}\n{complaint}", patch.display());
        }
    }
    Ok(patches.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "From 0 Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nDate: Thu, 1 Jan 1970 00:00:00 +0000\n\
                         Subject: [PATCH] change\n\n---\n a | 2 +-\n\ndiff --git a/a b/a\n--- a/a\n+++ b/a\n\
                         @@ -1 +1 @@\n-one\n+two\n--\n";

    fn repository(content: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), content).unwrap();
        for args in [&["init", "-q", "."][..], &["add", "a"], &["commit", "-qm", "base"]] {
            git(dir.path(), args).unwrap();
        }
        dir
    }

    #[test]
    fn a_patch_that_applies_is_applied() {
        let dir = repository("one\n");
        let patch = dir.path().join("0001-change.patch");
        fs::write(&patch, PATCH).unwrap();
        apply_one(dir.path(), &patch).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "two\n");
    }

    #[test]
    fn a_file_that_comes_out_the_same_keeps_its_time() {
        let dir = repository("one\n");
        let (tree, file) = (dir.path(), dir.path().join("a"));
        git(tree, &["tag", BASE_TAG]).unwrap();
        let patch = tree.join("0001-change.patch");
        fs::write(&patch, PATCH).unwrap();
        apply_one(tree, &patch).unwrap();
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let file_time = || fs::metadata(&file).unwrap().modified().unwrap();
        fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();

        let again = |second: &str| {
            let before = Times::of(tree);
            git(tree, &["reset", "-q", "--hard", BASE_TAG]).unwrap();
            fs::write(&patch, PATCH.replace("+two", second)).unwrap();
            apply_one(tree, &patch).unwrap();
            before.restore(tree).unwrap();
        };
        again("+two");
        assert_eq!(file_time(), old);
        again("+2");
        assert_ne!(file_time(), old);
    }

    #[test]
    fn a_patch_that_does_not_apply_is_named_and_leaves_nothing_behind() {
        let dir = repository("three\n");
        let patch = dir.path().join("0001-change.patch");
        fs::write(&patch, PATCH).unwrap();
        let error = apply_one(dir.path(), &patch).unwrap_err().to_string();
        assert!(error.contains("0001-change.patch does not apply"), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "three\n");
        assert!(!dir.path().join(".git/rebase-apply").exists());
    }

    /// A cache whose plain tree is one file, and a series of one patch to it.
    fn cache() -> (tempfile::TempDir, Paths, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path().join("kernel"), dir.path());
        let plain = paths.source(Tree::Plain);
        fs::create_dir_all(paths.cache.join("src")).unwrap();
        fs::rename(repository("one\n").path(), &plain).unwrap();
        git(&plain, &["tag", BASE_TAG]).unwrap();
        for folder in FOLDERS.iter().chain(&[ALTERNATIVE]) {
            fs::create_dir_all(paths.kernel.join(folder)).unwrap();
        }
        fs::write(paths.kernel.join("series/0001-change.patch"), PATCH).unwrap();
        let file = paths.source(Tree::Series).join("a");
        (dir, paths, file)
    }

    #[test]
    fn only_a_tree_made_by_the_patches_is_the_series() {
        let (_dir, paths, file) = cache();
        let tree = paths.source(Tree::Series);
        assert!(!is_applied(&paths).unwrap());
        apply(&paths, Tree::Series).unwrap();
        assert!(is_applied(&paths).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "two\n");

        fs::write(&file, "by hand\n").unwrap();
        let error = apply(&paths, Tree::Series).unwrap_err().to_string();
        assert!(error.contains("edited by hand") && error.contains(" M a"), "{error}");
        is_applied(&paths).unwrap_err();
        git(&tree, &["commit", "-qam", "by hand"]).unwrap();
        assert!(!is_applied(&paths).unwrap());
        apply(&paths, Tree::Series).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two\n");

        fs::write(paths.kernel.join("series/0001-change.patch"), PATCH.replace("+two", "+2"))
            .unwrap();
        assert!(!is_applied(&paths).unwrap());
        apply(&paths, Tree::Series).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "2\n");
    }

    #[test]
    fn the_series_is_built_on_the_fixes() {
        let (_dir, paths, file) = cache();
        let fix = PATCH.replace("-one\n+two", "-one\n+fixed");
        fs::write(paths.kernel.join("fixes/0002-fix.patch"), fix).unwrap();
        let error = apply(&paths, Tree::Series).unwrap_err().to_string();
        assert!(error.contains("0001-change.patch does not apply"), "{error}");
        let on_it = PATCH.replace("-one", "-fixed");
        fs::write(paths.kernel.join("series/0001-change.patch"), on_it).unwrap();
        apply(&paths, Tree::Series).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two\n");
    }

    #[test]
    fn a_sub_series_that_needs_another_one_is_found() {
        let (_dir, paths, file) = cache();
        let on_it = PATCH.replace("-one", "-two").replace("+two", "+three");
        fs::write(paths.kernel.join("reads/0001-more.patch"), on_it).unwrap();
        apply(&paths, Tree::Series).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "three\n");
        let error = format!("{:#}", check_apart(&paths).unwrap_err());
        assert!(error.contains("0001-more.patch") && error.contains("after the fixes"), "{error}");

        // One that stands without the series applies after a fix, too.
        fs::write(paths.kernel.join("series/0001-change.patch"), new_file("b")).unwrap();
        fs::write(paths.kernel.join("fixes/0001-fix.patch"), PATCH).unwrap();
        check_apart(&paths).unwrap();
        apply(&paths, Tree::Series).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "three\n");
    }

    #[test]
    fn a_patch_must_apply_to_its_own_tree() {
        let (_dir, paths, _) = cache();
        let mutant = paths.kernel.join("mutant.patch");
        fs::write(&mutant, PATCH.replace("-one", "-two").replace("+two", "+broken")).unwrap();
        let check = |tree| check_each(&paths, tree, std::slice::from_ref(&mutant));
        check(Tree::Series).unwrap();
        let error = format!("{:#}", check(Tree::Plain).unwrap_err());
        assert!(error.contains("mutant.patch does not apply to plain"), "{error}");
        fs::write(&mutant, PATCH).unwrap();
        check(Tree::Plain).unwrap();
        check(Tree::Series).unwrap_err();
        // Each by itself: the first is not there when the second is looked at.
        check_each(&paths, Tree::Plain, &[mutant.clone(), mutant.clone()]).unwrap();
    }

    /// A patch that adds a file.
    fn new_file(name: &str) -> String {
        PATCH.replace(
            "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two\n",
            &format!(
                "diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n\
                 +++ b/{name}\n@@ -0,0 +1 @@\n+new\n"
            ),
        )
    }

    #[test]
    fn the_leftovers_of_a_killed_run_are_removed() {
        let (_dir, paths, file) = cache();
        let tree = paths.source(Tree::Series);
        // A new file of a patch that was being applied: `git am` would not overwrite it.
        let patch = new_file("b").replace(
            "+new\n",
            "+new\ndiff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two\n",
        );
        fs::write(paths.kernel.join("series/0001-change.patch"), patch).unwrap();
        checkout(&paths, Tree::Series).unwrap();
        fs::write(tree.join("b"), "half").unwrap();
        fs::write(&file, "half").unwrap();
        apply(&paths, Tree::Series).unwrap();
        assert_eq!(fs::read_to_string(tree.join("b")).unwrap(), "new\n");
        assert_eq!(fs::read_to_string(&file).unwrap(), "two\n");
    }
}
