//! Specs of commands: a row states everything about a command, and the server derives its behaviour from the
//! row.
//!
//! Each family has a constant table of rows, with the handlers below it or in its folder. The executor reads
//! from the row the arity, the keys and so the slots to lock, the memory check, whether MULTI may queue it,
//! statistics and COMMAND. Facts of a few commands stand by name in the tables `specs`, `docs`,
//! `call::events` and `call::effect`.

pub mod args;
pub mod class;
pub mod docs;
pub mod keys;
pub mod specs;
pub mod table;

use crate::Args;
use crate::keys::Keys;

/// The slots that the executor locks for a handler.
#[derive(Clone, Copy, Debug)]
pub enum LockScope {
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
    /// The slots of the row's keys, locked for writing. All slots for a script that is known to use more keys
    /// than it declares (EVAL). The handler may ask to be run again with all slots.
    Script(ScriptRef),
}

/// How the first argument of a command that runs scripts refers to the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptRef {
    /// By its text (EVAL).
    Text,
    /// By its digest (EVALSHA).
    Digest,
    /// As a function of a library (FCALL).
    Function,
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
    /// A reading command that may write all the same (PFCOUNT): CLIENT PAUSE WRITE delays it.
    pub const MAY_WRITE: Flags = Flags(1 << 12);
    /// May wait; see [`crate::flow::Flow::Block`].
    pub const BLOCKING: Flags = Flags(1 << 13);
    /// Allowed to a client beyond `maxclients`: commands with which an operator inspects and repairs a full
    /// server.
    pub const OPERATOR: Flags = Flags(1 << 14);
    /// Touches no key and does not change the selected database, so EXEC need lock nothing for it.
    pub const NO_DATA: Flags = Flags(1 << 15);
    /// Allowed while a script runs for too long.
    pub const ALLOW_BUSY: Flags = Flags(1 << 16);
    /// Its time is that of the commands that it runs, which the slow log has by themselves.
    pub const SKIP_SLOWLOG: Flags = Flags(1 << 17);
    /// Refused where writes are, although it writes nothing: its client wants to know whether the server is
    /// fit.
    pub const HEALTH: Flags = Flags(1 << 18);
    /// In a cluster, sent to the node that a slot is being moved to, as if ASKING came before it.
    pub const ASKING: Flags = Flags(1 << 19);
    /// Refused by Valkey while a replica loads its primary's data beside its own. Shown in COMMAND; it has no
    /// effect here, where these commands either wait or end the loading.
    pub const NO_ASYNC_LOADING: Flags = Flags(1 << 20);

    /// Concerns channels.
    pub const PUBSUB: Flags = Flags(1 << 24);
    /// Allowed in RESP2 to a client that subscribes to channels.
    pub const WHILE_SUBSCRIBED: Flags = Flags(1 << 25);

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

/// ACL categories beyond the categories that flags imply (write, read, admin, dangerous, fast, slow).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Keyspace,
    String,
    Bitmap,
    Hash,
    List,
    Set,
    SortedSet,
    Stream,
    Array,
    Geo,
    HyperLogLog,
    PubSub,
    Transaction,
    Connection,
    Scripting,
    Server,
}

impl Group {
    pub fn acl_category(self) -> Option<&'static str> {
        match self {
            Group::Keyspace => Some("@keyspace"),
            Group::String => Some("@string"),
            Group::Bitmap => Some("@bitmap"),
            Group::Hash => Some("@hash"),
            Group::List => Some("@list"),
            Group::Set => Some("@set"),
            Group::SortedSet => Some("@sortedset"),
            Group::Stream => Some("@stream"),
            Group::Array => Some("@array"),
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

/// Everything that is known about a command except the function that runs it.
pub struct Spec {
    /// Upper case; a subcommand carries its container's name before a bar: `CLIENT|LIST`.
    pub name: &'static str,
    pub arity: Arity,
    /// Decides in addition to the arity whether a call has the right arguments. For commands that would
    /// otherwise accept more of them than servers without an option.
    form: Option<fn(&Args<'_>) -> bool>,
    pub keys: Keys,
    pub lock_scope: LockScope,
    pub flags: Flags,
    pub group: Group,
    pub members: Option<Members>,
    /// Number of subcommands. They follow the command in the [`Table`](crate::Table).
    pub subcommands: usize,
}

/// A row of a family's table. `H` is the type of the functions of the family: [`crate::DataHandler`] for
/// commands on data, a type of a layer above for commands on sessions or the server.
pub struct Command<H: 'static> {
    pub spec: Spec,
    /// `None` for a container, which only has subcommands.
    pub handler: Option<H>,
    pub subcommands: &'static [Command<H>],
}

/// Which arguments look up members, or fields, of the collection at the only key: `first`, and every `step`th
/// from there.
#[derive(Clone, Copy, Debug)]
pub struct Members {
    first: u8,
    step: u8,
}

impl Members {
    /// Returns the members that a call looks up, for prefetching. Where options come before the members, some
    /// of the returned arguments are none.
    #[inline]
    pub fn of<'a>(self, args: &Args<'a>) -> impl Iterator<Item = &'a [u8]> {
        let args = *args;
        (usize::from(self.first)..args.len()).step_by(usize::from(self.step)).map(move |at| args.at(at))
    }
}

const fn row<H: Copy>(name: &'static str, arity: Arity, group: Group, handler: Option<H>) -> Command<H> {
    let (keys, lock_scope, flags) = (Keys::NONE, LockScope::Walk, Flags::NONE);
    let spec =
        Spec { name, arity, form: None, keys, lock_scope, flags, group, members: None, subcommands: 0 };
    Command { spec, handler, subcommands: &[] }
}

/// A command that reads its keys.
pub const fn read<H: Copy>(
    name: &'static str,
    arity: Arity,
    keys: Keys,
    group: Group,
    handler: H,
) -> Command<H> {
    row(name, arity, group, Some(handler)).keys(keys).lock_scope(LockScope::Keys).flags(Flags::READONLY)
}

/// A command that may change its keys.
pub const fn write<H: Copy>(
    name: &'static str,
    arity: Arity,
    keys: Keys,
    group: Group,
    handler: H,
) -> Command<H> {
    row(name, arity, group, Some(handler)).keys(keys).lock_scope(LockScope::Keys).flags(Flags::WRITE)
}

/// A command that reads the keyspace slot by slot.
pub const fn walk<H: Copy>(name: &'static str, arity: Arity, group: Group, handler: H) -> Command<H> {
    row(name, arity, group, Some(handler)).flags(Flags::READONLY)
}

/// A command that changes the keyspace as a whole.
pub const fn whole<H: Copy>(name: &'static str, arity: Arity, group: Group, handler: H) -> Command<H> {
    row(name, arity, group, Some(handler)).lock_scope(LockScope::Whole).flags(Flags::WRITE)
}

const SESSION: Flags = Flags::NOSCRIPT.with(Flags::LOADING).with(Flags::STALE).with(Flags::NO_DATA);

/// A command on the session or the server, which touches no key.
pub const fn session<H: Copy>(name: &'static str, arity: Arity, group: Group, handler: H) -> Command<H> {
    row(name, arity, group, Some(handler)).flags(SESSION)
}

/// A command that only has subcommands.
pub const fn container<H: Copy>(
    name: &'static str,
    group: Group,
    subcommands: &'static [Command<H>],
) -> Command<H> {
    row(name, at_least(2), group, None).flags(SESSION).with_subcommands(subcommands)
}

impl<H: Copy> Command<H> {
    /// Replaces all flags.
    pub const fn flags(mut self, flags: Flags) -> Self {
        self.spec.flags = flags;
        self
    }

    pub const fn flag(mut self, flag: Flags) -> Self {
        self.spec.flags = self.spec.flags.with(flag);
        self
    }

    pub const fn without(mut self, flag: Flags) -> Self {
        self.spec.flags = self.spec.flags.without(flag);
        self
    }

    pub const fn keys(mut self, keys: Keys) -> Self {
        self.spec.keys = keys;
        self
    }

    pub const fn form(mut self, form: fn(&Args<'_>) -> bool) -> Self {
        self.spec.form = Some(form);
        self
    }

    pub const fn lock_scope(mut self, lock_scope: LockScope) -> Self {
        self.spec.lock_scope = lock_scope;
        self
    }

    pub const fn with_subcommands(mut self, subcommands: &'static [Command<H>]) -> Self {
        self.subcommands = subcommands;
        self.spec.subcommands = subcommands.len();
        self
    }

    /// Allows scripts to call it.
    pub const fn scriptable(self) -> Self {
        self.without(Flags::NOSCRIPT)
    }

    /// Takes constant or logarithmic time.
    pub const fn fast(self) -> Self {
        self.flag(Flags::FAST)
    }

    /// Looks up members: argument `first` and every `step`th from there.
    pub const fn members(mut self, first: u8, step: u8) -> Self {
        self.spec.members = Some(Members { first, step });
        self
    }

    /// May need memory.
    pub const fn grows(self) -> Self {
        self.flag(Flags::DENYOOM)
    }

    /// May wait.
    pub const fn blocks(self) -> Self {
        self.flag(Flags::BLOCKING)
    }

    /// For operators.
    pub const fn admin(self) -> Self {
        self.flag(Flags::ADMIN.with(Flags::OPERATOR))
    }
}

impl Spec {
    /// Whether the call has the right number of arguments.
    #[inline]
    pub fn admits(&self, args: &Args<'_>) -> bool {
        self.arity.admits(args.len()) && self.form.is_none_or(|form| form(args))
    }

    /// Returns the slots to lock for a certain call.
    #[inline]
    pub fn lock_scope_in(&self, args: &Args<'_>) -> LockScope {
        match self.lock_scope {
            LockScope::KeysUnless(reaches_beyond) if reaches_beyond(args) => LockScope::Walk,
            LockScope::KeysUnless(_) => LockScope::Keys,
            lock_scope => lock_scope,
        }
    }

    /// Whether it runs scripts, or functions.
    pub fn runs_scripts(&self) -> bool {
        matches!(self.lock_scope, LockScope::Script(_))
    }

    /// Whether the command only groups subcommands and cannot be called by itself.
    pub fn has_subcommands(&self) -> bool {
        self.subcommands > 0
    }

    /// The name as statistics and COMMAND print it.
    pub fn lower_name(&self) -> String {
        self.name.to_ascii_lowercase()
    }
}

/// Defines the functions that make rows with handlers of a certain type: a function that is generic over the
/// handler would infer the type of the single function.
#[macro_export]
macro_rules! row_functions {
    ($handler:ty) => {
        /// A command that reads its keys.
        pub const fn read(
            name: &'static str,
            arity: $crate::Arity,
            keys: $crate::Keys,
            group: $crate::Group,
            handler: $handler,
        ) -> $crate::Command<$handler> {
            $crate::spec::read(name, arity, keys, group, handler)
        }

        /// A command that may change its keys.
        pub const fn write(
            name: &'static str,
            arity: $crate::Arity,
            keys: $crate::Keys,
            group: $crate::Group,
            handler: $handler,
        ) -> $crate::Command<$handler> {
            $crate::spec::write(name, arity, keys, group, handler)
        }

        /// A command that reads the keyspace slot by slot.
        #[allow(dead_code, reason = "not every layer has such commands")]
        pub const fn walk(
            name: &'static str,
            arity: $crate::Arity,
            group: $crate::Group,
            handler: $handler,
        ) -> $crate::Command<$handler> {
            $crate::spec::walk(name, arity, group, handler)
        }

        /// A command that changes the keyspace as a whole.
        #[allow(dead_code, reason = "not every layer has such commands")]
        pub const fn whole(
            name: &'static str,
            arity: $crate::Arity,
            group: $crate::Group,
            handler: $handler,
        ) -> $crate::Command<$handler> {
            $crate::spec::whole(name, arity, group, handler)
        }

        /// A command on the session or the server, which touches no key.
        pub const fn session(
            name: &'static str,
            arity: $crate::Arity,
            group: $crate::Group,
            handler: $handler,
        ) -> $crate::Command<$handler> {
            $crate::spec::session(name, arity, group, handler)
        }

        /// A command that only has subcommands.
        pub const fn container(
            name: &'static str,
            group: $crate::Group,
            subcommands: &'static [$crate::Command<$handler>],
        ) -> $crate::Command<$handler> {
            $crate::spec::container(name, group, subcommands)
        }
    };
}
