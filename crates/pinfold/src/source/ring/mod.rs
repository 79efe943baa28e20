//! Requests by `io_uring`: one ring per cache, driven by one thread.
//!
//! # Submitters and driver
//! A submitter puts requests in `RingState` under the mutex and, if the driver is asleep,
//! writes to an eventfd that the ring itself reads. The driver takes all that have a slot, hands
//! them to the kernel with one system call, and in the same call waits for the next completion.
//!
//! Why not submit from the reader's thread, under a lock: the kernel completes a request in the
//! task that submitted it (by interrupting it, or when its present system call ends), and
//! cancels what it has punted when that task exits. With a driver, only the driver is disturbed,
//! and the cheaper single-issuer mode of the ring can be used.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | the submitters' side: opening, taking requests, closing |
//! | `queue.rs` | which requests have a slot, and which wait for one |
//! | `driver.rs` | the thread, and the requests that the kernel has |

mod driver;
mod queue;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::EventfdFlags;

use super::descriptor::Descriptor;
use super::request::Request;
use super::{Start, pool, uring};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::locks::Mutex;
use crate::base::threads::start;
use driver::Driver;
use queue::{RingShared, RingState};

/// The driver wakes the futures that waited for what it has finished after so many requests at the
/// latest.
pub(super) const ABSORBED_MAX: usize = 64;

/// The submitters' side of a ring.
#[derive(Debug)]
pub(super) struct Ring {
    shared: Arc<RingShared>,
    driver: Mutex<Option<JoinHandle<()>>>,
}

impl Ring {
    /// Sets up a ring for at most `depth` requests at a time, of which at most `ahead` are taken
    /// for nobody, and its thread.
    ///
    /// # Errors
    /// The kernel's error: the system call may be missing (`ENOSYS`), forbidden (`EPERM`), or over
    /// a limit (`ENOMEM`, `EMFILE`).
    pub(super) fn open(depth: usize, ahead: usize) -> io::Result<Self> {
        assert!(depth > 0);
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let ahead = ahead.min(depth);
        let shared =
            Arc::new(RingShared { state: Mutex::new(RingState::new(depth)), wake, depth, ahead });
        // A single-issuer ring belongs to the thread that makes it.
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let of_driver = Arc::clone(&shared);
        let endless = mutant::on(Mutant::AbsorbsAll);
        let absorbed_max = if endless { usize::MAX } else { ABSORBED_MAX };
        // The submission queue's entries; see "Bounds" in `queue.rs`.
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

    /// Why the kernel refused the ring, if it has.
    pub(super) fn refused(&self) -> Option<String> {
        self.shared.state.lock().refused.clone()
    }

    /// Takes requests off the front of `batch`, as many as the limits allow.
    pub(super) fn start(&self, file: &Arc<Descriptor>, batch: &mut Vec<Request>) -> Start {
        let mut state = self.shared.state.lock();
        if state.refused.is_some() {
            return Start::Unsupported;
        }
        let (mut taken, mut stoppable) = (0, Vec::new());
        let mut rest = std::mem::take(batch).into_iter();
        // Ends: each turn takes a request, or is the last.
        while let Some(request) = rest.next() {
            if !state.takes(file, &request, self.shared.ahead) {
                batch.push(request);
                batch.extend(rest);
                break;
            }
            stoppable.extend(request.stoppable());
            state.take(file, request);
            taken += 1;
        }
        let wake = taken > 0 && std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.shared.wake_driver();
        }
        // The requests are queued and the lock is free, so `tell` may run at once.
        for control in stoppable {
            let shared = Arc::downgrade(&self.shared);
            control.on_stop(Box::new(move || {
                if let Some(shared) = shared.upgrade() {
                    shared.stop_some();
                }
            }));
        }
        if batch.is_empty() { Start::Started } else { Start::Full }
    }

    /// Accepts no more requests, and waits until all accepted ones are finished.
    pub(super) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closing = true;
        state.asleep = false;
        drop(state);
        self.shared.wake_driver();
        let driver = self.driver.lock().take();
        if let Some(driver) = driver {
            pool::join_unless_self(driver);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.close();
    }
}
