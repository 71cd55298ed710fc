//! The HTTP side of the server: metrics, health checks, and commands over REST.
//!
//! | path | credentials | reply |
//! |---|---|---|
//! | `/metrics` | a user that may run INFO; none with `http-metrics-public` | counters, for Prometheus |
//! | `/livez` | none | 200 while the process answers |
//! | `/readyz` | none | 200 if clients can be served; else 503 with the reason |
//! | `/`, `/console/...`, with `http-console` | none | the page of the console ([`console`]) |
//! | `/api/...`, with `http-console` | a session | the interface of the console ([`api`]) |
//! | any other, with `http-rest` | a user | the replies to commands, as JSON ([`rest`]) |
//!
//! hyper speaks HTTP/1.1 and HTTP/2; a single thread, `http`, runs all connections as tasks of a tokio
//! runtime. The thread is started by the first `http-port`. It takes no slot lock and stays inside the gate
//! for the time of a few sums, so no client of the data waits for it, however slow or hostile an HTTP client
//! is. [`connections`] bounds the number of connections and the time of each.
//!
//! | file | |
//! |---|---|
//! | `body.rs` | the body of a reply while it is sent |
//! | `connections.rs` | the open connections: the limit, and the end of idle connections |
//! | `credentials.rs` | `Authorization`, and the names in `Host` |
//! | `worker_connection.rs` | connections to the workers, for commands |
//! | `rest.rs` | commands in requests, and their replies as JSON |
//! | `sessions.rs` | sessions of the console, and how often logins fail |
//! | `console.rs` | the page of the console, whose files are in the folder `console` |
//! | `api.rs` | the interface of the console |
//! | `events.rs` | messages of subscriptions and of MONITOR, as server-sent events |
//! | `exposition.rs` | the text formats of Prometheus and OpenMetrics |
//! | `routes.rs` | requests and their replies |
//! | `thread.rs` | the thread, its listeners, TLS |

mod api;
mod body;
mod connections;
mod console;
mod credentials;
mod events;
mod exposition;
mod rest;
mod routes;
mod sessions;
mod thread;
mod worker_connection;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use evenkeel_acl::User;
use evenkeel_config::Settings;
use evenkeel_net::listener::{Listener, Listeners, Protocol};
use parking_lot::Mutex;
use rustls::ServerConfig;

/// Checks for the fuzz targets (folder `fuzz` of the repository).
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::api::fuzzing::{body_of_page, origin_and_cookies, query_of_page, reply_to_page};
    pub use crate::credentials::fuzzing::{authorization, host_names};
    pub use crate::events::fuzzing::event_of_message;
    pub use crate::rest::fuzzing::{reply_of_rest, rest_request};
    pub use crate::sessions::fuzzing::session_steps;
}

pub use credentials::Credentials;
pub use exposition::{Exposition, Kind, Number};

use thread::Signals;

/// The parts of the server that HTTP needs. Called on the `http` thread.
pub trait Host: Send + Sync + 'static {
    fn settings(&self) -> Arc<Settings>;

    /// Returns the present configuration for TLS; `None` before the files were read.
    fn tls(&self) -> Option<Arc<ServerConfig>>;

    /// Returns the user that these credentials prove; without credentials the default user, if it needs no
    /// password. In protected mode, while the default user needs none, only clients on this machine have a
    /// user. Records a refusal in the ACL LOG.
    fn log_in(&self, credentials: Option<&Credentials>, client: &Client) -> Option<Arc<User>>;

    /// Returns the present state of a user that has logged in before. `None`: it was deleted, was turned off,
    /// or has other passwords, or protected mode refuses the client.
    fn renewed(&self, user: &User, client: &Client) -> Option<Arc<User>>;

    /// Whether the user may run this command, or `COMMAND|SUBCOMMAND`, without keys.
    fn permits(&self, user: &User, command: &str) -> bool;

    /// Opens a connection to a worker, on which this user is logged in. Fails if there are `maxclients`
    /// clients.
    fn connect(&self, user: &Arc<User>, client: &Client) -> io::Result<UnixStream>;

    fn command_kind(&self, args: &[Vec<u8>]) -> CommandKind;

    /// Returns the reason why clients cannot be served; `None`: they can.
    fn unready(&self) -> Option<&'static str>;

    /// Writes all metrics. Takes milliseconds at most.
    fn metrics(&self, exposition: &mut Exposition);

    /// Returns the rows of the recorder within this span, as JSON. `points` bounds their number.
    fn series(&self, from_ms: i64, to_ms: i64, points: usize) -> Vec<u8>;

    /// Returns the events within this span, as JSON.
    fn events(&self, from_ms: i64, to_ms: i64) -> Vec<u8>;

    /// Returns the findings about this span, as JSON.
    fn findings(&self, from_ms: i64, to_ms: i64) -> Vec<u8>;

    /// Returns the number of keys of each slot of a database; empty without keys, or without such a database.
    /// `None`: the keyspace is closed, as by a long script.
    fn slots(&self, db: usize) -> Option<Vec<u32>>;

    /// Returns as JSON whether evenkeel-doctor can look at this process, and how the last capture ended.
    fn capture(&self) -> Vec<u8>;

    /// Starts evenkeel-doctor on this process. Fails with the reason, if that is impossible.
    fn start_capture(&self, seconds: u32) -> Result<(), String>;

    /// Returns the page of the last capture.
    fn captured_page(&self) -> Option<Arc<Vec<u8>>>;
}

/// Whether a command fits a request of HTTP, which has a single reply and no connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    Plain,
    /// It leaves state on its connection, as SELECT does.
    Stateful,
    /// It has no reply, or more than one, or it is for connections: SUBSCRIBE, MULTI, AUTH.
    Unfit,
}

/// The client of a connection.
#[derive(Clone, Debug)]
pub struct Client {
    /// `address:port`.
    pub address: String,
    /// `address:port` of this server.
    pub local_address: String,
    pub is_loopback: bool,
}

/// The listeners for HTTP, and the thread that serves their connections once there are any.
#[derive(Default)]
pub struct Http {
    listeners: Arc<Listeners>,
    signals: Arc<Signals>,
    is_started: Mutex<bool>,
}

impl Http {
    /// Listens on the addresses of `settings` from now on. Errors name the address; then nothing has changed.
    /// The thread gets its `host` once, when it starts.
    pub fn follow(&self, settings: &Settings, host: impl FnOnce() -> Arc<dyn Host>) -> Result<(), String> {
        let mut is_started = self.is_started.lock();
        self.listeners.follow(Protocol::Http, settings)?;
        if !*is_started && !self.listeners.all().is_empty() {
            thread::start(host(), self.listeners.clone(), self.signals.clone())
                .map_err(|error| format!("Cannot start the HTTP thread: {error}"))?;
            *is_started = true;
        }
        self.signals.changed.notify_one();
        Ok(())
    }

    /// Returns the open listeners.
    pub fn listeners(&self) -> Vec<Arc<Listener>> {
        self.listeners.all()
    }

    /// Closes the listeners, and soon after all connections.
    pub fn stop(&self) {
        self.listeners.all().iter().for_each(|listener| listener.stop());
        self.listeners.close();
        self.signals.stopped.notify_one();
    }
}
