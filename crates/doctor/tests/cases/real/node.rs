//! Node's HTTP server, with one event loop.

use std::time::Duration;

use evenkeel_testkit::server::free_port;

use super::loads::fetch;
use super::{Helper, Service, SilentNames, expect, expect_cause, expect_none, has, named_pipe, write};
use crate::stage::{self, Place, stage};
use crate::{Folder, corpus};

const PROGRAM: &str = "/usr/bin/node";
const REST: Duration = Duration::from_millis(2);

/// Starts a server that does `work` for each request, and then `reply()`; `None`, with a message, if Node is
/// not installed.
fn start(place: Place, folder: Folder, work: &str) -> Option<Service> {
    start_by(&[], place, folder, work)
}

/// As `start`, with a command prefix.
fn start_by(prefix: &[&str], place: Place, folder: Folder, work: &str) -> Option<Service> {
    if !has(PROGRAM) {
        return None;
    }
    let port = free_port();
    let text = format!(
        "const http = require('http'), fs = require('fs'), crypto = require('crypto')\n\
         const {{ execSync }} = require('child_process')\n\
         http.createServer((request, response) => {{\n  const reply = () => response.end('ok')\n  {work}\n\
         }}).listen({port}, '127.0.0.1')\n"
    );
    let script = write(&folder, "app.js", &text);
    Some(Service::start(place, &[prefix, &[PROGRAM, &script]].concat(), folder, port))
}

fn asks(origin: &corpus::Program) -> String {
    format!("http.get('http://127.0.0.1:{}/', other => other.resume().on('end', reply))", origin.port())
}

#[test]
#[ignore = "long"]
fn a_slow_upstream_is_the_first_finding() {
    let _stage = stage();
    let origin = corpus::start("slow-origin", stage::ALL);
    let Some(node) = start(stage::ALL, Folder::new("node"), &asks(&origin)) else { return };
    let _clients = fetch(node.port, "/", 3, REST);
    let words = [&format!("127.0.0.1:{}", origin.port()), "(cases-"];
    expect_cause("Node, a slow upstream", node.pid(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn a_fast_upstream_is_no_finding() {
    let _stage = stage();
    let origin = corpus::start("origin", stage::ALL);
    let Some(node) = start(stage::ALL, Folder::new("node"), &asks(&origin)) else { return };
    let _clients = fetch(node.port, "/", 3, REST);
    expect_none("Node, a fast upstream", node.pid(), "R22");
}

#[test]
#[ignore = "long"]
fn a_hash_on_the_event_loop_is_the_first_finding() {
    let _stage = stage();
    let work = "crypto.pbkdf2Sync('secret', 'salt', 50000, 64, 'sha512'); reply()";
    let Some(node) = start(stage::SERVER, Folder::new("node"), work) else { return };
    let _clients = fetch(node.port, "/", 3, REST);
    expect_cause(
        "Node, pbkdf2Sync",
        node.pid(),
        "R25|R17",
        &["Hashing passwords|pbkdf2|PBKDF2|sha512|SHA512"],
    );
}

#[test]
#[ignore = "long"]
fn json_on_the_event_loop_is_the_first_finding() {
    let _stage = stage();
    let work = "globalThis.text ??= JSON.stringify(Array(300000).fill({ id: 1, name: 'thing' })); \
                JSON.parse(text); reply()";
    let Some(node) = start(stage::SERVER, Folder::new("node"), work) else { return };
    let _clients = fetch(node.port, "/", 3, REST);
    expect_cause("Node, JSON of 8 MB", node.pid(), "R25|R17", &["Json|JSON"]);
}

#[test]
#[ignore = "long"]
fn a_cheap_handler_is_no_finding() {
    let _stage = stage();
    let Some(node) = start(stage::ALL, Folder::new("node"), "reply()") else { return };
    let _clients = fetch(node.port, "/", 2, REST);
    expect("Node, a cheap handler", node.pid(), |seen| {
        let is_wrong = |title: &&str| ["PBKDF2", "SHA512", "Json"].iter().any(|word| title.contains(word));
        !seen.titles().iter().any(is_wrong) && !seen.rules().contains(&"R22".to_string())
    });
}

#[test]
#[ignore = "long"]
fn a_read_of_a_named_pipe_is_the_first_finding() {
    let _stage = stage();
    let folder = Folder::new("node-pipe");
    let pipe = named_pipe(&folder, "rates.pipe");
    let feed = format!("while sleep 0.1; do echo 1.17 > {pipe}; done");
    let _writer = Helper::start(stage::ALL, &["bash", "-c", &feed]);
    let Some(node) = start(stage::ALL, folder, &format!("fs.readFileSync('{pipe}'); reply()")) else {
        return;
    };
    let _clients = fetch(node.port, "/", 2, REST);
    expect_cause("Node, readFileSync of a named pipe", node.pid(), "R26", &["openat", "a pipe with a name"]);
}

#[test]
#[ignore = "long"]
fn a_child_process_that_the_event_loop_waits_for_is_the_first_finding() {
    let _stage = stage();
    let Some(node) = start(stage::ALL, Folder::new("node"), "execSync('sleep 0.2'); reply()") else {
        return;
    };
    let _clients = fetch(node.port, "/", 2, REST);
    expect_cause("Node, execSync", node.pid(), "R17|R22", &["sh, a program that it started"]);
}

#[test]
#[ignore = "long"]
fn a_silent_name_server_is_the_first_finding() {
    let _stage = stage();
    let Some(names) = SilentNames::start() else { return };
    let work = "http.get('http://orders.internal/').on('error', reply)";
    let Some(node) = start_by(&names.prefix(), stage::ALL, Folder::new("node"), work) else { return };
    let _clients = fetch(node.port, "/", 3, REST);
    let words = ["name server", SilentNames::ADDRESS];
    expect_cause("Node, a silent name server", node.pid(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn hashes_on_the_thread_pool_are_the_first_finding() {
    let _stage = stage();
    let work = "crypto.pbkdf2('secret', 'salt', 50000, 64, 'sha512', reply)";
    let Some(node) = start(stage::ALL, Folder::new("node"), work) else { return };
    let _clients = fetch(node.port, "/", 1, REST);
    expect_cause(
        "Node, pbkdf2 on its threads",
        node.pid(),
        "R25|R22",
        &["ashing passwords|pbkdf2|PBKDF2|sha512|SHA512|of its threads compute"],
    );
}
