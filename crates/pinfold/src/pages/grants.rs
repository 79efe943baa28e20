//! Grants: which large folios counted guards may keep (`docs/borrow.md`, "What keeps the memory").
//!
//! At most a 20th of the cache is granted; beyond that, a folio that cannot be split when a guard
//! is wanted. A folio is on the list from before its flag is set until it was frozen and thawed,
//! which revokes the grant, or its frames were freed or split. Each moves its version by two or more.

use std::collections::VecDeque;

use crate::base::sync::Mutex;
use crate::frames::{Flags, Frame, FrameNumber, Frames, Stamp};

/// Of the cache's pages: so guards of n pages keep at most 2n, or a tenth of the cache.
const SHARE: u32 = 20;

const LOOKED_AT_MAX: usize = 8;

#[derive(Debug)]
pub(crate) struct Grants {
    /// A leaf of the locks.
    list: Mutex<GrantList>,
    pages_max: u32,
}

#[derive(Debug, Default)]
struct GrantList {
    /// The oldest first.
    folios: VecDeque<Grant>,
    /// Also of those that were taken off and are not settled yet.
    pages: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) head: FrameNumber,
    pub(crate) stamp: Stamp,
    pages: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantState {
    /// Freed, split or revoked.
    Over,
    /// By users, or being changed at this moment.
    Used,
    Idle,
}

impl Grant {
    fn now(&self, frame: &Frame) -> GrantState {
        let since = frame.since(self.stamp);
        let word = frame.count.word();
        match since {
            0 if !word.is_frozen() && word.refs() <= 1 && word.pins() == 0 => GrantState::Idle,
            0 => GrantState::Used,
            // Out of its file, and still referenced; or the next folio in its frames on its way.
            1 if !word.is_frozen() && frame.order().frames() == self.pages => GrantState::Used,
            // Freed; or frozen, and whoever thaws it revokes the grant.
            _ => GrantState::Over,
        }
    }
}

impl GrantList {
    /// Of the `most` oldest folios: takes off what is over, and the first that nobody uses.
    fn take_idle(&mut self, frames: &Frames, most: usize) -> Option<Grant> {
        for _ in 0..self.folios.len().min(most) {
            let grant = self.folios.pop_front()?;
            match grant.now(frames.frame(grant.head)) {
                GrantState::Over => self.pages -= grant.pages,
                GrantState::Used => self.folios.push_back(grant),
                GrantState::Idle => return Some(grant),
            }
        }
        None
    }
}

impl Grants {
    pub(crate) fn new(frames: u32) -> Self {
        Grants { list: Mutex::new(GrantList::default()), pages_max: frames / SHARE }
    }

    /// Grants the folio at `head`, to which the caller has a reference, if the limit allows it, or
    /// `anyway`. True if it is granted now.
    pub(crate) fn give(&self, frames: &Frames, head: FrameNumber, anyway: bool) -> bool {
        let frame = frames.frame(head);
        let pages = frame.order().frames();
        let mut list = self.list.lock();
        if !frame.flags().contains(Flags::GRANTED) {
            if list.pages + pages > self.pages_max {
                if !anyway {
                    return false;
                }
                // So those that are over do not pile up.
                for _ in 0..2 {
                    let idle = list.take_idle(frames, 1);
                    list.folios.extend(idle);
                }
            }
            list.pages += pages;
            list.folios.push_back(Grant { head, stamp: frame.last_stamp(), pages });
        }
        frame.grant();
        true
    }

    /// Takes the oldest folio that nobody uses off the list; [`settle`](Self::settle) follows.
    pub(crate) fn oldest_idle(&self, frames: &Frames) -> Option<Grant> {
        self.list.lock().take_idle(frames, LOOKED_AT_MAX)
    }

    /// It was revoked, or goes back to the list.
    pub(crate) fn settle(&self, grant: Grant, revoked: bool) {
        let mut list = self.list.lock();
        if revoked {
            list.pages -= grant.pages;
        } else {
            list.folios.push_back(grant);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::Grants;
    use crate::frames::{FrameNumber, Frames, Order};
    use crate::source::Memory;
    use crate::{Cache, Options};

    fn folio(frames: &Frames) -> FrameNumber {
        let head = frames.alloc(Order::new(1).unwrap()).unwrap();
        frames.frame(head).change_end();
        head
    }

    fn free(frames: &Frames, head: FrameNumber) {
        frames.frame(head).count.freeze(1).expect("nobody else has it");
        frames.frame(head).change_begin();
        frames.free(head, frames.frame(head).order());
    }

    /// A cache of two granted pages; the first grant is given.
    fn one_granted() -> (Frames, Grants, FrameNumber) {
        let frames = Frames::open(1 << 20).unwrap();
        let grants = Grants { pages_max: 2, ..Grants::new(0) };
        let first = folio(&frames);
        assert!(grants.give(&frames, first, false));
        assert!(!grants.give(&frames, folio(&frames), false), "the limit");
        (frames, grants, first)
    }

    #[test]
    fn what_was_freed_is_not_granted_any_more() {
        let (frames, grants, first) = one_granted();
        free(&frames, first);
        assert!(grants.oldest_idle(&frames).is_none());
        assert!(grants.give(&frames, folio(&frames), false));
    }

    /// Their version stays odd for ever, as that of a folio does that left its file while it was
    /// held.
    #[test]
    fn a_grant_is_over_when_its_frame_has_index_nodes() {
        let (frames, grants, first) = one_granted();
        free(&frames, first);
        while frames.alloc(Order::MIN).expect("it is free") != first {}
        assert!(grants.oldest_idle(&frames).is_none());
        assert!(grants.give(&frames, folio(&frames), false));
    }

    #[test]
    fn what_left_its_file_while_it_is_held_is_granted_on() {
        let (frames, grants, first) = one_granted();
        frames.frame(first).count.get(1);
        frames.frame(first).change_begin();
        assert!(grants.oldest_idle(&frames).is_none());
        assert!(!grants.give(&frames, folio(&frames), false));
    }

    /// Upgrades put folios on it whatever the limit is.
    #[test]
    fn the_list_does_not_grow_with_each_upgrade() {
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let memory = std::sync::Arc::new(Memory::new(vec![7; 128 << 10]));
        let file = cache.attach("file", memory).unwrap();
        let reader = cache.reader().unwrap();
        let mut buf = vec![0; 128 << 10];
        for _ in 0..1000 {
            file.read_at(&mut buf, 0).unwrap(); // a folio of 128 KiB
            drop(file.borrow(0, &reader).unwrap().upgrade().unwrap());
            file.invalidate(0..128 << 10).unwrap(); // or it is evicted
        }
        let list = cache.core().grants.list.lock();
        let (folios, pages) = (list.folios.len(), list.pages);
        drop(list);
        assert!(folios < 100, "{folios} folios, {pages} pages, of a cache of 2048 pages");
    }
}
