//! Until what was written is durable, and who waits because too much is not.
//!
//! A sync, step by step:
//!
//! 1. wait for the file's turn (`pages/written.rs`); if meanwhile a sync has succeeded that began
//!    after this call, all is done: threads that sync at the same time share one;
//! 2. give all that is dirty to the source (`out.rs`); once more, if other threads wait to sync by
//!    then, as one sync of the source is enough for them, too. Or give it what is dirty of a range:
//!    then the sync is not shared;
//! 3. the source's sync. Nothing is given to it meanwhile;
//! 4. if that has succeeded, what is written is clean; if it has failed, all of it is dirty again.

use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use super::out;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::Ordering;
use crate::base::threads;
use crate::error::{Cause, Result};
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::index::PAGES_END;
use crate::pages::core::Core;
use crate::pages::dirt;
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::pages::mapping::Mapping;
use crate::pages::reclaim::{self, NAP_MAX};
use crate::pages::written::{FileUse, SyncTurn};

/// What is not clean may take this part of the budget, and one file this part of that in any case.
const UNSYNCED_PART: u64 = 4;

/// States of `Core::writes_behind`: no thread syncs in the background; one does; the last one has
/// failed, and there is none until a sync has succeeded.
const NOT: u64 = 0;
const BEHIND: u64 = 1;
const FAILED: u64 = 2;

/// All bytes of a file.
const ALL: Range<u64> = 0..u64::MAX;

pub(crate) fn sync(core: &Core, mapping: &Mapping, data_only: bool) -> Result<()> {
    sync_range(core, mapping, &ALL, data_only)
}

/// Of the bytes of `range`, and of the length if the file ends in it.
pub(crate) fn sync_range(
    core: &Core,
    mapping: &Mapping,
    range: &Range<u64>,
    data_only: bool,
) -> Result<()> {
    core.check_owner()?;
    if !mapping.written.is_claimed(FileUse::Written) {
        return Ok(()); // nothing was written
    }
    // Step 1.
    let Some(turn) = mapping.written.turn_to_sync(data_only) else { return Ok(()) };
    sync_now(core, mapping, range, data_only, turn)
}

/// Steps 2 to 4.
fn sync_now(
    core: &Core,
    mapping: &Mapping,
    range: &Range<u64>,
    data_only: bool,
    mut turn: SyncTurn<'_>,
) -> Result<()> {
    if !mapping.backing.is_open() && !mapping.written.needs_sync() {
        return Ok(()); // its last handle has synced it
    }
    let mut early = mutant::on(Mutant::SyncsFirst).then(|| mapping.backing.sync(data_only));
    if mutant::on(Mutant::SyncOnlyWrites) {
        early = Some(Ok(()));
    }
    // Step 2.
    let cut_short = if mutant::on(Mutant::RangeCutShort) { PAGE_BYTES as u64 - 1 } else { 0 };
    let pages_end = range.end.saturating_sub(cut_short).div_ceil(PAGE_BYTES as u64);
    let pages = range.start >> PAGE_SHIFT..pages_end.min(PAGES_END);
    let is_all = *range == ALL || mutant::on(Mutant::RangeIsAll);
    // What is dirty from here on may not be given.
    let mut end = range.end.min(mapping.len_bytes());
    let mut written = out::write_out(core, mapping, &pages);
    if is_all && written.is_ok() && turn.begins_again() {
        end = mapping.len_bytes();
        written = out::write_out(core, mapping, &pages);
    }
    let written = written.and_then(|()| settle_length(mapping, end));
    if mutant::on(Mutant::HoleLate) {
        let pages = mapping.change().set_hole(0..0);
        let _ = mapping.backing.punch_hole(pages.start << PAGE_SHIFT..pages.end << PAGE_SHIFT);
    }
    if mutant::on(Mutant::CleanEarly) {
        dirt::clean(core, mapping);
    }
    // Steps 3 and 4. After an error, too: the rest becomes durable, and may leave memory.
    let synced = early.unwrap_or_else(|| mapping.backing.sync(data_only));
    mapping.after_sync();
    let path = || mapping.path.clone();
    let synced =
        synced.map_err(|cause| Cause::Sync { path: path(), cause: Arc::new(cause) }.into());
    if synced.is_err() && !mutant::on(Mutant::SyncFailedIsClean) {
        dirt::again(core, mapping, 0..PAGES_END);
    } else {
        dirt::clean(core, mapping);
    }
    turn.ends(data_only, synced.is_ok(), written.is_ok() && is_all);
    let is_unsaid = mutant::on(Mutant::WriteErrorUnsaid);
    let result = if is_unsaid { synced } else { written.and(synced) };
    // Relaxed, both: whoever sees it is right to try.
    if result.is_ok() && core.writes_behind.load(Ordering::Relaxed) == FAILED {
        core.writes_behind.store(NOT, Ordering::Relaxed);
    }
    core.mappings.let_go_if_closed(mapping);
    result
}

/// The end of step 2: the source is to have `end` bytes, or a length that the file had since. Mostly
/// what was written has brought that; but not if the source had failed to set a length, or a write
/// past the end had failed when the length was there, or one beyond `end` waits for another sync.
fn settle_length(mapping: &Mapping, end: u64) -> Result<()> {
    let written = &mapping.written;
    if written.length_due().is_some() || written.source_bytes() < end {
        return set_source_len(mapping, mapping.len_bytes());
    }
    Ok(())
}

/// For who has the turn. If it fails, and the file is not longer than before, it is due.
pub(super) fn set_source_len(mapping: &Mapping, len_bytes: u64) -> Result<()> {
    mapping.before_own_writes();
    let set = mapping.backing.set_len(len_bytes);
    mapping.after_own_writes();
    if set.is_ok() || len_bytes <= mapping.len_bytes() {
        mapping.written.length_set(len_bytes, set.is_err());
    }
    set.map_err(|cause| {
        let (path, cause) = (mapping.path.clone(), Arc::new(cause));
        Cause::SetLength { path, len_bytes, cause }.into()
    })
}

/// Before the file becomes longer: bytes of the source that were cut off must not come back.
pub(super) fn settle_length_due(mapping: &Mapping) -> Result<()> {
    if mapping.written.length_due().is_none() {
        return Ok(());
    }
    let _turn = mapping.written.turn();
    let due = mapping.written.length_due();
    due.map_or(Ok(()), |len_bytes| set_source_len(mapping, len_bytes))
}

/// Before a write. If much of the budget has bytes that are not durable, a thread syncs; if too
/// much has, this one waits for a sync of its own file, if that has much of it.
pub(super) fn make_room(handle: &Handle) -> Result<()> {
    let (core, mapping) = (&handle.core, &handle.mapping);
    let most = u64::from(core.frames.frames()) / UNSYNCED_PART;
    if unsynced_pages(core) < most / 2 {
        return Ok(());
    }
    start_behind(core, most / 4);
    let own = || mapping.written.unsynced_pages();
    let is_full = |all: u64| all >= most && own() >= most / UNSYNCED_PART || all >= 2 * most;
    if !is_full(unsynced_pages(core)) {
        return Ok(());
    }
    if own() == 0 {
        return make_clean(handle).map(drop); // those of others must make room
    }
    // Others may have made room meanwhile.
    sync_aside(core, mapping, || is_full(unsynced_pages(core)))
}

/// Syncs a file for a writer, if it is `needed` when it is its turn: in a thread of its own, which
/// has all the time that the source takes. The writer waits no longer than for a read, from the
/// last time on that a write of the file has ended. Error: it hangs, or has failed.
#[cold]
fn sync_aside(core: &Arc<Core>, mapping: &Arc<Mapping>, needed: impl Fn() -> bool) -> Result<()> {
    let most = reclaim::reads_take(core);
    let nap = (most / 30).max(NAP_MAX);
    let (mut seen, mut since) = (None, Instant::now());
    let mut goes_on = |turns: u64| {
        let now = Some((turns, mapping.backing.writes_ended()));
        if std::mem::replace(&mut seen, now) != now {
            since = Instant::now();
        }
        since.elapsed() < most || mutant::on(Mutant::HungSyncAwaited)
    };
    let hangs = || {
        let (path, seconds) = (mapping.path.clone(), most.as_secs());
        Err(Cause::SyncHangs { path, seconds }.into())
    };
    let Some(turn) = mapping.written.turn_while(nap, &mut goes_on) else { return hangs() };
    if !needed() {
        return Ok(());
    }
    turn.leave();
    let (tell, told) = mpsc::channel();
    let (its_core, its_mapping) = (core.clone(), mapping.clone());
    let started = threads::start("pinfold-sync", move || {
        let turn = its_mapping.written.turn_left();
        let _ = tell.send(sync_now(&its_core, &its_mapping, &ALL, true, turn));
    });
    if started.is_err() {
        return sync_now(core, mapping, &ALL, true, mapping.written.turn_left());
    }
    // Ends: when it has ended, or nothing of it has for some time.
    loop {
        match told.recv_timeout(nap) {
            Ok(result) => return result,
            Err(mpsc::RecvTimeoutError::Timeout) if goes_on(0) => {}
            Err(_) => return hangs(),
        }
    }
}

/// Syncs the file, or the one that has the most to be synced. False: there is none.
#[cold]
pub(super) fn make_clean(handle: &Handle) -> Result<bool> {
    let (core, mapping) = (&handle.core, &handle.mapping);
    let has = mapping.written.unsynced_pages() > 0;
    let file = if has { Some(mapping.clone()) } else { fullest(core, &[]) };
    let Some(file) = file else { return Ok(false) };
    sync_aside(core, &file, || file.written.unsynced_pages() > 0).map(|()| true)
}

/// The file that has the most to be synced, but for these.
fn fullest(core: &Core, but: &[u32]) -> Option<Arc<Mapping>> {
    let files = core.mappings.all().into_iter();
    let files = files.filter(|it| it.written.unsynced_pages() > 0 && !but.contains(&it.id));
    files.max_by_key(|it| it.written.unsynced_pages())
}

fn unsynced_pages(core: &Core) -> u64 {
    core.unsynced_pages.load(Ordering::Relaxed) // a number
}

/// The end of the thread, however it ends.
struct Behind {
    core: Arc<Core>,
    ended: u64,
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.core.writes_behind.store(self.ended, Ordering::Relaxed); // as in `start_behind`
    }
}

/// Unless there is one, starts a thread that syncs file after file, those first that have the most
/// to be synced, until so few pages are left in all. One that fails is left to who writes to it.
fn start_behind(core: &Arc<Core>, few: u64) {
    let behind = &core.writes_behind;
    // Relaxed, all: the thread does what its own loads tell.
    let begins = || behind.compare_exchange(NOT, BEHIND, Ordering::Relaxed, Ordering::Relaxed);
    if behind.load(Ordering::Relaxed) != NOT || begins().is_err() {
        return;
    }
    let mut end = Behind { core: core.clone(), ended: NOT };
    let started = threads::start("pinfold-write", move || {
        let mut failed = Vec::new();
        // Ends: each turn makes pages clean, or one file less is tried.
        while unsynced_pages(&end.core) > few
            && let Some(file) = fullest(&end.core, &failed)
        {
            if sync(&end.core, &file, true).is_err() {
                end.ended = FAILED;
                failed.push(file.id);
            }
        }
    });
    if started.is_err() {
        behind.store(FAILED, Ordering::Relaxed); // those who write sync by themselves
    }
}

/// Before the last handle is dropped. What cannot be written stays cached, with its source, but of
/// what nobody can open again.
pub(crate) fn before_last_drop(core: &Core, mapping: &Mapping) {
    if mapping.backing.is_deleted() {
        mapping.written.forget_length();
        freeze::discard(core, mapping, 0..PAGES_END);
    } else {
        let _ = sync(core, mapping, true);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cache::Cache;
    use crate::options::{FileOptions, Options};

    #[test]
    fn a_sync_beside_a_last_handle_that_goes_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let options = FileOptions { write: true, create: true, ..FileOptions::default() };
        let file = cache.open_with(dir.path().join("file"), options).unwrap();
        file.write_at(&[7; 100], 0).unwrap();
        file.sync_data().unwrap();
        let mapping = &file.handle().mapping.clone();
        std::thread::scope(|scope| {
            // Where the sync waits that has found the file open.
            let changing = mapping.change();
            let synced = scope.spawn(|| sync(cache.core(), mapping, true));
            std::thread::sleep(Duration::from_millis(50));
            scope.spawn(|| drop(file));
            while mapping.backing.is_open() {
                std::thread::yield_now();
            }
            drop(changing);
            synced.join().unwrap().unwrap();
        });
    }
}
