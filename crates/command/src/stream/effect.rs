//! The journal of commands on groups: which consumer was given which entries, when and how often, and how far
//! the group has read.
//!
//! XREADGROUP cannot be logged as it came: the time of a delivery is part of the group, and a reader of the
//! journal must not block. As in Redis a delivery becomes an XCLAIM with all of that, but a single XCLAIM
//! covers all entries with equal deliveries.

use evenkeel_store::collection::stream::{COUNT_MAX, Delivery, StreamId};

use crate::Call;
use crate::class::STREAM;

/// The effect of a command on a group.
#[derive(Default)]
pub(super) struct Effect {
    /// The command has created its consumer.
    pub(super) is_new_consumer: bool,
    /// Entries that now belong to the consumer.
    pub(super) given: Vec<(StreamId, Delivery)>,
    /// Entries that belong to no consumer any more.
    pub(super) forgotten: Vec<StreamId>,
    /// The last ID that the group has read, and how many entries that is, if it has moved.
    pub(super) position: Option<(StreamId, Option<u64>)>,
}

impl Effect {
    /// Logs the effect. An empty effect is logged as well, since such a command counts as a change.
    pub(super) fn log(self, call: &mut Call<'_, '_>, key: &[u8], group: &[u8], consumer: &[u8]) {
        if self.is_new_consumer {
            call.guard.say(call.db, key, STREAM, "xgroup-createconsumer");
        }
        if !call.is_logged() {
            return;
        }
        call.guard.log_nothing();
        if self.is_new_consumer {
            call.log(&[b"XGROUP", b"CREATECONSUMER", key, group, consumer]);
        }
        for alike in self.given.chunk_by(|one, other| one.1 == other.1) {
            log_given(call, &[b"XCLAIM", key, group, consumer, b"0"], alike);
        }
        let forgotten = self.forgotten.iter().map(StreamId::to_string);
        call.log_each(&[b"XACK", key, group], 1, forgotten);
        if let Some((last_id, entries_read)) = self.position {
            let read = entries_read.map_or("-1".to_owned(), |read| read.min(COUNT_MAX).to_string());
            let last_id = last_id.to_string();
            call.log(&[b"XGROUP", b"SETID", key, group, last_id.as_bytes(), b"ENTRIESREAD", read.as_bytes()]);
        }
    }
}

/// Logs entries that were delivered at the same time and equally often.
fn log_given(call: &mut Call<'_, '_>, head: &[&[u8]], alike: &[(StreamId, Delivery)]) {
    /// IDs of a single command.
    const IDS_MAX: usize = 1_000;
    for ids in alike.chunks(IDS_MAX) {
        let Delivery { at_ms, count } = ids[0].1;
        let (at, count) = (at_ms.to_string(), count.min(COUNT_MAX).to_string());
        let tail: [&[u8]; 6] = [b"TIME", at.as_bytes(), b"RETRYCOUNT", count.as_bytes(), b"FORCE", b"JUSTID"];
        let ids: Vec<String> = ids.iter().map(|(id, _)| id.to_string()).collect();
        let args = head.iter().copied().chain(ids.iter().map(|id| id.as_bytes())).chain(tail);
        call.log(&args.collect::<Vec<_>>());
    }
}
