//! The commands of a poll, and their replies.

use std::collections::BTreeMap;
use std::time::Instant;

use evenkeel_resp::value::Value;

use crate::connection::{Connection, error_text};
use crate::histogram::{self, Histograms};
use crate::info::Info;
use crate::text::{argument, escaped};

/// Sections of INFO. Redis before version 7 takes a single name, see [`Polls`].
const SECTIONS: &[&str] = &[
    "INFO",
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cpu",
    "commandstats",
    "workers",
];
const ALL_SECTIONS: &[&str] = &["INFO", "all"];
const HISTOGRAM: &[&str] = &["LATENCY", "HISTOGRAM"];

/// The view that the screen shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum View {
    Overview,
    Commands,
    SlowLog,
    Clients,
    Replication,
    Findings,
}

impl View {
    pub(crate) const ALL: [View; 6] =
        [View::Overview, View::Commands, View::SlowLog, View::Clients, View::Replication, View::Findings];

    pub(crate) fn title(self) -> &'static str {
        match self {
            View::Overview => "Overview",
            View::Commands => "Commands",
            View::SlowLog => "Slow log",
            View::Clients => "Clients",
            View::Replication => "Replication",
            View::Findings => "Findings",
        }
    }

    /// Returns the command whose reply only this view shows.
    pub(crate) fn command(self) -> Option<&'static [&'static str]> {
        match self {
            View::SlowLog => Some(&["SLOWLOG", "GET", "128"]),
            View::Clients => Some(&["CLIENT", "LIST"]),
            View::Findings => Some(&["LATENCY", "DOCTOR"]),
            View::Overview | View::Commands | View::Replication => None,
        }
    }
}

/// An entry of SLOWLOG GET; texts are escaped.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SlowCommand {
    pub(crate) unix_s: i64,
    pub(crate) us: i64,
    pub(crate) command: String,
    pub(crate) address: String,
    pub(crate) client: String,
}

/// A client of CLIENT LIST: its fields by name, escaped.
pub(crate) type ClientFields = BTreeMap<String, String>;

/// The reply that only a view shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Extra {
    SlowLog(Vec<SlowCommand>),
    Clients(Vec<ClientFields>),
    Findings(String),
}

/// The state of a server at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) info: Info,
    /// `None` if the server has no such command or its user may not run it.
    pub(crate) histograms: Option<Histograms>,
    pub(crate) extra: Option<Extra>,
    /// Commands that the user may not run.
    pub(crate) forbidden: Vec<String>,
}

/// Polls a server over a connection, and remembers which forms of commands the server takes.
#[derive(Default)]
pub(crate) struct Polls {
    takes_no_list: bool,
}

impl Polls {
    /// Sends all commands of a poll at once; `view` chooses the command that only this view needs.
    pub(crate) fn poll(&mut self, connection: &mut Connection, view: Option<View>) -> Result<Sample, String> {
        let extra = view.and_then(View::command);
        let info = if self.takes_no_list { ALL_SECTIONS } else { SECTIONS };
        let commands: Vec<Vec<&str>> =
            [Some(info), Some(HISTOGRAM), extra].into_iter().flatten().map(<[_]>::to_vec).collect();
        let replies = connection.exchange(&commands)?;
        if !self.takes_no_list && error_text(&replies[0]).is_some_and(|text| text.contains("syntax error")) {
            self.takes_no_list = true;
            return self.poll(connection, view);
        }
        sample(view, &commands, &replies)
    }

    /// Runs the command of a view alone, for a view that was just opened.
    pub(crate) fn extra(connection: &mut Connection, view: View) -> Result<Option<Opened>, String> {
        let Some(command) = view.command() else { return Ok(None) };
        let replies = connection.exchange(&[command.to_vec()])?;
        Ok(match error_text(&replies[0]) {
            Some(text) if text.starts_with("NOPERM") => Some(Err(name_of(command))),
            _ => extra(view, &replies[0]).map(Ok),
        })
    }
}

/// The reply for a view, or the name of the command that the user may not run.
pub(crate) type Opened = Result<Extra, String>;

/// Makes a sample of the replies to INFO, LATENCY HISTOGRAM, and the command of a view.
fn sample(view: Option<View>, commands: &[Vec<&str>], replies: &[Value]) -> Result<Sample, String> {
    let mut forbidden = Vec::new();
    for (command, reply) in commands.iter().zip(replies) {
        match error_text(reply) {
            Some(text) if text.starts_with("NOPERM") => forbidden.push(name_of(command)),
            Some(text) if text.starts_with("NOAUTH") => return Err(text),
            _ => {}
        }
    }
    let histograms = replies.get(1).filter(|reply| !reply.is_error()).map(histogram::parse);
    let extra = view.zip(replies.get(2)).and_then(|(view, reply)| extra(view, reply));
    let info = Info::parse(replies[0].as_bytes().unwrap_or_default());
    Ok(Sample { at: Instant::now(), info, histograms, extra, forbidden })
}

/// Returns a command as a user of ACL SETUSER names it: without sections and counts.
fn name_of(command: &[&str]) -> String {
    let words = if command[0] == "INFO" { 1 } else { 2 };
    command[..words.min(command.len())].join(" ")
}

fn extra(view: View, reply: &Value) -> Option<Extra> {
    match view {
        View::SlowLog => {
            let entries = reply.as_items()?.iter().filter_map(slow_command);
            Some(Extra::SlowLog(entries.collect()))
        }
        View::Clients => Some(Extra::Clients(clients(reply.as_bytes()?))),
        View::Findings => Some(Extra::Findings(findings(reply.as_bytes()?))),
        View::Overview | View::Commands | View::Replication => None,
    }
}

/// Parses an entry: number, time, microseconds, arguments, and since Redis 4 address and name of the client.
fn slow_command(entry: &Value) -> Option<SlowCommand> {
    let items = entry.as_items()?;
    let words = items.get(3)?.as_items()?.iter().map(|word| argument(word.as_bytes().unwrap_or_default()));
    let text = |at: usize| items.get(at).and_then(Value::as_bytes).map(escaped).unwrap_or_default();
    Some(SlowCommand {
        unix_s: items.get(1)?.as_int()?,
        us: items.get(2)?.as_int()?,
        command: words.collect::<Vec<_>>().join(" "),
        address: text(4),
        client: text(5),
    })
}

fn clients(text: &[u8]) -> Vec<ClientFields> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let field = |word: &[u8]| {
        let at = word.iter().position(|&byte| byte == b'=')?;
        Some((escaped(&word[..at]), escaped(&word[at + 1..])))
    };
    lines.map(|line| line.split(|&byte| byte == b' ').filter_map(field).collect()).collect()
}

/// Returns the lines of a report, each escaped.
fn findings(text: &[u8]) -> String {
    let lines = text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.map(escaped).collect::<Vec<_>>().join("\n").trim_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn commands(view: View) -> Vec<Vec<&'static str>> {
        [Some(SECTIONS), Some(HISTOGRAM), view.command()].into_iter().flatten().map(<[_]>::to_vec).collect()
    }

    fn sampled(view: View, replies: &[Value]) -> Result<Sample, String> {
        sample(Some(view), &commands(view), replies)
    }

    #[test]
    fn forbidden_commands_are_named_and_the_rest_works() {
        let noperm = || Value::Error(b"NOPERM User a has no permissions to run the command".to_vec());
        let replies = [Value::bulk("run_id:a\r\n"), noperm(), noperm()];
        let sample = sampled(View::SlowLog, &replies).expect("a sample");
        assert_eq!(sample.forbidden, ["LATENCY HISTOGRAM", "SLOWLOG GET"]);
        assert_eq!((sample.info.text("run_id").as_deref(), sample.histograms), (Some("a"), None));
    }

    #[test]
    fn a_lost_login_is_an_error() {
        let noauth = || Value::Error(b"NOAUTH Authentication required.".to_vec());
        assert!(sampled(View::Overview, &[noauth(), noauth()]).is_err());
    }

    #[test]
    fn a_slow_command_is_shown_without_its_control_characters() {
        let words = ["set", "a key", "\x1b[2J"].map(Value::bulk).to_vec();
        let entry = vec![
            Value::Int(1),
            Value::Int(60),
            Value::Int(12_000),
            Value::Array(words),
            Value::bulk("127.0.0.1:5"),
            Value::bulk("n\x07"),
        ];
        let Some(Extra::SlowLog(entries)) = extra(View::SlowLog, &Value::Array(vec![Value::Array(entry)]))
        else {
            panic!("a slow log");
        };
        let expected = SlowCommand {
            unix_s: 60,
            us: 12_000,
            command: "set \"a key\" \\x1b[2J".into(),
            address: "127.0.0.1:5".into(),
            client: "n\\x07".into(),
        };
        assert_eq!(entries, [expected]);
    }

    #[test]
    fn clients_have_fields_by_name() {
        let found = clients(b"id=3 addr=1.2.3.4:5 name= cmd=get\nid=4 name=\x1b]0;x\n");
        assert_eq!((found.len(), found[0]["addr"].as_str(), found[0]["name"].as_str()), (2, "1.2.3.4:5", ""));
        assert_eq!(found[1]["name"], "\\x1b]0;x");
    }

    /// Replies of any type.
    fn any_reply() -> impl Strategy<Value = Value> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        let leaf = prop_oneof![
            bytes().prop_map(Value::Bulk),
            bytes().prop_map(Value::Error),
            any::<i64>().prop_map(Value::Int),
            Just(Value::NullBulk),
            any::<f64>().prop_map(Value::Double),
        ];
        leaf.prop_recursive(4, 40, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
                prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn hostile_replies_do_no_harm(replies in prop::collection::vec(any_reply(), 3), view in 0..6_usize) {
            let view = View::ALL[view];
            if let Ok(sample) = sampled(view, &replies[..commands(view).len()]) {
                let is_shown = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
                prop_assert!(sample.histograms.iter().flatten().all(|(name, _)| is_shown(name)));
                let texts: Vec<String> = match sample.extra {
                    Some(Extra::SlowLog(entries)) => {
                        let texts = |entry: SlowCommand| [entry.command, entry.address, entry.client];
                        entries.into_iter().flat_map(texts).collect()
                    }
                    Some(Extra::Clients(clients)) => {
                        clients.into_iter().flatten().flat_map(|(name, value)| [name, value]).collect()
                    }
                    Some(Extra::Findings(text)) => text.split('\n').map(str::to_owned).collect(),
                    None => Vec::new(),
                };
                prop_assert!(texts.iter().all(|text| is_shown(text)));
            }
        }

        #[test]
        fn hostile_client_lists_do_no_harm(text in prop::collection::vec(any::<u8>(), 0..300)) {
            for (name, value) in clients(&text).into_iter().flatten() {
                prop_assert!(name.bytes().chain(value.bytes()).all(|byte| (b'!'..=b'~').contains(&byte)));
            }
        }
    }
}
