//! What the thread that serves other processes allocates.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinfold::source::Memory;
use pinfold::{Cache, ClientMapping, ClientMemory, Clients, Options};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use crate::COUNT;

const PAGES: usize = 1024;
const PAGE: usize = 4096;

/// A userfaultfd of this process for missing pages and minor faults of a range of a memory file.
fn register(start: *mut u8, bytes: usize) -> OwnedFd {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | 1;
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it was just made.
    let uffd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // The version, features (minor faults of memory files), and what the kernel tells.
    let mut api = [0xAA_u64, 1 << 10, 0];
    // SAFETY: the kernel's struct.
    let done = unsafe { libc::ioctl(uffd.as_raw_fd(), API, api.as_mut_ptr()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    // The range, the mode (missing and minor), and what the kernel tells.
    let mut range = [start.addr() as u64, bytes as u64, 1 | 4, 0];
    // SAFETY: the kernel's struct, and the caller's mapping.
    let done = unsafe { libc::ioctl(uffd.as_raw_fd(), REGISTER, range.as_mut_ptr()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    uffd
}

/// Serves while another thread touches each page once, from memory that has none of them. Returns
/// the allocations of that.
fn touch_all(clients: &mut Clients, start: *mut u8) -> usize {
    let (at, is_over) = (start.expose_provenance(), AtomicBool::new(false));
    let at = || std::ptr::with_exposed_provenance_mut::<u8>(at);
    // SAFETY: the mapping; nobody reads it now.
    unsafe { madvise(at().cast(), PAGES * PAGE, Advice::LinuxDontNeed) }.unwrap();
    std::thread::scope(|scope| {
        let touches = scope.spawn(|| {
            for page in (0..PAGES).rev() {
                let byte = at().wrapping_add(page * PAGE);
                // SAFETY: in the mapping.
                assert_eq!(unsafe { byte.read_volatile() }, 7);
            }
            is_over.store(true, Ordering::Release);
        });
        let before = COUNT.get();
        // Ends: each fault is served.
        while !is_over.load(Ordering::Acquire) {
            assert!(clients.work().is_empty());
        }
        let allocations = COUNT.get() - before;
        touches.join().unwrap();
        allocations
    })
}

#[test]
fn a_round_and_a_fault_on_a_page_that_is_there_allocate_nothing() {
    let cache = Cache::new(Options::new(32 << 20)).unwrap();
    let file = cache.attach("snapshot", Arc::new(Memory::new(vec![7; PAGES * PAGE]))).unwrap();
    let mut clients = Clients::new(&file).unwrap();
    let memory = clients.memory().unwrap();
    let (access, bytes) = (ProtFlags::READ, PAGES * PAGE);
    // SAFETY: a new mapping.
    let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE, &memory, 0) };
    let start = start.unwrap().cast::<u8>();
    let mapping = ClientMapping {
        address: start.addr() as u64,
        bytes: bytes as u64,
        offset: 0,
        memory: ClientMemory::Shared,
    };
    clients.add(register(start, bytes), &[mapping]).unwrap();
    let read = touch_all(&mut clients, start);
    // What is kept has its size after this.
    touch_all(&mut clients, start);
    let faults = clients.stats().faults;
    let again = touch_all(&mut clients, start);
    let faults = clients.stats().faults - faults;
    println!("{read} allocations when all is read; {again} for {faults} faults after that");
    assert!(read > 0 && faults > 0, "nothing was counted");
    assert_eq!(again, 0, "for {faults} faults on pages that are there");
}
