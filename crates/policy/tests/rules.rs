//! What the policy promises, one sentence a test.

use pinfold_policy::{
    Answer, Id, Place, Residents, S3Fifo, S3FifoOptions, Shadow, Sweep, SweepCounts, Table,
};

fn evict(policy: &mut S3Fifo, table: &mut Table) -> (Id, Option<Shadow>) {
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
fn a_sweep_ends_when_everything_is_pinned() {
    for effort_max in [1000, 21] {
        let (mut policy, mut table) = filled(20, 100);
        table.set_pages(500, 512);
        policy.insert(&mut table, 500, None);
        let mut sweep = Sweep::new(effort_max);
        let mut pinned = 0;
        while let Some(id) = policy.next_victim(&mut table, &mut sweep) {
            pinned += table.pages(id);
            policy.answer(&mut table, &mut sweep, id, Answer::Pinned);
        }
        assert_eq!((sweep.counts().examined, pinned), (21, 532));
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
                Some(id) if id == free => break id,
                Some(id) => policy.answer(&mut table, &mut sweep, id, Answer::Pinned),
                None => panic!("{free} was not found"),
            };
        };
        assert_eq!(found, free);
    }
}

/// 100 folios, 25 of them in small, which is more than its share.
fn full() -> (S3Fifo, Table) {
    let (mut policy, mut table) = (S3Fifo::new(100), Table::new(1000));
    for id in 0..100 {
        policy.insert(&mut table, id, None);
    }
    (policy, table)
}

/// Offers folios until the sweep gives up; the folios offered, and what it met.
fn sweep_all(
    policy: &mut S3Fifo,
    table: &mut Table,
    answer: impl Fn(Id) -> Answer,
) -> (Vec<Id>, SweepCounts) {
    let (mut sweep, mut offered) = (Sweep::new(10_000), Vec::new());
    // Ends: the sweep's effort is bounded.
    while let Some(id) = policy.next_victim(table, &mut sweep) {
        offered.push(id);
        policy.answer(table, &mut sweep, id, answer(id));
    }
    (offered, sweep.counts())
}

#[test]
fn busy_newcomers_do_not_hide_what_main_can_give() {
    let (mut policy, mut table) = full();
    let small = |id| !(10..85).contains(&id);
    let answer = |id| if small(id) { Answer::Busy } else { Answer::Evicted };
    let (offered, counts) = sweep_all(&mut policy, &mut table, answer);
    let first = offered.iter().position(|&id| !small(id));
    assert!(first.is_some_and(|first| first <= 25), "main first gave {first:?}");
    assert_eq!((counts.evicted, counts.examined), (75, 100));
}

#[test]
fn a_sweep_meets_each_busy_folio_once() {
    let (mut policy, mut table) = full();
    let (mut offered, counts) = sweep_all(&mut policy, &mut table, |_| Answer::Busy);
    offered.sort_unstable();
    assert_eq!(offered, (0..100).collect::<Vec<_>>());
    assert_eq!((counts.evicted, counts.examined), (0, 100));
    // The next sweep starts anew.
    let (offered, _) = sweep_all(&mut policy, &mut table, |_| Answer::Evicted);
    assert_eq!(offered.len(), 100);
}

#[test]
fn effort_is_never_exceeded_and_its_end_is_told() {
    let (mut policy, mut table) = filled(50, 100);
    let mut sweep = Sweep::new(10);
    for _ in 0..10 {
        let id = policy.next_victim(&mut table, &mut sweep).expect("effort is left");
        policy.answer(&mut table, &mut sweep, id, Answer::Busy);
    }
    assert_eq!(policy.next_victim(&mut table, &mut sweep), None, "effort is spent");
    assert_eq!(sweep.counts().examined, 10);
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
    assert_eq!(policy.next_victim(&mut table, &mut sweep), Some(5));
    assert_eq!(sweep.counts().examined, 6);
}

#[test]
fn an_empty_policy_offers_nothing() {
    let (mut policy, mut table) = filled(0, 100);
    assert_eq!(policy.next_victim(&mut table, &mut Sweep::new(1)), None);
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
