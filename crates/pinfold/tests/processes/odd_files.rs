//! Files whose reads are late, never end, or fail in odd ways: what becomes of their readers, and
//! of the readers of other files.

use std::ffi::CString;
use std::future::Future;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::fuse::{Answer, Asked, OddFiles, byte_of};
use pinfold::{Cache, Changed, ErrorKind, File, FileOptions, Hint, Options};

/// Only there to end a test that hangs.
const LONG: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

fn cache() -> Cache {
    Cache::new(Options::new(32 * MIB)).unwrap()
}

/// Answers what `Cache::open` asks, as a device does, and nothing else.
fn open_and_hang(asked: &Asked) -> Answer {
    match asked.offset {
        0 => Answer::Bytes,
        1..512 => Answer::Error(libc::EINVAL),
        _ => Answer::Hold,
    }
}

/// Polls the future until it is ready. `None` if that takes too long.
fn ends<F: Future>(future: F) -> Option<F::Output> {
    let (mut future, since) = (pin!(future), Instant::now());
    let mut context = Context::from_waker(Waker::noop());
    // Ends: the future does, or there is no time left.
    while since.elapsed() < LONG {
        if let Poll::Ready(end) = future.as_mut().poll(&mut context) {
            return Some(end);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    None
}

type Waits<'f> = Pin<Box<dyn Future<Output = ()> + 'f>>;

/// Futures of so many pages of the file, which have asked for them.
fn futures(file: &File, pages: u64) -> Vec<Waits<'_>> {
    let mut context = Context::from_waker(Waker::noop());
    let begin = |n| {
        let page = 1 + n * 20;
        let mut waits: Waits<'_> = Box::pin(async move {
            file.get_async(page).await.unwrap();
        });
        assert!(waits.as_mut().poll(&mut context).is_pending());
        waits
    };
    (0..pages).map(begin).collect()
}

/// While all of `hanging` hang, with so many reads at `least`, futures of `local`, whose bytes are
/// 7, end; so do the drops of the file, and of the cache.
fn hangs_alone(odd: &OddFiles, hanging: &[PathBuf], local: &Path, least: usize) {
    let cache = cache();
    let files: Vec<_> = hanging.iter().map(|path| cache.open(path).unwrap()).collect();
    let expected = odd.asked().len() + least;
    let local = cache.open(local).unwrap();
    for file in &files {
        file.advise(0..1, Hint::Random).unwrap();
    }
    let mut waiting: Vec<_> = files.iter().map(|file| futures(file, 200)).collect();
    let since = Instant::now();
    // Ends: so many reads have come, or there is no time left.
    while odd.asked().len() < expected && since.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(1));
    }
    let read = |page: u64| ends(local.get_async(page)).map(|got| got.unwrap()[0]);
    let read: Vec<_> = (0..10).map(|n| read(n * 25)).collect();
    let hung = read.contains(&None);
    if !hung {
        waiting.clear();
    }
    drop(local);
    if hung {
        odd.answer(|_| Answer::Bytes);
        odd.let_go();
    }
    drop(waiting);
    drop((files, cache)); // waits for none that hangs
    assert_eq!(read, [Some(7); 10]);
}

fn file_of_sevens(directory: &Path) -> PathBuf {
    let path = directory.join("local");
    std::fs::write(&path, vec![7; MIB as usize]).unwrap();
    path
}

#[test]
fn a_file_of_a_program_is_read() {
    let Some(odd) = OddFiles::mount(&[MIB], |_| Answer::Bytes) else { return };
    let cache = cache();
    let file = cache.open(odd.path(0)).unwrap();
    let mut buf = vec![0; 100_000];
    file.read_at(&mut buf, 5000).unwrap();
    for (n, byte) in buf.iter().enumerate() {
        assert_eq!(*byte, byte_of(0, 5000 + n as u64));
    }
    odd.answer(|_| Answer::Error(libc::EIO));
    let error = file.read_at(&mut buf, 500_000).unwrap_err();
    assert!(error.to_string().contains("Input/output error"), "{error}");
    drop((file, cache));
}

#[test]
fn files_that_hang_keep_no_future_of_another_waiting() {
    for hanging in [1, 4] {
        let Some(odd) = OddFiles::mount(&vec![64 * MIB; hanging], open_and_hang) else { return };
        let directory = tempfile::tempdir().unwrap();
        let local = file_of_sevens(directory.path());
        let hanging: Vec<_> = (0..hanging).map(|n| odd.path(n)).collect();
        hangs_alone(&odd, &hanging, &local, hanging.len());
    }
}

/// All bytes of the file from `offset` on, as `read_at` returns them, are right.
fn check(file: &File, offset: u64, bytes: usize) {
    let mut buf = vec![0; bytes];
    file.read_at(&mut buf, offset).unwrap();
    let wrong = (offset..).zip(&buf).find(|(at, byte)| byte_of(0, *at) != **byte);
    assert_eq!(wrong, None);
}

fn kind(cache: &Cache) -> String {
    cache.sources()[0].1.kind.clone()
}

/// Direct reads are refused: all, or large ones, or later than at the open.
#[test]
fn a_file_whose_direct_reads_are_refused_is_read_through_the_kernel() {
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL] {
        let refuses =
            move |asked: &Asked| if asked.direct { Answer::Error(errno) } else { Answer::Bytes };
        let Some(odd) = OddFiles::mount(&[4 * MIB], refuses) else { return };
        let at_open = cache();
        let file = at_open.open(odd.path(0)).unwrap();
        check(&file, 0, 100_000);
        assert_eq!(kind(&at_open), "buffered");

        odd.answer(move |asked| {
            let refused = asked.direct && asked.bytes > 65_536;
            if refused { Answer::Error(errno) } else { Answer::Bytes }
        });
        let later = cache();
        let file = later.open(odd.path(0)).unwrap();
        check(&file, 0, 4000);
        assert!(kind(&later).starts_with("direct"), "{}", kind(&later));
        check(&file, MIB, 200_000);
        assert!(kind(&later).starts_with("buffered (direct I/O was refused: "), "{}", kind(&later));
        // Futures, batches and pins, too.
        assert_eq!(ends(file.get_async(600)).unwrap().unwrap()[5], byte_of(0, 600 * 4096 + 5));
        assert_eq!(file.pin(3 * MIB..3 * MIB + 5).unwrap().extents().count(), 1);
        let strict = FileOptions { direct: Some(true), ..FileOptions::default() };
        let error = later.open_with(odd.path(0), strict).unwrap_err().to_string();
        assert!(error.contains("for direct I/O: it is open already, buffered"), "{error}");
        drop((file, at_open, later));

        let strict_cache = cache();
        let file = strict_cache.open_with(odd.path(0), strict).unwrap();
        let error = file.read_at(&mut vec![0; 200_000], MIB).unwrap_err().to_string();
        assert!(
            error.contains("the file was opened for direct I/O alone, which was refused"),
            "{error}"
        );
        drop((file, strict_cache));
    }
}

/// A file whose reads end with `EAGAIN`, `EOPNOTSUPP` or `EINTR` for ever is an error by every way
/// in, after a bounded number of tries.
#[test]
fn what_is_to_be_tried_again_for_ever_is_an_error() {
    for errno in [libc::EAGAIN, libc::EOPNOTSUPP, libc::EINTR] {
        let Some(odd) = OddFiles::mount(&[4 * MIB], |_| Answer::Bytes) else { return };
        let cache = cache();
        let file = cache.open(odd.path(0)).unwrap();
        let reader = cache.reader().unwrap();
        odd.answer(move |_| Answer::Error(errno));
        let fails = |way: &str, error: pinfold::Error| {
            assert_eq!(error.kind(), ErrorKind::Read, "{way}: {error}");
        };
        let before = odd.asked().len();
        fails("read_at", file.read_at(&mut [0; 10], MIB).unwrap_err());
        fails("get", file.get(300).unwrap_err());
        fails("borrow", file.borrow(301, &reader).unwrap_err());
        fails("pin", file.pin(MIB..MIB + 5).unwrap_err());
        fails("get_many", file.get_many(&[400, 500, 600]).unwrap_err());
        fails("get_async", ends(file.get_async(700)).unwrap().unwrap_err());
        file.prefetch(&[800, 900]).unwrap();
        let since = Instant::now();
        // Ends: the prefetches fail.
        while cache.stats().fill_errors < 8 && since.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(1));
        }
        let asked = odd.asked().len() - before;
        assert!(asked < 9 * 3 * 64, "{asked} reads");
        drop((reader, file, cache));
    }
}

/// After an invalidation, bytes that the kernel has cached are read from the file system again.
#[test]
fn an_invalidation_drops_what_the_kernel_has_cached() {
    let Some(odd) = OddFiles::mount(&[MIB], |_| Answer::Bytes) else { return };
    let cache = cache();
    let buffered = FileOptions { direct: Some(false), ..FileOptions::default() };
    let file = cache.open_with(odd.path(0), buffered).unwrap();
    for range in [0..u64::from(u32::MAX), 0..i64::MAX as u64, 8192..8193] {
        check(&file, 8192, 10);
        let before = odd.asked().len();
        file.invalidate(range).unwrap();
        check(&file, 8192, 10);
        assert!(odd.asked().len() > before, "the kernel's cached page was read");
    }
    drop((file, cache));
}

/// The end of a file that grows is not read directly: that would write out what was just appended.
/// Its times change first.
#[test]
fn an_append_that_is_under_way_is_no_rewriting() {
    let Some(odd) = OddFiles::mount(&[MIB + 100], |_| Answer::Bytes) else { return };
    let cache = cache();
    let file = cache.open(odd.path(0)).unwrap();
    for more in 1..4 {
        check(&file, 0, file.len() as usize);
        odd.set_len_after(4, 0, MIB + 100 + more);
        assert_eq!(file.refresh().unwrap(), Changed::Grown);
        assert_eq!(file.len(), MIB + 100 + more);
    }
    // What does not grow after all is written.
    assert_eq!(file.refresh().unwrap(), Changed::Rewritten);
}

#[test]
fn the_end_of_a_file_that_grows_is_read_through_the_kernel() {
    let Some(odd) = OddFiles::mount(&[MIB + 100], |_| Answer::Bytes) else { return };
    let cache = cache();
    let file = cache.open(odd.path(0)).unwrap();
    check(&file, MIB, 100);
    for len in (MIB + 200..MIB + 20_000).step_by(999) {
        odd.set_len(0, len);
        let before = odd.asked().len();
        file.refresh().unwrap();
        assert_eq!(file.len(), len);
        check(&file, len - 500, 500);
        let direct: Vec<_> = odd.asked()[before..].iter().filter(|it| it.direct).copied().collect();
        assert_eq!(direct, []);
    }
    let before = odd.asked().len();
    check(&file, 0, 4096);
    assert!(odd.asked()[before..].iter().all(|it| it.direct), "what is not the end");
    drop((file, cache));
}

/// Prints what it takes to append 100 bytes to a log, and to read them; and what the device has
/// written meanwhile, for whomever.
#[test]
#[ignore = "it prints figures, and compares nothing"]
fn what_an_append_and_its_read_take() {
    const APPENDS: u32 = 2000;
    let directory = tempfile::tempdir().unwrap();
    for direct in [None, Some(true), Some(false)] {
        let path = directory.path().join(format!("{direct:?}"));
        std::fs::write(&path, vec![1; 1_000_050]).unwrap();
        let mut log = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        let cache = cache();
        let Ok(file) = cache.open_with(&path, FileOptions { direct, ..FileOptions::default() })
        else {
            continue;
        };
        let (mut buf, mut at) = ([0; 100], file.len());
        let (before, since) = (written_sectors(&path), Instant::now());
        for _ in 0..APPENDS {
            log.write_all(&[2; 100]).unwrap();
            file.refresh().unwrap();
            assert_eq!((file.read_at(&mut buf, at).unwrap(), buf), (100, [2; 100]));
            at += 100;
        }
        let us = since.elapsed().as_secs_f64() * 1e6 / f64::from(APPENDS);
        let written = (written_sectors(&path) - before) * 512 / u64::from(APPENDS);
        println!("{direct:?}: {us:.1} us and {written} bytes written an append");
    }
}

/// Sectors of 512 bytes that the device of the file has written so far; 0 if it is not known.
fn written_sectors(path: &Path) -> u64 {
    let device = std::fs::metadata(path).unwrap().dev();
    let stat = format!("/sys/dev/block/{}:{}/stat", libc::major(device), libc::minor(device));
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    stat.split_whitespace().nth(6).and_then(|sectors| sectors.parse().ok()).unwrap_or(0)
}

/// An overlay, with folders for what it needs.
struct Overlay {
    merged: PathBuf,
    directory: tempfile::TempDir,
}

impl Overlay {
    /// Of `lower`, and a folder of its own. `None`, said aloud, where that is not possible.
    fn of(lower: &Path) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let at = |name| directory.path().join(name);
        let [upper, work, merged] = ["upper", "work", "merged"].map(at);
        for folder in [&upper, &work, &merged] {
            std::fs::create_dir(folder).unwrap();
        }
        let told = |path: &Path| path.to_str().unwrap().to_owned();
        let options = [&told(lower), &told(&upper), &told(&work)];
        let options =
            format!("lowerdir={},upperdir={},workdir={}", options[0], options[1], options[2]);
        let text = |text: &str| CString::new(text).unwrap();
        let (kind, target, options) = (text("overlay"), text(&told(&merged)), text(&options));
        // SAFETY: the texts outlive the call.
        let done = unsafe {
            libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
        };
        if done != 0 {
            eprintln!("not tested: no overlay: {}", std::io::Error::last_os_error());
            return None;
        }
        Some(Overlay { merged, directory })
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let merged = CString::new(self.merged.to_str().unwrap()).unwrap();
        // SAFETY: the text outlives the call.
        let done = unsafe { libc::umount2(merged.as_ptr(), libc::MNT_DETACH) };
        assert_eq!(done, 0, "{} of {:?}", std::io::Error::last_os_error(), self.directory);
    }
}

/// An overlay's reads may wait as they begin. So do those of a file that does not hang.
#[test]
fn a_file_that_hangs_under_an_overlay_keeps_no_future_of_another_waiting() {
    let Some(odd) = OddFiles::mount(&[64 * MIB], open_and_hang) else { return };
    let Some(overlay) = Overlay::of(odd.path(0).parent().unwrap()) else { return };
    let local = file_of_sevens(&overlay.merged);
    hangs_alone(&odd, &[overlay.merged.join("0")], &local, 64);
}
