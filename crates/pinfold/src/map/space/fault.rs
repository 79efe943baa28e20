//! A fault: what happens between an access to a page that is not in the map's memory and the
//! moment at which the access can be repeated. How the page gets there is said by the [`Target`]
//! (`target.rs`): `map/lend.rs`, or for own memory `anon/bring.rs`.
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
//! `lock` is the map's own: a fault lets go of it before it brings, and comes back by *retries*. To
//! compare with other ways (`compared.rs`), *retries* also takes the lock of the whole space,
//! before the map's, or the page is brought under the locks that the fault has.
//!
//! A page that another thread is just putting there is waited for in `look`, by a task only for a
//! moment. What was brought is kept until it was looked for, and then mapped where the access wants
//! it. So *retries* finds a page absent only if it left its file since, or if another page's owner
//! got its place. After [`RETRIES_MAX`] times the access is repeated all the same, as a new fault.

use super::compared::Compared;
use super::stats::{SpaceCounters, SpaceStats};
use super::vma::{FaultAccess, Vma, Wanted};
use crate::base::mutant::{self, Mutant};
use crate::base::sizes::RETRIES_MAX;
use crate::base::sync::between_steps;
use crate::base::wait::together;
use crate::error::{Error, Result};
use crate::mapped::task::{Waiter, now};
use crate::mapped::uffd::Ask;

/// What all maps of a space share, as far as faults are concerned.
#[derive(Debug)]
pub(crate) struct SpaceShared {
    pub(crate) by: Ask,
    pub(crate) compared: Compared,
    pub(crate) counters: SpaceCounters,
}

impl SpaceShared {
    pub(crate) fn new(compared: Compared, by: Ask) -> Self {
        SpaceShared { by, compared, counters: SpaceCounters::default() }
    }

    pub(crate) fn stats(&self, serves_system_calls: bool) -> SpaceStats {
        let counters = &self.counters;
        SpaceStats {
            serves_system_calls,
            faults: counters.faults.get(),
            there: counters.there.get(),
            absent: counters.absent.get(),
            retries: counters.retries.get(),
            retry_io_miss: counters.retry_io_miss.get(),
            changed: counters.changed.get(),
            failed: counters.failed.get(),
            #[cfg(any(feature = "testing", loom, shuttle))]
            locks: self.compared.report(),
        }
    }
}

/// The file behind a map. A clone is a share: the file stays as long as there is one.
pub(crate) trait Target: Clone {
    /// A page that was read, kept from eviction until it was looked for.
    type Brought<'a>
    where
        Self: 'a;

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

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Served,
    /// No map has the address whose faults come in this way.
    Elsewhere,
    /// The page cannot be read. [`Target::fail`] was told why.
    Failed,
    Broken,
}

/// Serves a load at `address`, whose record `find` gives.
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) fn serve<'v, T: Target + 'v>(
    address: usize,
    by: Ask,
    find: impl Fn(usize) -> Option<&'v Vma<T>>,
) -> Fault {
    now(serve_access(address, by, FaultAccess::Load, Some(Waiter::Thread), find))
}

/// Serves an access at `address`, whose record `find` gives. A signal for a map whose faults come
/// as messages says that its page is poisoned. Without a waiter nobody waits: an access to a page
/// that is on its way is repeated.
pub(crate) async fn serve_access<'v, T: Target + 'v>(
    address: usize,
    by: Ask,
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

enum FirstLook<T> {
    Ended(Fault),
    /// The page is absent; the map's lock was let go of.
    Absent(T, Wanted, u64),
}

fn first_look<T: Target>(
    vma: &Vma<T>,
    address: usize,
    by: Ask,
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
    shared.compared.note_reader(waited);
    let served = match target.look(&wanted, None, waiter) {
        Ok(true) => {
            shared.counters.there.add(1);
            Ok(())
        }
        Err(error) => Err(error),
        Ok(false) => {
            shared.counters.absent.add(1);
            if !shared.compared.holds(false) {
                return FirstLook::Absent(target.clone(), wanted, body.generation);
            }
            bring_under_lock(target, &wanted)
        }
    };
    FirstLook::Ended(ended(target, address, served))
}

/// Brings a page under the lock under which it was absent: to compare with.
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

/// Brings a page that is absent, without a lock, and looks again under the lock of its map, which
/// had `generation` when it was looked for.
async fn retry<T: Target>(
    vma: &Vma<T>,
    share: &T,
    generation: u64,
    wanted: &Wanted,
    address: usize,
    waiter: Option<Waiter<'_>>,
) -> Fault {
    for _ in 0..RETRIES_MAX {
        let drops = share.shared().compared.drops();
        let brought =
            match if drops { share.bring(wanted, waiter).await.map(Some) } else { Ok(None) } {
                Ok(brought) => brought,
                Err(error) => {
                    let (body, _) = vma.read();
                    // The addresses may be another map's by now: it is that one's fault.
                    if body.generation != generation {
                        share.shared().counters.changed.add(1);
                        return Fault::Served;
                    }
                    return ended(share, address, Err(error));
                }
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
    shared.compared.retry(|| {
        let (body, waited) = vma.read();
        shared.compared.note_reader(waited);
        let is_other = early.unwrap_or(body.generation) != generation;
        if is_other && !mutant::on(Mutant::FaultAnyGeneration) {
            counters.changed.add(1);
            return Some(Fault::Served);
        }
        let _body = (!mutant::on(Mutant::FaultLooksUnlocked)).then_some(body);
        let served = match share.look(wanted, brought, waiter) {
            Ok(false) if shared.compared.holds(true) => bring_under_lock(share, wanted),
            Ok(false) => return None,
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        Some(ended(share, address, served))
    })
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
