//! What a program can name of a crate: its public items, and the functions of each.
//!
//! Counted are items that are reachable from the crate's root, `pub` functions and constants of
//! types, and functions of traits. What certain features add is left out.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use syn::{Attribute, ImplItem, Item, TraitItem, UseTree, Visibility};

use super::depend::follow;
use super::gather::{self, Features, is_left_out};
use super::tree::Tree;

/// The public items of a crate, by their paths from its root.
#[derive(Debug, Default)]
pub(super) struct Face {
    /// The functions of each, in the order of the code.
    pub(super) items: BTreeMap<String, Vec<String>>,
}

impl Face {
    /// What is public of the library with these sources, and these features on or off.
    pub(super) fn read(src: &Path, features: &Features<'_>) -> Result<Self> {
        let tree = &gather::read(src, &["lib.rs"], features)?.remove(0);
        let files = read_files(src, tree)?;
        let mut finder = Finder { files: &files, tree, features, found: BTreeMap::new() };
        finder.module(0, "");
        let mut methods: HashMap<String, Vec<String>> = HashMap::new();
        for id in 0..tree.modules.len() {
            for item in finder.items(id) {
                if let Some((of, functions)) = functions(item, features) {
                    methods.entry(of).or_default().extend(functions);
                }
            }
        }
        let with_functions = |((_, name), path): ((usize, String), String)| {
            let functions = methods.get(&name).cloned().unwrap_or_default();
            (path, functions)
        };
        Ok(Face { items: finder.found.into_iter().map(with_functions).collect() })
    }

    pub(super) fn functions(&self) -> usize {
        self.items.values().map(Vec::len).sum()
    }

    /// A line for each item.
    pub(super) fn told(&self) -> String {
        let mut told = String::new();
        for (item, functions) in &self.items {
            let _ = writeln!(told, "{item}: {}", functions.join(", "));
        }
        told
    }

    /// A line for each item without a row in the document, and for each row without an item. A
    /// row's first cell is the item's path in backticks.
    pub(super) fn not_as_told(&self, text: &str) -> String {
        let cell = |line: &str| Some(line.strip_prefix("| `")?.split_once("` |")?.0.to_owned());
        let rows: Vec<String> = text.lines().filter_map(cell).collect();
        let mut wrong = String::new();
        for item in self.items.keys().filter(|item| !rows.contains(item)) {
            let _ = writeln!(wrong, "no row for {item}");
        }
        for row in rows.iter().filter(|row| !self.items.contains_key(*row)) {
            let _ = writeln!(wrong, "there is no public item {row}");
        }
        wrong
    }
}

/// Finds what is public, from the root down.
struct Finder<'a> {
    /// Of each module that has one.
    files: &'a HashMap<usize, syn::File>,
    tree: &'a Tree,
    features: &'a Features<'a>,
    /// The path of each public item, by its module and its name there. Of several paths the
    /// shortest.
    found: BTreeMap<(usize, String), String>,
}

impl<'a> Finder<'a> {
    /// The items of a module that are there without tests and certain features.
    fn items(&self, id: usize) -> Vec<&'a Item> {
        let module = &self.tree.modules[id];
        let declared = module.parent.map(|parent| {
            let is_it = |item: &&'a Item| match item {
                Item::Mod(it) => it.ident == module.name,
                _ => false,
            };
            self.items(parent).into_iter().find(is_it)
        });
        let all = match (declared, self.files.get(&id)) {
            (None | Some(Some(_)), Some(file)) => file.items.iter().collect(),
            (Some(Some(Item::Mod(it))), None) => it.content.iter().flat_map(|(_, it)| it).collect(),
            _ => Vec::new(),
        };
        all.into_iter().filter(|item| !is_left_out(attributes(item), self.features)).collect()
    }

    fn module(&mut self, id: usize, path: &str) {
        for item in self.items(id) {
            match item {
                Item::Use(it) if is_public(&it.vis) => {
                    for (shown, written) in leaves(&it.tree, &[]) {
                        self.import(id, &format!("{path}{shown}"), &written);
                    }
                }
                Item::Mod(it) if is_public(&it.vis) => {
                    let name = it.ident.to_string();
                    self.import(id, &format!("{path}{name}"), &["self".to_owned(), name]);
                }
                _ => {
                    if let Some(name) = public_name(item) {
                        self.find((id, name.clone()), format!("{path}{name}"));
                    }
                }
            }
        }
    }

    /// What `written` in the module `from` leads to, under the name `path`.
    fn import(&mut self, from: usize, path: &str, written: &[String]) {
        let ends = follow(self.tree, from, written);
        match ends.first() {
            Some(end) if end.item.is_none() => self.module(end.module, &format!("{path}::")),
            end => {
                let module = end.map_or(from, |end| end.module);
                let name = written.last().cloned().unwrap_or_default();
                self.find((module, name), path.to_owned());
            }
        }
    }

    fn find(&mut self, item: (usize, String), path: String) {
        let known = self.found.entry(item).or_insert_with(|| path.clone());
        if path.len() < known.len() {
            *known = path;
        }
    }
}

/// The files of the modules that have one.
fn read_files(src: &Path, tree: &Tree) -> Result<HashMap<usize, syn::File>> {
    let own = tree.modules.iter().enumerate().filter(|(id, module)| module.owner == *id);
    let read = own.map(|(id, module)| {
        let path = src.join(&module.file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok((id, syn::parse_file(&text).with_context(|| path.display().to_string())?))
    });
    read.collect()
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Impl(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => named(item).map_or(&[], |(attributes, ..)| attributes),
    }
}

/// The attributes, visibility and name of an item that has a name of its own.
fn named(item: &Item) -> Option<(&[Attribute], &Visibility, String)> {
    Some(match item {
        Item::Const(it) => (&it.attrs, &it.vis, it.ident.to_string()),
        Item::Enum(it) => (&it.attrs, &it.vis, it.ident.to_string()),
        Item::Fn(it) => (&it.attrs, &it.vis, it.sig.ident.to_string()),
        Item::Static(it) => (&it.attrs, &it.vis, it.ident.to_string()),
        Item::Struct(it) => (&it.attrs, &it.vis, it.ident.to_string()),
        Item::Trait(it) => (&it.attrs, &it.vis, it.ident.to_string()),
        Item::Type(it) => (&it.attrs, &it.vis, it.ident.to_string()),
        Item::Union(it) => (&it.attrs, &it.vis, it.ident.to_string()),
        _ => return None,
    })
}

fn public_name(item: &Item) -> Option<String> {
    let (_, visibility, name) = named(item)?;
    is_public(visibility).then_some(name)
}

/// The type or trait that has functions here, and the public ones.
fn functions(item: &Item, features: &Features<'_>) -> Option<(String, Vec<String>)> {
    match item {
        Item::Impl(it) if it.trait_.is_none() => {
            let syn::Type::Path(of) = &*it.self_ty else { return None };
            let public = it.items.iter().filter_map(|item| match item {
                ImplItem::Fn(it) if is_public(&it.vis) && !is_left_out(&it.attrs, features) => {
                    Some(it.sig.ident.to_string())
                }
                ImplItem::Const(it) if is_public(&it.vis) && !is_left_out(&it.attrs, features) => {
                    Some(it.ident.to_string())
                }
                _ => None,
            });
            Some((of.path.segments.last()?.ident.to_string(), public.collect()))
        }
        Item::Trait(it) => {
            let all = it.items.iter().filter_map(|item| match item {
                TraitItem::Fn(it) if !is_left_out(&it.attrs, features) => {
                    Some(it.sig.ident.to_string())
                }
                _ => None,
            });
            Some((it.ident.to_string(), all.collect()))
        }
        _ => None,
    }
}

/// The name under which each leaf of an import is known, and its path.
fn leaves(tree: &UseTree, before: &[String]) -> Vec<(String, Vec<String>)> {
    let path = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
    match tree {
        UseTree::Path(part) => leaves(&part.tree, &path(&part.ident)),
        UseTree::Group(group) => group.items.iter().flat_map(|it| leaves(it, before)).collect(),
        UseTree::Glob(_) => vec![("*".to_owned(), before.to_vec())],
        UseTree::Name(name) => vec![(name.ident.to_string(), path(&name.ident))],
        UseTree::Rename(to) => vec![(to.rename.to_string(), path(&to.ident))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "mod inner;\npub mod source;\npub use inner::{Cache, deep};\n\
                       pub use source::Source;\n\
                       #[cfg(feature = \"testing\")]\npub use inner::OnlyTests;\n\
                       pub(crate) use inner::Hidden;\n\
                       #[cfg(feature = \"testing\")]\nmod testing { impl crate::Cache { pub fn t() {} } }\n";
    const INNER: &str = "pub struct Cache;\npub struct Hidden;\npub struct OnlyTests;\n\
                         impl Cache {\n  pub fn open() {}\n  pub(crate) fn core() {}\n  fn own() {}\n  \
                         #[cfg(feature = \"testing\")]\n  pub fn runs() {}\n}\n\
                         impl Clone for Cache { fn clone(&self) -> Self { Cache } }\n\
                         impl Hidden { pub fn no() {} }\n\
                         #[cfg(not(loom))]\nimpl Cache { pub const MAX: u8 = 1; }\n\
                         pub mod deep { pub fn act() {} pub enum Kind {} }\n";
    const SOURCE: &str = "pub trait Source {\n  fn read(&self);\n  fn len(&self) -> u64 { 0 }\n}\n\
                          #[cfg(test)]\npub struct Test;\n";

    #[test]
    fn what_is_reachable_is_public() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let src = dir.path().join("k/src");
        fs::create_dir_all(&src)?;
        for (file, text) in [("lib.rs", LIB), ("inner.rs", INNER), ("source.rs", SOURCE)] {
            fs::write(src.join(file), text)?;
        }
        let face = Face::read(&src, &[("testing", false)])?;
        assert_eq!(face.told(), "Cache: open, MAX\nSource: read, len\ndeep::Kind: \ndeep::act: \n");
        assert_eq!(face.functions(), 4);
        let text = "| `Cache` | all |\n| `deep::Kind` |\n| `deep::act` | x |\n| `Gone` | y |\n";
        assert_eq!(face.not_as_told(text), "no row for Source\nthere is no public item Gone\n");
        Ok(())
    }
}
