//! Memory of the budget for copies: contiguous bytes that a program keeps, of no file.
//!
//! A copy of up to 2 MiB is *inside*, in a free block of the arena, if such a block can be made. A
//! longer one, or where there is no block, is *outside*, in memory of its own (mmap(2)), for which
//! it takes as many pages of the arena, and gives their memory back to the system. So the arena and
//! all copies together have exactly the budget. It takes whole runs as long as there are any: the
//! memory of a part of a huge page comes back to the system only when that is short of it.
//!
//! Nothing evicts or moves copies. What all have is limited as pins are. Until its bytes were read,
//! a copy also counts as on its way from its file (`pressure/on_its_way.rs`).

use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::compact::make_block;
use super::evict::{evict, evict_at_once};
use super::unmovable::alloc_unmovable_now;
use super::{Patience, Shortage, kept_pages_max, shortage};
use crate::base::mutant::{self, Mutant};
use crate::base::sizes::BLOCK_ORDER_MIN;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::frames::{FrameNumber, Order, PAGE_BYTES};
use crate::pages::core::Core;
use crate::pages::mapping::Mapping;
use crate::pages::pressure::{CopyCounts, Refused};

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

#[derive(Debug)]
pub(crate) struct Copied {
    /// Until it was read.
    reading: Option<(Arc<Mapping>, CopyCounts)>,
    heads: Vec<FrameNumber>,
    got: u32,
    counted: u32,
    outside: Option<CopyMapping>,
    bytes: usize,
    core: Arc<Core>,
}

#[derive(Debug)]
struct CopyMapping(NonNull<u8>, usize);

// SAFETY: an address range that the owner alone unmaps.
unsafe impl Send for CopyMapping {}
// SAFETY: as above.
unsafe impl Sync for CopyMapping {}

/// Memory for a copy of `bytes` bytes, at least one. With `needed`, evicts and waits until there is
/// some; without, says why there is none at once: [`Refused::OwnCopies`] if the file has enough on
/// its way. Error: [`ErrorKind::NoMemory`] for the page `page` of `mapping`; [`ErrorKind::System`]
/// if the system refuses the mapping; [`ErrorKind::Forked`].
pub(crate) fn allocate_copy(
    core: &Arc<Core>,
    (mapping, page): (&Arc<Mapping>, u64),
    bytes: usize,
    needed: bool,
) -> Result<std::result::Result<Copied, Refused>> {
    core.check_owner()?;
    let none = |shortage: Shortage| shortage.of(mapping, page);
    let pages = u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX);
    let most = kept_pages_max(core) as u32;
    if pages > most {
        return Err(none(shortage(core, bytes as u64)));
    }
    let (heads, core_too) = (Vec::new(), core.clone());
    let (reading, outside) = (None, None);
    let mut copied = Copied { reading, heads, got: 0, counted: 0, outside, bytes, core: core_too };
    let mut patience = Patience::new(core);
    let mut evicted = 0;
    // Ends: when there is enough, or patience is at an end.
    loop {
        let seen = core.pressure.progress_seen();
        let mut why = Refused::OwnCopies;
        // If others have all that copies may have, evicting is of no use.
        if copied.counts_for(mapping, pages) && {
            why = Refused::NoMemory;
            copied.count(pages, most)
        } {
            // Adjacent pages are worth evicting more.
            if copied.grow(pages, evicted > 2 * pages)? {
                return Ok(Ok(copied));
            }
            let wanted = (pages - copied.got.min(pages)).max(core.pressure.direct_pages);
            let evict = if needed { evict } else { evict_at_once };
            let some = evict(core, wanted).evicted;
            evicted = evicted.saturating_add(some);
            if some > 0 {
                continue;
            }
            if copied.grow(pages, true)? {
                return Ok(Ok(copied));
            }
            // Another one may want what this one has, and have what this one wants.
            copied.let_go(Core::give_back);
        }
        if !needed {
            return Ok(Err(why));
        }
        if patience.is_over_for_copy(core, mapping, why) {
            return Err(none(shortage(core, bytes as u64)));
        }
        patience.sleep(core, seen);
    }
}

impl Copied {
    /// As on its way, unless the file has enough.
    fn counts_for(&mut self, mapping: &Arc<Mapping>, pages: u32) -> bool {
        if self.reading.is_none() {
            let counts = self.core.pressure.shares.copy_begins(&mapping.on_its_way, pages);
            self.reading = counts.map(|counts| (mapping.clone(), counts));
        }
        self.reading.is_some()
    }

    pub(crate) fn is_read(&mut self) {
        self.counts_no_more();
        self.core.pressure.progress();
    }

    fn counts_no_more(&mut self) {
        if let Some((mapping, counts)) = self.reading.take() {
            self.core.pressure.shares.copy_ends(&mapping.on_its_way, counts);
        }
    }

    /// Unless all copies together had more than `most` then.
    fn count(&mut self, pages: u32, most: u32) -> bool {
        if self.counted == 0 && !mutant::on(Mutant::CopyUncounted) {
            if self.core.pressure.copied.add(pages, most).is_err() {
                return false;
            }
            self.counted = pages;
        }
        true
    }

    /// Takes what it gets; true once that is enough. With `any`, pages need not be adjacent.
    fn grow(&mut self, pages: u32, any: bool) -> Result<bool> {
        let core = &*self.core;
        if pages <= Order::MAX.frames() && self.got == 0 {
            let order = u8::try_from(pages.next_power_of_two().ilog2()).ok().and_then(Order::new);
            let block = order.and_then(|order| block(core, order));
            if let Some(head) = block.filter(|_| pages < Order::MAX.frames()) {
                claim(core, head); // before the rest of a run is given back to it
            }
            if let Some(kept) = block.and_then(|head| core.frames.cut(head, pages)) {
                (self.heads, self.got) = (kept, pages);
                return Ok(true);
            }
        }
        if pages <= Order::MAX.frames() && !any {
            return Ok(false);
        }
        // Ends: each turn takes a folio, or is the last.
        while self.got < pages {
            let Some((head, order)) = empty(core, pages - self.got, any) else { return Ok(false) };
            if order < Order::MAX {
                claim(core, head);
            }
            self.heads.push(head);
            self.got += order.frames();
        }
        // The last run may be too much.
        let more = self.got.saturating_sub(self.counted);
        if self.counted > 0 && core.pressure.copied.add(more, u32::MAX).is_ok() {
            self.counted += more;
        }
        self.outside = Some(CopyMapping::map(self.bytes)?);
        Ok(true)
    }

    fn let_go(&mut self, put: fn(&Core, FrameNumber)) {
        self.outside = None; // first: the arena and this together have no more than the budget
        // Before the puts, each of which may wake one that waits for these shares.
        self.counts_no_more();
        self.core.pressure.copied.take_back(std::mem::take(&mut self.counted));
        for head in self.heads.drain(..) {
            put(&self.core, head);
        }
        self.got = 0;
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        let inside = || self.core.frames.address(self.heads[0]);
        self.outside.as_ref().map_or_else(
            || NonNull::new(inside()).expect("the arena is not at 0"),
            |outside| outside.0,
        )
    }

    /// Nobody else uses them yet.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: memory of its own, mapped as long as it lives, of at least that length. Touched
        // frames are initialised; late readers discard what they got.
        unsafe { std::slice::from_raw_parts_mut(self.address().as_ptr(), self.bytes) }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // A forked child has the parent's frames, and none of its locks.
        if self.core.owner.is_here() {
            self.let_go(Core::put);
        }
    }
}

impl CopyMapping {
    fn map(bytes: usize) -> Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the system's choice replaces nothing.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, access, flags | MapFlags::NORESERVE)
        };
        let at = at.map_err(|errno| Cause::reserve(bytes as u64, errno.into()))?;
        Ok(CopyMapping(NonNull::new(at.cast()).expect("the system maps nothing at 0"), bytes))
    }
}

impl Drop for CopyMapping {
    fn drop(&mut self) {
        // SAFETY: this mapping alone, which nobody uses any more.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), self.1) };
        debug_assert!(unmapped.is_ok(), "its own mapping: {unmapped:?}");
    }
}

fn block(core: &Core, order: Order) -> Option<FrameNumber> {
    let get = || match order {
        Order::MAX => core.frames.alloc(order),
        _ => alloc_unmovable_now(core, order),
    };
    get().or_else(|| make(core, order).then(get)?)
}

/// For a copy outside that wants so many pages more: a run, or with `any` whatever there is.
fn empty(core: &Core, pages: u32, any: bool) -> Option<(FrameNumber, Order)> {
    let run = || core.frames.has_free(Order::MAX).then(|| core.frames.alloc_empty(Order::MAX))?;
    let whole = run().or_else(|| make(core, Order::MAX).then(run)?);
    whole.or_else(|| any.then(|| core.frames.alloc_empty(Order::of_block_at(0, pages.into())))?)
}

/// Nobody should try to empty the run of a smaller folio.
fn claim(core: &Core, head: FrameNumber) {
    if !mutant::on(Mutant::CopyAmongMovable) {
        core.frames.claim_run_of(head);
    }
}

fn make(core: &Core, order: Order) -> bool {
    order.get() >= BLOCK_ORDER_MIN && make_block(core, order)
}
