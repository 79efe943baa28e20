//! Ways to break the cache on purpose, so that each test can be seen to fail.
//!
//! Here: the list, the question "is this one switched on?", and the points at which a thread may be
//! held up. Who calls it: the few places whose order or ordering is what keeps readers safe, and the
//! tests that switch a flaw on.
//!
//! | build | the answer |
//! |---|---|
//! | any other | the constant `false`, and nobody is held up |
//! | this crate's own tests and models | a flaw may be on for one thread |
//! | feature `flaws` | a flaw may be on for the process: the stress's twins (`testing::twin`), and any test with `PINFOLD_FLAW=NoLastLook` |

/// Makes the list, and from it the names.
macro_rules! flaws {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One deliberate mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            not(all(test, any(loom, shuttle))),
            allow(dead_code, reason = "named where they would act, switched on by tests")
        )]
        pub(crate) enum Flaw {
            $($(#[$doc])* $name,)*
        }

        /// All of them.
        #[cfg(all(feature = "flaws", not(test)))]
        pub(crate) const ALL: &[(Flaw, &str)] = &[$((Flaw::$name, stringify!($name)),)*];
    };
}

flaws! {
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
    /// The directory is not told of changes.
    DirectoryStays,
    /// A directory that grows starts empty.
    DirectoryGrowsEmpty,
    /// Handles that know the smaller directory only are not told of changes once there is a larger.
    OldDirectoryStays,
    /// An insert does not look whether a folio is there already.
    InsertBlindly,

    // ---- of the short read ----
    /// The version is not compared at the end.
    NoLastLook,
    /// The version is compared at the end, without the fence before it.
    LastLookUnfenced,
    /// Whoever is given a frame stores its new identity without a fence before.
    HandOutUnfenced,
    /// How many bytes may be read is stored without a fence before.
    SpanUnfenced,
    /// A folio's bytes are stored without a fence before.
    StoreUnfenced,
    /// None of these three fences is there.
    RefillUnfenced,
    /// A folio of another file will do.
    AnyIdentity,
    /// A folio lands without being told where the file ends.
    LandUnclipped,
    /// A file gets its new length before the folios with its old end are dropped.
    LengthFirst,

    /// What is to be written is dropped and evicted like anything else.
    LoseDirty,

    // ---- of counted references and freezing ----
    /// A counted look-up does not check what it got a reference to.
    CountedBlindly,
    /// Freezing, or dropping, leaves the version even.
    FreezeStaysEven,
    /// Freezing takes whatever the count says for its own.
    FreezeAnyCount,

    // ---- of borrowing ----
    /// A reader has its last look at the version before it announces.
    AnnounceLate,
    /// A slot's last page is taken for what it was, whatever version it has by now.
    RecallBlindly,
    /// A reader's announcement and its last look are not kept apart.
    AnnounceUnfenced,
    /// The end of a borrow is not told with release.
    ClearRelaxed,
    /// An upgrade ends the borrow first.
    UpgradeUnannounced,
    /// A freezer does not look at the announcements.
    NoScan,
    /// A freezer's odd version and its look at the announcements are not kept apart.
    ScanUnfenced,
    /// Leaving ends forgotten borrows without release.
    LeaveRelaxed,
    /// A new record stays out of sight.
    RegisterLate,
    /// Whoever leaves takes all records above his own out of sight.
    LeaveByNumber,
    /// A guard takes its page for the file's whatever has become of it.
    CurrentBlindly,
    /// A writer that finds nobody with a reference writes in place, announced or not.
    WriteUnderBorrow,
    /// A writer lets the new bytes be found before the old ones are gone.
    OldGoesLate,
    /// What is announced when it leaves its file is freed like the rest.
    GoneAtOnce,
    /// What waits for a borrow to end is looked for although no fence could be had.
    CollectUnfenced,

    /// A page is readable from the moment it is in the index.
    EvenBeforeRead,
    /// Nothing is dropped.
    InvalidateNothing,
    /// The folio with the old end stays when a file's length changes.
    KeepOldEnd,
    // ---- of pins ----
    /// A pin does not look whether the folio is still the one that was looked up.
    PinBlindly,
    /// Freezing does not mind pins.
    FreezePinned,
    /// Whoever drops a folio from its file gives up its pins, too.
    DropPins,
    /// A range that is cut inside a page has one pin of it for both parts.
    SplitSharesPin,
    /// A folio that was moved to be pinned is pinned after the mutex is let go.
    PinMovedLate,

    /// A fill does not look whether its folio was dropped meanwhile.
    LandBlindly,
    /// Folios on their way that nobody reads any more stay on their way.
    BatchForgotten,
    /// A file without folios is given up by the first look at its handles.
    RetireByGuess,

    // ---- of waiting ----
    /// A filler wakes first, and changes the state then.
    WakeFirst,
    /// Waking does not wait for those between their look and their sleep.
    WakeUnlocked,
    /// Whoever waits for memory does not look again by itself.
    SleepUntilTold,
    /// Reads that the source has no room for are forgotten.
    ForgetUnsubmitted,
    /// A batch takes its mutexes in the order of its folios.
    BatchUnordered,
    /// Frames that are freed in a run that is being emptied go back to everybody.
    HoldLeaks,
    /// Split and migration wake nobody.
    MoveWakesNobody,
    /// A filler that finds another folio in its way wakes nobody.
    OccupiedWakesNobody,
}

#[cfg(all(feature = "flaws", not(test)))]
pub(crate) use everywhere::{on, pause, switch_on};
#[cfg(not(any(test, feature = "flaws")))]
pub(crate) use nowhere::{on, pause};
#[cfg(test)]
pub(crate) use one_thread::{on, pause, with};

#[cfg(all(feature = "flaws", not(test)))]
mod everywhere {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::time::Duration;

    use super::{ALL, Flaw};

    /// Nobody has asked the environment yet.
    const UNKNOWN: u8 = 255;
    /// No pauses. 1: pauses; from 2 on, pauses and a flaw.
    const OFF: u8 = 0;

    static ON: AtomicU8 = AtomicU8::new(UNKNOWN);

    /// From now on, in the whole process, threads are held up, and `flaw` is on.
    pub(crate) fn switch_on(flaw: Option<Flaw>) {
        // Relaxed, here and below: it is there before the threads that ask.
        ON.store(flaw.map_or(OFF + 1, |flaw| flaw as u8 + 2), Ordering::Relaxed);
    }

    fn state() -> u8 {
        match ON.load(Ordering::Relaxed) {
            UNKNOWN => from_environment(),
            known => known,
        }
    }

    #[cold]
    fn from_environment() -> u8 {
        match std::env::var("PINFOLD_FLAW") {
            Ok(wanted) => {
                let found = ALL.iter().find(|(_, name)| *name == wanted);
                switch_on(Some(
                    found.unwrap_or_else(|| panic!("PINFOLD_FLAW={wanted}: no such flaw")).0,
                ));
            }
            Err(_) => ON.store(OFF, Ordering::Relaxed),
        }
        ON.load(Ordering::Relaxed)
    }

    pub(crate) fn on(flaw: Flaw) -> bool {
        state() == flaw as u8 + 2
    }

    /// One pause in so many is a short one; one in so many of these a long one.
    const SHORT_ONE_IN: u64 = 256;
    const LONG_ONE_IN: u64 = 32;

    /// Holds the thread up, now and then, for about as long as another thread takes for what it does
    /// to a folio: a schedule that a machine with few cores would not come by in days.
    pub(crate) fn pause() {
        std::thread_local! {
            static STATE: Cell<u64> = const { Cell::new(0) };
        }
        if state() == OFF {
            return;
        }
        let chance = STATE.with(|state| {
            // Each thread has its own address for it: seed enough. Marsaglia's xorshift64.
            let seed = std::ptr::from_ref(state) as u64 | 1;
            let mut x = if state.get() == 0 { seed } else { state.get() };
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            state.set(x);
            x >> 20
        });
        if !chance.is_multiple_of(SHORT_ONE_IN) {
            return;
        }
        let chance = chance / SHORT_ONE_IN;
        if chance.is_multiple_of(LONG_ONE_IN) {
            std::thread::sleep(Duration::from_micros(chance / LONG_ONE_IN % 500));
        } else {
            (0..chance % 2000).for_each(|_| std::hint::spin_loop());
            std::thread::yield_now();
        }
    }
}

#[cfg(not(any(test, feature = "flaws")))]
mod nowhere {
    use super::Flaw;

    #[inline(always)]
    pub(crate) const fn on(_flaw: Flaw) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) const fn pause() {}
}

#[cfg(test)]
mod one_thread {
    use super::Flaw;

    std::thread_local! {
        static ON: std::cell::Cell<Option<Flaw>> = const { std::cell::Cell::new(None) };
    }

    /// Switches `flaw` on for this thread while `body` runs.
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

    pub(crate) fn on(flaw: Flaw) -> bool {
        ON.with(|on| on.get() == Some(flaw))
    }

    pub(crate) fn pause() {}
}
