//! The server as its HTTP side sees it: users, connections to the workers, metrics, whether it is ready.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use evenkeel_acl::log::{Reason, Refusal};
use evenkeel_acl::{Access, DEFAULT, Databases, User};
use evenkeel_client::Session;
use evenkeel_client::clients::ClientInfo;
use evenkeel_command::Group;
use evenkeel_command::args::OwnedArgs;
use evenkeel_command::table::table;
use evenkeel_config::Settings;
use evenkeel_core::blockers::Blockers;
use evenkeel_http::{Client, CommandKind, Credentials, Exposition, Host};
use evenkeel_runtime::clock;
use evenkeel_store::ThreadContext;
use parking_lot::Mutex;

use crate::observe::capture::Capture;
use crate::observe::{metrics, recorder};
use crate::server::Server;
use crate::worker::connection::Connection;
use crate::worker::inbox::Message;

/// Longest wait for the gate. Without it, the counts of the databases are those of the last second.
const GATE_TIME_MAX: Duration = Duration::from_millis(10);

/// Library name of its connections to the workers, as CLIENT LIST shows it.
const LIBRARY: &[u8] = b"evenkeel-http";

pub(crate) struct HttpHost {
    server: Arc<Server>,
    /// Of the `http` thread.
    ctx: Mutex<ThreadContext>,
}

impl HttpHost {
    pub(crate) fn new(server: Arc<Server>) -> HttpHost {
        let ctx = Mutex::new(server.core.keyspace.thread_context());
        HttpHost { server, ctx }
    }

    /// Whether protected mode refuses the client: as for RESP, whose connections from elsewhere are refused
    /// then, whatever their user.
    fn is_protected_from(&self, client: &Client) -> bool {
        let is_open = self.server.acl.default_user().is_open();
        is_open && self.server.core.settings().protected_mode && !client.is_loopback
    }

    fn record_refusal(&self, user: &[u8], client: &Client) {
        let now_ms = clock::unix_ms();
        let refusal = Refusal {
            reason: Reason::Auth,
            context: "http",
            object: b"AUTH".to_vec(),
            user: user.to_vec(),
            client: format!("addr={} http", client.address).into_bytes(),
            now_ms,
        };
        self.server.acl.log.note(refusal, self.server.core.settings().acllog_max_len);
    }
}

impl Host for HttpHost {
    fn settings(&self) -> Arc<Settings> {
        self.server.core.settings()
    }

    fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.server.tls.contexts().map(|contexts| contexts.http.clone())
    }

    fn log_in(&self, credentials: Option<&Credentials>, client: &Client) -> Option<Arc<User>> {
        if self.is_protected_from(client) {
            return None;
        }
        let Some(Credentials { user: name, password }) = credentials else {
            return self.server.acl.user(DEFAULT).filter(|user| user.is_open());
        };
        let user = self.server.acl.user(name).filter(|user| user.admits(password));
        if user.is_none() {
            self.record_refusal(name, client);
        }
        user
    }

    fn renewed(&self, user: &User, client: &Client) -> Option<Arc<User>> {
        let present = self.server.acl.current(&user.who)?;
        let is_kept = present.is_enabled() && present.has_passwords_of(user);
        (is_kept && !self.is_protected_from(client)).then_some(present)
    }

    fn connect(&self, user: &Arc<User>, client: &Client) -> io::Result<UnixStream> {
        let (server, hub) = (&self.server, &self.server.hub);
        if hub.clients.count() >= server.core.settings().maxclients as usize {
            hub.rejected_connections.fetch_add(1, Relaxed);
            return Err(io::Error::other("max number of clients reached"));
        }
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let (id, fd, now_ms) = (hub.clients.next_id(), theirs.as_raw_fd(), clock::unix_ms());
        let (address, local_address) = (client.address.clone(), client.local_address.clone());
        let info = Arc::new(ClientInfo::new(id, address, local_address, fd, false, now_ms));
        *info.lib_name.lock() = LIBRARY.to_vec();
        info.is_http.store(true, Relaxed);
        hub.clients.add(info.clone());
        let mut session = Session::of_new_connection(info, &server.acl);
        session.become_user(Access::of_user(&server.acl, user.clone()));
        let connection = Box::new(Connection::new(theirs.into(), session));
        let fewest = server.inboxes.iter().min_by_key(|inbox| inbox.connections.load(Relaxed));
        let inbox = fewest.expect("there is at least one worker");
        inbox.connections.fetch_add(1, Relaxed);
        inbox.post(Message::Adopt(connection));
        Ok(ours)
    }

    fn command_kind(&self, args: &[Vec<u8>]) -> CommandKind {
        let is =
            |at: usize, word: &str| args.get(at).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
        // An unknown command, or one without a name, gets its error from the worker.
        let Some(id) = args.first().and_then(|name| self.server.table.find(name)) else {
            return CommandKind::Plain;
        };
        let row = table().row(id);
        match (row.group, row.name) {
            (_, "COMMAND" | "PING" | "ECHO" | "PUBLISH" | "SPUBLISH" | "PUBSUB") => CommandKind::Plain,
            (_, "MONITOR" | "SYNC" | "PSYNC" | "REPLCONF") => CommandKind::Unfit,
            (_, "CLIENT") if is(1, "REPLY") => CommandKind::Unfit,
            (_, "CLIENT" | "SELECT" | "READONLY" | "READWRITE" | "ASKING" | "HIMPORT") => {
                CommandKind::Stateful
            }
            (Group::PubSub | Group::Transaction | Group::Connection, _) => CommandKind::Unfit,
            _ => CommandKind::Plain,
        }
    }

    fn permits(&self, user: &User, command: &str) -> bool {
        let args = OwnedArgs::new(command.split('|').map(str::as_bytes));
        let args = args.as_args();
        let databases = Databases { current: 0, count: self.server.core.keyspace.databases() as u32 };
        table().find_full(command.as_bytes()).is_some_and(|id| user.check(id, &args, databases).is_ok())
    }

    fn unready(&self) -> Option<&'static str> {
        let blockers = self.server.core.blockers.any();
        if self.server.core.stopping.load(Acquire) || self.server.persist.ending.is_under_way() {
            Some("shutting down")
        } else if blockers.contains(Blockers::LOADING) {
            Some("loading data")
        } else if blockers.contains(Blockers::STALE) {
            Some("the link to the primary is down")
        } else {
            None
        }
    }

    fn metrics(&self, exposition: &mut Exposition) {
        let (server, mut ctx) = (&self.server, self.ctx.lock());
        let keyspace = &server.core.keyspace;
        // A script, DEBUG RELOAD or FLUSHALL may keep the gate closed, while health checks need the thread.
        let began = Instant::now();
        if keyspace.enter_unless(&mut ctx, || began.elapsed() >= GATE_TIME_MAX) {
            metrics::write(server, &keyspace.hold_none(&mut ctx), exposition);
            keyspace.leave(&mut ctx);
        } else {
            metrics::write(server, &keyspace.hold_outside(&mut ctx), exposition);
        }
    }

    fn series(&self, from_ms: i64, to_ms: i64, points: usize) -> Vec<u8> {
        recorder::series_json(&self.server.recorder, from_ms, to_ms, points)
    }

    fn events(&self, from_ms: i64, to_ms: i64) -> Vec<u8> {
        recorder::events_json(&self.server.recorder, from_ms, to_ms)
    }

    fn findings(&self, from_ms: i64, to_ms: i64) -> Vec<u8> {
        recorder::findings_json(&self.server.recorder, from_ms, to_ms)
    }

    fn slots(&self, db: usize) -> Option<Vec<u32>> {
        let keyspace = &self.server.core.keyspace;
        let (mut ctx, began) = (self.ctx.lock(), Instant::now());
        if db >= keyspace.databases() {
            return Some(Vec::new());
        }
        if !keyspace.enter_unless(&mut ctx, || began.elapsed() >= GATE_TIME_MAX) {
            return None;
        }
        let lens = keyspace.slot_lens(&ctx, db);
        keyspace.leave(&mut ctx);
        Some(lens)
    }

    fn capture(&self) -> Vec<u8> {
        self.server.capture.state().to_string().into_bytes()
    }

    fn start_capture(&self, seconds: u32) -> Result<(), String> {
        Capture::start(&self.server, seconds)
    }

    fn captured_page(&self) -> Option<Arc<Vec<u8>>> {
        self.server.capture.page()
    }
}
