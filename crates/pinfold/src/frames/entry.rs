//! The entry of a frame: one cache line that says what the frame holds and which threads may use
//! it. Two small protocols run on its words: the *version* (was what I read consistent?) and the
//! *identity* (is this the folio I was looking for?). The count's own is `pinfold-refcount`'s.
//!
//! A folio's words are those of its first frame, the *head*. Those of the others, the *tails*, only
//! say "frozen, odd". "Frozen" is the frozen bit with or without the debris of losers. Every frozen
//! folio has an odd version, except between `freeze` and `change_begin`.
//!
//! # States
//!
//! | state | `count` | `version` | `block` | `mapping` | owner |
//! |---|---|---|---|---|---|
//! | table's own frame | frozen | odd | 0 | none | none, for ever |
//! | free, first of a free block | frozen | odd | order + 1 | stale | the allocator |
//! | free, inside a free block | frozen | odd | 0 | stale | the allocator |
//! | reserved: free, in a run being emptied | frozen | odd | 0 | stale | the `HeldRun` |
//! | tail of a folio | frozen | odd | 0 | stale | the head's owner |
//! | filling: allocated, bytes not there yet | 1 or more | odd | 0 | none, then set | the filler |
//! | live | 1 or more | even | 0 | set | shared |
//! | gone: out of the index, still referenced | 1 or more | odd | 0 | none | the last holder |
//! | frozen for change | frozen | odd | 0 | set | eviction, split, migration, revocation, a writer |
//! | being freed | frozen | odd | 0 | any | the thread that froze it or put the last reference |
//!
//! # Transitions
//!
//! | from | to | step | by |
//! |---|---|---|---|
//! | fresh memory | free | every entry is written frozen and odd | `Table::place`, before the table is shared |
//! | free | filling | `block` = 0 under the mutex; then `hand_out`: identity forgotten, `count.hand_out(1)` last | `Frames::alloc` |
//! | free | reserved, and back | off its list under the mutex | `Frames::take_free_in`, `HeldRun` |
//! | filling | filling, findable | `set_identity`, then into the index | the filler |
//! | filling | live | `change_end` | the filler |
//! | filling | gone | out of the index, `forget_identity` | a filler that failed |
//! | live | frozen for change | `count.freeze(expected)`, then `change_begin` | `pages/freeze`, for one of these |
//! | frozen for change | live | `change_end`, then `count.thaw(1)` | the same one, having given up; a revocation or a writer, having finished (a writer by `change_end_by_count`) |
//! | frozen for change | being freed | out of the index, `forget_identity` | eviction; migration, of the old folio |
//! | tail | filling or live | `hand_out` for each new head of a folio that is frozen for change | split |
//! | live | gone | `change_begin`, out of the index, `forget_identity` | `freeze/drop.rs`; a writer, of what its copy replaces; `map/` for folios that become hollow: used or not |
//! | gone | being freed | `count.put(n)` says "last" | the last holder |
//! | being freed | free or held | onto a list under the mutex; the count stays as it is | `Frames::free` |
//!
//! Between "being freed" and `hand_out` *nothing* removes the frozen bit. A count of zero is not a
//! state: a `try_get` would turn it into a reference.
//!
//! # Which words are changed how
//!
//! `version`, `mapping`, `start`, `order` have one writer at a time, so they are stored, never
//! exchanged. `prev`, `next`, `block` belong to a lock: the allocator's while free, the policy's
//! while queued. `flags` are changed under different locks, by atomic read-modify-writes. `uses` is
//! stored by readers that hold nothing: a lost update costs one hint.

use bitflags::bitflags;

use super::count::{self, Count};
use super::units::{FrameNumber, Order, PAGE_BYTES, PAGE_SHIFT};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{
    AtomicU8, AtomicU32, AtomicU64, Ordering, fence, fence_before_racing_stores,
};

/// The mapping of a folio that belongs to no file.
pub(crate) const MAPPING_NONE: u32 = u32::MAX;

/// So many bytes of a file, from the first, have a global offset (log2).
const GLOBAL_SHIFT: u32 = 42;

/// So many mappings there can be at once; each number is below.
pub(crate) const MAPPINGS_END: u32 = 1 << (63 - GLOBAL_SHIFT);

/// Set in the start of a folio of bytes without a global offset.
const FAR: u64 = 1 << 63;

/// A byte of a file, or a folio's first byte: the file's number and the offset in it, in one word.
/// So *one* subtraction says where in a folio a byte is, and, by the result, whether it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Global(u64);

impl Global {
    /// `None` if the offset is too large: from 4 TiB on.
    #[inline(always)]
    pub(crate) fn near(mapping: u32, offset: u64) -> Option<Global> {
        debug_assert!(mapping < MAPPINGS_END);
        (offset >> GLOBAL_SHIFT == 0).then(|| Global(u64::from(mapping) << GLOBAL_SHIFT | offset))
    }

    /// If the offset is too large, the word does not say of which file it is.
    pub(crate) fn of(mapping: u32, offset: u64) -> Global {
        Global::near(mapping, offset).unwrap_or(Global(FAR | offset))
    }

    /// Of a byte so many bytes further on. If that byte has no global offset, the word means
    /// nothing: `Handle::there` leads such a reader to frame 0, which is refused.
    #[inline(always)]
    pub(crate) fn after(self, bytes: u64) -> Global {
        Global(self.0.wrapping_add(bytes))
    }

    /// Where in a folio that starts at `start` the byte is: beyond each folio's end if it is before
    /// the start, if the two are of different files, both near, or if one of them alone is near.
    #[inline(always)]
    pub(crate) fn from(self, start: Global) -> u64 {
        let at = self.0.wrapping_sub(start.0);
        if mutant::on(Mutant::AnyIdentity) { at & ((1 << GLOBAL_SHIFT) - 1) } else { at }
    }

    #[inline(always)]
    pub(super) fn is_in_page_of(self, other: Global) -> bool {
        self.0 ^ other.0 < PAGE_BYTES as u64
    }

    #[inline(always)]
    pub(super) fn of_word(word: u64) -> Self {
        Global(word)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    /// In the file.
    pub(crate) fn offset(self) -> u64 {
        self.0 & if self.0 & FAR == 0 { (1 << GLOBAL_SHIFT) - 1 } else { !FAR }
    }
}

/// Above every frame number.
const LINK_NONE: u32 = u32::MAX;

bitflags! {
    /// There is none for "up to date", which an even version says.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u32 {
        /// A read that finds this flag starts reading ahead.
        const READAHEAD = 1;
        /// Its fill failed, and `failures` has the error for the readers that waited.
        const FAILED = 1 << 1;
        /// Counted guards may keep all of it: it is on the list of `grants`.
        const GRANTED = 1 << 2;
        /// They might once, and did not use it when others wanted the same.
        const REVOKED = 1 << 3;
        /// As long as it is allocated, its bytes are outside of the arena (`pages/outside.rs`).
        const HOLLOW = 1 << 4;
        /// A hollow folio that was written because it was dirty, to leave memory.
        const WRITTEN = 1 << 5;
        /// A hollow folio whose pages may be one huge page: it is not split.
        const HUGE = 1 << 6;
        /// The index's mark `Dirty` is set, which is the truth: this only spares a writer the look.
        /// Changes under the mapping's `change` mutex.
        const DIRTY = 1 << 7;
        /// Of a folio that is not clean: where it was changed since it was (`changed.rs`). Changes
        /// under the `change` mutex.
        const CHANGED = 0xFFFF << 16;
    }
}

impl Flags {
    /// Of such a folio, nothing may be read but under a reference that was taken for it.
    const CLOSED: Flags = Flags::READAHEAD.union(Flags::HOLLOW);
}

/// Which pages of which file a folio holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The file, as numbered by its cache, or [`MAPPING_NONE`].
    pub(crate) mapping: u32,
    /// The page offset of its first page in the file.
    pub(crate) index: u64,
    pub(crate) order: Order,
}

impl Identity {
    pub(crate) fn pages(&self) -> std::ops::Range<u64> {
        self.index..self.index + u64::from(self.order.frames())
    }
}

/// Set in an even version: no slot shows the folio, and none may; its guards are counted. So a
/// writer need not look at the slots again. Any later change may clear it.
const BY_COUNT: u64 = 2;

/// An even version, as seen by [`Frame::read_begin`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp(u64);

/// The entry of one frame: exactly one cache line. `version` only ever grows, over all lifetimes of
/// the frame, and does not come round: so no stamp of an earlier lifetime is ever valid again.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Frame {
    /// The references and pins to the folio.
    pub(crate) count: Count,
    /// Odd while identity or bytes may change; an even one may have [`BY_COUNT`].
    version: AtomicU64,
    /// The [`Global`] of the byte that the folio begins with.
    start: AtomicU64,
    mapping: AtomicU32,
    prev: AtomicU32,
    next: AtomicU32,
    flags: AtomicU32,
    order: AtomicU8,
    /// How often it was used, see `uses.rs`.
    pub(super) uses: AtomicU8,
    /// The order of the free block that starts here, plus one; 0 where none starts.
    block: AtomicU8,
    /// Where the policy has the folio, in its own coding.
    place: AtomicU8,
    /// Bytes from the start on that may be read without a reference: `file_bytes`, or none while a
    /// flag of [`Flags::CLOSED`] is set; so readers load one word.
    span_bytes: AtomicU32,
    /// Bytes from the start on that are the file's.
    file_bytes: AtomicU32,
    /// Bytes from the start on that a counted guard may be taken of at once: as `span_bytes`, but
    /// none of a large folio that is not granted.
    guard_bytes: AtomicU32,
    /// In which parts, a bit each. Not from `crate::base::sync`: a hint.
    pub(super) touched: std::sync::atomic::AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Frame>() == 64, "one cache line an entry, 1/64 of the budget");
    assert!(align_of::<Frame>() == 64);
    assert!(size_of::<Count>() == 8);
    assert!(super::units::PAGE_BYTES.is_multiple_of(size_of::<Frame>()));
};

impl Frame {
    /// Frozen and odd.
    pub(super) fn new() -> Self {
        Frame {
            count: count::frozen(),
            version: AtomicU64::new(1),
            start: AtomicU64::new(0),
            mapping: AtomicU32::new(MAPPING_NONE),
            prev: AtomicU32::new(LINK_NONE),
            next: AtomicU32::new(LINK_NONE),
            flags: AtomicU32::new(0),
            order: AtomicU8::new(0),
            uses: AtomicU8::new(0),
            block: AtomicU8::new(0),
            place: AtomicU8::new(0),
            span_bytes: AtomicU32::new(0),
            file_bytes: AtomicU32::new(0),
            guard_bytes: AtomicU32::new(0),
            touched: 0.into(),
        }
    }

    /// Begins a read without a reference, if the folio is not being changed. What racing loads then
    /// read is valid only if [`Frame::read_retry`] returns false after them.
    #[inline]
    pub(crate) fn read_begin(&self) -> Option<Stamp> {
        self.stamp_without(1)
    }

    /// As [`read_begin`](Self::read_begin), for a folio that a slot may show.
    #[inline]
    pub(crate) fn borrow_begin(&self) -> Option<Stamp> {
        self.stamp_without(if mutant::on(Mutant::BorrowByCount) { 1 } else { 1 | BY_COUNT })
    }

    #[inline(always)]
    fn stamp_without(&self, bits: u64) -> Option<Stamp> {
        // Acquire: pairs with the Release store in `change_end`.
        let version = self.version.load(Ordering::Acquire);
        (version & bits == 0).then_some(Stamp(version))
    }

    /// Whether its guards are counted, all of them.
    pub(crate) fn is_by_count(&self) -> bool {
        // Relaxed: a hint, or the caller has made it odd.
        self.version.load(Ordering::Relaxed) & BY_COUNT != 0
    }

    /// Ends a read: true if anything may have changed since `stamp`.
    #[inline]
    #[must_use = "what was read may be used only if this is false"]
    pub(crate) fn read_retry(&self, stamp: Stamp) -> bool {
        // Acquire: pairs with the Release fences in `change_begin` and
        // `fence_before_racing_stores`. If any load before this fence saw a store made after one of
        // them, the load below sees the odd version or a later one.
        if !mutant::on(Mutant::LastLookUnfenced) {
            fence(Ordering::Acquire);
        }
        // Relaxed: the fence above orders it.
        self.version.load(Ordering::Relaxed) != stamp.0 && !mutant::on(Mutant::NoLastLook)
    }

    /// The stamp of this moment, or of the last one at which the version was even.
    pub(crate) fn last_stamp(&self) -> Stamp {
        // Relaxed: the caller has a reference, and so is ordered after the last change but one.
        Stamp(self.version.load(Ordering::Relaxed) & !1)
    }

    /// How far the version has moved since `stamp`: 1 while it is odd for the first time.
    pub(crate) fn since(&self, stamp: Stamp) -> u64 {
        // Acquire: pairs with the Release store in `change_end`, for what is loaded next.
        self.version.load(Ordering::Acquire) - stamp.0
    }

    /// Begins a change of identity or bytes. The caller has frozen the folio, or holds its
    /// mapping's `change` mutex. Panics if a change is in progress already.
    #[inline]
    pub(crate) fn change_begin(&self) {
        // Relaxed: one writer at a time, after the one before by the count or a lock.
        let version = self.version.load(Ordering::Relaxed);
        assert!(version & 1 == 0, "two changes of one folio at once (version {version})");
        // Relaxed: the fence below orders it before what follows.
        self.version.store(version + 1, Ordering::Relaxed);
        // Release: pairs with the Acquire fence in `read_retry`, see there.
        fence(Ordering::Release);
    }

    /// Ends a change or a fill: identity and bytes are now valid. Panics if none is in progress.
    #[inline]
    pub(crate) fn change_end(&self) {
        self.end_with(0);
    }

    /// [`change_end`](Self::change_end) of a folio that no slot shows: none may from here on.
    pub(crate) fn change_end_by_count(&self) {
        self.end_with(BY_COUNT);
    }

    #[inline(always)]
    fn end_with(&self, bits: u64) {
        // Relaxed: as in `change_begin`.
        let version = self.version.load(Ordering::Relaxed);
        let version = if mutant::on(Mutant::FreezeStaysEven) { version | 1 } else { version };
        assert!(version & 1 == 1, "no change of this folio to end (version {version})");
        // Release: pairs with the Acquire load in `read_begin`.
        self.version.store((version | 1 | BY_COUNT) + 1 + bits, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_changing(&self) -> bool {
        // Acquire: pairs with the Release store in `change_end`, for a waiter that reads the bytes
        // then.
        self.version.load(Ordering::Acquire) & 1 == 1
    }

    /// Valid for who holds a reference, or whose [`Frame::read_retry`] then returns false. With a
    /// reference to a folio that is being filled, it is no mapping or the whole new one.
    #[inline]
    pub(crate) fn identity(&self) -> Identity {
        // Acquire: pairs with the Release store of `mapping` in `set_identity`.
        let mapping = self.mapping.load(Ordering::Acquire);
        // The start is ordered by the load above.
        Identity { mapping, index: self.start().offset() >> PAGE_SHIFT, order: self.order() }
    }

    /// The folio's first byte, and how many bytes from there may be read without a reference. Valid
    /// if [`Frame::read_retry`] then returns false.
    #[inline(always)]
    pub(crate) fn readable(&self) -> (Global, u32) {
        self.open_to(&self.span_bytes)
    }

    /// As [`readable`](Self::readable), with the bytes that a counted guard may be had of at once.
    #[inline(always)]
    pub(crate) fn holdable(&self) -> (Global, u32) {
        self.open_to(&self.guard_bytes)
    }

    #[inline(always)]
    fn open_to(&self, bytes: &AtomicU32) -> (Global, u32) {
        // Relaxed: ordered by the version, before and after.
        (self.start(), bytes.load(Ordering::Relaxed))
    }

    /// The folio's first byte, as a guess that is checked later, or with an order by the caller.
    #[inline(always)]
    pub(crate) fn start(&self) -> Global {
        Global(self.start.load(Ordering::Relaxed))
    }

    /// Whether it is a folio of that mapping; valid as [`Frame::readable`] is.
    #[inline(always)]
    pub(crate) fn is_of(&self, mapping: u32) -> bool {
        // Relaxed: as in `readable`.
        self.mapping.load(Ordering::Relaxed) == mapping
    }

    /// Valid as [`Frame::identity`] is; changes if a write makes the file longer.
    #[inline]
    pub(crate) fn file_bytes(&self) -> usize {
        // Relaxed: as in `order`.
        self.file_bytes.load(Ordering::Relaxed) as usize
    }

    /// Valid as [`Frame::identity`] is.
    #[inline]
    pub(crate) fn order(&self) -> Order {
        // Relaxed: ordered by the caller's acquire of the count or of the version.
        let order = self.order.load(Ordering::Relaxed);
        debug_assert!(order <= Order::MAX.get());
        Order(order)
    }

    /// Sets the folio's identity; all of its bytes are the file's. Panics if the version is even.
    pub(crate) fn set_identity(&self, identity: Identity) {
        self.assert_changing("identity given");
        // Relaxed: published by the Release store below. By the fence in `hand_out`, `read_retry`
        // fails for threads without a reference that saw them.
        let start = Global::of(identity.mapping, identity.index << PAGE_SHIFT);
        self.start.store(start.0, Ordering::Relaxed);
        self.order.store(identity.order.get(), Ordering::Relaxed);
        self.set_file_bytes(identity.order.bytes());
        // Release: pairs with the Acquire load in `identity`. Last: a thread that got a reference
        // by a stale number must not take the old index for that of the new mapping.
        self.mapping.store(identity.mapping, Ordering::Release);
    }

    /// Sets how many of its bytes are the file's. Panics if the version is even.
    pub(crate) fn set_file_bytes(&self, bytes: usize) {
        self.assert_changing("length given");
        debug_assert!(bytes <= self.order().bytes());
        // Relaxed: as in `set_identity`.
        self.file_bytes.store(bytes as u32, Ordering::Relaxed);
        self.settle_span(self.flags());
    }

    /// The order stays: the last holder frees it by that. Panics if the version is even.
    pub(crate) fn forget_identity(&self) {
        self.assert_changing("identity taken");
        // Relaxed: the version warns who has no reference. Who has one checked the identity before,
        // or finds the folio gone at the next check.
        self.mapping.store(MAPPING_NONE, Ordering::Relaxed);
    }

    /// The last step of an allocation, and of a split for each new head: a folio of `order` with a
    /// count of 1 that is the caller's, an odd version, no mapping, no flags and no uses. Panics if
    /// the entry is not frozen with an odd version.
    pub(crate) fn hand_out(&self, order: Order) {
        assert!(self.count.is_frozen(), "a frame that somebody counts was about to be handed out");
        self.assert_changing("folio handed out");
        // Another thread may have made the version odd.
        fence_before_racing_stores(Mutant::HandOutUnfenced);
        // Relaxed, all four: `count.hand_out` publishes them. A thread that gets a reference by a
        // stale number synchronizes with it, finds no mapping, and leaves.
        self.mapping.store(MAPPING_NONE, Ordering::Relaxed);
        self.order.store(order.get(), Ordering::Relaxed);
        self.flags.store(0, Ordering::Relaxed);
        self.set_uses(0);
        self.set_fresh();
        // Last: a release store, which pairs with the acquire of a successful `try_get`.
        self.count.hand_out(1);
    }

    #[inline]
    pub(crate) fn flags(&self) -> Flags {
        // Acquire: pairs with the Release half of `set_flags` and `clear_flags`.
        Flags::from_bits_truncate(self.flags.load(Ordering::Acquire))
    }

    /// Returns the flags before: one missing there was set by this call. Cost: one atomic or.
    pub(crate) fn set_flags(&self, flags: Flags) -> Flags {
        // AcqRel: pairs with itself, `clear_flags` and `flags`.
        let old = Flags::from_bits_truncate(self.flags.fetch_or(flags.bits(), Ordering::AcqRel));
        if flags.intersects(Flags::CLOSED) {
            self.settle_span(old | flags);
        }
        old
    }

    /// Its order, if the folio seems to have no holders but its mapping.
    pub(crate) fn can_move(&self) -> Option<Order> {
        let word = self.count.word();
        let alone = !word.is_frozen() && word.refs() == 1 && word.pins() == 0;
        (alone && !self.is_changing() && self.identity().mapping != MAPPING_NONE)
            .then(|| self.order())
    }

    /// Valid as [`Frame::identity`] is.
    #[inline]
    pub(crate) fn is_hollow(&self) -> bool {
        // Relaxed: set before the folio has an identity, and not changed before it is freed.
        cfg!(feature = "map") && self.flags.load(Ordering::Relaxed) & Flags::HOLLOW.bits() != 0
    }

    /// Returns the flags before. Cost: one atomic and.
    pub(crate) fn clear_flags(&self, flags: Flags) -> Flags {
        // AcqRel: as in `set_flags`.
        let old = Flags::from_bits_truncate(self.flags.fetch_and(!flags.bits(), Ordering::AcqRel));
        if (flags & old).contains(Flags::READAHEAD) {
            self.settle_span(old - flags);
            self.settle_guard_bytes(old - flags);
        }
        old
    }

    /// Updates the span. The thread that makes the folio sets the mark, and one holder of a
    /// reference clears it: no other thread stores the span then.
    fn settle_span(&self, flags: Flags) {
        let closed = flags.intersects(Flags::CLOSED);
        // This thread need not be the one that allocated the frame.
        fence_before_racing_stores(Mutant::SpanUnfenced);
        // Relaxed, both: the version orders it, or a late value does no harm.
        let bytes = if closed { 0 } else { self.file_bytes.load(Ordering::Relaxed) };
        self.span_bytes.store(bytes, Ordering::Relaxed);
        self.store_guard_bytes(flags);
    }

    /// Lets counted guards be taken at once. The caller has a reference; there is no mark.
    pub(crate) fn grant(&self) {
        let flags = self.set_flags(Flags::GRANTED) | Flags::GRANTED;
        fence_before_racing_stores(Mutant::SpanUnfenced);
        self.store_guard_bytes(flags);
        self.settle_guard_bytes(flags);
    }

    /// Ends that. The caller has frozen the folio: so there is no guard, and who has read the bytes
    /// before finds another version under its reference. Panics if the version is even.
    pub(crate) fn revoke(&self) {
        self.assert_changing("grant revoked");
        self.set_flags(Flags::REVOKED);
        let flags = self.clear_flags(Flags::GRANTED) - Flags::GRANTED;
        self.store_guard_bytes(flags);
    }

    fn store_guard_bytes(&self, flags: Flags) {
        let large = self.order.load(Ordering::Relaxed) > 0;
        let closed = flags.intersects(Flags::CLOSED) || large && !flags.contains(Flags::GRANTED);
        // Relaxed, all: as in `settle_span`. Too few bytes for a moment cost the slow path.
        let bytes = if closed { 0 } else { self.file_bytes.load(Ordering::Relaxed) };
        self.guard_bytes.store(bytes, Ordering::Relaxed);
    }

    /// One thread may grant the folio while another clears its readahead mark: the last store is
    /// that of who has seen both changes. Call it after [`Self::store_guard_bytes`] by `flags`.
    fn settle_guard_bytes(&self, mut flags: Flags) {
        // Ends: each turn follows another thread's change of a flag.
        while !mutant::on(Mutant::GuardBytesUnsettled) {
            let now = if mutant::on(Mutant::GuardBytesLoaded) {
                self.flags.load(Ordering::Acquire)
            } else {
                // AcqRel: pairs with itself, and those in `set_flags` and `clear_flags`. Either
                // this sees the other thread's change, or comes before it, and so does the store
                // before this. A load could miss a change whose store that one overwrites.
                self.flags.fetch_or(0, Ordering::AcqRel)
            };
            let now = Flags::from_bits_truncate(now);
            if now == flags {
                break;
            }
            flags = now;
            self.store_guard_bytes(flags);
        }
    }

    // ---- links: the lock of the list protects the words, so all accesses are relaxed ----

    pub(crate) fn prev(&self) -> Option<FrameNumber> {
        unlink(self.prev.load(Ordering::Relaxed))
    }

    pub(crate) fn next(&self) -> Option<FrameNumber> {
        unlink(self.next.load(Ordering::Relaxed))
    }

    pub(crate) fn set_prev(&self, frame: Option<FrameNumber>) {
        self.prev.store(link(frame), Ordering::Relaxed);
    }

    pub(crate) fn set_next(&self, frame: Option<FrameNumber>) {
        self.next.store(link(frame), Ordering::Relaxed);
    }

    pub(crate) fn place(&self) -> u8 {
        self.place.load(Ordering::Relaxed)
    }

    pub(crate) fn set_place(&self, place: u8) {
        self.place.store(place, Ordering::Relaxed);
    }

    // ---- for the allocator, whose mutex orders `block` ----

    pub(super) fn block(&self) -> Option<Order> {
        self.block.load(Ordering::Relaxed).checked_sub(1).map(Order)
    }

    pub(super) fn set_block(&self, order: Option<Order>) {
        self.block.store(order.map_or(0, |order| order.get() + 1), Ordering::Relaxed);
    }

    pub(super) fn assert_freeable(&self, head: FrameNumber) {
        assert!(self.count.is_frozen(), "{head:?} is freed but not frozen: somebody may count it");
        self.assert_changing("folio freed");
        let linked = self.prev().is_some() || self.next().is_some();
        assert!(!linked, "{head:?} is freed while on a list");
    }

    pub(super) fn debug_assert_dead(&self, frame: FrameNumber) {
        debug_assert!(self.count.is_frozen() && self.is_changing(), "{frame:?} is in use");
        debug_assert!(self.block().is_none(), "{frame:?} is free already");
    }

    fn assert_changing(&self, what: &str) {
        // Relaxed: the caller made it odd, or got the folio from the thread that did.
        let version = self.version.load(Ordering::Relaxed);
        let changing = version & 1 == 1 || mutant::on(Mutant::FreezeStaysEven);
        assert!(changing, "{what} while readers believe it (version {version})");
    }
}

/// For models that break a protocol.
#[cfg(all(test, loom))]
impl Frame {
    pub(super) fn version(&self) -> &AtomicU64 {
        &self.version
    }

    pub(super) fn mapping_relaxed(&self) -> u32 {
        self.mapping.load(Ordering::Relaxed)
    }

    pub(super) fn set_flags_by_store(&self, flags: Flags) {
        let old = self.flags.load(Ordering::Acquire);
        self.flags.store(old | flags.bits(), Ordering::Release);
    }

    pub(super) fn set_identity_relaxed(&self, mapping: u32, index: u64) {
        self.mapping.store(mapping, Ordering::Relaxed);
        self.start.store(Global::of(mapping, index << PAGE_SHIFT).0, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
impl Stamp {
    pub(super) fn of(version: u64) -> Self {
        Stamp(version)
    }

    pub(super) fn version(self) -> u64 {
        self.0
    }
}

fn link(frame: Option<FrameNumber>) -> u32 {
    frame.map_or(LINK_NONE, |frame| frame.0)
}

fn unlink(link: u32) -> Option<FrameNumber> {
    (link != LINK_NONE).then_some(FrameNumber(link))
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "entry_tests.rs"]
mod tests;
