//! Files and block devices: past the kernel's page cache (`O_DIRECT`), or through it where direct
//! I/O is refused. A direct write must be whole blocks; the last page of a file, if it is not whole, is
//! written through the kernel's page cache (`Descriptor::write_tail`).
//!
//! What is buffered is cached twice. A program that does not want that says [`Hint::DontNeed`].

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use rustix::fs::Advice;

use super::descriptor::{Descriptor, advise};
use super::request::Direction;
use super::ring::Ring;
use super::shared::shared_bytes;
use super::{Extent, Hint, Request, Source, Start};

pub(super) const BUFFERED: &str = "buffered";

#[derive(Debug)]
pub(super) struct Disk {
    file: Arc<Descriptor>,
    way: Way,
}

#[derive(Debug)]
pub(super) enum Way {
    /// Reads ahead go through the ring, if there is one; else the reason is kept.
    Direct(Result<Arc<Ring>, String>),
    Buffered,
}

impl Disk {
    pub(super) fn new(file: Arc<Descriptor>, way: Way) -> Self {
        assert!(file.alignment.is_power_of_two());
        Self { file, way }
    }

    /// Itself included.
    pub(super) fn heap_bytes() -> usize {
        shared_bytes(size_of::<Self>()) + shared_bytes(size_of::<Descriptor>())
    }
}

impl Source for Disk {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.read_extents_at(offset, &[Extent::of(buf)])
    }

    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        self.file.transfer(Direction::Read, offset, extents)
    }

    fn is_writable(&self) -> bool {
        self.file.writable
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_extents_at(offset, &[Extent::to_write(buf)])
    }

    fn write_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        self.file.transfer(Direction::Write, offset, extents).map(drop)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.file.len_bytes()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.file.punch_hole(range)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.file.sync(data_only)
    }

    fn advise(&self, range: Range<u64>, hint: Hint) -> io::Result<()> {
        match (&self.way, hint) {
            (_, Hint::DontNeed) => self.file.forget(range),
            (Way::Buffered, Hint::WillNeed) => advise(&self.file.fd, range, Advice::WillNeed)?,
            // This cache reads ahead by itself.
            (Way::Direct(_), _) | (_, Hint::Sequential | Hint::Random) => {}
        }
        Ok(())
    }

    fn alignment(&self) -> usize {
        self.file.alignment
    }

    fn kind(&self) -> Cow<'static, str> {
        if let Some(errno) = self.file.refused() {
            return format!("{BUFFERED} (direct I/O was refused: {errno})").into();
        }
        let why = match &self.way {
            Way::Buffered => return BUFFERED.into(),
            Way::Direct(Ok(ring)) => ring.refused(),
            Way::Direct(Err(why)) => Some(why.clone()),
        };
        match why {
            None => "direct (io_uring)".into(),
            Some(why) => format!("direct (worker threads; no io_uring: {why})").into(),
        }
    }

    fn start(&self, batch: &mut Vec<Request>) -> Start {
        match &self.way {
            Way::Direct(Ok(ring)) => ring.start(&self.file, batch),
            Way::Direct(Err(_)) | Way::Buffered => Start::Unsupported,
        }
    }
}
