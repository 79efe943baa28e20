//! `cargo xtask mutants`: whether each mutant is caught by something, and the last section of
//! docs/models.md, which says by what.
//!
//! What catches a mutant is a test that switches it on: so tests are looked through for its name,
//! other than in `mutant::on(...)`, which is where it acts. Models are not in that section: the
//! sections before it name their mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

const MUTANTS: &str = "crates/pinfold/src/base/mutant.rs";
/// The mutants of the stress, by the names that its command line has for them.
const STRESS: &str = "crates/pinfold/tests/mutants/main.rs";
const DOCUMENT: &str = "docs/models.md";
const HEADING: &str = "\n## Mutants that tests catch\n";

/// Check that each mutant is caught by a test or model, and is in docs/models.md with that
#[derive(Debug, Default, Args)]
pub(crate) struct MutantsArgs {
    /// Write the section into the document
    #[arg(long)]
    write: bool,
}

/// Looks through the repository.
///
/// # Errors
/// Mutants that nothing catches; models' mutants that the document does not name; a section that is
/// no longer true.
pub(crate) fn run(repository: &Path, args: &MutantsArgs) -> Result<()> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let names = names(&read(&repository.join(MUTANTS))?);
    ensure!(!names.is_empty(), "{MUTANTS} has no list of mutants");
    let mut caught = BTreeMap::<String, BTreeSet<&str>>::new();
    for path in sources(&repository.join("crates"))? {
        let name = path.strip_prefix(repository)?.display().to_string();
        if !name.starts_with("crates/pinfold/src/base/mutant") {
            let text = read(&path)?;
            let by_it = if name == STRESS {
                of_stress(&text, &names)
            } else {
                of_tests(tests_of(&name, &text), &names)
            };
            caught.entry(name).or_default().extend(by_it);
        }
    }
    let known: BTreeSet<_> = caught.values().flatten().copied().collect();
    let unknown: Vec<_> = names.iter().filter(|name| !known.contains(name.as_str())).collect();
    ensure!(unknown.is_empty(), "no test or model switches these mutants on: {unknown:?}");

    let document = repository.join(DOCUMENT);
    let text = read(&document)?;
    let by_hand = text.split(HEADING).next().unwrap_or_default();
    let models = caught.iter().filter(|(file, _)| is_model(file)).flat_map(|(_, names)| names);
    let missing: BTreeSet<_> =
        models.filter(|name| !by_hand.contains(&format!("`{name}`"))).collect();
    ensure!(missing.is_empty(), "{DOCUMENT} does not say which model catches {missing:?}");
    let wanted = format!("{by_hand}{HEADING}\n{}", section(&caught));
    if args.write {
        std::fs::write(&document, wanted)?;
    } else {
        ensure!(text == wanted, "{DOCUMENT} is not up to date: `cargo xtask mutants --write`");
    }
    println!("{} mutants, each caught by something", names.len());
    Ok(())
}

/// The mutants of the enum.
fn names(text: &str) -> Vec<String> {
    let list = text.split("\nmutants! {\n").nth(1).and_then(|list| list.split("\n}").next());
    let lines = list.unwrap_or_default().lines().map(str::trim);
    let names = lines.filter_map(|line| line.strip_suffix(',')).filter(|name| is_name(name));
    names.map(str::to_owned).collect()
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(char::is_alphanumeric)
}

/// All sources in a folder.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The part of a file that is tests. What the command's crate has of mutants are tests as a whole.
fn tests_of<'a>(file: &str, text: &'a str) -> &'a str {
    if file.contains("tests") || file.starts_with("crates/pinfold-cli/") || is_model(file) {
        text
    } else {
        text.split_once("\nmod tests {\n").map_or("", |(_, tests)| tests)
    }
}

/// The mutants that a text switches on: by `Mutant::Name` other than in `mutant::on`, or by a text,
/// for another process.
fn of_tests<'a>(text: &str, names: &'a [String]) -> BTreeSet<&'a str> {
    // Comments name mutants, too.
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text: String = lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect();
    let is_in = |name: &str| {
        let word = format!("Mutant::{name}");
        let switched = text.match_indices(&word).any(|(at, _)| {
            let next = text[at + word.len()..].chars().next();
            !text[..at].ends_with("on(") && !next.is_some_and(char::is_alphanumeric)
        });
        switched || text.contains(&format!("\"{name}\""))
    };
    names.iter().map(String::as_str).filter(|name| is_in(name)).collect()
}

/// The mutants that the stress has to catch.
fn of_stress<'a>(text: &str, names: &'a [String]) -> BTreeSet<&'a str> {
    let list = text.split("\nconst CAUGHT").nth(1).and_then(|list| list.split("\n];").next());
    let list = list.unwrap_or_default();
    let is_in = |name: &str| list.contains(&format!("\"{}\"", kebab(name)));
    names.iter().map(String::as_str).filter(|name| is_in(name)).collect()
}

/// `NoLastLook` as `no-last-look`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

fn is_model(file: &str) -> bool {
    file.contains("/models/")
}

/// The section: a line for each file of tests, with its mutants.
fn section(caught: &BTreeMap<String, BTreeSet<&str>>) -> String {
    let mut text = String::from(
        "These are no models. Each test of these files holds without its mutants, and fails with \
         them.\nPaths are below `crates/`. `cargo xtask mutants --write` writes this list, and \
         `cargo xtask test` checks\nit.\n\n",
    );
    for (file, names) in caught.iter().filter(|(file, names)| !is_model(file) && !names.is_empty())
    {
        let file = file.trim_start_matches("crates/");
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", wrapped(&format!("- `{file}`: {}.", names.join(", "))));
    }
    text
}

/// Lines of at most 100 characters, all but the first indented.
fn wrapped(text: &str) -> String {
    let (mut out, mut length) = (String::new(), 0);
    for word in text.split(' ') {
        if length > 0 && length + 1 + word.len() > 100 {
            out.push_str("\n ");
            length = 1;
        }
        if length > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += word.len();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<String> {
        names(
            "x\nmutants! {\n    // ---- a ----\n    /// One.\n    One,\n    /// Two.\n    OneMore,\n}\n",
        )
    }

    #[test]
    fn mutants_are_those_of_the_list() {
        assert_eq!(two(), ["One", "OneMore"]);
    }

    #[test]
    fn where_a_mutant_acts_catches_it_not() {
        let two = two();
        let of = |text| of_tests(text, &two).into_iter().collect::<Vec<_>>();
        assert_eq!(of("if mutant::on(Mutant::One) {"), Vec::<&str>::new());
        assert_eq!(of("if mutant::on(\n    Mutant::One,\n) {"), Vec::<&str>::new());
        assert_eq!(of("// with(Some(Mutant::One))"), Vec::<&str>::new());
        assert_eq!(of("mutant::with(Some(Mutant::OneMore), test)"), ["OneMore"]);
        assert_eq!(of("[(\"a_test\", \"One\")]"), ["One"]);
    }

    #[test]
    fn what_is_no_test_catches_nothing() {
        let text = "fence(Mutant::One);\nmod tests {\n    with(Mutant::OneMore);\n}\n";
        let two = two();
        let of = |file| of_tests(tests_of(file, text), &two).into_iter().collect::<Vec<_>>();
        assert_eq!(of("crates/a/src/b.rs"), ["OneMore"]);
        assert_eq!(of("crates/a/src/b_tests.rs"), ["One", "OneMore"]);
    }

    #[test]
    fn the_stress_has_names_of_its_own() {
        let text = "\nconst CAUGHT: &[&str] = &[\n    \"one-more\",\n];\nconst UNSEEN: &[&str] = &[\"one\"];";
        assert_eq!(of_stress(text, &two()).into_iter().collect::<Vec<_>>(), ["OneMore"]);
    }

    #[test]
    fn lines_are_short_and_lose_nothing() {
        let text = "word ".repeat(100);
        let lines = wrapped(text.trim());
        assert!(lines.lines().all(|line| line.len() <= 100));
        assert_eq!(lines.split_whitespace().count(), 100);
    }
}
