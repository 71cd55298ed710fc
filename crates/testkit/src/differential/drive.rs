//! Runs an episode on two servers at once.
//!
//! Commands of a connection that go out together are one write on each server. Nothing is sent on the other
//! connection before all their replies are in, so both servers see the same order. Both servers get a batch
//! before either's replies are read, so they execute it at nearly the same time.

use std::io;
use std::time::Duration;

use evenkeel_resp::value::{Value, decode, encode_command};

use super::same::{self, Verdict};
use super::{Action, Args, CONNECTIONS, Difference, Episode, Step, Summary};
use crate::client::Client;
use crate::server::Server;
use crate::words;

/// Argument of the command sent after bytes that may not be a command: its reply marks the end of the
/// replies.
const MARKER: &[u8] = b"end of the odd bytes";

/// Longest text of a reply in a finding.
const SHOWN_MAX: usize = 2_000;

/// Silence after which a missing reply counts as the server's answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Pages after which a SCAN counts as endless: no episode has so many keys.
const SCAN_PAGES_MAX: usize = 10_000;

type Outcome = Result<(), Difference>;

pub(super) fn run(subject: &Server, oracle: &Server, episode: &Episode, summary: &mut Summary) -> Outcome {
    let mut pair = Pair { servers: [subject, oracle], episode, lines: Vec::new(), summary };
    pair.start_empty();
    let mut batch: Vec<(usize, &Step)> = Vec::new();
    for (index, step) in episode.steps.iter().enumerate() {
        let belongs = matches!(step.action, Action::Command(_) | Action::Inline(_));
        if !belongs || batch.last().is_some_and(|(_, last)| last.connection != step.connection) {
            pair.exchange(&std::mem::take(&mut batch))?;
        }
        if belongs {
            batch.push((index, step));
            if step.flush {
                pair.exchange(&std::mem::take(&mut batch))?;
            }
        } else {
            pair.alone(index, step)?;
        }
    }
    pair.exchange(&batch)
}

/// Two servers, and the same connections to both.
struct Pair<'a> {
    servers: [&'a Server; 2],
    episode: &'a Episode,
    lines: Vec<Line>,
    summary: &'a mut Summary,
}

/// A connection, as seen by each server.
struct Line {
    clients: [Client; 2],
    /// Commands that the next EXEC executes.
    queued: Vec<Args>,
}

impl Pair<'_> {
    fn start_empty(&mut self) {
        for server in self.servers {
            let reply = server.connect().run("FLUSHALL");
            assert_eq!(reply.to_string(), "OK", "both servers can be emptied");
        }
        self.lines = (0..CONNECTIONS).map(|connection| self.open(connection)).collect();
    }

    fn open(&self, connection: usize) -> Line {
        let clients = self.servers.map(|server| {
            let mut client = server.connect();
            client.set_reply_timeout(REPLY_TIMEOUT);
            let greeting = client.call(&["HELLO", &self.episode.protocols[connection].to_string()]);
            assert!(!greeting.is_error(), "HELLO says {greeting}");
            client
        });
        Line { clients, queued: Vec::new() }
    }

    /// Sends a batch of a connection to both servers and compares reply by reply.
    fn exchange(&mut self, batch: &[(usize, &Step)]) -> Outcome {
        let Some((_, first)) = batch.first() else { return Ok(()) };
        let connection = first.connection;
        let bytes: Vec<u8> = batch.iter().flat_map(|(_, step)| bytes_of(&step.action)).collect();
        for client in &mut self.lines[connection].clients {
            let _ = client.send_raw(&bytes); // a server that hung up shows in its replies
        }
        for (index, step) in batch {
            let (Action::Command(args) | Action::Inline(args)) = &step.action else { continue };
            self.reply_to(*index, connection, args)?;
        }
        Ok(())
    }

    fn reply_to(&mut self, index: usize, connection: usize, args: &Args) -> Outcome {
        let line = &mut self.lines[connection];
        let [subject, oracle] = line.clients.each_mut().map(|client| client.read_raw());
        let queued = std::mem::take(&mut line.queued);
        self.summary.refused += usize::from(oracle.as_ref().is_ok_and(|bytes| bytes.starts_with(b"-")));
        let name = args.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        let reference = self.episode.oracle;
        let verdict = match (&subject, &oracle) {
            (Ok(subject), Ok(oracle)) => same::replies(reference, args, &queued, subject, oracle),
            // Neither replies in time: a step that blocks both would cost every later step that time.
            (Err(subject), _) if is_timeout(subject) => Verdict::Different,
            (Err(subject), Err(oracle)) if subject.kind() == oracle.kind() => Verdict::Identical,
            _ => Verdict::Different,
        };
        if oracle.as_ref().is_ok_and(|bytes| bytes == b"+QUEUED\r\n") {
            line.queued = [queued, vec![args.clone()]].concat();
        } else if !matches!(&name[..], b"EXEC" | b"DISCARD" | b"RESET") {
            line.queued = queued; // an error within MULTI, or no transaction at all
        }
        self.judge(verdict, index, shown(subject), shown(oracle))
    }

    fn alone(&mut self, index: usize, step: &Step) -> Outcome {
        match &step.action {
            Action::Raw(bytes) => self.raw(index, step.connection, bytes),
            Action::Burst(bytes) => self.burst(index, bytes),
            Action::Walk(options) => self.walk(index, step.connection, options),
            Action::PauseMs(ms) => {
                std::thread::sleep(Duration::from_millis(*ms));
                Ok(())
            }
            Action::Command(_) | Action::Inline(_) => unreachable!("these go out in batches"),
        }
    }

    fn raw(&mut self, index: usize, connection: usize, bytes: &[u8]) -> Outcome {
        let sent = [bytes, &encode_command(&[&b"ECHO"[..], MARKER])].concat();
        let line = &mut self.lines[connection];
        for client in &mut line.clients {
            let _ = client.send_raw(&sent);
        }
        let [subject, oracle] = line.clients.each_mut().map(until_marker);
        if oracle.hung_up || subject.hung_up {
            self.lines[connection] = self.open(connection);
        }
        let verdict = if subject == oracle { Verdict::Identical } else { Verdict::Different };
        self.judge(verdict, index, subject.shown(), oracle.shown())
    }

    fn burst(&mut self, index: usize, bytes: &[u8]) -> Outcome {
        let [subject, oracle] = self.servers.map(|server| {
            let mut client = server.connect();
            client.set_reply_timeout(REPLY_TIMEOUT);
            client.send_raw(bytes).and_then(|()| client.finish_sending())?;
            client.read_to_end()
        });
        let verdict = match (&subject, &oracle) {
            (Ok(subject), Ok(oracle)) if subject == oracle => Verdict::Identical,
            _ => Verdict::Different,
        };
        self.judge(verdict, index, shown(subject), shown(oracle))
    }

    fn walk(&mut self, index: usize, connection: usize, options: &Args) -> Outcome {
        let line = &mut self.lines[connection];
        let [subject, oracle] = line.clients.each_mut().map(|client| walk(client, options));
        let verdict = if subject == oracle { Verdict::Identical } else { Verdict::Different };
        self.judge(verdict, index, subject, oracle)
    }

    fn judge(&mut self, verdict: Verdict, step: usize, subject: String, oracle: String) -> Outcome {
        match verdict {
            Verdict::Identical => self.summary.identical += 1,
            Verdict::Allowed => self.summary.allowed += 1,
            Verdict::Different => return Err(Difference { step, subject, oracle }),
        }
        Ok(())
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn bytes_of(action: &Action) -> Vec<u8> {
    match action {
        Action::Command(args) => encode_command(args),
        Action::Inline(args) => format!("{}\r\n", words::join(args)).into_bytes(),
        _ => unreachable!("only commands go out in batches"),
    }
}

/// All replies before the marker's, and whether the server hung up instead.
#[derive(PartialEq, Eq)]
struct Replies {
    bytes: Vec<u8>,
    hung_up: bool,
}

impl Replies {
    fn shown(&self) -> String {
        let end = if self.hung_up { "hangs up" } else { "goes on" };
        format!("{}, then {end}", cut(&Value::bulk(&self.bytes[..])))
    }
}

fn until_marker(client: &mut Client) -> Replies {
    let mut bytes = Vec::new();
    loop {
        match client.read_raw() {
            Ok(reply) if reply.windows(MARKER.len()).any(|window| window == MARKER) && reply[0] != b'-' => {
                return Replies { bytes, hung_up: false };
            }
            Ok(reply) => bytes.extend(reply),
            Err(_) => return Replies { bytes, hung_up: true },
        }
    }
}

/// Returns the distinct results of a whole SCAN, sorted; or the text of the error.
fn walk(client: &mut Client, command: &Args) -> String {
    let at = if command[0].eq_ignore_ascii_case(b"SCAN") { 1 } else { 2 };
    let (name, options) = command.split_at(at);
    let mut cursor = b"0".to_vec();
    let mut keys: Vec<String> = Vec::new();
    for _ in 0..SCAN_PAGES_MAX {
        let args = [name, &[cursor], options].concat();
        let page = match client.try_call(&args) {
            Ok(page) => page,
            Err(error) => return error.to_string(),
        };
        let Some([Value::Bulk(next), Value::Array(found)]) = page.as_items() else { return page.to_string() };
        keys.extend(found.iter().map(|item| match same::number(item.as_bytes().unwrap_or_default()) {
            // Scores have different numbers of digits.
            Some(score) if command[0].eq_ignore_ascii_case(b"ZSCAN") => score.to_string(),
            _ => item.to_string(),
        }));
        if next == b"0" {
            keys.sort_unstable();
            keys.dedup();
            return keys.join(" ");
        }
        cursor = next.clone();
    }
    "a SCAN without end".to_owned()
}

fn shown(reply: io::Result<Vec<u8>>) -> String {
    match reply {
        Err(error) => format!("no reply: {error}"),
        Ok(bytes) => match decode(&bytes) {
            Ok(Some((value, used))) if used == bytes.len() => cut(&value),
            _ => cut(&Value::bulk(bytes)),
        },
    }
}

fn cut(value: &Value) -> String {
    let mut text = value.to_string(); // escaped, so that every byte is a character
    if text.len() > SHOWN_MAX {
        text.truncate(SHOWN_MAX);
        text.push_str("...");
    }
    text
}
