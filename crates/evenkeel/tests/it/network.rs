//! Listening addresses, accepted clients, and the ends of connections.

mod protected_mode;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Server};

use crate::{program, start, wait_until};

fn ping(client: &mut Client) -> String {
    client.run("PING").to_string()
}

#[test]
fn a_unix_socket_beside_tcp() {
    let server = start(&["--unixsocket", "{dir}/socket", "--unixsocketperm", "700"]);
    let path = server.folder().join("socket");
    let mut local = Client::connect_unix(&path).expect("it listens there");
    assert_eq!(local.run("SET k v").to_string(), "OK");
    assert_eq!(server.connect().run("GET k").to_string(), "\"v\"");
    let mode = std::fs::metadata(&path).expect("the socket is a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let mut watcher = server.connect();
    assert_eq!(watcher.run("MONITOR").to_string(), "OK");
    assert_eq!(ping(&mut local), "PONG");
    let shown = watcher.read().to_string();
    assert!(shown.contains(&format!("[0 unix:{}] ", path.display())), "{shown}");
}

#[test]
fn a_unix_socket_alone() {
    let mut server = start(&["--port", "0", "--unixsocket", "{dir}/socket"]);
    assert_eq!(ping(&mut server.connect()), "PONG");
    assert!(TcpStream::connect(server.address()).is_err(), "port 0 means no TCP");
    assert!(server.stop().success());
    server.start_again(); // over a socket file that the first run may have left
    assert_eq!(ping(&mut server.connect()), "PONG");
}

/// A refused server removes nothing, and a stopping server removes only its own socket.
#[test]
fn a_unix_socket_is_removed_only_by_its_owner() {
    let mut first = start(&["--unixsocket", "{dir}/socket", "--save", "3600 1"]);
    let path = first.folder().join("socket");
    let reaches = |server: &Server| {
        let mut client = Client::connect_unix(&path).expect("it listens there");
        client.run("INFO server").to_string().contains(&format!("process_id:{}\\r", server.pid()))
    };
    let (socket, folder) = (path.display().to_string(), first.folder().display().to_string());
    if program().reference().is_none() {
        let args = ["--unixsocket", &socket, "--save", "3600 1", "--dir", &folder];
        let log = Server::try_start(&program(), &args).err().expect("the files are taken");
        assert!(log.contains("another server uses"), "{log}");
    }
    assert!(reaches(&first));
    let second = start(&["--unixsocket", &socket]);
    assert!(reaches(&second));
    if program().reference().is_none() {
        assert!(first.stop().success());
        assert!(reaches(&second));
    }
}

#[test]
fn several_addresses() {
    let server = start(&["--bind", "127.0.0.1", "127.0.0.3", "--protected-mode", "no"]);
    for address in [[127, 0, 0, 1], [127, 0, 0, 3]] {
        let mut client =
            Client::connect(SocketAddr::from((address, server.port()))).expect("it listens there");
        assert_eq!(ping(&mut client), "PONG");
    }
    assert!(TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), server.port())).is_err());
}

#[test]
fn ipv6_is_served_if_available() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("SKIPPED: no IPv6 on this machine");
        return;
    }
    let server = start(&["--bind", "127.0.0.1", "::1"]);
    let mut client =
        Client::connect(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], server.port()))).expect("it listens");
    assert_eq!(ping(&mut client), "PONG");
    let info = client.run("CLIENT LIST").to_string();
    assert!(info.contains("addr=[::1]:"), "{info}");
}

#[test]
fn a_missing_bind_address_is_an_error_unless_optional() {
    let problem = Server::try_start(&program(), &["--bind", "127.0.0.1", "192.0.2.1"]);
    assert!(problem.is_err(), "an address that was asked for is missing");
    let server = start(&["--bind", "127.0.0.1", "-192.0.2.1"]); // an address that may be missing
    assert_eq!(ping(&mut server.connect()), "PONG");
}

#[test]
fn a_port_that_is_taken_is_an_error() {
    let server = start(&[]);
    let problem = Server::try_start(&program(), &["--port", &server.port().to_string()]);
    // Either the second process ends, or it was mistaken for ready because the first process answers on its
    // port.
    if let Ok(mut second) = problem {
        wait_until("it ends", || !second.is_alive());
        assert!(second.log().contains("in use"), "{}", second.log());
    }
}

#[test]
fn excess_clients_get_an_error_and_are_disconnected() {
    let server = start(&["--maxclients", "5", "--unixsocket", "{dir}/socket"]);
    let mut clients = vec![server.connect()];
    // The probe of the start may not be closed yet.
    wait_until("it is alone", || {
        clients[0].run("INFO clients").to_string().contains("connected_clients:1\\r")
    });
    clients.extend((1..5).map(|_| server.connect()));
    clients.iter_mut().for_each(|client| assert_eq!(ping(client), "PONG"));
    let mut refused = server.connect();
    let answer = refused.read_to_end().expect("the server hangs up");
    assert_eq!(answer, b"-ERR max number of clients reached\r\n");
    // An operator gets in over the Unix socket beyond the limit; a reference server has only its accepted
    // clients.
    let local = || Client::connect_unix(&server.folder().join("socket")).expect("it listens there");
    let mut operator = if program().reference().is_none() { local() } else { clients.remove(4) };
    assert_eq!(operator.run("CONFIG SET maxclients 7").to_string(), "OK");
    assert_eq!(ping(&mut server.connect()), "PONG");
    let stats = clients[0].run("INFO stats").to_string();
    assert!(stats.contains("rejected_connections:1\\r"), "{stats}");
    clients.truncate(1);
    let deadline = Instant::now() + Duration::from_secs(5);
    while !server.connect().try_call(&["PING"]).is_ok_and(|reply| !reply.is_error()) {
        assert!(Instant::now() < deadline, "places that were left are free again");
    }
}

#[test]
fn idle_clients_are_disconnected_and_busy_clients_are_not() {
    let server = start(&["--timeout", "1"]);
    let (mut idle, mut busy, mut monitor) = (server.connect(), server.connect(), server.connect());
    assert_eq!(monitor.run("MONITOR").to_string(), "OK");
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(2_500) {
        assert_eq!(ping(&mut busy), "PONG");
        std::thread::sleep(Duration::from_millis(100));
    }
    idle.set_reply_timeout(Duration::from_secs(3));
    assert_eq!(idle.read_to_end().expect("hung up on"), b"");
    assert_eq!(ping(&mut busy), "PONG");
    // A subscribed client sends nothing.
    busy.run("ECHO last");
    while !monitor.read().to_string().contains("last") {}
}

/// A client that was blocked, with a timeout of its own or none, was not idle.
#[test]
fn a_blocked_client_is_not_idle() {
    let server = start(&["--timeout", "3", "--threads", "1"]);
    let (mut waiter, mut other) = (server.connect(), server.connect());
    waiter.send(&["BLPOP", "queue", "0"]).expect("sent");
    for _ in 0..9 {
        std::thread::sleep(Duration::from_millis(500));
        other.run("PING");
    }
    other.run("RPUSH queue job");
    assert_eq!(waiter.read().to_string(), r#"["queue", "job"]"#);
    // The sweep over all connections takes a second.
    std::thread::sleep(Duration::from_millis(1_200));
    assert_eq!(ping(&mut waiter), "PONG");
}

#[test]
fn all_clients_of_an_address_are_killed() {
    let server = start(&["--unixsocket", "{dir}/socket"]);
    let path = server.folder().join("socket");
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect_unix(&path).expect("a connection")).collect();
    clients.iter_mut().for_each(|client| assert_eq!(ping(client), "PONG"));
    let address = format!("{}:0", path.display());
    assert_eq!(server.connect().call(&["CLIENT", "KILL", &address]).to_string(), "OK");
    clients.iter_mut().for_each(|client| assert!(client.try_call(&["PING"]).is_err(), "it is there still"));
    assert!(server.connect().call(&["CLIENT", "KILL", &address]).to_string().contains("No such client"));
}

#[test]
fn a_restart_on_the_same_port_is_immediate() {
    let mut server = start(&[]);
    for _ in 0..3 {
        let mut clients: Vec<Client> = (0..20).map(|_| server.connect()).collect();
        clients.iter_mut().for_each(|client| assert_eq!(ping(client), "PONG"));
        let status = server.stop(); // it closes first, so its side of the connections stays in the kernel
        assert!(status.success(), "SIGTERM ends with {status}");
        for mut client in clients {
            assert_eq!(client.read_to_end().expect("hung up on"), b"");
        }
        server.start_again();
        assert_eq!(ping(&mut server.connect()), "PONG");
    }
    server.assert_healthy();
}

#[test]
fn shutdown_works_in_every_way() {
    for way in ["SHUTDOWN", "SHUTDOWN NOSAVE", "SIGINT", "SIGTERM"] {
        let mut server = start(&[]);
        let mut client = server.connect();
        match way {
            "SIGINT" => server.signal(libc::SIGINT),
            "SIGTERM" => server.signal(libc::SIGTERM),
            command => client.send(&command.split(' ').collect::<Vec<_>>()).expect("connected"),
        }
        assert_eq!(client.read_to_end().expect("hung up on"), b"", "{way} is not answered");
        let deadline = Instant::now() + Duration::from_secs(10);
        while server.is_alive() {
            assert!(Instant::now() < deadline, "{way} must end the process");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(server.stop().success(), "{way} ends it cleanly");
    }
}

/// Service managers repeat their signal; a second Ctrl-C is meant as such.
#[test]
fn only_ctrl_c_cuts_a_long_shutdown_short() {
    for (again, ends_well) in [(libc::SIGTERM, true), (libc::SIGINT, false)] {
        let mut server = start(&["--save", "3600 1", "--rdb-key-save-delay", "10000"]);
        let mut client = server.connect();
        for key in 0..150 {
            assert_eq!(client.run(&format!("SET key:{key} v")).to_string(), "OK");
        }
        server.signal(libc::SIGTERM);
        std::thread::sleep(Duration::from_millis(300));
        server.signal(again);
        let asked = Instant::now();
        while server.is_alive() {
            assert!(asked.elapsed() < Duration::from_secs(20), "it ends");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(server.stop().success(), ends_well, "{}", server.log());
        assert_eq!(server.folder().join("dump.rdb").exists(), ends_well);
        assert_eq!(server.log().contains("You insist... exiting now."), !ends_well);
        let names = std::fs::read_dir(server.folder()).expect("it is there").flatten();
        let temporary = |name: &std::ffi::OsString| name.display().to_string().starts_with("temp-");
        assert!(!names.map(|entry| entry.file_name()).any(|name| temporary(&name)));
    }
}

/// An option that cannot be set on a connection is no reason to refuse it.
#[test]
fn any_keepalive_setting_accepts_clients() {
    let server = start(&["--tcp-keepalive", "40000"]);
    let mut client = server.connect();
    for seconds in ["1", "32767", "32768", "2147483647", "0"] {
        assert_eq!(client.run(&format!("CONFIG SET tcp-keepalive {seconds}")).to_string(), "OK");
        for _ in 0..5 {
            assert_eq!(ping(&mut server.connect()), "PONG", "{seconds}");
        }
    }
}

#[test]
fn a_thousand_connections_at_once() {
    let server = start(&[]);
    let mut clients: Vec<Client> = (0..1_000).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send(&["PING"]).expect("connected");
    }
    for client in &mut clients {
        assert_eq!(client.read().to_string(), "PONG");
    }
    assert_eq!(clients[0].run("INFO clients").to_string().matches("connected_clients:1000\\r").count(), 1);
}

#[test]
fn requests_before_the_end_of_a_connection_are_answered() {
    let server = start(&[]);
    let mut quitter = server.connect();
    quitter.send_raw(b"PING\r\nQUIT\r\nPING\r\n").expect("connected");
    assert_eq!(quitter.read_to_end().expect("hung up on"), b"+PONG\r\n+OK\r\n");
    let mut leaver = server.connect();
    leaver.send_raw(&b"PING\r\n".repeat(1_000)).and_then(|()| leaver.finish_sending()).expect("connected");
    assert_eq!(leaver.read_to_end().expect("hung up on"), b"+PONG\r\n".repeat(1_000));
}

#[test]
fn a_pipeline_in_pieces_is_answered_in_order() {
    let server = start(&[]);
    let (mut client, mut writer) = (server.connect(), server.connect());
    let requests: String =
        (0..20_000).map(|i| format!("ECHO {i}\r\n*2\r\n$4\r\nECHO\r\n$1\r\n{}\r\n", i % 10)).collect();
    for piece in requests.as_bytes().chunks(777) {
        writer.send_raw(piece).expect("connected");
    }
    for i in 0..20_000 {
        assert_eq!(writer.read().to_string(), format!("\"{i}\""));
        assert_eq!(writer.read().to_string(), format!("\"{}\"", i % 10));
    }
    assert!(writer.unread().is_empty());
    assert_eq!(ping(&mut client), "PONG");
}

#[test]
fn large_values_arrive_whole_in_both_directions() {
    let server = start(&[]);
    let mut client = server.connect();
    let large: Vec<u8> = (0..64u32 << 20).map(|i| (i / 1_000) as u8).collect();
    assert_eq!(client.call(&[b"SET", &b"large"[..], &large]).to_string(), "OK");
    // A write to the value must not show in a reply that is being sent.
    client
        .send_raw(b"GET large\r\nSETRANGE large 60000000 overwritten\r\nSTRLEN large\r\n")
        .expect("connected");
    std::thread::sleep(Duration::from_millis(50));
    assert!(client.read().as_bytes() == Some(&large[..]), "the value as it was when it was asked for");
    assert_eq!(client.read().to_string(), format!(":{}", large.len()));
    assert_eq!(client.read().to_string(), format!(":{}", large.len()));
}
