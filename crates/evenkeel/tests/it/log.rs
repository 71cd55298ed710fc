//! Destinations of the server log: renamed files, syslog, and hanging disks and pipes, which must not delay
//! clients.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Server};
use rustix::fs::{CWD, Mode, mkfifoat};

use crate::disk::{Disk, is_root, run};
use crate::{program, start, wait_until};

/// More lines than the server buffers while its log hangs.
const LINES: usize = 6_000;

/// Longest that a command may take while the log hangs; the log itself hangs for as long as the test likes.
const ANSWER: Duration = Duration::from_secs(2);

fn logging_to(file: &str, args: &[&str]) -> Server {
    start(&[&["--logfile", file, "--enable-debug-command", "local"], args].concat())
}

/// Logs `count` lines, and checks the duration of each command.
fn log_lines(client: &mut Client, name: &str, count: usize) {
    for at in 0..count {
        let asked = Instant::now();
        assert_eq!(client.run(&format!("DEBUG LOG {name}-{at}.")).to_string(), "OK");
        assert!(asked.elapsed() < ANSWER, "line {at} took {:?}", asked.elapsed());
    }
}

fn lost(server: &Server) -> usize {
    server.info("log_lines_lost").parse().expect("a number")
}

/// Checks that every line is written or counted as lost, and that the log reports the loss behind the
/// buffered lines.
fn check_text(text: &str, lost: usize) {
    let kept = (0..LINES).filter(|at| text.contains(&format!(" hung-{at}.\n"))).count();
    assert_eq!(kept + lost, LINES, "{lost} were lost");
    assert!(lost > 0, "nothing was lost");
    let said = text.find(&format!("# {lost} log lines were dropped")).expect("the log says so");
    assert!(text.find(" hung-0.\n").expect("the first line") < said);
    assert!(said < text.find(" after-0.\n").expect("the log goes on"));
}

#[test]
fn a_renamed_or_removed_log_file_is_created_again() {
    let server = logging_to("{dir}/server.log", &[]);
    let mut client = server.connect();
    let [own, rotated] = ["server.log", "server.log.1"].map(|name| server.folder().join(name));
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    log_lines(&mut client, "before", 1);
    wait_until("the first line is there", || read(&own).contains("before-0"));
    fs::rename(&own, &rotated).expect("renamed");
    // A log rotation may signal the server, or not.
    server.signal(libc::SIGHUP);
    log_lines(&mut client, "renamed", 1);
    wait_until("the second line is in a new file", || read(&own).contains("renamed-0"));
    assert!(!read(&rotated).contains("renamed-0"));
    fs::remove_file(&own).expect("removed");
    log_lines(&mut client, "removed", 1);
    wait_until("the third line is in a newer file", || read(&own).contains("removed-0"));
    assert_eq!(server.log(), "", "nothing goes to the standard output");
}

#[test]
fn a_log_file_that_cannot_be_opened_fails_the_start() {
    for (file, why) in [("{dir}/none/server.log", "No such file or directory"), ("{dir}", "Is a directory")] {
        let refused = Server::try_start(&program(), &["--logfile", file]).err().expect("it must not start");
        let name = file.trim_start_matches("{dir}");
        let line =
            refused.lines().find(|line| line.starts_with("Can't open the log file ")).expect("a reason");
        assert!(line.ends_with(&format!("{name}: {why}")), "{line}");
    }
}

#[test]
fn levels_are_changed_while_the_server_runs() {
    let server = logging_to("{dir}/server.log", &["--loglevel", "nothing"]);
    let mut client = server.connect();
    let file = server.folder().join("server.log");
    let read = || fs::read_to_string(&file).unwrap_or_default();
    log_lines(&mut client, "nothing", 1);
    assert_eq!(client.run("CONFIG SET loglevel warning").to_string(), "OK");
    log_lines(&mut client, "warning", 1);
    wait_until("warnings are written", || read().contains("# DEBUG LOG: warning-0."));
    assert_eq!(read().lines().count(), 1, "{}", read());
}

/// Text from clients, other servers and files begins no new line, and sends no control codes to a terminal.
#[test]
fn foreign_text_in_the_log_is_escaped() {
    let server = logging_to("{dir}/server.log", &["--loglevel", "debug"]);
    let mut client = server.connect();
    const FORGED: &str = "a\r\n1:M 01 Jan 2026 00:00:00.000 # forged\x1b[31m\u{9b}2J\0b";
    let script = "redis.log(redis.LOG_WARNING, ARGV[1]) return 1";
    assert_eq!(client.call(&["EVAL", script, "0", FORGED]).to_string(), ":1");
    let writes = "redis.call('SET', KEYS[1], 'v') redis.log(redis.LOG_WARNING, ARGV[1]) return 1";
    assert_eq!(client.call(&["EVAL", writes, "1", "k", FORGED]).to_string(), ":1");
    assert_eq!(client.call(&["DEBUG", "LOG", FORGED]).to_string(), "OK");
    for other in [&["REPLICAOF", FORGED, "1"], &["REPLICAOF", "no", "one"]] {
        assert_eq!(client.call(other).to_string(), "OK");
    }
    let read = || fs::read(server.folder().join("server.log")).unwrap_or_default();
    let read = || String::from_utf8(read()).expect("text");
    client.run("DEBUG LOG last");
    wait_until("the last line is there", || read().contains("DEBUG LOG: last"));
    let text = read();
    let forged = r"a\r\n1:M 01 Jan 2026 00:00:00.000 # forged\u{1b}[31m\u{9b}2J\u{0}b";
    assert!(text.matches(forged).count() >= 4, "{text}");
    let pid = format!("{}:", server.pid());
    for line in text.split('\n').filter(|line| !line.is_empty()) {
        assert!(line.starts_with(&pid) && !line.contains(char::is_control), "{line:?} in {text}");
    }
}

/// Lines in JSON can be parsed whatever they say, and the form can be changed at any time.
#[test]
fn lines_have_the_configured_form() {
    let server = logging_to("{dir}/server.log", &["--log-format", "json", "--always-show-logo", "yes"]);
    let mut client = server.connect();
    let read = || fs::read_to_string(server.folder().join("server.log")).unwrap_or_default();
    assert_eq!(client.call(&["DEBUG", "LOG", "a \"b\" \\ \t\r\n\x0c\x08"]).to_string(), "OK");
    wait_until("the line is there", || {
        read().contains(r#""level":"warning","message":"DEBUG LOG: a \"b\" \\ \t\r\n\f\b"}"#)
    });
    let (text, pid) = (read(), server.pid());
    assert!(text.contains(&format!("PID: {pid}")) && text.contains("Server initialized"), "{text}");
    for line in text.lines() {
        assert!(line.starts_with(&format!("{{\"pid\":{pid},\"role\":\"primary\",")), "{line}");
    }
    let set = "CONFIG SET log-format logfmt log-timestamp-format milliseconds";
    assert_eq!(client.run(set).to_string(), "OK");
    client.call(&["DEBUG", "LOG", "now \"so\""]);
    wait_until("the line is there", || {
        let text = read();
        let line = text.lines().last().unwrap_or_default();
        line.starts_with(&format!("pid={pid} role=primary timestamp=\"1"))
            && line.ends_with(" level=warning message=\"DEBUG LOG: now 'so'\"")
    });
}

/// A malformed request is shown, unless users' data are to be kept out of the log.
#[test]
fn malformed_requests_are_logged() {
    for (hide, shown) in [("no", "$blabla..'"), ("yes", "Query buffer: *redacted*")] {
        let args = ["--loglevel", "verbose", "--hide-user-data-from-log", hide];
        let server = logging_to("{dir}/server.log", &args);
        let mut client = server.connect();
        client.send_raw(b"*2\r\n$3\r\nGET\r\n$blabla\r\n").expect("sent");
        let read = || fs::read_to_string(server.folder().join("server.log")).unwrap_or_default();
        wait_until("the request is logged", || read().contains("Protocol error (") && read().contains(shown));
    }
}

/// SIGALRM and the watchdog show what all threads are doing, and change nothing else.
#[test]
fn stacks_of_all_threads_are_logged() {
    let server = logging_to("{dir}/server.log", &["--watchdog-period", "100"]);
    let mut client = server.connect();
    let read = || fs::read_to_string(server.folder().join("server.log")).unwrap_or_default();
    server.signal(libc::SIGALRM);
    wait_until("the stacks are there", || read().contains("STACK TRACES DONE"));
    let text = read();
    assert!(text.contains("Received SIGALRM") && text.contains("Thread 'worker-0'"), "{text}");
    assert_eq!(client.run("DEBUG SLEEP 0.5").to_string(), "OK");
    wait_until("the watchdog speaks", || read().contains("WATCHDOG TIMER EXPIRED"));
    assert_eq!(client.run("PING").to_string(), "PONG");
}

/// A pipe without a reader stands for a hanging log disk.
#[test]
fn a_log_pipe_without_a_reader_delays_no_client() {
    let folder = start(&[]); // its folder is used, and removed with it
    let pipe = folder.folder().join("pipe");
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).expect("a pipe");
    let mut server = logging_to(pipe.to_str().expect("text"), &[]);
    let mut client = server.connect();
    log_lines(&mut client, "hung", LINES);
    let lost_lines = lost(&server);
    // Opens without waiting for a writer, so that the reader cannot hang either.
    let reader =
        fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).expect("opened");
    let mut text = Vec::new();
    wait_until("what waited is written", || {
        let _ = std::io::Read::read_to_end(&mut &reader, &mut text); // possibly empty
        let all = String::from_utf8_lossy(&text).contains(&format!("{lost_lines} log lines were dropped"));
        all && String::from_utf8_lossy(&text).contains("hung-0.")
    });
    log_lines(&mut client, "after", 1);
    wait_until("the log goes on", || {
        let _ = std::io::Read::read_to_end(&mut &reader, &mut text);
        String::from_utf8_lossy(&text).contains("after-0.")
    });
    check_text(&String::from_utf8_lossy(&text), lost_lines);
    assert_eq!(lost(&server), lost_lines);
    assert_eq!(client.run("CONFIG RESETSTAT").to_string(), "OK");
    assert_eq!(lost(&server), 0);
    // Nor does a shutdown wait for it.
    drop(reader);
    log_lines(&mut client, "full", LINES);
    let asked = Instant::now();
    assert!(server.stop().success());
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
}

/// A mount needs root; without it the test is skipped.
#[test]
fn a_frozen_log_disk_delays_no_client() {
    let Some(disk) = Disk::mount("log", 16) else { return };
    let file = disk.path().join("server.log");
    let server = logging_to(file.to_str().expect("text"), &[]);
    let mut client = server.connect();
    let frozen = disk.freeze();
    log_lines(&mut client, "hung", LINES);
    let lost_lines = lost(&server);
    drop(frozen);
    let read = || fs::read_to_string(&file).unwrap_or_default();
    wait_until("what waited is written", || read().contains(&format!("{lost_lines} log lines were dropped")));
    log_lines(&mut client, "after", 1);
    wait_until("the log goes on", || read().contains("after-0."));
    check_text(&read(), lost_lines);
    drop(server);
}

/// The syslog socket belongs to the test, in a mount namespace of the server. Needs root.
#[test]
fn syslog_gets_lines_with_name_level_and_facility() {
    let holder = start(&[]); // its folder is used, and removed with it
    let devices = holder.folder().join("dev");
    fs::create_dir(&devices).expect("a folder");
    let socket = UnixDatagram::bind(devices.join("log")).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    if !is_root() || !run("unshare", &["-m"], Path::new("true")) {
        println!("left out: there can be no mount namespace here");
        return;
    }
    let args = ["--syslog-enabled", "yes", "--syslog-ident", "keel-7", "--syslog-facility", "local3"];
    let debug = ["--enable-debug-command", "local", "--logfile", ""];
    let in_namespace = ["unshare", "-m", "sh", "-c", "mount --bind \"$0\" /dev && exec \"$@\""];
    let in_namespace = [&in_namespace[..], &[devices.to_str().expect("text")]].concat();
    let server = Server::start(&program().started_by(&in_namespace), &[&args[..], &debug].concat());
    assert_eq!(server.connect().call(&["DEBUG", "LOG", "two\nlines"]).to_string(), "OK");
    log_lines(&mut server.connect(), "told", 1);
    let (mut packet, mut packets) = ([0; 4096], Vec::new());
    let line = loop {
        let len = socket.recv(&mut packet).expect("a line");
        let line = String::from_utf8_lossy(&packet[..len]).into_owned();
        if line.contains("told-0.") {
            break line;
        }
        packets.push(line);
    };
    assert!(packets.iter().any(|line| line.contains(r"DEBUG LOG: two\nlines")), "{packets:?}");
    // Facility 19, level 4.
    assert!(line.starts_with("<156>"), "{line}");
    assert!(line.contains(&format!(" keel-7[{}]: DEBUG LOG: told-0.", server.pid())), "{line}");
    wait_until("the standard output gets it as well", || server.log().contains("DEBUG LOG: told-0."));
}

#[test]
fn crash_reports_follow_the_settings() {
    for (at_start, then) in [("yes", None), ("no", None), ("yes", Some("no")), ("no", Some("yes"))] {
        let mut server = start(&["--crash-log-enabled", at_start]);
        if let Some(value) = then {
            let reply = server.connect().run(&format!("CONFIG SET crash-log-enabled {value}"));
            assert_eq!(reply.to_string(), "OK");
        }
        server.signal(libc::SIGABRT);
        wait_until("it ends", || !server.is_alive());
        let is_reported = server.log().contains("BUG REPORT START");
        assert_eq!(
            is_reported,
            then.unwrap_or(at_start) == "yes",
            "{at_start}, then {then:?}: {}",
            server.log()
        );
    }
}
