//! nginx with one worker.

use std::time::Duration;

use evenkeel_testkit::server::free_port;

use super::loads::{Clients, deaf, fetch, fetch_cold, fetch_kept, silent};
use super::{
    Helper, Service, SilentNames, Unreachable, expect_cause, expect_none, has, named_pipe, succeed, write,
};
use crate::corpus;
use crate::squid::Stopped;
use crate::stage::{self, Place, stage};
use crate::{Folder, real};

const PROGRAM: &str = "/usr/sbin/nginx";
const REST: Duration = Duration::from_millis(2);

/// Starts nginx with directives for its only server; `None`, with a message, if it is not installed.
fn start(place: Place, folder: Folder, directives: &str) -> Option<Service> {
    start_on("", place, folder, directives)
}

/// As `start`, with more words for the listener.
fn start_on(listen: &str, place: Place, folder: Folder, directives: &str) -> Option<Service> {
    start_in("", listen, place, folder, directives)
}

/// As `start_on`, with directives of the outermost level.
fn start_in(main: &str, listen: &str, place: Place, folder: Folder, directives: &str) -> Option<Service> {
    if !has(PROGRAM) {
        return None;
    }
    let port = free_port();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {};\n", folder.file(kind)))
        .collect();
    let text = format!(
        "daemon off;\nworker_processes 1;\nuser root;\n{main}\npid {};\nerror_log {};\nevents {{}}\nhttp {{\n\
         access_log off;\nkeepalive_requests 1000000;\n{temporary}server {{\n\
         listen 127.0.0.1:{port} {listen};\n\
         root {};\n{directives}\n}}\n}}\n",
        folder.file("pid"),
        folder.file("error.log"),
        folder.file(""),
    );
    let conf = write(&folder, "conf", &text);
    let prefix = folder.file("");
    Some(Service::start(place, &[PROGRAM, "-p", &prefix, "-c", &conf], folder, port))
}

fn proxy_to(origin: &str) -> Option<(Service, corpus::Program)> {
    let origin = corpus::start(origin, stage::ALL);
    let directives = format!("location / {{ proxy_pass http://127.0.0.1:{}; }}", origin.port());
    Some((start(stage::ALL, Folder::new("nginx"), &directives)?, origin))
}

#[test]
#[ignore = "long"]
fn a_slow_upstream_is_the_first_finding() {
    let _stage = stage();
    let Some((nginx, origin)) = proxy_to("slow-origin") else { return };
    let _clients = fetch(nginx.port, "/", 3, REST);
    let words = [&format!("127.0.0.1:{}", origin.port()), "(cases-"];
    expect_cause("nginx, a slow upstream", nginx.worker(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn a_fast_upstream_is_no_finding() {
    let _stage = stage();
    let Some((nginx, _origin)) = proxy_to("origin") else { return };
    let _clients = fetch(nginx.port, "/", 3, REST);
    expect_none("nginx, a fast upstream", nginx.worker(), "R22");
}

/// nginx before a gunicorn on a Unix socket, whose handler sleeps.
fn before_gunicorn(sleep: &str) -> Option<(Service, Service)> {
    let folder = Folder::new("nginx-unix");
    let socket = folder.file("app.sock");
    let (work, bind) = (format!("time.sleep({sleep})"), format!("unix:{socket}"));
    let gunicorn = real::gunicorn::start_with(&work, &["--bind", &bind])?;
    let directives = format!("location / {{ proxy_pass http://unix:{socket}; }}");
    Some((start(stage::ALL, folder, &directives)?, gunicorn))
}

#[test]
#[ignore = "long"]
fn a_slow_upstream_on_a_unix_socket_is_the_first_finding() {
    let _stage = stage();
    let Some((nginx, _gunicorn)) = before_gunicorn("0.2") else { return };
    let _clients = fetch(nginx.port, "/", 3, REST);
    expect_cause("nginx, a slow upstream on a Unix socket", nginx.worker(), "R22", &["app.sock|gunicorn"]);
}

#[test]
#[ignore = "long"]
fn a_fast_upstream_on_a_unix_socket_is_no_finding() {
    let _stage = stage();
    let Some((nginx, _gunicorn)) = before_gunicorn("0") else { return };
    let _clients = fetch(nginx.port, "/", 3, REST);
    expect_none("nginx, a fast upstream on a Unix socket", nginx.worker(), "R22");
}

const FILES: usize = 4;
const FILE_BYTES: usize = 8 << 20;
/// Of files that are read from the disk each time: sending them takes far less time than reading them.
const COLD_BYTES: usize = 256 << 10;
const EPIC_BYTES: u64 = 200 << 20;

/// nginx with large files, of which the largest exceeds all socket buffers.
fn with_files(place: Place, directives: &str, bytes: usize) -> Option<Service> {
    let folder = Folder::new("nginx-files");
    for number in 0..FILES {
        let file = std::fs::File::create(folder.file(&format!("film{number}"))).expect("a private folder");
        std::io::Write::write_all(&mut &file, &vec![b'x'; bytes]).expect("room on the disk");
        file.sync_all().expect("room on the disk");
    }
    let sparse = std::fs::File::create(folder.file("epic")).expect("a private folder");
    sparse.set_len(EPIC_BYTES).expect("no room is taken");
    start(place, folder, directives)
}

/// Four clients that fetch a file each. `cold`: the kernel has forgotten it each time.
fn fetch_files(nginx: &Service, cold: bool) -> Vec<Clients> {
    let client = |number: usize| {
        let name = format!("film{number}");
        let path = format!("/{name}");
        if cold {
            fetch_cold(nginx.port, &path, &nginx.folder.file(&name))
        } else {
            fetch(nginx.port, &path, 1, Duration::ZERO)
        }
    };
    (0..FILES).map(client).collect()
}

#[test]
#[ignore = "long"]
fn reads_of_cold_files_are_the_first_finding() {
    let _stage = stage();
    let Some(nginx) = with_files(stage::ALL, "sendfile off;", COLD_BYTES) else { return };
    let _clients = fetch_files(&nginx, true);
    expect_cause("nginx, cold files, read", nginx.worker(), "R16", &["pread64", "film"]);
}

#[test]
#[ignore = "long"]
fn sendfile_of_cold_files_is_the_first_finding() {
    let _stage = stage();
    let Some(nginx) = with_files(stage::ALL, "sendfile on;", COLD_BYTES) else { return };
    let _clients = fetch_files(&nginx, true);
    expect_cause(
        "nginx, cold files, sendfile",
        nginx.worker(),
        "R16",
        &["sendfile", "film|a file that it sends"],
    );
}

#[test]
#[ignore = "long"]
fn warm_files_are_no_finding() {
    let _stage = stage();
    for directives in ["sendfile off;", "sendfile on;"] {
        let Some(nginx) = with_files(stage::ALL, directives, COLD_BYTES) else { return };
        let _clients = fetch_files(&nginx, false);
        expect_none("nginx, warm files", nginx.worker(), "R16");
    }
}

/// nginx that logs to a named pipe, and the pipe's reader.
fn logging() -> Option<(Service, Helper)> {
    let folder = Folder::new("nginx-log");
    let pipe = named_pipe(&folder, "log.pipe");
    let reader = Helper::start(stage::ALL, &["cat", &pipe]);
    let directives = format!("access_log {pipe} combined; location / {{ return 200 ok; }}");
    Some((start(stage::ALL, folder, &directives)?, reader))
}

#[test]
#[ignore = "long"]
fn a_stopped_reader_of_the_access_log_is_the_first_finding() {
    let _stage = stage();
    let Some((nginx, reader)) = logging() else { return };
    let path = format!("/{}", "x".repeat(1_000));
    let _clients = fetch(nginx.port, &path, 3, REST);
    let _stopped = Stopped::new(reader.pid().cast_signed());
    let words = [&format!("cat ({})", reader.pid()), "stopped"];
    expect_cause("nginx, the reader of its log stopped", nginx.worker(), "R11", &words);
}

#[test]
#[ignore = "long"]
fn a_reader_of_the_access_log_that_reads_is_no_finding() {
    let _stage = stage();
    let Some((nginx, _reader)) = logging() else { return };
    let path = format!("/{}", "x".repeat(1_000));
    let _clients = fetch(nginx.port, &path, 3, REST);
    expect_none("nginx, its log is read", nginx.worker(), "R11");
}

#[test]
#[ignore = "long"]
fn a_stopped_worker_is_the_first_finding() {
    let _stage = stage();
    let folder = Folder::new("nginx");
    let Some(nginx) = start_on("backlog=5", stage::ALL, folder, "location / { return 200 ok; }") else {
        return;
    };
    let worker = nginx.worker();
    let _stopped = Stopped::new(worker.cast_signed());
    let _clients = fetch(nginx.port, "/", 8, REST);
    expect_cause("nginx, its worker stopped", worker, "R23", &["stopped"]);
}

#[test]
#[ignore = "long"]
fn a_worker_that_runs_is_not_stopped() {
    let _stage = stage();
    let folder = Folder::new("nginx");
    let Some(nginx) = start_on("backlog=5", stage::ALL, folder, "location / { return 200 ok; }") else {
        return;
    };
    let _clients = fetch(nginx.port, "/", 4, REST);
    let worker = nginx.worker();
    expect_none("nginx, its worker runs", worker, "R23");
}

/// nginx with TLS, and a certificate of its own.
fn with_tls() -> Option<Service> {
    let folder = Folder::new("nginx-tls");
    let (key, certificate) = (folder.file("key"), folder.file("certificate"));
    make_certificate(&key, &certificate);
    let directives = format!(
        "ssl_certificate {certificate};\nssl_certificate_key {key};\nssl_session_tickets off;\n\
         location / {{ return 200 ok; }}"
    );
    start_on("ssl", stage::SERVER, folder, &directives)
}

pub(super) fn make_certificate(key: &str, certificate: &str) {
    let request =
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=case"];
    succeed(&[&request[..], &["-keyout", key, "-out", certificate]].concat());
}

/// Endless TLS handshakes.
pub(super) fn handshakes(port: u16) -> Vec<Helper> {
    let address = format!("127.0.0.1:{port}");
    let words = ["openssl", "s_time", "-connect", &address, "-new", "-time", "60", "-www", "/"];
    (0..4).map(|_| Helper::start(stage::LOAD, &words)).collect()
}

/// Endless requests on TLS connections that stay.
pub(super) fn kept_tls(port: u16) -> Vec<Helper> {
    let request = "GET / HTTP/1.1\\r\\nHost: case\\r\\n\\r";
    let words = format!("yes $'{request}' | exec openssl s_client -quiet -connect 127.0.0.1:{port}");
    (0..2).map(|_| Helper::start(stage::LOAD, &["timeout", "60", "bash", "-c", &words])).collect()
}

#[test]
#[ignore = "long"]
fn tls_handshakes_are_the_first_finding() {
    let _stage = stage();
    let Some(nginx) = with_tls() else { return };
    let _clients = handshakes(nginx.port);
    expect_cause("nginx, a TLS handshake for each request", nginx.worker(), "R25", &["TLS handshakes take"]);
}

#[test]
#[ignore = "long"]
fn kept_tls_connections_have_no_handshakes() {
    let _stage = stage();
    let Some(nginx) = with_tls() else { return };
    let _clients = kept_tls(nginx.port);
    let worker = nginx.worker();
    real::expect("nginx, TLS connections that stay", worker, |seen| {
        !seen.titles().iter().any(|title| title.contains("handshake") || title.contains("rsa"))
    });
}

/// nginx with a page of text of 2 MB.
fn with_text(gzip: &str) -> Option<Service> {
    let folder = Folder::new("nginx-gzip");
    let mut random = evenkeel_testkit::Random::new(1);
    let text: String = (0..200_000).map(|_| format!("{:x} ", random.below(1 << 30))).collect();
    write(&folder, "page.html", &text);
    start(stage::SERVER, folder, gzip)
}

#[test]
#[ignore = "long"]
fn compression_is_the_first_finding() {
    let _stage = stage();
    let Some(nginx) = with_text("gzip on; gzip_comp_level 9; gzip_http_version 1.0;") else {
        return;
    };
    let _clients = fetch(nginx.port, "/page.html", 3, Duration::ZERO);
    expect_cause("nginx, gzip at level 9", nginx.worker(), "R25|R17", &["Compressing takes|libz"]);
}

#[test]
#[ignore = "long"]
fn without_compression_it_is_no_finding() {
    let _stage = stage();
    let Some(nginx) = with_text("gzip off;") else { return };
    let _clients = fetch(nginx.port, "/page.html", 3, Duration::ZERO);
    real::expect("nginx, no gzip", nginx.worker(), |seen| {
        let wrong = ["deflate", "libz", "Unix socket"]; // it has none
        !seen.titles().iter().any(|title| wrong.iter().any(|word| title.contains(word)))
    });
}

#[test]
#[ignore = "long"]
fn a_neighbour_on_the_cpu_of_the_worker_is_the_first_finding() {
    let _stage = stage();
    let Some(nginx) = with_text("location / { return 200 ok; }") else { return };
    let _clients = fetch_kept(nginx.port, "/", 4);
    let hog = corpus::start("hog", stage::SERVER);
    let words = [format!("({})", hog.pid())];
    expect_cause("nginx, a neighbour on its CPU", nginx.worker(), "R8", &[&words[0]]);
}

#[test]
#[ignore = "long"]
fn a_worker_with_a_cpu_of_its_own_does_not_wait_for_it() {
    let _stage = stage();
    let Some(nginx) = with_text("location / { return 200 ok; }") else { return };
    let _clients = fetch_kept(nginx.port, "/", 4);
    expect_none("nginx, a CPU of its own", nginx.worker(), "R8");
}

#[test]
#[ignore = "long"]
fn a_download_that_is_not_read_is_the_first_finding() {
    let _stage = stage();
    let Some(nginx) = with_files(stage::ALL, "sendfile on;", FILE_BYTES) else { return };
    let _deaf = deaf(nginx.port, "GET /epic HTTP/1.0\r\n\r\n", 1);
    expect_cause(
        "nginx, a download that is not read",
        nginx.worker(),
        "R11",
        &["127.0.0.1:", "does not read"],
    );
}

#[test]
#[ignore = "long"]
fn a_download_that_is_read_is_no_finding() {
    let _stage = stage();
    let Some(nginx) = with_files(stage::ALL, "sendfile on;", FILE_BYTES) else { return };
    let _clients = fetch(nginx.port, "/epic", 1, REST);
    expect_none("nginx, a download that is read", nginx.worker(), "R11");
}

#[test]
#[ignore = "long"]
fn a_silent_name_server_is_the_first_finding() {
    let _stage = stage();
    let Some(_names) = SilentNames::start() else { return };
    let directives = format!(
        "resolver {} ipv6=off; resolver_timeout 1s;\n\
         location / {{ set $behind orders.internal; proxy_pass http://$behind; }}",
        SilentNames::ADDRESS
    );
    let Some(nginx) = start(stage::ALL, Folder::new("nginx"), &directives) else { return };
    let _clients = fetch(nginx.port, "/", 3, REST);
    let words = ["name server", SilentNames::ADDRESS];
    expect_cause("nginx, a silent name server", nginx.worker(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn an_upstream_that_accepts_no_connections_is_the_first_finding() {
    let _stage = stage();
    let upstream = Unreachable::start();
    let directives = format!(
        "location / {{ proxy_connect_timeout 2s; proxy_pass http://127.0.0.1:{}; }}",
        upstream.port()
    );
    let Some(nginx) = start(stage::ALL, Folder::new("nginx"), &directives) else { return };
    let _clients = fetch(nginx.port, "/", 3, REST);
    let address = format!("127.0.0.1:{}", upstream.port());
    expect_cause("nginx, no connection to an upstream", nginx.worker(), "R22", &[&address]);
}

/// nginx with 64 descriptors, and clients that keep their connections.
fn with_few_descriptors(clients: usize) -> Option<(Service, Clients)> {
    let main = "worker_rlimit_nofile 64;";
    let nginx = start_in(main, "", stage::ALL, Folder::new("nginx-files"), "")?;
    let clients = silent(nginx.port, clients);
    Some((nginx, clients))
}

#[test]
#[ignore = "long"]
fn a_worker_without_a_free_descriptor_is_the_first_finding() {
    let _stage = stage();
    let Some((nginx, _clients)) = with_few_descriptors(90) else { return };
    let words = ["all of its 64 descriptors"];
    expect_cause("nginx, no free descriptor", nginx.worker(), "R27", &words);
}

#[test]
#[ignore = "long"]
fn a_worker_with_free_descriptors_has_no_such_finding() {
    let _stage = stage();
    let Some((nginx, _clients)) = with_few_descriptors(20) else { return };
    expect_none("nginx, free descriptors", nginx.worker(), "R27");
}
