//! Waiting for memory for a copy, without a thread: [`copy_memory`]. All that want a copy queue in
//! one line (`pressure/queue.rs`), whatever their files, and hold nothing meanwhile: the first one
//! tries. One whose file has enough copies on their way goes to the end of the line. No other
//! futures wait behind that line: there may be memory for them.

use std::task::{Poll, Waker};

use crate::base::mutant::{self, Mutant};
use crate::error::Result;
use crate::frames::MAPPING_NONE;
use crate::pages::handle::Handle;
use crate::pages::pressure::{Claim, OnItsWay, Refused, Turn};
use crate::pages::reclaim::{self, Copied, Patience, allocate_copy};

/// The line of all copies: no file has that number.
const COPIES: u32 = MAPPING_NONE;

pub(crate) async fn copy_memory(handle: &Handle, page: u64, bytes: usize) -> Result<Copied> {
    let mut room = Room { handle, page, bytes, turn: None, patience: None };
    std::future::poll_fn(|context| room.poll(context.waker())).await
}

struct Room<'f> {
    handle: &'f Handle,
    page: u64,
    bytes: usize,
    turn: Option<Turn>,
    /// From its first attempt on.
    patience: Option<Patience>,
}

impl Room<'_> {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<Copied>> {
        let Handle { core, mapping, .. } = self.handle;
        // Ends: each turn follows progress of others.
        loop {
            core.check_owner()?;
            if self.turn.is_some_and(|turn| core.pressure.is_queued(COPIES, turn, waker)) {
                return Poll::Pending;
            }
            // Whether others are before it.
            let line = (COPIES, &OnItsWay::default());
            let (may_try, seen) = core.pressure.claim(line, 0, self.turn.is_some());
            let mut why = Refused::Behind;
            if may_try.is_ok() {
                let tried = allocate_copy(core, (mapping, self.page), self.bytes, false)?;
                why = match tried {
                    Ok(copied) => {
                        if let Some(turn) = self.turn.take() {
                            core.pressure.served(COPIES, turn);
                        }
                        return Poll::Ready(Ok(copied));
                    }
                    Err(Refused::NoMemory) if !mutant::on(Mutant::CopyBeforeAll) => {
                        Refused::OwnFile
                    }
                    Err(why) => why,
                };
                let patience = self.patience.get_or_insert_with(|| Patience::new(core));
                if patience.is_over_for_copy(core, mapping, why) {
                    let shortage = reclaim::shortage(core, self.bytes as u64);
                    return Poll::Ready(Err(shortage.of(mapping, self.page)));
                }
            }
            let to = (COPIES, self.turn);
            let queued = core.pressure.queue(to, (why, seen), Claim::default(), waker);
            self.turn = queued.or(self.turn);
        }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let core = &self.handle.core;
        if let Some(turn) = self.turn.take().filter(|_| core.owner.is_here()) {
            core.pressure.leave(COPIES, turn);
        }
    }
}
