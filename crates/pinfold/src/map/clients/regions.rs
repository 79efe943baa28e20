//! Which addresses of a client are which pages of the snapshot: checked when it comes, and changed
//! when it says so.
//!
//! # Invariants
//!
//! Regions begin and end at pages, and share no address. Those of the snapshot share no page of it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::error::{ClientError, ClientResult};
use crate::base::mutant::{self, Mutant};
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};

/// The most mappings that a client may have, and the most pieces that it may make of them.
const MAPPINGS_MAX: usize = 1024;
const PIECES_MAX: usize = 4096;

/// No user address is as high.
const ADDRESS_END: u64 = 1 << 56;

/// A range of a client's memory: part of what [`Clients::add`](super::Clients::add) gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientMapping {
    /// Its address in the client: a multiple of 4096.
    pub address: u64,
    /// Its length in bytes: a multiple of 4096.
    pub bytes: u64,
    /// The offset in the snapshot of its first byte: a multiple of 4096. Without meaning for
    /// [`ClientMemory::Zeros`].
    pub offset: u64,
    /// What it is a mapping of.
    pub memory: ClientMemory,
}

/// What a client's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientMemory {
    /// A `MAP_PRIVATE` mapping of [`Clients::memory`](super::Clients::memory), each page at its
    /// offset in the snapshot, registered for missing pages and for minor faults.
    Shared,
    /// Anonymous memory, registered for missing pages: gets copies, which no other client has.
    Private,
    /// Private memory, all of whose pages are zeros: what the client has removed.
    Zeros,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) start: u64,
    pub(super) pages: u64,
    /// The page of the snapshot at `start`.
    pub(super) first: u64,
    pub(super) memory: ClientMemory,
}

impl Region {
    fn end(&self) -> u64 {
        self.start + (self.pages << PAGE_SHIFT)
    }

    pub(super) fn snapshot(&self) -> Range<u64> {
        match self.memory {
            ClientMemory::Zeros => 0..0,
            ClientMemory::Shared | ClientMemory::Private => self.first..self.first + self.pages,
        }
    }

    /// The addresses of `pages` of the snapshot, which are in it.
    pub(super) fn addresses(&self, pages: &Range<u64>) -> Range<u64> {
        let at = |page: u64| self.start + ((page - self.first) << PAGE_SHIFT);
        at(pages.start)..at(pages.end)
    }

    /// The page at `address`, which is in it. For zeros, a number that counts from `first` on.
    pub(super) fn page(&self, address: u64) -> u64 {
        self.first + ((address - self.start) >> PAGE_SHIFT)
    }

    /// The part of it in `range`, which begins and ends at pages.
    fn part(&self, range: &Range<u64>) -> Option<Region> {
        let (start, end) = (self.start.max(range.start), self.end().min(range.end));
        (start < end).then(|| Region {
            start,
            pages: (end - start) >> PAGE_SHIFT,
            first: self.page(start),
            ..*self
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Regions {
    all: BTreeMap<u64, Region>,
    /// The first address of those of the snapshot, by their first page.
    by_page: BTreeMap<u64, u64>,
}

impl Regions {
    pub(super) fn new(mappings: &[ClientMapping], pages: u64) -> ClientResult<Self> {
        let count = mappings.len();
        if count == 0 || count > MAPPINGS_MAX {
            let text = format!("{count} mappings: there must be 1 to {MAPPINGS_MAX}");
            return Err(ClientError::Wrong(text));
        }
        let mut regions = Regions::default();
        for (n, mapping) in mappings.iter().enumerate() {
            let ClientMapping { address, bytes, offset, .. } = *mapping;
            let region = region(mapping, pages).and_then(|region| regions.insert_apart(region));
            region.map_err(|why| {
                let of = format!("address {address:#x}, {bytes} bytes, offset {offset}");
                ClientError::Wrong(format!("mapping {n} ({of}): {why}"))
            })?;
        }
        Ok(regions)
    }

    /// Adds a region of which no other has an address or a page.
    fn insert_apart(&mut self, region: Region) -> Result<(), String> {
        let before = self.all.range(..region.end()).next_back();
        if before.is_some_and(|(_, other)| other.end() > region.start) {
            return Err("overlaps another mapping".to_owned());
        }
        let pages = region.snapshot();
        let last = pages.end.checked_sub(1).and_then(|last| self.before(last));
        if last.is_some_and(|other| other.snapshot().end > pages.start) {
            return Err("has bytes of the snapshot that another mapping has, too".to_owned());
        }
        self.insert(region);
        Ok(())
    }

    fn insert(&mut self, region: Region) {
        self.all.insert(region.start, region);
        if region.memory != ClientMemory::Zeros {
            self.by_page.insert(region.first, region.start);
        }
    }

    fn remove(&mut self, start: u64) {
        if let Some(region) = self.all.remove(&start)
            && self.by_page.get(&region.first) == Some(&start)
        {
            self.by_page.remove(&region.first);
        }
    }

    pub(super) fn at(&self, address: u64) -> Option<Region> {
        let (_, region) = self.all.range(..=address).next_back()?;
        (address < region.end()).then_some(*region)
    }

    pub(super) fn of_page(&self, page: u64) -> Option<Region> {
        self.before(page).filter(|region| region.snapshot().contains(&page))
    }

    /// The last region that begins with this page of the snapshot or before it.
    fn before(&self, page: u64) -> Option<Region> {
        let (_, start) = self.by_page.range(..=page).next_back()?;
        self.all.get(start).copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Region> + '_ {
        self.all.values().copied()
    }

    /// Those parts of regions that are in `range`.
    pub(super) fn parts(&self, range: Range<u64>) -> Vec<Region> {
        let range = whole_pages(&range);
        let regions = self.all.range(..range.end).rev().map(|(_, region)| region);
        let reaching = regions.take_while(|region| region.end() > range.start);
        reaching.filter_map(|region| region.part(&range)).collect()
    }

    pub(super) fn unmap(&mut self, range: Range<u64>) -> ClientResult {
        let range = whole_pages(&range);
        if mutant::on(Mutant::UnmappedStays) {
            return Ok(());
        }
        for part in self.parts(range.clone()) {
            let Some(old) = self.at(part.start) else { continue };
            self.remove(old.start);
            for rest in [old.start..range.start.max(old.start), range.end.min(old.end())..old.end()]
            {
                if let Some(rest) = old.part(&rest) {
                    self.insert(rest);
                }
            }
        }
        self.check_pieces()
    }

    pub(super) fn moved(&mut self, from: u64, to: u64, bytes: u64) -> ClientResult {
        let source = from..from.saturating_add(bytes);
        let moved = self.parts(source.clone());
        self.unmap(source)?;
        self.unmap(to..to.saturating_add(bytes))?;
        for region in moved {
            let start = to.saturating_add(region.start - from);
            if start < ADDRESS_END {
                self.insert(Region { start, ..region });
            }
        }
        self.check_pieces()
    }

    fn check_pieces(&self) -> ClientResult {
        if self.all.len() > PIECES_MAX {
            return Err(ClientError::pieces(PIECES_MAX));
        }
        Ok(())
    }
}

/// The kernel's ranges begin and end at pages; a number that does not is cut to whole ones.
fn whole_pages(range: &Range<u64>) -> Range<u64> {
    let page = PAGE_BYTES as u64;
    range.start / page * page..range.end.min(ADDRESS_END).next_multiple_of(page)
}

fn region(mapping: &ClientMapping, pages: u64) -> Result<Region, String> {
    let ClientMapping { address, bytes, offset, memory } = *mapping;
    let page = PAGE_BYTES as u64;
    let snapshot_bytes = pages << PAGE_SHIFT;
    if !(address | bytes | offset).is_multiple_of(page) {
        return Err("address, length and offset must be multiples of 4096".to_owned());
    }
    if bytes == 0 {
        return Err("is empty".to_owned());
    }
    if address.checked_add(bytes).is_none_or(|end| end > ADDRESS_END) {
        return Err("is not in a process's address space".to_owned());
    }
    let ends = offset.checked_add(bytes).filter(|&end| end <= snapshot_bytes);
    if memory != ClientMemory::Zeros && ends.is_none() && !mutant::on(Mutant::ClientAnyOffset) {
        return Err(format!("ends past the snapshot, which has {snapshot_bytes} bytes"));
    }
    let first = if memory == ClientMemory::Zeros { 0 } else { offset >> PAGE_SHIFT };
    Ok(Region { start: address, pages: bytes >> PAGE_SHIFT, first, memory })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use ClientMemory::{Private, Shared, Zeros};

    const P: u64 = 4096;

    fn mapping(address: u64, bytes: u64, offset: u64, memory: ClientMemory) -> ClientMapping {
        ClientMapping { address, bytes, offset, memory }
    }

    fn why(mappings: &[ClientMapping]) -> String {
        Regions::new(mappings, 100).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    #[test]
    fn addresses_and_pages_lead_to_each_other() {
        let mappings =
            [mapping(0x10000, 10 * P, 50 * P, Shared), mapping(0x80000, 4 * P, 0, Private)];
        let regions = Regions::new(&mappings, 100).unwrap();
        let region = regions.at(0x10000 + 3 * P + 7).unwrap();
        assert_eq!(region.page(0x10000 + 3 * P + 7), 53);
        assert_eq!(region.addresses(&(53..55)), 0x10000 + 3 * P..0x10000 + 5 * P);
        assert_eq!(regions.of_page(59), Some(region));
        assert_eq!(regions.of_page(3).unwrap().start, 0x80000);
        assert_eq!(
            (regions.of_page(60), regions.of_page(49), regions.of_page(4)),
            Default::default()
        );
        let outside = [0, 0x10000 - 1, 0x10000 + 10 * P, 0x80000 + 4 * P, u64::MAX];
        assert!(outside.into_iter().all(|address| regions.at(address).is_none()));
    }

    #[test]
    fn a_wrong_mapping_is_refused_and_named() {
        let good = mapping(0x10000, 10 * P, 0, Shared);
        assert_eq!(why(&[good]), "fine");
        assert_eq!(why(&[]), "0 mappings: there must be 1 to 1024");
        assert_eq!(why(&vec![good; 1025]), "1025 mappings: there must be 1 to 1024");
        for (wrong, said) in [
            (mapping(0x40001, P, 20 * P, Shared), "must be multiples of 4096"),
            (mapping(0x40000, 7, 20 * P, Shared), "must be multiples of 4096"),
            (mapping(0x40000, P, 20 * P + 8, Private), "must be multiples of 4096"),
            (mapping(0x40000, 0, 20 * P, Shared), "is empty"),
            (mapping(0x40000, 81 * P, 20 * P, Shared), "ends past the snapshot, which has 409600"),
            (mapping(0x40000, P, 100 * P, Private), "ends past the snapshot"),
            (mapping(0x40000, P, u64::MAX - P + 1, Shared), "ends past the snapshot"),
            (mapping(u64::MAX - P + 1, P, 20 * P, Shared), "is not in a process's address space"),
            (mapping(1 << 56, P, 20 * P, Shared), "is not in a process's address space"),
            (mapping(0x10000 + 9 * P, P, 20 * P, Shared), "overlaps another mapping"),
            (mapping(0x10000 - P, 2 * P, 20 * P, Shared), "overlaps another mapping"),
            (mapping(0x10000 - P, 30 * P, 20 * P, Zeros), "overlaps another mapping"),
            (
                mapping(0x40000, P, 9 * P, Private),
                "bytes of the snapshot that another mapping has, too",
            ),
        ] {
            let said_of_it = why(&[good, wrong]);
            assert!(
                said_of_it.starts_with("mapping 1 (") && said_of_it.contains(said),
                "{said_of_it}"
            );
        }
        assert_eq!(why(&[good, mapping(0x40000, 90 * P, 7 * P, Zeros)]), "fine");
    }

    #[test]
    fn an_offset_past_the_end_is_not_checked_by_the_mutant() {
        let wrong = [mapping(0x40000, P, 100 * P, Private)];
        assert!(Regions::new(&wrong, 100).is_err());
        mutant::with(Some(Mutant::ClientAnyOffset), || Regions::new(&wrong, 100).unwrap());
    }

    #[test]
    fn what_is_unmapped_is_gone_and_the_rest_stays_where_it_was() {
        let mut regions = Regions::new(&[mapping(0x10000, 10 * P, 50 * P, Shared)], 100).unwrap();
        regions.unmap(0x10000 + 3 * P..0x10000 + 5 * P).unwrap();
        assert_eq!(regions.at(0x10000 + 3 * P), None);
        assert_eq!(regions.at(0x10000 + 2 * P).unwrap().pages, 3);
        let behind = regions.at(0x10000 + 5 * P).unwrap();
        assert_eq!((behind.first, behind.pages), (55, 5));
        regions.unmap(0..u64::MAX).unwrap();
        assert_eq!(regions.all().count(), 0);
    }

    #[test]
    fn what_is_moved_has_its_pages_at_the_new_address() {
        let mut regions = Regions::new(&[mapping(0x10000, 10 * P, 50 * P, Shared)], 100).unwrap();
        regions.moved(0x10000 + 2 * P, 0x90000, 3 * P).unwrap();
        assert_eq!(regions.at(0x10000 + 2 * P), None);
        assert_eq!(regions.of_page(53).unwrap().addresses(&(53..54)).start, 0x90000 + P);
        assert_eq!(regions.at(0x10000 + 5 * P).unwrap().first, 55);
        // Over itself, partly.
        regions.moved(0x90000, 0x90000 + P, 3 * P).unwrap();
        assert_eq!(regions.at(0x90000), None);
        assert_eq!(regions.at(0x90000 + P).unwrap().first, 52);
        regions.moved(0x777_0000, u64::MAX - 5, 1 << 40).unwrap();
    }

    #[test]
    fn no_client_may_have_any_number_of_pieces() {
        let mut regions = Regions::new(&[mapping(0, 10_000 * P, 0, Private)], 10_000).unwrap();
        let error = (0..5_000).find_map(|n| regions.unmap(2 * n * P..(2 * n + 1) * P).err());
        assert_eq!(error.unwrap().to_string(), "its memory is in more than 4096 pieces");
    }
}
