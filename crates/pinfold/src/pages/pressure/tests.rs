//! Futures that queue for memory: whose turn it is, what they claim, and what wakes them.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use pinfold_testing::waker::Counted;

use super::{Claim, CopyCounts, Need, OnItsWay, Order, Pressure, Refused, Turn};
use crate::base::mutant::{self, Mutant};
use crate::base::sizes::{ROUND, UNPOLLED};

/// Whatever else: a future is dropped, and its waker with it.
struct Enters(Arc<Pressure>);

impl Wake for Enters {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Enters {
    fn drop(&mut self) {
        self.0.progress();
    }
}

fn queue(pressure: &Pressure, file: u32, why: Refused, waker: &Waker) -> Turn {
    let seen = pressure.progress_seen();
    pressure.queue((file, None), (why, seen), Claim::default(), waker).expect("no progress")
}

/// Claims pages for a new future of a file of which nothing is on its way.
fn claim(pressure: &Pressure, file: u32, pages: u32) -> Result<Claim, Refused> {
    pressure.claim((file, &OnItsWay::default()), pages, false).0
}

/// A pressure with futures of these files that queue, and how often each was woken.
fn queued<const N: usize>(
    files: [u32; N],
    why: Refused,
) -> (Pressure, [Turn; N], impl Fn() -> [usize; N]) {
    let pressure = Pressure::new(1 << 10, Order::MAX);
    let woken: [_; N] = std::array::from_fn(|_| Counted::waker());
    let turns = std::array::from_fn(|n| queue(&pressure, files[n], why, &woken[n].1));
    (pressure, turns, move || std::array::from_fn(|n| woken[n].0.times()))
}

#[test]
fn the_future_of_a_file_that_has_waited_longest_is_woken_and_gives_its_turn_on() {
    let (pressure, turns, woken) = queued([7; 3], Refused::NoMemory);
    pressure.progress();
    pressure.progress();
    assert_eq!(woken(), [1, 0, 0], "one at a time");
    assert!(!pressure.is_queued(7, turns[0], Waker::noop()));
    assert!(pressure.is_queued(7, turns[2], Waker::noop()), "and its waker is another now");
    pressure.served(7, turns[0]);
    assert_eq!(woken(), [1, 1, 0]);
    pressure.served(7, turns[1]);
    pressure.served(7, turns[2]);
    assert_eq!(woken(), [1, 1, 0]);
    assert!(!pressure.is_queued_for());
    assert!(pressure.progress.lock().lines.is_empty(), "nothing is left");
}

#[test]
fn files_take_turns() {
    let (pressure, turns, woken) = queued([1, 1, 2, 3], Refused::NoMemory);
    (0..3).for_each(|_| pressure.progress());
    assert_eq!(woken(), [1, 0, 1, 1]);
    pressure.served(1, turns[0]);
    assert_eq!(woken(), [1, 1, 1, 1]);
}

#[test]
fn who_is_refused_keeps_its_turn() {
    let refused = || {
        let (pressure, turns, woken) = queued([7; 3], Refused::NoMemory);
        pressure.progress();
        let seen = pressure.progress_seen();
        let again = (Refused::OwnFile, seen);
        let waker = Waker::noop();
        let turn = pressure
            .queue((7, Some(turns[0])), again, Claim::default(), waker)
            .expect("no progress");
        pressure.progress();
        (turn == turns[0] && !pressure.is_queued(7, turn, waker), woken())
    };
    assert_eq!(refused(), (true, [1, 0, 0]));
    let caught = mutant::with(Some(Mutant::RefusedLast), refused);
    assert_eq!(caught, (false, [1, 1, 0]), "the mutant does nothing");
}

#[test]
fn who_comes_later_does_not_try_before_those_that_queue() {
    let claims = || {
        let (pressure, turns, _) = queued([7], Refused::OwnFile);
        let of_new = [7, 8].map(|file| claim(&pressure, file, 1).map(drop));
        pressure.leave(7, turns[0]);
        let (pressure, _, _) = queued([7], Refused::NoMemory);
        let for_memory = [7, 8].map(|file| claim(&pressure, file, 1).map(drop));
        [of_new, for_memory]
    };
    let behind = Err(Refused::Behind);
    assert_eq!(claims(), [[behind, Ok(())], [behind, behind]]);
    let caught = mutant::with(Some(Mutant::NewcomerFirst), claims);
    assert_eq!(caught, [[Ok(()); 2]; 2], "the mutant does nothing");
}

#[test]
fn a_file_has_claims_to_a_quarter_and_leaves_as_much_to_others() {
    let pressure = Pressure::new(1 << 10, Order::MAX);
    let claimed = claim(&pressure, 1, 256).unwrap();
    let claim = |file, pages| claim(&pressure, file, pages).map(drop);
    assert_eq!(claim(1, 1), Err(Refused::OwnFile));
    assert_eq!(claim(2, 128), Ok(()));
    assert_eq!(claim(2, 1), Err(Refused::OwnFile));
    assert_eq!(claim(3, 1 << 10), Ok(()), "a file's first may be of any size");
    assert_eq!(claim(4, 1), Ok(()));
    pressure.release(1, claimed);
    assert_eq!(claim(1, 1), Ok(()));
}

#[test]
fn who_is_woken_and_not_polled_is_passed_over_after_a_while() {
    let (pressure, turns, woken) = queued([7; 4], Refused::NoMemory);
    pressure.wake_first();
    std::thread::sleep(UNPOLLED);
    pressure.wake_first();
    assert_eq!(woken(), [1, 1, 1, 0]);
    // And has the better turn nevertheless.
    let seen = pressure.progress_seen();
    let again = (Refused::NoMemory, seen);
    pressure
        .queue((7, Some(turns[0])), again, Claim::default(), Waker::noop())
        .expect("no progress");
    pressure.served(7, turns[1]);
    pressure.served(7, turns[2]);
    assert!(!pressure.is_queued(7, turns[0], Waker::noop()), "it is woken first");
    assert_eq!(woken(), [1, 1, 1, 0], "and it alone");
}

/// After how many turns of the daemon all of 40 futures that are not polled were woken.
fn turns_until_all_were_woken() -> usize {
    let (pressure, _, woken) = queued([7; 40], Refused::NoMemory);
    let turn = |n: &usize| {
        pressure.wake_first();
        let all = woken();
        assert!(all.is_sorted_by(|a, b| a >= b) && all[0] == 1, "{n}: {all:?}");
        std::thread::sleep(UNPOLLED);
        all[39] == 0
    };
    1 + (1..=40).take_while(turn).count()
}

#[test]
fn many_that_are_not_polled_are_passed_over_in_few_turns() {
    assert_eq!(turns_until_all_were_woken(), 6, "1, 2, 4, 8, 16, and the rest");
    let caught = mutant::with(Some(Mutant::PassesOverSingly), turns_until_all_were_woken);
    assert_eq!(caught, 40, "the mutant does nothing");
}

/// Who is woken, after the first of two that want copies was refused for those of its own file.
fn woken_after_own_copies() -> [usize; 2] {
    let (pressure, turns, woken) = queued([7; 2], Refused::OwnFile);
    pressure.progress();
    let again = (Refused::OwnCopies, pressure.progress_seen());
    let (_, waker) = Counted::waker();
    pressure.queue((7, Some(turns[0])), again, Claim::default(), &waker).expect("no progress");
    pressure.progress();
    woken()
}

#[test]
fn a_copy_that_its_own_file_keeps_waiting_keeps_no_other_waiting() {
    assert_eq!(woken_after_own_copies(), [1, 1]);
    let caught = mutant::with(Some(Mutant::CopyKeepsTurn), woken_after_own_copies);
    assert_eq!(caught, [1, 0], "the mutant does nothing");
}

#[test]
fn a_future_that_is_dropped_after_it_was_woken_wakes_the_next() {
    let dropped = || {
        let (pressure, turns, woken) = queued([7; 3], Refused::NoMemory);
        pressure.leave(7, turns[1]);
        assert_eq!(woken(), [0, 0, 0], "it had not been woken");
        pressure.progress();
        pressure.leave(7, turns[0]);
        woken()
    };
    assert_eq!(dropped(), [1, 0, 1]);
    let caught = mutant::with(Some(Mutant::DropKeepsTurn), dropped);
    assert_eq!(caught, [1, 0, 0], "the mutant does nothing");
}

#[test]
fn who_saw_less_than_there_is_tries_again() {
    let pressure = Pressure::new(1 << 10, Order::MAX);
    let seen = pressure.progress_seen();
    pressure.progress();
    let queued =
        pressure.queue((7, None), (Refused::NoMemory, seen), Claim::default(), Waker::noop());
    assert!(queued.is_none());
}

/// It would hang if a waker were dropped under the mutex.
#[test]
fn a_waker_that_is_dropped_may_enter() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let pressure = Arc::new(Pressure::new(1 << 10, Order::MAX));
        let enters = || Waker::from(Arc::new(Enters(pressure.clone())));
        let turn = queue(&pressure, 7, Refused::NoMemory, &enters());
        let _ = pressure.is_queued(7, turn, &enters());
        pressure.leave(7, turn);
        tell.send(pressure.progress_seen()).unwrap();
    });
    let steps = told.recv_timeout(Duration::from_secs(60));
    assert!(steps.is_ok_and(|steps| steps >= 2), "it hung");
}

/// Those of another file are refused again and again.
#[test]
fn who_is_not_polled_is_passed_over_whatever_other_files_do() {
    let (pressure, turns, woken) = queued([7, 7, 8, 8], Refused::NoMemory);
    pressure.wake_first(); // the first of 7: never polled
    assert_eq!(woken(), [1, 0, 0, 0]);
    for _ in 0..10 {
        std::thread::sleep(UNPOLLED + UNPOLLED / 4);
        pressure.wake_first(); // as the daemon does, every 20 ms at most
        // The first of 8 is polled at once, and refused, as there is no memory.
        if !pressure.is_queued(8, turns[2], Waker::noop()) {
            let again = (Refused::NoMemory, pressure.progress_seen());
            pressure
                .queue((8, Some(turns[2])), again, Claim::default(), Waker::noop())
                .expect("no progress");
        }
    }
    assert!(woken()[1] > 0, "the second of 7 was not woken: {:?}", woken());
}

/// Whether another batch becomes the keeper while the one that is waits for its turn, when that has
/// just come, and a while later; whether the one before may go on then; and how long that while is
/// for the next one.
fn taken_over() -> ([bool; 3], bool, Duration) {
    let (pressure, turns, _) = queued([7, 8], Refused::NoMemory);
    let keeps = pressure.may_keep_guards().expect("there is none");
    assert!(pressure.may_keep_guards().is_none(), "it is polled");
    assert!(pressure.keeps_guards(&keeps, 8, turns[1]));
    pressure.wake_first(); // another one
    std::thread::sleep(UNPOLLED);
    let asleep = pressure.may_keep_guards();
    pressure.wake_first();
    std::thread::sleep(UNPOLLED);
    // Polled, and refused.
    let again = (Refused::NoMemory, pressure.progress_seen());
    pressure
        .queue((8, Some(turns[1])), again, Claim::default(), Waker::noop())
        .expect("no progress");
    assert!(pressure.keeps_guards(&keeps, 8, turns[1]));
    let polled = pressure.may_keep_guards();
    pressure.wake_first();
    std::thread::sleep(UNPOLLED);
    let unpolled = pressure.may_keep_guards();
    let goes_on = pressure.keeps_guards(&keeps, 8, turns[1]);
    pressure.keeps_no_guards(&keeps);
    assert_eq!(pressure.may_keep_guards().is_none(), unpolled.is_some(), "who ends is another one");
    let next = pressure.progress.lock().keeper_unpolled();
    ([asleep, polled, unpolled].map(|taken| taken.is_some()), goes_on, next)
}

#[test]
fn a_batch_that_is_not_polled_is_the_keeper_no_longer() {
    let (taken, goes_on, next) = taken_over();
    assert_eq!((taken, goes_on), ([false, false, true], false));
    assert_eq!(next, UNPOLLED * 2, "it was polled after all");
    let caught = mutant::with(Some(Mutant::UnpolledKeepsGuards), taken_over);
    assert_eq!(caught, ([false; 3], true, UNPOLLED), "the mutant does nothing");
}

/// Whether one that comes later tries, beside one that was woken and is not polled: at first, and
/// once that was passed over for it.
fn tries_beside_one_that_is_not_polled() -> [bool; 2] {
    let (pressure, turns, woken) = queued([7], Refused::OwnFile);
    pressure.wake_first();
    assert_eq!(woken(), [1]);
    let before = claim(&pressure, 7, 1);
    let next = queue(&pressure, 7, Refused::Behind, Waker::noop());
    std::thread::sleep(UNPOLLED);
    pressure.wake_first();
    assert!(!pressure.is_queued(7, next, Waker::noop()), "it was woken");
    pressure.served(7, next);
    let after = claim(&pressure, 7, 1);
    if let Ok(claim) = after {
        pressure.release(7, claim);
    }
    // It comes after all.
    assert!(!pressure.is_queued(7, turns[0], Waker::noop()));
    pressure.leave(7, turns[0]);
    assert!(pressure.is_idle());
    [before, after].map(|claimed| claimed.is_ok())
}

#[test]
fn who_was_passed_over_keeps_nobody_from_trying() {
    assert_eq!(tries_beside_one_that_is_not_polled(), [false, true]);
    let caught = mutant::with(Some(Mutant::PassedOverFirst), tries_beside_one_that_is_not_polled);
    assert_eq!(caught, [false, false], "the mutant does nothing");
}

/// What counts of the claim of a future that is not polled, while so much of its file is on its
/// way: at first, after one round, and after two; and once it is polled again.
fn counted_of_one_that_is_not_polled(on_its_way: u32) -> [u32; 4] {
    let (pressure, _, _) = queued([8, 8, 8, 8], Refused::NoMemory);
    let of_file = OnItsWay::default();
    (0..on_its_way)
        .for_each(|_| assert!(pressure.shares.fill_begins(&of_file, Order::MIN, Need::InASource)));
    let claimed = || pressure.share(7, &of_file).claimed;
    let round = || {
        std::thread::sleep(ROUND);
        pressure.wake_first();
        claimed()
    };
    let mut claim = pressure.claim((7, &of_file), 60, true).0.unwrap();
    pressure.wake_first(); // the first round begins
    let [now, later, old] = [claimed(), round(), round()];
    pressure.renew(7, &mut claim);
    let again = claimed();
    pressure.release(7, claim);
    assert_eq!(pressure.claimed(7), [0, 0]);
    [now, later, old, again]
}

#[test]
fn of_the_claim_of_a_future_that_is_not_polled_what_is_on_its_way_counts() {
    assert_eq!(counted_of_one_that_is_not_polled(0), [60, 60, 0, 60]);
    assert_eq!(counted_of_one_that_is_not_polled(40), [60, 60, 40, 60]);
    assert_eq!(counted_of_one_that_is_not_polled(99), [60; 4]);
    let caught =
        mutant::with(Some(Mutant::UnpolledKeepsClaim), || counted_of_one_that_is_not_polled(0));
    assert_eq!(caught, [60; 4], "the mutant does nothing");
}

/// Frames that the files of sources that hang have on their way, one file after the other, where
/// somebody wants ever more folios of two pages of each, and then single ones.
fn on_their_way(pressure: &Pressure, files: usize, need: Need) -> Vec<u32> {
    let order = Order::new(1).unwrap();
    let of_files: Vec<_> = (0..files).map(|_| OnItsWay::default()).collect();
    let fill = |of_file: &OnItsWay| {
        for order in [order, Order::MIN] {
            // Ends: it is bounded.
            while pressure.shares.fill_begins(of_file, order, need) {}
        }
        of_file.frames()
    };
    of_files.iter().map(fill).collect()
}

#[test]
fn sources_that_hang_leave_half_of_the_cache_to_others() {
    let pressure = Pressure::new(2048, Order::MAX);
    assert_eq!(on_their_way(&pressure, 3, Need::First), [512, 256, 128]);
    let of_file = OnItsWay::default();
    assert!(!pressure.shares.is_enough(&of_file), "others go on");
    let rest = on_their_way(&pressure, 60, Need::First);
    assert!(rest[..16].iter().all(|&frames| frames >= 8), "each has a 256th: {rest:?}");
    assert!(rest.iter().all(|&frames| frames >= 2), "{rest:?}");
    assert!(all_on_their_way(&pressure) <= 1024 + 61 * 8);
    assert_eq!(on_their_way(&pressure, 1, Need::Nobody), [0], "nothing is read ahead");
    let pressure = Pressure::new(256, Order::MAX);
    let rest = on_their_way(&pressure, 20, Need::First);
    assert_eq!((rest[0], rest[19]), (64, 1));
}

/// Threads that begin at once have no more than those that begin one after the other.
#[test]
fn a_burst_is_bounded() {
    let pressure = Pressure::new(2048, Order::MAX);
    let of_files = [OnItsWay::default(), OnItsWay::default()];
    let begins = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (pressure, of_file, begins) = (&pressure, &of_files[n % 2], &begins);
            scope.spawn(move || {
                begins.wait();
                while pressure.shares.fill_begins(of_file, Order::new(3).unwrap(), Need::First) {}
            });
        }
    });
    let [one, two] = of_files.each_ref().map(OnItsWay::frames);
    assert!(one + two <= 1024 && one <= 512 && two <= 512, "{one} {two}");
    assert_eq!(all_on_their_way(&pressure), one + two);
}

fn all_on_their_way(pressure: &Pressure) -> u32 {
    pressure.shares.on_their_way(&OnItsWay::default())[0]
}

/// What all have on their way if a thousand sources hang, each of which has answered before or not;
/// and whether one may read that has answered, and has answered all.
fn beside_a_thousand(known: bool) -> (u32, bool) {
    let pressure = Pressure::new(2048, Order::MAX);
    let of_files: Vec<_> = (0..1000).map(|_| OnItsWay::default()).collect();
    for of_file in &of_files {
        if known {
            of_file.read_ended();
        }
        for order in [5, 3, 0].map(|order| Order::new(order).unwrap()) {
            pressure.shares.fill_begins(of_file, order, Need::First);
        }
    }
    let healthy = OnItsWay::default();
    healthy.read_ended();
    (all_on_their_way(&pressure), pressure.shares.fill_begins(&healthy, Order::MIN, Need::First))
}

#[test]
fn a_thousand_sources_that_hang_leave_something_to_those_that_answer() {
    assert_eq!(beside_a_thousand(false), (1664, true));
    assert_eq!(beside_a_thousand(true), (1920, false), "these have answered, too");
    let (all, _) = mutant::with(Some(Mutant::HungUnbounded), || beside_a_thousand(false));
    assert!(all > 2048, "the mutant does nothing: {all}");
}

#[test]
fn what_nobody_waits_for_leaves_room_to_who_waits() {
    let pages_waited_for = || {
        let pressure = Pressure::new(4096, Order::MAX);
        let of_file = OnItsWay::default();
        let begins = |order, need| pressure.shares.fill_begins(&of_file, order, need);
        while begins(Order::new(4).unwrap(), Need::Nobody) {}
        (0..4096).take_while(|_| begins(Order::MIN, Need::First)).count()
    };
    // A quarter of the cache without a sixth: docs/serve.md says for how many processes.
    assert!((5 * 64..6 * 64).contains(&pages_waited_for()));
    assert_eq!(mutant::with(Some(Mutant::UnwaitedTakesAll), pages_waited_for), 0);
}

#[test]
fn copies_of_sources_that_hang_are_bounded() {
    let pressure = Pressure::new(2048, Order::MAX);
    let of_files: Vec<_> = (0..200).map(|_| OnItsWay::default()).collect();
    let begun = of_files.iter().map(|of_file| pressure.shares.copy_begins(of_file, 100));
    let begun: Vec<_> = begun.collect();
    let counted = begun.iter().filter(|it| matches!(it, Some(CopyCounts::Pages(100)))).count();
    assert_eq!(begun.iter().flatten().count(), counted + 1, "one is alone");
    assert!((8..=10).contains(&counted), "{counted}");
    // What is read of them has a part of its own.
    let read =
        of_files.iter().filter(|it| pressure.shares.fill_begins(it, Order::MIN, Need::First));
    assert_eq!(read.count(), 200);
    for (of_file, counts) in of_files.iter().zip(begun) {
        if let Some(counts) = counts {
            pressure.shares.copy_ends(of_file, counts);
        }
    }
    let one = OnItsWay::default();
    assert_eq!(pressure.shares.copy_begins(&one, 512), Some(CopyCounts::Pages(512)));
    assert_eq!(pressure.shares.copy_begins(&one, 600), Some(CopyCounts::Alone), "it has a quarter");
    assert_eq!(pressure.shares.copy_begins(&of_files[1], 1900), None);
    pressure.shares.copy_ends(&one, CopyCounts::Alone);
    assert_eq!(pressure.shares.copy_begins(&of_files[1], 1900), Some(CopyCounts::Alone));
}
