//! A source that injects faults into the calls of another source.
//!
//! Belongs here: choosing calls and spoiling them.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfold::source::{Extent, Hint, Source, SourceIdentity};

/// The calls that a [`Rule`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads, synchronous or not.
    Read,
    /// Writes.
    Write,
    /// Syncs.
    Sync,
    /// Changes of the length.
    SetLen,
    /// Holes.
    PunchHole,
}

/// Which of these calls a rule affects. Each rule counts its calls from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// All.
    Always,
    /// The nth alone.
    Nth(u64),
    /// The nth, the 2nth and so on; 0 for none.
    Every(u64),
    /// Those that touch a range of bytes; of calls with no range, none.
    Range(Range<u64>),
    /// So many calls in a million, chosen by hashing the seed and the call's number: the same calls
    /// in every run.
    PerMillion {
        /// 1,000,000 for all.
        chance: u32,
        /// Another seed chooses other calls.
        seed: u64,
    },
}

/// What happens to an affected call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call does nothing and returns this error number (5 for `EIO`, 28 for `ENOSPC`).
    Error(i32),
    /// A read returns at most this many bytes, as if the source ended there. A write writes this
    /// many and then fails with `EIO`, as if power had failed. Other calls fail with `EIO`.
    Short(usize),
    /// The call is delayed by this much; then the next rule that fits applies.
    Delay(Duration),
    /// A read returns a count that is this much above what was asked.
    Overlong(usize),
}

/// One fault to inject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The calls that the rule counts.
    pub operation: Operation,
    /// Which of those calls are affected.
    pub when: When,
    /// What happens to them.
    pub fault: Fault,
}

/// What a [`Faulty`] source has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultyCounts {
    /// Reads that came.
    pub reads: u64,
    /// Writes that came.
    pub writes: u64,
    /// Syncs that came.
    pub syncs: u64,
    /// Changes of the length that came.
    pub set_lens: u64,
    /// Holes that came.
    pub holes: u64,
    /// Calls that got an error.
    pub errors: u64,
    /// Calls that were cut short.
    pub shorts: u64,
    /// Calls that were delayed.
    pub delays: u64,
    /// Reads that returned a count too large.
    pub overlongs: u64,
}

/// A source that passes calls on to the one inside, except where a rule applies. Rules are tried in
/// order; delays add up, and the first other fault decides.
///
/// ```
/// use pinfold::source::{Memory, Source};
/// use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};
/// use std::sync::{Arc, Mutex};
///
/// let faulty = Faulty::new(Arc::new(Memory::new(vec![7; 100])));
/// faulty.add(Rule { operation: Operation::Read, when: When::Nth(2), fault: Fault::Error(5) });
/// let mut buf = [0; 10];
/// assert!(faulty.read_at(0, &mut buf).is_ok());
/// assert_eq!(faulty.read_at(0, &mut buf).unwrap_err().raw_os_error(), Some(5));
/// assert!(faulty.read_at(0, &mut buf).is_ok());
/// assert_eq!(faulty.counts().errors, 1);
/// ```
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Source>,
    state: Mutex<FaultyState>,
}

#[derive(Debug, Default)]
struct FaultyState {
    rules: Vec<(Rule, u64)>,
    counts: FaultyCounts,
}

impl Faulty {
    /// Passes every call on until rules are added.
    pub fn new(inner: Arc<dyn Source>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Adds a rule, to be tried after the existing ones; it counts calls from now on.
    pub fn add(&self, rule: Rule) {
        self.state.lock().unwrap().rules.push((rule, 0));
    }

    /// Removes all rules.
    pub fn heal(&self) {
        self.state.lock().unwrap().rules.clear();
    }

    /// The counts so far.
    pub fn counts(&self) -> FaultyCounts {
        self.state.lock().unwrap().counts
    }

    /// Counts the call and waits out its delays; returns the fault that decides, if any.
    fn next_fault(&self, operation: Operation, range: &Range<u64>) -> Option<Fault> {
        let (fault, delay) = self.state.lock().unwrap().next_fault(operation, range);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        fault
    }

    /// For calls that cannot be cut short.
    fn fault_of_whole(&self, operation: Operation) -> io::Result<()> {
        match self.next_fault(operation, &(0..0)) {
            None => Ok(()),
            Some(Fault::Error(number)) => Err(io::Error::from_raw_os_error(number)),
            Some(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }
}

impl FaultyState {
    fn next_fault(
        &mut self,
        operation: Operation,
        range: &Range<u64>,
    ) -> (Option<Fault>, Duration) {
        let counts = &mut self.counts;
        match operation {
            Operation::Read => counts.reads += 1,
            Operation::Write => counts.writes += 1,
            Operation::Sync => counts.syncs += 1,
            Operation::SetLen => counts.set_lens += 1,
            Operation::PunchHole => counts.holes += 1,
        }
        let (mut decided, mut delay) = (None, Duration::ZERO);
        for (rule, calls) in &mut self.rules {
            if rule.operation != operation {
                continue;
            }
            *calls += 1;
            if decided.is_some() || !fits(&rule.when, *calls, range) {
                continue;
            }
            match &rule.fault {
                Fault::Delay(time) => {
                    counts.delays += 1;
                    delay += *time;
                    continue;
                }
                Fault::Error(_) => counts.errors += 1,
                Fault::Short(_) => counts.shorts += 1,
                Fault::Overlong(_) => counts.overlongs += 1,
            }
            decided = Some(rule.fault.clone());
        }
        (decided, delay)
    }
}

fn fits(when: &When, call: u64, range: &Range<u64>) -> bool {
    match when {
        When::Always => true,
        When::Nth(n) => call == *n,
        When::Every(n) => *n > 0 && call.is_multiple_of(*n),
        When::Range(bad) => bad.start < range.end && range.start < bad.end,
        When::PerMillion { chance, seed } => hash(seed ^ hash(call)) % 1_000_000 < (*chance).into(),
    }
}

/// Stafford's thirteenth mixer of 64 bits, the one in `SplitMix64`.
fn hash(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn range_of(offset: u64, bytes: usize) -> Range<u64> {
    offset..offset.saturating_add(bytes as u64)
}

fn total_bytes(extents: &[Extent<'_>]) -> usize {
    extents.iter().map(Extent::bytes).sum()
}

/// The first `bytes` of `extents`, or all there are.
fn head<'e>(extents: &[Extent<'e>], bytes: usize) -> Vec<Extent<'e>> {
    let mut left = bytes;
    let mut head = Vec::new();
    for extent in extents {
        let part = extent.bytes().min(left);
        left -= part;
        if part > 0 {
            head.push(extent.part(0, part));
        }
    }
    head
}

impl Source for Faulty {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.read_extents_at(offset, &[Extent::of(buf)])
    }

    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        let bytes = total_bytes(extents);
        match self.next_fault(Operation::Read, &range_of(offset, bytes)) {
            None | Some(Fault::Delay(_)) => self.inner.read_extents_at(offset, extents),
            Some(Fault::Error(number)) => Err(io::Error::from_raw_os_error(number)),
            // Reads all and returns less: the source inside may need whole blocks.
            Some(Fault::Short(most)) => Ok(self.inner.read_extents_at(offset, extents)?.min(most)),
            Some(Fault::Overlong(more)) => Ok(bytes + more),
        }
    }

    fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        match self.next_fault(Operation::Write, &range_of(offset, buf.len())) {
            None | Some(Fault::Delay(_)) => self.inner.write_at(offset, buf),
            Some(Fault::Error(number)) => Err(io::Error::from_raw_os_error(number)),
            Some(Fault::Short(most) | Fault::Overlong(most)) => {
                self.inner.write_at(offset, &buf[..most.min(buf.len())])?;
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
        }
    }

    fn write_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        match self.next_fault(Operation::Write, &range_of(offset, total_bytes(extents))) {
            None | Some(Fault::Delay(_)) => self.inner.write_extents_at(offset, extents),
            Some(Fault::Error(number)) => Err(io::Error::from_raw_os_error(number)),
            Some(Fault::Short(most) | Fault::Overlong(most)) => {
                self.inner.write_extents_at(offset, &head(extents, most))?;
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
        }
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.inner.len_bytes()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.fault_of_whole(Operation::SetLen)?;
        self.inner.set_len(bytes)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.fault_of_whole(Operation::PunchHole)?;
        self.inner.punch_hole(range)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.fault_of_whole(Operation::Sync)?;
        self.inner.sync(data_only)
    }

    fn advise(&self, range: Range<u64>, hint: Hint) -> io::Result<()> {
        self.inner.advise(range, hint)
    }

    fn identity(&self) -> Option<SourceIdentity> {
        self.inner.identity()
    }

    fn deadline(&self) -> Option<Duration> {
        self.inner.deadline()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn kind(&self) -> Cow<'static, str> {
        format!("faulty {}", self.inner.kind()).into()
    }
}
