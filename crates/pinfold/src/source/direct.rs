//! Files and block devices read and written past the kernel's page cache (`O_DIRECT`).
//!
//! A read that somebody waits for is a plain `preadv`; reads ahead go through the cache's ring
//! (`ring.rs`), or the worker threads where there is none. Measured on two cores, random 4 KiB:
//! a waited read through the ring reaches 0.58 (32 threads) to 0.80 of `preadv`'s rate, for its
//! two wake-ups; `preadv` from here, 0.98 to 1.07, which is noise (`tests/measure.rs`).
//!
//! The end of a file that is not a whole number of blocks: a read of the whole last page returns
//! the bytes there are; what the device left in memory beyond is zeroed by `request::settle`,
//! for every source alike. A write must be whole blocks, so writing the last page makes the file
//! longer; whoever writes it calls `set_len` afterwards.
//!
//! Called by: `open.rs`, and then through `Source`.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use super::descriptor::Descriptor;
use super::engine::Engine;
use super::ring::Ring;
use super::{Extent, ReadRequest, Source, Start};

/// A file opened with `O_DIRECT`.
#[derive(Debug)]
pub(super) struct Direct {
    file: Arc<Descriptor>,
    ring: Result<Arc<Ring>, String>,
}

impl Direct {
    /// Reads ahead through `engine`'s ring if it has one.
    pub(super) fn new(file: Descriptor, engine: &Engine) -> Self {
        assert!(file.alignment.is_power_of_two());
        Self { file: Arc::new(file), ring: engine.ring() }
    }
}

impl Source for Direct {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read(offset, &[Extent::of(buf)])
    }

    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        self.file.read(offset, extents)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.file.write(offset, &[Extent::to_write(buf)])
    }

    fn write_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        self.file.write(offset, extents)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.file.len_bytes()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.file.sync(data_only)
    }

    fn alignment(&self) -> usize {
        self.file.alignment
    }

    fn kind(&self) -> Cow<'static, str> {
        match &self.ring {
            Ok(_) => "direct (io_uring)".into(),
            Err(why) => format!("direct (worker threads; no io_uring: {why})").into(),
        }
    }

    fn start_reads(&self, batch: &mut Vec<ReadRequest>) -> Start {
        match &self.ring {
            Ok(ring) => ring.start(&self.file, batch),
            Err(_) => Start::Unsupported,
        }
    }
}
