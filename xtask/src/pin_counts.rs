//! Why pinning by the folio is so much faster than by the page: instructions and cache lines,
//! counted by valgrind on the shipped code, which does not depend on the machine or on what else it
//! does.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use xshell::{Shell, cmd};

/// What is pinned in the pass that is counted: 16384 pages.
const BYTES: u64 = 64 << 20;
const PAGES: f64 = (BYTES / 4096) as f64;

/// A half of a pass: its name, and the functions of `bench/pin.rs` that it is.
const HALVES: [(&str, &str); 2] = [("get", "*get_all*"), ("put", "*put_all*")];

/// What callgrind counted in one half.
#[derive(Debug, Clone, Copy)]
struct Counts {
    instructions: f64,
    /// Loads and stores.
    accesses: f64,
    /// Lines that were not in the simulated cache, which was full of others when the half began.
    lines: f64,
}

/// Counts all, and prints the table that `docs/pin.md` explains.
pub(crate) fn run(sh: &Shell) -> Result<()> {
    cmd!(sh, "cargo build --quiet --release -p pinfold-cli --features bench").run()?;
    let mut table = String::new();
    for case in ["2M", "4K"] {
        for (half, functions) in HALVES {
            let (walk, folios) = count(sh, "pinfold-per-page", case, functions)?;
            let (batched, same) = count(sh, "pinfold", case, functions)?;
            ensure!(folios == same, "{folios} and {same} folios were pinned in case {case}");
            for (engine, counts) in [("page by page", walk), ("batched", batched)] {
                writeln!(
                    table,
                    "| {case} | {half} | {engine} | {:.3} | {:.3} | {:.4} | {:.4} |",
                    counts.instructions / PAGES,
                    counts.accesses / PAGES,
                    counts.lines / PAGES,
                    folios as f64 / PAGES
                )?;
            }
            writeln!(
                table,
                "| {case} | {half} | the first over the second | {:.2} | {:.2} | {:.2} | 1 |",
                walk.instructions / batched.instructions,
                walk.accesses / batched.accesses,
                walk.lines / batched.lines
            )?;
        }
    }
    println!("Per page of {PAGES} that were pinned in calls of 512:\n");
    println!(
        "| case | half | way | instructions | loads and stores | lines, all | of these, the frame table's |"
    );
    println!("|---|---|---|---|---|---|---|\n{table}");
    Ok(())
}

/// One pass under callgrind, of which `functions` are counted; and how many folios it pinned.
fn count(sh: &Shell, engine: &str, case: &str, functions: &str) -> Result<(Counts, u64)> {
    let dir = sh.create_temp_dir()?;
    let out = dir.path().join("counts");
    let (out_file, toggle) = (
        format!("--callgrind-out-file={}", out.display()),
        format!("--toggle-collect={functions}"),
    );
    let bytes = BYTES.to_string();
    // The last-level cache takes a pass's lines, but not the 16 MiB that are read before it.
    let caches = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"];
    let log = dir.path().join("log");
    let log_file = format!("--log-file={}", log.display());
    let folios = cmd!(
        sh,
        "valgrind --tool=callgrind --collect-atstart=no {caches...} {log_file} {out_file} {toggle}
         target/release/pinfold bench pin --once {engine} --cases {case} --bytes {bytes}"
    )
    .quiet()
    .read()
    .with_context(|| sh.read_file(&log).unwrap_or_default())?;
    let folios = folios.trim().parse().with_context(|| format!("no number of folios: {folios}"))?;
    let text = sh.read_file(&out)?;
    Ok((parse(&text).with_context(|| format!("callgrind's output for {engine}, {case}"))?, folios))
}

/// Reads the events and their totals out of callgrind's file.
fn parse(text: &str) -> Result<Counts> {
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.with_context(|| format!("no line {name}"))
    };
    let totals = line("totals: ").or_else(|_| line("summary: "))?.split_whitespace();
    let named: Vec<(&str, &str)> = line("events: ")?.split_whitespace().zip(totals).collect();
    let of = |event: &str| -> Result<f64> {
        let value = named.iter().find(|(name, _)| *name == event).map_or("0", |(_, value)| value);
        value.parse().with_context(|| format!("{event} is {value}"))
    };
    let counts = Counts {
        instructions: of("Ir")?,
        accesses: of("Dr")? + of("Dw")?,
        lines: of("DLmr")? + of("DLmw")?,
    };
    ensure!(counts.instructions > 0.0, "nothing was counted: was the function inlined?");
    Ok(counts)
}
