//! Sets of pages of a snapshot, a bit each.

/// A set of the pages of one snapshot.
#[derive(Debug, Clone)]
pub(super) struct Pages {
    words: Vec<u64>,
}

impl Pages {
    /// None of `pages` pages.
    pub(super) fn none(pages: u64) -> Self {
        Pages { words: vec![0; pages.div_ceil(64) as usize] }
    }

    /// Whether it has `page`; no page past the end is in it.
    pub(super) fn has(&self, page: u64) -> bool {
        let word = usize::try_from(page / 64).ok().and_then(|word| self.words.get(word));
        word.is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// Adds `page`; whether it is new. A page past the end is not added.
    pub(super) fn add(&mut self, page: u64) -> bool {
        let word = usize::try_from(page / 64).ok().and_then(|word| self.words.get_mut(word));
        let Some(word) = word else { return false };
        let bit = 1 << (page % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    pub(super) fn remove(&mut self, page: u64) {
        let word = usize::try_from(page / 64).ok().and_then(|word| self.words.get_mut(word));
        let Some(word) = word else { return };
        let bit = 1 << (page % 64);
        *word &= !bit;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_added_and_not_removed() {
        let mut pages = Pages::none(130);
        assert!(pages.add(0) && pages.add(63) && pages.add(64) && pages.add(129));
        assert!(!pages.add(63), "it is there");
        assert!(pages.has(129) && !pages.has(128));
        pages.remove(63);
        pages.remove(63);
        assert!(!pages.has(63) && pages.has(64));
        assert!(!pages.has(1 << 60) && !pages.add(1 << 60), "past the end");
        pages.remove(u64::MAX);
    }
}
