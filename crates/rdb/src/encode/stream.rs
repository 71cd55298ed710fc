//! Streams. See `decode/stream.rs` for the layout.

use super::nodes::{Node, NodeCount, NodeLimits};
use super::{Encoder, Out, put_length};
use crate::Millis;
use crate::block::listpack::Builder;
use crate::item::Item;
use crate::kind::{self, Version};
use crate::stream::{Group, Id, Idmp, Info};

const SAME_NAMES: i64 = 2;

/// Written in place of a missing time or an unknown number: -1.
const UNKNOWN: u64 = u64::MAX;

/// The newest part of a stream, which decides about its form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamForm {
    /// Entries and groups alone; a consumer has two times from version 11 on.
    #[default]
    Plain,
    /// A stream also has its producers, with the ids of their recent entries.
    Idmp,
    /// A group also has released entries.
    Released,
}

impl StreamForm {
    /// The lowest version with this form.
    pub fn version(self) -> Version {
        match self {
            StreamForm::Plain => Version::V10,
            StreamForm::Idmp => Version::V13,
            StreamForm::Released => Version::V14,
        }
    }
}

/// Writes the entries of a stream, and its counters and ids.
#[must_use = "what is not finished is not written"]
pub struct StreamWriter<'e, O: Out> {
    encoder: &'e mut Encoder<O>,
    form: StreamForm,
    count: NodeCount,
    /// The announced number of nodes, or the nodes that wait for their count.
    announced: Result<u64, Vec<u8>>,
    /// The id of the current node's first entry, and that entry's names, which later entries may share.
    first: Id,
    names: Vec<Vec<u8>>,
    /// Names with a larger total size, two bytes for each length included, are not shared.
    shared_max: usize,
    entries: u64,
    /// The node's header. Its entries are in the encoder's builder.
    head: Builder,
    length: u64,
    last: Id,
}

impl<'e, O: Out> StreamWriter<'e, O> {
    pub(super) fn new(
        encoder: &'e mut Encoder<O>,
        limits: NodeLimits,
        nodes: Option<u64>,
        form: StreamForm,
    ) -> Self {
        encoder.begin(match (form, encoder.version.has_active_times()) {
            (StreamForm::Plain, false) => kind::STREAM_LISTPACKS_2,
            (StreamForm::Plain, true) => kind::STREAM_LISTPACKS_3,
            (StreamForm::Idmp, _) => kind::STREAM_LISTPACKS_4,
            (StreamForm::Released, _) => kind::STREAM_LISTPACKS_5,
        });
        encoder.builder.clear();
        if let Some(nodes) = nodes {
            encoder.put_length(nodes);
        }
        let narrow = encoder.version >= Version::V80;
        StreamWriter {
            count: NodeCount::new(limits, encoder.version),
            encoder,
            form,
            announced: nodes.ok_or_else(Vec::new),
            first: Id::ZERO,
            names: Vec::new(),
            shared_max: usize::MAX,
            entries: 0,
            head: Builder::new(narrow),
            length: 0,
            last: Id::ZERO,
        }
    }

    /// Lets no entries share names of more bytes than this in total. A reader that copies such names per
    /// entry then needs no more memory than it can derive from the received bytes.
    pub fn sharing_up_to(self, bytes: usize) -> Self {
        StreamWriter { shared_max: bytes, ..self }
    }

    /// Writes the next entry, by ascending id, with at least a single field.
    pub fn entry(&mut self, id: Id, fields: &[(Item<'_>, Item<'_>)]) {
        assert!(id > self.last && !fields.is_empty(), "ids ascend, and an entry has a field");
        (self.last, self.length) = (id, self.length + 1);
        if self.count.place_entry(fields) != Node::Same {
            self.put_node();
            self.first = id;
            self.names = fields.iter().map(|(name, _)| name.to_vec()).collect();
            if self.names.iter().map(|name| name.len() + 2).sum::<usize>() > self.shared_max {
                self.names.clear();
            }
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

    /// Ends the current node, for instance at the end of a node of the caller's.
    pub fn end_node(&mut self) {
        self.count.end_node();
        self.put_node();
    }

    /// Writes `info`, which must agree with the entries, and the groups in the form in which they are read.
    pub fn finish<'g>(self, info: &Info, groups: impl ExactSizeIterator<Item = &'g Group>) {
        self.finish_with(info, groups, &Idmp::default());
    }

    /// [`StreamWriter::finish`] for a form that has `idmp`.
    pub fn finish_with<'g>(self, info: &Info, groups: impl ExactSizeIterator<Item = &'g Group>, idmp: &Idmp) {
        let mut writer = self.groups(info, groups.len() as u64);
        groups.for_each(|group| put_group(&mut writer, group));
        writer.finish(idmp);
    }

    /// Writes `info`, which must agree with the entries; `count` groups follow.
    pub fn groups(mut self, info: &Info, count: u64) -> GroupsWriter<'e, O> {
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
        self.encoder.put_length(count);
        GroupsWriter {
            encoder: self.encoder,
            form: self.form,
            left: Left { groups: count, ..Left::default() },
        }
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

/// Writes groups of any size: for each group all pending entries, then its consumers, each with its own
/// pending entries. Counts come first, and are checked.
#[must_use = "what is not finished is not written"]
pub struct GroupsWriter<'e, O: Out> {
    encoder: &'e mut Encoder<O>,
    form: StreamForm,
    left: Left,
}

/// Announced items that are still to be written.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    groups: u64,
    /// Of the current group.
    pending: u64,
    consumers: u64,
    /// Of the current consumer.
    owned: u64,
}

impl<O: Out> GroupsWriter<'_, O> {
    /// Writes the next group, with this number of pending entries.
    pub fn group(&mut self, name: &[u8], last_id: Id, entries_read: Option<u64>, pending: u64) {
        assert_eq!(self.left, Left { groups: self.left.groups, ..Left::default() }, "{AS_ANNOUNCED}");
        self.left.groups = take_one(self.left.groups);
        self.left.pending = pending;
        self.encoder.put_string(Item::Bytes(name));
        put_id(self.encoder, last_id);
        self.encoder.put_length(entries_read.unwrap_or(UNKNOWN));
        self.encoder.put_length(pending);
    }

    /// Writes the group's next pending entry, by ascending id, with the time and number of its deliveries.
    pub fn pending(&mut self, id: Id, delivered: Millis, deliveries: u64) {
        self.left.pending = take_one(self.left.pending);
        self.encoder.out.put(&id.to_bytes());
        self.encoder.put_millis(delivered);
        self.encoder.put_length(deliveries);
    }

    /// Writes the number of consumers that follow.
    pub fn consumers(&mut self, count: u64) {
        assert_eq!(self.left.pending, 0, "{AS_ANNOUNCED}");
        self.left.consumers = count;
        self.encoder.put_length(count);
    }

    /// Writes the group's next consumer, with this number of pending entries.
    pub fn consumer(&mut self, name: &[u8], seen: Millis, active: Option<Millis>, pending: u64) {
        assert_eq!(self.left.owned, 0, "{AS_ANNOUNCED}");
        self.left.consumers = take_one(self.left.consumers);
        self.left.owned = pending;
        self.encoder.put_string(Item::Bytes(name));
        self.encoder.put_millis(seen);
        if self.form > StreamForm::Plain || self.encoder.version.has_active_times() {
            self.encoder.put_millis(active.unwrap_or(UNKNOWN));
        }
        self.encoder.put_length(pending);
    }

    /// Writes the consumer's next pending entry, by ascending id.
    pub fn owned(&mut self, id: Id) {
        self.left.owned = take_one(self.left.owned);
        self.encoder.out.put(&id.to_bytes());
    }

    /// Writes the group's pending entries without a consumer, if the form has them.
    pub fn released(&mut self, ids: impl ExactSizeIterator<Item = Id>) {
        if self.form < StreamForm::Released {
            assert_eq!(ids.len(), 0, "the form was chosen for it");
            return;
        }
        self.encoder.put_length(ids.len() as u64);
        ids.for_each(|id| self.encoder.out.put(&id.to_bytes()));
    }

    /// Writes `idmp` if the form has it.
    pub fn finish(self, idmp: &Idmp) {
        assert_eq!(self.left, Left::default(), "{AS_ANNOUNCED}");
        if self.form == StreamForm::Plain {
            return;
        }
        let encoder = self.encoder;
        encoder.put_length(idmp.duration_s);
        encoder.put_length(idmp.entries_max);
        encoder.put_length(idmp.producers.len() as u64);
        for producer in &idmp.producers {
            encoder.put_string(Item::Bytes(&producer.name));
            encoder.put_length(producer.entries.len() as u64);
            for (iid, id) in &producer.entries {
                encoder.put_string(Item::Bytes(iid));
                put_id(encoder, *id);
            }
        }
        encoder.put_length(idmp.added);
        encoder.put_length(idmp.duplicates);
    }
}

const AS_ANNOUNCED: &str = "as many as announced";

fn take_one(left: u64) -> u64 {
    left.checked_sub(1).expect(AS_ANNOUNCED)
}

fn put_id<O: Out>(encoder: &mut Encoder<O>, id: Id) {
    encoder.put_length(id.ms);
    encoder.put_length(id.seq);
}

fn put_group<O: Out>(writer: &mut GroupsWriter<'_, O>, group: &Group) {
    writer.group(&group.name, group.last_id, group.entries_read, group.pending.len() as u64);
    let mut owned = vec![Vec::new(); group.consumers.len()];
    for pending in &group.pending {
        writer.pending(pending.id, pending.delivered, pending.deliveries);
        if let Some(owned) = owned.get_mut(pending.consumer as usize) {
            owned.push(pending.id);
        }
    }
    writer.consumers(group.consumers.len() as u64);
    for (consumer, ids) in group.consumers.iter().zip(owned) {
        writer.consumer(&consumer.name, consumer.seen, consumer.active, ids.len() as u64);
        ids.into_iter().for_each(|id| writer.owned(id));
    }
    writer.released(group.released.iter().copied());
}
