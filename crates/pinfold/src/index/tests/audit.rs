//! Recounts a whole tree and compares it with what the headers and the owner say.

use crate::index::entry::{Entry, Kind};
use crate::index::node::Node;
use crate::index::writer::IndexWriter;
use crate::index::{Mark, ORDER_MAX};

/// As far as the directory is compared with the tree.
const BLOCKS_MAX: u64 = 128;

/// # Panics
/// If an invariant of the index is broken.
pub(super) fn audit<const BITS: u32>(writer: &IndexWriter<'_, BITS>) {
    let root = writer.root();
    let mut nodes = 0;
    match root.entry.kind() {
        Kind::Empty => assert_eq!(root.bits, 0),
        Kind::Folio(_) => assert!(root.bits <= ORDER_MAX),
        Kind::Node => {
            let node = writer.node(root.entry);
            assert_eq!(root.bits, (node.links().level + 1) * BITS, "the root's bits");
            assert_eq!(node.links().parent, 0, "the root's node has a parent");
            assert!(!could_shrink(node), "the root's node is not needed");
            audit_node(writer, node, &mut nodes);
        }
    }
    assert_eq!(nodes, writer.nodes(), "nodes");
    for block in 0..BLOCKS_MAX {
        if let Some(word) = writer.index.directory.get(block) {
            assert_eq!(word, writer.block(block), "the directory's word of block {block}");
        }
    }
}

fn could_shrink<const BITS: u32>(node: Node<'_, BITS>) -> bool {
    let links = node.links();
    match node.load(0).kind() {
        Kind::Empty => false,
        Kind::Folio(_) => links.present == 1 << node.run(0).1,
        Kind::Node => links.present == 1,
    }
}

fn audit_node<const BITS: u32>(
    writer: &IndexWriter<'_, BITS>,
    node: Node<'_, BITS>,
    nodes: &mut u64,
) {
    let links = node.links();
    let mut present = 0;
    for i in 0..Node::<BITS>::FANOUT {
        let entry = node.load(i);
        let marks = Mark::ALL.map(|mark| node.marks(mark) >> i & 1 != 0);
        match entry.kind() {
            Kind::Empty => assert_eq!(marks, [false; 3], "an empty slot is marked"),
            Kind::Folio(_) => {
                present += 1;
                audit_run(node, i, entry);
            }
            Kind::Node => {
                present += 1;
                let child = writer.node(entry);
                let up = child.links();
                assert_eq!((up.parent, up.slot), (node.entry().0, i), "the way up");
                assert_eq!(up.level + 1, links.level, "levels");
                let below = Mark::ALL.map(|mark| child.marks(mark) != 0);
                assert_eq!(marks, below, "a parent's marks");
                audit_node(writer, child, nodes);
            }
        }
    }
    assert_eq!(present, links.present, "a node's count");
    assert!(present > 0, "an empty node is linked");
    *nodes += 1;
}

fn audit_run<const BITS: u32>(node: Node<'_, BITS>, i: u32, entry: Entry) {
    let (first, log2) = node.run(i);
    assert!(node.links().level * BITS + log2 <= ORDER_MAX);
    for other in 0..Node::<BITS>::FANOUT {
        let inside = (first..first + (1 << log2)).contains(&other);
        assert_eq!(node.load(other) == entry, inside, "a head's run of slots");
        if inside {
            for mark in Mark::ALL {
                let bits = node.marks(mark);
                assert_eq!(bits >> other & 1, bits >> first & 1, "a folio's marks disagree");
            }
        }
    }
}
