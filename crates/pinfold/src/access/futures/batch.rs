//! Many pages by one future: [`GetMany`], a future for each of its pages that was not cached.
//!
//! Before it begins any, it has a claim to all of its pages, cached or not, until it returns.
//! Without a claim it queues, and holds nothing. What is absent it begins together
//! (`many/misses.rs`); then each part follows its page. If one finds no memory, the batch drops its
//! guards, gives up its claim, and queues as if it were new: what it has read is probably still
//! cached when its turn comes. A batch that is too large for that, and so runs alone in its file,
//! waits with its guards, and so does the keeper (`pressure/queue.rs`).

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::Get;
use super::bring::BringWait;
use crate::access::borrow::FolioRef;
use crate::access::many::Absent;
use crate::base::mutant::{self, Mutant};
use crate::base::sizes::RETREATS_MAX;
use crate::error::{Error, Result};
use crate::frames::PAGE_BYTES;
use crate::pages::handle::Handle;
use crate::pages::pressure::{Claim, Keeps, Refused, Turn};
use crate::pages::reclaim::{self, Patience};

/// [`File::get_many_async`](crate::File::get_many_async). Polled again, it gets the pages again.
#[must_use = "a future does nothing unless it is polled"]
pub(crate) struct GetMany<'f> {
    handle: &'f Handle,
    pages: Vec<u64>,
    /// Once some have to be brought and the batch is admitted.
    parts: Vec<GetPart<'f>>,
    /// Those before this one are there.
    there: usize,
    /// Those before this one are there, or on their way. Of the others one at most has a turn.
    begun: usize,
    /// To all of its pages.
    claimed: Claim,
    /// It queues for its claim, and holds nothing.
    turn: Option<Turn>,
    patience: Option<Patience>,
    retreats: u32,
    /// It is the keeper, or was.
    keeps: Option<Keeps>,
}

enum GetPart<'f> {
    Waits(Get<'f>),
    There(FolioRef<'f>),
}

impl<'f> GetMany<'f> {
    pub(crate) fn new(handle: &'f Handle, pages: &[u64]) -> Self {
        GetMany {
            handle,
            pages: pages.to_vec(),
            parts: Vec::new(),
            there: 0,
            begun: 0,
            claimed: Claim::default(),
            turn: None,
            patience: None,
            retreats: 0,
            keeps: None,
        }
    }

    #[cfg(all(test, shuttle))]
    pub(crate) fn retreats(&self) -> u32 {
        self.retreats
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn step_back_often(&mut self) {
        self.retreats = RETREATS_MAX;
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn keeps_guards(&self) -> bool {
        self.keeps.is_some()
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn has(&self) -> usize {
        let has = |part: &&GetPart<'_>| match part {
            GetPart::There(_) => true,
            GetPart::Waits(get) => matches!(get.wait(), BringWait::Arrival(..)),
        };
        self.parts.iter().filter(has).count()
    }

    /// If it is not admitted, it holds nothing and queues.
    fn enter(&mut self, waker: &Waker) -> Poll<Result<Vec<FolioRef<'f>>>> {
        let Handle { core, mapping, .. } = self.handle;
        // Ends: each turn follows progress of others.
        loop {
            let here = core.owner.is_here();
            if let Some(turn) = self.turn
                && here
                && core.pressure.is_queued(mapping.id, turn, waker)
            {
                return Poll::Pending;
            }
            let (quick, left) = self.handle.get_quickly(&self.pages);
            if left.is_empty() {
                return Poll::Ready(Ok(quick));
            }
            self.handle.check_fits(&self.pages)?;
            if here && !mutant::on(Mutant::BatchKeepsGuards) {
                let pages = u32::try_from(self.pages.len()).unwrap_or(u32::MAX);
                let pages = pages.min(core.frames.frames());
                let (claimed, seen) = self.claim(pages);
                let why = claimed.map(|claim| self.claimed = claim).err();
                if let Some(why) = why {
                    drop(quick);
                    if self.has_lost_patience(why) {
                        return Poll::Ready(Err(self.shortage(left[0], why)));
                    }
                    if why == Refused::NoMemory {
                        self.leave(); // the one that keeps its guards may be behind it
                    }
                    let to = (mapping.id, self.turn);
                    self.turn =
                        core.pressure.queue(to, (why, seen), Claim::default(), waker).or(self.turn);
                    continue;
                }
                if let Some(turn) = self.turn.take() {
                    core.pressure.served(mapping.id, turn);
                }
            }
            self.begin(quick, &left)?;
            return self.poll_parts(waker);
        }
    }

    /// If it has found no memory too often, it has to be the keeper. Also with the progress seen.
    fn claim(&mut self, pages: u32) -> (std::result::Result<Claim, Refused>, u64) {
        let Handle { core, mapping, .. } = self.handle;
        let file = (mapping.id, &mapping.on_its_way);
        let (claimed, seen) = core.pressure.claim(file, pages, self.turn.is_some());
        // Not before: while its file refuses it, one of another file may be the keeper.
        let may_ask = claimed.is_ok() || mutant::on(Mutant::RefusedKeepsGuards);
        if may_ask && self.retreats == RETREATS_MAX && self.keeps.is_none() {
            self.keeps = core.pressure.may_keep_guards();
            if self.keeps.is_none() {
                if let Ok(claim) = claimed {
                    core.pressure.unclaim(mapping.id, claim);
                }
                return (Err(Refused::NoMemory), seen);
            }
        }
        (claimed, seen)
    }

    /// If its turn has come, another one's has.
    fn leave(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.handle.core.pressure.served(self.handle.mapping.id, turn);
        }
    }

    /// If a part found no memory: drops all guards, gives up the claim, and queues, as two batches
    /// with guards could wait for each other. Error: it had no page, and its patience is over.
    fn step_back(&mut self, waker: &Waker) -> Result<()> {
        let Handle { core, mapping, .. } = self.handle;
        let pages = self.claimed.pages();
        if pages == 0 || core.pressure.is_large(pages) {
            return Ok(());
        }
        // No other part is polled while it is missing.
        let polled = [self.there, self.begun];
        let is_short = |at: usize| match self.parts.get(at) {
            Some(GetPart::Waits(get)) => Some((at, get.bring.0.as_ref()?.is_short()?)),
            Some(GetPart::There(_)) | None => None,
        };
        let Some((at, (seen, turn))) = polled.into_iter().find_map(is_short) else {
            self.keep_no_guards(); // it waits for reads alone, perhaps of a source that hangs
            return Ok(());
        };
        // Passed over, it may have what the keeper waits for.
        let keeps_still = |keeps: &Keeps| core.pressure.keeps_guards(keeps, mapping.id, turn);
        self.keeps = self.keeps.take().filter(keeps_still);
        if self.keeps.is_some() {
            return Ok(());
        }
        // A page on its way can be evicted when it has come.
        let has_some = self.parts.iter().any(|part| match part {
            GetPart::There(_) => true,
            GetPart::Waits(get) => {
                matches!(get.wait(), BringWait::Arrival(..))
                    && !mutant::on(Mutant::RetreatUncounted)
            }
        });
        if !has_some && self.has_lost_patience(Refused::NoMemory) {
            return Err(self.shortage(at, Refused::NoMemory));
        }
        if let GetPart::Waits(get) = &mut self.parts[at] {
            let turn = get.bring().hand_over_turn();
            self.turn = turn.filter(|_| !mutant::on(Mutant::RetreatLosesTurn));
        }
        self.parts.clear();
        (self.there, self.begun) = (0, 0);
        let claimed = std::mem::take(&mut self.claimed);
        if has_some {
            // What it had can be evicted. To be woken by itself would be in vain.
            self.retreats = RETREATS_MAX.min(self.retreats + 1);
            self.leave();
            if !mutant::on(Mutant::RetreatKeepsClaim) {
                core.pressure.release(mapping.id, claimed);
            }
            let why = (Refused::NoMemory, seen + 1); // its own release is no progress for it
            self.turn = core.pressure.queue((mapping.id, None), why, Claim::default(), waker);
        } else if !mutant::on(Mutant::VainKeepsClaim) {
            core.pressure.unclaim(mapping.id, claimed);
        }
        Ok(())
    }

    fn has_lost_patience(&mut self, why: Refused) -> bool {
        let Handle { core, mapping, .. } = self.handle;
        let patience = self.patience.get_or_insert_with(|| Patience::new(core));
        patience.is_over_for(core, mapping, why)
    }

    fn shortage(&self, at: usize, why: Refused) -> Error {
        let Handle { core, mapping, .. } = self.handle;
        let shortage = reclaim::shortage(core, PAGE_BYTES as u64);
        shortage.of_future(core, (mapping, self.pages[at]), why)
    }

    fn end(&mut self) {
        self.parts.clear();
        (self.there, self.begun) = (0, 0);
        (self.patience, self.retreats) = (None, 0);
        let Handle { core, mapping, .. } = self.handle;
        let (claimed, turn) = (std::mem::take(&mut self.claimed), self.turn.take());
        if !core.owner.is_here() || crate::base::sync::model_failed() {
            return; // the locks may be held for ever
        }
        if let Some(turn) = turn.filter(|_| !mutant::on(Mutant::BatchStaysQueued)) {
            core.pressure.leave(mapping.id, turn);
        }
        if claimed.pages() > 0 && !mutant::on(Mutant::DropKeepsClaim) {
            core.pressure.release(mapping.id, claimed);
        }
        self.keep_no_guards();
    }

    fn keep_no_guards(&mut self) {
        if let Some(keeps) = self.keeps.take() {
            self.handle.core.pressure.keeps_no_guards(&keeps);
        }
    }

    /// Begins what is `left`, all at once, as far as it may.
    fn begin(&mut self, quick: Vec<FolioRef<'f>>, left: &[usize]) -> Result<()> {
        let (mut quick, mut left) = (quick.into_iter(), left.iter().peekable());
        let part = |(at, &page)| match left.next_if_eq(&&at) {
            Some(_) => GetPart::Waits(Get::new(self.handle, page)),
            None => GetPart::There(quick.next().expect("it is in one of the parts")),
        };
        self.parts = self.pages.iter().enumerate().map(part).collect();
        if self.claimed.pages() == 0 {
            return Ok(()); // in a forked child, where each says by itself whether it is cached
        }
        let mut absent = Absent::new(self.handle);
        let mut joined = Vec::new();
        for (at, part) in self.parts.iter_mut().enumerate() {
            let GetPart::Waits(get) = part else { continue };
            let bring = get.bring();
            bring.admitted = true;
            if absent.add(bring.page..bring.page.saturating_add(1)) {
                joined.push(at);
            }
        }
        absent.begin()?;
        for at in joined {
            if let GetPart::Waits(get) = &mut self.parts[at] {
                get.bring().follow();
            }
        }
        let looks = |part: &GetPart<'_>| match part {
            GetPart::Waits(get) => matches!(get.wait(), BringWait::Look),
            GetPart::There(_) => false,
        };
        self.begun = self.parts.iter().position(looks).unwrap_or(self.parts.len());
        Ok(())
    }

    /// The first part that is missing has the waker. Then begins those that have not begun, until
    /// one queues. That one has the waker, too, and is looked at each time: others queue behind it.
    fn poll_parts(&mut self, waker: &Waker) -> Poll<Result<Vec<FolioRef<'f>>>> {
        let (mut all, mut at) = (true, self.there);
        // Ends: each turn looks at a later part.
        while at < self.parts.len() {
            let mut next = at + 1;
            if let GetPart::Waits(get) = &mut self.parts[at] {
                let polled = if all { get.poll_with(waker) } else { get.poll_unwoken(waker) };
                match polled? {
                    Poll::Ready(folio) => self.parts[at] = GetPart::There(folio),
                    Poll::Pending if at >= self.begun && matches!(get.wait(), BringWait::Turn) => {
                        return Poll::Pending;
                    }
                    Poll::Pending => {
                        all = false;
                        next = next.max(self.begun);
                    }
                }
            }
            self.begun = self.begun.max(at + 1);
            at = next;
            if all {
                self.there = at;
            }
        }
        if !all {
            return Poll::Pending;
        }
        (self.there, self.begun) = (0, 0);
        let folios = std::mem::take(&mut self.parts).into_iter();
        Poll::Ready(Ok(folios
            .map(|part| match part {
                GetPart::There(folio) => folio,
                GetPart::Waits(_) => unreachable!("all are there"),
            })
            .collect()))
    }
}

impl std::fmt::Debug for GetMany<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GetMany").field("pages", &self.pages.len()).finish_non_exhaustive()
    }
}

impl Drop for GetMany<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<'f> Future for GetMany<'f> {
    type Output = Result<Vec<FolioRef<'f>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (this, waker) = (&mut *self, context.waker());
        if this.handle.core.owner.is_here() {
            this.handle.core.pressure.renew(this.handle.mapping.id, &mut this.claimed);
        }
        // Ends: each turn but the last has given up what it held.
        let polled = loop {
            let polled =
                if this.parts.is_empty() { this.enter(waker) } else { this.poll_parts(waker) };
            if polled.is_ready() {
                break polled;
            }
            let had = !this.parts.is_empty();
            if let Err(error) = this.step_back(waker) {
                break Poll::Ready(Err(error));
            }
            if !had || !this.parts.is_empty() {
                return Poll::Pending;
            }
        };
        this.end(); // nothing stays held after an error
        polled
    }
}
