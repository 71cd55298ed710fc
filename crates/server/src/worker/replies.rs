//! Sending of replies, and the limits of waiting replies.

use std::sync::atomic::Ordering::Relaxed;

use super::Worker;
use crate::executor::record_stage;
use crate::observe::stats::{Stage, add};
use crate::worker::connection::{Connection, Sent};
use crate::worker::pipeline::REPLY_LEN_MAX;
use evenkeel_config::OutputLimit;
use evenkeel_runtime::clock;

/// Most bytes that may wait for an unauthenticated client that has to authenticate.
const UNAUTHENTICATED_MAX: u64 = 1024;

/// Longest deferral of replies, in milliseconds.
const PUT_OFF_MS_MAX: u64 = 500;

impl Worker {
    /// Sends the reply. Returns `false` if the connection has to be closed.
    pub(super) fn flush(&mut self, connection: &mut Connection) -> bool {
        let before = self.executor.last_ticks;
        let len = self.reply.len();
        let limit = self.output_limit(connection).hard_bytes;
        let waiting = (connection.backlog_len() + len) as u64;
        if limit > 0 && waiting > limit || self.reply.is_cut() {
            // Sends nothing of it: a client must not take the beginning for the whole.
            self.server.core.lazy_free.free(std::mem::take(&mut self.reply));
            self.record_output_limit(connection, waiting);
            return false;
        }
        if len > 0 && self.is_reply_late(connection) {
            self.server.core.lazy_free.free(std::mem::take(&mut self.reply));
            return false;
        }
        let waits = len > 0 && connection.session.last_record > 0 && self.awaits_log(connection);
        let was_put_off = connection.put_off_since_ms.take().is_some();
        let sent = if waits {
            Ok(Sent::Part)
        } else if was_put_off {
            connection.keep(&mut self.reply);
            connection.send_backlog()
        } else {
            connection.send(&mut self.reply)
        };
        self.clear_away(connection);
        let stats = self.executor.stats();
        self.executor.last_ticks = record_stage(stats, Stage::Write, before);
        let stats = self.executor.stats();
        add(&stats.writes, 1);
        add(&stats.net_out, len as u64);
        add(&connection.client().net_out, len as u64);
        match sent {
            _ if waits => {
                self.hold_back(connection);
                self.within_limits(connection)
            }
            Ok(Sent::All) => {
                connection.soft_since_ms = None;
                true
            }
            Ok(Sent::Part) => {
                self.kept_for_clients += len;
                self.within_limits(connection)
            }
            Err(_) => {
                self.reply.clear();
                false
            }
        }
    }

    /// Whether the replies to the beginning of a read wait for the replies to its rest, since other
    /// connections have their turn in between. `client-output-buffer-limit` concerns all of them: a client
    /// that requests more at once than its limit gets nothing. Replies are sent without deferral if there is
    /// no such limit, if they are many already, or if the client has waited for long.
    #[cold]
    pub(super) fn may_put_off(&self, connection: &Connection) -> bool {
        let limit = self.output_limit(connection).hard_bytes;
        let waits =
            connection.is_held_back() || connection.session.last_record > 0 && self.awaits_log(connection);
        let waiting = connection.backlog_len() + self.reply.len();
        let since = connection.put_off_since_ms.unwrap_or(self.now_ms);
        let is_soon = self.now_ms.saturating_sub(since) <= PUT_OFF_MS_MAX;
        // More than the limit is refused at once.
        limit > 0 && !waits && waiting <= REPLY_LEN_MAX && waiting as u64 <= limit && is_soon
    }

    /// Keeps the reply: the connection continues in its next turn.
    #[cold]
    pub(super) fn put_off(&mut self, connection: &mut Connection) {
        let len = self.reply.len();
        connection.keep(&mut self.reply);
        connection.put_off_since_ms.get_or_insert(self.now_ms);
        self.kept_for_clients += len;
        let stats = self.executor.stats();
        add(&stats.net_out, len as u64);
        add(&connection.client().net_out, len as u64);
    }

    /// Passes large sent chunks to the lazy-free thread.
    #[inline]
    fn clear_away(&self, connection: &mut Connection) {
        for chunk in connection.lazy_free.drain(..) {
            self.server.core.lazy_free.free(chunk);
        }
    }

    pub(super) fn flush_backlog(&mut self, connection: &mut Connection) -> bool {
        let before = clock::ticks();
        let before_it = connection.backlog_len();
        let sent = connection.send_backlog();
        if connection.backlog_len() < before_it {
            // A client that reads is not idle.
            connection.client().active_ms.store(self.now_ms, Relaxed);
        }
        self.clear_away(connection);
        record_stage(self.executor.stats(), Stage::Write, before);
        match sent {
            Ok(Sent::All) => {
                connection.soft_since_ms = None;
                !connection.session.closing
            }
            Ok(Sent::Part) => self.within_limits(connection),
            Err(_) => false,
        }
    }

    /// Returns the part of `client-output-buffer-limit` for this client's class.
    #[inline]
    pub(super) fn output_limit(&self, connection: &Connection) -> OutputLimit {
        let limits = &self.executor.settings.client_output_buffer_limit;
        limits.of_client(connection.session.subscriptions.is_some())
    }

    /// Whether the backlog is within `client-output-buffer-limit`, and within a lower limit for
    /// unauthenticated clients.
    pub(super) fn within_limits(&mut self, connection: &mut Connection) -> bool {
        let limit = self.output_limit(connection);
        let len = connection.backlog_len() as u64;
        if len > UNAUTHENTICATED_MAX && connection.session.is_unauthenticated(&self.server.acl) {
            self.record_output_limit(connection, len);
            return false;
        }
        let over_soft = limit.soft_bytes > 0 && len > limit.soft_bytes;
        connection.soft_since_ms = over_soft.then(|| connection.soft_since_ms.unwrap_or(self.now_ms));
        let too_long = connection
            .soft_since_ms
            .is_some_and(|since| self.now_ms.saturating_sub(since) > limit.soft_seconds.saturating_mul(1000));
        if (limit.hard_bytes > 0 && len > limit.hard_bytes) || too_long {
            self.record_output_limit(connection, len);
            return false;
        }
        true
    }

    pub(super) fn record_output_limit(&self, connection: &Connection, waiting: u64) {
        self.server.hub.closed_for_output.fetch_add(1, Relaxed);
        log::warn!(
            "Client id={} addr={} closed for overcoming of output buffer limits ({waiting} bytes waiting).",
            connection.client().id,
            connection.client().address
        );
    }
}
