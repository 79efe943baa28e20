//! A page cache that a program links.

mod frame;
pub mod source;
mod index;
mod sync;
