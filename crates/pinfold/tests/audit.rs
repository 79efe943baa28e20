//! Audit: tests of what the documents promise.

#![cfg(not(loom))]

use std::borrow::Cow;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pinfold::source::{Memory, Request, Source, Start};
use pinfold::{Cache, File, Hint, Options, ReadAt};

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// "Each as `read_at` does": a read of no bytes reads nothing.
#[test]
fn an_empty_read_of_a_batch_reads_nothing() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 64 << 10]))).unwrap();
    assert_eq!(file.read_at(&mut [], 5000).unwrap(), 0);
    assert_eq!(cache.stats().misses, 0);
    file.read_many(&mut [ReadAt::new(5000, &mut [])]).unwrap();
    assert_eq!(cache.stats().misses, 0);
}

/// "A waker may call the cache."
#[test]
fn a_waker_may_read_what_the_ring_reads() {
    struct Reads(File);
    impl Wake for Reads {
        fn wake(self: Arc<Self>) {
            self.0.prefetch(&[50]).unwrap();
            self.0.get(50).unwrap();
        }
    }
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let disk = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        std::fs::write(disk.path(), vec![7; 1 << 20]).unwrap();
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let file = cache.open(disk.path()).unwrap();
        eprintln!("{:?}", cache.stats().sources[0].1.kind);
        let waker = Waker::from(Arc::new(Reads(file.clone())));
        let mut get = pin!(file.get_async(3));
        while poll(get.as_mut(), &waker).is_pending() {
            std::thread::sleep(Duration::from_millis(10));
        }
        file.get(50).unwrap();
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(20)).expect("it hung");
}

/// Keeps its requests until they are let go of.
#[derive(Debug)]
struct Keeps(Memory, Mutex<Vec<Request>>);

impl Keeps {
    fn let_go(&self) {
        let requests = std::mem::take(&mut *self.1.lock().unwrap());
        for request in requests {
            for extent in request.extents() {
                extent.store(0, &vec![7; extent.bytes()]);
            }
            let bytes = request.bytes();
            request.finish(Ok(bytes));
        }
    }
}

impl Source for Keeps {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "keeps".into()
    }
    fn start(&self, batch: &mut Vec<Request>) -> Start {
        self.1.lock().unwrap().append(batch);
        Start::Started
    }
}

/// Bytes that guards of 24 pages keep, two of each of 12 large folios; the futures of all wait for
/// them `together`, or begin when all is there.
fn kept_by_guards(together: bool) -> u64 {
    const LEN: u64 = 12 * (128 << 10);
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let source = Arc::new(Keeps(Memory::new(vec![7; LEN as usize]), Mutex::default()));
    let file = cache.attach("file", source.clone()).unwrap();
    file.advise(0..LEN, Hint::WillNeed).unwrap(); // folios of 32 pages
    let pages = (0..12).flat_map(|folio| [folio * 32 + 7, folio * 32 + 20]);
    let mut futures: Vec<_> = pages.map(|page| Box::pin(file.get_async(page))).collect();
    if together {
        futures.iter_mut().for_each(|it| assert!(poll(it.as_mut(), Waker::noop()).is_pending()));
    }
    source.let_go();
    let guards: Vec<_> = futures
        .iter_mut()
        .map(|it| match poll(it.as_mut(), Waker::noop()) {
            Poll::Ready(Ok(guard)) => guard,
            other => panic!("{other:?}"),
        })
        .collect();
    drop(futures);
    file.invalidate(0..LEN).unwrap();
    let kept = cache.stats().resident_bytes;
    drop(guards);
    kept
}

/// "Guards of n pages keep at most 2n pages, or a tenth of the budget, whichever is more."
#[test]
fn guards_of_futures_keep_no_more_than_others() {
    let most = (8 << 20) / 10;
    let apart = kept_by_guards(false);
    assert!(apart <= most, "{apart} of {most}");
    let together = kept_by_guards(true);
    assert!(together <= most, "guards of 24 pages keep {together} bytes: more than {most}");
}

/// The same of threads: two wait for each folio.
#[test]
fn guards_of_threads_that_waited_keep_no_more_than_others() {
    const LEN: u64 = 12 * (128 << 10);
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let source = Arc::new(Keeps(Memory::new(vec![7; LEN as usize]), Mutex::default()));
    let file = cache.attach("file", source.clone()).unwrap();
    file.advise(0..LEN, Hint::WillNeed).unwrap(); // folios of 32 pages
    let (cache, file) = (&cache, &file);
    let guards: Vec<_> = std::thread::scope(|scope| {
        let pages = (0..12).flat_map(|folio| [folio * 32 + 7, folio * 32 + 20]);
        let get = |page| scope.spawn(move || file.get(page).unwrap());
        let threads: Vec<_> = pages.map(get).collect();
        while cache.stats().waits < 24 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        source.let_go();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    file.invalidate(0..LEN).unwrap();
    let (kept, most) = (cache.stats().resident_bytes, (8 << 20) / 10);
    drop(guards);
    assert!(kept <= most, "guards of 24 pages keep {kept} bytes: more than {most}");
}

/// Sevens, when it is open.
#[derive(Debug, Default)]
struct Gate(Mutex<(bool, u32)>, std::sync::Condvar);

impl Source for Gate {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut gate = self.0.lock().unwrap();
        gate.1 += 1;
        drop(self.1.wait_while(gate, |gate| !gate.0).unwrap());
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(64 << 10)
    }
    fn kind(&self) -> Cow<'static, str> {
        "gate".into()
    }
}

/// "A waker may call the cache": here for a page that the thread which wakes it is about to land.
#[test]
fn a_waker_may_read_the_rest_of_what_lands() {
    struct Reads(File);
    impl Wake for Reads {
        fn wake(self: Arc<Self>) {
            self.0.get(1).unwrap();
        }
    }
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let cache = Cache::new(Options::new(8 << 20).folio_max_bytes(4096)).unwrap();
        let source = Arc::new(Gate::default());
        let file = cache.attach("file", source.clone()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| file.read_at(&mut [0; 8 * 4096], 0).unwrap());
            while source.0.lock().unwrap().1 == 0 {
                std::thread::yield_now();
            }
            let waker = Waker::from(Arc::new(Reads(file.clone())));
            let mut get = pin!(file.get_async(0));
            assert!(poll(get.as_mut(), &waker).is_pending());
            source.0.lock().unwrap().0 = true;
            source.1.notify_all();
        });
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(10)).expect("it hung");
}
