//! The counts that this one is compared with, for benchmarks and models; not public API.
//!
//! Each implements [`Counter`]: it counts one reference at a time in 32 bits, as the kernel's
//! counts do, without generations or pins.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::{AtomicWord, Protocol, RefCount, Word};

/// A reference count of any protocol, one reference at a time.
pub trait Counter {
    /// A frozen (or dead) count.
    fn new_frozen() -> Self;
    /// Takes a reference unless the folio is dead or frozen.
    fn try_get(&self) -> bool;
    /// Gives a reference back; true for the last.
    fn put(&self) -> bool;
    /// Takes all references away if there are exactly `expected`.
    fn freeze(&self, expected: u32) -> bool;
    fn thaw(&self, n: u32);
    fn count(&self) -> u32;
}

impl<P: Protocol, A: AtomicWord<u64>> Counter for RefCount<P, A> {
    fn new_frozen() -> Self {
        RefCount::new_frozen()
    }
    #[inline]
    fn try_get(&self) -> bool {
        self.try_get(1).is_ok()
    }
    #[inline]
    fn put(&self) -> bool {
        self.put(1)
    }
    #[inline]
    fn freeze(&self, expected: u32) -> bool {
        self.freeze(expected).is_ok()
    }
    #[inline]
    fn thaw(&self, n: u32) {
        self.thaw(n);
    }
    fn count(&self) -> u32 {
        self.count()
    }
}

/// Takes a reference on the shipped word by a compare-and-swap loop, for comparisons in a cache.
#[inline]
pub fn try_get_by_cas<P: Protocol, A: AtomicWord<u64>>(count: &RefCount<P, A>) -> bool {
    let mut seen = count.word();
    // Ends: the exchange fails only when another thread changed the word.
    loop {
        let new = seen.plus(Word::<P>::refs_delta(1));
        if seen.is_zero() || new.refuses_refs() {
            return false;
        }
        match count.word.compare_exchange(seen.raw(), new.raw(), P::TRY_GET) {
            Ok(_) => return true,
            Err(found) => seen = Word::of(found),
        }
    }
}

/// Dead is zero. A get loads, or assumes 1, and swaps that, or what it finds, for one more.
#[derive(Debug)]
pub struct ZeroIsDead<const ASSUME_ONE: bool>(AtomicU32);

/// What Linux does.
pub type CasLoop = ZeroIsDead<false>;

/// Proposed in the discussion as an alternative to the frozen bit.
pub type AssumeOne = ZeroIsDead<true>;

impl<const ASSUME_ONE: bool> Counter for ZeroIsDead<ASSUME_ONE> {
    fn new_frozen() -> Self {
        ZeroIsDead(AtomicU32::new(0))
    }
    #[inline]
    fn try_get(&self) -> bool {
        // Relaxed: a hint for the exchange.
        let mut seen = if ASSUME_ONE { 1 } else { self.0.load(Ordering::Relaxed) };
        // Ends: the exchange fails only when another thread changed the word.
        while seen != 0 {
            // Acquire, pairs with the release store in `thaw`.
            let (order, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            match self.0.compare_exchange_weak(seen, seen + 1, order, relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }
    #[inline]
    fn put(&self) -> bool {
        // Release and acquire in one: pairs with itself, the earlier puts with the last.
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
    fn freeze(&self, expected: u32) -> bool {
        // Acquire, pairs with the release of earlier puts.
        self.0.compare_exchange(expected, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
    fn thaw(&self, n: u32) {
        // Release, pairs with the acquire of `try_get`.
        self.0.store(n, Ordering::Release);
    }
    fn count(&self) -> u32 {
        // Relaxed, and pairs with nothing: for people and assertions.
        self.0.load(Ordering::Relaxed)
    }
}

/// The seed's 32-bit word: the top bit is frozen, the rest counts; no generation, no pins.
///
/// `BITS` count bits, pushed up against the frozen bit when fewer than 31, so that an overflow is
/// the machine's. `LOOP`: losers wipe until the debris is gone, as the proposal does now; without
/// it they try one swap and leave, as it first did.
#[derive(Debug)]
pub struct SeedFrozen<const BITS: u32, const LOOP: bool, A: AtomicWord<u32> = AtomicU32>(A);

/// The seed's count as proposed.
pub type Frozen32 = SeedFrozen<31, true>;

const FROZEN: u32 = 1 << 31;

impl<const BITS: u32, const LOOP: bool, A: AtomicWord<u32>> SeedFrozen<BITS, LOOP, A> {
    const ONE: u32 = 1 << (31 - BITS);

    /// A count on a word that has a value already.
    pub fn on(word: A) -> Self {
        SeedFrozen(word)
    }

    #[cold]
    #[inline(never)]
    fn wipe(&self, seen: u32) {
        if LOOP {
            let _ = self.0.update(seen, |word| (word > FROZEN).then_some(FROZEN));
        } else {
            // Relaxed, and pairs with nothing: it only takes additions away.
            let _ = self.0.compare_exchange(seen, FROZEN, Ordering::Relaxed);
        }
    }
}

impl<const BITS: u32, const LOOP: bool, A: AtomicWord<u32>> Counter for SeedFrozen<BITS, LOOP, A> {
    fn new_frozen() -> Self {
        SeedFrozen(A::new(FROZEN))
    }
    #[inline]
    fn try_get(&self) -> bool {
        // Acquire, pairs with the release store in `thaw`.
        let new = self.0.fetch_add(Self::ONE, Ordering::Acquire).wrapping_add(Self::ONE);
        if new & FROZEN == 0 {
            return true;
        }
        self.wipe(new);
        false
    }
    #[inline]
    fn put(&self) -> bool {
        // Release, pairs with the acquire of the swap below.
        self.0.fetch_sub(Self::ONE, Ordering::Release) == Self::ONE
            && self.0.compare_exchange(0, FROZEN, Ordering::Acquire).is_ok()
    }
    fn freeze(&self, expected: u32) -> bool {
        // Acquire, pairs with the release of earlier puts.
        self.0.compare_exchange(expected * Self::ONE, FROZEN, Ordering::Acquire).is_ok()
    }
    fn thaw(&self, n: u32) {
        // Release, pairs with the acquire of `try_get`.
        self.0.store(n * Self::ONE, Ordering::Release);
    }
    fn count(&self) -> u32 {
        // Relaxed, and pairs with nothing: for people and assertions.
        let word = self.0.load(Ordering::Relaxed);
        if word & FROZEN == 0 { word / Self::ONE } else { 0 }
    }
}
