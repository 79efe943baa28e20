//! Page-outs: how bytes of own memory get to the swap, and pages leave memory; and forgetting
//! pages.
//!
//! # A page-out, step by step
//!
//! 1. under the `change` mutex: take slots, adjacent ones if there are, for the pages that are
//!    dirty, in memory, and used by nobody;
//! 2. their states (`mapped/swap/pages.rs`) become `Writing`, and then they are protected against
//!    stores: one call for adjacent pages;
//! 3. without it, copy them (`proc.rs`), and write the copies, unless they are all zeros, which a
//!    page that was never stored to is, too: adjacent slots by one write;
//! 4. under the mutex: the pages that were not stored to meanwhile are clean; the slots of the
//!    others are free again.
//!
//! Then eviction takes them out as any other clean folio, under the mutex again: a store that comes
//! between 4 and that makes the page dirty, and it stays.
//!
//! # Why the bytes can be read in step 3
//!
//! Pages that are `Writing`, or `Stale` after a store, stay in memory: they are not evicted, not
//! forgotten, and not unmapped, before the write has ended. A store that ends the protection may
//! change them meanwhile; then what was written is of no use, and nobody reads it. What the program
//! takes away meanwhile is written as it was before, or not at all; what it has forbidden to read
//! is written like any other.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Area, Origin, calls};
use crate::base::mutant::{self, Mutant};
use crate::error::Result;
use crate::frames::{FrameNumber, PAGE_BYTES, PAGE_SHIFT};
use crate::mapped::swap::pages::{self, OwnMemory, PageState, PageStates, Unused, Written};
use crate::mapped::swap::slots::{CLUSTER_SLOTS, Slot, SwapSlots};
use crate::mapped::swap::{Why, add};
use crate::pages::core::Core;
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::pages::mapping::{Changing, Mapping};
use crate::pages::reclaim;
use crate::pages::residency::Candidate;
use crate::source::{AlignedBuffer, Extent};

/// The most pages that are paged out, or forgotten, under one hold of the mutex.
const AT_ONCE: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    /// It is all zeros, and so is its origin.
    Zeros,
    Bytes,
    /// The program has taken it away, and nothing is to be written.
    Nothing,
}

impl OwnMemory for Area {
    fn take_out_of_memory(&self, pages: Range<u64>) -> bool {
        calls::give_back_pages(&self.addresses(&pages)).is_ok()
    }

    fn distrust(&self, states: &mut PageStates, pages: &[u64]) -> Vec<Unused> {
        self.distrust_pages(states, pages)
    }

    fn write_out(&self, mapping: u32, pages: &[u64], now: bool) {
        let Some(core) = self.core.upgrade() else { return };
        // What was forgotten meanwhile may have left its number to another file.
        let is_its = |it: &Arc<Mapping>| {
            it.own().is_some_and(|own| std::ptr::addr_eq(Arc::as_ptr(own), self))
        };
        let Some(mapping) = core.mappings.get(mapping).filter(is_its) else { return };
        for pages in pages.chunks(CLUSTER_SLOTS as usize) {
            self.write_some(&core, &mapping, pages, now);
        }
    }
}

impl Area {
    /// A page-out of at most a cluster; of fewer pages if there is no buffer for all.
    fn write_some(&self, core: &Core, mapping: &Mapping, pages: &[u64], now: bool) {
        let swap = core.own_swap();
        let Some(mut buffer) = buffer_for(pages.len()) else {
            // Only what frees memory elsewhere helps.
            if let Some(swap) = swap {
                swap.lacks_buffer();
            }
            return;
        };
        let pages = &pages[..buffer.len() / PAGE_BYTES];
        // While it rests, what is all zeros leaves all the same.
        let open = swap.filter(|swap| now || !swap.rests());
        self.writes.lock().under_way += 1;
        let mut changing = mapping.change();
        let unused = |page: &u64| {
            let Some(head) = changing.head(*page) else { return false };
            let frame = core.frames.frame(head);
            let is_used = frame.count.word().refs() > 1 && !mutant::on(Mutant::PageOutHeld);
            !frame.is_changing() && !is_used
        };
        let there: Vec<u64> = if self.is_closed() {
            Vec::new()
        } else {
            pages.iter().copied().filter(unused).collect()
        };
        let states = changing.own().expect("own memory has states");
        let mut dirty: Vec<u64> =
            there.into_iter().filter(|&page| states.get(page) == PageState::Dirty).collect();
        // What is not there cannot be read.
        let gone = self.miss_absent(core, &mut changing, &mut dirty);
        let states = changing.own().expect("own memory has states");
        // Under the mutex: else whoever closes the area would find slots in use for pages of it.
        let slots = open.map(|swap| swap.slots().take(dirty.len() as u32)).unwrap_or_default();
        let slots = slots.into_iter().flatten().map(Slot);
        let mut with_slots: Vec<(u64, Slot)> = dirty.iter().copied().zip(slots).collect();
        let without_slots = &dirty[with_slots.len()..];
        // What is all zeros needs none; that it looks so is a hint.
        let loaded = self.load(without_slots, &mut buffer);
        for (&page, loaded) in without_slots.iter().zip(loaded) {
            if loaded == Loaded::Zeros {
                // Relaxed: it only has to differ from others.
                let nth = self.without_slot.fetch_add(1, Ordering::Relaxed);
                let all = swap.map_or(0, |swap| swap.slots().all());
                with_slots.push((page, SwapSlots::none(all, nth)));
            } else if let Some(swap) = open {
                add(&swap.counters.full, 1);
                swap.rest(Why::Full);
            }
        }
        let protect = |run| calls::protect(self.fd(), &self.addresses(&run), true);
        let begun = pages::begin(states, with_slots.into_iter(), protect);
        drop(changing);
        freeze::let_go(core, &gone);
        let written = self.write(core, &begun, &mut buffer);
        let mut changing = mapping.change();
        let states = changing.own().expect("own memory has states");
        for (&(page, slot), &written) in begun.iter().zip(&written) {
            let unused = states.end_write(page, slot, written, || self.protect(page, false));
            match (&unused, written, swap) {
                (Unused(Some(_)), Written::InSlot, Some(swap)) => {
                    add(&swap.counters.stored_meanwhile, 1);
                }
                (_, Written::AsOrigin, Some(swap)) => add(&swap.counters.zeros, 1),
                _ => {}
            }
            core.give_slots([unused]);
        }
        drop(changing);
        let mut writes = self.writes.lock();
        writes.under_way -= 1;
        writes.ended += 1;
        drop(writes);
        self.one_ended.notify_all();
    }

    /// Step 3.
    fn write(&self, core: &Core, begun: &[(u64, Slot)], bytes: &mut [u8]) -> Vec<Written> {
        let swap = core.own_swap();
        let pages: Vec<u64> = begun.iter().map(|(page, _)| *page).collect();
        let loaded = self.load(&pages, bytes);
        let as_yet = |loaded: &Loaded| match loaded {
            Loaded::Zeros => Written::AsOrigin,
            Loaded::Bytes | Loaded::Nothing => Written::Failed,
        };
        let mut written: Vec<Written> = loaded.iter().map(as_yet).collect();
        let mut n = 0;
        // Ends: each turn passes over at least one.
        while n < begun.len() {
            let goes_on = |end: usize| {
                end < begun.len()
                    && swap.is_some_and(|swap| begun[end].1.0 < swap.slots().all())
                    && loaded[end] == Loaded::Bytes
                    && begun[end].1.0 == begun[n].1.0 + (end - n) as u32
            };
            let mut end = n;
            while goes_on(end) {
                end += 1;
            }
            if end == n {
                n += 1;
                continue;
            }
            let from = Extent::of(&mut bytes[n * PAGE_BYTES..end * PAGE_BYTES]);
            let call = core.engine.begin_call();
            if swap.is_some_and(|swap| swap.write(begun[n].1, &[from]).is_ok()) {
                written[n..end].fill(Written::InSlot);
            } else {
                call.fail();
            }
            n = end;
        }
        written
    }

    /// Copies the bytes of these pages, in rising order, to `bytes`: one call for adjacent ones.
    fn load(&self, pages: &[u64], bytes: &mut [u8]) -> Vec<Loaded> {
        let mut loaded = Vec::with_capacity(pages.len());
        let has_zeros_for_origin = matches!(self.origin, Origin::Zeros);
        let load = |page, to: &mut [u8]| self.proc.load(self.address(page).addr(), to).is_ok();
        for run in pages.chunk_by(|one, next| one + 1 == *next) {
            let at = loaded.len() * PAGE_BYTES;
            let to = &mut bytes[at..at + run.len() * PAGE_BYTES];
            let all = load(run[0], to);
            for (&page, to) in run.iter().zip(to.as_chunks_mut::<PAGE_BYTES>().0) {
                loaded.push(match all || load(page, to) {
                    true if has_zeros_for_origin && *to == [0; PAGE_BYTES] => Loaded::Zeros,
                    true => Loaded::Bytes,
                    false => Loaded::Nothing,
                });
            }
        }
        loaded
    }

    /// Pages leave memory if nobody uses them; what is dirty is written first. Returns how many.
    pub(in crate::map::space) fn page_out(handle: &Handle, pages: Range<u64>) -> Result<u64> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        core.check_owner()?;
        let (mut gone, mut from) = (0, pages.start);
        // Ends: each turn begins after the last one.
        while let Some((there, end)) = in_memory(core, mapping, from..pages.end) {
            core.let_go_of_recent(|head| there.contains(&head));
            let folios = there.into_iter().map(|head| Candidate::of(&core.frames, head));
            let of_this = |folio: &Candidate| folio.identity.mapping == mapping.id;
            let folios: Vec<_> = folios.filter(of_this).collect();
            if !folios.is_empty() {
                gone += reclaim::evict_these(core, folios);
            }
            from = end;
        }
        Ok(gone)
    }

    /// The bytes of these pages are not wanted any more: the next access finds their origin. With
    /// `for_good` no page gets in any more. Waits for writes of them to the swap.
    /// Error: the system keeps a page in memory, as the program has sealed it. It has its bytes as
    /// before; the others are forgotten. None with `for_good`.
    pub(in crate::map::space) fn forget(
        &self,
        handle: &Handle,
        pages: Range<u64>,
        for_good: bool,
    ) -> Result<()> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        let mut done = Ok(());
        if for_good {
            let _changing = mapping.change();
            self.closed.store(true, Ordering::Relaxed); // under the mutex
        }
        let mut from = pages.start;
        // Ends: each turn gets on, or follows one that waited for a write.
        while from < pages.end {
            let ended = self.writes.lock().ended;
            let mut changing = mapping.change();
            // Between these there is nothing to forget, however large the map is.
            let there = next_present(core, &mut changing, from..pages.end);
            let states = changing.own().expect("own memory has states");
            let stored_to = states.next_stored_to(from..pages.end);
            let Some(first) = there.into_iter().chain(stored_to).min() else { break };
            let end = pages.end.min(first + AT_ONCE);
            let at = (first..end).find(|&page| states.is_being_written(page)).unwrap_or(end);
            let mut gone = Vec::new();
            // The kernel takes all of a range out of memory, or an unknown part.
            let leave = |pages: Range<u64>| calls::give_back_pages(&self.addresses(&pages));
            if next_present(core, &mut changing, first..at).is_none()
                || leave(first..at).is_ok()
                || for_good
            {
                gone = forget_some(core, &mut changing, first..at);
            } else {
                for page in first..at {
                    match changing.head(page).map_or(Ok(()), |_| leave(page..page + 1)) {
                        Ok(()) => gone.extend(forget_some(core, &mut changing, page..page + 1)),
                        Err(why) if done.is_ok() => done = Err(Area::kept(mapping, page, &why)),
                        Err(_) => {}
                    }
                }
            }
            drop(changing);
            freeze::let_go(core, &gone);
            from = at;
            if at < end {
                let mut now = self.writes.lock();
                while now.ended == ended {
                    now = self.one_ended.wait(now);
                }
            }
        }
        core.pressure.progress();
        done
    }

    /// The error that the system does not take a page out of memory.
    fn kept(mapping: &Mapping, page: u64, why: &std::io::Error) -> crate::error::Error {
        let text = format!(
            "the program has sealed the page (mseal), or mapped something else there, so that the \
             system keeps it in memory, and it is as before: {why}"
        );
        mapping.page_error("discard", page, std::io::Error::new(why.kind(), text))
    }
}

/// Pages that are not being written, and not in memory any more, are forgotten. The slot of one that
/// is on its way is being read, and is given back by who reads it (`bring.rs`). The caller lets go
/// of what is returned, without the mutex.
fn forget_some(core: &Core, changing: &mut Changing<'_>, pages: Range<u64>) -> Vec<FrameNumber> {
    for page in pages.clone() {
        let states = changing.own().expect("own memory has states");
        let unused = states.forget(page).expect("it is not being written");
        let head = changing.head(page).filter(|_| !mutant::on(Mutant::SlotFreedEarly));
        let is_read = head.is_some_and(|head| core.frames.frame(head).is_changing());
        core.give_slots(Some(unused).filter(|_| !is_read));
    }
    freeze::drop_within(core, changing, pages)
}

fn next_present(core: &Core, changing: &mut Changing<'_>, pages: Range<u64>) -> Option<u64> {
    changing.writer(&core.nodes).next_present(pages).map(|folio| folio.page)
}

/// The first folios of these pages, and where to look for further ones.
fn in_memory(core: &Core, mapping: &Mapping, pages: Range<u64>) -> Option<(Vec<FrameNumber>, u64)> {
    let mut changing = mapping.change();
    let first = next_present(core, &mut changing, pages.clone())?;
    let end = pages.end.min(first + AT_ONCE);
    Some(((first..end).filter_map(|page| changing.head(page)).collect(), end))
}

/// A buffer for so many pages, or for as many as the heap has memory for. `None`: for none.
fn buffer_for(pages: usize) -> Option<AlignedBuffer> {
    let mut fewer = std::iter::successors(Some(pages), |n| (*n > 1).then_some(n / 2));
    fewer.find_map(|n| AlignedBuffer::try_zeroed(n * PAGE_BYTES, PAGE_BYTES))
}

pub(in crate::map::space) fn pages_of(range: &Range<usize>) -> Range<u64> {
    (range.start >> PAGE_SHIFT) as u64..range.end.div_ceil(PAGE_BYTES) as u64
}
