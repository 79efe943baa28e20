//! Which page to evict.
