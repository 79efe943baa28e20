//! Every operation against the obvious single-threaded count, and every limit and misuse.

#![allow(missing_docs)]

mod support;

use pinfold_refcount::protocol::{Protocol, Shipped};
use pinfold_refcount::{GetError, RefCount};
use proptest::prelude::*;
use support::mutants::Narrow;

/// The count as one would write it without threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reference {
    Frozen,
    Owned { refs: u32, pins: u32 },
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    TryGet(u32),
    Get(u32),
    Put(u32),
    TryPin(u32),
    Unpin(u32),
    Freeze(u32),
    Thaw(u32),
    HandOut(u32),
}

fn operation(most: u32) -> impl Strategy<Value = Operation> {
    use Operation::*;
    let n = 1..=most;
    prop_oneof![
        n.clone().prop_map(TryGet),
        n.clone().prop_map(Get),
        n.clone().prop_map(Put),
        n.clone().prop_map(TryPin),
        n.clone().prop_map(Unpin),
        n.clone().prop_map(Freeze),
        n.clone().prop_map(Thaw),
        n.prop_map(HandOut),
    ]
}

/// Applies a legal operation to both and compares what they say; leaves illegal ones out.
fn apply<P: Protocol>(count: &RefCount<P>, now: Reference, operation: Operation) -> Reference {
    use Operation::*;
    use Reference::{Frozen, Owned};
    let (max_refs, max_pins) = (RefCount::<P>::MAX_REFS, RefCount::<P>::MAX_PINS);
    let last = |refs, pins| if refs + pins == 0 { Frozen } else { Owned { refs, pins } };
    match (now, operation) {
        (Frozen, TryGet(n)) => {
            assert_eq!(count.try_get(n), Err(GetError::Frozen));
            Frozen
        }
        (Frozen, TryPin(n)) => {
            assert_eq!(count.try_pin(n), Err(GetError::Frozen));
            Frozen
        }
        (Owned { refs, pins }, TryGet(n)) if refs + n > max_refs => {
            assert_eq!(count.try_get(n), Err(GetError::TooMany));
            Owned { refs, pins }
        }
        (Owned { refs, pins }, TryPin(n)) if pins + n > max_pins => {
            assert_eq!(count.try_pin(n), Err(GetError::TooMany));
            Owned { refs, pins }
        }
        (Owned { refs, pins }, TryGet(n)) => {
            assert_eq!(count.try_get(n), Ok(()));
            Owned { refs: refs + n, pins }
        }
        (Owned { refs, pins }, TryPin(n)) => {
            assert_eq!(count.try_pin(n), Ok(()));
            Owned { refs, pins: pins + n }
        }
        (Owned { refs, pins }, Get(n)) if refs + n <= max_refs => {
            count.get(n);
            Owned { refs: refs + n, pins }
        }
        (Owned { refs, pins }, Put(n)) if refs >= n => {
            assert_eq!(count.put(n), refs + pins == n);
            last(refs - n, pins)
        }
        (Owned { refs, pins }, Unpin(n)) if pins >= n => {
            assert_eq!(count.unpin(n), refs + pins == n);
            last(refs, pins - n)
        }
        (Frozen, Freeze(n)) => {
            assert!(count.freeze(n).is_err());
            Frozen
        }
        (Owned { refs, pins }, Freeze(n)) => {
            let alone = refs == n && pins == 0;
            match count.freeze(n) {
                Ok(()) => assert!(alone, "froze {refs} refs and {pins} pins expecting {n}"),
                Err(found) => {
                    assert!(!alone);
                    assert_eq!((found.refs(), found.pins()), (refs, pins));
                }
            }
            if alone { Frozen } else { now }
        }
        (Frozen, Thaw(n)) => {
            count.thaw(n);
            Owned { refs: n, pins: 0 }
        }
        (Frozen, HandOut(n)) => {
            count.hand_out(n);
            Owned { refs: n, pins: 0 }
        }
        // Illegal here: what misuse does is tested below.
        _ => now,
    }
}

fn agree<P: Protocol>(operations: Vec<Operation>) {
    let count = RefCount::<P>::new_frozen();
    let mut now = Reference::Frozen;
    for operation in operations {
        now = apply(&count, now, operation);
        let word = count.word();
        let said = if word.is_frozen() {
            assert!(word.is_bare(), "debris after {operation:?}: {word}");
            Reference::Frozen
        } else {
            Reference::Owned { refs: word.refs(), pins: word.pins() }
        };
        assert_eq!(said, now, "after {operation:?}");
        assert_eq!(count.is_frozen(), now == Reference::Frozen);
        let counts = if let Reference::Owned { refs, pins } = now { (refs, pins) } else { (0, 0) };
        assert_eq!((count.count(), count.pins()), counts);
    }
}

proptest! {
    #[test]
    fn agrees_with_the_reference(operations in prop::collection::vec(operation(600), 0..200)) {
        agree::<Shipped>(operations);
    }

    /// On few bits the limits are met all the time, and generations come round.
    #[test]
    fn agrees_at_the_limits(operations in prop::collection::vec(operation(3), 0..400)) {
        agree::<Narrow<2, 3, 3>>(operations);
    }
}

#[test]
fn the_limit_is_an_error_and_changes_nothing() {
    let count = RefCount::frozen();
    count.hand_out(RefCount::<Shipped>::MAX_REFS);
    assert_eq!(count.try_get(1), Err(GetError::TooMany));
    assert_eq!(count.count(), RefCount::<Shipped>::MAX_REFS);
    assert!(!count.put(1));
    assert_eq!(count.try_get(1), Ok(()));
    count.try_pin(RefCount::<Shipped>::MAX_PINS).unwrap();
    assert_eq!(count.try_pin(1), Err(GetError::TooMany));
    assert_eq!(count.pins(), RefCount::<Shipped>::MAX_PINS);
    assert!(!count.is_frozen());
}

/// A get that went over the limit and then finds that others have left holds what it took.
#[test]
fn every_value_around_the_limit_is_exact() {
    let max = RefCount::<Shipped>::MAX_REFS;
    for n in [1, 2, 511, 512] {
        let count = RefCount::frozen();
        count.hand_out(max - n);
        assert_eq!(count.try_get(n), Ok(()));
        assert_eq!(count.try_get(n), Err(GetError::TooMany));
        assert_eq!(count.count(), max);
    }
}

fn panics(misuse: impl FnOnce() + std::panic::UnwindSafe) -> String {
    support::caught(misuse)
}

#[test]
fn getting_past_the_limit_panics_and_changes_nothing() {
    let count = RefCount::frozen();
    count.hand_out(RefCount::<Shipped>::MAX_REFS);
    let said = panics(|| count.get(1));
    assert!(said.contains("owned by 4194303 refs and 0 pins"), "{said}");
    assert_eq!(count.count(), RefCount::<Shipped>::MAX_REFS);
}

#[test]
fn getting_on_a_frozen_word_panics_and_changes_nothing() {
    let count = RefCount::frozen();
    let said = panics(|| count.get(1));
    assert!(said.contains("frozen, generation 1"), "{said}");
    assert!(count.word().is_bare());
}

/// What misuse does in the build at hand: a panic that spells out the word, or nothing lost.
fn misuse(count: &RefCount, misuse: impl FnOnce(&RefCount), said: &str) {
    let before = count.word();
    if cfg!(debug_assertions) {
        let text = panics(std::panic::AssertUnwindSafe(|| misuse(count)));
        assert!(text.contains(said), "said «{text}», not «{said}»");
    } else {
        misuse(count);
    }
    assert_eq!(count.word(), before, "the word was changed");
}

#[test]
fn putting_what_is_not_held() {
    let count = RefCount::frozen();
    misuse(&count, |count| assert!(!count.put(1)), "put of what is not held: the count was frozen");
    misuse(&count, |count| assert!(!count.unpin(1)), "unpin of what is not held: the count was");
    count.hand_out(2);
    misuse(&count, |count| assert!(!count.put(3)), "the count was owned by 2 refs and 0 pins");
    misuse(&count, |count| assert!(!count.unpin(1)), "the count was owned by 2 refs and 0 pins");
}

#[test]
#[cfg(debug_assertions)]
fn thawing_what_is_not_frozen() {
    let count = RefCount::frozen();
    count.hand_out(1);
    misuse(&count, |count| count.thaw(1), "thaw of a count that is owned by 1 refs");
    misuse(&count, |count| count.hand_out(1), "hand_out of a count that is owned by 1 refs");
    let count = RefCount::frozen();
    misuse(&count, |count| count.thaw(0), "thaw with 0 references: a stray zero could be taken");
    misuse(&count, |count| count.hand_out(0), "hand_out with 0 references: a stray zero");
    misuse(&count, |count| assert!(count.try_get(0).is_err()), "try_get of 0 references");
    misuse(&count, |count| assert!(count.freeze(0).is_err()), "freeze expecting 0 references");
}

#[test]
fn the_word_is_eight_bytes() {
    assert_eq!(size_of::<RefCount>(), 8);
}

/// Real threads on the shipped word, each lifetime counted.
#[test]
fn one_destroyer_a_lifetime_under_threads() {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    const LIFETIMES: u64 = 20_000;
    let count = RefCount::frozen();
    let (destroyed, gets) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while destroyed.load(SeqCst) < LIFETIMES {
                    if count.try_get(1).is_ok() {
                        gets.fetch_add(1, SeqCst);
                        if count.put(1) {
                            destroyed.fetch_add(1, SeqCst);
                        }
                    }
                }
            });
        }
        for lifetime in 0..LIFETIMES {
            count.hand_out(1);
            if count.put(1) {
                destroyed.fetch_add(1, SeqCst);
            }
            while destroyed.load(SeqCst) <= lifetime {
                std::hint::spin_loop();
            }
            assert!(count.is_frozen());
        }
    });
    assert_eq!(destroyed.into_inner(), LIFETIMES);
    assert!(count.word().is_bare(), "{count:?}");
}
