//! What is behind an address: the records of all maps of the process, and for each the file and the
//! space.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use super::anon::{self, Area};
use super::fault::{self, Fault, SpaceShared};
use super::handlers::{self, Handlers, ServedFault};
use super::held::Holds;
use super::index::MapIndex;
use super::vma::{self, FaultAccess, Mapped, RECORDS_MAX, RecordTable, Vma, Wanted};
use crate::base::heap;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::Mutex;
use crate::cache::Cache;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Error, RangeCause, Result};
use crate::file::File;
use crate::map::bring;
use crate::map::lend::{self, Brought, Look, Mapper};
use crate::mapped::mirror::Shown;
use crate::mapped::task::{Rests, Waiter, now};
use crate::mapped::uffd::{Ask, Uffd};

/// The records and the index of all spaces of the process.
static RECORDS: RecordTable<Arc<MapTarget>> = RecordTable::new();
static INDEX: MapIndex = MapIndex::new();

/// A map's record. Its addresses lead to it until [`end`](Self::end).
pub(super) struct MapRecord {
    number: u32,
    pub(super) vma: &'static Vma<Arc<MapTarget>>,
}

impl MapRecord {
    /// The record of a map of `space`, which has the addresses `reserved` for itself.
    /// Error: there is none for one more map; or the index has no such addresses.
    pub(super) fn begin(
        space: &SpaceCore,
        mapped: Mapped<Arc<MapTarget>>,
        reserved: &Range<usize>,
    ) -> io::Result<Self> {
        let Some((number, vma)) = RECORDS.claim() else {
            let text = format!("this process has {RECORDS_MAX} maps, and can have no more");
            return Err(io::Error::other(text));
        };
        let (record, compared) = (MapRecord { number, vma }, &space.shared.compared);
        let publish = || INDEX.set(reserved, Some(number));
        if compared.change_layout(|| vma::begin(vma, compared, mapped, publish)) {
            return Ok(record);
        }
        record.end(space, reserved, || {});
        Err(io::Error::other("the system gave addresses beyond those that maps can have"))
    }

    /// Ends the map: `unmap` takes its pages out of the address space, while no fault reads the
    /// record. Who waits for one of them repeats the access.
    pub(super) fn end(&self, space: &SpaceCore, reserved: &Range<usize>, unmap: impl FnOnce()) {
        let clear = |_: &Mapped<_>| {
            INDEX.set(reserved, None);
            unmap();
            space.uffd.wake(reserved);
        };
        let compared = &space.shared.compared;
        let release = || RECORDS.release(self.number);
        drop(compared.change_layout(|| vma::end(self.vma, compared, clear, release)));
    }
}

/// The record of the map that has `address`, or had it a moment ago.
fn find(address: usize) -> Option<&'static Vma<Arc<MapTarget>>> {
    RECORDS.get(INDEX.find(address)?)
}

pub(super) fn serve_signal(address: usize, access: FaultAccess) -> Fault {
    now(fault::serve_access(address, Ask::Signal, access, Some(Waiter::Thread), find))
}

/// Serves a fault at `address`, of which a message tells, as a task of the thread with these
/// timers. If the heap has no room for tasks, nobody waits: a page may be on its way by a task of
/// this thread.
pub(super) fn serve_message(address: usize, access: FaultAccess, rests: Rc<Rests>) -> ServedFault {
    let blocks = mutant::on(Mutant::HandlerBlocks).then_some(Waiter::Thread);
    if !heap::has_room() {
        return ServedFault::by(async move {
            now(fault::serve_access(address, Ask::Message, access, blocks, find))
        });
    }
    ServedFault::by(async move {
        let waiter = blocks.unwrap_or(Waiter::Task(&rests));
        fault::serve_access(address, Ask::Message, access, Some(waiter), find).await
    })
}

/// The file behind a map, and its space.
#[derive(Debug)]
pub(super) struct MapTarget {
    pub(super) file: File,
    /// The program's own memory, which then `file` is.
    pub(super) own: Option<Arc<Area>>,
    pub(super) space: Arc<SpaceCore>,
    /// What is held of it, if it is a map of a file.
    pub(super) holds: Holds,
    /// Of the last access to the map that failed.
    last_failure: Mutex<Option<Error>>,
}

impl MapTarget {
    pub(super) fn new(file: File, own: Option<Arc<Area>>, space: Arc<SpaceCore>) -> Self {
        let (holds, last_failure) = (Holds::default(), Mutex::new(None));
        MapTarget { file, own, space, holds, last_failure }
    }

    #[cfg(feature = "testing")]
    pub(super) fn last_failure(&self) -> Option<Error> {
        let here = self.space.cache.core().owner.is_here();
        here.then(|| self.last_failure.lock().clone()).flatten()
    }

    /// Error: [`ErrorKind::Invalid`] if the range is not in the map, which has `len` bytes.
    pub(super) fn check(&self, what: &'static str, range: &Range<usize>, len: usize) -> Result<()> {
        let cause = if range.start > range.end {
            RangeCause::Reversed
        } else if range.end > len {
            RangeCause::BeyondMap { len_bytes: len as u64 }
        } else {
            return Ok(());
        };
        Err(self.wrong(what, range, cause))
    }

    pub(super) fn wrong(
        &self,
        what: &'static str,
        range: &Range<usize>,
        cause: RangeCause,
    ) -> Error {
        let path = self.file.handle().mapping.path.clone();
        let (start, end) = (range.start as u64, range.end as u64);
        Cause::WrongRange { what, path, start, end, cause }.into()
    }
}

impl fault::Target for Arc<MapTarget> {
    /// `None` of own memory, which keeps it by itself for a while.
    type Brought<'a> = Option<Brought<'a>>;

    fn shared(&self) -> &SpaceShared {
        &self.space.shared
    }

    fn look(
        &self,
        wanted: &Wanted,
        brought: Option<Option<Brought<'_>>>,
        waiter: Option<Waiter<'_>>,
    ) -> Result<bool> {
        let Wanted { page, access, start, ref pages } = *wanted;
        if let Some(area) = &self.own {
            return area.look(self.file.handle(), page, access);
        }
        // The kernel maps nothing past the end, whatever the mirror has: the access would be
        // repeated for ever.
        self.file.handle().check_page(page)?;
        let sampled = self.file.handle().stream.guesses();
        let shown = Shown { uffd: &self.space.uffd, pages: pages.clone(), start, sampled };
        let waiter = waiter.unwrap_or(Waiter::Thread); // which waits for what takes a moment
        // SAFETY: the map's lock is held, so these pages are there.
        let looked = unsafe {
            lend::look(self.file.handle(), page, Some(&shown), brought.flatten(), waiter)
        };
        Ok(!matches!(looked?, Look::Absent))
    }

    async fn bring(
        &self,
        wanted: &Wanted,
        waiter: Option<Waiter<'_>>,
    ) -> Result<Option<Brought<'_>>> {
        let Wanted { page, access, .. } = *wanted;
        let handle = self.file.handle();
        match (&self.own, waiter) {
            (Some(area), Some(waiter)) => {
                area.bring(handle, page, access, waiter).await.map(|()| None)
            }
            (None, Some(waiter)) if heap::has_room() => {
                bring::bring(handle, page, waiter).await.map(Some)
            }
            // There by now, or on its way: the access is repeated until it is there.
            (_, None) if lend::is_coming(handle, page) => Ok(None),
            _ => Err(handle.mapping.no_heap(page)),
        }
    }

    fn fail(&self, address: usize, why: Error) {
        // First, as the signal's handler may ask for it.
        *self.space.last_failure.lock() = Some(why.clone());
        *self.last_failure.lock() = Some(why);
        // A thread that faults by itself goes on with the signal.
        if self.space.shared.by == Ask::Message && !mutant::on(Mutant::PoisonUnlocked) {
            self.holds.poison(address, || handlers::poison(&self.space.uffd, address));
        }
    }
}

#[derive(Debug)]
pub(super) struct SpaceCore {
    pub(super) shared: SpaceShared,
    /// Of the last access to any of its maps that failed.
    pub(super) last_failure: Mutex<Option<Error>>,
    pub(super) uffd: Arc<Uffd>,
    /// Once there was own memory.
    pub(super) proc: OnceLock<Arc<anon::Proc>>,
    pub(super) handlers: Option<Handlers>,
    pub(super) cache: Cache,
    pub(super) _mapper: Mapper,
}

impl SpaceCore {
    /// Own memory as the kernel has it.
    pub(super) fn proc(&self) -> std::io::Result<&Arc<anon::Proc>> {
        if let Some(proc) = self.proc.get() {
            return Ok(proc);
        }
        let proc = Arc::new(anon::Proc::open(self.uffd.as_fd())?);
        Ok(self.proc.get_or_init(|| proc))
    }
}

impl Drop for SpaceCore {
    fn drop(&mut self) {
        if !self.cache.core().owner.is_here() {
            // The threads are the parent's, and so is what they are stopped by.
            std::mem::forget(self.handlers.take());
        }
    }
}
