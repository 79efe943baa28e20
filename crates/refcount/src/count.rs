//! The count itself: its states, and every operation on it.
//!
//! # States
//!
//! | state | frozen | refs + pins | threads that may be here |
//! |---|---|---|---|
//! | owned | 0 | 1 ..= max | holders of references and pins, and threads that try to get one |
//! | zero | 0 | 0 | only between a thread's last subtraction and a swap; a get may still succeed |
//! | bare | 1 | 0 | one party alone (the last holder, a freezer, the allocator), or none: free |
//! | debris | 1 | > 0 | as bare, with additions of failed gets that are not wiped yet |
//!
//! # Legal transitions
//!
//! | from | to | by | step |
//! |---|---|---|---|
//! | owned | owned | a holder: `get`; any thread: `try_get`, `try_pin` | add |
//! | owned | owned or zero | a holder: `put`, `unpin` | subtract |
//! | zero | owned | any thread: `try_get`, `try_pin` | add |
//! | zero | bare | a thread whose subtraction left zero: it is the last holder | swap |
//! | owned | bare | a holder of all references: `freeze` | swap |
//! | bare, debris | debris | a failed get (a *loser*): `try_get`, `try_pin` | add |
//! | debris | bare | a loser, which leaves the word without debris or not frozen | swap |
//! | bare, debris | owned | the party alone: `thaw`, `hand_out` | store, next generation |
//!
//! There are no other transitions. In particular only the store of the party that holds the folio
//! alone clears the frozen bit, and no zero outlives the put that made it.
//!
//! # Zeros of different lifetimes
//!
//! A takes the count from 1 to 0 and stalls. B gets it back to 1, puts, wins the swap and frees the
//! folio. C gets the same folio from the allocator, and its count comes down to 0 again. A's swap
//! does not win *C's* zero: C's [`hand_out`](RefCount::hand_out) moved the generation on. If that
//! has wrapped round meanwhile, the caller is the second defence: the winner destroys what the
//! folio says it is now, never what the winner remembers of it.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::atomic::AtomicWord;
use crate::protocol::{Protocol, Shipped};
use crate::trace;
use crate::word::Word;

/// A count of references and pins that one party can freeze; 8 bytes.
///
/// The type parameters are for model checking; use it as plain `RefCount`. See the
/// [crate's front page](crate) for what it is, and `docs/refcount.md` for the proof.
///
/// It holds no memory alive by itself. Nothing here is `unsafe`, and misuse never is: at worst a
/// folio is leaked (see each operation's *Misuse*).
pub struct RefCount<P: Protocol = Shipped, A: AtomicWord<u64> = AtomicU64> {
    pub(crate) word: A,
    protocol: PhantomData<fn() -> P>,
}

/// Why a get or pin failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GetError {
    /// The folio is free, or one party holds it alone: look it up again.
    Frozen,
    /// The maximum of references or pins is held already ([`RefCount::MAX_REFS`],
    /// [`RefCount::MAX_PINS`]); nothing was taken.
    TooMany,
}

impl fmt::Display for GetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GetError::Frozen => "the folio is frozen",
            GetError::TooMany => "the folio has as many references or pins as can be counted",
        })
    }
}

impl core::error::Error for GetError {}

impl RefCount {
    /// A frozen count: the folio is free, or held alone by the caller.
    pub const fn frozen() -> Self {
        RefCount { word: AtomicU64::new(Word::<Shipped>::FIRST.raw()), protocol: PhantomData }
    }
}

impl<P: Protocol, A: AtomicWord<u64>> RefCount<P, A> {
    /// The most references that can be held at once.
    pub const MAX_REFS: u32 = Word::<P>::MAX_REFS;
    /// The most pages that can be pinned at once.
    pub const MAX_PINS: u32 = Word::<P>::MAX_PINS;

    /// [`RefCount::frozen`] for any protocol on any word.
    #[doc(hidden)]
    pub fn new_frozen() -> Self {
        Self::on(A::new(Word::<P>::FIRST.raw()))
    }

    /// A count on a word that has a value already.
    #[doc(hidden)]
    pub const fn on(word: A) -> Self {
        RefCount { word, protocol: PhantomData }
    }

    /// The whole word, decoded. Relaxed: it may be out of date when it is used.
    #[inline]
    pub fn word(&self) -> Word<P> {
        // Relaxed, and pairs with nothing: for people, assertions and hints.
        Word::of(self.word.load(Ordering::Relaxed))
    }

    /// References held; 0 when frozen.
    pub fn count(&self) -> u32 {
        let word = self.word();
        if word.is_frozen() { 0 } else { word.refs() }
    }

    /// Pages pinned; 0 when frozen.
    pub fn pins(&self) -> u32 {
        let word = self.word();
        if word.is_frozen() { 0 } else { word.pins() }
    }

    /// Whether references cannot be taken at the moment.
    pub fn is_frozen(&self) -> bool {
        self.word().is_frozen()
    }

    /// Takes `n` references if the folio is not frozen: one atomic add. *Acquire*.
    ///
    /// Success says that the folio is alive, not that it is the one you looked for: check that
    /// again where you found it, and [`put`](Self::put) the reference if it is not.
    ///
    /// # Errors
    /// [`GetError::Frozen`], [`GetError::TooMany`]; nothing was taken.
    ///
    /// # Panics
    /// In debug builds, if `n` is 0 or above [`RefCount::MAX_REFS`].
    #[inline]
    pub fn try_get(&self, n: u32) -> Result<(), GetError> {
        debug_assert!(n > 0 && n <= Self::MAX_REFS, "try_get of {n} references");
        let delta = Word::<P>::refs_delta(n);
        let new = Word::<P>::of(self.word.fetch_add(delta, P::TRY_GET)).plus(delta);
        let got =
            if new.refuses_refs() { self.refused(new, delta, Word::too_many_refs) } else { Ok(()) };
        trace::mod_unless(self, new, i64::from(n), got.is_ok());
        got
    }

    /// Gives back `n` references; true if they were the last. The caller then has it alone, frozen,
    /// and must destroy what it says it is. *Release* on the way down, *acquire* for the last.
    ///
    /// # Misuse
    /// Giving back references that are not held panics in debug builds. In release builds the
    /// references are added again and the answer is false; on a frozen word with debris it goes
    /// unnoticed. Either way the frozen bit stands.
    #[inline]
    #[must_use = "true means that this was the last reference: the folio must be destroyed"]
    pub fn put(&self, n: u32) -> bool {
        let delta = Word::<P>::refs_delta(n);
        let old = Word::<P>::of(self.word.fetch_sub(delta, P::PUT));
        let stays = old.refs() > n && !(cfg!(debug_assertions) && old.is_frozen());
        let last = !stays && self.left(old, delta, n > 0 && old.refs() >= n, "put");
        trace::mod_and_test(self, old.minus(delta), -i64::from(n), last);
        last
    }

    /// Takes `n` more references; only for a caller that holds one. One atomic add, *relaxed*.
    ///
    /// # Panics
    /// If more than [`RefCount::MAX_REFS`] would be held, and if the word is frozen (misuse);
    /// the word is as before then. Getting from 0 (misuse) is seen in debug builds only, and is a
    /// [`try_get`](Self::try_get) otherwise.
    #[inline]
    pub fn get(&self, n: u32) {
        debug_assert!(n <= Self::MAX_REFS, "get of {n} references");
        let delta = Word::<P>::refs_delta(n);
        let old = Word::<P>::of(self.word.fetch_add(delta, P::GET));
        let new = old.plus(delta);
        if new.refuses_refs() || (cfg!(debug_assertions) && old.is_zero()) {
            self.cannot_get(old, delta);
        }
        trace::modify(self, new, i64::from(n));
    }

    /// Pins `n` pages of the folio if it is not frozen: one atomic add for all of them. *Acquire*.
    /// A pin keeps the folio alive as a reference does, and is counted separately and exactly.
    ///
    /// # Errors
    /// [`GetError::Frozen`], [`GetError::TooMany`]; nothing was taken.
    ///
    /// # Panics
    /// In debug builds, if `n` is 0 or above [`RefCount::MAX_PINS`].
    #[inline]
    pub fn try_pin(&self, n: u32) -> Result<(), GetError> {
        debug_assert!(n > 0 && n <= Self::MAX_PINS, "try_pin of {n} pages");
        let delta = Word::<P>::pins_delta(n);
        let new = Word::<P>::of(self.word.fetch_add(delta, P::TRY_GET)).plus(delta);
        let got =
            if new.refuses_pins() { self.refused(new, delta, Word::too_many_pins) } else { Ok(()) };
        trace::mod_unless(self, new, i64::from(n), got.is_ok());
        got
    }

    /// Unpins `n` pages; true if nothing else held the folio: as [`put`](Self::put).
    ///
    /// # Misuse
    /// As [`put`](Self::put).
    #[inline]
    #[must_use = "true means that this was the last pin: the folio must be destroyed"]
    pub fn unpin(&self, n: u32) -> bool {
        let delta = Word::<P>::pins_delta(n);
        let old = Word::<P>::of(self.word.fetch_sub(delta, P::PUT));
        let stays = old.pins() > n && !(cfg!(debug_assertions) && old.is_frozen());
        let last = !stays && self.left(old, delta, n > 0 && old.pins() >= n, "unpin");
        trace::mod_and_test(self, old.minus(delta), -i64::from(n), last);
        last
    }

    /// Freezes the folio if exactly `expected` references, all the caller's, and no pins are held.
    /// It consumes the references. *Acquire* on success: all that earlier holders did is visible.
    ///
    /// The kernel's freeze is a full barrier. This one is not: a caller that must order its freeze
    /// before a later *load* (hazard slots, say) needs a fence of its own.
    ///
    /// # Errors
    /// The word as it was found, if others hold the folio, too.
    ///
    /// # Panics
    /// In debug builds, if `expected` is 0.
    #[inline]
    pub fn freeze(&self, expected: u32) -> Result<(), Word<P>> {
        debug_assert!(expected > 0, "freeze expecting 0 references: a holder has at least one");
        let seen = self.word();
        let from = seen.owned(expected);
        let frozen = if seen == from {
            self.word
                .compare_exchange(from.raw(), from.frozen().raw(), P::FREEZE)
                .map_or_else(|found| Err(Word::of(found)), |_| Ok(()))
        } else {
            Err(seen)
        };
        trace::freeze(self, seen, expected, frozen.is_ok());
        frozen
    }

    /// Ends a freeze: clears the frozen bit and leaves `n` references. A plain store, *release*,
    /// that also wipes the debris of losers. Only for the party that holds the folio alone.
    ///
    /// # Misuse
    /// Thawing what is not frozen, or with 0 references, panics in debug builds. In release builds
    /// the first drops the references of others, whose folio may be destroyed while they use it;
    /// the second leaves a zero that a get succeeds on.
    #[inline]
    pub fn thaw(&self, n: u32) {
        let new = self.clear_frozen(n, "thaw");
        trace::unfreeze(self, new, i64::from(n));
    }

    /// Begins a new lifetime: clears the frozen bit and leaves `n` references. What an allocator
    /// does last, by the same store as [`thaw`](Self::thaw).
    ///
    /// # Misuse
    /// As [`thaw`](Self::thaw).
    #[inline]
    pub fn hand_out(&self, n: u32) {
        let new = self.clear_frozen(n, "hand_out");
        trace::set(self, new);
    }

    /// Completes a get or pin that failed: adding `delta` made the word `seen`.
    #[cold]
    #[inline(never)]
    fn refused(
        &self,
        seen: Word<P>,
        delta: u64,
        too_many: fn(Word<P>) -> bool,
    ) -> Result<(), GetError> {
        if seen.is_frozen() {
            // Wipe all debris at once, or find that another thread has: left alone, additions could
            // carry into the frozen bit.
            let wiped = |raw| {
                let word = Word::<P>::of(raw);
                (word.is_frozen() && !word.is_bare()).then_some(word.frozen().raw())
            };
            let _ = self.word.update(seen.raw(), wiped);
            return Err(GetError::Frozen);
        }
        // Take it back, but only while the limit is exceeded: a plain subtraction might turn out to
        // be the last put. Once the addition fits, the get has succeeded.
        let undone = |raw| {
            let word = Word::<P>::of(raw);
            too_many(word).then_some(word.minus(delta).raw())
        };
        match self.word.update(seen.raw(), undone) {
            Ok(_) => Err(GetError::TooMany),
            Err(_) => Ok(()),
        }
    }

    /// Completes a subtraction of `delta` from `old` that may have left zero; true for the last.
    #[inline(never)]
    fn left(&self, old: Word<P>, delta: u64, legal: bool, what: &str) -> bool {
        if !legal || old.is_frozen() {
            // Relaxed, and pairs with nothing: it only restores.
            self.word.fetch_add(delta, Ordering::Relaxed);
            debug_assert!(false, "{what} of what is not held: the count was {old}");
            return false;
        }
        let zero = old.minus(delta);
        zero.is_zero()
            && self.word.compare_exchange(zero.raw(), zero.frozen().raw(), P::LAST).is_ok()
    }

    #[cold]
    #[inline(never)]
    fn cannot_get(&self, old: Word<P>, delta: u64) -> ! {
        // Relaxed, and pairs with nothing: it only restores.
        self.word.fetch_sub(delta, Ordering::Relaxed);
        panic!("get without a reference to start from, or of more than can be counted: {old}");
    }

    #[inline]
    fn clear_frozen(&self, n: u32, what: &str) -> Word<P> {
        debug_assert!(n > 0, "{what} with 0 references: a stray zero could be taken");
        debug_assert!(n <= Self::MAX_REFS, "{what} with {n} references");
        let seen = self.word();
        debug_assert!(seen.is_frozen() || P::FROZEN_BITS == 0, "{what} of a count that is {seen}");
        // Only the generation is kept, and it cannot change in a frozen word. The order pairs as
        // `Protocol::THAW` says.
        let new = seen.thawed(n);
        self.word.store(new.raw(), P::THAW);
        new
    }
}

impl<P: Protocol, A: AtomicWord<u64>> fmt::Debug for RefCount<P, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RefCount({})", self.word())
    }
}
