//! Bad input: each error names its cause, and the cache works on.

use std::borrow::Cow;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use pinfold::source::{Memory, Source};
use pinfold::{
    Borrowed, Cache, Error, ErrorKind, File, FileOptions, FolioRef, Hint, Optimistic, Options,
    PinnedRange, Reader,
};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::told::{number_after, number_before};

const BUDGET_MIN_BYTES: u64 = *pinfold::Options::BUDGET_BYTES.start();
const BUDGET_MAX_BYTES: u64 = *pinfold::Options::BUDGET_BYTES.end();

use crate::again::again;

const MIB: u64 = 1 << 20;

fn cache() -> Cache {
    Cache::new(Options::new(8 * MIB)).unwrap()
}

/// On the file system of the build, where direct I/O works.
fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn refused(path: &Path) -> String {
    cache().open(path).expect_err("it cannot be opened").to_string()
}

/// The cache still reads what is right.
fn lives_on(cache: &Cache) {
    let pattern = Pattern::new(77, 0);
    let memory = Memory::new(pattern.to_vec(10_000));
    let file = cache.attach("another", Arc::new(memory)).unwrap();
    let mut buf = [0; 10_000];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 10_000);
    pattern.check(0, &buf).unwrap();
}

// ---- what cannot be opened ----

#[test]
fn a_directory_is_called_one() {
    let dir = dir();
    let expected = format!(
        "cannot open {}: it is a directory, not a file or a block device",
        dir.path().display()
    );
    assert_eq!(refused(dir.path()), expected);
}

#[test]
fn a_pipe_is_called_one_and_does_not_make_it_wait() {
    let dir = dir();
    let path = dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let expected =
        format!("cannot open {}: it is a pipe, not a file or a block device", path.display());
    assert_eq!(refused(&path), expected);
}

#[test]
fn a_socket_is_called_one() {
    // The path of a socket is at most 107 bytes long, which the build's directory may exceed.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let expected =
        format!("cannot open {}: it is a socket, not a file or a block device", path.display());
    assert_eq!(refused(&path), expected);
}

#[test]
fn a_character_device_is_called_one() {
    assert_eq!(
        refused(Path::new("/dev/zero")),
        "cannot open /dev/zero: it is a character device, not a file or a block device"
    );
}

/// What has a length, and content of another, looks empty or cut short.
#[test]
fn a_file_that_is_made_when_it_is_read_is_refused_with_what_to_do_instead() {
    // Of no length; of one that is not its own; and one whose reader waits for the kernel to speak.
    for (path, told) in [
        ("/proc/self/status", 0),
        ("/sys/kernel/mm/transparent_hugepage/enabled", 4096),
        ("/proc/kmsg", 0),
        ("/proc/self/cgroup", 0),
    ] {
        if let Err(why) = std::fs::File::open(path) {
            assert_ne!(path, "/proc/self/status", "{why}");
            eprintln!("not tested: {path}: {why}");
            continue;
        }
        let expected = format!(
            "cannot open {path}: its file system makes its content when it is read, and does not \
             know the length (it reports {told} bytes); read it with std::fs::read instead"
        );
        for direct in [None, Some(true), Some(false)] {
            let options = FileOptions { direct, ..FileOptions::default() };
            let error = cache().open_with(path, options).unwrap_err();
            assert_eq!((error.kind(), error.to_string()), (ErrorKind::Open, expected.clone()));
        }
    }
    // What it says to do.
    let content = std::fs::read("/proc/self/status").unwrap();
    let file = cache().attach("status", Arc::new(Memory::new(content))).unwrap();
    assert_eq!(&file.get(0).unwrap()[..5], b"Name:");
}

/// What only lies where such files do may have a length all the same.
#[test]
fn a_file_of_sysfs_that_has_the_length_it_reports_is_read() {
    let path = "/sys/kernel/notes";
    let Ok(content) = std::fs::read(path) else {
        eprintln!("not tested: no {path}");
        return;
    };
    assert!(!content.is_empty());
    let file = cache().open(path).unwrap();
    assert_eq!(file.len(), content.len() as u64);
    assert_eq!(*file.get(0).unwrap(), content[..content.len().min(4096)]);
}

#[test]
fn an_empty_file_is_legal_and_may_grow() {
    let dir = dir();
    let path = dir.path().join("empty");
    std::fs::write(&path, "").unwrap();
    for direct in [None, Some(false)] {
        let cache = cache();
        let file =
            cache.open_with(&path, FileOptions { direct, ..FileOptions::default() }).unwrap();
        assert_eq!((file.len(), file.read_at(&mut [0; 8], 0).unwrap()), (0, 0));
        let error = file.get(0).unwrap_err().to_string();
        assert_eq!(error, format!("no page 0 in {}: it has 0 bytes", path.display()));
        std::fs::write(&path, "more").unwrap();
        file.invalidate(0..0).unwrap();
        assert_eq!(*file.get(0).unwrap(), *b"more");
        std::fs::write(&path, "").unwrap();
    }
}

/// Opened by another program at that moment, a file may be written to between two checks of it.
#[test]
fn a_file_that_grows_from_nothing_while_it_is_opened_is_no_made_up_one() {
    let dir = dir();
    let path = dir.path().join("log");
    let cache = cache();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::fs::write(&path, "").unwrap();
                std::fs::write(&path, "line\n").unwrap();
                std::fs::remove_file(&path).unwrap();
            }
        });
        for _ in 0..2000 {
            match cache.open(&path) {
                Ok(file) => assert!(file.len() <= 5),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("No such file"), "{text}");
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_missing_file_is_named_with_the_cause() {
    assert_eq!(
        refused(Path::new("/no/such/file")),
        "cannot open /no/such/file: No such file or directory (os error 2)"
    );
}

#[test]
fn a_path_through_a_file_is_named_with_the_cause() {
    let dir = dir();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let path = file.join("below");
    assert_eq!(
        refused(&path),
        format!("cannot open {}: Not a directory (os error 20)", path.display())
    );
}

#[test]
fn no_permission_is_named_with_the_cause() {
    let dir = dir();
    let path = dir.path().join("secret");
    std::fs::write(&path, "x").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(&path).is_ok() {
        // The superuser may read everything: the same way of failing is seen in the test above.
        return;
    }
    assert_eq!(
        refused(&path),
        format!("cannot open {}: Permission denied (os error 13)", path.display())
    );
}

#[test]
fn direct_io_that_cannot_be_had_is_refused_with_the_reason() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "x").unwrap();
    let options = FileOptions { direct: Some(true), ..FileOptions::default() };
    assert_eq!(
        cache().open_with(&path, options).unwrap_err().to_string(),
        format!(
            "cannot open {} for direct I/O: its file system keeps it in memory",
            path.display()
        )
    );
    assert_eq!(cache().open(&path).unwrap().len(), 1, "it can be had otherwise");
}

#[test]
fn direct_io_is_refused_for_a_file_that_is_open_without_it() {
    let dir = dir();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![7; 10_000]).unwrap();
    let with = |direct| FileOptions { direct, ..FileOptions::default() };
    let cache = cache();
    let buffered = cache.open_with(&path, with(Some(false))).unwrap();
    assert_eq!(
        cache.open_with(&path, with(Some(true))).unwrap_err().to_string(),
        format!("cannot open {} for direct I/O: it is open already, buffered", path.display())
    );
    for other in [None, Some(false)] {
        assert_eq!(cache.open_with(&path, with(other)).unwrap().len(), 10_000);
    }
    drop(buffered);
    let direct = cache.open_with(&path, with(Some(true))).unwrap();
    let (_, source) = cache.sources().pop().unwrap();
    assert!(source.kind.starts_with("direct"), "{source:?}");
    let again = cache.open_with(&path, with(Some(true))).unwrap();
    drop((direct, again));
    lives_on(&cache);
}

// ---- budgets ----

#[test]
fn a_budget_too_small_names_the_smallest_that_works_and_that_one_works() {
    for asked in [0, 1, 4096, BUDGET_MIN_BYTES - 1] {
        assert_eq!(
            Cache::new(Options::new(asked)).unwrap_err().to_string(),
            format!(
                "a budget of {asked} bytes: it must be from {BUDGET_MIN_BYTES} to {BUDGET_MAX_BYTES}"
            )
        );
    }
    let cache = Cache::new(Options::new(BUDGET_MIN_BYTES)).unwrap();
    // More than fits, by several readers at once, in large and small pieces.
    let pattern = Pattern::new(5, 0);
    let bytes = 4 * BUDGET_MIN_BYTES as usize;
    let file = cache.attach("large", Arc::new(Memory::new(pattern.to_vec(bytes)))).unwrap();
    thread::scope(|scope| {
        for n in 0..4 {
            let file = file.clone();
            scope.spawn(move || {
                let mut buf = vec![0; 100_000 + n * 1000];
                for offset in (0..bytes).step_by(buf.len()) {
                    let got = file.read_at(&mut buf, offset as u64).unwrap();
                    assert_eq!(got, buf.len().min(bytes - offset));
                    pattern.check(offset as u64, &buf[..got]).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_budget_too_large_names_the_largest() {
    for asked in [BUDGET_MAX_BYTES + 1, u64::MAX] {
        let error = Cache::new(Options::new(asked)).unwrap_err();
        assert_eq!(number_after(&error, "a budget of "), asked);
        assert!(error.to_string().ends_with(&format!("to {BUDGET_MAX_BYTES}")), "{error}");
    }
}

// ---- offsets and lengths ----

/// Tells [`a_cache_whose_thread_cannot_start_says_so`] that no thread can start in its process.
const THREADLESS: &str = "PINFOLD_TEST_THREADLESS";

#[test]
fn a_cache_whose_thread_cannot_start_says_so() {
    if std::env::var_os(THREADLESS).is_some() {
        let error = Cache::new(Options::new(8 * MIB)).unwrap_err();
        print!("{}: {error}", error.kind());
        return;
    }
    // No stack is so large as it asks for here: no limit on threads holds for root.
    let output = again(module_path!(), "a_cache_whose_thread_cannot_start_says_so")
        .args(["--test-threads", "1"])
        .env(THREADLESS, "1")
        .env("RUST_MIN_STACK", (1_u64 << 50).to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("system: cannot start the thread pinfold-reclaim: "), "{text}");
}

/// The system's error number in the cause.
fn errno(error: &Error) -> Option<i32> {
    std::error::Error::source(error)?.downcast_ref::<io::Error>()?.raw_os_error()
}

fn file_of(bytes: usize) -> (Cache, File, Pattern) {
    let (cache, pattern) = (cache(), Pattern::new(9, 0));
    let file = cache.attach("file", Arc::new(Memory::new(pattern.to_vec(bytes)))).unwrap();
    (cache, file, pattern)
}

#[test]
fn reads_beyond_the_largest_offset_are_errors() {
    const LAST: u64 = i64::MAX as u64;
    let (cache, file, _) = file_of(10_000);
    for (offset, bytes) in [
        (u64::MAX, 1),
        (u64::MAX, 100_000),
        (u64::MAX - 63, 64),
        (LAST, 1),
        (LAST - 63, 64),
        (LAST + 1, 0),
    ] {
        let error = file.read_at(&mut vec![0; bytes], offset).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{bytes} bytes at {offset} of file end beyond the largest file offset, 2^63 - 1"
            )
        );
    }
    // As far as it goes, there is merely nothing.
    for (offset, bytes) in [(LAST, 0), (LAST - 64, 64), (LAST - 100_000, 100_000)] {
        assert_eq!(file.read_at(&mut vec![0; bytes], offset).unwrap(), 0, "{bytes} at {offset}");
    }
    lives_on(&cache);
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "bad input is what this is about")]
fn ranges_that_are_none_are_errors() {
    let (cache, file, pattern) = file_of(10_000);
    for range in [0..u64::MAX, u64::MAX..u64::MAX, 5..4, u64::MAX..0, 0..i64::MAX as u64 + 1] {
        for result in [
            file.invalidate(range.clone()).map(drop),
            file.advise(range.clone(), Hint::WillNeed),
            file.advise(range.clone(), Hint::DontNeed),
        ] {
            let text = result.unwrap_err().to_string();
            let std::ops::Range { start, end } = range;
            let expected = if start > end {
                format!("the range {start}..{end} of file ends before it begins")
            } else {
                let bytes = end - start;
                format!(
                    "{bytes} bytes at {start} of file end beyond the largest file offset, 2^63 - 1"
                )
            };
            assert_eq!(text, expected);
        }
        assert_eq!((file.split(range.clone()), file.migrate(range)), (0, 0));
    }
    file.advise(0..i64::MAX as u64, Hint::WillNeed).unwrap();
    file.invalidate(0..i64::MAX as u64).unwrap();
    let mut buf = vec![0; 10_000];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 10_000);
    pattern.check(0, &buf).unwrap();
    lives_on(&cache);
}

#[test]
fn reads_at_the_end_are_short_and_those_behind_it_empty() {
    for bytes in [0usize, 1, 4095, 4096, 4097, 10_000] {
        let (_cache, file, pattern) = file_of(bytes);
        assert_eq!(file.len(), bytes as u64);
        for offset in
            [0, bytes.saturating_sub(1), bytes, bytes + 1, bytes + 4096, bytes + (1 << 40)]
        {
            for asked in [0, 1, 64, 4096, 200_000] {
                let mut buf = vec![0xcc; asked];
                let got = file.read_at(&mut buf, offset as u64).unwrap();
                assert_eq!(got, asked.min(bytes.saturating_sub(offset)), "{asked} at {offset}");
                pattern.check(offset as u64, &buf[..got]).unwrap();
            }
        }
    }
}

// ---- lengths ----

/// The longest that a file may be.
const LEN_MAX: u64 = (1 << 63) - 4096;

/// Sevens, as long as it says at the moment.
#[derive(Debug)]
struct Sevens(AtomicU64);

impl Source for Sevens {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.len_bytes()?.saturating_sub(offset);
        let bytes = buf.len().min(usize::try_from(left).unwrap());
        buf[..bytes].fill(7);
        Ok(bytes)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.load(Ordering::Relaxed))
    }
    fn kind(&self) -> Cow<'static, str> {
        "sevens".into()
    }
}

fn sevens(len_bytes: u64) -> Arc<Sevens> {
    Arc::new(Sevens(AtomicU64::new(len_bytes)))
}

#[test]
fn a_file_longer_than_offsets_reach_is_refused_when_it_is_opened_and_when_it_has_grown() {
    let cache = cache();
    for len_bytes in [LEN_MAX + 1, i64::MAX as u64, 1 << 63, u64::MAX] {
        let refused = format!(
            "long has {len_bytes} bytes: a file can have 9223372036854771712 at most, the largest \
             file offset rounded down to a page"
        );
        assert_eq!(cache.attach("long", sevens(len_bytes)).unwrap_err().to_string(), refused);
        let source = sevens(LEN_MAX);
        let file = cache.attach("long", source.clone()).unwrap();
        source.0.store(len_bytes, Ordering::Relaxed);
        assert_eq!(file.invalidate(0..1).unwrap_err().to_string(), refused);
        assert_eq!(file.len(), LEN_MAX, "it keeps the length that it had");
        let mut buf = [0; 64];
        assert_eq!(file.read_at(&mut buf, LEN_MAX - 64).unwrap(), 64);
        assert_eq!(buf, [7; 64]);
    }
    lives_on(&cache);
}

/// A failed `unwrap` of a test or a program prints them.
#[test]
fn a_cache_and_a_file_are_debugged_in_a_line() {
    let (cache, file, _) = file_of(10_000);
    file.read_at(&mut [0; 8], 0).unwrap();
    let free_bytes = cache.stats().free_bytes;
    assert_eq!(
        format!("{cache:?}"),
        format!("Cache {{ budget_bytes: 8388608, free_bytes: {free_bytes}, files: 1, .. }}")
    );
    assert_eq!(format!("{file:?}"), "File { path: \"file\", len_bytes: 10000, .. }");
    let mut buf = [0; 8];
    let (get, read) = (file.get_async(1), file.read_at_async(&mut buf, 4096));
    let many = file.get_many_async(&[0, 1, 2]);
    for future in [format!("{get:?}"), format!("{read:?}"), format!("{many:?}")] {
        assert!(future.len() < 120, "{future}");
    }
}

/// Programs know errors by these: one that changes here breaks them.
#[test]
#[expect(clippy::reversed_empty_ranges, reason = "bad input is what this is about")]
fn kinds_have_words_that_stay() {
    let (cache, file, _) = file_of(10_000);
    let reader = Cache::new(Options::new(MIB)).unwrap().reader().unwrap();
    let errors = [
        (Cache::new(Options::new(1)).unwrap_err(), "invalid"),
        (cache.open("/no/such/file").unwrap_err(), "open"),
        (cache.attach("long", sevens(1 << 63)).unwrap_err(), "unsupported"),
        (file.read_at(&mut [0; 8], u64::MAX).unwrap_err(), "invalid"),
        (file.invalidate(9..3).unwrap_err(), "invalid"),
        (file.get(9).unwrap_err(), "beyond-end"),
        (file.borrow(0, &reader).unwrap_err(), "invalid"),
        (file.pin(5..5).unwrap_err(), "invalid"),
        (file.pin(5..10_001).unwrap_err(), "beyond-end"),
        (file.pin(0..4096).unwrap().copy_to(&mut [0; 8], 4095).unwrap_err(), "invalid"),
    ];
    for (error, word) in errors {
        assert_eq!(error.kind().to_string(), word, "{error}");
    }
    let not_opened = |path: &str| cache.open(path).unwrap_err().io_kind();
    assert_eq!(not_opened("/no/such/file"), io::ErrorKind::NotFound);
    assert_eq!(not_opened("/dev"), io::ErrorKind::IsADirectory);
    assert_eq!(not_opened("/dev/zero"), io::ErrorKind::Unsupported);
}

/// Whatever page or offset a program names: an error or the bytes, in files of any length; and no
/// frame is lost.
#[test]
fn any_page_and_any_offset_is_an_error_or_the_bytes() {
    let cache = cache();
    let reader = cache.reader().unwrap();
    for len_bytes in [LEN_MAX, LEN_MAX - 1, LEN_MAX - 4096, 1 << 62, 9_000, 0] {
        let file = cache.attach("long", sevens(len_bytes)).unwrap();
        let pages = len_bytes.div_ceil(4096);
        let near = |at: u64| (0..3).flat_map(move |n| [at.wrapping_add(n), at.wrapping_sub(n)]);
        for page in [0, pages, 1 << 51, 1 << 52, 1 << 63, u64::MAX].into_iter().flat_map(near) {
            let bytes = len_bytes.saturating_sub(page.saturating_mul(4096)).min(4096) as usize;
            let wanted = (page < pages).then(|| vec![7; bytes]);
            let found = |got: pinfold::Result<Vec<u8>>| match got {
                Ok(got) => assert_eq!(Some(got), wanted, "page {page} of {len_bytes} bytes"),
                Err(error) => {
                    assert_eq!((error.kind(), &wanted), (ErrorKind::BeyondEnd, &None));
                    let text = format!("no page {page} in long: it has {len_bytes} bytes");
                    assert_eq!(error.to_string(), text);
                }
            };
            found(file.get(page).map(|page| page.to_vec()));
            found(file.borrow(page, &reader).map(|page| page.to_vec()));
            found(file.optimistic(page).map(|page| {
                let mut bytes = vec![0; page.len()];
                page.read(0, &mut bytes);
                bytes
            }));
        }
        let offsets = [0, len_bytes, 1 << 62, LEN_MAX, 1 << 63, u64::MAX];
        let offsets: Vec<u64> = offsets.into_iter().flat_map(near).collect();
        for &start in &offsets {
            let mut buf = vec![0; 70_000];
            // One after the other: the last of them read ahead into the end.
            for at in (0..4).map(|n| start.saturating_add(n * 70_000)) {
                match file.read_at(&mut buf, at) {
                    Ok(got) => {
                        assert_eq!(got as u64, len_bytes.saturating_sub(at).min(70_000));
                        assert!(buf[..got].iter().all(|&byte| byte == 7));
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
                        assert!(at > i64::MAX as u64 - 70_000);
                    }
                }
            }
            for end in offsets.iter().copied().chain([start.saturating_add(9_000)]) {
                let range = start..end;
                let right = start <= end && i64::try_from(end).is_ok();
                for hint in [Hint::Sequential, Hint::WillNeed, Hint::DontNeed] {
                    assert_eq!(file.advise(range.clone(), hint).is_ok(), right, "{range:?}");
                }
                assert_eq!(file.invalidate(range.clone()).is_ok(), right, "{range:?}");
                match file.pin(range.clone()).as_ref().map_err(Error::kind) {
                    Ok(pinned) => assert!(pinned.range() == range && end <= len_bytes),
                    Err(ErrorKind::Invalid) => assert!(start >= end),
                    Err(ErrorKind::BeyondEnd) => assert!(start < end && end > len_bytes),
                    Err(ErrorKind::TooLarge) => assert!(start < end && end <= len_bytes),
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        file.invalidate(0..i64::MAX as u64).unwrap();
    }
    // Ends: a read ahead takes no time.
    while cache.stats().fills_in_flight > 0 {
        std::thread::yield_now();
    }
    let stats = cache.stats();
    assert_eq!((stats.resident_bytes, stats.pinned_bytes), (0, 0), "frames are lost");
    lives_on(&cache);
}

// ---- sources that fail ----

fn faulty(bytes: usize) -> (Cache, File, Arc<Faulty>, Pattern) {
    let (cache, pattern) = (cache(), Pattern::new(11, 0));
    let faulty = Arc::new(Faulty::new(Arc::new(Memory::new(pattern.to_vec(bytes)))));
    let file = cache.attach("a device", faulty.clone()).unwrap();
    (cache, file, faulty, pattern)
}

fn rule(when: When, fault: Fault) -> Rule {
    Rule { operation: Operation::Read, when, fault }
}

#[test]
fn a_device_error_is_told_to_all_who_wait_and_is_not_kept() {
    const READERS: usize = 8;
    let (cache, file, source, pattern) = faulty(100_000);
    source.add(rule(When::Always, Fault::Delay(Duration::from_millis(300))));
    source.add(rule(When::Always, Fault::Error(5)));
    let together = Barrier::new(READERS);
    let errors: Vec<Error> = thread::scope(|scope| {
        let read = || {
            together.wait();
            file.read_at(&mut [0; 64], 8192 + 128).unwrap_err()
        };
        let threads: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
        assert_eq!(errno(error), Some(5), "the source's own: {error:?}");
        assert_eq!(
            error.to_string(),
            "cannot read a device at 8192 (4096 bytes wanted): Input/output error (os error 5)"
        );
    }
    let calls = source.counts().reads;
    assert!(calls < READERS as u64, "they waited for each other: {calls} calls");
    let stats = cache.stats();
    assert!(stats.waits > 0 && stats.fill_errors > 0, "{stats:?}");
    assert_eq!(stats.fills_in_flight, 0);

    // Not kept: the next one asks again, fails again, and once it is healed gets the bytes.
    file.read_at(&mut [0; 64], 8192).unwrap_err();
    assert!(source.counts().reads > calls);
    source.heal();
    let mut buf = vec![0; 100_000];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 100_000);
    pattern.check(0, &buf).unwrap();
    lives_on(&cache);
}

#[test]
fn an_error_in_the_middle_of_a_read_spoils_only_that_place() {
    let (_cache, file, source, pattern) = faulty(1 << 20);
    file.advise(0..1 << 20, Hint::Random).unwrap();
    source.add(rule(When::Range(500_000..500_001), Fault::Error(5)));
    let mut buf = vec![0; 1 << 20];
    let error = file.read_at(&mut buf, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
    let offset = number_after(&error, "cannot read a device at ");
    assert!(offset <= 500_000, "{offset}");
    for at in [0, 1000, 900_000] {
        assert_eq!(file.read_at(&mut buf[..64], at).unwrap(), 64, "at {at}");
        pattern.check(at, &buf[..64]).unwrap();
    }
    let error = file.read_at(&mut buf[..1], 500_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
}

/// Tells its length once, and then no more.
#[derive(Debug)]
struct Endless(AtomicBool);

impl Source for Endless {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        let told = self.0.swap(true, Ordering::Relaxed);
        if told { Err(io::Error::from_raw_os_error(116)) } else { Ok(4096) }
    }
    fn kind(&self) -> Cow<'static, str> {
        "endless".into()
    }
}

#[test]
fn a_source_that_cannot_tell_its_length_is_named_with_the_cause() {
    let (cache, source) = (cache(), Arc::new(Endless(AtomicBool::new(false))));
    let file = cache.attach("a share", source.clone()).unwrap();
    for error in [file.invalidate(0..1).unwrap_err(), cache.attach("a share", source).unwrap_err()]
    {
        assert_eq!((error.kind(), errno(&error)), (ErrorKind::Read, Some(116)));
        let text = error.to_string();
        assert!(text.starts_with("cannot tell the length of a share: Stale file handle"), "{text}");
    }
    assert_eq!(file.read_at(&mut [0; 64], 0).unwrap(), 64, "the length that it had still holds");
    lives_on(&cache);
}

#[test]
fn a_source_that_tells_too_much_is_not_believed() {
    let (cache, file, source, pattern) = faulty(10_000);
    source.add(rule(When::Always, Fault::Overlong(7)));
    let text = file.read_at(&mut [0; 64], 0).unwrap_err().to_string();
    assert!(text.contains("cannot read a device at 0 (4096 bytes wanted):"), "{text}");
    assert!(text.contains("bytes where") && text.contains("were asked for"), "{text}");
    source.heal();
    let mut buf = [0; 64];
    file.read_at(&mut buf, 0).unwrap();
    pattern.check(0, &buf).unwrap();
    lives_on(&cache);
}

/// A file of `bytes` that is cut to `keep` once its first page is cached.
fn cut_short(file: &File, pattern: Pattern, cut: impl FnOnce(), heal: impl FnOnce()) {
    file.advise(0..1 << 20, Hint::Random).unwrap();
    let mut buf = vec![0; 64];
    file.read_at(&mut buf, 128).unwrap();
    cut();
    // What is cached is still there; what is not cannot be.
    file.read_at(&mut buf, 128).unwrap();
    pattern.check(128, &buf).unwrap();
    let error = file.read_at(&mut buf, 60_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated, "{error:?}");
    let text = error.to_string();
    assert!(
        text.starts_with("cannot read ") && text.contains(": the file was cut short"),
        "{text}"
    );
    assert!(text.contains("it had 100000 bytes"), "{text}");
    assert!(file.read_at(&mut buf, 60_000).is_err(), "and again");
    // So are bytes that still exist, in the page that has the end.
    let error = file.read_at(&mut buf[..10], 4990).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated, "{error:?}");

    // After `invalidate` the cache has the new length.
    file.invalidate(0..0).unwrap();
    assert_eq!(file.len(), 5000);
    assert_eq!(file.read_at(&mut buf, 60_000).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 4990).unwrap(), 10);
    pattern.check(4990, &buf[..10]).unwrap();

    heal();
    file.invalidate(0..0).unwrap();
    assert_eq!(file.len(), 100_000);
    let mut buf = vec![0; 100_000];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 100_000);
    pattern.check(0, &buf).unwrap();
}

#[test]
fn a_source_cut_short_by_somebody_else_is_told_where() {
    let (cache, pattern) = (cache(), Pattern::new(13, 0));
    let all = pattern.to_vec(100_000);
    let memory = Arc::new(Memory::new(all.clone()));
    let file = cache.attach("a source", memory.clone()).unwrap();
    let heal = || memory.write_at(5000, &all[5000..]).unwrap();
    cut_short(&file, pattern, || memory.set_len(5000).unwrap(), heal);
    lives_on(&cache);
}

#[test]
fn a_real_file_cut_short_by_somebody_else_is_told_where() {
    for direct in [None, Some(false)] {
        let (cache, pattern, dir) = (cache(), Pattern::new(13, 0), dir());
        let all = pattern.to_vec(100_000);
        let path = dir.path().join("file");
        std::fs::write(&path, &all).unwrap();
        let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let options = FileOptions { direct, ..FileOptions::default() };
        let file = cache.open_with(&path, options).unwrap();
        let heal = || other.write_all_at(&all[5000..], 5000).unwrap();
        cut_short(&file, pattern, || other.set_len(5000).unwrap(), heal);
        lives_on(&cache);
    }
}

// ---- no memory ----

/// Of a slow source more is read at once than the budget has room for: all wait, and get it. Held
/// by guards it is an error that says so, and no hang; all is well afterwards.
#[test]
fn a_budget_full_of_what_cannot_be_evicted_is_an_error_and_no_hang() {
    const READERS: u64 = 400;
    let cache =
        Cache::new(Options { readahead_max_bytes: 0, ..Options::new(BUDGET_MIN_BYTES) }).unwrap();
    let pattern = Pattern::new(17, 0);
    let bytes = 16 * BUDGET_MIN_BYTES;
    let source = Arc::new(Faulty::new(Arc::new(Memory::new(pattern.to_vec(bytes as usize)))));
    let file = cache.attach("slow", source.clone()).unwrap();
    file.advise(0..bytes, Hint::Random).unwrap();
    source.add(rule(When::Always, Fault::Delay(Duration::from_millis(100))));
    thread::scope(|scope| {
        for n in 0..READERS {
            let file = &file;
            let read = move || {
                let (mut buf, offset) = ([0; 64], n * 8192);
                assert_eq!(file.read_at(&mut buf, offset).unwrap(), 64);
                pattern.check(offset, &buf).unwrap();
            };
            thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, read).unwrap();
        }
    });
    source.heal();
    let mut held = Vec::new();
    let error = loop {
        assert!(held.len() < READERS as usize, "400 pages do not fit into a budget of 256");
        match file.get(2 * held.len() as u64) {
            Ok(guard) => held.push(guard),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
    assert!(number_before(&error, " held by readers") > BUDGET_MIN_BYTES / 2, "{error}");
    let text = error.to_string();
    let offset = 8192 * held.len();
    let begin = format!(
        "no memory for 4096 bytes of slow at {offset} in a budget of 1048576: 0 are pinned"
    );
    assert!(text.starts_with(&begin), "{text}");
    assert!(text.contains("held by readers"), "{text}");
    drop(held);
    let mut buf = [0; 64];
    for offset in (0..bytes).step_by(65_536) {
        assert_eq!(file.read_at(&mut buf, offset).unwrap(), 64);
        pattern.check(offset, &buf).unwrap();
    }
    lives_on(&cache);
}

// ---- panics of the caller ----

/// What `catch_unwind` asks of what its closure moves and shares.
const fn crosses_panics<T: UnwindSafe + RefUnwindSafe>() {}

const _: () = {
    crosses_panics::<Cache>();
    crosses_panics::<File>();
    crosses_panics::<FolioRef<'_>>();
    crosses_panics::<PinnedRange>();
    crosses_panics::<Reader>();
    crosses_panics::<Borrowed<'_, '_>>();
    crosses_panics::<Optimistic<'_>>();
};

/// A source that panics while it is told to.
#[derive(Debug)]
struct Panics(AtomicBool, Memory);

impl Source for Panics {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        assert!(!self.0.load(Ordering::Relaxed), "told to");
        self.1.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.1.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "panics".into()
    }
}

/// A caller panics with a guard of each kind alive, and a source in the middle of a read.
#[test]
fn after_a_panic_that_was_caught_all_is_as_before() {
    let (cache, pattern) = (cache(), Pattern::new(18, 0));
    let source = Arc::new(Panics(false.into(), Memory::new(pattern.to_vec(100_000))));
    let file = cache.attach("panics", source.clone()).unwrap();
    let reader = cache.reader().unwrap();
    let panic = catch_unwind(|| {
        let borrowed = file.borrow(0, &reader).unwrap();
        let folio = file.get(1).unwrap();
        let pinned = file.pin(40_000..60_000).unwrap();
        let copy = (cache.clone(), file.clone());
        panic!("{} of {copy:?}", borrowed.len() + folio.len() + pinned.range().count())
    });
    let panic = panic.unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().starts_with("28192 of"));
    assert_eq!(cache.stats().pinned_bytes, 0);
    // Ends: a read ahead takes no time.
    while cache.stats().fills_in_flight > 0 {
        thread::yield_now();
    }
    // Nothing holds any of it: all of it is dropped and given back.
    file.invalidate(0..100_000).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.resident_bytes, stats.deferred_bytes), (0, 0), "{stats:?}");
    source.0.store(true, Ordering::Relaxed);
    let read = catch_unwind(|| file.read_at(&mut [0; 64], 0)).expect("the panic was the source's");
    assert!(matches!(&read, Err(error) if error.kind() == ErrorKind::Read), "{read:?}");
    source.0.store(false, Ordering::Relaxed);
    let mut buf = vec![0; 100_000];
    assert_eq!(
        catch_unwind(AssertUnwindSafe(|| file.read_at(&mut buf, 0))).unwrap().unwrap(),
        100_000
    );
    pattern.check(0, &buf).unwrap();
    pattern.check(0, &file.borrow(0, &reader).unwrap()).unwrap();
    lives_on(&cache);
}

/// The error of the system inside an error, by the standard library's ways alone.
fn system_error(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let io = error.source()?.downcast_ref::<std::io::Error>()?;
    io.raw_os_error()
}

#[test]
fn errors_are_told_apart_as_those_of_the_standard_library_are() {
    use std::io::ErrorKind::{IsADirectory, NotFound, UnexpectedEof, Unsupported};
    let (cache, file, _) = file_of(10_000);
    let faulty = Faulty::new(Arc::new(Memory::new(vec![7; 10_000])));
    faulty.add(rule(When::Always, Fault::Error(libc::EIO)));
    let broken = cache.attach("broken", Arc::new(faulty)).unwrap();
    let eio = std::io::Error::from_raw_os_error(libc::EIO).kind();
    let errors = [
        (cache.open("/no/such/file").unwrap_err(), NotFound, Some(libc::ENOENT)),
        (cache.open("/dev").unwrap_err(), IsADirectory, None),
        (cache.open("/dev/zero").unwrap_err(), Unsupported, None),
        (broken.get(1).unwrap_err(), eio, Some(libc::EIO)),
        (broken.read_at(&mut [0; 9], 7).unwrap_err(), eio, Some(libc::EIO)),
        (broken.pin(0..9).unwrap_err(), eio, Some(libc::EIO)),
        (file.get(9).unwrap_err(), UnexpectedEof, None),
        (file.pin(9_999..10_001).unwrap_err(), UnexpectedEof, None),
    ];
    for (error, kind, errno) in errors {
        assert_eq!((error.io_kind(), system_error(&error)), (kind, errno), "{error}");
        let message = error.to_string();
        let io = || -> std::io::Result<()> { Err(error)? };
        let io = io().unwrap_err();
        assert_eq!((io.kind(), io.to_string()), (kind, message));
        let again = io.downcast::<pinfold::Error>().unwrap();
        assert_eq!((again.io_kind(), system_error(&again)), (kind, errno));
    }
}
