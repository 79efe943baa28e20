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
//! Wakers are woken, cloned and dropped while the cache holds no lock, so a waker may call the
//! cache. In a forked child a future returns what is cached, or [`Error::Forked`].
//!
//! A task that keeps guards while it waits for more pages may wait for memory that other such tasks
//! hold. It then fails with [`Error::NoMemory`], as a thread does.
//! `examples/range_server.rs` serves ten thousand requests at once under a small budget.
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
// leaves its waker with the folio (`wait`). If there is no memory, it queues (`pressure`). It starts
// fills by requests (`fill::begin`), which the ring carries out, or the workers.
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
// Each poll goes on until it has the page, an error, or has left its waker. Dropping a future in any
// state takes its waker, its turn and its claim back, and gives up its reference; a fill that it
// began goes on. Its result ends it in the same way, whether it is dropped then or not.
//
// In a forked child a future takes no lock: the threads that held them are not there.

use std::num::NonZero;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use crate::borrow::{self, FolioRef};
use crate::core::Held;
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::fill::{self, Begun};
use crate::frame::{Flags, Order, PAGE_BYTES, PAGE_SHIFT};
use crate::handle::Handle;
use crate::pressure::{Refused, Turn};
use crate::reclaim::{self, Patience};
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
        let (wait, missed, claimed, turn) = (Wait::Look, false, 0, None);
        let (plan, patience) = (None, None);
        Bring { handle, page, bytes, wait, missed, claimed, turn, plan, patience }
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
            if self.patience.get_or_insert_with(|| Patience::new(core)).is_over(core) {
                return Poll::Ready(Err(self.given_up(&begun)));
            }
            let claimed = std::mem::take(&mut self.claimed);
            let queued = core.pressure.queue((file, self.turn), (why, seen), claimed, waker);
            if let Some(turn) = queued {
                self.turn = Some(turn);
                self.wait = Wait::Turn;
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
        self.release();
        let (claimed, seen) = core.pressure.claim(mapping.id, pages, self.turn.is_some());
        if claimed.is_ok() {
            self.claimed = pages;
        }
        (claimed, seen)
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
            return Error::Read {
                path: handle.mapping.path.clone(),
                offset: self.page << PAGE_SHIFT,
                asked_bytes: self.bytes as u64,
                cause: cause.into(),
            };
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

/// The future of [`File::get_async`](crate::File::get_async). Polled after it has returned, it
/// gets the page once more.
#[must_use = "a future does nothing unless it is polled"]
#[derive(Debug)]
pub struct Get<'f>(Bring<'f>);

impl<'f> Get<'f> {
    #[inline]
    pub(crate) fn new(handle: &'f Handle, page: u64) -> Self {
        Get(Bring::new(handle, page, PAGE_BYTES))
    }

    #[cold]
    #[inline(never)]
    fn poll_slowly(&mut self, waker: &Waker) -> Poll<Result<FolioRef<'f>>> {
        let Bring { handle, page, .. } = self.0;
        // Ends: each repetition follows an invalidation of this folio.
        loop {
            if let Err(error) = handle.check_page(page) {
                self.0.end();
                return Poll::Ready(Err(error));
            }
            let held = ready!(self.0.poll(waker))?;
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
        if matches!(self.0.wait, Wait::Look)
            && let Some(folio) = self.0.handle.get_at_once(self.0.page)
        {
            return Poll::Ready(Ok(folio));
        }
        self.poll_slowly(context.waker())
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
    bring: Option<Bring<'f>>,
    polled: bool,
}

impl<'f, 'b> Read<'f, 'b> {
    #[inline]
    pub(crate) fn new(handle: &'f Handle, buf: &'b mut [u8], offset: u64) -> Self {
        Read { handle, buf, offset, done: 0, bring: None, polled: false }
    }

    #[cold]
    #[inline(never)]
    fn poll_slowly(&mut self, waker: &Waker) -> Poll<Result<usize>> {
        let Read { handle, buf, offset, done, bring, .. } = self;
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
                .get_or_insert_with(|| Bring::new(handle, at >> PAGE_SHIFT, wanted))
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

/// The future of [`File::get_many_async`](crate::File::get_many_async).
#[must_use = "a future does nothing unless it is polled"]
#[derive(Debug)]
pub struct GetMany<'f> {
    pages: Vec<Page<'f>>,
    /// Those before this one are there.
    there: usize,
    /// Those before this one are there, or on their way. One at most has a turn in the queue.
    begun: usize,
}

#[derive(Debug)]
enum Page<'f> {
    Waits(Get<'f>),
    There(FolioRef<'f>),
}

impl<'f> GetMany<'f> {
    pub(crate) fn new(handle: &'f Handle, pages: &[u64]) -> Self {
        let pages = pages.iter().map(|&page| Page::Waits(Get::new(handle, page))).collect();
        GetMany { pages, there: 0, begun: 0 }
    }
}

impl<'f> Future for GetMany<'f> {
    type Output = Result<Vec<FolioRef<'f>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let GetMany { pages, there, begun } = &mut *self;
        let (mut all, mut at) = (true, *there);
        // Ends: each turn looks at a later page. It begins to read as many as it can; of those that
        // have begun, it looks at the first that is missing.
        while at < pages.len() {
            let mut next = at + 1;
            if let Page::Waits(get) = &mut pages[at] {
                match Pin::new(&mut *get).poll(context) {
                    Poll::Ready(Ok(folio)) => pages[at] = Page::There(folio),
                    Poll::Ready(Err(error)) => {
                        pages.clear(); // nothing stays held
                        (*there, *begun) = (0, 0);
                        return Poll::Ready(Err(error));
                    }
                    Poll::Pending if at >= *begun && matches!(get.0.wait, Wait::Turn) => {
                        return Poll::Pending;
                    }
                    Poll::Pending => {
                        all = false;
                        next = next.max(*begun);
                    }
                }
            }
            *begun = (*begun).max(at + 1);
            at = next;
            if all {
                *there = at;
            }
        }
        if !all {
            return Poll::Pending;
        }
        (*there, *begun) = (0, 0);
        let folios = std::mem::take(pages).into_iter();
        Poll::Ready(Ok(folios
            .map(|page| match page {
                Page::There(folio) => folio,
                Page::Waits(_) => unreachable!("all are there"),
            })
            .collect()))
    }
}
