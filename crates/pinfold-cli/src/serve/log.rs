//! The server's lines on standard error. Whoever writes one waits for nothing: the lines go to a
//! thread that may wait for a reader, and fail. There is an end to how many they are, whatever
//! clients do: what is left out is counted, and told.

use std::fmt::Display;
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
        if self.lines.try_send(line.to_string()).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed); // a figure
        }
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
