//! A file system (FUSE) whose reads are answered as a test says: late, never, or with an error.
//!
//! It runs in threads that share no descriptors with the test: so when the process is killed, the
//! connection ends with it, and with that the reads that wait.

use std::ffi::{CString, OsStr};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request, Session,
};

/// The inode number of the first file; the root's is 1.
const FIRST: u64 = 2;

/// A read that came to the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The number of the file.
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// Past the kernel's page cache.
    pub(crate) direct: bool,
}

/// What comes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Its bytes: see [`byte_of`].
    Bytes,
    Error(i32),
    /// Nothing, until [`OddFiles::let_go`].
    Hold,
}

/// The mounted file system. Its drop waits until all files of it are closed.
pub(crate) struct OddFiles {
    directory: tempfile::TempDir,
    shared: Arc<Shared>,
    tell: Sender<Order>,
    server: Option<std::thread::JoinHandle<()>>,
}

/// What the threads of the file system are to do.
enum Order {
    /// To answer the reads that are held, and to tell when it is done.
    LetGo(Sender<()>),
    End,
}

type Script = dyn Fn(&Asked) -> Answer + Send + Sync;

struct Shared {
    files_bytes: Mutex<Vec<u64>>,
    /// After so many questions for its attributes, a file has so many bytes.
    grows: Mutex<Option<(u32, usize, u64)>>,
    script: Mutex<Box<Script>>,
    asked: Mutex<Vec<Asked>>,
    held: Mutex<Vec<(Asked, ReplyData)>>,
}

/// The byte at `offset` of a file.
pub(crate) fn byte_of(file: usize, offset: u64) -> u8 {
    (offset / 4096 * 7 + offset % 4096 + file as u64) as u8
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl OddFiles {
    /// Mounts files of so many bytes. `None`, said aloud, where that is not possible.
    pub(crate) fn mount(
        files_bytes: &[u64],
        script: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let shared = Arc::new(Shared {
            files_bytes: Mutex::new(files_bytes.to_vec()),
            grows: Mutex::default(),
            script: Mutex::new(Box::new(script)),
            asked: Mutex::default(),
            held: Mutex::default(),
        });
        let (tell, orders) = channel();
        let (mounted, is_mounted) = channel();
        let (path, of_server) = (directory.path().to_owned(), shared.clone());
        let server = move || serve(&path, &of_server, &mounted, &orders);
        let server = std::thread::Builder::new().name("odd-files".into()).spawn(server).unwrap();
        if let Err(why) = is_mounted.recv().expect("it tells before it ends") {
            eprintln!("not tested: no file system in user space can be mounted here: {why}");
            return None;
        }
        Some(OddFiles { directory, shared, tell, server: Some(server) })
    }

    /// The path of the file of that number.
    pub(crate) fn path(&self, file: usize) -> PathBuf {
        self.directory.path().join(file.to_string())
    }

    /// All reads that have come.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.asked).clone()
    }

    /// The file has so many bytes from now on.
    pub(crate) fn set_len(&self, file: usize, bytes: u64) {
        lock(&self.shared.files_bytes)[file] = bytes;
    }

    /// The file has so many bytes once its attributes were asked for so often.
    pub(crate) fn set_len_after(&self, questions: u32, file: usize, bytes: u64) {
        *lock(&self.shared.grows) = Some((questions, file, bytes));
    }

    /// From now on, reads are answered like this.
    pub(crate) fn answer(&self, script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) {
        *lock(&self.shared.script) = Box::new(script);
    }

    /// Answers the reads that are held, with their bytes.
    pub(crate) fn let_go(&self) {
        let (done, is_done) = channel();
        if self.tell.send(Order::LetGo(done)).is_ok() {
            let _ = is_done.recv();
        }
    }
}

impl Drop for OddFiles {
    fn drop(&mut self) {
        self.answer(|_| Answer::Bytes);
        self.let_go();
        let path = CString::new(self.directory.path().to_str().unwrap()).unwrap();
        // What is still open keeps it, and is answered until then.
        // SAFETY: the text outlives the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        let _ = self.tell.send(Order::End);
        let _ = self.server.take().expect("it is dropped once").join();
    }
}

/// Mounts it, does what it is told, and unmounts it.
fn serve(
    path: &std::path::Path,
    shared: &Arc<Shared>,
    mounted: &Sender<std::io::Result<()>>,
    orders: &Receiver<Order>,
) {
    // SAFETY: from here on this thread, and those that it starts, use no descriptor of before.
    let apart = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_UNSHARE.cast_signed()) };
    assert_eq!(apart, 0, "{}", std::io::Error::last_os_error());
    let session =
        Session::new(Served(shared.clone()), path, &Config::default()).and_then(Session::spawn);
    let session = match session {
        Ok(session) => session,
        Err(why) => return mounted.send(Err(why)).expect("the test waits for it"),
    };
    mounted.send(Ok(())).expect("the same");
    for order in orders {
        match order {
            Order::LetGo(done) => {
                let held = std::mem::take(&mut *lock(&shared.held));
                for (asked, reply) in held {
                    reply.data(&bytes_of(shared, &asked));
                }
                let _ = done.send(());
            }
            Order::End => break,
        }
    }
    session.join().unwrap();
}

fn bytes_of(shared: &Shared, asked: &Asked) -> Vec<u8> {
    let end = lock(&shared.files_bytes)[asked.file].min(asked.offset + asked.bytes as u64);
    (asked.offset..end).map(|at| byte_of(asked.file, at)).collect()
}

/// The file system's side.
struct Served(Arc<Shared>);

impl Served {
    fn attr(&self, ino: u64) -> Option<FileAttr> {
        let file = ino.checked_sub(FIRST).map(|file| file as usize);
        let mut grows = lock(&self.0.grows);
        match &mut *grows {
            Some((0, which, bytes)) => {
                lock(&self.0.files_bytes)[*which] = *bytes;
                *grows = None;
            }
            Some((questions, which, _)) if file == Some(*which) => *questions -= 1,
            _ => {}
        }
        drop(grows);
        let (kind, size) = match file {
            None => (FileType::Directory, 0),
            Some(file) => (FileType::RegularFile, *lock(&self.0.files_bytes).get(file)?),
        };
        // Somebody is just writing to them.
        let time = SystemTime::now();
        Some(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        })
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let file: Option<u64> = name.to_str().and_then(|name| name.parse().ok());
        match file.and_then(|file| self.attr(file + FIRST)) {
            Some(attr) => reply.entry(&Duration::ZERO, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino.into()) {
            Some(attr) => reply.attr(&Duration::ZERO, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (file, bytes) = ((u64::from(ino) - FIRST) as usize, size as usize);
        let direct = flags.0 & libc::O_DIRECT != 0;
        let asked = Asked { file, offset, bytes, direct };
        lock(&self.0.asked).push(asked);
        let answer = lock(&self.0.script)(&asked);
        match answer {
            Answer::Bytes => reply.data(&bytes_of(&self.0, &asked)),
            Answer::Error(errno) => reply.error(Errno::from_i32(errno)),
            Answer::Hold => lock(&self.0.held).push((asked, reply)),
        }
    }
}
