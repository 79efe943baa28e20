//! Runs that become hollow, and the arena's again, around what is in use.

use super::*;

/// How many pages of the arena have memory, from the head of a folio of `order` on.
fn resident(frames: &Frames, head: FrameNumber, order: Order) -> usize {
    let mut pages = vec![0u8; order.frames() as usize];
    let at = frames.address(head).cast();
    // SAFETY: the range is the arena's, and the call writes one byte for each page.
    assert_eq!(unsafe { libc::mincore(at, order.bytes(), pages.as_mut_ptr()) }, 0);
    pages.iter().filter(|&&page| page & 1 == 1).count()
}

/// A run is taken back and hollow again while a hollow folio in it is in use. Returns whether the
/// arena got the rest of it, whether the system found memory for the folio's frames meanwhile, and
/// whether the run was hollow then.
fn around_what_is_in_use() -> (bool, bool, bool) {
    let frames = open(TEST_FRAMES);
    let fresh = frames.stats();
    frames.hollow_user_begins();
    assert!(frames.hollow_out_run());
    let run = frames.hollow_runs().next().expect("it was lent");
    let taken_back = || frames.take_free_in(run).expect("none is held").take_back();
    assert!(!taken_back(), "the last one was taken back");
    frames.hollow_user_ends();
    assert!(frames.hollow_out_run());
    let run = frames.hollow_runs().next().expect("it was lent");
    let (used, _) = frames.alloc_hollow(order(2)).expect("a run is free");
    assert_eq!(used.align_down(Order::MAX), run);
    let taken_back = frames.take_free_in(run).expect("none is held").take_back();
    let mut all = Vec::new();
    while let Some((head, order)) = frames.alloc_at_most(Order::MAX) {
        // SAFETY: the folio is this thread's.
        unsafe { frames.address(head).write_bytes(7, order.bytes()) };
        all.push((head, order));
    }
    let has_memory = resident(&frames, used, order(2)) > 0;
    for (head, order) in all {
        put_and_free(&frames, head, order);
    }
    let before = frames.stats();
    assert_eq!(before.free_frames + before.free_hollow, fresh.free_frames - 4);
    let lent = taken_back && frames.take_free_in(run).expect("none is held").hollow_out_rest();
    if lent {
        assert_eq!(before.free_frames, frames.free_frames() + 508);
        let (in_it, _) = frames.alloc_hollow(Order::MIN).expect("the run is lent");
        assert_eq!(in_it.align_down(Order::MAX), run);
        let is_given_back = resident(&frames, run, Order::MAX) == 0;
        assert!(is_given_back || has_memory, "the system keeps memory");
        put_and_free(&frames, in_it, Order::MIN);
    }
    put_and_free(&frames, used, order(2));
    assert_eq!((frames.stats().free_frames, frames.hollow_frames()), (fresh.free_frames, 0));
    (taken_back, has_memory, lent)
}

/// Whether the system finds memory for 2 MiB where one page is touched.
fn huge_pages_come() -> bool {
    let frames = open(TEST_FRAMES);
    let head = frames.alloc(Order::MIN).expect("all is free");
    resident(&frames, head.align_down(Order::MAX), Order::MAX) > 1
}

#[test]
fn a_hollow_folio_in_use_keeps_its_frames_and_not_their_run() {
    assert_eq!(around_what_is_in_use(), (true, false, true));
    let wrong = mutant::with(Some(Mutant::UsedKeepRuns), around_what_is_in_use);
    assert!(!wrong.0, "the mutant does nothing");
    let wrong = mutant::with(Some(Mutant::HugeBesideHollow), around_what_is_in_use);
    assert_eq!(wrong.1, huge_pages_come(), "the mutant does nothing");
}

/// Whether a run is hollow in which there is an ordinary folio, and whether it has its memory then.
fn is_lent_with_bytes() -> (bool, bool) {
    let frames = open(TEST_FRAMES);
    let used = frames.alloc_of(Order::MIN, Mobility::Movable).expect("all is free");
    let run = used.align_down(Order::MAX);
    // SAFETY: nobody has the others.
    unsafe { frames.address(run).write_bytes(7, Order::MAX.bytes()) };
    let is_lent = frames.take_free_in(run).expect("none is held").hollow_out_rest();
    (is_lent, resident(&frames, run, Order::MAX) == Order::MAX.frames() as usize)
}

#[test]
fn a_run_with_bytes_in_it_does_not_become_hollow() {
    assert_eq!(is_lent_with_bytes(), (false, true));
    let wrong = mutant::with(Some(Mutant::HollowOutUsed), is_lent_with_bytes);
    assert_eq!(wrong, (true, false), "the mutant does nothing");
}
