//! Ways to break the cache on purpose, so that each test can be seen to fail.
//!
//! Here: the list, and the question "is this one switched on?". Outside tests the answer is the
//! constant `false`. Who calls it: the few places whose order or ordering is what keeps readers
//! safe, and the tests that switch a flaw on.

/// One deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(test, loom)),
    allow(dead_code, reason = "named where they would act, switched on by tests")
)]
pub(crate) enum Flaw {
    // ---- of the index ----
    /// Entries of nodes are stored with `Relaxed`.
    PublishRelaxed,
    /// A node is made reachable before its slots are filled.
    PublishBeforeFill,
    /// A recycled node keeps what its last owner left in it.
    KeepOldSlots,
    /// A split empties the entry before it stores the pieces.
    SplitClearsFirst,
    /// A replacement empties the entry before it stores the new head.
    ReplaceClearsFirst,
    /// A mark is set in the leaf and not in its parents.
    MarkStaysLow,
    /// A shrinking root drops the marks of a folio that moves into it.
    ShrinkDropsMarks,
    /// Nodes that leave a tree are never given back to the pool.
    LeakNodes,
    /// An insert does not look whether a folio is there already.
    InsertBlindly,

    // ---- of the short read ----
    /// The version is not compared at the end.
    NoLastLook,
    /// The version is compared at the end, without the fence before it.
    LastLookUnfenced,
    /// A folio of another file will do.
    AnyIdentity,
    /// The file's length is loaded before the folio is seen up to date.
    LengthFirst,

    /// A file that has grown gets its new length before the folio with its old end is dropped.
    GrowFirst,
    /// A reader with a reference does not ask, after the length, whether the folio is still there.
    HeldLengthBlindly,

    // ---- of counted references and freezing ----
    /// A counted look-up does not check what it got a reference to.
    CountedBlindly,
    /// Freezing leaves the version even.
    FreezeStaysEven,
    /// Freezing takes whatever the count says for its own.
    FreezeAnyCount,

    // ---- of pins ----
    /// A pin does not look whether the folio is still the one that was looked up.
    PinBlindly,
    /// Freezing does not mind pins.
    FreezePinned,
    /// A range that is cut inside a page has one pin of it for both parts.
    SplitSharesPin,
    /// A folio that was moved to be pinned is pinned after the mutex is let go.
    PinMovedLate,

    /// A fill does not look whether its folio was dropped meanwhile.
    LandBlindly,
    /// A file without folios is given up by the first look at its handles.
    RetireByGuess,

    // ---- of waiting ----
    /// A filler wakes first, and changes the state then.
    WakeFirst,
    /// Waking does not wait for those between their look and their sleep.
    WakeUnlocked,
    /// Split and migration wake nobody.
    MoveWakesNobody,
}

#[cfg(test)]
std::thread_local! {
    static ON: std::cell::Cell<Option<Flaw>> = const { std::cell::Cell::new(None) };
}

/// Switches `flaw` on for this thread while `body` runs.
#[cfg(test)]
pub(crate) fn with(flaw: Option<Flaw>, body: impl FnOnce()) {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            ON.with(|on| on.set(None));
        }
    }
    let _off = Off;
    ON.with(|on| on.set(flaw));
    body();
}

#[cfg(test)]
pub(crate) fn on(flaw: Flaw) -> bool {
    ON.with(|on| on.get() == Some(flaw))
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn on(_flaw: Flaw) -> bool {
    false
}
