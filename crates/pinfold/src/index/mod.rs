//! The index of one file: from page offset to folio, as Linux's `XArray`, but for readers that hold
//! nothing, neither a lock nor RCU. It stands on `frames/`; a file uses only those below it.
//!
//! ```text
//! lookup      a hit's look-up: the directory's words, kept in the handle
//! walk        the next folio, marked folio or hole in a range
//! marks       dirty, writeback, towrite
//! split       one large entry becomes many small ones
//! shape       growing, shrinking, pruning the tree
//! writer      insert, remove, replace
//! pool        free nodes, shared by all files of a cache
//! tree        the root, and looking a page up
//! node        a node's slots and header; the orderings of a writer
//! directory   a flat copy of the tree's upper levels
//! memory      from a node's number to its address
//! types       limits, marks, where a folio is
//! entry       the words of a slot and of the root
//! ```
//!
//! # What a racing look-up may return
//!
//! One writer at a time; any number of look-ups of page p meanwhile. Every word that a look-up can
//! meet is a valid entry (`memory.rs` says why), so no address is ever outside the arena; and it
//! makes at most as many steps as the root it read has levels.
//!
//! | writer | order of its stores | a racing look-up of p may return |
//! |---|---|---|
//! | insert | slots in rising order, each by one release store | nothing, or the new head. Of a large folio some pages may be found before others |
//! | tree grows | new node filled, then root or slot, release | what was there before: growth hides no page |
//! | replace | slots in rising order | the old head or the new one, never nothing; different pages may disagree until it is done |
//! | split | new nodes filled, then the slots of the old entry in rising order | the old head or the piece's, never nothing |
//! | remove | slots in rising order | the old head, or nothing |
//! | tree shrinks, node pruned | root or parent's slot, then the node goes to the stash and the pool | as if nothing had happened, until the node is used again: |
//! | node used again, perhaps by another file | filled by relaxed stores, then linked | a reader still inside gets *any* folio of any file of this cache, or nothing |
//!
//! So a caller must know two things:
//! 1. **A head is a hint.** Check the identity in the frame's entry under its version before using
//!    it. The version is odd while identity and index disagree.
//! 2. **Nothing is a hint too.** Through a recycled node a resident page can be missed, rarely. A
//!    miss looks again under the file's mutex before it fills.
//!
//! # Publication
//!
//! Node slots and the root are stored with release and loaded with acquire: the loads form a
//! dependent chain, but Rust has no consume.
//!
//! # Entries of many pages
//!
//! A folio of order n fills 2^(n % 6) slots at level n / 6, and *every* one of them holds the head.
//! (Linux has "sibling" entries, for which the look-up must load a second slot.) So a folio's order
//! is found by comparing neighbours, five loads at most.

mod directory;
mod entry;
mod lookup;
mod marks;
mod memory;
mod node;
mod pool;
mod shape;
mod split;
mod tree;
mod types;
mod walk;
mod writer;

#[cfg(all(test, not(shuttle)))]
pub(crate) use self::{entry::FrameNumber, types::ORDER_MAX};
#[cfg(all(test, not(shuttle)))]
mod tests;

pub(crate) use self::pool::NoNodes;
pub(crate) use self::{
    lookup::Lookup,
    pool::NodePool,
    tree::{Index, IndexOwner},
    types::{FolioAt, Mark, PAGES_END},
    writer::{IndexWriter, InsertError},
};
