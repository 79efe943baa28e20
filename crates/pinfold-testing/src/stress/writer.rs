//! A thread that writes files anew through the cache, epoch by epoch, and syncs them.
//!
//! Belongs here: what is written, and whether the source has it in the end.

use std::sync::TryLockError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use pinfold::{ErrorKind, Result};

use crate::pattern::CELL_BYTES;

use super::check::unexpected;
use super::files::{Nature, Subject, WrittenFile};
use super::report::Failure;
use super::shared::Shared;
use super::watch::{Desk, Doing};

pub(super) fn run(shared: &Shared, desk: &Desk, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    while shared.goes_on() {
        let subject = &shared.subjects.all[rng.usize(..shared.subjects.all.len())];
        let Nature::Written(written) = &subject.nature else { continue };
        // One epoch of a file at a time.
        let turn = match written.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Poisoned(_)) => return,
        };
        // Relaxed: only who has the turn stores it.
        let epoch = written.begun.load(Ordering::Relaxed) + 1;
        // Release: whoever sees bytes of this epoch, by the cache's locks and versions, sees it.
        written.begun.store(epoch, Ordering::Release);
        let done = write_all(shared, desk, subject, written, epoch as u32, &mut rng);
        if let Err(failure) = done {
            shared.fail(*failure);
            return;
        }
        // Release: pairs with `oldest_epoch`.
        written.settled.store(epoch, Ordering::Release);
        shared.watch.count(Doing::Rewrite, 1);
        drop(turn);
        shared.pause(Duration::from_micros(rng.u64(1..2000)));
    }
    for subject in &shared.subjects.all {
        if let Nature::Written(written) = &subject.nature
            && let Ok(_turn) = written.turn.lock()
            && let Err(failure) = last_look(shared, desk, subject, written)
        {
            shared.fail(*failure);
        }
    }
}

/// What a source that fails now and then fails, and what is pinned and held meanwhile, is tried
/// again.
fn until_done(
    shared: &Shared,
    desk: &Desk,
    fails: bool,
    mut call: impl FnMut() -> Result<()>,
) -> Result<(), Box<Failure>> {
    // Ends: sources fail now and then only, and pins end.
    loop {
        match call().map_err(|error| (error.kind(), error)) {
            Ok(()) => return Ok(()),
            Err((ErrorKind::Write, _)) if fails => desk.excuse(),
            Err((ErrorKind::Busy, _)) => desk.excuse(),
            Err((_, error)) => return Err(unexpected(shared, desk, &error)),
        }
        std::thread::yield_now();
    }
}

/// In pieces of whole cells, so that readers see none torn, from front to back.
fn write_all(
    shared: &Shared,
    desk: &Desk,
    subject: &Subject,
    written: &WrittenFile,
    epoch: u32,
    rng: &mut Rng,
) -> Result<(), Box<Failure>> {
    let mut piece = vec![0; 300 << 10];
    let most = [1, 16, 64, 1000, 4800][rng.usize(..5)];
    let mut offset = 0;
    while offset < subject.bytes {
        let bytes = (rng.usize(1..=most) * CELL_BYTES).min((subject.bytes - offset) as usize);
        subject.pattern.at_epoch(epoch).fill(offset, &mut piece[..bytes]);
        desk.begin(Doing::Rewrite, subject.number, offset, bytes as u64);
        until_done(shared, desk, written.fails, || written.file.write_at(&piece[..bytes], offset))?;
        offset += bytes as u64;
        if rng.u32(..200) == 0 {
            until_done(shared, desk, written.fails, || written.file.sync_data())?;
        }
    }
    Ok(())
}

/// Whether the source has what was written last.
fn last_look(
    shared: &Shared,
    desk: &Desk,
    subject: &Subject,
    written: &WrittenFile,
) -> Result<(), Box<Failure>> {
    desk.begin(Doing::LastLook, subject.number, 0, subject.bytes);
    until_done(shared, desk, written.fails, || written.file.sync_all())?;
    let bytes = (written.source)();
    let epoch = written.begun.load(Ordering::Relaxed) as u32;
    let checked = subject.pattern.check_epochs(0, &bytes, epoch..=epoch);
    let wrong = |wrong| Failure::Wrong {
        thread: format!("{}, in the source", desk.name),
        file: subject.name.clone(),
        wrong,
        names: shared.subjects.names(),
    };
    checked.map_err(|why| Box::new(wrong(why)))?;
    if bytes.len() as u64 == subject.bytes {
        return Ok(());
    }
    Err(Box::new(Failure::Length {
        thread: format!("{}, in the source", desk.name),
        file: subject.name.clone(),
        offset: 0,
        asked_bytes: bytes.len(),
        got_bytes: bytes.len(),
        expected_bytes: subject.bytes as usize,
    }))
}
