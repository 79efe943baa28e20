//! Which CPUs the workers get, and in which order: one of each core before a second one of any,
//! because two hyperthreads of a core do not take cache lines from each other.

use anyhow::{Context, Result};
use std::fs;

/// A CPU that the lab may use.
#[derive(Debug, Clone, PartialEq)]
struct Cpu {
    number: usize,
    package: usize,
    /// Those of its core, itself among them.
    siblings: Vec<usize>,
}

/// The CPUs of this machine that the lab may use.
#[derive(Debug)]
pub(crate) struct Cpus {
    /// In the order in which workers get them.
    pub(crate) order: Vec<usize>,
    /// On so many cores.
    pub(crate) cores: usize,
}

/// The numbers in a list such as `0-2,5`.
fn numbers(list: &str) -> Result<Vec<usize>> {
    let mut all = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number =
            |text: &str| text.parse::<usize>().with_context(|| format!("`{list}` is no list"));
        all.extend(number(first)?..=number(last)?);
    }
    Ok(all)
}

/// How many CPUs of its core come before this one.
fn rank(cpu: &Cpu, all: &[Cpu]) -> usize {
    let before = |n: &&usize| **n < cpu.number && all.iter().any(|c| c.number == **n);
    cpu.siblings.iter().filter(before).count()
}

fn in_order(mut all: Vec<Cpu>) -> Cpus {
    let known = all.clone();
    all.sort_by_key(|c| (rank(c, &known), c.package, c.number));
    let cores = all.iter().filter(|c| rank(c, &known) == 0).count();
    Cpus { order: all.iter().map(|c| c.number).collect(), cores }
}

/// # Errors
/// If the kernel does not say which CPUs this process may use.
pub(crate) fn cpus() -> Result<Cpus> {
    let status =
        fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let allowed = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
        .context("/proc/self/status has no list of CPUs")?;
    let cpu = |number: usize| {
        let read = |file: &str| {
            fs::read_to_string(format!("/sys/devices/system/cpu/cpu{number}/topology/{file}"))
        };
        // Without this, each CPU counts as a core.
        let siblings = read("thread_siblings_list").ok().and_then(|l| numbers(&l).ok());
        let package = read("physical_package_id").ok().and_then(|p| p.trim().parse().ok());
        Cpu {
            number,
            package: package.unwrap_or(0),
            siblings: siblings.unwrap_or_else(|| vec![number]),
        }
    };
    Ok(in_order(numbers(allowed)?.into_iter().map(cpu).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_numbers_and_ranges() {
        assert_eq!(numbers("0\n").unwrap(), [0]);
        assert_eq!(numbers("\t0-2,5,7-8").unwrap(), [0, 1, 2, 5, 7, 8]);
        assert!(numbers("0-x").is_err());
        assert!(numbers("").is_err());
    }

    #[test]
    fn all_cores_come_before_a_second_cpu_of_any() {
        let machine = |of: &[(usize, usize, &[usize])]| {
            let cpu = |&(number, package, siblings): &(usize, usize, &[usize])| Cpu {
                number,
                package,
                siblings: siblings.to_vec(),
            };
            let Cpus { order, cores } = in_order(of.iter().map(cpu).collect());
            (order, cores)
        };
        // As a cloud's machine numbers them.
        let pairs: [(_, _, &[_]); 4] =
            [(0, 0, &[0, 1]), (1, 0, &[0, 1]), (2, 0, &[2, 3]), (3, 0, &[2, 3])];
        assert_eq!(machine(&pairs), (vec![0, 2, 1, 3], 2));
        // Only one of the second core's may be used.
        assert_eq!(machine(&pairs[..2]), (vec![0, 1], 1));
        assert_eq!(machine(&pairs[1..]), (vec![1, 2, 3], 2));
        // Two packages, one after the other.
        let packages: [(_, _, &[_]); 4] = [(0, 0, &[0]), (1, 1, &[1]), (2, 0, &[2]), (3, 1, &[3])];
        assert_eq!(machine(&packages), (vec![0, 2, 1, 3], 4));
    }

    #[test]
    fn this_machine_has_a_cpu() {
        let Cpus { order, cores } = cpus().unwrap();
        assert!(cores >= 1 && cores <= order.len());
    }
}
