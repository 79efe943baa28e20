//! The loop with clients that are threads of the same process: their memory is this process's, and
//! all that is between is the kernel.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::ioctl::{Updater, ioctl};
use rustix::mm::{
    MapFlags, ProtFlags, UserfaultfdFlags, mmap, mmap_anonymous, munmap, userfaultfd,
};

use rustix::event::Timespec;

use super::foreign::Foreign;
use super::*;
use crate::mapped::uffd::abi::{Api, OP_API, OP_REGISTER, Register, Span};
use crate::pages::reclaim;
use crate::source::Memory;
use crate::{Cache, Options, Space};

pub(super) const MIB: usize = 1 << 20;
pub(super) const P: u64 = 4096;

const MISSING: u64 = 1;
const MINOR: u64 = 4;
/// Removed, remapped and unmapped ranges are told.
pub(super) const EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
/// Forks are told.
pub(super) const FORKS: u64 = 1 << 1;
const SHMEM: u64 = 1 << 5 | 1 << 10;

/// A client's memory in this process.
pub(super) struct Guest {
    /// Closed before the memory is unmapped: else the kernel would wait until that was told.
    uffd: Option<OwnedFd>,
    pub(super) start: *mut u8,
    bytes: usize,
    /// What was moved away, in bytes of the mapping: others may map something there.
    moved: Mutex<Range<usize>>,
    memory: ClientMemory,
}

// SAFETY: an address.
unsafe impl Sync for Guest {}

impl Guest {
    pub(super) fn new(clients: &Clients, memory: ClientMemory, events: u64) -> Self {
        let bytes = clients.bytes() as usize;
        let fd = (memory == ClientMemory::Shared).then(|| clients.memory().unwrap());
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let anywhere = std::ptr::null_mut();
        let start = match &fd {
            // SAFETY: a new mapping.
            Some(fd) => unsafe { mmap(anywhere, bytes, prot, flags, fd, 0) },
            // SAFETY: the same.
            None => unsafe { mmap_anonymous(anywhere, bytes, prot, flags) },
        };
        let start = start.unwrap().cast::<u8>();
        let mode = if memory == ClientMemory::Shared { MISSING | MINOR } else { MISSING };
        let uffd = register_for(start.addr() as u64, bytes as u64, mode, events | SHMEM);
        Guest { uffd: Some(uffd), start, bytes, moved: Mutex::default(), memory }
    }

    pub(super) fn uffd(&self) -> &OwnedFd {
        self.uffd.as_ref().unwrap()
    }

    pub(super) fn mapping(&self) -> ClientMapping {
        let (address, bytes) = (self.start.addr() as u64, self.bytes as u64);
        ClientMapping { address, bytes, offset: 0, memory: self.memory }
    }

    /// These bytes of the mapping were moved away. Once.
    pub(super) fn moved(&self, range: Range<usize>) {
        *self.moved.lock().unwrap() = range;
    }

    pub(super) fn add_to(&self, clients: &mut Clients) -> ClientId {
        clients.add(self.uffd().try_clone().unwrap(), &[self.mapping()]).unwrap()
    }

    /// The byte at the start of `page`.
    pub(super) fn read(&self, page: u64) -> u8 {
        // SAFETY: in the mapping.
        unsafe { self.start.add((page * P) as usize).read_volatile() }
    }

    pub(super) fn write(&self, page: u64, byte: u8) {
        // SAFETY: in the mapping; no other thread has that page.
        unsafe { self.start.add((page * P) as usize).write_volatile(byte) }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.uffd = None;
        let moved = self.moved.get_mut().unwrap().clone();
        for part in [0..moved.start, moved.end..self.bytes] {
            if !part.is_empty() {
                let at = self.start.wrapping_add(part.start);
                // SAFETY: of its mapping.
                unsafe { munmap(at.cast(), part.len()) }.unwrap();
            }
        }
    }
}

/// A userfaultfd of this process for the missing pages of a range of its private memory.
pub(super) fn register(start: u64, bytes: u64) -> OwnedFd {
    register_for(start, bytes, MISSING, 0)
}

/// A userfaultfd with these features.
fn with_features(features: u64) -> rustix::io::Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: used for the caller's mapping.
    let uffd = unsafe { userfaultfd(flags | UserfaultfdFlags::from_bits_retain(1)) }?;
    let mut api = Api { version: 0xAA, features, ioctls: 0 };
    // SAFETY: the kernel's struct.
    unsafe { ioctl(&uffd, Updater::<OP_API, _>::new(&mut api)) }?;
    Ok(uffd)
}

/// Whether this process may ask for these features.
pub(super) fn may_ask_for(features: u64) -> bool {
    with_features(features).is_ok()
}

fn register_for(start: u64, bytes: u64, mode: u64, features: u64) -> OwnedFd {
    let uffd = with_features(features).unwrap();
    let mut register = Register { span: Span { start, bytes }, mode, ioctls: 0 };
    // SAFETY: the kernel's struct, and the caller's mapping.
    unsafe { ioctl(&uffd, Updater::<OP_REGISTER, _>::new(&mut register)) }.unwrap();
    uffd
}

pub(super) fn byte_of(page: u64) -> u8 {
    (page % 250 + 1) as u8
}

pub(super) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| byte_of(at as u64 / P)).collect()
}

pub(super) fn snapshot(budget: usize, bytes: Vec<u8>) -> (Cache, File) {
    let cache = Cache::new(Options::new(budget as u64)).unwrap();
    let file = cache.attach("snapshot", Arc::new(Memory::new(bytes))).unwrap();
    (cache, file)
}

/// Faults that a userfaultfd has, and of which it was not told yet.
pub(super) fn pending(guest: &Guest) -> usize {
    let path = format!("/proc/self/fdinfo/{}", guest.uffd().as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("pending:")).unwrap();
    line.trim().parse().unwrap()
}

/// Serves while `body` runs in another thread.
pub(super) fn serving<T: Send>(
    clients: &mut Clients,
    body: impl FnOnce() -> T + Send,
) -> (T, Vec<ClientEvent>) {
    let over = AtomicBool::new(false);
    let mut told = Vec::new();
    let result = std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            over.store(true, Ordering::Release);
            result
        });
        while !over.load(Ordering::Acquire) {
            told.extend(clients.work());
            let fds = &mut [rustix::event::PollFd::new(&*clients, rustix::event::PollFlags::IN)];
            let nap = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let _ = rustix::event::poll(fds, Some(&nap));
        }
        done.join().unwrap()
    });
    match result {
        Ok(result) => (result, told),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn shared_bytes(clients: &Clients) -> u64 {
    let memory = clients.memory().unwrap();
    rustix::fs::fstat(memory).unwrap().st_blocks.cast_unsigned() * 512
}

fn mirror_pages(clients: &Clients) -> u64 {
    shared_bytes(clients) / P
}

#[test]
fn clients_read_the_snapshot_and_keep_what_they_store() {
    for memory in [ClientMemory::Shared, ClientMemory::Private] {
        let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB - 4000));
        let mut clients = Clients::new(&file).unwrap();
        let guests = [(); 2].map(|()| Guest::new(&clients, memory, 0));
        for guest in &guests {
            guest.add_to(&mut clients);
        }
        let pages = clients.bytes() / P;
        let ((), told) = serving(&mut clients, || {
            for guest in &guests {
                for page in (0..pages).step_by(3) {
                    guest.write(page, 255);
                }
            }
            for guest in &guests {
                for page in 0..pages {
                    let right = if page % 3 == 0 { 255 } else { byte_of(page) };
                    assert_eq!(guest.read(page), right, "page {page}");
                }
            }
            // SAFETY: the last byte of the mapping, past the end of the file.
            assert_eq!(unsafe { guests[0].start.add(guests[0].bytes - 1).read() }, 0);
        });
        assert!(told.is_empty(), "{told:?}");
        let one_copy = if memory == ClientMemory::Shared { pages } else { 0 };
        assert_eq!(mirror_pages(&clients), one_copy);
        assert_eq!(file.try_get(0).unwrap().unwrap()[0], byte_of(0), "no store gets to the cache");
        let stats = clients.stats();
        assert!(stats.faults < 2 * pages && stats.installed >= pages, "{stats:?}");
    }
}

#[test]
fn a_budget_of_an_eighth_is_enough() {
    let (cache, file) = snapshot(8 * MIB, bytes(64 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guests = [(); 3].map(|()| Guest::new(&clients, ClientMemory::Shared, 0));
    for guest in &guests {
        guest.add_to(&mut clients);
    }
    let ((), told) = serving(&mut clients, || {
        std::thread::scope(|scope| {
            for (seed, guest) in guests.iter().enumerate() {
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed as u64);
                    for page in (0..64 * MIB as u64 / P).step_by(1 + 2 * seed) {
                        assert_eq!(guest.read(page), byte_of(page), "page {page}");
                    }
                    for _ in 0..3_000 {
                        let page = random.u64(0..64 * MIB as u64 / P);
                        assert_eq!(guest.read(page), byte_of(page), "page {page}");
                    }
                });
            }
        });
    });
    assert!(told.is_empty(), "{told:?}");
    assert!(shared_bytes(&clients) <= 8 * MIB as u64);
    assert!(cache.stats().resident_bytes <= 8 * MIB as u64);
}

/// What a client reads of pages 0 and 100, after another one has made pages of zeros of 1 to 127,
/// by touching the memory file through a mapping that it has not registered.
fn beside_strays() -> (u8, u8, u64) {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let memory = clients.memory().unwrap();
    let prot = ProtFlags::READ;
    // SAFETY: a new mapping.
    let stray = unsafe {
        mmap(std::ptr::null_mut(), 128 * P as usize, prot, MapFlags::PRIVATE, &memory, 0)
    };
    let stray = stray.unwrap().cast::<u8>();
    for page in 1..128 {
        // SAFETY: in that mapping.
        assert_eq!(unsafe { stray.add((page * P) as usize).read_volatile() }, 0);
    }
    let before = mirror_pages(&clients);
    let guest = Guest::new(&clients, ClientMemory::Shared, 0);
    guest.add_to(&mut clients);
    let (read, _) = serving(&mut clients, || (guest.read(0), guest.read(100), before));
    // SAFETY: that mapping.
    unsafe { munmap(stray.cast(), 128 * P as usize) }.unwrap();
    read
}

#[test]
fn what_a_client_has_put_into_the_memory_file_is_not_installed() {
    assert_eq!(beside_strays(), (byte_of(0), byte_of(100), 127));
    let caught = mutant::with(Some(Mutant::ClientTrustsPresent), beside_strays);
    assert_eq!(caught.1, 0, "the mutant does nothing");
}

/// Pages of a run, and pages that the mirror has, after all was evicted that can be.
fn evict_beside_a_run() -> (u64, u64) {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let clients = Clients::new(&file).unwrap();
    let handle = file.handle();
    file.advise(0..1, crate::Hint::Random).unwrap();
    for page in 0..40 {
        file.get(page).unwrap();
        assert!(lend::look_now(handle, page).unwrap().is_some());
    }
    let mut snapshot = Snapshot::new(&file);
    let none = pages::PageSet::default();
    let run = snapshot.run(handle, 10, &(0..30), &none).unwrap().expect("it is lent");
    assert_eq!(run.pages, 0..30);
    handle.core.let_go_of_recent(|_| true);
    for _ in 0..8 {
        reclaim::evict(&handle.core, 4096);
    }
    let left = mirror_pages(&clients);
    drop(run);
    (30, left)
}

#[test]
fn a_run_is_not_evicted_before_it_is_installed() {
    assert_eq!(evict_beside_a_run(), (30, 30));
    let (_, left) = mutant::with(Some(Mutant::ClientRunUnheld), evict_beside_a_run);
    assert_eq!(left, 0, "the mutant does nothing");
}

#[test]
fn pages_of_zeros_are_served_in_runs_and_take_no_memory() {
    let mut content = bytes(8 * MIB);
    content[MIB..5 * MIB].fill(0);
    content[6 * MIB..6 * MIB + 4096].fill(0);
    let (_cache, file) = snapshot(16 * MIB, content);
    let mut clients = Clients::new(&file).unwrap();
    // Not known: the last of them, and the single page.
    clients.add_zeros(MIB as u64..5 * MIB as u64 - 4096);
    for memory in [ClientMemory::Shared, ClientMemory::Private] {
        let guest = Guest::new(&clients, memory, 0);
        let id = guest.add_to(&mut clients);
        let faults = clients.stats().faults;
        let ((), told) = serving(&mut clients, || {
            for page in 0..8 * MIB as u64 / P {
                let at = (page * P) as usize;
                let is_zero = (MIB..5 * MIB).contains(&at) || at == 6 * MIB;
                assert_eq!(
                    guest.read(page),
                    if is_zero { 0 } else { byte_of(page) },
                    "page {page}"
                );
            }
            guest.write(MIB as u64 / P, 9);
            assert_eq!(guest.read(MIB as u64 / P), 9);
        });
        assert!(told.is_empty(), "{told:?}");
        let faults = clients.stats().faults - faults;
        assert!(faults < 400, "{faults} for 2048 pages, of which half are zeros");
        assert!(mirror_pages(&clients) <= 4 * MIB as u64 / P + 2, "{:?}", clients.stats());
        clients.remove(id);
    }
}

#[test]
fn what_a_client_removes_is_zeros_and_what_it_moves_stays_what_it_is() {
    use rustix::mm::{Advice, MremapFlags, madvise};
    for memory in [ClientMemory::Shared, ClientMemory::Private] {
        let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
        let mut clients = Clients::new(&file).unwrap();
        let guest = Guest::new(&clients, memory, EVENTS);
        let id = guest.add_to(&mut clients);
        let ((), told) = serving(&mut clients, || {
            let at = |page: u64| guest.start.wrapping_add((page * P) as usize);
            assert_eq!(guest.read(20), byte_of(20));
            guest.write(21, 77);
            // Pages that were read, stored to, and not touched yet.
            // SAFETY: in the mapping.
            unsafe { madvise(at(20).cast(), 20 * P as usize, Advice::LinuxDontNeed) }.unwrap();
            for page in 20..40 {
                assert_eq!(guest.read(page), 0, "page {page} was removed");
            }
            assert_eq!((guest.read(19), guest.read(40)), (byte_of(19), byte_of(40)));
            // Moved away, half of it touched before.
            (500..510).for_each(|page| assert_eq!(guest.read(page), byte_of(page)));
            let bytes = 20 * P as usize;
            let start = 500 * P as usize;
            guest.moved(start..start + bytes);
            // SAFETY: in the mapping; it is used no more at the old address.
            let moved = unsafe {
                mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE)
            };
            let moved = moved.unwrap();
            // SAFETY: the range just mapped is the target.
            let moved = unsafe {
                rustix::mm::mremap_fixed(at(500).cast(), bytes, bytes, MremapFlags::MAYMOVE, moved)
            };
            let moved = moved.unwrap().cast::<u8>();
            for page in 500..520 {
                // SAFETY: in the moved range.
                let byte = unsafe { moved.add(((page - 500) * P) as usize).read_volatile() };
                assert_eq!(byte, byte_of(page), "page {page} was moved");
            }
            // SAFETY: the moved range.
            unsafe { munmap(moved.cast(), bytes) }.unwrap();
            assert_eq!((guest.read(499), guest.read(520)), (byte_of(499), byte_of(520)));
        });
        assert!(told.is_empty(), "{told:?}");
        clients.remove(id);
        // What is at the old address now is not the guest's. Another thread may have been first.
        let here = guest.start.wrapping_add(500 * P as usize).cast();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: replaces nothing.
        let other = unsafe { mmap_anonymous(here, P as usize, ProtFlags::READ, flags) };
        drop(guest);
        if let Ok(other) = other {
            // SAFETY: mapped above.
            assert_eq!(unsafe { other.cast::<u8>().read_volatile() }, 0);
            // SAFETY: the same, and used no more.
            unsafe { munmap(other, P as usize) }.unwrap();
        }
    }
}

#[test]
fn a_client_that_makes_its_descriptor_blocking_is_given_up_and_blocks_nobody() {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let (bad, good) = (
        Guest::new(&clients, ClientMemory::Shared, 0),
        Guest::new(&clients, ClientMemory::Shared, 0),
    );
    let id = bad.add_to(&mut clients);
    good.add_to(&mut clients);
    rustix::fs::fcntl_setfl(bad.uffd(), OFlags::empty()).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| bad.read(3));
        let mut told = Vec::new();
        while told.is_empty() {
            let byte;
            (byte, told) = serving(&mut clients, || good.read(9));
            assert_eq!(byte, byte_of(9));
        }
        let [ClientEvent::Ended { client, cause }] = &told[..] else { panic!("{told:?}") };
        assert_eq!(*client, id);
        assert!(cause.to_string().contains("non-blocking"), "{cause}");
        rustix::fs::fcntl_setfl(bad.uffd(), OFlags::NONBLOCK).unwrap();
        bad.add_to(&mut clients);
        assert_eq!(serving(&mut clients, || waits.join().unwrap()).0, byte_of(3));
    });
    rustix::fs::fcntl_setfl(bad.uffd(), OFlags::empty()).unwrap();
    // Had it been read before that was noticed, nothing would have blocked either.
    let foreign = Foreign::new(bad.uffd().try_clone().unwrap()).unwrap();
    let mut none = Vec::new();
    let _ = foreign.read(&mut none, &mut Vec::new());
    assert_eq!(none, []);
}

#[test]
fn a_client_is_taken_over_with_its_faults_in_flight() {
    let content = bytes(16 * MIB);
    let (_first_cache, first) = snapshot(16 * MIB, content.clone());
    let (_second_cache, second) = snapshot(16 * MIB, content);
    let mut old = Clients::new(&first).unwrap();
    let guest = Guest::new(&old, ClientMemory::Shared, 0);
    guest.add_to(&mut old);
    let pages = old.bytes() / P;
    let ((), told) = serving(&mut old, || {
        for page in 0..pages / 2 {
            guest.read(page);
        }
    });
    assert!(told.is_empty(), "{told:?}");
    // The thread's fault is taken off the queue by the old one, and never served.
    let told = std::thread::scope(|scope| {
        let waits = scope.spawn(|| guest.read(pages - 1));
        let mut messages = Vec::new();
        let foreign = Foreign::new(guest.uffd().try_clone().unwrap()).unwrap();
        while messages.is_empty() {
            foreign.read(&mut messages, &mut Vec::new()).unwrap();
        }
        drop(old);
        let mut new = Clients::new(&second).unwrap();
        let mapping = ClientMapping { memory: ClientMemory::Private, ..guest.mapping() };
        new.add(guest.uffd().try_clone().unwrap(), &[mapping]).unwrap();
        let ((), told) = serving(&mut new, || {
            assert_eq!(waits.join().unwrap(), byte_of(pages - 1));
            (0..pages).for_each(|page| assert_eq!(guest.read(page), byte_of(page), "page {page}"));
        });
        assert_eq!(mirror_pages(&new), 0, "it gets copies");
        told
    });
    assert!(told.is_empty(), "{told:?}");
}

/// What a client gets of a page that cannot get into the mirror, and what is told.
fn beside_a_broken_mirror() -> (Option<u8>, Vec<ClientEvent>) {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Shared, 0);
    let id = guest.add_to(&mut clients);
    let mirror = file.handle().mapping.mirror_of_folios();
    let view = mirror.address(0).cast();
    // SAFETY: nothing is in the mirror yet, so nobody reads its view; what replaces it is unmapped
    // with it. From here on the kernel refuses to put pages there.
    unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        mmap_anonymous(view, 4 * MIB, ProtFlags::READ, flags).unwrap();
    }
    let mut told = Vec::new();
    clients.fault(id.0, guest.mapping().address + 9 * P, Duration::ZERO).unwrap();
    // Ends: the page is read.
    while told.is_empty() && clients.stats().installed == 0 {
        told.extend(clients.work());
    }
    (told.is_empty().then(|| guest.read(9)), told)
}

#[test]
fn a_page_that_cannot_get_into_the_mirror_is_copied() {
    let (byte, told) = beside_a_broken_mirror();
    assert_eq!(byte, Some(byte_of(9)), "{told:?}");
    let caught = mutant::with(Some(Mutant::MirrorErrorPoisons), beside_a_broken_mirror);
    assert!(matches!(caught.1[..], [ClientEvent::PageFailed { .. }]), "{caught:?}");
}

/// Whether a page of this process is one that others may have, too.
fn is_shared_page(at: *const u8) -> bool {
    let entries = std::fs::File::open("/proc/self/pagemap").unwrap();
    let (mut entry, offset) = ([0; 8], at.addr() as u64 / P * 8);
    std::os::unix::fs::FileExt::read_exact_at(&entries, &mut entry, offset).unwrap();
    u64::from_ne_bytes(entry) >> 61 & 1 == 1
}

/// What a client gets of a page beside calls that hang, which keep as many `runs` as may be, or also
/// as many pages `alone`: whether more than that page, and whether the cache's own.
fn beside_calls_that_hang(memory: ClientMemory, [runs, alone]: [bool; 2]) -> [bool; 2] {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let mapped = &file.handle().core.mapped;
    for page in 0..32 {
        file.get(page).unwrap();
    }
    let mut kept = Vec::new();
    if runs {
        kept.extend((0..4096).map_while(|_| mapped.may_install(1, false)));
    }
    if alone {
        kept.extend((0..4096).map_while(|_| mapped.may_install(1, true)));
    }
    let guest = Guest::new(&clients, memory, 0);
    guest.add_to(&mut clients);
    let (byte, told) = serving(&mut clients, || guest.read(9));
    assert!(told.is_empty() && byte == byte_of(9), "{told:?}");
    let at = guest.start.wrapping_add(9 * P as usize);
    [clients.stats().installed > 1, is_shared_page(at)]
}

#[test]
fn calls_that_hang_keep_a_part_of_the_cache_and_no_more() {
    let shared = |kept| beside_calls_that_hang(ClientMemory::Shared, kept);
    let private = |kept| beside_calls_that_hang(ClientMemory::Private, kept);
    let [none, runs, all] = [[false, false], [true, false], [true, true]];
    assert_eq!([shared(none), private(none)], [[true, true], [true, false]]);
    assert_eq!([shared(runs), private(runs)], [[false, true], [true, false]]);
    assert_eq!([shared(all), private(all)], [[false, false], [false, false]]);
    let caught = mutant::with(Some(Mutant::CallsKeepAll), || [shared(all), private(all)]);
    assert_eq!(caught, [[true, true], [true, false]], "the mutant does nothing");
}

/// What a map of the program shows after a client has touched the memory of the same file.
fn map_beside_clients() -> Result<u8> {
    let (cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let space = Space::new(&cache, 0).unwrap();
    let map = space.map_file(&file, 0..4 * MIB as u64)?;
    let clients = Clients::new(&file)?;
    let memory = clients.memory().unwrap();
    let (bytes, access, flags) = (128 * P as usize, ProtFlags::READ, MapFlags::PRIVATE);
    // SAFETY: a new mapping.
    let stray = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, &memory, 0) }.unwrap();
    let at = stray.cast::<u8>().wrapping_add(5 * P as usize);
    // SAFETY: in that mapping.
    assert_eq!(unsafe { at.read_volatile() }, 0);
    // SAFETY: a byte of the map.
    let shown = unsafe { map.as_ptr().add(5 * P as usize).read_volatile() };
    // SAFETY: that mapping.
    unsafe { munmap(stray, bytes) }.unwrap();
    Ok(shown)
}

#[test]
fn a_file_is_mapped_by_the_program_or_served_to_others() {
    let error = map_beside_clients().unwrap_err().to_string();
    assert!(error.starts_with("cannot serve snapshot: "), "{error}");
    assert!(error.contains("Space::map_file") && error.contains("Clients"), "{error}");
    let caught = mutant::with(Some(Mutant::MappedAndServed), map_beside_clients);
    assert_eq!(caught.unwrap(), 0, "the mutant does nothing");
    // The other way round; and not for ever, if it was mapped.
    let (cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let space = Space::new(&cache, 0).unwrap();
    drop(space.map_file(&file, 0..4096).unwrap());
    drop(Clients::new(&file).unwrap());
    let error = space.map_file(&file, 0..4096).unwrap_err();
    assert!(error.to_string().starts_with("cannot map snapshot: "), "{error}");
    Clients::new(&file).unwrap();
}
