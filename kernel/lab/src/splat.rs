//! Finds the splats in a kernel's log: oopses, warnings, and the reports of sanitizers and other
//! checks. `qemu.rs` checks whether the boot came to its end.

/// Texts that begin a splat, each with the splat's kind. The first that is in a line counts.
const MARKS: &[(&str, &str)] = &[
    ("BUG: KASAN", "KASAN"),
    ("BUG: KCSAN", KCSAN),
    ("BUG: KFENCE", "KFENCE"),
    ("UBSAN:", "UBSAN"),
    ("INFO: trying to register", "lockdep"),
    ("INFO: rcu", "RCU stall"),
    ("rcu: INFO:", "RCU stall"),
    ("INFO: task ", "hung task"),
    ("soft lockup", "lockup"),
    ("hard LOCKUP", "lockup"),
    ("WARNING: CPU:", "WARN"),
    ("BUG: Bad page", "bad page"),
    ("BUG: Bad rss-counter", COUNTER),
    ("kernel BUG at", BUG),
    ("BUG:", BUG),
    ("general protection fault", OOPS),
    ("Oops: int3", INT3),
    ("Oops:", OOPS),
    ("Kernel panic", PANIC),
];

/// The same, for texts that count at the beginning of a line only: the reports of lockdep (and of
/// others that print them without WARN), and those of SLUB about a cache.
const OPENINGS: &[(&str, &str)] = &[("WARNING: ", "warning"), ("BUG ", BUG)];

pub(crate) const KCSAN: &str = "KCSAN";
const BUG: &str = "BUG";
const OOPS: &str = "oops";

/// A splat of one line, without a trace.
const COUNTER: &str = "bad counter";

/// A breakpoint that the kernel has removed already, and the panic that may follow. See
/// `qemu::run`.
pub(crate) const INT3: &str = "int3";
pub(crate) const PANIC: &str = "panic";

/// How many lines of a splat an error shows.
const SHOWN_LINES: usize = 14;

/// How many lines a splat may have, if no line marks its end.
const MAX_LINES: usize = 120;

/// Texts that end a splat.
const ENDS: &[&str] = &["</TASK>", LAST_LINE, "=================="];
const LAST_LINE: &str = "---[ end";

/// How many callers are compared to tell whether two splats are the same.
const COMPARED_FRAMES: usize = 4;

/// One splat: its kind, and its lines.
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

    /// What two splats of one cause have in common: the first line without numbers, the reason,
    /// and the callers. Frames of which the unwinder is not sure, and those of printing the
    /// splat, are left out.
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

/// The function of a line like `name.part.0+0x1a/0x30`. `None` for any other line, also for a
/// frame of which the unwinder is not sure (`? name+0x1a/0x30`).
pub(crate) fn function(line: &str) -> Option<&str> {
    let (name, rest) = line.trim().split_once('+')?;
    if name.contains(char::is_whitespace) || !rest.starts_with("0x") {
        return None;
    }
    name.split('.').next()
}

/// A line without the words that are numbers or end in one after a colon (a pfn, a line of
/// source), without offsets into functions, and without a process's name.
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

/// The kind of the splat that a line begins, if it begins one.
fn mark(text: &str) -> Option<&'static str> {
    // A panic's last line repeats its first.
    if text.contains(LAST_LINE) {
        return None;
    }
    let within = MARKS.iter().find(|(mark, _)| text.contains(mark));
    within.or_else(|| OPENINGS.iter().find(|(mark, _)| text.starts_with(mark))).map(|m| m.1)
}

/// The number of the line after the splat that begins at `start`: after its call trace, at the
/// next splat, or, if there is neither, a few lines on.
fn end(lines: &[&str], start: usize, kind: &str) -> usize {
    if kind == COUNTER {
        return start + 1;
    }
    let mut traced = false;
    for (at, line) in lines.iter().enumerate().take(start + MAX_LINES).skip(start + 1) {
        let text = message(line);
        if ENDS.iter().any(|end| text.contains(end)) {
            return at + 1;
        }
        // A BUG first prints its address or line of source, and then an oops. Both are one splat.
        let goes_on = |next| kind == BUG && !traced && (next == OOPS || next == INT3);
        if mark(text).is_some_and(|next| !goes_on(next)) {
            return at;
        }
        traced |= text.starts_with("Call Trace:");
    }
    lines.len().min(start + SHOWN_LINES)
}

/// All splats of a log, in order.
pub(crate) fn find(log: &str) -> Vec<Splat> {
    let lines: Vec<_> = log.lines().collect();
    let mut splats = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let Some(kind) = mark(message(lines[at])) else {
            at += 1;
            continue;
        };
        let end = end(&lines, at, kind);
        splats.push(Splat {
            kind,
            lines: lines[at..end].iter().map(|l| message(l).to_string()).collect(),
        });
        at = end;
    }
    splats
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("[    1.0] WARNING: possible circular locking dependency detected", "warning"),
            ("WARNING: SOFTIRQ-safe -> SOFTIRQ-unsafe lock order detected", "warning"),
            ("WARNING: bad unlock balance detected!", "warning"),
            ("WARNING: held lock freed!", "warning"),
            ("WARNING: sh/81 still has locks held!", "warning"),
            ("WARNING: lock held when returning to user space!", "warning"),
            ("WARNING: Nested lock was not taken", "warning"),
            ("WARNING: bad contention detected!", "warning"),
            ("WARNING: suspicious RCU usage", "warning"),
            ("INFO: trying to register non-static key.", "lockdep"),
            ("[ BUG: Invalid wait context ]", "BUG"),
            ("BUG: MAX_LOCKDEP_ENTRIES too low!", "BUG"),
            ("BUG kmalloc-64 (Not tainted): Poison overwritten", "BUG"),
            ("[    1.0] Oops: general protection fault", "oops"),
            ("[   60.0] rcu: INFO: rcu_preempt detected stalls", "RCU stall"),
            ("[   60.0] BUG: Bad page state in process sh", "bad page"),
        ] {
            let log = format!("[    0.0] Linux\n{text}\n[   12.6] RIP: 0010:foo+0x1\n");
            let splats = find(&log);
            assert_eq!(splats.len(), 1, "{text}");
            assert_eq!(splats[0].kind, kind, "{text}");
            assert_eq!(splats[0].lines[1], "RIP: 0010:foo+0x1");
        }
    }

    fn kinds(log: &str) -> Vec<&'static str> {
        find(log).iter().map(|s| s.kind).collect()
    }

    #[test]
    fn a_splat_of_another_cpu_in_between_is_found() {
        let race = "BUG: KCSAN: data-race in a / b\n\nwrite to 0x1 of 4 bytes by task 1 on cpu 1:\n f+0x1/0x2\n";
        let warn = "WARNING: CPU: 0 PID: 1 at mm/a.c:3 g+0x1/0x2\nCall Trace:\n <TASK>\n </TASK>\n";
        assert_eq!(
            kinds(&format!("{race}{warn}read to 0x1 of 4 bytes by task 2\n")),
            ["KCSAN", "WARN"]
        );
        assert_eq!(kinds(&format!("Call Trace:\n{warn}")), ["WARN"]);
        assert_eq!(kinds(&format!("BUG: a\nCall Trace:\n <TASK>\n{warn}")), ["BUG", "WARN"]);
        assert_eq!(kinds("BUG: a\nCall Trace:\n f+0x1/0x2\nOops: int3: 0000\n"), ["BUG", "int3"]);
    }

    #[test]
    fn the_trace_after_a_bad_counter_is_not_part_of_it() {
        let counter = "BUG: Bad rss-counter state mm:00000000a1b2c3d4 type:MM_ANONPAGES val:1\n";
        let log = format!(
            "{counter}sh: quiet\nCall Trace:\n f+0x1/0x2\n </TASK>\n{counter}BUG: KASAN: a\n"
        );
        let splats = find(&log);
        assert_eq!(kinds(&log), ["bad counter", "bad counter", "KASAN"]);
        assert_eq!(splats[0].signature(), splats[1].signature());
    }

    #[test]
    fn a_bug_and_its_oops_are_one_splat() {
        let log = "kernel BUG at mm/rmap.c:3!\nOops: invalid opcode: 0000 [#1] SMP\nRIP: 0010:f+0xa/0xb\n\
                   Call Trace:\n <TASK>\n </TASK>\n---[ end trace 0000000000000000 ]---\n";
        assert_eq!(kinds(log), ["BUG"]);
        let fault = "BUG: KASAN: null-ptr-deref in isolate_migratepages_block+0x3b6/0x24e0\n\
                     Read of size 4 at addr 000000000000002e by task sh/82\n\n\
                     CPU: 0 UID: 0 PID: 82 Comm: sh Not tainted 6.12.117+ #1 \nCall Trace:\n <TASK>\n \
                     dump_stack_lvl+0x6f/0xa0\n </TASK>\n\
                     ==================================================================\n\
                     Disabling lock debugging due to kernel taint\n\
                     BUG: kernel NULL pointer dereference, address: 0000000000000031\n\
                     #PF: supervisor read access in kernel mode\n\
                     Oops: Oops: 0000 [#1] PREEMPT SMP KASAN\n\
                     RIP: 0010:isolate_migratepages_block+0x3b6/0x24e0\nCall Trace:\n <TASK>\n \
                     compact_zone+0xf08/0x1ee0\n </TASK>\n\
                     Kernel panic - not syncing: Fatal exception\nKernel Offset: disabled\n\
                     ---[ end Kernel panic - not syncing: Fatal exception ]---\n";
        assert_eq!(kinds(fault), ["KASAN", "BUG", "panic"]);
        assert_eq!(
            kinds("Kernel panic - a\n <TASK>\n </TASK>\n---[ end Kernel panic - a ]---\n"),
            ["panic"]
        );
    }

    #[test]
    fn splats_are_compared_by_their_callers() {
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
}
