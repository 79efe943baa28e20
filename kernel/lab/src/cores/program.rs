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
/// of one goes without it: only the series has `mm/page_ref` and `mm/short_read`.
const OBJECTS: [&str; 10] = [
    "mm/filemap",
    "mm/gup",
    "mm/swap",
    "lib/iov_iter",
    "lib/xarray",
    "lib/bitmap",
    "lib/find_bit",
    "arch/x86/lib/copy_user_64",
    SHORT_READS,
    SLOW_PATHS,
];
/// The object with what the count has out of line.
const SLOW_PATHS: &str = "mm/page_ref";
/// The object with the reads that take no reference.
const SHORT_READS: &str = "mm/short_read";
/// The object whose command line `CASES` are compiled with.
const MODEL: &str = "mm/filemap";
/// The files of `kernel/cores` that are compiled as a part of the kernel.
const CASES: [&str; 2] = ["cases", "stubs"];
/// What the kernel's objects use of the C library.
pub(crate) const LIBRARY: [&str; 4] = ["memcmp", "memcpy", "memmove", "memset"];
/// What the kernel's objects use of `driver.c`, and of the linker.
const PROVIDED: [&str; 5] =
    ["cores_alloc", "cores_protect", "cores_wrong", "__start_percpu", "__stop_percpu"];
/// What sections of the kernel's objects are called in the program. For such names, the linker
/// makes the symbols by which `driver.c` and `stubs.c` find them.
const RENAMED: [(&str, &str); 4] = [
    (".altinstructions", ALTERNATIVES),
    (".data..percpu", PER_CPU),
    (".data..percpu..read_mostly", PER_CPU),
    (".data..percpu..shared_aligned", PER_CPU),
];
/// The section with what the kernel patches when it boots.
pub(crate) const ALTERNATIVES: &str = "alternatives";
/// The section with the per-CPU variables.
pub(crate) const PER_CPU: &str = "percpu";
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
    /// Whether it has reads that take no reference.
    pub(crate) short_reads: bool,
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

/// The kernel's objects that this source has.
fn linked(source: &Path) -> Vec<String> {
    OBJECTS
        .iter()
        .filter(|o| ["c", "S"].iter().any(|e| source.join(o).with_extension(e).is_file()))
        .map(|o| format!("{o}.o"))
        .collect()
}

/// The objects as they are, or copies in which what is stubbed gives way to the stub.
fn weaken(objects: &Path, linked: &[String], stubs: &[String], out: &Path) -> Result<Vec<PathBuf>> {
    let one = |object: &String| {
        let file = objects.join(object);
        let mut both = symbols(&file, "--defined-only")?;
        both.retain(|s| stubs.contains(s));
        if both.is_empty() {
            return Ok(file);
        }
        let copy = out.join(object.replace('/', "-"));
        let args = both.iter().map(|s| format!("--weaken-symbol={s}"));
        proc::output(Command::new("objcopy").args(args).arg(&file).arg(&copy))?;
        Ok(copy)
    };
    linked.iter().map(one).collect()
}

/// # Errors
/// If per-CPU variables are in another section than the lab knows: the workers would share them.
fn no_other_per_cpu(headers: &str) -> Result<()> {
    let is_per_cpu = |w: &&str| w.starts_with(".data..percpu");
    match headers.split_whitespace().find(is_per_cpu) {
        Some(section) => bail!("the kernel's objects have a section {section}"),
        None => Ok(()),
    }
}

/// Writes the assembly that comes first in a layout.
fn pad(layout: usize, out: &Path) -> Result<PathBuf> {
    let file = out.join(format!("pad{layout}.S"));
    let text = format!(
        ".section .note.GNU-stack,\"\",@progbits\n.text\n.balign 64\n.skip {}\n",
        layout * FUNCTION_BYTES
    );
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
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
    let linked = linked(&paths.source(tree));
    let mut stubs = symbols(&out.join("stubs.o"), "--defined-only")?;
    stubs.retain(|s| !s.starts_with("cores_"));
    let (mut all, mut slow_paths) = (Vec::new(), Vec::new());
    for object in &linked {
        let found = functions(&proc::output(Command::new("nm").arg(objects.join(object)))?);
        if object.starts_with(SLOW_PATHS) {
            slow_paths.clone_from(&found);
        }
        all.extend(found);
    }
    all.retain(|f| !stubs.contains(f));
    let weak = weaken(&objects, &linked, &stubs, &out)?;
    let kernel = out.join("kernel.o");
    run(
        "linking",
        Command::new("ld")
            .args(["-m", "elf_x86_64", "-z", "noexecstack", "-r", "-o"])
            .arg(&kernel)
            .args(&weak)
            .args(CASES.map(|file| out.join(file).with_extension("o"))),
    )?;
    if let [program, args @ ..] = &after_link(&read(".vmlinux.o.cmd")?)?[..] {
        run("objtool", Command::new(objects.join(program)).args(args).arg(&kernel))?;
    }
    let names = RENAMED.map(|(from, to)| format!("--rename-section={from}={to}"));
    run("renaming sections", Command::new("objcopy").args(names).arg(&kernel))?;
    no_other_per_cpu(&proc::output(Command::new("objdump").arg("-h").arg(&kernel))?)?;

    let mut missing = symbols(&kernel, "--undefined-only")?;
    missing.retain(|s| !PROVIDED.contains(&s.as_str()));
    let (library, traps): (Vec<_>, Vec<_>) =
        missing.into_iter().partition(|s| LIBRARY.contains(&s.as_str()));
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
    let binaries = (0..LAYOUTS).map(|layout| {
        let (pad, binary) = (pad(layout, &out)?, out.join(format!("cores{layout}")));
        run(
            "linking the program",
            Command::new("gcc")
                .args(["-no-pie", "-pthread", "-o"])
                .arg(&binary)
                .args([&pad, &kernel, &driver, &trap_file]),
        )?;
        Ok(binary)
    });
    let binaries = binaries.collect::<Result<_>>()?;
    let vmlinux = objects.join("vmlinux");
    Ok(Program {
        tree,
        binaries,
        object: kernel,
        vmlinux,
        short_reads: linked.iter().any(|o| o.starts_with(SHORT_READS)),
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

    #[test]
    fn what_is_stubbed_gives_way_to_the_stub() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let write = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
        write("a.c", "int put(void) { return 1; }\nint get(void) { return put(); }\n");
        write("b.c", "int none;\n");
        write(
            "s.c",
            "int get(void);\nint put(void) { return 0; }\nint main(void) { return get(); }\n",
        );
        let gcc = |args: &[&str]| {
            let args = ["-O2", "-fno-inline", "-fsemantic-interposition"].iter().chain(args);
            proc::output(Command::new("gcc").args(args).current_dir(dir))
        };
        gcc(&["-c", "a.c", "b.c", "s.c"]).unwrap();
        gcc(&["-o", "p", "a.o", "b.o", "s.o"]).unwrap_err();
        let out = dir.join("out");
        fs::create_dir(&out).unwrap();
        let weak = weaken(dir, &["a.o".into(), "b.o".into()], &["put".into()], &out).unwrap();
        assert_eq!(weak, [out.join("a.o"), dir.join("b.o")]);
        gcc(&["-o", "p", "out/a.o", "b.o", "s.o"]).unwrap();
    }

    #[test]
    fn per_cpu_variables_that_would_be_shared_are_an_error() {
        no_other_per_cpu(" 0 .text 10\n 1 percpu 20\n 2 .data 30\n").unwrap();
        let error = no_other_per_cpu(" 0 .text 10\n 1 .data..percpu..page_aligned 20\n");
        assert!(error.unwrap_err().to_string().ends_with(".data..percpu..page_aligned"));
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
