//! Writing to a file, and making it durable.

use std::ops::RangeBounds;

#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::file::File;
use crate::file::ranges::{self, END_MAX};
use crate::pages::handle::Handle;
use crate::pages::written::FileUse;
use crate::write;

/// # Writing
///
/// What is written is in the cache at once, for all handles. It is durable when a *sync* has
/// returned that was called afterwards ([`sync_data`](File::sync_data)). The cache syncs by itself
/// if an eighth of the budget waits for it, in a thread of its own; if a quarter does, the threads
/// that write wait for that; and when the last handle is dropped.
///
/// Bytes that were written leave memory only after a sync has succeeded. If the source fails to
/// take them, or to sync, they stay in the cache, and the next sync gives them to the source again:
/// all that was written since the last good sync. A disk that was full for a while loses nothing.
///
/// The bytes of one page change at once: readers see all of a write there, or nothing. Guards and
/// borrows keep the bytes that they were made with. A page of a file that was written to lately is
/// borrowed by a count, until a sync.
///
/// A file that others write to, too, is not for this: what they change is seen as by
/// [`refresh`](File::refresh) once all that was written here is durable, and not before.
impl File {
    /// Checks that the file may be written to, and is not mapped. From then on it cannot be mapped.
    pub(crate) fn check_writes(&self) -> Result<()> {
        let mapping = &self.handle().mapping;
        if !self.writes {
            let (path, why) = (mapping.path.clone(), "it was opened for reading");
            return Err(Cause::NotWritable { path, why }.into());
        }
        if !mapping.written.claim(FileUse::Written) {
            let path = mapping.path.clone();
            return Err(Cause::MappedOrWritten { path, what: "write to" }.into());
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`, into the cache. Beyond the end, the file becomes longer;
    /// what lies between is zeros. Nothing is read if whole pages are written, or what the file did
    /// not have; else a page that is not cached is read first.
    ///
    /// Cost for a page that is cached: the file's mutex, a look-up, an atomic operation on the
    /// folio's line and the copy. The first write of a page that is clean finds out who borrows it,
    /// by a membarrier. If somebody holds the folio, it is copied. A file that is read directly and
    /// ends inside a page has one more descriptor once its last page was written.
    ///
    /// # Errors
    /// After an error any part of `bytes` may have been written. [`ErrorKind::Invalid`] if the file
    /// was opened for reading, or is a block device and would become longer;
    /// [`ErrorKind::Unsupported`] if it would end above 2^63 - 4096; [`ErrorKind::Busy`] if a
    /// folio is both pinned and in use, or a large one that is in use cannot be copied, for two
    /// seconds (thirty while reads are under way); [`ErrorKind::Write`] if too much waits to be
    /// synced, and that fails, or nothing of it ends for thirty seconds
    /// ([`TimedOut`](std::io::ErrorKind::TimedOut)); otherwise as [`read_at`](Self::read_at).
    ///
    /// ```
    /// use pinfold::{Cache, FileOptions, Options};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("log");
    /// let cache = Cache::new(Options::new(8 << 20))?;
    /// let options = FileOptions { write: true, create: true, ..FileOptions::default() };
    /// let file = cache.open_with(&path, options)?;
    /// file.write_at(b"hello", 0)?;
    /// assert_eq!(file.append(b" world")?, 5);
    /// file.sync_data()?; // now it is durable
    /// assert_eq!(std::fs::read(&path).unwrap(), b"hello world");
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_writes()?;
        write::write_at(self.handle(), bytes, offset)
    }

    /// Writes `bytes` behind the end of the file, and returns their offset. Threads that append
    /// take turns: no bytes of theirs come between.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.check_writes()?;
        write::append(self.handle(), bytes)
    }

    /// Sets the length, here and at the source: cuts the file, or makes it longer by zeros. Guards
    /// keep what they have. Waits for a sync that is under way.
    ///
    /// # Errors
    /// [`ErrorKind::Write`] if the source fails: then its length is unknown, and the file's is the
    /// new one if it was cut; otherwise as [`write_at`](Self::write_at).
    pub fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.check_writes()?;
        write::set_len(self.handle(), len_bytes)
    }

    /// Makes the bytes of a range zeros, and gives their space back: for files by `fallocate(2)`. The
    /// length stays. Whole pages inside leave the cache; parts of pages at both ends are written. A
    /// source that cannot do so has zeros written in its place, and keeps the space. Guards and pins
    /// keep what they have. Waits for a sync that is under way; writes to the range wait for this.
    ///
    /// A part of a large folio that is dirty and held is written as zeros, too.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at), and [`ErrorKind::Invalid`] if the range ends before it
    /// begins. Any part of it may be zeros then.
    pub fn punch_hole(&self, range: impl RangeBounds<u64>) -> Result<()> {
        self.check_writes()?;
        let range = ranges::bytes_of(&range, END_MAX);
        ranges::check(&self.handle().mapping, &range)?;
        write::hole::punch(self.handle(), range)
    }

    /// Returns when all is durable that was written, by any handle, before the call: bytes, and the
    /// length. Threads that call this at the same time share one sync. Of a file that was never
    /// written to or opened for writing, it does nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Write`]: not all of it is. It stays in the cache; the next sync tries again.
    /// [`ErrorKind::Forked`].
    pub fn sync_data(&self) -> Result<()> {
        write::sync::sync(&self.handle().core, &self.handle().mapping, true)
    }

    /// As [`sync_data`](Self::sync_data) for a range: only what is dirty there is written, in whole
    /// folios. After a crash the file has at least the bytes before the range's end that it has now.
    ///
    /// # Errors
    /// As [`sync_data`](Self::sync_data), and [`ErrorKind::Invalid`] if the range ends before it
    /// begins.
    pub fn sync_range(&self, range: impl RangeBounds<u64>) -> Result<()> {
        let Handle { core, mapping, .. } = self.handle();
        let range = ranges::bytes_of(&range, END_MAX);
        ranges::check(mapping, &range)?;
        write::sync::sync_range(core, mapping, &range, true)
    }

    /// As [`sync_data`](Self::sync_data), and the file's other metadata, such as its times.
    ///
    /// # Errors
    /// As [`sync_data`](Self::sync_data).
    pub fn sync_all(&self) -> Result<()> {
        write::sync::sync(&self.handle().core, &self.handle().mapping, false)
    }
}
