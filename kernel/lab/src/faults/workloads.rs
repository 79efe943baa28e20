//! The workloads of `kernel/guest/faults.sh`.

/// The kernel's selftest, which is a workload for the script.
pub(super) const SELFTEST: &str = "selftest";

/// The workloads of the script. In those of `startup` the files that are read are in four VMAs,
/// in those of `giant` in one.
pub(super) const WORKLOADS: [&str; 12] = [
    "startup-none",
    "startup-write",
    "startup-mmap",
    FORKS,
    "giant-fork",
    "giant-protect",
    "giant-unmap",
    STORED,
    "thrash-data",
    HOLES,
    SWAP,
    SELFTEST,
];

/// This one has no file: it swaps.
pub(super) const SWAP: &str = "swap";

/// In this one, the files have no data. Faults drop their lock to read, and there is no disk to wait
/// for.
pub(super) const HOLES: &str = "thrash-holes";

/// In these, somebody write-locks the VMA that is read, so a retry rightly finds it locked.
pub(super) const WRITERS: [&str; 5] = [FORKS, "giant-fork", "giant-protect", "giant-unmap", STORED];

/// In this one, forks lock all VMAs, so some faults need `mmap_lock`.
pub(super) const FORKS: &str = "startup-fork";

/// In this one, somebody writes to the files that are read.
pub(super) const WRITTEN: &str = "startup-write";

/// In this one, faults are throttled, as they make pages dirty faster than the disk writes them.
pub(super) const STORED: &str = "giant-store";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_knows_each_workload() {
        let script = include_str!("../../../guest/faults.sh");
        for workload in WORKLOADS {
            let pattern = match workload.split_once('-') {
                _ if script.contains(&format!("\t{workload})")) => continue,
                Some((kind, _)) => format!("\t{kind}-*) "),
                None => format!("\t{workload})"),
            };
            assert!(script.contains(&pattern), "{workload}");
        }
        assert!(WRITERS.iter().all(|name| WORKLOADS.contains(name)));
        assert!(WORKLOADS.contains(&WRITTEN));
    }
}
