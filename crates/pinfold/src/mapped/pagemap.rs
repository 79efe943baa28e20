//! What the kernel's page table has at addresses of this process: `/proc/self/pagemap` (proc(5)).
//!
//! Here: asking. What follows from the answers is said where they are asked for: `mirror/shown.rs`
//! wants to know what was accessed, `space/anon/trust.rs` what of own memory is as it was left.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::frames::PAGE_BYTES;

/// The open file. A forked child would find its parent's page table: the caller sees to it that
/// none asks.
#[derive(Debug)]
pub(crate) struct Pagemap(File);

#[derive(Clone, Copy, Debug)]
pub(crate) struct PagemapEntry(u64);

const ENTRY_BYTES: usize = size_of::<u64>();

impl PagemapEntry {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const GUARDED: u64 = 1 << 58;
    const PROTECTED: u64 = 1 << 57;

    /// The page is in memory, and an access finds it.
    pub(crate) fn is_present(self) -> bool {
        self.0 & PagemapEntry::PRESENT != 0
    }

    /// There is nothing: an access is a fault for a missing page, or finds a guard. What the system
    /// has swapped out itself, or is just moving, is not absent.
    pub(crate) fn is_absent(self) -> bool {
        self.0 & (PagemapEntry::PRESENT | PagemapEntry::SWAPPED) == 0 || self.is_guarded()
    }

    /// The program has put a guard there, by `MADV_GUARD_INSTALL` (Linux 6.15 and later tell).
    fn is_guarded(self) -> bool {
        self.0 & PagemapEntry::GUARDED != 0
    }

    /// A store is a fault of userfaultfd (Linux 5.14 and later tell).
    pub(crate) fn is_protected(self) -> bool {
        self.0 & PagemapEntry::PROTECTED != 0
    }
}

impl Pagemap {
    /// Error: `/proc` is not mounted, or the process may not read what is its own there: it has
    /// changed its user (`PR_SET_DUMPABLE`).
    pub(crate) fn open() -> io::Result<Self> {
        File::open("/proc/self/pagemap").map(Pagemap)
    }

    pub(crate) fn entry(&self, address: usize) -> io::Result<PagemapEntry> {
        let mut entry = [0; ENTRY_BYTES];
        self.read(address, &mut entry)?;
        Ok(PagemapEntry(u64::from_ne_bytes(entry)))
    }

    /// The entries of all pages at these addresses, by one system call.
    pub(crate) fn entries(&self, at: &Range<usize>) -> io::Result<Vec<PagemapEntry>> {
        let mut entries = vec![0; at.len() / PAGE_BYTES * ENTRY_BYTES];
        self.read(at.start, &mut entries)?;
        let entries = entries.as_chunks::<ENTRY_BYTES>().0;
        Ok(entries.iter().map(|entry| PagemapEntry(u64::from_ne_bytes(*entry))).collect())
    }

    fn read(&self, address: usize, entries: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(entries, (address / PAGE_BYTES * ENTRY_BYTES) as u64)
    }
}
