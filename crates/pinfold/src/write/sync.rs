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
use crate::base::threads;
use crate::error::{Cause, Error, Result};
use crate::index::PAGES_END;
use crate::pages::core::Core;
use crate::pages::dirt;
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::pages::mapping::{Mapping, ReadUnder};
use crate::pages::written::SyncTurn;

/// What is not clean may take this part of the budget, and one file this part of that in any case.
const UNSYNCED_PART: u64 = 4;

/// States of `Core::writes_behind`: no thread syncs in the background; one does; the last one has
/// failed, and there is none until a sync has succeeded.
const NOT: u64 = 0;
const BEHIND: u64 = 1;
const FAILED: u64 = 2;

pub(crate) fn error(mapping: &Mapping, what: &str, cause: io::Error) -> Error {
    let (path, what, cause) = (mapping.path.clone(), what.to_owned(), Arc::new(cause));
    Cause::Sync { path, what, cause }.into()
}

pub(crate) fn sync(core: &Core, mapping: &Mapping, data_only: bool) -> Result<()> {
    core.check_owner()?;
    // Step 1.
    let Some(turn) = mapping.written.turn_to_sync(data_only) else { return Ok(()) };
    sync_now(core, mapping, data_only, turn)
}

/// Steps 2 to 4.
fn sync_now(core: &Core, mapping: &Mapping, data_only: bool, turn: SyncTurn<'_>) -> Result<()> {
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
    let result = written.and(synced);
    turn.ends(data_only, result.is_ok());
    // Relaxed: whoever sees it is right to try.
    if result.is_ok() && core.writes_behind.load(Ordering::Relaxed) == FAILED {
        core.writes_behind.store(NOT, Ordering::Relaxed); // as above
    }
    result
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

/// Before a write. If much of the budget has bytes that are not durable, a thread syncs; if too
/// much has, this one waits, and syncs its own file, if that has much of it.
pub(super) fn make_room(handle: &Handle) -> Result<()> {
    let (core, mapping) = (&handle.core, &handle.mapping);
    let most = u64::from(core.frames.frames()) / UNSYNCED_PART;
    if unsynced_pages(core) < most / 2 {
        return Ok(());
    }
    start_behind(core, most / 4);
    let is_full =
        || unsynced_pages(core) >= most && mapping.written.unsynced_pages() >= most / UNSYNCED_PART;
    if !is_full() {
        return Ok(());
    }
    let turn = mapping.written.turn_to_begin(is_full);
    turn.map_or(Ok(()), |turn| sync_now(core, mapping, true, turn))
}

fn unsynced_pages(core: &Core) -> u64 {
    core.unsynced_pages.load(Ordering::Relaxed) // a number
}

/// Unless there is one, starts a thread that syncs file after file, those first that have the most
/// to be synced, until so few pages are left in all, or one has failed: then who writes to it finds
/// out why.
fn start_behind(core: &Arc<Core>, few: u64) {
    let behind = &core.writes_behind;
    // Relaxed, all: the thread does what its own loads tell.
    let begins = || behind.compare_exchange(NOT, BEHIND, Ordering::Relaxed, Ordering::Relaxed);
    if behind.load(Ordering::Relaxed) != NOT || begins().is_err() {
        return;
    }
    let shared = core.clone();
    let started = threads::start("pinfold-write", move || {
        let mut ended = NOT;
        // Ends: each turn makes pages clean, or is the last.
        while unsynced_pages(&shared) > few {
            let files = shared.mappings.all();
            let most = files.into_iter().max_by_key(|it| it.written.unsynced_pages());
            let Some(file) = most.filter(|it| it.written.unsynced_pages() > 0) else { break };
            if sync(&shared, &file, true).is_err() {
                ended = FAILED;
                break;
            }
        }
        shared.writes_behind.store(ended, Ordering::Relaxed);
    });
    if started.is_err() {
        behind.store(FAILED, Ordering::Relaxed); // those who write sync by themselves
    }
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
