//! Commands on sessions and on the server.

pub(crate) mod acl;
pub(crate) mod backup;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod commandlog;
pub(crate) mod config_command;
pub(crate) mod connection;
pub(crate) mod debug;
pub(crate) mod failover;
pub(crate) mod flush;
pub(crate) mod function;
pub(crate) mod himport;
pub(crate) mod hotkeys;
pub(crate) mod in_force;
pub(crate) mod introspect;
pub(crate) mod latency;
pub(crate) mod lolwut;
pub(crate) mod memory;
pub(crate) mod migrate;
pub(crate) mod module;
pub(crate) mod monitor;
pub(crate) mod persistence;
pub(crate) mod pubsub;
pub(crate) mod replicaof;
pub(crate) mod replication;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod server_call;
pub(crate) mod tracking;
pub(crate) mod transaction;
pub(crate) mod wait;

pub(crate) use server_call::{ServerCall, ServerHandler};

use evenkeel_command::{
    Args, Arity, Command, Flags, Group, Keys, LockScope, ScriptRef, at_least, docs, exactly, row_functions,
};

row_functions!(ServerHandler);

/// The families of these commands.
pub(crate) const FAMILIES: &[&[Command<ServerHandler>]] = &[
    acl::COMMANDS,
    backup::COMMANDS,
    client::COMMANDS,
    cluster::COMMANDS,
    commandlog::COMMANDS,
    config_command::COMMANDS,
    connection::COMMANDS,
    debug::COMMANDS,
    failover::COMMANDS,
    flush::COMMANDS,
    function::COMMANDS,
    himport::COMMANDS,
    hotkeys::COMMANDS,
    introspect::COMMANDS,
    latency::COMMANDS,
    lolwut::COMMANDS,
    memory::COMMANDS,
    migrate::COMMANDS,
    module::COMMANDS,
    monitor::COMMANDS,
    persistence::COMMANDS,
    pubsub::COMMANDS,
    replicaof::COMMANDS,
    replication::COMMANDS,
    script::COMMANDS,
    server::COMMANDS,
    transaction::COMMANDS,
    wait::COMMANDS,
];
