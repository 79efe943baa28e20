//! A userfaultfd: opening one, registering, copying, waking, poisoning, and why the system refuses
//! that. Mirrors are registered for `MISSING` alone: the kernel maps by itself what is in a memfd.

#[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "numbers of the kernel's"))]
pub(crate) mod abi;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, ProtFlags, UserfaultfdFlags, madvise, mmap, mmap_anonymous, userfaultfd,
};

use crate::error::{Cause, Result};
use abi::{
    API, Api, COPY_QUIETLY, Copy, EVENT_PAGEFAULT, FAULT_WRITE, FEATURE_MISSING_SHMEM,
    FEATURE_POISON, FEATURE_SIGBUS, Install, OP_API, OP_COPY, OP_NEW, OP_POISON, OP_REGISTER,
    OP_WAKE, REGISTER_MISSING, REGISTER_PROTECTED, Register, Span, USER_MODE_ONLY, UffdMsg, call,
};

/// How often a call is repeated that the kernel wants to be repeated (`EAGAIN`): it says so while
/// the layout of the address space changes.
const AGAIN_MAX: u32 = 10_000;

const DEVICE: &str = "/dev/userfaultfd";

/// How the kernel asks for a page, and so who serves the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// By SIGBUS in the thread that faults, which serves it.
    Signal,
    /// By a message, which [`Uffd::next`] takes for a thread of the space.
    Message,
}

impl Ask {
    /// The features without which it does not work, and since when Linux has each.
    fn features(self) -> &'static [(u64, &'static str)] {
        const MEMFD: (u64, &str) = (FEATURE_MISSING_SHMEM, "missing pages of a memfd (Linux 4.11)");
        match self {
            Ask::Signal => &[MEMFD, (FEATURE_SIGBUS, "SIGBUS for a missing page (Linux 4.14)")],
            Ask::Message => &[MEMFD, (FEATURE_POISON, "poisoned pages (Linux 6.6)")],
        }
    }
}

#[derive(Debug)]
pub(crate) struct Uffd {
    fd: OwnedFd,
    serves_system_calls: bool,
}

impl Uffd {
    pub(crate) fn open(ask: Ask) -> Result<Self> {
        let (fd, serves_system_calls) = match ask {
            // A system call that meets the signal fails with EFAULT in any case.
            Ask::Signal => (first(&[USER_MODE_ONLY, 0])?, false),
            Ask::Message => match first(&[0]) {
                Ok(fd) => (fd, true),
                Err(_) => (first(&[USER_MODE_ONLY])?, false),
            },
        };
        handshake(&fd, ask)?;
        Ok(Uffd { fd, serves_system_calls })
    }

    /// Whether system calls that touch absent pages wait for them.
    pub(crate) fn serves_system_calls(&self) -> bool {
        self.serves_system_calls
    }

    /// All threads that wait for pages at these addresses repeat their accesses.
    pub(crate) fn wake(&self, at: &Range<usize>) {
        // SAFETY: a thread that is woken in vain faults again.
        let done = unsafe { call::<OP_WAKE, _>(&self.fd, &mut Span::from(at)) };
        debug_assert!(done.is_ok(), "woken: {done:?}");
    }

    /// Whoever waits for the page at these addresses, or accesses it, gets SIGBUS, and a system
    /// call an error, until it is unmapped or zapped.
    /// Error: the page is there by now, or its map is not any more.
    pub(crate) fn poison(&self, at: &Range<usize>) -> rustix::io::Result<()> {
        let mut poison = Install { span: at.into(), mode: 0, done: 0 };
        // SAFETY: it changes only pages that are registered with this descriptor, and absent.
        unsafe { call::<OP_POISON, _>(&self.fd, &mut poison) }
    }

    /// The address that a thread waits for, if one does, and whether it stores there.
    pub(crate) fn next(&self) -> io::Result<Option<(usize, bool)>> {
        let mut bytes = [0; size_of::<UffdMsg>()];
        // Ends: each turn but the last takes a message off the queue.
        loop {
            match rustix::io::read(&self.fd, &mut bytes) {
                Ok(got) if got == bytes.len() => {}
                Ok(_) | Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            // SAFETY: any bytes are a message.
            let message =
                unsafe { std::mem::transmute::<[u8; size_of::<UffdMsg>()], UffdMsg>(bytes) };
            if message.event == EVENT_PAGEFAULT {
                let [flags, address, _thread] = message.words;
                return Ok(Some((address as usize, flags & FAULT_WRITE != 0)));
            }
        }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Maps a mirror from an offset on, or private memory of no file, without access yet: none of its
/// pages is ever made by an access.
/// - It is registered, so that an access to a missing page asks, and a store to a protected one of
///   private memory.
/// - A child, which has no userfaultfd, does not have it.
/// - The kernel makes no huge pages of it by itself. It would fill holes with zeros, be left with
///   zeros where a hole is punched into one, or have more pages than were brought.
///
/// # Safety
/// The addresses are reserved by the caller, and nobody uses them.
pub(crate) unsafe fn install(
    uffd: BorrowedFd<'_>,
    at: &Range<usize>,
    mirror: Option<(BorrowedFd<'_>, u64)>,
) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(at.start);
    let (flags, access) = (MapFlags::NORESERVE | MapFlags::FIXED, ProtFlags::empty());
    let (flags, mode) = if mirror.is_some() {
        (flags | MapFlags::SHARED, REGISTER_MISSING)
    } else {
        (flags | MapFlags::PRIVATE, REGISTER_MISSING | REGISTER_PROTECTED)
    };
    if let Some((fd, offset)) = mirror {
        // SAFETY: the caller's addresses.
        unsafe { mmap(start, at.len(), access, flags, fd, offset) }?;
    } else {
        // SAFETY: as above.
        unsafe { mmap_anonymous(start, at.len(), access, flags) }?;
    }
    for advice in [Advice::LinuxDontFork, Advice::LinuxNoHugepage] {
        // SAFETY: as above.
        match unsafe { madvise(start, at.len(), advice) } {
            // A kernel without huge pages.
            Err(Errno::INVAL) if advice == Advice::LinuxNoHugepage => {}
            done => done?,
        }
    }
    let mut register = Register { span: at.into(), mode, ioctls: 0 };
    // SAFETY: it changes nothing but how faults of the caller's addresses are served.
    Ok(unsafe { call::<OP_REGISTER, _>(uffd, &mut register) }?)
}

/// Calls until all of the range is done. The error says how many bytes are.
pub(crate) fn repeat(
    range: &Range<usize>,
    mut call: impl FnMut(Range<usize>) -> (rustix::io::Result<()>, i64),
) -> std::result::Result<(), (usize, io::Error)> {
    let (mut at, mut again) = (range.start, 0);
    // Ends: each turn gets on, or is one of a bounded number.
    while at < range.end {
        let (result, done) = call(at..range.end);
        at += usize::try_from(done).unwrap_or(0);
        match result {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) if again < AGAIN_MAX => {
                again += 1;
                std::thread::yield_now();
            }
            Err(errno) => return Err((at - range.start, errno.into())),
        }
    }
    Ok(())
}

/// Puts whole pages from `from` into absent ones. Each page is there with all of its bytes or not
/// at all. Nobody is woken.
/// Error: a page is there (`EEXIST`), or there is no memory: the pages before it have come.
///
/// # Safety
/// The pages are registered with this descriptor, and the caller's to fill. The bytes can be read,
/// and no thread changes them meanwhile.
pub(crate) unsafe fn copy(
    uffd: BorrowedFd<'_>,
    to: &Range<usize>,
    from: *const u8,
    mode: u64,
) -> std::result::Result<(), (usize, io::Error)> {
    repeat(to, |left| {
        let from = from.wrapping_add(left.start - to.start).expose_provenance() as u64;
        let (to, bytes) = (left.start as u64, left.len() as u64);
        let mut copy = Copy { to, from, bytes, mode: COPY_QUIETLY | mode, done: 0 };
        // SAFETY: the caller's pages.
        let result = unsafe { call::<OP_COPY, _>(uffd, &mut copy) };
        (result, copy.done)
    })
}

/// A descriptor with the first of these flags that the system accepts.
fn first(flags: &[u32]) -> Result<OwnedFd> {
    let common = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    let mut syscall = Errno::NOSYS;
    for flags in flags {
        let flags = common | UserfaultfdFlags::from_bits_retain(*flags);
        // SAFETY: what is done with it is argued at each call.
        match unsafe { userfaultfd(flags) } {
            Ok(fd) => return Ok(fd),
            Err(error) => syscall = error,
        }
    }
    by_device(common).map_err(|device| refused(syscall, device))
}

/// Makes a userfaultfd by the device, which asks for no privilege but its own mode (Linux 6.1).
fn by_device(flags: UserfaultfdFlags) -> rustix::io::Result<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let number = libc::Ioctl::from(OP_NEW);
    // SAFETY: this number of the device takes flags by value, and returns a descriptor.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), number, flags.bits()) };
    if fd < 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: new, and the caller's alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn handshake(fd: &OwnedFd, ask: Ask) -> Result<()> {
    let wanted = ask.features().iter().fold(0, |all, (bit, _)| all | bit);
    let Err(cause) = agree(fd, wanted) else { return Ok(()) };
    // A descriptor of its own says what there is: this one takes no second answer.
    let known = first(&[USER_MODE_ONLY, 0])
        .and_then(|probe| agree(&probe, 0).map_err(|cause| failed("agree on a version", cause)))?;
    let what = if wanted & !known == 0 { "agree on a version".into() } else { missing(ask, known) };
    Err(failed(&what, cause))
}

fn agree(fd: &OwnedFd, features: u64) -> io::Result<u64> {
    let mut api = Api { version: API, features, ioctls: 0 };
    // SAFETY: it changes only the descriptor.
    unsafe { call::<OP_API, _>(fd, &mut api) }?;
    Ok(api.features)
}

/// What of the wanted features is not known to this kernel.
fn missing(ask: Ask, known: u64) -> String {
    let missing = ask.features().iter().filter(|(bit, _)| known & bit == 0);
    let names: Vec<_> = missing.map(|(_, name)| *name).collect();
    format!("have features that this kernel has not: {}", names.join(", "))
}

/// The error for what the system call and the device have answered.
fn refused(syscall: Errno, device: Errno) -> crate::error::Error {
    let why = match syscall {
        Errno::NOSYS => {
            "this kernel was built without CONFIG_USERFAULTFD, or a seccomp filter (of a \
             container, for example) hides it: allow userfaultfd(2) in the filter"
        }
        Errno::PERM => {
            "a seccomp filter or another security module forbids it (container runtimes do so by \
             default: allow userfaultfd(2) in the profile), or, before Linux 5.11, \
             vm.unprivileged_userfaultfd is 0"
        }
        Errno::MFILE | Errno::NFILE => "there are too many open descriptors",
        Errno::NOMEM => "the system has no memory",
        _ => "the system refuses it",
    };
    let device = match device {
        Errno::NOENT => "is not there (it is since Linux 6.1)".to_owned(),
        Errno::ACCESS | Errno::PERM => "may not be opened by this user".to_owned(),
        other => format!("fails, too: {}", io::Error::from(other)),
    };
    failed(&format!("open one: {why}; {DEVICE} {device}"), syscall.into())
}

fn failed(what: &str, cause: io::Error) -> crate::error::Error {
    let what = format!("make a space for mapped files: userfaultfd: cannot {what}");
    Cause::system(&what, cause).into()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_why_and_what_to_do() {
        let text = |syscall, device| refused(syscall, device).to_string();
        let forbidden = text(Errno::PERM, Errno::NOENT);
        assert!(forbidden.contains("seccomp"), "{forbidden}");
        assert!(forbidden.contains("vm.unprivileged_userfaultfd"), "{forbidden}");
        assert!(forbidden.contains("/dev/userfaultfd is not there"), "{forbidden}");
        let old = text(Errno::NOSYS, Errno::ACCESS);
        assert!(old.contains("CONFIG_USERFAULTFD"), "{old}");
        assert!(old.contains("may not be opened by this user"), "{old}");
        assert!(text(Errno::MFILE, Errno::MFILE).contains("too many open descriptors"));
    }

    #[test]
    fn a_feature_that_is_not_there_is_named() {
        let known = FEATURE_MISSING_SHMEM;
        assert!(missing(Ask::Signal, known).ends_with(": SIGBUS for a missing page (Linux 4.14)"));
        assert!(missing(Ask::Message, known).ends_with(": poisoned pages (Linux 6.6)"));
        assert!(missing(Ask::Message, FEATURE_POISON).contains("of a memfd (Linux 4.11)"));
    }

    #[test]
    fn the_kernel_takes_no_second_answer_and_knows_no_unknown_feature() {
        let fd = first(&[USER_MODE_ONLY, 0]).unwrap();
        assert!(agree(&fd, 1 << 63).is_err());
        let known = agree(&first(&[USER_MODE_ONLY, 0]).unwrap(), 0).unwrap();
        assert_ne!(known & FEATURE_MISSING_SHMEM, 0);
        assert_eq!(known >> 63, 0);
    }
}
