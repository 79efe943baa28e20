//! The requests of many files that share a number of slots: the workers', and the ring's.
//!
//! A file may have one slot, and more as long as it has fewer than are free: one file alone has
//! half of them, and one that hangs leaves others as much as it has. A request is taken in two
//! cases only, so none waits for another file's:
//!
//! 1. its file may have one more slot: it gets that;
//! 2. its file has a slot already. Requests that somebody waits for go first, in any number: their
//!    memory bounds them. But one in eight is a read ahead: by now somebody may wait for its page.
//!
//! A slot that is given back goes to the next request of its file, or to one of another file.

use std::collections::{BTreeMap, VecDeque};

use super::request::Request;
use crate::base::mutant::{self, Mutant};

/// Of so many requests of a file one is a read ahead, if any waits.
const AHEAD_ONE_IN: u32 = 8;

pub(super) type Job<T> = (T, Request);

#[derive(Debug)]
pub(super) struct Lanes<T> {
    /// Those of files that have slots: no other has requests that wait.
    files: BTreeMap<u64, FileRequests<T>>,
    /// With a slot, but not taken to be carried out.
    pub(super) begun: VecDeque<Job<T>>,
    free: usize,
}

#[derive(Debug)]
struct FileRequests<T> {
    slots: usize,
    demand: VecDeque<Job<T>>,
    ahead: VecDeque<Job<T>>,
    /// Reads ahead, with a slot or without.
    ahead_load: usize,
    /// How many went before the first of `ahead`.
    passed: u32,
}

impl<T> Lanes<T> {
    pub(super) fn new(slots: usize) -> Self {
        Lanes { files: BTreeMap::new(), begun: VecDeque::new(), free: slots }
    }

    pub(super) fn may_begin(&self, lane: u64) -> bool {
        self.files.get(&lane).map_or(0, |lane| lane.slots) < self.free
    }

    /// How many requests the file has, with a slot or without; if none, none may wait.
    pub(super) fn load(&self, lane: u64) -> usize {
        self.files.get(&lane).map_or(0, |lane| lane.slots + lane.demand.len() + lane.ahead.len())
    }

    /// How many of these nobody waits for.
    pub(super) fn ahead_load(&self, lane: u64) -> usize {
        self.files.get(&lane).map_or(0, |lane| lane.ahead_load)
    }

    /// `begins`: its file gets one more slot, as [`Self::may_begin`] allows; otherwise it has one.
    pub(super) fn take(&mut self, number: u64, job: Job<T>, begins: bool) {
        let lane = self.files.entry(number).or_insert_with(|| FileRequests {
            slots: 0,
            demand: VecDeque::new(),
            ahead: VecDeque::new(),
            ahead_load: 0,
            passed: 0,
        });
        lane.ahead_load += usize::from(!job.1.is_awaited());
        let queue = if job.1.is_awaited() { &mut lane.demand } else { &mut lane.ahead };
        queue.push_back(job);
        if begins {
            self.begin(number);
        }
    }

    fn begin(&mut self, lane: u64) {
        let lane = self.files.get_mut(&lane).expect("it has a request");
        lane.slots += 1;
        self.free -= 1;
        self.begun.push_back(lane.pop().expect("one waits"));
    }

    /// A request is over, `awaited` or not. One that waits gets its file's slot.
    pub(super) fn end(&mut self, lane: u64, awaited: bool) {
        self.free += 1;
        let of_lane = self.files.get_mut(&lane).expect("it had a slot");
        of_lane.slots -= 1;
        of_lane.ahead_load -= usize::from(!awaited);
        let waits = |lane: &u64| {
            let FileRequests { demand, ahead, .. } = &self.files[lane];
            !(demand.is_empty() && ahead.is_empty()) && self.may_begin(*lane)
        };
        let next = Some(lane).filter(waits).or_else(|| self.files.keys().copied().find(waits));
        if let Some(next) = next {
            self.begin(next);
        }
        if self.files[&lane].slots == 0 {
            self.files.remove(&lane);
        }
    }

    pub(super) fn take_stopped(&mut self) -> Vec<Job<T>> {
        let mut stopped = Vec::new();
        for lane in self.files.values_mut() {
            for queue in [&mut lane.demand, &mut lane.ahead] {
                for job in std::mem::take(queue) {
                    if job.1.is_stopped() {
                        lane.ahead_load -= usize::from(!job.1.is_awaited());
                        stopped.push(job);
                    } else {
                        queue.push_back(job);
                    }
                }
            }
        }
        stopped
    }

    pub(super) fn take_all(&mut self) -> Vec<Job<T>> {
        let mut all: Vec<_> = std::mem::take(&mut self.begun).into();
        for lane in self.files.values_mut() {
            all.extend(lane.demand.drain(..).chain(lane.ahead.drain(..)));
        }
        all
    }
}

impl<T> FileRequests<T> {
    fn pop(&mut self) -> Option<Job<T>> {
        let overdue = self.passed + 1 >= AHEAD_ONE_IN && !mutant::on(Mutant::AheadWaits);
        if (overdue || self.demand.is_empty())
            && let Some(job) = self.ahead.pop_front()
        {
            self.passed = 0;
            return Some(job);
        }
        self.passed = if self.ahead.is_empty() { 0 } else { self.passed + 1 };
        self.demand.pop_front()
    }
}
