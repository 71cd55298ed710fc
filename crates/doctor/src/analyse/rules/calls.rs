//! R7: wake-ups without events. R12: many calls for few bytes.

use super::sends::SENDS;
use super::{SHARE_MIN, percent};
use crate::analyse::critical::POLLS;
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{Call, Sample};

const RECEIVES: &[&str] = &["read", "readv", "recvfrom", "recvmsg"];
const ACCEPTS: &[&str] = &["accept", "accept4"];
/// Less than any request of a usual protocol.
const BYTES_FEW: f64 = 32.0;
const CALLS_MANY: f64 = 1_000.0;
const SMALL_SHARE_MIN: f64 = 0.1;
const WOULD_BLOCK_MIN: f64 = 0.3;

/// Calls of a kind, added up.
#[derive(Debug, Default)]
struct Sum {
    count: u64,
    bytes: u64,
    would_block: u64,
    cpu_ns: u64,
}

fn sum<'a>(calls: impl Iterator<Item = &'a Call>) -> Sum {
    let mut sum = Sum::default();
    for call in calls {
        sum.count += call.count.unwrap_or(0);
        sum.bytes += call.bytes;
        sum.would_block += call.would_block;
        sum.cpu_ns += call.cpu_ns;
    }
    sum
}

fn unseen() -> Outcome {
    Outcome::Unseen("counts of system calls need BPF programs".to_string())
}

/// Calls on connections.
fn on_peers(view: &View<'_>, names: &[&str]) -> Sum {
    let is_named = |call: &&Call| names.contains(&call.name.as_str());
    sum(view.calls().filter(is_named).filter(|call| view.role(call.fd).is_some_and(|role| role.is_peer())))
}

impl Sum {
    fn bytes_each(&self) -> f64 {
        self.bytes as f64 / self.done().max(1) as f64
    }

    fn done(&self) -> u64 {
        self.count.saturating_sub(self.would_block)
    }

    /// Whether these are many calls that each transfer few bytes, and together take time.
    fn is_small(&self, view: &View<'_>) -> bool {
        let is_much = view.share(self.cpu_ns) >= SMALL_SHARE_MIN;
        is_much && self.bytes_each() < BYTES_FEW && view.per_second(self.done()) > CALLS_MANY
    }
}

/// Whether a sample is inside one of R12's receives of few bytes.
pub(super) fn is_small_receive(view: &View<'_>) -> impl Fn(&Sample) -> bool + use<> {
    let are_small = view.counts_calls() && on_peers(view, RECEIVES).is_small(view);
    move |sample| are_small && sample.call.as_deref().is_some_and(|name| RECEIVES.contains(&name))
}

pub(crate) fn small_calls(view: &View<'_>) -> Outcome {
    if !view.counts_calls() {
        return unseen();
    }
    let mut findings = Vec::new();
    for (names, verb) in [(RECEIVES, "receives"), (SENDS, "sends")] {
        let sum = on_peers(view, names);
        let share = view.share(sum.cpu_ns);
        let refused = sum.would_block as f64 / sum.count.max(1) as f64;
        let command = format!("strace -c -f -e trace={} -p {}", names.join(","), view.pid());
        if refused >= WOULD_BLOCK_MIN && share >= SHARE_MIN {
            let title = format!("When it {verb}, {} of the calls fail with EAGAIN", percent(refused));
            let finding = Finding::new("R12", share * refused, view.confidence(0.7, false), title);
            findings.push(
                finding
                    .about(verb)
                    .evidence(format!("{} such calls a second", view.rate(sum.would_block)), command)
                    .within(&[view.scale_error(share * refused)])
                    .next("Stop after a read that did not fill the buffer; wait for the next event."),
            );
        } else if sum.is_small(view) {
            let (done, each) = (sum.done(), sum.bytes_each());
            let title = format!(
                "It {verb} {each:.0} bytes a call, {:.0} times a second: {} of the thread's time",
                view.per_second(done),
                percent(share)
            );
            let mut finding = Finding::new("R12", share, view.confidence(0.6, false), title);
            finding.ceiling = 1.0 / (1.0 - share * 0.8);
            findings.push(
                finding
                    .about(verb)
                    .evidence(format!("{} calls a second, of {each:.0} bytes", view.rate(done)), command)
                    .within(&[view.scale_error(share)])
                    .next("Clients that send a request in pieces, or one at a time: batch or pipeline."),
            );
        }
    }
    Outcome::found_or(findings, || "bytes a call are as usual".to_string())
}

pub(crate) fn useless_wakeups(view: &View<'_>) -> Outcome {
    if !view.counts_calls() {
        return unseen();
    }
    let named =
        |names: &'static [&'static str]| view.calls().filter(move |c| names.contains(&c.name.as_str()));
    let (polls, accepts) = (sum(named(POLLS)), sum(named(ACCEPTS)));
    let rate = view.per_second(polls.count);
    let events = polls.bytes as f64 / polls.count.max(1) as f64;
    let refused = accepts.would_block as f64 / accepts.count.max(1) as f64;
    let mut findings = Vec::new();
    if rate > CALLS_MANY && events < 0.5 {
        let title = format!("It polls {rate:.0} times a second, and gets {events:.2} events each time");
        let share = view.share(polls.cpu_ns);
        let command = format!("strace -c -f -e trace=epoll_wait,poll,select -p {}", view.pid());
        findings.push(
            Finding::new("R7", share, view.confidence(0.7, false), title)
                .evidence(format!("{} polls a second", view.rate(polls.count)), command)
                .within(&[view.scale_error(share)])
                .next(
                    "Wait with a time-out instead of polling; EPOLLEXCLUSIVE where several wait for one \
                     descriptor.",
                ),
        );
    }
    if view.per_second(accepts.count) > CALLS_MANY && refused > WOULD_BLOCK_MIN {
        let title =
            format!("{} of accepts find no connection: several threads are woken for each", percent(refused));
        let share = view.share(accepts.cpu_ns);
        let command = format!("strace -c -f -e trace=accept4 -p {}", view.pid());
        let counts =
            format!("{} accepts a second, {} of them in vain", view.rate(accepts.count), percent(refused));
        findings.push(
            Finding::new("R7", share, view.confidence(0.7, false), title)
                .about("accepts")
                .evidence(counts, command)
                .within(&[view.scale_error(share)])
                .next("EPOLLEXCLUSIVE, or a listener for each thread with SO_REUSEPORT."),
        );
    }
    Outcome::found_or(findings, || format!("{events:.1} events a wake-up"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;

    #[test]
    fn a_chatty_client_is_found_by_its_bytes() {
        let mut recording = golden::busy();
        recording.calls.push(Call {
            tid: golden::TID,
            name: "read".to_string(),
            fd: Some(golden::CLIENT),
            count: Some(500_000),
            bytes: 500_000,
            cpu_ns: golden::WINDOW_NS / 2,
            ..Call::default()
        });
        let diagnosis = diagnose(&recording);
        let title = &diagnosis.findings.iter().find(|finding| finding.rule == "R12").expect("R12").title;
        assert!(title.starts_with("It receives 1 bytes a call, 50000 times a second"), "{title}");
        // The time of the small receives is not attributed to their caller as well.
        golden::add_samples(&mut recording, &["main", "readClient", "ksys_read"], 500);
        recording.samples.last_mut().expect("the one just added").call = Some("read".to_string());
        golden::add_samples(&mut recording, &["main", "readClient"], 200);
        let diagnosis = diagnose(&recording);
        let hot =
            diagnosis.findings.iter().find(|finding| finding.rule == "R1").and_then(|found| found.share);
        assert!(hot.is_some_and(|share| share < 0.1), "{hot:?}");
    }

    #[test]
    fn a_poll_in_a_loop_is_found() {
        let mut recording = golden::busy();
        recording.calls[0].count = Some(900_000);
        recording.calls[0].bytes = 1_000;
        recording.calls[0].cpu_ns = golden::WINDOW_NS / 2;
        assert!(diagnose(&recording).findings.iter().any(|finding| finding.rule == "R7"));
    }
}
