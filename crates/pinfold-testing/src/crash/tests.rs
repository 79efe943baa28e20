//! Of the parts, and a short run.

use super::*;

#[test]
fn what_is_synced_survives() {
    let options = CrashOptions { seed: 1, seeds: 300, time: None, fault: None };
    let report = run(&options, |_| ()).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.seeds, 300);
    assert!(report.states > 5 * report.steps, "{report:?}");
}

#[test]
fn faults_of_a_source_are_found() {
    for fault in
        [DiskFault::SyncLies, DiskFault::WriteLost, DiskFault::WriteTorn, DiskFault::WriteMisplaced]
    {
        let options = CrashOptions { seed: 1, seeds: 1000, time: None, fault: Some(fault) };
        let failure = run(&options, |_| ()).expect_err("it was not noticed");
        println!("{fault:?}: {failure}");
        assert!(!failure.what.contains("a panic"), "{fault:?}: {failure}");
    }
}
