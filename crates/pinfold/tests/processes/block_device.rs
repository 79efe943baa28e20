//! A block device, whose length the system tells by another call than a file's.
//!
//! It is a loop device, which only root can have; elsewhere the test says that it tests nothing.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use pinfold::{Cache, FileOptions, Options};
use pinfold_testing::pattern::Pattern;

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_SET_FD: libc::Ioctl = 0x4c00;
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
/// Tries to get a device before another process does.
const TRIES: usize = 100;

/// A device that has the bytes of a file, until it is dropped.
struct Loop {
    path: PathBuf,
    device: File,
}

impl Loop {
    fn of(backing: &File) -> io::Result<Loop> {
        let control = File::options().read(true).write(true).open("/dev/loop-control")?;
        let mut last = io::Error::other("no try");
        for _ in 0..TRIES {
            // SAFETY: this call has no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = File::options().read(true).write(true).open(&path)?;
            // SAFETY: the argument is an open file.
            let set = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_FD, backing.as_raw_fd()) };
            if set == 0 {
                return Ok(Loop { path, device });
            }
            last = io::Error::last_os_error();
            if last.raw_os_error() != Some(libc::EBUSY) {
                break;
            }
        }
        Err(last)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // SAFETY: this call has no argument.
        let cleared = unsafe { libc::ioctl(self.device.as_raw_fd(), LOOP_CLR_FD, 0) };
        assert_eq!(cleared, 0, "{}", io::Error::last_os_error());
    }
}

#[test]
fn a_block_device_is_as_long_as_it_is_and_reads_as_a_file() {
    const BYTES: usize = 1_000_000;
    /// A device has whole sectors.
    const LENGTH: usize = BYTES / 512 * 512;
    let mut dir = tempfile::Builder::new();
    let dir = dir.prefix("loop").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, pattern) = (dir.path().join("backing"), Pattern::new(71, 0));
    std::fs::write(&path, pattern.to_vec(BYTES)).unwrap();
    let backing = File::options().read(true).write(true).open(&path).unwrap();
    let device = match Loop::of(&backing) {
        Ok(device) => device,
        Err(why) => {
            eprintln!("not tested: no loop device: {why}");
            return;
        }
    };
    for direct in [None, Some(false)] {
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let options = FileOptions { direct, ..FileOptions::default() };
        let file = cache.open_with(&device.path, options).unwrap();
        assert_eq!(file.len(), LENGTH as u64);
        let mut bytes = vec![0; BYTES];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), LENGTH);
        pattern.check(0, &bytes[..LENGTH]).unwrap();
        let again = cache.open(&device.path).unwrap();
        assert_eq!((again.len(), cache.stats().files), (LENGTH as u64, 1));
        let last = LENGTH as u64 / 4096;
        assert_eq!(again.get(last).unwrap().len(), LENGTH % 4096);
        let error = again.get(last + 1).unwrap_err().to_string();
        let expected =
            format!("no page {} in {}: it has {LENGTH} bytes", last + 1, device.path.display());
        assert_eq!(error, expected);
    }
}
