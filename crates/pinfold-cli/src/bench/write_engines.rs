//! Ways to write to a file, all in one shape: a bare copy, `pwrite`, `mmap` and the cache.
//!
//! Here: opening them, the loop that overwrites blocks with one of them, and what the file must
//! hold afterwards. Not here: which files, blocks and workers (`write.rs`, `write_cases.rs`).
//!
//! Each worker has places of its own, in an order that can be drawn again: so the last bytes of
//! each place are known, and are compared with the file after each sample.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use memmap2::{Advice, MmapMut, MmapRaw};
use pinfold::{Cache, FileOptions, Hint, Options};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::fs::OFlags;

use super::engines::{Nothing, Reader, draw};
use super::opaque::{looked_at, unknown};
use super::scratch::{Aligned, open_plain};
use super::shared::Board;
use super::workers::{self, BATCH, Work};

/// What is cached and synced as one.
pub const PAGE_BYTES: u64 = 4096;
/// Different blocks that a worker writes in turns.
pub const BLOCKS: usize = 16;

/// Something that writes at an offset.
pub trait Writer {
    /// All of `bytes`.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Behind the end of the file.
    fn append(&self, bytes: &[u8], end: u64) -> Result<()> {
        self.write(bytes, end)
    }

    /// Until what was written is durable, all of it in `range`.
    fn sync(&self, range: Range<u64>) -> Result<()>;
}

impl Writer for Nothing {
    #[inline(always)]
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        looked_at(bytes);
        unknown(offset);
        Ok(())
    }
    fn sync(&self, _: Range<u64>) -> Result<()> {
        Ok(())
    }
}

impl Writer for File {
    #[inline(always)]
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Ok(self.write_all_at(bytes, offset)?)
    }
    fn sync(&self, _: Range<u64>) -> Result<()> {
        Ok(self.sync_data()?)
    }
}

impl Writer for pinfold::File {
    #[inline(always)]
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Ok(self.write_at(bytes, offset)?)
    }
    fn append(&self, bytes: &[u8], end: u64) -> Result<()> {
        let at = pinfold::File::append(self, bytes)?;
        ensure!(at == end, "bytes for {end} were appended at {at}");
        Ok(())
    }
    fn sync(&self, _: Range<u64>) -> Result<()> {
        Ok(self.sync_data()?)
    }
}

/// A shared mapping of a file.
#[derive(Debug)]
pub struct Mapped(MmapRaw);

impl Mapped {
    #[inline(always)]
    fn at(&self, offset: u64, bytes: usize) -> *mut u8 {
        let end = (offset as usize).checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.0.len()), "beyond the mapping");
        self.0.as_mut_ptr().wrapping_add(offset as usize)
    }
}

impl Writer for Mapped {
    #[inline(always)]
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let to = self.at(offset, bytes.len());
        // SAFETY: inside the mapping; workers write and read at places of their own.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }
    fn sync(&self, range: Range<u64>) -> Result<()> {
        let bytes = (range.end - range.start) as usize;
        Ok(self.0.flush_range(range.start as usize, bytes)?)
    }
}

impl Reader for Mapped {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let from = self.at(offset, buf.len());
        // SAFETY: as in `write`.
        unsafe { copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
        Ok(buf.len())
    }
}

/// Private memory, and a cache line for each of its pages.
#[derive(Debug)]
pub struct Memory {
    bytes: Mapped,
    lines: Vec<Line>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

impl Writer for Memory {
    #[inline(always)]
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.bytes.write(bytes, offset)?;
        // Relaxed: nobody reads it.
        self.lines[(offset / PAGE_BYTES) as usize].0.store(offset, Ordering::Relaxed);
        Ok(())
    }
    fn sync(&self, _: Range<u64>) -> Result<()> {
        Ok(())
    }
}

/// An engine with its file.
#[derive(Debug)]
pub enum Engine {
    /// Nothing: the loop alone.
    Empty,
    /// A copy of the file.
    Memory(Memory),
    /// System calls, every worker on a descriptor of its own.
    Pwrite(PathBuf),
    /// `pwrite` past the kernel's cache.
    Direct(PathBuf),
    /// A mapping.
    Mmap(Mapped),
    /// The cache, every worker on a handle of its own.
    Pinfold(Cache, pinfold::File),
}

/// Opens a file to be written to.
pub fn open_to_write(path: &Path, flags: OFlags) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    options.open(path).with_context(|| format!("cannot open {} for writing", path.display()))
}

/// Maps all of a file to be written to.
pub fn map_to_write(path: &Path) -> Result<Mapped> {
    let file = open_to_write(path, OFlags::empty())?;
    let map = MmapRaw::map_raw(&file);
    map.map(Mapped).with_context(|| format!("cannot map {}", path.display()))
}

/// Opens a file to be written to through a cache.
pub fn open_cached(cache: &Cache, path: &Path) -> Result<pinfold::File> {
    let options = FileOptions { write: true, ..FileOptions::default() };
    Ok(cache.open_with(path, options)?)
}

/// What is done with an engine, compiled for each.
pub trait Visit {
    /// With this one.
    fn visit<W: Writer + Reader>(&self, engine: &W) -> Result<()>;
}

impl Engine {
    /// Opens `path` with the engine of that name.
    pub fn new(engine: &str, path: &Path, budget_bytes: u64) -> Result<Self> {
        Ok(match engine {
            "empty" => Engine::Empty,
            "memcpy-store" => {
                let file = open_plain(path)?;
                let bytes = file.metadata()?.len() as usize;
                let mut copy = MmapMut::map_anon(bytes).context("no memory for a copy")?;
                // The cache asks for huge pages, too; small ones do.
                let _ = copy.advise(Advice::HugePage);
                file.read_exact_at(&mut copy, 0)?;
                let pages = bytes.div_ceil(PAGE_BYTES as usize);
                let lines = std::iter::repeat_with(Line::default).take(pages).collect();
                Engine::Memory(Memory { bytes: Mapped(copy.into()), lines })
            }
            "pwrite" => Engine::Pwrite(path.to_owned()),
            "pwrite-direct" => Engine::Direct(path.to_owned()),
            "mmap" => {
                let map = map_to_write(path)?;
                // An empty one cannot be advised, and need not.
                let _ = map.0.advise(Advice::Random);
                Engine::Mmap(map)
            }
            "pinfold" => {
                let cache = Cache::new(Options::new(budget_bytes))?;
                let file = open_cached(&cache, path)?;
                // Single pages, as what is written at random comes to be.
                file.advise(0..file.len(), Hint::Random)?;
                Engine::Pinfold(cache, file)
            }
            other => bail!("no engine {other}"),
        })
    }

    /// Calls `visit` with it.
    pub fn visit(&self, visit: &impl Visit) -> Result<()> {
        match self {
            Engine::Empty => visit.visit(&Nothing),
            Engine::Memory(memory) => visit.visit(memory),
            Engine::Pwrite(path) => visit.visit(&open_to_write(path, OFlags::empty())?),
            Engine::Direct(path) => visit.visit(&open_to_write(path, OFlags::DIRECT)?),
            Engine::Mmap(map) => visit.visit(map),
            Engine::Pinfold(_, file) => visit.visit(&file.clone()),
        }
    }

    /// Misses so far, where that is known.
    pub fn misses(&self) -> Option<u64> {
        match self {
            Engine::Pinfold(cache, _) => Some(cache.stats().misses),
            _ => None,
        }
    }
}

impl Reader for Memory {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.bytes.read(buf, offset)
    }
}

/// Where workers write: `count` places for each, `stride` bytes apart.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// Where the first worker's first place is.
    pub begin: u64,
    /// From a worker's place to its next one.
    pub stride: u64,
    /// Of one worker; below 2^32.
    pub count: u64,
}

/// The writes of one worker: which place, which of its blocks.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    places: Places,
    /// The worker's first place.
    first: u64,
    state: u64,
    done: u64,
}

impl Walk {
    /// Of this worker, in blocks of so many bytes.
    pub fn new(places: Places, worker: usize, block_bytes: usize) -> Self {
        let first = places.begin + (worker * block_bytes) as u64;
        Walk { places, first, state: worker as u64, done: 0 }
    }

    /// The next write: its block and its offset.
    #[inline(always)]
    pub fn write(&mut self) -> (usize, u64) {
        let place = draw(&mut self.state, self.places.count);
        let block = self.done as usize % BLOCKS;
        self.done += 1;
        (block, self.first + place * self.places.stride)
    }

    /// The offsets of all that was written in so many writes, each with its last block.
    fn written(mut self, writes: u64) -> impl Iterator<Item = (u64, usize)> {
        let mut last = vec![None; self.places.count as usize];
        for _ in 0..writes {
            let (block, offset) = self.write();
            last[((offset - self.first) / self.places.stride) as usize] = Some((offset, block));
        }
        last.into_iter().flatten()
    }
}

/// The blocks of a worker in a round, one behind the other; for direct I/O, too.
pub fn blocks(worker: usize, round: u64, block_bytes: usize) -> Aligned {
    let mut memory = Aligned::zeroed(BLOCKS * block_bytes);
    Pcg64Mcg::seed_from_u64((round << 16) | worker as u64).fill_bytes(memory.bytes_mut());
    memory
}

/// A file of cached pages, what it holds, and the engine that writes to it.
#[derive(Debug)]
pub struct Ground {
    /// The engine.
    pub engine: Engine,
    path: PathBuf,
    holds: Vec<u8>,
    /// Blocks differ by it.
    pub round: u64,
}

impl Ground {
    /// Reads the file once.
    pub fn new(engine: &str, path: &Path, budget_bytes: u64) -> Result<Self> {
        let engine = Engine::new(engine, path, budget_bytes)?;
        let ground =
            Ground { engine, path: path.to_owned(), holds: std::fs::read(path)?, round: 0 };
        if !matches!(ground.engine, Engine::Direct(_)) {
            ground.engine.visit(&Warm(&ground.holds))?;
        }
        Ok(ground)
    }

    /// How many there are.
    pub fn pages(&self) -> u64 {
        self.holds.len() as u64 / PAGE_BYTES
    }

    /// Writes the beginning of each page as it is: now all of them are dirty.
    pub fn dirty(&self) -> Result<()> {
        self.engine.visit(&Dirty(&self.holds))
    }

    /// A worker has made so many writes in this round: now the file holds their last bytes.
    pub fn wrote(&mut self, worker: usize, walk: Walk, writes: u64, block_bytes: usize) {
        let mut memory = blocks(worker, self.round, block_bytes);
        let blocks = memory.bytes_mut();
        for (offset, block) in walk.written(writes) {
            let bytes = &blocks[block * block_bytes..][..block_bytes];
            self.holds[offset as usize..][..block_bytes].copy_from_slice(bytes);
        }
    }

    /// Syncs, and compares the file with what it should hold. Begins the next round.
    pub fn check(&mut self) -> Result<()> {
        self.round += 1;
        let all = 0..self.holds.len() as u64;
        let got = match &self.engine {
            Engine::Empty => return Ok(()),
            Engine::Memory(memory) => {
                let mut bytes = vec![0; self.holds.len()];
                memory.read(&mut bytes, 0)?;
                bytes
            }
            engine => {
                engine.visit(&Sync(all))?;
                std::fs::read(&self.path)?
            }
        };
        same(&got, &self.holds, 0)
    }
}

/// Whether these are the bytes that `offset` should have.
pub fn same(got: &[u8], expected: &[u8], offset: u64) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    let differs = got.iter().zip(expected).position(|(got, expected)| got != expected);
    let at = offset + differs.unwrap_or(got.len().min(expected.len())) as u64;
    bail!("wrong bytes were written: the first that differs is at {at}")
}

struct Warm<'a>(&'a [u8]);

impl Visit for Warm<'_> {
    fn visit<W: Writer + Reader>(&self, engine: &W) -> Result<()> {
        let mut page = vec![0; PAGE_BYTES as usize];
        (0..self.0.len() as u64 / PAGE_BYTES).try_for_each(|n| {
            engine.read(&mut page, n * PAGE_BYTES)?;
            Ok(())
        })
    }
}

struct Dirty<'a>(&'a [u8]);

impl Visit for Dirty<'_> {
    fn visit<W: Writer + Reader>(&self, engine: &W) -> Result<()> {
        let mut pages = (0_u64..).step_by(PAGE_BYTES as usize).zip(self.0.chunks(64).step_by(64));
        pages.try_for_each(|(offset, bytes)| engine.write(bytes, offset))
    }
}

struct Sync(Range<u64>);

impl Visit for Sync {
    fn visit<W: Writer + Reader>(&self, engine: &W) -> Result<()> {
        engine.sync(self.0.clone())
    }
}

/// The work of threads that overwrite what is cached.
#[derive(Debug)]
pub struct Overwriting<'a> {
    /// Where.
    pub ground: &'a Ground,
    /// At which places.
    pub places: Places,
    /// How long a block is: 64 or 4096.
    pub block_bytes: usize,
    /// Whether each write is synced.
    pub is_synced: bool,
}

impl Work for Overwriting<'_> {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        self.ground.engine.visit(&Overwriter { of: self, board, worker })
    }
}

struct Overwriter<'a> {
    of: &'a Overwriting<'a>,
    board: &'a Board,
    worker: usize,
}

impl Visit for Overwriter<'_> {
    fn visit<W: Writer + Reader>(&self, engine: &W) -> Result<()> {
        match self.of.block_bytes {
            64 => self.sized::<W, 64>(engine),
            4096 => self.sized::<W, 4096>(engine),
            other => bail!("no blocks of {other} bytes"),
        }
    }
}

impl Overwriter<'_> {
    fn sized<W: Writer, const BYTES: usize>(&self, engine: &W) -> Result<()> {
        let mut memory = blocks(self.worker, self.of.ground.round, BYTES);
        let (blocks, _) = memory.bytes_mut().as_chunks::<BYTES>();
        let blocks = blocks.first_chunk::<BLOCKS>().context("fewer blocks")?;
        let mut walk = Walk::new(self.of.places, self.worker, BYTES);
        if self.of.is_synced {
            return workers::work(self.board, self.worker, 1, || {
                let (block, offset) = walk.write();
                engine.write(&blocks[block], offset)?;
                engine.sync(offset..offset + BYTES as u64)
            });
        }
        workers::work(self.board, self.worker, BATCH, || {
            walk = batch(engine, blocks, walk)?;
            Ok(())
        })
    }
}

/// In a function of its own: so that how the loop is compiled does not depend on its surroundings.
/// A batch is a whole number of turns of the blocks, so it begins with the first of them.
#[inline(never)]
fn batch<W: Writer, const BYTES: usize>(
    engine: &W,
    blocks: &[[u8; BYTES]; BLOCKS],
    mut walk: Walk,
) -> Result<Walk> {
    if walk.places.count == 1 {
        // Without drawing a place, which would cost as much as a bare copy.
        for n in 0..BATCH as usize {
            engine.write(&blocks[n % BLOCKS], unknown(walk.first))?;
        }
        walk.done += BATCH;
        return Ok(walk);
    }
    for _ in 0..BATCH {
        let (block, offset) = walk.write();
        engine.write(&blocks[block], offset)?;
    }
    Ok(walk)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places { begin: 4096, stride: 4096, count: 3 };

    #[test]
    fn what_was_written_last_is_what_is_expected() {
        let mut walk = Walk::new(PLACES, 1, 64);
        let mut bytes = vec![0; 5 * 4096];
        let mut memory = blocks(1, 7, 64);
        for _ in 0..100 {
            let (block, offset) = walk.write();
            let from = &memory.bytes_mut()[block * 64..][..64];
            bytes[offset as usize..][..64].copy_from_slice(from);
        }
        let written: Vec<_> = Walk::new(PLACES, 1, 64).written(100).collect();
        assert_eq!(written.len(), 3);
        for (offset, block) in written {
            assert_eq!((offset - 64) % 4096, 0);
            let expected = &memory.bytes_mut()[block * 64..][..64];
            same(&bytes[offset as usize..][..64], expected, offset).unwrap();
        }
    }

    #[test]
    fn a_write_that_is_lost_is_found() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, &[7; 4 * 4096]).unwrap();
        for engine in ["memcpy-store", "pwrite", "mmap", "pinfold"] {
            let mut ground = Ground::new(engine, file.path(), 16 << 20).unwrap();
            ground.dirty().unwrap();
            ground.check().unwrap();
            ground.wrote(0, Walk::new(PLACES, 0, 64), 1, 64);
            let error = ground.check().unwrap_err().to_string();
            assert!(error.contains("wrong bytes were written"), "{engine}: {error}");
        }
    }
}
