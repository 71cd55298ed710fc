//! CLUSTER and the commands of a cluster's clients.
//!
//! Without cluster mode these reply so, like Redis with cluster mode off: client libraries use them to detect
//! the mode.

mod lists;
mod messages;
mod moves;
mod requests;
mod scan;
mod slots;

pub(crate) use requests::change_the_map;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{
    Arity, Command, Flags, Group, ServerCall, ServerHandler, at_least, container, docs, exactly, session,
    walk,
};
use crate::cluster::view::ClusterView;
use evenkeel_client::session::Caching;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    session("ASKING",    exactly(1), Group::Connection, asking    ).fast().scriptable()
        .without(Flags::LOADING.with(Flags::STALE)),
    session("READONLY",  exactly(1), Group::Connection, read_only ).fast().scriptable(),
    session("READWRITE", exactly(1), Group::Connection, read_write).fast().scriptable(),
    walk("CLUSTERSCAN",  at_least(2), Group::Keyspace, scan::scan),
    container("CLUSTER", Group::Server, &[
        alters ("CLUSTER|ADDSLOTS",              at_least(3), requests::add_slots),
        alters ("CLUSTER|ADDSLOTSRANGE",         at_least(4), requests::add_ranges),
        alters ("CLUSTER|BUMPEPOCH",             exactly(2),  requests::bump_epoch),
        alters ("CLUSTER|CANCELSLOTMIGRATIONS",  exactly(2),  moves::cancel),
        changes("CLUSTER|COUNT-FAILURE-REPORTS", exactly(3),  lists::failure_reports),
        asks   ("CLUSTER|COUNTKEYSINSLOT",       exactly(3),  slots::count_keys),
        alters ("CLUSTER|DELSLOTS",              at_least(3), requests::remove_slots),
        alters ("CLUSTER|DELSLOTSRANGE",         at_least(4), requests::remove_ranges),
        alters ("CLUSTER|FAILOVER",              at_least(2), requests::fail_over),
        alters ("CLUSTER|FLUSHSLOT",             at_least(3), slots::flush)
            .flag(Flags::WRITE).without(Flags::STALE),
        alters ("CLUSTER|FLUSHSLOTS",            exactly(2),  requests::flush_slots),
        alters ("CLUSTER|FORGET",                exactly(3),  requests::forget),
        asks   ("CLUSTER|GETKEYSINSLOT",         exactly(4),  slots::keys),
        alters ("CLUSTER|GETSLOTMIGRATIONS",     exactly(2),  moves::list),
        asks   ("CLUSTER|HELP",                  exactly(2),  help).flag(Flags::LOADING),
        alters ("CLUSTER|IMPORTSLOTS",           exactly(7),  moves::import_slots),
        asks   ("CLUSTER|INFO",                  exactly(2),  lists::info).flag(Flags::LOADING),
        asks   ("CLUSTER|KEYSLOT",               exactly(3),  slots::key_slot),
        asks   ("CLUSTER|LINKS",                 exactly(2),  lists::links),
        alters ("CLUSTER|MEET",                  at_least(4), requests::meet),
        alters ("CLUSTER|MIGRATESLOTS",          at_least(4), moves::begin),
        alters ("CLUSTER|MIGRATION",             at_least(4), moves::migration),
        asks   ("CLUSTER|MYID",                  exactly(2),  my_id).flag(Flags::LOADING),
        asks   ("CLUSTER|MYSHARDID",             exactly(2),  my_shard_id).flag(Flags::LOADING),
        asks   ("CLUSTER|NODES",                 exactly(2),  lists::nodes).flag(Flags::LOADING),
        alters ("CLUSTER|RELAY",                 exactly(5),  messages::relay),
        changes("CLUSTER|REPLICAS",              exactly(3),  lists::replicas),
        alters ("CLUSTER|REPLICATE",             at_least(3), requests::replicate),
        changes("CLUSTER|RESET",                 at_least(2), requests::reset).flag(Flags::NOSCRIPT),
        alters ("CLUSTER|SAVECONFIG",            exactly(2),  requests::save),
        alters ("CLUSTER|SET-CONFIG-EPOCH",      exactly(3),  requests::set_epoch),
        alters ("CLUSTER|SETSLOT",               at_least(4), requests::set_slot),
        asks   ("CLUSTER|SHARDS",                exactly(2),  lists::shards).flag(Flags::LOADING),
        changes("CLUSTER|SLAVES",                exactly(3),  lists::replicas),
        asks   ("CLUSTER|SLOT-STATS",            at_least(4), slots::statistics).flag(Flags::LOADING),
        asks   ("CLUSTER|SLOTS",                 exactly(2),  lists::slots).flag(Flags::LOADING),
    ]),
];

/// For every user.
const fn asks(name: &'static str, arity: Arity, handler: ServerHandler) -> Command<ServerHandler> {
    session(name, arity, Group::Server, handler).scriptable().without(Flags::LOADING)
}

/// For operators.
const fn changes(name: &'static str, arity: Arity, handler: ServerHandler) -> Command<ServerHandler> {
    asks(name, arity, handler).admin()
}

/// For operators, and refused by Valkey while a replica loads data.
const fn alters(name: &'static str, arity: Arity, handler: ServerHandler) -> Command<ServerHandler> {
    changes(name, arity, handler).flag(Flags::NO_ASYNC_LOADING)
}

fn disabled() -> Error {
    Error::text("ERR This instance has cluster support disabled")
}

/// Returns the view under which a call runs.
///
/// # Errors
/// Cluster mode is off.
fn view(call: &ServerCall<'_, '_>) -> Result<Arc<ClusterView>, Error> {
    call.server.cluster.as_ref().map(|cluster| cluster.view()).ok_or_else(disabled)
}

/// ASKING: the next command may use a slot that arrives here.
fn asking(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    call.session.asking = Caching::Said;
    call.session.receives_push = true; // so that the end of the next command is noticed
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// READONLY: a client of a replica reads from it on purpose.
fn read_only(call: &mut ServerCall<'_, '_>) -> Done {
    set_read_only(call, true)
}

/// READWRITE
fn read_write(call: &mut ServerCall<'_, '_>) -> Done {
    set_read_only(call, false)
}

fn set_read_only(call: &mut ServerCall<'_, '_>, on: bool) -> Done {
    call.session.client.reads_replica.store(on, Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// CLUSTER HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    docs::reply_help(call, "CLUSTER");
    Ok(Flow::Replied)
}

/// CLUSTER MYID
fn my_id(call: &mut ServerCall<'_, '_>) -> Done {
    let id = view(call)?.me.to_string();
    call.base.reply.bulk(id.as_bytes());
    Ok(Flow::Replied)
}

/// CLUSTER MYSHARDID
fn my_shard_id(call: &mut ServerCall<'_, '_>) -> Done {
    let id = view(call)?.shard.to_string();
    call.base.reply.bulk(id.as_bytes());
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::{Program, Reference, Server};

    use crate::testing::{World, check};

    #[test]
    fn there_is_no_cluster() {
        check(
            "
            > CLUSTER INFO                     < -ERR This instance has cluster support disabled
            > CLUSTER HELP                     < -ERR This instance has cluster support disabled
            > CLUSTER NODES x                  < -ERR wrong number of arguments for 'cluster|nodes' command
            > CLUSTER MEET 127.0.0.1 1         < -ERR This instance has cluster support disabled
            > CLUSTER nosuch                   < -ERR unknown subcommand 'nosuch'. Try CLUSTER HELP.
            > CLUSTER                          < -ERR wrong number of arguments for 'cluster' command
            > READONLY                         < OK
            > CLIENT INFO                      < \"* flags=r *\"
            > READWRITE                        < OK
            > CLIENT INFO                      < \"* flags=N *\"
            > ASKING                           < -ERR This instance has cluster support disabled
            > MULTI                            < OK
            > ASKING                           < QUEUED
            > EXEC                             < [-ERR This instance has cluster support disabled]
            > EVAL \"return redis.call('cluster', 'reset')\" 0
            < -ERR This * command is not allowed from script*
        ",
        );
        World::new().check("> CLUSTER KEYSLOT {foo}.bar < :12182");
    }

    /// The rows are Valkey's, or Redis' where Valkey lacks the command.
    #[test]
    fn rows_match_the_reference_servers() {
        let (Some(valkey), Some(redis)) =
            (Program::oracle(Reference::Valkey), Program::oracle(Reference::Redis))
        else {
            return;
        };
        let peers = [Server::start(&valkey, &[]), Server::start(&redis, &[])];
        let (mut clients, mut world) = (peers.each_ref().map(Server::connect), World::new());
        let rows = super::COMMANDS.iter().chain(super::super::module::COMMANDS);
        let rows = rows.flat_map(|row| std::iter::once(row).chain(row.subcommands));
        // Between nodes of Evenkeel alone; and of Redis 8.4, which is no reference here.
        let newer = ["CLUSTER|IMPORTSLOTS", "CLUSTER|MIGRATION", "CLUSTER|RELAY"];
        let rows = rows.filter(|row| !newer.contains(&row.spec.name));
        for row in rows.map(|row| &row.spec) {
            let line = format!("COMMAND INFO {}", row.lower_name());
            let theirs = clients.iter_mut().map(|client| client.run(&line).to_string());
            let theirs = theirs.into_iter().find(|row| row != "[(nil)]").expect("one of them has it");
            // Up to the hints, which concern a cluster.
            let until_hints = |row: &str| row.split("], [").next().unwrap_or_default().to_owned();
            assert_eq!(until_hints(&world.run(&line)), until_hints(&theirs));
        }
    }
}
