//! The user of a client's certificate, and an operator's information on certificates.

use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use evenkeel_testkit::Client;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind};

use super::certs::Certs;
use super::{Secure, start_secure};
use crate::start;

#[track_caller]
fn ok(client: &mut Client, line: &str) {
    assert_eq!(client.run(line).to_string(), "OK", "{line}");
}

fn user_of(secure: &Secure, config: std::sync::Arc<ClientConfig>) -> String {
    let tls_stream = secure.tls_stream(config).expect("the server lets it in");
    Client::through(tls_stream).run("ACL WHOAMI").to_string()
}

/// The value of a field in a section of INFO.
#[track_caller]
fn field(client: &mut Client, section: &str, name: &str) -> String {
    let info = client.run(&format!("INFO {section}"));
    let info = String::from_utf8_lossy(info.as_bytes().expect("a text")).into_owned();
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("{name} is not in {info}")).to_owned()
}

#[test]
fn the_common_name_selects_the_user() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &["--requirepass", "secret"]);
    let mut operator = secure.server.connect();
    ok(&mut operator, "AUTH secret");
    let refused = "-NOAUTH Authentication required.";
    // Without the setting, certificates do not select a user.
    ok(&mut operator, "ACL SETUSER client on +@all -get ~a*");
    assert_eq!(user_of(&secure, certs.client("client")), refused);
    ok(&mut operator, "CONFIG SET tls-auth-clients-user cn");
    assert_eq!(
        operator.run("CONFIG GET tls-auth-clients-user").to_string(),
        r#"["tls-auth-clients-user", "CN"]"#
    );
    assert_eq!(operator.run("ACL LOG").to_string(), "[]");
    for version in [&TLS12, &TLS13] {
        let config = certs.client_with("client", &[version]);
        let kind = |expected: HandshakeKind| {
            let tls_stream = secure.tls_stream(config.clone()).expect("let in");
            assert_eq!(tls_stream.stream.conn.handshake_kind(), Some(expected), "{version:?}");
            let mut client = Client::through(tls_stream);
            assert_eq!(client.run("ACL WHOAMI").to_string(), "\"client\"", "{version:?}");
            client.finish_sending().expect("sent");
            let _ = client.read_to_end(); // tickets arrive after the handshake
        };
        kind(HandshakeKind::Full);
        kind(HandshakeKind::Resumed);
    }
    // It is a user like any other.
    let mut client = secure.connect(&certs);
    ok(&mut client, "SET a1 x");
    let no = client.run("GET a1").to_string();
    assert_eq!(no, "-NOPERM User client has no permissions to run the 'get' command");
    assert!(operator.run("CLIENT LIST").to_string().contains("user=client"));
    assert_eq!(client.run("RESET").to_string(), "RESET");
    assert_eq!(client.run("PING").to_string(), refused, "RESET makes it the default user");
    let mut client = secure.connect(&certs);
    assert_eq!(client.run("PING").to_string(), "PONG");
    assert_eq!(operator.run("ACL DELUSER client").to_string(), ":1");
    assert!(client.try_call(&["PING"]).is_err(), "its user was deleted");
}

#[test]
fn an_unknown_name_stays_the_default_user() {
    let certs = Certs::new();
    let args = ["--tls-auth-clients-user", "CN", "--tls-auth-clients", "optional", "--loglevel", "verbose"];
    let secure = start_secure(&certs, &args);
    let mut operator = secure.server.connect();
    let denied = "acl_access_denied_tls_cert";
    assert_eq!(user_of(&secure, certs.client("")), "\"default\"");
    assert_eq!(field(&mut operator, "stats", denied), "0", "who shows nothing claims nothing");
    for round in 1..=2 {
        assert_eq!(user_of(&secure, certs.client("client")), "\"default\"");
        assert_eq!(field(&mut operator, "stats", denied), round.to_string());
        let log = operator.run("ACL LOG").to_string();
        let entry = r#""reason", "tls-cert", "context", "toplevel", "object", "", "username", "client""#;
        assert!(log.contains(entry), "{log}");
        // The second time the user exists, but is off.
        ok(&mut operator, "ACL LOG RESET");
        ok(&mut operator, "ACL SETUSER client off nopass +@all allkeys");
    }
    ok(&mut operator, "ACL SETUSER client on");
    assert_eq!(user_of(&secure, certs.client("client")), "\"client\"");
    ok(&mut operator, "CONFIG SET tls-auth-clients no");
    assert_eq!(user_of(&secure, certs.client("client")), "\"default\"", "no certificate is asked for");
    assert_eq!(operator.run("ACL LOG").to_string(), "[]");
}

#[test]
fn the_first_uri_of_a_user_selects_it() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &["--tls-auth-clients-user", "URI"]);
    let mut operator = secure.server.connect();
    let mut expect = |change: &str, name: &str| {
        ok(&mut operator, change);
        assert_eq!(user_of(&secure, certs.client("named")), format!("\"{name}\""), "after {change}");
    };
    expect("ACL SETUSER named on +@all", "default");
    expect("ACL SETUSER urn:user:second on +@all", "urn:user:second");
    expect("ACL SETUSER urn:user:first on +@all", "urn:user:first");
    expect("ACL SETUSER urn:user:first off", "urn:user:second");
    expect("ACL SETUSER urn:user:second off", "default");
    expect("CONFIG SET tls-auth-clients-user CN", "named");
    expect("CONFIG SET tls-auth-clients-user off", "default");
    // The last name tried.
    let log = operator.run("ACL LOG").to_string();
    assert!(log.contains(r#""username", "urn:user:second""#), "{log}");
    // A certificate without URIs selects no user.
    ok(&mut operator, "ACL LOG RESET");
    ok(&mut operator, "CONFIG SET tls-auth-clients-user URI");
    assert_eq!(user_of(&secure, certs.client("client")), "\"default\"");
    assert_eq!(operator.run("ACL LOG").to_string(), "[]");
}

#[test]
fn a_replicas_certificate_selects_its_user() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &["--tls-auth-clients-user", "CN", "--requirepass", "secret"]);
    let mut operator = secure.server.connect();
    ok(&mut operator, "AUTH secret");
    ok(&mut operator, "ACL SETUSER client on +psync +replconf +ping");
    let (cert, key) = (certs.word("client.crt"), certs.word("client.key"));
    let replica = start_secure(
        &certs,
        &["--tls-replication", "yes", "--tls-client-cert-file", &cert, "--tls-client-key-file", &key],
    );
    let mut other = replica.server.connect();
    ok(&mut other, &format!("REPLICAOF 127.0.0.1 {}", secure.port));
    ok(&mut operator, "SET k v");
    let until = std::time::Instant::now() + super::TIMEOUT;
    while other.run("GET k").to_string() != "\"v\"" {
        assert!(std::time::Instant::now() < until, "it follows");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(operator.run("CLIENT LIST").to_string().contains("user=client"));
}

#[test]
fn certificate_expiry_is_reported() {
    let certs = Certs::new();
    let names = ["server", "client", "ca"];
    let of = |client: &mut Client, name: &str| {
        let number = field(client, "tls", &format!("tls_{name}_cert_serial"));
        (number, field(client, "tls", &format!("tls_{name}_cert_expires_in_seconds")))
    };
    let plain = start(&[]);
    for name in names {
        assert_eq!(of(&mut plain.connect(), name), ("none".into(), "0".into()), "nothing is encrypted");
    }
    let (cert, key) = (certs.word("other.crt"), certs.word("other.key"));
    let secure = start_secure(&certs, &[]);
    let mut operator = secure.server.connect();
    assert_eq!(of(&mut operator, "client").0, "none", "there is none of its own");
    ok(&mut operator, &format!("CONFIG SET tls-client-cert-file {cert} tls-client-key-file {key}"));
    let default = operator.run("INFO").to_string();
    assert!(!default.contains("tls_server_cert"), "only for those who ask");
    for (name, file) in names.into_iter().zip(["server.crt", "other.crt", "ca.crt"]) {
        let (serial, left_s) = of(&mut operator, name);
        let Some((number, end_s)) = openssl_fields(&certs.word(file)) else {
            eprintln!("SKIPPED: no openssl on this machine");
            return;
        };
        assert_eq!(serial, number, "{name}");
        let now_s = UNIX_EPOCH.elapsed().expect("after 1970").as_secs() as i64;
        let left_s: i64 = left_s.parse().expect("a number");
        assert!((left_s - (end_s - now_s)).abs() <= 20, "{name}: {left_s} s left");
    }
    // Of a folder of authorities, the earliest expiry counts; an expired authority has ended already.
    let folder = certs.path("authorities");
    std::fs::create_dir(&folder).expect("it can be made");
    for name in ["ca.crt", "expired.crt"] {
        std::fs::copy(certs.path(name), folder.join(name)).expect("copied");
    }
    ok(&mut operator, &format!("CONFIG SET tls-ca-cert-dir {}", folder.display()));
    let (serial, left_s) = of(&mut operator, "ca");
    assert_eq!(Some(serial), openssl_fields(&certs.word("expired.crt")).map(|(number, _)| number));
    assert!(left_s.starts_with('-'), "{left_s}");
}

/// A certificate's number and expiry; `None` if openssl is not installed.
fn openssl_fields(path: &str) -> Option<(String, i64)> {
    let mut command = Command::new("openssl");
    let output = command.args(["x509", "-noout", "-serial", "-enddate", "-dateopt", "iso_8601", "-in", path]);
    let output = output.output().ok()?;
    let text = String::from_utf8(output.stdout).expect("text");
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let date = Command::new("date").args(["-u", "+%s", "-d", value("notAfter=")?]).output().ok()?;
    let seconds = String::from_utf8(date.stdout).expect("text").trim().parse().expect("a number");
    Some((value("serial=")?.to_owned(), seconds))
}
