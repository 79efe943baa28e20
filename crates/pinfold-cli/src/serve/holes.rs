//! Which parts of a file have no data, and so are zeros that need not be read.

use std::io;
use std::ops::Range;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// The holes of the first `bytes` bytes of a file. None where the system does not say.
///
/// # Errors
/// The file cannot be opened or examined.
pub(super) fn of(path: &Path, bytes: u64) -> io::Result<Vec<Range<u64>>> {
    let file = std::fs::File::open(path)?;
    let mut holes = Vec::new();
    let mut at = 0;
    // Ends: each turn goes further, or is the last.
    while at < bytes {
        let data = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data.min(bytes),
            Err(Errno::NXIO) => bytes,  // no more data
            Err(Errno::INVAL) => break, // a device, for example
            Err(error) => return Err(error.into()),
        };
        if data > at {
            holes.push(at..data);
        }
        if data == bytes {
            break;
        }
        at = seek(&file, SeekFrom::Hole(data))?.max(data + 1);
    }
    Ok(holes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_found_and_data_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mib = 1 << 20;
        file.as_file().set_len(8 * mib + 100).unwrap();
        file.as_file().write_at(&[1; 4096], 2 * mib).unwrap();
        file.as_file().write_at(&[1; 4096], 6 * mib).unwrap();
        let found = of(file.path(), 8 * mib + 100).unwrap();
        // A file system may have larger blocks, or no holes at all.
        for hole in &found {
            assert!(hole.start < hole.end && hole.end <= 8 * mib + 100, "{found:?}");
            assert!(!hole.contains(&(2 * mib)) && !hole.contains(&(6 * mib)), "{found:?}");
        }
        assert!(
            found.is_empty() || found.iter().any(|hole| hole.contains(&(4 * mib))),
            "{found:?}"
        );
    }
}
