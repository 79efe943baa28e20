//! userfaultfd(2), as far as `pinfold bench fault --cases install` measures it.
//!
//! Here: opening one, registering a mapping, and a SIGBUS handler that installs pages of the one
//! region that is served. Not here: what is measured of it (`fault_install.rs`), and the cache's
//! own faults, which the library serves.
//!
//! With `UFFD_FEATURE_SIGBUS` the kernel does not queue a fault for another thread: the thread that
//! faulted gets a SIGBUS, and its handler installs the page. When the handler returns, the access
//! is repeated. So there is no switch between threads, and this is the fastest that an ioctl can
//! be.

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow, ensure};
use memmap2::{MmapMut, MmapRaw};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags};

use super::fault_touch::PAGE_BYTES;

/// What a kernel can do with a userfaultfd: bits of `uffdio_api.features`.
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_MOVE: u64 = 1 << 16;

/// The names of the features, and since when there are any.
const FEATURES: [(u64, &str); 4] = [
    (FEATURE_MISSING_SHMEM, "UFFD_FEATURE_MISSING_SHMEM, which Linux has since 4.11"),
    (FEATURE_SIGBUS, "UFFD_FEATURE_SIGBUS, which Linux has since 4.14"),
    (FEATURE_MINOR_SHMEM, "UFFD_FEATURE_MINOR_SHMEM, which Linux has since 5.14"),
    (FEATURE_MOVE, "UFFD_FEATURE_MOVE, which Linux has since 6.8"),
];

/// `uffdio_register.mode`.
const MODE_MISSING: u64 = 1 << 0;
const MODE_MINOR: u64 = 1 << 2;

/// Faults of system calls are refused. Without this, userfaultfd is for the privileged alone.
const USER_MODE_ONLY: u32 = 1;

/// Another way to one, for those who may open it.
const DEVICE: &str = "/dev/userfaultfd";

/// The interface's version, and its ioctls' type.
const API: u64 = 0xaa;
const GROUP: u8 = 0xaa;

/// `struct uffdio_api`.
#[derive(Debug)]
#[repr(C)]
struct Hello {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[derive(Debug)]
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_continue`.
#[derive(Debug)]
#[repr(C)]
struct Continue {
    start: u64,
    len: u64,
    mode: u64,
    mapped: i64,
}

/// `struct uffdio_copy` and `struct uffdio_move`, which have the same members.
#[derive(Debug)]
#[repr(C)]
struct Transfer {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

const HELLO: Opcode = opcode::read_write::<Hello>(GROUP, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0);
const COPY: Opcode = opcode::read_write::<Transfer>(GROUP, 3);
const MOVE: Opcode = opcode::read_write::<Transfer>(GROUP, 5);
const CONTINUE: Opcode = opcode::read_write::<Continue>(GROUP, 7);

/// How a fault is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Not at all: only pages that are absent raise one, and none is.
    Native,
    /// `UFFDIO_CONTINUE`: pages that the memory file has already are mapped.
    Continue,
    /// `UFFDIO_COPY`: pages are allocated and filled.
    Copy,
    /// `UFFDIO_MOVE`: pages of other private memory change places.
    Move,
}

impl Way {
    fn features(self) -> u64 {
        FEATURE_SIGBUS
            | match self {
                Way::Native => FEATURE_MISSING_SHMEM,
                Way::Continue => FEATURE_MINOR_SHMEM,
                Way::Copy => 0,
                Way::Move => FEATURE_MOVE,
            }
    }

    fn mode(self) -> u64 {
        match self {
            Way::Continue => MODE_MINOR,
            Way::Native | Way::Copy | Way::Move => MODE_MISSING,
        }
    }

    /// Whether this system can. The error says why not, and what to do.
    pub fn check(self) -> Result<()> {
        open(self.features()).map(drop)
    }
}

/// Does one of the ioctls.
///
/// # Safety
/// The structure is that of the number, and what is asked for is of memory that the caller may
/// change.
unsafe fn ask<const NUMBER: Opcode, T>(fd: &OwnedFd, what: &mut T) -> Result<(), Errno> {
    // SAFETY: the caller's.
    let what = unsafe { Updater::<NUMBER, T>::new(what) };
    // SAFETY: the caller's.
    unsafe { ioctl(fd, what) }
}

/// Opens one with these features.
fn open(features: u64) -> Result<OwnedFd> {
    // The kernel says what it has to one that asks for nothing, and that one cannot ask again.
    let mut hello = Hello { api: API, features: 0, ioctls: 0 };
    // SAFETY: the number and the structure are those of `UFFDIO_API`.
    unsafe { ask::<HELLO, _>(&new()?, &mut hello) }
        .context("userfaultfd refuses to tell its features (UFFDIO_API)")?;
    let lacking = FEATURES.iter().find(|(bit, _)| features & !hello.features & bit != 0);
    if let Some((_, name)) = lacking {
        return Err(anyhow!("this kernel lacks {name}"));
    }
    let fd = new()?;
    let mut hello = Hello { api: API, features, ioctls: 0 };
    // SAFETY: as above.
    unsafe { ask::<HELLO, _>(&fd, &mut hello) }
        .context("userfaultfd refuses its features (UFFDIO_API)")?;
    Ok(fd)
}

/// A new one, by the system call, or by the device where that is refused.
fn new() -> Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC
        | UserfaultfdFlags::NONBLOCK
        | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: what it is registered for is memory that this process uses for nothing else.
    let syscall = match unsafe { rustix::mm::userfaultfd(flags) } {
        Ok(fd) => return Ok(fd),
        Err(why) => why,
    };
    let from_device = || {
        let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        // SAFETY: as above.
        unsafe { ioctl(&device, FromDevice(flags)) }
    };
    from_device().map_err(|device| refused(syscall, device))
}

/// `USERFAULTFD_IOC_NEW`.
struct FromDevice(UserfaultfdFlags);

// SAFETY: its argument is a number; what it returns is a new descriptor.
unsafe impl Ioctl for FromDevice {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(GROUP, 0)
    }

    fn as_ptr(&mut self) -> *mut libc::c_void {
        ptr::without_provenance_mut(self.0.bits() as usize)
    }

    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut libc::c_void) -> Result<OwnedFd, Errno> {
        // SAFETY: the call succeeded, so it is new and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Why both ways failed, and what to do about it.
fn refused(syscall: Errno, device: Errno) -> anyhow::Error {
    let advice = match syscall {
        Errno::NOSYS => "this kernel was built without it (CONFIG_USERFAULTFD)",
        Errno::PERM => {
            "a seccomp filter, as a container has, forbids it: run outside of the container, or \
             with a profile that allows it"
        }
        Errno::INVAL => "this kernel is older than Linux 5.11",
        Errno::MFILE | Errno::NFILE => "too many files are open",
        _ => "it failed",
    };
    anyhow!("userfaultfd(2) is refused ({syscall}): {advice}. {DEVICE} does not help: {device}")
}

/// Errors that mean "another thread is doing it", before it is taken for a failure.
const AGAIN_MAX: u32 = 1 << 22;

/// What the handler knows.
#[derive(Debug)]
struct Region {
    fd: OwnedFd,
    begin: usize,
    bytes: usize,
    way: Way,
    run_bytes: usize,
    /// Where the pages come from, if they come from other memory.
    source: usize,
    /// The first error that was final; 0: none.
    failed: AtomicI32,
    again: AtomicU32,
}

/// The region that is served. Null: none.
static REGION: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());

/// Held while one is.
static SERVING: Mutex<()> = Mutex::new(());

/// A mapping whose faults are served, until this is dropped. It borrows the mapping, and where the
/// pages come from.
pub struct Served<'a> {
    region: *mut Region,
    before: libc::sigaction,
    /// The mapping outlives it, and so does the source.
    _memory: (&'a MmapRaw, Option<&'a MmapMut>),
    _alone: MutexGuard<'static, ()>,
}

impl<'a> Served<'a> {
    /// Registers `map`; faults are answered in this way, in aligned runs of this many pages. The
    /// source is as long as the mapping.
    pub fn new(
        map: &'a MmapRaw,
        way: Way,
        run_pages: usize,
        source: Option<&'a MmapMut>,
    ) -> Result<Self> {
        let bytes = map.len();
        ensure!(run_pages > 0 && bytes.is_multiple_of(PAGE_BYTES), "no whole pages");
        let needs_source = matches!(way, Way::Copy | Way::Move);
        ensure!(
            source.map_or(!needs_source, |source| needs_source && source.len() == bytes),
            "the source is of another length"
        );
        let alone = SERVING.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = open(way.features())?;
        let begin = map.as_ptr().addr();
        let mut register =
            Register { start: begin as u64, len: bytes as u64, mode: way.mode(), ioctls: 0 };
        // SAFETY: the number and the structure are those of `UFFDIO_REGISTER`; the range is that of
        // the mapping, and the handler answers all its faults.
        unsafe { ask::<REGISTER, _>(&fd, &mut register) }
            .context("userfaultfd refuses the mapping (UFFDIO_REGISTER)")?;
        let region = Box::into_raw(Box::new(Region {
            fd,
            begin,
            bytes,
            way,
            run_bytes: run_pages * PAGE_BYTES,
            source: source.map_or(0, |source| source.as_ptr().addr()),
            failed: AtomicI32::new(0),
            again: AtomicU32::new(0),
        }));
        // Release, pairs with the acquire of the handler.
        let none = REGION.swap(region, AcqRel);
        assert!(none.is_null(), "two regions are served");
        let before = handle(on_sigbus as *const () as usize);
        Ok(Served { region, before, _memory: (map, source), _alone: alone })
    }

    /// Whether all faults so far could be answered.
    pub fn check(&self) -> Result<()> {
        // SAFETY: it lives until `self` is dropped.
        let failed = unsafe { &(*self.region).failed };
        // Relaxed: the threads that faulted were joined.
        match failed.load(Relaxed) {
            0 => Ok(()),
            why => Err(Errno::from_raw_os_error(why)).context("userfaultfd refused to map a page"),
        }
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        // SAFETY: it is what was there before.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const self.before, ptr::null_mut()) };
        // Acquire, pairs with nothing: no thread touches the mapping any more, so none faults.
        let region = REGION.swap(ptr::null_mut(), AcqRel);
        assert!(ptr::eq(region, self.region), "another region is served");
        // SAFETY: it came out of a box, and nobody else has it.
        drop(unsafe { Box::from_raw(region) });
    }
}

/// A mapping whose pages are put there by `UFFDIO_COPY`, as long as this lives. It borrows the
/// mapping. A fault on an absent page is a SIGBUS.
pub struct Filled<'a> {
    fd: OwnedFd,
    map: &'a MmapRaw,
}

impl<'a> Filled<'a> {
    /// Registers `map`, of a memory file.
    pub fn new(map: &'a MmapRaw) -> Result<Self> {
        let fd = open(Way::Native.features())?;
        let (start, len) = (map.as_ptr().addr() as u64, map.len() as u64);
        let mut register = Register { start, len, mode: MODE_MISSING, ioctls: 0 };
        // SAFETY: the number and the structure are those of `UFFDIO_REGISTER`; the range is that of
        // the mapping, of which only this touches absent pages.
        unsafe { ask::<REGISTER, _>(&fd, &mut register) }
            .context("userfaultfd refuses the mapping (UFFDIO_REGISTER)")?;
        Ok(Filled { fd, map })
    }

    /// Puts whole pages at an offset of the mapping.
    pub fn put(&self, at: usize, pages: &[u8]) -> Result<()> {
        assert!(at + pages.len() <= self.map.len());
        let dst = self.map.as_ptr().addr() as u64 + at as u64;
        let (src, len) = (pages.as_ptr().expose_provenance() as u64, pages.len() as u64);
        let mut transfer = Transfer { dst, src, len, mode: 0, done: 0 };
        // SAFETY: the number and the structure are those of `UFFDIO_COPY`; absent pages of the
        // mapping are filled.
        unsafe { ask::<COPY, _>(&self.fd, &mut transfer) }
            .context("userfaultfd refuses to copy a page (UFFDIO_COPY)")
    }
}

/// Sets the handler; returns what was there before.
fn handle(handler: usize) -> libc::sigaction {
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: all zeros are one: no flags, nothing masked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    // On the stack of the thread that faulted, as the access is that of a function call.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: both are valid; the handler does what a signal handler may.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr()) };
    assert_eq!(set, 0, "SIGBUS can be handled");
    // SAFETY: the call has written it.
    unsafe { before.assume_init() }
}

/// Does system calls by rustix alone, which does not touch `errno`, and no allocation.
extern "C" fn on_sigbus(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid one.
    let info = unsafe { &*info };
    // SAFETY: that of SIGBUS has an address.
    let address = unsafe { info.si_addr() }.addr();
    // Acquire, pairs with the release of `Served::new`.
    // SAFETY: a region that is served lives on while threads touch its mapping.
    let region = unsafe { REGION.load(Acquire).as_ref() };
    if !region.is_some_and(|region| region.answer(address)) {
        // Of another mapping: it ends the process, as it would without this handler.
        // SAFETY: a handler may call it.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

impl Region {
    /// Installs the run around the address; `false`: it is of another mapping.
    fn answer(&self, address: usize) -> bool {
        let Some(offset) = address.checked_sub(self.begin).filter(|&at| at < self.bytes) else {
            return false;
        };
        let at = offset - offset % self.run_bytes;
        let why = match self.install(at, self.run_bytes.min(self.bytes - at)) {
            Ok(()) => return true,
            Err(why) => why,
        };
        let other = why == Errno::EXIST || why == Errno::AGAIN;
        // Another thread has just moved it away from there.
        let other = other || (why == Errno::NOENT && self.way == Way::Move);
        // Relaxed: it only counts.
        if !other || self.again.fetch_add(1, Relaxed) >= AGAIN_MAX {
            self.give_up(why);
        }
        true
    }

    fn install(&self, at: usize, bytes: usize) -> Result<(), Errno> {
        let (dst, src, len) = ((self.begin + at) as u64, (self.source + at) as u64, bytes as u64);
        match self.way {
            // Every page is there.
            Way::Native => Err(Errno::FAULT),
            Way::Continue => {
                let mut answer = Continue { start: dst, len, mode: 0, mapped: 0 };
                // SAFETY: the number and the structure are those of `UFFDIO_CONTINUE`; the range is
                // of the mapping, where nobody reads anything else.
                unsafe { ask::<CONTINUE, _>(&self.fd, &mut answer) }
            }
            Way::Copy => {
                let mut answer = Transfer { dst, src, len, mode: 0, done: 0 };
                // SAFETY: as above, with those of `UFFDIO_COPY`; the source is as long.
                unsafe { ask::<COPY, _>(&self.fd, &mut answer) }
            }
            Way::Move => {
                let mut answer = Transfer { dst, src, len, mode: 0, done: 0 };
                // SAFETY: as above, with those of `UFFDIO_MOVE`; nobody reads the source any more.
                unsafe { ask::<MOVE, _>(&self.fd, &mut answer) }
            }
        }
    }

    /// Notes why, and lets all further accesses read zeros, so that none hangs.
    fn give_up(&self, why: Errno) {
        // Relaxed: read after the threads were joined.
        let _ = self.failed.compare_exchange(0, why.raw_os_error(), Relaxed, Relaxed);
        let begin = ptr::without_provenance_mut(self.begin);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: it replaces the mapping that is served, by one as long.
        let replaced =
            unsafe { rustix::mm::mmap_anonymous(begin, self.bytes, ProtFlags::READ, flags) };
        if replaced.is_err() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use memmap2::MmapOptions;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::super::fault_touch::{Numbered, Order, number_pages};
    use super::*;

    const PAGES: usize = 64;

    /// A memory file; its pages are absent from the `present`th on.
    fn memory(present: usize) -> MmapRaw {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.set_len((PAGES * PAGE_BYTES) as u64).unwrap();
        let mut bytes = vec![0; present * PAGE_BYTES];
        number_pages(0, &mut bytes);
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
        MmapOptions::new().map_raw_read_only(&file).unwrap()
    }

    /// Whether this system can; it says so if it cannot.
    fn can(way: Way) -> bool {
        let checked = way.check();
        if let Err(why) = &checked {
            eprintln!("not tested: {why:#}");
        }
        checked.is_ok()
    }

    fn touch(map: &MmapRaw, threads: usize) -> Result<f64> {
        // SAFETY: it has as many pages, and they stay.
        unsafe { Numbered::new(map.as_ptr()) }.touch_all(&Order::Random.of(PAGES as u32), threads)
    }

    #[test]
    fn each_way_installs_the_right_pages_in_runs_that_need_not_fit() {
        for way in [Way::Native, Way::Continue, Way::Copy, Way::Move] {
            for run_pages in [1, 5, 64, 100] {
                for threads in [1, 3] {
                    if !can(way) {
                        continue;
                    }
                    let taken = if matches!(way, Way::Native | Way::Continue) {
                        let map = memory(PAGES);
                        let served = Served::new(&map, way, run_pages, None).unwrap();
                        touch(&map, threads).map(|_| served.check().unwrap())
                    } else {
                        let anonymous = || {
                            let map = MmapMut::map_anon(PAGES * PAGE_BYTES).unwrap();
                            let _ = map.advise(memmap2::Advice::NoHugePage);
                            map
                        };
                        let (map, mut source) = (MmapRaw::from(anonymous()), anonymous());
                        number_pages(0, &mut source);
                        let served = Served::new(&map, way, run_pages, Some(&source)).unwrap();
                        touch(&map, threads).map(|_| served.check().unwrap())
                    };
                    taken.unwrap_or_else(|why| panic!("{way:?} {run_pages} {threads}: {why:#}"));
                }
            }
        }
    }

    #[test]
    fn a_fault_that_cannot_be_answered_is_an_error_and_no_hang() {
        for way in [Way::Native, Way::Continue] {
            if !can(way) {
                continue;
            }
            let map = memory(PAGES / 2);
            let served = Served::new(&map, way, 1, None).unwrap();
            // With MINOR alone the kernel gives zeros for what is absent: that is why a registered
            // mapping of the cache asks for MISSING.
            assert!(touch(&map, 2).is_err());
            assert_eq!(served.check().is_err(), way == Way::Native, "{way:?}");
        }
    }

    #[test]
    fn a_source_of_another_length_is_refused() {
        let map = memory(PAGES);
        let short = MmapMut::map_anon(PAGE_BYTES).unwrap();
        for (way, source) in
            [(Way::Copy, None), (Way::Copy, Some(&short)), (Way::Native, Some(&short))]
        {
            let error = Served::new(&map, way, 1, source).err().unwrap();
            assert!(error.to_string().contains("the source is of another length"));
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let said = |why| refused(why, Errno::ACCESS).to_string();
        assert!(said(Errno::PERM).contains("a profile that allows it"), "{}", said(Errno::PERM));
        assert!(said(Errno::NOSYS).contains("CONFIG_USERFAULTFD"));
        assert!(said(Errno::INVAL).contains("older than Linux 5.11"));
        assert!(said(Errno::PERM).contains("/dev/userfaultfd does not help: Permission denied"));
    }
}
