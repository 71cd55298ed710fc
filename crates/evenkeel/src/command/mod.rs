//! The command language and the commands on data.
//!
//! | module | |
//! |---|---|
//! | `spec`, `table`, `keys`, `args` | rows, the look-up by name, where keys are, arguments |
//! | `call`, `flow` | a running command, and what its handler returns |
//! | `effect`, `events`, `class` | what is logged and which events are emitted |
//! | `specs`, `docs` | what COMMAND and COMMAND DOCS reply |
//! | the other modules | a family of commands each |
//!
//! Absent: sessions and the server. A command on data gets a [`Call`]; what it asks of the client and the server
//! goes through [`call::CallHost`].

pub(crate) mod args;
pub(crate) mod bignum;
pub(crate) mod bitfield;
pub(crate) mod bitmap;
pub(crate) mod bitop;
pub(crate) mod call;
pub(crate) mod class;
pub(crate) mod docs;
pub(crate) mod dump;
pub(crate) mod effect;
pub(crate) mod events;
pub(crate) mod expire;
pub(crate) mod flow;
pub(crate) mod geo;
pub(crate) mod hash;
pub(crate) mod hll;
pub(crate) mod hyperloglog;
pub(crate) mod keys;
pub(crate) mod keyspace;
pub(crate) mod lcs;
pub(crate) mod list;
pub(crate) mod object;
pub(crate) mod offloading;
pub(crate) mod random;
pub(crate) mod scan;
pub(crate) mod set;
pub(crate) mod set_options;
pub(crate) mod sort;
pub(crate) mod spec;
pub(crate) mod specs;
pub(crate) mod stream;
pub(crate) mod string;
pub(crate) mod table;
pub(crate) mod x87_float;
pub(crate) mod zset;

pub(crate) use args::Args;
pub(crate) use call::Call;
pub(crate) use keys::Keys;
pub(crate) use spec::{
    Arity, Command, Flags, Group, LockScope, ScriptRef, Spec, at_least, exactly, row_functions,
};
pub(crate) use table::{Id, Table};

use flow::Done;

/// The function that runs a command on data.
pub(crate) type DataHandler = fn(&mut Call<'_, '_>) -> Done;

row_functions!(DataHandler);

/// The families of commands on data.
pub(crate) const FAMILIES: &[&[Command<DataHandler>]] = &[
    bitmap::COMMANDS,
    dump::COMMANDS,
    expire::COMMANDS,
    geo::COMMANDS,
    hash::COMMANDS,
    hyperloglog::COMMANDS,
    keyspace::COMMANDS,
    list::COMMANDS,
    object::COMMANDS,
    scan::COMMANDS,
    set::COMMANDS,
    sort::COMMANDS,
    stream::COMMANDS,
    string::COMMANDS,
    zset::COMMANDS,
];
