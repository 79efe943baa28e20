//! Those who disturb the readers.
//!
//! Belongs here: the shakers (invalidate, split, migrate, compact, advise, reopen), the injector of
//! faults, the rewriter, the cutter, and the auditor of the budget.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use pinfold::Result;
use pinfold::source::{Hint, Source};

use crate::faulty::{Fault, Operation, Rule, When};

use super::check::{Checked, check, unexpected};
use super::files::{Nature, Subject, open};
use super::options::{Sabotage, Schedule};
use super::report::Failure;
use super::shared::Shared;
use super::watch::{Desk, Doing};

/// A thread that shakes until the run is over.
pub(super) fn run(shared: &Shared, desk: &Desk, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    while shared.goes_on() {
        let subjects = &shared.subjects.all;
        // Mostly what is being read: only there do they meet.
        let any = rng.usize(0..4) == 0;
        let number = if any { rng.usize(0..subjects.len()) } else { shared.watch.latest() };
        let subject = &subjects[number];
        let doing = choose(shared.options.schedule, &mut rng);
        let range = range(shared, subject, &mut rng);
        desk.begin(doing, subject.number, range.start, range.end - range.start);
        if let Err(failure) = shake(shared, desk, subject, doing, range, &mut rng) {
            shared.fail(*failure);
        }
        // Readers shall have something to read undisturbed, too.
        std::thread::sleep(Duration::from_micros(rng.u64(0..100)));
    }
}

/// What happens how often, of 100.
fn choose(schedule: Schedule, rng: &mut Rng) -> Doing {
    let choice = rng.u32(0..100);
    match choice {
        0..10 if schedule == Schedule::Moving => Doing::Split,
        _ if schedule == Schedule::Moving => Doing::Migrate,
        0..50 if schedule == Schedule::Reopening => Doing::Invalidate,
        _ if schedule == Schedule::Reopening => Doing::Reopen,
        0..25 => Doing::Invalidate,
        25..50 => Doing::Split,
        50..75 => Doing::Migrate,
        75..78 => Doing::Compact,
        78..90 => Doing::Advise,
        _ => Doing::Reopen,
    }
}

/// Where somebody reads just now, or anywhere.
fn range(shared: &Shared, subject: &Subject, rng: &mut Rng) -> Range<u64> {
    let near = shared.watch.spot(subject.number).saturating_sub(rng.u64(0..8192));
    let anywhere = rng.u32(0..8) == 0;
    let start = if anywhere { rng.u64(0..=subject.bytes) } else { near };
    let most = 1u64 << rng.u32(0..23);
    start..start + rng.u64(0..=most)
}

fn shake(
    shared: &Shared,
    desk: &Desk,
    subject: &Subject,
    doing: Doing,
    range: Range<u64>,
    rng: &mut Rng,
) -> Checked {
    let unexpected = |error| unexpected(shared, desk, &error);
    if doing == Doing::Reopen {
        return reopen(shared, desk, subject, range.start, rng);
    }
    let file = subject.file(&shared.cache).map_err(unexpected)?;
    let times = match doing {
        Doing::Invalidate => u64::from(file.invalidate(range).map_err(unexpected)? > 0),
        Doing::Split => file.split(range),
        Doing::Migrate => file.migrate(range),
        Doing::Compact => {
            // A full cache has no room to move things to: make some, in pieces.
            file.invalidate(0..subject.bytes).map_err(unexpected)?;
            u64::from(shared.cache.compact())
        }
        _ => {
            let hints = [Hint::Sequential, Hint::Random, Hint::WillNeed, Hint::DontNeed];
            let hint = hints[rng.usize(0..hints.len())];
            advise(subject, file.advise(range, hint)).map_err(unexpected)?
        }
    };
    shared.watch.count(doing, times);
    Ok(())
}

/// Whether the hint was taken; a file in trouble may refuse it.
fn advise(subject: &Subject, taken: Result<()>) -> Result<u64> {
    match taken {
        Err(error) if matches!(subject.nature, Nature::Steady) => Err(error),
        taken => Ok(taken.is_ok().into()),
    }
}

/// Opens a real file once more, by another name, reads a cell and drops the handle.
fn reopen(shared: &Shared, desk: &Desk, subject: &Subject, offset: u64, rng: &mut Rng) -> Checked {
    let Some((path, preference)) = &subject.path else {
        return Ok(());
    };
    let (dir, name) = (path.parent(), path.file_name());
    let other = dir.zip(name).map_or_else(|| path.clone(), |(dir, name)| dir.join(".").join(name));
    let mut cell = [0; 64];
    let offset = offset.min(subject.bytes) / 64 * 64 + rng.u64(0..2);
    let read =
        open(&shared.cache, &other, *preference).and_then(|file| file.read_at(&mut cell, offset));
    let got = read.map_err(|error| unexpected(shared, desk, &error))?;
    // Nobody writes to real files.
    check(shared, desk, subject, offset, &cell[..got], 0..=0)?;
    desk.read(got);
    shared.watch.count(Doing::Reopen, 1);
    Ok(())
}

/// The faulty sources: well for a while, ill for a while.
pub(super) fn inject(shared: &Shared, desk: &Desk, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    while shared.goes_on() {
        for subject in &shared.subjects.all {
            let Nature::Faulty(faulty) = &subject.nature else { continue };
            desk.begin(Doing::Inject, subject.number, 0, 0);
            subject.phase.turn();
            for fault in [
                Fault::Delay(Duration::from_micros(rng.u64(1..2000))),
                Fault::Error(libc::EIO),
                Fault::Short(rng.usize(0..8192)),
                Fault::Overlong(1),
            ] {
                let when = When::PerMillion { chance: rng.u32(0..300_000), seed: rng.u64(..) };
                faulty.add(Rule { operation: Operation::Read, when, fault });
            }
            shared.watch.count(Doing::Inject, 1);
            shared.pause(Duration::from_millis(rng.u64(1..100)));
            desk.begin(Doing::Heal, subject.number, 0, 0);
            faulty.heal();
            subject.phase.turn();
            shared.watch.count(Doing::Heal, 1);
        }
        shared.pause(Duration::from_millis(rng.u64(1..150)));
    }
}

/// Files that are written anew by somebody else, who then invalidates them: from then on the old
/// bytes must not be read.
pub(super) fn rewrite(shared: &Shared, desk: &Desk, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    while shared.goes_on() {
        for subject in &shared.subjects.all {
            let Nature::Rewritten { memory, begun, settled } = &subject.nature else { continue };
            // Relaxed: only this thread stores it.
            let epoch = begun.load(Ordering::Relaxed) + 1;
            desk.begin(Doing::Rewrite, subject.number, 0, subject.bytes);
            // Release: with the source's lock behind it, pairs with `newest_epoch`.
            begun.store(epoch, Ordering::Release);
            write_all(subject, memory.as_ref(), epoch as u32);
            if shared.options.sabotage != Some(Sabotage::NoInvalidate) {
                invalidate(shared, desk, subject, 0..subject.bytes);
            }
            // Release: pairs with `oldest_epoch`.
            settled.store(epoch, Ordering::Release);
            shared.watch.count(Doing::Rewrite, 1);
        }
        shared.pause(Duration::from_millis(rng.u64(1..20)));
    }
}

/// In pieces of whole cells, so that none is ever seen torn in the source.
fn write_all(subject: &Subject, source: &dyn Source, epoch: u32) {
    let mut piece = vec![0; 64 << 10];
    for offset in (0..subject.bytes).step_by(piece.len()) {
        let bytes = (subject.bytes - offset).min(piece.len() as u64) as usize;
        subject.pattern.at_epoch(epoch).fill(offset, &mut piece[..bytes]);
        source.write_at(offset, &piece[..bytes]).expect("memory can be written");
    }
}

/// Files that somebody else cuts short and then restores.
pub(super) fn cut(shared: &Shared, desk: &Desk, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    // Long enough for readers to fill what was dropped, and with luck no longer.
    let unit = match shared.options.schedule {
        Schedule::Resizing => Duration::from_micros(20),
        _ => Duration::from_millis(1),
    };
    while shared.goes_on() {
        for subject in &shared.subjects.all {
            let Nature::Cut(memory) = &subject.nature else { continue };
            let keep = rng.u64(0..subject.bytes);
            desk.begin(Doing::Cut, subject.number, keep, subject.bytes - keep);
            subject.phase.turn();
            memory.set_len(keep).expect("memory can be cut");
            let told = rng.bool();
            shared.pause(unit * rng.u32(0..5));
            if told {
                invalidate(shared, desk, subject, 0..keep / 2);
                shared.pause(unit * rng.u32(0..5));
            }
            desk.begin(Doing::Restore, subject.number, keep, subject.bytes - keep);
            let mut tail = vec![0; (subject.bytes - keep) as usize];
            subject.pattern.fill(keep, &mut tail);
            // In one piece: nobody sees it longer and not yet written.
            memory.write_at(keep, &tail).expect("memory can be written");
            // Only the first byte: that the end has moved is for the cache to find out.
            invalidate(shared, desk, subject, 0..1);
            subject.phase.turn();
            shared.watch.count(Doing::Cut, 1);
        }
        shared.pause(unit * rng.u32(1..30));
    }
}

fn invalidate(shared: &Shared, desk: &Desk, subject: &Subject, range: Range<u64>) {
    let file = subject.file(&shared.cache);
    if let Err(error) = file.and_then(|file| file.invalidate(range)) {
        shared.fail(*unexpected(shared, desk, &error));
    }
}

/// Looks at the budget again and again.
pub(super) fn audit(shared: &Shared, desk: &Desk, _seed: u64) {
    while shared.goes_on() {
        desk.begin(Doing::Audit, usize::MAX, 0, 0);
        let stats = shared.cache.stats();
        let used = stats.resident_bytes + stats.metadata_bytes;
        if used > stats.budget_bytes {
            shared.fail(Failure::Budget(format!(
                "{used} bytes are in use under a budget of {}: {stats:#?}",
                stats.budget_bytes
            )));
        }
        let mirrored = shared.subjects.mirrored_bytes();
        if mirrored > stats.budget_bytes {
            shared.fail(Failure::Budget(format!(
                "{mirrored} bytes are mapped under a budget of {}: {stats:#?}",
                stats.budget_bytes
            )));
        }
        shared.watch.count(Doing::Audit, 1);
        shared.pause(Duration::from_millis(10));
    }
}
