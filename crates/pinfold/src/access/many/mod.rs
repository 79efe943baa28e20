//! Many pages at once: reads, guards and prefetches of pages that need not be neighbours. Step by
//! step:
//!
//! 1. the two passes of `hits.rs`; a batch of fewer than [`BATCH_MIN`] entries
//!    tries one after the other. What they do not get is *left*: absent, on its way, or in need of
//!    the slow path;
//! 2. of what is left, [`AT_ONCE`] entries at a time: begin to read all that is absent, in one
//!    submission (`misses.rs`); a page that is wanted twice is read once;
//! 3. each entry that is left by the single call's slow path, in the order of the batch. So nothing
//!    depends on how far 2 has got, but for reads that failed there: their error is the entry's,
//!    unless that read had more pages than it wants (`fill/alone.rs`);
//! 4. put both parts together, in the order of the batch.
//!
//! A folio on its way keeps others waiting, so the thread that has put it there must wait for
//! nothing but its read. In 2 only the first group of pages may wait for memory, when nothing of
//! this batch is on its way. After that the thread gives its requests to the engine, and reads by
//! itself what the engine does not take, before it waits for anybody (3).
//!
//! The guards of `get_many` and `borrow_many` do keep memory while the rest of the batch is read:
//! two batches that together want more than there is may both fail.

mod hits;
mod misses;
mod read_at;

use std::ops::Range;

use crate::access::borrow::{Borrowed, FolioRef, Reader};
use crate::access::found::{MayWait, filled};
use crate::base::sizes::BATCH_MIN;
use crate::error::{Cause, Error, Result};
use crate::frames::PAGE_SHIFT;
use crate::pages::failures::Failed;
use crate::pages::fill::WantedPages;
use crate::pages::handle::Handle;
use crate::pages::reclaim;
pub(crate) use misses::{Absent, prefetch, prefetch_reads, will_need};
pub use read_at::ReadAt;

/// Left for the slow path and begun to be read: half of what the engine's ring takes for nobody.
pub(crate) const AT_ONCE: usize = 64;

impl Handle {
    /// Returns the first of their errors.
    #[inline]
    pub(crate) fn read_many(&self, reads: &mut [ReadAt<'_>]) -> Result<()> {
        let mut left = Vec::new();
        if reads.len() < BATCH_MIN {
            for (at, read) in reads.iter_mut().enumerate() {
                if !self.read_one(read) {
                    left.push(at);
                }
            }
        } else {
            self.read_by_hints(reads, &mut left);
        }
        if left.is_empty() { Ok(()) } else { self.read_left(reads, &left) }
    }

    #[cold]
    #[inline(never)]
    fn read_left(&self, reads: &mut [ReadAt<'_>], left: &[usize]) -> Result<()> {
        let mut first = Ok(());
        let mut refused = None;
        for some in left.chunks(AT_ONCE) {
            let mut absent = Absent::new(self);
            let misses: Vec<_> = some.iter().map(|&at| absent.add(reads[at].pages())).collect();
            let begun = if refused.is_none() { absent.read() } else { Ok(None) };
            let failed = begun.unwrap_or_else(|error| {
                refused = Some(error);
                None
            });
            for (&at, miss) in some.iter().zip(misses) {
                let read = &mut reads[at];
                let result = match &refused {
                    None => self.copy_left(read, miss, failed.as_deref()),
                    Some(error) => {
                        let read = self.slowly(read.buf, read.offset, (MayWait::Never, true));
                        or_refused(read, error, reads[at].offset >> PAGE_SHIFT)
                    }
                };
                reads[at].result = result;
                let result = &reads[at].result;
                let Err(error) = result else { continue };
                if matches!(error.cause(), Cause::NoMemory { .. }) {
                    // To wait again would bring nothing.
                    refused.get_or_insert_with(|| error.clone());
                }
                if first.is_ok() {
                    first = Err(error.clone());
                }
            }
        }
        first
    }

    /// Step 3 for a copy. `miss`: something of it was absent in 2.
    fn copy_left(
        &self,
        read: &mut ReadAt<'_>,
        miss: bool,
        failed: Option<&Failed>,
    ) -> Result<usize> {
        self.check_begun(failed, miss, read.pages())?;
        self.long(read.buf, read.offset, !miss)
    }

    /// That of 2 for an entry that wants `pages`, unless it is tried nevertheless.
    fn check_begun(&self, failed: Option<&Failed>, miss: bool, pages: Range<u64>) -> Result<()> {
        let Some(failed) = failed.filter(|_| miss) else { return Ok(()) };
        let wanted = WantedPages::since(pages.clone(), failed.since);
        let error = failed.of(&pages, |error| wanted.alone(self, error).is_none());
        error.map_or(Ok(()), Err)
    }

    #[inline]
    pub(crate) fn get_many(&self, pages: &[u64]) -> Result<Vec<FolioRef<'_>>> {
        let (quick, left) = self.get_quickly(pages);
        if left.is_empty() {
            return Ok(quick);
        }
        let slowly = |page, miss: bool| self.get_slowly(page, !miss);
        self.with_left(pages, quick, &left, |page| self.try_get(page), slowly)
    }

    /// Step 1: also with the numbers of those that are not got at once.
    #[inline]
    pub(crate) fn get_quickly(&self, pages: &[u64]) -> (Vec<FolioRef<'_>>, Vec<usize>) {
        let (mut quick, mut left) = (Vec::with_capacity(pages.len()), Vec::new());
        if pages.len() < BATCH_MIN {
            for (at, &page) in pages.iter().enumerate() {
                match self.get_at_once(page) {
                    Some(guard) => quick.push(guard),
                    None => left.push(at),
                }
            }
        } else {
            self.get_by_hints(pages, &mut quick, &mut left);
        }
        (quick, left)
    }

    #[inline]
    pub(crate) fn borrow_many<'f, 'r>(
        &'f self,
        pages: &[u64],
        reader: &'r Reader,
    ) -> Result<Vec<Borrowed<'f, 'r>>> {
        self.check_reader(reader)?;
        let (mut quick, mut left) = (Vec::with_capacity(pages.len()), Vec::new());
        if pages.len() < BATCH_MIN {
            for (at, &page) in pages.iter().enumerate() {
                match self.borrow_one(page, reader) {
                    Some(guard) => quick.push(guard),
                    None => left.push(at),
                }
            }
        } else {
            self.borrow_by_hints(pages, reader, &mut quick, &mut left);
        }
        if left.is_empty() {
            return Ok(quick);
        }
        let slowly = |page, _| {
            reader.make_room();
            self.borrow_slowly(page, reader, MayWait::Yes).map(filled)
        };
        self.with_left(pages, quick, &left, |page| self.try_borrow(page, reader), slowly)
    }

    /// Steps 2 to 4 for guards: the numbers in `left` are not among the `quick` ones. `now` gets a
    /// page if it is cached; `slowly` is told whether the page was absent.
    #[cold]
    #[inline(never)]
    fn with_left<G>(
        &self,
        pages: &[u64],
        quick: Vec<G>,
        left: &[usize],
        now: impl Fn(u64) -> Result<Option<G>>,
        slowly: impl Fn(u64, bool) -> Result<G>,
    ) -> Result<Vec<G>> {
        self.check_fits(pages)?;
        let mut late = Vec::with_capacity(left.len());
        for some in left.chunks(AT_ONCE) {
            let mut absent = Absent::new(self);
            let page = |at: usize| pages[at]..pages[at].saturating_add(1);
            let misses: Vec<_> = some.iter().map(|&at| absent.add(page(at))).collect();
            let refused = absent.read();
            for (&at, miss) in some.iter().zip(misses) {
                late.push(match &refused {
                    Ok(failed) => {
                        self.check_begun(failed.as_deref(), miss, page(at))?;
                        slowly(pages[at], miss)?
                    }
                    Err(error) => or_refused(now(pages[at]), error, pages[at])?,
                });
            }
        }
        let (mut quick, mut late) = (quick.into_iter(), late.into_iter());
        let mut left = left.iter().peekable();
        let mut next =
            |at| if left.next_if_eq(&&at).is_some() { late.next() } else { quick.next() };
        Ok((0..pages.len()).map(|at| next(at).expect("it is in one of the parts")).collect())
    }
}

impl Handle {
    /// Error: there can never be memory for guards of so many pages at once, or one of them is
    /// beyond the end of the file.
    #[cold]
    pub(crate) fn check_fits(&self, pages: &[u64]) -> Result<()> {
        let core = &*self.core;
        let table_bytes = core.frames.table_bytes();
        let most = core.frames.frames() as usize - (table_bytes >> PAGE_SHIFT) as usize;
        if pages.len() <= most {
            return Ok(());
        }
        core.check_owner()?; // before the census takes locks
        pages.iter().try_for_each(|&page| self.check_page(page))?;
        let mut distinct = pages.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() <= most {
            return Ok(());
        }
        let wanted_bytes = (distinct.len() as u64) << PAGE_SHIFT;
        Err(reclaim::shortage(core, wanted_bytes).of(&self.mapping, pages[0]))
    }
}

/// The batch has got an `error` that concerns all that is absent.
fn or_refused<T>(now: Result<Option<T>>, error: &Error, page: u64) -> Result<T> {
    now?.ok_or_else(|| error.of_page_at(page << PAGE_SHIFT))
}
