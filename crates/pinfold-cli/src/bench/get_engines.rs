//! Ways to a page in place: the limit, the cache's guards, and other caches.
//!
//! Here: filling each with the pages of one file, checking the pages it returns, and the timed
//! loop. Not here: which engines, cases and workers (`get.rs`). The other caches are in a crate of
//! their own (`pinfold-peers`), which is compiled in with the feature `peers` only.
//!
//! An operation is the same for all: get the page by its number, copy 64 bytes out of it, release
//! it. The loop is compiled once for each engine. What it costs beside that operation (a counter,
//! and in the zipf case four bytes of an array drawn beforehand, read in order) is shown as an
//! engine of its own, `empty`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memmap2::{Advice, Mmap, MmapMut, MmapRaw};
use pinfold::{Cache, Hint, Options, Reference};
#[cfg(feature = "peers")]
use pinfold_peers::{Foyer, HyperClock, Moka, Peer, QuickCache};

use super::opaque::{looked_at, unknown};
use super::shared::Board;
use super::workers::{self, BATCH};

/// The length of a page.
pub const PAGE_BYTES: usize = 4096;
/// What is copied out of a page.
pub const BLOCK_BYTES: usize = 64;
const BLOCKS: usize = PAGE_BYTES / BLOCK_BYTES;

/// Engines of this workspace: the loop itself and the limits first.
pub const OURS: [&str; 7] = [
    "empty",
    "memcpy",
    "memcpy-add",
    "pinfold-borrow",
    "pinfold-borrow-2M",
    "pinfold-get",
    "pinfold-cas",
];
/// Other caches.
pub const PEERS: [&str; 4] = ["moka", "quick_cache", "foyer", "hyperclock"];

/// The engines of this build.
pub fn names() -> Vec<&'static str> {
    let peers: &[&str] = if cfg!(feature = "peers") { &PEERS } else { &[] };
    OURS.iter().chain(peers).copied().collect()
}

/// A block of a page, as four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot(u32);

impl Spot {
    /// The most pages whose blocks differ from each other.
    pub const PAGES_MAX: u64 = 1 << (u32::BITS - BLOCKS.ilog2());

    /// Some block of `page`. Which one is the page's own affair: if it were always the first, all
    /// would compete for the same few sets of the CPU's caches.
    pub fn in_page(page: u64) -> Self {
        assert!(page < Self::PAGES_MAX, "page {page} does not fit");
        let block = (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as u32;
        Spot((page as u32) << BLOCKS.ilog2() | block)
    }

    /// The page's number, and the offset of the block in it.
    fn of(self) -> (u64, usize) {
        (u64::from(self.0 >> BLOCKS.ilog2()), (self.0 as usize % BLOCKS) * BLOCK_BYTES)
    }
}

/// Which blocks a worker reads.
#[derive(Debug, Clone, Copy)]
pub enum Walk<'a> {
    /// The same one, over and over.
    Same(Spot),
    /// One after the other, and from the front again. As many as a power of two.
    Drawn(&'a [Spot]),
}

/// A worker's access to an engine's pages.
trait Pages {
    /// Gets a page, calls `read` on it in place, and releases it.
    fn with<R>(&self, page: u64, read: impl FnOnce(&[u8]) -> R) -> Result<R>;

    /// Copies the 64 bytes at `at` out of a page.
    #[inline(always)]
    fn copy(&self, page: u64, at: usize, block: &mut [u8; BLOCK_BYTES]) -> Result<()> {
        self.with(page, |bytes| block.copy_from_slice(&bytes[at..][..BLOCK_BYTES]))
    }
}

/// No pages: the cost of the loop.
struct Nothing;

impl Pages for Nothing {
    fn with<R>(&self, _: u64, _: impl FnOnce(&[u8]) -> R) -> Result<R> {
        anyhow::bail!("there are no pages")
    }

    #[inline(always)]
    fn copy(&self, page: u64, at: usize, _: &mut [u8; BLOCK_BYTES]) -> Result<()> {
        unknown(page + at as u64);
        Ok(())
    }
}

struct Copied<'a>(&'a [u8]);

impl Pages for Copied<'_> {
    #[inline(always)]
    fn with<R>(&self, page: u64, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(read(&self.0[page as usize * PAGE_BYTES..][..PAGE_BYTES]))
    }

    /// The limit: one comparison, as the whole block is asked for at once.
    #[inline(always)]
    fn copy(&self, page: u64, at: usize, block: &mut [u8; BLOCK_BYTES]) -> Result<()> {
        let blocks = self.0.as_chunks().0;
        *block = blocks[page as usize * BLOCKS + at / BLOCK_BYTES];
        Ok(())
    }
}

/// A cache line, of which the first word is a page's count.
#[derive(Debug)]
#[repr(C, align(64))]
struct Line([AtomicU64; 8]);

/// A bare copy beside the least that a counted guard does: an addition and a subtraction.
struct CopiedBesideCount<'a>(Copied<'a>, &'a [Line]);

impl CopiedBesideCount<'_> {
    #[inline(always)]
    fn counted<R>(&self, page: u64, read: impl FnOnce(&Copied) -> R) -> R {
        let count = &self.1[page as usize].0[0];
        // A guard's orderings. Nobody is their partner: these pages are never freed.
        count.fetch_add(1, Ordering::Acquire);
        let read = read(&self.0);
        count.fetch_sub(1, Ordering::Release);
        read
    }
}

impl Pages for CopiedBesideCount<'_> {
    #[inline(always)]
    fn with<R>(&self, page: u64, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.counted(page, |pages| pages.with(page, read))
    }

    #[inline(always)]
    fn copy(&self, page: u64, at: usize, block: &mut [u8; BLOCK_BYTES]) -> Result<()> {
        self.counted(page, |pages| pages.copy(page, at, block))
    }
}

/// Memory for the counts of as many pages, in a mapping that is all zeros.
#[derive(Debug)]
pub struct Counts(MmapRaw);

impl Counts {
    fn of(pages: usize) -> Result<Self> {
        Ok(Counts(in_huge_pages((1 + pages) * size_of::<Line>())?.into()))
    }

    #[expect(clippy::cast_ptr_alignment, reason = "a mapping starts at a page")]
    fn lines(&self) -> &[Line] {
        let (start, bytes) = (self.0.as_mut_ptr().cast::<Line>(), self.0.len());
        // SAFETY: the mapping is page aligned, has so many bytes, and lives as long as `self`;
        // everybody uses it by atomics alone, for which every bit pattern is valid.
        let lines = unsafe { std::slice::from_raw_parts(start, bytes / size_of::<Line>()) };
        // The first is left out: the first page's bytes begin a huge page, too, and of two lines
        // whose addresses differ in their upper bits alone, some processors find one at a time.
        &lines[1..]
    }
}

struct Counted(pinfold::File);

impl Pages for Counted {
    #[inline(always)]
    fn with<R>(&self, page: u64, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(read(&self.0.get(page)?))
    }
}

struct Borrowed {
    file: pinfold::File,
    reader: pinfold::Reader,
}

impl Pages for Borrowed {
    #[inline(always)]
    fn with<R>(&self, page: u64, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(read(&self.file.borrow(page, &self.reader)?))
    }
}

#[cfg(feature = "peers")]
struct Other<'a, P>(&'a P);

#[cfg(feature = "peers")]
impl<P: Peer> Pages for Other<'_, P> {
    #[inline(always)]
    fn with<R>(&self, page: u64, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.0.get(page, read).with_context(|| format!("page {page} is not there any more"))
    }
}

/// Something to be done with any engine.
trait Visit {
    fn visit<P: Pages>(&self, pages: &P) -> Result<()>;
}

/// An engine that has all pages of a file.
#[derive(Debug)]
pub enum Opened {
    /// Nothing: the loop alone.
    Empty,
    /// A copy of the file in private memory.
    Memcpy(MmapMut),
    /// A copy of the file, and a count for each of its pages.
    MemcpyAdd(MmapMut, Counts),
    /// The cache, every worker on a handle of its own; the page announced in the worker's own slot.
    Borrow(Cache, pinfold::File),
    /// The same, with a counted reference for each page.
    Get(Cache, pinfold::File),
    /// moka.
    #[cfg(feature = "peers")]
    Moka(Moka),
    /// `quick_cache`.
    #[cfg(feature = "peers")]
    QuickCache(QuickCache),
    /// foyer.
    #[cfg(feature = "peers")]
    Foyer(Foyer),
    /// RocksDB's HyperClockCache.
    #[cfg(feature = "peers")]
    HyperClock(HyperClock),
}

/// The file whose pages the engines hold.
#[derive(Debug)]
pub struct Origin<'a> {
    /// For engines that read it themselves.
    pub path: &'a std::path::Path,
    /// All its bytes; whole pages.
    pub bytes: &'a Mmap,
}

impl Opened {
    /// The engine of that name, with all pages.
    pub fn filled(engine: &str, origin: &Origin) -> Result<Self> {
        Ok(match engine {
            "empty" => Opened::Empty,
            "memcpy" => Opened::Memcpy(copy_of(origin.bytes)?),
            "memcpy-add" => {
                let counts = Counts::of(origin.bytes.len() / PAGE_BYTES)?;
                Opened::MemcpyAdd(copy_of(origin.bytes)?, counts)
            }
            "pinfold-borrow" => cached(origin, Hint::Random, Reference::Add, Opened::Borrow)?,
            "pinfold-borrow-2M" => {
                cached(origin, Hint::Sequential, Reference::Add, Opened::Borrow)?
            }
            "pinfold-get" => cached(origin, Hint::Random, Reference::Add, Opened::Get)?,
            "pinfold-cas" => cached(origin, Hint::Random, Reference::CasLoop, Opened::Get)?,
            #[cfg(feature = "peers")]
            "moka" => Opened::Moka(filled(origin)),
            #[cfg(feature = "peers")]
            "quick_cache" => Opened::QuickCache(filled(origin)),
            #[cfg(feature = "peers")]
            "foyer" => Opened::Foyer(filled(origin)),
            #[cfg(feature = "peers")]
            "hyperclock" => Opened::HyperClock(filled(origin)),
            other => anyhow::bail!("no engine {other}"),
        })
    }

    fn visit(&self, visit: &impl Visit) -> Result<()> {
        match self {
            Opened::Empty => visit.visit(&Nothing),
            Opened::Memcpy(copy) => visit.visit(&Copied(copy)),
            Opened::MemcpyAdd(copy, counts) => {
                visit.visit(&CopiedBesideCount(Copied(copy), counts.lines()))
            }
            Opened::Borrow(cache, file) => {
                visit.visit(&Borrowed { file: file.clone(), reader: cache.reader()? })
            }
            Opened::Get(_, file) => visit.visit(&Counted(file.clone())),
            #[cfg(feature = "peers")]
            Opened::Moka(peer) => visit.visit(&Other(peer)),
            #[cfg(feature = "peers")]
            Opened::QuickCache(peer) => visit.visit(&Other(peer)),
            #[cfg(feature = "peers")]
            Opened::Foyer(peer) => visit.visit(&Other(peer)),
            #[cfg(feature = "peers")]
            Opened::HyperClock(peer) => visit.visit(&Other(peer)),
        }
    }

    /// Gets every page once and compares all its bytes.
    pub fn check(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Opened::Empty => Ok(()),
            _ => self.visit(&Check(bytes)),
        }
    }

    /// One worker's life: warms up, then works.
    pub fn get_pages(
        &self,
        walk: Walk,
        warm_up: Duration,
        board: &Board,
        worker: usize,
    ) -> Result<()> {
        self.visit(&Timed { walk, warm_up, board, worker })
    }

    /// Misses so far, where that is known.
    pub fn misses(&self) -> Option<u64> {
        match self {
            Opened::Borrow(cache, _) | Opened::Get(cache, _) => Some(cache.stats().misses),
            Opened::Empty | Opened::Memcpy(_) | Opened::MemcpyAdd(..) => None,
            #[cfg(feature = "peers")]
            Opened::Moka(_) | Opened::QuickCache(_) | Opened::Foyer(_) | Opened::HyperClock(_) => {
                None
            }
        }
    }
}

fn copy_of(bytes: &[u8]) -> Result<MmapMut> {
    let mut copy = in_huge_pages(bytes.len())?;
    copy.copy_from_slice(bytes);
    Ok(copy)
}

fn in_huge_pages(bytes: usize) -> Result<MmapMut> {
    let memory = MmapMut::map_anon(bytes).context("no memory for a copy of the file")?;
    // The cache asks for huge pages too. Where there are none, the refusal of the advice does no
    // harm.
    let _ = memory.advise(Advice::HugePage);
    Ok(memory)
}

/// A cache that has the file in memory: in folios of one page, or with `Hint::Sequential` of many.
fn cached(
    origin: &Origin,
    hint: Hint,
    reference: Reference,
    opened: impl FnOnce(Cache, pinfold::File) -> Opened,
) -> Result<Opened> {
    let bytes = origin.bytes.len();
    let options = Options::new(super::engines::resident_budget_bytes(bytes as u64));
    let cache = Cache::new(Options { reference, ..options })?;
    let file = cache.open(origin.path)?;
    file.advise(0..bytes as u64, hint)?;
    for page in 0..bytes / PAGE_BYTES {
        file.get(page as u64)?;
    }
    let stats = cache.stats();
    ensure!(
        stats.evictions == 0,
        "{} bytes were evicted from a budget of {} that was to hold the file",
        stats.evicted_bytes,
        stats.budget_bytes
    );
    Ok(opened(cache, file))
}

#[cfg(feature = "peers")]
fn filled<P: Peer>(origin: &Origin) -> P {
    let peer = P::new(origin.bytes.len() / PAGE_BYTES, PAGE_BYTES);
    for (page, bytes) in origin.bytes.chunks_exact(PAGE_BYTES).enumerate() {
        peer.insert(page as u64, bytes);
    }
    peer
}

struct Check<'a>(&'a [u8]);

impl Visit for Check<'_> {
    fn visit<P: Pages>(&self, pages: &P) -> Result<()> {
        for (page, right) in self.0.chunks_exact(PAGE_BYTES).enumerate() {
            let same = pages.with(page as u64, |bytes| bytes == right)?;
            ensure!(same, "page {page} has other bytes than the file");
        }
        Ok(())
    }
}

struct Timed<'a> {
    walk: Walk<'a>,
    warm_up: Duration,
    board: &'a Board,
    worker: usize,
}

impl Visit for Timed<'_> {
    fn visit<P: Pages>(&self, pages: &P) -> Result<()> {
        let mut block = [0; BLOCK_BYTES];
        match self.walk {
            Walk::Same(spot) => self.time(|| batch_of_one(pages, spot, &mut block)),
            Walk::Drawn(spots) => {
                let mut batches = spots.chunks_exact(BATCH as usize).cycle();
                self.time(|| {
                    let batch = batches.next().expect("more spots than one batch");
                    batch_of(pages, batch, &mut block)
                })
            }
        }
    }
}

/// The same block, over and over. In a function of its own, as the other: so that how a loop is
/// compiled does not depend on its surroundings.
#[inline(never)]
fn batch_of_one<P: Pages>(pages: &P, spot: Spot, block: &mut [u8; BLOCK_BYTES]) -> Result<()> {
    for _ in 0..BATCH {
        once(pages, Spot(unknown(spot.0.into()) as u32), block)?;
    }
    Ok(())
}

#[inline(never)]
fn batch_of<P: Pages>(pages: &P, spots: &[Spot], block: &mut [u8; BLOCK_BYTES]) -> Result<()> {
    spots.iter().try_for_each(|&spot| once(pages, spot, block))
}

/// One operation. What is not the engine's is part of every engine's time: no counters in memory.
#[inline(always)]
fn once<P: Pages>(pages: &P, spot: Spot, block: &mut [u8; BLOCK_BYTES]) -> Result<()> {
    let (page, at) = spot.of();
    pages.copy(page, at, block)?;
    looked_at(block);
    Ok(())
}

impl Timed<'_> {
    /// Runs batches, at first unmeasured.
    #[inline(always)]
    fn time(&self, mut batch: impl FnMut() -> Result<()>) -> Result<()> {
        // The engine before this one has left nothing of ours in the CPU's caches.
        let begun = Instant::now();
        while begun.elapsed() < self.warm_up {
            batch()?;
        }
        workers::work(self.board, self.worker, BATCH, batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spot_is_a_block_of_its_page() {
        let mut blocks = std::collections::BTreeSet::new();
        for page in (0..1000).chain(Spot::PAGES_MAX - 10..Spot::PAGES_MAX) {
            let (of, at) = Spot::in_page(page).of();
            assert_eq!(of, page);
            assert!(at.is_multiple_of(BLOCK_BYTES) && at + BLOCK_BYTES <= PAGE_BYTES, "{at}");
            blocks.insert(at);
        }
        assert_eq!(blocks.len(), BLOCKS, "all blocks are used");
    }

    /// Pages whose bytes say which page they are, but one.
    struct Wrong(u64);

    impl Pages for Wrong {
        fn with<R>(&self, page: u64, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
            let mut bytes = [page as u8; PAGE_BYTES];
            bytes[PAGE_BYTES - 1] ^= u8::from(page == self.0);
            Ok(read(&bytes))
        }
    }

    #[test]
    fn the_check_sees_one_wrong_byte() {
        let right: Vec<u8> = (0_u8..8).flat_map(|page| [page; PAGE_BYTES]).collect();
        Check(&right).visit(&Wrong(100)).unwrap();
        let error = Check(&right).visit(&Wrong(5)).unwrap_err();
        assert_eq!(error.to_string(), "page 5 has other bytes than the file");
    }
}
