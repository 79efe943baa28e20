//! The command as its users meet it.

use std::collections::BTreeSet;

use assert_cmd::Command;
use predicates::str::{contains, is_match};
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
    refused(&["--threads", "0"], "the number of workers must be from 1 to 512");
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

#[test]
fn a_benchmark_shows_only_the_workers_that_it_can_have() {
    for bench in ["ref", "read", "get", "miss", "batch", "fault", "evict", "pin", "write"] {
        let output = pinfold(&["bench", bench, "--help"]).assert().success().get_output().clone();
        let help = String::from_utf8(output.stdout).unwrap();
        for (option, refused) in [
            ("--processes", &["get", "miss", "batch", "fault", "evict", "pin", "write"][..]),
            ("--threads", &["evict", "pin"][..]),
        ] {
            let shown = help.contains(&format!("{option} <"));
            assert_eq!(shown, !refused.contains(&bench), "{bench} {option}: {help}");
            // Options that are not refused end with the engine, which does not exist.
            let run = pinfold(&["bench", bench, option, "3", "--only", "none"]).assert().failure();
            run.stderr(contains(if shown { "--only none" } else { option }));
        }
    }
}

fn rows_of<'a>(result: &'a Value, metric: &str) -> Vec<&'a Value> {
    result["rows"].as_array().unwrap().iter().filter(|row| row["metric"] == metric).collect()
}

fn engines_of(result: &Value, metric: &str) -> BTreeSet<String> {
    rows_of(result, metric).iter().map(|row| row["engine"].as_str().unwrap().to_owned()).collect()
}

const READ_ENGINES: [&str; 7] =
    ["empty", "memcpy", "pread", "mmap", "pinfold", "pinfold-counted", "pinfold-cas"];

fn read_shape(workers: &str) {
    let dir = tempfile::tempdir().unwrap();
    let quick =
        ["bench", "read", workers, "1,3", "--seconds", "0.01", "--runs", "2", "--json", "-"];
    let output = pinfold(&quick)
        .args(["--cases", "same-file,diff-files,random", "--blocks", "1,64,5000"])
        .args(["--file-bytes", "4K,64K", "--random-file-bytes", "1M", "--dir"])
        .arg(dir.path())
        .assert()
        .success();
    let result: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(result["bench"], "read");
    assert_eq!(result["params"]["dir"], dir.path().to_str().unwrap());
    assert_eq!(engines_of(&result, "ops_per_s"), READ_ENGINES.map(String::from).into());
    // Two cases of two files with 2 and 3 blocks that fit, one of one file with 3.
    let cells = (2 * 5 + 3) * 2 * READ_ENGINES.len();
    assert_eq!(rows_of(&result, "ops_per_s").len(), cells);
    assert_eq!(rows_of(&result, "mib_per_s").len(), cells);
    for row in rows_of(&result, "ops_per_s") {
        assert!(row["block_bytes"].as_u64() <= row["file_bytes"].as_u64(), "{row}");
        assert!([1, 3].contains(&row[&workers[2..]].as_u64().unwrap()));
        assert!(row["median"].as_f64() > Some(1000.0), "{row}");
    }
}

#[test]
fn bench_read_with_threads() {
    read_shape("--threads");
}

#[test]
fn bench_read_with_processes() {
    read_shape("--processes");
}

#[test]
fn bench_read_prints_the_seed_tables() {
    pinfold(&["bench", "read", "--seed-tables", "--threads", "1", "--seconds", "0.002"])
        .args(["--runs", "1"])
        .assert()
        .success()
        .stdout(contains("1 threads, files of 4 KiB, MiB/s"))
        .stdout(contains("1 threads, files of 1 MiB, MiB/s"))
        .stdout(contains("diff-files pinfold"))
        .stdout(contains("32 KiB"));
}

#[test]
fn bench_read_refuses_what_makes_no_sense() {
    let refused = |args: &[&str], why: &'static str| {
        let quick = ["--threads", "1", "--seconds", "0.01", "--runs", "1"];
        pinfold(&["bench", "read"]).args(quick).args(args).assert().failure().stderr(contains(why));
    };
    refused(&["--cases", "some"], "--cases some: no such case; there are same-file");
    refused(&["--blocks", "0"], "must be above 0");
    refused(&["--blocks", "8K", "--cases", "same-file"], "every block is longer than its file");
    refused(&["--dir", "/no/such/dir"], "cannot use the directory /no/such/dir");
    refused(&["--random-file-bytes", "8000G"], "and their copies need");
}

/// The engines of this build.
fn get_engines() -> BTreeSet<String> {
    let ours = [
        "empty",
        "memcpy",
        "memcpy-add",
        "pinfold-borrow",
        "pinfold-borrow-2M",
        "pinfold-get",
        "pinfold-cas",
    ];
    let peers = ["moka", "quick_cache", "foyer", "hyperclock"];
    let there = ours.iter().chain(peers.iter().filter(|_| cfg!(feature = "peers")));
    there.map(|&name| name.to_owned()).collect()
}

#[test]
fn bench_get_gives_a_row_for_everything() {
    let quick = ["--file-bytes", "4M", "--threads", "1,3", "--seconds", "0.01", "--runs", "2"];
    let args: Vec<&str> = ["bench", "get", "--json", "-"].into_iter().chain(quick).collect();
    let result = json(&args);
    assert_eq!(result["bench"], "get");
    assert_eq!(result["params"]["skew"], 0.9);
    assert_eq!(engines_of(&result, "ops_per_s"), get_engines());
    let left_out = result["params"]["not_in_this_build"].as_array().unwrap().len();
    assert_eq!(left_out + get_engines().len(), 7 + 4);
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * get_engines().len());
    let keys = BTreeSet::from([
        "engine",
        "case",
        "threads",
        "block_bytes",
        "file_bytes",
        "metric",
        "samples",
        "median",
        "mean",
        "stddev",
    ]);
    for row in rows {
        assert_eq!(
            row.as_object().unwrap().keys().map(String::as_str).collect::<BTreeSet<_>>(),
            keys
        );
        assert!(["same-page", "zipf"].contains(&row["case"].as_str().unwrap()));
        assert!([1, 3].contains(&row["threads"].as_u64().unwrap()));
        assert_eq!((&row["block_bytes"], &row["file_bytes"]), (&64.into(), &(4 << 20).into()));
        assert_eq!(row["samples"].as_array().unwrap().len(), 2);
        assert!(row["median"].as_f64() > Some(1000.0), "{row}");
    }
}

#[test]
fn bench_get_fits_a_terminal_and_says_what_it_lacks() {
    let args = ["bench", "get", "--file-bytes", "1M", "--seconds", "0.002", "--runs", "1"];
    let shown = pinfold(&args).args(["--threads", "1,2,3,4,5,6"]).assert().success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    let tables = shown.lines().filter(|line| !line.starts_with("Not in this build"));
    for line in tables {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(shown.contains("zipf: a page of 1 MiB, skew 0.9"), "{shown}");
    assert!(shown.contains("pinfold-get/pinfold-cas"), "{shown}");
    assert_eq!(shown.contains("pinfold-get/best peer"), cfg!(feature = "peers"), "{shown}");
    let lacks = "Not in this build: moka, quick_cache, foyer, hyperclock; \
                 try `cargo run --release --features peers -- bench get`";
    assert_eq!(shown.contains(lacks), !cfg!(feature = "peers"), "{shown}");
}

#[test]
fn bench_get_refuses_what_makes_no_sense() {
    let refused = |args: &[&str], why: &'static str| {
        pinfold(&["bench", "get"]).args(args).assert().failure().stderr(contains(why));
    };
    refused(&["--file-bytes", "5000"], "--file-bytes 4.9 KiB: must be a multiple of 4 KiB");
    refused(&["--file-bytes", "512G"], "--file-bytes 512 GiB: at most 256 GiB");
    refused(&["--file-bytes", "200G"], "choose a smaller --file-bytes, or engines with --only");
    refused(&["--skew", "NaN"], "--skew NaN: must be a number from 0 up");
    refused(&["--cases", "scan"], "--cases scan: no such case; there are same-page, zipf");
    refused(&["--processes", "2"], "--processes: this benchmark has threads only");
    refused(&["--dir", "/no/such/dir"], "cannot use the directory /no/such/dir");
    refused(
        &["--only", "lru"],
        "--only lru: no such engine; there are empty, memcpy, memcpy-add, pinfold-borrow",
    );
    if !cfg!(feature = "peers") {
        refused(&["--only", "moka"], "--only moka: not in this build; try `cargo run --release");
    }
}

/// A directory on a disk for test files: the build's own, as the one for temporary files may be in
/// memory.
fn on_disk() -> &'static str {
    env!("CARGO_TARGET_TMPDIR")
}

#[test]
fn bench_miss_gives_a_row_for_everything() {
    let result = json(&[
        "bench",
        "miss",
        "--threads",
        "1,3",
        "--seconds",
        "0.02",
        "--warm-up",
        "0.05",
        "--runs",
        "1",
        "--file-bytes",
        "32M",
        "--budget",
        "4M",
        "--dir",
        on_disk(),
        "--json",
        "-",
    ]);
    let all = ["direct-deep", "pread-direct", "pread", "mmap", "pinfold"].map(String::from);
    assert_eq!(engines_of(&result, "ops_per_s"), all.into());
    // One engine is for scans only.
    assert_eq!(rows_of(&result, "ops_per_s").len(), 2 * (4 + 4 + 5));
    assert_eq!(rows_of(&result, "mib_per_s").len(), 2 * 5);
    assert!(rows_of(&result, "mib_per_s").iter().all(|row| row["case"] == "scan"));
    for row in rows_of(&result, "hit_ratio") {
        assert!((0.0..=1.0).contains(&row["median"].as_f64().unwrap()), "{row}");
        if row["engine"] == "pinfold" && row["case"] == "random" {
            // An eighth of the file fits.
            assert!(row["median"].as_f64() < Some(0.25), "{row}");
        }
    }
    assert!(engines_of(&result, "hit_ratio").contains("pinfold"));
    let limits = ["cgroup v1", "cgroup v2", "not limited"];
    assert!(
        rows_of(&result, "ops_per_s")
            .iter()
            .all(|row| limits.contains(&row["limit"].as_str().unwrap()))
    );
    let metadata = result["params"]["metadata_percent"].as_f64().unwrap();
    assert!(metadata > 0.0 && metadata < 100.0, "{metadata}");
}

#[test]
fn bench_miss_refuses_what_makes_no_sense() {
    let refused = |args: &[&str], why: &'static str| {
        pinfold(&["bench", "miss"]).args(args).assert().failure().stderr(contains(why));
    };
    refused(&["--file-bytes", "64M"], "nothing is missed unless it is larger than --budget");
    refused(&["--file-bytes", "1000000000"], "must be a multiple of 4 KiB");
    refused(&["--direct-scan-block", "2G"], "no longer than the file");
    refused(&["--processes", "2"], "has threads only");
    refused(&["--skew", "NaN"], "--skew NaN");
    refused(&["--dir", "/proc"], "cannot write a file of 4 KiB in /proc");
    refused(
        &["--dir", "/dev/shm"],
        "/dev/shm (tmpfs) does not support direct I/O; choose a directory",
    );
    refused(
        &["--budget", "64K", "--file-bytes", "2M", "--only", "pinfold", "--dir", on_disk()],
        "a budget of 65536 bytes: it must be from",
    );
}

const WRITE_SMALL: [&str; 12] = [
    "bench",
    "write",
    "--memory-bytes",
    "16M",
    "--bytes",
    "2M",
    "--seconds",
    "0.01",
    "--runs",
    "2",
    "--dir",
    env!("CARGO_TARGET_TMPDIR"),
];

#[test]
fn bench_write_gives_a_row_for_everything() {
    let result = json(&[&WRITE_SMALL[..], &["--threads", "1,3", "--json", "-"]].concat());
    assert_eq!(result["bench"], "write");
    let rows = |case: &str, metric| {
        let rows = rows_of(&result, metric).into_iter();
        rows.filter(|row| row["case"] == case).cloned().collect::<Vec<_>>()
    };
    let keys = ["case", "engine", "threads", "block_bytes", "pages", "writer"];
    let cells: BTreeSet<_> = result["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| format!("{:?} {}", keys.map(|key| &row[key]), row["metric"]))
        .collect();
    assert_eq!(cells.len(), result["rows"].as_array().unwrap().len(), "{cells:?}");
    // Engines; of one page and of random ones; numbers of threads.
    assert_eq!(rows("overwrite", "ops_per_s").len(), 5 * 2 * 2);
    assert_eq!(rows("sync-each", "ops_per_s").len(), 4 * 2);
    // The limit has no short pieces.
    assert_eq!(rows("append", "mib_per_s").len(), 4 + 3);
    assert_eq!(rows("random", "mib_per_s").len(), 4);
    assert_eq!(rows("mixed", "ops_per_s").len(), 3 * 2 * 2);
    assert_eq!(rows("mixed", "p99_ns").len(), 3 * 2 * 2);
    assert_eq!(rows("mixed", "written_mib_per_s").len(), 3 * 2);
    for row in result["rows"].as_array().unwrap() {
        assert_eq!(row["samples"].as_array().unwrap().len(), 2);
        assert!(row["median"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn bench_write_prints_a_table_for_each_case() {
    let output = pinfold(&WRITE_SMALL).args(["--threads", "2"]).assert().success();
    let shown = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    for title in [
        "overwrite, 64 B of one page, writes per second",
        "overwrite, 64 B of random pages of 2 MiB, writes per second",
        "append, 2 MiB by 64 KiB and one sync, MiB/s",
        "append, 2 MiB by 100 B and one sync, MiB/s",
        "sync-each, 4 KiB of 2 MiB and a sync each, writes per second",
        "random, 2 MiB by 4 KiB of 64 MiB and one sync, MiB/s",
        "mixed, reads per second of 64 B of 1 MiB",
        "memcpy-store/pinfold",
        "pwrite-direct/pinfold",
        "2 pinfold",
    ] {
        assert!(shown.contains(title), "{title}: {shown}");
    }
}

#[test]
fn bench_write_refuses_what_makes_no_sense() {
    let refused = |args: &[&str], why: &'static str| {
        pinfold(&["bench", "write"]).args(args).assert().failure().stderr(contains(why));
    };
    refused(&["--cases", "scan"], "--cases scan: no such case; there are overwrite, append");
    refused(&["--only", "read"], "--only read: no such engine; there are empty, memcpy-store");
    refused(&["--cases", "mixed", "--only", "empty"], "no case has these engines");
    refused(&["--memory-bytes", "1M"], "--memory-bytes 1 MiB: must be a multiple of 1 MiB, from");
    refused(&["--bytes", "1000"], "--bytes 1000 B: must be a multiple of 1 MiB");
    refused(&["--bytes", "1G"], "longer than the file of random, 512 MiB");
    refused(&["--threads", "65"], "--threads 65: overwrite has 64 at most");
    refused(&["--processes", "2"], "has threads only");
    refused(&["--dir", "/dev/shm"], "/dev/shm (tmpfs) does not support direct I/O");
}

const BATCH_IN_MEMORY: [&str; 12] = [
    "empty",
    "memcpy",
    "memcpy-prefetch",
    "mmap",
    "pinfold-read",
    "pinfold-read-many",
    "pinfold-read-async",
    "pinfold-get",
    "pinfold-get-many",
    "pinfold-get-async",
    "pinfold-borrow",
    "pinfold-borrow-many",
];
const BATCH_LIMITED: [&str; 8] = [
    "ring-direct",
    "mmap",
    "pread",
    "pread-fadvise",
    "pinfold-get",
    "pinfold-prefetch",
    "pinfold-many",
    "pinfold-async",
];

/// What a row is of, its metric apart.
fn cell_of(row: &Value) -> (String, String, u64, u64) {
    let text = |key: &str| row[key].as_str().unwrap().to_owned();
    let number = |key: &str| row[key].as_u64().unwrap();
    (text("case"), text("engine"), number("threads"), number("batch"))
}

/// Every engine in every case with every number of threads and every batch.
fn batch_cells(cases: [&str; 2], engines: &[&str]) -> BTreeSet<(String, String, u64, u64)> {
    let mut cells = BTreeSet::new();
    for case in cases {
        for engine in engines {
            for (threads, batch) in [(1, 1), (1, 8), (3, 1), (3, 8)] {
                cells.insert((case.to_owned(), (*engine).to_owned(), threads, batch));
            }
        }
    }
    cells
}

#[test]
fn bench_batch_gives_a_row_for_everything() {
    // Long enough that a hit ratio is one of many batches, on a busy machine, too.
    let quick = ["--threads", "1,3", "--seconds", "0.2", "--warm-up", "0.05", "--runs", "1"];
    let small = ["--file-bytes", "32M", "--budget", "4M", "--dir", on_disk()];
    let asked = ["--batches", "1,8", "--in-flight", "40"];
    let arguments = [&["bench", "batch", "--json", "-"], &quick[..], &small[..], &asked[..]];
    let mut result = json(&arguments.concat());
    assert_eq!(result["bench"], "batch");
    let in_flight = in_flight_of(&mut result);
    let rows = result["rows"].as_array().unwrap();
    let ring = rows.iter().any(|row| row["engine"] == "ring-direct");
    // Some systems do not let it have a ring.
    let limited_engines = if ring { &BATCH_LIMITED[..] } else { &BATCH_LIMITED[1..] };
    let in_memory = batch_cells(["memory", "memory-4K"], &BATCH_IN_MEMORY);
    let limited = batch_cells(["graph", "random"], limited_engines);
    let cells = |metric, with_limit: bool| {
        let rows = rows_of(&result, metric).into_iter();
        let rows: Vec<_> =
            rows.filter(|row| (row["engine"] == "limit") == with_limit).map(cell_of).collect();
        let cells: BTreeSet<_> = rows.iter().cloned().collect();
        assert_eq!(rows.len(), cells.len() * if with_limit { 4 } else { 1 }, "{metric}");
        cells
    };
    assert_eq!(cells("ops_per_s", false), in_memory.union(&limited).cloned().collect());
    assert_eq!(cells("p99_ns", false), limited);
    // The kernel need not count what it reads from storage; the cache does.
    let hits = cells("hit_ratio", false);
    let cached = batch_cells(["graph", "random"], &BATCH_LIMITED[4..]);
    assert!(hits.is_superset(&cached) && hits.is_subset(&limited), "{hits:?}");
    let limits = if ring { batch_cells(["graph", "random"], &["limit"]) } else { BTreeSet::new() };
    assert_eq!(cells("ops_per_s", true), limits);
    for row in rows {
        assert_eq!(row["file_bytes"], 32 << 20);
        let block = if row["case"].as_str().unwrap().starts_with("memory") { 64 } else { 4096 };
        assert_eq!(row["block_bytes"], block);
        let median = row["median"].as_f64().unwrap();
        match row["metric"].as_str().unwrap() {
            "hit_ratio" => {
                // An eighth of the file fits. The kernel may use what the process does not need.
                let cached = row["engine"].as_str().unwrap().starts_with("pinfold");
                let most = if cached { 0.25 } else { 1.0 };
                assert!((0.0..=most).contains(&median), "{row}");
            }
            _ => assert!(median > 10.0, "{row}"),
        }
    }
    let known = ["cgroup v1", "cgroup v2", "not limited"];
    assert!(known.contains(&result["params"]["limited"]["limit"].as_str().unwrap()));
    let mut expected = vec![];
    for threads in [1, 3] {
        let mut of = |engine: &str, metrics: &[&str]| {
            expected.extend(
                metrics.iter().map(|metric| (threads, engine.to_owned(), (*metric).to_owned())),
            );
        };
        of("pinfold-async", &["ops_per_s", "p99_ns", "hit_ratio"]);
        if ring {
            of("ring-direct", &["ops_per_s", "p99_ns"]);
            of("limit", &["ops_per_s"]);
        }
    }
    expected.sort();
    let mut cells: Vec<_> = in_flight
        .iter()
        .map(|row| {
            assert_eq!((&row["case"], &row["in_flight"]), (&"random".into(), &40.into()));
            let text = |key: &str| row[key].as_str().unwrap().to_owned();
            (row["threads"].as_u64().unwrap(), text("engine"), text("metric"))
        })
        .collect();
    cells.sort();
    assert_eq!(cells, expected);
}

/// Takes out the rows of single pages in flight.
fn in_flight_of(result: &mut Value) -> Vec<Value> {
    let rows = result["rows"].as_array_mut().unwrap();
    let (in_flight, rest) =
        std::mem::take(rows).into_iter().partition(|row| row["in_flight"].is_u64());
    *rows = rest;
    in_flight
}

#[test]
fn bench_batch_fits_a_terminal_and_says_what_is_beside_what() {
    let shown = pinfold(&["bench", "batch", "--seconds", "0.005", "--warm-up", "0", "--runs", "1"])
        .args(["--file-bytes", "8M", "--budget", "2M", "--cases", "memory,graph,random", "--dir"])
        .arg(on_disk())
        .assert()
        .success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    let tables = shown.lines().filter(|line| line.contains('─') || line.contains('±'));
    for line in tables {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for part in [
        "memory, 1 threads: 64 B of 8 MiB, reads per second",
        " read-many/read ",
        " read-many/memcpy ",
        " get-many/get ",
        " borrow-many/borrow ",
        "graph: batches of 8 pages of 4 KiB, pages per second",
        "graph: what 99 of 100 batches of 8 take at most, ns",
        " many/pread-fadvise ",
        "random: single pages of 4 KiB, 256 in flight, pages per second",
        "random: what 99 of 100 pages, 256 in flight, take at most, ns",
        "hits pinfold-many ",
    ] {
        assert!(shown.contains(part), "no {part:?} in:\n{shown}");
    }
    for ratio in [" many/limit ", " async/limit "] {
        assert_eq!(shown.contains(ratio), !shown.contains("ring-direct is left out"));
    }
}

#[test]
fn bench_batch_refuses_what_makes_no_sense() {
    let refused = |args: &[&str], why: &'static str| {
        pinfold(&["bench", "batch"]).args(args).assert().failure().stderr(contains(why));
    };
    refused(&["--batches", "0"], "--batches 0: must be from 1 to 256");
    refused(&["--batches", "8,257"], "--batches 257: must be from 1 to 256");
    refused(&["--in-flight", "0"], "--in-flight 0: must be from 1 to 1024");
    refused(&["--file-bytes", "5000"], "--file-bytes 4.9 KiB: must be a multiple of 4 KiB");
    refused(&["--file-bytes", "64M"], "nothing is missed unless it is larger than --budget");
    refused(&["--file-bytes", "8000G", "--cases", "memory"], "choose a smaller --file-bytes");
    refused(&["--cases", "scan"], "--cases scan: no such case; there are memory, memory-4K, graph");
    refused(&["--only", "pwrite"], "--only pwrite: no such engine; there are empty, memcpy");
    refused(&["--cases", "memory", "--only", "pread"], "nothing to measure: no such engine");
    refused(&["--warm-up", "NaN"], "--warm-up NaN: must be from 0 to 3600");
    refused(&["--processes", "2"], "--processes: this benchmark has threads only");
    refused(&["--dir", "/proc"], "cannot write a file of 4 KiB in /proc");
    let nowhere = ["--file-bytes", "1M", "--cases", "memory", "--memory-dir", "/no/such/dir"];
    refused(&nowhere, "cannot use the directory /no/such/dir");
    let quick = ["--file-bytes", "2M", "--cases", "graph", "--only", "pinfold-many"];
    let tiny = [&quick[..], &["--budget", "64K", "--dir", on_disk()]].concat();
    refused(&tiny, "a budget of 65536 bytes: it must be from");
}

/// The engines of a case of `fault`, those that need userfaultfd and others.
fn fault_engines(case: &str) -> (Vec<String>, Vec<String>) {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let pinfold = names(&["pinfold"]);
    match case {
        "install" => {
            let ways = [("continue", &[1, 16, 128, 512][..]), ("copy", &[1, 16, 128])];
            let ways = ways.into_iter().chain([("move", &[1, 16, 128][..])]);
            let of = |(way, runs): (&str, &[u32])| {
                runs.iter().map(|run| format!("{way}-{run}")).collect::<Vec<_>>()
            };
            let served = names(&["native-missing"]).into_iter().chain(ways.flat_map(of)).collect();
            (served, names(&["mapped", "native"]))
        }
        "fill" => (Vec::new(), names(&["read", "alias", "write", "copy"])),
        "evict" => (Vec::new(), names(&["zap", "punch", "punch-unmapped"])),
        "warm" => (pinfold, names(&["mapped", "kernel-mmap"])),
        "thrash-holes" | "swap" => (pinfold, names(&["kernel-mmap"])),
        _ => (pinfold, names(&["pread-direct", "kernel-mmap"])),
    }
}

/// Spaces need a budget of 8 MiB: an eighth of what is read.
const FAULT_SMALL: [&str; 18] = [
    "--seconds",
    "0.02",
    "--runs",
    "1",
    "--warm-up",
    "0.05",
    "--memory-bytes",
    "4M",
    "--file-bytes",
    "64M",
    "--swap-bytes",
    "16M",
    "--thread-bytes",
    "32M",
    "--maps",
    "2",
    "--json",
    "-",
];

#[test]
fn bench_fault_gives_a_row_for_everything() {
    let arguments = ["bench", "fault", "--threads", "2,3", "--dir", on_disk()];
    let result = json(&[&arguments[..], &FAULT_SMALL[..]].concat());
    assert_eq!(result["bench"], "fault");
    let left_out: Vec<_> = result["params"]["left_out"].as_array().unwrap().iter().collect();
    let is_left_out = |case: &str, engine: &str| {
        let of_case = |line: &str| case == "swap" || !line.starts_with("Left out of swap");
        left_out
            .iter()
            .any(|line| line.as_str().is_some_and(|it| of_case(it) && it.contains(engine)))
    };
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or("-").to_owned();
    let (orders, runs) = (["sequential", "random"].map(Some), [1, 8, 64].map(Some));
    let mut expected = BTreeSet::new();
    for (case, metrics, orders, runs) in [
        ("install", &["ns_per_page"][..], &orders[..], &[None][..]),
        ("fill", &["cpu_ns_per_page", "ns_per_page"], &[None], &runs),
        ("evict", &["ns_per_page"], &[None], &runs),
        ("warm", &["ns_per_page"], &orders, &[None]),
        ("random", &["ops_per_s", "p99_us"], &[None], &[None]),
        ("zipf", &["ops_per_s", "p99_us"], &[None], &[None]),
        ("thrash", &["rounds_per_s", "slowest_over_mean"], &[None], &[None]),
        ("thrash-holes", &["rounds_per_s", "slowest_over_mean"], &[None], &[None]),
        ("startup", &["rounds_per_s"], &[None], &[None]),
        ("swap", &["rounds_per_s", "slowest_over_mean", "pageout_rounds_per_s"], &[None], &[None]),
    ] {
        let (served, others) = fault_engines(case);
        for engine in served.into_iter().chain(others) {
            // What this system does not let run is named.
            if is_left_out(case, &engine) {
                continue;
            }
            let one = [("vma", "drop")];
            let all = [("vma", "drop"), ("vma", "hold"), ("space", "drop"), ("space", "hold")];
            let policies = match case {
                _ if engine != "pinfold" => &[("-", "-")][..],
                "warm" | "random" | "zipf" => &one,
                _ => &all,
            };
            for threads in if case == "fill" { vec![1] } else { vec![2, 3] } {
                for (lock, io) in policies {
                    for order in orders {
                        for run in runs {
                            for metric in metrics {
                                expected.insert((
                                    [case, &engine, lock, io, order.unwrap_or("-"), metric]
                                        .map(str::to_owned),
                                    threads,
                                    run.unwrap_or(0),
                                ));
                            }
                        }
                    }
                }
            }
        }
    }
    let keys = ["case", "engine", "lock", "io", "order", "metric"];
    let metrics: BTreeSet<_> = expected.iter().map(|(texts, ..)| texts[5].clone()).collect();
    let rows = result["rows"].as_array().unwrap();
    let of_metrics = rows.iter().filter(|row| metrics.contains(&text(row, "metric")));
    let found: Vec<_> = of_metrics
        .map(|row| {
            let run = row["pages"].as_u64().unwrap_or(0);
            (keys.map(|key| text(row, key)), row["threads"].as_u64().unwrap(), run)
        })
        .collect();
    assert_eq!(found.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(found.len(), expected.len(), "one row for each");
    for row in rows {
        let (metric, median) = (text(row, "metric"), row["median"].as_f64().unwrap());
        let limited = !["install", "fill", "evict", "warm"].contains(&&*text(row, "case"));
        assert_eq!(row["limit"].is_string() && row["budget_bytes"].is_u64(), limited, "{row}");
        match &*metric {
            "ns_per_page" | "cpu_ns_per_page" | "ops_per_s" | "p99_us" => {
                assert!(median > 0.1, "{row}");
            }
            "slowest_over_mean" => assert!((0.0..=1.0).contains(&median), "{row}"),
            "retry_io_miss" => assert!((0.0..=100.0).contains(&median), "{row}"),
            _ => {} // numbers of events and of rounds, of which there may be none
        }
        // A start is over when all of it was touched.
        assert!(text(row, "case") != "startup" || metric != "rounds_per_s" || median > 0.0);
        if metric == "faults" {
            assert!(median >= 1.0, "nothing was cached: {row}");
        }
        if metric == "retry_space_lock" && row["lock"] == "vma" {
            assert_eq!(row["median"], 0.0, "{row}");
        }
    }
}

#[test]
fn bench_fault_fits_a_terminal_and_says_what_is_beside_what() {
    let cases = ["--cases", "install,fill,evict,warm,thrash,startup", "--threads", "2"];
    let shown = pinfold(&["bench", "fault", "--dir", on_disk()])
        .args(cases)
        .args(&FAULT_SMALL[..16])
        .assert()
        .success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    for line in shown.lines().filter(|line| line.contains('─') || line.contains('±')) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for part in [
        "install, sequential: touch 4 MiB that are in memory, ns a page (ratio: to native)",
        "install, random: ",
        "fill: pages from storage into memory, processor time, ns a page (ratio: to read)",
        "evict, 2 threads: mapped pages are taken away, ns a page (ratio: to punch)",
        "warm, random: touch 4 MiB that are cached, ns a page (ratio: to kernel-mmap)",
        "thrash, 2 threads: 64 MiB in all, 8 MiB for them",
        " slowest/mean ",
        "startup, 2 threads: 2 MiB in all, ",
        " writer's longest, us ",
    ] {
        assert!(shown.contains(part), "no {part:?} in:\n{shown}");
    }
    let spaces = !shown.contains("Left out: pinfold");
    for part in ["vma/space, drop: ", "vma/space, hold: ", " found evicted, % "] {
        assert_eq!(shown.contains(part), spaces, "{part:?} in:\n{shown}");
    }
}

#[test]
fn bench_fault_refuses_what_makes_no_sense() {
    let refused = |args: &[&str], why: &'static str| {
        pinfold(&["bench", "fault"]).args(args).assert().failure().stderr(contains(why));
    };
    refused(&["--cases", "swim"], "--cases swim: no such case; there are install, fill, evict");
    refused(&["--only", "pread"], "--only pread: no such engine; there are mapped, native");
    refused(&["--cases", "fill", "--only", "pinfold"], "nothing to measure: no such engine");
    refused(&["--lock", "file"], "--lock file: no such lock; there are vma, space");
    refused(&["--io", "wait"], "--io wait: no such policy; there are drop, hold");
    refused(&["--memory-bytes", "4K"], "--memory-bytes 4 KiB: must be a multiple of 256 KiB");
    refused(&["--file-bytes", "4K"], "--file-bytes 4 KiB: must be a multiple of 32 KiB");
    refused(&["--thread-bytes", "100"], "--thread-bytes 100 B: must be a multiple of 4 KiB");
    refused(&["--handlers", "65"], "--handlers 65: must be from 0 to 64");
    refused(&["--maps", "0"], "--maps 0: must be from 1 to 16384");
    refused(&["--ratio", "0"], "--ratio 0: must be from 1 to 4096");
    refused(&["--warm-up", "NaN"], "--warm-up NaN: must be from 0 to 3600");
    refused(&["--processes", "2"], "has threads only");
    refused(&["--memory-bytes", "8000G", "--cases", "install"], "choose a smaller --memory-bytes");
    refused(&["--dir", "/dev/shm", "--cases", "random"], "does not support direct I/O; choose");
}

/// Has the system refuse userfaultfd(2) to the command, as the seccomp profiles of containers do.
fn without_userfaultfd(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;

    let step = |code: u32, jump_true, jump_false, k| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k,
    };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let (load, is) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ);
    let give = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        // The number of the system call is what the filter's input begins with.
        step(load, 0, 0, 0),
        step(is | libc::BPF_K, 3, 0, libc::SYS_userfaultfd as u32),
        step(is | libc::BPF_K, 0, 3, libc::SYS_ioctl as u32),
        // The second argument: whether it is the ioctl of /dev/userfaultfd.
        step(load, 0, 0, 24),
        step(is | libc::BPF_K, 0, 1, 0xaa00),
        step(give, 0, 0, refuse),
        step(give, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the arguments are those of the call.
        let kept = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: the program is valid while the call reads it.
        let set = unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        if kept == 0 && set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(install) };
}

#[test]
fn bench_fault_says_what_to_do_where_userfaultfd_is_refused() {
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pinfold"));
        without_userfaultfd(command.args(["bench", "fault", "--threads", "1"]).args(args));
        Command::from_std(command).args(&FAULT_SMALL[..16]).args(["--dir", on_disk()]).assert()
    };
    let why = "userfaultfd(2) is refused (Operation not permitted (os error 1)): a seccomp filter";
    let shown = run(&["--cases", "install,warm"]).success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    assert!(shown.contains(" native ") && shown.contains(" kernel-mmap "), "{shown}");
    assert!(shown.contains("\nLeft out: native-missing, continue-1, ") && shown.contains(why));
    assert!(shown.contains("\nLeft out: pinfold: "), "{shown}");
    assert!(!shown.lines().any(|line| line.trim_start().starts_with("pinfold")), "{shown}");
    run(&["--cases", "install", "--only", "move-16"])
        .failure()
        .stderr(contains(format!("error: move-16: {why}")));
    run(&["--cases", "warm", "--only", "pinfold"]).failure().stderr(contains("error: pinfold: "));
}

fn file_of(bytes: usize) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir_in(on_disk()).unwrap();
    let path = dir.path().join("file");
    let contents: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    std::fs::write(&path, contents).unwrap();
    (dir, path.to_str().unwrap().to_owned())
}

#[test]
fn try_checks_every_byte_of_a_file() {
    let (_dir, path) = file_of(5_000_001);
    let result = json(&["try", &path, "--budget", "2M", "--seconds", "0.01", "--json", "-"]);
    assert_eq!(result["file_bytes"], 5_000_001);
    assert_eq!(result["checked"]["whole_bytes"], 5_000_001);
    assert!(result["checked"]["random_reads"].as_u64() > Some(1000));
    let cache = &result["cache"];
    assert_eq!(cache["budget_bytes"], 2 << 20);
    assert!(cache["misses"].as_u64() > Some(0));
    assert!(cache["evicted_bytes"].as_u64() > Some(2 << 20));
    let used =
        cache["resident_bytes"].as_u64().unwrap() + cache["metadata_bytes"].as_u64().unwrap();
    assert!(used <= 2 << 20, "{used}");
    for figure in ["front_to_back_mib_per_s", "random_64_per_s", "random_4096_per_s"] {
        let rates = result[figure].as_array().unwrap();
        assert!(rates.len() == 3 && rates.iter().all(|rate| rate.as_f64() > Some(0.0)), "{result}");
    }
}

/// Each number with what it counts.
const HITS: &str = "hits: [0-9]+ reads without a reference and [0-9]+ folios with one; \
                    misses: [0-9]+ folios; read ahead: [0-9]+ folios; evicted: [0-9]";

#[test]
fn try_without_a_file_writes_one_and_leaves_nothing() {
    let dir = tempfile::tempdir_in(on_disk()).unwrap();
    pinfold(&["try", "--file-bytes", "16M", "--seconds", "0.01", "--dir"])
        .arg(dir.path())
        .assert()
        .success()
        .stdout(contains("16 MiB), through a cache of 4 MiB"))
        .stdout(contains("every byte as by plain reads"))
        .stdout(is_match(HITS).unwrap())
        .stdout(is_match("pinfold/pread +pinfold/mmap").unwrap())
        .stdout(contains("front to back from the file, MiB/s"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn try_of_a_tiny_file_works() {
    let (_dir, path) = file_of(10);
    pinfold(&["try", &path, "--seconds", "0.01"])
        .assert()
        .success()
        .stdout(contains("10 B), through a cache of 1 MiB"));
}

#[test]
fn try_names_what_is_wrong() {
    let refused = |args: &[&str], why: &str| {
        pinfold(&["try"]).args(args).assert().failure().stderr(contains(why.to_owned()));
    };
    refused(&["/no/such/file"], "error: cannot open /no/such/file: No such file");
    refused(&["/proc"], "cannot open /proc: it is a directory");
    refused(&["/dev/null"], "cannot open /dev/null: it is");
    let (_dir, empty) = file_of(0);
    refused(&[&empty], "is empty: there is nothing to read");
    let (_dir, path) = file_of(10_000);
    refused(&[&path, "--budget", "64K"], "a budget of 65536 bytes: it must be from 1048576 to");
    refused(&[&path, "--budget", "lots"], "a size is a number of bytes");
    refused(&[&path, "--seconds", "0"], "--seconds 0: must be above 0");
    refused(&[&path, "--seconds", "-1"], "--seconds -1: must be above 0");
}

/// Users set `RUST_BACKTRACE` for their own programs; the stack says nothing about a missing file.
/// A command whose output is not wanted any more, and what it ends with.
fn into(out: std::fs::File, error: std::fs::File, args: &[&str]) -> Option<i32> {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pinfold"));
    let ended = command.args(args).stdin(std::process::Stdio::null()).stdout(out).stderr(error);
    ended.status().unwrap().code()
}

/// The writer's end of a pipe that nobody reads.
fn unread() -> std::fs::File {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    std::os::fd::OwnedFd::from(writer).into()
}

#[test]
fn output_that_cannot_be_written_is_no_panic() {
    let (_dir, path) = file_of(5000);
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let sim = ["sim", "zipf", "--pages", "100", "--requests", "1000", "--json", "-"];
    let bench = ["bench", "ref", "--threads", "1", "--seconds", "0.01", "--runs", "1"];
    for args in [&["try", &path][..], &sim, &bench, &["--help"]] {
        // Nobody wants the rest: that is no error.
        assert_eq!(into(unread(), unread(), args), Some(0), "{args:?}");
        let ended = into(full(), full(), args);
        // clap says nothing of help that cannot be written.
        let right = i32::from(args != ["--help"]);
        assert_eq!(ended, Some(right), "{args:?}");
    }
    // An error, of which nobody wants to hear.
    for error in [unread(), full()] {
        assert_eq!(into(unread(), error, &["try", "/nonexistent"]), Some(1));
    }
}

#[test]
fn an_error_is_one_line() {
    let of = |args: &[&str]| {
        let failed = pinfold(args).env("RUST_BACKTRACE", "1").assert().code(1);
        String::from_utf8(failed.get_output().stderr.clone()).unwrap()
    };
    let missing = "No such file or directory (os error 2)";
    let tried = of(&["try", "/no/such/file"]);
    assert_eq!(tried, format!("error: cannot open /no/such/file: {missing}\n"));
    let replayed = of(&["sim", "/no/such/trace"]);
    let generators = "the generators are zipf, zipf-scan, loop, oltp";
    let said = format!("error: cannot read trace /no/such/trace: {missing} ({generators})\n");
    assert_eq!(replayed, said);
}

#[test]
fn a_json_file_that_cannot_be_written_is_refused_before_measuring() {
    let (_dir, path) = file_of(10_000);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    for (json, why) in [("/no/such/dir/x", "No such file"), (dir, "Is a directory")] {
        for args in [&["try", &path][..], &["bench", "ref", "--seconds", "0.01"], &["sim", "loop"]]
        {
            let refused = pinfold(args).args(["--json", json]).assert().code(1).stdout("");
            refused.stderr(contains(format!("error: cannot write {json}: {why}")));
        }
    }
    let json = format!("{dir}/new.json");
    let quick = ["bench", "ref", "--threads", "1", "--seconds", "0.01", "--runs", "1", "--json"];
    pinfold(&quick).arg(&json).assert().success();
    pinfold(&quick).arg(&json).assert().success();
    let written: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert!(written["rows"].is_array(), "{written}");
}

#[test]
fn stress_says_what_it_did() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let run = |args: &[&str]| {
        let mut command = pinfold(&["stress", "--budget", "1M", "--dir"]);
        command.arg(dir.path()).args(args).assert()
    };
    run(&["--seconds", "1", "--threads", "2"])
        .success()
        .stdout(contains("every byte right"))
        .stdout(contains("evictions"))
        .stderr("");
    run(&["--reads", "1e5"]).success().stdout(contains("reads checked"));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "its files are removed: {left:?}");
}

#[test]
fn stress_names_bad_input() {
    let refused = |args: &[&str], why: &'static str| {
        pinfold(&["stress"]).args(args).assert().code(1).stderr(contains(why));
    };
    refused(&["--seconds", "0"], "--seconds 0: must be above 0");
    refused(&["--threads", "0"], "--threads 0: must be from 1 to 1024");
    refused(&["--budget", "100"], "a budget of 100 bytes: it must be from 1048576");
    refused(&["--budget", "1T"], "--budget 1024 GiB: at most 16 GiB");
    refused(&["--dir", "/no/such/place"], "cannot make a directory in /no/such/place");
    pinfold(&["stress", "--reads", "1.5"])
        .assert()
        .code(2)
        .stderr(contains("not a number of reads"));
}

#[test]
fn crash_says_what_it_did() {
    let figures = json(&["crash", "--seeds", "20", "--json", "-"]);
    assert_eq!((&figures["bench"], &figures["seeds"]), (&"crash".into(), &20.into()));
    assert!(figures["states"].as_u64() > figures["steps"].as_u64(), "{figures}");
    let run = |args: &[&str]| pinfold(&["crash"]).args(args).assert();
    run(&["--seconds", "0.2", "--seed", "5"]).success().stdout(contains("states a second"));
    run(&["--fault", "sync-lies"])
        .code(1)
        .stderr(contains("a crash after"))
        .stderr(contains("To see it again: pinfold crash --seed "))
        .stderr(contains(" --seeds 1 --fault sync-lies"));
}

#[test]
fn crash_kills_processes() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path().to_str().unwrap();
    let figures = json(&["crash", "--kill", "30", "--dir", dir, "--json", "-"]);
    assert_eq!((&figures["bench"], &figures["kills"]), (&"crash-kill".into(), &30.into()));
    assert!(figures["syncs"].as_u64() > Some(0), "{figures}");
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "its files are gone");
    // A process that is not killed says what is wrong.
    let alone = pinfold(&["crash", "--child", "/no/such/place"]).assert();
    alone.code(1).stderr(contains("cannot open /no/such/place/file-"));
}

#[test]
fn crash_names_bad_input() {
    let refused = |args: &[&str], why: &'static str| {
        pinfold(&["crash"]).args(args).assert().code(1).stderr(contains(why));
    };
    refused(&["--seconds", "0"], "--seconds 0: must be above 0");
    refused(&["--seconds", "nan"], "--seconds NaN: must be above 0");
    refused(&["--seeds", "0"], "--seeds 0: must be at least 1");
    refused(&["--kill", "0"], "--kill 0: must be at least 1");
    refused(&["--kill", "1", "--dir", "/no/such/place"], "cannot make a folder in /no/such/place");
    refused(&["--seed", "18446744073709551615", "--seeds", "2"], "--seed: too large a number");
    refused(&["--json", "/no/such/place"], "cannot write /no/such/place");
}

#[test]
fn bench_pin_gives_both_halves_of_every_engine() {
    let quick = ["--bytes", "8M", "--seconds", "0.01", "--runs", "2", "--json", "-"];
    let mut far_apart = BTreeSet::new();
    // A busy machine may spoil any of them. Ends: after so many.
    for _ in 0..30 {
        let result = json(&[&["bench", "pin"], &quick[..]].concat());
        assert_eq!(result["bench"], "pin");
        far_apart.extend(halves_far_apart(&result));
        if far_apart.len() == 2 {
            return;
        }
    }
    panic!("batched is not far from page by page but in {far_apart:?}");
}

/// The halves of a pass in which batched pins are much faster than those page by page.
fn halves_far_apart(result: &Value) -> Vec<&'static str> {
    let mut apart = vec![];
    for metric in ["get_us", "put_us"] {
        let mut engines = engines_of(result, metric);
        // Some systems do not let it have a ring.
        engines.remove("io_uring-register");
        assert_eq!(engines, ["add", "pinfold", "pinfold-per-page"].map(String::from).into());
        let rows = rows_of(result, metric);
        let of = |engine: &str, case: &str| {
            let row = rows.iter().find(|row| row["engine"] == engine && row["case"] == case);
            row.unwrap()["median"].as_f64().unwrap()
        };
        // Far from what it is, but above what noise could make of a walk by the page.
        if of("pinfold-per-page", "2M") > 5.0 * of("pinfold", "2M") {
            apart.push(metric);
        }
    }
    apart
}

#[test]
fn bench_pin_counts_folios_once() {
    for (case, folios) in [("2M", "4\n"), ("4K", "2048\n")] {
        for engine in ["pinfold", "pinfold-per-page"] {
            pinfold(&["bench", "pin", "--bytes", "8M", "--cases", case, "--once", engine])
                .assert()
                .success()
                .stdout(folios);
        }
    }
}

#[test]
fn bench_pin_refuses_what_makes_no_sense() {
    let refused = |args: &[&str], why: &'static str| {
        pinfold(&["bench", "pin", "--runs", "1"])
            .args(args)
            .assert()
            .failure()
            .stderr(contains(why));
    };
    refused(&["--cases", "1G"], "--cases 1G: no such case; there are 2M, 4K");
    refused(&["--only", "pread"], "--only pread: no such engine; there are add, pinfold");
    refused(&["--bytes", "1M"], "--bytes 1 MiB: must be a multiple of 2 MiB");
    refused(&["--bytes", "8M", "--pages", "0"], "--pages 0: must be from 1");
    refused(&["--bytes", "8M", "--pages", "2049"], "--pages 2049: must be from 1");
    refused(&["--threads", "2"], "measures one thread");
    refused(&["--bytes", "64G"], "choose a smaller --bytes");
    refused(&["--bytes", "8M", "--once", "add"], "--once add: must be pinfold or");
}
