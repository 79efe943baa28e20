//! A page-out (`swap/pages.rs`) against stores, and against page-outs that want its slot.
//!
//! The states of the pages, the slots and the steps of a page-out are the shipped ones. The memory
//! of a page is a word: its bytes, whether it is there, and whether it is protected, which the
//! processor looks at in one step with each access; whether the index has it; and what the program
//! has done to its mapping. A slot of the swap is a word, too. `kernel.rs` has those who change a
//! page's word and do not ask.

use std::sync::Arc;

use super::{SWAPPED, holds_and_catches};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU32, Mutex, Ordering};
use crate::mapped::swap::pages::Written::{self, Failed, InSlot};
use crate::mapped::swap::pages::{self, PageState, PageStates, Seen, Unused};
use crate::mapped::swap::slots::{Slot, SwapSlots};

const THERE: u32 = 1 << 31;
const PROTECTED: u32 = 1 << 30;
/// The index has the page.
const INDEXED: u32 = 1 << 29;
/// The kernel does not take the page out of memory.
const SEALED: u32 = 1 << 28;
/// It is a page of another mapping, which cannot be protected.
const FOREIGN: u32 = 1 << 27;
const BYTES: u32 = FOREIGN - 1;

/// Pages that are in memory, and a swap.
pub(super) struct Machine {
    memory: Vec<AtomicU32>,
    swap: Vec<AtomicU32>,
    slots: SwapSlots,
    /// Behind the `change` mutex.
    pages: Mutex<PageStates>,
    /// Whether KSM may merge the pages; held while it does.
    merges: Mutex<bool>,
    /// Whether it may because the process has asked for all of its memory, which can be asked for.
    merges_all: bool,
    /// Whether evictions and stores look the page table up. Not where the states alone are to be
    /// enough.
    looks: bool,
}

impl Machine {
    /// Pages of which each has its number, plus one, as its bytes.
    pub(super) fn new(memory: u32, slots: u32) -> Self {
        let mut states = PageStates::new(memory.into()).expect("a few pages");
        for page in 0..memory {
            assert_eq!(states.store(page.into(), || {}), Unused(None));
        }
        Machine {
            memory: (0..memory).map(|page| AtomicU32::new(THERE | INDEXED | (page + 1))).collect(),
            swap: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            slots: SwapSlots::new(slots),
            pages: Mutex::new(states),
            merges: Mutex::new(true),
            merges_all: true,
            looks: false,
        }
    }

    /// A machine on which others change the page table.
    pub(super) fn that_looks(self) -> Self {
        Machine { looks: true, ..self }
    }

    /// A machine on which the program has asked KSM to merge these pages alone.
    pub(super) fn that_merges_an_area(self) -> Self {
        Machine { merges_all: false, ..self }
    }

    /// Changes the word of a page in one step, if `to` gives another one. Returns whether it did.
    fn update(&self, page: u32, to: impl Fn(u32) -> Option<u32>) -> bool {
        let word = &self.memory[page as usize];
        let mut now = word.load(Ordering::SeqCst);
        // Ends: each turn follows a step of another thread.
        while let Some(then) = to(now) {
            match word.compare_exchange(now, then, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    fn give(&self, Unused(slot): Unused) {
        if let Some(slot) = slot {
            self.slots.give(slot);
        }
    }

    fn allow(&self, page: u32) {
        self.memory[page as usize].fetch_and(!PROTECTED, Ordering::SeqCst);
    }

    /// As `Area::write_some`, and an eviction after it.
    pub(super) fn page_out(&self, page: u32, written: Written) {
        let Some(slot) = self.slots.take(1).into_iter().flatten().next().map(Slot) else { return };
        let memory = &self.memory[page as usize];
        let protect = |_| {
            self.update(page, |now| (now & FOREIGN == 0).then_some(now | PROTECTED));
        };
        let mut states = self.pages.lock();
        let wanted = [(u64::from(page), slot)].into_iter();
        let now = memory.load(Ordering::SeqCst);
        let is_there = now & THERE != 0;
        let begun = match is_there {
            true => pages::begin(&mut states, wanted, protect),
            false => Vec::new(),
        };
        if !is_there && now & INDEXED != 0 && states.miss(page.into()).is_ok() {
            memory.store(0, Ordering::SeqCst);
        }
        drop(states);
        if begun.is_empty() {
            self.slots.give(slot);
            return;
        }
        if mutant::on(Mutant::DropBeforeWritten) {
            self.evict(page);
        }
        let read = memory.load(Ordering::SeqCst);
        let is_mutant = mutant::on(Mutant::DropBeforeWritten);
        assert!(is_mutant || read & INDEXED != 0, "page {page} is absent while it is written");
        // The system call that writes finds it absent.
        let written = if read & THERE == 0 && !is_mutant { Failed } else { written };
        if written == Written::InSlot {
            self.swap[slot.0 as usize].store(read & BYTES, Ordering::SeqCst);
        }
        let allow = || self.allow(page);
        let unused = self.pages.lock().end_write(page.into(), slot, written, allow);
        self.give(unused);
        self.evict(page);
    }

    /// As `Area::distrust_pages`, and a `MADV_DONTNEED` after it.
    pub(super) fn evict(&self, page: u32) {
        self.evict_all(&[page]);
    }

    /// As [`Self::evict`], for pages that are looked up together.
    pub(super) fn evict_all(&self, pages: &[u32]) {
        let mut states = self.pages.lock();
        let leaving = |page: &u32| states.may_leave(u64::from(*page));
        let leaving: Vec<u32> = pages.iter().copied().filter(leaving).collect();
        if leaving.is_empty() {
            return;
        }
        let keep_ksm_away = || {
            if !mutant::on(Mutant::MergedAgain) {
                *self.merges.lock() = false;
            }
        };
        let look = || {
            let seen = |page: &u32| match self.memory[*page as usize].load(Ordering::SeqCst) {
                now if now & THERE == 0 => Seen::Absent,
                now if now & PROTECTED != 0 => Seen::Protected,
                _ => Seen::Open,
            };
            leaving.iter().map(seen).collect::<Vec<Seen>>()
        };
        if self.merges_all {
            keep_ksm_away();
        }
        let mut seen = look();
        if seen.contains(&Seen::Open) {
            keep_ksm_away();
            seen = look();
        }
        for (&page, seen) in leaving.iter().zip(seen) {
            if self.looks {
                self.give(states.distrust(page.into(), Some(seen), || self.allow(page)));
            }
            if states.may_leave(page.into()) {
                let forgets = |now| mutant::on(Mutant::SealedLeaves).then_some(now & !INDEXED);
                let to = |now| if now & SEALED == 0 { Some(0) } else { forgets(now) };
                self.update(page, |now| to(now).filter(|to| *to != now));
            }
        }
    }

    /// The program seals the mapping of the page.
    pub(super) fn seal(&self, page: u32) {
        self.memory[page as usize].fetch_or(SEALED, Ordering::SeqCst);
    }

    /// The program maps other memory over the page, and stores to it. Not between a look and the
    /// taking out, where the kernel would take what is there by then.
    pub(super) fn replace(&self, page: u32, bytes: u32) {
        let _states = self.pages.lock();
        let replace = |now| Some(now & INDEXED | THERE | FOREIGN | bytes);
        assert!(self.update(page, replace));
    }

    /// The page's entry becomes a protected one, though nobody has asked for that.
    pub(super) fn protect_again(&self, page: u32) {
        self.update(page, |now| (now & THERE != 0).then_some(now | PROTECTED));
    }

    /// Whether the page is one of a mapping of the program's own, with these bytes.
    pub(super) fn is_foreign(&self, page: u32, bytes: u32) -> bool {
        let now = self.memory[page as usize].load(Ordering::SeqCst);
        now & FOREIGN != 0 && now & BYTES == bytes
    }

    /// KSM replaces the page by one with the same bytes, which is not protected.
    pub(super) fn merge(&self, page: u32) {
        let merges = self.merges.lock();
        if *merges {
            self.allow(page);
        }
    }

    /// The program takes the page away by a system call of its own.
    pub(super) fn take_away(&self, page: u32) {
        self.memory[page as usize].fetch_and(INDEXED, Ordering::SeqCst);
    }

    /// A store of the program's, and the faults that it has.
    pub(super) fn store(&self, page: u32, bytes: u32) {
        let memory = &self.memory[page as usize];
        // Ends: each turn follows a step of a page-out.
        loop {
            let now = memory.load(Ordering::SeqCst);
            if now & THERE != 0 && now & PROTECTED == 0 {
                let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
                let then = THERE | INDEXED | bytes;
                if memory.compare_exchange(now, then, success, failure).is_ok() {
                    return;
                }
                continue;
            }
            let mut states = self.pages.lock();
            assert!(self.bring(&mut states, page), "the store fails");
            let mut is_protected = memory.load(Ordering::SeqCst) & PROTECTED != 0;
            self.give(states.store(page.into(), || {
                self.allow(page);
                is_protected = false;
            }));
            if self.looks && is_protected && !mutant::on(Mutant::ProtectedForGood) {
                self.allow(page);
            }
            let is_protected = memory.load(Ordering::SeqCst) & PROTECTED != 0;
            assert!(!is_protected, "page {page} stays protected");
        }
    }

    /// Steps 1 and 4 to 6 of a fault at once: they wait for each other by the folio's version.
    /// False: the access fails.
    fn bring(&self, states: &mut PageStates, page: u32) -> bool {
        let memory = &self.memory[page as usize];
        let now = memory.load(Ordering::SeqCst);
        if now & THERE != 0 {
            let is_known = now & (INDEXED | FOREIGN) != 0;
            assert!(is_known, "page {page} is in memory, and the index does not have it");
            return true;
        }
        if now & INDEXED != 0 && states.miss(page.into()).is_err() {
            return false;
        }
        let bytes = match states.get(page.into()) {
            PageState::Swapped(Slot(slot)) => self.swap[slot as usize].load(Ordering::SeqCst),
            PageState::Origin => 0,
            PageState::Lost => return false,
            state => panic!("page {page} has left memory while it is {state:?}"),
        };
        let come = THERE | INDEXED | PROTECTED | bytes;
        self.update(page, |now| Some(now & SEALED | come))
    }

    /// What the program finds. `None`: the access fails.
    pub(super) fn try_load(&self, page: u32) -> Option<u32> {
        let there = self.bring(&mut self.pages.lock(), page);
        there.then(|| self.memory[page as usize].load(Ordering::SeqCst) & BYTES)
    }

    /// What the program finds where no access fails.
    pub(super) fn load(&self, page: u32) -> u32 {
        self.try_load(page).expect("nobody takes pages away")
    }

    /// The program does not want its pages any more: all slots are free then.
    pub(super) fn forget_all(&self) {
        let mut states = self.pages.lock();
        for page in 0..self.memory.len() as u64 {
            self.give(states.forget(page).expect("no write is under way"));
        }
        assert_eq!(self.slots.free(), self.slots.all(), "a slot was lost");
    }
}

pub(super) fn race(
    machine: Machine,
    one: fn(&Machine),
    other: fn(&Machine),
    at_the_end: fn(&Machine),
) {
    let machine = Arc::new(machine);
    let (first, second) = if SWAPPED.get() { (other, one) } else { (one, other) };
    let shared = machine.clone();
    let thread = loom::thread::spawn(move || second(&shared));
    first(&machine);
    thread.join().expect("the other thread");
    at_the_end(&machine);
}

/// A store while its page is paged out.
fn stored() {
    let at_the_end = |machine: &Machine| assert_eq!(machine.load(0), 7, "the store was lost");
    race(
        Machine::new(1, 2),
        |machine| machine.page_out(0, InSlot),
        |machine| machine.store(0, 7),
        at_the_end,
    );
}

#[test]
fn a_store_to_a_page_that_is_paged_out_is_not_lost() {
    let mutants = [
        (Mutant::PageOutUnprotected, "the store was lost"),
        (Mutant::PageOutUnchecked, "the store was lost"),
        (Mutant::DropBeforeWritten, "has left memory while"),
    ];
    holds_and_catches(stored, &mutants);
}

/// A store to a page whose write fails.
fn failed() {
    let at_the_end = |machine: &Machine| {
        machine.store(0, machine.load(0) + 1);
        assert_eq!(machine.load(0), 8, "the store was lost");
        assert_eq!(machine.slots.free(), 2, "a slot was lost");
    };
    race(
        Machine::new(1, 2),
        |machine| machine.page_out(0, Failed),
        |machine| machine.store(0, 7),
        at_the_end,
    );
}

#[test]
fn a_page_whose_write_fails_can_be_stored_to() {
    holds_and_catches(failed, &[(Mutant::FailedStaysProtected, "page 0 stays protected")]);
}

/// A store to a page that is being written, and a page-out of another page by the same thread.
fn reused() {
    let other = |machine: &Machine| {
        machine.store(0, 7);
        machine.page_out(1, InSlot);
    };
    let at_the_end = |machine: &Machine| {
        assert_eq!((machine.load(0), machine.load(1)), (7, 2), "a page has the bytes of another");
        machine.forget_all();
    };
    race(Machine::new(2, 2), |machine| machine.page_out(0, InSlot), other, at_the_end);
}

#[test]
fn a_slot_is_not_given_to_another_page_while_it_is_written() {
    holds_and_catches(reused, &[(Mutant::SlotFreedEarly, "")]);
}

/// Two page-outs of one page, and a store between the two.
fn twice() {
    let other = |machine: &Machine| {
        machine.store(0, 7);
        machine.page_out(0, InSlot);
    };
    let at_the_end = |machine: &Machine| {
        assert_eq!(machine.load(0), 7, "the store was lost");
        machine.forget_all();
    };
    race(Machine::new(1, 2), |machine| machine.page_out(0, InSlot), other, at_the_end);
}

#[test]
fn a_page_out_is_not_taken_for_another_one_of_the_same_page() {
    let mutants = [
        (Mutant::PageOutUnchecked, "the store was lost"),
        (Mutant::WriteForgotten, "is absent while it is written"),
    ];
    holds_and_catches(twice, &mutants);
}
