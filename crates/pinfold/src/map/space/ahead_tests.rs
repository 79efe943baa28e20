//! How much is read ahead of mapped accesses, none of which is counted: of strides little, and of
//! scans all, in few reads.

use std::sync::Arc;

use super::Map;
use crate::base::mutant::{self, Mutant};
use crate::frames::PAGE_BYTES;
use crate::source::Memory;
use crate::{Cache, File, Options, Space};

const BUDGET: u64 = 16 << 20;

/// A file of four times the budget, mapped.
fn mapped() -> (Cache, File, Map) {
    let cache = Cache::new(Options::new(BUDGET)).unwrap();
    let bytes = 4 * BUDGET;
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; bytes as usize]))).unwrap();
    let map = Space::new(&cache, 0).unwrap().map_file(&file, 0..bytes).unwrap();
    (cache, file, map)
}

/// Loads a byte of each of these pages; how many pages were read for each, and by how many reads.
fn read_for(pages: impl IntoIterator<Item = usize>) -> (f64, u64) {
    let (cache, _file, map) = mapped();
    let mut wanted = 0;
    for page in pages {
        let at = map.as_ptr().wrapping_add(page * PAGE_BYTES);
        // SAFETY: a byte of the map.
        assert_eq!(unsafe { at.read_volatile() }, 7);
        wanted += 1;
        // So that what is read does not depend on how fast it comes. Ends: what is on its way
        // arrives.
        while cache.stats().fills_in_flight > 0 {
            std::thread::yield_now();
        }
    }
    let sources = cache.sources();
    let lanes = sources.iter().flat_map(|(_, it)| [&it.read, &it.read_ahead]);
    let (calls, bytes) =
        lanes.fold((0, 0), |(calls, bytes), it| (calls + it.calls, bytes + it.bytes));
    (bytes as f64 / (wanted * PAGE_BYTES) as f64, calls)
}

/// The most that is read of a stride.
fn of_strides() -> f64 {
    let strides = [(1, 2), (2, 6), (4, 16), (1, 16), (5, 8), (3, 5)];
    let read = strides.map(|(some, of)| read_for((0..6000).filter(|page| page % of < some)).0);
    read.into_iter().fold(0.0, f64::max)
}

#[test]
fn what_mapped_accesses_skip_is_not_read_ahead() {
    let read = of_strides();
    assert!(read <= 1.5, "{read}");
    let blind = mutant::with(Some(Mutant::MapsUseAll), of_strides);
    assert!(blind > 1.5, "the mutant does nothing: {blind}");
}

/// How many depends on what is evicted before it is accessed, and so on other threads: seen are 229
/// to 362, with samples and without. Where all that is used counts as unused, there are thousands.
#[test]
fn what_mapped_accesses_scan_is_read_in_few_reads() {
    let (read, calls) = read_for(0..8000);
    assert!(read < 1.2 && calls < 450, "{read} {calls}");
}
