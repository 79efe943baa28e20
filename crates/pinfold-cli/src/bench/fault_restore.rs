//! `pinfold bench fault --cases restore`: several processes restore one snapshot at once.
//!
//! Here: the engines, the processes of a sample, their group, the table. The processes are `pinfold
//! serve` and `pinfold restore`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::cgroup::Group;
use super::common::Common;
use super::fault_touch::number_pages;
use super::limited::ALLOWANCE_BYTES;
use super::processes::this_program;
use super::report::{self, Object, Row};
use super::scratch::{self, Scratch};
use super::workers::Crew;
use crate::serve::record::Recorder;
use crate::serve::restore::{Order, chosen_of};
use crate::size::Size;

const CASE: &str = "restore";
const ENGINES: [&str; 4] = ["kernel-mmap", "uffd-copy", "pinfold", "pinfold-replay"];
const METRICS: [&str; 4] = ["first_ms", "complete_ms", "read_over_file", "memory_over_file"];

/// The seed of the working set, and which part of all pages it has.
const SEED: u64 = 12;
const SET_PART: u64 = 4;

/// What is touched.
const TOUCHES: [&str; 2] = ["all", "set"];

/// What the options say.
#[derive(Debug)]
pub struct Restore<'a> {
    /// Of all benchmarks.
    pub common: &'a Common,
    /// Where the snapshot is made.
    pub dir: Option<&'a Path>,
    /// Its length.
    pub snapshot_bytes: Size,
    /// How many processes restore it.
    pub clients: usize,
}

/// What a client tells.
#[derive(Debug, Deserialize)]
struct Told {
    first_ms: f64,
    complete_ms: f64,
    read_bytes: u64,
}

/// A process, killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Files of all samples.
struct Place {
    scratch: Scratch,
    /// For the socket and the working set.
    dir: tempfile::TempDir,
    bytes: u64,
    budget_bytes: u64,
    clients: usize,
    group: Result<Group, String>,
}

/// Measures it, and reports.
pub fn run(restore: &Restore<'_>) -> Result<()> {
    let Restore { common, clients, .. } = *restore;
    let bytes = restore.snapshot_bytes.0;
    ensure!((1..=256).contains(&clients), "--clients {clients}: must be from 1 to 256");
    ensure!(bytes.is_multiple_of(4096), "--snapshot-bytes: must be a multiple of 4 KiB");
    let engines = common.engines(&ENGINES)?;
    if engines.contains(&"uffd-copy") {
        report::ensure_memory(bytes * (clients as u64 + 2), "--snapshot-bytes")?;
    }
    let dir = restore.dir.map_or_else(scratch::disk_dir, Path::to_owned);
    scratch::ensure_direct(&dir)?;
    let budget_bytes = crate::serve::default_budget_bytes(bytes);
    let place = Place {
        scratch: Scratch::filled(&dir, bytes, number_pages)?,
        dir: tempfile::tempdir_in(&dir)?,
        bytes,
        budget_bytes,
        clients,
        group: Group::make(budget_bytes + (clients as u64 + 1) * ALLOWANCE_BYTES),
    };
    let (mut recorder, _) = Recorder::open(&place.set(), bytes)?;
    recorder.add(&chosen_of(SEED, Some(place.set_pages()), bytes / 4096, Order::Random))?;
    let cells: Vec<(&str, &str)> = TOUCHES
        .iter()
        .flat_map(|touch| engines.iter().map(move |engine| (*touch, *engine)))
        .collect();
    let samples = common.interleave(&cells, |(touch, engine)| {
        place.sample(touch, engine).with_context(|| format!("{CASE} {touch} {engine}"))
    })?;
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for ((touch, engine), samples) in cells.iter().zip(&samples) {
        let mut line = vec![format!("{touch} {engine}")];
        for (n, metric) in METRICS.into_iter().enumerate() {
            let of = samples.iter().map(|sample| sample[n]).collect();
            let row = Row::new(engine, CASE, Crew::Processes(clients), metric, of);
            let digits = if n < 2 { 1 } else { 3 };
            line.push(format!("{:.digits$}", row.median));
            let limit = place.group.as_ref().map_or("not limited", Group::kind);
            let limit = if *engine == "uffd-copy" { "not limited" } else { limit };
            rows.push(row.with("touch", *touch).with("file_bytes", bytes).with("limit", limit));
        }
        lines.push(line);
    }
    let header = ["touched, engine", "first ms", "complete ms", "read / file", "memory / file"];
    let table = report::table(header.map(str::to_owned).to_vec(), lines);
    let limited = match &place.group {
        Ok(group) => format!(
            "All but uffd-copy ran in a {} limited to {} and {} for each process.",
            group.kind(),
            Size(budget_bytes),
            Size(ALLOWANCE_BYTES)
        ),
        Err(why) => format!("NOT LIMITED: no control group ({why})."),
    };
    let told = format!(
        "{clients} processes restored a snapshot of {} in {} at once. {limited}\n{table}",
        Size(bytes),
        dir.display()
    );
    let params = serde_json::json!({
        "runs": common.runs,
        "snapshot_bytes": bytes,
        "budget_bytes": budget_bytes,
        "clients": clients,
        "set_pages": place.set_pages(),
        "limited": limited,
        "dir": dir,
    });
    common.publish(&told, &Object::new("fault", params, rows))
}

impl Place {
    fn set(&self) -> PathBuf {
        self.dir.path().join("set")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn set_pages(&self) -> u64 {
        (self.bytes / 4096 / SET_PART).max(1)
    }

    /// The metrics, in their order.
    fn sample(&self, touch: &str, engine: &str) -> Result<[f64; 4]> {
        self.scratch.forget()?;
        let group = self.group.as_ref().ok().filter(|_| engine != "uffd-copy");
        if let Some(group) = group {
            group.settle(ALLOWANCE_BYTES / 4);
        }
        let server =
            engine.starts_with("pinfold").then(|| self.serve(engine, group)).transpose()?;
        let mut clients = Vec::new();
        for _ in 0..self.clients {
            clients.push(self.client(touch, engine, group)?);
        }
        for (client, _) in &mut clients {
            let stdin = client.0.stdin.as_mut().context("a client has no input")?;
            stdin.write_all(b"\n")?;
        }
        let mut told = Vec::new();
        for (_, stdout) in &mut clients {
            let mut line = String::new();
            stdout.read_line(&mut line)?;
            told.push(serde_json::from_str::<Told>(&line).context("a client has failed")?);
        }
        let pids = clients.iter().map(|(client, _)| client).chain(&server).map(|it| it.0.id());
        let mut memory_bytes = 0;
        for pid in pids {
            memory_bytes += proportional_bytes(pid)?;
        }
        let mut read_bytes: u64 = told.iter().map(|told| told.read_bytes).sum();
        if let Some(server) = &server {
            read_bytes += number(&format!("/proc/{}/io", server.0.id()), "read_bytes:")?;
        }
        let worst = |of: fn(&Told) -> f64| told.iter().map(of).fold(0.0, f64::max);
        let over = |bytes: u64| bytes as f64 / self.bytes as f64;
        Ok([
            worst(|told| told.first_ms),
            worst(|told| told.complete_ms),
            over(read_bytes),
            over(memory_bytes),
        ])
    }

    fn serve(&self, engine: &str, group: Option<&Group>) -> Result<Process> {
        let mut serve = this_program()?;
        serve.arg("serve").arg(self.scratch.path()).arg("--socket").arg(self.socket());
        serve.args(["--budget", &self.budget_bytes.to_string()]);
        if engine == "pinfold-replay" {
            serve.arg("--replay").arg(self.set());
        }
        let child = serve.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut server = Process(child.context("cannot start a server")?);
        enter(group, &server.0)?;
        let stderr = server.0.stderr.take().context("a server has no standard error")?;
        let mut stderr = BufReader::new(stderr);
        let mut line = String::new();
        stderr.read_line(&mut line)?;
        ensure!(line.starts_with("serving"), "the server said: {}", line.trim());
        // What it says later must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Ok(server)
    }

    fn client(
        &self,
        touch: &str,
        engine: &str,
        group: Option<&Group>,
    ) -> Result<(Process, BufReader<ChildStdout>)> {
        let mut client = this_program()?;
        client.arg("restore").arg("--hold").arg("--socket").arg(self.socket());
        if touch == "set" {
            client.args(["--order", "random", "--seed", &SEED.to_string()]);
            client.args(["--pages", &self.set_pages().to_string()]);
        }
        if !engine.starts_with("pinfold") {
            let by = if engine == "uffd-copy" { "copy" } else { "mmap" };
            client.arg("--of").arg(self.scratch.path()).args(["--by", by]);
        }
        let child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut client = Process(child.context("cannot start a client")?);
        enter(group, &client.0)?;
        let stdout = client.0.stdout.take().context("a client has no output")?;
        Ok((client, BufReader::new(stdout)))
    }
}

/// Puts a process that has not begun into the group.
fn enter(group: Option<&Group>, child: &Child) -> Result<()> {
    let Some(group) = group else { return Ok(()) };
    std::fs::write(group.dir().join("cgroup.procs"), child.id().to_string())
        .context("a process cannot enter its control group")
}

/// Memory of a process, of which what others map, too, counts in part: all together, each page
/// once.
fn proportional_bytes(pid: u32) -> Result<u64> {
    Ok(number(&format!("/proc/{pid}/smaps_rollup"), "Pss:")? << 10)
}

fn number(path: &str, key: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| path.to_owned())?;
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("{path} has no {key}"))
}
