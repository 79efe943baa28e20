//! Futures of reads and pages: here those of a page and of a read, which `bring.rs` brings one page
//! at a time; `batch.rs` has that of many, `room.rs` waits for memory for a copy, and `set.rs` is
//! for a thread with an eventfd. The crate's front page, "Futures", is for programs.
//!
//! Each poll goes on until it has the page, an error, or has left its waker. A future that ends, or
//! is dropped, takes its waker, its turn and its claim back, and gives up its reference; a fill
//! that it began goes on. In a forked child it takes no lock.

mod batch;
mod bring;
#[cfg(not(loom))]
mod room;
mod set;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use crate::access::borrow::{self, FolioRef};
use crate::access::found::MayWait;
use crate::error::Result;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::pages::core::Held;
use crate::pages::handle::Handle;
use crate::pages::stream::Plan;
pub(crate) use batch::GetMany;
use bring::{Bring, BringWait, LazyBring};
#[cfg(not(loom))]
pub(crate) use room::copy_memory;
pub(crate) use set::{Ready, Set};

/// [`File::get_async`](crate::File::get_async). Polled again, it gets the page once more.
#[must_use = "a future does nothing unless it is polled"]
pub(crate) struct Get<'f> {
    handle: &'f Handle,
    page: u64,
    bring: LazyBring<'f>,
}

impl<'f> Get<'f> {
    #[inline]
    pub(crate) fn new(handle: &'f Handle, page: u64) -> Self {
        Get { handle, page, bring: LazyBring(None) }
    }

    fn bring(&mut self) -> &mut Bring<'f> {
        let Get { handle, page, bring } = self;
        bring.0.get_or_insert_with(|| Box::new(Bring::new(handle, *page, PAGE_BYTES)))
    }

    fn wait(&self) -> &BringWait<'f> {
        self.bring.0.as_ref().map_or(&BringWait::Look, |bring| &bring.wait)
    }

    #[inline(always)]
    fn poll_with(&mut self, waker: &Waker) -> Poll<Result<FolioRef<'f>>> {
        if self.bring.0.is_none()
            && let Some(folio) = self.handle.get_at_once(self.page)
        {
            return Poll::Ready(Ok(folio));
        }
        self.poll_slowly(waker)
    }

    /// For who polls it again before it relies on the waker: nobody is woken when the page is
    /// there. When its turn comes, `waker` is woken all the same.
    fn poll_unwoken(&mut self, waker: &Waker) -> Poll<Result<FolioRef<'f>>> {
        if !matches!(self.wait(), BringWait::Turn) {
            let polled = self.poll_with(Waker::noop());
            if !matches!(self.wait(), BringWait::Turn) {
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
            let held = borrow::admit(handle, held, page, MayWait::Never)?;
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

    /// In line: the guard would go through memory, and the loads of the next page wait for it.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_with(context.waker())
    }
}

/// As [`fill::get`](crate::pages::fill::get), but where the page is absent, `plan` is read if there
/// is one, whatever the handle's stream says.
pub(crate) async fn bring(
    handle: &Handle,
    page: u64,
    bytes: usize,
    plan: Option<Plan>,
) -> Result<Held<'_>> {
    let mut bring = Bring::new(handle, page, bytes);
    bring.plan = plan;
    std::future::poll_fn(|context| bring.poll(context.waker())).await
}

/// [`File::read_at_async`](crate::File::read_at_async). Polled again, it ends the same, or tries
/// anew.
#[must_use = "a future does nothing unless it is polled"]
pub(crate) struct Read<'f, 'b> {
    handle: &'f Handle,
    buf: &'b mut [u8],
    offset: u64,
    done: usize,
    /// Of the page at which `done` ends.
    bring: LazyBring<'f>,
    polled: bool,
}

impl<'f, 'b> Read<'f, 'b> {
    #[inline]
    pub(crate) fn new(handle: &'f Handle, buf: &'b mut [u8], offset: u64) -> Self {
        Read { handle, buf, offset, done: 0, bring: LazyBring(None), polled: false }
    }

    #[cold]
    #[inline(never)]
    fn poll_slowly(&mut self, waker: &Waker) -> Poll<Result<usize>> {
        let Read { handle, buf, offset, done, bring: LazyBring(bring), .. } = self;
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
        if !std::mem::replace(&mut this.polled, true)
            && this.handle.read_shortly(this.buf, this.offset)
        {
            this.done = this.buf.len();
            return Poll::Ready(Ok(this.done));
        }
        this.poll_slowly(context.waker())
    }
}

// The handle is left out, as all of the cache is behind it.
impl std::fmt::Debug for Get<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Get").field("page", &self.page).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Read<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Read { offset, done, .. } = self;
        f.debug_struct("Read").field("offset", offset).field("done", done).finish_non_exhaustive()
    }
}
