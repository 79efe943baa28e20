//! Whether each state that a crash may leave is one that the file may have.
//!
//! For each first part of what was recorded, and each number of changes of the length that may be
//! done then: as many states as the sector has choices that has most, so that each choice of each
//! sector is in one of them; and some that are drawn.

use super::contents::{Contents, SECTOR};
use super::device::{Choices, Device};
use super::history::{self, Sync, Version, Versions, Window};
use super::options::CrashReport;
use super::recorder::Recorded;

/// If more changes of the length are not durable, that many are looked at: the first, the last, and
/// some that are drawn.
const CHANGES_MAX: usize = 6;
const DRAWN_STATES: usize = 6;

pub(super) struct Judged<'a> {
    pub(super) name: &'a str,
    pub(super) alignment: usize,
    pub(super) steps: &'a [Recorded],
    pub(super) versions: &'a Versions,
}

/// The windows of all sectors, and of the length.
struct Windows {
    sectors: Vec<Window>,
    len: Window,
    /// So many syncs have returned.
    syncs: usize,
}

impl Windows {
    fn new(versions: &Versions) -> Self {
        let sectors = vec![Window::default(); versions.sectors.len()];
        Windows { sectors, len: Window::default(), syncs: 0 }
    }

    /// Just before `time`.
    fn crash_at(&mut self, time: u64, versions: &Versions) {
        while let Some(sync) = versions.syncs.get(self.syncs).filter(|it| it.ended < time) {
            if sync.only.is_none() {
                self.len.synced(&versions.lens, sync.begun);
            }
            let all = self.sectors.iter_mut().zip(&versions.sectors).enumerate();
            for (_, (window, versions)) in all.filter(|&(n, _)| sync.is_of(n)) {
                window.synced(versions, sync.begun);
            }
            self.syncs += 1;
        }
        self.len.crash_at(&versions.lens, time);
        for (window, versions) in self.sectors.iter_mut().zip(&versions.sectors) {
            window.crash_at(versions, time);
        }
    }
}

/// Error: the first state that may not be, in words.
pub(super) fn judge(
    subject: &Judged<'_>,
    contents: &mut Contents,
    random: &mut fastrand::Rng,
) -> Result<CrashReport, String> {
    let versions = subject.versions;
    let first: Vec<u32> = versions.sectors.iter().map(|it| it[0].value).collect();
    // A misplaced write may end behind all that the file ever had.
    let mut device = Device::new(first.len() + 1, &first, versions.lens[0].value);
    let mut windows = Windows::new(versions);
    let mut report = CrashReport { steps: subject.steps.len() as u64, ..CrashReport::default() };
    let mut state = Vec::new();
    let mut choices = Choices::default();
    for done in 0..=subject.steps.len() {
        windows.crash_at(subject.steps.get(done).map_or(u64::MAX, |next| next.at), versions);
        for changes in drawn_changes(&device, random) {
            let len = device.after(changes, &mut choices);
            let most = choices.iter().map(<[u32]>::len).max().unwrap_or(1);
            let drawn = if most > 1 { DRAWN_STATES } else { 0 };
            for n in 0..most + drawn {
                state.clear();
                state.extend(choices.iter().map(|of| {
                    let n = if n < most { n.min(of.len() - 1) } else { random.usize(..of.len()) };
                    of[n]
                }));
                report.states += 1;
                check(versions, subject.alignment, &windows, &state, len, contents).map_err(
                    |what| {
                        let steps = subject.steps.len();
                        format!(
                            "{}, a crash after {done} of {steps} writes, syncs and changes of the \
                         length, state {n} with {changes} of the changes of the length: {what}",
                            subject.name
                        )
                    },
                )?;
            }
        }
        if let Some(next) = subject.steps.get(done) {
            device.apply(&next.step, contents);
        }
    }
    Ok(report)
}

/// Whether a file that has these `bytes` now is one that it may be.
pub(super) fn judge_now(
    versions: &Versions,
    bytes: &[u8],
    contents: &mut Contents,
) -> Result<(), String> {
    let mut windows = Windows::new(versions);
    windows.crash_at(u64::MAX, versions);
    let state = contents.numbers(bytes);
    check(versions, 1, &windows, &state, bytes.len(), contents)
}

fn drawn_changes(device: &Device, random: &mut fastrand::Rng) -> Vec<usize> {
    let changes = device.changes();
    let (first, last) = (*changes.start(), *changes.end());
    if last - first < CHANGES_MAX {
        return changes.collect();
    }
    let drawn = (2..CHANGES_MAX).map(|_| random.usize(first + 1..last));
    [first, last].into_iter().chain(drawn).collect()
}

fn check(
    versions: &Versions,
    alignment: usize,
    windows: &Windows,
    state: &[u32],
    len: usize,
    contents: &Contents,
) -> Result<(), String> {
    let lens = windows.len.of(&versions.lens);
    if !len_may_be(len, lens, alignment) {
        let may: Vec<String> = lens.iter().map(|it| it.value.to_string()).collect();
        let synced = synced(versions, windows, &lens[0]);
        return Err(format!("it has {len} bytes, and had since {synced}: {}", may.join(", ")));
    }
    for (n, &content) in state.iter().enumerate() {
        // More than it ever had are behind its end, as the length was right.
        let Some(all) = versions.sectors.get(n) else { continue };
        let may = windows.sectors[n].of(all);
        let bytes = (len - n * SECTOR).min(SECTOR);
        if !history::has(may, content, bytes, contents) {
            let names = may.iter().map(|it| history::name(all, it.value));
            let names: Vec<String> = names.collect();
            return Err(format!(
                "sector {n}, at byte {}, has {}, and had since {}: {}",
                n * SECTOR,
                history::name(all, content),
                synced(versions, windows, &may[0]),
                names.join("; ")
            ));
        }
    }
    Ok(())
}

/// Which sync has made that version durable.
fn synced<T>(versions: &Versions, windows: &Windows, version: &Version<T>) -> String {
    let returned = &versions.syncs[..windows.syncs];
    let covers = |sync: &&Sync| version.by > 0 && version.ended < sync.begun;
    match returned.iter().rev().find(covers) {
        Some(sync) => format!("operation {}, a sync,", sync.by),
        None => "it was opened".to_owned(),
    }
}

/// One that it had. While it grows, a first part comes first, of whole sectors; and a source that
/// takes blocks has whole blocks before it is cut to its bytes.
fn len_may_be(len: usize, lens: &[Version<usize>], alignment: usize) -> bool {
    lens.iter().any(|it| it.value == len || it.value.next_multiple_of(alignment) == len)
        || len.is_multiple_of(SECTOR)
            && lens.windows(2).any(|it| (it[0].value..it[1].value).contains(&len))
}
