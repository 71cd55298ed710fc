//! R22: what the server waits for while its clients wait for it.
//!
//! A thread that has accepted a request and sleeps is not idle, although its sleep looks like a wait for
//! work. So the connections decide: clients' requests are inside, and meanwhile another server owes a
//! reply, or the threads sleep.

use super::{asleep, percent, postgres, runtimes};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{Upstream, is_of_redis_family};

pub(super) const SAMPLES_MIN: u64 = 4;
/// Part of the samples with requests inside, from which clients wait for the server.
pub(super) const REQUESTS_MIN: f64 = 0.3;
/// Part of these in which an upstream owes a reply, from which it is the cause.
const UPSTREAM_MIN: f64 = 0.6;
/// A thread that is busier than this does not wait: its work is the cause.
const BUSY_MAX: f64 = 0.5;

pub(crate) fn waiting(view: &View<'_>) -> Outcome {
    let in_hand = &view.recording.in_hand;
    if let Some(finding) = postgres::waits_for_a_lock(view) {
        return Outcome::Found(vec![finding]);
    }
    if is_of_redis_family(&view.recording.target.name) {
        return Outcome::RuledOut("its clients may wait for keys on purpose".to_string());
    }
    if in_hand.seen < SAMPLES_MIN {
        return Outcome::Unseen("requests inside the server need samples of its connections".to_string());
    }
    let part = in_hand.seen_requests as f64 / in_hand.seen as f64;
    let inside = format!("requests of 10 ms and more were inside in {} of the samples", percent(part));
    let busy = view.critical.busy_share();
    if part < REQUESTS_MIN || busy >= BUSY_MAX {
        return Outcome::RuledOut(format!("{inside}; its busiest thread works {}", percent(busy)));
    }
    if runtimes::waits_for_locks(view) {
        return Outcome::RuledOut(format!("{inside}: its tasks wait for a lock"));
    }
    let owes =
        |upstream: &&Upstream| upstream.seen_waiting as f64 >= UPSTREAM_MIN * in_hand.seen_requests as f64;
    // A connection on a Unix socket may be idle: other causes come before it.
    let (known, unix): (Vec<&Upstream>, Vec<&Upstream>) =
        in_hand.upstreams.iter().filter(owes).partition(|upstream| !upstream.is_unix);
    let found = match known.first() {
        Some(upstream) => Some(for_upstream(view, upstream)),
        None => {
            asleep::cause(view, part).or_else(|| unix.first().map(|upstream| for_upstream(view, upstream)))
        }
    };
    match found {
        Some(finding) => Outcome::Found(vec![finding.evidence(
            format!("{inside}, for up to {} ms", in_hand.longest_ms),
            format!("ss -tinp | grep -A1 pid={}   # lastsnd and lastrcv, ms", view.pid()),
        )]),
        None => Outcome::Unseen(format!("{inside}, and this recording does not show for what they wait")),
    }
}

/// Why a server that seems to have no work may not be called idle.
pub(crate) fn unexplained(view: &View<'_>) -> Option<String> {
    if let Some((title, _)) = postgres::statement(view).filter(|(_, part)| *part >= REQUESTS_MIN) {
        return Some(format!(
            "its title says that it executes a statement ({title}), and for what is not seen"
        ));
    }
    match waiting(view) {
        Outcome::Unseen(why) if view.recording.in_hand.seen >= SAMPLES_MIN => {
            Some(format!("{why} (or its clients expect no reply)"))
        }
        _ => None,
    }
}

fn for_upstream(view: &View<'_>, upstream: &Upstream) -> Finding {
    let share = upstream.seen_waiting as f64 / view.recording.in_hand.seen.max(1) as f64;
    let process = upstream.process.as_ref().map_or_else(String::new, |process| format!(" ({process})"));
    let (who, length, next) = if upstream.is_name_server {
        (
            format!("the name server {}", upstream.address),
            String::new(),
            "See whether it answers (dig @ADDRESS NAME), and /etc/resolv.conf; keep answers, or resolve \
             names once.",
        )
    } else {
        (
            format!("{}{process}", upstream.address),
            if upstream.is_unix { String::new() } else { format!(", for up to {} ms", upstream.longest_ms) },
            "Look at that server next, with the doctor if it runs here. Ask it for several requests at a \
             time, and with a time limit.",
        )
    };
    let chain: Vec<String> =
        upstream.chain.iter().map(|step| format!("; {} {}", step.process, step.does)).collect();
    let title = format!(
        "{} of the time it waits for {who} with clients' requests in hand{length}{}",
        percent(share),
        chain.concat()
    );
    let confidence = if upstream.is_unix { 0.6 } else { 0.95 };
    let least = confidence - 0.05;
    let mut finding = Finding::new("R22", share, view.confidence(confidence, false).max(least), title)
        .about(format!("waits for {who}"))
        .evidence(
            format!("{} requests to it were open in all samples together", upstream.requests),
            if upstream.is_unix {
                format!("ss -xp | grep {}", upstream.address)
            } else {
                format!("ss -tinp dst {}", upstream.address)
            },
        )
        .next(next);
    finding.holds_while_idle = true;
    finding
}

#[cfg(test)]
mod tests {
    use crate::analyse::{Verdict, diagnose};
    use crate::golden;
    use crate::recording::{Step, Upstream};

    #[test]
    fn an_upstream_that_owes_replies_is_named() {
        let upstream = Upstream {
            address: "127.0.0.1:7965".to_string(),
            process: Some("python3 4310".to_string()),
            seen_waiting: 47,
            requests: 47,
            longest_ms: 200,
            ..Upstream::default()
        };
        let diagnosis = diagnose(&golden::with_requests(vec![upstream.clone()]));
        assert_eq!(diagnosis.verdict, Verdict::Found);
        assert_eq!(
            diagnosis.sentence,
            "94% of the time it waits for 127.0.0.1:7965 (python3 4310) with clients' requests in hand, \
             for up to 200 ms"
        );
        let step = |process: &str, does: &str| Step { process: process.to_string(), does: does.to_string() };
        let chain = vec![
            step("python3 4310", "waits for 127.0.0.1:5432"),
            step("postgres 77", "is in fdatasync on /x"),
        ];
        let sentence =
            diagnose(&golden::with_requests(vec![Upstream { chain, ..upstream.clone() }])).sentence;
        let end = "; python3 4310 waits for 127.0.0.1:5432; postgres 77 is in fdatasync on /x";
        assert!(sentence.ends_with(end), "{sentence}");
        let unix = Upstream { address: "/run/app.sock".to_string(), is_unix: true, ..upstream.clone() };
        let first = diagnose(&golden::with_requests(vec![unix])).findings[0].clone();
        assert!(first.title.starts_with("94% of the time it waits for /run/app.sock (python3 4310)"));
        assert!(first.confidence < 0.7, "its connection may be idle");
        let rarely = Upstream { seen_waiting: 3, ..upstream };
        let diagnosis = diagnose(&golden::with_requests(vec![rarely]));
        let sentence = &diagnosis.sentence;
        assert!(diagnosis.ruled_out.iter().any(|ruled| ruled.rule == "R22" && ruled.unseen), "{sentence}");
        assert!(matches!(diagnosis.verdict, Verdict::Inconclusive { .. }), "never idle: {sentence}");
    }

    #[test]
    fn a_busy_server_and_one_without_requests_do_not_wait() {
        let mut recording = golden::with_requests(Vec::new());
        recording.in_hand.seen_requests = 2;
        let ruled_out = diagnose(&recording).ruled_out;
        assert!(ruled_out.iter().any(|ruled| ruled.rule == "R22" && !ruled.unseen));
        let mut busy = golden::with_requests(Vec::new());
        busy.threads[0].cpu_ns = golden::WINDOW_NS / 10 * 9;
        assert!(diagnose(&busy).ruled_out.iter().any(|ruled| ruled.rule == "R22" && !ruled.unseen));
    }
}
