//! The shipped count under loom: every interleaving of a few threads, and every value that the
//! C11 memory model lets a load return. Beside each model the mutants that it must catch.
//!
//! `PINFOLD_LOOM_PREEMPTIONS` bounds how often a thread may be interrupted (default: no bound;
//! these models are small).

mod support;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use pinfold_refcount::RefCount;
use pinfold_refcount::atomic::AtomicWord;
use pinfold_refcount::atomic::checked::CheckedWord;
use pinfold_refcount::protocol::{Protocol, Shipped};
use support::caught;
use support::mutants::{
    EverybodyWins, NoFrozenBit, NoGeneration, RelaxedFreeze, RelaxedLast, RelaxedPut, RelaxedThaw,
    RelaxedTryGet, ThawAdds, TornSub,
};

/// A folio: a count, and something it protects that loom checks for data races.
struct Folio<P: Protocol, A: AtomicWord<u64> = CheckedWord> {
    count: RefCount<P, A>,
    /// What the folio is: the number of its lifetime, 0 when destroyed.
    is: UnsafeCell<u32>,
    /// What holders leave behind for the destroyer, a cell each.
    notes: [UnsafeCell<u32>; 2],
}

// SAFETY: loom's cells report every unsynchronised access; finding those is the models' purpose.
unsafe impl<P: Protocol, A: AtomicWord<u64>> Sync for Folio<P, A> {}
// SAFETY: as above.
unsafe impl<P: Protocol, A: AtomicWord<u64>> Send for Folio<P, A> {}

impl<P: Protocol, A: AtomicWord<u64> + 'static> Folio<P, A> {
    /// A folio in its first lifetime, with `refs` references.
    fn with(refs: u32) -> Arc<Self> {
        let folio = Folio {
            count: RefCount::new_frozen(),
            is: UnsafeCell::new(1),
            notes: [UnsafeCell::new(0), UnsafeCell::new(0)],
        };
        folio.count.hand_out(refs);
        Arc::new(folio)
    }

    /// Reads what the folio is; only for holders.
    fn read(&self) -> u32 {
        // SAFETY: loom fails if another thread writes at the same time.
        self.is.with(|is| unsafe { *is })
    }

    /// Makes the folio something else; only for the party alone.
    fn write(&self, value: u32) -> u32 {
        // SAFETY: loom fails if another thread reads or writes at the same time.
        self.is.with_mut(|is| unsafe { std::mem::replace(&mut *is, value) })
    }

    fn note(&self, which: usize) {
        // SAFETY: as in `write`.
        self.notes[which].with_mut(|note| unsafe { *note = 1 });
    }

    fn notes(&self) -> u32 {
        // SAFETY: as in `read`.
        self.notes.iter().map(|note| note.with(|note| unsafe { *note })).sum()
    }

    /// Puts one reference, and destroys the folio if it was the last; gives the lifetime ended.
    fn put(&self) -> Option<u32> {
        self.count.put(1).then(|| {
            let lifetime = self.write(0);
            assert_ne!(lifetime, 0, "the folio was destroyed twice");
            lifetime
        })
    }

    /// What a holder does at last: use, put.
    fn leave(&self) -> Option<u32> {
        assert_ne!(self.read(), 0, "a holder sees a destroyed folio");
        self.put()
    }

    /// What a reader does: get, use, put.
    fn visit(&self) -> (bool, Option<u32>) {
        if self.count.try_get(1).is_err() {
            return (false, None);
        }
        (true, self.leave())
    }

    /// At the end of a model: destroyed exactly once, and not left at a zero.
    fn assert_dead(&self, destroyers: usize) {
        assert_eq!(destroyers, 1, "destroyers of one lifetime");
        // A mutant that cannot freeze has to be caught by what follows from that.
        assert!(self.count.is_frozen() || P::FROZEN_BITS == 0, "left as {:?}", self.count);
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound =
        std::env::var("PINFOLD_LOOM_PREEMPTIONS").ok().and_then(|bound| bound.parse().ok());
    builder.check(model);
}

type Party<P, A, R> = fn(&Folio<P, A>) -> R;

/// Runs `parties` on a folio that starts with `refs` references, and joins them.
fn parties<P, A, R>(folio: &Arc<Folio<P, A>>, run: Vec<Party<P, A, R>>) -> Vec<R>
where
    P: Protocol,
    A: AtomicWord<u64> + 'static,
    R: Send + 'static,
{
    let threads: Vec<_> = run
        .into_iter()
        .map(|party| {
            let folio = folio.clone();
            thread::spawn(move || party(&folio))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Two holders put at the same time.
fn free_free<P: Protocol, A: AtomicWord<u64> + 'static>() {
    check(|| {
        let folio = Folio::<P, A>::with(2);
        let ended = parties(&folio, vec![Folio::leave, Folio::leave]);
        folio.assert_dead(ended.iter().flatten().count());
    });
}

/// The last holder puts while a reader gets.
fn get_free<P: Protocol, A: AtomicWord<u64> + 'static>() {
    check(|| {
        let folio = Folio::<P, A>::with(1);
        let ended = parties(&folio, vec![Folio::leave, |folio| folio.visit().1]);
        folio.assert_dead(ended.iter().flatten().count());
    });
}

/// A holder freezes, changes the folio and thaws it while a reader gets.
fn get_freeze<P: Protocol, A: AtomicWord<u64> + 'static>() {
    check(|| {
        let folio = Folio::<P, A>::with(1);
        let frozen = parties(
            &folio,
            vec![
                |folio| {
                    let alone = folio.count.freeze(1).is_ok();
                    if alone {
                        folio.write(2);
                        folio.count.thaw(1);
                    }
                    alone
                },
                |folio| {
                    assert_eq!(folio.visit().1, None, "the last reference is the freezer's");
                    false
                },
            ],
        );
        assert_eq!(folio.count.count(), 1, "left as {:?}", folio.count);
        assert_eq!(folio.read(), if frozen[0] { 2 } else { 1 });
    });
}

/// A party alone fills the folio and thaws it while a reader gets, and keeps what it got.
fn get_thaw<P: Protocol, A: AtomicWord<u64> + 'static>() {
    check(|| {
        let folio = Folio::<P, A>::with(1);
        folio.count.freeze(1).expect("nobody else is there yet");
        let got = parties(
            &folio,
            vec![
                |folio| {
                    folio.write(2);
                    folio.count.thaw(1);
                    0
                },
                |folio| {
                    let got = folio.count.try_get(1).is_ok();
                    assert!(!got || folio.read() == 2, "got the folio as it was before");
                    u32::from(got)
                },
            ],
        );
        assert_eq!(folio.count.count(), 1 + got[1], "left as {:?}", folio.count);
    });
}

/// Two holders put while a reader gets.
fn three_parties<P: Protocol, A: AtomicWord<u64> + 'static>() {
    check(|| {
        let folio = Folio::<P, A>::with(2);
        let ended = parties(&folio, vec![Folio::leave, Folio::leave, |folio| folio.visit().1]);
        folio.assert_dead(ended.iter().flatten().count());
    });
}

/// The winner has put a reference in the lifetime that it ends: the zero that it wins is its own.
fn own_zero<P: Protocol, A: AtomicWord<u64> + 'static>() {
    reuse::<P, A>(|remembered, ended| {
        assert_eq!(remembered, ended, "won the zero of another lifetime");
    });
}

/// The winner destroys what the folio says it is, which is right whatever zero it won.
fn destroyed_by_its_own_word<P: Protocol, A: AtomicWord<u64> + 'static>() {
    reuse::<P, A>(|_, _| {});
}

/// The winner destroys what it remembers of the folio.
fn destroyed_from_memory<P: Protocol, A: AtomicWord<u64> + 'static>() {
    reuse::<P, A>(|remembered, ended| {
        assert_eq!(remembered, ended, "destroyed as something that it is not any more");
    });
}

/// One puts and may stall; the other gets, puts, and if it was the last makes the folio something
/// new and puts that too. `verify` gets what the winner remembers and what the folio says.
fn reuse<P: Protocol, A: AtomicWord<u64> + 'static>(verify: fn(u32, u32)) {
    check(move || {
        let folio = Folio::<P, A>::with(1);
        let staller = {
            let folio = folio.clone();
            thread::spawn(move || {
                let remembered = folio.read();
                folio.put().inspect(|&ended| verify(remembered, ended))
            })
        };
        let mut ended = Vec::new();
        let (_, last) = folio.visit();
        ended.extend(last);
        if last.is_some() {
            // Back from the allocator as another folio.
            folio.write(2);
            folio.count.hand_out(1);
            ended.extend(folio.put().inspect(|&ended| verify(2, ended)));
        }
        ended.extend(staller.join().unwrap());
        ended.sort_unstable();
        assert!(ended == [1] || ended == [1, 2], "lifetimes ended: {ended:?}");
    });
}

/// What each holder wrote before its put is there for the destroyer.
fn put_publishes<P: Protocol, A: AtomicWord<u64> + 'static>() {
    check(|| {
        let folio = Folio::<P, A>::with(2);
        let note = [
            |folio: &Folio<P, A>| {
                folio.note(0);
                folio.count.put(1).then(|| folio.notes())
            },
            |folio: &Folio<P, A>| {
                folio.note(1);
                folio.count.put(1).then(|| folio.notes())
            },
        ];
        let seen = parties(&folio, vec![note[0], note[1]]);
        assert_eq!(seen.into_iter().flatten().collect::<Vec<_>>(), [2]);
    });
}

/// A pin and a reference are given up at the same time: either may be the last.
fn unpin_put<P: Protocol, A: AtomicWord<u64> + 'static>() {
    check(|| {
        let folio = Folio::<P, A>::with(1);
        folio.count.try_pin(512).expect("nobody else is there yet");
        let last = parties(
            &folio,
            vec![Folio::leave, |folio| {
                assert_eq!(folio.read(), 1, "a pin did not keep the folio");
                folio.count.unpin(512).then(|| folio.write(0))
            }],
        );
        folio.assert_dead(last.iter().flatten().count());
    });
}

/// A freeze by the only holder of a reference fails as long as a page is pinned.
fn pin_freeze<P: Protocol, A: AtomicWord<u64> + 'static>() {
    check(|| {
        let folio = Folio::<P, A>::with(1);
        parties(
            &folio,
            vec![
                |folio| {
                    if folio.count.freeze(1).is_ok() {
                        folio.write(2);
                        folio.count.thaw(1);
                    }
                },
                |folio| {
                    if folio.count.try_pin(512).is_ok() {
                        folio.read();
                        assert!(!folio.count.unpin(512), "there is a reference");
                    }
                },
            ],
        );
        assert_eq!((folio.count.count(), folio.count.pins()), (1, 0));
    });
}

/// `name: model holds for the shipped protocol, and catches mutant, mutant, ...`
macro_rules! models {
    ($($name:ident: $model:ident catches $($mutant:ty $(as $word:ty)? => $how:expr),*;)*) => {$(
        #[test]
        fn $name() {
            $model::<Shipped, CheckedWord>();
            $(
                let how = caught(models!(@run $model, $mutant $(, $word)?));
                assert!(
                    how.contains($how),
                    "{} caught {} by saying «{how}», not «{}»",
                    stringify!($model), stringify!($mutant), $how,
                );
            )*
        }
    )*};
    (@run $model:ident, $mutant:ty) => { $model::<$mutant, CheckedWord> };
    (@run $model:ident, $mutant:ty, $word:ty) => { $model::<$mutant, $word> };
}

const RACE: &str = "Causality violation";

models! {
    free_and_free: free_free catches
        RelaxedPut => RACE,
        RelaxedLast => RACE,
        Shipped as TornSub<CheckedWord> => "destroyers of one lifetime";
    get_and_free: get_free catches
        NoFrozenBit => RACE,
        RelaxedPut => RACE,
        RelaxedLast => RACE,
        Shipped as EverybodyWins<CheckedWord> => RACE;
    get_and_freeze: get_freeze catches
        NoFrozenBit => RACE,
        RelaxedFreeze => RACE,
        RelaxedPut => RACE;
    get_and_thaw: get_thaw catches
        NoFrozenBit => RACE,
        RelaxedThaw => RACE,
        RelaxedTryGet => RACE,
        Shipped as ThawAdds<CheckedWord, Shipped> => "left as RefCount(owned by 2 refs";
    two_puts_and_a_get: three_parties catches
        NoFrozenBit => RACE,
        RelaxedPut => RACE,
        RelaxedLast => RACE;
    different_zeros: own_zero catches
        NoGeneration => "won the zero of another lifetime";
    put_publishes_to_the_destroyer: put_publishes catches
        RelaxedPut => RACE,
        RelaxedLast => RACE;
    unpin_and_put: unpin_put catches
        RelaxedPut => RACE,
        RelaxedLast => RACE,
        Shipped as TornSub<CheckedWord> => "destroyers of one lifetime";
    pin_and_freeze: pin_freeze catches
        NoFrozenBit => RACE,
        RelaxedFreeze => RACE;
}

/// The second layer against different zeros, without the first.
#[test]
fn whoever_wins_goes_by_the_folio() {
    destroyed_by_its_own_word::<NoGeneration, CheckedWord>();
    let how = caught(destroyed_from_memory::<NoGeneration, CheckedWord>);
    assert!(how.contains("something that it is not any more"), "{how}");
}
