//! Which folio to evict: the replacement policy of the Pinfold page cache.
//!
//! Here: the order in which resident folios are offered for eviction, and the decision whether a
//! folio that comes back was evicted too early. Not here: locks, atomics, freezing, memory. The
//! caller keeps the table of folios and passes it in through [`Residents`]. So the cache (ids are
//! frame numbers) and the simulator (ids are pages of a trace) run the same code.
//!
//! A hit calls nothing here: a reader raises the folio's use count in the table, and only while it
//! is below [`USES_MAX`]. Queues are touched on insert and on eviction.
//!
//! One eviction, as the caller performs it:
//!
//! ```
//! use pinfold_policy::{Answer, S3Fifo, Sweep, Table};
//!
//! let mut table = Table::new(100);
//! let mut policy = S3Fifo::new(64);
//! policy.insert(&mut table, 7, None);
//!
//! let mut sweep = Sweep::new(1024);
//! let victim = policy.next_victim(&mut table, &mut sweep).expect("one folio, not pinned");
//! // ... the policy's lock may be dropped here while the caller tries to freeze the folio ...
//! let shadow = policy.answer(&mut table, &mut sweep, victim, Answer::Evicted);
//! assert_eq!(victim, 7);
//!
//! // The folio comes back soon: its shadow, kept in `Ghosts`, sends it straight to the main queue.
//! policy.insert(&mut table, 7, shadow);
//! assert_eq!(policy.usage().main.folios, 1);
//! ```
//!
//! # Invariants of the queues, between two calls
//!
//! 1. A folio whose place is `Queued(q)` is in list `q` exactly once, and in no other list. A folio
//!    whose place is `Out` or `Offered(_)` is in no list.
//! 2. A list's `folios` is the number of its members and its `pages` the sum of their weights;
//!    `offered` likewise over the folios whose place is `Offered(_)`.
//! 3. Head and tail are both [`NONE`] or both a member; `prev` of the head and `next` of the tail
//!    are [`NONE`]; `prev` and `next` of neighbours name each other.
//! 4. A folio's weight changes only inside [`S3Fifo::split`].
//! 5. A queue's order is the order of arrival in it.
//!
//! `tests/model.rs` checks all five after every operation against two `VecDeque`s.

mod ghosts;
mod queues;
mod residents;
mod s3fifo;
mod shadow;
mod sweep;

pub use ghosts::{GhostLine, Ghosts};
pub use queues::{Usage, Weight};
pub use residents::{Id, NONE, PAGES_MAX, Place, Queue, Residents, Table, USES_MAX};
pub use s3fifo::{S3Fifo, S3FifoOptions};
pub use shadow::{SHADOW_BITS, Shadow};
pub use sweep::{Answer, Sweep, SweepCounts};
