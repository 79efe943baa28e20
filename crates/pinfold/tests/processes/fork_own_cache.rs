//! A forked child makes a cache of its own, while the parent's threads fall asleep and wake.
//!
//! Alone in its process, as no thread may start or end while this test forks: std holds a lock of
//! the whole process then, so that the threads which a child starts would wait for ever.

use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use pinfold::source::{Memory, Source};
use pinfold::{Cache, Hint, Options};

use crate::alone::alone;
use crate::child::in_a_child;
use crate::starts::wait_until_others_sleep;

const PAGE: u64 = 4096;

/// Memory whose readers meet: while one reads, the others come and wait for it.
#[derive(Debug)]
struct Yielding(Memory);

impl Source for Yielding {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        std::thread::yield_now();
        self.0.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "yielding".into()
    }
}

/// What waiting threads share with the rest of the process must not be locked in the child for
/// ever: with locks that keep one table of all sleeping threads, a child hung in each run.
#[test]
fn a_child_has_a_cache_of_its_own_however_many_threads_fall_asleep_and_wake() {
    let name = "a_child_has_a_cache_of_its_own_however_many_threads_fall_asleep_and_wake";
    let signal = alone(module_path!(), name, || {
        let cache = Cache::new(Options::new(4 << 20)).unwrap();
        let memory = Memory::new(vec![1; 8 * PAGE as usize]);
        let file = cache.attach("busy", Arc::new(Yielding(memory))).unwrap();
        file.advise(0..1, Hint::Random).unwrap();
        wait_until_others_sleep();
        let (started, ended) = (Barrier::new(17), AtomicBool::new(false));
        std::thread::scope(|scope| {
            struct End<'a>(&'a AtomicBool);
            impl Drop for End<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let end = End(&ended);
            for n in 0..16 {
                let (file, started, ended) = (&file, &started, &ended);
                scope.spawn(move || {
                    started.wait();
                    while !ended.load(Ordering::Relaxed) {
                        if n == 0 {
                            file.invalidate(0..8 * PAGE).unwrap();
                        }
                        file.read_at(&mut [0; 8], n % 2 * PAGE).unwrap();
                    }
                });
            }
            started.wait();
            for _ in 0..100 {
                in_a_child(|| {
                    let cache =
                        Cache::new(Options { track_pins: true, ..Options::new(4 << 20) }).unwrap();
                    let memory = Arc::new(Memory::new(vec![2; 1 << 16]));
                    let file = cache.attach("own", memory).unwrap();
                    file.advise(0..1 << 16, Hint::WillNeed).unwrap();
                    let mut buf = vec![0; 1 << 16];
                    assert_eq!(file.read_at(&mut buf, 0).unwrap(), buf.len());
                    assert!(buf.iter().all(|&byte| byte == 2));
                    let pinned = file.pin(0..PAGE).unwrap();
                    assert_eq!(cache.pins().unwrap().len(), 1);
                    drop((pinned, file, cache));
                });
            }
            drop(end);
        });
    });
    assert_eq!(signal, None);
}
