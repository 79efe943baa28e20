//! A ring with nothing around it: what the device gives where no cache is.
//!
//! Here: asking for blocks of a file, writing them, and waiting for them. Not here: which
//! (`batch_nodes.rs`: batches; `batch_flow.rs`: single pages, many on their way; `write_cases.rs`,
//! `write_child.rs`).

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use io_uring::{IoUring, opcode, squeue, types};

use super::scratch::Aligned;

/// A ring of one thread, and memory for the blocks that it has on their way.
pub struct Ring {
    queues: IoUring,
    file: File,
    block_bytes: usize,
    /// Where in the file each block is, by its number.
    offsets: Vec<u64>,
    /// Never freed, as the kernel may still use it when a block was given up.
    memory: &'static mut Aligned,
}

impl Ring {
    /// A ring for up to `in_flight` blocks of a file.
    pub fn new(file: File, in_flight: usize, block_bytes: usize) -> Result<Self> {
        let memory = Box::leak(Box::new(Aligned::zeroed(in_flight * block_bytes)));
        let offsets = vec![0; in_flight];
        Ok(Ring { queues: open(in_flight)?, file, block_bytes, offsets, memory })
    }

    /// Asks for a block, as number `n` of those on their way.
    pub fn ask(&mut self, n: usize, offset: u64) -> Result<()> {
        let (file, part) = self.part(n)?;
        let read = opcode::Read::new(file, part.as_mut_ptr(), part.len() as u32);
        self.push(n, offset, read.offset(offset).build())
    }

    fn part(&mut self, n: usize) -> Result<(types::Fd, &mut [u8])> {
        let part = self.memory.bytes_mut().chunks_exact_mut(self.block_bytes).nth(n);
        let part = part.with_context(|| format!("no memory for block number {n}"))?;
        Ok((types::Fd(self.file.as_raw_fd()), part))
    }

    fn push(&mut self, n: usize, offset: u64, entry: squeue::Entry) -> Result<()> {
        self.offsets[n] = offset;
        let entry = entry.user_data(n as u64);
        // SAFETY: the memory is as long as the block, is never freed, and is not touched before the
        // operation has ended; the descriptor is open as long as the ring.
        unsafe { self.queues.submission().push(&entry) }.context("more blocks than the ring takes")
    }

    /// Writes blocks at `offsets`, whose bytes `fill` gives, as many at a time as there is memory
    /// for. Returns when the device has them.
    pub fn write_all(
        &mut self,
        offsets: impl IntoIterator<Item = u64>,
        mut fill: impl FnMut(u64, &mut [u8]),
    ) -> Result<()> {
        let mut free: Vec<usize> = (0..self.offsets.len()).collect();
        for offset in offsets {
            let n = free.pop().map_or_else(|| self.come(1), Ok)?;
            let (file, part) = self.part(n)?;
            fill(offset, part);
            let write = opcode::Write::new(file, part.as_ptr(), part.len() as u32);
            self.push(n, offset, write.offset(offset).build())?;
        }
        for _ in free.len()..self.offsets.len() {
            self.come(1)?;
        }
        self.file.sync_data().context("cannot sync what was written directly")
    }

    /// The number of a block that has come. If none has, hands the kernel what was asked for, and
    /// waits for `wanted` of them.
    pub fn come(&mut self, wanted: usize) -> Result<usize> {
        // Ends: what was submitted ends, in success or error.
        let done = loop {
            if let Some(done) = self.queues.completion().next() {
                break done;
            }
            match self.queues.submit_and_wait(wanted) {
                Err(why) if why.kind() != ErrorKind::Interrupted => {
                    return Err(why).context("the ring gave up");
                }
                _ => {}
            }
        };
        let n = done.user_data() as usize;
        let (offset, bytes) = (self.offsets[n], self.block_bytes);
        let got = usize::try_from(done.result())
            .map_err(|_| std::io::Error::from_raw_os_error(-done.result()))
            .with_context(|| format!("no direct I/O of {bytes} bytes at {offset}"))?;
        ensure!(got == bytes, "direct I/O of {bytes} bytes at {offset} moved {got}");
        Ok(n)
    }

    /// A block that has come.
    pub fn bytes(&mut self, n: usize) -> &[u8] {
        &self.memory.bytes_mut()[n * self.block_bytes..][..self.block_bytes]
    }
}

/// A ring for the calling thread, in the best mode that this kernel has.
pub fn open(in_flight: usize) -> Result<IoUring> {
    let entries = u32::try_from(in_flight)?.next_power_of_two();
    let best = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
    // Before Linux 6.1 these flags are unknown.
    let ring = best.or_else(|_| IoUring::new(entries));
    ring.context("no io_uring: it may be switched off (kernel.io_uring_disabled)")
}
