//! Reads by copy in the forms of others: the standard library's traits, and many by a future.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use crate::access::borrow::FolioRef;
use crate::access::many::{self, AT_ONCE, ReadAt};
use crate::error::Result;
use crate::file::File;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};

impl File {
    /// The file from byte `at` on, as [`Read`], [`BufRead`] and [`Seek`], by a
    /// [clone](Self#impl-Clone-for-File).
    ///
    /// ```
    /// # use pinfold::{Cache, Options, source::Memory};
    /// use std::io::BufRead;
    /// # let cache = Cache::new(Options::new(8 << 20))?;
    /// # let file = cache.attach("log", std::sync::Arc::new(Memory::new(b"one\ntwo\nthree".into())))?;
    /// let lines: Vec<String> = file.reader(4).lines().collect::<Result<_, _>>()?;
    /// assert_eq!(lines, ["two", "three"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reader(&self, at: u64) -> FileReader {
        FileReader { file: self.clone(), at, page: None }
    }

    /// As [`read_many`](Self::read_many), but as a future; see
    /// [`read_at_async`](Self::read_at_async). Of 64 of `reads` at a time, what is absent is begun
    /// together, as by [`prefetch`](Self::prefetch); then each is carried out in order, and gets
    /// its own error. A future that is dropped leaves the results of those that it has not come to.
    ///
    /// # Errors
    /// The first error in the order of `reads`.
    pub async fn read_many_async(&self, reads: &mut [ReadAt<'_>]) -> Result<()> {
        let mut first = Ok(());
        for some in reads.chunks_mut(AT_ONCE) {
            many::prefetch_reads(self.handle(), some);
            for read in some {
                read.result = self.read_at_async(read.buf, read.offset).await;
                if let (Ok(()), Err(error)) = (&first, &read.result) {
                    first = Err(error.clone());
                }
            }
        }
        first
    }
}

/// A [`File`] as the standard library's traits know files, with a position of its own. Made by
/// [`File::reader`]. Errors are [`Error`](crate::Error)s inside an [`io::Error`].
///
/// `read` copies as [`File::read_at`], and buffers nothing. `fill_buf` gives what is left of the
/// page, in place: between two calls it has a counted guard of that page, as by [`File::get`]. It
/// ends with the file; where the file grows and is [refreshed](File::refresh), it goes on.
#[derive(Debug)]
pub struct FileReader {
    file: File,
    at: u64,
    /// The page that `fill_buf` looked at last, and its number.
    page: Option<(u64, FolioRef<'static>)>,
}

impl Read for FileReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // A position may be beyond the last that a file can have.
        let bytes = if self.at < self.file.len() { self.file.read_at(buf, self.at)? } else { 0 };
        self.at += bytes as u64;
        Ok(bytes)
    }
}

impl BufRead for FileReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let number = self.at >> PAGE_SHIFT;
        let from = self.at as usize % PAGE_BYTES;
        let has = |(of, page): &(u64, FolioRef<'_>)| *of == number && page.len() > from;
        self.page = self.page.take().filter(has);
        if self.page.is_none() && self.at < self.file.len() {
            self.page = Some((number, self.file.get(number)?.into_owned()));
        }
        Ok(self.page.as_ref().and_then(|(_, page)| page.get(from..)).unwrap_or_default())
    }

    fn consume(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes as u64);
    }
}

impl Seek for FileReader {
    /// To any position, also beyond the end of the file, where nothing is read. Error:
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for one that no `u64` has.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.file.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let outside = || {
            let name = self.file.handle().mapping.path.display();
            let why = format!("cannot seek in {name}: {to:?} from {} is no position", self.at);
            io::Error::new(io::ErrorKind::InvalidInput, why)
        };
        self.at = at.ok_or_else(outside)?;
        Ok(self.at)
    }
}
