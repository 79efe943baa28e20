//! Reads a crate's files into a [`Tree`].
//!
//! Code for tests and models only is left out: items, statements and fields under a `cfg` that
//! needs `test`, `loom` or `shuttle`, or a feature that is off.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, Token, UseTree, Visibility};

use super::tree::{Bound, Import, Mention, Methods, Tree, Type};

/// Reads the crates whose roots, a library's and a program's, are these files of the folder `src`.
/// Each feature of `features` is on or off; all others may be either.
pub(super) fn read(src: &Path, roots: &[&str], features: &Features<'_>) -> Result<Vec<Tree>> {
    let mut trees = Vec::new();
    let (mut files, mut left_out) = (HashSet::new(), HashSet::new());
    for root in roots {
        let mut tree = Tree::default();
        let here = tree.add("crate", None, Some(PathBuf::from(root)));
        let mut reader = Reader {
            src,
            features,
            tree,
            here,
            children: PathBuf::new(),
            blocks: 0,
            files: HashSet::new(),
            left_out: HashSet::new(),
            failed: None,
        };
        reader.file(root.as_ref());
        if let Some(failed) = reader.failed {
            return Err(failed);
        }
        files.extend(reader.files);
        left_out.extend(reader.left_out);
        trees.push(reader.tree);
    }
    let mut missed = Vec::new();
    forgotten(src, Path::new(""), &files, &left_out, &mut missed)?;
    missed.sort();
    ensure!(
        missed.is_empty(),
        "{}: no `mod` names these files, so nothing checks them: {}",
        src.display(),
        missed.join(", ")
    );
    Ok(trees)
}

/// Files of `src` below `folder` that are in no module of any of its crates: the check would miss
/// them in silence.
fn forgotten(
    src: &Path,
    folder: &Path,
    files: &HashSet<PathBuf>,
    left_out: &HashSet<PathBuf>,
    into: &mut Vec<String>,
) -> Result<()> {
    let listed =
        fs::read_dir(src.join(folder)).with_context(|| src.join(folder).display().to_string())?;
    for entry in listed {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if left_out.contains(&path.with_extension("")) {
        } else if entry.file_type()?.is_dir() {
            forgotten(src, &path, files, left_out, into)?;
        } else if path.extension().is_some_and(|e| e == "rs") && !files.contains(&path) {
            into.push(path.display().to_string());
        }
    }
    Ok(())
}

/// Names of features, and whether each is on.
pub(super) type Features<'a> = [(&'a str, bool)];

struct Reader<'a> {
    src: &'a Path,
    features: &'a Features<'a>,
    tree: Tree,
    /// The module whose code is being read, and the folder of its children's files.
    here: usize,
    children: PathBuf,
    /// How many function bodies deep.
    blocks: usize,
    files: HashSet<PathBuf>,
    /// Modules left out, as paths without `.rs`: their files need not be named by a module.
    left_out: HashSet<PathBuf>,
    failed: Option<anyhow::Error>,
}

impl Reader<'_> {
    fn file(&mut self, file: &Path) {
        self.files.insert(file.to_owned());
        let path = self.src.join(file);
        let parsed = fs::read_to_string(&path)
            .map_err(anyhow::Error::from)
            .and_then(|text| Ok((syn::parse_file(&text)?, text)))
            .with_context(|| format!("{}: can't be read as Rust", path.display()));
        match parsed {
            Ok((parsed, _)) if self.is_left_out(&parsed.attrs) => {}
            Ok((parsed, text)) => {
                self.tree.modules[self.here].text = text;
                self.visit_file(&parsed);
            }
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
    }

    /// Reads the module that `item` declares or has.
    fn module(&mut self, item: &syn::ItemMod) {
        let name = item.ident.to_string();
        let inline = item.content.is_some();
        let file = (!inline).then(|| self.file_of(&item.attrs, &name));
        let children = match &file {
            Some(file) if file.file_name().is_some_and(|f| f != "mod.rs") => {
                file.with_extension("")
            }
            Some(file) => file.parent().unwrap_or(Path::new("")).to_owned(),
            None => self.children.join(&name),
        };
        let id = self.tree.add(&name, Some(self.here), file.clone());
        let outside = (self.here, std::mem::replace(&mut self.children, children));
        self.here = id;
        match file {
            Some(file) => self.file(&file),
            None => visit::visit_item_mod(self, item),
        }
        (self.here, self.children) = outside;
    }

    fn file_of(&self, attributes: &[Attribute], name: &str) -> PathBuf {
        let given = attributes.iter().find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
                _ => None,
            },
            _ => None,
        });
        if let Some(given) = given {
            let holder = &self.tree.modules[self.here].file;
            return holder.parent().unwrap_or(Path::new("")).join(given);
        }
        let folder = self.children.join(name).join("mod.rs");
        if self.src.join(&folder).exists() {
            folder
        } else {
            self.children.join(format!("{name}.rs"))
        }
    }

    fn bind(&mut self, name: &str, bound: Bound) {
        let names = &mut self.tree.modules[self.here].names;
        names.entry(name.to_owned()).or_default().push(bound);
    }

    fn mention(&mut self, path: Vec<String>, span: Span, is_method: bool) {
        let line = span.start().line;
        self.tree.modules[self.here].mentions.push(Mention { path, line, is_method });
    }

    fn import(&mut self, tree: &UseTree, before: &[String], public: bool) {
        let path = |ident: &syn::Ident| {
            let mut path = before.to_vec();
            // `use a::{self, b}` imports `a`.
            if before.is_empty() || ident != "self" {
                path.push(ident.to_string());
            }
            path
        };
        match tree {
            UseTree::Path(part) => self.import(&part.tree, &path(&part.ident), public),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, before, public);
                }
            }
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                let import = Import { path: before.to_vec(), line, public };
                self.tree.modules[self.here].globs.push(import);
            }
            UseTree::Name(name) => {
                let path = path(&name.ident);
                self.import_as(name.ident.span(), path.last().cloned(), path, public);
            }
            UseTree::Rename(to) => {
                let path = path(&to.ident);
                self.import_as(to.ident.span(), Some(to.rename.to_string()), path, public);
            }
        }
    }

    fn import_as(&mut self, span: Span, name: Option<String>, path: Vec<String>, public: bool) {
        let line = span.start().line;
        self.bind(&name.unwrap_or_default(), Bound::Import(Import { path, line, public }));
    }

    /// Paths and method calls in what only a macro can parse.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mark =
            |at: usize, c| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == c);
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let before = at.checked_sub(2);
                    let mut path = vec![first.to_string()];
                    while mark(at, ':') && mark(at + 1, ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 2) else { break };
                        path.push(next.to_string());
                        at += 3;
                    }
                    let called = match tokens.get(at) {
                        Some(TokenTree::Group(group)) => {
                            group.delimiter() == Delimiter::Parenthesis
                        }
                        _ => false,
                    };
                    match before {
                        Some(b)
                            if mark(b, '.') && !b.checked_sub(1).is_some_and(|b| mark(b, '.')) =>
                        {
                            if called {
                                self.mention(path, first.span(), true);
                            }
                        }
                        // A lifetime, or a macro's own parameter.
                        Some(b) if mark(b, '\'') => {}
                        Some(b) if mark(b, '$') && first != "crate" => {}
                        _ => self.mention(path, first.span(), false),
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    fn is_left_out(&self, attributes: &[Attribute]) -> bool {
        is_left_out(attributes, self.features)
    }

    /// Whether what has these attributes is left out. Then its lines are, too.
    fn leaves_out(&mut self, attributes: &[Attribute], what: &impl Spanned) -> bool {
        let is_out = self.is_left_out(attributes);
        if is_out {
            let span = what.span();
            let owner = self.tree.modules[self.here].owner;
            let lines = span.start().line..=span.end().line;
            self.tree.modules[owner].left_out.push(lines);
        }
        is_out
    }

    fn methods(&mut self, of: Option<Vec<String>>, names: Vec<String>) {
        self.tree.modules[self.here].methods.push(Methods { of, names });
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = parts(item);
        if self.leaves_out(attributes, item) {
            if let Item::Mod(module) = item {
                let file = self.file_of(&module.attrs, &module.ident.to_string());
                if !module.attrs.iter().any(|it| it.path().is_ident("path")) {
                    self.left_out.insert(self.children.join(module.ident.to_string()));
                }
                self.left_out.insert(file.with_extension(""));
            }
            return;
        }
        match item {
            Item::Mod(module) => return self.module(module),
            Item::Use(import) => {
                if import.leading_colon.is_none() {
                    let public = !matches!(import.vis, Visibility::Inherited);
                    self.import(&import.tree, &[], public);
                }
                return;
            }
            Item::Impl(item) => {
                let of = match (&item.trait_, &*item.self_ty) {
                    (None, syn::Type::Path(of)) => Some(names(&of.path)),
                    _ => None,
                };
                let functions = item.items.iter().filter_map(|item| match item {
                    syn::ImplItem::Fn(function) if !self.is_left_out(&function.attrs) => {
                        Some(function.sig.ident.to_string())
                    }
                    _ => None,
                });
                self.methods(of, functions.collect());
            }
            Item::Trait(item) => {
                let functions = item.items.iter().filter_map(|item| match item {
                    syn::TraitItem::Fn(function) => Some(function.sig.ident.to_string()),
                    _ => None,
                });
                self.methods(None, functions.collect());
            }
            _ => {}
        }
        if let (Some(name), true) = (name, is_type(item)) {
            let (name, line) = (name.to_string(), name.span().start().line);
            self.tree.modules[self.here].types.push(Type { name, line });
        }
        if let Some(name) = name.filter(|_| self.blocks == 0) {
            self.bind(&name.to_string(), Bound::Item);
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Const(i) => &i.attrs,
            syn::ImplItem::Fn(i) => &i.attrs,
            syn::ImplItem::Type(i) => &i.attrs,
            syn::ImplItem::Macro(i) => &i.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !self.leaves_out(attributes, item) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !self.leaves_out(&field.attrs, field) {
            visit::visit_field(self, field);
        }
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if !self.leaves_out(&field.attrs, field) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !self.leaves_out(&arm.attrs, arm) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !self.leaves_out(&local.attrs, local) {
            visit::visit_local(self, local);
        }
    }

    fn visit_expr_block(&mut self, block: &'ast syn::ExprBlock) {
        if !self.leaves_out(&block.attrs, block) {
            visit::visit_expr_block(self, block);
        }
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if !self.leaves_out(&call.attrs, call) {
            visit::visit_expr_call(self, call);
        }
    }

    fn visit_stmt_macro(&mut self, statement: &'ast syn::StmtMacro) {
        if !self.leaves_out(&statement.attrs, statement) {
            visit::visit_stmt_macro(self, statement);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if !self.leaves_out(&call.attrs, call) {
            self.mention(vec![call.method.to_string()], call.method.span(), true);
            visit::visit_expr_method_call(self, call);
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.blocks += 1;
        visit::visit_block(self, block);
        self.blocks -= 1;
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.mention(names(path), path.segments[0].ident.span(), false);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, makro: &'ast syn::Macro) {
        visit::visit_macro(self, makro);
        self.tokens(makro.tokens.clone());
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        visit::visit_meta_list(self, list);
        self.tokens(list.tokens.clone());
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.tree.modules[self.here].variables.insert(pattern.ident.to_string());
        visit::visit_pat_ident(self, pattern);
    }

    /// `pub(super)` depends on nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

fn names(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

fn parts(item: &Item) -> (&[Attribute], Option<&syn::Ident>) {
    match item {
        Item::Const(i) => (&i.attrs, Some(&i.ident)),
        Item::Enum(i) => (&i.attrs, Some(&i.ident)),
        Item::ExternCrate(i) => (&i.attrs, None),
        Item::Fn(i) => (&i.attrs, Some(&i.sig.ident)),
        Item::ForeignMod(i) => (&i.attrs, None),
        Item::Impl(i) => (&i.attrs, None),
        Item::Macro(i) => (&i.attrs, i.ident.as_ref()),
        Item::Mod(i) => (&i.attrs, None),
        Item::Static(i) => (&i.attrs, Some(&i.ident)),
        Item::Struct(i) => (&i.attrs, Some(&i.ident)),
        Item::Trait(i) => (&i.attrs, Some(&i.ident)),
        Item::TraitAlias(i) => (&i.attrs, Some(&i.ident)),
        Item::Type(i) => (&i.attrs, Some(&i.ident)),
        Item::Union(i) => (&i.attrs, Some(&i.ident)),
        Item::Use(i) => (&i.attrs, None),
        _ => (&[], None),
    }
}

fn is_type(item: &Item) -> bool {
    let is_alias = matches!(item, Item::TraitAlias(_) | Item::Type(_));
    is_alias || matches!(item, Item::Enum(_) | Item::Struct(_) | Item::Trait(_) | Item::Union(_))
}

/// Whether a `cfg` among `attributes` needs a test, a model, or a feature that is off.
pub(super) fn is_left_out(attributes: &[Attribute], features: &Features<'_>) -> bool {
    attributes.iter().filter(|a| a.path().is_ident("cfg")).any(|attribute| {
        attribute
            .parse_args::<Meta>()
            .is_ok_and(|condition| holds(&condition, features) == Some(false))
    })
}

/// Whether a condition holds where `test`, `loom` and `shuttle` are not set, and these features are
/// on or off; nothing if it may or may not.
fn holds(condition: &Meta, features: &Features<'_>) -> Option<bool> {
    if let Meta::NameValue(pair) = condition
        && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(name), .. }) = &pair.value
        && pair.path.is_ident("feature")
    {
        let known = features.iter().find(|(feature, _)| *feature == name.value());
        return known.map(|(_, on)| *on);
    }
    let Meta::List(list) = condition else {
        let never = ["test", "loom", "shuttle"].iter().any(|it| condition.path().is_ident(it));
        return never.then_some(false);
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
    let parts: Vec<Option<bool>> = parts.iter().map(|part| holds(part, features)).collect();
    let decided_by = |value| {
        if parts.contains(&Some(value)) {
            Some(value)
        } else {
            parts.iter().all(|&part| part == Some(!value)).then_some(!value)
        }
    };
    match list.path.get_ident()?.to_string().as_str() {
        "all" => decided_by(false),
        "any" => decided_by(true),
        "not" => parts.first().copied().flatten().map(|part| !part),
        _ => None,
    }
}
