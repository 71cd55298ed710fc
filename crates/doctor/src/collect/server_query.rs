//! Read-only queries to a server of the Redis family: its clients, processed commands, and the time of its
//! forks. Only servers with a known name are asked.
//!
//! Without the query, a replica on another machine looks like any client. CLIENT LIST flags the connections
//! of replicas, and its addresses match them to descriptors. If the server requires a password and none is
//! given, the reply is an error and the roles stay as guessed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::is_inbound;
use crate::recording::{Descriptor, Forks, OwnCount, Role};

const SERVERS: &[&str] = &["redis-server", "valkey-server", "keydb-server", "evenkeel"];
/// A server whose loop is blocked does not reply, and the capture must not wait for it.
const REPLY_TIMEOUT: Duration = Duration::from_millis(300);
/// Bound of a reply: 50,000 clients at about 350 bytes each.
const REPLY_MAX: u64 = 32 << 20;

/// A server that can be queried.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    address: SocketAddr,
    password: Option<String>,
    /// Arguments of INFO; servers older than Redis 7 take a single section.
    sections: &'static [&'static str],
}

/// The parsed reply to INFO.
#[derive(Debug, Clone)]
pub(crate) struct InfoReply {
    at: Instant,
    commands: Option<u64>,
    pub(crate) forks: Option<Forks>,
    /// The server's own times of the stages of requests, if it has them.
    pub(crate) stages: Option<Stages>,
}

impl InfoReply {
    /// The counts since an earlier reply. `questions`: commands of the doctor from that reply up to this,
    /// without this.
    pub(crate) fn since(&self, earlier: &InfoReply, questions: u64) -> Option<OwnCount> {
        let commands = self.commands?.checked_sub(earlier.commands?)?; // smaller after CONFIG RESETSTAT
        let between_ns = self.at.saturating_duration_since(earlier.at).as_nanos() as u64;
        let times = self.stages.iter().flat_map(|stages| &stages.us);
        let times_before = earlier.stages.iter().flat_map(|stages| &stages.us);
        let stage = |((name, us), (_, before)): (&(String, u64), &(String, u64))| {
            (name.clone(), us.saturating_sub(*before) * 1_000)
        };
        Some(OwnCount {
            between_ns: between_ns.max(1),
            commands: commands.saturating_sub(questions),
            stages: times.zip(times_before).map(stage).collect(),
        })
    }
}

/// Returns the server if its name is known and it listens.
pub(crate) fn server(
    pid: i32,
    descriptors: &[Descriptor],
    name: &str,
    password: Option<&str>,
) -> Option<Server> {
    // In another namespace the same address may be another server's, which must not receive the password.
    if !is_in_our_network(pid) {
        return None;
    }
    if !SERVERS.iter().any(|known| name.starts_with(known)) {
        return None;
    }
    let mut listeners = descriptors.iter().filter(|d| d.role == Role::Listener);
    let address = reachable(listeners.find_map(|d| d.what.parse().ok())?);
    let sections: &[&str] = if name.starts_with("evenkeel") {
        &["INFO", "stats", "stages", "server"]
    } else {
        &["INFO", "stats"]
    };
    Some(Server { address, password: password.map(str::to_string), sections })
}

/// Whether the process is in this process's network namespace.
fn is_in_our_network(pid: i32) -> bool {
    let network = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).ok();
    network(&pid.to_string()).is_some_and(|theirs| network("self") == Some(theirs))
}

impl Server {
    pub(crate) fn name_replicas(&self, descriptors: &mut [Descriptor], notes: &mut Vec<String>) {
        match self.ask(&["CLIENT", "LIST"]) {
            Ok(text) => apply(descriptors, &text),
            Err(error) => notes.push(format!("the server did not list its clients: {error:#}")),
        }
    }

    /// Queries the counters since the server's start.
    pub(crate) fn info(&self) -> Option<InfoReply> {
        let info = self.ask(self.sections).ok()?;
        Some(InfoReply {
            at: Instant::now(),
            commands: field(&info, "total_commands_processed"),
            forks: parse_forks(&info),
            stages: parse_stages(&info),
        })
    }

    /// Commands that a query counts for.
    pub(crate) fn commands_each(&self) -> u64 {
        1 + u64::from(self.password.is_some())
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let stream = TcpStream::connect_timeout(&self.address, REPLY_TIMEOUT).context("no connection")?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        if let Some(password) = &self.password {
            writer.write_all(&command(&["AUTH", password]))?;
            let line = read_line(&mut reader)?;
            // Where AUTH was renamed, the error for an unknown command quotes the arguments.
            ensure!(line == "+OK", "AUTH: {}", line.replace(password.as_str(), "(redacted)"));
        }
        let name = words.join(" ");
        writer.write_all(&command(words))?;
        let line = read_line(&mut reader)?;
        let Some(length) = line.strip_prefix('$') else { bail!("{name}: {line}") };
        let length: u64 = length.parse().with_context(|| format!("{name}: not a length"))?;
        ensure!(length <= REPLY_MAX, "{name}: a reply of {length} bytes");
        let mut text = Vec::new();
        reader.take(length).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn field(info: &str, name: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().parse().ok()
}

fn parse_forks(info: &str) -> Option<Forks> {
    let latest_ns = field(info, "latest_fork_usec")?.saturating_mul(1_000);
    Some(Forks { count: field(info, "total_forks")?, latest_ns })
}

/// Evenkeel's times of the stages of requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Stages {
    /// Names in the order of the stages' numbers, with microseconds since the server's start.
    pub(crate) us: Vec<(String, u64)>,
    /// Rate of the counter in which its static probes report times.
    pub(crate) ticks_per_us: f64,
}

fn parse_stages(info: &str) -> Option<Stages> {
    let stage = |line: &str| {
        let (name, us) = line.strip_prefix("stage_")?.split_once("_usec:")?;
        Some((name.to_string(), us.trim().parse().ok()?))
    };
    let us: Vec<(String, u64)> = info.lines().filter_map(stage).collect();
    let clock = info.lines().find_map(|line| line.strip_prefix("monotonic_clock:"))?;
    let ticks = clock.split_once("TSC @ ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    const NS: f64 = 1_000.0; // the probes use nanoseconds if there is no TSC
    (!us.is_empty()).then(|| Stages { us, ticks_per_us: ticks.unwrap_or(NS) })
}

/// A listener on all addresses is reached at the loopback address.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port()),
        _ => address,
    }
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    bytes.into_bytes()
}

fn read_line(reader: &mut impl BufRead) -> Result<String> {
    const LINE_MAX: u64 = 4096;
    let mut line = Vec::new();
    reader.take(LINE_MAX).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).trim_end().to_string())
}

/// Sets the role of each connection by the server's flags: S is a replica, M the primary.
fn apply(descriptors: &mut [Descriptor], list: &str) {
    let roles: HashMap<&str, Role> = list
        .lines()
        .filter_map(|line| {
            let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name));
            let (address, flags) = (field("addr=")?, field("flags=")?);
            let role = match flags {
                _ if flags.contains('S') => Role::Replica,
                _ if flags.contains('M') => Role::Primary,
                _ => Role::Client,
            };
            Some((address, role))
        })
        .collect();
    for descriptor in descriptors {
        let Some(remote) = descriptor.what.rsplit(' ').next() else { continue };
        let Some(&role) = roles.get(remote) else { continue };
        if is_inbound(descriptor.role) || role == Role::Primary {
            descriptor.role = role;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_statistics_are_parsed() {
        let text = "# Stats\r\ntotal_forks:3\r\nlatest_fork_usec:13390\r\n";
        assert_eq!(parse_forks(text), Some(Forks { count: 3, latest_ns: 13_390_000 }));
        assert_eq!(parse_forks("latest_fork_usec:1\r\n"), None, "a version that does not count them");
    }

    #[test]
    fn stages_are_in_the_order_of_their_numbers() {
        let text =
            "monotonic_clock:X86 TSC @ 2400 ticks/us\r\nstage_accept_usec:3\r\nstage_lock_wait_usec:40\r\n";
        let us = vec![("accept".to_string(), 3), ("lock_wait".to_string(), 40)];
        assert_eq!(parse_stages(text), Some(Stages { us, ticks_per_us: 2_400.0 }));
        assert_eq!(parse_stages("monotonic_clock:POSIX clock_gettime\r\n"), None);
    }

    /// A server whose AUTH was renamed takes AUTH for an unknown command, and quotes its arguments in the
    /// error.
    #[test]
    fn a_server_error_does_not_reveal_the_password() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Server {
            address: listener.local_addr().expect("it is bound"),
            password: Some("s3cret".to_string()),
            sections: &["INFO"],
        };
        let error = std::thread::scope(|scope| {
            let asks = scope.spawn(|| server.ask(&["CLIENT", "LIST"]));
            let (mut stream, _) = listener.accept().expect("it asks");
            let line = b"-ERR unknown command 'AUTH', with args beginning with: 's3cret' \r\n";
            stream.write_all(line).expect("it reads");
            asks.join().expect("no panic").expect_err("it is refused")
        });
        let text = format!("{error:#}");
        assert!(text.contains("beginning with: '(redacted)'") && !text.contains("s3cret"), "{text}");
    }

    #[test]
    fn client_flags_identify_replicas() {
        let connection = |fd, remote: &str| Descriptor {
            fd,
            role: Role::Client,
            what: format!("10.0.0.1:6379 <- {remote}"),
            peer: None,
            disk: None,
        };
        let mut descriptors = vec![connection(8, "10.0.0.2:4000"), connection(9, "10.0.0.3:4000")];
        descriptors.push(Descriptor {
            fd: 1,
            role: Role::Log,
            what: "/x.log".to_string(),
            peer: None,
            disk: None,
        });
        let list =
            "id=3 addr=10.0.0.2:4000 laddr=x fd=8 flags=S db=0\nid=4 addr=10.0.0.3:4000 flags=N\nbroken\n";
        apply(&mut descriptors, list);
        let roles: Vec<Role> = descriptors.iter().map(|d| d.role).collect();
        assert_eq!(roles, [Role::Replica, Role::Client, Role::Log]);
    }
}
