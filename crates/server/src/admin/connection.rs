//! Commands on the connection itself.

use std::sync::atomic::Ordering::Relaxed;

use evenkeel_resp::number::parse_i64;

use super::{Command, Flags, Group, ServerCall, ServerHandler, at_least, exactly, session};
use crate::executor::append_push;
use crate::executor::permission;
use crate::startup::VERSION;
use evenkeel_acl::{Access, DEFAULT};
use evenkeel_client::session::{Caching, ReplyMode};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_config::WriteAcks;

const BEFORE_AUTH: Flags = Flags::NO_AUTH.with(Flags::ALLOW_BUSY).with(Flags::OPERATOR);
const ALWAYS: Flags = BEFORE_AUTH.with(Flags::NOT_QUEUED).with(Flags::WHILE_SUBSCRIBED);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    session("PING",   at_least(1), Group::Connection, ping  ).fast().scriptable()
        .without(Flags::LOADING.with(Flags::STALE)).flag(Flags::HEALTH.with(Flags::WHILE_SUBSCRIBED)),
    session("ECHO",   exactly(2),  Group::Connection, echo  ).fast().scriptable(),
    // Changes the database for the commands after it.
    session("SELECT", exactly(2),  Group::Connection, select).fast().scriptable().without(Flags::NO_DATA)
        .flag(Flags::OPERATOR.with(Flags::ALLOW_BUSY)),
    session("QUIT",   at_least(1), Group::Connection, quit  ).fast().flag(ALWAYS),
    session("RESET",  exactly(1),  Group::Connection, reset ).fast().flag(ALWAYS),
    session("HELLO",  at_least(1), Group::Connection, hello ).fast().flag(BEFORE_AUTH),
    session("AUTH",   at_least(2), Group::Connection, auth  ).fast().flag(BEFORE_AUTH),
];

/// PING [message]
fn ping(call: &mut ServerCall<'_, '_>) -> Done {
    match call.base.args.len() {
        1 | 2 if call.session.is_restricted() => {
            call.base.reply.array(2);
            call.base.reply.bulk(b"pong");
            call.base.reply.bulk(call.base.args.get(1).unwrap_or_default());
        }
        1 => call.base.reply.simple("PONG"),
        2 => call.base.reply.bulk(call.base.args.at(1)),
        _ => return Err(Error::Arity("ping")),
    }
    Ok(Flow::Replied)
}

/// ECHO message
fn echo(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.reply.bulk(call.base.args.at(1));
    Ok(Flow::Replied)
}

/// SELECT index
fn select(call: &mut ServerCall<'_, '_>) -> Done {
    let db = call.base.args.database(1, call.server.core.keyspace.databases() as u32)?;
    call.session.select(db);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// QUIT
fn quit(call: &mut ServerCall<'_, '_>) -> Done {
    call.session.closing = true;
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// RESET: as if the client had just connected.
fn reset(call: &mut ServerCall<'_, '_>) -> Done {
    call.session.discard();
    call.session.unwatch(call.base.guard);
    call.session.put_fieldsets(None);
    call.session.end_push(&call.server.hub);
    // The last push messages come before the reply, in the old protocol.
    append_push(call.session, call.base.reply);
    call.session.select(0);
    // After CLIENT REPLY SKIP, it is this command that gets no reply.
    if call.session.reply_mode != ReplyMode::SkipThis {
        call.session.reply_mode = ReplyMode::On;
    }
    (call.session.no_touch, call.session.imports) = (false, false);
    call.session.write_acks = WriteAcks::default();
    call.session.asking = Caching::Unsaid;
    call.session.become_user(Access::of_new_connection(&call.server.acl));
    let client = &call.session.client;
    for flag in [&client.no_touch, &client.imports, &client.reads_replica] {
        flag.store(false, Relaxed);
    }
    client.no_evict.store(false, Relaxed);
    client.name.lock().clear();
    set_protocol(call, 2);
    call.base.reply.simple("RESET");
    Ok(Flow::Replied)
}

fn set_protocol(call: &mut ServerCall<'_, '_>, version: u8) {
    call.base.reply.resp3 = version == 3;
    call.session.client.resp.store(version, Relaxed);
}

/// HELLO [protover [AUTH username password] [SETNAME clientname]]
fn hello(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let mut version = None;
    if args.len() > 1 {
        let asked = parse_i64(args.at(1))
            .ok_or(Error::text("ERR Protocol version is not an integer or out of range"))?;
        if !(2..=3).contains(&asked) {
            return Err(Error::text("NOPROTO unsupported protocol version"));
        }
        version = Some(asked as u8);
    }
    let (mut credentials, mut name, mut at) = (None, None, 2);
    while at < args.len() {
        match args.word(at).as_bytes() {
            b"AUTH" if at + 2 < args.len() => {
                credentials = Some((args.at(at + 1), args.at(at + 2)));
                at += 3;
            }
            b"SETNAME" if at + 1 < args.len() => {
                name = Some(checked_name(args.at(at + 1))?);
                at += 2;
            }
            _ => {
                let option = args.quoted(at, usize::MAX);
                return Err(Error::Bytes([b"ERR Syntax error in HELLO option '", option, b"'"].concat()));
            }
        }
    }
    if let Some((user, password)) = credentials {
        permission::log_in(call, user, password)?;
    }
    if call.session.access.lacks_auth(&call.server.acl) {
        return Err(Error::text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
             AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
             version at the same time",
        ));
    }
    if let Some(name) = name {
        set_name(call, name)?;
    }
    if let Some(version) = version {
        set_protocol(call, version);
    }
    greet(call);
    Ok(Flow::Replied)
}

fn greet(call: &mut ServerCall<'_, '_>) {
    let resp3 = call.base.reply.resp3;
    let role = if call.server.replication.is_replica() { "replica" } else { "master" };
    let reply = &mut *call.base.reply;
    let zone = &call.base.settings.availability_zone;
    reply.map(if zone.is_empty() { 7 } else { 8 });
    let version = call.base.settings.reported_redis_version.as_slice();
    for (name, value) in [(&b"server"[..], &b"redis"[..]), (b"version", version)] {
        reply.bulk(name);
        reply.bulk(value);
    }
    reply.bulk(b"proto");
    reply.int(if resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.int(call.session.client.id as i64);
    for (name, value) in [("mode", call.server.mode()), ("role", role)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    if !zone.is_empty() {
        reply.bulk(b"availability_zone");
        reply.bulk(zone);
    }
}

/// The product's own version.
pub(crate) const EVENKEEL_VERSION: &str = VERSION;

/// AUTH [username] password
fn auth(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    match args.len() {
        2 if call.server.acl.default_user().is_open() => {
            return Err(Error::text(
                "ERR AUTH <password> called without any password configured for the default user. Are you \
                 sure your configuration is correct?",
            ));
        }
        2 => permission::log_in(call, DEFAULT, args.at(1))?,
        3 => permission::log_in(call, args.at(1), args.at(2))?,
        _ => return Err(Error::Syntax),
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// Names the connection.
pub(crate) fn set_name(call: &mut ServerCall<'_, '_>, name: &[u8]) -> Result<(), Error> {
    *call.session.client.name.lock() = checked_name(name)?.to_vec();
    Ok(())
}

/// A connection's name may hold no spaces or control characters.
fn checked_name(name: &[u8]) -> Result<&[u8], Error> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(name);
    }
    Err(Error::text("ERR Client names cannot contain spaces, newlines or special characters."))
}
