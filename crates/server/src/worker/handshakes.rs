//! TLS handshakes: a few per turn, after all established connections.
//!
//! A handshake costs as much as a thousand commands. When very many arrive at once, after a failure for
//! instance, established connections must not wait for them. So a connection that has sent handshake data
//! joins a queue, and each turn takes `max-new-tls-connections-per-cycle` from its front; turns follow
//! without a pause until the queue is empty.

use std::sync::atomic::Ordering::Relaxed;

use super::Worker;
use crate::executor::permission;
use crate::executor::record_stage;
use crate::observe::stats::Stage;
use crate::worker::connection::Connection;
use evenkeel_config::CertifiedUser;
use evenkeel_net::tls;
use evenkeel_runtime::clock;

/// Milliseconds that a client may take for its handshake.
pub(super) const HANDSHAKE_MS: u64 = 10_000;

impl Worker {
    /// Queues a connection that has sent handshake data.
    pub(super) fn queue_handshake(&mut self, token: u64, mut connection: Box<Connection>) {
        if let Some(tls_stream) = connection.tls_stream()
            && !std::mem::replace(&mut tls_stream.is_queued, true)
        {
            self.handshakes.push_back(token);
        }
        self.connections.put_back(token, connection);
    }

    /// Continues some of the handshakes.
    pub(super) fn shake_hands(&mut self) {
        for _ in 0..self.executor.settings.max_new_tls_connections_per_cycle {
            let Some(token) = self.handshakes.pop_front() else { return };
            if let Some(connection) = self.connections.take(token) {
                let before = clock::ticks();
                self.shake_hand(token, connection);
                self.executor.last_ticks = record_stage(self.executor.stats(), Stage::Accept, before);
            }
        }
    }

    fn shake_hand(&mut self, token: u64, mut connection: Box<Connection>) {
        if let Some(tls_stream) = connection.tls_stream() {
            tls_stream.is_queued = false;
        }
        if connection.client().killed.load(Relaxed) {
            return self.close(token, connection);
        }
        match connection.shake() {
            Ok(true) => self.begin_service(token, connection),
            Ok(false) => self.connections.put_back(token, connection),
            Err(error) => {
                log::warn!(
                    "Error accepting a client connection: {error} (addr={} laddr={})",
                    connection.client().address,
                    connection.client().local_address
                );
                self.close(token, connection);
            }
        }
    }

    /// Serves a client from now on, or sends it the reason for a refusal.
    fn begin_service(&mut self, token: u64, mut connection: Box<Connection>) {
        if let Some(refusal) = connection.tls_stream().and_then(|tls_stream| tls_stream.refusal) {
            self.server.hub.rejected_connections.fetch_add(1, Relaxed);
            // Its arrival makes no difference.
            let _ = connection.write_gathered(&[std::io::IoSlice::new(refusal.as_bytes())]);
            return self.close(token, connection);
        }
        self.take_for_its_user(&mut connection);
        // Bytes that came with the end of the handshake are not announced again.
        connection.readable = true;
        self.make_ready(token, &mut connection);
        self.connections.put_back(token, connection);
    }

    /// `tls-auth-clients-user`: logs a client in as the user that its certificate names.
    fn take_for_its_user(&self, connection: &mut Connection) {
        let by = self.executor.settings.tls_auth_clients_user;
        if by == CertifiedUser::Off {
            return;
        }
        let users = connection.tls_stream().and_then(|tls_stream| Some(tls::users(tls_stream.shown()?, by)));
        if let Some(users) = users {
            permission::log_in_as_one_of(&self.server, &mut connection.session, &users, self.now_ms);
        }
    }

    /// Whether a client has exceeded the time for its handshake.
    pub(super) fn is_late(&self, connection: &Connection) -> bool {
        let is_late = self.now_ms.saturating_sub(connection.client().created_ms) > HANDSHAKE_MS;
        if is_late {
            let address = &connection.client().address;
            log::debug!("Closing client {address}: the TLS handshake timed out");
        }
        is_late
    }
}
