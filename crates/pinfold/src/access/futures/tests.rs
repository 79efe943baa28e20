//! What futures keep when they are dropped, and what they wait for.

use std::borrow::Cow;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::{Duration, Instant};

use pinfold_testing::waker::Woken;

use super::GetMany;
use crate::base::mutant::{self, Mutant};
use crate::error::Cause;
use crate::source::{Memory, Request, Source, Start};
use crate::{Cache, File, FolioRef, Hint, Options};

/// Two files of a cache that has memory for half of one.
fn two_files() -> (Cache, File, File) {
    two_files_of(Options::new(1 << 20))
}

fn two_files_of(options: Options) -> (Cache, File, File) {
    let cache = Cache::new(options).unwrap();
    let [file, other] = ["file", "other"].map(|name| {
        let file = cache.attach(name, Arc::new(Memory::new(vec![7; 2 << 20]))).unwrap();
        file.advise(0..1, Hint::Random).unwrap();
        file
    });
    (cache, file, other)
}

/// Guards of as much of the file as there is memory for.
fn all_memory(file: &File) -> Vec<FolioRef<'_>> {
    let mut held = Vec::new();
    // Ends: there is no memory at last.
    while let Ok(folio) = file.get(held.len() as u64) {
        held.push(folio);
    }
    held
}

/// Whether no claim is left when futures were dropped in the middle.
fn dropped_futures_give_their_claims_back() -> bool {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 1 << 20]))).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    for page in 0..8 {
        // On its way, unless a thread of the cache's has read it already.
        let _ = pin!(file.get_async(page)).poll(&mut Context::from_waker(Waker::noop()));
        let many = [20 + page, 40 + page];
        let _ = pin!(file.get_many_async(&many)).poll(&mut Context::from_waker(Waker::noop()));
    }
    file.handle().core.pressure.is_idle()
}

#[test]
fn a_dropped_future_gives_its_claim_back() {
    assert!(dropped_futures_give_their_claims_back());
    let caught = mutant::with(Some(Mutant::DropKeepsClaim), || {
        // One of them at least was on its way.
        (0..100).any(|_| !dropped_futures_give_their_claims_back())
    });
    assert!(caught, "the mutant does nothing");
}

/// Whether no claim is left when there was no memory to begin what a batch wants.
fn a_batch_in_vain_keeps_no_claim() -> bool {
    let (_cache, file, other) = two_files();
    let _held = all_memory(&other);
    let pages: Vec<u64> = (0..40).map(|n| n * 10).collect();
    let mut many = pin!(file.get_many_async(&pages));
    assert!(many.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let handle = file.handle();
    handle.core.pressure.claimed(handle.mapping.id) == [0; 2]
}

#[test]
fn what_a_batch_could_not_begin_keeps_no_claim() {
    assert!(a_batch_in_vain_keeps_no_claim());
    let caught = mutant::with(Some(Mutant::VainKeepsClaim), a_batch_in_vain_keeps_no_claim);
    assert!(!caught, "the mutant does nothing");
}

/// A waker's clone may panic while the future is refused.
#[test]
fn a_waker_that_cannot_be_cloned_loses_no_claim() {
    static TABLE: RawWakerVTable =
        RawWakerVTable::new(|_| panic!("as the test wants it"), |_| {}, |_| {}, |_| {});
    let (_cache, file, other) = two_files();
    let _held = all_memory(&other);
    // SAFETY: the table's functions use no data.
    let waker = unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &TABLE)) };
    let poll = || drop(pin!(file.get_async(0)).poll(&mut Context::from_waker(&waker)));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)).is_err());
    assert!(file.handle().core.pressure.is_idle(), "the future is gone, and its claim is not");
}

/// What hangs until it is let go of.
#[derive(Debug)]
struct Hangs(Mutex<bool>, Condvar);

impl Source for Hangs {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        drop(self.1.wait_while(self.0.lock().unwrap(), |hangs| *hangs).unwrap());
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(4096)
    }
    fn kind(&self) -> Cow<'static, str> {
        "hangs".into()
    }
}

/// How long what never gives up is waited for.
const MOST: Duration = Duration::from_secs(20);

/// How long a future waits for a worker until it gives up, while another file is read, or not.
fn given_up_after(busy: bool) -> Option<Duration> {
    let mut options = Options::new(4 << 20);
    options.patience = Duration::from_millis(20); // 300 while reads are under way
    let cache = Cache::new(options).unwrap();
    let source = Arc::new(Hangs(true.into(), Condvar::new()));
    let attach = |_| cache.attach("hangs", source.clone()).unwrap();
    let files: Vec<_> = (0..17).map(attach).collect();
    let waiting = |file| Box::pin(File::get_async(file, 0));
    let mut futures: Vec<_> = files.iter().map(waiting).collect();
    let other = cache.attach("other", Arc::new(Memory::new(vec![7; 4096]))).unwrap();
    let mut poll =
        |n: usize| futures[n].as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    (0..16).for_each(|n| assert!(!poll(n))); // all workers
    let since = Instant::now();
    let mut gave_up = None;
    while gave_up.is_none() && since.elapsed() < MOST {
        gave_up = poll(16).then(|| since.elapsed());
        if busy {
            other.invalidate(0..4096).unwrap();
            other.get(0).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    *source.0.lock().unwrap() = false;
    source.1.notify_all();
    gave_up
}

#[test]
fn a_future_gives_up_waiting_for_a_worker_whatever_else_is_read() {
    let idle = given_up_after(false);
    assert!(idle.is_some(), "it gave up in vain: {idle:?}");
    let busy = given_up_after(true);
    assert!(busy.is_some(), "after {idle:?} if nothing else is read, else not in {MOST:?}");
}

/// How many of so many batches fail, each of eight pages and all at once, in a cache that has
/// room for a sixth of them; whatever is woken is polled, and nothing else.
fn batches_that_fail(patience: Duration) -> usize {
    const BATCHES: usize = 200;
    let mut options = Options::new(1 << 20);
    options.patience = patience;
    let cache = Cache::new(options).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 16 << 20]))).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut waiting: Vec<_> = (0..BATCHES)
        .map(|_| {
            let pages: Vec<u64> = (0..8).map(|_| rng.u64(0..4096)).collect();
            (Box::pin(file.get_many_async(&pages)), Woken::new())
        })
        .collect();
    let mut failed = 0;
    // Ends: each batch returns its pages, or loses its patience.
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut polled = false;
        waiting.retain_mut(|(batch, woken)| {
            if !woken.take() {
                return true;
            }
            polled = true;
            let waker = Waker::from(woken.clone());
            match batch.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(Ok(pages)) => assert!(pages.iter().all(|page| page[..8] == [7; 8])),
                Poll::Ready(Err(_)) => failed += 1,
                Poll::Pending => return true,
            }
            false
        });
        if !polled && waiting.len() == before {
            std::thread::park();
        }
    }
    assert!(file.handle().core.pressure.is_idle(), "a claim is left");
    failed
}

#[test]
fn batches_that_want_more_than_there_is_wait_for_one_another_without_guards() {
    assert_eq!(batches_that_fail(Duration::from_secs(20)), 0);
    let failed = mutant::with(Some(Mutant::BatchKeepsGuards), || {
        batches_that_fail(Duration::from_millis(20))
    });
    assert!(failed > 0, "the mutant does nothing");
}

/// A source that keeps what is submitted to it.
#[derive(Debug, Default)]
struct Keeps(Mutex<Vec<Request>>);

impl Source for Keeps {
    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("it keeps"))
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(2 << 20)
    }
    fn kind(&self) -> Cow<'static, str> {
        "keeps".into()
    }
    fn start(&self, batch: &mut Vec<Request>) -> Start {
        self.0.lock().unwrap().append(batch);
        Start::Started
    }
}

/// The number of pages that a batch got, if it has returned.
type Got = Option<crate::Result<usize>>;

/// The future of [`File::get_many_async`], under its own name.
fn batch_of<'f>(file: &'f File, pages: &[u64]) -> Pin<Box<GetMany<'f>>> {
    Box::pin(GetMany::new(file.handle(), pages))
}

/// The pages of a batch if they are there.
fn polled<'f>(many: &mut Pin<Box<GetMany<'f>>>) -> Option<crate::Result<Vec<FolioRef<'f>>>> {
    match many.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(got) => Some(got),
        Poll::Pending => None,
    }
}

/// Polls a batch until `done`, or for so long at most: what it gets.
fn poll_until<'f>(
    many: &mut Pin<Box<GetMany<'f>>>,
    most: Duration,
    mut done: impl FnMut(&GetMany<'f>) -> bool,
) -> Got {
    let since = Instant::now();
    // Ends: as soon as it has its pages, is done, or the time is over.
    loop {
        let got = polled(many);
        if got.is_some() || done(many) || since.elapsed() > most {
            return got.map(|got| got.map(|pages| pages.len()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A batch that may keep its guards next is refused, as its file hangs. What a batch of another
/// file gets that may do so as well; waits for it so long.
fn got_beside_one_that_is_refused(most: Duration) -> Got {
    let (cache, file, _other) = two_files();
    let hangs = cache.attach("hangs", Arc::new(Keeps::default())).unwrap();
    let new = |file, from: u64| {
        let pages: Vec<_> = (from..from + 40).collect();
        batch_of(file, &pages)
    };
    let (mut first, mut refused, mut waits) = (new(&hangs, 0), new(&hangs, 100), new(&file, 0));
    assert!(polled(&mut first).is_none(), "it is read");
    refused.step_back_often();
    assert!(polled(&mut refused).is_none(), "together they would have too much on its way");
    waits.step_back_often();
    poll_until(&mut waits, most, |_| false)
}

#[test]
fn a_batch_that_its_file_refuses_keeps_no_other_file_waiting() {
    let got = got_beside_one_that_is_refused(MOST);
    assert!(matches!(got, Some(Ok(40))), "{got:?}");
    let caught = mutant::with(Some(Mutant::RefusedKeepsGuards), || {
        got_beside_one_that_is_refused(Duration::from_millis(500))
    });
    assert!(caught.is_none(), "the mutant does nothing: {caught:?}");
}

/// As [`two_files`], where nobody loses patience as long as the test waits; and guards of as much
/// of the second as there is memory for.
fn patient(body: impl FnOnce(&File, &File, Vec<FolioRef<'_>>) -> Got) -> Got {
    let mut options = Options::new(1 << 20);
    options.patience = MOST * 2;
    let (_cache, file, other) = two_files_of(options);
    let mut held = Vec::new();
    // Ends: nobody else gets memory, and nobody gives any back.
    while file.handle().core.frames.free_frames() > 0 {
        held.push(other.get(held.len() as u64).unwrap());
    }
    body(&file, &other, held)
}

/// A batch of 60 pages that has found no memory often, and has 20 of them; for the others there is
/// no memory, as the guards of another file have it. Nobody polls it any more.
fn unpolled<'f>(file: &'f File, held: &mut Vec<FolioRef<'_>>) -> Pin<Box<GetMany<'f>>> {
    held.truncate(held.len() - 20);
    let pages: Vec<_> = (0..60).collect();
    let mut many = batch_of(file, &pages);
    many.step_back_often();
    let got = poll_until(&mut many, MOST, |many| many.has() >= 10);
    assert!(got.is_none() && many.keeps_guards(), "{got:?}, {many:?}");
    many
}

/// What a batch gets beside one that keeps its guards and is not polled any more, though there is
/// memory for both; waits for it so long.
fn got_beside_one_that_is_not_polled(most: Duration) -> Got {
    patient(|file, other, mut held| {
        let _unpolled = unpolled(file, &mut held);
        drop(held);
        let pages: Vec<_> = (300..340).collect();
        let mut many = batch_of(other, &pages);
        many.step_back_often();
        poll_until(&mut many, most, |_| false)
    })
}

#[test]
fn a_batch_that_is_not_polled_keeps_no_other_batch_waiting() {
    let got = got_beside_one_that_is_not_polled(MOST);
    assert!(matches!(got, Some(Ok(40))), "{got:?}");
    let caught = mutant::with(Some(Mutant::UnpolledKeepsGuards), || {
        got_beside_one_that_is_not_polled(Duration::from_millis(500))
    });
    assert!(caught.is_none(), "the mutant does nothing: {caught:?}");
}

/// What a batch gets that keeps its guards after one that was passed over, which has what it wants,
/// and is polled again; waits for it so long.
fn got_from_one_that_was_passed_over(most: Duration) -> Got {
    patient(|file, other, mut held| {
        let mut before = unpolled(file, &mut held);
        let pages: Vec<_> = (300..320).collect();
        let mut many = batch_of(other, &pages);
        many.step_back_often();
        let got = poll_until(&mut many, MOST, GetMany::keeps_guards);
        assert!(got.is_none() && many.keeps_guards(), "{got:?}, {many:?}");
        assert!(polled(&mut before).is_none());
        poll_until(&mut many, most, |_| false)
    })
}

#[test]
fn a_batch_that_was_passed_over_drops_its_guards() {
    let got = got_from_one_that_was_passed_over(MOST);
    assert!(matches!(got, Some(Ok(20))), "{got:?}");
    let caught = mutant::with(Some(Mutant::PassedOverKeepsGuards), || {
        got_from_one_that_was_passed_over(Duration::from_millis(500))
    });
    assert!(caught.is_none(), "the mutant does nothing: {caught:?}");
}

/// Keeps the requests that come first, until it serves them.
#[derive(Debug)]
struct Late(Mutex<Option<Vec<Request>>>, Memory);

impl Late {
    fn carry_out(&self, requests: impl Iterator<Item = Request>) {
        for request in requests {
            let read = self.1.read_extents_at(request.offset(), request.extents());
            request.finish(read);
        }
    }

    /// Serves what has come, and from now on what comes.
    fn serve(&self) {
        let kept = self.0.lock().unwrap().take();
        self.carry_out(kept.into_iter().flatten());
    }
}

impl Source for Late {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.1.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.1.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "late".into()
    }
    fn start(&self, batch: &mut Vec<Request>) -> Start {
        match &mut *self.0.lock().unwrap() {
            Some(kept) => kept.append(batch),
            None => self.carry_out(batch.drain(..)),
        }
        Start::Started
    }
}

/// What a batch of 20 pages gets beside one of the same file that has all of its 60 pages, of the
/// 64 that the file's futures may have a claim to, and is not polled any more, or is leaked. Waits
/// for it so long.
fn got_beside_one_that_was_polled_once(leaked: bool, most: Duration) -> Got {
    let mut options = Options::new(1 << 20);
    options.patience = MOST * 2;
    let cache = Cache::new(options).unwrap();
    let source = Arc::new(Late(Mutex::new(Some(Vec::new())), Memory::new(vec![7; 2 << 20])));
    let file = cache.attach("late", source.clone()).unwrap();
    let pages: Vec<_> = (0..60).collect();
    let mut unpolled = Some(batch_of(&file, &pages));
    assert!(polled(unpolled.as_mut().expect("it is there")).is_none(), "nothing was cached");
    source.serve();
    assert_eq!(file.handle().mapping.on_its_way.frames(), 0);
    if leaked {
        std::mem::forget(unpolled.take());
    }
    let pages: Vec<_> = (100..120).collect();
    let got = poll_until(&mut batch_of(&file, &pages), most, |_| false);
    // What it has brought is its own still.
    if let Some(mut many) = unpolled {
        assert!(matches!(polled(&mut many), Some(Ok(pages)) if pages.len() == 60));
        drop(many);
        assert!(file.handle().core.pressure.is_idle());
    }
    got
}

/// What the error says of a batch that its file refuses: the bytes that others have a claim to, and
/// may have.
fn share_in_the_error() -> (u64, u64, String) {
    let mut options = Options::new(1 << 20);
    options.patience = Duration::from_millis(1);
    let cache = Cache::new(options).unwrap();
    let hangs = cache.attach("hangs", Arc::new(Keeps::default())).unwrap();
    let new = |from: u64| {
        let pages: Vec<_> = (from..from + 60).collect();
        batch_of(&hangs, &pages)
    };
    let mut first = new(0);
    assert!(polled(&mut first).is_none(), "it is read");
    let mut refused = new(100);
    let since = Instant::now();
    // Ends: when its patience is over.
    let error = loop {
        match polled(&mut refused) {
            Some(got) => break got.unwrap_err(),
            None => assert!(since.elapsed() < MOST, "it waits for ever"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let Cause::NoMemory { futures_bytes, futures_most_bytes, .. } = *error.cause() else {
        panic!("{error}")
    };
    (futures_bytes, futures_most_bytes, error.to_string())
}

#[test]
fn the_error_says_that_it_was_the_share_of_the_files_futures() {
    let (claimed, most, message) = share_in_the_error();
    assert_eq!((claimed, most), (60 * 4096, 64 * 4096), "{message}");
    let says = "futures of this file are bringing 245760, and may bring 262144 at a time";
    assert!(message.contains(says), "{message}");
}

#[test]
fn a_batch_that_is_polled_once_keeps_no_room_from_others() {
    for leaked in [false, true] {
        let got = got_beside_one_that_was_polled_once(leaked, MOST);
        assert!(matches!(got, Some(Ok(20))), "{leaked}: {got:?}");
    }
    let caught = mutant::with(Some(Mutant::UnpolledKeepsClaim), || {
        got_beside_one_that_was_polled_once(false, Duration::from_millis(800))
    });
    assert!(caught.is_none(), "the mutant does nothing: {caught:?}");
}

/// Polls a future until it is ready, for as long as [`MOST`].
fn end<F: Future>(future: F) -> F::Output {
    let (mut future, since) = (pin!(future), Instant::now());
    // Ends: when it is ready, or too late.
    loop {
        if let Poll::Ready(got) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return got;
        }
        assert!(since.elapsed() < MOST, "it waits for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Futures of each kind that were polled once and are kept, or leaked, have 15 MiB of 64: as much
/// as the futures of a file may bring at a time, but for a few pages.
fn others_get_on(leaked: bool) {
    let mut options = Options::new(64 << 20);
    options.patience = MOST * 2;
    let cache = Cache::new(options).unwrap();
    let source = Arc::new(Late(Mutex::new(Some(Vec::new())), Memory::new(vec![7; 128 << 20])));
    let file = cache.attach("late", source.clone()).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    let batches: Vec<Vec<u64>> = (0..15).map(|n| (n * 256..(n + 1) * 256 - 4).collect()).collect();
    let mut buf = vec![0; 4096];
    let mut kept: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    for batch in &batches {
        kept.push(Box::pin(async { drop(file.get_many_async(batch).await) }));
    }
    kept.push(Box::pin(async { drop(file.get_async(10_000).await) }));
    kept.push(Box::pin(async { drop(file.read_at_async(&mut buf, 10_010 * 4096).await) }));
    kept.push(Box::pin(async { drop(file.bytes_async(10_020 * 4096..11_020 * 4096).await) }));
    for future in &mut kept {
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "nothing was cached");
    }
    source.serve();
    let kept = if leaked {
        std::mem::forget(kept);
        None
    } else {
        Some(kept)
    };
    let pages: Vec<_> = (20_000..24_000).collect();
    assert_eq!(end(file.get_many_async(&pages)).unwrap().len(), pages.len());
    end(file.get_async(25_000)).unwrap();
    assert_eq!(end(file.read_at_async(&mut vec![0; 8 << 20], 100 << 20)).unwrap(), 8 << 20);
    assert_eq!(end(file.bytes_async(110 << 20..120 << 20)).unwrap().len(), 10 << 20);
    drop(kept);
}

#[test]
fn what_was_polled_once_leaves_the_rest_of_the_memory_to_others() {
    others_get_on(false);
    others_get_on(true);
}
