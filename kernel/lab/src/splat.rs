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
    ("Oops:", "oops"),
    ("Kernel panic", "panic"),
];

/// How many lines of a splat are shown.
const SHOWN_LINES: usize = 14;

/// One complaint: what kind it is, and its first lines.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Splat {
    pub(crate) kind: &'static str,
    pub(crate) lines: Vec<String>,
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
/// even where they contain marks themselves.
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
        let end = lines.len().min(at + SHOWN_LINES);
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
    fn one_splat_is_reported_once() {
        let log = "WARNING: CPU: 0 PID: 1 at x\nBUG: y\n".to_string() + &"more\n".repeat(40);
        assert_eq!(find(&log).len(), 1);
    }
}
