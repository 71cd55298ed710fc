//! Synthetic recordings for tests: a server of the Redis family, idle and busy, which tests modify.

use crate::recording::{
    Answer, Call, Descriptor, Frame, Health, Heat, Host, InHand, KERNEL, Listener, Memory, Neighbour,
    Recording, Role, Sample, Segments, Socket, States, Target, Thread, Tier, Upstream,
};

pub(crate) const WINDOW_NS: u64 = 10_000_000_000;
pub(crate) const TID: i32 = 100;
pub(crate) const EPOLL: i32 = 5;
pub(crate) const CLIENT: i32 = 8;
pub(crate) const REPLICA: i32 = 9;
pub(crate) const AOF: i32 = 10;

fn descriptor(fd: i32, role: Role, what: &str) -> Descriptor {
    Descriptor { fd, role, what: what.to_string(), peer: None, disk: None }
}

/// A server of Python that sleeps while clients wait for it.
pub(crate) fn with_requests(upstreams: Vec<Upstream>) -> Recording {
    let mut recording = idle();
    recording.target.name = "python3".to_string();
    let (seen, seen_requests, requests, longest_ms) = (50, 48, 48, 190);
    recording.in_hand = InHand { seen, seen_requests, requests, longest_ms, upstreams };
    recording
}

/// A server whose only thread waits for events.
pub(crate) fn idle() -> Recording {
    Recording {
        made_by: "evenkeel-doctor test".to_string(),
        taken_unix_s: 1_700_000_000,
        tier: Tier::T0,
        window_ns: WINDOW_NS,
        host: Host { kernel: "6.18".to_string(), cpus: 2, steal: 0.0, neighbours: Vec::new() },
        target: Target {
            pid: TID,
            name: "redis-server".to_string(),
            executable: "/usr/bin/redis-check-rdb".to_string(),
            arguments: vec!["redis-server".to_string(), "*:6379".to_string()],
            cpus_allowed: "0-1".to_string(),
            cpus_allowed_count: 2,
            descriptors_limit: Some(10_032),
        },
        threads: vec![Thread {
            tid: TID,
            name: "redis-server".to_string(),
            cpu_ns: 10_000_000,
            ..Thread::default()
        }],
        calls: vec![Call {
            tid: TID,
            name: "epoll_wait".to_string(),
            fd: Some(EPOLL),
            count: Some(100),
            blocked_ns: WINDOW_NS - 10_000_000,
            longest_ns: 100_000_000,
            ..Call::default()
        }],
        samples: Vec::new(),
        waits: Vec::new(),
        wakers: Vec::new(),
        stalls: Vec::new(),
        heat: Heat::default(),
        stacks: Vec::new(),
        frames: Vec::new(),
        descriptors: vec![
            descriptor(EPOLL, Role::Epoll, "anon_inode:[eventpoll]"),
            descriptor(6, Role::Listener, "127.0.0.1:6379"),
            descriptor(CLIENT, Role::Client, "127.0.0.1:6379 <- 127.0.0.1:50000"),
            descriptor(REPLICA, Role::Replica, "127.0.0.1:6379 <- 127.0.0.1:50001"),
            descriptor(AOF, Role::AppendOnlyFile, "/data/appendonlydir/appendonly.aof.1.incr.aof"),
        ],
        listeners: vec![Listener {
            address: "127.0.0.1:6379".to_string(),
            backlog: Some(511),
            seen: 20,
            ..Listener::default()
        }],
        sockets: Vec::new(),
        segments: Segments::default(),
        in_hand: InHand::default(),
        moments: Vec::new(),
        runtime: None,
        throttling: None,
        disks: Vec::new(),
        forks: None,
        own_count: None,
        answer: Answer::NotAsked,
        states: States::default(),
        memory: Memory::default(),
        commands: Vec::new(),
        slow_commands: Vec::new(),
        clients: Vec::new(),
        counters: Vec::new(),
        health: Health { duty: 1.0, own_cpu_ns: 100_000_000, ..Health::default() },
    }
}

/// The same server with its thread on a CPU all the time: no function stands out.
pub(crate) fn busy() -> Recording {
    let mut recording = idle();
    recording.threads[0].cpu_ns = WINDOW_NS / 100 * 98;
    recording.calls[0].blocked_ns = WINDOW_NS / 100;
    for index in 0..40 {
        add_samples(&mut recording, &["main", "aeMain", &format!("function_{index}")], 48);
    }
    recording
}

/// More causes than a report shows.
pub(crate) fn everything_is_wrong() -> Recording {
    let mut recording = busy();
    recording.threads[0].cpu_ns = WINDOW_NS / 2;
    recording.threads[0].run_queue_ns = WINDOW_NS / 4;
    recording.host.steal = 0.1;
    recording.host.neighbours = vec![Neighbour { pid: 7, name: "hog".to_string(), cpu_ns: WINDOW_NS / 4 }];
    let call = |name: &str, fd, blocked_ns| Call {
        tid: TID,
        name: name.to_string(),
        fd,
        count: Some(10),
        blocked_ns,
        longest_ns: blocked_ns,
        ..Call::default()
    };
    recording.calls.push(call("fdatasync", Some(AOF), WINDOW_NS / 8));
    recording.calls.push(call("futex-lock", None, WINDOW_NS / 10));
    recording.calls.push(call("clone", None, WINDOW_NS / 50));
    recording.listeners[0].drops = 9;
    recording.sockets.push(Socket { seen: 10, seen_probing: 9, seen_unsent: 9, ..Socket::default() });
    recording
}

/// Adds a stack, given from the outermost function on, and returns its index.
pub(crate) fn add_stack(recording: &mut Recording, names: &[&str]) -> u32 {
    let mut stack = Vec::new();
    for name in names.iter().rev() {
        let starts = |known: &[&str]| known.iter().any(|known| name.starts_with(known));
        let module = match () {
            () if starts(&["pthread_", "mem", "munmap"]) => "libc.so.6",
            () if starts(&["entry_", "asm_", "exc_", "__vm_", "do_wp_"]) => KERNEL,
            () => "server",
        };
        let frame = Frame { name: name.to_string(), module: module.to_string(), unnamed: None };
        let known = recording.frames.iter().position(|other| *other == frame);
        let index = known.unwrap_or_else(|| {
            recording.frames.push(frame);
            recording.frames.len() - 1
        });
        stack.push(index as u32);
    }
    recording.stacks.push(stack);
    recording.stacks.len() as u32 - 1
}

pub(crate) fn add_samples(recording: &mut Recording, names: &[&str], count: u64) {
    let stack = add_stack(recording, names);
    recording.samples.push(Sample { tid: TID, stack, count, call: None, fd: None, late: false });
}
