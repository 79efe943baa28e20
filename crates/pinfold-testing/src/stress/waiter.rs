//! Those who read by futures, of which they have many at once, and drop some.
//!
//! Belongs here: the futures, and the moment at which one is dropped.
//!
//! A future is polled when it was woken, and never otherwise: one that is not woken keeps its
//! thread from going on, which is seen (`watch.rs`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use pinfold::File;

use super::check::{Before, Checked, forgive, unexpected};
use super::files::Subject;
use super::options::Schedule;
use super::report::Failure;
use super::shared::Shared;
use super::watch::{Desk, Doing};
use crate::waker::Woken;

const PAGE: u64 = 4096;
/// Futures of one round.
const FUTURES_MAX: usize = 48;
/// Pages of one future: few, as it holds those that it has while it waits for the others.
const PAGES_MAX: usize = 6;

/// A thread that has futures until the run is over.
pub(super) fn run(shared: &Shared, desk: &Desk, seed: u64) {
    let mut waiter = Waiter { shared, desk, rng: Rng::with_seed(seed) };
    while shared.goes_on() {
        if let Err(failure) = waiter.round() {
            shared.fail(*failure);
        }
    }
}

struct Waiter<'a> {
    shared: &'a Shared,
    desk: &'a Desk,
    rng: Rng,
}

/// Copies of parts of a file: offset, bytes asked for, bytes that came.
type Parts = Vec<(u64, usize, Vec<u8>)>;

/// A future, and what it was begun for.
struct Task<'a> {
    subject: &'a Subject,
    before: Before<'a>,
    future: Pin<Box<dyn Future<Output = pinfold::Result<Parts>>>>,
    woken: Arc<Woken>,
    /// It may be dropped. The others are waited for, so one that is never woken is seen.
    spare: bool,
}

impl<'a> Waiter<'a> {
    /// Begins some futures, and polls those that are woken until all have ended or were dropped.
    fn round(&mut self) -> Checked {
        let shared = self.shared;
        let number = match self.rng.u32(0..3) {
            0 => self.rng.usize(0..shared.subjects.all.len()),
            _ => shared.watch.latest(),
        };
        let subject = &shared.subjects.all[number];
        // A file that nobody keeps open shall mostly not be open.
        let most = if shared.options.schedule == Schedule::Reopening { 4 } else { FUTURES_MAX };
        let mut tasks = Vec::new();
        for _ in 0..self.rng.usize(1..=most) {
            tasks.push(self.begin(subject)?);
        }
        let (mut ended, mut dropped) = (0, 0);
        // Ends: a future that is not woken is what this looks for, also when the run is over.
        while !tasks.is_empty() {
            let before = tasks.len();
            self.poll_woken(&mut tasks)?;
            ended += before - tasks.len();
            let spare = tasks.iter().position(|task| task.spare);
            if let Some(at) = spare.filter(|_| self.rng.u32(0..8) == 0) {
                tasks.swap_remove(at);
                dropped += 1;
            } else if tasks.len() == before {
                std::thread::park();
            }
        }
        shared.watch.count(Doing::Await, ended as u64);
        shared.watch.count(Doing::Drop, dropped);
        Ok(())
    }

    fn begin(&mut self, subject: &'a Subject) -> Result<Task<'a>, Box<Failure>> {
        let rng = &mut self.rng;
        let near = if rng.bool() {
            self.shared.watch.spot(subject.number)
        } else {
            rng.u64(0..subject.bytes.max(1))
        };
        let offset = near.saturating_add(rng.u64(0..20_000)) % (subject.bytes + 100);
        let file = subject.file(&self.shared.cache);
        let file = file.map_err(|error| unexpected(self.shared, self.desk, &error))?;
        let (bytes, future): (usize, Pin<Box<dyn Future<Output = _>>>) = match rng.u32(0..4) {
            0 | 1 => {
                let bytes = [64, 300, 9000, 40_000][rng.usize(0..4)];
                (bytes, Box::pin(read(file, offset, bytes)))
            }
            // A page that is behind the end is an error.
            _ if offset >= subject.bytes => (0, Box::pin(read(file, offset, 0))),
            2 => (PAGE as usize, Box::pin(get(file, offset / PAGE))),
            _ => {
                let end = subject.bytes.div_ceil(PAGE);
                let pages = (0..rng.usize(0..=PAGES_MAX))
                    .map(|_| (offset / PAGE + rng.u64(0..8)).min(end - 1))
                    .collect();
                (PAGE as usize, Box::pin(get_many(file, pages)))
            }
        };
        self.desk.begin(Doing::Await, subject.number, offset, bytes as u64);
        let before = Before::now(self.shared, self.desk, subject);
        let spare = self.rng.u32(0..4) == 0;
        Ok(Task { subject, before, future, woken: Woken::new(), spare })
    }

    /// Polls what was woken, and checks what ends.
    fn poll_woken(&self, tasks: &mut Vec<Task<'a>>) -> Checked {
        let mut at = 0;
        while at < tasks.len() {
            let task = &mut tasks[at];
            // Acquire: pairs with the release in `wake`.
            if !task.woken.take() {
                at += 1;
                continue;
            }
            let waker = Waker::from(task.woken.clone());
            match task.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => at += 1,
                Poll::Ready(result) => {
                    let task = tasks.swap_remove(at);
                    self.check(&task, result)?;
                }
            }
        }
        Ok(())
    }

    fn check(&self, task: &Task<'_>, result: pinfold::Result<Parts>) -> Checked {
        match result {
            Ok(parts) => {
                for (offset, asked, bytes) in parts {
                    if task.before.check(offset, asked, &bytes)? {
                        self.desk.read(bytes.len());
                    } else {
                        self.desk.excuse();
                    }
                }
                Ok(())
            }
            Err(error) => forgive(self.shared, self.desk, task.subject, &error),
        }
    }
}

async fn read(file: File, offset: u64, bytes: usize) -> pinfold::Result<Parts> {
    let mut buf = vec![0xa5; bytes];
    let got = file.read_at_async(&mut buf, offset).await?;
    buf.truncate(got);
    Ok(vec![(offset, bytes, buf)])
}

async fn get(file: File, page: u64) -> pinfold::Result<Parts> {
    let guard = file.get_async(page).await?;
    Ok(vec![(page * PAGE, PAGE as usize, guard.to_vec())])
}

async fn get_many(file: File, pages: Vec<u64>) -> pinfold::Result<Parts> {
    let guards = file.get_many_async(&pages).await?;
    assert_eq!(guards.len(), pages.len(), "a guard for each page");
    let parts = pages.iter().zip(&guards);
    Ok(parts.map(|(page, guard)| (page * PAGE, PAGE as usize, guard.to_vec())).collect())
}
