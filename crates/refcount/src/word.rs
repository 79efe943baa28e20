//! The word's fields, as the crate's head shows them. Only this module masks and shifts them.
//!
//! A narrower protocol's fields are pushed up to the top, above unused zeros: an overflow there
//! is the machine's own wrap-around, as it would be in the shipped word.

use core::fmt;
use core::marker::PhantomData;

use crate::protocol::{Protocol, Shipped};

/// The value of a count at one moment, decoded.
///
/// Its `Display` is the sentence that panics and errors of this crate use.
pub struct Word<P: Protocol = Shipped> {
    raw: u64,
    protocol: PhantomData<P>,
}

const fn low_mask(bits: u32) -> u64 {
    if bits == 0 { 0 } else { u64::MAX >> (64 - bits) }
}

/// `value` at bit `at`, for a field of `bits` bits: 0 if it has none.
const fn placed(value: u64, bits: u32, at: u32) -> u64 {
    if bits == 0 { 0 } else { value << at }
}

impl<P: Protocol> Word<P> {
    const WIDTH: u32 = P::FROZEN_BITS + P::GENERATION_BITS + P::PINS_BITS + P::REFS_BITS;
    const REFS_AT: u32 = 64 - Self::WIDTH;
    const PINS_AT: u32 = Self::REFS_AT + P::REFS_BITS;
    const GENERATION_AT: u32 = Self::PINS_AT + P::PINS_BITS;

    const REFS: u64 = low_mask(P::REFS_BITS) << Self::REFS_AT;
    const PINS: u64 = placed(low_mask(P::PINS_BITS), P::PINS_BITS, Self::PINS_AT);
    const GENERATION: u64 =
        placed(low_mask(P::GENERATION_BITS), P::GENERATION_BITS, Self::GENERATION_AT);
    const FROZEN: u64 = placed(1, P::FROZEN_BITS, 63);

    const REFS_TOP: u64 = 1 << (Self::PINS_AT - 1);
    const PINS_TOP: u64 = placed(1, P::PINS_BITS, Self::GENERATION_AT - 1);

    /// The most references that may be held at once.
    pub(crate) const MAX_REFS: u32 = low_mask(P::REFS_BITS - 1) as u32;
    pub(crate) const MAX_PINS: u32 =
        if P::PINS_BITS == 0 { 0 } else { low_mask(P::PINS_BITS - 1) as u32 };
    /// Frozen periods before the generation repeats.
    pub(crate) const GENERATIONS: u32 = low_mask(P::GENERATION_BITS) as u32;

    /// The word of a folio that was never owned.
    pub(crate) const FIRST: Self =
        Self::of(Self::FROZEN | placed(1, P::GENERATION_BITS, Self::GENERATION_AT));

    pub(crate) const fn of(raw: u64) -> Self {
        Word { raw, protocol: PhantomData }
    }

    /// Decodes a word of memory.
    #[doc(hidden)]
    pub const fn from_raw(raw: u64) -> Self {
        Self::of(raw)
    }

    /// The word as it stands in memory.
    pub const fn raw(self) -> u64 {
        self.raw
    }

    /// What to add to the word for `n` more references.
    pub(crate) const fn refs_delta(n: u32) -> u64 {
        (n as u64) << Self::REFS_AT
    }

    pub(crate) const fn pins_delta(n: u32) -> u64 {
        placed(n as u64, P::PINS_BITS, Self::PINS_AT)
    }

    /// Whether the folio is frozen: no reference can be taken.
    pub const fn is_frozen(self) -> bool {
        self.raw & Self::FROZEN != 0
    }

    /// References held; while frozen, additions of losers that are not wiped yet.
    pub const fn refs(self) -> u32 {
        ((self.raw & Self::REFS) >> Self::REFS_AT) as u32
    }

    /// Pages pinned; while frozen, additions of losers that are not wiped yet.
    pub const fn pins(self) -> u32 {
        if P::PINS_BITS == 0 { 0 } else { ((self.raw & Self::PINS) >> Self::PINS_AT) as u32 }
    }

    /// Which frozen period, or the owned period that followed it, this is; it repeats.
    pub const fn generation(self) -> u32 {
        if P::GENERATION_BITS == 0 {
            0
        } else {
            ((self.raw & Self::GENERATION) >> Self::GENERATION_AT) as u32
        }
    }

    /// Frozen, or more references than may be held: the one test on the way of a get.
    #[inline]
    pub(crate) const fn refuses_refs(self) -> bool {
        self.raw & (Self::FROZEN | Self::REFS_TOP) != 0
    }

    #[inline]
    pub(crate) const fn refuses_pins(self) -> bool {
        self.raw & (Self::FROZEN | Self::PINS_TOP) != 0
    }

    pub(crate) const fn too_many_refs(self) -> bool {
        self.raw & Self::REFS_TOP != 0
    }

    pub(crate) const fn too_many_pins(self) -> bool {
        self.raw & Self::PINS_TOP != 0
    }

    /// No references, no pins and not frozen: a put is between its two steps.
    #[inline]
    pub(crate) const fn is_zero(self) -> bool {
        self.raw & (Self::FROZEN | Self::PINS | Self::REFS) == 0
    }

    /// Frozen with nothing else but the generation.
    pub const fn is_bare(self) -> bool {
        self.is_frozen() && self.refs() == 0 && self.pins() == 0
    }

    #[inline]
    pub(crate) const fn plus(self, delta: u64) -> Self {
        Self::of(self.raw.wrapping_add(delta))
    }

    #[inline]
    pub(crate) const fn minus(self, delta: u64) -> Self {
        Self::of(self.raw.wrapping_sub(delta))
    }

    /// Frozen in the same generation, with no debris.
    pub(crate) const fn frozen(self) -> Self {
        Self::of((self.raw & Self::GENERATION) | Self::FROZEN)
    }

    /// Owned by `n` references in the next generation. Generation 0 is left out: a wrong
    /// subtraction on a frozen word then borrows from the generation, not from the frozen bit.
    pub(crate) const fn thawed(self, n: u32) -> Self {
        let next = if self.generation() == Self::GENERATIONS { 1 } else { self.generation() + 1 };
        let next = placed(next as u64, P::GENERATION_BITS, Self::GENERATION_AT);
        Self::of(next | Self::refs_delta(n))
    }

    /// Owned by `refs` references in the same generation.
    pub(crate) const fn owned(self, refs: u32) -> Self {
        Self::of((self.raw & Self::GENERATION) | Self::refs_delta(refs))
    }
}

impl<P: Protocol> Clone for Word<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Protocol> Copy for Word<P> {}

impl<P: Protocol> PartialEq for Word<P> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl<P: Protocol> Eq for Word<P> {}

impl<P: Protocol> fmt::Display for Word<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (refs, pins, generation) = (self.refs(), self.pins(), self.generation());
        match (self.is_frozen(), refs, pins) {
            (true, 0, 0) => write!(f, "frozen, generation {generation}"),
            (true, ..) => {
                write!(f, "frozen with debris ({refs} refs, {pins} pins), generation {generation}")
            }
            (false, 0, 0) => {
                write!(f, "0, between the last put and its swap, generation {generation}")
            }
            (false, ..) => {
                write!(f, "owned by {refs} refs and {pins} pins, generation {generation}")
            }
        }
    }
}

impl<P: Protocol> fmt::Debug for Word<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Word({self})")
    }
}
