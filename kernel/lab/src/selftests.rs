//! Runs the kernel's own mm selftests, from the same source, and one of the lab's, on the plain
//! and on the patched kernel. Each test must have its known result on both. For most that is to
//! pass.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Boot};
use crate::{build, cc, guest, kept, prepare};
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

type Test = (&'static str, &'static str, &'static str);

/// The tests: a name for the table, the program, its arguments. Programs that need two NUMA
/// nodes, or minutes under emulation, are left out.
const TESTS: &[Test] = &[
    ("compaction_test", "compaction_test", ""),
    ("cow", "cow", ""),
    ("droppable", "droppable", ""),
    ("gup_longterm", "gup_longterm", ""),
    ("gup_test -u", "gup_test", "-u"),
    ("gup_test -a", "gup_test", "-a"),
    ("gup_test -b", "gup_test", "-b"),
    ("gup_test -L", "gup_test", "-L"),
    ("gup_test -c", "gup_test", "-ct -F 0x1 0 19 0x1000"),
    ("gup_test -aH", "gup_test", "-aH -m 64"),
    ("gup_test -bH", "gup_test", "-bH -m 64"),
    ("gup_test -LH", "gup_test", "-LH -m 64"),
    ("gup_test -at", "gup_test", "-at -m 64"),
    ("gup_test -bt", "gup_test", "-bt -m 64"),
    ("gup_test -Lt", "gup_test", "-Lt -m 64"),
    ("hmm-tests", "hmm-tests", ""),
    ("hugepage-mmap", "hugepage-mmap", ""),
    ("hugepage-mremap", "hugepage-mremap", ""),
    ("hugepage-shm", "hugepage-shm", ""),
    ("hugepage-vmemmap", "hugepage-vmemmap", ""),
    ("hugetlb-madvise", "hugetlb-madvise", ""),
    ("hugetlb_dio", "hugetlb_dio", ""),
    ("hugetlb_madv_vs_map", "hugetlb_madv_vs_map", ""),
    ("hugetlb_fault_after_madv", "hugetlb_fault_after_madv", ""),
    // After those two: the pages that these take out of use stay in the pool.
    ("hugetlb-read-hwpoison", "hugetlb-read-hwpoison", ""),
    ("hugetlb-soft-offline", "hugetlb-soft-offline", ""),
    ("khugepaged", "khugepaged", ""),
    ("khugepaged -s 2", "khugepaged", "-s 2"),
    ("ksm_functional_tests", "ksm_functional_tests", ""),
    ("ksm_tests -H", "ksm_tests", "-H -s 50"),
    ("ksm_tests -P", "ksm_tests", "-P -s 50"),
    ("ksm_tests -M", "ksm_tests", "-M -p 10"),
    ("ksm_tests -U", "ksm_tests", "-U"),
    ("ksm_tests -C", "ksm_tests", "-C -p 10"),
    ("ksm_tests -D", "ksm_tests", "-D -s 50"),
    ("ksm_tests -N", "ksm_tests", "-N -p 10"),
    ("ksm_tests -Z 0", "ksm_tests", "-Z -p 10 -z 0"),
    ("ksm_tests -Z 1", "ksm_tests", "-Z -p 10 -z 1"),
    ("madv_populate", "madv_populate", ""),
    ("map_fixed_noreplace", "map_fixed_noreplace", ""),
    ("map_hugetlb", "map_hugetlb", ""),
    ("map_populate", "map_populate", ""),
    ("mdwe_test", "mdwe_test", ""),
    ("memfd_secret", "memfd_secret", ""),
    ("mkdirty", "mkdirty", ""),
    ("mlock-random-test", "mlock-random-test", ""),
    ("mlock2-tests", "mlock2-tests", ""),
    ("mrelease_test", "mrelease_test", ""),
    ("mremap_dontunmap", "mremap_dontunmap", ""),
    ("mremap_test", "mremap_test", ""),
    ("mseal_test", "mseal_test", ""),
    ("on-fault-limit", "on-fault-limit", ""),
    ("pagemap_ioctl", "pagemap_ioctl", ""),
    ("pkey_sighandler_tests", "pkey_sighandler_tests", ""),
    ("protection_keys", "protection_keys", ""),
    ("seal_elf", "seal_elf", ""),
    ("soft-dirty", "soft-dirty", ""),
    ("split_huge_page_test", "split_huge_page_test", ""),
    ("thuge-gen", "thuge-gen", ""),
    ("transhuge-stress", "transhuge-stress", "-d 5"),
    ("uffd-stress anon", "uffd-stress", "anon 8 4"),
    ("uffd-stress shmem", "uffd-stress", "shmem 8 4"),
    ("uffd-stress shmem-private", "uffd-stress", "shmem-private 8 4"),
    ("uffd-stress hugetlb", "uffd-stress", "hugetlb 16 4"),
    ("uffd-stress hugetlb-private", "uffd-stress", "hugetlb-private 16 4"),
    ("uffd-unit-tests", "uffd-unit-tests", ""),
    ("uffd_unregister", "uffd_unregister", ""),
];

/// How many huge pages of 2 MiB a test finds in the pool.
const POOL: u32 = 160;

/// Tests that skip themselves unless the pool has exactly one huge page.
const SINGLE_PAGE: &[&str] = &["hugetlb_madv_vs_map", "hugetlb_fault_after_madv"];

/// Tests that map fixed addresses behind the program, where the kernel may place the heap: one run
/// in 20 or so fails if that place is random.
const HEAP_NOT_RANDOM: &[&str] = &["mremap_test"];

/// Tests that do not pass on both kernels, with their known results on plain and on patched.
const KNOWN: &[(&str, &str, &str)] = &[
    ("hugetlb-read-hwpoison", "fail (135)", "fail (135)"),
    // The series fixes this bug, so the plain kernel shows that the test can fail.
    ("uffd_unregister", "fail (1)", "pass"),
    // The same bug, which it meets only by chance: "UFFDIO_COPY error: -2" in its events.
    ("uffd-unit-tests", ANY, "pass"),
];

/// Any result of a test that has run.
const ANY: &str = "any";

/// The name under which the table is kept.
pub(crate) const RESULT: &str = "selftests";

/// The time limit of a test, in seconds: three times what the slowest takes on a host with two cores
/// that does nothing else. `lab test` builds beside them.
const LIMIT_S: u32 = 360;
/// What separates the results of a test that was run again.
const THEN: &str = ", then ";

/// One test's result on both kernels.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) test: String,
    pub(crate) plain: String,
    pub(crate) series: String,
}

/// The result that an exit status means, in kselftest's terms.
fn result(status: &str) -> String {
    match status {
        "0" => "pass".to_string(),
        "4" => "skip".to_string(),
        "124" | "137" | "143" => "timeout".to_string(),
        "126" | "127" => format!("did not run ({status})"),
        other => format!("fail ({other})"),
    }
}

/// The last result of a test, which may have been run again.
fn last(cell: &str) -> &str {
    cell.rsplit(THEN).next().unwrap_or(cell)
}

/// How often a test is run again whose first result was not the known one on patched alone. One
/// that fails every second time passes once soon; so all of these must have the known result.
const AGAIN: usize = 3;

/// Whether each result of a test differs from the known one: on plain, and on patched.
fn differences(row: &Row) -> [Vec<bool>; 2] {
    let (plain, series) =
        KNOWN.iter().find(|k| k.0 == row.test).map_or(("pass", "pass"), |k| (k.1, k.2));
    let differs = |result: &str, known: &str| {
        let ran = result != NO_RESULT && !result.starts_with("did not run");
        !ran || (result != known && known != ANY)
    };
    [(&row.plain, plain), (&row.series, series)]
        .map(|(cell, known)| cell.split(THEN).map(|result| differs(result, known)).collect())
}

/// How often a test must be run again after its first results.
fn runs_again(row: &Row) -> usize {
    match differences(row).map(|of| of[0]) {
        [false, false] => 0,
        [false, true] => AGAIN,
        [true, _] => 1,
    }
}

/// Says how a test's results differ from the known ones, if they do. If it was run again, these
/// runs count.
pub(crate) fn unexpected(row: &Row) -> Option<String> {
    let [plain, series] = differences(row);
    let known = |of: &[bool], runs: usize| of.len() == runs + 1 && !of[1..].contains(&true);
    let is_fine = match runs_again(row) {
        0 => true,
        1 => known(&plain, 1) && known(&series, 1),
        // Plain had the known result at once.
        runs => known(&series, runs),
    };
    (!is_fine).then(|| format!("{}: {} on plain, {} on patched", row.test, row.plain, row.series))
}

/// The tests that have their known results only since they were run again.
fn only_again(rows: &[Row]) -> Vec<&str> {
    let later = |row: &&Row| runs_again(row) > 0 && unexpected(row).is_none();
    rows.iter().filter(later).map(|row| row.test.as_str()).collect()
}

const NO_RESULT: &str = "no result";

/// What a guest says of a test.
#[derive(Debug)]
struct Ran {
    test: String,
    result: String,
    /// How many of its cases it has skipped, if it says so.
    skipped: u32,
}

/// One row for each test, also for those without a printed result. A test that skips cases on
/// patched that it does not skip on plain does not just pass.
fn table(tests: &[Test], plain: &[Ran], series: &[Ran]) -> Vec<Row> {
    let of = |all: &[Ran], test: &str| {
        let found = all.iter().find(|ran| ran.test == test);
        found.map_or((NO_RESULT.to_string(), 0), |ran| (ran.result.clone(), ran.skipped))
    };
    let row = |&(test, ..): &Test| {
        let ((plain, before), (mut series, after)) = (of(plain, test), of(series, test));
        // One that failed on plain may not have come to all of its cases there.
        if plain == "pass" && series == "pass" && after > before {
            series = format!("pass, but {after} skipped beside {before}");
        }
        Row { test: test.to_string(), plain, series }
    };
    tests.iter().map(row).collect()
}

/// Compiles all tests statically.
///
/// # Errors
/// If some do not compile. The error names them.
fn compile(paths: &Paths) -> Result<Vec<PathBuf>> {
    let headers = build::headers(paths)?;
    let source = paths.source(Tree::Plain).join("tools/testing/selftests");
    let target = paths.guest("selftests");
    fs::create_dir_all(&target)?;
    let mut programs: Vec<_> = TESTS.iter().map(|(_, program, _)| *program).collect();
    programs.retain(|program| !guest::PROGRAMS.contains(program));
    programs.sort_unstable();
    programs.dedup();
    let mut errors = Vec::new();
    for program in &programs {
        let binary = target.join(program);
        errors.extend(compile_one(paths, &source, &headers, program, &binary).err());
    }
    if !errors.is_empty() {
        let errors: Vec<_> = errors.iter().map(|e| format!("{e:#}")).collect();
        bail!("{} selftests do not compile:\n{}", errors.len(), errors.join("\n"));
    }
    Ok(programs.into_iter().map(|program| target.join(program)).collect())
}

/// Compiles one test.
fn compile_one(
    paths: &Paths,
    source: &Path,
    headers: &Path,
    program: &str,
    binary: &Path,
) -> Result<()> {
    let mm = source.join("mm");
    fs::write(paths.guest("selftests").join("local_config.h"), "")?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-static", "-O2", "-w", "-D_GNU_SOURCE=", "-I"])
        .arg(source)
        .arg("-I")
        .arg(paths.source(Tree::Plain))
        .arg("-I")
        .arg(paths.source(Tree::Plain).join("tools/include/uapi"))
        // The Makefile's probe for liburing writes local_config.h; an empty one means that there
        // is no liburing.
        .arg("-I")
        .arg(paths.guest("selftests"))
        .arg("-isystem")
        .arg(headers)
        .arg("-o")
        .arg(binary)
        // Compiled in their own folder, without a path: some make files beside __FILE__.
        .arg(format!("{program}.c"))
        .args(["vm_util.c", "thp_settings.c"])
        .current_dir(&mm);
    if program == "khugepaged" {
        // It uses a constant of this header, but does not include it.
        gcc.arg("-include").arg(source.join("kselftest.h"));
    }
    if program.starts_with("uffd-") {
        gcc.arg("uffd-common.c");
    }
    if program == "protection_keys" {
        gcc.arg("-mxsave");
    }
    gcc.args(["-lrt", "-lpthread", "-lm", "-lcap", "-lnuma"]);
    let log = paths.log(&format!("selftest-{program}"));
    cc::compile(program, &prepare::unpacked(paths)?, &mut gcc, binary, &log)
}

/// Compiles `gup_test` alone, which `lab bench` uses, too.
///
/// # Errors
/// If it does not compile.
pub(crate) fn gup_test(paths: &Paths) -> Result<PathBuf> {
    let binary = paths.guest("selftests").join("gup_test");
    let headers = build::headers(paths)?;
    fs::create_dir_all(paths.guest("selftests"))?;
    let source = paths.source(Tree::Plain).join("tools/testing/selftests");
    compile_one(paths, &source, &headers, "gup_test", &binary)?;
    Ok(binary)
}

/// The guest's script. It runs each test with a time limit, and prints its status on a line.
fn script(tests: &[Test]) -> String {
    let mut text = String::from(
        "pool() { [ $(cat /proc/sys/vm/nr_hugepages) = $1 ] && return\n\
         echo 3 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/compact_memory\n\
         echo $1 > /proc/sys/vm/nr_hugepages; }\n\
         echo 256M > /sys/block/zram0/disksize\n\
         mkswap /dev/zram0 >/dev/null && swapon /dev/zram0\n\
         echo 4294967296 > /proc/sys/kernel/shmmax\n\
         mkdir -p /etc; echo root:x:0:0::/:/bin/sh > /etc/passwd\n\
         cp -r /lab/* /tmp 2>/dev/null\n",
    );
    for (name, program, args) in tests {
        let pool = if SINGLE_PAGE.contains(program) { 1 } else { POOL };
        let random = if HEAP_NOT_RANDOM.contains(program) { 1 } else { 2 };
        let _ = writeln!(
            text,
            "pool {pool}\n\
             echo {random} > /proc/sys/kernel/randomize_va_space\n\
             timeout -s KILL {LIMIT_S} ./{program} {args} >/tmp/log 2>&1 </dev/null\ns=$?\n\
             skipped=$(sed -n -e 's/^# Totals:.* skip:\\([0-9]*\\).*/\\1/p' \
             -e 's/.* pass=.* skip=\\([0-9]*\\).*/\\1/p' /tmp/log | tail -n 1)\n\
             echo \"selftest|{name}|$s|$skipped\"\n\
             if [ $s != 0 ] && [ $s != 4 ]; then grep -v -E '^(ok|# \\[RUN\\])' /tmp/log | tail -n 8 | sed 's/^/  /'; fi"
        );
    }
    text + "true"
}

/// The tests and their results, from a guest's output.
fn results(output: &str) -> Vec<Ran> {
    let row = |line: &str| {
        let [test, status, skipped] =
            line.strip_prefix("selftest|")?.trim().split('|').collect::<Vec<_>>()[..]
        else {
            return None;
        };
        let (test, skipped) = (test.to_string(), skipped.parse().unwrap_or(0));
        Some(Ran { test, result: result(status), skipped })
    };
    output.lines().filter_map(row).collect()
}

fn run_on(
    paths: &Paths,
    tree: Tree,
    programs: &[PathBuf],
    name: &str,
    tests: &[Test],
) -> Result<Vec<Ran>> {
    let image = build::image(paths, tree, Config::Fast);
    let root = guest::root(paths, programs)?;
    let accel = qemu::accel(paths, &image, &root)?;
    let name = format!("{name}-{}", tree.name());
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: &name,
            image: &image,
            root: &root,
            command: &script(tests),
            // Not with hugetlb_free_vmemmap=on: then `cow` hangs the plain 6.12.117 (it frees a
            // page of a split THP as hugetlb), and the tests after it would not run.
            append: "kunit.enable=0",
            accel,
            limit: Duration::from_secs(3600),
            mem_mib: 3072,
            args: &[],
        },
    )?;
    Ok(results(&outcome.output))
}

/// Runs the tests on both kernels, keeps the table, and compares it with the known results.
///
/// # Errors
/// If a test does not compile, or has another result than the known one on a kernel.
pub(crate) fn compare(paths: &Paths) -> Result<()> {
    let programs = compile(paths)?;
    let both = |name: &str, tests: &[Test]| -> Result<Vec<Row>> {
        let plain = run_on(paths, Tree::Plain, &programs, name, tests)?;
        let series = run_on(paths, Tree::Series, &programs, name, tests)?;
        Ok(table(tests, &plain, &series))
    };
    let mut rows = both("selftests", TESTS)?;
    // Any of them may fail by the time limit, on a busy host. The table shows both runs.
    for (row, test) in rows.iter_mut().zip(TESTS) {
        let times = runs_again(row);
        if times > 0 {
            println!(
                "{}: {} on plain, {} on patched; running it again, by itself: {times}",
                row.test, row.plain, row.series
            );
        }
        for _ in 0..times {
            let again = both("selftests-again", &[*test])?.remove(0);
            row.plain = format!("{}{THEN}{}", row.plain, again.plain);
            row.series = format!("{}{THEN}{}", row.series, again.series);
        }
    }
    kept::keep(paths, RESULT, &rows)?;
    let passed = rows.iter().filter(|r| last(&r.series) == "pass").count();
    println!("selftests: {passed} of {} pass on patched", rows.len());
    let later = only_again(&rows);
    if !later.is_empty() {
        println!("selftests: as known only when run again: {}", later.join(", "));
    }
    let unexpected: Vec<_> = rows.iter().filter_map(unexpected).collect();
    if !unexpected.is_empty() {
        bail!(
            "selftests with an unexpected result: {}; see {}",
            unexpected.join("; "),
            paths.log("output-selftests-series").display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(test: &str, plain: &str, series: &str) -> Row {
        Row { test: test.into(), plain: plain.into(), series: series.into() }
    }

    #[test]
    fn a_test_must_have_its_known_result() {
        let fine = |plain: &str, series: &str| unexpected(&row("cow", plain, series)).is_none();
        assert!(fine("pass", "pass"));
        assert!(fine("timeout, then pass", "pass, then pass"));
        assert!(fine("timeout, then pass", "timeout, then pass"));
        let thrice = "pass, then pass, then pass, then pass";
        assert!(fine(thrice, "fail (1), then pass, then pass, then pass"));
        assert!(fine(
            "pass, then timeout, then pass, then pass",
            "fail (1), then pass, then pass, then pass"
        ));
        for fails in [
            "fail (1), then pass",
            "fail (1), then pass, then pass, then fail (1)",
            "fail (1), then fail (1), then pass, then pass",
        ] {
            assert!(!fine(thrice, fails), "{fails}");
        }
        assert!(!fine("pass", "pass, but 3 skipped beside 2"));
        for other in ["skip", "fail (1)", "timeout", "did not run (127)", "no result"] {
            assert!(!fine("pass", other) && !fine(other, "pass") && !fine(other, other), "{other}");
            assert!(!fine("timeout, then pass", &format!("timeout, then {other}")), "{other}");
        }
        for (test, plain, series) in KNOWN {
            let fine = |plain, series| unexpected(&row(test, plain, series)).is_none();
            assert!(fine(plain, series), "{test}");
            assert_eq!(fine("pass", series), *plain == ANY, "{test}");
            for other in ["fail (2)", "no result", "did not run (126)"] {
                assert!(!fine(plain, other), "{test}: {other}");
            }
            assert!(!fine("no result", series) && !fine("did not run (126)", series), "{test}");
        }
    }

    #[test]
    fn what_was_run_again_is_told() {
        let rows = [
            row("cow", "pass", "pass"),
            row("droppable", "timeout, then pass", "pass, then pass"),
            row("gup_longterm", "timeout, then pass", "pass, then fail (1)"),
        ];
        assert_eq!(only_again(&rows), ["droppable"]);
        assert_eq!(rows.each_ref().map(runs_again), [0, 1, 1]);
        assert_eq!(runs_again(&row("cow", "pass", "fail (1)")), AGAIN);
    }

    #[test]
    fn a_test_that_skips_more_on_patched_does_not_pass() {
        let of = |skipped: &str| results(&format!("selftest|cow|0|{skipped}\n"));
        let result = |plain, series| table(&TESTS[1..2], &of(plain), &of(series))[0].series.clone();
        assert_eq!(result("", ""), "pass");
        assert_eq!(result("3", "3"), "pass");
        assert_eq!(result("3", ""), "pass");
        assert_eq!(result("3", "4"), "pass, but 4 skipped beside 3");
        assert_eq!(result("", "1"), "pass, but 1 skipped beside 0");
        let failed = results("selftest|cow|1|\n");
        assert_eq!(table(&TESTS[1..2], &failed, &of("7"))[0].series, "pass");
    }

    #[test]
    fn a_heap_that_is_not_random_is_so_for_one_test_only() {
        let named = |name| *TESTS.iter().find(|test| test.0 == name).unwrap();
        let script = script(&["madv_populate", "mremap_test", "mseal_test"].map(named));
        let lines = script.lines().filter(|line| line.contains("randomize_va_space"));
        let random = |line: &str| line.strip_prefix("echo ").unwrap().starts_with('2');
        assert_eq!(lines.map(random).collect::<Vec<_>>(), [true, false, true]);
    }

    /// By the guest's sed, of what the kernel's selftests print.
    #[test]
    fn skipped_cases_are_counted() {
        let script = script(&TESTS[1..2]);
        let line = script.lines().find(|line| line.starts_with("skipped=")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let count = |text: &str| {
            fs::write(&log, text).unwrap();
            let line = line.replace("/tmp/log", &log.to_string_lossy());
            let mut sh = Command::new("busybox");
            let out = crate::proc::output(sh.args(["sh", "-c", &format!("{line}\necho $skipped")]));
            out.unwrap().trim().to_string()
        };
        assert_eq!(count("# Totals: pass:5 fail:0 xfail:0 xpass:0 skip:12 error:0\n"), "12");
        assert_eq!(count("Userfaults unit tests: pass=60, skip=7, fail=0 (total=67)\n"), "7");
        assert_eq!(count("ok 2 # SKIP no\n"), "");
    }

    #[test]
    fn every_test_has_a_row() {
        let output = "selftest|cow|0|\nselftest|gup_test -u|127|\n  sh: ./gup_test: not found\r\n\
                      selftest|hugetlb-read-hwpoison|135|0\r\n  Bus error\nselftest|droppable|137|\n";
        let found = results(output);
        let rows = table(TESTS, &found, &found);
        assert_eq!(rows.len(), TESTS.len());
        let of = |test: &str| rows.iter().find(|r| r.test == test).unwrap().plain.clone();
        assert_eq!(of("cow"), "pass");
        assert_eq!(of("gup_test -u"), "did not run (127)");
        assert_eq!(of("droppable"), "timeout");
        assert_eq!(of("compaction_test"), "no result");
        let known = rows.iter().filter(|r| unexpected(r).is_none()).map(|r| r.test.as_str());
        assert_eq!(known.collect::<Vec<_>>(), ["cow", "hugetlb-read-hwpoison"]);
    }
}
