//! Any bytes are a script of operations; what is read must be what a plain vector holds. See
//! `pinfold_testing::script`. A failing input prints its steps, which `tests/it/differential.rs` can
//! replay.
//!
//! `cargo +nightly fuzz run script -- -len_control=0 -max_len=700 -max_total_time=60`

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use pinfold_testing::script::{Script, replay};
use tempfile::TempDir;

/// In memory: thousands of files a second would wear a disk out. Direct I/O is for the tests.
static DIR: LazyLock<TempDir> = LazyLock::new(|| {
    let shared_memory = std::path::Path::new("/dev/shm");
    let dir =
        if shared_memory.is_dir() { tempfile::tempdir_in(shared_memory) } else { TempDir::new() };
    dir.expect("a directory for the files of the scripts")
});

fuzz_target!(|bytes: &[u8]| {
    let script = Script::from_bytes(bytes);
    if let Err(why) = replay(&script, DIR.path()) {
        panic!("{why}\n{script:#?}");
    }
});
