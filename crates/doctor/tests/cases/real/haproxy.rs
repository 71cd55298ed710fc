//! HAProxy with one thread.

use std::time::Duration;

use evenkeel_testkit::server::free_port;

use super::loads::{fetch, fetch_kept, silent};
use super::nginx::{handshakes, kept_tls, make_certificate};
use super::{Helper, Service, expect, expect_cause, expect_none, has, write};
use crate::stage::{self, Place, stage};
use crate::{Folder, corpus};

const PROGRAM: &str = "/usr/sbin/haproxy";
const REST: Duration = Duration::from_millis(2);
const LUA: &str = "core.register_service('work', 'http', function(applet)
  local sum = 0
  for i = 1, COUNT do sum = sum + math.sin(i) end
  applet:set_status(200)
  applet:add_header('Content-Length', '2')
  applet:start_response()
  applet:send('ok')
end)
";

/// Starts HAProxy with lines for its parts; `None`, with a message, if it is not installed.
fn start(place: Place, folder: Folder, global: &str, bind: &str, rules: &str) -> Option<Service> {
    if !has(PROGRAM) {
        return None;
    }
    let port = free_port();
    let text = format!(
        "global\n nbthread 1\n{global}\ndefaults\n mode http\n timeout connect 5s\n timeout client 60s\n \
         timeout server 60s\nfrontend case\n bind 127.0.0.1:{port} {bind}\n{rules}\n"
    );
    let conf = write(&folder, "conf", &text);
    Some(Service::start(place, &[PROGRAM, "-db", "-f", &conf], folder, port))
}

fn before(origin: &str, server: &str) -> Option<(Service, corpus::Program)> {
    let origin = corpus::start(origin, stage::ALL);
    let rules =
        format!(" default_backend origin\nbackend origin\n server one 127.0.0.1:{} {server}", origin.port());
    Some((start(stage::ALL, Folder::new("haproxy"), "", "", &rules)?, origin))
}

#[test]
#[ignore = "long"]
fn a_slow_backend_is_the_first_finding() {
    let _stage = stage();
    let Some((haproxy, origin)) = before("slow-origin", "") else { return };
    let _clients = fetch(haproxy.port, "/", 3, REST);
    let words = [&format!("127.0.0.1:{}", origin.port()), "(cases-"];
    expect_cause("HAProxy, a slow backend", haproxy.pid(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn a_fast_backend_is_no_finding() {
    let _stage = stage();
    let Some((haproxy, _origin)) = before("origin", "") else { return };
    let _clients = fetch(haproxy.port, "/", 3, REST);
    expect_none("HAProxy, a fast backend", haproxy.pid(), "R22");
}

#[test]
#[ignore = "long"]
fn a_queue_for_a_backend_is_a_wait_for_that_backend() {
    let _stage = stage();
    let Some((haproxy, origin)) = before("slow-origin", "maxconn 1") else { return };
    let _clients = fetch(haproxy.port, "/", 12, REST);
    let words = [&format!("127.0.0.1:{}", origin.port()), "(cases-"];
    expect_cause("HAProxy, a queue for a slow backend", haproxy.pid(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn the_limit_of_connections_is_the_first_finding() {
    let _stage = stage();
    let folder = Folder::new("haproxy");
    let Some(haproxy) = start(stage::ALL, folder, "", "", " maxconn 4\n http-request return status 200")
    else {
        return;
    };
    let _silent = silent(haproxy.port, 6);
    std::thread::sleep(Duration::from_millis(200));
    let _clients = fetch(haproxy.port, "/", 6, REST);
    let port = haproxy.port.to_string();
    expect_cause("HAProxy, maxconn reached", haproxy.pid(), "R10", &[&port]);
}

#[test]
#[ignore = "long"]
fn below_the_limit_of_connections_nothing_waits() {
    let _stage = stage();
    let folder = Folder::new("haproxy");
    let Some(haproxy) = start(stage::ALL, folder, "", "", " maxconn 40\n http-request return status 200")
    else {
        return;
    };
    let _silent = silent(haproxy.port, 6);
    let _clients = fetch(haproxy.port, "/", 6, REST);
    expect_none("HAProxy, below maxconn", haproxy.pid(), "R10");
}

fn with_lua(count: &str) -> Option<Service> {
    let folder = Folder::new("haproxy-lua");
    let script = write(&folder, "work.lua", &LUA.replace("COUNT", count));
    start(stage::SERVER, folder, &format!(" lua-load {script}"), "", " http-request use-service lua.work")
}

#[test]
#[ignore = "long"]
fn a_lua_script_is_the_first_finding() {
    let _stage = stage();
    let Some(haproxy) = with_lua("500000") else { return };
    let _clients = fetch_kept(haproxy.port, "/", 3);
    expect_cause("HAProxy, a long Lua script", haproxy.pid(), "R25", &["Lua scripts take"]);
}

#[test]
#[ignore = "long"]
fn a_short_lua_script_is_no_finding() {
    let _stage = stage();
    let Some(haproxy) = with_lua("1") else { return };
    let _clients = fetch(haproxy.port, "/", 2, REST);
    expect("HAProxy, a short Lua script", haproxy.pid(), |seen| {
        !seen.titles().first().is_some_and(|title| title.contains("lua"))
    });
}

fn with_tls(clients: impl Fn(u16) -> Vec<Helper>) -> Option<(Service, Vec<Helper>)> {
    let folder = Folder::new("haproxy-tls");
    let (key, certificate) = (folder.file("both.key"), folder.file("both"));
    make_certificate(&key, &certificate);
    let bind = format!("ssl crt {certificate}");
    let global = " tune.ssl.cachesize 0";
    let haproxy = start(stage::SERVER, folder, global, &bind, " http-request return status 200")?;
    let clients = clients(haproxy.port);
    Some((haproxy, clients))
}

#[test]
#[ignore = "long"]
fn tls_handshakes_are_the_first_finding() {
    let _stage = stage();
    let Some((haproxy, _clients)) = with_tls(handshakes) else { return };
    let words = ["TLS handshakes take"];
    expect_cause("HAProxy, a TLS handshake for each request", haproxy.pid(), "R25", &words);
}

#[test]
#[ignore = "long"]
fn kept_tls_connections_have_no_handshakes() {
    let _stage = stage();
    let Some((haproxy, _clients)) = with_tls(kept_tls) else { return };
    expect("HAProxy, TLS connections that stay", haproxy.pid(), |seen| {
        !seen.titles().iter().any(|title| title.contains("handshake") || title.contains("rsa"))
    });
}
