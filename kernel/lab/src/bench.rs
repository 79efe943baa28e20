//! `lab bench` counts the instructions of the plain and of the patched kernel. The guest's
//! clock advances by one nanosecond for each instruction, so a time that its programs print is
//! a count, which differs little from boot to boot. Where KVM works, `lab bench` also
//! measures the table of threads.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot};
use crate::{build, guest, kept, prepare, threads};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// One count on both kernels.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) plain: f64,
    pub(crate) series: f64,
}

impl Row {
    pub(crate) fn percent(&self) -> f64 {
        (self.series - self.plain) / self.plain * 100.0
    }
}

/// The names under which the tables are kept.
pub(crate) const COUNTS: &str = "counts";
pub(crate) const THREADS: &str = "threads";

/// By how much a count may grow. The series promises it.
pub(crate) const ALLOWED_PERCENT: f64 = 1.0;

/// What a short read without a reference may cost, compared to plain. It promises that.
const SHORT_READ: f64 = 0.75;

/// The bytes of a `pread`, and how many reads are one round.
const PREADS: [(u32, u32); 4] = [(64, 20_000), (256, 5000), (1024, 5000), (4096, 5000)];
/// The most bytes that the patched kernel reads without a reference, and the most that are asked
/// to cost less than plain's.
const SHORT_BYTES: u32 = 1024;
const ASKED_BYTES: u32 = 64;
/// The rows of pages that are not cached: short reads without readahead, and long ones with it.
/// They are of ext4 on zram, which has no interrupts that come now or later.
const MISSES: [(&str, &str); 2] = [("miss", "-b 64"), ("ahead", "-a -b 4096")];
const MISS_READS: u32 = 1000;
/// Where the guest has that file system.
const ZRAM: &str = "/zram";
/// Where `pread` is counted: the file system, and where the guest has it.
const READ_SYSTEMS: [(&str, &str); 3] = [("tmpfs", "/tmp"), ("ext4", "/mnt"), ("ramfs", "/ram")];
/// The rows of reads with short reads off and on. Plain has no such switch, so in its column the
/// two are the same reads.
const READS: [&str; 2] = ["pread", SHORT];
pub(crate) const SHORT: &str = "short-pread";
const FILE_SYSTEMS: [&str; 2] = ["tmpfs", "ext4"];
/// The cases of `mm_count`, which prints a line for each.
const MM_CASES: [&str; 7] = [
    "fault-anon",
    "unmap-anon",
    "fault-file",
    "fault-file-cow",
    "fork-2048-pages",
    "fork-call-2048-pages",
    "fault-fork-cow",
];
/// The arguments of `gup_test`, and how many MiB it pins. It prints whole microseconds, and a
/// huge page costs few instructions, so it pins more of them.
const GUP_CASES: [(&str, u32); 5] =
    [("-a", 32), ("-L", 32), ("-aH", 256), ("-LH", 256), ("-Lt", 256)];

/// Every case that must be counted on both kernels, in the order in which the guest prints them.
fn cases() -> Vec<String> {
    let preads = READS.iter().flat_map(|read| {
        let cached = PREADS.iter().flat_map(move |(b, _)| {
            READ_SYSTEMS.iter().map(move |(f, _)| format!("{read}-{b}-{f}"))
        });
        cached.chain(MISSES.iter().map(move |(miss, _)| format!("{read}-{miss}-ext4")))
    });
    let mm = FILE_SYSTEMS.iter().flat_map(|f| MM_CASES.iter().map(move |c| format!("{c}-{f}")));
    let gup = GUP_CASES
        .iter()
        .flat_map(|(way, _)| ["get", "put"].map(|half| format!("gup_test{way}-{half}")));
    preads.chain(mm).chain(gup).collect()
}

/// What the guest does first. The tests of the script leave it out: it is for the guest alone.
const PREPARE: &str = "set -e
echo 4096 > /sys/kernel/debug/fault_around_bytes
echo 128 > /proc/sys/vm/nr_hugepages
echo 64M > /sys/block/zram0/disksize
mke2fs -b 4096 /dev/zram0 > /dev/null
mkdir /zram
mount -t ext4 /dev/zram0 /zram
";

/// The switch of short reads, which only the patched kernel has.
const SWITCH: &str = "/proc/sys/vm/short_reads";

/// The guest's script. Each program's output goes through a file or a variable, because a pipe
/// would hide its exit status. Of the rounds of `gup_test` the script prints the smallest one,
/// as the other programs do of theirs.
fn command() -> String {
    let mut text = String::from("set -e\n");
    for (switch, read) in READS.iter().enumerate() {
        let _ = writeln!(text, "[ ! -e {SWITCH} ] || echo {switch} > {SWITCH}");
        for (bytes, reads) in PREADS {
            for (system, dir) in READ_SYSTEMS {
                let _ = writeln!(
                    text,
                    "line=$(pread_bench -n {reads} -b {bytes} {dir}/x)\n\
                     echo \"case {read}-{bytes}-{system} $line\""
                );
            }
        }
        for (miss, option) in MISSES {
            let _ = writeln!(
                text,
                "line=$(pread_bench -m {MISS_READS} {option} {ZRAM}/x)\n\
                 echo \"case {read}-{miss}-ext4 $line\""
            );
        }
    }
    // Or reads are counted that were not short: five rounds on three file systems, but for the
    // first few, which mark the folio as accessed.
    let short: u32 = PREADS.iter().filter(|(b, _)| *b <= SHORT_BYTES).map(|(_, n)| 15 * n).sum();
    let least = short - 1000;
    let _ = writeln!(
        text,
        "[ ! -e {SWITCH} ] || awk '/^short_read_done/ {{ done = $2 }} END {{ exit (done < {least}) }}' \
         /proc/vmstat || {{ grep short_read /proc/vmstat; exit 1; }}\n\
         [ ! -e {SWITCH} ] || echo 0 > {SWITCH}"
    );
    for (system, dir) in FILE_SYSTEMS.iter().zip(["/tmp", "/mnt"]) {
        let _ = writeln!(
            text,
            "mm_count {dir}/y > log\nwhile read name rest; do echo \"case $name-{system} $rest\"; done < log"
        );
    }
    for (way, mib) in GUP_CASES {
        let _ = writeln!(
            text,
            "gup_test {way} -m {mib} -n 512 -r 31 > log || {{ cat log; exit 1; }}\n\
             sed -n 's/.*get:\\([0-9]*\\) put:\\([0-9]*\\) us.*/\\1 \\2/p' log > rounds\n\
             awk -v step={} '$1 < get || NR == 1 {{ get = $1 }} $2 < put || NR == 1 {{ put = $2 }} END {{\n\
             if (NR == 31) printf \"case gup_test{way}-get ns %.2f\\ncase gup_test{way}-put ns %.2f\\n\", \
             get * step, put * step }}' rounds",
            gup_step(mib)
        );
    }
    text
}

/// The resolution of a `gup_test` count: a microsecond, divided by the pages of `mib` MiB.
fn gup_step(mib: u32) -> f64 {
    1000.0 / f64::from(mib * 256)
}

/// The resolution of a case: the least difference that it can show.
fn step(case: &str) -> f64 {
    GUP_CASES
        .iter()
        .find(|(way, _)| case.starts_with(&format!("gup_test{way}-")))
        .map_or(0.0, |&(_, mib)| gup_step(mib))
}

/// A `case NAME ... ns VALUE` line.
fn parse(line: &str) -> Option<(String, f64)> {
    let mut words = line.strip_prefix("case ")?.split_whitespace();
    let name = words.next()?.to_string();
    let words: Vec<_> = words.collect();
    let [.., "ns", value] = words.as_slice() else {
        return None;
    };
    Some((name, value.parse().ok()?))
}

/// The counts in a guest's output.
///
/// # Errors
/// If a case is missing, printed twice, or not known. The error names it.
fn counts(output: &str) -> Result<Vec<(String, f64)>> {
    let found: Vec<_> = output.lines().filter_map(parse).collect();
    let cases = cases();
    if let Some((other, _)) = found.iter().find(|(case, _)| !cases.contains(case)) {
        bail!("the guest printed an unknown case, {other}:\n{output}");
    }
    let one = |case: String| {
        let of: Vec<_> = found.iter().filter(|f| f.0 == case).collect();
        match of[..] {
            [&(_, value)] if value.is_normal() && value > 0.0 => Ok((case, value)),
            [&(_, value)] => bail!("{case} has the count {value}:\n{output}"),
            _ => bail!("{case} has {} counts, not one:\n{output}", of.len()),
        }
    };
    cases.into_iter().map(one).collect()
}

/// What a case may cost where plain costs so much.
fn allowed(case: &str, plain: f64) -> f64 {
    if case.starts_with(&format!("{}-{ASKED_BYTES}-", READS[1])) {
        return plain * SHORT_READ;
    }
    plain * (1.0 + ALLOWED_PERCENT / 100.0)
}

/// The cases whose count grew by more than is allowed. Where the clock prints whole
/// microseconds, it may be off by one, so a difference of one is allowed besides.
pub(crate) fn regressions(rows: &[Row]) -> Vec<String> {
    rows.iter()
        .filter(|r| r.series > allowed(&r.case, r.plain) + step(&r.case) * 1.001)
        .map(|r| format!("{} ({:+.2} %)", r.case, r.percent()))
        .collect()
}

fn count(paths: &Paths, tree: Tree) -> Result<Vec<(String, f64)>> {
    let image = build::image(paths, tree, Config::Fast);
    let root = guest::root(paths, &[crate::selftests::gup_test(paths)?])?;
    let name = format!("count-{}", tree.name());
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: &name,
            image: &image,
            root: &root,
            command: &format!("{PREPARE}{}", command()),
            // A fork copies more or fewer page tables, depending on where the mappings lie.
            append: "kunit.enable=0 norandmaps",
            accel: Accel::Icount,
            limit: Duration::from_secs(600),
            mem_mib: 1024,
            args: &[],
        },
    )?;
    if outcome.status != 0 {
        bail!("{name}: failed with status {}:\n{}", outcome.status, outcome.output);
    }
    counts(&outcome.output).with_context(|| name)
}

/// A count, as `--json` writes it.
#[derive(Serialize)]
struct Count<'a> {
    tree: &'static str,
    case: &'a str,
    instructions: f64,
}

/// The rows as JSON, each with one count.
fn json(rows: &[Row]) -> Result<String> {
    let mut counts = Vec::new();
    for Row { case, plain, series } in rows {
        for (tree, instructions) in [(Tree::Plain, *plain), (Tree::Series, *series)] {
            counts.push(Count { tree: tree.name(), case, instructions });
        }
    }
    Ok(serde_json::to_string_pretty(&counts)?)
}

/// Counts on both kernels and keeps the table. Writes it to `file` too, if there is one.
///
/// # Errors
/// If a kernel does not boot, a count is missing, or a count grew by more than is allowed.
pub(crate) fn bench(paths: &Paths, file: Option<&Path>) -> Result<()> {
    prepare::prepare(paths)?;
    for tree in [Tree::Plain, Tree::Series] {
        build::build(paths, tree, Config::Fast)?;
    }
    let plain = count(paths, Tree::Plain)?;
    let series = count(paths, Tree::Series)?;
    let rows: Vec<_> = plain
        .into_iter()
        .zip(series)
        .map(|((case, plain), (_, series))| Row { case, plain, series })
        .collect();
    println!("instructions (TCG with -icount; counts, not times):");
    for row in &rows {
        println!(
            "  {:<24} {:>12.2} {:>12.2} {:>+7.2} %",
            row.case,
            row.plain,
            row.series,
            row.percent()
        );
    }
    if let Some(file) = file {
        fs::write(file, json(&rows)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    kept::keep(paths, COUNTS, &rows)?;
    kept::keep(paths, THREADS, threads::table(paths)?)?;
    let regressions = regressions(&rows);
    if !regressions.is_empty() {
        bail!(
            "the patched kernel executes over {ALLOWED_PERCENT} % more instructions than plain, or \
             over {SHORT_READ} of them for a short read: {}",
            regressions.join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn counts_are_read_with_their_unit() {
        assert_eq!(
            parse("case pread-64-tmpfs pread block_bytes 64 ns 1239.30"),
            Some(("pread-64-tmpfs".into(), 1239.30))
        );
        assert_eq!(parse("case g-get x us 12"), None);
        assert_eq!(parse("case broken x s 12"), None);
        assert_eq!(parse("pread ns 1"), None);
    }

    /// Runs the guest's script with programs that print what the real ones print.
    fn counted(programs: &[(&str, &str)]) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, body) in programs {
            let path = dir.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        let out = Command::new("sh")
            .args(["-c", &command()])
            .current_dir(dir.path())
            .env("PATH", path)
            .output()
            .unwrap();
        out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
    }

    const PREAD: &str = "echo pread block_bytes 64 ns 1019.45";
    const GUP: &str = "for i in $(seq 31); do echo \"# GUP_FAST: Time: get:$((1700 + i)) put:$((900 - i)) us\"; done";

    fn mm() -> String {
        MM_CASES.map(|case| format!("echo {case} ns 6351.14")).join("\n")
    }

    #[test]
    fn every_case_is_counted_and_the_smallest_round_printed() {
        let output =
            counted(&[("pread_bench", PREAD), ("mm_count", &mm()), ("gup_test", GUP)]).unwrap();
        let found = counts(&output).unwrap();
        assert_eq!(found.iter().map(|f| f.0.clone()).collect::<Vec<_>>(), cases());
        let of = |case: &str| found.iter().find(|f| f.0 == case).unwrap().1;
        assert!((of("gup_test-a-get") - 1701.0 * 1000.0 / 8192.0).abs() < 0.01);
        assert!((of("gup_test-LH-put") - 869.0 * 1000.0 / 65536.0).abs() < 0.01);
    }

    #[test]
    fn a_program_that_fails_or_prints_too_little_is_noticed() {
        let good =
            [("pread_bench", PREAD.to_string()), ("mm_count", mm()), ("gup_test", GUP.into())];
        for at in 0..good.len() {
            let with = |body: String| {
                let mut programs = good.clone();
                programs[at].1 = body;
                counted(&programs.each_ref().map(|(name, body)| (*name, body.as_str())))
            };
            assert_eq!(with(format!("{}\nexit 1", good[at].1)), None);
            let last =
                good[at].1.replace("echo fault-fork-cow ns", "echo").replace("seq 31", "seq 30");
            if at > 0 {
                counts(&with(last).unwrap()).unwrap_err();
            }
        }
        let output = counted(&good.each_ref().map(|(name, body)| (*name, body.as_str()))).unwrap();
        let missing = output.replace("case fault-file-ext4", "fault-file-ext4");
        let error = counts(&missing).unwrap_err().to_string();
        assert!(error.starts_with("fault-file-ext4 has 0 counts"), "{error}");
        counts(&output.replacen("1019.45", "nan", 1)).unwrap_err();
        counts(&output.replacen("1019.45", "0.00", 1)).unwrap_err();
        counts(&format!("{output}case pread-64-tmpfs ns 1\n")).unwrap_err();
        counts(&format!("{output}case other ns 1\n")).unwrap_err();
    }

    #[test]
    fn a_count_that_grew_is_named() {
        let row = |case: &str, plain, series| Row { case: case.into(), plain, series };
        let grew = |case, plain, series| !regressions(&[row(case, plain, series)]).is_empty();
        assert!(grew("pread-64-tmpfs", 1000.0, 1010.1));
        assert!(!grew("pread-64-tmpfs", 1000.0, 1009.9));
        assert!(grew("short-pread-64-tmpfs", 1000.0, 751.0));
        assert!(!grew("short-pread-64-tmpfs", 1000.0, 749.0));
        assert!(!grew("short-pread-4096-tmpfs", 1000.0, 1009.9));
        assert!(!grew("short-pread-miss-ext4", 5000.0, 5049.0));
        assert!(grew("short-pread-miss-ext4", 5000.0, 5051.0));
        assert!(grew("short-pread-ahead-ext4", 5000.0, 5051.0));
        assert!(grew("gup_test-LH-put", 11.11, 16.7));
        // 1 % and one microsecond more; 1 % and two microseconds more.
        assert!(!grew("gup_test-aH-get", 11.11, 11.11 * 1.01 + 1000.0 / 65536.0));
        assert!(grew("gup_test-aH-get", 11.11, 11.11 * 1.01 + 2000.0 / 65536.0));
        assert!(grew("gup_test-a-get", 210.8, 213.3));
    }

    #[test]
    fn the_file_has_a_row_for_each_tree_and_case() {
        let rows = [Row { case: "a".into(), plain: 2.0, series: 1.5 }];
        let parsed: serde_json::Value = serde_json::from_str(&json(&rows).unwrap()).unwrap();
        let row = |tree: &str, count: f64| serde_json::json!({ "tree": tree, "case": "a", "instructions": count });
        assert_eq!(parsed, serde_json::json!([row("plain", 2.0), row("series", 1.5)]));
    }

    #[test]
    fn the_difference_is_in_percent_of_plain() {
        let row = Row { case: "c".into(), plain: 200.0, series: 201.0 };
        assert!((row.percent() - 0.5).abs() < 1e-9);
    }
}
