//! A file system (FUSE) that shows a folder at another place, and reads and writes the data of all
//! files through one cache: how a server that writes is made with Pinfold.
//!
//! ```sh
//! cargo run --release -p pinfold --example fuse -- [--budget MIB] [--uncached] FOLDER MOUNTPOINT
//! ```
//!
//! `--help` says more. What concerns the cache: [`open_file`](Shown::open_file), `read`, `write`,
//! `fsync`, `release`, and the length in [`attr`](Shown::attr) and `setattr`. The rest passes names
//! and attributes through to the folder.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenAccMode, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, Session, SessionUnmounter, TimeOrNow, WriteFlags,
};
use pinfold::{Cache, ErrorKind, File, FileOptions, Options};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::process::{Resource, Rlimit};

const HELP: &str = "\
Shows FOLDER at MOUNTPOINT, an empty folder. All that programs read and write there goes through one
cache of this process.

  fuse [--budget MIB] [--uncached] FOLDER MOUNTPOINT

  --budget MIB   memory of the cache, in MiB; 64 if it is not said
  --uncached     the kernel keeps nothing: each read and each write of a program comes to the cache.
                 Otherwise the kernel keeps what was read until the file is opened again

Ends when MOUNTPOINT is unmounted, and by Ctrl-C or SIGTERM, which unmount it; then all that was
written is made durable. Takes root, or Debian's package fuse3.

What is written is durable when fsync(2) has returned, and is made so when a file is closed. Until
then FOLDER has the old bytes: the time of a change is that at which it comes there. FOLDER should
not be changed by others meanwhile. Device files and extended attributes are not supported; of
fallocate(2), holes are.

  mkdir /tmp/shown
  cargo run --release -p pinfold --example fuse -- ~/notes /tmp/shown &
  echo hello > /tmp/shown/new && cat ~/notes/new
  umount /tmp/shown                        # fusermount3 -u without root";

fn main() -> ExitCode {
    if let Err(why) = run() {
        eprintln!("fuse: {why}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let (mut paths, mut budget, mut uncached) = (Vec::new(), 64_u64, false);
    let mut args = std::env::args_os().skip(1);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--help" | "-h") => {
                println!("{HELP}");
                return Ok(());
            }
            Some("--uncached") => uncached = true,
            Some("--budget") => {
                let mib = args.next().and_then(|mib| mib.to_str()?.parse().ok());
                budget = mib.ok_or("--budget takes a number of MiB; --help says more")?;
            }
            Some(other) if other.starts_with("--") => {
                return Err(
                    format!("there is no option {other}; --help says which there are").into()
                );
            }
            _ => paths.push(PathBuf::from(arg)),
        }
    }
    let [folder, mountpoint] = &paths[..] else {
        return Err("it takes a folder, and where to mount it; --help says more".into());
    };
    let signals = Signals::block();
    // Each request says which rights a new file gets.
    rustix::process::umask(Mode::empty());
    // One descriptor for each file that the kernel knows, and those of the cache for what is open.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let cache = Cache::new(Options::new(budget.saturating_mul(1 << 20)))?;
    let (session, unmounter) = mount(&cache, folder, mountpoint, uncached)?;
    std::thread::spawn(move || signals.unmount(unmounter));
    session.run()?;
    Ok(cache.sync()?) // what could not be written when it was closed
}

/// Shows `folder` at `mountpoint`, once the session is run.
pub(crate) fn mount(
    cache: &Cache,
    folder: &Path,
    mountpoint: &Path,
    uncached: bool,
) -> Result<(Session<Shown>, SessionUnmounter), Box<dyn std::error::Error>> {
    let of = |path: &Path, why: String| format!("{}: {why}", path.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(folder, flags, Mode::empty());
    let fd = fd.map_err(|why| of(folder, why.to_string()))?;
    let root = rustix::fs::fstat(&fd)?;
    let nodes = HashMap::from([(INodeNo::ROOT.0, (Arc::new(fd), 1))]);
    let shown = Shown {
        cache: cache.clone(),
        uncached,
        root: (root.st_dev, root.st_ino),
        nodes: Mutex::new(nodes),
        open: RwLock::default(),
        handles: AtomicU64::new(0),
    };
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::FSName("pinfold".into()), MountOption::DefaultPermissions];
    config.n_threads = Some(8);
    let session = Session::new(shown, mountpoint, &config);
    let mut session = session.map_err(|why| of(mountpoint, why.to_string()))?;
    let unmounter = session.unmount_callable();
    Ok((session, unmounter))
}

/// The signals that end the program, blocked in all threads.
struct Signals(libc::sigset_t);

impl Signals {
    fn block() -> Self {
        // SAFETY: zeros are the empty set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: the set outlives the call.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        // SAFETY: as above; nothing changes but the signals that this thread gets.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        Signals(set)
    }

    fn unmount(&self, mut unmounter: SessionUnmounter) {
        let mut signal = 0;
        // SAFETY: both outlive the call.
        unsafe { libc::sigwait(&raw const self.0, &raw mut signal) };
        if let Err(why) = unmounter.unmount() {
            eprintln!("cannot unmount: {why}; it ends when it is unmounted");
        }
    }
}

/// What a program is told.
#[derive(Debug)]
struct Failed(Errno);

type Result<T, E = Failed> = std::result::Result<T, E>;

impl From<rustix::io::Errno> for Failed {
    fn from(errno: rustix::io::Errno) -> Self {
        Failed(Errno::from_i32(errno.raw_os_error()))
    }
}

impl From<pinfold::Error> for Failed {
    fn from(error: pinfold::Error) -> Self {
        // What the system has said, such as that the disk is full.
        let said = std::error::Error::source(&error);
        let said = said.and_then(|why| why.downcast_ref::<std::io::Error>()?.raw_os_error());
        eprintln!("{error}");
        Failed(match error.kind() {
            ErrorKind::NoMemory => Errno::ENOMEM,
            ErrorKind::Unsupported => Errno::EFBIG,
            ErrorKind::Busy => Errno::EBUSY,
            ErrorKind::Invalid => Errno::EINVAL,
            _ => said.map_or(Errno::EIO, Errno::from_i32),
        })
    }
}

/// For so long the kernel asks for no name and no attribute again.
const TTL: Duration = Duration::from_secs(1);

/// The file system: a folder, shown through a cache.
pub(crate) struct Shown {
    cache: Cache,
    uncached: bool,
    /// Device and inode.
    root: (u64, u64),
    /// What the kernel knows, by inode: a descriptor, and how often it was told of it.
    nodes: Mutex<HashMap<u64, (Arc<OwnedFd>, u64)>>,
    /// By inode and handle. Each handle has a `File` of its own, which sees its scans.
    open: RwLock<BTreeMap<(u64, u64), Arc<File>>>,
    handles: AtomicU64,
}

impl Shown {
    fn fd(&self, ino: INodeNo) -> Result<Arc<OwnedFd>> {
        let nodes = self.nodes.lock().unwrap();
        nodes.get(&ino.0).map(|(fd, _)| fd.clone()).ok_or(Failed(Errno::ESTALE))
    }

    /// By which a file is found whatever its names are, also without one.
    fn path(&self, ino: INodeNo) -> Result<PathBuf> {
        Ok(format!("/proc/self/fd/{}", self.fd(ino)?.as_raw_fd()).into())
    }

    fn folder(&self, ino: INodeNo) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd(ino)?, ".", flags, Mode::empty())?)
    }

    /// What has that name now; the kernel is told of it.
    fn entry(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd(parent)?, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if stat.st_dev != self.root.0 {
            return Err(Failed(Errno::EXDEV)); // numbers of inodes are of one file system
        }
        let ino = self.number(stat.st_ino);
        self.nodes.lock().unwrap().entry(ino.0).or_insert_with(|| (Arc::new(fd), 0)).1 += 1;
        self.attr(ino)
    }

    fn number(&self, inode: u64) -> INodeNo {
        if inode == self.root.1 { INodeNo::ROOT } else { INodeNo(inode) }
    }

    fn attr(&self, ino: INodeNo) -> Result<FileAttr> {
        // Of an open file the cache knows the length, which the folder has after a sync. It is
        // looked for first: if it is closed meanwhile, the folder has it.
        let open = self.some_file(ino);
        let stat = rustix::fs::fstat(&self.fd(ino)?)?;
        let size = open.map_or(stat.st_size.cast_unsigned(), |file| file.len());
        Ok(FileAttr {
            ino,
            size,
            blocks: stat.st_blocks.cast_unsigned(),
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            crtime: UNIX_EPOCH,
            kind: kind(rustix::fs::FileType::from_raw_mode(stat.st_mode)),
            perm: (stat.st_mode & 0o7777) as u16,
            nlink: stat.st_nlink as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev as u32,
            blksize: 4096,
            flags: 0,
        })
    }

    fn open_file(&self, ino: INodeNo, flags: OpenFlags) -> Result<FileHandle> {
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let options = FileOptions { write, ..FileOptions::default() };
        let file = self.cache.open_with(self.path(ino)?, options)?;
        let handle = self.handles.fetch_add(1, Ordering::Relaxed);
        self.open.write().unwrap().insert((ino.0, handle), Arc::new(file));
        Ok(FileHandle(handle))
    }

    fn file(&self, ino: INodeNo, handle: FileHandle) -> Result<Arc<File>> {
        let open = self.open.read().unwrap();
        open.get(&(ino.0, handle.0)).cloned().ok_or(Failed(Errno::EBADF))
    }

    fn some_file(&self, ino: INodeNo) -> Option<Arc<File>> {
        let open = self.open.read().unwrap();
        open.range((ino.0, 0)..=(ino.0, u64::MAX)).next().map(|(_, file)| file.clone())
    }

    fn how_opened(&self) -> FopenFlags {
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        if self.uncached { direct } else { FopenFlags::empty() }
    }

    fn make(&self, parent: INodeNo, name: &OsStr, mode: u32, flags: i32) -> Result<FileAttr> {
        // Whoever makes a file may write to it, whatever its mode: so must the cache.
        let (rights, more) = (Mode::from_raw_mode(mode), Mode::RUSR | Mode::WUSR);
        let exclusive = OFlags::from_bits_truncate(flags.cast_unsigned()) & OFlags::EXCL;
        let made = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd(parent)?, name, made | exclusive, rights | more)?;
        self.entry(parent, name)
    }

    fn set_len(&self, ino: INodeNo, handle: Option<FileHandle>, bytes: u64) -> Result<()> {
        if let Some(handle) = handle {
            return Ok(self.file(ino, handle)?.set_len(bytes)?);
        }
        let options = FileOptions { write: true, ..FileOptions::default() };
        Ok(self.cache.open_with(self.path(ino)?, options)?.set_len(bytes)?)
    }

    fn set_times(&self, ino: INodeNo, [atime, mtime]: [Option<TimeOrNow>; 2]) -> Result<()> {
        if let Some(file) = self.some_file(ino) {
            file.sync_data()?; // what is written later has a later time
        }
        let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
        let at = rustix::fs::CWD;
        Ok(rustix::fs::utimensat(at, self.path(ino)?, &times, AtFlags::empty())?)
    }
}

fn time(seconds: i64, nanoseconds: impl TryInto<u32>) -> SystemTime {
    let nanoseconds = Duration::from_nanos(nanoseconds.try_into().unwrap_or(0).into());
    let whole = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { UNIX_EPOCH - whole + nanoseconds } else { UNIX_EPOCH + whole + nanoseconds }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(rustix::fs::UTIME_OMIT),
        Some(TimeOrNow::Now) => special(rustix::fs::UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => {
            let after = time.duration_since(UNIX_EPOCH);
            after.map_or(special(0), |it| it.try_into().unwrap_or(special(0)))
        }
    }
}

fn kind(kind: rustix::fs::FileType) -> FileType {
    match kind {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::Symlink => FileType::Symlink,
        rustix::fs::FileType::Fifo => FileType::NamedPipe,
        rustix::fs::FileType::Socket => FileType::Socket,
        rustix::fs::FileType::CharacterDevice => FileType::CharDevice,
        rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn answer_entry(reply: ReplyEntry, found: &Result<FileAttr>) {
    match found {
        Ok(attr) => reply.entry(&TTL, attr, Generation(0)),
        Err(Failed(errno)) => reply.error(*errno),
    }
}

fn answer_attr(reply: ReplyAttr, attr: &Result<FileAttr>) {
    match attr {
        Ok(attr) => reply.attr(&TTL, attr),
        Err(Failed(errno)) => reply.error(*errno),
    }
}

fn answer(reply: ReplyEmpty, done: &Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(Failed(errno)) => reply.error(*errno),
    }
}

impl Filesystem for Shown {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Where the kernel keeps nothing, maps need it to be asked; old kernels have none then.
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        Ok(())
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(ino, flags) {
            Ok(handle) => reply.opened(handle, self.how_opened()),
            Err(Failed(errno)) => reply.error(errno),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.make(parent, name, mode, flags).and_then(|attr| {
            let handle = self.open_file(attr.ino, OpenFlags(flags))?;
            if attr.perm != mode as u16 & 0o7777 {
                rustix::fs::chmod(self.path(attr.ino)?, Mode::from_raw_mode(mode))?;
            }
            Ok((self.attr(attr.ino)?, handle))
        });
        match made {
            Ok((attr, handle)) => {
                reply.created(&TTL, &attr, Generation(0), handle, self.how_opened());
            }
            Err(Failed(errno)) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        let got = self.file(ino, handle).and_then(|file| Ok(file.read_at(&mut bytes, offset)?));
        match got {
            Ok(got) => reply.data(&bytes[..got]),
            Err(Failed(errno)) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // What comes from a map has its place.
        let appends = flags.0 & libc::O_APPEND != 0 && !how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let written = self.file(ino, handle).and_then(|file| {
            Ok(if appends { file.append(bytes).map(drop) } else { file.write_at(bytes, offset) }?)
        });
        match written {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(Failed(errno)) => reply.error(errno),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let punches = mode == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let range = offset..offset.saturating_add(bytes);
        let done = match self.file(ino, handle) {
            Ok(file) if punches => file.punch_hole(range).map_err(Failed::from),
            Ok(_) => Err(Failed(Errno::EOPNOTSUPP)),
            Err(why) => Err(why),
        };
        answer(reply, &done);
    }

    fn fsync(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let synced = self
            .file(ino, handle)
            .and_then(|file| Ok(if data_only { file.sync_data() } else { file.sync_all() }?));
        answer(reply, &synced);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok(); // close(2) has returned
        // As long as the folder does not have the length, the file must be among the open ones.
        if flags.acc_mode() != OpenAccMode::O_RDONLY
            && let Ok(file) = self.file(ino, handle)
            && let Err(error) = file.sync_data()
        {
            eprintln!("{error}: it stays in the cache, and is written at the end");
        }
        let file = self.open.write().unwrap().remove(&(ino.0, handle.0));
        drop(file); // without the lock: the last one may sync
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer_attr(reply, &self.attr(ino));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = || {
            if let Some(mode) = mode {
                rustix::fs::chmod(self.path(ino)?, Mode::from_raw_mode(mode))?;
            }
            if uid.or(gid).is_some() {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(&self.fd(ino)?, "", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            if let Some(bytes) = size {
                self.set_len(ino, handle, bytes)?;
            }
            if atime.or(mtime).is_some() {
                self.set_times(ino, [atime, mtime])?;
            }
            self.attr(ino)
        };
        answer_attr(reply, &set());
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(reply, &self.entry(parent, name));
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        let mut nodes = self.nodes.lock().unwrap();
        if let Some((_, known)) = nodes.get_mut(&ino.0) {
            *known = known.saturating_sub(lookups);
            if *known == 0 {
                nodes.remove(&ino.0);
            }
        }
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.fd(parent).and_then(|fd| {
            rustix::fs::mkdirat(&fd, name, Mode::from_raw_mode(mode))?;
            self.entry(parent, name)
        });
        answer_entry(reply, &made);
    }

    fn symlink(&self, _: &Request, parent: INodeNo, name: &OsStr, to: &Path, reply: ReplyEntry) {
        let made = self.fd(parent).and_then(|fd| {
            rustix::fs::symlinkat(to, &fd, name)?;
            self.entry(parent, name)
        });
        answer_entry(reply, &made);
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let made = self.fd(parent).and_then(|fd| {
            let (from, follow) = (self.path(ino)?, AtFlags::SYMLINK_FOLLOW);
            rustix::fs::linkat(rustix::fs::CWD, from, &fd, name, follow)?;
            self.entry(parent, name)
        });
        answer_entry(reply, &made);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let to = self.fd(ino).and_then(|fd| Ok(rustix::fs::readlinkat(&fd, "", Vec::new())?));
        match to {
            Ok(to) => reply.data(to.as_bytes()),
            Err(Failed(errno)) => reply.error(errno),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let fd = self.fd(parent);
        let gone = fd.and_then(|fd| Ok(rustix::fs::unlinkat(&fd, name, AtFlags::empty())?));
        answer(reply, &gone);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let fd = self.fd(parent);
        let gone = fd.and_then(|fd| Ok(rustix::fs::unlinkat(&fd, name, AtFlags::REMOVEDIR)?));
        answer(reply, &gone);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let renamed = self.fd(parent).and_then(|fd| {
            Ok(rustix::fs::renameat_with(&fd, name, &self.fd(to)?, new_name, flags)?)
        });
        answer(reply, &renamed);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.folder(ino).and_then(|fd| {
            rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(offset))?;
            let mut buf = [MaybeUninit::uninit(); 8 << 10];
            let mut entries = rustix::fs::RawDir::new(fd, &mut buf);
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                let (next, ino) = (entry.next_entry_cookie(), self.number(entry.ino()));
                if reply.add(ino, next, kind(entry.file_type()), name) {
                    break; // it is full
                }
            }
            Ok(())
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(Failed(errno)) => reply.error(errno),
        }
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(reply, &self.folder(ino).and_then(|fd| Ok(rustix::fs::fsync(&fd)?)));
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.fd(ino).and_then(|fd| Ok(rustix::fs::fstatvfs(&fd)?)) {
            Ok(it) => reply.statfs(
                it.f_blocks,
                it.f_bfree,
                it.f_bavail,
                it.f_files,
                it.f_ffree,
                it.f_bsize as u32,
                it.f_namemax as u32,
                it.f_frsize as u32,
            ),
            Err(Failed(errno)) => reply.error(errno),
        }
    }
}
