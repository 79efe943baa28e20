//! Pages of own memory that are there: for a copy, or for as long as somebody holds them.

use std::ops::Range;

use super::Area;
use crate::error::Result;
use crate::frames::FrameNumber;
use crate::map::space::held::HeldFor;
use crate::map::space::vma::FaultAccess;
use crate::mapped::pagemap::PagemapEntry;
use crate::mapped::task::{Waiter, now};
use crate::pages::core::Held;
use crate::pages::handle::Handle;
use crate::pages::mapping::Changing;

pub(in crate::map::space) enum CopyPart<'a> {
    Load(usize, &'a mut [u8]),
    Store(usize, &'a [u8]),
}

/// A range of own memory whose pages stay in memory, at their address and accessible, as long as
/// this is there: see [`AnonMap::hold`](crate::AnonMap::hold).
#[must_use = "dropped at once, it holds nothing"]
pub struct HeldRange<'a> {
    area: &'a Area,
    range: Range<usize>,
    _held: HeldFor<'a>,
}

impl std::fmt::Debug for HeldRange<'_> {
    /// One line: which bytes, and where.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.as_mut_ptr();
        f.debug_struct("HeldRange").field("range", &self.range).field("at", &at).finish()
    }
}

impl<'a> HeldRange<'a> {
    pub(in crate::map::space) fn new(
        area: &'a Area,
        handle: &'a Handle,
        range: Range<usize>,
    ) -> Result<Self> {
        let mut held = HeldFor::new(handle, range.start as u64..range.end as u64);
        let pages = held.pages();
        held.claim(pages.end - pages.start)?;
        for page in pages {
            held.folios.push(area.hold(handle, page)?);
        }
        Ok(HeldRange { area, range, _held: held })
    }

    /// The bytes; what [`AnonMap::as_mut_ptr`](crate::AnonMap::as_mut_ptr) says of the memory holds
    /// for them.
    pub fn as_mut_ptr(&self) -> *mut [u8] {
        let first = self.area.reservation.start.wrapping_add(self.range.start);
        std::ptr::slice_from_raw_parts_mut(first, self.range.len())
    }
}

impl Area {
    /// Copies a part of `page`, which is brought if it is absent.
    /// Error: as [`bring`](Self::bring); the system refuses the access.
    pub(in crate::map::space) fn copy(
        &self,
        handle: &Handle,
        page: u64,
        mut copy: CopyPart<'_>,
    ) -> Result<()> {
        let access = match copy {
            CopyPart::Load(..) => FaultAccess::Load,
            CopyPart::Store(..) => FaultAccess::Store,
        };
        // Whether the page is looked up in the page table, as it could not be copied before.
        let mut looks = false;
        // Ends: each turn but the last brings the page, which the program has taken away before.
        loop {
            let look = || looks.then(|| self.entry(page)).flatten();
            let (changing, _) = self.there(handle, page, access, look)?;
            let at = self.address(page).addr();
            let copied = match &mut copy {
                CopyPart::Load(from, to) => self.proc.load(at + *from, to),
                CopyPart::Store(to, bytes) => self.proc.store(at + *to, bytes),
            };
            let Err(why) = copied else { return Ok(()) };
            let entry = self.entry(page);
            let was_protected = !looks && entry.is_some_and(PagemapEntry::is_protected);
            if !was_protected && !entry.is_some_and(PagemapEntry::is_absent) {
                drop(changing);
                return Err(handle.mapping.page_error("access", page, why));
            }
            looks = true;
        }
    }

    /// Brings `page`, and keeps it in memory as long as what is returned, unless it is forgotten. A
    /// store to it is no fault meanwhile, and it is not written to the swap.
    /// Error: as [`copy`](Self::copy); the page is held too often.
    fn hold<'a>(&self, handle: &'a Handle, page: u64) -> Result<Held<'a>> {
        let look = || self.entry(page);
        let (changing, head) = self.there(handle, page, FaultAccess::Store, look)?;
        let held = Area::held(&handle.core, &handle.mapping, page, head);
        drop(changing);
        held
    }

    /// Brings `page` for an access, as [`bring`](Self::bring), also if it is in the index, and the
    /// page table, which `look` may look up, does not have it, or has it protected against the
    /// access. Returns the `change` mutex, under which it is there.
    fn there<'a>(
        &self,
        handle: &'a Handle,
        page: u64,
        access: FaultAccess,
        look: impl Fn() -> Option<PagemapEntry>,
    ) -> Result<(Changing<'a>, FrameNumber)> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        core.check_owner()?; // before the mutex, which a forked child may find locked
        // Ends: each turn but the last brings the page; it seldom leaves right after it came.
        loop {
            let mut changing = mapping.change();
            let is_there = |head: &FrameNumber| !core.frames.frame(*head).is_changing();
            let head = changing.head(page).filter(is_there);
            let entry = head.and_then(|_| look());
            let is_absent = entry.is_some_and(PagemapEntry::is_absent);
            let Some(head) = head.filter(|_| !is_absent) else {
                drop(changing);
                now(self.bring(handle, page, access, Waiter::Thread))?;
                continue;
            };
            if access == FaultAccess::Store {
                self.store(core, &mut changing, page, entry);
            }
            return Ok((changing, head));
        }
    }
}
