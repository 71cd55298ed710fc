//! Cases of the Redis family in which a command, a script or a client is the cause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use evenkeel_testkit::{Client, Reference, Server};

use crate::PIPELINED;
use crate::stage::{self, LOAD, Load, SERVER, Seen, diagnose, diagnose_with, redis, stage};

/// A client that runs `run` over and over until it is dropped.
struct Busy(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Busy {
    fn start(server: &Server, mut run: impl FnMut(&mut Client) + Send + 'static) -> Busy {
        let (stop, mut client) = (Arc::new(AtomicBool::new(false)), server.connect());
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                run(&mut client);
            }
        });
        Busy(stop, Some(thread))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

/// A server with keys, and a calm load of GET beside.
fn filled(reference: Reference, keys: usize) -> (Server, Load) {
    let server =
        Server::start(&stage::reference(reference, SERVER), &["--save", "", "--enable-debug-command", "yes"]);
    let done = server.connect().run(&format!("DEBUG POPULATE {keys}"));
    assert_eq!(done.to_string(), "OK");
    let load = Load::start(server.port(), &["-t", "get", "-c", "5", "-r", "1000"]);
    (server, load)
}

fn expect_command(seen: &Seen, title: &str) {
    seen.expect_first("R20");
    assert!(seen.titles()[0].starts_with(title), "{seen}");
}

fn is_free_of_commands(seen: &Seen) {
    let rules = seen.rules();
    assert!(!rules.iter().any(|rule| rule == "R20" || rule == "R21"), "{seen}");
}

#[test]
fn keys_on_many_keys_is_the_first_finding() {
    let _stage = stage();
    let (server, _load) = filled(Reference::Redis, 1_000_000);
    let _busy = Busy::start(&server, |client| {
        client.run("KEYS nothing:*");
    });
    for more in [&[][..], &["--proc-only"]] {
        let seen = diagnose_with("redis-server, KEYS on a million keys", server.pid(), more);
        expect_command(&seen, "KEYS takes ");
    }
}

#[test]
fn the_load_beside_it_alone_is_no_finding_about_commands() {
    let _stage = stage();
    let (server, _load) = filled(Reference::Redis, 1_000_000);
    is_free_of_commands(&diagnose("redis-server, a million keys, GET alone", server.pid()));
    drop(_load);
    let _load = Load::start(server.port(), PIPELINED);
    is_free_of_commands(&diagnose("redis-server, SET at pipeline 16 alone", server.pid()));
}

#[test]
#[ignore = "long"]
fn a_slow_script_is_the_first_finding_by_its_first_line() {
    let _stage = stage();
    for reference in [Reference::Redis, Reference::Valkey] {
        let (server, _load) = filled(reference, 1_000);
        let script = "-- nightly totals\nlocal s = '' for i = 1, 500000 do s = i .. '' end return s";
        let _busy = Busy::start(&server, move |client| {
            client.call(&["EVAL", script, "0"]);
        });
        let seen = diagnose(&format!("{reference:?}, a Lua script of 250 ms"), server.pid());
        expect_command(&seen, "The script \"-- nightly totals\" (EVAL) takes ");
    }
}

#[test]
#[ignore = "long"]
fn save_in_a_loop_is_the_first_finding() {
    let _stage = stage();
    let (server, _load) = filled(Reference::Redis, 2_000_000);
    let _busy = Busy::start(&server, |client| {
        client.run("SAVE");
    });
    expect_command(&diagnose("redis-server, SAVE in a loop", server.pid()), "SAVE takes ");
}

/// Five clients ask now and then, and one sends pipelines of 50,000.
#[test]
#[ignore = "long"]
fn a_client_with_huge_pipelines_is_the_first_finding() {
    let _stage = stage();
    for reference in [Reference::Redis, Reference::Valkey] {
        let (server, calm) = filled(reference, 1_000);
        drop(calm);
        let _calm: Vec<Busy> = (0..5)
            .map(|_| {
                Busy::start(&server, |client| {
                    client.run("GET key:1");
                    std::thread::sleep(std::time::Duration::from_millis(5));
                })
            })
            .collect();
        let _one = Load::start_at(
            LOAD,
            server.port(),
            &["-t", "set", "-d", "100", "-c", "1", "-P", "50000", "-r", "10000"],
        );
        let seen = diagnose(&format!("{reference:?}, one client with pipelines of 50,000"), server.pid());
        let seen = if reference == Reference::Redis { seen.in_kernel() } else { Some(seen) };
        let Some(seen) = seen else { continue };
        seen.expect_first("R21");
    }
}

#[test]
#[ignore = "long"]
fn many_clients_alike_are_no_finding_about_a_client() {
    let _stage = stage();
    let server = Server::start(&redis(SERVER), &[]);
    let _load = Load::start(server.port(), &["-t", "set", "-c", "50", "-P", "100", "-r", "10000"]);
    is_free_of_commands(&diagnose("redis-server, 50 clients at pipeline 100", server.pid()));
}
