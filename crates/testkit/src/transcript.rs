//! Tests as sessions: the typed commands, and the expected replies.
//!
//! ```text
//! # a remark
//! > SET k v EX 100         < OK         a command and its reply
//! ~ 20ms                                time passes
//! > TTL k                  < :100
//! a> BLPOP list 0                       another connection, by name; its reply comes later
//! > RPUSH list x           < :1
//! a< ["list", "x"]                      here it is; pushes are read the same way
//! ```
//!
//! Commands are in redis-cli's notation, replies in that of [`Value`]'s display, where `*` stands for any
//! text and `\*` for a star. A command whose reply is not given anywhere must not be answered with an error.
//! A line that ends in a backslash continues on the next line, as in a string literal.
//!
//! A transcript runs on a [`Target`]: a server over TCP, where time is real, or a server in process, where it
//! is not.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use evenkeel_resp::value::Value;

use crate::client::Client;
use crate::server::Server;
use crate::words;

/// Longest pause over TCP. A test that needs more wants a target with a settable clock.
const REAL_PAUSE_MAX: Duration = Duration::from_secs(5);

/// A recipient of commands on named connections; the first use of a name opens its connection.
pub trait Target {
    fn send(&mut self, connection: &str, args: &[Vec<u8>]);

    /// Returns the next reply or push on this connection; an error if none comes.
    fn receive(&mut self, connection: &str) -> Result<Value, String>;

    fn pass(&mut self, time: Duration);

    fn call(&mut self, args: &[Vec<u8>]) -> Result<Value, String> {
        self.send("", args);
        self.receive("")
    }
}

/// Runs a transcript on a server, over new connections; panics at the first line that fails.
#[track_caller]
pub fn check(server: &Server, transcript: &str) {
    check_on(&mut Session { server, connections: HashMap::new() }, transcript);
}

/// Runs a transcript on any target.
#[track_caller]
pub fn check_on(target: &mut dyn Target, transcript: &str) {
    if let Err(failure) = run(target, &joined(transcript)) {
        panic!("{failure}");
    }
}

/// Joins lines that end in a backslash with the next line.
fn joined(transcript: &str) -> String {
    let mut parts = transcript.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.trim_start())
}

/// A server over TCP as a target.
pub fn target(server: &Server) -> impl Target {
    Session { server, connections: HashMap::new() }
}

/// A server over TCP.
struct Session<'a> {
    server: &'a Server,
    connections: HashMap<String, Client>,
}

impl Target for Session<'_> {
    fn send(&mut self, connection: &str, args: &[Vec<u8>]) {
        let client = self.connections.entry(connection.to_owned()).or_insert_with(|| self.server.connect());
        // A broken connection shows when its reply is read.
        let _ = client.send(args);
    }

    fn receive(&mut self, connection: &str) -> Result<Value, String> {
        let client = self.connections.get_mut(connection).ok_or("nothing was sent on this connection")?;
        client.try_read().map_err(|error| error.to_string())
    }

    fn pass(&mut self, time: Duration) {
        assert!(time <= REAL_PAUSE_MAX, "{time:?} is too long to wait for real");
        std::thread::sleep(time);
    }
}

#[derive(Debug, PartialEq)]
enum Step<'a> {
    Send { connection: &'a str, args: Vec<Vec<u8>> },
    Expect { connection: &'a str, pattern: &'a str },
    Pass(Duration),
}

fn run(target: &mut dyn Target, transcript: &str) -> Result<(), String> {
    // The line of the unanswered command, per connection.
    let mut open: HashMap<&str, usize> = HashMap::new();
    for (number, line) in transcript.lines().enumerate() {
        let at_line = |problem: String| report(transcript, number, &problem);
        for step in parse(line).map_err(at_line)? {
            match step {
                Step::Send { connection, args } => {
                    if let Some(earlier) = open.insert(connection, number) {
                        settle(target, connection)
                            .map_err(|problem| report(transcript, earlier, &problem))?;
                    }
                    target.send(connection, &args);
                }
                Step::Expect { connection, pattern } => {
                    open.remove(connection);
                    compare(pattern, target.receive(connection)).map_err(at_line)?;
                }
                Step::Pass(time) => target.pass(time),
            }
        }
    }
    for (connection, number) in open {
        settle(target, connection).map_err(|problem| report(transcript, number, &problem))?;
    }
    Ok(())
}

/// Reads a reply that the transcript does not mention.
fn settle(target: &mut dyn Target, connection: &str) -> Result<(), String> {
    match target.receive(connection)? {
        error if error.is_error() => Err(format!("expected: anything but an error\n     got: {error}")),
        _ => Ok(()),
    }
}

fn compare(pattern: &str, got: Result<Value, String>) -> Result<(), String> {
    let got = got.map_or_else(|problem| format!("no reply: {problem}"), |value| value.to_string());
    if matches(pattern, &got) { Ok(()) } else { Err(format!("expected: {pattern}\n     got: {got}")) }
}

/// Returns the whole session with the failed line marked, and then the problem.
fn report(transcript: &str, number: usize, problem: &str) -> String {
    let mut text = format!("line {} of the transcript\n", number + 1);
    for (index, line) in transcript.lines().enumerate() {
        let mark = if index == number { "=>" } else { "  " };
        let _ = writeln!(text, "{mark} {}", line.trim()); // writing to a String cannot fail
    }
    text.push_str(problem);
    text
}

fn parse(line: &str) -> Result<Vec<Step<'_>>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(Vec::new());
    }
    if let Some(time) = line.strip_prefix('~') {
        return Ok(vec![Step::Pass(duration(time.trim())?)]);
    }
    let name_length = line.find(|character: char| !character.is_ascii_alphanumeric()).unwrap_or(line.len());
    let (connection, rest) = line.split_at(name_length);
    if let Some(pattern) = rest.strip_prefix('<') {
        return Ok(vec![Step::Expect { connection, pattern: pattern.trim() }]);
    }
    let Some(command) = rest.strip_prefix('>') else {
        return Err(
            "a line starts with `>`, `<`, `~` or `#`, the first two after a connection's name".to_owned()
        );
    };
    let (args, answer) = words::split_at_answer(command)?;
    let expect = answer.map(|pattern| Step::Expect { connection, pattern });
    Ok([Step::Send { connection, args }].into_iter().chain(expect).collect())
}

fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("`{text}` is no time"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(format!("`{text}` is no time: `20ms` or `40s`")),
    }
}

/// `*` matches any text, `\*` a star. On a mismatch behind a star, the star takes one byte more and the rest
/// is tried again.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // position behind the last star, and the end of its text so far
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match (pattern.get(p), pattern.get(p + 1)) {
            (Some(b'*'), _) => {
                star = Some((p + 1, t));
                p += 1;
            }
            (Some(b'\\'), Some(b'*')) if text[t] == b'*' => (p, t) = (p + 2, t + 1),
            (Some(&byte), _) if byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match &mut star {
                None => return false,
                Some((behind, end)) => {
                    *end += 1;
                    (p, t) = (*behind, *end);
                }
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A store of a single key in process, with a settable clock.
    #[derive(Default)]
    struct Toy {
        value: Option<Vec<u8>>,
        age: Duration,
        replies: HashMap<String, VecDeque<Value>>,
    }

    impl Target for Toy {
        fn send(&mut self, connection: &str, args: &[Vec<u8>]) {
            let reply = match args {
                [name, value] if name == b"SET" => {
                    (self.value, self.age) = (Some(value.clone()), Duration::ZERO);
                    Value::Simple(b"OK".to_vec())
                }
                [name] if name == b"GET" => self.value.clone().map_or(Value::NullBulk, Value::Bulk),
                [name] if name == b"AGE" => Value::Int(self.age.as_secs() as i64),
                _ => Value::Error(b"ERR no".to_vec()),
            };
            self.replies.entry(connection.to_owned()).or_default().push_back(reply);
        }

        fn receive(&mut self, connection: &str) -> Result<Value, String> {
            self.replies.get_mut(connection).and_then(VecDeque::pop_front).ok_or_else(|| "silence".to_owned())
        }

        fn pass(&mut self, time: Duration) {
            self.age += time;
        }
    }

    fn outcome(transcript: &str) -> Result<(), String> {
        run(&mut Toy::default(), transcript)
    }

    #[test]
    fn a_session_passes_with_time_and_connections() {
        check_on(
            &mut Toy::default(),
            r#"
            # nothing there yet
            > GET              < (nil)
            > SET "a < b"      < OK
            > SET x
            ~ 40s
            ~ 1500ms
            > AGE              < :41
            a> GET
            b> GET             < "x"
            a< "x"
            > SET \
                y              < OK
            > NO               < -ERR *
        "#,
        );
    }

    #[test]
    fn a_failure_shows_the_line_and_both_sides() {
        let text = outcome("> SET x  < OK\n> GET  < \"y\"").expect_err("the value differs");
        assert_eq!(
            text,
            "line 2 of the transcript\n   > SET x  < OK\n=> > GET  < \"y\"\nexpected: \"y\"\n     got: \"x\""
        );
    }

    #[test]
    fn an_unchecked_reply_must_not_be_an_error() {
        assert!(outcome("> NO\n> SET x < OK").expect_err("refused").contains("=> > NO"));
        assert!(outcome("> SET x\n> NO").expect_err("refused at the end").contains("=> > NO"));
    }

    #[test]
    fn a_missing_reply_is_a_failure() {
        assert!(outcome("a< OK").expect_err("nothing was sent").contains("no reply: silence"));
    }

    #[test]
    fn meaningless_lines_are_refused() {
        for line in ["SET x", "~ 5", "~ 5h", "> SET \"x", "!"] {
            assert!(outcome(line).is_err(), "{line}");
        }
    }

    #[test]
    fn stars_match_any_text() {
        for (pattern, text) in
            [("*", ""), ("a*c", "abbc"), ("a*c", "acxc"), ("*:*", "[:1]"), ("x\\*", "x*"), ("a**", "a")]
        {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a*c", "abcd"), ("", "a"), ("a", ""), ("x\\*", "xy"), ("*b", "a")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
