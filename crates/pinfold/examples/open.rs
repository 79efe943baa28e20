//! What opening a file costs, beside `std::fs::File::open` and a question for its length; and what
//! `File::refresh` costs. Microseconds: the median of rounds in which all rows take turns, with the
//! fastest and the slowest round.
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

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pinfold::{Cache, Changed, File, Options};

const FILES: usize = 200;

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
    let mut times: [Vec<f64>; 5] = Default::default();
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
    }
    closed.iter().try_for_each(|path| read(path).map(drop))?;
    assert_eq!(cache.stats().misses, misses, "what was cached is cached");
    let names = ["std", "new", "closed", "open", "refresh"];
    Ok(names.into_iter().zip(times.map(spread)).collect())
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
