//! `RLIMIT_FSIZE`, beyond which the kernel would end the process by SIGXFSZ.
//!
//! The limit is a process's, so forked children set it. They make caches, so it is alone in its
//! process (see `fork_own_cache.rs`).

use std::sync::Arc;

use pinfold::source::{Memory, Source};
use pinfold::{Cache, ErrorKind, Options, Space};

use crate::alone::alone;
use crate::child::in_a_child;
use crate::starts::wait_until_others_sleep;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// Files have at most 1 MiB from now on.
fn set_limit() {
    let limit = libc::rlimit { rlim_cur: MIB as u64, rlim_max: MIB as u64 };
    // SAFETY: a limit of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
}

#[test]
fn memory_and_swaps_beyond_the_limit_for_files_are_refused_without_a_signal() {
    let name = "memory_and_swaps_beyond_the_limit_for_files_are_refused_without_a_signal";
    let signal = alone(module_path!(), name, || {
        let dir = tempfile::tempdir().unwrap();
        let options =
            Options { swap_dir: dir.path().into(), swap_bytes: 32 << 20, ..Options::new(8 << 20) };
        wait_until_others_sleep();
        in_a_child(|| {
            set_limit();
            let error = Cache::new(options.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::System, "{error}");
            assert!(error.to_string().contains("File too large"), "{error}");
        });
        in_a_child(|| {
            let cache = Cache::new(options.clone()).unwrap();
            set_limit();
            let map = Space::new(&cache, 0).unwrap().map_anon(2 * MIB).unwrap();
            for page in 0..512 {
                map.write_at(&[1; PAGE], page * PAGE).unwrap();
            }
            assert_eq!(map.page_out(0..2 * MIB).unwrap(), MIB, "what the file can have");
            let stats = cache.stats();
            assert!(stats.swap_write_errors > 0, "{stats:?}");
            assert!(stats.swap_last_error.unwrap().contains("File too large"));
            for page in 0..512 {
                let mut buf = [0; PAGE];
                map.read_at(&mut buf, page * PAGE).unwrap();
                assert_eq!(buf, [1; PAGE]);
            }
        });
        in_a_child(|| {
            set_limit();
            let cache = Cache::new(Options::new(8 << 20)).unwrap();
            let file = cache.attach("file", Arc::new(Memory::new(vec![1; 2 * MIB]))).unwrap();
            let space = Space::new(&cache, 0).unwrap();
            let error = space.map_file(&file, 0..MIB as u64).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::System, "{error}");
            let text = error.to_string();
            assert!(
                text.contains("cannot make the memory file as long as the file: File too"),
                "{text}"
            );
        });
        // A file that grows beyond the limit keeps its maps.
        in_a_child(|| {
            set_limit();
            let cache = Cache::new(Options::new(8 << 20)).unwrap();
            let source = Arc::new(Memory::new(vec![1; MIB / 2]));
            let file = cache.attach("file", source.clone()).unwrap();
            let space = Space::new(&cache, 0).unwrap();
            let map = space.map_file(&file, 0..MIB as u64 / 2).unwrap();
            source.set_len(2 * MIB as u64).unwrap();
            file.invalidate(0..0).unwrap();
            assert_eq!(file.len(), 2 * MIB as u64);
            map.advise(0..map.len(), pinfold::Hint::WillNeed).unwrap();
            // SAFETY: a byte of the map.
            assert_eq!(unsafe { map.as_ptr().wrapping_add(MIB / 2 - 1).read_volatile() }, 1);
            let error = space.map_file(&file, 0..2 * MIB as u64).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::System, "{error}");
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    });
    assert_eq!(signal, None);
}
