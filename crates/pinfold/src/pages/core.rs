use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use crate::base::counters::Counters;
use crate::base::fork::OwnerProcess;
use crate::base::holders::Holders;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU64, Ordering};
use crate::base::wait::Waiters;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Error, Result};
use crate::frames::{Frame, FrameNumber, Frames, Identity, MAPPING_NONE, PAGE_SHIFT};
use crate::index::{FolioAt, NodePool};
use crate::mapped::MappedOfCache;
use crate::options::{Options, Reference};
use crate::pages::failures::Failures;
use crate::pages::grants::Grants;
use crate::pages::mapping::{Changing, Mapping, Mappings};
use crate::pages::outside::Outside;
use crate::pages::pressure::Pressure;
use crate::pages::readers::{Deferred, Readers};
use crate::pages::residency::Residency;
use crate::pages::stream::Credit;
use crate::source::{Engine, EngineOptions};

/// A forked child keeps it: it has none of the threads that its parts would wait for.
#[derive(Debug)]
pub(crate) struct Core(ManuallyDrop<CoreParts>);

/// In the order in which they are dropped.
#[derive(Debug)]
pub(crate) struct CoreParts {
    pub(crate) owner: OwnerProcess,
    /// Made before the fork: a child allocates nothing.
    forked: Error,
    pub(crate) counters: Counters,
    pub(crate) options: Options,
    pub(crate) mappings: Mappings,
    pub(crate) residency: Residency,
    pub(crate) pressure: Pressure,
    /// Of all files, see `WriteState`.
    pub(crate) unsynced_pages: AtomicU64,
    /// Whether a thread syncs in the background: `write/sync.rs` has the states.
    pub(crate) writes_behind: AtomicU64,
    pub(crate) waiters: Waiters,
    /// Readers do not keep the cache alive.
    pub(crate) readers: Arc<Readers>,
    pub(crate) deferred: Deferred,
    pub(crate) mapped: MappedOfCache,
    pub(crate) failures: Failures,
    /// What may still be read ahead in vain.
    pub(crate) credit: Credit,
    pub(crate) holders: Holders,
    pub(crate) grants: Grants,
    pub(crate) engine: Arc<Engine>,
    /// After everything that points into the arena.
    pub(crate) nodes: NodePool,
    pub(crate) frames: Frames,
}

impl Core {
    /// The error is that of [`OwnerProcess::here`].
    pub(crate) fn new(
        options: Options,
        frames: Frames,
        nodes: NodePool,
        pressure: Pressure,
        engine: EngineOptions,
    ) -> io::Result<Self> {
        let pages = frames.free_frames() - pressure.high_frames;
        let worker_is_free = pressure.hook();
        let owner = OwnerProcess::here()?;
        let parts = CoreParts {
            forked: Cause::Forked { owner: owner.pid() }.into(),
            owner,
            counters: Counters::new(),
            mappings: Mappings::new(),
            residency: Residency::new(pages),
            pressure,
            unsynced_pages: AtomicU64::new(0),
            writes_behind: AtomicU64::new(0),
            waiters: Waiters::new(),
            readers: Arc::new(Readers::new(options.barrier())),
            deferred: Deferred::new(),
            mapped: MappedOfCache::new(frames.frames()),
            failures: Failures::new(),
            credit: Credit::new(),
            holders: Holders::new(options.track_pins),
            grants: Grants::new(frames.frames()),
            engine: Arc::new(Engine::with_hook(engine, worker_is_free)),
            options,
            nodes,
            frames,
        };
        Ok(Core(ManuallyDrop::new(parts)))
    }

    /// Before the cache is shared.
    #[cfg(not(loom))]
    pub(crate) fn open_mapped(&mut self) -> Result<()> {
        let parts = &mut *self.0;
        parts.mapped.open(&parts.options, &parts.engine)
    }

    pub(crate) fn check_owner(&self) -> Result<()> {
        if self.owner.is_here() { Ok(()) } else { Err(self.forked.clone()) }
    }

    /// The folio that has `page` of `mapping`, if one is found and lives; perhaps on its way.
    #[inline(always)]
    pub(crate) fn hold(&self, mapping: &Mapping, page: u64) -> Option<Held<'_>> {
        self.hold_at(mapping, page, mapping.index.lookup_hint(page))
    }

    /// [`Self::hold`], where a look-up has returned `head`: right or wrong, or no frame at all.
    #[inline(always)]
    pub(crate) fn hold_at(
        &self,
        mapping: &Mapping,
        page: u64,
        head: FrameNumber,
    ) -> Option<Held<'_>> {
        let frame = self.frames.try_frame(head)?;
        if !take_one(self.options.reference(), frame) {
            return None;
        }
        let held = Held { core: self, frame, head };
        mutant::pause();
        // Of another folio, the drop gives the reference back.
        (held.is(mapping.id, page) || mutant::on(Mutant::CountedBlindly)).then_some(held)
    }

    /// The caller found it under its mapping's `change` mutex. `None`: the count is full.
    pub(crate) fn hold_under_change(&self, head: FrameNumber) -> Option<Held<'_>> {
        let frame = self.frames.frame(head);
        frame.count.try_get(1).ok()?;
        Some(Held { core: self, frame, head })
    }

    /// Of a folio of `mapping`, to which the caller has a reference or the only right.
    #[inline]
    pub(crate) fn address(&self, mapping: &Mapping, head: FrameNumber) -> *mut u8 {
        let frame = self.frames.frame(head);
        if frame.is_hollow() {
            return self.outside_at(mapping, frame.identity().index);
        }
        self.frames.address(head)
    }

    /// The folio that has `page`, perhaps on its way.
    #[inline]
    pub(crate) fn folio_at(&self, changing: &Changing<'_>, page: u64) -> Option<FolioAt> {
        let head = changing.head(page)?;
        let Identity { index, order, .. } = self.frames.frame(head).identity();
        Some(FolioAt { page: index, order: order.get().into(), frame: head })
    }

    /// Whether the bytes of the folio at `page` are elsewhere, too.
    pub(crate) fn is_clean(&self, changing: &mut Changing<'_>, page: u64) -> bool {
        if self.is_outside(changing.mapping()) {
            return self.may_leave(changing, page);
        }
        changing.writer(&self.nodes).is_clean(page)
    }

    /// Takes the folio at `head`, whose version is odd, out of the index, and its identity away.
    pub(crate) fn remove(&self, changing: &mut Changing<'_>, page: u64, head: FrameNumber) {
        let all_clean = changing.mapping().written.unsynced_pages() == 0;
        let is_clean = all_clean || changing.writer(&self.nodes).is_clean(page);
        let removed = changing.writer(&self.nodes).remove(page);
        if let Some(folio) = removed.filter(|_| !is_clean) {
            self.add_unsynced(changing.mapping(), -(folio.end() - folio.page).cast_signed());
        }
        assert_eq!(removed.map(|folio| folio.frame), Some(head), "removed another folio");
        changing.folio_removed();
        self.frames.frame(head).forget_identity();
    }

    /// Under the `change` mutex: so many pages more, or less, are not clean.
    pub(crate) fn add_unsynced(&self, mapping: &Mapping, pages: i64) {
        mapping.written.add_unsynced(pages);
        // Relaxed: a number.
        self.unsynced_pages.fetch_add(pages.cast_unsigned(), Ordering::Relaxed);
    }

    /// Frees the folio if that was the last reference.
    pub(crate) fn put(&self, head: FrameNumber) {
        let frame = self.frames.frame(head);
        if frame.count.put(1) {
            self.destroy(head, frame);
        }
    }

    /// [`put`](Self::put) for a folio that was allocated in vain: that it is free is no progress.
    pub(crate) fn give_back(&self, head: FrameNumber) {
        let frame = self.frames.frame(head);
        if frame.count.put(1) {
            self.destroy_quietly(head, frame);
        }
    }

    /// Frees the folio if nothing else holds it.
    #[inline]
    pub(crate) fn unpin(&self, head: FrameNumber, frame: &Frame, pages: u32) {
        if frame.count.unpin(pages) {
            self.destroy(head, frame);
        }
    }

    /// Its count is frozen for good.
    #[cold]
    pub(crate) fn destroy(&self, head: FrameNumber, frame: &Frame) {
        if !self.owner.is_here() {
            return; // a forked child cannot take its locks, and allocates nothing
        }
        self.destroy_quietly(head, frame);
        self.pressure.progress();
    }

    fn destroy_quietly(&self, head: FrameNumber, frame: &Frame) {
        debug_assert_eq!(frame.identity().mapping, MAPPING_NONE, "freed while in an index");
        self.failures.forget(head, frame);
        if frame.is_hollow() {
            self.freed(head);
        }
        self.frames.free(head, frame.order());
    }
}

impl Deref for Core {
    type Target = CoreParts;

    #[inline(always)]
    fn deref(&self) -> &CoreParts {
        &self.0
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.owner.is_here() {
            // SAFETY: here alone, and nobody uses them any more.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// Of whatever folio is at `frame`, unless it is frozen.
#[inline(always)]
pub(crate) fn take_one(reference: Reference, frame: &Frame) -> bool {
    match reference {
        Reference::Add => frame.count.try_get(1).is_ok(),
        #[cfg(feature = "testing")]
        Reference::CasLoop => pinfold_refcount::rivals::try_get_by_cas(&frame.count),
    }
}

#[cfg(any(loom, not(feature = "map")))]
impl Outside for Core {}

/// A counted reference to a folio, given back on drop.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    core: &'a Core,
    frame: &'a Frame,
    head: FrameNumber,
}

impl<'a> Held<'a> {
    pub(crate) fn adopt(core: &'a Core, head: FrameNumber) -> Self {
        Held { core, frame: core.frames.frame(head), head }
    }

    pub(crate) fn frame(&self) -> &'a Frame {
        self.frame
    }

    pub(crate) fn head(&self) -> FrameNumber {
        self.head
    }

    #[inline]
    pub(crate) fn is(&self, id: u32, page: u64) -> bool {
        let identity = self.frame.identity();
        identity.mapping == id
            && page.wrapping_sub(identity.index) < u64::from(identity.order.frames())
    }

    /// The end of the pages of which the file has bytes.
    #[cfg(feature = "map")]
    pub(crate) fn file_pages_end(&self) -> u64 {
        let bytes = self.frame.file_bytes() as u64;
        self.frame.identity().index + bytes.div_ceil(1 << PAGE_SHIFT)
    }

    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.frame.identity().index << PAGE_SHIFT
    }

    #[inline]
    pub(crate) fn address(&self, mapping: &Mapping) -> *mut u8 {
        self.core.address(mapping, self.head)
    }

    /// `None`: the count is full.
    #[cfg(feature = "map")]
    pub(crate) fn another(&self) -> Option<Held<'a>> {
        self.frame.count.try_get(1).ok()?;
        Some(Held { core: self.core, frame: self.frame, head: self.head })
    }

    /// If it is up to date. A forked child has no bytes that are outside.
    #[inline(always)]
    pub(crate) fn is_readable_here(&self) -> bool {
        !self.frame.is_changing() && (!self.frame.is_hollow() || self.core.owner.is_here())
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if crate::base::sync::model_failed() {
            return;
        }
        if self.frame.count.put(1) {
            self.core.destroy(self.head, self.frame);
        }
    }
}
