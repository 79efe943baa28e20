//! Folios that are about to be filled: steps 1 and 2 (`mod.rs`).

use super::landing::{FillBatch, Filling, For};
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::error::Result;
use crate::frames::{FrameNumber, Identity, Order};
use crate::index::InsertError;
use crate::pages::handle::Handle;
use crate::pages::pressure::Need;
use crate::pages::reclaim::{self, Shortage};
use crate::source;

/// The most folios of one request to the source.
pub(crate) const FOLIOS_MAX: usize = 64;

/// Steps 1 and 2 for as many folios from `page` on as fit before `end` and before the next folio in
/// the index. Empty if the index has `page` by now. For a thread, evicts for the first folio, or
/// says why it cannot. Others evict one turn without waiting.
pub(crate) fn prepare(reader: &Handle, page: u64, end: u64, wanted: For) -> Result<FillBatch> {
    let Handle { core, mapping, .. } = reader;
    let mut batch = FillBatch::new(reader, wanted);
    let mut at = page;
    while at < end && batch.folios() < FOLIOS_MAX {
        // Step 1.
        let wish = Order::of_block_at(at, end).min(core.pressure.order_max);
        let is_first = batch.first().is_none();
        let needed = wanted == For::Thread && is_first;
        let first = matches!(wanted, For::Thread | For::Future) && is_first;
        let begun = if needed { turn(reader, at, wish)? } else { begin(reader, wish, first) };
        let Some(begun) = begun else { break };
        let got = allocate(reader, begun, needed).map_err(|why| why.of(mapping, at))?;
        let Some((head, order)) = got else { break };
        // Step 2, not waited for but for the first folio: others may wait for those before.
        let (filling, nodes) = insert_all(reader, vec![Filling { head, page: at, order }], needed);
        if let Some(filling) = filling.into_iter().next() {
            at = filling.end();
            batch.push(filling);
            continue;
        }
        // A smaller folio may fit before the next one in the index.
        let smaller = nodes.map_err(|why| why.of(mapping, at))? && order > Order::MIN && is_first;
        return if smaller { prepare(reader, page, page + 1, wanted) } else { Ok(batch) };
    }
    Ok(batch)
}

/// Counts a folio of order `wish` as on its way, or a smaller `first` one that somebody waits for.
/// `None`: the file has enough on its way.
fn begin(reader: &Handle, wish: Order, first: bool) -> Option<Order> {
    let Handle { core, mapping, .. } = reader;
    let begins = |order, need| core.pressure.shares.fill_begins(&mapping.on_its_way, order, need);
    if !first {
        return begins(wish, Need::Nobody).then_some(wish);
    }
    if mutant::on(Mutant::FirstUnbounded) {
        return begins(wish, Need::InASource).then_some(wish);
    }
    let smaller = (0..=wish.get()).rev().filter_map(Order::new);
    // Of a larger one, nobody waits for the most part. The checkers' caches are too small for that.
    let is_waited_for = |order| order == Order::MIN || cfg!(any(loom, shuttle));
    let need = |order| if is_waited_for(order) { Need::First } else { Need::Nobody };
    let fits = smaller.into_iter().find(|&order| begins(order, need(order)));
    let in_a_source = || source::in_a_source() && begins(Order::MIN, Need::InASource);
    fits.or_else(|| in_a_source().then_some(Order::MIN))
}

/// [`begin`] for the first folio of a thread, which waits. `None`: another one was faster.
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

/// As [`reclaim::allocate`], for a folio that counts as on its way.
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
        core.pressure.shares.fill_ends(&mapping.on_its_way, too_many);
    }
    got
}

/// Step 2, as many folios under one hold of the mutex as there are index nodes; `needed` as for
/// [`reclaim::refill_nodes`], whose answer comes second. What is not returned was given back.
pub(crate) fn insert_all(
    reader: &Handle,
    folios: Vec<Filling>,
    needed: bool,
) -> (Vec<Filling>, std::result::Result<bool, Shortage>) {
    let Handle { core, mapping, .. } = reader;
    for &Filling { head, page, order } in &folios {
        let identity = Identity { mapping: mapping.id, index: page, order };
        core.frames.frame(head).set_identity(identity);
    }
    let mut nodes = Ok(true);
    let mut changing = Some(mapping.change());
    let insert = |&Filling { head, page, order }: &Filling| {
        // Ends: each turn but the last refills the node pool.
        while matches!(nodes, Ok(true)) {
            let mutex = changing.get_or_insert_with(|| mapping.change());
            let tried = mutex.writer(&core.nodes).insert(page, u32::from(order.get()), head);
            match tried {
                Ok(()) => {
                    mutex.folios_added(1);
                    core.frames.frame(head).count.get(1); // the filler's
                    return true;
                }
                Err(InsertError::Occupied(_)) => return false,
                Err(InsertError::NoNodes(short)) => {
                    changing = None;
                    nodes = reclaim::refill_nodes(core, short.wanted, needed);
                }
            }
        }
        false
    };
    let (inserted, others): (Vec<_>, Vec<_>) = folios.into_iter().partition(insert);
    drop(changing);
    for filling in &inserted {
        if mutant::on(Mutant::EvenBeforeRead) {
            core.frames.frame(filling.head).change_end();
        }
        core.counters.count(Event::FillStarted);
    }
    for Filling { head, order, .. } in others {
        core.pressure.shares.fill_ends(&mapping.on_its_way, order.frames());
        core.frames.frame(head).forget_identity();
        // A reader with an old head may have a reference.
        if !mutant::on(Mutant::OccupiedWakesNobody) {
            core.waiters.wake(head.0);
        }
        // What was allocated in vain is no progress.
        if matches!(nodes, Ok(true)) { core.put(head) } else { core.give_back(head) }
    }
    (inserted, nodes)
}
