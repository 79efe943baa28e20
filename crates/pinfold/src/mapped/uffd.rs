//! A userfaultfd: opening one, asking for features, registering, copying, waking, poisoning.
//!
//! The system calls, and why the system refuses them.
//!
//! Ranges are registered for `MISSING` alone: the kernel maps by itself what is in a memfd, and
//! asks only for what is not. How it asks is chosen for the whole descriptor: by SIGBUS in the
//! thread that faults, or by a message.

#[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "numbers of the kernel's"))]
pub(crate) mod abi;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, Updater, ioctl};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use abi::{
    API, Api, COPY_QUIETLY, Copy, EVENT_PAGEFAULT, FAULT_WRITE, FEATURE_MISSING_SHMEM,
    FEATURE_POISON, FEATURE_SIGBUS, Install, OP_API, OP_COPY, OP_NEW, OP_POISON, OP_REGISTER,
    OP_WAKE, REGISTER_MISSING, Register, Span, USER_MODE_ONLY, UffdMsg,
};

/// How often a call is repeated that the kernel wants to be repeated (`EAGAIN`): it says so while
/// the layout of the address space changes.
pub(crate) const AGAIN_MAX: u32 = 10_000;

const DEVICE: &str = "/dev/userfaultfd";

/// How the kernel asks for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// By SIGBUS in the thread that faults.
    Signal,
    /// By a message, which [`Uffd::next`] takes.
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

/// An open userfaultfd.
#[derive(Debug)]
pub(crate) struct Uffd {
    fd: OwnedFd,
    serves_system_calls: bool,
}

impl Uffd {
    /// # Errors
    /// [`ErrorKind::System`].
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

    /// From now on the kernel asks for what is missing in a range.
    ///
    /// # Safety
    /// The range is mapped from a memfd by the caller alone.
    pub(crate) unsafe fn register(&self, start: usize, bytes: usize) -> io::Result<()> {
        let mut register = Register { span: span(start, bytes), mode: REGISTER_MISSING, ioctls: 0 };
        // SAFETY: the struct is the kernel's for this number.
        let register = unsafe { Updater::<OP_REGISTER, _>::new(&mut register) };
        // SAFETY: it changes nothing but how faults of the range are served; the caller says whose
        // it is.
        let done = unsafe { ioctl(&self.fd, register) };
        Ok(done?)
    }

    /// Puts whole pages from `from` into absent ones from `to` on, and returns how many bytes: less
    /// than asked for where something got between, but at least a page. Each page is there with all
    /// of its bytes or not at all. Nobody who waits for one is woken.
    ///
    /// # Errors
    /// `EEXIST`: the first page is there. Others if the system has no memory.
    ///
    /// # Safety
    /// The pages from `to` on are registered with this descriptor, and the caller's to fill. The
    /// bytes can be read, and no thread changes them meanwhile.
    pub(crate) unsafe fn copy(
        &self,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
    ) -> io::Result<usize> {
        let (to, from) = (to.expose_provenance() as u64, from.expose_provenance() as u64);
        let mut again = 0;
        // Ends: each turn but the last is one of a bounded number.
        loop {
            let mut copy = Copy { to, from, bytes: bytes as u64, mode: COPY_QUIETLY, done: 0 };
            // SAFETY: the struct is the kernel's for this number.
            let asked = unsafe { Updater::<OP_COPY, _>::new(&mut copy) };
            // SAFETY: the caller's pages.
            match unsafe { ioctl(&self.fd, asked) } {
                Ok(()) => return Ok(bytes),
                Err(_) if copy.done > 0 => return Ok(copy.done.cast_unsigned() as usize),
                Err(Errno::AGAIN | Errno::INTR) if again < AGAIN_MAX => {
                    again += 1;
                    std::thread::yield_now();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// All threads that wait for pages of a range repeat their accesses.
    pub(crate) fn wake(&self, start: usize, bytes: usize) {
        // SAFETY: the struct is the kernel's for this number.
        let wake = unsafe { Setter::<OP_WAKE, _>::new(span(start, bytes)) };
        // SAFETY: a thread that is woken in vain faults again.
        let done = unsafe { ioctl(&self.fd, wake) };
        debug_assert!(done.is_ok(), "woken: {done:?}");
    }

    /// Whoever waits for the page at `start`, or accesses it, gets SIGBUS, and a system call an
    /// error, until the range is unmapped or zapped.
    ///
    /// # Errors
    /// The page is there by now, or its map is not any more.
    pub(crate) fn poison(&self, start: usize, bytes: usize) -> io::Result<()> {
        let mut poison = Install { span: span(start, bytes), mode: 0, done: 0 };
        // SAFETY: the struct is the kernel's for this number.
        let poison = unsafe { Updater::<OP_POISON, _>::new(&mut poison) };
        // SAFETY: it changes only pages that are registered with this descriptor, and absent.
        let done = unsafe { ioctl(&self.fd, poison) };
        Ok(done?)
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

fn span(start: usize, bytes: usize) -> Span {
    Span { start: start as u64, bytes: bytes as u64 }
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

/// Agrees with the kernel on the features.
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
    // SAFETY: the struct is the kernel's for this number.
    let agree = unsafe { Updater::<OP_API, _>::new(&mut api) };
    // SAFETY: it changes only the descriptor.
    unsafe { ioctl(fd, agree) }?;
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
