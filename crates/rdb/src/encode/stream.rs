//! Streams. See `decode/stream.rs` for how they are laid out.

use super::nodes::{Node, NodeCount, NodeLimits};
use super::{Encoder, Out, put_length};
use crate::block::listpack::Builder;
use crate::item::Item;
use crate::kind;
use crate::stream::{Consumer, Group, Id, Info};

const SAME_NAMES: i64 = 2;

/// Written in place of a time that there is none of, or a number that nobody knows: -1.
const UNKNOWN: u64 = u64::MAX;

/// Writes the entries of a stream, and what it says of itself.
#[must_use = "what is not finished is not written"]
pub struct StreamWriter<'e, O: Out> {
    encoder: &'e mut Encoder<O>,
    count: NodeCount,
    /// How many nodes were announced, or the nodes that wait for their count.
    announced: Result<u64, Vec<u8>>,
    /// The id of the first entry in the node that is being filled; its names are those that others may share.
    first: Id,
    names: Vec<Vec<u8>>,
    entries: u64,
    /// What the node starts with. Its entries are in the encoder's own builder.
    head: Builder,
    length: u64,
    last: Id,
}

impl<'e, O: Out> StreamWriter<'e, O> {
    pub(super) fn new(encoder: &'e mut Encoder<O>, limits: NodeLimits, nodes: Option<u64>) -> Self {
        encoder.begin(match encoder.version.has_active_times() {
            true => kind::STREAM_LISTPACKS_3,
            false => kind::STREAM_LISTPACKS_2,
        });
        encoder.builder.clear();
        if let Some(nodes) = nodes {
            encoder.put_length(nodes);
        }
        StreamWriter {
            count: NodeCount::new(limits, encoder.version),
            encoder,
            announced: nodes.ok_or_else(Vec::new),
            first: Id::ZERO,
            names: Vec::new(),
            entries: 0,
            head: Builder::default(),
            length: 0,
            last: Id::ZERO,
        }
    }

    /// The next entry, by ascending id, with at least one field.
    pub fn entry(&mut self, id: Id, fields: &[(Item<'_>, Item<'_>)]) {
        assert!(id > self.last && !fields.is_empty(), "ids ascend, and an entry has a field");
        (self.last, self.length) = (id, self.length + 1);
        if self.count.place_entry(fields) != Node::Same {
            self.put_node();
            self.first = id;
            self.names = fields.iter().map(|(name, _)| name.to_vec()).collect();
        }
        self.entries += 1;
        let shared = self.shares_names(fields);
        let builder = &mut self.encoder.builder;
        builder.push(Item::Int(if shared { SAME_NAMES } else { 0 }));
        builder.push(Item::Int(id.ms.wrapping_sub(self.first.ms) as i64));
        builder.push(Item::Int(id.seq.wrapping_sub(self.first.seq) as i64));
        if !shared {
            builder.push(Item::Int(fields.len() as i64));
        }
        for (name, value) in fields {
            if !shared {
                builder.push(*name);
            }
            builder.push(*value);
        }
        let elements = if shared { fields.len() + 3 } else { 2 * fields.len() + 4 };
        builder.push(Item::Int(elements as i64));
    }

    /// Ends the node that is being filled: where the caller's own nodes end, say.
    pub fn end_node(&mut self) {
        self.count.end_node();
        self.put_node();
    }

    /// `info` agrees with the entries; `groups` are as they would be read.
    pub fn finish<'g>(mut self, info: &Info, groups: impl ExactSizeIterator<Item = &'g Group>) {
        self.put_node();
        match &self.announced {
            Ok(announced) => assert_eq!(*announced, self.count.nodes(), "as many nodes as announced"),
            Err(waiting) => {
                put_length(&mut self.encoder.out, self.count.nodes());
                self.encoder.out.put(waiting);
            }
        }
        assert_eq!(info.length, self.length, "as many entries as announced");
        self.put_info(info);
        self.encoder.put_length(groups.len() as u64);
        groups.for_each(|group| put_group(self.encoder, group));
    }

    fn shares_names(&self, fields: &[(Item<'_>, Item<'_>)]) -> bool {
        let mut digits = crate::item::Digits::default();
        fields.len() == self.names.len()
            && fields.iter().zip(&self.names).all(|((name, _), shared)| name.bytes(&mut digits) == shared)
    }

    fn put_node(&mut self) {
        if self.entries == 0 {
            return;
        }
        self.head.clear();
        self.head.push(Item::Int(self.entries as i64));
        self.head.push(Item::Int(0)); // deleted
        self.head.push(Item::Int(self.names.len() as i64));
        self.names.iter().for_each(|name| self.head.push(Item::Bytes(name)));
        self.head.push(Item::Int(0));
        self.entries = 0;
        let Encoder { builder, block, strings, out, .. } = &mut *self.encoder;
        self.head.append(builder);
        self.head.block(block);
        builder.clear();
        let id = self.first.to_bytes();
        match &mut self.announced {
            Ok(_) => [&id[..], block].iter().for_each(|bytes| strings.put_bytes(out, bytes)),
            Err(waiting) => [&id[..], block].iter().for_each(|bytes| strings.put_bytes(waiting, bytes)),
        }
    }

    fn put_info(&mut self, info: &Info) {
        self.encoder.put_length(info.length);
        put_id(self.encoder, info.last_id);
        put_id(self.encoder, info.first_id);
        put_id(self.encoder, info.max_deleted_id);
        self.encoder.put_length(info.entries_added);
    }
}

fn put_id<O: Out>(encoder: &mut Encoder<O>, id: Id) {
    encoder.put_length(id.ms);
    encoder.put_length(id.seq);
}

fn put_group<O: Out>(encoder: &mut Encoder<O>, group: &Group) {
    encoder.put_string(Item::Bytes(&group.name));
    put_id(encoder, group.last_id);
    encoder.put_length(group.entries_read.unwrap_or(UNKNOWN));
    encoder.put_length(group.pending.len() as u64);
    let mut owned = vec![Vec::new(); group.consumers.len()];
    for pending in &group.pending {
        encoder.out.put(&pending.id.to_bytes());
        encoder.put_millis(pending.delivered);
        encoder.put_length(pending.deliveries);
        owned[pending.consumer as usize].push(pending.id);
    }
    encoder.put_length(group.consumers.len() as u64);
    group.consumers.iter().zip(&owned).for_each(|(consumer, ids)| put_consumer(encoder, consumer, ids));
}

fn put_consumer<O: Out>(encoder: &mut Encoder<O>, consumer: &Consumer, ids: &[Id]) {
    encoder.put_string(Item::Bytes(&consumer.name));
    encoder.put_millis(consumer.seen);
    if encoder.version.has_active_times() {
        encoder.put_millis(consumer.active.unwrap_or(UNKNOWN));
    }
    encoder.put_length(ids.len() as u64);
    ids.iter().for_each(|id| encoder.out.put(&id.to_bytes()));
}
