//! The entry's protocols in every interleaving that loom can tell apart, each beside twins with
//! one step broken, which the same test has to catch.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p pinfold --lib frame::model`

use std::sync::Arc;

use loom::thread;

use super::entry::Stamp;
use super::*;
use crate::flaw::{self, Flaw};
use crate::sync::{Ordering, fence};

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

/// Gives up one reference; the last to do so frees the folio, by what the folio says.
fn put(frames: &Frames, head: FrameNumber) {
    let entry = frames.frame(head);
    if entry.count.put(1) {
        frames.free(head, entry.order());
    }
}

// ---- a reader that holds nothing, against a change ----

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

/// The mapping stands for the first byte of a folio and the index for the last: a reader that
/// is told it read one thing must have read both of one lifetime.
fn a_reader_sees_one_lifetime(version: &'static Version) {
    loom::model(move || {
        let frames = open();
        let head = live(&frames, 1, 1);
        let reader = thread::spawn({
            let frames = frames.clone();
            move || {
                let entry = frames.frame(head);
                let Some(stamp) = (version.read_begin)(entry) else { return };
                // As bytes are read: no order among them but what the version gives.
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
fn twin_without_the_release_fence() {
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
fn twin_without_the_acquire_fence() {
    a_reader_sees_one_lifetime(&Version {
        read_retry: |frame, stamp| frame.version().load(Ordering::Relaxed) != stamp.version(),
        ..SHIPPED
    });
}

#[test]
#[should_panic(expected = "read half of one and half of another")]
fn twin_that_begins_with_a_relaxed_load() {
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
fn twin_that_ends_with_a_relaxed_store() {
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
fn twin_that_never_makes_the_version_odd() {
    a_reader_sees_one_lifetime(&Version {
        change_begin: |_| fence(Ordering::Release),
        change_end: |frame| {
            let version = frame.version().load(Ordering::Relaxed);
            frame.version().store(version + 2, Ordering::Release);
        },
        ..SHIPPED
    });
}

// ---- a reader that holds nothing, against one thread that frees and another that takes ----

/// What the thread that takes the frame stores next, which a reader that still has the old version
/// may load: the new identity, the bytes, or how many of them may be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    Identity,
    Bytes,
    Span,
}

/// Page 1 of a file is evicted by one thread, its frame filled with page 2 by another, which hands
/// the fill on to a third if `handed_on`, as to a source's worker. The thread that made the version
/// odd fenced before it freed the frame: its fence orders its own stores and nobody else's.
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
                // Another frame comes first where the eviction is not over.
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
            let (_, start, span) = entry.readable();
            let mut word = [0; 8];
            // SAFETY: eight bytes of a frame.
            unsafe { copy_racing(word.as_mut_ptr(), address.as_ptr(), 8) };
            if !entry.read_retry(stamp) {
                let seen = (start >> PAGE_SHIFT, u64::from_ne_bytes(word), span as usize);
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
fn twin_that_takes_a_frame_without_a_fence() {
    flaw::with(Some(Flaw::HandOutUnfenced), || a_frame_changes_hands(Stored::Identity, false));
}

#[test]
#[should_panic(expected = "the next lifetime under the old version")]
fn twin_that_stores_bytes_without_a_fence() {
    flaw::with(Some(Flaw::StoreUnfenced), || a_frame_changes_hands(Stored::Bytes, true));
}

#[test]
#[should_panic(expected = "the next lifetime under the old version")]
fn twin_that_stores_the_span_without_a_fence() {
    flaw::with(Some(Flaw::SpanUnfenced), || a_frame_changes_hands(Stored::Span, true));
}

// ---- a counted lookup with a stale number, against the next lifetime of the frame ----

/// The two steps that give a folio its new life, shipped or broken.
struct Birth {
    hand_out: fn(&Frame),
    set_identity: fn(&Frame, Identity),
}

const SHIPPED_BIRTH: Birth =
    Birth { hand_out: |frame| frame.hand_out(Order::MIN), set_identity: Frame::set_identity };

/// Page 7 of file 1 is gone; its frame becomes page 5 of file 1, and another thread still looks
/// for page 7, and a third for page 0 (what the index is when nobody has set it yet).
/// Whoever gets a reference and finds "its" page has been lied to. In the end all is free.
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
        assert_eq!(frames.buddy.take(&frames.table, Order::MIN), Some(head), "last in, first out");
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
/// A page of another file whose index is what a lookup for [`PAGE_0`] wants.
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
fn twin_that_keeps_the_old_identity() {
    let twin = &Birth { hand_out: |frame| frame.count.set(1), ..SHIPPED_BIRTH };
    a_stale_lookup_finds_nothing(twin, PAGE_7, PAGE_7);
}

#[test]
#[should_panic(expected = "found a page that is not there")]
fn twin_that_counts_before_it_forgets() {
    let twin = &Birth {
        hand_out: |frame| {
            frame.count.set(1);
            frame.forget_identity();
        },
        ..SHIPPED_BIRTH
    };
    a_stale_lookup_finds_nothing(twin, PAGE_7, PAGE_7);
}

#[test]
#[should_panic(expected = "found a page that is not there")]
fn twin_that_gives_the_mapping_before_the_index() {
    let twin = &Birth {
        set_identity: |frame, identity| {
            frame.set_identity_relaxed(identity.mapping, identity.index);
        },
        ..SHIPPED_BIRTH
    };
    a_stale_lookup_finds_nothing(twin, PAGE_0, OTHER_0);
}

// ---- flags, changed by people who hold different locks ----

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
fn twin_that_loads_and_stores_flags() {
    flags_of_different_people(Frame::set_flags_by_store);
}
