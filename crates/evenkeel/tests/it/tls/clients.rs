//! Accepted and refused clients; an accepted client can do everything that a plain client can.

use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testkit::Client;
use evenkeel_testkit::differential::{Plan, compare};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Program, Reference, Server};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, HandshakeKind};

use super::certs::Certs;
use super::{start_secure, start_secure_as};
use crate::{program, start};

#[test]
fn certificates_decide_over_access() {
    let certs = Certs::new();
    let certificates = ["", "client", "expired", "stranger", "alone"];
    let references = [Some(program()), Program::oracle(Reference::Redis)];
    for program in references.into_iter().flatten() {
        let secure = start_secure_as(&program, &certs, &[]);
        for (mode, welcome) in
            [("no", &certificates[..]), ("optional", &["", "client"]), ("yes", &["client"])]
        {
            let reply = secure.server.connect().run(&format!("CONFIG SET tls-auth-clients {mode}"));
            assert_eq!(reply.to_string(), "OK");
            for name in certificates {
                for version in [&TLS12, &TLS13] {
                    let result = secure.accepts(certs.client_with(name, &[version]));
                    assert_eq!(
                        result.is_ok(),
                        welcome.contains(&name),
                        "{mode} {name} {version:?}: {result:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_server_presents_its_certificate() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &[]);
    let tls_stream = secure.tls_stream(certs.client("client")).expect("let in");
    let shown = tls_stream.stream.conn.peer_certificates().expect("the server's");
    assert_eq!(shown[0], super::certs::certificate(&certs.path("server.crt")));
    let info = secure.connect(&certs).run("INFO server").to_string();
    assert!(info.contains(&format!("name=tls,bind=127.0.0.1,port={}", secure.port)), "{info}");
    let list = secure.connect(&certs).run("CLIENT LIST").to_string();
    assert!(list.contains(&format!("laddr=127.0.0.1:{}", secure.port)), "{list}");
    let memory = |mut client: Client| {
        let info = client.run("CLIENT INFO").to_string();
        let size =
            info.split("tot-mem=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
        size.expect("a field")
    };
    assert!(memory(secure.connect(&certs)) > memory(secure.server.connect()) + 4096, "it takes more");
}

#[test]
fn versions_and_ciphers_follow_the_settings() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &[]);
    let mut plain = secure.server.connect();
    let mut set =
        |words: &str| assert_eq!(plain.run(&format!("CONFIG SET {words}")).to_string(), "OK", "{words}");
    let suite = |versions: &[&'static rustls::SupportedProtocolVersion]| {
        let tls_stream = secure.tls_stream(certs.client_with("client", versions)).ok()?;
        tls_stream.stream.conn.negotiated_cipher_suite().map(|suite| suite.suite())
    };
    set("tls-protocols TLSv1.2");
    assert!(suite(&[&TLS13]).is_none() && suite(&[&TLS12]).is_some());
    set("tls-protocols \"TLSv1.3\"");
    assert!(suite(&[&TLS13]).is_some() && suite(&[&TLS12]).is_none());
    set("tls-protocols \"TLSv1.2 TLSv1.3\" tls-ciphers ECDHE-ECDSA-CHACHA20-POLY1305 \
         tls-ciphersuites TLS_AES_128_GCM_SHA256");
    assert_eq!(suite(&[&TLS12]), Some(CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256));
    assert_eq!(suite(&[&TLS13]), Some(CipherSuite::TLS13_AES_128_GCM_SHA256));
    // The server's order counts: rustls' clients prefer 256 bits.
    set("tls-ciphersuites TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384");
    assert_eq!(suite(&[&TLS13]), Some(CipherSuite::TLS13_AES_256_GCM_SHA384));
    set("tls-prefer-server-ciphers yes");
    assert_eq!(suite(&[&TLS13]), Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256));
}

#[test]
fn sessions_are_resumed_if_allowed() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &["--tls-session-cache-timeout", "2"]);
    for version in [&TLS12, &TLS13] {
        let config = certs.client_with("client", &[version]);
        let kind = || {
            let mut tls_stream = secure.tls_stream(config.clone()).expect("let in");
            let kind = tls_stream.stream.conn.handshake_kind().expect("it is finished");
            // Tickets arrive after the handshake.
            evenkeel_testkit::client::Transport::finish_sending(&mut tls_stream).expect("sent");
            let _ = Client::through(tls_stream).read_to_end();
            kind
        };
        assert_eq!((kind(), kind()), (HandshakeKind::Full, HandshakeKind::Resumed), "{version:?}");
        std::thread::sleep(Duration::from_millis(2_500));
        assert_eq!(kind(), HandshakeKind::Full, "tls-session-cache-timeout");
        // A ticket of other settings is not accepted.
        secure.server.connect().run("CONFIG SET tls-session-cache-size 100");
        assert_eq!((kind(), kind()), (HandshakeKind::Full, HandshakeKind::Resumed), "{version:?}");
        secure.server.connect().run("CONFIG SET tls-session-caching no");
        assert_eq!((kind(), kind()), (HandshakeKind::Full, HandshakeKind::Full), "{version:?}");
        secure.server.connect().run("CONFIG SET tls-session-caching yes");
    }
}

#[test]
fn large_values_pass_in_both_directions() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &[]);
    let mut client = secure.connect(&certs);
    let value: Vec<u8> = (0..64_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert_eq!(client.call(&[b"SET", &b"k"[..], &value]).to_string(), "OK");
    let reply = client.call(&["GET", "k"]);
    assert!(reply.as_bytes() == Some(&value[..]), "64 MB come back as they were");
    // Many small replies are cut into records anywhere.
    let commands = vec![vec!["GETRANGE", "k", "0", "1000"]; 20_000];
    assert!(client.pipeline(&commands).iter().all(|reply| reply.as_bytes() == Some(&value[..=1000])));
}

#[test]
fn messages_arrive_and_blocked_clients_are_served() {
    let certs = Certs::new();
    let mut secure = start_secure(&certs, &[]);
    let (mut listener, mut waiter, mut other) =
        (secure.connect(&certs), secure.connect(&certs), secure.connect(&certs));
    listener.run("SUBSCRIBE channel");
    let wait = Instant::now();
    assert_eq!(waiter.run("BLPOP nosuch 0.1").to_string(), "(nil array)");
    assert!(wait.elapsed() >= Duration::from_millis(100));
    let text = "x".repeat(100_000);
    for round in 0..20 {
        // The request behind a blocked command comes in the same record, and runs after the command has
        // ended.
        waiter
            .send_raw(b"*3\r\n$5\r\nBLPOP\r\n$4\r\nlist\r\n$1\r\n0\r\n*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n")
            .expect("sent");
        assert_eq!(other.call(&["PUBLISH", "channel", &text]).as_int(), Some(1));
        assert_eq!(other.run(&format!("RPUSH list {round}")).as_int(), Some(1));
        assert_eq!(waiter.read().to_string(), format!("[\"list\", \"{round}\"]"));
        assert_eq!(waiter.read().to_string(), "\"hi\"");
    }
    for _ in 0..20 {
        assert!(listener.read().to_string().contains(&text));
    }
    secure.server.assert_healthy();
}

#[test]
fn a_client_that_closes_gets_its_replies_and_a_close_notify() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &[]);
    for version in [&TLS12, &TLS13] {
        let tls_stream = secure.tls_stream(certs.client_with("client", &[version])).expect("let in");
        let mut client = Client::through(tls_stream);
        client.send_raw(b"PING\r\nECHO last\r\n").expect("sent");
        client.finish_sending().expect("sent");
        // Without the server's close notification this would be an error.
        assert_eq!(client.read_to_end().expect("an orderly end"), b"+PONG\r\n$4\r\nlast\r\n");
        let mut client = secure.connect(&certs);
        assert_eq!(client.run("QUIT").to_string(), "OK");
        assert_eq!(client.read_to_end().expect("an orderly end"), b"");
    }
}

#[test]
fn a_client_that_does_not_read_is_bounded() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &["--client-output-buffer-limit", "normal 4mb 0 0"]);
    let mut client = secure.connect(&certs);
    client.call(&[b"SET", &b"k"[..], &vec![b'v'; 1 << 20]]);
    let mut other = secure.server.connect();
    let before = other.run("INFO stats").to_string();
    assert!(before.contains("client_output_buffer_limit_disconnections:0"), "{before}");
    // Each reply fits; the bytes that the sockets do not take count.
    let _ = client.send_raw(&b"GET k\r\n".repeat(200));
    let until = Instant::now() + super::TIMEOUT;
    while !other.run("INFO stats").to_string().contains("client_output_buffer_limit_disconnections:1") {
        assert!(Instant::now() < until, "it is closed");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn maxclients_applies_to_tls() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &["--maxclients", "3"]);
    let mut clients: Vec<_> = (0..3).map(|_| secure.connect(&certs)).collect();
    assert!(secure.accepts(certs.client("client")).is_err());
    let stats = clients[0].run("INFO stats").to_string();
    assert!(stats.contains("rejected_connections:1\\r"), "{stats}");
    // A client in the middle of its handshake counts.
    clients.truncate(1);
    let until = Instant::now() + super::TIMEOUT;
    let mut wait_for = |count: &str| {
        while !clients[0].run("INFO clients").to_string().contains(&format!("connected_clients:{count}\\r")) {
            assert!(Instant::now() < until, "there are never {count}");
        }
    };
    wait_for("1"); // else closed clients might be taken for new clients
    let silent: Vec<_> =
        (0..2).map(|_| std::net::TcpStream::connect(secure.address()).expect("accepted")).collect();
    wait_for("3");
    assert!(secure.accepts(certs.client("client")).is_err());
    drop(silent);
    while secure.accepts(certs.client("client")).is_err() {
        assert!(Instant::now() < until, "places that were left are free again");
    }
}

#[test]
fn tls_without_a_plain_port() {
    let certs = Certs::new();
    let port = evenkeel_testkit::server::free_port();
    let words = [certs.arguments(), vec!["--tls-port".into(), port.to_string()]].concat();
    let args: Vec<&str> = ["--port", "0", "--unixsocket", "{dir}/socket"].into_iter().collect();
    let args: Vec<&str> = args.into_iter().chain(words.iter().map(String::as_str)).collect();
    let server = start(&args);
    let secure = super::Secure { server, port };
    let mut client = secure.connect(&certs);
    let info = client.run("INFO server").to_string();
    assert!(info.contains(&format!("tcp_port:{port}\\r")), "{info}");
    // And back.
    let plain = evenkeel_testkit::server::free_port();
    assert_eq!(client.run(&format!("CONFIG SET port {plain} tls-port 0")).to_string(), "OK");
    assert_eq!(client.run("PING").to_string(), "PONG", "who is connected stays");
    assert!(secure.accepts(certs.client("client")).is_err());
    let mut other = Client::connect(([127, 0, 0, 1], plain).into()).expect("it listens");
    assert_eq!(other.run(&format!("CONFIG SET tls-port {port}")).to_string(), "OK");
    assert_eq!(secure.accepts(certs.client("client")), Ok(()));
    let refused = other.run(&format!("CONFIG SET tls-port {plain}")).to_string();
    assert_eq!(
        refused,
        "-ERR CONFIG SET failed (possibly related to argument 'tls-port') - Unable to listen on this port. \
         Check server logs."
    );
    assert_eq!(secure.accepts(certs.client("client")), Ok(()));
}

#[test]
fn redis_cli_connects() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &[]);
    let run = |args: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &secure.port.to_string(), "--tls"]);
        let output = command.args(["--cacert", &certs.word("ca.crt")]).args(args).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).ok()
    };
    let (cert, key) = (certs.word("client.crt"), certs.word("client.key"));
    let Some(answer) = run(&["--cert", &cert, "--key", &key, "SET", "k", "from redis-cli"]) else {
        eprintln!("SKIPPED: no redis-cli on this machine");
        return;
    };
    assert_eq!(answer, "OK\n");
    assert_eq!(secure.connect(&certs).run("GET k").to_string(), "\"from redis-cli\"");
    assert!(!run(&["PING"]).expect("it ran before").contains("PONG"), "without a certificate");
}

#[test]
fn python_connects() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &[]);
    let script = "\
import socket, ssl, sys
folder, port = sys.argv[1], int(sys.argv[2])
for version in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
    context = ssl.create_default_context(cafile=folder + '/ca.crt')
    context.load_cert_chain(folder + '/client.crt', folder + '/client.key')
    context.minimum_version = context.maximum_version = version
    session = None
    for round in range(2):
        with socket.create_connection(('127.0.0.1', port)) as plain:
            with context.wrap_socket(plain, server_hostname='localhost', session=session) as secure:
                secure.sendall(b'PING\\r\\n' * 1000)
                got = b''
                while len(got) < 7000:
                    got += secure.recv(65536)
                assert got == b'+PONG\\r\\n' * 1000
                assert secure.session_reused == (round == 1), (version, round)
                session = secure.session
                secure.unwrap()
print('fine')
";
    let folder = certs.path("");
    let output =
        Command::new("python3").arg("-c").arg(script).arg(folder).arg(secure.port.to_string()).output();
    let Ok(output) = output else {
        eprintln!("SKIPPED: no python3 on this machine");
        return;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "fine\n", "{errors}");
}

#[test]
fn random_commands_are_answered_as_without_tls() {
    let certs = std::sync::Arc::new(Certs::new());
    let super::Secure { server: mut subject, port } = start_secure(&certs, &[]);
    let config = certs.client("client");
    subject.connect_by(move || {
        let socket = std::net::TcpStream::connect(("127.0.0.1", port))?;
        Ok(Client::through(super::tls_stream(socket, config.clone())?))
    });
    let plain: Server = start(&[]);
    let plan = Plan { seed: fresh_seed(), commands: 15_000, oracle: Reference::Valkey, except: &[] };
    match compare(&subject, &plain, plan) {
        Ok(summary) => println!("{summary}"),
        Err(finding) => panic!("{finding}"),
    }
    subject.assert_healthy();
}
