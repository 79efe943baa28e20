//! The faulty source injects exactly the faults of its rules.

use std::time::{Duration, Instant};

use super::*;
use crate::source::{Fault, Faulty, Memory, Operation, Rule, When};

const EIO: i32 = libc::EIO;
const ENOSPC: i32 = libc::ENOSPC;

fn faulty() -> Arc<Faulty> {
    Arc::new(Faulty::new(Arc::new(Memory::new(pattern(64 * PAGE)))))
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
                check((call - 1) % 64 * PAGE as u64, got, &buf, 64 * PAGE as u64);
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
    let backing = Backing::new(faulty.clone(), pool_engine());
    let lent = Lent::filled(PAGE, 0xaa);
    assert_eq!(backing.read(0, &[lent.extent()]).unwrap(), 100);
    assert_eq!(lent.bytes()[..100], pattern(100));
    assert!(lent.bytes()[100..].iter().all(|byte| *byte == 0), "zeroed beyond the end");

    let ones = Lent::filled(PAGE, 1);
    let torn = write(&backing, 0, &[ones.extent()]).unwrap_err();
    assert_eq!(torn.raw_os_error(), Some(EIO));
    assert_eq!(backing.read(0, &[lent.extent()]).unwrap(), PAGE);
    assert_eq!(lent.bytes()[..10], [1; 10]);
    assert_eq!(lent.bytes()[10..100], pattern(100)[10..]);
    let stats = backing.stats();
    assert_eq!((stats.write.calls, stats.write.errors, stats.write.bytes), (1, 1, 0));
    assert_eq!((stats.read.calls, stats.read.short), (2, 1));
}

#[test]
fn delays_add_up_and_let_the_next_rule_decide() {
    let faulty = faulty();
    let delay = Duration::from_millis(5);
    add(&faulty, Operation::Read, When::Always, Fault::Delay(delay));
    add(&faulty, Operation::Read, When::Nth(2), Fault::Delay(delay));
    add(&faulty, Operation::Read, When::Nth(2), Fault::Error(EIO));
    let backing = Backing::new(faulty.clone(), pool_engine());
    let lent = Lent::filled(PAGE, 0);
    backing.read(0, &[lent.extent()]).unwrap();
    let since = Instant::now();
    assert!(backing.read(0, &[lent.extent()]).is_err());
    assert!(since.elapsed() >= 2 * delay);
    assert_eq!((faulty.counts().delays, faulty.counts().errors), (3, 1));
    let read = backing.stats().read;
    assert!(read.total_ns >= 15_000_000 && read.max_ns >= 10_000_000, "{read:?}");
    assert_eq!(read.errors, 1);
}

#[test]
fn a_count_too_large_is_an_error_not_a_wild_write() {
    let faulty = faulty();
    add(&faulty, Operation::Read, When::Always, Fault::Overlong(7));
    let engine = pool_engine();
    let plain = Backing::new(Arc::new(Plain(Overlong)), Arc::clone(&engine));
    for backing in [Backing::new(faulty, engine), plain] {
        let lent = Lent::filled(PAGE, 0);
        let cause = backing.read(0, &[lent.extent()]).unwrap_err();
        assert_eq!(cause.kind(), io::ErrorKind::InvalidData);
        assert!(cause.to_string().contains("4103 bytes where 4096 were asked for"), "{cause}");
        let (tell, told) = std::sync::mpsc::channel();
        backing.submit(&mut vec![request(0, PAGE, 1, &tell)]);
        assert_eq!(told.recv().unwrap().1.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}

/// Says 7 too many in the plain form.
#[derive(Debug)]
struct Overlong;

impl Source for Overlong {
    fn read_at(&self, _offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(buf.len() + 7)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "overlong".into()
    }
}
