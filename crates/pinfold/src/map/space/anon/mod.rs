//! Memory of the program's own that can be paged out: anonymous memory, and private views of files.
//!
//! An *area* is private memory of one map, registered with the space's userfaultfd for missing
//! pages and for stores to protected ones. A page is put to its address when its bytes are complete
//! (`UFFDIO_COPY`), and taken out when they are elsewhere. In memory it is a folio of the cache,
//! with a frame of a hollow run: so it is in the budget, and the one policy evicts it.
//!
//! A page gets in by `bring.rs`, and leaves by `out.rs`; `trust.rs` says what is believed of the
//! page table. `AnonMap`, as a program sees it, is in `anon_map.rs`, the states of a page in
//! `mapped/swap/pages.rs`.
//!
//! # Locks
//!
//! They are taken in this order; a call may leave out some:
//!
//! 1. the record of the map (`vma.rs`): a fault has it for reading, whoever changes the map for
//!    writing;
//! 2. the `change` mutex of the mapping, under which a page gets in, is protected and unprotected,
//!    and leaves: in one step with its state, and with the index;
//! 3. the locks of the cache's memory, of the swap's slots, and `writes`.
//!
//! Under 2 and 3 nobody accesses own memory by its address: that could be a fault, which takes 1
//! (`proc.rs`). Nobody waits for the swap, a file, or a page-out under any of them. A source of the
//! swap must not use the memory that it writes.

mod bring;
mod calls;
mod hold;
mod out;
mod proc;
mod trust;

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

pub(super) use hold::CopyPart;
pub use hold::HeldRange;
pub(super) use out::pages_of;
pub(super) use proc::Proc;

use crate::base::sync::locks::{Condvar, Mutex};
use crate::error::{Cause, Error};
use crate::file::File;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::mapped::reserved::Reservation;
use crate::mapped::swap::Swap;
use crate::mapped::uffd::Uffd;
use crate::pages::core::Core;
use crate::pages::mapping::Mapping;
use crate::pages::reclaim::Shortage;

/// How many threads can go through the memory in order and be seen to.
const STREAMS: usize = 16;

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one for each map")]
pub(super) enum Origin {
    Zeros,
    /// The file's, from the byte on.
    File(File, u64),
}

/// The memory of one map.
///
/// # Invariants
///
/// The addresses of `reservation` are this value's as long as it is there: so whoever has a share
/// of it may put pages there, and no page of another map is ever there. `closed` is set under the
/// mapping's `change` mutex, after which no page gets in.
#[derive(Debug)]
pub(crate) struct Area {
    pub(super) reservation: Reservation,
    pub(super) bytes: usize,
    uffd: Arc<Uffd>,
    proc: Arc<Proc>,
    core: Weak<Core>,
    origin: Origin,
    closed: AtomicBool,
    /// Where threads that go through the memory in order are expected next.
    streams: [AtomicU64; STREAMS],
    /// Whose place the next one takes.
    next_stream: AtomicU32,
    /// How many page-outs of pages without a slot there were.
    without_slot: AtomicU32,
    writes: Mutex<Writes>,
    one_ended: Condvar,
}

#[derive(Debug, Default)]
struct Writes {
    under_way: u32,
    ended: u64,
}

impl Area {
    pub(super) fn new(
        (uffd, proc): (&Arc<Uffd>, &Arc<Proc>),
        core: Weak<Core>,
        origin: Origin,
        bytes: usize,
    ) -> std::io::Result<Self> {
        let reservation = Reservation::new(bytes)?;
        let start = reservation.start.expose_provenance();
        let pages = start..start + bytes.next_multiple_of(PAGE_BYTES);
        // SAFETY: reserved by this call, and given to nobody.
        unsafe { calls::install(uffd.as_fd(), &pages) }?;
        Ok(Area {
            reservation,
            bytes,
            uffd: uffd.clone(),
            proc: proc.clone(),
            core,
            origin,
            closed: AtomicBool::new(false),
            streams: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            next_stream: AtomicU32::new(0),
            without_slot: AtomicU32::new(0),
            writes: Mutex::default(),
            one_ended: Condvar::new(),
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.uffd.as_fd()
    }

    pub(super) fn pages(&self) -> u64 {
        self.bytes.div_ceil(PAGE_BYTES) as u64
    }

    fn address(&self, page: u64) -> *mut u8 {
        debug_assert!(page < self.pages());
        self.reservation.start.wrapping_add((page << PAGE_SHIFT) as usize)
    }

    pub(super) fn addresses(&self, pages: &Range<u64>) -> Range<usize> {
        let start = self.reservation.start.addr();
        start + (pages.start << PAGE_SHIFT) as usize..start + (pages.end << PAGE_SHIFT) as usize
    }

    /// Changes under the `change` mutex.
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn no_memory(core: &Core, mapping: &Mapping, page: u64, why: Shortage) -> Error {
        let swap = core.own_swap().map_or_else(|| "there is no swap".to_owned(), Swap::about);
        let (name, offset) = (mapping.path.clone(), page << PAGE_SHIFT);
        Cause::OwnMemory { name, offset, swap, cause: why.of(mapping, page).into_cause() }.into()
    }

    /// A store to the page is a fault, or none.
    fn protect(&self, page: u64, on: bool) {
        calls::protect(self.fd(), &self.addresses(&(page..page + 1)), on);
    }
}
