//! Lists: packed nodes of a few KiB, and a node of its own for each larger element.

use super::nodes::{Node, NodeCount, NodeLimits};
use super::{Encoder, Out, Strings, put_length};
use crate::item::Item;
use crate::kind;

const PLAIN_NODE: u64 = 1;
const PACKED_NODE: u64 = 2;

/// Writes the elements of a list.
#[must_use = "what is not finished is not written"]
pub struct ListWriter<'e, O: Out> {
    encoder: &'e mut Encoder<O>,
    count: NodeCount,
    /// The announced number of nodes, or the nodes that wait for their count.
    announced: Result<u64, Vec<u8>>,
}

impl<'e, O: Out> ListWriter<'e, O> {
    pub(super) fn new(encoder: &'e mut Encoder<O>, limits: NodeLimits, nodes: Option<u64>) -> Self {
        encoder.begin(kind::LIST_QUICKLIST_2);
        encoder.builder.clear();
        if let Some(nodes) = nodes {
            encoder.put_length(nodes);
        }
        let count = NodeCount::new(limits, encoder.version);
        ListWriter { encoder, count, announced: nodes.ok_or_else(Vec::new) }
    }

    /// Gives elements of `len` bytes and more nodes of their own; see [`NodeCount::plain_from`]. Before the
    /// first element.
    pub fn plain_from(self, len: usize) -> Self {
        ListWriter { count: self.count.plain_from(len), ..self }
    }

    pub fn push(&mut self, element: Item<'_>) {
        let node = self.count.place_element(element);
        if node != Node::Same {
            self.put_node();
        }
        if node != Node::Plain {
            return self.encoder.builder.push(element);
        }
        let Encoder { strings, out, .. } = &mut *self.encoder;
        match &mut self.announced {
            Ok(_) => put_plain(strings, out, element),
            Err(waiting) => put_plain(strings, waiting, element),
        }
    }

    /// Ends the current node, for instance at the end of a node of the caller's.
    pub fn end_node(&mut self) {
        self.count.end_node();
        self.put_node();
    }

    fn put_node(&mut self) {
        let Encoder { builder, block, strings, out, .. } = &mut *self.encoder;
        if builder.elements() == 0 {
            return;
        }
        builder.block(block);
        builder.clear();
        match &mut self.announced {
            Ok(_) => put_packed(strings, out, block),
            Err(waiting) => put_packed(strings, waiting, block),
        }
    }

    pub fn finish(mut self) {
        self.put_node();
        let nodes = self.count.nodes();
        assert!(nodes > 0, "an empty list has no serialized form");
        match self.announced {
            Ok(announced) => assert_eq!(announced, nodes, "as many nodes as announced"),
            Err(waiting) => {
                self.encoder.put_length(nodes);
                self.encoder.out.put(&waiting);
            }
        }
    }
}

fn put_plain(strings: &mut Strings, out: &mut impl Out, element: Item<'_>) {
    put_length(out, PLAIN_NODE);
    strings.put(out, element);
}

fn put_packed(strings: &mut Strings, out: &mut impl Out, block: &[u8]) {
    put_length(out, PACKED_NODE);
    strings.put_bytes(out, block);
}
