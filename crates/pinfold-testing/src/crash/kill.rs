//! Processes that write through a cache to real files, and are killed.
//!
//! What a process does is drawn from its seed: so who has the seed and knows how many of its calls
//! have begun and returned knows what its files may be. It tells that by a byte before and after
//! each call. What the kernel was given outlives the process: so a kill leaves what a crash may
//! leave, and no more. What its reads get is for the other runs of this folder.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pinfold::source::Memory;
use pinfold::{Cache, File, FileOptions, Options as CacheOptions, OwnedBytes};

use super::contents::{Contents, SECTOR};
use super::driver::bytes_of;
use super::history::History;
use super::judge;
use super::options::{CrashFailure, KillOptions, KillReport};
use super::recorder::Ticks;

const PAGE: usize = 4096;
const KEPT_MAX: usize = 6;
const FILES_MAX: usize = 2;

/// Of the bytes by which a process tells: all others are text. The lowest bit says whether a call
/// has returned, the others which file it is of.
const TOLD: u8 = 0x80;
const RETURNED: u8 = 1;

/// A process tells something as often as this, or it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a seed decides at first.
#[derive(Clone, Copy, Debug)]
struct KillPlan {
    /// As many threads.
    files: usize,
    most_bytes: usize,
    budget_bytes: u64,
    io_uring: bool,
    direct: Option<bool>,
    /// It is killed when it has told so much, after that delay.
    told: usize,
    delay: Duration,
}

impl KillPlan {
    fn new(random: &mut fastrand::Rng) -> Self {
        let longest = [0, 50, 500, 5000][random.usize(..4)];
        KillPlan {
            files: random.usize(1..=FILES_MAX),
            most_bytes: [2, 10, 40][random.usize(..3)] * PAGE,
            budget_bytes: random.u64(1..=2) << 20,
            io_uring: random.bool(),
            direct: if random.u32(..4) == 0 { Some(false) } else { None },
            told: random.usize(1..=120),
            delay: Duration::from_micros(random.u64(..=longest)),
        }
    }

    fn threads(&self, random: &mut fastrand::Rng) -> Vec<Calls> {
        let calls = |file| Calls {
            file,
            random: random.fork(),
            most_bytes: self.most_bytes,
            now: Vec::new(),
            by: 0,
        };
        (0..self.files).map(calls).collect()
    }
}

fn path(dir: &Path, file: usize) -> PathBuf {
    dir.join(format!("file-{file}"))
}

#[derive(Debug)]
enum Call {
    Write { offset: usize, bytes: Vec<u8> },
    Append(Vec<u8>),
    SetLen(usize),
    Punch(Range<usize>),
    Sync(How),
    SyncRange(Range<usize>),
    Read(Range<usize>),
    Keep(Range<usize>),
    Invalidate,
    Evict,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Data,
    All,
    /// All files of the cache.
    Cache,
    /// The last handle is dropped, and another one opened.
    Drop,
}

/// The calls of a thread, which has a file for itself.
#[derive(Debug)]
struct Calls {
    file: usize,
    random: fastrand::Rng,
    most_bytes: usize,
    /// What the file has after the last call.
    now: Vec<u8>,
    by: u32,
}

impl Calls {
    fn next(&mut self) -> Call {
        self.by += 1;
        let len = self.now.len();
        match self.random.u32(..100) {
            0..36 => {
                let beyond = [0, 0, 3 * PAGE][self.random.usize(..3)];
                let offset = self.random.usize(..=len + beyond);
                let offset = if self.random.bool() { offset } else { offset / PAGE * PAGE };
                let bytes = self.bytes(offset);
                self.write(offset, &bytes);
                Call::Write { offset, bytes }
            }
            36..48 => {
                let bytes = self.bytes(len);
                self.write(len, &bytes);
                Call::Append(bytes)
            }
            48..55 => {
                let len = self.random.usize(..=self.most_bytes);
                self.now.resize(len, 0);
                Call::SetLen(len)
            }
            55..67 => Call::Sync(How::Data),
            67..70 => Call::Sync(How::All),
            70..73 => Call::Sync(How::Cache),
            73..76 => Call::Sync(How::Drop),
            76..80 => {
                let range = self.range();
                self.now[range.clone()].fill(0);
                Call::Punch(range)
            }
            80..83 => Call::SyncRange(self.range()),
            83..86 => Call::Read(self.range()),
            86..92 => Call::Keep(self.range()),
            92..95 => Call::Invalidate,
            _ => Call::Evict,
        }
    }

    fn range(&mut self) -> Range<usize> {
        let begin = self.random.usize(..=self.now.len());
        begin..self.random.usize(begin..=self.now.len())
    }

    /// To be written there; none if the file would be too long.
    fn bytes(&mut self, offset: usize) -> Vec<u8> {
        let most = [100, 5000, self.most_bytes][self.random.usize(..3)];
        let end = (offset + self.random.usize(1..=most)).min(self.most_bytes);
        bytes_of(self.by << 1 | self.file as u32, offset..end.max(offset))
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if !bytes.is_empty() {
            self.now.resize(self.now.len().max(end), 0);
            self.now[offset..end].copy_from_slice(bytes);
        }
    }
}

/// What the process does that is to be killed: it ends only if something is wrong.
pub fn child(seed: u64, dir: &Path) {
    if let Err(what) = run_child(seed, dir) {
        eprintln!("{what}");
    }
}

fn run_child(seed: u64, dir: &Path) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let plan = KillPlan::new(&mut random);
    let mut options = CacheOptions::new(plan.budget_bytes);
    options.io_uring = plan.io_uring;
    let cache = Cache::new(options).map_err(|error| format!("a cache: {error}"))?;
    let ballast = Memory::new(vec![0; plan.budget_bytes as usize * 5 / 4]);
    let ballast = cache.attach("ballast", Arc::new(ballast)).map_err(|it| it.to_string())?;
    let threads = plan.threads(&mut random);
    let work =
        |calls: Calls| Writer::new(&cache, &ballast, &path(dir, calls.file), plan, calls)?.work();
    std::thread::scope(|scope| {
        let (ended, first) = channel();
        for calls in threads {
            let ended = ended.clone();
            scope.spawn(move || ended.send(work(calls)));
        }
        // The other threads do not end.
        let Err(what) = first.recv().expect("one of them sends");
        eprintln!("{what}");
        std::process::exit(1);
    })
}

struct Writer<'a> {
    cache: &'a Cache,
    ballast: &'a File,
    path: &'a Path,
    options: FileOptions,
    calls: Calls,
    /// `None` for a moment only.
    file: Option<File>,
    /// Who writes to what is held here writes to a copy.
    kept: VecDeque<OwnedBytes>,
}

enum Never {}

impl<'a> Writer<'a> {
    fn new(
        cache: &'a Cache,
        ballast: &'a File,
        path: &'a Path,
        plan: KillPlan,
        calls: Calls,
    ) -> Result<Self, String> {
        let options = FileOptions { write: true, create: true, direct: plan.direct };
        let mut worker =
            Writer { cache, ballast, path, options, calls, file: None, kept: VecDeque::new() };
        worker.open()?;
        Ok(worker)
    }

    fn open(&mut self) -> Result<(), String> {
        let file = self.cache.open_with(self.path, self.options);
        self.file = Some(file.map_err(|it| it.to_string())?);
        Ok(())
    }

    fn work(mut self) -> Result<Never, String> {
        let told = TOLD | (self.calls.file as u8) << 1;
        let tell = |what| std::io::stderr().write_all(&[what]).map_err(|it| it.to_string());
        loop {
            let call = self.calls.next();
            tell(told)?;
            self.carry_out(call).map_err(|what| format!("operation {}: {what}", self.calls.by))?;
            tell(told | RETURNED)?;
        }
    }

    fn carry_out(&mut self, call: Call) -> Result<(), String> {
        let file = self.file.as_ref().expect("it is open between calls");
        let said = |error: pinfold::Error| error.to_string();
        match call {
            Call::Write { offset, bytes } => file.write_at(&bytes, offset as u64).map_err(said)?,
            Call::Append(bytes) => drop(file.append(&bytes).map_err(said)?),
            Call::SetLen(len) => file.set_len(len as u64).map_err(said)?,
            Call::Punch(Range { start, end }) => {
                file.punch_hole(start as u64..end as u64).map_err(said)?;
            }
            Call::SyncRange(Range { start, end }) => {
                file.sync_range(start as u64..end as u64).map_err(said)?;
            }
            Call::Sync(How::Data) => file.sync_data().map_err(said)?,
            Call::Sync(How::All) => file.sync_all().map_err(said)?,
            Call::Sync(How::Cache) => self.cache.sync().map_err(said)?,
            Call::Sync(How::Drop) => {
                self.file = None;
                self.open()?;
            }
            Call::Read(range) => {
                let mut bytes = vec![0; range.len()];
                file.read_at(&mut bytes, range.start as u64).map_err(said)?;
            }
            Call::Keep(range) => {
                let kept = file.bytes(range.start as u64..range.end as u64).map_err(said)?;
                self.kept.push_back(kept);
                if self.kept.len() > KEPT_MAX {
                    self.kept.pop_front();
                }
            }
            Call::Invalidate => drop(file.invalidate(..).map_err(said)?),
            Call::Evict => {
                let mut bytes = vec![0; 256 << 10];
                for offset in (0..self.ballast.len()).step_by(bytes.len()) {
                    self.ballast.read_at(&mut bytes, offset).map_err(said)?;
                }
            }
        }
        Ok(())
    }
}

/// Starts processes by `start`, which call [`child`] with that seed and that folder, and kills
/// them. `progress` is called now and then.
///
/// # Errors
/// What went wrong first.
pub fn run_kills(
    options: &KillOptions,
    start: impl Fn(u64, &Path) -> Command + Sync,
    mut progress: impl FnMut(&KillReport),
) -> Result<KillReport, CrashFailure> {
    let since = Instant::now();
    let (next, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let (tell, told) = channel();
    let take = || {
        let in_time = options.time.is_none_or(|time| since.elapsed() < time);
        let goes_on = in_time && !ends.load(Ordering::Relaxed);
        let n = next.fetch_add(1, Ordering::Relaxed);
        (goes_on && n < options.kills).then(|| options.seed.wrapping_add(n))
    };
    let work = |job: usize, tell: std::sync::mpsc::Sender<_>| {
        let dir = options.dir.join(job.to_string());
        while let Some(seed) = take() {
            let killed = kill_one(seed, &dir, &start);
            let _ = tell.send(killed.map_err(|what| CrashFailure {
                seed,
                varies: Some("No two runs of it are killed at the same moment"),
                what,
            }));
        }
        let _ = std::fs::remove_dir_all(&dir);
    };
    std::thread::scope(|scope| {
        for job in 0..options.jobs {
            let (tell, work) = (tell.clone(), &work);
            scope.spawn(move || work(job, tell));
        }
        drop(tell);
        let mut result = Ok(KillReport::default());
        for killed in told {
            match (&mut result, killed) {
                (Ok(report), Ok(killed)) => {
                    report.add(killed);
                    progress(report);
                }
                (Ok(_), Err(failure)) => {
                    ends.store(true, Ordering::Relaxed);
                    result = Err(failure);
                }
                (Err(_), _) => {}
            }
        }
        result
    })
}

fn kill_one(
    seed: u64,
    dir: &Path,
    start: &impl Fn(u64, &Path) -> Command,
) -> Result<KillReport, String> {
    let plan = KillPlan::new(&mut fastrand::Rng::with_seed(seed));
    let made = std::fs::create_dir_all(dir);
    made.map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
    for file in 0..FILES_MAX {
        let _ = std::fs::remove_file(path(dir, file));
    }
    let told = kill(plan, &mut start(seed, dir))?;
    let left = || judge_left(seed, dir, &told);
    // A write that was under way may end a little after the process.
    left().or_else(|_| {
        std::thread::sleep(Duration::from_millis(300));
        left()
    })
}

/// Runs the process until its moment has come. Returns what it has told.
fn kill(plan: KillPlan, command: &mut Command) -> Result<Vec<u8>, String> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process =
        command.spawn().map_err(|error| format!("cannot start a process: {error}"))?;
    let mut stderr = process.stderr.take().expect("it is piped");
    let (tell, pieces) = channel();
    let reader = std::thread::spawn(move || {
        let mut buf = [0; 4096];
        while let Ok(got @ 1..) = stderr.read(&mut buf) {
            let _ = tell.send(buf[..got].to_vec());
        }
    });
    let mut told = Vec::new();
    let mut hangs = false;
    while told.iter().filter(|it| **it >= TOLD).count() < plan.told {
        match pieces.recv_timeout(PATIENCE) {
            Ok(piece) => told.extend(piece),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                hangs = true;
                break;
            }
        }
    }
    std::thread::sleep(plan.delay);
    let _ = process.kill();
    let ended = process.wait().map_err(|error| format!("cannot wait for a process: {error}"))?;
    reader.join().expect("it does not panic");
    told.extend(pieces.into_iter().flatten());
    let text = || {
        let text: Vec<u8> = told.iter().copied().filter(|it| *it < TOLD).collect();
        String::from_utf8_lossy(&text).trim().to_owned()
    };
    if hangs {
        return Err(format!("the process hangs {}", text()));
    }
    if ended.signal() != Some(libc::SIGKILL) {
        return Err(format!("the process has ended by itself ({ended}): {}", text()));
    }
    told.retain(|it| *it >= TOLD);
    Ok(told)
}

/// Whether what the files have is what they may have.
fn judge_left(seed: u64, dir: &Path, told: &[u8]) -> Result<KillReport, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let plan = KillPlan::new(&mut random);
    let mut report = KillReport { kills: 1, ..KillReport::default() };
    for mut calls in plan.threads(&mut random) {
        let file = calls.file;
        let contents = Arc::new(Mutex::new(Contents::new()));
        let shared = (Arc::new(Ticks::default()), contents.clone());
        let history = History::new(&[], plan.most_bytes, shared);
        let mut under_way = None;
        for told in told.iter().filter(|it| usize::from(**it & !TOLD) >> 1 == file) {
            if told & RETURNED == 0 {
                let len = calls.now.len();
                let call = calls.next();
                let sectors = match &call {
                    Call::Write { bytes, .. } | Call::Append(bytes) if bytes.is_empty() => 0..0,
                    Call::Write { offset, bytes } => history.write(*offset, bytes, calls.by),
                    Call::Append(bytes) => history.write(len, bytes, calls.by),
                    Call::SetLen(len) => history.set_len(*len, calls.by),
                    Call::Punch(range) if !range.is_empty() => {
                        history.write(range.start, &vec![0; range.len()], calls.by)
                    }
                    _ => 0..0,
                };
                under_way = Some((call, sectors));
                continue;
            }
            let (call, sectors) = under_way.take().ok_or("a call has returned that never began")?;
            report.calls += 1;
            let only = match call {
                Call::Sync(_) => None,
                Call::SyncRange(it) => Some((it.start / SECTOR, it.end.div_ceil(SECTOR))),
                _ => {
                    history.ends(sectors);
                    continue;
                }
            };
            report.syncs += 1;
            // No other call of the thread came between.
            let _ = history.sync_only(only, calls.by, || Ok::<(), ()>(()));
        }
        let bytes = match std::fs::read(path(dir, file)) {
            Ok(bytes) => bytes,
            // It is made by an open before the first call.
            Err(_) if calls.by == 0 => continue,
            Err(error) => return Err(format!("file {file} cannot be read: {error}")),
        };
        let versions = history.into_versions();
        let left = judge::judge_now(&versions, &bytes, &mut contents.lock().unwrap());
        left.map_err(|what| {
            let by = calls.by;
            format!("file {file}, whose process was killed at operation {by}: {what}")
        })?;
    }
    Ok(report)
}
