//! What there is to read.
//!
//! Belongs here: the files of a run with their sources, their contents, and what may be wrong with
//! them at the moment.

use std::borrow::Cow;
use std::fmt::Debug;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfold::source::{Memory, Source};
use pinfold::{Cache, Error, File, FileOptions, Result};

use crate::faulty::{Fault, Faulty, Operation, Rule, When};
use crate::pattern::Pattern;

use super::options::{Options, Sabotage, Schedule};

/// How a file behaves.
#[derive(Debug)]
pub(super) enum Nature {
    /// Its bytes are always there.
    Steady,
    /// Its source fails now and then.
    Faulty(Arc<Faulty>),
    /// It is written anew now and then, epoch by epoch.
    Rewritten {
        /// Where to write.
        memory: Arc<Memory>,
        /// The newest epoch that may be read.
        begun: AtomicU64,
        /// The oldest that may: the one after which the file was last invalidated.
        settled: AtomicU64,
    },
    /// It is cut short now and then, and restored.
    Cut(Arc<Memory>),
    /// It is written anew through the cache, epoch by epoch.
    Written(Box<WrittenFile>),
}

/// A file that is written to.
pub(super) struct WrittenFile {
    /// A handle that writes.
    pub(super) file: File,
    /// The newest epoch that may be read.
    pub(super) begun: AtomicU64,
    /// The oldest that may.
    pub(super) settled: AtomicU64,
    /// Of who writes.
    pub(super) turn: Mutex<()>,
    /// Whether writes and syncs fail now and then.
    pub(super) fails: bool,
    /// What the source has.
    pub(super) source: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
}

impl Debug for WrittenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WrittenFile").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Whether a file is in trouble: odd while errors and short reads are excused.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU64);

impl Phase {
    /// What it is now. Acquire: with `turn`, whoever sees the trouble over also sees the source
    /// healed.
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Into trouble or out of it. Only one thread turns a phase.
    pub(super) fn turn(&self) {
        // Release: pairs with `now`.
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Whether there was any trouble since it was `before`.
    pub(super) fn troubled_since(&self, before: u64) -> bool {
        before % 2 == 1 || self.now() != before
    }
}

/// A file of the run.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) number: usize,
    pub(super) name: String,
    pub(super) pattern: Pattern,
    pub(super) bytes: u64,
    pub(super) nature: Nature,
    pub(super) phase: Phase,
    /// Of a real file.
    pub(super) path: Option<(PathBuf, Option<bool>)>,
    /// `None` for a file that is opened for each use and then dropped.
    kept: Option<File>,
}

impl Subject {
    /// The file, opened now if nobody keeps it.
    pub(super) fn file(&self, cache: &Cache) -> Result<File> {
        match (&self.kept, &self.path) {
            (Some(file), _) => Ok(file.clone()),
            (None, Some((path, direct))) => open(cache, path, *direct),
            (None, None) => unreachable!("what is not kept has a path"),
        }
    }

    /// The epochs that a read may see that begins now, oldest first; the newest is asked for
    /// again after the read.
    pub(super) fn oldest_epoch(&self) -> u32 {
        match &self.nature {
            // Acquire: pairs with the release in `rewrite`. What is read after this is no older.
            Nature::Rewritten { settled, .. } => settled.load(Ordering::Acquire) as u32,
            Nature::Written(written) => written.settled.load(Ordering::Acquire) as u32,
            _ => 0,
        }
    }

    /// See `oldest_epoch`.
    pub(super) fn newest_epoch(&self) -> u32 {
        match &self.nature {
            // Acquire: whoever read an epoch's bytes, by way of the source's lock, sees it begun.
            Nature::Rewritten { begun, .. } => begun.load(Ordering::Acquire) as u32,
            Nature::Written(written) => written.begun.load(Ordering::Acquire) as u32,
            _ => 0,
        }
    }
}

pub(super) fn open(cache: &Cache, path: &Path, direct: Option<bool>) -> Result<File> {
    cache.open_with(path, FileOptions { direct, ..FileOptions::default() })
}

/// All files of a run.
#[derive(Debug)]
pub(super) struct Subjects {
    pub(super) all: Vec<Subject>,
}

/// Makes the files one by one.
struct Maker<'a> {
    cache: &'a Cache,
    options: &'a Options,
    all: Vec<Subject>,
}

impl Subjects {
    /// Writes and opens all files.
    pub(super) fn new(cache: &Cache, options: &Options) -> io::Result<Self> {
        let mut maker = Maker { cache, options, all: Vec::new() };
        match options.schedule {
            Schedule::Mixed => maker.mixed()?,
            Schedule::Moving => {
                let bytes = options.budget_bytes / 8;
                (0..4).for_each(|n| maker.memory("moving", bytes + n));
            }
            Schedule::Reopening => {
                for n in 0..6 {
                    maker.real("reopening", n * 3000, Some(false), false)?;
                }
            }
            Schedule::Mapping => maker.mapping()?,
            // Another process makes them.
            Schedule::Foreign => {}
            Schedule::Writing => maker.writing()?,
            Schedule::Resizing => {
                for bytes in [100, 3000, 5000, 9000, 20_000, 70_000, 300_000] {
                    maker.cut("cut", bytes);
                }
            }
        }
        Ok(Subjects { all: maker.all })
    }

    /// What those files that are kept open have in memory that is mapped.
    pub(super) fn mirrored_bytes(&self) -> u64 {
        let kept = self.all.iter().filter_map(|subject| subject.kept.as_ref());
        kept.map(File::mirrored_bytes).sum()
    }

    /// The names, by number.
    pub(super) fn names(&self) -> Vec<String> {
        self.all.iter().map(|subject| subject.name.clone()).collect()
    }
}

impl Maker<'_> {
    /// Files of all kinds.
    fn mixed(&mut self) -> io::Result<()> {
        let bytes = self.options.data_bytes;
        let part = |percent: u64| bytes / 100 * percent;
        self.real("direct", part(30) + 1234, None, true)?;
        self.memory("memory", part(20) + 4095);
        self.real("buffered", part(20) + 63, Some(false), true)?;
        self.faulty("faulty", part(15) + 1);
        self.rewritten("rewritten", (part(5) + 777).min((2 << 20) + 777));
        self.cut("cut", (part(5) + 2049).min((3 << 20) + 2049));
        self.real("fleeting", part(4) + 17, None, false)?;
        self.memory("exact", part(1).next_multiple_of(2 << 20));
        for bytes in [0, 1, 4095, 4096, 4097, 65_535, (2 << 20) + 1] {
            self.memory("small", bytes);
        }
        for bytes in [0, 1, 4095, 4097] {
            self.real("small", bytes, None, true)?;
            self.real("small", bytes, Some(false), false)?;
        }
        Ok(())
    }

    /// Files of all kinds that are kept open.
    fn mapping(&mut self) -> io::Result<()> {
        let budget = self.options.budget_bytes;
        self.real("direct", budget / 2 + 1234, None, true)?;
        self.memory("memory", budget / 2 + 4095);
        self.faulty("faulty", budget / 4 + 1);
        self.rewritten("rewritten", budget / 8 + 777);
        self.cut("cut", budget / 8 + 2049);
        self.rewritten("rewritten", 5000);
        self.cut("cut", 70_000);
        self.real("buffered", budget / 4 + 63, Some(false), true)?;
        for bytes in [1, 4095, 4096, 4097, (2 << 20) + 1] {
            self.memory("small", bytes);
        }
        Ok(())
    }

    /// Files that are written to, beside one that is not.
    fn writing(&mut self) -> io::Result<()> {
        let budget = self.options.budget_bytes;
        self.written_file("direct", budget + 1234, None)?;
        self.written_file("buffered", budget / 2 + 63, Some(false))?;
        self.written_memory("memory", budget / 2 + 4095, false);
        self.written_memory("faulty", budget / 2 + 1, true);
        for bytes in [1, 4096, 5000, 70_000] {
            self.written_file("small", bytes, None)?;
            self.written_memory("small", bytes, true);
        }
        self.memory("steady", budget / 2);
        Ok(())
    }

    fn written_file(&mut self, kind: &str, bytes: u64, direct: Option<bool>) -> io::Result<()> {
        let path = self.options.dir.join(format!("{kind}-{bytes}-{}", self.all.len()));
        write_pattern(&path, self.pattern(), bytes)?;
        let options = FileOptions { direct, write: true, ..FileOptions::default() };
        let file = self.cache.open_with(&path, options).map_err(|error| as_io(&error))?;
        let name = path.display().to_string();
        let source = move || std::fs::read(&path).expect("it is there");
        self.written(name, bytes, file, false, Box::new(source));
        Ok(())
    }

    fn written_memory(&mut self, kind: &str, bytes: u64, fails: bool) {
        let name = format!("{kind} of {bytes} in memory, fails: {fails}");
        let memory = self.contents(bytes);
        let faulty = Arc::new(Faulty::new(memory.clone()));
        if fails {
            for operation in [Operation::Write, Operation::Sync] {
                let when = When::PerMillion { chance: 100_000, seed: bytes };
                faulty.add(Rule { operation, when, fault: Fault::Error(5) });
            }
        }
        let file = self.attach(&name, faulty);
        self.written(name, bytes, file, fails, Box::new(move || memory.to_vec()));
    }

    fn written(
        &mut self,
        name: String,
        bytes: u64,
        file: File,
        fails: bool,
        source: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    ) {
        let kept = Some(file.clone());
        let (begun, settled) = (AtomicU64::new(0), AtomicU64::new(0));
        let written = WrittenFile { file, begun, settled, turn: Mutex::new(()), fails, source };
        self.add(name, bytes, Nature::Written(Box::new(written)), kept);
    }

    fn pattern(&self) -> Pattern {
        Pattern::new(self.options.seed, self.all.len() as u16)
    }

    fn add(&mut self, name: String, bytes: u64, nature: Nature, kept: Option<File>) {
        let (number, pattern) = (self.all.len(), self.pattern());
        let phase = Phase::default();
        self.all.push(Subject { number, name, pattern, bytes, nature, phase, path: None, kept });
    }

    fn contents(&self, bytes: u64) -> Arc<Memory> {
        Arc::new(Memory::new(self.pattern().to_vec(bytes as usize)))
    }

    fn attach(&self, name: &str, source: Arc<dyn Source>) -> File {
        self.cache.attach(name, source).expect("a source in memory can be attached")
    }

    fn memory(&mut self, kind: &str, bytes: u64) {
        let name = format!("{kind} of {bytes} in memory");
        let file = self.attach(&name, self.contents(bytes));
        self.add(name, bytes, Nature::Steady, Some(file));
    }

    fn faulty(&mut self, kind: &str, bytes: u64) {
        let name = format!("{kind} of {bytes} in memory");
        let inner: Arc<dyn Source> = match self.options.sabotage {
            Some(sabotage) => {
                Arc::new(Liar { inner: self.contents(bytes), sabotage, calls: AtomicU64::new(0) })
            }
            None => self.contents(bytes),
        };
        let faulty = Arc::new(Faulty::new(inner));
        let file = self.attach(&name, faulty.clone());
        self.add(name, bytes, Nature::Faulty(faulty), Some(file));
    }

    fn rewritten(&mut self, kind: &str, bytes: u64) {
        let name = format!("{kind} of {bytes} in memory");
        let memory = self.contents(bytes);
        let file = self.attach(&name, memory.clone());
        let (begun, settled) = (AtomicU64::new(0), AtomicU64::new(0));
        self.add(name, bytes, Nature::Rewritten { memory, begun, settled }, Some(file));
    }

    fn cut(&mut self, kind: &str, bytes: u64) {
        let name = format!("{kind} of {bytes} in memory");
        let memory = self.contents(bytes);
        let file = self.attach(&name, memory.clone());
        self.add(name, bytes, Nature::Cut(memory), Some(file));
    }

    /// A real file; `kept` open for the whole run or not.
    fn real(&mut self, kind: &str, bytes: u64, direct: Option<bool>, kept: bool) -> io::Result<()> {
        let path = self.options.dir.join(format!("{kind}-{bytes}-{}", self.all.len()));
        write_pattern(&path, self.pattern(), bytes)?;
        let file = if kept {
            Some(open(self.cache, &path, direct).map_err(|error| as_io(&error))?)
        } else {
            None
        };
        self.add(path.display().to_string(), bytes, Nature::Steady, file);
        let made = self.all.last_mut().expect("just added");
        made.path = Some((path, direct));
        Ok(())
    }
}

fn as_io(error: &Error) -> io::Error {
    io::Error::other(error.to_string())
}

fn write_pattern(path: &Path, pattern: Pattern, bytes: u64) -> io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let mut buf = vec![0; 1 << 20];
    for offset in (0..bytes).step_by(buf.len()) {
        let part = (bytes - offset).min(buf.len() as u64) as usize;
        pattern.fill(offset, &mut buf[..part]);
        file.write_all(&buf[..part])?;
    }
    // Direct reads of dirty pages make the kernel write them back each time.
    file.sync_data()
}

/// A source that is wrong, to see that it is noticed.
#[derive(Debug)]
struct Liar {
    inner: Arc<Memory>,
    sabotage: Sabotage,
    calls: AtomicU64,
}

impl Source for Liar {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        // Relaxed: it only has to count.
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        match self.sabotage {
            Sabotage::WrongPage if call % 100 == 50 => {
                let got = self.inner.read_at(offset, buf)?;
                let lies = self.inner.read_at(offset + 4096, &mut buf[..got])?;
                assert!(lies <= got);
                Ok(got)
            }
            Sabotage::MissingCell if call % 100 == 50 => {
                let got = self.inner.read_at(offset, buf)?;
                buf[got.saturating_sub(64)..got].fill(0);
                Ok(got)
            }
            Sabotage::Hang if call > 100 => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            _ => self.inner.read_at(offset, buf),
        }
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.inner.len_bytes()
    }

    fn kind(&self) -> Cow<'static, str> {
        "lying".into()
    }
}
