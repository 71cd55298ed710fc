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

pub mod args;
pub mod bignum;
pub mod bitfield;
pub mod bitmap;
pub mod bitop;
pub mod call;
pub mod class;
pub mod docs;
pub mod dump;
pub mod effect;
pub mod error;
pub mod events;
pub mod expire;
pub mod flow;
pub mod geo;
pub mod hash;
pub mod hll;
pub mod hyperloglog;
pub mod keys;
pub mod keyspace;
pub mod lcs;
pub mod list;
pub mod object;
pub mod offloading;
pub mod random;
pub mod reply;
pub mod scan;
pub mod set;
pub mod set_options;
pub mod sort;
pub mod spec;
pub mod specs;
pub mod stream;
pub mod string;
pub mod table;
pub mod value_codec;
pub mod x87_float;
pub mod zset;

pub use args::Args;
pub use call::Call;
pub use keys::Keys;
pub use spec::{Arity, Command, Flags, Group, LockScope, ScriptRef, Spec, at_least, exactly};
pub use table::{Id, Table};

use flow::Done;

/// The function that runs a command on data.
pub type DataHandler = fn(&mut Call<'_, '_>) -> Done;

row_functions!(DataHandler);

/// The families of commands on data.
pub const FAMILIES: &[&[Command<DataHandler>]] = &[
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
