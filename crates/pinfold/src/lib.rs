//! A page cache that a program links.

mod frame;
mod sync;
