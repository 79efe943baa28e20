//! A source in memory that records what is done to it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfold::source::{Source, SourceIdentity};

use super::contents::{Contents, SECTOR, Sector};
use super::options::DiskFault;

/// Numbers what happens, in its order: in all files and threads of a run.
#[derive(Debug, Default)]
pub(super) struct Ticks(AtomicU64);

impl Ticks {
    pub(super) fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

#[derive(Clone, Debug)]
pub(super) enum DiskStep {
    /// What the sectors have afterwards that it touches.
    Write {
        offset: usize,
        bytes: usize,
        contents: Vec<u32>,
    },
    SetLen(usize),
    /// What the sectors have afterwards that it touches.
    Punch {
        offset: usize,
        contents: Vec<u32>,
    },
    Sync,
    /// `lost`: what was written since the last good one is on the disk or not, and never gets there
    /// by another sync.
    SyncFailed {
        lost: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) at: u64,
    pub(super) step: DiskStep,
}

/// How the source behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behaviour {
    pub(super) alignment: usize,
    pub(super) seed: u64,
    /// Of a thousand writes, syncs, changes of the length, and holes.
    pub(super) writes_fail: u64,
    pub(super) syncs_fail: u64,
    pub(super) set_lens_fail: u64,
    /// `None`: it punches none.
    pub(super) holes_fail: Option<u64>,
    pub(super) failure_loses: bool,
    /// A sync takes some time, in which others write.
    pub(super) slow: bool,
    pub(super) fault: Option<DiskFault>,
}

#[derive(Debug)]
pub(super) struct Recorder {
    name: String,
    behaviour: Behaviour,
    clock: Arc<Ticks>,
    contents: Arc<Mutex<Contents>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What a read gets.
    live: Vec<u8>,
    steps: Vec<Recorded>,
    /// What sectors had before they were first written since the last good sync.
    old: BTreeMap<usize, Sector>,
    syncs: u64,
    healed: bool,
}

/// Where planted faults strike: one call in so many.
const FAULT_ONE_IN: u64 = 16;

impl Recorder {
    pub(super) fn new(
        name: String,
        live: Vec<u8>,
        behaviour: Behaviour,
        (clock, contents): (Arc<Ticks>, Arc<Mutex<Contents>>),
    ) -> Self {
        let state = Mutex::new(State { live, ..State::default() });
        Recorder { name, behaviour, clock, contents, state }
    }

    /// No call fails from here on.
    pub(super) fn heal(&self) {
        self.state.lock().unwrap().healed = true;
    }

    /// What was recorded. Writes between two other steps, of which none writes again what one before
    /// it has, may have been under way at once: they are in the order of the file, so that each run of
    /// a seed has the same prefixes.
    pub(super) fn steps(&self) -> Vec<Recorded> {
        let mut steps = self.state.lock().unwrap().steps.clone();
        let range = |it: &Recorded| match it.step {
            DiskStep::Write { offset, bytes, .. } => Some(offset..offset + bytes),
            _ => None,
        };
        let mut rest = &mut steps[..];
        // Ends: each turn takes a step.
        while !rest.is_empty() {
            let mut written: Vec<Range<usize>> = Vec::new();
            for write in rest.iter().map_while(range) {
                let again = |it: &Range<usize>| it.start < write.end && write.start < it.end;
                if written.iter().any(again) {
                    break;
                }
                written.push(write);
            }
            let (run, behind) = rest.split_at_mut(written.len().max(1));
            // A later one may have what was changed while an earlier one was under way.
            let last = run[run.len() - 1].at;
            run.sort_by_key(|it| range(it).map(|it| it.start));
            for it in &mut *run {
                it.at = last;
            }
            rest = behind;
        }
        steps
    }

    /// A number that is the same for the same call in each run of a seed.
    fn draw(&self, state: &State, offset: u64) -> u64 {
        let word = self.behaviour.seed ^ (state.syncs << 40) ^ offset;
        fastrand::Rng::with_seed(word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).u64(..)
    }

    fn strikes(&self, fault: DiskFault, drawn: u64) -> bool {
        self.behaviour.fault == Some(fault) && (drawn >> 32).is_multiple_of(FAULT_ONE_IN)
    }
}

impl State {
    /// Of a sector the bytes that the file has.
    fn there(&mut self, n: usize) -> &mut [u8] {
        let len = self.live.len();
        &mut self.live[(n * SECTOR).min(len)..((n + 1) * SECTOR).min(len)]
    }

    fn sector(&mut self, n: usize) -> Sector {
        let mut sector = [0; SECTOR];
        let there = self.there(n);
        sector[..there.len()].copy_from_slice(there);
        sector
    }

    fn write(&mut self, at: u64, offset: usize, bytes: &[u8], contents: &mut Contents) {
        let sectors = offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR);
        for n in sectors.clone() {
            let before = self.sector(n);
            self.old.entry(n).or_insert(before);
        }
        let end = offset + bytes.len();
        self.live.resize(self.live.len().max(end), 0);
        self.live[offset..end].copy_from_slice(bytes);
        let contents = sectors.map(|n| contents.number(&self.sector(n))).collect();
        let step = DiskStep::Write { offset, bytes: bytes.len(), contents };
        self.steps.push(Recorded { at, step });
    }

    /// What was written is not in the kernel's memory any more: some of it has reached the disk.
    fn lose(&mut self, mut random: fastrand::Rng) {
        for (n, before) in std::mem::take(&mut self.old) {
            let there = self.there(n);
            if random.bool() {
                there.copy_from_slice(&before[..there.len()]);
            }
        }
    }
}

fn failed() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Source for Recorder {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let state = self.state.lock().unwrap();
        let begin = (offset as usize).min(state.live.len());
        let got = buf.len().min(state.live.len() - begin);
        buf[..got].copy_from_slice(&state.live[begin..begin + got]);
        Ok(got)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let whole = |it: usize| it.is_multiple_of(self.behaviour.alignment);
        let mut offset_bytes = offset as usize;
        assert!(whole(offset_bytes) && whole(buf.len()), "a write of parts of blocks");
        let mut contents = self.contents.lock().unwrap();
        let mut state = self.state.lock().unwrap();
        let drawn = self.draw(&state, offset);
        let fails = !state.healed && drawn % 1000 < self.behaviour.writes_fail;
        // A write that fails may have come to its middle.
        let sectors = buf.len().div_ceil(SECTOR) as u64;
        let mut part = if fails { (drawn >> 20) % sectors * SECTOR as u64 } else { u64::MAX };
        if self.strikes(DiskFault::WriteLost, drawn) {
            part = 0;
        } else if self.strikes(DiskFault::WriteTorn, drawn) {
            part = (drawn >> 20) % sectors * SECTOR as u64;
        } else if self.strikes(DiskFault::WriteMisplaced, drawn) {
            offset_bytes += SECTOR;
        }
        let part = part.min(buf.len() as u64) as usize;
        if part > 0 {
            state.write(self.clock.tick(), offset_bytes, &buf[..part], &mut contents);
        }
        if fails { Err(failed()) } else { Ok(()) }
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.state.lock().unwrap().live.len() as u64)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let bytes = bytes as usize;
        let mut state = self.state.lock().unwrap();
        let drawn = self.draw(&state, !(bytes as u64));
        if !state.healed && drawn % 1000 < self.behaviour.set_lens_fail {
            return Err(failed());
        }
        state.live.resize(bytes, 0);
        drop(state.old.split_off(&(bytes / SECTOR)));
        let at = self.clock.tick();
        state.steps.push(Recorded { at, step: DiskStep::SetLen(bytes) });
        Ok(())
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        let Some(holes_fail) = self.behaviour.holes_fail else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mut contents = self.contents.lock().unwrap();
        let mut state = self.state.lock().unwrap();
        let drawn = self.draw(&state, range.start ^ range.end << 20);
        let len = state.live.len();
        let (begin, mut end) = ((range.start as usize).min(len), (range.end as usize).min(len));
        assert!(range.start.is_multiple_of(SECTOR as u64), "a hole that begins in a sector");
        let fails = !state.healed && drawn % 1000 < holes_fail;
        if fails {
            // It may have come to its middle.
            end = begin + (end - begin) / 2 / SECTOR * SECTOR;
        }
        if begin < end {
            state.live[begin..end].fill(0);
            let sectors = begin / SECTOR..end.div_ceil(SECTOR);
            state.old.retain(|n, _| !sectors.contains(n));
            let contents = sectors.map(|n| contents.number(&state.sector(n))).collect();
            let step = DiskStep::Punch { offset: begin, contents };
            let at = self.clock.tick();
            state.steps.push(Recorded { at, step });
        }
        if fails { Err(failed()) } else { Ok(()) }
    }

    fn sync(&self, _data_only: bool) -> io::Result<()> {
        if self.behaviour.slow {
            std::thread::sleep(Duration::from_micros(20));
        }
        let mut state = self.state.lock().unwrap();
        state.syncs += 1;
        let drawn = self.draw(&state, u64::MAX);
        if self.strikes(DiskFault::SyncLies, drawn) {
            return Ok(());
        }
        let at = self.clock.tick();
        if !state.healed && drawn % 1000 < self.behaviour.syncs_fail {
            let lost = self.behaviour.failure_loses;
            if lost {
                state.lose(fastrand::Rng::with_seed(drawn));
            }
            state.steps.push(Recorded { at, step: DiskStep::SyncFailed { lost } });
            return Err(failed());
        }
        state.old.clear();
        state.steps.push(Recorded { at, step: DiskStep::Sync });
        Ok(())
    }

    fn alignment(&self) -> usize {
        self.behaviour.alignment
    }

    fn kind(&self) -> Cow<'static, str> {
        "recorder".into()
    }

    /// So that its pages stay when it is closed, and it can be opened again.
    fn identity(&self) -> Option<SourceIdentity> {
        Some(SourceIdentity { key: self.name.clone(), version: String::new() })
    }
}
