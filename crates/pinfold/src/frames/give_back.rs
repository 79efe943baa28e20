//! Giving memory back to the system, also of pages that the program has locked: after mlockall(2)
//! the kernel refuses `MADV_DONTNEED`.

use rustix::io::Errno;
use rustix::mm::{Advice, madvise, munlock};

/// Takes pages out of memory: private ones lose their bytes, shared ones leave the page table.
///
/// # Safety
/// The range is mapped, and the caller's to use so; nobody needs the bytes of private pages.
pub(crate) unsafe fn give_back(at: *mut u8, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let advise = |advice| unsafe { madvise(at.cast(), bytes, advice) };
    let given = advise(Advice::LinuxDontNeed);
    if given != Err(Errno::INVAL) {
        return given;
    }
    let given = advise(Advice::LinuxDontneedLocked);
    if given != Err(Errno::INVAL) {
        return given;
    }
    // SAFETY: the caller's range, which stays what it was.
    unsafe { munlock(at.cast(), bytes) }?;
    advise(Advice::LinuxDontNeed)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munmap};

    const BYTES: usize = 3 * 4096;

    #[test]
    fn what_is_locked_is_given_back_too() {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the system's choice replaces nothing.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, access, flags) }.unwrap();
        for locked in [0, 4096, BYTES] {
            let at: *mut u8 = start.cast();
            // SAFETY: all of the mapping, which is this test's.
            unsafe { at.write_bytes(7, BYTES) };
            // SAFETY: as above.
            unsafe { mlock(start, locked) }.unwrap();
            // SAFETY: as above.
            unsafe { give_back(at, BYTES) }.unwrap();
            for page in 0..3 {
                // SAFETY: as above.
                assert_eq!(unsafe { at.wrapping_add(page * 4096).read() }, 0, "{locked} locked");
            }
        }
        // SAFETY: as above; nobody uses it any more.
        unsafe { munmap(start, BYTES) }.unwrap();
    }
}
