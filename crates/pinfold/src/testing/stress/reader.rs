//! Those who read, and check what they get.
//!
//! Belongs here: the shapes of reads, the judgement of what came. Called by `stress`.

use fastrand::Rng;

use crate::{Error, File};
use std::time::Duration;

use super::files::{Nature, Subject};
use super::watch::{Desk, Doing};
use super::{Failure, Schedule, Shared};

/// The longest read.
const READ_MAX_BYTES: usize = 4 << 20;
/// Errors in a row, of reads of one cell that all began after the trouble was over. A fill that
/// began in time may fail later, and whoever waited for it is told; but that fill is one.
const STALE_ERRORS_MAX: u32 = 8;

/// A thread that reads until the run is over.
pub(super) fn run(shared: &Shared, desk: &Desk, seed: u64) {
    let mut reader =
        Reader { shared, desk, rng: Rng::with_seed(seed), buf: vec![0xa5; READ_MAX_BYTES] };
    while shared.goes_on() {
        if let Err(failure) = reader.burst() {
            shared.fail(*failure);
        }
    }
}

type Checked = Result<(), Box<Failure>>;

struct Reader<'a> {
    shared: &'a Shared,
    desk: &'a Desk,
    rng: Rng,
    buf: Vec<u8>,
}

/// A run of reads of one shape in one place.
struct Burst {
    doing: Doing,
    reads: u32,
}

/// What happens how often, of 100. Most are reads of one cell, in long bursts: they are what
/// races are found with.
fn choose(rng: &mut Rng) -> Burst {
    let (doing, reads) = match rng.u32(0..100) {
        0..55 => (Doing::ReadCells, 20_000),
        55..70 => (Doing::ReadBytes, 2_000),
        70..80 => (Doing::ReadPages, 2_000),
        80..83 => (Doing::ReadLarge, 1),
        83..90 => (Doing::Scan, 64),
        _ => (Doing::ReadEdge, 200),
    };
    Burst { doing, reads }
}

impl Reader<'_> {
    fn burst(&mut self) -> Checked {
        let subjects = &self.shared.subjects.all;
        // The first few are the large ones; half of all bursts go to one of them.
        let among = if self.rng.bool() { subjects.len().min(6) } else { subjects.len() };
        let subject = &subjects[self.rng.usize(0..among)];
        let mut burst = choose(&mut self.rng);
        if self.shared.options.schedule == Schedule::Reopening {
            // The file is open during a burst: mostly it shall not be.
            burst.reads = burst.reads.div_ceil(4000);
        }
        let start = self.place(subject);
        self.desk.begin(burst.doing, subject.number, start, 0);
        let file = match subject.file(&self.shared.cache) {
            Ok(file) => file,
            Err(error) => return Err(self.unexpected(subject, &error)),
        };
        let done = match burst.doing {
            Doing::ReadCells => self.cells(subject, &file, start, burst.reads),
            Doing::Scan => self.scan(subject, &file, start, burst.reads),
            _ => self.others(subject, &file, start, &burst),
        }?;
        self.shared.watch.count(burst.doing, done);
        Ok(())
    }

    /// Where a burst begins: often where somebody else reads, so that they meet.
    fn place(&mut self, subject: &Subject) -> u64 {
        let start = match self.rng.u32(0..4) {
            0 => self.shared.watch.spot(subject.number),
            _ => self.rng.u64(0..subject.bytes.max(1)),
        };
        self.shared.watch.aim(subject.number, start);
        start
    }

    /// Reads of single cells, all over a region of some pages.
    fn cells(
        &mut self,
        subject: &Subject,
        file: &File,
        start: u64,
        reads: u32,
    ) -> Result<u64, Box<Failure>> {
        let region_bytes = 4096u64 << self.rng.u32(0..8);
        let first = start / 64;
        let cells = (subject.bytes.div_ceil(64) - first.min(subject.bytes.div_ceil(64)))
            .min(region_bytes / 64)
            .max(1);
        let steady = matches!(subject.nature, Nature::Steady);
        let mut cell = [0; 64];
        for n in 0..reads {
            if n % 256 == 0 && !self.shared.goes_on() {
                return Ok(n.into());
            }
            let offset = (first + self.rng.u64(0..cells)) * 64;
            // The quick way for what is nearly always the case.
            if steady
                && let Ok(64) = file.read_at(&mut cell, offset)
                && subject.pattern.check(offset, &cell).is_ok()
            {
                self.desk.read(64);
                continue;
            }
            self.read(subject, file, offset, 64)?;
        }
        Ok(reads.into())
    }

    /// One read after the other, as a program does that reads a whole file.
    fn scan(
        &mut self,
        subject: &Subject,
        file: &File,
        start: u64,
        reads: u32,
    ) -> Result<u64, Box<Failure>> {
        let step = 1usize << self.rng.u32(9..18);
        let mut offset = start;
        for n in 0..reads {
            if !self.shared.goes_on() || offset >= subject.bytes {
                return Ok(n.into());
            }
            self.read(subject, file, offset, step)?;
            offset += step as u64;
        }
        Ok(reads.into())
    }

    /// Reads of other shapes, in a region as large as a small folio or as a large one.
    fn others(
        &mut self,
        subject: &Subject,
        file: &File,
        start: u64,
        burst: &Burst,
    ) -> Result<u64, Box<Failure>> {
        let reach = 1 << self.rng.u32(12..19);
        for n in 0..burst.reads {
            if n % 16 == 0 && !self.shared.goes_on() {
                return Ok(n.into());
            }
            let rng = &mut self.rng;
            let near = start.saturating_add(rng.u64(0..reach));
            let (offset, bytes) = match burst.doing {
                Doing::ReadBytes => (near, rng.usize(1..=256)),
                Doing::ReadPages => (near, rng.usize(1..=16 << 10)),
                Doing::ReadLarge => (near, rng.usize(1..=READ_MAX_BYTES)),
                _ => edge(rng, subject.bytes),
            };
            self.read(subject, file, offset, bytes)?;
        }
        Ok(burst.reads.into())
    }

    /// One read, judged.
    fn read(&mut self, subject: &Subject, file: &File, offset: u64, bytes: usize) -> Checked {
        let phase = subject.phase.now();
        let oldest = subject.oldest_epoch();
        match file.read_at(&mut self.buf[..bytes], offset) {
            Ok(got) => self.judge(subject, (phase, oldest), offset, bytes, got),
            Err(error) => self.forgive(subject, file, phase, offset, &error),
        }
    }

    fn judge(
        &mut self,
        subject: &Subject,
        before: (u64, u32),
        offset: u64,
        asked: usize,
        got: usize,
    ) -> Checked {
        let (phase, oldest) = before;
        let expected = subject.bytes.saturating_sub(offset).min(asked as u64) as usize;
        let may_be_short =
            matches!(subject.nature, Nature::Cut(_)) && subject.phase.troubled_since(phase);
        if got > expected || (got < expected && !may_be_short) {
            return Err(Box::new(Failure::Length {
                thread: self.desk.name.clone(),
                file: subject.name.clone(),
                offset,
                asked_bytes: asked,
                got_bytes: got,
                expected_bytes: expected,
            }));
        }
        let bytes = &self.buf[..got];
        let checked = match subject.nature {
            Nature::Rewritten { .. } => {
                let epochs = oldest..=subject.newest_epoch();
                subject.pattern.check_epochs(offset, bytes, epochs)
            }
            _ => subject.pattern.check(offset, bytes),
        };
        checked.map_err(|wrong| {
            Box::new(Failure::Wrong {
                thread: self.desk.name.clone(),
                file: subject.name.clone(),
                wrong,
                names: self.shared.subjects.names(),
            })
        })?;
        if got < expected {
            self.desk.excuse();
        } else {
            self.desk.read(got);
        }
        Ok(())
    }

    /// Whether a read may fail like this, then. If the trouble is over, what is wrong must come
    /// right by asking again.
    fn forgive(
        &mut self,
        subject: &Subject,
        file: &File,
        mut phase: u64,
        offset: u64,
        error: &Error,
    ) -> Checked {
        let mut error = error.clone();
        let at = match &error {
            Error::Read { offset, .. } => *offset,
            Error::Truncated { cause, .. } => cause.offset,
            _ => offset,
        };
        let mut cell = [0; 64];
        // Ends: at most so many times in one phase, and phases last for many attempts.
        for _ in 0..STALE_ERRORS_MAX {
            if !injected(subject, &error) {
                return Err(self.unexpected(subject, &error));
            }
            if subject.phase.troubled_since(phase) || !self.shared.goes_on() {
                self.desk.excuse();
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
            phase = subject.phase.now();
            match file.read_at(&mut cell, at) {
                Ok(_) => {
                    self.desk.excuse();
                    return Ok(());
                }
                Err(next) => error = next,
            }
        }
        Err(self.unexpected(subject, &error))
    }

    fn unexpected(&self, subject: &Subject, error: &Error) -> Box<Failure> {
        Box::new(Failure::Unexpected {
            thread: self.desk.name.clone(),
            doing: self.desk.describe(&self.shared.subjects),
            error: format!("{}: {error} ({error:?})", subject.name),
        })
    }
}

/// A place and a length around the end of a file, or far beyond it.
fn edge(rng: &mut Rng, bytes: u64) -> (u64, usize) {
    match rng.u32(0..20) {
        0 => (bytes + rng.u64(0..1 << 40), rng.usize(0..9000)),
        1 => (bytes, rng.usize(0..9000)),
        _ => ((bytes + 4200).saturating_sub(rng.u64(0..9000)), rng.usize(0..9000)),
    }
}

/// Whether this error is of those that this file's troubles make.
fn injected(subject: &Subject, error: &Error) -> bool {
    match (&subject.nature, error) {
        (Nature::Faulty(_), Error::Read { cause, .. }) => {
            cause.kind() == std::io::ErrorKind::InvalidData || cause.raw_os_error() == Some(5)
        }
        (Nature::Faulty(_) | Nature::Cut(_), Error::Truncated { .. }) => true,
        _ => false,
    }
}
