//! Requests that arrive in parts, and prefetching.

use std::sync::Arc;

use super::*;
use crate::testing::World;
use evenkeel_client::clients::ClientInfo;

fn session(world: &World) -> Session {
    let client = ClientInfo::new(1, "test:1".into(), "test:2".into(), -1, false, world.now_ms);
    Session::of_new_connection(Arc::new(client), &world.server.acl)
}

/// A request that arrives in parts, the first of them behind another request: from the second part on, the
/// received arguments are not moved, however many there are.
#[test]
fn long_requests_are_not_moved_with_every_read() {
    const KEYS: usize = 1000;
    let mut world = World::new();
    let (mut session, mut reader) = (session(&world), RequestReader::new());
    let (mut pipeline, mut reply, executor) = (Pipeline::default(), Reply::default(), &mut world.workers[0]);
    let request = format!("*{}\r\n$4\r\nMGET\r\n{}", KEYS + 1, "$1\r\nk\r\n".repeat(KEYS));
    let all = [b"*1\r\n$4\r\nPING\r\n", request.as_bytes()].concat();
    let (ping, mut places) = (all.len() - request.len(), Vec::new());
    for (from, to, used_up) in [
        (0, 4995, ping),
        (ping, 4996, 0),
        (ping, 4997, 0),
        (ping, 4998, 0),
        (ping, all.len() - 1, 0),
        (ping, all.len(), request.len()),
    ] {
        let (mut input, mut used) = (all[from..to].to_vec(), 0);
        let ended =
            pipeline.run(executor, (&mut session, &mut reader), (&mut input, None), &mut used, &mut reply);
        assert_eq!((ended, used), (Ended::Empty, used_up), "up to {to}");
        places.push(reader.args().as_ptr());
    }
    assert!(places[..4].iter().all(|place| *place == places[0]), "they were moved");
    assert_eq!(reply.plain(), Some(format!("+PONG\r\n*{KEYS}\r\n{}", "$-1\r\n".repeat(KEYS)).as_bytes()));
}

/// A request that is alone in its bytes runs as it was parsed ahead. All other bytes are parsed when they
/// run.
#[test]
fn a_lone_request_runs_as_parsed_ahead() {
    let mut world = World::new();
    let (mut session, mut reader) = (session(&world), RequestReader::new());
    let (mut pipeline, executor) = (Pipeline::default(), &mut world.workers[0]);
    let set = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";
    let get = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    let cases = [
        (set, true, "+OK\r\n"),
        (get, true, "$1\r\nv\r\n"),
        ("*1\r\n$4\r\nPING\r\n", true, "+PONG\r\n"),
        ("*1\r\n$3\r\nGET\r\n", true, "-ERR wrong number of arguments for 'get' command\r\n"),
        (&[get, get].concat(), false, "$1\r\nv\r\n$1\r\nv\r\n"),
        ("GET k\r\n", false, "$1\r\nv\r\n"),
        ("*0\r\n", false, ""),
        (&get[..9], false, ""),
        (&get[9..], false, "$1\r\nv\r\n"),
    ];
    let mut inputs: Vec<Vec<u8>> = cases.iter().map(|(bytes, ..)| bytes.as_bytes().to_vec()).collect();
    // The worker does not parse ahead what follows the beginning of a request.
    let (rest, whole) = inputs.split_last_mut().expect("there are cases");
    let parse = |input: &mut Vec<u8>| pipeline.parse_ahead(executor, &session, input);
    let mut ahead: Vec<Option<ParsedAhead>> = whole.iter_mut().map(parse).collect();
    ahead.push(None);
    rest.splice(..0, get[..9].bytes());
    for ((input, ahead), (bytes, is_ahead, expected)) in inputs.iter_mut().zip(ahead).zip(cases) {
        assert_eq!(ahead.is_some(), is_ahead, "{bytes}");
        let (mut used, mut reply) = (0, Reply::default());
        pipeline.run(executor, (&mut session, &mut reader), (input, ahead), &mut used, &mut reply);
        assert_eq!(reply.plain(), Some(expected.as_bytes()), "{bytes}");
    }
}

/// Look-ups in the same large collection are prefetched together. Their replies equal the replies to single
/// requests, whatever stands in between and whatever they change.
#[test]
fn prefetch_changes_no_reply() {
    let mut world = World::new();
    let (mut session, mut reader) = (session(&world), RequestReader::new());
    let (mut pipeline, executor) = (Pipeline::default(), &mut world.workers[0]);
    let mut send = |requests: &[String]| {
        let words = |request: &String| {
            let words: Vec<&str> = request.split(' ').collect();
            let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
            format!("*{}\r\n{bulks}", words.len())
        };
        let (mut input, mut used) = (requests.iter().map(words).collect::<String>().into_bytes(), 0);
        let mut reply = Reply::default();
        let ended =
            pipeline.run(executor, (&mut session, &mut reader), (&mut input, None), &mut used, &mut reply);
        assert_eq!((ended, used), (Ended::Empty, input.len()));
        String::from_utf8(reply.plain().expect("short").to_vec()).expect("text")
    };
    let fill = |number| {
        [format!("HSET h f{number} v{number}"), format!("SADD s f{number}"), format!("ZADD z 1 f{number}")]
    };
    (0..2000).map(fill).for_each(|requests| assert_eq!(send(&requests), ":1\r\n:1\r\n:1\r\n"));
    let looks = |number: usize| {
        let (one, other) = (number * 37 % 2500, number * 91 % 2500);
        [
            format!("HGET h f{one}"),
            format!("HGET h f{other}"),
            format!("HDEL h f{one}"),
            format!("HMGET h f{one} f{other} f{number}"),
            format!("HSET h f{one} v{one} f{other} v{other}"),
            format!("HGET h f{one}"),
            format!("SISMEMBER s f{one}"),
            format!("SMISMEMBER s f{one} f{other} f{number} x"),
            format!("SADD s f{other}"),
            format!("SISMEMBER h f{one}"),
            format!("ZADD z {number} f{one}"),
            format!("ZSCORE z f{one}"),
            format!("ZMSCORE z f{other} f{one} f{number} x"),
            format!("HGET none f{one}"),
            format!("HEXISTS h f{other}"),
        ]
    };
    // The same requests twice: the changes of the first round lead to the state in which the second round
    // begins.
    let all: Vec<String> = (0..300).flat_map(looks).collect();
    send(&all);
    let together = send(&all);
    let apart: String = all.iter().map(|request| send(std::slice::from_ref(request))).collect();
    assert_eq!(together, apart);
    assert!(together.contains("-WRONGTYPE") && together.contains("$5\r\nv1332\r\n"));
}

/// Keys behind a SELECT are prefetched in the database that it selects, if it exists.
#[test]
fn prefetch_follows_select() {
    let mut world = World::new();
    let session = session(&world);
    let executor = &mut world.workers[0];
    for (selects, databases) in [
        (["3", "15", "0"], [3, 15, 0]),
        (["16", "2", "-1"], [0, 2, 2]), // a SELECT that fails changes nothing
        (["1 1", "4294967296", "x"], [0, 0, 0]),
    ] {
        let mut pipeline = Pipeline::default();
        let requests = selects.iter().map(|to| {
            let words: Vec<&str> = ["SELECT"].into_iter().chain(to.split(' ')).collect();
            let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
            format!("*{}\r\n{bulks}*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", words.len())
        });
        let mut bytes = requests.collect::<String>().into_bytes();
        pipeline.parse_batch(executor, &mut bytes, 0, State::start(0), &session);
        let ahead: Vec<usize> =
            pipeline.batch.iter().filter_map(|parts| parts.key).map(|(_, place)| place.db()).collect();
        assert_eq!(ahead, databases, "{selects:?}");
    }
}
