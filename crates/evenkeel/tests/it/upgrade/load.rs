//! Upgrades under load: every reply is checked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::{Server, must_upgrade, start};
use crate::Ends;

/// Counts up in pipelines from one client, and checks each reply against the number that the client expects.
fn write_and_check(server: &Server, number: usize, ends: &AtomicBool, longest_us: &AtomicU64) -> u64 {
    let mut client = server.connect();
    let (mut count, key) = (0_u64, format!("counter:{number}"));
    while !ends.load(Relaxed) {
        let began = Instant::now();
        let commands: Vec<Vec<String>> = (0..8)
            .map(|_| vec!["INCR".to_owned(), key.clone()])
            .chain([vec!["GET".to_owned(), key.clone()]])
            .collect();
        let replies = client.pipeline(&commands);
        for reply in &replies[..8] {
            count += 1;
            assert_eq!(reply.to_string(), format!(":{count}"), "client {number}");
        }
        assert_eq!(replies[8].to_string(), format!("\"{count}\""));
        longest_us.fetch_max(began.elapsed().as_micros() as u64, Relaxed);
    }
    count
}

fn run(args: &[&str], clients: usize, upgrades: usize) -> Server {
    let server = start(args);
    let (ends, longest_us) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ends = Ends(&ends);
        let threads: Vec<_> = (0..clients)
            .map(|number| {
                let (server, ends, longest_us) = (&server, &ends, &longest_us);
                scope.spawn(move || write_and_check(server, number, ends, longest_us))
            })
            .collect();
        for _ in 0..upgrades {
            std::thread::sleep(Duration::from_millis(100));
            print!("{}", must_upgrade(&server));
        }
        ends.store(true, Relaxed);
        for (number, thread) in threads.into_iter().enumerate() {
            let count = thread.join().expect("no reply is wrong");
            let value = server.connect().run(&format!("GET counter:{number}")).to_string();
            assert_eq!(value, format!("\"{count}\""));
        }
    });
    println!("longest pipeline: {} us", longest_us.load(Relaxed));
    server
}

#[test]
fn no_reply_is_lost_or_wrong() {
    run(&["--threads", "2"], 20, 5);
}

#[test]
fn the_append_only_file_goes_on() {
    for policy in ["always", "everysec"] {
        let args = ["--threads", "2", "--appendonly", "yes", "--appendfsync", policy];
        let mut server = run(&args, 8, 4);
        let before = server.connect().run("MGET counter:0 counter:1 counter:2 counter:3").to_string();
        assert!(server.stop().success());
        server.start_again();
        assert_eq!(server.connect().run("MGET counter:0 counter:1 counter:2 counter:3").to_string(), before);
    }
}

/// Expired keys do not come back, and deadlines stay.
#[test]
fn deadlines_and_types_stay() {
    let server = start(&["--threads", "2", "--enable-debug-command", "yes"]);
    let mut client = server.connect();
    client.run("SET gone x PX 1");
    client.run("SET stays x EX 1000");
    client.run("RPUSH list a b c");
    client.run("SADD set 1 2 3 x");
    client.run("ZADD zset 1 a 2.5 b");
    client.run("HSET hash f v g w");
    client.run("HEXPIRE hash 1000 FIELDS 1 f");
    client.run("XADD stream 1-1 a b");
    client.run("XGROUP CREATE stream group 0");
    client.run("XREADGROUP GROUP group me STREAMS stream >");
    client.run("PFADD hll a b c");
    client.run("SETRANGE rope 100000 x");
    std::thread::sleep(Duration::from_millis(10));
    let digest = client.run("DEBUG DIGEST").to_string();
    must_upgrade(&server);
    assert_eq!(client.run("DEBUG DIGEST").to_string(), digest);
    assert_eq!(client.run("GET gone").to_string(), "(nil)");
    let ttl = client.run("TTL stays").to_string().trim_start_matches(':').parse::<u64>().expect("a number");
    assert!((900..=1000).contains(&ttl));
    assert!(client.run("XPENDING stream group").to_string().starts_with("[:1"));
}
