//! A fault: what happens between an access to a page that is not in the map's memory and the
//! moment at which the access can be repeated.
//!
//! The steps, and in which order the locks are taken. Called by `signal.rs`, in the thread that
//! faults, and by `handlers.rs`, in another one. What a page needs to be there is not here (the
//! mirror's `look` and `bring`), nor who is called if it cannot be.
//!
//! # States of a fault
//!
//! | state | lock | what happens | then |
//! |---|---|---|---|
//! | found | none | the index gives the record at the address | looks |
//! | looks | read | in which map, generation and page is it; is the page there? | there; brings; elsewhere |
//! | brings | none, or read | reads the page, or waits for the thread that reads it | retries; there; failed |
//! | retries | read | is the generation still the same; is the page there? | there; brings, [`RETRIES_MAX`] times; changed |
//! | there | none | the page was in the mirror, under the lock | the access is repeated, and the kernel maps the page |
//! | changed | none | the map was changed meanwhile | the access is repeated: it meets the new map, or none |
//! | elsewhere | none | no map has the address | somebody else's |
//! | failed | none | the page cannot be read | as for mmap(2): a signal |
//!
//! `lock` is the map's own. With [`FaultLock::Space`] the state *retries* also has the lock of the
//! whole space, for reading, which it takes first. A thread that changes a map takes both for
//! writing, in the same order.
//!
//! [`FaultIo::Drop`] lets go of the lock before it brings, and comes back by *retries*. With
//! [`FaultIo::Hold`] it brings under the lock, and is there; where that is to be the lock of the
//! space, it lets go of the map's first, looks again under both, and brings under both. A page that
//! needs no read is never waited for by way of *retries*: `look` itself waits for the thread that
//! is just putting it there.
//!
//! # Why it ends
//!
//! *retries* finds a page absent only if it was evicted since it was brought. After
//! [`RETRIES_MAX`] times the access is repeated all the same: it is a new fault then, which may be
//! served by a thread that had better luck.

use super::stats::{Counters, read};
use super::vma::Vma;
use crate::error::{Error, Result};
use crate::mutant::{self, Mutant};
use crate::sizes::RETRIES_MAX;
use crate::sync::{Mutex, RwLock};

/// Which lock a fault takes again, once its page was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FaultLock {
    /// That of its own map.
    #[default]
    Vma,
    /// That of the whole space, as the kernel's faults take `mmap_lock`. To compare with.
    Space,
}

/// What a fault does with the lock of its map while its page is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FaultIo {
    /// It lets go of the lock, and takes one again when the page was read.
    #[default]
    Drop,
    /// It keeps the lock. Whoever unmaps or changes the map waits for the read.
    Hold,
}

/// What all maps of a space share, as far as faults are concerned.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) lock: FaultLock,
    pub(crate) io: FaultIo,
    /// Taken for writing to change which maps there are.
    pub(crate) layout: RwLock<()>,
    pub(crate) counters: Counters,
    /// Why the last fault failed that did.
    pub(crate) last_failure: Mutex<Option<Error>>,
}

impl Shared {
    pub(crate) fn new(lock: FaultLock, io: FaultIo) -> Self {
        let (layout, last_failure) = (RwLock::new(()), Mutex::new(None));
        Shared { lock, io, layout, counters: Counters::default(), last_failure }
    }
}

/// The file behind a map. A clone is a share: the file stays as long as there is one.
pub(crate) trait Target: Clone {
    /// What all maps of its space share.
    fn shared(&self) -> &Shared;

    /// Whether `page` is where the kernel can map it. Reads nothing.
    fn look(&self, page: u64) -> Result<bool>;

    /// Reads `page`, or waits for who reads it. It may be evicted again when this returns.
    fn bring(&self, page: u64) -> Result<()>;
}

/// How a fault ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The access can be repeated.
    Served,
    /// No map has the address.
    Elsewhere,
    /// The page cannot be read; [`Shared::last_failure`] says why.
    Failed,
}

/// Serves a fault at `address`, whose record `find` gives.
pub(crate) fn serve<'v, T: Target + 'v>(
    address: usize,
    find: impl Fn(usize) -> Option<&'v Vma<T>>,
) -> Fault {
    let Some(vma) = find(address) else { return Fault::Elsewhere };
    mutant::pause();
    let (body, waited) = vma.read();
    let Some((target, page)) = body.at(address) else { return Fault::Elsewhere };
    let shared = target.shared();
    shared.counters.faults.add(1);
    shared.counters.map_readers.note(waited);
    let looked = target.look(page);
    let brought = match looked {
        Ok(true) => {
            shared.counters.there.add(1);
            return Fault::Served;
        }
        Err(error) => Err(error),
        Ok(false) => {
            shared.counters.absent.add(1);
            match (shared.io, shared.lock) {
                (FaultIo::Hold, FaultLock::Vma) => target.bring(page),
                (io, _) => {
                    let (share, generation) = (target.clone(), body.generation);
                    drop(body);
                    return fault(&share, retry(vma, &share, generation, page, io));
                }
            }
        }
    };
    fault(target, brought)
}

/// Brings a page that is absent, without a lock or under that of the whole space, and looks again
/// under the lock of its map, which had `generation` when it was looked for.
fn retry<T: Target>(
    vma: &Vma<T>,
    share: &T,
    generation: u64,
    page: u64,
    io: FaultIo,
) -> Result<()> {
    let (shared, counters) = (share.shared(), &share.shared().counters);
    for _ in 0..RETRIES_MAX {
        if io == FaultIo::Drop {
            share.bring(page)?;
        }
        mutant::pause();
        counters.retries.add(1);
        let early = mutant::on(Mutant::FaultGenerationEarly).then(|| vma.read().0.generation);
        let _layout = (shared.lock == FaultLock::Space).then(|| {
            counters.retry_space_lock.add(1);
            let (guard, waited) = read(&shared.layout);
            counters.space_readers.note(waited);
            guard
        });
        let (body, waited) = vma.read();
        counters.map_readers.note(waited);
        if early.unwrap_or(body.generation) != generation && !mutant::on(Mutant::FaultAnyGeneration)
        {
            counters.changed.add(1);
            return Ok(());
        }
        let _body = (!mutant::on(Mutant::FaultLooksUnlocked)).then_some(body);
        if share.look(page)? {
            return Ok(());
        }
        if io == FaultIo::Hold {
            return share.bring(page);
        }
        counters.retry_io_miss.add(1);
    }
    Ok(())
}

fn fault<T: Target>(target: &T, brought: Result<()>) -> Fault {
    match brought {
        Ok(()) => Fault::Served,
        Err(error) => {
            let shared = target.shared();
            shared.counters.failed.add(1);
            *shared.last_failure.lock() = Some(error);
            Fault::Failed
        }
    }
}
