//! Only one run of the lab at a time uses a cache: two would build into the same folders and
//! overwrite each other's guests. `main` takes the lock for every command that writes there.
//!
//! The lock belongs to the open file description, which the programs that the lab starts
//! inherit: a `make` that outlives a killed lab keeps the next run out. Closing the lab's own
//! descriptor does not release such a lock, so dropping a [`Lock`] unlocks explicitly.

use crate::paths::Paths;
use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};

/// Held for as long as this lives.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If this fails, the end of the process releases the lock.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Takes the cache's lock, or says who has it.
///
/// # Errors
/// If another run has it, or the lock's file cannot be made.
pub(crate) fn take(paths: &Paths) -> Result<Lock> {
    locked(paths).map(|file| Lock { file })
}

fn locked(paths: &Paths) -> Result<File> {
    let path = paths.cache.join("lock");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder).context("cannot read who has the lock")?;
            bail!(
                "another run of the lab (process {}), or a program that it started, uses {}; \
                 wait for it, or set PINFOLD_LAB_CACHE to another folder",
                holder.trim(),
                paths.cache.display()
            );
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id()).context("cannot write the lock's holder")?;
    // No close-on-exec: the programs that the lab starts inherit the lock.
    fcntl_setfd(&file, FdFlags::empty()).context("cannot make the lock inheritable")?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    fn cache_in(dir: &Path) -> Paths {
        Paths::new(dir, dir)
    }

    #[test]
    fn a_second_run_is_refused_until_the_first_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let paths = cache_in(dir.path());
        let first = take(&paths).unwrap();
        let error = take(&paths).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        take(&paths).unwrap();
    }

    #[test]
    fn a_program_that_outlives_a_killed_run_keeps_the_next_run_out() {
        let dir = tempfile::tempdir().unwrap();
        let paths = cache_in(dir.path());
        let file = locked(&paths).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        // As in a run that is killed, the file is closed and not unlocked.
        drop(file);
        // The child of another test may have the file open, too, between its fork and its exec.
        thread::sleep(Duration::from_millis(300));
        take(&paths).unwrap_err();
        child.kill().unwrap();
        child.wait().unwrap();
        // So may a program that another test has started meanwhile. It ends soon.
        let free = || thread::sleep(Duration::from_millis(10));
        assert!((0..1000).map(|_| free()).any(|()| take(&paths).is_ok()));
    }

    #[test]
    fn a_run_that_ends_releases_the_lock_although_its_child_runs_on() {
        let dir = tempfile::tempdir().unwrap();
        let paths = cache_in(dir.path());
        let lock = take(&paths).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        drop(lock);
        take(&paths).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
