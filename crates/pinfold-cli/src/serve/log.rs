//! The server's lines on standard error. Whoever writes one waits for nothing: the lines go to a
//! thread that may wait for a reader, and fail. There is an end to how many they are, whatever
//! clients do: what is left out is counted, and told. A line has a longest length, and is one line:
//! clients' own words may be in it.

use std::fmt::{self, Display, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::say;

/// Lines that wait for the thread.
const QUEUE_MAX: usize = 256;

/// Lines at once, and one more after each of these times.
const BURST: u32 = 512;
const EACH: Duration = Duration::from_millis(50);

/// The most characters of a line, and of a reason that a client is given.
const LINE_MAX: usize = 512;

/// Where lines are told.
#[derive(Debug, Clone)]
pub struct Log {
    lines: SyncSender<String>,
    /// Lines for which the queue had no place.
    left_out: Arc<AtomicU64>,
}

impl Log {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start() -> Result<Self> {
        let (lines, queue) = sync_channel(QUEUE_MAX);
        let left_out = Arc::new(AtomicU64::new(0));
        let log = Log { lines, left_out: left_out.clone() };
        let thread = std::thread::Builder::new().name("pinfold-log".to_owned());
        thread.spawn(move || write(&queue, &left_out)).context("no thread for messages")?;
        Ok(log)
    }

    /// Tells a line, unless there are too many.
    pub fn tell(&self, line: impl Display) {
        if self.lines.try_send(one_line(line)).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed); // a figure
        }
    }
}

/// What is printed, as one line: control characters are replaced, and what is too long is cut.
pub fn one_line(words: impl Display) -> String {
    let mut line = Line { text: String::new(), left: LINE_MAX };
    // Fails where the line is cut: the rest is not even formatted.
    if write!(line, "{words}").is_err() {
        line.text.push('…');
    }
    line.text
}

struct Line {
    text: String,
    left: usize,
}

impl Write for Line {
    fn write_str(&mut self, words: &str) -> fmt::Result {
        for it in words.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            // Those that reverse the order of what follows forge a line, too.
            let is_shown = !it.is_control()
                && !matches!(it, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            self.text.push(if is_shown { it } else { char::REPLACEMENT_CHARACTER });
        }
        Ok(())
    }
}

/// Writes the lines, until nobody can tell any more.
fn write(queue: &Receiver<String>, left_out: &AtomicU64) {
    let mut limit = Limit::new(Instant::now());
    // Ends: when all who tell are gone.
    loop {
        match queue.recv_timeout(Duration::from_secs(1)) {
            Ok(line) if limit.allows(Instant::now()) => say::tell(line),
            Ok(_) => {
                left_out.fetch_add(1, Ordering::Relaxed); // a figure
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // Relaxed: a figure.
        if left_out.load(Ordering::Relaxed) > 0 && limit.allows(Instant::now()) {
            let lines = left_out.swap(0, Ordering::Relaxed);
            say::tell(format_args!("{lines} lines were left out, as there were too many"));
        }
    }
}

/// How many lines there may be.
#[derive(Debug)]
struct Limit {
    left: u32,
    since: Instant,
}

impl Limit {
    fn new(now: Instant) -> Self {
        Limit { left: BURST, since: now }
    }

    fn allows(&mut self, now: Instant) -> bool {
        let more =
            (now.saturating_duration_since(self.since).as_millis() / EACH.as_millis()) as u32;
        if more > 0 {
            self.left = self.left.saturating_add(more).min(BURST);
            self.since += EACH * more;
        }
        let allows = self.left > 0;
        self.left -= u32::from(allows);
        allows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_words_are_one_line_of_a_bounded_length() {
        let (lines, queue) = sync_channel(2);
        let log = Log { lines, left_out: Arc::default() };
        log.tell("a\nclient 9 has left\r\u{1b}[2J\u{9b}\u{202e}\0é");
        assert_eq!(
            queue.recv().unwrap(),
            "a\u{fffd}client 9 has left\u{fffd}\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}é"
        );
        log.tell("é".repeat(100_000));
        assert_eq!(queue.recv().unwrap(), "é".repeat(LINE_MAX) + "…");
    }

    #[test]
    fn there_are_many_lines_at_once_and_few_for_ever() {
        let begin = Instant::now();
        let mut limit = Limit::new(begin);
        let lines = |limit: &mut Limit, now| (0..10_000).filter(|_| limit.allows(now)).count();
        assert_eq!(lines(&mut limit, begin), BURST as usize);
        assert_eq!(lines(&mut limit, begin + 10 * EACH), 10);
        assert_eq!(lines(&mut limit, begin + 10 * EACH), 0);
        assert_eq!(lines(&mut limit, begin + 100_000 * EACH), BURST as usize);
    }
}
