//! What a client says, and when it is heard: events before faults, faults that rest, and a child of
//! the server.

use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};

use super::foreign::Message;
use super::tests::{
    EVENTS, FORKS, Guest, MIB, P, byte_of, bytes, may_ask_for, pending, serving, snapshot,
};
use super::*;

/// What a client reads that has a fault on a page and removes it, where both are heard at once.
fn fault_and_remove() -> u8 {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    file.get(20).unwrap(); // it is cached, and would be installed at once
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Shared, EVENTS);
    let id = guest.add_to(&mut clients);
    std::thread::scope(|scope| {
        let foreign = Foreign::new(guest.uffd().try_clone().unwrap()).unwrap();
        let mut messages = Vec::new();
        // Both end: the kernel tells of it, and the thread waits until that was read.
        let faults = scope.spawn(|| guest.read(20));
        while messages.is_empty() {
            foreign.read(&mut messages, &mut Vec::new()).unwrap();
        }
        let removes = scope.spawn(|| {
            let (guest, dont_need) = (&guest, rustix::mm::Advice::LinuxDontNeed);
            let at = guest.start.wrapping_add(20 * P as usize);
            // SAFETY: in the mapping.
            unsafe { rustix::mm::madvise(at.cast(), P as usize, dont_need) }
        });
        while messages.len() < 2 {
            foreign.read(&mut messages, &mut Vec::new()).unwrap();
        }
        removes.join().unwrap().unwrap();
        assert!(matches!(messages[..], [Message::Fault(_), Message::Removed(_)]), "{messages:?}");
        clients.take(id.0, &mut messages).unwrap();
        let read = faults.join().unwrap();
        drop(clients); // nobody is told that the memory is unmapped
        read
    })
}

#[test]
fn a_client_is_heard_before_the_faults_that_were_read_with_its_events() {
    assert_eq!(fault_and_remove(), 0, "it was removed");
    let caught = mutant::with(Some(Mutant::EventsAfterFaults), fault_and_remove);
    assert_eq!(caught, byte_of(20), "the mutant does nothing");
}

/// Whether a client gets on whose threads wait where another one moves its memory to, while the
/// server has not been told of the move.
fn gets_on_where_it_moves() -> bool {
    const THREADS: usize = foreign::MESSAGES_MAX + 1; // one read has no event
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Private, EVENTS);
    guest.add_to(&mut clients);
    let bytes = THREADS * P as usize;
    let nowhere = std::ptr::null_mut();
    // SAFETY: a new mapping.
    let to = unsafe { mmap_anonymous(nowhere, bytes, ProtFlags::empty(), MapFlags::PRIVATE) };
    let to = to.unwrap().expose_provenance();
    let is_moved = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{to:x}-");
        maps.lines().any(|line| line.starts_with(&start) && line.contains(" rw-p "))
    };
    let told = std::thread::scope(|scope| {
        let moves = scope.spawn(|| {
            let (from, to) = (guest.start.cast(), std::ptr::with_exposed_provenance_mut(to));
            // SAFETY: from the guest's mapping to the one just made.
            let moved = unsafe { mremap_fixed(from, bytes, bytes, MremapFlags::MAYMOVE, to) };
            moved.unwrap();
            guest.moved(0..bytes);
        });
        // Both end: it moves, and waits until that was read.
        while !is_moved() {
            std::thread::yield_now();
        }
        let read = |page: usize| {
            let at = std::ptr::with_exposed_provenance::<u8>(to + page * P as usize);
            // SAFETY: in the moved range.
            unsafe { at.read_volatile() }
        };
        let readers: Vec<_> = (0..THREADS)
            .map(|page| scope.spawn(move || assert_eq!(read(page), byte_of(page as u64))))
            .collect();
        while pending(&guest) < THREADS {
            std::thread::yield_now();
        }
        let mut told = Vec::new();
        // Ends: the faults are heard before the move is.
        while told.is_empty() && clients.stats().again == 0 {
            told.extend(clients.work());
        }
        if !told.is_empty() {
            // Nobody serves it any more. It goes on, as another client.
            let foreign = Foreign::new(guest.uffd().try_clone().unwrap()).unwrap();
            let mut said = Vec::new();
            while !said.iter().any(|it| matches!(it, Message::Moved { .. })) {
                foreign.read(&mut said, &mut Vec::new()).unwrap();
            }
            let at = to as u64;
            let rest = ClientMapping { address: at, bytes: bytes as u64, ..guest.mapping() };
            clients.add(guest.uffd().try_clone().unwrap(), &[rest]).unwrap();
        }
        let ((), more) = serving(&mut clients, || {
            moves.join().unwrap();
            for reader in readers {
                reader.join().unwrap();
            }
        });
        told.extend(more);
        told
    });
    drop(clients); // nobody is told that the memory is unmapped
    drop(guest);
    // SAFETY: the moved range.
    unsafe { munmap(std::ptr::with_exposed_provenance_mut(to), bytes) }.unwrap();
    told.is_empty()
}

#[test]
fn who_waits_where_memory_is_moved_to_waits_until_the_move_is_told() {
    assert!(gets_on_where_it_moves());
    let caught = mutant::with(Some(Mutant::OutsideAtOnce), gets_on_where_it_moves);
    assert!(!caught, "the mutant does nothing");
}

/// Its close waits for the lock of the child's memory, as long as the child likes.
///
/// In a process of its own: the C library's fork has the allocator's locks until it was told of, by
/// somebody who allocates. So this one is the system call, and no other test forks beside it.
#[test]
fn the_userfaultfd_of_a_forked_child_is_closed_by_who_is_told_of_it() {
    const ALONE: &str = "PINFOLD_TEST_FORKS";
    if std::env::var_os(ALONE).is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "the_userfaultfd_of_a_forked_child_is_closed_by_who_is_told_of_it";
        let name = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
        let output = again.args(["--exact", &name]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    if !may_ask_for(FORKS) {
        eprintln!("not tested: to be told of forks takes CAP_SYS_PTRACE");
        return;
    }
    let guest = Guest::new(&clients, ClientMemory::Private, FORKS);
    let id = guest.add_to(&mut clients);
    let foreign = Foreign::new(guest.uffd().try_clone().unwrap()).unwrap();
    let (child, told) = std::thread::scope(|scope| {
        let forks = scope.spawn(|| {
            // SAFETY: as fork(2); the child ends at once.
            let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            if child == 0 {
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) };
            }
            child as libc::pid_t
        });
        let mut told = Vec::new();
        // Ends: the fork waits until it was told.
        while !forks.is_finished() {
            told.extend(clients.work());
            if !told.is_empty() {
                foreign.read(&mut Vec::new(), &mut Vec::new()).unwrap();
            }
            std::thread::yield_now();
        }
        (forks.join().unwrap(), told)
    });
    drop((foreign, guest));
    let mut status = 0;
    // SAFETY: this process's child; `status` is this function's.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    let [ClientEvent::Ended { client, cause: ClientError::Forked { children } }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((*client, children.is_empty()), (id, false));
    for child in children.iter() {
        let what = std::fs::read_link(format!("/proc/self/fd/{}", child.as_raw_fd())).unwrap();
        assert_eq!(what.as_os_str(), "anon_inode:[userfaultfd]");
    }
}

/// Whether a client is still heard that has so many faults which rest.
fn is_heard_with_faults_that_rest() -> bool {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Shared, 0);
    let id = guest.add_to(&mut clients).0;
    let is_paused = |clients: &mut Clients| {
        clients.set_pause(id);
        clients.clients[&id].is_paused
    };
    clients.turns.reads = turns::READS_MAX;
    assert!(is_paused(&mut clients));
    clients.turns.reads = 0;
    let client = clients.clients.get_mut(&id).unwrap();
    for page in 0..turns::READS_MAX as u64 {
        client.rest(guest.mapping().address + page * P, Duration::ZERO);
    }
    !is_paused(&mut clients)
}

#[test]
fn a_client_whose_faults_rest_is_heard() {
    assert!(is_heard_with_faults_that_rest());
    let caught = mutant::with(Some(Mutant::RestsPause), is_heard_with_faults_that_rest);
    assert!(!caught, "the mutant does nothing");
}

/// How often a fault failed, and how often its page was read again, after it had rested for so long
/// for want of memory. It is tried far too late, as if this thread had waited for something else.
fn read_in_vain(short_for: Duration) -> [u64; 2] {
    const LATE: Duration = Duration::from_secs(1000);
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Shared, 0);
    let id = guest.add_to(&mut clients).0;
    clients.clients.get_mut(&id).unwrap().waiting.insert(3, short_for);
    // It was read, it is said; and was evicted before it could get into the mirror.
    clients.page_came(id, 3, Ok(())).unwrap();
    clients.clients.get_mut(&id).unwrap().is_late_by(LATE);
    clients.schedule(id);
    // Ends: the fault is tried again.
    while clients.stats().failed + clients.stats().waited == 0 {
        clients.work();
    }
    [clients.stats().failed, clients.stats().waited]
}

#[test]
fn a_fault_fails_when_it_has_rested_for_long_not_when_it_is_tried_late() {
    let patience = serving::PATIENCE;
    assert_eq!(read_in_vain(Duration::ZERO), [0, 1]);
    assert_eq!(read_in_vain(patience / 2), [0, 1]);
    assert_eq!(read_in_vain(patience), [1, 0]);
    let caught = mutant::with(Some(Mutant::ShortAnew), || read_in_vain(patience));
    assert_eq!(caught, [0, 1], "the mutant does nothing");
}

/// Whether the server still hears a client after a forked child has done all it can.
fn is_heard_after_a_fork() -> bool {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Shared, 0);
    let id = guest.add_to(&mut clients);
    let uffd = guest.uffd().try_clone().unwrap();
    // SAFETY: the child runs what follows, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            assert!(clients.work().is_empty());
            let added = clients.add(uffd, &[guest.mapping()]);
            assert!(matches!(added, Err(ClientError::Cache(_))));
            clients.remove(id);
            drop(clients);
        }));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = 0;
    // SAFETY: this process's child; `status` is this function's.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child has panicked");
    let (data, uffd) = (epoll::EventData::new_u64(id.0), &clients.clients[&id.0].uffd);
    let is_there = epoll::modify(&clients.epoll, uffd, data, epoll::EventFlags::IN).is_ok();
    if is_there {
        assert_eq!(serving(&mut clients, || guest.read(7)).0, byte_of(7));
    }
    is_there
}

#[test]
fn a_forked_child_leaves_the_clients_alone() {
    assert!(is_heard_after_a_fork());
    let caught = mutant::with(Some(Mutant::ForkedClientsRemove), is_heard_after_a_fork);
    assert!(!caught, "the mutant does nothing");
}
