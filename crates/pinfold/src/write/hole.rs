//! Holes: a range becomes zeros, and the source gives its space back, if it can.
//!
//! 1. the parts of pages at both ends are written, as zeros;
//! 2. with the file's turn and `resizing`: nothing is on its way to the source, and writes to the
//!    pages between wait from here on. So what was written before them is lost, and nothing else;
//! 3. the source punches the hole;
//! 4. the pages leave the cache, also those that are being filled, as that may have begun before;
//! 5. if the source cannot do so, zeros are written there instead.

use std::ops::Range;

use super::{CHUNK_BYTES, first_chunk, growing, piece, sync, write_chunk};
use crate::base::mutant::{self, Mutant};
use crate::base::wait;
use crate::error::Result;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::pages::handle::Handle;

pub(crate) fn punch(handle: &Handle, range: Range<u64>) -> Result<()> {
    handle.core.check_owner()?;
    let range = range.start..range.end.min(handle.mapping.len_bytes());
    let pages = range.start.div_ceil(PAGE_BYTES as u64)..range.end >> PAGE_SHIFT;
    if pages.is_empty() {
        return write_zeros(handle, range);
    }
    let whole = bytes_of(&pages);
    // Step 1.
    write_zeros(handle, range.start..whole.start)?;
    write_zeros(handle, whole.end..range.end)?;
    if punch_pages(handle, pages)? { Ok(()) } else { write_zeros(handle, whole) }
}

fn bytes_of(pages: &Range<u64>) -> Range<u64> {
    pages.start << PAGE_SHIFT..pages.end << PAGE_SHIFT
}

/// Of what the file has of the range.
fn write_zeros(handle: &Handle, range: Range<u64>) -> Result<()> {
    let bytes = range.end.saturating_sub(range.start).min(CHUNK_BYTES as u64);
    let zeros = vec![0; bytes as usize];
    let mut at = range.start;
    // Ends: each turn writes at least a byte.
    while at < range.end {
        sync::make_room(handle)?;
        let left = (range.end - at).min(bytes) as usize;
        let (chunk, _) = first_chunk(handle, &zeros[..left], at);
        // As if the file became longer: nobody cuts it meanwhile.
        growing(handle, || {
            let there = handle.mapping.len_bytes().saturating_sub(at);
            let there = &chunk[..(chunk.len() as u64).min(there) as usize];
            if there.is_empty() { Ok(()) } else { write_chunk(handle, there, at) }
        })?;
        at += chunk.len() as u64;
    }
    Ok(())
}

/// Steps 2 to 4. False: the source cannot.
fn punch_pages(handle: &Handle, pages: Range<u64>) -> Result<bool> {
    let mapping = &handle.mapping;
    if mutant::on(Mutant::HoleLate) {
        mapping.change().set_hole(pages);
        return Ok(false);
    }
    // Wakers are the program's: they run when the locks are released.
    wait::together(|| {
        // Step 2.
        let _turn = (!mutant::on(Mutant::HoleTakesNoTurn)).then(|| mapping.written.turn());
        let _resizing = mapping.resizing.lock();
        mapping.change().set_hole(pages.clone());
        mapping.before_own_writes();
        // Steps 3 and 4.
        let punched = mapping.backing.punch_hole(bytes_of(&pages)).is_ok();
        mapping.after_own_writes();
        let result = if punched {
            mapping.written.hole_punched();
            piece::drop_hole(handle, &pages)
        } else {
            Ok(())
        };
        mapping.change().set_hole(0..0);
        result.map(|()| punched)
    })
}
