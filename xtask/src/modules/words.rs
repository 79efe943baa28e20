//! Words that only some folders of a crate may know.

use std::fmt::Write;
use std::path::Path;

use super::tree::Tree;

/// Who may know the words of mapped memory: its folders, and the file by which the cache proper
/// knows of it; the files that say to programs what there is; and the lists of mutants.
const KNOW: [&str; 11] = [
    "map",
    "mapped",
    "pages/outside.rs",
    "lib.rs",
    "cache.rs",
    "options.rs",
    "stats.rs",
    "error.rs",
    "error",
    "base/mutant.rs",
    "base/mutants.rs",
];

/// Parts of names and words.
const WORDS: [&str; 10] = [
    "lend",
    "lending",
    "lends",
    "lent",
    "mirror",
    "mirrored",
    "mirrors",
    "swap",
    "uffd",
    "userfaultfd",
];

/// What has such a word for its name elsewhere.
const OTHERS: [&str; 4] = ["mem::swap(", ".swap(", "swap_remove(", "slice::swap("];

/// A line for each line with such a word outside of the files that may know it.
pub(super) fn known(src: &Path, tree: &Tree) -> String {
    let mut told = String::new();
    let may = |file: &Path| KNOW.iter().any(|it| file.starts_with(it));
    let modules = tree.modules.iter().enumerate();
    for (_, module) in modules.filter(|(id, it)| it.owner == *id && !may(&it.file)) {
        for (n, line) in module.lines() {
            if let Some(word) = word_in(line) {
                let file = src.join(&module.file);
                let _ = writeln!(told, "{}:{n}: knows of mapped memory: {word}", file.display());
            }
        }
    }
    told
}

/// The first of the words that a line has.
fn word_in(line: &str) -> Option<&'static str> {
    let mut line = line.to_owned();
    for other in OTHERS {
        line = line.replace(other, "");
    }
    let mut words = line.split(|c: char| !c.is_alphanumeric()).flat_map(humps);
    let found = words.find_map(|word| WORDS.iter().find(|it| word.eq_ignore_ascii_case(it)));
    let own = || line.to_lowercase().contains("own memory").then_some(&"own memory");
    found.or_else(own).copied()
}

/// The words of a name in capitals and small letters.
fn humps(name: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut begin = 0;
    let bytes = name.as_bytes();
    for at in 1..bytes.len() {
        if bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase() {
            words.push(&name[begin..at]);
            begin = at;
        }
    }
    words.push(&name[begin..]);
    words
}

#[cfg(test)]
mod tests {
    use super::word_in;

    #[test]
    fn a_word_is_found_in_names_and_prose_and_only_as_a_whole() {
        for (line, word) in [
            ("//! Lent runs are here.", "lent"),
            ("    if frame.is_mirrored() {", "mirrored"),
            ("use crate::mapped::MirrorView;", "mirror"),
            ("let uffd = 1;", "uffd"),
            ("/// Its own memory.", "own memory"),
            ("core.swap.as_ref()", "swap"),
        ] {
            assert_eq!(word_in(line), Some(word), "{line}");
        }
        for line in [
            "// equivalent, silent and excellent",
            "std::mem::swap(&mut a, &mut b); a.swap(1, Ordering::Relaxed); v.swap_remove(0);",
            "memory of its own",
            "blend, lender",
        ] {
            assert_eq!(word_in(line), None, "{line}");
        }
    }
}
