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

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

const FIRST_LINE: &str = "pinfold-working-set 1";
const PAGE_BYTES: u64 = 4096;

/// Bytes that the longest line for one page has.
const LINE_MAX_BYTES: u64 = 42;

/// The pages of a working set, checked against a snapshot of `snapshot_bytes` bytes.
///
/// # Errors
/// It cannot be read, is none, or is of another snapshot.
pub fn read(path: &Path, snapshot_bytes: u64) -> Result<Vec<u64>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (pages, _) = parse(file, snapshot_bytes).with_context(|| path.display().to_string())?;
    Ok(pages)
}

/// The pages, and the length of what was understood.
fn parse(file: impl Read, snapshot_bytes: u64) -> Result<(Vec<u64>, u64)> {
    let snapshot_pages = snapshot_bytes.div_ceil(PAGE_BYTES);
    // As no page occurs twice, no right file is longer.
    let most = (snapshot_pages + 2) * LINE_MAX_BYTES;
    let mut text = Vec::new();
    file.take(most + 1).read_to_end(&mut text).context("cannot be read")?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let is_text = std::str::from_utf8(&text[..whole]);
    let Ok(text) = is_text else { bail!("is not a working set: it is not text") };
    let mut lines = text.lines().enumerate().map(|(n, line)| (n + 1, line));
    let first = lines.next().map(|(_, line)| line);
    ensure!(
        first == Some(FIRST_LINE),
        "is not a working set: it does not begin with {FIRST_LINE:?}"
    );
    let bytes = lines.next().and_then(|(_, line)| line.strip_prefix("bytes ")?.parse().ok());
    let bytes: u64 = bytes.context("line 2 is not `bytes` and a number")?;
    ensure!(
        bytes == snapshot_bytes,
        "is of a snapshot of {bytes} bytes, and this one has {snapshot_bytes}"
    );
    let mut seen = vec![false; snapshot_pages as usize];
    let mut pages = Vec::new();
    for (n, line) in lines {
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
        for page in first..end {
            let before = std::mem::replace(&mut seen[page as usize], true);
            ensure!(!before, "line {n}: page {page} occurs a second time");
            pages.push(page);
        }
    }
    ensure!(text.len() as u64 <= most, "is too long");
    Ok((pages, whole as u64))
}

/// A working set that is being written.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    file: File,
}

impl Recorder {
    /// Begins a file, or goes on with the one that is there. Also with the pages that it has.
    ///
    /// # Errors
    /// As for [`read`]; it cannot be written.
    pub fn open(path: &Path, snapshot_bytes: u64) -> Result<(Self, Vec<u64>)> {
        let open = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.with_context(|| format!("cannot write {}", path.display()))?;
        let is_new = file.metadata().is_ok_and(|it| it.is_file() && it.len() == 0);
        let (pages, end) = if is_new {
            writeln!(file, "{FIRST_LINE}\nbytes {snapshot_bytes}")
                .with_context(|| format!("cannot write {}", path.display()))?;
            (Vec::new(), None)
        } else {
            let parsed =
                parse(&file, snapshot_bytes).with_context(|| path.display().to_string())?;
            (parsed.0, Some(parsed.1))
        };
        if let Some(end) = end {
            file.set_len(end)?;
            file.seek(SeekFrom::Start(end))?;
        }
        Ok((Recorder { path: path.to_owned(), file }, pages))
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
        self.file
            .write_all(text.as_bytes())
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 100 * PAGE_BYTES - 7;

    fn parsed(text: &str) -> Result<Vec<u64>, String> {
        parse(text.as_bytes(), BYTES).map(|(pages, _)| pages).map_err(|error| format!("{error:#}"))
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
        assert_eq!(read(&path, BYTES).unwrap(), all);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "pinfold-working-set 1\nbytes 409593\n7 1\n3 3\n99 1\n6 1\n1 1\n");
        // Stopped in the middle of a line.
        std::fs::write(&path, format!("{text}12 ")).unwrap();
        assert_eq!(read(&path, BYTES).unwrap(), all);
        let (mut recorder, before) = Recorder::open(&path, BYTES).unwrap();
        assert_eq!(before, all);
        recorder.add(&[50]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text + "50 1\n");
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_its_line() {
        let file = |lines: &str| parsed(&format!("pinfold-working-set 1\nbytes 409593\n{lines}"));
        assert_eq!(file("99 1\n"), Ok(vec![99]));
        for (lines, why) in [
            ("5\n", "line 3 is not two numbers: \"5\""),
            ("5 1\n\n", "line 4 is not two numbers: \"\""),
            ("-5 1\n", "line 3 is not two numbers: \"-5 1\""),
            ("5 1 1\n", "line 3 is not two numbers: \"5 1 1\""),
            ("99 2\n", "line 3: the snapshot has no 2 pages from 99 on, but 100 in all"),
            ("5 0\n", "line 3: a run of 0 pages from 5 on"),
            ("5 18446744073709551615\n", "line 3: the snapshot has no 18446744073709551615 pages"),
            ("5 3\n1 1\n7 1\n", "line 5: page 7 occurs a second time"),
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
        let endless = parse(std::io::repeat(b'\n'), BYTES).unwrap_err();
        assert!(endless.to_string().starts_with("is not a working set"), "{endless:#}");
        let binary = parse(&[0xff, 0xfe, b'\n'][..], BYTES).unwrap_err();
        assert_eq!(binary.to_string(), "is not a working set: it is not text");
    }
}
