//! What a client says, and when it is heard: events before faults, faults that rest, and a child of
//! the server.

use std::time::{Duration, Instant};

use super::client::WaitingPage;
use super::foreign::Message;
use super::tests::{EVENTS, Guest, MIB, P, byte_of, bytes, serving, snapshot};
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
            foreign.read(&mut messages).unwrap();
        }
        let removes = scope.spawn(|| {
            let (guest, dont_need) = (&guest, rustix::mm::Advice::LinuxDontNeed);
            let at = guest.start.wrapping_add(20 * P as usize);
            // SAFETY: in the mapping.
            unsafe { rustix::mm::madvise(at.cast(), P as usize, dont_need) }
        });
        while messages.len() < 2 {
            foreign.read(&mut messages).unwrap();
        }
        removes.join().unwrap().unwrap();
        assert!(matches!(messages[..], [Message::Fault(_), Message::Removed(_)]), "{messages:?}");
        clients.take(id.0, &mut messages, &mut Vec::new()).unwrap();
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
    clients.turns.change(1, |owner| owner.reads = READS_MAX);
    assert!(is_paused(&mut clients));
    clients.turns.change(1, |owner| owner.reads = 0);
    let client = clients.clients.get_mut(&id).unwrap();
    for page in 0..READS_MAX as u64 {
        client.rest(guest.mapping().address + page * P, None);
    }
    !is_paused(&mut clients)
}

#[test]
fn a_client_whose_faults_rest_is_heard() {
    assert!(is_heard_with_faults_that_rest());
    let caught = mutant::with(Some(Mutant::RestsPause), is_heard_with_faults_that_rest);
    assert!(!caught, "the mutant does nothing");
}

/// How long a page was read.
const READ: Duration = Duration::from_secs(1);

fn before(at: Instant, time: Duration) -> Instant {
    at.checked_sub(time).expect("the system has run for longer")
}

/// Since when a fault has waited for room whose page was read once more, and is not to be had.
fn read_in_vain(since: Instant) -> Instant {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Shared, 0);
    let id = guest.add_to(&mut clients).0;
    let waiting = WaitingPage { since: before(Instant::now(), READ), short_since: Some(since) };
    clients.clients.get_mut(&id).unwrap().waiting.insert(3, waiting);
    // It was read, it is said; and was evicted before it could get into the mirror.
    clients.page_came(id, 3, Ok(()), &mut Vec::new()).unwrap();
    let client = clients.clients.get_mut(&id).unwrap();
    // Ends: it rests for less than a millisecond.
    loop {
        if let Some(again) = client.rested() {
            return again.short_since.expect("memory is short");
        }
    }
}

#[test]
fn a_fault_waits_for_room_from_the_first_time_on_that_there_was_none() {
    let begin = Instant::now();
    let since = before(begin, 20 * READ);
    let right = since + READ..begin;
    assert!(right.contains(&read_in_vain(since)));
    for mutant in [Mutant::ShortAnew, Mutant::ShortWhileRead] {
        let caught = mutant::with(Some(mutant), || read_in_vain(since));
        assert!(!right.contains(&caught), "{mutant:?} does nothing");
    }
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
            let added = clients.add(uffd, &[guest.mapping()], 1);
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
    let (data, uffd) = (epoll::EventData::new_u64(id.0), clients.clients[&id.0].uffd());
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
