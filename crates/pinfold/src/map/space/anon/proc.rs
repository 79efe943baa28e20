//! Own memory as the kernel has it: its page table, and its bytes by calls that make no fault.
//!
//! An access to own memory by its address may be a fault, even if the page was there just now, as
//! the program may take it away. A fault takes the map's locks, and one that cannot be served ends
//! the process. So the cache itself copies by `/proc/self/mem` (proc(5)): there the kernel asks no
//! userfaultfd, and an absent page is an error. What mprotect(2) forbids can be copied all the
//! same.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use super::calls;
use crate::mapped::pagemap::Pagemap;

/// The open files. A forked child would find its parent's memory: whoever copies or looks has asked
/// whether this is the process that made the cache.
#[derive(Debug)]
pub(in crate::map::space) struct Proc {
    pub(super) table: Pagemap,
    memory: File,
}

impl Proc {
    /// For areas whose faults `uffd` reports.
    /// Error: `/proc` cannot be used, or does not tell which pages are protected.
    pub(in crate::map::space) fn open(uffd: BorrowedFd<'_>) -> io::Result<Self> {
        let told = |file: &str, why: &io::Error| {
            let hint = match why.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                    " (is /proc mounted, and is the process dumpable?)"
                }
                _ => "", // no descriptor is left, for example
            };
            let text = format!("own memory needs /proc/self/{file}{hint}: {why}");
            io::Error::new(why.kind(), text)
        };
        let table = Pagemap::open().map_err(|why| told("pagemap", &why))?;
        let protected = calls::protected_page(uffd, |address| table.entry(address))?;
        if !protected.map_err(|why| told("pagemap", &why))?.is_protected() {
            let text = "the kernel does not tell which pages are protected (Linux 5.14 does)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let memory = File::options().read(true).write(true).open("/proc/self/mem");
        Ok(Proc { table, memory: memory.map_err(|why| told("mem", &why))? })
    }

    /// Copies the bytes at an address of an area.
    /// Error: a page is absent, or not mapped.
    pub(super) fn load(&self, at: usize, to: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(to, at as u64)
    }

    /// Stores to an address of an area, as a thread of the program would.
    /// Error: a page is absent, protected against stores, or not mapped: what lies before it was
    /// stored.
    pub(super) fn store(&self, at: usize, from: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(from, at as u64)
    }
}
