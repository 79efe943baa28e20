//! `lab pins` counts what pinning and unpinning costs for each page: instructions, and cache
//! lines that are touched, of struct pages and of other memory. It does so on three kernels:
//! *page by page* is plain with its loop over the folios of long-term pins taken back, and *plain*
//! and *patched* are as elsewhere. A plugin of QEMU's emulator counts
//! (`kernel/lab/plugin/page_lines.c`).

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot};
use crate::variant::{self, Built, Variant};
use crate::{build, cc, guest, kept, prepare, proc, selftests};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The kernels, in the order of the table.
const KERNELS: [&str; 3] = ["page-by-page", "plain", "series"];

/// What is pinned: a name, what makes the kernel ready for it, and arguments of `gup_test`.
const CASES: [(&str, &str, &str); 4] = [
    ("2M-hugetlb", "echo 128 > /proc/sys/vm/nr_hugepages", "-L -H -m 256"),
    (
        "2M-thp",
        "echo 0 > /proc/sys/vm/nr_hugepages
echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        "-L -t -m 512",
    ),
    ("4K", ":", "-L -T -m 64"),
    // The last one, because a static branch stays on after it.
    (
        "2M-hugetlb-optimised",
        "echo 1 > /proc/sys/vm/hugetlb_optimize_vmemmap
echo 128 > /proc/sys/vm/nr_hugepages",
        "-L -H -m 256",
    ),
];
/// How often `gup_test` pins all of it.
const ROUNDS: u64 = 3;

/// The same in memory from which pages have to move before they are pinned for long.
const MOVED: [(&str, &str, &str); 2] = [
    ("2M-thp-moved", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", "-L -t -m 256"),
    ("4K-moved", ":", "-L -T -m 32"),
];

const MEM_MIB: u32 = 2048;
/// Where the kernel's array of struct pages begins with four-level page tables. A struct page has
/// 64 bytes.
const ARRAY: u64 = 0xffff_ea00_0000_0000;

/// The kernel's functions whose calls are counted.
const HALVES: [(&str, &str); 2] = [("get", "pin_user_pages"), ("put", "unpin_user_pages")];
/// The one that calls both, and the one that separates the cases.
const CALLER: &str = "gup_test_ioctl";
const MARK: &str = "ksys_sync";

/// What one page costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    tree: &'static str,
    case: String,
    instructions: f64,
    page_lines: f64,
    other_lines: f64,
}

/// The pages of a case, by the `-m` in its arguments.
fn pages(arguments: &str) -> Result<u64> {
    let mib = arguments.rsplit(' ').next().context("no arguments")?;
    Ok(mib.parse::<u64>()? * 256)
}

/// The guest's script. Each case ends with a mark; what came before the first case is not counted.
fn script(cases: &[(&str, &str, &str)], rounds: u64) -> String {
    let mut text = String::from("set -e\n");
    for (_, ready, arguments) in cases {
        let _ = writeln!(
            text,
            "{ready}\nsync\ngup_test {arguments} -n 512 -r {rounds} > log || {{ cat log; exit 1; }}\n\
             if grep -q truncated log; then cat log; exit 1; fi\nsync"
        );
    }
    // Each pin must be gone.
    text += "echo 1 > /proc/sys/vm/stat_refresh
grep -E 'nr_foll_pin|pgmigrate_success' /proc/vmstat\n";
    text
}

/// A line of `/proc/vmstat` in the guest's output.
fn counter(output: &str, name: &str) -> Result<u64> {
    let line = output.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    line.with_context(|| format!("no {name}:\n{output}"))?.trim().parse().context("no number")
}

/// Checks that every page that was pinned was unpinned.
fn balanced(output: &str) -> Result<()> {
    let [pinned, unpinned] =
        ["nr_foll_pin_acquired", "nr_foll_pin_released"].map(|name| counter(output, name));
    match (pinned?, unpinned?) {
        (0, _) => bail!("nothing was pinned:\n{output}"),
        (pinned, unpinned) if pinned != unpinned => {
            bail!("{pinned} pages were pinned, and {unpinned} unpinned")
        }
        _ => Ok(()),
    }
}

/// Reads the plugin's output: before and after each case a mark, and before each mark a line for
/// each of `HALVES`.
///
/// # Errors
/// If something is missing, or nothing was counted.
fn parse(
    text: &str,
    tree: &'static str,
    cases: &[(&str, &str, &str)],
    rounds: u64,
) -> Result<Vec<Row>> {
    let marks: Vec<_> = text.split("mark\n").collect();
    let mut rows = Vec::new();
    for (i, (case, _, arguments)) in cases.iter().enumerate() {
        let counted = marks.get(2 * i + 1).with_context(|| format!("{case} was not counted"))?;
        for ((half, function), line) in HALVES.iter().zip(counted.lines()) {
            let numbers: Vec<u64> =
                line.split(' ').map(str::parse).collect::<Result<_, _>>().context("no numbers")?;
            let [calls, instructions, page_lines, other_lines] = numbers[..] else {
                bail!("a line without four numbers: {line}");
            };
            if calls == 0 || instructions == 0 {
                bail!("{case} calls {function} {calls} times");
            }
            let pages = (pages(arguments)? * rounds) as f64;
            rows.push(Row {
                tree,
                case: format!("{case}-{half}"),
                instructions: instructions as f64 / pages,
                page_lines: page_lines as f64 / pages,
                other_lines: other_lines as f64 / pages,
            });
        }
    }
    if rows.len() != cases.len() * HALVES.len() {
        bail!("the plugin has printed {} counts:\n{text}", rows.len());
    }
    Ok(rows)
}

/// Where a function lies: its address and its end.
fn function(nm: &str, name: &str) -> Result<(u64, u64)> {
    let hex = |word: &str| u64::from_str_radix(word, 16);
    for line in nm.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [at, bytes, _, found] = words[..]
            && found == name
        {
            return Ok((hex(at)?, hex(at)? + hex(bytes)?));
        }
    }
    bail!("the kernel has no function {name}")
}

fn plugin(paths: &Paths) -> Result<PathBuf> {
    let source = paths.kernel.join("lab/plugin/page_lines.c");
    let target = paths.guest("page_lines.so");
    let text = build::read(&source)?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&target)
        .arg(&source);
    cc::compile("page_lines", &text, &mut gcc, &target, &paths.log("compile-page_lines"))?;
    Ok(target)
}

/// Boots a kernel and counts the cases in it.
fn count(
    paths: &Paths,
    (tree, kernel): (&'static str, &Built),
    cases: &[(&str, &str, &str)],
    rounds: u64,
    append: &str,
) -> Result<(Vec<Row>, String)> {
    let nm = proc::output(Command::new("nm").arg("-S").arg(&kernel.vmlinux))?;
    let out = paths.log("page_lines");
    prepare::remove_file(&out)?;
    let last = ARRAY + u64::from(MEM_MIB) * 256 * 64;
    let (first, end) = function(&nm, CALLER)?;
    let mut argument = format!(
        "{},out={},memory={},first={ARRAY:#x},last={last:#x},mark={:#x},caller={first:#x}-{end:#x}",
        plugin(paths)?.display(),
        out.display(),
        u64::from(MEM_MIB) << 20,
        function(&nm, MARK)?.0,
    );
    for (_, name) in HALVES {
        let _ = write!(argument, ",enter={:#x}", function(&nm, name)?.0);
    }
    let name = format!("pins-{tree}");
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: &name,
            image: &kernel.image,
            root: &guest::root(paths, &[selftests::gup_test(paths)?])?,
            command: &script(cases, rounds),
            append: &format!("kunit.enable=0 {append}"),
            accel: Accel::Icount,
            limit: Duration::from_secs(500),
            mem_mib: MEM_MIB,
            args: &["-cpu", "max,la57=off", "-plugin", &argument],
        },
    )?;
    if outcome.status != 0 {
        bail!("{name}: failed with status {}:\n{}", outcome.status, outcome.output);
    }
    balanced(&outcome.output).with_context(|| name.clone())?;
    let rows = parse(&build::read(&out)?, tree, cases, rounds).with_context(|| name)?;
    Ok((rows, outcome.output))
}

/// The row of a kernel and a case.
fn row<'a>(rows: &'a [Row], tree: &str, case: &str) -> Option<&'a Row> {
    rows.iter().find(|r| r.tree == tree && r.case == case)
}

/// A table with a line for each case, and for each kernel three columns.
fn table(rows: &[Row], kernels: &[&str]) -> String {
    let mut text = format!("{:<26}", "for each page");
    for kernel in kernels {
        let _ = write!(text, " | {kernel:^23}");
    }
    let _ = write!(text, "\n{:<26}", "");
    for _ in kernels {
        let _ = write!(text, " | {:>7} {:>7} {:>7}", "instr.", "struct", "other");
    }
    text.push('\n');
    for first in rows.iter().filter(|r| r.tree == kernels[0]) {
        let _ = write!(text, "{:<26}", first.case);
        for kernel in kernels {
            if let Some(r) = row(rows, kernel, &first.case) {
                let (i, p, o) = (r.instructions, r.page_lines, r.other_lines);
                let _ = write!(text, " | {i:>7.2} {p:>7.3} {o:>7.3}");
            }
        }
        text.push('\n');
    }
    text
}

/// The name under which the table is kept.
const TABLE: &str = "pins";

/// The same table in Markdown.
fn markdown(rows: &[Row]) -> String {
    let mut text = String::from("| for each page |");
    for kernel in KERNELS {
        let _ = write!(text, " {kernel}: instructions | struct pages | other memory |");
    }
    text += "\n|---|";
    text += &"---:|".repeat(3 * KERNELS.len());
    text.push('\n');
    for first in rows.iter().filter(|r| r.tree == KERNELS[0]) {
        let _ = write!(text, "| {} |", first.case);
        for kernel in KERNELS {
            match row(rows, kernel, &first.case) {
                Some(r) => {
                    let (i, p, o) = (r.instructions, r.page_lines, r.other_lines);
                    let _ = write!(text, " {i:.2} | {p:.3} | {o:.3} |");
                }
                None => text += " | | |",
            }
        }
        text.push('\n');
    }
    text
}

/// What the patches promise: at most half of plain's instructions for a page of a large folio
/// that is unpinned, and at most 1 % more for anything.
fn missed(rows: &[Row]) -> Vec<String> {
    let mut missed = Vec::new();
    for plain in rows.iter().filter(|r| r.tree == "plain") {
        let Some(patched) = row(rows, "series", &plain.case) else {
            missed.push(format!("{} was not counted", plain.case));
            continue;
        };
        let large = plain.case.starts_with("2M") && plain.case.ends_with("put");
        let most = if large { 0.5 } else { 1.01 };
        let ratio = patched.instructions / plain.instructions;
        if ratio > most {
            missed.push(format!("{}: {ratio:.3} of plain, not {most}", plain.case));
        }
    }
    missed
}

/// Checks that pages which may not be pinned for long where they are were moved.
fn moved(output: &str) -> Result<()> {
    match counter(output, "pgmigrate_success")? {
        0 => bail!("no page has moved:\n{output}"),
        _ => Ok(()),
    }
}

/// What is kept for the report. One of the kernels is made by a patch that is in neither series.
#[derive(Debug, Serialize, Deserialize)]
struct Table {
    /// The hash of that patch.
    page_by_page: String,
    markdown: String,
    missed: Vec<String>,
}

fn page_by_page(paths: &Paths) -> Result<String> {
    Ok(cc::hash(&build::read(&paths.kernel.join(PAGE_BY_PAGE.patch))?))
}

/// The table that was kept, in Markdown, and what it misses of what the patches promise.
///
/// # Errors
/// If there is none of these kernels.
pub(crate) fn kept_table(paths: &Paths, command: &str) -> Result<(String, Vec<String>)> {
    same_patch(kept::load(paths, TABLE, command)?, &page_by_page(paths)?)
}

fn same_patch(table: Table, now: &str) -> Result<(String, Vec<String>)> {
    if table.page_by_page != now {
        bail!("the pins were counted with another {}", PAGE_BY_PAGE.patch);
    }
    Ok((table.markdown, table.missed))
}

/// The two patches of `kernel/mutants/pins`, with the kernels that they change.
pub(crate) const PAGE_BY_PAGE: Variant = Variant {
    tree: Tree::Plain,
    config: Config::Fast,
    patch: "mutants/pins/pin-page-by-page.patch",
};
pub(crate) const MOVES_ONE_PIN: Variant = Variant {
    tree: Tree::Series,
    config: Config::Fast,
    patch: "mutants/pins/migrate-one-pin.patch",
};

/// The mutant of moving pages: pins that are not dropped keep the pages where they are, so
/// `gup_test` fails, or leaves them pinned. No `KUnit` case moves pages.
///
/// # Errors
/// If it does not build, or is not noticed.
pub(crate) fn mutant_of_moving(paths: &Paths) -> Result<()> {
    let patch = MOVES_ONE_PIN.patch;
    let built = variant::build(paths, MOVES_ONE_PIN)?;
    match count(paths, ("migrate-one-pin", &built), &MOVED, 1, MOVABLE) {
        Ok(_) => bail!("pinning in movable memory does not notice {patch}"),
        Err(error) if is_about_pins(&format!("{error:#}")) => {
            println!("migrate-one-pin: noticed, pinning in movable memory fails");
            Ok(())
        }
        Err(error) => Err(error.context(format!("{patch} fails in another way"))),
    }
}

/// Whether `gup_test` could not pin all of it, or left something pinned.
fn is_about_pins(error: &str) -> bool {
    error.contains("us# , truncated (size:") || error.contains(" were pinned, and ")
}

/// Most of the guest's memory is movable, and so are the pages of programs.
const MOVABLE: &str = "movablecore=1536M";

/// `lab pins`.
///
/// # Errors
/// If a kernel does not build or boot, a page stays pinned, or a figure is not what the patches
/// promise.
pub(crate) fn pins(paths: &Paths, json: Option<&Path>) -> Result<()> {
    prepare::prepare(paths)?;
    let mut kernels = vec![(KERNELS[0], variant::build(paths, PAGE_BY_PAGE)?)];
    for tree in [Tree::Plain, Tree::Series] {
        let image = build::build(paths, tree, Config::Fast)?;
        let vmlinux = paths.objects(tree, Config::Fast).join("vmlinux");
        kernels.push((tree.name(), Built { image, vmlinux }));
    }
    let (mut rows, mut rows_moved) = (Vec::new(), Vec::new());
    for (tree, kernel) in &kernels {
        rows.extend(count(paths, (tree, kernel), &CASES, ROUNDS, "")?.0);
        let (found, output) = count(paths, (tree, kernel), &MOVED, 1, MOVABLE)?;
        moved(&output)?;
        rows_moved.extend(found);
    }
    rows.extend(rows_moved);
    println!(
        "instructions, and cache lines of struct pages and of other memory (counts, not times)"
    );
    print!("{}", table(&rows, &KERNELS));
    let missed = missed(&rows);
    let table = Table {
        page_by_page: page_by_page(paths)?,
        markdown: markdown(&rows),
        missed: missed.clone(),
    };
    kept::keep(paths, TABLE, table)?;
    if let Some(file) = json {
        write_json(file, &rows)?;
    }
    if !missed.is_empty() {
        bail!("not as promised: {}", missed.join(", "));
    }
    Ok(())
}

fn write_json(file: &Path, rows: &[Row]) -> Result<()> {
    let text = serde_json::to_string_pretty(&serde_json::json!({
        "bench": "kernel-pins",
        "rows": rows,
    }))?;
    if file == Path::new("-") {
        println!("{text}");
        return Ok(());
    }
    fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_another_page_by_page_is_refused() {
        let missed = vec!["2M".to_string()];
        let table =
            || Table { page_by_page: "1".into(), markdown: "|".into(), missed: missed.clone() };
        assert_eq!(same_patch(table(), "1").unwrap(), ("|".to_string(), missed.clone()));
        assert!(same_patch(table(), "2").unwrap_err().to_string().contains("page-by-page"));
    }

    const CASES: [(&str, &str, &str); 2] = [("2M-thp", ":", "-L -t -m 2"), ("4K", ":", "-L -m 1")];
    /// Two rounds: 1024 pages, and 512.
    const COUNTED: &str = "9 9 9 9\n9 9 9 9\nmark\n2 20480 1024 512\n2 10240 512 0\nmark\n\
                           0 0 0 0\n0 0 0 0\nmark\n1 51200 512 512\n1 5120 512 0\nmark\n0 0 0 0\n";

    fn parsed(text: &str) -> Result<Vec<Row>> {
        parse(text, "plain", &CASES, 2)
    }

    #[test]
    fn counts_are_for_each_page() {
        let rows = parsed(COUNTED).unwrap();
        let of = |case: &str| row(&rows, "plain", case).unwrap().clone();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert_eq!(rows.len(), 4);
        assert!(close(of("2M-thp-get").instructions, 20.0));
        assert!(close(of("2M-thp-get").page_lines, 1.0));
        assert!(close(of("2M-thp-put").other_lines, 0.0));
        assert!(close(of("4K-get").instructions, 100.0));
        assert!(row(&rows, "series", "4K-get").is_none());
    }

    #[test]
    fn a_case_that_was_not_counted_is_an_error() {
        let error = |text: &str| parsed(text).unwrap_err().to_string();
        assert!(error("").contains("2M-thp was not counted"));
        assert!(error(&COUNTED.replace("\nmark\n0 0 0 0\n0", "\n0 0 0 0\n0")).contains("4K"));
        assert!(error(&COUNTED.replace("1 5120 512 0", "0 0 0 0")).contains("0 times"));
        assert!(error(&COUNTED.replace("1 5120 512 0", "1 5120 512")).contains("four numbers"));
        assert!(error(&COUNTED.replace("1 5120 512 0\n", "")).contains("3 counts"));
    }

    #[test]
    fn the_script_pins_each_case_between_two_marks() {
        let text = script(&CASES, 2);
        let is_step = |line: &&str| line.starts_with("sync") || line.starts_with("gup_test");
        let steps: Vec<_> = text.lines().filter(is_step).collect();
        assert_eq!(steps.len(), 6, "{text}");
        for case in steps.chunks(3) {
            assert!(case[0] == "sync" && case[1].starts_with("gup_test -L") && case[2] == "sync");
        }
        assert!(steps[1].starts_with("gup_test -L -t -m 2 -n 512 -r 2 "), "{text}");
    }

    #[test]
    fn pins_that_are_left_are_noticed() {
        let output = |a, r| format!("x\nnr_foll_pin_acquired {a}\nnr_foll_pin_released {r}\n");
        balanced(&output(5, 5)).unwrap();
        let error = balanced(&output(5, 4)).unwrap_err().to_string();
        assert_eq!(error, "5 pages were pinned, and 4 unpinned");
        balanced(&output(0, 0)).unwrap_err();
        balanced("nr_foll_pin_acquired 5\n").unwrap_err();
        assert!(is_about_pins(&error));
        assert!(is_about_pins("# X: Time: get:257 put:0 us# , truncated (size: 0)# \n"));
        assert!(!is_about_pins("pins-x: the kernel's log has 1 splat(s)"));
        moved("pgmigrate_success 1\n").unwrap();
        moved("pgmigrate_success 0\n").unwrap_err();
        moved("").unwrap_err();
    }

    #[test]
    fn a_function_is_found_by_its_whole_name() {
        let nm = "00f0 0010 t pin_user_pages_fast\n0100 0020 T pin_user_pages\n0200 D data\n";
        assert_eq!(function(nm, "pin_user_pages").unwrap(), (0x100, 0x120));
        function(nm, "unpin_user_pages").unwrap_err();
        function(nm, "data").unwrap_err();
    }

    #[test]
    fn a_promise_that_is_not_kept_is_named() {
        let rows = |put: f64, small: f64| {
            let row = |tree, case: &str, instructions| Row {
                tree,
                case: case.into(),
                instructions,
                page_lines: 1.0,
                other_lines: 1.0,
            };
            [
                row("plain", "2M-thp-put", 10.0),
                row("series", "2M-thp-put", put),
                row("plain", "4K-put", 100.0),
                row("series", "4K-put", small),
            ]
        };
        assert!(missed(&rows(5.0, 101.0)).is_empty());
        assert_eq!(missed(&rows(5.1, 101.0)), ["2M-thp-put: 0.510 of plain, not 0.5"]);
        assert_eq!(missed(&rows(5.0, 101.1)), ["4K-put: 1.011 of plain, not 1.01"]);
        assert_eq!(missed(&rows(5.0, 101.0)[..3]), ["4K-put was not counted"]);
        let table = table(&rows(5.0, 101.0), &["plain", "series"]);
        assert!(table.contains("2M-thp-put"), "{table}");
        assert_eq!(table.lines().count(), 4);
        let mut three = rows(5.0, 101.0).to_vec();
        three.push(Row { tree: "page-by-page", ..three[0].clone() });
        assert!(
            markdown(&three).ends_with(
                "| 2M-thp-put | 10.00 | 1.000 | 1.000 | 10.00 | 1.000 | 1.000 | 5.00 | 1.000 | 1.000 |\n"
            ),
            "{}",
            markdown(&three)
        );
    }
}
