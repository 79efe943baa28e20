//! Ways to read a file, all in one shape: a bare copy, `pread`, `mmap` and the cache.
//!
//! Here: opening them, and the loop that reads blocks with one of them. Not here: which files,
//! blocks and workers (`read.rs`, `try_cache/mod.rs`). Files larger than memory are read by
//! `miss_child.rs`, with the same [`Reader`]s.
//!
//! The loop is compiled once for each engine, with common block sizes as constants, as a program
//! would have them. What it costs beside the read (a counter and, for random reads, one step of a
//! generator) is shown as an engine of its own, `empty`; the clock is looked at between batches.

use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use memmap2::{Advice, Mmap, MmapMut};
use pinfold::{Cache, Options};

use super::opaque::{looked_at, unknown};
use super::scratch::open_plain;
use super::shared::Board;
use super::workers::{self, BATCH};

/// Engines that read cached bytes: the loop itself and the limit first.
pub const NAMES: [&str; 7] =
    ["empty", "memcpy", "pread", "mmap", "pinfold", "pinfold-counted", "pinfold-cas"];

const CHUNK_BYTES: usize = 1 << 20;

/// Knuth's generator for MMIX.
const LCG_FACTOR: u64 = 6_364_136_223_846_793_005;
const LCG_TERM: u64 = 1_442_695_040_888_963_407;

/// Something that reads at an offset.
pub trait Reader {
    /// As pread(2).
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
}

/// Memory that holds the whole file.
#[derive(Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Reader for Bytes<'_> {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        if let Some(bytes) = rest.get(..buf.len()) {
            buf.copy_from_slice(bytes);
            return Ok(buf.len());
        }
        buf[..rest.len()].copy_from_slice(rest);
        Ok(rest.len())
    }
}

/// No bytes at all: the cost of the loop.
#[derive(Debug)]
pub struct Nothing;

impl Reader for Nothing {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        unknown(offset);
        Ok(buf.len())
    }
}

/// The limit: a bare copy, of blocks that the memory is known to have.
struct Bare<'a>(&'a [u8]);

impl Reader for Bare<'_> {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        debug_assert!(offset as usize + buf.len() <= self.0.len(), "no such block");
        let from = self.0.as_ptr().wrapping_add(offset as usize);
        // SAFETY: `Blocks::read_within` has made sure that all blocks lie inside.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
        Ok(buf.len())
    }
}

impl Reader for std::fs::File {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.read_at(buf, offset)?)
    }
}

impl Reader for pinfold::File {
    #[inline(always)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.read_at(buf, offset)?)
    }
}

/// An engine with its files.
#[derive(Debug)]
pub enum Opened {
    /// Nothing: the loop alone.
    Empty,
    /// Copies of the files in private memory.
    Memcpy(Vec<MmapMut>),
    /// System calls, every worker on a descriptor of its own.
    Pread(Vec<PathBuf>),
    /// Mappings.
    Mmap(Vec<Mmap>),
    /// The cache, every worker on a handle of its own.
    Pinfold(Cache, Vec<pinfold::File>),
}

impl Opened {
    /// Opens `paths` with the engine of that name, all their bytes in memory.
    pub fn resident(engine: &str, paths: &[PathBuf]) -> Result<Self> {
        let opened = match engine {
            "empty" => Opened::Empty,
            "memcpy" => {
                Opened::Memcpy(paths.iter().map(|path| copy_of(path)).collect::<Result<_>>()?)
            }
            "pread" => Opened::Pread(paths.to_vec()),
            "mmap" => {
                Opened::Mmap(paths.iter().map(|path| mapping_of(path)).collect::<Result<_>>()?)
            }
            _ => {
                let mut bytes = 0;
                for path in paths {
                    bytes += open_plain(path)?.metadata()?.len().next_multiple_of(4096);
                }
                Self::cached(options(engine, resident_budget_bytes(bytes))?, paths)?
            }
        };
        (0..paths.len()).try_for_each(|file| opened.warm(file, u64::MAX))?;
        if let Opened::Pinfold(cache, _) = &opened {
            let stats = cache.stats();
            ensure!(
                stats.evictions == 0,
                "{engine}: {} bytes were evicted from a budget of {} that was to hold all files",
                stats.evicted_bytes,
                stats.budget_bytes
            );
        }
        Ok(opened)
    }

    /// Opens `paths` in a cache of its own.
    pub fn cached(options: Options, paths: &[PathBuf]) -> Result<Self> {
        let cache = Cache::new(options)?;
        let files = paths.iter().map(|path| cache.open(path)).collect::<pinfold::Result<_>>()?;
        Ok(Opened::Pinfold(cache, files))
    }

    /// Reads a file once, up to `end`.
    pub fn warm(&self, file: usize, end: u64) -> Result<()> {
        match self {
            Opened::Empty => Ok(()),
            Opened::Memcpy(copies) => warm(&Bytes(&copies[file]), end),
            Opened::Pread(paths) => warm(&open_plain(&paths[file])?, end),
            Opened::Mmap(maps) => warm(&Bytes(&maps[file]), end),
            Opened::Pinfold(_, files) => warm(&files[file], end),
        }
    }

    /// One worker's life: reads blocks of a file.
    pub fn read_blocks(
        &self,
        file: usize,
        blocks: Blocks,
        board: &Board,
        worker: usize,
    ) -> Result<()> {
        match self {
            Opened::Empty => blocks.read(&Nothing, board, worker),
            Opened::Memcpy(copies) => blocks.read_within(&copies[file], board, worker),
            Opened::Pread(paths) => blocks.read(&open_plain(&paths[file])?, board, worker),
            Opened::Mmap(maps) => blocks.read(&Bytes(&maps[file]), board, worker),
            Opened::Pinfold(_, files) => blocks.read(&files[file].clone(), board, worker),
        }
    }

    /// Misses so far, where that is known.
    pub fn misses(&self) -> Option<u64> {
        match self {
            Opened::Pinfold(cache, _) => Some(cache.stats().misses),
            _ => None,
        }
    }

    /// Large folios that were split so far.
    pub fn splits(&self) -> u64 {
        match self {
            Opened::Pinfold(cache, _) => cache.stats().splits,
            _ => 0,
        }
    }
}

/// A budget that holds this many bytes of files without evicting anything.
pub fn resident_budget_bytes(file_bytes: u64) -> u64 {
    file_bytes + file_bytes / 8 + (64 << 20)
}

/// The option in which the engines of the cache differ.
pub fn options(engine: &str, budget_bytes: u64) -> Result<Options> {
    let options = Options::new(budget_bytes);
    Ok(match engine {
        "pinfold" => options,
        "pinfold-counted" => Options { short_read_max_bytes: 0, ..options },
        #[cfg(feature = "bench")]
        "pinfold-cas" => {
            Options { short_read_max_bytes: 0, reference: pinfold::Reference::CasLoop, ..options }
        }
        other => anyhow::bail!("no engine {other}"),
    })
}

fn copy_of(path: &Path) -> Result<MmapMut> {
    let file = open_plain(path)?;
    let bytes = file.metadata()?.len() as usize;
    let mut copy = MmapMut::map_anon(bytes).context("no memory for a copy of the file")?;
    // The cache asks for huge pages too. Where there are none, the refusal of the advice does no
    // harm.
    let _ = copy.advise(Advice::HugePage);
    file.read_exact_at(&mut copy, 0).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(copy)
}

/// Maps a file to be read.
pub fn mapping_of(path: &Path) -> Result<Mmap> {
    let file = open_plain(path)?;
    // SAFETY: the bytes are only ever copied out of the mapping. Files that benchmarks write have
    // no name, so no other process can change or truncate them; for a file that the user names, the
    // help says that it must not change meanwhile.
    let map = unsafe { Mmap::map(&file) };
    map.with_context(|| format!("cannot map {}", path.display()))
}

fn warm(reader: &impl Reader, end: u64) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    // Ends: each turn gets forward, or is the last.
    while offset < end {
        let bytes = (end - offset).min(CHUNK_BYTES as u64) as usize;
        match reader.read(black_box(&mut chunk[..bytes]), offset)? {
            0 => break,
            got => offset += got as u64,
        }
    }
    Ok(())
}

/// Which blocks are read.
#[derive(Debug, Clone, Copy)]
pub struct Blocks {
    /// How long each is; not 0, and not more than there is.
    pub block_bytes: usize,
    /// At random among the multiples of their length that are below this; `None`: the one at 0.
    pub random_below: Option<u64>,
}

impl Blocks {
    /// Reads with the limit, a bare copy.
    fn read_within(self, bytes: &[u8], board: &Board, worker: usize) -> Result<()> {
        let end = self.random_below.unwrap_or(self.block_bytes as u64);
        ensure!(
            end <= bytes.len() as u64,
            "blocks up to {end} are wanted of {} bytes",
            bytes.len()
        );
        self.read(&Bare(bytes), board, worker)
    }

    fn read<R: Reader>(self, reader: &R, board: &Board, worker: usize) -> Result<()> {
        match self.block_bytes {
            #[cfg(feature = "bench")]
            1 => self.read_sized::<R, 1>(reader, board, worker),
            #[cfg(feature = "bench")]
            32 => self.read_sized::<R, 32>(reader, board, worker),
            64 => self.read_sized::<R, 64>(reader, board, worker),
            #[cfg(feature = "bench")]
            256 => self.read_sized::<R, 256>(reader, board, worker),
            #[cfg(feature = "bench")]
            1024 => self.read_sized::<R, 1024>(reader, board, worker),
            4096 => self.read_sized::<R, 4096>(reader, board, worker),
            #[cfg(feature = "bench")]
            32768 => self.read_sized::<R, 32768>(reader, board, worker),
            _ => self.read_sized::<R, 0>(reader, board, worker),
        }
    }

    /// With the length as a constant; 0: it is none.
    fn read_sized<R: Reader, const BYTES: usize>(
        self,
        reader: &R,
        board: &Board,
        worker: usize,
    ) -> Result<()> {
        let mut memory = super::scratch::Aligned::zeroed(self.block_bytes);
        let buf = &mut memory.bytes_mut()[..self.block_bytes];
        match self.random_below {
            None => workers::work(board, worker, BATCH, || batch_of_first::<R, BYTES>(reader, buf)),
            Some(below) => {
                let count = below / self.block_bytes as u64;
                ensure!(count < 1 << 32, "{count} blocks are more than can be told apart here");
                let mut state = worker as u64;
                workers::work(board, worker, BATCH, || {
                    state = batch_at_random::<R, BYTES>(reader, buf, state, count)?;
                    Ok(())
                })
            }
        }
    }
}

/// Reads the block at 0, over and over. In a function of its own: so that how the loop is compiled
/// does not depend on its surroundings.
#[inline(never)]
fn batch_of_first<R: Reader, const BYTES: usize>(reader: &R, buf: &mut [u8]) -> Result<()> {
    let buf = sized::<BYTES>(buf);
    for _ in 0..BATCH {
        once(reader, buf, unknown(0))?;
    }
    Ok(())
}

/// Reads blocks at random, of this many; gives the generator's next state.
#[inline(never)]
fn batch_at_random<R: Reader, const BYTES: usize>(
    reader: &R,
    buf: &mut [u8],
    mut state: u64,
    count: u64,
) -> Result<u64> {
    let buf = sized::<BYTES>(buf);
    for _ in 0..BATCH {
        let block = draw(&mut state, count);
        once(reader, buf, block * buf.len() as u64)?;
    }
    Ok(state)
}

/// Draws one of this many blocks, below 2^32; moves the generator on.
#[inline(always)]
pub fn draw(state: &mut u64, count: u64) -> u64 {
    // Its upper half is random enough to spread reads. A better generator would cost as much as a
    // read: what waits for memory is paid by the instruction.
    *state = state.wrapping_mul(LCG_FACTOR).wrapping_add(LCG_TERM);
    ((*state >> 32) * count) >> 32
}

/// The buffer with its length as a constant, if it is one.
#[inline(always)]
fn sized<const BYTES: usize>(buf: &mut [u8]) -> &mut [u8] {
    if BYTES == 0 { buf } else { &mut buf[..BYTES] }
}

#[inline(always)]
fn once<R: Reader>(reader: &R, buf: &mut [u8], offset: u64) -> Result<()> {
    let got = reader.read(buf, offset)?;
    if got != buf.len() {
        return Err(too_short(got, buf.len(), offset));
    }
    looked_at(buf);
    Ok(())
}

#[cold]
#[inline(never)]
fn too_short(got: usize, wanted: usize, offset: u64) -> anyhow::Error {
    anyhow::anyhow!("a read of {wanted} bytes at {offset} gave {got}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_as_pread_does() {
        let bytes = Bytes(b"0123456789");
        let mut buf = [0; 4];
        let mut read = |offset| {
            let got = bytes.read(&mut buf, offset).unwrap();
            buf[..got].to_vec()
        };
        assert_eq!(read(3), b"3456");
        assert_eq!(read(8), b"89");
        assert_eq!(read(10), b"");
        assert_eq!(read(u64::MAX), b"");
    }
}
