//! Configures and builds one kernel, with its objects outside of the source tree.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::{cc, git, prepare, proc};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// How long a build may take: a debug kernel on one slow core.
pub(crate) const LONGEST: Duration = Duration::from_secs(3 * 3600);

/// The configuration fragments, in the order in which they override each other.
fn fragments(paths: &Paths, config: Config) -> Vec<PathBuf> {
    let dir = paths.kernel.join("lab/config");
    let names: &[&str] = match config {
        Config::Tiny => &["tiny.config"],
        Config::TinyFaults => &["tiny.config", "tiny-faults.config"],
        Config::Fast => &["fast.config"],
        Config::Debug => &["fast.config", "faults.config", "debug.config"],
        Config::Kcsan => &["fast.config", "faults.config", "debug.config", "kcsan.config"],
        Config::Faults => &["fast.config", "faults.config"],
    };
    names.iter().map(|name| dir.join(name)).collect()
}

/// The options that fragments ask for: name and value, `n` for "is not set".
pub(crate) fn requested(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("CONFIG_")?.split_once('='))
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

/// The requested options that a finished `.config` lacks. Of an option that was requested twice,
/// the last request counts.
pub(crate) fn lacking(config: &str, requested: &[(String, String)]) -> Vec<String> {
    let mut last = std::collections::BTreeMap::new();
    for (name, value) in requested {
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

/// The patches' `KUnit` suites: the option, and the file without its extension.
const SUITES: [(&str, &str); 5] = [
    ("CONFIG_PAGE_REF_KUNIT_TEST", "mm/page_ref_kunit"),
    ("CONFIG_PAGE_REF_KUNIT_TEST", "mm/page_ref_race_kunit"),
    ("CONFIG_SHORT_READS_KUNIT_TEST", "mm/short_read_kunit"),
    ("CONFIG_UNPIN_KUNIT_TEST", "mm/unpin_kunit"),
    ("CONFIG_FAULT_LOCK_KUNIT_TEST", "mm/fault_lock_kunit"),
];

/// The options that patches bring, each with a file that the same patch brings, or a later one
/// until which the option cannot be had together with others. A tree without the file is not asked
/// for the option.
const BROUGHT: [(&str, &str); 5] = [
    ("CONFIG_PAGE_REF_KUNIT_TEST", "mm/page_ref_kunit.c"),
    ("CONFIG_SHORT_READS", "include/linux/short_read.h"),
    ("CONFIG_SHORT_READS_KUNIT_TEST", "mm/short_read_kunit.c"),
    ("CONFIG_UNPIN_KUNIT_TEST", "mm/unpin_kunit.c"),
    ("CONFIG_FAULT_LOCK_KUNIT_TEST", "mm/fault_lock_kunit.c"),
];

/// The sources of the suites that a tree has. The last patches of the sub-series bring them.
pub(crate) fn tests(paths: &Paths, tree: Tree) -> Vec<PathBuf> {
    SUITES
        .iter()
        .map(|(_, suite)| paths.source(tree).join(suite).with_extension("c"))
        .filter(|file| file.is_file())
        .collect()
}

/// The sources of the suites that a configuration asks for, in a tree that may not have them.
pub(crate) fn tests_in(paths: &Paths, tree: Tree, configuration: &str) -> Vec<PathBuf> {
    let asked = requested(configuration);
    SUITES
        .iter()
        .filter(|(option, _)| {
            asked.iter().any(|(name, on)| option.strip_prefix("CONFIG_") == Some(name) && on == "y")
        })
        .map(|(_, suite)| paths.source(tree).join(suite).with_extension("c"))
        .collect()
}

/// All fragments of a configuration, as one text.
///
/// # Errors
/// If one cannot be read.
pub(crate) fn all_fragments(paths: &Paths, config: Config) -> Result<String> {
    let mut all = String::new();
    for fragment in fragments(paths, config) {
        all += &fs::read_to_string(&fragment)
            .with_context(|| format!("cannot read {}", fragment.display()))?;
    }
    Ok(all)
}

/// The same for a kernel, whose tree may lack the patches for some options.
///
/// # Errors
/// If a fragment cannot be read.
pub(crate) fn fragments_text(paths: &Paths, tree: Tree, config: Config) -> Result<String> {
    Ok(without_missing(paths, tree, all_fragments(paths, config)?))
}

/// A configuration without the options that the tree lacks the patches for.
pub(crate) fn without_missing(paths: &Paths, tree: Tree, mut configuration: String) -> String {
    for (option, file) in BROUGHT {
        if !paths.source(tree).join(file).is_file() {
            configuration = configuration.replace(&format!("{option}=y\n"), "");
        }
    }
    configuration
}

/// Whether a file has this content.
pub(crate) fn holds(file: &Path, text: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|found| found == text)
}

/// Writes the `.config` that these fragments make, unless it is there.
fn configure(paths: &Paths, tree: Tree, config: Config, fragments: &str) -> Result<()> {
    let objects = paths.objects(tree, config);
    let (stamp, dot_config) = (objects.join("lab-fragments"), objects.join(".config"));
    if !holds(&stamp, fragments) {
        fs::create_dir_all(&objects)?;
        // The stamp is removed first, so that a failure half-way does not look finished.
        prepare::remove_file(&stamp)?;
        let log = paths.log("configure");
        proc::run("configuring", make(paths, tree, config).arg("tinyconfig"), &log)?;
        let tiny = read(&dot_config)?;
        fs::write(&dot_config, tiny + fragments)?;
        proc::run("configuring", make(paths, tree, config).arg("olddefconfig"), &log)?;
        fs::write(&stamp, fragments).context("cannot record the configuration")?;
    }
    // Kconfig drops an option silently if its dependencies are off; then the tests would test
    // less than they seem to.
    let lacking = lacking(&read(&dot_config)?, &requested(fragments));
    if !lacking.is_empty() {
        bail!("{} lacks requested options: {}", dot_config.display(), lacking.join(", "));
    }
    Ok(())
}

pub(crate) fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// `make` in a source tree, with the objects in a folder of their own.
pub(crate) fn make(paths: &Paths, tree: Tree, config: Config) -> Command {
    make_in(paths, tree, &paths.objects(tree, config))
}

/// `make` in a source tree, with the objects in this folder.
pub(crate) fn make_in(paths: &Paths, tree: Tree, objects: &Path) -> Command {
    let jobs = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut make = Command::new("nice");
    // The kernel's build asks git for the source's version.
    git::without_variables(&mut make);
    make.args(["-n", "10", "make", "-s", &format!("-j{jobs}")])
        .arg("-C")
        .arg(paths.source(tree))
        .arg(format!("O={}", objects.display()))
        .env("KBUILD_BUILD_TIMESTAMP", "1970-01-01")
        .env("KBUILD_BUILD_USER", "lab")
        .env("KBUILD_BUILD_HOST", "lab");
    make
}

/// What a kernel is built from: the hash of the source, the hash of the configuration, and the
/// compiler's version.
///
/// # Errors
/// If one of them is not there.
pub(crate) fn inputs(paths: &Paths, tree: Tree, config: Config) -> Result<String> {
    let source = git::tree_hash(&paths.source(tree))?;
    let configuration = cc::hash(&fragments_text(paths, tree, config)?);
    Ok(format!("source {source}, configuration {configuration}, {}", cc::version()?))
}

fn inputs_file(paths: &Paths, tree: Tree, config: Config) -> PathBuf {
    paths.objects(tree, config).join("lab-inputs")
}

/// Builds a kernel, or brings it up to date, and returns its image.
///
/// # Errors
/// If the build fails; the error shows the end of its log.
pub(crate) fn build(paths: &Paths, tree: Tree, config: Config) -> Result<PathBuf> {
    let inputs = inputs(paths, tree, config)?;
    let record = inputs_file(paths, tree, config);
    prepare::remove_file(&record)?;
    configure(paths, tree, config, &fragments_text(paths, tree, config)?)?;
    let what = format!("building {} {}", tree.name(), config.name());
    let log = paths.log(&format!("build-{}-{}", tree.name(), config.name()));
    proc::run_for(&what, make(paths, tree, config).arg("bzImage"), &log, LONGEST)?;
    fs::write(record, inputs).context("cannot record what a kernel was built from")?;
    Ok(image(paths, tree, config))
}

/// The path of a build's image.
pub(crate) fn image(paths: &Paths, tree: Tree, config: Config) -> PathBuf {
    paths.objects(tree, config).join("arch/x86/boot/bzImage")
}

/// Copies an image to the folder of the guests, so that it can be booted while the kernel is built
/// again. It replaces one of the same name.
///
/// # Errors
/// If it cannot be copied.
pub(crate) fn copied(paths: &Paths, image: &Path, name: &str) -> Result<PathBuf> {
    let copy = paths.guest(&format!("{name}.bzImage"));
    fs::copy(image, &copy).with_context(|| format!("cannot copy {}", image.display()))?;
    Ok(copy)
}

/// Whether a kernel was built from the source, configuration and compiler that are there now.
pub(crate) fn is_current(paths: &Paths, tree: Tree, config: Config) -> bool {
    inputs(paths, tree, config).is_ok_and(|now| holds(&inputs_file(paths, tree, config), &now))
}

/// Exports the kernel's headers to the folder in which the selftests look for them.
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

/// `bloat-o-meter`, plain against patched, without the symbols of the `KUnit` tests.
///
/// # Errors
/// If one of the kernels is not built.
pub(crate) fn bloat(paths: &Paths) -> Result<String> {
    let [old, new] =
        [Tree::Plain, Tree::Series].map(|tree| paths.objects(tree, Config::Fast).join("vmlinux"));
    let script = paths.source(Tree::Plain).join("scripts/bloat-o-meter");
    let all = proc::output(Command::new("python3").arg(script).args([&old, &new]))?;
    let objects = paths.objects(Tree::Series, Config::Fast);
    let source = paths.source(Tree::Series);
    let tests = SUITES
        .iter()
        .filter(|(_, suite)| source.join(suite).with_extension("c").is_file())
        .map(|(_, suite)| objects.join(suite).with_extension("o"));
    let symbols = proc::output(Command::new("nm").args(tests))?;
    Ok(sum_bloat(&all, &symbols))
}

/// Sums `bloat-o-meter`'s rows (name, old, new, difference), except those of the symbols that
/// `nm` lists.
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

/// The instructions of one function of a built kernel, or of a program.
///
/// # Errors
/// If the file is not there, or has no such function.
pub(crate) fn disassemble(binary: &Path, function: &str) -> Result<Vec<String>> {
    let out = proc::output(
        Command::new("objdump")
            .args(["-d", "--no-show-raw-insn", &format!("--disassemble={function}")])
            .arg(binary),
    )?;
    let is_instruction = |l: &&str| {
        l.split_once(":\t")
            .is_some_and(|(address, _)| address.trim().chars().all(|c| c.is_ascii_hexdigit()))
    };
    let lines: Vec<_> = out.lines().filter(is_instruction).map(str::to_string).collect();
    if lines.len() < 2 {
        bail!("{} has no function {function}", binary.display());
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
    fn a_suite_is_expected_where_its_option_is_on() {
        let paths = Paths::new("kernel", "cache");
        let names = |text: &str| {
            let name = |path: &PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
            tests_in(&paths, Tree::Series, text).iter().map(name).collect::<Vec<_>>()
        };
        let (refs, reads) = ("CONFIG_PAGE_REF_KUNIT_TEST", "CONFIG_SHORT_READS_KUNIT_TEST");
        assert_eq!(
            names(&format!("{refs}=y\n{reads}=n\n")),
            ["page_ref_kunit", "page_ref_race_kunit"]
        );
        assert_eq!(names(&format!("{reads}=y\n")), ["short_read_kunit"]);
        assert_eq!(names("CONFIG_SHORT_READS=y\n"), Vec::<String>::new());
    }

    #[test]
    fn an_option_is_asked_only_of_a_tree_that_has_it() {
        let (_dir, paths) = lab();
        request(&paths, "CONFIG_A=y\nCONFIG_SHORT_READS=y\nCONFIG_SHORT_READS_KUNIT_TEST=y\n");
        let text = || fragments_text(&paths, Tree::Series, Config::Fast).unwrap();
        assert_eq!(text(), "CONFIG_A=y\n");
        let include = paths.source(Tree::Series).join("include/linux");
        fs::create_dir_all(&include).unwrap();
        fs::write(include.join("short_read.h"), "").unwrap();
        assert_eq!(text(), "CONFIG_A=y\nCONFIG_SHORT_READS=y\n");
    }

    /// Else nothing of it is compiled after each patch.
    #[test]
    fn what_the_patches_of_faults_have_under_an_option_is_asked_for() {
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let paths = Paths::new(kernel, "cache");
        let asked = requested(&all_fragments(&paths, Config::TinyFaults).unwrap());
        let mut options = std::collections::BTreeSet::new();
        for folder in ["faults", "faults-hold"] {
            for patch in crate::series::patches_in(&paths, folder).unwrap() {
                let text = fs::read_to_string(patch).unwrap();
                for line in text.lines().filter_map(|line| line.strip_prefix('+')) {
                    options.extend(line.strip_prefix("config ").map(str::to_string));
                    for rest in line.split("CONFIG_").skip(1) {
                        let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_');
                        options.insert(rest[..end.unwrap_or(rest.len())].to_string());
                    }
                }
            }
        }
        assert!(
            options.contains("PER_VMA_LOCK_STATS") && options.contains("FAULT_LOCK_KUNIT_TEST")
        );
        for option in options.iter().map(String::as_str).chain(["TRACEPOINTS"]) {
            assert!(asked.iter().any(|(name, value)| name == option && value == "y"), "{option}");
        }
    }

    #[test]
    fn a_dropped_option_is_found() {
        let requested = requested(
            "# c\nCONFIG_A=y\nCONFIG_B=n\nCONFIG_C=8\nCONFIG_AB=y\nCONFIG_D=y\nCONFIG_D=n\n",
        );
        let config = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=8\nCONFIG_AB=m\n";
        assert_eq!(lacking(config, &requested), ["CONFIG_AB=y"]);
        assert_eq!(
            lacking("CONFIG_C=8\nCONFIG_AB=y\nCONFIG_B=y\n", &requested),
            ["CONFIG_A=y", "CONFIG_B=n"]
        );
    }

    /// Two small trees with the Makefile targets of a kernel.
    fn lab() -> (tempfile::TempDir, Paths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path().join("kernel"), dir.path());
        for tree in [Tree::Plain, Tree::Series] {
            let source = paths.source(tree);
            fs::create_dir_all(&source).unwrap();
            let makefile = "tinyconfig:\n\techo CONFIG_TINY=y > $(O)/.config\n\
                            olddefconfig:\n\ttest ! -e $(O)/fail\n\
                            bzImage:\n\tmkdir -p $(O)/arch/x86/boot && cp $(O)/.config $(O)/arch/x86/boot/bzImage\n";
            fs::write(source.join("Makefile"), makefile).unwrap();
            for args in [&["init", "-q", "."][..], &["add", "."], &["commit", "-qm", "base"]] {
                git::git(&source, args).unwrap();
            }
        }
        for dir in ["kernel/lab/config", "log"] {
            fs::create_dir_all(paths.cache.join(dir)).unwrap();
        }
        request(&paths, "CONFIG_A=y\n");
        (dir, paths)
    }

    fn request(paths: &Paths, text: &str) {
        fs::write(paths.kernel.join("lab/config/fast.config"), text).unwrap();
    }

    #[test]
    fn a_configuration_that_failed_half_way_is_made_again() {
        let (_dir, paths) = lab();
        let build = || build(&paths, Tree::Plain, Config::Fast);
        let dot_config = paths.objects(Tree::Plain, Config::Fast).join(".config");
        build().unwrap();
        request(&paths, "CONFIG_B=y\n");
        let fail = dot_config.with_file_name("fail");
        fs::write(&fail, "").unwrap();
        build().unwrap_err();
        fs::remove_file(fail).unwrap();
        request(&paths, "CONFIG_A=y\n");
        build().unwrap();
        assert_eq!(fs::read_to_string(&dot_config).unwrap(), "CONFIG_TINY=y\nCONFIG_A=y\n");

        fs::write(&dot_config, "CONFIG_TINY=y\n").unwrap();
        let error = build().unwrap_err().to_string();
        assert!(error.contains("lacks requested options: CONFIG_A=y"), "{error}");
    }

    #[test]
    fn a_kernel_is_current_until_its_own_source_or_configuration_changes() {
        let (_dir, paths) = lab();
        let current = || [Tree::Plain, Tree::Series].map(|t| is_current(&paths, t, Config::Fast));
        for tree in [Tree::Plain, Tree::Series] {
            build(&paths, tree, Config::Fast).unwrap();
        }
        assert_eq!(current(), [true, true]);
        let source = paths.source(Tree::Series);
        git::git(&source, &["commit", "-q", "--allow-empty", "-m", "other words"]).unwrap();
        assert_eq!(current(), [true, true]);
        fs::write(source.join("a.c"), "").unwrap();
        git::git(&source, &["add", "."]).unwrap();
        git::git(&source, &["commit", "-qm", "patch"]).unwrap();
        assert_eq!(current(), [true, false]);
        build(&paths, Tree::Series, Config::Fast).unwrap();
        request(&paths, "CONFIG_A=y\nCONFIG_B=y\n");
        assert_eq!(current(), [false, false]);
    }
}
