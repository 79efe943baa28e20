//! Reading around an absent page of a mapped access: the absent pages of the aligned 128 KiB, as
//! Linux does by default; but only as long as that displaces nothing, and unless the program has
//! said how it reads. Of a file that does not fit in the cache, three quarters of the block have to
//! be cached already. Best effort: who wants one of these pages and does not get it reads it alone,
//! and sees the error.

use std::ops::Range;

use crate::base::mutant::{self, Mutant};
use crate::frames::PAGE_BYTES;
use crate::pages::core::Core;
use crate::pages::fill;
use crate::pages::handle::Handle;
use crate::pages::stream::{OfHandle, Plan};

pub(crate) const PAGES: u64 = 32;

/// Nothing is read around a page unless this part of the budget is unused.
const UNUSED_SHARE: u32 = 8;

/// The aligned block that has `page`. It may end after the file.
pub(crate) fn block(page: u64) -> Range<u64> {
    let first = page / PAGES * PAGES;
    first..first + PAGES
}

/// What a file has of the aligned block that has `page`.
pub(crate) fn block_of(handle: &Handle, page: u64) -> Range<u64> {
    let block = block(page);
    let file_end = handle.mapping.len_bytes().div_ceil(PAGE_BYTES as u64);
    block.start..block.end.min(file_end)
}

/// Whether the absent pages of the block of `page` are probably wanted, too.
fn pays(handle: &Handle, page: u64) -> bool {
    let core = &*handle.core;
    if !is_room(core) {
        return false;
    }
    let block = block_of(handle, page);
    let file_pages = handle.mapping.len_bytes().div_ceil(PAGE_BYTES as u64);
    let fits = file_pages <= u64::from(core.frames.frames());
    let is_cached = |page: &u64| handle.mapping.index.lookup(*page).is_some();
    fits || mutant::on(Mutant::AroundBlindly)
        || 4 * block.clone().filter(is_cached).count() as u64 >= 3 * (block.end - block.start)
}

/// Whether memory is plenty, so that what is read beside what is wanted displaces nothing.
pub(crate) fn is_room(core: &Core) -> bool {
    let unused = core.frames.free_frames() + core.frames.free_hollow();
    unused >= core.frames.frames() / UNUSED_SHARE
}

/// As [`on_fault`](crate::pages::stream::Stream::on_fault) says.
fn goes_elsewhere(handle: &Handle, page: u64, end: u64) -> bool {
    let of: OfHandle<'_> = (&handle.core.credit, &|pages, asks| handle.unread(pages, asks));
    handle.stream.on_fault(page, end, of)
}

/// Reads the absent pages from before `page` up to the next one that is cached, in this thread.
pub(crate) fn read(handle: &Handle, page: u64) {
    let block = block_of(handle, page);
    if !pays(handle, page) || !goes_elsewhere(handle, page, block.end) {
        return;
    }
    let is_absent = |page: &u64| handle.mapping.index.lookup(*page).is_none();
    let start = (block.start..page).rev().take_while(is_absent).last().unwrap_or(page);
    let end = (page..block.end).take_while(is_absent).last().map_or(page, |last| last + 1);
    if end > start + 1 {
        fill::range_now(handle, start, end);
    }
}

/// Begins to read all absent pages of `pages`, which are those of the block of `page` that may be
/// wanted. Waits for nothing; the caller waits for `page`. Does nothing if the handle's accesses go
/// on in order: then its stream says what is read, in larger windows.
pub(crate) fn begin(handle: &Handle, page: u64, pages: Range<u64>) {
    if !pays(handle, page) || !goes_elsewhere(handle, page, pages.end) {
        return;
    }
    let (start, ahead_end) = (pages.start, pages.end);
    let plan = Plan { ahead_end, window_pages: PAGES as u32, ..Plan::of(start) };
    fill::start_around(handle, start, plan, Some(page));
}
