//! Threads that map files and access them, while others do the same with the same maps.
//!
//! Belongs here: the kinds of accesses, the changes of maps, and what an access may see and meet.
//!
//! # What an access may see
//!
//! | file | each cell is |
//! |---|---|
//! | steady, or one whose source fails | that of the file, always |
//! | rewritten | of an epoch that was there, and not older than what this thread saw there before through a map. As long as somebody has a guard of a page, a map shows the guard's bytes, so the epoch may be older than the last invalidation |
//! | cut short | that of the file up to somewhere, and zeros from there on |
//!
//! In the end, when nobody holds anything, [`last_look`] finds the bytes of now in all of them.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{RwLockReadGuard, TryLockError};

use fastrand::Rng;
use pinfold::source::Hint;
use pinfold::{Error, ErrorKind};

use super::access;
use super::check::{Before, Checked, check, unexpected};
use super::files::{Nature, Subject};
use super::maps::Mapped;
use super::report::Failure;
use super::shared::Shared;
use super::watch::{Desk, Doing};

const PAGE: u64 = 4096;
const CELL: usize = 64;

/// Accesses of one burst.
const BURST: u32 = 400;

/// The most cells that a burst is about: what it has seen of each is remembered.
const REGION_CELLS: u64 = 64 * 64;

/// The longest slice that is looked at, and the longest copy.
const LONG_MAX_BYTES: usize = 64 << 10;

/// How often a cell that was being replaced is looked at again.
const TORN_MAX: u32 = 1000;

/// Pages of a file that are looked at in the end, of one that has always had the same bytes.
const SAMPLE: u64 = 200;

/// A thread that maps until the run is over.
pub(super) fn run(shared: &Shared, desk: &Desk, seed: u64) {
    let mut mapper = Mapper::new(shared, desk, seed);
    while shared.goes_on() {
        if let Err(failure) = mapper.visit() {
            shared.fail(*failure);
        }
    }
}

/// Looks at all files through maps once more, when all threads have left: nothing old is there.
pub(super) fn last_look(shared: &Shared, desk: &Desk) {
    let mut mapper = Mapper::new(shared, desk, 0);
    let looked = (0..shared.maps.slots.len()).try_for_each(|slot| {
        let slot = shared.maps.slots[slot].read().unwrap();
        slot.as_ref().map_or(Ok(()), |mapped| mapper.look_at_all(mapped))
    });
    if let Err(failure) = looked {
        shared.fail(*failure);
    }
    for slot in &shared.maps.slots {
        *slot.write().unwrap() = None;
    }
}

struct Mapper<'a> {
    shared: &'a Shared,
    desk: &'a Desk,
    rng: Rng,
    buf: Vec<u8>,
    /// Where bytes of maps are written to by system calls.
    scratch: OwnedFd,
    /// The epochs that were seen of the cells of this burst.
    seen: Vec<u32>,
}

/// How bytes of a map are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Whatever was there at some time will do.
    AnyTime,
    /// What is there now: nobody changes anything any more.
    Now,
}

impl<'a> Mapper<'a> {
    fn new(shared: &'a Shared, desk: &'a Desk, seed: u64) -> Self {
        let (rng, buf) = (Rng::with_seed(seed), vec![0; LONG_MAX_BYTES]);
        // SAFETY: makes a descriptor.
        let scratch = unsafe { libc::memfd_create(c"scratch".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(scratch >= 0, "a memfd: {}", std::io::Error::last_os_error());
        // SAFETY: made just now.
        let scratch = unsafe { OwnedFd::from_raw_fd(scratch) };
        Mapper { shared, desk, rng, buf, scratch, seen: Vec::new() }
    }

    /// Changes a map, or accesses one.
    fn visit(&mut self) -> Checked {
        let slot = self.rng.usize(0..self.shared.maps.slots.len());
        if self.rng.u32(0..4) == 0 {
            return self.change(slot);
        }
        let shared = self.shared;
        let held = match shared.maps.slots[slot].try_read() {
            Ok(held) => held,
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(why)) => panic!("{why}"),
        };
        if held.is_none() {
            drop(held);
            return self.change(slot);
        }
        self.burst(&held)
    }

    // ---- changes ----

    /// Maps, unmaps, or forbids access for a while.
    fn change(&mut self, slot: usize) -> Checked {
        let shared = self.shared;
        self.desk.wait_for_map();
        let mut slot = shared.maps.slots[slot].write().unwrap();
        let Some(mapped) = &mut *slot else {
            *slot = self.map()?;
            return Ok(());
        };
        let subject = &shared.subjects.all[mapped.subject];
        let start = mapped.map.range().start;
        if self.rng.u32(0..8) < 6 {
            self.desk.begin(Doing::Unmap, subject.number, start, 0);
            let mapped = slot.take().expect("looked at above");
            drop(mapped.map);
            shared.watch.count(Doing::Unmap, 1);
            *slot = self.map()?;
        } else {
            self.desk.begin(Doing::Protect, subject.number, start, 0);
            let copied = mapped.while_unreadable(|| self.copy(mapped, subject, 0, 1000));
            copied.map_err(|error| self.unexpected(&error))??;
            shared.watch.count(Doing::Protect, 1);
        }
        Ok(())
    }

    /// A map of some file, unless the file has no bytes.
    fn map(&mut self) -> Result<Option<Mapped>, Box<Failure>> {
        let subjects = &self.shared.subjects.all;
        let among = if self.rng.u32(0..4) > 0 { subjects.len().min(6) } else { subjects.len() };
        let subject = &subjects[self.rng.usize(0..among)];
        if subject.bytes == 0 {
            return Ok(None);
        }
        let range = self.range(subject);
        self.desk.begin(Doing::Map, subject.number, range.start, range.end - range.start);
        let file = subject.file(&self.shared.cache).map_err(|error| self.unexpected(&error))?;
        let space = self.rng.usize(0..self.shared.maps.spaces.len());
        let map = match self.shared.maps.spaces[space].map_file(&file, range) {
            Ok(map) => map,
            Err(error) => return self.excuse_length(subject, &error).map(|()| None),
        };
        self.shared.watch.count(Doing::Map, 1);
        let mapped = Mapped { map, subject: subject.number, space };
        // Some are gone again after a few accesses, and nobody else has seen them.
        if self.rng.u32(0..4) == 0 {
            self.burst_of(&mapped, BURST / 8)?;
            return Ok(None);
        }
        Ok(Some(mapped))
    }

    /// A range of a file that can be mapped: mostly near what is read, often all of it.
    fn range(&mut self, subject: &Subject) -> std::ops::Range<u64> {
        let pages = subject.bytes.div_ceil(PAGE);
        let start = match self.rng.u32(0..4) {
            0 | 1 => 0,
            2 => self.shared.watch.spot(subject.number) / PAGE,
            _ => self.rng.u64(0..pages),
        };
        let start = start.min(pages - 1) * PAGE;
        let end =
            if self.rng.bool() { subject.bytes } else { self.rng.u64(start + 1..=subject.bytes) };
        start..end
    }

    // ---- accesses ----

    fn burst(&mut self, held: &RwLockReadGuard<'_, Option<Mapped>>) -> Checked {
        held.as_ref().map_or(Ok(()), |mapped| self.burst_of(mapped, BURST))
    }

    /// Accesses of one kind to a region of a map.
    fn burst_of(&mut self, mapped: &Mapped, accesses: u32) -> Checked {
        let (shared, subject) = (self.shared, &self.shared.subjects.all[mapped.subject]);
        let len = mapped.map.len() as u64;
        let offset = mapped.map.range().start;
        let near = shared.watch.spot(subject.number).saturating_sub(offset);
        let at = if self.rng.bool() { near } else { self.rng.u64(0..len) };
        let at = at.min(len - 1) / PAGE * PAGE;
        shared.watch.aim(subject.number, offset + at);
        let doing = match self.rng.u32(0..20) {
            0..12 => Doing::Access,
            12..14 => Doing::AccessSlice,
            14..16 => Doing::AccessCopy,
            16..18 => Doing::AccessCall,
            _ => Doing::AdviseMap,
        };
        self.desk.begin(doing, subject.number, offset + at, 0);
        let done = match doing {
            Doing::Access => self.cells(mapped, subject, at, accesses)?,
            Doing::AdviseMap => self.advise(mapped, subject, at)?,
            _ => {
                for n in 0..accesses / 16 {
                    if !shared.goes_on() {
                        return Ok(());
                    }
                    let at = (at + self.rng.u64(0..16) * PAGE + self.rng.u64(0..PAGE)).min(len - 1);
                    match doing {
                        Doing::AccessSlice => self.slice(mapped, subject, at)?,
                        Doing::AccessCall => self.call(mapped, subject, at)?,
                        _ => {
                            let bytes = self.rng.usize(1..=LONG_MAX_BYTES);
                            self.copy(mapped, subject, at, bytes)?;
                        }
                    }
                    self.desk.begin(doing, subject.number, offset + at, u64::from(n));
                }
                accesses / 16
            }
        };
        shared.watch.count(doing, done.into());
        Ok(())
    }

    /// Single cells of a region, all over it, by the pointer.
    fn cells(
        &mut self,
        mapped: &Mapped,
        subject: &Subject,
        at: u64,
        accesses: u32,
    ) -> Result<u32, Box<Failure>> {
        let left = (mapped.map.len() as u64 - at).div_ceil(CELL as u64);
        let cells = left.min(REGION_CELLS >> self.rng.u32(0..7)).max(1);
        self.seen.clear();
        self.seen.resize(cells as usize, 0);
        for n in 0..accesses {
            if n % 64 == 0 && !self.shared.goes_on() {
                return Ok(n);
            }
            let cell = self.rng.u64(0..cells);
            let seen = self.seen[cell as usize];
            self.seen[cell as usize] =
                self.cell(mapped, subject, at + cell * CELL as u64, seen, Look::AnyTime)?;
        }
        Ok(accesses)
    }

    /// One cell, by the pointer. It is of the epoch `seen` or newer; returns of which.
    fn cell(
        &self,
        mapped: &Mapped,
        subject: &Subject,
        at: u64,
        seen: u32,
        look: Look,
    ) -> Result<u32, Box<Failure>> {
        let offset = mapped.map.range().start + at;
        let bytes = CELL.min(mapped.map.len() - at as usize);
        let mut cell = [0; CELL];
        let cell = &mut cell[..bytes];
        let oldest = if look == Look::Now { subject.oldest_epoch() } else { seen };
        let mut tries = 0;
        // Ends: after so many tries.
        loop {
            self.load(mapped, subject, at, cell)?;
            match self.judge(subject, offset, cell, oldest, look) {
                Ok(()) => break,
                // The page was replaced meanwhile, by one of another epoch.
                Err(_)
                    if tries < TORN_MAX && matches!(subject.nature, Nature::Rewritten { .. }) =>
                {
                    tries += 1;
                    std::thread::yield_now();
                }
                Err(failure) => return Err(failure),
            }
        }
        self.desk.read(bytes);
        let is_whole = matches!(subject.nature, Nature::Rewritten { .. }) && bytes == CELL;
        Ok(if is_whole { u32::from_le_bytes([cell[0], cell[1], cell[2], cell[3]]) } else { seen })
    }

    /// Whether these bytes may be there.
    fn judge(
        &self,
        subject: &Subject,
        offset: u64,
        bytes: &[u8],
        oldest: u32,
        look: Look,
    ) -> Checked {
        // What is left of the map's last page has no meaning.
        let left = subject.bytes.saturating_sub(offset).min(bytes.len() as u64);
        let mut bytes = &bytes[..left as usize];
        if matches!(subject.nature, Nature::Cut(_)) && look == Look::AnyTime {
            bytes = &bytes[..bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)];
        }
        check(self.shared, self.desk, subject, offset, bytes, oldest..=subject.newest_epoch())
    }

    /// Loads bytes from a map. Accesses that fail are made again.
    fn load(&self, mapped: &Mapped, subject: &Subject, at: u64, into: &mut [u8]) -> Checked {
        let from = mapped.map.as_ptr().wrapping_add(at as usize);
        let range = from.addr()..from.addr() + into.len();
        let ((), failures) = access::repeated(range, &self.desk.failing, || {
            let (words, rest) = into.as_chunks_mut::<8>();
            for (n, word) in words.iter_mut().enumerate() {
                let from: *const u64 = from.wrapping_add(n * 8).cast();
                // SAFETY: in the map, whose slot is locked, or nobody else has it; a map begins at
                // a page, and cells at multiples of 64.
                *word = unsafe { from.read_volatile() }.to_ne_bytes();
            }
            let from = from.wrapping_add(words.len() * 8);
            for (n, byte) in rest.iter_mut().enumerate() {
                // SAFETY: as above.
                *byte = unsafe { from.wrapping_add(n).read_volatile() };
            }
        });
        self.forgive_failures(mapped, subject, failures)
    }

    /// A part of the map as a slice: of files whose bytes never change.
    fn slice(&mut self, mapped: &Mapped, subject: &Subject, at: u64) -> Checked {
        if !matches!(subject.nature, Nature::Steady | Nature::Faulty(_)) {
            return Ok(());
        }
        let end = mapped.map.len().min(at as usize + self.rng.usize(1..=LONG_MAX_BYTES));
        // SAFETY: nobody changes the file; the map stays readable as long as its slot is locked;
        // and this thread holds nothing that the cache wants.
        let slice = unsafe { mapped.map.as_slice() };
        let part = &slice[at as usize..end];
        let range = part.as_ptr().addr()..part.as_ptr().addr() + part.len();
        let offset = mapped.map.range().start + at;
        let (checked, failures) =
            access::repeated(range, &self.desk.failing, || subject.pattern.check(offset, part));
        if let Err(wrong) = checked {
            let names = self.shared.subjects.names();
            let (thread, file) = (self.desk.name.clone(), subject.name.clone());
            return Err(Box::new(Failure::Wrong { thread, file, wrong, names }));
        }
        self.desk.read(part.len());
        self.forgive_failures(mapped, subject, failures)
    }

    /// A copy through the cache, as any other read.
    fn copy(&mut self, mapped: &Mapped, subject: &Subject, at: u64, bytes: usize) -> Checked {
        let before = Before::now(self.shared, self.desk, subject);
        let asked = bytes.min((mapped.map.len() as u64 - at) as usize);
        match mapped.map.read_at(&mut self.buf[..bytes], at) {
            Ok(got) => {
                let offset = mapped.map.range().start + at;
                if before.check(offset, asked, &self.buf[..got])? {
                    self.desk.read(got);
                } else {
                    self.desk.excuse();
                }
                Ok(())
            }
            Err(error) => super::check::forgive(self.shared, self.desk, subject, &error),
        }
    }

    /// A system call that gets an address in the map: it waits for absent pages, or says `EFAULT`.
    fn call(&mut self, mapped: &Mapped, subject: &Subject, at: u64) -> Checked {
        let at = at / CELL as u64 * CELL as u64;
        let bytes = (mapped.map.len() - at as usize).min(1 + self.rng.usize(0..4 * PAGE as usize));
        let from = mapped.map.as_ptr().wrapping_add(at as usize);
        let scratch = self.scratch.as_raw_fd();
        // SAFETY: the range is in the map; what may happen to its pages is the kernel's to survive.
        let written = unsafe { libc::pwrite(scratch, from.cast(), bytes, 0) };
        let Ok(written) = usize::try_from(written) else {
            let why = std::io::Error::last_os_error();
            let serves = self.shared.maps.serves_system_calls(mapped.space);
            let may_fail = !matches!(subject.nature, Nature::Steady) || !serves;
            assert_eq!(why.raw_os_error(), Some(libc::EFAULT), "a write from a map fails: {why}");
            if !may_fail {
                return self.forgive_failures(mapped, subject, 1);
            }
            self.desk.excuse();
            return Ok(());
        };
        let buf = &mut self.buf[..written];
        // SAFETY: a buffer of this thread's.
        let read = unsafe { libc::pread(scratch, buf.as_mut_ptr().cast(), written, 0) };
        assert_eq!(usize::try_from(read), Ok(written), "what was written is there");
        let offset = mapped.map.range().start + at;
        // A cell of a file that is rewritten may be copied while it is replaced.
        if !matches!(subject.nature, Nature::Rewritten { .. }) {
            for (n, cell) in self.buf[..written].chunks(CELL).enumerate() {
                self.judge(subject, offset + (n * CELL) as u64, cell, 0, Look::AnyTime)?;
            }
        }
        self.desk.read(written);
        Ok(())
    }

    /// Says how a part of the map will be used.
    fn advise(&mut self, mapped: &Mapped, subject: &Subject, at: u64) -> Result<u32, Box<Failure>> {
        let hints = [Hint::WillNeed, Hint::DontNeed, Hint::Sequential, Hint::Random];
        let hint = hints[self.rng.usize(0..hints.len())];
        let start = at as usize;
        let end = mapped.map.len().min(start + self.rng.usize(0..1 << 20));
        match mapped.map.advise(start..end, hint) {
            Ok(()) => Ok(1),
            Err(error) if matches!(subject.nature, Nature::Cut(_)) && is_kept(&error) => {
                self.desk.excuse();
                Ok(0)
            }
            Err(error) => {
                super::check::forgive(self.shared, self.desk, subject, &error).map(|()| 0)
            }
        }
    }

    /// All pages of a map of a file that was changed, and some of others, as they are now.
    fn look_at_all(&mut self, mapped: &Mapped) -> Checked {
        let subject = &self.shared.subjects.all[mapped.subject];
        // Collects what was borrowed to the end.
        let file = subject.file(&self.shared.cache).map_err(|error| self.unexpected(&error))?;
        let end = subject.bytes..subject.bytes + 1;
        file.invalidate(end).map_err(|error| self.unexpected(&error))?;
        let changes = matches!(subject.nature, Nature::Rewritten { .. } | Nature::Cut(_));
        let pages = (mapped.map.len() as u64).div_ceil(PAGE);
        for n in 0..if changes { pages } else { pages.min(SAMPLE) } {
            let page = if changes { n } else { self.rng.u64(0..pages) };
            self.desk.begin(
                Doing::LastLook,
                subject.number,
                mapped.map.range().start + page * PAGE,
                PAGE,
            );
            let mut at = page * PAGE;
            while at < ((page + 1) * PAGE).min(mapped.map.len() as u64) {
                self.cell(mapped, subject, at, 0, Look::Now)?;
                at += CELL as u64;
            }
        }
        self.shared.watch.count(Doing::LastLook, 1);
        Ok(())
    }

    // ---- failures ----

    /// Whether accesses to this map may have failed.
    fn forgive_failures(&self, mapped: &Mapped, subject: &Subject, failures: u64) -> Checked {
        if failures == 0 {
            return Ok(());
        }
        (0..failures).for_each(|_| self.desk.excuse());
        self.shared.watch.count(Doing::Repeat, failures);
        if matches!(subject.nature, Nature::Faulty(_) | Nature::Cut(_)) {
            return Ok(());
        }
        match mapped.map.last_failure() {
            Some(error) => Err(self.unexpected(&error)),
            None => Err(Box::new(Failure::Unexpected {
                thread: self.desk.name.clone(),
                doing: self.desk.describe(&self.shared.subjects),
                error: "an access failed, and the map knows of no failure".to_owned(),
            })),
        }
    }

    /// Excuses that a range cannot be mapped, of a file that is being cut.
    fn excuse_length(&self, subject: &Subject, error: &Error) -> Checked {
        if matches!(subject.nature, Nature::Cut(_))
            && matches!(error.kind(), ErrorKind::Invalid | ErrorKind::BeyondEnd)
        {
            self.desk.excuse();
            return Ok(());
        }
        Err(self.unexpected(error))
    }

    fn unexpected(&self, error: &Error) -> Box<Failure> {
        unexpected(self.shared, self.desk, error)
    }
}

/// Whether somebody had a guard of a folio without the page, from when the file ended before it,
/// for as long as threads wait.
fn is_kept(error: &Error) -> bool {
    error.kind() == ErrorKind::Busy
}
