//! R6: threads that wait for a mutex, by mutex and place. R9: threads that hand work to one another so often
//! that waking costs more than working.
//!
//! The value that a futex wait expects distinguishes a mutex from a wait for work (`collect/calls.rs`). The
//! place is the first function above the library's. The waker of the wait is the thread that held the mutex.

use std::collections::BTreeMap;

use super::{SHARE_MIN, millis, percent, runtimes};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{Frame, Recording, Wait, Waker};

pub(crate) const LOCK: &str = "futex-lock";
/// Hand-offs per second from which waking is a cost of its own.
const HAND_OFFS_MIN: f64 = 5_000.0;
/// Part of a thread's wake-ups by its own process, from which no outside thread wakes it.
const ONLY_OWN: f64 = 0.9;
/// Cost of a hand-off: a system call, an interrupt to the other CPU, and two switches.
const HAND_OFF_NS: f64 = 5_000.0;

pub(crate) fn contended(view: &View<'_>) -> Outcome {
    let blocked: u64 = view.calls().filter(|call| call.name == LOCK).map(|call| call.blocked_ns).sum();
    let share = view.share(blocked);
    if share < SHARE_MIN {
        return Outcome::RuledOut(format!("waits for mutexes take {}", percent(share)));
    }
    let waits = || view.recording.waits.iter().filter(|wait| wait.call.as_deref() == Some(LOCK));
    if runtimes::stops_all(view) && of_jvm(view.recording, waits()) {
        return Outcome::RuledOut(
            "the locks are the JVM's own, and wait for its garbage collector".to_string(),
        );
    }
    let mut places: BTreeMap<(u64, String), u64> = BTreeMap::new();
    for wait in waits() {
        *places.entry((wait.address.unwrap_or(0), taker(view.recording, wait))).or_default() +=
            wait.blocked_ns;
    }
    let mut places: Vec<((u64, String), u64)> = places.into_iter().collect();
    places.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let threads = view.recording.calls.iter().filter(|c| c.name == LOCK).map(|c| c.tid);
    let threads = threads.collect::<std::collections::BTreeSet<_>>().len();
    // While the programs are detached, waits have no stack: a place that is known says more.
    let first = places.iter().find(|((_, name), _)| name != UNKNOWN).or(places.first());
    let at = first.map_or_else(String::new, |((_, name), _)| format!(", most in {name}"));
    let title = format!(
        "Threads wait for a mutex: {} of this thread's time{at} ({threads} thread{} wait for locks)",
        percent(share),
        if threads == 1 { "" } else { "s" }
    );
    let trace = format!("perf trace -p {} -e futex --summary -- sleep 10", view.pid());
    let mut finding = Finding::new("R6", share, view.confidence(0.85, !places.is_empty()), title).next(
        "Hold it for less, split it, or give each thread its own; what is done while it is held is in the \
         off-CPU flame graph.",
    );
    finding = finding.evidence(format!("{} blocked in futex on a held mutex", millis(blocked)), trace);
    for ((address, name), ns) in places.iter().take(3) {
        let stacks = format!("offcputime-bpfcc -p {} 10   # the stacks below futex", view.pid());
        finding = finding
            .evidence(format!("mutex {address:#x} at {name}: {} over all threads", millis(*ns)), stacks);
    }
    let names = places.into_iter().take(3).map(|((_, name), _)| name);
    Outcome::Found(vec![finding.frames(names)])
}

/// Whether most of the waits are for locks of the JVM's own code.
fn of_jvm<'a>(recording: &Recording, waits: impl Iterator<Item = &'a Wait>) -> bool {
    let (mut jvm_ns, mut all_ns) = (0, 0);
    for wait in waits {
        let mut frames = recording.frames_of(wait.stack).filter(|frame| !frame.is_kernel());
        let is_its = frames.find(|frame| !is_locking(frame)).is_some_and(|f| f.module.starts_with("libjvm."));
        all_ns += wait.blocked_ns;
        jvm_ns += if is_its { wait.blocked_ns } else { 0 };
    }
    jvm_ns * 2 > all_ns
}

const UNKNOWN: &str = "an unknown place";

/// The function that took the lock: the first outside the libraries.
pub(crate) fn taker(recording: &Recording, wait: &Wait) -> String {
    let mut frames = recording.frames_of(wait.stack).filter(|frame| !frame.is_kernel());
    let found = frames.find(|frame| !is_locking(frame));
    found.map_or_else(|| UNKNOWN.to_string(), |frame| frame.name.clone())
}

fn is_locking(frame: &Frame) -> bool {
    const MODULES: &[&str] = &["libc.so", "libc-", "libpthread", "ld-linux", "libstdc++"];
    const NAMES: &[&str] =
        &["std::sys", "parking_lot", "futex", "lock_contended", "Mutex", "mutex", "RwLock", "__lll_lock"];
    MODULES.iter().any(|module| frame.module.starts_with(module))
        || NAMES.iter().any(|name| frame.name.contains(name))
}

pub(crate) fn hand_offs(view: &View<'_>) -> Outcome {
    if view.recording.wakers.is_empty() {
        return Outcome::Unseen("wake-ups between threads need BPF programs".to_string());
    }
    let is_own = |w: &&Waker| w.waker_pid == view.pid() && w.waker_tid != w.tid;
    let sum = |wakers: &mut dyn Iterator<Item = &Waker>| {
        wakers.fold((0, 0), |(count, across), w| (count + w.count, across + w.across))
    };
    let wakers = || view.recording.wakers.iter();
    let of_critical = |w: &&Waker| w.tid == view.critical.tid;
    let (all, _) = sum(&mut wakers().filter(of_critical));
    let (mut count, mut across) = sum(&mut wakers().filter(of_critical).filter(is_own));
    // A thread that only its own process wakes waits for its own process: then the hand-offs of all threads
    // form a chain.
    let only_own = count as f64 >= ONLY_OWN * all.max(1) as f64;
    if only_own {
        (count, across) = sum(&mut wakers().filter(is_own));
    }
    let rate = view.per_second(count);
    if rate < HAND_OFFS_MIN {
        return Outcome::RuledOut(format!("its own threads wake it {rate:.0} times a second"));
    }
    let share = (rate * HAND_OFF_NS / 1e9).min(0.9);
    let title = format!("Threads hand work to one another {rate:.0} times a second, and sleep between");
    let part = across as f64 / count.max(1) as f64;
    let interrupts = view.recording.counters.iter().find(|counter| counter.name == "RescheduleInterrupts");
    let interrupts = interrupts.map_or(0, |counter| counter.added);
    let command = "watch -d -n1 'grep RES /proc/interrupts'".to_string();
    let hand_offs = format!("perf sched record -p {} -- sleep 10; perf sched map", view.pid());
    let mut finding = Finding::new("R9", share, view.confidence(0.6, false), title)
        .evidence(format!("{} wake-ups a second by its own threads", view.rate(count)), hand_offs)
        .within(&[view.scale_error(share)])
        .evidence(
            format!(
                "{} of the wake-ups come from another CPU, by an interrupt; {:.0} such interrupts a second \
                 on the machine",
                percent(part),
                view.per_second(interrupts)
            ),
            command,
        )
        .next("Hand over in batches, wake only who sleeps, or do the work where it arrives.");
    // Each thread sleeps most of the time, and more requests from outside would not change that.
    finding.holds_while_idle = only_own;
    Outcome::Found(vec![finding])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::{Verdict, diagnose};
    use crate::golden;
    use crate::recording::Call;

    #[test]
    fn a_mutex_is_named_by_its_locking_function() {
        let mut recording = golden::busy();
        recording.threads[0].cpu_ns = golden::WINDOW_NS / 3;
        recording.calls.push(Call {
            tid: golden::TID,
            name: LOCK.to_string(),
            blocked_ns: golden::WINDOW_NS / 2,
            ..Call::default()
        });
        let stack = golden::add_stack(&mut recording, &["main", "worker", "write_log", "pthread_mutex_lock"]);
        recording.waits.push(Wait {
            tid: golden::TID,
            stack,
            call: Some(LOCK.to_string()),
            fd: None,
            address: Some(0x1000),
            count: 9,
            blocked_ns: golden::WINDOW_NS / 2,
            longest_ns: 1_000_000,
        });
        let diagnosis = diagnose(&recording);
        assert_eq!(diagnosis.findings[0].rule, "R6");
        assert!(diagnosis.sentence.contains("most in write_log"), "{}", diagnosis.sentence);
    }

    #[test]
    fn being_woken_by_clients_is_no_hand_off() {
        let mut recording = golden::busy();
        let waker = |pid| Waker {
            tid: golden::TID,
            call: None,
            waker_tid: 9,
            waker_pid: pid,
            waker_name: "x".to_string(),
            count: 200_000,
            across: 190_000,
            slept_ns: 1,
        };
        recording.wakers.push(waker(4_000));
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R9"));
        recording.wakers.push(waker(golden::TID));
        assert!(diagnose(&recording).findings.iter().any(|finding| finding.rule == "R9"));
    }

    #[test]
    fn threads_that_wake_each_other_do_not_wait_for_work() {
        let mut recording = golden::idle();
        let waker = |tid, waker_tid, waker_pid| Waker {
            tid,
            call: Some("epoll_wait".to_string()),
            waker_tid,
            waker_pid,
            waker_name: "x".to_string(),
            count: 30_000,
            across: 30_000,
            slept_ns: 1,
        };
        // Neither of the two threads is woken often enough alone; the chain is.
        recording.wakers = vec![waker(golden::TID, 101, golden::TID), waker(101, golden::TID, golden::TID)];
        let diagnosis = diagnose(&recording);
        assert!(diagnosis.sentence.contains("6000 times a second"), "{}", diagnosis.sentence);
        let mut working = recording.clone();
        recording.wakers.push(waker(golden::TID, 7, 4_000));
        assert!(diagnose(&recording).findings.is_empty(), "a client wakes it as often");
        // The work of each thread when awake takes more than the hand-offs, but is not the reason of their
        // sleeps.
        working.threads[0].cpu_ns = golden::WINDOW_NS / 5;
        working.calls[0].blocked_ns = golden::WINDOW_NS / 5 * 4;
        golden::add_samples(&mut working, &["main", "worker"], 2_000);
        let diagnosis = diagnose(&working);
        let rules: Vec<&str> = diagnosis.findings.iter().map(|finding| finding.rule).collect();
        assert_eq!((rules[0], &diagnosis.verdict), ("R9", &Verdict::Found), "{rules:?}");
        assert!(rules.contains(&"R1"), "{rules:?}");
    }
}
