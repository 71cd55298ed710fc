//! The side that hands over: starts the new program, sends it everything, and ends when it serves.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_bytes::ByteBuf;

use super::messages::{Begin, Directive, FORMAT, State, ToPredecessor, ToSuccessor, receive, send};
use super::{CHANNEL_VARIABLE, COMMAND_LINE, Freeze, Frozen, Left, keeper};
use crate::observe::process;
use crate::server::Server;
use crate::startup::VERSION;
use crate::worker::connection::Connection;
use crate::worker::inbox::Message;
use evenkeel_acl::Access;
use evenkeel_acl::lines;
use evenkeel_client::Session;
use evenkeel_client::clients::ClientInfo;
use evenkeel_core::pause::Pauser;
use evenkeel_net::channel::{Channel, DESCRIPTORS_MAX};
use evenkeel_persist::{PersistJob, end, rewrite};
use evenkeel_runtime::clock;
use evenkeel_runtime::server_log;
use evenkeel_store::{LAYOUT_HASH, PassedKeyspace};

/// Longest wait for jobs that write to disk, before the hand-over begins.
const QUIET_MAX: Duration = Duration::from_secs(300);

/// Longest pause of the clients in an attempt. After it they go on, and there is another attempt later.
const ATTEMPT_MAX: Duration = Duration::from_millis(200);
const ATTEMPTS: u32 = 20;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(500);

/// Bytes of the stream that the successor may lack when the last pause begins: it runs them in milliseconds.
const LAG_MAX: u64 = 4 << 20;

/// Time in which the successor may come as close by itself.
const UNAIDED_MAX: Duration = Duration::from_secs(1);

/// Pauses by which the clients are slowed down so that it comes as close, and the longest time for that.
const BRAKE: Duration = Duration::from_millis(10);
const BRAKES_MAX: Duration = Duration::from_secs(20);

/// Time in which a successor says that it maps the data. One that does not is getting a copy.
const MAPPED_WITHIN: Duration = Duration::from_secs(2);

/// Longest wait for an answer of the successor, while the clients wait.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Longest time without progress of the data on their way to the successor.
const STALLED_MAX: Duration = Duration::from_secs(60);

/// Poll interval while clients wait.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The result of a hand-over.
pub(crate) struct Report {
    pub(super) pid: u32,
    /// The channel, for a keeper.
    channel: Channel,
    pub(super) version: String,
    pub(super) clients: usize,
    pub(super) left: Left,
    /// The time for which clients waited, and its parts.
    pub(super) paused: Duration,
    pub(super) parts: Vec<Part>,
}

/// A part of the time for which clients waited.
pub(super) type Part = (&'static str, Duration);

/// Hands this server over to `program`. `say` gets lines about the progress. On success the other process
/// serves, and the caller ends this process by [`end`].
///
/// # Errors
/// The reason why this server goes on.
pub(crate) fn run(
    server: &Arc<Server>,
    program: Option<&Path>,
    say: &mut dyn FnMut(&str),
) -> Result<Report, String> {
    if server.handover.is_under_way.swap(true, AcqRel) {
        return Err("another upgrade is under way".into());
    }
    let result = hand_over(server, program, say);
    if let Err(reason) = &result {
        log::warn!("The upgrade was given up, this server goes on: {reason}");
        server.handover.is_under_way.store(false, Release);
    }
    result
}

/// Ends this process, whose clients the other process serves: no file is touched and no socket shut down.
pub(crate) fn end(server: &Server, report: &Report) -> ! {
    log::warn!("Process {} has taken over, this process ends.", report.pid);
    server_log::flush();
    keeper::leave();
    server.handover.set_server(report.pid);
    server.core.manager.notify_successor(report.pid);
    if keeper::of_successor(&server.core.manager) == keeper::Keeper::Predecessor {
        keeper::become_keeper(report.pid, report.channel.as_fd());
    }
    std::process::exit(0)
}

/// The successor's process, killed on drop unless it has taken over.
struct Successor {
    child: Option<Child>,
    channel: Channel,
    /// It takes the memory of the data over. Otherwise, it gets a copy.
    shares: bool,
}

impl Successor {
    fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    fn send(&self, message: &ToSuccessor, descriptors: &[BorrowedFd<'_>]) -> Result<(), String> {
        send(&self.channel, message, descriptors).map_err(|error| self.lost(&error))
    }

    /// Receives an answer. The error: it refuses, has ended, or takes too long.
    fn receive(&mut self, timeout: Duration) -> Result<ToPredecessor, String> {
        let set = self.channel.set_timeout(Some(timeout));
        match set.and_then(|()| receive::<ToPredecessor>(&self.channel)) {
            Ok((ToPredecessor::Refused(reason), _)) => Err(format!("the new program refuses: {reason}")),
            Ok((answer, _)) => Ok(answer),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn lost(&self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                "the new program has ended; its messages are in the server log and on standard error".into()
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the new program does not answer".into(),
            _ => format!("the channel to the new program failed: {error}"),
        }
    }
}

impl Successor {
    /// Returns an error if the process has ended: it need not be waited for.
    fn check(&mut self) -> Result<(), String> {
        match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => Err(format!("the new program has ended ({status})")),
            _ => Ok(()),
        }
    }

    /// Kills the process, and waits for its end.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        self.kill();
    }
}

fn hand_over(
    server: &Arc<Server>,
    program: Option<&Path>,
    say: &mut dyn FnMut(&str),
) -> Result<Report, String> {
    wait_until_quiet(server, say)?;
    let program = program.map_or_else(own_program, |program| Ok(program.to_owned()))?;
    say(&format!("starting {}", program.display()));
    let mut successor = start(&program)?;
    begin(server, &successor)?;
    let version = wait_until_ready(server, &mut successor)?;
    let has = if successor.shares { "has mapped the data" } else { "has a copy of the data" };
    say(&format!("process {} (version {version}) {has}, and follows", successor.pid()));
    for attempt in 1..=ATTEMPTS {
        wait_until_quiet(server, say)?;
        wait_until_close(server, &mut successor)?;
        // If the disk hangs, this thread waits for it, and not the clients.
        if !end::is_log_taken(&server.persist) {
            return Err("the disk of the append-only file is blocked".into());
        }
        rewrite::sync_ahead(&server.persist)
            .map_err(|error| format!("the append-only file cannot be synced: {error}"))?;
        match attempt_to_end(server, &mut successor)? {
            Ok(Ended { clients, left, paused, parts }) => {
                let pid = successor.pid();
                successor.child = None;
                let channel = successor.channel.try_clone().map_err(|error| error.to_string())?;
                return Ok(Report { pid, channel, version, clients, left, paused, parts });
            }
            Err(reason) => {
                say(&format!("attempt {attempt} of {ATTEMPTS}: {reason}"));
                std::thread::sleep(ATTEMPT_INTERVAL);
            }
        }
    }
    Err("no moment was found at which all clients could be handed over".into())
}

/// Waits for the end of jobs that must not be interrupted.
fn wait_until_quiet(server: &Arc<Server>, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    let began = Instant::now();
    let mut is_notified = false;
    loop {
        let reason = if server.core.stopping.load(Acquire) || server.persist.ending.is_under_way() {
            return Err("the server is shutting down".into());
        } else if server.persist.is_loading() {
            return Err("the server is loading data".into());
        } else if server.replication.failover.is_under_way() {
            return Err("a failover is under way".into());
        } else if server.cluster.as_ref().is_some_and(|cluster| cluster.is_shared()) {
            return Err("cluster-store is set: restart the node instead".into());
        } else if !server.persist.has_all_data() {
            return Err("the data are not complete".into());
        } else if server.persist.backup.status().stage.is_open() {
            return Err("a backup is open: BACKUP SEAL or BACKUP ABORT ends it".into());
        } else if server.persist.aof.fails() {
            return Err("the append-only file cannot be written".into());
        } else if server.core.settings().appendonly != server.persist.aof.is_on() {
            "the append-only file is being turned on or off"
        } else if has_jobs(server) {
            "a snapshot or a rewrite of the append-only file is under way"
        } else if server.replication.metrics.syncing.load(Relaxed) > 0 {
            "a replica is being sent a snapshot"
        } else if server.scripts.busy.is_busy() {
            "a script is running"
        } else {
            return Ok(());
        };
        if began.elapsed() > QUIET_MAX {
            return Err(format!("not within {} s: {reason}", QUIET_MAX.as_secs()));
        }
        if !std::mem::replace(&mut is_notified, true) {
            say(&format!("waiting: {reason}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn has_jobs(server: &Server) -> bool {
    let state = server.persist.state();
    !state.is_idle() || state.is_about_to_rewrite() || state.is_behind() || state.save_scheduled
}

/// Both processes hold the data for a while.
fn check_memory() -> Result<(), String> {
    let used = evenkeel_store::memory::used() as u64;
    let room = process::available_bytes().min(process::memory_limit().saturating_sub(used));
    let needed = used + used / 8;
    if needed > room {
        let mib = |bytes: u64| bytes >> 20;
        return Err(format!(
            "both processes hold the data for a while, which takes {} MiB, and {} MiB are free",
            mib(needed),
            mib(room)
        ));
    }
    Ok(())
}

/// The file of this program, which may have been replaced since the start.
fn own_program() -> Result<PathBuf, String> {
    let path = std::env::current_exe().map_err(|error| format!("the program is unknown: {error}"))?;
    let text = path.to_string_lossy().into_owned();
    Ok(text.strip_suffix(" (deleted)").map_or(path, PathBuf::from))
}

fn start(program: &Path) -> Result<Successor, String> {
    let failed = |error: io::Error| format!("cannot start {}: {error}", program.display());
    let (ours, theirs) = Channel::pair().map_err(failed)?;
    let (name, args, folder) = COMMAND_LINE.get().ok_or("the command line of this process is unknown")?;
    let descriptor = theirs.as_fd().as_raw_fd();
    let mut command = Command::new(program);
    // The settings that this process has read from standard input are sent over the channel.
    command.args(args.iter().filter(|arg| *arg != "-")).arg0(name);
    command.current_dir(folder);
    command.env(CHANNEL_VARIABLE, descriptor.to_string()).stdin(std::process::Stdio::null());
    // SAFETY: the closure only makes a system call, between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // SAFETY: changes a flag of an open descriptor.
            match libc::fcntl(descriptor, libc::F_SETFD, 0) {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        });
    }
    let child = command.spawn().map_err(failed)?;
    Ok(Successor { child: Some(child), channel: ours, shares: false })
}

/// Sends the settings, users and scripts, and gives the successor a client of this server.
fn begin(server: &Arc<Server>, successor: &Successor) -> Result<(), String> {
    let settings = server.core.settings();
    let directives = settings.transfer().into_iter().map(|one| Directive {
        name: one.name,
        value: ByteBuf::from(one.value),
        is_default: one.is_default,
    });
    let bytes = |bytes: &[u8]| ByteBuf::from(bytes.to_vec());
    let users = lines(&server.acl.users()).flat_map(|line| [&line[..], b"\n"].concat()).collect::<Vec<u8>>();
    let scripts = server.scripts.texts();
    let memory = evenkeel_slab::pass();
    let begin = Begin {
        format: FORMAT,
        version: VERSION.into(),
        keeper: keeper::of_successor(&server.core.manager),
        run_id: server.core.run_id.clone(),
        hash_secret: server.core.keyspace.hasher.secret(),
        start_ms: server.core.keyspace.start_ms(),
        layout: LAYOUT_HASH.into(),
        memory: memory.as_ref().map(|(_, place)| (place.address, place.chunks)),
        directives: directives.collect(),
        renamed: settings.rename_command.iter().map(|(from, to)| (bytes(from), bytes(to))).collect(),
        users: users.into(),
        scripts: scripts.iter().map(|(script, may_go)| (bytes(&script.body), *may_go)).collect(),
    };
    let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
    ours.set_nonblocking(true).map_err(|error| error.to_string())?;
    adopt(server, ours);
    let file = memory.map(|(file, _)| file);
    let sockets: Vec<BorrowedFd<'_>> =
        [theirs.as_fd()].into_iter().chain(keeper::socket()).chain(file).collect();
    successor.send(&ToSuccessor::Begin(Box::new(begin)), &sockets)
}

/// Makes the socket a client that may do everything.
fn adopt(server: &Server, socket: UnixStream) {
    let (hub, fd) = (&server.hub, socket.as_raw_fd());
    let (id, name) = (hub.clients.next_id(), "successor".to_owned());
    let info = Arc::new(ClientInfo::new(id, name.clone(), name, fd, true, clock::unix_ms()));
    info.is_successor.store(true, Relaxed);
    hub.clients.add(info.clone());
    let session = Session::new(info, Access::of_server());
    let inbox = &server.inboxes[0];
    inbox.connections.fetch_add(1, Relaxed);
    inbox.post(Message::Adopt(Box::new(Connection::new(socket.into(), session))));
}

/// Waits until the successor has the data. Returns its version.
fn wait_until_ready(server: &Server, successor: &mut Successor) -> Result<String, String> {
    let began = Instant::now();
    let (mut moved, mut since, mut needs_copy) = (0, began, false);
    loop {
        if !successor.shares && !needs_copy && began.elapsed() > MAPPED_WITHIN {
            needs_copy = true;
            check_memory()?;
        }
        let slice = Duration::from_millis(50);
        let is_there =
            evenkeel_net::poll::await_events(successor.channel.as_fd().as_raw_fd(), libc::POLLIN, slice);
        if is_there.is_ok_and(|events| events != 0) {
            return match successor.receive(ANSWER_MAX)? {
                ToPredecessor::Ready { version } => Ok(version),
                ToPredecessor::Mapped => {
                    successor.shares = true;
                    continue;
                }
                other => Err(format!("the new program answers out of turn: {other:?}")),
            };
        }
        let now = server.replication.metrics.sent.load(Relaxed) + server.persist.progress.keys.load(Relaxed);
        if now != moved {
            (moved, since) = (now, Instant::now());
        } else if since.elapsed() > STALLED_MAX {
            return Err("the new program makes no progress".into());
        }
        if server.core.stopping.load(Acquire) || server.persist.ending.is_under_way() {
            return Err("the server is shutting down".into());
        }
    }
}

/// Waits until the successor lacks little of the stream. Clients that write faster than it can follow are
/// slowed down by short pauses: one pause for all that it lacks would be long.
fn wait_until_close(server: &Server, successor: &mut Successor) -> Result<(), String> {
    let began = Instant::now();
    let is_close = || {
        let acked = server.replication.replicas.successor().map_or(0, |successor| successor.acked());
        server.replication.stream().offset().saturating_sub(acked) <= LAG_MAX
    };
    while !is_close() && began.elapsed() < BRAKES_MAX {
        successor.check()?;
        if began.elapsed() > UNAIDED_MAX {
            server.core.pause.begin(Pauser::Upgrade, true, u64::MAX, clock::unix_ms());
            std::thread::sleep(BRAKE);
            server.core.pause.end(Pauser::Upgrade);
            server.core.workers.wake_all();
        }
        std::thread::sleep(BRAKE);
    }
    successor.check()
}

struct Ended {
    clients: usize,
    left: Left,
    paused: Duration,
    parts: Vec<Part>,
}

/// Measures the parts of a time.
struct Parts {
    last: Instant,
    parts: Vec<Part>,
}

impl Parts {
    fn end(&mut self, part: &'static str) {
        let now = Instant::now();
        self.parts.push((part, now - self.last));
        self.last = now;
    }
}

/// Pauses the clients and hands everything over. `Ok(Err)`: the moment is bad, and the clients go on.
fn attempt_to_end(
    server: &Arc<Server>,
    successor: &mut Successor,
) -> Result<Result<Ended, &'static str>, String> {
    let Some(mut pause) = Pause::begin(server) else {
        return Ok(Err("a snapshot or a rewrite has begun"));
    };
    let until = pause.began + ATTEMPT_MAX;
    let mut parts = Parts { last: pause.began, parts: Vec::new() };
    // Every command that was admitted before the pause has ended when all threads have left the gate.
    rewrite::behind_walks(&server.persist, |_| ());
    parts.end("commands under way");
    server.replication.rest(true);
    let log_waits = || {
        let aof = &server.persist.aof;
        aof.is_on() && aof.unread(&server.core.keyspace.journal) + aof.metrics.buffered.load(Relaxed) > 0
    };
    while log_waits() || !server.replication.successor_has_all() {
        successor.check()?;
        if Instant::now() > until && log_waits() {
            return Ok(Err("the disk of the append-only file lags behind"));
        }
        if Instant::now() > until {
            return Ok(Err("the new program lags behind"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    parts.end("the rest of the stream");
    let frozen = loop {
        match pause.freeze(server, until) {
            Ok(frozen) => break frozen,
            Err(reason) if Instant::now() > until => return Ok(Err(reason)),
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    };
    parts.end("freezing the workers");
    if server.persist.ending.is_under_way() || server.core.stopping.load(Acquire) {
        return Err("the server is shutting down".into());
    }
    // Nothing is removed any more, and what was is freed soon.
    while successor.shares && server.core.lazy_free.pending() > 0 {
        if Instant::now() > until {
            return Ok(Err("large values are being freed"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    // Commands that had been admitted before may have ended since.
    if !server.replication.successor_has_all() {
        return Ok(Err("a command has ended late"));
    }
    let mut left = Left::default();
    for worker in &frozen {
        left.tls += worker.left.tls;
        left.http += worker.left.http;
        left.closing += worker.left.closing;
    }
    send_sockets(server, successor, frozen.iter().flat_map(|worker| &worker.clients))?;
    let clients = frozen.iter().map(|worker| worker.clients.len()).sum();
    match successor.receive(ANSWER_MAX)? {
        ToPredecessor::Adopted => {}
        other => return Err(format!("the new program answers out of turn: {other:?}")),
    }
    parts.end("sockets and sessions");
    pause.release_files(server);
    parts.end("the append-only file");
    if successor.shares {
        commit_with_data(server, successor)?;
    } else {
        commit(successor, None)?;
    }
    parts.end("the new process begins to serve");
    let paused = pause.began.elapsed();
    pause.is_final = true;
    Ok(Ok(Ended { clients, left, paused, parts: parts.parts }))
}

/// Lets the successor serve, and waits until it does.
fn commit(successor: &mut Successor, data: Option<Box<PassedKeyspace>>) -> Result<(), String> {
    successor.send(&data.map_or(ToSuccessor::Commit, ToSuccessor::CommitData), &[])?;
    let reason = match successor.receive(ANSWER_MAX) {
        Ok(ToPredecessor::Serving) => return Ok(()),
        Ok(other) => format!("the new program answers out of turn: {other:?}"),
        Err(reason) => reason,
    };
    // This server goes on, so the other must have ended before. If it has begun to serve nevertheless,
    // clients may have had replies, and its data are newer than those of this process.
    successor.kill();
    if matches!(successor.receive(Duration::from_millis(1)), Ok(ToPredecessor::Serving)) {
        end_after_lost_hand_over();
    }
    Err(reason)
}

/// Ends this process: the other has begun to serve, and has ended before it said so.
fn end_after_lost_hand_over() -> ! {
    log::error!("The new process has begun to serve, and has ended before it said so. Exiting.");
    server_log::flush();
    std::process::exit(1)
}

/// Like [`commit`], with the memory of the data. No thread uses it from before the message until this process
/// ends or goes on.
fn commit_with_data(server: &Server, successor: &mut Successor) -> Result<(), String> {
    rewrite::behind_walks_for_good(&server.persist, |guard| {
        if server.core.lazy_free.pending() > 0 {
            return Err("values are being freed".into());
        }
        let data = guard.pass();
        let suspended = evenkeel_slab::suspend();
        let result = commit(successor, Some(Box::new(data)));
        if result.is_err() && suspended.is_taken() {
            end_after_lost_hand_over();
        }
        if result.is_ok() {
            std::mem::forget(suspended);
        }
        result
    })
}

fn send_sockets<'f>(
    server: &Server,
    successor: &Successor,
    clients: impl Iterator<Item = &'f (super::ClientState, RawFd)>,
) -> Result<(), String> {
    let mut listeners = server.listeners.all();
    listeners.extend(server.http.listeners());
    for some in listeners.chunks(DESCRIPTORS_MAX) {
        let names = some.iter().map(|listener| listener.name()).collect();
        let sockets: Vec<BorrowedFd<'_>> = some.iter().map(|listener| listener.fd()).collect();
        successor.send(&ToSuccessor::Listeners(names), &sockets)?;
    }
    let clients: Vec<&(super::ClientState, RawFd)> = clients.collect();
    for some in clients.chunks(DESCRIPTORS_MAX) {
        // SAFETY: the workers are frozen, and keep the sockets.
        let socket = |fd: RawFd| unsafe { BorrowedFd::borrow_raw(fd) };
        let sockets: Vec<BorrowedFd<'_>> = some.iter().map(|(_, fd)| socket(*fd)).collect();
        let states = some.iter().map(|(state, _)| state).collect::<Vec<_>>();
        let message = super::messages::ClientsToSend::Clients(states);
        send(&successor.channel, &message, &sockets).map_err(|error| successor.lost(&error))?;
    }
    let state = server.persist.state();
    let now_ms = clock::unix_ms();
    let state = State {
        last_client: server.hub.clients.last_id(),
        last_save_s: state.last_save_s,
        changes: state.changes_since_save(server.core.keyspace.total().asked()),
        has_log: server.persist.aof.is_on(),
        primary: server.replication.link.target().map(|target| (target.host, target.port)),
        pause: server.core.pause.of(Pauser::Client, now_ms),
        cluster: server.cluster.as_ref().map(|cluster| cluster.to_text()).unwrap_or_default(),
    };
    successor.send(&ToSuccessor::State(Box::new(state)), &[])
}

/// The pause of all clients. On drop everything goes on, unless it is final.
struct Pause<'a> {
    server: &'a Arc<Server>,
    began: Instant,
    freeze: Option<Arc<Freeze>>,
    /// The append-only file has been ended.
    has_no_log: bool,
    has_no_locks: bool,
    is_final: bool,
}

impl<'a> Pause<'a> {
    /// `None`: a job that writes to disk is running.
    fn begin(server: &'a Arc<Server>) -> Option<Pause<'a>> {
        // No job begins during the pause, for whose end the clients would wait.
        if !server.persist.claim_alone(PersistJob::Log) {
            return None;
        }
        server.core.pause.begin(Pauser::Upgrade, true, u64::MAX, clock::unix_ms());
        server.handover.keeps_connections.store(true, Release);
        let began = Instant::now();
        server.core.workers.wake_all();
        Some(Pause { server, began, freeze: None, has_no_log: false, has_no_locks: false, is_final: false })
    }

    /// Freezes all workers. The error: some connection cannot travel yet, and the workers go on.
    fn freeze(&mut self, server: &Server, until: Instant) -> Result<Vec<Frozen>, &'static str> {
        let (sender, frozen) = mpsc::channel();
        let freeze = Arc::new(Freeze::new(sender));
        server.inboxes.iter().for_each(|inbox| inbox.post(Message::Freeze(freeze.clone())));
        self.freeze = Some(freeze.clone());
        let mut all = Vec::new();
        for _ in 0..server.inboxes.len() {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match frozen.recv_timeout(left) {
                Ok(one) => all.push(one),
                Err(_) => {
                    freeze.thaw();
                    return Err("a worker is busy");
                }
            }
        }
        // A connection that was on its way to a worker when that worker froze is in no list.
        let connections = server.inboxes.iter().map(|inbox| inbox.connections.load(Relaxed)).sum::<usize>();
        let is_whole = all.iter().map(Frozen::connections).sum::<usize>() == connections;
        let moves = (!is_whole).then_some("a connection moves between workers");
        if let Some(reason) = all.iter().find_map(|one| one.busy).or(moves) {
            freeze.thaw();
            self.freeze = None;
            return Err(reason);
        }
        Ok(all)
    }

    /// Ends the append-only file, with everything on disk, and releases the locks on files.
    fn release_files(&mut self, server: &Server) {
        if server.persist.aof.is_on() {
            rewrite::release_log(&server.persist);
            self.has_no_log = true;
        }
        server.persist.locks.release();
        self.has_no_locks = true;
    }

    fn take_files_back(&self) {
        let (server, settings) = (self.server, self.server.core.settings());
        if self.has_no_log {
            if let Err(reason) = rewrite::take_log_over(&server.persist) {
                log::warn!("The append-only file cannot be continued, a new base follows: {reason}");
                rewrite::follow_soon(&server.persist);
            }
        } else if self.has_no_locks && !settings.save.is_empty() {
            use evenkeel_persist::lock::What;
            if let Err(error) = server.persist.locks.hold(What::Snapshot, &settings.dir, &settings.dbfilename)
            {
                log::warn!("{error}");
            }
        }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if self.is_final {
            return; // the process ends
        }
        self.take_files_back();
        let server = self.server;
        rewrite::release(&server.persist);
        server.replication.rest(false);
        server.handover.keeps_connections.store(false, Release);
        server.core.pause.end(Pauser::Upgrade);
        if let Some(freeze) = &self.freeze {
            freeze.thaw();
        }
        server.core.workers.wake_all();
        server.handover.pass_signal(std::process::id());
    }
}
