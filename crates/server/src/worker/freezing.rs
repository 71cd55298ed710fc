//! A worker that does nothing for a while, so that its connections can be handed over to another process as
//! they are.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

use super::Worker;
use crate::handover::{ClientState, Freeze, Frozen, Left};
use crate::worker::connection::Connection;
use evenkeel_client::maintenance;
use evenkeel_client::pubsub::push_queue::Pending;

impl Worker {
    /// Sends all connections, and does nothing until the end of the hand-over. If the process stays, the
    /// connections go on.
    pub(super) fn freeze(&mut self, freeze: &Freeze) {
        let mut frozen = Frozen { clients: Vec::new(), left: Left::default(), busy: None };
        // A pass of compaction would leave chunks out of use, and nobody could end it after the hand-over.
        self.background.give_up_compaction();
        // Tables that no thread reads any more: nobody frees them after the hand-over.
        self.server.core.keyspace.tidy(&mut self.executor.ctx);
        self.server.core.keyspace.tidy(&mut self.executor.ctx);
        for token in self.connections.tokens() {
            let Some(mut connection) = self.connections.take(token) else { continue };
            self.freeze_connection(&mut connection, &mut frozen);
            self.connections.put_back(token, connection);
        }
        // The other end is gone only if the hand-over has been given up.
        let _ = freeze.frozen.send(frozen);
        freeze.wait();
        for token in self.connections.tokens() {
            let Some(mut connection) = self.connections.take(token) else { continue };
            if connection.has_unsent() && !self.flush_backlog(&mut connection) {
                self.close(token, connection);
            } else {
                self.connections.put_back(token, connection);
            }
        }
    }

    /// Tells a client whose connection cannot travel to connect again, if it has asked for that. The new
    /// connection waits for the process that takes over.
    fn send_away(&mut self, connection: &mut Connection) {
        let client = connection.client().clone();
        maintenance::send_reconnect(&self.server.hub, &client);
        if let Pending::Messages(messages) = client.push_queue.take(client.is_resp3())
            && !messages.is_empty()
        {
            connection.enqueue(messages);
            // What the socket does not take is lost with the connection.
            let _ = self.flush_backlog(connection);
        }
    }

    fn freeze_connection(&mut self, connection: &mut Connection, frozen: &mut Frozen) {
        let client = connection.client().clone();
        if connection.has_tls() {
            frozen.left.tls += 1;
            self.send_away(connection);
            return;
        }
        if client.is_http.load(Relaxed) {
            frozen.left.http += 1;
            return;
        }
        let messages = client.push_queue.take(client.is_resp3());
        let Pending::Messages(messages) = messages else {
            frozen.left.closing += 1;
            return;
        };
        if client.killed.load(Relaxed) || connection.session.on_probation {
            frozen.left.closing += 1;
            return;
        }
        // These are sent before any reply to a later command.
        if !messages.is_empty() {
            connection.enqueue(messages);
        }
        match ClientState::of(connection) {
            Ok(state) => {
                connection.own_backlog();
                frozen.clients.push((state, connection.fd().as_raw_fd()));
            }
            Err(reason) => frozen.busy = Some(reason),
        }
    }
}
