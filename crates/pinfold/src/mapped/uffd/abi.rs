//! The kernel's interface of userfaultfd(2): structs, numbers of ioctls, and flags, under the names
//! that the modules use which call it.

use std::ops::Range;
use std::os::fd::AsFd;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// Makes a call of a userfaultfd.
///
/// # Safety
/// The struct is the kernel's for this number. What the call does to memory is in order.
pub(crate) unsafe fn call<const OP: Opcode, T>(
    uffd: impl AsFd,
    it: &mut T,
) -> rustix::io::Result<()> {
    // SAFETY: the caller's promise.
    let call = unsafe { Updater::<OP, _>::new(it) };
    // SAFETY: as above.
    unsafe { ioctl(uffd, call) }
}

/// `struct uffdio_api`.
#[repr(C)]
pub(crate) struct Api {
    pub(crate) version: u64,
    pub(crate) features: u64,
    pub(crate) ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl From<&Range<usize>> for Span {
    fn from(at: &Range<usize>) -> Self {
        Span { start: at.start as u64, bytes: at.len() as u64 }
    }
}

/// `struct uffdio_register`.
#[repr(C)]
pub(crate) struct Register {
    pub(crate) span: Span,
    pub(crate) mode: u64,
    pub(crate) ioctls: u64,
}

/// `struct uffdio_copy`.
#[repr(C)]
pub(crate) struct Copy {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
    pub(crate) mode: u64,
    pub(crate) done: i64,
}

/// `struct uffdio_continue`, `uffdio_zeropage` and `uffdio_poison`, which are alike.
#[repr(C)]
pub(crate) struct Install {
    pub(crate) span: Span,
    pub(crate) mode: u64,
    pub(crate) done: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
pub(crate) struct Protect {
    pub(crate) span: Span,
    pub(crate) mode: u64,
}

/// `struct uffd_msg`: an event, and three words whose meaning depends on it. Of a page fault they
/// are flags, the address, and the thread.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct UffdMsg {
    pub(crate) event: u8,
    pub(crate) reserved: [u8; 7],
    pub(crate) words: [u64; 3],
}

const _: () = assert!(size_of::<UffdMsg>() == 32);

/// `UFFD_API`, the version.
pub(crate) const API: u64 = 0xAA;
const GROUP: u8 = 0xAA;
pub(crate) const OP_API: Opcode = opcode::read_write::<Api>(GROUP, 0x3F);
pub(crate) const OP_REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0x00);
pub(crate) const OP_WAKE: Opcode = opcode::read::<Span>(GROUP, 0x02);
pub(crate) const OP_COPY: Opcode = opcode::read_write::<Copy>(GROUP, 0x03);
pub(crate) const OP_ZEROPAGE: Opcode = opcode::read_write::<Install>(GROUP, 0x04);
pub(crate) const OP_PROTECT: Opcode = opcode::read_write::<Protect>(GROUP, 0x06);
pub(crate) const OP_CONTINUE: Opcode = opcode::read_write::<Install>(GROUP, 0x07);
pub(crate) const OP_POISON: Opcode = opcode::read_write::<Install>(GROUP, 0x08);
/// `USERFAULTFD_IOC_NEW`, of the device.
pub(crate) const OP_NEW: Opcode = opcode::none(GROUP, 0x00);

pub(crate) const REGISTER_MISSING: u64 = 1;
pub(crate) const REGISTER_PROTECTED: u64 = 1 << 1;
/// `UFFDIO_COPY_MODE_DONTWAKE`, and `UFFDIO_ZEROPAGE_MODE_DONTWAKE`, which is the same bit.
pub(crate) const COPY_QUIETLY: u64 = 1;
/// `UFFDIO_COPY_MODE_WP`.
pub(crate) const COPY_PROTECTED: u64 = 1 << 1;
/// `UFFDIO_WRITEPROTECT_MODE_WP`.
pub(crate) const PROTECT_ON: u64 = 1;
/// `UFFDIO_WRITEPROTECT_MODE_DONTWAKE`.
pub(crate) const PROTECT_QUIETLY: u64 = 1 << 1;
/// `UFFD_USER_MODE_ONLY`: faults of system calls are not served, so no privilege is needed.
pub(crate) const USER_MODE_ONLY: u32 = 1;

pub(crate) const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
pub(crate) const FEATURE_SIGBUS: u64 = 1 << 7;
pub(crate) const FEATURE_POISON: u64 = 1 << 14;

pub(crate) const EVENT_PAGEFAULT: u8 = 0x12;
pub(crate) const EVENT_FORK: u8 = 0x13;
pub(crate) const EVENT_REMAP: u8 = 0x14;
pub(crate) const EVENT_REMOVE: u8 = 0x15;
pub(crate) const EVENT_UNMAP: u8 = 0x16;

/// Flag of a page fault: the access is a store.
pub(crate) const FAULT_WRITE: u64 = 1;
/// Flag of a page fault: the page is there, and must not be stored to.
pub(crate) const FAULT_WRITE_PROTECT: u64 = 1 << 1;
