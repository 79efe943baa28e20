//! Handler threads: they serve faults of others, which wait in the kernel meanwhile.
//!
//! For programs that cannot have SIGBUS handled in the thread that faults, and for system calls
//! that touch the memory: `write(2)` from a map waits for its pages.
//!
//! Here: the threads, their messages, and the poisoning of pages that cannot be read. Each thread
//! waits for the descriptor, takes one message, serves that fault (`fault.rs`), and wakes whoever
//! waits for the page. So as many faults are served at once as there are threads; further ones wait
//! in the kernel's queue.
//!
//! # A page that cannot be read
//!
//! The thread that waits for it is in the kernel, maybe in a system call, so no signal can be sent
//! to its access. The page is *poisoned* instead: each access to it gets SIGBUS, or the system call
//! EFAULT, until it is unmapped or zapped (`advise` with `DontNeed`). Then it is read again.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use super::fault::Fault;
use super::vma::Access;
use crate::error::{ErrorKind, Result};
use crate::frame::PAGE_BYTES;
use crate::uffd::Uffd;

/// What serves a fault at an address.
type Serve = fn(usize, Access) -> Fault;

/// The threads' name.
const NAME: &str = "pinfold-fault";

/// The threads of one space.
#[derive(Debug)]
pub(super) struct Handlers {
    stop: Arc<OwnedFd>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Handlers {
    /// Starts `n` threads. They do not keep the space alive.
    ///
    /// # Errors
    /// [`ErrorKind::Eventfd`], [`ErrorKind::Thread`].
    pub(super) fn start(n: usize, uffd: &Arc<Uffd>, serve: Serve) -> Result<Self> {
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = stop.map_err(|why| ErrorKind::Eventfd { cause: Arc::new(why.into()) })?;
        let mut handlers = Handlers { stop: Arc::new(stop), threads: Vec::new() };
        for _ in 0..n {
            let (uffd, stop) = (uffd.clone(), handlers.stop.clone());
            let thread = std::thread::Builder::new().name(NAME.to_owned());
            let thread = thread.spawn(move || run(&uffd, &stop, serve));
            // If it fails, those that run are stopped by the drop.
            handlers.threads.push(
                thread.map_err(|cause| ErrorKind::Thread { name: NAME, cause: Arc::new(cause) })?,
            );
        }
        Ok(handlers)
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        // Never read, so it stays readable for all of them. It cannot be full.
        let told = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        debug_assert!(told.is_ok(), "{told:?}");
        let own = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // A handler may be the last that has a share of a map that was unmapped meanwhile.
            if thread.thread().id() != own {
                // A panic was told by its thread.
                let _ = thread.join();
            }
        }
    }
}

/// Serves faults until it is told to stop.
fn run(uffd: &Uffd, stop: &OwnedFd, serve: Serve) {
    let mut fds = [
        PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(uffd.as_fd(), PollFlags::IN),
    ];
    // Ends: the space's end makes `stop` readable.
    loop {
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => panic!("waiting for faults failed: {error}"),
        }
        if fds[0].revents().contains(PollFlags::IN) {
            return;
        }
        // Another thread may have taken the message.
        if let Ok(Some((address, stores))) = uffd.next() {
            let access = if stores { Access::Store } else { Access::Load };
            answer(uffd, address & !(PAGE_BYTES - 1), access, serve);
        }
    }
}

fn answer(uffd: &Uffd, address: usize, access: Access, serve: Serve) {
    if serve(address, access) == Fault::Failed && uffd.poison(address, PAGE_BYTES).is_ok() {
        return; // which wakes them
    }
    // What is in no map is being unmapped: the access is repeated, and ends by a signal.
    uffd.wake(address, PAGE_BYTES);
}
