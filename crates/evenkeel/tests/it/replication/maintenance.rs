//! Messages to clients that ask for them (CLIENT MAINT_NOTIFICATIONS), and redirections (CLIENT CAPA).

use std::time::Duration;

use evenkeel_testkit::{Client, Program, Reference, Server};

use super::{attach, await_link, freeze, ok, primary, thaw, wait_until};

/// Seconds of a move, as clients read them.
const MOVE: &str = "15";

fn asking(server: &Server, kind: &str) -> Client {
    let mut client = server.connect3();
    ok(&mut client, &format!("CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type {kind}"));
    client
}

fn send(client: &mut Client, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    client.send(&words).expect("it is sent");
}

/// Reads messages, and checks that they begin as expected.
#[track_caller]
fn reads(client: &mut Client, expected: &[&str]) {
    for expected in expected {
        let message = client.read().to_string();
        assert!(message.contains(expected), "{message}, not {expected}");
    }
}

#[track_caller]
fn is_closed(client: &mut Client) {
    assert_eq!(client.read_to_end().expect("no error"), b"", "the connection is closed, without a reply");
}

/// Begins a failover that cannot go on until `replica` is thawed.
fn begin_failover(server: &Server, replica: &Server) {
    freeze(replica);
    ok(&mut server.connect(), "SET k v");
    ok(&mut server.connect(), &format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 60000", replica.port()));
}

fn parked(server: &Server, count: usize) {
    wait_until("writers wait", || server.info("blocked_clients") == count.to_string());
}

#[test]
fn a_failover_leads_clients_that_ask_to_the_new_primary() {
    let (old, new) = (primary(&[]), primary(&[]));
    attach(&new, &old);
    let place = format!("\"127.0.0.1:{}\"", new.port());
    let (mut idle, mut writer, mut waiter) =
        (asking(&old, "internal-ip"), asking(&old, "external-fqdn"), asking(&old, "internal-ip"));
    let (mut nameless, mut off, mut plain) = (asking(&old, "none"), asking(&old, "none"), old.connect3());
    ok(&mut off, "CLIENT MAINT_NOTIFICATIONS OFF");
    let mut resp2 = old.connect();
    ok(&mut resp2, "CLIENT MAINT_NOTIFICATIONS ON");
    send(&mut waiter, "BRPOP list 0");
    parked(&old, 1);
    begin_failover(&old, &new);
    for client in [&mut idle, &mut writer, &mut waiter, &mut nameless] {
        reads(client, &["FAILING_OVER"]);
    }
    for client in [&mut writer, &mut plain, &mut resp2] {
        send(client, "SET written yes");
    }
    send(&mut idle, "GET k");
    reads(&mut idle, &["\"v\""]);
    parked(&old, 4);
    thaw(&new);
    let moving = format!(":2, :{MOVE}, {place}");
    for client in [&mut idle, &mut writer, &mut waiter] {
        reads(client, &[&format!("\"MOVING\", {moving}")]);
    }
    reads(&mut nameless, &["(null)", "FAILED_OVER"]);
    reads(&mut idle, &["FAILED_OVER"]);
    // The held write has had no effect, and is repeated at the new primary.
    let refusal = format!("-LOADING 127.0.0.1:{} has taken over: repeat the command there", new.port());
    for client in [&mut writer, &mut waiter] {
        reads(client, &["FAILED_OVER", &refusal]);
    }
    send(&mut nameless, "SET k w");
    reads(&mut nameless, &[&refusal]);
    reads(&mut plain, &["READONLY"]);
    reads(&mut resp2, &["READONLY"]);
    assert_eq!(off.run("PING").to_string(), "PONG", "no message came before");
    // A write that is sent before its client has read the message, too. Reads go on.
    send(&mut idle, "GET k");
    reads(&mut idle, &["\"v\""]);
    send(&mut idle, "SET k w");
    reads(&mut idle, &[&refusal]);
    assert_eq!(new.connect().run("GET written").to_string(), "(nil)");
    assert_eq!(new.connect().run("GET k").to_string(), "\"v\"");
    // A later client learns of the move at once, with the same number; it may read here.
    let mut later = asking(&old, "internal-ip");
    let message = later.read().to_string();
    assert!(message.contains("MOVING") && message.contains(&moving), "{message}");
    send(&mut later, "SET k w");
    reads(&mut later, &[&refusal]);
    assert_eq!(later.run("GET k").to_string(), "\"v\"");
    later.run("RESET");
    assert!(later.run("SET k w").to_string().starts_with("-READONLY"));
    // It is no longer so once the roles have changed again.
    await_link(&old);
    ok(&mut new.connect(), &format!("FAILOVER TO 127.0.0.1 {}", old.port()));
    wait_until("it is the primary again", || old.info("role") == "master");
    let mut last = asking(&old, "internal-ip");
    ok(&mut last, "SET k w");
}

#[test]
fn a_failover_that_is_given_up_lets_writers_go_on() {
    let (old, new) = (primary(&[]), primary(&[]));
    attach(&new, &old);
    let mut writer = asking(&old, "internal-ip");
    begin_failover(&old, &new);
    reads(&mut writer, &["FAILING_OVER"]);
    send(&mut writer, "SET k w");
    parked(&old, 1);
    ok(&mut old.connect(), "FAILOVER ABORT");
    reads(&mut writer, &["FAILED_OVER\", :2, \"0\"]", "OK"]);
    thaw(&new);
}

/// RESET ends the messages, as it ends subscriptions.
#[test]
fn a_client_that_has_reset_its_connection_is_told_nothing() {
    let (old, new) = (primary(&[]), primary(&[]));
    attach(&new, &old);
    let mut client = asking(&old, "internal-ip");
    assert_eq!(client.run("RESET").to_string(), "RESET");
    client.run("HELLO 3");
    begin_failover(&old, &new);
    send(&mut client, "SET k w");
    parked(&old, 1);
    thaw(&new);
    reads(&mut client, &["READONLY"]);
}

#[test]
fn a_shutdown_names_the_replica() {
    let (old, new) = (primary(&["--shutdown-timeout", "7"]), primary(&[]));
    attach(&new, &old);
    let mut client = asking(&old, "internal-ip");
    freeze(&new);
    ok(&mut old.connect(), "SET k v");
    let mut operator = old.connect();
    send(&mut operator, "SHUTDOWN NOSAVE");
    reads(&mut client, &["FAILING_OVER"]);
    ok(&mut old.connect(), "SHUTDOWN ABORT");
    reads(&mut client, &["FAILED_OVER"]);
    reads(&mut operator, &["Errors trying to SHUTDOWN"]);
    send(&mut operator, "SHUTDOWN NOSAVE");
    reads(&mut client, &["FAILING_OVER\", :3, :7, \"0\"]"]);
    thaw(&new);
    reads(&mut client, &[&format!("\"MOVING\", :4, :{MOVE}, \"127.0.0.1:{}\"", new.port())]);
    is_closed(&mut client);
    wait_until("it ends", || old.try_connect().is_err());
}

/// A server that has no replica has no place to name.
#[test]
fn a_shutdown_without_a_replica_tells_nothing() {
    let server = primary(&[]);
    let mut client = asking(&server, "internal-ip");
    send(&mut server.connect(), "SHUTDOWN NOSAVE");
    is_closed(&mut client);
}

/// The pairs of CLIENT CAPA: Valkey gives the answers.
fn redirecting() -> Vec<[Server; 2]> {
    let mut pairs = vec![[primary(&[]), primary(&[])]];
    if let Some(valkey) = Program::oracle(Reference::Valkey) {
        let server = || Server::start(&valkey, super::PRIMARY);
        pairs.push([server(), server()]);
    }
    pairs
}

#[test]
fn a_client_that_can_be_redirected_is_led_to_the_primary() {
    for [old, new] in redirecting() {
        let to = |server: &Server| format!("-REDIRECT 127.0.0.1:{}", server.port());
        attach(&new, &old);
        ok(&mut old.connect(), "SET k v");
        let mut reader = new.connect();
        wait_until("the replica has it", || new.connect().run("GET k").to_string() == "\"v\"");
        ok(&mut reader, "CLIENT CAPA REDIRECT later");
        let here = to(&old);
        let declared = ["EVAL", "#!lua\nreturn 1", "1", "k"];
        assert_eq!(reader.call(&declared).to_string(), here, "it may write");
        for line in
            ["GET k", "SET k w", "MGET k l", "BRPOP list 1", "DBSIZE", "EVAL_RO 'return 1' 0", "FLUSHALL"]
        {
            assert_eq!(reader.run(line).to_string(), here, "{line}");
        }
        for line in ["PING", "SELECT 0", "EVAL 'return 1' 1 k", "INFO server", "PUBLISH c m", "RESET"] {
            assert!(!reader.run(line).is_error(), "{line}");
        }
        assert_eq!(reader.run("GET k").to_string(), here, "RESET does not end it");
        let mut other = new.connect();
        ok(&mut other, "CLIENT CAPA redirect");
        ok(&mut other, "MULTI");
        assert_eq!(other.run("GET k").to_string(), here);
        assert!(other.run("EXEC").to_string().starts_with("-EXECABORT"));
        ok(&mut other, "READONLY");
        assert_eq!(other.run("GET k").to_string(), "\"v\"");
        assert_eq!(other.run("SET k w").to_string(), here);
        ok(&mut other, "READWRITE");
        assert_eq!(other.run("GET k").to_string(), here);
        // During a failover its writes wait, and are redirected afterwards.
        let (mut writer, mut waiter) = (old.connect(), old.connect());
        ok(&mut writer, "CLIENT CAPA redirect");
        ok(&mut waiter, "CLIENT CAPA redirect");
        send(&mut waiter, "BRPOP list 0");
        begin_failover(&old, &new);
        send(&mut writer, "SET k w");
        std::thread::sleep(Duration::from_millis(20));
        thaw(&new);
        for client in [&mut writer, &mut waiter] {
            assert_eq!(client.read().to_string(), to(&new));
            assert_eq!(client.run("PING").to_string(), "PONG", "the connection stays");
        }
    }
}
