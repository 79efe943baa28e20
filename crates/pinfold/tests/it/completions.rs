//! Completions for an event loop: what ends is told, whoever ends it, and what is given up leaves
//! nothing behind.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use pinfold::{Cache, Completion, Completions, ErrorKind, File, Hint, Options};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::queue::Queue;
use pinfold_testing::told::number_after;
use rustix::event::epoll;

const PAGE: u64 = 4096;

fn pattern() -> Pattern {
    Pattern::new(31, 0)
}

/// 64 pages in a queue.
fn queued() -> (Cache, Arc<File>, Arc<Queue>) {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let queue = Queue::new(pattern().to_vec(64 * PAGE as usize));
    let file = cache.attach("queued", queue.clone()).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    (cache, Arc::new(file), queue)
}

/// Waits by epoll for completions, as an event loop does.
struct Loop {
    epoll: OwnedFd,
    completions: Completions,
}

impl Loop {
    fn new() -> Self {
        let completions = Completions::new().unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(7);
        epoll::add(&epoll, &completions, data, epoll::EventFlags::IN).unwrap();
        Loop { epoll, completions }
    }

    /// Whether the descriptor is readable now.
    fn is_told(&self) -> bool {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        self.wait(Some(&now))
    }

    fn wait(&self, limit: Option<&rustix::event::Timespec>) -> bool {
        let mut events = Vec::with_capacity(1);
        let told = rustix::io::retry_on_intr(|| {
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), limit)
        });
        told.unwrap() == 1
    }

    /// What has ended, once something has.
    fn ended(&mut self) -> Vec<(u64, Completion)> {
        assert!(self.wait(None));
        self.completions.by_ref().collect()
    }

    /// So many that end, in the order of their numbers.
    fn ended_in_all(&mut self, number: usize) -> Vec<(u64, Completion)> {
        let mut all = Vec::new();
        // Ends: they end.
        while all.len() < number {
            all.extend(self.ended());
        }
        all.sort_by_key(|(user_data, _)| *user_data);
        assert_eq!(all.len(), number);
        all
    }
}

#[test]
fn what_ends_is_told_once() {
    let (_cache, file, queue) = queued();
    let mut all = Loop::new();
    all.completions.get(&file, 40, 1);
    all.completions.read_at(&file, vec![0; 6000], 40 * PAGE + 10, 2);
    all.completions.get(&file, 40, 3);
    all.completions.get(&file, 64, 4);
    assert_eq!(all.completions.len(), 4);
    let ended = all.ended();
    let [(4, Completion::Page(Err(error)))] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{error:?}");
    assert_eq!(number_after(&error, "no page "), 64);
    assert!(!all.is_told(), "the others are on their way");
    queue.let_go();
    let ended = all.ended_in_all(2);
    let [(1, Completion::Page(Ok(first))), (3, Completion::Page(Ok(again)))] = &ended[..] else {
        panic!("{ended:?}")
    };
    pattern().check(40 * PAGE, first).unwrap();
    pattern().check(40 * PAGE, again).unwrap();
    // The other read wants a second page by now.
    assert!(!all.is_told() && all.completions.len() == 1);
    queue.let_go();
    let ended = all.ended();
    let [(2, Completion::Read { buf, result: Ok(6000) })] = &ended[..] else { panic!("{ended:?}") };
    pattern().check(40 * PAGE + 10, buf).unwrap();
    assert!(!all.is_told() && all.completions.len() == 0);
}

#[test]
fn a_batch_ends_with_all_of_its_pages_or_an_error() {
    let (cache, file, queue) = queued();
    let mut all = Loop::new();
    let pages = [40, 3, 40, 20];
    all.completions.get_many(&file, &pages, 1);
    all.completions.get_many(&file, &[3, 64], 2);
    all.completions.get_many(&file, &[], 3);
    all.completions.get_many(&file, &[50, 51, 60], 4);
    assert_eq!((all.completions.cancel(4), all.completions.len()), (1, 3));
    // Two need nothing of the queue.
    let ended = all.ended_in_all(2);
    let [(2, Completion::Pages(Err(error))), (3, Completion::Pages(Ok(none)))] = &ended[..] else {
        panic!("{ended:?}")
    };
    assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{error:?}");
    assert_eq!(number_after(&error, "no page "), 64);
    assert!(none.is_empty() && !all.is_told());
    queue.let_go();
    let ended = all.ended_in_all(1);
    let [(1, Completion::Pages(Ok(got)))] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(got.len(), pages.len());
    for (page, got) in pages.iter().zip(got) {
        pattern().check(page * PAGE, got).unwrap();
    }
    drop(ended);
    queue.let_go();
    // Nothing is held of it: all can be dropped.
    file.invalidate(0..i64::MAX as u64).unwrap();
    assert_eq!((cache.stats().resident_bytes, all.completions.len()), (0, 0));
}

#[test]
fn an_error_is_told_with_the_buffer() {
    let (_cache, file, queue) = queued();
    let mut all = Loop::new();
    all.completions.read_at(&file, vec![3; 100], 0, 1);
    assert!(!all.is_told());
    queue.fail("the queue is broken");
    let ended = all.ended();
    let [(1, Completion::Read { buf, result: Err(error) })] = &ended[..] else {
        panic!("{ended:?}")
    };
    assert_eq!(buf.len(), 100);
    assert!(error.to_string().contains("the queue is broken"), "{error}");
}

#[test]
fn what_is_given_up_is_not_told_and_leaves_nothing() {
    let (cache, file, queue) = queued();
    let mut all = Loop::new();
    for page in 0..8 {
        all.completions.get(&file, page, page % 2);
        all.completions.read_at(&file, vec![0; 10], page * PAGE, page % 2);
    }
    assert_eq!(all.completions.cancel(1), 8);
    assert_eq!(all.completions.cancel(1), 0);
    assert_eq!(cache.stats().fills_in_flight, 8, "the reads that were begun go on");
    queue.let_go();
    for (user_data, outcome) in all.ended_in_all(8) {
        assert_eq!(user_data, 0);
        assert!(matches!(
            &outcome,
            Completion::Page(Ok(_)) | Completion::Read { result: Ok(10), .. }
        ));
    }
    // What has ended and was not taken is given up, too.
    all.completions.get(&file, 0, 5);
    assert_eq!((all.completions.cancel(5), all.completions.len()), (1, 0));
    assert!(all.completions.next().is_none() && !all.is_told());
    // All at once, with some on their way, some woken, and some ended.
    for page in 0..20 {
        all.completions.get(&file, page, page);
    }
    queue.let_go_if(|(offset, _)| offset < 14 * PAGE);
    drop(all);
    queue.let_go();
    let resident = cache.stats().resident_bytes;
    assert_eq!(cache.stats().fills_in_flight, 0);
    assert_eq!(resident, 20 * PAGE);
    assert_eq!(file.invalidate(0..i64::MAX as u64).unwrap(), resident, "nothing is held");
    assert_eq!(cache.stats().resident_bytes, 0);
}

/// Each page is kept by what has ended, and its file by the page.
#[test]
fn a_page_outlives_what_told_of_it() {
    let (cache, file, queue) = queued();
    let mut all = Loop::new();
    all.completions.get(&file, 9, 1);
    queue.let_go();
    let page = all.ended().pop();
    drop((all, file, cache));
    let Some((1, Completion::Page(Ok(page)))) = page else { panic!("{page:?}") };
    pattern().check(9 * PAGE, &page).unwrap();
}

/// Several event loops and plain threads on a real file, under a budget an eighth of it; some of
/// what is begun is given up.
#[test]
fn event_loops_beside_threads_get_the_right_bytes() {
    const BYTES: u64 = 8 << 20;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, pattern().to_vec(BYTES as usize)).unwrap();
    let cache = Cache::new(Options::new(BYTES / 8)).unwrap();
    let file = Arc::new(cache.open(&path).unwrap());
    file.advise(0..1, Hint::Random).unwrap();
    let offset =
        |n: u64, thread: u64| (n << 8 | thread).wrapping_mul(0x9E37_79B9_7F4A_7C15) % BYTES;
    let of_batch = |offset: u64| [0, 77, 3000].map(|n| (offset / PAGE + n) % (BYTES / PAGE));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let file = &file;
            scope.spawn(move || {
                let mut all = Loop::new();
                let (mut begun, mut over) = (0, 0);
                let begin = |completions: &mut Completions, n| {
                    let offset = offset(n, thread);
                    if n % 3 == 0 {
                        completions.get(file, offset / PAGE, n);
                    } else if n % 16 == 1 {
                        completions.get_many(file, &of_batch(offset), n);
                    } else {
                        completions.read_at(file, vec![0; 5000], offset, n);
                    }
                };
                // Ends: each that is begun ends, or is given up.
                while over < 2000 {
                    while begun < 2000 && begun - over < 60 {
                        begin(&mut all.completions, begun);
                        begun += 1;
                        if begun % 16 == 0 {
                            over += all.completions.cancel(begun - 1 - begun / 16 % 8) as u64;
                        }
                    }
                    if over == 2000 {
                        break;
                    }
                    for (n, outcome) in all.ended() {
                        over += 1;
                        let offset = offset(n, thread);
                        match outcome {
                            Completion::Page(page) => {
                                pattern().check(offset / PAGE * PAGE, &page.unwrap()).unwrap();
                            }
                            Completion::Pages(pages) => {
                                for (page, got) in of_batch(offset).iter().zip(pages.unwrap()) {
                                    pattern().check(page * PAGE, &got).unwrap();
                                }
                            }
                            Completion::Read { buf, result } => {
                                assert_eq!(result.unwrap() as u64, 5000.min(BYTES - offset));
                                let got = buf.len().min((BYTES - offset) as usize);
                                pattern().check(offset, &buf[..got]).unwrap();
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                }
                assert!(all.completions.len() == 0 && all.completions.next().is_none());
                assert!(!all.is_told());
            });
            scope.spawn(move || {
                let mut buf = [0; 3000];
                for n in 0..1000 {
                    let offset = offset(n, 100 + thread);
                    let got = file.read_at(&mut buf, offset).unwrap();
                    pattern().check(offset, &buf[..got]).unwrap();
                }
            });
        }
    });
    // Ends: what was given up is read all the same.
    while cache.stats().fills_in_flight > 0 {
        std::thread::yield_now();
    }
}
