//! Commands: a row describes a command, and everything else follows from the row.
//!
//! Each family has a table, with its handlers below it in the same file. From the row the dispatcher takes
//! the arity, the keys and hence the slots to lock, the memory check, the rules inside MULTI, statistics, and
//! COMMAND. No command is known by its name anywhere else.

mod acl;
pub(crate) mod args;
mod bignum;
mod bitfield;
pub(crate) mod bitmap;
mod bitop;
pub(crate) mod call;
pub(crate) mod client;
mod cluster;
mod commandlog;
pub(crate) mod config_command;
pub(crate) mod connection;
pub(crate) mod debug;
pub(crate) mod docs;
pub(crate) mod dump;
mod effect;
mod events;
pub(crate) mod expire;
mod failover;
pub(crate) mod function;
mod geo;
pub(crate) mod hash;
mod hll;
mod hotkeys;
mod hyperloglog;
mod in_force;
pub(crate) mod introspect;
pub(crate) mod keys;
pub(crate) mod keyspace;
pub(crate) mod latency;
mod lcs;
pub(crate) mod list;
mod lolwut;
pub(crate) mod memory;
pub(crate) mod migrate;
mod module;
mod monitor;
pub(crate) mod object;
pub(crate) mod offloading;
mod persistence;
mod pubsub;
mod random;
pub(crate) mod replicaof;
mod replication;
pub(crate) mod scan;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod set;
mod set_options;
pub(crate) mod sort;
pub(crate) mod specs;
mod stream;
pub(crate) mod string;
pub(crate) mod table;
mod tracking;
pub(crate) mod transaction;
pub(crate) mod wait;
pub(crate) mod x87_float;
pub(crate) mod zset;

pub(crate) use args::Args;
pub(crate) use call::Call;
pub(crate) use keys::Keys;
pub(crate) use table::{Id, Table};

use crate::error::Done;
use crate::scripting::shebang::ScriptFlags;
use crate::server::Server;

/// All families.
pub(crate) const FAMILIES: &[&[Command]] = &[
    acl::COMMANDS,
    bitmap::COMMANDS,
    client::COMMANDS,
    cluster::COMMANDS,
    commandlog::COMMANDS,
    config_command::COMMANDS,
    connection::COMMANDS,
    debug::COMMANDS,
    dump::COMMANDS,
    expire::COMMANDS,
    function::COMMANDS,
    geo::COMMANDS,
    hyperloglog::COMMANDS,
    hash::COMMANDS,
    hotkeys::COMMANDS,
    introspect::COMMANDS,
    keyspace::COMMANDS,
    latency::COMMANDS,
    list::COMMANDS,
    lolwut::COMMANDS,
    memory::COMMANDS,
    migrate::COMMANDS,
    module::COMMANDS,
    monitor::COMMANDS,
    object::COMMANDS,
    persistence::COMMANDS,
    replication::COMMANDS,
    failover::COMMANDS,
    replicaof::COMMANDS,
    pubsub::COMMANDS,
    wait::COMMANDS,
    scan::COMMANDS,
    script::COMMANDS,
    server::COMMANDS,
    set::COMMANDS,
    stream::COMMANDS,
    sort::COMMANDS,
    string::COMMANDS,
    transaction::COMMANDS,
    zset::COMMANDS,
    #[cfg(test)]
    crate::testing::COMMANDS,
];

/// A property of a call, known before it runs.
pub(crate) type CallPredicate = fn(&Args<'_>, &Server) -> bool;

/// Returns the flags that the script of a call declares, if the script exists and declares any.
pub(crate) type ScriptFlagsFn = fn(&Args<'_>, &Server) -> Option<ScriptFlags>;

/// The slots that the dispatcher locks for a handler.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockScope {
    /// The slots of the row's keys, locked.
    Keys,
    /// The same, unless the function finds that the call uses keys that its arguments do not name (SORT BY).
    /// Then none, and the handler locks the slots as it finds keys.
    KeysUnless(fn(&Args<'_>) -> bool),
    /// None: the handler walks from slot to slot (SCAN, KEYS) or needs no data at all.
    Walk,
    /// All slots, behind the closed gate (FLUSHALL, SWAPDB).
    Whole,
    /// The slots of all commands queued since MULTI, and of the watched keys (EXEC).
    Queue,
    /// The slots of the row's keys, locked for writing. All slots, if `needs_all` returns true: a script that
    /// is known to use more than it declares (EVAL). The handler may ask to be run again with all slots.
    /// `says` returns the flags that the script declares.
    Script { needs_all: CallPredicate, says: ScriptFlagsFn },
}

/// Properties of a command, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u32);

impl Flags {
    pub(crate) const NONE: Flags = Flags(0);
    pub(crate) const WRITE: Flags = Flags(1 << 0);
    pub(crate) const READONLY: Flags = Flags(1 << 1);
    /// May need memory: refused when there is none left.
    pub(crate) const DENYOOM: Flags = Flags(1 << 2);
    pub(crate) const ADMIN: Flags = Flags(1 << 3);
    pub(crate) const NOSCRIPT: Flags = Flags(1 << 4);
    pub(crate) const FAST: Flags = Flags(1 << 5);
    /// Allowed while data is being loaded.
    pub(crate) const LOADING: Flags = Flags(1 << 6);
    /// Allowed on a replica whose data is stale.
    pub(crate) const STALE: Flags = Flags(1 << 7);
    /// Run at once inside MULTI, not queued.
    pub(crate) const NOT_QUEUED: Flags = Flags(1 << 8);
    /// Refused inside MULTI.
    pub(crate) const NO_MULTI: Flags = Flags(1 << 9);
    /// Allowed before AUTH.
    pub(crate) const NO_AUTH: Flags = Flags(1 << 10);
    /// Not delayed by CLIENT PAUSE.
    pub(crate) const EVEN_PAUSED: Flags = Flags(1 << 11);
    /// A reading command that may write all the same (PFCOUNT): CLIENT PAUSE WRITE delays it.
    pub(crate) const MAY_WRITE: Flags = Flags(1 << 12);
    /// May wait; see [`crate::blocking`].
    pub(crate) const BLOCKING: Flags = Flags(1 << 13);
    /// Allowed to a client beyond `maxclients`: commands with which an operator inspects and repairs a full
    /// server.
    pub(crate) const OPERATOR: Flags = Flags(1 << 14);
    /// Touches no key and does not change the selected database, so EXEC need lock nothing for it.
    pub(crate) const NO_DATA: Flags = Flags(1 << 15);
    /// Allowed while a script runs for too long.
    pub(crate) const ALLOW_BUSY: Flags = Flags(1 << 16);
    /// Its time is that of the commands that it runs, which the slow log has by themselves.
    pub(crate) const SKIP_SLOWLOG: Flags = Flags(1 << 17);
    /// Refused where writes are, although it writes nothing: its client wants to know whether the server is
    /// fit.
    pub(crate) const HEALTH: Flags = Flags(1 << 18);
    /// In a cluster, sent to the node that a slot is being moved to, as if ASKING came before it.
    pub(crate) const ASKING: Flags = Flags(1 << 19);

    /// Concerns channels.
    pub(crate) const PUBSUB: Flags = Flags(1 << 24);
    /// Allowed in RESP2 to a client that subscribes to channels.
    pub(crate) const WHILE_SUBSCRIBED: Flags = Flags(1 << 25);

    pub(crate) const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    #[inline]
    pub(crate) const fn has(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }
}

/// ACL categories beyond the categories that flags imply (write, read, admin, dangerous, fast, slow).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Keyspace,
    String,
    Bitmap,
    Hash,
    List,
    Set,
    SortedSet,
    Stream,
    Geo,
    HyperLogLog,
    PubSub,
    Transaction,
    Connection,
    Scripting,
    Server,
}

impl Group {
    pub(crate) fn acl_category(self) -> Option<&'static str> {
        match self {
            Group::Keyspace => Some("@keyspace"),
            Group::String => Some("@string"),
            Group::Bitmap => Some("@bitmap"),
            Group::Hash => Some("@hash"),
            Group::List => Some("@list"),
            Group::Set => Some("@set"),
            Group::SortedSet => Some("@sortedset"),
            Group::Stream => Some("@stream"),
            Group::Geo => Some("@geo"),
            Group::HyperLogLog => Some("@hyperloglog"),
            Group::PubSub => Some("@pubsub"),
            Group::Transaction => Some("@transaction"),
            Group::Connection => Some("@connection"),
            Group::Scripting => Some("@scripting"),
            Group::Server => None,
        }
    }
}

/// The number of arguments, including the command's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arity(i32);

/// Exactly `n` arguments.
pub(crate) const fn exactly(n: i32) -> Arity {
    Arity(n)
}

/// `n` arguments or more.
pub(crate) const fn at_least(n: i32) -> Arity {
    Arity(-n)
}

impl Arity {
    #[inline]
    pub(crate) fn admits(self, args: usize) -> bool {
        if self.0 >= 0 { args == self.0 as usize } else { args >= -self.0 as usize }
    }

    /// Redis' notation: negative for "or more".
    pub(crate) fn as_i32(self) -> i32 {
        self.0
    }
}

/// The function that runs a command.
pub(crate) type Handler = fn(&mut Call<'_, '_>) -> Done;

/// A row of a family's table.
pub(crate) struct Command {
    /// Upper case; a subcommand carries its container's name before a bar: `CLIENT|LIST`.
    pub(crate) name: &'static str,
    pub(crate) arity: Arity,
    pub(crate) keys: Keys,
    pub(crate) lock_scope: LockScope,
    pub(crate) flags: Flags,
    pub(crate) group: Group,
    pub(crate) members: Option<Members>,
    pub(crate) handler: Handler,
    pub(crate) subcommands: &'static [Command],
}

/// Which arguments look up members, or fields, of the collection at the only key: `first`, and every `step`th
/// from there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Members {
    first: u8,
    step: u8,
}

impl Members {
    /// Returns the members that a call looks up, for prefetching. Where options come before the members, some
    /// of the returned arguments are none.
    #[inline]
    pub(crate) fn of<'a>(self, args: &Args<'a>) -> impl Iterator<Item = &'a [u8]> {
        let args = *args;
        (usize::from(self.first)..args.len()).step_by(usize::from(self.step)).map(move |at| args.at(at))
    }
}

const fn row(name: &'static str, arity: Arity, group: Group, handler: Handler) -> Command {
    let (keys, lock_scope, flags) = (Keys::NONE, LockScope::Walk, Flags::NONE);
    Command { name, arity, keys, lock_scope, flags, group, members: None, handler, subcommands: &[] }
}

/// A command that reads its keys.
pub(crate) const fn read(
    name: &'static str,
    arity: Arity,
    keys: Keys,
    group: Group,
    handler: Handler,
) -> Command {
    Command { keys, lock_scope: LockScope::Keys, flags: Flags::READONLY, ..row(name, arity, group, handler) }
}

/// A command that may change its keys.
pub(crate) const fn write(
    name: &'static str,
    arity: Arity,
    keys: Keys,
    group: Group,
    handler: Handler,
) -> Command {
    Command { keys, lock_scope: LockScope::Keys, flags: Flags::WRITE, ..row(name, arity, group, handler) }
}

/// A command that reads the keyspace slot by slot.
pub(crate) const fn walk(name: &'static str, arity: Arity, group: Group, handler: Handler) -> Command {
    Command { flags: Flags::READONLY, ..row(name, arity, group, handler) }
}

/// A command that changes the keyspace as a whole.
pub(crate) const fn whole(name: &'static str, arity: Arity, group: Group, handler: Handler) -> Command {
    Command { lock_scope: LockScope::Whole, flags: Flags::WRITE, ..row(name, arity, group, handler) }
}

/// A command on the session or the server, which touches no key.
pub(crate) const fn session(name: &'static str, arity: Arity, group: Group, handler: Handler) -> Command {
    Command {
        flags: Flags::NOSCRIPT.with(Flags::LOADING).with(Flags::STALE).with(Flags::NO_DATA),
        ..row(name, arity, group, handler)
    }
}

/// A command that only has subcommands.
pub(crate) const fn container(name: &'static str, group: Group, subcommands: &'static [Command]) -> Command {
    Command { subcommands, ..session(name, at_least(2), group, no_such_subcommand) }
}

/// Runs when a container's subcommand is not known; the dispatcher has replied by then.
fn no_such_subcommand(_: &mut Call<'_, '_>) -> Done {
    Err(crate::error::Error::Syntax)
}

impl Command {
    pub(crate) const fn flag(mut self, flag: Flags) -> Command {
        self.flags = self.flags.with(flag);
        self
    }

    pub(crate) const fn without(mut self, flag: Flags) -> Command {
        self.flags = self.flags.without(flag);
        self
    }

    /// Allows scripts to call it.
    pub(crate) const fn scriptable(self) -> Command {
        self.without(Flags::NOSCRIPT)
    }

    /// Takes constant or logarithmic time.
    pub(crate) const fn fast(self) -> Command {
        self.flag(Flags::FAST)
    }

    /// Looks up members: argument `first` and every `step`th from there.
    pub(crate) const fn members(self, first: u8, step: u8) -> Command {
        Command { members: Some(Members { first, step }), ..self }
    }

    /// May need memory.
    pub(crate) const fn grows(self) -> Command {
        self.flag(Flags::DENYOOM)
    }

    /// May wait.
    pub(crate) const fn blocks(self) -> Command {
        self.flag(Flags::BLOCKING)
    }

    /// For operators.
    pub(crate) const fn admin(self) -> Command {
        self.flag(Flags::ADMIN.with(Flags::OPERATOR))
    }

    /// Returns the slots to lock for a certain call.
    #[inline]
    pub(crate) fn lock_scope_in(&self, args: &Args<'_>) -> LockScope {
        match self.lock_scope {
            LockScope::KeysUnless(reaches_beyond) if reaches_beyond(args) => LockScope::Walk,
            LockScope::KeysUnless(_) => LockScope::Keys,
            lock_scope => lock_scope,
        }
    }

    /// Whether it runs scripts, or functions.
    pub(crate) fn runs_scripts(&self) -> bool {
        matches!(self.lock_scope, LockScope::Script { .. })
    }

    /// Whether a call of a command that may write is known not to: its script declares so.
    #[cold]
    pub(crate) fn only_reads(&self, args: &Args<'_>, server: &Server) -> bool {
        self.script_says(args, server).is_some_and(|flags| flags.has(ScriptFlags::NO_WRITES))
    }

    /// Returns the flags of a queued call: the row's, adjusted to the flags that its script declares.
    pub(crate) fn flags_in(&self, args: &Args<'_>, server: &Server) -> Flags {
        let Some(says) = self.script_says(args, server) else { return self.flags };
        let flags =
            if says.has(ScriptFlags::ALLOW_STALE) { self.flags } else { self.flags.without(Flags::STALE) };
        match (says.has(ScriptFlags::NO_WRITES), says.has(ScriptFlags::ALLOW_OOM)) {
            (true, _) => flags,
            (false, true) => flags.with(Flags::WRITE),
            (false, false) => flags.with(Flags::WRITE).with(Flags::DENYOOM),
        }
    }

    /// Returns the flags that the script of a call declares, if the call runs a script.
    fn script_says(&self, args: &Args<'_>, server: &Server) -> Option<ScriptFlags> {
        match self.lock_scope {
            LockScope::Script { says, .. } => says(args, server),
            _ => None,
        }
    }

    /// The name as statistics and COMMAND print it.
    pub(crate) fn lower_name(&self) -> String {
        self.name.to_ascii_lowercase()
    }
}
