//! The source that misbehaves does so exactly as told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pinfold::source::{Extent, Memory, Source};

use super::{Fault, Faulty, Operation, Rule, When};
use crate::pattern::Pattern;

const PAGE: usize = 4096;
const EIO: i32 = libc::EIO;
const ENOSPC: i32 = libc::ENOSPC;

const PATTERN: Pattern = Pattern::new(1, 0);

fn faulty() -> Faulty {
    Faulty::new(Arc::new(Memory::new(PATTERN.to_vec(64 * PAGE))))
}

fn add(faulty: &Faulty, operation: Operation, when: When, fault: Fault) {
    faulty.add(Rule { operation, when, fault });
}

/// Which of `calls` one-page reads, one after the other through the file, fail.
fn failing(faulty: &Faulty, calls: u64) -> Vec<u64> {
    let mut buf = vec![0; PAGE];
    (1..=calls)
        .filter(|call| match faulty.read_at((call - 1) % 64 * PAGE as u64, &mut buf) {
            Ok(got) => {
                assert_eq!(got, PAGE);
                PATTERN.check((call - 1) % 64 * PAGE as u64, &buf).unwrap();
                false
            }
            Err(cause) => {
                assert_eq!(cause.raw_os_error(), Some(EIO));
                true
            }
        })
        .collect()
}

#[test]
fn the_calls_that_fail_are_those_chosen() {
    let chosen = |when| {
        let faulty = faulty();
        add(&faulty, Operation::Read, when, Fault::Error(EIO));
        let failing = failing(&faulty, 20);
        assert_eq!(faulty.counts().errors, failing.len() as u64);
        assert_eq!(faulty.counts().reads, 20);
        failing
    };
    assert_eq!(chosen(When::Nth(3)), [3]);
    assert_eq!(chosen(When::Every(6)), [6, 12, 18]);
    assert_eq!(chosen(When::Every(0)), [0; 0]);
    assert_eq!(chosen(When::Always), (1..=20).collect::<Vec<_>>());
    let page = PAGE as u64;
    assert_eq!(chosen(When::Range(4 * page + 5..6 * page)), [5, 6]);
    assert_eq!(chosen(When::Range(4 * page..4 * page)), [0; 0]);
}

#[test]
fn chance_is_about_as_likely_as_said_and_repeats() {
    let run = |seed| {
        let faulty = faulty();
        let when = When::PerMillion { chance: 100_000, seed };
        add(&faulty, Operation::Read, when, Fault::Error(EIO));
        failing(&faulty, 2000)
    };
    let first = run(1);
    assert!((150..250).contains(&first.len()), "{} of 2000 at a tenth", first.len());
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
}

#[test]
fn rules_are_for_their_operation_until_healed() {
    let faulty = faulty();
    add(&faulty, Operation::Write, When::Always, Fault::Error(ENOSPC));
    add(&faulty, Operation::Sync, When::Nth(2), Fault::Error(EIO));
    add(&faulty, Operation::SetLen, When::Always, Fault::Error(EIO));
    assert_eq!(failing(&faulty, 5), [0; 0]);
    assert_eq!(faulty.write_at(0, b"x").unwrap_err().raw_os_error(), Some(ENOSPC));
    assert!(faulty.sync(true).is_ok());
    assert_eq!(faulty.sync(true).unwrap_err().raw_os_error(), Some(EIO));
    assert!(faulty.sync(true).is_ok());
    assert!(faulty.set_len(1).is_err());
    let counts = faulty.counts();
    assert_eq!((counts.writes, counts.syncs, counts.set_lens, counts.errors), (1, 3, 1, 3));
    faulty.heal();
    faulty.write_at(0, b"x").unwrap();
    faulty.set_len(1).unwrap();
    assert_eq!(faulty.len_bytes().unwrap(), 1);
}

#[test]
fn short_reads_look_like_the_end_and_short_writes_are_torn() {
    let faulty = faulty();
    add(&faulty, Operation::Read, When::Nth(1), Fault::Short(100));
    add(&faulty, Operation::Write, When::Always, Fault::Short(10));
    let (mut buf, old) = (vec![0xaa; PAGE], PATTERN.to_vec(PAGE));
    assert_eq!(faulty.read_at(0, &mut buf).unwrap(), 100);
    assert_eq!(buf[..100], old[..100]);

    let torn = faulty.write_at(0, &[1; PAGE]).unwrap_err();
    assert_eq!(torn.raw_os_error(), Some(EIO));
    assert_eq!(faulty.read_at(0, &mut buf).unwrap(), PAGE);
    assert_eq!((&buf[..10], &buf[10..]), (&[1; 10][..], &old[10..]));

    // In several runs of memory, of which the second is cut through.
    let (mut first, mut second, mut third) = ([2; 4], [3; 9], [4; 4]);
    let extents = [Extent::of(&mut first), Extent::of(&mut second), Extent::of(&mut third)];
    let torn = faulty.write_extents_at(0, &extents).unwrap_err();
    assert_eq!(torn.raw_os_error(), Some(EIO));
    assert_eq!(faulty.read_at(0, &mut buf).unwrap(), PAGE);
    assert_eq!((&buf[..10], &buf[10..]), (&[2, 2, 2, 2, 3, 3, 3, 3, 3, 3][..], &old[10..]));
    let counts = faulty.counts();
    assert_eq!((counts.writes, counts.reads, counts.shorts), (2, 3, 3));
}

#[test]
fn delays_add_up_and_let_the_next_rule_decide() {
    let faulty = faulty();
    let delay = Duration::from_millis(5);
    add(&faulty, Operation::Read, When::Always, Fault::Delay(delay));
    add(&faulty, Operation::Read, When::Nth(2), Fault::Delay(delay));
    add(&faulty, Operation::Read, When::Nth(2), Fault::Error(EIO));
    let mut buf = [0; PAGE];
    faulty.read_at(0, &mut buf).unwrap();
    let since = Instant::now();
    assert!(faulty.read_at(0, &mut buf).is_err());
    assert!(since.elapsed() >= 2 * delay);
    assert_eq!((faulty.counts().delays, faulty.counts().errors), (3, 1));
}

#[test]
fn an_overlong_read_says_more_than_it_was_asked_for() {
    let faulty = faulty();
    add(&faulty, Operation::Read, When::Always, Fault::Overlong(7));
    assert_eq!(faulty.read_at(0, &mut [0; PAGE]).unwrap(), PAGE + 7);
    assert_eq!(faulty.counts().overlongs, 1);
}
