//! Boots a kernel once to check that it works: its `KUnit` tests, and reads of its file systems.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Boot};
use crate::{build, guest};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::time::Duration;

/// Checks the results of a `KUnit` suite in a kernel's log: each case of its source, `suite`,
/// must have passed, but for those in `skipped`, which must have been skipped. Returns the
/// summary.
fn kunit(console: &str, suite: &str, skipped: &[&str]) -> Result<String> {
    let name = suite
        .lines()
        .find_map(|l| l.trim().strip_prefix(".name = \"")?.split('"').next())
        .context("a KUnit suite's source has no name")?;
    let line = console
        .lines()
        .find(|l| l.contains(&format!("# {name}: pass:")))
        .with_context(|| format!("the kernel's log has no KUnit results of {name}"))?;
    // The kernel's log may have a time before each line.
    let without_time = |l: &'_ str| l.split_once("] ").map_or(l, |(_, rest)| rest).to_string();
    let failed = console
        .lines()
        .map(without_time)
        .filter(|l| l.trim_start().starts_with("not ok"))
        .collect::<Vec<_>>()
        .join("\n");
    let cases: Vec<_> = suite.lines().filter_map(case).collect();
    let skipped: Vec<_> = skipped.iter().filter(|name| cases.contains(name)).collect();
    let (total, skip) = (cases.len(), skipped.len());
    let wanted = format!("{name}: pass:{} fail:0 skip:{skip} total:{total}", total - skip);
    if !failed.is_empty() || total == 0 || !line.ends_with(&wanted) {
        bail!("KUnit: {line}, and its source has {total} cases, {skip} to be skipped\n{failed}");
    }
    // As many were skipped as are to be. So if each of these was, no other one was.
    for case in skipped {
        if !console.contains(&format!(" {case} # SKIP ")) {
            bail!("KUnit: {case} was not skipped, but another case of {name}");
        }
    }
    Ok(wanted)
}

/// The case that a line of a suite's source adds to it.
fn case(line: &str) -> Option<&str> {
    let (_, rest) = line.trim_start().strip_prefix("KUNIT_CASE")?.split_once('(')?;
    rest.split([',', ')']).next()
}

/// Checks the results of the suites that a configuration asks for in a kernel's log, and returns
/// their summaries.
///
/// # Errors
/// If a case of their sources did not pass, or none is asked for.
pub(crate) fn suites(
    paths: &Paths,
    tree: Tree,
    console: &str,
    configuration: &str,
) -> Result<String> {
    passed(console, &sources(paths, tree, configuration)?, &[])
}

/// The sources of the suites that a configuration asks for.
fn sources(paths: &Paths, tree: Tree, configuration: &str) -> Result<Vec<String>> {
    build::tests_in(paths, tree, configuration).iter().map(|file| build::read(file)).collect()
}

/// Checks the results of these suites. The cases in `skipped` must have been skipped.
fn passed(console: &str, suites: &[String], skipped: &[&str]) -> Result<String> {
    if suites.is_empty() {
        bail!("the configuration asks for no KUnit suite");
    }
    let passed: Result<Vec<_>> =
        suites.iter().map(|suite| kunit(console, suite, skipped)).collect();
    Ok(passed?.join(", "))
}

/// Reads of tmpfs, and of ext4 if there is a disk.
const READ: &str = "set -e
for f in /tmp/x /mnt/x; do
pread_bench -t 2 -s 0.3 $f; pread_bench -p 2 -s 0.3 $f
done";

/// For the tiny kernels: without ACPI it finds the CPUs by the firmware's MP table, which has one
/// for each socket. Kernels with ACPI keep one socket, because they do not trust the TSC across
/// sockets.
pub(crate) const TWO_SOCKETS: &[&str] = &["-smp", "2,sockets=2,cores=1"];

/// Boots once to check that the kernel works: the `KUnit` tests run, and two threads and then
/// two processes read its file systems.
///
/// # Errors
/// If the boot fails, there is a splat, a test fails, or the series has no tests.
pub(crate) fn smoke(paths: &Paths, tree: Tree, config: Config) -> Result<()> {
    if tree == Tree::Series {
        let asked = build::tests_in(paths, tree, &build::all_fragments(paths, config)?);
        if let Some(missing) = asked.iter().find(|file| !file.is_file()) {
            bail!("the patched source lacks KUnit tests: {}", missing.display());
        }
    }
    boot(paths, &Kernel::of(paths, tree, config)?)
}

/// What that boot needs of a built kernel. Of a part of the series, the tests are those that it has.
#[derive(Debug)]
pub(crate) struct Kernel {
    name: String,
    config: Config,
    image: PathBuf,
    suites: Vec<String>,
}

impl Kernel {
    /// # Errors
    /// If a test cannot be read.
    pub(crate) fn of(paths: &Paths, tree: Tree, config: Config) -> Result<Self> {
        let configuration = build::fragments_text(paths, tree, config)?;
        Ok(Self {
            name: format!("boot-{}-{}", tree.name(), config.name()),
            config,
            image: build::image(paths, tree, config),
            suites: sources(paths, tree, &configuration)?,
        })
    }

    /// The same, with a copy of the image in the folder of the guests, so that it can be booted
    /// while its source and its objects change. The copy is there until the next one of this name.
    ///
    /// # Errors
    /// If the image cannot be copied.
    pub(crate) fn copied(self, paths: &Paths, name: &str) -> Result<Self> {
        let image = build::copied(paths, &self.image, name)?;
        Ok(Self { image, ..self })
    }
}

/// The same for a built kernel, whatever tests it has.
///
/// # Errors
/// The same, but for missing tests.
pub(crate) fn boot(paths: &Paths, kernel: &Kernel) -> Result<()> {
    let Kernel { name, config, image, suites } = kernel;
    let root = guest::root(paths, &[])?;
    let accel = qemu::accel(paths, image, &root)?;
    let outcome = qemu::boot(
        paths,
        &Boot {
            name,
            image,
            root: &root,
            command: READ,
            append: "",
            accel,
            limit: Duration::from_secs(match config {
                Config::Tiny | Config::TinyFaults | Config::Fast | Config::Faults => 120,
                Config::Debug | Config::Kcsan => 600,
            }),
            mem_mib: 2048,
            args: match config {
                Config::Tiny | Config::TinyFaults => TWO_SOCKETS,
                _ => &[],
            },
        },
    )?;
    if outcome.status != 0 {
        bail!("{name}: the reads failed with status {}:\n{}", outcome.status, outcome.output);
    }
    let tests = if suites.is_empty() {
        String::from("boots and reads")
    } else {
        passed(&outcome.console, suites, &[])?
    };
    println!("{name} ({}): {tests}", accel.name());
    Ok(())
}

/// What a get leaves on a frozen page cannot be counted where a get looks first.
const NO_TRACE: &[&str] = &["page_ref_test_wait_by_reading"];

/// Gives all hugetlb folios back. If a struct page was restored as another one than a plain tail,
/// `DEBUG_VM` reports a bad page. The hugetlb controller makes four struct pages special, not three.
const GIVE_BACK: &str = "set -e
test $(cat /proc/sys/vm/nr_hugepages) -gt 0
echo 0 > /proc/sys/vm/nr_hugepages
test $(cat /proc/sys/vm/nr_hugepages) -eq 0";

/// Boots the tiny patched kernel once more, for `KUnit`, with hugetlb folios whose tails' struct
/// pages are read-only, and then gives these folios back. From the first of them on, gets and puts
/// look before they write.
///
/// # Errors
/// If the boot fails, there is a splat, the folios cannot be given back, or a test fails, or another
/// one is skipped than `page_ref_test_wait_by_reading`. If that one is not skipped, the kernel has no
/// such folios.
pub(crate) fn kunit_beside_hugetlb(paths: &Paths) -> Result<()> {
    let (tree, config) = (Tree::Series, Config::Tiny);
    let image = build::image(paths, tree, config);
    let root = guest::root(paths, &[])?;
    let accel = qemu::accel(paths, &image, &root)?;
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: "boot-series-tiny-hugetlb",
            image: &image,
            root: &root,
            command: GIVE_BACK,
            append: "hugetlb_free_vmemmap=on hugepages=4",
            accel,
            limit: Duration::from_secs(120),
            mem_mib: 2048,
            args: TWO_SOCKETS,
        },
    )?;
    if outcome.status != 0 {
        bail!("boot-series-tiny-hugetlb: the folios were not given back:\n{}", outcome.output);
    }
    let tests = passed(&outcome.console, &Kernel::of(paths, tree, config)?.suites, NO_TRACE)?;
    println!("boot-series-tiny-hugetlb ({}): {tests}", accel.name());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const SUITE: &str = "\tKUNIT_CASE(page_ref_test_freeze),\n\tKUNIT_CASE_SLOW(page_ref_test_stress),\n\
                         \t.name = \"page_ref\",\n";

    #[test]
    fn every_kunit_case_must_pass() {
        let check = |summary: &str| kunit(&format!("x\n{summary}\nok 1 page_ref\n"), SUITE, &[]);
        let error = |summary: &str| check(summary).unwrap_err().to_string();
        assert_eq!(
            check("# page_ref: pass:2 fail:0 skip:0 total:2").unwrap(),
            "page_ref: pass:2 fail:0 skip:0 total:2"
        );
        assert!(
            error("    not ok 2 y\n# page_ref: pass:1 fail:1 skip:0 total:2")
                .contains("not ok 2 y")
        );
        // With a time before it, too, and whatever the summary says.
        assert!(
            error("[    1.234567]     not ok 2 y\n# page_ref: pass:2 fail:0 skip:0 total:2")
                .contains("not ok 2 y")
        );
        assert!(error("# page_ref: pass:1 fail:0 skip:1 total:2").contains("skip:1"));
        assert!(error("# page_ref: pass:0 fail:0 skip:2 total:2").contains("skip:2"));
        assert!(error("# page_ref: pass:1 fail:0 skip:0 total:1").contains("has 2 cases"));
        assert!(error("nothing").contains("no KUnit"));
    }

    #[test]
    fn a_suite_without_cases_does_not_pass() {
        let none = ".name = \"page_ref\",\n";
        kunit("# page_ref: pass:0 fail:0 skip:0 total:0\n", none, &[]).unwrap_err();
    }

    #[test]
    fn only_the_cases_that_are_named_may_be_skipped() {
        const ONE: &str = "# page_ref: pass:1 fail:0 skip:1 total:2";
        let check = |lines: &str| {
            kunit(&format!("{lines}\nok 1 page_ref\n"), SUITE, &["page_ref_test_stress", "other"])
        };
        let skip = |case: &str| format!("    ok 2 page_ref_test_{case} # SKIP no reason\n");
        let error = |lines: &str| check(lines).unwrap_err().to_string();
        assert_eq!(check(&(skip("stress") + ONE)).unwrap(), ONE[2..]);
        // Another one, both, or none.
        assert!(error(&(skip("freeze") + ONE)).contains("page_ref_test_stress was not skipped"));
        assert!(error(&(skip("stress_more") + ONE)).contains("was not skipped"));
        let both = skip("stress") + &skip("freeze");
        assert!(error(&(both + "# page_ref: pass:0 fail:0 skip:2 total:2")).contains("skip:2"));
        assert!(error("# page_ref: pass:2 fail:0 skip:0 total:2").contains("1 to be skipped"));
        assert!(error("# page_ref: pass:0 fail:1 skip:1 total:2").contains("fail:1"));
        // Where none may be, not this one either.
        kunit(&(skip("stress") + ONE), SUITE, &[]).unwrap_err();
    }

    #[test]
    fn the_case_that_is_skipped_is_one_of_the_series() {
        let series = concat!(env!("CARGO_MANIFEST_DIR"), "/../series");
        let patches = fs::read_dir(series).unwrap().map(|f| f.unwrap().path());
        let text: String = patches.map(|f| fs::read_to_string(f).unwrap()).collect();
        for case in NO_TRACE {
            assert!(text.contains(&format!("+\tKUNIT_CASE({case}),")), "{case}");
        }
    }
}
