//! A future that finds its page on its way leaves its waker, and is woken, whenever the fill ends.

use super::{Model, holds_and_catches, park, race};
use crate::base::mutant::Mutant;
use crate::base::wait::Ticket;
use crate::pages::fill;

/// What a future does that finds the folio (`futures/bring.rs`), without the request that it would
/// make.
fn wait(model: &Model) {
    let core = &model.core;
    let Some(held) = core.hold(&model.files[0].mapping, 0) else { return };
    let (ticket, frame) = (Ticket::new(), held.frame());
    park::until(None, |waker| {
        let over = || !fill::is_on_its_way(frame);
        core.waiters.poll(held.head().0, ticket, waker, over).then_some(())
    });
    assert!(!fill::is_on_its_way(frame), "woken too early");
}

fn filled() {
    race(&Model::new(2, 0), |model| model.check(0, 0, 1), wait);
}

#[test]
fn a_future_is_woken_when_its_page_arrives() {
    let mutants = [(Mutant::LeaveUnlocked, "deadlock"), (Mutant::WakeUnlocked, "deadlock")];
    holds_and_catches(filled, &mutants);
}

/// A future that does not wait any more.
fn leave(model: &Model) {
    let core = &model.core;
    let Some(held) = core.hold(&model.files[0].mapping, 0) else { return };
    let (ticket, frame) = (Ticket::new(), held.frame());
    let noop = std::task::Waker::noop();
    if !core.waiters.poll(held.head().0, ticket, noop, || !fill::is_on_its_way(frame)) {
        core.waiters.leave(held.head().0, ticket);
    }
}

/// Two futures wait for one folio, and one goes away.
fn left() {
    let leave_and_wait = |model: &Model| {
        leave(model);
        wait(model);
    };
    race(&Model::new(2, 0), |model| model.check(0, 0, 1), leave_and_wait);
}

#[test]
fn a_future_that_goes_away_takes_its_own_waker_back() {
    holds_and_catches(left, &[(Mutant::LeaveUnlocked, "deadlock")]);
}
