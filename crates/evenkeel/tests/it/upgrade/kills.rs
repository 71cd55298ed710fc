//! Either process is killed at a random moment of an upgrade. With `appendfsync always` nothing that was
//! acknowledged is lost, whichever is killed; and unless the server itself was killed, a process serves all
//! data.
//!
//! `EVENKEEL_UPGRADE_KILLS` sets the number of kills.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_testkit::Client;
use evenkeel_testkit::random::{Random, fresh_seed};

use super::{Server, kill, start, wait_until};
use crate::Ends;

/// Counts up, and returns the last acknowledged number. The connection may end.
fn count(mut client: Client, ends: &AtomicBool) -> u64 {
    let mut acknowledged = 0;
    while !ends.load(Relaxed) {
        match client.try_call(&["INCR", "counter"]) {
            Ok(reply) if !reply.is_error() => {
                acknowledged = reply.to_string().trim_start_matches(':').parse().expect("a number");
            }
            _ => break,
        }
    }
    acknowledged
}

fn begin_upgrade(server: &Server) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["upgrade", "--port", &server.port().to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program runs")
}

/// The process that the server has started.
fn successor_of(pid: u32) -> Option<u32> {
    let path = format!("/proc/{pid}/task");
    let tasks = std::fs::read_dir(path).ok()?;
    tasks.flatten().find_map(|task| {
        let children = std::fs::read_to_string(task.path().join("children")).ok()?;
        children.split_whitespace().next_back()?.parse().ok()
    })
}

#[test]
fn no_acknowledged_write_is_lost() {
    let kills =
        std::env::var("EVENKEEL_UPGRADE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(12);
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut server = start(&["--threads", "2", "--appendonly", "yes", "--appendfsync", "always"]);
    let mut served = 0;
    for round in 0..kills {
        let before = server.info("process_id").parse::<u32>().expect("a number");
        let ends = AtomicBool::new(false);
        let kills_successor = random.below(2) == 0;
        let (acknowledged, mut asked) = std::thread::scope(|scope| {
            let _ends = Ends(&ends);
            let client = server.connect();
            let counter = scope.spawn(|| count(client, &ends));
            let asked = begin_upgrade(&server);
            if kills_successor {
                let began = Instant::now();
                let mut successor = None;
                while successor.is_none() && began.elapsed() < Duration::from_secs(5) {
                    successor = successor_of(before);
                }
                std::thread::sleep(Duration::from_micros(random.below(150_000) as u64));
                successor.into_iter().for_each(kill);
            } else {
                std::thread::sleep(Duration::from_micros(random.below(150_000) as u64));
                kill(before);
            }
            std::thread::sleep(Duration::from_millis(100));
            ends.store(true, Relaxed);
            (counter.join().expect("it does not panic"), asked)
        });
        let _ = asked.wait();
        // If the killed process was the server, whether before the hand-over or after it, it starts anew.
        std::thread::sleep(Duration::from_millis(20));
        match server.try_connect().and_then(|mut client| client.try_call(&["PING"])) {
            Ok(_) => served += 1,
            Err(_) => {
                wait_until("the first process is gone", || !server.is_alive());
                server.start_again();
            }
        }
        let kept = server.connect().run("GET counter").to_string();
        let kept = kept.trim_matches('"').parse::<u64>().unwrap_or(0);
        assert!(
            kept >= acknowledged,
            "round {round}: {kept} of {acknowledged}; kills the successor: {kills_successor}"
        );
    }
    println!("a process went on serving in {served} of {kills} rounds");
}
