//! Mirrors (`mirror/mod.rs`, `lend.rs`): pages that mapped accesses want, against eviction,
//! invalidation, guards, moves to the arena, and runs that are taken back. The memfd and the
//! userfaultfd are real; what the kernel does at an access is `Maps::access`: it takes what is
//! there, and asks for what is not.
//!
//! | promise | seen by |
//! |---|---|
//! | what is there are the bytes of the page, of one read | each access |
//! | nobody copies to the place of another, or takes its bytes out | guards, whose bytes stay; accesses, which never see an older read of a page after a newer one |
//! | what the file does not have any more is not there, unless somebody uses it | accesses after an invalidation |
//! | there is one home: what is not mirrored is not there, and all is free in the end | the end |

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
// Not from `crate::base::sync`: what the model remembers is no part of what it explores.
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use super::{Fixture, Plan, SMALL, Stores, draw, holds_and_catches, park, spawn};
use crate::base::mutant::Mutant;
use crate::frames::PAGE_BYTES;
use crate::map::{bring, lend, lent};
use crate::mapped::mirror::Mirror;
use crate::mapped::task::{Rests, Waiter, now};
use crate::pages::core::Held;
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::pages::outside::Outside;
use crate::pages::reclaim;

const PAGES: u64 = 3;

/// Eight runs of eight frames, the first of which has the table and the index nodes: whatever is
/// held, one of the others can be lent.
const PLAN: Plan = Plan { frames: 64, files: 1, pages: PAGES, device: true, ..SMALL };

/// What a thread does in a step, one of these each time.
type Step = fn(&Maps);

/// A cache, a file of which is mapped.
struct Maps {
    fixture: Arc<Fixture>,
    /// The oldest generation that an access may see that begins now.
    settled: AtomicU64,
    /// The newest that was seen of each page.
    seen: [AtomicU64; PAGES as usize],
}

impl Maps {
    fn new(plan: Plan) -> Self {
        zeros_for_what_is_not_there();
        let (settled, seen) = (AtomicU64::new(0), [const { AtomicU64::new(0) }; PAGES as usize]);
        Maps { fixture: Fixture::new(plan), settled, seen }
    }

    fn mirror(&self) -> &Mirror {
        lend::of(&self.fixture.files[0]).expect("the system gives a memfd")
    }

    fn is_there(&self, page: u64) -> bool {
        self.mirror().shown(page, |_, _| ()).is_some()
    }

    /// What an access does: the kernel maps what is there. Otherwise the page is brought, by the
    /// thread or by a task, and the access is made again.
    fn access(&self, page: u64, as_task: bool) {
        let file = &self.fixture.files[0];
        let settled = self.settled.load(Ordering::Relaxed);
        // Ends: each turn follows a drop or an eviction by another thread.
        loop {
            let shown = self.mirror().shown(page, |bytes, is_left_over| {
                let seen = generation(bytes);
                let before = self.seen[page as usize].fetch_max(seen, Ordering::Relaxed);
                (bytes.to_vec(), is_left_over, seen, before)
            });
            if let Some((bytes, is_left_over, seen, before)) = shown {
                self.fixture.check_bytes(0, page, &bytes);
                assert!(seen >= before, "page {page} is of {seen} after {before}");
                assert!(
                    seen >= settled || is_left_over,
                    "page {page} is of {seen}, and was dropped at {settled}"
                );
                return;
            }
            let held = if as_task { put_as_task(file, page) } else { put(file, page) };
            // Otherwise an older version may just have gone.
            let is_there = held.is_none() || self.is_there(page);
            assert!(is_there, "page {page} is mirrored, and not there");
            drop(held);
        }
    }

    /// Holds a page, whose bytes stay as they are.
    fn hold(&self, page: u64) {
        let guard = self.fixture.files[0].get(page).expect("the source does not fail");
        self.fixture.check_bytes(0, page, &guard);
        let first = generation(&guard);
        for _ in 0..2 {
            if draw(2) == 0 {
                self.access(page, false);
            }
            let is_hollow = guard.deref().as_ptr() == self.mirror().address(page).cast_const();
            let is_there = !is_hollow || self.is_there(page);
            assert!(is_there, "a page that somebody holds was taken out");
            self.fixture.check_bytes(0, page, &guard);
            assert_eq!(generation(&guard), first, "a page that somebody holds changed");
        }
    }

    /// The file is changed, and its pages dropped.
    fn invalidate(&self) {
        let now =
            self.fixture.sources[0].generation.fetch_add(1, crate::base::sync::Ordering::SeqCst)
                + 1;
        let mapping = &self.fixture.files[0].mapping;
        freeze::drop_clean(&self.fixture.core, mapping, 0..PAGES);
        self.fixture.core.settle(mapping, &(0..PAGES));
        self.settled.fetch_max(now, Ordering::Relaxed);
    }

    /// Nobody uses anything any more.
    fn ends(&self) {
        let (core, file) = (&self.fixture.core, &self.fixture.files[0]);
        freeze::collect(core);
        let mirror = self.mirror();
        // Nor does it help to be kept for an access, if a folio has left its file.
        assert!(mirror.is_free(), "a place has an owner, and nobody uses it");
        core.let_go_of_recent(|_| true);
        for page in 0..PAGES {
            let held = core.hold(&file.mapping, page);
            let is_hollow = held.as_ref().is_some_and(|held| held.frame().is_hollow());
            drop(held);
            let is_there = self.is_there(page);
            assert_eq!(is_there, is_hollow, "page {page} is in the mirror, or in the index alone");
            self.access(page, false);
        }
        core.let_go_of_recent(|_| true);
        self.fixture.ends();
        assert_eq!(mirror.bytes_in_memory(), 0, "bytes are left in the mirror");
    }
}

/// Of which generation the bytes of a page are.
fn generation(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes")) >> 16 & 0xFFFF
}

/// Where a mutant makes the cache read a page that is not there, it shall read zeros, and not end
/// the process.
fn zeros_for_what_is_not_there() {
    extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel's, for this call.
        let info = unsafe { &*info };
        // SAFETY: a SIGBUS of an access has an address.
        let address = unsafe { info.si_addr() };
        let page = address.wrapping_byte_sub(address.addr() % PAGE_BYTES);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: a page of a model's mirror, of which nobody reads anything else any more.
        unsafe { libc::mmap(page, PAGE_BYTES, libc::PROT_READ, flags, -1, 0) };
    }
    // SAFETY: all zeros are an action without flags, and with no signal blocked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = (on_sigbus as *const ()).expose_provenance();
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler is this function's, and makes one system call.
    let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    assert_eq!(done, 0, "SIGBUS can be handled");
}

fn put(file: &Handle, page: u64) -> Option<Held<'_>> {
    now(bring::put(file, page, Waiter::Thread)).expect("there is memory")
}

/// As the task of a thread that has no other.
fn put_as_task(file: &Handle, page: u64) -> Option<Held<'_>> {
    let rests = Rests::default();
    let mut task = pin!(bring::put(file, page, Waiter::Task(&rests)));
    let ended =
        park::until(None, |waker| match task.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(held) => Some(held.expect("there is memory")),
            Poll::Pending => None,
        });
    ended.expect("it is polled until it ends")
}

fn access_any(maps: &Maps) {
    maps.access(draw(PAGES), false);
}

fn access_as_task(maps: &Maps) {
    maps.access(draw(PAGES), true);
}

fn hold_any(maps: &Maps) {
    maps.hold(draw(PAGES));
}

fn evict(maps: &Maps) {
    // What is kept for accesses, too.
    maps.fixture.core.let_go_of_recent(|_| true);
    reclaim::evict(&maps.fixture.core, 2);
}

/// As a pin does.
fn move_out(maps: &Maps) {
    maps.fixture.core.let_go_of_recent(|_| true);
    let page = draw(PAGES);
    reclaim::migrate_range(&maps.fixture.core, &maps.fixture.files[0].mapping, page..page + 1);
}

fn take_back(maps: &Maps) {
    let core = &maps.fixture.core;
    let run = core.frames.hollow_runs().next();
    run.map(|run| lent::take_back(core, run));
}

/// Runs three threads, each of which does a few of the steps.
fn run(plan: Plan, steps: &'static [Step]) {
    let maps = Arc::new(Maps::new(plan));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let maps = maps.clone();
            spawn(move || (0..3).for_each(|_| steps[draw(steps.len() as u64) as usize](&maps)))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread of the model");
    }
    maps.ends();
}

/// Lenders beside those who drop.
fn dropped() {
    run(PLAN, &[access_any, access_as_task, Maps::invalidate, hold_any]);
}

#[test]
fn what_is_dropped_leaves_the_mirror_with_its_last_user() {
    let mutants = [
        (Mutant::ClaimBlindly, ""),
        (Mutant::LendBlindly, ""),
        (Mutant::LendGone, ""),
        (Mutant::LenderKeepsPages, ""),
        (Mutant::LeftoverForgotten, ""),
        (Mutant::LeftoverDisownsFirst, ""),
        (Mutant::RecentStays, ""),
        (Mutant::RecentUnchecked, ""),
        (Mutant::SettlesAtOnce, "was dropped at"),
    ];
    holds_and_catches(Stores::AtOnce, dropped, &mutants);
}

/// Lenders beside those who evict, or want pages in the arena.
fn evicted() {
    run(PLAN, &[access_any, access_as_task, evict, hold_any, move_out]);
}

#[test]
fn what_is_evicted_or_moved_leaves_the_mirror() {
    let mutants = [
        (Mutant::ClaimBlindly, ""),
        (Mutant::LendBlindly, ""),
        (Mutant::EvictKeepsPages, "is in the mirror"),
        (Mutant::LeavesUnowned, ""),
        (Mutant::MoveKeepsPages, ""),
        (Mutant::FreezeAnyCount, ""),
    ];
    holds_and_catches(Stores::AtOnce, evicted, &mutants);
}

/// All steps of a mirror's pages, with folios of up to two pages, and hollow runs that are taken
/// back.
fn all() {
    run(
        Plan { order_max: 1, ..PLAN },
        &[access_any, access_as_task, evict, hold_any, move_out, take_back, Maps::invalidate],
    );
}

#[test]
fn mirrors_hold_up_beside_all_that_happens_to_folios() {
    let mutants = [(Mutant::ClaimBlindly, ""), (Mutant::LeavesUnowned, ""), (Mutant::LendGone, "")];
    holds_and_catches(Stores::AtOnce, all, &mutants);
}
