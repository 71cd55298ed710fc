//! R27: the process has as many descriptors open as it may. R28: packets are lost between the server and the
//! others.

use super::percent;
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;

/// Part of the limit, from which there is no room for another connection: descriptors come and go meanwhile.
const FULL: f64 = 0.98;
/// Segments sent again, and their part of all, from which clients notice: each costs its connection 200 ms
/// and more.
const AGAIN_MIN: u64 = 20;
const AGAIN_PART_MIN: f64 = 0.005;

pub(crate) fn descriptors(view: &View<'_>) -> Outcome {
    let open = view.recording.descriptors.len() as u64;
    let Some(limit) = view.recording.target.descriptors_limit.filter(|limit| *limit > 0) else {
        return Outcome::RuledOut("the number of its descriptors is not limited".to_string());
    };
    // The recording has descriptors of both ends of the window: more than were open at once.
    if (open as f64) < FULL * limit as f64 {
        return Outcome::RuledOut(format!("{open} of at most {limit} descriptors are open"));
    }
    let title = format!(
        "It has all of its {limit} descriptors open: it can accept no connection and open no file until one \
         is closed"
    );
    let pid = view.pid();
    Outcome::Found(vec![
        Finding::outside("R27", 3.0, view.confidence(0.9, false).max(0.85), title)
            .about("descriptors")
            .evidence(
                format!("{open} were open in the window"),
                format!("ls /proc/{pid}/fd | wc -l; grep 'open files' /proc/{pid}/limits"),
            )
            .next(
                "Raise the limit (LimitNOFILE of its unit, ulimit -n) and see by the table of sockets who \
                 has them: too many clients, or connections that are never closed.",
            ),
    ])
}

pub(crate) fn losses(view: &View<'_>) -> Outcome {
    let segments = &view.recording.segments;
    let part = segments.again as f64 / (segments.sent + segments.again).max(1) as f64;
    if segments.again < AGAIN_MIN || part < AGAIN_PART_MIN {
        return Outcome::RuledOut(format!("{} segments were sent again", segments.again));
    }
    let worst = segments.worst.as_ref().filter(|(_, again)| *again * 2 > segments.again);
    let whom = worst.map_or_else(String::new, |(host, _)| format!(", most of them to {host}"));
    let title = format!(
        "Packets are lost on the network: {} of the segments that it sends are sent again{whom}",
        percent(part)
    );
    Outcome::Found(vec![
        Finding::outside("R28", 1.5, view.confidence(0.85, false).max(0.8), title)
            .about("lost packets")
            .evidence(
                format!("{} segments of {} were sent again", segments.again, segments.sent + segments.again),
                "ss -tin | grep retrans; nstat -az TcpRetransSegs TcpExtTCPTimeouts".to_string(),
            )
            .next(
                "See where they are lost: drops of this machine's interface (ip -s link), of its queues (tc \
                 -s qdisc), or on the way (mtr).",
            ),
    ])
}

#[cfg(test)]
mod tests {
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::Segments;

    #[test]
    fn a_process_without_a_free_descriptor_cannot_accept() {
        let mut recording = golden::idle();
        recording.target.descriptors_limit = Some(recording.descriptors.len() as u64);
        let sentence = diagnose(&recording).sentence;
        assert!(sentence.starts_with("It has all of its 5 descriptors open"), "{sentence}");
        recording.target.descriptors_limit = Some(10);
        assert!(diagnose(&recording).findings.is_empty(), "half of them are free");
    }

    #[test]
    fn lost_packets_are_a_finding_from_a_part_on() {
        let mut recording = golden::idle();
        let worst = Some(("10.0.0.9".to_string(), 90));
        recording.segments = Segments { sent: 9_900, again: 100, worst };
        let sentence = diagnose(&recording).sentence;
        let expected = "Packets are lost on the network: 1.0% of the segments that it sends are sent again, \
                        most of them to 10.0.0.9";
        assert_eq!(sentence, expected);
        recording.segments.sent = 1_000_000;
        assert!(diagnose(&recording).findings.is_empty(), "0.01% is normal");
    }
}
