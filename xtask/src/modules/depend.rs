//! The dependencies between modules: each import and path of a [`Tree`], followed to its file.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::tree::{Bound, Import, Tree};

/// A line of one file that needs another file. Both are modules that have files of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Dependency {
    pub(super) from: usize,
    pub(super) line: usize,
    pub(super) to: usize,
    /// As written, or `.method` for a call.
    pub(super) what: String,
}

/// All dependencies between files of the crate, by file and line.
pub(super) fn dependencies(tree: &Tree) -> BTreeSet<Dependency> {
    let added = Added::find(tree);
    let mut found = BTreeMap::new();
    for (id, module) in tree.modules.iter().enumerate() {
        let mut depend = |to: usize, line: usize, what: String| {
            if to != module.owner {
                let first: &mut usize = found.entry((module.owner, to, what)).or_insert(line);
                *first = line.min(*first);
            }
        };
        let mut told = HashSet::new();
        let named = module.names.values().flatten().filter_map(|bound| match bound {
            Bound::Import(import) => Some((import, "")),
            _ => None,
        });
        for (import, end) in named.chain(module.globs.iter().map(|glob| (glob, "::*"))) {
            for end_of in follow(tree, id, &import.path) {
                if import.public && tree.is_below(end_of.owner(tree), module.owner) {
                    continue;
                }
                if end_of.item.is_some() {
                    told.insert((end_of.module, end_of.item.clone()));
                }
                let what = format!("{}{end}", import.path.join("::"));
                for to in end_of.files(tree) {
                    depend(to, import.line, what.clone());
                }
            }
        }
        for mention in &module.mentions {
            let line = mention.line;
            if mention.is_method {
                if let Some(to) = added.by_call(&mention.path[0]) {
                    depend(to, line, format!(".{}", mention.path[0]));
                }
                continue;
            }
            let is_word = mention.path.len() == 1;
            if is_word && module.variables.contains(&mention.path[0]) {
                continue;
            }
            for end in follow(tree, id, &mention.path) {
                if is_word && end.item.is_none() {
                    continue;
                }
                let what = mention.path.join("::");
                if let Some(to) = added.by_path(&end, &mention.path) {
                    depend(to, line, what.clone());
                }
                // An imported item is counted already, by its import.
                if end.used > 1 || !told.contains(&(end.module, end.item.clone())) {
                    for to in end.files(tree) {
                        depend(to, line, what.clone());
                    }
                }
            }
        }
    }
    (found.into_iter())
        .map(|((from, to, what), line)| Dependency { from, line, to, what })
        .collect()
}

/// Where a path leads.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) module: usize,
    /// The item in that module; none if the path names the module itself.
    pub(super) item: Option<String>,
    /// How many segments of the path it took.
    used: usize,
    /// Modules on the way whose re-export of something foreign to them it went through.
    through: Vec<usize>,
}

impl End {
    fn owner(&self, tree: &Tree) -> usize {
        tree.modules[self.module].owner
    }

    fn files(&self, tree: &Tree) -> Vec<usize> {
        let mut files: Vec<usize> =
            self.through.iter().map(|&module| tree.modules[module].owner).collect();
        files.push(self.owner(tree));
        files
    }
}

/// Where `path`, written in module `from`, leads within the crate. More than one end where a name
/// is both a type and a function, or differs with the configuration; none outside the crate.
pub(super) fn follow(tree: &Tree, from: usize, path: &[String]) -> Vec<End> {
    walk(tree, from, path, &mut HashSet::new())
}

fn walk(
    tree: &Tree,
    from: usize,
    path: &[String],
    seen: &mut HashSet<(usize, String)>,
) -> Vec<End> {
    let mut start = from;
    let mut used = 0;
    for word in path {
        match word.as_str() {
            "crate" => start = 0,
            "self" => {}
            "super" => match tree.modules[start].parent {
                Some(parent) => start = parent,
                None => return Vec::new(),
            },
            _ => break,
        }
        used += 1;
    }
    let is_relative = used == 0;
    let mut ends = vec![End { module: start, item: None, used, through: Vec::new() }];
    for (at, name) in path.iter().enumerate().skip(used) {
        let is_last = at + 1 == path.len();
        let mut next = Vec::new();
        for end in ends {
            if end.item.is_some() {
                next.push(end);
                continue;
            }
            let found = look_up(tree, end.module, name, seen);
            if found.is_empty() && !(is_relative && at == 0) {
                // Made by a macro, or an external crate's that the module re-exports.
                next.push(End { item: Some(name.clone()), used: at + 1, ..end });
                continue;
            }
            // `a::b` goes on from the module `a`, if there is also a function `a`.
            let modules = found.iter().any(|end| end.item.is_none()) && !is_last;
            for mut further in found {
                if modules && further.item.is_some() {
                    continue;
                }
                further.used = at + 1;
                further.through.splice(0..0, end.through.iter().copied());
                next.push(further);
            }
        }
        ends = next;
    }
    ends
}

/// What `name` is in `module`: its own, imported, or from a glob.
fn look_up(
    tree: &Tree,
    module: usize,
    name: &str,
    seen: &mut HashSet<(usize, String)>,
) -> Vec<End> {
    if !seen.insert((module, name.to_owned())) {
        return Vec::new();
    }
    let end = |module, item| End { module, item, used: 0, through: Vec::new() };
    let mut ends = Vec::new();
    for bound in tree.modules[module].names.get(name).into_iter().flatten() {
        match bound {
            Bound::Item => ends.push(end(module, Some(name.to_owned()))),
            Bound::Module(child) => ends.push(end(*child, None)),
            Bound::Import(Import { path, .. }) => {
                let imported = walk(tree, module, path, seen);
                ends.extend(imported.into_iter().map(|end| passed(tree, module, end)));
            }
        }
    }
    if ends.is_empty() {
        for glob in &tree.modules[module].globs {
            for from in walk(tree, module, &glob.path, seen) {
                // Of an enum's variants nothing is known, and its import is a dependency already.
                if from.item.is_none() {
                    let found = look_up(tree, from.module, name, seen);
                    ends.extend(found.into_iter().map(|end| passed(tree, module, end)));
                }
            }
        }
    }
    seen.remove(&(module, name.to_owned()));
    ends
}

/// Notes that a path went through an import in `module`, unless that only names what is below it.
fn passed(tree: &Tree, module: usize, mut end: End) -> End {
    let owner = tree.modules[module].owner;
    if !tree.is_below(end.owner(tree), owner) {
        end.through.insert(0, module);
    }
    end
}

/// Whether methods in the file `methods` are ordinary ones of a type in the file `home`: a type may
/// have them in several files of its folder, though not all over the crate's own folder.
fn is_at_home(tree: &Tree, home: usize, methods: usize) -> bool {
    let (home_folder, folder) = (tree.modules[home].parent, tree.modules[methods].parent);
    home == methods
        || home_folder == Some(methods)
        || (home_folder == folder && home_folder != Some(0))
        || (folder == Some(home) && home != 0)
}

/// Methods that a file adds to a type of another folder. A caller of one depends on the file that
/// has it, though it names only the type. (A type's own methods need no such care: the value comes
/// from somewhere that names the type.)
#[derive(Debug, Default)]
struct Added {
    by_type: HashMap<(usize, String, String), usize>,
    by_name: BTreeMap<String, BTreeSet<usize>>,
    /// Methods that a type has from its own file, or from a trait: a call may mean these.
    ordinary: HashSet<String>,
}

impl Added {
    fn find(tree: &Tree) -> Self {
        let mut added = Self::default();
        for (id, module) in tree.modules.iter().enumerate() {
            for methods in &module.methods {
                let of = methods.of.iter().flat_map(|of| follow(tree, id, of)).find(|end| {
                    end.item.is_some() && !is_at_home(tree, end.owner(tree), module.owner)
                });
                let Some(End { module: home, item: Some(item), .. }) = of else {
                    added.ordinary.extend(methods.names.iter().cloned());
                    continue;
                };
                for name in &methods.names {
                    added.by_type.insert((home, item.clone(), name.clone()), module.owner);
                    added.by_name.entry(name.clone()).or_default().insert(module.owner);
                }
            }
        }
        added
    }

    fn by_path(&self, end: &End, path: &[String]) -> Option<usize> {
        let key = (end.module, end.item.clone()?, path.get(end.used)?.clone());
        self.by_type.get(&key).copied()
    }

    /// Only if no other method has the name: types are not known here.
    fn by_call(&self, name: &str) -> Option<usize> {
        let files = self.by_name.get(name).filter(|_| !self.ordinary.contains(name))?;
        files.iter().next().copied().filter(|_| files.len() == 1)
    }
}
