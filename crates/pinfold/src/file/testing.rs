//! What tests do to a file's folios (feature `testing`).

use std::ops::Range;

use super::File;
use crate::file::ranges;
use crate::pages::reclaim;

impl File {
    /// How much memory its mirror has: of pages that maps can show without a fault. Feature
    /// `testing`.
    pub fn mirrored_bytes(&self) -> u64 {
        let here = self.handle.core.owner.is_here();
        if here { self.handle.mapping.mirrored_bytes() } else { 0 }
    }

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
