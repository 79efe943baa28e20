//! The policies that `pinfold sim` compares: how the simulation calls them, and their names.

/// A policy under simulation, with its whole cache.
pub(super) trait Engine {
    /// Requests a page; true if it was there. It is there afterwards.
    fn access(&mut self, page: u32) -> bool;
}

/// The policies compared, in the order of the table.
pub(super) const ENGINES: [&str; 6] = ["optimum", "pinfold", "w-tinylfu", "lru", "clock", "fifo"];
