//! Maps that are made, or made longer, just when their file is cut short, and then is as long
//! again. Maps of a file that becomes longer than they have room for.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::mapped::mirror::tests::{hold_length, sleeps};
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::source::{Memory, Source};
use crate::{Cache, ErrorKind, Options, Space};

const PAGE: u64 = PAGE_BYTES as u64;

/// A file of two pages in a cache, its source, and a space whose faults other threads serve.
fn two_pages() -> (Arc<Memory>, File, Space) {
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let source = Arc::new(Memory::new(vec![7; 2 * PAGE_BYTES]));
    let file = cache.attach("file", source.clone()).unwrap();
    let space = Space::new(&cache, 1).unwrap();
    (source, file, space)
}

/// What `body` returns, which runs in a thread of its own. Once that waits for a lock, `meanwhile`
/// runs, which is to release it.
fn beside<T: Send>(body: impl FnOnce() -> T + Send, meanwhile: impl FnOnce()) -> T {
    let id = OnceLock::new();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            id.set(rustix::thread::gettid()).unwrap();
            body()
        });
        sleeps(*id.wait());
        meanwhile();
        thread.join().unwrap()
    })
}

/// Makes the file one page longer, and loads a byte of that by the map. `None`: the mirror ends
/// before it, and the access would end the process.
fn second_page(source: &Memory, file: &File, map: &Map) -> Option<u8> {
    source.write_at(PAGE, &[7; PAGE_BYTES]).unwrap();
    file.invalidate(0..0).unwrap();
    assert_eq!((file.len(), map.range()), (2 * PAGE, 0..2 * PAGE));
    let mirror = rustix::fs::fstat(file.handle().mapping.mirror_of_folios().fd())
        .unwrap()
        .st_size
        .cast_unsigned();
    // SAFETY: a byte of the map.
    (mirror >= 2 * PAGE).then(|| unsafe { map.as_ptr().wrapping_add(PAGE_BYTES).read_volatile() })
}

/// A byte of the second page, after a map was made that had looked at the length before the file
/// was cut, and made the mirror after that.
fn made_while_the_file_is_cut(mutant: Option<Mutant>) -> Option<u8> {
    let (source, file, space) = two_pages();
    let Handle { core, mapping, .. } = file.handle();
    let resizing = mapping.resizing.lock();
    let make = || mutant::with(mutant, || space.map_file(&file, 0..2 * PAGE));
    let map = beside(make, || {
        source.set_len(PAGE).unwrap();
        let gone = freeze::resize(core, mapping, PAGE);
        drop(resizing);
        gone.let_go(core);
    });
    second_page(&source, &file, &map.unwrap())
}

#[test]
fn a_map_has_pages_that_the_file_lost_while_it_was_made_and_got_again() {
    assert_eq!(made_while_the_file_is_cut(None), Some(7));
    let caught = made_while_the_file_is_cut(Some(Mutant::MapBeyondMirror));
    assert_eq!(caught, None, "the mutant does nothing");
}

/// The first byte of the second page, read through a map of a file that had a shorter one, and that
/// looked at the length before the file was cut.
fn made_longer_while_the_file_is_cut(mutant: Option<Mutant>) -> Option<u8> {
    let (source, file, space) = two_pages();
    source.set_len(PAGE).unwrap();
    file.invalidate(0..0).unwrap();
    let _shorter = space.map_file(&file, 0..PAGE).unwrap();
    source.write_at(PAGE, &[7; PAGE_BYTES]).unwrap();
    file.invalidate(0..0).unwrap();
    let length = hold_length(file.handle().mapping.mirror_of_folios());
    let longer = || mutant::with(mutant, || space.map_file(&file, 0..2 * PAGE));
    let longer = beside(longer, || {
        source.set_len(PAGE).unwrap();
        file.invalidate(0..0).unwrap();
        drop(length);
    });
    second_page(&source, &file, &longer.unwrap())
}

#[test]
fn a_longer_map_has_pages_that_the_file_lost_while_it_was_made_and_got_again() {
    assert_eq!(made_longer_while_the_file_is_cut(None), Some(7));
    let caught = made_longer_while_the_file_is_cut(Some(Mutant::MapBeyondMirror));
    assert_eq!(caught, None, "the mutant does nothing");
}

/// A file of sevens, of any length.
#[derive(Debug)]
struct Sevens(AtomicU64);

impl Source for Sevens {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.0.load(Ordering::Relaxed).saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap());
        buf[..len].fill(7);
        Ok(len)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.load(Ordering::Relaxed))
    }
    fn kind(&self) -> Cow<'static, str> {
        "sevens".into()
    }
}

/// A byte of the last page of a map of so much of a file of `len` bytes, from `start` on.
fn last_byte_of(len: u64, start: u64, bytes: u64) -> u8 {
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let file = cache.attach("file", Arc::new(Sevens(AtomicU64::new(len)))).unwrap();
    let space = Space::new(&cache, 0).unwrap();
    let map = space.map_file(&file, start..start + bytes).unwrap();
    let last = map.as_ptr().wrapping_add(map.len() - 1);
    // SAFETY: a byte of the map.
    let byte = unsafe { last.read_volatile() };
    // By the cache's own view.
    let guard = file.get((start + bytes - 1) / PAGE).unwrap();
    assert_eq!(guard[0], byte);
    byte
}

#[test]
fn a_part_of_a_file_of_any_length_can_be_mapped() {
    const LONGEST: u64 = (1 << 63) - PAGE;
    for len in [64 << 40, LONGEST - (2 << 20), LONGEST - PAGE, LONGEST] {
        assert_eq!(last_byte_of(len, 0, 1 << 30), 7, "{len}");
        assert_eq!(last_byte_of(len, (len / 2) & !(PAGE - 1), 3 * PAGE), 7, "{len}");
        assert_eq!(last_byte_of(len, len - 5 * PAGE, 5 * PAGE), 7, "{len}");
    }
}

#[test]
fn what_a_file_has_grown_by_can_be_mapped() {
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let source = Arc::new(Sevens(AtomicU64::new(64 * PAGE)));
    let file = cache.attach("file", source.clone()).unwrap();
    let space = Space::new(&cache, 1).unwrap();
    let map = space.map_file(&file, 0..64 * PAGE).unwrap();
    // SAFETY: a byte of the map.
    let load =
        |map: &Map, at: u64| unsafe { map.as_ptr().wrapping_add(at as usize).read_volatile() };
    assert_eq!(load(&map, 0), 7);
    source.0.store(9 << 30, Ordering::Relaxed);
    file.invalidate(0..0).unwrap();
    assert_eq!(load(&map, 63 * PAGE), 7);
    let map = space.map_file(&file, 0..9 << 30).unwrap();
    assert_eq!(load(&map, 64 * PAGE), 7);
    assert_eq!(load(&map, (9 << 30) - 1), 7);
    assert_eq!(file.get(((9 << 30) - 1) / PAGE).unwrap()[0], 7);
}

#[test]
fn a_hint_to_drop_pages_waits_for_who_lends_one() {
    let (_source, file, space) = two_pages();
    let _map = space.map_file(&file, 0..2 * PAGE).unwrap();
    let claim = file.handle().mapping.mirror_of_folios().claim(1..2).unwrap();
    let advise = |pages: Range<u64>| file.advise(pages, crate::Hint::DontNeed).unwrap();
    advise(0..PAGE); // of another page
    beside(|| advise(PAGE..2 * PAGE), || drop(claim));
}

/// What a map shows of a byte that its file got just now, to who has seen the new length.
fn shown_of_a_file_that_grew(mutant: Option<Mutant>) -> u8 {
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let source = Arc::new(Memory::new(vec![7; 100]));
    let file = cache.attach("file", source.clone()).unwrap();
    let space = Space::new(&cache, 1).unwrap();
    let map = space.map_file(&file, 0..100).unwrap();
    // SAFETY: the map has the page.
    let load = |at: usize| unsafe { map.as_ptr().wrapping_add(at).read_volatile() };
    assert_eq!((load(50), load(150)), (7, 0));
    source.write_at(100, &[7; 100]).unwrap();
    let Handle { core, mapping, .. } = file.handle();
    crate::base::wait::together(|| {
        let resizing = mapping.resizing.lock();
        let gone = mutant::with(mutant, || freeze::resize(core, mapping, 200));
        assert_eq!(file.len(), 200);
        let byte = load(150);
        drop(resizing);
        gone.let_go(core);
        byte
    })
}

#[test]
fn who_sees_a_new_length_finds_its_bytes_in_a_map() {
    assert_eq!(shown_of_a_file_that_grew(None), 7);
    assert_eq!(shown_of_a_file_that_grew(Some(Mutant::LengthBeforeMaps)), 0);
}

/// Whether a page can be had whose older version somebody has, and how long that takes.
fn brought_beside_a_guard(mutant: Option<Mutant>) -> crate::Result<()> {
    let mut options = Options::new(8 << 20);
    options.patience = std::time::Duration::from_millis(20);
    let cache = Cache::new(options).unwrap();
    let source = Arc::new(Memory::new(vec![7; 2 * PAGE_BYTES]));
    let file = cache.attach("file", source.clone()).unwrap();
    let space = Space::new(&cache, 1).unwrap();
    let map = space.map_file(&file, 0..2 * PAGE).unwrap();
    // SAFETY: the map has the page.
    let load = || unsafe { map.as_ptr().wrapping_add(PAGE_BYTES).read_volatile() };
    assert_eq!(load(), 7);
    let guard = file.get(1).unwrap();
    source.write_at(0, &[8; 2 * PAGE_BYTES]).unwrap();
    file.invalidate(0..2 * PAGE).unwrap();
    let brought = mutant::with(mutant, || map.advise(0..map.len(), crate::Hint::WillNeed));
    assert_eq!((load(), guard[0]), (7, 7));
    drop(guard);
    assert_eq!(load(), 8);
    brought
}

#[test]
fn nobody_waits_for_a_guard_whose_page_maps_show() {
    brought_beside_a_guard(None).unwrap();
    let caught = brought_beside_a_guard(Some(Mutant::LeftOverAwaited)).unwrap_err();
    assert!(caught.to_string().contains("an older version"), "{caught}");
}

/// A map of 64 MiB in a cache of 8 MiB.
fn larger_than_its_cache(handlers: usize) -> (Arc<Sevens>, File, Space, Map) {
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let source = Arc::new(Sevens(AtomicU64::new(64 << 20)));
    let file = cache.attach("file", source.clone()).unwrap();
    let space = Space::new(&cache, handlers).unwrap();
    let map = space.map_file(&file, 0..64 << 20).unwrap();
    (source, file, space, map)
}

/// Whether write(2) from what is held succeeds, after all of the file was read through the map.
fn is_written_when_held(mutant: Option<Mutant>) -> rustix::io::Result<usize> {
    let (_source, _file, _space, map) = larger_than_its_cache(0);
    let held = mutant::with(mutant, || map.hold(5000..300_000)).unwrap();
    for page in (100..map.len() / PAGE_BYTES).chain(100..map.len() / PAGE_BYTES) {
        // SAFETY: a byte of the map.
        assert_eq!(unsafe { map.as_ptr().wrapping_add(page * PAGE_BYTES).read_volatile() }, 7);
    }
    let to = rustix::fs::memfd_create("to", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(to, &held)
}

#[test]
fn what_is_held_can_be_written_to_a_file() {
    assert_eq!(is_written_when_held(None), Ok(295_000));
    let caught = is_written_when_held(Some(Mutant::HoldsNothing));
    assert_eq!(caught, Err(rustix::io::Errno::FAULT));
}

#[test]
fn a_quarter_of_the_budget_can_be_held_of_maps() {
    let (_source, _file, space, map) = larger_than_its_cache(0);
    let error = map.hold(0..map.len()).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(text.contains("have 67108864 bytes") && text.contains("2097152 can be"), "{text}");
    let held = map.hold(0..1 << 20).unwrap();
    assert_eq!(held.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 7 << 20);
    let own = space.map_anon(2 << 20).unwrap();
    assert_eq!(own.hold(0..(1 << 20) + 1).unwrap_err().kind(), ErrorKind::TooLarge);
    let more = map.hold(8 << 20..10 << 20).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::TooLarge);
    assert_eq!(map.protect(false).unwrap_err().kind(), ErrorKind::System);
    drop(held);
    // What had no room holds nothing.
    drop(own.hold(0..2 << 20).unwrap());
    assert!(map.hold(7..7).unwrap().is_empty());
    map.protect(false).unwrap();
    let unreadable = map.hold(0..1).unwrap_err();
    assert!(unreadable.to_string().contains("Permission denied"), "{unreadable}");
    assert_eq!(map.hold(5..map.len() + 1).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn what_is_held_keeps_its_bytes_and_who_wants_newer_ones_waits() {
    let mut options = Options::new(8 << 20);
    options.patience = std::time::Duration::from_millis(20);
    let cache = Cache::new(options).unwrap();
    let source = Arc::new(Memory::new(vec![7; 2 * PAGE_BYTES]));
    let file = cache.attach("file", source.clone()).unwrap();
    let space = Space::new(&cache, 0).unwrap();
    let map = space.map_file(&file, 0..2 * PAGE).unwrap();
    let held = map.hold(0..PAGE_BYTES).unwrap();
    source.write_at(0, &[8; 2 * PAGE_BYTES]).unwrap();
    file.invalidate(0..2 * PAGE).unwrap();
    assert_eq!((held[0], map.hold(PAGE_BYTES..2 * PAGE_BYTES).unwrap()[0]), (7, 8));
    let error = map.hold(0..PAGE_BYTES).unwrap_err();
    assert!(error.to_string().contains("an older version of the page"), "{error}");
    drop(held);
    assert_eq!(map.hold(0..PAGE_BYTES).unwrap()[0], 8);
}

/// A map of a file that was cut in the middle of a folio which has 4 pages, as one has that was
/// about to be read when the file was cut. Of these, the file has the first.
fn ends_within_a_folio() -> (File, Space, Map) {
    let cache = Cache::new(Options::new(16 << 20)).unwrap();
    let source = Arc::new(Memory::new(vec![7; 300 * PAGE_BYTES]));
    let file = cache.attach("file", source.clone()).unwrap();
    let space = Space::new(&cache, 0).unwrap();
    let map = space.map_file(&file, 0..300 * PAGE).unwrap();
    source.set_len(200 * PAGE + 100).unwrap();
    file.refresh().unwrap();
    let handle = file.handle();
    crate::pages::fill::range_now(handle, 200, 204);
    let folio = handle.core.hold(&handle.mapping, 203).expect("it was read as one");
    assert_eq!((folio.frame().identity().pages(), folio.frame().file_bytes()), (200..204, 100));
    drop(folio);
    (file, space, map)
}

/// What becomes of a hold of these pages of that map: how many bytes it would have.
fn held_of_it(pages: Range<usize>, mutant: Option<Mutant>) -> std::result::Result<usize, u64> {
    let (_file, _space, map) = ends_within_a_folio();
    let held = mutant::with(mutant, || map.hold(pages.start * PAGE_BYTES..pages.end * PAGE_BYTES));
    held.map(|held| held.len()).map_err(|error| match *error.cause() {
        Cause::BeyondEnd { page, .. } => page,
        _ => panic!("{error}"),
    })
}

#[test]
fn what_the_file_does_not_have_any_more_is_not_held() {
    assert_eq!(held_of_it(200..201, None), Ok(PAGE_BYTES));
    assert_eq!(held_of_it(200..202, None), Err(201));
    assert_eq!(held_of_it(198..204, None), Err(201));
    let caught = held_of_it(200..202, Some(Mutant::HoldsWholeFolios));
    assert_eq!(caught, Ok(2 * PAGE_BYTES), "the second page would be a SIGBUS");
}

/// Whether a look says that the mirror has a page which it does not have, as the file had it when
/// somebody asked whether it does.
fn is_found_beyond_the_end(mutant: Option<Mutant>) -> bool {
    let (file, _space, map) = ends_within_a_folio();
    drop(map.hold(200 * PAGE_BYTES..200 * PAGE_BYTES + 1).unwrap());
    let (handle, by) = (file.handle(), Waiter::Thread);
    mutant::with(mutant, || {
        // SAFETY: nothing is shown.
        let shown = unsafe { lend::look(handle, 202, None, None, by) };
        lend::look_beside(handle, 202).is_some()
            || lend::look_now(handle, 202).is_ok_and(|held| held.is_some())
            || matches!(shown, Ok(lend::Look::There(_)))
    })
}

#[test]
fn a_folio_has_no_page_beyond_the_end_of_its_file() {
    assert!(!is_found_beyond_the_end(None));
    assert!(is_found_beyond_the_end(Some(Mutant::LooksBeyondEnd)), "the mutant does nothing");
}
