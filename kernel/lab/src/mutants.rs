//! `lab mutants`: the patches of `kernel/mutants` break the patched kernel on purpose, each in
//! one way, and a `KUnit` case must notice. A test that notices nothing shows nothing.

mod in_part;

use crate::chosen::chosen;
use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Boot, Ran};
use crate::{build, git, guest, overlap, pins, prepare, series, smoke};
use anyhow::{Context, Result, bail};
use in_part::InPart;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The line of a mutant's patch that names the case.
const NOTICED_BY: &str = "Noticed by: ";
/// The line that names the source of a warning that must come as well, if there is one.
const WARNS_IN: &str = "Warns in: ";

/// The line that names the sources that are compiled with a changed header.
const COMPILED_IN: &str = "Compiled in: ";

/// A patch that breaks the kernel, and the `KUnit` case that must notice.
#[derive(Debug, PartialEq)]
struct Mutant {
    name: String,
    file: PathBuf,
    case: String,
    warns: Option<String>,
    in_part: InPart,
}

/// Reads a mutant. `suites` are the sources of all `KUnit` suites.
///
/// # Errors
/// If the patch does not say what is broken and which case notices, or no suite has that case.
fn parse(file: &Path, text: &str, suites: &str) -> Result<Mutant> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let head = text.split("diff --git ").next().unwrap_or_default();
    let line = |begins: &str| head.lines().find_map(|l| l.strip_prefix(begins));
    let case = line(NOTICED_BY)
        .with_context(|| format!("{name}: no line `{NOTICED_BY}CASE` before the patch"))?;
    if head.lines().next().is_none_or(|l| l.is_empty() || l.starts_with(NOTICED_BY)) {
        bail!("{name}: does not begin with what is broken");
    }
    if !suites.contains(&format!("KUNIT_CASE({case})")) {
        bail!("{name}: no KUnit suite has the case {case}");
    }
    let warns = line(WARNS_IN).map(str::to_string);
    let in_part = InPart {
        headers: text.lines().filter_map(changed_header).map(str::to_string).collect(),
        sources: line(COMPILED_IN)
            .map(|names| names.split(", ").map(str::to_string).collect())
            .unwrap_or_default(),
    };
    if in_part.headers.is_empty() != in_part.sources.is_empty() {
        bail!("{name}: a line `{COMPILED_IN}SOURCE, ...` belongs to a change of a header");
    }
    Ok(Mutant { name, file: file.to_path_buf(), case: case.to_string(), warns, in_part })
}

/// The header that the part of a patch which begins with this line changes.
fn changed_header(line: &str) -> Option<&str> {
    line.strip_prefix("+++ b/").filter(|name| Path::new(name).extension().is_some_and(|e| e == "h"))
}

/// The sources of the `KUnit` suites of a tree, one after the other.
///
/// # Errors
/// If one cannot be read.
pub(crate) fn suites(paths: &Paths, tree: Tree) -> Result<String> {
    build::tests(paths, tree).iter().map(|file| build::read(file)).collect()
}

/// All mutants, by name.
fn all(paths: &Paths) -> Result<Vec<Mutant>> {
    let suites = suites(paths, Tree::Series)?;
    let dir = paths.kernel.join("mutants");
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let file = entry?.path();
        if file.extension().is_some_and(|e| e == "patch") {
            found.push(parse(&file, &build::read(&file)?, &suites)?);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The patches of the folders in `kernel/mutants`, with the tree that each is for. Other commands
/// build them, and hours may pass before they do.
fn beside(paths: &Paths) -> Result<Vec<(Tree, Vec<PathBuf>)>> {
    let file = |patch: &str| paths.kernel.join(patch);
    let pins = [pins::PAGE_BY_PAGE, pins::MOVES_ONE_PIN];
    let mut found = vec![
        (Tree::Drop, series::patches_in(paths, "mutants/faults")?),
        (Tree::Series, series::patches_in(paths, "mutants/reads")?),
    ];
    found.extend(pins.iter().map(|variant| (variant.tree, vec![file(variant.patch)])));
    if series::patches_in(paths, "mutants/pins")?.len() != pins.len() {
        bail!("kernel/mutants/pins has not {} patches", pins.len());
    }
    Ok(found)
}

/// Checks that each mutant says what it is, and applies to the source that it is for. Returns how
/// many there are.
///
/// # Errors
/// The first one that does not.
pub(crate) fn check(paths: &Paths) -> Result<usize> {
    let mut others = 0;
    for (tree, patches) in beside(paths)? {
        series::check_each(paths, tree, &patches).context("a mutant")?;
        others += patches.len();
    }
    let mutants = all(paths)?;
    for mutant in &mutants {
        let file = mutant.file.to_string_lossy();
        git::git(&paths.source(Tree::Series), &["apply", "--check", &file])
            .with_context(|| format!("the mutant {} does not apply", mutant.name))?;
    }
    if mutants.is_empty() {
        bail!("there are no mutants");
    }
    Ok(mutants.len() + others)
}

/// What a kernel's log has right before the results of a case: the result of the case before it,
/// or the head of the suite. `suites` are the sources of all suites.
fn line_before(suites: &str, case: &str) -> Option<String> {
    let mut before = None;
    let mut first = false;
    for line in suites.lines().map(str::trim) {
        if line.starts_with("static struct kunit_case ") {
            before = None;
        } else if let Some(rest) = line.strip_prefix("KUNIT_CASE") {
            let name = rest.split_once('(')?.1.split([',', ')']).next()?.to_string();
            if name == case {
                match before {
                    Some(name) => return Some(name),
                    None => first = true,
                }
            }
            before = Some(name);
        } else if let Some(name) = line.strip_prefix(".name = \"")
            && first
        {
            return Some(format!("# Subtest: {}", name.split('"').next()?));
        }
    }
    None
}

/// Why a boot shows that the case noticed the mutant. If the kernel crashed, it must have done so
/// in this case, and not before. `suites` are the sources of all suites.
///
/// # Errors
/// If it did not: the case passed, or did not run.
pub(crate) fn noticed(ran: &Ran, case: &str, suites: &str) -> Result<&'static str> {
    let result = |line: &str| {
        let (ok, rest) = line.trim_start().strip_prefix("not ok ").map_or_else(
            || (true, line.trim_start().strip_prefix("ok ")),
            |rest| (false, Some(rest)),
        );
        let (number, name) = rest?.split_once(' ')?;
        number.parse::<u32>().ok()?;
        (name.trim() == case).then_some(ok)
    };
    // The kernel's log may have a time before each line.
    let lines = || ran.console.lines().map(|l| l.split_once("] ").map_or(l, |(_, rest)| rest));
    let before = line_before(suites, case).with_context(|| format!("no suite has {case}"))?;
    match lines().find_map(result) {
        Some(true) => bail!("{case} passed"),
        Some(false) => Ok("failed"),
        None if ran.splats.is_empty() => bail!("{case} has no result"),
        None if !lines().any(|l| l.trim_end().ends_with(&format!(" {before}"))) => {
            bail!("the kernel crashed before {case}: there is no line `{before}`")
        }
        None => Ok("did not end: the kernel crashed"),
    }
}

/// Builds one mutant, and returns a copy of its image. Afterwards the tree is as before, also if the
/// build fails.
fn built(paths: &Paths, tree: &Path, mutant: &Mutant, copy: &str) -> Result<PathBuf> {
    let head = git::git(tree, &["rev-parse", "HEAD"])?;
    let image = mutant.in_part.changed_and_restored(
        tree,
        || {
            git::git(tree, &["apply", &mutant.file.to_string_lossy()])?;
            git::git(tree, &["commit", "-q", "-a", "-m", &mutant.name]).map(drop)
        },
        || build::build(paths, Tree::Series, Config::Tiny),
        || git::reset(tree, head.trim()),
    )?;
    build::copied(paths, &image, copy)
}

/// Boots one mutant.
fn boot(paths: &Paths, image: &Path, mutant: &Mutant, suites: &str) -> Result<&'static str> {
    let root = guest::root(paths, &[])?;
    let ran = qemu::run(
        paths,
        &Boot {
            name: "mutant",
            image,
            root: &root,
            command: "true",
            append: "",
            accel: qemu::accel(paths, image, &root)?,
            limit: Duration::from_secs(120),
            mem_mib: 2048,
            args: smoke::TWO_SOCKETS,
        },
    )?;
    let why = noticed(&ran, &mutant.case, suites)?;
    warned(&ran, mutant.warns.as_deref())?;
    Ok(why)
}

/// Checks that the kernel has warned in the source that a mutant names, if it names one.
///
/// # Errors
/// If it has not.
fn warned(ran: &Ran, source: Option<&str>) -> Result<()> {
    match source {
        Some(source) if !ran.splats.iter().any(|splat| splat.shown().contains(source)) => {
            bail!("the kernel does not warn in {source}")
        }
        _ => Ok(()),
    }
}

/// Builds and boots a tiny kernel with each mutant, or with each that is named.
///
/// # Errors
/// If the kernel without one does not pass, or a case does not notice its mutant.
pub(crate) fn mutants(paths: &Paths, only: &[String]) -> Result<()> {
    let mutants = chosen("mutant", all(paths)?, |mutant| &mutant.name, only)?;
    prepare::prepare(paths)?;
    check(paths)?;
    build::build(paths, Tree::Series, Config::Tiny)?;
    smoke::smoke(paths, Tree::Series, Config::Tiny)?;
    let tree = paths.source(Tree::Series);
    let suites = suites(paths, Tree::Series)?;
    overlap::builds_and_boots(
        mutants,
        |mutant, copy| {
            let image = built(paths, &tree, &mutant, copy)
                .with_context(|| format!("the mutant {}", mutant.name))?;
            Ok((image, mutant))
        },
        |(image, mutant)| {
            let why = boot(paths, &image, &mutant, &suites)
                .with_context(|| format!("the mutant {} is not noticed", mutant.name))?;
            let warns = mutant.warns.map(|source| format!("; a warning in {source}"));
            println!(
                "{}: noticed, {} {why}{}",
                mutant.name,
                mutant.case,
                warns.unwrap_or_default()
            );
            Ok(())
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splat;

    const SUITES: &str = "\tKUNIT_CASE(short_read_test_races),\n";

    fn read(text: &str) -> Result<Mutant> {
        parse(Path::new("/x/one-count.patch"), text, SUITES)
    }

    #[test]
    fn a_mutant_says_what_it_is() {
        let text = "One count.\n\nNoticed by: short_read_test_races\n\ndiff --git a/a b/a\n";
        let mutant = read(text).unwrap();
        assert_eq!(
            (mutant.name.as_str(), mutant.case.as_str()),
            ("one-count", "short_read_test_races")
        );
        for (old, new) in [
            ("One count.\n", ""),
            ("Noticed by: short_read_test_races\n", ""),
            ("_races", "_nothing"),
            (
                "Noticed by: short_read_test_races\n\ndiff --git a/a b/a\n",
                "diff --git a/a b/a\nNoticed by: short_read_test_races\n",
            ),
        ] {
            read(&text.replace(old, new)).unwrap_err();
        }
    }

    #[test]
    fn a_header_is_compiled_into_the_sources_that_are_named() {
        let header = "One count.\n\nNoticed by: short_read_test_races\n\
                      Compiled in: mm/a.c, mm/b.c\n\ndiff --git a/x.h b/x.h\n+++ b/x.h\n";
        let mutant = read(header).unwrap();
        assert_eq!(mutant.in_part.headers, ["x.h"]);
        assert_eq!(mutant.in_part.sources, ["mm/a.c", "mm/b.c"]);
        for wrong in
            [header.replace("Compiled in: mm/a.c, mm/b.c\n", ""), header.replace(".h\n", ".c\n")]
        {
            let error = read(&wrong).unwrap_err().to_string();
            assert!(error.contains("belongs to a change of a header"), "{error}");
        }
    }

    #[test]
    fn a_warning_that_must_come_is_missed() {
        let text = "One count.\n\nNoticed by: short_read_test_races\nWarns in: lib/xarray.c\n\n\
                    diff --git a/a b/a\n";
        let mutant = read(text).unwrap();
        let ran = |console: &str| Ran {
            console: String::new(),
            output: String::new(),
            splats: splat::find(console),
            end: Ok(0),
        };
        let other = "WARNING: CPU: 0 PID: 9 at mm/gup.c:9 f+0x1/0x2\n---[ end trace 0 ]---\n";
        let right = other.replace("mm/gup.c", "lib/xarray.c");
        warned(&ran(&right), mutant.warns.as_deref()).unwrap();
        warned(&ran(other), None).unwrap();
        for console in ["", other] {
            let error = warned(&ran(console), mutant.warns.as_deref()).unwrap_err().to_string();
            assert_eq!(error, "the kernel does not warn in lib/xarray.c");
        }
    }

    #[test]
    fn each_folder_of_mutants_is_checked() {
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let paths = Paths::new(kernel, "/nowhere");
        let checked: std::collections::BTreeSet<_> =
            beside(&paths).unwrap().into_iter().flat_map(|(_, patches)| patches).collect();
        let mut found = std::collections::BTreeSet::new();
        for entry in fs::read_dir(kernel.join("mutants")).unwrap() {
            let folder = entry.unwrap().path();
            if folder.is_dir() {
                found.extend(fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
            }
        }
        assert!(found.len() > 15 && found == checked);
    }

    #[test]
    fn only_the_named_case_notices() {
        let ran = |console: &str| Ran {
            console: console.to_string(),
            output: String::new(),
            splats: splat::find(console),
            end: Ok(0),
        };
        let suites = "static struct kunit_case cases[] = {\nKUNIT_CASE(first),\nKUNIT_CASE(races),\n\
                      }\nstatic struct kunit_suite s = {\n.name = \"suite\",\n";
        let of = |console: &str| noticed(&ran(console), "races", suites);
        assert_eq!(of("    not ok 3 races\nok 1 suite\n").unwrap(), "failed");
        assert_eq!(of("[    1.2]     not ok 3 races\n").unwrap(), "failed");
        assert!(of("    ok 3 races\n").unwrap_err().to_string().contains("passed"));
        assert!(
            of("    not ok 3 races_of_others\n").unwrap_err().to_string().contains("no result")
        );
        assert!(of("").unwrap_err().to_string().contains("no result"));
        let oops = "BUG: unable to handle page fault for address: ffff\nOops: 0000\n";
        assert!(of(&format!("    ok 1 first\n{oops}")).unwrap().contains("crashed"));
        assert!(of(oops).unwrap_err().to_string().contains("before races"));
        assert!(of(&format!("    ok 1 not_first\n{oops}")).is_err());
        let first = |console: &str| noticed(&ran(console), "first", suites);
        assert!(first(&format!("    # Subtest: suite\n{oops}")).is_ok());
        assert!(first(&format!("    # Subtest: another\n{oops}")).is_err());
        assert!(noticed(&ran(oops), "unknown", suites).is_err());
        assert!(of(&format!("    ok 3 races\n{oops}")).unwrap_err().to_string().contains("passed"));
    }
}
