//! Large announcements, large amounts of data, unread replies: limits hold, and announced bytes cost nothing
//! until sent.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Program, Reference, Server};
use socket2::{Domain, Socket, Type};

use super::witness::while_serving_a_witness;
use super::{MIB, used_memory};
use crate::{start, wait_until};

#[test]
fn announced_but_unsent_data_take_no_memory() {
    let mut server = start(&["--proto-max-bulk-len", "2gb"]);
    let before = server.rss();
    let mut waiting: Vec<Client> = Vec::new();
    while_serving_a_witness(&mut server, |server| {
        let requests = [
            "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1073741824\r\nthe first bytes of a gigabyte",
            "*1000000\r\n$4\r\nMGET\r\n$1\r\nk\r\n",
            "*2147483647\r\n",
        ];
        for request in requests {
            for _ in 0..6 {
                let mut client = server.connect();
                client.send_raw(request.as_bytes()).expect("connected");
                waiting.push(client);
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    });
    wait_until("each is waited for, and nobody else", || server.info("connected_clients") == "19");
    let more = server.rss().saturating_sub(before);
    assert!(more < 32 * MIB, "{} MiB for requests of a few bytes", more / MIB);
    drop(waiting);
    wait_until("the connections are gone", || server.info("connected_clients") == "1");
}

#[test]
fn a_gigabyte_is_refused_if_the_limit_is_half_a_gigabyte() {
    let server = start(&[]);
    let mut client = server.connect();
    client.send_raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1073741824\r\n").expect("connected");
    let answer = client.read_to_end().expect("the server hangs up");
    assert_eq!(answer, b"-ERR Protocol error: invalid bulk length\r\n");
}

/// A client with a small receive buffer of its own, so that the server's output gets stuck.
fn non_reading_client(server: &Server) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4 * 1024).expect("a small buffer");
    socket.connect(&server.address().into()).expect("connected");
    let mut client = Client::from_tcp(TcpStream::from(socket));
    client.set_reply_timeout(Duration::from_secs(5));
    client
}

/// Requests a megabyte a thousand times and reads nothing. The server may close before all requests are sent.
fn ask_for_a_gigabyte(client: &mut Client) {
    let _ = client.send_raw(&b"GET big\r\n".repeat(1_000));
}

fn store_a_megabyte(server: &Server) {
    let big = vec![b'x'; MIB as usize];
    assert_eq!(server.connect().call(&[b"SET", &b"big"[..], &big]).to_string(), "OK");
}

#[test]
fn clients_that_never_read_are_disconnected_at_the_hard_limit() {
    let mut server = start(&["--client-output-buffer-limit", "normal", "8mb", "0", "0"]);
    store_a_megabyte(&server);
    let before = server.rss();
    while_serving_a_witness(&mut server, |server| {
        let mut sleepers: Vec<Client> = (0..4).map(|_| non_reading_client(server)).collect();
        sleepers.iter_mut().for_each(ask_for_a_gigabyte);
        wait_until("only the witness and the one who asks are connected", || {
            server.info("connected_clients") == "2"
        });
    });
    let more = server.rss().saturating_sub(before);
    assert!(more < 96 * MIB, "four limits of 8 MiB, and {} MiB were taken", more / MIB);
    wait_until("the buffers are freed", || used_memory(&server) < 8 * MIB);
}

/// Each request uses up a connection's share of a turn, so other connections come in between.
fn pipeline_of_turns(values: usize) -> Vec<u8> {
    b"DEBUG SLEEP 0.001\r\nGET value\r\n".repeat(values)
}

#[test]
fn the_output_limit_covers_a_whole_pipeline_over_several_turns() {
    let limit = ["--client-output-buffer-limit", "normal", "100000", "0", "0"];
    let mut server = start(&[&limit[..], &["--enable-debug-command", "yes"]].concat());
    let mut setter = server.connect();
    assert_eq!(setter.call(&[b"SET", &b"value"[..], &[b'x'; 10_000]]).to_string(), "OK");
    let mut greedy = server.connect();
    greedy.send_raw(&pipeline_of_turns(12)).expect("connected");
    // Later requests do not cause an early send of the replies.
    (0..20).for_each(|_| {
        let _ = greedy.send_raw(b"PING\r\n");
        std::thread::sleep(Duration::from_millis(1));
    });
    let kind = greedy.try_read().expect_err("not even the first reply comes").kind();
    assert!(matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{kind}");
    let mut modest = server.connect();
    // Bytes without a reply follow the last turn: the beginning of a request, or a request whose reply is not
    // wanted.
    for (rest, end) in [("GE", "T none\r\n"), ("CLIENT REPLY SKIP\r\n", "PING\r\nGET none\r\n")] {
        let pipeline = [&pipeline_of_turns(9), &b"DEBUG SLEEP 0.001\r\n"[..], rest.as_bytes()].concat();
        modest.send_raw(&pipeline).expect("connected");
        for _ in 0..9 {
            assert_eq!(modest.read().to_string(), "OK");
            assert_eq!(modest.read().as_bytes().map(<[u8]>::len), Some(10_000));
        }
        assert_eq!(modest.read().to_string(), "OK");
        modest.send_raw(end.as_bytes()).expect("connected");
        assert_eq!(modest.read().to_string(), "(nil)");
    }
    server.assert_healthy();
}

#[test]
fn clients_over_the_soft_limit_are_disconnected_after_its_time() {
    let mut server = start(&["--client-output-buffer-limit", "normal", "0", "1mb", "1"]);
    store_a_megabyte(&server);
    let mut slow = non_reading_client(&server);
    let asked = Instant::now();
    slow.send_raw(&b"GET big\r\n".repeat(8)).expect("connected");
    std::thread::sleep(Duration::from_millis(300));
    let clients = server.info("connected_clients");
    assert!(
        clients == "2" || asked.elapsed() >= Duration::from_secs(1),
        "it has a second, {clients} are there"
    );
    wait_until("the slow client is gone", || server.info("connected_clients") == "1");
    server.assert_healthy();
}

#[test]
fn a_client_below_its_limits_may_take_its_time() {
    let mut server = start(&["--client-output-buffer-limit", "normal", "32mb", "0", "0"]);
    store_a_megabyte(&server);
    let mut slow = non_reading_client(&server);
    slow.send_raw(&b"GET big\r\n".repeat(8)).expect("connected");
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..8 {
        assert_eq!(slow.read().as_bytes().map(<[u8]>::len), Some(MIB as usize));
    }
    server.assert_healthy();
}

#[test]
fn a_request_over_the_query_buffer_limit_disconnects_its_client() {
    let mut server = start(&["--client-query-buffer-limit", "1mb"]);
    let before = server.rss();
    while_serving_a_witness(&mut server, |server| {
        for _ in 0..4 {
            let mut client = server.connect();
            client.send_raw(b"*2\r\n$4\r\nECHO\r\n$100000000\r\n").expect("connected");
            let megabyte = vec![b'x'; MIB as usize];
            let sent = (0..100).take_while(|_| client.send_raw(&megabyte).is_ok()).count();
            assert!(sent < 100, "the server must stop reading and hang up");
            assert_eq!(client.read_to_end().ok(), Some(Vec::new()), "it says nothing");
        }
    });
    assert!(server.rss() < before + 32 * MIB);
    assert_eq!(server.connect().run("PING").to_string(), "PONG");
}

#[test]
fn a_transaction_over_the_query_buffer_limit_disconnects_its_client() {
    let mut server = start(&["--client-query-buffer-limit", "1mb"]);
    let before = server.rss();
    while_serving_a_witness(&mut server, |server| {
        let mut client = server.connect();
        let set = [&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n"[..], &[b'x'; 100_000], b"\r\n"].concat();
        client.send_raw(b"MULTI\r\n").expect("connected");
        let sent = (0..1000).take_while(|_| client.send_raw(&set).is_ok()).count();
        assert!(sent < 1000, "the server must stop reading and hang up");
        wait_until("it is counted", || server.info("client_query_buffer_limit_disconnections") == "1");
    });
    assert!(server.rss() < before + 32 * MIB);
    assert_eq!(server.connect().run("EXISTS k").to_string(), ":0");
}

#[test]
fn memory_of_disconnected_clients_is_freed() {
    let mut server = start(&[]);
    let before = used_memory(&server);
    let part = [b"*2\r\n$4\r\nECHO\r\n$60000\r\n".to_vec(), vec![b'x'; 50_000]].concat();
    let clients: Vec<Client> = (0..400)
        .map(|_| {
            let mut client = server.connect();
            client.send_raw(&part).expect("connected");
            client
        })
        .collect();
    wait_until("what was sent is counted", || used_memory(&server) > before + 400 * 50_000);
    drop(clients);
    wait_until("the connections are gone", || server.info("connected_clients") == "1");
    wait_until("what they held is freed", || used_memory(&server) < before + 2 * MIB);
    server.assert_healthy();
}

/// As `ulimit -n`, for a running process.
fn limit_descriptors(server: &Server, soft: u64) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let pid = server.pid() as libc::pid_t;
    // SAFETY: the pointers are to limits that outlive the calls.
    let done = unsafe {
        libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &mut limit) == 0 && {
            let new = libc::rlimit { rlim_cur: soft, ..limit };
            libc::prlimit(pid, libc::RLIMIT_NOFILE, &new, std::ptr::null_mut()) == 0
        }
    };
    assert!(done, "{}", std::io::Error::last_os_error());
    limit
}

#[test]
fn without_free_descriptors_connections_wait_without_cost() {
    let server = start(&[]);
    let mut client = server.connect();
    assert_eq!(client.run("PING").to_string(), "PONG", "it is let in");
    let mut turns = || {
        let info = client.run("INFO stats").to_string();
        let (_, rest) = info.split_once("eventloop_cycles:").expect("it is told");
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().expect("the first part");
        digits.parse::<u64>().expect("a number")
    };
    let before = limit_descriptors(&server, 3);
    let mut waiting = server.connect();
    waiting.send_raw(b"PING\r\n").expect("the kernel takes it");
    wait_until("the log says so", || {
        server.log().contains("Accepting client connection: Too many open files")
    });
    let turns_before = turns();
    std::thread::sleep(Duration::from_secs(1));
    let turns = turns() - turns_before;
    assert!(turns < 1_000, "{turns} turns of the loop for nothing");
    limit_descriptors(&server, before.rlim_cur);
    assert_eq!(waiting.read().to_string(), "PONG");
}

/// An error is longer than its cause, and needs no password: no replies are queued for unauthenticated
/// clients.
#[test]
fn unauthenticated_clients_that_do_not_read_are_disconnected() {
    let mut server = start(&["--requirepass", "secret"]);
    let before = server.rss();
    let mut unauthenticated = non_reading_client(&server);
    let lines = b"a\n".repeat(32 * 1024);
    let sent = (0..500).take_while(|_| unauthenticated.send_raw(&lines).is_ok()).count();
    assert!(sent < 500, "all of it was taken");
    let more = server.rss().saturating_sub(before);
    assert!(more < 16 * MIB, "{} MiB", more / MIB);
    // A client that reads gets every error. A client that was authenticated may have long replies queued,
    // even after it loses its login.
    let mut patient = server.connect();
    patient.send_raw(&b"a\n".repeat(1_000)).expect("connected");
    (0..1_000).for_each(|_| assert!(patient.read().is_error()));
    let mut known = non_reading_client(&server);
    known.send_raw(b"AUTH secret\r\n").expect("connected");
    assert_eq!(known.read().to_string(), "OK");
    assert!(!known.call(&["SET", "big", &"x".repeat(1 << 20)]).is_error());
    known.send_raw(&[&b"GET big\r\n".repeat(4)[..], b"RESET\r\nGET big\r\n"].concat()).expect("connected");
    std::thread::sleep(Duration::from_millis(300));
    (0..4).for_each(|_| assert_eq!(known.read().as_bytes().map(<[u8]>::len), Some(1 << 20)));
    assert_eq!(known.read().to_string(), "RESET");
    assert_eq!(known.read().to_string(), "-NOAUTH Authentication required.");
    server.assert_healthy();
}

/// The same worker serves the witness.
#[test]
fn forty_thousand_prefixes_delay_no_client() {
    const PREFIXES: usize = 40_000;
    const KEYS: usize = 200;
    let mut server = start(&["--threads", "1"]);
    while_serving_a_witness(&mut server, |server| {
        let (mut client, mut writer) = (server.connect3(), server.connect());
        let names: Vec<String> = (0..PREFIXES).map(|at| format!("prefix:{at}:")).collect();
        let options = names.iter().flat_map(|name| ["PREFIX", name]);
        let words: Vec<&str> = ["CLIENT", "TRACKING", "ON", "BCAST"].into_iter().chain(options).collect();
        assert_eq!(client.call(&words).to_string(), "OK");
        assert_eq!(server.info("tracking_total_prefixes"), PREFIXES.to_string());
        let started = Instant::now();
        for name in &names[PREFIXES - KEYS..] {
            assert_eq!(writer.call(&["SET", &format!("{name}x"), "v"]).to_string(), "OK");
            assert_eq!(client.read().to_string(), format!(">[\"invalidate\", [\"{name}x\"]]"));
        }
        let each = started.elapsed() / KEYS as u32;
        assert!(each < Duration::from_millis(2), "a change of a key takes {each:?}");
        drop(client);
        wait_until("no prefix is left", || server.info("tracking_total_prefixes") == "0");
    });
}

/// Replies are cut with an error at the depth of Lua's stack limit, as in Redis, so clients need not parse
/// deeper replies.
#[test]
fn nested_replies_of_scripts_are_bounded() {
    let Some(oracle) = Program::oracle(Reference::Redis) else { return };
    let (mut subject, oracle) = (start(&[]), Server::start(&oracle, &[]));
    let nested = |table: &str| format!("local t = {{}} for i = 1, 100000 do t = {table} end return t");
    let tables =
        ["{t}", "{'a', t, 'b'}", "{map={a=t}}", "{map={[t]='a'}}", "{set={[t]=true}}", "{map={a={t}}}"];
    for resp in ["2", "3"] {
        for table in tables {
            let answer = |server: &Server| {
                let mut client = server.connect();
                client.call(&["HELLO", resp]);
                client.send(&["EVAL", &nested(table), "0"]).expect("it is sent");
                client.send(&["QUIT"]).expect("it is sent");
                client.read_to_end().expect("the server hangs up")
            };
            let (ours, theirs) = (answer(&subject), answer(&oracle));
            assert!(ours.windows(29).any(|text| text == b"-ERR reached lua stack limit\r"), "{table}");
            assert!(ours == theirs, "{table} in RESP{resp}: {} and {} bytes", ours.len(), theirs.len());
        }
    }
    let errors = |server: &Server| server.info("total_error_replies");
    assert_eq!(errors(&subject), errors(&oracle));
    subject.assert_healthy();
}
