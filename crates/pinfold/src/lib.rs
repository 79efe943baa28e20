//! A page cache that a program links.

mod sync;
