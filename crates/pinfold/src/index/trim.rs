//! Giving up shadows, and with them the nodes that hold nothing else.
//!
//! Called by reclaim, with the file's mutex held, when there are more shadows than the policy
//! wants, or more nodes for them than the budget allows.
//!
//! A header has no space for a list of nodes, so trimming goes round the file with a hand, as CLOCK
//! does, and takes the shadows that it meets. A call makes a bounded number of steps.

use super::entry::{Entry, Kind, Root};
use super::node::Node;
use super::types::Mark;
use super::writer::{IndexWriter, slot_of};

/// Most nodes, or slots of upper levels, that one call visits.
const STEPS_MAX: u32 = 1024;

/// Which shadows to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrimWhere {
    /// Only in nodes that hold nothing else: this frees memory.
    ShadowOnlyNodes,
    /// Wherever they are: this bounds their number.
    Anywhere,
}

/// What a call did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trimmed {
    /// Shadow slots emptied.
    pub(crate) slots: u64,
    /// Nodes freed; they go back to the pool when the writer is dropped.
    pub(crate) nodes: u64,
    /// Whether the hand passed the end of the file: a caller that frees nothing in a whole round
    /// should turn to another file.
    pub(crate) wrapped: bool,
}

impl<'a, const BITS: u32> IndexWriter<'a, BITS> {
    /// Empties shadow slots until `limit` are gone, the file has been gone round once, or the call
    /// has made its share of steps (1024 nodes or upper slots). Whole nodes are emptied, so up to
    /// 63 slots more than `limit` may go.
    pub(crate) fn drop_shadows(&mut self, limit: u64, place: TrimWhere) -> Trimmed {
        let mut done = Trimmed::default();
        let nodes_before = self.owner.nodes;
        for _ in 0..STEPS_MAX {
            if done.slots >= limit || self.owner.shadow_slots == 0 || done.wrapped {
                break;
            }
            let hand = self.owner.trim_hand;
            let root = self.root();
            if !root.covers(hand) {
                self.owner.trim_hand = 0;
                done.wrapped = true;
            } else if root.entry.kind() == Kind::Node {
                let (node, next) = self.node_at(hand);
                self.owner.trim_hand = next;
                let order = (node.links().level + 1) * BITS;
                let slots = self.trim_node(node, place);
                done.slots += slots;
                if slots > 0 {
                    self.enter_in_directory(hand >> order << order, order);
                }
            } else {
                self.set_root(Root::EMPTY); // no folio: there is a shadow
                self.owner.shadow_slots -= 1;
                done.slots += 1;
                self.enter_in_directory(0, root.bits);
            }
        }
        done.nodes = nodes_before - self.owner.nodes;
        done
    }

    /// The lowest node over `page`, and where the hand goes from there: to the next slot if the
    /// node is above the leaves, else past the leaf.
    fn node_at(&self, page: u64) -> (Node<'a, BITS>, u64) {
        let root = self.root();
        let mut node = self.node(root.entry);
        let mut shift = root.bits - BITS;
        // Ends: one level lower each time.
        loop {
            let entry = node.load(slot_of::<BITS>(page, shift));
            if entry.kind() != Kind::Node {
                let step = if shift == 0 { BITS } else { shift };
                return (node, ((page >> step) + 1) << step);
            }
            node = self.node(entry);
            shift -= BITS;
        }
    }

    /// Empties the shadow slots of one node; frees it if that leaves it empty.
    fn trim_node(&mut self, node: Node<'a, BITS>, place: TrimWhere) -> u64 {
        let links = node.links();
        if links.shadows == 0 || place == TrimWhere::ShadowOnlyNodes && links.present > 0 {
            return 0;
        }
        for i in 0..Node::<BITS>::FANOUT {
            if node.load(i).payload().is_some() {
                debug_assert!(Mark::ALL.iter().all(|&mark| node.marks(mark) >> i & 1 == 0));
                node.publish(i, Entry::EMPTY);
            }
        }
        self.count(node, 0, -links.shadows.cast_signed());
        self.prune(node);
        self.shrink();
        u64::from(links.shadows)
    }
}
