//! Arrival and departure of a worker's connections: accepted, assigned to the least loaded worker, closed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{LISTENER_TOKENS, Worker};
use crate::executor::record_stage;
use crate::observe::stats::{Stage, add};
use crate::worker::connection::Connection;
use crate::worker::inbox::{Inbox, Message};
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::session::Session;
use evenkeel_command::reply::LARGE;
use evenkeel_net::listener::{Accepted, Listener};
use evenkeel_net::socket;
use evenkeel_net::tls::TlsStream;
use evenkeel_runtime::clock;

/// Connections accepted per turn and listener; the rest wait for the next turn.
const ACCEPTS_PER_TURN: usize = 64;

/// Connections accepted beyond `maxclients` over the Unix socket, so that an operator can inspect and repair
/// a full server.
const OPERATORS_MAX: usize = 8;

/// Milliseconds for which a connection beyond `maxclients` waits for a place, and most connections that may
/// wait.
const ACCEPT_QUEUE_MS: u64 = 20;
const ACCEPT_QUEUE_MAX: usize = 64;

/// Milliseconds between two log lines about connections that cannot be accepted.
const COMPLAINT_MS: u64 = 1_000;

/// The listeners of a worker, and connections that wait to be accepted.
#[derive(Default)]
pub(super) struct Acceptor {
    listeners: Vec<Arc<Listener>>,
    /// Numbers of the listeners with connections to accept in this turn.
    pub(super) ready: Vec<u64>,
    /// Listeners ignored until the next tick.
    muted: Vec<Arc<Listener>>,
    /// When a failed accept was last logged.
    complained_ms: u64,
    /// Connections beyond `maxclients`, and when each began to wait.
    queue: VecDeque<(u64, Accepted)>,
}

impl Acceptor {
    pub(super) fn new(listeners: Vec<Arc<Listener>>) -> Acceptor {
        Acceptor { listeners, ..Acceptor::default() }
    }

    /// Returns the time at which the first queued connection has waited long enough, in milliseconds since
    /// the Unix epoch.
    pub(super) fn first_due_ms(&self) -> Option<u64> {
        self.queue.front().map(|(since_ms, _)| since_ms + ACCEPT_QUEUE_MS)
    }
}

impl Worker {
    pub(super) fn accept(&mut self, id: u64) {
        let Some(listener) = self.acceptor.listeners.iter().find(|listener| listener.id == id).cloned()
        else {
            return;
        };
        for _ in 0..ACCEPTS_PER_TURN {
            let before = clock::ticks();
            match listener.accept(self.executor.settings.tcp_keepalive) {
                Ok(accepted) => self.admit(accepted),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return self.turn_away(listener, &error),
            }
            record_stage(self.executor.stats(), Stage::Accept, before);
        }
    }

    /// Handles a failed accept. Without a descriptor or memory for it, the connection stays and would be
    /// announced without end: then this worker ignores the listener until its next tick. A closed listener,
    /// shown by EINVAL of accept(2), is removed.
    fn turn_away(&mut self, listener: Arc<Listener>, error: &io::Error) {
        match error.raw_os_error() {
            Some(libc::EINVAL) => _ = self.poll.remove(listener.fd()),
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                if self.now_ms >= self.acceptor.complained_ms + COMPLAINT_MS {
                    self.acceptor.complained_ms = self.now_ms;
                    log::warn!("Accepting client connection: {error}");
                }
                let _ = self.poll.remove(listener.fd());
                self.acceptor.muted.push(listener);
            }
            _ => log::debug!("Accepting client connection: {error}"),
        }
    }

    /// Listens again on muted listeners.
    pub(super) fn listen_again(&mut self) {
        for listener in std::mem::take(&mut self.acceptor.muted) {
            if self.acceptor.listeners.iter().any(|one| one.id == listener.id) {
                self.listen(&listener);
            }
        }
    }

    fn listen(&self, listener: &Listener) {
        if let Err(error) = self.poll.add_listener(listener.fd(), LISTENER_TOKENS + listener.id) {
            log::warn!("Worker {} cannot listen: {error}", self.index);
        }
    }

    /// Follows a change of the server's listeners.
    pub(super) fn follow_listeners(&mut self) {
        let now = self.server.listeners.all();
        let is_in = |list: &[Arc<Listener>], one: &Listener| list.iter().any(|other| other.id == one.id);
        for old in self.acceptor.listeners.iter().filter(|old| !is_in(&now, old)) {
            // The other workers may still hold the descriptor, so closing it here would not remove it.
            let _ = self.poll.remove(old.fd());
        }
        for new in now.iter().filter(|new| !is_in(&self.acceptor.listeners, new)) {
            self.listen(new);
        }
        self.acceptor.listeners = now;
    }

    /// Accepts waiting connections, after the connections that have ended in this turn are gone.
    pub(super) fn accept_waiting(&mut self) {
        while let Some((since_ms, accepted)) = self.acceptor.queue.pop_front() {
            if self.over(&accepted) > 0 && self.now_ms < since_ms + ACCEPT_QUEUE_MS {
                self.acceptor.queue.push_front((since_ms, accepted));
                break;
            }
            self.welcome(accepted);
        }
        let ready = std::mem::take(&mut self.acceptor.ready);
        if !self.server.handover.keeps_connections() {
            ready.into_iter().for_each(|listener| self.accept(listener));
        }
    }

    /// Returns by how many a connection would exceed `maxclients`, not counting the reserve for operators.
    pub(super) fn over(&self, accepted: &Accepted) -> usize {
        let over =
            (self.server.hub.clients.count() + 1).saturating_sub(self.executor.settings.maxclients as usize);
        over.saturating_sub(if accepted.is_unix { OPERATORS_MAX } else { 0 })
    }

    /// Queues a connection for a moment if there is no place: another connection's end may be on its way
    /// through another worker, and a client that reconnects relies on being accepted.
    pub(super) fn admit(&mut self, accepted: Accepted) {
        if self.over(&accepted) > 0 && self.acceptor.queue.len() < ACCEPT_QUEUE_MAX {
            return self.acceptor.queue.push_back((self.now_ms, accepted));
        }
        self.welcome(accepted);
    }

    pub(super) fn welcome(&mut self, accepted: Accepted) {
        let settings = &self.executor.settings;
        let is_over = self.over(&accepted) > 0;
        let refusal = if is_over {
            Some("-ERR max number of clients reached\r\n")
        } else if settings.protected_mode && !accepted.is_loopback && self.server.acl.default_user().is_open()
        {
            Some(PROTECTED)
        } else {
            None
        };
        if accepted.is_tls {
            return self.welcome_with_tls(accepted, is_over, refusal);
        }
        if let Some(text) = refusal {
            self.server.hub.rejected_connections.fetch_add(1, Relaxed);
            // Whether it arrives makes no difference.
            let _ = socket::send(accepted.socket.as_fd(), text.as_bytes());
            return;
        }
        let connection = self.connection_of(accepted);
        self.deal(Box::new(connection));
    }

    /// Begins TLS with a client, which can read no error before the handshake. A client beyond `maxclients`
    /// gets no handshake.
    fn welcome_with_tls(&mut self, accepted: Accepted, is_over: bool, refusal: Option<&'static str>) {
        let address = accepted.address.clone();
        let config = self.server.tls.contexts().map(|contexts| contexts.server.clone());
        let (false, Some(config)) = (is_over, config) else {
            self.server.hub.rejected_connections.fetch_add(1, Relaxed);
            return;
        };
        match TlsStream::accept(config) {
            Ok(mut tls_stream) => {
                tls_stream.refusal = refusal;
                let connection = self.connection_of(accepted).within(tls_stream);
                self.deal(Box::new(connection));
            }
            Err(error) => log::warn!("Cannot start TLS for client {address}: {error}"),
        }
    }

    fn connection_of(&mut self, accepted: Accepted) -> Connection {
        let settings = &self.executor.settings;
        add(&self.executor.stats().connections, 1);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&accepted.socket);
        let id = self.server.hub.clients.next_id();
        let info =
            ClientInfo::new(id, accepted.address, accepted.local_address, fd, accepted.is_unix, self.now_ms);
        let info = Arc::new(info);
        self.server.hub.clients.add(info.clone());
        let mut session = Session::of_new_connection(info, &self.server.acl);
        session.on_probation = self.server.hub.clients.count() > settings.maxclients as usize;
        Connection::new(accepted.socket, session)
    }

    /// Assigns a connection to the worker with the fewest.
    pub(super) fn deal(&mut self, connection: Box<Connection>) {
        let count = |inbox: &Inbox| inbox.connections.load(Relaxed);
        let mine = count(self.inbox());
        let (least, fewest) = self
            .server
            .inboxes
            .iter()
            .map(count)
            .enumerate()
            .min_by_key(|(_, count)| *count)
            .expect("there is at least one worker");
        if fewest >= mine {
            self.inbox().connections.fetch_add(1, Relaxed);
            return self.adopt(connection);
        }
        self.send_to(least, connection);
    }

    pub(super) fn send_to(&self, worker: usize, connection: Box<Connection>) {
        let inbox = &self.server.inboxes[worker];
        inbox.connections.fetch_add(1, Relaxed);
        inbox.post(Message::Adopt(connection));
    }

    /// Serves a connection from now on. It has been counted already.
    pub(super) fn adopt(&mut self, mut connection: Box<Connection>) {
        let token = self.connections.reserve();
        connection.client().worker.store(self.index as u32, Relaxed);
        connection.client().token.store(token, Relaxed);
        if let Err(error) = self.poll.add_connection(connection.fd(), token) {
            log::warn!("Cannot register client {} for events: {error}", connection.client().address);
            self.connections.free(token);
            self.inbox().connections.fetch_sub(1, Relaxed);
            return self.forget(connection);
        }
        if connection.parked {
            self.schedule.parked.push(token);
        }
        // The socket does not announce bytes that were left when the share was used up.
        if std::mem::take(&mut connection.is_ready) {
            self.make_ready(token, &mut connection);
        }
        if connection.client().killed.load(Relaxed) {
            // Killed in transit, after its former worker had searched for killed connections.
            return self.close(token, connection);
        }
        self.deliver(token, connection);
    }

    pub(super) fn close(&mut self, token: u64, connection: Box<Connection>) {
        self.vacate(token, &connection);
        connection.discard_received();
        self.forget(connection);
    }

    /// Removes a connection from this worker's tables.
    pub(super) fn vacate(&mut self, token: u64, connection: &Connection) {
        // Closing the descriptor would do, but a connection that moves keeps it.
        let _ = self.poll.remove(connection.fd());
        self.connections.free(token);
        self.inbox().connections.fetch_sub(1, Relaxed);
    }

    /// Ends a session: its wait, its watches and its entry in the registry.
    pub(super) fn forget(&mut self, mut connection: Box<Connection>) {
        self.abandon_wait(&mut connection);
        if connection.backlog_len() > LARGE {
            self.server.core.lazy_free.free(connection.abandon());
        }
        let server = &self.server;
        let ctx = &mut self.executor.ctx;
        connection.session.end_push(&server.hub);
        server.hub.clients.remove(connection.client().id);
        if let Some(watching) = connection.session.watching.take() {
            if !server.core.keyspace.enter_unless(ctx, || server.scripts.busy.is_busy()) {
                return self.executor.left_watches.push(watching);
            }
            watching.end(&mut server.core.keyspace.hold_none(ctx));
            server.core.keyspace.leave(ctx);
        }
    }
}

const PROTECTED: &str = "-DENIED Evenkeel is running in protected mode because protected mode is enabled and \
                         no password is set for the default user. In this mode connections are only accepted \
                         from the loopback interface. To connect from other hosts, set a password with \
                         'requirepass' or, in a trusted network, run 'CONFIG SET protected-mode no' from the \
                         loopback interface.\r\n";
