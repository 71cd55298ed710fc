//! A server in process: two workers, any number of sessions, a clock that moves when told to, and no sockets.
//!
//! Transcripts run on it as they do over TCP. All is done on the test's own thread, one request at a time.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_resp::request::{Parsed, State, parse};
use evenkeel_resp::value::{Value, decode, encode_command};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Peer, Program, Random, Target, transcript};

use crate::clients::ClientInfo;
use crate::clock;
use crate::command::{Args, Call, Command, Group, Keys, at_least, write};
use crate::config::Launch;
use crate::dispatch::{Executor, Outcome};
use crate::error::Done;
use crate::log::{Level, Log};
use crate::reply::Reply;
use crate::server::Server;
use crate::session::Session;

/// Commands that only tests have.
pub(crate) const COMMANDS: &[Command] =
    &[write("TEST.PANIC", at_least(2), Keys::REST, Group::Server, set_and_panic)];

/// TEST.PANIC key [key ...]: sets the first key, then breaks down with the locks of all of them held.
fn set_and_panic(call: &mut Call<'_, '_>) -> Done {
    call.held.set_string(&call.keys[0], b"half done", evenkeel_store::Expire::Clear);
    call.reply.bulk(b"the beginning of a reply");
    panic!("as a test wants it");
}

/// See the module's text.
pub(crate) struct World {
    pub(crate) server: Arc<Server>,
    pub(crate) workers: Vec<Executor>,
    connections: HashMap<String, Connection>,
    pub(crate) now_ms: u64,
}

/// A session, served by one of the workers.
struct Connection {
    worker: usize,
    session: Session,
    resp3: bool,
    /// Replies that have not been looked at.
    out: Vec<u8>,
}

const WORKERS: usize = 2;

/// What all servers of these tests are started with.
const START: [&str; 2] = ["--enable-debug-command", "yes"];

/// Runs a transcript in process, and on redis-server where there is one: what it says holds for both.
#[track_caller]
pub(crate) fn check(text: &str) {
    transcript::check_on(&mut World::new(), text);
    if let Some(oracle) = Program::oracle(Peer::Redis) {
        transcript::check(&evenkeel_testkit::Server::start(&oracle, &START), text);
    }
}

/// Randomness for a test; `EVENKEEL_SEED`, which a failing test prints, repeats it.
pub(crate) fn random() -> Random {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    Random::new(seed)
}

impl World {
    pub(crate) fn new() -> World {
        let log = Log::start(Level::Nothing, None);
        let launch =
            Launch::from_args(START.map(OsString::from).into_iter(), |_| true).expect("good arguments");
        let server = Server::new(launch.settings, None, WORKERS, log);
        let server = Arc::new(server.expect("a few descriptors are free"));
        let workers = (0..WORKERS).map(|worker| Executor::new(server.clone(), worker)).collect();
        World { server, workers, connections: HashMap::new(), now_ms: clock::unix_ms() }
    }

    /// As CONFIG SET does.
    pub(crate) fn configure(&self, name: &str, value: &str) {
        let pairs = [(name.as_bytes(), value.as_bytes())];
        let changed = self.server.change_settings(|settings| settings.set(&pairs, true).map(|(new, _)| new));
        assert!(changed.is_ok(), "{name} {value}");
    }

    #[track_caller]
    pub(crate) fn check(&mut self, text: &str) {
        transcript::check_on(self, text);
    }

    /// One command and its reply, as transcripts show it.
    #[track_caller]
    pub(crate) fn run(&mut self, line: &str) -> String {
        let args = evenkeel_testkit::words::split(line).expect("a command line");
        self.call(&args).expect("a reply").to_string()
    }

    /// Whether CLIENT PAUSE holds the command back now.
    pub(crate) fn is_paused(&mut self, name: &str) -> bool {
        let row = self.server.table.row(self.server.table.find(name.as_bytes()).expect("a command"));
        let (server, now_ms) = (self.server.clone(), self.now_ms);
        server.pause.delays(row, &self.connection("").session, now_ms)
    }

    /// Connections are dealt to the workers by turns.
    fn connection(&mut self, name: &str) -> &mut Connection {
        let number = self.connections.len();
        let clients = &self.server.clients;
        self.connections.entry(name.to_string()).or_insert_with(|| {
            let id = clients.next_id();
            let client = ClientInfo::new(id, "test:1".into(), "test:2".into(), -1, false, self.now_ms);
            let client = Arc::new(client);
            clients.add(client.clone());
            let session = Session::new(client, true);
            Connection { worker: number % WORKERS, session, resp3: false, out: Vec::new() }
        })
    }
}

impl Target for World {
    fn send(&mut self, connection: &str, args: &[Vec<u8>]) {
        self.connection(connection);
        let connection = self.connections.get_mut(connection).expect("opened above");
        let executor = &mut self.workers[connection.worker];
        executor.refresh(self.now_ms);
        let (mut bytes, mut spans) = (encode_command(args), Vec::new());
        let parsed = parse(&mut bytes, State::start(0), &mut spans, 1 << 30);
        assert!(matches!(parsed, Ok(Parsed::Ready(_))), "a whole command");
        let (server, session) = (self.server.clone(), &mut connection.session);
        let request = executor.resolve(Args::new(&bytes, &spans), session.db);
        let mut reply = Reply::default();
        reply.resp3 = connection.resp3;
        server.keyspace.enter(&mut executor.seat);
        executor.make_room();
        let outcome = executor.shielded(&mut reply, |executor, reply| executor.run(session, request, reply));
        server.keyspace.leave(&mut executor.seat);
        assert_ne!(outcome, Some(Outcome::Paused), "nobody tries again here");
        connection.resp3 = reply.resp3;
        reply.slices().iter().for_each(|slice| connection.out.extend_from_slice(slice));
    }

    fn receive(&mut self, connection: &str) -> Result<Value, String> {
        let out = &mut self.connection(connection).out;
        let (value, used) = decode(out).map_err(|error| format!("{error:?}"))?.ok_or("no reply")?;
        out.drain(..used);
        Ok(value)
    }

    fn pass(&mut self, time: Duration) {
        self.now_ms += time.as_millis() as u64;
    }
}
