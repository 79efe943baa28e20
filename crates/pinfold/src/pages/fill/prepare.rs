//! Folios that are about to be filled: memory for them, and their way into the index. Steps 1 and 2
//! of a fill (`mod.rs`).

use super::batch::{FillBatch, Filling, For};
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::error::{Error, Result};
use crate::frames::{FrameNumber, Identity, Order};
use crate::index::InsertError;
use crate::pages::core::Core;
use crate::pages::handle::Handle;
use crate::pages::mapping::{Changing, Mapping};
use crate::pages::pressure::Need;
use crate::pages::reclaim::{self, Shortage};
use crate::source;

/// The most folios of one request to the source.
pub(crate) const FOLIOS_MAX: usize = 64;

/// Steps 1 and 2 for as many folios from `page` on as fit before `end` and before the next folio in
/// the index; the first has `page`. Empty if the index has `page` by now. For a thread, evicts for
/// the first folio, or returns the error why it cannot; otherwise it is also empty if no memory is
/// free.
pub(crate) fn prepare(
    reader: &Handle,
    page: u64,
    end: u64,
    wanted: For,
) -> Result<FillBatch<&Core, &Mapping>> {
    let (core, mapping) = (&*reader.core, &*reader.mapping);
    let mut batch = FillBatch::new(reader, wanted);
    let mut at = page;
    while at < end && batch.folios() < FOLIOS_MAX {
        // Step 1.
        let wish = Order::of_block_at(at, end).min(core.pressure.order_max);
        let needed = wanted == For::Thread && batch.is_empty();
        let first = matches!(wanted, For::Thread | For::Future) && batch.is_empty();
        let begun = if needed { turn(reader, at, wish)? } else { begin(reader, wish, first) };
        let Some(begun) = begun else { break };
        let got = allocate(reader, begun, needed).map_err(|why| why.of(mapping, at))?;
        let Some((head, order)) = got else { break };
        // Step 2.
        match insert(reader, at, order, head, needed) {
            Ok(filling) => {
                at = filling.end();
                batch.push(filling);
            }
            Err(NotInserted::Occupied) => {
                core.put(head);
                // A smaller folio may fit before the next one in the index.
                if order == Order::MIN || !batch.is_empty() {
                    break;
                }
                return prepare(reader, page, page + 1, wanted);
            }
            Err(NotInserted::NoMemory(error)) => {
                core.give_back(head);
                match error {
                    Some(error) => return Err(error),
                    None => break,
                }
            }
        }
    }
    Ok(batch)
}

/// Counts a folio as on its way, of order `wish`; or of a smaller one, for the `first` that somebody
/// waits for. `None`: the file has enough on its way.
fn begin(reader: &Handle, wish: Order, first: bool) -> Option<Order> {
    let Handle { core, mapping, .. } = reader;
    let begins = |order, need| core.pressure.fill_begins(&mapping.on_its_way, order, need);
    if !first {
        return begins(wish, Need::Nobody).then_some(wish);
    }
    if mutant::on(Mutant::FirstUnbounded) {
        return begins(wish, Need::InASource).then_some(wish);
    }
    let smaller = (0..=wish.get()).rev().filter_map(Order::new);
    let fits = smaller.into_iter().find(|&order| begins(order, Need::First));
    let in_a_source = || source::in_a_source() && begins(Order::MIN, Need::InASource);
    fits.or_else(|| in_a_source().then_some(Order::MIN))
}

/// Counts the first folio of a thread as on its way, as [`begin`] does; the thread waits as long as
/// its file has enough on its way. `None`: another thread was faster with `page`.
fn turn(reader: &Handle, page: u64, wish: Order) -> Result<Option<Order>> {
    if let Some(begun) = begin(reader, wish, true) {
        return Ok(Some(begun));
    }
    let Handle { core, mapping, .. } = reader;
    reclaim::wait_for_own_file(core, mapping, || {
        let begun = begin(reader, wish, true);
        (begun.is_some() || mapping.index.lookup(page).is_some()).then_some(begun)
    })
    .map_err(|why| why.of(mapping, page))
}

/// Memory for a folio that counts as on its way: as [`reclaim::allocate`].
pub(crate) fn allocate(
    reader: &Handle,
    begun: Order,
    needed: bool,
) -> std::result::Result<Option<(FrameNumber, Order)>, Shortage> {
    let Handle { core, mapping, .. } = reader;
    let got = reclaim::allocate(core, begun, needed);
    let order = got.as_ref().ok().copied().flatten().map(|(_, order)| order);
    let too_many = begun.frames() - order.map_or(0, Order::frames);
    if too_many > 0 {
        core.pressure.fill_ends(&mapping.on_its_way, too_many);
    }
    got
}

enum NotInserted {
    Occupied,
    /// The error says why, if the folio was needed.
    NoMemory(Option<Error>),
}

/// Step 2 for one folio.
fn insert(
    reader: &Handle,
    page: u64,
    order: Order,
    head: FrameNumber,
    needed: bool,
) -> std::result::Result<Filling, NotInserted> {
    let core = &reader.core;
    name(reader, page, order, head);
    // Ends: each turn refills the node pool, or returns an error.
    let outcome = loop {
        let mut changing = reader.mapping.change();
        match insert_under_change(reader, &mut changing, page, order, head) {
            Ok(filling) => break Ok(filling),
            Err(InsertError::Occupied(_)) => break Err(NotInserted::Occupied),
            Err(InsertError::NoNodes(short)) => {
                drop(changing);
                // Not waited for but for the first folio: others may wait for those before this
                // one.
                match reclaim::refill_nodes(core, short.wanted, needed) {
                    Ok(true) => {}
                    Ok(false) => break Err(NotInserted::NoMemory(None)),
                    Err(why) => {
                        break Err(NotInserted::NoMemory(Some(why.of(&reader.mapping, page))));
                    }
                }
            }
        }
    };
    match &outcome {
        Ok(filling) => inserted(reader, filling),
        Err(_) => not_inserted(reader, head, order),
    }
    outcome
}

/// Step 2 for many folios that [`allocate`] has made, under one hold of the mutex, as far as there is
/// memory for the index. Returns those that are in the index now; the others are given back.
pub(crate) fn insert_all(
    reader: &Handle,
    folios: impl Iterator<Item = (u64, Order, FrameNumber)> + Clone,
) -> Vec<Option<Filling>> {
    let core = &reader.core;
    for (page, order, head) in folios.clone() {
        name(reader, page, order, head);
    }
    let mut nodes = true;
    let mut changing = Some(reader.mapping.change());
    let insert = |(page, order, head)| {
        // Ends: each turn but the last refills the node pool.
        while nodes {
            let mutex = changing.get_or_insert_with(|| reader.mapping.change());
            match insert_under_change(reader, mutex, page, order, head) {
                Ok(filling) => return Some(filling),
                Err(InsertError::Occupied(_)) => return None,
                Err(InsertError::NoNodes(short)) => {
                    changing = None;
                    nodes = matches!(reclaim::refill_nodes(core, short.wanted, false), Ok(true));
                }
            }
        }
        None
    };
    let all: Vec<_> = folios.clone().map(insert).collect();
    drop(changing);
    for ((_, order, head), filling) in folios.zip(&all) {
        if let Some(filling) = filling {
            inserted(reader, filling);
        } else {
            not_inserted(reader, head, order);
            if nodes {
                core.put(head);
            } else {
                core.give_back(head);
            }
        }
    }
    all
}

/// Gives the folio at `head`, which is in no index yet, the identity that it will have there.
fn name(reader: &Handle, page: u64, order: Order, head: FrameNumber) {
    let frame = reader.core.frames.frame(head);
    frame.set_identity(Identity { mapping: reader.mapping.id, index: page, order });
}

/// Inserts the folio into the index, and takes the filler's reference.
fn insert_under_change(
    reader: &Handle,
    changing: &mut Changing<'_>,
    page: u64,
    order: Order,
    head: FrameNumber,
) -> std::result::Result<Filling, InsertError> {
    let core = &reader.core;
    changing.writer(&core.nodes).insert(page, u32::from(order.get()), head)?;
    changing.folios_added(1);
    core.frames.frame(head).count.get(1);
    Ok(Filling { head, page, order })
}

/// After an insert.
fn inserted(reader: &Handle, filling: &Filling) {
    let core = &reader.core;
    if mutant::on(Mutant::EvenBeforeRead) {
        core.frames.frame(filling.head).change_end();
    }
    core.counters.count(Event::FillStarted);
}

/// After a failed insert: another folio has the page, or there was no memory for an index node. The
/// caller's reference stays.
fn not_inserted(reader: &Handle, head: FrameNumber, order: Order) {
    let core = &reader.core;
    core.pressure.fill_ends(&reader.mapping.on_its_way, order.frames());
    core.frames.frame(head).forget_identity();
    // A reader with an old head may have taken a reference while the folio had this identity.
    if !mutant::on(Mutant::OccupiedWakesNobody) {
        core.waiters.wake(head.0);
    }
}
