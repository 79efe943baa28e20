//! A file each close and each read of which waits from `hold` on until the test lets go: one of a
//! file system in user space (FUSE), which is told of each close, not of the last alone.
//!
//! While they wait, the test has the file not open: else the start of any process would wait. The
//! file system's threads share no descriptors with the test: so when the process is killed, the
//! file system ends, and with that whoever waits for it goes on.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, Request, Session,
};

const FILE: INodeNo = INodeNo(2);

/// The file's length: a page.
const BYTES: usize = 4096;

/// What is answered when the test lets go.
enum Waits {
    Close(ReplyEmpty),
    Read(ReplyData),
}

impl Waits {
    fn answer(self) {
        match self {
            Waits::Close(close) => close.ok(),
            Waits::Read(read) => read.data(&[7; BYTES]),
        }
    }
}

/// Who waits. `None`: nobody does.
type Held = Arc<Mutex<Option<Vec<Waits>>>>;

/// The mounted file system.
pub struct SlowFile {
    directory: tempfile::TempDir,
    held: Held,
    /// To let go; the answer comes when that is done.
    let_go: Sender<Sender<()>>,
    server: Option<std::thread::JoinHandle<()>>,
}

impl SlowFile {
    /// Mounts it. `None`, said aloud, where that is not possible.
    pub fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let (let_go, orders) = channel();
        let (mounted, is_mounted) = channel();
        let (path, held) = (directory.path().to_owned(), Held::default());
        let of_server = held.clone();
        let server = std::thread::spawn(move || serve(&path, &of_server, &mounted, &orders));
        if let Err(why) = is_mounted.recv().expect("it tells before it ends") {
            eprintln!("not tested: no file system in user space can be mounted here: {why}");
            return None;
        }
        Some(SlowFile { directory, held, let_go, server: Some(server) })
    }

    /// The file.
    pub fn open(&self) -> File {
        File::open(self.path()).unwrap()
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("file")
    }

    /// From now on, closes and reads wait.
    pub fn hold(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }

    /// Nothing waits any more.
    pub fn let_go(&self) {
        let (done, is_done) = channel();
        if self.let_go.send(done).is_ok() {
            let _ = is_done.recv();
        }
    }
}

impl Drop for SlowFile {
    fn drop(&mut self) {
        self.let_go();
        let path = CString::new(self.directory.path().as_os_str().as_bytes()).unwrap();
        // What is still open keeps it, and is answered until then.
        // SAFETY: the text outlives the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        let (none, _) = channel();
        self.let_go = none; // it ends
        let _ = self.server.take().expect("it is dropped once").join();
    }
}

/// Mounts it, and lets go when it is told to.
fn serve(
    path: &Path,
    held: &Held,
    mounted: &Sender<std::io::Result<()>>,
    orders: &Receiver<Sender<()>>,
) {
    // SAFETY: from here on this thread, and those that it starts, use no descriptor of before.
    let apart = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_UNSHARE.cast_signed()) };
    assert_eq!(apart, 0, "{}", std::io::Error::last_os_error());
    let session = Session::new(Served(held.clone()), path, &Config::default());
    let session = match session.and_then(Session::spawn) {
        Ok(session) => session,
        Err(why) => return mounted.send(Err(why)).expect("the test waits for it"),
    };
    mounted.send(Ok(())).expect("the same");
    for done in orders {
        held.lock().unwrap().take().into_iter().flatten().for_each(Waits::answer);
        let _ = done.send(());
    }
    session.join().unwrap();
}

/// The file system's side.
struct Served(Held);

impl Served {
    fn wait(&self, waits: Waits) {
        match &mut *self.0.lock().unwrap() {
            Some(held) => held.push(waits),
            None => waits.answer(),
        }
    }
}

fn attr(ino: INodeNo) -> FileAttr {
    let kind = if ino == FILE { FileType::RegularFile } else { FileType::Directory };
    FileAttr {
        ino,
        size: BYTES as u64,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.entry(&Duration::ZERO, &attr(FILE), Generation(0));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.wait(Waits::Close(reply));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.wait(Waits::Read(reply));
    }
}
