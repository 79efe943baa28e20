//! The kernel's own mm selftests, from the same source, on plain and patched:
//! no test that passes on plain may fail on patched.

use crate::paths::Paths;
use crate::qemu::{self, Boot};
use crate::{Config, Tree, build, guest, prepare, proc, suite};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What is run: a name for the table, the program, its arguments. Programs that
/// need two NUMA nodes, or minutes under emulation, are not in it.
const TESTS: &[(&str, &str, &str)] = &[
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
];

/// Huge pages of 2 MiB that a test finds.
const POOL: u32 = 160;

/// Tests that skip themselves unless there is one huge page to fight for.
const SINGLE_PAGE: &[&str] = &["hugetlb_madv_vs_map", "hugetlb_fault_after_madv"];

/// Tests that fail on plain in some runs and pass in others: in the table, and no judge.
/// `uffd-unit-tests` ends at times with "`UFFDIO_COPY` error: -2" in what it calls events on anon.
const UNSTEADY: &[&str] = &["uffd-unit-tests"];

/// One test's result on both kernels.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) test: String,
    pub(crate) plain: String,
    pub(crate) series: String,
}

/// An exit status in kselftest's terms.
fn word(status: &str) -> String {
    match status {
        "0" => "pass".to_string(),
        "4" => "skip".to_string(),
        "124" | "137" | "143" => "timeout".to_string(),
        other => format!("fail ({other})"),
    }
}

/// A regression: passed before, and does not now.
fn regressed(row: &Row) -> bool {
    row.plain == "pass" && row.series != "pass" && !UNSTEADY.contains(&row.test.as_str())
}

/// Compiles what can be compiled statically; the rest is left out, by name.
fn compile(paths: &Paths) -> Result<(Vec<PathBuf>, Vec<&'static str>)> {
    let headers = build::headers(paths)?;
    let source = paths.source(Tree::Plain).join("tools/testing/selftests");
    let target = paths.guest("selftests");
    fs::create_dir_all(&target)?;
    let mut built = Vec::new();
    let mut left_out: Vec<&'static str> = Vec::new();
    for &(_, program, _) in TESTS {
        let binary = target.join(program);
        if built.contains(&binary) || left_out.contains(&program) {
            continue;
        }
        if compile_one(paths, &source, &headers, program, &binary).is_err() {
            left_out.push(program);
            continue;
        }
        built.push(binary);
    }
    if built.is_empty() {
        bail!("no selftest compiles; see {}", paths.log("selftest-cow").display());
    }
    Ok((built, left_out))
}

/// Compiles one, unless it was compiled from this source by these words before.
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
        // The Makefile's probe for liburing writes this; ours says: not there.
        .arg("-I")
        .arg(paths.guest("selftests"))
        .arg("-isystem")
        .arg(headers)
        .arg("-o")
        .arg(binary)
        // Named from their own folder: some make files beside what __FILE__ says.
        .arg(format!("{program}.c"))
        .args(["vm_util.c", "thp_settings.c"])
        .current_dir(&mm);
    if program == "khugepaged" {
        // It uses a constant of this header and does not include it.
        gcc.arg("-include").arg(source.join("kselftest.h"));
    }
    if program.starts_with("uffd-") {
        gcc.arg("uffd-common.c");
    }
    if program == "protection_keys" {
        gcc.arg("-mxsave");
    }
    gcc.args(["-lrt", "-lpthread", "-lm", "-lcap", "-lnuma"]);
    let made_by = format!("{}{gcc:?}", prepare::unpacked(paths)?);
    let stamp = binary.with_extension("made-by");
    if binary.is_file() && fs::read_to_string(&stamp).is_ok_and(|text| text == made_by) {
        return Ok(());
    }
    let log = paths.log(&format!("selftest-{program}"));
    proc::run(&format!("compiling {program}"), &mut gcc, &log)?;
    fs::write(stamp, made_by).context("cannot record how a selftest was compiled")
}

/// Compiles `gup_test` alone, which the counts use, too.
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

/// The guest's script: each test with a limit, its status on a line of its own.
fn script(programs: &[PathBuf]) -> String {
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
    for (name, program, args) in TESTS {
        if programs.iter().any(|p| p.file_name().is_some_and(|f| f == *program)) {
            let pool = if SINGLE_PAGE.contains(program) { 1 } else { POOL };
            let _ = writeln!(
                text,
                "pool {pool}\n\
                 timeout -s KILL 180 ./{program} {args} >/tmp/log 2>&1 </dev/null\ns=$?\n\
                 echo \"selftest|{name}|$s\"\n\
                 if [ $s != 0 ] && [ $s != 4 ]; then grep -v -E '^(ok|# \\[RUN\\])' /tmp/log | tail -n 8 | sed 's/^/  /'; fi"
            );
        }
    }
    text + "true"
}

fn run_on(paths: &Paths, tree: Tree, programs: &[PathBuf]) -> Result<Vec<(String, String)>> {
    let image = build::image(paths, tree, Config::Fast);
    let root = guest::root(paths, programs)?;
    let accel = suite::accel(paths, &image, &root)?;
    let name = format!("selftests-{}", tree.name());
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: &name,
            image: &image,
            root: &root,
            command: &script(programs),
            // Not with hugetlb_free_vmemmap=on: `cow` then hangs the plain 6.12.117
            // (a split THP's page is freed as hugetlb), which would hide the rest.
            append: "kunit.enable=0",
            accel,
            limit: Duration::from_secs(2400),
            mem_mib: 3072,
            args: &[],
        },
    )?;
    Ok(outcome
        .output
        .lines()
        .filter_map(|l| {
            let (name, status) = l.strip_prefix("selftest|")?.split_once('|')?;
            Some((name.to_string(), word(status.trim())))
        })
        .collect())
}

/// Runs them on both kernels, keeps the table, and compares.
///
/// # Errors
/// A test that passes on plain and does not on patched.
pub(crate) fn compare(paths: &Paths) -> Result<()> {
    let (programs, left_out) = compile(paths)?;
    let plain = run_on(paths, Tree::Plain, &programs)?;
    let series = run_on(paths, Tree::Series, &programs)?;
    let rows: Vec<_> = plain
        .iter()
        .map(|(test, word)| Row {
            test: test.clone(),
            plain: word.clone(),
            series: series
                .iter()
                .find(|s| s.0 == *test)
                .map_or_else(|| "no result".to_string(), |s| s.1.clone()),
        })
        .collect();
    let text = serde_json::to_string_pretty(&rows)?;
    fs::write(paths.result("selftests"), text).context("cannot keep the selftests' table")?;
    let passed = rows.iter().filter(|r| r.series == "pass").count();
    println!("selftests: {passed} of {} pass on patched", rows.len());
    if !left_out.is_empty() {
        println!("selftests: not compiled here: {}", left_out.join(", "));
    }
    let bad: Vec<_> =
        rows.iter().filter(|r| regressed(r)).map(|r| format!("{}: {}", r.test, r.series)).collect();
    if !bad.is_empty() {
        bail!(
            "selftests that pass on plain and not on patched: {}; see {}",
            bad.join(", "),
            paths.log("output-selftests-series").display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_pass_is_a_regression() {
        let result = |test: &str, plain: &str, series: &str| Row {
            test: test.into(),
            plain: plain.into(),
            series: series.into(),
        };
        let row = |plain, series| result("t", plain, series);
        assert!(!regressed(&result(UNSTEADY[0], "pass", "fail (1)")));
        assert!(regressed(&row("pass", "fail (1)")));
        assert!(regressed(&row("pass", "no result")));
        assert!(regressed(&row("pass", "skip")));
        assert!(!regressed(&row("pass", "pass")));
        assert!(!regressed(&row("fail (1)", "fail (1)")));
        assert_eq!(word("137"), "timeout");
    }
}
