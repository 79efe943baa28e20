//! The files that benchmarks read: their directory and its file system.
//!
//! Here: choosing a directory, writing files of pseudo-random bytes that vanish with the process,
//! and dropping a file from the kernel's cache.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::fs::{Advice, Mode, OFlags};

use crate::size::Size;

const CHUNK_BYTES: usize = 1 << 20;

/// What every block of a direct read is a multiple of, and its memory: enough for all devices.
pub const DIRECT_ALIGNMENT_BYTES: usize = 4096;
/// A huge page of x86-64, and of aarch64 with pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The numbers of common file systems (statfs(2)).
const FILE_SYSTEMS: [(u64, &str); 11] = [
    (0x0102_1994, "tmpfs"),
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0x794c_7630, "overlayfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0x6969, "nfs"),
    (0x6573_5546, "fuse"),
    (0x8584_58f6, "ramfs"),
];

/// The kind of file system that `path` is on.
pub fn file_system(path: &Path) -> Result<String> {
    let told = rustix::fs::statfs(path)
        .with_context(|| format!("cannot use the directory {}", path.display()))?;
    let number = told.f_type.cast_unsigned();
    let known = FILE_SYSTEMS.iter().find(|(known, _)| *known == number);
    Ok(known.map_or_else(|| format!("{number:#x}"), |(_, name)| (*name).to_owned()))
}

fn in_memory(path: &Path) -> bool {
    matches!(file_system(path).as_deref(), Ok("tmpfs" | "ramfs"))
}

/// The directory for files in memory: `/dev/shm`, or the one for temporary files.
pub fn memory_dir() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if in_memory(shm) { shm.to_owned() } else { std::env::temp_dir() }
}

/// Where files on a disk go: the build's own directory if this is run from a checkout, else a
/// directory for temporary files that is not in memory, else the current directory.
pub fn disk_dir() -> PathBuf {
    let dirs = [PathBuf::from("target"), std::env::temp_dir(), PathBuf::from("/var/tmp")];
    dirs.into_iter()
        .find(|dir| dir.is_dir() && !in_memory(dir))
        .unwrap_or_else(|| PathBuf::from("."))
}

/// A file of pseudo-random bytes with no name: it is gone when the last process that has it open
/// is, however that ends.
#[derive(Debug)]
pub struct Scratch {
    file: File,
}

impl Scratch {
    /// Writes one in `dir`; `tick` is called with the number of bytes as they are written.
    pub fn write(dir: &Path, bytes: u64, seed: u64, mut tick: impl FnMut(u64)) -> Result<Self> {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        Self::filled(dir, bytes, |_, part| {
            random.fill_bytes(part);
            tick(part.len() as u64);
        })
    }

    /// Writes one whose bytes `fill` gives, part by part from the front: it is called with a part's
    /// offset and memory.
    pub fn filled(dir: &Path, bytes: u64, mut fill: impl FnMut(u64, &mut [u8])) -> Result<Self> {
        let what = || format!("cannot write a file of {} in {}", Size(bytes), dir.display());
        let mut file = tempfile::tempfile_in(dir).with_context(what)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        // Ends: each turn writes at least one byte of what is left.
        while at < bytes {
            let now = (bytes - at).min(CHUNK_BYTES as u64);
            let part = &mut chunk[..now as usize];
            fill(at, part);
            file.write_all(part).with_context(what)?;
            at += now;
        }
        file.sync_all().with_context(what)?;
        Ok(Scratch { file })
    }

    /// Makes one of so many bytes that are all a hole.
    pub fn hole(dir: &Path, bytes: u64) -> Result<Self> {
        let what = || format!("cannot make a file of {} in {}", Size(bytes), dir.display());
        let file = tempfile::tempfile_in(dir).with_context(what)?;
        file.set_len(bytes).with_context(what)?;
        Ok(Scratch { file })
    }

    /// Drops it from the kernel's page cache.
    pub fn forget(&self) -> Result<()> {
        forget(&self.file)
    }

    /// A path to it that works in other processes of the same user while this one has it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

/// Opens a file to be read with plain reads.
pub fn open_plain(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}

/// Opens a file to be read past the kernel's cache, and tries it.
pub fn open_direct(path: &Path) -> Result<File> {
    let open = || -> std::io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
    };
    open().with_context(|| format!("cannot open {} for direct I/O", path.display()))
}

/// Makes sure that files in `dir` can be read past the kernel's cache.
pub fn ensure_direct(dir: &Path) -> Result<()> {
    let system = file_system(dir)?;
    let other = "choose a directory on a disk with --dir";
    let refuses = format!("{} ({system}) does not support direct I/O; {other}", dir.display());
    ensure!(!in_memory(dir), "{refuses}");
    let probe = Scratch::write(dir, DIRECT_ALIGNMENT_BYTES as u64, 0, |_| {})?;
    let file = open_direct(&probe.path()).context(refuses.clone())?;
    let mut memory = Aligned::zeroed(DIRECT_ALIGNMENT_BYTES);
    let got = std::os::unix::fs::FileExt::read_at(&file, memory.bytes_mut(), 0).context(refuses)?;
    ensure!(got == DIRECT_ALIGNMENT_BYTES, "a direct read of 4096 bytes gave {got}");
    Ok(())
}

/// Drops the file from the kernel's page cache.
pub fn forget(file: &File) -> Result<()> {
    // Dirty pages cannot be dropped.
    file.sync_data().context("cannot write a file out before the kernel forgets it")?;
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed)
        .context("cannot make the kernel forget a file (posix_fadvise)")
}

/// Memory that direct I/O may read into.
#[derive(Debug)]
pub struct Aligned {
    memory: Vec<u8>,
    begin: usize,
    bytes: usize,
}

impl Aligned {
    /// So many bytes, all zeros. From 2 MiB on in huge pages if there are any, as the cache's are:
    /// of small pages a device takes fewer at a time.
    pub fn zeroed(bytes: usize) -> Self {
        let huge = bytes >= HUGE_PAGE_BYTES;
        let alignment = if huge { HUGE_PAGE_BYTES } else { DIRECT_ALIGNMENT_BYTES };
        let mut memory = vec![0; bytes + alignment];
        let begin = memory.as_ptr().align_offset(alignment);
        assert!(begin <= alignment, "a byte's address can be rounded up");
        if huge {
            let aligned = memory[begin..].as_mut_ptr().cast();
            let advice = rustix::mm::Advice::LinuxHugepage;
            // SAFETY: the range is inside the vector; the advice changes how it is backed, not what
            // it holds. Where it is refused small pages do.
            let _ = unsafe { rustix::mm::madvise(aligned, bytes, advice) };
        }
        Aligned { memory, begin, bytes }
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..][..self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_file_can_be_opened_again_and_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut told = 0;
        let scratch = Scratch::write(dir.path(), 3 << 19, 7, |bytes| told += bytes).unwrap();
        assert_eq!(told, 3 << 19);
        let bytes = std::fs::read(scratch.path()).unwrap();
        assert_eq!(bytes.len(), 3 << 19);
        assert!(bytes.windows(16).all(|window| window.iter().any(|&byte| byte != 0)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let path = scratch.path();
        drop(scratch);
        assert!(std::fs::read(path).is_err());
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = Scratch::write(Path::new("/no/such/dir"), 10, 0, |_| {}).unwrap_err();
        assert!(format!("{error:#}").contains("cannot write a file of 10 B in /no/such/dir"));
        assert!(format!("{:#}", ensure_direct(Path::new("/proc")).unwrap_err()).contains("/proc"));
    }

    #[test]
    fn aligned_memory_is_aligned() {
        let mut aligned = Aligned::zeroed(8192);
        let bytes = aligned.bytes_mut();
        assert_eq!((bytes.len(), bytes.as_ptr() as usize % DIRECT_ALIGNMENT_BYTES), (8192, 0));
    }
}
