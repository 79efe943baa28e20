//! Handler threads: they serve faults of others, which wait in the kernel meanwhile.
//!
//! A fault is a task of the thread that took its message (`fault.rs`): while it waits for a read,
//! for memory, or for its turn, the thread serves others. What is more than a thread's [`TASKS_MAX`]
//! waits in the kernel's queue.
//!
//! # A page that cannot be read
//!
//! The thread that waits for it is in the kernel, maybe in a system call, so no signal can be sent
//! to its access. The page is *poisoned* instead: each access to it gets SIGBUS, or the system call
//! EFAULT, until it is unmapped or zapped (`advise` with `DontNeed`).
//!
//! # A thread that ends
//!
//! Whoever faults would wait for it for ever. So it waits for one descriptor, an epoll(7), which
//! works whatever limit of descriptors the program sets (`RLIMIT_NOFILE`); and a panic of the
//! thread ends the process.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::event::{EventfdFlags, Timespec, epoll};

use super::fault::Fault;
use super::vma::FaultAccess;
use crate::access::futures::{Ready, Set};
use crate::base::guarded::guarded;
use crate::base::mutant::{self, Mutant};
use crate::base::threads::start;
use crate::error::{Cause, Result};
use crate::frames::PAGE_BYTES;
use crate::mapped::task::Rests;
use crate::mapped::uffd::Uffd;

/// A fault that is served. If that panics, which is a mistake of this crate's, who waits for the
/// page gets an error, and all others are served.
pub(super) struct ServedFault(Pin<Box<dyn Future<Output = Fault>>>);

/// What serves a fault at an address, as a task of the thread with these timers: `serve_message` of
/// `target.rs`, which is above this file.
type Serve = fn(usize, FaultAccess, Rc<Rests>) -> ServedFault;

const TASKS_MAX: usize = 1024;

/// The messages that a thread takes at a time: there may be other threads.
const MESSAGES_MAX: usize = 4;

const NAME: &str = "pinfold-fault";

#[derive(Debug)]
pub(super) struct Handlers {
    stop: Arc<OwnedFd>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Handlers {
    /// Starts `n` threads. They do not keep the space alive.
    pub(super) fn start(n: usize, uffd: &Arc<Uffd>, serve: Serve) -> Result<Self> {
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = stop.map_err(|why| Cause::eventfd(why.into()))?;
        let mut handlers = Handlers { stop: Arc::new(stop), threads: Vec::new() };
        for _ in 0..n {
            let (uffd, stop) = (uffd.clone(), handlers.stop.clone());
            let ready = Ready::new()?;
            let watched = watch(&uffd, &stop, &ready);
            let epoll = watched.map_err(|why| Cause::eventfd(why.into()))?;
            let life = move || {
                let _ends_all = EndsAll;
                run(&uffd, &epoll, Set::of(ready), serve);
                drop(stop); // watched until here
            };
            // If it fails, those that run are stopped by the drop.
            let thread = start(NAME, life)?;
            handlers.threads.push(thread);
        }
        Ok(handlers)
    }
}

impl ServedFault {
    pub(super) fn by(task: impl Future<Output = Fault> + 'static) -> Self {
        ServedFault(Box::pin(task))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl ServedFault {
    /// What it takes while it waits.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

impl Future for ServedFault {
    type Output = Fault;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Fault> {
        guarded("a fault", || Ok(self.0.as_mut().poll(context)))
            .unwrap_or(Poll::Ready(Fault::Broken))
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

/// If the thread panics, the process ends.
struct EndsAll;

impl Drop for EndsAll {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort(); // the panic was told
        }
    }
}

/// What an event of a thread's epoll is of.
const STOP: u64 = 0;
const TASKS: u64 = 1;
const MESSAGES: u64 = 2;

/// The descriptor that says when a thread has something to do.
fn watch(uffd: &Uffd, stop: &OwnedFd, ready: &Ready) -> rustix::io::Result<OwnedFd> {
    let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (of, fd) in [(STOP, stop.as_fd()), (TASKS, ready.as_fd()), (MESSAGES, uffd.as_fd())] {
        epoll::add(&all, fd, epoll::EventData::new_u64(of), epoll::EventFlags::IN)?;
    }
    Ok(all)
}

/// Serves faults until it is told to stop. By then there is no task: each that waits has a share of
/// the space.
fn run(uffd: &Uffd, epoll: &OwnedFd, mut tasks: Set<usize, ServedFault>, serve: Serve) {
    let rests = Rc::new(Rests::default());
    let mut takes_messages = true;
    // Ends: the space's end makes `stop` readable.
    loop {
        let time = rests.wake();
        let has_room = tasks.len() < TASKS_MAX;
        if has_room != takes_messages {
            let wanted = if has_room { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            let modified = epoll::modify(epoll, uffd, epoll::EventData::new_u64(MESSAGES), wanted);
            modified.expect("it is watched");
            takes_messages = has_room;
        }
        let time = time.map(|time| Timespec::try_from(time).expect("it is short"));
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 3];
        let events = match epoll::wait(epoll, &mut events, time.as_ref()) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => panic!("waiting for faults failed: {error}"),
        };
        let is_there = |of| events.iter().any(|event| event.data.u64() == of);
        if is_there(STOP) {
            return;
        }
        let has_messages = is_there(MESSAGES) && takes_messages;
        while let Some((address, fault)) = tasks.next() {
            answer(uffd, address, &fault);
        }
        for _ in 0..if has_messages { MESSAGES_MAX } else { 0 } {
            // Another thread may have taken the message.
            let Ok(Some((address, stores))) = uffd.next() else { break };
            let access = if stores { FaultAccess::Store } else { FaultAccess::Load };
            let address = address & !(PAGE_BYTES - 1);
            let task = Box::pin(serve(address, access, rests.clone()));
            if let Some((address, fault)) = tasks.begin(address, task) {
                answer(uffd, address, &fault);
            }
        }
    }
}

/// Poisons a page that cannot be read, under its map's lock: the kernel does not ask whose page it
/// is.
pub(super) fn poison(uffd: &Uffd, address: usize) {
    // An error: the page is there after all, or its map is being unmapped. Either way the access is
    // repeated.
    let page = address & !(PAGE_BYTES - 1);
    let _ = uffd.poison(&(page..page + PAGE_BYTES));
}

/// Lets those go on that wait for a page.
pub(super) fn answer(uffd: &Uffd, address: usize, fault: &Fault) {
    // Without the map's lock: a panic has let go of it. The access would only panic again.
    if *fault == Fault::Broken || *fault == Fault::Failed && mutant::on(Mutant::PoisonUnlocked) {
        poison(uffd, address);
    }
    // What is in no map is being unmapped: the access is repeated, and ends by a signal.
    uffd.wake(&(address..address + PAGE_BYTES));
}
