//! Giving dirty folios to the source: in the order of the file, adjacent ones together, many writes
//! at a time. The caller has the file's turn.
//!
//! 1. under the `change` mutex: the next dirty folios become written, and get a reference each: who
//!    changes one from here on changes a copy, so what is on its way does not change;
//! 2. without it, the writes, all at once. The last page, if the file has a part of it only, is
//!    written last and by itself;
//! 3. what has failed is dirty again, and the first error is the caller's.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Cause, Error, Result};
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::index::{FolioAt, PAGES_END};
use crate::pages::core::{Core, Held};
use crate::pages::dirt;
use crate::pages::mapping::Mapping;
use crate::source::Extent;

/// Under way at once.
const FOLIOS_AT_ONCE: usize = 512;
const PAGES_AT_ONCE: u64 = 4096;
/// Of one write.
const FOLIOS_MAX: usize = 64;
const BYTES_MAX: u64 = 1 << 20;

type InFlight<'a> = (FolioAt, Held<'a>);

/// All that is dirty now.
pub(super) fn write_out(core: &Core, mapping: &Mapping) -> Result<()> {
    let mut from = 0;
    // Ends: each turn begins behind the last folio of the one before.
    loop {
        let most = (FOLIOS_AT_ONCE, PAGES_AT_ONCE);
        let begun = dirt::begin(core, mapping, from..PAGES_END, most)?;
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
    let writes = runs.iter().filter_map(|run| whole_pages(core, run));
    let (of, writes): (Vec<_>, Vec<_>) = writes.unzip();
    let mut first_error = None;
    for (run, written) in of.iter().zip(mapping.backing.write_all(&writes)) {
        finish(core, mapping, run, written, &mut first_error);
    }
    // All were taken at one moment: so only the last one that the file has may end in a page.
    let last = begun.iter().rfind(|(_, held)| held.frame().file_bytes() > 0);
    if let Some(last @ (folio, held)) = last
        && let file_bytes = held.frame().file_bytes()
        && let tail_bytes = file_bytes % PAGE_BYTES
        && tail_bytes > 0
    {
        let at = file_bytes - tail_bytes;
        let mut tail = vec![0; tail_bytes];
        extent(core, last, file_bytes).load(at, &mut tail);
        let written = mapping.backing.write_tail((folio.page << PAGE_SHIFT) + at as u64, &tail);
        finish(core, mapping, std::slice::from_ref(last), written, &mut first_error);
    }
    first_error.map_or(Ok(()), Err)
}

fn extent<'a>(core: &'a Core, (_, held): &InFlight<'a>, bytes: usize) -> Extent<'a> {
    let address = NonNull::new(core.frames.address(held.head())).expect("the arena is not at 0");
    // SAFETY: the folio's memory, which the reference keeps; nothing stores to it meanwhile.
    unsafe { Extent::new(address, bytes) }
}

/// The pages of a run that the file has whole, as one write.
fn whole_pages<'a, 'b>(
    core: &'a Core,
    run: &'b [InFlight<'a>],
) -> Option<(&'b [InFlight<'a>], (u64, Vec<Extent<'a>>))> {
    let whole = |it: &InFlight<'a>| {
        let bytes = it.1.frame().file_bytes() / PAGE_BYTES * PAGE_BYTES;
        (bytes > 0).then(|| extent(core, it, bytes))
    };
    let extents: Vec<_> = run.iter().filter_map(whole).collect();
    (!extents.is_empty()).then(|| (run, (run[0].0.page << PAGE_SHIFT, extents)))
}

/// Step 3.
fn finish(
    core: &Core,
    mapping: &Mapping,
    run: &[InFlight<'_>],
    written: std::io::Result<()>,
    first_error: &mut Option<Error>,
) {
    let (first, (last, held)) = (run[0].0, &run[run.len() - 1]);
    let offset = first.page << PAGE_SHIFT;
    let end = (last.page << PAGE_SHIFT) + held.frame().file_bytes() as u64;
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
