//! Files that other programs write, replace and delete: what an `open` returns afterwards.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use pinfold::source::Source;
use pinfold::{Cache, Changed, File, FileOptions, Hint, Options, ReadAt};
use pinfold_testing::times::settle;

const WAYS: [Option<bool>; 2] = [None, Some(false)];

/// A cache, and a directory on the file system of the build, where files are read directly.
struct Ground {
    cache: Cache,
    dir: tempfile::TempDir,
    direct: Option<bool>,
}

impl Ground {
    fn new(direct: Option<bool>) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Ground { cache: Cache::new(Options::new(8 << 20)).unwrap(), dir, direct }
    }

    /// A file of this name with these bytes.
    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn open(&self, path: &Path) -> File {
        self.cache
            .open_with(path, FileOptions { direct: self.direct, ..FileOptions::default() })
            .unwrap()
    }

    fn resident(&self) -> u64 {
        self.cache.stats().resident_bytes
    }
}

/// Waits until a change of the file gets another time than the last one did, on any kernel.
fn tick(path: &Path) {
    settle(&fs::metadata(path).unwrap());
}

/// All that the file has, and no byte more.
#[track_caller]
fn check(file: &File, wanted: &[u8]) {
    assert_eq!(file.len(), wanted.len() as u64);
    let mut buf = vec![0xee; wanted.len() + 5000];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), wanted.len());
    let wrong = (0..wanted.len()).find(|&at| buf[at] != wanted[at]);
    assert_eq!(wrong, None, "a wrong byte, of {}", wanted.len());
}

/// What another program may do to a file that has `OLD`, and what the file has then.
type Change = (&'static str, fn(&Path) -> Vec<u8>);

const OLD: &[u8] = &[b'a'; 20_000];

const CHANGES: [Change; 8] = [
    ("written anew, longer", |path| {
        fs::write(path, vec![b'b'; 40_000]).unwrap();
        vec![b'b'; 40_000]
    }),
    ("written anew, as long as before", |path| {
        fs::write(path, vec![b'b'; OLD.len()]).unwrap();
        vec![b'b'; OLD.len()]
    }),
    ("written anew, shorter", |path| {
        fs::write(path, vec![b'b'; 5000]).unwrap();
        vec![b'b'; 5000]
    }),
    ("appended to", |path| {
        fs::OpenOptions::new().append(true).open(path).unwrap().write_all(&[b'c'; 9000]).unwrap();
        [OLD, &[b'c'; 9000]].concat()
    }),
    ("written to in place, one byte", |path| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(b"d", 12_345).unwrap();
        let mut bytes = OLD.to_vec();
        bytes[12_345] = b'd';
        bytes
    }),
    ("written to in place, with its old time set again", |path| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(b"e", 777).unwrap();
        file.set_modified(modified).unwrap();
        let mut bytes = OLD.to_vec();
        bytes[777] = b'e';
        bytes
    }),
    ("replaced by another", |path| {
        let other = path.with_extension("new");
        fs::write(&other, vec![b'f'; OLD.len()]).unwrap();
        fs::rename(&other, path).unwrap();
        vec![b'f'; OLD.len()]
    }),
    ("deleted and made again", |path| {
        // The inode's number may be the same.
        fs::remove_file(path).unwrap();
        fs::write(path, vec![b'g'; OLD.len()]).unwrap();
        vec![b'g'; OLD.len()]
    }),
];

#[test]
fn a_file_that_was_closed_is_opened_as_it_is() {
    for (n, (what, change)) in CHANGES.iter().enumerate() {
        for direct in WAYS {
            println!("{what}, {direct:?}");
            let ground = Ground::new(direct);
            let path = ground.file(&n.to_string(), OLD);
            check(&ground.open(&path), OLD);
            let now = change(&path);
            check(&ground.open(&path), &now);
        }
    }
}

#[test]
fn an_open_shows_what_has_changed_to_all_handles() {
    for (n, (what, change)) in CHANGES[..6].iter().enumerate() {
        for direct in WAYS {
            println!("{what}, {direct:?}");
            let ground = Ground::new(direct);
            let path = ground.file(&n.to_string(), OLD);
            let file = ground.open(&path);
            check(&file, OLD);
            let guard = file.get(3).unwrap();
            let now = change(&path);
            let again = ground.open(&path);
            check(&again, &now);
            check(&file, &now);
            assert_eq!(guard[..], OLD[3 * 4096..4 * 4096], "a guard keeps what it has");
        }
    }
}

#[test]
fn a_refresh_tells_what_has_changed_and_shows_it() {
    for (n, (what, change)) in CHANGES.iter().enumerate() {
        for direct in WAYS {
            println!("{what}, {direct:?}");
            let ground = Ground::new(direct);
            let path = ground.file(&n.to_string(), OLD);
            let file = ground.open(&path);
            let clone = file.clone();
            tick(&path);
            check(&file, OLD);
            assert_eq!(file.refresh().unwrap(), Changed::No);
            check(&file, OLD);
            assert_eq!(file.refresh().unwrap(), Changed::No);
            let misses = ground.cache.stats().misses;
            check(&file, OLD);
            assert_eq!(ground.cache.stats().misses, misses, "nothing was dropped");
            tick(&path);
            let now = change(&path);
            let told = file.refresh().unwrap();
            let wanted = match *what {
                "appended to" => Changed::Grown,
                "replaced by another" | "deleted and made again" => Changed::Replaced,
                _ => Changed::Rewritten,
            };
            assert_eq!(told, wanted);
            if wanted == Changed::Replaced {
                // These handles have the old file.
                check(&file, OLD);
                check(&ground.open(&path), &now);
                assert_eq!(clone.refresh().unwrap(), Changed::Replaced);
            } else {
                assert_eq!(file.len(), now.len() as u64);
                check(&file, &now);
                check(&clone, &now);
                assert_eq!(clone.refresh().unwrap(), Changed::No, "it was told once");
            }
        }
    }
}

/// A log is read by what is appended alone.
#[test]
fn a_refresh_of_a_file_that_was_appended_to_keeps_the_rest() {
    let ground = Ground::new(None);
    let old = vec![b'a'; 1_000_000];
    let path = ground.file("log", &old);
    let file = ground.open(&path);
    check(&file, &old);
    let cached = ground.resident();
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    assert_eq!(file.refresh().unwrap(), Changed::Grown);
    let dropped = cached - ground.resident();
    assert!(dropped > 0 && dropped <= cached / 4, "{dropped} of {cached}");
    let mut end = [0; 8];
    assert_eq!(file.read_at(&mut end, 999_996).unwrap(), 8);
    assert_eq!(&end, b"aaaamore");
}

/// Cut, and longer than before when somebody looks: no attribute tells it from an append.
#[test]
fn a_refresh_of_a_file_that_was_cut_and_has_grown_again_drops_all() {
    type Regrow = fn(usize) -> Vec<u8>;
    let regrown: [(&str, Regrow); 3] = [
        ("all other bytes", |bytes| vec![b'b'; bytes]),
        ("another first byte", |bytes| [vec![b'b'], vec![b'a'; bytes - 1]].concat()),
        ("other bytes before the old end", |bytes| {
            let mut all = vec![b'a'; bytes];
            all[999_000] = b'b';
            all
        }),
    ];
    for (what, regrow) in regrown {
        println!("{what}");
        let ground = Ground::new(None);
        let old = vec![b'a'; 1_000_000];
        let path = ground.file("file", &old);
        let file = ground.open(&path);
        check(&file, &old);
        let now = regrow(1_200_000);
        fs::write(&path, &now).unwrap();
        assert_eq!(file.refresh().unwrap(), Changed::Rewritten);
        check(&file, &now);
    }
}

/// Of pages far from the end, the last are compared: what is before them may be as it was.
#[test]
fn a_refresh_compares_the_last_pages_that_are_cached() {
    for (cached, cut) in [(&[0, 130, 190][..], 150), (&[0, 100, 120, 139, 191], 140)] {
        println!("{cached:?} are cached, and it is cut at {cut}");
        let ground = Ground::new(None);
        let path = ground.file("file", &vec![b'a'; 256 << 12]);
        let file = ground.open(&path);
        file.advise(.., Hint::Random).unwrap();
        tick(&path);
        for &page in cached {
            assert_eq!(file.get(page).unwrap()[0], b'a');
        }
        let other = fs::OpenOptions::new().write(true).open(&path).unwrap();
        other.set_len(cut << 12).unwrap();
        other.write_all_at(&vec![b'b'; (300 - cut as usize) << 12], cut << 12).unwrap();
        assert_eq!(file.refresh().unwrap(), Changed::Rewritten);
        check(&file, &fs::read(&path).unwrap());
    }
}

/// Once a refresh has found a log grown, the next ones compare little, and of the kernel's page
/// cache; and find it all the same if that has changed.
#[test]
fn a_log_that_is_followed_is_compared_as_far_as_it_grows() {
    for direct in WAYS {
        for (changed, wanted) in [(None, Changed::Grown), (Some(0), Changed::Rewritten)] {
            for from_end in [0, 1, 4096].into_iter().filter(|it| *it == 0 || changed.is_some()) {
                println!("{direct:?}, changed {changed:?}, {from_end} before the end");
                let ground = Ground::new(direct);
                let mut now = vec![b'a'; 1_000_000];
                let path = ground.file("log", &now);
                let file = ground.open(&path);
                check(&file, &now);
                let log = fs::OpenOptions::new().write(true).open(&path).unwrap();
                let append = |now: &mut Vec<u8>, bytes: usize| {
                    log.write_all_at(&vec![b'm'; bytes], now.len() as u64).unwrap();
                    now.resize(now.len() + bytes, b'm');
                };
                let compared = || {
                    let before = ground.cache.sources()[0].1.read.bytes;
                    let told = file.refresh().unwrap();
                    (told, ground.cache.sources()[0].1.read.bytes - before)
                };
                append(&mut now, 100);
                let (told, bytes) = compared();
                assert_eq!(told, Changed::Grown);
                assert!((100_000..=140_000).contains(&bytes), "{bytes} at first");
                for more in [1, 100, 5000, 30_000] {
                    append(&mut now, more);
                    let (told, bytes) = compared();
                    assert_eq!(told, Changed::Grown);
                    let most = 2 * more.next_multiple_of(4096) as u64 + 4096;
                    assert!(bytes <= most, "{bytes} compared for {more}");
                    check(&file, &now);
                }
                if let Some(first) = changed {
                    let at = if from_end == 0 { first } else { now.len() - from_end };
                    log.write_all_at(b"b", at as u64).unwrap();
                    now[at] = b'b';
                }
                append(&mut now, 1);
                assert_eq!(compared().0, wanted);
                check(&file, &now);
            }
        }
    }
}

/// Bytes of one value, which change while the first read is on its way.
#[derive(Debug, Default)]
struct Changing {
    /// The byte, the length, how many reads have begun, and whether the first may end.
    state: Mutex<(u8, u64, usize, bool)>,
    changed: Condvar,
}

impl Source for Changing {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut state = self.state.lock().unwrap();
        state.2 += 1;
        buf.fill(state.0);
        if state.2 == 1 {
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| !state.3).unwrap());
        }
        Ok(buf.len())
    }
    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(self.state.lock().unwrap().1)
    }
    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "changing".into()
    }
}

#[test]
fn a_refresh_of_a_file_that_has_grown_keeps_no_page_on_its_way() {
    let source = Arc::new(Changing {
        state: Mutex::new((b'a', 100 << 12, 0, false)),
        ..Changing::default()
    });
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let file = cache.attach("changing", source.clone()).unwrap();
    let mut byte = [0];
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| file.read_at(&mut [0], 10 << 12).unwrap());
        let state = source.state.lock().unwrap();
        let mut state = source.changed.wait_while(state, |state| state.2 == 0).unwrap();
        (state.0, state.1) = (b'b', 200 << 12);
        drop(state);
        let refreshed = file.refresh();
        source.state.lock().unwrap().3 = true;
        source.changed.notify_all();
        assert_eq!(refreshed.unwrap(), Changed::Grown);
        assert_eq!(reader.join().unwrap(), 1);
    });
    assert_eq!(file.read_at(&mut byte, 10 << 12).unwrap(), 1);
    assert_eq!(byte, *b"b");
}

/// Bytes of one value. A read drops what is cached of its pages, as an eviction may just then.
#[derive(Debug, Default)]
struct Dropping {
    byte: AtomicU8,
    bytes: AtomicU64,
    file: Mutex<Option<File>>,
}

impl Source for Dropping {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        if let Some(file) = &*self.file.lock().unwrap() {
            file.advise(offset..offset + buf.len() as u64, Hint::DontNeed).unwrap();
        }
        buf.fill(self.byte.load(Ordering::SeqCst));
        Ok(buf.len())
    }
    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(self.bytes.load(Ordering::SeqCst))
    }
    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "dropping".into()
    }
}

#[test]
fn a_refresh_compares_what_is_evicted_meanwhile() {
    let source = Arc::new(Dropping { byte: b'a'.into(), ..Dropping::default() });
    source.bytes.store(100 << 12, Ordering::SeqCst);
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let file = cache.attach("dropping", source.clone()).unwrap();
    check(&file, &vec![b'a'; 100 << 12]);
    *source.file.lock().unwrap() = Some(file.clone());
    source.byte.store(b'b', Ordering::SeqCst);
    source.bytes.store(200 << 12, Ordering::SeqCst);
    let refreshed = file.refresh();
    *source.file.lock().unwrap() = None;
    assert_eq!(refreshed.unwrap(), Changed::Rewritten);
    check(&file, &vec![b'b'; 200 << 12]);
}

/// Changes a byte in the middle of a file of 1,000,000 bytes, appends to it, and does so to `now`.
fn change_and_append(file: &fs::File, now: &mut Vec<u8>) {
    file.write_all_at(b"b", 500_000).unwrap();
    file.write_all_at(b"more", 1_000_000).unwrap();
    now[500_000] = b'b';
    now.extend(b"more");
}

/// A refresh compares a part of what is cached with a file that has grown; an open trusts none of
/// it.
#[test]
fn an_open_does_not_trust_that_a_file_has_only_grown() {
    for direct in WAYS {
        for closed in [false, true] {
            println!("{direct:?}, closed {closed}");
            let ground = Ground::new(direct);
            let mut now = vec![b'a'; 1_000_000];
            let path = ground.file("log", &now);
            let file = ground.open(&path);
            check(&file, &now);
            let other = fs::OpenOptions::new().write(true).open(&path).unwrap();
            change_and_append(&other, &mut now);
            tick(&path);
            assert_eq!(file.refresh().unwrap(), Changed::Grown);
            let kept = (!closed).then_some(file);
            let again = ground.open(&path);
            check(&again, &now);
            if let Some(file) = kept {
                check(&file, &now);
            }
            // Now its pages are known to be its own.
            let misses = ground.cache.stats().misses;
            check(&ground.open(&path), &now);
            assert_eq!(ground.cache.stats().misses, misses, "nothing was dropped");
        }
    }
}

#[test]
fn a_refresh_goes_by_the_path_of_its_handle() {
    let ground = Ground::new(None);
    let (path, hard, link) =
        (ground.file("one", OLD), ground.dir.path().join("hard"), ground.dir.path().join("link"));
    fs::hard_link(&path, &hard).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let [by_path, by_hard, by_link] = [&path, &hard, &link].map(|path| ground.open(path));
    check(&by_path, OLD);
    // A link that shows another file changes nothing of this one.
    let other = ground.file("other", b"other");
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&other, &link).unwrap();
    let changed = |file: &File| file.refresh().unwrap();
    assert_eq!(
        [&by_path, &by_hard, &by_link].map(changed),
        [Changed::No, Changed::No, Changed::Replaced]
    );
    fs::remove_file(&path).unwrap();
    assert_eq!(changed(&by_path), Changed::Replaced);
    assert_eq!(changed(&by_hard.clone()), Changed::No, "what the other handle has seen");
    check(&by_hard, OLD);
}

#[test]
fn an_invalidation_counts_what_a_new_length_drops() {
    let ground = Ground::new(None);
    let path = ground.file("file", OLD);
    let file = ground.open(&path);
    check(&file, OLD);
    assert_eq!(file.invalidate(0..0).unwrap(), 0);
    let before = ground.resident();
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    let dropped = file.invalidate(0..0).unwrap();
    assert_eq!(dropped, before - ground.resident());
    assert!(dropped > 0);
    // What was invalidated as a whole is not told again.
    tick(&path);
    fs::write(&path, OLD).unwrap();
    file.invalidate(0..i64::MAX as u64).unwrap();
    assert_eq!(file.refresh().unwrap(), Changed::No);
    check(&file, OLD);
}

/// Its path leads elsewhere, so nothing that was cached before its last change is left.
#[test]
fn a_refresh_of_a_file_that_was_moved_keeps_no_old_byte() {
    type Move = fn(&Path);
    let moves: [(&str, Move); 5] = [
        ("renamed", |path| fs::rename(path, path.with_extension("old")).unwrap()),
        ("replaced", |path| {
            let new = path.with_extension("new");
            fs::write(&new, "new").unwrap();
            fs::rename(&new, path).unwrap();
        }),
        ("deleted", |path| fs::remove_file(path).unwrap()),
        ("its directory was renamed", |path| {
            let dir = path.parent().unwrap();
            fs::rename(dir, dir.with_extension("old")).unwrap();
        }),
        ("its directory was replaced", |path| {
            let dir = path.parent().unwrap();
            fs::rename(dir, dir.with_extension("old")).unwrap();
            fs::create_dir(dir).unwrap();
            fs::write(path, vec![b'n'; 1_000_004]).unwrap();
        }),
    ];
    for (what, moved) in moves {
        for told in [false, true] {
            println!("{what}, told that it has grown: {told}");
            let ground = Ground::new(None);
            fs::create_dir(ground.dir.path().join("dir")).unwrap();
            let mut now = vec![b'a'; 1_000_000];
            let path = ground.file("dir/log", &now);
            let file = ground.open(&path);
            check(&file, &now);
            let other = fs::OpenOptions::new().write(true).open(&path).unwrap();
            change_and_append(&other, &mut now);
            tick(&path);
            if told {
                assert_eq!(file.refresh().unwrap(), Changed::Grown);
            }
            moved(&path);
            settle(&other.metadata().unwrap());
            assert_eq!(file.refresh().unwrap(), Changed::Replaced);
            check(&file, &now);
            // It is told again, and what was read since is kept.
            let misses = ground.cache.stats().misses;
            assert_eq!(file.refresh().unwrap(), Changed::Replaced);
            check(&file, &now);
            assert_eq!(ground.cache.stats().misses, misses, "it was read again");
        }
    }
}

#[test]
fn a_refresh_tells_of_an_append_that_an_invalidation_has_seen() {
    for (cut, changed) in [(None, Changed::Grown), (Some(600_000), Changed::Rewritten)] {
        let ground = Ground::new(None);
        let path = ground.file("log", &vec![b'a'; 1_000_000]);
        let file = ground.open(&path);
        check(&file, &vec![b'a'; 1_000_000]);
        let other = fs::OpenOptions::new().append(true).open(&path).unwrap();
        if let Some(bytes) = cut {
            other.set_len(bytes).unwrap();
        }
        (&other).write_all(&vec![b'a'; 30_000]).unwrap();
        file.invalidate(8192..12_288).unwrap();
        let now = fs::read(&path).unwrap();
        check(&file, &now);
        let cached = ground.resident();
        (&other).write_all(&vec![b'a'; 400_000]).unwrap();
        for changed in [changed, Changed::No] {
            assert_eq!(file.refresh().unwrap(), changed, "{cut:?}");
        }
        assert!(
            cut.is_some() || ground.resident() >= cached - (128 << 10),
            "what was cached stays"
        );
        check(&file, &fs::read(&path).unwrap());
    }
}

/// Of a source that says nothing of its contents, too.
#[test]
fn a_refresh_tells_of_a_growth_of_a_source_that_an_invalidation_has_seen() {
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let source = std::sync::Arc::new(pinfold::source::Memory::new(vec![b'a'; 100_000]));
    let file = cache.attach("source", source.clone()).unwrap();
    check(&file, &vec![b'a'; 100_000]);
    pinfold::source::Source::set_len(&*source, 150_000).unwrap();
    file.invalidate(0..4096).unwrap();
    assert_eq!(file.len(), 150_000);
    let told = [Changed::Grown, Changed::No];
    assert_eq!([(); 2].map(|()| file.refresh().unwrap()), told);
}

/// How many descriptors the process has of files in the directory of `ground`, deleted or not.
fn descriptors(ground: &Ground) -> usize {
    let here = |fd: &fs::DirEntry| {
        fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(ground.dir.path()))
    };
    fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok).filter(here).count()
}

#[test]
fn a_deleted_file_goes_with_its_last_handle() {
    for direct in WAYS {
        let ground = Ground::new(direct);
        let path = ground.file("file", OLD);
        let (file, other) = (ground.open(&path), ground.open(&path));
        check(&file, OLD);
        fs::remove_file(&path).unwrap();
        drop(file);
        check(&other, OLD);
        drop(other);
        assert_eq!(
            (ground.resident(), ground.cache.stats().files, descriptors(&ground)),
            (0, 0, 0)
        );
        // One that is deleted later keeps nothing but memory that nobody else has wanted so far.
        let path = ground.file("later", OLD);
        check(&ground.open(&path), OLD);
        assert!(ground.resident() > 0);
        assert_eq!(descriptors(&ground), 0);
        // One with another path left is none.
        let hard = ground.dir.path().join("hard");
        fs::hard_link(&path, &hard).unwrap();
        let file = ground.open(&path);
        check(&file, OLD);
        fs::remove_file(&path).unwrap();
        drop(file);
        assert!(ground.resident() > 0);
    }
}

/// Bytes of 7, as many as it has been told. The first read of its last page waits, and ends where
/// they ended when it began.
#[derive(Debug, Default)]
struct Growing {
    bytes: AtomicU64,
    begun: AtomicU64,
    go: (Mutex<bool>, Condvar),
}

impl Source for Growing {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let left = self.bytes.load(Ordering::SeqCst).saturating_sub(offset);
        let is_last = (offset..offset + buf.len() as u64).contains(&90_000);
        if is_last && self.begun.fetch_add(1, Ordering::SeqCst) == 0 {
            let may_go = self.go.0.lock().unwrap();
            drop(self.go.1.wait_while(may_go, |go| !*go).unwrap());
        }
        let got = buf.len().min(left as usize);
        buf[..got].fill(7);
        Ok(got)
    }

    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(self.bytes.load(Ordering::SeqCst))
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "growing".into()
    }
}

#[test]
fn a_read_beside_an_append_meets_no_cut() {
    type Way = fn(&File, &Cache) -> pinfold::Result<()>;
    let ways: [Way; 6] = [
        |file, _| {
            let mut bufs = [[0; 16]; 2];
            let [one, end] = &mut bufs;
            let done = file.read_many(&mut [ReadAt::new(88_000, one), ReadAt::new(90_000, end)]);
            done.map(|()| assert_eq!(bufs, [[7; 16]; 2]))
        },
        |file, _| {
            file.get_many(&[21, 21]).map(|pages| assert_eq!((pages[0][0], pages[1][0]), (7, 7)))
        },
        |file, cache| file.borrow_many(&[21, 21], &cache.reader()?).map(drop),
        |file, _| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(file.get_many_async(&[21, 21])).map(drop)
        },
        |file, _| file.get(21).map(drop),
        |file, _| file.read_at(&mut [0; 16], 90_000).map(drop),
    ];
    for (n, way) in ways.into_iter().enumerate() {
        let source = Arc::new(Growing { bytes: 90_100.into(), ..Growing::default() });
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let file = cache.attach("log", source.clone()).unwrap();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| way(&file, &cache));
            // Ends: it begins.
            while source.begun.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            source.bytes.store(200_000, Ordering::SeqCst);
            assert_eq!(file.refresh().unwrap(), Changed::Grown);
            *source.go.0.lock().unwrap() = true;
            source.go.1.notify_all();
            read.join().unwrap().unwrap_or_else(|error| panic!("way {n}: {error}"));
        });
    }
}

/// Calls `look` while this thread, and it alone, may not look into the directory.
fn shut_out<T>(dir: &Path, look: impl FnOnce() -> T) -> T {
    let allow = |mode| fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
    // SAFETY: numbers; the system changes what this thread may do with files.
    let become_user = |user: libc::uid_t| unsafe { libc::syscall(libc::SYS_setfsuid, user) };
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    allow(0);
    if user == 0 {
        become_user(65_534);
    }
    let seen = look();
    if user == 0 {
        become_user(0);
    }
    allow(0o700);
    seen
}

#[test]
fn a_path_at_which_nobody_may_look_any_more_is_not_taken_for_replaced() {
    for direct in WAYS {
        let ground = Ground::new(direct);
        let path = ground.file("log", b"one ");
        let file = ground.open(&path);
        check(&file, b"one ");
        tick(&path);
        let mut log = fs::OpenOptions::new().append(true).open(&path).unwrap();
        let refreshed = shut_out(ground.dir.path(), || {
            let refused = fs::metadata(&path).unwrap_err().kind();
            assert_eq!(refused, std::io::ErrorKind::PermissionDenied);
            let before = file.refresh().unwrap();
            log.write_all(b"two").unwrap();
            [before, file.refresh().unwrap(), file.refresh().unwrap()]
        });
        assert_eq!(refreshed, [Changed::No, Changed::Grown, Changed::No]);
        check(&file, b"one two");
        fs::remove_file(&path).unwrap();
        assert_eq!(file.refresh().unwrap(), Changed::Replaced);
    }
}

/// Tests that fail with a mutant of `mutant.rs` on.
#[cfg(feature = "mutants")]
const MUTANTS: &[(&str, &str)] = &[
    ("a_file_that_was_closed_is_opened_as_it_is", "OpenUncompared"),
    ("an_open_shows_what_has_changed_to_all_handles", "OpenUncompared"),
    ("an_open_does_not_trust_that_a_file_has_only_grown", "OpenTrustsGrown"),
    ("a_refresh_of_a_file_that_was_moved_keeps_no_old_byte", "ReplacedKeepsGrown"),
    ("a_refresh_of_a_file_that_was_cut_and_has_grown_again_drops_all", "GrownUncompared"),
    ("a_refresh_compares_the_last_pages_that_are_cached", "GrownUncompared"),
    ("a_log_that_is_followed_is_compared_as_far_as_it_grows", "GrownUncompared"),
    ("a_refresh_of_a_file_that_has_grown_keeps_no_page_on_its_way", "GrownOnTheWay"),
];

#[cfg(feature = "mutants")]
#[test]
fn each_fails_with_its_mutant() {
    crate::caught::each_is_caught(module_path!(), MUTANTS, 1);
}
