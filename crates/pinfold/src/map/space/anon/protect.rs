//! What may be done with own memory.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::mm::{MprotectFlags, mprotect};

use super::Area;
use crate::pages::mapping::Mapping;

/// What may be done with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protection {
    /// Nothing: each access gets SIGSEGV.
    None,
    /// It can be read; a store gets SIGSEGV.
    Read,
    /// It can be read and stored to.
    ReadWrite,
}

impl Area {
    /// Whether the memory has this protection, or a wider one; under the `change` mutex.
    pub(super) fn allows(&self, least: Protection) -> bool {
        self.protection.load(Ordering::Relaxed) >= least as u8 // under the mutex
    }

    /// Changes what may be done with the memory. Page-outs do not ask for it.
    ///
    /// # Errors
    /// The system refuses; then it is as it was.
    pub(in crate::map::space) fn protect(
        &self,
        mapping: &Mapping,
        to: Protection,
    ) -> io::Result<()> {
        let _changing = mapping.change();
        let all = self.addresses(&(0..self.pages()));
        let before = self.protection.load(Ordering::Relaxed); // under the mutex
        if let Err(why) = allow(&all, to as u8) {
            let _ = allow(&all, before); // what lies before pages that are sealed was changed
            return Err(why);
        }
        self.protection.store(to as u8, Ordering::Relaxed); // under the mutex
        Ok(())
    }
}

/// Changes what may be done with addresses of an area, to a [`Protection`].
fn allow(at: &Range<usize>, protection: u8) -> io::Result<()> {
    const NONE: u8 = Protection::None as u8;
    const READ: u8 = Protection::Read as u8;
    let start = std::ptr::with_exposed_provenance_mut(at.start);
    let access = match protection {
        NONE => MprotectFlags::empty(),
        READ => MprotectFlags::READ,
        _ => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    // SAFETY: an area's addresses; who has slices has promised not to change this.
    Ok(unsafe { mprotect(start, at.len(), access) }?)
}
