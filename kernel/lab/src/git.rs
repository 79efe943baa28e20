//! Runs git in the lab's own trees and nowhere else. Variables that a git hook has set, the
//! user's configuration, and a repository around the cache's folder have no effect.

use crate::proc;
use anyhow::{Context, Result, bail};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// The tag of the first commit, Debian's source. `git am` puts the series on top of it.
pub(crate) const BASE_TAG: &str = "lab-base";

/// Runs git in this tree.
///
/// # Errors
/// If git fails; the error has its output.
pub(crate) fn git(tree: &Path, args: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    confine(&mut git, tree, inherited());
    proc::output(git.args(args))
}

/// Runs git in this tree with an index in this file, in the place of the tree's own.
///
/// # Errors
/// If git fails; the error has its output.
pub(crate) fn git_index(tree: &Path, index: &Path, args: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    confine(&mut git, tree, inherited());
    proc::output(git.env("GIT_INDEX_FILE", index).args(args))
}

/// Removes git's environment variables from a command that runs git itself, so that git finds
/// the repository by the command's folder.
pub(crate) fn without_variables(command: &mut Command) {
    remove_variables(command, inherited());
}

fn inherited() -> impl Iterator<Item = OsString> {
    env::vars_os().map(|(name, _)| name)
}

fn remove_variables(command: &mut Command, inherited: impl Iterator<Item = OsString>) {
    for name in inherited.filter(|name| name.as_encoded_bytes().starts_with(b"GIT_")) {
        command.env_remove(name);
    }
}

fn confine(git: &mut Command, tree: &Path, inherited: impl Iterator<Item = OsString>) {
    remove_variables(git, inherited);
    git.current_dir(tree)
        .envs(tree.parent().map(|above| ("GIT_CEILING_DIRECTORIES", above)))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_ATTR_NOSYSTEM", "1")
        .args(["-c", "core.excludesFile=/dev/null", "-c", "core.attributesFile=/dev/null"])
        .args(["-c", "user.name=lab", "-c", "user.email=lab@localhost", "-c", "gc.auto=0"]);
}

/// Git's hash of the files of a tree's last commit.
///
/// # Errors
/// If there is no such commit.
pub(crate) fn tree_hash(tree: &Path) -> Result<String> {
    let hash = git(tree, &["rev-parse", "HEAD^{tree}"])
        .with_context(|| format!("{} has no commit", tree.display()))?;
    Ok(hash.trim().to_string())
}

/// Checks that nobody has edited a tree since its last commit. Debian's source ignores all
/// files but its own, so ignored files count, too.
///
/// # Errors
/// If files were edited: which ones, and how to undo it.
pub(crate) fn untouched(tree: &Path) -> Result<()> {
    let changed = git(tree, &["status", "--porcelain", "--ignored"])?;
    if changed.is_empty() {
        return Ok(());
    }
    let dir = tree.display();
    let mut lines: Vec<_> = changed.lines().take(10).collect();
    if changed.lines().count() > lines.len() {
        lines.push("...");
    }
    bail!(
        "{dir} was edited by hand, so a kernel built from it would not be the series:\n{}\n\
         save what you need, then run `git -C {dir} reset -q --hard && git -C {dir} clean -ffdxq`",
        lines.join("\n")
    )
}

/// Links a work tree and its repository to each other. Git links them by absolute paths, so if a
/// cache was copied, what is done to the copy's work trees would happen to the original's.
///
/// # Errors
/// If a link cannot be written.
pub(crate) fn link(repository: &Path, tree: &Path) -> Result<()> {
    let name = tree.file_name().context("a work tree without a name")?;
    let kept = repository.join(".git/worktrees").join(name);
    if !kept.is_dir() || !tree.is_dir() {
        return Ok(());
    }
    let (kept, tree) = (fs::canonicalize(kept)?, fs::canonicalize(tree)?);
    for (file, text) in [
        (tree.join(".git"), format!("gitdir: {}\n", kept.display())),
        (kept.join("gitdir"), format!("{}\n", tree.join(".git").display())),
    ] {
        if fs::read_to_string(&file).ok().as_deref() != Some(text.as_str()) {
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

/// Resets a tree to a commit, without edits, new files, or an unfinished `git am`.
///
/// # Errors
/// If git fails.
pub(crate) fn reset(tree: &Path, commit: &str) -> Result<()> {
    // A git that was killed leaves its lock behind. The lab holds the cache's lock, so no other
    // git is running here.
    let lock = git(tree, &["rev-parse", "--git-path", "index.lock"])?;
    match fs::remove_file(tree.join(lock.trim())) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).context("cannot remove git's index.lock");
        }
        _ => {}
    }
    // This fails if there is no unfinished `git am`.
    let _ = git(tree, &["am", "--abort"]);
    git(tree, &["reset", "-q", "--hard", commit])?;
    git(tree, &["clean", "-ffdxq"]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn repository() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "one\n").unwrap();
        fs::write(dir.path().join(".gitignore"), "/new\n").unwrap();
        for args in [&["init", "-q", "."][..], &["add", "."], &["commit", "-qm", "base"]] {
            git(dir.path(), args).unwrap();
        }
        dir
    }

    #[test]
    fn a_copied_work_tree_is_no_longer_the_originals() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        fs::create_dir(&first).unwrap();
        fs::rename(repository().keep(), first.join("plain")).unwrap();
        let tree = first.join("series").display().to_string();
        git(&first.join("plain"), &["worktree", "add", "-q", "--detach", &tree]).unwrap();
        let copied = Command::new("cp").arg("-a").args([&first, &second]).status().unwrap();
        assert!(copied.success());
        let plain = second.join("plain");
        link(&plain, &second.join("series")).unwrap();
        let change = ["commit", "-q", "--allow-empty", "-m", "change"];
        git(&second.join("series"), &change).unwrap();
        let head = |tree: PathBuf| git(&tree, &["rev-parse", "HEAD"]).unwrap();
        assert_eq!(head(first.join("series")), head(first.join("plain")));
        assert_ne!(head(second.join("series")), head(plain.clone()));
        // Neither a tree that is not there nor one of another repository is linked.
        link(&plain, &second.join("other")).unwrap();
    }

    #[test]
    fn a_hooks_variables_and_the_users_settings_change_nothing() {
        let (ours, theirs, home) = (repository(), repository(), tempfile::tempdir().unwrap());
        let config =
            "[commit]\ngpgsign = true\n[gpg]\nprogram = /bin/false\n[core]\nhooksPath = /x\n";
        fs::write(home.path().join(".gitconfig"), config).unwrap();
        fs::create_dir_all(home.path().join(".config/git")).unwrap();
        fs::write(home.path().join(".config/git/ignore"), "*\n").unwrap();
        let before = tree_hash(theirs.path()).unwrap();
        fs::write(ours.path().join("b"), "two\n").unwrap();
        for args in [&["add", "b"][..], &["commit", "-qm", "b"], &["reset", "-q", "--hard"]] {
            let mut command = Command::new("git");
            command
                .env("GIT_DIR", theirs.path().join(".git"))
                .env("GIT_WORK_TREE", theirs.path())
                .env("GIT_INDEX_FILE", theirs.path().join(".git/index"))
                .env("HOME", home.path())
                .env("XDG_CONFIG_HOME", home.path().join(".config"));
            let inherited = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"].map(OsString::from);
            confine(&mut command, ours.path(), inherited.into_iter());
            proc::output(command.args(args)).unwrap();
        }
        assert_eq!(git(ours.path(), &["ls-files"]).unwrap(), ".gitignore\na\nb\n");
        assert_eq!(tree_hash(theirs.path()).unwrap(), before);
    }

    #[test]
    fn a_repository_around_the_cache_is_not_used() {
        let around = repository();
        let cache = around.path().join("cache");
        fs::create_dir(&cache).unwrap();
        git(&cache, &["status"]).unwrap_err();
    }

    #[test]
    fn edits_are_named() {
        let dir = repository();
        untouched(dir.path()).unwrap();
        for (file, mark) in [("a", " M a"), ("new", "!! new")] {
            fs::write(dir.path().join(file), "edited\n").unwrap();
            let error = untouched(dir.path()).unwrap_err().to_string();
            assert!(error.contains(mark) && error.contains("clean -ffdxq"), "{error}");
            reset(dir.path(), "HEAD").unwrap();
            untouched(dir.path()).unwrap();
        }
    }

    #[test]
    fn the_leftovers_of_a_killed_git_are_removed() {
        let dir = repository();
        fs::write(dir.path().join(".git/index.lock"), "").unwrap();
        fs::create_dir(dir.path().join(".git/rebase-apply")).unwrap();
        fs::write(dir.path().join("new"), "").unwrap();
        reset(dir.path(), "HEAD").unwrap();
        untouched(dir.path()).unwrap();
        assert!(!dir.path().join("new").exists());
        assert!(!dir.path().join(".git/rebase-apply").exists());
    }
}
