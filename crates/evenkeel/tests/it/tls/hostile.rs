//! Clients that send single bytes, plain text, changed records, or nothing.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Random};
use rustls::version::{TLS12, TLS13};

use super::certs::Certs;
use super::{Secure, TIMEOUT, start_secure, tls_stream_over};

/// A socket that sends every byte on its own, or changes a byte.
struct Odd {
    socket: TcpStream,
    /// The position of the changed byte, and the bits to flip.
    tampers: Option<(usize, u8)>,
    sent: usize,
    is_slow: bool,
}

impl Read for Odd {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.read(buf)
    }
}

impl Write for Odd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = if self.is_slow { 1 } else { bytes.len() };
        let mut bytes = bytes[..len].to_vec();
        let before = self.sent;
        self.sent += len;
        if let Some((at, bits)) = self.tampers
            && (before..before + len).contains(&at)
        {
            bytes[at - before] ^= bits;
        }
        self.socket.write_all(&bytes)?;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn odd(secure: &Secure, is_slow: bool, tampers: Option<(usize, u8)>) -> (Odd, TcpStream) {
    let socket = TcpStream::connect(secure.address()).expect("accepted");
    let same = socket.try_clone().expect("a second handle");
    (Odd { socket, tampers, sent: 0, is_slow }, same)
}

#[test]
fn requests_may_come_byte_by_byte() {
    let certs = Certs::new();
    let mut secure = start_secure(&certs, &[]);
    for version in [&TLS12, &TLS13] {
        let (through, socket) = odd(&secure, true, None);
        let tls_stream =
            tls_stream_over(through, socket, certs.client_with("client", &[version])).expect("let in");
        let mut client = Client::through(tls_stream);
        let value = "v".repeat(20_000); // more than a record
        assert_eq!(client.call(&["SET", "k", &value]).to_string(), "OK");
        let commands: Vec<Vec<&str>> = (0..20).map(|_| vec!["STRLEN", "k"]).collect();
        assert!(client.pipeline(&commands).iter().all(|reply| reply.as_int() == Some(20_000)));
    }
    secure.server.assert_healthy();
}

#[test]
fn connections_without_tls_are_closed() {
    let certs = Certs::new();
    let mut secure = start_secure(&certs, &[]);
    let mut random = Random::new(fresh_seed());
    let hello = |len: u16| [&[22, 3, 1], &len.to_be_bytes()[..], &[1, 0, 1, 0]].concat();
    let mut cases: Vec<Vec<u8>> = vec![
        b"PING\r\n".to_vec(),
        b"*1\r\n$4\r\nPING\r\n".to_vec(),
        vec![0; 100_000],
        [hello(0xffff), vec![0; 0xffff]].concat(),
        [hello(500), vec![0xff; 1000]].concat(),
        vec![21, 3, 3, 0, 2, 2, 40],
        vec![23, 3, 3, 0, 1, 0],
    ];
    for _ in 0..60 {
        let len = random.below(2_000);
        let mut bytes: Vec<u8> = (0..len).map(|_| random.draw() as u8).collect();
        if random.below(2) == 0 && bytes.len() > 9 {
            bytes[..9].copy_from_slice(&hello(len as u16 - 5));
        }
        cases.push(bytes);
    }
    for bytes in cases {
        let mut socket = TcpStream::connect(secure.address()).expect("accepted");
        socket.set_read_timeout(Some(TIMEOUT)).expect("set");
        let _ = socket.write_all(&bytes);
        let _ = socket.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        // An alert or a reset; the connection ends in any case.
        match socket.read_to_end(&mut answer) {
            Ok(_) => assert!(answer.is_empty() || answer[0] == 21, "{answer:?}"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{bytes:?}"),
        }
    }
    assert_eq!(secure.accepts(certs.client("client")), Ok(()));
    assert!(secure.server.log().contains("Error accepting a client connection: "));
    // The reverse: the plain port answers as to any invalid line, without further harm.
    let socket = TcpStream::connect(secure.server.address()).expect("accepted");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("set");
    let mut connection =
        rustls::ClientConnection::new(certs.client("client"), "localhost".try_into().expect("a name"))
            .expect("a client");
    let mut both = socket;
    while connection.is_handshaking() {
        if connection.complete_io(&mut both).is_err() {
            break;
        }
    }
    assert!(connection.is_handshaking());
    secure.server.assert_healthy();
}

/// Whatever bit is changed: a reply is right, or there is none.
#[test]
fn tampered_records_are_refused() {
    let certs = Certs::new();
    let mut secure = start_secure(&certs, &[]);
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let mut ended = 0;
    for round in 0..80 {
        let version = if round % 2 == 0 { &TLS12 } else { &TLS13 };
        let tampers = (random.below(2_500), 1 << random.below(8));
        let (through, socket) = odd(&secure, false, Some(tampers));
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        let outcome = tls_stream_over(through, socket, certs.client_with("client", &[version])).and_then(
            |tls_stream| {
                let mut client = Client::through(tls_stream);
                client.set_reply_timeout(Duration::from_secs(2));
                for number in 0..5 {
                    let reply = client.try_call(&["ECHO", &format!("{number}").repeat(200)])?;
                    assert_eq!(reply.to_string().len(), 202, "an answer is right or none");
                }
                Ok(())
            },
        );
        ended += usize::from(outcome.is_err());
    }
    assert!(ended > 30, "most changes hit something: {ended}");
    assert_eq!(secure.accepts(certs.client("client")), Ok(()));
    secure.server.assert_healthy();
}

/// Random bytes behind valid records, and together with them: earlier commands are executed, and the
/// connection ends.
#[test]
fn garbage_after_valid_records_closes_the_connection() {
    let certs = Certs::new();
    let mut secure = start_secure(&certs, &[]);
    let mut random = Random::new(fresh_seed());
    for _ in 0..30 {
        let mut tls_stream = secure.tls_stream(certs.client("client")).expect("let in");
        let mut bytes = Vec::new();
        tls_stream.stream.conn.writer().write_all(b"INCR done\r\n").expect("sealed");
        while tls_stream.stream.conn.wants_write() {
            tls_stream.stream.conn.write_tls(&mut bytes).expect("into memory");
        }
        let garbage = random.below(3_000) + 5;
        bytes.extend([23, 3, 3, 0, 40].into_iter().chain((0..garbage).map(|_| random.draw() as u8)));
        tls_stream.socket.write_all(&bytes).expect("sent");
        let _ = tls_stream.socket.shutdown(Shutdown::Write);
        let _ = tls_stream.read(&mut [0; 100]);
        assert!(!matches!(tls_stream.read(&mut [0; 100]), Ok(1..)), "there is no second answer");
    }
    assert_eq!(secure.server.connect().run("GET done").to_string(), "\"30\"");
    secure.server.assert_healthy();
}

#[test]
fn unfinished_handshakes_time_out() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &[]);
    let mut silent: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(secure.address()).expect("accepted")).collect();
    silent[0].write_all(&[22, 3, 1]).expect("sent");
    let mut good = secure.connect(&certs);
    let began = Instant::now();
    for socket in &mut silent {
        socket.set_read_timeout(Some(2 * TIMEOUT)).expect("set");
        assert!(matches!(socket.read(&mut [0]), Ok(0)), "hung up on");
    }
    assert!(began.elapsed() > Duration::from_secs(5), "they had time");
    assert_eq!(good.run("PING").to_string(), "PONG");
    assert!(good.run("INFO clients").to_string().contains("connected_clients:1\\r"));
}
