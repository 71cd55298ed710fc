//! A server in process: two workers, any number of sessions, a clock that moves on request, and no sockets.
//!
//! Transcripts run on it as over TCP. Everything runs on the test's own thread, a request at a time. Where
//! threads and sockets matter, use [`live`].

pub(crate) mod live;
pub(crate) mod replay;

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evenkeel_resp::request::{Parsed, State, parse};
use evenkeel_resp::value::{Value, decode, encode_command};
use evenkeel_store::{Expire, Kind};
use evenkeel_testkit::{Program, Reference, Target, transcript};

use crate::executor::Executor;
use crate::server::Server;
use crate::worker::inbox::Message;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::pubsub::push_queue::Pending;
use evenkeel_client::runner::{Outcome, Request};
use evenkeel_client::session::Session;
use evenkeel_client::waiting::{End, NEVER, On, Resumed, Waiting};
use evenkeel_command::args::OwnedArgs;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow, Mode, OFFLOAD_MIN, Wait, Work};
use evenkeel_command::reply::Reply;
use evenkeel_command::{Args, Call, Command, DataHandler, Group, Keys, at_least, exactly, read, write};
use evenkeel_config::Launch;
use evenkeel_runtime::clock;

/// Commands that exist only in tests.
#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<DataHandler>] = &[
    write("TEST.PANIC", at_least(2), Keys::REST,                               Group::Server, set_and_panic),
    write("TEST.BGET",  at_least(3), Keys::Range { first: 1, last: -2, step: 1 }, Group::Server, blocking_get)
        .blocks(),
    write("TEST.BMOVE", exactly(4),  Keys::FIRST_TWO,                          Group::Server, blocking_move)
        .blocks(),
    write("TEST.BMORE", exactly(4),  Keys::FIRST,                              Group::Server, blocking_more)
        .blocks(),
    read( "TEST.LONG",  at_least(3), Keys::FIRST,                              Group::Server, long_get),
    write("TEST.LONGCOPY", exactly(4), Keys::FIRST_TWO,                        Group::Server, long_copy),
    write("TEST.BGONE", exactly(3),  Keys::FIRST,                              Group::Server, blocking_gone)
        .blocks(),
];

/// Creates a directory, for a test to remove. `purpose` is in its name.
pub(crate) fn folder(purpose: &str) -> PathBuf {
    let path = std::env::temp_dir()
        .join(format!("evenkeel-{purpose}-{}", &evenkeel_runtime::random::random_hex()[..12]));
    std::fs::create_dir(&path).expect("the temporary directory takes a new one");
    path
}

/// TEST.BGET key [key ...] timeout: waits until a key has a value, replies with both and deletes the key.
fn blocking_get(call: &mut Call<'_, '_>) -> Done {
    let (timeout, all) = (call.timeout_s(call.args.len() - 1)?, 0..call.keys.len());
    for key in &call.keys[call.tries(all.clone())] {
        if let Some(value) = call.guard.string(key)?.map(|value| value.bytes().into_owned()) {
            assert!(value != b"panic", "as a test wants it");
            call.guard.remove(key);
            call.reply.array(2);
            call.reply.bulk(key.bytes);
            call.reply.bulk(&value);
            return Ok(Flow::Replied);
        }
    }
    call.block(Wait::on(all, Kind::String, timeout))
}

/// TEST.BMOVE from to timeout: waits until `from` has a value, and moves it to `to`, unless that is `full`.
fn blocking_move(call: &mut Call<'_, '_>) -> Done {
    let (timeout, [from, to]) = (call.timeout_s(3)?, [call.keys[0], call.keys[1]]);
    let Some(value) = call.guard.string(&from)?.map(|value| value.bytes().into_owned()) else {
        return call.block(Wait::on(0..1, Kind::String, timeout).with(1..2).null_in_multi());
    };
    if call.guard.string(&to)?.is_some_and(|old| &*old.bytes() == b"full") {
        return Err(Error::WrongType);
    }
    call.guard.remove(&from);
    call.guard.set_string(&to, &value, Expire::Clear);
    call.reply.bulk(&value);
    Ok(Flow::Replied)
}

/// TEST.BMORE key len|$ timeout: waits until the string is longer than `len`; `$` is its present length.
fn blocking_more(call: &mut Call<'_, '_>) -> Done {
    let timeout = call.timeout_ms(3)?;
    let len = call.guard.string(&call.keys[0])?.map_or(0, |value| value.len());
    let seen = if call.args.is(2, "$") {
        assert!(!call.is_serving(), "it was to be run again with a number");
        len
    } else {
        call.args.int(2)? as usize
    };
    if len > seen {
        call.reply.int(len as i64);
        return Ok(Flow::Replied);
    }
    let seen = seen.to_string();
    let args = call.args.from(0).enumerate();
    let args = args.map(|(index, arg)| if index == 2 { seen.as_bytes() } else { arg });
    call.block(Wait::on(0..1, Kind::String, timeout).rerun(OwnedArgs::new(args)))
}

/// TEST.LONG key ms [PANIC]: replies with the value, after so many milliseconds of work.
fn long_get(call: &mut Call<'_, '_>) -> Done {
    let (ms, panics) = (call.args.int(2)? as u64, call.args.is(3, "PANIC"));
    let value = call.guard.string(&call.keys[0])?.map(|value| value.bytes().into_owned());
    let work = move |reply: &mut Reply| {
        std::thread::sleep(Duration::from_millis(ms));
        match &value {
            Some(value) => reply.bulk(value),
            None => return Err(Error::NoSuchKey),
        }
        assert!(!panics, "as a test wants it");
        Ok(())
    };
    if call.is_worth_offloading(ms as usize * OFFLOAD_MIN) {
        call.offload(Work::reads(work))
    } else {
        work(call.reply).map(|()| Flow::Replied)
    }
}

/// TEST.LONGCOPY from to ms: sets `to` to the value of `from` and a mark for each time that the value was
/// read, after so many milliseconds of work on it.
fn long_copy(call: &mut Call<'_, '_>) -> Done {
    let pause = Duration::from_millis(call.args.int(3)? as u64);
    let read = |call: &mut Call<'_, '_>| match call.guard.string(&call.keys[0]) {
        Ok(Some(value)) => Ok(value.bytes().into_owned()),
        Ok(None) => Err(Error::NoSuchKey),
        Err(error) => Err(error.into()),
    };
    let mark = match call.mode {
        Mode::Direct => "+".to_owned(),
        Mode::Again(attempts) => "+".repeat(attempts as usize + 1),
        Mode::Nested | Mode::Collected | Mode::Script | Mode::Serving(_) => String::new(),
    };
    let source = read(call)?;
    let copy = source.clone();
    let compute = move || {
        std::thread::sleep(pause);
        if copy == b"panic" {
            panic!("as a test wants it")
        } else {
            Ok([&copy[..], mark.as_bytes()].concat())
        }
    };
    let is_current = move |call: &mut Call<'_, '_>| read(call).is_ok_and(|now| now == source);
    call.offload(Work::writes(compute, is_current, |call, value| {
        call.guard.set_string(&call.keys[1], &value, Expire::Clear);
        call.reply.bulk(&value);
        Ok(Flow::Replied)
    }))
}

/// TEST.BGONE key timeout: waits until the key is absent.
fn blocking_gone(call: &mut Call<'_, '_>) -> Done {
    let timeout = call.timeout_ms(2)?;
    if call.guard.peek(&call.keys[0]).is_some() {
        return call.block(Wait::on(0..1, Kind::String, timeout).or_any_change());
    }
    Err(Error::NoSuchKey)
}

/// TEST.PANIC key [key ...]: sets the first key, then panics while it holds the locks of all keys.
fn set_and_panic(call: &mut Call<'_, '_>) -> Done {
    call.guard.set_string(&call.keys[0], b"half done", Expire::Clear);
    call.reply.bulk(b"the beginning of a reply");
    panic!("as a test wants it");
}

/// A server in process; see the module's text.
pub(crate) struct World {
    pub(crate) server: Arc<Server>,
    pub(crate) workers: Vec<Executor>,
    /// Runs offloaded commands.
    long: Executor,
    connections: HashMap<String, Connection>,
    pub(crate) now_ms: u64,
}

/// A session, served by one of the workers.
struct Connection {
    worker: usize,
    session: Session,
    resp3: bool,
    /// Commands received while an earlier command waits.
    pending: VecDeque<Vec<u8>>,
    /// Timeout of the waiting command.
    deadline_ms: Option<u64>,
    /// Replies that have not been read.
    out: Vec<u8>,
}

const WORKERS: usize = 2;

/// Arguments with which all servers of these tests are started.
const START: [&str; 2] = ["--enable-debug-command", "yes"];

/// Runs a transcript in process, and on Valkey if there is one: it has to hold for both.
#[track_caller]
pub(crate) fn check(text: &str) {
    transcript::check_on(&mut World::new(), text);
    if let Some(oracle) = Program::oracle(Reference::Valkey) {
        transcript::check(&evenkeel_testkit::Server::start(&oracle, &START), text);
    }
}

pub(crate) use evenkeel_testkit::random::printed as random;

impl World {
    pub(crate) fn new() -> World {
        World::with(&[])
    }

    /// Creates a server with further arguments.
    pub(crate) fn with(args: &[&str]) -> World {
        let args = START.iter().chain(&["--save", ""]).chain(args).map(OsString::from);
        let launch = Launch::from_args(args, evenkeel_acl::USER_LINES, |_| true)
            .expect("there is a working directory");
        assert!(launch.mistakes.is_empty(), "{:?}", launch.mistakes);
        let server = Server::new(launch.settings, None, WORKERS, None);
        let server = server.expect("a few descriptors are free");
        server.acl.load_at_start(&server.core.settings()).expect("good users");
        let workers = (0..WORKERS).map(|worker| Executor::new(server.clone(), worker)).collect();
        let long = Executor::new(server.clone(), WORKERS);
        World { server, workers, long, connections: HashMap::new(), now_ms: clock::unix_ms() }
    }

    /// Changes a setting, as CONFIG SET does.
    pub(crate) fn configure(&self, name: &str, value: &str) {
        let pairs = [(name.as_bytes(), value.as_bytes())];
        let changed =
            self.server.core.change_settings(|settings| settings.set(&pairs, true).map(|(new, _)| new));
        assert!(changed.is_ok(), "{name} {value}");
    }

    #[track_caller]
    pub(crate) fn check(&mut self, text: &str) {
        transcript::check_on(self, text);
    }

    /// Runs a command and returns its reply, as transcripts show it.
    #[track_caller]
    pub(crate) fn run(&mut self, line: &str) -> String {
        let args = evenkeel_testkit::words::split(line).expect("a command line");
        self.call(&args).expect("a reply").to_string()
    }

    /// Whether CLIENT PAUSE delays the command now.
    pub(crate) fn is_paused(&mut self, name: &str) -> bool {
        let row = self.server.table.row(self.server.table.find(name.as_bytes()).expect("a command"));
        let (server, now_ms) = (self.server.clone(), self.now_ms);
        let no_args = Args::new(&[], &[]);
        crate::executor::admission::is_paused(&server, (row, &no_args), &self.connection("").session, now_ms)
    }

    /// Returns a connection; new connections go to the workers in turn.
    fn connection(&mut self, name: &str) -> &mut Connection {
        let number = self.connections.len();
        let clients = &self.server.hub.clients;
        self.connections.entry(name.to_string()).or_insert_with(|| {
            let id = clients.next_id();
            let client = ClientInfo::new(id, "test:1".into(), "test:2".into(), -1, false, self.now_ms);
            let client = Arc::new(client);
            clients.add(client.clone());
            let session = Session::of_new_connection(client, &self.server.acl);
            let (pending, deadline_ms, out) = (VecDeque::new(), None, Vec::new());
            Connection { worker: number % WORKERS, session, resp3: false, pending, deadline_ms, out }
        })
    }
}

impl World {
    /// Runs the received commands of a connection, until a command waits.
    fn run_pending(&mut self, name: &str) {
        let connection = self.connections.get_mut(name).expect("opened by its first command");
        while connection.session.waiting.is_none()
            && let Some(bytes) = connection.pending.pop_front()
        {
            let executor = &mut self.workers[connection.worker];
            executor.refresh(self.now_ms);
            connection.run(executor, bytes);
            let timeout_ms = connection.session.waiting.as_ref().and_then(|waiting| waiting.timeout.0);
            connection.deadline_ms = timeout_ms.map(|ms| self.now_ms + ms);
        }
    }

    /// Handles the workers' messages about commands that waited.
    fn resume_all(&mut self) {
        let server = self.server.clone();
        let push_queue = || server.inboxes.iter().flat_map(|inbox| inbox.take()).collect::<Vec<_>>();
        let mut messages = push_queue();
        while !messages.is_empty() {
            for message in messages {
                match message {
                    Message::Resume(resumed) => self.resume(resumed),
                    Message::PushQueued(clients) => clients.iter().for_each(|client| self.deliver(client)),
                    _ => {}
                }
            }
            messages = push_queue();
        }
    }

    /// Delivers a client's push messages.
    fn deliver(&mut self, client: &ClientInfo) {
        let found =
            self.connections.values_mut().find(|connection| connection.session.client.id == client.id);
        if let Some(connection) = found
            && let Pending::Messages(messages) = client.push_queue.take(connection.resp3)
        {
            messages.iter().for_each(|message| connection.out.extend_from_slice(message));
        }
    }

    fn resume(&mut self, resumed: Resumed) {
        let id = resumed.client.id;
        let found = self.connections.iter_mut().find(|(_, connection)| connection.session.client.id == id);
        let Some((name, connection)) = found else { return };
        let name = name.clone();
        if let Some(waiting) = connection.leave_queues(&mut self.workers[connection.worker])
            && !waiting.mute
        {
            connection.receive(&resumed.reply);
        }
        self.run_pending(&name);
    }

    /// Sends a line without waiting for a reply.
    pub(crate) fn type_in(&mut self, name: &str, line: &str) {
        self.send(name, &evenkeel_testkit::words::split(line).expect("a command line"));
    }

    /// Returns the bytes of unread replies.
    pub(crate) fn unread(&mut self, name: &str) -> usize {
        self.connection(name).out.len()
    }

    /// Sweeps database 0 once.
    pub(crate) fn sweep(&mut self) {
        let (now_ms, server) = (self.now_ms, self.server.clone());
        let executor = &mut self.workers[0];
        executor.refresh(now_ms);
        server.core.keyspace.enter(&mut executor.ctx);
        server.core.keyspace.hold_none(&mut executor.ctx).sweep(0, 0, evenkeel_store::SLOTS, || false);
        executor.serve_woken();
        server.core.keyspace.leave(&mut executor.ctx);
        self.resume_all();
    }

    /// Panics if the keyspace is inconsistent.
    pub(crate) fn verify(&mut self) {
        let (server, ctx) = (self.server.clone(), &mut self.workers[0].ctx);
        server.core.keyspace.enter(ctx);
        server.core.keyspace.hold_all(ctx).verify();
        server.core.keyspace.leave(ctx);
    }

    /// Disconnects the client.
    pub(crate) fn hang_up(&mut self, name: &str) {
        let mut connection = self.connections.remove(name).expect("a connection of this name");
        if let Some(waiting) = &connection.session.waiting {
            waiting.abandon();
        }
        connection.leave_queues(&mut self.workers[connection.worker]);
        connection.session.end_push(&self.server.hub);
        self.server.hub.clients.remove(connection.session.client.id);
    }
}

impl Connection {
    fn run(&mut self, executor: &mut Executor, mut bytes: Vec<u8>) {
        let mut spans = Vec::new();
        let parsed = parse(&mut bytes, State::start(0), &mut spans, 1 << 30);
        assert!(matches!(parsed, Ok(Parsed::Ready(_))), "a whole command");
        let (server, session) = (executor.server.clone(), &mut self.session);
        let args = Args::new(&bytes, &spans);
        let request = Request { len: args.wire_len(), ..executor.resolve(args, session.db) };
        let mut reply = Reply::default();
        reply.resp3 = self.resp3;
        executor.last_ticks = clock::ticks();
        server.core.keyspace.enter(&mut executor.ctx);
        executor.make_room();
        let outcome = executor.shielded(&mut reply, |executor, reply| executor.run(session, request, reply));
        executor.serve_woken();
        server.core.keyspace.leave(&mut executor.ctx);
        assert_ne!(outcome, Some(Outcome::Paused), "nobody tries again here");
        assert_eq!(outcome == Some(Outcome::Suspended), self.session.waiting.is_some());
        self.resp3 = reply.resp3;
        self.receive(&reply);
    }

    fn receive(&mut self, reply: &Reply) {
        reply.slices().iter().for_each(|slice| self.out.extend_from_slice(slice));
    }

    fn leave_queues(&mut self, executor: &mut Executor) -> Option<Box<Waiting>> {
        let (waiting, server) = (self.session.waiting.take()?, executor.server.clone());
        server.core.keyspace.enter(&mut executor.ctx);
        waiting.leave(&mut server.core.keyspace.hold_none(&mut executor.ctx));
        server.core.keyspace.leave(&mut executor.ctx);
        self.deadline_ms = None;
        Some(waiting)
    }
}

impl World {
    /// Runs the waiting commands again that time alone may serve.
    fn retry_waits(&mut self) {
        let waits = self.connections.values().filter_map(|connection| {
            let waiting = connection.session.waiting.as_ref()?;
            let On::Keys(blocked, keys) = &waiting.on else { return None };
            let is_retried = blocked.retry_ms.load(Relaxed) != NEVER;
            is_retried.then(|| (connection.worker, blocked.clone(), keys.clone()))
        });
        for (worker, blocked, keys) in waits.collect::<Vec<_>>() {
            let executor = &mut self.workers[worker];
            executor.refresh(self.now_ms);
            executor.retry(&blocked, &keys);
            self.resume_all();
        }
    }
}

impl Target for World {
    fn send(&mut self, connection: &str, args: &[Vec<u8>]) {
        self.connection(connection).pending.push_back(encode_command(args));
        self.run_pending(connection);
        self.resume_all();
    }

    fn receive(&mut self, connection: &str) -> Result<Value, String> {
        loop {
            let ends = self.server.persist.ending.is_under_way();
            self.resume_all();
            let out = &mut self.connection(connection).out;
            if let Some((value, used)) = decode(out).map_err(|error| format!("{error:?}"))? {
                out.drain(..used);
                return Ok(value);
            }
            // An offloaded command may have to end first.
            let server = self.server.clone();
            let mut waits = [&server.offload, &server.slow_scripts].into_iter();
            if let Some((job, long)) = waits.find_map(|long| Some((long.next()?, long))) {
                self.long.refresh(self.now_ms);
                job.run(&mut self.long, long);
                self.resume_all();
            } else if ends || server.offload.running() > 0 {
                // The thread that shuts the server down reports its progress, and a thread that waits for
                // another server returns.
                std::thread::sleep(Duration::from_millis(1));
            } else {
                return Err("no reply".into());
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now_ms += time.as_millis() as u64;
        let mut due: Vec<(u64, String)> = self
            .connections
            .iter()
            .filter_map(|(name, connection)| Some((connection.deadline_ms?, name.clone())))
            .filter(|(deadline, _)| *deadline <= self.now_ms)
            .collect();
        due.sort_unstable();
        self.retry_waits();
        for (_, name) in due {
            let waiting = self.connection(&name).session.waiting.as_ref();
            if let Some(On::Keys(blocked, _)) = waiting.map(|waiting| &waiting.on)
                && let Some(resumed) = blocked.end(End::Timeout)
            {
                self.resume(resumed);
            }
            self.resume_all();
        }
    }
}
