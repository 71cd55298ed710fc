//! How elements of lists and streams are dealt to nodes.
//!
//! The count of nodes comes before the first of them. A writer that is to keep nothing in memory must be told it, so
//! the caller walks its value twice and counts first. Both walks ask the same [`NodeCount`], by what an element takes
//! at most rather than by what it came to take.

use super::BLOCK_MAX;
use crate::block::listpack;
use crate::item::{Digits, Item};
use crate::kind::Version;

/// What a node holds at most: `list-max-listpack-size`, or `stream-node-max-bytes` and `-entries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Of the packed block, up to 1 GiB. A node of one element may have more.
    pub bytes_max: usize,
    /// Elements, or entries.
    pub entries_max: u64,
}

/// Counts the nodes that a writer will write, if it is given the same elements and ends of nodes.
#[derive(Clone, Debug)]
pub struct NodeCount {
    limits: NodeLimits,
    /// A list element that takes more gets a node of its own.
    packed_max: usize,
    /// Of the node that is being filled.
    bytes: usize,
    entries: u64,
    /// Nodes that have been begun.
    nodes: u64,
}

/// Where an element goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Into the one that is being filled.
    Same,
    /// Into a new one.
    New,
    /// Into one that has nothing else, and is no block.
    Plain,
}

impl NodeCount {
    pub fn new(limits: NodeLimits, version: Version) -> NodeCount {
        let bytes_max = limits.bytes_max.min(BLOCK_MAX);
        let packed_max = if version.has_plain_nodes() { bytes_max } else { BLOCK_MAX };
        let limits = NodeLimits { bytes_max, entries_max: limits.entries_max };
        NodeCount { limits, packed_max, bytes: 0, entries: 0, nodes: 0 }
    }

    /// Counts a list's element in.
    pub fn element(&mut self, element: Item<'_>) {
        self.place_element(element);
    }

    /// Counts a stream's entry in.
    pub fn entry(&mut self, fields: &[(Item<'_>, Item<'_>)]) {
        self.place_entry(fields);
    }

    /// What comes next goes into a new node.
    pub fn end_node(&mut self) {
        (self.bytes, self.entries) = (0, 0);
    }

    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    pub(super) fn place_element(&mut self, element: Item<'_>) -> Node {
        let bytes = bytes_max(element);
        if bytes <= self.packed_max {
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

/// Of a stream entry without its fields: flags, two differences, two counts.
const ENTRY_BYTES_MAX: usize = 2 + 4 * 10;

fn bytes_max(element: Item<'_>) -> usize {
    match element {
        Item::Bytes(bytes) => listpack::size_max(bytes.len()),
        Item::Int(_) => listpack::size_max(element.bytes(&mut Digits::default()).len()),
    }
}
