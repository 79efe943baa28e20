//! The clock: asks requests to stop when their deadline has passed.
//!
//! Belongs here: one thread for each cache, started by its first deadline. Does not: how a request
//! then ends (`request.rs`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::base::sync::locks::{Condvar, Mutex};
use crate::base::threads::start;

use super::pool::join_unless_self;
use super::request::{Control, Request};

/// The list grows to this length before entries of ended requests are removed.
const SWEEP_MIN: usize = 64;

/// The deadlines of a cache's requests.
#[derive(Debug)]
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
    /// The earliest first.
    deadlines: BinaryHeap<Reverse<Deadline>>,
    /// The length at which entries of ended requests are removed next.
    sweep_at: usize,
    closing: bool,
}

#[derive(Debug)]
struct Deadline {
    at: Instant,
    of: Weak<Control>,
}

impl PartialEq for Deadline {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Deadline {}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Deadline {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl Clock {
    pub(super) fn new() -> Self {
        Clock { shared: Arc::default(), thread: Mutex::new(None) }
    }

    /// Watches the deadlines of the requests that have one. If the thread cannot be started, only
    /// carriers that check the time themselves notice a deadline.
    pub(super) fn watch<'r>(&self, requests: impl Iterator<Item = &'r Request>) {
        let mut watched = requests.filter_map(Request::watched).peekable();
        if watched.peek().is_none() {
            return;
        }
        let mut state = self.shared.state.lock();
        let before = state.deadlines.peek().map(|Reverse(first)| first.at);
        state
            .deadlines
            .extend(watched.map(|(at, of)| Reverse(Deadline { at, of: Arc::downgrade(of) })));
        if state.deadlines.len() > state.sweep_at.max(SWEEP_MIN) {
            state.deadlines.retain(|Reverse(deadline)| deadline.of.strong_count() > 0);
            state.sweep_at = state.deadlines.len() * 2;
        }
        let sooner = state.deadlines.peek().map(|Reverse(first)| first.at) != before;
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

    /// Ends the thread. No request is asked to stop after that.
    pub(super) fn close(&self) {
        self.shared.state.lock().closing = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            join_unless_self(thread);
        }
    }
}

impl ClockShared {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.closing {
            let Some(Reverse(first)) = state.deadlines.peek() else {
                state = self.changed.wait(state);
                continue;
            };
            let left = first.at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                state = self.changed.wait_timeout(state, left);
                continue;
            }
            let Some(Reverse(due)) = state.deadlines.pop() else { continue };
            drop(state);
            if let Some(control) = due.of.upgrade() {
                control.time_out();
            }
            state = self.state.lock();
        }
    }
}
