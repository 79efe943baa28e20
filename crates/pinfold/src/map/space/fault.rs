//! A fault: what happens between an access to a page that is not in the map's memory and the
//! moment at which the access can be repeated.
//!
//! The steps, and in which order the locks are taken. What a page needs to be there is not here
//! (`map/lend.rs`, and for own memory `anon/bring.rs`; which one, says the [`Target`] below, which
//! `target.rs` implements), nor who is called if it cannot be.
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
//! | elsewhere | none | no map has the address whose faults come in this way | somebody else's |
//! | failed | read | the page cannot be read, and the generation is still the same | as for mmap(2): a signal |
//!
//! `lock` is the map's own. With [`FaultLock::Space`] the state *retries* also has the lock of the
//! whole space, for reading, which it takes first. A thread that changes a map takes both for
//! writing, in the same order.
//!
//! [`FaultIo::Drop`] lets go of the lock before it brings, and comes back by *retries*. With
//! [`FaultIo::Hold`] it brings under the lock, and is there; where that is to be the lock of the
//! space, it lets go of the map's first, looks again under both, and brings under both. A page that
//! needs no read is seldom waited for by way of *retries*: `look` itself waits for the thread that
//! is just putting it there, though a task only for a moment. What was brought is kept until it was
//! looked for, and then mapped at once, where the access wants it.
//!
//! # Why it ends
//!
//! *retries* finds a page absent only if it left its file since it was brought, or if another
//! page's owner got its place. After
//! [`RETRIES_MAX`] times the access is repeated all the same: it is a new fault then, which may be
//! served by a thread that had better luck.

use super::stats::{SpaceCounters, read};
use super::vma::{FaultAccess, Vma, Wanted};
use crate::base::mutant::{self, Mutant};
use crate::base::sizes::RETRIES_MAX;
use crate::base::sync::{RwLock, between_steps};
use crate::base::wait::together;
use crate::error::{Error, Result};
use crate::mapped::task::{Waiter, now};

/// Which lock a fault takes again, once its page was read. Feature `testing`: for comparisons only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "nobody can choose then"))]
pub enum FaultLock {
    /// That of its own map.
    #[default]
    Vma,
    /// That of the whole space, as the kernel's faults take `mmap_lock`. To compare with.
    Space,
}

/// What a fault does with the lock of its map while its page is read. Feature `testing`: for
/// comparisons only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "nobody can choose then"))]
pub enum FaultIo {
    /// It lets go of the lock, and takes one again when the page was read.
    #[default]
    Drop,
    /// It keeps the lock. Whoever unmaps or changes the map waits for the read, and so does a
    /// handler thread, which serves nothing else meanwhile. Futures that wait for other pages of
    /// what it reads are woken when the fault has ended.
    Hold,
}

/// Who serves a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// The thread that faults, which got a signal.
    Signal,
    /// A task of a thread of the space, which got a message.
    Message,
}

/// What all maps of a space share, as far as faults are concerned.
#[derive(Debug)]
pub(crate) struct SpaceShared {
    pub(crate) lock: FaultLock,
    pub(crate) io: FaultIo,
    pub(crate) by: ServedBy,
    /// Taken for writing to change which maps there are.
    pub(crate) layout: RwLock<()>,
    pub(crate) counters: SpaceCounters,
}

impl SpaceShared {
    pub(crate) fn new(lock: FaultLock, io: FaultIo, by: ServedBy) -> Self {
        SpaceShared { lock, io, by, layout: RwLock::new(()), counters: SpaceCounters::default() }
    }
}

/// The file behind a map. A clone is a share: the file stays as long as there is one.
pub(crate) trait Target: Clone {
    /// A page that was read, kept from eviction until it was looked for.
    type Brought<'a>
    where
        Self: 'a;

    /// What all maps of its space share.
    fn shared(&self) -> &SpaceShared;

    /// Whether the page is where the kernel can map it; puts it there if it is cached. Waits for no
    /// read, though it may begin to read ahead. The map's lock is held.
    fn look(
        &self,
        wanted: &Wanted,
        brought: Option<Self::Brought<'_>>,
        waiter: Option<Waiter<'_>>,
    ) -> Result<bool>;

    /// Reads the page, or waits for who reads it. Without a waiter it does neither: it is an error
    /// unless the page is there or on its way.
    fn bring(
        &self,
        wanted: &Wanted,
        waiter: Option<Waiter<'_>>,
    ) -> impl Future<Output = Result<Self::Brought<'_>>>;

    /// The access at `address` fails, because of `why`. The map's lock is held: without it, the
    /// address may be another map's by now.
    fn fail(&self, address: usize, why: Error);
}

/// How a fault ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The access can be repeated.
    Served,
    /// No map has the address whose faults come in this way.
    Elsewhere,
    /// The page cannot be read. [`Target::fail`] was told why.
    Failed,
    /// Serving it panicked.
    Broken,
}

/// Serves a load at `address`, whose record `find` gives.
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) fn serve<'v, T: Target + 'v>(
    address: usize,
    by: ServedBy,
    find: impl Fn(usize) -> Option<&'v Vma<T>>,
) -> Fault {
    now(serve_access(address, by, FaultAccess::Load, Some(Waiter::Thread), find))
}

/// Serves an access at `address`, whose record `find` gives.
///
/// A signal for a map whose faults come as messages says that its page is poisoned (`handlers.rs`):
/// the access would be the same again, whatever is brought.
///
/// Without a waiter nobody waits: an access to a page that is on its way is repeated.
pub(crate) async fn serve_access<'v, T: Target + 'v>(
    address: usize,
    by: ServedBy,
    access: FaultAccess,
    waiter: Option<Waiter<'_>>,
    find: impl Fn(usize) -> Option<&'v Vma<T>>,
) -> Fault {
    let Some(vma) = find(address) else { return Fault::Elsewhere };
    between_steps();
    match together(|| first_look(vma, address, by, access, waiter)) {
        FirstLook::Ended(fault) => fault,
        FirstLook::Absent(share, wanted, generation) => {
            retry(vma, &share, generation, &wanted, address, waiter).await
        }
    }
}

/// What a fault finds when it looks for the first time.
enum FirstLook<T> {
    Ended(Fault),
    /// The page is absent; the map's lock was let go of.
    Absent(T, Wanted, u64),
}

/// Looks for the page under its map's lock, and with [`FaultIo::Hold`] also brings it.
fn first_look<T: Target>(
    vma: &Vma<T>,
    address: usize,
    by: ServedBy,
    access: FaultAccess,
    waiter: Option<Waiter<'_>>,
) -> FirstLook<T> {
    let (body, waited) = vma.read();
    let Some((target, wanted)) = body.at(address) else {
        return FirstLook::Ended(Fault::Elsewhere);
    };
    let wanted = Wanted { access, ..wanted };
    let shared = target.shared();
    if by != shared.by {
        return FirstLook::Ended(Fault::Elsewhere);
    }
    shared.counters.faults.add(1);
    shared.counters.map_readers.note(waited);
    let served = match target.look(&wanted, None, waiter) {
        Ok(true) => {
            shared.counters.there.add(1);
            Ok(())
        }
        Err(error) => Err(error),
        Ok(false) => {
            shared.counters.absent.add(1);
            match (shared.io, shared.lock) {
                (FaultIo::Hold, FaultLock::Vma) => bring_under_lock(target, &wanted),
                _ => return FirstLook::Absent(target.clone(), wanted, body.generation),
            }
        }
    };
    FirstLook::Ended(ended(target, address, served))
}

/// Brings a page under the lock under which it was absent.
fn bring_under_lock<T: Target>(target: &T, wanted: &Wanted) -> Result<()> {
    // Ends, and if the page is not there then: as in `retry`.
    for _ in 0..RETRIES_MAX {
        let brought = now(target.bring(wanted, Some(Waiter::Thread)))?;
        if target.look(wanted, Some(brought), Some(Waiter::Thread))? {
            break;
        }
        target.shared().counters.retry_io_miss.add(1);
    }
    Ok(())
}

/// Brings a page that is absent, without a lock or under that of the whole space, and looks again
/// under the lock of its map, which had `generation` when it was looked for.
async fn retry<T: Target>(
    vma: &Vma<T>,
    share: &T,
    generation: u64,
    wanted: &Wanted,
    address: usize,
    waiter: Option<Waiter<'_>>,
) -> Fault {
    for _ in 0..RETRIES_MAX {
        let brought = match share.shared().io {
            FaultIo::Drop => match share.bring(wanted, waiter).await {
                Ok(brought) => Some(brought),
                Err(error) => {
                    let (body, _) = vma.read();
                    // The addresses may be another map's by now: it is that one's fault.
                    if body.generation != generation {
                        share.shared().counters.changed.add(1);
                        return Fault::Served;
                    }
                    return ended(share, address, Err(error));
                }
            },
            FaultIo::Hold => None,
        };
        between_steps();
        let again = || look_again(vma, share, generation, wanted, address, brought, waiter);
        if let Some(fault) = together(again) {
            return fault;
        }
        share.shared().counters.retry_io_miss.add(1);
    }
    Fault::Served
}

/// The state *retries*. `None`: the page is absent again.
fn look_again<'a, T: Target>(
    vma: &Vma<T>,
    share: &'a T,
    generation: u64,
    wanted: &Wanted,
    address: usize,
    brought: Option<T::Brought<'a>>,
    waiter: Option<Waiter<'_>>,
) -> Option<Fault> {
    let (shared, counters) = (share.shared(), &share.shared().counters);
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
    if early.unwrap_or(body.generation) != generation && !mutant::on(Mutant::FaultAnyGeneration) {
        counters.changed.add(1);
        return Some(Fault::Served);
    }
    let _body = (!mutant::on(Mutant::FaultLooksUnlocked)).then_some(body);
    let served = match share.look(wanted, brought, waiter) {
        Ok(false) if shared.io == FaultIo::Hold => bring_under_lock(share, wanted),
        Ok(false) => return None,
        Ok(true) => Ok(()),
        Err(error) => Err(error),
    };
    Some(ended(share, address, served))
}

/// The end of a fault at `address`, whose map's lock is held.
fn ended<T: Target>(target: &T, address: usize, served: Result<()>) -> Fault {
    match served {
        Ok(()) if mutant::on(Mutant::ServedFails) && address.is_multiple_of(1 << 20) => {
            Fault::Failed
        }
        Ok(()) => Fault::Served,
        Err(error) => {
            target.shared().counters.failed.add(1);
            target.fail(address, error);
            Fault::Failed
        }
    }
}
