//! Writing to files through the cache. It stands on `pages/`; a file uses only those below it.
//!
//! ```text
//! mod       writing bytes, and the length
//! sync      until what was written is durable; who writes too much at once
//! out       giving dirty folios to the source
//! piece     what a write or a cut does to one folio
//! ```
//!
//! A write, step by step:
//!
//! 1. if too much waits to be synced, sync (`sync.rs`);
//! 2. if the file becomes longer, take `resizing`: one thread at a time appends;
//! 3. for each folio (`piece.rs`): change it, if it is cached; make it, if none of its old bytes
//!    are needed; else bring it, and change it then.
//!
//! The bytes of one folio change at once. Who reads several may see some before and some after.

mod out;
mod piece;
pub(crate) mod sync;

use crate::error::{Cause, Result};
use crate::pages::handle::Handle;
use crate::pages::mapping::check_len;

/// WriteState under one hold of `resizing`, and between two looks at how much waits to be synced.
const CHUNK_BYTES: usize = 1 << 20;

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
    let (first, rest) = bytes.split_at(bytes.len().min(CHUNK_BYTES));
    sync::make_room(handle)?;
    let resizing = mapping.resizing.lock();
    let offset = mapping.len_bytes();
    check_end(handle, offset, bytes.len())?;
    write_chunk(handle, first, offset)?;
    drop(resizing);
    write_chunks(handle, rest, offset + first.len() as u64)?;
    Ok(offset)
}

fn check_end(handle: &Handle, offset: u64, bytes: usize) -> Result<()> {
    let mapping = &handle.mapping;
    let path = || mapping.path.clone();
    let Some(end) = offset.checked_add(bytes as u64) else {
        return Err(Cause::Range { path: path(), offset, bytes: bytes as u64 }.into());
    };
    if end > mapping.len_bytes() && mapping.backing.has_fixed_length() {
        let why = "a block device does not become longer";
        return Err(Cause::NotWritable { path: path(), why }.into());
    }
    check_len(end, &mapping.path).map(drop)
}

fn write_chunks(handle: &Handle, bytes: &[u8], offset: u64) -> Result<()> {
    let mapping = &handle.mapping;
    let mut at = offset;
    for chunk in bytes.chunks(CHUNK_BYTES) {
        sync::make_room(handle)?;
        let end = at + chunk.len() as u64;
        let resizing = (end > mapping.len_bytes()).then(|| mapping.resizing.lock());
        write_chunk(handle, chunk, at)?;
        drop(resizing);
        at = end;
    }
    Ok(())
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
    check_len(len_bytes, &mapping.path)?;
    // Nothing is on its way to the source that would make it longer again.
    let _turn = mapping.written.turn();
    let mut resizing = mapping.resizing.lock();
    if len_bytes < mapping.len_bytes() {
        piece::cut(handle, len_bytes)?;
    }
    let set = mapping.backing.set_len(len_bytes);
    set.map_err(|cause| sync::error(mapping, &format!("set to {len_bytes} bytes"), cause))?;
    mapping.written.source_has(len_bytes);
    if len_bytes > mapping.len_bytes() {
        piece::reach(handle, len_bytes)?;
    }
    *resizing = len_bytes;
    sync::remember_contents(mapping);
    Ok(())
}
