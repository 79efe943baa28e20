//! The loop: what is done in a round, in a client's turn, for a message, and when a read has ended.

use std::collections::hash_map;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::ahead::{AheadPlan, ReadFor};
use super::client::{Client, FaultOutcome};
use super::error::{ClientError, ClientResult};
use super::foreign::{self, Message};
use super::pages::adjacent;
use super::turns::{AHEAD_MAX, CALL_MAX, ClientTurn, READS_MAX};
use super::{COMPLETIONS, ClientEvent, ClientId, Clients, ReadJob};
use crate::base::mutant::{self, Mutant};
use crate::error::{Error, Result};
use crate::file::completions::Completion;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::map::around;
use crate::pages::{fill, reclaim};

/// The most clients of which one look learns that they have something to say.
const EVENTS_MAX: usize = 1024;

/// The most reads that are given to clients in one round.
const COMPLETIONS_MAX: usize = 256;

/// How long a fault rests in all for room in the mirror.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

impl Clients {
    /// How long the loop may wait for the descriptor: `None` for as long as it takes.
    pub fn timeout(&self) -> Option<Duration> {
        if self.turns.has_something() {
            return Some(Duration::ZERO);
        }
        let (due, _) = self.due.first()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Notes when a client has to be looked after. For reads of all it waits, if it could go on
    /// otherwise.
    pub(super) fn schedule(&mut self, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        let now = Instant::now();
        let due = self.due(client, now);
        if due > now && (client.is_paused || client.ahead.is_some()) {
            self.turns.waiting.insert(id);
        }
        if client.due_at != Some(due) {
            client.due_at.map(|at| self.due.remove(&(at, id)));
            self.due.insert((due, id));
            if let Some(client) = self.clients.get_mut(&id) {
                client.due_at = Some(due);
            }
        }
    }

    /// When a client has to be looked after, if nothing happens before.
    fn due(&self, client: &Client, now: Instant) -> Instant {
        #[cfg(test)]
        self.looks.update(|looks| looks + 1);
        let has_work = !client.came.is_empty()
            || (client.ahead.is_some() && self.goes_ahead(client))
            || client.is_paused != self.has_to_pause(client);
        if has_work { now } else { client.due() }
    }

    /// Does what there is to do, a bounded part of it, in which each client has its share. It waits
    /// for no read, write or memory of this process, but for the lock of a client's memory.
    pub fn work(&mut self) -> Vec<ClientEvent> {
        if !self.is_here() {
            return Vec::new(); // a forked child shares the descriptors, and must leave them alone
        }
        if !self.turns.is_in_round() {
            self.gather();
        }
        let began = Instant::now();
        // Ends: with the round, or earlier.
        while let Some(id) = self.turns.next() {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            client.is_ready = false;
            if client.is_broken {
                self.end_if(id, Err(ClientError::blocking()));
                continue;
            }
            let mut turn = ClientTurn::begin();
            let served = self.serve(id, &mut turn);
            let served = served.and_then(|()| self.count_pieces(id));
            self.end_if(id, served);
            self.set_pause(id);
            self.schedule(id);
            if began.elapsed() >= CALL_MAX {
                break;
            }
        }
        std::mem::take(&mut self.told)
    }

    /// Begins a round: finds the clients that have something to do.
    fn gather(&mut self) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted: the loop comes back.
        let events = epoll::wait(&self.epoll, &mut events, Some(&now));
        for event in events.map_or(&mut [][..], |(events, _)| events) {
            let (id, flags) = (event.data.u64(), event.flags);
            if id == COMPLETIONS {
                self.take_completions();
            } else if let Some(client) = self.clients.get_mut(&id) {
                client.is_broken |=
                    flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
                client.has_said = true;
                self.turns.add(id, &mut client.is_ready);
            }
        }
        if mutant::on(Mutant::IdleLookedAt) {
            let all: Vec<u64> = self.clients.keys().copied().collect();
            for id in all {
                self.schedule(id);
            }
        }
        // Ends: what is scheduled here does not wait again before a read ends.
        while let Some(id) = self.turns.released() {
            self.schedule(id);
        }
        let now = Instant::now();
        // Ends: each turn takes one.
        while let Some(&(at, id)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            let Some(client) = self.clients.get_mut(&id) else { continue };
            client.due_at = None;
            self.turns.add(id, &mut client.is_ready);
        }
    }

    fn serve(&mut self, id: u64, turn: &mut ClientTurn) -> ClientResult {
        // Ends: each turn takes one.
        while let Some(client) = self.clients.get_mut(&id)
            && let Some((what, came)) = client.came.pop_front()
        {
            match what {
                ReadFor::Fault(page) => self.page_came(id, page, came)?,
                // What cannot be read is read again when it is asked for.
                ReadFor::Ahead(plan, pieces, _) => self.pieces_came(id, &plan, pieces)?,
            }
            if turn.is_over() {
                return Ok(());
            }
        }
        self.try_again(id, turn)?;
        self.hear(id, turn)?;
        if let Some(client) = self.clients.get_mut(&id) {
            client.look_whether_it_lives()?;
        }
        if turn.has_time() { self.go_ahead(id) } else { Ok(()) }
    }

    /// Counts what is kept of a client's pages. An error: it is too much, with that of the others.
    pub(super) fn count_pieces(&mut self, id: u64) -> ClientResult {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let now = client.pieces();
        let before = std::mem::replace(&mut client.counted, now);
        let all = &mut self.turns.pieces;
        for ((all, now), before) in all.iter_mut().zip(now).zip(before) {
            *all = *all + now - before;
        }
        if mutant::on(Mutant::PiecesOfEach) { Ok(()) } else { client.have(*all) }
    }

    fn end_if(&mut self, id: u64, done: ClientResult) {
        if let Err(cause) = done {
            self.remove(ClientId(id));
            self.told.push(ClientEvent::Ended { client: ClientId(id), cause });
        }
    }

    /// Reads a client's messages, as many as fit into its turn.
    pub(super) fn hear(&mut self, id: u64, turn: &mut ClientTurn) -> ClientResult {
        // Ends: with the messages, or with the turn.
        while let Some(client) = self.clients.get(&id)
            && client.has_said
            && !turn.is_over()
            && !self.has_to_pause(client)
        {
            let mut messages = std::mem::take(&mut self.messages);
            let mut children = Vec::new();
            let read = client.uffd.read(&mut messages, &mut children);
            turn.heard(messages.len());
            let are_all = messages.len() < foreign::MESSAGES_MAX;
            let read = match read.map_err(ClientError::of_read) {
                Ok(()) if !children.is_empty() => {
                    Err(ClientError::Forked { children: children.into() })
                }
                read => read,
            };
            let taken = read.and_then(|()| self.take(id, &mut messages));
            messages.clear();
            self.messages = messages;
            taken?;
            if are_all {
                break;
            }
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.has_said = false; // the epoll says so again
        }
        Ok(())
    }

    /// Does what a client's messages say, of which there are few.
    pub(super) fn take(&mut self, id: u64, messages: &mut Vec<Message>) -> ClientResult {
        // What the client did to its memory first: since these messages were read, the kernel lets
        // pages be installed again, and a fault must not install what was removed.
        if !mutant::on(Mutant::EventsAfterFaults) {
            messages.sort_by_key(|message| matches!(message, Message::Fault(_)));
        }
        let mut has_changed = false;
        for message in messages.drain(..) {
            let Some(client) = self.clients.get_mut(&id) else { break };
            let Message::Fault(address) = message else {
                client.hear(message)?;
                has_changed = true;
                continue;
            };
            self.stats.faults += 1;
            let address = address & !(PAGE_BYTES as u64 - 1);
            if has_changed && client.page_at(address).is_err() {
                client.wake(address); // it may be mapped elsewhere by now: it asks again
            } else {
                self.fault(id, address, Duration::ZERO)?;
            }
        }
        Ok(())
    }

    /// A fault that is new, or is tried again.
    pub(super) fn fault(&mut self, id: u64, address: u64, short_for: Duration) -> ClientResult {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let page = match client.page_at(address) {
            // It may have moved its memory there, which is not told yet.
            Err(_) if client.uffd.is_changing(address) && !mutant::on(Mutant::OutsideAtOnce) => {
                self.rest(id, address, short_for);
                return Ok(());
            }
            page => page?,
        };
        if let (Some(touched), Some(page)) = (&mut self.touched, page)
            && !client.is_zero(&self.snapshot, page)
        {
            touched.push(page);
        }
        match self.put(id, page.unwrap_or_default(), address)? {
            Some(FaultOutcome::Later) => self.rest(id, address, short_for),
            // It was read, often, and is not in the mirror.
            Some(FaultOutcome::Absent(page)) if short_for > PATIENCE => {
                let handle = self.snapshot.file.handle();
                let short = reclaim::shortage(&handle.core, PAGE_BYTES as u64);
                let cause = short.of(&handle.mapping, page);
                self.fail(id, page, cause);
            }
            Some(FaultOutcome::Absent(page)) => self.read(id, page, short_for),
            Some(FaultOutcome::Done) | None => {}
        }
        Ok(())
    }

    /// Installs the page at `address`, and counts it. `None`: it cannot be had, which is told.
    fn put(&mut self, id: u64, page: u64, address: u64) -> ClientResult<Option<FaultOutcome>> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(None) };
        let served = client.serve(&mut self.snapshot, address, self.touched.is_some());
        self.stats.installed += std::mem::take(&mut client.uncounted);
        match served {
            Ok(served) => Ok(Some(served)),
            Err(ClientError::Cache(cause)) => {
                self.fail(id, page, cause);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn rest(&mut self, id: u64, address: u64, short_for: Duration) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.rest(address, short_for);
            self.stats.again += 1;
        }
    }

    fn fail(&mut self, id: u64, page: u64, cause: Error) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if !client.fail(page) {
            return;
        }
        self.stats.failed += 1;
        let (client, offset) = (ClientId(id), page << PAGE_SHIFT);
        self.told.push(ClientEvent::PageFailed { client, offset, cause });
    }

    /// Begins to read a page for a fault, and what is around it, unless that is under way.
    fn read(&mut self, id: u64, page: u64, short_for: Duration) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if let hash_map::Entry::Vacant(waiting) = client.waiting.entry(page) {
            waiting.insert(short_for);
            self.stats.waited += 1;
            self.turns.read(id, page);
            self.begin_reads();
        }
    }

    /// Begins reads that faults wait for: so many that half of what the source carries out at a
    /// time is left to others. A part of it that is slow, or that does not answer, keeps no more.
    /// Of what is read ahead, the half of that is begun.
    pub(super) fn begin_reads(&mut self) {
        let most = (self.snapshot.file.handle().mapping.backing.at_once() / 2).max(1);
        // Ends: each turn begins one.
        while let Some((id, page)) = self.turns.begin_read(most) {
            let client = self.clients.get(&id).expect("no reads are left of who has left");
            self.last_job += 1;
            self.jobs.insert(self.last_job, ReadJob { client: id, what: ReadFor::Fault(page) });
            around::begin(client.file.handle(), page, self.snapshot.around(page));
            self.completions.read_at(&client.file, vec![0], page << PAGE_SHIFT, self.last_job);
        }
        // Ends: as above.
        while let Some((number, pages)) = self.turns.begin_ahead(most) {
            // By the file's common handle, so that the client's has the order of its faults alone.
            let file = &self.snapshot.file;
            let (page, rest) = fill::start_first(file.handle(), pages);
            self.completions.read_at(file, vec![0], page << PAGE_SHIFT, number);
            if !rest.is_empty()
                && let Some(ReadJob { what: ReadFor::Ahead(_, _, left), .. }) =
                    self.jobs.get_mut(&number)
            {
                *left += 1;
                self.turns.goes_on_ahead(number, rest);
            }
        }
    }

    pub(super) fn take_completions(&mut self) {
        for _ in 0..COMPLETIONS_MAX {
            let Some((number, completion)) = self.completions.next() else { return };
            let Completion::Read { result, .. } = completion else {
                unreachable!("a byte is read of each page: {completion:?}")
            };
            let hash_map::Entry::Occupied(mut job) = self.jobs.entry(number) else {
                continue;
            };
            let is_over = match &mut job.get_mut().what {
                ReadFor::Fault(_) => {
                    self.turns.end_read();
                    true
                }
                ReadFor::Ahead(_, _, left) => {
                    *left -= 1;
                    self.turns.end_ahead(*left == 0);
                    *left == 0
                }
            };
            let job = is_over.then(|| job.remove());
            self.begin_reads();
            let Some(ReadJob { client: id, what }) = job else { continue };
            let Some(client) = self.clients.get_mut(&id) else { continue }; // it has left
            client.came.push_back((what, result.map(drop)));
            self.turns.add(id, &mut client.is_ready);
        }
    }

    /// The page for which a fault has waited was read.
    pub(super) fn page_came(&mut self, id: u64, page: u64, result: Result<()>) -> ClientResult {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let mut short_for = client.waiting.remove(&page).unwrap_or_default();
        let handle = self.snapshot.file.handle();
        if let Err(cause) = result.and_then(|()| handle.check_page(page)) {
            self.fail(id, page, cause);
            return Ok(());
        }
        // Unmapped meanwhile: nobody waits.
        let Some(address) = client.address_of(page) else { return Ok(()) };
        match self.put(id, page, address)? {
            Some(FaultOutcome::Done) => self.keep(page),
            Some(FaultOutcome::Absent(_) | FaultOutcome::Later) => {
                if mutant::on(Mutant::ShortAnew) {
                    short_for = Duration::ZERO;
                }
                let rest = self.clients.get(&id).map_or(Duration::ZERO, |client| client.rest);
                self.rest(id, address, short_for + rest);
            }
            None => {}
        }
        Ok(())
    }

    /// Keeps a page that was just installed from eviction for a while: the client has not run yet.
    fn keep(&self, page: u64) {
        let handle = self.snapshot.file.handle();
        if let Some(held) = handle.core.hold(&handle.mapping, page)
            && held.frame().is_hollow()
        {
            handle.core.keep_recent(held);
        }
    }

    fn try_again(&mut self, id: u64, turn: &mut ClientTurn) -> ClientResult {
        // Ends: with the turn; each rests anew, or is none any more.
        while let Some(client) = self.clients.get_mut(&id)
            && !turn.is_over()
            && let Some(again) = client.rested()
        {
            turn.heard(1);
            if client.page_at(again.address).is_ok() {
                self.fault(id, again.address, again.short_for)?;
            } else {
                client.wake(again.address); // it may be mapped elsewhere by now: it asks again
            }
        }
        Ok(())
    }

    /// Whether a client's faults are left in the kernel: too many wait for reads.
    pub(super) fn has_to_pause(&self, client: &Client) -> bool {
        let most = if client.is_paused { READS_MAX / 2 } else { READS_MAX };
        let rest = if mutant::on(Mutant::RestsPause) { client.again.len() } else { 0 };
        self.turns.reads + rest >= most
    }

    /// Waits for a client's faults, or does not while it has to pause.
    pub(super) fn set_pause(&mut self, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        let pause = self.has_to_pause(client);
        if pause != client.is_paused {
            let flags = if pause { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
            let data = epoll::EventData::new_u64(id);
            if epoll::modify(&self.epoll, &client.uffd, data, flags).is_ok()
                && let Some(client) = self.clients.get_mut(&id)
            {
                client.is_paused = pause;
            }
        }
    }

    /// Whether more can be installed ahead in a client's memory now, or nothing is left to do.
    fn goes_ahead(&self, client: &Client) -> bool {
        let Some(ahead) = &client.ahead else { return false };
        ahead.is_over() || (ahead.goes_on() && self.turns.ahead < AHEAD_MAX)
    }

    /// Installs the next pieces ahead, and begins to read what is absent of them.
    fn go_ahead(&mut self, id: u64) -> ClientResult {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if client.ahead.take_if(|ahead| ahead.is_over()).is_some() {
            self.stats.ahead -= 1;
        }
        let Some(ahead) = &mut client.ahead else { return Ok(()) };
        if self.turns.ahead >= AHEAD_MAX {
            return Ok(());
        }
        let Some(pieces) = ahead.next() else { return Ok(()) };
        let plan = ahead.plan.clone();
        let mut parts = Vec::new();
        for piece in plan.pieces(pieces.clone()) {
            let absent = self.install_piece(id, piece)?;
            parts.extend(self.parts_to_read(&absent));
        }
        if !parts.is_empty() {
            if let Some(ahead) = self.clients.get_mut(&id).and_then(|it| it.ahead.as_mut()) {
                ahead.reads += 1;
            }
            self.last_job += 1;
            let what = ReadFor::Ahead(plan, pieces, parts.len());
            self.turns.ahead += 1;
            self.jobs.insert(self.last_job, ReadJob { client: id, what });
            self.turns.read_ahead(self.last_job, parts);
            self.begin_reads();
        }
        Ok(())
    }

    /// Installs what is there of a piece; returns the pages that are not.
    fn install_piece(&mut self, id: u64, piece: &[u64]) -> ClientResult<Vec<u64>> {
        let mut absent = Vec::new();
        let Some(client) = self.clients.get_mut(&id) else { return Ok(absent) };
        for wanted in adjacent(piece) {
            for page in wanted.clone() {
                let served = client.serve_ahead(&mut self.snapshot, page, &wanted);
                self.stats.installed_ahead += std::mem::take(&mut client.uncounted);
                match served {
                    Ok(FaultOutcome::Absent(page)) => absent.push(page),
                    Ok(_) | Err(ClientError::Cache(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(absent)
    }

    /// What is read for the absent pages of a piece: as long as memory is plenty, what is between
    /// them, too.
    fn parts_to_read(&self, absent: &[u64]) -> Vec<Range<u64>> {
        let (Some(first), Some(last)) = (absent.first(), absent.last()) else { return Vec::new() };
        if around::is_room(&self.snapshot.file.handle().core) {
            return self.snapshot.data(*first..last + 1);
        }
        adjacent(absent).collect()
    }

    pub(super) fn pieces_came(
        &mut self,
        id: u64,
        plan: &Arc<AheadPlan>,
        pieces: Range<usize>,
    ) -> ClientResult {
        let ahead = self.clients.get_mut(&id).and_then(|client| client.ahead.as_mut());
        if let Some(ahead) = ahead.filter(|ahead| Arc::ptr_eq(&ahead.plan, plan)) {
            // The read may be of an earlier call with the same pages.
            ahead.reads = ahead.reads.saturating_sub(1);
        }
        for piece in plan.pieces(pieces) {
            self.install_piece(id, piece)?;
        }
        Ok(())
    }
}
