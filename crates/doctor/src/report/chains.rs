//! Chains of waits between clients, processes, threads and tasks, from the waiting side on.
//!
//! Three sources know parts of such chains: the samples of requests in hand (clients, the server, another
//! server), the tasks of a runtime (tasks, a lock, its holder), and the wakers of threads.

use std::collections::BTreeMap;

use serde::Serialize;

use super::facts;
use super::tasks::state_name;
use crate::analyse::{IDLE_CALLS, RECEIVING};
use crate::recording::{InHand, Recording, Runtime, Task, TaskState, Upstream, Waker};

/// Chains of a source.
const CHAINS_MAX: usize = 3;
/// Threads of a chain of wakers.
const THREADS_MAX: usize = 4;
/// Part of the window that a thread sleeps in a call, from which the chain behind it is drawn.
const SLEPT_MIN: f64 = 0.02;

/// A box of a chain. Each waits for the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Link {
    name: String,
    detail: String,
}

fn link(name: impl Into<String>, detail: impl Into<String>) -> Link {
    Link { name: name.into(), detail: detail.into() }
}

pub(super) fn chains(recording: &Recording) -> Vec<Vec<Link>> {
    let mut chains = of_requests(recording, &recording.in_hand);
    chains.extend(recording.runtime.iter().flat_map(of_tasks));
    chains.extend(of_threads(recording));
    chains
}

fn percent(part: u64, all: u64) -> String {
    format!("{:.0}%", part as f64 / all.max(1) as f64 * 100.0)
}

fn of_requests(recording: &Recording, in_hand: &InHand) -> Vec<Vec<Link>> {
    let average = in_hand.requests as f64 / in_hand.seen.max(1) as f64;
    let chain = |upstream: &Upstream| {
        let process = upstream.process.as_ref().map_or_else(String::new, |process| format!(" ({process})"));
        let kind = if upstream.is_name_server { "name server " } else { "" };
        let until = match upstream.longest_ms {
            0 => String::new(),
            ms => format!(", for up to {ms} ms"),
        };
        let owes = percent(upstream.seen_waiting, in_hand.seen_requests);
        let mut chain = vec![
            link(
                "clients",
                format!("{average:.1} requests in hand on average, for up to {} ms", in_hand.longest_ms),
            ),
            link(facts::target(recording), "has their requests, and waits in turn"),
            link(
                format!("{kind}{}{process}", upstream.address),
                format!("owes it a reply in {owes} of these moments{until}"),
            ),
        ];
        chain.extend(upstream.chain.iter().map(|step| link(step.process.clone(), step.does.clone())));
        chain
    };
    in_hand.upstreams.iter().take(CHAINS_MAX).map(chain).collect()
}

/// The locks with the most waiting tasks, and their holders where the runtime knows them.
fn of_tasks(runtime: &Runtime) -> Vec<Vec<Link>> {
    let mut waiters: BTreeMap<&str, Vec<&(Task, u64)>> = BTreeMap::new();
    for entry in &runtime.tasks {
        if let Some(lock) = &entry.0.lock {
            waiters.entry(lock).or_default().push(entry);
        }
    }
    let sum = |entries: &[&(Task, u64)]| entries.iter().map(|(_, count)| count).sum::<u64>();
    let mut locks: Vec<_> =
        waiters.into_iter().map(|(lock, entries)| (sum(&entries), lock, entries)).collect();
    locks.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    let at = |task: &Task| task.place.clone().or_else(|| task.stack.first().cloned());
    let chain = |(count, lock, entries): (u64, &str, Vec<&(Task, u64)>)| {
        let average = count as f64 / runtime.seen.max(1) as f64;
        let place = entries.iter().max_by_key(|(_, count)| *count).and_then(|(task, _)| at(task));
        let place = place.map_or_else(String::new, |place| format!("most of them at {place}"));
        let is_lock = entries.iter().any(|(task, _)| task.state == TaskState::Lock);
        let kind = if is_lock { "a lock" } else { "a signal of another task" };
        let mut chain = vec![link(format!("{average:.1} tasks on average"), place), link(lock, kind)];
        let holders = runtime.tasks.iter().filter(|(task, _)| task.holds.iter().any(|name| name == lock));
        if let Some((holder, _)) = holders.max_by_key(|(_, count)| *count) {
            let place = at(holder).unwrap_or_else(|| "a task".to_string());
            chain.push(link(place, format!("has the lock, and {}", state_name(holder.state))));
        }
        chain
    };
    locks.into_iter().take(CHAINS_MAX).map(chain).collect()
}

/// Sleeps other than waits for work, the longest first, each with the threads behind it.
fn of_threads(recording: &Recording) -> Vec<Vec<Link>> {
    let is_long = |waker: &&Waker| waker.slept_ns as f64 >= SLEPT_MIN * recording.window_ns as f64;
    // What a thread receives is work, or the reply of an upstream, which the samples of requests have.
    let is_work = |call: &str| IDLE_CALLS.contains(&call) || RECEIVING.contains(&call);
    let is_for_work = |waker: &&Waker| waker.call.as_deref().is_none_or(is_work);
    let mut sleeps: Vec<&Waker> =
        recording.wakers.iter().filter(is_long).filter(|waker| !is_for_work(waker)).collect();
    sleeps.sort_by_key(|waker| (std::cmp::Reverse(waker.slept_ns), waker.tid, waker.waker_tid));
    // A sleep behind another is drawn with that; in a circle every sleep is behind another.
    let is_behind =
        |one: &&Waker| sleeps.iter().any(|other| other.waker_tid == one.tid && other.tid != one.tid);
    let mut heads: Vec<&Waker> = sleeps.iter().copied().filter(|waker| !is_behind(waker)).collect();
    if heads.is_empty() {
        heads.extend(sleeps.first());
    }
    heads.into_iter().take(CHAINS_MAX).map(|waker| behind(recording, waker)).collect()
}

fn behind(recording: &Recording, first: &Waker) -> Vec<Link> {
    let slept = |waker: &Waker| {
        let call = waker.call.as_deref().unwrap_or("no call");
        let percent = percent(waker.slept_ns, recording.window_ns);
        link(recording.thread_name(waker.tid), format!("sleeps in {call} for {percent} of the window"))
    };
    let (mut chain, mut seen, mut waker) = (vec![slept(first)], vec![first.tid], first);
    loop {
        let longest = recording.wakers.iter().filter(|next| next.tid == waker.waker_tid);
        let next = longest.max_by_key(|next| next.slept_ns);
        match next.filter(|next| !seen.contains(&next.tid) && seen.len() < THREADS_MAX) {
            Some(next) => {
                chain.push(slept(next));
                seen.push(next.tid);
                waker = next;
            }
            None => break,
        }
    }
    if !seen.contains(&waker.waker_tid) {
        chain.push(match waker.waker_tid {
            0 => link("an interrupt", "a timer, a disk or the network wakes it"),
            tid => link(format!("{} ({tid})", waker.waker_name), "wakes it"),
        });
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::recording::Step;

    fn names(chains: &[Vec<Link>]) -> Vec<Vec<&str>> {
        chains.iter().map(|chain| chain.iter().map(|link| link.name.as_str()).collect()).collect()
    }

    #[test]
    fn clients_wait_for_the_server_and_the_server_for_its_upstream() {
        let mut recording = golden::idle();
        assert!(chains(&recording).is_empty());
        let chain = vec![Step { process: "db 9".to_string(), does: "computes".to_string() }];
        let upstream =
            Upstream { address: "127.0.0.1:80".to_string(), seen_waiting: 9, chain, ..Upstream::default() };
        recording.in_hand =
            InHand { seen: 10, seen_requests: 10, requests: 25, longest_ms: 90, upstreams: vec![upstream] };
        let chains = chains(&recording);
        assert_eq!(names(&chains), [["clients", "redis-server (pid 100)", "127.0.0.1:80", "db 9"]]);
        assert_eq!(chains[0][2].detail, "owes it a reply in 90% of these moments");
        assert_eq!(chains[0][3].detail, "computes");
    }

    #[test]
    fn tasks_wait_for_a_lock_and_the_lock_for_its_holder() {
        let task = |state, lock: Option<&str>, holds: &[&str], place: &str| Task {
            state,
            lock: lock.map(str::to_string),
            holds: holds.iter().map(ToString::to_string).collect(),
            place: Some(place.to_string()),
            ..Task::default()
        };
        let mut recording = golden::idle();
        recording.runtime = Some(Runtime {
            name: "Java 21".to_string(),
            seen: 10,
            tasks: vec![
                (task(TaskState::Lock, Some("Log"), &[], "serve"), 40),
                (task(TaskState::Sleep, None, &["Log"], "flush"), 9),
            ],
            pauses: Vec::new(),
            notes: Vec::new(),
        });
        let chains = chains(&recording);
        assert_eq!(names(&chains), [["4.0 tasks on average", "Log", "flush"]]);
        assert_eq!(chains[0][2].detail, "has the lock, and sleeps");
    }

    #[test]
    fn a_thread_waits_for_its_waker_and_circles_end() {
        let waker = |tid, call: &str, waker_tid, slept_ns| Waker {
            tid,
            call: Some(call.to_string()),
            waker_tid,
            waker_pid: waker_tid,
            waker_name: "other".to_string(),
            count: 1,
            across: 0,
            slept_ns,
        };
        let mut recording = golden::idle();
        let half = golden::WINDOW_NS / 2;
        recording.wakers = vec![waker(100, "futex-lock", 2, half), waker(2, "fdatasync", 0, half)];
        recording.wakers.push(waker(3, "epoll_wait", 100, half)); // waits for work
        recording.wakers.push(waker(4, "recvfrom", 100, half));
        let found = chains(&recording);
        assert_eq!(names(&found), [["redis-server (100)", "thread 2", "an interrupt"]]);
        recording.wakers[1].waker_tid = 100;
        assert_eq!(names(&chains(&recording)), [["thread 2", "redis-server (100)"]]);
    }
}
