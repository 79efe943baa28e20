//! Those who read, and check what they get.
//!
//! Belongs here: the shapes of reads, what errors are excused.

use crate::told::number_after;
use std::time::Duration;

use fastrand::Rng;
use pinfold::{Error, ErrorKind, File, ReadAt};

use super::check::{Before, Checked, unexpected};
use super::files::{Nature, Subject};
use super::options::Schedule;
use super::report::Failure;
use super::shared::Shared;
use super::watch::{Desk, Doing};

/// The longest read.
const READ_MAX_BYTES: usize = 4 << 20;
/// Fewer reads than this in a batch.
const BATCH_MAX: usize = 100;
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

struct Reader<'a> {
    shared: &'a Shared,
    desk: &'a Desk,
    rng: Rng,
    buf: Vec<u8>,
}

/// A run of reads of one shape in one place.
struct Burst<'a> {
    doing: Doing,
    reads: u32,
    subject: &'a Subject,
    file: File,
    start: u64,
}

/// How many of its reads a burst got to.
type Done = Result<u64, Box<Failure>>;

/// What happens how often, of 100. Most are reads of one cell, in long bursts: they are what
/// races are found with.
fn choose(rng: &mut Rng) -> (Doing, u32) {
    match rng.u32(0..100) {
        0..55 => (Doing::ReadCells, 20_000),
        55..70 => (Doing::ReadBytes, 2_000),
        70..80 => (Doing::ReadPages, 2_000),
        80..83 => (Doing::ReadLarge, 1),
        83..87 => (Doing::Scan, 64),
        87..92 => (Doing::ReadMany, 50),
        _ => (Doing::ReadEdge, 200),
    }
}

impl Reader<'_> {
    fn burst(&mut self) -> Checked {
        let subjects = &self.shared.subjects.all;
        // The first few are the large ones; half of all bursts go to one of them.
        let among = if self.rng.bool() { subjects.len().min(6) } else { subjects.len() };
        let subject = &subjects[self.rng.usize(0..among)];
        let (doing, mut reads) = choose(&mut self.rng);
        if self.shared.options.schedule == Schedule::Reopening {
            // The file is open during a burst: mostly it shall not be.
            reads = reads.div_ceil(4000);
        }
        let start = self.place(subject);
        self.desk.begin(doing, subject.number, start, 0);
        let file = subject.file(&self.shared.cache);
        let file = file.map_err(|error| self.unexpected(&error))?;
        let burst = Burst { doing, reads, subject, file, start };
        let done = match doing {
            Doing::ReadCells => self.cells(&burst),
            Doing::Scan => self.scan(&burst),
            Doing::ReadMany => self.batches(&burst),
            _ => self.others(&burst),
        }?;
        self.shared.watch.count(doing, done);
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
    fn cells(&mut self, burst: &Burst<'_>) -> Done {
        let Burst { reads, subject, ref file, start, .. } = *burst;
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
    fn scan(&mut self, burst: &Burst<'_>) -> Done {
        let Burst { reads, subject, ref file, start, .. } = *burst;
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

    /// Batches of reads of cells and more, all over the file or in a region of it; some pages were
    /// asked for before.
    fn batches(&mut self, burst: &Burst<'_>) -> Done {
        let Burst { reads, subject, ref file, start, .. } = *burst;
        let reach = 1 << self.rng.u32(13..28);
        let longest = [64, 64, 300, 9000][self.rng.usize(0..4)];
        let mut done = 0;
        for _ in 0..reads {
            if !self.shared.goes_on() {
                break;
            }
            let rng = &mut self.rng;
            let number = rng.usize(0..BATCH_MAX);
            let wanted = (0..number).map(|_| {
                let offset = start.saturating_add(rng.u64(0..reach)) % (subject.bytes + 100);
                (offset, rng.usize(1..=longest))
            });
            let wanted: Vec<_> = wanted.collect();
            if rng.u32(0..8) == 0 {
                let pages: Vec<_> = wanted.iter().map(|(offset, _)| offset / 4096).collect();
                file.prefetch(&pages).map_err(|error| self.unexpected(&error))?;
            }
            self.batch(subject, file, &wanted)?;
            done += number as u64;
        }
        Ok(done)
    }

    /// One batch, each of its reads checked.
    fn batch(&mut self, subject: &Subject, file: &File, wanted: &[(u64, usize)]) -> Checked {
        let before = Before::now(self.shared, self.desk, subject);
        let mut buf = std::mem::take(&mut self.buf);
        let mut rest = &mut buf[..];
        let reads = wanted.iter().map(|&(offset, bytes)| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(bytes);
            rest = later;
            ReadAt::new(offset, now)
        });
        let mut reads: Vec<_> = reads.collect();
        let all = file.read_many(&mut reads);
        let mut errors = 0;
        for read in &reads {
            match &read.result {
                Ok(got) => {
                    if before.check(read.offset, read.buf.len(), &read.buf[..*got])? {
                        self.desk.read(*got);
                    } else {
                        self.desk.excuse();
                    }
                }
                Err(error) => {
                    errors += 1;
                    self.forgive(subject, file, before.phase, read.offset, error)?;
                }
            }
        }
        assert_eq!(all.is_err(), errors > 0, "a batch and its reads disagree");
        self.buf = buf;
        Ok(())
    }

    /// Reads of other shapes, in a region as large as a small folio or as a large one.
    fn others(&mut self, burst: &Burst<'_>) -> Done {
        let Burst { doing, reads, subject, ref file, start } = *burst;
        let reach = 1 << self.rng.u32(12..19);
        for n in 0..reads {
            if n % 16 == 0 && !self.shared.goes_on() {
                return Ok(n.into());
            }
            let rng = &mut self.rng;
            let near = start.saturating_add(rng.u64(0..reach));
            let (offset, bytes) = match doing {
                Doing::ReadBytes => (near, rng.usize(1..=256)),
                Doing::ReadPages => (near, rng.usize(1..=16 << 10)),
                Doing::ReadLarge => (near, rng.usize(1..=READ_MAX_BYTES)),
                _ => edge(rng, subject.bytes),
            };
            self.read(subject, file, offset, bytes)?;
        }
        Ok(reads.into())
    }

    /// One read, checked. Of what lies in one page, some are copies of what nothing holds.
    fn read(&mut self, subject: &Subject, file: &File, offset: u64, bytes: usize) -> Checked {
        let before = Before::now(self.shared, self.desk, subject);
        let is_in_page = offset % 4096 + bytes as u64 <= 4096;
        let unheld = is_in_page && self.rng.u32(0..8) == 0;
        let read = if unheld { copy_unheld } else { File::read_at };
        match read(file, &mut self.buf[..bytes], offset) {
            Ok(got) => {
                if before.check(offset, bytes, &self.buf[..got])? {
                    self.desk.read(got);
                } else {
                    self.desk.excuse();
                }
                Ok(())
            }
            Err(error) => self.forgive(subject, file, before.phase, offset, &error),
        }
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
        let at = match error.kind() {
            ErrorKind::Read | ErrorKind::Truncated => number_after(&error, " at "),
            _ => offset,
        };
        let mut cell = [0; 64];
        // Ends: at most this many times in one phase, and phases last for many attempts.
        for _ in 0..STALE_ERRORS_MAX {
            if !injected(subject, &error) {
                return Err(self.unexpected(&error));
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
        Err(self.unexpected(&error))
    }

    fn unexpected(&self, error: &Error) -> Box<Failure> {
        unexpected(self.shared, self.desk, error)
    }
}

/// Reads a part of a page as [`File::read_at`] does, without holding the page.
fn copy_unheld(file: &File, buf: &mut [u8], offset: u64) -> pinfold::Result<usize> {
    // Ends: the page does not change all the time.
    loop {
        let page = match file.optimistic(offset / 4096) {
            Err(error) if error.kind() == ErrorKind::BeyondEnd => return Ok(0),
            page => page?,
        };
        let from = (offset % 4096) as usize;
        let bytes = page.len().saturating_sub(from).min(buf.len());
        if bytes > 0 {
            page.read(from, &mut buf[..bytes]);
        }
        if page.validate() {
            return Ok(bytes);
        }
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
    match (&subject.nature, error.kind()) {
        (Nature::Faulty(_), ErrorKind::Read) => {
            let cause = std::error::Error::source(error).and_then(|it| it.downcast_ref());
            let errno = cause.and_then(std::io::Error::raw_os_error);
            error.io_kind() == std::io::ErrorKind::InvalidData || errno == Some(5)
        }
        (Nature::Faulty(_) | Nature::Cut(_), ErrorKind::Truncated) => true,
        _ => false,
    }
}
