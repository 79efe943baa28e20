//! What tests do to a file's folios (feature `testing`).

use std::ops::Range;

use super::File;
use crate::file::ranges;
use crate::pages::reclaim;

impl File {
    /// Splits the folios of `range` into single pages where nobody holds them; gives how many were
    /// split. Feature `testing`.
    pub fn split(&self, range: Range<u64>) -> u64 {
        let here = self.handle.core.owner.is_here();
        let pages =
            ranges::pages_of(&self.handle.mapping, &range).ok().filter(|_| here).unwrap_or(0..0);
        reclaim::split_range(&self.handle.core, &self.handle.mapping, pages)
    }

    /// Moves the folios of `range` to other frames where nobody holds them; gives how many were
    /// moved. Feature `testing`.
    pub fn migrate(&self, range: Range<u64>) -> u64 {
        let here = self.handle.core.owner.is_here();
        let pages =
            ranges::pages_of(&self.handle.mapping, &range).ok().filter(|_| here).unwrap_or(0..0);
        reclaim::migrate_range(&self.handle.core, &self.handle.mapping, pages)
    }
}
