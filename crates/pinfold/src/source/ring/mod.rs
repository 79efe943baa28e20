//! Requests by `io_uring`: one ring per cache, driven by one thread.
//!
//! A submitter puts requests in `RingState` (`queue.rs`) and, if the driver (`driver.rs`) is
//! asleep, writes to an eventfd that the ring itself reads. The driver takes all that have a slot,
//! hands them to the kernel with one system call, and in the same call waits for the next
//! completion. Not submitted from the reader's thread, as the kernel interrupts the task that
//! submitted a request to complete it, and cancels what it has punted when that task exits.

mod driver;
mod queue;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::EventfdFlags;

use super::descriptor::Descriptor;
use super::lanes::Lanes;
use super::request::{self, Request};
use super::{Start, pool, uring};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::locks::Mutex;
use crate::base::threads::start;
use driver::Driver;
use queue::{RingShared, RingState, lane_of};

/// After so many requests, the driver wakes the futures that waited for what it has finished.
pub(super) const ABSORBED_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Ring {
    shared: Arc<RingShared>,
    driver: Mutex<Option<JoinHandle<()>>>,
}

impl Ring {
    /// A ring for at most `depth` requests at a time, of which at most `ahead` are taken for
    /// nobody. Error: the call may be missing (`ENOSYS`), forbidden (`EPERM`), or over a limit.
    pub(super) fn open(depth: usize, ahead: usize) -> io::Result<Self> {
        assert!(depth > 0);
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let state = Mutex::new(RingState {
            lanes: Lanes::new(depth),
            taken: 0,
            asleep: false,
            closing: false,
            stops: false,
            refused: None,
        });
        let shared = Arc::new(RingShared { state, wake, depth, ahead: ahead.min(depth) });
        // A single-issuer ring belongs to the thread that makes it.
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let of_driver = Arc::clone(&shared);
        let endless = mutant::on(Mutant::AbsorbsAll);
        let absorbed_max = if endless { usize::MAX } else { ABSORBED_MAX };
        // See "Bounds" in `queue.rs`.
        let entries = 2 * depth + 1;
        let set_up = move || -> io::Result<_> {
            let kernel = uring::set_up(entries)?;
            uring::no_request_waits_for_another(&kernel.0, depth)?;
            Ok(kernel)
        };
        let driver = start("pinfold-ring", move || match set_up() {
            Ok(kernel) => {
                tell.send(Ok(())).expect("`open` waits for this");
                Driver::new(of_driver, kernel, absorbed_max).run();
            }
            Err(cause) => tell.send(Err(cause)).expect("`open` waits for this"),
        })?;
        told.recv().map_err(|_| io::Error::other("the ring's thread died at its start"))??;
        Ok(Self { shared, driver: Mutex::new(Some(driver)) })
    }

    pub(super) fn refused(&self) -> Option<String> {
        self.shared.state.lock().refused.clone()
    }

    #[cfg(all(feature = "serve", not(loom)))]
    pub(super) fn at_once(&self) -> usize {
        (self.shared.depth / 2).max(1)
    }

    pub(super) fn start(&self, file: &Arc<Descriptor>, batch: &mut Vec<Request>) -> Start {
        let mut state = self.shared.state.lock();
        if state.refused.is_some() {
            return Start::Unsupported;
        }
        let (taken, lane) = (state.taken, lane_of(file));
        let stoppable = request::take_front(batch, |request| {
            let begins = state.lanes.may_begin(lane);
            let fits = request.is_awaited() || state.taken < self.shared.ahead;
            if state.closing || !fits || !(begins || state.lanes.load(lane) > 0) {
                return Some(request);
            }
            state.lanes.take(lane, (file.clone(), request), begins);
            state.taken += 1;
            None
        });
        if state.taken > taken {
            self.shared.wake(state);
        } else {
            drop(state);
        }
        request::on_stops(stoppable, &self.shared, RingShared::stop_some);
        if batch.is_empty() { Start::Started } else { Start::Full }
    }

    /// Waits until all accepted requests are finished.
    pub(super) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closing = true;
        state.asleep = false;
        drop(state);
        self.shared.wake_driver();
        let driver = self.driver.lock().take();
        driver.into_iter().for_each(pool::join_unless_self);
    }
}
