//! Where the kernel's per-CPU variables lie in a program: all else is the same in the code that
//! uses them, so the check of the code has to know.

use super::program::PER_CPU;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Where the kernel's per-CPU variables end at the latest; they begin at 0.
const PER_CPU_END: u64 = 1 << 24;

/// Where a program has its per-CPU variables, and how far that is from where the kernel has them.
#[derive(Debug, Default)]
pub(super) struct PerCpu {
    ours: Range<u64>,
    distances: BTreeSet<u64>,
}

impl PerCpu {
    /// `ours` and `kernels` are what `nm` prints of the program and of the kernel.
    pub(super) fn new(ours: &str, kernels: &str) -> Result<Self> {
        let symbols = |nm: &'_ str| -> Vec<(u64, String)> {
            let of = |line: &str| {
                let [address, _, name] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                    return None;
                };
                Some((u64::from_str_radix(address, 16).ok()?, name.to_string()))
            };
            nm.lines().filter_map(of).collect()
        };
        let ours = symbols(ours);
        let bound = |name: &str| {
            let found = ours.iter().find(|(_, n)| *n == format!("__{name}_{PER_CPU}"));
            found.map(|(a, _)| *a).with_context(|| format!("no {name} of {PER_CPU}"))
        };
        let range = bound("start")?..bound("stop")?;
        let mut theirs: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (address, name) in symbols(kernels).into_iter().filter(|s| s.0 < PER_CPU_END) {
            theirs.entry(name).or_default().push(address);
        }
        let distances = ours
            .iter()
            .filter(|(address, _)| range.contains(address))
            .filter_map(|(address, name)| Some((address, theirs.get(name)?)))
            .flat_map(|(ours, all)| all.iter().map(move |kernels| ours.wrapping_sub(*kernels)))
            .collect();
        Ok(PerCpu { ours: range, distances })
    }

    /// Whether two operands are addresses of the same per-CPU variable, or in it.
    pub(super) fn is_same(&self, ours: &str, kernels: &str) -> bool {
        let split = |operand: &str| {
            let at = operand.find("0x")? + 2;
            let end = operand[at..].find(|c: char| !c.is_ascii_hexdigit());
            let end = end.map_or(operand.len(), |e| at + e);
            let value = u64::from_str_radix(&operand[at..end], 16).ok()?;
            Some((value, format!("{}{}", &operand[..at], &operand[end..])))
        };
        let (Some((a, of_a)), Some((b, of_b))) = (split(ours), split(kernels)) else {
            return false;
        };
        of_a == of_b && self.ours.contains(&a) && self.distances.contains(&a.wrapping_sub(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_cpu_variables_may_lie_elsewhere_but_not_be_others() {
        let ours = "0000000000501000 D __start_percpu\n0000000000501040 d buffer\n\
                    0000000000501440 D events\n0000000000501800 D __stop_percpu\n\
                    0000000000401000 T code\n                 w weak\n";
        let kernels = "0000000000020000 d buffer\n000000000001f000 D events\n\
                       ffffffff81401000 T code\nffffffff82000000 d buffer\n";
        let per_cpu = PerCpu::new(ours, kernels).unwrap();
        let is_same = |a: &str, b: &str| per_cpu.is_same(a, b);
        assert!(is_same("0x501040(%rax)", "0x20000(%rax)"));
        assert!(is_same("%gs:0x501450(%r13)", "%gs:0x1f010(%r13)"));
        assert!(is_same("$0x501440", "$0x1f000"));
        // Another variable, register, segment, or distance.
        assert!(!is_same("%gs:0x501450(%r13)", "%gs:0x20010(%r13)"));
        assert!(!is_same("0x501040(%rax)", "0x20000(%rbx)"));
        assert!(!is_same("%gs:0x501450(%r13)", "0x1f010(%r13)"));
        assert!(!is_same("$0x501440", "$0x1f001"));
        // Not in the section: an offset, or code.
        assert!(!is_same("0x40(%rax)", "0x38(%rax)"));
        assert!(!is_same("0x401000(%rax)", "0x81401000(%rax)"));
        let error = PerCpu::new("", kernels).unwrap_err().to_string();
        assert_eq!(error, "no start of percpu");
    }
}
