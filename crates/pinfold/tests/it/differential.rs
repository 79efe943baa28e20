//! Random operations against a plain vector: see `pinfold_testing::script`.
//!
//! proptest makes the scripts and shortens those that fail; `PROPTEST_CASES` runs more of them.

use pinfold_testing::script::{FILE_MAX_BYTES, Script, Step, replay};
use proptest::prelude::*;

/// Lengths at which something changes, and any.
fn length() -> impl Strategy<Value = u64> {
    let edges = vec![0, 1, 4095, 4096, 4097, 8192, 65_535, 65_537, (2 << 20) - 1, (2 << 20) + 1];
    prop_oneof![prop::sample::select(edges), 0..20_000u64, 0..FILE_MAX_BYTES]
}

/// Offsets: mostly in the file, some past it, some where numbers end.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..20_000u64,
        8 => 0..FILE_MAX_BYTES + 8192,
        2 => (0..FILE_MAX_BYTES / 4096).prop_map(|page| page * 4096),
        1 => (0..9000u64).prop_map(|below| i64::MAX as u64 - below),
        1 => Just(u64::MAX),
    ]
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..200u64, 0..20_000u64, 0..FILE_MAX_BYTES, Just(i64::MAX as u64)]
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..4u8;
    let read = prop_oneof![0..300u32, 0..20_000u32, 0..2_000_000u32];
    prop_oneof![
        8 => (which.clone(), offset(), read).prop_map(|(w, o, n)| Step::Read(w, o, n)),
        2 => (which.clone(), 512..300_000u32).prop_map(|(w, n)| Step::Scan(w, n)),
        3 => (which.clone(), offset(), bytes()).prop_map(|(w, o, n)| Step::Invalidate(w, o, n)),
        2 => (which.clone(), offset(), bytes(), 0..4u8)
            .prop_map(|(w, o, n, hint)| Step::Advise(w, o, n, hint)),
        2 => (which.clone(), offset(), bytes()).prop_map(|(w, o, n)| Step::Split(w, o, n)),
        2 => (which.clone(), offset(), bytes()).prop_map(|(w, o, n)| Step::Migrate(w, o, n)),
        1 => Just(Step::Compact),
        1 => which.clone().prop_map(Step::Reopen),
        2 => (which.clone(), length()).prop_map(|(w, n)| Step::Resize(w, n)),
        2 => (which, offset(), bytes()).prop_map(|(w, o, n)| Step::Rewrite(w, o, n)),
    ]
}

fn script() -> impl Strategy<Value = Script> {
    let lengths = prop::collection::vec(length(), 1..4);
    let steps = prop::collection::vec(step(), 1..60);
    (lengths, steps).prop_map(|(lengths, steps)| Script { lengths, steps })
}

/// On the file system of the build, so that real files are read directly.
fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_reads_like_a_plain_file(script in script()) {
        replay(&script, dir().path()).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn any_bytes_make_a_script(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        replay(&Script::from_bytes(&bytes), dir().path()).map_err(TestCaseError::fail)?;
    }
}

/// Found by the stress: a file is truncated inside a page, the cache is invalidated, the file grows
/// again, and another page is invalidated. The zeros past the first end must not be read.
#[test]
fn a_page_cut_in_the_middle_is_read_anew_when_the_file_grows() {
    let cut_and_grown = [
        Step::Read(0, 0, 9000),
        Step::Resize(0, 5000),
        Step::Invalidate(0, 0, 1),
        Step::Read(0, 4096, 4096),
        Step::Resize(0, 9000),
        Step::Invalidate(0, 0, 1),
        Step::Read(0, 4096, 4904),
    ];
    for lengths in [vec![9000], vec![0, 9000]] {
        let which = lengths.len() as u8 - 1;
        let steps = cut_and_grown.iter().map(|step| match *step {
            Step::Read(_, offset, bytes) => Step::Read(which, offset, bytes),
            Step::Resize(_, bytes) => Step::Resize(which, bytes),
            Step::Invalidate(_, offset, bytes) => Step::Invalidate(which, offset, bytes),
            ref other => other.clone(),
        });
        let script = Script { lengths, steps: steps.collect() };
        replay(&script, dir().path()).unwrap();
    }
}
