//! The entry's protocols in every interleaving that loom distinguishes. The same tests must catch
//! mutants with one step broken.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p pinfold --lib frames::model`

use std::sync::Arc;

use loom::thread;

use super::entry::Stamp;
use super::*;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{Ordering, fence};

/// The arena of a model: a frame of table, and three others.
fn open() -> Arc<Frames> {
    Arc::new(Frames::open(4 * PAGE_BYTES as u64).expect("memory for a model"))
}

fn identity(mapping: u32, index: u64) -> Identity {
    Identity { mapping, index, order: Order::MIN }
}

/// A folio that is live as page `index` of `mapping`, with one reference.
fn live(frames: &Frames, mapping: u32, index: u64) -> FrameNumber {
    let head = frames.alloc(Order::MIN).expect("a frame");
    frames.frame(head).set_identity(identity(mapping, index));
    frames.frame(head).change_end();
    head
}

/// Gives back one reference; the last one frees the folio, according to its entry.
fn put(frames: &Frames, head: FrameNumber) {
    let entry = frames.frame(head);
    if entry.count.put(1) {
        frames.free(head, entry.order());
    }
}

// ---- a reader without a hold, against a change ----

/// The four steps of the version protocol, shipped or broken.
struct Version {
    read_begin: fn(&Frame) -> Option<Stamp>,
    read_retry: fn(&Frame, Stamp) -> bool,
    change_begin: fn(&Frame),
    change_end: fn(&Frame),
}

const SHIPPED: Version = Version {
    read_begin: Frame::read_begin,
    read_retry: Frame::read_retry,
    change_begin: Frame::change_begin,
    change_end: Frame::change_end,
};

/// The mapping stands for a folio's first byte and the index for its last: a reader whose read is
/// valid must have read both from one use of the frame.
fn a_reader_sees_one_lifetime(version: &'static Version) {
    loom::model(move || {
        let frames = open();
        let head = live(&frames, 1, 1);
        let reader = thread::spawn({
            let frames = frames.clone();
            move || {
                let entry = frames.frame(head);
                let Some(stamp) = (version.read_begin)(entry) else { return };
                // As bytes are read: only the version orders them.
                let first = entry.mapping_relaxed();
                let last = entry.identity().index;
                if !(version.read_retry)(entry, stamp) {
                    assert_eq!(u64::from(first), last, "read half of one and half of another");
                }
            }
        });
        let entry = frames.frame(head);
        (version.change_begin)(entry);
        entry.set_identity_relaxed(2, 2);
        (version.change_end)(entry);
        reader.join().expect("the reader");
    });
}

#[test]
fn reading_while_it_changes() {
    a_reader_sees_one_lifetime(&SHIPPED);
}

#[test]
#[should_panic(expected = "read half of one and half of another")]
fn mutant_without_the_release_fence() {
    a_reader_sees_one_lifetime(&Version {
        change_begin: |frame| {
            let version = frame.version().load(Ordering::Relaxed);
            frame.version().store(version + 1, Ordering::Relaxed);
        },
        ..SHIPPED
    });
}

#[test]
#[should_panic(expected = "read half of one and half of another")]
fn mutant_without_the_acquire_fence() {
    a_reader_sees_one_lifetime(&Version {
        read_retry: |frame, stamp| frame.version().load(Ordering::Relaxed) != stamp.version(),
        ..SHIPPED
    });
}

#[test]
#[should_panic(expected = "read half of one and half of another")]
fn mutant_that_begins_with_a_relaxed_load() {
    a_reader_sees_one_lifetime(&Version {
        read_begin: |frame| {
            let version = frame.version().load(Ordering::Relaxed);
            (version & 1 == 0).then_some(Stamp::of(version))
        },
        ..SHIPPED
    });
}

#[test]
#[should_panic(expected = "read half of one and half of another")]
fn mutant_that_ends_with_a_relaxed_store() {
    a_reader_sees_one_lifetime(&Version {
        change_end: |frame| {
            let version = frame.version().load(Ordering::Relaxed);
            frame.version().store(version + 1, Ordering::Relaxed);
        },
        ..SHIPPED
    });
}

#[test]
#[should_panic(expected = "read half of one and half of another")]
fn mutant_that_never_makes_the_version_odd() {
    a_reader_sees_one_lifetime(&Version {
        change_begin: |_| fence(Ordering::Release),
        change_end: |frame| {
            let version = frame.version().load(Ordering::Relaxed);
            frame.version().store(version + 2, Ordering::Release);
        },
        ..SHIPPED
    });
}

// ---- a reader without a hold, against one thread that frees and another that takes ----

/// What the thread that takes the frame stores next, which a reader with the old version may load:
/// the new identity, the bytes, or how many of them may be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    Identity,
    Bytes,
    Span,
}

/// One thread evicts page 1 of a file, another fills its frame with page 2, and with `handed_on` a
/// third one stores the bytes, like a source's worker. The thread that made the version odd
/// executed a fence before it freed the frame; that fence orders its own stores only.
fn a_frame_changes_hands(stored: Stored, handed_on: bool) {
    loom::model(move || {
        let frames = open();
        let head = live(&frames, 1, 1);
        let address = NonNull::new(frames.address(head)).expect("not at 0");
        bytes::fill(address, 1);
        let evictor = thread::spawn({
            let frames = frames.clone();
            move || {
                frames.frame(head).change_begin();
                put(&frames, head);
            }
        });
        let filler = thread::spawn({
            let frames = frames.clone();
            move || {
                // Another frame is allocated first if the eviction is not over.
                let Some(taken) = frames.alloc(Order::MIN).filter(|&taken| taken == head) else {
                    return;
                };
                let store = {
                    let frames = frames.clone();
                    move || match stored {
                        Stored::Identity => frames.frame(taken).set_identity(identity(1, 2)),
                        Stored::Bytes => bytes::fill(address, 2),
                        Stored::Span => frames.frame(taken).set_file_bytes(2),
                    }
                };
                if handed_on {
                    thread::spawn(store).join().expect("the worker");
                } else {
                    store();
                }
            }
        });
        let entry = frames.frame(head);
        if let Some(stamp) = entry.read_begin() {
            let (start, span) = entry.readable();
            let mut word = [0; 8];
            // SAFETY: eight bytes of a frame.
            unsafe { copy_racing(word.as_mut_ptr(), address.as_ptr(), 8) };
            if !entry.read_retry(stamp) {
                let seen = (start.offset() >> PAGE_SHIFT, u64::from_ne_bytes(word), span as usize);
                assert_eq!(seen, (1, 1, PAGE_BYTES), "the next lifetime under the old version");
            }
        }
        evictor.join().expect("the evictor");
        filler.join().expect("the filler");
    });
}

#[test]
fn a_frame_that_changes_hands_keeps_its_version() {
    a_frame_changes_hands(Stored::Identity, false);
    a_frame_changes_hands(Stored::Bytes, false);
    a_frame_changes_hands(Stored::Bytes, true);
    a_frame_changes_hands(Stored::Span, true);
}

#[test]
#[should_panic(expected = "the next lifetime under the old version")]
fn mutant_that_takes_a_frame_without_a_fence() {
    mutant::with(Some(Mutant::HandOutUnfenced), || a_frame_changes_hands(Stored::Identity, false));
}

#[test]
#[should_panic(expected = "the next lifetime under the old version")]
fn mutant_that_stores_bytes_without_a_fence() {
    mutant::with(Some(Mutant::StoreUnfenced), || a_frame_changes_hands(Stored::Bytes, true));
}

#[test]
#[should_panic(expected = "the next lifetime under the old version")]
fn mutant_that_stores_the_span_without_a_fence() {
    mutant::with(Some(Mutant::SpanUnfenced), || a_frame_changes_hands(Stored::Span, true));
}

// ---- a counted look-up with a stale number, against the next use of the frame ----

/// The two steps that begin a frame's next use, shipped or broken.
struct Birth {
    hand_out: fn(&Frame),
    set_identity: fn(&Frame, Identity),
}

const SHIPPED_BIRTH: Birth =
    Birth { hand_out: |frame| frame.hand_out(Order::MIN), set_identity: Frame::set_identity };

/// Page 7 of file 1 is gone; its frame becomes page 5 of file 1. Another thread still looks up page
/// 7, and a third page 0 (what the index is before it is set). A thread that gets a reference and
/// finds "its" page was misled. In the end everything is free.
fn a_stale_lookup_finds_nothing(birth: &'static Birth, wanted: Identity, before: Identity) {
    loom::model(move || {
        let frames = open();
        let all_free = frames.stats();
        let head = live(&frames, before.mapping, before.index);
        frames.frame(head).change_begin();
        put(&frames, head);
        let lookup = thread::spawn({
            let frames = frames.clone();
            move || {
                let entry = frames.frame(head);
                if entry.count.try_get(1).is_ok() {
                    assert_ne!(entry.identity(), wanted, "found a page that is not there");
                    put(&frames, head);
                }
            }
        });
        let taken = frames.change(|lists, on| lists.take_at_most(on, Order::MIN, &FOR_ALL));
        assert_eq!(taken, Some((head, Order::MIN)), "last in, first out");
        let entry = frames.frame(head);
        (birth.hand_out)(entry);
        (birth.set_identity)(entry, identity(1, 5));
        put(&frames, head);
        lookup.join().expect("the lookup");
        assert_eq!(frames.stats(), all_free, "freed once, by whoever was last");
        assert!(frames.frame(head).count.try_get(1).is_err(), "free and still frozen");
    });
}

const PAGE_7: Identity = Identity { mapping: 1, index: 7, order: Order::MIN };
const PAGE_0: Identity = Identity { mapping: 1, index: 0, order: Order::MIN };
/// A page of another file whose index is what a look-up for [`PAGE_0`] wants.
const OTHER_0: Identity = Identity { mapping: 2, index: 0, order: Order::MIN };

#[test]
fn a_stale_lookup_of_the_frames_last_page() {
    a_stale_lookup_finds_nothing(&SHIPPED_BIRTH, PAGE_7, PAGE_7);
}

#[test]
fn a_stale_lookup_while_the_new_identity_is_given() {
    a_stale_lookup_finds_nothing(&SHIPPED_BIRTH, PAGE_0, OTHER_0);
}

#[test]
#[should_panic(expected = "found a page that is not there")]
fn mutant_that_keeps_the_old_identity() {
    let mutant = &Birth { hand_out: |frame| frame.count.hand_out(1), ..SHIPPED_BIRTH };
    a_stale_lookup_finds_nothing(mutant, PAGE_7, PAGE_7);
}

#[test]
#[should_panic(expected = "found a page that is not there")]
fn mutant_that_counts_before_it_forgets() {
    let mutant = &Birth {
        hand_out: |frame| {
            frame.count.hand_out(1);
            frame.forget_identity();
        },
        ..SHIPPED_BIRTH
    };
    a_stale_lookup_finds_nothing(mutant, PAGE_7, PAGE_7);
}

#[test]
#[should_panic(expected = "found a page that is not there")]
fn mutant_that_gives_the_mapping_before_the_index() {
    let mutant = &Birth {
        set_identity: |frame, identity| {
            frame.set_identity_relaxed(identity.mapping, identity.index);
        },
        ..SHIPPED_BIRTH
    };
    a_stale_lookup_finds_nothing(mutant, PAGE_0, OTHER_0);
}

// ---- flags, changed under different locks ----

fn flags_of_different_people(set: fn(&Frame, Flags)) {
    loom::model(move || {
        let frames = open();
        let head = live(&frames, 1, 1);
        let writer = thread::spawn({
            let frames = frames.clone();
            move || set(frames.frame(head), Flags::FAILED)
        });
        set(frames.frame(head), Flags::READAHEAD);
        writer.join().expect("the writer");
        let flags = frames.frame(head).flags();
        assert_eq!(flags, Flags::FAILED | Flags::READAHEAD, "a flag is lost");
    });
}

#[test]
fn flags_lose_no_update() {
    flags_of_different_people(|frame, flags| {
        frame.set_flags(flags);
    });
}

#[test]
#[should_panic(expected = "a flag is lost")]
fn mutant_that_loads_and_stores_flags() {
    flags_of_different_people(Frame::set_flags_by_store);
}

// ---- the guard bytes, which follow two flags of different threads ----

/// A folio of two pages with a readahead mark: one thread grants it, another clears the mark.
fn guard_bytes_follow_both_flags() {
    loom::model(|| {
        let frames = open();
        let order = Order::new(1).expect("two pages");
        let head = frames.alloc(order).expect("two frames");
        let entry = frames.frame(head);
        entry.set_identity(Identity { mapping: 1, index: 0, order });
        entry.change_end();
        entry.set_flags(Flags::READAHEAD);
        let granter = thread::spawn({
            let frames = frames.clone();
            move || frames.frame(head).grant()
        });
        entry.clear_flags(Flags::READAHEAD);
        granter.join().expect("the granter");
        assert_eq!(entry.holdable().1 as usize, order.bytes(), "granted, and asked for each time");
    });
}

#[test]
fn guard_bytes_are_those_of_both_flags() {
    guard_bytes_follow_both_flags();
}

#[test]
#[should_panic(expected = "granted, and asked for each time")]
fn mutant_that_stores_guard_bytes_once() {
    mutant::with(Some(Mutant::GuardBytesUnsettled), guard_bytes_follow_both_flags);
}

#[test]
#[should_panic(expected = "granted, and asked for each time")]
fn mutant_that_settles_guard_bytes_by_a_load() {
    mutant::with(Some(Mutant::GuardBytesLoaded), guard_bytes_follow_both_flags);
}
