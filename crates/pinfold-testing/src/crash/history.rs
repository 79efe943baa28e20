//! What a file has had, as the program sees it: the contents of each sector and the length, with
//! the times at which the calls began and returned that made them; and the syncs.
//!
//! The versions of a sector have an order: whoever changes it at a time is alone with it.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::contents::{Contents, SECTOR, ZEROS};
use super::recorder::Ticks;

#[derive(Clone, Copy, Debug)]
pub(super) struct Version<T> {
    pub(super) begun: u64,
    /// The largest number until then.
    pub(super) ended: u64,
    pub(super) value: T,
    /// The operation that made it, from 1.
    pub(super) by: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sync {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) by: u32,
    /// If it was of a range, these sectors alone, and not the length.
    pub(super) only: Option<(usize, usize)>,
}

impl Sync {
    pub(super) fn is_of(&self, sector: usize) -> bool {
        self.only.is_none_or(|(first, end)| (first..end).contains(&sector))
    }
}

#[derive(Debug)]
pub(super) struct Versions {
    pub(super) sectors: Vec<Vec<Version<u32>>>,
    pub(super) lens: Vec<Version<usize>>,
    /// Those that have succeeded.
    pub(super) syncs: Vec<Sync>,
    /// The bytes, zeros behind the end.
    now: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct History {
    clock: Arc<Ticks>,
    contents: Arc<Mutex<Contents>>,
    versions: Mutex<Versions>,
}

impl History {
    /// At most `most_bytes` long.
    pub(super) fn new(
        bytes: &[u8],
        most_bytes: usize,
        (clock, contents): (Arc<Ticks>, Arc<Mutex<Contents>>),
    ) -> Self {
        let mut now = bytes.to_vec();
        now.resize(most_bytes, 0);
        let numbers = contents.lock().unwrap().numbers(&now);
        let first = |value| vec![Version { begun: 0, ended: 0, value, by: 0 }];
        let lens = vec![Version { begun: 0, ended: 0, value: bytes.len(), by: 0 }];
        let sectors = numbers.into_iter().map(first).collect();
        let versions = Mutex::new(Versions { sectors, lens, syncs: Vec::new(), now });
        History { clock, contents, versions }
    }

    pub(super) fn len(&self) -> usize {
        let versions = self.versions.lock().unwrap();
        versions.lens.last().expect("the first").value
    }

    pub(super) fn into_versions(self) -> Versions {
        self.versions.into_inner().unwrap()
    }

    /// Before the call. Gives the sectors for [`ends`](Self::ends).
    pub(super) fn write(&self, offset: usize, bytes: &[u8], by: u32) -> Range<usize> {
        let mut versions = self.versions.lock().unwrap();
        let end = offset + bytes.len();
        versions.now[offset..end].copy_from_slice(bytes);
        let sectors = offset / SECTOR..end.div_ceil(SECTOR);
        self.push(&mut versions, sectors.clone(), by);
        // Beyond the end, the file reaches to there first.
        self.push_len(&mut versions, |old| old.max(offset), by);
        self.push_len(&mut versions, |old| old.max(end), by);
        sectors
    }

    /// As [`write`](Self::write).
    pub(super) fn set_len(&self, bytes: usize, by: u32) -> Range<usize> {
        let mut versions = self.versions.lock().unwrap();
        let old = versions.lens.last().expect("the first").value;
        let sectors = bytes / SECTOR..old.div_ceil(SECTOR);
        versions.now[bytes..].fill(0);
        if !bytes.is_multiple_of(SECTOR) && !sectors.is_empty() {
            self.cut(&mut versions, bytes, by);
        }
        self.push(&mut versions, sectors.clone(), by);
        self.push_len(&mut versions, |_| bytes, by);
        sectors
    }

    /// After the call.
    pub(super) fn ends(&self, sectors: Range<usize>) {
        let mut versions = self.versions.lock().unwrap();
        let ended = self.clock.tick();
        for sector in sectors {
            let all = versions.sectors[sector].iter_mut().rev();
            all.take_while(|it| it.ended == u64::MAX).for_each(|it| it.ended = ended);
        }
        let lens = versions.lens.iter_mut().rev();
        lens.take_while(|it| it.ended == u64::MAX).for_each(|it| it.ended = ended);
    }

    /// After a call that has failed: the bytes from `offset` on, as they are read, and the length.
    /// What a read got is no less than what a write has written.
    pub(super) fn is(&self, offset: usize, bytes: &[u8], len: usize, by: u32) {
        let mut versions = self.versions.lock().unwrap();
        versions.now[offset..offset + bytes.len()].copy_from_slice(bytes);
        versions.now[len..].fill(0);
        let sectors = offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR);
        self.push(&mut versions, sectors.clone(), by);
        self.push_len(&mut versions, |_| len, by);
        drop(versions);
        self.ends(sectors);
    }

    /// The source is cut at once, but may have lost what was written before: so the sector with the
    /// new end may have a part of each version that is not durable. The last of them is pushed
    /// afterwards.
    fn cut(&self, versions: &mut Versions, bytes: usize, by: u32) {
        let begun = self.clock.tick();
        let mut window = Window::default();
        let n = bytes / SECTOR;
        let all = &mut versions.sectors[n];
        if let Some(sync) = versions.syncs.iter().rev().find(|sync| sync.is_of(n)) {
            window.synced(all, sync.begun);
        }
        let mut contents = self.contents.lock().unwrap();
        let mut cut = |it: &Version<u32>| {
            let value = contents.cut(it.value, bytes % SECTOR);
            Version { begun, ended: u64::MAX, value, by }
        };
        let more: Vec<_> = all[window.first..].iter().map(&mut cut).collect();
        all.extend(more);
    }

    fn push(&self, versions: &mut Versions, sectors: Range<usize>, by: u32) {
        let begun = self.clock.tick();
        let bytes = &versions.now[sectors.start * SECTOR..];
        let bytes = &bytes[..bytes.len().min(sectors.len() * SECTOR)];
        let numbers = self.contents.lock().unwrap().numbers(bytes);
        for (n, value) in sectors.zip(numbers) {
            versions.sectors[n].push(Version { begun, ended: u64::MAX, value, by });
        }
    }

    fn push_len(&self, versions: &mut Versions, new: impl FnOnce(usize) -> usize, by: u32) {
        let old = versions.lens.last().expect("the first").value;
        let value = new(old);
        if value != old {
            let begun = self.clock.tick();
            versions.lens.push(Version { begun, ended: u64::MAX, value, by });
        }
    }

    /// Whether that is what a read there gets; else the first byte that differs.
    pub(super) fn check(&self, offset: usize, got: &[u8]) -> Result<(), usize> {
        let versions = self.versions.lock().unwrap();
        let expected = &versions.now[offset..offset + got.len()];
        if expected == got {
            return Ok(());
        }
        Err(offset + expected.iter().zip(got).position(|(a, b)| a != b).expect("one differs"))
    }

    /// Carries out a sync. What was there when it began is durable if it succeeds.
    pub(super) fn sync<E>(&self, by: u32, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.sync_only(None, by, sync)
    }

    /// Of these sectors only.
    pub(super) fn sync_only<E>(
        &self,
        only: Option<(usize, usize)>,
        by: u32,
        sync: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let begun = self.clock.tick();
        sync()?;
        let ended = self.clock.tick();
        self.versions.lock().unwrap().syncs.push(Sync { begun, ended, by, only });
        Ok(())
    }
}

/// Of the versions of one thing those that a crash may leave: from the last one that was synced, to
/// the last one that had begun.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    first: usize,
    end: usize,
}

impl Window {
    /// `begun`: of a sync that has succeeded.
    pub(super) fn synced<T>(&mut self, versions: &[Version<T>], begun: u64) {
        while versions.get(self.first + 1).is_some_and(|next| next.ended < begun) {
            self.first += 1;
        }
    }

    pub(super) fn crash_at<T>(&mut self, versions: &[Version<T>], time: u64) {
        while versions.get(self.end).is_some_and(|next| next.begun < time) {
            self.end += 1;
        }
    }

    pub(super) fn of<T>(self, versions: &[Version<T>]) -> &[Version<T>] {
        &versions[self.first..self.end.max(self.first + 1)]
    }
}

/// Whether one of these versions has that content, of which the file has the first `bytes`.
pub(super) fn has(
    versions: &[Version<u32>],
    content: u32,
    bytes: usize,
    contents: &Contents,
) -> bool {
    versions.iter().any(|it| it.value == content)
        || bytes < SECTOR
            && versions
                .iter()
                .any(|it| contents.bytes(it.value)[..bytes] == contents.bytes(content)[..bytes])
}

/// How a message names a content.
pub(super) fn name(versions: &[Version<u32>], content: u32) -> String {
    match versions.iter().rev().find(|it| it.value == content) {
        Some(it) if it.by > 0 => format!("what operation {} made", it.by),
        Some(_) => "what it had first".to_owned(),
        None if content == ZEROS => "zeros".to_owned(),
        None => "bytes that it never had".to_owned(),
    }
}
