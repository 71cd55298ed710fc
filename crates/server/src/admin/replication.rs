//! Commands of replication: how a connection becomes a replica's, and the role of this server.
//!
//! A connection that asks for the stream leaves its worker, and is served by the thread that feeds replicas
//! from then on ([`evenkeel_replication`]); that thread replies.

use std::sync::atomic::Ordering::Relaxed;

use super::{Command, Flags, Group, LockScope, ServerCall, ServerHandler, at_least, exactly, session};
use evenkeel_client::replica_hello::{Asks, Content, ReplicaHello};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_config::split_words;
use evenkeel_replication::link::{self, Phase};
use evenkeel_runtime::server_log;

/// The longest name of itself that a replica may give (Redis: `NET_HOST_STR_LEN`).
const IP_LEN_MAX: usize = 255;

/// It needs the current data, so it is refused while data is loaded; and it is no part of a transaction.
const ASKING: Flags = Flags::ADMIN
    .with(Flags::NOSCRIPT)
    .with(Flags::NO_MULTI)
    .with(Flags::NO_ASYNC_LOADING)
    .with(Flags::NO_DATA);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    session("PSYNC", at_least(3), Group::Server, psync).flags(ASKING).lock_scope(LockScope::Whole),
    session("REPLCONF", at_least(1), Group::Server, replconf).flag(Flags::ADMIN.with(Flags::ALLOW_BUSY)),
    session("ROLE",     exactly(1),  Group::Server, role    ).fast(),
    session("SYNC",  exactly(1),  Group::Server, sync ).flags(ASKING),
];

/// PSYNC replicationid offset [FAILOVER]
///
/// With FAILOVER this server first becomes the primary of the replica; so it locks all slots.
fn psync(call: &mut ServerCall<'_, '_>) -> Done {
    let number = call.base.args.int(2).inspect_err(|_| {
        let address = &call.session.client.address;
        log::warn!("Replica {address} asks for synchronization but with a wrong offset");
        server_log::flush(); // whoever reads the reply finds the line
    });
    let (id, number) = (call.base.args.at(1), number?);
    // The number of the first missing byte, counted from 1.
    let bytes = number.checked_sub(1).and_then(|bytes| u64::try_from(bytes).ok());
    let has = bytes.filter(|_| id != b"?").map(|bytes| (id.to_vec(), bytes));
    let hello = call.session.replica_hello.as_ref();
    if let Some(membership) = hello.and_then(|hello| hello.membership.as_ref()) {
        // With this code, the replica tries again later.
        let failed = |reason| Error::text(format!("NOMASTERLINK Can't SYNC: {reason}"));
        call.server.replication.members.check(membership).map_err(failed)?;
    }
    if call.base.args.len() > 3 && call.base.args.is(3, "FAILOVER") {
        take_over(call)?;
    }
    ask(call, Asks::Rest(has))
}

/// Becomes the primary at the request of this server's primary.
fn take_over(call: &mut ServerCall<'_, '_>) -> Result<(), Error> {
    let (server, id) = (call.server, call.base.args.at(1));
    log::warn!("Failover request received for replid {}.", id.escape_ascii());
    if !server.replication.is_replica() {
        return Err(Error::text("ERR PSYNC FAILOVER can't be sent to a master."));
    }
    let is_ours = server.replication.stream().history.id.as_bytes().eq_ignore_ascii_case(id);
    if !is_ours {
        return Err(Error::text("ERR PSYNC FAILOVER replid must match my replid."));
    }
    link::change(&server.replication, call.base.guard, None);
    link::remember(&server.replication, None);
    let address = &call.session.client.address;
    log::info!("PRIMARY MODE enabled (failover request from '{address}')");
    Ok(())
}

/// SYNC
fn sync(call: &mut ServerCall<'_, '_>) -> Done {
    ask(call, Asks::Snapshot)
}

fn ask(call: &mut ServerCall<'_, '_>, asks: Asks) -> Done {
    let state = &call.server.replication;
    if state.is_replica() && !state.link.is_up() {
        return Err(Error::text("NOMASTERLINK Can't SYNC while not connected with my master"));
    }
    // From here on it is a replica's connection, unknown to any worker: its subscriptions and watches would
    // have no receiver.
    call.session.end_push(&call.server.hub);
    call.session.unwatch(call.base.guard);
    call.session.replica_hello.get_or_insert_default().asks = Some(asks);
    Ok(Flow::HandOff)
}

/// REPLCONF [option value [option value ...]]
fn replconf(call: &mut ServerCall<'_, '_>) -> Done {
    if call.base.args.len().is_multiple_of(2) {
        return Err(Error::Syntax);
    }
    let mut replica_hello = call.session.replica_hello.as_deref().cloned().unwrap_or_default();
    for index in (1..call.base.args.len()).step_by(2) {
        // Sent only by a connection that is a replica already, or by a primary; neither expects a reply.
        if call.base.args.is(index, "ACK") || call.base.args.is(index, "GETACK") {
            return Ok(Flow::Replied);
        }
        introduce(&mut replica_hello, call, index)?;
    }
    if let Some(membership) = &replica_hello.membership {
        let failed = |reason| Error::text(format!("ERR {reason}"));
        call.server.replication.members.check(membership).map_err(failed)?;
        // The replica may have more of the former history: it looks whether it has.
        let former = call.server.replication.stream().history.former.clone();
        let branch = former.map_or(String::new(), |(id, bytes)| format!(" {id} {bytes}"));
        call.session.replica_hello = Some(Box::new(replica_hello));
        call.base.reply.simple(&format!("OK{branch}"));
        return Ok(Flow::Replied);
    }
    call.session.replica_hello = Some(Box::new(replica_hello));
    call.base.reply.ok();
    Ok(Flow::Replied)
}

fn introduce(replica_hello: &mut ReplicaHello, call: &ServerCall<'_, '_>, index: usize) -> Result<(), Error> {
    let (args, value) = (call.base.args, call.base.args.at(index + 1));
    match args.word(index).as_bytes() {
        b"LISTENING-PORT" => replica_hello.port = u16::try_from(args.int(index + 1)?).unwrap_or(0),
        b"IP-ADDRESS" if value.len() > IP_LEN_MAX => {
            let reason = format!(
                "ERR REPLCONF ip-address provided by replica instance is too long: {} bytes",
                value.len()
            );
            return Err(Error::text(reason));
        }
        b"IP-ADDRESS" => replica_hello.ip = String::from_utf8_lossy(value).into_owned(),
        b"CAPA" => {
            replica_hello.takes_mark |= args.is(index + 1, "EOF");
            replica_hello.takes_names |= args.is(index + 1, "PSYNC2");
        }
        b"RDB-ONLY" => {
            let range = Error::text("ERR value is out of range, value must between 0 and 1");
            let number = args.int(index + 1)?;
            replica_hello.only_snapshot =
                usize::try_from(number).ok().filter(|one| *one <= 1).ok_or(range)? == 1;
        }
        option @ (b"CLUSTER-NODE" | b"CLUSTER-PRIMARY") => {
            let membership = replica_hello.membership.get_or_insert_default();
            let name = if option == b"CLUSTER-NODE" { &mut membership.node } else { &mut membership.primary };
            *name = String::from_utf8_lossy(value).into_owned();
        }
        option @ (b"CLUSTER-EPOCH" | b"CLUSTER-INCARNATION") => {
            let membership = replica_hello.membership.get_or_insert_default();
            let is_epoch = option == b"CLUSTER-EPOCH";
            let number = if is_epoch { &mut membership.epoch } else { &mut membership.incarnation };
            *number = u64::try_from(args.int(index + 1)?).map_err(|_| Error::NotInteger)?;
        }
        b"RDB-FILTER-ONLY" => replica_hello.content = content(value)?,
        // The replica's version: for readers of a primary's server log.
        b"VERSION" => {}
        _ => return Err(Error::Bytes([b"ERR Unrecognized REPLCONF option: ", args.at(index)].concat())),
    }
    Ok(())
}

/// Parses the content of a snapshot from a filter, which names the parts to include.
fn content(filter: &[u8]) -> Result<Content, Error> {
    let words = split_words(filter).ok_or(Error::text("ERR Missing rdb-filter-only values"))?;
    if let Some(other) = words.iter().find(|word| !word.eq_ignore_ascii_case(b"functions")) {
        return Err(Error::Bytes([b"ERR Unsupported rdb-filter-only option: ", &other[..]].concat()));
    }
    Ok(if words.is_empty() { Content::Nothing } else { Content::Libraries })
}

/// ROLE
fn role(call: &mut ServerCall<'_, '_>) -> Done {
    let state = &call.server.replication;
    state.catch_up(&call.server.core.keyspace.journal);
    let offset = state.stream().offset();
    if let Some(target) = state.link.target() {
        let phase = state.link.phase();
        call.base.reply.array(5);
        call.base.reply.bulk(b"slave");
        call.base.reply.bulk(target.host.as_bytes());
        call.base.reply.int(target.port.into());
        call.base.reply.bulk(phase.name().as_bytes());
        call.base.reply.int(if phase == Phase::Connected { offset as i64 } else { -1 });
        return Ok(Flow::Replied);
    }
    let mut online = state.replicas.list();
    online.retain(|replica| replica.is_online());
    call.base.reply.array(3);
    call.base.reply.bulk(b"master");
    call.base.reply.int(offset as i64);
    call.base.reply.array(online.len());
    for replica in online {
        call.base.reply.array(3);
        call.base.reply.bulk(replica.ip.as_bytes());
        call.base.reply.bulk(replica.port.to_string().as_bytes());
        call.base.reply.bulk(replica.acked.load(Relaxed).to_string().as_bytes());
    }
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests;
