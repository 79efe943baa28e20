//! Lent folios of 2 MiB whose pages are made huge pages.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::*;
use crate::mapped::reserved::Reservation;
use crate::source::Memory;
use crate::{Cache, File, Hint, Map, Options, Space};

const RUN: usize = Order::MAX.bytes();

fn byte_of(at: usize) -> u8 {
    (at / PAGE_BYTES % 251 + 1) as u8
}

/// Whether the kernel makes huge pages of a memory file if it is told to.
fn has_huge_pages() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    setting.is_ok_and(|setting| !setting.contains("[deny]"))
}

/// A file of folios of 2 MiB, and a map of it.
struct Used {
    cache: Cache,
    file: File,
    map: Map,
}

fn cached(bytes: usize) -> Used {
    let cache = Cache::new(Options::new(128 << 20)).unwrap();
    let content = (0..bytes).map(byte_of).collect();
    let file = cache.attach("file", Arc::new(Memory::new(content))).unwrap();
    let reader = file.clone();
    reader.advise(0..0, Hint::Random).unwrap(); // folios as large as what is asked for
    for at in (0..bytes).step_by(RUN) {
        reader.read_at(&mut vec![0; RUN], at as u64).unwrap();
    }
    let map = Space::new(&cache, 0).unwrap().map_file(&file, 0..bytes as u64).unwrap();
    Used { cache, file, map }
}

fn used(bytes: usize) -> Used {
    let used = cached(bytes);
    used.touch(0..bytes);
    used
}

impl Used {
    fn touch(&self, part: Range<usize>) {
        for at in part.step_by(PAGE_BYTES) {
            // SAFETY: a byte of the map, whose source cannot fail.
            assert_eq!(unsafe { self.map.as_ptr().wrapping_add(at).read_volatile() }, byte_of(at));
        }
    }

    fn held(&self, at: usize) -> Held<'_> {
        self.cache.core().hold(&self.file.handle().mapping, (at / PAGE_BYTES) as u64).unwrap()
    }

    fn is_known(&self, at: usize) -> bool {
        self.held(at).frame().flags().contains(Flags::HUGE)
    }

    /// Whether the kernel has a huge page there: one that may be mapped as a whole is.
    fn is_huge(&self, at: usize) -> bool {
        let mirror = self.file.handle().mapping.mirror_of_folios();
        let there = Reservation::new(RUN).unwrap();
        let (start, flags) = (there.start.cast(), MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: reserved by this call.
        unsafe { mmap(start, RUN, ProtFlags::READ, flags, mirror.fd(), at as u64) }.unwrap();
        // SAFETY: a page of that mapping that is there.
        unsafe { there.start.read_volatile() };
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let from = maps.find(&format!("{:x}-", there.start.addr())).unwrap();
        let line = maps[from..].lines().find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
        !line.contains(" 0 kB")
    }

    /// Whether the kernel has something of the page there.
    fn has_page(&self, at: usize) -> bool {
        let fd = self.file.handle().mapping.mirror_of_folios().fd();
        rustix::fs::seek(fd, SeekFrom::Data(at as u64)) == Ok(at as u64)
    }

    /// A reference of the kernel's to a page, with which it cannot split a huge one.
    fn in_a_pipe(&self, at: usize) -> (OwnedFd, OwnedFd) {
        let pipe = std::io::pipe().map(|(one, other)| (OwnedFd::from(one), OwnedFd::from(other)));
        let pipe = pipe.unwrap();
        let page = self.map.as_ptr().wrapping_add(at).cast_mut().cast();
        let part = libc::iovec { iov_base: page, iov_len: PAGE_BYTES };
        // SAFETY: a page of the map, which is there.
        let put = unsafe { libc::vmsplice(pipe.1.as_raw_fd(), &raw const part, 1, 0) };
        assert_eq!(put, PAGE_BYTES.cast_signed());
        pipe
    }
}

#[test]
fn what_maps_have_used_becomes_huge_pages() {
    let used = used(8 << 20);
    let known: Vec<_> = (0..4).map(|n| used.is_known(n * RUN)).collect();
    assert_eq!(known, [true, true, true, false], "none comes after the last");
    assert_eq!([0, 3 * RUN].map(|at| used.is_huge(at)), [has_huge_pages(), false]);
    used.touch(0..8 << 20);
    drop(used.map);
    used.file.invalidate(0..8 << 20).unwrap();
    assert_eq!(used.file.handle().mapping.mirror_of_folios().bytes_in_memory(), 0);
}

#[test]
fn a_folio_that_maps_skip_or_that_is_about_to_leave_becomes_none() {
    let skipped = cached(2 * RUN);
    skipped.touch(0..PAGE_BYTES);
    skipped.touch(RUN..RUN + PAGE_BYTES);
    let waiting = cached(2 * RUN);
    waiting.touch(0..RUN);
    let piece = Piece::of(waiting.file.handle().mapping.id, 0);
    waiting.cache.core().mapped.pieces.lock().add(&piece, 512);
    waiting.touch(RUN..2 * RUN);
    for cached in [skipped, waiting] {
        let held = cached.held(0);
        assert!(held.frame().is_hollow() && held.frame().order() == Order::MAX);
        assert!(!cached.is_known(0));
    }
}

/// Whether a page that has left the cache is still in the mirror: with zeros.
fn leaves_zeros(mutant: Option<Mutant>, moves: bool) -> bool {
    let used = used(4 << 20);
    assert!(used.is_known(0));
    let core = used.cache.core();
    let pipe = used.in_a_pipe(0);
    let run = used.held(0).head();
    mutant::with(mutant, || {
        if moves {
            core.let_go_of_recent(|_| true);
            assert!(core.frames.hollow_out_run());
            assert!(lent::take_back(core, run));
            assert!(used.held(0).head() != run);
        }
        used.file.split(0..RUN as u64);
    });
    core.let_go_of_recent(|_| true);
    used.file.invalidate(0..1).unwrap();
    let leaves_zeros = used.has_page(0);
    drop(pipe);
    leaves_zeros
}

#[test]
fn a_huge_page_leaves_as_a_whole() {
    for moves in [false, true] {
        assert!(!leaves_zeros(None, moves));
    }
    assert_eq!(leaves_zeros(Some(Mutant::SplitsHuge), false), has_huge_pages());
    assert_eq!(leaves_zeros(Some(Mutant::MoveForgetsHuge), true), has_huge_pages());
}

#[test]
fn guards_of_huge_pages_keep_no_more_than_of_others() {
    let used = used(32 << 20);
    let guards: Vec<_> = (0..16).map(|n| used.file.get(n * 512 + 5).unwrap()).collect();
    for (n, guard) in guards.iter().enumerate() {
        assert!(guard.iter().all(|&byte| byte == byte_of(n * RUN + 5 * PAGE_BYTES)), "{n}");
    }
    used.file.invalidate(0..32 << 20).unwrap();
    used.cache.core().let_go_of_recent(|_| true);
    let kept = || used.cache.stats().resident_bytes;
    // What the cache's threads have is let go of in a moment.
    for _ in 0..200 {
        if kept() <= (128 << 20) / 10 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(kept() <= (128 << 20) / 10, "guards keep {}", kept());
}
