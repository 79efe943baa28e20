//! Another process, which writes to files that readers open, refresh and read.
//!
//! Belongs here: that process, what it does to files, and what they have then. Does not: the
//! readers (`follower.rs`).
//!
//! A file goes through *versions*. What it has in each, cell by cell of 64 bytes, follows from the
//! seed alone, so both sides know it. The process says in shared memory when it begins a version
//! and when it has ended it. A reader looks there before it opens or refreshes a file, and after it
//! has read all of it: if no version was begun meanwhile, it must have read the one that had ended,
//! byte for byte. If one was, it may have read anything; the next reader finds out whether that
//! stays.
//!
//! One file is changed more often, and read by a source of the stress's own, which may keep what it
//! has read for longer than a version lasts: so a refresh often meets reads on their way. Of it the
//! length alone is known, so each version has another. One reader at a time reads it; others refresh
//! it meanwhile.

use std::borrow::Cow;
use std::ffi::CString;
use std::fs::File as StdFile;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use std::{io, ptr};

use pinfold::source::Source;
use pinfold::{Cache, File, Hint};

use super::options::Options;

pub(super) const FILES: usize = 9;
/// The one whose reads may last.
pub(super) const SLOW: usize = FILES - 1;
const CELL: usize = 64;
/// The longest file: twice what `refresh` compares at most at each end of one that has grown.
pub(super) const BYTES_MAX: usize = 128 << 10;
const CELLS_MAX: usize = BYTES_MAX / CELL;
/// Every so many versions a file is written anew, so that a version follows from few others.
const ANEW: u32 = 8;

/// Longer than a tick of the kernel's clock: changes of one file have different times.
const APART: Duration = Duration::from_millis(12);
/// A change that takes longer is followed by another time of change, as a write that is under way
/// for long may be missed (`Cache::open`, "What others have written").
const QUICK: Duration = Duration::from_millis(5);

/// What the two processes share.
#[derive(Debug)]
#[repr(C)]
struct Board {
    files: [FileState; FILES],
}

#[derive(Debug)]
#[repr(C)]
struct FileState {
    begun: AtomicU32,
    ended: AtomicU32,
    /// How often the version was read and found right.
    checked: AtomicU32,
}

/// What a file has in a version: of each cell, the version that wrote it.
struct Cells {
    of: [u32; CELLS_MAX],
    count: usize,
}

/// What is done to make a version of the one before.
enum Change {
    Append(usize),
    Cut(usize),
    Overwrite(usize, usize),
    Replace(usize),
    DeleteAndMake(usize),
    Rewrite(usize),
    /// Cut, and then longer than before.
    Regrow(usize, usize),
}

fn hash(seed: u64, file: usize, version: u32) -> u64 {
    let mut word = seed ^ (file as u64) << 40 ^ u64::from(version);
    for _ in 0..3 {
        word = (word ^ word >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    word
}

impl Change {
    /// The change that makes `version` of a file that had `count` cells before.
    fn to(seed: u64, file: usize, version: u32, count: usize) -> Self {
        let word = hash(seed, file, version);
        let (what, one, two) = (word % 7, (word >> 8) as usize, (word >> 32) as usize);
        let some = 1 + one % CELLS_MAX;
        match what {
            // The factor is odd: as many versions as lengths.
            _ if file == SLOW => Change::Rewrite(1 + version as usize * 61 % CELLS_MAX),
            _ if version.is_multiple_of(ANEW) => Change::Rewrite(some),
            0 => Change::Append((1 + one % 200).min(CELLS_MAX - count)),
            1 => Change::Cut(one % (count + 1)),
            2 if count > 0 => Change::Overwrite(one % count, 1 + two % (count - one % count)),
            3 => Change::Replace(some),
            4 => Change::DeleteAndMake(some),
            5 => Change::Regrow(two % (count + 1), count + (CELLS_MAX - count) / 2),
            _ => Change::Rewrite(some),
        }
    }
}

impl Cells {
    fn of_version(seed: u64, file: usize, version: u32) -> Self {
        let mut cells = Cells { of: [0; CELLS_MAX], count: 0 };
        for version in version - version % ANEW..=version {
            let count = cells.count;
            match Change::to(seed, file, version, count) {
                Change::Append(more) => cells.set(count, count + more, version),
                Change::Cut(left) => cells.count = left,
                Change::Overwrite(at, some) => cells.of[at..at + some].fill(version),
                Change::Replace(all) | Change::DeleteAndMake(all) | Change::Rewrite(all) => {
                    cells.set(0, all, version);
                }
                Change::Regrow(left, all) => cells.set(left.min(all), all, version),
            }
        }
        cells
    }

    /// The cells from `from` on are of this version, up to the new end.
    fn set(&mut self, from: usize, end: usize, version: u32) {
        self.of[from..end].fill(version);
        self.count = end;
    }
}

/// A cell's bytes: which it is.
fn cell(file: usize, version: u32, at: usize) -> [u8; CELL] {
    let words = [file as u32, version, at as u32, !version];
    let mut bytes = [0; CELL];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words.iter().cycle()) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The other process, and the files.
#[derive(Debug)]
pub(super) struct Foreign {
    board: &'static Board,
    paths: Vec<PathBuf>,
    child: libc::pid_t,
    seed: u64,
    slow: OnceLock<File>,
    reads_slow: Mutex<()>,
}

/// Reads a file, and may take long to bring what it has read.
#[derive(Debug)]
struct Slow {
    file: StdFile,
    reads: AtomicU64,
}

impl Source for Slow {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        // Ends: each turn reads a byte, or is the last.
        while got < buf.len() {
            match self.file.read_at(&mut buf[got..], offset + got as u64)? {
                0 => break,
                more => got += more,
            }
        }
        let word = hash(self.reads.fetch_add(1, Ordering::Relaxed), SLOW, 0);
        if word.is_multiple_of(2) {
            std::thread::sleep(2 * APART * (word >> 8 & 0xff) as u32 / 0xff);
        }
        Ok(got)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn kind(&self) -> Cow<'static, str> {
        "slow".into()
    }
}

impl Foreign {
    /// Starts the process, which makes the files in the run's directory.
    pub(super) fn new(options: &Options) -> io::Result<Self> {
        let bytes = size_of::<Board>();
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, which nobody else has.
        let board = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if board == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zeroed, which is a board; it is never unmapped, as it is small.
        let board: &'static Board = unsafe { &*board.cast() };
        let paths: Vec<_> = (0..FILES).map(|n| options.dir.join(format!("foreign-{n}"))).collect();
        let name = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes());
        let names = paths.iter().map(|path| name(path)).collect::<Result<Vec<_>, _>>();
        let names = names.map_err(io::Error::other)?;
        let beside = name(&options.dir.join("foreign-new")).map_err(io::Error::other)?;
        let seed = options.seed;
        // What the child writes from. It allocates nothing itself.
        let mut buffer = vec![0; CELLS_MAX * CELL];
        // SAFETY: the child calls what `write_for_ever` does, which allocates nothing and takes no
        // lock.
        let child = unsafe { libc::fork() };
        match child {
            0 => write_for_ever(board, &names, &beside, &mut buffer, seed),
            1.. => Ok(Foreign {
                board,
                paths,
                child,
                seed,
                slow: OnceLock::new(),
                reads_slow: Mutex::default(),
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn path(&self, file: usize) -> &Path {
        &self.paths[file]
    }

    /// Refreshes the file [`SLOW`], which is there, and reads all of it, unless somebody does.
    pub(super) fn read_slow(
        &self,
        cache: &Cache,
        buf: &mut [u8],
    ) -> pinfold::Result<Option<usize>> {
        let file = self.slow(cache)?;
        file.refresh()?;
        let Ok(_turn) = self.reads_slow.try_lock() else { return Ok(None) };
        file.read_at(buf, 0).map(Some)
    }

    /// All get the same handle.
    fn slow(&self, cache: &Cache) -> pinfold::Result<&File> {
        if self.slow.get().is_none() {
            let file = StdFile::open(&self.paths[SLOW]).expect("it was made");
            let file = cache.attach("slow", Arc::new(Slow { file, reads: AtomicU64::new(0) }))?;
            // All of a version is one read.
            file.advise(.., Hint::Random)?;
            let _ = self.slow.set(file);
        }
        Ok(self.slow.get().expect("set"))
    }

    /// The version of the file that was begun last.
    pub(super) fn begun(&self, file: usize) -> u32 {
        // SeqCst: pairs with the store in `write_for_ever`.
        self.board.files[file].begun.load(Ordering::SeqCst)
    }

    /// The version of the file that was ended last; 0 before the first.
    pub(super) fn ended(&self, file: usize) -> u32 {
        // SeqCst: pairs with the store in `write_for_ever`.
        self.board.files[file].ended.load(Ordering::SeqCst)
    }

    /// Whether these are the bytes of this version of the file.
    pub(super) fn check(&self, file: usize, version: u32, bytes: &[u8]) -> Result<(), String> {
        check(self.seed, file, version, bytes)?;
        // Release: pairs with the acquire in `write_for_ever`.
        self.board.files[file].checked.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// How often a file was changed.
    pub(super) fn changes(&self) -> u64 {
        let all = self.board.files.iter();
        all.map(|file| u64::from(file.ended.load(Ordering::Relaxed))).sum()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: a child of this process that was not waited for, so the number is its own.
        unsafe { libc::kill(self.child, libc::SIGKILL) };
        // SAFETY: as above.
        unsafe { libc::waitpid(self.child, ptr::null_mut(), 0) };
    }
}

/// The process's life. It ends with the parent's thread that made it.
fn write_for_ever(
    board: &Board,
    names: &[CString],
    beside: &CString,
    buffer: &mut [u8],
    seed: u64,
) -> ! {
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut last = [Instant::now(); FILES];
    let mut word = seed;
    for turn in 0_u64.. {
        word = hash(word, 1, turn as u32);
        let file = match turn {
            _ if turn < FILES as u64 => turn as usize,
            _ if turn.is_multiple_of(2) => SLOW,
            _ => word as usize % FILES,
        };
        let state = &board.files[file];
        // A version that nobody has checked stays for a while.
        for _ in 0..200 {
            // Acquire: pairs with the release in `check`. A hint: nothing depends on it.
            let is_checked = file == SLOW || state.checked.load(Ordering::Acquire) > 0;
            if is_checked && last[file].elapsed() > APART {
                break;
            }
            nap(100_000);
        }
        while last[file].elapsed() < APART && turn >= FILES as u64 {
            nap(1_000_000);
        }
        let before = state.ended.load(Ordering::Relaxed); // this process's own
        let version = if turn < FILES as u64 { ANEW } else { before + 1 };
        state.checked.store(0, Ordering::Relaxed); // a hint
        // SeqCst: a reader that sees a byte of this version sees it begun: system calls are
        // between.
        state.begun.store(version, Ordering::SeqCst);
        let since = Instant::now();
        change(&names[file], beside, buffer, seed, file, version);
        if since.elapsed() > QUICK {
            // SAFETY: a path of this process; no times means now.
            unsafe { libc::utimensat(libc::AT_FDCWD, names[file].as_ptr(), ptr::null(), 0) };
        }
        last[file] = Instant::now();
        // SeqCst: pairs with the load in `ended`.
        state.ended.store(version, Ordering::SeqCst);
        nap(word >> 8 & 0x7_ffff);
    }
    unreachable!("turns are many")
}

fn nap(ns: u64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns.cast_signed() };
    // SAFETY: a struct of this function's.
    unsafe { libc::nanosleep(&raw const time, ptr::null_mut()) };
}

/// Ends the process, with a number that says which call failed.
fn or_end(result: libc::c_int, call: i32) -> libc::c_int {
    if result < 0 {
        // SAFETY: ends the process.
        unsafe { libc::_exit(call) };
    }
    result
}

fn change(
    name: &CString,
    beside: &CString,
    buffer: &mut [u8],
    seed: u64,
    file: usize,
    version: u32,
) {
    let count = if version.is_multiple_of(ANEW) {
        0
    } else {
        Cells::of_version(seed, file, version - 1).count
    };
    let mut put = |path: &CString, flags, cut: Option<usize>, range: std::ops::Range<usize>| {
        for at in range.clone() {
            buffer[at * CELL..][..CELL].copy_from_slice(&cell(file, version, at));
        }
        let flags = libc::O_WRONLY | libc::O_CLOEXEC | flags;
        // SAFETY: a path of this process.
        let fd = or_end(unsafe { libc::open(path.as_ptr(), flags, 0o644) }, 11);
        if let Some(left) = cut {
            // SAFETY: no memory is passed.
            or_end(unsafe { libc::ftruncate(fd, (left * CELL).cast_signed() as libc::off_t) }, 12);
        }
        let from = range.start * CELL;
        let bytes = &buffer[from..][..range.len() * CELL];
        // SAFETY: the slice's own bytes.
        let wrote = unsafe {
            libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), from.cast_signed() as libc::off_t)
        };
        or_end(if wrote == bytes.len().cast_signed() { 0 } else { -1 }, 13);
        // SAFETY: its own descriptor.
        unsafe { libc::close(fd) };
    };
    match Change::to(seed, file, version, count) {
        Change::Append(more) => put(name, 0, None, count..count + more),
        Change::Cut(left) => put(name, 0, Some(left), left..left),
        Change::Overwrite(at, some) => put(name, 0, None, at..at + some),
        Change::Replace(all) => {
            put(beside, libc::O_CREAT | libc::O_TRUNC, None, 0..all);
            // SAFETY: two paths of this process.
            or_end(unsafe { libc::rename(beside.as_ptr(), name.as_ptr()) }, 14);
        }
        Change::DeleteAndMake(all) => {
            // SAFETY: a path of this process.
            or_end(unsafe { libc::unlink(name.as_ptr()) }, 15);
            put(name, libc::O_CREAT, None, 0..all);
        }
        Change::Rewrite(all) => put(name, libc::O_CREAT | libc::O_TRUNC, None, 0..all),
        Change::Regrow(left, all) => put(name, 0, Some(left.min(all)), left.min(all)..all),
    }
}

/// Whether the bytes are those of this version.
fn check(seed: u64, file: usize, version: u32, bytes: &[u8]) -> Result<(), String> {
    let cells = Cells::of_version(seed, file, version);
    if bytes.len() != cells.count * CELL {
        return Err(format!(
            "file {file} has {} bytes, and got {} were read",
            cells.count * CELL,
            bytes.len()
        ));
    }
    for (at, (bytes, &of)) in bytes.chunks_exact(CELL).zip(&cells.of).enumerate() {
        if bytes != cell(file, of, at) {
            let word = |n: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[4 * n + byte]));
            return Err(format!(
                "wrong byte at cell {at} of {} of file {file}: it is of version {of}, and read were \
                 cell {} of file {} of version {}",
                cells.count,
                word(2),
                word(0),
                word(1)
            ));
        }
    }
    Ok(())
}
