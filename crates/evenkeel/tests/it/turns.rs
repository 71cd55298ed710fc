//! Correctness within a single turn of a worker: time advances, memory is returned, blocked clients are
//! served and sessions change, with or without a script that blocks all clients.

use std::time::Duration;

use evenkeel_testkit::{Client, Server, words};

use crate::{start, wait_until};

/// A call that blocks all clients for about `ms` milliseconds, less than the BUSY limit.
fn busy(ms: u32) -> [String; 4] {
    let script = "redis.call('DBSIZE') local from = os.clock() \
                  while (os.clock() - from) * 1000 < tonumber(ARGV[1]) do end return 1";
    ["EVAL", script, "0", &ms.to_string()].map(str::to_string)
}

fn words_of(line: &str) -> Vec<Vec<u8>> {
    words::split(line).expect("its quotes are closed")
}

fn pipe(client: &mut Client, commands: &[&str]) -> Vec<String> {
    let commands: Vec<Vec<Vec<u8>>> = commands.iter().map(|line| words_of(line)).collect();
    client.pipeline(&commands).iter().map(ToString::to_string).collect()
}

/// Waits until the sent command has begun.
fn short() {
    std::thread::sleep(Duration::from_millis(150));
}

#[test]
fn the_clock_advances_during_a_busy_script() {
    let server = start(&["--threads", "2"]);
    let (mut other, mut client) = (server.connect(), server.connect());
    client.run("SET old v PX 500");
    other.send(&busy(900)).expect("it is sent");
    short();
    let replies = pipe(&mut client, &["SET lock me NX PX 500", "GET old"]);
    assert_eq!(replies, ["OK", "(nil)"]);
    assert_eq!(client.run("GET lock").to_string(), "\"me\"", "it was to live for half a second from then on");
    other.read();
}

/// The same for a later command in the same turn of the same worker.
#[test]
fn the_clock_advances_after_a_long_command() {
    let server = start(&["--threads", "1"]);
    let mut client = server.connect();
    client.run("SET old v PX 500");
    let busy = busy(900).map(String::into_bytes).to_vec();
    let behind = ["EXEC", "SET lock me NX PX 500", "GET old"].map(words_of);
    let commands: Vec<Vec<Vec<u8>>> = [words_of("MULTI"), busy].into_iter().chain(behind).collect();
    let replies: Vec<String> = client.pipeline(&commands).iter().map(ToString::to_string).collect();
    assert_eq!(replies[2..], ["[:1]", "OK", "(nil)"]);
    assert_eq!(client.run("GET lock").to_string(), "\"me\"");
}

/// A sweep for expired keys that waits for a script does not take the time of the script.
#[test]
fn a_busy_script_is_no_time_of_expiry() {
    let server = start(&["--threads", "1", "--latency-monitor-threshold", "600"]);
    let (mut other, mut client) = (server.connect(), server.connect());
    client.run("SET old v PX 100");
    other.send(&busy(900)).expect("it is sent");
    other.read();
    wait_until("the key is swept away", || client.run("DBSIZE").to_string() == ":0");
    let events = client.run("LATENCY LATEST").to_string();
    assert!(events.contains("command") && !events.contains("expire-cycle"), "{events}");
}

/// An endless script, until it is killed.
struct Endless(Client);

impl Endless {
    fn begin(server: &Server) -> Endless {
        let (mut runs, mut observer) = (server.connect(), server.connect());
        observer.run("CONFIG SET busy-reply-threshold 20");
        runs.send(&["EVAL", "while true do end", "0"]).expect("it is sent");
        while !observer.run("PING").to_string().starts_with("-BUSY") {
            std::thread::sleep(Duration::from_millis(5));
        }
        Endless(observer)
    }

    fn end(mut self) {
        assert_eq!(self.0.run("SCRIPT KILL").to_string(), "OK");
        while self.0.run("PING").to_string() != "PONG" {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_transaction_begun_during_a_busy_script_keeps_its_watch() {
    let server = start(&[]);
    let (mut client, mut other) = (server.connect(), server.connect());
    client.run("WATCH k");
    let script = Endless::begin(&server);
    assert_eq!(client.run("MULTI").to_string(), "OK");
    script.end();
    other.run("SET k other");
    assert_eq!(pipe(&mut client, &["SET k mine", "EXEC", "GET k"]), ["QUEUED", "(nil array)", "\"other\""]);
}

#[test]
fn a_transaction_ended_during_a_busy_script_leaves_no_watch() {
    for ends in ["EXEC", "DISCARD", "RESET"] {
        let server = start(&[]);
        let (mut client, mut other) = (server.connect(), server.connect());
        pipe(&mut client, &["WATCH k", "MULTI"]);
        let script = Endless::begin(&server);
        let ended = client.run(ends).to_string();
        assert!(ended == "OK" || ended == "RESET" || ended.starts_with("-EXECABORT"), "{ended}");
        script.end();
        other.run("SET k other");
        assert_eq!(pipe(&mut client, &["MULTI", "SET y 1", "EXEC"]), ["OK", "QUEUED", "[OK]"], "{ends}");
        assert_eq!(server.info("watching_clients"), "0", "{ends}");
    }
}

#[test]
fn reads_of_long_scripts_are_tracked() {
    let server = start(&[]);
    let (mut client, mut other) = (server.connect3(), server.connect());
    client.run("CLIENT TRACKING on");
    let script = "local i = 0 while i < tonumber(ARGV[1]) do i = i + 1 end return redis.call('GET', KEYS[1])";
    for (key, turns) in [("quick", "1"), ("slow", "3000000")] {
        assert_eq!(client.call(&["EVAL", script, "1", key, turns]).to_string(), "(null)");
        other.run(&format!("SET {key} v"));
        assert_eq!(client.read().to_string(), format!(">[\"invalidate\", [\"{key}\"]]"));
    }
}

/// Push messages come behind the reply, and count towards the client's limit until then.
#[test]
fn push_messages_behind_a_long_reply_are_bounded() {
    let server = start(&["--client-output-buffer-limit", "normal 65536 0 0"]);
    // Its connections are never accepted or answered.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port().to_string();
    let mut client = server.connect3();
    client.run("SET k 1");
    client.run("CLIENT TRACKING ON BCAST");
    client.send(&["MIGRATE", "127.0.0.1", &port, "k", "0", "600000"]).expect("sent");
    let mut other = server.connect();
    // At most as many at a time as the client's push queue holds.
    for number in 0..500 {
        other.call(&["SET", &format!("{number}:{}", "x".repeat(500)), "1"]);
        std::thread::sleep(Duration::from_micros(500));
    }
    wait_until("it is given up", || server.info("client_output_buffer_limit_disconnections") == "1");
    // The push messages before its command, and then the end.
    while let Ok(message) = client.try_read() {
        assert!(message.to_string().starts_with(r#">["invalidate""#), "{message}");
    }
}

#[test]
fn reads_after_a_wait_are_tracked() {
    let server = start(&[]);
    let (mut client, mut other) = (server.connect3(), server.connect());
    client.run("CLIENT TRACKING on");
    for round in 1..=200 {
        client.send(&["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]).expect("it reads");
        wait_until("it waits", || server.info("blocked_clients") == "1");
        // The second XADD comes before or behind the delivery of the first.
        let adds = (0..2)
            .map(|add| vec!["XADD".to_owned(), "s".into(), format!("{round}-{add}"), "f".into(), "v".into()]);
        other.pipeline(&adds.collect::<Vec<_>>());
        // The wake-up by the first XADD, the entry read, and the change by the second.
        let said = [(); 3].map(|()| client.read().to_string());
        let is_change = said.each_ref().map(|one| one.starts_with(">"));
        assert!(is_change == [true, false, true] || is_change == [false, true, true], "{said:?}");
    }
}

#[test]
fn client_caching_ends_with_a_blocking_command() {
    let server = start(&[]);
    let (mut client, mut other) = (server.connect3(), server.connect());
    client.run("CLIENT TRACKING on OPTOUT");
    let replies = pipe(&mut client, &["CLIENT CACHING no", "BLPOP nothing 0.02", "GET k"]);
    assert_eq!(replies, ["OK", "(null)", "(null)"]);
    other.run("SET k v");
    assert_eq!(client.read().to_string(), ">[\"invalidate\", [\"k\"]]");
}

#[test]
fn memory_freed_by_a_pipeline_is_available_to_its_later_commands() {
    let server = start(&["--save", ""]);
    let mut client = server.connect();
    let value = "x".repeat(20_000);
    for number in 0..100 {
        client.call(&["SET", &format!("big{number}"), &value]);
    }
    let limit = server.info("used_memory").parse::<usize>().expect("a number") - 500_000;
    client.run(&format!("CONFIG SET maxmemory {limit}"));
    assert!(client.run("SET a 1").to_string().starts_with("-OOM"));
    let deletes = (0..50).fold("DEL".to_string(), |line, number| format!("{line} big{number}"));
    assert_eq!(pipe(&mut client, &[&deletes, "SET a 1", "INCR c"]), [":50", "OK", ":1"]);
}

/// GET finds the key expired, and must notify its blocked client; MGET locks other slots and delays that;
/// RPUSH must not leave the client waiting.
#[test]
fn a_deferred_waiter_is_served_by_the_next_push() {
    let server = start(&["--enable-debug-command", "yes", "--threads", "1"]);
    let (mut client, mut waiter) = (server.connect(), server.connect());
    client.run("DEBUG SET-ACTIVE-EXPIRE 0");
    waiter.send(&["BLPOP", "list", "30"]).expect("it is sent");
    while server.info("blocked_clients") != "1" {
        std::thread::sleep(Duration::from_millis(5));
    }
    client.run("SET list text PX 10");
    short();
    let replies = pipe(&mut client, &["GET list", "MGET one other", "RPUSH list v", "LPOP list"]);
    assert_eq!(replies, ["(nil)", "[(nil), (nil)]", ":1", "(nil)"]);
    assert_eq!(waiter.read().to_string(), "[\"list\", \"v\"]");
}

/// EVAL makes the script's hash known to all workers, even if a worker has it compiled and other scripts have
/// evicted it.
#[test]
fn an_evicted_script_that_runs_again_is_cached_again() {
    let server = start(&["--threads", "2"]);
    let mut client = server.connect();
    client.run("EVAL 'return 42' 0");
    for number in 0..600 {
        client.run(&format!("EVAL 'return {number} + 1' 0"));
    }
    client.run("EVAL 'return 42' 0");
    let by_name = |_| server.connect().run("EVALSHA 1fa00e76656cc152ad327c13fe365858fd7be306 0").to_string();
    assert_eq!((0..4).map(by_name).collect::<Vec<String>>(), [":42"; 4]);
}

/// Expired keys stay while writes are paused, even if their sweep has begun.
#[test]
fn nothing_expires_in_a_pause() {
    const KEYS: usize = 100_000;
    let server = start(&["--threads", "2", "--save", ""]);
    let (mut client, mut pauses) = (server.connect(), server.connect());
    let at = client.run("TIME").to_string();
    let seconds: u64 = at.split('"').nth(1).and_then(|text| text.parse().ok()).expect("seconds");
    let due = (seconds + 4) * 1000;
    let commands: Vec<Vec<Vec<u8>>> =
        (0..KEYS).map(|number| words_of(&format!("SET key:{number} v PXAT {due}"))).collect();
    commands.chunks(1000).for_each(|chunk| drop(client.pipeline(chunk)));
    while client.run("DBSIZE").to_string() == format!(":{KEYS}") {
        std::thread::sleep(Duration::from_millis(1));
    }
    pauses.run("CLIENT PAUSE 100000 WRITE");
    // Each worker may be in the middle of a slice.
    let mut left = client.run("DBSIZE").to_string();
    wait_until("the slices are over", || {
        std::thread::sleep(Duration::from_millis(50));
        let before = std::mem::replace(&mut left, client.run("DBSIZE").to_string());
        before == left
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(client.run("DBSIZE").to_string(), left);
    assert_ne!(left, ":0", "some were left to expire");
}

/// A client that disconnects during a pause gives up its request: it is not executed after the pause.
#[test]
fn paused_requests_of_disconnected_clients_are_dropped() {
    let server = start(&["--threads", "2"]);
    let mut operator = server.connect();
    operator.run("CLIENT PAUSE 100000 WRITE");
    let came = |operator: &mut Client| {
        let stats = operator.run("INFO stats").to_string();
        let number =
            stats.split("total_connections_received:").nth(1).and_then(|rest| rest.split('\\').next());
        number.and_then(|number| number.parse::<u64>().ok()).expect("it is counted")
    };
    for round in 0..40 {
        let before = came(&mut operator);
        let mut client = server.connect();
        client.send(&["INCR", "k"]).expect("it is sent");
        if round % 2 == 0 {
            // Else the end of the stream arrives together with the command.
            wait_until("it waits", || {
                operator.run("INFO clients").to_string().contains("blocked_clients:1\\r")
            });
        }
        drop(client);
        wait_until("it has come", || came(&mut operator) > before);
        wait_until("it is gone", || {
            operator.run("INFO clients").to_string().contains("connected_clients:1\\r")
        });
    }
    operator.run("CLIENT UNPAUSE");
    assert_eq!(operator.run("INCR k").to_string(), ":1");
}

/// Number of page faults of the threads with this name.
fn page_faults(server: &Server, name: &str) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs");
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    let faults = |stat: String| {
        let (named, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        (named == name).then(|| rest.split(' ').nth(7)?.parse::<u64>().ok())?
    };
    stats.filter_map(faults).sum()
}

/// Data grow at 100 MB a second: a thread beside the worker has the page faults.
#[test]
fn workers_do_not_wait_for_kernel_memory() {
    const BATCHES: u64 = 256;
    let server = start(&["--threads", "1", "--huge-pages", "no"]);
    if page_faults(&server, "memory") == 0 {
        return println!("not on this machine: several memory nodes, or a kernel that cannot be asked");
    }
    let mut client = server.connect();
    let mut fill = |prefix: &str| {
        for batch in 0..BATCHES {
            let set = |number| words_of(&format!("SET {prefix}:{batch}:{number} {:0>2000}", 1));
            client.pipeline(&(0..256).map(set).collect::<Vec<_>>());
            std::thread::sleep(Duration::from_millis(4));
        }
    };
    let mut faults_of_fill = |prefix: String| {
        let before = ["worker-0", "memory"].map(|name| page_faults(&server, name));
        fill(&prefix);
        let after = ["worker-0", "memory"].map(|name| page_faults(&server, name));
        [after[0] - before[0], after[1] - before[1]]
    };
    // Some page faults of the worker are the program's own. If other tests use the cores, a worker may get
    // ahead, but not each time.
    let pages = BATCHES * 256 * 2000 / 4096;
    let is_ahead = |&[worker, beside]: &[u64; 2]| beside > pages / 2 && worker < pages / 4;
    let mut fills = Vec::new();
    while !fills.last().is_some_and(is_ahead) {
        fills.push(faults_of_fill(format!("fill-{}", fills.len())));
        assert!(fills.len() < 10, "of {pages} pages, the worker and the thread beside it: {fills:?}");
    }
}
