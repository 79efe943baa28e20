//! The futures that wait for memory, and what they claim. It says who is to be woken.
//!
//! There is a line for each file, and one for all copies (`futures/room.rs`): a file whose reads
//! hang keeps no others waiting. Each step of progress wakes the first of one line, and the lines
//! take turns: waking all would make each try in vain.
//!
//! | a future that | does |
//! |---|---|
//! | is new | tries, unless its file has a line, or some line waits for memory: then it queues |
//! | is woken and gets what it wants | leaves, and wakes the next: there may be more |
//! | is woken and is refused | keeps its place; if its file alone is why, the next line tries |
//! | is refused for copies of its file that are being read | goes to the end of its line |
//! | is dropped after it was woken | leaves, and wakes the next |
//! | is woken and not polled for a while | is passed over: the next two of its line are woken, or four if these are not polled either, and so on; who is new need not queue behind it; polled after all, it has its place still |
//!
//! Each claims its pages while its read is under way, and a file's claims are bounded as what it
//! has on its way is. One future of a file may always begin.
//!
//! A batch that finds no memory drops its guards and queues again. After some such retreats it
//! waits with its guards, but one batch of the cache at a time, the *keeper*: two could wait for
//! each other. A keeper that was woken and is not polled is passed over, too: the next batch that
//! asks is the keeper, and the one before learns that when it is polled, and drops its guards.
//!
//! Nobody notes that a guard was put: so the daemon wakes a future from time to time, and passes
//! over those that are not polled (`reclaim/daemon.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::base::mutant::{self, Mutant};
use crate::base::sizes::{ROUND, UNPOLLED};

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Of memory or claims that were given back, fills that ended, workers that became free.
    pub(super) times: u64,
    /// By the file. A line without futures and claims is removed.
    pub(super) lines: BTreeMap<u32, Line>,
    /// Files with a future to wake.
    order: VecDeque<u32>,
    /// Lines that wait for memory.
    short: usize,
    claims: Claims,
    /// The present round of claims, and since when it lasts.
    round: u32,
    round_since: Option<Instant>,
    last: u64,
    keeper: Option<Keeper>,
    /// How often a keeper was passed over that was polled after all.
    slow: u32,
}

#[derive(Debug)]
struct Keeper {
    keeps: Keeps,
    /// Its turn for memory, once its first poll has ended.
    turn: Option<(u32, Turn)>,
    /// When it was woken, if it was not polled since.
    woken: Option<Instant>,
}

/// What the keeper has; another batch may be the keeper by now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Keeps(u64);

#[derive(Debug, Default)]
pub(super) struct Line {
    /// Ordered by their turns.
    queue: VecDeque<(Turn, QueuedState)>,
    passed_over: usize,
    /// How many are woken at once, beyond one: more each time that none of them is polled.
    at_once_more: usize,
    /// How many were woken and not polled, and when the last one was woken.
    awake: usize,
    woken: Option<Instant>,
    /// It is in `Queue::order`.
    listed: bool,
    /// The last one that tried found no memory.
    short: bool,
    tried: Option<u64>,
    claims: Claims,
}

#[derive(Debug)]
enum QueuedState {
    Sleeps(Waker),
    /// It tries when it is polled.
    Awake,
    /// It was not polled for so long that it counts no more.
    PassedOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) claimed: u32,
    /// One future may have more.
    pub(crate) most: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It has not tried.
    Behind,
    /// For what its own file has on its way; or it wants a copy. Others may be luckier.
    OwnFile,
    /// Of its own file that are being read: those behind it in its line may be luckier.
    OwnCopies,
    NoMemory,
}

/// A keeper that is passed over loses what it has brought. So if it is polled after all, the next
/// one is given twice the time; so often at most.
const SLOW_MAX: u32 = 4;

impl Queue {
    /// If there is no keeper, or that one is not polled.
    pub(super) fn may_keep_guards(&mut self) -> Option<Keeps> {
        let most = self.keeper_unpolled();
        let is_passed_over = |keeper: &Keeper| {
            keeper.woken.is_some_and(|since| since.elapsed() >= most)
                && !mutant::on(Mutant::UnpolledKeepsGuards)
        };
        let may = self.keeper.as_ref().is_none_or(is_passed_over);
        (may || mutant::on(Mutant::AllKeepGuards)).then(|| {
            self.last += 1;
            self.keeper = Some(Keeper { keeps: Keeps(self.last), turn: None, woken: None });
            Keeps(self.last)
        })
    }

    pub(super) fn keeper_unpolled(&self) -> Duration {
        UNPOLLED * (1 << self.slow)
    }

    pub(super) fn keeps_guards(&mut self, keeps: &Keeps, (file, turn): (u32, Turn)) -> bool {
        let line = &self.lines[&file];
        let is_woken = !line.queue[line.at(turn).expect("it has a turn")].1.sleeps();
        let Some(keeper) = self.keeper.as_mut().filter(|keeper| keeper.keeps == *keeps) else {
            self.slow = SLOW_MAX.min(self.slow + 1);
            return mutant::on(Mutant::AllKeepGuards) || mutant::on(Mutant::PassedOverKeepsGuards);
        };
        keeper.turn = Some((file, turn));
        keeper.woken = is_woken.then(Instant::now);
        true
    }

    /// False if it was not the keeper.
    pub(super) fn keeps_no_guards(&mut self, keeps: &Keeps) -> bool {
        self.keeper.take_if(|keeper| keeper.keeps == *keeps).is_some()
    }

    #[cfg(all(test, shuttle))]
    pub(super) fn has_keeper(&self) -> bool {
        self.keeper.is_some()
    }

    pub(super) fn give_up(&mut self, file: u32, claim: Claim) {
        if claim.pages() > 0 {
            self.claims.take(claim, self.round);
            let line = self.lines.get_mut(&file).expect("it has a claim");
            line.claims.take(claim, self.round);
            self.tidy(file);
        }
    }

    pub(super) fn renew(&mut self, file: u32, claim: &mut Claim) {
        let renewed = Claim::new(claim.pages(), self.round);
        let line = &mut self.lines.get_mut(&file).expect("it has a claim").claims;
        for claims in [&mut self.claims, line] {
            claims.take(*claim, self.round);
            claims.add(renewed, self.round);
        }
        *claim = renewed;
    }

    /// If it has lasted long enough. Returns the present one.
    pub(super) fn next_round(&mut self) -> u32 {
        let since = self.round_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= ROUND {
            *since = Instant::now();
            self.round = self.round.wrapping_add(1);
            self.claims.grow_old();
            self.lines.values_mut().for_each(|line| line.claims.grow_old());
        }
        self.round
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn claimed(&self, file: u32) -> [u32; 2] {
        [self.claims.all(), self.lines.get(&file).map_or(0, |line| line.claims.all())]
    }

    fn tidy(&mut self, file: u32) {
        let is_empty = |line: &Line| line.queue.is_empty() && line.claims.all() == 0;
        if self.lines.get(&file).is_some_and(is_empty) {
            self.lines.remove(&file);
        }
    }

    fn set_short(&mut self, file: u32, short: bool) {
        let line = self.lines.get_mut(&file).expect("it has futures");
        let was = std::mem::replace(&mut line.short, short);
        self.short = self.short + usize::from(short) - usize::from(was);
    }

    /// Puts the file into the order, or takes it out.
    fn list(&mut self, file: u32) {
        let line = self.lines.get_mut(&file).expect("it has futures");
        if !line.listed && line.sleepers() > 0 && line.awake == 0 {
            line.listed = true;
            self.order.push_back(file);
        } else if line.listed && line.sleepers() == 0 {
            line.listed = false;
            self.order.retain(|&listed| listed != file);
        }
    }

    /// To be woken without the mutex.
    fn next(&mut self) -> Vec<Waker> {
        let Some(file) = self.order.pop_front() else { return Vec::new() };
        self.set_short(file, false);
        let line = self.lines.get_mut(&file).expect("it is listed");
        line.listed = false;
        let now = Instant::now();
        line.woken = Some(now);
        let sleepers = line.queue.iter_mut().filter(|(_, state)| state.sleeps());
        let mut woken = Vec::new();
        for (turn, state) in sleepers.take(1 + line.at_once_more) {
            if let Some(keeper) = &mut self.keeper
                && keeper.turn == Some((file, *turn))
            {
                keeper.woken = Some(now);
            }
            if let QueuedState::Sleeps(waker) = std::mem::replace(state, QueuedState::Awake) {
                woken.push(waker);
            }
        }
        line.awake += woken.len();
        woken
    }

    /// Unless all have tried since the last step of progress.
    fn next_untried(&mut self) -> Vec<Waker> {
        let untried = |file: &u32| self.lines[file].tried != Some(self.times);
        if self.order.front().is_some_and(untried) { self.next() } else { Vec::new() }
    }

    /// Passes over those that are not polled, of the line whose last one was woken the longest ago.
    pub(super) fn next_or_pass_over(&mut self) -> Vec<Waker> {
        let unpolled = |(&file, line): (&u32, &Line)| {
            let since = line.woken.filter(|since| since.elapsed() >= UNPOLLED)?;
            (line.awake > 0 && line.sleepers() > 0).then_some((since, file))
        };
        if let Some((_, file)) = self.lines.iter().filter_map(unpolled).min() {
            self.lines.get_mut(&file).expect("it was found").pass_over();
            self.list(file);
        }
        self.next()
    }

    pub(super) fn step(&mut self, file: u32, claimed: Claim) -> Vec<Waker> {
        self.give_up(file, claimed);
        self.times += 1;
        self.next()
    }

    /// See [`Pressure::claim`](super::Pressure::claim). `on_their_way`: of all files, and its own.
    pub(super) fn claim(
        &mut self,
        (file, pages): (u32, u32),
        queues: bool,
        on_their_way: [u32; 2],
        pages_max: u32,
    ) -> (Result<Claim, Refused>, u64) {
        let is_short = self.short > 0;
        let share = self.share(file, on_their_way, pages_max);
        let line = self.lines.entry(file).or_default();
        let behind = !queues && (is_short || line.has_futures());
        let claimed = if behind && !mutant::on(Mutant::NewcomerFirst) {
            Err(Refused::Behind)
        } else if share.claimed > 0 && share.claimed + pages > share.most {
            Err(Refused::OwnFile)
        } else {
            let claim = Claim::new(pages, self.round);
            line.claims.add(claim, self.round);
            self.claims.add(claim, self.round);
            Ok(claim)
        };
        self.tidy(file);
        (claimed, self.times)
    }

    /// Each of n files has an n + 1th.
    pub(super) fn share(&self, file: u32, [all, own]: [u32; 2], pages_max: u32) -> Share {
        let claimed = self.lines.get(&file).map_or(0, |line| line.claims.counted(own));
        let others = self.claims.counted(all).saturating_sub(claimed);
        Share { claimed, most: pages_max.saturating_sub(others) / 2 }
    }

    pub(super) fn has_sleepers(&self) -> bool {
        self.lines.values().any(|line| line.sleepers() > 0)
    }

    /// See [`Pressure::queue`](super::Pressure::queue); with others that are to be woken.
    /// `Err`: it has to try again.
    pub(super) fn add(
        &mut self,
        (file, turn): (u32, Option<Turn>),
        (why, seen): (Refused, u64),
        waker: Waker,
    ) -> Result<(Turn, Vec<Waker>), Waker> {
        // Those before it may have left.
        let behind = self.short > 0 || self.lines.get(&file).is_some_and(Line::has_futures);
        if self.times != seen || (why == Refused::Behind && !behind) {
            return Err(waker);
        }
        self.last += 1;
        let new = Turn(self.last);
        let line = self.lines.entry(file).or_default();
        let goes_last = why == Refused::OwnCopies && !mutant::on(Mutant::CopyKeepsTurn);
        let goes_last = goes_last || mutant::on(Mutant::RefusedLast);
        let old = turn.and_then(|turn| line.at(turn));
        if let Some(at) = old {
            line.polled(at);
        }
        let turn = match (turn, old) {
            (Some(turn), Some(at)) if !goes_last => {
                line.queue[at].1 = QueuedState::Sleeps(waker);
                turn
            }
            _ => {
                let _ = old.map(|at| line.queue.remove(at));
                line.queue.push_back((new, QueuedState::Sleeps(waker)));
                new
            }
        };
        if why != Refused::Behind {
            line.tried = Some(seen);
            self.set_short(file, why == Refused::NoMemory);
        }
        self.list(file);
        let next = if why == Refused::OwnFile { self.next_untried() } else { Vec::new() };
        Ok((turn, next))
    }

    /// Then `waker` is exchanged for the one that it left.
    pub(super) fn is_queued(&mut self, file: u32, turn: Turn, waker: &mut Waker) -> bool {
        let line = self.lines.get_mut(&file).expect("it queues");
        let at = line.at(turn).expect("it has a turn");
        let QueuedState::Sleeps(left) = &mut line.queue[at].1 else { return false };
        std::mem::swap(left, waker);
        true
    }

    /// Its waker, unless it was woken, and those to be woken next, if it was and `gives_on`.
    pub(super) fn remove(
        &mut self,
        file: u32,
        turn: Turn,
        gives_on: bool,
    ) -> (Option<Waker>, Vec<Waker>) {
        let line = self.lines.get_mut(&file).expect("it queues");
        let at = line.at(turn).expect("it has a turn");
        let was_woken = !line.queue[at].1.sleeps();
        if was_woken {
            line.polled(at);
            line.tried = None;
        }
        let waker = match line.queue.remove(at) {
            Some((_, QueuedState::Sleeps(waker))) => Some(waker),
            _ => None,
        };
        self.list(file);
        if was_woken || !self.lines[&file].has_futures() {
            self.set_short(file, false);
        }
        self.tidy(file);
        let next = if was_woken && gives_on { self.next() } else { Vec::new() };
        (waker, next)
    }
}

impl QueuedState {
    fn sleeps(&self) -> bool {
        matches!(self, QueuedState::Sleeps(_))
    }
}

impl Line {
    /// Without those that were passed over.
    fn has_futures(&self) -> bool {
        let passed_over = if mutant::on(Mutant::PassedOverFirst) { 0 } else { self.passed_over };
        self.queue.len() > passed_over
    }

    fn sleepers(&self) -> usize {
        self.queue.len() - self.awake - self.passed_over
    }

    fn polled(&mut self, at: usize) {
        self.at_once_more = 0;
        match self.queue[at].1 {
            QueuedState::Sleeps(_) => unreachable!("it was woken"),
            QueuedState::Awake => self.awake -= 1,
            QueuedState::PassedOver => self.passed_over -= 1,
        }
    }

    fn pass_over(&mut self) {
        for (_, state) in &mut self.queue {
            if matches!(state, QueuedState::Awake) {
                *state = QueuedState::PassedOver;
            }
        }
        self.passed_over += std::mem::take(&mut self.awake);
        if !mutant::on(Mutant::PassesOverSingly) {
            self.at_once_more = (2 * self.at_once_more + 1).min(self.queue.len());
        }
    }

    fn at(&self, turn: Turn) -> Option<usize> {
        self.queue.binary_search_by_key(&turn, |&(turn, _)| turn).ok()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    pages: u32,
    /// When the future was polled last.
    round: u32,
}

impl Claim {
    pub(super) fn new(pages: u32, round: u32) -> Self {
        Claim { pages, round }
    }

    pub(crate) fn pages(self) -> u32 {
        self.pages
    }

    pub(super) fn round(self) -> u32 {
        self.round
    }
}

/// Pages that some futures bring, and that are held until they are polled. A future may be leaked,
/// or not polled: so claims count by *rounds*, which end while futures queue. One that is polled
/// renews its claim. Of rounds before the last, only as much counts as is still being read.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Of this round and of the last one.
    young: [u32; 2],
    old: u32,
}

impl Claims {
    fn of(&mut self, round: u32, now: u32) -> &mut u32 {
        match now.wrapping_sub(round) {
            age @ (0 | 1) => &mut self.young[age as usize],
            _ => &mut self.old,
        }
    }

    pub(super) fn add(&mut self, claim: Claim, now: u32) {
        *self.of(claim.round, now) += claim.pages;
    }

    pub(super) fn take(&mut self, claim: Claim, now: u32) {
        *self.of(claim.round, now) -= claim.pages;
    }

    pub(super) fn grow_old(&mut self) {
        let [this, last] = self.young;
        self.old += last;
        self.young = [0, this];
    }

    pub(super) fn all(&self) -> u32 {
        self.young[0] + self.young[1] + self.old
    }

    /// While so many pages are on their way: of these futures, or of others.
    pub(super) fn counted(&self, on_their_way: u32) -> u32 {
        let young = self.young[0] + self.young[1];
        let old_counts = mutant::on(Mutant::UnpolledKeepsClaim);
        let most = if old_counts { u32::MAX } else { on_their_way };
        young.max(self.all().min(most))
    }
}
