//! The command language and the commands on data.
//!
//! | module | |
//! |---|---|
//! | `spec` | rows, the look-up by name, places of keys, arguments; texts and key specifications of COMMAND |
//! | `call` | a running command; the `flow` that its handler returns, its logged `effect`, its `events` |
//! | `bitmap`, `hash`, `list`, ... | a family of commands each: rows and handlers |
//! | `error`, `reply` | replies, byte for byte as in Redis |
//! | `spelling` | numbers in replayed commands of Redis |
//! | `value_codec` | values to and from the formats of crate `rdb` |
//!
//! Absent: sessions and the server. A command on data gets a [`Call`]; its questions to the client and the
//! server go through [`call::CallHost`].

pub mod array;
pub mod bitmap;
pub mod call;
pub mod error;
pub mod generic;
pub mod geo;
pub mod hash;
pub mod hll;
pub mod list;
pub mod random;
pub mod reply;
pub mod set;
pub mod sort;
pub mod spec;
pub mod spelling;
pub mod stream;
pub mod string;
pub mod value_codec;
pub mod zset;

// The modules of a folder are known at the top, too.
pub use bitmap::{bitfield, bitop};
pub use call::Call;
pub use call::{effect, events, flow, offloading};
pub use generic::{dump, expire, keyspace, object, scan};
pub use hll::hyperloglog;
pub use spec::args::Args;
pub use spec::keys::Keys;
pub use spec::table::{Id, Table};
pub use spec::{Arity, Command, Flags, Group, LockScope, ScriptRef, Spec, at_least, exactly};
pub use spec::{args, class, docs, keys, specs, table};
pub use string::{bignum, lcs, set_options, x87_float};

use flow::Done;

/// The function that runs a command on data.
pub type DataHandler = fn(&mut Call<'_, '_>) -> Done;

row_functions!(DataHandler);

/// The families of commands on data.
pub const FAMILIES: &[&[Command<DataHandler>]] = &[
    array::COMMANDS,
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
