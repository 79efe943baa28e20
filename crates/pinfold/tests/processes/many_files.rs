//! Many more files than descriptors: files that were closed stay cached, without a descriptor.
//!
//! The limit is the whole process's, so each test is a process by itself.

use std::path::{Path, PathBuf};

use pinfold::{Cache, Clients, ErrorKind, File, Options, Space};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::times::settle;

use crate::alone::alone;

/// Descriptors that the process may have.
const LIMIT: usize = 96;
const BYTES: usize = 10_000;

/// Runs `body`, of the test `name`, in a process that may have `LIMIT` descriptors.
fn with_few_descriptors(name: &str, body: impl FnOnce()) {
    let signal = alone(module_path!(), name, || {
        let limit = libc::rlimit { rlim_cur: LIMIT as u64, rlim_max: LIMIT as u64 };
        // SAFETY: only reads the limit.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        body();
    });
    assert_eq!(signal, None);
}

/// Files, each with a pattern of its own.
struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new(files: usize) -> Self {
        let all = Files { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
        (0..files).for_each(|n| std::fs::write(all.path(n), pattern(n).to_vec(BYTES)).unwrap());
        all
    }

    fn path(&self, n: usize) -> PathBuf {
        self.dir.path().join(n.to_string())
    }

    /// Waits until a change of the last one that was written would be seen by any file's times.
    fn settle(&self, last: usize) {
        settle(&std::fs::metadata(self.path(last)).unwrap());
    }

    /// How many of them the process has descriptors of.
    fn descriptors(&self) -> usize {
        let here = |fd: &Path| std::fs::read_link(fd).is_ok_and(|to| to.starts_with(&self.dir));
        std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter(|fd| here(&fd.as_ref().unwrap().path()))
            .count()
    }
}

fn pattern(n: usize) -> Pattern {
    Pattern::new(31, n as u16)
}

fn check(file: &File, n: usize) {
    let mut buf = vec![0; BYTES];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), BYTES);
    pattern(n).check(0, &buf).unwrap_or_else(|wrong| panic!("file {n}: {wrong}"));
}

fn cache() -> Cache {
    Cache::new(Options::new(32 << 20)).unwrap()
}

#[test]
fn files_that_were_mapped_and_closed_leave_descriptors_to_others() {
    with_few_descriptors("files_that_were_mapped_and_closed_leave_descriptors_to_others", || {
        let (cache, files) = (cache(), Files::new(300));
        files.settle(299);
        let space = Space::new(&cache, 0).unwrap();
        let check = |n: usize| {
            let file = cache.open(files.path(n)).unwrap();
            let map = space.map_file(&file, 0..BYTES as u64).unwrap();
            // SAFETY: nobody changes the file.
            pattern(n).check(0, unsafe { map.as_slice() }).unwrap();
        };
        (0..300).for_each(check);
        // What was closed last is still there.
        let misses = cache.stats().misses;
        check(299);
        assert_eq!(cache.stats().misses, misses);
    });
}

#[test]
fn files_that_were_closed_stay_cached_without_descriptors() {
    with_few_descriptors("files_that_were_closed_stay_cached_without_descriptors", || {
        let (cache, files) = (cache(), Files::new(300));
        files.settle(299);
        for n in 0..300 {
            check(&cache.open(files.path(n)).unwrap(), n);
            assert_eq!(files.descriptors(), 0, "after {n}");
        }
        let misses = cache.stats().misses;
        for n in 0..300 {
            check(&cache.open(files.path(n)).unwrap(), n);
        }
        let stats = cache.stats();
        assert_eq!((stats.misses, stats.files), (misses, 300));
        // One that has changed since.
        std::fs::write(files.path(7), pattern(8).to_vec(BYTES)).unwrap();
        check(&cache.open(files.path(7)).unwrap(), 8);
        let open: Vec<_> = (0..40).map(|n| cache.open(files.path(n + 100)).unwrap()).collect();
        open.iter().enumerate().for_each(|(n, file)| check(file, n + 100));
        assert_eq!(files.descriptors(), 40);
        drop(open);
        assert_eq!(files.descriptors(), 0);
    });
}

#[test]
fn what_is_cached_stays_when_the_process_has_no_descriptor_left() {
    with_few_descriptors("what_is_cached_stays_when_the_process_has_no_descriptor_left", || {
        let (cache, files) = (cache(), Files::new(200));
        files.settle(199);
        (0..200).for_each(|n| check(&cache.open(files.path(n)).unwrap(), n));
        let kept = cache.open(files.path(0)).unwrap();
        let stats = cache.stats();
        let mut own = Vec::new();
        // Ends: at the limit.
        while let Ok(file) = std::fs::File::open("/dev/null") {
            own.push(file);
        }
        let error = cache.open(files.path(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Open, "{error:?}");
        assert!(error.to_string().contains("Too many open files"), "{error}");
        check(&kept, 0);
        drop(own);
        (0..200).for_each(|n| check(&cache.open(files.path(n)).unwrap(), n));
        let now = cache.stats();
        assert_eq!((now.misses, now.files), (stats.misses, 200));
        assert_eq!(now.resident_bytes, stats.resident_bytes);
    });
}

#[test]
fn threads_open_and_close_files_at_once() {
    const FILES: usize = 48;
    with_few_descriptors("threads_open_and_close_files_at_once", || {
        let (cache, files) = (cache(), Files::new(FILES));
        files.settle(FILES - 1);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (cache, files) = (&cache, &files);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    for _ in 0..2000 {
                        let n = rng.usize(0..FILES);
                        let file = cache.open(files.path(n)).unwrap();
                        let kept = file.get(1).unwrap().into_owned();
                        check(&file, n);
                        drop(file);
                        pattern(n).check(4096, &kept).unwrap_or_else(|wrong| panic!("{wrong}"));
                    }
                });
            }
        });
        assert_eq!(files.descriptors(), 0);
        let stats = cache.stats();
        assert_eq!(stats.files as usize, FILES);
        assert_eq!(stats.resident_bytes, (FILES * BYTES.next_multiple_of(4096)) as u64);
    });
}

#[test]
fn a_file_that_could_not_be_served_can_be_mapped() {
    with_few_descriptors("a_file_that_could_not_be_served_can_be_mapped", || {
        let files = Files::new(1);
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let file = cache.open(files.path(0)).unwrap();
        let space = Space::new(&cache, 0).unwrap();
        let mut failed = 0;
        // Ends: from some number of free descriptors on there are enough.
        for free in 0.. {
            let null = || std::fs::File::open("/dev/null").ok();
            let mut taken: Vec<_> = std::iter::from_fn(null).collect();
            taken.truncate(taken.len() - free);
            let served = Clients::new(&file);
            drop(taken);
            if served.is_ok() {
                break;
            }
            failed += 1;
            space.map_file(&file, 0..4096).unwrap();
        }
        assert!(failed > 1, "no memory file, and then no eventfd: {failed}");
        let error = space.map_file(&file, 0..4096).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    });
}
