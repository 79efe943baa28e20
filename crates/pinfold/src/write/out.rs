//! Giving dirty folios to the source: in the order of the file, adjacent ones together, many writes
//! at a time. The caller has the file's turn.
//!
//! 1. under the `change` mutex: the next dirty folios become written, and get a reference each: who
//!    changes one from here on changes a copy, so what is on its way does not change;
//! 2. without it, the writes of what was changed in them, all at once. The last page, if the file has a part of it only, is
//!    written last and by itself;
//! 3. what has failed is dirty again, and the first error is the caller's.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::mutant::{self, Mutant};
use crate::error::{Cause, Error, Result};
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::pages::core::Core;
use crate::pages::dirt::{self, BegunWrite};
use crate::pages::mapping::Mapping;
use crate::source::{Extent, Transfer};

/// Under way at once.
const FOLIOS_AT_ONCE: usize = 512;
const PAGES_AT_ONCE: i64 = 4096;
const WRITES_AT_ONCE: usize = 64;
/// Of one write.
const STRETCHES_MAX: usize = 64;
const BYTES_MAX: u64 = 1 << 20;

/// Bytes that are written together: of one folio, changed since it was clean.
#[derive(Debug)]
struct Stretch<'a> {
    of: &'a BegunWrite<'a>,
    bytes: Range<usize>,
}

impl<'a> Stretch<'a> {
    fn offset(&self) -> u64 {
        (self.of.folio.page << PAGE_SHIFT) + self.bytes.start as u64
    }

    fn end(&self) -> u64 {
        self.offset() + self.bytes.len() as u64
    }

    fn extent(&self, core: &'a Core) -> Extent<'a> {
        let head = core.frames.address(self.of.held.head());
        let at = NonNull::new(head.wrapping_add(self.bytes.start));
        let at = at.expect("the arena is not at 0");
        // SAFETY: the folio's memory, which the reference keeps; nothing stores to it meanwhile.
        unsafe { Extent::new(at, self.bytes.len()) }
    }
}

/// All folios that are dirty now and have a page of `pages`.
pub(super) fn write_out(core: &Core, mapping: &Mapping, pages: &Range<u64>) -> Result<()> {
    let mut from = pages.start;
    // Ends: each turn begins behind the last folio of the one before.
    loop {
        let most = (FOLIOS_AT_ONCE, PAGES_AT_ONCE);
        let begun = dirt::begin(core, mapping, from..pages.end, most)?;
        let Some(last) = begun.last() else { return Ok(()) };
        from = last.folio.end();
        mapping.before_own_writes();
        let written = write(core, mapping, &begun);
        mapping.after_own_writes();
        written?;
    }
}

/// Steps 2 and 3.
fn write(core: &Core, mapping: &Mapping, begun: &[BegunWrite<'_>]) -> Result<()> {
    let stretches: Vec<_> = begun.iter().flat_map(whole_pages).collect();
    let mut runs: Vec<&[Stretch<'_>]> = Vec::new();
    for run in stretches.chunk_by(|one, next| one.end() == next.offset()) {
        let mut rest = run;
        // Ends: each turn takes a stretch.
        while let Some(first) = rest.first() {
            let fits = |it: &&Stretch<'_>| it.end() - first.offset() <= BYTES_MAX;
            let most = rest.iter().take(STRETCHES_MAX).take_while(fits).count().max(1);
            runs.push(&rest[..most]);
            rest = &rest[most..];
        }
    }
    let mut first_error = None;
    for runs in runs.chunks(WRITES_AT_ONCE) {
        let extents = runs.iter().map(|run| run.iter().map(|it| it.extent(core)).collect());
        let offsets = runs.iter().map(|run| run[0].offset());
        let writes: Vec<Transfer<'_>> = offsets.zip(extents).collect();
        for (run, written) in runs.iter().zip(mapping.backing.write_all(writes)) {
            finish(core, mapping, run, written, &mut first_error);
        }
    }
    // All were taken at one moment: so only the last one that the file has may end in a page.
    let last = begun.iter().rfind(|it| it.held.frame().file_bytes() > 0);
    if let Some(tail) = last.and_then(tail)
        && !mutant::on(Mutant::TailForgotten)
    {
        let mut bytes = vec![0; tail.bytes.len()];
        tail.extent(core).load(0, &mut bytes);
        let written = mapping.backing.write_tail(tail.offset(), &bytes);
        finish(core, mapping, &[tail], written, &mut first_error);
    }
    first_error.map_or(Ok(()), Err)
}

/// What of it was changed, of the pages that the file has whole.
fn whole_pages<'a>(of: &'a BegunWrite<'a>) -> impl Iterator<Item = Stretch<'a>> {
    let whole = of.held.frame().file_bytes() / PAGE_BYTES * PAGE_BYTES;
    let changed = of.flags.changed_bytes(of.held.frame().order());
    let changed = changed.map(move |it| it.start..it.end.min(whole));
    changed.filter(|it| !it.is_empty()).map(move |bytes| Stretch { of, bytes })
}

/// Of the page that the file does not have whole, if it was changed.
fn tail<'a>(of: &'a BegunWrite<'a>) -> Option<Stretch<'a>> {
    let frame = of.held.frame();
    let file_bytes = frame.file_bytes();
    let bytes = file_bytes - file_bytes % PAGE_BYTES..file_bytes;
    let has = |it: Range<usize>| it.contains(&bytes.start);
    let is_changed = !bytes.is_empty() && of.flags.changed_bytes(frame.order()).any(has);
    is_changed.then_some(Stretch { of, bytes })
}

/// Step 3, for what was written by one write.
fn finish(
    core: &Core,
    mapping: &Mapping,
    run: &[Stretch<'_>],
    written: std::io::Result<()>,
    first_error: &mut Option<Error>,
) {
    let (first, last) = (&run[0], &run[run.len() - 1]);
    let (offset, end) = (first.offset(), last.end());
    match written {
        Ok(()) => mapping.written.source_reaches(end),
        Err(cause) => {
            dirt::again(core, mapping, first.of.folio.page..last.of.folio.end());
            let (path, cause) = (mapping.path.clone(), Arc::new(cause));
            let bytes = end - offset;
            first_error.get_or_insert_with(|| Cause::Write { path, offset, bytes, cause }.into());
        }
    }
}
