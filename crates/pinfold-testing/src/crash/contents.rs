//! Contents of sectors, each with a number: to compare two is to compare numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A disk writes so much at once, or nothing of it.
pub(super) const SECTOR: usize = 512;

pub(super) type Sector = [u8; SECTOR];

/// The number of a sector of zeros.
pub(super) const ZEROS: u32 = 0;

#[derive(Debug)]
pub(super) struct Contents {
    numbers: HashMap<Sector, u32, BuildHasherDefault<Words>>,
    all: Vec<Sector>,
}

impl Contents {
    pub(super) fn new() -> Self {
        let mut contents = Contents { numbers: HashMap::default(), all: Vec::new() };
        assert_eq!(contents.number(&[0; SECTOR]), ZEROS);
        contents
    }

    pub(super) fn number(&mut self, sector: &Sector) -> u32 {
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(*sector).or_insert(next);
        if number == next {
            self.all.push(*sector);
        }
        number
    }

    /// Of bytes that begin with a sector; the last one may be a part, and is zeros from there on.
    pub(super) fn numbers(&mut self, bytes: &[u8]) -> Vec<u32> {
        let number = |part: &[u8]| {
            let mut sector = [0; SECTOR];
            sector[..part.len()].copy_from_slice(part);
            self.number(&sector)
        };
        bytes.chunks(SECTOR).map(number).collect()
    }

    pub(super) fn bytes(&self, number: u32) -> &Sector {
        &self.all[number as usize]
    }

    /// That content, with zeros from byte `at` on.
    pub(super) fn cut(&mut self, number: u32, at: usize) -> u32 {
        let mut sector = *self.bytes(number);
        sector[at..].fill(0);
        self.number(&sector)
    }
}

/// A hash of whole words: as fast as the copy that it is made beside.
#[derive(Debug, Default)]
pub(super) struct Words(u64);

impl Hasher for Words {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            let mixed = self.0.rotate_left(23) ^ u64::from_le_bytes(whole);
            self.0 = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
