//! Writing to files through the cache. It stands on `pages/`; a file uses only those below it.
//!
//! ```text
//! hole      ranges that become zeros
//! mod       writing bytes, and the length
//! sync      until what was written is durable; who writes too much at once
//! out       giving dirty folios to the source
//! piece     what a write, a cut or a hole does to one folio
//! ```
//!
//! A write, step by step:
//!
//! 1. if too much waits to be synced, sync (`sync.rs`);
//! 2. if the file becomes longer, take `resizing`: one thread at a time appends;
//! 3. for each folio (`piece.rs`): change it, if it is cached; make it, if none of its old bytes
//!    are needed; else bring it, and change it then.
//!
//! The bytes of one page change at once, and mostly those of one folio. Who reads more may see some
//! before the write and some after it.

pub(crate) mod hole;
#[cfg(all(test, not(any(loom, shuttle))))]
mod hung_tests;
mod out;
mod piece;
pub(crate) mod sync;

use std::cell::Cell;

use crate::base::mutant::{self, Mutant};
use crate::base::wait;
use crate::error::{Cause, ErrorKind, Result};
use crate::frames::PAGE_BYTES;
use crate::pages::handle::Handle;
use crate::pages::mapping::{Mapping, check_len};

/// At most so much is written under one hold of `resizing`, and between two looks at how much waits
/// to be synced; in a small cache a 32nd of the budget.
const CHUNK_BYTES: usize = 1 << 20;

/// Bytes at `offset` up to where a page begins, so that each page changes at once; and the rest.
fn first_chunk<'a>(handle: &Handle, bytes: &'a [u8], offset: u64) -> (&'a [u8], &'a [u8]) {
    let part_bytes = (handle.core.frames.frames() as usize / 32).max(1) * PAGE_BYTES;
    let most = CHUNK_BYTES.min(part_bytes) - offset as usize % PAGE_BYTES;
    bytes.split_at(bytes.len().min(most))
}

pub(crate) fn write_at(handle: &Handle, bytes: &[u8], offset: u64) -> Result<()> {
    handle.core.check_owner()?;
    check_end(handle, offset, bytes.len())?;
    write_chunks(handle, bytes, offset)
}

/// Returns where the first byte is. All are adjacent, and no other append comes between.
pub(crate) fn append(handle: &Handle, bytes: &[u8]) -> Result<u64> {
    let mapping = &handle.mapping;
    handle.core.check_owner()?;
    let _appending = mapping.written.appending.lock();
    sync::make_room(handle)?;
    // Where it was begun, if memory was full then.
    let place = Cell::new(None);
    let (offset, rest) = growing(handle, || {
        let offset = place.get().unwrap_or_else(|| mapping.len_bytes());
        check_end(handle, offset, bytes.len())?;
        place.set(Some(offset));
        let (first, rest) = first_chunk(handle, bytes, offset);
        write_chunk(handle, first, offset).map(|()| (offset, rest))
    })?;
    write_chunks(handle, rest, offset + (bytes.len() - rest.len()) as u64)?;
    Ok(offset)
}

fn check_end(handle: &Handle, offset: u64, bytes: usize) -> Result<()> {
    let mapping = &handle.mapping;
    let Some(end) = offset.checked_add(bytes as u64) else {
        let (path, bytes) = (mapping.path.clone(), bytes as u64);
        return Err(Cause::Range { path, offset, bytes }.into());
    };
    if end > mapping.len_bytes() { check_longer(mapping, end) } else { Ok(()) }
}

fn check_longer(mapping: &Mapping, len_bytes: u64) -> Result<()> {
    if mapping.backing.has_fixed_length() {
        let why = "a block device keeps its length";
        return Err(Cause::NotWritable { path: mapping.path.clone(), why }.into());
    }
    check_len(len_bytes, &mapping.path).map(drop)
}

fn write_chunks(handle: &Handle, bytes: &[u8], offset: u64) -> Result<()> {
    let mapping = &handle.mapping;
    let (mut at, mut rest) = (offset, bytes);
    // Ends: each turn writes at least a byte.
    while !rest.is_empty() {
        sync::make_room(handle)?;
        let (chunk, behind) = first_chunk(handle, rest, at);
        let end = at + chunk.len() as u64;
        if end <= mapping.len_bytes() {
            or_after_a_sync(handle, || write_chunk(handle, chunk, at))?;
        } else {
            growing(handle, || write_chunk(handle, chunk, at))?;
        }
        (at, rest) = (end, behind);
    }
    Ok(())
}

/// A write that makes the file longer, under `resizing`.
fn growing<T>(handle: &Handle, write: impl Fn() -> Result<T>) -> Result<T> {
    let mapping = &handle.mapping;
    sync::settle_length_due(mapping)?;
    // Wakers are the program's: they run when the lock is released.
    let locked = || {
        let _resizing = mapping.resizing.lock();
        write()
    };
    or_after_a_sync(handle, || wait::together(locked))
}

/// Writes once more if memory was full, and something of it can be made clean.
#[inline]
fn or_after_a_sync<T>(handle: &Handle, write: impl Fn() -> Result<T>) -> Result<T> {
    match write() {
        Err(error) if error.kind() == ErrorKind::NoMemory && sync::make_clean(handle)? => write(),
        written => written,
    }
}

/// The caller holds `resizing` if the file becomes longer.
fn write_chunk(handle: &Handle, bytes: &[u8], offset: u64) -> Result<()> {
    if offset > handle.mapping.len_bytes() {
        piece::reach(handle, offset)?;
    }
    let mut done = 0;
    // Ends: each turn writes at least a byte.
    while done < bytes.len() {
        done += piece::write(handle, &bytes[done..], offset + done as u64)?;
    }
    Ok(())
}

/// Cuts the file, or makes it longer by zeros; the source, too.
pub(crate) fn set_len(handle: &Handle, len_bytes: u64) -> Result<()> {
    let mapping = &handle.mapping;
    handle.core.check_owner()?;
    check_longer(mapping, len_bytes)?;
    sync::settle_length_due(mapping)?;
    // Wakers are the program's: they run when the locks are released.
    wait::together(|| {
        // Nothing is on its way to the source that would make it longer again.
        let _turn = mapping.written.turn();
        let mut resizing = mapping.resizing.lock();
        if len_bytes < mapping.len_bytes() {
            piece::cut(handle, len_bytes)?;
            if !mutant::on(Mutant::CutKeepsSource) {
                sync::set_source_len(mapping, len_bytes)?;
            }
        } else {
            sync::set_source_len(mapping, len_bytes)?;
            piece::reach(handle, len_bytes)?;
        }
        *resizing = len_bytes;
        Ok(())
    })
}
