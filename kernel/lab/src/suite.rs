//! `lab check` checks the lab itself, the patches, one tiny kernel with all of them, and the litmus
//! tests. `lab test` adds the fast kernels, counts of instructions, the races of short reads, the
//! counts of pins, the kernel's selftests, the selftest of page faults that wait, and the mutants; its
//! `--full` adds the debug kernels, and its `--each` builds and boots every patch by itself.

use crate::failures::Failures;
use crate::kernels::{Config, Tree};
use crate::overlap::Building;
use crate::paths::Paths;
use crate::qemu::{self, Boot};
use crate::smoke::Kernel;
use crate::steps::Steps;
use crate::{
    bench, build, cores, cover, faults, fixes, guest, litmus, mutants, overlap, own, pins, prepare,
    reads, selftests, series, smoke, stress,
};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `lab run`: boots a kernel with these parameters, runs a command in it, and prints its output.
///
/// # Errors
/// If the boot or the command fails.
pub(crate) fn run_command(
    paths: &Paths,
    image: &Path,
    command: &str,
    append: &str,
    limit_s: u64,
) -> Result<()> {
    let root = guest::root(paths, &[])?;
    let accel = qemu::accel(paths, image, &root)?;
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: "run",
            image,
            root: &root,
            command,
            append: &format!("kunit.enable=0 {append}"),
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

/// Checks the style of the patches, that each fix is a mail of its own, and that the mutants apply.
fn sources(paths: &Paths) -> Result<()> {
    let mut failed = Failures::default();
    let mut check = |step: Result<String>| failed.of(step.map(|line| println!("{line}")));
    check(
        series::check_style(paths)
            .map(|n| format!("patches: checkpatch.pl --strict: {n} are clean")),
    );
    check(series::check_apart(paths).map(|()| "series: each applies by itself".to_string()));
    check(
        fixes::check(paths)
            .map(|n| format!("fixes: each of {n} applies by itself, and is addressed")),
    );
    check(cover::check(paths).map(|n| format!("series: {n} cover letters are up to date")));
    check(mutants::check(paths).map(|n| format!("mutants: {n} apply")));
    failed.end()
}

/// `lab check`: what every change has to pass, in minutes. The lab's own code, the patches, one tiny
/// kernel with all of them, and the litmus tests.
///
/// # Errors
/// The first step that fails.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    own::check(paths)?;
    tiny(paths)?;
    litmus::run(paths, None, false)?;
    println!("lab check: passed");
    Ok(())
}

/// Checks the patches, builds the tiny patched kernel, and runs its `KUnit` tests with the checks of
/// `DEBUG_VM`.
fn tiny(paths: &Paths) -> Result<()> {
    prepare::prepare(paths)?;
    let (tree, config) = (Tree::Series, Config::Tiny);
    let building = {
        let paths = paths.clone();
        Building::begin(move || build::build(&paths, tree, config).map(drop))
    };
    // These keep one CPU busy.
    sources(paths)?;
    building.end()?;
    smoke::smoke(paths, tree, config)?;
    smoke::kunit_beside_hugetlb(paths)
}

/// Builds and boots the fast kernels, and checks their code on the host's cores.
fn fast(paths: &Paths) -> Result<()> {
    for tree in [Tree::Plain, Tree::Series] {
        build::build(paths, tree, Config::Fast)?;
        smoke::smoke(paths, tree, Config::Fast)?;
    }
    cores::smoke(paths)
}

/// `lab test`: the same, and the steps that take longer.
///
/// # Errors
/// The first step that fails.
pub(crate) fn test(paths: &Paths, full: bool, each: bool) -> Result<()> {
    prepare::prepare(paths)?;
    let steps = Steps::of(paths, "test")?;
    steps.step("check", || check(paths))?;
    steps.step("fast kernels", || fast(paths))?;
    let faults = "page faults that wait";
    let building = (!steps.has(faults)).then(|| faults::begin_build(paths)).transpose()?;
    steps.step("counts of instructions", || bench::bench(paths, None))?;
    steps.step("races of short reads", || reads::all(paths))?;
    steps.step("pins", || pins::pins(paths, None).and_then(|()| pins::mutant_of_moving(paths)))?;
    // The mutants change the patched source, of which the others need a kernel that is built.
    overlap::side_by_side(
        || steps.step("mutants", || mutants::mutants(&paths.beside(), &[])),
        || {
            steps.step("selftests", || selftests::compare(paths))?;
            building.map_or(Ok(()), Building::end)?;
            steps.step(faults, || faults::test(paths))
        },
    )?;
    if each {
        steps.step("a kernel after each patch", || each_patch(paths, &steps))?;
    }
    if full {
        let stress = |config| stress::series(paths, config, stress::Load::default());
        steps.step("page faults that wait on the debug kernel", || faults::debug(paths))?;
        steps.step("mutants of page faults", || faults::mutants(paths, &[]))?;
        steps.step("stress on the debug kernel", || stress(Config::Debug))?;
        steps.step("stress with KCSAN", || stress(Config::Kcsan))?;
    }
    steps.end()
}

/// `lab mutants`: breaks the patched kernel by all mutants, or by those that are named.
///
/// # Errors
/// The first mutant that is not noticed.
pub(crate) fn mutants(paths: &Paths, only: &[String]) -> Result<()> {
    mutants::mutants(paths, only)?;
    // It has no `KUnit` case, and so no file beside the others.
    if only.is_empty() { pins::mutant_of_moving(paths) } else { Ok(()) }
}

/// `lab selftests`: the step of `lab test` that takes longest.
///
/// # Errors
/// If a kernel does not build, or a selftest has another result than is known.
pub(crate) fn selftests(paths: &Paths) -> Result<()> {
    prepare::prepare(paths)?;
    for tree in [Tree::Plain, Tree::Series] {
        build::build(paths, tree, Config::Fast)?;
    }
    selftests::compare(paths)
}

/// `lab each`: what `lab test --each` does besides.
///
/// # Errors
/// If a patch does not apply, or its kernel does not build, boot, or pass its tests.
pub(crate) fn each(paths: &Paths) -> Result<()> {
    prepare::prepare(paths)?;
    let steps = Steps::of(paths, "each")?;
    each_patch(paths, &steps)?;
    steps.end()
}

/// Builds and boots a tiny kernel after each patch: all that make the patched kernel, and those of
/// the alternative to the last of its series. What page faults that wait change is partly under
/// options that the tiny kernel does not have, so they get a configuration of their own.
fn each_patch(paths: &Paths, steps: &Steps) -> Result<()> {
    for (tree, first) in
        [(Tree::Series, 0), (Tree::Hold, series::below(paths, series::ALTERNATIVE)?.len())]
    {
        let patches = series::patches(paths, tree)?;
        let before = series::Times::of(&paths.source(tree));
        let source = series::checkout(paths, tree)?;
        let build = |(at, patch): (usize, &PathBuf), copy: &str| {
            series::apply_one(&source, patch)?;
            let name = patch.strip_prefix(&paths.kernel)?.display().to_string();
            if at < first || steps.has(&name) {
                return Ok(None);
            }
            let config = if is_of_faults(patch) { Config::TinyFaults } else { Config::Tiny };
            build::build(paths, tree, config).with_context(|| format!("after {name}"))?;
            Ok(Some((Kernel::of(paths, tree, config)?.copied(paths, copy)?, name)))
        };
        let boot = |built: Option<(Kernel, String)>| {
            let Some((kernel, name)) = built else { return Ok(()) };
            smoke::boot(paths, &kernel).with_context(|| format!("after {name}"))?;
            println!("{name}: builds and boots");
            steps.pass(&name)
        };
        overlap::builds_and_boots(patches.iter().enumerate(), build, boot)?;
        before.restore(&source)?;
        series::record(paths, tree)?;
    }
    Ok(())
}

fn is_of_faults(patch: &Path) -> bool {
    patch
        .parent()
        .is_some_and(|folder| folder.ends_with("faults") || folder.ends_with(series::ALTERNATIVE))
}
