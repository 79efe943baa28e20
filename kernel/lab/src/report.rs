//! `lab report` writes a Markdown page that compares plain and patched, from the results that
//! other commands have kept in the cache, and from the pages of `kernel/docs` that say what was
//! objected and what is still open. It measures nothing itself but the kernels' size.

mod pages;

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::{bench, build, cc, cores, faults, kept, pins, prepare, selftests, series, writes};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// The parts of the patches: each has a section of the report, and a page in `kernel/docs`.
const PARTS: [&str; 4] = ["count", "reads", "pins", "faults"];

/// Commands whose results are in a section, and at length in an appendix.
const CORES: &str = "cargo lab cores";
const FAULTS: &str = "cargo lab faults";
const SELFTESTS: &str = "cargo lab selftests";

/// The counts of page faults that the section shows. The appendix has all.
const OF_FAULTS: [&str; 8] = [
    "retry_mmap_drop",
    "retry_vma_drop",
    "retry_io_miss",
    "writes",
    "waits-write-vma",
    "long-waits-write-vma",
    "long-waits-write-mmap",
    "disk-turns",
];

/// What the section says of its kernels, workloads and counts.
const OF_FAULTS_MEAN: &str = "\
In this section *plain* is not Debian's source alone. It has the fixes and the first three patches
of `kernel/faults`, which only count and trace. *Drop* has the fixes and all of `kernel/faults`;
*hold* has the fixes, those three, and `kernel/faults-hold`. None has the other series.

In `startup` and `giant`, four threads read files through mappings, while another thread does
again and again what the second half of the name says; in `giant`, all that is read is in one VMA.
In `giant-store` they also store, and the other thread does what it does in `giant-unmap`.
In `thrash`, 96 threads read more than there is memory for. In `swap`, threads page out and in.

| count | what it counts |
|---|---|
| `retry_mmap_drop` | faults retried under `mmap_lock` after a wait; on plain, also those that a signal ended; on *hold*, only faults under `mmap_lock` that wait for a hole punch |
| `retry_vma_drop` | faults retried under the VMA's lock after a wait |
| `retry_io_miss` | waits in vain: afterwards the folio was absent, or not up to date |
| `writes` | what the other thread did: forks, for example |
| `waits-write-vma`, `long-waits-write-…` | how often it waited to lock a VMA; how often it waited 10 ms or more, for a VMA's lock or for `mmap_lock` |
| `disk-turns` | how long the workload took, in operations of the disk (2.5 ms) |

On *hold*, a thread that forks, or changes a VMA that is read, does less, because it waits. If a
workload takes fewer disk turns there, that is partly because less was changed meanwhile.

";

/// The instructions around the first locked one that touches `_refcount`.
///
/// # Errors
/// If no locked instruction touches it.
fn around_lock(lines: &[String]) -> Result<&[String]> {
    let at = lines
        .iter()
        .position(|l| l.contains("lock") && l.contains("0x34("))
        .context("no locked instruction touches a page's count")?;
    Ok(&lines[at.saturating_sub(9)..lines.len().min(at + 4)])
}

/// Checks that the two kernels were built from the series and the source as they are now.
fn check_kernels(paths: &Paths) -> Result<()> {
    if !series::is_applied(paths)? {
        bail!("the patched source tree is older than the series; run `cargo lab test`");
    }
    for tree in [Tree::Plain, Tree::Series] {
        if !build::is_current(paths, tree, Config::Fast) {
            bail!("the {} kernel is older than its source; run `cargo lab test`", tree.name());
        }
    }
    Ok(())
}

/// Sentences about limits, as a list.
fn list(limits: impl IntoIterator<Item = String>) -> String {
    limits.into_iter().fold(String::new(), |list, limit| list + "- " + &limit + "\n")
}

/// What was measured by `lab cores`, if it was.
fn measured_on_cores(paths: &Paths) -> Option<cores::Figures> {
    kept::load(paths, cores::CORES, CORES).ok()
}

/// The section of `lab cores`. The tables are in the appendix.
fn kernels_on_cores(figures: Option<&cores::Figures>) -> String {
    let Some(figures) = figures else { return not_measured(CORES) };
    format!(
        "`{CORES}` runs the fast kernels' own objects in a program\n({}).\n\
         Threads and processes look up, get and put folios of one index as fast as they can,\n\
         unpin, and read. Patched by plain is the median of the ratios of samples that were taken\n\
         one after the other, and the range of what it is in four layouts of the program. All cases,\n\
         and what is not the kernels' own, are in the [appendix](#appendix-real-cores). The limits:\n\n\
         {}",
        figures.machine.shown(),
        list(cores::verdicts(figures).into_iter().map(|(what, _)| what)),
    )
}

/// The appendix of `lab cores`.
fn all_on_cores(figures: &cores::Figures) -> String {
    format!(
        "\n## Appendix: real cores\n\n\
         What `{CORES}` measures: operations per second of all threads or processes together,\n\
         or the time of one frozen section; medians, and the least and the most. The last column is\n\
         patched by plain, as above.\n\n{}\n{}",
        figures.tables(),
        figures.not_the_kernels()
    )
}

/// A table of counts.
fn of_counts<'a>(rows: impl Iterator<Item = &'a bench::Row>) -> String {
    let mut text = String::from("| case | plain | patched | difference |\n|---|---:|---:|---:|\n");
    for row in rows {
        let (plain, series) = (row.plain, row.series);
        let _ =
            writeln!(text, "| {} | {plain:.2} | {series:.2} | {:+.2} % |", row.case, row.percent());
    }
    text
}

/// What is said of a section that was not measured on these kernels.
fn not_measured(command: &str) -> String {
    format!("Not measured on these kernels: `{command}`.\n")
}

/// A table is kept also by a command that then fails. So the page says what it failed by.
fn failures(missed: &[String]) -> String {
    if missed.is_empty() {
        return String::new();
    }
    format!("\n**Not as promised**: {}.\n", missed.join("; "))
}

/// The section of short reads.
fn short_reads<'a>(paths: &Paths, counts: impl Iterator<Item = &'a bench::Row>) -> String {
    let mut text = String::from(
        "\n## Short reads\n\n\
         What a read may return, and the sizes of reads: [reads.md](reads.md).\n\
         On real cores they are the cases `short-read` of `cargo lab cores`, above.\n\n\
         Instructions (`cargo lab bench`) with `vm.short_reads` on; plain has no such \
         switch.\nRows with `miss` and `ahead` are reads of pages that are not cached, of ext4 on \
         zram.\n\n",
    );
    text += &of_counts(counts);
    let command = "cargo lab writes";
    let _ =
        write!(text, "\nWrites to the struct page for each read of 64 bytes (`{command}`):\n\n");
    match kept::load::<Vec<writes::Row>>(paths, writes::TABLE, command) {
        Ok(rows) => {
            text += "| file system | kernel | to the count | elsewhere |\n|---|---|---:|---:|\n";
            for row in rows {
                let (count, rest) = (row.count, row.rest);
                let kernel = row.kernel.replace("series", "patched");
                let _ = writeln!(text, "| {} | {kernel} | {count:.2} | {rest:.2} |", row.system);
            }
        }
        Err(_) => text += &not_measured(command),
    }
    text
}

/// The section of pins.
fn pins(paths: &Paths) -> String {
    let command = "cargo lab pins";
    format!(
        "\n## Pins\n\nWhat the figures mean: [pins.md](pins.md).\n\n\
         Instructions, and cache lines of struct pages and of other memory, for each page \
         (`{command}`).\nLong-term pins were said to become three times as fast by a loop over \
         folios, which plain has;\n*page-by-page* is plain with that loop taken back.\n\n{}",
        pins::kept_table(paths, command).map_or_else(
            |_| not_measured(command),
            |(table, missed)| {
                table.replace(" series: instructions", " patched: instructions")
                    + &failures(&missed)
            }
        )
    )
}

/// What was counted by `lab faults`, if it was.
fn counted_faults(paths: &Paths) -> Option<faults::Figures> {
    kept::load_of(paths, faults::KEPT_OF, faults::FIGURES, FAULTS).ok()
}

/// The rows of a table in Markdown that have one of `counts` in their second column.
fn rows_of(table: &str, counts: &[&str]) -> String {
    let is_shown = |line: &str| line.split(" | ").nth(1).is_some_and(|cell| counts.contains(&cell));
    let rows = table.lines().enumerate().filter(|&(at, line)| at < 2 || is_shown(line));
    rows.fold(String::new(), |text, (_, line)| text + line + "\n")
}

/// The section of faults. All counts and limits are in the appendix.
fn faults(figures: Option<&faults::Figures>) -> String {
    let mut text = String::from(
        "\n## Faults that wait\n\n\
         The two series, with what they cost: the cover letters of \
         [drop](../faults/0000-cover-letter)\nand [hold](../faults-hold/0000-cover-letter).\n\n",
    );
    let Some(of) = figures else { return text + &not_measured(FAULTS) };
    let missed: Vec<_> = of.verdicts.iter().filter(|limit| !limit.1).map(|of| &*of.0).collect();
    let _ = write!(
        text,
        "{OF_FAULTS_MEAN}Counts of `{FAULTS}`, {} workloads, {} runs of each kernel in turn: the \
         median,\nand the range where the runs differ. All counts and limits are in the\n\
         [appendix](#appendix-page-faults-that-wait).\n\n{}\n\
         Of {} limits, over all runs, {} were met.{}\n",
        of.workloads,
        of.runs,
        rows_of(&of.table, &OF_FAULTS),
        of.verdicts.len(),
        of.verdicts.len() - missed.len(),
        if missed.is_empty() {
            String::new()
        } else {
            format!(
                " Missed: {}. The limits are those of\n[the lab's \
                 README](../lab/README.md#page-faults-that-wait).",
                missed.join("; ")
            )
        }
    );
    text
}

/// The appendix of faults.
fn all_faults(of: &faults::Figures) -> String {
    let limit = |of: &(String, bool)| of.0.clone() + if of.1 { ": met" } else { ": **missed**" };
    format!(
        "\n## Appendix: page faults that wait\n\nAll that `{FAULTS}` counts:\n\n{}\n\
         Limits, over all runs:\n\n{}",
        of.table,
        list(of.verdicts.iter().map(limit))
    )
}

/// What the counts of the reference count's paths come to. All rows are in the appendix.
fn costs<'a>(rows: impl Iterator<Item = &'a bench::Row>) -> Option<String> {
    let rows: Vec<_> = rows.collect();
    let by = |a: &&&bench::Row, b: &&&bench::Row| a.percent().total_cmp(&b.percent());
    let (least, most) = (rows.iter().min_by(by)?, rows.iter().max_by(by)?);
    Some(format!(
        "Of the {} paths that `cargo lab bench` counts with short reads off, patched has \
         between\n{:+.2} % (`{}`) and {:+.2} % (`{}`) more instructions than plain. The\nlimit \
         is {:+} %. All are in the [appendix](#appendix-instructions). The large savings of \
         `gup_test`\nare those of the series for pins.\n",
        rows.len(),
        least.percent(),
        least.case,
        most.percent(),
        most.case,
        bench::ALLOWED_PERCENT
    ))
}

/// The instructions of the lookup around the one that takes the reference.
fn speculative_get(paths: &Paths) -> Result<String> {
    let mut text = String::from(
        "\n## Appendix: the speculative get\n\n\
         The instructions of `filemap_get_entry()` around the one that takes the reference. \
         `0x34` is the\nplace of `_refcount` in a struct page. `xchg %ax,%ax`, which does nothing, \
         is the static branch that\nis taken while hugetlb's vmemmap is optimised.\n",
    );
    for tree in [Tree::Plain, Tree::Series] {
        let vmlinux = paths.objects(tree, Config::Fast).join("vmlinux");
        let lines = build::disassemble(&vmlinux, "filemap_get_entry")?;
        let shown = around_lock(&lines).with_context(|| vmlinux.display().to_string())?.join("\n");
        let kernel = if tree == Tree::Plain { "plain" } else { "patched" };
        let _ = write!(text, "\n{kernel}:\n```\n{shown}\n```\n");
    }
    Ok(text)
}

/// The results of the selftests, if they were run.
fn of_selftests(paths: &Paths) -> Option<Vec<selftests::Row>> {
    kept::load(paths, selftests::RESULT, SELFTESTS).ok()
}

/// A table of selftests.
fn of_tests<'a>(tests: impl Iterator<Item = &'a selftests::Row>) -> String {
    tests.fold(String::from("| test | plain | patched |\n|---|---|---|\n"), |text, row| {
        format!("{text}| {} | {} | {} |\n", row.test, row.plain, row.series)
    })
}

/// The section of the selftests: those that did not pass at once on both kernels. They take
/// longest; a page without them says so.
fn selftests_of(tests: Option<&[selftests::Row]>) -> String {
    let text = "\n## The kernel's mm selftests\n\n";
    let Some(tests) = tests else { return text.to_string() + &not_measured(SELFTESTS) };
    let passed = |row: &&selftests::Row| row.plain == "pass" && row.series == "pass";
    let missed: Vec<_> = tests.iter().filter_map(selftests::unexpected).collect();
    format!(
        "{text}Of {} tests of `{SELFTESTS}`, {} pass on plain and on patched. The\n\
         others are below, [runs.md](runs.md) says why, and the [appendix](#appendix-mm-selftests) has \
         all.\n\n{}{}",
        tests.len(),
        tests.iter().filter(passed).count(),
        of_tests(tests.iter().filter(|row| !passed(row))),
        failures(&missed)
    )
}

/// The appendix of the selftests.
fn all_selftests(tests: &[selftests::Row]) -> String {
    format!("\n## Appendix: mm selftests\n\n{}", of_tests(tests.iter()))
}

/// The title, what the kernels are, and what is compared.
fn head(paths: &Paths) -> Result<String> {
    let mut sent = series::patches_in(paths, "fixes")?.len();
    for folder in series::SENT {
        sent += series::patches_in(paths, folder)?.len();
    }
    Ok(format!(
        "# The patches on Linux {}, plain beside patched\n\n\
         Patched has {} of the {sent} patches; the others are an alternative to the last series. \
         The kernels are\nfor x86-64, and built by {}.\n\n\
         `cargo lab report` has written this page. It takes the size and the last listing \
         from the\nkernels that are built, and measures nothing else; each section names the command \
         that does.\n{}",
        prepare::version(&paths.source(Tree::Plain))?,
        series::patches(paths, Tree::Series)?.len(),
        cc::version()?,
        pages::summary(paths)?
    ))
}

/// Writes the page.
///
/// # Errors
/// If a count is missing or was measured on other kernels, or the page cannot be written.
pub(crate) fn report(paths: &Paths, out: Option<PathBuf>) -> Result<()> {
    check_kernels(paths)?;
    let bench = "cargo lab bench";
    let counts: Vec<bench::Row> = kept::load(paths, bench::COUNTS, bench)?;
    let threads: Option<String> = kept::load(paths, bench::THREADS, bench)?;
    let is_of_reads = |row: &&bench::Row| row.case.starts_with(bench::SHORT);
    let of_the_count = || counts.iter().filter(|row| !is_of_reads(row));
    let [of_count, of_reads, of_pins, of_faults] = PARTS;
    let (on_cores, counted, tests) =
        (measured_on_cores(paths), counted_faults(paths), of_selftests(paths));

    let mut text = head(paths)?;
    text += "\n## The reference count\n\n\
             The objections are in [count.md](count.md), the versions that were posted before in\n\
             [upstream.md](upstream.md), side by side with this one, and who freezes and who destroys \
             pages in\n[frozen-bit-audit.md](frozen-bit-audit.md).\n\n";
    text += &costs(of_the_count()).context("no counts")?;
    text += &failures(&bench::regressions(&counts));
    text += "\n### The kernels' own code on real cores\n\n";
    text += &kernels_on_cores(on_cores.as_ref());
    if let Some(table) = threads {
        let _ = write!(
            text,
            "\n### Threads and processes, under KVM\n\nReads of 64 bytes per second of one file on \
             tmpfs: the median of five boots, and the least and the most.\n\n{table}"
        );
    } else {
        text +=
            "\nThe guests did not run under KVM, so there is no table of threads in the guest.\n";
    }
    text += &pages::answers(paths, of_count)?;
    text += &short_reads(paths, counts.iter().filter(is_of_reads));
    text += &pages::answers(paths, of_reads)?;
    text += &pins(paths);
    text += &pages::answers(paths, of_pins)?;
    text += &faults(counted.as_ref());
    text += &pages::answers(paths, of_faults)?;
    let _ = write!(
        text,
        "\n## Size\n\nThe rows of `scripts/bloat-o-meter` for all series together, in the fast \
         configuration: first\nsummed up without the symbols of KUnit tests, then as the script \
         does.\n\n```\n{}\n```\n",
        build::bloat(paths)?
    );
    text += &selftests_of(tests.as_deref());
    text += "\n## Appendix: instructions\n\n\
             `cargo lab bench` counts them with an emulator whose clock advances by one \
             nanosecond for\neach (QEMU's TCG with `-icount shift=0,sleep=off`, one CPU). A figure is \
             of one read, one fault, one\npage of `gup_test`, or one fork: `fork-2048-pages` has the \
             child's exit and the wait in it,\n`fork-call-2048-pages` the system call alone. Short \
             reads are off.\n\n";
    text += &of_counts(of_the_count());
    text += &on_cores.as_ref().map(all_on_cores).unwrap_or_default();
    text += &counted.as_ref().map(all_faults).unwrap_or_default();
    text += &tests.as_deref().map(all_selftests).unwrap_or_default();
    text += &speculative_get(paths)?;
    let path = out.unwrap_or_else(|| paths.cache.join("report.md"));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_a_command_that_failed_says_so() {
        assert_eq!(failures(&[]), "");
        assert_eq!(failures(&["a".into(), "b".into()]), "\n**Not as promised**: a; b.\n");
    }

    #[test]
    fn only_the_counts_that_are_named_are_shown() {
        let table = "| workload | count | plain |\n|---|---|---:|\n| swap | major | 7 |\n\
                     | swap | retry_io_miss | 3 |\n| retry_io_miss | major | 4 |\n";
        let shown = "| workload | count | plain |\n|---|---|---:|\n| swap | retry_io_miss | 3 |\n";
        assert_eq!(rows_of(table, &["retry_io_miss"]), shown);
    }

    #[test]
    fn a_selftest_that_did_not_pass_at_once_is_shown() {
        let row = |test: &str, plain: &str, series: &str| selftests::Row {
            test: test.into(),
            plain: plain.into(),
            series: series.into(),
        };
        let tests = [
            row("cow", "pass", "pass"),
            row("mkdirty", "timeout, then pass", "pass, then pass"),
            row("migration", "pass", "fail (1)"),
        ];
        let text = selftests_of(Some(&tests));
        assert!(text.contains("Of 3 tests") && text.contains(", 1 pass on plain"), "{text}");
        assert!(!text.contains("| cow |") && text.contains("| mkdirty |"), "{text}");
        assert!(
            text.ends_with("**Not as promised**: migration: pass on plain, fail (1) on patched.\n")
        );
        assert!(all_selftests(&tests).contains("| cow | pass | pass |"));
    }

    #[test]
    fn the_smallest_and_the_largest_difference_are_named() {
        let row = |case: &str, series| bench::Row { case: case.into(), plain: 100.0, series };
        let rows = [row("a", 100.5), row("b", 99.0), row("c", 100.0)];
        let text = costs(rows.iter()).unwrap();
        assert!(text.starts_with("Of the 3 paths "), "{text}");
        assert!(text.contains("-1.00 % (`b`) and +0.50 % (`a`)"), "{text}");
        assert_eq!(costs([].iter()), None);
    }

    #[test]
    fn the_locked_instruction_is_in_the_middle() {
        let mut lines: Vec<_> = (0..20).map(|i| format!("insn {i}")).collect();
        lines[12] = "lock addl $0x1,0x34(%rdi)".into();
        let shown = around_lock(&lines).unwrap();
        assert_eq!((shown.len(), shown[9].as_str()), (13, "lock addl $0x1,0x34(%rdi)"));
        lines[12] = "lock addl $0x1,0x38(%rdi)".into();
        around_lock(&lines).unwrap_err();
    }
}
