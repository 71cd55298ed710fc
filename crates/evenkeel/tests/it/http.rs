//! HTTP: metrics, health checks, who may read them, and clients that mean no good.

mod client;
mod console;
mod hostile;
mod metrics;
mod page;
mod protocol;
mod recorder;
mod rest;

use std::io;
use std::time::{Duration, Instant};

use evenkeel_testkit::Server;
use evenkeel_testkit::server::free_port;

use crate::program;
use client::{Reply, get, request};

/// A server with an HTTP port on 127.0.0.1.
struct WithHttp {
    server: Server,
    port: u16,
}

#[track_caller]
fn start_http(args: &[&str]) -> WithHttp {
    let mut problem = String::new();
    for _ in 0..5 {
        let port = free_port();
        let word = port.to_string();
        match Server::try_start(&program(), &[&["--http-port", &word], args].concat()) {
            Ok(server) => return WithHttp { server, port },
            Err(why) => problem = why,
        }
    }
    panic!("no start: {problem}");
}

impl WithHttp {
    #[track_caller]
    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        get(self.port, path, headers).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn status(&self, path: &str, headers: &[(&str, &str)]) -> u16 {
        self.get(path, headers).status
    }
}

#[test]
fn health_checks_need_no_credentials() {
    let http = start_http(&["--requirepass", "secret"]);
    for path in ["/livez", "/readyz"] {
        let reply = http.get(path, &[("Host", "any.example")]);
        assert_eq!((reply.status, reply.body.as_str()), (200, "ok\n"), "{path}");
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
    assert_eq!(http.status("/", &[]), 200);
    assert_eq!(http.status("/nowhere", &[]), 401);
}

#[test]
fn a_server_that_loads_is_alive_and_not_ready() {
    let mut http = start_http(&["--enable-debug-command", "yes", "--key-load-delay", "2000"]);
    http.server.connect().run("DEBUG POPULATE 2000");
    http.server.connect().run("SAVE");
    http.server.stop();
    let port = http.port;
    let look = std::thread::spawn(move || {
        crate::wait_until("it loads", || get(port, "/readyz", &[]).is_ok_and(|reply| reply.status == 503));
        assert_eq!(get(port, "/readyz", &[]).expect("a reply").body, "loading data\n");
        assert_eq!(get(port, "/livez", &[]).expect("a reply").status, 200);
        let metrics = get(port, "/metrics", &[]).expect("a reply").body;
        assert!(metrics.contains("\nredis_loading_dump_file 1\n"), "{metrics}");
    });
    http.server.start_again();
    look.join().expect("it does not panic");
    assert_eq!(http.status("/readyz", &[]), 200);
}

#[test]
fn a_replica_with_stale_data_is_ready_only_if_it_serves_them() {
    let unused = free_port().to_string();
    let http = start_http(&["--replicaof", "127.0.0.1", &unused, "--replica-serve-stale-data", "no"]);
    let reply = http.get("/readyz", &[]);
    assert_eq!((reply.status, reply.body.as_str()), (503, "the link to the primary is down\n"));
    http.server.connect().run("CONFIG SET replica-serve-stale-data yes");
    assert_eq!(http.status("/readyz", &[]), 200);
}

#[test]
fn metrics_are_for_users_that_may_run_info() {
    let http = start_http(&["--requirepass", "secret"]);
    let mut client = http.server.connect();
    client.run("AUTH secret");
    client.run("ACL SETUSER watcher on >watch +info");
    client.run("ACL SETUSER other on >pass +get ~*");
    client.run("ACL SETUSER off off >pass +@all");
    let status = |authorization: &str| http.status("/metrics", &[("Authorization", authorization)]);
    let basic = |pair: &str| format!("Basic {}", client::base64(pair.as_bytes()));
    assert_eq!(status(&basic("watcher:watch")), 200);
    assert_eq!(status("Bearer watcher:watch"), 200);
    assert_eq!(status("Bearer secret"), 200);
    assert_eq!(status(&basic(":secret")), 200);
    assert_eq!(status(&basic("watcher:wrong")), 401);
    assert_eq!(status(&basic("nobody:watch")), 401);
    assert_eq!(status(&basic("off:pass")), 401);
    assert_eq!(status("Bearer other:pass"), 403);
    assert_eq!(status("Basic ???"), 401);
    assert_eq!(status("Digest x"), 401);
    let refused = http.get("/metrics", &[]);
    assert_eq!(refused.status, 401);
    assert!(refused.header("www-authenticate").is_some_and(|value| value.starts_with("Basic ")));
    assert!(!refused.body.contains("redis_"), "{}", refused.body);
    let log = client.run("ACL LOG").to_string();
    assert!(log.contains("nobody") && log.contains("http"), "{log}");
    assert!(!log.contains("wrong"), "no password is logged: {log}");
    client.run("ACL DELUSER watcher");
    assert_eq!(status("Bearer watcher:watch"), 401);
    client.run("CONFIG SET http-metrics-public yes");
    assert_eq!(http.status("/metrics", &[("Host", "any.example")]), 200);
}

#[test]
fn without_a_password_the_request_has_to_name_the_server() {
    let http = start_http(&["--http-hosts", "store.example"]);
    let status = |host: &str| http.status("/metrics", &[("Host", host)]);
    for host in ["127.0.0.1:8379", "localhost", "[::1]:80", "store.example:1"] {
        assert_eq!(status(host), 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8379", ""] {
        assert_eq!(status(host), 403, "{host}");
    }
}

/// The address of this machine on a network; `None` if it has none.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?; // sends nothing
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[test]
fn protected_mode_serves_this_machine_alone() {
    let Some(ip) = own_address() else { return println!("left out: the machine has no network") };
    let http = start_http(&["--http-bind", "*"]);
    let status = |path: &str| {
        let mut stream = std::net::TcpStream::connect((ip, http.port)).expect("it listens");
        let text = client::text_of(path, &[("Authorization", "Bearer any")]);
        client::exchange(&mut stream, &text).expect("a reply").status
    };
    assert_eq!(status("/livez"), 200);
    assert_eq!((status("/metrics"), status("/flushall")), (401, 401));
    http.server.connect().run("CONFIG SET protected-mode no");
    assert_eq!((status("/metrics"), status("/flushall")), (200, 200));
}

#[test]
fn the_http_port_moves_and_closes() {
    let http = start_http(&[]);
    let mut client = http.server.connect();
    let (other, taken) = (free_port(), std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port"));
    assert_eq!(client.run(&format!("CONFIG SET http-port {other}")).to_string(), "OK");
    assert_eq!(get(other, "/livez", &[]).expect("it listens").status, 200);
    crate::wait_until("the old port is closed", || get(http.port, "/livez", &[]).is_err());
    let taken = taken.local_addr().expect("an address").port();
    let refusal = client.run(&format!("CONFIG SET http-port {taken}")).to_string();
    assert!(refusal.contains("Unable to listen on this address"), "{refusal}");
    assert_eq!(get(other, "/livez", &[]).expect("it still listens").status, 200);
    assert_eq!(client.run("CONFIG SET http-port 0").to_string(), "OK");
    crate::wait_until("it is closed", || get(other, "/livez", &[]).is_err());
    assert_eq!(client.run(&format!("CONFIG SET http-port {other}")).to_string(), "OK");
    assert_eq!(get(other, "/livez", &[]).expect("it listens again").status, 200);
}

#[test]
fn a_start_on_a_port_that_is_taken_fails() {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let problem = Server::try_start(&program(), &["--http-port", &port]).err().expect("it does not start");
    assert!(problem.contains("http-port"), "{problem}");
}

/// A busy script keeps the gate closed; the metrics come without the databases meanwhile.
#[test]
fn metrics_do_not_wait_for_a_long_script() {
    let http = start_http(&["--busy-reply-threshold", "50"]);
    http.server.connect().run("SET k v");
    assert!(http.get("/metrics", &[]).body.contains("redis_db_keys{db=\"db0\"} 1\n"));
    let mut client = http.server.connect();
    client.send(&["EVAL", "while true do end", "0"]).expect("sent");
    crate::wait_until("metrics without databases", || {
        let began = Instant::now();
        let reply = http.get("/metrics", &[]);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        reply.status == 200 && !reply.body.contains("redis_db_keys{")
    });
    assert_eq!(http.server.connect().run("SCRIPT KILL").to_string(), "OK");
    client.read();
    assert!(http.get("/metrics", &[]).body.contains("redis_db_keys{db=\"db0\"} 1\n"));
}

#[test]
fn http_clients_are_no_clients_of_the_data() -> io::Result<()> {
    let http = start_http(&[]);
    let _kept = client::connect(http.port)?;
    let mut client = http.server.connect();
    // The connection that waited for the start may still be there for a moment.
    crate::wait_until("a client alone", || {
        client.run("INFO clients").to_string().contains("connected_clients:1\\r")
    });
    request(http.port, "GET /livez HTTP/1.0\r\n\r\n").map(|reply| assert_eq!(reply.status, 200))
}
