//! Bytes of a map that stay there while somebody holds them: for system calls and devices.
//!
//! Here: bringing the pages of a range into the mirror, and keeping them there by references. The
//! kernel maps a page that is in the mirror by itself, also when a system call touches it: so no
//! such access asks anybody. What the range costs others is bounded: the pages of its folios count
//! with those of own memory that are held ([`HeldFor`]).
//!
//! A page that is in the mirror need not be in the page table. So a fault whose message has waited
//! since before the range was held could fail now, as the file was cut, and poison it. Whoever
//! poisons and whoever completes a range exclude each other ([`Holds`]): what is poisoned before is
//! zapped, and what is held is not poisoned.

use std::ops::{Deref, Range};
use std::time::Instant;

use crate::access::many;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::locks::Mutex;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::map::{bring, lend};
use crate::mapped::task::{Waiter, now};
use crate::pages::core::Held;
use crate::pages::handle::Handle;

/// At most this part of a budget is held.
const HELD_SHARE: u32 = 4;

/// The folios that are held for a range of a map, as long as this is there.
pub(super) struct HeldFor<'a> {
    handle: &'a Handle,
    /// Of the file, or of the own memory.
    bytes: Range<u64>,
    pub(super) folios: Vec<Held<'a>>,
    /// How many pages it has claimed of those that may be held.
    claimed: u32,
}

impl<'a> HeldFor<'a> {
    pub(super) fn new(handle: &'a Handle, bytes: Range<u64>) -> Self {
        HeldFor { handle, bytes, folios: Vec::new(), claimed: 0 }
    }

    pub(super) fn pages(&self) -> Range<u64> {
        if self.bytes.is_empty() {
            return 0..0;
        }
        self.bytes.start >> PAGE_SHIFT..self.bytes.end.div_ceil(PAGE_BYTES as u64)
    }

    fn most(&self) -> u32 {
        self.handle.core.frames.frames() / HELD_SHARE
    }

    /// So many pages more are held.
    /// Error: [`ErrorKind::TooLarge`].
    pub(super) fn claim(&mut self, pages: u64) -> Result<()> {
        let held = &self.handle.core.mapped.held;
        let claims = u32::try_from(pages).unwrap_or(u32::MAX);
        held.add(claims, self.most()).map_err(|held| {
            let bytes = |pages: u32| u64::from(pages) << PAGE_SHIFT;
            let (held_bytes, most_bytes) = (bytes(held), bytes(self.most()));
            let Range { start, end } = self.bytes;
            let (name, pages) = (self.handle.mapping.path.clone(), self.pages());
            let asked_bytes = (pages.end - pages.start) << PAGE_SHIFT;
            Cause::HoldTooLarge { name, start, end, asked_bytes, held_bytes, most_bytes }
        })?;
        self.claimed += claims;
        Ok(())
    }
}

impl Drop for HeldFor<'_> {
    fn drop(&mut self) {
        self.folios.clear();
        self.handle.core.mapped.held.take_back(self.claimed);
    }
}

/// What is held of a map. No other lock is taken under it.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<MapHolds>);

#[derive(Debug, Default)]
struct MapHolds {
    /// How many ranges are held, or about to be.
    begun: u32,
    /// The ranges whose pages are all in the mirror.
    complete: Vec<Range<usize>>,
    /// A page of the map was poisoned once.
    is_poisoned: bool,
}

impl Holds {
    #[cfg(feature = "testing")]
    pub(super) fn are_there(&self) -> bool {
        self.0.lock().begun > 0
    }

    /// One more. The caller has the map's lock, and the map can be read.
    pub(super) fn begin(&self) -> Hold<'_> {
        self.0.lock().begun += 1;
        Hold { holds: self, addresses: None }
    }

    /// Calls `poison` for the page at `address`, unless it is held: then the access that has failed
    /// finds it when it is repeated.
    pub(super) fn poison(&self, address: usize, poison: impl FnOnce()) {
        let mut holds = self.0.lock();
        let has_it = |held: &Range<usize>| {
            let start = held.start & !(PAGE_BYTES - 1);
            (start..held.end.next_multiple_of(PAGE_BYTES)).contains(&address)
        };
        if !holds.complete.iter().any(has_it) || mutant::on(Mutant::HeldIsPoisoned) {
            holds.is_poisoned = true;
            poison();
        }
    }
}

/// One of these.
pub(super) struct Hold<'a> {
    holds: &'a Holds,
    /// Once it is complete.
    addresses: Option<Range<usize>>,
}

impl Hold<'_> {
    /// All pages at these addresses are in the mirror, and stay there. Calls `zap` if one of them
    /// may be poisoned; from then on none is.
    fn complete(
        &mut self,
        addresses: Range<usize>,
        zap: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut holds = self.holds.0.lock();
        if holds.is_poisoned {
            zap()?;
        }
        holds.complete.push(addresses.clone());
        self.addresses = Some(addresses);
        Ok(())
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut holds = self.holds.0.lock();
        holds.begun -= 1;
        if let Some(addresses) = self.addresses.take() {
            let at = holds.complete.iter().position(|it| *it == addresses);
            holds.complete.swap_remove(at.expect("it is complete"));
        }
    }
}

/// A range of a map whose pages stay in memory as long as this is there: see
/// [`Map::hold`](crate::Map::hold).
///
/// It is the bytes: they do not change, whatever happens to the file.
#[must_use = "dropped at once, it holds nothing"]
pub struct HeldBytes<'a> {
    bytes: &'a [u8],
    range: Range<usize>,
    held: HeldFor<'a>,
    hold: Hold<'a>,
}

impl std::fmt::Debug for HeldBytes<'_> {
    /// One line: which bytes, and where.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.as_ptr();
        f.debug_struct("HeldBytes").field("range", &self.range).field("at", &at).finish()
    }
}

impl<'a> HeldBytes<'a> {
    /// Holds a range of the map that has the file's bytes from `map_start` on at `at`. `zap` takes
    /// it out of the page table, which ends poison.
    ///
    /// # Safety
    /// As long as `hold` is borrowed, the map is at `at`, and can be read as long as it is there.
    pub(super) unsafe fn new(
        handle: &'a Handle,
        hold: Hold<'a>,
        (at, map_start): (*const u8, u64),
        range: Range<usize>,
        zap: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let (first, len) = (at.wrapping_add(range.start), range.len());
        let held =
            HeldFor::new(handle, map_start + range.start as u64..map_start + range.end as u64);
        let mut it = HeldBytes { bytes: &[], range, held, hold };
        if len == 0 {
            return Ok(it);
        }
        let pages = it.held.pages();
        if pages.end - pages.start > u64::from(it.held.most()) {
            it.held.claim(pages.end - pages.start)?; // which fails
        }
        many::will_need(handle, pages.clone());
        let mut page = pages.start;
        // Ends: each turn holds a folio.
        while page < pages.end {
            let folio = folio_in_mirror(handle, page)?;
            let identity = folio.frame().identity();
            it.held.claim(u64::from(identity.order.frames()))?;
            let (has_end, folio_end) = (folio.file_pages_end(), identity.pages().end);
            if has_end < pages.end.min(folio_end) && !mutant::on(Mutant::HoldsWholeFolios) {
                // The mirror has no page of the folio beyond that; the file may be longer by now.
                let path = handle.mapping.path.clone();
                let len_bytes = folio.offset() + folio.frame().file_bytes() as u64;
                return Err(Cause::BeyondEnd { path, page: has_end, len_bytes }.into());
            }
            page = folio_end;
            if !mutant::on(Mutant::HoldsNothing) {
                it.held.folios.push(folio);
            }
        }
        it.hold.complete(first.addr()..first.addr() + len, zap)?;
        // SAFETY: in the map, of which the caller says that it stays. Its pages are those of folios
        // with references, whose bytes nobody changes, and which the map shows as long as there are
        // references.
        it.bytes = unsafe { std::slice::from_raw_parts(first, len) };
        Ok(it)
    }
}

/// The folio of `page`, in the mirror as long as what this returns.
fn folio_in_mirror(handle: &Handle, page: u64) -> Result<Held<'_>> {
    let since = Instant::now();
    // Ends: there is a bound for how long an older version is waited for.
    loop {
        handle.check_page(page)?;
        if let Some(held) = now(bring::put(handle, page, Waiter::Thread))? {
            return Ok(held);
        }
        if since.elapsed() > handle.core.options.patience() {
            return Err(bring::older_version(&handle.mapping));
        }
        handle.mapping.mirror_of_folios().wait_for_place(&(page..page + 1), lend::NAP);
    }
}

impl Deref for HeldBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl AsRef<[u8]> for HeldBytes<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
