//! Checks that the code which is measured is the built kernel's, instruction by instruction.

use super::program::Program;
use crate::build;
use crate::kernels::Tree;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;

/// The functions of the kernel that a lookup, a failed get and a split consist of.
const FUNCTIONS: [&str; 5] =
    ["filemap_get_entry", "xas_load", "xas_store", "xas_split", "page_ref_wipe"];
/// The function that only the series has.
const SERIES_ONLY: &str = "page_ref_wipe";
/// The lookup, and the loop of `cases.c` around it, which puts what the lookup got.
const LOOKUP: &str = "filemap_get_entry";
const LOOP: &str = "one_batch";

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

/// The first instruction in which two functions differ.
fn difference(ours: &[String], kernels: &[String]) -> Option<String> {
    let [a, b] =
        [ours, kernels].map(|f| f.iter().map(|l| without_addresses(l)).collect::<Vec<_>>());
    let length = a.len().max(b.len());
    let line = |f: &[String], i: usize| f.get(i).map_or("(the end)", String::as_str).to_string();
    (0..length)
        .find(|&i| !matches!((a.get(i), b.get(i)), (Some(a), Some(b)) if is_same(a, b)))
        .map(|i| format!("instruction {i} is `{}`, the kernel's `{}`", line(&a, i), line(&b, i)))
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

/// Compares a program with the kernel that its objects are from, and says what was compared.
///
/// # Errors
/// If a function differs, or the loop puts by other locked instructions than the kernel.
pub(crate) fn check(program: &Program) -> Result<String> {
    let name = program.tree.name();
    let mut compared = Vec::new();
    for function in FUNCTIONS {
        if function == SERIES_ONLY && program.tree == Tree::Plain {
            continue;
        }
        let ours = build::disassemble(program.binary(), function)?;
        let kernels = build::disassemble(&program.vmlinux, function)?;
        if let Some(difference) = difference(&ours, &kernels) {
            bail!("{function} of the {name} program is not the kernel's: {difference}");
        }
        compared.push(format!("{function} ({})", ours.len()));
    }
    let lookup = locked(&build::disassemble(program.binary(), LOOKUP)?);
    let around = locked(&build::disassemble(program.binary(), LOOP)?);
    puts_as(&around, &lookup).with_context(|| format!("the {name} program"))?;
    let around: Vec<_> = around.into_iter().collect();
    Ok(format!(
        "{name}: the same instructions as in the built kernel: {}; the loop puts by {}",
        compared.join(", "),
        around.join(", ")
    ))
}

/// The lookup itself puts, if it has got a folio that has left the index.
fn puts_as(around: &BTreeSet<String>, lookup: &BTreeSet<String>) -> Result<()> {
    if around.is_empty() || !around.is_subset(lookup) {
        bail!("{LOOP} has the locked instructions {around:?}, and {LOOKUP} has {lookup:?}");
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
        assert!(difference(&ours[..3], &kernels).unwrap().contains("(the end)"));
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
