//! Mutants of the shipped protocol: each differs from it in one thing.
//!
//! Where the thing is a width or an ordering, the mutant is a [`Protocol`] with one constant
//! changed; where it is a step, a word that does the step wrong. Either way the code that runs is
//! the shipped one.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use pinfold_refcount::atomic::AtomicWord;
use pinfold_refcount::protocol::Protocol;

/// The shipped orderings on `1 + GENERATION + PINS + REFS` bits.
pub enum Narrow<const GENERATION: u32, const PINS: u32, const REFS: u32> {}

impl<const G: u32, const P: u32, const R: u32> Protocol for Narrow<G, P, R> {
    const GENERATION_BITS: u32 = G;
    const PINS_BITS: u32 = P;
    const REFS_BITS: u32 = R;
}

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident { $($constant:ident: $type:ty = $value:expr),* })*) => {$(
        $(#[$doc])*
        pub enum $name {}
        impl Protocol for $name {
            const GENERATION_BITS: u32 = 17;
            const PINS_BITS: u32 = 23;
            const REFS_BITS: u32 = 23;
            $(const $constant: $type = $value;)*
        }
    )*};
}

mutants! {
    /// Dead is zero, and nothing else.
    NoFrozenBit { FROZEN_BITS: u32 = 0 }
    RelaxedPut { PUT: Ordering = Ordering::Relaxed }
    RelaxedLast { LAST: Ordering = Ordering::Relaxed }
    RelaxedTryGet { TRY_GET: Ordering = Ordering::Relaxed }
    RelaxedFreeze { FREEZE: Ordering = Ordering::Relaxed }
    RelaxedThaw { THAW: Ordering = Ordering::Relaxed }
}

/// Any zero is as good as any other.
pub enum NoGeneration {}

impl Protocol for NoGeneration {
    const GENERATION_BITS: u32 = 0;
    const PINS_BITS: u32 = 23;
    const REFS_BITS: u32 = 23;
}

macro_rules! delegate {
    ($($method:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {
        $(fn $method(&self, $($arg: $type),*) -> $ret { self.0.$method($($arg),*) })*
    };
}

/// A word whose owner thaws by adding the difference instead of storing.
pub struct ThawAdds<A, P>(A, PhantomData<fn() -> P>);

impl<A: AtomicWord<u64>, P: Protocol> AtomicWord<u64> for ThawAdds<A, P> {
    fn new(value: u64) -> Self {
        ThawAdds(A::new(value), PhantomData)
    }
    fn store(&self, value: u64, order: Ordering) {
        // All but the fields that count: frozen and generation.
        let counts = u64::MAX >> (P::FROZEN_BITS + P::GENERATION_BITS);
        let seen = self.0.load(Ordering::Relaxed);
        self.0.fetch_add(value.wrapping_sub(seen & !counts), order);
    }
    delegate! {
        load(order: Ordering) -> u64;
        fetch_add(value: u64, order: Ordering) -> u64;
        fetch_sub(value: u64, order: Ordering) -> u64;
        compare_exchange(current: u64, new: u64, success: Ordering) -> Result<u64, u64>;
        update(seen: u64, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64>;
    }
}

/// A word on which debris is never wiped, and a get above the limit is never taken back.
pub struct NeverUpdates<A>(A);

impl<A: AtomicWord<u64>> AtomicWord<u64> for NeverUpdates<A> {
    fn new(value: u64) -> Self {
        NeverUpdates(A::new(value))
    }
    fn update(&self, seen: u64, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        change(seen).ok_or(seen)
    }
    delegate! {
        load(order: Ordering) -> u64;
        store(value: u64, order: Ordering) -> ();
        fetch_add(value: u64, order: Ordering) -> u64;
        fetch_sub(value: u64, order: Ordering) -> u64;
        compare_exchange(current: u64, new: u64, success: Ordering) -> Result<u64, u64>;
    }
}

/// A word whose swaps always say that they won.
pub struct EverybodyWins<A>(A);

impl<A: AtomicWord<u64>> AtomicWord<u64> for EverybodyWins<A> {
    fn new(value: u64) -> Self {
        EverybodyWins(A::new(value))
    }
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
        let _ = self.0.compare_exchange(current, new, success);
        Ok(current)
    }
    delegate! {
        load(order: Ordering) -> u64;
        store(value: u64, order: Ordering) -> ();
        fetch_add(value: u64, order: Ordering) -> u64;
        fetch_sub(value: u64, order: Ordering) -> u64;
        update(seen: u64, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64>;
    }
}

/// A word whose subtraction is a load and a store.
pub struct TornSub<A>(A);

impl<A: AtomicWord<u64>> AtomicWord<u64> for TornSub<A> {
    fn new(value: u64) -> Self {
        TornSub(A::new(value))
    }
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        let seen = self.0.load(Ordering::Relaxed);
        self.0.store(seen.wrapping_sub(value), order);
        seen
    }
    delegate! {
        load(order: Ordering) -> u64;
        store(value: u64, order: Ordering) -> ();
        fetch_add(value: u64, order: Ordering) -> u64;
        compare_exchange(current: u64, new: u64, success: Ordering) -> Result<u64, u64>;
        update(seen: u64, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64>;
    }
}

macro_rules! wrapped {
    ($($mutant:ident<A $(, $p:ident)?> = $make:expr;)*) => {$(
        impl<$($p)?> From<super::replay::ReplayWord> for $mutant<super::replay::ReplayWord $(, $p)?> {
            fn from(word: super::replay::ReplayWord) -> Self {
                let make: fn(super::replay::ReplayWord) -> Self = $make;
                make(word)
            }
        }
    )*};
}

wrapped! {
    ThawAdds<A, P> = |word| ThawAdds(word, PhantomData);
    NeverUpdates<A> = NeverUpdates;
    EverybodyWins<A> = EverybodyWins;
    TornSub<A> = TornSub;
}
