//! Tells which of KCSAN's reports fail a run: those about a page's count. All other races were
//! there before the series. `race_proof.rs` shows that a report about a count would be seen.

use crate::splat::{KCSAN, Splat};
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

/// The splats that fail a run, and how many data races KCSAN has found elsewhere.
pub(crate) fn classify(splats: Vec<Splat>) -> (Vec<Splat>, usize) {
    let all = splats.len();
    let serious: Vec<_> =
        splats.into_iter().filter(|s| s.kind != KCSAN || is_about_count(s)).collect();
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
