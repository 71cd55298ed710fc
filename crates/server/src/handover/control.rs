//! `evenkeel upgrade`, and the socket on which it asks a server.
//!
//! The socket has a name in the abstract name space, which is the network name space's: a container has its
//! own. It has no permissions, so the server asks the kernel for the user of the other process: the server's
//! own user and root may ask. SIGUSR2 does the same as a request without a program.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::predecessor;
use crate::server::Server;
use evenkeel_runtime::threads;

/// The beginning of the names of the sockets; a process id follows.
const NAME: &str = "evenkeel/upgrade/";

/// Longest time in which a request has to arrive.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// Number of times that the program looks for the server, and the time between two looks.
const LOOKS: u32 = 10;
const LOOK_TIME: Duration = Duration::from_millis(50);

const USAGE: &str = "\
Usage: evenkeel upgrade [--pid PID | --port PORT] [--binary PATH]

Replaces the program of a running server, which keeps its data and its clients. Without --pid and --port,
there has to be a single server that this user may upgrade. The program is the file from which the server was
started, as it is now, or PATH.
";

/// Serves requests, on a thread of its own.
pub(crate) fn start(server: &Arc<Server>) {
    let name = format!("{NAME}{}", std::process::id());
    let listener =
        SocketAddr::from_abstract_name(&name).and_then(|address| UnixListener::bind_addr(&address));
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return log::warn!("'evenkeel upgrade' cannot reach this server: {error}"),
    };
    let server = server.clone();
    let spawned = threads::named("upgrade").spawn(move || {
        for stream in listener.incoming().flatten().filter(may_ask) {
            let server = server.clone();
            // Others are answered meanwhile. Without a thread, this request has no answer.
            let _ = threads::named("upgrade-now").spawn(move || serve(&server, stream));
        }
    });
    if let Err(error) = spawned {
        log::warn!("'evenkeel upgrade' cannot reach this server: {error}");
    }
}

/// Begins an upgrade on a thread of its own, for a signal.
pub(crate) fn upgrade_soon(server: &Arc<Server>) {
    let server = server.clone();
    let spawned = threads::named("upgrade-now").spawn(move || {
        let result = predecessor::run(&server, None, &mut |line| log::info!("Upgrade: {line}"));
        if let Ok(report) = result {
            predecessor::end(&server, &report);
        }
    });
    if let Err(error) = spawned {
        log::warn!("Cannot begin the upgrade: {error}");
    }
}

/// Whether the process at the other end is of this server's user, or of root.
fn may_ask(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}

/// A request is a line: the ports of the server are asked for, or an upgrade, with a program or without.
fn serve(server: &Arc<Server>, stream: UnixStream) {
    let mut line = Vec::new();
    let read = stream.set_read_timeout(Some(REQUEST_MAX)).and_then(|()| {
        let mut reader = BufReader::new(&stream);
        reader.read_until(b'\n', &mut line)
    });
    if read.is_err() {
        return;
    }
    let line = line.strip_suffix(b"\n").unwrap_or(&line);
    let answer = |text: &str| drop((&stream).write_all(format!("{text}\n").as_bytes()));
    if line == b"ports" {
        let settings = server.core.settings();
        return answer(&format!("{} {}", settings.port, settings.tls_port));
    }
    let Some(program) = line.strip_prefix(b"upgrade") else { return answer("error unknown request") };
    let program = program.strip_prefix(b" ").map(|path| PathBuf::from(OsString::from_vec(path.to_vec())));
    let result = predecessor::run(server, program.as_deref(), &mut |line| answer(&format!("info {line}")));
    match result {
        Ok(report) => {
            answer(&format!(
                "done process {} (version {}) serves {} clients; they waited for {} ms",
                report.pid,
                report.version,
                report.clients,
                report.paused.as_millis()
            ));
            let parts =
                report.parts.iter().map(|(part, time)| format!("{part} {:.1}", time.as_secs_f64() * 1e3));
            answer(&format!("info of these ms: {}", parts.collect::<Vec<_>>().join(", ")));
            let left = report.left;
            for (count, what) in [
                (left.tls, "with TLS: they have to connect again"),
                (left.http, "of HTTP requests: these ended"),
                (left.closing, "that were about to be closed"),
            ] {
                if count > 0 {
                    answer(&format!("info closed: {count} connections {what}"));
                }
            }
            predecessor::end(server, &report);
        }
        Err(reason) => answer(&format!("error {reason}")),
    }
}

/// Runs `evenkeel upgrade`, if that is the command.
pub fn run(args: &[OsString]) -> Option<ExitCode> {
    let (first, rest) = args.split_first()?;
    if first != "upgrade" {
        return None;
    }
    let result = match request(rest) {
        Ok(Some(request)) => request.send(),
        Ok(None) => {
            print!("{USAGE}");
            return Some(ExitCode::SUCCESS);
        }
        Err(reason) => Err(reason),
    };
    Some(result.unwrap_or_else(|reason| {
        eprintln!("evenkeel upgrade: {reason}");
        ExitCode::FAILURE
    }))
}

struct Request {
    pid: Option<u32>,
    port: Option<u32>,
    program: Option<PathBuf>,
}

impl Request {
    /// Sends the request to the server. A server that another upgrade has just replaced may end without an
    /// answer: the request goes to its successor then.
    fn send(&self) -> Result<ExitCode, String> {
        for _ in 1..LOOKS {
            let pid = self.pid.map_or_else(|| find(self.port), Ok)?;
            match connect(pid).and_then(|socket| ask(socket, self.program.as_deref())) {
                Ok(Some(code)) => return Ok(code),
                Err(error) if self.pid.is_some() => {
                    return Err(format!("process {pid} is no server to be upgraded: {error}"));
                }
                Ok(None) if self.pid.is_some() => break,
                Ok(None) | Err(_) => std::thread::sleep(LOOK_TIME),
            }
        }
        Err("the server gave no answer; its log may say why".into())
    }
}

/// `None`: the usage is asked for.
fn request(args: &[OsString]) -> Result<Option<Request>, String> {
    let (mut pid, mut port, mut program) = (None, None, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = |name: &str| {
            let value = args.next().and_then(|value| value.to_str()?.parse::<u32>().ok());
            value.ok_or(format!("{name} needs a number"))
        };
        match arg.to_str() {
            Some("-h" | "--help") => return Ok(None),
            Some("--pid") => pid = Some(number("--pid")?),
            Some("--port") => port = Some(number("--port")?),
            Some("--binary") => {
                let path = args.next().ok_or("--binary needs a path")?;
                program = Some(std::path::absolute(path).map_err(|error| error.to_string())?);
            }
            _ => return Err(format!("unknown argument '{}'\n{USAGE}", arg.to_string_lossy())),
        }
    }
    if pid.is_some() && port.is_some() {
        return Err("--pid and --port exclude each other".into());
    }
    Ok(Some(Request { pid, port, program }))
}

fn connect(pid: u32) -> std::io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(format!("{NAME}{pid}"))?)
}

/// The process id of the server with this port, or of the only server. During an upgrade there are two for a
/// moment, or none that answers.
fn find(port: Option<u32>) -> Result<u32, String> {
    let mut found = all_with(port)?;
    for _ in 1..LOOKS {
        if found.len() == 1 {
            break;
        }
        std::thread::sleep(LOOK_TIME);
        found = all_with(port)?;
    }
    match found[..] {
        [one] => Ok(one),
        [] => Err("there is no such server, or another user's".into()),
        _ => Err(format!("there are several servers: name one by --pid ({found:?})")),
    }
}

/// The process ids of the servers with this port, or of all servers.
fn all_with(port: Option<u32>) -> Result<Vec<u32>, String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").map_err(|error| error.to_string())?;
    let names = sockets.lines().filter_map(|line| line.rsplit_once(&format!("@{NAME}")));
    let mut pids: Vec<u32> = names.filter_map(|(_, pid)| pid.trim().parse().ok()).collect();
    pids.sort_unstable();
    pids.dedup();
    let has_port = |pid: &u32| {
        let Some(port) = port else { return true };
        let ports = connect(*pid).and_then(|stream| {
            stream.set_read_timeout(Some(REQUEST_MAX))?;
            (&stream).write_all(b"ports\n")?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).map(|_| line)
        });
        ports.is_ok_and(|ports| ports.split_whitespace().any(|one| one == port.to_string()))
    };
    pids.retain(has_port);
    Ok(pids)
}

/// Asks a server for the upgrade, and prints its answer. `None`: it has closed the connection without a word.
fn ask(mut socket: UnixStream, program: Option<&Path>) -> std::io::Result<Option<ExitCode>> {
    let mut line = b"upgrade".to_vec();
    if let Some(program) = program {
        line.push(b' ');
        line.extend_from_slice(program.as_os_str().as_bytes());
    }
    line.push(b'\n');
    socket.write_all(&line)?;
    let (mut status, mut has_begun) = (None, false);
    for line in BufReader::new(socket).lines().map_while(Result::ok) {
        has_begun = true;
        match line.split_once(' ') {
            Some(("info", text)) => println!("{text}"),
            Some(("done", text)) => {
                println!("{text}");
                status = Some(ExitCode::SUCCESS);
            }
            Some(("error", text)) => {
                eprintln!("evenkeel upgrade: {text}. The server goes on as before.");
                status = Some(ExitCode::FAILURE);
            }
            _ => {}
        }
    }
    if status.is_none() && has_begun {
        eprintln!("evenkeel upgrade: the server has ended without a result; its log may say why");
        status = Some(ExitCode::FAILURE);
    }
    Ok(status)
}
