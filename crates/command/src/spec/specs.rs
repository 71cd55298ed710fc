//! The part of COMMAND that a row's own properties do not give: the use of each key, hints for proxies and
//! cluster clients, further ACL categories.
//!
//! Access control goes by it, and nothing else in the server. For a row that is not listed, the use follows
//! from its keys: a reading command reads and accesses them, a writing command reads, accesses and updates
//! them.

use crate::keys::Marks;
use crate::{Args, Flags, Keys, Spec};
use evenkeel_config as config;

/// The place of keys, and their use.
#[derive(Clone, Copy)]
pub struct KeySpec {
    /// In the words of COMMAND: `RW access update`.
    pub flags: &'static str,
    pub notes: &'static str,
    /// The index of the first key, of its count, or of the argument at which the search for `keyword` begins:
    /// forwards, or backwards when it is counted from the end.
    pub first: i16,
    /// The word that the keys follow; empty if their place is fixed. If the word stands several times, the
    /// row's own rule decides which counts.
    pub keyword: &'static str,
    pub find: Find,
    /// The use in a certain call, where it depends on the arguments.
    pub in_call: Option<fn(&Args<'_>) -> &'static str>,
}

#[derive(Clone, Copy)]
pub enum Find {
    /// `last` counts from `first`, or below zero from the end.
    Range { last: i16, step: i16 },
    /// A count of keys at `first`, and behind it the keys, each with `step - 1` other arguments.
    Counted { step: i16 },
    /// The keys are the first half of the arguments behind a word, which is at `first` or later.
    HalfAfter(&'static str),
    /// Not among the arguments: the data decides (BY and GET of SORT).
    Beyond,
    /// Where the row's own rule finds keys that no other specification has (STORE of SORT).
    Anywhere,
}

/// See the module's text.
struct Extra {
    name: &'static str,
    categories: &'static [&'static str],
    tips: &'static [&'static str],
    keys: &'static [KeySpec],
    channels: ChannelArgs,
    databases: DatabaseArgs,
    /// Whether the argument of this index is to be kept out of logs.
    secret: fn(&Args<'_>, usize) -> bool,
}

/// Which arguments are channels that need a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelArgs {
    None,
    First,
    All,
    /// All arguments, as patterns.
    Patterns,
}

/// Which databases a command uses beside its client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseArgs {
    None,
    /// The argument of this index.
    One(usize),
    Two(usize, usize),
    /// The argument behind each `DB` from this index on (COPY).
    Options(usize),
    /// All databases of the server.
    All,
}

const fn extra(name: &'static str) -> Extra {
    Extra {
        name,
        categories: &[],
        tips: &[],
        keys: &[],
        channels: ChannelArgs::None,
        databases: DatabaseArgs::None,
        secret: |_, _| false,
    }
}

impl Extra {
    const fn categories(self, categories: &'static [&'static str]) -> Extra {
        Extra { categories, ..self }
    }

    const fn tips(self, tips: &'static [&'static str]) -> Extra {
        Extra { tips, ..self }
    }

    const fn keys(self, keys: &'static [KeySpec]) -> Extra {
        Extra { keys, ..self }
    }

    const fn channels(self, channels: ChannelArgs) -> Extra {
        Extra { channels, ..self }
    }

    const fn databases(self, databases: DatabaseArgs) -> Extra {
        Extra { databases, ..self }
    }

    const fn secret(self, secret: fn(&Args<'_>, usize) -> bool) -> Extra {
        Extra { secret, ..self }
    }
}

impl KeySpec {
    /// Whether it describes keys, and not words that merely have a slot.
    pub fn is_of_keys(&self) -> bool {
        self.flags != NOT_A_KEY
    }
}

const fn range(first: i16, last: i16, step: i16, flags: &'static str) -> KeySpec {
    KeySpec { flags, notes: "", first, keyword: "", find: Find::Range { last, step }, in_call: None }
}

/// A single key.
const fn key(at: i16, flags: &'static str) -> KeySpec {
    range(at, 0, 1, flags)
}

/// A single key behind a word, which stands at `from` or later.
const fn behind(keyword: &'static str, from: i16, flags: &'static str) -> KeySpec {
    KeySpec { keyword, ..key(from, flags) }
}

/// All arguments from `first` on.
const fn rest(first: i16, flags: &'static str) -> KeySpec {
    range(first, -1, 1, flags)
}

/// The keys behind STREAMS, which is at `first` or later.
const fn streams(first: i16) -> KeySpec {
    KeySpec { find: Find::HalfAfter("STREAMS"), ..key(first, "RO access") }
}

/// A count at `at`, and as many keys behind it.
const fn counted(at: i16, flags: &'static str) -> KeySpec {
    KeySpec { find: Find::Counted { step: 1 }, ..key(at, flags) }
}

/// The keys that a script declares; it may use them in any way.
const SCRIPT_KEYS: &[KeySpec] = &[KeySpec {
    notes: "We cannot tell how the keys will be used so we assume the worst, RW and UPDATE",
    ..counted(2, "RW access update")
}];
const SCRIPT_KEYS_RO: &[KeySpec] = &[KeySpec {
    notes: "We cannot tell how the keys will be used so we assume the worst, RO and ACCESS",
    ..counted(2, "RO access")
}];
const ONE_OK: &[&str] = &["request_policy:all_shards", "response_policy:one_succeeded"];
const ALL_SHARDS_SPECIAL_ANY: &[&str] =
    &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"];

/// A destination, and counted sources.
const STORED: &[KeySpec] = &[key(1, "OW update"), counted(2, "RO access")];

/// A key, or all keys behind KEYS.
const MIGRATED: &[KeySpec] = &[
    key(3, "RW access delete"),
    KeySpec { keyword: "KEYS", ..range(-2, -1, 1, "RW access delete incomplete") },
];
const BY_AND_GET: KeySpec = KeySpec {
    notes: "the keys that BY and GET read depend on the elements",
    find: Find::Beyond,
    ..key(0, "RO access")
};

/// The keys of EXEC's conditions.
const CONDITIONS: KeySpec =
    KeySpec { notes: "one for each condition", find: Find::Anywhere, ..key(1, "RO access") };

const STORE: KeySpec =
    KeySpec { notes: "STORE may be anywhere among the options", find: Find::Anywhere, ..key(0, "OW update") };

/// A word that has a slot and is no key: the channel of SPUBLISH.
const NOT_A_KEY: &str = "not_key";

const EACH_SHARD_SUM: &[&str] = &["request_policy:multi_shard", "response_policy:agg_sum"];
const ALL_NODES_OK: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];
const ALL_SHARDS: &[&str] = &["request_policy:all_shards"];
const ALL_SHARDS_OK: &[&str] = &["request_policy:all_shards", "response_policy:all_succeeded"];
const CHANGES: &[&str] = &["nondeterministic_output"];
const CHANGES_ORDER: &[&str] = &["nondeterministic_output_order"];
const ALL_SHARDS_SPECIAL: &[&str] =
    &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"];
const ALL_NODES_SPECIAL: &[&str] =
    &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"];

const DANGEROUS: &[&str] = &["@dangerous"];
const SORTS: &[&str] = &["@set", "@sortedset", "@dangerous"];
const FOR_OPERATORS: &[&str] = &["@admin", "@dangerous"];

const DELEX_KEY: KeySpec = KeySpec {
    notes: "reads the value if a condition is given",
    in_call: Some(|args| if args.len() > 2 { "RW access delete" } else { "RM delete" }),
    ..key(1, "RW access delete variable_flags")
};

const SET_KEY: KeySpec = KeySpec {
    notes: "reads the previous value if GET, IFNE, IFDEQ or IFDNE is given",
    in_call: Some(|args| {
        let reads = [&b"GET"[..], b"IFNE", b"IFDEQ", b"IFDNE"].iter().any(|word| has(args, 3, word));
        if reads { "RW access update" } else { "OW update" }
    }),
    ..key(1, "RW access update variable_flags")
};

const BITFIELD_KEY: KeySpec = KeySpec {
    notes: "only reads the key if all operations are GET",
    in_call: Some(|args| {
        let writes = has(args, 2, b"SET") || has(args, 2, b"INCRBY");
        if writes { "RW access update" } else { "RO access" }
    }),
    ..key(1, "RW access update variable_flags")
};

/// A set made of other sets.
const STORED_SET: &[KeySpec] = &[key(1, "OW update"), rest(2, "RO access")];

const GETEX_KEY: KeySpec =
    KeySpec { notes: "may change the expiration time of the key", ..key(1, "RW access update") };

const PFCOUNT_KEYS: KeySpec = KeySpec { notes: "caches the count in the value", ..rest(1, "RW access") };

fn has(args: &Args<'_>, first: usize, word: &[u8]) -> bool {
    args.from(first).any(|arg| arg.eq_ignore_ascii_case(word))
}

/// By name.
#[rustfmt::skip]
const EXTRAS: &[Extra] = &[
    extra("ACL|DELUSER").tips(ALL_NODES_OK).secret(|_, at| at >= 2),
    extra("ACL|GETUSER").secret(|_, at| at >= 2),
    extra("ACL|SAVE").tips(ALL_NODES_OK),
    extra("ACL|SETUSER").tips(ALL_NODES_OK).secret(|_, at| at >= 2),
    extra("APPEND").keys(&[key(1, "RW insert")]),
    extra("ARDEL").keys(&[key(1, "RW delete")]),
    extra("ARDELRANGE").keys(&[key(1, "RW delete")]),
    extra("ARINSERT").keys(&[key(1, "RW update")]),
    extra("ARMSET").keys(&[key(1, "RW update")]),
    extra("ARRING").keys(&[key(1, "RW update")]),
    extra("ARSEEK").keys(&[key(1, "RW update")]),
    extra("ARSET").keys(&[key(1, "RW update")]),
    extra("AUTH").secret(|_, at| at >= 1),
    extra("BITFIELD").keys(&[BITFIELD_KEY]),
    extra("BITOP").keys(&[key(2, "OW update"), rest(3, "RO access")]),
    extra("BLMOVE").keys(&[key(1, "RW access delete"), key(2, "RW insert")]),
    extra("BLMOVEM").keys(&[key(1, "RW access delete"), key(2, "RW insert")]),
    extra("BLMPOP").keys(&[counted(2, "RW access delete")]),
    extra("BLPOP").keys(&[range(1, -2, 1, "RW access delete")]),
    extra("BRPOP").keys(&[range(1, -2, 1, "RW access delete")]),
    extra("BRPOPLPUSH").keys(&[key(1, "RW access delete"), key(2, "RW insert")]),
    extra("BZMPOP").keys(&[counted(2, "RW access delete")]),
    extra("BZPOPMAX").keys(&[range(1, -2, 1, "RW access delete")]),
    extra("BZPOPMIN").keys(&[range(1, -2, 1, "RW access delete")]),
    extra("CLIENT|INFO").tips(CHANGES),
    extra("CLIENT|LIST").tips(CHANGES),
    extra("CLIENT|SETINFO").tips(ALL_NODES_OK),
    extra("CLIENT|SETNAME").tips(ALL_NODES_OK),
    extra("CLUSTERSCAN").keys(&[key(1, NOT_A_KEY)])
        .tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"]),
    extra("CLUSTER|CANCELSLOTMIGRATIONS").databases(DatabaseArgs::All),
    extra("CLUSTER|FLUSHSLOT").categories(&["@keyspace"]).databases(DatabaseArgs::All),
    extra("CLUSTER|MIGRATESLOTS").databases(DatabaseArgs::All),
    extra("COMMAND").tips(CHANGES_ORDER),
    extra("COMMANDLOG|GET").tips(&["request_policy:all_nodes", "nondeterministic_output"]),
    extra("COMMANDLOG|LEN")
        .tips(&["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"]),
    extra("COMMANDLOG|RESET").tips(ALL_NODES_OK),
    extra("COMMAND|DOCS").tips(CHANGES_ORDER),
    extra("COMMAND|INFO").tips(CHANGES_ORDER),
    extra("COMMAND|LIST").tips(CHANGES_ORDER),
    extra("CONFIG|RESETSTAT").tips(ALL_NODES_OK),
    extra("CONFIG|REWRITE").tips(ALL_NODES_OK),
    extra("CONFIG|SET").tips(ALL_NODES_OK).secret(is_value_of_a_secret),
    extra("COPY").keys(&[key(1, "RO access"), key(2, "OW update")]).databases(DatabaseArgs::Options(3)),
    extra("DBSIZE").tips(&["request_policy:all_shards", "response_policy:agg_sum"]),
    extra("DEL").tips(EACH_SHARD_SUM).keys(&[rest(1, "RM delete")]),
    extra("DELEX").keys(&[DELEX_KEY]),
    extra("DELIFEQ").keys(&[key(1, "RM delete")]),
    extra("DUMP").tips(CHANGES),
    extra("EVAL").keys(SCRIPT_KEYS),
    extra("EVALSHA").keys(&[counted(2, "RW access update")]),
    extra("EVALSHA_RO").keys(&[counted(2, "RO access")]),
    extra("EVAL_RO").keys(SCRIPT_KEYS_RO),
    extra("EXEC").keys(&[CONDITIONS]),
    extra("EXISTS").tips(EACH_SHARD_SUM).keys(&[rest(1, "RO")]),
    extra("EXPIRE").keys(&[key(1, "RW update")]),
    extra("EXPIREAT").keys(&[key(1, "RW update")]),
    extra("FCALL").keys(SCRIPT_KEYS),
    extra("FCALL_RO").keys(SCRIPT_KEYS_RO),
    extra("FLUSHALL").categories(DANGEROUS).tips(ALL_SHARDS_OK).databases(DatabaseArgs::All),
    extra("FLUSHDB").categories(DANGEROUS).tips(ALL_SHARDS_OK),
    extra("FUNCTION|DELETE").tips(ALL_SHARDS_OK),
    extra("FUNCTION|FLUSH").tips(ALL_SHARDS_OK),
    extra("FUNCTION|KILL").tips(ONE_OK),
    extra("FUNCTION|LIST").tips(&["nondeterministic_output_order"]),
    extra("FUNCTION|LOAD").tips(ALL_SHARDS_OK),
    extra("FUNCTION|RESTORE").tips(ALL_SHARDS_OK),
    extra("FUNCTION|STATS").tips(ALL_SHARDS_SPECIAL_ANY),
    extra("GEOADD").keys(&[key(1, "RW update")]),
    extra("GEORADIUS")
        .keys(&[key(1, "RO access"), behind("STORE", 6, "OW update"), behind("STOREDIST", 6, "OW update")]),
    extra("GEORADIUSBYMEMBER")
        .keys(&[key(1, "RO access"), behind("STORE", 5, "OW update"), behind("STOREDIST", 5, "OW update")]),
    extra("GEOSEARCHSTORE").keys(&[key(1, "OW update"), key(2, "RO access")]),
    extra("GETDEL").keys(&[key(1, "RW access delete")]),
    extra("GETEX").keys(&[GETEX_KEY]),
    extra("HDEL").keys(&[key(1, "RW delete")]),
    extra("HELLO").secret(|args, at| at >= 3 && (args.is(at - 1, "AUTH") || args.is(at - 2, "AUTH"))),
    extra("HEXISTS").keys(&[key(1, "RO")]),
    extra("HEXPIRE").keys(&[key(1, "RW update")]),
    extra("HEXPIREAT").keys(&[key(1, "RW update")]),
    extra("HGETALL").tips(CHANGES_ORDER),
    extra("HGETDEL").keys(&[key(1, "RW access delete")]),
    extra("HIMPORT|DISCARD").tips(ALL_SHARDS),
    extra("HIMPORT|DISCARDALL").tips(ALL_SHARDS),
    extra("HIMPORT|PREPARE").tips(ALL_SHARDS),
    extra("HIMPORT|SET").keys(&[key(2, "OW update")]),
    extra("HKEYS").tips(CHANGES_ORDER),
    extra("HLEN").keys(&[key(1, "RO")]),
    extra("HMSET").keys(&[key(1, "RW update")]),
    extra("HPERSIST").keys(&[key(1, "RW update")]),
    extra("HPEXPIRE").keys(&[key(1, "RW update")]),
    extra("HPEXPIREAT").keys(&[key(1, "RW update")]),
    extra("HRANDFIELD").tips(CHANGES),
    extra("HSCAN").tips(CHANGES),
    extra("HSET").keys(&[key(1, "RW update")]),
    extra("HSETEX").keys(&[key(1, "RW insert")]),
    extra("HSETNX").keys(&[key(1, "RW insert")]),
    extra("HSTRLEN").keys(&[key(1, "RO")]),
    extra("HVALS").tips(CHANGES_ORDER),
    extra("INFO").categories(DANGEROUS).tips(ALL_SHARDS_SPECIAL),
    extra("KEYS").categories(DANGEROUS).tips(&["request_policy:all_shards", "nondeterministic_output_order"]),
    extra("LASTSAVE").categories(FOR_OPERATORS).tips(CHANGES),
    extra("LATENCY|DOCTOR").tips(ALL_NODES_SPECIAL),
    extra("LATENCY|GRAPH").tips(ALL_NODES_SPECIAL),
    extra("LATENCY|HISTOGRAM").tips(ALL_NODES_SPECIAL),
    extra("LATENCY|HISTORY").tips(ALL_NODES_SPECIAL),
    extra("LATENCY|LATEST").tips(ALL_NODES_SPECIAL),
    extra("LATENCY|RESET").tips(&["request_policy:all_nodes", "response_policy:agg_sum"]),
    extra("LINSERT").keys(&[key(1, "RW insert")]),
    extra("LLEN").keys(&[key(1, "RO")]),
    extra("LMOVE").keys(&[key(1, "RW access delete"), key(2, "RW insert")]),
    extra("LMOVEM").keys(&[key(1, "RW access delete"), key(2, "RW insert")]),
    extra("LMPOP").keys(&[counted(1, "RW access delete")]),
    extra("LPOP").keys(&[key(1, "RW access delete")]),
    extra("LPUSH").keys(&[key(1, "RW insert")]),
    extra("LPUSHX").keys(&[key(1, "RW insert")]),
    extra("LREM").keys(&[key(1, "RW delete")]),
    extra("LSET").keys(&[key(1, "RW update")]),
    extra("LTRIM").keys(&[key(1, "RW delete")]),
    extra("MEMORY|DOCTOR").tips(ALL_SHARDS_SPECIAL),
    extra("MEMORY|MALLOC-STATS").tips(ALL_SHARDS_SPECIAL),
    extra("MEMORY|PURGE").tips(ALL_SHARDS_OK),
    extra("MEMORY|STATS").tips(ALL_SHARDS_SPECIAL),
    extra("MEMORY|USAGE").keys(&[key(2, "RO")]),
    extra("MGET").tips(&["request_policy:multi_shard"]),
    extra("MIGRATE").categories(DANGEROUS).tips(CHANGES).keys(MIGRATED).secret(|args, at| {
        let follows = |words: usize, name| at > words && args.is(at - words, name);
        follows(1, "AUTH") || follows(1, "AUTH2") || follows(2, "AUTH2")
    }),
    extra("MOVE").databases(DatabaseArgs::One(2)),
    extra("MSET").tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .keys(&[range(1, -1, 2, "OW update")]),
    extra("MSETEX").tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .keys(&[KeySpec { find: Find::Counted { step: 2 }, ..key(1, "OW update") }]),
    extra("MSETNX").keys(&[range(1, -1, 2, "OW insert")]),
    extra("OBJECT|ENCODING").tips(CHANGES).keys(&[key(2, "RO")]),
    extra("OBJECT|FREQ").tips(CHANGES).keys(&[key(2, "RO")]),
    extra("OBJECT|IDLETIME").tips(CHANGES).keys(&[key(2, "RO")]),
    extra("OBJECT|REFCOUNT").tips(CHANGES).keys(&[key(2, "RO")]),
    extra("PERSIST").keys(&[key(1, "RW update")]),
    extra("PEXPIRE").keys(&[key(1, "RW update")]),
    extra("PEXPIREAT").keys(&[key(1, "RW update")]),
    extra("PFADD").keys(&[key(1, "RW insert")]),
    extra("PFCOUNT").keys(&[PFCOUNT_KEYS]),
    extra("PFDEBUG").keys(&[key(2, "RW access")]),
    extra("PFMERGE").keys(&[key(1, "RW access insert"), rest(2, "RO access")]),
    extra("PING").tips(ALL_SHARDS_OK),
    extra("PSETEX").keys(&[key(1, "OW update")]),
    extra("PSUBSCRIBE").channels(ChannelArgs::Patterns),
    extra("PTTL").tips(CHANGES),
    extra("PUBLISH").channels(ChannelArgs::First),
    extra("RANDOMKEY")
        .tips(&["request_policy:all_shards", "response_policy:special", "nondeterministic_output"]),
    extra("RENAME").keys(&[key(1, "RW access delete"), key(2, "OW update")]),
    extra("RENAMENX").keys(&[key(1, "RW access delete"), key(2, "OW insert")]),
    extra("RESTORE").categories(DANGEROUS).keys(&[key(1, "OW update")]),
    extra("RESTORE-ASKING").categories(DANGEROUS).keys(&[key(1, "OW update")]),
    extra("ROLE").categories(FOR_OPERATORS),
    extra("RPOP").keys(&[key(1, "RW access delete")]),
    extra("RPOPLPUSH").keys(&[key(1, "RW access delete"), key(2, "RW insert")]),
    extra("RPUSH").keys(&[key(1, "RW insert")]),
    extra("RPUSHX").keys(&[key(1, "RW insert")]),
    extra("SADD").keys(&[key(1, "RW insert")]),
    extra("SCAN")
        .tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"]),
    extra("SCARD").keys(&[key(1, "RO")]),
    extra("SCRIPT|EXISTS").tips(&["request_policy:all_shards", "response_policy:agg_logical_and"]),
    extra("SCRIPT|FLUSH").tips(ALL_NODES_OK),
    extra("SCRIPT|KILL").tips(ONE_OK),
    extra("SCRIPT|LOAD").tips(ALL_NODES_OK),
    extra("SDIFF").tips(CHANGES_ORDER),
    extra("SDIFFSTORE").keys(STORED_SET),
    extra("SELECT").databases(DatabaseArgs::One(1)),
    extra("SET").keys(&[SET_KEY]),
    extra("SETEX").keys(&[key(1, "OW update")]),
    extra("SETNX").keys(&[key(1, "OW insert")]),
    extra("SETRANGE").keys(&[key(1, "RW update")]),
    extra("SINTER").tips(CHANGES_ORDER),
    extra("SINTERSTORE").keys(STORED_SET),
    extra("SISMEMBER").keys(&[key(1, "RO")]),
    extra("SLOWLOG|GET").tips(&["request_policy:all_nodes", "nondeterministic_output"]),
    extra("SLOWLOG|LEN")
        .tips(&["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"]),
    extra("SLOWLOG|RESET").tips(ALL_NODES_OK),
    extra("SMEMBERS").tips(CHANGES_ORDER),
    extra("SMOVE").keys(&[key(1, "RW access delete"), key(2, "RW insert")]),
    extra("SORT").categories(SORTS).keys(&[key(1, "RO access"), BY_AND_GET, STORE]),
    extra("SORT_RO").categories(SORTS).keys(&[key(1, "RO access"), BY_AND_GET]),
    extra("SPOP").tips(CHANGES).keys(&[key(1, "RW access delete")]),
    extra("SPUBLISH").channels(ChannelArgs::First).keys(&[key(1, NOT_A_KEY)]),
    extra("SRANDMEMBER").tips(CHANGES),
    extra("SREM").keys(&[key(1, "RW delete")]),
    extra("SSCAN").tips(CHANGES),
    extra("SSUBSCRIBE").channels(ChannelArgs::All).keys(&[rest(1, NOT_A_KEY)]),
    extra("STRLEN").keys(&[key(1, "RO")]),
    extra("SUBSCRIBE").channels(ChannelArgs::All),
    extra("SUNION").tips(CHANGES_ORDER),
    extra("SUNIONSTORE").keys(STORED_SET),
    extra("SUNSUBSCRIBE").keys(&[rest(1, NOT_A_KEY)]),
    extra("SWAPDB").categories(DANGEROUS).databases(DatabaseArgs::Two(1, 2)),
    extra("TIME").tips(CHANGES),
    extra("TOUCH").tips(EACH_SHARD_SUM).keys(&[rest(1, "RO")]),
    extra("TTL").tips(CHANGES),
    extra("TYPE").keys(&[key(1, "RO")]),
    extra("UNLINK").tips(EACH_SHARD_SUM).keys(&[rest(1, "RM delete")]),
    extra("WAIT").tips(&["request_policy:all_shards", "response_policy:agg_min"]),
    extra("WAITAOF").tips(&["request_policy:all_shards", "response_policy:agg_min"]),
    extra("WATCH").keys(&[rest(1, "RO")]),
    extra("XACK").keys(&[key(1, "RW update")]),
    extra("XACKDEL").keys(&[key(1, "RW update")]),
    extra("XADD").tips(CHANGES).keys(&[
        KeySpec { notes: "an update, not an insert, since it may trim the stream", ..key(1, "RW update") },
    ]),
    extra("XAUTOCLAIM").tips(CHANGES).keys(&[key(1, "RW delete")]),
    extra("XCFGSET").keys(&[key(1, "RW update")]),
    extra("XCLAIM").tips(CHANGES).keys(&[key(1, "RW update")]),
    extra("XDEL").keys(&[key(1, "RW delete")]),
    extra("XDELEX").keys(&[key(1, "RW delete")]),
    extra("XGROUP|CREATE").keys(&[key(2, "RW insert")]),
    extra("XGROUP|CREATECONSUMER").keys(&[key(2, "RW insert")]),
    extra("XGROUP|DELCONSUMER").keys(&[key(2, "RW delete")]),
    extra("XGROUP|DESTROY").keys(&[key(2, "RW delete")]),
    extra("XGROUP|SETID").keys(&[key(2, "RW update")]),
    extra("XIDMPRECORD").keys(&[key(1, "RW update")]),
    extra("XINFO|CONSUMERS").tips(CHANGES),
    extra("XLEN").keys(&[key(1, "RO")]),
    extra("XNACK").keys(&[key(1, "RW update")]),
    extra("XPENDING").tips(CHANGES),
    extra("XREAD").keys(&[streams(1)]),
    extra("XREADGROUP").keys(&[streams(4)]),
    extra("XSETID").keys(&[key(1, "RW update")]),
    extra("XTRIM").tips(CHANGES).keys(&[key(1, "RW delete")]),
    extra("ZADD").keys(&[key(1, "RW update")]),
    extra("ZCARD").keys(&[key(1, "RO")]),
    extra("ZDIFFSTORE").keys(STORED),
    extra("ZINTERSTORE").keys(STORED),
    extra("ZMPOP").keys(&[counted(1, "RW access delete")]),
    extra("ZPOPMAX").keys(&[key(1, "RW access delete")]),
    extra("ZPOPMIN").keys(&[key(1, "RW access delete")]),
    extra("ZRANDMEMBER").tips(CHANGES),
    extra("ZRANGESTORE").keys(&[key(1, "OW update"), key(2, "RO access")]),
    extra("ZREM").keys(&[key(1, "RW delete")]),
    extra("ZREMRANGEBYLEX").keys(&[key(1, "RW delete")]),
    extra("ZREMRANGEBYRANK").keys(&[key(1, "RW delete")]),
    extra("ZREMRANGEBYSCORE").keys(&[key(1, "RW delete")]),
    extra("ZSCAN").tips(CHANGES),
    extra("ZUNIONSTORE").keys(STORED),
];

/// CONFIG SET with a password.
fn is_value_of_a_secret(args: &Args<'_>, at: usize) -> bool {
    at >= 3 && at % 2 == 1 && config::is_secret(args.at(at - 1))
}

/// Whether an argument is to be kept out of logs.
pub fn is_secret(row: &Spec, args: &Args<'_>, at: usize) -> bool {
    find(row.name).is_some_and(|extra| (extra.secret)(args, at))
}

/// The names of the commands with extra facts, sorted.
pub fn names_with_extras() -> impl Iterator<Item = &'static str> {
    EXTRAS.iter().map(|extra| extra.name)
}

fn find(name: &str) -> Option<&'static Extra> {
    EXTRAS.binary_search_by(|extra| extra.name.cmp(name)).ok().map(|at| &EXTRAS[at])
}

/// Whether the row only holds subcommands. COMMAND gives hardly anything for such rows.
pub fn is_container(row: &Spec) -> bool {
    row.has_subcommands() && row.arity.as_i32() == -2
}

/// Returns hints in the words of COMMAND.
pub fn tips(row: &Spec) -> &'static [&'static str] {
    find(row.name).map_or(&[], |extra| extra.tips)
}

/// Returns which of a call's arguments are channels.
pub fn channels(row: &Spec) -> ChannelArgs {
    find(row.name).map_or(ChannelArgs::None, |extra| extra.channels)
}

/// Returns which databases the row uses beside its client's.
pub fn databases(row: &Spec) -> DatabaseArgs {
    find(row.name).map_or(DatabaseArgs::None, |extra| extra.databases)
}

impl DatabaseArgs {
    /// Returns the indices of a call's arguments that name a database, or none if an argument is malformed:
    /// the handler will report that.
    pub fn indices(self, args: &Args<'_>, count: u32) -> Vec<usize> {
        let found = match self {
            DatabaseArgs::None | DatabaseArgs::All => Vec::new(),
            DatabaseArgs::One(at) => vec![at],
            DatabaseArgs::Two(one, two) => vec![one, two],
            DatabaseArgs::Options(first) => options_of_databases(args, first).unwrap_or_default(),
        };
        let is_valid = |at: &usize| args.get(*at).is_some() && args.database(*at, count).is_ok();
        if found.iter().all(is_valid) { found } else { Vec::new() }
    }
}

fn options_of_databases(args: &Args<'_>, first: usize) -> Option<Vec<usize>> {
    let (mut found, mut at) = (Vec::new(), first);
    while at < args.len() {
        if args.is(at, "DB") && at + 1 < args.len() {
            at += 1;
            found.push(at);
        } else if !args.is(at, "REPLACE") {
            return None;
        }
        at += 1;
    }
    Some(found)
}

/// Returns the places of the row's keys.
pub fn key_specs(row: &Spec) -> Vec<KeySpec> {
    match find(row.name) {
        Some(extra) if !extra.keys.is_empty() => extra.keys.to_vec(),
        _ => usual_key_spec(row).into_iter().collect(),
    }
}

fn usual_key_spec(row: &Spec) -> Option<KeySpec> {
    let flags = if row.flags.has(Flags::WRITE) { "RW access update" } else { "RO access" };
    match row.keys {
        _ if row.keys.is_none() => None,
        Keys::Range { first, last, step } => {
            Some(range(first, if last < 0 { last } else { last - first }, step, flags))
        }
        Keys::Counted { at, step } => {
            Some(KeySpec { find: Find::Counted { step: step as i16 }, ..key(at as i16, flags) })
        }
        Keys::Across(_) => Some(key(1, flags)),
    }
}

/// The older form: first key, last key, step; zeros when these depend on the arguments.
pub fn key_range(specs: &[KeySpec]) -> (i16, i16, i16) {
    let mut all: Option<(i16, i16, i16)> = None;
    for spec in specs.iter().filter(|spec| spec.keyword.is_empty()) {
        let Find::Range { last, step } = spec.find else { continue };
        let last = if last < 0 { last } else { spec.first + last };
        all = Some(match all {
            None => (spec.first, last, step),
            Some((first, other, step)) if other < 0 || last < 0 => (first, other.min(last), step),
            Some((first, other, step)) => (first, other.max(last), step),
        });
    }
    all.unwrap_or_default()
}

/// Returns the row's properties in the words of COMMAND, in its order.
pub fn flags(row: &Spec, specs: &[KeySpec]) -> Vec<&'static str> {
    #[rustfmt::skip]
    const NAMES: &[(Flags, &str)] = &[
        (Flags::WRITE,        "write"),
        (Flags::READONLY,     "readonly"),
        (Flags::DENYOOM,      "denyoom"),
        (Flags::ADMIN,        "admin"),
        (Flags::PUBSUB,       "pubsub"),
        (Flags::NOSCRIPT,     "noscript"),
        (Flags::BLOCKING,     "blocking"),
        (Flags::LOADING,      "loading"),
        (Flags::STALE,        "stale"),
        (Flags::SKIP_SLOWLOG, "skip_commandlog"),
        (Flags::ASKING,       "asking"),
        (Flags::FAST,         "fast"),
        (Flags::NO_AUTH,      "no_auth"),
        (Flags::NO_ASYNC_LOADING, "no_async_loading"),
        (Flags::NO_MULTI,     "no_multi"),
    ];
    if is_container(row) {
        return Vec::new();
    }
    let mut flags: Vec<&str> =
        NAMES.iter().filter(|(flag, _)| row.flags.has(*flag)).map(|(_, name)| *name).collect();
    let moves = |spec: &KeySpec| !matches!(spec.find, Find::Range { .. }) || !spec.keyword.is_empty();
    if specs.iter().any(moves) {
        flags.push("movablekeys");
    }
    if row.flags.has(Flags::ALLOW_BUSY) {
        flags.push("allow_busy");
    }
    if row.runs_scripts() {
        flags.extend(["skip_monitor", "no_mandatory_keys"]);
    }
    flags
}

/// All ACL categories, in the order of ACL CAT and COMMAND.
pub const CATEGORIES: &[&str] = &[
    "@keyspace",
    "@read",
    "@write",
    "@set",
    "@sortedset",
    "@list",
    "@hash",
    "@string",
    "@bitmap",
    "@hyperloglog",
    "@geo",
    "@stream",
    "@pubsub",
    "@admin",
    "@fast",
    "@slow",
    "@blocking",
    "@dangerous",
    "@connection",
    "@transaction",
    "@scripting",
    "@array",
];

/// Returns the row's ACL categories, in the order of COMMAND.
pub fn categories(row: &Spec) -> Vec<&'static str> {
    if is_container(row) {
        return vec!["@slow"];
    }
    let mut found: Vec<&str> = find(row.name).map_or(Vec::new(), |extra| extra.categories.to_vec());
    found.extend(row.group.acl_category());
    found.extend(row.flags.has(Flags::WRITE).then_some("@write"));
    let runs_scripts = row.group == crate::Group::Scripting;
    found.extend((row.flags.has(Flags::READONLY) && !runs_scripts).then_some("@read"));
    found.push(if row.flags.has(Flags::FAST) { "@fast" } else { "@slow" });
    found.extend(row.flags.has(Flags::BLOCKING).then_some("@blocking"));
    if row.flags.has(Flags::ADMIN) {
        found.extend(FOR_OPERATORS);
    }
    CATEGORIES.iter().copied().filter(|category| found.contains(category)).collect()
}

/// Calls `key` with the index and the use of each key of a call. Returns false if the call's count is not a
/// number, is too large, contradicts the arguments, or is zero where only scripts may have zero.
pub fn for_each_key(row: &Spec, args: &Args<'_>, mut key: impl FnMut(usize, &'static str)) -> bool {
    let (specs, mut said) = (key_specs(row), Marks::of(args));
    if specs.iter().any(|spec| misleads(spec, args)) {
        let mut found = false;
        row.keys.for_each(args, 0, 1, |index, _| {
            found = true;
            key(index, specs[0].flags);
        });
        return found;
    }
    for spec in specs.into_iter().filter(KeySpec::is_of_keys) {
        let flags = spec.in_call.map_or(spec.flags, |in_call| in_call(args));
        let rule = match spec.find {
            // The word may stand twice, or be another argument: the row's own rule decides.
            _ if !spec.keyword.is_empty() => row.keys,
            Find::Range { last, step } if last < 0 => Keys::Range { first: spec.first, last, step },
            Find::Range { last, step } => Keys::Range { first: spec.first, last: spec.first + last, step },
            Find::Counted { step } => Keys::Counted { at: spec.first as usize, step: step as usize },
            Find::HalfAfter(_) => row.keys,
            Find::Beyond => Keys::NONE,
            Find::Anywhere => row.keys,
        };
        let mut count = 0;
        rule.for_each(args, 0, 1, |index, _| {
            count += 1;
            if said.add(index) {
                key(index, flags);
            }
        });
        let may_be_none = row.group == crate::Group::Scripting && args.int(spec.first as usize) == Ok(0);
        if matches!(spec.find, Find::Counted { .. }) && count == 0 && !may_be_none {
            return false;
        }
    }
    true
}

/// Whether the keyword is among the arguments without being sure to be a keyword (it may be MIGRATE's
/// password), where it would stand for other keys. Then only the row's own rule is right.
pub fn misleads(spec: &KeySpec, args: &Args<'_>) -> bool {
    spec.first < 0 && (1..args.len().saturating_sub(1)).any(|at| args.is(at, spec.keyword))
}
