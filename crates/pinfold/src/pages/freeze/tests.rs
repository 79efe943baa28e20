//! A dirty folio stays cached until it is written, whatever needs its memory.

use std::sync::Arc;

use crate::base::mutant::{self, Mutant};
use crate::error::Cause;
use crate::index::Mark;
use crate::pages::reclaim;
use crate::source::Memory;
use crate::{Cache, Error, File, Hint, Options};

const BUDGET_MIN_BYTES: u64 = *crate::Options::BUDGET_BYTES.start();

const PAGE: u64 = 4096;

/// A file of four cached pages, the second marked dirty, as a write will leave it.
struct Marked {
    cache: Cache,
    memory: Arc<Memory>,
    file: File,
}

impl Marked {
    fn new(mark: Mark) -> Self {
        let cache =
            Cache::new(Options { readahead_max_bytes: 0, ..Options::new(BUDGET_MIN_BYTES) })
                .unwrap();
        let memory = Arc::new(Memory::new(vec![1; 4 * PAGE as usize]));
        let file = cache.attach("written to", memory.clone()).unwrap();
        let marked = Marked { cache, memory, file };
        for page in 0..4 {
            marked.file.read_at(&mut [0], page * PAGE).unwrap();
        }
        marked.with_writer(|writer| writer.set_mark(1, mark));
        marked
    }

    fn with_writer<T>(&self, act: impl FnOnce(&mut crate::index::IndexWriter<'_>) -> T) -> T {
        let core = self.cache.core();
        let mut changing = self.file.handle().mapping.change();
        act(&mut changing.writer(&core.nodes))
    }

    /// The cached pages of the file.
    fn cached(&self) -> Vec<u64> {
        let index = &self.file.handle().mapping.index;
        (0..4).filter(|&page| index.lookup(page).is_some()).collect()
    }
}

const UNCLEAN: [Mark; 2] = [Mark::Dirty, Mark::Writeback];

fn dont_need_keeps_it() {
    for mark in UNCLEAN {
        let marked = Marked::new(mark);
        marked.file.advise(0..4 * PAGE, Hint::DontNeed).unwrap();
        assert_eq!(marked.cached(), [1], "{mark:?}");
    }
}

fn invalidate_keeps_it() {
    for mark in UNCLEAN {
        let marked = Marked::new(mark);
        assert_eq!(marked.file.invalidate(0..4 * PAGE).unwrap(), 3 * PAGE, "{mark:?}");
        assert_eq!(marked.cached(), [1], "{mark:?}");
    }
}

fn eviction_keeps_it() {
    for mark in UNCLEAN {
        let marked = Marked::new(mark);
        reclaim::evict(marked.cache.core(), u32::MAX);
        assert_eq!(marked.cached(), [1], "{mark:?}");
    }
}

/// The last handle of a source that can never be opened again is dropped.
fn the_last_drop_keeps_it() {
    let Marked { cache, memory: _, file } = Marked::new(Mark::Dirty);
    let mapping = file.handle().mapping.clone();
    drop(file);
    let core = cache.core();
    let cached: Vec<_> = (0..4).filter(|&page| mapping.index.lookup(page).is_some()).collect();
    assert_eq!(cached, [1]);
    assert!(core.mappings.get(mapping.id).is_some(), "given up with a dirty page in it");
}

/// The source's length is older than the dirty page.
fn a_new_length_keeps_it() {
    let marked = Marked::new(Mark::Dirty);
    crate::source::Source::set_len(&*marked.memory, PAGE).unwrap();
    marked.file.invalidate(0..4 * PAGE).unwrap();
    assert_eq!((marked.cached(), marked.file.len()), (vec![1], 4 * PAGE));
    marked.with_writer(|writer| writer.clear_mark(1, Mark::Dirty));
    marked.file.invalidate(0..4 * PAGE).unwrap();
    assert_eq!((marked.cached(), marked.file.len()), (vec![], PAGE));
}

/// Runs the test as shipped, and with the mutant that loses dirty pages, which it must catch.
fn holds_and_catches(test: fn()) {
    test();
    let caught = std::panic::catch_unwind(|| mutant::with(Some(Mutant::LoseDirty), test));
    assert!(caught.is_err(), "LoseDirty was not caught");
}

#[test]
fn dont_need() {
    holds_and_catches(dont_need_keeps_it);
}

#[test]
fn invalidate() {
    holds_and_catches(invalidate_keeps_it);
}

#[test]
fn eviction() {
    holds_and_catches(eviction_keeps_it);
}

#[test]
fn the_last_drop() {
    holds_and_catches(the_last_drop_keeps_it);
}

#[test]
fn a_new_length() {
    holds_and_catches(a_new_length_keeps_it);
}

/// Two dirty pages of a large folio stay dirty when it is split, and when it moves.
#[test]
fn a_split_and_a_move_keep_the_mark() {
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let file = cache.attach("large", Arc::new(Memory::new(vec![1; 1 << 16]))).unwrap();
    file.read_at(&mut vec![0; 1 << 16], 0).unwrap();
    let (core, mapping) = (cache.core(), &file.handle().mapping);
    mapping.change().writer(&core.nodes).set_mark(0, Mark::Dirty);
    assert!(reclaim::split_range(core, mapping, 0..16) > 0);
    assert!(reclaim::migrate_range(core, mapping, 0..16) > 0);
    file.advise(0..1 << 16, Hint::DontNeed).unwrap();
    let mut changing = mapping.change();
    let dirty = changing.writer(&core.nodes).next_marked(0..16, Mark::Dirty);
    assert_eq!(dirty.map(|folio| folio.page), Some(0));
    assert_eq!(changing.folios(), 16);
}

/// When only dirty pages are left, the error says how many bytes are dirty.
#[test]
fn memory_full_of_what_is_dirty_is_an_error_that_says_so() {
    let cache =
        Cache::new(Options { readahead_max_bytes: 0, ..Options::new(BUDGET_MIN_BYTES) }).unwrap();
    let pages = BUDGET_MIN_BYTES / PAGE;
    let memory = Arc::new(Memory::new(vec![1; (2 * BUDGET_MIN_BYTES) as usize]));
    let file = cache.attach("written to", memory).unwrap();
    let (core, mapping) = (cache.core(), &file.handle().mapping);
    for page in 0..pages * 3 / 4 {
        file.read_at(&mut [0], page * PAGE).unwrap();
        mapping.change().writer(&core.nodes).set_mark(page, Mark::Dirty);
    }
    let error = (0..pages * 2).find_map(|page| {
        let got = file.get(page).map(std::mem::forget);
        got.err()
    });
    let Some(Cause::NoMemory { dirty_bytes, held_bytes, .. }) = error.as_ref().map(Error::cause)
    else {
        panic!("not the error that was expected: {error:?}");
    };
    assert!(dirty_bytes + held_bytes > BUDGET_MIN_BYTES / 2, "{error:?}");
}
