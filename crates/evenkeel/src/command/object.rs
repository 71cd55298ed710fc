//! OBJECT: the representation of a value.
//!
//! Values have other forms than in Redis. Clients and tests query them all the same, so the answers are
//! Redis' answers for the same value with the same history.

use evenkeel_resp::number::parse_i64;
use evenkeel_store::{Access, Kind, Str, View, evict};

use super::{Call, Command, DataHandler, Flags, Group, Keys, container, docs, exactly, read, session};
use crate::command::flow::{Done, Flow};
use crate::error::Error;
use evenkeel_config::{Policy, Settings};

const GROUP: Group = Group::Keyspace;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<DataHandler>] = &[
    container("OBJECT", GROUP, &[
        object ("OBJECT|ENCODING", encoding),
        object ("OBJECT|FREQ",     freq),
        session("OBJECT|HELP",     exactly(2), GROUP, help).scriptable(),
        object ("OBJECT|IDLETIME", idletime),
        object ("OBJECT|REFCOUNT", refcount),
    ]).flags(Flags::NONE),
];

const fn object(name: &'static str, handler: DataHandler) -> Command<DataHandler> {
    read(name, exactly(3), Keys::SECOND, GROUP, handler)
}

/// OBJECT HELP
fn help(call: &mut Call<'_, '_>) -> Done {
    docs::reply_help(call, "OBJECT");
    Ok(Flow::Replied)
}

/// OBJECT ENCODING key
fn encoding(call: &mut Call<'_, '_>) -> Done {
    match call.guard.look(&call.keys[0]).map(encoding_of) {
        Some(encoding) => call.reply.bulk(encoding.as_bytes()),
        None => call.reply.null(),
    }
    Ok(Flow::Replied)
}

/// Returns the form that Redis would keep a value in, as OBJECT ENCODING names it.
pub(crate) fn encoding_of(view: View<'_>) -> &'static str {
    match (view.kind(), view.form()) {
        (Kind::String, _) => encoding_of_string(view),
        (Kind::List, _) => "quicklist",
        (Kind::Set, 0) => "intset",
        (Kind::Set, 1) | (Kind::Hash | Kind::ZSet, 0) => "listpack",
        (Kind::Set | Kind::Hash, _) => "hashtable",
        (Kind::ZSet, _) => "skiplist",
        (Kind::Stream, _) => "stream",
    }
}

fn encoding_of_string(view: View<'_>) -> &'static str {
    /// Longest string that Redis allocates together with its header.
    const EMBEDDED_MAX: usize = 44;
    match view.string() {
        _ if view.is_raw() => "raw",
        Str::Flat(bytes) if !view.is_text() && parse_i64(bytes).is_some() => "int",
        Str::Flat(bytes) if bytes.len() <= EMBEDDED_MAX => "embstr",
        _ => "raw",
    }
}

/// OBJECT FREQ key
fn freq(call: &mut Call<'_, '_>) -> Done {
    let (now, access) = (call.now_ms(), call.guard.ctx.access);
    match (call.guard.look(&call.keys[0]), access) {
        (None, _) => call.reply.null(),
        (Some(view), Access::Lfu { decay_minutes, .. }) => {
            call.reply.int(i64::from(evict::lfu_counter(view.access(), now, decay_minutes)));
        }
        (Some(_), Access::Lru) => return Err(Error::text(NO_FREQUENCY)),
    }
    Ok(Flow::Replied)
}

const NO_FREQUENCY: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
                            when switching between policies at runtime LRU and LFU data will take some time to adjust.";

/// OBJECT IDLETIME key
fn idletime(call: &mut Call<'_, '_>) -> Done {
    let (now, access) = (call.now_ms(), call.guard.ctx.access);
    match (call.guard.look(&call.keys[0]), access) {
        (None, _) => call.reply.null(),
        (Some(view), Access::Lru) => call.reply.int((evict::idle_ms(view.access(), now) / 1000) as i64),
        (Some(_), Access::Lfu { .. }) => return Err(Error::text(NO_IDLE_TIME)),
    }
    Ok(Flow::Replied)
}

const NO_IDLE_TIME: &str = "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching \
                            between policies at runtime LRU and LFU data will take some time to adjust.";

/// OBJECT REFCOUNT key
fn refcount(call: &mut Call<'_, '_>) -> Done {
    match call.guard.look(&call.keys[0]) {
        Some(view) => call.reply.int(refcount_of(view, call.settings)),
        None => call.reply.null(),
    }
    Ok(Flow::Replied)
}

/// As OBJECT REFCOUNT shows it.
pub(crate) fn refcount_of(view: View<'_>, settings: &Settings) -> i64 {
    let sharing = settings.maxmemory == 0 || !tracks_access(settings.maxmemory_policy);
    if sharing && is_small_int(view) { i32::MAX.into() } else { 1 }
}

/// Redis shares a single value among all keys with the same small integer, and then shows no true count of
/// its owners.
fn is_small_int(view: View<'_>) -> bool {
    if view.kind() != Kind::String {
        return false;
    }
    let Str::Flat(bytes) = view.string() else { return false };
    !view.is_raw() && !view.is_text() && parse_i64(bytes).is_some_and(|value| (0..10_000).contains(&value))
}

/// Policies that depend on each key's own history, for which Redis does without shared integers.
fn tracks_access(policy: Policy) -> bool {
    matches!(policy, Policy::AllkeysLru | Policy::AllkeysLfu | Policy::VolatileLru | Policy::VolatileLfu)
}

#[cfg(test)]
mod tests {
    use evenkeel_store::collection::{Collection, Hash, List, Set, ZSet};

    use crate::testing::{World, check};

    /// A key's frequency of use stays with it, whatever replaces its value.
    #[test]
    fn results_keep_the_frequency_of_their_key() {
        check(
            "
            > CONFIG SET maxmemory-policy allkeys-lfu   < OK
            > CONFIG SET lfu-log-factor 0               < OK
            > SADD a x                                  < :1
            > SADD d y                                  < :1
            > SMEMBERS d                                < *
            > SMEMBERS d                                < *
            > OBJECT FREQ d                             < :7
            > SUNIONSTORE d a                           < :1
            > OBJECT FREQ d                             < :8
            > ZADD z 1 a                                < :1
            > ZADD y 1 b                                < :1
            > ZUNIONSTORE y 1 z                         < :1
            > OBJECT FREQ y                             < :6
            > MSET s abc t abc                          < OK
            > GET t                                     < *
            > BITOP NOT t s                             < :3
            > OBJECT FREQ t                             < :7
            > RPUSH l 1 2                               < :2
            > RPUSH k 3                                 < :1
            > SORT l STORE k                            < :2
            > OBJECT FREQ k                             < :6
        ",
        );
    }

    /// Sets the key `k` to a collection of this form.
    fn set<T: Collection>(world: &mut World, value: T, form: u8) {
        let (server, ctx) = (world.server.clone(), &mut world.workers[0].ctx);
        let key = server.keyspace.key(0, b"k");
        server.keyspace.enter(ctx);
        server.keyspace.hold_one(ctx, key.place).set_collection(&key, value, form, None);
        server.keyspace.leave(ctx);
    }

    #[test]
    fn collections_are_called_by_their_form() {
        let (mut world, hasher) = (World::new(), evenkeel_store::Hasher::default());
        let (mut list, mut members) = (List::new(), Set::new());
        let (mut hash, mut sorted) = (Hash::new(), ZSet::new());
        list.push_back(b"element");
        members.insert(&hasher, b"member");
        hash.set(&hasher, 0, b"field", b"value", evenkeel_store::Expire::Clear);
        sorted.insert(&hasher, b"member", 1.0);
        let is = |world: &mut World, name: &str| {
            world.check(&format!("> OBJECT ENCODING k < \"{name}\"\n > OBJECT REFCOUNT k < :1"));
            world.check(&format!(
                "> DEBUG OBJECT k < Value at:* refcount:1 encoding:{name} serializedlength:* lru:*"
            ));
            world.check("> MEMORY USAGE k SAMPLES 3 < :*\n > OBJECT IDLETIME k < :0");
        };
        set(&mut world, list, 0);
        is(&mut world, "quicklist");
        for (form, name) in ["intset", "listpack", "hashtable"].into_iter().enumerate() {
            set(&mut world, members.clone(), form as u8);
            is(&mut world, name);
        }
        for (form, name) in ["listpack", "hashtable"].into_iter().enumerate() {
            set(&mut world, hash.clone(), form as u8);
            is(&mut world, name);
        }
        for (form, name) in ["listpack", "skiplist"].into_iter().enumerate() {
            set(&mut world, sorted.clone(), form as u8);
            is(&mut world, name);
        }
    }

    #[test]
    fn encodings_are_those_of_redis() {
        let embedded = "x".repeat(44);
        check(&format!(
            r#"
            > OBJECT ENCODING k        < (nil)
            > OBJECT REFCOUNT k        < (nil)
            > OBJECT IDLETIME k        < (nil)
            > OBJECT FREQ k            < (nil)
            > SET k -9223372036854775808
            > OBJECT ENCODING k        < "int"
            > OBJECT REFCOUNT k        < :1
            > SET k 9999
            > OBJECT REFCOUNT k        < :2147483647
            > SET k 10000
            > OBJECT REFCOUNT k        < :1
            > SET k 9223372036854775808
            > OBJECT ENCODING k        < "embstr"
            > SET k 007
            > OBJECT ENCODING k        < "embstr"
            > SET k ""
            > OBJECT ENCODING k        < "embstr"
            > SET k {embedded}
            > OBJECT ENCODING k        < "embstr"
            > SET k {embedded}x
            > OBJECT ENCODING k        < "raw"
            > OBJECT REFCOUNT k        < :1
            > OBJECT IDLETIME k        < :0
            > OBJECT FREQ k            < -ERR An LFU maxmemory policy is not selected, access frequency not tracked. *
            > object nosuch k          < -ERR unknown subcommand 'nosuch'. Try OBJECT HELP.
            > OBJECT ENCODING          < -ERR wrong number of arguments for 'object|encoding' command
            > OBJECT                   < -ERR wrong number of arguments for 'object' command
            > OBJECT HELP k            < -ERR wrong number of arguments for 'object|help' command
            > OBJECT HELP              < [OBJECT <subcommand> *
        "#
        ));
    }

    #[test]
    fn what_is_told_depends_on_the_policy() {
        let mut world = World::new();
        world.check(
            "> SET k 5\n > SET l 5\n ~ 100s\n > OBJECT IDLETIME k < :100\n > TYPE k\n > EXISTS k\n > TTL k",
        );
        world.check(
            "> OBJECT IDLETIME k < :100\n > TOUCH k\n > OBJECT IDLETIME k < :0\n > OBJECT IDLETIME l < :100",
        );
        world.check(
            "> EXPIRE l 1000\n > OBJECT IDLETIME l < :0\n ~ 10s\n > RENAME l m\n > OBJECT IDLETIME m < :0",
        );
        world.configure("maxmemory", "100gb");
        world.check("> OBJECT REFCOUNT k < :2147483647");
        world.configure("maxmemory-policy", "allkeys-lfu");
        world.check("> OBJECT REFCOUNT k < :1\n > OBJECT IDLETIME k < -ERR An LFU maxmemory policy is selected, idle *");
        world.check("> SET new 1\n > OBJECT FREQ new < :5\n > GET new\n > OBJECT FREQ new < :6");
        world.configure("maxmemory-policy", "allkeys-random");
        world.check("> OBJECT REFCOUNT k < :2147483647");
    }
}
