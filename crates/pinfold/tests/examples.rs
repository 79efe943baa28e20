//! Runs the examples that check for themselves what they read, with less to do.

#![cfg(not(loom))] // the model checker builds without the public types

#[path = "../examples/event_loop.rs"]
#[allow(dead_code, reason = "its `main` takes its arguments from the command line")]
mod event_loop;
#[path = "../examples/thread_per_core.rs"]
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
fn threads_with_a_runtime_each_walk_through_a_file() {
    assert_eq!(thread_per_core::run(dir().path(), 500).unwrap(), 500 * 20);
}
