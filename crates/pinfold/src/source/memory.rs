//! A source in memory, for examples and tests.

use std::borrow::Cow;
use std::io;
use std::ops::Range;

use crate::base::sync::locks::RwLock;

use super::{Extent, Source, beyond_offsets, extent};

/// Bytes in memory that are read and written like a file. They do not outlive the value.
#[derive(Debug, Default)]
pub struct Memory {
    bytes: RwLock<Vec<u8>>,
}

impl Memory {
    /// A source that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: RwLock::new(bytes) }
    }

    /// A copy of what it holds now.
    #[cfg(feature = "testing")]
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }
}

fn resize(held: &mut Vec<u8>, bytes: usize) -> io::Result<()> {
    held.try_reserve(bytes.saturating_sub(held.len())).map_err(io::Error::other)?;
    held.resize(bytes, 0);
    Ok(())
}

impl Source for Memory {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.read_extents_at(offset, &[Extent::of(buf)])
    }

    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        let held = self.bytes.read();
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(held.len());
        let bytes = extent::total_bytes(extents).min(held.len() - begin);
        extent::scatter(extents, 0, &held[begin..begin + bytes]);
        Ok(bytes)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_extents_at(offset, &[Extent::to_write(buf)])
    }

    fn write_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        let begin = usize::try_from(offset).map_err(|_| beyond_offsets())?;
        let end = begin.checked_add(extent::total_bytes(extents)).ok_or_else(beyond_offsets)?;
        let mut held = self.bytes.write();
        if end > held.len() {
            resize(&mut held, end)?;
        }
        extent::gather(extents, 0, &mut held[begin..end]);
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.read().len() as u64)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(|_| beyond_offsets())?;
        resize(&mut self.bytes.write(), bytes)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        let mut held = self.bytes.write();
        let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(held.len());
        let range = within(range.start)..within(range.end);
        held[range].fill(0);
        Ok(())
    }

    fn sync(&self, _data_only: bool) -> io::Result<()> {
        Ok(())
    }

    fn kind(&self) -> Cow<'static, str> {
        "memory".into()
    }
}
