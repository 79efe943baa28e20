//! Waiting for memory for a copy, without a thread: [`copy_memory`].
//!
//! It queues as a future that found no memory for its page does (`pressure/queue.rs`), and holds
//! nothing meanwhile. Called by `owned.rs`.

use std::task::{Poll, Waker};

use crate::error::Result;
use crate::handle::Handle;
use crate::pressure::{Claim, Refused, Turn};
use crate::reclaim::{self, Copied, Patience, allocate_copy};

/// Memory for a copy of `bytes` bytes, from those of `page` on.
pub(crate) async fn copy_memory(handle: &Handle, page: u64, bytes: usize) -> Result<Copied> {
    let mut room = Room { handle, page, bytes, turn: None, patience: None };
    std::future::poll_fn(|context| room.poll(context.waker())).await
}

struct Room<'f> {
    handle: &'f Handle,
    page: u64,
    bytes: usize,
    /// It queues, or was woken and tries.
    turn: Option<Turn>,
    patience: Option<Patience>,
}

impl Room<'_> {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<Copied>> {
        let Handle { core, mapping, .. } = self.handle;
        // Ends: each turn follows progress of others.
        loop {
            core.check_owner()?;
            if self.turn.is_some_and(|turn| core.pressure.is_queued(mapping.id, turn, waker)) {
                return Poll::Pending;
            }
            let seen = core.pressure.progress_seen();
            let place = (&**mapping, self.page);
            if let Some(copied) = allocate_copy(core, place, self.bytes, false)? {
                if let Some(turn) = self.turn.take() {
                    core.pressure.served(mapping.id, turn);
                }
                return Poll::Ready(Ok(copied));
            }
            let patience = self.patience.get_or_insert_with(|| Patience::new(core));
            if patience.is_over_for(core, mapping, Refused::NoMemory) {
                let shortage = reclaim::shortage(core, self.bytes as u64);
                return Poll::Ready(Err(shortage.of(mapping, self.page)));
            }
            let why = (Refused::NoMemory, seen);
            let to = (mapping.id, self.turn);
            let queued = core.pressure.queue(to, why, Claim::default(), waker);
            self.turn = queued.or(self.turn);
        }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let Handle { core, mapping, .. } = self.handle;
        if let Some(turn) = self.turn.take().filter(|_| core.owner.is_here()) {
            core.pressure.leave(mapping.id, turn);
        }
    }
}
