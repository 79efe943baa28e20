//! `lab read-sizes`: how many bytes a program's reads of cached files return. bpftrace counts
//! them on this machine's own kernel (`trace/read_sizes.bt`).

use crate::paths::Paths;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::env;
use std::fmt::Write as _;
use std::process::{Command, Stdio};

/// The classes of `read_sizes.bt`: the most bytes of a read in each. The last has no limit.
const CLASSES: [u64; 5] = [64, 256, 1024, 4096, 0];

/// What one program has read.
#[derive(Debug, Default, PartialEq)]
struct Sizes {
    /// Reads of one page in each class, but for the last, and their bytes.
    reads: [u64; CLASSES.len()],
    bytes: [u64; CLASSES.len()],
    /// Reads of two pages, which are in no class, and their bytes.
    crossing: u64,
    crossing_bytes: u64,
    /// Reads for which something was read in.
    missed: u64,
}

/// Reads what bpftrace prints: a line of JSON for each map.
///
/// # Errors
/// If a line is not of that form, or there is an unknown class.
fn parse(text: &str) -> Result<Sizes> {
    let mut sizes = Sizes::default();
    for line in text.lines().filter(|l| l.starts_with("{\"type\"")) {
        let line: Value = serde_json::from_str(line).context("bpftrace prints no JSON")?;
        let Some(data) = (line["type"] == "map").then(|| line["data"].as_object()).flatten() else {
            continue;
        };
        for (map, value) in data {
            let one = match map.as_str() {
                "@missed" => Some(&mut sizes.missed),
                "@crossing" => Some(&mut sizes.crossing),
                "@crossing_bytes" => Some(&mut sizes.crossing_bytes),
                _ => None,
            };
            if let Some(one) = one {
                *one = value.as_u64().with_context(|| format!("{map} is no number"))?;
                continue;
            }
            let to = match map.as_str() {
                "@reads" => &mut sizes.reads,
                "@bytes" => &mut sizes.bytes,
                _ => continue,
            };
            for (class, number) in value.as_object().with_context(|| format!("{map} is no map"))? {
                let at = CLASSES.iter().position(|c| c.to_string() == *class);
                let at = at.with_context(|| format!("{map} has an unknown class {class}"))?;
                to[at] = number.as_u64().with_context(|| format!("{map} has no number"))?;
            }
        }
    }
    Ok(sizes)
}

/// The head of the table.
const HEAD: &str = "| program | cached reads | not cached | in one page, at most 64 | 256 | 1024 \
                    | 4096 | in two, at most 4096 | bytes of those up to 1024 |\n\
                    |---|---:|---:|---:|---:|---:|---:|---:|---:|\n";

/// A part of a whole, in percent.
fn share(part: u64, all: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let percent = if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 };
    format!("{percent:.1} %")
}

/// The row of the table. Each share includes those before it.
///
/// # Errors
/// If nothing was read.
fn row(name: &str, sizes: &Sizes) -> Result<String> {
    let all = sizes.reads.iter().sum::<u64>() + sizes.crossing;
    if all == 0 {
        bail!("{name} read no cached file");
    }
    let mut text = format!("| {name} | {all} | {} |", sizes.missed);
    let mut up_to = 0;
    for reads in &sizes.reads[..CLASSES.len() - 1] {
        up_to += reads;
        let _ = write!(text, " {} |", share(up_to, all));
    }
    let _ = write!(text, " {} |", share(sizes.crossing, all));
    let short = sizes.bytes[..3].iter().sum();
    let bytes = sizes.bytes.iter().sum::<u64>() + sizes.crossing_bytes;
    let _ = writeln!(text, " {} |", share(short, bytes));
    Ok(text)
}

/// A command line for bpftrace, which splits it at spaces, and refuses a program that is in two
/// folders of `PATH`, as where `/bin` is `/usr/bin`.
///
/// # Errors
/// If an argument would not stay whole.
fn command_line(command: &[String]) -> Result<String> {
    let plain = |word: &String| {
        !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "'\"\\".contains(c))
    };
    if let Some(word) = command.iter().find(|word| !plain(word)) {
        bail!("`{word}`: bpftrace splits commands at spaces; put this one into a script");
    }
    let mut words = command.to_vec();
    let folders = env::var_os("PATH").unwrap_or_default();
    if let Some(program) = words.first_mut().filter(|program| !program.contains('/')) {
        let found = env::split_paths(&folders).map(|f| f.join(&program)).find(|f| f.is_file());
        let found = found.with_context(|| format!("no program {program}"))?;
        *program = found.to_string_lossy().into_owned();
    }
    Ok(words.join(" "))
}

/// `lab read-sizes`: runs a program, and prints how much its reads of cached files return.
///
/// # Errors
/// If bpftrace or the program does not run, or nothing was read.
pub(crate) fn read_sizes(paths: &Paths, name: Option<&str>, command: &[String]) -> Result<()> {
    let line = command_line(command)?;
    let out = paths.log("read-sizes");
    let mut bpftrace = Command::new("bpftrace");
    bpftrace
        .args(["-f", "json", "-o"])
        .arg(&out)
        .arg(paths.kernel.join("lab/trace/read_sizes.bt"))
        .args(["-c", &line])
        // The largest number of threads and reads that are remembered at a time.
        .env("BPFTRACE_MAP_KEYS_MAX", "65536");
    let done = bpftrace
        .stdout(Stdio::null())
        .output()
        .context("cannot run bpftrace, which this needs, as root, and tracepoints of filemap")?;
    if !done.status.success() {
        bail!("bpftrace fails ({}):\n{}", done.status, String::from_utf8_lossy(&done.stderr));
    }
    let text =
        std::fs::read_to_string(&out).with_context(|| format!("cannot read {}", out.display()))?;
    let name = name.map_or_else(|| command.join(" "), str::to_string);
    print!("{HEAD}{}", row(&name, &parse(&text)?)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = r#"{"type": "attached_probes", "data": {"probes": 9}}

{"type": "map", "data": {"@bytes": {"64": 60, "0": 8192, "1024": 2000}}}
{"type": "map", "data": {"@missed": 9}}
{"type": "map", "data": {"@crossing": 2}}
{"type": "map", "data": {"@crossing_bytes": 5000}}
{"type": "map", "data": {"@reads": {"64": 3, "0": 1, "1024": 4}}}
"#;

    #[test]
    fn classes_are_summed_up() {
        let sizes = parse(PRINTED).unwrap();
        assert_eq!(sizes.reads, [3, 0, 4, 0, 1]);
        assert_eq!(sizes.missed, 9);
        assert_eq!(
            row("python3", &sizes).unwrap(),
            "| python3 | 10 | 9 | 30.0 % | 30.0 % | 70.0 % | 70.0 % | 20.0 % | 13.5 % |\n"
        );
        assert_eq!(HEAD.lines().next().unwrap().matches('|').count(), 10);
    }

    #[test]
    fn what_bpftrace_should_not_print_is_an_error() {
        parse(&PRINTED.replace("1024", "1000")).unwrap_err();
        parse(&PRINTED.replace("{\"probes\": 9}}", "{")).unwrap_err();
        row("x", &parse("").unwrap()).unwrap_err();
    }

    #[test]
    fn an_argument_with_a_space_is_refused() {
        let line = |words: &[&str]| {
            command_line(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(line(&["/x/git", "log"]).unwrap(), "/x/git log");
        assert!(line(&["sh", "-c"]).unwrap().ends_with("/sh -c"));
        line(&["no-such-program"]).unwrap_err();
        for word in ["a b", "a'", "", "a\\b"] {
            line(&["sh", "-c", word]).unwrap_err();
        }
    }
}
