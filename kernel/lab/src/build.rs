//! Configuring and building one kernel out of tree.

use crate::paths::Paths;
use crate::{Config, Tree, proc};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// The configuration fragments, in the order in which they override each other.
fn fragments(paths: &Paths, config: Config) -> Vec<PathBuf> {
    let dir = paths.kernel.join("lab/config");
    let names: &[&str] = match config {
        Config::Tiny => &["tiny.config"],
        Config::Fast => &["fast.config"],
        Config::Debug => &["fast.config", "debug.config"],
        Config::Kcsan => &["fast.config", "debug.config", "kcsan.config"],
    };
    names.iter().map(|name| dir.join(name)).collect()
}

/// What a fragment asks for: symbol and value, `n` for "is not set".
fn wishes(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("CONFIG_")?.split_once('='))
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

/// The wishes that a finished `.config` does not grant.
fn ungranted(config: &str, wishes: &[(String, String)]) -> Vec<String> {
    let mut last = std::collections::BTreeMap::new();
    for (name, value) in wishes {
        last.insert(name, value);
    }
    last.into_iter()
        .filter(|(name, value)| {
            let set = config.lines().find_map(|l| {
                l.strip_prefix("CONFIG_")?.strip_prefix(name.as_str())?.strip_prefix('=')
            });
            set.unwrap_or("n") != value.as_str()
        })
        .map(|(name, value)| format!("CONFIG_{name}={value}"))
        .collect()
}

/// Where a tree has the series' `KUnit` tests.
pub(crate) fn tests(paths: &Paths, tree: Tree) -> PathBuf {
    paths.source(tree).join("mm/page_ref_kunit.c")
}

/// Whether a tree has them, which a part of the series has not.
pub(crate) fn has_tests(paths: &Paths, tree: Tree) -> bool {
    tests(paths, tree).is_file()
}

fn configure(paths: &Paths, tree: Tree, config: Config) -> Result<()> {
    let objects = paths.objects(tree, config);
    let mut all = String::new();
    for fragment in fragments(paths, config) {
        all += &fs::read_to_string(&fragment)
            .with_context(|| format!("cannot read {}", fragment.display()))?;
    }
    // A tree that has no KUnit tests yet cannot be asked for them.
    if !has_tests(paths, tree) {
        all = all.replace("CONFIG_PAGE_REF_KUNIT_TEST=y\n", "");
    }
    let stamp = objects.join("lab-fragments");
    if fs::read_to_string(&stamp).ok().as_deref() == Some(all.as_str()) {
        return Ok(());
    }
    fs::create_dir_all(&objects)?;
    let merged = objects.join("lab.config");
    fs::write(&merged, &all)?;
    let script = format!(
        "make -s O={o} tinyconfig && cat {m} >> {o}/.config && make -s O={o} olddefconfig",
        o = objects.display(),
        m = merged.display()
    );
    proc::run(
        "configuring",
        Command::new("sh").args(["-c", &script]).current_dir(paths.source(tree)),
        &paths.log("configure"),
    )?;
    // A wish that Kconfig drops without a word would make the tests test less.
    let done = fs::read_to_string(objects.join(".config"))?;
    let missing = ungranted(&done, &wishes(&all));
    if !missing.is_empty() {
        bail!("this kernel does not grant: {}", missing.join(", "));
    }
    fs::write(stamp, all).context("cannot record the configuration")
}

/// `make` in a source tree, with the objects in their folder.
pub(crate) fn make(paths: &Paths, tree: Tree, config: Config) -> Command {
    let jobs = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut make = Command::new("nice");
    make.args(["-n", "10", "make", "-s", &format!("-j{jobs}")])
        .arg("-C")
        .arg(paths.source(tree))
        .arg(format!("O={}", paths.objects(tree, config).display()))
        .env("KBUILD_BUILD_TIMESTAMP", "1970-01-01")
        .env("KBUILD_BUILD_USER", "lab")
        .env("KBUILD_BUILD_HOST", "lab");
    make
}

/// Builds a kernel, or brings it up to date, and returns its image.
///
/// # Errors
/// The compiler's, with the end of its log.
pub(crate) fn build(paths: &Paths, tree: Tree, config: Config) -> Result<PathBuf> {
    configure(paths, tree, config)?;
    let what = format!("building {} {}", tree.name(), config.name());
    let log = paths.log(&format!("build-{}-{}", tree.name(), config.name()));
    proc::run(&what, make(paths, tree, config).arg("bzImage"), &log)?;
    Ok(image(paths, tree, config))
}

/// Where the image of a build lies.
pub(crate) fn image(paths: &Paths, tree: Tree, config: Config) -> PathBuf {
    paths.objects(tree, config).join("arch/x86/boot/bzImage")
}

/// Whether the image of a build is there and younger than the series as applied.
pub(crate) fn is_current(paths: &Paths, tree: Tree, config: Config) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let image = time(&image(paths, tree, config));
    image.is_some() && image > time(&paths.cache.join("src/applied"))
}

/// Puts the kernel's exported headers where the selftests look for them.
///
/// # Errors
/// As `build`.
pub(crate) fn headers(paths: &Paths) -> Result<PathBuf> {
    proc::run(
        "exporting headers",
        make(paths, Tree::Plain, Config::Fast).arg("headers"),
        &paths.log("headers"),
    )?;
    Ok(paths.objects(Tree::Plain, Config::Fast).join("usr/include"))
}

/// `bloat-o-meter`, plain against patched, without the tests' own symbols.
///
/// # Errors
/// If one of the kernels is not built.
pub(crate) fn bloat(paths: &Paths) -> Result<String> {
    let [old, new] =
        [Tree::Plain, Tree::Series].map(|tree| paths.objects(tree, Config::Fast).join("vmlinux"));
    let script = paths.source(Tree::Plain).join("scripts/bloat-o-meter");
    let all = proc::output(Command::new("python3").arg(script).args([&old, &new]))?;
    let tests = paths.objects(Tree::Series, Config::Fast).join("mm/page_ref_kunit.o");
    let symbols = proc::output(Command::new("nm").arg(tests))?;
    Ok(sum_bloat(&all, &symbols))
}

/// Sums `bloat-o-meter`'s rows (name, old, new, difference) but those of `nm`'s symbols.
fn sum_bloat(rows: &str, symbols: &str) -> String {
    let tests: Vec<_> = symbols.lines().filter_map(|l| l.split_whitespace().last()).collect();
    // bloat-o-meter strips the numbers that the compiler appends to names.
    let is_test = |name: &str| tests.iter().any(|t| t.split('.').next() == Some(name));
    let (mut grown, mut shrunk, mut functions) = (0_i64, 0_i64, 0);
    for row in rows.lines() {
        let [name, _, _, difference] = row.split_whitespace().collect::<Vec<_>>()[..] else {
            continue;
        };
        let Ok(difference) = difference.parse::<i64>() else {
            continue;
        };
        if is_test(name.split('.').next().unwrap_or(name)) {
            continue;
        }
        functions += 1;
        if difference > 0 {
            grown += difference;
        } else {
            shrunk += difference;
        }
    }
    let total = rows.lines().last().unwrap_or_default();
    format!(
        "{functions} symbols differ: {grown:+} {shrunk:+} = {:+} bytes\nwith the KUnit tests: {total}",
        grown + shrunk
    )
}

/// The instructions of one function of a built kernel.
///
/// # Errors
/// If the kernel is not built, or has no such function.
pub(crate) fn disassemble(vmlinux: &Path, function: &str) -> Result<Vec<String>> {
    let out = proc::output(
        Command::new("objdump")
            .args(["-d", "--no-show-raw-insn", &format!("--disassemble={function}")])
            .arg(vmlinux),
    )?;
    let lines: Vec<_> = out.lines().filter(|l| l.starts_with("ffff")).map(str::to_string).collect();
    if lines.len() < 2 {
        bail!("{} has no function {function}", vmlinux.display());
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_do_not_count_as_bloat() {
        let rows = "add/remove: 1/0\nFunction old new delta\na.cold 10 30 +20\nb 10 5 -5\nt_case - 90 +90\n\
                    Total: Before=1, After=2, chg +1%\n";
        let text = sum_bloat(rows, "0000 t t_case\n0000 r x.1\n");
        assert!(text.starts_with("2 symbols differ: +20 -5 = +15 bytes"), "{text}");
    }

    #[test]
    fn a_dropped_wish_is_found() {
        let wishes = wishes(
            "# c\nCONFIG_A=y\nCONFIG_B=n\nCONFIG_C=8\nCONFIG_AB=y\nCONFIG_D=y\nCONFIG_D=n\n",
        );
        let config = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=8\nCONFIG_AB=m\n";
        assert_eq!(ungranted(config, &wishes), ["CONFIG_AB=y"]);
        assert_eq!(
            ungranted("CONFIG_C=8\nCONFIG_AB=y\nCONFIG_B=y\n", &wishes),
            ["CONFIG_A=y", "CONFIG_B=n"]
        );
    }
}
