//! Many handshakes at once, beside a connected client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rustls::ClientConnection;

use super::certs::Certs;
use super::{TIMEOUT, start_secure};

const CLIENTS: usize = 1_000;

#[test]
fn an_established_client_does_not_wait_for_a_thousand_handshakes() {
    let certs = Certs::new();
    // A single worker serves all of them.
    let mut secure =
        start_secure(&certs, &["--threads", "1", "--maxclients", "2000", "--tcp-backlog", "2048"]);
    let mut established = secure.connect(&certs);
    let config = certs.client("client");
    let mut handshakes: Vec<(TcpStream, ClientConnection)> = Vec::new();
    for _ in 0..CLIENTS {
        let socket = TcpStream::connect(secure.address()).expect("accepted");
        socket.set_read_timeout(Some(TIMEOUT)).expect("set");
        let name = "localhost".try_into().expect("a name");
        handshakes.push((socket, ClientConnection::new(config.clone(), name).expect("a client")));
    }
    let hellos: Vec<Vec<u8>> = handshakes.iter_mut().map(|(_, connection)| hello(connection)).collect();
    let answered = AtomicUsize::new(0);
    let served = std::thread::scope(|scope| {
        for ((socket, _), hello) in handshakes.iter_mut().zip(&hellos) {
            socket.write_all(hello).expect("it fits");
        }
        scope.spawn(|| {
            for (socket, _) in &handshakes {
                let got = socket.peek(&mut [0]).expect("an answer");
                assert!(got > 0, "nobody is hung up on");
                answered.fetch_add(1, Relaxed);
            }
        });
        let mut served = 0;
        while answered.load(Relaxed) < CLIENTS {
            assert_eq!(established.run("PING").to_string(), "PONG");
            served += 1;
        }
        served
    });
    // If all handshakes were accepted at once, there would be two replies or three.
    assert!(served > 20, "{served} commands were served meanwhile");
    for (socket, connection) in &mut handshakes {
        while connection.is_handshaking() {
            connection.complete_io(socket).expect("it goes on");
        }
        connection.writer().write_all(b"PING\r\n").expect("sealed");
        connection.complete_io(socket).expect("sent");
    }
    for (socket, connection) in &mut handshakes {
        let mut answer = [0; 7];
        rustls::Stream::new(connection, socket).read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"+PONG\r\n");
    }
    let info = established.run("INFO clients").to_string();
    assert!(info.contains("connected_clients:1001"), "{info}");
    drop(handshakes);
    std::thread::sleep(Duration::from_millis(10));
    secure.server.assert_healthy();
}

/// The first message of a client.
fn hello(connection: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes).expect("into memory");
    }
    bytes
}
