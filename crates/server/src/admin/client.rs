//! CLIENT: the connected clients, and operations on them.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::connection::set_name;
use super::{
    Args, Arity, Command, Flags, Group, LockScope, ServerCall, ServerHandler, at_least, container, docs,
    exactly, session, tracking,
};
use crate::executor::keeps_expired;
use crate::observe::stats::Outcome;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::maintenance::{Asked, repeat_move};
use evenkeel_client::session::ReplyMode;
use evenkeel_client::tracking::mode;
use evenkeel_client::waiting::End;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::table::table;
use evenkeel_config::WriteAcks;
use evenkeel_core::pause::Pauser;

mod filter;

use filter::{Filter, Purpose};

/// Allowed while a script runs for long.
const BUSY: Flags = Flags::ALLOW_BUSY;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    container("CLIENT", Group::Connection, &[
        session("CLIENT|CACHING",      exactly(3),  Group::Connection, tracking::caching).flag(BUSY),
        session("CLIENT|CAPA",         at_least(3), Group::Connection, capa         ).flag(BUSY),
        session("CLIENT|GETNAME",      exactly(2),  Group::Connection, get_name     ).flag(BUSY),
        session("CLIENT|GETREDIR",     exactly(2),  Group::Connection, tracking::get_redir).flag(BUSY),
        session("CLIENT|HELP",         exactly(2),  Group::Connection, help         ).scriptable(),
        session("CLIENT|ID",           exactly(2),  Group::Connection, id           ).flag(BUSY),
        session("CLIENT|IMPORT-SOURCE", exactly(3), Group::Connection, import_source),
        session("CLIENT|INFO",         exactly(2),  Group::Connection, info         ),
        session("CLIENT|KILL",         at_least(3), Group::Connection, kill         ).admin(),
        session("CLIENT|LIST",         at_least(2), Group::Connection, list         ).admin(),
        session("CLIENT|MAINT_NOTIFICATIONS", at_least(3), Group::Connection, maint_notifications),
        session("CLIENT|NO-EVICT",     exactly(3),  Group::Connection, no_evict     ).admin().flag(BUSY),
        session("CLIENT|NO-TOUCH",     exactly(3),  Group::Connection, no_touch     ).flag(BUSY),
        session("CLIENT|WRITE-ACKS",   exactly(3),  Group::Connection, write_acks   )
            .lock_scope(LockScope::Whole),
        whole("CLIENT|PAUSE",          at_least(3), pause  ),
        session("CLIENT|REPLY",        exactly(3),  Group::Connection, reply        )
            .flag(BUSY.with(Flags::NO_MULTI)),
        session("CLIENT|SETINFO",      exactly(4),  Group::Connection, set_info     ).flag(BUSY),
        session("CLIENT|SETNAME",      exactly(3),  Group::Connection, set_name_of  ).flag(BUSY),
        session("CLIENT|TRACKING",     at_least(3), Group::Connection, tracking::tracking),
        session("CLIENT|TRACKINGINFO", exactly(2),  Group::Connection, tracking::tracking_info),
        session("CLIENT|UNBLOCK",      at_least(3), Group::Connection, unblock      ).admin(),
        // Otherwise no client could end a pause of all commands.
        whole("CLIENT|UNPAUSE",        exactly(2),  unpause).flag(Flags::EVEN_PAUSED),
    ]),
];

/// No command is under way while it runs: a command that writes after a pause's reply, or that treats an
/// expired key as gone, has not begun before it.
const fn whole(name: &'static str, arity: Arity, handler: ServerHandler) -> Command<ServerHandler> {
    let command = session(name, arity, Group::Connection, handler).without(Flags::NO_DATA).admin();
    command.lock_scope(LockScope::Whole)
}

/// CLIENT HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "CLIENT");
    Ok(Flow::Replied)
}

/// CLIENT ID
fn id(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.reply.int(call.session.client.id as i64);
    Ok(Flow::Replied)
}

/// CLIENT INFO
fn info(call: &mut ServerCall<'_, '_>) -> Done {
    let line = describe_to(call, &call.session.client);
    reply_text(call, &line);
    Ok(Flow::Replied)
}

/// CLIENT LIST [filter value ...]
fn list(call: &mut ServerCall<'_, '_>) -> Done {
    let filter = Filter::parse(call, 2, Purpose::List)?;
    // The list shows the clients as `maxmemory-clients` permits them, not as they were at the last check.
    let limit = call.base.settings.client_memory_max();
    if limit > 0 {
        call.server.evict_clients(limit);
    }
    let mut text = Vec::new();
    for client in call.server.hub.clients.list().iter().filter(|client| filter.admits(call, client)) {
        text.extend(describe_to(call, client));
    }
    reply_text(call, &text);
    Ok(Flow::Replied)
}

/// Replies with a verbatim text, which, due to clients' names, need not be valid UTF-8.
fn reply_text(call: &mut ServerCall<'_, '_>, text: &[u8]) {
    if !call.base.reply.resp3 {
        return call.base.reply.bulk(text);
    }
    let header = format!("={}\r\ntxt:", text.len() + 4);
    call.base.reply.bytes.extend_from_slice(header.as_bytes());
    call.base.reply.bytes.extend_from_slice(text);
    call.base.reply.bytes.extend_from_slice(b"\r\n");
}

/// Returns the line about a client, as its caller sees it.
fn describe_to(call: &ServerCall<'_, '_>, client: &ClientInfo) -> Vec<u8> {
    let itself = client.id == call.session.client.id;
    let arg_bytes = itself.then(|| call.base.args.from(0).map(<[u8]>::len).sum());
    let mut line = describe(client, call.now_ms(), arg_bytes);
    line.push(b'\n');
    line
}

/// Returns the line about a client, without its end. Fields that this server lacks (fixed reply buffers) are
/// zero. `arg_bytes`: the client's command is being run, and has arguments of so many bytes.
pub(crate) fn describe(client: &ClientInfo, now: u64, arg_bytes: Option<usize>) -> Vec<u8> {
    let (itself, arg_bytes) = (arg_bytes.is_some(), arg_bytes.unwrap_or(0));
    let seconds = |since: u64| now.saturating_sub(since) / 1000;
    let room = client.query_room(now);
    // Bytes in a worker's buffer are not in one of the client.
    let used = client.query_used.load(Relaxed).min(room);
    let waiting = client.out_bytes.load(Relaxed);
    let command = table().rows().get(client.command.load(Relaxed) as usize);
    let command = command.map_or("NULL".to_owned(), |row| row.lower_name());
    let mut line = format!("id={} addr={} laddr={}", client.id, client.address, client.local_address);
    // Writing to a string cannot fail, here and below.
    let _ = write!(line, " fd={} name=", client.fd);
    let mut line = line.into_bytes();
    line.extend_from_slice(&client.name.lock());
    let mut rest = String::new();
    let _ = write!(
        rest,
        " age={} idle={} flags={} capa={} db={} sub={} psub={} ssub={} multi={} watch={} qbuf={used} \
         qbuf-free={} argv-mem={arg_bytes} multi-mem={} rbs=0 rbp=0 obl=0 oll={} omem={waiting} tot-mem={} \
         events={} cmd={command} user=",
        seconds(client.created_ms),
        if itself { 0 } else { seconds(client.active_ms.load(Relaxed)) },
        flags_of(client),
        if client.redirects.load(Relaxed) { "r" } else { "" },
        client.db.load(Relaxed),
        client.subscribed.load(Relaxed),
        client.patterns.load(Relaxed),
        client.shards.load(Relaxed),
        client.multi_len.load(Relaxed),
        client.watched.load(Relaxed),
        room - used,
        client.multi_memory.load(Relaxed),
        client.out_chunks.load(Relaxed),
        client.memory() + arg_bytes,
        if waiting > 0 { "rw" } else { "r" },
    );
    line.extend_from_slice(rest.as_bytes());
    line.extend_from_slice(client.user.lock().as_ref().map_or(b"(superuser)", |who| &who.name));
    let (redirection, resp) = (redirection(client), client.resp.load(Relaxed));
    line.extend_from_slice(format!(" redir={redirection} resp={resp} lib-name=").as_bytes());
    line.extend_from_slice(&client.lib_name.lock());
    line.extend_from_slice(b" lib-ver=");
    line.extend_from_slice(&client.lib_version.lock());
    let (net_in, net_out) = (client.net_in.load(Relaxed), client.net_out.load(Relaxed));
    let commands = client.commands.load(Relaxed);
    line.extend_from_slice(
        format!(" tot-net-in={net_in} tot-net-out={net_out} tot-cmds={commands}").as_bytes(),
    );
    line
}

/// Returns the client that receives invalidations in place of this client: zero for itself, -1 without
/// tracking.
pub(super) fn redirection(client: &ClientInfo) -> i64 {
    let own = &client.tracked;
    if own.has(mode::ON) { own.redirect.load(Relaxed) as i64 } else { -1 }
}

fn flags_of(client: &ClientInfo) -> String {
    let flags = [
        (client.is_replica.load(Relaxed), 'S'),
        (client.monitors.load(Relaxed), 'O'),
        (client.is_primary.load(Relaxed), 'M'),
        (client.is_subscriber(), 'P'),
        (client.multi_len.load(Relaxed) >= 0, 'x'),
        (client.blocked.load(Relaxed), 'b'),
        (client.tracked.has(mode::ON), 't'),
        (client.tracked.has(mode::BROKEN), 'R'),
        (client.tracked.has(mode::BROADCAST), 'B'),
        (client.watch.lock().upgrade().is_some_and(|watch| watch.is_touched()), 'd'),
        (client.killed.load(Relaxed), 'A'),
        (client.is_unix, 'U'),
        (client.reads_replica.load(Relaxed), 'r'),
        (client.no_evict.load(Relaxed), 'e'),
        (client.no_touch.load(Relaxed), 'T'),
        (client.imports.load(Relaxed), 'I'),
    ];
    let set: String = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| *flag).collect();
    if set.is_empty() { "N".into() } else { set }
}

/// CLIENT KILL ip:port
/// CLIENT KILL filter value [filter value ...]
fn kill(call: &mut ServerCall<'_, '_>) -> Done {
    if call.base.args.len() == 3 {
        let address = call.base.args.at(2);
        // Several, if they came over the same Unix socket.
        let mut found = call.server.hub.clients.list();
        found.retain(|client| client.address.as_bytes() == address);
        if kill_all(call, found) == 0 {
            return Err(Error::text("ERR No such client"));
        }
        return call.reply_in_force(|reply| reply.ok());
    }
    let filter = Filter::parse(call, 2, Purpose::Kill)?;
    let mut found = call.server.hub.clients.list();
    found.retain(|client| filter.admits(call, client));
    let killed = kill_all(call, found);
    call.reply_in_force(move |reply| reply.int(killed as i64))
}

/// Kills clients and returns their number. The caller itself lives until its reply is sent.
fn kill_all(call: &mut ServerCall<'_, '_>, mut found: Vec<Arc<ClientInfo>>) -> usize {
    let (all, own_id) = (found.len(), call.session.client.id);
    found.retain(|client| client.id != own_id);
    let itself = found.len() < all;
    call.session.closing |= itself;
    let killed = if found.is_empty() { 0 } else { call.server.kill(&found) };
    killed + usize::from(itself)
}

pub(super) fn on_or_off(args: Args<'_>, at: usize) -> Result<bool, Error> {
    one_of(args, at, "ON", "OFF")
}

fn one_of(args: Args<'_>, at: usize, yes: &str, no: &str) -> Result<bool, Error> {
    match (args.is(at, yes), args.is(at, no)) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(Error::Syntax),
    }
}

/// CLIENT GETNAME
fn get_name(call: &mut ServerCall<'_, '_>) -> Done {
    let name = call.session.client.name.lock();
    if name.is_empty() {
        call.base.reply.null()
    } else {
        call.base.reply.bulk(&name)
    }
    Ok(Flow::Replied)
}

/// CLIENT SETNAME connection-name
fn set_name_of(call: &mut ServerCall<'_, '_>) -> Done {
    let name = call.base.args.at(2);
    set_name(call, name)?;
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLIENT SETINFO LIB-NAME libname | LIB-VER libver
fn set_info(call: &mut ServerCall<'_, '_>) -> Done {
    let (client, value) = (&call.session.client, call.base.args.at(3));
    let (field, name) = match call.base.args.word(2).as_bytes() {
        b"LIB-NAME" => (&client.lib_name, "lib-name"),
        b"LIB-VER" => (&client.lib_version, "lib-ver"),
        _ => return Err(Error::Bytes([b"ERR Unrecognized option '", call.base.args.at(2), b"'"].concat())),
    };
    if !value.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        let reason = format!("ERR {name} cannot contain spaces, newlines or special characters.");
        return Err(Error::text(reason));
    }
    *field.lock() = value.to_vec();
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLIENT CAPA capability [capability ...]
///
/// Unknown capabilities are those of later clients.
fn capa(call: &mut ServerCall<'_, '_>) -> Done {
    if call.base.args.from(2).any(|name| name.eq_ignore_ascii_case(b"redirect")) {
        call.session.redirects = true;
        call.session.client.redirects.store(true, Relaxed);
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLIENT MAINT_NOTIFICATIONS ON [MOVING-ENDPOINT-TYPE type] | OFF
///
/// The client is told of maintenance that moves its endpoint ([`evenkeel_client::maintenance`]). A server has
/// one address for all types of endpoints.
fn maint_notifications(call: &mut ServerCall<'_, '_>) -> Done {
    const TYPES: [&str; 5] = ["internal-ip", "internal-fqdn", "external-ip", "external-fqdn", "none"];
    let args = call.base.args;
    let on = on_or_off(args, 2)?;
    let is_known = match args.len() {
        3 => true,
        5 => on && args.is(3, "MOVING-ENDPOINT-TYPE") && TYPES.iter().any(|one| args.is(4, one)),
        _ => false,
    };
    if !is_known {
        return Err(Error::Syntax);
    }
    let asked = match (on, args.len() == 5 && args.is(4, "none")) {
        (false, _) => Asked::Nothing,
        (true, false) => Asked::Endpoint,
        (true, true) => Asked::NoEndpoint,
    };
    call.session.ask_about_maintenance(asked);
    let server = call.server;
    if asked != Asked::Nothing
        && let Some(primary) = server.replication.link.target()
    {
        // The message comes behind the reply.
        repeat_move(&server.hub, &call.session.client, (&primary.host, primary.port));
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLIENT IMPORT-SOURCE ON | OFF
fn import_source(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    if !call.base.settings.import_mode && !args.is(2, "OFF") {
        return Err(Error::text("ERR Server is not in import mode"));
    }
    let on = on_or_off(args, 2)?;
    call.session.imports = on;
    call.session.client.imports.store(on, Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLIENT NO-EVICT ON | OFF
fn no_evict(call: &mut ServerCall<'_, '_>) -> Done {
    let on = on_or_off(call.base.args, 2)?;
    call.session.client.no_evict.store(on, Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLIENT NO-TOUCH ON | OFF
fn no_touch(call: &mut ServerCall<'_, '_>) -> Done {
    let on = on_or_off(call.base.args, 2)?;
    call.session.no_touch = on;
    call.session.client.no_touch.store(on, Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLIENT WRITE-ACKS number-of-replicas | IN-SYNC
///
/// The client's replies wait for that, and for what the directive `write-acks` says.
fn write_acks(call: &mut ServerCall<'_, '_>) -> Done {
    let acks = WriteAcks::parse(call.base.args.at(2)).ok_or_else(|| {
        let most = WriteAcks::COUNT_MAX;
        Error::text(format!("ERR expected a number of replicas up to {most}, or IN-SYNC"))
    })?;
    if acks.in_sync && call.base.settings.cluster_store.is_empty() {
        return Err(Error::text("ERR IN-SYNC needs cluster-store"));
    }
    if acks.count > 0 {
        call.server.replication.number_records(call.base.guard);
    }
    call.session.write_acks = acks;
    call.session.last_record = 0; // it counts for later writes
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLIENT REPLY ON | OFF | SKIP
///
/// The executor drops this command's own reply as well, unless replies are on.
fn reply(call: &mut ServerCall<'_, '_>) -> Done {
    let session = &mut *call.session;
    match call.base.args.word(2).as_bytes() {
        b"ON" => {
            session.reply_mode = ReplyMode::On;
            call.base.reply.ok();
        }
        b"OFF" => session.reply_mode = ReplyMode::Off,
        b"SKIP" if session.reply_mode == ReplyMode::Off => {}
        b"SKIP" => session.reply_mode = ReplyMode::SkipNext,
        _ => return Err(Error::Syntax),
    }
    Ok(Flow::Replied)
}

/// CLIENT PAUSE timeout [WRITE | ALL]
fn pause(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    // More words are not looked at, and neither is the mode then, as in Valkey.
    let all = args.len() != 4 || args.is(3, "ALL");
    if !all && !args.is(3, "WRITE") {
        return Err(Error::text("ERR CLIENT PAUSE mode must be WRITE or ALL"));
    }
    let timeout = args.int(2).map_err(|_| Error::text("ERR timeout is not an integer or out of range"))?;
    let timeout = u64::try_from(timeout).map_err(|_| Error::text("ERR timeout is negative"))?;
    let now = call.now_ms();
    let until = now.checked_add(timeout).filter(|until| i64::try_from(*until).is_ok());
    let until = until.ok_or(Error::text("ERR timeout is out of range"))?;
    call.server.core.pause.begin(Pauser::Client, all, until, now);
    // From the next command on; the other workers read it in their next turn, which begins now.
    call.base.guard.ctx.keep_expired = keeps_expired(call.server, call.base.settings, now);
    call.server.core.workers.wake_all();
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLIENT UNPAUSE
fn unpause(call: &mut ServerCall<'_, '_>) -> Done {
    call.server.core.pause.end(Pauser::Client);
    call.base.guard.ctx.keep_expired = keeps_expired(call.server, call.base.settings, call.now_ms());
    call.server.core.workers.wake_all();
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLIENT UNBLOCK client-id [TIMEOUT | ERROR]
///
/// A client that waits for the end of a pause is left alone. After the pause, its command runs first.
fn unblock(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    if args.len() > 4 {
        return Err(wrong_number(args));
    }
    let wrong_reason = |_| Error::text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
    let is_timeout = args.len() < 4 || one_of(args, 3, "TIMEOUT", "ERROR").map_err(wrong_reason)?;
    let end = if is_timeout { End::Timeout } else { End::Error };
    let id = u64::try_from(args.int(2)?).unwrap_or(0);
    let client = call.server.hub.clients.get(id);
    // Read before its wait: a worker enters the wait before it resets the flag.
    let is_parked = client.as_ref().is_some_and(|client| client.parked.load(Acquire));
    let blocked = client.and_then(|client| client.wait.lock().upgrade());
    let core = &call.server.core;
    if is_parked
        && blocked.is_none()
        && !call.base.mode.is_nested()
        && !core.pause.is_active(call.now_ms())
        && core.blockers.any().is_empty()
    {
        return Ok(Flow::RetryNextTurn);
    }
    let ended = blocked.and_then(|blocked| Some((blocked.id, blocked.end(end)?)));
    call.base.reply.int(ended.is_some().into());
    if let Some((id, resumed)) = ended {
        let stats = &call.server.stats[call.worker];
        let outcome = if end == End::Error {
            stats.error(b"UNBLOCKED client unblocked via CLIENT UNBLOCK");
            Outcome::Rejected
        } else {
            Outcome::Succeeded
        };
        stats.resumed(id, 0, outcome, call.base.settings.latency_tracking);
        call.server.hub.resume(resumed);
    }
    Ok(Flow::Replied)
}

fn wrong_number(args: Args<'_>) -> Error {
    let text = b"ERR unknown subcommand or wrong number of arguments for '";
    Error::Bytes([text, args.at(1), b"'. Try CLIENT HELP."].concat())
}

#[cfg(test)]
mod tests {
    use crate::testing::{World, check};

    #[test]
    fn names_are_printable_words() {
        check(
            "
            > CLIENT GETNAME                  < (nil)
            > CLIENT SETNAME \"a b\"
            < -ERR Client names cannot contain spaces, newlines or special characters.
            > CLIENT SETNAME me               < OK
            > CLIENT GETNAME                  < \"me\"
            > CLIENT SETNAME \"\"             < OK
            > CLIENT GETNAME                  < (nil)
            > CLIENT SETNAME                  < -ERR wrong number of arguments for 'client|setname' command
            > CLIENT NOSUCH                   < -ERR unknown subcommand 'NOSUCH'. Try CLIENT HELP.
        ",
        );
    }

    #[test]
    fn invalid_filters_are_refused() {
        check(
            "
            > CLIENT KILL                     < -ERR wrong number of arguments for 'client|kill' command
            > CLIENT KILL 1.1.1.1:1           < -ERR No such client
            > CLIENT KILL ID 10 wrong         < -ERR syntax error
            > CLIENT KILL ID str x y          < -ERR syntax error
            > CLIENT KILL ID 0 SKIPME yes     < -ERR client-id should be greater than 0
            > CLIENT KILL TYPE strange        < -ERR Unknown client type 'strange'
            > CLIENT KILL USER strange        < -ERR No such user 'strange'
            > CLIENT KILL SKIPME perhaps      < -ERR syntax error
            > CLIENT KILL ADDR 1:1            < :0
            > CLIENT KILL TYPE pubsub         < :0
            > CLIENT LIST TYPE strange        < -ERR Unknown client type 'strange'
            > CLIENT LIST TYPE replica        < \"\"
            > CLIENT LIST TYPE                < -ERR syntax error
            > CLIENT LIST ID                  < -ERR syntax error
            > CLIENT LIST ID x                < -ERR syntax error
            > CLIENT LIST ID 0                < -ERR client-id should be greater than 0
            > CLIENT LIST ID 99999            < \"\"
        ",
        );
    }

    #[test]
    fn client_list_has_the_fields_of_redis_in_order() {
        let line = "id=* addr=*:* laddr=*:* fd=* name=me age=* idle=0 flags=* capa= db=9 sub=0 psub=0 \
                    ssub=0 multi=-1 watch=0 qbuf=* qbuf-free=* argv-mem=* multi-mem=0 rbs=* rbp=* obl=0 \
                    oll=0 omem=0 \
                    tot-mem=* events=r cmd=client|*";
        check(&format!(
            "
            > SELECT 9
            > CLIENT SETNAME me
            > CLIENT NO-EVICT on              < OK
            > CLIENT INFO                     < \"{line}info user=default redir=-1 resp=2*\\n\"
            > CLIENT LIST TYPE normal         < \"*{line}list user=default redir=-1 resp=2*\\n\"
        "
        ));
    }

    /// Also a command that is queued, or that a pause delays.
    #[test]
    fn client_list_shows_the_last_command() {
        World::new().check(
            "
            a> CLIENT SETNAME one              < OK
            a> MULTI                           < OK
            a> SET k v                         < QUEUED
            > CLIENT LIST                      < \"*name=one *cmd=set *\"
            a> EXEC                            < [OK]
            > CLIENT LIST                      < \"*name=one *cmd=exec *\"
        ",
        );
    }

    #[test]
    fn flags_and_libraries_are_shown() {
        World::new().check(
            "
            > CLIENT SETINFO LIB-NAME my-lib  < OK
            > CLIENT SETINFO lib-ver 1.2      < OK
            > CLIENT SETINFO lib-ver \"1 2\"
            < -ERR lib-ver cannot contain spaces, newlines or special characters.
            > CLIENT SETINFO colour blue      < -ERR Unrecognized option 'colour'
            > CLIENT NO-TOUCH on              < OK
            > CLIENT NO-EVICT on              < OK
            > CLIENT INFO                     < \"* flags=eT * lib-name=my-lib lib-ver=1.2 *\"
            > CLIENT NO-TOUCH off             < OK
            > CLIENT NO-EVICT off             < OK
            > CLIENT INFO                     < \"* flags=N *\"
            > WATCH k                         < OK
            > CLIENT INFO                     < \"* flags=N *\"
            other> SET k v                    < OK
            > CLIENT INFO                     < \"* flags=d *\"
            > UNWATCH                         < OK
            > CLIENT INFO                     < \"* flags=N *\"
            > CLIENT NO-TOUCH perhaps         < -ERR syntax error
            > CLIENT NO-EVICT perhaps         < -ERR syntax error
        ",
        );
    }

    #[test]
    fn capabilities_are_declared_and_filtered() {
        check(
            "
            > CLIENT CAPA                     < -ERR wrong number of arguments for 'client|capa' command
            > CLIENT CAPA later               < OK
            > CLIENT LIST CAPA r              < \"\"
            > CLIENT CAPA later REDIRECT      < OK
            > CLIENT INFO                     < \"* flags=N capa=r db=0 *\"
            > CLIENT LIST CAPA r              < \"* capa=r *\"
            > CLIENT LIST NOT-CAPA r          < \"\"
            > RESET                           < RESET
            > CLIENT INFO                     < \"* capa=r *\"
            > CLIENT KILL CAPA r SKIPME no    < :1
        ",
        );
    }

    #[test]
    fn a_client_without_maintenance_to_hear_of_is_content() {
        World::new().check(
            "
            > CLIENT MAINT_NOTIFICATIONS      < -ERR wrong number of arguments for *
            > CLIENT MAINT_NOTIFICATIONS on   < OK
            > CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip < OK
            > CLIENT MAINT_NOTIFICATIONS off  < OK
            > CLIENT MAINT_NOTIFICATIONS maybe < -ERR syntax error
            > CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type < -ERR syntax error
            > CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type where < -ERR syntax error
        ",
        );
    }

    /// Expired keys stay during an import, and only its source sees them.
    #[test]
    fn the_source_of_an_import_sees_expired_keys() {
        let mut world = World::new();
        world.check(
            "
            > CLIENT IMPORT-SOURCE on         < -ERR Server is not in import mode
            > CLIENT IMPORT-SOURCE off        < OK
            > CONFIG SET import-mode yes      < OK
            > CLIENT IMPORT-SOURCE perhaps    < -ERR syntax error
            > SET k 1 PX 1                    < OK
            > SET l 1                         < OK
            > EXPIREAT l 1                    < :1
            > SET past v PXAT 1               < OK
            > SET got v                       < OK
            > GETEX got PXAT 1                < \"v\"
            > HSET h a 1 b 2 c 3              < :3
            > HSETEX h EXAT 0 FIELDS 1 a 5    < :1
            > HPEXPIRE h 0 FIELDS 1 b         < [:1]
            > HGETEX h PXAT 1 FIELDS 1 c      < [\"3\"]
            > HGETALL h                       < []
            > HLEN h                          < :3
            > CLIENT IMPORT-SOURCE on         < OK
            > HMGET h a b c                   < [\"5\", \"2\", \"3\"]
            > MGET past got                   < [\"v\", \"v\"]
            > DEL past got h                  < :3
            > CLIENT IMPORT-SOURCE off        < OK
            > DBSIZE                          < :2
        ",
        );
        world.now_ms += 10;
        world.check(
            "
            > GET k                           < (nil)
            > EXISTS k l                      < :0
            > KEYS *                          < []
            > DBSIZE                          < :2
            > CLIENT IMPORT-SOURCE on         < OK
            > CLIENT INFO                     < \"* flags=I *\"
            > TTL k                           < :0
            > INCR k                          < :2
            > GET k                           < \"2\"
            > SCAN 0 COUNT 100 MATCH k        < [\"0\", [\"k\"]]
            > KEYS k                          < [\"k\"]
            > RESET                           < RESET
            > CLIENT INFO                     < \"* flags=N *\"
            > GET k                           < (nil)
            > DBSIZE                          < :2
            > CONFIG SET import-mode no       < OK
            > GET k                           < (nil)
            > GET l                           < (nil)
            > DBSIZE                          < :0
        ",
        );
    }

    /// A transaction may not turn off its own replies.
    #[test]
    fn client_reply_is_not_queued() {
        check(
            "
            > MULTI                           < OK
            > CLIENT REPLY off
            < -ERR Command 'client|reply' not allowed inside a transaction
            > EXEC                            < -EXECABORT *
        ",
        );
    }

    #[test]
    fn killed_clients_are_not_counted() {
        let mut world = World::new();
        world.check(
            "
            a> PING                           < PONG
            b> CLIENT SETNAME me
            c> PING                           < PONG
            c> CLIENT KILL ID 1 3             < :1
            c> CLIENT KILL ID 1 SKIPME no     < :0
            c> CLIENT LIST ID 1               < \"\"
            c> INFO clients                   < \"*connected_clients:2\\r*\"
            c> CLIENT KILL MAXAGE 1000        < :0
            c> CLIENT KILL MAXAGE -1          < -ERR maxage should be greater than 0
            c> CLIENT KILL SKIPME no          < :2
        ",
        );
        assert_eq!(world.server.hub.clients.count(), 1, "the killer stays until its reply is out");
    }

    #[test]
    fn replies_can_be_turned_off() {
        check(
            "
            > CLIENT REPLY perhaps            < -ERR syntax error
            > CLIENT REPLY ON                 < OK
        ",
        );
        let mut world = World::new();
        // An unanswered command leaves nothing behind that could be taken for the next command's reply.
        for silent in ["CLIENT REPLY OFF", "SET k v", "CLIENT REPLY SKIP", "NOSUCH"] {
            evenkeel_testkit::Target::send(
                &mut world,
                "",
                &evenkeel_testkit::words::split(silent).expect("words"),
            );
        }
        world.check("> CLIENT REPLY ON < OK");
        for silent in ["CLIENT REPLY SKIP", "ECHO unheard", "CLIENT REPLY SKIP", "RESET"] {
            evenkeel_testkit::Target::send(
                &mut world,
                "",
                &evenkeel_testkit::words::split(silent).expect("words"),
            );
        }
        world.check("> ECHO heard < \"heard\"");
    }

    #[test]
    fn pauses_have_a_timeout_and_a_mode() {
        check(
            "
            > CLIENT PAUSE x                  < -ERR timeout is not an integer or out of range
            > CLIENT PAUSE -1                 < -ERR timeout is negative
            > CLIENT PAUSE 0 perhaps          < -ERR CLIENT PAUSE mode must be WRITE or ALL
            > CLIENT PAUSE 0 WRITE x          < OK
            > CLIENT PAUSE 100000 WRITE       < OK
            > GET k                           < (nil)
            > CLIENT UNPAUSE                  < OK
            > SET k v                         < OK
            > CLIENT UNBLOCK x                < -ERR value is not an integer or out of range
            > CLIENT UNBLOCK 9999             < :0
            > CLIENT UNBLOCK 9999 perhaps     < -ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR
        ",
        );
        World::new().check(
            "
            > CLIENT PAUSE 9223372036854775807 < -ERR timeout is out of range
            > CLIENT PAUSE 100000 ALL          < OK
            > CLIENT UNPAUSE                   < OK
            > SET k v                          < OK
        ",
        );
    }
}
