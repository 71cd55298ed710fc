//! R20: commands and scripts that take long. R21: a client that sends most of the commands.
//!
//! Redis and Valkey run a command in one piece, and every other client of the thread waits for it. The
//! server knows the time of each command, its slow commands and the commands of its clients; functions in a
//! profile are only what a command does.

use super::{SHARE_MIN, millis, percent};
use crate::analyse::RECEIVING;
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::requests::served_by;
use crate::analyse::view::View;
use crate::recording::{OwnCommand, Role, Tier, is_of_redis_family};

/// Mean time of a call from which a command is long: other clients feel it.
const LONG_NS: u64 = 1_000_000;
/// From here on they feel it even if the server is idle otherwise.
const FELT_NS: u64 = 10_000_000;
/// Commands named; more would bury the first.
const NAMED_MAX: usize = 2;
/// Share of the commands from which a client is the cause.
const CLIENT_SHARE: f64 = 0.8;
/// Fewer active clients are not a crowd of which one stands out.
const CLIENTS_MIN: usize = 3;
/// The client's part could be served by another server, or later; the rest of the time is no gain.
const CLIENT_CONFIDENCE: f64 = 0.7;

/// Commands that run others, whose time is counted there as well.
const CONTAINERS: &[&str] = &["exec", "eval", "eval_ro", "evalsha", "evalsha_ro", "fcall", "fcall_ro"];

fn is_script(name: &str) -> bool {
    name != "exec" && CONTAINERS.contains(&name)
}

/// `config|get` as users write it: `CONFIG GET`.
fn shown(name: &str) -> String {
    name.replace('|', " ").to_uppercase()
}

fn next_step(name: &str) -> &'static str {
    match name {
        "keys" => "Use SCAN: it replies with a piece at a time. Forbid KEYS to applications by an ACL rule.",
        "save" => "Use BGSAVE, or save points; SAVE stops the server.",
        "smembers" | "hgetall" | "hkeys" | "hvals" | "sunion" | "sinter" | "sdiff" => {
            "Read by pieces (SSCAN, HSCAN), or divide the key: its size is the time."
        }
        "lrange" | "zrange" | "zrevrange" | "zrangebyscore" | "xrange" => {
            "Ask for fewer elements at a time, by LIMIT or COUNT."
        }
        "del" | "flushall" | "flushdb" => "Use UNLINK, or ASYNC: memory is then freed by another thread.",
        "sort" | "sort_ro" => "Keep the elements in a sorted set, which is sorted already.",
        name if is_script(name) => {
            "Divide the script's work among several calls: a script runs in one piece, and all clients wait."
        }
        "exec" => "Divide the transaction: it runs in one piece.",
        _ => "See its arguments with SLOWLOG GET, and divide its work among several calls.",
    }
}

/// The times of commands, from the statistics or, where a blocked server did not give them, from its slow
/// log.
fn times(view: &View<'_>) -> Vec<OwnCommand> {
    let recording = view.recording;
    if !recording.commands.is_empty() {
        return recording.commands.clone();
    }
    let mut commands: Vec<OwnCommand> = Vec::new();
    for slow in &recording.slow_commands {
        match commands.iter_mut().find(|command| command.name == slow.name) {
            Some(command) => {
                command.calls += 1;
                command.took_ns += slow.took_ns;
            }
            None => commands.push(OwnCommand { name: slow.name.clone(), calls: 1, took_ns: slow.took_ns }),
        }
    }
    commands
}

pub(crate) fn long_ones(view: &View<'_>) -> Outcome {
    let recording = view.recording;
    let commands = times(view);
    if commands.is_empty() && !is_of_redis_family(&recording.target.name) {
        return Outcome::RuledOut("it is no server of the Redis family".to_string());
    }
    if commands.is_empty() {
        return Outcome::Unseen(
            "the times of commands need a server of the Redis family that replies".into(),
        );
    }
    // A server of several serving threads adds their times up.
    let between_ns = recording.own_count.as_ref().map_or(recording.window_ns, |count| count.between_ns);
    let served = served_by(recording, &view.critical);
    let share_of = |command: &OwnCommand| {
        let share = command.took_ns as f64 * served / between_ns.max(1) as f64;
        share.min(view.critical.busy_share())
    };
    let mut long: Vec<(&OwnCommand, f64)> = commands
        .iter()
        .filter(|command| command.took_ns / command.calls.max(1) >= LONG_NS)
        .map(|command| (command, share_of(command)))
        .filter(|(_, share)| *share >= SHARE_MIN)
        .collect();
    // What a script or a transaction runs is counted twice: it goes behind.
    let is_container = |command: &OwnCommand| CONTAINERS.contains(&command.name.as_str());
    long.sort_by(|(a, share_a), (b, share_b)| {
        is_container(b).cmp(&is_container(a)).then_with(|| share_b.total_cmp(share_a))
    });
    let findings: Vec<Finding> = long
        .iter()
        .take(NAMED_MAX)
        .map(|&(command, share)| {
            let each_ns = command.took_ns / command.calls.max(1);
            let mut slow = recording.slow_commands.iter().filter(|slow| slow.name == command.name);
            let longest = slow.next();
            let script = longest.and_then(|slow| slow.script.as_deref()).filter(|_| is_script(&command.name));
            let what = match script {
                Some(script) => format!("The script \"{script}\" ({})", shown(&command.name)),
                None => shown(&command.name),
            };
            let calls =
                if command.calls == 1 { "1 call".to_string() } else { format!("{} calls", command.calls) };
            // Evenkeel runs long commands piece by piece, or on other threads.
            let blocks = !recording.target.name.starts_with("evenkeel");
            let waiters = if blocks { ", for which all its other clients wait" } else { "" };
            let title = format!(
                "{what} takes {} of the thread's time: {calls} of {} each{waiters}",
                percent(share),
                millis(each_ns)
            );
            let (host, port) = address(view);
            let mut finding = Finding::new("R20", share, view.confidence(0.95, false), title)
                .about(shown(&command.name))
                .evidence(
                    format!("{} calls took {} in all", command.calls, millis(command.took_ns)),
                    format!(
                        "redis-cli -h {host} -p {port} INFO commandstats | grep cmdstat_{}",
                        command.name
                    ),
                )
                .next(next_step(&command.name));
            if let Some(slow) = longest {
                finding = finding.evidence(
                    format!("the longest took {}, from the client {}", millis(slow.took_ns), slow.client),
                    format!("redis-cli -h {host} -p {port} SLOWLOG GET 128"),
                );
            }
            finding.holds_while_idle = blocks && each_ns >= FELT_NS;
            finding
        })
        .collect();
    Outcome::found_or(findings, || {
        let longest = commands.iter().max_by_key(|command| command.took_ns / command.calls.max(1));
        longest.map_or_else(String::new, |command| {
            format!(
                "no command takes long: {}, the slowest, takes {} a call",
                shown(&command.name),
                millis(command.took_ns / command.calls.max(1))
            )
        })
    })
}

/// Host and port of its listener, for commands to copy.
fn address<'a>(view: &View<'a>) -> (&'a str, &'a str) {
    let listener = view.recording.listeners.first().map_or("127.0.0.1:6379", |it| it.address.as_str());
    let (host, port) = listener.rsplit_once(':').unwrap_or(("127.0.0.1", "6379"));
    (
        if host.is_empty() || host == "0.0.0.0" || host == "*" || host == "[::]" {
            "127.0.0.1"
        } else {
            host
        },
        port,
    )
}

/// The clients' parts, by their commands or, where the server does not count these, by their bytes.
fn parts(view: &View<'_>) -> Option<(Vec<(String, u64)>, &'static str)> {
    let recording = view.recording;
    if !recording.clients.is_empty() {
        let named = recording.clients.iter().map(|client| {
            let name = if client.name.is_empty() { String::new() } else { format!(" (\"{}\")", client.name) };
            (format!("{}{name}", client.address), client.commands)
        });
        return Some((named.collect(), "commands"));
    }
    let mut bytes: Vec<(i32, u64)> = Vec::new();
    for call in
        recording.calls.iter().filter(|call| RECEIVING.contains(&call.name.as_str()) && call.bytes > 0)
    {
        let Some(fd) = call.fd.filter(|_| view.role(call.fd) == Some(Role::Client)) else { continue };
        match bytes.iter_mut().find(|(known, _)| *known == fd) {
            Some((_, sum)) => *sum += call.bytes,
            None => bytes.push((fd, call.bytes)),
        }
    }
    bytes.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    let far_end = |what: &str| what.rsplit(' ').next().unwrap_or_default().to_string();
    let named = bytes.iter().map(|&(fd, sum)| (view.what(Some(fd)).map_or_else(String::new, far_end), sum));
    (!bytes.is_empty()).then(|| (named.collect(), "received bytes"))
}

pub(crate) fn one_client(view: &View<'_>) -> Outcome {
    let Some((parts, of)) = parts(view) else {
        if view.recording.tier == Tier::T0 {
            return Outcome::RuledOut("no client sent anything".to_string());
        }
        return Outcome::Unseen("the clients' parts need a server that counts them, or eBPF".to_string());
    };
    let all: u64 = parts.iter().map(|(_, part)| part).sum();
    let Some((client, most)) = parts.first().filter(|_| all > 0) else {
        return Outcome::RuledOut("no client sent anything".to_string());
    };
    let part = *most as f64 / all as f64;
    let share = part * view.critical.busy_share();
    if parts.len() < CLIENTS_MIN || part < CLIENT_SHARE || share < SHARE_MIN {
        return Outcome::RuledOut(format!(
            "the busiest of {} active clients sends {} of the {of}",
            parts.len(),
            percent(part)
        ));
    }
    let title = format!(
        "The client {client} sends {} of the {of}, and the other {} active clients wait behind it",
        percent(part),
        parts.len() - 1
    );
    let (host, port) = address(view);
    let finding = Finding::new("R21", share, view.confidence(CLIENT_CONFIDENCE, false), title)
        .about("one client")
        .evidence(
            format!("{most} of {all} {of}"),
            format!(
                "redis-cli -h {host} -p {port} CLIENT LIST   # tot-cmds, qbuf, and twice for the difference"
            ),
        )
        .next("Bound its pipelines, give its work a server of its own, or move it to calmer hours.");
    Outcome::Found(vec![finding])
}

#[cfg(test)]
mod tests {
    use crate::analyse::{Verdict, diagnose};
    use crate::golden;
    use crate::recording::{Call, OwnClient, OwnCommand, OwnCount, Recording, SlowCommand};

    fn with(mut recording: Recording, commands: &[(&str, u64, u64)]) -> Recording {
        let between_ns = golden::WINDOW_NS;
        recording.own_count = Some(OwnCount { between_ns, commands: 1_000, stages: Vec::new() });
        let command = |&(name, calls, took_ns): &(&str, u64, u64)| OwnCommand {
            name: name.to_string(),
            calls,
            took_ns,
        };
        recording.commands = commands.iter().map(command).collect();
        recording
    }

    #[test]
    fn a_long_command_is_named_before_its_functions() {
        let mut recording =
            with(golden::busy(), &[("keys", 12, 6_000_000_000), ("get", 900_000, 900_000_000)]);
        golden::add_samples(&mut recording, &["main", "aeMain", "keysCommand", "dictNext"], 1_920);
        let diagnosis = diagnose(&recording);
        let first = &diagnosis.findings[0];
        assert_eq!(diagnosis.verdict, Verdict::Found);
        assert_eq!((first.rule, first.subject.as_str()), ("R20", "KEYS"), "{:#?}", diagnosis.findings);
        assert!(first.title.starts_with("KEYS takes 60% of the thread's time: 12 calls of 500 ms each"));
        assert!(first.next_step.contains("SCAN"));
        assert!(diagnosis.findings.iter().all(|finding| finding.subject != "GET"), "GET is short");
    }

    #[test]
    fn a_script_is_named_by_its_first_line_and_goes_before_its_commands() {
        let mut recording =
            with(golden::busy(), &[("sort", 30, 7_000_000_000), ("evalsha", 30, 7_100_000_000)]);
        let slow = |name: &str, took_ns| SlowCommand {
            name: name.to_string(),
            took_ns,
            client: "10.0.0.9:4000".to_string(),
            script: Some("5e1a".to_string()),
        };
        recording.slow_commands = vec![slow("evalsha", 400_000_000)];
        let diagnosis = diagnose(&recording);
        let first = &diagnosis.findings[0];
        assert!(first.title.starts_with("The script \"5e1a\" (EVALSHA) takes 71% "), "{}", first.title);
        assert!(first.evidence[1].what.contains("400 ms, from the client 10.0.0.9:4000"));
    }

    #[test]
    fn a_blocked_server_is_known_by_its_slow_log() {
        let mut recording = golden::busy();
        let slow =
            |_| SlowCommand { name: "save".to_string(), took_ns: 1_500_000_000, ..SlowCommand::default() };
        recording.slow_commands = (0..4).map(slow).collect();
        let first = diagnose(&recording).findings[0].clone();
        assert!(
            first.title.starts_with("SAVE takes 60% of the thread's time: 4 calls of 1500 ms"),
            "{first:?}"
        );
    }

    #[test]
    fn commands_without_length_are_no_finding() {
        let diagnosis = diagnose(&with(golden::busy(), &[("set", 9_000_000, 9_000_000_000)]));
        assert!(diagnosis.findings.iter().all(|finding| finding.rule != "R20"));
        let ruled = diagnosis.ruled_out.iter().find(|ruled| ruled.rule == "R20").expect("it was examined");
        assert_eq!(ruled.why, "no command takes long: SET, the slowest, takes 0.00 ms a call");
    }

    #[test]
    fn a_client_that_sends_most_is_named() {
        let client = |port: u64, commands| OwnClient {
            address: format!("10.0.0.1:{port}"),
            name: "batch".to_string(),
            commands,
        };
        let mut recording = golden::busy();
        recording.clients = vec![client(1, 99_900), client(2, 60), client(3, 40)];
        let diagnosis = diagnose(&recording);
        assert_eq!(diagnosis.findings[0].rule, "R21");
        let title = &diagnosis.findings[0].title;
        assert!(title.starts_with("The client 10.0.0.1:1 (\"batch\") sends 100% of the commands"), "{title}");
        recording.clients = vec![client(1, 50), client(2, 60), client(3, 40)];
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R21"));
        recording.clients = vec![client(1, 50)];
        assert!(
            diagnose(&recording).findings.iter().all(|finding| finding.rule != "R21"),
            "there is no crowd"
        );
    }

    #[test]
    fn where_commands_are_not_counted_bytes_tell() {
        let mut recording = golden::busy();
        let received = |fd, bytes| Call {
            tid: golden::TID,
            name: "read".to_string(),
            fd: Some(fd),
            count: Some(1),
            bytes,
            ..Call::default()
        };
        for (fd, bytes) in [(golden::CLIENT, 990_000), (30, 5_000), (31, 5_000)] {
            if fd != golden::CLIENT {
                let mut descriptor = recording.descriptors[2].clone();
                (descriptor.fd, descriptor.what) = (fd, format!("127.0.0.1:6379 <- 127.0.0.1:60{fd}"));
                recording.descriptors.push(descriptor);
            }
            recording.calls.push(received(fd, bytes));
        }
        let found = diagnose(&recording).findings;
        let finding = found.iter().find(|finding| finding.rule == "R21").expect("one sends nearly all");
        assert!(
            finding.title.contains("127.0.0.1:50000 sends 99% of the received bytes"),
            "{}",
            finding.title
        );
    }
}
