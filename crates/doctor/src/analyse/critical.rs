//! Chooses the critical thread, and splits its time.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::recording::{Call, Recording, Role, Thread, Wait};

/// Calls in which a thread waits for work. Includes futex: waits for a mutex are recorded under a name of
/// their own.
#[rustfmt::skip]
pub(crate) const IDLE_CALLS: &[&str] = &[
    "epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6", "accept", "accept4",
    "nanosleep", "clock_nanosleep", "pause", "rt_sigtimedwait", "rt_sigsuspend", "wait4", "waitid",
    "restart_syscall", "io_getevents", "io_uring_enter", "futex",
];

/// Calls that wait for the other end to send.
pub(crate) const RECEIVING: &[&str] = &["read", "readv", "recvfrom", "recvmsg", "recvmmsg"];

/// Calls that wait for any of several descriptors: a turn of an event loop lies between two of them.
pub(crate) const POLLS: &[&str] =
    &["epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6"];

/// Factor for threads that serve no connection: they are critical only if they are much busier than the
/// serving threads.
const BEHIND: f64 = 0.6;

/// The parts of a thread's time, which add up to the window.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Budget {
    pub(crate) tid: i32,
    pub(crate) name: String,
    pub(crate) window_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) run_queue_ns: u64,
    /// Blocked for other reasons than lack of work: disks, locks, memory, receivers that do not read.
    pub(crate) blocked_ns: u64,
    /// Waiting for work.
    pub(crate) idle_ns: u64,
}

impl Budget {
    pub(crate) fn share(&self, ns: u64) -> f64 {
        ns as f64 / self.window_ns.max(1) as f64
    }

    pub(crate) fn busy_share(&self) -> f64 {
        self.share(self.cpu_ns + self.run_queue_ns + self.blocked_ns)
    }
}

/// Whether the sleep in a call is a wait for work.
pub(crate) fn is_idle(call: &Call, role: Option<Role>) -> bool {
    if IDLE_CALLS.contains(&call.name.as_str()) || call.name == "asleep" {
        return true;
    }
    let waits_for_sender = role.is_some_and(|role| {
        role.is_peer()
            || matches!(
                role,
                Role::Eventfd | Role::Timer | Role::Pipe | Role::Listener | Role::Datagram | Role::Other
            )
    });
    RECEIVING.contains(&call.name.as_str()) && waits_for_sender
}

/// As `is_idle`, for a call by name alone: it waits for events, or for the other end of a connection.
pub(crate) fn is_wait_for_work(call: &str) -> bool {
    IDLE_CALLS.contains(&call) || RECEIVING.contains(&call)
}

/// As `is_idle`, for a sleep that has a stack.
pub(crate) fn is_idle_wait(wait: &Wait) -> bool {
    wait.call.as_deref().is_some_and(|name| IDLE_CALLS.contains(&name))
}

pub(crate) fn roles(recording: &Recording) -> HashMap<i32, Role> {
    recording.descriptors.iter().map(|d| (d.fd, d.role)).collect()
}

pub(crate) fn budget(recording: &Recording, thread: &Thread, roles: &HashMap<i32, Role>) -> Budget {
    let window_ns = recording.window_ns;
    let role = |call: &Call| call.fd.and_then(|fd| roles.get(&fd).copied());
    let calls = recording.calls.iter().filter(|call| call.tid == thread.tid);
    let blocked: u64 = calls.filter(|call| !is_idle(call, role(call))).map(|call| call.blocked_ns).sum();
    // The times from /proc are exact; sampled or scaled times are cut to fit.
    let cpu_ns = thread.cpu_ns.min(window_ns);
    let run_queue_ns = thread.run_queue_ns.min(window_ns - cpu_ns);
    let blocked_ns = blocked.min(window_ns - cpu_ns - run_queue_ns);
    Budget {
        tid: thread.tid,
        name: thread.name.clone(),
        window_ns,
        cpu_ns,
        run_queue_ns,
        blocked_ns,
        idle_ns: window_ns - cpu_ns - run_queue_ns - blocked_ns,
    }
}

/// The thread that clients wait for: the busiest of the serving threads, unless another thread is far busier.
pub(crate) fn choose(recording: &Recording) -> Option<Budget> {
    let roles = roles(recording);
    let serves = |call: &&Call| {
        call.fd
            .and_then(|fd| roles.get(&fd))
            .is_some_and(|r| r.is_peer() || matches!(r, Role::Listener | Role::Epoll))
    };
    let serving: HashSet<i32> = recording.calls.iter().filter(serves).map(|call| call.tid).collect();
    let weight = |budget: &Budget| {
        let in_front = serving.contains(&budget.tid) || budget.tid == recording.target.pid;
        budget.busy_share() * if in_front { 1.0 } else { BEHIND }
    };
    let budgets = recording.threads.iter().map(|thread| budget(recording, thread, &roles));
    let first = |budget: &Budget| (budget.tid == recording.target.pid, std::cmp::Reverse(budget.tid));
    budgets.max_by(|a, b| weight(a).total_cmp(&weight(b)).then_with(|| first(a).cmp(&first(b))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn parts_add_up_to_the_window_whatever_was_sampled() {
        let mut recording = golden::busy();
        recording.threads[0].run_queue_ns = golden::WINDOW_NS * 3;
        for call in &mut recording.calls {
            call.blocked_ns = golden::WINDOW_NS;
        }
        let budget = choose(&recording).expect("a thread");
        let sum = budget.cpu_ns + budget.run_queue_ns + budget.blocked_ns + budget.idle_ns;
        assert_eq!(sum, golden::WINDOW_NS);
    }

    #[test]
    fn a_thread_that_syncs_for_other_threads_is_not_critical() {
        let mut recording = golden::busy();
        recording.threads[0].cpu_ns = golden::WINDOW_NS / 2;
        recording.threads.push(Thread { tid: 77, name: "bio_aof".to_string(), ..Thread::default() });
        recording.calls.push(Call {
            tid: 77,
            name: "fdatasync".to_string(),
            fd: Some(golden::AOF),
            blocked_ns: golden::WINDOW_NS / 10 * 7,
            ..Call::default()
        });
        assert_eq!(choose(&recording).expect("a thread").tid, golden::TID);
    }

    #[test]
    fn waiting_for_a_mutex_is_not_waiting_for_work() {
        let call = |name: &str| Call { name: name.to_string(), ..Call::default() };
        assert!(is_idle(&call("futex"), None));
        assert!(!is_idle(&call("futex-lock"), None));
        assert!(is_idle(&call("read"), Some(Role::Eventfd)));
        assert!(!is_idle(&call("read"), Some(Role::File)));
    }
}
