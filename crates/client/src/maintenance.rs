//! Messages about maintenance, to clients that have asked for them (CLIENT MAINT_NOTIFICATIONS).
//!
//! | message | sent | clients |
//! |---|---|---|
//! | `FAILING_OVER number seconds shards` | a change of roles begins | wait longer for replies |
//! | `FAILED_OVER number shards` | it has ended, or was given up | wait as long as before |
//! | `MIGRATING number seconds shards`, `MIGRATED number shards` | the same for a move of data | the same |
//! | `MOVING number seconds endpoint` | another server takes the place of this server | connect to it |
//!
//! All are push messages of RESP3; a client of RESP2 gets none. `number` grows, and is the same for all
//! clients of an announcement: a pool with several connections acts on it once. `shards` is [`SHARDS`];
//! Lettuce warns of a message without it. [`announce`] is the only place that sends them, from any thread.
//!
//! A client that came over TLS is told of an endpoint for TLS alone, other clients of any other. A client of
//! a Unix socket is never told to move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenkeel_command::error::Error;
use evenkeel_resp::value::Value;
use parking_lot::Mutex;

use crate::clients::ClientInfo;
use crate::hub::Hub;
use crate::pubsub::push_queue::{self, PushMessage};

/// Seconds for which clients are asked to use the new endpoint for new connections. Afterwards redis-py dials
/// the old address again, and is sent on; until then a timer of its own keeps a program alive that would end.
pub const MOVE_SECONDS: u64 = 15;

/// The shards that a message is about, as text: all data of this server.
const SHARDS: &str = "0";

/// The request of a client (CLIENT MAINT_NOTIFICATIONS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Asked {
    Nothing,
    /// MOVING names the endpoint.
    Endpoint,
    /// MOVING names no endpoint: the client connects again to the name that it knows.
    NoEndpoint,
}

impl Asked {
    pub fn of(client: &ClientInfo) -> Asked {
        match client.maintenance.load(Relaxed) {
            1 => Asked::Endpoint,
            2 => Asked::NoEndpoint,
            _ => Asked::Nothing,
        }
    }
}

/// A server that takes the place of this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    pub is_tls: bool,
}

impl Endpoint {
    fn text(&self) -> String {
        let Endpoint { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Whether the client can connect to it as it has connected here.
    fn suits(&self, client: &ClientInfo) -> bool {
        !client.is_unix && self.is_tls == (client.tls_size.load(Relaxed) > 0)
    }
}

/// An announcement.
#[derive(Clone, Debug)]
pub enum Notice {
    FailingOver { seconds: u64 },
    FailedOver,
    Migrating { seconds: u64 },
    Migrated,
    Moving(Endpoint),
}

/// The numbers of announcements, and the last endpoint.
#[derive(Default)]
pub struct Maintenance {
    number: AtomicU64,
    moved: Mutex<Option<(u64, Endpoint)>>,
}

/// Sends the announcement to all clients that have asked. Returns soon: workers send the messages.
pub fn announce(hub: &Hub, notice: &Notice) {
    let number = hub.maintenance.number.fetch_add(1, Relaxed) + 1;
    if let Notice::Moving(endpoint) = notice {
        *hub.maintenance.moved.lock() = Some((number, endpoint.clone()));
    }
    for client in hub.clients.list() {
        let is_begin = matches!(notice, Notice::FailingOver { .. } | Notice::Migrating { .. });
        if is_begin {
            client.is_moved.store(false, Relaxed);
        }
        send(&client, number, notice);
    }
    push_queue::notify_workers(hub);
}

/// Tells a client whose connection is about to end to connect again to the same address, if it came over TLS
/// and has asked.
pub fn send_reconnect(hub: &Hub, client: &Arc<ClientInfo>) {
    let number = hub.maintenance.number.fetch_add(1, Relaxed) + 1;
    let Some((host, port)) = client.local_address.rsplit_once(':') else { return };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let Ok(port) = port.parse() else { return };
    send(client, number, &Notice::Moving(Endpoint { host, port, is_tls: true }));
}

/// Tells a client that asks now of a move to `target` that was announced before.
pub fn repeat_move(hub: &Hub, client: &Arc<ClientInfo>, target: (&str, u16)) {
    let moved = hub.maintenance.moved.lock().clone();
    if let Some((number, endpoint)) = moved
        && (&*endpoint.host, endpoint.port) == target
    {
        send(client, number, &Notice::Moving(endpoint));
    }
}

/// Returns the refusal of a command that the client has to repeat at `target`, if the client was told to move
/// there.
///
/// READONLY would be an error of the command for good. LOADING is a passing state for client libraries:
/// redis-py and go-redis repeat the command, and by then they have moved.
pub fn refusal(hub: &Hub, client: &ClientInfo, target: (&str, u16)) -> Option<Error> {
    let has_to_move = client.is_moved.load(Relaxed);
    let moved = if has_to_move { hub.maintenance.moved.lock().clone() } else { None };
    let (_, endpoint) = moved.filter(|(_, endpoint)| (&*endpoint.host, endpoint.port) == target)?;
    let place = endpoint.text();
    Some(Error::text(format!("LOADING {place} has taken over: repeat the command there")))
}

fn send(client: &Arc<ClientInfo>, number: u64, notice: &Notice) {
    let asked = Asked::of(client);
    if asked == Asked::Nothing || !client.is_resp3() {
        return;
    }
    let number = Value::Int(number as i64);
    let items = match notice {
        Notice::FailingOver { seconds } => begin("FAILING_OVER", number, *seconds),
        Notice::FailedOver => vec![word("FAILED_OVER"), number, word(SHARDS)],
        Notice::Migrating { seconds } => begin("MIGRATING", number, *seconds),
        Notice::Migrated => vec![word("MIGRATED"), number, word(SHARDS)],
        Notice::Moving(endpoint) => {
            let place = match asked {
                Asked::NoEndpoint => Value::Null,
                _ if !endpoint.suits(client) => return,
                _ => Value::bulk(endpoint.text()),
            };
            client.is_moved.store(true, Relaxed);
            vec![word("MOVING"), number, Value::Int(MOVE_SECONDS as i64), place]
        }
    };
    let mut resp3 = Vec::new();
    Value::Push(items).encode(&mut resp3);
    push_queue::put(client, PushMessage::Unlike { resp2: None, resp3: resp3.into() }, u64::MAX);
}

fn begin(name: &str, number: Value, seconds: u64) -> Vec<Value> {
    vec![word(name), number, Value::Int(seconds as i64), word(SHARDS)]
}

fn word(text: &str) -> Value {
    Value::bulk(text)
}
