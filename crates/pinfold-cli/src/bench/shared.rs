//! Memory that the workers of a benchmark share, be they threads or processes. The only `unsafe`
//! of the benchmarks' frame is here.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use anyhow::{Context, Result};
use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, memfd_create};

/// The most workers of one sample.
pub const MAX_WORKERS: usize = 512;

/// Something on cache lines of its own: two, because the hardware fetches them in pairs.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Padded<T>(pub T);

/// What workers share. Everything in it is valid as all zeros.
#[derive(Debug)]
#[repr(C)]
pub struct Board {
    /// Workers that stand ready.
    pub ready: Padded<AtomicU32>,
    /// 0: wait, 1: work, 2: stop.
    pub phase: Padded<AtomicU32>,
    /// Operations of each worker, written at its end.
    pub operations: [Padded<AtomicU64>; MAX_WORKERS],
    /// Nanoseconds that each worker worked.
    pub worked_ns: [Padded<AtomicU64>; MAX_WORKERS],
    /// For the benchmark's own use: the word that all workers hit.
    pub word: Padded<[AtomicU64; 8]>,
}

impl Board {
    /// How many a worker has done in the last sample.
    #[cfg(feature = "bench")]
    pub fn operations_of(&self, worker: usize) -> u64 {
        self.operations[worker].0.load(std::sync::atomic::Ordering::Relaxed) // it was joined
    }
}

/// A [`Board`] in shared memory.
#[derive(Debug)]
pub struct SharedBoard {
    memory: File,
    map: MmapRaw,
}

impl SharedBoard {
    /// A new one, all zeros. Child processes inherit its descriptor.
    pub fn new() -> Result<Self> {
        let memory = memfd_create("pinfold-bench", MemfdFlags::empty())
            .context("cannot make memory to share (memfd_create)")?;
        let memory = File::from(memory);
        memory.set_len(size_of::<Board>() as u64).context("cannot size the shared memory")?;
        Self::map(memory)
    }

    /// The one whose descriptor this process inherited.
    pub fn inherited(descriptor: RawFd) -> Result<Self> {
        // SAFETY: the parent made the descriptor for this process, which uses it only here; if
        // it is not open, mapping it fails with an error.
        let memory = unsafe { File::from_raw_fd(descriptor) };
        let bytes = memory.metadata().context("the inherited descriptor is not open")?.len();
        anyhow::ensure!(
            bytes == size_of::<Board>() as u64,
            "the inherited memory is of another kind"
        );
        Self::map(memory)
    }

    fn map(memory: File) -> Result<Self> {
        let map = MmapRaw::map_raw(&memory).context("cannot map the shared memory")?;
        assert!(map.len() == size_of::<Board>());
        Ok(SharedBoard { memory, map })
    }

    /// The descriptor for children.
    pub fn descriptor(&self) -> RawFd {
        self.memory.as_raw_fd()
    }

    /// What is on it.
    #[expect(clippy::cast_ptr_alignment, reason = "a mapping starts at a page")]
    pub fn board(&self) -> &Board {
        // SAFETY: the mapping is page aligned, as long as a Board (checked in `map`), lives as
        // long as `self`, and holds only atomics, for which every bit pattern is valid.
        unsafe { &*self.map.as_mut_ptr().cast::<Board>() }
    }
}
