//! The two halves of the fence between announcing a folio and freezing it.
//!
//! A reader stores its announcement and then loads the folio's version; a freezer stores an odd
//! version and then loads the announcements. At least one of them must see the other's store, so
//! that both need a full fence in between. The reader's is on the hot path, the freezer's is paid
//! once for a whole batch. membarrier(2) moves the reader's part to the freezer: the call returns
//! after every running thread of the process has passed a full fence at some point of its program
//! since the call began, and a thread that is not running passed one when it was switched off. So the
//! reader only keeps the compiler from exchanging the two.
//!
//! Here: choosing the kind, and both halves. Not here: what is announced (`readers`). Called by
//! `readers` (the heavy half) and by the borrowing door (the light half).

use crate::flaw::{self, Flaw};
use crate::sync::{Ordering, fence};

/// How a borrowing reader and those who evict, move or split folios are kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Barrier {
    /// By membarrier(2), on the slow side alone: a borrow has no fence.
    #[default]
    Membarrier,
    /// By a full fence in each borrow, where the system has no membarrier(2), or as wished.
    FullFence,
}

impl Barrier {
    /// The one wished for, or a full fence where the kernel refuses.
    pub(super) fn choose(wished: Barrier) -> Barrier {
        match wished {
            Barrier::Membarrier if system::register() => Barrier::Membarrier,
            _ => Barrier::FullFence,
        }
    }

    /// The reader's half: between the store of its announcement and the load of the version.
    #[inline(always)]
    pub(crate) fn light(self) {
        if flaw::on(Flaw::AnnounceUnfenced) {
            return;
        }
        if cfg!(not(loom)) && self == Barrier::Membarrier {
            // Pairs with the membarrier in `heavy`, which is the fence that runs here.
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            full_fence();
        }
    }

    /// The freezer's half: between the store of an odd version and the load of the announcements.
    /// False if the kernel refused, which it did not when it was asked first.
    pub(super) fn heavy(self) -> bool {
        if cfg!(not(loom)) && self == Barrier::Membarrier {
            return system::membarrier();
        }
        if !flaw::on(Flaw::ScanUnfenced) {
            // SeqCst: pairs with the fence in `light`.
            fence(Ordering::SeqCst);
        }
        true
    }
}

/// Out of line: those who have no fence do not even jump over it.
#[cold]
#[inline(never)]
fn full_fence() {
    // SeqCst: pairs with the fence in `heavy`.
    fence(Ordering::SeqCst);
}

impl std::fmt::Display for Barrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Barrier::Membarrier => "membarrier",
            Barrier::FullFence => "full fence",
        })
    }
}

#[cfg(not(any(loom, shuttle)))]
mod system {
    use rustix::thread::MembarrierCommand::{PrivateExpedited, RegisterPrivateExpedited};

    /// Once for a process; again does no harm.
    pub(super) fn register() -> bool {
        rustix::thread::membarrier(RegisterPrivateExpedited).is_ok()
    }

    pub(super) fn membarrier() -> bool {
        rustix::thread::membarrier(PrivateExpedited).is_ok()
    }
}

/// loom has no membarrier: both halves are full fences there, which is what the light half of an
/// asymmetric fence is worth beside the heavy one (P1202, "Asymmetric fences").
#[cfg(loom)]
mod system {
    pub(super) fn register() -> bool {
        true
    }

    pub(super) fn membarrier() -> bool {
        unreachable!("a model has fences")
    }
}

/// What it does to the store buffers that a model under shuttle can have.
#[cfg(shuttle)]
mod system {
    use crate::flaw::{self, Flaw};

    pub(super) fn register() -> bool {
        true
    }

    pub(super) fn membarrier() -> bool {
        if !flaw::on(Flaw::ScanUnfenced) {
            crate::sync::scheduled::empty_all_buffers();
        }
        true
    }
}
