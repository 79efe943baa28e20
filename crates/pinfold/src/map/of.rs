//! A cache, its files and what a `change` mutex guards, as mapped memory sees them: the mirror of a
//! file, the states of own memory, the swap, and the folios that are kept after an access.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use crate::base::mutant::{self, Mutant};
use crate::cache::Cache;
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::frames::{FrameNumber, PAGE_SHIFT};
use crate::mapped::mirror::Mirror;
use crate::mapped::swap::Swap;
use crate::mapped::swap::pages::{OwnMemory, PageStates, Unused};
use crate::pages::core::{Core, Held};
use crate::pages::mapping::{Changing, Mapping};
use crate::source::Source;

impl Core {
    pub(crate) fn own_swap(&self) -> Option<&Swap> {
        self.mapped.swap.as_ref()
    }

    /// Gives back slots that are of no more use.
    pub(crate) fn give_slots(&self, unused: impl IntoIterator<Item = Unused>) {
        for Unused(slot) in unused {
            if let (Some(swap), Some(slot)) = (self.own_swap(), slot) {
                swap.slots().give(slot);
            }
        }
    }

    /// Keeps a folio that was brought for a mapped access, until others take its place or it leaves
    /// its file.
    pub(crate) fn keep_recent(&self, held: Held<'_>) {
        let (head, frame) = (held.head(), held.frame());
        std::mem::forget(held); // the reference is the list's
        for gone in self.mapped.recent.keep(head, frame.order().bytes()) {
            self.put(gone);
        }
        if frame.is_changing() && !mutant::on(Mutant::RecentUnchecked) {
            self.let_go_of_recent(|other| other == head);
        }
    }

    /// Lets go of those of these folios that `goes` says. The caller holds no lock.
    pub(crate) fn let_go_of_recent(&self, goes: impl Fn(FrameNumber) -> bool) {
        if mutant::on(Mutant::RecentStays) {
            return;
        }
        for gone in self.mapped.recent.take(goes) {
            self.put(gone);
        }
    }
}

impl Mapping {
    /// Its mirror, made by the first call.
    pub(crate) fn mirror(&self, core: &Core) -> Result<&Arc<Mirror>> {
        if let Some(mirror) = self.mirror_if_made() {
            return Ok(mirror);
        }
        // Under the mutex under which the length changes, so that it is of one length.
        let _resizing = self.resizing.lock();
        if self.mirror_if_made().is_none() {
            let made = Mirror::new(&self.path, self.len_bytes(), core.mapped.uffd()?)?;
            let _ = self.mapped.mirror.set(Arc::new(made));
        }
        Ok(self.mirror_of_folios())
    }

    pub(crate) fn mirror_if_made(&self) -> Option<&Arc<Mirror>> {
        self.mapped.mirror.get()
    }

    /// The mirror of a file with mirrored folios.
    pub(crate) fn mirror_of_folios(&self) -> &Arc<Mirror> {
        self.mirror_if_made().expect("mirrored folios are those of a file that has a mirror")
    }

    /// The error that the system has refused `what` of these bytes, as a map of them needs.
    pub(crate) fn map_error(
        &self,
        what: &'static str,
        bytes: &Range<u64>,
        cause: impl Into<io::Error>,
    ) -> Error {
        let (path, cause) = (self.path.clone(), Arc::new(cause.into()));
        Cause::Map { what, path, start: bytes.start, end: bytes.end, cause }.into()
    }

    /// [`map_error`](Self::map_error) of one page.
    pub(crate) fn page_error(
        &self,
        what: &'static str,
        page: u64,
        cause: impl Into<io::Error>,
    ) -> Error {
        self.map_error(what, &(page << PAGE_SHIFT..(page + 1) << PAGE_SHIFT), cause)
    }

    /// The error that the heap has no memory for what a page of a map needs.
    pub(crate) fn no_heap(&self, page: u64) -> Error {
        self.page_error("bring", page, Errno::NOMEM)
    }

    /// Makes its pages the program's own: `pages` of them, in `memory`. Called once, before it has
    /// any.
    pub(crate) fn make_own(&self, pages: PageStates, memory: Arc<dyn OwnMemory>) {
        self.change().mapped().own = Some(pages);
        assert!(self.mapped.own.set(memory).is_ok(), "a mapping has one memory");
    }

    pub(crate) fn own(&self) -> Option<&Arc<dyn OwnMemory>> {
        self.mapped.own.get()
    }
}

impl Changing<'_> {
    /// Where the bytes of its pages are, if they are the program's own.
    pub(crate) fn own(&mut self) -> Option<&mut PageStates> {
        self.mapped().own.as_mut()
    }
}

impl Cache {
    /// A mapping of `bytes` bytes for memory of the program's own; nothing can be read from it.
    pub(crate) fn own_memory(&self, name: &str, bytes: u64) -> Result<File> {
        self.attach(name, Arc::new(Nowhere(bytes)))
    }
}

/// The source of own memory, whose length it says. It is never read.
#[derive(Debug)]
struct Nowhere(u64);

impl Source for Nowhere {
    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("own memory is not read from a source"))
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0)
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "own memory".into()
    }
}

#[cfg(feature = "testing")]
impl File {
    /// How much memory its mirror has: of pages that maps can show without a fault. Feature
    /// `testing`.
    pub fn mirrored_bytes(&self) -> u64 {
        let handle = self.handle();
        let mirror = || handle.mapping.mirror_if_made().filter(|_| handle.core.owner.is_here());
        mirror().map_or(0, |mirror| mirror.bytes_in_memory())
    }
}
