//! The greeting of connections before their first request, as seen by a server that answers as the test
//! wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use super::{BENCH, all_answered, load, programs, start};

/// The commands of each connection, in the order of the connections.
type Received = Arc<Mutex<Vec<Vec<String>>>>;

/// A server that listens until the test ends.
struct Fake {
    port: String,
    received: Received,
}

impl Fake {
    /// Starts a server that answers each command, given in words, with `answer`.
    fn start(answer: fn(&str) -> &'static str) -> Fake {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port().to_string();
        let received = Received::default();
        let all = received.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let all = all.clone();
                std::thread::spawn(move || {
                    let number = {
                        let mut all = all.lock().expect("nobody panics with it");
                        all.push(Vec::new());
                        all.len() - 1
                    };
                    let mut stream = BufReader::new(stream.expect("a connection"));
                    while let Some(command) = command(&mut stream) {
                        let reply = answer(&command);
                        all.lock().expect("nobody panics with it")[number].push(command);
                        if stream.get_mut().write_all(reply.as_bytes()).is_err() {
                            return; // it was closed
                        }
                    }
                });
            }
        });
        Fake { port, received }
    }

    fn received(&self) -> Vec<Vec<String>> {
        self.received.lock().expect("nobody panics with it").clone()
    }
}

/// Returns the next command's words; `None` at the end.
fn command(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut length = |kind: char| {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let length: usize = line.trim_end().strip_prefix(kind)?.parse().ok()?;
        if kind == '*' {
            return Some((length, String::new()));
        }
        let mut word = vec![0; length + 2];
        stream.read_exact(&mut word).ok()?;
        word.truncate(length);
        Some((length, String::from_utf8(word).expect("ASCII")))
    };
    let (count, _) = length('*')?;
    let words: Option<Vec<String>> = (0..count).map(|_| Some(length('$')?.1)).collect();
    Some(words?.join(" "))
}

fn ok(_: &str) -> &'static str {
    "+OK\r\n"
}

#[test]
fn each_connection_authenticates_and_selects_its_database_first() {
    let resp2 = ["AUTH me hush", "SELECT 3"];
    let resp3 = ["HELLO 3 AUTH me hush", "SELECT 3"];
    for (protocol, greeting) in [("resp2", resp2), ("resp3", resp3)] {
        let login = ["--protocol", protocol, "--user", "me", "-a", "hush", "--db", "3", "--command", "PING"];
        let kept = Fake::start(ok);
        all_answered(&["-p", &kept.port], &[&login[..], &["-c", "3", "-t", "2", "-P", "2"]].concat(), 60);
        let received = kept.received();
        assert_eq!(received.len(), 3, "{received:?}");
        for said in &received {
            assert_eq!(said[..2], greeting);
            assert!(said[2..].iter().all(|said| said == "PING"), "{said:?}");
        }
        assert_eq!(received.iter().map(|said| said.len() - 2).sum::<usize>(), 60);

        let short = Fake::start(ok);
        all_answered(&["-p", &short.port], &[&login[..], &["-c", "3", "--short"]].concat(), 20);
        let received = short.received();
        assert_eq!(received.len(), 20, "{received:?}");
        assert!(received.iter().all(|said| *said == [greeting[0], greeting[1], "PING"]), "{received:?}");
    }
}

#[test]
fn a_fill_authenticates_too() {
    let server = Fake::start(ok);
    let mut fill = Command::new(BENCH);
    fill.args(["fill", "-p", &server.port, "-k", "10", "--db", "7"]).env("REDISCLI_AUTH", "hush");
    assert!(fill.output().expect("it is built").status.success());
    let received = server.received();
    assert!(received.iter().all(|said| said[..2] == ["AUTH hush", "SELECT 7"]), "{received:?}");
    assert_eq!(received.iter().map(|said| said.len() - 2).sum::<usize>(), 10);
}

#[test]
fn a_refused_login_ends_the_load() {
    let refuse = |words: &str| match words {
        "AUTH hush" => "-WRONGPASS not you\r\n",
        "SELECT 9" => "-ERR DB index is out of range\r\n",
        _ => "+OK\r\n",
    };
    let server = Fake::start(refuse);
    for mode in [&["-c", "2"][..], &["-c", "2", "--short"]] {
        for (login, said) in [
            (["-a", "hush"], "refuses AUTH: WRONGPASS not you"),
            (["--db", "9"], "refuses SELECT 9: ERR DB index is out of range"),
        ] {
            let error = load(&["-p", &server.port], &[&login[..], mode, &["-n", "10"]].concat());
            let error = error.expect_err("it is refused");
            assert!(error.contains(said) && !error.contains("hush"), "{mode:?}: {error}");
        }
    }
}

#[test]
fn an_excess_connection_is_counted() {
    let full = |_: &str| "-ERR max number of clients reached\r\n";
    let server = Fake::start(full);
    let words = ["-a", "hush", "-c", "1", "--short", "-n", "5"];
    let result = load(&["-p", &server.port], &words).expect("it runs");
    assert_eq!((&result["refused"], &result["requests"]), (&5.into(), &0.into()), "{result}");
}

#[test]
fn a_password_is_not_printed() {
    let server = Fake::start(ok);
    let result = all_answered(&["-p", &server.port, "-a", "hush", "--db", "2"], &["-c", "1"], 10);
    assert!(!result.to_string().contains("hush"), "{result}");
    assert_eq!(result["database"], 2);
}

#[test]
fn servers_accept_the_password() {
    for program in programs() {
        let server = start(&program, &["--requirepass", "hush"]);
        let server = server.port().to_string();
        for protocol in ["resp2", "resp3"] {
            let login = ["-p", &server, "--protocol", protocol, "--db", "3", "-k", "100", "-a"];
            let right = [&login[..], &["hush"]].concat();
            super::fill(&right, &["-d", "10:1,20000:1"]);
            all_answered(&right, &["--command", "60% get ; 40% set", "-d", "10-30000", "-P", "4"], 400);
            all_answered(&right, &["--short", "-c", "3"], 30);
            // Another database has none of these keys.
            let elsewhere =
                load(&["-p", &server, "-a", "hush", "-k", "100"], &["-n", "10"]).expect("it runs");
            assert_eq!(elsewhere["misses"], 10, "{elsewhere}");
            let error =
                load(&[&login[..], &["wrong"]].concat(), &["-n", "10"]).expect_err("not the password");
            assert!(error.contains("WRONGPASS"), "{error}");
        }
    }
}
