//! Checks that every byte read through the cache is what plain reads return.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use pinfold::Cache;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::subject::{Subject, bytes_bar, reads_bar};
use crate::bench::scratch::open_plain;

const CHUNK_BYTES: usize = 1 << 20;
/// Random reads are from 1 byte to as many.
const RANDOM_BYTES_MAX: usize = 64 << 10;
/// How many there are, unless time runs out first.
const RANDOM_READS: u64 = 20_000;
const RANDOM_TIME: Duration = Duration::from_secs(5);

/// What was compared.
#[derive(Debug)]
pub(super) struct Checked {
    /// Bytes front to back: all of the file.
    pub(super) whole_bytes: u64,
    /// Reads at random.
    pub(super) random_reads: u64,
    /// Their bytes.
    pub(super) random_bytes: u64,
    /// What the cache read from the file for the first.
    pub(super) whole_source_bytes: u64,
    /// And for the second: whole pages, whatever a read asked of them.
    pub(super) random_source_bytes: u64,
}

/// A file as the cache gives it, and as the system does.
#[derive(Debug)]
struct Pair<'a> {
    subject: &'a Subject,
    cached: pinfold::File,
    plain: File,
    got: Vec<u8>,
    wanted: Vec<u8>,
}

/// Reads the file whole, then at random, and compares.
pub(super) fn everything(cache: &Cache, subject: &Subject) -> Result<Checked> {
    let mut pair = Pair {
        subject,
        cached: cache.open(&subject.path)?,
        plain: open_plain(&subject.path)?,
        got: vec![0; CHUNK_BYTES],
        wanted: vec![0; CHUNK_BYTES],
    };
    let whole_bytes = whole(&mut pair)?;
    let whole_source_bytes = source_bytes(cache);
    let bar = random_bar();
    let (random_reads, random_bytes) = random(&mut pair, &bar)?;
    bar.finish_and_clear();
    let random_source_bytes = source_bytes(cache) - whole_source_bytes;
    Ok(Checked { whole_bytes, random_reads, random_bytes, whole_source_bytes, random_source_bytes })
}

/// What a cache with one file has read from it.
fn source_bytes(cache: &Cache) -> u64 {
    cache.sources().iter().map(|(_, source)| source.read.bytes + source.read_ahead.bytes).sum()
}

fn whole(pair: &mut Pair<'_>) -> Result<u64> {
    let bar = bytes_bar("checking it front to back", pair.subject.bytes);
    let mut offset = 0;
    // Ends: each turn gets forward by at least a byte, or is the last.
    loop {
        let bytes = pair.compare(offset, CHUNK_BYTES)? as u64;
        if bytes == 0 {
            break;
        }
        offset += bytes;
        bar.inc(bytes);
    }
    bar.finish_and_clear();
    let expected = pair.subject.bytes;
    if offset != expected {
        bail!("{} was {expected} bytes long and ended at {offset}", pair.subject.name);
    }
    Ok(offset)
}

fn random_bar() -> ProgressBar {
    reads_bar("checking it at random", RANDOM_READS)
}

fn random(pair: &mut Pair<'_>, bar: &ProgressBar) -> Result<(u64, u64)> {
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let begun = Instant::now();
    let (mut reads, mut bytes) = (0, 0);
    while reads < RANDOM_READS && begun.elapsed() < RANDOM_TIME {
        // Short reads as often as long ones, some across the end of the file and beyond it.
        let most = 1 << random.random_range(0..=RANDOM_BYTES_MAX.ilog2());
        let length = random.random_range(1..=most);
        let offset = random.random_range(0..pair.subject.bytes + 16);
        let got = pair.compare(offset, length)? as u64;
        bytes += got;
        reads += 1;
        bar.inc(1);
    }
    Ok((reads, bytes))
}

impl Pair<'_> {
    /// Reads `length` bytes both ways; gives how many there were.
    fn compare(&mut self, offset: u64, length: usize) -> Result<usize> {
        let (got, wanted) = (&mut self.got[..length], &mut self.wanted[..length]);
        let got_bytes = self.cached.read_at(got, offset)?;
        let wanted_bytes = read_full(&self.plain, wanted, offset)
            .with_context(|| format!("cannot read {}", self.subject.name))?;
        let name = &self.subject.name;
        if got_bytes != wanted_bytes {
            bail!(
                "WRONG: {length} bytes at {offset} of {name}: the cache gave {got_bytes}, a plain \
                 read {wanted_bytes}"
            );
        }
        let differs = got[..got_bytes].iter().zip(&wanted[..got_bytes]).position(|(a, b)| a != b);
        if let Some(at) = differs {
            bail!(
                "WRONG: byte {} of {name} is {:#04x} through the cache and {:#04x} by a plain read",
                offset + at as u64,
                got[at],
                wanted[at]
            );
        }
        Ok(got_bytes)
    }
}

/// As many bytes as there are: a plain read may be short before the end.
fn read_full(file: &File, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut done = 0;
    // Ends: each turn gets forward by at least a byte, or is the last.
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64)? {
            0 => break,
            bytes => done += bytes,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use pinfold::Options;

    use super::*;

    /// The bar is full when all reads are done, and never before.
    #[test]
    fn the_bar_of_the_random_reads_has_their_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 1000]).unwrap();
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let subject = Subject { path: path.clone(), bytes: 1000, name: "the file".to_owned() };
        let mut pair = Pair {
            subject: &subject,
            cached: cache.open(&path).unwrap(),
            plain: open_plain(&path).unwrap(),
            got: vec![0; CHUNK_BYTES],
            wanted: vec![0; CHUNK_BYTES],
        };
        let bar = random_bar();
        let (reads, bytes) = random(&mut pair, &bar).unwrap();
        assert!(reads > 0 && bytes > reads, "{bytes} bytes by {reads} reads");
        assert_eq!((bar.position(), bar.length()), (reads, Some(RANDOM_READS)));
    }

    /// The check finds one wrong byte, and a wrong length.
    #[test]
    fn a_byte_that_differs_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            File::create(&path).unwrap().write_all(bytes).unwrap();
            path
        };
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        let mut other = bytes.clone();
        other[2_345_678] ^= 1;
        let (right, wrong) = (write("right", &bytes), write("wrong", &other));
        let short = write("short", &bytes[..2_999_999]);
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let check = |plain: &std::path::Path| {
            let subject =
                Subject { path: right.clone(), bytes: 3_000_000, name: "the file".to_owned() };
            let mut pair = Pair {
                subject: &subject,
                cached: cache.open(&right).unwrap(),
                plain: open_plain(plain).unwrap(),
                got: vec![0; CHUNK_BYTES],
                wanted: vec![0; CHUNK_BYTES],
            };
            whole(&mut pair).map_err(|error| error.to_string())
        };
        assert_eq!(check(&right), Ok(3_000_000));
        let error = check(&wrong).unwrap_err();
        assert!(error.contains("WRONG: byte 2345678 of the file"), "{error}");
        let error = check(&short).unwrap_err();
        assert!(error.contains("the cache gave 902848, a plain read 902847"), "{error}");
    }
}
