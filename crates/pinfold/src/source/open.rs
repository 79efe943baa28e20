//! From a path to a source: what may be opened, and whether by direct I/O or not.
//!
//! # How direct I/O is detected
//! On one descriptor, so that it cannot become another file in between. (1) tmpfs and ramfs keep
//! files in memory: newer kernels accept `O_DIRECT` there, without effect. (2) `statx` with
//! `STATX_DIOALIGN` (Linux 6.1) reports the alignment, or that there is no direct I/O. (3) Else a
//! block device is asked for its block size, and for a file 512 and 4096 are tried: `O_DIRECT` is
//! switched on and one block read, since some accept the flag and refuse the read. (4) An overlay
//! does not tell what is below it: if it takes a read that no device could make, it is as in (1).
//!
//! # How a wrong length is detected
//! Some file systems make up a file's content when it is read, and report 0 bytes (procfs) or a
//! page (sysfs). (1) A file of 0 bytes on a file system that has only such files is refused unread:
//! reading some of them waits (`/proc/kmsg`) or takes away what is read (`trace_pipe`). (2) Any
//! other file of 0 bytes must have no first byte. (3) One of sysfs must have a last byte.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, Stat, Statx, StatxFlags};
use rustix::io::Errno;

use super::beside::{refuses_direct, uninterrupted};
use super::contents::Contents;
use super::descriptor::Descriptor;
use super::disk::{Disk, Way};
use super::engine::Engine;
use super::identity::FileId;
use super::{AlignedBuffer, Source};

/// The cache moves whole pages.
pub(super) const ALIGNMENT_MAX: usize = 4096;
const ALIGNMENTS: [usize; 2] = [512, ALIGNMENT_MAX];

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const OVERLAYFS_MAGIC: u64 = 0x794c_7630;
const PROC_MAGIC: u64 = 0x9fa0;
const SYSFS_MAGIC: u64 = 0x6265_6572;
const DEBUGFS_MAGIC: u64 = 0x6462_6720;
const TRACEFS_MAGIC: u64 = 0x7472_6163;

/// File systems whose reads begin without waiting, as the kernel's ring asks of them: ext2 to ext4,
/// XFS, Btrfs and F2FS. Others say that they do, and wait all the same.
const BEGIN_AT_ONCE: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
/// Of the errors of these programs, the kernel's ring takes some for a reason to try on for ever.
const FUSE_MAGIC: u64 = 0x6573_5546; // file systems that are programs

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    #[default]
    Read,
    ReadWrite,
    /// It is made if it does not exist.
    Create,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("cannot open {}: {cause}", path.display())]
    System {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("cannot open {}: it is {what}, not a file or a block device", path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    /// Its content is made when it is read.
    #[error(
        "cannot open {}: its file system makes its content when it is read, and does not know the \
         length (it reports {told_bytes} bytes); read it with std::fs::read instead",
        path.display()
    )]
    NoLength { path: PathBuf, told_bytes: u64 },
    #[error("cannot open {} for direct I/O: {why}", path.display())]
    NoDirect { path: PathBuf, why: String },
}

impl OpenError {
    fn system(path: &Path) -> impl Fn(Errno) -> Self {
        |errno| OpenError::System { path: path.to_owned(), cause: errno.into() }
    }

    pub(crate) fn io_cause(&self) -> Option<&io::Error> {
        if let OpenError::System { cause, .. } = self { Some(cause) } else { None }
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            OpenError::System { cause, .. } => cause.kind(),
            OpenError::NotAFile { what, .. } if *what == DIRECTORY => io::ErrorKind::IsADirectory,
            _ => io::ErrorKind::Unsupported,
        }
    }
}

const DIRECTORY: &str = "a directory";

/// Found at a path and opened. How it will be read is not known yet.
#[derive(Debug)]
pub(crate) struct FoundFile {
    fd: OwnedFd,
    stat: Stat,
    block_device: bool,
    access: Access,
    pub(crate) identity: FileId,
    /// When it was found.
    pub(crate) contents: Option<Contents>,
}

#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) source: Arc<dyn Source>,
    pub(super) file: Arc<Descriptor>,
}

/// Cost: three system calls.
pub(crate) fn find(path: &Path, access: Access) -> Result<FoundFile, OpenError> {
    let system = OpenError::system(path);
    // Checked before opening: opening a pipe or a device may have effects.
    match rustix::fs::stat(path) {
        Ok(before) => check_type(path, FileType::from_raw_mode(before.st_mode))?,
        Err(Errno::NOENT) if access == Access::Create => {}
        Err(errno) => return Err(system(errno)),
    }
    let fd = open_fd(path, access).map_err(&system)?;
    let stat = rustix::fs::fstat(&fd).map_err(&system)?;
    check_type(path, FileType::from_raw_mode(stat.st_mode))?;
    let (block_device, identity, contents) = told_by(&stat);
    Ok(FoundFile { fd, stat, block_device, access, identity, contents })
}

/// What the path names now: its identity, and that of its contents. Nothing is opened.
pub(crate) fn look(path: &Path) -> Result<(FileId, Option<Contents>), Errno> {
    let (_, identity, contents) = told_by(&rustix::fs::stat(path)?);
    Ok((identity, contents))
}

/// Whether it is a block device, which it is, and its contents.
fn told_by(stat: &Stat) -> (bool, FileId, Option<Contents>) {
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        return (true, FileId { device: stat.st_rdev, inode: 0 }, None);
    }
    (false, FileId { device: stat.st_dev, inode: stat.st_ino }, Some(Contents::of(stat)))
}

impl FoundFile {
    /// `path` is for messages; `wish` is [`FileOptions::direct`](crate::FileOptions).
    pub(crate) fn open(
        self,
        path: &Path,
        wish: Option<bool>,
        engine: &Engine,
    ) -> Result<Opened, OpenError> {
        let FoundFile { fd, stat, block_device, access, .. } = self;
        let magic = rustix::fs::fstatfs(&fd).map(|system| system.f_type.cast_unsigned());
        if !block_device {
            let told_bytes = u64::try_from(stat.st_size).unwrap_or(0);
            if !has_length(&fd, told_bytes, magic.unwrap_or(0)) {
                return Err(OpenError::NoLength { path: path.to_owned(), told_bytes });
            }
        }
        let direct = match wish {
            Some(false) => Err("not wanted".to_owned()),
            _ => go_direct(&fd, block_device, magic),
        };
        let alignment = *direct.as_ref().unwrap_or(&1);
        let is_of = |systems: &[u64]| !block_device && magic.is_ok_and(|it| systems.contains(&it));
        let mut file = Descriptor {
            block_device,
            writable: access != Access::Read,
            begins_at_once: block_device || is_of(&BEGIN_AT_ONCE),
            ..Descriptor::of(fd, alignment)
        };
        let way = match direct {
            Ok(_) => {
                file.beside = file.beside.filter(|_| wish.is_none());
                let by_a_program = is_of(&[FUSE_MAGIC]);
                let no_ring = || Err("its file system is a program".into());
                Way::Direct(if by_a_program { no_ring() } else { engine.ring.clone() })
            }
            Err(why) if wish == Some(true) => {
                return Err(OpenError::NoDirect { path: path.to_owned(), why });
            }
            Err(_) => {
                rustix::fs::fcntl_setfl(&file.fd, OFlags::empty())
                    .map_err(OpenError::system(path))?;
                // Advice only.
                let _ = rustix::fs::fadvise(&file.fd, 0, None, Advice::Random);
                Way::Buffered
            }
        };
        file.by_own_rings = matches!(way, Way::Direct(Ok(_)));
        file.note(&stat);
        let file = Arc::new(file);
        Ok(Opened { source: Arc::new(Disk::new(file.clone(), way)), file })
    }
}

/// Opens what is at `path`, so that nothing done to it waits, if the path became a pipe since the
/// check. On files `NONBLOCK` has no effect, and is off once flags are set for the way to read.
fn open_fd(path: &Path, access: Access) -> Result<OwnedFd, Errno> {
    let mode = match access {
        Access::Read => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
        Access::Create => OFlags::RDWR | OFlags::CREATE,
    };
    let guarded = mode | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let rights = Mode::from_raw_mode(0o666);
    uninterrupted(|| rustix::fs::open(path, guarded, rights))
}

/// Whether the content of the file is as long as `told_bytes`. See the head of this file.
fn has_length(fd: &OwnedFd, told_bytes: u64, magic: u64) -> bool {
    let made_up = [PROC_MAGIC, DEBUGFS_MAGIC, TRACEFS_MAGIC].contains(&magic);
    let byte_at = |at| uninterrupted(|| rustix::io::pread(fd, &mut [0], at));
    match told_bytes {
        0 if made_up => false,
        0 => match byte_at(0) {
            // Another program may have written to it since it was asked.
            Ok(1..) => rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_size > 0),
            // There is nothing yet: a stream of some kind.
            Err(Errno::AGAIN) => false,
            Ok(0) | Err(_) => true,
        },
        _ if magic == SYSFS_MAGIC => byte_at(told_bytes - 1) != Ok(0),
        _ => true,
    }
}

fn check_type(path: &Path, file_type: FileType) -> Result<(), OpenError> {
    let what = match file_type {
        FileType::RegularFile | FileType::BlockDevice => return Ok(()),
        FileType::Directory => DIRECTORY,
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        _ => "something else",
    };
    Err(OpenError::NotAFile { path: path.to_owned(), what })
}

fn refused(what: &str, errno: Errno) -> String {
    format!("{what} was refused: {errno}")
}

/// Switches direct I/O on, and returns the alignment it needs. After an error, which is why there
/// is none, it may be on.
fn go_direct(fd: &OwnedFd, block_device: bool, magic: Result<u64, Errno>) -> Result<usize, String> {
    let magic = magic.map_err(|errno| refused("asking about the file system", errno))?;
    if [TMPFS_MAGIC, RAMFS_MAGIC].contains(&magic) && !block_device {
        return Err("its file system keeps it in memory".into());
    }
    // An error: a kernel or a sandbox without statx.
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let told = stat.as_ref().map_or(Ok(None), told_alignment)?;
    let fits = |bytes: usize| {
        let most = ALIGNMENT_MAX;
        let why = || format!("it needs an alignment of {bytes} bytes, more than {most}");
        (bytes <= most).then_some(bytes).ok_or_else(why)
    };
    let told = told.map(fits).transpose()?;
    rustix::fs::fcntl_setfl(fd, OFlags::DIRECT).map_err(|errno| refused("O_DIRECT", errno))?;
    match (told, block_device) {
        (Some(bytes), _) => Ok(bytes),
        (None, true) => {
            let block = rustix::fs::ioctl_blksszget(fd).map_or(ALIGNMENT_MAX, |it| it as usize);
            probe(fd, &[fits(block)?])
        }
        (None, false) if magic == OVERLAYFS_MAGIC && takes_any(fd) => {
            Err("the file system below its overlay keeps it in memory".into())
        }
        (None, false) => probe(fd, &ALIGNMENTS),
    }
}

/// Whether a direct read may be of any byte: the flag has no effect then.
fn takes_any(fd: &OwnedFd) -> bool {
    uninterrupted(|| rustix::io::pread(fd, &mut [0], 1)).is_ok()
}

fn told_alignment(stat: &Statx) -> Result<Option<usize>, String> {
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(None);
    }
    if stat.stx_dio_offset_align == 0 {
        return Err("the kernel reports that its file system has none for it".into());
    }
    let bytes = stat.stx_dio_mem_align.max(stat.stx_dio_offset_align) as usize;
    Ok(Some(bytes.next_power_of_two()))
}

fn probe(fd: &OwnedFd, alignments: &[usize]) -> Result<usize, String> {
    let mut last = Errno::INVAL;
    for &bytes in alignments {
        // An address that is a multiple of `bytes` and of no more.
        let mut memory = AlignedBuffer::zeroed(2 * bytes, 2 * bytes);
        match rustix::io::pread(fd.as_fd(), &mut memory[bytes..], 0) {
            Err(errno) if refuses_direct(errno) => last = errno,
            // Nothing was tried: take the coarsest to be safe.
            Ok(0) if alignments.len() > 1 => return Ok(ALIGNMENT_MAX),
            // Any other error concerns this block; reads of it will meet it.
            _ => return Ok(bytes),
        }
    }
    Err(refused("a direct read of one block", last))
}
