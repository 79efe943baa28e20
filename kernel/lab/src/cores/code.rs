//! Checks that the code which is measured is the built kernel's, instruction by instruction.

use super::program::{CACHE_LINE, LAYOUTS, Program};
use crate::{build, proc};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::process::Command;

/// The functions of the kernel that a lookup, a split and an unpin call. What these call is compared, too, and
/// what the count has out of line.
const FUNCTIONS: [&str; 5] =
    ["filemap_get_entry", "xas_load", "xas_store", "xas_split", "unpin_user_pages"];
/// The lookup, and the loops of `cases.c` around it, which put what the lookup got.
const LOOKUP: &str = "filemap_get_entry";
const LOOPS: [&str; 3] = ["one_batch", "many_batch", "mixed_batch"];

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
    words.join(" ")
}

/// Whether an operand is the address of data: of the kernel's, or of a program's.
fn is_data(operand: &str, kernel: bool) -> bool {
    let value = operand.strip_prefix("$0x").and_then(|v| u64::from_str_radix(v, 16).ok());
    let range = if kernel {
        0xffff_ffff_8000_0000..=0xffff_ffff_bfff_ffff
    } else {
        0x40_0000..=0x7fff_ffff
    };
    value.is_some_and(|v| range.contains(&v))
}

/// Whether two instructions, without addresses in the code, are the same but for where data lies.
fn is_same(ours: &str, kernels: &str) -> bool {
    let operands =
        |text: &'_ str| -> Vec<String> { text.split([' ', ',']).map(str::to_string).collect() };
    let (a, b) = (operands(ours), operands(kernels));
    a.len() == b.len()
        && a.iter().zip(&b).all(|(a, b)| a == b || is_data(a, false) && is_data(b, true))
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
fn difference(ours: &[String], kernels: &[String]) -> Option<String> {
    let text = |f: &[String], i: usize| {
        f.get(i).map_or_else(|| "(the end)".to_string(), |l| without_addresses(l))
    };
    (0..ours.len().max(kernels.len()))
        .find(|&i| match (ours.get(i), kernels.get(i)) {
            (Some(a), Some(b)) => {
                !is_same(&without_addresses(a), &without_addresses(b)) || !may_use_the_same(a, b)
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

/// The first of these functions that the kernel patches when it boots, because it has alternatives
/// for the CPU it runs on. `symbols` and `patches` are what objdump prints of an object's symbols,
/// and of the relocations of its list of alternatives.
fn patched_at_boot<'a>(
    functions: &'a BTreeSet<String>,
    symbols: &str,
    patches: &str,
) -> Option<&'a String> {
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let places: Vec<_> = patches
        .lines()
        .filter_map(|l| l.split_whitespace().nth(2)?.split_once("+0x"))
        .filter_map(|(section, at)| Some((section, hex(at)?)))
        .collect();
    symbols.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let &[address, .., "F", section, size, name] = &words[..] else { return None };
        let function = functions.get(name)?;
        let (begin, size) = (hex(address)?, hex(size)?);
        let is_in = |&(of, at): &(&str, u64)| of == section && (begin..begin + size).contains(&at);
        places.iter().any(is_in).then_some(function)
    })
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
pub(crate) fn check(program: &Program) -> Result<String> {
    let name = program.tree.name();
    let mut left: Vec<_> = FUNCTIONS.into_iter().map(str::to_string).collect();
    left.extend(program.slow_paths.iter().cloned());
    let mut compared = BTreeSet::new();
    let mut instructions = 0;
    while let Some(function) = left.pop() {
        if !compared.insert(function.clone()) {
            continue;
        }
        let kernels = build::disassemble(&program.vmlinux, &function)?;
        for binary in &program.binaries {
            let ours = build::disassemble(binary, &function)?;
            if let Some(difference) = difference(&ours, &kernels) {
                bail!("{function} of the {name} program is not the kernel's: {difference}");
            }
        }
        instructions += kernels.len();
        // The others are stubbed, or end the program.
        left.extend(called(&kernels).into_iter().filter(|f| program.functions.contains(f)));
    }
    let of_object =
        |args: &[&str]| proc::output(Command::new("objdump").args(args).arg(&program.object));
    let patches = of_object(&["-r", "-j", ".altinstructions"])?;
    if let Some(function) = patched_at_boot(&compared, &of_object(&["-t"])?, &patches) {
        bail!("the {name} kernel patches {function} when it boots, which the program does not");
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
        ]);
        let ours = lines(&[
            "  401236:\tcall   403000 <xas_load>",
            "  401237:\tmov    0x3ffffffff(%rip),%rax        # 60012000 <vmemmap_base>",
            "  401239:\tlock addl $0x1,0x34(%rdi)",
            "  40123b:\tjs     4013a1 <filemap_get_entry+0x141>",
            "  40123f:\tmov    $0x40e440,%rsi",
            "  401243:\tand    $0xfffffffffffffffc,%rsi",
        ]);
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
        let found = |at| patched_at_boot(&functions, symbols, &patches(at)).map(String::as_str);
        assert_eq!(found(".text+0x0000000000000100"), Some("xas_load"));
        assert_eq!(found(".text+0x000000000000013f"), Some("xas_load"));
        assert_eq!(found(".text+0x0000000000000140"), Some("xas_start"));
        assert_eq!(found(".text+0x00000000000000ff"), None);
        assert_eq!(found(".spinlock.text+0x0000000000000100"), None);
        assert!(patched_at_boot(&BTreeSet::new(), symbols, &patches(".text+0x100")).is_none());
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
