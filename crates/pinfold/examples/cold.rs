//! How long a file takes that is read once, in large pieces side by side, by the ways in and by the
//! system: as a reader of columns does that begins with nothing in memory.
//!
//! ```sh
//! cargo run --release -p pinfold --example cold -- --mib 437 --piece-kib 4096 --rounds 7
//! ```
//!
//! The file is divided into as many columns as there are readers. Each reader takes its column in
//! order, piece by piece, by a clone of the file. Each row is a new cache; the rows take turns. The
//! times are milliseconds: the median of all rounds, the shortest and the longest. The kernel's
//! page cache has nothing of the file when a row begins.

use std::fs::File as SystemFile;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinfold::{Cache, File, Options};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T> = Result<T, Failure>;

/// What the command line says.
struct Args {
    mib: u64,
    piece_kib: u64,
    readers: u64,
    rounds: usize,
    only: Option<String>,
    dir: PathBuf,
}

impl Args {
    fn parse() -> Outcome<Self> {
        let dir = std::env::temp_dir();
        let mut args = Args { mib: 437, piece_kib: 4096, readers: 16, rounds: 7, only: None, dir };
        let mut words = std::env::args().skip(1);
        // Ends: each turn takes a word.
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| format!("{name} has no value"))?;
            let number =
                || value.parse::<u64>().map_err(|cause| format!("{name} {value}: {cause}"));
            match name.as_str() {
                "--mib" => args.mib = number()?.max(1),
                "--piece-kib" => args.piece_kib = number()?.max(4),
                "--readers" => args.readers = number()?.max(1),
                "--rounds" => args.rounds = number()?.max(1) as usize,
                "--only" => args.only = Some(value),
                "--dir" => args.dir = value.into(),
                _ => return Err(format!("{name}: no such option").into()),
            }
        }
        Ok(args)
    }
}

/// Who reads, and how large the budget is, as a part of the file.
#[derive(Clone, Copy)]
enum Way {
    /// pread(2), through the kernel's page cache, by threads.
    Pread,
    /// pread(2) by an asynchronous runtime's blocking threads.
    SpawnBlocking,
    ReadAt(Budget),
    /// Page by page, in place.
    Get(Budget),
    ReadAtAsync(Budget),
}

#[derive(Clone, Copy)]
enum Budget {
    Twice,
    Quarter,
}

const ROWS: [(&str, Way); 8] = [
    ("pread", Way::Pread),
    ("spawn_blocking", Way::SpawnBlocking),
    ("read_at, twice the file", Way::ReadAt(Budget::Twice)),
    ("read_at, a quarter", Way::ReadAt(Budget::Quarter)),
    ("get, twice the file", Way::Get(Budget::Twice)),
    ("get, a quarter", Way::Get(Budget::Quarter)),
    ("read_at_async, twice the file", Way::ReadAtAsync(Budget::Twice)),
    ("read_at_async, a quarter", Way::ReadAtAsync(Budget::Quarter)),
];

/// The pieces of a column.
fn pieces(args: &Args, reader: u64) -> impl Iterator<Item = (u64, usize)> + use<> {
    let (bytes, piece) = (args.mib << 20, args.piece_kib << 10);
    let column = (bytes / args.readers).next_multiple_of(4096);
    let (start, end) = (reader * column, ((reader + 1) * column).min(bytes));
    (start..end).step_by(piece as usize).map(move |at| (at, piece.min(end - at) as usize))
}

/// Runs what `reader` makes for each piece, in a thread for each column.
fn by_threads<R>(args: &Args, reader: impl Fn() -> R) -> Outcome<()>
where
    R: Fn(u64, usize) -> Outcome<()> + Send,
{
    std::thread::scope(|scope| {
        let column = |n| {
            let (mut pieces, read) = (pieces(args, n), reader());
            scope.spawn(move || pieces.try_for_each(|(at, bytes)| read(at, bytes)))
        };
        let all: Vec<_> = (0..args.readers).map(column).collect();
        all.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// Reads each column in a task of its own.
fn by_tasks<R, F>(args: &Args, reader: impl Fn() -> R) -> Outcome<()>
where
    R: Fn(u64, usize) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome<()>> + Send,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        let mut all = Vec::new();
        for n in 0..args.readers {
            let (pieces, read) = (pieces(args, n), reader());
            all.push(tokio::spawn(async move {
                for (at, bytes) in pieces {
                    read(at, bytes).await?;
                }
                Outcome::Ok(())
            }));
        }
        for task in all {
            task.await??;
        }
        Ok(())
    })
}

/// A new cache, and how long one reading of all takes.
fn sample(args: &Args, way: Way, path: &Path) -> Outcome<Duration> {
    let open = |budget: Budget| -> Outcome<(Cache, Arc<File>)> {
        let bytes = match budget {
            Budget::Twice => args.mib << 21,
            Budget::Quarter => args.mib << 18,
        };
        let cache = Cache::new(Options::new(bytes))?;
        let file = Arc::new(cache.open(path)?);
        Ok((cache, file))
    };
    let system = Arc::new(SystemFile::open(path)?);
    rustix::fs::fadvise(&system, 0, None, rustix::fs::Advice::DontNeed)?;
    match way {
        Way::Pread => {
            let since = Instant::now();
            by_threads(args, || |at, bytes| Ok(system.read_exact_at(&mut vec![0; bytes], at)?))?;
            Ok(since.elapsed())
        }
        Way::SpawnBlocking => {
            let since = Instant::now();
            by_tasks(args, || {
                let system = system.clone();
                move |at, bytes| {
                    let system = system.clone();
                    async move {
                        let read = move || system.read_exact_at(&mut vec![0; bytes], at);
                        Ok(tokio::task::spawn_blocking(read).await??)
                    }
                }
            })?;
            Ok(since.elapsed())
        }
        Way::ReadAt(budget) => {
            let (_cache, file) = open(budget)?;
            let since = Instant::now();
            by_threads(args, || {
                let file = file.as_ref().clone();
                move |at, bytes| {
                    file.read_at(&mut vec![0; bytes], at)?;
                    Ok(())
                }
            })?;
            Ok(since.elapsed())
        }
        Way::Get(budget) => {
            let (_cache, file) = open(budget)?;
            let since = Instant::now();
            by_threads(args, || {
                let file = file.as_ref().clone();
                move |at, bytes| {
                    for page in at / 4096..(at + bytes as u64) / 4096 {
                        std::hint::black_box(file.get(page)?[0]);
                    }
                    Ok(())
                }
            })?;
            Ok(since.elapsed())
        }
        Way::ReadAtAsync(budget) => {
            let (_cache, file) = open(budget)?;
            let since = Instant::now();
            by_tasks(args, || {
                let file = Arc::new(file.as_ref().clone());
                move |at, bytes| {
                    let file = file.clone();
                    async move {
                        file.read_at_async(&mut vec![0; bytes], at).await?;
                        Ok(())
                    }
                }
            })?;
            Ok(since.elapsed())
        }
    }
}

fn main() -> Outcome<()> {
    let args = Args::parse()?;
    let mut file = tempfile::NamedTempFile::new_in(&args.dir)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut block = vec![0; 1 << 20];
    for _ in 0..args.mib {
        random.fill(&mut block);
        file.write_all(&block)?;
    }
    file.as_file().sync_all()?;
    let is_wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut times = ROWS.map(|_| Vec::new());
    for _ in 0..args.rounds {
        for ((name, way), times) in ROWS.iter().zip(&mut times) {
            if is_wanted(name) {
                times.push(sample(&args, *way, file.path())?.as_secs_f64() * 1000.0);
            }
        }
    }
    println!("{:>32} {:>8} {:>8} {:>8}", "ms", "median", "least", "most");
    for ((name, _), times) in ROWS.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        if let (Some(least), Some(most)) = (times.first(), times.last()) {
            println!("{name:>32} {:8.0} {least:8.0} {most:8.0}", times[times.len() / 2]);
        }
    }
    Ok(())
}
