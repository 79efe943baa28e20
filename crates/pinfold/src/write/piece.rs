//! What a write does to one folio, and a change of the length to the folio that has the end; and
//! what a hole does to those at its ends. Each
//! looks for the folio under the `change` mutex, and begins again if it has to wait or to allocate.

use std::ops::Range;
use std::ptr::NonNull;

use crate::base::mutant::{self, Mutant};
use crate::error::{Cause, Result};
use crate::frames::{FrameNumber, Order, PAGE_BYTES, PAGE_SHIFT, copy_racing};
use crate::index::{FolioAt, Mark, PAGES_END};
use crate::pages::core::Core;
use crate::pages::fill::{self, For};
use crate::pages::freeze::{self, AfterChange, Length, Obstacle};
use crate::pages::handle::Handle;
use crate::pages::mapping::Changing;
use crate::pages::reclaim::{self, Patience};
use crate::source::{self, Extent};

/// A clean folio of more is split before a part of it is changed: of this one, pages are written.
const WRITTEN_BY_PAGES: u8 = 4;

/// What a change may need, once it was in vain.
struct Means<'a> {
    handle: &'a Handle,
    /// Becomes the changed copy of a folio in use.
    copy: Option<FrameNumber>,
    patience: Option<Patience>,
}

impl Drop for Means<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Means<'_> {
    fn new(handle: &Handle) -> Means<'_> {
        Means { handle, copy: None, patience: None }
    }

    fn give_back(&mut self) {
        if let Some(head) = self.copy.take() {
            self.handle.core.give_back(head);
        }
    }

    /// Without the mutex. Error: the folio of `page` is in use for too long.
    #[cold]
    fn overcome(&mut self, obstacle: Obstacle, page: u64) -> Result<()> {
        let Handle { core, mapping, .. } = self.handle;
        match obstacle {
            Obstacle::Pinned(woken) => drop(woken),
            Obstacle::Used(order) => {
                self.give_back();
                let got = reclaim::allocate(core, order, true);
                let got = got.map_err(|why| why.of(mapping, page))?;
                self.copy = got.map(|(head, _)| head);
                if got.is_some_and(|(_, got)| got == order) {
                    return Ok(());
                }
                self.give_back();
            }
        }
        let patience = self.patience.get_or_insert_with(|| Patience::new(core));
        if patience.has_lasted(core, false) {
            let path = mapping.path.clone();
            return Err(Cause::WriteHeld { path, offset: page << PAGE_SHIFT }.into());
        }
        patience.sleep(core, core.pressure.progress_seen());
        Ok(())
    }
}

/// The end of a change, without the mutex.
#[inline]
fn finish(core: &Core, AfterChange { old, woken }: AfterChange) {
    drop(woken);
    if let Some(old) = old {
        freeze::let_go(core, &[old]);
        freeze::collect(core);
    }
}

/// Writes some of `bytes`, at least one, and returns how many.
pub(super) fn write(handle: &Handle, bytes: &[u8], offset: u64) -> Result<usize> {
    let Handle { core, mapping, .. } = handle;
    let page = offset >> PAGE_SHIFT;
    let pages = page..(offset + bytes.len() as u64).div_ceil(PAGE_BYTES as u64);
    let is_unguarded = || mutant::on(Mutant::HoleUnguarded) || mutant::on(Mutant::HoleLate);
    let (mut means, mut may_split) = (Means::new(handle), true);
    // Ends: each further turn follows the end of a fill, an eviction, or a wait that is bounded.
    loop {
        let mut changing = mapping.change();
        if changing.hole_meets(&pages) && !is_unguarded() {
            drop(changing);
            drop(mapping.written.turn()); // who punches it has the turn
            continue;
        }
        let Some(folio) = core.folio_at(&changing, page) else {
            drop(changing);
            match make(handle, bytes, offset)? {
                0 => continue,
                written => return Ok(written),
            }
        };
        let frame = core.frames.frame(folio.frame);
        if frame.is_changing() {
            drop(changing);
            drop(fill::get(handle, page, 1)?);
            continue;
        }
        if mapping.len_bytes() < offset {
            drop(changing); // it was cut
            reach(handle, offset)?;
            continue;
        }
        let (at, order) = ((offset - (folio.page << PAGE_SHIFT)) as usize, frame.order());
        let part = &bytes[..bytes.len().min(order.bytes() - at)];
        let is_large = order.get() > WRITTEN_BY_PAGES && part.len() < order.bytes();
        if is_large && may_split && !changing.writer(&core.nodes).is_marked(page, Mark::Dirty) {
            match split(core, changing, folio, WRITTEN_BY_PAGES) {
                Ok(going_on) => changing = going_on,
                Err(again) => {
                    may_split = again;
                    continue;
                }
            }
        }
        let store = |to: *mut u8| {
            // SAFETY: within the folio, which the caller of this has for itself; readers without
            // a reference notice by the version.
            unsafe { copy_racing(to.wrapping_add(at), part.as_ptr(), part.len()) };
        };
        let length = Length::Reaches(offset + part.len() as u64);
        let (within, copy) = (at..at + part.len(), &mut means.copy);
        let changed = freeze::change(core, &mut changing, folio, &within, length, copy, store);
        drop(changing);
        match changed {
            Ok(changed) => {
                finish(core, changed);
                return Ok(part.len());
            }
            Err(obstacle) => means.overcome(obstacle, page)?,
        }
    }
}

/// Error: the mutex was released, to look again, and whether to split then. Otherwise the folio is
/// in use.
fn split<'a>(
    core: &Core,
    mut changing: Changing<'a>,
    folio: FolioAt,
    order: u8,
) -> std::result::Result<Changing<'a>, bool> {
    let order = Order::new(order).expect("an order");
    match freeze::split(core, &mut changing, folio, order) {
        Ok(Err(_)) => Ok(changing),
        Ok(Ok(woken)) => {
            drop(changing);
            drop(woken);
            Err(true)
        }
        Err(short) => {
            drop(changing);
            Err(matches!(reclaim::refill_nodes(core, short.wanted, false), Ok(true)))
        }
    }
}

/// Brings the page at `offset`, which is absent; if none of its old bytes are needed, by writing
/// it, and what follows. Returns how many bytes were written.
fn make(handle: &Handle, bytes: &[u8], offset: u64) -> Result<usize> {
    let (page, end) = (offset >> PAGE_SHIFT, offset + bytes.len() as u64);
    let begin = page << PAGE_SHIFT;
    // Of what the source does not have, the rest is zeros. Else the write must cover whole pages.
    let new_end = || match handle.mapping.written.source_bytes() {
        source_bytes if begin >= source_bytes => end.div_ceil(PAGE_BYTES as u64),
        _ if begin == offset => end >> PAGE_SHIFT,
        _ => page,
    };
    let pages_end = new_end();
    if pages_end <= page {
        drop(fill::get(handle, page, 1)?);
        return Ok(0);
    }
    let batch = fill::prepare(handle, page, pages_end, For::Thread)?;
    if batch.folios() == 0 {
        return Ok(0); // another thread was faster
    }
    // From here on nobody writes the page, and a cut drops the folios. Before, it may have been
    // written, and have left memory; or the file was cut.
    if new_end() < pages_end || handle.mapping.len_bytes() < offset {
        batch.finish(Err(source::refusal()), false);
        return reach(handle, offset).map(|()| 0);
    }
    let reached = batch.write(end, |at, to, folio_bytes| {
        let to = NonNull::new(to).expect("the arena is not at 0");
        // SAFETY: the filler's alone; readers without a reference notice by the version.
        let to = unsafe { Extent::new(to, folio_bytes) };
        let from = offset.saturating_sub(at) as usize;
        let until = ((end - at) as usize).min(folio_bytes);
        let first = (at + from as u64 - offset) as usize;
        to.zero(0, from);
        let part = &bytes[first..first + (until - from)];
        let at = to.address().as_ptr().wrapping_add(from);
        // SAFETY: as above; `from..until` lies in the folio.
        unsafe { copy_racing(at, part.as_ptr(), part.len()) };
        to.zero(until, folio_bytes - until);
    });
    Ok(reached.saturating_sub(offset) as usize)
}

/// Makes the file `len_bytes` long by zeros, if it is shorter.
pub(super) fn reach(handle: &Handle, len_bytes: u64) -> Result<()> {
    set_end(handle, Length::Reaches(len_bytes))
}

/// Makes the file `len_bytes` long, which is shorter. The caller has the file's turn, and holds
/// `resizing`. After an error nothing was changed.
pub(super) fn cut(handle: &Handle, len_bytes: u64) -> Result<()> {
    set_end(handle, Length::IsCut(len_bytes))
}

/// Changes the folio that has bytes on both sides of the end: of the old one if the file becomes
/// longer, of the new one if it becomes shorter. Those behind the end are zeros. At the same time
/// all folios behind leave: of a folio that was cut and then split, a longer file has such, too.
fn set_end(handle: &Handle, length: Length) -> Result<()> {
    let Handle { core, mapping, .. } = handle;
    let mut means = Means::new(handle);
    // Ends: as in `write`.
    loop {
        let mut changing = mapping.change();
        let end = match length {
            Length::Reaches(new) if new <= mapping.len_bytes() => return Ok(()),
            Length::Reaches(_) => mapping.len_bytes(),
            Length::IsCut(new) => new,
        };
        let page = end >> PAGE_SHIFT;
        let folio = core.folio_at(&changing, page);
        let folio = folio.filter(|it| it.page << PAGE_SHIFT < end);
        let behind = folio.map_or(end.div_ceil(PAGE_BYTES as u64), FolioAt::end)..PAGES_END;
        let mut changed = Ok(AfterChange::default());
        if let Some(folio) = folio {
            let frame = core.frames.frame(folio.frame);
            if frame.is_changing() {
                drop(changing);
                drop(fill::get(handle, page, 1)?);
                continue;
            }
            let (at, bytes) = ((end - (folio.page << PAGE_SHIFT)) as usize, frame.order().bytes());
            let store = |to: *mut u8| {
                let to = NonNull::new(to).expect("the arena is not at 0");
                // SAFETY: as in `write`.
                let to = unsafe { Extent::new(to, bytes) };
                if !mutant::on(Mutant::CutKeepsBytes) {
                    to.zero(at, bytes - at);
                }
            };
            let (within, copy) = (at..bytes, &mut means.copy);
            changed = freeze::change(core, &mut changing, folio, &within, length, copy, store);
        } else {
            let (Length::Reaches(new) | Length::IsCut(new)) = length;
            mapping.set_len_bytes(new);
        }
        let gone = match changed {
            Ok(_) => freeze::drop_within(core, &mut changing, behind),
            Err(_) => Vec::new(),
        };
        drop(changing);
        freeze::let_go_of_all(core, &gone);
        match changed {
            Ok(changed) => {
                finish(core, changed);
                return Ok(());
            }
            Err(obstacle) => means.overcome(obstacle, page)?,
        }
    }
}

/// After the source has punched a hole: its pages leave the cache. A folio that has others, too, is
/// split. If that cannot be, it goes if it is clean, and gets zeros there if it is not. The caller
/// has the file's turn, and holds `resizing`; writes to these pages wait. After an error a folio at
/// an end of the hole is as it was, and dirty.
pub(super) fn drop_hole(handle: &Handle, pages: &Range<u64>) -> Result<()> {
    let Handle { core, mapping, .. } = handle;
    let (mut means, mut may_split, mut result) = (Means::new(handle), true, Ok(()));
    // Whether the folios at its begin and at its end are as they shall be.
    let (mut begin_done, mut end_done) = (false, false);
    // Ends: as in `write`; each folio at an end is split, dropped or changed once.
    loop {
        let mut changing = mapping.change();
        let at_begin = core.folio_at(&changing, pages.start).filter(|it| it.page < pages.start);
        let at_end = core.folio_at(&changing, pages.end - 1).filter(|it| it.end() > pages.end);
        let of_begin = at_begin.filter(|_| !begin_done);
        let Some(folio) = of_begin.or(at_end.filter(|_| !end_done)) else {
            let from = at_begin.map_or(pages.start, FolioAt::end);
            let until = at_end.map_or(pages.end, |it| it.page);
            let gone = freeze::drop_within(core, &mut changing, from..until.max(from));
            drop(changing);
            freeze::let_go_of_all(core, &gone);
            freeze::collect(core);
            return result;
        };
        if may_split && !core.frames.frame(folio.frame).is_changing() {
            let ends = [pages.start, pages.end].into_iter();
            let inside = ends.filter(|it| (folio.page + 1..folio.end()).contains(it));
            let order = inside.map(u64::trailing_zeros).min().unwrap_or(0) as u8;
            match split(core, changing, folio, order) {
                Ok(going_on) => changing = going_on,
                Err(again) => {
                    may_split = again;
                    continue;
                }
            }
        }
        if core.is_clean(&mut changing, folio.page) {
            let gone = freeze::drop_within(core, &mut changing, folio.page..folio.end());
            drop(changing);
            freeze::let_go_of_all(core, &gone);
            continue;
        }
        let offset = |page: u64| ((page - folio.page) << PAGE_SHIFT) as usize;
        let zeros = offset(pages.start.max(folio.page))..offset(pages.end.min(folio.end()));
        let bytes = core.frames.frame(folio.frame).order().bytes();
        let store = |to: *mut u8| {
            let to = NonNull::new(to).expect("the arena is not at 0");
            // SAFETY: as in `write`.
            unsafe { Extent::new(to, bytes) }.zero(zeros.start, zeros.len());
        };
        let (length, copy) = (Length::Reaches(0), &mut means.copy);
        let changed = freeze::change(core, &mut changing, folio, &zeros, length, copy, store);
        drop(changing);
        match changed {
            Ok(changed) => finish(core, changed),
            Err(obstacle) => match means.overcome(obstacle, folio.page) {
                Ok(()) => continue,
                Err(error) => result = Err(error),
            },
        }
        begin_done |= folio.page < pages.start;
        end_done |= folio.end() > pages.end;
    }
}
