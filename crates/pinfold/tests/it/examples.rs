//! Runs the examples, with less to do, and checks that README names each of them.
//! `pin_to_socket` is run by `pin_example.rs`.

#[path = "../../examples/event_loop.rs"]
#[allow(dead_code, reason = "its `main` takes its arguments from the command line")]
mod event_loop;
#[path = "../../examples/fuse.rs"]
#[allow(dead_code, reason = "its `main` takes its arguments from the command line")]
mod fuse;
#[path = "../../examples/hits.rs"]
#[allow(dead_code, reason = "its `main` takes its arguments from the command line")]
mod hits;
#[path = "../../examples/open.rs"]
#[allow(dead_code, reason = "its `main` takes its arguments from the command line")]
mod open;
#[path = "../../examples/range_server.rs"]
#[allow(dead_code, reason = "its `main` takes its arguments from the command line")]
mod range_server;
#[path = "../../examples/thread_per_core.rs"]
#[allow(dead_code, reason = "its `main` takes its arguments from the command line")]
mod thread_per_core;

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn an_event_loop_serves_ranges() {
    let bytes = event_loop::run(dir().path(), 1000).unwrap();
    assert!((1_000_000..20_000_000).contains(&bytes), "{bytes}");
}

#[test]
fn a_folder_is_shown_through_a_cache() {
    let (folder, shown) = (dir(), dir());
    let cache = pinfold::Cache::new(pinfold::Options::new(4 << 20)).unwrap();
    let session = match fuse::mount(&cache, folder.path(), shown.path(), true) {
        Ok((session, _)) => session.spawn().unwrap(),
        Err(why) => return eprintln!("not tested: nothing can be mounted here: {why}"),
    };
    let at = |name: &str| shown.path().join(name);
    let mut bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 / 4096) as u8).collect();
    std::fs::write(at("a"), &bytes).unwrap();
    let file = std::fs::File::options().read(true).append(true).open(at("a")).unwrap();
    std::fs::create_dir(at("d")).unwrap();
    std::fs::rename(at("a"), at("d/b")).unwrap();
    std::io::Write::write_all(&mut &file, b"appended").unwrap();
    bytes.extend(b"appended");
    assert_eq!(file.metadata().unwrap().len(), bytes.len() as u64);
    assert!(std::fs::read(at("d/b")).unwrap() == bytes, "what was written is read");
    file.sync_all().unwrap();
    assert!(std::fs::read(folder.path().join("d/b")).unwrap() == bytes, "the folder has it");
    file.set_len(5000).unwrap();
    std::os::unix::fs::symlink("b", at("d/link")).unwrap();
    std::fs::hard_link(at("d/b"), at("c")).unwrap();
    std::fs::remove_file(at("d/b")).unwrap();
    assert_eq!(std::fs::read_link(at("d/link")).unwrap(), std::path::Path::new("b"));
    assert!(std::fs::read(at("c")).unwrap() == bytes[..5000], "it was cut");
    let names = std::fs::read_dir(shown.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["c", "d"]);
    assert_eq!(std::fs::read(at("none")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    std::fs::remove_dir(at("d")).unwrap_err();
    drop(file);
    session.umount_and_join().unwrap();
    assert!(std::fs::read(folder.path().join("c")).unwrap() == bytes[..5000]);
    assert_eq!(cache.stats().dirty_bytes, 0);
}

#[test]
fn threads_with_a_runtime_each_walk_through_a_file() {
    assert_eq!(thread_per_core::run(dir().path(), 500).unwrap(), 500 * 20);
}

#[test]
fn a_server_sends_ranges_from_where_they_are_cached() {
    let bytes = range_server::run(dir().path(), 1000).unwrap();
    assert!((1_000_000..20_000_000).contains(&bytes), "{bytes}");
}

#[test]
fn each_way_in_makes_hits() {
    let ways = "empty read get get-rc get-arc get-owned borrow optimistic pin try-read try-get \
                try-borrow read-async get-async empty-many empty-read-many read-many get-many \
                borrow-many read-2 borrow-2 write write-2";
    for way in ways.split_whitespace() {
        hits::make(way, 100);
    }
}

#[test]
fn opening_files_is_timed() {
    let rows = open::run(dir().path(), 3).unwrap();
    assert_eq!(rows.len(), 7);
}

#[test]
fn readme_names_each_example() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("../../README.md")).unwrap();
    let examples = std::fs::read_dir(root.join("examples")).unwrap();
    let names: Vec<_> = examples
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        let row = format!("| `{name}` |");
        assert!(readme.contains(&row), "README has no row for {name}");
    }
}
