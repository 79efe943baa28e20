//! A page cache that a program links.

pub mod source;
mod sync;
