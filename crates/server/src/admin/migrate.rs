//! MIGRATE: moves keys to another server.
//!
//! The keys' values are shared under their locks, in constant time each. The command's own thread talks to
//! the other server, so no client here waits for the network. Once the other server has stored the keys, they
//! are removed here, except keys that were written to or removed meanwhile. Such a key stays as it is, and
//! the reply is an error. Each key is watched until then, since an equal value need not be the sent value:
//! the other server may be this server.
//!
//! Inside MULTI, where nothing can be deferred, all clients wait until the other server has answered or the
//! timeout has passed. When too many commands have such a thread, MIGRATE is refused. If the client goes, its
//! command gives up.

mod target;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use evenkeel_resp::value::Value as Answer;
use evenkeel_store::{Millis, Watch};

use super::{Args, Command, Group, Keys, ServerCall, ServerHandler, at_least, write};
use crate::server::Server;
use evenkeel_command::Call;
use evenkeel_command::error::Error;
use evenkeel_command::flow::Work;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::value_codec::{self, Value};
use evenkeel_config::Settings;
use evenkeel_runtime::clock;
use target::{Target, WaitLimit, Who};

pub(crate) use target::Targets;

const KEYS: Keys = Keys::Across(|args, db, _, key| {
    for_each_key(args, &mut |index| key(index, db));
});

pub(crate) const COMMANDS: &[Command<ServerHandler>] =
    &[write("MIGRATE", at_least(6), KEYS, Group::Keyspace, migrate)];

/// Milliseconds to wait if the timeout is not positive.
const TIMEOUT_MS: i64 = 1000;

/// Finds the key before the options, or all keys behind KEYS. Both at once is an error, and there are no keys
/// then.
fn for_each_key(args: &Args<'_>, key: &mut dyn FnMut(usize)) {
    let mut at = 6;
    while at < args.len() {
        match args.word(at).as_bytes() {
            b"KEYS" if args.at(3).is_empty() => return (at + 1..args.len()).for_each(key),
            b"KEYS" => return,
            b"AUTH" => at += 2,
            b"AUTH2" => at += 3,
            _ => at += 1,
        }
    }
    if args.len() > 3 {
        key(3);
    }
}

/// The arguments other than keys.
struct Options {
    who: Who,
    db: i64,
    timeout: Duration,
    copies: bool,
    replaces: bool,
}

impl Options {
    fn parse(args: &Args<'_>) -> Result<Options, Error> {
        let (mut copies, mut replaces, mut credentials) = (false, false, Vec::new());
        let mut at = 6;
        while at < args.len() {
            let left = args.len() - at - 1;
            match args.word(at).as_bytes() {
                b"COPY" => copies = true,
                b"REPLACE" => replaces = true,
                b"AUTH" | b"AUTH2" => {
                    let count = if args.is(at, "AUTH") { 1 } else { 2 };
                    if left < count {
                        return Err(Error::Syntax);
                    }
                    credentials = (1..=count).map(|next| args.at(at + next).to_vec()).collect();
                    at += count;
                }
                b"KEYS" if args.at(3).is_empty() => break,
                b"KEYS" => {
                    let text = "ERR When using MIGRATE KEYS option, the key argument must be set to the \
                                empty string";
                    return Err(Error::text(text));
                }
                _ => return Err(Error::Syntax),
            }
            at += 1;
        }
        let (timeout, db) = (args.int(5)?, args.int(4)?);
        let timeout = if timeout <= 0 { TIMEOUT_MS } else { timeout };
        let who = Who {
            host: args.text(1),
            // An invalid port means an unreachable server, once it is known that there are keys to send.
            port: args.text(2).parse().unwrap_or(0),
            credentials,
            is_encrypted: false,
        };
        Ok(Options { who, db, timeout: Duration::from_millis(timeout as u64), copies, replaces })
    }
}

fn unreachable_target() -> Error {
    Error::text("IOERR error or timeout connecting to the client")
}

/// A key on its way.
struct Cargo {
    /// Its index among the keys of the call.
    index: usize,
    name: Vec<u8>,
    value: Value,
    deadline: Option<Millis>,
    /// Touched when the key is changed or removed.
    watch: Arc<Watch>,
}

/// The outcome for the keys: the indices of the keys that the other server has stored, ascending, and the
/// first error.
#[derive(Default)]
struct Delivered {
    indices: Vec<usize>,
    error: Option<Error>,
}

/// MIGRATE host port <key | ""> destination-db timeout [COPY] [REPLACE] [AUTH password | AUTH2 username
/// password] [KEYS key [key ...]]
fn migrate(call: &mut ServerCall<'_, '_>) -> Done {
    let mut options = Options::parse(&call.base.args)?;
    options.who.is_encrypted = call.base.settings.tls_cluster;
    let (mut cargo, mut seen) = (Vec::new(), HashSet::new());
    for (index, key) in call.base.keys.iter().enumerate() {
        if seen.insert(key.bytes)
            && let Some(view) = call.base.guard.read(key)
        {
            let (value, deadline) = (Value::of(view), view.deadline());
            cargo.push(Cargo { index, name: key.bytes.to_vec(), value, deadline, watch: Arc::default() });
        }
    }
    if cargo.is_empty() {
        call.base.reply.simple("NOKEY");
        return Ok(Flow::Replied);
    }
    let (settings, copies, server) = (call.base.settings.clone(), options.copies, Arc::clone(call.server));
    let watches: Vec<_> = cargo.iter().map(|sent| (sent.index, sent.watch.clone())).collect();
    let done = call.base.offload_io(Work::blocking_io(
        move |nobody_waits| {
            let delivered = deliver(&options, &cargo, (&settings, &server), nobody_waits);
            Ok((cargo, delivered))
        },
        move |call, (cargo, delivered)| finish(call, &cargo, delivered, copies),
    ));
    // The keys are still locked. If the work is done already, they were locked throughout.
    if matches!(done, Ok(Flow::Offload(_))) {
        watches.iter().for_each(|(index, watch)| _ = call.base.guard.watch(&call.base.keys[*index], watch));
    }
    done
}

const TOUCHED: &str = "ERR A key was changed while it was being migrated: the copy is on the target, and the \
                       key here was not deleted";

/// Ends the watches, removes the delivered keys, and replies.
fn finish(call: &mut Call<'_, '_>, cargo: &[Cargo], delivered: Delivered, copies: bool) -> Done {
    let (mut error, mut removed) = (delivered.error, Vec::new());
    let now = call.now_ms();
    for sent in cargo {
        let key = call.keys[sent.index];
        call.guard.unwatch(&key, &sent.watch);
        if copies || delivered.indices.binary_search(&sent.index).is_err() {
            continue;
        }
        let is_untouched = !sent.watch.is_touched();
        match call.guard.peek(&key) {
            None if sent.deadline.is_some_and(|deadline| deadline <= now) => {} // and there it expires, too
            Some(view) if is_untouched && view.deadline() == sent.deadline && sent.value.is_same(view) => {
                call.guard.remove(&key);
                removed.push(key.bytes);
            }
            _ => error = error.or(Some(Error::text(TOUCHED))),
        }
    }
    call.log_each(&[b"DEL"], 1, removed);
    match error {
        Some(error) => Err(error),
        None => {
            call.reply.ok();
            Ok(Flow::Replied)
        }
    }
}

fn broken(error: &io::Error) -> Error {
    let what = if error.kind() == io::ErrorKind::UnexpectedEof { "reading" } else { "writing" };
    Error::text(format!("IOERR error or timeout {what} to target instance"))
}

/// Sends the keys, and reads the answers. A key that expires before its turn is left to expire here.
fn deliver(
    options: &Options,
    cargo: &[Cargo],
    (settings, server): (&Settings, &Server),
    nobody_waits: &Arc<AtomicBool>,
) -> Delivered {
    let mut delivered = Delivered::default();
    let wait_limit = WaitLimit::new(options.timeout, nobody_waits);
    let mut target = match greet(options, server, &wait_limit) {
        Ok(target) => target,
        Err(error) => return Delivered { error: Some(error), ..delivered },
    };
    let command: &[u8] = if settings.cluster_enabled { b"RESTORE-ASKING" } else { b"RESTORE" };
    for sent in cargo {
        let payload = value_codec::payload(&sent.value, settings);
        let now = clock::unix_ms();
        if sent.deadline.is_some_and(|deadline| deadline <= now) {
            continue;
        }
        let ttl = sent.deadline.map_or(0, |deadline| deadline - now).to_string();
        let mut words: Vec<&[u8]> = vec![command, &sent.name, ttl.as_bytes(), &payload];
        if options.replaces {
            words.push(b"REPLACE");
        }
        match target.ask(&words) {
            Ok(answer) => match refused(answer) {
                Ok(()) => delivered.indices.push(sent.index),
                Err(error) => delivered.error = delivered.error.or(Some(error)),
            },
            Err(error) => {
                // The keys delivered before are there, and must not stay here as well.
                delivered.error = delivered.error.or_else(|| Some(broken(&error)));
                return delivered;
            }
        }
    }
    server.targets.keep(target);
    delivered
}

/// Returns a connection with the database selected. A kept connection may have been closed at the other end:
/// that shows before any key is sent, and a new connection is made.
fn greet(options: &Options, server: &Server, wait_limit: &WaitLimit) -> Result<Target, Error> {
    if let Some(mut target) = server.targets.take(&options.who) {
        target.set_wait_limit(wait_limit.clone());
        if let Ok(answered) = introduce(&mut target, options) {
            return answered.map(|()| target);
        }
    }
    let tls = server.tls.contexts().map(|contexts| contexts.client.clone());
    let mut target =
        Target::connect(&options.who, wait_limit, tls.as_ref()).map_err(|error| match error.kind() {
            // Redis finds out only when it writes.
            io::ErrorKind::ConnectionRefused => broken(&error),
            _ => unreachable_target(),
        })?;
    introduce(&mut target, options).map_err(|error| broken(&error))??;
    Ok(target)
}

/// Sends the commands before the keys. The outer `Err` means a broken connection, the inner result is the
/// other server's answer.
fn introduce(target: &mut Target, options: &Options) -> io::Result<Result<(), Error>> {
    let credentials = &options.who.credentials;
    if !credentials.is_empty() {
        let words: Vec<&[u8]> =
            [&b"AUTH"[..]].into_iter().chain(credentials.iter().map(|w| &w[..])).collect();
        if let Err(error) = refused(target.ask(&words)?) {
            return Ok(Err(error));
        }
    }
    Ok(refused(target.ask(&[b"SELECT", options.db.to_string().as_bytes()])?))
}

/// Converts the other server's error.
fn refused(answer: Answer) -> Result<(), Error> {
    match answer {
        Answer::Error(text) => {
            Err(Error::Bytes([b"ERR Target instance replied with error: ", &text[..]].concat()))
        }
        _ => Ok(()),
    }
}
