//! What a disk may have after a crash.
//!
//! A file system that journals: of the changes of the length and the holes, a first part has been
//! done, in their order. Of the writes since the last sync, each sector has any, or what it had at
//! that sync: the writes are reordered, dropped and torn between sectors. A sector that no write has
//! reached since it became the file's is zeros; one that was cut off, or punched, does not come
//! back.

use super::contents::{Contents, SECTOR, ZEROS};
use super::recorder::DiskStep;

/// A content that a sector may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct May {
    content: u32,
    /// How many times the sector had been cut or punched when it was written.
    cuts: usize,
}

#[derive(Debug, Default)]
struct OfSector {
    /// At the last sync: one, but for what a failed sync has left undecided.
    base: Vec<May>,
    /// Written since, in order.
    pending: Vec<May>,
    /// It was cut or punched by these changes.
    cuts: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Device {
    sectors: Vec<OfSector>,
    /// After so many changes. A hole is one, of no length.
    lens: Vec<usize>,
    /// So many changes are durable.
    durable: usize,
}

impl Device {
    pub(super) fn new(sectors: usize, contents: &[u32], len: usize) -> Self {
        let sector = |n| {
            let content = contents.get(n).copied().unwrap_or(ZEROS);
            OfSector { base: vec![May { content, cuts: 0 }], ..OfSector::default() }
        };
        Device { sectors: (0..sectors).map(sector).collect(), lens: vec![len], durable: 0 }
    }

    fn len(&self) -> usize {
        self.lens[self.lens.len() - 1]
    }

    pub(super) fn apply(&mut self, step: &DiskStep, contents: &mut Contents) {
        match step {
            DiskStep::Write { offset, bytes, contents } => {
                let sectors = self.sectors[offset / SECTOR..].iter_mut();
                for (sector, &content) in sectors.zip(contents) {
                    let cuts = sector.cuts.len();
                    sector.pending.push(May { content, cuts });
                }
                if offset + bytes > self.len() {
                    self.lens.push(offset + bytes);
                }
            }
            DiskStep::SetLen(bytes) => self.set_len(*bytes, contents),
            DiskStep::Punch { offset, contents } => {
                self.lens.push(self.len());
                let change = self.lens.len() - 1;
                let sectors = self.sectors[offset / SECTOR..].iter_mut();
                for (sector, &content) in sectors.zip(contents) {
                    sector.cuts.push(change);
                    sector.pending.push(May { content, cuts: sector.cuts.len() });
                }
            }
            DiskStep::Sync => {
                self.durable = self.lens.len() - 1;
                for sector in &mut self.sectors {
                    let cuts = sector.cuts.len();
                    if let Some(last) = sector.pending.pop() {
                        sector.pending.clear();
                        sector.base = vec![last];
                    } else {
                        sector.base.retain(|it| it.cuts == cuts);
                    }
                }
            }
            DiskStep::SyncFailed { lost: false } => {}
            DiskStep::SyncFailed { lost: true } => {
                for sector in &mut self.sectors {
                    sector.base.append(&mut sector.pending);
                }
            }
        }
    }

    fn set_len(&mut self, bytes: usize, contents: &mut Contents) {
        let old = self.len();
        self.lens.push(bytes);
        let change = self.lens.len() - 1;
        for n in bytes / SECTOR..old.div_ceil(SECTOR) {
            let sector = &mut self.sectors[n];
            let cuts = sector.cuts.len();
            sector.cuts.push(change);
            let at = bytes.saturating_sub(n * SECTOR);
            if at == 0 {
                sector.pending.push(May { content: ZEROS, cuts: cuts + 1 });
                continue;
            }
            for list in [&mut sector.base, &mut sector.pending] {
                let mut cut = |it: &May| {
                    let content = contents.cut(it.content, at);
                    (it.cuts == cuts).then_some(May { content, cuts: cuts + 1 })
                };
                let more: Vec<May> = list.iter().filter_map(&mut cut).collect();
                list.extend(more);
            }
        }
    }

    /// How many changes of the length may be done: from, and to.
    pub(super) fn changes(&self) -> std::ops::RangeInclusive<usize> {
        self.durable..=self.lens.len() - 1
    }

    /// The length, and for each sector below it what it may have, once so many changes are done.
    pub(super) fn after(&self, changes: usize, choices: &mut Choices) -> usize {
        let len = self.lens[changes];
        choices.all.clear();
        choices.ends.clear();
        for sector in &self.sectors[..len.div_ceil(SECTOR)] {
            let begin = choices.all.len();
            let cuts = sector.cuts.iter().filter(|&&cut| cut <= changes).count();
            for it in sector.base.iter().chain(&sector.pending).filter(|it| it.cuts == cuts) {
                if !choices.all[begin..].contains(&it.content) {
                    choices.all.push(it.content);
                }
            }
            choices.ends.push(choices.all.len());
        }
        len
    }
}

/// For each sector a few contents.
#[derive(Debug, Default)]
pub(super) struct Choices {
    all: Vec<u32>,
    ends: Vec<usize>,
}

impl Choices {
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u32]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, &end)| &self.all[begin..end])
    }
}
