//! The futures of [`File::read_at_async`](crate::File::read_at_async),
//! [`get_async`](crate::File::get_async) and [`get_many_async`](crate::File::get_many_async). They
//! run on any runtime. A poll waits neither for a source nor for memory. It may take a lock for a
//! moment, evict, and copy up to the whole buffer.
//!
//! They can be sent to other threads, and borrow their file: a task that is spawned takes an
//! `Arc<File>` with it.
//!
//! A future that finds its page cached is ready at its first poll. Otherwise it has the page read,
//! and is woken by the thread that completes the read. If it is dropped, its read goes on, and what
//! the read brings stays in the cache.
//!
//! Wakers are woken, cloned and dropped while the cache holds no lock, so a waker may call what
//! waits for no read: [`try_get`](crate::File::try_get) and its like,
//! [`prefetch`](crate::File::prefetch), the poll of a future. It must not wait for a read, as
//! [`get`](crate::File::get) does: the thread that calls it may be the one that completes reads,
//! and would wait for itself. In a forked child a future returns what is cached, or
//! [`ErrorKind::Forked`].
//!
//! A task that keeps guards while it waits for more pages may wait for memory that other such tasks
//! hold. It then fails with [`ErrorKind::NoMemory`], as a thread does. `get_many_async` itself
//! holds no page while it waits for memory, unless it wants more than a quarter of the budget, or
//! has had to begin anew many times. Of the latter, one batch of a cache at a time holds pages.
//! `examples/range_server.rs` serves ten thousand requests at once under a small budget.
//! `examples/thread_per_core.rs` has a runtime for each core. A program without a runtime, but with
//! an event loop of its own, has [`Completions`](crate::Completions) (`examples/event_loop.rs`).
//!
//! ```
//! # use pinfold::{Cache, Options, source::Memory};
//! # let cache = Cache::new(Options::new(8 << 20))?;
//! # let file = cache.attach("table", std::sync::Arc::new(Memory::new(vec![7; 100_000])))?;
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! let sum: u32 = runtime.block_on(async {
//!     let page = file.get_async(3).await?;
//!     let mut record = [0; 64];
//!     file.read_at_async(&mut record, 50_000).await?;
//!     Ok::<_, pinfold::Error>(page[..64].iter().chain(&record).map(|&byte| u32::from(byte)).sum())
//! })?;
//! assert_eq!(sum, 128 * 7);
//! # Ok::<(), pinfold::Error>(())
//! ```

// How it works. A future finds its page as the blocking ways in do. If the page is on its way, it
// leaves its waker with the folio (`wait`). If there is no memory, it queues (`pressure`). It
// starts fills by requests (`fill::begin`), which the ring carries out, or the workers.
//
// | state | holds | ends when |
// |---|---|---|
// | `Wait::Look` | nothing | it is polled |
// | `Wait::Arrival` | a reference to a folio on its way | the fill ends, in whatever way |
// | `Wait::Turn` | a turn in the queue | memory or a worker is free, or a fill or a claim ended |
//
// From when it has begun a read until it returns, a future also has a claim to the pages that it
// brings; the claims of a file's futures are limited (`Pressure::claim`). A future that is refused
// keeps its turn until it gets what it wants.
//
// `GetMany` is a future for each of its pages that was not cached. Before it begins any, it has a
// claim to all of its pages, those that were cached too, until it returns: so the guards of all
// batches that wait come to no more than claims may. Without a claim it queues, and holds nothing.
// What is absent it begins together before the first poll (`many/misses.rs`). Each part then
// follows its page. If one finds no memory, the batch drops its guards, gives up its claim, and
// queues as if it were new: what it has read is probably still cached when its turn comes. A batch
// that is too large for that, and so runs alone in its file, waits with its guards; so does one
// that found no memory many times, as others may hold all but too little for it. Of the latter a
// cache has one at a time: the others wait for its end without guards.
//
// Each poll goes on until it has the page, an error, or has left its waker. Dropping a future in
// any state takes its waker, its turn and its claim back, and gives up its reference; a fill that
// it began goes on. Its result ends it in the same way, whether it is dropped then or not.
//
// In a forked child a future takes no lock: the threads that held them are not there.

use std::num::NonZero;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use crate::borrow::{self, FolioRef};
use crate::core::Held;
use crate::counters::Event;
use crate::error::{Error, ErrorKind, Result};
use crate::fill::{self, Begun};
use crate::frame::{Flags, Order, PAGE_BYTES, PAGE_SHIFT};
use crate::handle::Handle;
use crate::many::Absent;
use crate::mutant::{self, Mutant};
use crate::pressure::{Refused, Turn};
use crate::reclaim::{self, Patience};
use crate::sizes::RETREATS_MAX;
use crate::stream::Plan;
use crate::wait::Ticket;

/// Brings one page, up to date and held.
struct Bring<'f> {
    handle: &'f Handle,
    page: u64,
    /// How much is wanted from the start of the page on.
    bytes: usize,
    wait: Wait<'f>,
    /// Whether the page was not there at first.
    missed: bool,
    /// Pages that it has a claim to, or 0.
    claimed: u32,
    /// Its batch has a claim to its page, so it needs none.
    admitted: bool,
    /// What it queues for is memory: the progress seen before it found none.
    short: Option<u64>,
    /// It queues, or was woken and tries.
    turn: Option<Turn>,
    plan: Option<Plan>,
    patience: Option<Patience>,
}

/// See the table above.
enum Wait<'f> {
    Look,
    Arrival(Held<'f>, Ticket),
    Turn,
}

impl<'f> Bring<'f> {
    fn new(handle: &'f Handle, page: u64, bytes: usize) -> Self {
        Bring {
            handle,
            page,
            bytes,
            wait: Wait::Look,
            missed: false,
            claimed: 0,
            admitted: false,
            short: None,
            turn: None,
            plan: None,
            patience: None,
        }
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<Held<'f>>> {
        let polled = self.poll_on(waker);
        if polled.is_ready() {
            self.end();
        }
        polled
    }

    fn poll_on(&mut self, waker: &Waker) -> Poll<Result<Held<'f>>> {
        let (handle, core) = (self.handle, &*self.handle.core);
        let file = handle.mapping.id;
        // Ends: each turn follows what another thread did: it ended the fill, dropped the folio,
        // freed memory, or gave up a claim. A future's own attempt is no progress.
        loop {
            if !matches!(self.wait, Wait::Look) {
                core.check_owner()?;
            }
            match std::mem::replace(&mut self.wait, Wait::Look) {
                Wait::Look => {}
                Wait::Arrival(held, ticket) => {
                    let frame = held.frame();
                    let over = || !fill::is_on_its_way(frame);
                    if !core.waiters.poll(held.head().0, ticket, waker, over) {
                        self.wait = Wait::Arrival(held, ticket);
                        return Poll::Pending;
                    }
                    if let Some(held) = fill::arrived(core, held)? {
                        return Poll::Ready(Ok(self.meet_mark(held)));
                    }
                }
                Wait::Turn => {
                    if self.turn.is_some_and(|turn| core.pressure.is_queued(file, turn, waker)) {
                        self.wait = Wait::Turn;
                        return Poll::Pending;
                    }
                }
            }
            let first = !std::mem::replace(&mut self.missed, true);
            let held = core.hold(&handle.mapping, self.page);
            let held = match held {
                Some(held) if first && !held.frame().is_changing() => {
                    core.counters.count(Event::CountedHit);
                    return Poll::Ready(Ok(self.meet_mark(held)));
                }
                held => held,
            };
            core.check_owner()?;
            if let Some(held) = held {
                // What others have read, or are reading, needs no claim.
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
                return Poll::Ready(Err(self.given_up(&begun)));
            }
            let claimed = self.claimed;
            let queued = core.pressure.queue((file, self.turn), (why, seen), claimed, waker);
            // Not before: cloning the waker may panic.
            self.claimed = 0;
            if let Some(turn) = queued {
                self.turn = Some(turn);
                self.wait = Wait::Turn;
                self.short = (why == Refused::NoMemory).then_some(seen);
                return Poll::Pending;
            }
        }
    }

    /// The folio is on its way, or has just arrived.
    fn wait_for(&mut self, held: Held<'f>) {
        if fill::is_on_its_way(held.frame()) {
            self.handle.core.counters.count(Event::Wait);
        }
        self.wait = Wait::Arrival(held, Ticket::new());
        self.patience = None;
        if let Some(turn) = self.turn.take() {
            self.handle.core.pressure.served(self.handle.mapping.id, turn);
        }
    }

    /// Whether it may begin, and what progress there was before.
    fn claim(&mut self) -> (std::result::Result<(), Refused>, u64) {
        let pages = self.bytes.div_ceil(PAGE_BYTES).min(Order::MAX.frames() as usize) as u32;
        let Handle { core, mapping, .. } = self.handle;
        if self.admitted {
            return (Ok(()), core.pressure.progress_seen());
        }
        self.release();
        let (claimed, seen) = core.pressure.claim(mapping.id, pages, self.turn.is_some());
        if claimed.is_ok() {
            self.claimed = pages;
        }
        (claimed, seen)
    }

    /// For a part of a batch, after the submission of all that was absent: follows its page, if that
    /// is there or on its way now. If not, it begins by itself when it is polled.
    fn follow(&mut self) {
        // What its batch has read is no hit.
        self.missed = true;
        if let Some(held) = self.handle.core.hold(&self.handle.mapping, self.page) {
            self.wait_for(held);
        }
    }

    /// If it queues for memory: the progress seen before.
    fn is_short(&self) -> Option<u64> {
        self.short.filter(|_| matches!(self.wait, Wait::Turn))
    }

    /// Its turn, which the caller has from now on.
    fn hand_over_turn(&mut self) -> Option<Turn> {
        self.wait = Wait::Look;
        self.turn.take()
    }

    fn release(&mut self) {
        let claimed = std::mem::take(&mut self.claimed);
        if claimed > 0 {
            self.handle.core.pressure.release(self.handle.mapping.id, claimed);
        }
    }

    /// It waits for nothing any more, and keeps nothing.
    fn end(&mut self) {
        let core = &self.handle.core;
        let (wait, turn) = (std::mem::replace(&mut self.wait, Wait::Look), self.turn.take());
        if !core.owner.is_here() || crate::sync::model_failed() {
            self.claimed = 0;
            return; // the locks may be held for ever
        }
        if let Wait::Arrival(held, ticket) = &wait {
            core.waiters.leave(held.head().0, *ticket);
        }
        if let Some(turn) = turn {
            core.pressure.leave(self.handle.mapping.id, turn);
        }
        self.release();
    }

    fn given_up(&self, refused: &Begun<'_>) -> Error {
        let handle = self.handle;
        if matches!(refused, Begun::NoWorker) {
            let text = "all of the cache's threads are waiting for other sources";
            let cause = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
            return ErrorKind::Read {
                path: handle.mapping.path.clone(),
                offset: self.page << PAGE_SHIFT,
                asked_bytes: self.bytes as u64,
                cause: cause.into(),
            }
            .into();
        }
        reclaim::shortage(&handle.core, Order::MIN).of(&handle.mapping, self.page)
    }

    fn meet_mark(&self, held: Held<'f>) -> Held<'f> {
        if held.frame().flags().contains(Flags::READAHEAD) {
            fill::read_further(self.handle, &held);
        }
        held
    }
}

impl Drop for Bring<'_> {
    fn drop(&mut self) {
        if mutant::on(Mutant::DropKeepsClaim) {
            self.claimed = 0;
        }
        self.end();
    }
}

impl std::fmt::Debug for Bring<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waits_for = match &self.wait {
            Wait::Look => "nothing",
            Wait::Arrival(..) => "a read",
            Wait::Turn => "its turn",
        };
        f.debug_struct("Bring").field("page", &self.page).field("waits_for", &waits_for).finish()
    }
}

/// What a future has once it has to bring a page. Boxed: a future that is ready at once is small,
/// and its end is a comparison.
#[derive(Debug)]
struct Brought<'f>(Option<Box<Bring<'f>>>);

impl Drop for Brought<'_> {
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

/// The future of [`File::get_async`](crate::File::get_async). Polled after it has returned, it
/// gets the page once more.
#[must_use = "a future does nothing unless it is polled"]
#[derive(Debug)]
pub struct Get<'f> {
    handle: &'f Handle,
    page: u64,
    bring: Brought<'f>,
}

impl<'f> Get<'f> {
    #[inline]
    pub(crate) fn new(handle: &'f Handle, page: u64) -> Self {
        Get { handle, page, bring: Brought(None) }
    }

    fn bring(&mut self) -> &mut Bring<'f> {
        let Get { handle, page, bring } = self;
        bring.0.get_or_insert_with(|| Box::new(Bring::new(handle, *page, PAGE_BYTES)))
    }

    /// What it waits for, if it waits.
    fn wait(&self) -> &Wait<'f> {
        self.bring.0.as_ref().map_or(&Wait::Look, |bring| &bring.wait)
    }

    #[inline]
    fn poll_with(&mut self, waker: &Waker) -> Poll<Result<FolioRef<'f>>> {
        if self.bring.0.is_none()
            && let Some(folio) = self.handle.get_at_once(self.page)
        {
            return Poll::Ready(Ok(folio));
        }
        self.poll_slowly(waker)
    }

    /// As [`Self::poll_with`], for who polls it again before it relies on the waker: nobody is
    /// woken when the page is there. When its turn comes, `waker` is woken all the same.
    fn poll_unwoken(&mut self, waker: &Waker) -> Poll<Result<FolioRef<'f>>> {
        if !matches!(self.wait(), Wait::Turn) {
            let polled = self.poll_with(Waker::noop());
            if !matches!(self.wait(), Wait::Turn) {
                return polled;
            }
        }
        self.poll_with(waker)
    }

    #[cold]
    #[inline(never)]
    fn poll_slowly(&mut self, waker: &Waker) -> Poll<Result<FolioRef<'f>>> {
        let polled = self.poll_brought(waker);
        if polled.is_ready() {
            self.bring.0 = None;
        }
        polled
    }

    fn poll_brought(&mut self, waker: &Waker) -> Poll<Result<FolioRef<'f>>> {
        let Get { handle, page, .. } = *self;
        // Ends: each repetition follows an invalidation of this folio.
        loop {
            handle.check_page(page)?;
            let held = ready!(self.bring().poll(waker))?;
            let held = borrow::admit(handle, held, page, borrow::Wait::Never)?;
            if let Some(held) = held
                && let Some(folio) = FolioRef::of(handle, held, page)
            {
                return Poll::Ready(Ok(folio));
            }
        }
    }
}

impl<'f> Future for Get<'f> {
    type Output = Result<FolioRef<'f>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_with(context.waker())
    }
}

/// The future of [`File::read_at_async`](crate::File::read_at_async). Polled after it has returned,
/// it returns the same count, or tries again what failed.
#[must_use = "a future does nothing unless it is polled"]
pub struct Read<'f, 'b> {
    handle: &'f Handle,
    buf: &'b mut [u8],
    offset: u64,
    done: usize,
    /// The page at which `done` ends, once something had to be brought.
    bring: Brought<'f>,
    polled: bool,
}

impl<'f, 'b> Read<'f, 'b> {
    #[inline]
    pub(crate) fn new(handle: &'f Handle, buf: &'b mut [u8], offset: u64) -> Self {
        Read { handle, buf, offset, done: 0, bring: Brought(None), polled: false }
    }

    #[cold]
    #[inline(never)]
    fn poll_slowly(&mut self, waker: &Waker) -> Poll<Result<usize>> {
        let Read { handle, buf, offset, done, bring: Brought(bring), .. } = self;
        handle.check_range(buf, *offset)?;
        // Ends: each turn copies at least a byte, or is the last.
        loop {
            let at = *offset + *done as u64;
            if *done == buf.len() || at >= handle.mapping.len_bytes() {
                *bring = None;
                return Poll::Ready(Ok(*done));
            }
            let wanted = at as usize % PAGE_BYTES + buf.len() - *done;
            let brought = bring
                .get_or_insert_with(|| Box::new(Bring::new(handle, at >> PAGE_SHIFT, wanted)))
                .poll(waker);
            let held = ready!(brought);
            *bring = None;
            match handle.copy_held(&held?, &mut buf[*done..], at) {
                0 => return Poll::Ready(Ok(*done)), // the file is shorter by now
                copied => *done += copied,
            }
        }
    }
}

impl Future for Read<'_, '_> {
    type Output = Result<usize>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if !std::mem::replace(&mut this.polled, true) {
            match NonZero::new(this.buf.len()) {
                Some(bytes) => this.handle.counters().shard().count_read(bytes),
                None => this.handle.counters().count(Event::EmptyRead),
            }
            if !this.buf.is_empty() && this.handle.short(this.buf, this.offset) {
                this.done = this.buf.len();
                return Poll::Ready(Ok(this.done));
            }
        }
        this.poll_slowly(context.waker())
    }
}

impl std::fmt::Debug for Read<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Read")
            .field("offset", &self.offset)
            .field("bytes", &self.buf.len())
            .field("done", &self.done)
            .field("bring", &self.bring)
            .finish()
    }
}

/// The future of [`File::get_many_async`](crate::File::get_many_async). Polled after it has
/// returned, it gets the pages once more.
#[must_use = "a future does nothing unless it is polled"]
#[derive(Debug)]
pub struct GetMany<'f> {
    handle: &'f Handle,
    pages: Vec<u64>,
    /// Of each page, once some have to be brought and the batch is admitted.
    parts: Vec<Part<'f>>,
    /// Those before this one are there.
    there: usize,
    /// Those before this one are there, or on their way. Of the others one at most has a turn in
    /// the queue.
    begun: usize,
    /// Pages that it has a claim to: all, while it has parts; or 0.
    claimed: u32,
    /// It queues for its claim, and holds nothing.
    turn: Option<Turn>,
    patience: Option<Patience>,
    /// How often it has begun and found no memory.
    retreats: u32,
    /// It is the one that may wait for memory with its guards.
    keeps: bool,
}

#[derive(Debug)]
enum Part<'f> {
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
            claimed: 0,
            turn: None,
            patience: None,
            retreats: 0,
            keeps: false,
        }
    }

    /// How often it has stepped back.
    #[cfg(all(test, shuttle))]
    pub(crate) fn retreats(&self) -> u32 {
        self.retreats
    }

    /// Gets what is there, and begins the rest if it is admitted; if not, holds nothing and queues.
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
            if here && !mutant::on(Mutant::BatchKeepsGuards) {
                let pages = u32::try_from(self.pages.len()).unwrap_or(u32::MAX);
                let pages = pages.min(core.frames.frames());
                let (claimed, seen) = self.claim(pages);
                if let Err(why) = claimed {
                    drop(quick);
                    if self.has_lost_patience(why) {
                        return Poll::Ready(Err(self.shortage(left[0])));
                    }
                    if self.retreats == RETREATS_MAX && !self.keeps {
                        self.leave(); // the one that keeps its guards may be behind it
                    }
                    let to = (mapping.id, self.turn);
                    self.turn = core.pressure.queue(to, (why, seen), 0, waker).or(self.turn);
                    continue;
                }
                self.claimed = pages;
                if let Some(turn) = self.turn.take() {
                    core.pressure.served(mapping.id, turn);
                }
            }
            self.begin(quick, &left)?;
            return self.poll_parts(waker);
        }
    }

    /// Claims all its pages. If it has found no memory too often, it may keep its guards from now
    /// on, and has to wait while another one does. Also with the progress seen.
    fn claim(&mut self, pages: u32) -> (std::result::Result<(), Refused>, u64) {
        let Handle { core, mapping, .. } = self.handle;
        if self.retreats == RETREATS_MAX && !self.keeps {
            let seen = core.pressure.progress_seen();
            self.keeps = core.pressure.may_keep_guards();
            if !self.keeps {
                return (Err(Refused::NoMemory), seen);
            }
        }
        core.pressure.claim(mapping.id, pages, self.turn.is_some())
    }

    /// Gives its turn up. If it has come, another one's has.
    fn leave(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.handle.core.pressure.served(self.handle.mapping.id, turn);
        }
    }

    /// If a part found no memory: drops all guards, gives up the claim, and queues. A batch that
    /// waits for memory while it holds some could wait for another such batch. One that may only
    /// run alone keeps its guards, and so does one that has found none too often.
    ///
    /// # Errors
    /// It had no page, and its patience is over.
    fn step_back(&mut self, waker: &Waker) -> Result<()> {
        let Handle { core, mapping, .. } = self.handle;
        let keeps = self.keeps || core.pressure.is_large(self.claimed);
        if self.claimed == 0 || keeps {
            return Ok(());
        }
        // No other part is polled while it is missing: see `poll_parts`.
        let polled = [self.there, self.begun];
        let is_short = |at: usize| match self.parts.get(at) {
            Some(Part::Waits(get)) => Some((at, get.bring.0.as_ref()?.is_short()?)),
            Some(Part::There(_)) | None => None,
        };
        let Some((at, seen)) = polled.into_iter().find_map(is_short) else { return Ok(()) };
        // A page on its way is given up, too: when it has come, it can be evicted.
        let has_some = self.parts.iter().any(|part| match part {
            Part::There(_) => true,
            Part::Waits(get) => {
                matches!(get.wait(), Wait::Arrival(..)) && !mutant::on(Mutant::RetreatUncounted)
            }
        });
        if !has_some && self.has_lost_patience(Refused::NoMemory) {
            return Err(self.shortage(at));
        }
        if let Part::Waits(get) = &mut self.parts[at] {
            let turn = get.bring().hand_over_turn();
            self.turn = turn.filter(|_| !mutant::on(Mutant::RetreatLosesTurn));
        }
        self.parts.clear();
        (self.there, self.begun) = (0, 0);
        let claimed = std::mem::take(&mut self.claimed);
        if has_some {
            // What it had can be evicted: another future may go on. This one does not queue
            // meanwhile: to be woken by itself would be in vain.
            self.retreats += 1;
            self.leave();
            if !mutant::on(Mutant::RetreatKeepsClaim) {
                core.pressure.release(mapping.id, claimed);
            }
            let why = (Refused::NoMemory, seen + 1); // its own release is no progress for it
            self.turn = core.pressure.queue((mapping.id, None), why, 0, waker);
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

    fn shortage(&self, at: usize) -> Error {
        let Handle { core, mapping, .. } = self.handle;
        reclaim::shortage(core, Order::MIN).of(mapping, self.pages[at])
    }

    /// It waits for nothing any more, and keeps nothing.
    fn end(&mut self) {
        self.parts.clear();
        (self.there, self.begun) = (0, 0);
        (self.patience, self.retreats) = (None, 0);
        let Handle { core, mapping, .. } = self.handle;
        let (claimed, turn) = (std::mem::take(&mut self.claimed), self.turn.take());
        if !core.owner.is_here() || crate::sync::model_failed() {
            return; // the locks may be held for ever
        }
        if let Some(turn) = turn.filter(|_| !mutant::on(Mutant::BatchStaysQueued)) {
            core.pressure.leave(mapping.id, turn);
        }
        if claimed > 0 && !mutant::on(Mutant::DropKeepsClaim) {
            core.pressure.release(mapping.id, claimed);
        }
        if std::mem::take(&mut self.keeps) {
            core.pressure.keeps_no_guards();
        }
    }

    /// Begins what was not got `quick`, which is `left`: all at once, as far as it may.
    fn begin(&mut self, quick: Vec<FolioRef<'f>>, left: &[usize]) -> Result<()> {
        let (mut quick, mut left) = (quick.into_iter(), left.iter().peekable());
        let part = |(at, &page)| match left.next_if_eq(&&at) {
            Some(_) => Part::Waits(Get::new(self.handle, page)),
            None => Part::There(quick.next().expect("it is in one of the parts")),
        };
        self.parts = self.pages.iter().enumerate().map(part).collect();
        if self.claimed == 0 {
            return Ok(()); // in a forked child, where each says by itself whether it is cached
        }
        let mut absent = Absent::new(self.handle);
        let mut joined = Vec::new();
        for (at, part) in self.parts.iter_mut().enumerate() {
            let Part::Waits(get) = part else { continue };
            let bring = get.bring();
            bring.admitted = true;
            if absent.add(bring.page..bring.page.saturating_add(1)) {
                joined.push(at);
            }
        }
        absent.begin()?;
        for at in joined {
            if let Part::Waits(get) = &mut self.parts[at] {
                get.bring().follow();
            }
        }
        let looks = |part: &Part<'_>| match part {
            Part::Waits(get) => matches!(get.wait(), Wait::Look),
            Part::There(_) => false,
        };
        self.begun = self.parts.iter().position(looks).unwrap_or(self.parts.len());
        Ok(())
    }

    /// Looks at the first part that is missing. That one has the waker: to be woken for each page
    /// would be in vain, as all are wanted. Then begins those that have not begun, until one
    /// queues. That one has the waker, too, and is looked at each time: others queue behind it.
    fn poll_parts(&mut self, waker: &Waker) -> Poll<Result<Vec<FolioRef<'f>>>> {
        let (mut all, mut at) = (true, self.there);
        // Ends: each turn looks at a later part.
        while at < self.parts.len() {
            let mut next = at + 1;
            if let Part::Waits(get) = &mut self.parts[at] {
                let polled = if all { get.poll_with(waker) } else { get.poll_unwoken(waker) };
                match polled? {
                    Poll::Ready(folio) => self.parts[at] = Part::There(folio),
                    Poll::Pending if at >= self.begun && matches!(get.wait(), Wait::Turn) => {
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
                Part::There(folio) => folio,
                Part::Waits(_) => unreachable!("all are there"),
            })
            .collect()))
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
        // Ends: each turn but the last has given up what it held, and then queues.
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::borrow::Cow;
    use std::io;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Condvar, Mutex};
    use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
    use std::time::{Duration, Instant};

    use crate::mutant::{self, Mutant};
    use crate::source::{Memory, Source};
    use crate::{Cache, File, Hint, Options};

    /// Whether no claim is left when futures were dropped in the middle.
    fn dropped_futures_give_their_claims_back() -> bool {
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 1 << 20]))).unwrap();
        file.advise(0..1, Hint::Random).unwrap();
        for page in 0..8 {
            // On its way, unless a thread of the cache's has read it already.
            let _ = pin!(file.get_async(page)).poll(&mut Context::from_waker(Waker::noop()));
            let many = [20 + page, 40 + page];
            let _ = pin!(file.get_many_async(&many)).poll(&mut Context::from_waker(Waker::noop()));
        }
        // More than there may be, unless there is none.
        let handle = file.handle();
        handle.core.pressure.claim(handle.mapping.id, 1 << 20, false).0.is_ok()
    }

    #[test]
    fn a_dropped_future_gives_its_claim_back() {
        assert!(dropped_futures_give_their_claims_back());
        let caught = mutant::with(Some(Mutant::DropKeepsClaim), || {
            // One of them at least was on its way.
            (0..100).any(|_| !dropped_futures_give_their_claims_back())
        });
        assert!(caught, "the mutant does nothing");
    }

    /// Whether no claim is left when there was no memory to begin what a batch wants.
    fn a_batch_in_vain_keeps_no_claim() -> bool {
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let [file, other] = ["file", "other"].map(|name| {
            let file = cache.attach(name, Arc::new(Memory::new(vec![7; 2 << 20]))).unwrap();
            file.advise(0..1, Hint::Random).unwrap();
            file
        });
        let mut held = Vec::new();
        // Ends: there is no memory at last.
        while let Ok(folio) = other.get(held.len() as u64) {
            held.push(folio);
        }
        let pages: Vec<u64> = (0..40).map(|n| n * 10).collect();
        let mut many = pin!(file.get_many_async(&pages));
        assert!(many.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let handle = file.handle();
        // As one that has a turn already.
        let claimed = handle.core.pressure.claim(handle.mapping.id, 1 << 20, true).0.is_ok();
        if claimed {
            handle.core.pressure.unclaim(handle.mapping.id, 1 << 20);
        }
        claimed
    }

    #[test]
    fn what_a_batch_could_not_begin_keeps_no_claim() {
        assert!(a_batch_in_vain_keeps_no_claim());
        let caught = mutant::with(Some(Mutant::VainKeepsClaim), a_batch_in_vain_keeps_no_claim);
        assert!(!caught, "the mutant does nothing");
    }

    /// A waker's clone may panic while the future is refused.
    #[test]
    fn a_waker_that_cannot_be_cloned_loses_no_claim() {
        static TABLE: RawWakerVTable =
            RawWakerVTable::new(|_| panic!("as the test wants it"), |_| {}, |_| {}, |_| {});
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let [file, other] = ["file", "other"].map(|name| {
            let file = cache.attach(name, Arc::new(Memory::new(vec![7; 2 << 20]))).unwrap();
            file.advise(0..1, Hint::Random).unwrap();
            file
        });
        let mut held = Vec::new();
        // Ends: there is no memory at last.
        while let Ok(folio) = other.get(held.len() as u64) {
            held.push(folio);
        }
        // SAFETY: the table's functions use no data.
        let waker = unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &TABLE)) };
        let poll = || drop(pin!(file.get_async(0)).poll(&mut Context::from_waker(&waker)));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)).is_err());
        let handle = file.handle();
        let claimed = handle.core.pressure.claim(handle.mapping.id, 1 << 20, true).0;
        assert!(claimed.is_ok(), "the future is gone, and its claim is not");
    }

    /// What hangs until it is let go of.
    #[derive(Debug)]
    struct Hangs(Mutex<bool>, Condvar);

    impl Source for Hangs {
        fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
            drop(self.1.wait_while(self.0.lock().unwrap(), |hangs| *hangs).unwrap());
            Ok(buf.len())
        }
        fn len_bytes(&self) -> io::Result<u64> {
            Ok(4096)
        }
        fn kind(&self) -> Cow<'static, str> {
            "hangs".into()
        }
    }

    /// How long what never gives up is waited for.
    const MOST: Duration = Duration::from_secs(20);

    /// How long a future waits for a worker until it gives up, while another file is read, or not.
    fn given_up_after(busy: bool) -> Option<Duration> {
        let mut options = Options::new(4 << 20);
        options.patience = Duration::from_millis(20); // 300 while reads are under way
        let cache = Cache::new(options).unwrap();
        let source = Arc::new(Hangs(true.into(), Condvar::new()));
        let attach = |_| cache.attach("hangs", source.clone()).unwrap();
        let files: Vec<_> = (0..17).map(attach).collect();
        let waiting = |file| Box::pin(File::get_async(file, 0));
        let mut futures: Vec<_> = files.iter().map(waiting).collect();
        let other = cache.attach("other", Arc::new(Memory::new(vec![7; 4096]))).unwrap();
        let mut poll =
            |n: usize| futures[n].as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        (0..16).for_each(|n| assert!(!poll(n))); // all workers
        let since = Instant::now();
        let mut gave_up = None;
        while gave_up.is_none() && since.elapsed() < MOST {
            gave_up = poll(16).then(|| since.elapsed());
            if busy {
                other.invalidate(0..4096).unwrap();
                other.get(0).unwrap();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        *source.0.lock().unwrap() = false;
        source.1.notify_all();
        gave_up
    }

    #[test]
    fn a_future_gives_up_waiting_for_a_worker_whatever_else_is_read() {
        let idle = given_up_after(false);
        assert!(idle.is_some(), "it gave up in vain: {idle:?}");
        let busy = given_up_after(true);
        assert!(busy.is_some(), "after {idle:?} if nothing else is read, else not in {MOST:?}");
    }

    /// Whether a future was woken since it was polled; its thread is unparked.
    struct Told(AtomicBool, std::thread::Thread);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
            self.1.unpark();
        }
    }

    /// How many of so many batches fail, each of eight pages and all at once, in a cache that has
    /// room for a sixth of them; whatever is woken is polled, and nothing else.
    fn batches_that_fail(patience: Duration) -> usize {
        const BATCHES: usize = 200;
        let mut options = Options::new(1 << 20);
        options.patience = patience;
        let cache = Cache::new(options).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 16 << 20]))).unwrap();
        file.advise(0..1, Hint::Random).unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut waiting: Vec<_> = (0..BATCHES)
            .map(|_| {
                let pages: Vec<u64> = (0..8).map(|_| rng.u64(0..4096)).collect();
                let told = Arc::new(Told(AtomicBool::new(true), std::thread::current()));
                (Box::pin(file.get_many_async(&pages)), told)
            })
            .collect();
        let mut failed = 0;
        // Ends: each batch returns its pages, or loses its patience.
        while !waiting.is_empty() {
            let before = waiting.len();
            let mut polled = false;
            waiting.retain_mut(|(batch, told)| {
                if !told.0.swap(false, Ordering::Acquire) {
                    return true;
                }
                polled = true;
                let waker = Waker::from(told.clone());
                match batch.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(Ok(pages)) => assert!(pages.iter().all(|page| page[..8] == [7; 8])),
                    Poll::Ready(Err(_)) => failed += 1,
                    Poll::Pending => return true,
                }
                false
            });
            if !polled && waiting.len() == before {
                std::thread::park();
            }
        }
        let pressure = &file.handle().core.pressure;
        assert!(
            pressure.claim(file.handle().mapping.id, 1 << 20, false).0.is_ok(),
            "a claim is left"
        );
        failed
    }

    #[test]
    fn batches_that_want_more_than_there_is_wait_for_one_another_without_guards() {
        assert_eq!(batches_that_fail(Duration::from_secs(20)), 0);
        let failed = mutant::with(Some(Mutant::BatchKeepsGuards), || {
            batches_that_fail(Duration::from_millis(20))
        });
        assert!(failed > 0, "the mutant does nothing");
    }
}
