//! What a kernel counted, and its limits.

use super::workloads::{FORKS, HOLES, SELFTEST, WORKLOADS, WRITERS, WRITTEN};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;

/// How many retries in a hundred may find their page gone, or need `mmap_lock`.
const MOST_PER_CENT: u64 = 2;

/// Waits of 10 ms or more for those who have a VMA's lock for reading.
pub(super) const WRITERS_WAIT: &str = "long-waits-write-vma";

/// Waits of first attempts for the lock of a folio with data, with the VMA's lock held.
pub(super) const WAITS_LOCKED: &str = "waits-lock-vma";

/// The cases of the selftest.
pub(crate) const CASES: [&str; 8] = [
    "passed-1", "passed-2", "passed-3", "passed-4", "passed-5", "passed-6", "passed-7", "passed-8",
];
/// Those that fail without the series.
const NEW: [&str; 4] = ["passed-1", "passed-2", "passed-6", "passed-7"];
/// *Hold* may skip this one: where the VMA's lock is held, nothing is forbidden meanwhile.
const FORBIDDEN: &str = CASES[4];

/// With fewer changes than this, in all runs together, that no writer waited long shows nothing.
const LEAST_WRITES: u64 = 100;

/// What one kernel counted: a value for each workload and key.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Counts(BTreeMap<(String, String), u64>);

impl Counts {
    /// Reads the lines of the script.
    ///
    /// # Errors
    /// If a line is not one of its, or a workload did not run to its end.
    pub(super) fn parse(text: &str, workloads: &[&str]) -> Result<Self> {
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let [workload, key, value] = words[..] else {
                bail!("`{line}` is not WORKLOAD KEY VALUE");
            };
            let value = value.parse().with_context(|| format!("`{line}`: no number"))?;
            if counts.insert((workload.to_string(), key.to_string()), value).is_some() {
                bail!("`{line}`: counted twice");
            }
        }
        let counts = Self(counts);
        for workload in workloads {
            // Only *drop* has `retry_vma_drop`.
            let keys: &[_] = match *workload {
                SELFTEST => &CASES,
                _ => &["pages", "disk-turns", "retry_mmap_drop", "retry_io_miss"],
            };
            if let Some(key) = keys.iter().find(|key| !counts.has(workload, key)) {
                bail!("{workload}: no {key}");
            }
            if *workload != SELFTEST && counts.of(workload, "pages") == 0 {
                bail!("{workload}: no page was touched");
            }
        }
        Ok(counts)
    }

    /// Adds what other workloads counted.
    pub(super) fn add(&mut self, others: Counts) {
        self.0.extend(others.0);
    }

    /// The sums of several runs; of a longest wait, the longest.
    fn sum(runs: &[Counts]) -> Counts {
        let mut sum = Counts::default();
        for ((workload, key), value) in runs.iter().flat_map(|run| &run.0) {
            let all = sum.0.entry((workload.clone(), key.clone())).or_default();
            *all = if key.starts_with("longest-") { (*all).max(*value) } else { *all + value };
        }
        sum
    }

    /// All workloads and keys, in the order of the workloads.
    pub(super) fn keys<'a>(all: impl Iterator<Item = &'a Counts>) -> Vec<(&'a str, &'a str)> {
        let mut keys: Vec<_> =
            all.flat_map(|counts| counts.0.keys()).map(|(w, k)| (w.as_str(), k.as_str())).collect();
        keys.sort_by_key(|(workload, key)| (WORKLOADS.iter().position(|w| w == workload), *key));
        keys.dedup();
        keys
    }

    fn has(&self, workload: &str, key: &str) -> bool {
        self.0.contains_key(&(workload.to_string(), key.to_string()))
    }

    /// A count; 0 for a kind of wait that did not happen.
    pub(super) fn of(&self, workload: &str, key: &str) -> u64 {
        self.0.get(&(workload.to_string(), key.to_string())).copied().unwrap_or(0)
    }

    /// The cases of the selftest that did not pass.
    pub(super) fn failed_cases(&self) -> Vec<&'static str> {
        CASES.into_iter().filter(|case| self.of(SELFTEST, case) == 0).collect()
    }

    /// Whether the selftest skipped a case. Then it did not pass, either.
    pub(super) fn was_skipped(&self, case: &str) -> bool {
        self.skipped(case) > 0
    }

    /// In how many runs a case was skipped.
    fn skipped(&self, case: &str) -> u64 {
        self.of(SELFTEST, &case.replace("passed-", "skipped-"))
    }

    /// The waits of faults that were traced, with this lock held (`-vma`, `-mmap`), or any.
    fn traced(&self, workload: &str, held: &str) -> u64 {
        let is_of_fault = |key: &str| key.starts_with("waits-") && !key.starts_with("waits-write-");
        self.0
            .iter()
            .filter(|((of, key), _)| of == workload && is_of_fault(key) && key.ends_with(held))
            .map(|(_, count)| count)
            .sum()
    }

    /// The faults that dropped a lock to wait, and were retried.
    fn retries(&self, workload: &str) -> u64 {
        self.of(workload, "retry_vma_drop") + self.of(workload, "retry_mmap_drop")
    }

    /// How often somebody waited for 10 ms or more to change the address space or a VMA.
    fn writers_waits(&self, workload: &str) -> u64 {
        self.of(workload, "long-waits-write-mmap") + self.of(workload, WRITERS_WAIT)
    }
}

/// The limits of *plain*, *drop* and *hold*, for the workloads that ran, and whether they are met.
pub(super) fn verdicts(kernels: [&[Counts]; 3]) -> Vec<(String, bool)> {
    let runs = kernels.map(|runs| runs.len() as u64);
    let [plain, drop, hold] = &kernels.map(Counts::sum);
    let mut verdicts = Vec::new();
    let mut ask = |met: bool, what: String| verdicts.push((what, met));
    for workload in WORKLOADS.into_iter().filter(|w| plain.has(w, "pages")) {
        let before = plain.retries(workload);
        ask(before > 0, format!("{workload}: plain retried {before} faults"));
        // Nothing in a hundred of nothing is no answer.
        let own = drop.of(workload, "retry_vma_drop");
        ask(own > 0, format!("{workload}: drop retried {own} faults under the VMA's lock"));
        let held = ("hold", hold, "-vma", " with the VMA's lock held");
        let waits = [("plain", plain, "", ""), ("drop", drop, "", ""), held];
        for (name, counts, lock, how) in waits.into_iter().filter(|_| workload != HOLES) {
            let traced = counts.traced(workload, lock);
            ask(
                traced > 0,
                format!("{workload}, {name}: {traced} waits of faults were traced{how}"),
            );
        }
        // A fault that holds its lock is not retried. What *hold* waits for in vain is compared
        // with how often *plain* retried for the same work.
        let all = drop.retries(workload);
        if !WRITERS.contains(&workload) {
            let mmap = drop.of(workload, "retry_mmap_drop");
            ask(
                mmap * 100 <= all * MOST_PER_CENT,
                format!("{workload}, drop: {mmap} under mmap_lock; {all} retries"),
            );
        }
        for (name, counts, of, whose) in
            [("drop", drop, all, ""), ("hold", hold, before, "on plain ")]
        {
            let misses = counts.of(workload, "retry_io_miss");
            ask(
                misses * 100 <= of * MOST_PER_CENT,
                format!("{workload}, {name}: {misses} waits in vain; {whose}{of} retries"),
            );
        }
        let mmap = hold.of(workload, "retry_mmap_drop");
        ask(mmap == 0, format!("{workload}, hold: {mmap} faults dropped mmap_lock to wait"));
        if workload == FORKS {
            let kept = hold.traced(workload, "-mmap");
            ask(kept > 0, format!("{workload}, hold: {kept} waits with mmap_lock held"));
        }
        if WRITERS.contains(&workload) {
            let waits =
                |counts: &Counts| (counts.writers_waits(workload), counts.of(workload, "writes"));
            let ((before, of), (after, after_of)) = (waits(plain), waits(drop));
            let enough = of >= LEAST_WRITES && after_of >= LEAST_WRITES;
            ask(
                enough && after * of <= before * after_of,
                format!(
                    "{workload}: writers wait long {after} times in {after_of}, \
                     on plain {before} times in {of}"
                ),
            );
        }
        if workload == WRITTEN {
            let waits = drop.of(workload, WAITS_LOCKED);
            ask(waits == 0, format!("{workload}, drop: {waits} faults kept the VMA's lock"));
        }
        if workload == "thrash-data" {
            let [before, after] = [plain, drop].map(|counts| counts.of(workload, "disk-turns"));
            ask(
                after > 0 && 2 * after <= before,
                format!(
                    "{workload}: the same rounds in {after} disk turns, on plain {before} (limit: \
                     half as many)"
                ),
            );
        }
    }
    if plain.has(SELFTEST, CASES[0]) {
        for (name, counts, runs) in [("drop", drop, runs[1]), ("hold", hold, runs[2])] {
            let is_fine = |case: &str| {
                let excused = name == "hold" && case == FORBIDDEN;
                let skipped = if excused { counts.skipped(case) } else { 0 };
                counts.of(SELFTEST, case) + skipped >= runs
            };
            let failed = CASES.iter().filter(|case| !is_fine(case)).count();
            ask(failed == 0, format!("{SELFTEST}, {name}: {failed} cases failed"));
        }
        let passed = NEW.iter().filter(|case| plain.of(SELFTEST, case) > 0).count();
        ask(passed == 0, format!("{SELFTEST}, plain: {passed} cases passed that must fail there"));
    }
    verdicts
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// A run in which every workload has these counts, and the selftest these cases.
    fn run(counts: &[(&str, u64)], cases: [u64; CASES.len()]) -> String {
        let mut text = String::new();
        for workload in &WORKLOADS[..WORKLOADS.len() - 1] {
            for (key, value) in counts {
                let _ = writeln!(text, "{workload} {key} {value}");
            }
        }
        for (case, passed) in CASES.iter().zip(cases) {
            let _ = writeln!(text, "{SELFTEST} {case} {passed}");
        }
        text
    }

    const ALL: [(&str, u64); 3] = [("pages", 100), ("writes", 100), ("waits-read-none", 900)];

    pub(crate) fn plain() -> String {
        let counts = [("disk-turns", 100), ("retry_mmap_drop", 1000), ("retry_io_miss", 400)];
        run(&[&ALL[..], &counts].concat(), [0, 0, 1, 1, 1, 0, 0, 1])
    }

    pub(crate) fn drop() -> String {
        let counts = [("disk-turns", 50), ("retry_vma_drop", 980), ("retry_mmap_drop", 20)];
        run(&[&ALL[..], &[("retry_io_miss", 20)], &counts].concat(), [1; CASES.len()])
    }

    fn hold() -> String {
        let counts = [("disk-turns", 50), ("retry_mmap_drop", 0), ("retry_io_miss", 20)];
        let waits = [("waits-read-vma", 900), ("waits-read-mmap", 9)];
        run(&[&[("pages", 100)][..], &waits, &counts].concat(), [1; CASES.len()])
    }

    fn parse(text: &str) -> Result<Counts> {
        Counts::parse(text, &WORKLOADS)
    }

    fn missed(plain: &str, drop: &str, hold: &str) -> Vec<String> {
        let all = [plain, drop, hold].map(|text| [parse(text).unwrap()]);
        verdicts(all.each_ref().map(|runs| &runs[..]))
            .into_iter()
            .filter(|v| !v.1)
            .map(|v| v.0)
            .collect()
    }

    #[test]
    fn what_was_asked_is_met_at_its_limits() {
        assert_eq!(missed(&plain(), &drop(), &hold()), Vec::<String>::new());
    }

    #[test]
    fn each_question_can_be_missed() {
        let one = |plain: &str, drop: &str, hold: &str, what: &str| {
            let missed = missed(plain, drop, hold);
            assert!(missed.len() == 1 && missed[0].contains(what), "{missed:?}");
        };
        let with = |text: String, old: &str, new: &str| {
            assert!(text.contains(old), "{old}");
            text.replacen(old, new, 1)
        };
        let (p, d, h) = (plain(), drop(), hold());
        one(&p, &with(drop(), "mmap_drop 20", "mmap_drop 21"), &h, "under mmap_lock");
        one(
            &p,
            &d,
            &with(hold(), "mmap_drop 0", "mmap_drop 1"),
            "hold: 1 faults dropped mmap_lock",
        );
        one(&p, &d, &with(hold(), "io_miss 20", "io_miss 21"), "21 waits in vain; on plain 1000");
        one(&p, &with(drop(), "io_miss 20", "io_miss 21"), &h, "in vain");
        let held = |workload: &str, lock: &str| {
            let of = |l: &&str| !l.starts_with(&format!("{workload} waits-read-{lock} "));
            hold().lines().filter(of).map(|line| line.to_string() + "\n").collect::<String>()
        };
        one(
            &p,
            &d,
            &held("swap", "vma"),
            "swap, hold: 0 waits of faults were traced with the VMA's",
        );
        one(&p, &d, &held(FORKS, "mmap"), "hold: 0 waits with mmap_lock held");
        let reads = drop().replace("thrash-data disk-turns 50", "thrash-data disk-turns 51");
        one(&p, &reads, &h, "51 disk turns, on plain 100");
        one(&p, &(drop() + "giant-fork long-waits-write-vma 1\n"), &h, "wait long 1 times");
        one(&p, &(drop() + "startup-write waits-lock-vma 1\n"), &h, "kept the VMA's lock");
        one(&p, &with(drop(), "passed-4 1", "passed-4 0"), &h, "selftest, drop: 1 cases");
        one(&with(plain(), "passed-1 0", "passed-1 1"), &d, &h, "selftest, plain: 1 cases");
        let few = |text: String| text.replace("giant-fork writes 100", "giant-fork writes 99");
        one(&few(plain()), &d, &h, "giant-fork: writers wait long 0 times in 100");
        one(&p, &few(drop()), &h, "giant-fork: writers wait long 0 times in 99");
        let untimed = drop().replace("thrash-data disk-turns 50", "thrash-data disk-turns 0");
        one(&p, &untimed, &h, "in 0 disk turns");
        let untraced = |text: String| text.replace("swap waits-read-none 900\n", "");
        one(&untraced(plain()), &d, &h, "swap, plain: 0 waits of faults");
        // Where nothing is read, nothing need be traced.
        let holes = |text: String| text.replace("thrash-holes waits-read-none 900\n", "");
        assert_eq!(missed(&holes(plain()), &holes(drop()), &h), Vec::<String>::new());
        // A writer's is none of a fault.
        let writers = untraced(drop()) + "swap waits-write-mmap 1\n";
        one(&p, &writers, &h, "swap, drop: 0 waits of faults");
        let nothing = with(plain(), "mmap_drop 1000", "mmap_drop 0");
        assert!(missed(&nothing, &d, &h).iter().any(|m| m.contains("plain retried 0")));
    }

    #[test]
    fn drop_is_judged_by_its_own_retries() {
        let of = |vma: u64, mmap: u64, misses: u64| {
            let drop = drop()
                .replace("swap retry_vma_drop 980", &format!("swap retry_vma_drop {vma}"))
                .replace("swap retry_mmap_drop 20", &format!("swap retry_mmap_drop {mmap}"))
                .replace("swap retry_io_miss 20", &format!("swap retry_io_miss {misses}"));
            missed(&plain(), &drop, &hold())
        };
        assert_eq!(of(98, 2, 2), Vec::<String>::new());
        assert_eq!(of(97, 3, 2), ["swap, drop: 3 under mmap_lock; 100 retries"]);
        assert_eq!(of(98, 2, 3), ["swap, drop: 3 waits in vain; 100 retries"]);
        let none = "swap: drop retried 0 faults under the VMA's lock";
        assert_eq!(of(0, 0, 1), [none, "swap, drop: 1 waits in vain; 0 retries"]);
        assert_eq!(of(0, 0, 0), [none]);
        let uncounted = drop().replace(
            "swap retry_vma_drop 980\nswap retry_mmap_drop 20\n",
            "swap retry_mmap_drop 0\n",
        );
        assert_eq!(missed(&plain(), &uncounted, &hold())[0], none);
    }

    #[test]
    fn a_writers_waits_are_compared_for_each_change() {
        let plain = plain() + "giant-fork long-waits-write-mmap 4\n";
        let drop = |waits: u64| {
            drop().replace("giant-fork writes 100", "giant-fork writes 200")
                + &format!("giant-fork long-waits-write-vma {waits}\n")
        };
        assert_eq!(missed(&plain, &drop(8), &hold()), Vec::<String>::new());
        assert_eq!(missed(&plain, &drop(9), &hold()).len(), 1);
    }

    #[test]
    fn a_vma_that_is_being_changed_may_be_found_locked() {
        let forks = "startup-fork retry_mmap_drop";
        let drop = drop().replace(&format!("{forks} 20"), &format!("{forks} 500"));
        assert_eq!(missed(&plain(), &drop, &hold()), Vec::<String>::new());
    }

    #[test]
    fn only_what_ran_is_judged() {
        let only = |text: String| {
            let lines: Vec<_> = text.lines().filter(|l| l.starts_with("swap ")).collect();
            [Counts::parse(&lines.join("\n"), &["swap"]).unwrap()]
        };
        let all = verdicts([&only(plain()), &only(drop()), &only(hold())]);
        assert!(all.len() == 9 && all.iter().all(|(what, met)| *met && what.starts_with("swap")));
    }

    #[test]
    fn a_case_that_was_not_run_did_not_pass() {
        let [whole, part] = ["passed-3 1", "passed-3 0"]
            .map(|case| parse(&drop().replace("passed-3 1", case)).unwrap().failed_cases());
        assert_eq!((whole, part), (vec![], vec!["passed-3"]));
        assert_eq!(Counts::default().failed_cases(), CASES);
    }

    #[test]
    fn only_hold_may_skip_a_case_and_only_one() {
        let skip = |text: String, case: u64| {
            text.replace(&format!("passed-{case} 1"), &format!("passed-{case} 0"))
                + &format!("selftest skipped-{case} 1\n")
        };
        assert_eq!(missed(&plain(), &drop(), &skip(hold(), 5)), Vec::<String>::new());
        assert_eq!(missed(&plain(), &drop(), &skip(hold(), 4)), ["selftest, hold: 1 cases failed"]);
        assert_eq!(missed(&plain(), &skip(drop(), 5), &hold()), ["selftest, drop: 1 cases failed"]);
        let failed = hold().replace("passed-5 1", "passed-5 0");
        assert_eq!(missed(&plain(), &drop(), &failed), ["selftest, hold: 1 cases failed"]);
    }

    #[test]
    fn a_case_that_failed_once_failed() {
        let counts = |text: String| parse(&text).unwrap();
        let [failed, all] = [drop().replace("passed-2 1", "passed-2 0"), drop()].map(counts);
        let (plain, hold) = (counts(plain()), counts(hold()));
        let of = |drop: &[Counts]| {
            let all = verdicts([std::slice::from_ref(&plain), drop, std::slice::from_ref(&hold)]);
            all.iter().find(|(what, _)| what.starts_with("selftest, drop")).unwrap().1
        };
        assert!(of(&[all.clone(), all.clone()]));
        assert!(!of(&[all, failed]));
    }

    #[test]
    fn a_run_that_is_not_whole_is_refused() {
        let error = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert!(error("").contains("startup-none: no pages"));
        assert!(error(&plain().replace("swap pages 100\n", "")).contains("swap: no pages"));
        assert!(error(&plain().replace("swap pages 100", "swap pages 0")).contains("touched"));
        assert!(error(&(plain() + "swap pages 100\n")).contains("twice"));
        assert!(error(&(plain() + "swap pages\n")).contains("not WORKLOAD"));
        assert!(error(&(plain() + "swap other x\n")).contains("no number"));
        assert!(error(&plain().replace("swap retry_io_miss 400\n", "")).contains("retry_io_miss"));
        assert!(error(&plain().replace("selftest passed-3 1\n", "")).contains("no passed-3"));
    }

    #[test]
    fn runs_are_summed_and_the_longest_wait_is_the_longest() {
        let one = |count, longest| {
            let text = format!("swap a {count}\nswap longest-wait-x {longest}\n");
            Counts::parse(&text, &[]).unwrap()
        };
        let sum = Counts::sum(&[one(1, 5), one(2, 4)]);
        assert_eq!((sum.of("swap", "a"), sum.of("swap", "longest-wait-x")), (3, 5));
    }
}
