//! What submitters and driver of a ring share.
//!
//! # Bounds
//! The kernel has at most `depth` requests, each in a slot of `lanes.rs`. Those that nobody waits
//! for are taken as long as `taken`, which counts requests between `start` and `finish`, is below
//! `ahead`. The submission queue holds `depth` requests, a cancellation of each, and the wake-up;
//! the completion queue twice as many.
//!
//! # States of the driver (under the mutex)
//! `awake` -> `asleep`: nothing waits; it goes into the kernel. `asleep` -> `awake`: a submitter or
//! `close` found it so and wrote to the eventfd, or a completion came. So a request put in while
//! `awake` is seen before the driver sleeps, and one put in while `asleep` wakes it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::base::sync::locks::{Mutex, MutexGuard};
use crate::source::descriptor::Descriptor;
use crate::source::lanes::{Job, Lanes};

#[derive(Debug)]
pub(super) struct RingShared {
    pub(super) state: Mutex<RingState>,
    pub(super) wake: OwnedFd,
    pub(super) depth: usize,
    pub(super) ahead: usize,
}

#[derive(Debug)]
pub(super) struct RingState {
    /// Those that have begun, the driver has not seen.
    pub(super) lanes: Lanes<Arc<Descriptor>>,
    pub(super) taken: usize,
    pub(super) asleep: bool,
    pub(super) closing: bool,
    /// A request in the kernel may have been asked to stop.
    pub(super) stops: bool,
    pub(super) refused: Option<String>,
}

/// A file has a lane, which has its address, only while a request has a share in its descriptor.
pub(super) fn lane_of(file: &Arc<Descriptor>) -> u64 {
    Arc::as_ptr(file).addr() as u64
}

pub(super) type WaitingRequest = Job<Arc<Descriptor>>;

impl RingShared {
    pub(super) fn stop_some(&self) {
        let mut state = self.state.lock();
        state.stops = true;
        self.wake(state);
    }

    pub(super) fn wake(&self, mut state: MutexGuard<'_, RingState>) {
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.wake_driver();
        }
    }

    pub(super) fn wake_driver(&self) {
        let woken =
            rustix::io::retry_on_intr(|| rustix::io::write(&self.wake, &1_u64.to_ne_bytes()));
        assert!(woken.is_ok(), "writing to the ring's eventfd failed: {woken:?}");
    }
}
