//! The process's limits that the system does not answer by an error.

use std::io;

use rustix::process::{Resource, getrlimit};

/// Whether a file may reach up to byte `end`. Beyond the process's limit for files (`ulimit -f`) the
/// kernel would answer by SIGXFSZ, which ends a program that does not expect it. Cost: a system
/// call.
///
/// # Errors
/// `EFBIG`, which is what the kernel says where the signal is ignored.
pub(crate) fn check_file_end(end: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if end > most => Err(rustix::io::Errno::FBIG.into()),
        _ => Ok(()),
    }
}
