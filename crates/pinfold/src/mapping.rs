//! One file as the cache knows it, and the table of all of them.
//!
//! Here: the index with its lock, the length, the backing; finding a mapping by file and by number;
//! when a mapping is given up. Not here: pages (`fill`, `freeze`). Called by `cache` and by whoever
//! has a folio and needs its file.
//!
//! # Locks
//!
//! `resizing` is taken before anything else, and is the only one held while a source is asked. The
//! table's mutex is taken before a mapping's `change` mutex, and that one before the policy's, never
//! after; several mappings' only by a batch (`freeze/batch.rs`), in rising order of their numbers;
//! nothing is allocated or read while one is held. Whoever freezes a folio holds it from before the
//! freeze until the folio is thawed or out of the index, so under it no folio of the mapping is ever
//! seen frozen.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::flaw::{self, Flaw};
use crate::frame::{FrameNumber, MAPPING_NONE, PAGE_BYTES};
use crate::index::{Index, IndexOwner, IndexWriter, NodePool};
use crate::source::{Backing, Identity, Key, Truncated};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// The longest that a file may be. Its last page is read whole, and that has to end at 2^63 - 1 at most.
pub(crate) const LEN_MAX_BYTES: u64 = (1 << 63) - PAGE_BYTES as u64;

/// The length that the source of the file `path` has now.
///
/// # Errors
/// The source cannot tell it, or it is above [`LEN_MAX_BYTES`].
pub(crate) fn ask_len(backing: &Backing, path: &Path) -> Result<u64> {
    match backing.len_bytes() {
        Ok(len_bytes) if len_bytes <= LEN_MAX_BYTES => Ok(len_bytes),
        Ok(len_bytes) => {
            Err(Error::TooLong { path: path.to_owned(), len_bytes, most_bytes: LEN_MAX_BYTES })
        }
        Err(cause) => Err(Error::Length { path: path.to_owned(), cause: Arc::new(cause) }),
    }
}

/// One file.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) index: Index,
    /// Which mapping its folios name.
    pub(crate) id: u32,
    len_bytes: AtomicU64,
    /// Held while the source is asked for its length and the answer is acted on.
    pub(crate) resizing: Mutex<()>,
    change: Mutex<Change>,
    pub(crate) backing: Backing,
    /// For messages.
    pub(crate) path: PathBuf,
    /// Changed under the table's mutex.
    handles: AtomicU64,
    /// What makes two opens the same file; sources of the program's own have none.
    identity: Option<Identity>,
    /// Nobody can open it any more: what has its key is another version. Changed under the table's
    /// mutex. Not from `crate::sync`: that orders it.
    outdated: std::sync::atomic::AtomicBool,
}

/// What the `change` mutex guards.
#[derive(Debug)]
struct Change {
    owner: IndexOwner,
    /// Folios in the index.
    folios: u64,
}

/// The right to change a mapping's index.
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    mapping: &'a Mapping,
    guard: MutexGuard<'a, Change>,
}

impl Mapping {
    /// Its length, as it was when it was opened or last asked for.
    #[inline]
    pub(crate) fn len_bytes(&self) -> u64 {
        // Acquire: pairs with the release in `set_len_bytes`; a reader that sees the folio filled
        // under a new length sees that length.
        flaw::pause();
        let bytes = self.len_bytes.load(Ordering::Acquire);
        flaw::pause();
        bytes
    }

    pub(crate) fn set_len_bytes(&self, bytes: u64) {
        // Release: pairs with the acquire in `len_bytes`.
        self.len_bytes.store(bytes, Ordering::Release);
        flaw::pause();
    }

    /// Takes the `change` mutex.
    pub(crate) fn change(&self) -> Changing<'_> {
        Changing { mapping: self, guard: self.change.lock() }
    }

    /// Judges what a read of the source brought.
    pub(crate) fn judge(&self, offset: u64, asked: usize, got: usize) -> Result<(), Truncated> {
        Truncated::check(offset, asked as u64, got as u64, self.len_bytes())
    }
}

impl Changing<'_> {
    /// The index's writer.
    pub(crate) fn writer<'a>(&'a mut self, nodes: &'a NodePool) -> IndexWriter<'a> {
        self.mapping.index.writer(&mut self.guard.owner, nodes)
    }

    /// Books that the index has `n` more folios.
    pub(crate) fn folios_added(&mut self, n: u64) {
        self.guard.folios += n;
    }

    /// Books that the index has one folio less.
    pub(crate) fn folio_removed(&mut self) {
        self.guard.folios = self.guard.folios.checked_sub(1).expect("a folio that was counted");
    }

    /// Folios in the index.
    pub(crate) fn folios(&self) -> u64 {
        self.guard.folios
    }

    /// The head of the folio that holds `page`: exact, under the mutex.
    pub(crate) fn head(&self, page: u64) -> Option<FrameNumber> {
        self.mapping.index.lookup(page)
    }
}

/// All mappings of a cache.
#[derive(Debug)]
pub(crate) struct Mappings {
    table: Mutex<Table>,
}

/// A number is given again once its mapping is given up, which takes that no folio says it any more:
/// each forgets it, with an odd version, under the mutex under which the index loses the folio. So
/// whatever an old hint leads to, the number in an entry that is valid now is the listed mapping's.
#[derive(Debug)]
struct Table {
    by_id: Vec<Option<Arc<Mapping>>>,
    free_ids: Vec<u32>,
    by_key: HashMap<Key, u32>,
    /// Numbers are below it.
    ids_end: u32,
}

impl Mappings {
    pub(crate) fn new() -> Self {
        let (by_id, free_ids, by_key) = (Vec::new(), Vec::new(), HashMap::new());
        Mappings { table: Mutex::new(Table { by_id, free_ids, by_key, ids_end: MAPPING_NONE }) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// The mapping number `id`, if there is one.
    pub(crate) fn get(&self, id: u32) -> Option<Arc<Mapping>> {
        self.table().by_id.get(id as usize)?.clone()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Mapping>> {
        self.table().by_id.iter().flatten().cloned().collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        let table = self.table();
        table.by_id.len() - table.free_ids.len()
    }

    /// The mapping of the file `identity`, made of `backing` if it is new, with one more handle. If
    /// nobody had it open, it goes on with the new source. Second, a mapping that is outdated since,
    /// with a handle to be dropped: of the same object in another version.
    ///
    /// # Errors
    /// Somebody has another version of it open, or there are as many as can be numbered.
    pub(crate) fn open(
        &self,
        nodes: &NodePool,
        identity: Option<Identity>,
        path: PathBuf,
        backing: Backing,
        len_bytes: u64,
    ) -> Result<(Arc<Mapping>, Option<Arc<Mapping>>)> {
        // Dropped when the table is free again.
        let _old_source;
        let mut table = self.table();
        let mut outdated = None;
        let known = identity.as_ref().and_then(|identity| table.by_key.get(&identity.key).copied());
        if let Some(id) = known {
            let mapping = table.by_id[id as usize].clone();
            let mapping = mapping.expect("a file that is listed has a mapping");
            // Relaxed, here and below: the table's mutex orders them.
            let nobodys = mapping.handles.load(Ordering::Relaxed) == 0;
            let changed = changed(&mapping, identity.as_ref(), &path);
            match changed {
                Some(error) if !nobodys => return Err(error),
                Some(_) => mapping.outdated.store(true, Ordering::Relaxed),
                None if nobodys => _old_source = mapping.backing.adopt(&backing),
                None => {}
            }
            mapping.handles.fetch_add(1, Ordering::Relaxed);
            if !mapping.outdated.load(Ordering::Relaxed) {
                return Ok((mapping, None));
            }
            outdated = Some(mapping);
        }
        let id = match table.free_ids.pop() {
            Some(id) => id,
            None if table.by_id.len() < table.ids_end as usize => {
                table.by_id.push(None);
                table.by_id.len() as u32 - 1
            }
            None => {
                if let Some(outdated) = outdated {
                    outdated.handles.fetch_sub(1, Ordering::Relaxed);
                }
                return Err(Error::TooManyFiles { path, most: table.ids_end });
            }
        };
        let (index, owner) = nodes.new_index(len_bytes.div_ceil(PAGE_BYTES as u64));
        let mapping = Arc::new(Mapping {
            index,
            id,
            len_bytes: AtomicU64::new(len_bytes),
            resizing: Mutex::new(()),
            change: Mutex::new(Change { owner, folios: 0 }),
            backing,
            path,
            handles: AtomicU64::new(1),
            identity: identity.clone(),
            outdated: false.into(),
        });
        table.by_id[id as usize] = Some(mapping.clone());
        if let Some(identity) = identity {
            table.by_key.insert(identity.key, id);
        }
        Ok((mapping, outdated))
    }

    /// One more handle on `mapping`, which has one.
    pub(crate) fn clone_handle(&self, mapping: &Mapping) {
        let _table = self.table();
        let before = mapping.handles.fetch_add(1, Ordering::Relaxed);
        assert!(before > 0, "a handle was cloned that was not there");
    }

    /// One handle less. True if it was the last and nobody can ever open the source again: it has no
    /// identity, or is outdated.
    pub(crate) fn drop_handle(&self, mapping: &Mapping) -> bool {
        let _table = self.table();
        let before = mapping.handles.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a handle was dropped that was not there");
        before == 1 && (mapping.identity.is_none() || mapping.outdated.load(Ordering::Relaxed))
    }

    /// Gives the mapping up if it has no handle and no folio. What is left of its index must go
    /// first: `clear` is called for that.
    pub(crate) fn retire(&self, mapping: &Mapping, clear: impl FnOnce(&mut Changing<'_>)) {
        // A guess first: mostly there are handles.
        if mapping.handles.load(Ordering::Relaxed) > 0 {
            return;
        }
        flaw::pause();
        let mut table = self.table();
        let id = mapping.id as usize;
        let listed = table.by_id[id].as_deref().is_some_and(|listed| std::ptr::eq(listed, mapping));
        let opened = mapping.handles.load(Ordering::Relaxed) > 0 && !flaw::on(Flaw::RetireByGuess);
        if !listed || opened {
            return;
        }
        let mut changing = mapping.change();
        if changing.folios() > 0 {
            return;
        }
        clear(&mut changing);
        drop(changing);
        // Of an outdated one, the key is another's.
        if let Some(identity) = &mapping.identity
            && table.by_key.get(&identity.key) == Some(&mapping.id)
        {
            table.by_key.remove(&identity.key);
        }
        table.by_id[id] = None;
        table.free_ids.push(mapping.id);
    }
}

/// The error, if the mapping is of another version than `identity`, which has the same key.
fn changed(mapping: &Mapping, identity: Option<&Identity>, path: &Path) -> Option<Error> {
    let (known, new) = (mapping.identity.as_ref()?, identity?);
    let (Key::Object(key), Some(open), Some(attached)) = (&known.key, &known.version, &new.version)
    else {
        return None;
    };
    (open != attached).then(|| Error::SourceChanged {
        path: path.to_owned(),
        key: key.clone(),
        open: open.clone(),
        attached: attached.clone(),
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use crate::source::Memory;
    use crate::{Cache, Error, File, Options, Result};

    fn attach(cache: &Cache, byte: u8) -> Result<File> {
        cache.attach("file", Arc::new(Memory::new(vec![byte; 64 << 10])))
    }

    fn check(file: &File, byte: u8) {
        let mut buf = vec![0; 64 << 10];
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), buf.len());
        assert!(buf.iter().all(|&read| read == byte));
    }

    /// A cache may have had any number of files in its life; numbers that are free are given again.
    #[test]
    fn a_cache_that_had_four_billion_files_opens_another() {
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let first = attach(&cache, 1).unwrap();
        first.handle().core.nodes.age(u64::from(u32::MAX) - 2);
        for byte in 2..6 {
            let file = attach(&cache, byte).unwrap();
            check(&file, byte);
            assert_eq!(file.handle().mapping.id, 1, "a number that is free is given again");
        }
        check(&first, 1);
    }

    #[test]
    fn more_files_at_once_than_can_be_numbered_are_an_error() {
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let first = attach(&cache, 1).unwrap();
        first.handle().core.mappings.table().ids_end = 2;
        let second = attach(&cache, 2).unwrap();
        let error = attach(&cache, 3).unwrap_err();
        assert!(matches!(error, Error::TooManyFiles { most: 2, .. }), "{error:?}");
        assert_eq!(error.to_string(), "cannot open file: 2 files are cached, and can be no more");
        drop(second);
        check(&attach(&cache, 3).unwrap(), 3);
        check(&first, 1);
    }
}
