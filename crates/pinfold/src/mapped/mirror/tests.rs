//! One mirror: who owns which place, and what is there.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::*;
use crate::base::sync::MutexGuard;
use crate::frames::Order;
use crate::mapped::uffd::Ask;

fn mirror(len_bytes: u64) -> Mirror {
    Mirror::new("a".as_ref(), len_bytes, &Arc::new(Uffd::open(Ask::Signal).unwrap())).unwrap()
}

fn put(mirror: &Mirror, pages: Range<u64>, byte: u8) {
    let bytes = vec![byte; (pages.end - pages.start) as usize * PAGE_BYTES];
    let claim = mirror.claim(pages).expect("a free place");
    // SAFETY: the bytes are this thread's.
    unsafe { claim.copy(bytes.as_ptr(), bytes.len(), None) }.unwrap();
}

fn blocks(mirror: &Mirror) -> i64 {
    rustix::fs::fstat(&mirror.fd).unwrap().st_blocks
}

#[test]
fn what_is_put_there_can_be_read_and_taken_out_again() {
    let mirror = mirror(10 * PAGE_BYTES as u64 - 7);
    assert_eq!(*mirror.bytes.lock(), 10 * PAGE_BYTES as u64);
    assert!(mirror.address(0).addr().is_multiple_of(Order::MAX.bytes()));
    put(&mirror, 3..5, 7);
    put(&mirror, 9..10, 9);
    assert_eq!(blocks(&mirror), 3 * 8);
    for (page, byte) in [(3, 7), (4, 7), (9, 9)] {
        // SAFETY: the page is there.
        assert_eq!(unsafe { mirror.address(page).read() }, byte);
    }
    mirror.punch(3..5);
    assert_eq!(blocks(&mirror), 8);
}

#[test]
fn the_rest_of_a_last_page_is_zeros() {
    let mirror = mirror(5000);
    let claim = mirror.claim(1..2).unwrap();
    // SAFETY: the bytes are this thread's.
    unsafe { claim.copy([7; 904].as_ptr(), 904, None) }.unwrap();
    drop(claim);
    // SAFETY: the page is there, and nobody changes it.
    let page = unsafe { std::slice::from_raw_parts(mirror.address(1), PAGE_BYTES) };
    assert!(page[..904].iter().all(|&byte| byte == 7));
    assert!(page[904..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_place_has_one_owner() {
    let mirror = Arc::new(mirror(1 << 20));
    let claim = mirror.claim(4..8).unwrap();
    for pages in [0..5, 4..5, 7..9, 0..100] {
        assert!(mirror.claim(pages).is_none());
    }
    mutant::with(Some(Mutant::ClaimBlindly), || assert!(mirror.claim(4..5).is_some()));
    drop((mirror.claim(0..4).unwrap(), mirror.claim(8..9).unwrap()));
    drop(claim);
    let leftovers = Leftovers::default();
    put(&mirror, 4..8, 1);
    leftovers.begin(FrameNumber(77), &mirror, 4..8);
    assert!(mirror.claim(7..8).is_none());
    leftovers.end(FrameNumber(76));
    assert!(mirror.claim(7..8).is_none());
    leftovers.end(FrameNumber(77));
    assert_eq!(blocks(&mirror), 0, "its bytes go with it");
    drop(mirror.claim(7..8).unwrap());
}

/// How many of three pages are left when the outer two have left. What `between` returns is kept
/// meanwhile.
fn left_by<R>(
    mirror: &Mirror,
    is_free: impl FnMut(&Range<u64>) -> bool,
    between: impl FnOnce() -> R,
) -> i64 {
    put(mirror, 3..4, 1);
    put(mirror, 6..7, 1);
    put(mirror, 9..10, 1);
    let kept = between();
    let leaving = mirror.leave(vec![3..4, 9..10], is_free);
    leaving.take_out_of_maps();
    drop(kept);
    let left = blocks(mirror) / 8;
    mirror.punch(0..20);
    left
}

#[test]
fn places_leave_as_one_unless_another_is_between() {
    let mirror = mirror(1 << 20);
    assert_eq!(left_by(&mirror, |_| true, || ()), 0, "all at once");
    let others = || left_by(&mirror, |gap| !gap.contains(&6), || ());
    assert_eq!(others(), 1);
    assert_eq!(mutant::with(Some(Mutant::JoinsOverOthers), others), 0);
    // A page that is being lent is in no index yet.
    mirror.punch(6..7);
    let lent = || left_by(&mirror, |_| true, || mirror.claim(5..8).unwrap());
    assert_eq!(lent(), 1);
    assert_eq!(mutant::with(Some(Mutant::JoinsOverOthers), lent), 0);
    assert!(mirror.owned.lock().all.is_empty());
}

/// Whether `settle` returns within that time, while the place is claimed.
fn settles(pages: Range<u64>, within: std::time::Duration) -> bool {
    let mirror = mirror(1 << 20);
    let claim = mirror.claim(4..8).unwrap();
    let (returned, returns) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let holder = scope.spawn(move || {
            let early = returns.recv_timeout(within).is_ok();
            drop(claim);
            early
        });
        mirror.settle(&pages);
        let _ = returned.send(()); // nobody listens who has waited long enough
        holder.join().unwrap()
    })
}

#[test]
fn who_drops_pages_waits_for_those_that_are_on_their_way() {
    use std::time::Duration;
    let (short, long) = (Duration::from_millis(30), Duration::from_secs(30));
    assert!(settles(8..100, long));
    assert!(!settles(7..9, short));
    assert!(mutant::with(Some(Mutant::SettlesAtOnce), || settles(7..9, long)));
}

#[test]
fn a_page_that_another_process_made_is_replaced() {
    let mirror = mirror(1 << 20);
    let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the system's choice replaces nothing.
    let stray = unsafe { mmap(std::ptr::null_mut(), 1 << 20, access, flags, mirror.fd(), 0) };
    let stray = stray.unwrap();
    for page in [3, 4] {
        // SAFETY: a byte of that mapping, which is not registered.
        let byte = unsafe { stray.cast::<u8>().wrapping_add(page * PAGE_BYTES).read_volatile() };
        assert_eq!(byte, 0);
    }
    assert_eq!(blocks(&mirror), 2 * 8);
    put(&mirror, 2..5, 7);
    for page in 2..5 {
        // SAFETY: the page is there.
        assert_eq!(unsafe { mirror.address(page).read() }, 7);
    }
    // SAFETY: the mapping made above, which nobody uses any more.
    unsafe { munmap(stray, 1 << 20) }.unwrap();
}

/// What becomes of a folio whose whole place has pages of zeros of another process.
fn put_among_strays() -> io::Result<u8> {
    let mirror = mirror(1 << 20);
    let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the system's choice replaces nothing.
    let stray = unsafe { mmap(std::ptr::null_mut(), 1 << 20, access, flags, mirror.fd(), 0) };
    let stray = stray.unwrap();
    for page in 0..64 {
        let at = stray.cast::<u8>().wrapping_add(page * PAGE_BYTES);
        // SAFETY: a byte of that mapping, which is not registered.
        assert_eq!(unsafe { at.read_volatile() }, 0);
    }
    let bytes = vec![7; 64 * PAGE_BYTES];
    // SAFETY: the bytes are this thread's.
    let put = unsafe { mirror.claim(0..64).unwrap().copy(bytes.as_ptr(), bytes.len(), None) };
    // SAFETY: as above.
    let byte = unsafe { stray.cast::<u8>().wrapping_add(63 * PAGE_BYTES).read_volatile() };
    // SAFETY: the mapping made above, which nobody uses any more.
    unsafe { munmap(stray, 1 << 20) }.unwrap();
    put.map(|()| byte)
}

#[test]
fn any_number_of_pages_that_another_process_made_is_replaced() {
    assert_eq!(put_among_strays().unwrap(), 7);
    let caught = mutant::with(Some(Mutant::StraysOneByOne), put_among_strays);
    assert!(caught.is_err(), "the mutant does nothing");
}

#[test]
fn it_is_mapped_by_the_program_or_given_to_other_processes() {
    let mirror = mirror(4096);
    let maps = [mirror.map().unwrap(), mirror.map().unwrap()];
    assert!(!mirror.give_out());
    drop(maps);
    assert!(mirror.give_out() && mirror.give_out());
    assert!(mirror.map().is_none());
}

#[test]
fn who_waits_for_a_place_sleeps_until_that_one_is_free() {
    let mirror = mirror(1 << 20);
    let claim = mirror.claim(4..8).unwrap();
    mirror.wait_for_place(&(7..9), Duration::ZERO);
    let (is_free, id) = (std::sync::atomic::AtomicBool::new(false), std::sync::OnceLock::new());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            id.set(rustix::thread::gettid()).unwrap();
            mirror.wait_for_place(&(7..9), Duration::from_secs(60));
            is_free.load(Ordering::Relaxed) // stored before the place's mutex was taken
        });
        // The end of each 32nd claim wakes it: it looks again, and sleeps on.
        for _ in 0..BEDS * 8 {
            sleeps(*id.wait());
            drop(mirror.claim(0..1).unwrap());
        }
        sleeps(*id.wait());
        is_free.store(true, Ordering::Relaxed); // as above
        let since = Instant::now();
        drop(claim);
        assert!(waiter.join().unwrap());
        assert!(since.elapsed() < Duration::from_secs(50), "its time was up, and nobody woke it");
    });
}

/// Who wants to make the mirror longer waits as long as this is held.
pub(crate) fn hold_length(mirror: &Mirror) -> MutexGuard<'_, u64> {
    mirror.bytes.lock()
}

/// Waits until that thread sleeps.
pub(crate) fn sleeps(thread: rustix::thread::Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    // Ends: it has nothing to do but to sleep.
    loop {
        let stat = std::fs::read_to_string(&path).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        if rest.starts_with('S') {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn other_users_may_not_open_it() {
    let stat = rustix::fs::fstat(mirror(1 << 20).fd()).unwrap();
    assert_eq!(stat.st_mode & 0o7777, 0o400);
}

#[test]
fn it_grows_with_the_file() {
    let mirror = mirror(4096);
    mirror.grow(|| 1 << 20).unwrap();
    mirror.grow(|| 5000).unwrap();
    assert_eq!(*mirror.bytes.lock(), 1 << 20);
    put(&mirror, 255..256, 3);
    mirror.grow(|| LONGEST).unwrap();
    assert!(mirror.grow(|| LONGEST + 4096).is_err());
}

/// The longest file.
const LONGEST: u64 = (1 << 63) - 4096;

#[test]
fn it_takes_addresses_for_what_is_in_use() {
    const GIB: usize = 1 << 30;
    assert_eq!(mirror(4096).view.bytes(), GIB + Order::MAX.bytes());
    let mirror = mirror(LONGEST);
    let first = mirror.view.bytes();
    assert!(first <= 64 * GIB, "{first}");
    let ends = [(first as u64 >> PAGE_SHIFT) - 1, LONGEST / PAGE_BYTES as u64 - 1];
    for page in [0, ends[0], ends[0] + 1, (64 << 40) / PAGE_BYTES as u64, ends[1]] {
        mirror.reach(page).unwrap();
        put(&mirror, page..page + 1, 7);
        // SAFETY: the page is there.
        assert_eq!(unsafe { mirror.address(page).read() }, 7);
        assert_eq!(mirror.address(page).addr() % Order::MAX.bytes(), page as usize % 512 * 4096);
    }
    let bytes = mirror.view.bytes();
    assert!(bytes <= first + 12 * GIB, "{bytes}");
    mirror.reach(ends[1] - 9).unwrap();
    assert_eq!(mirror.view.bytes(), bytes);
}

/// How many pages were seen there with other bytes than those written, while memory that the
/// system has to bring first, as if it were swapped out, was written to them.
fn seen_with_other_bytes() -> usize {
    use std::sync::atomic::{AtomicU64, Ordering};
    const PAGES: u64 = 256;
    // Where the build is: a temporary directory may be in memory.
    let program = std::env::current_exe().unwrap();
    let file = tempfile::tempfile_in(program.parent().unwrap()).unwrap();
    let bytes = PAGES as usize * PAGE_BYTES;
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![7; bytes], 0).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let (access, shared) = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the system's choice replaces nothing.
    let from = unsafe { mmap(std::ptr::null_mut(), bytes, access, shared, &file, 0) }.unwrap();
    // SAFETY: that mapping.
    unsafe { madvise(from, bytes, Advice::Random) }.unwrap();
    let mirror = mirror(bytes as u64);
    let next = AtomicU64::new(0);
    let seen = std::thread::scope(|scope| {
        let (mirror, next) = (&mirror, &next);
        let watch = scope.spawn(move || {
            let mut seen = vec![false; PAGES as usize];
            // Ends: the writer comes to the end.
            while let page = next.load(Ordering::Acquire)
                && page < PAGES
            {
                let (at, mut there) = (mirror.address(page), 0);
                // SAFETY: the range is the view's, and the call writes one byte.
                let told = unsafe { libc::mincore(at.cast(), PAGE_BYTES, &raw mut there) };
                assert_eq!(told, 0);
                // SAFETY: the page is there.
                if there & 1 == 1 && unsafe { at.read_volatile() } != 7 {
                    seen[page as usize] = true;
                }
            }
            seen.into_iter().filter(|&seen| seen).count()
        });
        for page in 0..PAGES {
            next.store(page, Ordering::Release);
            let claim = mirror.claim(page..page + 1).unwrap();
            let from = from.cast::<u8>().wrapping_add(page as usize * PAGE_BYTES);
            // SAFETY: the page is mapped, and nobody changes the file.
            unsafe { claim.copy(from, PAGE_BYTES, None) }.unwrap();
        }
        next.store(PAGES, Ordering::Release);
        watch.join().unwrap()
    });
    // SAFETY: the mapping made above, which nobody uses any more.
    unsafe { munmap(from, bytes) }.unwrap();
    seen
}

#[test]
fn a_page_is_there_only_with_its_bytes() {
    assert_eq!(seen_with_other_bytes(), 0);
    // By chance; nearly always the first time.
    let by_write = || mutant::with(Some(Mutant::CopyByWrite), seen_with_other_bytes);
    assert!((0..100).any(|_| by_write() > 0), "write(2) shows no zeros here");
}
