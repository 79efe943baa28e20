//! An extent: memory that a source reads into or writes from, while others may read it.
//!
//! A reader may read a frame while it is being filled, and then finds by the version that the bytes
//! are not valid. So no `&mut [u8]` of a frame may ever exist. Bytes move by relaxed atomic stores
//! and loads here, or by the kernel. The kernel's stores are outside of the language's model; they
//! follow the system call, and so the lock through which its caller came to the frame, on x86-64
//! and `AArch64`, which order a store after an acquire load.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
// Not from `crate::base::sync`: these view plain memory in place. The frame's version orders them.
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::base::mutant::Mutant;
use crate::base::sync::fence_before_racing_stores;
use crate::frames::copy_racing;

const WORD_BYTES: usize = size_of::<u64>();

/// A run of memory, valid for `'a`, that other threads may read. No reference to the bytes exists.
#[derive(Clone, Copy)]
pub struct Extent<'a> {
    address: NonNull<u8>,
    bytes: usize,
    memory: PhantomData<&'a [AtomicU8]>,
}

// SAFETY: a shared view of atomic bytes, `&[AtomicU8]` in all but the kernel's part.
unsafe impl Send for Extent<'_> {}
// SAFETY: as above.
unsafe impl Sync for Extent<'_> {}

impl fmt::Debug for Extent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extent({:p}, {} bytes)", self.address, self.bytes)
    }
}

impl<'a> Extent<'a> {
    /// # Safety
    /// For all of `'a`, the memory stays mapped and initialised, no Rust reference to any of it
    /// other than to atomics exists, and all other accesses to it are atomic ones of aligned words,
    /// or of bytes where the ends of the extent are not aligned to 8.
    pub(crate) unsafe fn new(address: NonNull<u8>, bytes: usize) -> Self {
        debug_assert!(isize::try_from(bytes).is_ok(), "no memory is {bytes} bytes long");
        Self { address, bytes, memory: PhantomData }
    }

    /// An extent over memory that only the caller uses.
    pub fn of(memory: &'a mut [u8]) -> Self {
        let bytes = memory.len();
        // SAFETY: the exclusive borrow lasts for 'a; the reference itself is given up here.
        unsafe { Self::new(NonNull::from(memory).cast(), bytes) }
    }

    /// An extent over memory that is only written **from**: nothing may store through it.
    pub(super) fn to_write(memory: &'a [u8]) -> Self {
        // SAFETY: the shared borrow keeps the bytes valid and unchanged for 'a. Only `write` paths
        // get this extent (it does not leave `source/`), and those never store.
        unsafe { Self::new(NonNull::from(memory).cast(), memory.len()) }
    }

    /// Where the memory begins; for handing to the kernel or a device.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The part that begins at byte `at` and is `bytes` long.
    ///
    /// # Panics
    /// If the part does not lie inside.
    #[must_use]
    pub fn part(&self, at: usize, bytes: usize) -> Extent<'a> {
        Extent { address: self.at(at, bytes), bytes, memory: PhantomData }
    }

    /// Copies `from` to byte `at` on, with relaxed atomic stores after a release fence.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn store(&self, at: usize, from: &[u8]) {
        fence_before_racing_stores(Mutant::StoreUnfenced);
        let to = self.at(at, from.len());
        let head = to.align_offset(WORD_BYTES).min(from.len());
        let (head, rest) = from.split_at(head);
        let (words, tail) = rest.as_chunks::<WORD_BYTES>();
        store_bytes(to, head);
        for (n, word) in words.iter().enumerate() {
            // SAFETY: `at` checked that all of `from` fits at `to`.
            let place = unsafe { to.add(head.len() + n * WORD_BYTES) }.cast::<u64>();
            // SAFETY: valid by the contract of `Self::new`, and aligned: the head ends at a boundary.
            let place = unsafe { AtomicU64::from_ptr(place.as_ptr()) };
            // Relaxed: the fence above and the fill's release of the frame's version order it.
            place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        // SAFETY: as above.
        let end = unsafe { to.add(from.len() - tail.len()) };
        store_bytes(end, tail);
    }

    /// Copies bytes from `at` on to all of `to`, by loads that may race with stores.
    ///
    /// # Panics
    /// If the extent has fewer bytes.
    pub fn load(&self, at: usize, to: &mut [u8]) {
        let from = self.at(at, to.len());
        // SAFETY: `at` checked that so many bytes are there; `to` is the caller's alone.
        unsafe { copy_racing(to.as_mut_ptr(), from.as_ptr(), to.len()) };
    }

    /// Panics if they do not lie inside.
    pub(crate) fn zero(&self, at: usize, bytes: usize) {
        const ZEROS: [u8; 4096] = [0; 4096];
        let part = self.part(at, bytes);
        for begin in (0..bytes).step_by(ZEROS.len()) {
            part.store(begin, &ZEROS[..ZEROS.len().min(bytes - begin)]);
        }
    }

    fn at(&self, at: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            at <= self.bytes && bytes <= self.bytes - at,
            "{bytes} bytes at {at} do not lie in an extent of {}",
            self.bytes
        );
        // SAFETY: at most one past the end, by the assertion.
        unsafe { self.address.add(at) }
    }
}

fn store_bytes(to: NonNull<u8>, from: &[u8]) {
    for (n, byte) in from.iter().enumerate() {
        // SAFETY: the caller checked that `from` fits; valid by the contract of `Extent::new`.
        let place = unsafe { AtomicU8::from_ptr(to.as_ptr().wrapping_add(n)) };
        place.store(*byte, Ordering::Relaxed); // as in `Extent::store`
    }
}

pub(super) fn total_bytes(extents: &[Extent<'_>]) -> usize {
    extents.iter().map(Extent::bytes).sum()
}

/// The parts that hold bytes `from..until`, counted over all of `extents`, in order.
pub(super) fn parts<'e>(
    extents: &'e [Extent<'e>],
    from: usize,
    until: usize,
) -> impl Iterator<Item = Extent<'e>> {
    assert!(from <= until && until <= total_bytes(extents), "{from}..{until} is not all there");
    let mut begin = 0;
    extents.iter().filter_map(move |extent| {
        let end = begin + extent.bytes();
        let (low, high) = (from.max(begin), until.min(end));
        let part = (low < high).then(|| extent.part(low - begin, high - low));
        begin = end;
        part
    })
}

/// To byte `at` on, counted over all extents.
pub(super) fn scatter(extents: &[Extent<'_>], at: usize, from: &[u8]) {
    let mut rest = from;
    for part in parts(extents, at, at + from.len()) {
        let (now, later) = rest.split_at(part.bytes());
        part.store(0, now);
        rest = later;
    }
    assert!(rest.is_empty());
}

pub(super) fn gather(extents: &[Extent<'_>], at: usize, to: &mut [u8]) {
    let bytes = to.len();
    let mut rest = to;
    for part in parts(extents, at, at + bytes) {
        let (now, later) = rest.split_at_mut(part.bytes());
        part.load(0, now);
        rest = later;
    }
    assert!(rest.is_empty());
}

pub(super) fn zero_from(extents: &[Extent<'_>], at: usize) {
    for part in parts(extents, at, total_bytes(extents)) {
        part.zero(0, part.bytes());
    }
}
