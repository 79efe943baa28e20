//! A program that has locked all of its memory: maps give back what leaves the budget all the same.

use std::sync::Arc;

use pinfold::source::Memory;
use pinfold::{Cache, Hint, Options, Space};
use pinfold_testing::pattern::Pattern;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// What is in memory of a range, in bytes.
fn in_memory(start: *const u8, bytes: usize) -> usize {
    let mut pages = vec![0_u8; bytes / PAGE];
    // SAFETY: the range is a map's, and the call writes a byte for each page.
    let told = unsafe { libc::mincore(start.cast_mut().cast(), bytes, pages.as_mut_ptr()) };
    assert_eq!(told, 0, "{}", std::io::Error::last_os_error());
    pages.iter().filter(|&&page| page & 1 == 1).count() * PAGE
}

/// Alone in its process: it locks all of it.
#[test]
fn maps_of_a_program_that_has_locked_its_memory() {
    // SAFETY: it changes what is in memory alone.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        println!("not tried: {}", std::io::Error::last_os_error());
        return;
    }
    for handlers in [0, 2] {
        let swap = Arc::new(Memory::new(Vec::new()));
        let options =
            Options { swap_source: Some(swap), swap_bytes: 32 << 20, ..Options::new(8 << 20) };
        let cache = Cache::new(options).unwrap();
        let space = Space::new(&cache, handlers).unwrap();
        let pattern = Pattern::new(7, 0);
        let bytes = pattern.to_vec(24 * MIB);

        let memory = space.map_anon(24 * MIB).unwrap();
        for (page, bytes) in bytes.chunks(PAGE).enumerate() {
            memory.write_at(bytes, page * PAGE).unwrap();
        }
        assert!(in_memory(memory.as_mut_ptr(), 24 * MIB) <= 8 * MIB);
        // SAFETY: nobody stores to it.
        assert!(unsafe { memory.as_mut_slice() } == bytes);
        memory.page_out(0..24 * MIB).unwrap();
        assert_eq!(in_memory(memory.as_mut_ptr(), 24 * MIB), 0);
        let mut back = vec![0; MIB];
        memory.read_at(&mut back, 5 * MIB).unwrap();
        assert!(back == bytes[5 * MIB..6 * MIB]);
        memory.discard(5 * MIB..6 * MIB).unwrap();
        assert!(
            memory.read_at(&mut back, 5 * MIB).is_ok_and(|_| back.iter().all(|&byte| byte == 0))
        );
        drop(memory);

        let file = cache.attach("file", Arc::new(Memory::new(bytes.clone()))).unwrap();
        let map = space.map_file(&file, 0..file.len()).unwrap();
        // SAFETY: nobody changes the file.
        assert!(unsafe { map.as_slice() } == bytes);
        map.advise(0..24 * MIB, Hint::DontNeed).unwrap();
        let mirrored = cache.stats();
        assert!(mirrored.resident_bytes + mirrored.metadata_bytes <= 8 << 20);
    }
}
