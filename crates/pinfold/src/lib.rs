//! A page cache that a program links.

mod index;
mod sync;
