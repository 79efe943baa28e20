//! Working sets: which pages of a snapshot clients have touched, in order, as a file.
//!
//! ```text
//! pinfold-working-set 1
//! bytes 536870912
//! 1200 1
//! 5 3
//! ```
//!
//! The first line has the format's version, the second the length of the snapshot. Each further
//! line has adjacent pages that were touched one after the other: the number of the first, and how
//! many. No page occurs twice. A line at the end that is not complete counts as none: its writer
//! was stopped.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::log::Log;

const FIRST_LINE: &str = "pinfold-working-set 1";
/// A page, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// No right line is longer.
const LINE_MAX_BYTES: u64 = 64;

/// The pages of a working set in runs, checked against a snapshot of `snapshot_bytes` bytes.
///
/// # Errors
/// It cannot be read, is none, or is of another snapshot.
pub fn read(path: &Path, snapshot_bytes: u64) -> Result<Vec<Range<u64>>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (runs, _) = parse(file, snapshot_bytes).with_context(|| path.display().to_string())?;
    Ok(runs)
}

/// How many pages runs have.
pub fn pages_in(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// The runs, and the length of what was understood. Memory is taken for each run, however many
/// pages it has, and for one line.
fn parse(file: impl Read, snapshot_bytes: u64) -> Result<(Vec<Range<u64>>, u64)> {
    let snapshot_pages = snapshot_bytes.div_ceil(PAGE_BYTES);
    let mut lines = Lines { file: BufReader::new(file), number: 0, whole_bytes: 0 };
    let first = lines.next()?;
    ensure!(
        first.as_deref() == Some(FIRST_LINE),
        "is not a working set: it does not begin with {FIRST_LINE:?}"
    );
    let second = lines.next()?;
    let bytes = second.and_then(|line| line.strip_prefix("bytes ")?.parse().ok());
    let bytes: u64 = bytes.context("line 2 is not `bytes` and a number")?;
    ensure!(
        bytes == snapshot_bytes,
        "is of a snapshot of {bytes} bytes, and this one has {snapshot_bytes}"
    );
    // The first page of each run, and the one behind it.
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    let mut runs = Vec::new();
    // Ends: with the file, or earlier, as no page may occur twice.
    while let Some(line) = lines.next()? {
        let n = lines.number;
        let numbers = line.split_once(' ');
        let numbers =
            numbers.and_then(|(first, count)| Some((first.parse().ok()?, count.parse().ok()?)));
        let Some((first, count)) = numbers else { bail!("line {n} is not two numbers: {line:?}") };
        let (first, count): (u64, u64) = (first, count);
        ensure!(count > 0, "line {n}: a run of 0 pages from {first} on");
        let end = first.checked_add(count).filter(|&end| end <= snapshot_pages);
        let Some(end) = end else {
            bail!(
                "line {n}: the snapshot has no {count} pages from {first} on, but \
                 {snapshot_pages} in all"
            )
        };
        // Of the runs that begin before the end of this one, the last ends last.
        if let Some((&other, &other_end)) = seen.range(..end).next_back()
            && other_end > first
        {
            bail!("line {n}: page {} occurs a second time", other.max(first));
        }
        seen.insert(first, end);
        runs.push(first..end);
    }
    Ok((runs, lines.whole_bytes))
}

/// The lines of a file that are complete.
struct Lines<F> {
    file: BufReader<F>,
    /// That of the last one, from 1 on.
    number: u64,
    /// What all of them have.
    whole_bytes: u64,
}

impl<F: Read> Lines<F> {
    fn next(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        let mut some = (&mut self.file).take(LINE_MAX_BYTES);
        let bytes = some.read_until(b'\n', &mut line).context("cannot be read")?;
        self.number += 1;
        if line.pop_if(|last| *last == b'\n').is_none() {
            let n = self.number;
            ensure!(
                bytes < LINE_MAX_BYTES as usize,
                "is not a working set: line {n} has more than {LINE_MAX_BYTES} bytes"
            );
            return Ok(None);
        }
        self.whole_bytes += bytes as u64;
        let text = String::from_utf8(line).ok();
        text.context("is not a working set: it is not text").map(Some)
    }
}

/// A working set that is being written.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    file: File,
    /// Where the next line begins.
    end: u64,
}

impl Recorder {
    /// Begins a file, or goes on with the one that is there. Also with the pages that it has. As
    /// long as it is open, no other process has it: by flock(2), whose lock stays if another
    /// descriptor of the file is closed, as by [`read`].
    ///
    /// # Errors
    /// As for [`read`]; it cannot be written; another server writes it.
    pub fn open(path: &Path, snapshot_bytes: u64) -> Result<(Self, Vec<Range<u64>>)> {
        let open = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let cannot = || format!("cannot write {}", path.display());
        let file = open.with_context(cannot)?;
        ensure!(
            file.metadata().with_context(cannot)?.is_file(),
            "cannot write {}: it is no regular file, and so could not be read again",
            path.display()
        );
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                bail!("cannot write {}: another server records into it", path.display())
            }
            Err(why) => return Err(why).with_context(|| format!("cannot lock {}", path.display())),
        }
        let found = file.metadata().with_context(cannot)?;
        let mut recorder = Recorder { path: path.to_owned(), file, end: 0 };
        if found.len() == 0 {
            recorder.write(&format!("{FIRST_LINE}\nbytes {snapshot_bytes}\n"))?;
            return Ok((recorder, Vec::new()));
        }
        let parsed = parse(&recorder.file, snapshot_bytes);
        let (runs, end) = parsed.with_context(|| path.display().to_string())?;
        recorder.end = end;
        recorder.cut().with_context(cannot)?;
        Ok((recorder, runs))
    }

    /// Leaves what is complete.
    fn cut(&mut self) -> std::io::Result<()> {
        self.file.set_len(self.end)?;
        self.file.seek(SeekFrom::Start(self.end)).map(drop)
    }

    fn write(&mut self, lines: &str) -> Result<()> {
        let written = self.file.write_all(lines.as_bytes());
        if written.is_err() {
            let _ = self.cut(); // a line that is not complete counts as none
        }
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        self.end += lines.len() as u64;
        Ok(())
    }

    /// Adds pages that were touched, in this order.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn add(&mut self, pages: &[u64]) -> Result<()> {
        let mut text = String::new();
        for run in pages.chunk_by(|one, next| one + 1 == *next) {
            use std::fmt::Write;
            let _ = writeln!(text, "{} {}", run[0], run.len());
        }
        self.write(&text)
    }
}

/// The pages that some process has touched: a bit for each of 4096 adjacent ones.
#[derive(Debug, Default)]
struct SeenPages(HashMap<u64, Box<[u64; 64]>>);

impl SeenPages {
    /// Adds a page; whether it is new.
    fn add(&mut self, page: u64) -> bool {
        let (block, at) = (page / 4096, page % 4096);
        let word = &mut self.0.entry(block).or_insert_with(|| Box::new([0; 64]))[at as usize / 64];
        let is_new = *word >> (at % 64) & 1 == 0;
        *word |= 1 << (at % 64);
        is_new
    }
}

/// A thread that writes a working set: no fault waits for a disk. If it cannot be written any more,
/// recording ends, and nothing else. All processes have one.
#[derive(Debug)]
pub struct Recording {
    /// What the file has had before, in the order of the pages: runs, as they may be of any length.
    known: Vec<Range<u64>>,
    /// What else was touched since the start: no page waits for the thread twice, however long a
    /// write takes.
    seen: Mutex<SeenPages>,
    touched: Sender<Vec<u64>>,
    has_ended: Arc<AtomicBool>,
}

/// How many pages the file has.
#[derive(Debug, Clone, Default)]
pub struct Written(Arc<AtomicU64>);

impl Written {
    /// So many by now.
    pub fn pages(&self) -> u64 {
        self.0.load(Ordering::Relaxed) // a figure
    }
}

impl Recording {
    /// Starts the thread. The file has the `known` pages.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        mut recorder: Recorder,
        known: Vec<Range<u64>>,
        written: &Written,
        log: Log,
    ) -> Result<Self> {
        written.0.store(pages_in(&known), Ordering::Relaxed); // a figure
        let (recording, batches) = Self::new(known);
        let (written, has_ended) = (written.clone(), recording.has_ended.clone());
        let thread = std::thread::Builder::new().name("pinfold-record".to_owned());
        let work = move || {
            for pages in batches {
                if let Err(why) = recorder.add(&pages) {
                    has_ended.store(true, Ordering::Relaxed); // who touches more is told
                    log.tell(format_args!("the working set is not recorded any more: {why:#}"));
                    return;
                }
                written.0.fetch_add(pages.len() as u64, Ordering::Relaxed); // a figure
            }
        };
        thread.spawn(work).context("no thread to record")?;
        Ok(recording)
    }

    /// And where the pages come that it adds.
    fn new(mut known: Vec<Range<u64>>) -> (Self, Receiver<Vec<u64>>) {
        known.sort_unstable_by_key(|run| run.start);
        let (touched, batches) = channel();
        let (seen, has_ended) = Default::default();
        (Recording { known, seen, touched, has_ended }, batches)
    }

    /// Whether the file has had it before.
    fn is_known(&self, page: u64) -> bool {
        let begun = self.known.partition_point(|run| run.start <= page);
        begun > 0 && self.known[begun - 1].contains(&page)
    }

    /// Adds pages that were touched, in this order, as far as the file has not had them before, and
    /// no process has touched them. They wait for their turn in memory. False: it has ended.
    pub fn add(&self, mut pages: Vec<u64>) -> bool {
        pages.retain(|&page| !self.is_known(page));
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            pages.retain(|&page| seen.add(page));
        }
        let is_sent = pages.is_empty() || self.touched.send(pages).is_ok();
        is_sent && !self.has_ended.load(Ordering::Relaxed) // what was known a moment ago
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one run")]
mod tests {
    use super::*;

    const BYTES: u64 = 100 * PAGE_BYTES - 7;

    fn parsed(text: &str) -> Result<Vec<Range<u64>>, String> {
        parse(text.as_bytes(), BYTES).map(|(pages, _)| pages).map_err(|error| format!("{error:#}"))
    }

    fn pages_of(runs: &[Range<u64>]) -> Vec<u64> {
        runs.iter().cloned().flatten().collect()
    }

    /// A process that another test is just starting may have the file open, too.
    fn unlock(recorder: &Recorder) {
        flock(&recorder.file, FlockOperation::Unlock).unwrap();
    }

    #[test]
    fn what_was_recorded_is_read_and_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("set");
        let (mut recorder, before) = Recorder::open(&path, BYTES).unwrap();
        assert!(before.is_empty());
        recorder.add(&[7, 3, 4, 5, 99]).unwrap();
        recorder.add(&[]).unwrap();
        recorder.add(&[6, 1]).unwrap();
        let all = [7, 3, 4, 5, 99, 6, 1];
        assert_eq!(pages_of(&read(&path, BYTES).unwrap()), all);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "pinfold-working-set 1\nbytes 409593\n7 1\n3 3\n99 1\n6 1\n1 1\n");
        // Stopped in the middle of a line.
        std::fs::write(&path, format!("{text}12 ")).unwrap();
        assert_eq!(pages_of(&read(&path, BYTES).unwrap()), all);
        let why = Recorder::open(&path, BYTES).unwrap_err().to_string();
        let said = format!("cannot write {}: another server records into it", path.display());
        assert_eq!(why, said, "also after it was read");
        unlock(&recorder);
        let (mut recorder, before) = Recorder::open(&path, BYTES).unwrap();
        assert_eq!(pages_of(&before), all);
        recorder.add(&[50]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text + "50 1\n");
    }

    #[test]
    fn no_page_is_written_twice() {
        let (recording, batches) = Recording::new(vec![9..1 << 48, 1..2, 6..7]);
        // As by processes that come and go while the disk does not answer.
        for _ in 0..1000 {
            assert!(recording.add(vec![7, 3, 4]));
        }
        assert!(recording.add(vec![1, 4, 5, 6, 7, 5, 9, 1000]));
        assert_eq!(batches.try_iter().collect::<Vec<_>>(), [vec![7, 3, 4], vec![5]]);
        recording.has_ended.store(true, Ordering::Relaxed);
        assert!(!recording.add(vec![7]), "also who touches nothing new is told");
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_its_line() {
        let file = |lines: &str| parsed(&format!("pinfold-working-set 1\nbytes 409593\n{lines}"));
        assert_eq!(file("99 1\n"), Ok(vec![99..100]));
        for (lines, why) in [
            ("5\n", "line 3 is not two numbers: \"5\""),
            ("5 1\n\n", "line 4 is not two numbers: \"\""),
            ("-5 1\n", "line 3 is not two numbers: \"-5 1\""),
            ("5 1 1\n", "line 3 is not two numbers: \"5 1 1\""),
            ("99 2\n", "line 3: the snapshot has no 2 pages from 99 on, but 100 in all"),
            ("5 0\n", "line 3: a run of 0 pages from 5 on"),
            ("5 18446744073709551615\n", "line 3: the snapshot has no 18446744073709551615 pages"),
            ("5 3\n1 1\n7 1\n", "line 5: page 7 occurs a second time"),
            ("5 3\n1 6\n", "line 4: page 5 occurs a second time"),
            ("5 3\n0 50\n", "line 4: page 5 occurs a second time"),
        ] {
            assert!(file(lines).unwrap_err().starts_with(why), "{:?}", file(lines));
        }
        for (text, why) in [
            ("", "is not a working set: it does not begin with"),
            ("pinfold-working-set 2\n", "is not a working set: it does not begin with"),
            ("pinfold-working-set 1\n", "line 2 is not `bytes` and a number"),
            ("pinfold-working-set 1\nbytes x\n", "line 2 is not `bytes` and a number"),
            (
                "pinfold-working-set 1\nbytes 4096\n",
                "is of a snapshot of 4096 bytes, and this one has 409593",
            ),
        ] {
            assert!(parsed(text).unwrap_err().starts_with(why), "{:?}", parsed(text));
        }
        for byte in [b'\n', b'x', 0] {
            let endless = parse(std::io::repeat(byte), BYTES).unwrap_err();
            assert!(endless.to_string().starts_with("is not a working set"), "{endless:#}");
        }
        let endless = "pinfold-working-set 1\nbytes 409593\n5 1".as_bytes();
        let endless = parse(endless.chain(std::io::repeat(b'1')), BYTES).unwrap_err();
        assert!(endless.to_string().contains("line 3 has more than 64 bytes"), "{endless:#}");
        // A run of any length is one number more.
        let long = format!("{FIRST_LINE}\nbytes {}\n0 {}\n", 1_u64 << 60, 1_u64 << 48);
        assert_eq!(parse(long.as_bytes(), 1 << 60).unwrap().0, [0..1 << 48]);
        let binary = parse(&[0xff, 0xfe, b'\n'][..], BYTES).unwrap_err();
        assert_eq!(binary.to_string(), "is not a working set: it is not text");
    }
}
