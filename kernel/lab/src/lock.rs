//! One run of the lab at a time in one cache: two would build into the same
//! folders and pack each other's guests. `main` takes the lock for everything
//! that writes there; the kernel lets it go when the process ends, however it does.

use crate::paths::Paths;
use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};

/// Held for as long as this lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
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
    Ok(Lock { _file: file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_is_refused_until_the_first_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { kernel: dir.path().into(), cache: dir.path().into() };
        let first = take(&paths).unwrap();
        let error = take(&paths).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        take(&paths).unwrap();
    }
}
