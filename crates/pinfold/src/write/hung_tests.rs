//! A source whose syncs hang: what its writers are told, and what others get.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use crate::base::mutant::{self, Mutant};
use crate::source::{Memory, Source};
use crate::{Cache, Error, ErrorKind, File, Options};

const BUDGET: u64 = 4 << 20;
const PIECE: usize = 64 << 10;

/// Memory whose syncs end once it is open.
#[derive(Debug)]
struct Hangs {
    memory: Memory,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Hangs {
    fn new() -> Arc<Self> {
        let (open, opened) = (Mutex::new(false), Condvar::new());
        Arc::new(Hangs { memory: Memory::default(), open, opened })
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Source for Hangs {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.memory.read_at(offset, buf)
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.memory.write_at(offset, buf)
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.memory.set_len(bytes)
    }
    fn sync(&self, _: bool) -> io::Result<()> {
        drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
        Ok(())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.memory.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "hangs".into()
    }
}

/// So that what fails does not hang.
struct OpensAtLast<'a>(&'a Hangs);

impl Drop for OpensAtLast<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Nobody waits there for more than two seconds.
fn cache() -> Cache {
    let mut options = Options::new(BUDGET);
    options.patience = Duration::from_millis(100);
    Cache::new(options).unwrap()
}

/// Writes twice the budget, or until that fails.
fn write_in_vain(file: &File, begin: u64) -> Option<Error> {
    let places = (begin..begin + 2 * BUDGET).step_by(PIECE);
    places.map(|at| file.write_at(&vec![7; PIECE], at)).find_map(Result::err)
}

/// What `threads` writers of a file are told whose syncs hang, and the cache; `None`: one of them
/// waits for too long.
fn told(threads: u64, mutant: Option<Mutant>) -> Option<(Vec<Error>, Cache, File, Arc<Hangs>)> {
    let (cache, source) = (cache(), Hangs::new());
    let file = cache.attach("hangs", source.clone()).unwrap();
    file.write_at(&vec![7; PIECE], 0).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for n in 0..threads {
            let (file, tell) = (&file, tell.clone());
            scope.spawn(move || {
                let error = mutant::with(mutant, || write_in_vain(file, (n % 4) << 23));
                let _ = tell.send(error);
            });
        }
        let error = |_| told.recv_timeout(Duration::from_secs(8)).ok().flatten();
        let errors: Option<Vec<_>> = (0..threads).map(error).collect();
        if errors.is_none() {
            source.open();
        }
        errors
    })
    .map(|errors| (errors, cache, file, source))
}

#[test]
fn writers_whose_sync_hangs_are_told() {
    for threads in [1, 8] {
        let (errors, cache, file, source) = told(threads, None).expect("a writer waits for ever");
        let _opened = OpensAtLast(&source);
        for error in errors {
            let kinds = (error.kind(), error.io_kind());
            assert_eq!(kinds, (ErrorKind::Write, io::ErrorKind::TimedOut), "{error}");
            assert!(error.to_string().contains("sync of hangs nothing has ended"), "{error}");
        }
        assert!(cache.stats().dirty_bytes <= BUDGET / 2, "{}", cache.stats().dirty_bytes);
        // Other files are read and written, and so is what is cached of this one.
        let other = Arc::new(Memory::new(vec![3; 2 * BUDGET as usize]));
        let other = cache.attach("other", other).unwrap();
        let mut buf = vec![0; PIECE];
        for at in (0..2 * BUDGET).step_by(PIECE) {
            other.read_at(&mut buf, at).unwrap();
            assert!(buf.iter().all(|&byte| byte == 3));
            other.write_at(&vec![4; PIECE], at).unwrap();
        }
        file.read_at(&mut buf, 0).unwrap();
        assert!(buf.iter().all(|&byte| byte == 7));
        // When it gets on, all is as it was.
        source.open();
        file.write_at(&buf, 0).unwrap();
        cache.sync().unwrap();
        assert_eq!(cache.stats().dirty_bytes, 0);
    }
}

#[test]
fn a_writer_that_waits_for_ever_is_noticed() {
    assert!(told(1, Some(Mutant::HungSyncAwaited)).is_none(), "the mutant does nothing");
}
