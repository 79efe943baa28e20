//! Ways to several pages of a file that is larger than memory, all in one shape.
//!
//! Here: opening an engine, and reading a batch of pages with it. Not here: which pages, and what
//! is done with their bytes (`batch_child.rs`); single pages, many on their way (`batch_flow.rs`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use memmap2::{Advice, Mmap};
use pinfold::{Cache, Hint, Options};
use rustix::fs::Advice as FileAdvice;

use super::batch_ring::Ring;
use super::engines::mapping_of;
use super::limited::{CacheFigures, storage_read_bytes};
use super::scratch::{Aligned, open_direct, open_plain};

/// Engines that read files larger than memory: the device's limit first.
pub const NAMES: [&str; 8] = [
    RING,
    "mmap",
    "pread",
    "pread-fadvise",
    "pinfold-get",
    "pinfold-prefetch",
    "pinfold-many",
    ASYNC,
];
/// The one that some systems forbid.
pub const RING: &str = "ring-direct";
/// The futures of the cache.
pub const ASYNC: &str = "pinfold-async";
/// The length of a page.
pub const PAGE_BYTES: usize = 4096;

/// A worker's access to the pages.
pub trait Nodes {
    /// Reads a batch of pages, and calls `see` once for each: with its number in the batch, and its
    /// bytes.
    fn read(&mut self, pages: &[u64], see: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()>;
}

/// What is done with a worker's access.
pub trait Visit {
    /// Does it.
    fn visit(&self, nodes: &mut impl Nodes) -> Result<()>;
}

/// An engine.
#[derive(Debug)]
pub enum Engine {
    /// A ring for each worker, and no cache.
    Ring,
    /// A mapping, of which random reads are expected.
    Mmap(Mmap),
    /// System calls, every worker on a descriptor of its own; with a hint of all pages before, or
    /// without.
    Pread(Ahead),
    /// The cache, every worker on a handle of its own. The one here keeps the file open meanwhile.
    Pinfold(Cache, pinfold::File, Way),
}

/// Whether the pages of a batch are announced before the first is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    /// They are.
    Hinted,
    /// They are not.
    Unknown,
}

/// How a batch is got from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// One page after the other.
    Get,
    /// The same, after `prefetch` of all.
    Prefetch,
    /// All by one call.
    Many,
    /// All by one future.
    Async,
}

impl Engine {
    /// The engine of that name.
    pub fn open(engine: &str, path: &Path, budget_bytes: u64) -> Result<Self> {
        let pinfold = |way| {
            let cache = Cache::new(Options::new(budget_bytes))?;
            let file = cache.open(path)?;
            Ok(Engine::Pinfold(cache, file, way))
        };
        match engine {
            RING => Ok(Engine::Ring),
            "mmap" => {
                let map = mapping_of(path)?;
                map.advise(Advice::Random)?;
                Ok(Engine::Mmap(map))
            }
            "pread" => Ok(Engine::Pread(Ahead::Unknown)),
            "pread-fadvise" => Ok(Engine::Pread(Ahead::Hinted)),
            "pinfold-get" => pinfold(Way::Get),
            "pinfold-prefetch" => pinfold(Way::Prefetch),
            "pinfold-many" => pinfold(Way::Many),
            ASYNC => pinfold(Way::Async),
            other => bail!("no engine {other}"),
        }
    }

    /// Opens the file for one worker that reads batches of up to `batch` pages.
    pub fn with_nodes(&self, path: &Path, batch: usize, visit: &impl Visit) -> Result<()> {
        match self {
            Engine::Ring => visit.visit(&mut Ring::new(open_direct(path)?, batch, PAGE_BYTES)?),
            Engine::Mmap(map) => visit.visit(&mut Mapped(map)),
            Engine::Pread(ahead) => {
                let file = open_plain(path)?;
                rustix::fs::fadvise(&file, 0, None, FileAdvice::Random)?;
                let buf = Aligned::zeroed(PAGE_BYTES);
                visit.visit(&mut Pread { file, ahead: *ahead, buf })
            }
            Engine::Pinfold(_, file, way) => {
                let file = file.clone();
                file.advise(0..0, Hint::Random)?;
                visit.visit(&mut Cached { file, way: *way })
            }
        }
    }

    /// Bytes so far that were read from storage, where that is known.
    pub fn storage_bytes(&self) -> Result<Option<u64>> {
        match self {
            Engine::Ring => Ok(None),
            Engine::Mmap(_) | Engine::Pread(_) => storage_read_bytes(),
            Engine::Pinfold(cache, ..) => {
                let sources = cache.sources();
                let of_source = sources.iter().map(|(_, source)| source);
                Ok(Some(of_source.map(|told| told.read.bytes + told.read_ahead.bytes).sum()))
            }
        }
    }

    /// What the cache tells of itself.
    pub fn cache_figures(&self) -> Option<CacheFigures> {
        let Engine::Pinfold(cache, ..) = self else { return None };
        Some(CacheFigures::of(cache))
    }
}

/// Where a page begins.
pub fn offset_of(page: u64) -> u64 {
    page * PAGE_BYTES as u64
}

struct Mapped<'a>(&'a [u8]);

impl Nodes for Mapped<'_> {
    fn read(
        &mut self,
        pages: &[u64],
        mut see: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        for (n, &page) in pages.iter().enumerate() {
            see(n, &self.0[offset_of(page) as usize..][..PAGE_BYTES])?;
        }
        Ok(())
    }
}

struct Pread {
    file: File,
    ahead: Ahead,
    buf: Aligned,
}

impl Nodes for Pread {
    fn read(
        &mut self,
        pages: &[u64],
        mut see: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if self.ahead == Ahead::Hinted {
            let length = std::num::NonZeroU64::new(PAGE_BYTES as u64);
            for &page in pages {
                rustix::fs::fadvise(&self.file, offset_of(page), length, FileAdvice::WillNeed)?;
            }
        }
        let buf = self.buf.bytes_mut();
        for (n, &page) in pages.iter().enumerate() {
            self.file.read_exact_at(buf, offset_of(page))?;
            see(n, buf)?;
        }
        Ok(())
    }
}

struct Cached {
    file: pinfold::File,
    way: Way,
}

impl Nodes for Cached {
    fn read(
        &mut self,
        pages: &[u64],
        mut see: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if matches!(self.way, Way::Many | Way::Async) {
            let guards = match self.way {
                Way::Async => futures_executor::block_on(self.file.get_many_async(pages))?,
                _ => self.file.get_many(pages)?,
            };
            ensure!(guards.len() == pages.len(), "{} pages of {}", guards.len(), pages.len());
            return guards.iter().enumerate().try_for_each(|(n, guard)| see(n, guard));
        }
        if self.way == Way::Prefetch {
            self.file.prefetch(pages)?;
        }
        for (n, &page) in pages.iter().enumerate() {
            see(n, &self.file.get(page)?)?;
        }
        Ok(())
    }
}

impl Nodes for Ring {
    fn read(
        &mut self,
        pages: &[u64],
        mut see: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        for (n, &page) in pages.iter().enumerate() {
            self.ask(n, offset_of(page))?;
        }
        for left in (1..=pages.len()).rev() {
            self.come(left)?;
        }
        (0..pages.len()).try_for_each(|n| see(n, self.bytes(n)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte that the cache reads from storage counts once, whichever way it is read.
    #[test]
    fn what_was_read_from_storage_counts_once() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, &vec![7; 64 * PAGE_BYTES]).unwrap();
        for name in ["pinfold-get", "pinfold-prefetch", "pinfold-many", ASYNC] {
            struct ReadTwice;
            impl Visit for ReadTwice {
                fn visit(&self, nodes: &mut impl Nodes) -> Result<()> {
                    for _ in 0..2 {
                        let mut seen = 0;
                        nodes.read(&[3, 50, 9, 31], |n, page| {
                            ensure!((n, page.len()) == (seen, PAGE_BYTES), "{n}");
                            seen += 1;
                            Ok(())
                        })?;
                        assert_eq!(seen, 4);
                    }
                    Ok(())
                }
            }
            let engine = Engine::open(name, file.path(), 4 << 20).unwrap();
            assert_eq!(engine.storage_bytes().unwrap(), Some(0), "{name}");
            engine.with_nodes(file.path(), 4, &ReadTwice).unwrap();
            assert_eq!(engine.storage_bytes().unwrap(), Some(4 * PAGE_BYTES as u64), "{name}");
        }
    }
}
