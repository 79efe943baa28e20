//! A file each close of which waits from `hold` on until the test lets go: one of a file system in user space
//! (FUSE), which is told of each close, not of the last alone.
//!
//! While closes wait, the test has the file not open: else the start of any process would wait.
//! The file system's threads share no descriptors with the test: so when the process is killed, the
//! file system ends, and with that the closes that wait.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyOpen, Request, Session,
};

const FILE: INodeNo = INodeNo(2);

/// The closes that wait. `None`: none does.
type Held = Arc<Mutex<Option<Vec<ReplyEmpty>>>>;

/// The mounted file system.
pub struct SlowClose {
    directory: tempfile::TempDir,
    held: Held,
    /// To let go; the answer comes when that is done.
    let_go: Sender<Sender<()>>,
    server: Option<std::thread::JoinHandle<()>>,
}

impl SlowClose {
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
        Some(SlowClose { directory, held, let_go, server: Some(server) })
    }

    /// The file.
    pub fn open(&self) -> File {
        File::open(self.directory.path().join("file")).unwrap()
    }

    /// From now on, closes wait.
    pub fn hold(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }

    /// No close waits any more.
    pub fn let_go(&self) {
        let (done, is_done) = channel();
        if self.let_go.send(done).is_ok() {
            let _ = is_done.recv();
        }
    }
}

impl Drop for SlowClose {
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
        for close in held.lock().unwrap().take().into_iter().flatten() {
            close.ok();
        }
        let _ = done.send(());
    }
    session.join().unwrap();
}

/// The file system's side.
struct Served(Held);

fn attr(ino: INodeNo) -> FileAttr {
    let kind = if ino == FILE { FileType::RegularFile } else { FileType::Directory };
    FileAttr {
        ino,
        size: 0,
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
        match &mut *self.0.lock().unwrap() {
            Some(held) => held.push(reply),
            None => reply.ok(),
        }
    }
}
