//! The loop with clients that are threads of the same process: their memory is this process's, and
//! all that is between is the kernel.

use std::borrow::Cow;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::ioctl::{Updater, ioctl};
use rustix::mm::{
    MapFlags, ProtFlags, UserfaultfdFlags, mmap, mmap_anonymous, munmap, userfaultfd,
};

use std::time::{Duration, Instant};

use rustix::event::Timespec;

use super::foreign::{Foreign, Message};
use super::turns::READS_MAX;
use super::*;
use crate::reclaim;
use crate::source::{Memory, Source};
use crate::uffd::abi::{Api, OP_API, OP_REGISTER, Register, Span};
use crate::{Cache, Options, Space, SpaceOptions};

pub(super) const MIB: usize = 1 << 20;
pub(super) const P: u64 = 4096;

const MISSING: u64 = 1;
const MINOR: u64 = 4;
/// Removed, remapped and unmapped ranges are told.
pub(super) const EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
const SHMEM: u64 = 1 << 5 | 1 << 10;

/// A client's memory in this process.
pub(super) struct Guest {
    /// Closed before the memory is unmapped: else the kernel would wait until that was told.
    uffd: Option<OwnedFd>,
    start: *mut u8,
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

    pub(super) fn add_to(&self, clients: &mut Clients) -> ClientId {
        clients.add(self.uffd().try_clone().unwrap(), &[self.mapping()], 1).unwrap()
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

fn register_for(start: u64, bytes: u64, mode: u64, features: u64) -> OwnedFd {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: used for the caller's mapping.
    let uffd = unsafe { userfaultfd(flags | UserfaultfdFlags::from_bits_retain(1)) }.unwrap();
    let mut api = Api { version: 0xAA, features, ioctls: 0 };
    // SAFETY: the kernel's struct.
    unsafe { ioctl(&uffd, Updater::<OP_API, _>::new(&mut api)) }.unwrap();
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

fn mirror_pages(clients: &Clients) -> u64 {
    clients.stats().shared_bytes / P
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
    assert!(clients.stats().shared_bytes <= 8 * MIB as u64);
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
        assert!(matches!(lend::look_now(handle, page).unwrap(), lend::Look::There(_)));
    }
    let mut snapshot = Snapshot::new(&file);
    let none = Pages::default();
    let run = snapshot.run(handle, 10, &(0..30), &none).unwrap().expect("it is lent");
    assert_eq!(run.pages, 0..30);
    handle.core.let_go_of_recent(|_| true);
    for _ in 0..8 {
        reclaim::evict(&handle.core, 4096, 100_000);
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
            *guest.moved.lock().unwrap() = start..start + bytes;
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
        let [ClientEvent::Ended { client, cause: ClientError::Blocking }] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(*client, id);
        rustix::fs::fcntl_setfl(bad.uffd(), OFlags::NONBLOCK).unwrap();
        bad.add_to(&mut clients);
        assert_eq!(serving(&mut clients, || waits.join().unwrap()).0, byte_of(3));
    });
    rustix::fs::fcntl_setfl(bad.uffd(), OFlags::empty()).unwrap();
    // Had it been read before that was noticed, nothing would have blocked either.
    let foreign = Foreign::new(bad.uffd().try_clone().unwrap()).unwrap();
    let mut none = Vec::new();
    let _ = foreign.read(&mut none);
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
            foreign.read(&mut messages).unwrap();
        }
        drop(old);
        let mut new = Clients::new(&second).unwrap();
        let mapping = ClientMapping { memory: ClientMemory::Private, ..guest.mapping() };
        new.add(guest.uffd().try_clone().unwrap(), &[mapping], 1).unwrap();
        let ((), told) = serving(&mut new, || {
            assert_eq!(waits.join().unwrap(), byte_of(pages - 1));
            (0..pages).for_each(|page| assert_eq!(guest.read(page), byte_of(page), "page {page}"));
        });
        assert_eq!(mirror_pages(&new), 0, "it gets copies");
        told
    });
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn touched_pages_are_told_once_in_their_order_and_installed_ahead() {
    let (_cache, file) = snapshot(16 * MIB, bytes(8 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    clients.record(Some(&[700..701]));
    let order = [5, 1200, 6, 7, 700, 3, 5];
    for _ in 0..2 {
        let guest = Guest::new(&clients, ClientMemory::Shared, 0);
        let id = guest.add_to(&mut clients);
        serving(&mut clients, || order.map(|page| guest.read(page)));
        clients.remove(id);
    }
    let touched = clients.take_touched();
    assert_eq!((&touched[..], clients.take_touched().len()), (&[5, 1200, 6, 7, 3][..], 0));
    // Ahead: no fault is left.
    let mut clients = Clients::new(&file).unwrap();
    let pages: Arc<[u64]> = touched.into_iter().chain([u64::MAX, 2048]).collect();
    for memory in [ClientMemory::Shared, ClientMemory::Private] {
        let guest = Guest::new(&clients, memory, 0);
        let id = guest.add_to(&mut clients);
        clients.install_ahead(id, &pages);
        // A read ends that an earlier call with the same pages began.
        let plan = clients.clients[&id.0].ahead.as_ref().unwrap().plan.clone();
        clients.pieces_came(id.0, &plan, 0..0).unwrap();
        // Ends: once all are installed.
        while clients.stats().ahead > 0 {
            assert!(clients.work().is_empty());
        }
        for page in [5, 1200, 6, 7, 3] {
            assert_eq!(guest.read(page), byte_of(page));
        }
        assert_eq!(clients.stats().faults, 0, "{:?}", clients.stats());
    }
}

/// A snapshot whose reads are counted.
#[derive(Debug)]
struct Counted {
    len: usize,
    reads: AtomicUsize,
    read_bytes: AtomicUsize,
}

impl Source for Counted {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let got = buf.len().min(self.len - offset as usize);
        for (page, bytes) in (offset / P..).zip(buf[..got].chunks_mut(P as usize)) {
            bytes.fill(byte_of(page));
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(got, Ordering::Relaxed);
        Ok(got)
    }
    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(self.len as u64)
    }
    fn kind(&self) -> Cow<'static, str> {
        "counted".into()
    }
}

/// A snapshot of `len` bytes whose reads are counted.
fn counted(budget: usize, len: usize) -> (Cache, File, Arc<Counted>) {
    let cache = Cache::new(Options::new(budget as u64)).unwrap();
    let (reads, read_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let source = Arc::new(Counted { len, reads, read_bytes });
    let file = cache.attach("snapshot", source.clone()).unwrap();
    (cache, file, source)
}

#[test]
fn a_page_is_read_and_installed_with_those_around_it() {
    for memory in [ClientMemory::Shared, ClientMemory::Private] {
        let (_cache, file, source) = counted(32 * MIB, 8 * MIB);
        let mut clients = Clients::new(&file).unwrap();
        let guests = [(); 2].map(|()| Guest::new(&clients, memory, 0));
        for guest in &guests {
            guest.add_to(&mut clients);
        }
        let mut order: Vec<u64> = (0..2048).collect();
        fastrand::Rng::with_seed(7).shuffle(&mut order);
        let ((), told) = serving(&mut clients, || {
            for &page in &order {
                for guest in &guests {
                    assert_eq!(guest.read(page), byte_of(page));
                }
            }
        });
        assert!(told.is_empty(), "{told:?}");
        let (reads, blocks) = (source.reads.load(Ordering::Relaxed), 2048 / 32);
        assert_eq!(source.read_bytes.load(Ordering::Relaxed), 8 * MIB, "each byte once");
        assert!(reads <= 2 * blocks, "{reads} reads of {blocks} blocks");
        let faults = clients.stats().faults as usize;
        assert!(faults <= 2 * 2 * blocks, "{faults} faults of 2 clients on {blocks} blocks");
    }
}

/// What is read for a thousand pages at random of a file 16 times the budget, in pages.
fn read_for_a_thousand() -> usize {
    let (_cache, file, source) = counted(32 * MIB, 512 * MIB);
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Shared, 0);
    guest.add_to(&mut clients);
    let mut random = fastrand::Rng::with_seed(7);
    let pages: Vec<u64> = (0..1000).map(|_| random.u64(0..131_072)).collect();
    serving(&mut clients, || pages.iter().map(|&page| u64::from(guest.read(page))).sum::<u64>());
    source.read_bytes.load(Ordering::Relaxed) / P as usize
}

#[test]
fn nothing_is_read_around_a_page_of_a_file_that_does_not_fit() {
    let read = read_for_a_thousand();
    assert!(read <= 1050, "{read} pages for 1000");
    let blindly = mutant::with(Some(Mutant::AroundBlindly), read_for_a_thousand);
    assert!(blindly > 4000, "the mutant does nothing: {blindly} pages");
}

#[test]
fn a_working_set_is_installed_ahead_by_few_reads() {
    // Every fourth page in any order; and few that lie far from each other.
    for (step, reads_max, read_bytes) in [(4, 64, 8 * MIB), (64, 32, 32 * P as usize)] {
        let (_cache, file, source) = counted(32 * MIB, 8 * MIB);
        let mut clients = Clients::new(&file).unwrap();
        let mut pages: Vec<u64> = (0..2048).step_by(step).collect();
        fastrand::Rng::with_seed(7).shuffle(&mut pages);
        let pages: Arc<[u64]> = pages.into();
        let guests = [(); 2].map(|()| Guest::new(&clients, ClientMemory::Shared, 0));
        for guest in &guests {
            let id = guest.add_to(&mut clients);
            clients.install_ahead(id, &pages);
        }
        serving(&mut clients, || ());
        // Ends: once all are installed.
        while clients.stats().ahead > 0 {
            assert!(clients.work().is_empty());
        }
        let reads = source.reads.load(Ordering::Relaxed);
        assert!(reads <= reads_max, "{reads} reads of {} pages", pages.len());
        // Behind the last page of a MiB nothing is read.
        let read = source.read_bytes.load(Ordering::Relaxed);
        assert!(read <= read_bytes && read >= read_bytes * 9 / 10, "{read} of {read_bytes}");
        for guest in &guests {
            pages.iter().for_each(|&page| assert_eq!(guest.read(page), byte_of(page)));
        }
        assert_eq!(clients.stats().faults, 0, "{:?}", clients.stats());
    }
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
    clients.fault(id.0, guest.mapping().address + 9 * P, None, &mut told).unwrap();
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

/// What a map of the program shows after a client has touched the memory of the same file.
fn map_beside_clients() -> Result<u8> {
    let (cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let space = Space::new(&cache, SpaceOptions::new()).unwrap();
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
    let space = Space::new(&cache, SpaceOptions::new()).unwrap();
    drop(space.map_file(&file, 0..4096).unwrap());
    drop(Clients::new(&file).unwrap());
    let error = space.map_file(&file, 0..4096).unwrap_err();
    assert!(error.to_string().starts_with("cannot map snapshot: "), "{error}");
    Clients::new(&file).unwrap();
}

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
        clients.take(id.0, messages, &mut Vec::new()).unwrap();
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

/// Since when a fault has waited for room whose page was read once more, and is not to be had.
fn read_in_vain(since: Instant) -> Instant {
    let (_cache, file) = snapshot(16 * MIB, bytes(4 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Shared, 0);
    let id = guest.add_to(&mut clients).0;
    clients.clients.get_mut(&id).unwrap().waiting.insert(3, Some(since));
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
    let since = Instant::now().checked_sub(Duration::from_secs(20)).unwrap();
    assert_eq!(read_in_vain(since), since);
    let caught = mutant::with(Some(Mutant::ShortAnew), || read_in_vain(since));
    assert_ne!(caught, since, "the mutant does nothing");
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
