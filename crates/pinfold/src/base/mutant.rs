//! Mutants: deliberate mistakes, with which each test can be seen to fail.
//!
//! The list of mutants, the check whether one is on, and the points at which a thread may pause.
//! Called where a step or an ordering keeps readers safe, and by the tests that switch a mutant on.
//!
//! | build | [`on`] |
//! |---|---|
//! | any other | the constant `false`; no pauses |
//! | this crate's own tests and models | a mutant may be on for one thread |
//! | feature `mutants` | a mutant may be on for the process: the stress's mutants (`mutants`), and any test with `PINFOLD_MUTANT=NoLastLook` |

/// Makes the enum, and the names from it.
macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A deliberate mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            not(all(test, loom)),
            allow(dead_code, reason = "named where they would act, switched on by tests")
        )]
        pub(crate) enum Mutant {
            $($(#[$doc])* $name,)*
        }

        /// All mutants.
        #[cfg(all(feature = "mutants", not(test)))]
        pub(crate) const ALL: &[(Mutant, &str)] = &[$((Mutant::$name, stringify!($name)),)*];
    };
}

mutants! {
    // ---- of the index ----
    /// Entries of nodes are stored with `Relaxed`.
    PublishRelaxed,
    /// A node becomes reachable before its slots are filled.
    PublishBeforeFill,
    /// A recycled node keeps the slots of its last use.
    KeepOldSlots,
    /// A split empties the entry before it stores the pieces.
    SplitClearsFirst,
    /// A replacement empties the entry before it stores the new head.
    ReplaceClearsFirst,
    /// A mark is set in the leaf, but not in its parents.
    MarkStaysLow,
    /// A shrinking root drops the marks of a folio that moves into it.
    ShrinkDropsMarks,
    /// Nodes that leave a tree are never given back to the pool.
    LeakNodes,
    /// The directory is not updated.
    DirectoryStays,
    /// A directory that grows starts empty.
    DirectoryGrowsEmpty,
    /// Once a directory has grown, the smaller one that old handles use is not updated.
    OldDirectoryStays,
    /// A handle's new bound of the directory is stored without release.
    BoundRelaxed,
    /// An insert does not check whether there is a folio already.
    InsertBlindly,

    // ---- of what is kept ----
    /// Eviction leaves no ghosts.
    GhostsForgotten,
    /// A large folio of which a few parts are used stays whole.
    PartsUnsplit,
    /// The first read of a folio counts as a use.
    FirstReadUses,

    // ---- of files that others write ----
    /// An open does not compare the file's contents with those that cached pages were read under.
    OpenUncompared,
    /// A file that has grown is not compared with what is cached.
    GrownUncompared,
    /// A refresh of a file that has grown keeps the pages that are on their way.
    GrownOnTheWay,
    /// An open trusts the pages of a file that a refresh has found grown.
    OpenTrustsGrown,
    /// A refresh by a path that leads to another file keeps what was cached if this one has grown.
    ReplacedKeepsGrown,

    // ---- of sources that hang ----
    /// The first folio of a thread or a future is brought whatever its file has on its way.
    FirstUnbounded,
    /// Each file has its least and all copies that it wants, however many sources hang.
    HungUnbounded,
    /// What nobody waits for may be all that a file has on its way.
    UnwaitedTakesAll,
    /// A copy that its file keeps waiting keeps its place before those of other files.
    CopyKeepsTurn,

    // ---- of mirrors ----
    /// A copy takes single pages of others out of its place.
    StraysOneByOne,
    /// A place is claimed though another folio or lender owns it.
    ClaimBlindly,
    /// A mirrored folio that leaves its file while it is used gives up its place.
    LeftoverForgotten,
    /// `invalidate` does not wait for bytes that are on their way into the mirror, or out of it.
    SettlesAtOnce,
    /// A folio is evicted, and its pages stay in the mirror.
    EvictKeepsPages,
    /// A folio is put into the mirror though it has left the index meanwhile.
    LendBlindly,
    /// Whether it has left the index is not asked again under the mutex.
    LendGone,
    /// A lender that finds its folio gone leaves the bytes in the mirror.
    LenderKeepsPages,
    /// The places of evicted folios are free as soon as the index does not have them.
    LeavesUnowned,
    /// An access waits for the place of a folio that left its file, though maps show its page.
    LeftOverAwaited,
    /// The place of a folio that left its file is free before its bytes are taken out.
    LeftoverDisownsFirst,
    /// Compaction does not ask whether a run has become hollow since it was chosen.
    CompactHollow,
    /// A folio moves to the arena, and its pages stay in the mirror.
    MoveKeepsPages,
    /// A folio whose pages are a huge page is split.
    SplitsHuge,
    /// A folio that moves to other hollow frames is not known to have a huge page any more.
    MoveForgetsHuge,
    /// What a mapped access has brought is kept though it has left its file meanwhile.
    RecentUnchecked,
    /// Bytes get into the mirror by write(2).
    CopyByWrite,
    /// Two places become one, whatever is between them.
    JoinsOverOthers,
    /// A page that was mapped again is evicted as if it had not been used.
    MappedAgainForgotten,
    /// A range of a map that is held has no references.
    HoldsNothing,
    /// What is held of a folio is taken for all of its pages, whatever the file has.
    HoldsWholeFolios,
    /// A mirrored folio counts as having all of its pages there, whatever the file has.
    LooksBeyondEnd,
    /// A map reaches beyond its mirror, if the file has become shorter while it was made.
    MapBeyondMirror,
    /// A page that cannot be read is poisoned, though a range that has it is held by now.
    HeldIsPoisoned,
    /// A page that cannot be read is poisoned after its map's lock was let go of.
    PoisonUnlocked,
    /// Some accesses fail though their pages are there.
    ServedFails,
    /// A map says that its addresses go once they have gone.
    UnmapsUnsaid,
    /// A run that is taken back from the mirrors is not asked whether it is hollow.
    TakeBackAnyRun,
    /// A run goes back to the arena although own memory or mirrors then have nothing free.
    TakesAllBack,
    /// A hollow run in which something is in use does not go back to the arena.
    UsedKeepRuns,
    /// Pages are evicted for a large folio though there is a hollow run that nobody uses.
    LargeEvictFirst,
    /// A run in which something is in use that is mapped does not become hollow.
    UsedStaysUnhollow,
    /// Runs are tried to be emptied though something is in use in them.
    InUseTried,
    /// A run becomes hollow though what is in use in it has its bytes there.
    HollowOutUsed,
    /// The arena may have a huge page where hollow folios have frames.
    HugeBesideHollow,
    /// A page that fits no hollow frames with its neighbours is read with them again.
    BringLargeAgain,
    /// Futures are woken by a lender that still claims places.
    LendWakesEarly,

    // ---- of owned bytes ----
    /// A copy is not counted among those that programs keep.
    CopyUncounted,
    /// Bytes are kept in place though that keeps more than twice as much as is wanted.
    KeepBlindly,
    /// A future that waits for memory for a copy queues as one that wants a page does.
    CopyBeforeAll,
    /// The run that a copy has a part of counts as one from which everything can be moved.
    CopyAmongMovable,

    // ---- of futures ----
    /// A future looks whether its folio has arrived before it takes the mutex to leave its waker.
    LeaveUnlocked,
    /// The reclaiming thread does not look after the futures that queue for memory.
    QueueForgotten,
    /// A future that is dropped after it was woken does not wake the next.
    DropKeepsTurn,
    /// A future that is woken and refused queues again at the end.
    RefusedLast,
    /// A future that comes while others queue tries before them.
    NewcomerFirst,
    /// A future that is dropped keeps its claim to the pages that it was to bring.
    DropKeepsClaim,
    /// A future that is not polled keeps its claim when its reads have ended.
    UnpolledKeepsClaim,
    /// A future that was passed over keeps those that come later from trying.
    PassedOverFirst,
    /// Of futures that are not polled, one is passed over at a time.
    PassesOverSingly,
    /// A page that was not begun with its batch keeps its claim.
    VainKeepsClaim,
    /// A batch of futures is not admitted as a whole, and waits for memory with its guards.
    BatchKeepsGuards,
    /// A batch of futures that steps back keeps its claim.
    RetreatKeepsClaim,
    /// A batch of futures that steps back from reads alone does not count that.
    RetreatUncounted,
    /// A batch of futures that steps back loses the turn of the part that found no memory.
    RetreatLosesTurn,
    /// Any number of batches of futures wait for memory with their guards.
    AllKeepGuards,
    /// A batch of futures that may keep its guards does so for ever, though it is not polled.
    UnpolledKeepsGuards,
    /// A batch of futures that was passed over keeps its guards, though another one may.
    PassedOverKeepsGuards,
    /// A batch of futures that is refused its claim is the one that may keep its guards.
    RefusedKeepsGuards,
    /// A batch of futures that is dropped while it queues for its claim stays in the queue.
    BatchStaysQueued,
    /// A future that is dropped while its folio is on its way leaves its waker there.
    DropKeepsWaker,
    /// Futures that are to be woken together are not woken.
    LaterForgotten,
    /// The ring's thread wakes nobody as long as requests end.
    AbsorbsAll,
    /// The eventfd of completions is not written.
    EventUnwritten,

    // ---- of faults ----
    /// A fault does not ask whether its address is in the range of the record that it found.
    FaultAnyRange,
    /// A fault that retries does not ask whether the map is still the same.
    FaultAnyGeneration,
    /// A fault that retries asks that before it has the lock.
    FaultGenerationEarly,
    /// A fault that retries looks for the page without the lock.
    FaultLooksUnlocked,
    /// A fault that lets go of the lock keeps no share of the file.
    FaultSharesNothing,
    /// One huge page of the arena is touched at a time.
    TouchesInTurn,
    /// What was read ahead in vain costs no credit.
    VainIsFree,
    /// A run is over where another handle has read on.
    OthersEndRun,
    /// A handle reads ahead whatever other handles have read in vain.
    CreditUnshared,
    /// A page that is read makes all of its folio read.
    PartIsWhole,
    /// Pages before a mark count as used, whether they were or not.
    SkippedIsUsed,
    /// What was read ahead of a run that is over stays.
    OverStays,
    /// All that maps show counts as used.
    MapsUseAll,
    /// The window stays as large where pages are gone before they are used.
    LostKeepsWindow,
    /// Pages around an absent one are read wherever memory is free.
    AroundBlindly,
    /// What mapped accesses have brought last is kept when it leaves its file.
    RecentStays,
    /// A record is given back before its granules are cleared.
    UnmapReleasesFirst,

    /// Any number of threads bring pages for mapped accesses at a time.
    AllBringAtOnce,
    /// Any number of threads wait for hollow frames with folios that nothing can evict meanwhile.
    AllWaitWithFolios,

    // ---- of page-outs ----
    /// A page-out does not protect its pages against stores.
    PageOutUnprotected,
    /// Pages are evicted for the arena though there are hollow runs that nobody uses.
    EvictsFirst,
    /// Dirty pages of own memory keep their frames when the arena wants these back.
    DirtyStays,
    /// A page leaves without a write, though nobody has looked whether it is still protected.
    ProtectionTrusted,
    /// KSM is not told again to keep away from pages that are about to leave.
    MergedAgain,
    /// A page whose bytes are lost counts as never stored to.
    LossForgotten,
    /// A page-out does not ask whether its page was stored to while it was written.
    PageOutUnchecked,
    /// A page whose write to the swap failed stays protected, which its state does not say.
    FailedStaysProtected,
    /// Pages that are held are paged out.
    PageOutHeld,
    /// The slot is free to which a page is just being written, or from which it is read.
    SlotFreedEarly,
    /// A page leaves memory before it is written.
    DropBeforeWritten,
    /// A store to a page that is being written makes it one that can be written again.
    WriteForgotten,

    // ---- of other processes' memory ----
    /// A client's mapping may be of what is past the end of the snapshot.
    ClientAnyOffset,
    /// What a client's memory file has is installed, whether the index says that it is lent or not.
    ClientTrustsPresent,
    /// A run of pages is installed without references to them.
    ClientRunUnheld,
    /// Calls that install pages in other processes keep any number of them.
    CallsKeepAll,
    /// A page that cannot get into the mirror is an error of the client that wants it.
    MirrorErrorPoisons,
    /// A file that the program maps is served to other processes.
    MappedAndServed,
    /// A client's events are heard in the order in which they were read with its faults.
    EventsAfterFaults,
    /// Faults that rest count as reads, beyond which a client is not heard.
    RestsPause,
    /// Pages that were installed before a fault had to be put off are not counted.
    PartUncounted,
    /// A fault counts as failed whose page is there, or is not mapped, by now.
    FailsUnasked,
    /// With each read for a fault, the time begins anew for which it may rest for want of memory.
    ShortAnew,
    /// A client's turn goes on until it has nothing more to say.
    TurnWithoutEnd,
    /// Clients that wait for reads of others are not looked after when these have ended.
    WaitingForgotten,
    /// Each round looks at all clients.
    IdleLookedAt,
    /// Reads for a client that has left do not count any more.
    ReadsForgotten,
    /// Reads ahead for a client that has left go on, however many there are.
    AheadOfTheGone,
    /// A client whose memory is gone is served as long as its connection is open.
    DeadIsServed,
    /// Any number of a client's faults rest.
    RestsWithoutEnd,
    /// A fault of a client that has to be tried again is not.
    RestForgotten,
    /// Each client may have as many pieces as all together.
    PiecesOfEach,
    /// Reads ahead of a file that is served have as many worker threads as other reads.
    AheadTakesAll,
    /// Reads ahead for clients are begun however many reads are under way.
    AheadUncounted,
    /// All reads that a client's faults wait for are begun at once.
    AllReadsBegun,
    /// A client is given up that waits where it moves its memory to, before the move is told.
    OutsideAtOnce,
    /// What a client has unmapped stays among its regions.
    UnmappedStays,
    /// The descriptor of a client that has left stays open.
    LeftKeepsDescriptor,
    /// A child of the server removes clients.
    ForkedClientsRemove,
    /// A loop that looks for a page waits for memory of the index.
    LookWaits,
    /// A task that gives up keeps its place in the queue of those who bring pages.
    PlaceInQueueStays,
    /// A handler thread waits for what its fault waits for.
    HandlerBlocks,
    /// Who evicts writes what has to be written first, and waits for that.
    EvictorsWrite,
    /// A page of own memory that the kernel keeps in memory leaves the index.
    SealedLeaves,
    /// A page that was stored to, and is protected, stays protected.
    ProtectedForGood,
    /// Who waits for memory waits for those who evict, however long that takes.
    EvictorsAwaited,
    /// What was written, and stayed, counts as on its way out of memory when it is handed over
    /// again.
    StuckStaysFirst,

    // ---- of the short read ----
    /// The version is not validated at the end.
    NoLastLook,
    /// The version is validated at the end without the fence before it.
    LastLookUnfenced,
    /// A thread that gets a frame stores the new identity without a fence before it.
    HandOutUnfenced,
    /// The span (how many bytes may be read) is stored without a fence before it.
    SpanUnfenced,
    /// A folio's bytes are stored without a fence before them.
    StoreUnfenced,
    /// All three of these fences are missing.
    RefillUnfenced,
    /// A folio of another file is accepted.
    AnyIdentity,
    /// A folio that lands is not clipped at the end of the file.
    LandUnclipped,
    /// A file gets its new length before the folios with its old end are dropped.
    LengthFirst,
    /// A new length can be seen before pages of the old one have left the maps.
    LengthBeforeMaps,

    /// A pinned folio is changed in place while a guard shows it.
    ChangePinnedAnyCount,
    /// The references to a pinned folio are counted before the slots are looked at.
    CountedBeforeSlots,
    /// Who meets a folio that a writer leaves alone, as it is pinned, is not woken.
    PinnedWakesNobody,
    /// A slot may show a folio whose guards are counted.
    BorrowByCount,
    /// What is changed in a dirty folio is not written, if it lies elsewhere.
    ChangeUnnoted,
    /// The end of a sync wakes nobody to begin the next.
    NextTurnUnwoken,
    /// Of those whom a sync will do, one is woken.
    OneSharesTurn,
    /// A folio that was changed is not marked.
    DirtUnmarked,
    /// What is changed while it is written is not dirty.
    RedirtLost,
    /// What could not be written counts as written.
    FailedStaysWritten,
    /// After a sync that has failed, what was written is clean.
    SyncFailedIsClean,
    /// A sync that began before a call will do for it.
    SyncOfOthers,
    /// A sync gives bytes to the source, and does not sync it.
    SyncOnlyWrites,
    /// The source is synced before bytes are given to it.
    SyncsFirst,
    /// What is written is clean before the source is synced.
    CleanEarly,
    /// A sync that could not write something succeeds.
    WriteErrorUnsaid,
    /// The last page is not written, if the file has a part of it.
    TailForgotten,
    /// A source of whole blocks is not cut to the file's length.
    TailUncut,
    /// The source keeps its length when the file is cut.
    CutKeepsSource,
    /// Bytes behind a new end stay in the last folio.
    CutKeepsBytes,
    /// A changed length, or a hole, alone is nothing to sync.
    ResizeIsDurable,
    /// A sync of a range leaves out the page in which the range ends.
    RangeCutShort,
    /// A sync of a range will do for those who wait to sync all.
    RangeIsAll,
    /// A writer waits for a sync that hangs as long as it does.
    HungSyncAwaited,
    /// The source punches a hole when it has been given what was written afterwards.
    HoleLate,
    /// A hole is punched while bytes are on their way to the source.
    HoleTakesNoTurn,
    /// Writes to pages in which a hole is being punched do not wait.
    HoleUnguarded,
    /// A changed copy that takes a folio's place is not marked.
    CopyUndirtied,
    /// A folio that a write has made is not marked.
    MadeUndirtied,
    /// Dirty folios are dropped and evicted like any other.
    LoseDirty,

    // ---- of counted references and freezing ----
    /// A counted look-up does not check which folio it got a reference to.
    CountedBlindly,
    /// Freezing or dropping a folio leaves its version even.
    FreezeStaysEven,
    /// Freezing succeeds whatever the count is.
    FreezeAnyCount,

    /// A grant is revoked by a look at the count, without a freeze.
    RevokeUnfrozen,
    /// Guard bytes are stored by the flags that their thread saw first.
    GuardBytesUnsettled,
    /// The flags are looked at by a load after the guard bytes were stored.
    GuardBytesLoaded,
    /// A guard of a large folio is taken whether it is granted or not.
    AdmitBlindly,

    // ---- of borrowing ----
    /// A reader validates the version before it announces.
    AnnounceLate,
    /// A slot's last page is accepted whatever its version is by now.
    RecallBlindly,
    /// The borrows of a batch have their fence before their announcements.
    BatchFencedFirst,
    /// There is no fence between a reader's announcement and its validation.
    AnnounceUnfenced,
    /// The end of a borrow is stored without release.
    ClearRelaxed,
    /// An upgrade ends the borrow before it has a reference.
    UpgradeUnannounced,
    /// A freezer does not scan the slots.
    NoScan,
    /// There is no fence between a freezer's odd version and its scan of the slots.
    ScanUnfenced,
    /// Unregistering ends forgotten borrows without release.
    LeaveRelaxed,
    /// A new record is not covered by the scan.
    RegisterLate,
    /// The further record of a reader is not covered by the scan.
    FurtherUnseen,
    /// A reader that unregisters excludes all higher records from the scan.
    LeaveByNumber,
    /// `is_current` is true whatever happened to the page.
    CurrentBlindly,
    /// A writer writes in place if there is no other reference, announced or not.
    WriteUnderBorrow,
    /// A writer publishes the new bytes before the old ones are invalid.
    OldGoesLate,
    /// A folio that is announced when it leaves its file is freed at once.
    GoneAtOnce,
    /// Deferred folios are collected even though the membarrier was refused.
    CollectUnfenced,

    /// A page is readable as soon as it is in the index.
    EvenBeforeRead,
    /// Invalidation drops nothing.
    InvalidateNothing,
    /// The folio at the old end stays when a file's length changes.
    KeepOldEnd,
    // ---- of pins ----
    /// A pin does not check that the folio is still the one that was looked up.
    PinBlindly,
    /// Freezing ignores pins.
    FreezePinned,
    /// Dropping a folio from its file gives back its pins too.
    DropPins,
    /// Both parts of a range that is cut inside a page share one pin of that page.
    SplitSharesPin,
    /// A folio that was moved to be pinned is pinned after the mutex is released.
    PinMovedLate,

    /// A fill does not check whether its folio was dropped meanwhile.
    LandBlindly,
    /// Whoever wants some pages of a read that failed does not read them alone.
    NeverAlone,
    /// It does so even if the source hangs.
    AloneThoughItHangs,
    /// An error of a read for a batch is not left for those who wait.
    BatchErrorUnshared,
    /// Folios of an abandoned batch stay in flight.
    BatchForgotten,
    /// A file without folios is removed after an unlocked check of its handles.
    RetireUnchecked,

    // ---- of waiting ----
    /// A filler wakes the waiters before it changes the state.
    WakeFirst,
    /// Waking does not synchronise with threads between their check and their sleep.
    WakeUnlocked,
    /// Requests that nobody waited for when they were made wait as long as there are others.
    AheadWaits,
    /// A thread that waits for memory does not check again by itself.
    SleepUntilWoken,
    /// A batch waits for memory although it has folios on their way.
    GroupsWait,
    /// Completions of a thread's own ring are taken for its reads in their order.
    LandInTurn,
    /// A short read by a thread's own ring is taken for the whole.
    ShortIsWhole,
    /// Reads that the source does not take are forgotten.
    ForgetUnsubmitted,
    /// A batch takes the mutexes in the order of its folios.
    BatchUnordered,
    /// Frames that are freed in a run being emptied become free for all.
    HoldLeaks,
    /// Split and migration wake no waiters.
    MoveWakesNobody,
    /// An insert that finds another folio in its way wakes no waiters.
    OccupiedWakesNobody,
}

#[cfg(all(feature = "mutants", not(test)))]
pub(crate) use everywhere::{on, pause, switch_on};
#[cfg(not(any(test, feature = "mutants")))]
pub(crate) use nowhere::{on, pause};
#[cfg(test)]
pub(crate) use one_thread::{on, pause, with};

#[cfg(all(feature = "mutants", not(test)))]
mod everywhere {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::time::Duration;

    use super::{ALL, Mutant};

    /// The environment has not been read yet.
    const UNKNOWN: u8 = 255;
    /// No pauses. 1: pauses; 2 and up: pauses and a mutant.
    const OFF: u8 = 0;

    static ON: AtomicU8 = AtomicU8::new(UNKNOWN);

    /// From now on threads of this process pause, and `mutant` is on.
    pub(crate) fn switch_on(mutant: Option<Mutant>) {
        // Relaxed, here and below: set before the threads that load it start.
        ON.store(mutant.map_or(OFF + 1, |mutant| mutant as u8 + 2), Ordering::Relaxed);
    }

    fn state() -> u8 {
        match ON.load(Ordering::Relaxed) {
            UNKNOWN => from_environment(),
            known => known,
        }
    }

    #[cold]
    fn from_environment() -> u8 {
        match std::env::var("PINFOLD_MUTANT") {
            Ok(wanted) => {
                let found = ALL.iter().find(|(_, name)| *name == wanted);
                switch_on(Some(
                    found.unwrap_or_else(|| panic!("PINFOLD_MUTANT={wanted}: no such mutant")).0,
                ));
            }
            Err(_) => ON.store(OFF, Ordering::Relaxed),
        }
        ON.load(Ordering::Relaxed)
    }

    pub(crate) fn on(mutant: Mutant) -> bool {
        state() == mutant as u8 + 2
    }

    /// One pause in this many is a short one; one in this many of those is a long one.
    const SHORT_ONE_IN: u64 = 256;
    const LONG_ONE_IN: u64 = 32;

    /// Pauses the thread now and then, for about as long as another thread needs for a step: this
    /// makes schedules that a machine with few cores would not reach in days.
    pub(crate) fn pause() {
        std::thread_local! {
            static STATE: Cell<u64> = const { Cell::new(0) };
        }
        if state() == OFF {
            return;
        }
        let chance = STATE.with(|state| {
            // Each thread's state has an address of its own, which is seed enough. Marsaglia's
            // xorshift64.
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

#[cfg(not(any(test, feature = "mutants")))]
mod nowhere {
    use super::Mutant;

    #[inline(always)]
    pub(crate) const fn on(_mutant: Mutant) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) const fn pause() {}
}

#[cfg(test)]
mod one_thread {
    use super::Mutant;

    std::thread_local! {
        static ON: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
    }

    /// Switches `mutant` on for this thread while `body` runs.
    pub(crate) fn with<T>(mutant: Option<Mutant>, body: impl FnOnce() -> T) -> T {
        struct Off;
        impl Drop for Off {
            fn drop(&mut self) {
                ON.with(|on| on.set(None));
            }
        }
        let _off = Off;
        ON.with(|on| on.set(mutant));
        body()
    }

    pub(crate) fn on(mutant: Mutant) -> bool {
        ON.with(|on| on.get() == Some(mutant))
    }

    pub(crate) fn pause() {}
}
