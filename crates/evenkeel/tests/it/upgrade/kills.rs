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

fn kills() -> usize {
    std::env::var("EVENKEEL_UPGRADE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(12)
}

/// Writes values of all lengths to some keys. Returns the last acknowledged value of each, and the key and
/// value without an acknowledgement. The connection may end.
fn write(
    mut client: Client,
    ends: &AtomicBool,
    random: &mut Random,
    values: &mut [String],
) -> (usize, String) {
    loop {
        let place = random.below(values.len());
        let len = if random.chance(10) { random.below(300_000) } else { random.below(2_000) };
        let value = format!("{}{}", random.below(1_000_000), "x".repeat(len));
        let is_kept =
            client.try_call(&["SET", &format!("key:{place}"), &value]).is_ok_and(|it| !it.is_error());
        if !is_kept || ends.load(Relaxed) {
            return (place, value);
        }
        values[place] = value;
    }
}

/// Without any file: as long as the server itself was not killed, it goes on with all data, although the
/// other process has mapped them.
#[test]
fn a_killed_successor_leaves_the_data() {
    let (kills, seed) = (kills(), fresh_seed());
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let mut server = start(&["--threads", "2"]);
    let mut values = vec![String::new(); 100];
    let mut served = 0;
    for round in 0..kills {
        let before = server.info("process_id").parse::<u32>().expect("a number");
        let ends = AtomicBool::new(false);
        let mut own = Random::new(seed + round as u64);
        let (unsure, mut asked) = std::thread::scope(|scope| {
            let _ends = Ends(&ends);
            let (client, values, ends) = (server.connect(), &mut values, &ends);
            let writer = scope.spawn(move || write(client, ends, &mut own, values));
            let asked = begin_upgrade(&server);
            let began = Instant::now();
            let mut successor = None;
            while successor.is_none() && began.elapsed() < Duration::from_secs(5) {
                successor = successor_of(before);
            }
            std::thread::sleep(Duration::from_micros(random.below(80_000) as u64));
            successor.into_iter().for_each(kill);
            std::thread::sleep(Duration::from_millis(50));
            ends.store(true, Relaxed);
            (writer.join().expect("it does not panic"), asked)
        });
        let _ = asked.wait();
        std::thread::sleep(Duration::from_millis(20));
        let Ok(mut client) = server.try_connect() else {
            // The killed process was the server.
            wait_until("the first process is gone", || !server.is_alive());
            server.start_again();
            values.iter_mut().for_each(String::clear);
            continue;
        };
        served += 1;
        for (place, value) in values.iter_mut().enumerate() {
            let now = client.run(&format!("GET key:{place}")).to_string();
            let now = now.trim_matches('"');
            let now = if now == "(nil)" { "" } else { now };
            let is_unsure = unsure.0 == place && now == unsure.1;
            assert!(now == value || is_unsure, "round {round}, key {place}");
            *value = now.to_owned();
        }
    }
    println!("a process went on serving in {served} of {kills} rounds");
    assert!(kills < 12 || served > kills / 4, "{served} of {kills}");
}

#[test]
fn no_acknowledged_write_is_lost() {
    let kills = kills();
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
