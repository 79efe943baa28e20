//! Random operations, checked against a plain vector.
//!
//! Belongs here: the steps, what is to be expected of each, and scripts out of plain bytes.
//!
//! # What is expected
//! A source that nobody changes: exactly its bytes. One that is written anew: the new bytes after
//! an `invalidate` of what was written; until then, page by page, old or new. One that was cut
//! short or made longer: its old bytes within the old length, or an error that says so, until an
//! `invalidate` of any range makes the cache ask for the length; from then on exactly what it has.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use pinfold::source::{Hint, Memory, Source};
use pinfold::{Cache, ErrorKind, File, Options};

use crate::pattern::Pattern;

const BUDGET_MIN_BYTES: u64 = *pinfold::Options::BUDGET_BYTES.start();

/// Bytes of the longest file of a script: a few times the budget.
pub const FILE_MAX_BYTES: u64 = 3 << 20;

/// Which of the files a step is about, modulo their number.
pub type Which = u8;

/// One step of a script. Offsets and lengths of ranges are taken as they are: out of range is a
/// case like others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read this many bytes at an offset.
    Read(Which, u64, u32),
    /// Read the whole file in pieces of this many bytes, at least 512.
    Scan(Which, u32),
    /// Invalidate a range.
    Invalidate(Which, u64, u64),
    /// Give a hint about a range.
    Advise(Which, u64, u64, u8),
    /// Split the folios of a range.
    Split(Which, u64, u64),
    /// Move the folios of a range.
    Migrate(Which, u64, u64),
    /// Make a free run.
    Compact,
    /// Drop the handle and open the file again: the real ones alone.
    Reopen(Which),
    /// Somebody changes the length to this, modulo the largest; what is new gets new bytes.
    Resize(Which, u64),
    /// Somebody writes the range anew, and then it is invalidated.
    Rewrite(Which, u64, u64),
}

/// Lengths that the files of a script begin with; the second half of them are real files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// In bytes, at most [`FILE_MAX_BYTES`].
    pub lengths: Vec<u64>,
    /// In order.
    pub steps: Vec<Step>,
}

impl Script {
    /// A script out of any bytes at all: the first few are lengths, each further 11 are a step.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut words = bytes.chunks(11).map(|chunk| {
            let mut word = [0; 11];
            word[..chunk.len()].copy_from_slice(chunk);
            word
        });
        let first = words.next().unwrap_or_default();
        let length = |n: usize| size([first[n], first[n + 1], first[n + 2], 0]) % FILE_MAX_BYTES;
        let lengths = vec![length(0), length(3), length(6)];
        let steps = words.map(step).collect();
        Script { lengths, steps }
    }
}

/// A number whose magnitude is as random as its digits: the low 5 bits of the first byte say how
/// many bits it has.
fn size(bytes: [u8; 4]) -> u64 {
    let bits = u64::from(bytes[0] % 32);
    let digits = u64::from(u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[0]]));
    digits & ((1 << bits) - 1)
}

fn step(word: [u8; 11]) -> Step {
    let [kind, which, a0, a1, a2, a3, b0, b1, b2, b3, c] = word;
    // Offsets near the end of a file, of a page, of what there is: all by chance.
    let mut at = u64::from(u32::from_le_bytes([a0, a1, a2, a3])) % (FILE_MAX_BYTES + 8192);
    if c >= 250 {
        at = i64::MAX as u64 - at % 8192 + u64::from(c - 250);
    }
    let bytes = size([b0, b1, b2, b3]);
    match kind % 16 {
        0..6 => Step::Read(which, at, (bytes % (2 << 20)) as u32),
        6 => Step::Scan(which, (bytes % (1 << 18)) as u32),
        7 | 8 => Step::Invalidate(which, at, bytes),
        9 => Step::Advise(which, at, bytes, c),
        10 => Step::Split(which, at, bytes),
        11 => Step::Migrate(which, at, bytes),
        12 => Step::Compact,
        13 => Step::Reopen(which),
        14 => Step::Resize(which, at),
        _ => Step::Rewrite(which, at, bytes),
    }
}

/// Somebody else's view of a file.
#[derive(Debug)]
enum Owner {
    Memory(Arc<Memory>),
    Real(std::path::PathBuf),
}

impl Owner {
    fn write(&self, offset: u64, bytes: &[u8]) {
        match self {
            Owner::Memory(memory) => memory.write_at(offset, bytes).expect("memory is written"),
            Owner::Real(path) => {
                let file = std::fs::OpenOptions::new().write(true).open(path);
                let file = file.expect("the file is still there");
                std::os::unix::fs::FileExt::write_all_at(&file, bytes, offset)
                    .expect("the file is written");
            }
        }
    }

    fn set_len(&self, bytes: u64) {
        match self {
            Owner::Memory(memory) => memory.set_len(bytes).expect("memory is cut"),
            Owner::Real(path) => {
                let file = std::fs::OpenOptions::new().write(true).open(path);
                file.and_then(|file| file.set_len(bytes)).expect("the file is cut");
            }
        }
    }
}

/// A file, and what must be read from it.
#[derive(Debug)]
struct ScriptFile {
    file: File,
    owner: Owner,
    pattern: Pattern,
    /// What the source has.
    now: Vec<u8>,
    /// What it had when the cache last asked for its length: that length counts until it asks
    /// again. Bytes may come from here or from `now`.
    recorded: Vec<u8>,
}

/// Runs a script; real files are made in `dir`.
///
/// # Errors
/// The first step that was not as expected, and how.
pub fn replay(script: &Script, dir: &Path) -> Result<(), String> {
    let cache = Cache::new(Options::new(BUDGET_MIN_BYTES)).map_err(|error| error.to_string())?;
    let mut subjects = Vec::new();
    for (n, &bytes) in script.lengths.iter().enumerate() {
        let real = n >= script.lengths.len().div_ceil(2);
        subjects.push(ScriptFile::new(&cache, n, bytes.min(FILE_MAX_BYTES), real.then_some(dir))?);
    }
    if subjects.is_empty() {
        return Ok(());
    }
    for (n, step) in script.steps.iter().enumerate() {
        run(&cache, &mut subjects, step).map_err(|why| format!("step {n}, {step:?}: {why}"))?;
        let stats = cache.stats();
        if stats.resident_bytes + stats.metadata_bytes > stats.budget_bytes {
            return Err(format!("step {n}, {step:?}: over the budget: {stats:?}"));
        }
    }
    // Whatever happened, the cache lives on, and ends up with the truth.
    for subject in &mut subjects {
        subject.invalidate(0..i64::MAX as u64)?;
        subject.scan(65_536).map_err(|why| format!("in the end: {why}"))?;
    }
    Ok(())
}

fn run(cache: &Cache, subjects: &mut [ScriptFile], step: &Step) -> Result<(), String> {
    let count = subjects.len();
    let which = match *step {
        Step::Compact => {
            cache.compact();
            return Ok(());
        }
        Step::Read(which, ..)
        | Step::Scan(which, _)
        | Step::Invalidate(which, ..)
        | Step::Advise(which, ..)
        | Step::Split(which, ..)
        | Step::Migrate(which, ..)
        | Step::Reopen(which)
        | Step::Resize(which, _)
        | Step::Rewrite(which, ..) => which,
    };
    let subject = &mut subjects[usize::from(which) % count];
    match *step {
        Step::Read(_, offset, bytes) => subject.read(offset, bytes as usize),
        Step::Scan(_, piece) => subject.scan(piece.max(512) as usize),
        Step::Invalidate(_, offset, bytes) => subject.invalidate(range(offset, bytes)),
        Step::Advise(_, offset, bytes, hint) => {
            let hints = [Hint::Sequential, Hint::Random, Hint::WillNeed, Hint::DontNeed];
            let range = range(offset, bytes);
            let legal = i64::try_from(range.end).is_ok();
            let taken = subject.file.advise(range, hints[usize::from(hint) % 4]);
            if legal == taken.is_ok() { Ok(()) } else { Err(format!("{taken:?}")) }
        }
        Step::Split(_, offset, bytes) => {
            subject.file.split(range(offset, bytes));
            Ok(())
        }
        Step::Migrate(_, offset, bytes) => {
            subject.file.migrate(range(offset, bytes));
            Ok(())
        }
        Step::Compact => Ok(()),
        Step::Reopen(_) => subject.reopen(cache),
        Step::Resize(_, bytes) => {
            subject.resize((bytes % FILE_MAX_BYTES) as usize);
            Ok(())
        }
        Step::Rewrite(_, offset, bytes) => subject.rewrite(range(offset, bytes)),
    }
}

fn range(offset: u64, bytes: u64) -> Range<u64> {
    offset..offset.saturating_add(bytes)
}

impl ScriptFile {
    fn new(cache: &Cache, n: usize, bytes: u64, dir: Option<&Path>) -> Result<Self, String> {
        let pattern = Pattern::new(1, n as u16);
        let now = pattern.to_vec(bytes as usize);
        let (owner, file) = if let Some(dir) = dir {
            let path = dir.join(format!("file-{n}"));
            std::fs::write(&path, &now).map_err(|error| error.to_string())?;
            (Owner::Real(path.clone()), cache.open(path))
        } else {
            let memory = Arc::new(Memory::new(now.clone()));
            (Owner::Memory(memory.clone()), cache.attach("memory", memory))
        };
        let file = file.map_err(|error| error.to_string())?;
        Ok(ScriptFile { file, owner, pattern, recorded: now.clone(), now })
    }

    /// Whether the source is still as the cache was told.
    fn settled(&self) -> bool {
        self.now == self.recorded
    }

    fn read(&mut self, offset: u64, bytes: usize) -> Result<(), String> {
        let mut buf = vec![0xee; bytes];
        let end = offset.checked_add(bytes as u64).filter(|&end| i64::try_from(end).is_ok());
        let got = match (self.file.read_at(&mut buf, offset), end) {
            (Err(error), None) if error.kind() == ErrorKind::Invalid => return Ok(()),
            (result, None) => return Err(format!("{result:?} for an impossible range")),
            (Err(error), _)
                if error.kind() == ErrorKind::Truncated && self.now.len() < self.recorded.len() =>
            {
                return Ok(());
            }
            (Err(error), _) => return Err(error.to_string()),
            (Ok(got), _) => got,
        };
        let from = (offset as usize).min(self.recorded.len());
        let expected = &self.recorded[from..(from + bytes).min(self.recorded.len())];
        if got != expected.len() {
            return Err(format!(
                "{got} bytes, not {}, of a file of {} that the cache knows to be of {}",
                expected.len(),
                self.now.len(),
                self.recorded.len()
            ));
        }
        for (n, (&got, &old)) in buf.iter().zip(expected).enumerate() {
            let new = self.now.get(from + n);
            if got != old && Some(&got) != new {
                return Err(format!(
                    "wrong byte at {}: {got:#04x}, not {old:#04x} or {new:x?}; {} bytes read at \
                     {offset} of {}, now {}",
                    from + n,
                    expected.len(),
                    self.recorded.len(),
                    self.now.len()
                ));
            }
        }
        Ok(())
    }

    fn scan(&mut self, piece: usize) -> Result<(), String> {
        for offset in (0..=self.recorded.len()).step_by(piece) {
            self.read(offset as u64, piece)?;
        }
        Ok(())
    }

    fn invalidate(&mut self, range: Range<u64>) -> Result<(), String> {
        let legal = i64::try_from(range.end).is_ok();
        match self.file.invalidate(range) {
            Ok(_) if legal => {
                self.recorded.clone_from(&self.now);
                let len = self.file.len();
                if len == self.now.len() as u64 {
                    return Ok(());
                }
                Err(format!("the length is {len} afterwards, not {}", self.now.len()))
            }
            Err(error) if error.kind() == ErrorKind::Invalid && !legal => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn reopen(&mut self, cache: &Cache) -> Result<(), String> {
        if let Owner::Real(path) = &self.owner {
            let path = path.clone();
            // Now the other handle, now none: its pages stay either way.
            self.file = cache.open(path).map_err(|error| error.to_string())?;
            // Whether opening asks for the length again is not promised; here it shall be known.
            self.invalidate(0..0)?;
        }
        Ok(())
    }

    /// Somebody changes the length. What is new is not what was there before.
    fn resize(&mut self, bytes: usize) {
        // Two changes that nobody told the cache of would leave more than two truths.
        if !self.settled() {
            return;
        }
        let old = self.now.len();
        self.owner.set_len(bytes.min(old) as u64);
        self.now.resize(bytes, 0);
        if bytes > old {
            self.pattern.epoch += 1;
            self.pattern.fill(old as u64, &mut self.now[old..]);
            self.owner.write(old as u64, &self.now[old..]);
        }
    }

    /// Somebody writes, and then says so.
    fn rewrite(&mut self, range: Range<u64>) -> Result<(), String> {
        let len = self.now.len() as u64;
        let (from, to) = (range.start.min(len), range.end.min(len));
        self.pattern.epoch += 1;
        let part = &mut self.now[from as usize..to as usize];
        self.pattern.fill(from, part);
        self.owner.write(from, part);
        self.invalidate(from..to)
    }
}
