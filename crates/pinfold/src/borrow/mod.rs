//! The second door: reading in place.
//!
//! | way | file | stores to shared memory | may it leave its thread? |
//! |---|---|---|---|
//! | counted, [`FolioRef`] | `counted.rs` | one add on the folio's count, one subtraction at the end | yes |
//!
//! Here: what the guards have in common, which bytes they show. Not here: what happens on a miss
//! (`fill`). Called by `file`.

mod counted;
mod view;

pub use counted::FolioRef;
