//! Holds a document's table of modules against the modules.
//!
//! The table follows a line `<!-- modules: FOLDER -->`. The first cell of a row names a module or
//! several, the last one all that they call; both without regard to backquotes, `/` and `.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What each module calls, by names as [`plain`] makes them.
pub(super) type Calls = BTreeMap<String, BTreeSet<String>>;

/// A module's name as it is compared: `fill/` and `` `fill.rs` `` are `fill`.
pub(super) fn plain(name: &str) -> String {
    let name = name.trim().trim_matches('`');
    name.strip_suffix(".rs").unwrap_or(name).trim_end_matches('/').to_owned()
}

/// What is untrue in the table of `folder`, a line each.
pub(super) fn wrong(document: &str, folder: &str, calls: &Calls) -> String {
    let mark = format!("<!-- modules: {folder} -->");
    let mut wrong = String::new();
    let Some((_, after)) = document.split_once(&mark) else {
        return format!("no table of modules: the line {mark} is missing\n");
    };
    let rows = after.trim_start().lines().take_while(|line| line.starts_with('|')).skip(2);
    let mut seen = BTreeSet::new();
    for row in rows {
        let mut cells = row.trim().trim_matches('|').split('|');
        let names = |cell: Option<&str>| -> BTreeSet<String> {
            let names = cell.unwrap_or_default().split(',').map(plain);
            names.filter(|name| !name.is_empty()).collect()
        };
        let (modules, said) = (names(cells.next()), names(cells.next_back()));
        let mut called = BTreeSet::new();
        for module in &modules {
            if !seen.insert(module.clone()) {
                let _ = writeln!(wrong, "{module} has two rows");
            }
            match calls.get(module) {
                Some(calls) => called.extend(calls.difference(&modules).cloned()),
                None => {
                    let _ = writeln!(wrong, "{module}: there is no such module");
                }
            }
        }
        if said != called {
            let list = |names: &BTreeSet<String>| Vec::from_iter(names.clone()).join(", ");
            let _ = writeln!(
                wrong,
                "{} calls `{}`, and not `{}`",
                list(&modules),
                list(&called),
                list(&said)
            );
        }
    }
    for module in calls.keys().filter(|module| !seen.contains(*module)) {
        let _ = writeln!(wrong, "{module} has no row");
    }
    wrong
}
