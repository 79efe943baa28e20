//! File contents that know where they belong.
//!
//! Belongs here: the 64-byte cell, how it is made, checked, and decoded when it is in the wrong
//! place. Does not: what is read when (`stress`).
//!
//! # A cell
//! Eight little-endian words of 64 bits:
//!
//! | word | holds |
//! |---|---|
//! | 0 | mark (16 bits), file (16), epoch (32): readable in a hex dump |
//! | 1 | offset of the cell in the file, in bytes; its page is that shifted right by 12 |
//! | 2 to 6 | file and offset of this word, scrambled by a bijection that the seed chooses |
//! | 7 | check sum of the seed and the words before |
//!
//! The bijection makes a torn cell tell where each of its words came from: see [`origins`].
//! The epoch is for contents that are replaced while they are read.

use std::fmt;
use std::ops::{Range, RangeInclusive};

/// Bytes of a cell.
pub const CELL_BYTES: usize = 64;

/// Runs of wrong bytes that are told of one read, about.
const ORIGINS_MAX: usize = 12;

/// Largest length of a file with a pattern: 2^50 bytes.
pub const PATTERN_MAX_BYTES: u64 = 1 << 50;

const WORDS: usize = CELL_BYTES / 8;
const MARK: u64 = 0x9f0d;
/// Bits of a word's place in its file, counted in words.
const PLACE_BITS: u32 = 48;

/// Two odd factors of a multiply-and-shift mixer (those of Stafford's "Mix13").
const FACTORS: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];
const INVERSES: [u64; 2] = [inverse(FACTORS[0]), inverse(FACTORS[1])];

/// The inverse of an odd number modulo 2^64, by Newton's iteration: each step doubles the bits
/// that are right, and the number itself is right to 3.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut step = 0;
    while step < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        step += 1;
    }
    assert!(x.wrapping_mul(odd) == 1);
    x
}

const fn scramble(word: u64) -> u64 {
    let word = word.wrapping_mul(FACTORS[0]);
    let word = (word ^ (word >> 32)).wrapping_mul(FACTORS[1]);
    word ^ (word >> 32)
}

const fn unscramble(word: u64) -> u64 {
    let word = (word ^ (word >> 32)).wrapping_mul(INVERSES[1]);
    (word ^ (word >> 32)).wrapping_mul(INVERSES[0])
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Another seed, other contents.
    pub seed: u64,
    /// Which of the files of one seed.
    pub file: u16,
    /// Which contents of this file, where it is written anew.
    pub epoch: u32,
}

impl Pattern {
    /// The contents of `file` under `seed` at epoch 0.
    pub const fn new(seed: u64, file: u16) -> Self {
        Pattern { seed, file, epoch: 0 }
    }

    /// The same file at another epoch.
    #[must_use]
    pub fn at_epoch(self, epoch: u32) -> Self {
        Pattern { epoch, ..self }
    }

    /// The words of cell `number`, the one at `number * 64`.
    #[inline(always)]
    fn words(&self, number: u64) -> [u64; WORDS] {
        let place = (u64::from(self.file) << PLACE_BITS) | (number * WORDS as u64);
        let mut words = [0; WORDS];
        words[0] = (MARK << 48) | (u64::from(self.file) << 32) | u64::from(self.epoch);
        words[1] = number * CELL_BYTES as u64;
        let mut sum = scramble(words[0] ^ self.seed) ^ words[1];
        for (n, word) in words.iter_mut().enumerate().take(7).skip(2) {
            *word = scramble((place + n as u64) ^ self.seed);
            sum = sum.rotate_left(9) ^ *word;
        }
        words[7] = scramble(sum);
        words
    }

    fn cell(&self, number: u64) -> [u8; CELL_BYTES] {
        let mut bytes = [0; CELL_BYTES];
        for (into, word) in bytes.chunks_exact_mut(8).zip(self.words(number)) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Writes what the file holds at `offset` into `buf`.
    ///
    /// # Panics
    /// If the range ends beyond [`PATTERN_MAX_BYTES`].
    pub fn fill(&self, offset: u64, buf: &mut [u8]) {
        assert!(offset + buf.len() as u64 <= PATTERN_MAX_BYTES, "a pattern ends at 2^50");
        for (number, range) in cells(offset, buf.len()) {
            let into = &mut buf[range.clone()];
            let skip = if range.start == 0 { offset as usize % CELL_BYTES } else { 0 };
            into.copy_from_slice(&self.cell(number)[skip..skip + into.len()]);
        }
    }

    /// The first `bytes` of the file.
    pub fn to_vec(&self, bytes: usize) -> Vec<u8> {
        let mut all = vec![0; bytes];
        self.fill(0, &mut all);
        all
    }

    /// Whether `got` is what the file holds at `offset`. The contents are computed anew: about
    /// 10 ns for a cell.
    ///
    /// # Errors
    /// Where they differ first, and what `got` holds there instead.
    #[inline]
    pub fn check(&self, offset: u64, got: &[u8]) -> Result<(), Box<Wrong>> {
        if !offset.is_multiple_of(CELL_BYTES as u64) {
            return self.check_parts(offset, got, self.epoch..=self.epoch);
        }
        let first = offset / CELL_BYTES as u64;
        let (whole, tail) = got.as_chunks::<CELL_BYTES>();
        for (n, cell) in whole.iter().enumerate() {
            if differs(cell, &self.words(first + n as u64)) {
                return Err(self.wrong(offset, got, n * CELL_BYTES..(n + 1) * CELL_BYTES));
            }
        }
        let at = offset + (got.len() - tail.len()) as u64;
        if tail.is_empty() || self.check_parts(at, tail, self.epoch..=self.epoch).is_ok() {
            return Ok(());
        }
        Err(self.wrong(offset, got, got.len() - tail.len()..got.len()))
    }

    /// The same where any epoch of `epochs` will do, for each cell by itself.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_epochs(
        &self,
        offset: u64,
        got: &[u8],
        epochs: RangeInclusive<u32>,
    ) -> Result<(), Box<Wrong>> {
        self.check_parts(offset, got, epochs)
    }

    fn check_parts(
        &self,
        offset: u64,
        got: &[u8],
        epochs: RangeInclusive<u32>,
    ) -> Result<(), Box<Wrong>> {
        for (number, range) in cells(offset, got.len()) {
            let skip = if range.start == 0 { offset as usize % CELL_BYTES } else { 0 };
            let part = &got[range.clone()];
            // Whole cells name their epoch; of a part, every epoch is tried.
            let told = (part.len() == CELL_BYTES).then(|| le(part, 0) as u32);
            let fits = |epoch| self.at_epoch(epoch).cell(number)[skip..skip + part.len()] == *part;
            let right = match told {
                Some(epoch) => epochs.contains(&epoch) && fits(epoch),
                None => epochs.clone().any(fits),
            };
            if !right {
                return Err(self.at_epoch(*epochs.start()).wrong(offset, got, range));
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn wrong(&self, offset: u64, got: &[u8], range: Range<usize>) -> Box<Wrong> {
        let mut expected = vec![0; range.len()];
        self.fill(offset + range.start as u64, &mut expected);
        let part = &got[range.clone()];
        let first = expected.iter().zip(part).position(|(a, b)| a != b).unwrap_or(0);
        Box::new(Wrong {
            pattern: *self,
            offset: offset + (range.start + first) as u64,
            part_offset: offset + range.start as u64,
            expected_byte: expected[first],
            got_byte: part[first],
            expected,
            got: part.to_vec(),
            wrong_bytes: self.count_wrong(offset, got),
            read: offset..offset + got.len() as u64,
            origins: self.survey(offset, got),
        })
    }

    /// Where everything belongs that is wrong in a read, as far as it takes to tell what happened.
    fn survey(&self, offset: u64, got: &[u8]) -> Vec<(Range<u64>, Origin)> {
        let mut runs = Vec::new();
        for (number, range) in cells(offset, got.len()) {
            let skip = if range.start == 0 { offset as usize % CELL_BYTES } else { 0 };
            let part = &got[range.clone()];
            if self.cell(number)[skip..skip + part.len()] == *part {
                continue;
            }
            for (range, origin) in origins(self.seed, offset + range.start as u64, part) {
                extend(&mut runs, range, origin);
            }
            if runs.len() > ORIGINS_MAX {
                break;
            }
        }
        runs
    }

    fn count_wrong(&self, offset: u64, got: &[u8]) -> usize {
        let mut expected = vec![0; got.len()];
        self.fill(offset, &mut expected);
        expected.iter().zip(got).filter(|(a, b)| a != b).count()
    }
}

/// Whether a cell is not made of these words. No early way out: eight compares are cheaper.
#[inline(always)]
fn differs(cell: &[u8; CELL_BYTES], words: &[u64; WORDS]) -> bool {
    let mut difference = 0;
    for (n, word) in words.iter().enumerate() {
        difference |= le(cell, n) ^ word;
    }
    difference != 0
}

/// Word `n` of `bytes`.
#[inline(always)]
fn le(bytes: &[u8], n: usize) -> u64 {
    u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("8 bytes"))
}

/// The cells that a range of `bytes` at `offset` touches, each with its part of the range.
fn cells(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == bytes {
            return None;
        }
        let here = offset + at as u64;
        let rest = CELL_BYTES - (here % CELL_BYTES as u64) as usize;
        let range = at..bytes.min(at + rest);
        at = range.end;
        Some((here / CELL_BYTES as u64, range))
    })
}

/// A difference from the pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// What should have been read; the oldest epoch that would have done.
    pub pattern: Pattern,
    /// Of the first wrong byte, in the file.
    pub offset: u64,
    /// What should be there.
    pub expected_byte: u8,
    /// What is there.
    pub got_byte: u8,
    /// Where `expected` and `got` begin: a cell, or the part of one that was read.
    pub part_offset: u64,
    /// What the cell should hold.
    pub expected: Vec<u8>,
    /// What it holds.
    pub got: Vec<u8>,
    /// How many bytes of the read are wrong.
    pub wrong_bytes: usize,
    /// The whole read.
    pub read: Range<u64>,
    /// Where the wrong bytes of the read, the first dozen runs of them, really belong.
    pub origins: Vec<(Range<u64>, Origin)>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { pattern, offset, read, .. } = self;
        writeln!(
            f,
            "wrong byte at {offset} of file {} (page {}, byte {} of it): expected {:#04x}, got {:#04x}",
            pattern.file,
            offset >> 12,
            offset & 4095,
            self.expected_byte,
            self.got_byte,
        )?;
        writeln!(
            f,
            "  the read was of {} bytes at {}; {} of them are wrong",
            read.end - read.start,
            read.start,
            self.wrong_bytes,
        )?;
        writeln!(f, "  expected {}", hex(&self.expected))?;
        writeln!(f, "  got      {}", hex(&self.got))?;
        for (range, origin) in &self.origins {
            writeln!(f, "  {} to {}: {origin}", range.start, range.end)?;
        }
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    let groups = bytes
        .chunks(8)
        .map(|group| group.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")));
    groups.collect::<Vec<_>>().join(" ")
}

/// Where some bytes really belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Whole cells that follow each other, their check sums right.
    Cell {
        /// Of which file.
        file: u16,
        /// Where in it the first belongs.
        offset: u64,
        /// Of which contents of it.
        epoch: u32,
    },
    /// A word out of the middle of a cell.
    Word {
        /// Of which file.
        file: u16,
        /// Where in it.
        offset: u64,
    },
    /// The first word of some cell of a file.
    Head {
        /// Of which file.
        file: u16,
        /// Of which contents of it.
        epoch: u32,
    },
    /// Nothing but zeros: never filled, or beyond the end of a source.
    Zeros,
    /// Nothing that the pattern makes, or too little to tell.
    Unknown,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Origin::Cell { file, offset, epoch } => write!(
                f,
                "whole cells, from {offset} of file {file} (page {}), epoch {epoch}",
                offset >> 12
            ),
            Origin::Word { file, offset } => {
                write!(f, "what belongs at {offset} of file {file} (page {})", offset >> 12)
            }
            Origin::Head { file, epoch } => {
                write!(f, "the first word of a cell of file {file}, epoch {epoch}")
            }
            Origin::Zeros => f.write_str("zeros"),
            Origin::Unknown => f.write_str("nothing the pattern makes, or too little to tell"),
        }
    }
}

/// Says of `bytes`, found at `offset`, where each run of them belongs: a whole cell where they
/// are one, else word for word.
pub fn origins(seed: u64, offset: u64, bytes: &[u8]) -> Vec<(Range<u64>, Origin)> {
    let end = offset + bytes.len() as u64;
    if let Ok(cell) = <&[u8; CELL_BYTES]>::try_from(bytes)
        && let Some(origin) = whole(seed, cell)
    {
        return vec![(offset..end, origin)];
    }
    let mut runs: Vec<(Range<u64>, Origin)> = Vec::new();
    let first_word = offset.next_multiple_of(8).min(end);
    let mut edges = vec![offset];
    edges.extend((first_word..end).step_by(8).filter(|&edge| edge != offset));
    for (n, &from) in edges.iter().enumerate() {
        let to = edges.get(n + 1).copied().unwrap_or(end);
        let origin = part(seed, &bytes[(from - offset) as usize..(to - offset) as usize]);
        extend(&mut runs, from..to, origin);
    }
    runs
}

/// Adds a run, or makes the last one longer.
fn extend(runs: &mut Vec<(Range<u64>, Origin)>, next: Range<u64>, origin: Origin) {
    match runs.last_mut() {
        Some((range, last))
            if range.end == next.start && continues(*last, origin, next.start - range.start) =>
        {
            range.end = next.end;
        }
        _ => runs.push((next, origin)),
    }
}

/// Whether `next`, that many bytes on, carries on what `first` began.
fn continues(first: Origin, next: Origin, bytes: u64) -> bool {
    match (first, next) {
        (
            Origin::Cell { file: a, epoch: old, offset: from },
            Origin::Cell { file: b, epoch: new, offset: to },
        ) => a == b && old == new && from + bytes == to,
        (Origin::Word { file: a, offset: from }, Origin::Word { file: b, offset: to }) => {
            a == b && from + bytes == to
        }
        (Origin::Zeros, Origin::Zeros) | (Origin::Unknown, Origin::Unknown) => true,
        _ => false,
    }
}

fn whole(seed: u64, cell: &[u8; CELL_BYTES]) -> Option<Origin> {
    let (head, offset) = (le(cell, 0), le(cell, 1));
    let fits = head >> 48 == MARK && offset < PATTERN_MAX_BYTES;
    if !fits || !offset.is_multiple_of(CELL_BYTES as u64) {
        return None;
    }
    let (file, epoch) = ((head >> 32) as u16, head as u32);
    let words = Pattern { seed, file, epoch }.words(offset / CELL_BYTES as u64);
    (!differs(cell, &words)).then_some(Origin::Cell { file, offset, epoch })
}

fn part(seed: u64, bytes: &[u8]) -> Origin {
    if bytes.iter().all(|&byte| byte == 0) {
        return Origin::Zeros;
    }
    if bytes.len() != 8 {
        return Origin::Unknown;
    }
    let word = le(bytes, 0);
    if word >> 48 == MARK {
        return Origin::Head { file: (word >> 32) as u16, epoch: word as u32 };
    }
    let place = unscramble(word) ^ seed;
    let (file, offset) = (place >> PLACE_BITS, (place & ((1 << PLACE_BITS) - 1)) * 8);
    // Of 2^64 words, the bijection makes all; those of small files in the middle of a cell are
    // few enough that another word hardly looks like one.
    let middle = (16..56).contains(&(offset % CELL_BYTES as u64));
    if file < 1024 && offset < 1 << 40 && middle {
        return Origin::Word { file: file as u16, offset };
    }
    Origin::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 0x1234_5678_9abc_def0;

    #[test]
    fn the_mixer_can_be_undone() {
        for n in 0..10_000u64 {
            let word = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            assert_eq!(unscramble(scramble(word)), word);
        }
    }

    #[test]
    fn every_range_checks_against_the_whole() {
        let pattern = Pattern::new(SEED, 3).at_epoch(9);
        let all = pattern.to_vec(1000);
        for from in 0..200 {
            for to in from..400 {
                let mut part = vec![0; to - from];
                pattern.fill(from as u64, &mut part);
                assert_eq!(part, all[from..to]);
                pattern.check(from as u64, &part).unwrap();
                pattern.check_epochs(from as u64, &part, 5..=9).unwrap();
            }
        }
    }

    #[test]
    fn any_changed_byte_is_found_and_named() {
        let pattern = Pattern::new(SEED, 3);
        let all = pattern.to_vec(500);
        for at in 0..400 {
            for from in [0, at - at % 64, at - at % 7] {
                let mut got = all[from..from + 100.max(at + 1 - from)].to_vec();
                got[at - from] ^= 0x10;
                let wrong = pattern.check(from as u64, &got).unwrap_err();
                assert_eq!(wrong.offset, at as u64);
                assert_eq!(wrong.expected_byte ^ 0x10, wrong.got_byte);
                assert_eq!(wrong.wrong_bytes, 1);
            }
        }
    }

    #[test]
    fn another_seed_file_offset_or_epoch_is_wrong() {
        let pattern = Pattern::new(SEED, 3);
        let got = pattern.to_vec(64);
        assert!(Pattern::new(SEED ^ 1, 3).check(0, &got).is_err());
        assert!(Pattern::new(SEED, 4).check(0, &got).is_err());
        assert!(pattern.at_epoch(1).check(0, &got).is_err());
        assert!(pattern.check(64, &got).is_err());
        assert!(pattern.check_epochs(0, &got, 1..=2).is_err(), "older than it may be");
        // Of a part of a cell, only the word that has the epoch tells it.
        assert!(pattern.check_epochs(0, &got[..50], 1..=2).is_err());
        assert!(pattern.check_epochs(0, &got[..50], 0..=2).is_ok());
    }

    #[test]
    fn a_cell_in_the_wrong_place_says_where_it_belongs() {
        let got = Pattern::new(SEED, 7).at_epoch(2).to_vec(8192)[4096 + 128..4096 + 192].to_vec();
        let wrong = Pattern::new(SEED, 3).check(640, &got).unwrap_err();
        let belongs = Origin::Cell { file: 7, offset: 4096 + 128, epoch: 2 };
        assert_eq!(wrong.origins, [(640..704, belongs)]);
        let text = wrong.to_string();
        assert!(text.contains("whole cells, from 4224 of file 7 (page 1), epoch 2"), "{text}");
    }

    #[test]
    fn a_torn_cell_says_where_its_halves_belong() {
        let (ours, theirs) = (Pattern::new(SEED, 3), Pattern::new(SEED, 5));
        let mut got = ours.to_vec(64);
        got[32..].copy_from_slice(&theirs.to_vec(8192)[4096 + 32..4096 + 64]);
        let wrong = ours.check(0, &got).unwrap_err();
        assert_eq!(wrong.offset, 32);
        let origins = &wrong.origins;
        assert!(origins.contains(&(16..32, Origin::Word { file: 3, offset: 16 })), "{origins:?}");
        assert!(origins.contains(&(32..56, Origin::Word { file: 5, offset: 4128 })), "{origins:?}");
    }

    #[test]
    fn epochs_mixed_within_a_cell_are_found() {
        let pattern = Pattern::new(SEED, 3);
        let (old, new) = (pattern.to_vec(64), pattern.at_epoch(1).to_vec(64));
        for at in 1..8 {
            let torn = [&old[..at * 8], &new[at * 8..]].concat();
            assert!(pattern.check_epochs(0, &torn, 0..=1).is_err(), "torn at {at}");
        }
    }

    #[test]
    fn zeros_are_called_zeros() {
        let wrong = Pattern::new(SEED, 3).check(100, &[0; 20]).unwrap_err();
        assert!(wrong.to_string().contains("100 to 120: zeros"), "{wrong}");
    }
}
