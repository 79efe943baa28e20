//! What tests of the whole cache are made of, and tests of programs that bring a source of their
//! own.
//!
//! | module | what it has |
//! |---|---|
//! | [`pattern`] | file contents that know where they belong: each read is right or wrong by itself |
//! | [`crash`] | writes and syncs, and all that a crash may leave of them; `pinfold crash` |
//! | [`faulty`] | a source that fails in the ways that a test asks for |
//! | [`queue`] | a source whose reads end when the test says so |
//! | [`times`] | waiting until a change would show in a file's times |
//! | [`told`] | numbers that messages tell |
//! | [`waker`] | wakers that tell whether they were woken |
//! | [`script`] | random operations checked against a plain vector, for proptest and the fuzzer |
//! | [`stress`] | readers, holders and pinners against everything that moves pages; `pinfold stress` |
//!
//! It uses the cache as a program does, with the feature `testing`: moving pages on purpose, and
//! older ways of pinning to compare with.
//!
//! # Where tests live
//!
//! - Public behaviour: `crates/pinfold/tests`, with what is here. A unit test of `pinfold` cannot
//!   use this crate: to it, the cache that this crate links is another one, with types of its own.
//!   But it can use [`waker`], which knows no cache.
//! - What needs internals: a `tests` module beside the code.
//! - Protocols, in every interleaving or in schedules that are drawn: `crates/pinfold/src/models`.
//!
//! Tests of what is here are beside it.

// A panic here is a test that fails.
#![allow(clippy::missing_panics_doc)]

pub mod crash;
pub mod faulty;
pub mod pattern;
pub mod queue;
pub mod script;
#[cfg(feature = "stress")]
pub mod stress;
pub mod times;
pub mod told;
pub mod waker;
