//! Reading ahead, as far as `stream` says. Nobody waits for it.

use std::ops::Range;

use super::landing::For;
use super::prepare::{FOLIOS_MAX, prepare};
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::frames::Flags;
use crate::index::FolioAt;
use crate::pages::core::Held;
use crate::pages::handle::Handle;
use crate::pages::reclaim;
use crate::pages::residency::Candidate;
use crate::pages::stream::{OfHandle, Plan, Unread};
use crate::source::Request;

/// Until they are submitted, their memory is idle.
const REQUESTS_MAX: usize = 8;

/// At a readahead mark.
#[cold]
#[inline(never)]
pub(crate) fn read_further(reader: &Handle, held: &Held<'_>) {
    // The thread that clears the mark does the work. A forked child clears the marks of its own
    // copy, which would keep pages from optimistic readers for ever.
    let marked = held.frame().clear_flags(Flags::READAHEAD).contains(Flags::READAHEAD);
    if !marked || !reader.core.owner.is_here() {
        return;
    }
    let pages = held.frame().identity().pages();
    let end = pages.end;
    let of: OfHandle<'_> = (&reader.core.credit, &|pages, asks| reader.unread(pages, asks));
    let plan = reader.stream.on_mark(pages, reader.mapping.len_bytes(), of);
    evict_vain(reader, plan.vain);
    start_ahead(reader, end, plan);
}

/// At a miss of `page`, by a reader of `bytes` bytes from there on, and the pages `wanted`, in
/// order.
pub(crate) fn plan(reader: &Handle, page: u64, bytes: usize, wanted: &[u64]) -> Plan {
    let unread = |pages: Range<u64>, asks| {
        let [from, to] = [pages.start, pages.end].map(|end| wanted.partition_point(|it| *it < end));
        let runs = wanted[from..to].chunk_by(|page, next| page + 1 == *next);
        let used: u64 =
            runs.map(|run| reader.unread(run[0]..run[run.len() - 1] + 1, asks).unused).sum();
        let it = reader.unread(pages, asks);
        Unread { unused: it.unused.saturating_sub(used), ..it }
    };
    let of: OfHandle<'_> = (&reader.core.credit, &unread);
    let plan = reader.stream.on_miss(page, bytes, reader.mapping.len_bytes(), of);
    evict_vain(reader, plan.vain);
    plan
}

pub(crate) fn end_ahead(reader: &Handle) {
    let of: OfHandle<'_> = (&reader.core.credit, &|pages, asks| reader.unread(pages, asks));
    for vain in reader.stream.end(reader.mapping.len_bytes(), of) {
        evict_vain(reader, vain);
    }
}

/// Of what was read ahead of a run that is over, evicts what nobody has read, if memory is short.
fn evict_vain(reader: &Handle, (first, pages): (u64, u64)) {
    let core = &*reader.core;
    if pages == 0 || core.frames.free_frames() > 2 * core.pressure.high_frames {
        return;
    }
    let (mut page, end) = (first, first + pages);
    // Ends: each turn advances `page`.
    while page < end {
        let mut vain = Vec::new();
        let mut changing = reader.mapping.change();
        // Ends: as above.
        while page < end && vain.len() < FOLIOS_MAX {
            let next = changing.writer(&core.nodes).next_present(page..end);
            page = next.map_or(end, FolioAt::end);
            let Some(folio) = next else { break };
            let (frame, pages) = (core.frames.frame(folio.frame), 1 << folio.order);
            if !frame.is_hollow() && frame.unread_pages(0..pages) == pages {
                vain.push(Candidate::of(&core.frames, folio.frame));
            }
        }
        drop(changing);
        if !vain.is_empty() {
            reclaim::evict_these(core, vain);
        }
    }
}

/// Window by window, skipping what is cached.
pub(crate) fn start_ahead(reader: &Handle, from: u64, plan: Plan) {
    start_around(reader, from, plan, None);
}

/// Begins to read the first absent pages of `pages`, by one request, for which somebody waits; not
/// if there is no memory at once. Returns the first of them, or of `pages`, and what is behind.
#[cfg(all(feature = "serve", not(loom)))]
pub(crate) fn start_first(reader: &Handle, pages: Range<u64>) -> (u64, Range<u64>) {
    let absent = {
        let mut changing = reader.mapping.change();
        changing.writer(&reader.core.nodes).next_absent(pages.clone())
    };
    let Some(start) = absent else { return (pages.start, pages.end..pages.end) };
    let window = reader.stream.window_pages().max(1);
    let end = ((start / window + 1) * window).min(pages.end);
    let batch = prepare(reader, start, end, For::Nobody);
    let Some((batch, end_of_batch)) = batch.ok().and_then(|it| it.end().map(|end| (it, end)))
    else {
        return (start, end..pages.end);
    };
    reader.core.counters.add(Event::Readahead, batch.folios() as u64);
    let mut requests = vec![batch.request().awaited()];
    reader.mapping.backing.submit(&mut requests);
    give_up(requests);
    (start, end_of_batch..pages.end)
}

/// What is read with the page `wanted` goes before other reads ahead.
pub(crate) fn start_around(reader: &Handle, from: u64, plan: Plan, wanted: Option<u64>) {
    let mut requests = Vec::new();
    let mut page = from;
    // Ends: each turn advances `page`.
    while page < plan.ahead_end {
        let absent = {
            let mut changing = reader.mapping.change();
            changing.writer(&reader.core.nodes).next_absent(page..plan.ahead_end)
        };
        let Some(start) = absent else { break };
        // Up to a multiple of the window, so that it is one folio and not parts of two.
        let window = u64::from(plan.window_pages);
        let end = ((start / window + 1) * window).min(plan.ahead_end);
        let Ok(batch) = prepare(reader, start, end, For::Nobody) else { break };
        let Some(end_of_batch) = batch.end() else {
            if reader.mapping.index.lookup(start).is_none() {
                break; // no memory is free
            }
            page = start + 1; // another thread was faster
            continue;
        };
        page = end_of_batch;
        if plan.mark
            && let Some(head) = batch.first()
        {
            reader.core.frames.frame(head).set_flags(Flags::READAHEAD);
        }
        reader.core.counters.add(Event::Readahead, batch.folios() as u64);
        let request = batch.request();
        let is_wanted = wanted.is_some_and(|wanted| (start..page).contains(&wanted));
        requests.push(if is_wanted { request.awaited() } else { request });
        if requests.len() == REQUESTS_MAX {
            reader.mapping.backing.submit(&mut requests);
            if !requests.is_empty() {
                break; // the limit of fills in flight is reached
            }
        }
    }
    reader.mapping.backing.submit(&mut requests);
    give_up(requests);
}

pub(crate) fn give_up(requests: Vec<Request>) {
    if mutant::on(Mutant::ForgetUnsubmitted) {
        return std::mem::forget(requests);
    }
    for request in requests {
        request.refuse();
    }
}
