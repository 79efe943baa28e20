//! Checks that the code which is measured is the built kernel's, instruction by instruction.

use super::list::Feature;
use super::per_cpu::PerCpu;
use super::program::{ALTERNATIVES, CACHE_LINE, LAYOUTS, LIBRARY, Program};
use crate::kernels::Tree;
use crate::{build, proc};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::process::Command;

/// The functions of the kernel that a lookup, a split, an unpin and a read call. What these call
/// is compared, too, and what the count has out of line.
const FUNCTIONS: [&str; 7] = [
    "filemap_get_entry",
    "xas_load",
    "xas_store",
    "xas_split",
    "unpin_user_pages",
    "generic_file_read_iter",
    "copy_page_to_iter",
];
/// The lookup, and the loops of `cases.c` around it, which put what the lookup got.
const LOOKUP: &str = "filemap_get_entry";
const LOOPS: [&str; 3] = ["one_batch", "many_batch", "mixed_batch"];
/// All that a short read executes of the kernels that have such reads.
const SHORT_READ: [&str; 4] =
    ["generic_file_read_iter", "filemap_read", "filemap_read_short", "short_read"];
/// Bytes of the kernel's `struct alt_instr`, and where in it the feature is.
const ALTERNATIVE_BYTES: usize = 14;
const FEATURE: Range<usize> = 8..10;

/// An instruction without the addresses that the linker has chosen.
fn without_addresses(line: &str) -> String {
    let text = line.split_once(":\t").map_or(line, |(_, text)| text);
    let text = text.split(" # ").next().unwrap_or_default();
    let is_address = |w: &str| w.len() >= 4 && w.chars().all(|c| c.is_ascii_hexdigit());
    let mut words: Vec<_> = text.split_whitespace().map(str::to_string).collect();
    // `call ADDRESS <symbol+offset>`: the symbol tells.
    if words.last().is_some_and(|w| w.starts_with('<'))
        && words.len() >= 2
        && is_address(&words[words.len() - 2])
    {
        words.remove(words.len() - 2);
    }
    for word in &mut words {
        if let Some(at) = word.find("(%rip)") {
            let begin = word[..at].rfind([',', ':', '*']).map_or(0, |i| i + 1);
            word.replace_range(begin..at, "");
        }
    }
    // The C library's are called by way of a table, and the kernel's have two names.
    if let Some(name) = words.last_mut().filter(|w| w.starts_with("<__") || w.ends_with("@plt>")) {
        let plain = name.trim_matches(['<', '>']).trim_end_matches("@plt").trim_start_matches("__");
        if LIBRARY.contains(&plain) {
            *name = format!("<{plain}>");
        }
    }
    words.join(" ")
}

/// Whether two operands are addresses of data, or refer to it by the same registers.
fn is_data(ours: &str, kernels: &str) -> bool {
    let value = |text: &str| u64::from_str_radix(text, 16).ok();
    // An address, and what is around it.
    let split = |operand: &'_ str| -> Option<(u64, String)> {
        if let Some(text) = operand.strip_prefix("$0x") {
            return Some((value(text)?, "$".into()));
        }
        let (address, registers) = operand.split_once('(')?;
        let address = match address.strip_prefix("-0x") {
            Some(text) => value(text)?.wrapping_neg(),
            None => value(address.strip_prefix("0x")?)?,
        };
        Some((address, format!("({registers}")))
    };
    let (Some((a, of_a)), Some((b, of_b))) = (split(ours), split(kernels)) else { return false };
    of_a == of_b
        && (0x40_0000..=0x7fff_ffff).contains(&a)
        && (0xffff_ffff_8000_0000..=0xffff_ffff_bfff_ffff).contains(&b)
}

/// Whether two instructions, without addresses in the code, are the same but for where data lies.
fn is_same(ours: &str, kernels: &str, per_cpu: &PerCpu) -> bool {
    let operands =
        |text: &'_ str| -> Vec<String> { text.split([' ', ',']).map(str::to_string).collect() };
    let (a, b) = (operands(ours), operands(kernels));
    let is_same = |(a, b): (&String, &String)| a == b || is_data(a, b) || per_cpu.is_same(a, b);
    a.len() == b.len() && a.iter().zip(&b).all(is_same)
}

/// The symbol of the data that an instruction uses, if objdump prints it. A name with a distance is
/// only whatever symbol is next, as of constants, which have none.
fn symbol(line: &str) -> Option<&str> {
    let name = line.split_once(" # ")?.1.trim().split_once(" <")?.1.strip_suffix('>')?;
    // The kernel's linker script gives the same place both names.
    let name = if name == "const_pcpu_hot" { "pcpu_hot" } else { name };
    (!name.contains('+')).then_some(name)
}

/// Whether two instructions may use the same data, as far as it has names.
fn may_use_the_same(ours: &str, kernels: &str) -> bool {
    !matches!((symbol(ours), symbol(kernels)), (Some(a), Some(b)) if a != b)
}

/// The first instruction in which two functions differ.
fn difference(ours: &[String], kernels: &[String], per_cpu: &PerCpu) -> Option<String> {
    let text = |f: &[String], i: usize| {
        f.get(i).map_or_else(|| "(the end)".to_string(), |l| without_addresses(l))
    };
    (0..ours.len().max(kernels.len()))
        .find(|&i| match (ours.get(i), kernels.get(i)) {
            (Some(a), Some(b)) => {
                !is_same(&without_addresses(a), &without_addresses(b), per_cpu)
                    || !may_use_the_same(a, b)
            }
            _ => true,
        })
        .map(|i| {
            let [a, b] = [ours, kernels].map(|f| text(f, i));
            let [of_a, of_b] = [ours, kernels].map(|f| {
                f.get(i).and_then(|l| symbol(l)).map(|s| format!(" of {s}")).unwrap_or_default()
            });
            format!("instruction {i} is `{a}`{of_a}, the kernel's `{b}`{of_b}")
        })
}

/// The locked instructions of a function, without their registers.
fn locked(lines: &[String]) -> BTreeSet<String> {
    lines
        .iter()
        .filter_map(|l| l.split_once("lock "))
        .map(|(_, text)| {
            let mnemonic = text.split_whitespace().next().unwrap_or_default();
            let offset = text.find("0x34(").map_or("", |_| " on the count");
            format!("{mnemonic}{offset}")
        })
        .collect()
}

/// The functions that a function calls, or jumps to at its end.
fn called(lines: &[String]) -> BTreeSet<String> {
    lines
        .iter()
        .filter_map(|l| l.split_once(":\t"))
        .map(|(_, text)| text.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words[0] == "call" || words[0].starts_with('j'))
        .filter_map(|words| words.last()?.strip_prefix('<')?.strip_suffix('>'))
        .filter(|name| !name.contains('+'))
        .map(str::to_string)
        .collect()
}

/// Where in a cache line a function begins.
fn place(lines: &[String]) -> Result<u64> {
    let address = lines.first().and_then(|l| l.trim().split_once(':')).map(|(a, _)| a);
    let address = address.and_then(|a| u64::from_str_radix(a, 16).ok());
    Ok(address.context("objdump printed no address")? % CACHE_LINE as u64)
}

/// The instructions that read or write memory for this CPU alone.
fn atomic(lines: &[String]) -> BTreeSet<String> {
    let mut all = locked(lines);
    // Locked without a prefix. Without memory it is a no-op.
    let exchanges = |l: &&String| l.contains("xchg ") && l.contains('(');
    all.extend(lines.iter().filter(exchanges).map(|l| without_addresses(l)));
    all
}

/// The first of these functions that the kernel patches when it boots, because it has alternatives
/// for the CPU it runs on, and the program does not know what to do. `symbols` and `patches` are
/// what objdump prints of an object's symbols, and of the relocations of its list of
/// alternatives, and `table` is that list.
fn patched_at_boot<'a>(
    functions: &'a BTreeSet<String>,
    symbols: &str,
    patches: &str,
    table: &[u8],
    known: &[Feature],
) -> Option<&'a String> {
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let is_known = |entry: usize| {
        let feature = table.get(entry..).and_then(|e| e.get(FEATURE));
        feature.is_some_and(|f| known.iter().any(|k| k.number.to_le_bytes() == *f))
    };
    let place = |line: &'_ str| -> Option<(String, u64)> {
        let words: Vec<_> = line.split_whitespace().collect();
        let entry = usize::try_from(hex(words.first()?)?).ok()?;
        let (section, at) = words.get(2)?.split_once("+0x")?;
        // The rest of an entry refers to the replacement.
        (entry % ALTERNATIVE_BYTES == 0 && !is_known(entry))
            .then_some((section.to_string(), hex(at)?))
    };
    let places: Vec<_> = patches.lines().filter_map(place).collect();
    symbols.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let &[address, .., "F", section, size, name] = &words[..] else { return None };
        let function = functions.get(name)?;
        let (begin, size) = (hex(address)?, hex(size)?);
        let is_in = |(of, at): &(String, u64)| of == section && (begin..begin + size).contains(at);
        places.iter().any(is_in).then_some(function)
    })
}

/// The functions of short reads that must have no locked instruction. Without their object nothing
/// would be looked at.
///
/// # Errors
/// If the patched program lacks it.
fn short_read(tree: Tree, is_linked: bool) -> Result<&'static [&'static str]> {
    match (tree, is_linked) {
        (_, true) => Ok(&SHORT_READ),
        (Tree::Series, false) => bail!("the {} program has no short reads", tree.name()),
        _ => Ok(&[]),
    }
}

/// # Errors
/// If two layouts are the same, whatever the lab has asked the linker for.
fn all_differ(places: &[u64]) -> Result<()> {
    if places.iter().collect::<BTreeSet<_>>().len() != LAYOUTS {
        bail!("{LOOKUP} begins at the bytes {places:?} of a cache line in the layouts");
    }
    Ok(())
}

/// Compares a program with the kernel that its objects are from, and says what was compared.
///
/// # Errors
/// If a function differs, or the kernel patches it when it boots; a loop puts by other locked
/// instructions than the kernel; or two layouts are the same.
pub(crate) fn check(program: &Program, features: &[Feature]) -> Result<String> {
    let name = program.tree.name();
    let mut left: Vec<_> = FUNCTIONS.into_iter().map(str::to_string).collect();
    left.extend(program.slow_paths.iter().cloned());
    let nm = |file| proc::output(Command::new("nm").arg(file));
    let kernels = nm(&program.vmlinux)?;
    let per_cpus = program.binaries.iter().map(|b| PerCpu::new(&nm(b)?, &kernels));
    let per_cpus = per_cpus.collect::<Result<Vec<_>>>()?;
    let mut compared = BTreeSet::new();
    let mut instructions = 0;
    while let Some(function) = left.pop() {
        if !compared.insert(function.clone()) {
            continue;
        }
        let kernels = build::disassemble(&program.vmlinux, &function)?;
        for (binary, per_cpu) in program.binaries.iter().zip(&per_cpus) {
            let ours = build::disassemble(binary, &function)?;
            if let Some(difference) = difference(&ours, &kernels, per_cpu) {
                bail!("{function} of the {name} program is not the kernel's: {difference}");
            }
        }
        instructions += kernels.len();
        // The others are stubbed, or end the program.
        left.extend(called(&kernels).into_iter().filter(|f| program.functions.contains(f)));
    }
    let of_object =
        |args: &[&str]| proc::output(Command::new("objdump").args(args).arg(&program.object));
    let patches = of_object(&["-r", "-j", ALTERNATIVES])?;
    let table = program.object.with_extension(ALTERNATIVES);
    proc::output(
        Command::new("objcopy")
            .args(["-O", "binary", "-j", ALTERNATIVES])
            .args([&program.object, &table]),
    )?;
    let table = fs::read(&table).with_context(|| format!("cannot read {}", table.display()))?;
    let symbols = of_object(&["-t"])?;
    if let Some(function) = patched_at_boot(&compared, &symbols, &patches, &table, features) {
        bail!("the {name} kernel patches {function} when it boots, which the program does not");
    }
    for function in short_read(program.tree, program.short_reads)? {
        let found = atomic(&build::disassemble(program.binary(), function)?);
        if !found.is_empty() || !compared.contains(*function) {
            bail!("{function} of the {name} program is not compared, or has {found:?}");
        }
    }
    let lookup = locked(&build::disassemble(program.binary(), LOOKUP)?);
    for function in LOOPS {
        let around = locked(&build::disassemble(program.binary(), function)?);
        puts_as(&around, &lookup).with_context(|| format!("{function} of the {name} program"))?;
    }
    let places = program.binaries.iter().map(|b| place(&build::disassemble(b, LOOKUP)?));
    all_differ(&places.collect::<Result<Vec<_>>>()?)?;
    let compared: Vec<_> = compared.into_iter().collect();
    Ok(format!(
        "{name}: {instructions} instructions are the same as in the built kernel: {}",
        compared.join(", ")
    ))
}

/// The lookup itself puts, if it has got a folio that has left the index.
fn puts_as(around: &BTreeSet<String>, lookup: &BTreeSet<String>) -> Result<()> {
    if around.is_empty() || !around.is_subset(lookup) {
        bail!("the loop has the locked instructions {around:?}, and {LOOKUP} has {lookup:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|l| (*l).to_string()).collect()
    }

    #[test]
    fn addresses_do_not_count_and_all_else_does() {
        let kernels = lines(&[
            "ffffffff811138b7:\tcall   ffffffff81113000 <xas_load>",
            "ffffffff811138ba:\tmov    0x1ab3d(%rip),%rax        # ffffffff82000000 <vmemmap_base>",
            "ffffffff811138bc:\tlock addl $0x1,0x34(%rdi)",
            "ffffffff811138be:\tjs     ffffffff811139a1 <filemap_get_entry+0x141>",
            "ffffffff811138c2:\tmov    $0xffffffff814f14a0,%rsi",
            "ffffffff811138c6:\tand    $0xfffffffffffffffc,%rsi",
            "ffffffff811138ca:\tcall   ffffffff81b3b0a0 <__memcpy>",
            "ffffffff811138cf:\tadd    -0x7e6ca640(,%r12,8),%rbx",
        ]);
        let ours = lines(&[
            "  401236:\tcall   403000 <xas_load>",
            "  401237:\tmov    0x3ffffffff(%rip),%rax        # 60012000 <vmemmap_base>",
            "  401239:\tlock addl $0x1,0x34(%rdi)",
            "  40123b:\tjs     4013a1 <filemap_get_entry+0x141>",
            "  40123f:\tmov    $0x40e440,%rsi",
            "  401243:\tand    $0xfffffffffffffffc,%rsi",
            "  401247:\tcall   401100 <memcpy@plt>",
            "  40124c:\tadd    0x60015000(,%r12,8),%rbx",
        ]);
        let difference = |a: &[String], b: &[String]| super::difference(a, b, &PerCpu::default());
        assert_eq!(difference(&ours, &kernels), None);
        for (at, other) in [
            (0, "  401236:\tcall   403000 <xas_find>"),
            (1, "  401237:\tmov    0x3ffffffff(%rip),%rax        # 60013000 <page_offset_base>"),
            (2, "  401239:\taddl $0x1,0x34(%rdi)"),
            (2, "  401239:\tlock addl $0x1,0x38(%rdi)"),
            (3, "  40123b:\tjs     4013a1 <filemap_get_entry+0x142>"),
            (4, "  40123f:\tmov    $0x40e440,%rdi"),
            (4, "  40123f:\tmov    $0x34,%rsi"),
            (5, "  401243:\tand    $0x40e440,%rsi"),
            (6, "  401247:\tcall   401100 <memmove@plt>"),
            (6, "  401247:\tcall   401100 <copy@plt>"),
            (7, "  40124c:\tadd    0x60015000(,%r13,8),%rbx"),
            (7, "  40124c:\tadd    0x34(,%r12,8),%rbx"),
            (7, "  40124c:\tadd    $0x60015000,%rbx"),
        ] {
            let mut ours = ours.clone();
            ours[at] = other.to_string();
            let text = difference(&ours, &kernels).unwrap();
            assert!(text.starts_with(&format!("instruction {at} is ")), "{text}");
        }
        // What has no symbol of its own tells nothing.
        let mut near = ours.clone();
        near[1] = "  401237:\tmov    0x3(%rip),%rax        # 40fbd4 <stubs+0x8b4>".into();
        assert_eq!(difference(&near, &kernels), None);
        assert!(difference(&ours[..3], &kernels).unwrap().contains("(the end)"));
        // Two names of one place.
        let current = |name| lines(&[&format!("1:\tmov    %gs:(%rip),%rax        # 2 <{name}>")]);
        assert_eq!(difference(&current("const_pcpu_hot"), &current("pcpu_hot")), None);
        assert!(difference(&current("const_pcpu_hot"), &current("pcpu_cold")).is_some());
    }

    #[test]
    fn instructions_that_take_a_cache_line_are_seen() {
        let of = |text: &str| !atomic(&lines(&[text])).is_empty();
        assert!(of("1:\tlock decl 0x34(%rdi)"));
        assert!(of("1:\txchg   %rax,(%rdi)"));
        assert!(!of("1:\txchg   %ax,%ax"));
        assert!(!of("1:\tincq   %gs:0x1e000(%rip)        # 2 <vm_event_states+0x2e8>"));
    }

    #[test]
    fn what_a_function_calls_is_compared_too() {
        let lines = lines(&[
            "1:\tcall   403000 <xas_load>",
            "2:\tjmp    403100 <xas_split.cold>",
            "3:\tjne    4013a1 <filemap_get_entry+0x141>",
            "4:\tmov    0x1(%rip),%rax        # 60012000 <vmemmap_base>",
            "5:\tcall   *%rax",
            "6:\tret",
        ]);
        let names: Vec<_> = called(&lines).into_iter().collect();
        assert_eq!(names, ["xas_load", "xas_split.cold"]);
    }

    #[test]
    fn a_function_with_alternatives_is_an_error() {
        let symbols = "0000000000000100 g     F .text\t0000000000000040 xas_load\n\
                       0000000000000140 l     F .text\t0000000000000010 xas_start\n\
                       0000000000000140 g     O .data\t0000000000000010 other\n";
        let patches = |at: &str| {
            format!(
                "OFFSET           TYPE              VALUE\n\
                 0000000000000000 R_X86_64_PC32     {at}\n\
                 0000000000000004 R_X86_64_PC32     .altinstr_replacement+0x0000000000000100\n"
            )
        };
        let functions = BTreeSet::from(["xas_load", "xas_start", "other"].map(str::to_string));
        let feature = |number| {
            let what = crate::cores::Stub { name: "a".into(), what: "b".into() };
            Feature { number, what }
        };
        // The feature of the first entry is 308.
        let table = [0, 0, 0, 0, 0, 0, 0, 0, 0x34, 1, 0, 0, 3, 3];
        let found_but = |at, known: &[Feature]| {
            patched_at_boot(&functions, symbols, &patches(at), &table, known).cloned()
        };
        let found = |at| found_but(at, &[feature(309)]);
        let known = found_but(".text+0x0000000000000100", &[feature(309), feature(308)]);
        assert_eq!(known, None);
        let name = |text: &str| Some(text.to_string());
        assert_eq!(found(".text+0x0000000000000100"), name("xas_load"));
        assert_eq!(found(".text+0x000000000000013f"), name("xas_load"));
        assert_eq!(found(".text+0x0000000000000140"), name("xas_start"));
        assert_eq!(found(".text+0x00000000000000ff"), None);
        assert_eq!(found(".spinlock.text+0x0000000000000100"), None);
        let none = BTreeSet::new();
        assert!(patched_at_boot(&none, symbols, &patches(".text+0x100"), &table, &[]).is_none());
        // A list that ends too early.
        let patches = patches(".text+0x0000000000000100");
        let known = [feature(308)];
        assert!(patched_at_boot(&functions, symbols, &patches, &table[..9], &known).is_some());
    }

    #[test]
    fn short_reads_must_be_in_the_patched_program() {
        assert_eq!(short_read(Tree::Series, true).unwrap(), SHORT_READ);
        assert!(short_read(Tree::Plain, false).unwrap().is_empty());
        short_read(Tree::Series, false).unwrap_err();
    }

    #[test]
    fn layouts_that_are_the_same_are_an_error() {
        assert_eq!(place(&lines(&["  4062b0:\tendbr64"])).unwrap(), 0x30);
        place(&[]).unwrap_err();
        all_differ(&[48, 0, 16, 32]).unwrap();
        let error = all_differ(&[48, 0, 16, 0]).unwrap_err().to_string();
        assert!(error.contains("[48, 0, 16, 0]"), "{error}");
    }

    #[test]
    fn the_loop_must_put_as_the_kernel_does() {
        let lookup = locked(&lines(&[
            "1:\tlock addl $0x1,0x34(%rdi)",
            "2:\tlock decl 0x34(%rdi)",
            "3:\tmov 0x34(%rdi),%eax",
        ]));
        let puts = |text: &str| puts_as(&locked(&lines(&[text])), &lookup);
        puts("9:\tlock decl 0x34(%rax)").unwrap();
        puts("9:\tlock decl 0x38(%rax)").unwrap_err();
        puts("9:\tdecl 0x34(%rax)").unwrap_err();
        puts("9:\tlock cmpxchg %ecx,0x34(%rax)").unwrap_err();
    }
}
