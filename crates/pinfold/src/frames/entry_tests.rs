//! What one entry does, by itself. What holds between threads is in `model`.

use super::super::uses::USES_MAX;
use super::*;

const ID: Identity = Identity { mapping: 3, index: 1 << 50, order: Order(4) };

/// An entry in the state "filling".
fn filling(order: Order) -> Frame {
    let frame = Frame::new();
    frame.hand_out(order);
    frame
}

/// An entry in the state "live".
fn live() -> Frame {
    let frame = filling(ID.order);
    frame.set_identity(ID);
    frame.change_end();
    frame
}

#[test]
fn a_new_entry_is_not_zero_but_frozen_and_odd() {
    let frame = Frame::new();
    assert!(frame.count.is_frozen() && frame.is_changing());
    assert!(frame.count.try_get(1).is_err());
    assert_eq!(frame.read_begin(), None);
    assert_eq!(frame.identity().mapping, MAPPING_NONE);
    assert_eq!((frame.prev(), frame.next(), frame.block()), (None, None, None));
}

/// Why entries are written before they can be reached, instead of left as the system gives them.
#[test]
fn a_zeroed_count_would_be_taken_for_a_folio() {
    let zeroed: Count = Count::on(AtomicU64::new(0));
    assert!(zeroed.try_get(1).is_ok());
}

#[test]
fn handed_out_is_counted_once_and_says_nothing_of_its_past() {
    let frame = live();
    frame.set_flags(Flags::all());
    frame.set_uses(USES_MAX);
    frame.change_begin();
    assert!(frame.count.put(1));
    frame.hand_out(Order(2));
    assert_eq!(frame.count.count(), 1);
    assert!(frame.is_changing());
    assert_eq!((frame.identity().mapping, frame.order()), (MAPPING_NONE, Order(2)));
    assert_eq!((frame.flags(), frame.uses()), (Flags::empty(), 0));
}

#[test]
fn a_stamp_is_good_until_a_change_and_never_again() {
    let frame = live();
    let stamp = frame.read_begin().expect("live");
    assert_eq!(frame.identity(), ID);
    assert!(!frame.read_retry(stamp));
    frame.change_begin();
    assert!(frame.read_retry(stamp));
    assert_eq!(frame.read_begin(), None);
    frame.change_end();
    assert!(frame.read_retry(stamp), "the change is over, the stamp is still old");
    assert_ne!(frame.read_begin(), Some(stamp));
}

#[test]
fn a_forgotten_identity_leaves_the_order_to_free_by() {
    let frame = live();
    frame.change_begin();
    frame.forget_identity();
    assert_eq!((frame.identity().mapping, frame.order()), (MAPPING_NONE, ID.order));
}

#[test]
fn flags_tell_who_changed_them() {
    let frame = live();
    assert_eq!(frame.set_flags(Flags::READAHEAD), Flags::empty());
    assert_eq!(frame.set_flags(Flags::FAILED), Flags::READAHEAD);
    assert_eq!(frame.clear_flags(Flags::READAHEAD), Flags::READAHEAD | Flags::FAILED);
    assert_eq!(frame.flags(), Flags::FAILED);
}

#[test]
fn uses_stop_at_their_maximum() {
    let frame = live();
    frame.set_uses(0);
    for expected in [1, 2, 3, 3] {
        assert!(!frame.is_used_most() || expected == 3);
        frame.note_use(true, 0, 1);
        frame.note_use(false, 0, 1);
        assert_eq!(frame.uses(), expected);
    }
    frame.set_uses(200);
    assert_eq!(frame.uses(), USES_MAX);
}

#[test]
fn the_first_read_is_what_it_was_brought_for() {
    let frame = live();
    assert_eq!(frame.unread_pages(0..1), 1);
    frame.note_use(true, 0, 1);
    assert_eq!(frame.unread_pages(0..1), 0);
    frame.note_use(false, 0, 1);
    assert_eq!((frame.uses(), frame.is_partly_used()), (0, false));
    frame.note_use(true, 0, 1);
    assert_eq!(frame.uses(), 1);
}

fn brought(order: Order) -> Frame {
    let frame = Frame::new();
    frame.hand_out(order);
    frame.set_fresh();
    frame
}

#[test]
fn what_is_read_of_a_large_folio_is_seen_at_the_first_read() {
    let frame = brought(Order(4));
    frame.note_use(true, 0, 1);
    assert_eq!(frame.unread_pages(0..16), 15);
    let blind = mutant::with(Some(Mutant::PartIsWhole), || frame.unread_pages(0..16));
    assert_eq!(blind, 0, "the mutant does nothing");
    for order in Order::all().skip(2) {
        let pages = order.frames();
        for (stride, most) in [(2, 0.75_f64), (4, 0.5), (8, 0.3)] {
            let frame = brought(order);
            assert_eq!(frame.unread_pages(1..pages), pages - 1);
            let read = || (0..pages).step_by(stride);
            read().for_each(|page| frame.note_use(true, (page as usize) << PAGE_SHIFT, 1));
            let used = 1.0 - f64::from(frame.unread_pages(0..pages)) / f64::from(pages);
            let expected = read().count() as f64 / f64::from(pages);
            assert!(
                (expected / 2.0..=most.max(expected)).contains(&used),
                "{order:?} {stride} {used}"
            );
            assert_eq!(frame.uses(), 0, "each page was read once");
        }
        // By a thread that reads other folios in between.
        let frame = brought(order);
        (0..pages).for_each(|page| frame.note_use(true, (page as usize) << PAGE_SHIFT, 1));
        assert_eq!(frame.unread_pages(0..pages), 0, "{order:?}");
        // What is used from now on is known by its parts.
        let frame = brought(order);
        frame.note_use(true, 0, order.bytes());
        frame.note_use(true, 0, 1);
        let part = Frame::part_order(order);
        assert_eq!((frame.uses(), frame.is_partly_used()), (1, true), "{order:?}");
        assert!(frame.is_piece_used(0, part) && !frame.is_piece_used(1, part));
        assert_eq!(frame.unread_pages(0..pages), 0);
    }
}

#[test]
fn uses_of_a_large_folio_are_told_apart_until_they_are_everywhere() {
    for order in Order::all().skip(1) {
        let frame = Frame::new();
        frame.hand_out(order);
        frame.set_uses(0);
        for _ in 0..USES_MAX {
            frame.note_use(true, 0, 1);
        }
        let part = Frame::part_order(order);
        let parts = order.frames() / part.frames();
        assert!(frame.is_partly_used() && !frame.is_used_most(), "{order:?}");
        assert!(frame.is_piece_used(0, part));
        assert!((1..parts).all(|n| !frame.is_piece_used(n, part)));
        frame.note_use(false, order.bytes() - part.bytes() - 1, 2);
        let used = (0..parts).filter(|&n| frame.is_piece_used(n, part));
        let last = [0, parts.saturating_sub(2), parts - 1];
        assert!(used.eq(last.into_iter().collect::<std::collections::BTreeSet<_>>()), "{order:?}");
        frame.note_use(false, 0, order.bytes());
        assert!(!frame.is_partly_used() && frame.is_used_most(), "{order:?}");
        frame.set_uses(2);
        assert!(!frame.is_partly_used(), "nothing is known of its parts");
    }
}

#[test]
fn links_lead_to_any_frame_or_nowhere() {
    let frame = Frame::new();
    for to in [Some(FrameNumber(0)), Some(FrameNumber((1 << 30) - 1)), None] {
        frame.set_prev(to);
        frame.set_next(to);
        assert_eq!((frame.prev(), frame.next()), (to, to));
    }
}

/// Without a reference one may read the whole folio, or nothing of it while it has the mark.
#[test]
fn the_span_goes_with_the_mark_and_the_order() {
    let frame = filling(Order(2));
    frame.set_identity(ID);
    let whole = ID.order.bytes() as u32;
    assert_eq!(frame.readable(), (Global::of(ID.mapping, ID.index << PAGE_SHIFT), whole));
    frame.set_flags(Flags::READAHEAD);
    assert_eq!(frame.readable().1, 0);
    frame.set_identity(ID);
    assert_eq!(frame.readable().1, 0, "a folio that moves keeps its mark");
    frame.clear_flags(Flags::FAILED);
    assert_eq!(frame.readable().1, 0);
    frame.clear_flags(Flags::READAHEAD);
    assert_eq!(frame.readable().1, whole);
}

#[test]
fn the_fields_are_where_the_comments_say() {
    use std::mem::offset_of;
    assert_eq!(offset_of!(Frame, count), 0);
    assert_eq!(offset_of!(Frame, version), 8);
    assert_eq!(offset_of!(Frame, start), 16);
    assert_eq!(offset_of!(Frame, mapping), 24);
    assert_eq!(offset_of!(Frame, prev), 28);
    assert_eq!(offset_of!(Frame, next), 32);
    assert_eq!(offset_of!(Frame, flags), 36);
    assert_eq!(offset_of!(Frame, order), 40);
    assert_eq!(offset_of!(Frame, uses), 41);
    assert_eq!(offset_of!(Frame, block), 42);
    assert_eq!(offset_of!(Frame, place), 43);
    assert_eq!(offset_of!(Frame, span_bytes), 44);
}

#[test]
#[should_panic(expected = "two changes of one folio at once")]
fn a_change_within_a_change_panics() {
    let frame = live();
    frame.change_begin();
    frame.change_begin();
}

#[test]
#[should_panic(expected = "no change of this folio to end")]
fn the_end_of_no_change_panics() {
    live().change_end();
}

#[test]
#[should_panic(expected = "identity given while readers believe it")]
fn an_identity_for_a_live_folio_panics() {
    live().set_identity(ID);
}

#[test]
#[should_panic(expected = "identity taken while readers believe it")]
fn an_identity_taken_from_a_live_folio_panics() {
    live().forget_identity();
}

#[test]
#[should_panic(expected = "somebody counts was about to be handed out")]
fn handing_out_a_counted_frame_panics() {
    filling(Order::MIN).hand_out(Order::MIN);
}

#[test]
#[should_panic(expected = "folio handed out while readers believe it")]
fn handing_out_an_even_frame_panics() {
    let frame = live();
    assert!(frame.count.put(1));
    frame.hand_out(Order::MIN);
}

/// Each pair of a byte and a folio's start, near and far, of the same file and of others.
#[test]
fn a_byte_is_found_in_its_own_folio_alone() {
    let end = 1 << GLOBAL_SHIFT;
    let span = Order::MAX.bytes() as u64;
    let last = (i64::MAX as u64 + 1) - span;
    let offsets = [0, span, end - span, end, end + span, 2 * end, last - span, last];
    let files = [0, 1, 2, MAPPINGS_END - 1];
    let all = || files.into_iter().flat_map(|file| offsets.map(|offset| (file, offset)));
    for (file, start) in all() {
        for (reader, offset) in all() {
            for at in [0, 1, span - 1] {
                let found = Global::of(reader, offset + at).from(Global::of(file, start));
                let is_far = start >= end && offset >= end;
                // Far words do not say of which file they are.
                let is_its = offset == start && (reader == file || is_far);
                assert_eq!(found < span, is_its, "{reader}, {offset} + {at} in {file}, {start}");
                assert!(!is_its || found == at);
            }
        }
        assert_eq!(Global::of(file, start).offset(), start);
        assert_eq!(Global::near(file, start).is_some(), start < end);
    }
}
