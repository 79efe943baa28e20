//! Types of a crate that have the same name.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::tree::Tree;

/// A paragraph for each name that two types or more have: the name, and a line for each of them.
/// Those of the files `but` do not count.
pub(super) fn of_one_name(src: &Path, tree: &Tree, but: &[&str]) -> String {
    let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let counts = |file: &Path| !but.iter().any(|it| src.join(file) == Path::new(it));
    for module in tree.modules.iter().filter(|module| counts(&module.file)) {
        for it in &module.types {
            let place = format!("{}:{}", src.join(&module.file).display(), it.line);
            by_name.entry(&it.name).or_default().push(place);
        }
    }
    let mut told = String::new();
    for (name, places) in by_name.iter().filter(|(_, places)| places.len() > 1) {
        let _ = writeln!(told, "{} types have the name {name}:", places.len());
        for place in places {
            let _ = writeln!(told, "  {place}");
        }
    }
    told
}
