//! Which mapped folios are evicted: whole pieces of a file, in two steps.
//!
//! To take pages out of page tables costs an interrupt to every processor that runs the program,
//! for one page as for all of a range. So mapped folios leave with those that lie near them: those
//! of 2 MiB, or of up to 128 MiB where few are in memory.
//!
//! Accesses through a map are not seen. So when the policy offers a mapped folio, the pages of its
//! piece are taken out of the page tables alone, and the piece waits until enough others do. What
//! was mapped again meanwhile, or used by other ways in, stays; the rest is evicted: Corbató's
//! second chance ("A paging experiment with the Multics system", 1968).

use pinfold_policy::{Answer, Sweep};

use crate::base::mutant::{self, Mutant};
use crate::frames::{FrameNumber, Order};
use crate::mapped::PieceTurns;
use crate::mapped::pieces::Piece;
use crate::pages::core::Core;
use crate::pages::mapping::Mapping;
use crate::pages::residency::Candidate;

/// The part of the hollow frames whose pieces wait. What comes to a piece meanwhile stays, and
/// pages that stay divide the others, which then leave by an interrupt each: so it is small.
const WAITING_SHARE: u64 = 32;

/// The most folios of a piece that are looked at together: what a page table has.
const FOLIOS_MAX: usize = Order::MAX.frames() as usize;

/// A piece with fewer pages in memory is made longer.
const PAGES_ENOUGH: u64 = 32;

/// After so many pieces of which all was used, pages go though they are used: it is the memory that
/// is too small.
const USED_PIECES_MAX: u32 = 4;

/// The most folios in a row that the policy offers in vain, as their pieces wait: then it is the
/// turn of one of these. The pages of a piece, 512 or more, may be neighbours in the policy's
/// order, too.
const OFFERS_MAX: u32 = 1024;

/// The most folios in a row that are spared for a few parts that are used, as in one call of the
/// policy.
const SPARED_MAX: u32 = 64;

/// The policy offers the folio at `head`. If it stays, or goes with its piece, it goes back to the
/// policy, and later leaves with that.
pub(super) fn offer(
    core: &Core,
    turns: &mut PieceTurns,
    sweep: &mut Sweep,
    head: FrameNumber,
) -> bool {
    let identity = core.frames.frame(head).identity();
    let mapping = core.mappings.get(identity.mapping);
    // Own memory may have to be written first.
    let Some(mapping) = mapping.filter(|it| it.own().is_none()) else { return false };
    // Some parts alone are used, by other ways in. Where maps see it, it stays whole. Elsewhere these
    // parts are better read again, page by page, than kept with all the others for ever.
    if core.residency.stays_in_part(&core.frames, head) {
        if !mapping.mirror_if_made().is_some_and(|it| it.is_seen()) {
            return false;
        }
        if turns.spared < SPARED_MAX && core.residency.spare_in_part(&core.frames, head) {
            turns.spared += 1;
            return true;
        }
    }
    turns.spared = 0;
    let has = |piece: &Piece| core.mapped.pieces.lock().has(piece);
    let enough = u64::from(core.frames.hollow_frames()) / WAITING_SHARE;
    let piece = Piece::of(identity.mapping, identity.index);
    if !has(&piece) {
        let (piece, pages) = with_enough(core, &mapping, piece, enough.min(PAGES_ENOUGH), has);
        let is_new = core.mapped.pieces.lock().add(&piece, pages);
        if let Some(mirror) = mapping.mirror_if_made().filter(|_| is_new) {
            mirror.shown.unmap(&piece.pages);
        }
    }
    // It was not used enough to stay, says the policy.
    core.frames.frame(head).set_uses(0);
    core.residency.stays(&core.frames, sweep, head, Answer::Busy);
    turns.offers += 1;
    if turns.now.is_none() {
        let mut pieces = core.mapped.pieces.lock();
        turns.now = pieces.next(enough);
        if turns.now.is_none() && turns.offers >= OFFERS_MAX {
            turns.now = pieces.first();
        }
    }
    true
}

/// The next at most `most` folios of the piece whose turn it is. Empty: the turn is over.
pub(super) fn next(core: &Core, turns: &mut PieceTurns, most: usize) -> Vec<Candidate> {
    let Some(piece) = turns.now.take() else { return Vec::new() };
    turns.offers = 0;
    // Its number may be another's by now.
    let mapping = core.mappings.get(piece.mapping).filter(|it| it.own().is_none());
    let folios = mapping.as_ref().map(|it| folios_of(core, it, &piece)).unwrap_or_default();
    if folios.is_empty() {
        core.mapped.pieces.lock().end(&piece);
        return Vec::new();
    }
    let mirror = mapping.as_ref().and_then(|it| it.mirror_if_made());
    if folios.len() == FOLIOS_MAX {
        let end = folios.last().map_or(piece.pages.end, |it| it.identity.pages().end);
        turns.rest_is(&piece, end);
    }
    let pages: Vec<_> = folios.iter().map(|it| it.identity.pages()).collect();
    let mapped = mirror.map(|it| it.shown.mapped(&pages));
    let mut going = Vec::with_capacity(most);
    for (n, folio) in folios.into_iter().enumerate() {
        let (frame, first) = (core.frames.frame(folio.head), folio.identity.index);
        if going.len() == most {
            turns.rest_is(&piece, first);
            break;
        }
        let again = mapped.as_ref().is_some_and(|mapped| mapped[n]);
        let uses = frame.uses();
        frame.set_uses(uses.saturating_sub(1));
        let is_used = uses > 0 || (again && !mutant::on(Mutant::MappedAgainForgotten));
        if !is_used || turns.used >= USED_PIECES_MAX {
            going.push(folio);
        }
    }
    turns.used = if going.is_empty() { turns.used + 1 } else { 0 };
    if turns.now.is_none() {
        core.mapped.pieces.lock().end(&piece);
    }
    going
}

/// The piece, made longer until `enough` of its pages are in memory, or others wait in what it
/// would get; and how many are.
fn with_enough(
    core: &Core,
    mapping: &Mapping,
    mut piece: Piece,
    enough: u64,
    has: impl Fn(&Piece) -> bool,
) -> (Piece, u64) {
    let pages_of = |piece: &Piece| -> u64 {
        let folios = folios_of(core, mapping, piece);
        folios.iter().map(|it| u64::from(it.identity.order.frames())).sum()
    };
    let mut pages = pages_of(&piece);
    // Ends: there is a longest piece.
    while pages < enough
        && let Some(longer) = piece.doubled()
        && !has(&longer)
    {
        pages = pages_of(&longer);
        piece = longer;
    }
    (piece, pages)
}

/// The first mirrored folios that begin in `piece`, in the order of the file. No lock is held: they
/// are checked when they are frozen.
fn folios_of(core: &Core, mapping: &Mapping, piece: &Piece) -> Vec<Candidate> {
    let mut found = Vec::new();
    let mut page = piece.pages.start;
    while page < piece.pages.end && found.len() < FOLIOS_MAX {
        let head = mapping.index.lookup_hint(page);
        let folio = core.frames.try_frame(head).map(|frame| (frame, frame.identity()));
        match folio {
            Some((frame, identity)) if (identity.mapping, identity.index) == (mapping.id, page) => {
                page = identity.pages().end;
                if frame.is_hollow() {
                    found.push(Candidate { head, identity });
                }
            }
            _ => page = mapping.index.next_hint(page),
        }
    }
    found
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;

    use rustix::mm::{MapFlags, ProtFlags};

    use super::*;
    use crate::frames::PAGE_BYTES;
    use crate::pages::outside::Outside;
    use crate::source::Memory;
    use crate::{Cache, File, Hint, Map, Options, Space};

    const MIB: usize = 1 << 20;
    /// Of a piece.
    const PAGES: u64 = 512;

    fn file() -> (Cache, File, Space) {
        let cache = Cache::new(Options::new(32 * MIB as u64)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 8 * MIB]))).unwrap();
        let space = Space::new(&cache, 0).unwrap();
        (cache, file, space)
    }

    fn touch(map: &Map, pages: Range<u64>) {
        for page in pages {
            let at = map.as_ptr().wrapping_add(page as usize * PAGE_BYTES);
            // SAFETY: a byte of the map, whose source cannot fail.
            let byte = unsafe { at.read_volatile() };
            assert_eq!(byte, 7);
        }
    }

    fn head(file: &File, page: u64) -> FrameNumber {
        let handle = file.handle();
        handle.core.hold(&handle.mapping, page).expect("it was touched").head()
    }

    /// The pages of the first piece that would go when its turn comes, where pages 3 and 4 are used
    /// while it waits, and page 300 was read some time before.
    fn going() -> Vec<u64> {
        let (_cache, file, space) = file();
        let map = space.map_file(&file, 0..4 * MIB as u64).unwrap();
        // Folios of a page.
        map.advise(0..map.len(), Hint::Random).unwrap();
        touch(&map, 0..2 * PAGES);
        let core = &*file.handle().core;
        core.let_go_of_recent(|_| true);
        let shown = &file.handle().mapping.mirror_of_folios().shown;
        let is_mapped = |pages: Range<u64>| shown.mapped(&[pages]) == [true];
        assert!(is_mapped(9..10), "it was touched");
        core.frames.frame(head(&file, 300)).set_uses(1);
        let (mut sweep, mut turns) = (Sweep::new(100), PieceTurns::default());
        offer(core, &mut turns, &mut sweep, head(&file, 9));
        assert!(!is_mapped(0..PAGES), "nothing is mapped");
        assert!(is_mapped(PAGES..PAGES + 1), "the next one is");
        assert!(!turns.has_piece(), "it waits");
        touch(&map, 3..5);
        offer(core, &mut turns, &mut sweep, head(&file, 10));
        assert!(!turns.has_piece(), "another of its folios is offered, and it waits");
        core.offer_no_more(&mut turns);
        let mut going = Vec::new();
        while turns.has_piece() {
            let folios = next(core, &mut turns, 64);
            assert!(folios.len() <= 64);
            going.extend(folios.iter().map(|it| it.identity.index));
        }
        going
    }

    #[test]
    fn what_is_used_while_its_piece_waits_stays() {
        let pages = going();
        // The kernel maps some neighbours of what is accessed, too.
        assert!(!pages.contains(&3) && !pages.contains(&4));
        assert!(!pages.contains(&300), "used by another way in");
        assert!(pages.len() as u64 >= PAGES - 40, "{}", pages.len());
        assert!(pages.is_sorted() && pages.iter().all(|&page| page < PAGES));
        let forgotten = mutant::with(Some(Mutant::MappedAgainForgotten), going);
        assert!(forgotten.contains(&3) && !forgotten.contains(&300));
    }

    #[test]
    fn where_few_pages_are_in_memory_a_piece_is_longer() {
        let (_cache, file, space) = file();
        let map = space.map_file(&file, 0..8 * MIB as u64).unwrap();
        map.advise(0..map.len(), Hint::Random).unwrap();
        for n in 0..4 {
            touch(&map, n * PAGES + 7..n * PAGES + 8);
        }
        let core = &*file.handle().core;
        core.let_go_of_recent(|_| true);
        let shown = &file.handle().mapping.mirror_of_folios().shown;
        let pages: Vec<_> = (0..4).map(|n| n * PAGES + 7..n * PAGES + 8).collect();
        assert_eq!(shown.mapped(&pages), [true; 4]);
        let (mut sweep, mut turns) = (Sweep::new(100), PieceTurns::default());
        offer(core, &mut turns, &mut sweep, head(&file, PAGES + 7));
        assert_eq!(shown.mapped(&pages), [false; 4]);
        touch(&map, pages[2].clone());
        assert_eq!(shown.mapped(&pages), [false, false, true, false]);
        core.offer_no_more(&mut turns);
        let going: Vec<_> = next(core, &mut turns, 64).iter().map(|it| it.identity.index).collect();
        assert_eq!(going, [7, PAGES + 7, 3 * PAGES + 7]);
    }

    #[test]
    fn a_long_piece_that_has_filled_up_goes_part_by_part() {
        let (_cache, file, space) = file();
        let map = space.map_file(&file, 0..8 * MIB as u64).unwrap();
        map.advise(0..map.len(), Hint::Random).unwrap();
        touch(&map, 7..8);
        let core = &*file.handle().core;
        let (mut sweep, mut turns) = (Sweep::new(100), PieceTurns::default());
        offer(core, &mut turns, &mut sweep, head(&file, 7));
        touch(&map, 0..3 * PAGES);
        core.let_go_of_recent(|_| true);
        file.handle().mapping.mirror_of_folios().shown.unmap(&(0..3 * PAGES));
        core.offer_no_more(&mut turns);
        let mut going = 0;
        while turns.has_piece() {
            going += next(core, &mut turns, 100).len();
        }
        assert_eq!(going as u64, 3 * PAGES);
        assert!(
            !core.mapped.pieces.lock().has(&Piece::of(file.handle().mapping.id, 0)),
            "its turn is over"
        );
    }

    #[test]
    fn a_turn_is_over_when_the_last_page_of_a_piece_was_looked_at() {
        let (_cache, file, space) = file();
        let map = space.map_file(&file, 0..8 * MIB as u64).unwrap();
        map.advise(0..map.len(), Hint::Random).unwrap();
        touch(&map, 0..PAGES);
        let core = &*file.handle().core;
        core.let_go_of_recent(|_| true);
        let (mut sweep, mut turns) = (Sweep::new(100), PieceTurns::default());
        offer(core, &mut turns, &mut sweep, head(&file, 7));
        core.offer_no_more(&mut turns);
        assert_eq!(next(core, &mut turns, 1000).len() as u64, PAGES);
        assert!(!turns.has_piece());
        assert!(!core.mapped.pieces.lock().has(&Piece::of(file.handle().mapping.id, 0)));
    }

    #[test]
    fn a_piece_waits_while_another_has_its_turn() {
        let (_cache, file, space) = file();
        let map = space.map_file(&file, 0..8 * MIB as u64).unwrap();
        map.advise(0..map.len(), Hint::Random).unwrap();
        touch(&map, 0..2 * PAGES);
        let core = &*file.handle().core;
        core.let_go_of_recent(|_| true);
        let (mut sweep, mut turns) = (Sweep::new(1000), PieceTurns::default());
        // As the policy offers what came in order.
        for page in 0..PAGES {
            offer(core, &mut turns, &mut sweep, head(&file, page));
            assert!(!turns.has_piece(), "page {page}");
        }
        offer(core, &mut turns, &mut sweep, head(&file, PAGES));
        let going = next(core, &mut turns, 64);
        assert!(going.iter().all(|it| it.identity.index < 64) && going.len() == 64);
        // It is not unmapped anew, which would forget what was used.
        touch(&map, 100..101);
        offer(core, &mut turns, &mut sweep, head(&file, 200));
        let mut rest = Vec::new();
        while turns.has_piece() {
            rest.extend(next(core, &mut turns, 64));
        }
        assert!(rest.iter().all(|it| it.identity.index != 100));
        assert!(rest.iter().any(|it| it.identity.index == 200));
    }

    #[test]
    fn the_only_piece_has_its_turn_after_many_offers_in_vain() {
        let (_cache, file, space) = file();
        let map = space.map_file(&file, 0..8 * MIB as u64).unwrap();
        touch(&map, 0..PAGES);
        let core = &*file.handle().core;
        core.let_go_of_recent(|_| true);
        let (mut sweep, mut turns) = (Sweep::new(1 << 20), PieceTurns::default());
        for nth in 1..OFFERS_MAX {
            offer(core, &mut turns, &mut sweep, head(&file, u64::from(nth) % PAGES));
            assert!(!turns.has_piece(), "offer {nth}");
        }
        offer(core, &mut turns, &mut sweep, head(&file, 0));
        assert!(turns.has_piece());
    }

    #[test]
    fn where_all_is_used_something_goes_all_the_same() {
        let (_cache, file, space) = file();
        let map = space.map_file(&file, 0..8 * MIB as u64).unwrap();
        touch(&map, 0..4 * PAGES);
        let core = &*file.handle().core;
        core.let_go_of_recent(|_| true);
        let (mut sweep, mut turns) = (Sweep::new(1000), PieceTurns::default());
        let mut none = 0;
        // Ends: the assertion.
        loop {
            offer(core, &mut turns, &mut sweep, head(&file, 0));
            touch(&map, 0..PAGES);
            core.offer_no_more(&mut turns);
            if !next(core, &mut turns, 64).is_empty() {
                break;
            }
            none += 1;
            assert!(none <= USED_PIECES_MAX);
        }
        assert_eq!(none, USED_PIECES_MAX);
    }

    /// What is left of a program's own memory where a map was, after eviction.
    fn at_the_addresses_of_a_map_that_was() -> u8 {
        // Another test may be faster to have memory there.
        (0..100).find_map(|_| at_the_addresses_of_a_map()).expect("the addresses are free")
    }

    fn at_the_addresses_of_a_map() -> Option<u8> {
        let (_cache, file, space) = file();
        let map = space.map_file(&file, 0..2 * MIB as u64).unwrap();
        touch(&map, 0..PAGES);
        let at = map.as_ptr().cast_mut();
        drop(map);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: nothing is there any more, or the call fails.
        let own = unsafe { rustix::mm::mmap_anonymous(at.cast(), 2 * MIB, access, flags) };
        let own = own.ok()?.cast::<u8>();
        // SAFETY: that memory.
        unsafe { own.write_volatile(9) };
        let core = &*file.handle().core;
        offer(core, &mut PieceTurns::default(), &mut Sweep::new(1), head(&file, 0));
        // SAFETY: the same.
        let byte = unsafe { own.read_volatile() };
        // SAFETY: mapped above, and not used any more.
        unsafe { rustix::mm::munmap(own.cast(), 2 * MIB) }.unwrap();
        Some(byte)
    }

    #[test]
    fn addresses_of_a_map_that_was_are_left_alone() {
        assert_eq!(at_the_addresses_of_a_map_that_was(), 9);
        let caught = mutant::with(Some(Mutant::UnmapsUnsaid), at_the_addresses_of_a_map_that_was);
        assert_eq!(caught, 0);
    }

    /// It is spared as long as a map shows it, and goes alone once none does.
    #[test]
    fn a_folio_that_is_used_in_part_is_kept_for_maps_alone() {
        let cache = Cache::new(Options::new(32 * MIB as u64)).unwrap();
        // So little that the policy's main queue gives first.
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 2 * MIB]))).unwrap();
        let space = Space::new(&cache, 0).unwrap();
        let map = space.map_file(&file, 0..2 * MIB as u64).unwrap();
        touch(&map, 0..PAGES);
        let core = &*file.handle().core;
        let folio = head(&file, 0);
        assert!(core.frames.frame(folio).order() > Order::MIN);
        let offered = |turns: &mut PieceTurns| {
            for page in [0, PAGES - 1].repeat(4) {
                assert_eq!(file.read_at(&mut [0], page * PAGE_BYTES as u64).unwrap(), 1);
            }
            let mut sweep = Sweep::new(100);
            assert_eq!(core.residency.next_victims(&core.frames, &mut sweep, 1, 1), [folio]);
            offer(core, turns, &mut sweep, folio)
        };
        let waits = || core.mapped.pieces.lock().has(&Piece::of(file.handle().mapping.id, 0));
        let mut turns = PieceTurns::default();
        assert!(offered(&mut turns));
        assert!(!core.residency.is_offered(&core.frames, folio) && !waits());
        drop(map);
        assert!(!offered(&mut turns));
        assert!(core.residency.is_offered(&core.frames, folio) && !waits());
    }

    #[test]
    fn a_mirror_knows_where_it_is_shown() {
        let (_cache, file, space) = file();
        let shown = || file.handle().mapping.mirror_of_folios().shown.all();
        let map = space.map_file(&file, 4096..10 * 4096).unwrap();
        let start = |map: &Map| map.as_ptr().addr();
        let other = space.map_file(&file, 0..4096).unwrap();
        assert_eq!(shown(), [(start(&map), 1..10), (start(&other), 0..1)]);
        drop(map);
        assert_eq!(shown(), [(start(&other), 0..1)]);
        drop(other);
        assert_eq!(shown(), []);
    }
}
