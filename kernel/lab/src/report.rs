//! `kernel report`: one Markdown page with plain beside patched, from what the
//! tests and the counts have left in the cache. It measures nothing itself.

use crate::paths::Paths;
use crate::{Config, Tree, bench, build, prepare, selftests, series};
use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

fn load<T: DeserializeOwned>(paths: &Paths, name: &str) -> Result<T> {
    let path = paths.result(name);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("no {}; run `kernel test` first", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
}

/// The instructions around the first locked one that touches `_refcount`.
fn around_lock(lines: &[String]) -> Vec<String> {
    let at = lines.iter().position(|l| l.contains("lock") && l.contains("0x34(")).unwrap_or(0);
    lines[at.saturating_sub(8)..lines.len().min(at + 4)].to_vec()
}

/// Writes the page.
///
/// # Errors
/// If nothing was measured yet, or the page cannot be written.
pub(crate) fn report(paths: &Paths, out: Option<PathBuf>) -> Result<()> {
    let counts: Vec<bench::Row> = load(paths, "counts")?;
    let tests: Vec<selftests::Row> = load(paths, "selftests")?;
    let mut text = format!(
        "# The series on Linux {}, plain beside patched\n\n{} patches; GCC of the machine; x86-64.\n\n",
        prepare::version(paths)?,
        series::patches(paths)?.len()
    );
    text += "## Instructions\n\nCounted by an emulator whose clock advances by one nanosecond for each \
             instruction (QEMU's TCG with `-icount shift=0,sleep=off`, one CPU). These are counts, not times: \
             of one read, fault, or page of gup_test; of one fork for `fork-2048-pages`.\n\n\
             | case | plain | patched | difference |\n|---|---:|---:|---:|\n";
    for row in &counts {
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.2} | {:+.2} % |",
            row.case,
            row.plain,
            row.series,
            row.percent()
        );
    }
    text += "\n## The speculative get\n\n`filemap_get_entry()`, around the reference it takes:\n";
    for tree in [Tree::Plain, Tree::Series] {
        let vmlinux = paths.objects(tree, Config::Fast).join("vmlinux");
        let lines = build::disassemble(&vmlinux, "filemap_get_entry")?;
        let _ = write!(text, "\n{}:\n```\n{}\n```\n", tree.name(), around_lock(&lines).join("\n"));
    }
    let _ = write!(
        text,
        "\nContention needs real cores: `pinfold bench ref --only cas,frozen32` compares exactly these two \
         sequences on this machine's.\n"
    );
    if let Ok(table) = fs::read_to_string(paths.cache.join("results/threads.txt")) {
        let _ = write!(text, "\n## Threads and processes, KVM\n\n```\n{table}```\n");
    } else {
        text +=
            "\nKVM starts no stock kernel here, so there is no table of threads from the guest.\n";
    }
    let _ = write!(
        text,
        "\n## Size\n\n`scripts/bloat-o-meter`, fast configuration:\n\n```\n{}\n```\n",
        build::bloat(paths)?
    );
    text += "\n## The kernel's mm selftests\n\n| test | plain | patched |\n|---|---|---|\n";
    for row in &tests {
        let _ = writeln!(text, "| {} | {} | {} |", row.test, row.plain, row.series);
    }
    let path = out.unwrap_or_else(|| paths.cache.join("report.md"));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_in_the_middle() {
        let mut lines: Vec<_> = (0..20).map(|i| format!("insn {i}")).collect();
        lines[12] = "lock addl $0x1,0x34(%rdi)".into();
        let shown = around_lock(&lines);
        assert_eq!((shown.len(), shown[8].as_str()), (12, "lock addl $0x1,0x34(%rdi)"));
    }
}
