//! CLUSTER and the commands of a cluster's clients. There is no cluster mode, and these reply so, like Redis
//! with cluster mode off: client libraries use them to detect the mode.

use std::sync::atomic::Ordering::Relaxed;

use evenkeel_store::key::slot_of;

use super::{Arity, Command, Flags, Group, ServerCall, ServerHandler, at_least, container, exactly, session};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    session("ASKING",    exactly(1), Group::Connection, refuse).fast().scriptable()
        .without(Flags::LOADING.with(Flags::STALE)),
    session("READONLY",  exactly(1), Group::Connection, read_only ).fast().scriptable(),
    session("READWRITE", exactly(1), Group::Connection, read_write).fast().scriptable(),
    container("CLUSTER", Group::Server, &[
        alters ("CLUSTER|ADDSLOTS",              at_least(3)),
        alters ("CLUSTER|ADDSLOTSRANGE",         at_least(4)),
        alters ("CLUSTER|BUMPEPOCH",             exactly(2) ),
        alters ("CLUSTER|CANCELSLOTMIGRATIONS",  exactly(2) ),
        changes("CLUSTER|COUNT-FAILURE-REPORTS", exactly(3) ),
        asks   ("CLUSTER|COUNTKEYSINSLOT",       exactly(3) ),
        alters ("CLUSTER|DELSLOTS",              at_least(3)),
        alters ("CLUSTER|DELSLOTSRANGE",         at_least(4)),
        alters ("CLUSTER|FAILOVER",              at_least(2)),
        alters ("CLUSTER|FLUSHSLOTS",            exactly(2) ),
        alters ("CLUSTER|FORGET",                exactly(3) ),
        asks   ("CLUSTER|GETKEYSINSLOT",         exactly(4) ),
        alters ("CLUSTER|GETSLOTMIGRATIONS",     exactly(2) ),
        asks   ("CLUSTER|HELP",                  exactly(2) ).flag(Flags::LOADING),
        asks   ("CLUSTER|INFO",                  exactly(2) ).flag(Flags::LOADING),
        Command { handler: Some(key_slot), ..asks("CLUSTER|KEYSLOT", exactly(3)) },
        asks   ("CLUSTER|LINKS",                 exactly(2) ),
        alters ("CLUSTER|MEET",                  at_least(4)),
        alters ("CLUSTER|MIGRATESLOTS",          at_least(4)),
        asks   ("CLUSTER|MYID",                  exactly(2) ).flag(Flags::LOADING),
        asks   ("CLUSTER|MYSHARDID",             exactly(2) ).flag(Flags::LOADING),
        asks   ("CLUSTER|NODES",                 exactly(2) ).flag(Flags::LOADING),
        changes("CLUSTER|REPLICAS",              exactly(3) ),
        alters ("CLUSTER|REPLICATE",             at_least(3)),
        changes("CLUSTER|RESET",                 at_least(2)).flag(Flags::NOSCRIPT),
        alters ("CLUSTER|SAVECONFIG",            exactly(2) ),
        alters ("CLUSTER|SET-CONFIG-EPOCH",      exactly(3) ),
        alters ("CLUSTER|SETSLOT",               at_least(4)),
        asks   ("CLUSTER|SHARDS",                exactly(2) ).flag(Flags::LOADING),
        changes("CLUSTER|SLAVES",                exactly(3) ),
        asks   ("CLUSTER|SLOT-STATS",            at_least(4)).flag(Flags::LOADING),
        asks   ("CLUSTER|SLOTS",                 exactly(2) ).flag(Flags::LOADING),
    ]),
];

/// For every user.
const fn asks(name: &'static str, arity: Arity) -> Command<ServerHandler> {
    session(name, arity, Group::Server, refuse).scriptable().without(Flags::LOADING)
}

/// For operators.
const fn changes(name: &'static str, arity: Arity) -> Command<ServerHandler> {
    asks(name, arity).admin()
}

/// For operators, and refused by Valkey while a replica loads data.
const fn alters(name: &'static str, arity: Arity) -> Command<ServerHandler> {
    changes(name, arity).flag(Flags::NO_ASYNC_LOADING)
}

fn refuse(_: &mut ServerCall<'_, '_>) -> Done {
    Err(Error::text("ERR This instance has cluster support disabled"))
}

/// READONLY: a client that can be redirected (CLIENT CAPA) nevertheless reads from a replica.
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

/// CLUSTER KEYSLOT key
///
/// As in Valkey, also without a cluster: keys have slots here, too.
fn key_slot(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.reply.int(slot_of(call.base.args.at(2)).into());
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
