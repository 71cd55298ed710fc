//! Read-only queries to a server of the Redis family: its clients, its commands with their times, its slow
//! commands, and the time of its forks. Only servers with a known name are asked.
//!
//! Without the query, a replica on another machine looks like any client. CLIENT LIST flags the connections
//! of replicas, and its addresses match them to descriptors. If the server requires a password and none is
//! given, the reply is an error and the roles stay as guessed.

use std::collections::HashMap;
use std::io::{BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};

use super::is_inbound;
use super::reply::{self, Value};
use crate::recording::{
    Answer, Descriptor, Forks, OwnClient, OwnCommand, OwnCount, Role, SlowCommand, is_of_redis_family,
};

/// A server that runs a long command replies behind it. The capture does not wait longer than this before it
/// begins; after its end there is time for a server that takes seconds for a command.
const TIMEOUT_BEFORE: Duration = Duration::from_millis(500);
const TIMEOUT_AFTER: Duration = Duration::from_secs(5);
/// Entries of the slow log that are read, and letters of a script's first line that are kept.
const SLOW_MAX: &str = "128";
const SCRIPT_LETTERS: usize = 60;
/// Clients that are kept, the busiest first.
const CLIENTS_MAX: usize = 20;

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
    /// Calls and nanoseconds of each command.
    times: HashMap<String, (u64, u64)>,
}

/// The commands that clients have run, by address, with the clients' names.
pub(crate) type Clients = HashMap<String, (String, u64)>;

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

    /// The commands that were called since an earlier reply, the longest first.
    pub(crate) fn commands_since(&self, earlier: &InfoReply) -> Vec<OwnCommand> {
        let command = |(name, (calls, took_ns)): (&String, &(u64, u64))| {
            let (calls_before, before_ns) = earlier.times.get(name).copied().unwrap_or_default();
            Some(OwnCommand {
                name: name.clone(),
                calls: calls.checked_sub(calls_before).filter(|calls| *calls > 0)?,
                took_ns: took_ns.checked_sub(before_ns)?, // smaller after CONFIG RESETSTAT
            })
        };
        let mut commands: Vec<OwnCommand> = self.times.iter().filter_map(command).collect();
        commands.sort_by(|a, b| b.took_ns.cmp(&a.took_ns).then_with(|| a.name.cmp(&b.name)));
        commands
    }
}

/// The busiest clients between two lists.
pub(crate) fn busiest(before: &Clients, after: &Clients) -> Vec<OwnClient> {
    let client = |(address, (name, commands)): (&String, &(String, u64))| {
        // A connection that was made since begins with none.
        let earlier = before.get(address).map_or(0, |(_, commands)| *commands);
        let (address, name) = (address.clone(), name.clone());
        OwnClient { address, name, commands: commands.saturating_sub(earlier) }
    };
    let mut clients: Vec<OwnClient> = after.iter().map(client).filter(|client| client.commands > 0).collect();
    clients.sort_by(|a, b| b.commands.cmp(&a.commands).then_with(|| a.address.cmp(&b.address)));
    clients.truncate(CLIENTS_MAX);
    clients
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
    if !is_of_redis_family(name) {
        return None;
    }
    let mut listeners = descriptors.iter().filter(|d| d.role == Role::Listener);
    let address = reachable(listeners.find_map(|d| d.what.parse().ok())?);
    let sections: &[&str] = if name.starts_with("evenkeel") {
        &["INFO", "stats", "stages", "server", "commandstats"]
    } else {
        &["INFO", "all"]
    };
    Some(Server { address, password: password.map(str::to_string), sections })
}

/// Whether the process is in this process's network namespace.
fn is_in_our_network(pid: i32) -> bool {
    let network = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).ok();
    network(&pid.to_string()).is_some_and(|theirs| network("self") == Some(theirs))
}

impl Server {
    /// Names the connections of replicas. Returns the clients' commands so far, where the server counts them.
    pub(crate) fn name_replicas(&self, descriptors: &mut [Descriptor], notes: &mut Vec<String>) -> Clients {
        match self.ask(&["CLIENT", "LIST"], TIMEOUT_BEFORE) {
            Ok(text) => {
                apply(descriptors, &text);
                parse_clients(&text)
            }
            Err(error) => {
                notes.push(format!("the server did not list its clients: {error:#}"));
                Clients::new()
            }
        }
    }

    /// Queries the counters since the server's start, before the window.
    pub(crate) fn info(&self) -> Option<InfoReply> {
        Some(parse_info(&self.ask(self.sections, TIMEOUT_BEFORE).ok()?))
    }

    /// Asks all questions at the end of the window, which began at `start`, at once: a server that runs long
    /// commands is waited for once.
    pub(crate) fn at_the_end(&self, start: SystemTime) -> AtTheEnd {
        let questions = [self.sections, &["SLOWLOG", "GET", SLOW_MAX], &["CLIENT", "LIST"]];
        let mut replies = match self.ask_all(&questions, TIMEOUT_AFTER) {
            Ok(replies) => replies.into_iter(),
            Err(error) => return AtTheEnd { answer: answer_of(&error), ..AtTheEnd::default() },
        };
        let mut next = || replies.next().unwrap_or_else(|| Err(anyhow::anyhow!("no reply")));
        let (info, slow, clients) = (next(), next(), next());
        let start_s = start.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let entries = slow.as_ref().ok().and_then(Value::list).unwrap_or_default().iter();
        let mut slow: Vec<SlowCommand> = entries.filter_map(|entry| parse_slow(entry, start_s)).collect();
        slow.sort_by_key(|entry| std::cmp::Reverse(entry.took_ns));
        AtTheEnd {
            answer: info.as_ref().map_or_else(answer_of, |_| Answer::Given),
            info: info.ok().as_ref().and_then(Value::text).map(parse_info),
            slow_commands: slow,
            clients: clients.ok().as_ref().and_then(Value::text).map(parse_clients).unwrap_or_default(),
        }
    }

    /// Commands that a query counts for.
    pub(crate) fn commands_each(&self) -> u64 {
        1 + u64::from(self.password.is_some())
    }

    fn ask(&self, words: &[&str], timeout: Duration) -> Result<String> {
        match self.ask_value(words, timeout)? {
            Value::Text(text) => Ok(text),
            _ => anyhow::bail!("{}: not a text", words.join(" ")),
        }
    }

    fn ask_value(&self, words: &[&str], timeout: Duration) -> Result<Value> {
        self.ask_all(&[words], timeout)?.pop().context("no reply")?
    }

    /// Sends all questions over one connection. An error reply is the error of its question.
    fn ask_all(&self, questions: &[&[&str]], timeout: Duration) -> Result<Vec<Result<Value>>> {
        let stream = TcpStream::connect_timeout(&self.address, timeout).context("no connection")?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        if let Some(password) = &self.password {
            writer.write_all(&command(&["AUTH", password]))?;
            // Where AUTH was renamed, the error for an unknown command quotes the arguments.
            let said = match reply::read(&mut reader) {
                Ok(said) => said.text().unwrap_or_default().to_string(),
                Err(error) => format!("{error:#}"),
            };
            ensure!(said == "OK", "AUTH: {}", said.replace(password.as_str(), "(redacted)"));
        }
        writer.write_all(&questions.iter().flat_map(|words| command(words)).collect::<Vec<u8>>())?;
        let mut read = |words: &&[&str]| reply::read(&mut reader).with_context(|| words.join(" "));
        let replies: Vec<Result<Value>> = questions.iter().map(&mut read).collect();
        // Without the first, the server is late or refuses the connection.
        match replies.first() {
            Some(Err(error)) if answer_of(error) != Answer::Refused => {
                Err(replies.into_iter().next().and_then(Result::err).expect("the first is an error"))
            }
            _ => Ok(replies),
        }
    }
}

/// The replies at the end of the window.
#[derive(Debug, Default)]
pub(crate) struct AtTheEnd {
    pub(crate) answer: Answer,
    pub(crate) info: Option<InfoReply>,
    /// That ended in the window, the slowest first.
    pub(crate) slow_commands: Vec<SlowCommand>,
    pub(crate) clients: Clients,
}

fn parse_info(info: &str) -> InfoReply {
    InfoReply {
        at: Instant::now(),
        commands: field(info, "total_commands_processed"),
        forks: parse_forks(info),
        stages: parse_stages(info),
        times: info.lines().filter_map(parse_time).collect(),
    }
}

fn answer_of(error: &anyhow::Error) -> Answer {
    let is_late = error.chain().any(|cause| {
        let kind = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        matches!(kind, Some(std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut))
    });
    match () {
        () if format!("{error:#}").contains("max number of clients reached") => Answer::ClientsMax,
        () if is_late => Answer::Silent,
        () => Answer::Refused,
    }
}

/// A line of `commandstats`: `cmdstat_get:calls=2,usec=7,...`.
fn parse_time(line: &str) -> Option<(String, (u64, u64))> {
    let (name, fields) = line.strip_prefix("cmdstat_")?.trim_end().split_once(':')?;
    let number = |wanted: &str| {
        fields.split(',').find_map(|field| field.strip_prefix(wanted)?.strip_prefix('=')?.parse::<u64>().ok())
    };
    Some((name.to_string(), (number("calls")?, number("usec")?.saturating_mul(1_000))))
}

/// An entry of the slow log: number, second of its end, microseconds, arguments, client.
fn parse_slow(entry: &Value, start_s: u64) -> Option<SlowCommand> {
    let [_, at, took, args, rest @ ..] = entry.list()? else { return None };
    // A whole second: the second in which the window begins is left out.
    if u64::try_from(at.number()?).ok()? <= start_s {
        return None;
    }
    let args: Vec<&str> = args.list()?.iter().map_while(Value::text).collect();
    let name = args.first()?.to_ascii_lowercase();
    let first_line = |text: &str| {
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        line.trim().chars().filter(|c| !c.is_control()).take(SCRIPT_LETTERS).collect::<String>()
    };
    let script = match name.as_str() {
        "eval" | "eval_ro" | "evalsha" | "evalsha_ro" | "fcall" | "fcall_ro" => args.get(1),
        _ => None,
    };
    Some(SlowCommand {
        name,
        took_ns: u64::try_from(took.number()?).ok()?.saturating_mul(1_000),
        client: rest.first().and_then(Value::text).unwrap_or_default().to_string(),
        script: script.map(|text| first_line(text)),
    })
}

/// The commands of each client; older servers do not count them.
fn parse_clients(list: &str) -> Clients {
    let client = |line: &str| {
        let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name));
        let commands = field("tot-cmds=")?.trim().parse().ok()?;
        Some((field("addr=")?.to_string(), (field("name=")?.to_string(), commands)))
    };
    list.lines().filter_map(client).collect()
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
            let asks = scope.spawn(|| server.ask(&["CLIENT", "LIST"], TIMEOUT_AFTER));
            let (mut stream, _) = listener.accept().expect("it asks");
            let line = b"-ERR unknown command 'AUTH', with args beginning with: 's3cret' \r\n";
            stream.write_all(line).expect("it reads");
            asks.join().expect("no panic").expect_err("it is refused")
        });
        let text = format!("{error:#}");
        assert!(text.contains("beginning with: '(redacted)'") && !text.contains("s3cret"), "{text}");
    }

    #[test]
    fn times_of_commands_and_clients_are_differences() {
        let info = |times: &[&str]| InfoReply {
            at: Instant::now(),
            commands: None,
            forks: None,
            stages: None,
            times: times.iter().filter_map(|line| parse_time(line)).collect(),
        };
        let get = "cmdstat_get:calls=10,usec=20,usec_per_call=2.00,rejected_calls=0,failed_calls=0\r";
        let (before, after) = (
            info(&[get]),
            info(&[
                "cmdstat_get:calls=12,usec=30",
                "cmdstat_config|get:calls=1,usec=900",
                "cmdstat_x:calls=y,usec=1",
            ]),
        );
        let named = |name: &str, calls, took_ns| OwnCommand { name: name.to_string(), calls, took_ns };
        assert_eq!(after.commands_since(&before), [named("config|get", 1, 900_000), named("get", 2, 10_000)]);
        assert!(info(&[get]).commands_since(&before).is_empty());

        let before =
            parse_clients("id=3 addr=10.0.0.2:4000 name=web tot-cmds=5\nid=4 addr=10.0.0.3:1 flags=N\n");
        let after = parse_clients(
            "id=3 addr=10.0.0.2:4000 name=web tot-cmds=50\nid=5 addr=10.0.0.4:1 name= tot-cmds=7\n",
        );
        let seen: Vec<(String, String, u64)> = busiest(&before, &after)
            .into_iter()
            .map(|client| (client.address, client.name, client.commands))
            .collect();
        let named = |address: &str, name: &str, commands| (address.to_string(), name.to_string(), commands);
        assert_eq!(seen, [named("10.0.0.2:4000", "web", 45), named("10.0.0.4:1", "", 7)]);
    }

    #[test]
    fn slow_commands_of_the_window_keep_no_keys_and_values() {
        let text = |text: &str| Value::Text(text.to_string());
        let entry = |at, args: &[&str]| {
            let args = Value::List(args.iter().map(|arg| text(arg)).collect());
            let client = text("127.0.0.1:4000");
            Value::List(vec![Value::Number(1), Value::Number(at), Value::Number(250_000), args, client])
        };
        assert_eq!(parse_slow(&entry(100, &["KEYS", "secret:*"]), 100), None, "before the window");
        let slow = parse_slow(&entry(101, &["KEYS", "secret:*"]), 100).expect("in the window");
        assert_eq!((slow.name.as_str(), slow.took_ns, slow.script), ("keys", 250_000_000, None));
        let script = "\n -- totals by day\nreturn redis.call('GET', KEYS[1])";
        let slow = parse_slow(&entry(101, &["EVAL", script, "1", "k"]), 100).expect("in the window");
        assert_eq!(slow.script.as_deref(), Some("-- totals by day"));
        assert_eq!(parse_slow(&Value::Number(1), 0), None);
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
