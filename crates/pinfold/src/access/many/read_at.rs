//! One entry of a `read_many`.

use crate::error::Result;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};

/// Of one entry, begun at a time.
const ENTRY_PAGES: u64 = 512;

/// One read of a [`File::read_many`](crate::File::read_many).
///
/// ```
/// # use pinfold::{Cache, Options, ReadAt, source::Memory};
/// # let cache = Cache::new(Options::new(8 << 20))?;
/// let file = cache.attach("bytes", std::sync::Arc::new(Memory::new(vec![7; 5000])))?;
/// let (mut head, mut tail) = ([0; 16], [0; 16]);
/// let mut reads = [ReadAt::new(0, &mut head), ReadAt::new(4990, &mut tail)];
/// file.read_many(&mut reads)?;
/// let got = reads.map(|read| read.result);
/// assert!(matches!(got, [Ok(16), Ok(10)]));
/// assert_eq!((head, &tail[..10]), ([7; 16], &[7; 10][..]));
/// # Ok::<(), pinfold::Error>(())
/// ```
#[derive(Debug)]
pub struct ReadAt<'b> {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// Past the bytes that were read, and after an error, its contents are unspecified.
    pub buf: &'b mut [u8],
    /// `Ok(0)` at first, then what [`File::read_at`](crate::File::read_at) would have returned; but
    /// after one error for want of memory, the reads after it that are not cached get the same
    /// error without waiting.
    pub result: Result<usize>,
}

impl<'b> ReadAt<'b> {
    /// A read of `buf.len()` bytes from `offset` on.
    pub fn new(offset: u64, buf: &'b mut [u8]) -> Self {
        ReadAt { offset, buf, result: Ok(0) }
    }

    /// Those that are begun together.
    pub(super) fn pages(&self) -> std::ops::Range<u64> {
        if self.buf.is_empty() {
            return 0..0;
        }
        let end = self.offset.saturating_add(self.buf.len() as u64).div_ceil(PAGE_BYTES as u64);
        let start = self.offset >> PAGE_SHIFT;
        start..end.min(start + ENTRY_PAGES)
    }
}
