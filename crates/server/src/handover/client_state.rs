//! A client on its way to another process: its session, its received bytes that have not run, its replies
//! that have not been sent.
//!
//! A command that waits (BLPOP) travels as its arguments, with the time that is left, and runs again: nothing
//! has changed meanwhile, so it waits again. Commands run again in the order in which they began to wait.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::server::Server;
use crate::worker::connection::Connection;
use evenkeel_acl::Access;
use evenkeel_client::clients::{ClientInfo, Names};
use evenkeel_client::pubsub::SubscriptionKind;
use evenkeel_client::session::{Caching, Multi, ReplyMode, Session, Watching};
use evenkeel_client::tracking::mode;
use evenkeel_client::waiting::On;
use evenkeel_command::args::OwnedArgs;
use evenkeel_command::table::table;
use evenkeel_config::WriteAcks;
use evenkeel_resp::value::encode_command;
use evenkeel_scripting::declared::flags_of_call;
use evenkeel_store::{ThreadContext, Watch};

/// See the module's text. Times are in milliseconds since the Unix epoch.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClientState {
    pub(super) id: u64,
    address: String,
    local_address: String,
    is_unix: bool,
    created_ms: u64,
    active_ms: u64,
    db: u32,
    resp: u8,
    name: ByteBuf,
    lib_name: ByteBuf,
    lib_version: ByteBuf,
    /// `None`: it has not authenticated.
    user: Option<ByteBuf>,
    was_known: bool,
    net_in: u64,
    net_out: u64,
    commands: u64,
    no_evict: bool,
    no_touch: bool,
    /// CLIENT WRITE-ACKS: the count, and whether all nodes in sync count.
    #[serde(default)]
    write_acks: (u8, bool),
    redirects: bool,
    reads_replica: bool,
    imports: bool,
    /// CLIENT MAINT_NOTIFICATIONS.
    maintenance: u8,
    closing: bool,
    has_written: bool,
    multi: Option<MultiState>,
    pub(super) watching: Option<WatchState>,
    pub(super) waiting: Option<WaitState>,
    channels: Vec<ByteBuf>,
    patterns: Vec<ByteBuf>,
    shards: Vec<ByteBuf>,
    /// CLIENT TRACKING: the bits of its mode, the client to which it is redirected, its prefixes.
    pub(super) tracking: Option<(u32, u64, Vec<ByteBuf>)>,
    caching: u8,
    asking: u8,
    monitors: bool,
    reply_mode: u8,
    fieldsets: Vec<(ByteBuf, Vec<ByteBuf>)>,
    input: ByteBuf,
    unsent: ByteBuf,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct MultiState {
    queue: Vec<Vec<ByteBuf>>,
    failed: bool,
    selected: Option<u32>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct WatchState {
    keys: Vec<(u32, ByteBuf)>,
    is_touched: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct WaitState {
    /// The order in which clients began to wait.
    pub(super) ticket: u64,
    args: Vec<ByteBuf>,
    /// `None`: it waits for ever.
    left_ms: Option<u64>,
    is_mute: bool,
}

fn bytes(bytes: &[u8]) -> ByteBuf {
    ByteBuf::from(bytes.to_vec())
}

fn words(args: &OwnedArgs) -> Vec<ByteBuf> {
    args.as_args().from(0).map(bytes).collect()
}

fn owned(words: &[ByteBuf]) -> OwnedArgs {
    OwnedArgs::new(words.iter().map(|word| &word[..]))
}

/// Milliseconds until a deadline, at least one.
fn left_ms(deadline: Instant) -> u64 {
    (deadline.saturating_duration_since(Instant::now()).as_millis() as u64).max(1)
}

fn number_of(caching: Caching) -> u8 {
    match caching {
        Caching::Unsaid => 0,
        Caching::Said => 1,
        Caching::Holds => 2,
    }
}

fn caching_of(number: u8) -> Caching {
    match number {
        1 => Caching::Said,
        2 => Caching::Holds,
        _ => Caching::Unsaid,
    }
}

impl ClientState {
    /// The state of a connection, which its worker has frozen. The error: why it cannot travel yet.
    pub(crate) fn of(connection: &Connection) -> Result<ClientState, &'static str> {
        let (session, client) = (&connection.session, connection.client());
        if connection.is_held_back() {
            return Err("a reply waits for the disk");
        }
        let waiting = match session.waiting.as_deref() {
            None => None,
            Some(waiting) => match &waiting.on {
                On::Long(_) => return Err("a long command is running"),
                On::Keys(blocked, _) if blocked.claim.is_over() => return Err("a reply is on its way"),
                On::Keys(blocked, _) => Some(WaitState {
                    ticket: blocked.ticket,
                    args: words(&blocked.args),
                    left_ms: waiting.deadline.map(left_ms),
                    is_mute: waiting.mute,
                }),
            },
        };
        let names = |kind| {
            let subscriptions = session.subscriptions.as_deref();
            subscriptions.map_or(Vec::new(), |them| them.names(kind).map(bytes).collect())
        };
        let tracked = &client.tracked;
        let tracking = tracked.has(mode::ON).then(|| {
            let prefixes = tracked.prefixes.lock().iter().map(|prefix| bytes(prefix)).collect();
            (tracked.mode.load(Relaxed), tracked.redirect.load(Relaxed), prefixes)
        });
        let multi = session.multi.as_ref().map(|multi| MultiState {
            queue: multi.queue.iter().map(|queued| words(&queued.args)).collect(),
            failed: multi.failed,
            selected: multi.selected,
        });
        let watching = session.watching.as_ref().map(|watching| WatchState {
            keys: watching.keys.iter().map(|(db, key)| (*db, bytes(key))).collect(),
            is_touched: watching.watch.is_touched(),
        });
        let is_authenticated = session.access.is_authenticated();
        let user = session.access.who().filter(|_| is_authenticated).map(|who| bytes(&who.name));
        let fieldsets = session.fieldsets.as_deref().into_iter().flat_map(|fieldsets| fieldsets.iter());
        let fieldsets =
            fieldsets.map(|(name, fields)| (bytes(name), fields.iter().map(|field| bytes(field)).collect()));
        Ok(ClientState {
            id: client.id,
            address: client.address.clone(),
            local_address: client.local_address.clone(),
            is_unix: client.is_unix,
            created_ms: client.created_ms,
            active_ms: client.active_ms.load(Relaxed),
            db: session.db,
            resp: client.resp.load(Relaxed),
            name: bytes(&client.name.lock()),
            lib_name: bytes(&client.lib_name.lock()),
            lib_version: bytes(&client.lib_version.lock()),
            user,
            was_known: session.was_known,
            net_in: client.net_in.load(Relaxed),
            net_out: client.net_out.load(Relaxed),
            commands: client.commands.load(Relaxed),
            no_evict: client.no_evict.load(Relaxed),
            no_touch: session.no_touch,
            write_acks: (session.write_acks.count, session.write_acks.in_sync),
            redirects: session.redirects,
            reads_replica: client.reads_replica.load(Relaxed),
            imports: session.imports,
            maintenance: client.maintenance.load(Relaxed),
            closing: session.closing,
            has_written: session.last_record > 0,
            multi,
            watching,
            waiting,
            channels: names(SubscriptionKind::Channel),
            patterns: names(SubscriptionKind::Pattern),
            shards: names(SubscriptionKind::Shard),
            tracking,
            caching: number_of(session.caching),
            asking: number_of(session.asking),
            monitors: session.monitors,
            reply_mode: match session.reply_mode {
                ReplyMode::On => 0,
                ReplyMode::Off => 1,
                ReplyMode::SkipNext => 2,
                ReplyMode::SkipThis => 3,
            },
            fieldsets: fieldsets.collect(),
            input: bytes(connection.reader.unused()),
            unsent: ByteBuf::from(connection.unsent()),
        })
    }

    /// Makes the connection, and its entry in the registry, except for watched keys, which
    /// [`WatchState::watch`] adds. The error: the reason to close it.
    pub(super) fn restore(self, server: &Arc<Server>, socket: OwnedFd) -> Result<Box<Connection>, String> {
        let fd = socket.as_raw_fd();
        let (address, local) = (self.address, self.local_address);
        let info = ClientInfo::new(self.id, address, local, fd, self.is_unix, self.created_ms);
        let client = Arc::new(info);
        for (counter, value) in [
            (&client.active_ms, self.active_ms),
            (&client.net_in, self.net_in),
            (&client.net_out, self.net_out),
            (&client.commands, self.commands),
        ] {
            counter.store(value, Relaxed);
        }
        client.resp.store(self.resp, Relaxed);
        *client.name.lock() = self.name.into_vec();
        *client.lib_name.lock() = self.lib_name.into_vec();
        *client.lib_version.lock() = self.lib_version.into_vec();
        client.no_evict.store(self.no_evict, Relaxed);
        client.no_touch.store(self.no_touch, Relaxed);
        client.redirects.store(self.redirects, Relaxed);
        client.reads_replica.store(self.reads_replica, Relaxed);
        client.imports.store(self.imports, Relaxed);
        let mut session = Session::of_new_connection(client.clone(), &server.acl);
        if let Some(name) = &self.user {
            let user = server.acl.user(name).ok_or("its user is not known")?;
            session.become_user(Access::of_user(&server.acl, user));
        }
        session.was_known |= self.was_known;
        session.select(self.db);
        session.no_touch = self.no_touch;
        let (count, in_sync) = self.write_acks;
        session.write_acks = WriteAcks { count: count.min(WriteAcks::COUNT_MAX), in_sync };
        session.redirects = self.redirects;
        session.imports = self.imports;
        client.maintenance.store(self.maintenance, Relaxed);
        session.is_notified = self.maintenance != 0;
        session.closing = self.closing;
        if self.has_written {
            // Its writes are in the journal of the former process, and all of these are older than this.
            session.last_record = server.core.keyspace.journal.last();
        }
        session.caching = caching_of(self.caching);
        session.asking = caching_of(self.asking);
        session.reply_mode = match self.reply_mode {
            1 => ReplyMode::Off,
            2 => ReplyMode::SkipNext,
            3 => ReplyMode::SkipThis,
            _ => ReplyMode::On,
        };
        if let Some(multi) = self.multi {
            session.multi = Some(queue_of(server, &multi, &client)?);
        }
        let fieldsets = self.fieldsets.iter().map(|(name, fields)| {
            (&name[..], fields.iter().map(|field| field.to_vec().into_boxed_slice()).collect())
        });
        fieldsets.for_each(|(name, fields)| session.change_fieldsets(|all| all.set(name, fields)));
        server.hub.clients.add(client.clone());
        subscribe(
            server,
            &mut session,
            [
                (SubscriptionKind::Channel, &self.channels),
                (SubscriptionKind::Pattern, &self.patterns),
                (SubscriptionKind::Shard, &self.shards),
            ],
        );
        if self.monitors {
            server.hub.monitors.add(&client);
            session.monitors = true;
        }
        let mut input = Vec::new();
        if let Some(waiting) = self.waiting {
            let args: Vec<&[u8]> = waiting.args.iter().map(|arg| &arg[..]).collect();
            input = encode_command(&args);
            session.resumes_wait = Some(waiting.left_ms);
            if waiting.is_mute && session.reply_mode == ReplyMode::On {
                session.reply_mode = ReplyMode::SkipNext;
            }
        }
        input.extend_from_slice(&self.input);
        session.receives_push = session.subscriptions.is_some()
            || session.monitors
            || session.is_notified
            || session.asking != Caching::Unsaid;
        let mut connection = Box::new(Connection::new(socket, session));
        connection.reader.keep(&input);
        connection.is_ready = true;
        if !self.unsent.is_empty() {
            connection.enqueue(vec![self.unsent.into_vec().into()]);
        }
        Ok(connection)
    }
}

fn queue_of(server: &Server, state: &MultiState, client: &ClientInfo) -> Result<Multi, String> {
    let mut multi = Multi { failed: state.failed, selected: state.selected, ..Multi::default() };
    client.multi_len.store(0, Relaxed);
    for words in &state.queue {
        let args = owned(words);
        let id = server.table.find_call(&args.as_args());
        let id = id.ok_or("it has queued a command that is not known here")?;
        let flags = flags_of_call(table().row(id), &args.as_args(), &server.scripts);
        multi.push((id, flags), args, client);
    }
    Ok(multi)
}

impl WatchState {
    /// Has the session watch the keys.
    pub(super) fn watch(&self, server: &Server, ctx: &mut ThreadContext, session: &mut Session) {
        let watch = Arc::new(Watch::default());
        let (keyspace, mut keys) = (&server.core.keyspace, Vec::new());
        keyspace.enter(ctx);
        let mut guard = keyspace.hold_none(ctx);
        for (db, name) in &self.keys {
            let key = keyspace.key(*db, name);
            guard.visit(key.place, |guard| {
                if guard.watch(&key, &watch) {
                    keys.push((*db, name.to_vec().into_boxed_slice()));
                }
            });
            session.client.names.watched.fetch_add(Names::cost(name), Relaxed);
        }
        drop(guard);
        keyspace.leave(ctx);
        if self.is_touched {
            watch.touch();
        }
        *session.client.watch.lock() = Arc::downgrade(&watch);
        session.client.watched.store(keys.len() as u32, Relaxed);
        session.watching = Some(Watching { watch, keys });
    }
}

fn subscribe(server: &Server, session: &mut Session, all: [(SubscriptionKind, &Vec<ByteBuf>); 3]) {
    if all.iter().all(|(_, names)| names.is_empty()) {
        return;
    }
    let (client, mut subscriptions) =
        (session.client.clone(), session.subscriptions.take().unwrap_or_default());
    for (kind, names) in all {
        for name in names {
            if subscriptions.add(kind, name) {
                server.hub.pubsub.join(kind, name, &client, || {});
            }
        }
    }
    subscriptions.note(&client);
    session.subscriptions = Some(subscriptions);
}
