//! `kernel bench`: instructions, plain against patched. The guest's clock counts
//! one nanosecond for each instruction, so what its programs print as a time is
//! a count, and the same in every boot. Where KVM works, also the thread table.

use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot};
use crate::{Config, Tree, build, guest, prepare};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

/// One count on both kernels.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) plain: f64,
    pub(crate) series: f64,
}

impl Row {
    pub(crate) fn percent(&self) -> f64 {
        (self.series - self.plain) / self.plain * 100.0
    }
}

/// By how much a count may grow: the series' own promise.
pub(crate) const ALLOWED_PERCENT: f64 = 1.0;

const COMMAND: &str = "set -e
echo 4096 > /sys/kernel/debug/fault_around_bytes
for b in 64 4096; do
echo \"case pread-$b-tmpfs $(pread_bench -n 20000 -b $b /tmp/x)\"
echo \"case pread-$b-ext4 $(pread_bench -n 20000 -b $b /mnt/x)\"
done
mm_count /tmp/y | while read name unit value; do echo \"case $name-tmpfs x $unit $value\"; done
mm_count /mnt/y | while read name unit value; do echo \"case $name-ext4 x $unit $value\"; done
echo 16 > /proc/sys/vm/nr_hugepages
for a in '-a' '-L' '-aH' '-LH'; do
gup_test $a -m 32 -n 512 > log || { cat log; exit 1; }
sed -n 's/.*get:\\([0-9]*\\) put:\\([0-9]*\\) us.*/\\1 \\2/p' log | awk -v a=gup_test$a '{
printf \"case %s-get x ns %.2f\\ncase %s-put x ns %.2f\\n\", a, $1 * 1000 / 8192, a, $2 * 1000 / 8192 }'
done
";

/// A `case NAME ... ns VALUE` line.
fn parse(line: &str) -> Option<(String, f64)> {
    let mut words = line.strip_prefix("case ")?.split_whitespace();
    let name = words.next()?.to_string();
    let words: Vec<_> = words.collect();
    let [.., "ns", value] = words.as_slice() else {
        return None;
    };
    Some((name, value.parse().ok()?))
}

fn count(paths: &Paths, tree: Tree) -> Result<Vec<(String, f64)>> {
    let image = build::image(paths, tree, Config::Fast);
    let root = guest::root(paths, &[crate::selftests::gup_test(paths)?])?;
    let name = format!("count-{}", tree.name());
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: &name,
            image: &image,
            root: &root,
            command: COMMAND,
            // Where a program's mappings lie decides how many page tables a fork copies.
            append: "kunit.enable=0 norandmaps",
            accel: Accel::Icount,
            limit: Duration::from_secs(600),
            mem_mib: 1024,
            args: &[],
        },
    )?;
    if outcome.status != 0 {
        bail!("{name}: failed with status {}:\n{}", outcome.status, outcome.output);
    }
    let rows: Vec<_> = outcome.output.lines().filter_map(parse).collect();
    if rows.is_empty() {
        bail!("{name}: no counts in its output:\n{}", outcome.output);
    }
    Ok(rows)
}

/// Counts on both kernels and keeps the table.
///
/// # Errors
/// A kernel that does not boot, or a 64-byte read that got dearer than promised.
pub(crate) fn bench(paths: &Paths) -> Result<()> {
    prepare::prepare(paths)?;
    for tree in [Tree::Plain, Tree::Series] {
        build::build(paths, tree, Config::Fast)?;
    }
    let plain = count(paths, Tree::Plain)?;
    let series = count(paths, Tree::Series)?;
    let rows: Vec<_> = plain
        .into_iter()
        .filter_map(|(case, plain)| {
            let series = series.iter().find(|s| s.0 == case)?.1;
            Some(Row { case, plain, series })
        })
        .collect();
    println!("instructions (TCG with -icount; counts, not times):");
    for row in &rows {
        println!(
            "  {:<24} {:>12.2} {:>12.2} {:>+7.2} %",
            row.case,
            row.plain,
            row.series,
            row.percent()
        );
    }
    let text = serde_json::to_string_pretty(&rows)?;
    fs::write(paths.result("counts"), text).context("cannot keep the counts")?;
    let dear: Vec<_> = rows
        .iter()
        .filter(|r| !r.case.starts_with("gup_test") && r.percent() > ALLOWED_PERCENT)
        .map(|r| format!("{} ({:+.2} %)", r.case, r.percent()))
        .collect();
    if !dear.is_empty() {
        bail!("more than {ALLOWED_PERCENT} % more instructions than plain: {}", dear.join(", "));
    }
    threads(paths)
}

/// The published table: threads and processes on real cores.
fn threads(paths: &Paths) -> Result<()> {
    let image = build::image(paths, Tree::Series, Config::Fast);
    let root = guest::root(paths, &[])?;
    if !qemu::kvm_works(paths, &image, &root)? {
        println!(
            "no thread table: KVM boots nothing here, and emulated time means nothing; \
             `pinfold bench ref` has the two instruction sequences on this machine's cores"
        );
        return Ok(());
    }
    let mut table = String::new();
    for tree in [Tree::Plain, Tree::Series] {
        let image = build::image(paths, tree, Config::Fast);
        let outcome = qemu::boot(
            paths,
            &Boot {
                name: &format!("threads-{}", tree.name()),
                image: &image,
                root: &root,
                command: "for n in 1 2 4 8 16; do [ $n -le $(nproc) ] || break\n\
                          pread_bench -t $n -s 2 /tmp/x; pread_bench -p $n -s 2 /tmp/x; done",
                append: "kunit.enable=0",
                accel: Accel::Kvm,
                limit: Duration::from_secs(120),
                mem_mib: 1024,
                args: &[],
            },
        )?;
        let _ = write!(table, "{} (KVM):\n{}", tree.name(), outcome.output);
    }
    print!("{table}");
    fs::write(paths.cache.join("results/threads.txt"), table).context("cannot keep the table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_with_their_unit() {
        assert_eq!(
            parse("case pread-64-tmpfs pread block_bytes 64 ns 1239.30"),
            Some(("pread-64-tmpfs".into(), 1239.30))
        );
        assert_eq!(parse("case g-get x us 12"), None);
        assert_eq!(parse("case broken x s 12"), None);
        assert_eq!(parse("pread ns 1"), None);
    }

    #[test]
    fn the_difference_is_of_plain() {
        let row = Row { case: "c".into(), plain: 200.0, series: 201.0 };
        assert!((row.percent() - 0.5).abs() < 1e-9);
    }
}
