//! Files read and written through the kernel's page cache, where direct I/O is refused.
//!
//! The bytes are then cached twice. What is done about it: at opening, `open.rs` tells the
//! kernel that access is random, so that it reads no further than it is asked (this cache reads
//! ahead itself). What is not done: dropping each range from the kernel's cache after it was read.
//! Other programs may want it there; on tmpfs it is the only copy; and it costs a system call per
//! read. A program that wants it says [`Hint::DontNeed`], which is passed on.
//!
//! Called by: `open.rs`, and then through `Source`.

use std::borrow::Cow;
use std::io;
use std::ops::Range;

use rustix::fs::Advice;

use super::descriptor::Descriptor;
use super::{Extent, Hint, Source};

/// A file behind the kernel's page cache.
#[derive(Debug)]
pub(super) struct Buffered {
    file: Descriptor,
}

impl Buffered {
    pub(super) fn new(file: Descriptor) -> Self {
        assert_eq!(file.alignment, 1);
        Self { file }
    }
}

impl Source for Buffered {
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

    fn advise(&self, range: Range<u64>, hint: Hint) -> io::Result<()> {
        let advice = match hint {
            // This cache reads ahead by itself; twice would only fill the kernel's cache.
            Hint::Sequential | Hint::Random => return Ok(()),
            Hint::WillNeed => Advice::WillNeed,
            Hint::DontNeed => Advice::DontNeed,
        };
        self.file.advise(range, advice)
    }

    fn kind(&self) -> Cow<'static, str> {
        "buffered".into()
    }
}
