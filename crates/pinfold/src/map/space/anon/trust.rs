//! What is believed of the page table, and what is looked up.
//!
//! The states of own memory's pages say which are in memory, and which are protected. But the page
//! table is the kernel's: KSM ends a protection without a fault, madvise(2) and munmap(2) take pages
//! away. `docs/map.md` lists all that may change it ("What the kernel does to it").
//!
//! So nobody relies on a protection that was not looked up, under the `change` mutex:
//!
//! 1. a page leaves memory without a write only if the page table says that it is still protected,
//!    or not there; any other counts as stored to (`distrust`). Protection begins in two places
//!    alone: with the copy of the bytes that are elsewhere, and before a page-out reads them. So
//!    where it is found, it has never ended;
//! 2. a fault at a page that should be there finds out whether it is ([`Area::miss`]).
//!
//! Between the look and the moment at which the page is taken out, KSM could end a protection. So
//! areas are `MADV_UNMERGEABLE` when they are made; again before a look if the process has asked
//! for merging of all its memory since (`PR_SET_MEMORY_MERGE`); and again before a second look if
//! the first has found a page without its protection, as the program may have asked for this area
//! alone (`MADV_MERGEABLE`). If the system refuses it, no page is taken for protected.

use std::io;

use super::{Area, calls};
use crate::base::mutant::{self, Mutant};
use crate::error::Error;
use crate::frames::FrameNumber;
use crate::mapped::pagemap::PagemapEntry;
use crate::mapped::swap::pages::{IsWriting, PageStates, Seen, Unused};
use crate::pages::core::Core;
use crate::pages::freeze;
use crate::pages::mapping::{Changing, Mapping};

impl Area {
    /// What the page table has for a page; under the `change` mutex. `None` if the system does not
    /// tell.
    pub(super) fn entry(&self, page: u64) -> Option<PagemapEntry> {
        self.proc.table.entry(self.address(page).addr()).ok()
    }

    /// Of these pages, in rising order, those that could leave memory and are not protected any
    /// more count as stored to. Returns slots that are of no more use.
    pub(super) fn distrust_pages(&self, states: &mut PageStates, pages: &[u64]) -> Vec<Unused> {
        let clean: Vec<u64> =
            pages.iter().copied().filter(|&page| states.may_leave(page)).collect();
        if clean.is_empty() {
            return Vec::new();
        }
        let keep_ksm_away = || {
            mutant::on(Mutant::MergedAgain)
                || calls::merge_nothing(&self.addresses(&(0..self.pages())))
        };
        let mut is_away = !calls::merges_all() || keep_ksm_away();
        let mut seen = self.seen(&clean);
        if seen.contains(&Some(Seen::Open)) {
            is_away = keep_ksm_away();
            seen = self.seen(&clean);
        }
        if !is_away {
            seen.fill(None);
        }
        let distrust = |(&page, seen)| states.distrust(page, seen, || self.protect(page, false));
        clean.iter().zip(seen).map(distrust).collect()
    }

    /// What the page table has for these pages, in rising order: one system call for adjacent ones.
    fn seen(&self, pages: &[u64]) -> Vec<Option<Seen>> {
        let seen = |entry: PagemapEntry| match entry {
            entry if entry.is_absent() => Seen::Absent,
            entry if entry.is_protected() => Seen::Protected,
            _ => Seen::Open,
        };
        let mut all = Vec::with_capacity(pages.len());
        for run in pages.chunk_by(|one, next| one + 1 == *next) {
            let at = self.addresses(&(run[0]..run[run.len() - 1] + 1));
            match self.proc.table.entries(&at) {
                Ok(entries) => all.extend(entries.into_iter().map(|entry| Some(seen(entry)))),
                Err(_) => all.extend(run.iter().map(|_| None)),
            }
        }
        all
    }

    /// What KSM does to a page that is protected: a store is no fault any more.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(in crate::map::space) fn end_protection(&self, page: u64) {
        self.protect(page, false);
    }

    /// A page that can be stored to is protected nevertheless.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(in crate::map::space) fn begin_protection(&self, page: u64) {
        self.protect(page, true);
    }

    /// A page in the index is not in memory: it leaves the index. If its bytes were in memory
    /// alone, they are lost, and it says so. The caller lets go of what is returned, without the
    /// mutex.
    /// Error: it is being written to the swap.
    pub(super) fn miss(
        core: &Core,
        changing: &mut Changing<'_>,
        page: u64,
    ) -> Result<Vec<FrameNumber>, IsWriting> {
        changing.own().expect("own memory has states").miss(page)?;
        Ok(freeze::drop_within(core, changing, page..page + 1))
    }

    /// Those of these dirty pages that are not in memory leave the index, and the list. As
    /// [`miss`](Self::miss).
    pub(super) fn miss_absent(
        &self,
        core: &Core,
        changing: &mut Changing<'_>,
        dirty: &mut Vec<u64>,
    ) -> Vec<FrameNumber> {
        let mut seen = self.seen(dirty).into_iter();
        let absent = |_: &mut u64| seen.next().flatten() == Some(Seen::Absent);
        let absent: Vec<u64> = dirty.extract_if(.., absent).collect();
        let missed = absent.into_iter().map(|page| Area::miss(core, changing, page));
        missed.flat_map(Result::unwrap_or_default).collect()
    }

    pub(super) fn lost(mapping: &Mapping, page: u64) -> Error {
        let why = "the page was taken out of memory behind the cache's back (by madvise, for example), \
                   and its bytes are lost; `discard` lets it be used again";
        mapping.page_error("bring", page, io::Error::other(why))
    }
}
