//! A forked child with its parent's cache: it reads what was cached, gets an error for the rest,
//! drops all of it, and never hangs, whatever the parent's threads were doing at the fork. A cache
//! of the child's own is in `fork_own_cache.rs`.

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};

use pinfold::source::{Memory, Source};
use pinfold::{
    Cache, Completion, Completions, Error, ErrorKind, File, Hint, Options, ReadAt, Reader,
};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::queue::Queue;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::child::in_a_child;

const PAGE: u64 = 4096;
const PAGES: u64 = 64;
const FORKS: usize = 25;
/// A pattern whose last pages, and optionally whose length, cannot be read for now.
#[derive(Debug)]
struct Stuck {
    bytes: Memory,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    no_length: bool,
    open: bool,
}

impl Stuck {
    fn wait(&self, mut state: std::sync::MutexGuard<'_, State>) {
        state.waiting += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.open).unwrap());
    }

    fn wait_for(&self, waiting: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting < waiting).unwrap());
    }

    fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.changed.notify_all();
    }
}

impl Source for Stuck {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if offset >= PAGES / 2 * PAGE {
            self.wait(self.state.lock().unwrap());
        }
        self.bytes.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        let state = self.state.lock().unwrap();
        if state.no_length && !state.open {
            self.wait(state);
        }
        Ok(PAGES * PAGE)
    }
    fn kind(&self) -> Cow<'static, str> {
        "stuck".into()
    }
}

/// In a child, which is a process by itself: takes what the parent has, and the child's own copy of
/// the test does not use again.
fn taken<T>(from: &T) -> T {
    // SAFETY: the child ends without dropping `from`.
    unsafe { std::ptr::read(from) }
}

#[track_caller]
fn is_forked<T>(result: Result<T, Error>) {
    let error = result.err().expect("a forked child cannot do that");
    assert_eq!(error.kind(), ErrorKind::Forked, "{error:?}");
    // SAFETY: asks for a number.
    let owner = unsafe { libc::getppid() };
    let text = format!("the cache belongs to process {owner}, which this one was forked from");
    assert!(error.to_string().contains(&text), "{error}");
}

/// A file of which some pages were read ahead, and have marks.
fn read_ahead(cache: &Cache) -> File {
    let memory = Arc::new(Memory::new(vec![3; (PAGES * PAGE) as usize]));
    let file = cache.attach("marked", memory).unwrap();
    file.advise(0..1, Hint::Sequential).unwrap();
    file.read_at(&mut [0; PAGE as usize], 0).unwrap();
    // Ends: nothing more is started.
    while cache.stats().fills_in_flight > 0 {
        std::thread::yield_now();
    }
    file
}

fn tells_nothing(cache: &Cache) {
    assert_eq!(cache.stats().budget_bytes, 0);
    assert!(cache.pins().is_none() && !cache.compact());
    assert!(format!("{cache:?}").contains("files: 0"));
}

/// A child cannot read ahead, and must not wait for somebody who does.
fn marks_keep_nothing_from_a_child(marked: &File) {
    for page in 0..PAGES {
        if let Err(error) = marked.optimistic(page) {
            assert_eq!(error.kind(), ErrorKind::Forked, "{error:?}");
        }
    }
}

/// Pages 0 to 7 are cached, page 40 is on its way in the parent, and page 20 is absent. Whoever
/// asks only for what is cached is told what is.
fn batches_and_tries_in_a_child(file: &File, reader: &Reader, pattern: &Pattern) {
    let mut buf = [0; 8];
    pattern.check(4 * PAGE, &file.borrow(4, reader).unwrap()).unwrap();
    assert_eq!(file.try_read_at(&mut buf, 2 * PAGE - 4).unwrap(), Some(8));
    pattern.check(2 * PAGE - 4, &buf).unwrap();
    pattern.check(3 * PAGE, &file.try_get(3).unwrap().unwrap()).unwrap();
    pattern.check(4 * PAGE, &file.try_borrow(4, reader).unwrap().unwrap()).unwrap();
    for page in [20, 40] {
        assert_eq!(file.try_read_at(&mut buf, page * PAGE).unwrap(), None);
        assert!(file.try_get(page).unwrap().is_none());
        assert!(file.try_borrow(page, reader).unwrap().is_none());
    }

    let pages = [5, 1, 5];
    for (page, got) in pages.iter().zip(&file.get_many(&pages).unwrap()) {
        pattern.check(page * PAGE, got).unwrap();
    }
    for (page, got) in pages.iter().zip(&file.borrow_many(&pages, reader).unwrap()) {
        pattern.check(page * PAGE, got).unwrap();
    }
    is_forked(file.get_many(&[1, 20]).map(drop));
    is_forked(file.get_many(&[40, 1]).map(drop));
    is_forked(file.borrow_many(&[1, 20, 40], reader).map(drop));
    is_forked(file.prefetch(&[1]));
    let mut bufs = [[0; 8]; 4];
    let offsets = [20 * PAGE, 6 * PAGE, 40 * PAGE, 3 * PAGE - 4];
    let mut reads: Vec<_> =
        bufs.iter_mut().zip(offsets).map(|(buf, offset)| ReadAt::new(offset, buf)).collect();
    is_forked(file.read_many(&mut reads));
    for (n, read) in reads.into_iter().enumerate() {
        if n % 2 == 0 {
            is_forked(read.result);
        } else {
            assert_eq!(read.result.unwrap(), 8);
            pattern.check(read.offset, read.buf).unwrap();
        }
    }
}

#[test]
fn a_child_reads_what_is_cached_and_never_hangs() {
    let pattern = Pattern::new(9, 0);
    let cache = Cache::new(Options { track_pins: true, ..Options::new(16 << 20) }).unwrap();
    let stuck = Arc::new(Stuck {
        bytes: Memory::new(pattern.to_vec((PAGES * PAGE) as usize)),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let file = cache.attach("stuck", stuck.clone()).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    let mut buf = vec![0; PAGE as usize];
    for page in 0..8 {
        file.read_at(&mut buf, page * PAGE).unwrap();
    }
    let marked = read_ahead(&cache);
    let reader = cache.reader().unwrap();
    let owned = file.get(0).unwrap().into_owned();
    let pinned = file.pin(2 * PAGE..3 * PAGE).unwrap();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        struct End<'a>(&'a AtomicBool, &'a Stuck);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
                self.1.open();
            }
        }
        let end = End(&end, &stuck);
        // A page on its way for as long as it lasts, and a file's length that is being asked for.
        scope.spawn(|| file.read_at(&mut [0; 8], 40 * PAGE).unwrap());
        stuck.wait_for(1);
        stuck.state.lock().unwrap().no_length = true;
        scope.spawn(|| file.invalidate(60 * PAGE..61 * PAGE).unwrap());
        stuck.wait_for(2);
        // And all the cache's locks taken and given back all the time.
        for n in 0..3 {
            let (cache, ended) = (&cache, end.0);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let memory = Arc::new(Memory::new(vec![n; 1 << 20]));
                    let other = cache.attach("other", memory).unwrap();
                    let reader = cache.reader().unwrap();
                    drop(other.pin(0..1 << 19).unwrap());
                    drop(other.borrow(200, &reader).unwrap());
                    drop(reader);
                    drop(other.clone());
                    assert_eq!(cache.stats().budget_bytes, 16 << 20);
                }
            });
        }
        for _ in 0..2 {
            let (file, ended) = (&file, end.0);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    drop(file.clone());
                }
            });
        }
        for _ in 0..FORKS {
            in_a_child(|| {
                let mut buf = vec![0; PAGE as usize];
                assert_eq!(file.read_at(&mut buf, PAGE).unwrap(), buf.len());
                pattern.check(PAGE, &buf).unwrap();
                pattern.check(3 * PAGE, &file.get(3).unwrap()).unwrap();
                batches_and_tries_in_a_child(&file, &reader, &pattern);
                marks_keep_nothing_from_a_child(&marked);
                pattern.check(0, &owned).unwrap();
                pinned.copy_to(&mut buf, 2 * PAGE).unwrap();
                pattern.check(2 * PAGE, &buf).unwrap();

                is_forked(file.read_at(&mut buf, 40 * PAGE)); // on its way in the parent
                is_forked(file.read_at(&mut buf, 20 * PAGE));
                is_forked(file.get(21).map(drop));
                is_forked(file.borrow(22, &reader).map(drop));
                is_forked(file.pin(23 * PAGE..24 * PAGE));
                is_forked(file.invalidate(0..PAGE));
                is_forked(file.advise(0..PAGE, Hint::WillNeed));
                is_forked(cache.attach("new", Arc::new(Memory::new(vec![1]))));
                is_forked(cache.open("/proc/self/exe"));
                is_forked(cache.reader());
                tells_nothing(&cache);

                // Drops all that there is, copied bit by bit from where the parent has it.
                drop(taken(&pinned));
                drop(taken(&owned));
                drop(taken(&reader));
                drop(file.clone());
                drop(taken(&file));
                drop(taken(&cache));
            });
        }
        drop(end);
    });
    // The parent has noticed nothing.
    drop((pinned, owned, reader));
    assert_eq!(file.read_at(&mut buf, 40 * PAGE).unwrap(), buf.len());
    pattern.check(40 * PAGE, &buf).unwrap();
    assert_eq!(cache.stats().pinned_bytes, 0);
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn forked<T: std::fmt::Debug>(polled: &Poll<Result<T, Error>>) {
    let Poll::Ready(Err(error)) = &polled else { panic!("{polled:?}") };
    assert_eq!(error.kind(), ErrorKind::Forked, "{polled:?}");
}

/// Whatever state it was in at the fork. It would wait for a thread that is not there.
#[test]
fn a_childs_futures_fail_unless_the_page_is_cached() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let hangs = Arc::new(HangsUp::default());
    let slow = cache.attach("hangs", hangs.clone()).unwrap();
    let file = cache.attach("quick", Arc::new(Memory::new(vec![7; 1 << 20]))).unwrap();
    for file in [&slow, &file] {
        file.advise(0..1, Hint::Random).unwrap();
    }
    drop(file.get(0).unwrap());
    let mut pending = Box::pin(slow.get_async(0));
    assert!(poll(pending.as_mut()).is_pending());
    let mut many: Vec<_> = (1..80).map(|page| Box::pin(slow.get_async(page))).collect();
    for future in &mut many {
        assert!(poll(future.as_mut()).is_pending());
    }
    let mut batch = Box::pin(slow.get_many_async(&[0, 100]));
    assert!(poll(batch.as_mut()).is_pending());
    in_a_child(|| {
        forked(&poll(pending.as_mut()));
        forked(&poll(many.last_mut().unwrap().as_mut())); // it queues
        forked(&poll(pin!(file.get_async(1))));
        forked(&poll(pin!(slow.get_async(90))));
        forked(&poll(batch.as_mut()));
        forked(&poll(pin!(file.get_many_async(&[0, 1]))));
        assert!(matches!(poll(pin!(file.get_many_async(&[0, 0]))), Poll::Ready(Ok(_))));
        assert!(matches!(poll(pin!(file.get_async(0))), Poll::Ready(Ok(_))));
        let mut buf = [0; 10];
        assert!(matches!(poll(pin!(file.read_at_async(&mut buf, 0))), Poll::Ready(Ok(10))));
        many.clear();
    });
    *hangs.open.lock().unwrap() = true;
    hangs.changed.notify_all();
    drop((pending, many, batch));
}

/// The page is cached, but its bytes are where a child has none.
#[cfg(feature = "map")]
#[test]
fn a_child_gets_no_page_that_was_brought_through_a_map() {
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let file = cache.attach("mapped", Arc::new(Memory::new(vec![7; 1 << 20]))).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    let file = Arc::new(file);
    let map = pinfold::Space::new(&cache, 0).unwrap().map_file(&file, 0..1 << 20).unwrap();
    let _held = map.hold(3 * PAGE as usize..4 * PAGE as usize).unwrap();
    let reader = cache.reader().unwrap();
    in_a_child(|| {
        let (mut buf, at) = ([0; 10], 3 * PAGE);
        forked(&poll(pin!(file.read_at_async(&mut buf, at))));
        forked(&poll(pin!(file.get_async(3))));
        forked(&poll(pin!(file.bytes_async(at..at + 10))));
        forked(&poll(pin!(file.get_many_async(&[3]))));
        let mut reads = [ReadAt::new(at, &mut buf)];
        forked(&poll(pin!(file.read_many_async(&mut reads))));
        let mut completions = Completions::new().unwrap();
        completions.get(&file, 3, 0);
        completions.get_many(&file, &[3], 1);
        completions.read_at(&file, vec![0; 10], at, 2);
        assert_eq!(completions.by_ref().count(), 3);
        completions.get(&file, 3, 3);
        let outcome = completions.next().expect("it has ended").1;
        let Completion::Page(Err(error)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(error.kind(), ErrorKind::Forked);

        is_forked(file.get(3).map(drop));
        is_forked(file.read_at(&mut buf, at));
        is_forked(file.bytes(at..at + 10).map(drop));
        is_forked(file.get_many(&[3]).map(drop));
        is_forked(file.read_many(&mut [ReadAt::new(at, &mut buf)]));
        is_forked(file.borrow(3, &reader).map(drop));
        is_forked(file.borrow_many(&[3], &reader).map(drop));
        is_forked(file.optimistic(3).map(drop));
        is_forked(file.pin(at..at + PAGE).map(drop));
        is_forked(io::Read::read(&mut file.reader(at), &mut buf).map_err(of_io));
        is_forked(io::BufRead::fill_buf(&mut file.reader(at)).map(drop).map_err(of_io));
        assert!(file.try_get(3).unwrap().is_none());
        assert!(file.try_borrow(3, &reader).unwrap().is_none());
        assert_eq!(file.try_read_at(&mut buf, at).unwrap(), None);
    });
}

#[cfg(feature = "map")]
fn of_io(error: io::Error) -> Error {
    error.downcast().expect("it is the cache's error")
}

/// Reads wait until it is opened.
#[derive(Debug, Default)]
struct HangsUp {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Source for HangsUp {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        let open = self.open.lock().unwrap();
        drop(self.changed.wait_while(open, |open| !*open).unwrap());
        buf.fill(1);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }
    fn kind(&self) -> Cow<'static, str> {
        "hangs".into()
    }
}

/// The descriptor is both processes', and what the child ends is not ended for the parent.
#[test]
fn what_ends_in_a_child_is_not_told_to_its_parent() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let queue = Queue::new(vec![3; (PAGES * PAGE) as usize]);
    let file = Arc::new(cache.attach("queue", queue.clone()).unwrap());
    let mut completions = Completions::new().unwrap();
    completions.get(&file, 0, 7);
    let is_told = || {
        let mut fds = [PollFd::new(&completions, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
    };
    in_a_child(|| queue.fail("let go"));
    assert!(!is_told(), "nothing has ended here");
    queue.fail("let go");
    assert!(is_told());
    let outcome = completions.next().expect("it has ended").1;
    assert!(matches!(outcome, Completion::Page(Err(_))), "{outcome:?}");
}
