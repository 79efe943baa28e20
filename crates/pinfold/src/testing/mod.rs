//! What tests of the whole cache are made of (feature `testing`).
//!
//! Belongs here: contents that know where they belong ([`pattern`]), the stress that this
//! crate's tests and `pinfold stress` run ([`stress`]), the comparison with a plain vector that
//! proptest and the fuzzer drive ([`script`]). Does not: tests themselves, nor anything that a
//! program needs. It uses the cache by its front door only.

pub mod pattern;
pub mod script;
pub mod stress;
