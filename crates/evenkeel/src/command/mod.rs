//! Commands: a row says what a command is, and everything else follows from the row.
//!
//! One table per family, its handlers below it in the same file. The dispatcher takes from the row the arity, the
//! keys and hence the slots to lock, the memory check, what is allowed in MULTI, statistics, COMMAND. No command is
//! known by its name anywhere else.

pub mod args;
mod bitfield;
pub mod bitmap;
mod bitop;
pub mod call;
pub mod client;
pub mod config_command;
pub mod connection;
pub mod debug;
pub mod docs;
pub mod expire;
mod extended;
pub mod introspect;
pub mod keys;
pub mod keyspace;
pub mod latency;
mod lcs;
pub mod memory;
mod natural;
pub mod object;
pub mod scan;
pub mod server;
mod set_options;
pub mod slowlog;
pub mod specs;
pub mod string;
pub mod table;
pub mod transaction;

pub use args::Args;
pub use call::Call;
pub use keys::Keys;
pub use table::{Id, Table};

use crate::error::Done;

/// All families.
pub const FAMILIES: &[&[Command]] = &[
    bitmap::COMMANDS,
    client::COMMANDS,
    config_command::COMMANDS,
    connection::COMMANDS,
    debug::COMMANDS,
    expire::COMMANDS,
    introspect::COMMANDS,
    keyspace::COMMANDS,
    latency::COMMANDS,
    memory::COMMANDS,
    object::COMMANDS,
    scan::COMMANDS,
    server::COMMANDS,
    slowlog::COMMANDS,
    string::COMMANDS,
    transaction::COMMANDS,
    #[cfg(test)]
    crate::testing::COMMANDS,
];

/// What a handler gets to hold, beside its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The slots of the row's keys, locked.
    Keys,
    /// Nothing; it walks from slot to slot (SCAN, KEYS) or needs no data at all.
    Walk,
    /// Everything, behind the closed gate (FLUSHALL, SWAPDB).
    Whole,
    /// The slots of all commands queued since MULTI, and of the watched keys (EXEC).
    Queue,
}

/// Properties of a command, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    pub const NONE: Flags = Flags(0);
    pub const WRITE: Flags = Flags(1 << 0);
    pub const READONLY: Flags = Flags(1 << 1);
    /// May need memory: refused when there is none left.
    pub const DENYOOM: Flags = Flags(1 << 2);
    pub const ADMIN: Flags = Flags(1 << 3);
    pub const NOSCRIPT: Flags = Flags(1 << 4);
    pub const FAST: Flags = Flags(1 << 5);
    /// Allowed while data is being loaded.
    pub const LOADING: Flags = Flags(1 << 6);
    /// Allowed on a replica whose data is stale.
    pub const STALE: Flags = Flags(1 << 7);
    /// Run at once inside MULTI, not queued.
    pub const NOT_QUEUED: Flags = Flags(1 << 8);
    /// Refused inside MULTI.
    pub const NO_MULTI: Flags = Flags(1 << 9);
    /// Allowed before AUTH.
    pub const NO_AUTH: Flags = Flags(1 << 10);
    /// Not delayed by CLIENT PAUSE.
    pub const EVEN_PAUSED: Flags = Flags(1 << 11);
    /// Delayed by CLIENT PAUSE WRITE although it need not write (EXEC).
    pub const MAY_WRITE: Flags = Flags(1 << 12);
    /// Allowed to a client beyond `maxclients`: what an operator needs to see and mend a full server.
    pub const OPERATOR: Flags = Flags(1 << 14);
    /// Touches no key and does not change the database selected, so that EXEC need hold nothing for it.
    pub const NO_DATA: Flags = Flags(1 << 15);
    /// Allowed while a script runs for too long.
    pub const ALLOW_BUSY: Flags = Flags(1 << 16);
    /// Its time is that of the commands that it runs, which are in the slow log for themselves.
    pub const SKIP_SLOWLOG: Flags = Flags(1 << 17);

    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    #[inline]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }
}

/// ACL categories beyond those that flags imply (write, read, admin, dangerous, fast, slow).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Keyspace,
    String,
    Bitmap,
    Transaction,
    Connection,
    Server,
}

impl Group {
    pub fn acl_category(self) -> Option<&'static str> {
        match self {
            Group::Keyspace => Some("@keyspace"),
            Group::String => Some("@string"),
            Group::Bitmap => Some("@bitmap"),
            Group::Transaction => Some("@transaction"),
            Group::Connection => Some("@connection"),
            Group::Server => None,
        }
    }
}

/// How many arguments, the command's name included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arity(i32);

/// Exactly `n` arguments.
pub const fn exactly(n: i32) -> Arity {
    Arity(n)
}

/// `n` arguments or more.
pub const fn at_least(n: i32) -> Arity {
    Arity(-n)
}

impl Arity {
    #[inline]
    pub fn admits(self, args: usize) -> bool {
        if self.0 >= 0 { args == self.0 as usize } else { args >= -self.0 as usize }
    }

    /// Redis' notation: negative for "or more".
    pub fn as_i32(self) -> i32 {
        self.0
    }
}

/// What runs a command.
pub type Handler = fn(&mut Call<'_, '_>) -> Done;

/// A row.
pub struct Command {
    /// Upper case; a subcommand carries its container's name before a bar: `CLIENT|LIST`.
    pub name: &'static str,
    pub arity: Arity,
    pub keys: Keys,
    pub reach: Reach,
    pub flags: Flags,
    pub group: Group,
    pub handler: Handler,
    pub subcommands: &'static [Command],
}

const fn row(name: &'static str, arity: Arity, group: Group, handler: Handler) -> Command {
    let (keys, reach, flags) = (Keys::NONE, Reach::Walk, Flags::NONE);
    Command { name, arity, keys, reach, flags, group, handler, subcommands: &[] }
}

/// A command that reads its keys.
pub const fn read(name: &'static str, arity: Arity, keys: Keys, group: Group, handler: Handler) -> Command {
    Command { keys, reach: Reach::Keys, flags: Flags::READONLY, ..row(name, arity, group, handler) }
}

/// A command that may change its keys.
pub const fn write(name: &'static str, arity: Arity, keys: Keys, group: Group, handler: Handler) -> Command {
    Command { keys, reach: Reach::Keys, flags: Flags::WRITE, ..row(name, arity, group, handler) }
}

/// A command that reads the keyspace slot by slot.
pub const fn walk(name: &'static str, arity: Arity, group: Group, handler: Handler) -> Command {
    Command { flags: Flags::READONLY, ..row(name, arity, group, handler) }
}

/// A command that changes the keyspace as a whole.
pub const fn whole(name: &'static str, arity: Arity, group: Group, handler: Handler) -> Command {
    Command { reach: Reach::Whole, flags: Flags::WRITE, ..row(name, arity, group, handler) }
}

/// A command on the session or the server, which touches no key.
pub const fn session(name: &'static str, arity: Arity, group: Group, handler: Handler) -> Command {
    Command {
        flags: Flags::NOSCRIPT.with(Flags::LOADING).with(Flags::STALE).with(Flags::NO_DATA),
        ..row(name, arity, group, handler)
    }
}

/// A command that only has subcommands.
pub const fn container(name: &'static str, group: Group, subcommands: &'static [Command]) -> Command {
    Command { subcommands, ..session(name, at_least(2), group, no_such_subcommand) }
}

/// Runs when a container's subcommand is not known; the dispatcher has replied by then.
fn no_such_subcommand(_: &mut Call<'_, '_>) -> Done {
    Err(crate::error::Error::Syntax)
}

impl Command {
    pub const fn flag(mut self, flag: Flags) -> Command {
        self.flags = self.flags.with(flag);
        self
    }

    pub const fn without(mut self, flag: Flags) -> Command {
        self.flags = self.flags.without(flag);
        self
    }

    /// A script may call it.
    pub const fn scriptable(self) -> Command {
        self.without(Flags::NOSCRIPT)
    }

    /// Takes constant or logarithmic time.
    pub const fn fast(self) -> Command {
        self.flag(Flags::FAST)
    }

    /// May need memory.
    pub const fn grows(self) -> Command {
        self.flag(Flags::DENYOOM)
    }

    /// For operators.
    pub const fn admin(self) -> Command {
        self.flag(Flags::ADMIN.with(Flags::OPERATOR))
    }

    /// The name as statistics and COMMAND print it.
    pub fn lower_name(&self) -> String {
        self.name.to_ascii_lowercase()
    }
}
