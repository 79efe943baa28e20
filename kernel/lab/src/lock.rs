//! One run of the lab at a time in one cache: two would build into the same
//! folders and pack each other's guests. `main` takes the lock for everything
//! that writes there; the kernel lets it go when the process ends, however it does.
//!
//! The lock belongs to the open file, and a child that was forked a moment ago has
//! that open until it execs: closing our descriptor lets go of nothing then, so the
//! end of a [`Lock`] unlocks in words.

use crate::paths::Paths;
use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};

/// Held for as long as this lives.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A lock that cannot be let go is let go when the process ends.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Takes the cache's lock, or says who has it.
///
/// # Errors
/// If another run has it, or the lock's file cannot be made.
pub(crate) fn take(paths: &Paths) -> Result<Lock> {
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
                "another run of the lab (process {}) is at work in {}; wait for it, or give this one \
                 a folder of its own with PINFOLD_LAB_CACHE",
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
    writeln!(file, "{}", std::process::id()).context("cannot note who has the lock")?;
    Ok(Lock { file })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn cache_in(dir: &Path) -> Paths {
        Paths { kernel: dir.into(), cache: dir.into() }
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
    fn a_child_that_has_the_file_open_still_does_not_keep_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let paths = cache_in(dir.path());
        let lock = take(&paths).unwrap();
        // What a child has between its fork and its exec.
        let inherited = lock.file.try_clone().unwrap();
        drop(lock);
        take(&paths).unwrap();
        drop(inherited);
    }
}
