//! One thread for each cache, started by its first deadline, that asks requests to stop.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::base::sync::locks::{Condvar, Mutex};
use crate::base::threads::start;

use super::pool::join_unless_self;
use super::request::{Control, Request};

/// The list grows to this length before it is swept.
const SWEEP_MIN: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Clock {
    shared: Arc<ClockShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct ClockShared {
    state: Mutex<ClockState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ClockState {
    /// By when, and a number of its own.
    deadlines: BTreeMap<(Instant, u64), Weak<Control>>,
    last: u64,
    /// The length at which entries of ended requests are removed next.
    sweep_at: usize,
    closing: bool,
}

impl ClockState {
    fn first(&self) -> Option<Instant> {
        self.deadlines.keys().next().map(|(at, _)| *at)
    }
}

impl Clock {
    /// If the thread cannot be started, only carriers that check the time notice a deadline.
    pub(super) fn watch<'r>(&self, requests: impl Iterator<Item = &'r Request>) {
        let mut watched = requests.filter_map(Request::watched).peekable();
        if watched.peek().is_none() {
            return;
        }
        let mut state = self.shared.state.lock();
        let before = state.first();
        for (at, of) in watched {
            state.last += 1;
            let key = (at, state.last);
            state.deadlines.insert(key, Arc::downgrade(of));
        }
        if state.deadlines.len() > state.sweep_at.max(SWEEP_MIN) {
            state.deadlines.retain(|_, of| of.strong_count() > 0);
            state.sweep_at = state.deadlines.len() * 2;
        }
        let sooner = state.first() != before;
        drop(state);
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            *thread = start("pinfold-clock", move || shared.run()).ok();
        }
        drop(thread);
        if sooner {
            self.shared.changed.notify_one();
        }
    }

    pub(super) fn close(&self) {
        self.shared.state.lock().closing = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        thread.into_iter().for_each(join_unless_self);
    }
}

impl ClockShared {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.closing {
            let Some(at) = state.first() else {
                state = self.changed.wait(state);
                continue;
            };
            let left = at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                state = self.changed.wait_timeout(state, left);
                continue;
            }
            let Some((_, due)) = state.deadlines.pop_first() else { continue };
            drop(state);
            if let Some(control) = due.upgrade() {
                control.time_out();
            }
            state = self.state.lock();
        }
    }
}
