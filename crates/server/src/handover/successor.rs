//! The side that takes over: follows the predecessor as a replica, gets its clients, and serves when the
//! predecessor has let go of everything.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use super::CHANNEL_VARIABLE;
use super::ClientState;
use super::client_state::WatchState;
use super::keeper::{self, Keeper};
use super::messages::{Begin, FORMAT, State, ToPredecessor, ToSuccessor, receive, send};
use crate::server::{Identity, Server};
use crate::startup::VERSION;
use crate::worker::connection::Connection;
use crate::worker::inbox::Message;
use evenkeel_client::tracking::mode;
use evenkeel_config::{Settings, Transferred};
use evenkeel_core::pause::Pauser;
use evenkeel_net::channel::Channel;
use evenkeel_net::listener::{self, Passed};
use evenkeel_persist::lock::What;
use evenkeel_persist::{load, rewrite};
use evenkeel_replication::handover::Follows;
use evenkeel_replication::link::Target;
use evenkeel_runtime::clock;
use evenkeel_scripting::machine;
use evenkeel_slab::Attached;
use evenkeel_store::PassedKeyspace;

/// Longest time for which other clients wait until the clients that have waited for a key wait again.
const WAITS_MAX: Duration = Duration::from_millis(100);

/// The socket of the stream, and that of a keeper.
type Sockets = (OwnedFd, Option<OwnedFd>);

/// The predecessor's settings here, and its memory if this process takes that over.
struct Begun {
    begin: Begin,
    sockets: Sockets,
    settings: Settings,
    memory: Option<Attached>,
}

/// The predecessor, before this process has a server.
pub(crate) struct Predecessor {
    channel: Channel,
    begun: Begun,
}

impl Predecessor {
    /// The predecessor that has started this process, if any. `launched`: the settings of the command line.
    ///
    /// # Errors
    /// The reason why this process cannot take over; the predecessor has been told.
    pub(crate) fn of_this_process(launched: &Settings) -> Result<Option<Predecessor>, String> {
        let Some(number) = std::env::var_os(CHANNEL_VARIABLE) else { return Ok(None) };
        // SAFETY: no other thread runs yet.
        unsafe { std::env::remove_var(CHANNEL_VARIABLE) };
        let descriptor = number.to_str().and_then(|number| number.parse::<RawFd>().ok());
        let descriptor =
            descriptor.filter(|fd| *fd > 2).ok_or(format!("{CHANNEL_VARIABLE} is no descriptor"))?;
        // SAFETY: `fcntl` looks at the number. With the flag, no program started later gets the descriptor.
        if unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
            return Err(format!("{CHANNEL_VARIABLE} is not open"));
        }
        // SAFETY: the process that has started this one has left it open for this purpose alone.
        let channel = Channel::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        match Predecessor::begin(&channel, launched) {
            Ok(begun) => {
                if begun.memory.is_some() {
                    send(&channel, &ToPredecessor::Mapped, &[]).map_err(|error| lost(&error))?;
                }
                Ok(Some(Predecessor { channel, begun }))
            }
            Err(reason) => {
                let _ = send(&channel, &ToPredecessor::Refused(reason.clone()), &[]);
                Err(reason)
            }
        }
    }

    fn begin(channel: &Channel, launched: &Settings) -> Result<Begun, String> {
        let (message, sockets) = receive::<ToSuccessor>(channel).map_err(|error| lost(&error))?;
        let mut sockets = sockets.into_iter();
        let (ToSuccessor::Begin(begin), Some(socket)) = (message, sockets.next()) else {
            return Err("the former process begins with another message".into());
        };
        if begin.format != FORMAT {
            return Err(format!("the hand-over has format {}, and this program has {FORMAT}", begin.format));
        }
        let directives: Vec<Transferred> = begin
            .directives
            .iter()
            .map(|one| Transferred {
                name: one.name.clone(),
                value: one.value.to_vec(),
                is_default: one.is_default,
            })
            .collect();
        let renamed: Vec<(Vec<u8>, Vec<u8>)> =
            begin.renamed.iter().map(|(from, to)| (from.to_vec(), to.to_vec())).collect();
        if renamed != launched.rename_command {
            return Err(
                "the configuration has other 'rename-command' directives than the running server".into()
            );
        }
        let settings = launched.with_transferred(&directives)?;
        let keeper = if begin.keeper == Keeper::Another { sockets.next() } else { None };
        let memory = attach(&begin, sockets.next());
        Ok(Begun { begin: *begin, sockets: (socket, keeper), settings, memory })
    }

    /// The settings until this process serves: it touches no file, and loads the data into memory alone.
    pub(crate) fn settings_meanwhile(&self) -> Settings {
        self.begun.settings.to_follow_in_memory()
    }

    pub(crate) fn identity(&self) -> Identity {
        let begin = &self.begun.begin;
        let start_ms = self.begun.memory.is_some().then_some(begin.start_ms);
        Identity { run_id: begin.run_id.clone(), hash_secret: begin.hash_secret, start_ms }
    }

    /// Takes over. When this returns, this process serves.
    pub(crate) fn take_over(
        self,
        server: &Arc<Server>,
        listen: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let Predecessor { channel, begun } = self;
        let Begun { begin, sockets: (socket, keeper), settings, memory } = begun;
        let refuse = |reason: String| {
            let _ = send(&channel, &ToPredecessor::Refused(reason.clone()), &[]);
            reason
        };
        follow(server, &begin, socket, memory.as_ref()).map_err(refuse)?;
        let ready = ToPredecessor::Ready { version: VERSION.to_owned() };
        send(&channel, &ready, &[]).map_err(|error| lost(&error))?;
        let taken = take_sockets(server, &channel, &settings, memory).map_err(refuse)?;
        taken.serve(server, listen);
        match begin.keeper {
            Keeper::None => {}
            Keeper::Predecessor => keeper::follow(server, channel.into(), false),
            Keeper::Another => keeper.into_iter().for_each(|socket| keeper::follow(server, socket, true)),
        }
        Ok(())
    }
}

/// Maps the predecessor's memory, if both programs agree about what lies in it.
fn attach(begin: &Begin, file: Option<OwnedFd>) -> Option<Attached> {
    let (address, chunks) = begin.memory?;
    if begin.layout != evenkeel_store::LAYOUT_HASH {
        return None;
    }
    evenkeel_slab::attach(file?, evenkeel_slab::Passed { address, chunks }).ok()
}

fn lost(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            "the former process has ended".into()
        }
        _ => format!("the channel to the former process failed: {error}"),
    }
}

/// Takes over the users, the scripts and the data, and follows the stream.
/// With its memory, the data are only mapped.
fn follow(
    server: &Arc<Server>,
    begin: &Begin,
    socket: OwnedFd,
    memory: Option<&Attached>,
) -> Result<(), String> {
    server.acl.take_over(&begin.users, &server.core.settings())?;
    for (body, may_go) in &begin.scripts {
        let loaded = machine::with(&server.scripts, |machine| machine.script(&server.scripts, body, *may_go));
        if !matches!(loaded, Ok(Ok(_))) {
            log::warn!("A script of the former process is not valid here, and was left out");
        }
    }
    load::set_loading(&server.persist, false);
    server.replication.follow_predecessor(socket, memory.is_some());
    memory.into_iter().for_each(Attached::map_resident);
    loop {
        match server.replication.follows_predecessor() {
            Follows::UpToDate => return Ok(()),
            Follows::Ended => return Err("the data could not be loaded, see the server log".into()),
            Follows::Loading => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// What this process has when it may serve.
struct Taken {
    connections: Vec<(Option<u64>, Box<Connection>)>,
    /// The watched keys of connections, by their place in that list.
    watching: Vec<(usize, WatchState)>,
    tracking: Vec<(u64, u32, u64, Vec<Vec<u8>>)>,
    state: State,
}

/// Receives the sockets and goes on to the moment at which this process serves.
fn take_sockets(
    server: &Arc<Server>,
    channel: &Channel,
    settings: &Settings,
    memory: Option<Attached>,
) -> Result<Taken, String> {
    let (mut passed, mut clients) = (Vec::new(), Vec::new());
    let state = loop {
        let (message, sockets) = receive::<ToSuccessor>(channel).map_err(|error| lost(&error))?;
        match message {
            ToSuccessor::Listeners(names) if names.len() == sockets.len() => {
                let pairs = names.into_iter().zip(sockets);
                passed.extend(pairs.map(|(name, socket)| Passed { name, socket }));
            }
            ToSuccessor::Clients(states) if states.len() == sockets.len() => {
                clients.extend(states.into_iter().zip(sockets));
            }
            ToSuccessor::State(state) => break *state,
            _ => return Err("the former process sends another message than expected".into()),
        }
    };
    if server.replication.follows_predecessor() != Follows::UpToDate {
        return Err("the stream of writes has ended".into());
    }
    if let Some(cluster) = &server.cluster {
        cluster.take_over(&state.cluster, settings)?;
    }
    server.hub.clients.skip_ids(state.last_client);
    let mut taken = Taken { connections: Vec::new(), watching: Vec::new(), tracking: Vec::new(), state };
    taken.restore(server, clients);
    send(channel, &ToPredecessor::Adopted, &[]).map_err(|error| lost(&error))?;
    let data = match receive::<ToSuccessor>(channel).map_err(|error| lost(&error))?.0 {
        ToSuccessor::Commit if memory.is_none() => None,
        ToSuccessor::CommitData(data) if memory.is_some() => Some(data),
        _ => return Err("the former process sends another message than expected".into()),
    };
    // From here on the predecessor serves nobody, unless this process refuses or ends.
    let real = settings.clone();
    let primary = taken.state.primary.clone().map(|(host, port)| Target { host, port });
    let changed = server.core.change_settings(|_| Ok::<_, std::convert::Infallible>(real));
    changed.unwrap_or_else(|never| match never {});
    take_files(server, &taken.state)?;
    server.replication.take_role(primary);
    listener::take_over(passed);
    // If the predecessor has ended meanwhile, this process has everything, and serves all the same.
    let _ = send(channel, &ToPredecessor::Serving, &[]);
    // Only now: until the predecessor knows that this process serves, it may go on with its memory.
    if let (Some(memory), Some(data)) = (memory, data) {
        take_data_over(server, memory, *data);
    }
    taken.watch(server);
    Ok(taken)
}

/// Takes the predecessor's memory over, with all keys.
fn take_data_over(server: &Server, memory: Attached, data: PassedKeyspace) {
    // SAFETY: the hash of the layouts is the same. No thread of the predecessor uses the memory since it has
    // sent `Commit`, and it ends.
    unsafe { memory.take_over() };
    rewrite::behind_walks(&server.persist, |guard| {
        // SAFETY: this is the data of that memory, and the keyspace was made with its identity.
        unsafe { guard.take_over(data) }
    });
}

fn take_files(server: &Arc<Server>, state: &State) -> Result<(), String> {
    let settings = server.core.settings();
    if state.has_log {
        rewrite::take_log_over(&server.persist)?;
    } else if !settings.save.is_empty() {
        let locked = server.persist.locks.hold(What::Snapshot, &settings.dir, &settings.dbfilename);
        locked.map_err(|error| error.to_string())?;
    }
    server.persist.record_taken_over(&server.core.keyspace, state.last_save_s, state.changes);
    Ok(())
}

impl Taken {
    fn restore(&mut self, server: &Arc<Server>, clients: Vec<(ClientState, OwnedFd)>) {
        for (mut state, socket) in clients {
            let watching = state.watching.take();
            let (id, ticket) = (state.id, state.waiting.as_ref().map(|waiting| waiting.ticket));
            if let Some((bits, redirect, prefixes)) = state.tracking.take() {
                let prefixes = prefixes.into_iter().map(|prefix| prefix.into_vec()).collect();
                self.tracking.push((id, bits, redirect, prefixes));
            }
            match state.restore(server, socket) {
                Ok(connection) => {
                    self.watching.extend(watching.map(|keys| (self.connections.len(), keys)));
                    self.connections.push((ticket, connection));
                }
                Err(reason) => log::warn!("Client {id} cannot be taken over: {reason}"),
            }
        }
    }

    /// Has the connections watch their keys again, which are here now.
    fn watch(&mut self, server: &Server) {
        if self.watching.is_empty() {
            return;
        }
        let mut ctx = server.core.keyspace.thread_context();
        ctx.now_ms = clock::unix_ms();
        for (at, keys) in std::mem::take(&mut self.watching) {
            keys.watch(server, &mut ctx, &mut self.connections[at].1.session);
        }
    }

    fn serve(mut self, server: &Arc<Server>, listen: impl FnOnce() -> Result<(), String>) {
        if let Some((all, until_ms)) = self.state.pause {
            server.core.pause.begin(Pauser::Client, all, until_ms, clock::unix_ms());
        }
        self.track(server);
        let count = self.connections.len();
        // They wait again in the order in which they began to wait, before any other client can serve them.
        self.connections.sort_by_key(|(ticket, _)| ticket.unwrap_or(u64::MAX));
        let others =
            self.connections.split_off(self.connections.partition_point(|(ticket, _)| ticket.is_some()));
        let waiters: Vec<_> =
            self.connections.iter().map(|(_, connection)| connection.client().clone()).collect();
        self.connections.into_iter().for_each(|(_, connection)| adopt(server, 0, connection));
        let until = Instant::now() + WAITS_MAX;
        let runs = |client: &&Arc<evenkeel_client::ClientInfo>| {
            !client.blocked.load(Relaxed)
                && client.command.load(Relaxed) == u32::MAX
                && !client.gone.load(Relaxed)
        };
        while waiters.iter().any(|client| runs(&client)) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(100));
        }
        for (_, connection) in others {
            let fewest =
                server.inboxes.iter().enumerate().min_by_key(|(_, inbox)| inbox.connections.load(Relaxed));
            adopt(server, fewest.map_or(0, |(index, _)| index), connection);
        }
        if let Err(reason) = listen() {
            log::warn!("After the hand-over: {reason}");
        }
        listener::forget_passed();
        log::warn!("This process has taken over {count} clients, and serves them.");
    }

    /// Tracking clients get a full invalidation: the keys that they have read are not known here.
    fn track(&mut self, server: &Server) {
        let hub = &server.hub;
        for (id, bits, redirect, prefixes) in &self.tracking {
            let Some(at) = self.connections.iter().position(|(_, one)| one.client().id == *id) else {
                continue;
            };
            let session = &mut self.connections[at].1.session;
            let target = Some(*redirect).filter(|id| *id != 0).and_then(|id| hub.clients.get(id));
            let prefixes: Vec<&[u8]> = prefixes.iter().map(|prefix| &prefix[..]).collect();
            let events = &server.core.keyspace.events;
            hub.tracking.begin(events, &session.client, bits & !mode::ON, target, &prefixes);
            session.tracks = bits & mode::BROADCAST == 0;
            session.receives_push = true;
        }
        if !self.tracking.is_empty() {
            hub.forget_tracked();
        }
    }
}

fn adopt(server: &Server, worker: usize, connection: Box<Connection>) {
    let inbox = &server.inboxes[worker];
    inbox.connections.fetch_add(1, Relaxed);
    inbox.post(Message::Adopt(connection));
}
