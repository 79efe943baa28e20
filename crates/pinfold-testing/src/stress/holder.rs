//! Threads that read in place and keep what they read.
//!
//! Belongs here: borrows and counted guards of all ways of keeping, and the check, as long as they
//! are kept, whether a byte has changed.

use std::ops::Deref;

use fastrand::Rng;
use pinfold::{Borrowed, Error, File, FolioRef, Reader};

use super::check::{Before, Checked, forgive, unexpected};
use super::files::Subject;
use super::kept::Guarded;
use super::report::Failure;
use super::shared::Shared;
use super::watch::{Desk, Doing};

const PAGE: u64 = 4096;
/// Guards that one thread keeps at once, of pages beside each other: more than it has slots.
const GUARDS_MAX: usize = 19;
/// Pages that they are of: few folios, as what is held cannot be evicted.
const PAGES_MAX: u64 = 4;
/// Guards that are kept from one burst to the next, and dropped by another thread.
const KEPT_MAX: usize = 6;

/// A guard of either kind.
enum Guard<'f, 'r> {
    Borrowed(Borrowed<'f, 'r>),
    Counted(FolioRef<'f>),
}

impl Deref for Guard<'_, '_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Guard::Borrowed(guard) => guard,
            Guard::Counted(guard) => guard,
        }
    }
}

/// A thread that holds pages until the run is over.
pub(super) fn run(shared: &Shared, desk: &Desk, seed: u64) {
    let mut holder = Holder { shared, desk, rng: Rng::with_seed(seed) };
    while shared.goes_on() {
        if let Err(failure) = holder.visit() {
            shared.fail(*failure);
        }
    }
    let left = std::mem::take(&mut *shared.shelf.lock().unwrap());
    for kept in left {
        if let Err(failure) = holder.unchanged(&kept.name, &kept.guard, &kept.copy) {
            shared.fail(*failure);
        }
    }
}

struct Holder<'a> {
    shared: &'a Shared,
    desk: &'a Desk,
    rng: Rng,
}

impl Holder<'_> {
    /// Some bursts as one reader, which then leaves.
    fn visit(&mut self) -> Checked {
        let reader = self.shared.cache.reader().map_err(|error| self.unexpected(&error))?;
        for _ in 0..self.rng.u32(1..50) {
            if !self.shared.goes_on() {
                break;
            }
            let number = match self.rng.u32(0..3) {
                0 => self.rng.usize(0..self.shared.subjects.all.len()),
                _ => self.shared.watch.latest(),
            };
            let subject = &self.shared.subjects.all[number];
            if subject.bytes > 0 {
                let file = subject.file(&self.shared.cache);
                let file = file.map_err(|error| self.unexpected(&error))?;
                (0..20).try_for_each(|_| self.burst(subject, &file, &reader))?;
            }
        }
        Ok(())
    }

    /// Takes guards, checks each, and all of them again before they go.
    fn burst(&mut self, subject: &Subject, file: &File, reader: &Reader) -> Checked {
        let borrows = self.rng.bool();
        if self.rng.u32(0..4) == 0 {
            return self.batch(subject, file, reader, borrows);
        }
        let doing = if borrows { Doing::Borrow } else { Doing::Hold };
        let near = self.shared.watch.spot(subject.number).min(subject.bytes - 1) / PAGE;
        let first =
            if self.rng.bool() { near } else { self.rng.u64(0..subject.bytes.div_ceil(PAGE)) };
        self.desk.begin(doing, subject.number, first * PAGE, PAGES_MAX * PAGE);
        let mut guards = Vec::new();
        for _ in 0..self.rng.usize(1..=GUARDS_MAX) {
            let page = first + self.rng.u64(0..PAGES_MAX);
            if page * PAGE >= subject.bytes {
                continue;
            }
            let before = Before::now(self.shared, self.desk, subject);
            let guard = if borrows {
                file.borrow(page, reader).map(Guard::Borrowed)
            } else {
                file.get(page).map(Guard::Counted)
            };
            match guard {
                Ok(guard) => {
                    before.check(page * PAGE, PAGE as usize, &guard)?;
                    self.desk.read(guard.len());
                    let copy = guard.to_vec();
                    guards.push((guard, copy));
                }
                Err(error) => self.forgive(subject, &error)?,
            }
        }
        if self.rng.u32(0..8) == 0 {
            std::thread::yield_now();
        }
        self.shared.watch.count(doing, guards.len() as u64);
        for (guard, copy) in guards {
            self.unchanged(&subject.name, &guard, &copy)?;
            self.end(subject, guard, copy)?;
        }
        Ok(())
    }

    /// The same with all guards taken at once, of pages some of which were asked for before.
    fn batch(&mut self, subject: &Subject, file: &File, reader: &Reader, borrows: bool) -> Checked {
        let doing = if borrows { Doing::BorrowMany } else { Doing::HoldMany };
        let all = subject.bytes.div_ceil(PAGE);
        let first = self.rng.u64(0..all);
        self.desk.begin(doing, subject.number, first * PAGE, PAGES_MAX * PAGE);
        let pages = (0..self.rng.usize(0..=GUARDS_MAX))
            .map(|_| (first + self.rng.u64(0..PAGES_MAX)).min(all - 1));
        let pages: Vec<_> = pages.collect();
        if self.rng.bool() {
            file.prefetch(&pages).map_err(|error| self.unexpected(&error))?;
        }
        let before = Before::now(self.shared, self.desk, subject);
        let guards: Result<Vec<_>, _> = if borrows {
            let guards = file.borrow_many(&pages, reader);
            guards.map(|guards| guards.into_iter().map(Guard::Borrowed).collect())
        } else {
            let guards = file.get_many(&pages);
            guards.map(|guards| guards.into_iter().map(Guard::Counted).collect())
        };
        let guards = match guards {
            Ok(guards) => guards,
            Err(error) => return self.forgive(subject, &error),
        };
        assert_eq!(guards.len(), pages.len(), "a guard for each page");
        let mut copies = Vec::with_capacity(guards.len());
        for (guard, page) in guards.iter().zip(&pages) {
            before.check(page * PAGE, PAGE as usize, guard)?;
            self.desk.read(guard.len());
            copies.push(guard.to_vec());
        }
        self.shared.watch.count(doing, guards.len() as u64);
        for (guard, copy) in guards.into_iter().zip(copies) {
            self.unchanged(&subject.name, &guard, &copy)?;
            self.end(subject, guard, copy)?;
        }
        Ok(())
    }

    /// Drops a guard; or makes another of it first, or forgets it, or leaves it to somebody else.
    fn end(&mut self, subject: &Subject, guard: Guard<'_, '_>, copy: Vec<u8>) -> Checked {
        let counted = match (guard, self.rng.u32(0..1000)) {
            // It keeps a slot until this reader leaves.
            (Guard::Borrowed(guard), 0) if !guard.is_counted() => {
                std::mem::forget(guard);
                return Ok(());
            }
            (Guard::Borrowed(guard), 0..200) => {
                guard.upgrade().map_err(|error| self.unexpected(&error))?
            }
            (Guard::Counted(guard), 0..500) => guard,
            (Guard::Counted(guard), 500..700) => {
                let clone = guard.clone();
                drop(guard);
                clone
            }
            (Guard::Borrowed(_) | Guard::Counted(_), _) => return Ok(()),
        };
        self.unchanged(&subject.name, &counted, &copy)?;
        if self.rng.u32(0..16) == 0 {
            let kept = Guarded { guard: counted.into_owned(), copy, name: subject.name.clone() };
            return self.exchange(kept);
        }
        Ok(())
    }

    /// Leaves one on the shelf, and takes the oldest from there.
    fn exchange(&self, kept: Guarded) -> Checked {
        let oldest = {
            let mut shelf = self.shared.shelf.lock().unwrap();
            shelf.push_back(kept);
            if shelf.len() > KEPT_MAX { shelf.pop_front() } else { None }
        };
        match oldest {
            Some(Guarded { guard, copy, name }) => self.unchanged(&name, &guard, &copy),
            None => Ok(()),
        }
    }

    /// Whether a guard still shows what it did.
    fn unchanged(&self, name: &str, bytes: &[u8], copy: &[u8]) -> Checked {
        let Some(at) = bytes.iter().zip(copy).position(|(now, then)| now != then) else {
            return Ok(());
        };
        Err(Box::new(Failure::Changed {
            thread: self.desk.name.clone(),
            doing: self.desk.describe(&self.shared.subjects),
            file: name.to_owned(),
            at,
        }))
    }

    fn forgive(&self, subject: &Subject, error: &Error) -> Checked {
        forgive(self.shared, self.desk, subject, error)
    }

    fn unexpected(&self, error: &Error) -> Box<Failure> {
        unexpected(self.shared, self.desk, error)
    }
}
