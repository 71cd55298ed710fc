//! The protocol: kept connections, HEAD, TLS, HTTP/2.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::ClientConfig;

use super::client::{connect, exchange, request, text_of};
use super::{WithHttp, start_http};
use crate::tls::certs::Certs;
use crate::tls::{TlsStream, tls_stream};

#[test]
fn a_connection_serves_several_requests() {
    let http = start_http(&[]);
    let mut stream = connect(http.port).expect("accepted");
    let one = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.write_all(one.repeat(3).as_bytes()).expect("sent");
    let reply = exchange(&mut stream, &text_of("/readyz", &[])).expect("replies");
    assert_eq!(reply.body.matches("HTTP/1.1 200 OK").count(), 3, "{}", reply.body);
}

#[test]
fn head_has_the_headers_of_get() {
    let http = start_http(&[]);
    let reply =
        request(http.port, "HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a reply");
    assert_eq!((reply.status, reply.body.as_str()), (200, ""));
    assert_eq!(reply.header("content-length"), Some("3"));
}

/// With prior knowledge, a client of HTTP/2 gets its SETTINGS frame at once.
#[test]
fn http_2_is_spoken_without_tls() {
    let http = start_http(&[]);
    let mut stream = connect(http.port).expect("accepted");
    h2_settings(&mut stream);
}

/// Sends the preface of HTTP/2 and an empty SETTINGS frame, and expects a SETTINGS frame.
fn h2_settings(stream: &mut (impl Read + Write)) {
    const SETTINGS: u8 = 4;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("sent");
    let mut head = [0; 9];
    stream.read_exact(&mut head).expect("a frame");
    assert_eq!(head[3], SETTINGS, "{head:?}");
}

fn start_https(certs: &Certs, args: &[&str]) -> WithHttp {
    let of_tls = certs.arguments();
    let mut all: Vec<&str> = of_tls.iter().map(String::as_str).collect();
    all.extend(["--http-tls", "yes"].iter().chain(args));
    start_http(&all)
}

fn through_tls(http: &WithHttp, config: Arc<ClientConfig>) -> std::io::Result<TlsStream> {
    tls_stream(connect(http.port)?, config)
}

#[test]
fn tls_follows_the_rules_for_clients() {
    let certs = Certs::new();
    let http = start_https(&certs, &[]);
    let read = |name: &str| {
        let mut stream = through_tls(&http, certs.client(name))?;
        exchange(&mut stream, &text_of("/livez", &[]))
    };
    assert_eq!(read("client").expect("a certificate of the authority").status, 200);
    for name in ["", "stranger", "expired"] {
        assert!(read(name).is_err(), "{name}");
    }
    assert!(request(http.port, &text_of("/livez", &[])).is_err(), "without TLS");
    http.server.connect().run("CONFIG SET tls-auth-clients no");
    assert_eq!(read("").expect("certificates are optional").status, 200);
    assert!(http.server.connect().run("PING").to_string() == "PONG", "the plain port is still plain");
}

#[test]
fn http_2_is_chosen_in_the_tls_handshake() {
    let certs = Certs::new();
    let http = start_https(&certs, &["--tls-auth-clients", "no"]);
    let with_protocols = |protocols: &[&[u8]]| {
        let mut config = ClientConfig::clone(&certs.client(""));
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        through_tls(&http, Arc::new(config)).expect("a handshake")
    };
    h2_settings(&mut with_protocols(&[b"h2", b"http/1.1"]));
    let mut old = with_protocols(&[b"http/1.1"]);
    assert_eq!(exchange(&mut old, &text_of("/livez", &[])).expect("a reply").status, 200);
}

#[test]
fn http_tls_may_be_turned_on_and_off() {
    let certs = Certs::new();
    let of_tls = certs.arguments();
    let args: Vec<&str> = of_tls.iter().map(String::as_str).chain(["--tls-auth-clients", "no"]).collect();
    let http = start_http(&args);
    let mut client = http.server.connect();
    let plain = || request(http.port, &text_of("/livez", &[]));
    let secure = || exchange(&mut through_tls(&http, certs.client(""))?, &text_of("/livez", &[]));
    assert!(plain().is_ok() && secure().is_err());
    assert_eq!(client.run("CONFIG SET http-tls yes").to_string(), "OK");
    crate::wait_until("TLS is on", || secure().is_ok());
    assert!(plain().is_err());
    assert_eq!(client.run("CONFIG SET http-tls no").to_string(), "OK");
    crate::wait_until("TLS is off", || plain().is_ok());
}
