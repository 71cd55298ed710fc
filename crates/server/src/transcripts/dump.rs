//! Transcripts of dump commands.

use crate::testing::World;
use evenkeel_command::value_codec::{self, Origin};
use evenkeel_rdb::{Encoder, Group, Id, Info, NodeLimits, Version};
use evenkeel_testkit::Target;
use evenkeel_testkit::payload::seal;

/// `hello`, as Redis 7.0 dumps it.
const HELLO: &str = r#""\x00\x05hello\n\x00cr\xdfve4 \n""#;

fn check_with_payload(text: &str) {
    World::new().check(&text.replace("HELLO", HELLO));
}

#[test]
fn dump_and_restore_round_trip() {
    check_with_payload(
        "
        > SET k hello                        < OK
        > DUMP k                             < HELLO
        > DUMP nosuch                        < (nil)
        > RESTORE new 0 HELLO                < OK
        > GET new                            < \"hello\"
        > TTL new                            < :-1
        > RESTORE new 0 HELLO                < -BUSYKEY Target key name already exists.
        > SET new other EX 100               < OK
        > RESTORE new 0 HELLO replace        < OK
        > GET new                            < \"hello\"
        > TTL new                            < :-1
        > RPUSH list 1                       < :1
        > RESTORE list 0 HELLO REPLACE       < OK
        > TYPE list                          < string
        ",
    );
}

#[test]
fn a_time_to_live_is_relative_or_absolute() {
    check_with_payload(
        "
        > RESTORE a 100000 HELLO             < OK
        > PTTL a                             < :*
        > TTL a                              < :100
        > RESTORE b 4102444800000 HELLO ABSTTL   < OK
        > PEXPIRETIME b                      < :4102444800000
        > RESTORE b 1000 HELLO ABSTTL REPLACE    < OK
        > EXISTS b                           < :0
        > RESTORE c 1 HELLO ABSTTL           < OK
        > EXISTS c                           < :0
        > RESTORE d 0 HELLO ABSTTL           < OK
        > TTL d                              < :-1
        ",
    );
}

/// Redis and Valkey take such a deadline to be in the past, and lose the key.
#[test]
fn restore_refuses_deadlines_out_of_range() {
    let mut world = World::new();
    world.run("SET k kept");
    let payload = world.call(&[b"DUMP".to_vec(), b"k".to_vec()]).expect("a reply");
    let payload = payload.as_bytes().expect("a payload").to_vec();
    for ttl in ["9223372036854775807", "9223372036854775000"] {
        let words = [b"RESTORE", &b"k"[..], ttl.as_bytes(), &payload, b"REPLACE"];
        let reply = world.call(&words.map(<[u8]>::to_vec)).expect("a reply").to_string();
        assert_eq!(reply, "-ERR invalid expire time in 'restore' command");
        let words = [b"RESTORE", &b"k2"[..], ttl.as_bytes(), &payload, b"ABSTTL", b"REPLACE"];
        assert_eq!(world.call(&words.map(<[u8]>::to_vec)).expect("a reply").to_string(), "OK");
    }
    assert_eq!(world.run("GET k"), "\"kept\"");
    assert_eq!(world.run("GET k2"), "\"kept\"");
    world.verify();
}

#[test]
fn refused_restores_change_nothing() {
    check_with_payload(
        "
        > SET there 1                        < OK
        > RESTORE there -1 HELLO             < -BUSYKEY Target key name already exists.
        > RESTORE there -1 HELLO REPLACE     < -ERR Invalid TTL value, must be >= 0
        > RESTORE k soon HELLO               < -ERR value is not an integer or out of range
        > RESTORE k -1 HELLO                 < -ERR Invalid TTL value, must be >= 0
        > RESTORE k 0 HELLO NX               < -ERR syntax error
        > RESTORE k 0 HELLO IDLETIME         < -ERR syntax error
        > RESTORE k 0 HELLO IDLETIME -1      < -ERR Invalid IDLETIME value, must be >= 0
        > RESTORE k 0 HELLO IDLETIME x       < -ERR value is not an integer or out of range
        > RESTORE k 0 HELLO FREQ             < -ERR syntax error
        > RESTORE k 0 HELLO FREQ -1          < -ERR Invalid FREQ value, must be >= 0 and <= 255
        > RESTORE k 0 HELLO FREQ 256         < -ERR Invalid FREQ value, must be >= 0 and <= 255
        > RESTORE k 0 HELLO FREQ 1 IDLETIME 1    < -ERR syntax error
        > RESTORE k 0 HELLO IDLETIME 1 FREQ 1    < -ERR syntax error
        > RESTORE k 0                        < -ERR wrong number of arguments for 'restore' command
        > RESTORE k 0 hello                  < -ERR DUMP payload version or checksum are wrong
        > RESTORE k 0 ''                     < -ERR DUMP payload version or checksum are wrong
        > RESTORE there 0 hello REPLACE      < -ERR DUMP payload version or checksum are wrong
        > GET there                          < \"1\"
        > DBSIZE                             < :1
        ",
    );
}

#[test]
fn restore_sets_idle_time_and_frequency() {
    check_with_payload(
        "
        > RESTORE a 0 HELLO IDLETIME 1000    < OK
        > OBJECT IDLETIME a                  < :1000
        > CONFIG SET maxmemory-policy allkeys-lfu    < OK
        > RESTORE b 0 HELLO FREQ 100         < OK
        > OBJECT FREQ b                      < :100
        > RESTORE c 0 HELLO IDLETIME 1000    < OK
        ",
    );
}

#[test]
fn a_transaction_restores_and_dumps() {
    check_with_payload(
        "
        > MULTI                              < OK
        > RESTORE k 0 HELLO                  < QUEUED
        > DUMP k                             < QUEUED
        > RESTORE k 0 HELLO                  < QUEUED
        > RESTORE k 0 hello REPLACE          < QUEUED
        > EXEC
        < [OK, HELLO, -BUSYKEY Target key name already exists., -ERR DUMP payload version or checksum are \
            wrong]
        > WATCH k                            < OK
        > MULTI                              < OK
        b> RESTORE k 0 HELLO REPLACE         < OK
        > EXEC                               < (nil array)
        ",
    );
}

/// Values that are all large enough for another thread, alone and in a transaction, where they are handled in
/// place.
#[test]
fn large_values_are_offloaded() {
    let mut world = World::new();
    let long_before = world.server.offload.total();
    let noise =
        |len: usize| (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect();
    world.call(&[b"SET".to_vec(), b"string".to_vec(), noise(5_000_000)]).expect("a reply");
    for part in 0..30 {
        let numbers: Vec<String> = (0..1000).map(|n| (part * 1000 + n).to_string()).collect();
        let numbers = numbers.join(" ");
        world.run(&format!("RPUSH list {numbers}"));
        world.run(&format!("SADD set {numbers}"));
    }
    // Few elements, but long elements.
    world.call(&[b"HSET".to_vec(), b"hash".to_vec(), b"f".to_vec(), noise(1_000_000)]).expect("a reply");
    assert_eq!(world.server.offload.total(), long_before);
    for key in ["string", "list", "set", "hash"] {
        let dump = world.call(&[b"DUMP".to_vec(), key.into()]);
        let payload = dump.expect("a reply").as_bytes().expect("a payload").to_vec();
        let restore = |name: &str| vec![b"RESTORE".to_vec(), name.into(), b"0".to_vec(), payload.clone()];
        assert_eq!(world.call(&restore("copy")).expect("a reply").to_string(), "OK");
        assert_eq!(world.run("DEBUG DIGEST-VALUE copy"), world.run(&format!("DEBUG DIGEST-VALUE {key}")));
        assert_eq!(
            world.call(&restore("copy")).expect("a reply").to_string(),
            "-BUSYKEY Target key name already exists."
        );
        world.run("MULTI");
        world.call(&restore("again")).expect("a reply");
        world.run(&format!("DUMP {key}"));
        assert!(world.run("EXEC").starts_with("[OK, "));
        assert_eq!(world.run("STRLEN nosuch"), ":0");
        world.run("DEL copy again");
    }
    assert!(world.server.offload.total() >= long_before + 8, "{}", world.server.offload.total());
    world.verify();
}

/// The version is the lowest that has all of the value.
#[test]
fn payloads_use_the_oldest_possible_version() {
    let mut world = World::new();
    let mut version = |lines: &[&str]| {
        world.run("DEL k");
        lines.iter().for_each(|line| {
            let reply = world.run(line);
            assert!(!reply.starts_with('-'), "{line}: {reply}");
        });
        let dump = world.call(&[b"DUMP".to_vec(), b"k".to_vec()]).expect("a reply");
        let payload = dump.as_bytes().expect("a payload");
        payload[payload.len() - 10]
    };
    assert_eq!(version(&["SET k v"]), 10);
    assert_eq!(version(&["SADD k a b"]), 10);
    assert_eq!(version(&["HSET k a 1"]), 10);
    assert_eq!(version(&["HSET k a 1 b 2", "HEXPIRE k 1000 FIELDS 1 a"]), 80);
    assert_eq!(version(&["HSET k a 1 b 2", "HEXPIRE k 1000 FIELDS 1 a", "HPERSIST k FIELDS 1 a"]), 10);
    let stream = ["XADD k 1-0 a 1", "XGROUP CREATE k g 0", "XREADGROUP GROUP g c STREAMS k >"];
    assert_eq!(version(&stream), 10);
    assert_eq!(version(&[&stream[..], &["XGROUP CREATECONSUMER k g idle"]].concat()), 11);
}

#[test]
fn malformed_payloads_are_refused() {
    let mut world = World::new();
    for body in [
        &b""[..],
        b"\x00\x05hel",
        b"\x00\x05hello!",
        b"\x02\x00",
        b"\x06\x00",
        b"\xff",
        b"\x04\x02\x01f\x01v\x01f\x01w",
    ] {
        let args = [b"RESTORE".to_vec(), b"k".to_vec(), b"0".to_vec(), seal(body, 10)];
        let reply = world.call(&args).expect("a reply").to_string();
        assert_eq!(reply, "-ERR Bad data format", "{}", body.escape_ascii());
    }
    assert_eq!(world.run("DBSIZE"), ":0");
}

/// Payloads of type, version and bytes that Valkey 9.1 refuses with `sanitize-dump-payload yes`.
#[test]
fn payloads_that_confuse_other_servers_are_refused() {
    const ID: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
    const TIME: &[u8] = &[0x2a, 0x4c, 0xaa, 0x9a, 0x7d, 1, 0, 0];
    let group = |pending: &[u8], consumers: &[u8]| {
        [b"\x0f\x00\x00\x02\x02\x01\x01g\x00\x00", pending, consumers].concat()
    };
    let pending = [b"\x01", ID, TIME, b"\x01"].concat();
    let payloads: [(&str, Vec<u8>); 7] = [
        ("an overlong length of a field", b"\x09\x0c\x01\xfe\x01\0\0\0f\x01\0v\xff".to_vec()),
        ("a length that wraps around", b"\x09\x0c\x01\x03foo\xfe\xff\xff\xff\xff\x01\xff".to_vec()),
        ("an empty list node", b"\x12\x01\x01\0".to_vec()),
        ("an empty list node before another", b"\x12\x02\x01\0\x01\x01a".to_vec()),
        ("two consumers of a name", group(b"\0", &[b"\x02\x01c", TIME, b"\0\x01c", TIME, b"\0"].concat())),
        ("an entry that is pending twice", group(&pending, &[b"\x01\x01c", TIME, b"\x02", ID, ID].concat())),
        ("fields that do not ascend by expiry", fields_by_expiry([2, 1])),
    ];
    let mut world = World::new();
    for (what, body) in payloads {
        let args = [b"RESTORE".to_vec(), b"k".to_vec(), b"0".to_vec(), seal(&body, 11)];
        assert_eq!(world.call(&args).expect("a reply").to_string(), "-ERR Bad data format", "{what}");
    }
    let owned = group(&pending, &[b"\x01\x01c", TIME, b"\x01", ID].concat());
    for (what, body) in [("a pending entry", owned), ("fields that ascend", fields_by_expiry([1, 2]))] {
        let args = [&b"RESTORE"[..], b"k", b"0", &seal(&body, 11), b"REPLACE"].map(<[u8]>::to_vec);
        assert_eq!(world.call(&args).expect("a reply").to_string(), "OK", "{what}");
    }
    world.verify();
}

/// A hash of Redis 7.4 with two fields that expire in the year 2100, so many milliseconds later.
fn fields_by_expiry(after: [u64; 2]) -> Vec<u8> {
    const FAR_MS: u64 = 4_102_444_800_000;
    let mut block = vec![0; 6];
    for (name, after) in [b'f', b'g'].into_iter().zip(after) {
        block.extend_from_slice(&[0x81, name, 2, 0x81, b'v', 2, 0xf4]);
        block.extend_from_slice(&(FAR_MS + after).to_le_bytes());
        block.push(9);
    }
    block.push(0xff);
    let len = block.len() as u8;
    block[0] = len;
    block[4] = 6;
    [&[25][..], &FAR_MS.to_le_bytes(), &[len], &block].concat()
}

/// A payload of a later version is read on request. Redis' versions are known up to 14.
#[test]
fn unknown_versions_are_read_if_the_check_is_relaxed() {
    let mut world = World::new();
    let restore = |world: &mut World, version: u16| {
        let args = [&b"RESTORE"[..], b"k", b"0", &seal(b"\x00\x03bar", version), b"REPLACE"];
        world.call(&args.map(<[u8]>::to_vec)).expect("a reply").to_string()
    };
    const WRONG: &str = "-ERR DUMP payload version or checksum are wrong";
    let versions = [(0, false), (14, true), (15, false), (79, false), (81, true), (82, false), (222, false)];
    for (version, is_known) in versions {
        assert_eq!(restore(&mut world, version), if is_known { "OK" } else { WRONG }, "{version}");
    }
    world.run("CONFIG SET rdb-version-check relaxed");
    for (version, _) in &versions[1..] {
        assert_eq!(restore(&mut world, *version), "OK", "{version}");
    }
    assert_eq!(restore(&mut world, 0), WRONG);
    world.verify();
}

/// A stream of a single node, in which all entries share a name that is written once.
fn stream_that_shares(name_len: usize, entries: u64) -> Vec<u8> {
    let name = vec![b'n'; name_len];
    let mut encoder = Encoder::new(Vec::new(), Version::V10).without_compression();
    let limits = NodeLimits { bytes_max: usize::MAX, entries_max: u64::MAX };
    let mut writer = encoder.stream(limits, Some(1));
    for ms in 1..=entries {
        writer.entry(Id { ms, seq: 0 }, &[(name[..].into(), (&b""[..]).into())]);
    }
    let last_id = Id { ms: entries, seq: 0 };
    let info = Info { length: entries, last_id, entries_added: entries, ..Info::default() };
    writer.finish(&info, [].iter() as std::slice::Iter<'_, Group>);
    seal(&encoder.into_out(), 10)
}

/// Less than 100 KB that expand to 128 MiB are no value; as many entries of a short name are.
#[test]
fn shared_entry_names_do_not_multiply_memory() {
    let mut world = World::new();
    for (name_len, entries, expected) in
        [(64 * 1024, 20, "OK"), (64 * 1024, 2_000, "-ERR Bad data format"), (16, 2_000, "OK")]
    {
        let payload = stream_that_shares(name_len, entries);
        assert!(payload.len() < 100_000, "{}", payload.len());
        let args = [b"RESTORE".to_vec(), b"k".to_vec(), b"0".to_vec(), payload, b"REPLACE".to_vec()];
        let reply = world.call(&args).expect("a reply").to_string();
        assert_eq!(reply, expected, "{entries} entries of {name_len} bytes");
        if expected == "OK" {
            assert_eq!(world.run("XLEN k"), format!(":{entries}"));
        }
    }
    world.verify();
}

/// A server with such a payload has held it in memory, and is trusted: a primary, a file.
#[test]
fn payloads_of_a_primary_may_share_names_of_any_length() {
    let mut world = World::new();
    let payload = stream_that_shares(64 * 1024, 2_000);
    let server = world.server.clone();
    let settings = server.core.settings();
    for (origin, is_read) in [(Origin::Client, false), (Origin::Trusted, true)] {
        let mut decoder = evenkeel_rdb::dump::open(&payload).expect("a whole payload");
        let read = value_codec::read(&mut decoder, &settings, &server.core.keyspace.hasher, (0, origin));
        assert_eq!(read.is_ok(), is_read, "{origin:?}");
    }
    world.verify();
}

/// Our own payloads are accepted: their entries share no names that the store would not share.
#[test]
fn unshared_names_are_written_with_each_entry() {
    let mut world = World::with(&["--stream-node-max-bytes", "0", "--stream-node-max-entries", "10000"]);
    for (name_len, is_shared) in [(1_000, true), (1_100, false), (2_900, false)] {
        world.run("DEL s");
        for n in 1..=50 {
            let args = ["XADD", "s", &format!("1-{n}"), &"x".repeat(name_len), ""];
            world.call(&args.map(|word| word.as_bytes().to_vec())).expect("a reply");
        }
        let reply = world.call(&[b"DUMP".to_vec(), b"s".to_vec()]).expect("a reply");
        let mut decoder =
            evenkeel_rdb::dump::open(reply.as_bytes().expect("a payload")).expect("a whole payload");
        let evenkeel_rdb::Object::Stream(mut entries) = decoder.object().expect("a value") else {
            panic!("a stream")
        };
        while let Some(entry) = entries.next_entry().expect("whole") {
            assert_eq!(entry.shares_names(), is_shared, "{name_len}");
        }
    }
}

/// The unpacked size of the payload decides whether it takes long, not its packed size.
#[test]
fn compressed_large_values_are_offloaded() {
    let mut world = World::new();
    let noise = |len: usize| (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8);
    for (value, is_worth_offloading) in
        [(vec![b'x'; 2_000_000], true), (vec![b'x'; 20_000], false), (noise(20_000).collect(), false)]
    {
        let (len, mut encoder) = (value.len(), Encoder::new(Vec::new(), Version::V10));
        encoder.string((&value[..]).into());
        let payload = seal(&encoder.into_out(), 10);
        assert!(payload.len() < 30_000, "{}", payload.len());
        let before = world.server.offload.total();
        let args = [b"RESTORE".to_vec(), b"k".to_vec(), b"0".to_vec(), payload, b"REPLACE".to_vec()];
        assert_eq!(world.call(&args).expect("a reply").to_string(), "OK");
        assert_eq!(world.server.offload.total() > before, is_worth_offloading, "{len} bytes");
        assert_eq!(world.run("STRLEN k"), format!(":{len}"));
    }
}
