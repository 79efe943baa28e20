//! A file in the cache (a mapping), and the table of all.
//!
//! # Locks
//!
//! The file's turn (`written.rs`) is taken before all others, then `resizing`. Only these two are
//! held during a call of the source, and `resizing` while a write makes the file longer.
//! The table's mutex is taken before a mapping's `change` mutex, and that one before the policy's.
//! Only a batch (`freeze/together.rs`) takes the `change` mutexes of several mappings, in rising
//! order of their numbers. Under a `change` mutex nothing is read, and no frame or node is
//! allocated, as eviction takes it; but the heap may be used. Who freezes a folio holds the mutex
//! until the folio is thawed or out of the index: so under it no other is frozen.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Error, Result};
use crate::frames::{FrameNumber, MAPPINGS_END, PAGE_BYTES};
use crate::index::{Index, IndexOwner, IndexWriter, NodePool};
use crate::mapped::{MappedOfFile, MappedStates};
use crate::pages::pressure::OnItsWay;
use crate::pages::written::{FileUse, WriteState};
use crate::source::{
    Backing, Contents, FileId, FileIdentity, FileKey, LetGo, Time, realtime, shared_bytes,
    was_just_now,
};

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

/// A file's last page is read whole, and must end at 2^63 - 1 at most.
pub(crate) const LEN_MAX_BYTES: u64 = (1 << 63) - PAGE_BYTES as u64;

pub(crate) fn ask_len(backing: &Backing, path: &Path) -> Result<u64> {
    match backing.len_bytes() {
        Ok(len_bytes) => check_len(len_bytes, path),
        Err(cause) => Err(Cause::Length { path: path.to_owned(), cause: Arc::new(cause) }.into()),
    }
}

pub(crate) fn check_len(len_bytes: u64, path: &Path) -> Result<u64> {
    let most_bytes = LEN_MAX_BYTES;
    if len_bytes > most_bytes {
        return Err(Cause::TooLong { path: path.to_owned(), len_bytes, most_bytes }.into());
    }
    Ok(len_bytes)
}

#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) index: Index,
    /// In entries of its folios.
    pub(crate) id: u32,
    /// In ghosts: the same when it is opened again.
    pub(crate) ghosts_of: u64,
    len_bytes: AtomicU64,
    /// Held while the source is asked for its length and the answer is applied: that as of the last
    /// open, refresh, or invalidation of all pages.
    pub(crate) resizing: Mutex<u64>,
    change: Mutex<Change>,
    pub(crate) backing: Backing,
    #[cfg_attr(not(feature = "map"), expect(dead_code, reason = "nothing is outside"))]
    pub(crate) mapped: MappedOfFile,
    pub(crate) on_its_way: OnItsWay,
    pub(crate) written: WriteState,
    pub(crate) path: PathBuf,
    /// Changes under the table's mutex.
    handles: AtomicU64,
    /// Two opens with equal identities are one file. Sources of the program's own may have none.
    identity: Option<FileIdentity>,
    /// Of a file of the system. Changes under `resizing`. Taken after all other locks.
    read_under: Mutex<Option<ReadUnder>>,
    /// Its key names another version now. Ordered by the table's mutex.
    outdated: std::sync::atomic::AtomicBool,
}

/// Each cached page was read after the file had these contents. So all are the file's if it still
/// has them, and they were settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadUnder {
    contents: Contents,
    settled: bool,
    /// Appended to, as far as is known.
    grown: bool,
    written: WrittenSince,
}

/// By whom a file was written to since, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenSince {
    Nobody,
    /// By this cache alone, for the last time then.
    Here(Time),
    Others,
}

impl ReadUnder {
    /// The file has had these contents just now.
    pub(crate) fn now(contents: Contents) -> Self {
        let settled = contents.are_settled();
        ReadUnder { contents, settled, grown: false, written: WrittenSince::Nobody }
    }

    pub(crate) fn as_grown(self) -> Self {
        ReadUnder { grown: true, ..self }
    }

    pub(crate) fn has_grown(&self) -> bool {
        self.grown
    }

    pub(crate) fn was_written_here(&self) -> bool {
        matches!(self.written, WrittenSince::Here(_))
    }

    pub(crate) fn is(&self, contents: &Contents) -> bool {
        self.contents == *contents
    }

    /// For a reader that follows the file.
    pub(crate) fn is_followed_as(&self, contents: &Contents) -> bool {
        (self.settled || self.grown) && self.is(contents)
    }

    /// Whether pages that were read under it are those of a file with these contents. What has
    /// grown was compared in part.
    pub(crate) fn is_settled_as(&self, contents: &Contents) -> bool {
        let grown = self.grown && !mutant::on(Mutant::OpenTrustsGrown);
        mutant::on(Mutant::OpenUncompared) || (self.settled && !grown && self.is(contents))
    }
}

#[derive(Debug)]
struct Change {
    owner: IndexOwner,
    folios: u64,
    /// Pages in which a hole is being punched: writes to them wait.
    hole: Range<u64>,
    #[cfg_attr(not(feature = "map"), expect(dead_code, reason = "nothing is outside"))]
    mapped: MappedStates,
}

/// The right to change a mapping's index.
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    mapping: &'a Mapping,
    guard: MutexGuard<'a, Change>,
}

impl Mapping {
    /// As of the last open or the last time the source was asked.
    #[inline]
    pub(crate) fn len_bytes(&self) -> u64 {
        // Acquire: pairs with the release in `set_len_bytes`; who sees a folio of a new length sees
        // that.
        mutant::pause();
        let bytes = self.len_bytes.load(Ordering::Acquire);
        mutant::pause();
        bytes
    }

    pub(crate) fn heap_bytes(&self) -> u64 {
        const TABLE: usize = size_of::<Option<Arc<Mapping>>>() + size_of::<(FileKey, u32)>();
        let names = match &self.identity {
            // Its key is in the table, too.
            Some(FileIdentity { key: FileKey::Object(key), version, .. }) => {
                2 * key.capacity() + version.as_ref().map_or(0, String::capacity)
            }
            _ => 0,
        };
        let own = shared_bytes(size_of::<Self>()) + self.path.capacity() + names + TABLE;
        (own + Backing::heap_bytes(self.is_of_system())) as u64
    }

    /// Whether its cached pages are those of a file with these contents, as far as is known.
    pub(crate) fn has_pages_of(&self, contents: Option<&Contents>) -> bool {
        let under = self.read_under();
        contents.zip(under).is_some_and(|(contents, under)| under.is_settled_as(contents))
    }

    pub(crate) fn read_under(&self) -> Option<ReadUnder> {
        *self.read_under.lock()
    }

    /// Nothing is cached that was read before the file had these contents. `resizing` is held, or
    /// the turn of a file that is written to.
    pub(crate) fn set_read_under(&self, contents: ReadUnder) {
        *self.read_under.lock() = Some(contents);
    }

    /// In a turn, before the source is changed. To ask for times is expensive: Linux then gives the
    /// next write a time of its own, which goes to the journal. So not again in a row of writes.
    pub(crate) fn before_own_writes(&self) {
        let is_due = |it: ReadUnder| match it.written {
            WrittenSince::Nobody => true,
            WrittenSince::Here(time) => !was_just_now(time),
            WrittenSince::Others => false,
        };
        if self.read_under().is_some_and(is_due) {
            self.tell_own_writes();
        }
    }

    /// In a turn, when the source was changed.
    pub(crate) fn after_own_writes(&self) {
        if let Some(under) = &mut *self.read_under.lock()
            && under.written != WrittenSince::Others
        {
            under.written = WrittenSince::Here(realtime());
        }
    }

    /// In a turn, when the source has synced: some file systems change times only then.
    pub(crate) fn after_sync(&self) {
        if self.read_under().is_some_and(|under| under.was_written_here()) {
            self.after_own_writes();
        }
    }

    /// In a turn: whether all that was changed since the cached pages were read was written here, as
    /// far as the times tell. Then the file has the contents that it has now.
    pub(crate) fn tell_own_writes(&self) {
        let Some(under) = self.read_under() else { return };
        let now = self.backing.contents().ok().flatten();
        self.set_read_under(match (under.written, now) {
            (WrittenSince::Nobody, Some(now)) if under.is(&now) => return,
            (WrittenSince::Here(time), Some(now)) if now.were_there(time) => {
                ReadUnder { settled: false, ..ReadUnder::now(now) }
            }
            _ => ReadUnder { written: WrittenSince::Others, ..under },
        });
    }

    #[cfg(feature = "map")]
    pub(crate) fn is_closed(&self) -> bool {
        self.handles.load(Ordering::Relaxed) == 0 // a hint, without the table's mutex
    }

    pub(crate) fn is_of_system(&self) -> bool {
        matches!(self.identity, Some(FileIdentity { key: FileKey::File(_), .. }))
    }

    pub(crate) fn is_file(&self, file: FileId) -> bool {
        self.identity.as_ref().is_some_and(|identity| identity.key == FileKey::File(file))
    }

    pub(crate) fn set_len_bytes(&self, bytes: u64) {
        // Release: pairs with the acquire in `len_bytes`.
        self.len_bytes.store(bytes, Ordering::Release);
        mutant::pause();
    }

    /// Under the `change` mutex: a write has reached byte `end`.
    pub(crate) fn reach(&self, end: u64) {
        if end > self.len_bytes() {
            self.set_len_bytes(end);
        }
    }

    pub(crate) fn change(&self) -> Changing<'_> {
        Changing { mapping: self, guard: self.change.lock() }
    }
}

impl Changing<'_> {
    pub(crate) fn mapping(&self) -> &Mapping {
        self.mapping
    }

    pub(crate) fn writer<'a>(&'a mut self, nodes: &'a NodePool) -> IndexWriter<'a> {
        self.mapping.index.writer(&mut self.guard.owner, nodes)
    }

    pub(crate) fn folios_added(&mut self, n: u64) {
        self.guard.folios += n;
    }

    pub(crate) fn folio_removed(&mut self) {
        self.guard.folios = self.guard.folios.checked_sub(1).expect("a folio that was counted");
    }

    /// Returns the one before.
    pub(crate) fn set_hole(&mut self, pages: Range<u64>) -> Range<u64> {
        std::mem::replace(&mut self.guard.hole, pages)
    }

    pub(crate) fn hole_meets(&self, pages: &Range<u64>) -> bool {
        self.guard.hole.start < pages.end && pages.start < self.guard.hole.end
    }

    #[cfg(feature = "map")]
    pub(crate) fn mapped(&mut self) -> &mut MappedStates {
        &mut self.guard.mapped
    }

    pub(crate) fn folios(&self) -> u64 {
        self.guard.folios
    }

    /// Exact, under the mutex.
    pub(crate) fn head(&self, page: u64) -> Option<FrameNumber> {
        self.mapping.index.lookup(page)
    }
}

#[derive(Debug)]
pub(crate) struct Mappings {
    table: Mutex<MappingTable>,
}

/// A number is reused once no folio names it: each forgets it, under an odd version, under the
/// mutex under which it leaves the index. So that in a valid entry is of the mapping in the table.
#[derive(Debug)]
struct MappingTable {
    by_id: Vec<Option<Arc<Mapping>>>,
    free_ids: Vec<u32>,
    by_key: HashMap<FileKey, u32>,
    ids_end: u32,
}

/// For all files, outside of the budget.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FilesKept {
    pub(crate) files: u64,
    pub(crate) files_bytes: u64,
    pub(crate) directories_bytes: u64,
}

#[derive(Debug)]
#[must_use]
pub(crate) struct Closed {
    /// The file can never be opened again: it has no identity, or is outdated.
    pub(crate) for_good: bool,
    /// If it was the last handle.
    pub(crate) source: LetGo,
}

impl Mappings {
    pub(crate) fn new() -> Self {
        let table = MappingTable {
            by_id: Vec::new(),
            free_ids: Vec::new(),
            by_key: HashMap::new(),
            ids_end: MAPPINGS_END,
        };
        Mappings { table: Mutex::new(table) }
    }

    pub(crate) fn get(&self, id: u32) -> Option<Arc<Mapping>> {
        self.table.lock().by_id.get(id as usize)?.clone()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Mapping>> {
        self.table.lock().by_id.iter().flatten().cloned().collect()
    }

    pub(crate) fn kept(&self) -> FilesKept {
        let table = self.table.lock();
        let mut kept = FilesKept::default();
        for mapping in table.by_id.iter().flatten() {
            kept.files += 1;
            kept.files_bytes += mapping.heap_bytes();
            kept.directories_bytes += mapping.index.heap_bytes();
        }
        kept
    }

    /// The mapping of the file `identity`, with one more handle; made from `backing` if it is new.
    /// One without handles takes the new source. Also returns a mapping that became outdated, with
    /// a handle that the caller drops. Error: another version is open, or all numbers are used.
    pub(crate) fn open(
        &self,
        nodes: &NodePool,
        identity: Option<FileIdentity>,
        path: PathBuf,
        backing: Backing,
        len_bytes: u64,
    ) -> Result<(Arc<Mapping>, Option<Arc<Mapping>>)> {
        // Dropped after the table is unlocked.
        let _old_source;
        let mut table = self.table.lock();
        let mut outdated = None;
        let known = identity.as_ref().and_then(|identity| table.by_key.get(&identity.key).copied());
        if let Some(id) = known {
            let mapping = table.by_id[id as usize].clone();
            let mapping = mapping.expect("a file that is listed has a mapping");
            // Relaxed, here and below: ordered by the table's mutex.
            let nobodys = mapping.handles.load(Ordering::Relaxed) == 0;
            let changed = changed(&mapping, identity.as_ref(), &path);
            let contents = identity.as_ref().and_then(|identity| identity.contents.as_ref());
            let rewritten = nobodys
                && mapping.is_of_system()
                && !mapping.written.needs_sync()
                && (!mapping.has_pages_of(contents)
                    || mapping.written.is_claimed(FileUse::Mapped) && backing.is_writable());
            let outdates = changed.is_some() || rewritten;
            if let Some(error) = changed.filter(|_| !nobodys) {
                return Err(error);
            }
            if outdates && table.is_full() {
                return Err(table.too_many(path));
            }
            mapping.handles.fetch_add(1, Ordering::Relaxed);
            if !outdates {
                // What could not be written keeps a source that can be written to.
                if nobodys && (backing.is_writable() || !mapping.written.needs_sync()) {
                    _old_source = mapping.backing.adopt(&backing);
                }
                return Ok((mapping, None));
            }
            mapping.outdated.store(true, Ordering::Relaxed);
            outdated = Some(mapping);
        }
        let Some(id) = table.take_id() else { return Err(table.too_many(path)) };
        let read_under = identity.as_ref().and_then(|identity| identity.contents);
        let read_under = read_under.map(ReadUnder::now);
        let (index, owner) = nodes.new_index(len_bytes.div_ceil(PAGE_BYTES as u64));
        let mapping = Arc::new(Mapping {
            ghosts_of: identity.as_ref().map_or_else(|| index.id(), FileIdentity::number),
            index,
            id,
            len_bytes: AtomicU64::new(len_bytes),
            resizing: Mutex::new(len_bytes),
            change: Mutex::new(Change {
                owner,
                folios: 0,
                hole: 0..0,
                mapped: MappedStates::default(),
            }),
            backing,
            mapped: MappedOfFile::default(),
            on_its_way: OnItsWay::default(),
            written: WriteState::new(len_bytes),
            path,
            handles: AtomicU64::new(1),
            identity: identity.clone(),
            read_under: Mutex::new(read_under),
            outdated: false.into(),
        });
        table.by_id[id as usize] = Some(mapping.clone());
        if let Some(identity) = identity {
            table.by_key.insert(identity.key, id);
        }
        Ok((mapping, outdated))
    }

    /// Of a file that has handles, with one more.
    pub(crate) fn open_again(&self, file: FileId) -> Option<Arc<Mapping>> {
        let table = self.table.lock();
        let id = *table.by_key.get(&FileKey::File(file))?;
        let mapping = table.by_id[id as usize].as_ref()?;
        // Relaxed, both: ordered by the table's mutex.
        if mapping.handles.load(Ordering::Relaxed) == 0 {
            return None;
        }
        mapping.handles.fetch_add(1, Ordering::Relaxed);
        Some(mapping.clone())
    }

    pub(crate) fn clone_handle(&self, mapping: &Mapping) {
        let _table = self.table.lock();
        let before = mapping.handles.fetch_add(1, Ordering::Relaxed);
        assert!(before > 0, "a handle was cloned that was not there");
    }

    /// Without handles a mapping has no source, unless it has what could not be written. `None`:
    /// the handle is the last, and there is something to be synced, which was not `tried` yet.
    pub(crate) fn drop_handle(&self, mapping: &Mapping, tried: bool) -> Option<Closed> {
        let _table = self.table.lock();
        let handles = mapping.handles.load(Ordering::Relaxed);
        assert!(handles > 0, "a handle was dropped that was not there");
        let needs_sync = handles == 1 && mapping.written.needs_sync();
        if needs_sync && !tried {
            return None;
        }
        mapping.handles.store(handles - 1, Ordering::Relaxed);
        if handles > 1 {
            return Some(Closed { for_good: false, source: LetGo::default() });
        }
        let outdated = mapping.outdated.load(Ordering::Relaxed);
        let for_good = mapping.identity.is_none() || outdated;
        if needs_sync && !for_good {
            return Some(Closed { for_good, source: LetGo::default() });
        }
        mapping.written.forget_length();
        let source = mapping.backing.let_go();
        Some(Closed { for_good, source })
    }

    /// Once it is synced.
    pub(crate) fn let_go_if_closed(&self, mapping: &Mapping) {
        if mapping.handles.load(Ordering::Relaxed) > 0 {
            return; // a hint: usually there are handles
        }
        let table = self.table.lock();
        let is_closed = mapping.handles.load(Ordering::Relaxed) == 0;
        let source = (is_closed && !mapping.written.needs_sync()).then(|| mapping.backing.let_go());
        drop(table);
        drop(source);
        self.retire(mapping);
    }

    /// If it has neither handles nor folios.
    pub(crate) fn retire(&self, mapping: &Mapping) {
        // A hint: usually there are handles.
        if mapping.handles.load(Ordering::Relaxed) > 0 {
            return;
        }
        mutant::pause();
        let mut table = self.table.lock();
        let id = mapping.id as usize;
        let listed = table.by_id[id].as_deref().is_some_and(|listed| std::ptr::eq(listed, mapping));
        let opened =
            mapping.handles.load(Ordering::Relaxed) > 0 && !mutant::on(Mutant::RetireUnchecked);
        if !listed || opened {
            return;
        }
        if mapping.change().folios() > 0 || mapping.written.needs_sync() {
            return;
        }
        // The key of an outdated mapping belongs to a newer one.
        if let Some(identity) = &mapping.identity
            && table.by_key.get(&identity.key) == Some(&mapping.id)
        {
            table.by_key.remove(&identity.key);
        }
        table.by_id[id] = None;
        table.free_ids.push(mapping.id);
    }
}

impl MappingTable {
    fn is_full(&self) -> bool {
        self.free_ids.is_empty() && self.by_id.len() >= self.ids_end as usize
    }

    fn too_many(&self, path: PathBuf) -> Error {
        Cause::TooManyFiles { path, most: self.ids_end }.into()
    }

    fn take_id(&mut self) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        Some(self.free_ids.pop().unwrap_or_else(|| {
            self.by_id.push(None);
            self.by_id.len() as u32 - 1
        }))
    }
}

/// The mapping is of another version than `identity`, which has the same key.
fn changed(mapping: &Mapping, identity: Option<&FileIdentity>, path: &Path) -> Option<Error> {
    let (known, new) = (mapping.identity.as_ref()?, identity?);
    let (FileKey::Object(key), Some(open), Some(attached)) =
        (&known.key, &known.version, &new.version)
    else {
        return None;
    };
    (open != attached).then(|| {
        Cause::SourceChanged {
            path: path.to_owned(),
            key: key.clone(),
            open: open.clone(),
            attached: attached.clone(),
        }
        .into()
    })
}
