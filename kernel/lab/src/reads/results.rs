//! What `read_races` prints: the table of what an ordinary read may return in each race, how
//! often each result was seen, and what the kernel has counted.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// A file system, and a race.
type Race = (String, String);

/// What one race did with one kind of reads.
#[derive(Debug, Default)]
struct Run {
    counts: BTreeMap<String, u64>,
    /// How often each result was seen: how much was read, and of what.
    seen: BTreeMap<String, u64>,
}

impl Run {
    fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or_default()
    }
}

/// A result that an ordinary read may have, and why.
#[derive(Debug, PartialEq)]
struct May {
    race: Race,
    result: String,
    because: String,
}

#[derive(Debug, Default)]
pub(super) struct Results {
    may: Vec<May>,
    /// The runs of each race: ordinary reads, and short ones.
    runs: BTreeMap<Race, [Run; 2]>,
    /// The first results of each race that no ordinary read has.
    wrong: Vec<String>,
}

/// The least of each race that shows something. `other` is the number of reads beside which a
/// step was made.
const LEAST: [(&str, u64); 3] = [("rounds", 100), ("reads", 2000), ("other", 100)];
const LEAST_SHORT: u64 = 20;

/// The races in which folios leave the page cache.
const REMOVING: [&str; 5] =
    ["truncate-write", "truncate-extend", "punch-page", "zero-page", "split"];

const KINDS: [&str; 2] = ["ordinary", "short"];

fn kind(word: &str) -> Result<usize> {
    KINDS.iter().position(|k| *k == word).with_context(|| format!("unknown reads: {word}"))
}

impl Results {
    /// # Errors
    /// If a line of the program is not as it should be.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut results = Self::default();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let race = |fs: &str, name: &str| (fs.to_string(), name.to_string());
            match words[..] {
                ["WRONG", ..] => results.wrong.push(line.to_string()),
                ["may", fs, name, ..] => {
                    let (head, because) = line.split_once(": ").context("no reason")?;
                    let result: Vec<_> = head.split_whitespace().skip(3).collect();
                    results.may.push(May {
                        race: race(fs, name),
                        result: result.join(" "),
                        because: because.to_string(),
                    });
                }
                ["run", fs, name, reads, ref counts @ ..] => {
                    let run = &mut results.runs.entry(race(fs, name)).or_default()[kind(reads)?];
                    for pair in counts.chunks(2) {
                        let [key, value] = pair else { bail!("a count without a value: {line}") };
                        let value = value.parse().with_context(|| format!("no number: {line}"))?;
                        run.counts.insert((*key).to_string(), value);
                    }
                    let others = run.count("reads").saturating_sub(run.count("alone"));
                    run.counts.insert("other".to_string(), others);
                }
                ["seen", fs, name, reads, length, content, _order, times] => {
                    let run = &mut results.runs.entry(race(fs, name)).or_default()[kind(reads)?];
                    let times: u64 = times.parse().with_context(|| format!("no number: {line}"))?;
                    *run.seen.entry(format!("{length} {content}")).or_default() += times;
                }
                _ => {}
            }
        }
        Ok(results)
    }

    /// How many races there are, each file system's by itself.
    pub(super) fn races(&self) -> usize {
        self.runs.len()
    }

    /// The sum of a count of short reads over these races, on any file system.
    pub(super) fn short(&self, name: &str, races: &[&str]) -> u64 {
        let of = self.runs.iter().filter(|((_, race), _)| races.contains(&race.as_str()));
        of.map(|(_, [_, short])| short.count(name)).sum()
    }

    /// How often short reads had one of these results in a race, on any file system.
    pub(super) fn short_seen(&self, race: &str, wanted: &[&str]) -> u64 {
        let of = self.runs.iter().filter(|((_, name), _)| name == race);
        of.flat_map(|(_, [_, short])| &short.seen)
            .filter(|(result, _)| wanted.contains(&result.as_str()))
            .map(|(_, times)| times)
            .sum()
    }

    /// In words, how much was read, and how much of it by short reads.
    pub(super) fn summary(&self) -> String {
        let sum = |reads: usize, name: &str| -> u64 {
            self.runs.values().map(|runs| runs[reads].count(name)).sum()
        };
        let unseen = |may: &&May| {
            let runs = self.runs.get(&may.race);
            runs.is_none_or(|runs| runs.iter().all(|run| !run.seen.contains_key(&may.result)))
        };
        format!(
            "{} races; {} reads with short reads off; {} with them on, {} of these beside a step, \
             {} short; {} met a removal, {} another size; of the tables' {} lines, {} were not seen",
            self.races(),
            sum(0, "reads"),
            sum(1, "reads"),
            sum(1, "other"),
            sum(1, "short_read_done"),
            sum(1, "short_read_removed"),
            sum(1, "short_read_resized"),
            self.may.len(),
            self.may.iter().filter(unseen).count()
        )
    }

    /// The results that no ordinary read has, whoever had them.
    pub(super) fn wrong(&self) -> u64 {
        self.runs.values().flatten().map(|run| run.count("wrong")).sum()
    }

    /// Those that short reads had.
    pub(super) fn short_wrong(&self) -> u64 {
        self.runs.values().map(|[_, short]| short.count("wrong")).sum()
    }

    /// The first of these.
    pub(super) fn first_wrong(&self) -> &str {
        self.wrong.first().map_or("nothing", String::as_str)
    }

    /// # Errors
    /// If a read has returned what no ordinary read returns, or a race has shown nothing.
    pub(super) fn check(&self) -> Result<()> {
        if self.wrong() > 0 || !self.wrong.is_empty() {
            bail!("{} wrong results, the first: {}", self.wrong(), self.first_wrong());
        }
        let known: BTreeSet<_> = self.may.iter().map(|may| &may.race).collect();
        for fs in ["ext4", "tmpfs"] {
            if !known.iter().any(|race| race.0 == fs) {
                bail!("no race on {fs}");
            }
            let removed: u64 = (self.runs.iter())
                .filter(|((on, race), _)| on == fs && REMOVING.contains(&race.as_str()))
                .map(|(_, [_, short])| short.count("short_read_removed"))
                .sum();
            if removed == 0 {
                bail!("{fs}: no short read met a folio that was being removed");
            }
        }
        if !known.iter().copied().eq(self.runs.keys()) {
            bail!("not the same races have a table and were run");
        }
        for (race, runs) in &self.runs {
            for (reads, run) in KINDS.iter().zip(runs) {
                self.check_run(race, run).with_context(|| format!("{race:?}, {reads} reads"))?;
            }
            let [ordinary, short] = runs.each_ref().map(|run| run.count("short_read_done"));
            if ordinary > 0 {
                bail!("{race:?}: {ordinary} short reads, although they are off");
            }
            if short < LEAST_SHORT {
                bail!("{race:?}: only {short} short reads");
            }
        }
        Ok(())
    }

    fn check_run(&self, race: &Race, run: &Run) -> Result<()> {
        for (name, least) in LEAST {
            if run.count(name) < least {
                bail!("only {} {name}", run.count(name));
            }
        }
        if race.1 == "split" && run.count("thp_split_page") == 0 {
            bail!("no huge page was split");
        }
        if run.seen.len() < 2 {
            bail!("all results are alike");
        }
        let may = |result: &String| self.may.iter().any(|m| m.race == *race && m.result == *result);
        if let Some(result) = run.seen.keys().find(|result| !may(result)) {
            bail!("`{result}` is not in the table");
        }
        Ok(())
    }

    /// # Errors
    /// If a race of `right` has noticed nothing here, where its steps are wrong.
    pub(super) fn all_noticed(&self, right: &Self) -> Result<()> {
        for race in right.runs.keys() {
            let runs = self.runs.get(race).with_context(|| format!("{race:?} did not run"))?;
            if runs.iter().any(|run| run.count("wrong") == 0) {
                bail!("{race:?} does not notice wrong steps");
            }
        }
        Ok(())
    }

    /// Both tables: what may be and what was, and what the kernel has counted.
    pub(super) fn table(&self) -> String {
        let mut text = String::from(
            "| race | what a read returns | why | ordinary | short |\n|---|---|---|---:|---:|\n",
        );
        for May { race, result, because } in &self.may {
            let times = |at: usize| {
                let run = self.runs.get(race).map(|runs| &runs[at]);
                run.and_then(|run| run.seen.get(result)).copied().unwrap_or_default()
            };
            let _ = writeln!(
                text,
                "| {} {} | {result} | {because} | {} | {} |",
                race.0,
                race.1,
                times(0),
                times(1)
            );
        }
        text += "\n| race | rounds | reads | beside a step | short | removed | resized | absent \
                 | stale | aging |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
        for (race, [_, short]) in &self.runs {
            let _ = write!(text, "| {} {} |", race.0, race.1);
            for name in ["rounds", "reads", "other"] {
                let _ = write!(text, " {} |", short.count(name));
            }
            for event in ["done", "removed", "resized", "absent", "stale", "aging"] {
                let _ = write!(text, " {} |", short.count(&format!("short_read_{event}")));
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program prints of races on both file systems in which all is as it should be.
    fn printed() -> String {
        let mut text = String::from("judged 49 made-up results\n");
        for fs in ["ext4", "tmpfs"] {
            let race = format!("{fs} punch-page");
            let _ = writeln!(text, "may {race} full one: it: stays");
            let _ = writeln!(text, "may {race} full zero: the hole");
            for (reads, done, removed) in [("ordinary", 0, 0), ("short", 900, 3)] {
                let _ = write!(text, "run {race} {reads} rounds 100 reads 3000 alone 2000 wrong 0");
                let _ = writeln!(
                    text,
                    " short_read_done {done} short_read_removed {removed}\n\
                     seen {race} {reads} full one - 10\n\
                     seen {race} {reads} full zero - 20"
                );
            }
        }
        text
    }

    fn error(old: &str, new: &str) -> String {
        assert!(printed().contains(old), "{old}");
        let results = Results::parse(&printed().replace(old, new)).unwrap();
        format!("{:#}", results.check().unwrap_err())
    }

    #[test]
    fn what_is_in_the_table_is_right() {
        let results = Results::parse(&printed()).unwrap();
        results.check().unwrap();
        assert_eq!(results.races(), 2);
        assert!(results.summary().starts_with(
            "2 races; 6000 reads with short reads off; 6000 with them on, 2000 of these beside a \
             step, 1800 short; 6 met a removal, 0 another size; of the tables' 4 lines, 0 were"
        ));
        let partly = printed().replace("seen tmpfs punch-page short full zero - 20\n", "");
        let partly = partly.replace("seen tmpfs punch-page ordinary full zero - 20\n", "");
        assert!(Results::parse(&partly).unwrap().summary().ends_with("4 lines, 1 were not seen"));
        let table = results.table();
        assert!(table.contains("| ext4 punch-page | full one | it: stays | 10 | 10 |"), "{table}");
        assert!(
            table.contains("| tmpfs punch-page | 100 | 3000 | 1000 | 900 | 3 | 0 |"),
            "{table}"
        );
    }

    #[test]
    fn what_is_not_in_the_table_is_wrong() {
        assert!(error("full zero -", "full one+zero mixed").contains("`full one+zero` is not in"));
        assert!(error("short full one", "short cut one").contains("short reads: `cut one`"));
        assert!(error("ordinary full one", "ordinary cut one").contains("ordinary reads: `cut"));
        assert!(error("may ext4 punch-page full zero: the hole\n", "").contains("full zero"));
        assert!(error("alone 2000 wrong 0", "alone 2000 wrong 1").contains("4 wrong results"));
        let old = "judged 49 made-up results";
        assert!(error(old, "WRONG punch-page: x").contains("the first: WRONG punch-page: x"));
    }

    #[test]
    fn a_race_that_shows_nothing_is_wrong() {
        assert!(error("rounds 100", "rounds 99").contains("only 99 rounds"));
        assert!(error("reads 3000", "reads 1999").contains("only 1999 reads"));
        assert!(error("alone 2000", "alone 2999").contains("only 1 other"));
        assert!(error("short_read_done 900", "short_read_done 19").contains("only 19 short reads"));
        assert!(error("short_read_done 0", "short_read_done 1").contains("although they are off"));
        assert!(error("short_read_removed 3", "short_read_removed 0").contains("being removed"));
        assert!(error("full zero", "full one").contains("alike"));
        assert!(error("tmpfs", "xfs").contains("no race on tmpfs"));
        assert!(error("run tmpfs punch-page", "run tmpfs split").contains("not the same races"));
        let split = printed().replace("punch-page", "split");
        let error = Results::parse(&split).unwrap().check().unwrap_err();
        assert!(format!("{error:#}").contains("no huge page was split"));
    }

    #[test]
    fn wrong_steps_are_noticed_in_each_race() {
        let right = Results::parse(&printed()).unwrap();
        let noticed = |text: &str| Results::parse(text).unwrap().all_noticed(&right);
        let all = printed().replace("wrong 0", "wrong 2");
        noticed(&all).unwrap();
        noticed(&printed()).unwrap_err();
        let one = all.replacen("wrong 2", "wrong 0", 1);
        noticed(&one).unwrap_err();
        noticed(&all.replace("run tmpfs", "x")).unwrap_err();
    }

    #[test]
    fn lines_that_are_cut_off_are_errors() {
        Results::parse("run ext4 punch-page short rounds").unwrap_err();
        Results::parse("run ext4 punch-page long rounds 1").unwrap_err();
        Results::parse("seen ext4 punch-page short full one - x").unwrap_err();
        Results::parse("may ext4 punch-page full one").unwrap_err();
    }
}
