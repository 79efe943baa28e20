//! Tests of the whole cache through its public interface, one module a subject.
//!
//! One program for all of them, because each program links the whole cache again. Here is what
//! concerns no more of its process than its own caches; what forks, mounts, sets limits or handles
//! signals is in `processes`, and what counts allocations in `allocations`.
#![cfg(not(any(loom, shuttle)))] // the model checkers build without the public types

#[path = "../support/again.rs"]
mod again;
#[path = "../support/caught.rs"]
mod caught;
#[path = "../support/patterned.rs"]
mod patterned;
#[path = "../support/subject.rs"]
mod subject;

#[cfg(feature = "map")]
mod ahead;
mod bad_input;
mod borrow;
mod completions;
mod differential;
mod examples;
mod filling;
mod foreign;
mod fragments;
mod futures;
mod get;
mod guards;
#[cfg(feature = "map")]
mod locked;
mod many;
mod objections;
#[cfg(feature = "map")]
mod own_swap;
mod pin;
mod pin_example;
mod reading;
mod sources;
#[cfg(feature = "map")]
mod space;
mod write;
