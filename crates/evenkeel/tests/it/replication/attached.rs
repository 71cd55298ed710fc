//! Redis and Valkey as replicas of Evenkeel have its data, whatever clients do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Program, Random, Reference, Server};

use super::{REPLICA, assert_same, attach, number, ok, primary, references, replicas, wait_until};
use crate::Ends;
use crate::random::send_random;

/// Not for a server that the test goes on to use, or not replicated.
const LEFT_OUT: &[&str] =
    &["DEBUG", "CONFIG", "SHUTDOWN", "RESET", "CLIENT", "MONITOR", "SUBSCRIBE", "PSUBSCRIBE", "REPLICAOF"];

fn random_commands(reference: Reference) {
    let Some(program) = Program::oracle(reference) else { return };
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let server = primary(&[]);
    let (early, late) = (Server::start(&program, REPLICA), Server::start(&program, REPLICA));
    send_random(&server, reference, seed, 1_500, LEFT_OUT);
    attach(&early, &server);
    assert_same(&server, &early);
    send_random(&server, reference, seed + 1, 3_000, LEFT_OUT);
    assert_same(&server, &early);
    attach(&late, &server);
    send_random(&server, reference, seed + 2, 1_500, LEFT_OUT);
    assert_same(&server, &early);
    assert_same(&server, &late);
}

#[test]
fn redis_follows_random_commands() {
    random_commands(Reference::Redis);
}

#[test]
fn valkey_follows_random_commands() {
    random_commands(Reference::Valkey);
}

/// Transfers between accounts, on several connections at once.
struct Bank {
    accounts: usize,
    ends: AtomicBool,
}

impl Bank {
    fn fill(&self, client: &mut Client, padding: usize) {
        let pad = "x".repeat(padding);
        let names = (0..self.accounts).map(|n| [format!("account:{n}"), "1000".into(), format!("pad:{n}")]);
        let fill: Vec<Vec<String>> = names
            .flat_map(|[account, balance, other]| {
                [vec!["SET".into(), account, balance], vec!["SET".into(), other, pad.clone()]]
            })
            .collect();
        fill.chunks(1_000).for_each(|some| drop(client.pipeline(some)));
    }

    /// Transfers until the end of the test.
    fn transfer(&self, client: &mut Client, random: &mut Random) {
        while !self.ends.load(Relaxed) {
            let (from, to) = (random.below(self.accounts), random.below(self.accounts));
            let amount = random.between(1, 50).to_string();
            let line = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let replies = client.pipeline(&[
                line("MULTI".into()),
                line(format!("DECRBY account:{from} {amount}")),
                line(format!("INCRBY account:{to} {amount}")),
                line(format!("LPUSH log:{} {from}>{to}", from % 7)),
                line(format!("LTRIM log:{} 0 99", from % 7)),
                line(format!("SET timed:{from} {amount} PX {}", 1 + random.below(300))),
                line("EXEC".into()),
            ]);
            assert!(!replies[6].is_error(), "{}", replies[6]);
        }
    }
}

/// The sum over all accounts of a server, at a single point in time.
fn sum(server: &Server, accounts: usize) -> i64 {
    let names = (0..accounts).map(|n| format!("account:{n}"));
    let question: Vec<String> = std::iter::once("MGET".to_owned()).chain(names).collect();
    let reply = server.connect().call(&question);
    let number = |value: &evenkeel_resp::value::Value| {
        let text = value.as_bytes().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("0");
        text.parse::<i64>().expect("a balance")
    };
    reply.as_items().expect("an array").iter().map(number).sum()
}

/// Replicas attach under load; each sees whole transactions only, and all end with equal data.
fn under_load(args: &[&str]) {
    let (server, bank) = (primary(args), Bank { accounts: 2_000, ends: AtomicBool::new(false) });
    let replicas: Vec<Server> = references().into_iter().chain(replicas()).collect();
    bank.fill(&mut server.connect(), 2_000);
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let total = 1_000 * bank.accounts as i64;
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (server, bank) = (&server, &bank);
            scope.spawn(move || bank.transfer(&mut server.connect(), &mut Random::new(seed + writer)));
        }
        let _ends = Ends(&bank.ends);
        for replica in &replicas {
            std::thread::sleep(Duration::from_millis(100));
            attach(replica, &server);
            for _ in 0..5 {
                assert_eq!(sum(replica, bank.accounts), total, "a replica shows half of a transaction");
            }
        }
        std::thread::sleep(Duration::from_millis(300));
    });
    replicas.iter().for_each(|replica| assert_same(&server, replica));
    assert_eq!(sum(&server, bank.accounts), total);
    assert_eq!(number(&server, "sync_full"), replicas.len() as u64, "none needed a second one");
}

#[test]
fn replicas_attach_under_load() {
    under_load(&[]);
}

#[test]
fn replicas_attach_with_an_append_only_file() {
    under_load(&["--appendonly", "yes", "--appendfsync", "everysec"]);
}

/// By a file, with its length announced.
#[test]
fn replicas_attach_by_way_of_the_disk() {
    under_load(&["--repl-diskless-sync", "no"]);
}

/// No client reads the keys that expire, on either side: the primary's sweep removes and replicates them.
#[test]
fn expired_keys_are_removed_by_the_primary() {
    let server = primary(&[]);
    for replica in references() {
        attach(&replica, &server);
        let mut client = server.connect();
        for n in 0..200 {
            ok(&mut client, &format!("SET short:{n} v PX {}", 1 + n));
            ok(&mut client, &format!("SET long:{n} v PX 100000"));
        }
        wait_until("all has expired", || server.connect().run("DBSIZE").as_int() == Some(200));
        assert_same(&server, &replica);
        assert_eq!(replica.connect().run("DBSIZE").as_int(), Some(200));
        ok(&mut client, "FLUSHALL");
    }
}

#[test]
fn evicted_keys_are_removed_at_replicas() {
    let server = primary(&["--maxmemory-policy", "allkeys-lru"]);
    let replicas = references();
    replicas.iter().for_each(|replica| attach(replica, &server));
    let mut client = server.connect();
    let used = server.info("used_memory").parse::<u64>().expect("a number");
    ok(&mut client, &format!("CONFIG SET maxmemory {}", used + (4 << 20)));
    let value = "v".repeat(500);
    let sets: Vec<Vec<String>> =
        (0..20_000).map(|n| vec!["SET".into(), format!("key:{n}"), value.clone()]).collect();
    sets.chunks(100).for_each(|some| drop(client.pipeline(some)));
    assert!(server.info("evicted_keys").parse::<u64>().is_ok_and(|keys| keys > 1_000), "some were evicted");
    // A question takes memory, too.
    ok(&mut client, "CONFIG SET maxmemory 0");
    replicas.iter().for_each(|replica| assert_same(&server, replica));
}

/// Libraries that come with the snapshot, come later, and are deleted.
#[test]
fn functions_match_the_primary() {
    let server = primary(&[]);
    let mut client = server.connect();
    let mut run = |words: &[&str]| {
        let reply = client.call(words);
        assert!(!reply.is_error(), "{words:?}: {reply}");
    };
    let code = |name: &str, result: &str| {
        let function = format!("function_name='{name}', callback=function() return '{result}' end");
        format!("#!lua name={name}\nredis.register_function{{{function}, flags={{'no-writes'}}}}")
    };
    run(&["FUNCTION", "LOAD", &code("early", "1")]);
    let replicas = references();
    replicas.iter().for_each(|replica| attach(replica, &server));
    run(&["FUNCTION", "LOAD", &code("late", "1")]);
    run(&["FUNCTION", "LOAD", "REPLACE", &code("early", "2")]);
    run(&["FUNCTION", "LOAD", &code("gone", "1")]);
    run(&["FUNCTION", "DELETE", "gone"]);
    // The list has no order.
    let listed = |server: &Server| {
        let mut client = server.connect();
        ["early", "late", "gone"].map(|name| {
            let list = client.call(&["FUNCTION", "LIST", "LIBRARYNAME", name, "WITHCODE"]).to_string();
            (list, client.run(&format!("FCALL_RO {name} 0")).to_string())
        })
    };
    for replica in &replicas {
        assert_same(&server, replica);
        assert_eq!(listed(&server), listed(replica));
    }
    assert!(listed(&server)[0].1 == "\"2\"" && listed(&server)[2].1.contains("not found"));
}

/// A script writes several keys, another database, and random data, and a part before it fails.
const SCRIPT: &str = "
    redis.call('INCR', KEYS[1])
    redis.call('SADD', KEYS[2], math.random(1000000), math.random(1000000), 'same')
    redis.call('SPOP', KEYS[2])
    redis.call('XADD', KEYS[3], '*', 'count', redis.call('GET', KEYS[1]))
    redis.call('SET', KEYS[4], redis.call('TIME')[2], 'PX', 10000000)
    redis.call('SELECT', 5)
    redis.call('RPUSH', 'list', ARGV[1])
    redis.call('PEXPIRE', 'list', 10000000)
    redis.pcall('INCR', 'list')
    if ARGV[2] then redis.call('INCR', 'list') end
    return redis.call('LLEN', 'list')";

/// Effects of scripts and functions reach all replicas, also from transactions and from failed scripts.
#[test]
fn effects_of_scripts_and_functions_match_the_primary() {
    let server = primary(&[]);
    let mut client = server.connect();
    let (body, function) =
        (SCRIPT.replace("ARGV", "args").replace("KEYS", "keys"), "redis.register_function");
    let library = format!("#!lua name=lib\n{function}('write', function(keys, args) {body} end)");
    assert_eq!(client.call(&["FUNCTION", "LOAD", &library]).to_string(), "\"lib\"");
    let replicas = replicas();
    replicas.iter().for_each(|replica| attach(replica, &server));
    let sha = client.call(&["SCRIPT", "LOAD", SCRIPT]);
    let sha = String::from_utf8(sha.as_bytes().expect("a name").to_vec()).expect("hexadecimal");
    let ways = [["EVAL", SCRIPT], ["EVALSHA", &sha], ["FCALL", "write"]];
    let keys = ["4", "count", "set", "stream", "timed"];
    for round in 0..10_i64 {
        for (way, number) in ways.iter().zip(1..) {
            let name = format!("{round}.{number}");
            let mut run = |last: &[&str]| client.call(&[&way[..], &keys, last].concat());
            assert_eq!(run(&[&name]).as_int(), Some(9 * round + 3 * number - 2), "{way:?}");
            let failed = run(&[&name, "fail"]).to_string();
            assert!(failed.starts_with("-WRONGTYPE"), "{failed}");
            ok(&mut client, "MULTI");
            ok(&mut client, "INCR n");
            assert_eq!(client.call(&[&way[..], &keys, &[&name]].concat()).to_string(), "QUEUED");
            ok(&mut client, "RPUSH log x");
            ok(&mut client, "EXEC");
        }
    }
    assert_eq!(client.run("GET count").to_string(), "\"90\"");
    for replica in &replicas {
        assert_same(&server, replica);
        let mut client = replica.connect();
        assert_eq!(client.run("GET count").to_string(), "\"90\"");
        assert_eq!(client.run("XLEN stream").as_int(), Some(90));
        assert_eq!(client.run("LLEN log").as_int(), Some(30), "the database is the client's again");
    }
}

/// A replica that sends more than can be read delays no other client either.
#[test]
fn a_replica_that_sends_endlessly_delays_no_client() {
    let (server, replica) = (primary(&[]), primary(&[]));
    attach(&replica, &server);
    let mut chatty = TcpStream::connect(server.address()).expect("it listens");
    chatty.set_write_timeout(Some(Duration::from_secs(5))).expect("not zero");
    chatty.write_all(b"PSYNC ? -1\r\n").expect("it reads");
    wait_until("it is there", || server.info("connected_slaves") == "2");
    let (is_there, ends) = (AtomicBool::new(true), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut talked = Ok(());
            while !ends.load(Relaxed) && talked.is_ok() {
                talked = chatty.write_all(&[b'\n'; 256 * 1024]);
            }
            is_there.store(ends.load(Relaxed), Relaxed);
        });
        let _ends = Ends(&ends);
        let mut client = server.connect();
        for _ in 0..100 {
            ok(&mut client, "INCR n");
            assert_eq!(client.run("WAIT 1 5000").as_int(), Some(1), "the other one has it");
        }
        assert_eq!(server.info("connected_slaves"), "2");
    });
    assert!(is_there.load(Relaxed), "it went on to the end");
    assert_same(&server, &replica);
}

/// A replica that asks for a full sync and reads nothing delays neither clients nor a replica that reads, and
/// is closed when it is too far behind.
#[test]
fn a_replica_that_never_reads_delays_no_client() {
    let server = primary(&["--client-output-buffer-limit", "replica 16mb 0 0"]);
    let mut client = server.connect();
    ok(&mut client, "SET big 0");
    ok(&mut client, "SETRANGE big 3000000 x");
    let mut stalled = server.connect();
    stalled.send(&["SYNC"]).expect("it is read");
    wait_until("it is there", || server.info("connected_slaves") == "1");
    let replicas = references();
    for replica in &replicas {
        attach(replica, &server);
    }
    let value = "v".repeat(100_000);
    for n in 0..500 {
        ok(&mut client, &format!("SET key:{} {value}", n % 10));
    }
    for replica in &replicas {
        assert_same(&server, replica);
    }
    let left = replicas.len().to_string();
    wait_until("it is dropped", || server.info("connected_slaves") == left);
    drop(stalled);
}

/// Messages are sent to replicas, but not written to the append-only file, which keeps data only.
#[test]
fn subscribers_of_a_replica_receive_published_messages() {
    for replica in references() {
        let server = primary(&["--appendonly", "yes", "--appendfsync", "always"]);
        attach(&replica, &server);
        let mut listener = replica.connect();
        ok(&mut listener, "SUBSCRIBE news");
        let mut client = server.connect();
        ok(&mut client, "PUBLISH news one");
        ok(&mut client, "SET k v");
        ok(&mut client, "MULTI");
        ok(&mut client, "PUBLISH news two");
        ok(&mut client, "PUBLISH news three");
        ok(&mut client, "EXEC");
        for message in ["one", "two", "three"] {
            assert_eq!(listener.read().to_string(), format!("[\"message\", \"news\", \"{message}\"]"));
        }
        assert_same(&server, &replica);
        let kept = std::fs::read(server.folder().join("appendonlydir/appendonly.aof.1.incr.aof"));
        let kept = String::from_utf8_lossy(&kept.expect("a file")).into_owned();
        assert!(kept.contains("SET") && !kept.contains("news"), "{kept}");
    }
}

/// Limits the kernel's receive buffer: by default it may grow to `tcp_rmem`, 32 MB on some machines.
pub(super) fn limit_receive_buffer(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_recv_buffer_size(stream, 64 * 1024).expect("set");
}

/// The backlog for a replica that catches up may exceed every limit, as long as the replica reads.
#[test]
fn a_replica_that_stops_reading_while_it_catches_up_is_closed() {
    let limit = ["--client-output-buffer-limit", "replica 8mb 0 0", "--repl-backlog-size", "1mb"];
    let server = primary(&[&limit[..], &["--repl-timeout", "2", "--rdbcompression", "no"]].concat());
    let mut client = server.connect();
    let value = "x".repeat(1 << 20);
    let mut write = |keys: std::ops::Range<usize>| {
        keys.for_each(|key| drop(client.call(&["SET", &format!("key:{key}"), &value])));
    };
    write(0..32);
    for says_that_it_is_there in [false, true] {
        let stream = TcpStream::connect(server.address()).expect("it listens");
        limit_receive_buffer(&stream);
        let mut replica = BufReader::new(stream);
        let asks: &[u8] = if says_that_it_is_there { b"PSYNC ? -1\r\n" } else { b"SYNC\r\n" };
        replica.get_mut().write_all(asks).expect("it reads");
        let mut line = String::new();
        while !line.starts_with('$') {
            line.clear();
            replica.read_line(&mut line).expect("a line");
        }
        // Both the snapshot and the later writes exceed a socket's buffers.
        write(0..32);
        let len = line.trim_end()[1..].parse().expect("a length");
        let taken = std::io::copy(&mut replica.by_ref().take(len), &mut std::io::sink());
        assert_eq!(taken.expect("all of it"), len);
        if says_that_it_is_there {
            // The replica could be loading its snapshot, during which it reads nothing.
            for _ in 0..20 {
                replica.get_mut().write_all(b"\n").expect("it is there");
                std::thread::sleep(Duration::from_millis(200));
            }
            assert_eq!(server.info("connected_slaves"), "1");
            let ack = b"*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$1\r\n0\r\n"; // loaded
            replica.get_mut().write_all(ack).expect("it reads");
        }
        wait_until("it is gone", || {
            if says_that_it_is_there {
                _ = replica.get_mut().write_all(b"\n"); // until it is closed
            }
            server.info("connected_slaves") == "0"
        });
        assert!(server.log().contains("closed for overcoming of output buffer limits"), "{}", server.log());
    }
}
