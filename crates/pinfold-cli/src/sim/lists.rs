//! Doubly linked lists over page numbers, for the reference policies that move pages on a hit.
//!
//! Independent of the lists in `pinfold-policy` on purpose: a fault there must not hide in the
//! policy it is compared with.

const END: u32 = u32::MAX;

/// The links of all pages; a page is in at most one list at a time.
#[derive(Debug)]
pub(super) struct Links {
    older: Vec<u32>,
    newer: Vec<u32>,
}

/// One list, from the oldest to the newest.
#[derive(Debug)]
pub(super) struct List {
    oldest: u32,
    newest: u32,
    len: u32,
}

impl Links {
    pub(super) fn new(pages: u32) -> Self {
        Self { older: vec![END; pages as usize], newer: vec![END; pages as usize] }
    }
}

impl List {
    pub(super) const fn new() -> Self {
        Self { oldest: END, newest: END, len: 0 }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != END).then_some(self.oldest)
    }

    pub(super) fn push(&mut self, links: &mut Links, page: u32) {
        links.older[page as usize] = self.newest;
        links.newer[page as usize] = END;
        match self.newest {
            END => self.oldest = page,
            newest => links.newer[newest as usize] = page,
        }
        self.newest = page;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, links: &mut Links, page: u32) {
        let (older, newer) = (links.older[page as usize], links.newer[page as usize]);
        match older {
            END => self.oldest = newer,
            _ => links.newer[older as usize] = newer,
        }
        match newer {
            END => self.newest = older,
            _ => links.older[newer as usize] = older,
        }
        self.len -= 1;
    }
}
