//! The check on crates made up for it: each kind of dependency closes a circle that is found, and
//! what is none closes none.

use std::fs;
use std::path::Path;

use super::{Krate, types};

/// The first crate of these files.
fn read(files: &[(&str, &str)]) -> anyhow::Result<Krate> {
    Ok(read_all(files)?.remove(0))
}

/// The library and the program of these files, read; in a folder `k` of a folder of its own.
fn read_all(files: &[(&str, &str)]) -> anyhow::Result<Vec<Krate>> {
    let dir = tempfile::tempdir()?;
    for (path, text) in files {
        let path = dir.path().join("k/src").join(path);
        fs::create_dir_all(path.parent().expect("a file is in a folder"))?;
        fs::write(path, text)?;
    }
    Krate::read(dir.path(), Path::new("k"))
}

fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let krate = read(files).expect("the crate can be read");
    krate.circles(false).into_iter().map(|(_, told)| told).collect()
}

/// `a.rs` imports from `b.rs`, and `b.rs` has this text: the only circle's lines.
fn b_has(text: &str) -> String {
    let a = "use crate::b::B;\npub struct A;\nimpl A { pub fn new() -> Self { A } }\n\
             pub fn act() {}\npub mod inner { pub const N: u8 = 1; }\n";
    let found = circles(&[("lib.rs", "mod a;\nmod b;\n"), ("a.rs", a), ("b.rs", text)]);
    found.concat()
}

#[test]
fn an_import_closes_a_circle() {
    let told = b_has("use std::fmt;\nuse crate::a::A;\n");
    assert_eq!(
        told,
        "k/src: a.rs, b.rs need each other; the shortest way around has 2:\n  \
         a.rs -> b.rs\n    k/src/a.rs:1: crate::b::B (of b.rs)\n  \
         b.rs -> a.rs\n    k/src/b.rs:2: crate::a::A (of a.rs)\n"
    );
}

#[test]
fn every_way_to_name_something_closes_a_circle() {
    for (text, line) in [
        ("use crate::{a::{A as Other}};", "1: crate::a::A"),
        ("pub use crate::a::A;", "1: crate::a::A"),
        ("use super::a;\nfn f() { a::act() }", "1: super::a"),
        ("use crate::a::*;", "1: crate::a::*"),
        ("use crate::a::inner::N;", "1: crate::a::inner::N"),
        ("fn f() {\n  crate::a::act();\n}", "2: crate::a::act"),
        ("fn f() {\n  use crate::a::act;\n}", "2: crate::a::act"),
        ("fn f() { let _ = crate::a::A::new(); }", "1: crate::a::A::new"),
        ("struct S {\n  a: Option<Box<super::a::A>>,\n}", "2: super::a::A"),
        ("impl From<crate::a::A> for u8 { }", "1: crate::a::A"),
        ("mod inner { use super::super::a::A; }", "1: super::super::a::A"),
        ("fn f() {\n  println!(\"{}\", crate::a::inner::N);\n}", "2: crate::a::inner::N"),
        ("macro_rules! m { () => { $crate::a::act() } }", "1: crate::a::act"),
        (
            "#[derive(Args)]\nstruct S {\n  #[arg(value_parser = crate::a::act)]\n  s: u8,\n}",
            "3: crate::a::act",
        ),
        (
            "fn f(n: u8) -> bool { matches!(n, self::super::a::inner::N) }",
            "self::super::a::inner::N",
        ),
        ("#[cfg(not(test))]\nuse crate::a::A;", "2: crate::a::A"),
        ("#[cfg(any(test, feature = \"x\"))]\nuse crate::a::A;", "2: crate::a::A"),
    ] {
        let told = b_has(text);
        assert!(told.contains("need each other"), "{text}: no circle");
        assert!(told.contains(line), "{text}:\n{told}");
    }
}

#[test]
fn what_names_nothing_of_another_file_closes_none() {
    for text in [
        "pub struct B;",
        "//! See [`crate::a::A`].\n/// And `crate::a::act`.\npub struct B;",
        "use a::A;\nuse ::a::act;",
        "#[cfg(test)]\nuse crate::a::A;",
        "#[cfg(all(loom, feature = \"x\"))]\nuse crate::a::A;",
        "#[cfg(test)]\nmod tests { use crate::a::A; }",
        "impl B {\n  #[cfg(test)]\n  fn f() { crate::a::act() }\n}",
        "fn f() {\n  #[cfg(test)]\n  let x = crate::a::act();\n}",
        "pub(in crate::a) struct B;",
        "mod inner { use super::B; }\nstruct B;",
        "fn f(a: u8) -> u8 { a.act() }",
        "mod a { pub struct A; }\nuse self::a::A;",
    ] {
        assert_eq!(b_has(text), "", "{text}");
    }
}

/// A folder's own file takes part like any other of its files.
#[test]
fn a_folders_own_file_and_its_children() {
    let folder = |own: &str, child: &str| {
        let own = format!("mod child;\n{own}");
        circles(&[("lib.rs", "mod f;\n"), ("f/mod.rs", &own), ("f/child.rs", child)]).concat()
    };
    let child = "use super::Shared;\npub struct C(Shared);\n";
    let told = folder("use child::C;\npub struct Shared;\n", child);
    assert!(told.starts_with("k/src/f: f/mod.rs, f/child.rs need each other"), "{told}");
    assert!(told.contains("k/src/f/child.rs:1: super::Shared (of f/mod.rs)"), "{told}");
    // Declaring and re-exporting is no use of it; using what is re-exported is one.
    assert_eq!(folder("pub use child::C;\npub struct Shared;\n", child), "");
    assert_eq!(folder("pub(crate) use self::child::*;\npub struct Shared;\n", child), "");
    let used = "pub use child::C;\npub struct Shared;\npub fn f(_: &C) {}\n";
    assert!(folder(used, child).contains("k/src/f/mod.rs:4: C (of f/child.rs)"));
    // Either way round alone is fine.
    assert_eq!(folder("use child::C;\npub struct Shared;\n", "pub struct C;\n"), "");
    // Through a glob of the parent.
    let glob = "use super::*;\npub struct C(Shared);\n";
    assert!(folder("use child::C;\npub struct Shared;\n", glob).contains("super::* (of f/mod.rs)"));
}

#[test]
fn a_reexport_is_looked_through() {
    let files = |a: &'static str| {
        circles(&[
            ("lib.rs", "mod a;\nmod f;\npub use f::B;\n"),
            ("a.rs", a),
            ("f/mod.rs", "mod b;\npub use b::B;\n"),
            ("f/b.rs", "use crate::a::A;\npub struct B(A);\n"),
        ])
        .concat()
    };
    for import in ["use crate::f::B;", "use crate::B;", "use crate::*; pub struct A; fn f(_: B) {}"]
    {
        let told = files(import);
        assert!(told.contains("a.rs -> f/\n"), "{import}:\n{told}");
        assert!(told.contains("(of f/b.rs)"), "{import}:\n{told}");
    }
    assert_eq!(files("pub struct A;"), "");
}

/// A re-export makes the re-exporting file depend on the other, and the file that imports it, too.
#[test]
fn a_reexport_of_something_foreign_is_a_dependency() {
    let told = circles(&[
        ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
        ("a.rs", "pub use crate::c::C;\nuse crate::b::B;\n"),
        ("b.rs", "use crate::a::C;\npub struct B;\n"),
        ("c.rs", "pub struct C;\n"),
    ]);
    assert!(told.concat().contains("k/src/b.rs:1: crate::a::C (of a.rs)"), "{told:?}");
}

/// Two of its files that have nothing to do with each other close a circle of folders.
#[test]
fn a_folder_counts_as_one_from_outside() {
    let told = circles(&[
        ("lib.rs", "mod a;\nmod f;\n"),
        ("a.rs", "use crate::f::low::Low;\npub struct A;\n"),
        ("f/mod.rs", "pub mod high;\npub mod low;\n"),
        ("f/low.rs", "pub struct Low;\n"),
        ("f/high.rs", "use crate::a::A;\n"),
    ]);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("k/src: a.rs, f/ need each other"), "{}", told[0]);
}

#[test]
fn a_method_added_to_another_folders_type_belongs_to_who_adds_it() {
    let files = |caller: &'static str, adder: &'static str| {
        circles(&[
            ("lib.rs", "mod core;\nmod act;\nmod caller;\n"),
            ("core.rs", "pub struct Core;\nimpl Core { pub fn own(&self) {} }\n"),
            ("caller.rs", caller),
            ("act.rs", adder),
        ])
        .concat()
    };
    let adder =
        "use crate::core::Core;\nimpl Core {\n  pub fn evict(&self) { crate::caller::f() }\n}\n";
    let told =
        files("use crate::core::Core;\npub fn f() {}\nfn g(c: &Core) { c.evict() }\n", adder);
    assert!(told.contains("k/src/caller.rs:3: .evict (of act.rs)"), "{told}");
    let told = files("use crate::core::Core;\npub fn f() { Core::evict }\n", adder);
    assert!(told.contains("k/src/caller.rs:2: Core::evict (of act.rs)"), "{told}");
    let told = files("pub fn f() {}\nfn g(c: &C) { log!(c.evict()) }\n", adder);
    assert!(told.contains("k/src/caller.rs:2: .evict (of act.rs)"), "{told}");
    assert_eq!(files("use crate::core::Core;\npub fn f(c: &Core) { c.own() }\n", adder), "");
    // Another type has a method of that name: which one is meant is unknown.
    let other = "pub fn f(c: &C) { c.evict() }\nstruct C;\nimpl C { fn evict(&self) {} }\n";
    assert_eq!(files(other, adder), "");
    // A folder's type may have its methods in several files of the folder.
    let one = "use super::T;\nimpl T {\n  pub fn one(&self) { self.two() }\n}\n";
    let two = "use super::T;\nimpl T {\n  pub fn two(&self) { self.one() }\n}\n";
    let own = "mod one;\nmod two;\npub struct T;\nimpl T { fn three(&self) { self.one() } }\n";
    let found = circles(&[
        ("main.rs", "mod t;\n"),
        ("t/mod.rs", own),
        ("t/one.rs", one),
        ("t/two.rs", two),
    ]);
    assert_eq!(found.concat(), "");
}

#[test]
fn the_shortest_way_around_is_told() {
    let krate = read(&[
        ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\nmod e;\n"),
        ("a.rs", "use crate::b::B;\npub struct A;\n"),
        ("b.rs", "use crate::c::C;\npub struct B;\n"),
        ("c.rs", "use crate::a::A;\nuse crate::d::D;\npub struct C;\n"),
        ("d.rs", "use crate::c::C;\nuse crate::e::E;\npub struct D;\n"),
        ("e.rs", "pub struct E;\n"),
    ])
    .unwrap();
    let [(folder, told)] = &krate.circles(false)[..] else { panic!("one circle") };
    assert_eq!(folder, "k/src");
    assert!(told.starts_with("k/src: a.rs, b.rs, c.rs, d.rs need each other"), "{told}");
    assert!(told.contains("way around has 2:\n  c.rs -> d.rs\n    k/src/c.rs:2"), "{told}");
    assert!(!told.contains("a.rs ->"), "{told}");
    let all = krate.circles(true).remove(0).1;
    assert!(all.contains("a.rs -> b.rs") && !all.contains("-> e.rs"), "{all}");
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let error = |files: &[(&str, &str)]| format!("{:#}", read(files).err().expect("an error"));
    let forgotten = error(&[("lib.rs", "mod a;\n"), ("a.rs", ""), ("x/b.rs", "")]);
    assert!(forgotten.contains("no `mod` names these files") && forgotten.contains("x/b.rs"));
    let torn = error(&[("lib.rs", "mod a;\n"), ("a.rs", "fn {")]);
    assert!(torn.contains("a.rs: can't be read as Rust"), "{torn}");
    let missing = error(&[("lib.rs", "mod a;\n")]);
    assert!(missing.contains("a.rs: can't be read as Rust"), "{missing}");
    assert!(error(&[("a.rs", "")]).contains("neither lib.rs nor main.rs"));
    // No module has to name the files of tests.
    let tests = [("lib.rs", "#[cfg(test)]\nmod t;\n"), ("t/mod.rs", "mod u;\n"), ("t/u.rs", "")];
    assert!(read(&tests).is_ok());
}

/// A library and a program beside each other: each file must be in one of them.
#[test]
fn a_library_and_its_program_share_a_folder() {
    let files = |program: &'static str| {
        [("lib.rs", "mod a;\n"), ("a.rs", ""), ("main.rs", program), ("b.rs", "use crate::main;\n")]
    };
    let both = read_all(&files("mod b;\nfn main() { b::f() }\n")).expect("all files are named");
    let [library, program] = &both[..] else { panic!("{} crates", both.len()) };
    assert!(library.circles(false).is_empty());
    let told = program.circles(false).remove(0).1;
    assert!(told.starts_with("k/src: main.rs, b.rs need each other"), "{told}");
    let error = read_all(&files("fn main() {}\n")).err().expect("b.rs is in neither");
    assert!(format!("{error:#}").ends_with("nothing checks them: b.rs"), "{error:#}");
}

/// What is wrong with the floors of a crate with `a`, `b`, and a folder `f` of `c` and `d`, by the
/// crate's picture and the folder's.
fn wrong_floors(picture: &str, folder: &str) -> String {
    let rows: Vec<String> = folder.lines().map(|line| format!("//! {line}\n")).collect();
    let head = format!("//! F.\n//!\n//! ```text\n{}//! ```\n\n", rows.concat());
    let folder = format!("{head}mod c;\nmod d;\npub use c::C;\n");
    let files = [
        ("lib.rs", "mod a;\nmod b;\nmod f;\npub use f::C;\n"),
        ("a.rs", "use crate::b::B;\nuse crate::f::C;\n"),
        ("b.rs", "pub struct B;\nuse crate::f::C;\n"),
        ("f/mod.rs", folder.as_str()),
        ("f/c.rs", "pub struct C;\nuse super::d::D;\n"),
        ("f/d.rs", "pub struct D;\n"),
    ];
    let dir = tempfile::tempdir().expect("a folder");
    for (path, text) in files {
        let path = dir.path().join("k/src").join(path);
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    let krate = Krate::read(dir.path(), Path::new("k")).expect("the crate can be read").remove(0);
    let document = format!("text\n\n<!-- floors: k/src -->\n\n```text\n{picture}\n```\nmore\n");
    krate.arrows_up(dir.path(), "d.md", &document).expect("the files can be read")
}

#[test]
fn arrows_between_floors_run_down() {
    assert_eq!(wrong_floors("a   the first\n    of all\nb\nf/  the last", "c.rs  it\nd.rs"), "");
    for (picture, folder, line) in [
        ("b\na\nf", "c\nd", "d.md: an arrow up:\n  a.rs -> b.rs\n    k/src/a.rs:1: crate::b::B"),
        ("a b  both\nf", "c\nd", "d.md: an arrow beside:\n  a.rs -> b.rs\n"),
        ("a\nf\nb", "c\nd", "d.md: an arrow up:\n  b.rs -> f/\n"),
        ("a\nb\nf", "d\nc", "k/src/f/mod.rs: an arrow up:\n  f/c.rs -> f/d.rs\n"),
        ("a\nf", "c\nd", "d.md: b is on no floor\n"),
        ("a\nb\nf", "c", "k/src/f/mod.rs: d is on no floor\n"),
        ("a x\nb\nf", "c\nd", "d.md: there is no module x\n"),
        ("a\nb\nf\na", "c\nd", "d.md: a is on two floors\n"),
    ] {
        let told = wrong_floors(picture, folder);
        assert!(told.contains(line), "{line}:\n{told}");
    }
}

#[test]
fn a_crate_with_floors_and_each_folder_at_its_root_has_a_picture() {
    let none = ": there is no picture of its floors\n";
    assert_eq!(
        wrong_floors("a\nb\nf", ""),
        format!("k/src/f/mod.rs: c is on no floor\nk/src/f/mod.rs: d is on no floor\n")
    );
    let krate = read(&[("lib.rs", "mod f;\n"), ("f/mod.rs", "mod c;\n"), ("f/c.rs", "")]).unwrap();
    let dir = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(dir.path().join("k/src/f")).expect("a folder");
    fs::write(dir.path().join("k/src/f/mod.rs"), "//! F.\nmod c;\n").expect("a file");
    let told = krate.arrows_up(dir.path(), "d.md", "no picture").expect("the files can be read");
    assert_eq!(told, format!("d.md{none}k/src/f/mod.rs{none}"));
}

#[test]
fn two_types_of_a_crate_have_two_names() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\nmod s;\nmod c { trait T {} }\n#[cfg(test)]\nmod t;\n"),
        (
            "a.rs",
            "pub struct A;\n#[cfg(not(loom))]\nunion U { n: u8 }\nfn T() {}\nimpl A { type O = B; }\n",
        ),
        (
            "b.rs",
            "enum B { A, T }\n#[cfg(loom)]\nunion U { n: u8 }\nfn f() { type T = u8; }\nuse crate::a::A;\n",
        ),
        ("s.rs", "struct A;\n"),
        ("t.rs", "struct A;\n"),
    ];
    let krate = read(&files).expect("the crate can be read");
    let told = types::of_one_name(&krate.src, &krate.tree, &["k/src/s.rs"]);
    assert_eq!(told, "2 types have the name T:\n  k/src/b.rs:4\n  k/src/lib.rs:4\n");
}
