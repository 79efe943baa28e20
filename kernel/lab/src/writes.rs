//! `lab writes` counts the writes to the struct page of a file's page for each 64-byte read of
//! it: to the reference count, and to the rest of the line, such as the folio lock. A plugin of
//! QEMU's emulator counts them (`kernel/lab/plugin/line_writes.c`).

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot};
use crate::{build, cc, guest, kept, prepare};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Where the kernel's array of struct pages begins with four-level page tables. A struct page has
/// 64 bytes.
const ARRAY: u64 = 0xffff_ea00_0000_0000;
/// The guest's memory, which the array is for.
const MEM_MIB: u32 = 1024;

/// The reads in the guest: `pread_bench -n` makes five rounds.
const READS: u32 = 5 * ROUND;
const ROUND: u32 = 20_000;

/// The offset of `_refcount` in a struct page.
const COUNT_AT: u32 = 52;

/// Writes for each read.
#[derive(Debug, PartialEq)]
struct PerRead {
    count: f64,
    rest: f64,
}

/// The name under which the table is kept.
pub(crate) const TABLE: &str = "writes";

/// A row of the table: the writes for each read.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) system: String,
    pub(crate) kernel: String,
    pub(crate) count: f64,
    pub(crate) rest: f64,
}

/// So many writes for each short read are none: a read that writes does so once at least.
const HALF: f64 = 0.5;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    /// With a reference to the folio.
    Counted,
    /// Without one; only the patched kernel has such reads.
    Short,
}

/// Reads the plugin's output, a line `OFFSET WRITES` for each offset.
///
/// # Errors
/// If the count was not written to twice for each counted read, to get and to put: then it is of
/// another page than the one that was read, or not of writes. If any struct page was written to
/// for each short read.
fn parse(text: &str, way: Way) -> Result<PerRead> {
    let mut of = PerRead { count: 0.0, rest: 0.0 };
    for line in text.lines() {
        let (offset, writes) = line.split_once(' ').context("a line without two numbers")?;
        let per_read = writes.parse::<f64>()? / f64::from(READS);
        if offset.parse::<u32>()? == COUNT_AT {
            of.count += per_read;
        } else {
            of.rest += per_read;
        }
    }
    match way {
        Way::Counted if !(1.9..2.1).contains(&of.count) => {
            bail!("{:.2} writes to the count for each read, not two:\n{text}", of.count)
        }
        Way::Short if text.is_empty() || of.count + of.rest > HALF => {
            bail!("{:.2} writes to a struct page for each read:\n{text}", of.count + of.rest)
        }
        // What is left was written to by something else, such as the slab's page of some cache.
        Way::Short => Ok(PerRead { count: 0.0, rest: 0.0 }),
        Way::Counted => Ok(of),
    }
}

fn plugin(paths: &Paths) -> Result<PathBuf> {
    let source = paths.kernel.join("lab/plugin/line_writes.c");
    let target = paths.guest("line_writes.so");
    let text = build::read(&source)?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&target)
        .arg(&source);
    cc::compile("line_writes", &text, &mut gcc, &target, &paths.log("compile-line_writes"))?;
    Ok(target)
}

fn count(paths: &Paths, tree: Tree, dir: &str, way: Way) -> Result<PerRead> {
    let plugin = plugin(paths)?;
    let out = paths.log("line_writes");
    prepare::remove_file(&out)?;
    let last = ARRAY + u64::from(MEM_MIB) * 256 * 64;
    let argument =
        format!("{},out={},first={ARRAY:#x},last={last:#x}", plugin.display(), out.display());
    let name = format!("writes-{}", tree.name());
    let switch = match way {
        Way::Counted => "",
        Way::Short => "echo 1 > /proc/sys/vm/short_reads && ",
    };
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: &name,
            image: &build::image(paths, tree, Config::Fast),
            root: &guest::root(paths, &[])?,
            command: &format!("{switch}pread_bench -n {ROUND} -b 64 {dir}/x"),
            append: "kunit.enable=0",
            accel: Accel::Icount,
            limit: Duration::from_secs(300),
            mem_mib: MEM_MIB,
            args: &["-cpu", "max,la57=off", "-plugin", &argument],
        },
    )?;
    if outcome.status != 0 {
        bail!("{name}: failed with status {}:\n{}", outcome.status, outcome.output);
    }
    parse(&build::read(&out)?, way).with_context(|| name)
}

/// `lab writes`: counts on both kernels, on tmpfs and on ext4.
///
/// # Errors
/// If a kernel does not boot, or the plugin has counted another page.
pub(crate) fn writes(paths: &Paths) -> Result<()> {
    prepare::prepare(paths)?;
    for tree in [Tree::Plain, Tree::Series] {
        build::build(paths, tree, Config::Fast)?;
    }
    let mut kept = Vec::new();
    println!("writes to the struct page for each 64-byte read: to the count, and elsewhere");
    for (system, dir) in [("tmpfs", "/tmp"), ("ext4", "/mnt")] {
        for (tree, way, row) in [
            (Tree::Plain, Way::Counted, "plain"),
            (Tree::Series, Way::Counted, "series"),
            (Tree::Series, Way::Short, "series, short reads"),
        ] {
            let of = count(paths, tree, dir, way)?;
            println!("  {system:<6} {row:<20} {:>6.2} {:>6.2}", of.count, of.rest);
            kept.push(Row {
                system: system.into(),
                kernel: row.into(),
                count: of.count,
                rest: of.rest,
            });
        }
    }
    kept::keep(paths, TABLE, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_to_the_count_are_told_from_others() {
        let of = parse("0 200010\n52 200000\n", Way::Counted).unwrap();
        assert!((of.count - 2.0).abs() < 0.001 && (of.rest - 2.0).abs() < 0.001, "{of:?}");
        assert!(parse("52 200000\n", Way::Counted).unwrap().rest < 0.001);
    }

    #[test]
    fn another_page_is_refused() {
        for text in ["", "0 200000\n", "52 100000\n0 300000\n", "52 400000\n", "52\n", "52 x\n"] {
            parse(text, Way::Counted).unwrap_err();
        }
    }

    #[test]
    fn a_short_read_writes_to_no_struct_page() {
        let of = parse("0 3\n32 13726\n40 13729\n52 3\n", Way::Short).unwrap();
        assert_eq!(of, PerRead { count: 0.0, rest: 0.0 });
        for text in ["", "0 100000\n", "52 100000\n", "0 26000\n52 26000\n"] {
            parse(text, Way::Short).unwrap_err();
        }
    }
}
