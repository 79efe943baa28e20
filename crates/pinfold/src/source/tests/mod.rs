//! Tests of the sources on real files, and what they share. None needs root or a device; where
//! the file system of the temporary directory has no direct I/O, those for it say so and pass.

mod asynchronous;
mod faults;
mod files;
mod measure;
mod opening;
mod own;
mod refused;
mod stopping;
#[cfg(not(shuttle))]
mod woken;

use std::alloc::Layout;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use super::ring::Ring;
use super::{
    Access, Backing, Engine, EngineOptions, Extent, OpenError, Opened, Request, Source, find,
};

/// Opens a file as the cache does.
pub(super) fn open(
    path: &Path,
    access: Access,
    direct: Option<bool>,
    engine: &Engine,
) -> Result<Opened, OpenError> {
    find(path, access)?.open(path, direct, engine)
}

pub(super) const PAGE: usize = 4096;

/// Byte `n` of every test file. Differs between any two pages and any two sectors.
pub(super) fn byte_at(n: u64) -> u8 {
    let word = (n / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> 29).to_le_bytes()[(n % 8) as usize] ^ (n as u8)
}

pub(super) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(byte_at).collect()
}

/// Numbers that look random and are the same in each run.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Page-aligned memory that can be lent to a request: not a `Vec`, of which moves and drops
/// would make references while the kernel writes.
pub(super) struct Lent {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: owned memory.
unsafe impl Send for Lent {}

impl Lent {
    pub(super) fn filled(bytes: usize, with: u8) -> Self {
        let layout = Layout::from_size_align(bytes, PAGE).unwrap();
        // SAFETY: tests ask for at least one byte.
        let address = NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap();
        // SAFETY: just allocated, `bytes` long.
        unsafe { address.write_bytes(with, bytes) };
        Self { address, layout }
    }

    pub(super) fn extent(&self) -> Extent<'static> {
        // SAFETY: the tests keep `self` until the last use, and take no slice before that.
        unsafe { Extent::new(self.address, self.layout.size()) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: initialised when made; the tests call this when all writes have ended.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `filled`.
        unsafe { std::alloc::dealloc(self.address.as_ptr(), self.layout) }
    }
}

/// What a completion sends: which request, how it ended, and its memory.
pub(super) type Ended = (u64, io::Result<usize>, Lent);

/// A request for `bytes` at `offset` that sends itself to `to` when it ends, in so many extents.
pub(super) fn request(offset: u64, bytes: usize, extents: usize, to: &Sender<Ended>) -> Request {
    request_into(Lent::filled(bytes, 0xaa), offset, extents, to)
}

/// The same, into memory that is there already.
pub(super) fn request_into(lent: Lent, offset: u64, extents: usize, to: &Sender<Ended>) -> Request {
    let whole = lent.extent();
    let each = whole.bytes() / extents;
    assert_eq!(each * extents, whole.bytes());
    let parts = (0..extents).map(|n| whole.part(n * each, each)).collect();
    let to = to.clone();
    let tell = move |result| to.send((offset, result, lent)).unwrap();
    // SAFETY: the completion owns the memory, so it lives until that is called.
    unsafe { Request::read(offset, parts, Box::new(tell)) }
}

/// Checks a read of `got` bytes at `offset` of a pattern file of `len` bytes.
pub(super) fn check(offset: u64, got: usize, memory: &[u8], len: u64) {
    let expected = len.saturating_sub(offset).min(memory.len() as u64);
    assert_eq!(got as u64, expected, "count of a read at {offset}");
    for (n, byte) in memory.iter().enumerate() {
        let expected = if n < got { byte_at(offset + n as u64) } else { 0 };
        assert_eq!(*byte, expected, "byte {n} of a read at {offset} that got {got}");
    }
}

/// Writes through a request, and waits for its end.
pub(super) fn write(backing: &Backing, offset: u64, extents: &[Extent<'static>]) -> io::Result<()> {
    let (tell, told) = std::sync::mpsc::channel();
    let tell = move |result| tell.send(result).unwrap();
    // SAFETY: the callers keep the memory for longer than this call, which waits for the end.
    let request = unsafe { Request::write(offset, extents.to_vec(), Box::new(tell)) };
    backing.submit(&mut vec![request]);
    told.recv().unwrap().map(drop)
}

pub(super) fn file_of(directory: &Path, bytes: usize) -> PathBuf {
    let path = directory.join(format!("pattern-{bytes}"));
    std::fs::write(&path, pattern(bytes)).unwrap();
    path
}

pub(super) fn ring_engine() -> Arc<Engine> {
    Arc::new(Engine::new(EngineOptions::default()))
}

pub(super) fn pool_engine() -> Arc<Engine> {
    Arc::new(Engine::new(EngineOptions { ring_depth: 0, ..EngineOptions::default() }))
}

pub(super) fn backing(path: &Path, direct: Option<bool>, engine: &Arc<Engine>) -> Backing {
    let opened = open(path, Access::ReadWrite, direct, engine).unwrap();
    Backing::of_file(opened, Arc::clone(engine))
}

/// The file with direct I/O, or None, said aloud, where its file system has none.
pub(super) fn direct(path: &Path, engine: &Arc<Engine>) -> Option<Backing> {
    match open(path, Access::ReadWrite, Some(true), engine) {
        Ok(opened) => Some(Backing::of_file(opened, Arc::clone(engine))),
        Err(why @ OpenError::NoDirect { .. }) => {
            eprintln!("not tested: {why}");
            None
        }
        Err(cause) => panic!("{cause}"),
    }
}

/// A source that implements only what it must, for the trait's defaults.
#[derive(Debug)]
pub(super) struct Plain<S>(pub(super) S);

impl<S: Source> Source for Plain<S> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, buf)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "plain".into()
    }
}

/// A source of which each read ends as `end` says, given its number from 1, its offset and how the
/// read inside ended.
pub(super) struct Spoiled<F> {
    inner: Arc<dyn Source>,
    end: F,
    reads: AtomicU64,
}

impl<F> Spoiled<F>
where
    F: Fn(u64, u64, io::Result<usize>) -> io::Result<usize> + Send + Sync,
{
    pub(super) fn new(inner: Arc<dyn Source>, end: F) -> Self {
        Self { inner, end, reads: AtomicU64::new(0) }
    }
}

impl<F> std::fmt::Debug for Spoiled<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "spoiled {:?}", self.inner)
    }
}

impl<F> Source for Spoiled<F>
where
    F: Fn(u64, u64, io::Result<usize>) -> io::Result<usize> + Send + Sync,
{
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.read_extents_at(offset, &[Extent::of(buf)])
    }

    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        // Relaxed: it only has to count.
        let call = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        (self.end)(call, offset, self.inner.read_extents_at(offset, extents))
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.inner.len_bytes()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        format!("spoiled {}", self.inner.kind()).into()
    }
}
