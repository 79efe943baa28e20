//! Which type of file system an open file is mounted as, by statmount(2) of Linux 6.8. A mount has
//! a number that is never given to another one, so what was told stays true. Other system calls
//! tell a number of the file system's format, which several types share.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Statx, StatxFlags};

/// `STATX_MNT_ID_UNIQUE`: what [`mount`] needs statx(2) to be asked for.
pub(super) const MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// The number of statmount(2), on x86-64 and on aarch64.
const STATMOUNT: libc::c_long = 457;
/// `STATMOUNT_FS_TYPE`.
const TYPE: u32 = 0x20;

/// `struct mnt_id_req`, as it was at first.
#[repr(C)]
struct Asked {
    bytes: u32,
    _unused: u32,
    mount: u64,
    what: u64,
}

/// `struct statmount`, as 32-bit words: its mask is the third and fourth, where in the text the type
/// begins the tenth, and the text begins after 512 bytes.
const TOLD_BYTES: usize = 1024;
const MASK_AT: usize = 8;
const TYPE_AT: usize = 36;
const TEXT_AT: usize = 512;

/// The number of a file's mount, if the kernel tells it.
pub(super) fn mount(stat: &Statx) -> Option<u64> {
    (stat.stx_mask & MOUNT.bits() != 0).then_some(stat.stx_mnt_id)
}

/// Whether this mount is of the type `ext4`. False if the kernel does not tell. The kernel is asked
/// again only if the last one that was found to be so was another.
pub(super) fn is_ext4(mount: u64) -> bool {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Relaxed: the number is all there is. No mount has the number 0.
    if LAST.load(Ordering::Relaxed) == mount {
        return true;
    }
    let is_so = is_type(mount, c"ext4");
    if is_so {
        LAST.store(mount, Ordering::Relaxed);
    }
    is_so
}

fn is_type(mount: u64, name: &CStr) -> bool {
    let bytes = size_of::<Asked>() as u32;
    let asked = Asked { bytes, _unused: 0, mount, what: TYPE.into() };
    let mut told = [0_u8; TOLD_BYTES];
    let (from, to) = (&raw const asked, told.as_mut_ptr());
    // SAFETY: the kernel reads the one and writes to the other, of which it is told the sizes.
    if unsafe { libc::syscall(STATMOUNT, from, to, TOLD_BYTES, 0) } != 0 {
        return false;
    }
    let word = |at: usize| told[at..].first_chunk().map_or(0, |it| u32::from_ne_bytes(*it));
    let text = told[TEXT_AT..].get(word(TYPE_AT) as usize..);
    word(MASK_AT) & TYPE != 0 && text.is_some_and(|text| text.starts_with(name.to_bytes_with_nul()))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::AtFlags;

    use super::*;

    /// What `/proc/self/mountinfo` says of the mount of a file of this test.
    #[test]
    fn the_type_is_the_one_that_the_table_of_mounts_has() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for fd in [std::fs::File::open(dir.path()), std::fs::File::open("/proc/self/status")] {
            let fd = OwnedFd::from(fd.unwrap());
            let stat =
                rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).unwrap();
            let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let of_mount =
                |line: &&str| line.split(' ').next() == Some(&stat.stx_mnt_id.to_string());
            let Some(line) = table.lines().find(of_mount) else {
                println!("not tested: the file lies in a mount outside of this process's root");
                continue;
            };
            let name = line.split(" - ").nth(1).unwrap().split(' ').next().unwrap();
            let stat = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, MOUNT).unwrap();
            let Some(number) = mount(&stat) else {
                println!("not tested: the kernel does not tell the number of a mount");
                continue;
            };
            let is_type = |name: &str| is_type(number, &std::ffi::CString::new(name).unwrap());
            assert_eq!(is_ext4(number), is_type("ext4"));
            assert_eq!(is_ext4(number), is_type("ext4"), "as it was told before");
            if is_type(name) {
                assert!(!is_type(&name[..name.len() - 1]) && !is_type("none"));
            } else {
                println!("not tested: the kernel does not tell the type of a mount");
            }
        }
    }
}
