//! Random calls of a cache, with what its files may be beside it.
//!
//! A run has one thread, or up to three. Then each thread has sectors of its own, in which it
//! writes, and pages have sectors of several threads. Whoever changes the length is alone.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use pinfold::source::Memory;
use pinfold::{Cache, ErrorKind, File, Options as CacheOptions, OwnedBytes};

use super::contents::{Contents, SECTOR};
use super::history::History;
use super::options::DiskFault;
use super::recorder::{Behaviour, Recorder, Ticks};

const PAGE: usize = 4096;
const KEPT_MAX: usize = 6;

/// What a seed decides at first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    threads: usize,
    files: usize,
    operations: usize,
    most_bytes: usize,
    /// So many adjacent sectors are one thread's.
    run_sectors: usize,
    budget_bytes: u64,
    behaviour: Behaviour,
}

impl Plan {
    pub(super) fn new(seed: u64, fault: Option<DiskFault>, random: &mut fastrand::Rng) -> Self {
        let threads = if random.u32(..4) == 0 { random.usize(2..=3) } else { 1 };
        let fails = |random: &mut fastrand::Rng| [0, 0, 50, 300][random.usize(..4)];
        let alignment = [1, SECTOR][random.usize(..2)];
        // Of bytes, a cut that has failed leaves a sector of new bytes before old ones.
        let set_lens_fail = if alignment == SECTOR { fails(random) } else { 0 };
        let punches = random.u32(..4) > 0;
        let holes_fail = punches.then(|| fails(random));
        let behaviour = Behaviour {
            holes_fail,
            alignment,
            seed,
            writes_fail: fails(random),
            syncs_fail: fails(random),
            set_lens_fail,
            failure_loses: random.bool(),
            slow: threads > 1,
            fault,
        };
        Plan {
            threads,
            files: random.usize(1..=2),
            operations: random.usize(20..120) / threads,
            most_bytes: [2, 10, 16, 40][random.usize(..4)] * PAGE,
            run_sectors: [1, 3, 8, 20][random.usize(..4)],
            budget_bytes: random.u64(1..=4) << 20,
            behaviour,
        }
    }

    /// Whether each run of the seed does the same: no other thread writes, not even the cache's,
    /// which begins when an eighth of the budget waits.
    pub(super) fn repeats(&self) -> bool {
        self.threads == 1 && ((self.files * self.most_bytes) as u64) < self.budget_bytes / 8
    }

    fn fails(&self) -> bool {
        let Behaviour { writes_fail, syncs_fail, set_lens_fail, .. } = self.behaviour;
        writes_fail + syncs_fail + set_lens_fail > 0
    }
}

#[derive(Debug)]
pub(super) struct Driven {
    pub(super) name: String,
    pub(super) recorder: Arc<Recorder>,
    pub(super) history: History,
    pub(super) alignment: usize,
}

/// What threads share.
struct Run {
    plan: Plan,
    cache: Cache,
    subjects: Vec<Driven>,
    /// Read by cold reads, so that other pages leave.
    ballast: File,
    /// Held alone by whoever changes a length.
    alone: RwLock<()>,
    operations: AtomicU32,
}

type Result<T> = std::result::Result<T, String>;

/// The files as they were driven, and how many calls that took; error: what went wrong meanwhile.
pub(super) fn drive(
    plan: Plan,
    random: &mut fastrand::Rng,
    contents: &Arc<Mutex<Contents>>,
) -> Result<(Vec<Driven>, u64)> {
    let clock = Arc::new(Ticks::default());
    clock.tick(); // what there is before has the time 0
    let mut options = CacheOptions::new(plan.budget_bytes);
    options.io_uring = false;
    let cache = Cache::new(options).map_err(|error| format!("a cache: {error}"))?;
    let subject = |n| {
        let name = format!("file {n}");
        let mut bytes = vec![0; random.usize(..=plan.most_bytes)];
        random.fill(&mut bytes);
        let shared = || (clock.clone(), contents.clone());
        let history = History::new(&bytes, plan.most_bytes, shared());
        let recorder = Arc::new(Recorder::new(name.clone(), bytes, plan.behaviour, shared()));
        Driven { name, recorder, history, alignment: plan.behaviour.alignment }
    };
    let subjects: Vec<Driven> = (0..plan.files).map(subject).collect();
    let ballast = Memory::new(vec![0; plan.budget_bytes as usize * 5 / 4]);
    let ballast = cache.attach("ballast", Arc::new(ballast)).map_err(|it| it.to_string())?;
    let alone = RwLock::new(());
    let run = Run { plan, cache, subjects, ballast, alone, operations: AtomicU32::new(0) };
    if plan.threads == 1 {
        Worker::new(&run, 0, random.fork())?.work()?;
    } else {
        let workers = (0..plan.threads).map(|n| Worker::new(&run, n, random.fork()));
        let workers = workers.collect::<Result<Vec<_>>>()?;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                workers.into_iter().map(|worker| scope.spawn(|| worker.work())).collect();
            let ended = |it: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            // All are waited for.
            threads.into_iter().map(ended).fold(Ok(()), std::result::Result::and)
        })?;
    }
    for subject in &run.subjects {
        subject.recorder.heal();
    }
    Worker::new(&run, 0, random.fork())?.end()?;
    let operations = run.operations.load(Ordering::Relaxed).into();
    let Run { subjects, cache, ballast, .. } = run;
    drop((ballast, cache));
    Ok((subjects, operations))
}

/// Bytes that say where they were written, and when.
pub(super) fn bytes_of(by: u32, range: Range<usize>) -> Vec<u8> {
    let of = u64::from(by).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = (range.start / 8..range.end.div_ceil(8)).map(|n| (of ^ n as u64).to_le_bytes());
    let bytes: Vec<u8> = words.flatten().collect();
    let before = range.start % 8;
    bytes[before..before + range.len()].to_vec()
}

struct Worker<'a> {
    run: &'a Run,
    id: usize,
    random: fastrand::Rng,
    /// `None` for a moment only.
    files: Vec<Option<File>>,
    /// What was read in place, and what it was.
    kept: VecDeque<(OwnedBytes, Vec<u8>)>,
    /// The operation that is under way.
    by: u32,
}

fn open(run: &Run, subject: &Driven) -> Result<File> {
    let file = run.cache.attach(&subject.name, subject.recorder.clone());
    file.map_err(|error| format!("{} is opened: {error}", subject.name))
}

impl<'a> Worker<'a> {
    fn new(run: &'a Run, id: usize, random: fastrand::Rng) -> Result<Self> {
        let files = run.subjects.iter().map(|subject| open(run, subject).map(Some));
        let files = files.collect::<Result<_>>()?;
        Ok(Worker { run, id, random, files, kept: VecDeque::new(), by: 0 })
    }

    fn file(&self, n: usize) -> &File {
        self.files[n].as_ref().expect("it is open between operations")
    }

    fn work(mut self) -> Result<()> {
        for _ in 0..self.run.plan.operations {
            self.by = self.run.operations.fetch_add(1, Ordering::Relaxed) + 1;
            let n = self.random.usize(..self.files.len());
            let done = self.operation(n).and_then(|()| self.check_kept());
            done.map_err(|what| {
                format!("operation {} on {}: {what}", self.by, self.run.subjects[n].name)
            })?;
        }
        Ok(())
    }

    /// All is durable in the end, and all of it is what was written.
    fn end(mut self) -> Result<()> {
        for n in 0..self.files.len() {
            self.by = self.run.operations.fetch_add(1, Ordering::Relaxed) + 1;
            let subject = &self.run.subjects[n];
            let synced = subject.history.sync(self.by, || self.file(n).sync_all());
            synced.map_err(|error| format!("{} does not sync at last: {error}", subject.name))?;
            let len = subject.history.len();
            self.read(n, 0..len).map_err(|what| format!("{} at last: {what}", subject.name))?;
        }
        Ok(())
    }

    fn operation(&mut self, n: usize) -> Result<()> {
        match self.random.u32(..100) {
            0..29 => self.write(n),
            29..34 => self.punch(n),
            34..44 => self.lengthen(n),
            44..49 => self.set_len(n),
            49..56 => self.sync(n, File::sync_data),
            56..60 => self.sync_range(n),
            60..63 => self.sync(n, File::sync_all),
            63..65 => self.sync_everything(),
            65..77 => {
                let _together = self.run.alone.read().unwrap();
                let Some(range) = self.own_range(n) else { return Ok(()) };
                self.read(n, range)
            }
            77..86 => self.keep(n),
            86..90 => {
                let dropped = self.file(n).invalidate(..);
                dropped.map(drop).map_err(|error| format!("invalidate: {error}"))
            }
            90..92 => {
                let refreshed = self.file(n).refresh();
                refreshed.map(drop).map_err(|error| format!("refresh: {error}"))
            }
            92 => {
                self.file(n).split(0..u64::MAX);
                Ok(())
            }
            93 => {
                self.file(n).migrate(0..u64::MAX);
                Ok(())
            }
            94..96 => {
                self.files[n] = None;
                self.files[n] = Some(open(self.run, &self.run.subjects[n])?);
                Ok(())
            }
            _ => self.evict(),
        }
    }

    /// A range of the file in which this thread may write, in a file that has such sectors.
    fn own_range(&mut self, n: usize) -> Option<Range<usize>> {
        let len = self.run.subjects[n].history.len();
        let mut own = 0..len;
        if self.run.plan.threads > 1 {
            let run = self.run.plan.run_sectors * SECTOR;
            let runs = len.div_ceil(run).saturating_sub(self.id).div_ceil(self.run.plan.threads);
            if runs == 0 {
                return None;
            }
            let begin = (self.random.usize(..runs) * self.run.plan.threads + self.id) * run;
            own = begin..(begin + run).min(len);
        }
        if own.is_empty() {
            return None;
        }
        let begin = self.random.usize(own.clone());
        let whole = begin / PAGE * PAGE;
        let begin = if whole >= own.start && self.random.bool() { whole } else { begin };
        let most = [100, 5000, own.len()][self.random.usize(..3)];
        let end = begin + self.random.usize(..most.min(own.end - begin)) + 1;
        Some(begin..end)
    }

    fn write(&mut self, n: usize) -> Result<()> {
        let _together = self.run.alone.read().unwrap();
        let Some(range) = self.own_range(n) else { return Ok(()) };
        let (file, subject) = (self.file(n), &self.run.subjects[n]);
        let bytes = bytes_of(self.by, range.clone());
        let sectors = subject.history.write(range.start, &bytes, self.by);
        let written = file.write_at(&bytes, range.start as u64);
        subject.history.ends(sectors);
        written.or_else(|error| self.failed(n, range, &error))
    }

    fn punch(&mut self, n: usize) -> Result<()> {
        let _together = self.run.alone.read().unwrap();
        let Some(mut range) = self.own_range(n) else { return Ok(()) };
        let whole = self.run.plan.threads == 1 && self.random.bool();
        let (file, subject) = (self.file(n), &self.run.subjects[n]);
        if whole {
            let end = range.end.next_multiple_of(PAGE).min(subject.history.len());
            range = range.start / PAGE * PAGE..end;
        }
        let sectors = subject.history.write(range.start, &vec![0; range.len()], self.by);
        let punched = file.punch_hole(range.start as u64..range.end as u64);
        subject.history.ends(sectors);
        punched.or_else(|error| self.failed(n, range, &error))
    }

    /// Writes to behind the end, or appends.
    fn lengthen(&mut self, n: usize) -> Result<()> {
        let run = self.run;
        let _alone = run.alone.write().unwrap();
        let subject = &run.subjects[n];
        let (len, most) = (subject.history.len(), run.plan.most_bytes);
        let appends = self.random.bool();
        let begin = if appends { len } else { self.random.usize(len / 2..=len + PAGE) };
        let most_bytes = [100, 5000, 40_000][self.random.usize(..3)];
        let bytes = self.random.usize(1..most_bytes);
        let range = begin..begin + bytes;
        if range.end > most {
            let bytes = self.random.usize(..=len);
            return self.cut(n, bytes);
        }
        let bytes = bytes_of(self.by, range.clone());
        let sectors = subject.history.write(begin, &bytes, self.by);
        let file = self.file(n);
        let written = if appends {
            file.append(&bytes)
        } else {
            file.write_at(&bytes, begin as u64).map(|()| begin as u64)
        };
        subject.history.ends(sectors);
        match written {
            Ok(at) if at == begin as u64 => Ok(()),
            Ok(at) => Err(format!("appended at {at}, and the file has {begin} bytes")),
            Err(error) => self.failed(n, range, &error),
        }
    }

    fn set_len(&mut self, n: usize) -> Result<()> {
        let run = self.run;
        let _alone = run.alone.write().unwrap();
        let bytes = self.random.usize(..=run.plan.most_bytes);
        self.cut(n, bytes)
    }

    fn cut(&self, n: usize, bytes: usize) -> Result<()> {
        let history = &self.run.subjects[n].history;
        let sectors = history.set_len(bytes, self.by);
        let set = self.file(n).set_len(bytes as u64);
        history.ends(sectors);
        self.may_fail("a change of the length", set)?;
        // After an error, it is as it was, or shorter.
        let len = self.file(n).len() as usize;
        if len == bytes { Ok(()) } else { self.read_back(n, 0..len) }
    }

    /// After a write that has failed, of which any part may have been written.
    fn failed(&self, n: usize, range: Range<usize>, error: &pinfold::Error) -> Result<()> {
        // Of a large folio that is held, a small cache may have no room for a changed copy.
        let is_held = error.kind() == ErrorKind::Busy;
        if !is_held && (error.kind() != ErrorKind::Write || !self.run.plan.fails()) {
            return Err(format!("a write of {range:?}: {error}"));
        }
        self.read_back(n, range)
    }

    /// What the file is, nobody knows: whatever it is now, it has been made to be.
    fn read_back(&self, n: usize, range: Range<usize>) -> Result<()> {
        let (file, history) = (self.file(n), &self.run.subjects[n].history);
        let len = file.len() as usize;
        let begin = range.start / SECTOR * SECTOR;
        let end = range.end.next_multiple_of(SECTOR).min(self.run.plan.most_bytes);
        let mut bytes = vec![0; end - begin];
        let got = file.read_at(&mut bytes, begin as u64);
        got.map_err(|error| format!("a read after a write that failed: {error}"))?;
        history.is(begin, &bytes, len, self.by);
        Ok(())
    }

    fn may_fail<T: Default>(&self, what: &str, result: pinfold::Result<T>) -> Result<T> {
        match result {
            Ok(it) => Ok(it),
            Err(error) if error.kind() == ErrorKind::Write && self.run.plan.fails() => {
                Ok(T::default())
            }
            Err(error) => Err(format!("{what}: {error}")),
        }
    }

    fn sync(&self, n: usize, sync: impl Fn(&File) -> pinfold::Result<()>) -> Result<()> {
        let synced = self.run.subjects[n].history.sync(self.by, || sync(self.file(n)));
        self.may_fail("a sync", synced)
    }

    fn sync_range(&mut self, n: usize) -> Result<()> {
        let subject = &self.run.subjects[n];
        let len = subject.history.len();
        let begin = self.random.usize(..=len);
        let most = [100, 5000, 40_000][self.random.usize(..3)];
        let end = begin + self.random.usize(..most);
        let file = self.file(n);
        let sync = || file.sync_range(begin as u64..end as u64);
        let only = (begin / SECTOR, end.div_ceil(SECTOR));
        let synced = subject.history.sync_only(Some(only), self.by, sync);
        self.may_fail("a sync of a range", synced)
    }

    fn sync_everything(&self) -> Result<()> {
        let [first, rest @ ..] = &self.run.subjects[..] else { return Ok(()) };
        let mut sync: Box<dyn Fn() -> pinfold::Result<()>> = Box::new(|| self.run.cache.sync());
        for subject in rest {
            sync = Box::new(move || subject.history.sync(self.by, &sync));
        }
        let synced = first.history.sync(self.by, sync);
        self.may_fail("a sync of all", synced)
    }

    fn read(&self, n: usize, range: Range<usize>) -> Result<()> {
        let mut bytes = vec![0; range.len()];
        let got = self.file(n).read_at(&mut bytes, range.start as u64);
        let got = got.map_err(|error| format!("a read of {range:?}: {error}"))?;
        if got < bytes.len() {
            return Err(format!("a read of {range:?} got {got} bytes"));
        }
        self.check(n, range.start, &bytes)
    }

    fn check(&self, n: usize, offset: usize, bytes: &[u8]) -> Result<()> {
        let checked = self.run.subjects[n].history.check(offset, bytes);
        checked.map_err(|at| format!("a read gets another byte at {at} than was written last"))
    }

    /// Reads in place, and keeps that.
    fn keep(&mut self, n: usize) -> Result<()> {
        let _together = self.run.alone.read().unwrap();
        let Some(range) = self.own_range(n) else { return Ok(()) };
        let kept = self.file(n).bytes(range.start as u64..range.end as u64);
        let kept = kept.map_err(|error| format!("bytes {range:?}: {error}"))?;
        self.check(n, range.start, &kept)?;
        let bytes = kept.to_vec();
        self.kept.push_back((kept, bytes));
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
        Ok(())
    }

    fn check_kept(&self) -> Result<()> {
        let changed = self.kept.iter().any(|(kept, bytes)| kept[..] != bytes[..]);
        if changed { Err("bytes changed that are held".to_owned()) } else { Ok(()) }
    }

    fn evict(&self) -> Result<()> {
        let mut bytes = vec![0; 256 << 10];
        for offset in (0..self.run.ballast.len()).step_by(bytes.len()) {
            let got = self.run.ballast.read_at(&mut bytes, offset);
            got.map_err(|error| format!("a read of other pages: {error}"))?;
        }
        Ok(())
    }
}
