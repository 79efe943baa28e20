//! The command as its users meet it.

use std::collections::BTreeSet;

use assert_cmd::Command;
use predicates::str::contains;
use serde_json::Value;

fn pinfold(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    command.args(args);
    command
}

fn json(args: &[&str]) -> Value {
    let output = pinfold(args).assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).expect("standard output is one JSON object")
}

/// One short sample of everything: the shape of the answer, nothing about speed.
fn shape(workers: &str) {
    let quick = ["bench", "ref", workers, "1,3", "--seconds", "0.01", "--runs", "2", "--json", "-"];
    let result = json(&quick);
    assert_eq!(result["bench"], "ref");
    assert!(result["machine"]["cores"].as_u64() >= Some(1));
    assert_ne!(result["machine"]["cpu"], "");
    let rows = result["rows"].as_array().unwrap();
    let engines: BTreeSet<_> = rows.iter().map(|row| row["engine"].as_str().unwrap()).collect();
    assert_eq!(engines, BTreeSet::from(["add", "cas", "assume-one", "frozen32", "frozen"]));
    assert_eq!(rows.len(), 10);
    for row in rows {
        assert_eq!((&row["case"], &row["metric"]), (&"get-put".into(), &"ops_per_s".into()));
        assert!([1, 3].contains(&row[&workers[2..]].as_u64().unwrap()));
        assert_eq!(row["samples"].as_array().unwrap().len(), 2);
        assert!(row["median"].as_f64() > Some(1000.0), "{row}");
    }
}

#[test]
fn bench_ref_with_threads() {
    shape("--threads");
}

#[test]
fn bench_ref_with_processes() {
    shape("--processes");
}

#[test]
fn a_table_for_people_and_a_file_for_programs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ref.json");
    pinfold(&["bench", "ref", "--threads", "1", "--seconds", "0.01", "--runs", "1"])
        .args(["--only", "cas,frozen", "--json"])
        .arg(&file)
        .assert()
        .success()
        .stdout(contains("boost %"));
    let result: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(result["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn bad_input_is_named() {
    let refused = |args: &[&str], why: &'static str| {
        pinfold(&["bench", "ref"]).args(args).assert().failure().stderr(contains(why));
    };
    refused(&["--threads", "0"], "the number of workers must be from 1 to 256");
    refused(&["--threads", "1000"], "1000 threads: the number of workers");
    refused(&["--threads", "many"], "invalid value 'many'");
    refused(&["--only", "fast"], "--only fast: no such engine; there are add, cas");
    refused(&["--runs", "0"], "--runs 0: at least one sample");
    refused(&["--seconds", "0"], "--seconds 0: must be above 0");
    refused(&["--seconds", "NaN"], "--seconds NaN: must be above 0");
    refused(
        &["--threads", "1", "--seconds", "0.01", "--runs", "1", "--json", "/no/such/place"],
        "cannot write /no/such/place",
    );
}
