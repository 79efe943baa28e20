//! The fence between announcing and freezing a folio, in two halves (`pages/readers/mod.rs`). The
//! reader's is on the hot path; the freezer pays its own once per batch. membarrier(2) moves the
//! reader's half to the freezer: when it returns, every thread of the process has executed a full
//! fence since the call began, or when it was switched off. The reader then only keeps the compiler
//! from reordering the two.

use crate::base::mutant::{self, Mutant};
use crate::base::sync::{Ordering, fence};

/// How borrowing threads are ordered with threads that evict, move or split folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// By membarrier(2), called by the freezer: a borrow has no fence.
    Membarrier,
    /// By a full fence in each borrow.
    FullFence,
}

impl Barrier {
    /// The kind wished for, or a full fence where the kernel refuses.
    pub(crate) fn choose(wished: Barrier) -> Barrier {
        match wished {
            Barrier::Membarrier if system::register() => Barrier::Membarrier,
            _ => Barrier::FullFence,
        }
    }

    /// The reader's half: between the store of its announcement and the load of the version.
    #[inline(always)]
    pub(crate) fn light(self) {
        if mutant::on(Mutant::AnnounceUnfenced) {
            return;
        }
        if cfg!(not(loom)) && self == Barrier::Membarrier {
            // Pairs with the membarrier in `heavy`, which executes the fence of this thread.
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            full_fence();
        }
    }

    /// The freezer's half: between the store of an odd version and the load of the announcements.
    /// False if the kernel refuses now, though it agreed at registration.
    pub(crate) fn heavy(self) -> bool {
        if cfg!(not(loom)) && self == Barrier::Membarrier {
            return system::membarrier();
        }
        if !mutant::on(Mutant::ScanUnfenced) {
            // SeqCst: pairs with the fence in `light`.
            fence(Ordering::SeqCst);
        }
        true
    }
}

/// Out of line, so that readers without a fence have no jump over it.
#[cold]
#[inline(never)]
fn full_fence() {
    // SeqCst: pairs with the fence in `heavy`.
    fence(Ordering::SeqCst);
}

#[cfg(not(any(loom, shuttle)))]
mod system {
    use rustix::thread::MembarrierCommand::{PrivateExpedited, RegisterPrivateExpedited};

    pub(crate) fn register() -> bool {
        rustix::thread::membarrier(RegisterPrivateExpedited).is_ok()
    }

    pub(crate) fn membarrier() -> bool {
        rustix::thread::membarrier(PrivateExpedited).is_ok()
    }
}

/// loom has no membarrier: a light fence beside a heavy one is equivalent to two full ones (P1202,
/// "Asymmetric fences").
#[cfg(loom)]
mod system {
    pub(crate) fn register() -> bool {
        true
    }

    pub(crate) fn membarrier() -> bool {
        unreachable!("a model has fences")
    }
}

#[cfg(shuttle)]
mod system {
    use crate::base::mutant::{self, Mutant};

    pub(crate) fn register() -> bool {
        true
    }

    pub(crate) fn membarrier() -> bool {
        if !mutant::on(Mutant::ScanUnfenced) {
            crate::base::sync::scheduled::empty_all_buffers();
        }
        true
    }
}
