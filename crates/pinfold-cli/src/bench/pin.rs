//! `pinfold bench pin`: long-term pins of cached pages, measured as the kernel's `gup_test` does.
//!
//! Here: the options, the cached file, one pass of each engine. One pass pins all of the file in
//! calls of this many pages, keeps all of it pinned, and then gives all of it back. `--once` does a
//! single pass, for a tool that counts instead of timing: see `cargo xtask pin-counts`.

use std::borrow::Cow;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use io_uring::IoUring;
use pinfold::source::Source;
use pinfold::{Cache, Options, PinnedRange};

use super::common::{Common, chosen};
use super::engines::resident_budget_bytes;
use super::report::{self, Object, Row};
use super::workers::{Crew, cpus, pin_to_cpu};
use crate::size::Size;

const PAGE_BYTES: u64 = 4096;
/// Of the largest folio.
const FOLIO_PAGES: u64 = 512;
/// The engines, the limit first.
const ENGINES: [&str; 4] = ["add", "pinfold", "pinfold-per-page", "io_uring-register"];
const CASES: [&str; 2] = ["2M", "4K"];
/// The most buffers that a ring takes.
const RING_BUFFERS_MAX: usize = 1 << 14;

/// What is measured, for people.
pub const HELP: &str = "\
Cases:
  2M   the file is cached in folios of 2 MiB
  4K   the file is cached in single pages

Engines:
  add                one atomic addition of the number of pages for each folio, and one subtraction,
                     on words as far apart as those of the cache: the limit
  pinfold            file.pin: a look-up and one addition for each folio
  pinfold-per-page   the same by a look-up and an addition for each page
  io_uring-register  the same memory registered as fixed buffers of a ring, one for each piece

A pass pins --bytes in calls of --pages each, keeps all of it pinned, and unpins all of it, as
gup_test -m 4096 -n 512 does; get_us and put_us are the microseconds of the two halves of a pass. A
sample is the mean of as many passes as fit. The benchmark has one thread. A ratio is the median of
the ratios of neighbouring samples.";

/// Options of `pinfold bench pin`.
#[derive(Debug, Args)]
pub struct PinArgs {
    #[command(flatten)]
    common: Common,

    /// Which cases [default: both]
    #[arg(long, value_name = "CASE,..", value_delimiter = ',')]
    cases: Vec<String>,

    /// Bytes pinned in a pass: a multiple of 2 MiB
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    bytes: Size,

    /// Pages of one call
    #[arg(long, value_name = "N", default_value_t = 512)]
    pages: u64,

    /// Run one pass of one engine in one case, and print only the number of folios it pinned
    #[arg(long, hide = true, value_name = "ENGINE")]
    once: Option<String>,
}

/// Zeros, without the memory for them.
#[derive(Debug)]
struct Zeros(u64);

impl Source for Zeros {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = (buf.len() as u64).min(self.0.saturating_sub(offset)) as usize;
        buf[..bytes].fill(0);
        Ok(bytes)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0)
    }
    fn kind(&self) -> Cow<'static, str> {
        "zeros".into()
    }
}

/// A cached file, in folios of one size.
#[derive(Debug)]
struct Bed {
    cache: Cache,
    file: pinfold::File,
    bytes: u64,
    call_bytes: u64,
    folio_pages: u64,
    /// For `add`: an entry for each frame; those of the heads are used.
    words: Vec<Word>,
}

/// A type of the size of an entry of the frame table.
#[derive(Debug)]
#[repr(align(64))]
struct Word(AtomicU64);

impl Bed {
    fn new(
        case: &str,
        bytes: u64,
        call_pages: u64,
        options: fn(Options) -> Options,
    ) -> Result<Self> {
        // Folios of 2 MiB want a cache of 128 MiB.
        let budget_bytes = resident_budget_bytes(bytes).max(256 << 20);
        let cache = Cache::new(options(Options::new(budget_bytes)))?;
        let file = cache.attach("zeros", Arc::new(Zeros(bytes)))?;
        for at in (0..bytes).step_by(32 << 20) {
            let pinned = file.pin(at..(at + (32 << 20)).min(bytes))?;
            let (folios, pages) =
                (pinned.folios(), (pinned.range().end - pinned.range().start) / PAGE_BYTES);
            ensure!(
                folios * FOLIO_PAGES == pages,
                "{pages} pages were cached in {folios} folios, not in such of 2 MiB"
            );
        }
        let mut folio_pages = FOLIO_PAGES;
        if case == "4K" {
            ensure!(
                file.split(0..bytes) == bytes / PAGE_BYTES / FOLIO_PAGES,
                "some were not split"
            );
            folio_pages = 1;
        }
        let words = (0..bytes / PAGE_BYTES).map(|_| Word(AtomicU64::new(1))).collect();
        let call_bytes = call_pages * PAGE_BYTES;
        let bed = Bed { cache, file, bytes, call_bytes, folio_pages, words };
        // Single pages move to where they may be pinned, once. Not by `get_all`, which is counted.
        let warm: Vec<_> =
            bed.calls().map(|range| bed.file.pin(range)).collect::<Result<_, _>>()?;
        drop(warm);
        Ok(bed)
    }

    fn calls(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let (bytes, call) = (self.bytes, self.call_bytes);
        (0..bytes).step_by(call as usize).map(move |at| at..(at + call).min(bytes))
    }
}

/// The first half of a pass. Not inlined: its name is what a profiler looks for.
#[inline(never)]
fn get_all<const BY_PAGE: bool>(bed: &Bed) -> Result<Vec<PinnedRange>> {
    let mut pins = Vec::with_capacity(bed.bytes.div_ceil(bed.call_bytes) as usize);
    for range in bed.calls() {
        pins.push(if BY_PAGE { bed.file.pin_per_page(range)? } else { bed.file.pin(range)? });
    }
    Ok(pins)
}

/// The second half.
#[inline(never)]
fn put_all<const BY_PAGE: bool>(pins: Vec<PinnedRange>) {
    for pinned in pins {
        if BY_PAGE { pinned.unpin_per_page() } else { drop(pinned) }
    }
}

/// The limit's two halves.
#[inline(never)]
fn add_all(bed: &Bed) {
    for word in bed.words.iter().step_by(bed.folio_pages as usize) {
        // Acquire and release as the count does it; they pair with nothing here.
        word.0.fetch_add(black_box(bed.folio_pages) << 23, Ordering::Acquire);
    }
}

#[inline(never)]
fn subtract_all(bed: &Bed) {
    for word in bed.words.iter().step_by(bed.folio_pages as usize) {
        word.0.fetch_sub(black_box(bed.folio_pages) << 23, Ordering::Release);
    }
}

/// How long the halves of a pass took.
type Halves = [Duration; 2];

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let result = work();
    (result, begun.elapsed())
}

fn pass_pinned<const BY_PAGE: bool>(bed: &Bed) -> Result<Halves> {
    let (pins, get) = timed(|| get_all::<BY_PAGE>(bed));
    let pins = pins?;
    Ok([get, timed(|| put_all::<BY_PAGE>(pins)).1])
}

/// One buffer for each piece that a call's memory lies in.
fn pass_registered(bed: &Bed, pins: &[PinnedRange]) -> Result<Halves> {
    let ring = IoUring::new(1)
        .context("no io_uring: it may be switched off (kernel.io_uring_disabled)")?;
    let iovecs: Vec<libc::iovec> = pins
        .iter()
        .flat_map(PinnedRange::extents)
        .map(|part| libc::iovec { iov_base: part.cast_mut().cast(), iov_len: part.len() })
        .collect();
    ensure!(
        iovecs.len() <= RING_BUFFERS_MAX,
        "{} pieces of memory: a ring takes {RING_BUFFERS_MAX} buffers; choose larger --pages or fewer --bytes",
        iovecs.len()
    );
    // SAFETY: the memory is pinned by `pins`, which outlive the ring's use of it; nothing is read
    // or written by way of the ring.
    let (registered, get) = timed(|| unsafe { ring.submitter().register_buffers(&iovecs) });
    registered.with_context(|| format!("cannot register {} (see ulimit -l)", Size(bed.bytes)))?;
    let (gone, put) = timed(|| ring.submitter().unregister_buffers());
    gone.context("cannot unregister")?;
    Ok([get, put])
}

fn pass(engine: &str, bed: &Bed, pins: &[PinnedRange]) -> Result<Halves> {
    match engine {
        "add" => Ok([timed(|| add_all(bed)).1, timed(|| subtract_all(bed)).1]),
        "pinfold" => pass_pinned::<false>(bed),
        "pinfold-per-page" => pass_pinned::<true>(bed),
        "io_uring-register" => pass_registered(bed, pins),
        other => bail!("no engine {other}"),
    }
}

/// The mean microseconds of the two halves of a pass.
fn sample(engine: &str, bed: &Bed, length: Duration) -> Result<[f64; 2]> {
    let registering = engine == "io_uring-register";
    let pins = if registering { get_all::<false>(bed)? } else { Vec::new() };
    let begun = Instant::now();
    let (mut sums, mut passes) = ([Duration::ZERO; 2], 0);
    // Ends: when the time is up.
    while passes == 0 || begun.elapsed() < length {
        let halves = pass(engine, bed, &pins)?;
        for (sum, half) in sums.iter_mut().zip(halves) {
            *sum += half;
        }
        passes += 1;
    }
    Ok(sums.map(|sum| sum.as_secs_f64() * 1e6 / f64::from(passes)))
}

impl PinArgs {
    fn check(&self) -> Result<()> {
        let common = &self.common;
        ensure!(
            common.threads.iter().all(|&n| n == 1) && common.processes.is_empty(),
            "bench pin measures one thread: no other --threads, and no --processes"
        );
        let bytes = self.bytes.0;
        ensure!(
            bytes.is_multiple_of(FOLIO_PAGES * PAGE_BYTES) && bytes <= 128 << 30,
            "--bytes {}: must be a multiple of 2 MiB, up to 128 GiB",
            self.bytes
        );
        ensure!(
            self.pages > 0 && self.pages <= bytes / PAGE_BYTES,
            "--pages {}: must be from 1 to the pages of --bytes",
            self.pages
        );
        report::ensure_memory(resident_budget_bytes(bytes) * 2, "--bytes")?;
        Ok(())
    }
}

/// Runs the benchmark.
pub fn run(args: &PinArgs) -> Result<()> {
    args.check()?;
    let common = &args.common;
    common.crews(&[1])?;
    let (mut engines, length) = (common.engines(&ENGINES)?, common.sample()?);
    let cases = chosen("--cases", "case", &args.cases, &CASES)?;
    if let Some(engine) = &args.once {
        return once(args, engine, cases[0]);
    }
    pin_to_cpu(0, &cpus())?;
    let bed = |&case: &&'static str| {
        Ok((case, Bed::new(case, args.bytes.0, args.pages, |options| options)?))
    };
    let beds: Vec<(&str, Bed)> = cases.iter().map(bed).collect::<Result<_>>()?;
    let left_out = leave_out(common, &mut engines, &beds)?;
    let moved = |bed: &Bed| bed.cache.stats().pin_migrations;
    let before: Vec<u64> = beds.iter().map(|(_, bed)| moved(bed)).collect();
    let cells: Vec<(&(&str, Bed), &str)> =
        beds.iter().flat_map(|bed| engines.iter().map(move |&engine| (bed, engine))).collect();
    let samples = common.interleave(&cells, |((_, bed), engine)| sample(engine, bed, length))?;
    let after: Vec<u64> = beds.iter().map(|(_, bed)| moved(bed)).collect();
    ensure!(before == after, "folios were moved while pins were measured: {before:?}, {after:?}");
    let rows: Vec<[Row; 2]> = cells
        .iter()
        .zip(&samples)
        .map(|(((case, _), engine), samples)| {
            let row = |metric, half: usize| {
                let samples = samples.iter().map(|halves| halves[half]).collect();
                Row::new(engine, case, Crew::Threads(1), metric, samples)
                    .with("bytes", args.bytes.0)
                    .with("pages_per_call", args.pages)
            };
            [row("get_us", 0), row("put_us", 1)]
        })
        .collect();
    let params = serde_json::json!({ "seconds": common.seconds, "runs": common.runs });
    let table = table(args, &engines, &cases, &rows) + &left_out;
    common.publish(&table, &Object::new("pin", params, rows.into_iter().flatten().collect()))
}

/// Takes the ring off the list if this system does not let it register that much, unless it was
/// asked for by name; returns a line that says so.
fn leave_out(common: &Common, engines: &mut Vec<&str>, beds: &[(&str, Bed)]) -> Result<String> {
    const RING: &str = "io_uring-register";
    if !engines.contains(&RING) {
        return Ok(String::new());
    }
    for (_, bed) in beds {
        if let Err(why) = sample(RING, bed, Duration::ZERO) {
            ensure!(common.only.is_empty(), "{RING}: {why:#}");
            engines.retain(|&engine| engine != RING);
            return Ok(format!("\n{RING} is left out: {why:#}"));
        }
    }
    Ok(String::new())
}

/// For callgrind: the halves are functions of their own, called once each after the cache was
/// filled. Before each, the lines that are in a small simulated cache are pushed out of it, so that
/// every line that the half touches is missed once. Prints how many folios there are.
fn once(args: &PinArgs, engine: &str, case: &str) -> Result<()> {
    // valgrind hangs in a thread that waits for a ring.
    let bed =
        Bed::new(case, args.bytes.0, args.pages, |options| Options { io_uring: false, ..options })?;
    let others = vec![1_u8; 16 << 20];
    let push_out = || black_box(others.iter().step_by(64).map(|&one| u64::from(one)).sum::<u64>());
    let get = match engine {
        "pinfold" => get_all::<false>,
        "pinfold-per-page" => get_all::<true>,
        other => bail!("--once {other}: must be pinfold or pinfold-per-page"),
    };
    push_out();
    let pins = get(&bed)?;
    crate::say::print(pins.iter().map(PinnedRange::folios).sum::<u64>())?;
    push_out();
    if engine == "pinfold" {
        put_all::<false>(pins);
    } else {
        put_all::<true>(pins);
    }
    Ok(())
}

fn table(args: &PinArgs, engines: &[&str], cases: &[&str], rows: &[[Row; 2]]) -> String {
    let mut lines = Vec::new();
    for (case, rows) in cases.iter().zip(rows.chunks(engines.len())) {
        let walk = engines.iter().position(|&engine| engine == "pinfold-per-page");
        for (engine, halves) in engines.iter().zip(rows) {
            let mut line = vec![(*case).to_owned(), (*engine).to_owned()];
            for (half, row) in halves.iter().enumerate() {
                line.push(format!("{:.0} ±{:.0}%", row.median, 100.0 * row.stddev / row.median));
                line.push(walk.map_or_else(String::new, |walk| {
                    let times = rows[walk][half].ratio(row);
                    if times < 2.0 { format!("{times:.3}") } else { format!("{times:.1}") }
                }));
            }
            lines.push(line);
        }
    }
    let header = ["case", "engine", "get_us", "of the walk", "put_us", "of the walk"];
    format!(
        "Pins of {} in calls of {} pages: microseconds a pass, and how many times the speed of the \
         page-by-page walk\n{}",
        args.bytes,
        args.pages,
        report::table(header.map(str::to_owned).to_vec(), lines)
    )
}
