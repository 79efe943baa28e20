//! The parameters of the protocol that its proof depends on: the widths of the fields and the
//! memory orderings, each with its partner.
//!
//! The shipped count runs on [`Shipped`]. A test makes a *mutant* by overriding one constant,
//! and must then fail; narrow widths let an explicit-state search reach every limit.

use core::sync::atomic::Ordering;

/// Widths and orderings of a count.
pub trait Protocol: 'static {
    /// 1, or 0 for a protocol that cannot freeze at all (a mutant).
    const FROZEN_BITS: u32 = 1;
    /// Lifetimes that can be distinguished. 0 turns generations off (a mutant).
    const GENERATION_BITS: u32;
    /// Pinned pages, with one bit of headroom. 0 for a count that cannot be pinned.
    const PINS_BITS: u32;
    /// References, with one bit of headroom.
    const REFS_BITS: u32;

    /// A successful speculative get. Acquire, pairs with [`Self::THAW`]: a thread that gets a
    /// reference sees what was written while the folio was frozen.
    const TRY_GET: Ordering = Ordering::Acquire;
    /// Another reference, taken by a holder. Relaxed: the new holder gets the reference by other
    /// means, and those order what it sees.
    const GET: Ordering = Ordering::Relaxed;
    /// Giving up references. Release, pairs with [`Self::LAST`] and [`Self::FREEZE`]: what a
    /// leaving holder did to the folio happens before the folio is destroyed or changed.
    const PUT: Ordering = Ordering::Release;
    /// The swap 0 -> frozen that makes the last holder. Acquire, pairs with [`Self::PUT`] of every
    /// earlier leaver: each later read-modify-write continues the release sequence of the earlier.
    const LAST: Ordering = Ordering::Acquire;
    /// The swap expected -> frozen. Acquire, pairs with [`Self::PUT`] like the last put. It needs
    /// no release: a thread that meets the frozen word leaves without reading anything.
    const FREEZE: Ordering = Ordering::Acquire;
    /// The store that ends a frozen period. Release, pairs with [`Self::TRY_GET`].
    const THAW: Ordering = Ordering::Release;
}

/// The protocol of the shipped count: `[1 frozen | 17 generation | 23 pins | 23 refs]`.
///
/// The widths, in numbers:
/// - *refs*: 2^22 - 1 = 4,194,303 may be held; a get that goes above takes itself back, so the
///   other 2^22 values are headroom for gets that are between their addition and that. Linux runs
///   at most 2^22 threads (`PID_MAX_LIMIT`), each with one get at a time: the field cannot carry.
/// - *pins*: 2^22 - 1 pinned pages, that is 8,191 pins of a whole 2 MiB folio at once. A pin adds
///   at most 512, so a carry takes more than 8,191 threads that all stand between the addition
///   and its undoing, on a folio that is at its limit already.
/// - *generation*: 2^17 - 1 = 131,071 frozen periods (0 is skipped) while one thread stands
///   between the subtraction that left 0 and its swap. With a device read of 10 us in each
///   lifetime that is 1.3 s to the first coincidence, at which the word must be at 0 in just that
///   moment; and then the second layer holds: the winner destroys what the folio says it is.
#[derive(Debug, Clone, Copy)]
pub enum Shipped {}

impl Protocol for Shipped {
    const GENERATION_BITS: u32 = 17;
    const PINS_BITS: u32 = 23;
    const REFS_BITS: u32 = 23;
}
