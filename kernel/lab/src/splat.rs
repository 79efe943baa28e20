//! Finds what a kernel's log complains about. Only the log's text is looked at;
//! whether a boot came to its end is `qemu`'s business.

/// How a splat begins, each with what to call it.
const MARKS: &[(&str, &str)] = &[
    ("BUG: KASAN", "KASAN"),
    ("BUG: KCSAN", "KCSAN"),
    ("BUG: KFENCE", "KFENCE"),
    ("UBSAN:", "UBSAN"),
    ("WARNING: possible circular locking", "lockdep"),
    ("WARNING: possible recursive locking", "lockdep"),
    ("WARNING: inconsistent lock state", "lockdep"),
    ("WARNING: suspicious RCU usage", "RCU"),
    ("possible irq lock inversion", "lockdep"),
    ("INFO: rcu", "RCU stall"),
    ("rcu: INFO:", "RCU stall"),
    ("INFO: task ", "hung task"),
    ("soft lockup", "lockup"),
    ("hard LOCKUP", "lockup"),
    ("WARNING: CPU:", "WARN"),
    ("BUG: Bad page", "bad page"),
    ("BUG: Bad rss-counter", "bad counter"),
    ("kernel BUG at", "BUG"),
    ("BUG:", "BUG"),
    ("general protection fault", "oops"),
    ("Oops: int3", INT3),
    ("Oops:", "oops"),
    ("Kernel panic", "panic"),
];

/// A breakpoint nobody put there any more. See `qemu::boot`.
pub(crate) const INT3: &str = "int3";

/// How many lines of a splat are shown.
const SHOWN_LINES: usize = 14;

/// How many lines a splat may have, where nothing says that it ends.
const MAX_LINES: usize = 120;

/// How a splat ends, at the latest.
const ENDS: &[&str] = &["</TASK>", "---[ end", "=================="];

/// How many callers tell one complaint from another.
const COMPARED_FRAMES: usize = 4;

/// One complaint: what kind it is, and its lines.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Splat {
    pub(crate) kind: &'static str,
    pub(crate) lines: Vec<String>,
}

impl Splat {
    /// The lines that an error shows.
    pub(crate) fn shown(&self) -> String {
        self.lines[..self.lines.len().min(SHOWN_LINES)].join("\n")
    }

    /// What is the same when another kernel, or the same a second time, makes
    /// this complaint: its first line and its reason without what are numbers, and
    /// who called. Frames that the unwinder is not sure of are left out, and so are
    /// those of printing.
    pub(crate) fn signature(&self) -> String {
        let first = self.lines.first().map(|l| without_numbers(l)).unwrap_or_default();
        let reason = self.lines.iter().find(|l| l.contains("dumped because")).cloned();
        let mut frames: Vec<_> = self
            .lines
            .iter()
            .skip_while(|l| !l.contains("Call Trace:"))
            .filter_map(|l| function(l))
            .filter(|f| !f.starts_with("dump_stack") && !f.starts_with("bad_page"))
            .take(COMPARED_FRAMES)
            .collect();
        let at = self.lines.iter().find_map(|l| function(l.strip_prefix("RIP: 0010:")?));
        frames.extend(at);
        let reason = reason.unwrap_or_default();
        format!("{}: {first} {reason} [{}]", self.kind, frames.join(" < "))
    }
}

/// The function of a line like `name.part.0+0x1a/0x30`; none if it is not such a
/// line, or a guess of the unwinder's.
fn function(line: &str) -> Option<&str> {
    let (name, rest) = line.trim().split_once('+')?;
    if name.contains(char::is_whitespace) || !rest.starts_with("0x") {
        return None;
    }
    name.split('.').next()
}

/// A line without the words that are numbers, or end in one after a colon (a pfn, a
/// line of source), without offsets into functions, and without a process's name.
fn without_numbers(line: &str) -> String {
    let line = line.split(" in process ").next().unwrap_or(line);
    let is_number = |word: &str| {
        let tail = word.rsplit_once(':').map_or("", |(_, tail)| tail);
        [word.trim_start_matches(['[', '#']), tail]
            .iter()
            .any(|part| part.starts_with(|c: char| c.is_ascii_digit()))
    };
    line.split_whitespace()
        .filter(|word| function(word).is_some() || !is_number(word))
        .map(|word| function(word).unwrap_or(word))
        .collect::<Vec<_>>()
        .join(" ")
}

/// A line without the printk timestamp.
fn message(line: &str) -> &str {
    let line = line.trim_end();
    match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((stamp, rest)) if stamp.trim().parse::<f64>().is_ok() => rest.trim_start(),
        _ => line,
    }
}

/// All complaints of a log, in order. The lines that follow a mark belong to it
/// even where they contain marks themselves, up to the end of its call trace or,
/// where there is none, the first lines.
pub(crate) fn find(log: &str) -> Vec<Splat> {
    let lines: Vec<_> = log.lines().collect();
    let mut splats = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let text = message(lines[at]);
        let Some((_, kind)) = MARKS.iter().find(|(mark, _)| text.contains(mark)) else {
            at += 1;
            continue;
        };
        let most = lines.len().min(at + MAX_LINES);
        let end = (at + 1..most)
            .find(|&i| ENDS.iter().any(|e| lines[i].contains(e)))
            .map_or(lines.len().min(at + SHOWN_LINES), |i| i + 1);
        splats.push(Splat {
            kind,
            lines: lines[at..end].iter().map(|l| message(l).to_string()).collect(),
        });
        at = end;
    }
    splats
}

/// Offset of `_refcount` in a struct page, which is 64 bytes long here.
const COUNT_OFFSET: u64 = 0x34;
const PAGE_STRUCT_BYTES: u64 = 64;

/// Whether a KCSAN report is about a page's count: its address lies in the array
/// of struct pages and covers that field. All other races were there before the
/// series. A report whose address cannot be read counts.
fn is_about_count(splat: &Splat) -> bool {
    let access = splat.lines.iter().find_map(|line| {
        let (_, rest) = line.split_once(" to 0x")?;
        let (address, rest) = rest.split_once(" of ")?;
        let bytes = rest.split_whitespace().next()?.parse::<u64>().ok()?;
        Some((u64::from_str_radix(address, 16).ok()?, bytes))
    });
    let Some((address, bytes)) = access else {
        return true;
    };
    // Where x86-64 maps them, with five and with four levels of page tables.
    let in_array = matches!(address >> 48, 0xffd4 | 0xffd5 | 0xffea);
    let offset = address % PAGE_STRUCT_BYTES;
    let to_count = (COUNT_OFFSET + PAGE_STRUCT_BYTES - offset) % PAGE_STRUCT_BYTES;
    in_array && (to_count < bytes || to_count > PAGE_STRUCT_BYTES - 4)
}

/// Splits complaints into those that fail a run and the number of data races
/// that KCSAN has found elsewhere.
pub(crate) fn judge(splats: Vec<Splat>) -> (Vec<Splat>, usize) {
    let all = splats.len();
    let serious: Vec<_> =
        splats.into_iter().filter(|s| s.kind != "KCSAN" || is_about_count(s)).collect();
    let elsewhere = all - serious.len();
    (serious, elsewhere)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_races_about_the_count_are_serious() {
        let race = |access: &str| {
            judge(find(&format!("BUG: KCSAN: data-race in a / b\n\nwrite {access} by task 1:\n")))
                .0
                .len()
        };
        assert_eq!(race("to 0xffd4000001f6d334 of 4 bytes"), 1);
        assert_eq!(race("to 0xffd4000001f6d330 of 8 bytes"), 1);
        assert_eq!(race("to 0xffea000001f6d300 of 4096 bytes"), 1);
        assert_eq!(race("to 0xffd4000001f6d300 of 8 bytes"), 0);
        assert_eq!(race("to 0xffd4000001f6d338 of 8 bytes"), 0);
        assert_eq!(race("to 0xff11000001f6d334 of 4 bytes"), 0);
        assert_eq!(race("somewhere"), 1);
        assert_eq!(judge(find("WARNING: CPU: 0 PID: 1 at x\n")).0.len(), 1);
    }

    #[test]
    fn a_quiet_log_has_none() {
        assert_eq!(find("[    0.1] Linux version 6.12\n[    0.2] rcu: Hierarchical RCU\n"), []);
    }

    #[test]
    fn each_kind_is_found_with_its_lines() {
        for (text, kind) in [
            ("[   12.5] WARNING: CPU: 1 PID: 7 at mm/page_ref.c:3", "WARN"),
            ("[   12.5] BUG: KASAN: use-after-free in foo", "KASAN"),
            ("[    1.0] BUG: KCSAN: data-race in a / b", "KCSAN"),
            ("[    1.0] WARNING: possible circular locking dependency detected", "lockdep"),
            ("[    1.0] Oops: general protection fault", "oops"),
            ("[   60.0] rcu: INFO: rcu_preempt detected stalls", "RCU stall"),
            ("[   60.0] BUG: Bad page state in process sh", "bad page"),
        ] {
            let log = format!("[    0.0] Linux\n{text}\n[   12.6] RIP: 0010:foo+0x1\n");
            let splats = find(&log);
            assert_eq!(splats.len(), 1, "{text}");
            assert!(
                splats[0].kind == kind || (kind == "oops" && splats[0].kind == "oops"),
                "{text}: {}",
                splats[0].kind
            );
            assert_eq!(splats[0].lines[1], "RIP: 0010:foo+0x1");
        }
    }

    #[test]
    fn a_complaint_is_known_again_by_its_callers() {
        let bad_page = |pfn: &str, caller: &str| {
            let log = format!(
                "BUG: Bad page state in process sh  pfn:{pfn}\npage: refcount:0 pfn:{pfn}\n\
                 page dumped because: nonzero mapcount\nCall Trace:\n <TASK>\n dump_stack+0x14/0x20\n \
                 bad_page+0xb7/0x190\n ? guessed+0x1/0x2\n {caller}.part.0+0x1/0x2\n </TASK>\n"
            );
            find(&log).remove(0).signature()
        };
        assert_eq!(
            bad_page("0e840", "free_unref_page"),
            "bad page: BUG: Bad page state page dumped because: nonzero mapcount [free_unref_page]"
        );
        assert_eq!(bad_page("0e840", "f"), bad_page("11", "f"));
        assert_ne!(bad_page("0e840", "f"), bad_page("0e840", "g"));

        let warn = find("WARNING: CPU: 1 PID: 7 at mm/a.c:33 put+0x1/0x2\nRIP: 0010:put+0x1/0x2\n");
        assert_eq!(warn[0].signature(), "WARN: WARNING: CPU: PID: at put  [put]");
        let oops = find("Oops: int3: 0000 [#1] SMP\nRIP: 0010:f+0xad/0x180\n");
        assert_eq!(oops[0].signature(), "int3: Oops: int3: SMP  [f]");
    }

    #[test]
    fn a_splat_ends_with_its_trace() {
        let trace = " f+0x1/0x2\n".repeat(50);
        let log = format!("BUG: a\n <TASK>\n{trace} </TASK>\nBUG: b\n");
        let splats = find(&log);
        assert_eq!((splats.len(), splats[0].lines.len()), (2, 53));
        assert_eq!(splats[0].shown().lines().count(), SHOWN_LINES);
    }

    #[test]
    fn one_splat_is_reported_once() {
        let log = "WARNING: CPU: 0 PID: 1 at x\nBUG: y\n".to_string() + &"more\n".repeat(140);
        assert_eq!(find(&log).len(), 1);
    }
}
