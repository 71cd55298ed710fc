//! Real servers: their files are read here with the content that they show, and they load files written here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_rdb::Version;
use evenkeel_rdb::file::{Access, Checksum, KeyMetadata, ReadLimits, check};
use evenkeel_testkit::random::{Random, fresh_seed};
use evenkeel_testkit::{Client, Program, Reference, Server};

use crate::ask::ask;
use crate::file::{Content, Place, TINY, content, in_version, some_content, written};
use crate::model::{Style, styles};
use crate::servers::newest;

fn start(reference: Reference) -> Option<Server> {
    let program = Program::oracle(reference)?;
    let args =
        ["--enable-debug-command", "yes", "--dir", "{dir}", "--save", "", "--sanitize-dump-payload", "yes"];
    Some(Server::start(&program, &args))
}

fn path(server: &Server) -> PathBuf {
    server.folder().join("dump.rdb")
}

/// Saves, and returns the file.
fn saved(server: &Server, client: &mut Client) -> Vec<u8> {
    assert_eq!(client.run("SAVE").to_string(), "OK");
    std::fs::read(path(server)).expect("it was just saved")
}

#[track_caller]
fn load(server: &Server, client: &mut Client, file: &[u8]) {
    std::fs::write(path(server), file).expect("the folder is there");
    let reply = client.run("DEBUG RELOAD NOSAVE").to_string();
    assert_eq!(reply, "OK", "{}", server.log());
}

fn digest(client: &mut Client) -> String {
    let digest = client.run("DEBUG DIGEST").to_string();
    assert!(digest.len() == 40 && digest != "0".repeat(40), "{digest}");
    digest
}

fn read(file: &[u8]) -> Content {
    let (whole, checksum) =
        content(file, ReadLimits::default()).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(checksum, Checksum::Right);
    if file.len() < 1 << 20 {
        let (pieces, _) = content(file, TINY).expect("it was read before");
        assert!(whole == pieces);
    }
    let report = check(file, Some(file.len() as u64));
    assert!(report.is_sound() && report.lost() == 0, "{:?}", report.failure);
    assert_eq!(report.keys(), whole.keys.len() as u64);
    whole
}

/// Returns the keys without the access times, which servers do not keep.
fn keys(content: Content) -> BTreeMap<Place, (KeyMetadata, crate::model::Value)> {
    let mut keys = content.keys;
    keys.values_mut().for_each(|(metadata, _)| metadata.access = Access::Unknown);
    keys
}

/// The styles that a reference server can read.
fn styles_for(reference: Reference) -> Vec<Style> {
    let versions = [Version::V10, Version::V11, Version::V80];
    let newest = newest(reference);
    versions.into_iter().filter(|version| *version <= newest).flat_map(styles).collect()
}

#[test]
fn files_are_exchanged_with_redis() {
    both_ways(Reference::Redis);
}

#[test]
fn files_are_exchanged_with_redis_8() {
    both_ways(Reference::Redis8);
}

#[test]
fn files_are_exchanged_with_valkey() {
    both_ways(Reference::Valkey);
}

fn both_ways(reference: Reference) {
    let Some(server) = start(reference) else { return };
    let mut client = server.connect();
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for _ in 0..3 {
        let mut before = some_content(&mut random, 80);
        // None of the servers knows arrays.
        let known = newest(reference);
        before.keys.retain(|_, (_, value)| [Version::V10, known].contains(&crate::file::needed(value)));
        for style in styles_for(reference) {
            let checksum = random.chance(50);
            load(&server, &mut client, &written(&before, style, checksum));
            let expected = keys(in_version(before.clone(), style));
            for ((database, key), (metadata, value)) in &expected {
                client.run(&format!("SELECT {database}"));
                let key = std::str::from_utf8(key).expect("it was made of text");
                let expires = client.call(&["PEXPIRETIME", key]).as_int();
                assert_eq!(expires, Some(metadata.expires.map_or(-1, |time| time as i64)), "{key}");
                assert!(ask(&mut client, key) == *value, "{style:?} {key}");
            }
            let after = read(&saved(&server, &mut client));
            assert_eq!(after.functions, before.functions);
            assert!(keys(after) == expected, "{style:?}");
        }
    }
}

/// Every type, at sizes around each change of form, made by the server's own commands.
fn fill(client: &mut Client, reference: Reference) {
    let sizes = [1, 2, 63, 64, 127, 128, 129, 255, 256, 511, 512, 513, 700, 5_000, 20_000];
    let word = |n: usize| format!("element {:x}", n.wrapping_mul(0x9E37_79B1) as u32);
    let mut run = |start: &[&str], elements: &mut dyn Iterator<Item = String>| {
        let mut args: Vec<String> = start.iter().map(|word| (*word).to_owned()).collect();
        args.extend(elements);
        let reply = client.call(&args).to_string();
        assert!(!reply.starts_with('-'), "{start:?}: {reply}");
    };
    for size in sizes {
        let key = |kind: &str| format!("{kind}:{size}");
        run(&["SET", &key("string"), &"abc ".repeat(size)], &mut std::iter::empty());
        run(&["SET", &key("number"), &(size * size * 1_000).to_string()], &mut std::iter::empty());
        run(&["RPUSH", &key("list")], &mut (0..size).map(word));
        run(&["RPUSH", &key("numbers")], &mut (0..size).map(|n| (n * n).to_string()));
        run(&["SADD", &key("set")], &mut (0..size).map(word));
        run(&["SADD", &key("intset")], &mut (0..size).map(|n| (n * 70_000).to_string()));
        run(&["ZADD", &key("zset")], &mut (0..size).flat_map(|n| [(n as f64 / 8.0).to_string(), word(n)]));
        run(&["HSET", &key("hash")], &mut (0..size).flat_map(|n| [word(n), word(!n)]));
        for n in 0..size.min(700) {
            let id = format!("{}-{}", 1 + n / 3, 1 + n % 3);
            run(&["XADD", &key("stream"), &id, "name", &word(n), "other", "7"], &mut std::iter::empty());
        }
        run(&["XGROUP", "CREATE", &key("stream"), "group", "0"], &mut std::iter::empty());
        let count = size.div_ceil(2).to_string();
        let group = ["XREADGROUP", "GROUP", "group", "me", "COUNT", &count, "STREAMS", &key("stream"), ">"];
        run(&group, &mut std::iter::empty());
        if reference == Reference::Valkey {
            run(&["HSET", &key("fields")], &mut (0..size).flat_map(|n| [word(n), word(!n)]));
            let some: Vec<String> = (0..size).step_by(3).map(word).collect();
            let count = some.len().to_string();
            run(&["HPEXPIREAT", &key("fields"), "33177117420000", "FIELDS", &count], &mut some.into_iter());
        }
    }
    run(&["SET", "large"], &mut std::iter::once("0123456789abcdef".repeat(400_000)));
    run(&["PEXPIREAT", "large", "33177117420000"], &mut std::iter::empty());
}

#[test]
fn snapshots_of_redis_survive_being_rewritten() {
    through_us(Reference::Redis, Reference::Redis);
}

#[test]
fn snapshots_of_valkey_survive_being_rewritten() {
    through_us(Reference::Valkey, Reference::Valkey);
}

#[test]
fn snapshots_of_redis_reach_valkey_when_rewritten() {
    through_us(Reference::Redis, Reference::Valkey);
}

/// A file saved by one server is read and written here, and loaded by another: both have the same digest.
fn through_us(from: Reference, to: Reference) {
    let (Some(source), Some(target)) = (start(from), start(to)) else { return };
    let (mut source_client, mut client) = (source.connect(), target.connect());
    fill(&mut source_client, from);
    let expected = digest(&mut source_client);
    let content = read(&saved(&source, &mut source_client));
    for style in styles_for(to) {
        load(&target, &mut client, &written(&content, style, true));
        assert_eq!(digest(&mut client), expected, "{style:?}");
    }
    // The target also starts with the file.
    let mut target = target;
    target.kill();
    std::fs::write(path(&target), written(&content, styles_for(to)[0], true)).expect("the folder is there");
    target.start_again();
    assert_eq!(digest(&mut target.connect()), expected);
}

/// For eviction, a file has each key's last use.
#[test]
fn last_uses_and_frequencies_pass_both_ways() {
    for reference in [Reference::Redis, Reference::Valkey] {
        let Some(server) = start(reference) else { continue };
        let mut client = server.connect();
        let mut content = Content::default();
        let value = crate::model::Value::String(b"v".into());
        client.call(&["CONFIG", "SET", "lfu-decay-time", "0"]); // a minute may end at any moment
        for (policy, key, access) in [
            ("allkeys-lfu", "often", Access::Frequency(200)),
            ("allkeys-lru", "long ago", Access::Idle(100_000)),
        ] {
            client.call(&["CONFIG", "SET", "maxmemory-policy", policy]);
            let metadata = KeyMetadata { expires: None, access };
            content.keys = [((0, key.into()), (metadata, value.clone()))].into();
            load(&server, &mut client, &written(&content, styles(Version::V10)[0], true));
            let after = read(&saved(&server, &mut client));
            let (metadata, _) = &after.keys[&(0, key.into())];
            match metadata.access {
                Access::Frequency(frequency) => assert_eq!((policy, frequency), ("allkeys-lfu", 200)),
                Access::Idle(seconds) => {
                    assert!(policy == "allkeys-lru" && (100_000..100_100).contains(&seconds), "{seconds}");
                }
                Access::Unknown => panic!("{reference:?} writes it under {policy}"),
            }
        }
    }
}

/// Base files of append-only files are RDB files, like the files of cluster nodes.
#[test]
fn base_files_and_files_of_clusters_are_read() {
    for reference in [Reference::Redis, Reference::Valkey] {
        let Some(program) = Program::oracle(reference) else { continue };
        let args = ["--dir", "{dir}", "--appendonly", "yes", "--cluster-enabled", "yes"];
        let server = Server::start(&program, &args);
        let mut client = server.connect();
        client.run("CLUSTER ADDSLOTSRANGE 0 16383");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while client.run("SET k v").to_string() != "OK" {
            assert!(std::time::Instant::now() < deadline, "no cluster: {}", server.log());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let content = read(&saved(&server, &mut client));
        assert!(content.keys.contains_key(&(0, b"k".to_vec())), "{reference:?}");
        let base = server.folder().join("appendonlydir/appendonly.aof.1.base.rdb");
        let content = read(&std::fs::read(base).expect("it starts with one"));
        assert_eq!(content.aux.get("aof-base").map(String::as_str), Some("1"), "{reference:?}");
    }
}

/// Each version is loaded by the servers that the documentation names.
#[test]
fn servers_load_the_documented_versions() {
    for (reference, loads) in
        [(Reference::Redis, [true, false, false]), (Reference::Valkey, [true, true, true])]
    {
        let Some(server) = start(reference) else { continue };
        let mut client = server.connect();
        let mut content = Content::default();
        content
            .keys
            .insert((0, b"k".into()), (KeyMetadata::default(), crate::model::Value::String(b"v".into())));
        for (version, loads) in [Version::V10, Version::V11, Version::V80].into_iter().zip(loads) {
            std::fs::write(path(&server), written(&content, styles(version)[0], true))
                .expect("the folder is there");
            let reply = client.try_call(&["DEBUG", "RELOAD", "NOSAVE"]).map(|reply| reply.to_string());
            assert_eq!(reply.is_ok_and(|reply| reply == "OK"), loads, "{reference:?} {version:?}");
            if !loads {
                break; // a server that cannot load exits
            }
        }
    }
}

/// For more than 16,383 bytes in a packed block Redis writes a byte more than Valkey, and each refuses the
/// other's form. Both forms are read here. Both servers read the form written here, except streams in a
/// version of the other server.
#[test]
fn divergent_lengths_of_redis_and_valkey_pass() {
    use crate::model::Value;
    for reference in [Reference::Redis, Reference::Valkey] {
        let Some(server) = start(reference) else { continue };
        let mut client = server.connect();
        for bound in ["hash-max-listpack-value", "zset-max-listpack-value"] {
            client.call(&["CONFIG", "SET", bound, "100000"]);
        }
        let mut random = Random::new(7);
        for len in 16_375..16_382 {
            let text: Vec<u8> = (0..len).map(|_| b'a' + random.below(26) as u8).collect();
            let item = std::str::from_utf8(&text).expect("letters");
            client.run("FLUSHALL");
            client.call(&["RPUSH", "list", "a", item, "b"]);
            client.call(&["HSET", "hash", "f", item]);
            client.call(&["ZADD", "zset", "1", item]);
            client.call(&["XADD", "stream", "1-1", "f", item]);
            let theirs = read(&saved(&server, &mut client));
            assert_eq!(theirs.keys.len(), 4, "{reference:?} {len}");
            assert_eq!(
                theirs.keys[&(0, b"list".to_vec())].1,
                Value::List(vec![b"a".to_vec(), text.clone(), b"b".to_vec()])
            );
            for style in styles_for(reference) {
                let mut ours = theirs.clone();
                if reference == Reference::Valkey && style.version < Version::V80 && len == 16_378 {
                    ours.keys.remove(&(0, b"stream".to_vec()));
                }
                load(&server, &mut client, &written(&ours, style, true));
                let after = read(&saved(&server, &mut client));
                assert!(keys(after) == keys(in_version(ours, style)), "{reference:?} {len} {style:?}");
            }
        }
    }
}
