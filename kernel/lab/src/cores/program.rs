//! Makes a program of a built kernel's own objects: those that have the lookup, the index and the
//! count, and `kernel/cores`, part of which is compiled with the kernel's headers and flags.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::proc;
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel's objects that are linked, without their extension. A tree that lacks the source
/// of one goes without it: only the series has `mm/page_ref`.
const OBJECTS: [&str; 6] =
    ["mm/filemap", "mm/gup", "lib/xarray", "lib/bitmap", "lib/find_bit", SLOW_PATHS];
/// The object with what the count has out of line.
const SLOW_PATHS: &str = "mm/page_ref";
/// The object whose command line `CASES` are compiled with.
const MODEL: &str = "mm/filemap";
/// The files of `kernel/cores` that are compiled as a part of the kernel.
const CASES: [&str; 2] = ["cases", "stubs"];
/// What the kernel's objects use of the C library and of `driver.c`.
const PROVIDED: [&str; 6] = ["memcmp", "memcpy", "memmove", "memset", "cores_alloc", "cores_wrong"];
/// Where the symbols that nobody provides lie: within what the kernel's code can address, and
/// far from the program. `driver.c` keeps it unmapped.
const TRAPS: u64 = 0x6000_0000;
const TRAP_BYTES: u64 = 4096;
/// The kernel aligns functions to 16 bytes, and a CPU fetches lines of 64. Where in a line a loop
/// lies changes its time by some percent, so it is measured at each of these places.
pub(crate) const LAYOUTS: usize = CACHE_LINE / FUNCTION_BYTES;
pub(crate) const CACHE_LINE: usize = 64;
const FUNCTION_BYTES: usize = 16;

/// A program with one tree's code, and what in it is not the kernel's.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) tree: Tree,
    /// The same in several layouts.
    pub(crate) binaries: Vec<PathBuf>,
    /// The kernel's objects and `CASES`, linked.
    pub(crate) object: PathBuf,
    /// The kernel that the objects are a part of.
    pub(crate) vmlinux: PathBuf,
    /// The kernel's objects in it.
    pub(crate) objects: Vec<String>,
    /// The functions in those.
    pub(crate) functions: Vec<String>,
    /// Those of the count, out of line.
    pub(crate) slow_paths: Vec<String>,
    /// The symbols that `stubs.c` defines.
    pub(crate) stubs: Vec<String>,
    /// What the kernel's objects have from the C library.
    pub(crate) library: Vec<String>,
    /// The symbols that nothing defines, and that end the program if they are used.
    pub(crate) traps: Vec<String>,
}

/// Splits a command line into words, as a shell does where there are only single quotes.
fn words(line: &str) -> Vec<String> {
    let (mut all, mut word, mut quoted, mut begun) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            '\'' => (quoted, begun) = (!quoted, true),
            c if c.is_whitespace() && !quoted => {
                if begun {
                    all.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            c => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun {
        all.push(word);
    }
    all
}

/// The command that Kbuild has recorded for an object.
fn recorded<'a>(record: &'a str, target: &str) -> Result<&'a str> {
    record
        .lines()
        .find_map(|l| l.strip_prefix(&format!("savedcmd_{target} := ")))
        .with_context(|| format!("Kbuild's record has no command for {target}"))
}

/// The compiler and its flags, without the files and without what writes dependencies.
fn compiler(record: &str) -> Result<Vec<String>> {
    let command = recorded(record, &format!("{MODEL}.o"))?;
    let all = words(command.split(';').next().unwrap_or_default());
    let end = all.iter().position(|w| w == "-c").context("Kbuild's record compiles nothing")?;
    let flags: Vec<_> = all[..end].iter().filter(|w| !w.starts_with("-Wp,-MMD")).cloned().collect();
    // The figures mean nothing without these.
    for wanted in ["-O2", "-D__KERNEL__"] {
        if !flags.iter().any(|f| f == wanted) {
            bail!("the kernel is not compiled with {wanted}");
        }
    }
    Ok(flags)
}

/// The command that Kbuild runs on the linked kernel's object, such as objtool, which makes
/// no-ops of static branches. Without its last word, the object.
fn after_link(record: &str) -> Result<Vec<String>> {
    let command = recorded(record, "vmlinux.o")?;
    let mut all = words(command.split_once(';').map_or("", |(_, after)| after));
    all.pop();
    Ok(all)
}

/// The names in the output of `nm`.
fn names(nm: &str) -> Vec<String> {
    nm.lines().filter_map(|l| l.split_whitespace().last()).map(str::to_string).collect()
}

/// The functions in the output of `nm`.
fn functions(nm: &str) -> Vec<String> {
    let is_function = |l: &&str| matches!(l.split_whitespace().nth(1), Some("t" | "T"));
    names(&nm.lines().filter(is_function).collect::<Vec<_>>().join("\n"))
}

/// The symbols of an object: those that it lacks, or those that it has for others.
fn symbols(object: &Path, which: &str) -> Result<Vec<String>> {
    Ok(names(&proc::output(Command::new("nm").args(["-g", which]).arg(object))?))
}

/// The assembly that gives each of these symbols an address where nothing is mapped, and lists
/// them for `driver.c`.
fn trap_source(traps: &[String]) -> String {
    let mut text = String::from(".section .note.GNU-stack,\"\",@progbits\n");
    for (i, name) in traps.iter().enumerate() {
        let address = TRAPS + i as u64 * TRAP_BYTES;
        let _ = writeln!(text, ".globl {name}\n.set {name}, {address:#x}");
    }
    text += ".section .rodata\n.balign 8\n.globl cores_traps, cores_nr_traps\ncores_traps:\n";
    for (i, name) in traps.iter().enumerate() {
        let _ = writeln!(text, ".quad .Lname{i}, {name}");
    }
    let _ = writeln!(text, "cores_nr_traps: .quad {}", traps.len());
    for (i, name) in traps.iter().enumerate() {
        let _ = writeln!(text, ".Lname{i}: .asciz \"{name}\"");
    }
    text
}

impl Program {
    /// The first layout.
    pub(crate) fn binary(&self) -> &Path {
        &self.binaries[0]
    }
}

/// Makes the program of a tree whose fast kernel is built.
///
/// # Errors
/// If something does not compile or link; the error shows the end of its log.
pub(crate) fn make(paths: &Paths, tree: Tree) -> Result<Program> {
    let objects = paths.objects(tree, Config::Fast);
    let out = paths.cache.join("cores").join(tree.name());
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let log = paths.log(&format!("cores-{}", tree.name()));
    let sources = paths.kernel.join("cores");
    let read = |file: &str| {
        let file = objects.join(file);
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    };
    let run = |what: &str, command: &mut Command| {
        let what = format!("{what} for {} cores", tree.name());
        proc::run(&what, command.current_dir(&objects), &log)
    };

    let compiler = compiler(&read("mm/.filemap.o.cmd")?)?;
    for file in CASES {
        run(
            &format!("compiling {file}.c"),
            Command::new(&compiler[0])
                .args(&compiler[1..])
                .arg("-Werror")
                .arg("-c")
                .arg("-o")
                .arg(out.join(file).with_extension("o"))
                .arg(sources.join(file).with_extension("c")),
        )?;
    }
    let source = paths.source(tree);
    let linked: Vec<_> = OBJECTS
        .iter()
        .filter(|o| source.join(o).with_extension("c").is_file())
        .map(|o| format!("{o}.o"))
        .collect();
    let (mut all, mut slow_paths) = (Vec::new(), Vec::new());
    for object in &linked {
        let found = functions(&proc::output(Command::new("nm").arg(objects.join(object)))?);
        if object.starts_with(SLOW_PATHS) {
            slow_paths.clone_from(&found);
        }
        all.extend(found);
    }
    let kernel = out.join("kernel.o");
    run(
        "linking",
        Command::new("ld")
            .args(["-m", "elf_x86_64", "-z", "noexecstack", "-r", "-o"])
            .arg(&kernel)
            .args(&linked)
            .args(CASES.map(|file| out.join(file).with_extension("o"))),
    )?;
    if let [program, args @ ..] = &after_link(&read(".vmlinux.o.cmd")?)?[..] {
        run("objtool", Command::new(objects.join(program)).args(args).arg(&kernel))?;
    }

    let (provided, traps): (Vec<_>, Vec<_>) = symbols(&kernel, "--undefined-only")?
        .into_iter()
        .partition(|s| PROVIDED.contains(&s.as_str()));
    let library = provided.into_iter().filter(|s| !s.starts_with("cores_")).collect();
    let mut stubs = symbols(&out.join("stubs.o"), "--defined-only")?;
    stubs.retain(|s| !s.starts_with("cores_"));
    let trap_file = out.join("traps.S");
    fs::write(&trap_file, trap_source(&traps))
        .with_context(|| format!("cannot write {}", trap_file.display()))?;
    let driver = out.join("driver.o");
    run(
        "compiling driver.c",
        Command::new("gcc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-fno-pie", "-pthread", "-c", "-o"])
            .arg(&driver)
            .arg(sources.join("driver.c")),
    )?;
    let mut binaries = Vec::new();
    for layout in 0..LAYOUTS {
        let pad = out.join(format!("pad{layout}.S"));
        let text = format!(
            ".section .note.GNU-stack,\"\",@progbits\n.text\n.balign 64\n.skip {}\n",
            layout * FUNCTION_BYTES
        );
        fs::write(&pad, text).with_context(|| format!("cannot write {}", pad.display()))?;
        let binary = out.join(format!("cores{layout}"));
        run(
            "linking the program",
            Command::new("gcc")
                .args(["-no-pie", "-pthread", "-o"])
                .arg(&binary)
                .args([&pad, &kernel, &driver, &trap_file]),
        )?;
        binaries.push(binary);
    }
    let vmlinux = objects.join("vmlinux");
    Ok(Program {
        tree,
        binaries,
        object: kernel,
        vmlinux,
        objects: linked,
        functions: all,
        slow_paths,
        stubs,
        library,
        traps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = "savedcmd_mm/filemap.o := gcc -Wp,-MMD,mm/.filemap.o.d -D__KERNEL__ -O2 \
                          -DKBUILD_MODFILE='\"mm/a b\"' -c -o mm/filemap.o mm/filemap.c ; objtool x\n";

    #[test]
    fn a_case_is_compiled_with_the_kernels_flags() {
        let flags = compiler(RECORD).unwrap();
        assert_eq!(flags, ["gcc", "-D__KERNEL__", "-O2", "-DKBUILD_MODFILE=\"mm/a b\""]);
        let error = compiler(&RECORD.replace("-O2", "-Os")).unwrap_err().to_string();
        assert_eq!(error, "the kernel is not compiled with -O2");
        assert!(compiler("savedcmd_mm/gup.o := gcc -O2 -c\n").is_err());
    }

    #[test]
    fn the_object_is_treated_as_the_kernel_is() {
        let record = |command| format!("savedcmd_vmlinux.o := ld -r -o vmlinux.o a.a {command}\n");
        let words = after_link(&record("; ./objtool --hacks=jump_label --link vmlinux.o")).unwrap();
        assert_eq!(words, ["./objtool", "--hacks=jump_label", "--link"]);
        assert!(after_link(&record("")).unwrap().is_empty());
    }

    #[test]
    fn functions_are_told_from_data() {
        let nm = "0000 T page_ref_slow\n0010 t helper\n0000 r __ksymtab_x\n         U xas_load\n";
        assert_eq!(functions(nm), ["page_ref_slow", "helper"]);
    }

    /// The traps' addresses are what the linker makes of a call to a missing symbol.
    #[test]
    fn each_missing_symbol_has_an_address_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("a.c");
        fs::write(
            &source,
            "#include <stdint.h>\n\
             extern const struct { const char *name; uintptr_t address; } cores_traps[];\n\
             extern const unsigned long cores_nr_traps;\n\
             extern char first, second;\n\
             int main(void) { return cores_nr_traps != 2 || cores_traps[1].name[0] != 's' ||\n\
             cores_traps[1].address != (uintptr_t)&second || &second - &first != 4096; }\n",
        )
        .unwrap();
        fs::write(dir.path().join("t.S"), trap_source(&["first".into(), "second".into()])).unwrap();
        let gcc = |args: &[&str]| {
            proc::output(Command::new("gcc").args(args).current_dir(dir.path())).unwrap()
        };
        gcc(&["-no-pie", "-o", "a", "a.c", "t.S"]);
        proc::output(&mut Command::new(dir.path().join("a"))).unwrap();
    }
}
