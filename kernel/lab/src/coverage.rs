//! Checks from the guest's output that the stress has done its work: a run in which nothing was
//! split or swapped has shown nothing about splitting or swapping.

/// The kinds of workers. Each must notice wrong data before the stress begins.
const WORKERS: &[&str] = &["read", "map", "direct", "huge", "pipe", "offline", "hugetlb", "fsx"];

/// The work of each phase: the worker, and its file.
const WORK: &[&str] = &[
    "read /tmp/a",
    "change /tmp/a",
    "map /tmp/a",
    "read /mnt/c",
    "change /mnt/c",
    "map /mnt/c",
    "direct /mnt/c",
    "read /dax/d",
    "change /dax/d",
    "map /dax/d",
    "huge -",
    "pipe -",
    "offline -",
    "hugetlb -",
    "fsx /mnt/x",
    "fsx /tmp/huge/x",
];

/// The work of the first phase only.
const FIRST_WORK: &[&str] = &["read /tmp/huge/b", "change /tmp/huge/b", "map /tmp/huge/b"];

/// The kernel's counters that an administrator's commands must have moved.
const COUNTERS: &[&str] = &[
    "vmemmap_pages_freed",
    "compact_migrate_scanned",
    "drop_pagecache",
    "htlb_buddy_alloc_success",
];

/// The counters that must have moved besides, where workers use the memory.
const BUSY_COUNTERS: &[&str] = &["pswpin", "pswpout", "thp_split_page", "pgmigrate_success"];

/// The sum of what is printed as `NAME N`.
fn count(text: &str, name: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
        .sum()
}

/// The work that a stress did not do although it ended well. With `idle`, there were no workers.
pub(crate) fn missing(output: &str, idle: bool) -> Vec<String> {
    let [start, first, second] = output.split("phase: ").collect::<Vec<_>>()[..] else {
        return vec!["two phases".to_string()];
    };
    let mut needed = vec![
        ("in the first phase", first, &["pools", "splits"][..]),
        ("in the second phase", second, &["pools"]),
        // A block with a page that was soft-offlined stays offline, so the second phase may have
        // no block left.
        ("in either phase", output, &["blocks"]),
        ("in the kernel's counters", second, COUNTERS),
    ];
    if !idle {
        needed.extend([
            ("in the first phase", first, WORK),
            ("in the first phase", first, FIRST_WORK),
            ("in the second phase", second, WORK),
            ("in the kernel's counters", second, BUSY_COUNTERS),
        ]);
    }
    let noticed = WORKERS.iter().map(|worker| format!("noticed by {worker}"));
    let unnoticed = noticed.filter(|expected| !start.lines().any(|line| line == expected));
    let undone = needed.into_iter().flat_map(|(section, text, names)| {
        names.iter().filter(|n| count(text, n) == 0).map(move |n| format!("{n} {section}"))
    });
    unnoticed.chain(undone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a run of 45 s on a fast kernel printed, without the second workers of a kind.
    const WHOLE: &str = "\
noticed by read
noticed by map
noticed by direct
noticed by huge
noticed by pipe
noticed by offline
noticed by hugetlb
noticed by fsx
phase: THP, splits, swap, migration, soft offline
pools 30
splits 36
blocks 13
read /tmp/a 51083
change /tmp/a 4164
map /tmp/a 411
read /tmp/huge/b 59976
change /tmp/huge/b 3087
map /tmp/huge/b 395
read /mnt/c 24084
change /mnt/c 1334
map /mnt/c 481
direct /mnt/c 212
read /dax/d 52415
change /dax/d 2848
map /dax/d 492
huge - 170
pipe - 2781
offline - 64
hugetlb - 132
fsx /mnt/x 1000
fsx /tmp/huge/x 1200
phase: hugetlb with and without its vmemmap
vmemmap_pages_freed 7
pools 23
read /tmp/a 43924
change /tmp/a 3413
map /tmp/a 295
read /mnt/c 12447
change /mnt/c 802
map /mnt/c 277
direct /mnt/c 165
read /dax/d 45791
change /dax/d 2421
map /dax/d 393
huge - 127
pipe - 1834
offline - 64
hugetlb - 94
fsx /mnt/x 400
fsx /tmp/huge/x 600
blocks 10
pswpin 31538
pswpout 36815
drop_pagecache 53
pgmigrate_success 22319
compact_migrate_scanned 8473542
htlb_buddy_alloc_success 645
thp_split_page 289
";

    #[test]
    fn nothing_is_missing_from_a_whole_run() {
        assert_eq!(missing(WHOLE, false), Vec::<String>::new());
    }

    #[test]
    fn each_line_of_a_run_is_missed() {
        let needed =
            WHOLE.lines().filter(|l| !l.starts_with("phase: ") && !l.starts_with("blocks"));
        for line in needed.clone() {
            let name = line.rsplit_once(' ').unwrap().0;
            for broken in [String::new(), format!("{name} 0")] {
                let missing = missing(&WHOLE.replacen(line, &broken, 1), false);
                assert!(missing.len() == 1 && missing[0].starts_with(name), "{line}: {missing:?}");
            }
        }
        assert!(needed.count() > 40);
        let no_blocks = WHOLE.replace("blocks ", "no blocks ");
        assert_eq!(missing(&no_blocks, true), ["blocks in either phase"]);
        assert_eq!(missing("phase: a\n", false), ["two phases"]);
    }

    #[test]
    fn an_idle_run_has_no_workers() {
        let is_idle = |l: &&str| !l.contains(" /") && !l.contains(" - ") && !l.starts_with("pswp");
        let idle = WHOLE.lines().filter(is_idle).collect::<Vec<_>>().join("\n");
        assert_eq!(missing(&idle, true), Vec::<String>::new());
        assert!(missing(&idle, false).contains(&"pswpin in the kernel's counters".to_string()));
    }
}
