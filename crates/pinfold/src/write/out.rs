//! Giving dirty folios to the source: in the order of the file, adjacent ones together, many writes
//! at a time. The caller has the file's turn.
//!
//! 1. under the `change` mutex: the next dirty folios become written, and get a reference each: who
//!    changes one from here on changes a copy, so what is on its way does not change;
//! 2. without it, the writes, all at once. The last page, if the file has a part of it only, is
//!    written last and by itself;
//! 3. what has failed is dirty again, and the first error is the caller's.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::mutant::{self, Mutant};
use crate::error::{Cause, Error, Result};
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::index::FolioAt;
use crate::pages::core::{Core, Held};
use crate::pages::dirt;
use crate::pages::mapping::Mapping;
use crate::source::Extent;

/// Under way at once.
const FOLIOS_AT_ONCE: usize = 512;
const PAGES_AT_ONCE: i64 = 4096;
/// Of one write.
const FOLIOS_MAX: usize = 64;
const BYTES_MAX: u64 = 1 << 20;

type InFlight<'a> = (FolioAt, Held<'a>);

/// All folios that are dirty now and have a page of `pages`.
pub(super) fn write_out(core: &Core, mapping: &Mapping, pages: &Range<u64>) -> Result<()> {
    let mut from = pages.start;
    // Ends: each turn begins behind the last folio of the one before.
    loop {
        let most = (FOLIOS_AT_ONCE, PAGES_AT_ONCE);
        let begun = dirt::begin(core, mapping, from..pages.end, most)?;
        let Some((last, _)) = begun.last() else { return Ok(()) };
        from = last.end();
        write(core, mapping, &begun)?;
    }
}

/// Steps 2 and 3.
fn write(core: &Core, mapping: &Mapping, begun: &[InFlight<'_>]) -> Result<()> {
    let mut runs: Vec<&[InFlight<'_>]> = Vec::new();
    for run in begun.chunk_by(|(one, _), (next, _)| one.end() == next.page) {
        let mut rest = run;
        // Ends: each turn takes a folio.
        while let Some((first, _)) = rest.first() {
            let fits = |(it, _): &InFlight<'_>| (it.end() - first.page) << PAGE_SHIFT <= BYTES_MAX;
            let folios = rest.iter().take(FOLIOS_MAX).take_while(|it| fits(it)).count().max(1);
            runs.push(&rest[..folios]);
            rest = &rest[folios..];
        }
    }
    let writes: Vec<_> = runs.iter().map(|run| whole_pages(core, run)).collect();
    let mut first_error = None;
    for (run, written) in runs.into_iter().zip(mapping.backing.write_all(&writes)) {
        finish(core, mapping, run, whole_bytes, written, &mut first_error);
    }
    // All were taken at one moment: so only the last one that the file has may end in a page.
    let last = begun.iter().rfind(|(_, held)| held.frame().file_bytes() > 0);
    if let Some(last @ (folio, held)) = last
        && let file_bytes = held.frame().file_bytes()
        && let tail_bytes = file_bytes % PAGE_BYTES
        && tail_bytes > 0
        && !mutant::on(Mutant::TailForgotten)
    {
        let at = file_bytes - tail_bytes;
        let mut tail = vec![0; tail_bytes];
        extent(core, last, file_bytes).load(at, &mut tail);
        let written = mapping.backing.write_tail((folio.page << PAGE_SHIFT) + at as u64, &tail);
        let run = std::slice::from_ref(last);
        finish(core, mapping, run, |_| file_bytes, written, &mut first_error);
    }
    first_error.map_or(Ok(()), Err)
}

fn extent<'a>(core: &'a Core, (_, held): &InFlight<'a>, bytes: usize) -> Extent<'a> {
    let address = NonNull::new(core.frames.address(held.head())).expect("the arena is not at 0");
    // SAFETY: the folio's memory, which the reference keeps; nothing stores to it meanwhile.
    unsafe { Extent::new(address, bytes) }
}

/// Of the pages of a folio that the file has whole.
fn whole_bytes((_, held): &InFlight<'_>) -> usize {
    held.frame().file_bytes() / PAGE_BYTES * PAGE_BYTES
}

/// Those pages of a run, as one write, perhaps of nothing.
fn whole_pages<'a>(core: &'a Core, run: &[InFlight<'a>]) -> (u64, Vec<Extent<'a>>) {
    let whole = run.iter().filter(|it| whole_bytes(it) > 0);
    let extents = whole.map(|it| extent(core, it, whole_bytes(it))).collect();
    (run[0].0.page << PAGE_SHIFT, extents)
}

/// Step 3, for a run of each of whose folios so many `bytes` were to be written.
fn finish<'a>(
    core: &Core,
    mapping: &Mapping,
    run: &[InFlight<'a>],
    bytes: impl Fn(&InFlight<'a>) -> usize,
    written: std::io::Result<()>,
    first_error: &mut Option<Error>,
) {
    let (first, last) = (run[0].0, run[run.len() - 1].0);
    let offset = first.page << PAGE_SHIFT;
    let part_end = |it: &InFlight<'a>| (it.0.page << PAGE_SHIFT) + bytes(it) as u64;
    let ends = run.iter().filter(|it| bytes(it) > 0).map(part_end);
    let Some(end) = ends.max() else { return };
    match written {
        Ok(()) => mapping.written.source_reaches(end),
        Err(cause) => {
            dirt::again(core, mapping, first.page..last.end());
            let (path, cause) = (mapping.path.clone(), Arc::new(cause));
            let bytes = end - offset;
            first_error.get_or_insert_with(|| Cause::Write { path, offset, bytes, cause }.into());
        }
    }
}
