//! What one client can do to the others: turns, shares of reads, what is kept of who has left.

use std::borrow::Cow;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use super::foreign::Message;
use super::tests::{Guest, MIB, P, byte_of, bytes, pending, serving, snapshot};
use super::turns::{MESSAGES_MAX, READS_MAX};
use super::*;
use crate::source::Source;
use crate::{Cache, Options};

/// Faults that were heard when one of a second client was served, beside a first one that has 100.
fn heard_beside_many() -> u64 {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guests = [(); 2].map(|()| Guest::new(&clients, ClientMemory::Shared, 0));
    for guest in &guests {
        guest.add_to(&mut clients);
    }
    std::thread::scope(|scope| {
        let read = |page| assert_eq!(guests[0].read(page), byte_of(page));
        let pages = (0..800).step_by(8);
        let many: Vec<_> = pages.map(|page| scope.spawn(move || read(page))).collect();
        while pending(&guests[0]) < 100 {
            std::thread::yield_now();
        }
        let one = scope.spawn(|| guests[1].read(1000));
        while pending(&guests[1]) < 1 {
            std::thread::yield_now();
        }
        // Ends: it is heard in this round.
        while pending(&guests[1]) > 0 {
            clients.work();
        }
        let heard = clients.stats().faults;
        serving(&mut clients, || {
            assert_eq!(one.join().unwrap(), byte_of(1000));
            for thread in many {
                thread.join().unwrap();
            }
        });
        heard
    })
}

#[test]
fn a_client_with_many_faults_has_its_turn_and_no_more() {
    let heard = heard_beside_many();
    assert!(heard <= MESSAGES_MAX as u64 + 4, "{heard} faults were heard before another's one");
    let caught = mutant::with(Some(Mutant::TurnWithoutEnd), heard_beside_many);
    assert!(caught > MESSAGES_MAX as u64 + 4, "the mutant does nothing: {caught}");
}

/// A file of any length, of whose reads those from an offset on end when it is told so.
#[derive(Debug)]
struct Gate {
    len: u64,
    waits_from: u64,
    waiting: AtomicUsize,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Source for Gate {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        if offset >= self.waits_from {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let is_open = self.is_open.lock().unwrap();
            drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
        }
        let got = (self.len - offset).min(buf.len() as u64) as usize;
        buf[..got].fill(3);
        Ok(got)
    }
    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(self.len)
    }
    fn kind(&self) -> Cow<'static, str> {
        "gate".into()
    }
}

fn gated(len: u64) -> (Cache, File, Arc<Gate>) {
    gated_from(len, 0)
}

fn gated_from(len: u64, waits_from: u64) -> (Cache, File, Arc<Gate>) {
    let cache = Cache::new(Options::new(32 << 20)).unwrap();
    let (waiting, is_open, opened) = Default::default();
    let gate = Arc::new(Gate { len, waits_from, waiting, is_open, opened });
    let file = cache.attach("snapshot", gate.clone()).unwrap();
    (cache, file, gate)
}

/// Those of a snapshot of so many bytes, and a guest that has far fewer.
fn of_a_long_snapshot(bytes: u64) -> (Cache, Clients, Guest) {
    let (cache, file, gate) = gated(bytes);
    gate.open();
    let small = {
        let (_cache, file) = snapshot(16 * MIB, vec![1; 4 * MIB]);
        Guest::new(&Clients::new(&file).unwrap(), ClientMemory::Private, 0)
    };
    (cache, Clients::new(&file).unwrap(), small)
}

#[test]
fn a_range_of_any_length_is_removed_by_one_step() {
    let bytes = 1 << 44;
    let (_cache, mut clients, small) = of_a_long_snapshot(bytes);
    // It says that it has more memory than it has: nobody looks before it has a fault there.
    let mapping = ClientMapping { address: 1 << 21, bytes, ..small.mapping() };
    let id = clients.add(small.uffd().try_clone().unwrap(), &[mapping]).unwrap();
    let client = clients.clients.get_mut(&id.0).unwrap();
    let end = mapping.address + bytes;
    client.hear(Message::Removed(mapping.address + 5 * P..end - 7 * P)).unwrap();
    assert!(client.pieces()[1] <= 3, "{:?}", client.pieces());
    // Single pages of far more blocks than it may have.
    let (all, mut error) = (mapping.address..end, None);
    let clears = |n: u64| all.start + n * (P * pages::BLOCK_PAGES) + 9 * P;
    client.hear(Message::Moved { from: all.start, to: 1 << 50, bytes }).unwrap();
    client.hear(Message::Moved { from: 1 << 50, to: all.start, bytes }).unwrap();
    let (id, other) = (2, ClientMapping { offset: 0, ..mapping });
    clients.remove(ClientId(1));
    clients.add(small.uffd().try_clone().unwrap(), &[other]).unwrap();
    let client = clients.clients.get_mut(&id).unwrap();
    for n in 0..20_000 {
        if let Err(why) = client.hear(Message::Removed(clears(n)..clears(n) + P)) {
            error = Some(why);
            break;
        }
    }
    assert!(error.as_ref().is_some_and(|why| why.to_string().contains("pieces")), "{error:?}");
}

/// How many pieces clients can make of what they remove, until one is given up.
fn removed_by_three() -> usize {
    let bytes = 1 << 44;
    let (_cache, mut clients, small) = of_a_long_snapshot(bytes);
    let mapping = ClientMapping { address: 1 << 21, bytes, ..small.mapping() };
    let mut made = 0;
    for _ in 0..3 {
        let id = clients.add(small.uffd().try_clone().unwrap(), &[mapping]).unwrap().0;
        for n in 0..client::REMOVED_MAX as u64 - 1 {
            let at = mapping.address + n * (P * pages::BLOCK_PAGES) + 9 * P;
            let client = clients.clients.get_mut(&id).unwrap();
            client.hear(Message::Removed(at..at + P)).unwrap();
            made += 1;
            if let Err(why) = clients.count_pieces(id) {
                assert!(why.to_string().contains("pieces"), "{why}");
                // What has left counts no more.
                clients.remove(ClientId(id));
                clients.remove(ClientId(1));
                assert_eq!(clients.turns.pieces[1], 0);
                return made;
            }
        }
    }
    made
}

#[test]
fn more_clients_get_no_more_pieces() {
    assert_eq!(removed_by_three(), client::REMOVED_MAX + 1);
    let caught = mutant::with(Some(Mutant::PiecesOfEach), removed_by_three);
    assert!(caught > client::REMOVED_MAX * 2, "the mutant does nothing: {caught}");
}

/// How many reads are under way for clients that come one after the other, and leave with as many
/// as they may have.
fn come_back() -> usize {
    let (_cache, file, gate) = gated(64 << 20);
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Private, 0);
    let ask = |clients: &mut Clients, id: ClientId, first: u64| {
        for n in 0..READS_MAX as u64 {
            let address = guest.mapping().address + (first + n * 64) * P;
            clients.fault(id.0, address, Duration::ZERO).unwrap();
        }
    };
    for n in 1..20 {
        let id = guest.add_to(&mut clients);
        ask(&mut clients, id, n);
        clients.remove(id);
    }
    let again = guest.add_to(&mut clients);
    ask(&mut clients, again, 0);
    clients.set_pause(again.0);
    assert!(clients.clients[&again.0].is_paused);
    let jobs = clients.jobs.len();
    gate.open();
    // Ends: the reads have ended, and the one that has come back is heard.
    while !clients.jobs.is_empty() || clients.clients[&again.0].is_paused {
        clients.work();
    }
    assert_eq!(serving(&mut clients, || guest.read(5)).0, 3);
    jobs
}

#[test]
fn who_comes_back_has_no_more_reads_than_who_stays() {
    assert_eq!(come_back(), POOL_AT_ONCE / 2);
    let caught = mutant::with(Some(Mutant::ReadsForgotten), come_back);
    assert!(caught >= POOL_AT_ONCE, "the mutant does nothing: {caught}");
}

/// How many reads of a source that the program implements are carried out at a time.
const POOL_AT_ONCE: usize = 8;

/// Whether a page can be read for somebody else while a client waits for many whose reads do not
/// end, and while as many are read ahead for it as may be.
fn reads_beside_hung_ones() -> bool {
    let half = 32 << 20;
    let (_cache, file, gate) = gated_from(2 * half, half);
    let mut clients = Clients::new(&file).unwrap();
    let mut others = clients.another().unwrap();
    let guests = [(); 2].map(|()| Guest::new(&clients, ClientMemory::Private, 0));
    let (hostile, other) = (guests[0].add_to(&mut clients), guests[1].add_to(&mut others));
    for n in 0..READS_MAX as u64 {
        let address = guests[0].mapping().address + half + n * 64 * P;
        clients.fault(hostile.0, address, Duration::ZERO).unwrap();
    }
    let at_once = file.handle().mapping.backing.at_once();
    assert_eq!(at_once, POOL_AT_ONCE);
    let ahead = if mutant::on(Mutant::AheadTakesAll) { POOL_AT_ONCE } else { POOL_AT_ONCE / 4 };
    crate::access::many::will_need(file.handle(), (half + half / 2) / P..2 * half / P);
    let hung = || gate.waiting.load(Ordering::SeqCst);
    while hung() < (clients.jobs.len() + ahead).min(at_once) {
        std::thread::yield_now();
    }
    others.fault(other.0, guests[1].mapping().address, Duration::ZERO).unwrap();
    // Ends: the page comes, if there is somebody left who reads it.
    let comes = loop {
        others.work();
        if others.stats().installed > 0 || hung() >= at_once {
            break others.stats().installed > 0;
        }
    };
    gate.open();
    // Ends: nothing hangs any more, and all are read.
    while clients.stats().installed == 0 || !clients.jobs.is_empty() {
        clients.work();
    }
    comes
}

#[test]
fn who_waits_for_reads_that_hang_leaves_others_half_of_those_that_read() {
    assert!(reads_beside_hung_ones());
    for mutant in [Mutant::AllReadsBegun, Mutant::AheadTakesAll] {
        let caught = mutant::with(Some(mutant), reads_beside_hung_ones);
        assert!(!caught, "{mutant:?} does nothing");
    }
}

/// Whether a client whose working set is in a part that does not answer is served in the others.
fn served_beside_a_working_set_that_hangs() -> bool {
    let half = 32 << 20;
    let (_cache, file, gate) = gated_from(2 * half, half);
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Private, 0);
    let id = guest.add_to(&mut clients);
    let first = half / P;
    clients.install_ahead(id, &(0..64).map(|n| first + n * 32).collect());
    let uncounted = mutant::on(Mutant::AheadUncounted);
    let expected = if uncounted { POOL_AT_ONCE } else { POOL_AT_ONCE / 4 };
    let hung = || gate.waiting.load(Ordering::SeqCst);
    // Ends: so many are begun.
    while hung() < expected {
        clients.work();
    }
    clients.fault(id.0, guest.mapping().address, Duration::ZERO).unwrap();
    // Ends: the page comes, if there is somebody left who reads it.
    let comes = loop {
        clients.work();
        if clients.stats().installed > 0 || hung() >= POOL_AT_ONCE {
            break clients.stats().installed > 0;
        }
    };
    gate.open();
    // Ends: all are read and installed.
    while clients.stats().ahead > 0 || !clients.jobs.is_empty() {
        clients.work();
    }
    assert!(clients.stats().installed_ahead > 0 && clients.turns.begun == 0);
    comes
}

#[test]
fn a_working_set_that_hangs_leaves_room_for_faults() {
    assert!(served_beside_a_working_set_that_hangs());
    let mutant = Some(Mutant::AheadUncounted);
    assert!(!mutant::with(mutant, served_beside_a_working_set_that_hangs), "it does nothing");
}

/// How often it is looked when a client is due, in a hundred rounds beside so many idle clients.
fn looks_beside(idle: usize) -> usize {
    const ROUNDS: u64 = 100;
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Private, 0);
    for _ in 0..idle {
        guest.add_to(&mut clients);
    }
    let later = Instant::now() + Duration::from_secs(1000);
    for client in clients.clients.values_mut() {
        client.look_at(later); // on a slow machine, the rounds take longer than a second
    }
    let ids: Vec<u64> = clients.clients.keys().copied().collect();
    for id in ids {
        clients.schedule(id);
    }
    clients.looks.set(0);
    for _ in 0..ROUNDS {
        assert!(clients.timeout().is_some());
        clients.work();
    }
    clients.looks.get()
}

#[test]
fn idle_clients_cost_a_round_nothing() {
    assert_eq!(looks_beside(200), 0);
    let caught = mutant::with(Some(Mutant::IdleLookedAt), || looks_beside(200));
    assert!(caught >= 100 * 200, "the mutant does nothing: {caught}");
}

/// Whether a client that waits for reads of others is due at once when these have ended.
fn goes_on_when_reads_end() -> [bool; 2] {
    let (_cache, file, gate) = gated(64 << 20);
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Private, 0);
    let add = |clients: &mut Clients| guest.add_to(clients);
    let (reads, pauses, ahead) = (add(&mut clients), add(&mut clients), add(&mut clients));
    for n in 0..READS_MAX as u64 {
        let address = guest.mapping().address + n * 64 * P;
        clients.fault(reads.0, address, Duration::ZERO).unwrap();
    }
    clients.turns.ahead = turns::AHEAD_MAX;
    let later = Instant::now() + Duration::from_secs(1000);
    clients.clients.values_mut().for_each(|client| client.look_at(later));
    clients.set_pause(pauses.0);
    clients.set_pause(ahead.0);
    clients.install_ahead(ahead, &(0..1000).collect());
    clients.schedule(pauses.0);
    let is_due = |clients: &Clients| {
        [pauses, ahead].map(|it| {
            let client = &clients.clients[&it.0];
            client.due_at.is_some_and(|at| at < client.due())
        })
    };
    assert_eq!(is_due(&clients), [false; 2], "they wait");
    gate.open();
    // Ends: the reads end.
    while !clients.jobs.is_empty() {
        clients.take_completions();
    }
    clients.turns.change(|it| it.ahead = 0);
    while let Some(id) = clients.turns.released() {
        clients.schedule(id);
    }
    is_due(&clients)
}

#[test]
fn who_waits_for_reads_of_others_goes_on_when_they_end() {
    assert_eq!(goes_on_when_reads_end(), [true; 2]);
    let caught = mutant::with(Some(Mutant::WaitingForgotten), goes_on_when_reads_end);
    assert_eq!(caught, [false; 2], "the mutant does nothing");
}

/// Jobs that are kept after many clients have left for whom pages were read ahead.
fn left_ahead() -> usize {
    let (_cache, file, gate) = gated(64 << 20);
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Private, 0);
    let pages: Arc<[u64]> = (0..1000).map(|n| n * 16).collect();
    for _ in 1..20 {
        let id = guest.add_to(&mut clients);
        clients.install_ahead(id, &pages);
        // Ends: no other client has work to do, unless there is no room for more reads ahead.
        while clients.jobs.values().all(|job| job.client != id.0)
            && clients.turns.ahead < turns::AHEAD_MAX
        {
            clients.work();
        }
        clients.remove(id);
        assert_eq!(clients.turns.reads, 0);
        assert_eq!(clients.turns.begun, POOL_AT_ONCE / 4);
    }
    let kept = clients.jobs.len();
    assert_eq!(clients.completions.len(), POOL_AT_ONCE / 4);
    gate.open();
    // Ends: what was begun is read.
    while !clients.jobs.is_empty() {
        clients.work();
    }
    assert_eq!(clients.turns.ahead, 0);
    kept
}

#[test]
fn no_read_ahead_is_begun_for_who_has_left() {
    assert_eq!(left_ahead(), 1);
    let caught = mutant::with(Some(Mutant::AheadOfTheGone), left_ahead);
    assert!(caught >= turns::AHEAD_MAX, "the mutant does nothing: {caught}");
}

/// How many faults of a client rest.
fn resting() -> usize {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Shared, 0);
    let id = guest.add_to(&mut clients).0;
    let client = clients.clients.get_mut(&id).unwrap();
    for page in 0..1000 {
        client.rest(guest.mapping().address + page * P, Duration::ZERO);
    }
    client.again.len()
}

#[test]
fn no_client_has_any_number_of_faults_that_rest() {
    assert!(resting() <= 256);
    let caught = mutant::with(Some(Mutant::RestsWithoutEnd), resting);
    assert_eq!(caught, 1000, "the mutant does nothing");
}

/// What is told of a client whose process has ended, while nobody has said that it left.
fn of_the_dead() -> Vec<ClientEvent> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let bytes = 4 * MIB;
    // SAFETY: a new mapping.
    let at = unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE)
    };
    let at = at.unwrap();
    let (ready, says) = std::io::pipe().unwrap();
    // SAFETY: the child makes system calls alone, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let uffd = super::tests::register(at.addr() as u64, bytes as u64);
        let _ = rustix::io::write(&says, &uffd.as_raw_fd().to_ne_bytes());
        // Ends: it is killed.
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    let mut number = [0; 4];
    rustix::io::read(&ready, &mut number).unwrap();
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let fd = i32::from_ne_bytes(number);
    let none = rustix::process::PidfdGetfdFlags::empty();
    let uffd = rustix::process::pidfd_getfd(process, fd, none).unwrap();
    let mapping = ClientMapping {
        address: at.addr() as u64,
        bytes: bytes as u64,
        offset: 0,
        memory: ClientMemory::Private,
    };
    clients.add(uffd, &[mapping]).unwrap();
    assert!(clients.work().is_empty());
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
    let (mut told, since) = (Vec::new(), Instant::now());
    while told.is_empty() && since.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(clients.timeout().unwrap());
        told = clients.work();
    }
    told
}

#[test]
fn a_client_whose_memory_is_gone_is_served_no_longer() {
    let told = of_the_dead();
    assert!(matches!(told[..], [ClientEvent::Ended { cause: ClientError::Gone, .. }]), "{told:?}");
    let caught = mutant::with(Some(Mutant::DeadIsServed), of_the_dead);
    assert!(caught.is_empty(), "the mutant does nothing");
}

#[test]
fn a_read_that_the_system_refuses_is_told_as_it_is() {
    use rustix::mm::{UserfaultfdFlags, userfaultfd};
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Private, 0);
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: it is never used for any memory: nobody has agreed on its version.
    let uffd = unsafe { userfaultfd(flags | UserfaultfdFlags::from_bits_retain(1)) }.unwrap();
    let id = clients.add(uffd, &[guest.mapping()]).unwrap().0;
    clients.clients.get_mut(&id).unwrap().has_said = true;
    let refused = clients.hear(id, &mut turns::ClientTurn::begin()).unwrap_err();
    let text = "its userfaultfd cannot be read: Invalid argument (os error 22)";
    assert_eq!(refused.to_string(), text);
}
