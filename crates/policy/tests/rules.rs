//! What each policy promises, one sentence a test.

use pinfold_policy::{
    Answer, Clock, GaveUp, GaveUpReason, Id, Place, Policy, PolicyState, Residents, S3Fifo,
    S3FifoOptions, Shadow, Sweep, Table,
};

fn evict(policy: &mut impl Policy<Table>, table: &mut Table) -> (Id, Option<Shadow>) {
    let mut sweep = Sweep::new(10_000);
    let id = policy.next_victim(table, &mut sweep).expect("a victim");
    (id, policy.answer(table, &mut sweep, id, Answer::Evicted))
}

/// A policy whose main queue is never filled with strangers, so that the tests see them in small.
fn unfilled(capacity_pages: u64) -> S3Fifo {
    let options = S3FifoOptions { main_fill_percent: 0, ..S3FifoOptions::default() };
    S3Fifo::with_options(capacity_pages, options)
}

fn filled(ids: u32, capacity_pages: u64) -> (S3Fifo, Table) {
    let (mut policy, mut table) = (unfilled(capacity_pages), Table::new(1000));
    for id in 0..ids {
        policy.insert(&mut table, id, None);
    }
    (policy, table)
}

#[test]
fn newcomers_leave_in_the_order_they_came() {
    let (mut policy, mut table) = filled(20, 20);
    for expected in 0..20 {
        assert_eq!(evict(&mut policy, &mut table).0, expected);
    }
}

#[test]
fn one_use_does_not_save_a_newcomer_and_two_do() {
    let (mut policy, mut table) = filled(4, 20);
    table.touch(0);
    table.touch(1);
    table.touch(1);
    assert_eq!(evict(&mut policy, &mut table).0, 0);
    assert_eq!(evict(&mut policy, &mut table).0, 2);
    assert_eq!(policy.usage().main.folios, 1);
}

#[test]
fn the_small_queue_keeps_its_share_in_pages() {
    let (mut policy, mut table) = (unfilled(1000), Table::new(1000));
    // 900 pages in main, by ghosts; then small ones.
    for id in 0..9 {
        table.set_pages(id, 100);
        policy.insert(&mut table, id, None);
        let (_, shadow) = evict(&mut policy, &mut table);
        policy.insert(&mut table, id, shadow);
    }
    assert_eq!((policy.usage().main.pages, policy.usage().small.pages), (900, 0));
    for id in 100..199 {
        policy.insert(&mut table, id, None);
    }
    assert_eq!(evict(&mut policy, &mut table).0, 0, "99 of 100 pages: main gives");
    policy.insert(&mut table, 199, None);
    assert_eq!(evict(&mut policy, &mut table).0, 100, "100 of 100 pages: small gives");
}

#[test]
fn newcomers_fill_main_up_to_its_share_once_small_has_its_own() {
    let (mut policy, mut table) = (S3Fifo::new(100), Table::new(100));
    let mut small_and_main = Vec::new();
    for id in 0..100 {
        policy.insert(&mut table, id, None);
        small_and_main.push((policy.usage().small.pages, policy.usage().main.pages));
    }
    assert_eq!(small_and_main[9], (10, 0));
    assert_eq!(small_and_main[84], (10, 75));
    assert_eq!(small_and_main[99], (25, 75));
}

#[test]
fn a_loop_longer_than_the_cache_hits_as_far_as_main_reaches() {
    let (mut policy, mut table) = (S3Fifo::new(100), Table::new(200));
    let (mut held, mut hits) = (0, 0);
    for id in (0..200).cycle().take(2000) {
        if table.place(id) != Place::Out {
            table.touch(id);
            hits += 1;
            continue;
        }
        if held == 100 {
            evict(&mut policy, &mut table);
            held -= 1;
        }
        policy.insert(&mut table, id, None);
        held += 1;
    }
    assert_eq!(hits, 9 * 75, "75 of 200 pages in each round but the first");
}

#[test]
fn a_ghost_beyond_its_reach_is_a_stranger() {
    let (mut policy, mut table) = filled(1, 100);
    let (_, shadow) = evict(&mut policy, &mut table);
    assert!(policy.is_recent(shadow.expect("newcomers leave a ghost")));
    for id in 1..=90 {
        policy.insert(&mut table, id, None);
        evict(&mut policy, &mut table);
    }
    policy.insert(&mut table, 0, shadow);
    assert_eq!((policy.usage().main.folios, policy.usage().small.folios), (0, 1));
}

#[test]
fn everything_pinned_is_told_with_its_pages() {
    for effort_max in [1000, 21] {
        let (mut policy, mut table) = filled(20, 100);
        table.set_pages(500, 512);
        policy.insert(&mut table, 500, None);
        let mut sweep = Sweep::new(effort_max);
        let gave_up = loop {
            match policy.next_victim(&mut table, &mut sweep) {
                Ok(id) => policy.answer(&mut table, &mut sweep, id, Answer::Pinned),
                Err(gave_up) => break gave_up,
            };
        };
        let GaveUp { reason, counts } = gave_up;
        assert_eq!(reason, GaveUpReason::AllPinned);
        assert_eq!((counts.examined, counts.pinned, counts.pinned_pages), (21, 21, 532));
        assert!(gave_up.to_string().contains("532 pages"), "{gave_up}");
    }
}

#[test]
fn the_one_folio_that_is_not_pinned_is_found_wherever_it_is() {
    for free in 0..40 {
        let (mut policy, mut table) = filled(20, 100);
        for id in 20..40 {
            policy.insert(&mut table, id, None);
            table.touch(id);
            table.touch(id);
        }
        let mut sweep = Sweep::new(1000);
        let found = loop {
            match policy.next_victim(&mut table, &mut sweep) {
                Ok(id) if id == free => break id,
                Ok(id) => policy.answer(&mut table, &mut sweep, id, Answer::Pinned),
                Err(gave_up) => panic!("{free} was not found: {gave_up}"),
            };
        };
        assert_eq!(found, free);
    }
}

/// Every policy, with 100 folios; for S3-FIFO 25 of them in small, which is more than its share.
fn full() -> [(Box<dyn Policy<Table>>, Table); 3] {
    let policies: [Box<dyn Policy<Table>>; 3] =
        [Box::new(S3Fifo::new(100)), Box::new(Clock::second_chance()), Box::new(Clock::fifo())];
    policies.map(|mut policy| {
        let mut table = Table::new(1000);
        for id in 0..100 {
            policy.insert(&mut table, id, None);
        }
        (policy, table)
    })
}

/// Offers folios until the sweep gives up; the folios offered, and why it did.
fn sweep_all(
    policy: &mut dyn Policy<Table>,
    table: &mut Table,
    answer: impl Fn(Id) -> Answer,
) -> (Vec<Id>, GaveUp) {
    let (mut sweep, mut offered) = (Sweep::new(10_000), Vec::new());
    // Ends: the sweep's effort is bounded.
    loop {
        match policy.next_victim(table, &mut sweep) {
            Ok(id) => {
                offered.push(id);
                policy.answer(table, &mut sweep, id, answer(id));
            }
            Err(gave_up) => return (offered, gave_up),
        }
    }
}

#[test]
fn busy_newcomers_do_not_hide_what_main_can_give() {
    for (mut policy, mut table) in full() {
        let small = |id| !(10..85).contains(&id);
        let name = policy.name();
        let answer = |id| if small(id) { Answer::Busy } else { Answer::Evicted };
        let (offered, gave_up) = sweep_all(&mut *policy, &mut table, answer);
        let first = offered.iter().position(|&id| !small(id));
        assert!(first.is_some_and(|first| first <= 25), "{name}: main first gave {first:?}");
        let counts = gave_up.counts;
        assert_eq!((counts.evicted, counts.busy, counts.examined), (75, 25, 100), "{name}");
        assert_eq!(gave_up.reason, GaveUpReason::AllBusy, "{name}");
    }
}

#[test]
fn a_sweep_meets_each_busy_folio_once() {
    for (mut policy, mut table) in full() {
        let name = policy.name();
        let (mut offered, gave_up) = sweep_all(&mut *policy, &mut table, |_| Answer::Busy);
        assert_eq!(offered.len(), 100, "{name}");
        offered.sort_unstable();
        assert_eq!(offered, (0..100).collect::<Vec<_>>(), "{name}");
        assert_eq!(gave_up.reason, GaveUpReason::AllBusy, "{name}");
        assert_eq!((gave_up.counts.busy, gave_up.counts.busy_pages), (100, 100), "{name}");
        assert!(gave_up.to_string().contains("100 busy (100 pages)"), "{name}: {gave_up}");
        // The next sweep starts anew.
        let (offered, _) = sweep_all(&mut *policy, &mut table, |_| Answer::Evicted);
        assert_eq!(offered.len(), 100, "{name}");
    }
}

#[test]
fn effort_is_never_exceeded_and_its_end_is_told() {
    let (mut policy, mut table) = filled(50, 100);
    let mut sweep = Sweep::new(10);
    for _ in 0..10 {
        let id = policy.next_victim(&mut table, &mut sweep).expect("effort is left");
        policy.answer(&mut table, &mut sweep, id, Answer::Busy);
    }
    let gave_up = policy.next_victim(&mut table, &mut sweep).expect_err("effort is spent");
    assert_eq!(gave_up.reason, GaveUpReason::EffortExhausted);
    assert_eq!((gave_up.counts.examined, gave_up.counts.busy), (10, 10));
}

#[test]
fn a_call_spares_no_more_than_its_maximum() {
    let options =
        S3FifoOptions { reprieves_max: 5, main_fill_percent: 0, ..S3FifoOptions::default() };
    let (mut policy, mut table) = (S3Fifo::with_options(100, options), Table::new(100));
    for id in 0..100 {
        policy.insert(&mut table, id, None);
        (0..3).for_each(|_| table.touch(id));
    }
    let mut sweep = Sweep::new(1000);
    assert_eq!(policy.next_victim(&mut table, &mut sweep), Ok(5));
    assert_eq!((sweep.counts().examined, sweep.counts().reprieved), (6, 5));
}

#[test]
fn an_empty_policy_says_so() {
    let (mut policy, mut table) = filled(0, 100);
    let gave_up = policy.next_victim(&mut table, &mut Sweep::new(1)).expect_err("nothing there");
    assert_eq!(gave_up.reason, GaveUpReason::Empty);
}

#[test]
fn clock_spares_the_used_once_and_fifo_spares_nobody() {
    for (mut policy, expected) in [(Clock::second_chance(), [1, 2, 0]), (Clock::fifo(), [0, 1, 2])]
    {
        let mut table = Table::new(3);
        for id in 0..3 {
            policy.insert(&mut table, id, None);
        }
        (0..3).for_each(|_| table.touch(0));
        let order = [0; 3].map(|_| evict(&mut policy, &mut table).0);
        assert_eq!(order, expected, "{}", policy.name());
    }
}

#[test]
#[should_panic(expected = "lost or gained pages")]
fn a_split_that_loses_pages_is_refused() {
    let (mut policy, mut table) = filled(0, 100);
    table.set_pages(0, 4);
    policy.insert(&mut table, 0, None);
    table.set_pages(0, 1);
    policy.split(&mut table, 0, 4, &[1, 2]);
}
