//! A ring with nothing around it: what the device gives where no cache is.
//!
//! Here: asking for blocks of a file, and waiting for them. Not here: which (`batch_nodes.rs`:
//! batches; `batch_flow.rs`: single pages, many on their way).

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use io_uring::{IoUring, opcode, types};

use super::scratch::Aligned;

/// A ring of one thread, and memory for the blocks that it has on their way.
pub struct Ring {
    queues: IoUring,
    file: File,
    block_bytes: usize,
    /// Where in the file each block is that was asked for last, by its number.
    offsets: Vec<u64>,
    /// Never freed, as the kernel may still write to it when a read was given up.
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
        let part = self.memory.bytes_mut().chunks_exact_mut(self.block_bytes).nth(n);
        let part = part.with_context(|| format!("no memory for block number {n}"))?;
        self.offsets[n] = offset;
        let file = types::Fd(self.file.as_raw_fd());
        let read = opcode::Read::new(file, part.as_mut_ptr(), part.len() as u32);
        let entry = read.offset(offset).build().user_data(n as u64);
        // SAFETY: the memory is as long as the read, is never freed, and is not looked at before
        // the read has ended; the descriptor is open as long as the ring.
        unsafe { self.queues.submission().push(&entry) }.context("more blocks than the ring takes")
    }

    /// The number of a block that has come. If none has, hands the kernel what was asked for, and
    /// waits for `wanted` of them.
    pub fn come(&mut self, wanted: usize) -> Result<usize> {
        // Ends: a read that was submitted ends, in success or error.
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
            .with_context(|| format!("cannot read {bytes} bytes at {offset} directly"))?;
        ensure!(got == bytes, "a direct read of {bytes} bytes at {offset} gave {got}");
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
