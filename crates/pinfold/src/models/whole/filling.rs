//! Misses under pressure: fills, evictions, the daemon, readahead, and dropping folios being
//! filled.

use super::{Fixture, Plan, SMALL, Stores, draw, holds_and_catches, race};
use crate::access::many;
use crate::base::mutant::Mutant;

fn read_some(fixture: &Fixture) {
    for _ in 0..3 {
        fixture.read_any().expect("the source does not fail");
    }
}

/// Three readers of eight pages in four frames, and the daemon.
fn pressure() {
    let fixture = Fixture::new(Plan { watermarks: (1, 2), ..SMALL });
    race(&fixture, &[read_some, read_some, read_some]);
}

#[test]
fn readers_and_the_daemon_with_too_little_memory() {
    let mutants = [
        (Mutant::FreezeStaysEven, ""),
        (Mutant::CountedBlindly, ""),
        (Mutant::FreezeAnyCount, ""),
        (Mutant::InsertBlindly, "the range was checked"),
        (Mutant::WakeFirst, "deadlock"),
        (Mutant::DirectoryStays, "the directory says"),
    ];
    holds_and_catches(Stores::AtOnce, pressure, &mutants);
}

/// Drops pages that are or were being read: a reader gets its pages all the same.
fn dropping() {
    let drop_some = |fixture: &Fixture| {
        for _ in 0..3 {
            fixture.invalidate_any();
        }
    };
    race(&Fixture::new(SMALL), &[read_some, read_some, drop_some]);
}

#[test]
fn readers_of_what_is_dropped() {
    let mutants =
        [(Mutant::LandBlindly, ""), (Mutant::CountedBlindly, ""), (Mutant::WakeFirst, "deadlock")];
    holds_and_catches(Stores::AtOnce, dropping, &mutants);
}

/// Folios of up to four pages, read ahead by requests that the source's own thread executes, one at
/// a time. Ranges overlap, so that inserts fail.
const AHEAD: Plan = Plan {
    frames: 14,
    order_max: 2,
    files: 1,
    pages: 8,
    readahead_pages: 4,
    device: true,
    ..SMALL
};

fn read_on(fixture: &Fixture) {
    let from = draw(3);
    for page in from..from + 4 {
        fixture.read(0, page, 64).expect("the source does not fail");
    }
}

fn will_need(fixture: &Fixture) {
    many::will_need(&fixture.files[0], 0..8);
}

fn ahead() {
    race(&Fixture::new(AHEAD), &[read_on, read_on, will_need]);
}

#[test]
fn what_is_read_ahead_arrives_or_ends() {
    let mutants = [
        (Mutant::ForgetUnsubmitted, ""),
        (Mutant::WakeFirst, "deadlock"),
        (Mutant::InsertBlindly, "the range was checked"),
    ];
    holds_and_catches(Stores::AtOnce, ahead, &mutants);
}

/// Reads ahead of which one in three fails, while pages are dropped: an error comes from the
/// source, and no thread waits for ever.
fn ahead_failing() {
    let read = |fixture: &Fixture| {
        for page in draw(3)..6 {
            if let Err(error) = fixture.read(0, page, 64) {
                assert!(error.to_string().contains("as the model wants it"), "{error}");
            }
        }
    };
    let drop_some = |fixture: &Fixture| {
        fixture.invalidate_any();
        fixture.invalidate_any();
    };
    race(&Fixture::failing(AHEAD, 3), &[read, read, will_need, drop_some]);
}

#[test]
fn reads_ahead_that_fail_end_for_all_who_wait() {
    let mutants = [(Mutant::ForgetUnsubmitted, ""), (Mutant::WakeFirst, "deadlock")];
    holds_and_catches(Stores::AtOnce, ahead_failing, &mutants);
}
