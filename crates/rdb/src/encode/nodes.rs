//! Distribution of the elements of lists and streams to nodes.
//!
//! The count of nodes comes before the first node. A writer without a buffer must know it, so the caller
//! walks its value twice, and counts first. Both walks use the same [`NodeCount`], with an upper bound of
//! each element's size instead of its final size.

use super::BLOCK_MAX;
use crate::block::listpack;
use crate::item::{Digits, Item};
use crate::kind::Version;

/// Limits of a node: `list-max-listpack-size`, or `stream-node-max-bytes` and `-entries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Size of the packed block, up to 1 GiB. A node with a single element may exceed it.
    pub bytes_max: usize,
    /// Elements, or entries.
    pub entries_max: u64,
}

/// Counts a writer's nodes, given the same elements and ends of nodes.
#[derive(Clone, Debug)]
pub struct NodeCount {
    limits: NodeLimits,
    /// A larger list element gets a node of its own.
    packed_max: usize,
    /// So does an element of this length or more.
    plain_from: usize,
    /// Size of the current node.
    bytes: usize,
    entries: u64,
    /// Number of nodes begun.
    nodes: u64,
}

/// The node for an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// The current node.
    Same,
    /// A new node.
    New,
    /// A node without a block, for an element that is too long or that some readers would refuse in a block.
    Plain,
}

impl NodeCount {
    pub fn new(limits: NodeLimits, version: Version) -> NodeCount {
        let bytes_max = limits.bytes_max.min(BLOCK_MAX);
        let packed_max = if version.has_plain_nodes() { bytes_max } else { BLOCK_MAX };
        let limits = NodeLimits { bytes_max, entries_max: limits.entries_max };
        NodeCount { limits, packed_max, plain_from: usize::MAX, bytes: 0, entries: 0, nodes: 0 }
    }

    /// Gives list elements of `len` bytes and more nodes of their own, in any version.
    pub fn plain_from(self, len: usize) -> NodeCount {
        NodeCount { plain_from: len, ..self }
    }

    /// Counts an element of a list.
    pub fn element(&mut self, element: Item<'_>) {
        self.place_element(element);
    }

    /// Counts an entry of a stream.
    pub fn entry(&mut self, fields: &[(Item<'_>, Item<'_>)]) {
        self.place_entry(fields);
    }

    /// Makes the next element start a new node.
    pub fn end_node(&mut self) {
        (self.bytes, self.entries) = (0, 0);
    }

    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    pub(super) fn place_element(&mut self, element: Item<'_>) -> Node {
        let (len, bytes) = (len(element), bytes_max(element));
        if bytes <= self.packed_max && len < self.plain_from && !listpack::is_disputed(len) {
            return self.place(bytes);
        }
        self.end_node();
        self.nodes += 1;
        Node::Plain
    }

    pub(super) fn place_entry(&mut self, fields: &[(Item<'_>, Item<'_>)]) -> Node {
        let pairs = fields.iter().map(|(name, value)| bytes_max(*name) + bytes_max(*value));
        self.place(pairs.sum::<usize>() + ENTRY_BYTES_MAX)
    }

    fn place(&mut self, bytes: usize) -> Node {
        let fits = self.bytes + bytes <= self.limits.bytes_max && self.entries < self.limits.entries_max;
        if self.entries > 0 && fits {
            (self.bytes, self.entries) = (self.bytes + bytes, self.entries + 1);
            return Node::Same;
        }
        (self.bytes, self.entries) = (bytes, 1);
        self.nodes += 1;
        Node::New
    }
}

/// Upper bound of a stream entry without its fields: flags, two differences, two counts.
const ENTRY_BYTES_MAX: usize = 2 + 4 * 10;

fn bytes_max(element: Item<'_>) -> usize {
    listpack::size_max(len(element))
}

fn len(element: Item<'_>) -> usize {
    element.bytes(&mut Digits::default()).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(limits: NodeLimits, version: Version, elements: &[&[u8]]) -> u64 {
        let mut count = NodeCount::new(limits, version);
        elements.iter().for_each(|element| count.element((*element).into()));
        count.nodes()
    }

    #[test]
    fn limits_are_inclusive() {
        let three = NodeLimits { bytes_max: 1_000, entries_max: 3 };
        assert_eq!(nodes(three, Version::V11, &[&b"a"[..]; 3]), 1);
        assert_eq!(nodes(three, Version::V11, &[&b"a"[..]; 4]), 2);
        let bytes = NodeLimits { bytes_max: 3 * listpack::size_max(10), entries_max: 100 };
        assert_eq!(nodes(bytes, Version::V11, &[&b"0123456789"[..]; 3]), 1);
        assert_eq!(nodes(bytes, Version::V11, &[&b"0123456789"[..]; 4]), 2);
    }

    #[test]
    fn large_elements_stand_alone() {
        let small = NodeLimits { bytes_max: 20, entries_max: 100 };
        let large: &[u8] = &[b'x'; 100];
        assert_eq!(nodes(small, Version::V11, &[b"a", large, b"b", b"c", large, large]), 5);
        let mut count = NodeCount::new(small, Version::V11);
        assert_eq!(count.place_element(large.into()), Node::Plain);
        assert_eq!(count.place_element((&b"a"[..]).into()), Node::New);
        let mut older = NodeCount::new(small, Version::V10);
        assert_eq!(older.place_element(large.into()), Node::New);
        assert_eq!(older.place_element((&b"a"[..]).into()), Node::New);
        let mut asked = NodeCount::new(small, Version::V10).plain_from(2);
        assert_eq!(asked.place_element((&b"aa"[..]).into()), Node::Plain);
        assert_eq!(asked.place_element(Item::Int(12)), Node::Plain);
        assert_eq!(asked.place_element(Item::Int(1)), Node::New);
        assert_eq!(asked.place_element((&b"b"[..]).into()), Node::Same);
    }
}
