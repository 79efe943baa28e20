//! The shape of the tree: how it grows towards a page, and shrinks when pages leave.
//!
//! No node is empty, and the root is a node only if it must be. One folio at page 0 sits in the
//! root itself; a node whose only entry is a node in slot 0 gives the root to that one. A node that
//! leaves the tree is first unlinked, then stashed; readers may still be in it.

use super::entry::{Entry, Kind, Root};
use super::node::{Links, Node, slot_mask};
use super::types::Mark;
use super::writer::{IndexWriter, slot_of};
use crate::base::mutant::{self, Mutant};

impl<'a, const BITS: u32> IndexWriter<'a, BITS> {
    /// Lowest level whose node covers pages up to `last` as the root's.
    fn level_for(last: u64) -> u32 {
        (u64::BITS - last.leading_zeros()).saturating_sub(1) / BITS
    }

    /// Whether a folio can sit in the root itself: the only one, at page 0.
    pub(super) fn fits_root(&self, page: u64) -> bool {
        page == 0 && self.root().entry == Entry::EMPTY
    }

    /// Nodes that an insert can need: exact while the tree need not grow, else an upper bound.
    pub(super) fn nodes_for_insert(&self, page: u64, order: u32) -> u32 {
        if self.fits_root(page) {
            return 0;
        }
        let target = order / BITS;
        let top = target.max(Self::level_for(page + (1 << order) - 1));
        let root = self.root();
        match root.entry.kind() {
            Kind::Empty => top - target + 1,
            Kind::Folio(_) => {
                let pushed = root.bits / BITS;
                let top = top.max(pushed);
                1 + (top - pushed) + (top - target)
            }
            Kind::Node => {
                let level = root.bits / BITS - 1;
                if level < top { top - level + (top - target) } else { self.missing(page, target) }
            }
        }
    }

    fn missing(&self, page: u64, target: u32) -> u32 {
        let mut node = self.node(self.root().entry);
        // Ends: one level lower each time.
        for level in (target + 1..=node.links().level).rev() {
            let entry = node.load(slot_of::<BITS>(page, level * BITS));
            if entry.kind() != Kind::Node {
                return level - target;
            }
            node = self.node(entry);
        }
        0
    }

    pub(super) fn new_node(&mut self, links: Links) -> Node<'a, BITS> {
        let word = self.pool.unlink(&mut self.stash);
        let node = self.node(Entry(word.expect("as many nodes as a change needs are reserved")));
        node.clear(links);
        self.owner.nodes += 1;
        node
    }

    fn free_node(&mut self, node: Node<'a, BITS>) {
        self.pool.link(&mut self.stash, node.entry().0);
        self.owner.nodes -= 1;
    }

    /// Makes the root a node that covers `last` and is of level `target` at least.
    pub(super) fn grow(&mut self, last: u64, target: u32) {
        let top = target.max(Self::level_for(last));
        if self.root().entry == Entry::EMPTY {
            let node = self.new_node(Links { parent: 0, slot: 0, level: top, present: 0 });
            self.set_root(Root { entry: node.entry(), bits: (top + 1) * BITS });
            return;
        }
        self.push_root_down();
        // Ends: one level higher each time.
        for level in self.root().bits / BITS..=top {
            self.add_level(level);
        }
    }

    /// Puts a folio that sits in the root itself into a node.
    pub(super) fn push_root_down(&mut self) {
        let root = self.root();
        if root.entry.frame().is_some() {
            self.add_level(root.bits / BITS);
        }
    }

    /// Makes a node of `level` with what the root has the root.
    fn add_level(&mut self, level: u32) {
        let old = self.root();
        let is_folio = old.entry.frame().is_some();
        let count = if is_folio { 1 << (old.bits % BITS) } else { 1 };
        let marked = Mark::ALL.map(|mark| self.any_marked(mark));
        let node = self.new_node(Links { parent: 0, slot: 0, level, present: count });
        let root = Root { entry: node.entry(), bits: (level + 1) * BITS };
        if mutant::on(Mutant::PublishBeforeFill) {
            self.set_root(root);
        }
        for i in 0..count {
            node.prepare(i, old.entry);
        }
        for mark in Mark::ALL.into_iter().filter(|&mark| marked[mark as usize]) {
            node.set_marks(mark, slot_mask(0, count));
        }
        if is_folio {
            self.owner.root_marks = 0;
        } else {
            let child = self.node(old.entry);
            child.set_links(Links { parent: node.entry().0, slot: 0, ..child.links() });
        }
        self.set_root(root);
    }

    /// The node of that level, made if missing.
    pub(super) fn descend(&mut self, page: u64, target: u32) -> Node<'a, BITS> {
        let mut node = self.node(self.root().entry);
        // Ends: one level lower each time.
        for level in (target + 1..=node.links().level).rev() {
            let slot = slot_of::<BITS>(page, level * BITS);
            let entry = node.load(slot);
            node = match entry.kind() {
                Kind::Node => self.node(entry),
                Kind::Empty => self.add_child(node, slot),
                Kind::Folio(_) => unreachable!("the range was checked"),
            };
        }
        node
    }

    fn add_child(&mut self, parent: Node<'a, BITS>, slot: u32) -> Node<'a, BITS> {
        let level = parent.links().level - 1;
        let child = self.new_node(Links { parent: parent.entry().0, slot, level, present: 0 });
        parent.publish(slot, child.entry());
        parent.count(1);
        child
    }

    /// Unlinks and frees `node` if it is empty, then its parent if that is, and so on.
    pub(super) fn prune(&mut self, mut node: Node<'a, BITS>) {
        // Ends: one level higher each time.
        while node.links().is_empty() {
            let links = node.links();
            debug_assert!(Mark::ALL.iter().all(|&mark| node.marks(mark) == 0));
            if links.parent == 0 {
                self.set_root(Root::EMPTY);
                self.free_node(node);
                return;
            }
            let parent = self.node(Entry(links.parent));
            parent.publish(links.slot, Entry::EMPTY);
            self.free_node(node);
            parent.count(-1);
            node = parent;
        }
    }

    /// Takes nodes away from the top while the root can do without.
    pub(super) fn shrink(&mut self) {
        // Ends: one node fewer each time.
        while self.root().entry.kind() == Kind::Node {
            let node = self.node(self.root().entry);
            let links = node.links();
            let entry = node.load(0);
            let order = match entry.kind() {
                Kind::Node if links.present == 1 => {
                    let child = self.node(entry);
                    child.set_links(Links { parent: 0, slot: 0, ..child.links() });
                    self.set_root(Root { entry, bits: links.level * BITS });
                    self.free_node(node);
                    continue;
                }
                Kind::Folio(_) => {
                    let (_, log2) = node.run(0);
                    if links.present != 1 << log2 {
                        return;
                    }
                    links.level * BITS + log2
                }
                _ => return,
            };
            self.owner.root_marks = 0;
            for mark in Mark::ALL {
                if node.marks(mark) != 0 && !mutant::on(Mutant::ShrinkDropsMarks) {
                    self.owner.root_marks |= 1 << mark as u32;
                }
            }
            self.set_root(Root { entry, bits: order });
            self.free_node(node);
        }
    }
}
