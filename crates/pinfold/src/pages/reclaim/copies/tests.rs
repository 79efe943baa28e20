//! Where copies are.

use std::sync::Arc;
use std::time::Duration;

use super::{Copied, allocate_copy};
use crate::base::mutant::{self, Mutant};
use crate::frames::Order;
use crate::pages::pressure::Refused;
use crate::pages::reclaim::Patience;
use crate::source::Memory;
use crate::{Cache, File, Hint, Options};

fn cache() -> (Cache, File) {
    let cache = Cache::new(Options::new(16 << 20)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 32 << 20]))).unwrap();
    (cache, file)
}

fn copy(cache: &Cache, file: &File, pages: usize) -> Copied {
    let place = (&file.handle().mapping, 0);
    allocate_copy(cache.core(), place, pages * 4096, true).unwrap().unwrap()
}

/// Pages of a copy that are in runs from which everything can be moved, though they stay.
fn among_movable(copied: &Copied) -> u32 {
    let frames = &copied.core.frames;
    let heads = copied.heads.iter().filter(|&&head| frames.is_movable(head));
    let orders = heads.map(|&head| frames.frame(head).order());
    orders.filter(|&order| order < Order::MAX).map(Order::frames).sum()
}

/// Such pages of a copy within the arena, of so many pages.
fn inside(pages: usize) -> u32 {
    let (cache, file) = cache();
    let copied = copy(&cache, &file, pages);
    assert!(copied.outside.is_none());
    among_movable(&copied)
}

#[test]
fn what_is_left_of_a_run_makes_it_one_for_what_stays() {
    for pages in [1, 100, 256, 257, 300, 511, 512] {
        assert_eq!(inside(pages), 0, "{pages}");
    }
    let mutated = mutant::with(Some(Mutant::CopyAmongMovable), || inside(300));
    assert_eq!(mutated, 300, "the mutant does nothing");
}

/// Such pages of a copy outside of the arena, where guards lie in all runs.
fn outside() -> u32 {
    let (cache, file) = cache();
    file.advise(0..32 << 20, Hint::Random).unwrap();
    let all: Vec<_> = (0..3000).map(|page| file.get(page).unwrap()).collect();
    // Every 64th of them stays.
    let kept: Vec<_> = all.into_iter().step_by(64).collect();
    file.invalidate(..).unwrap();
    let copied = copy(&cache, &file, 1500);
    assert!(copied.outside.is_some());
    assert!(copied.heads.iter().any(|&head| cache.core().frames.frame(head).order() < Order::MAX));
    drop(kept);
    among_movable(&copied)
}

#[test]
fn pieces_of_runs_make_them_runs_for_what_stays() {
    assert_eq!(outside(), 0);
    let mutated = mutant::with(Some(Mutant::CopyAmongMovable), outside);
    assert!(mutated > 0, "the mutant does nothing");
}

#[test]
fn a_run_without_copies_can_be_emptied_again() {
    let (cache, file) = cache();
    let copied = copy(&cache, &file, 300);
    let head = copied.heads[0];
    assert!(!cache.core().frames.is_movable(head));
    drop(copied);
    assert!(cache.core().frames.is_movable(head));
}

/// Who waits for copies of its own file on their way has time as long as reads of these end.
#[test]
fn reads_of_the_file_give_a_copy_time_that_is_refused_for_its_own_file() {
    let mut options = Options::new(16 << 20);
    options.patience = Duration::from_millis(20);
    let cache = Cache::new(options).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 32 << 20]))).unwrap();
    let (core, mapping) = (cache.core(), &*file.handle().mapping);
    let is_over = |why| {
        let mut patience = Patience::new(core);
        let mut is_over = || patience.is_over_for_copy(core, mapping, why);
        is_over();
        std::thread::sleep(Duration::from_millis(50));
        file.invalidate(0..4096).unwrap();
        file.read_at(&mut [0], 0).unwrap();
        is_over()
    };
    assert!(!is_over(Refused::OwnCopies));
    assert!(is_over(Refused::NoMemory));
}
