//! What all rooms of a cache share, and the two things done to a folio everywhere: holding it by a
//! counted reference, and letting it go.
//!
//! Belongs here: nothing that has a room of its own. Called by all of them.

use std::io;
use std::sync::Arc;

use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::failures::Failures;
use crate::fork::Owner;
use crate::frame::{Frame, FrameNumber, Frames, MAPPING_NONE, PAGE_SHIFT};
use crate::holders::Holders;
use crate::index::{NodePool, TrimWhere};
use crate::mapping::{Mapping, Mappings};
use crate::mutant::{self, Mutant};
use crate::options::{Options, Reference};
use crate::pressure::Pressure;
use crate::readers::{Deferred, Readers};
use crate::residency::Residency;
use crate::source::{Engine, EngineOptions};
use crate::wait::Waiters;

/// One cache's shared state.
#[derive(Debug)]
pub(crate) struct Core {
    /// First: what it keeps is let go of before all else.
    pub(crate) owner: Owner,
    pub(crate) counters: Counters,
    pub(crate) options: Options,
    pub(crate) mappings: Mappings,
    pub(crate) residency: Residency,
    pub(crate) pressure: Pressure,
    pub(crate) waiters: Waiters,
    /// Shared with those who borrow: a reader does not keep the cache.
    pub(crate) readers: Arc<Readers>,
    pub(crate) deferred: Deferred,
    pub(crate) failures: Failures,
    pub(crate) holders: Holders,
    pub(crate) engine: Arc<Engine>,
    /// After all that points into the arena.
    pub(crate) nodes: NodePool,
    pub(crate) frames: Frames,
}

impl Core {
    /// Puts a cache together: all of `frames` free, no file known.
    ///
    /// # Errors
    /// As of [`Owner::here`].
    pub(crate) fn new(
        options: Options,
        frames: Frames,
        nodes: NodePool,
        pressure: Pressure,
        engine: EngineOptions,
    ) -> io::Result<Self> {
        let pages = frames.free_frames() - pressure.high_frames;
        Ok(Core {
            owner: Owner::here()?,
            counters: Counters::new(),
            mappings: Mappings::new(),
            residency: Residency::new(pages),
            pressure,
            waiters: Waiters::new(),
            readers: Arc::new(Readers::new(options.barrier)),
            deferred: Deferred::new(),
            failures: Failures::new(),
            holders: Holders::new(options.track_pins),
            engine: Arc::new(Engine::new(engine)),
            options,
            nodes,
            frames,
        })
    }

    /// # Errors
    /// [`Error::Forked`] if the calling process is not the cache's owner.
    pub(crate) fn check_owner(&self) -> Result<()> {
        if self.owner.is_here() { Ok(()) } else { Err(Error::Forked { owner: self.owner.pid() }) }
    }

    /// A reference to the folio that has `page` of `mapping`, if one is found and lives. It may
    /// still be on its way from the source.
    #[inline(always)]
    pub(crate) fn hold(&self, mapping: &Mapping, page: u64) -> Option<Held<'_>> {
        // A hint: what comes of it is checked below.
        let head = mapping.index.lookup_hint(page);
        let frame = self.frames.try_frame(head)?;
        if !self.take_one(frame) {
            return None;
        }
        let held = Held { core: self, frame, head };
        mutant::pause();
        // The folio may be another one by now: then the reference is given back by the drop.
        (held.is(mapping.id, page) || mutant::on(Mutant::CountedBlindly)).then_some(held)
    }

    /// A reference to whatever is at `frame`, if it is not frozen.
    #[inline(always)]
    pub(crate) fn take_one(&self, frame: &Frame) -> bool {
        take_one(self.options.reference, frame)
    }

    /// A reference to a folio that the caller found under its mapping's `change` mutex, where none
    /// is frozen. `None`: there are as many as can be counted.
    pub(crate) fn hold_under_change(&self, head: FrameNumber) -> Option<Held<'_>> {
        let frame = self.frames.frame(head);
        frame.count.try_get(1).ok()?;
        Some(Held { core: self, frame, head })
    }

    /// Gives the mapping up, if nobody has it open and none of its pages are left.
    pub(crate) fn retire(&self, mapping: &Mapping) {
        self.mappings.retire(mapping, |changing| {
            let mut writer = changing.writer(&self.nodes);
            // Ends: each call goes on where the last one stopped, and nothing adds shadows.
            while writer.shadow_slots() > 0 {
                writer.drop_shadows(u64::MAX, TrimWhere::Anywhere);
            }
        });
    }

    /// Gives up one reference, and frees the folio if it was the last.
    pub(crate) fn put(&self, head: FrameNumber) {
        let frame = self.frames.frame(head);
        if frame.count.put(1) {
            self.destroy(head, frame);
        }
    }

    /// Gives up the pins of so many pages, and frees the folio if nothing else held it.
    #[inline]
    pub(crate) fn unpin(&self, head: FrameNumber, frame: &Frame, pages: u32) {
        if frame.count.unpin(pages) {
            self.destroy(head, frame);
        }
    }

    /// Frees a folio that is frozen for good: by what its entry says it is.
    #[cold]
    pub(crate) fn destroy(&self, head: FrameNumber, frame: &Frame) {
        if !self.owner.is_here() {
            return; // its locks are not to be had, and nothing is allocated any more
        }
        debug_assert_eq!(frame.identity().mapping, MAPPING_NONE, "freed while in an index");
        self.failures.forget(head, frame);
        self.frames.free(head, frame.order());
        self.pressure.progress();
    }
}

/// A reference to whatever is at `frame`, if it is not frozen; taken that way.
#[inline(always)]
pub(crate) fn take_one(reference: Reference, frame: &Frame) -> bool {
    match reference {
        Reference::Add => frame.count.try_get(1).is_ok(),
        #[cfg(feature = "testing")]
        Reference::CasLoop => pinfold_refcount::rivals::try_get_by_cas(&frame.count),
    }
}

/// A counted reference to a folio; given back on drop.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    core: &'a Core,
    frame: &'a Frame,
    head: FrameNumber,
}

impl<'a> Held<'a> {
    /// Takes over a reference that the caller has.
    pub(crate) fn adopt(core: &'a Core, head: FrameNumber) -> Self {
        Held { core, frame: core.frames.frame(head), head }
    }

    /// The folio's entry.
    pub(crate) fn frame(&self) -> &'a Frame {
        self.frame
    }

    /// The folio's first frame.
    pub(crate) fn head(&self) -> FrameNumber {
        self.head
    }

    /// Whether the folio is that of `page` of the mapping `id`.
    #[inline]
    pub(crate) fn is(&self, id: u32, page: u64) -> bool {
        let identity = self.frame.identity();
        identity.mapping == id
            && page.wrapping_sub(identity.index) < u64::from(identity.order.frames())
    }

    /// The byte of the file that the folio begins with.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.frame.identity().index << PAGE_SHIFT
    }

    /// Where its bytes are.
    #[inline]
    pub(crate) fn address(&self) -> *const u8 {
        self.core.frames.address(self.head)
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if crate::sync::model_failed() {
            return;
        }
        if self.frame.count.put(1) {
            self.core.destroy(self.head, self.frame);
        }
    }
}
