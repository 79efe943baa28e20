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
