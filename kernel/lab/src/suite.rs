//! `kernel check` builds both kernels, boots them, and counts; `kernel test` adds
//! the selftests, its `--full` the debug kernels and the stress, its `--each`
//! every patch by itself.

use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot, Outcome};
use crate::{Config, Tree, bench, build, guest, prepare, selftests, series, stress};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::Duration;

/// `kernel run`: one command in one kernel, its output on stdout.
///
/// # Errors
/// Those of the boot, and the command's own failure.
pub(crate) fn run_command(paths: &Paths, image: &Path, command: &str, limit_s: u64) -> Result<()> {
    let root = guest::root(paths, &[])?;
    let accel = accel(paths, image, &root)?;
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: "run",
            image,
            root: &root,
            command,
            append: "kunit.enable=0",
            accel,
            limit: Duration::from_secs(limit_s),
            mem_mib: 2048,
            args: &[],
        },
    )?;
    print!("{}", outcome.output);
    if outcome.status != 0 {
        bail!("the command failed with status {}", outcome.status);
    }
    Ok(())
}

/// What to boot tests with: KVM where it works, emulation where not.
pub(crate) fn accel(paths: &Paths, image: &Path, root: &Path) -> Result<Accel> {
    Ok(if qemu::kvm_works(paths, image, root)? { Accel::Kvm } else { Accel::Tcg })
}

/// The `KUnit` results in a kernel's log: the summary of our suite.
fn kunit(console: &str) -> Result<String> {
    let line = console
        .lines()
        .find(|l| l.contains("# page_ref: pass:"))
        .context("the kernel's log has no KUnit results of page_ref")?;
    let failed = console
        .lines()
        .filter(|l| l.trim_start().starts_with("not ok"))
        .collect::<Vec<_>>()
        .join("\n");
    if !failed.is_empty() || !line.contains("fail:0") {
        bail!("KUnit: {line}\n{failed}");
    }
    Ok(line.trim_start_matches([' ', '#']).to_string())
}

/// Readers of tmpfs, and of ext4 where there is a disk.
const READ: &str = "set -e
for f in /tmp/x /mnt/x; do
pread_bench -t 2 -s 0.3 $f; pread_bench -p 2 -s 0.3 $f
done";

/// Without ACPI a kernel finds the CPUs that the firmware's MP table has: one a socket.
/// The others stay with one socket, across which it would not trust the TSC.
const TWO_SOCKETS: &[&str] = &["-smp", "2,sockets=2,cores=1"];

/// Boots once to see that the kernel is sound: `KUnit` runs, and its file systems
/// are read by two threads and two processes.
///
/// # Errors
/// A boot that fails, a splat, a failing test.
pub(crate) fn smoke(paths: &Paths, tree: Tree, config: Config) -> Result<Outcome> {
    let image = build::image(paths, tree, config);
    let root = guest::root(paths, &[])?;
    let accel = accel(paths, &image, &root)?;
    let name = format!("boot-{}-{}", tree.name(), config.name());
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: &name,
            image: &image,
            root: &root,
            command: READ,
            append: "",
            accel,
            limit: Duration::from_secs(match config {
                Config::Tiny | Config::Fast => 120,
                Config::Debug | Config::Kcsan => 600,
            }),
            mem_mib: 2048,
            args: if config == Config::Tiny { TWO_SOCKETS } else { &[] },
        },
    )?;
    if outcome.status != 0 {
        bail!("{name}: reading failed with status {}:\n{}", outcome.status, outcome.output);
    }
    let tests = if build::has_tests(paths, tree) {
        kunit(&outcome.console)?
    } else {
        String::from("boots and reads")
    };
    println!("{name} ({}): {tests}", accel.name());
    Ok(outcome)
}

/// `kernel check`: what every change of the project has to pass. Quickest first: the
/// tiny kernel alone has the checks of `DEBUG_VM`.
///
/// # Errors
/// The first thing that is not as it should be.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    prepare::prepare(paths)?;
    let count = series::check_style(paths)?;
    println!("series: {count} patches apply; checkpatch.pl --strict is clean");
    for (tree, config) in
        [(Tree::Series, Config::Tiny), (Tree::Plain, Config::Fast), (Tree::Series, Config::Fast)]
    {
        build::build(paths, tree, config)?;
        smoke(paths, tree, config)?;
    }
    bench::bench(paths)?;
    println!("kernel check: passed");
    Ok(())
}

/// `kernel test`: the same, and what takes longer.
///
/// # Errors
/// The first thing that is not as it should be.
pub(crate) fn test(paths: &Paths, full: bool, each: bool) -> Result<()> {
    check(paths)?;
    selftests::compare(paths)?;
    if each {
        each_patch(paths)?;
    }
    if full {
        stress::series(paths, Config::Debug, stress::Load::default())?;
        stress::series(paths, Config::Kcsan, stress::Load::default())?;
    }
    println!("kernel test: passed");
    Ok(())
}

/// Builds and boots a tiny kernel after each patch.
fn each_patch(paths: &Paths) -> Result<()> {
    let patches = series::patches(paths)?;
    let before = series::Times::of(&paths.source(Tree::Series));
    let tree = series::checkout(paths)?;
    for patch in &patches {
        series::apply_one(&tree, patch)?;
        let name = patch.file_name().unwrap_or_default().to_string_lossy().into_owned();
        build::build(paths, Tree::Series, Config::Tiny)
            .and_then(|_| smoke(paths, Tree::Series, Config::Tiny))
            .with_context(|| format!("after {name}"))?;
        println!("{name}: builds and boots");
    }
    before.restore(&tree)?;
    series::record(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kunit_results_are_judged() {
        let good = "x\n# page_ref: pass:10 fail:0 skip:0 total:10\nok 1 page_ref\n";
        assert!(kunit(good).unwrap().starts_with("page_ref: pass:10"));
        let bad = "    not ok 3 y\n# page_ref: pass:9 fail:1 skip:0 total:10\n";
        assert!(kunit(bad).unwrap_err().to_string().contains("not ok 3 y"));
        assert!(kunit("nothing\n").unwrap_err().to_string().contains("no KUnit"));
    }
}
