//! Ways to single pages of a file of which a thread has many on their way at once.
//!
//! Here: asking for pages with an engine, and waiting for whichever comes first. Not here: which
//! pages, and what is done with their bytes (`batch_child.rs`); opening an engine, and batches
//! (`batch_nodes.rs`).

use std::path::Path;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use anyhow::{Context, Result, bail};
use futures_util::stream::{FuturesUnordered, StreamExt};
use pinfold::{FolioRef, Hint};

use super::batch_nodes::{ASYNC, Engine, PAGE_BYTES, RING, offset_of};
use super::batch_ring::Ring;
use super::scratch::open_direct;

/// Engines that can have many pages on their way.
pub const NAMES: [&str; 2] = [RING, ASYNC];

/// A worker's access to the pages.
pub trait Flow {
    /// Asks for a page, as number `n` of those on their way.
    fn ask(&mut self, n: usize, page: u64) -> Result<()>;

    /// Waits for whichever page comes first, and calls `see` with its number and bytes.
    fn come(&mut self, see: impl FnOnce(usize, &[u8]) -> Result<()>) -> Result<()>;
}

/// What is done with a worker's access.
pub trait Visit {
    /// Does it.
    fn visit(&self, flow: &mut impl Flow) -> Result<()>;
}

impl Engine {
    /// Opens the file for one worker that has up to `in_flight` pages on their way.
    pub fn with_flow(&self, path: &Path, in_flight: usize, visit: &impl Visit) -> Result<()> {
        match self {
            Engine::Ring => visit.visit(&mut Ring::new(open_direct(path)?, in_flight, PAGE_BYTES)?),
            Engine::Pinfold(_, file, _) => {
                let file = file.clone();
                file.advise(0..0, Hint::Random)?;
                let waits = FuturesUnordered::new();
                visit.visit(&mut Futures { get: |page| file.get_async(page), waits })
            }
            Engine::Mmap(_) | Engine::Pread(_) => bail!("each read of this engine blocks"),
        }
    }
}

/// Futures of the cache, of which those are polled that were woken.
struct Futures<F, G> {
    get: F,
    waits: FuturesUnordered<Numbered<G>>,
}

/// A future with its number.
struct Numbered<G>(usize, G);

impl<G: Future + Unpin> Future for Numbered<G> {
    type Output = (usize, G::Output);

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Numbered(n, get) = &mut *self;
        Pin::new(get).poll(context).map(|folio| (*n, folio))
    }
}

impl<'f, F, G> Flow for Futures<F, G>
where
    F: Fn(u64) -> G,
    G: Future<Output = pinfold::Result<FolioRef<'f>>> + Unpin,
{
    fn ask(&mut self, n: usize, page: u64) -> Result<()> {
        self.waits.push(Numbered(n, (self.get)(page)));
        Ok(())
    }

    fn come(&mut self, see: impl FnOnce(usize, &[u8]) -> Result<()>) -> Result<()> {
        let next = futures_executor::block_on(self.waits.next());
        let (n, folio) = next.context("no page was asked for")?;
        see(n, &folio?)
    }
}

impl Flow for Ring {
    fn ask(&mut self, n: usize, page: u64) -> Result<()> {
        Ring::ask(self, n, offset_of(page))
    }

    fn come(&mut self, see: impl FnOnce(usize, &[u8]) -> Result<()>) -> Result<()> {
        let n = Ring::come(self, 1)?;
        see(n, self.bytes(n))
    }
}
