//! Transcripts of object commands.

use crate::testing::{World, check};
use evenkeel_store::collection::{Collection, Hash, List, Set, ZSet};

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
    let key = server.core.keyspace.key(0, b"k");
    server.core.keyspace.enter(ctx);
    server.core.keyspace.hold_one(ctx, key.place).set_collection(&key, value, form, None);
    server.core.keyspace.leave(ctx);
}

#[test]
fn object_encoding_of_collections() {
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
    for (form, name) in ["listpack", "quicklist"].into_iter().enumerate() {
        set(&mut world, list.clone(), form as u8);
        is(&mut world, name);
    }
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
fn encodings_match_redis() {
    let embedded = "x".repeat(112);
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
        > OBJECT FREQ k
        < -ERR An LFU maxmemory policy is not selected, access frequency not tracked. *
        > object nosuch k          < -ERR unknown subcommand 'nosuch'. Try OBJECT HELP.
        > OBJECT ENCODING          < -ERR wrong number of arguments for 'object|encoding' command
        > OBJECT                   < -ERR wrong number of arguments for 'object' command
        > OBJECT HELP k            < -ERR wrong number of arguments for 'object|help' command
        > OBJECT HELP              < [OBJECT <subcommand> *
    "#
    ));
}

#[test]
fn idletime_and_freq_depend_on_the_policy() {
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
    world.configure("maxmemory-policy", "allkeys-lfu");
    world.check(
        "> OBJECT REFCOUNT k < :1\n > OBJECT IDLETIME k < -ERR An LFU maxmemory policy is selected, idle *",
    );
    world.check("> SET new 1\n > OBJECT FREQ new < :5\n > GET new\n > OBJECT FREQ new < :6");
    world.configure("maxmemory-policy", "allkeys-random");
}

/// With the policies of Redis 8.6, only writes count as use.
#[test]
fn reads_do_not_count_as_modifications() {
    let mut world = World::new();
    world.configure("maxmemory", "100gb");
    world.configure("maxmemory-policy", "allkeys-lrm");
    world.check(
        "
        > MSET k 5 l 5
        > RPUSH list a b                 < :2
        > HSET h f v                     < :1
        ~ 100s
        > GET k                          < \"5\"
        > TOUCH k                        < :1
        > LRANGE list 0 -1               < *
        > OBJECT IDLETIME k              < :100
        > OBJECT IDLETIME list           < :100
        > OBJECT REFCOUNT k              < :1
        > OBJECT FREQ k
        < -ERR An LFU maxmemory policy is not selected, access frequency not tracked. *
        > SET k 6                        < OK
        > OBJECT IDLETIME k              < :0
        > APPEND l 6                     < :2
        > OBJECT IDLETIME l              < :0
        > LREM list 0 nosuch             < :0
        > OBJECT IDLETIME list           < :100
        > LPOP list                      < \"a\"
        > OBJECT IDLETIME list           < :0
        > EXPIRE h 1000                  < :1
        > OBJECT IDLETIME h              < :0
        ~ 10s
        > HSET h f v                     < :0
        > OBJECT IDLETIME h              < :0
        > SET gone v PXAT 1              < OK
        > EXISTS gone                    < :0
    ",
    );
}
