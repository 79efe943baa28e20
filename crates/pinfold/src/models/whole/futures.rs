//! Futures beside threads that fill, evict and drop: each is woken when its page is there or there
//! is memory for it, and one that is dropped keeps nothing from the others.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use super::{
    Fixture, Plan, SMALL, Stores, catches, draw, holds, holds_and_catches, park, race, run,
};
use crate::access::futures::{Get, GetMany};
use crate::base::mutant::Mutant;
use crate::base::sizes::RETREATS_MAX;
use crate::base::sync::scheduled;
use crate::frames::Order;

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

/// The pages of a batch, checked, once they are there; they are held for a while.
fn poll_batch(
    many: &mut GetMany<'_>,
    waker: &Waker,
    fixture: &Fixture,
    pages: &[u64],
) -> Option<()> {
    let polled = Pin::new(many).poll(&mut Context::from_waker(waker));
    let Poll::Ready(folios) = polled else { return None };
    let folios = folios.expect("the source does not fail");
    assert_eq!(folios.len(), pages.len());
    for _ in 0..2 {
        for (folio, &page) in folios.iter().zip(pages) {
            fixture.check_bytes(0, page, folio);
        }
        scheduled::point();
    }
    Some(())
}

/// Several pages by one future, some perhaps twice. Some are dropped, before they are woken or
/// after.
fn get_batch(fixture: &Fixture) {
    for _ in 0..2 {
        let pages = [draw(4), draw(4), draw(4)];
        let mut many = GetMany::new(&fixture.files[0], &pages);
        let chance = draw(6);
        if chance == 0 {
            let _ = poll_batch(&mut many, Waker::noop(), fixture, &pages);
            continue;
        }
        let polls = (chance < 3).then_some(1);
        park::until(polls, |waker| poll_batch(&mut many, waker, fixture, &pages));
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
        (Mutant::LeaveUnlocked, ""), // a waker that is left, or a task that nobody wakes
        (Mutant::InsertBlindly, ""),
        (Mutant::DropKeepsClaim, "a claim or a turn is left"),
    ];
    holds_and_catches(Stores::AtOnce, in_batches, &mutants);
}

/// Two batches of three pages of five are admitted at once, and so is a single future; but what the
/// model takes leaves three frames for data.
const SCARCE: Plan = Plan { frames: 28, files: 1, pages: 5, watermarks: (1, 1), ..PLAN };

/// How many batches have stepped back.
static STEPPED_BACK: AtomicU64 = AtomicU64::new(0);

/// Batches, of which some are dropped, also after they have stepped back.
fn step_back(fixture: &Fixture) {
    for _ in 0..2 {
        let first = draw(5);
        let pages = [first, (first + 1) % 5, (first + 2) % 5];
        let mut many = GetMany::new(&fixture.files[0], &pages);
        let polls = (draw(4) == 0).then(|| 1 + draw(3) as u32);
        let mut retreats = 0;
        park::until(polls, |waker| {
            let polled = poll_batch(&mut many, waker, fixture, &pages);
            if polled.is_none() {
                retreats = many.retreats();
                assert!(retreats <= RETREATS_MAX, "it does not end");
            }
            polled
        });
        STEPPED_BACK.fetch_add(u64::from(retreats > 0), Ordering::Relaxed);
    }
}

fn get_and_read(fixture: &Fixture) {
    get_one(fixture);
    let page = draw(5);
    let held = fixture.files[0].get(page).expect("the source does not fail");
    fixture.check_bytes(0, page, &held);
    drop(held);
    drop_some(fixture);
}

fn scarce() {
    let fixture = Fixture::new(SCARCE);
    let frames = &fixture.core.frames;
    let mut taken = Vec::new();
    while frames.free_frames() > 3 {
        taken.push(frames.alloc(Order::MIN).expect("there are free ones"));
    }
    run(&fixture, &[step_back, step_back, get_and_read]);
    for frame in taken {
        fixture.core.put(frame);
    }
    fixture.ends();
}

#[test]
fn batches_that_want_the_same_memory_step_back_and_all_end() {
    if holds(Stores::AtOnce, scarce) {
        assert_ne!(STEPPED_BACK.load(Ordering::Relaxed), 0, "none has stepped back");
        let left = "a claim or a turn is left";
        let mutants = [
            (Mutant::BatchKeepsGuards, "max_steps"),
            (Mutant::AllKeepGuards, "max_steps"),
            (Mutant::PassedOverKeepsGuards, "max_steps"),
            (Mutant::RetreatKeepsClaim, ""),
            (Mutant::RetreatUncounted, "max_steps"),
            (Mutant::RetreatLosesTurn, ""),
            (Mutant::BatchStaysQueued, left),
            (Mutant::DropKeepsClaim, ""),
        ];
        catches(Stores::AtOnce, scarce, &mutants);
    }
}

fn for_memory() {
    race(&Fixture::new(TIGHT), &[get_one, get_one, drop_some]);
}

#[test]
fn futures_that_queue_for_memory_get_it_whoever_is_dropped() {
    holds_and_catches(Stores::AtOnce, for_memory, &[(Mutant::QueueForgotten, "deadlock")]);
}
