//! What the source costs beside the bare system call, both in one run, turn about.
//!
//! `cargo test --release -p pinfold source::tests::measure -- --ignored --nocapture`
//! writes a file of 2 GiB in the temporary directory.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::*;

const FILE_BYTES: u64 = 2 << 30;
const SAMPLE: Duration = Duration::from_millis(400);
const ROUNDS: usize = 5;

fn big_file(directory: &Path) -> PathBuf {
    let path = directory.join("big");
    let mut file = File::create(&path).unwrap();
    let chunk = pattern(1 << 20);
    // Written, not only allocated: holes are read without the device.
    (0..FILE_BYTES >> 20).for_each(|_| file.write_all(&chunk).unwrap());
    file.sync_all().unwrap();
    path
}

/// Operations per second of `threads` threads that each repeat what `make` gives them.
fn rate<Op: FnMut(&mut Numbers)>(threads: u64, make: impl Fn() -> Op + Sync) -> f64 {
    let total = std::sync::atomic::AtomicU64::new(0);
    let since = Instant::now();
    std::thread::scope(|scope| {
        for seed in 0..threads {
            let (total, make) = (&total, &make);
            scope.spawn(move || {
                let (mut numbers, mut op, mut done) = (Numbers(seed + 99), make(), 0);
                while since.elapsed() < SAMPLE {
                    op(&mut numbers);
                    done += 1;
                }
                total.fetch_add(done, std::sync::atomic::Ordering::SeqCst);
            });
        }
    });
    total.into_inner() as f64 / since.elapsed().as_secs_f64()
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn table(what: &str, names: &[&str], mut sample: impl FnMut(usize) -> f64) {
    let mut samples = vec![Vec::new(); names.len()];
    for _ in 0..ROUNDS {
        (0..names.len()).for_each(|engine| samples[engine].push(sample(engine)));
    }
    let medians: Vec<_> = samples.iter_mut().map(|samples| median(samples)).collect();
    for ((name, median), samples) in names.iter().zip(&medians).zip(&samples) {
        let (low, high) = (samples[0], samples[ROUNDS - 1]);
        let ratio = median / medians[0];
        println!("{what:28} {name:14} {median:10.0} ({low:.0}..{high:.0})  x{ratio:.3}");
    }
}

fn random_offset(numbers: &mut Numbers, bytes: u64) -> u64 {
    numbers.below(FILE_BYTES / bytes) * bytes
}

/// One read through the ring, waited for.
fn ring_read(backing: &Backing) -> impl FnMut(&mut Numbers) {
    let (tell, told) = channel();
    move |numbers| {
        let mut batch = vec![request(random_offset(numbers, 4096), 4096, 1, &tell)];
        backing.submit(&mut batch);
        assert!(batch.is_empty());
        assert_eq!(told.recv().unwrap().1.unwrap(), 4096);
    }
}

fn bare_read(file: &File, bytes: usize) -> impl FnMut(&mut Numbers) {
    use std::os::unix::fs::FileExt;
    let mut memory = crate::source::AlignedBuffer::zeroed(bytes, PAGE);
    move |numbers| {
        let offset = random_offset(numbers, bytes as u64);
        assert_eq!(file.read_at(&mut memory, offset).unwrap(), bytes);
    }
}

fn source_read(backing: &Backing, bytes: usize) -> impl FnMut(&mut Numbers) {
    let lent = Lent::filled(bytes, 0);
    move |numbers| {
        let offset = random_offset(numbers, bytes as u64);
        assert_eq!(backing.read(offset, &[lent.extent()]).unwrap(), bytes);
    }
}

/// Keeps `depth` reads of `bytes` in flight for a while; operations per second.
fn deep(backing: &Backing, depth: usize, bytes: usize) -> f64 {
    let (tell, told): (_, Receiver<Ended>) = channel();
    let mut numbers = Numbers(5);
    let mut memory: Vec<_> = (0..depth).map(|_| Lent::filled(bytes, 0)).collect();
    let mut done = 0_u64;
    let since = Instant::now();
    while since.elapsed() < SAMPLE {
        let mut batch: Vec<_> = memory
            .drain(..)
            .map(|lent| request_into(lent, random_offset(&mut numbers, bytes as u64), 1, &tell))
            .collect();
        backing.submit(&mut batch);
        assert!(batch.is_empty());
        for (_, result, lent) in told.recv().into_iter().chain(told.try_iter()) {
            assert_eq!(result.unwrap(), bytes);
            memory.push(lent);
            done += 1;
        }
    }
    let rate = done as f64 / since.elapsed().as_secs_f64();
    drop(tell);
    told.iter().for_each(drop);
    rate
}

#[test]
#[ignore = "a measurement: writes 2 GiB and takes a minute"]
fn reads_beside_bare_system_calls() {
    let directory = tempfile::tempdir().unwrap();
    let path = big_file(directory.path());
    let Some(ringed) = direct(&path, &ring_engine()) else { return };
    let Some(pooled) = direct(&path, &pool_engine()) else { return };
    let bare = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let only_deep = std::env::var_os("PINFOLD_MEASURE_DEEP").is_some();
    for threads in [1, 2, 4, 8, 16, 32].into_iter().filter(|_| !only_deep) {
        let what = format!("4 KiB random, {threads} threads");
        table(&what, &["preadv", "source", "ring, waited"], |engine| match engine {
            0 => rate(threads, || bare_read(&bare, 4096)),
            1 => rate(threads, || source_read(&ringed, 4096)),
            _ => rate(threads, || ring_read(&ringed)),
        });
    }
    table("2 MiB, 1 thread", &["preadv", "source"], |engine| match engine {
        0 => rate(1, || bare_read(&bare, 2 << 20)),
        _ => rate(1, || source_read(&ringed, 2 << 20)),
    });
    table("4 KiB, 32 in flight", &["preadv x32", "ring", "workers"], |engine| match engine {
        0 => rate(32, || bare_read(&bare, 4096)),
        1 => deep(&ringed, 32, 4096),
        _ => deep(&pooled, 32, 4096),
    });
    table("2 MiB, 4 in flight", &["preadv x4", "ring", "workers"], |engine| match engine {
        0 => rate(4, || bare_read(&bare, 2 << 20)),
        1 => deep(&ringed, 4, 2 << 20),
        _ => deep(&pooled, 4, 2 << 20),
    });
}
