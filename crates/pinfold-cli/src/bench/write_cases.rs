//! Samples of `pinfold bench write` that are more than overwriting: appending, and reading beside
//! somebody who writes. Each compares the file afterwards with what it should hold.

use std::cell::Cell;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pinfold::Cache;
use rustix::fs::OFlags;

use super::batch_ring::Ring;
use super::engines::{Reader, draw};
use super::opaque::looked_at;
use super::scratch::{Scratch, open_plain};
use super::shared::Board;
use super::times::Times;
use super::workers::{self, Work, cpus, pin_to_cpu};
use super::write_engines::{
    BLOCKS, Engine, Ground, PAGE_BYTES, Places, Visit, Walk, Writer, blocks, open_cached,
    open_to_write, same,
};

/// Long pieces, of which all that a round has are one write of the ring.
pub const LONG_PIECE_BYTES: u64 = 64 << 10;
const RING_BLOCK_BYTES: usize = BLOCKS * LONG_PIECE_BYTES as usize;
/// Of these writes on their way at once; more were no faster.
const RING_BLOCKS: usize = 4;

/// An append that is measured.
#[derive(Debug)]
pub struct Append<'a> {
    /// A file of this length, which the limit overwrites.
    pub full: Option<&'a Scratch>,
    /// Where the others make a file.
    pub dir: &'a Path,
    /// Not a new one each time: its first use of its memory would count.
    pub cache: &'a Cache,
    /// A multiple of 1 MiB. A little less is written in pieces that are no part of it.
    pub total_bytes: u64,
    /// How long a piece is.
    pub piece_bytes: u64,
    /// The bytes differ by it.
    pub round: u64,
}

impl Append<'_> {
    /// MiB a second, until all is durable.
    pub fn sample(&self, engine: &str) -> Result<f64> {
        let mut memory = blocks(0, self.round, self.piece_bytes as usize);
        let pieces = &*memory.bytes_mut();
        let bytes = self.total_bytes / pieces.len() as u64 * pieces.len() as u64;
        if engine == "pwrite-direct" {
            let path = self.full.context("no file to overwrite")?.path();
            let file = open_to_write(&path, OFlags::DIRECT)?;
            let mut ring = Ring::new(file, RING_BLOCKS, RING_BLOCK_BYTES)?;
            let since = Instant::now();
            let offsets = (0..bytes).step_by(RING_BLOCK_BYTES);
            ring.write_all(offsets, |_, block| block.copy_from_slice(pieces))?;
            let rate = mib_per_s(bytes, since.elapsed());
            hold(&path, pieces, bytes)?;
            return Ok(rate);
        }
        // A mapping does not grow.
        let begins_with = if engine == "mmap" { bytes } else { 0 };
        let file = Scratch::hole(self.dir, begins_with)?;
        let opened = match engine {
            "pinfold" => {
                Engine::Pinfold(self.cache.clone(), open_cached(self.cache, &file.path())?)
            }
            engine => Engine::new(engine, &file.path(), 0)?,
        };
        let took = Cell::new(Duration::ZERO);
        let piece_bytes = self.piece_bytes as usize;
        opened.visit(&Appending { pieces, piece_bytes, bytes, took: &took })?;
        hold(&file.path(), pieces, bytes)?;
        Ok(mib_per_s(bytes, took.get()))
    }
}

/// A rate.
pub fn mib_per_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / f64::from(1 << 20) / took.as_secs_f64()
}

/// Whether a file is `pieces` over and over.
fn hold(path: &Path, pieces: &[u8], bytes: u64) -> Result<()> {
    let mut file = open_plain(path)?;
    let len_bytes = file.metadata()?.len();
    ensure!(len_bytes == bytes, "{bytes} bytes were written, and the file has {len_bytes}");
    let expected = pieces.repeat((1 << 20) / pieces.len().min(1 << 20));
    let mut got = vec![0; expected.len()];
    let mut at = 0;
    // Ends: each turn gets forward.
    while at < bytes {
        let now = (bytes - at).min(got.len() as u64) as usize;
        file.read_exact(&mut got[..now])?;
        same(&got[..now], &expected[..now], at)?;
        at += now as u64;
    }
    Ok(())
}

struct Appending<'a> {
    pieces: &'a [u8],
    piece_bytes: usize,
    bytes: u64,
    took: &'a Cell<Duration>,
}

impl Visit for Appending<'_> {
    fn visit<W: Writer + Reader>(&self, engine: &W) -> Result<()> {
        let since = Instant::now();
        let mut pieces = self.pieces.chunks_exact(self.piece_bytes).cycle();
        for end in (0..self.bytes).step_by(self.piece_bytes) {
            engine.append(pieces.next().context("no pieces")?, end)?;
        }
        engine.sync(0..self.bytes)?;
        self.took.set(since.elapsed());
        Ok(())
    }
}

/// Pages that the writer writes between two syncs.
pub const BURST_PAGES: u64 = 64;
/// Reads of which the first is timed: the clock would cost as much as a hit.
const READS: u64 = 32;

/// What readers of cached pages got.
#[derive(Debug, Clone, Copy)]
pub struct Mixed {
    /// Of all of them.
    pub reads_per_s: f64,
    /// What 99 of 100 took at most.
    pub p99_ns: f64,
    /// What was written meanwhile, and synced.
    pub written_mib_per_s: Option<f64>,
}

/// Reads at random from the first half of the pages; if there is a writer, it writes to the second.
pub fn mixed(
    ground: &mut Ground,
    readers: usize,
    has_writer: bool,
    board: &Board,
    length: Duration,
) -> Result<Mixed> {
    let half_pages = ground.pages() / 2;
    let places = Places { begin: half_pages * PAGE_BYTES, stride: PAGE_BYTES, count: half_pages };
    let reading = Reading { ground, pages: half_pages, times: Mutex::new(Times::new()) };
    let over = AtomicBool::new(false);
    let (sample, written) = std::thread::scope(|scope| -> Result<_> {
        let write = || -> Result<(u64, f64)> {
            let all = cpus();
            pin_to_cpu(all.len() - 1, &all)?;
            let came = Cell::new((0, 0.0));
            let writing = Writing { round: ground.round, places, over: &over, came: &came };
            ground.engine.visit(&writing)?;
            Ok(came.get())
        };
        let writer = has_writer.then(|| scope.spawn(write));
        let sample = workers::sample_threads(readers, &reading, board, length);
        over.store(true, Ordering::Relaxed); // only to stop
        let written = writer.map(|it| it.join().expect("the writer panicked")).transpose()?;
        Ok((sample?, written))
    })?;
    let times = reading.times.into_inner().expect("no worker panicked");
    if let Some((writes, _)) = written {
        let bytes = PAGE_BYTES as usize;
        ground.wrote(0, Walk::new(places, 0, bytes), writes, bytes);
    }
    ground.check()?;
    Ok(Mixed {
        reads_per_s: sample.ops_per_s,
        p99_ns: times.at_most_ns(0.99).context("nothing was timed")?.max(1) as f64,
        written_mib_per_s: written.map(|(_, rate)| rate),
    })
}

struct Reading<'a> {
    ground: &'a Ground,
    pages: u64,
    times: Mutex<Times>,
}

impl Work for Reading<'_> {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        self.ground.engine.visit(&ReadingWorker { of: self, board, worker })
    }
}

struct ReadingWorker<'a> {
    of: &'a Reading<'a>,
    board: &'a Board,
    worker: usize,
}

impl Visit for ReadingWorker<'_> {
    fn visit<W: Writer + Reader>(&self, engine: &W) -> Result<()> {
        let (mut state, mut times) = (self.worker as u64, Times::new());
        let mut read = || -> Result<()> {
            let mut block = [0; 64];
            let got = engine.read(&mut block, draw(&mut state, self.of.pages) * PAGE_BYTES)?;
            looked_at(&block);
            ensure!(got == block.len(), "a read of 64 bytes gave {got}");
            Ok(())
        };
        workers::work(self.board, self.worker, READS, || {
            let since = Instant::now();
            read()?;
            times.add(since.elapsed());
            (1..READS).try_for_each(|_| read())
        })?;
        self.of.times.lock().expect("no worker panicked").merge(&times);
        Ok(())
    }
}

struct Writing<'a> {
    round: u64,
    places: Places,
    over: &'a AtomicBool,
    /// How many writes, how many MiB a second.
    came: &'a Cell<(u64, f64)>,
}

impl Visit for Writing<'_> {
    fn visit<W: Writer + Reader>(&self, engine: &W) -> Result<()> {
        let (bytes, places) = (PAGE_BYTES as usize, self.places);
        let mut memory = blocks(0, self.round, bytes);
        let blocks = memory.bytes_mut();
        let (mut walk, mut writes) = (Walk::new(places, 0, bytes), 0);
        let since = Instant::now();
        // Relaxed: only to stop. One burst at least.
        loop {
            for _ in 0..BURST_PAGES {
                let (block, offset) = walk.write();
                engine.write(&blocks[block * bytes..][..bytes], offset)?;
            }
            engine.sync(places.begin..places.begin + places.count * places.stride)?;
            writes += BURST_PAGES;
            if self.over.load(Ordering::Relaxed) {
                break;
            }
        }
        self.came.set((writes, mib_per_s(writes * PAGE_BYTES, since.elapsed())));
        Ok(())
    }
}
