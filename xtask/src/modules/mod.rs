//! `cargo xtask modules`: the modules of each crate import each other without a circle, no floor of a
//! crate that has floors imports from one above it, and no two types of a crate have the same name.

mod circle;
mod depend;
mod face;
mod floors;
mod gather;
mod named;
mod product;
#[cfg(test)]
mod tests;
mod tree;
mod types;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::circle::Needs;
use self::depend::Dependency;
use self::face::Face;
use self::floors::Floors;
use self::tree::Tree;

/// Sources that have floors, and the document with their picture.
const FLOORS: [(&str, &str); 1] = [("crates/pinfold/src", "docs/design.md")];

/// The crate whose public items are counted, and the document that has them in a table.
const FACE: (&str, &str) = ("crates/pinfold/src", "docs/face.md");

/// Its features that add what tests, benchmarks and comparisons need are off; and the one with a
/// subject of its own, whose functions are counted apart.
const FACE_OFF: [(&str, bool); 2] = [("testing", false), ("mutants", false)];
const FACE_APART: &str = "serve";

/// The most public items that it may have, and functions: two of these for holes, as nothing else
/// gives a file's space back (`File::punch_hole`, `Source::punch_hole`), and one as a log must not
/// wait for the rest of its file (`File::sync_range`).
const FACE_MAX: (usize, usize) = (45, 120);

/// Crates in which types may share a name.
const HOMONYMS: [&str; 2] = ["crates/pinfold-cli", "kernel/lab"];

/// Files whose types stand in for those of the same names: std's locks, where no model runs; and
/// what a cache has without maps.
const STAND_INS: [&str; 2] =
    ["crates/pinfold/src/base/sync/locks.rs", "crates/pinfold/src/mapped/none.rs"];

/// Features that are on where modules' needs are asked for.
const ON: [(&str, bool); 2] = [("map", true), ("testing", true)];

/// Where comments and documents name files.
const PROSE: [&str; 5] = ["README.md", "crates", "docs", "fuzz", "xtask/src/main.rs"];

/// Check that the modules of each crate import each other without a circle, that none imports from
/// a floor above, and that each type has a name of its own
///
/// The rule holds in each folder by itself. The files in it, its own file (mod.rs, lib.rs, main.rs)
/// among them, and the folders in it must not depend on each other in a circle. Seen from outside,
/// a folder counts as one, whichever of its files depends or is depended on.
///
/// A file depends on another if it imports or mentions anything that the other defines, or calls a
/// method that the other adds to a type of a third. Re-exports are looked through: what is imported
/// by way of a mod.rs belongs to the file that defines it. So neither `mod x;` nor a `pub use` of
/// something further down is a dependency; a `pub use` of anything else is one, on both sides.
///
/// What only tests and models have (a cfg that needs `test`, `loom` or `shuttle`) is left out.
///
/// No two types, traits or aliases of a crate have the same name. Left out are programs that are
/// made of many small ones: crates/pinfold-cli and kernel/lab, whose benchmarks and tests know
/// nothing of each other.
///
/// crates/pinfold has floors: docs/design.md has their picture, and the mod.rs of each folder at
/// the crate's root has one of its own files. Each module stands in a row, and imports only from
/// rows below its own. And each Rust file that a comment or document names is there.
///
/// docs/face.md has every public item of crates/pinfold in a table; there may be only so many, with
/// so many functions.
///
/// Outside of the folders with mapped memory, no line of crates/pinfold has its words (mirror,
/// swap, lent, own memory): the cache proper knows of it by `pages/outside.rs` alone. And the
/// command prints how many lines the cache has, without maps and with all.
#[derive(Debug, Default, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ModulesArgs {
    /// Crates' folders [default: all]
    crates: Vec<PathBuf>,
    /// Of each circle print every import that is part of it, not only a shortest way around
    #[arg(long)]
    all: bool,
    /// Print what each file and folder calls, as rows for a document
    #[arg(long)]
    table: bool,
    /// Print the public items of crates/pinfold with their functions, and how many there are
    #[arg(long)]
    face: bool,
}

pub(crate) fn run(root: &Path, args: &ModulesArgs) -> Result<()> {
    let chosen = if args.crates.is_empty() { all_crates(root)? } else { args.crates.clone() };
    let (mut files, mut dependencies) = (0, 0);
    let mut wrong = String::new();
    for krate in &chosen {
        for krate in Krate::read(root, krate)? {
            if args.table {
                print!("{}", krate.table());
            }
            for (_, circle) in krate.circles(args.all) {
                wrong += &circle;
            }
            if !HOMONYMS.iter().any(|it| krate.src.starts_with(it)) {
                wrong += &types::of_one_name(&krate.src, &krate.tree, &STAND_INS);
            }
            if krate.src == Path::new(FACE.0) {
                wrong += &krate.face(root, args.face)?;
            }
            for (_, document) in FLOORS.iter().filter(|(src, _)| *src == krate.src.as_os_str()) {
                let text = fs::read_to_string(root.join(document)).context(*document)?;
                wrong += &krate.arrows_up(root, document, &text)?;
                wrong += &words::known(&krate.src, &krate.tree);
            }
            files += krate.files();
            dependencies += krate.dependencies.len();
        }
    }
    if args.crates.is_empty() {
        wrong += &named::gone(root, &PROSE)?;
    }
    ensure!(wrong.is_empty(), "modules:\n{wrong}");
    if args.crates.is_empty() {
        println!("{}", product::told(root)?);
    }
    println!("{} crates, {files} files, {dependencies} imports: no circle", chosen.len());
    Ok(())
}

/// The folders of the workspace's crates, in the order of their names.
fn all_crates(root: &Path) -> Result<Vec<PathBuf>> {
    let mut all = vec![PathBuf::from("xtask")];
    for entry in fs::read_dir(root.join("crates")).context("crates")? {
        let krate = Path::new("crates").join(entry?.file_name());
        if root.join(&krate).join("Cargo.toml").exists() {
            all.push(krate);
        }
    }
    all.sort();
    Ok(all)
}

/// A library or a program, with what its files need of each other.
struct Krate {
    /// Where its sources are, from the workspace's root.
    src: PathBuf,
    tree: Tree,
    dependencies: BTreeSet<Dependency>,
}

impl Krate {
    /// The library and the program of a folder.
    fn read(root: &Path, krate: &Path) -> Result<Vec<Self>> {
        let src = krate.join("src");
        let there = |file: &&str| root.join(&src).join(file).exists();
        let roots: Vec<&str> = ["lib.rs", "main.rs"].into_iter().filter(there).collect();
        ensure!(!roots.is_empty(), "{}: neither lib.rs nor main.rs there", src.display());
        let trees = gather::read(&root.join(&src), &roots, &ON)?;
        let read = trees.into_iter().map(|tree| {
            let dependencies = depend::dependencies(&tree);
            Self { src: src.clone(), tree, dependencies }
        });
        Ok(read.collect())
    }

    fn files(&self) -> usize {
        self.tree.modules.iter().enumerate().filter(|(id, module)| module.owner == *id).count()
    }

    /// The part `part` of a folder, as a path below the sources.
    fn part(&self, folder: usize, part: usize) -> String {
        let module = &self.tree.modules[part];
        let is_folder = |id| {
            self.tree
                .modules
                .iter()
                .enumerate()
                .any(|(child, module)| module.parent == Some(id) && module.owner == child)
        };
        if part != folder && is_folder(part) {
            let line = &self.tree.ancestry(part)[1..];
            let names: Vec<&str> = line.iter().map(|&m| &*self.tree.modules[m].name).collect();
            format!("{}/", names.join("/"))
        } else {
            module.file.display().to_string()
        }
    }

    /// Every circle, by the folder it is in: its imports, a line each.
    fn circles(&self, all: bool) -> Vec<(String, String)> {
        let mut circles = Vec::new();
        for (folder, needs) in circle::by_folder(&self.tree, &self.dependencies) {
            for circle in circle::circles(&needs) {
                let way = circle::shortest(&needs, &circle);
                let parts: Vec<String> =
                    circle.iter().map(|&part| self.part(folder, part)).collect();
                let path = self.folder(folder).display().to_string();
                let mut told = format!(
                    "{path}: {} need each other; the shortest way around has {}:\n",
                    parts.join(", "),
                    way.len()
                );
                if all {
                    for &(from, to) in needs.keys() {
                        if circle.contains(&from) && circle.contains(&to) {
                            self.imports(&mut told, folder, &needs, (from, to));
                        }
                    }
                } else {
                    let next = way.iter().cycle().skip(1);
                    for step in way.iter().copied().zip(next.copied()) {
                        self.imports(&mut told, folder, &needs, step);
                    }
                }
                circles.push((path, told));
            }
        }
        circles
    }

    fn folder(&self, folder: usize) -> PathBuf {
        let line = &self.tree.ancestry(folder)[1..];
        let names = line.iter().map(|&module| &*self.tree.modules[module].name);
        self.src.iter().chain(names.map(AsRef::as_ref)).collect()
    }

    fn imports(&self, into: &mut String, folder: usize, needs: &Needs, step: (usize, usize)) {
        let _ = writeln!(into, "  {} -> {}", self.part(folder, step.0), self.part(folder, step.1));
        for dependency in &needs[&step] {
            let _ = writeln!(
                into,
                "    {}:{}: {} (of {})",
                self.src.join(&self.tree.modules[dependency.from].file).display(),
                dependency.line,
                dependency.what,
                self.tree.modules[dependency.to].file.display()
            );
        }
    }

    /// What is wrong with the public items, which it may print.
    fn face(&self, root: &Path, prints: bool) -> Result<String> {
        let ((_, document), (items_max, functions_max)) = (FACE, FACE_MAX);
        let src = root.join(&self.src);
        let with = |serve| {
            let features = FACE_OFF.into_iter().chain([("map", true), (FACE_APART, serve)]);
            Face::read(&src, &features.collect::<Vec<_>>())
        };
        let (face, core) = (with(true)?, with(false)?);
        let told = |it: &Face| format!("{} items, {} functions", it.items.len(), it.functions());
        if prints {
            print!("{}", face.told());
            println!("{}; without the feature {FACE_APART}: {}", told(&face), told(&core));
        }
        let mut wrong = String::new();
        for (count, most, what) in [
            (face.items.len(), items_max, "public items"),
            (core.functions(), functions_max, "public functions"),
        ] {
            if count > most {
                let _ = writeln!(wrong, "{count} {what}: there may be {most}");
            }
        }
        let text = fs::read_to_string(root.join(document)).context(document)?;
        for line in face.not_as_told(&text).lines() {
            let _ = writeln!(wrong, "{document}: {line}");
        }
        Ok(wrong)
    }

    /// The folders and files in a folder that have files of their own, and its own file if that
    /// needs any of them or is needed by any.
    fn parts(&self, folder: usize, needs: &Needs) -> BTreeSet<usize> {
        let modules = self.tree.modules.iter().enumerate();
        let is_part = |(id, module): &(usize, &tree::Module)| {
            module.parent == Some(folder) && module.owner == *id
        };
        let own = needs.keys().flat_map(|&(from, to)| [from, to]).filter(|&part| part == folder);
        modules.filter(is_part).map(|(id, _)| id).chain(own).collect()
    }

    /// A part's name in a picture of floors.
    fn name(&self, folder: usize, part: usize) -> &str {
        if part == folder { "mod" } else { &self.tree.modules[part].name }
    }

    /// Whatever is wrong with the floors of the crate and of the folders at its root, as `text`, of
    /// `document`, and their `mod.rs` draw them. The crate's root file needs no floor.
    fn arrows_up(&self, root: &Path, document: &str, text: &str) -> Result<String> {
        let mut wrong = String::new();
        let by_folder = circle::by_folder(&self.tree, &self.dependencies);
        let none = Needs::new();
        let needs_of = |folder| by_folder.get(&folder).unwrap_or(&none);
        let src = self.src.display().to_string();
        let picture = floors::in_document(text, &src);
        self.arrows_up_in(&mut wrong, (0, needs_of(0)), document, picture);
        let modules = self.tree.modules.iter().enumerate();
        for (id, module) in modules.filter(|(_, module)| module.parent == Some(0)) {
            if module.owner == id && module.file.ends_with("mod.rs") {
                let file = self.src.join(&module.file);
                let text = fs::read_to_string(root.join(&file)).context("a module's file")?;
                let (told, picture) = (file.display().to_string(), floors::in_comment(&text));
                self.arrows_up_in(&mut wrong, (id, needs_of(id)), &told, picture);
            }
        }
        Ok(wrong)
    }

    fn arrows_up_in(
        &self,
        wrong: &mut String,
        (folder, needs): (usize, &Needs),
        told: &str,
        picture: Result<Floors, String>,
    ) {
        let floors = match picture {
            Ok(floors) => floors,
            Err(why) => {
                let _ = writeln!(wrong, "{told}: {why}");
                return;
            }
        };
        let mut parts = self.parts(folder, needs);
        if folder == 0 {
            parts.remove(&0);
        }
        let floor = |part| floors.get(self.name(folder, part)).copied();
        for &part in parts.iter().filter(|&&part| floor(part).is_none()) {
            let _ = writeln!(wrong, "{told}: {} is on no floor", self.name(folder, part));
        }
        let is_part = |name: &str| parts.iter().any(|&part| self.name(folder, part) == name);
        for name in floors.keys().filter(|name| !is_part(name)) {
            let _ = writeln!(wrong, "{told}: there is no module {name}");
        }
        for &(from, to) in needs.keys() {
            if let (Some(above), Some(below)) = (floor(from), floor(to))
                && above >= below
            {
                let way = if above == below { "beside" } else { "up" };
                let _ = writeln!(wrong, "{told}: an arrow {way}:");
                self.imports(wrong, folder, needs, (from, to));
            }
        }
    }

    /// What each part of each folder calls, in the form of a document's rows.
    fn table(&self) -> String {
        let mut table = String::new();
        for (folder, needs) in circle::by_folder(&self.tree, &self.dependencies) {
            let _ = writeln!(table, "<!-- modules: {} -->", self.folder(folder).display());
            let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for &(from, to) in needs.keys() {
                let (from, to) = (self.part(folder, from), self.part(folder, to));
                rows.entry(to.clone()).or_default();
                rows.entry(from).or_default().push(floors::plain(&to).to_owned());
            }
            for (part, calls) in rows {
                let _ = writeln!(table, "| `{part}` | | {} |", calls.join(", "));
            }
        }
        table
    }
}
