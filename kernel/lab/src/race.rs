//! Tells which of KCSAN's reports fail a run: those about a page's count, and those of which short
//! reads or removal sections are a part. `race_proof.rs` shows that a report about a count would be
//! seen; that one of short reads would be is only shown of written reports, in the tests here.
//!
//! All other reports are counted, and nothing else: they are not compared with those of plain, which
//! has data races of its own. So a race that the patches bring elsewhere (in memory hotplug,
//! compaction, hugetlb or pinning, for example, or in what a removal section encloses) fails no run.

use crate::splat::{self, KCSAN, Splat};
use std::ops::RangeInclusive;

/// The addresses of the array of struct pages on x86-64, with four and with five levels of page
/// tables.
const ARRAYS: [RangeInclusive<u64>; 2] =
    [0xffff_ea00_0000_0000..=0xffff_eaff_ffff_ffff, 0xffd4_0000_0000_0000..=0xffd5_ffff_ffff_ffff];

/// Offset of `_refcount` in a struct page, which is 64 bytes long here.
const COUNT_OFFSET: u64 = 0x34;
const PAGE_STRUCT_BYTES: u64 = 64;

/// The address and the length of an access: `write to 0xADDRESS of N bytes by ...`.
fn access(line: &str) -> Option<(u64, u64)> {
    let (_, rest) = line.split_once(" to 0x")?;
    let (address, rest) = rest.split_once(" of ")?;
    let bytes = rest.split_whitespace().next()?.parse().ok()?;
    Some((u64::from_str_radix(address, 16).ok()?, bytes))
}

/// Whether an access touches a page's count.
fn covers_count((address, bytes): (u64, u64)) -> bool {
    let offset = address % PAGE_STRUCT_BYTES;
    let to_count = (COUNT_OFFSET + PAGE_STRUCT_BYTES - offset) % PAGE_STRUCT_BYTES;
    ARRAYS.iter().any(|array| array.contains(&address))
        && (to_count < bytes || to_count > PAGE_STRUCT_BYTES - 4)
}

/// Whether a KCSAN report is about a page's count: both accesses touch one. An access that
/// cannot be parsed counts as touching one.
fn is_about_count(splat: &Splat) -> bool {
    splat
        .lines
        .iter()
        .filter(|line| line.contains(" to 0x"))
        .all(|line| access(line).is_none_or(covers_count))
}

/// How the names of functions begin that are only in the patched kernel. What they call is a part of
/// them: they call no file system, and nothing that waits.
const OURS: [&str; 2] = ["short_read", "mapping_removal_"];

/// These call readahead, the ordinary read, and what marks a file as accessed, which race as they
/// always did. So only their own accesses count.
const CALLERS: [&str; 2] = ["filemap_read_short", "shmem_read_short"];

/// What is called from here on has been interrupted, or has got an exception.
const ENTRY: &str = "asm_";

/// The functions of each access of a report, from the one that made the access to the one that was
/// interrupted, or to the system call.
fn stacks(splat: &Splat) -> Vec<Vec<&str>> {
    let is_access = |line: &&String| line.contains(" to 0x");
    let mut stacks = Vec::new();
    let mut lines = splat.lines.iter().skip_while(|line| !is_access(line)).peekable();
    while lines.next_if(is_access).is_some() {
        let mut stack = Vec::new();
        while let Some(line) = lines.next_if(|line| !is_access(line)) {
            stack.extend(splat::function(line));
        }
        stack.truncate(stack.iter().position(|f| f.starts_with(ENTRY)).unwrap_or(stack.len()));
        stacks.push(stack);
    }
    stacks
}

/// Whether a KCSAN report is of an access by short reads, or in a removal section's beginning or
/// end.
fn is_of_short_reads(splat: &Splat) -> bool {
    stacks(splat).iter().any(|stack| {
        stack.first().is_some_and(|function| CALLERS.contains(function))
            || stack.iter().any(|function| OURS.iter().any(|ours| function.starts_with(ours)))
    })
}

/// The splats that fail a run, and how many data races KCSAN has found elsewhere.
pub(crate) fn classify(splats: Vec<Splat>) -> (Vec<Splat>, usize) {
    let all = splats.len();
    let is_serious = |s: &Splat| s.kind != KCSAN || is_about_count(s) || is_of_short_reads(s);
    let serious: Vec<_> = splats.into_iter().filter(is_serious).collect();
    let elsewhere = all - serious.len();
    (serious, elsewhere)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splat;
    use std::fmt::Write as _;

    #[test]
    fn only_races_about_the_count_are_serious() {
        let races = |accesses: &[&str]| {
            let mut log = "BUG: KCSAN: data-race in a / b\n".to_string();
            for access in accesses {
                let _ = write!(log, "\n{access} by task 1 on cpu 0:\n f+0x1/0x2\n");
            }
            classify(splat::find(&log)).0.len()
        };
        let race = |access: &str| races(&[access]);
        for array in ["ffffea0001f6d3", "ffd4000001f6d3"].map(|a| format!("to 0x{a}")) {
            let race = |rest: &str| race(&format!("write {array}{rest}"));
            assert_eq!(race("34 of 4 bytes"), 1);
            assert_eq!(race("30 of 8 bytes"), 1);
            assert_eq!(race("36 of 1 bytes"), 1);
            assert_eq!(race("00 of 4096 bytes"), 1);
            assert_eq!(race("00 of 8 bytes"), 0);
            assert_eq!(race("38 of 8 bytes"), 0);
        }
        assert_eq!(race("write to 0xffff888000d0db34 of 4 bytes"), 0);
        assert_eq!(race("write to 0xff11000001f6d334 of 4 bytes"), 0);
        assert_eq!(race("race at unknown origin, with read to 0xffffea0001f6d334 of 4 bytes"), 1);
        let (all, list) = ("to 0xffffea0001f6d300 of 64 bytes", "to 0xffffea0001f6d308 of 8 bytes");
        assert_eq!(races(&[&format!("write {all}"), &format!("read {list}")]), 0);
        assert_eq!(races(&[&format!("write {all}"), &format!("read {all}")]), 1);
        assert_eq!(race("somewhere"), 1);
        assert_eq!(race("write to 0xhidden of 4 bytes"), 1);
        assert_eq!(classify(splat::find("WARNING: CPU: 0 PID: 1 at x\n")).0.len(), 1);
    }

    /// Of something else than a count, with these functions in the two stacks.
    fn of_functions(first: &[&str], second: &[&str]) -> usize {
        let mut log = String::from("BUG: KCSAN: data-race in a / b\n");
        for (access, stack) in [("write", first), ("read", second)] {
            let _ =
                write!(log, "\n{access} to 0xffff888000d0db08 of 8 bytes by task 1 on cpu 0:\n");
            for function in stack {
                let _ = writeln!(log, " {function}+0x1/0x2");
            }
        }
        log += "\nvalue changed: 0x0000000000000000 -> 0x0000000000000040\n";
        classify(splat::find(&log)).0.len()
    }

    #[test]
    fn races_of_short_reads_are_serious() {
        let other: &[&str] = &["filemap_read_folios", "filemap_read", "vfs_read"];
        assert_eq!(of_functions(other, other), 0);
        for ours in [
            &["short_read", "filemap_read_short", "vfs_read"][..],
            &["i_size_read", "short_read_copy.constprop.0", "short_read"],
            &["filemap_read_short", "filemap_read", "vfs_read"],
            &["shmem_read_short.isra.0", "vfs_read"],
            &["mapping_removal_begin", "page_cache_delete"],
        ] {
            assert_eq!(of_functions(ours, other), 1, "{ours:?}");
            assert_eq!(of_functions(other, ours), 1, "{ours:?}");
        }
        let log = "BUG: KCSAN: data-race in short_read+0x1/0x2\n\n\
                   race at unknown origin, with read to 0xffff888000d0db08 of 8 bytes by task 1:\n \
                   short_read+0x1/0x2\n";
        assert_eq!(classify(splat::find(log)).0.len(), 1);
    }

    /// The names of the functions that the patches of short reads add to a file.
    fn added_functions(file: &str) -> Vec<String> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../reads");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let mut is_of_file = false;
            for line in text.lines() {
                if let Some(name) = line.strip_prefix("+++ b/") {
                    is_of_file = name == file;
                }
                // A definition begins in the first column, and does not end there.
                let Some(line) = line.strip_prefix('+').filter(|_| is_of_file) else { continue };
                if line.starts_with(|c: char| c.is_ascii_lowercase())
                    && !line.ends_with(';')
                    && let Some((head, _)) = line.split_once('(')
                {
                    names.extend(head.rsplit([' ', '*']).next().map(str::to_string));
                }
            }
        }
        names
    }

    /// The filter knows functions by their names. If one is renamed, or a new one has another name,
    /// its races must not become races elsewhere.
    #[test]
    fn each_function_of_short_reads_is_known_by_its_name() {
        let functions = added_functions("mm/short_read.c");
        assert!(functions.len() >= 10, "{functions:?}");
        let other: &[&str] = &["b", "vfs_write"];
        // Inlined into short_read_nofault(), always.
        for function in functions.iter().filter(|f| *f != "copy_line_nofault") {
            let stack = [function.as_str(), "vfs_read"];
            assert_eq!(of_functions(&stack, other), 1, "{function}");
            assert_eq!(of_functions(other, &["i_size_read", function]), 1, "{function}");
        }
        for (file, function) in [
            ("include/linux/pagemap.h", "mapping_removal_begin"),
            ("include/linux/pagemap.h", "mapping_removal_end"),
            ("mm/filemap.c", CALLERS[0]),
            ("mm/shmem.c", CALLERS[1]),
        ] {
            assert!(added_functions(file).iter().any(|f| f == function), "{function}");
            assert_eq!(of_functions(&[function, "vfs_read"], other), 1, "{function}");
        }
    }

    /// What a short read calls when it is none, and what interrupts one.
    #[test]
    fn races_beside_short_reads_are_elsewhere() {
        let other: &[&str] = &["b", "vfs_write"];
        for not_ours in [
            &["ra_submit", "page_cache_sync_ra", "filemap_read_short", "vfs_read"][..],
            &["filemap_read_folios", "filemap_read_short", "filemap_read"],
            &["touch_atime", "shmem_read_short", "vfs_read"],
            &["tick_do", "asm_sysvec_apic_timer_interrupt", "short_read", "filemap_read_short"],
            &["my_short_read", "vfs_read"],
        ] {
            assert_eq!(of_functions(not_ours, other), 0, "{not_ours:?}");
            assert_eq!(of_functions(other, not_ours), 0, "{not_ours:?}");
        }
    }

    /// A report that KCSAN made of a page's list head, which `const_folio_flags` reads to see
    /// whether the page is a tail.
    #[test]
    fn a_race_about_a_pages_list_is_elsewhere() {
        let log = "BUG: KCSAN: data-race in const_folio_flags / lru_activate\n\n\
                   write (marked) to 0xffffea00012158c8 of 8 bytes by task 315 on cpu 0:\n \
                   lru_activate+0x1f8/0x7f0\n\n\
                   read to 0xffffea00012158c8 of 8 bytes by task 90 on cpu 1:\n \
                   const_folio_flags+0x15/0x80\n\n\
                   value changed: 0xffffea00012157c8 -> 0xffffea00012fd788\n";
        assert_eq!(classify(splat::find(log)), (Vec::new(), 1));
    }
}
