//! The interface of the console: sessions and their defences, commands, and permissions.

use super::client::{Reply, base64, exchange, request};
use super::{WithHttp, start_http};
use crate::tls::certs::Certs;
use crate::tls::tls_stream;

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// A browser: it keeps the cookie and the token of its session.
pub(super) struct Browser<'s> {
    http: &'s WithHttp,
    /// `name=value`
    cookie: String,
    csrf: String,
}

fn text_of(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let host = if headers.iter().any(|(name, _)| *name == "Host") { "" } else { "Host: 127.0.0.1\r\n" };
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let len = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\n{host}{lines}Content-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Returns the string of this name in an object of JSON.
fn string_in(body: &str, name: &str) -> Option<String> {
    let rest = body.split_once(&format!("\"{name}\":\""))?.1;
    rest.split_once('"').map(|(value, _)| value.to_owned())
}

fn login_of(user: &str, password: &str) -> String {
    format!("{{\"user\":\"{user}\",\"password\":\"{password}\"}}")
}

impl WithHttp {
    #[track_caller]
    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let text = text_of(method, path, headers, body);
        request(self.port, &text).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    fn log_in(&self, user: &str, password: &str, headers: &[(&str, &str)]) -> Reply {
        self.ask("POST", "/api/login", &[&[JSON], headers].concat(), &login_of(user, password))
    }

    #[track_caller]
    pub(super) fn browser(&self, user: &str, password: &str) -> Browser<'_> {
        Browser::of(self, &self.log_in(user, password, &[]))
    }
}

impl Browser<'_> {
    #[track_caller]
    fn of<'s>(http: &'s WithHttp, reply: &Reply) -> Browser<'s> {
        assert_eq!(reply.status, 200, "{}", reply.body);
        let cookie = reply.header("set-cookie").expect("a cookie");
        let cookie = cookie.split(';').next().expect("a first part").to_owned();
        let csrf = string_in(&reply.body, "csrf").expect("a token");
        Browser { http, cookie, csrf }
    }

    #[track_caller]
    pub(super) fn get(&self, path: &str) -> Reply {
        self.http.ask("GET", path, &[("Cookie", &self.cookie)], "")
    }

    #[track_caller]
    pub(super) fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let own = [("Cookie", &*self.cookie), ("X-Evenkeel-CSRF", &*self.csrf), JSON];
        self.http.ask("POST", path, &[&own, headers].concat(), body)
    }

    /// Runs a command given as JSON, and returns the reply without its time.
    #[track_caller]
    fn run(&self, command: &str) -> String {
        let reply = self.post("/api/command", &[], command);
        assert_eq!(reply.status, 200, "{}", reply.body);
        match reply.body.rsplit_once(",\"us\":") {
            Some((body, _)) => format!("{body}}}"),
            None => reply.body,
        }
    }

    fn is_logged_in(&self) -> bool {
        self.get("/api/session").status == 200
    }
}

fn start_console(args: &[&str]) -> WithHttp {
    start_http(&[&["--requirepass", "secret"], args].concat())
}

/// Runs a command as an administrator.
fn admin(http: &WithHttp, command: &str) -> String {
    let mut client = http.server.connect();
    client.run("AUTH secret");
    client.run(command).to_string()
}

#[test]
fn a_login_begins_a_session_and_a_logout_ends_it() {
    let http = start_console(&[]);
    assert_eq!(http.ask("GET", "/api/session", &[], "").status, 401);
    let reply = http.log_in("default", "secret", &[]);
    let cookie = reply.header("set-cookie").expect("a cookie").to_owned();
    for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "{cookie}");
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(string_in(&reply.body, "user").as_deref(), Some("default"));
    let browser = Browser::of(&http, &reply);
    assert!(!browser.cookie.contains(&browser.csrf), "two tokens");
    assert_eq!(browser.get("/api/session").body, reply.body);
    assert_eq!(browser.run("[\"PING\"]"), "{\"result\":\"PONG\"}");
    let other = http.browser("default", "secret");
    let reply = browser.post("/api/logout", &[], "");
    assert_eq!(reply.status, 204);
    assert!(reply.header("set-cookie").is_some_and(|cookie| cookie.contains("Max-Age=0")));
    assert!(!browser.is_logged_in() && other.is_logged_in());
    assert_eq!(browser.post("/api/command", &[], "[\"PING\"]").status, 401);
}

#[test]
fn refused_logins_are_recorded_and_slowed_down() {
    let http = start_console(&["--loglevel", "debug"]);
    for (user, password) in [("default", "wrong-password"), ("nobody", "secret")] {
        let reply = http.log_in(user, password, &[]);
        assert_eq!((reply.status, reply.header("set-cookie")), (401, None), "{}", reply.body);
    }
    let log = admin(&http, "ACL LOG");
    assert!(log.contains("nobody") && !log.contains("wrong-password"), "{log}");
    assert!(!http.server.log().contains("wrong-password"));
    for body in ["", "{}", "{\"user\":1,\"password\":\"secret\"}", "[\"secret\"", "{\"user\":\"secret\"}"] {
        let reply = http.ask("POST", "/api/login", &[JSON], body);
        assert!(reply.status == 400 && !reply.body.contains("secret"), "{body}: {}", reply.body);
    }
    assert_eq!(http.ask("POST", "/api/login", &[], &login_of("default", "secret")).status, 415);
    let long = login_of("default", &"x".repeat(20_000));
    assert_eq!(http.ask("POST", "/api/login", &[JSON], &long).status, 413);
    assert_eq!(http.log_in("default", "secret", &[]).status, 200);
    let statuses: Vec<u16> = (0..12).map(|_| http.log_in("default", "wrong", &[]).status).collect();
    assert_eq!((statuses[0], statuses[11]), (401, 429), "{statuses:?}");
    let reply = http.log_in("default", "secret", &[]);
    assert_eq!(reply.status, 429, "even with the password");
    assert!(reply.header("retry-after").is_some());
}

#[test]
fn requests_need_the_token_of_their_session() {
    let http = start_console(&[]);
    let (browser, other) = (http.browser("default", "secret"), http.browser("default", "secret"));
    let with = |token: &[(&str, &str)], path: &str| {
        let headers = [&[("Cookie", &*browser.cookie), JSON][..], token].concat();
        http.ask("POST", path, &headers, "[\"FLUSHALL\"]").status
    };
    for path in ["/api/command", "/api/pipeline", "/api/logout"] {
        for token in [&[][..], &[("X-Evenkeel-CSRF", "")], &[("X-Evenkeel-CSRF", &*other.csrf)]] {
            assert_eq!(with(token, path), 403, "{path} {token:?}");
        }
    }
    assert!(browser.is_logged_in());
    assert_eq!(with(&[("X-Evenkeel-CSRF", &*browser.csrf)], "/api/command"), 200);
}

/// Pages of other origins, in the same browser; whatever the cookie and the token.
#[test]
fn pages_of_other_origins_are_refused() {
    let http = start_console(&["--http-allow-origins", "*"]);
    let browser = http.browser("default", "secret");
    let post = |header: (&str, &str)| {
        browser.post("/api/command", &[("Host", "127.0.0.1:80"), header], "[\"PING\"]")
    };
    assert_eq!(post(("Origin", "http://127.0.0.1:80")).status, 200);
    assert_eq!(post(("Sec-Fetch-Site", "same-origin")).status, 200);
    for header in [
        ("Origin", "http://evil.example"),
        ("Origin", "http://127.0.0.1:81"),
        ("Origin", "http://127.0.0.1"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
        ("Sec-Fetch-Site", "none"),
    ] {
        let reply = post(header);
        assert_eq!(reply.status, 403, "{header:?}");
        assert_eq!(reply.header("access-control-allow-origin"), None, "{header:?}");
        let login = http.log_in("default", "secret", &[("Host", "127.0.0.1:80"), header]);
        assert_eq!(login.status, 403, "{header:?}");
    }
    let preflight = http.ask("OPTIONS", "/api/command", &[("Origin", "http://evil.example")], "");
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (403, None));
}

/// A stranger's name that stands for an address of this server (DNS rebinding).
#[test]
fn a_login_has_to_name_the_server() {
    let http = start_console(&["--http-hosts", "store.example"]);
    for host in ["evil.example", "127.0.0.1.evil.example:8379", ""] {
        assert_eq!(http.log_in("default", "secret", &[("Host", host)]).status, 403, "{host}");
        assert_eq!(http.ask("GET", "/api/session", &[("Host", host)], "").status, 403, "{host}");
    }
    for host in ["localhost:8379", "store.example"] {
        assert_eq!(http.log_in("default", "secret", &[("Host", host)]).status, 200, "{host}");
    }
}

#[test]
fn without_a_password_the_console_needs_no_login() {
    let http = start_http(&[]);
    let asked = [("X-Evenkeel-CSRF", "new")];
    let session = |headers: &[(&str, &str)]| http.ask("GET", "/api/session", headers, "");
    assert_eq!(session(&[]).status, 401, "a page of another origin can send this");
    assert_eq!(session(&[asked[0], ("Host", "evil.example")]).status, 403);
    assert_eq!(session(&[asked[0], ("Origin", "http://evil.example")]).status, 403);
    let browser = Browser::of(&http, &session(&asked));
    assert_eq!(browser.run("[\"ACL\",\"WHOAMI\"]"), "{\"result\":\"default\"}");
    http.server.connect().run("CONFIG SET requirepass secret");
    assert!(!browser.is_logged_in());
    assert_eq!(session(&asked).status, 401);
}

#[test]
fn sessions_end_with_their_users() {
    let http = start_console(&[]);
    let login = |user: &str| {
        admin(&http, &format!("ACL SETUSER {user} on >pass +@all ~*"));
        http.browser(user, "pass")
    };
    let (deleted, off, changed, kept) = (login("ann"), login("ben"), login("cleo"), login("dan"));
    let again = login("eve");
    admin(&http, "ACL DELUSER ann");
    admin(&http, "ACL SETUSER ben off");
    admin(&http, "ACL SETUSER cleo >new <pass");
    admin(&http, "ACL SETUSER dan -get");
    admin(&http, "ACL DELUSER eve");
    admin(&http, "ACL SETUSER eve on >pass +@all ~*");
    for browser in [&deleted, &off, &changed, &again] {
        assert_eq!(browser.post("/api/command", &[], "[\"PING\"]").status, 401);
        assert!(!browser.is_logged_in());
    }
    assert!(kept.run("[\"GET\",\"k\"]").contains("NOPERM"), "the rights are those of now");
    admin(&http, "ACL SETUSER ben on");
    assert!(!off.is_logged_in(), "the session does not come back");
}

#[test]
fn words_and_replies_keep_their_bytes() {
    let http = start_console(&[]);
    let browser = http.browser("default", "secret");
    let (key, value) = (base64(b"\xffkey\0"), base64(&[0xfe, 0, b'"']));
    let set = format!("[\"SET\",{{\"b64\":\"{key}\"}},{{\"b64\":\"{value}\"}}]");
    assert_eq!(browser.run(&set), "{\"result\":\"OK\"}");
    let get = format!("[\"GET\",{{\"b64\":\"{key}\"}}]");
    assert_eq!(browser.run(&get), format!("{{\"result\":{{\"b64\":\"{value}\"}}}}"));
    assert_eq!(browser.run("[\"KEYS\",\"*\"]"), format!("{{\"result\":[{{\"b64\":\"{key}\"}}]}}"));
    assert_eq!(browser.run("[\"INCRBY\",\"n\",7]"), "{\"result\":7}");
    assert_eq!(browser.run("[\"GET\",\"none\"]"), "{\"result\":null}");
    assert_eq!(browser.run("[\"ECHO\",\"\u{e9}\\u0000\"]"), "{\"result\":\"\u{e9}\\u0000\"}");
    assert!(browser.run("[\"NOSUCH\"]").starts_with("{\"error\":\"ERR unknown command"));
    assert!(browser.run("[\"COMMAND\",\"DOCS\",\"get\"]").contains("summary"));
    assert!(browser.run("[\"SUBSCRIBE\",\"c\"]").contains("not available over HTTP"));
    for body in ["", "[]", "{}", "[null]", "[{\"b64\":\"?\"}]", "[[\"PING\"]]"] {
        assert_eq!(browser.post("/api/command", &[], body).status, 400, "{body}");
    }
}

#[test]
fn pipelines_run_in_a_database() {
    let http = start_console(&[]);
    let browser = http.browser("default", "secret");
    let run = |path: &str, body: &str| {
        let reply = browser.post(path, &[], body);
        let strip = |part: &str| part.split(",\"us\"").next().unwrap_or_default().to_owned();
        (reply.status, reply.body.split("},").map(strip).collect::<Vec<_>>().join(" "))
    };
    let set = "[[\"SET\",\"k\",1],[\"INCR\",\"k\"],[\"MULTI\"],[\"DBSIZE\"]]";
    let (status, body) = run("/api/pipeline?db=3", set);
    assert_eq!(status, 200);
    assert!(body.starts_with("[{\"result\":\"OK\" {\"result\":2 {\"error\":\"ERR Command is not"), "{body}");
    assert!(body.ends_with("{\"result\":1"), "{body}");
    assert_eq!(run("/api/pipeline", "[[\"DBSIZE\"]]").1, "[{\"result\":0");
    assert_eq!(run("/api/command?db=3", "[\"DBSIZE\"]").1, "{\"result\":1");
    let (_, body) = run("/api/pipeline?db=99", "[[\"SET\",\"k\",1],[\"GET\",\"k\"]]");
    assert_eq!(body.matches("DB index is out of range").count(), 2, "{body}");
    // A kept connection: the database holds for its request alone.
    let headers = [("Cookie", &*browser.cookie), ("X-Evenkeel-CSRF", &*browser.csrf)];
    let of = |path: &str| text_of("POST", path, &headers, "[[\"DBSIZE\"]]");
    let kept = of("/api/pipeline?db=3").replace("Connection: close\r\n", "");
    let replies = request(http.port, &(kept.clone() + &kept + &of("/api/pipeline"))).expect("replies").body;
    let sizes: Vec<_> = replies.split("[{\"result\":").skip(1).map(|part| &part[..1]).collect();
    assert_eq!(sizes, ["1", "1", "0"], "{replies}");
    assert_eq!(run("/api/pipeline?db=x", "[[\"DBSIZE\"]]").0, 400);
    assert_eq!(run("/api/pipeline", "[]"), (200, "[]".to_owned()));
    let many = format!("[{}[\"PING\"]]", "[\"PING\"],".repeat(10_000));
    assert_eq!(run("/api/pipeline", &many).0, 400);
}

#[test]
fn the_rights_are_those_of_the_user() {
    let http = start_console(&["--http-max-body", "10000"]);
    admin(&http, "ACL SETUSER reader on >pass ~app:* +@read -@dangerous");
    let browser = http.browser("reader", "pass");
    assert_eq!(browser.run("[\"GET\",\"app:k\"]"), "{\"result\":null}");
    for command in ["[\"SET\",\"app:k\",\"v\"]", "[\"GET\",\"other\"]", "[\"CONFIG\",\"GET\",\"*\"]"] {
        assert!(browser.run(command).starts_with("{\"error\":\"NOPERM "), "{command}");
    }
    for (path, needed) in [("series", "INFO"), ("events", "LATENCY|DOCTOR"), ("findings", "LATENCY|DOCTOR")] {
        let reply = browser.get(&format!("/api/{path}"));
        assert!(reply.status == 403 && reply.body.contains(needed), "{path}: {}", reply.body);
    }
    let large = format!("[\"ECHO\",\"{}\"]", "x".repeat(10_000));
    assert_eq!(browser.post("/api/command", &[], &large).status, 413);
    admin(&http, "ACL SETUSER reader +info +slowlog|get");
    for path in ["series?from=-1000&points=10", "events", "findings?from=-5000&to=-1000"] {
        let reply = browser.get(&format!("/api/{path}"));
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    }
    for query in ["series?from=x", "series?points=", "events?from=-1&to=-2"] {
        assert_eq!(browser.get(&format!("/api/{query}")).status, 400, "{query}");
    }
    assert_eq!(http.ask("GET", "/api/series", &[], "").status, 401);
    assert_eq!((browser.get("/api/nothing").status, browser.get("/api").status), (404, 404));
    assert_eq!(http.ask("DELETE", "/api/session", &[], "").status, 405);
}

#[test]
fn browsers_get_the_page_and_others_the_list() {
    let http = start_console(&[]);
    let accept = ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let page = http.ask("GET", "/", &[accept], "");
    assert!(page.body.starts_with("<!doctype html>"), "{}", page.body);
    let policy = page.header("content-security-policy").expect("a policy").to_owned();
    for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("script-src 'self' "), "{policy}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
    ] {
        assert_eq!(page.header(name), Some(value), "{name}");
    }
    for accept in [&[][..], &[("Accept", "*/*")]] {
        assert!(http.ask("GET", "/", accept, "").body.starts_with("Evenkeel\n"));
    }
    // Every file that the page names is there, with the same policy.
    let names = page.body.split('"').filter(|part| part.starts_with("/console/"));
    for name in names {
        let file = http.ask("GET", name, &[], "");
        assert_eq!((file.status, file.header("content-security-policy")), (200, Some(&*policy)), "{name}");
        let tag = file.header("etag").expect("a tag").to_owned();
        let again = http.ask("GET", name, &[("If-None-Match", &tag)], "");
        assert_eq!((again.status, again.body.as_str()), (304, ""), "{name}");
        assert_eq!(http.ask("GET", name, &[("If-None-Match", "\"x\"")], "").status, 200);
    }
    for path in ["/console/", "/console/none.js", "/console/../src/lib.rs", "/console/vendor"] {
        assert_eq!(http.ask("GET", path, &[], "").status, 404, "{path}");
    }
    let head = http.ask("HEAD", "/console/app.js", &[], "");
    assert!(head.body.is_empty() && head.header("content-length").is_some_and(|len| len.len() > 3));
    for path in ["/", "/console/app.js"] {
        let foreign = http.ask("GET", path, &[accept, ("Host", "evil.example")], "");
        assert_eq!(foreign.status, 403, "{path}");
    }
}

#[test]
fn defaults_are_those_of_a_server_without_configuration() {
    let http = start_console(&["--maxmemory", "50mb"]);
    assert_eq!(http.ask("GET", "/api/defaults", &[], "").status, 401);
    let defaults = http.browser("default", "secret").get("/api/defaults").body;
    assert_eq!(string_in(&defaults, "maxmemory").as_deref(), Some("0"));
    assert_eq!(string_in(&defaults, "requirepass").as_deref(), Some(""));
}

#[test]
fn over_tls_the_cookie_is_secure() {
    let certs = Certs::new();
    let of_tls = certs.arguments();
    let mut args: Vec<&str> = of_tls.iter().map(String::as_str).collect();
    args.extend(["--http-tls", "yes", "--tls-auth-clients", "no"]);
    let http = start_http(&args);
    let stream = super::client::connect(http.port).expect("accepted");
    let mut stream = tls_stream(stream, certs.client("")).expect("a handshake");
    let text = text_of("POST", "/api/login", &[JSON], &login_of("default", ""));
    let reply = exchange(&mut stream, &text).expect("a reply");
    assert!(reply.header("set-cookie").is_some_and(|cookie| cookie.ends_with("; Secure")), "{reply:?}");
}

#[test]
fn the_switch_turns_the_console_off() {
    let http = start_http(&["--http-console", "no", "--http-rest", "no"]);
    assert_eq!(http.ask("GET", "/api/session", &[("X-Evenkeel-CSRF", "new")], "").status, 404);
    assert_eq!(http.ask("POST", "/api/login", &[JSON], &login_of("default", "")).status, 404);
    let page = |http: &WithHttp| http.ask("GET", "/", &[("Accept", "text/html")], "").body;
    assert!(page(&http).starts_with("Evenkeel\n"));
    assert_eq!(http.ask("GET", "/console/app.js", &[], "").status, 404);
    http.server.connect().run("CONFIG SET http-console yes");
    assert!(page(&http).starts_with("<!doctype html>"));
    assert_eq!(http.log_in("default", "", &[]).status, 200);
}

#[test]
fn slots_have_the_numbers_of_their_keys() {
    let http = start_http(&[]);
    let mut client = http.server.connect();
    (0..100).for_each(|number| _ = client.run(&format!("SET {{tag}}:{number} v")));
    client.run("SET other v");
    let slot = |key: &str| http.server.connect().run(&format!("CLUSTER KEYSLOT {key}")).as_int();
    let counts = |path: &str| -> Vec<u64> {
        let reply = http.browser("default", "").get(path);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let parsed: serde_json::Value = serde_json::from_str(&reply.body).expect("JSON");
        let counts = parsed["counts"].as_array().cloned().unwrap_or_default();
        counts.iter().filter_map(serde_json::Value::as_u64).collect()
    };
    let found = counts("/api/slots");
    assert_eq!((found.len(), found.iter().sum::<u64>()), (16_384, 101));
    let of = |key: &str| found[slot(key).expect("a number") as usize];
    assert_eq!((of("{tag}:1"), of("other")), (100, 1));
    assert_eq!(counts("/api/slots?db=3").iter().sum::<u64>(), 0);
    assert_eq!(counts("/api/slots?db=4000000000").len(), 16_384, "there is no such database");
    client.run("ACL SETUSER reader on >secret +get ~*");
    assert_eq!(http.browser("reader", "secret").get("/api/slots").status, 403);
    assert_eq!(http.browser("default", "").get("/api/slots?db=x").status, 400);
}
