//! DEBUG: for tests of the server itself. It is a single command with topics, as in Redis, so COMMAND shows
//! no subcommands.
//!
//! It locks all slots while it runs: SLEEP is to stop the whole server, not a single worker, and no caller
//! minds. The topics here serve tests against a running server; topics that concern only the internals of
//! Redis are absent.

mod digest;

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evenkeel_store::collection::List;
use evenkeel_store::{Expire, Key, Kind, Str};

use super::config_command::rewrite_file;
use super::{
    Arity, Command, Flags, Group, LockScope, ServerCall, ServerHandler, at_least, docs, exactly, session,
};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::object::encoding_of;
use evenkeel_config::{self as config, Extent, Permit};
use evenkeel_persist::reload::Options;
use evenkeel_replication::History;
use evenkeel_runtime::clock;

/// Not `NO_DATA`: some topics look at keys, so EXEC locks all slots for them.
const FLAGS: Flags = Flags::ADMIN.with(Flags::NOSCRIPT).with(Flags::LOADING).with(Flags::STALE);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    session("DEBUG", at_least(2), Group::Server, debug).flags(FLAGS).lock_scope(LockScope::Whole),
];

#[rustfmt::skip]
const TOPICS: &[(&str, Arity, ServerHandler)] = &[
    ("ACCOUNTING",               exactly(3),  accounting       ),
    ("AOF-FLUSH-SLEEP",          exactly(3),  aof_flush_sleep  ),
    ("AOF-SYNC-SLEEP",           exactly(3),  aof_sync_sleep   ),
    ("CHANGE-REPL-ID",           exactly(2),  change_stream_id ),
    ("CLIENT-ENFORCE-REPLY-LIST", exactly(3), enforce_reply_list),
    ("CONFIG-REWRITE-FORCE-ALL", exactly(2),  rewrite_all      ),
    ("DIGEST",                   exactly(2),  digest::digest   ),
    ("DIGEST-VALUE",             at_least(2), digest::digest_value),
    ("ERROR",                    exactly(3),  error            ),
    ("HELP",                     exactly(2),  help             ),
    ("HTSTATS",                  at_least(3), table_stats      ),
    ("LOADAOF",                  exactly(2),  load_log         ),
    ("LOG",                      exactly(3),  log              ),
    ("OBJECT",                   at_least(3), object           ),
    ("PANIC",                    exactly(2),  panic            ),
    ("PAUSE-CRON",               exactly(3),  pause_timers     ),
    ("POPULATE",                 at_least(3), populate         ),
    ("PROTECT-CLIENT",           exactly(3),  protect_client   ),
    ("PROTOCOL",                 exactly(3),  protocol         ),
    ("QUICKLIST-PACKED-THRESHOLD", exactly(3), packed_threshold),
    ("RELOAD",                   at_least(2), reload           ),
    ("REPLYBUFFER",              exactly(4),  reply_buffer     ),
    ("SEGFAULT",                 exactly(2),  segfault         ),
    ("SET-ACTIVE-EXPIRE",        exactly(3),  set_active_expire),
    ("SET-DISABLE-DENY-SCRIPTS", exactly(3),  set_disable_deny),
    ("SET-SKIP-CHECKSUM-VALIDATION", exactly(3), skip_checksum ),
    ("SLEEP",                    exactly(3),  sleep            ),
];

/// DEBUG topic [arg ...]
fn debug(call: &mut ServerCall<'_, '_>) -> Done {
    let permitted = match call.base.settings.enable_debug_command {
        Permit::Everybody => true,
        Permit::Local => call.session.client.is_local(),
        Permit::Nobody => false,
    };
    if !permitted {
        return Err(Error::text(
            "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can \
             run it from a local connection, otherwise you need to set this option in the configuration \
             file, and then restart the server.",
        ));
    }
    let named = |name: &str| call.base.args.is(1, name);
    let found = TOPICS.iter().find(|(name, arity, _)| named(name) && arity.admits(call.base.args.len()));
    match found {
        Some((.., handler)) => handler(call),
        None => Err(unknown(call.base.args.at(1))),
    }
}

fn unknown(topic: &[u8]) -> Error {
    const SHOWN: usize = 128;
    let mut text = b"ERR unknown subcommand or wrong number of arguments for '".to_vec();
    text.extend(topic.iter().take(SHOWN));
    text.extend_from_slice(b"'. Try DEBUG HELP.");
    Error::Bytes(text)
}

/// DEBUG HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "DEBUG");
    Ok(Flow::Replied)
}

/// DEBUG ACCOUNTING 0 | 1: without accounting, commands and stages seem to take no time; for measuring the
/// cost of accounting. Connections do not take turns within a worker's turn then, and the slow log stays
/// empty.
fn accounting(call: &mut ServerCall<'_, '_>) -> Done {
    clock::set_accounting(call.base.args.int(2)? != 0);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG AOF-FLUSH-SLEEP microseconds: delays each write to the append-only file.
fn aof_flush_sleep(call: &mut ServerCall<'_, '_>) -> Done {
    call.server.persist.aof.metrics.flush_sleep_us.store(microseconds(call), Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG AOF-SYNC-SLEEP microseconds: slows down each sync that no client waits for, as on a slow disk.
fn aof_sync_sleep(call: &mut ServerCall<'_, '_>) -> Done {
    call.server.persist.aof.metrics.sync_sleep_us.store(microseconds(call), Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// As in Redis, an argument that is no number means zero.
fn microseconds(call: &ServerCall<'_, '_>) -> u64 {
    u64::try_from(call.base.args.int(2).unwrap_or(0)).unwrap_or(0)
}

/// DEBUG CONFIG-REWRITE-FORCE-ALL
fn rewrite_all(call: &mut ServerCall<'_, '_>) -> Done {
    rewrite_file(call.server, Extent::All)?;
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG ERROR message
fn error(call: &mut ServerCall<'_, '_>) -> Done {
    Err(Error::Bytes(call.base.args.at(2).to_vec()))
}

/// DEBUG LOG message
fn log(call: &mut ServerCall<'_, '_>) -> Done {
    log::warn!("DEBUG LOG: {}", call.base.args.text(2));
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG PANIC: a broken command. The client gets an error, and the server goes on.
fn panic(_: &mut ServerCall<'_, '_>) -> Done {
    panic!("DEBUG PANIC");
}

/// DEBUG SEGFAULT: ends the process as a bug in unsafe code would.
fn segfault(_: &mut ServerCall<'_, '_>) -> Done {
    // SAFETY: sends a signal to this thread.
    unsafe { libc::raise(libc::SIGSEGV) };
    Ok(Flow::Replied)
}

/// DEBUG SET-SKIP-CHECKSUM-VALIDATION 0 | 1: RESTORE then takes payloads whose checksum is wrong.
fn skip_checksum(call: &mut ServerCall<'_, '_>) -> Done {
    let skips = call.base.args.int(2).unwrap_or(0) != 0;
    call.server.core.change_settings(|settings| Ok::<_, Error>(settings.with_skipped_checksums(skips)))?;
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG QUICKLIST-PACKED-THRESHOLD size
///
/// Redis keeps list elements of this length and longer on their own. Here it sets how they are serialized;
/// zero leaves that to the format.
fn packed_threshold(call: &mut ServerCall<'_, '_>) -> Done {
    const BYTES_MAX: u64 = (4 << 30) - (1 << 20);
    let bytes = config::memory_size(call.base.args.at(2)).filter(|bytes| *bytes <= BYTES_MAX);
    let error = Error::text("ERR argument must be a memory value bigger than 1 and smaller than 4gb");
    let bytes = bytes.ok_or(error)? as usize;
    call.server.core.change_settings(|settings| Ok::<_, Error>(settings.with_packed_threshold(bytes)))?;
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG RELOAD [MERGE] [NOFLUSH] [NOSAVE]: saves everything, and loads it again. All clients wait.
fn reload(call: &mut ServerCall<'_, '_>) -> Done {
    let mut options = Options { save: true, flush: true, merge: false };
    for at in 2..call.base.args.len() {
        match call.base.args.word(at).as_bytes() {
            b"MERGE" => options.merge = true,
            b"NOFLUSH" => options.flush = false,
            b"NOSAVE" => options.save = false,
            _ => {
                return Err(Error::text(
                    "ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.",
                ));
            }
        }
    }
    let server = call.server.clone();
    call.offload_alone(move |reply| {
        let reloaded = evenkeel_persist::reload::from_snapshot(&server.persist, options);
        reloaded.map_err(|reason| {
            log::warn!("DEBUG RELOAD: {reason}");
            Error::text("ERR Error trying to load the RDB dump, check server logs.")
        })?;
        reply.ok();
        Ok(())
    })
}

/// DEBUG LOADAOF: loads the append-only files again. All clients wait.
fn load_log(call: &mut ServerCall<'_, '_>) -> Done {
    let server = call.server.clone();
    call.offload_alone(move |reply| {
        let loaded = evenkeel_persist::reload::from_log(&server.persist);
        loaded.map_err(|_| Error::text("ERR Error trying to load the AOF files, check server logs."))?;
        reply.ok();
        Ok(())
    })
}

/// DEBUG CLIENT-ENFORCE-REPLY-LIST 0 | 1: without effect, since no client has a reply buffer of a fixed size.
fn enforce_reply_list(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.args.int(2)?;
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG REPLYBUFFER RESIZING 0 | 1
/// DEBUG REPLYBUFFER PEAK-RESET-TIME milliseconds | NEVER | RESET
///
/// Without effect, for the same reason.
fn reply_buffer(call: &mut ServerCall<'_, '_>) -> Done {
    if !call.base.args.is(2, "RESIZING") && !call.base.args.is(2, "PEAK-RESET-TIME") {
        return Err(Error::Syntax);
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG PROTECT-CLIENT client-id: nothing but its own end closes the client.
fn protect_client(call: &mut ServerCall<'_, '_>) -> Done {
    let id = u64::try_from(call.base.args.int(2)?).unwrap_or(0);
    let client = call.server.hub.clients.get(id).ok_or(Error::text("ERR No such client"))?;
    client.protected.store(true, std::sync::atomic::Ordering::Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG PAUSE-CRON 0 | 1: whether the timers of the workers stand still, and an end that a signal has begun.
fn pause_timers(call: &mut ServerCall<'_, '_>) -> Done {
    let on = call.base.args.int(2)? != 0;
    call.server.pauses_timers.store(on, std::sync::atomic::Ordering::Relaxed);
    call.server.persist.ending.is_delayed.store(on, std::sync::atomic::Ordering::Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG CHANGE-REPL-ID: connected replicas stay; a replica that connects anew needs a full sync.
fn change_stream_id(call: &mut ServerCall<'_, '_>) -> Done {
    let mut stream = call.server.replication.stream();
    stream.history = History::random();
    log::info!("Replication ID changed to {} (DEBUG CHANGE-REPL-ID)", stream.history.id);
    drop(stream);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG SET-ACTIVE-EXPIRE 0 | 1
fn set_active_expire(call: &mut ServerCall<'_, '_>) -> Done {
    let on = call.base.args.int(2).unwrap_or(0) != 0;
    call.server.active_expire.store(on, std::sync::atomic::Ordering::Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG SET-DISABLE-DENY-SCRIPTS 0 | 1: whether scripts may call any command.
fn set_disable_deny(call: &mut ServerCall<'_, '_>) -> Done {
    let on = call.base.args.int(2).unwrap_or(0) != 0;
    call.server.scripts.denies_nothing.store(on, std::sync::atomic::Ordering::Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG SLEEP seconds: no command is run meanwhile, and replicas and the primary hear nothing. An argument
/// that is no number means zero.
fn sleep(call: &mut ServerCall<'_, '_>) -> Done {
    /// The longest delay that this causes to a shutdown.
    const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);
    let seconds = call.base.args.text(2).parse().unwrap_or(0.0);
    let span = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let started = Instant::now();
    let _asleep = call.server.core.sleep();
    while let Some(left) = span.checked_sub(started.elapsed())
        && !left.is_zero()
        && !call.server.certainly_stops()
    {
        std::thread::sleep(left.min(STOP_POLL_INTERVAL));
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG PROTOCOL type: an example of it.
fn protocol(call: &mut ServerCall<'_, '_>) -> Done {
    let reply = &mut *call.base.reply;
    match call.base.args.word(2).as_bytes() {
        b"STRING" => reply.bulk(b"Hello World"),
        b"INTEGER" => reply.int(12345),
        #[expect(clippy::approx_constant, reason = "what Redis replies, digit for digit")]
        b"DOUBLE" => reply.double(3.141),
        b"NULL" => reply.null(),
        b"ARRAY" => {
            reply.array(3);
            (0..3).for_each(|value| reply.int(value));
        }
        b"SET" => {
            reply.set(3);
            (0..3).for_each(|value| reply.int(value));
        }
        b"MAP" => {
            reply.map(3);
            for value in 0..3 {
                reply.int(value);
                reply.bool(value == 1);
            }
        }
        b"ATTRIB" => {
            if reply.resp3 {
                reply.bytes.extend_from_slice(b"|1\r\n");
                reply.bulk(b"key-popularity");
                reply.array(2);
                reply.bulk(b"key:123");
                reply.int(90);
            }
            reply.bulk(b"Some real reply following the attribute");
        }
        b"PUSH" if !reply.resp3 => return Err(Error::text("ERR RESP2 is not supported by this command")),
        b"PUSH" => {
            reply.push(2);
            reply.bulk(b"server-cpu-usage");
            reply.int(42);
            reply.bulk(b"Some real reply following the push reply");
        }
        b"VERBATIM" => reply.verbatim("This is a verbatim\nstring", b"txt"),
        b"TRUE" => reply.bool(true),
        b"FALSE" => reply.bool(false),
        b"BIGNUM" => reply.big_number("1234567999999999999999999999999999999"),
        _ => {
            return Err(Error::text(
                "ERR Wrong protocol type name. Please use one of the following: \
                 string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(Flow::Replied)
}

/// DEBUG OBJECT key
///
/// The address is that of the key's bytes. The length is that of a string in an uncompressed snapshot, or the
/// memory of a collection, which is about as much. Of a long list, it shows the number of pages, about, and
/// their mean number of elements as those of Valkey's nodes, and the settings of nodes. No page is
/// compressed.
fn object(call: &mut ServerCall<'_, '_>) -> Done {
    let key = call.server.core.keyspace.key(call.session.db, call.base.args.at(2));
    let settings = call.base.settings;
    let now = std::mem::take(&mut call.base.guard.ctx.now_ms); // shows expired keys as well
    let line = call.base.guard.visit(key.place, |guard| {
        let view = guard.peek(&key)?;
        let idle = evenkeel_store::evict::idle_ms(view.access(), now) / 1000;
        let encoding = encoding_of(view, settings);
        let mut line = format!(
            "Value at:{:p} refcount:1 encoding:{encoding} serializedlength:{} lru:{} lru_seconds_idle:{idle}",
            view.key().as_ptr(),
            if view.kind() == Kind::String { serialized_len(view.string()) } else { view.memory() },
            view.access(),
        );
        if encoding == "quicklist" {
            let (list, memory) = (view.collection::<List>(), view.memory());
            let (pages, depth) =
                (list.pages_up_to(usize::MAX).max(1), settings.get(&[b"list-compress-depth"]));
            let _ = write!(
                line,
                " ql_nodes:{pages} ql_avg_node:{:.2} ql_listpack_max:{} ql_compressed:{} \
                 ql_uncompressed_size:{memory}",
                list.len() as f64 / pages as f64,
                settings.list_max_listpack_size,
                u8::from(depth.iter().any(|(_, depth)| depth != b"0")),
            );
        }
        Some(line)
    });
    call.base.guard.ctx.now_ms = now;
    call.base.reply.simple(&line.ok_or(Error::NoSuchKey)?);
    Ok(Flow::Replied)
}

fn integer(bytes: &[u8]) -> Option<i64> {
    evenkeel_resp::number::parse_i64(bytes)
}

/// Bytes of a string in an RDB file.
fn serialized_len(value: Str<'_>) -> usize {
    let number = match value {
        Str::Flat(bytes) => integer(bytes),
        Str::Rope(_) => None,
    };
    match (number, value.len()) {
        (Some(-0x80..=0x7f), _) => 2,
        (Some(-0x8000..=0x7fff), _) => 3,
        (Some(-0x8000_0000..=0x7fff_ffff), _) => 5,
        (_, len @ 0..=0x3f) => 1 + len,
        (_, len @ 0x40..=0x3fff) => 2 + len,
        (_, len) => 5 + len,
    }
}

/// DEBUG POPULATE count [prefix] [size]
///
/// Existing keys keep their values. The server may stop meanwhile.
fn populate(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let positive = |at: usize| {
        let number = args.int(at).ok().and_then(|number| usize::try_from(number).ok());
        number.ok_or(Error::text("ERR value is out of range, must be positive"))
    };
    let count = positive(2)?;
    let prefix = args.get(3).unwrap_or(b"key");
    let size = if args.len() > 4 { positive(4)? } else { 0 };
    if size > call.base.settings.proto_max_bulk_len {
        return Err(Error::StringTooLong);
    }
    for number in 0..count {
        if call.server.certainly_stops() {
            break;
        }
        let name = [prefix, format!(":{number}").as_bytes()].concat();
        let mut value = format!("value:{number}").into_bytes();
        if size > 0 {
            value.resize(size, 0);
        }
        let key: Key<'_> = call.server.core.keyspace.key(call.session.db, &name);
        call.base.guard.visit(key.place, |guard| {
            if guard.peek(&key).is_none() {
                guard.set_string(&key, &value, Expire::Clear);
            }
        });
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DEBUG HTSTATS db [FULL]
fn table_stats(call: &mut ServerCall<'_, '_>) -> Done {
    let db =
        usize::try_from(call.base.args.int(2)?).ok().filter(|db| *db < call.server.core.keyspace.databases());
    let db = db.ok_or(Error::text("ERR Out of range database"))?;
    let (keyspace, ctx) = (&call.server.core.keyspace, &call.base.guard.ctx);
    let before = clock::ticks();
    let memory = keyspace.table_memory(ctx, db);
    let text = format!(
        "[Slots]\n number of slots: {}\n number of elements: {}\n elements with a deadline: {}\n \
         bytes of tables: {memory}\n microseconds to count them: {}\n",
        evenkeel_store::SLOTS,
        keyspace.len(ctx, db),
        keyspace.timed_len(ctx, db),
        clock::us(clock::ticks() - before),
    );
    call.base.reply.verbatim(&text, b"txt");
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use crate::testing::{World, check};

    #[test]
    fn debug_subcommands_check_their_arguments() {
        check(
            "
            > DEBUG                            < -ERR wrong number of arguments for 'debug' command
            > DEBUG NOSUCH
            < -ERR unknown subcommand or wrong number of arguments for 'NOSUCH'. Try DEBUG HELP.
            > DEBUG SLEEP
            < -ERR unknown subcommand or wrong number of arguments for 'SLEEP'. Try DEBUG HELP.
            > DEBUG SLEEP 0.001                < OK
            > DEBUG SET-ACTIVE-EXPIRE 1        < OK
            > DEBUG ERROR \"TEST of an error\"  < -TEST of an error
            > DEBUG OBJECT k                   < -ERR no such key
            > SET k 1234
            > DEBUG OBJECT k
            < Value at:* refcount:1 encoding:int serializedlength:3 lru:* lru_seconds_idle:0
            > CONFIG SET list-max-listpack-size 2 list-compress-depth 3 < OK
            > RPUSH l a b c                    < :3
            > DEBUG OBJECT l
            < Value at:* encoding:quicklist * ql_nodes:* ql_avg_node:* ql_listpack_max:2 ql_compressed:1 *
            > DEL l                            < :1
            > DEBUG POPULATE 3 key 10          < OK
            > GET key:2                        < \"value:2\\x00\\x00\\x00\"
            > DEBUG POPULATE x                 < -ERR value is out of range, must be positive
            > DEBUG HTSTATS 99                 < -ERR Out of range database
        ",
        );
    }

    /// Redis has no such topic.
    #[test]
    fn debug_accounting_takes_a_number() {
        World::new().check(
            "
            > DEBUG ACCOUNTING
            < -ERR unknown subcommand or wrong number of arguments for 'ACCOUNTING'. Try DEBUG HELP.
            > DEBUG ACCOUNTING x               < -ERR value is not an integer or out of range
            > DEBUG ACCOUNTING 1               < OK
        ",
        );
    }

    #[test]
    fn debug_protocol_replies_each_type() {
        check(
            "
            > DEBUG PROTOCOL double            < \"3.141\"
            > DEBUG PROTOCOL map               < [:0, :0, :1, :1, :2, :0]
            > DEBUG PROTOCOL push              < -ERR RESP2 is not supported by this command
            > DEBUG PROTOCOL true              < :1
            > DEBUG PROTOCOL nosuch            < -ERR Wrong protocol type name. *
            > DEBUG PROTOCOL verbatim          < \"This is a verbatim\\nstring\"
        ",
        );
    }

    #[test]
    fn a_panicking_command_releases_all_locks() {
        World::new().check(
            "
            > SET k v
            > DEBUG PANIC
            < -ERR internal error: the command was aborted, see the server log
            a> FLUSHALL                        < OK
            b> SET k w                         < OK
            > GET k                            < \"w\"
            > INFO stats                       < \"*unexpected_error_replies:1\\r*\"
        ",
        );
    }

    #[test]
    fn serialized_lengths_match_a_snapshot() {
        use super::serialized_len;
        use evenkeel_store::Str;
        for (value, len) in
            [(&b"12"[..], 2), (b"-200", 3), (b"70000", 5), (b"5000000000", 11), (b"", 1), (b"x", 2)]
        {
            assert_eq!(serialized_len(Str::Flat(value)), len, "{}", value.escape_ascii());
        }
        assert_eq!(serialized_len(Str::Flat(&[b'x'; 100])), 102);
        assert_eq!(serialized_len(Str::Flat(&[b'x'; 16_384])), 16_389);
    }
}
