//! Ways to single pages of a file of which a thread has many on their way at once.
//!
//! Here: asking for pages with an engine, and waiting for whichever comes first. Not here: which
//! pages, and what is done with their bytes (`batch_child.rs`); opening an engine, and batches
//! (`batch_nodes.rs`).

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use anyhow::{Context, Result, bail, ensure};
use futures_util::stream::{FuturesUnordered, StreamExt};
use io_uring::{IoUring, opcode, types};
use pinfold::{FolioRef, Hint, futures::Get};

use super::batch_nodes::{ASYNC, Engine, PAGE_BYTES, RING, offset_of, ring};
use super::scratch::{Aligned, open_direct};

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
            Engine::Ring => visit.visit(&mut Ring::new(open_direct(path)?, in_flight)?),
            Engine::Pinfold(_, file, _) => {
                let file = file.clone();
                file.advise(0..0, Hint::Random)?;
                visit.visit(&mut Futures { file: &file, waits: FuturesUnordered::new() })
            }
            Engine::Mmap(_) | Engine::Pread(_) => bail!("each read of this engine blocks"),
        }
    }
}

/// Futures of the cache, of which those are polled that were woken.
struct Futures<'f> {
    file: &'f pinfold::File,
    waits: FuturesUnordered<Numbered<'f>>,
}

/// A future with its number.
struct Numbered<'f>(usize, Get<'f>);

impl<'f> Future for Numbered<'f> {
    type Output = (usize, pinfold::Result<FolioRef<'f>>);

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Numbered(n, get) = &mut *self;
        Pin::new(get).poll(context).map(|folio| (*n, folio))
    }
}

impl Flow for Futures<'_> {
    fn ask(&mut self, n: usize, page: u64) -> Result<()> {
        self.waits.push(Numbered(n, self.file.get_async(page)));
        Ok(())
    }

    fn come(&mut self, see: impl FnOnce(usize, &[u8]) -> Result<()>) -> Result<()> {
        let next = futures_executor::block_on(self.waits.next());
        let (n, folio) = next.context("no page was asked for")?;
        see(n, &folio?)
    }
}

/// A ring with nothing around it.
struct Ring {
    queues: IoUring,
    file: File,
    /// Never freed, as the kernel may still write to it when a read was given up.
    memory: &'static mut Aligned,
}

impl Ring {
    fn new(file: File, in_flight: usize) -> Result<Self> {
        let memory = Box::leak(Box::new(Aligned::zeroed(in_flight * PAGE_BYTES)));
        Ok(Ring { queues: ring(in_flight)?, file, memory })
    }
}

impl Flow for Ring {
    fn ask(&mut self, n: usize, page: u64) -> Result<()> {
        let part = self.memory.bytes_mut().chunks_exact_mut(PAGE_BYTES).nth(n);
        let part = part.with_context(|| format!("no memory for page number {n}"))?;
        let file = types::Fd(self.file.as_raw_fd());
        let read = opcode::Read::new(file, part.as_mut_ptr(), PAGE_BYTES as u32);
        let entry = read.offset(offset_of(page)).build().user_data(n as u64);
        // SAFETY: the memory is as long as the read, is never freed, and is not looked at before
        // the read has ended; the descriptor is open as long as the ring.
        unsafe { self.queues.submission().push(&entry) }.context("more pages than the ring takes")
    }

    fn come(&mut self, see: impl FnOnce(usize, &[u8]) -> Result<()>) -> Result<()> {
        // Ends: a read that was submitted ends, in success or error.
        let done = loop {
            if let Some(done) = self.queues.completion().next() {
                break done;
            }
            match self.queues.submit_and_wait(1) {
                Err(why) if why.kind() != ErrorKind::Interrupted => {
                    return Err(why).context("the ring gave up");
                }
                _ => {}
            }
        };
        let got = usize::try_from(done.result())
            .map_err(|_| std::io::Error::from_raw_os_error(-done.result()))
            .context("cannot read a page directly")?;
        ensure!(got == PAGE_BYTES, "a direct read of a page gave {got} bytes");
        let n = done.user_data() as usize;
        see(n, &self.memory.bytes_mut()[n * PAGE_BYTES..][..PAGE_BYTES])
    }
}
