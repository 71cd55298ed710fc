//! R22: what the server waits for while its clients wait for it.
//!
//! A thread that has accepted a request and sleeps is not idle, although its sleep looks like a wait for
//! work. So the connections decide: clients' requests are inside, and meanwhile another server owes a
//! reply, or the threads sleep.

use std::collections::BTreeMap;

use super::percent;
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{Upstream, is_of_redis_family};

const SAMPLES_MIN: u64 = 4;
/// Part of the samples with requests inside, from which clients wait for the server.
const REQUESTS_MIN: f64 = 0.3;
/// Part of these in which an upstream owes a reply, from which it is the cause.
const UPSTREAM_MIN: f64 = 0.6;
/// A thread that is busier than this does not wait: its work is the cause.
const BUSY_MAX: f64 = 0.5;
/// Part of the time in which requests are inside, from which sleeps in a call are the cause.
const SLEEP_MIN: f64 = 0.6;
/// Calls in which a thread that serves a request may sleep. Waits for events are not among them: an event
/// loop may serve other clients meanwhile.
const SLEEPS: &[&str] = &["nanosleep", "clock_nanosleep", "wait4", "waitid", "futex-lock"];

pub(crate) fn waiting(view: &View<'_>) -> Outcome {
    let in_hand = &view.recording.in_hand;
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
    let owes =
        |upstream: &&Upstream| upstream.seen_waiting as f64 >= UPSTREAM_MIN * in_hand.seen_requests as f64;
    let found = match in_hand.upstreams.iter().find(owes) {
        Some(upstream) => Some(for_upstream(view, upstream)),
        None => asleep(view, part),
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
            format!(", for up to {} ms", upstream.longest_ms),
            "Look at that server next, with the doctor if it runs here. Ask it for several requests at a \
             time, and with a time limit.",
        )
    };
    let title =
        format!("{} of the time it waits for {who} with clients' requests in hand{length}", percent(share));
    let mut finding = Finding::new("R22", share, view.confidence(0.95, false).max(0.9), title)
        .about(format!("waits for {who}"))
        .evidence(
            format!("{} requests to it were open in all samples together", upstream.requests),
            format!("ss -tinp dst {}", upstream.address),
        )
        .next(next);
    finding.holds_while_idle = true;
    finding
}

/// The call in which its threads sleep for most of the time in which requests are inside.
fn asleep(view: &View<'_>, part: f64) -> Option<Finding> {
    let mut by_call: BTreeMap<&str, u64> = BTreeMap::new();
    for call in view.recording.calls.iter().filter(|call| SLEEPS.contains(&call.name.as_str())) {
        *by_call.entry(call.name.as_str()).or_default() += call.blocked_ns;
    }
    let (call, slept_ns) = by_call.into_iter().max_by_key(|(_, ns)| *ns)?;
    let slept = view.share(slept_ns).min(1.0);
    if slept < SLEEP_MIN * part {
        return None;
    }
    let longest = view.recording.in_hand.longest_ms;
    let title = format!(
        "{} of the time clients' requests are inside, for up to {longest} ms, while its threads sleep in \
         {call}",
        percent(part)
    );
    let places = view.recording.waits.iter().filter(|wait| wait.call.as_deref() == Some(call));
    let place = places.max_by_key(|wait| wait.blocked_ns);
    let path = place.map(|wait| {
        let own = view.frames(wait.stack).filter(|frame| !frame.is_kernel()).take(6);
        own.map(|frame| frame.name.as_str()).collect::<Vec<_>>().join(" < ")
    });
    let mut finding = Finding::new("R22", part.min(slept), view.confidence(0.9, false).max(0.85), title)
        .about(format!("sleeps in {call}"))
        .evidence(
            path.unwrap_or_else(|| format!("{} of a thread's time in {call}", percent(slept))),
            format!("strace -c -f -p {} -e trace={}", view.pid(), call.trim_end_matches("-lock")),
        )
        .next("Serve other clients meanwhile: by more threads, or by a timer of the event loop.");
    finding.holds_while_idle = true;
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::analyse::{Verdict, diagnose};
    use crate::golden;
    use crate::recording::{Call, InHand, Recording, Upstream};

    fn with_requests(upstreams: Vec<Upstream>) -> Recording {
        let mut recording = golden::idle();
        recording.target.name = "python3".to_string();
        let (seen, seen_requests, requests, longest_ms) = (50, 48, 48, 190);
        recording.in_hand = InHand { seen, seen_requests, requests, longest_ms, upstreams };
        recording
    }

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
        let diagnosis = diagnose(&with_requests(vec![upstream.clone()]));
        assert_eq!(diagnosis.verdict, Verdict::Found);
        assert_eq!(
            diagnosis.sentence,
            "94% of the time it waits for 127.0.0.1:7965 (python3 4310) with clients' requests in hand, \
             for up to 200 ms"
        );
        let rarely = Upstream { seen_waiting: 3, ..upstream };
        let diagnosis = diagnose(&with_requests(vec![rarely]));
        let sentence = &diagnosis.sentence;
        assert!(diagnosis.ruled_out.iter().any(|ruled| ruled.rule == "R22" && ruled.unseen), "{sentence}");
        assert!(matches!(diagnosis.verdict, Verdict::Inconclusive { .. }), "never idle: {sentence}");
    }

    #[test]
    fn sleeps_with_requests_in_hand_are_named_by_their_call() {
        let mut recording = with_requests(Vec::new());
        recording.calls.push(Call {
            tid: golden::TID,
            name: "clock_nanosleep".to_string(),
            blocked_ns: golden::WINDOW_NS / 10 * 9,
            ..Call::default()
        });
        let first = diagnose(&recording).findings[0].clone();
        assert!(first.title.ends_with("while its threads sleep in clock_nanosleep"), "{}", first.title);
    }

    #[test]
    fn a_busy_server_and_one_without_requests_do_not_wait() {
        let mut recording = with_requests(Vec::new());
        recording.in_hand.seen_requests = 2;
        let ruled_out = diagnose(&recording).ruled_out;
        assert!(ruled_out.iter().any(|ruled| ruled.rule == "R22" && !ruled.unseen));
        let mut busy = with_requests(Vec::new());
        busy.threads[0].cpu_ns = golden::WINDOW_NS / 10 * 9;
        assert!(diagnose(&busy).ruled_out.iter().any(|ruled| ruled.rule == "R22" && !ruled.unseen));
    }
}
