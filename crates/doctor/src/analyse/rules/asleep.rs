//! For what a server waits with its clients' requests in hand, when no other server owes it a reply: the
//! other end of a pipe, another task, a sleep, a program that it started, or its own pool of threads.

use std::collections::BTreeMap;

use super::functions::is_foreign;
use super::in_hand::SAMPLES_MIN;
use super::{percent, runtimes};
use crate::analyse::RECEIVING;
use crate::analyse::finding::Finding;
use crate::analyse::view::View;
use crate::recording::{Call, Role, Runtime, TaskState, Thread};

/// Part of the time that a thread computes or waits for a CPU, from which it belongs to the pool that works.
const POOL_MIN: f64 = 0.1;
/// Part of the time in which requests are inside, from which sleeps in a call are the cause.
const SLEEP_MIN: f64 = 0.6;
/// Tasks of a runtime at one place for each request inside, from which their wait is that of the requests.
const TASKS_MIN: f64 = 0.5;
/// Calls in which a thread that serves a request may sleep. Waits for events are not among them: an event
/// loop may serve other clients meanwhile.
const SLEEPS: &[&str] = &["nanosleep", "clock_nanosleep", "wait4", "waitid", "futex-lock"];

/// The cause, where `part` of the samples found requests inside.
pub(super) fn cause(view: &View<'_>, part: f64) -> Option<Finding> {
    on_a_peer(view, part)
        .or_else(|| tasks_asleep(view, part))
        .or_else(|| in_a_call(view, part))
        .or_else(|| on_a_child(view, part))
        .or_else(|| on_its_threads(view, part))
}

/// A Unix socket or a pipe on which its threads wait for the other end to send: the kernel keeps no times for
/// these, but a thread that waits in the read of one cannot serve anybody.
fn on_a_peer(view: &View<'_>, part: f64) -> Option<Finding> {
    let is_peer = |role| matches!(role, Role::UnixSocket | Role::Pipe | Role::Outbound | Role::LogDaemon);
    let mut by_peer: BTreeMap<i32, (u64, &str)> = BTreeMap::new();
    // A read that lasts longer than any request is inside belongs to a thread that serves none.
    let longest_ns = view.recording.in_hand.longest_ms * 1_000_000 * 2;
    let receives = |call: &&Call| RECEIVING.contains(&call.name.as_str()) && call.longest_ns <= longest_ns;
    for call in view.recording.calls.iter().filter(receives) {
        if let Some(fd) = call.fd.filter(|_| view.role(call.fd).is_some_and(is_peer)) {
            by_peer.entry(fd).or_insert((0, call.name.as_str())).0 += call.blocked_ns;
        }
    }
    let (fd, (slept_ns, call)) = by_peer.into_iter().max_by_key(|(_, (ns, _))| *ns)?;
    let slept = view.share(slept_ns).min(1.0);
    if slept < SLEEP_MIN * part {
        return None;
    }
    let descriptor = view.recording.descriptors.iter().find(|descriptor| descriptor.fd == fd)?;
    let peer = descriptor.peer.as_deref().map_or_else(String::new, |peer| format!(" {peer}"));
    let title = format!(
        "{} of the time it waits in {call} for the other end of {}{peer}, with clients' requests in hand, \
         for up to {} ms",
        percent(slept),
        descriptor.what,
        view.recording.in_hand.longest_ms
    );
    let mut finding = Finding::new("R22", part.min(slept), view.confidence(0.9, false).max(0.85), title)
        .about(format!("waits for {}", descriptor.what))
        .evidence(
            format!("{} of a thread's time in {call} on descriptor {fd}", percent(slept)),
            format!("strace -f -T -p {} -e trace={call}", view.pid()),
        )
        .next("Look at that process next, with the doctor.");
    finding.holds_while_idle = true;
    Some(finding)
}

/// A program that it started: seen in most of the samples, by whatever call it waits for its end.
fn child<'a>(view: &View<'a>, part: f64) -> Option<(&'a str, f64)> {
    let states = &view.recording.states;
    let (name, seen) = states.children.first()?;
    let share = *seen as f64 / states.seen.max(1) as f64;
    (share >= SLEEP_MIN * part).then_some((name.as_str(), share))
}

fn on_a_child(view: &View<'_>, part: f64) -> Option<Finding> {
    let (name, share) = child(view, part)?;
    let title = format!(
        "{} of the time clients' requests are inside, for up to {} ms, while it waits for {name}, a program \
         that it started",
        percent(part),
        view.recording.in_hand.longest_ms
    );
    let mut finding = Finding::new("R22", part.min(share), view.confidence(0.8, false).max(0.75), title)
        .about(format!("waits for {name}"))
        .evidence(
            format!("{name} ran in {} of the samples, each time started anew", percent(share)),
            format!("pgrep -a -P {}; execsnoop-bpfcc", view.pid()),
        )
        .next("Start it without waiting for its end (no execSync, no system()), or have one that stays.");
    finding.holds_while_idle = true;
    Some(finding)
}

/// Threads of its own that compute while no serving thread is busy: a pool that gets the work.
fn on_its_threads(view: &View<'_>, part: f64) -> Option<Finding> {
    let recording = view.recording;
    let busy = |thread: &Thread| view.share(thread.cpu_ns + thread.run_queue_ns);
    let pool: Vec<&Thread> = recording.threads.iter().filter(|thread| busy(thread) >= POOL_MIN).collect();
    let wanted: f64 = pool.iter().map(|thread| busy(thread)).sum();
    let busiest = pool.iter().max_by(|a, b| busy(a).total_cmp(&busy(b)))?;
    if wanted < SLEEP_MIN * part || pool.len() < 2 {
        return None;
    }
    let cpus = view.share(pool.iter().map(|thread| thread.cpu_ns).sum());
    let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
    for sample in &recording.samples {
        let own = view.frames(sample.stack).find(|frame| !is_foreign(frame) && frame.unnamed.is_none());
        if let Some(frame) = own {
            *functions.entry(frame.name.as_str()).or_default() += sample.count;
        }
    }
    let most = functions.into_iter().max_by_key(|(_, count)| *count);
    let most = most.map_or_else(String::new, |(name, _)| format!(", most in {name}"));
    let title = format!(
        "{} of the time clients' requests are inside, for up to {} ms, while {} of its threads compute with \
         {cpus:.2} CPUs{most}",
        percent(part),
        recording.in_hand.longest_ms,
        pool.len(),
    );
    let mut finding = Finding::new("R22", part, view.confidence(0.8, false).max(0.75), title)
        .about("waits for its own threads")
        .evidence(
            format!("they want {wanted:.2} CPUs, the busiest is {}", recording.thread_name(busiest.tid)),
            format!("pidstat -t -u -p {} 10 1", view.pid()),
        )
        .next(
            "Give the pool more CPUs, or less work for each request; see the flame graph of those threads.",
        );
    finding.holds_while_idle = true;
    Some(finding)
}

/// The place in which most of its runtime's tasks are while requests are inside: they sleep, wait for other
/// tasks, or are in a system call.
fn tasks_asleep(view: &View<'_>, part: f64) -> Option<Finding> {
    let runtime = view.recording.runtime.as_ref().filter(|runtime| runtime.seen >= SAMPLES_MIN)?;
    let (in_hand, mut places) = (&view.recording.in_hand, BTreeMap::<String, (u64, TaskState)>::new());
    for (task, count) in &runtime.tasks {
        if matches!(task.state, TaskState::Sleep | TaskState::Signal | TaskState::Call)
            && task.place.is_some()
            && let Some(activity) = runtimes::activity(task)
        {
            places.entry(activity).or_insert((0, task.state)).0 += count;
        }
    }
    // A task that sleeps for a known time is never a wait for work.
    let weight = |(count, state): (u64, TaskState)| count * if state == TaskState::Sleep { 2 } else { 1 };
    let requests = in_hand.requests as f64 / in_hand.seen.max(1) as f64;
    let mean = |count: u64| count as f64 / runtime.seen as f64;
    let enough = places.into_iter().filter(|(_, (count, _))| mean(*count) >= TASKS_MIN * requests);
    let (activity, (count, state)) = enough.max_by_key(|(_, seen)| weight(*seen))?;
    let there = mean(count);
    let title = format!(
        "{} of the time clients' requests are inside, for up to {} ms: of its {}, {there:.1} {}",
        percent(part),
        in_hand.longest_ms,
        runtimes::tasks(runtime),
        plural(&activity)
    );
    let title = match library(view).filter(|_| state == TaskState::Sleep) {
        Some(library) => format!("{title}, in {library}"),
        None => title,
    };
    // A task in a system call may wait for the end of another program.
    let title = match child(view, part).filter(|_| state == TaskState::Call) {
        Some((name, _)) => format!("{title}, while {name} runs, a program that it started"),
        None => title,
    };
    let stack = in_there(runtime, &activity);
    let confidence = if state == TaskState::Signal { 0.6 } else { 0.9 };
    let mut finding = Finding::new(
        "R22",
        part,
        view.confidence(confidence, false).max(confidence - 0.05),
        title,
    )
    .about(activity)
    .evidence(stack, runtimes::command(view, runtime))
    .next("See who should end that wait, and why it lasts; no client of these requests gets a reply before.");
    finding.holds_while_idle = true;
    Some(finding)
}

/// The library below the runtime in which threads sleep most, where their stacks are known: a database's
/// client, which waits for a lock.
fn library<'a>(view: &View<'a>) -> Option<&'a str> {
    const PLAIN: &[&str] = &["libc.", "libc-", "libpthread", "libpython", "ld-linux", "libjvm."];
    let sleeps = view
        .recording
        .waits
        .iter()
        .filter(|wait| wait.call.as_deref().is_some_and(|call| call.contains("nanosleep")));
    let longest = sleeps.max_by_key(|wait| wait.blocked_ns)?;
    let is_library =
        |module: &str| module.contains(".so") && !PLAIN.iter().any(|plain| module.starts_with(plain));
    view.frames(longest.stack).map(|frame| frame.module.as_str()).find(|module| is_library(module))
}

/// "sleeps at x" of several.
fn plural(activity: &str) -> String {
    let (verb, rest) = activity.split_once(' ').unwrap_or((activity, ""));
    let verb = if verb == "is" { "are" } else { verb.trim_end_matches('s') };
    format!("{verb} {rest}")
}

fn in_there(runtime: &Runtime, activity: &str) -> String {
    let task = runtime.tasks.iter().find(|(task, _)| runtimes::activity(task).as_deref() == Some(activity));
    task.map_or_else(String::new, |(task, _)| runtimes::innermost(task))
}

/// The call in which its threads sleep for most of the time in which requests are inside.
fn in_a_call(view: &View<'_>, part: f64) -> Option<Finding> {
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
         {call}{}",
        percent(part),
        child(view, part)
            .filter(|_| call.starts_with("wait"))
            .map_or_else(String::new, |(name, _)| { format!(" for {name}, a program that it started") })
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
    use crate::recording::{Call, Descriptor, Role, Runtime, Task, TaskState, Thread};

    #[test]
    fn sleeps_with_requests_in_hand_are_named_by_their_call() {
        let mut recording = golden::with_requests(Vec::new());
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
    fn threads_that_compute_for_the_waiting_thread_are_named() {
        let mut recording = golden::with_requests(Vec::new());
        for tid in [201, 202] {
            let (name, cpu_ns) = ("node".to_string(), golden::WINDOW_NS / 10 * 4);
            recording.threads.push(Thread { tid, name, cpu_ns, ..Thread::default() });
        }
        let title = diagnose(&recording).findings.first().map(|finding| finding.title.clone());
        assert!(title.is_some_and(|title| title.contains("while 2 of its threads compute with 0.80 CPUs")));
    }

    #[test]
    fn a_program_that_is_started_for_each_request_is_named() {
        let mut recording = golden::with_requests(Vec::new());
        recording.states.seen = 50;
        recording.states.children = vec![("convert".to_string(), 45), ("sh".to_string(), 2)];
        let title = diagnose(&recording).findings[0].title.clone();
        assert!(title.ends_with("while it waits for convert, a program that it started"), "{title}");
        recording.calls.push(Call {
            tid: golden::TID,
            name: "wait4".to_string(),
            blocked_ns: golden::WINDOW_NS / 10 * 9,
            ..Call::default()
        });
        let title = diagnose(&recording).findings[0].title.clone();
        assert!(title.ends_with("sleep in wait4 for convert, a program that it started"), "{title}");
        recording.calls.pop();
        recording.states.children[0].1 = 5;
        assert!(diagnose(&recording).findings.is_empty(), "it runs rarely");
    }

    #[test]
    fn the_other_end_of_a_pipe_is_named_whose_data_a_thread_waits_for() {
        let mut recording = golden::with_requests(Vec::new());
        recording.descriptors.push(Descriptor {
            fd: 20,
            role: Role::Pipe,
            what: "pipe:[77]".to_string(),
            peer: Some("(sleep 99)".to_string()),
            disk: None,
        });
        recording.calls.push(Call {
            tid: golden::TID,
            name: "read".to_string(),
            fd: Some(20),
            blocked_ns: golden::WINDOW_NS / 10 * 9,
            ..Call::default()
        });
        let first = diagnose(&recording).findings[0].clone();
        assert!(
            first
                .title
                .starts_with("90% of the time it waits in read for the other end of pipe:[77] (sleep 99)")
        );
        let call = recording.calls.last_mut().expect("it was pushed");
        call.longest_ns = golden::WINDOW_NS / 10 * 9;
        recording.in_hand.longest_ms = 100;
        assert!(diagnose(&recording).findings.is_empty(), "a thread that serves no request waits");
        recording.calls.last_mut().expect("it was pushed").longest_ns = 100_000_000;
        assert!(!diagnose(&recording).findings.is_empty(), "each request waits");
        recording.descriptors.pop();
        assert!(diagnose(&recording).findings.is_empty(), "a client's connection is none");
    }

    #[test]
    fn a_sleep_of_the_holder_of_a_lock_is_no_cause_of_its_own() {
        let mut recording = golden::with_requests(Vec::new());
        let task = |state, lock: Option<&str>| Task {
            state,
            lock: lock.map(ToString::to_string),
            place: Some("answer (app.py:4)".to_string()),
            ..Task::default()
        };
        let tasks =
            vec![(task(TaskState::Lock, Some("lock 0x7f")), 400), (task(TaskState::Sleep, None), 100)];
        let name = "Python 3.11".to_string();
        recording.runtime = Some(Runtime { name, seen: 100, tasks, ..Runtime::default() });
        let rules: Vec<_> = diagnose(&recording).findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, ["R24"]);
    }

    #[test]
    fn the_place_in_which_a_runtimes_tasks_wait_is_named() {
        let task = |state, place: &str| Task {
            state,
            place: Some(place.to_string()),
            stack: vec!["runtime.gopark".to_string(), place.to_string()],
            ..Task::default()
        };
        let mut recording = golden::with_requests(Vec::new());
        let tasks = vec![
            (task(TaskState::Network, "main.read (x.go:9)"), 400),
            (task(TaskState::Signal, "main.handle (x.go:30)"), 95),
        ];
        recording.runtime =
            Some(Runtime { name: "Go 1.22".to_string(), seen: 100, tasks, ..Runtime::default() });
        let first = diagnose(&recording).findings[0].clone();
        let end = "of its goroutines, 0.9 wait for another task at main.handle (x.go:30)";
        assert!(first.title.ends_with(end), "{}", first.title);
        if let Some(runtime) = &mut recording.runtime {
            runtime.tasks[1].1 = 20;
        }
        let verdict = diagnose(&recording).verdict;
        assert!(matches!(verdict, Verdict::Inconclusive { .. }), "too few of them: {verdict:?}");
    }
}
