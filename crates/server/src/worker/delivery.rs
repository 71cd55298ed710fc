//! Delivery of clients' push queues: messages from other threads.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Worker;
use crate::cluster::leaving;
use crate::observe::stats::add;
use crate::worker::connection::Connection;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::pubsub::push_queue::Pending;

impl Worker {
    pub(super) fn deliver_to(&mut self, clients: Vec<Arc<ClientInfo>>) {
        for client in clients {
            let token = client.token.load(Relaxed);
            let Some(connection) = self.connections.take(token) else { continue };
            if Arc::ptr_eq(connection.client(), &client) {
                self.deliver(token, connection);
            } else {
                // The connection has moved, and its new worker has checked the queue; the token is another
                // connection's here.
                self.connections.put_back(token, connection);
            }
        }
    }

    /// Ends subscriptions to shard channels whose slots have left this node.
    pub(super) fn end_shard_channels(&mut self) {
        let server = self.server.clone();
        let Some(view) = server.cluster.as_ref().map(|cluster| cluster.view()) else { return };
        for token in self.connections.tokens() {
            let Some(mut connection) = self.connections.take(token) else { continue };
            if connection.client().shards.load(Relaxed) > 0 {
                leaving::unsubscribe(&server, &view, &mut connection.session);
            }
            self.deliver(token, connection);
        }
    }

    /// Delivers the queue, then puts the connection back or closes it.
    pub(super) fn deliver(&mut self, token: u64, mut connection: Box<Connection>) {
        if connection.client().push_queue.is_empty() || self.send_messages(&mut connection, Vec::new()) {
            self.connections.put_back(token, connection);
        } else {
            self.close(token, connection);
        }
    }

    /// Sends `late` and the push queue behind the backlog, in a single write. Returns `false` if the
    /// connection has to be closed.
    pub(super) fn send_messages(&mut self, connection: &mut Connection, late: Vec<Arc<[u8]>>) -> bool {
        let mut messages = late;
        match connection.client().push_queue.take(connection.client().is_resp3()) {
            Pending::Messages(more) => messages.extend(more),
            Pending::TooMuch { waiting } => {
                self.record_output_limit(connection, waiting);
                return false;
            }
        }
        // The reply may contain values that these messages invalidate, so they go behind it. A reply that
        // does not exist yet is not affected: the keys that it reads are recorded while the wait is claimed,
        // and the claim is checked after the queue was taken.
        if connection.session.is_tracking()
            && let Some(waiting) = &mut connection.session.waiting
            && waiting.may_be_answered()
        {
            waiting.late_len += messages.iter().map(|message| message.len()).sum::<usize>();
            waiting.late.append(&mut messages);
            let late_len = waiting.late_len;
            let waits = connection.backlog_len() + late_len;
            connection.client().out_bytes.store(waits, Relaxed);
            let limit = self.output_limit(connection).hard_bytes;
            let is_too_much = limit > 0 && waits as u64 > limit;
            if is_too_much {
                self.record_output_limit(connection, waits as u64);
            }
            return !is_too_much;
        }
        if connection.session.closing || messages.is_empty() {
            return true; // the reply that it waits for is the last message that it reads
        }
        let len: usize = messages.iter().map(|message| message.len()).sum();
        let stats = self.executor.stats();
        add(&stats.writes, 1);
        add(&stats.net_out, len as u64);
        add(&connection.client().net_out, len as u64);
        // If the socket was full before, an event comes when it has room; deferred replies are sent in the
        // next turn.
        let must_wait = connection.backlog_len() > 0;
        connection.enqueue(messages);
        self.kept_for_clients += len;
        if must_wait { self.within_limits(connection) } else { self.flush_backlog(connection) }
    }
}
