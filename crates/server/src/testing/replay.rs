//! The journal of a server in process, and a server that replays it.

use evenkeel_resp::value::{Value, decode};
use evenkeel_store::journal::Reader;
use evenkeel_testkit::Target;
use evenkeel_testkit::digest::{Digest, digest};

use super::World;

/// Reads the journal of a [`World`] as a single stream of commands.
pub(crate) struct Recorder {
    reader: Reader,
    pub(crate) bytes: Vec<u8>,
    db: u32,
}

impl World {
    /// Starts the journal.
    pub(crate) fn record(&mut self) -> Recorder {
        let (server, ctx) = (self.server.clone(), &mut self.workers[0].ctx);
        server.core.keyspace.enter(ctx);
        let reader = server.core.keyspace.hold_all(ctx).join_log();
        server.core.keyspace.leave(ctx);
        Recorder { reader, bytes: Vec::new(), db: 0 }
    }

    /// Creates a server whose clock stands at zero, so that nothing expires.
    pub(crate) fn timeless() -> World {
        let mut world = World::new();
        world.now_ms = 0;
        world
    }

    /// Runs the commands of a journal, each of which must succeed.
    #[track_caller]
    pub(crate) fn replay(&mut self, log: &[u8]) {
        for args in commands_of(log) {
            self.send("log", &args);
            let reply = self.receive("log").expect("nothing in a log waits");
            let failed = reply.is_error() || reply.as_items().unwrap_or_default().iter().any(Value::is_error);
            assert!(!failed, "{} says {reply}", shown(&args));
        }
    }

    /// Returns the digest of all keys, including expired keys that are not removed yet.
    pub(crate) fn digest(&mut self) -> Digest {
        let now_ms = std::mem::take(&mut self.now_ms);
        let digest = digest(self);
        self.now_ms = now_ms;
        digest
    }

    /// Sweeps all databases once.
    pub(crate) fn sweep_all(&mut self) {
        let (now_ms, server) = (self.now_ms, self.server.clone());
        for db in 0..server.core.keyspace.databases() {
            let executor = &mut self.workers[0];
            executor.refresh(now_ms);
            server.core.keyspace.enter(&mut executor.ctx);
            server.core.keyspace.hold_none(&mut executor.ctx).sweep(db, 0, evenkeel_store::SLOTS, || false);
            executor.serve_woken();
            server.core.keyspace.leave(&mut executor.ctx);
        }
        self.resume_all();
    }
}

impl Recorder {
    /// Reads the journal since the last call; returns it as lines.
    pub(crate) fn take(&mut self, world: &World) -> Vec<String> {
        let from = self.bytes.len();
        let (bytes, db) = (&mut self.bytes, &mut self.db);
        self.reader.read(&world.server.core.keyspace.journal, |record| {
            let rest = record.preceded(Some(*db), bytes);
            bytes.extend_from_slice(rest);
            *db = record.last_db;
            true
        });
        commands_of(&self.bytes[from..]).iter().map(|args| shown(args)).collect()
    }
}

/// Returns the commands of a journal.
fn commands_of(mut log: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut commands = Vec::new();
    while let Some((command, used)) = decode(log).expect("a log is well-formed") {
        let words = command.as_items().expect("a command is an array").iter();
        commands.push(words.map(|word| word.as_bytes().expect("a word is a string").to_vec()).collect());
        log = &log[used..];
    }
    assert!(log.is_empty(), "a log ends with a command");
    commands
}

fn shown(args: &[Vec<u8>]) -> String {
    evenkeel_testkit::words::join(args)
}
