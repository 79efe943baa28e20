//! The requests between submitters and driver: which of them have a slot, and which wait for one.
//!
//! # Bounds
//! The kernel has at most `depth` requests, each in a slot. A file may have one slot, and more as
//! long as it has fewer than are free. So one file alone has half of them, and a device that hangs
//! leaves others as much as it has. A request is accepted in two cases only:
//!
//! 1. its file may have one more slot: it gets that;
//! 2. its file has a slot already, so it waits only for reads of its own file. Those that somebody
//!    waits for go first, but for one in eight (`waiting.rs`), and `start` takes any number of
//!    them: their memory bounds them.
//!
//! Of others `start` takes some as long as `taken`, which counts requests between `start` and
//! `finish`, is below `ahead`. It gives the rest back (`Start::Full`): what somebody waits for
//! finds the device less busy.
//!
//! The submission queue holds `depth` requests, a cancellation of each, and the wake-up; the
//! completion queue twice as many. So neither can be full.
//!
//! # States of the driver (under the mutex)
//! `awake` -> `asleep`: nothing waits; it goes into the kernel. `asleep` -> `awake`: a submitter
//! or `close` found it so and wrote to the eventfd, or a completion came. So a request put in
//! while `awake` is seen before the driver sleeps, and one put in while `asleep` wakes it.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::base::sync::locks::Mutex;
use crate::source::descriptor::Descriptor;
use crate::source::request::Request;
use crate::source::waiting::RequestQueues;

#[derive(Debug)]
pub(super) struct RingShared {
    pub(super) state: Mutex<RingState>,
    pub(super) wake: OwnedFd,
    pub(super) depth: usize,
    pub(super) ahead: usize,
}

#[derive(Debug)]
pub(super) struct RingState {
    // Mostly of one or two.
    files: BTreeMap<DescriptorKey, FileWithSlots>,
    /// Requests with a slot that the driver has not seen.
    pub(super) begun: VecDeque<WaitingRequest>,
    /// Slots that no request has.
    free: usize,
    pub(super) taken: usize,
    pub(super) asleep: bool,
    pub(super) closing: bool,
    /// A request in the kernel may have been asked to stop.
    pub(super) stops: bool,
    /// The error by which the kernel refused the ring.
    pub(super) refused: Option<String>,
}

/// Where a file's descriptor is. A file is listed only while it has a request, which has a share in
/// its descriptor.
type DescriptorKey = usize;

fn key(file: &Arc<Descriptor>) -> DescriptorKey {
    Arc::as_ptr(file).addr()
}

/// A file that has slots. Only such a file has requests that wait for one.
#[derive(Debug, Default)]
struct FileWithSlots {
    slots: usize,
    waiting: RequestQueues<WaitingRequest>,
}

impl RingState {
    pub(super) fn new(depth: usize) -> Self {
        RingState {
            files: BTreeMap::new(),
            begun: VecDeque::new(),
            free: depth,
            taken: 0,
            asleep: false,
            closing: false,
            stops: false,
            refused: None,
        }
    }

    /// Whether the limits allow to take a request of the file: see the head of this one. Of all, at
    /// most `ahead` are taken for nobody.
    pub(super) fn takes(&self, file: &Arc<Descriptor>, request: &Request, ahead: usize) -> bool {
        let fits = request.is_awaited() || self.taken < ahead;
        !self.closing && fits && (self.may_have(key(file)) || self.files.contains_key(&key(file)))
    }

    /// Takes a request that [`Self::takes`] allows.
    pub(super) fn take(&mut self, file: &Arc<Descriptor>, request: Request) {
        let left = (Arc::clone(file), request);
        if self.may_have(key(file)) {
            self.begin(left);
        } else {
            let served = self.files.get_mut(&key(file)).expect("it has slots");
            served.waiting.push(left);
        }
        self.taken += 1;
    }

    /// Whether the file may have one more slot; see the head of the file.
    fn may_have(&self, file: DescriptorKey) -> bool {
        let slots = self.files.get(&file).map_or(0, |served| served.slots);
        slots < self.free
    }

    fn begin(&mut self, left: WaitingRequest) {
        self.free -= 1;
        self.files.entry(key(&left.0)).or_default().slots += 1;
        self.begun.push_back(left);
    }

    /// A slot of the file is free: requests that wait get it, of this file or of another one.
    pub(super) fn give_back(&mut self, file: &Arc<Descriptor>) {
        let file = key(file);
        self.free += 1;
        self.files.get_mut(&file).expect("it had a slot").slots -= 1;
        // Ends: each turn takes a slot.
        while let Some(file) = self.in_want(file) {
            let served = self.files.get_mut(&file).expect("it was found there");
            let left = served.waiting.pop().expect("one waits");
            self.begin(left);
        }
        if self.files[&file].slots == 0 {
            self.files.remove(&file);
        }
    }

    /// A file with requests that wait which may have a slot: `first`, or any.
    fn in_want(&self, first: DescriptorKey) -> Option<DescriptorKey> {
        let waits =
            |file: &DescriptorKey| !self.files[file].waiting.is_empty() && self.may_have(*file);
        Some(first).filter(waits).or_else(|| self.files.keys().copied().find(waits))
    }

    /// All requests that the driver has not seen, and that wait.
    pub(super) fn take_all(&mut self) -> Vec<WaitingRequest> {
        let mut all: Vec<_> = std::mem::take(&mut self.begun).into();
        for served in self.files.values_mut() {
            all.extend(std::mem::take(&mut served.waiting).into_all());
        }
        all
    }

    /// Those that wait and were asked to stop.
    pub(super) fn take_stopped(&mut self) -> Vec<WaitingRequest> {
        let mut stopped = Vec::new();
        for served in self.files.values_mut() {
            stopped.extend(served.waiting.take_if(|left| left.1.stop().is_some()));
        }
        stopped
    }
}

impl RingShared {
    /// Makes the driver look for requests that were asked to stop.
    pub(super) fn stop_some(&self) {
        let mut state = self.state.lock();
        state.stops = true;
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.wake_driver();
        }
    }

    pub(super) fn wake_driver(&self) {
        let woken =
            rustix::io::retry_on_intr(|| rustix::io::write(&self.wake, &1_u64.to_ne_bytes()));
        assert!(woken.is_ok(), "writing to the ring's eventfd failed: {woken:?}");
    }
}

/// A request that the kernel does not have.
pub(super) type WaitingRequest = (Arc<Descriptor>, Request);
