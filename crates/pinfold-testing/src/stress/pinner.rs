//! Threads that pin: ranges are held while all else goes on, checked again and again, given back in
//! parts, and by another thread than pinned them.
//!
//! Belongs here: pinning, the checks while it lasts, what errors are excused.

use std::time::Duration;

use fastrand::Rng;
use pinfold::{Error, ErrorKind};

use super::check::{self, Checked};
use super::files::{Nature, Subject};
use super::kept::Pinned;
use super::options::Sabotage;
use super::shared::Shared;
use super::watch::{Desk, Doing};

/// Ranges that all pinners hold together, at most.
const HELD_MAX: usize = 24;
/// Pins after which a sabotaged run spoils one.
const SOUND: u64 = 50;

/// A thread that pins until the run is over, and then gives all back.
pub(super) fn run(shared: &Shared, desk: &Desk, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut pins = 0;
    while shared.goes_on() {
        let held = shared.pins.lock().unwrap().len();
        let done = if rng.usize(0..HELD_MAX) >= held {
            pins += 1;
            pin(shared, desk, &mut rng, pins)
        } else {
            go_on(shared, desk, &mut rng)
        };
        if let Err(failure) = done {
            shared.fail(*failure);
        }
        // The others shall get on, too.
        std::thread::sleep(Duration::from_micros(rng.u64(0..50)));
    }
    shared.pins.lock().unwrap().clear();
}

/// Pins a range, mostly where somebody reads.
fn pin(shared: &Shared, desk: &Desk, rng: &mut Rng, pins: u64) -> Checked {
    let subjects = &shared.subjects.all;
    let number = if rng.bool() { rng.usize(0..subjects.len()) } else { shared.watch.latest() };
    let subject = &subjects[number];
    let most = shared.options.budget_bytes / 8 / HELD_MAX as u64;
    let near = shared.watch.spot(number).saturating_sub(rng.u64(0..8192));
    let start = if rng.bool() { near } else { rng.u64(0..=subject.bytes) };
    let end = (start + rng.u64(1..=most.max(4096))).min(subject.bytes);
    if start >= end {
        return Ok(());
    }
    desk.begin(Doing::Pin, number, start, end - start);
    let oldest = subject.oldest_epoch();
    let file = subject.file(&shared.cache);
    let pinned = match file.and_then(|file| file.pin(start..end)) {
        Ok(pinned) => pinned,
        Err(error) => return excuse(shared, desk, subject, &error),
    };
    let held = Pinned { subject: number, range: pinned, epochs: oldest..=subject.newest_epoch() };
    if shared.options.sabotage == Some(Sabotage::ScribblePins) && pins > SOUND {
        let extent = held.range.extents().next().expect("a byte is pinned");
        let byte = extent.cast::<u8>().cast_mut();
        // SAFETY: pinned memory of the cache, which nobody has a reference to. It is against what
        // pins are for: that is the point.
        let spoilt = unsafe { !byte.read_volatile() };
        // SAFETY: as above.
        unsafe { byte.write_volatile(spoilt) };
    }
    check(shared, desk, &held)?;
    shared.watch.count(Doing::Pin, 1);
    shared.pins.lock().unwrap().push(held);
    Ok(())
}

/// Takes a range that a thread pinned, checks it, and gives some or all of it back.
fn go_on(shared: &Shared, desk: &Desk, rng: &mut Rng) -> Checked {
    let mut held = {
        let mut pins = shared.pins.lock().unwrap();
        if pins.is_empty() {
            return Ok(());
        }
        let one = rng.usize(0..pins.len());
        pins.swap_remove(one)
    };
    let range = held.range.range();
    desk.begin(Doing::Unpin, held.subject, range.start, range.end - range.start);
    check(shared, desk, &held)?;
    let at = rng.u64(range.start..=range.end);
    match rng.u32(0..4) {
        0 => {}
        1 => held.range.unpin_front(at - range.start).expect("it is inside"),
        2 => {
            let pinned = held.range.split_off(at).expect("few pins");
            let other =
                Pinned { subject: held.subject, range: pinned, epochs: held.epochs.clone() };
            check(shared, desk, &other)?;
            shared.pins.lock().unwrap().push(other);
        }
        _ => held.range.unpin_front(range.end - range.start).expect("all of it"),
    }
    check(shared, desk, &held)?;
    shared.watch.count(Doing::Unpin, 1);
    if !held.range.range().is_empty() {
        shared.pins.lock().unwrap().push(held);
    }
    Ok(())
}

/// Whether all bytes are what they were when they were pinned, or what was written since.
fn check(shared: &Shared, desk: &Desk, held: &Pinned) -> Checked {
    let subject = &shared.subjects.all[held.subject];
    let range = held.range.range();
    let mut bytes = vec![0; (range.end - range.start) as usize];
    // While somebody writes, a pin may see a part of a cell.
    let not_written = match &subject.nature {
        Nature::Written(written) => written.turn.try_lock().ok(),
        _ => None,
    };
    held.range.copy_to(&mut bytes, range.start).expect("all of it is pinned");
    let epochs = match subject.nature {
        Nature::Written(_) if not_written.is_none() => return Ok(()),
        Nature::Written(_) => *held.epochs.start()..=subject.newest_epoch(),
        _ => held.epochs.clone(),
    };
    drop(not_written);
    check::check(shared, desk, subject, range.start, &bytes, epochs)?;
    desk.read(bytes.len());
    Ok(())
}

/// Whether a pin may fail like this.
fn excuse(shared: &Shared, desk: &Desk, subject: &Subject, error: &Error) -> Checked {
    let excused = match error.kind() {
        // Readers under references come without end.
        ErrorKind::Busy => true,
        ErrorKind::Read | ErrorKind::Truncated => {
            matches!(subject.nature, Nature::Faulty(_) | Nature::Cut(_))
        }
        ErrorKind::Invalid | ErrorKind::BeyondEnd => matches!(subject.nature, Nature::Cut(_)),
        _ => false,
    };
    if excused {
        desk.excuse();
        return Ok(());
    }
    Err(check::unexpected(shared, desk, error))
}
