//! R23: a server that could work and is not allowed to: stopped by a signal or a debugger, paused by CLIENT
//! PAUSE, or with as many clients as it admits.

use super::percent;
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::Answer;

/// Part of the samples from which a stopped process is the cause.
const STOPPED_MIN: f64 = 0.1;
/// Part of its time that a paused server waits for events.
const IDLE_MIN: f64 = 0.9;

pub(crate) fn evaluate(view: &View<'_>) -> Outcome {
    let recording = view.recording;
    let states = &recording.states;
    let stopped = states.stopped as f64 / states.seen.max(1) as f64;
    if stopped >= STOPPED_MIN {
        let by = states.tracer.as_ref().map_or_else(
            || "by a signal (SIGSTOP or SIGTSTP)".to_string(),
            |tracer| format!("by the debugger {tracer}"),
        );
        let title = format!("The process is stopped {by}, in {} of the samples", percent(stopped));
        let show = format!("grep -E 'State|TracerPid' /proc/{}/status", view.pid());
        let finding = Finding::outside("R23", 1.0 / (1.0 - stopped.min(0.99)), 1.0, title)
            .about("stopped")
            .evidence(format!("{} of {} samples", states.stopped, states.seen), show);
        let next = match states.tracer {
            None => format!("kill -CONT {}", view.pid()),
            Some(_) => "Detach the debugger.".to_string(),
        };
        return Outcome::Found(vec![finding.next(&next)]);
    }
    let idle = view.critical.share(view.critical.idle_ns);
    match recording.answer {
        Answer::ClientsMax => Outcome::Found(vec![
            Finding::outside("R23", 10.0, 0.99, "It refuses new clients: maxclients is reached".to_string())
                .about("maxclients")
                .evidence(
                    "the doctor's own connection was refused".to_string(),
                    "redis-cli INFO stats | grep rejected_connections   # needs a connection".to_string(),
                )
                .next("Raise maxclients, let applications keep fewer connections, or set `timeout`."),
        ]),
        Answer::Silent if idle >= IDLE_MIN => Outcome::Found(vec![
            Finding::outside(
                "R23",
                10.0,
                view.confidence(0.9, false),
                "It replies to nobody although it waits for events: its clients are paused (CLIENT PAUSE)"
                    .to_string(),
            )
            .about("paused")
            .evidence(
                format!("no reply to INFO in five seconds; its thread waits {} of the time", percent(idle)),
                "redis-cli CLIENT UNPAUSE   # ends the pause".to_string(),
            )
            .next("A failover or an operator pauses clients: see who did. A pause ends by itself."),
        ]),
        _ => Outcome::RuledOut("it was not stopped, paused, or at the limit of its clients".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use crate::analyse::{Verdict, diagnose};
    use crate::golden;
    use crate::recording::{Answer, States};

    #[test]
    fn a_server_that_may_not_work_is_not_idle() {
        let mut recording = golden::idle();
        recording.states = States { seen: 20, stopped: 20, ..States::default() };
        let diagnosis = diagnose(&recording);
        assert_eq!(diagnosis.verdict, Verdict::Found);
        assert!(diagnosis.sentence.contains("stopped by a signal"), "{}", diagnosis.sentence);
        recording.states.tracer = Some("gdb 77".to_string());
        assert!(diagnose(&recording).sentence.contains("by the debugger gdb 77"));
        for (answer, words) in [(Answer::Silent, "CLIENT PAUSE"), (Answer::ClientsMax, "maxclients")] {
            let mut recording = golden::idle();
            recording.answer = answer;
            let sentence = diagnose(&recording).sentence;
            assert!(sentence.contains(words), "{sentence}");
            recording.answer = Answer::Given;
            assert_eq!(diagnose(&recording).verdict, Verdict::Idle);
        }
    }

    #[test]
    fn a_busy_server_that_replies_late_is_not_paused() {
        let mut recording = golden::busy();
        recording.answer = Answer::Silent;
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R23"));
    }
}
