//! Programs that know nothing of Pinfold, on a file system whose data goes through it: the example
//! `fuse`. Each judges by itself whether what it reads is what it wrote.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use xshell::{Cmd, Shell, cmd};

/// Run fsx, fio, stress-ng, sqlite3 and git on a file system whose data goes through the cache
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct ProgramsArgs {
    /// Run only this program; may be given more than once
    #[arg(long, value_name = "NAME", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(PROGRAMS.iter().map(|program| program.name)))]
    only: Vec<String>,
    /// Where the files are, on a disk
    #[arg(long, value_name = "DIR", default_value = "target/tmp")]
    dir: PathBuf,
    /// Write the results as JSON to FILE; to standard output if FILE is - (the table then goes to
    /// standard error)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug)]
struct Program {
    name: &'static str,
    command: &'static str,
    what: &'static str,
    /// Where it comes from.
    from: &'static str,
    run: fn(&Shell, &mut Ground) -> Result<()>,
    /// Looks at what it has left in the folder, when nothing is mounted any more.
    after: fn(&Shell, &Path) -> Result<()>,
}

const PROGRAMS: [Program; 6] = [
    Program {
        name: "fsx",
        command: "fsx",
        what: "one file: reads, writes, maps, cuts, holes, syncs at random",
        from: "cargo install fsx",
        run: fsx,
        after: |_, _| Ok(()),
    },
    Program {
        name: "fio",
        command: "fio",
        what: "writes at random, direct and not, by maps and at once, then checks sums",
        from: "Debian's fio",
        run: fio,
        after: |_, _| Ok(()),
    },
    Program {
        name: "stress-ng",
        command: "stress-ng",
        what: "hdd, aio, copies and renames by some processes at once",
        from: "Debian's stress-ng",
        run: stress_ng,
        after: |_, _| Ok(()),
    },
    Program {
        name: "sqlite3",
        command: "sqlite3",
        what: "transactions with a journal and a log, compared with a database in memory",
        from: "Debian's sqlite3",
        run: sqlite,
        after: check_databases,
    },
    Program {
        name: "sqlite3-killed",
        command: "sqlite3",
        what: "transactions; the file system is killed, and what was committed is there",
        from: "Debian's sqlite3",
        run: sqlite_killed,
        after: |_, _| Ok(()),
    },
    Program {
        name: "git",
        command: "git",
        what: "a clone of this repository, packed anew, and checked",
        from: "Debian's git",
        run: git,
        after: check_clone,
    },
];

/// How the file system is mounted: the name of it, and the example's arguments.
const MOUNTS: [(&str, &[&str]); 2] =
    [("64 MiB", &["--budget", "64"]), ("2 MiB, uncached", &["--budget", "2", "--uncached"])];

/// With this, bytes leave memory unwritten.
const MUTANT: &str = "DirtUnmarked";

/// For each program on each mount.
const SECONDS_MAX: &str = "600";

fn after_help() -> String {
    let line = |it: &Program| format!("  {:<14} {} ({})\n", it.name, it.what, it.from);
    let lines: String = PROGRAMS.iter().map(line).collect();
    format!(
        "Builds crates/pinfold/examples/fuse.rs, mounts it, and runs each program that is there, on\n\
         each mount; then again on a cache that is broken on purpose, where each has to notice.\n\
         `uncached`: the kernel keeps nothing, so that each read and write comes to the cache.\n\
         docs/durability.md says more. Takes root or Debian's fuse3, and some minutes.\n\n\
         Programs:\n{lines}\nExample: cargo xtask programs --only sqlite3,git"
    )
}

/// A folder with its mount.
struct Ground {
    folder: PathBuf,
    /// Where the folder is shown.
    shown: PathBuf,
    /// What the programs are told by files.
    beside: PathBuf,
    command: Command,
    server: Option<Child>,
}

impl Ground {
    fn mount(server: &Path, dir: &Path, args: &[&str], mutant: Option<&str>) -> Result<Self> {
        let at = |name: &str| dir.join(name);
        let (folder, shown, beside) = (at("folder"), at("shown"), at("beside"));
        for dir in [&folder, &shown, &beside] {
            fs::create_dir_all(dir)?;
        }
        let log = File::create(at("server.log"))?;
        let mut command = Command::new(server);
        command.args(args).args([&folder, &shown]).stderr(log);
        if let Some(mutant) = mutant {
            command.env("PINFOLD_MUTANT", mutant);
        }
        let mut ground = Ground { folder, shown, beside, command, server: None };
        if let Err(why) = ground.start() {
            // It has ended by itself, mostly, and has said more.
            let _ = ground.unmount();
            return Err(why.context(said_by_server(dir)));
        }
        Ok(ground)
    }

    fn start(&mut self) -> Result<()> {
        self.server = Some(self.command.spawn().context("cannot start the file system")?);
        let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev);
        for _ in 0..1000 {
            if device(&self.shown)? != device(&self.folder)? {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("nothing was mounted")
    }

    /// What was not synced is lost.
    fn kill(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        server.kill()?;
        server.wait()?;
        self.take_off()
    }

    /// What is mounted there, be it in use or not.
    fn take_off(&self) -> Result<()> {
        let root = rustix::process::geteuid().is_root();
        let unmount: &[&str] = if root { &["umount", "-l"] } else { &["fusermount3", "-uz"] };
        let ended = Command::new(unmount[0]).arg(unmount[1]).arg(&self.shown).status()?;
        ensure!(ended.success(), "cannot unmount {}", self.shown.display());
        Ok(())
    }

    /// The file system ends by a signal, and has made all durable then.
    fn unmount(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let pid = Pid::from_child(&server);
        let since = Instant::now();
        let _ = kill_process(pid, Signal::TERM);
        while since.elapsed() < Duration::from_secs(60) {
            if let Some(ended) = server.try_wait()? {
                ensure!(ended.success(), "the file system has ended with {ended}");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        server.kill()?;
        server.wait()?;
        self.take_off()?;
        bail!("the file system did not end within a minute")
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Err(why) = self.unmount() {
            eprintln!("{why:#}");
        }
    }
}

fn said_by_server(dir: &Path) -> String {
    fs::read_to_string(dir.join("server.log")).unwrap_or_default().trim().to_owned()
}

impl Default for ProgramsArgs {
    fn default() -> Self {
        ProgramsArgs { only: Vec::new(), dir: "target/tmp".into(), json: None }
    }
}

/// What came of a program on a mount.
struct Row {
    program: &'static Program,
    mount: String,
    /// `None`: it is not there.
    ended: Option<Result<()>>,
    /// With the mutant, it has to fail.
    has_to_fail: bool,
    seconds: f64,
}

impl Row {
    fn result(&self) -> String {
        match (&self.ended, self.has_to_fail) {
            (None, _) => format!("not there: {}", self.program.from),
            (Some(Ok(())), false) => "passed".to_owned(),
            (Some(Err(_)), false) => "FAILED".to_owned(),
            (Some(Ok(())), true) => "NOT NOTICED".to_owned(),
            (Some(Err(_)), true) => "noticed".to_owned(),
        }
    }

    fn is_wrong(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| ended.is_ok() == self.has_to_fail)
    }
}

/// Builds, mounts, runs, and prints the table.
///
/// # Errors
/// If nothing can be mounted, a program fails, or one does not notice the mutant.
pub(crate) fn run(sh: &Shell, args: &ProgramsArgs) -> Result<()> {
    let dir = sh.current_dir().join(&args.dir).join(format!("programs-{}", std::process::id()));
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let (server, broken) = (build(sh, &dir, &[])?, build(sh, &dir, &["--features", "mutants"])?);
    let chosen =
        |it: &&Program| args.only.is_empty() || args.only.iter().any(|name| name == it.name);
    let mut rows = Vec::new();
    for program in PROGRAMS.iter().filter(chosen) {
        for (mount, given) in &MOUNTS {
            rows.push(run_one(sh, program, &server, &dir, (mount, given, None)));
        }
        let (mount, given) = &MOUNTS[1];
        rows.push(run_one(sh, program, &broken, &dir, (mount, given, Some(MUTANT))));
    }
    fs::remove_dir_all(&dir)?;
    let text = text(&rows);
    let object = json!({ "rows": rows.iter().map(as_json).collect::<Vec<_>>() });
    match &args.json {
        None => print!("{text}"),
        Some(path) if path == Path::new("-") => {
            eprint!("{text}");
            println!("{object:#}");
        }
        Some(path) => {
            print!("{text}");
            fs::write(path, format!("{object:#}\n"))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    let wrong = rows.iter().filter(|row| row.is_wrong()).count();
    ensure!(wrong == 0, "{wrong} of {} runs did not end as they have to", rows.len());
    ensure!(rows.iter().any(|row| row.ended.is_some()), "none of the programs is there");
    Ok(())
}

/// Returns where the program is.
fn build(sh: &Shell, dir: &Path, features: &[&str]) -> Result<PathBuf> {
    cmd!(sh, "cargo build --quiet -p pinfold --example fuse {features...}").quiet().run()?;
    // Of two builds, the second takes the place of the first.
    let copy = dir.join(format!("fuse{}", features.len()));
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into());
    fs::copy(sh.current_dir().join(target).join("debug/examples/fuse"), &copy)?;
    Ok(copy)
}

fn run_one(
    sh: &Shell,
    program: &'static Program,
    server: &Path,
    dir: &Path,
    (mount, given, mutant): (&str, &[&str], Option<&str>),
) -> Row {
    let mount = mutant.map_or(mount.to_owned(), |mutant| format!("{mount}, {mutant}"));
    if std::io::stderr().is_terminal() {
        eprintln!("{} on {mount}", program.name);
    }
    let mut row = Row { program, mount, ended: None, has_to_fail: mutant.is_some(), seconds: 0.0 };
    let which =
        cmd!(sh, "which").arg(program.command).quiet().ignore_stdout().ignore_stderr().run();
    if which.is_err() {
        return row;
    }
    let since = Instant::now();
    let dir = dir.join("run");
    row.ended = Some(Ground::mount(server, &dir, given, mutant).and_then(|mut ground| {
        (program.run)(sh, &mut ground)?;
        ground.unmount()?;
        let said = said_by_server(&dir);
        ensure!(said.is_empty(), "the file system has said: {said}");
        (program.after)(sh, &ground.folder)
    }));
    row.seconds = since.elapsed().as_secs_f64();
    if let Err(why) = fs::remove_dir_all(&dir) {
        row.ended = Some(Err(anyhow!("cannot remove {}: {why}", dir.display())));
    }
    row
}

fn text(rows: &[Row]) -> String {
    let header = ["program", "cache", "result", "seconds", "what"].map(str::to_owned);
    let cells = |row: &Row| {
        let seconds = row.ended.as_ref().map_or(String::new(), |_| format!("{:.1}", row.seconds));
        let Program { name, what, .. } = row.program;
        [(*name).to_owned(), row.mount.clone(), row.result(), seconds, (*what).to_owned()]
    };
    let mut lines = vec![header];
    lines.extend(rows.iter().map(cells));
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    lines.insert(1, widths.map(|width| "-".repeat(width)));
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("| {cell:width$} "));
        text.extend(cells.chain(["|\n".to_owned()]));
    }
    for row in rows.iter().filter(|row| row.is_wrong()) {
        if let Some(Err(why)) = &row.ended {
            // Writing to a string does not fail.
            let _ = write!(text, "\n{} on {}: {why:#}\n", row.program.name, row.mount);
        }
    }
    text
}

fn as_json(row: &Row) -> Value {
    let why = row.ended.as_ref().and_then(|ended| Some(format!("{:#}", ended.as_ref().err()?)));
    json!({ "program": row.program.name, "cache": row.mount, "result": row.result(),
        "seconds": row.seconds, "why": why })
}

/// Error: the end of what it has said.
fn carry_out(command: Cmd<'_>) -> Result<String> {
    let output = command.quiet().ignore_status().output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let lines: Vec<&str> = said.lines().collect();
    let last = lines[lines.len().saturating_sub(12)..].join("\n");
    bail!("{}:\n{last}", output.status)
}

fn fsx(sh: &Shell, ground: &mut Ground) -> Result<()> {
    let (config, artifacts) = (ground.beside.join("fsx.toml"), &ground.beside);
    fs::write(
        &config,
        "flen = 6000000\n\
         [opsize]\nmax = 65536\n\
         [weights]\nclose_open = 1\ninvalidate = 1\ntruncate = 5\nfsync = 2\nfdatasync = 2\n\
         read = 10\nwrite = 10\nmapread = 5\nmapwrite = 5\nsendfile = 2\ncopy_file_range = 2\n\
         punch_hole = 2\n",
    )?;
    for seed in ["1", "2"] {
        let file = ground.shown.join(format!("fsx-{seed}"));
        carry_out(
            cmd!(sh, "timeout {SECONDS_MAX} fsx -q -f {config} -P {artifacts} -N 4000 -S {seed}")
                .arg(file),
        )?;
    }
    Ok(())
}

fn fio(sh: &Shell, ground: &mut Ground) -> Result<()> {
    let jobs = ground.beside.join("fio");
    fs::write(
        &jobs,
        "[global]\nsize=24m\nverify=crc32c\nverify_fatal=1\nrandrepeat=1\nrw=randwrite\n\
         [buffered]\nbs=4k\nfsync=16\n\
         [unaligned]\nstonewall\nbsrange=512-64k\nbs_unaligned=1\nfsync=16\n\
         [direct]\nstonewall\nbs=4k\ndirect=1\nfsync=16\n\
         [at-once]\nstonewall\nbsrange=4k-32k\ndirect=1\nioengine=libaio\niodepth=16\nnumjobs=2\n\
         [mapped]\nstonewall\nbs=4k\nioengine=mmap\nfsync=64\n\
         [mixed]\nstonewall\nrw=randrw\nbsrange=4k-16k\nverify_backlog=256\n",
    )?;
    // It leaves its own state where it is started.
    let _beside = sh.push_dir(&ground.beside);
    let dir = &ground.shown;
    carry_out(cmd!(sh, "timeout {SECONDS_MAX} fio --directory {dir} {jobs}")).map(drop)
}

fn stress_ng(sh: &Shell, ground: &mut Ground) -> Result<()> {
    let dir = &ground.shown;
    for what in [
        "--hdd 2 --hdd-bytes 16m --hdd-opts wr-rnd,rd-seq,fsync,iovec",
        "--hdd 2 --hdd-bytes 16m --hdd-opts wr-seq,rd-rnd --aio 2",
        "--rename 1 --link 1 --symlink 1 --dentry 1 --copy-file 1 --seek 1 --sync-file 1",
    ] {
        let what = what.split(' ');
        let common = ["--verify", "--timeout", "4"];
        carry_out(cmd!(
            sh,
            "timeout {SECONDS_MAX} stress-ng {common...} {what...} --temp-path {dir}"
        ))?;
    }
    Ok(())
}

/// Transactions, some of which are rolled back; the same in each run.
fn transactions() -> String {
    let mut state = 1_u32;
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut sql = String::from("create table t(id integer primary key, a text, b text);\n");
    sql += "create index of_a on t(a);\n";
    for _ in 0..1500 {
        sql += "begin;\n";
        for _ in 0..4 {
            let (id, bytes, n) = (random(3000), random(3000), random(1000));
            // As above.
            let _ = match random(10) {
                0..6 => writeln!(
                    sql,
                    "insert or replace into t values({id}, 'a{n}', \
                     replace(hex(zeroblob({bytes})), '00', '{n}.'));"
                ),
                6 | 7 => writeln!(sql, "delete from t where id = {id};"),
                _ => writeln!(sql, "update t set a = a || {n} where id between {id} and {id} + 5;"),
            };
        }
        sql += if random(10) == 0 { "rollback;\n" } else { "commit;\n" };
    }
    sql
}

const DATABASES: [(&str, &str); 2] = [("journal.db", "delete"), ("log.db", "wal")];

fn sqlite(sh: &Shell, ground: &mut Ground) -> Result<()> {
    let transactions = transactions();
    for (name, mode) in DATABASES {
        let path = ground.shown.join(name);
        let sql = format!("pragma journal_mode = {mode}; pragma cache_size = 50;\n{transactions}");
        let run = cmd!(sh, "timeout {SECONDS_MAX} sqlite3 -bail {path}");
        carry_out(run.stdin(&sql))?;
    }
    check_databases(sh, &ground.shown)
}

fn check_databases(sh: &Shell, dir: &Path) -> Result<()> {
    let sum = |path: &Path, sql: &str| {
        let told = cmd!(sh, "timeout {SECONDS_MAX} sqlite3 -bail {path}");
        carry_out(told.stdin(format!("{sql}pragma integrity_check;\n.sha3sum\n")))
    };
    let expected = sum(Path::new(":memory:"), &transactions())?;
    for (name, _) in DATABASES {
        let got = sum(&dir.join(name), "")?;
        ensure!(got.starts_with("ok\n"), "{name} is damaged: {got}");
        ensure!(got == expected, "{name} has other rows than a database in memory");
    }
    Ok(())
}

const KILLS: u64 = 20;

/// Rows one by one. sqlite3 tells of each when it is committed; then the file system is killed.
fn sqlite_killed(sh: &Shell, ground: &mut Ground) -> Result<()> {
    for round in 0..KILLS {
        if ground.server.is_none() {
            ground.start()?;
        }
        let (name, sql) = (format!("killed-{round}.db"), ground.beside.join("sql"));
        let mode = ["delete", "wal", "truncate", "persist"][round as usize % 4];
        let mut text = format!("pragma journal_mode = {mode};\npragma synchronous = full;\n");
        text += "pragma cache_size = 20;\npragma wal_autocheckpoint = 30;\n";
        text += "create table t(id integer primary key, a text);\n";
        for id in 1..5000 {
            let bytes = id * 7919 % 3000;
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "begin; insert into t values({id}, hex(zeroblob({bytes}))); \
                 update t set a = a || 'x' where id = {id} / 2; commit; select 'row', {id};"
            );
        }
        fs::write(&sql, text)?;
        let mut client = Command::new("sqlite3")
            .args(["-bail".as_ref(), ground.shown.join(&name).as_os_str()])
            .stdin(File::open(&sql)?)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let told = BufReader::new(client.stdout.take().context("it is piped")?);
        let row = |line: String| line.strip_prefix("row|")?.parse::<u64>().ok();
        let reader =
            std::thread::spawn(move || told.lines().map_while(Result::ok).filter_map(row).last());
        std::thread::sleep(Duration::from_millis(30 + round * 389 % 700));
        ground.kill()?;
        client.kill()?;
        client.wait()?;
        let committed = reader.join().expect("it does not panic").unwrap_or(0);
        let path = ground.folder.join(&name);
        let told = carry_out(cmd!(sh, "timeout {SECONDS_MAX} sqlite3 -bail {path}").stdin(
            "create table if not exists t(id integer primary key, a text);\n\
             pragma integrity_check;\nselect count(*), ifnull(max(id), 0) from t;\n",
        ))?;
        let there = told.strip_prefix("ok\n").and_then(|it| it.trim().split_once('|'));
        let there = there.map(|(count, last)| (count.parse::<u64>(), last.parse::<u64>()));
        let Some((Ok(count), Ok(last))) = there else {
            bail!("{name} ({mode}) is damaged: {told}")
        };
        ensure!(
            count == last && last >= committed,
            "{name} ({mode}) has {count} rows up to {last}, and {committed} were committed"
        );
    }
    Ok(())
}

fn git(sh: &Shell, ground: &mut Ground) -> Result<()> {
    let from = format!("file://{}", sh.current_dir().display());
    let to = ground.shown.join("clone");
    let any_owner = ["-c", "safe.directory=*"];
    carry_out(cmd!(sh, "timeout {SECONDS_MAX} git {any_owner...} clone --quiet {from} {to}"))?;
    check_clone(sh, &ground.shown)?;
    carry_out(cmd!(sh, "timeout {SECONDS_MAX} git {any_owner...} -C {to} repack -adfq"))?;
    check_clone(sh, &ground.shown)
}

fn check_clone(sh: &Shell, dir: &Path) -> Result<()> {
    let at = dir.join("clone");
    let git = ["git", "-c", "safe.directory=*", "-C"];
    carry_out(cmd!(sh, "timeout {SECONDS_MAX} {git...} {at} fsck --full --strict"))?;
    let changed = carry_out(cmd!(sh, "timeout {SECONDS_MAX} {git...} {at} status --porcelain"))?;
    ensure!(changed.is_empty(), "the clone differs from what it is of:\n{changed}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ended: Option<Result<()>>, has_to_fail: bool) -> Row {
        Row { program: &PROGRAMS[0], mount: "2 MiB".to_owned(), ended, has_to_fail, seconds: 1.0 }
    }

    #[test]
    fn what_fails_is_told_and_what_the_mutant_does_must() {
        let rows = [
            row(None, false),
            row(Some(Ok(())), false),
            row(Some(Err(anyhow!("one"))), false),
            row(Some(Ok(())), true),
            row(Some(Err(anyhow!("two"))), true),
        ];
        let wrong: Vec<bool> = rows.iter().map(Row::is_wrong).collect();
        assert_eq!(wrong, [false, false, true, true, false]);
        let text = text(&rows);
        for part in ["not there: cargo install fsx", " passed ", "FAILED", "NOT NOTICED", ": one"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("two"), "{text}");
    }

    #[test]
    fn what_a_program_says_at_last_is_the_error() {
        let sh = Shell::new().unwrap();
        assert_eq!(carry_out(cmd!(sh, "echo right")).unwrap(), "right\n");
        let why = carry_out(cmd!(sh, "ls /no/such/place")).unwrap_err().to_string();
        assert!(why.contains("/no/such/place"), "{why}");
    }
}
