//! Futures beside threads that fill, evict and drop: each is woken when its page is there or there
//! is memory for it, and one that is dropped keeps nothing from the others.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::{Fixture, Plan, SMALL, Stores, draw, holds_and_catches, park, race};
use crate::futures::{Get, GetMany};
use crate::mutant::Mutant;

const PLAN: Plan = Plan { device: true, ..SMALL };

/// A frame for index nodes, two for data, and the daemon, which alone notices that a guard was
/// dropped.
const TIGHT: Plan = Plan { frames: 4, files: 1, watermarks: (1, 1), ..PLAN };

fn poll(get: &mut Get<'_>, waker: &Waker, fixture: &Fixture, page: u64) -> Option<()> {
    match Pin::new(get).poll(&mut Context::from_waker(waker)) {
        Poll::Ready(folio) => {
            fixture.check_bytes(0, page, &folio.expect("the source does not fail"));
            Some(())
        }
        Poll::Pending => None,
    }
}

/// Several pages by one future, some perhaps twice.
fn get_batch(fixture: &Fixture) {
    for _ in 0..2 {
        let pages = [draw(4), draw(4), draw(4)];
        let mut many = GetMany::new(&fixture.files[0], &pages);
        let polls = (draw(3) == 0).then_some(1);
        park::until(polls, |waker| {
            match Pin::new(&mut many).poll(&mut Context::from_waker(waker)) {
                Poll::Ready(folios) => {
                    let folios = folios.expect("the source does not fail");
                    assert_eq!(folios.len(), pages.len());
                    for (folio, &page) in folios.iter().zip(&pages) {
                        fixture.check_bytes(0, page, folio);
                    }
                    Some(())
                }
                Poll::Pending => None,
            }
        });
    }
}

fn get_one(fixture: &Fixture) {
    let page = draw(4);
    let mut get = Get::new(&fixture.files[0], page);
    park::until(None, |waker| poll(&mut get, waker, fixture, page));
}

fn get_some(fixture: &Fixture) {
    for _ in 0..3 {
        get_one(fixture);
    }
}

/// Drops futures, before they are woken or after.
fn drop_some(fixture: &Fixture) {
    for _ in 0..2 {
        let page = draw(4);
        let mut get = Get::new(&fixture.files[0], page);
        if draw(2) == 0 {
            let _ = poll(&mut get, Waker::noop(), fixture, page);
        } else {
            park::until(Some(1), |waker| poll(&mut get, waker, fixture, page));
        }
    }
}

fn read_some(fixture: &Fixture) {
    for _ in 0..2 {
        fixture.read(0, draw(4), 64).expect("the source does not fail");
    }
}

fn beside_threads() {
    let drop = |fixture: &Fixture| {
        fixture.invalidate_any();
        fixture.evict();
    };
    race(&Fixture::new(PLAN), &[get_some, read_some, drop]);
}

#[test]
fn futures_beside_threads_get_their_pages() {
    let mutants = [
        (Mutant::WakeFirst, "deadlock"),
        (Mutant::WakeUnlocked, "deadlock"),
        (Mutant::LeaveUnlocked, "deadlock"),
        (Mutant::LandBlindly, ""),
    ];
    holds_and_catches(Stores::AtOnce, beside_threads, &mutants);
}

/// So many that two batches are admitted at once.
const ROOMY: Plan = Plan { frames: 28, ..PLAN };

fn in_batches() {
    let drop = |fixture: &Fixture| {
        fixture.invalidate_any();
        fixture.evict();
    };
    race(&Fixture::new(ROOMY), &[get_batch, get_batch, drop]);
}

#[test]
fn batches_of_futures_get_their_pages() {
    let mutants = [
        (Mutant::WakeFirst, "deadlock"),
        (Mutant::LeaveUnlocked, "deadlock"),
        (Mutant::InsertBlindly, ""),
    ];
    holds_and_catches(Stores::AtOnce, in_batches, &mutants);
}

fn for_memory() {
    race(&Fixture::new(TIGHT), &[get_one, get_one, drop_some]);
}

#[test]
fn futures_that_queue_for_memory_get_it_whoever_is_dropped() {
    holds_and_catches(Stores::AtOnce, for_memory, &[(Mutant::QueueForgotten, "deadlock")]);
}
