//! Bringing one page for a future. If it is on its way, the future leaves its waker with the folio
//! (`wait`). If there is no memory, it queues (`pressure`). It fills by requests (`fill::begin`).
//!
//! | state | holds | ends when |
//! |---|---|---|
//! | `BringWait::Look` | nothing | it is polled |
//! | `BringWait::Arrival` | a reference to a folio on its way | the fill ends, in whatever way |
//! | `BringWait::Turn` | a turn in the queue | memory or a worker is free, or a fill or a claim ended |
//!
//! While it reads, a future also has a claim to the pages that it brings; the claims of a file's
//! futures are limited (`Pressure::claim`). A future that is refused keeps its turn.

use std::task::{Poll, Waker};

use crate::access::found::ReadaheadMark;
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::base::wait::Ticket;
use crate::error::{Cause, Error, Result};
use crate::frames::{Order, PAGE_BYTES, PAGE_SHIFT};
use crate::pages::core::Held;
use crate::pages::fill::{self, Begun, WantedPages};
use crate::pages::handle::Handle;
use crate::pages::pressure::{Claim, Refused, Turn};
use crate::pages::reclaim::{self, Patience};
use crate::pages::stream::Plan;

pub(super) struct Bring<'f> {
    handle: &'f Handle,
    pub(super) page: u64,
    /// From the start of the page on.
    bytes: usize,
    pub(super) wait: BringWait<'f>,
    /// The page was not there at first.
    missed: bool,
    claimed: Claim,
    /// Its batch has a claim.
    pub(super) admitted: bool,
    /// It queues for memory: the progress seen before.
    short: Option<u64>,
    /// Also while it tries.
    turn: Option<Turn>,
    /// What to read where its page is absent, if that is settled.
    pub(super) plan: Option<Plan>,
    wanted: WantedPages,
    patience: Option<Patience>,
}

pub(super) enum BringWait<'f> {
    Look,
    Arrival(Held<'f>, Ticket),
    Turn,
}

impl<'f> Bring<'f> {
    pub(super) fn new(handle: &'f Handle, page: u64, bytes: usize) -> Self {
        Bring {
            handle,
            page,
            bytes,
            wait: BringWait::Look,
            missed: false,
            claimed: Claim::default(),
            admitted: false,
            short: None,
            turn: None,
            plan: None,
            wanted: WantedPages::new(page, bytes),
            patience: None,
        }
    }

    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<Result<Held<'f>>> {
        let polled = self.poll_on(waker);
        if polled.is_ready() {
            self.end();
        }
        polled
    }

    fn poll_on(&mut self, waker: &Waker) -> Poll<Result<Held<'f>>> {
        let (handle, core) = (self.handle, &*self.handle.core);
        let file = handle.mapping.id;
        if core.owner.is_here() {
            core.pressure.renew(file, &mut self.claimed);
        }
        // Ends: each turn follows what another thread did. A future's own attempt is no progress.
        // After a fill that failed it reads alone, and then returns the error.
        loop {
            if !matches!(self.wait, BringWait::Look) {
                core.check_owner()?;
            }
            match std::mem::replace(&mut self.wait, BringWait::Look) {
                BringWait::Look => {}
                BringWait::Arrival(held, ticket) => {
                    let frame = held.frame();
                    let over = || !fill::is_on_its_way(frame);
                    if !core.waiters.poll(held.head().0, ticket, waker, over) {
                        self.wait = BringWait::Arrival(held, ticket);
                        return Poll::Pending;
                    }
                    match fill::arrived(core, held) {
                        Ok(Some(held)) => return Poll::Ready(Ok(self.met(held))),
                        Ok(None) => {}
                        Err(error) => {
                            self.plan = Some(self.wanted.alone(handle, &error).ok_or(error)?);
                        }
                    }
                }
                BringWait::Turn => {
                    if self.turn.is_some_and(|turn| core.pressure.is_queued(file, turn, waker)) {
                        self.wait = BringWait::Turn;
                        return Poll::Pending;
                    }
                }
            }
            let first = !std::mem::replace(&mut self.missed, true);
            let held = core.hold(&handle.mapping, self.page);
            let held = match held {
                Some(held) if first && held.is_readable_here() => {
                    core.counters.count(Event::CountedHit);
                    return Poll::Ready(Ok(self.met(held)));
                }
                held => held,
            };
            core.check_owner()?;
            if let Some(held) = held {
                // What others read needs no claim.
                self.wait_for(held);
                continue;
            }
            let (claimed, seen) = self.claim();
            let begun = match claimed {
                Ok(()) => fill::begin(handle, self.page, self.bytes, &mut self.plan)?,
                Err(_) => Begun::NoMemory,
            };
            let why = match begun {
                Begun::Held(held) => {
                    self.wait_for(held);
                    continue;
                }
                Begun::NoWorker => Refused::OwnFile,
                Begun::NoMemory => claimed.err().unwrap_or_else(|| fill::why_none(handle)),
            };
            let patience = self.patience.get_or_insert_with(|| Patience::new(core));
            let given_up = patience.is_over_for(core, &handle.mapping, why);
            if given_up {
                return Poll::Ready(Err(self.given_up(&begun, why)));
            }
            let claimed = self.claimed;
            let queued = core.pressure.queue((file, self.turn), (why, seen), claimed, waker);
            // Cloning the waker may panic.
            self.claimed = Claim::default();
            if let Some(turn) = queued {
                self.turn = Some(turn);
                self.wait = BringWait::Turn;
                self.short = (why == Refused::NoMemory).then_some(seen);
                return Poll::Pending;
            }
        }
    }

    /// On its way, or just arrived.
    fn wait_for(&mut self, held: Held<'f>) {
        if fill::is_on_its_way(held.frame()) {
            self.handle.core.counters.count(Event::Wait);
        }
        self.wait = BringWait::Arrival(held, Ticket::new());
        self.patience = None;
        if let Some(turn) = self.turn.take() {
            self.handle.core.pressure.served(self.handle.mapping.id, turn);
        }
    }

    /// Also with the progress seen before.
    fn claim(&mut self) -> (std::result::Result<(), Refused>, u64) {
        let pages = self.bytes.div_ceil(PAGE_BYTES).min(Order::MAX.frames() as usize) as u32;
        let Handle { core, mapping, .. } = self.handle;
        if self.admitted {
            return (Ok(()), core.pressure.progress_seen());
        }
        self.release();
        let file = (mapping.id, &mapping.on_its_way);
        let (claimed, seen) = core.pressure.claim(file, pages, self.turn.is_some());
        (claimed.map(|claim| self.claimed = claim), seen)
    }

    /// A part of a batch follows its page, if that is there or on its way. If not, it begins by
    /// itself when it is polled.
    pub(super) fn follow(&mut self) {
        self.missed = true;
        if let Some(held) = self.handle.core.hold(&self.handle.mapping, self.page) {
            self.wait_for(held);
        }
    }

    /// If it queues for memory: the progress seen before, and its turn.
    pub(super) fn is_short(&self) -> Option<(u64, Turn)> {
        let queues = matches!(self.wait, BringWait::Turn);
        self.short.zip(self.turn).filter(|_| queues)
    }

    /// The caller has it from now on.
    pub(super) fn hand_over_turn(&mut self) -> Option<Turn> {
        self.wait = BringWait::Look;
        self.turn.take()
    }

    fn release(&mut self) {
        let claimed = std::mem::take(&mut self.claimed);
        if claimed.pages() > 0 {
            self.handle.core.pressure.release(self.handle.mapping.id, claimed);
        }
    }

    fn end(&mut self) {
        let core = &self.handle.core;
        let (wait, turn) = (std::mem::replace(&mut self.wait, BringWait::Look), self.turn.take());
        if !core.owner.is_here() || crate::base::sync::model_failed() {
            self.claimed = Claim::default();
            return; // the locks may be held for ever
        }
        if let BringWait::Arrival(held, ticket) = &wait {
            core.waiters.leave(held.head().0, *ticket);
        }
        if let Some(turn) = turn {
            core.pressure.leave(self.handle.mapping.id, turn);
        }
        self.release();
    }

    fn given_up(&self, refused: &Begun<'_>, why: Refused) -> Error {
        let handle = self.handle;
        if matches!(refused, Begun::NoWorker) {
            return Cause::Read {
                path: handle.mapping.path.clone(),
                offset: self.page << PAGE_SHIFT,
                asked_bytes: self.bytes as u64,
                cause: handle.core.engine.all_busy().into(),
            }
            .into();
        }
        let shortage = reclaim::shortage(&handle.core, PAGE_BYTES as u64);
        shortage.of_future(&handle.core, (&handle.mapping, self.page), why)
    }

    fn met(&self, held: Held<'f>) -> Held<'f> {
        self.handle.meet(ReadaheadMark::Meet, &held);
        held
    }
}

impl Drop for Bring<'_> {
    fn drop(&mut self) {
        if mutant::on(Mutant::DropKeepsClaim) {
            self.claimed = Claim::default();
        }
        self.end();
    }
}

/// Boxed: a future that is ready at once is small, and its end is a comparison.
pub(super) struct LazyBring<'f>(pub(super) Option<Box<Bring<'f>>>);

impl Drop for LazyBring<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(bring) = self.0.take() {
            end_slowly(bring);
        }
    }
}

#[cold]
#[inline(never)]
fn end_slowly(bring: Box<Bring<'_>>) {
    drop(bring);
}
