//! The record of one map, with its lock and its generation; the table of all records of the
//! process. How an address leads to a record is `index.rs`.
//!
//! # States
//!
//! | state | `taken` | the body | how it goes on |
//! |---|---|---|---|
//! | free | 0 | nothing is mapped | [`RecordTable::claim`]: claimed |
//! | claimed | 1 | nothing is mapped; one thread has the record | [`Vma::change`] with a map: mapped; [`RecordTable::release`]: free |
//! | mapped | 1 | an address range, and the file behind it | [`Vma::change`] with a map: mapped, a further generation; with none: claimed |
//!
//! The body is behind a lock. Each change is one more generation, so a fault that let go of the
//! lock and has it again knows whether the map is still what it was.
//!
//! A record is never freed: whoever has an old number of it finds, under its lock, that the address
//! is not in its range.

use std::ops::Range;

use super::compared::{Compared, Waited, read, write};
#[cfg(not(loom))]
use super::index::{made_once, there};
#[cfg(not(loom))]
use crate::base::fork::Birth;
use crate::base::mutant::{self, Mutant};
#[cfg(not(loom))]
use crate::base::sync::{AtomicPtr, AtomicU32, Ordering};
use crate::base::sync::{RwLock, RwLockReadGuard};
use crate::frames::PAGE_BYTES;

/// What a fault has to know of a map whose pages are found behind `T`.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    pub(crate) addresses: Range<usize>,
    /// The page of the file at the first address.
    pub(crate) first_page: u64,
    pub(crate) target: T,
}

impl<T> Mapped<T> {
    /// The page of the file at `address`, if that is in the map.
    pub(crate) fn page_at(&self, address: usize) -> Option<u64> {
        let inside = self.addresses.contains(&address) || mutant::on(Mutant::FaultAnyRange);
        let at = address.wrapping_sub(self.addresses.start) / PAGE_BYTES;
        inside.then(|| self.first_page + at as u64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultAccess {
    /// It loads, or it is not known to store.
    Load,
    Store,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) page: u64,
    pub(crate) access: FaultAccess,
    /// The address of the map's first page, and the pages of the file that it has. They hold as
    /// long as the map's lock is held, or was taken again in the same generation.
    pub(crate) start: usize,
    pub(crate) pages: Range<u64>,
}

#[derive(Debug)]
pub(crate) struct Body<T> {
    pub(crate) generation: u64,
    pub(crate) mapped: Option<Mapped<T>>,
}

impl<T> Body<T> {
    /// What is behind `address`, and what an access to it wants, if the address is in the map.
    pub(crate) fn at(&self, address: usize) -> Option<(&T, Wanted)> {
        let mapped = self.mapped.as_ref()?;
        let pages = (mapped.addresses.len() / PAGE_BYTES) as u64;
        let pages = mapped.first_page..mapped.first_page + pages;
        let (page, start) = (mapped.page_at(address)?, mapped.addresses.start);
        Some((&mapped.target, Wanted { page, access: FaultAccess::Load, start, pages }))
    }
}

#[derive(Debug)]
pub(crate) struct Vma<T> {
    body: RwLock<Body<T>>,
}

impl<T> Vma<T> {
    pub(crate) fn new() -> Self {
        Vma { body: RwLock::new(Body { generation: 0, mapped: None }) }
    }

    /// Its body, for reading, and how long that took.
    pub(crate) fn read(&self) -> (RwLockReadGuard<'_, Body<T>>, Waited) {
        read(&self.body)
    }

    /// Changes the map by `change`, while no fault reads the record. The generation is another one
    /// afterwards, whatever `change` does.
    pub(crate) fn change<R>(
        &self,
        compared: &Compared,
        change: impl FnOnce(&mut Option<Mapped<T>>) -> R,
    ) -> R {
        let (mut body, waited) = write(&self.body);
        compared.note_writer(waited);
        body.generation += 1;
        change(&mut body.mapped)
    }
}

/// Begins a map, whose record the caller has claimed: `publish` makes the index lead to it, before
/// any fault can read the record. Returns what `publish` does.
pub(crate) fn begin<T, R>(
    vma: &Vma<T>,
    compared: &Compared,
    mapped: Mapped<T>,
    publish: impl FnOnce() -> R,
) -> R {
    vma.change(compared, |slot| {
        *slot = Some(mapped);
        publish()
    })
}

/// Ends a map: `clear` takes it out of the index and the address space while no fault reads its
/// record, `release` gives the record back after that. Returns what was mapped.
pub(crate) fn end<T>(
    vma: &Vma<T>,
    compared: &Compared,
    clear: impl FnOnce(&Mapped<T>),
    release: impl FnOnce(),
) -> Option<Mapped<T>> {
    let mut release = Some(release);
    let mut release = || release.take().map(|release| release());
    if mutant::on(Mutant::UnmapReleasesFirst) {
        release();
    }
    let mapped = vma.change(compared, |mapped| {
        mapped.as_ref().map(clear);
        mapped.take()
    });
    release();
    mapped
}

#[cfg(not(loom))]
const CHUNK: usize = 64;

/// The most such chunks. A map takes two of the kernel's VMAs or three, of which a process has
/// 65,530 unless `vm.max_map_count` was raised.
#[cfg(not(loom))]
const CHUNKS: usize = 1 << 12;

#[cfg(not(loom))]
pub(super) const RECORDS_MAX: usize = CHUNK * CHUNKS;

/// All records of the process, without a lock ([`made_once`]). A forked child never uses a record
/// of its parent's, which another thread may have been reading at the fork: chunks know in which
/// process they were made.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct RecordTable<T> {
    chunks: [AtomicPtr<Chunk<T>>; CHUNKS],
    /// Where to look for a free record first.
    hint: AtomicU32,
}

#[cfg(not(loom))]
#[derive(Debug)]
struct Chunk<T> {
    birth: Birth,
    records: [(AtomicU32, Vma<T>); CHUNK],
}

#[cfg(not(loom))]
impl<T> RecordTable<T> {
    #[allow(clippy::large_stack_arrays, reason = "the process's, and that of a test")]
    pub(crate) const fn new() -> Self {
        RecordTable {
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
            hint: AtomicU32::new(0),
        }
    }

    /// The record with that number. `None` if this process has made none.
    pub(crate) fn get(&self, number: u32) -> Option<&Vma<T>> {
        self.record(number).map(|(_, vma)| vma)
    }

    fn record(&self, number: u32) -> Option<&(AtomicU32, Vma<T>)> {
        let chunk = there(self.chunks.get(number as usize / CHUNK)?)?;
        chunk.birth.is_here().then(|| &chunk.records[number as usize % CHUNK])
    }

    /// A free record, and its number. `None` if all are taken.
    pub(crate) fn claim(&self) -> Option<(u32, &Vma<T>)> {
        // Relaxed: a hint.
        let first = self.hint.load(Ordering::Relaxed) as usize / CHUNK;
        let new = || Chunk {
            birth: Birth::here(),
            records: std::array::from_fn(|_| (AtomicU32::new(0), Vma::new())),
        };
        (first..CHUNKS).chain(0..first).find_map(|at| {
            let chunk = made_once(&self.chunks[at], new);
            let is_free = |record: &(AtomicU32, Vma<T>)| chunk.birth.is_here() && take(&record.0);
            let slot = chunk.records.iter().position(is_free)?;
            Some(((at * CHUNK + slot) as u32, &chunk.records[slot].1))
        })
    }

    /// Gives back a record of which nothing is mapped.
    pub(crate) fn release(&self, number: u32) {
        if let Some((taken, _)) = self.record(number) {
            // Release: pairs with the acquire in `take`. What its last user did comes before.
            taken.store(0, Ordering::Release);
            self.hint.store(number, Ordering::Relaxed); // a hint
        }
    }
}

/// Whether the record was free, and is the caller's now.
#[cfg(not(loom))]
fn take(taken: &AtomicU32) -> bool {
    // Acquire: pairs with the release in `RecordTable::release`.
    taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_threads_until_it_is_given_back() {
        let table = RecordTable::<()>::new();
        let claimed: Vec<_> = std::thread::scope(|scope| {
            let claim = || (0..100).map(|_| table.claim().unwrap().0).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let mut distinct = claimed.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 400);
        table.release(claimed[17]);
        assert_eq!(table.claim().unwrap().0, claimed[17]);
        assert!(table.get(u32::MAX).is_none());
    }

    #[test]
    fn each_change_is_another_generation() {
        let (vma, waits) = (Vma::<u8>::new(), Compared::default());
        let generation = |vma: &Vma<u8>| vma.read().0.generation;
        let before = generation(&vma);
        vma.change(&waits, |_| ());
        assert_ne!(generation(&vma), before);
    }

    #[test]
    fn the_page_at_an_address_counts_from_the_first() {
        let mapped = Mapped { addresses: 0x20_0000..0x20_3000, first_page: 7, target: () };
        assert_eq!(mapped.page_at(0x20_0000), Some(7));
        assert_eq!(mapped.page_at(0x20_2fff), Some(9));
        assert_eq!(mapped.page_at(0x20_3000), None);
        assert_eq!(mapped.page_at(0x1f_ffff), None);
    }
}
