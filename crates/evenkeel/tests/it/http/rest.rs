//! Commands over REST: forms of requests and replies, who may run them, and the state that none may leave.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::client::{Reply, base64, connect, exchange, request};
use super::{WithHttp, start_http};
use crate::wait_until;

impl WithHttp {
    /// Sends a request of this method as the default user, whose password is `secret`.
    #[track_caller]
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let text = text_of(method, path, &[&[AUTH], headers].concat(), body);
        request(self.port, &text).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Runs a command given as JSON, and returns status and body.
    #[track_caller]
    fn post(&self, body: &str) -> (u16, String) {
        let reply = self.send("POST", "/", &[], body);
        (reply.status, reply.body)
    }
}

const AUTH: (&str, &str) = ("Authorization", "Bearer secret");

fn text_of(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let len = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}Content-Length: {len}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

fn start_rest(args: &[&str]) -> WithHttp {
    start_http(&[&["--requirepass", "secret"], args].concat())
}

#[test]
fn commands_in_path_and_body() {
    let http = start_rest(&[]);
    assert_eq!(http.post("[\"SET\", \"k\", \"v\", \"EX\", 100]"), (200, "{\"result\":\"OK\"}".into()));
    let get = |path: &str| http.send("GET", path, &[], "").body;
    assert_eq!(get("/get/k"), "{\"result\":\"v\"}");
    assert_eq!(get("/set/a%2Fb/x?EX=100&NX"), "{\"result\":\"OK\"}");
    assert_eq!(get("/ttl/a%2Fb"), "{\"result\":100}");
    assert_eq!(get("/get/none"), "{\"result\":null}");
    assert_eq!(http.send("POST", "/set/json?EX=9", &[], "{\"a\": [1, 2]}").body, "{\"result\":\"OK\"}");
    assert_eq!(get("/get/json"), "{\"result\":\"{\\\"a\\\": [1, 2]}\"}");
    assert_eq!(http.send("PUT", "/set/put", &[], "1").body, "{\"result\":\"OK\"}");
    assert_eq!(get("/mget/k/none/put"), "{\"result\":[\"v\",null,\"1\"]}");
    let reply = http.send("GET", "/incr/k", &[], "");
    assert_eq!(reply.status, 400);
    assert_eq!(reply.body, "{\"error\":\"ERR value is not an integer or out of range\"}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(get("/nosuch/x").contains("ERR unknown command 'nosuch'"));
    assert!(get("/get").contains("wrong number of arguments for 'get' command"));
}

#[test]
fn pipelines_and_transactions() {
    let http = start_rest(&[]);
    let body = "[[\"SET\",\"k\",\"v\"],[\"INCR\",\"k\"],[\"GET\",\"k\"]]";
    let reply = http.send("POST", "/pipeline", &[], body);
    assert_eq!(reply.status, 200);
    let expected = "[{\"result\":\"OK\"},{\"error\":\"ERR value is not an integer or out of range\"},\
                    {\"result\":\"v\"}]";
    assert_eq!(reply.body, expected);
    assert_eq!(http.send("POST", "/multi-exec", &[], body).body, expected);
    let aborted = http.send("POST", "/multi-exec", &[], "[[\"SET\",\"k\",\"w\"],[\"NOSUCH\"]]");
    assert_eq!(aborted.status, 400);
    assert!(aborted.body.starts_with("{\"error\":\"EXECABORT "), "{}", aborted.body);
    assert_eq!(http.post("[\"GET\",\"k\"]").1, "{\"result\":\"v\"}", "nothing of it was run");
}

#[test]
fn forms_of_the_reply() {
    let http = start_rest(&[]);
    let mut client = http.server.connect();
    client.run("AUTH secret");
    client.call(&[&b"SET"[..], b"bytes", b"\xff\x00\""]);
    let get = |headers: &[(&str, &str)]| http.send("GET", "/get/bytes", headers, "").body;
    assert_eq!(get(&[]), "{\"result\":\"\u{fffd}\\u0000\\\"\"}");
    let encoded = base64(b"\xff\x00\"");
    assert_eq!(get(&[("Upstash-Encoding", "base64")]), format!("{{\"result\":\"{encoded}\"}}"));
    let reply = http.send("GET", "/echo/abc", &[("Upstash-Response-Format", "resp2")], "");
    assert_eq!(reply.body, "$3\r\nabc\r\n");
    assert_eq!(reply.header("content-type"), Some("application/octet-stream"));
}

#[test]
fn the_user_of_the_token_decides() {
    let http = start_rest(&[]);
    let mut client = http.server.connect();
    client.run("AUTH secret");
    client.run("ACL SETUSER reader on >read ~app:* +@read");
    client.run("SET app:k v");
    let as_user = |token: &str, path: &str| {
        let header = format!("Bearer {token}");
        let text = text_of("GET", path, &[("Authorization", &header)], "");
        let reply = request(http.port, &text).expect("a reply");
        (reply.status, reply.body)
    };
    assert_eq!(as_user("reader:read", "/get/app:k"), (200, "{\"result\":\"v\"}".into()));
    let (status, body) = as_user("reader:read", "/set/app:k/w");
    assert!(status == 400 && body.contains("NOPERM"), "{body}");
    let (status, body) = as_user("reader:read", "/get/other");
    assert!(status == 400 && body.contains("NOPERM"), "{body}");
    assert_eq!(as_user("reader:wrong", "/get/app:k").0, 401);
    let plain = |path: &str| request(http.port, &text_of("GET", path, &[], "")).expect("a reply").status;
    assert_eq!(plain("/get/app:k"), 401);
    assert_eq!(plain("/get/app:k?_token=reader:read"), 200);
    assert_eq!(plain("/get/app:k?_token=wrong"), 401);
    // A kept connection of HTTP notices that its user is gone.
    let mut stream = connect(http.port).expect("accepted");
    let kept = "GET /get/app:k HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer reader:read\r\n\r\n";
    stream.write_all(kept.as_bytes()).expect("sent");
    wait_until("the link is open", || {
        client.run("CLIENT LIST").to_string().contains("lib-name=evenkeel-http")
    });
    client.run("ACL DELUSER reader");
    let last = kept.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let replies = exchange(&mut stream, &last).expect("replies").body;
    assert!(replies.contains("HTTP/1.1 401"), "{replies}");
}

/// A stranger's web page can make a browser send requests without credentials, and with any `_token`.
#[test]
fn without_a_password_commands_need_the_header() {
    let http = start_http(&[]);
    http.server.connect().run("SET k v");
    let status = |path: &str, headers: &[(&str, &str)]| {
        request(http.port, &text_of("POST", path, headers, "[\"FLUSHALL\"]")).expect("a reply").status
    };
    assert_eq!(status("/", &[("Content-Type", "text/plain"), ("Origin", "http://evil.example")]), 401);
    assert_eq!(status("/?_token=x", &[]), 401);
    assert_eq!(
        request(http.port, &text_of("GET", "/flushall?_token=x", &[], "")).expect("a reply").status,
        401
    );
    assert_eq!(http.server.connect().run("DBSIZE").to_string(), ":1");
    assert_eq!(status("/", &[("Authorization", "Bearer any")]), 200);
    assert_eq!(http.server.connect().run("DBSIZE").to_string(), ":0");
}

#[test]
fn requests_leave_no_state() {
    let http = start_rest(&[]);
    let mut stream = connect(http.port).expect("accepted");
    let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n");
    stream.write_all((one("/select/1") + &one("/set/k/v")).as_bytes()).expect("sent");
    let last = one("/dbsize").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let replies = exchange(&mut stream, &last).expect("replies").body;
    assert!(replies.ends_with("{\"result\":1}"), "SELECT holds for its request alone: {replies}");
    for command in [
        "SUBSCRIBE c",
        "PSUBSCRIBE c",
        "MONITOR",
        "MULTI",
        "EXEC",
        "WATCH k",
        "AUTH secret",
        "HELLO 3",
        "QUIT",
        "RESET",
        "SYNC",
        "PSYNC ? -1",
        "CLIENT REPLY OFF",
    ] {
        let words: Vec<String> = command.split(' ').map(|word| format!("\"{word}\"")).collect();
        let (status, body) = http.post(&format!("[{}]", words.join(",")));
        assert!(status == 400 && body.contains("not available over HTTP"), "{command}: {body}");
    }
    assert_eq!(http.post("[\"CLIENT\",\"GETNAME\"]").0, 200);
    assert_eq!(http.post("[\"\"]").0, 400);
    assert_eq!(http.send("GET", "//get", &[], "").status, 400);
}

#[test]
fn blocking_commands_wait_and_end_with_their_client() {
    let http = start_rest(&[]);
    let mut client = http.server.connect();
    client.run("AUTH secret");
    let mut stream = connect(http.port).expect("accepted");
    stream.write_all(text_of("POST", "/", &[AUTH], "[\"BLPOP\",\"l\",0]").as_bytes()).expect("sent");
    let blocked = |client: &mut evenkeel_testkit::Client, count: usize| {
        client.run("INFO clients").to_string().contains(&format!("blocked_clients:{count}\\r"))
    };
    wait_until("it waits", || blocked(&mut client, 1));
    client.run("RPUSH l x");
    assert_eq!(exchange(&mut stream, "").expect("a reply").body, "{\"result\":[\"l\",\"x\"]}");
    let mut stream = connect(http.port).expect("accepted");
    stream.write_all(text_of("POST", "/", &[AUTH], "[\"BLPOP\",\"l\",0]").as_bytes()).expect("sent");
    wait_until("it waits again", || blocked(&mut client, 1));
    drop(stream);
    wait_until("it is gone", || blocked(&mut client, 0));
}

#[test]
fn large_bodies_and_replies() {
    let http = start_rest(&["--http-max-body", "3mb"]);
    let value = "x".repeat(2 << 20);
    assert_eq!(http.send("POST", "/set/large", &[], &value).body, "{\"result\":\"OK\"}");
    assert_eq!(http.send("GET", "/get/large", &[], "").body, format!("{{\"result\":\"{value}\"}}"));
    let reply = http.send("POST", "/set/large", &[], &"x".repeat((3 << 20) + 1));
    assert_eq!(reply.status, 413);
    let commands: Vec<String> = (0..200).map(|_| "[\"GET\",\"large\"]".to_owned()).collect();
    let reply = http.send("POST", "/pipeline", &[], &format!("[{}]", commands[..20].join(",")));
    assert_eq!(reply.body.len(), 20 * (value.len() + "{\"result\":\"\"},".len()) + 1);
}

/// Reads from a stream of events until it has the text.
#[track_caller]
fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let (mut read, mut bytes) = (String::new(), [0; 4096]);
    while !read.contains(text) {
        let len = stream.read(&mut bytes).expect("it sends");
        assert!(len > 0, "it ended: {read}");
        read += &String::from_utf8_lossy(&bytes[..len]);
    }
    read
}

#[test]
fn messages_are_events() {
    let http = start_rest(&[]);
    let mut client = http.server.connect();
    client.run("AUTH secret");
    let follow = |path: &str| {
        let mut stream = connect(http.port).expect("accepted");
        stream.write_all(text_of("GET", path, &[AUTH], "").as_bytes()).expect("sent");
        stream
    };
    let mut stream = follow("/subscribe/news/other");
    let head = read_until(&mut stream, "data: subscribe,other,2\n\n");
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    assert!(head.contains("data: subscribe,news,1\n\n"), "{head}");
    client.run("PUBLISH news hello,there");
    read_until(&mut stream, "data: message,news,hello,there\n\n");
    let mut patterns = follow("/psubscribe/n*");
    read_until(&mut patterns, "data: psubscribe,n*,1\n\n");
    client.run("PUBLISH news x");
    read_until(&mut patterns, "data: pmessage,n*,news,x\n\n");
    let mut monitor = follow("/monitor");
    read_until(&mut monitor, "data: \"OK\"\n\n");
    client.run("SET k v");
    read_until(&mut monitor, "\"SET\" \"k\" \"v\"\n\n");
    drop((stream, patterns));
    wait_until("they are gone", || client.run("PUBLISH news y").to_string() == ":0");
    client.run("ACL SETUSER mute on >pass +@all -subscribe");
    let text = text_of("GET", "/subscribe/c", &[("Authorization", "Bearer mute:pass")], "");
    let refused = request(http.port, &text).expect("a reply");
    assert!(refused.status == 400 && refused.body.contains("NOPERM"), "{}", refused.body);
}

#[test]
fn pages_of_allowed_origins_may_read() {
    let http = start_rest(&["--http-allow-origins", "https://app.example https://b.example"]);
    let ask = |method: &str, origin: &str| {
        let more = [("Origin", origin), ("Access-Control-Request-Headers", "authorization,x-y")];
        http.send(method, "/get/k", &more, "")
    };
    let preflight = ask("OPTIONS", "https://app.example");
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(preflight.header("access-control-allow-headers"), Some("authorization,x-y"));
    assert_eq!(
        ask("GET", "https://b.example").header("access-control-allow-origin"),
        Some("https://b.example")
    );
    for origin in ["https://evil.example", "https://app.example.evil.example", "null"] {
        assert_eq!(ask("OPTIONS", origin).header("access-control-allow-origin"), None, "{origin}");
        assert_eq!(ask("GET", origin).header("access-control-allow-origin"), None, "{origin}");
    }
}

#[test]
fn the_switch_turns_it_off() {
    let http = start_rest(&["--http-rest", "no"]);
    assert_eq!(http.post("[\"PING\"]").0, 404);
    assert_eq!(http.send("GET", "/get/k", &[], "").status, 404);
    assert_eq!(http.status("/livez", &[]), 200);
}

#[test]
fn a_full_server_refuses_commands_over_http() {
    let http = start_rest(&["--maxclients", "2"]);
    let mut first = http.server.connect();
    first.run("AUTH secret");
    let mut second = http.server.connect();
    second.run("AUTH secret");
    let (status, body) = http.post("[\"PING\"]");
    assert!(status == 503 && body.contains("max number of clients"), "{body}");
    drop(second);
    wait_until("there is a place", || http.post("[\"PING\"]").0 == 200);
}
