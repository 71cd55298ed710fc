//! Debian's redis-sentinel with three Evenkeel servers: it replaces a lost primary, and makes it a replica on
//! its return, while a client that asks Sentinel for the primary goes on.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::*};
use std::time::Duration;

use evenkeel_resp::value::Value;
use evenkeel_testkit::server::free_port;
use evenkeel_testkit::{Client, Server};
use rustix::process::{Pid, Signal, kill_process};

use super::{assert_same, attach, number, ok, primary, wait_until};
use crate::Ends;

/// A Sentinel for `primary`; it ends with the test, or after a minute. It asks every second, so a down-after
/// time of little more would declare servers down whenever the machine is busy.
struct Sentinel {
    process: Child,
    port: u16,
}

impl Sentinel {
    /// `None` if Sentinel is not installed.
    fn watching(primary: &Server, folder: &Path) -> Option<Sentinel> {
        let port = free_port();
        let config = folder.join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nlogfile sentinel.log\n\
             sentinel monitor it 127.0.0.1 {} 1\nsentinel down-after-milliseconds it 2500\n\
             sentinel failover-timeout it 4000\nsentinel parallel-syncs it 2\n",
            folder.display(),
            primary.port()
        );
        std::fs::write(&config, text).expect("the folder is ours");
        let is_there = Command::new("redis-sentinel").arg("--version").stdout(Stdio::null()).status().is_ok();
        if !is_there {
            assert!(std::env::var_os("CI").is_none(), "no redis-sentinel; CI must have one");
            eprintln!("SKIPPED: no redis-sentinel on this machine");
            return None;
        }
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "60", "redis-sentinel"]).arg(&config);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it is there");
        let sentinel = Sentinel { process, port };
        wait_until("the sentinel answers", || sentinel.try_ask(&["PING"]).is_some());
        Some(sentinel)
    }

    fn try_ask(&self, words: &[&str]) -> Option<Value> {
        let mut client = Client::connect(([127, 0, 0, 1], self.port).into()).ok()?;
        client.try_call(words).ok()
    }

    /// The port of the server that it takes for the primary.
    fn primary(&self) -> Option<u16> {
        let address = self.try_ask(&["SENTINEL", "get-master-addr-by-name", "it"])?;
        let Value::Array(parts) = &address else { return None };
        String::from_utf8_lossy(parts.get(1)?.as_bytes()?).parse().ok()
    }

    /// A numeric property of its primary.
    fn knows(&self, field: &str) -> Option<u64> {
        let Some(Value::Array(facts)) = self.try_ask(&["SENTINEL", "master", "it"]) else { return None };
        let mut pairs =
            facts.chunks(2).filter_map(|pair| Some((pair[0].as_bytes()?, pair.get(1)?.as_bytes()?)));
        let value = pairs.find(|(name, _)| *name == field.as_bytes())?.1;
        String::from_utf8_lossy(value).parse().ok()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // `timeout` forwards the signal.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
    }
}

/// Counts seen by a client.
#[derive(Default)]
struct Counted {
    /// Replies.
    replies: AtomicI64,
    /// The last number that both replicas had. A failover by Sentinel does not pause clients, so a number on
    /// a single server may be lost.
    safe: AtomicI64,
    ends: AtomicBool,
}

/// The port of a server's primary, if its link is up. Redis' Sentinel closes the clients of a server whose
/// primary it changes, at any time between its choice and this reply.
fn follows(server: &Server) -> Option<i64> {
    let mut client = Client::connect(([127, 0, 0, 1], server.port()).into()).ok()?;
    let Value::Array(role) = client.try_call(&["ROLE"]).ok()? else { return None };
    let [kind, _, Value::Int(port), state, ..] = &role[..] else { return None };
    let is_up = kind.as_bytes() == Some(b"slave") && state.as_bytes() == Some(b"connected");
    is_up.then_some(*port)
}

/// Waits until a server follows another, with Sentinel active.
fn await_following(server: &Server, primary: &Server) {
    wait_until("it follows the new one", || follows(server) == Some(i64::from(primary.port())));
}

/// Counts up on the current primary, until told to end.
fn increment(sentinel: &Sentinel, counted: &Counted) {
    let Counted { replies, safe, ends } = counted;
    while !ends.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
        let Some(port) = sentinel.primary() else { continue };
        let Ok(mut client) = Client::connect(([127, 0, 0, 1], port).into()) else { continue };
        while !ends.load(Relaxed) {
            let Ok(Value::Int(count)) = client.try_call(&["INCR", "count"]) else { break };
            replies.fetch_add(1, Relaxed);
            match client.try_call(&["WAIT", "2", "10"]) {
                Ok(Value::Int(2..)) => _ = safe.fetch_max(count, Relaxed),
                Ok(Value::Int(_)) => {}
                _ => break,
            }
        }
    }
}

#[test]
fn a_lost_primary_is_replaced() {
    let servers = [primary(&[]), primary(&[]), primary(&[])];
    let [mut first, second, third] = servers;
    attach(&second, &first);
    attach(&third, &first);
    let folder = second.folder().join("sentinel");
    std::fs::create_dir(&folder).expect("the folder is ours");
    let Some(sentinel) = Sentinel::watching(&first, &folder) else { return };
    let counted = Counted::default();
    let replies = || counted.replies.load(Relaxed);
    std::thread::scope(|scope| {
        let _ends = Ends(&counted.ends);
        scope.spawn(|| increment(&sentinel, &counted));
        wait_until("it knows the replicas", || sentinel.knows("num-slaves") == Some(2));
        wait_until("some are safe", || counted.safe.load(Relaxed) > 50);
        first.kill();
        let at_loss = replies();
        wait_until("another one is the primary", || {
            sentinel.primary().is_some_and(|port| port != first.port())
        });
        let (new, other) =
            if sentinel.primary() == Some(second.port()) { (&second, &third) } else { (&third, &second) };
        wait_until("clients go on", || replies() > at_loss + 50);
        await_following(other, new);
        assert_eq!(number(new, "sync_full"), 0, "the other replica went on with it");
        first.start_again();
        await_following(&first, new);
        // And back, by hand.
        wait_until("it is over", || {
            let reply = sentinel.try_ask(&["SENTINEL", "FAILOVER", "it"]).map(|reply| reply.to_string());
            reply.as_deref() == Some("OK")
        });
        wait_until("roles change once more", || sentinel.primary().is_some_and(|port| port != new.port()));
        let before = replies();
        wait_until("clients go on", || replies() > before + 50);
    });
    let last = sentinel.primary();
    let all = [&first, &second, &third];
    let (new, others): (Vec<&Server>, Vec<&Server>) =
        all.into_iter().partition(|one| Some(one.port()) == last);
    for other in others {
        await_following(other, new[0]);
        assert_same(new[0], other);
    }
    let mut client = new[0].connect();
    ok(&mut client, "PING");
    let count = client.run("INCR count").as_int().expect("a number");
    let safe = counted.safe.load(Relaxed);
    assert!(count > safe, "{count} where {safe} was safe");
}
