//! Batches of reads of what is in memory.
//!
//! Here: the engines, the loop that is timed, the check of what they read. Not here: which engines,
//! batches and threads are measured (`batch.rs`).
//!
//! An operation is the same for all: copy 64 bytes at a random multiple of 64 to memory of its own.
//! The offsets of a batch are drawn before its first read. The loop is compiled once for each
//! engine; what it costs beside the reads is shown as an engine of its own, `empty`.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use pinfold::{Hint, ReadAt};
use pinfold_testing::pattern::CELL_BYTES;

use super::batch_child::CONTENTS;
use super::batch_nodes::PAGE_BYTES;
use super::engines::{self, Bytes, Nothing, Opened, Reader, draw};
use super::opaque::{fetch, looked_at};
use super::shared::Board;
use super::workers::{self, BATCH, Work};

/// Engines that read what is in memory: the loop itself and the limits first.
pub const NAMES: [&str; 12] = [
    "empty",
    "memcpy",
    "memcpy-prefetch",
    "mmap",
    "pinfold-read",
    "pinfold-read-many",
    "pinfold-read-async",
    "pinfold-get",
    "pinfold-get-many",
    "pinfold-get-async",
    "pinfold-borrow",
    "pinfold-borrow-many",
];

/// What is copied by one read.
pub const BLOCK_BYTES: usize = CELL_BYTES;

/// Batches of each engine that are compared with what the file holds, before anything is measured.
const CHECKED_BATCHES: usize = 256;

type Block = [u8; BLOCK_BYTES];

/// How large the cache's folios are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Folios {
    /// Up to 2 MiB: the file was read front to back.
    Large,
    /// One page each: the file was read at random.
    Pages,
}

/// What an engine reads from, which several engines share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Nothing: the loop alone.
    Nothing,
    /// A copy of the file in private memory.
    Copy,
    /// A mapping of the file.
    Map,
    /// The cache.
    Cache(Folios),
    /// A cache of large folios for engines with counted guards, which split what they would keep
    /// too much of.
    Guarded,
}

impl Held {
    /// That of an engine.
    pub fn by(engine: &str, folios: Folios) -> Self {
        match engine {
            "empty" => Held::Nothing,
            "memcpy" | "memcpy-prefetch" => Held::Copy,
            "mmap" => Held::Map,
            guarded if guarded.contains("-get") && folios == Folios::Large => Held::Guarded,
            _ => Held::Cache(folios),
        }
    }

    /// Memory that it takes beside the file itself, in multiples of the file.
    pub fn copies(self) -> u64 {
        u64::from(matches!(self, Held::Copy | Held::Cache(_) | Held::Guarded))
    }

    /// All bytes of the file in memory.
    pub fn open(self, path: &Path, file_bytes: u64) -> Result<Opened> {
        let paths = [PathBuf::from(path)];
        match self {
            Held::Nothing => Opened::resident("empty", &paths),
            Held::Copy => Opened::resident("memcpy", &paths),
            Held::Map => Opened::resident("mmap", &paths),
            Held::Cache(Folios::Large) | Held::Guarded => Opened::resident("pinfold", &paths),
            Held::Cache(Folios::Pages) => {
                let budget_bytes = engines::resident_budget_bytes(file_bytes);
                let opened = Opened::cached(engines::options("pinfold", budget_bytes)?, &paths)?;
                if let Opened::Pinfold(_, files) = &opened {
                    files[0].advise(0..0, Hint::Random)?;
                    (0..file_bytes.div_ceil(PAGE_BYTES as u64))
                        .try_for_each(|page| files[0].get(page).map(drop))?;
                }
                Ok(opened)
            }
        }
    }
}

/// A worker's access to the bytes: reads a batch.
trait Batched {
    /// Copies the 64 bytes at each of `offsets` to the block of the same number.
    fn read(&mut self, offsets: &[u64]) -> Result<()>;

    /// A block.
    fn block(&self, n: usize) -> &[u8];
}

/// What is done with a worker's access.
trait Visit {
    fn visit(&self, batched: &mut impl Batched) -> Result<()>;
}

fn blocks(batch: usize) -> Vec<Block> {
    vec![[0; BLOCK_BYTES]; batch]
}

/// One read after the other.
struct OneByOne<R> {
    reader: R,
    blocks: Vec<Block>,
}

impl<R> OneByOne<R> {
    fn new(reader: R, batch: usize) -> Self {
        OneByOne { reader, blocks: blocks(batch) }
    }
}

impl<R: Reader> Batched for OneByOne<R> {
    #[inline(always)]
    fn read(&mut self, offsets: &[u64]) -> Result<()> {
        for (&offset, block) in offsets.iter().zip(&mut self.blocks) {
            let got = self.reader.read(block, offset)?;
            if got != BLOCK_BYTES {
                return Err(too_short(got, offset));
            }
        }
        looked_at(self.blocks.as_flattened());
        Ok(())
    }

    fn block(&self, n: usize) -> &[u8] {
        &self.blocks[n]
    }
}

#[cold]
#[inline(never)]
fn too_short(got: usize, offset: u64) -> anyhow::Error {
    anyhow!("a read of {BLOCK_BYTES} bytes at {offset} gave {got}")
}

/// The limit: a bare copy of a block.
#[derive(Clone, Copy)]
struct Bare<'a>(&'a [Block]);

impl Reader for Bare<'_> {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        buf.copy_from_slice(&self.0[offset as usize / BLOCK_BYTES]);
        Ok(BLOCK_BYTES)
    }
}

/// The same in two passes, the first of which only begins to fetch.
struct Prefetched<'a>(OneByOne<Bare<'a>>);

impl Batched for Prefetched<'_> {
    #[inline(always)]
    fn read(&mut self, offsets: &[u64]) -> Result<()> {
        for &offset in offsets {
            fetch(&self.0.reader.0[offset as usize / BLOCK_BYTES]);
        }
        self.0.read(offsets)
    }

    fn block(&self, n: usize) -> &[u8] {
        self.0.block(n)
    }
}

/// A batch of `read_many`, of which only the offsets change.
struct ReadMany<'b> {
    file: pinfold::File,
    reads: Vec<ReadAt<'b>>,
}

impl Batched for ReadMany<'_> {
    #[inline(always)]
    fn read(&mut self, offsets: &[u64]) -> Result<()> {
        for (&offset, read) in offsets.iter().zip(&mut self.reads) {
            read.offset = offset;
        }
        self.file.read_many(&mut self.reads)?;
        for read in &self.reads {
            match &read.result {
                Ok(BLOCK_BYTES) => {}
                Ok(got) => return Err(too_short(*got, read.offset)),
                Err(why) => bail!("no error was returned, and one is in a result: {why}"),
            }
            looked_at(read.buf);
        }
        Ok(())
    }

    fn block(&self, n: usize) -> &[u8] {
        self.reads[n].buf
    }
}

/// The page of an offset, and the place in it.
#[inline(always)]
fn page_of(offset: u64) -> (u64, usize) {
    (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES)
}

struct Counted(pinfold::File);

impl Reader for Counted {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let (page, at) = page_of(offset);
        buf.copy_from_slice(&self.0.get(page)?[at..][..BLOCK_BYTES]);
        Ok(BLOCK_BYTES)
    }
}

/// What a future comes to that is ready at its first poll.
#[inline(always)]
fn at_once<F: Future>(future: F) -> Result<F::Output> {
    match pin!(future).poll(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => bail!("a future was not ready, and all is in memory"),
    }
}

struct ReadAsync(pinfold::File);

impl Reader for ReadAsync {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(at_once(self.0.read_at_async(buf, offset))??)
    }
}

struct GetAsync(pinfold::File);

impl Reader for GetAsync {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let (page, at) = page_of(offset);
        buf.copy_from_slice(&at_once(self.0.get_async(page))??[at..][..BLOCK_BYTES]);
        Ok(BLOCK_BYTES)
    }
}

struct Borrowed {
    file: pinfold::File,
    reader: pinfold::Reader,
}

impl Reader for Borrowed {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let (page, at) = page_of(offset);
        buf.copy_from_slice(&self.file.borrow(page, &self.reader)?[at..][..BLOCK_BYTES]);
        Ok(BLOCK_BYTES)
    }
}

/// Pages by one call, in place.
trait Guards {
    /// Calls `copy` with each page, in order.
    fn with(&self, pages: &[u64], copy: impl FnMut(&[u8])) -> Result<()>;
}

impl Guards for Counted {
    #[inline(always)]
    fn with(&self, pages: &[u64], mut copy: impl FnMut(&[u8])) -> Result<()> {
        self.0.get_many(pages)?.iter().for_each(|guard| copy(guard));
        Ok(())
    }
}

impl Guards for Borrowed {
    #[inline(always)]
    fn with(&self, pages: &[u64], mut copy: impl FnMut(&[u8])) -> Result<()> {
        self.file.borrow_many(pages, &self.reader)?.iter().for_each(|guard| copy(guard));
        Ok(())
    }
}

/// A batch of `get_many` or `borrow_many`.
struct Many<G> {
    guards: G,
    pages: Vec<u64>,
    blocks: Vec<Block>,
}

impl<G> Many<G> {
    fn new(guards: G, batch: usize) -> Self {
        Many { guards, pages: vec![0; batch], blocks: blocks(batch) }
    }
}

impl<G: Guards> Batched for Many<G> {
    #[inline(always)]
    fn read(&mut self, offsets: &[u64]) -> Result<()> {
        for (&offset, page) in offsets.iter().zip(&mut self.pages) {
            *page = page_of(offset).0;
        }
        let mut into = offsets.iter().zip(&mut self.blocks);
        self.guards.with(&self.pages, |bytes| {
            if let Some((&offset, block)) = into.next() {
                block.copy_from_slice(&bytes[page_of(offset).1..][..BLOCK_BYTES]);
            }
        })?;
        ensure!(into.next().is_none(), "fewer pages came than were wanted");
        looked_at(self.blocks.as_flattened());
        Ok(())
    }

    fn block(&self, n: usize) -> &[u8] {
        &self.blocks[n]
    }
}

/// What one worker reads with one engine.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The engine.
    pub engine: &'static str,
    /// What it reads from.
    pub opened: &'a Opened,
    /// Reads of a batch.
    pub batch: usize,
    /// The length of the file; whole pages.
    pub file_bytes: u64,
    /// How long it reads before it is measured.
    pub warm_up: Duration,
}

impl Plan<'_> {
    fn visit(&self, visit: &impl Visit) -> Result<()> {
        let n = self.batch;
        match (self.engine, self.opened) {
            ("empty", _) => visit.visit(&mut OneByOne::new(Nothing, n)),
            ("memcpy", Opened::Memcpy(copies)) => {
                visit.visit(&mut OneByOne::new(Bare(copies[0].as_chunks().0), n))
            }
            ("memcpy-prefetch", Opened::Memcpy(copies)) => {
                visit.visit(&mut Prefetched(OneByOne::new(Bare(copies[0].as_chunks().0), n)))
            }
            ("mmap", Opened::Mmap(maps)) => visit.visit(&mut OneByOne::new(Bytes(&maps[0]), n)),
            (engine, Opened::Pinfold(cache, files)) => {
                let file = files[0].clone();
                match engine {
                    "pinfold-read" => visit.visit(&mut OneByOne::new(file, n)),
                    "pinfold-read-many" => {
                        let mut blocks = blocks(n);
                        let reads = blocks.iter_mut().map(|block| ReadAt::new(0, block)).collect();
                        visit.visit(&mut ReadMany { file, reads })
                    }
                    "pinfold-read-async" => visit.visit(&mut OneByOne::new(ReadAsync(file), n)),
                    "pinfold-get-async" => visit.visit(&mut OneByOne::new(GetAsync(file), n)),
                    "pinfold-get" => visit.visit(&mut OneByOne::new(Counted(file), n)),
                    "pinfold-get-many" => visit.visit(&mut Many::new(Counted(file), n)),
                    "pinfold-borrow" | "pinfold-borrow-many" => {
                        let one = Borrowed { file, reader: cache.reader()? };
                        match engine {
                            "pinfold-borrow" => visit.visit(&mut OneByOne::new(one, n)),
                            _ => visit.visit(&mut Many::new(one, n)),
                        }
                    }
                    other => bail!("no engine {other}"),
                }
            }
            (other, _) => bail!("no engine {other}"),
        }
    }

    fn count(&self) -> Result<u64> {
        let count = self.file_bytes / BLOCK_BYTES as u64;
        ensure!(count < 1 << 32, "{count} blocks are more than can be told apart here");
        Ok(count)
    }

    /// Reads some batches, and compares each block with what the file holds.
    pub fn check(&self) -> Result<()> {
        if self.engine == "empty" {
            return Ok(());
        }
        self.visit(&Check { count: self.count()?, batch: self.batch })
            .with_context(|| format!("{}, batches of {}", self.engine, self.batch))
    }
}

impl Work for Plan<'_> {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        self.visit(&Timed { plan: self, count: self.count()?, board, worker })
    }
}

struct Check {
    count: u64,
    batch: usize,
}

impl Visit for Check {
    fn visit(&self, batched: &mut impl Batched) -> Result<()> {
        let (mut state, mut offsets) = (0, vec![0; self.batch]);
        for _ in 0..CHECKED_BATCHES {
            rounds(batched, &mut offsets, &mut state, self.count, 1)?;
            for (n, &offset) in offsets.iter().enumerate() {
                CONTENTS.check(offset, batched.block(n)).map_err(|wrong| anyhow!("{wrong}"))?;
            }
        }
        Ok(())
    }
}

struct Timed<'a> {
    plan: &'a Plan<'a>,
    count: u64,
    board: &'a Board,
    worker: usize,
}

impl Visit for Timed<'_> {
    fn visit(&self, batched: &mut impl Batched) -> Result<()> {
        let batch = self.plan.batch;
        let (mut state, mut offsets) = (self.worker as u64, vec![0; batch]);
        let turns = (BATCH as usize / batch).max(1);
        let mut some = || rounds(batched, &mut offsets, &mut state, self.count, turns);
        // The engine before this one has left nothing of ours in the CPU's caches.
        let begun = Instant::now();
        while begun.elapsed() < self.plan.warm_up {
            some()?;
        }
        workers::work(self.board, self.worker, (turns * batch) as u64, some)
    }
}

/// Draws and reads this many batches. In a function of its own: so that how the loop is compiled
/// does not depend on its surroundings.
#[inline(never)]
fn rounds(
    batched: &mut impl Batched,
    offsets: &mut [u64],
    state: &mut u64,
    count: u64,
    turns: usize,
) -> Result<()> {
    for _ in 0..turns {
        for offset in &mut *offsets {
            *offset = draw(state, count) * BLOCK_BYTES as u64;
        }
        batched.read(offsets)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::bench::scratch::{self, Scratch};

    /// Blocks as the file has them, with one thing wrong in each batch.
    struct Wrong {
        blocks: Vec<Block>,
        fault: Fault,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        None,
        /// Two blocks change places.
        Swapped,
        /// The last block is that of the batch before.
        Stale,
    }

    impl Batched for Wrong {
        fn read(&mut self, offsets: &[u64]) -> Result<()> {
            let read = offsets.len() - usize::from(self.fault == Fault::Stale);
            for (&offset, block) in offsets[..read].iter().zip(&mut self.blocks) {
                CONTENTS.fill(offset, block);
            }
            if self.fault == Fault::Swapped {
                self.blocks.swap(1, 3);
            }
            Ok(())
        }

        fn block(&self, n: usize) -> &[u8] {
            &self.blocks[n]
        }
    }

    /// How many folios the checks of the engines with guards split, and those of the others.
    fn split_by_checks(held: impl Fn(&str) -> Held) -> [u64; 2] {
        const BYTES: u64 = 64 << 20;
        let file =
            Scratch::filled(&scratch::memory_dir(), BYTES, |at, part| CONTENTS.fill(at, part));
        let file = file.unwrap();
        let names = ["pinfold-get-many", "pinfold-read-many", "pinfold-borrow-many"];
        let all: BTreeSet<_> = names.iter().map(|name| held(name)).collect();
        let all: BTreeMap<_, _> =
            all.into_iter().map(|held| (held, held.open(&file.path(), BYTES).unwrap())).collect();
        for engine in names {
            let (opened, file_bytes, warm_up) = (&all[&held(engine)], BYTES, Duration::ZERO);
            Plan { engine, opened, batch: 64, file_bytes, warm_up }.check().unwrap();
        }
        ["pinfold-get", "pinfold-read"].map(|name| all[&held(name)].splits())
    }

    #[test]
    fn guards_split_no_folios_of_other_engines() {
        let [guards, others] = split_by_checks(|name| Held::by(name, Folios::Large));
        assert!(guards > 0 && others == 0, "{guards} by guards, {others} by others");
        let [_, others] = split_by_checks(|_| Held::Cache(Folios::Large));
        assert!(others > 0, "the test sees no split");
    }

    #[test]
    fn the_check_sees_a_block_in_the_wrong_place() {
        let check = |fault| {
            let check = Check { count: 1 << 20, batch: 8 };
            check.visit(&mut Wrong { blocks: blocks(8), fault })
        };
        check(Fault::None).unwrap();
        let error = check(Fault::Swapped).unwrap_err().to_string();
        assert!(error.contains("whole cells, from"), "{error}");
        let error = check(Fault::Stale).unwrap_err().to_string();
        assert!(error.contains("wrong byte at"), "{error}");
    }
}
