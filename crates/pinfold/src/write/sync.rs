//! Until what was written is durable, and who waits because too much is not.
//!
//! A sync, step by step:
//!
//! 1. wait for the file's turn (`pages/written.rs`); if meanwhile a sync has succeeded that began
//!    after this call, all is done: threads that sync at the same time share one;
//! 2. give all that is dirty to the source (`out.rs`);
//! 3. the source's sync. Nothing is given to it meanwhile;
//! 4. if that has succeeded, what is written is clean; if it has failed, all of it is dirty again.

use std::io;
use std::sync::Arc;

use super::out;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::Ordering;
use crate::error::{Cause, Error, Result};
use crate::index::PAGES_END;
use crate::pages::core::Core;
use crate::pages::dirt;
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::pages::mapping::{Mapping, ReadUnder};

/// What is not clean may take a part of the budget: one of so many. Of one file, as much less.
const UNSYNCED_PART: u64 = 4;

pub(crate) fn error(mapping: &Mapping, what: &str, cause: io::Error) -> Error {
    let (path, what, cause) = (mapping.path.clone(), what.to_owned(), Arc::new(cause));
    Cause::Sync { path, what, cause }.into()
}

pub(crate) fn sync(core: &Core, mapping: &Mapping, data_only: bool) -> Result<()> {
    core.check_owner()?;
    // Step 1.
    let Some(turn) = mapping.written.turn_to_sync(data_only) else { return Ok(()) };
    let is_ours = has_contents(mapping);
    // Step 2.
    let written = out::write_out(core, mapping);
    // Steps 3 and 4. After an error, too: the rest becomes durable, and may leave memory.
    let synced = mapping.backing.sync(data_only).map_err(|cause| error(mapping, "sync", cause));
    if synced.is_err() && !mutant::on(Mutant::SyncFailedIsClean) {
        dirt::again(core, mapping, 0..PAGES_END);
    } else {
        dirt::clean(core, mapping);
    }
    if is_ours {
        remember_contents(mapping);
    }
    turn.ends(data_only, written.is_ok() && synced.is_ok());
    written.and(synced)
}

/// Whether, as far as is known, nobody else has changed the file.
fn has_contents(mapping: &Mapping) -> bool {
    let contents = mapping.backing.contents().ok().flatten();
    contents.is_some_and(|now| mapping.read_under().is_some_and(|under| under.is(&now)))
}

/// What it has now, this process has written.
pub(super) fn remember_contents(mapping: &Mapping) {
    if let Ok(Some(contents)) = mapping.backing.contents() {
        mapping.set_read_under(ReadUnder::now(contents));
    }
}

/// Before a write: syncs if too much of the budget has bytes that are not durable.
pub(super) fn make_room(handle: &Handle) -> Result<()> {
    let (core, written) = (&handle.core, &handle.mapping.written);
    let most = u64::from(core.frames.frames()) / UNSYNCED_PART;
    let total = core.unsynced_pages.load(Ordering::Relaxed); // a number
    if total < most || written.unsynced_pages() < most / UNSYNCED_PART {
        return Ok(());
    }
    sync(core, &handle.mapping, true)
}

/// Before a handle is dropped: if it is the last, syncs. What cannot be written stays cached, with
/// its source, but of what nobody can open again.
pub(crate) fn before_drop(core: &Core, mapping: &Mapping) {
    if mapping.written.unsynced_pages() == 0 || !mapping.is_last_handle() {
        return;
    }
    if mapping.backing.is_deleted() {
        freeze::discard(core, mapping, 0..PAGES_END);
    } else {
        let _ = sync(core, mapping, true);
    }
}
