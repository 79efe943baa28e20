//! What opening a file costs, beside `std::fs::File::open` and a question for its length; what
//! `File::refresh` costs; and what it costs to follow a log to which another handle appends 100
//! bytes at a time, beside fstat(2) and pread(2). Microseconds: the median of rounds in which all
//! rows take turns, with the fastest and the slowest round.
//!
//! ```sh
//! cargo run --release -p pinfold --example open [ROUNDS] [DIRECTORY]
//! ```
//!
//! | row | what is done, once per file |
//! |---|---|
//! | `std` | open, ask for the length, close |
//! | `new` | open a file that is not cached, drop the handle |
//! | `closed` | open a file of which a page is cached, and no handle is left; drop the handle |
//! | `open` | open a file that is open already, drop the second handle |
//! | `refresh` | refresh a file that has not changed |
//! | `pread` | after an append, ask for the length of the log, read what is new |
//! | `follow` | after an append, refresh the log, read what is new |
//!
//! All 8 MiB of the log are cached, page by page. The append itself is not timed.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pinfold::{Cache, Changed, File, Hint, Options};

const FILES: usize = 200;
const LOG_PAGES: u64 = 2048;
const RECORD: [u8; 100] = [8; 100];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let rounds = args.next().map_or(Ok(100), |rounds| rounds.parse())?;
    let dir = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = dir.join(format!("pinfold-open-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let rows = run(&dir, rounds);
    std::fs::remove_dir_all(&dir)?;
    for (name, [least, median, most]) in rows? {
        println!("{name:<8} {median:>6.2} us ({least:.2} to {most:.2})");
    }
    Ok(())
}

/// A row's name, and the least, the median and the most microseconds for a file.
pub(crate) type Row = (&'static str, [f64; 3]);

/// Times all rows on files in `dir`.
pub(crate) fn run(dir: &Path, rounds: usize) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let cache = Cache::new(Options::new(16 << 20))?;
    let make = |kind: &str| -> std::io::Result<Vec<PathBuf>> {
        let path = |n| dir.join(format!("{kind}-{n}"));
        (0..FILES).map(path).map(|it| std::fs::write(&it, vec![7; 5000]).map(|()| it)).collect()
    };
    let (new, closed, open) = (make("new")?, make("closed")?, make("open")?);
    // What was read just after a file was written would not be kept.
    std::thread::sleep(Duration::from_millis(50));
    let read = |path: &PathBuf| -> pinfold::Result<File> {
        let file = cache.open(path)?;
        let mut byte = [0];
        file.read_at(&mut byte, 4096)?;
        assert_eq!(byte, [7]);
        Ok(file)
    };
    closed.iter().try_for_each(|path| read(path).map(drop))?;
    let kept: Vec<File> = open.iter().map(read).collect::<Result<_, _>>()?;
    let misses = cache.stats().misses;
    let (mut by_std, mut by_cache) = (Log::new(&dir.join("log-std"))?, Log::new(&dir.join("log"))?);
    let logs = Cache::new(Options::new(16 << 20))?;
    let log = logs.open(&by_cache.path)?;
    log.advise(.., Hint::Random)?;
    (0..LOG_PAGES).try_for_each(|page| log.get(page).map(drop))?;
    let mut times: [Vec<f64>; 7] = Default::default();
    for _ in 0..rounds {
        time(&mut times[0], &new, |path| {
            assert_eq!(std::fs::File::open(path)?.metadata()?.len(), 5000);
            Ok(())
        })?;
        for (at, paths) in [(1, &new), (2, &closed), (3, &open)] {
            time(&mut times[at], paths, |path| {
                assert_eq!(cache.open(path)?.len(), 5000);
                Ok(())
            })?;
        }
        time(&mut times[4], &kept, |file| {
            assert_eq!(file.refresh()?, Changed::No);
            Ok(())
        })?;
        by_std.follow(&mut times[5], |file, offset, record| {
            assert_eq!(file.metadata()?.len(), offset + record.len() as u64);
            Ok(file.read_at(record, offset)?)
        })?;
        by_cache.follow(&mut times[6], |_, offset, record| {
            assert_eq!(log.refresh()?, Changed::Grown);
            assert_eq!(log.len(), offset + record.len() as u64);
            Ok(log.read_at(record, offset)?)
        })?;
    }
    assert!(logs.stats().misses <= LOG_PAGES + 2 * (rounds * FILES) as u64, "the log stays");
    closed.iter().try_for_each(|path| read(path).map(drop))?;
    assert_eq!(cache.stats().misses, misses, "what was cached is cached");
    let names = ["std", "new", "closed", "open", "refresh", "pread", "follow"];
    Ok(names.into_iter().zip(times.map(spread)).collect())
}

/// Appended to by a handle, read by another.
struct Log {
    path: PathBuf,
    write: std::fs::File,
    read: std::fs::File,
    bytes: u64,
}

impl Log {
    fn new(path: &Path) -> std::io::Result<Self> {
        let bytes = LOG_PAGES * 4096;
        std::fs::write(path, vec![7; bytes as usize])?;
        let write = std::fs::OpenOptions::new().append(true).open(path)?;
        Ok(Log { path: path.to_owned(), write, read: std::fs::File::open(path)?, bytes })
    }

    /// Appends records, and reads each by `read`, which alone is timed.
    fn follow(
        &mut self,
        times: &mut Vec<f64>,
        read: impl Fn(&std::fs::File, u64, &mut [u8]) -> Result<usize, Box<dyn std::error::Error>>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let mut took = Duration::ZERO;
        for _ in 0..FILES {
            self.write.write_all(&RECORD)?;
            let mut record = [0; RECORD.len()];
            let since = Instant::now();
            let got = read(&self.read, self.bytes, &mut record)?;
            took += since.elapsed();
            assert_eq!((got, record), (RECORD.len(), RECORD));
            self.bytes += RECORD.len() as u64;
        }
        times.push(took.as_secs_f64() * 1e6 / FILES as f64);
        Ok(())
    }
}

fn time<T>(
    times: &mut Vec<f64>,
    all: &[T],
    each: impl Fn(&T) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let since = Instant::now();
    all.iter().try_for_each(each)?;
    times.push(since.elapsed().as_secs_f64() * 1e6 / all.len() as f64);
    Ok(())
}

fn spread(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    [times[0], times[times.len() / 2], times[times.len() - 1]]
}
