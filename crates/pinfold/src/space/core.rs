//! What is behind an address: the records of all maps of the process, and for each the file and the
//! space.
//!
//! Called by `signal.rs`, by the threads of `handlers.rs`, which are given `serve`, and by `map.rs`,
//! which changes the records.

use std::sync::Arc;

use super::fault::{self, Fault, Shared};
use super::handlers::Handlers;
use super::index::Index;
use super::uffd::Uffd;
use super::vma::{Table, Vma};
use crate::cache::Cache;
use crate::error::Result;
use crate::file::File;
use crate::lend::{self, Look};

/// The records and the index of all spaces of the process.
pub(super) static RECORDS: Table<Arc<Target>> = Table::new();
pub(super) static INDEX: Index = Index::new();

/// The record of the map that has `address`, or had it a moment ago.
fn find(address: usize) -> Option<&'static Vma<Arc<Target>>> {
    RECORDS.get(INDEX.find(address)?)
}

/// Serves a fault at `address`.
pub(super) fn serve(address: usize) -> Fault {
    fault::serve(address, find)
}

/// The file behind a map, and its space.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) file: File,
    pub(super) space: Arc<SpaceCore>,
}

impl fault::Target for Arc<Target> {
    fn shared(&self) -> &Shared {
        &self.space.shared
    }

    fn look(&self, page: u64) -> Result<bool> {
        // The kernel maps nothing past the end, whatever the mirror has: the access would be
        // repeated for ever.
        self.file.handle().check_page(page)?;
        Ok(matches!(lend::look(self.file.handle(), page)?, Look::There(_)))
    }

    fn bring(&self, page: u64) -> Result<()> {
        lend::bring(self.file.handle(), page)
    }
}

/// What a space and its maps share.
#[derive(Debug)]
pub(super) struct SpaceCore {
    pub(super) shared: Shared,
    pub(super) uffd: Arc<Uffd>,
    pub(super) handlers: Option<Handlers>,
    pub(super) cache: Cache,
}

impl Drop for SpaceCore {
    fn drop(&mut self) {
        if !self.cache.core().owner.is_here() {
            // The threads are the parent's, and so is what they are stopped by.
            std::mem::forget(self.handlers.take());
        }
    }
}
