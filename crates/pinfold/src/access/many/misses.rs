//! What is absent of many pages, begun to be read as one submission.
//!
//! 1. ask for each page whether its folio is there, cached or on its way, by a look-up that takes
//!    no lock and may be wrong; sort what is absent, and make *groups* of adjacent pages. A group
//!    has one read of at most a window;
//! 2. if a thread waits for them: prepare the first group, as a single miss does (`fill::prepare`).
//!    Only here may the thread wait for memory: none of its folios is on its way yet;
//! 3. memory for all other groups, as far as it can be had without waiting;
//! 4. put all of these folios into the index under one hold of the file's mutex. Where another
//!    thread was faster, its folio stays, and this one is given back;
//! 5. if a thread waits, and the file is one of the system's: read all groups at once by the
//!    thread's own ring (`source/own_ring.rs`), the first perhaps before steps 3 and 4. Otherwise
//!    give one request for each group to the source's engine, all in one call;
//! 6. if a thread waits, and has not read them by now: read the first group in this thread, and
//!    then, one by one, the requests that the engine did not take. Otherwise give up those
//!    requests, which takes their folios out of the index again.
//!
//! Futures wait for no memory, read nothing themselves, and leave requests that the engine did not
//! take to each future's own attempt.
use std::ops::Range;
use std::sync::Arc;

use super::ReadAt;
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::base::wait;
use crate::error::Result;
use crate::frames::{Order, PAGE_BYTES};
use crate::pages::failures::Failed;
use crate::pages::fill::{self, FOLIOS_MAX, FillBatch, Filling, For};
use crate::pages::handle::Handle;
use crate::pages::pressure::Need;
use crate::pages::stream::Plan;

/// The most groups of one submission.
const GROUPS_MAX: usize = 64;

/// The most pages of one submission, whose memory is idle until then; one group may have more.
const PAGES_MAX: u64 = 4096;

/// The most pages of a group, where a thread waits for a page.
const WINDOW: u64 = Order::MAX.frames() as u64;

pub(crate) struct Absent<'a> {
    handle: &'a Handle,
    pages: Vec<u64>,
    /// What is there of the pages that were asked for: it is about to be used.
    there: Vec<u64>,
    /// The page at which the file ends.
    end: u64,
}

impl<'a> Absent<'a> {
    pub(crate) fn new(handle: &'a Handle) -> Self {
        let end = handle.mapping.len_bytes().div_ceil(PAGE_BYTES as u64);
        Absent { handle, pages: Vec::new(), there: Vec::new(), end }
    }

    /// Step 1; true if any of `pages` is absent.
    pub(crate) fn add(&mut self, pages: Range<u64>) -> bool {
        let (before, end) = (self.pages.len(), pages.end.min(self.end));
        let mut page = pages.start;
        // Ends: each turn advances `page`.
        while page < end {
            page = if let Some(there_end) = there_up_to(self.handle, page) {
                self.there.extend(page..there_end.min(end));
                there_end
            } else {
                self.pages.push(page);
                page + 1
            };
        }
        self.pages.len() > before
    }

    /// Of at most `window` pages, which do not cross a multiple of that.
    fn groups(&mut self, window: u64) -> Vec<Range<u64>> {
        for pages in [&mut self.pages, &mut self.there] {
            pages.sort_unstable();
            pages.dedup();
        }
        let adjacent =
            |before: &u64, next: &u64| before + 1 == *next && !next.is_multiple_of(window);
        let groups = self.pages.chunk_by(adjacent);
        groups.map(|group| group[0]..group[group.len() - 1] + 1).collect()
    }

    /// All steps, for a thread that waits. Afterwards what was added is cached, on its way, could
    /// not be begun, or has failed. Returns where the errors of failed reads are; some may still
    /// come. An error concerns all that was added: as for [`fill::prepare`] of the first group.
    pub(super) fn read(mut self) -> Result<Option<Arc<Failed>>> {
        if self.pages.is_empty() {
            return Ok(None);
        }
        let handle = self.handle;
        handle.core.check_owner()?;
        let failed = Arc::new(Failed::new());
        let groups = self.groups(WINDOW);
        // Step 2.
        let (first, groups) = first_group(handle, groups, &self.there, For::Thread)?;
        let ahead = first.as_ref().map(|(batch, plan)| (*plan, batch.end().unwrap_or_default()));
        let first = first.map(|(mut batch, plan)| {
            batch.tell(&failed);
            handle.core.counters.add(Event::Miss, missed(&batch, plan));
            batch
        });
        // Steps 3 and 4.
        let prepare_others = || {
            let (mut others, _) = prepare(handle, submission(&groups), For::Batch);
            for batch in &mut others {
                batch.tell(&failed);
            }
            handle.core.counters.add(Event::Miss, folios(&others));
            // After these, which are waited for.
            if let Some((plan, after)) = ahead
                && plan.ahead_end > after
            {
                fill::start_ahead(handle, after, plan);
            }
            others
        };
        // Step 5, by a ring of the thread's own: the others are prepared while the first is read.
        let several = usize::from(first.is_some()) + groups.len() > 1;
        if several && let Some(ring) = handle.mapping.backing.own_ring() {
            let mut others = Vec::new();
            let prepared = &mut others;
            let read = ring.read_all(first.as_ref().map(FillBatch::reading), move || {
                *prepared = prepare_others();
                prepared.iter().map(FillBatch::reading).collect()
            });
            wait::together(|| {
                for (batch, read) in first.into_iter().chain(others).zip(read) {
                    batch.finish(read, false);
                }
            });
            return Ok(Some(failed));
        }
        // Step 5, by the engine.
        let others = prepare_others();
        let mut requests = others.into_iter().map(|batch| batch.request().awaited()).collect();
        handle.mapping.backing.submit(&mut requests);
        // Step 6.
        if let Some(batch) = first {
            batch.read(false);
        }
        for request in requests {
            let read = handle.mapping.backing.read(request.offset(), request.extents());
            request.finish(read);
        }
        Ok(Some(failed))
    }

    /// For futures, of which each then waits for its page, or begins it by itself.
    pub(crate) fn begin(mut self) -> Result<()> {
        if self.pages.is_empty() {
            return Ok(());
        }
        let handle = self.handle;
        handle.core.check_owner()?;
        let groups = self.groups(WINDOW);
        let (first, groups) = first_group(handle, groups, &self.there, For::Future)?;
        // Others are on all of them, or there is no memory.
        let Some((batch, plan)) = first else { return Ok(()) };
        let after = batch.end().unwrap_or_default();
        let mut misses = vec![missed(&batch, plan)];
        let mut requests = vec![batch.request().awaited()];
        let (mut left, mut all_misses) = (&groups[..], 0);
        // Ends: each turn is the last, or of the groups after some others.
        loop {
            let (now, later) = left.split_at(submission(left).len());
            for batch in prepare(handle, now, For::Batch).0 {
                misses.push(batch.folios() as u64);
                requests.push(batch.request().awaited());
            }
            handle.mapping.backing.submit(&mut requests);
            // What was not taken is no miss.
            misses.truncate(misses.len().saturating_sub(requests.len()));
            all_misses += misses.drain(..).sum::<u64>();
            let taken = requests.is_empty();
            fill::give_up(std::mem::take(&mut requests));
            left = later;
            if left.is_empty() || !taken {
                break;
            }
        }
        handle.core.counters.add(Event::Miss, all_misses);
        if all_misses > 0 && plan.ahead_end > after {
            fill::start_ahead(handle, after, plan);
        }
        Ok(())
    }
}

/// With the plan of what to read ahead behind it.
type FirstGroup = (FillBatch, Plan);

/// Step 2, and the groups that are left. `None` if others are on all of them; for a future also if
/// there is no memory at once. `there`, in order, is about to be used.
fn first_group(
    handle: &Handle,
    mut groups: Vec<Range<u64>>,
    there: &[u64],
    wanted: For,
) -> Result<(Option<FirstGroup>, Vec<Range<u64>>)> {
    let (mut begun, mut first) = (0, None);
    // Ends: each turn makes the groups shorter, or is the last.
    while first.is_none()
        && let Some(Range { start, end }) = groups.get(begun).cloned()
    {
        let bytes = (end - start) as usize * PAGE_BYTES;
        let plan = fill::plan(handle, start, bytes, there);
        let batch = fill::prepare(handle, start, plan.now_end, wanted)?;
        let after = batch.end();
        if after.is_none() && handle.mapping.index.lookup(start).is_none() {
            break; // no memory
        }
        // Another thread was faster with its first page, or it has more than one read.
        groups[begun].start = after.unwrap_or(start + 1).min(end);
        begun += usize::from(groups[begun].is_empty());
        first = after.map(|_| (batch, plan));
    }
    groups.drain(..begun);
    Ok((first, groups))
}

/// What a single miss would count: of a window, the rest was read ahead.
fn missed(batch: &FillBatch, plan: Plan) -> u64 {
    if plan.mark { 1 } else { batch.folios() as u64 }
}

fn folios(batches: &[FillBatch]) -> u64 {
    batches.iter().map(|batch| batch.folios() as u64).sum()
}

/// Where the folio of `page` ends, if it seems to be cached or on its way. May be wrong both ways.
#[inline]
fn there_up_to(handle: &Handle, page: u64) -> Option<u64> {
    let (frame, _) = handle.window.try_both(handle.hint(page))?;
    let identity = frame.identity();
    let end = identity.pages().end;
    let there = identity.mapping == handle.id && (identity.index..end).contains(&page);
    there.then_some(end)
}

/// Nobody waits for what is absent of `pages`.
pub(crate) fn prefetch(handle: &Handle, pages: &[u64]) -> Result<()> {
    handle.core.check_owner()?;
    let mut absent = Absent::new(handle);
    for &page in pages {
        absent.add(page..page.saturating_add(1));
    }
    start_all(handle, &absent.groups(handle.stream.window_pages()));
    Ok(())
}

/// Each of `reads` says by itself what it cannot get.
pub(crate) fn prefetch_reads(handle: &Handle, reads: &[ReadAt<'_>]) {
    let mut absent = Absent::new(handle);
    for read in reads {
        absent.add(read.pages());
    }
    if handle.core.check_owner().is_ok() {
        start_all(handle, &absent.groups(WINDOW));
    }
}

/// At most a quarter of the cache.
pub(crate) fn will_need(handle: &Handle, pages: Range<u64>) {
    let share = u64::from(handle.core.frames.frames() / 4);
    let window = handle.stream.window_pages();
    let end = pages.end.min(pages.start.saturating_add(share));
    let mut from = pages.start;
    // Ends: each turn advances `from`, or is the last.
    while from < end {
        let mut absent = Absent::new(handle);
        let to = end.min(from + PAGES_MAX);
        absent.add(from..to);
        if from >= absent.end || !start_all(handle, &absent.groups(window)) {
            break;
        }
        from = to;
    }
}

/// As many of the first groups as one takes.
fn submission(groups: &[Range<u64>]) -> &[Range<u64>] {
    let mut pages = 0;
    let fits = |group: &&Range<u64>| {
        let fits = pages < PAGES_MAX;
        pages += group.end - group.start;
        fits
    };
    &groups[..groups.iter().take(GROUPS_MAX).take_while(fits).count()]
}

/// Steps 3 to 6, where nobody waits. False if memory or the engine had no more to give.
fn start_all(handle: &Handle, mut groups: &[Range<u64>]) -> bool {
    // Ends: a submission has at least one group.
    while !groups.is_empty() {
        let (now, later) = groups.split_at(submission(groups).len());
        let (batches, whole) = prepare(handle, now, For::Nobody);
        handle.core.counters.add(Event::Readahead, folios(&batches));
        let mut requests = batches.into_iter().map(FillBatch::request).collect();
        handle.mapping.backing.submit(&mut requests);
        let taken = requests.is_empty();
        fill::give_up(requests);
        if !taken || !whole {
            return false;
        }
        groups = later;
    }
    true
}

/// Steps 3 and 4: a batch for each group, or several where it has more folios than a request may,
/// or where another thread's folio divides it. Also whether there was memory for all.
fn prepare(handle: &Handle, groups: &[Range<u64>], wanted: For) -> (Vec<FillBatch>, bool) {
    let (folios, whole) = allocate(handle, groups);
    let mut batches: Vec<FillBatch> = Vec::new();
    if folios.is_empty() {
        return (batches, whole);
    }
    for folio in fill::insert_all(handle, folios, false).0 {
        let begins_group = groups.binary_search_by_key(&folio.page, |group| group.start).is_ok();
        let goes_on = batches.last().is_some_and(|last| {
            !begins_group && last.end() == Some(folio.page) && last.folios() < FOLIOS_MAX
        });
        if !goes_on {
            batches.push(FillBatch::new(handle, wanted));
        }
        batches.last_mut().expect("there is one").push(folio);
    }
    (batches, whole)
}

/// Step 3, and whether it is done for all.
fn allocate(handle: &Handle, groups: &[Range<u64>]) -> (Vec<Filling>, bool) {
    let core = &*handle.core;
    let mut all = Vec::with_capacity(groups.len());
    for Range { start, end } in groups.iter().cloned() {
        let mut page = start;
        // Ends: each turn advances `page`.
        while page < end {
            let wish = Order::of_block_at(page, end).min(core.pressure.order_max);
            let on_its_way = &handle.mapping.on_its_way;
            if !core.pressure.shares.fill_begins(on_its_way, wish, Need::Nobody) {
                return (all, false);
            }
            // Only in a mutant: see the head of `many/mod.rs`.
            let waits = mutant::on(Mutant::GroupsWait);
            let got = fill::allocate(handle, wish, waits).ok().flatten();
            let Some((head, order)) = got else { return (all, false) };
            all.push(Filling { head, page, order });
            page += u64::from(order.frames());
        }
    }
    (all, true)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::source::Memory;
    use crate::{Cache, Options};

    /// Whether a scan goes on in windows that comes to page 49, before which 47 pages were read
    /// ahead, by a batch that wants also these pages. It has read those `before`.
    fn goes_on(before: Range<u64>, wanted: &[Range<u64>]) -> bool {
        let cache = Cache::new(Options::new(32 << 20)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![1; 1 << 20]))).unwrap();
        for page in (0..2).chain(before) {
            file.read_at(&mut [0], page * PAGE_BYTES as u64).unwrap();
        }
        let handle = file.handle();
        let is_there = |page| there_up_to(handle, page).is_some();
        assert!(is_there(48) && !is_there(49));
        let mut absent = Absent::new(handle);
        for pages in wanted {
            absent.add(pages.clone());
        }
        absent.add(49..50);
        absent.begin().unwrap();
        is_there(50)
    }

    #[test]
    fn a_batch_uses_each_page_once_and_only_what_was_unread() {
        assert!(goes_on(0..0, &[2..17, 17..49]));
        assert!(!goes_on(0..0, &[]));
        assert!(!goes_on(0..0, &vec![5..6; 40]), "one page, many times");
        assert!(!goes_on(2..17, &[2..17, 18..25]), "most of these were read before");
    }
}
