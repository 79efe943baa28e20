//! Folios that are being filled: steps 3 to 5 (`mod.rs`).

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::base::wait;
use crate::error::{Cause, Error, Result};
use crate::frames::{FrameNumber, Order, PAGE_SHIFT};
use crate::pages::core::Core;
use crate::pages::dirt;
use crate::pages::failures::Failed;
use crate::pages::handle::Handle;
use crate::pages::mapping::Mapping;
use crate::pages::written::FileUse;
use crate::source::{self, Extent, Request, Transfer, Truncated};

/// Who wants what is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// A thread that waits for the first folio, and for its memory.
    Thread,
    /// A future that waits for the first folio. It does not wait here for memory.
    Future,
    /// A batch of a thread or a future that waits for all folios, and for no memory here.
    Batch,
    /// Nobody: it is read ahead.
    Nobody,
}

/// A folio that is being filled, with a reference of the filler's, or is about to be.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) head: FrameNumber,
    pub(crate) page: u64,
    pub(crate) order: Order,
}

impl Filling {
    pub(super) fn end(&self) -> u64 {
        self.page + u64::from(self.order.frames())
    }
}

/// Folios that are adjacent in the file and are read at once. If an early return or a panic skips
/// [`finish`](Self::finish), the drop completes them with an error.
#[derive(Debug)]
pub(crate) struct FillBatch {
    core: Arc<Core>,
    mapping: Arc<Mapping>,
    folios: VecDeque<Filling>,
    /// What the source of a file that is written to had before it was read: it may grow meanwhile.
    source_bytes: u64,
    /// What was read ahead leaves no error.
    wanted: For,
    failed: Option<Arc<Failed>>,
}

impl FillBatch {
    pub(crate) fn new(reader: &Handle, wanted: For) -> Self {
        let (core, mapping) = (reader.core.clone(), reader.mapping.clone());
        // Others may cut what is not written to here: then a short read is an error.
        let is_ours = mapping.written.is_claimed(FileUse::Written);
        let source_bytes = if is_ours { mapping.written.source_bytes() } else { u64::MAX };
        FillBatch { core, mapping, folios: VecDeque::new(), source_bytes, wanted, failed: None }
    }

    /// The batch must not be empty.
    fn offset(&self) -> u64 {
        self.folios[0].page << PAGE_SHIFT
    }

    fn extents(&self) -> Vec<Extent<'_>> {
        let extent = |filling: &Filling| {
            let address = NonNull::new(self.core.frames.address(filling.head));
            let address = address.expect("the arena is not at 0");
            // SAFETY: only its filler writes to it; it stays mapped as long as the core lives;
            // others read it by racing loads, or under a reference once the version is even.
            unsafe { Extent::new(address, filling.order.bytes()) }
        };
        self.folios.iter().map(extent).collect()
    }

    /// Steps 3 to 5, in this thread; as [`finish`](Self::finish).
    pub(crate) fn read(self, keep_first: bool) {
        // Step 3.
        let read = self.mapping.backing.read(self.offset(), &self.extents());
        self.finish(read, keep_first);
    }

    pub(crate) fn reading(&self) -> Transfer<'_> {
        (self.offset(), self.extents())
    }

    /// Does steps 3 to 5 asynchronously.
    pub(crate) fn request(self) -> Request {
        let offset = self.offset();
        let owned = |extent: Extent<'_>| {
            // SAFETY: as in `extents`; the completion keeps the core, and so the arena, alive.
            unsafe { Extent::new(extent.address(), extent.bytes()) }
        };
        let extents = self.extents().into_iter().map(owned).collect();
        let completion = move |read: io::Result<usize>| self.finish(read, false);
        // SAFETY: as above, until the completion is called.
        unsafe { Request::read(offset, extents, Box::new(completion)) }
    }

    pub(crate) fn tell(&mut self, failed: &Arc<Failed>) {
        self.failed = Some(failed.clone());
    }

    pub(crate) fn folios(&self) -> usize {
        self.folios.len()
    }

    /// The page after its last one.
    pub(crate) fn end(&self) -> Option<u64> {
        self.folios.back().map(Filling::end)
    }

    pub(super) fn first(&self) -> Option<FrameNumber> {
        self.folios.front().map(|first| first.head)
    }

    pub(crate) fn push(&mut self, filling: Filling) {
        debug_assert!(self.end().is_none_or(|end| end == filling.page));
        self.folios.push_back(filling);
    }

    /// Steps 4 and 5. With `keep_first`, the caller takes over the reference of the first folio.
    pub(crate) fn finish(mut self, read: io::Result<usize>, keep_first: bool) {
        self.land_all(read, keep_first);
    }

    /// Steps 3 to 5 of folios that a write covers, or that the source does not have yet: instead of
    /// a read, `store` gets the offset, address and length of each. Returns the end of what the
    /// file has of them now: the first that was dropped meanwhile, and what is behind it, is
    /// written in vain. The file then has the bytes before byte `end`.
    pub(crate) fn write(mut self, end: u64, mut store: impl FnMut(u64, *mut u8, usize)) -> u64 {
        let (core, mapping) = (self.core.clone(), self.mapping.clone());
        let mut reached = None;
        let mut last = 0;
        wait::together(|| {
            while let Some(filling) = self.folios.pop_front() {
                let (begin, bytes) = (filling.page << PAGE_SHIFT, filling.order.bytes());
                last = begin + bytes as u64;
                store(begin, core.frames.address(filling.head), bytes);
                if !land_written(&core, &mapping, &filling, end.min(last)) {
                    reached.get_or_insert(begin);
                }
                core.put(filling.head);
            }
        });
        reached.unwrap_or(end.min(last))
    }

    fn read_error(&self, offset: u64, asked_bytes: usize, cause: &Arc<io::Error>) -> Error {
        let (path, asked_bytes) = (self.mapping.path.clone(), asked_bytes as u64);
        Cause::Read { path, offset, asked_bytes, cause: cause.clone() }.into()
    }

    fn land_all(&mut self, read: io::Result<usize>, mut keep_first: bool) {
        let offset = self.offset();
        let asked_bytes: usize = self.folios.iter().map(|filling| filling.order.bytes()).sum();
        let read = read.map_err(Arc::new);
        // Whoever waits tries again.
        let refused = read.as_ref().is_err_and(|cause| source::is_refusal(cause));
        let failed = self.failed.take().filter(|_| !refused);
        if let (Err(cause), Some(failed)) = (&read, &failed) {
            let pages = self.folios[0].page..self.end().expect("it has folios");
            failed.remember(pages, self.read_error(offset, asked_bytes, cause));
        }
        // A waker may want another of the folios. If landing panics, the drop lands the rest.
        wait::together(|| {
            while let Some(filling) = self.folios.pop_front() {
                let at = (filling.page << PAGE_SHIFT) - offset;
                let path = || self.mapping.path.clone();
                let checked: Result<()> = match &read {
                    Ok(got) => {
                        let asked = filling.order.bytes() as u64;
                        let got = (*got as u64).saturating_sub(at).min(asked);
                        let expected = self.source_bytes.min(self.mapping.len_bytes());
                        Truncated::check(offset + at, asked, got, expected)
                            .map_err(|cause| Cause::Truncated { path: path(), cause }.into())
                    }
                    Err(cause) => Err(self.read_error(offset, asked_bytes, cause)),
                };
                // Steps 4 and 5.
                let tell = failed.as_deref().filter(|_| read.is_ok());
                land(&self.core, &self.mapping, &filling, checked, (self.wanted, refused), tell);
                if refused {
                    self.core.give_back(filling.head);
                } else if !std::mem::take(&mut keep_first) {
                    self.core.put(filling.head);
                }
            }
        });
    }
}

impl Drop for FillBatch {
    fn drop(&mut self) {
        // After a failure loom's atomics are gone.
        if self.folios.is_empty() || cfg!(loom) && std::thread::panicking() {
            return;
        }
        if !mutant::on(Mutant::BatchForgotten) {
            self.land_all(Err(io::Error::other("the read was given up")), false);
        }
    }
}

/// Steps 4 and 5 for one folio that a write has filled, of which the file has the bytes before byte
/// `end`. False: it was dropped meanwhile.
fn land_written(core: &Core, mapping: &Mapping, filling: &Filling, end: u64) -> bool {
    let frame = core.frames.frame(filling.head);
    let mut changing = mapping.change();
    let in_index = frame.identity().mapping == mapping.id;
    if in_index {
        let end = end.max(mapping.len_bytes());
        let file_bytes = end.saturating_sub(filling.page << PAGE_SHIFT);
        frame.set_file_bytes(file_bytes.min(filling.order.bytes() as u64) as usize);
        mapping.reach(end);
        // No slot has shown it.
        frame.change_end_by_count();
        if !mutant::on(Mutant::MadeUndirtied) {
            let bytes = 0..filling.order.bytes();
            dirt::make_dirty(core, &mut changing, filling.head, filling.page, &bytes);
        }
        enter(core, mapping, filling.head);
    }
    drop(changing);
    end_fill(core, mapping, filling);
    mapping.on_its_way.read_ended();
    core.pressure.progress();
    in_index
}

/// Tells the policy.
fn enter(core: &Core, mapping: &Mapping, head: FrameNumber) {
    if core.residency.insert(&core.frames, head, mapping.ghosts_of) {
        core.counters.count(Event::Refault);
    }
}

/// Step 5, without the mutex.
fn end_fill(core: &Core, mapping: &Mapping, filling: &Filling) {
    core.counters.count(Event::FillEnded);
    core.pressure.shares.fill_ends(&mapping.on_its_way, filling.order.frames());
    if !mutant::on(Mutant::WakeFirst) {
        core.waiters.wake(filling.head.0);
    }
}

/// Step 4 for one folio, and the wake-up. `tell` is told its error, too, unless the folio was
/// dropped meanwhile: the file may have grown. A fill that was refused is no progress.
fn land(
    core: &Core,
    mapping: &Mapping,
    filling: &Filling,
    checked: Result<()>,
    (wanted_by, refused): (For, bool),
    tell: Option<&Failed>,
) {
    let frame = core.frames.frame(filling.head);
    if mutant::on(Mutant::WakeFirst) {
        core.waiters.wake(filling.head.0);
    }
    // Step 4.
    let mut changing = mapping.change();
    let in_index = frame.identity().mapping == mapping.id || mutant::on(Mutant::LandBlindly);
    match checked {
        Ok(()) if in_index => {
            if !mutant::on(Mutant::EvenBeforeRead) {
                // The length changes under the mutex, too: see `freeze::resize`.
                let rest = mapping.len_bytes().saturating_sub(filling.page << PAGE_SHIFT);
                if !mutant::on(Mutant::LandUnclipped) {
                    frame.set_file_bytes(rest.min(filling.order.bytes() as u64) as usize);
                }
                frame.change_end();
            }
            enter(core, mapping, filling.head);
        }
        Err(error) if in_index => {
            match wanted_by {
                _ if !refused => core.counters.count(Event::FillError),
                For::Nobody => core.counters.count(Event::ReadaheadDropped),
                // It tries again.
                For::Thread | For::Future | For::Batch => {}
            }
            if let Some(tell) = tell {
                tell.remember(filling.page..filling.end(), error.clone());
            }
            let unshared = wanted_by == For::Batch && mutant::on(Mutant::BatchErrorUnshared);
            if wanted_by != For::Nobody && !unshared && !refused {
                core.failures.remember(filling.head, frame, error);
            }
            core.remove(&mut changing, filling.page, filling.head);
        }
        _ => {}
    }
    let failed = in_index && frame.is_changing();
    drop(changing);
    // Step 5.
    end_fill(core, mapping, filling);
    if failed {
        // The index's reference.
        if refused {
            core.give_back(filling.head);
        } else {
            core.put(filling.head);
        }
        // Of a file that has no handle any more.
        core.mappings.retire(mapping);
    }
    if !refused {
        mapping.on_its_way.read_ended();
        core.pressure.progress();
    }
}
