//! Reads the maps of the programs and symbolises the stacks.

use std::collections::{HashMap, HashSet};

use libbpf_rs::{MapCore, MapFlags};

use crate::attach::Programs;
use crate::course;
use crate::shared::{self, FD_LOCK, FRAMES_MAX, Plain, STACK_CUT, from_bytes, text};
use crate::symbols::Names;
use crate::tables::Tables;
use crate::{Call, Described, Frame, Place, Sample, Seen, Wait, Waker};

/// Kernel addresses are in the upper half.
const KERNEL_FROM: u64 = 1 << 63;

pub(crate) fn read(pid: i32, tables: &Tables, programs: &Programs, unfinished: &Unfinished) -> Seen {
    let mut seen = Seen { cost: programs.cost(), notes: tables.notes.clone(), ..Seen::default() };
    if let Some((_, totals)) = all::<u32, shared::Totals>(programs, "totals").first() {
        seen.stacks_walked = totals.stacks;
        seen.stacks_complete = totals.stacks_complete;
        seen.lost = totals.lost_calls + totals.lost_stacks + totals.lost_keys;
        seen.stalls = course::stalls(programs, totals.stalls);
    }
    seen.slot_ns = programs.config.slot_ns;
    seen.slots = course::slots(programs, &unfinished.sleeps);
    seen.calls = calls(programs, unfinished);
    seen.wakers = wakers(programs);
    let samples = all::<shared::SampleKey, u64>(programs, "samples");
    let waits = all::<shared::WaitKey, shared::Wait>(programs, "waits");
    let mut stacks = Stacks::read(programs, &samples);
    let names = Names::new(pid, tables);
    stacks.name(&names);
    for (key, count) in samples {
        seen.samples.push(Sample {
            tid: key.tid.cast_signed(),
            place: place(key.nr),
            fd: descriptor(key.fd),
            stack: stacks.index(key.kernel_stack, key.user_stack),
            late: key.late != 0,
            count,
        });
    }
    for (key, wait) in waits {
        seen.waits.push(Wait {
            tid: key.tid.cast_signed(),
            place: place(key.nr),
            fd: descriptor(key.fd),
            lock: key.fd == FD_LOCK,
            address: (key.address != 0).then_some(key.address),
            stack: stacks.index(NO_STACK, key.user_stack),
            count: wait.count,
            blocked_ns: wait.blocked_ns,
            longest_ns: wait.longest_ns,
        });
    }
    (seen.stacks, seen.frames) = stacks.into_parts();
    seen
}

/// Returns all entries of a map. Unreadable entries are skipped: the map changes during the read only if a
/// program hangs.
pub(crate) fn all<K: Plain, V: Plain>(programs: &Programs, name: &str) -> Vec<(K, V)> {
    let Ok(map) = programs.map(name) else { return Vec::new() };
    map.keys()
        .filter_map(|key| {
            let value = map.lookup(&key, MapFlags::ANY).ok()??;
            Some((from_bytes::<K>(&key)?, from_bytes::<V>(&value)?))
        })
        .collect()
}

pub(crate) fn place(nr: i32) -> Place {
    if nr < 0 { Place::Outside } else { Place::Call(i64::from(nr)) }
}

pub(crate) fn descriptor(fd: i32) -> Option<i32> {
    (fd >= 0).then_some(fd)
}

fn calls(programs: &Programs, unfinished: &Unfinished) -> Vec<Call> {
    let mut found: HashMap<Key, Call> = HashMap::new();
    for (key, value) in all::<shared::CallKey, shared::Call>(programs, "calls") {
        let call = found.entry((key.tid, key.nr, key.fd)).or_insert_with(|| empty(key.tid, key.nr, key.fd));
        call.count = value.count;
        call.wall_ns = value.wall_ns;
        call.blocked_ns = value.blocked_ns;
        call.queued_ns = value.queued_ns;
        call.longest_ns = value.longest_ns;
        call.bytes = value.bytes;
        call.errors = value.errors;
        call.would_block = value.would_block;
        call.sleeps = value.sleeps;
        call.sleeps_short = value.sleeps_short;
        call.descriptor = described(&value);
        if key.nr < 0 {
            call.wall_ns = value.blocked_ns + value.queued_ns;
        }
    }
    unfinished.add_to(&mut found);
    let mut calls: Vec<Call> = found.into_values().collect();
    calls.sort_by_key(|call| (call.tid, call.place, call.fd, call.lock));
    calls
}

fn empty(tid: u32, nr: i32, fd: i32) -> Call {
    Call {
        tid: tid.cast_signed(),
        place: place(nr),
        fd: descriptor(fd),
        lock: fd == FD_LOCK,
        count: 0,
        wall_ns: 0,
        blocked_ns: 0,
        queued_ns: 0,
        longest_ns: 0,
        bytes: 0,
        errors: 0,
        would_block: 0,
        sleeps: 0,
        sleeps_short: 0,
        descriptor: None,
    }
}

/// Thread, number of the call, and descriptor.
type Key = (u32, i32, i32);

/// Calls that had not ended when the programs were detached: a thread may sleep in a call for the whole
/// window, or through a pause. Holds the observed time of each.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    calls: HashMap<Key, Open>,
    pub(crate) sleeps: course::OpenSleeps,
}

#[derive(Debug, Default)]
struct Open {
    wall_ns: u64,
    blocked_ns: u64,
    queued_ns: u64,
    longest_ns: u64,
}

impl Unfinished {
    /// Call it once after each time the programs were detached.
    pub(crate) fn add(&mut self, programs: &Programs) {
        let end = programs.detached_at_ns;
        for (tid, thread) in all::<u32, shared::Thread>(programs, "threads") {
            if thread.epoch == programs.epoch() && (thread.off_at != 0 || thread.in_call != 0) {
                self.add_thread(tid, &thread, end);
            }
            if thread.epoch == programs.epoch()
                && thread.off_at != 0
                && !course::is_idle(&programs.config, &thread)
            {
                let woken = if thread.woken_at == 0 { end } else { thread.woken_at };
                self.sleeps.push((thread.off_at, woken.min(end)));
            }
        }
    }

    fn add_thread(&mut self, tid: u32, thread: &shared::Thread, end: u64) {
        let since = |at: u64| if at == 0 { 0 } else { end.saturating_sub(at) };
        let asleep = since(thread.off_at);
        let queued = since(thread.woken_at).min(asleep);
        let mut blocked_ns = asleep - queued;
        let mut queued_ns = queued;
        let mut wall_ns = asleep;
        if thread.in_call != 0 {
            blocked_ns += thread.blocked_ns;
            queued_ns += thread.queued_ns;
            wall_ns = since(thread.call_at).max(blocked_ns + queued_ns);
        }
        let open = self.calls.entry((tid, thread.nr, thread.fd)).or_default();
        open.wall_ns += wall_ns;
        open.blocked_ns += blocked_ns;
        open.queued_ns += queued_ns;
        open.longest_ns = open.longest_ns.max(wall_ns);
    }

    fn add_to(&self, found: &mut HashMap<Key, Call>) {
        for (&key, open) in &self.calls {
            let (tid, nr, fd) = key;
            let call = found.entry(key).or_insert_with(|| empty(tid, nr, fd));
            call.wall_ns += open.wall_ns;
            call.blocked_ns += open.blocked_ns;
            call.queued_ns += open.queued_ns;
            call.longest_ns = call.longest_ns.max(open.longest_ns);
        }
    }
}

fn described(call: &shared::Call) -> Option<Described> {
    const KIND: u32 = 0o170_000;
    const SOCKET: u32 = 0o140_000;
    const REGULAR: u32 = 0o100_000;
    const TCP_LISTEN: u8 = 10;
    match call.mode & KIND {
        SOCKET if i32::from(call.family) == 2 || i32::from(call.family) == 10 => Some(Described::Tcp {
            listens: call.state == TCP_LISTEN,
            local_port: call.local_port,
            peer_port: call.peer_port,
            peer_ip4: (call.peer_ip4 != [0; 4]).then_some(call.peer_ip4),
        }),
        SOCKET => Some(Described::OtherSocket),
        REGULAR => Some(Described::File(text(&call.name))),
        _ => None,
    }
}

fn wakers(programs: &Programs) -> Vec<Waker> {
    let found = all::<shared::WakerKey, shared::Waker>(programs, "wakers");
    let waker = |(key, value): (shared::WakerKey, shared::Waker)| Waker {
        tid: key.tid.cast_signed(),
        place: place(key.nr),
        waker_tid: key.waker_tid.cast_signed(),
        waker_pid: value.tgid.cast_signed(),
        waker_name: text(&value.name),
        count: value.count,
        across: value.across,
        slept_ns: value.slept_ns,
    };
    found.into_iter().map(waker).collect()
}

const NO_STACK: i32 = -1;

/// Stacks of addresses, then of named frames; equal stacks and equal frames are stored once.
pub(crate) struct Stacks {
    user: HashMap<u64, (Vec<u64>, u32)>,
    kernel: HashMap<i32, Vec<u64>>,
    user_names: HashMap<u64, u32>,
    kernel_names: HashMap<u64, u32>,
    frames: Vec<Frame>,
    frame_index: HashMap<Frame, u32>,
    stacks: Vec<Vec<u32>>,
    stack_index: HashMap<(i32, u64), u32>,
}

impl Stacks {
    fn read(programs: &Programs, samples: &[(shared::SampleKey, u64)]) -> Stacks {
        let user = all::<u64, shared::UserStack>(programs, "user_stacks").into_iter().map(|(id, stack)| {
            let frames = (stack.frames as usize).min(FRAMES_MAX);
            (id, (stack.pc[..frames].to_vec(), stack.end))
        });
        let ids: HashSet<i32> =
            samples.iter().map(|(key, _)| key.kernel_stack).filter(|&id| id >= 0).collect();
        let kernel = ids.into_iter().filter_map(|id| {
            let map = programs.map("kernel_stacks").ok()?;
            let bytes = map.lookup(&id.to_ne_bytes(), MapFlags::ANY).ok()??;
            let words = bytes.chunks_exact(8).filter_map(from_bytes::<u64>);
            Some((id, words.take_while(|&address| address >= KERNEL_FROM).collect()))
        });
        Stacks::new(user.collect(), kernel.collect())
    }

    /// Takes addresses by stack number; a user stack also carries how its walk ended.
    pub(crate) fn new(user: HashMap<u64, (Vec<u64>, u32)>, kernel: HashMap<i32, Vec<u64>>) -> Stacks {
        Stacks {
            user,
            kernel,
            user_names: HashMap::new(),
            kernel_names: HashMap::new(),
            frames: Vec::new(),
            frame_index: HashMap::new(),
            stacks: Vec::new(),
            stack_index: HashMap::new(),
        }
    }

    /// The stacks, and the frames that they refer to.
    pub(crate) fn into_parts(self) -> (Vec<Vec<u32>>, Vec<Frame>) {
        (self.stacks, self.frames)
    }

    pub(crate) fn name(&mut self, names: &Names<'_>) {
        let user: HashSet<u64> = self.user.values().flat_map(|(pcs, _)| look_ups(pcs)).collect();
        let kernel: HashSet<u64> = self.kernel.values().flat_map(|pcs| look_ups(pcs)).collect();
        let user = names.user(&sorted(user));
        let kernel = names.kernel(&sorted(kernel));
        self.user_names = user.into_iter().map(|(address, frame)| (address, self.frame(frame))).collect();
        self.kernel_names = kernel.into_iter().map(|(address, frame)| (address, self.frame(frame))).collect();
    }

    fn frame(&mut self, frame: Frame) -> u32 {
        let next = self.frames.len() as u32;
        let index = *self.frame_index.entry(frame.clone()).or_insert(next);
        if index == next {
            self.frames.push(frame);
        }
        index
    }

    /// The stack of a sample or wait: the kernel's frames, then the user's.
    pub(crate) fn index(&mut self, kernel: i32, user: u64) -> u32 {
        if let Some(&index) = self.stack_index.get(&(kernel, user)) {
            return index;
        }
        let mut stack: Vec<u32> = Vec::new();
        if let Some(pcs) = self.kernel.get(&kernel) {
            stack.extend(look_ups(pcs).filter_map(|pc| self.kernel_names.get(&pc)));
        }
        if let Some((pcs, end)) = self.user.get(&user) {
            stack.extend(look_ups(pcs).filter_map(|pc| self.user_names.get(&pc)));
            let end = *end;
            if end != shared::STACK_COMPLETE {
                let name = if end == STACK_CUT { "(cut: too deep)" } else { "(broken stack)" };
                let mark = Frame { name: name.to_string(), module: "?".to_string(), unnamed: None };
                stack.push(self.frame(mark));
            }
        }
        let index = self.stacks.len() as u32;
        self.stacks.push(stack);
        self.stack_index.insert((kernel, user), index);
        index
    }
}

/// Return addresses follow the call, so the call is at the address minus one; the innermost address is exact.
fn look_ups(pcs: &[u64]) -> impl Iterator<Item = u64> + '_ {
    pcs.iter().enumerate().map(|(depth, &pc)| if depth == 0 { pc } else { pc.saturating_sub(1) })
}

fn sorted(set: HashSet<u64>) -> Vec<u64> {
    let mut list: Vec<u64> = set.into_iter().collect();
    list.sort_unstable();
    list
}
