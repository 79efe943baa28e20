//! Ways to break the index on purpose, so that each test can be seen to fail.
//!
//! Here: the list, and the question "is this one switched on?". Outside tests the answer is the
//! constant `false`. Who calls it: the few places whose order or ordering is what keeps readers
//! safe, and the tests that switch a flaw on.

/// One deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "named where they would act, switched on by tests")
)]
pub(super) enum Flaw {
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
}

#[cfg(test)]
std::thread_local! {
    static ON: std::cell::Cell<Option<Flaw>> = const { std::cell::Cell::new(None) };
}

/// Switches `flaw` on for this thread while `body` runs.
#[cfg(test)]
pub(super) fn with(flaw: Option<Flaw>, body: impl FnOnce()) {
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
pub(super) fn on(flaw: Flaw) -> bool {
    ON.with(|on| on.get() == Some(flaw))
}

#[cfg(not(test))]
#[inline(always)]
pub(super) const fn on(_flaw: Flaw) -> bool {
    false
}
