//! Guards of pages that were read in large folios.

use super::{Fixture, PAGE, Plan, SMALL, Stores, draw, holds_and_catches, race};
use crate::base::mutant::Mutant;
use crate::frames::PAGE_BYTES;
use crate::pages::reclaim;

/// Three threads get pages of two large folios, or read them, and one evicts. At most a page may be
/// granted, so that the first guard of each folio has to split it, and the others wait for that.
fn admitted() {
    let fixture = Fixture::new(Plan { frames: 20, order_max: 2, files: 1, pages: 8, ..SMALL });
    for page in [0, 4] {
        fixture.read(0, page, 4 * PAGE_BYTES).expect("the source does not fail");
    }
    let get = |fixture: &Fixture| {
        let mut guards = Vec::new();
        for _ in 0..2 {
            let page = draw(8);
            let guard = fixture.files[0].get(page).expect("the source does not fail");
            assert!(guard.may_keep(), "a guard of a large folio that is not granted");
            fixture.check_bytes(0, page, &guard);
            guards.push((page, guard));
        }
        for (page, guard) in &guards {
            fixture.check_bytes(0, *page, guard);
        }
    };
    let read = |fixture: &Fixture| {
        fixture.read_any().expect("the source does not fail");
        reclaim::evict(&fixture.core, 4);
    };
    race(&fixture, &[get, get, read]);
    assert_eq!(fixture.files[0].mapping.len_bytes(), 8 * PAGE);
}

#[test]
fn guards_of_large_folios_are_granted_or_split_them() {
    let mutants = [
        (Mutant::AdmitBlindly, "not granted"),
        (Mutant::FreezeAnyCount, ""),
        (Mutant::MoveWakesNobody, "deadlock"),
    ];
    holds_and_catches(Stores::AtOnce, admitted, &mutants);
}
