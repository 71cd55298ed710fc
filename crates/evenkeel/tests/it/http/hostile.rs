//! Clients that send nothing, little, too much, or rubbish.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use evenkeel_testkit::random::{Random, fresh_seed};

use super::client::{connect, request, text_of};
use super::start_http;

#[test]
fn idle_connections_keep_nobody_out() {
    let http = start_http(&["--http-max-connections", "50"]);
    let mut idle: Vec<_> = (0..400).map(|_| connect(http.port).expect("accepted")).collect();
    // Half of them have begun a request, and go on a byte at a time.
    idle.iter_mut().step_by(2).for_each(|stream| _ = stream.write_all(b"GET /livez HT"));
    for _ in 0..20 {
        assert_eq!(http.status("/metrics", &[]), 200);
        idle.iter_mut().step_by(2).for_each(|stream| _ = stream.write_all(b"T"));
    }
    let mut client = http.server.connect();
    assert_eq!(client.run("PING").to_string(), "PONG");
    let descriptors =
        std::fs::read_dir(format!("/proc/{}/fd", http.server.pid())).expect("a process").count();
    assert!(descriptors < 150, "{descriptors}");
}

#[test]
fn a_silent_connection_ends_after_ten_seconds() {
    let http = start_http(&[]);
    let (mut silent, began) = (connect(http.port).expect("accepted"), Instant::now());
    assert_eq!(silent.read(&mut [0; 9]).expect("it is closed"), 0);
    assert!(began.elapsed() > Duration::from_secs(8), "{:?}", began.elapsed());
}

#[test]
fn malformed_requests_are_refused() {
    let http = start_http(&[]);
    let long = "x".repeat(100_000);
    for (bytes, statuses) in [
        ("rubbish\r\n\r\n".to_owned(), [400, 400]),
        ("GET /metrics HTTP/3.7\r\nHost: x\r\n\r\n".to_owned(), [400, 505]),
        (text_of("/livez", &[("X", &long)]), [431, 431]),
        (text_of(&format!("/{long}"), &[]), [414, 431]),
        (text_of("/livez", &[("Content-Length", "5"), ("Content-Length", "6")]), [400, 400]),
        (text_of("/livez", &[("Content-Length", "-1")]), [400, 400]),
        (text_of("/livez", &[("Bad Name", "x")]), [400, 400]),
        (text_of("/../../etc/passwd", &[]), [401, 401]),
        (text_of("/metrics/../livez", &[]), [401, 401]),
        (text_of("/%6civez", &[]), [401, 401]),
        (text_of("//livez", &[]), [401, 401]),
        ("DELETE /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned(), [405, 405]),
        (
            "POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned(),
            [405, 405],
        ),
    ] {
        let shown: String = bytes.chars().take(60).collect();
        let reply = request(http.port, &bytes).unwrap_or_else(|error| panic!("{shown:?}: {error}"));
        assert!(statuses.contains(&reply.status), "{shown:?}: {}", reply.status);
        assert!(!reply.body.contains("root:"), "{shown:?}");
    }
    assert_eq!(http.status("/livez", &[]), 200);
}

#[test]
fn a_gigantic_body_is_not_read() {
    let http = start_http(&[]);
    let mut stream = connect(http.port).expect("accepted");
    let head = "POST /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1073741824\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    let before = http.server.rss();
    let block = vec![b'x'; 1 << 20];
    // The server replies and closes.
    let sent = (0..1024).take_while(|_| stream.write_all(&block).is_ok()).count();
    assert!(sent < 1024, "{sent} MiB were read");
    assert!(http.server.rss() < before + (16 << 20));
    assert_eq!(http.status("/livez", &[]), 200);
}

#[test]
fn random_bytes_harm_nobody() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let (http, mut random) = (start_http(&[]), Random::new(seed));
    let pieces: [&[u8]; 10] = [
        b"GET /metrics HTTP/1.1\r\n",
        b"Host: 127.0.0.1\r\n",
        b"Authorization: Basic ",
        b"Authorization: Bearer \xff:\xfe\r\n",
        b"Accept: application/openmetrics-text;q=0.9,,;q=\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n",
        b"\0\0\x0c\x04\0\0\0\0\0",
        b"0\r\n\r\n",
    ];
    for _ in 0..300 {
        let mut bytes = Vec::new();
        for _ in 0..1 + random.below(8) {
            match random.below(3) {
                0 => bytes.extend((0..random.below(20)).map(|_| random.draw() as u8)),
                _ => bytes.extend(pieces[random.below(pieces.len())]),
            }
        }
        let mut stream = connect(http.port).expect("accepted");
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(http.status("/metrics", &[]), 200);
    let log = http.server.log();
    assert!(!log.to_lowercase().contains("panic"), "{log}");
}
