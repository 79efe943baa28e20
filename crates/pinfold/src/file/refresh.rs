//! A file that other programs change: what is cached of it, and its length, follow.
//!
//! Each page in the index was read after a moment at which the file had the contents that its
//! mapping's `ReadUnder` has (`source/contents.rs`). In [`renew`], under the mapping's `resizing`
//! mutex:
//!
//! 1. ask for the file's contents; if they are the same, end;
//! 2. set the length, which drops the folios with a page beyond the shorter of the two; drop all
//!    others, too, unless the file has only grown: then those that are on their way, and what is
//!    cached is compared with the file at its ends;
//! 3. note the contents of step 1 as the new `ReadUnder`.
//!
//! Folios that are inserted after step 1 are read after it. So whoever sees what step 3 has noted
//! finds no page that was read before step 1.

use std::ops::Range;
use std::path::Path;

use rustix::io::Errno;

use crate::access::found::ReadaheadMark;
use crate::base::mutant::{self, Mutant};
use crate::base::wait;
use crate::error::{Cause, Result};
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::index::PAGES_END;
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::pages::mapping::{Mapping, ReadUnder, ask_len, check_len};
use crate::pages::outside::Outside;
use crate::pages::written::{FileUse, SyncTurn};
use crate::source::{AlignedBuffer, Contents, Extent, FileId, look};

/// What another program has done to a file since it was last opened or refreshed, or invalidated as
/// a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Changed {
    /// Nothing, as far as its length and times say: all that is cached stays, unless it was read
    /// within 20 ms of the last change ([`Cache::open`](crate::Cache::open) says when and why).
    No,
    /// It was appended to: what is cached stays, but for the folio that had the end. A change of
    /// other bytes within the same tick of the file system's clock is not seen later either. A tick
    /// is 10 ms at most, but 2 s where times are whole seconds; ext4, XFS, Btrfs, tmpfs have none
    /// since Linux 6.13. A file that was cut short and is longer than before may look so, too, if
    /// what is compared was read after that ([`File::refresh`](crate::File::refresh)): old bytes
    /// stay then.
    Grown,
    /// It was cut short or written to, or its mode, owner or links were changed: nothing that was
    /// cached is left. An append that is under way may look so, too: some file systems, such as
    /// ext4, change the time before the length. So a reader of a log compares the last record with
    /// what it remembers, before it begins anew.
    Rewritten,
    /// Its path names another file now, or none. This handle still reads the file that it was
    /// opened for, and nothing is left that was read before the last change of that file.
    /// [`Cache::open`](crate::Cache::open) opens the new one. Where the process may not look at the
    /// path any more, this is not found out.
    Replaced,
}

/// What a renewal is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// An open: nothing may be left of what was read before the last change.
    Opened,
    /// A refresh: if the file has grown, what was cached stays.
    Refreshed,
    Invalidated,
}

/// Lets go of what was read under other `contents` than those of the open just now.
pub(crate) fn on_open(handle: &Handle, contents: Option<&Contents>) -> Result<()> {
    if handle.mapping.has_pages_of(contents) {
        return Ok(());
    }
    renew(handle, Since::Opened).map(drop)
}

#[derive(Clone, Copy)]
enum There {
    File(FileId, Option<Contents>),
    Nothing,
    /// The system does not tell: the process may not look there any more, for example.
    Unknown,
}

fn look_at(path: &Path) -> There {
    match look(path) {
        Ok((file, contents)) => There::File(file, contents),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => There::Nothing,
        Err(_) => There::Unknown,
    }
}

pub(crate) fn refresh(handle: &Handle, path: &Path) -> Result<Changed> {
    handle.core.check_owner()?;
    let mapping = &handle.mapping;
    let there = if mapping.is_of_system() { look_at(path) } else { There::Unknown };
    let is_same = match (mapping.read_under(), there) {
        (Some(under), There::File(file, Some(contents))) if mapping.is_file(file) => {
            under.is_followed_as(&contents)
        }
        _ => false,
    };
    let mut changed = Changed::No;
    if !is_same {
        let replaced = match there {
            There::File(file, _) => !mapping.is_file(file),
            There::Nothing => true,
            There::Unknown => false,
        };
        let keeps = !replaced || mutant::on(Mutant::ReplacedKeepsGrown);
        changed = renew(handle, if keeps { Since::Refreshed } else { Since::Opened })?.0;
        if replaced {
            changed = Changed::Replaced;
        }
    }
    Ok(changed)
}

/// Asks the source for its length, applies a change, and returns the bytes dropped.
pub(crate) fn length(handle: &Handle) -> Result<u64> {
    handle.core.check_owner()?;
    let mapping = &handle.mapping;
    let Ok(_turn) = turn_if_synced(mapping) else { return Ok(0) };
    // Held across the question and the answer: the later of two answers must win.
    let resizing = mapping.resizing.lock();
    let len_bytes = ask_len(&mapping.backing, &mapping.path)?;
    // Futures are woken when that mutex is released.
    let bytes = wait::together(|| {
        let gone = freeze::resize(&handle.core, mapping, len_bytes);
        mapping.written.source_has(len_bytes);
        drop(resizing);
        gone.let_go(&handle.core)
    });
    handle.core.settle(mapping, &(0..PAGES_END));
    Ok(bytes)
}

/// A file that has what its source does not have durably: its length is the cache's.
struct NotSynced;

/// Of a file that is written to: while somebody has its turn, nobody else syncs or cuts it.
fn turn_if_synced(mapping: &Mapping) -> Result<Option<SyncTurn<'_>>, NotSynced> {
    if !mapping.written.is_claimed(FileUse::Written) {
        return Ok(None);
    }
    let turn = mapping.written.turn();
    if mapping.written.needs_sync() { Err(NotSynced) } else { Ok(Some(turn)) }
}

/// An append takes a few of them.
const APPEND_LOOKS: u32 = 16;

/// Steps 1 to 3. Returns what has happened, and the bytes dropped.
pub(crate) fn renew(handle: &Handle, since: Since) -> Result<(Changed, u64)> {
    let (core, mapping) = (&*handle.core, &*handle.mapping);
    core.check_owner()?;
    let Ok(_turn) = turn_if_synced(mapping) else {
        let all = since == Since::Invalidated;
        let dropped = if all { freeze::drop_clean(core, mapping, 0..PAGES_END) } else { 0 };
        return Ok((Changed::No, dropped));
    };
    if mapping.read_under().is_some_and(|under| under.was_written_here()) {
        mapping.tell_own_writes();
    }
    let mut resizing = mapping.resizing.lock();
    let length_error = |cause: std::io::Error| Cause::Length {
        path: mapping.path.clone(),
        cause: std::sync::Arc::new(cause),
    };
    let ask = || mapping.backing.contents().map_err(length_error);
    let mut contents = ask()?;
    let looks_written = |contents: &Option<Contents>| {
        let under = mapping.read_under();
        let differs = |(under, contents): (ReadUnder, &Contents)| !under.is(contents);
        under.zip(contents.as_ref()).is_some_and(differs)
            && contents.is_some_and(|it| it.len_bytes == *resizing)
    };
    // An append that is under way has changed the times, and is about to change the length.
    for _ in 0..if since == Since::Refreshed { APPEND_LOOKS } else { 0 } {
        if !looks_written(&contents) {
            break;
        }
        contents = ask()?;
    }
    let len_bytes = match &contents {
        Some(contents) => check_len(contents.len_bytes, &mapping.path)?,
        None => ask_len(&mapping.backing, &mapping.path)?,
    };
    let now = contents.map(ReadUnder::now);
    let old_bytes = [*resizing, mapping.len_bytes()];
    // Whether nothing has changed, and whether all that is cached is of these contents.
    let (is_same, is_valid) = match (mapping.read_under(), &contents) {
        (Some(under), Some(contents)) if since == Since::Opened => {
            (under.is(contents), under.is_settled_as(contents))
        }
        (Some(under), Some(contents)) => (under.is(contents), under.is_followed_as(contents)),
        _ => (old_bytes == [len_bytes; 2], old_bytes == [len_bytes; 2]),
    };
    if is_valid && since != Since::Invalidated {
        return Ok((Changed::No, 0));
    }
    // Futures are woken when `resizing` is released.
    let (changed, dropped) = wait::together(|| {
        let changed = match since {
            Since::Opened | Since::Refreshed if is_same => Changed::No,
            Since::Refreshed if has_grown(handle, old_bytes, len_bytes) => Changed::Grown,
            // Of a block device, only the length is known.
            Since::Opened if contents.is_none() && len_bytes > old_bytes[0] => Changed::Grown,
            _ => Changed::Rewritten,
        };
        let gone = freeze::resize(core, mapping, len_bytes);
        let all = match changed {
            Changed::Grown => 0,
            _ => freeze::drop_clean(core, mapping, 0..PAGES_END),
        };
        core.settle(mapping, &(0..PAGES_END));
        if let Some(now) = now {
            let grown = changed == Changed::Grown;
            mapping.set_read_under(if grown { now.as_grown() } else { now });
        }
        mapping.written.source_has(len_bytes);
        *resizing = len_bytes;
        drop(resizing);
        (changed, all + gone.let_go(core))
    });
    core.settle(mapping, &(0..PAGES_END));
    Ok((changed, dropped))
}

/// Whether a file of `len_bytes` bytes was only appended to, as far as a look tells: it had `told`
/// bytes when somebody was last told of a change, and `known` ones when [`length`] asked.
fn has_grown(handle: &Handle, [told, known]: [u64; 2], len_bytes: u64) -> bool {
    let ends = if told == known { &[told][..] } else { &[told, known] };
    if told >= len_bytes || !(told..=len_bytes).contains(&known) {
        return false;
    }
    if !mutant::on(Mutant::GrownOnTheWay) {
        // Reads on their way may bring what the file had before the change, and what they bring
        // cannot be compared yet.
        freeze::drop_on_their_way(&handle.core, &handle.mapping);
    }
    // A log that is followed grows by little each time. What is short is compared as a whole.
    let is_followed = || handle.mapping.read_under().is_some_and(|under| under.has_grown());
    let is_long = told > 2 * COMPARED_BYTES;
    let least = if is_long && is_followed() { PAGE_BYTES as u64 } else { COMPARED_BYTES };
    let bytes = (len_bytes - told).clamp(least, COMPARED_BYTES);
    ends.iter().all(|&end| begins_the_same(handle, end, bytes))
}

/// What is compared at each end of what is cached.
const COMPARED_BYTES: u64 = 64 << 10;

/// Whether the file still begins with its first `len_bytes` bytes, as far as a look at `bytes` at
/// each end of what is cached tells.
fn begins_the_same(handle: &Handle, len_bytes: u64, bytes: u64) -> bool {
    if mutant::on(Mutant::GrownUncompared) {
        return true;
    }
    let pages = bytes.div_ceil(PAGE_BYTES as u64);
    let end = len_bytes.div_ceil(PAGE_BYTES as u64);
    let head_end = match compare_first(handle, 0..end, pages, len_bytes) {
        None => return true, // nothing is cached that was read before
        Some(EndCompared { same: false, .. }) => return false,
        Some(head) => head.end,
    };
    let mut to = end;
    // Ends: `to` falls each time. What is before the last pages may be as it was, and they not.
    while let Some(last) = last_cached(handle, head_end..to) {
        let from = last.saturating_sub(pages).max(head_end);
        match compare_first(handle, from..last + 1, pages + 1, len_bytes) {
            Some(tail) => return tail.same,
            None => to = from,
        }
    }
    true
}

struct EndCompared {
    same: bool,
    /// The page after the last one.
    end: u64,
}

/// Compares the first pages that are cached of `pages`, at most `most`, with the source, up to
/// `len_bytes`. `None`: no page is, or those that were are gone.
fn compare_first(
    handle: &Handle,
    pages: Range<u64>,
    most: u64,
    len_bytes: u64,
) -> Option<EndCompared> {
    let mut from = pages.start;
    // Ends: each turn advances `from`.
    loop {
        let first = next_cached(handle, from..pages.end)?;
        let end = pages.end.min(first + most);
        let at = |page: u64| ((page - first) << PAGE_SHIFT) as usize;
        let mut cached = vec![0; at(end)];
        // Before the source is asked: what is evicted meanwhile would tell nothing.
        let copy = |page: u64| {
            let (at, offset) = (at(page), page << PAGE_SHIFT);
            let page_bytes = (len_bytes - offset).min(PAGE_BYTES as u64) as usize;
            let bytes = copy_cached(handle, &mut cached[at..][..page_bytes], offset);
            (bytes > 0).then_some(at..at + bytes)
        };
        let copied: Vec<_> = (first..end).filter_map(copy).collect();
        from = end;
        if copied.is_empty() {
            continue;
        }
        let mut now = AlignedBuffer::zeroed(cached.len(), PAGE_BYTES);
        let got = handle.mapping.backing.read_again(first << PAGE_SHIFT, &[Extent::of(&mut now)]);
        let is_same = |part: &Range<usize>| now[part.clone()] == cached[part.clone()];
        let same = got.is_ok_and(|got| copied.iter().all(|part| part.end <= got && is_same(part)));
        return Some(EndCompared { same, end });
    }
}

fn next_cached(handle: &Handle, pages: Range<u64>) -> Option<u64> {
    let mut changing = handle.mapping.change();
    let writer = changing.writer(&handle.core.nodes);
    writer.next_present(pages.clone()).map(|folio| folio.page.max(pages.start))
}

fn last_cached(handle: &Handle, pages: Range<u64>) -> Option<u64> {
    let mut changing = handle.mapping.change();
    let writer = changing.writer(&handle.core.nodes);
    let (mut from, mut end, mut last) = (pages.start, pages.end, None);
    // Ends: half as many pages are left each time. None is cached from `end` on.
    while from < end {
        let middle = from + (end - from) / 2;
        match writer.next_present(middle..end) {
            Some(folio) => {
                last = Some(folio.end().min(end) - 1);
                from = folio.end();
            }
            None => end = middle,
        }
    }
    last
}

/// Returns the bytes copied: none if the page is not up to date.
fn copy_cached(handle: &Handle, buf: &mut [u8], offset: u64) -> usize {
    let copied = handle.held(
        offset >> PAGE_SHIFT,
        (ReadaheadMark::Leave, false),
        || Ok(None),
        |held| Ok(Some(handle.copy_held(&held, buf, offset))),
    );
    copied.ok().flatten().unwrap_or(0)
}
