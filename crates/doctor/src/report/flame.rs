//! Stacks as trees for the page: names are stored once, each stack is a path, and invisibly small nodes are
//! left out.
//!
//! The widths of a differential graph come from a single recording. Each node also has its value in the other
//! recording, in the same measure. A graph cannot show a node that it lacks, so there are two: the first
//! shows new nodes, and the second shows gone nodes.
//!
//! A tree is built from sorted paths: paths with the same beginning are adjacent, and small nodes are never
//! built.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analyse::is_idle_wait;
use crate::recording::{Recording, Waker};

/// Minimum part of a graph's total: a pixel on a wide screen. It bounds the page to 2,000 nodes a level.
const SMALLEST: f64 = 0.0005;
/// Outermost frames that are drawn; the recording has the deeper frames.
const DEPTH_MAX: usize = 160;
/// Length of a chain of wakers.
const WAKERS_DEEP: usize = 3;

/// A graph, with values in `unit`.
#[derive(Debug, Serialize)]
pub(crate) struct Graph {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    /// For a differential graph: its widths are those of the first recording.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) of_before: bool,
    pub(crate) root: Node,
}

impl Graph {
    pub(crate) fn is_empty(&self) -> bool {
        self.root.v == 0
    }

    fn turned(self) -> Graph {
        Graph { of_before: true, ..self }
    }
}

/// `n`: index into the page's names; `k`: a kernel function; `v`: value with all nodes below; `o`: the same
/// in the other recording.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Node {
    n: u32,
    #[serde(skip_serializing_if = "is_false")]
    k: bool,
    v: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    o: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    c: Vec<Node>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The page's names, without duplicates.
#[derive(Debug, Default)]
pub(crate) struct Names {
    list: Vec<String>,
    index: BTreeMap<String, u32>,
}

impl Names {
    fn add(&mut self, name: &str) -> u32 {
        if let Some(&index) = self.index.get(name) {
            return index;
        }
        let index = self.list.len() as u32;
        self.list.push(name.to_string());
        self.index.insert(name.to_string(), index);
        index
    }

    pub(crate) fn into_list(self) -> Vec<String> {
        self.list
    }
}

/// From the outermost step on. A step is twice the index of a name, plus 1 for a kernel function.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Path {
    steps: Vec<u32>,
    value: u64,
}

fn step(name: u32, kernel: bool) -> u32 {
    name * 2 + u32::from(kernel)
}

/// CPU samples by thread.
pub(crate) fn on_cpu(recording: &Recording, names: &mut Names) -> Graph {
    let paths = on_cpu_paths(recording, names, &|tid| recording.thread_name(tid));
    graph("On CPU", "samples", paths, names)
}

/// Blocked time by thread, with the system call innermost. `work`: show waits for work instead of all other
/// waits.
pub(crate) fn off_cpu(recording: &Recording, names: &mut Names, work: bool) -> Graph {
    let paths = off_cpu_paths(recording, names, work, &|tid| recording.thread_name(tid));
    graph(if work { "Waiting for work" } else { "Blocked" }, "us", paths, names)
}

/// Time on a CPU and blocked time in one graph, without waits for work: the time that could have served
/// clients.
pub(crate) fn combined(recording: &Recording, names: &mut Names) -> Graph {
    let called = |tid| recording.thread_name(tid);
    let mut samples: BTreeMap<i32, u64> = BTreeMap::new();
    for sample in &recording.samples {
        *samples.entry(sample.tid).or_default() += sample.count;
    }
    let cpu_ns =
        |tid| recording.threads.iter().find(|thread| thread.tid == tid).map_or(0, |thread| thread.cpu_ns);
    let each_us: BTreeMap<i32, f64> =
        samples.iter().map(|(&tid, &count)| (tid, cpu_ns(tid) as f64 / 1e3 / count.max(1) as f64)).collect();
    let mut steps = Steps::new(recording, names, &called);
    let mut paths: Vec<Path> = recording
        .samples
        .iter()
        .map(|s| Path { steps: steps.of(s.tid, s.stack), value: (s.count as f64 * each_us[&s.tid]) as u64 })
        .collect();
    for wait in recording.waits.iter().filter(|wait| !is_idle_wait(wait)) {
        let mut path = steps.of(wait.tid, wait.stack);
        let blocked = format!("blocked in {}", wait.call.as_deref().unwrap_or("?"));
        path.push(step(steps.names.add(&blocked), true));
        paths.push(Path { steps: path, value: wait.blocked_ns / 1_000 });
    }
    paths.sort_unstable();
    graph("On CPU and blocked", "us", paths, names)
}

/// Time asleep by thread, call, and waker. If the waker is a thread of the target, its own wakers follow.
pub(crate) fn wakers(recording: &Recording, names: &mut Names) -> Graph {
    let mut by_thread: BTreeMap<i32, Vec<&Waker>> = BTreeMap::new();
    for waker in &recording.wakers {
        by_thread.entry(waker.tid).or_default().push(waker);
    }
    let mut paths = Vec::new();
    for &tid in by_thread.keys() {
        add_wakers(recording, names, &by_thread, &mut paths, &[], (tid, 1.0));
    }
    graph("Wakers", "us", paths, names)
}

/// Adds the sleeps of a thread, times a scale, below a path.
fn add_wakers(
    recording: &Recording,
    names: &mut Names,
    by_thread: &BTreeMap<i32, Vec<&Waker>>,
    paths: &mut Vec<Path>,
    behind: &[u32],
    (tid, scale): (i32, f64),
) {
    const STEPS: usize = 2; // a thread and its call
    let thread = step(names.add(&recording.thread_name(tid)), false);
    for waker in by_thread.get(&tid).into_iter().flatten() {
        let us = (waker.slept_ns as f64 / 1e3 * scale) as u64;
        let call = step(names.add(waker.call.as_deref().unwrap_or("outside calls")), true);
        let mut steps = [behind, &[thread, call]].concat();
        let is_deep = steps.len() >= STEPS * (WAKERS_DEEP + 1);
        let ours = by_thread.get(&waker.waker_tid).filter(|_| !is_deep && waker.waker_tid != tid);
        match ours {
            Some(slept) => {
                let all: u64 = slept.iter().map(|other| other.slept_ns / 1_000).sum();
                let scale = us as f64 / all.max(1) as f64;
                add_wakers(recording, names, by_thread, paths, &steps, (waker.waker_tid, scale));
            }
            None => {
                let who = match waker.waker_tid {
                    0 => "an interrupt".to_string(),
                    _ => format!("{} ({})", waker.waker_name, waker.waker_pid),
                };
                steps.push(step(names.add(&who), false));
                paths.push(Path { steps, value: us });
            }
        }
    }
}

/// Differential graphs in both directions. Threads are matched by name, as their numbers differ.
pub(crate) fn differences(before: &Recording, after: &Recording, names: &mut Names) -> Vec<Graph> {
    let called = |recording: &Recording, tid: i32| {
        let thread = recording.threads.iter().find(|thread| thread.tid == tid);
        thread.map_or_else(|| "a thread".to_string(), |thread| thread.name.clone())
    };
    let on_cpu = |recording, names: &mut Names| on_cpu_paths(recording, names, &|tid| called(recording, tid));
    let blocked =
        |recording, names: &mut Names| off_cpu_paths(recording, names, false, &|tid| called(recording, tid));
    let (cpu_before, cpu_after) = (on_cpu(before, names), on_cpu(after, names));
    let (blocked_before, blocked_after) = (blocked(before, names), blocked(after, names));
    // CPU time is compared by samples, as the recordings may differ in their number; blocked time by the
    // windows' length.
    let samples = total(&cpu_after) as f64 / total(&cpu_before).max(1) as f64;
    let windows = after.window_ns as f64 / before.window_ns.max(1) as f64;
    let (to_before, windows_to_before) = (1.0 / samples.max(1e-9), 1.0 / windows.max(1e-9));
    vec![
        differential("On CPU, after", "samples", &cpu_after, &cpu_before, samples, names),
        differential("On CPU, before", "samples", &cpu_before, &cpu_after, to_before, names).turned(),
        differential("Blocked, after", "us", &blocked_after, &blocked_before, windows, names),
        differential("Blocked, before", "us", &blocked_before, &blocked_after, windows_to_before, names)
            .turned(),
    ]
}

/// Draws `shown`, with the values of `other` at the same places, times `scale`.
fn differential(
    title: &str,
    unit: &'static str,
    shown: &[Path],
    other: &[Path],
    scale: f64,
    names: &mut Names,
) -> Graph {
    let all = total(shown);
    let building = Building { least: (all as f64 * SMALLEST) as u64, scale };
    let o = (total(other) as f64 * scale) as u64;
    let c = building.nodes(shown, Some(other), 0);
    let root = Node { n: names.add("all"), k: false, v: all, o: Some(o), c };
    Graph { title: title.to_string(), unit, of_before: false, root }
}

fn graph(title: &str, unit: &'static str, mut paths: Vec<Path>, names: &mut Names) -> Graph {
    paths.sort_unstable();
    let all = total(&paths);
    let building = Building { least: (all as f64 * SMALLEST) as u64, scale: 0.0 };
    let root = Node { n: names.add("all"), k: false, v: all, o: None, c: building.nodes(&paths, None, 0) };
    Graph { title: title.to_string(), unit, of_before: false, root }
}

fn total(paths: &[Path]) -> u64 {
    paths.iter().map(|path| path.value).sum()
}

fn on_cpu_paths(recording: &Recording, names: &mut Names, called: &dyn Fn(i32) -> String) -> Vec<Path> {
    let mut steps = Steps::new(recording, names, called);
    let samples = recording.samples.iter();
    let mut paths: Vec<Path> =
        samples.map(|s| Path { steps: steps.of(s.tid, s.stack), value: s.count }).collect();
    paths.sort_unstable();
    paths
}

/// The call is the last step.
fn off_cpu_paths(
    recording: &Recording,
    names: &mut Names,
    work: bool,
    called: &dyn Fn(i32) -> String,
) -> Vec<Path> {
    let mut steps = Steps::new(recording, names, called);
    let mut paths = Vec::new();
    for wait in recording.waits.iter().filter(|wait| is_idle_wait(wait) == work) {
        let mut path = steps.of(wait.tid, wait.stack);
        path.push(step(steps.names.add(wait.call.as_deref().unwrap_or("?")), true));
        paths.push(Path { steps: path, value: wait.blocked_ns / 1_000 });
    }
    paths.sort_unstable();
    paths
}

/// The steps of stacks. Names of frames and threads are looked up once each, not once per stack.
struct Steps<'a> {
    recording: &'a Recording,
    names: &'a mut Names,
    called: &'a dyn Fn(i32) -> String,
    frames: Vec<Option<u32>>,
    threads: BTreeMap<i32, u32>,
}

impl<'a> Steps<'a> {
    fn new(recording: &'a Recording, names: &'a mut Names, called: &'a dyn Fn(i32) -> String) -> Steps<'a> {
        let frames = vec![None; recording.frames.len()];
        Steps { recording, names, called, frames, threads: BTreeMap::new() }
    }

    fn of(&mut self, tid: i32, stack: u32) -> Vec<u32> {
        let names = &mut *self.names;
        let called = self.called;
        let thread = *self.threads.entry(tid).or_insert_with(|| step(names.add(&called(tid)), false));
        let stack = &self.recording.stacks[stack as usize];
        let mut steps = Vec::with_capacity(stack.len().min(DEPTH_MAX) + 2); // the thread, and perhaps a call
        steps.push(thread);
        for &index in stack.iter().rev().take(DEPTH_MAX) {
            let frame = &self.recording.frames[index as usize];
            let known = &mut self.frames[index as usize];
            steps.push(*known.get_or_insert_with(|| step(names.add(&frame.name), frame.is_kernel())));
        }
        steps
    }
}

struct Building {
    /// A node is drawn if it has more than this.
    least: u64,
    /// Factor for values of the other recording.
    scale: f64,
}

impl Building {
    /// Returns the nodes at a depth, the largest first. `shown` and `other` are sorted, and equal up to that
    /// depth.
    fn nodes(&self, shown: &[Path], other: Option<&[Path]>, depth: usize) -> Vec<Node> {
        let mut nodes = Vec::new();
        let mut rest = &shown[shown.partition_point(|path| path.steps.len() <= depth)..];
        while let Some(first) = rest.first() {
            let at = first.steps[depth];
            let (group, behind) = rest.split_at(rest.partition_point(|path| path.steps[depth] == at));
            rest = behind;
            let v = total(group);
            if v <= self.least {
                continue;
            }
            let same = other.map(|other| same_step(other, depth, at));
            let o = same.map(|same| (total(same) as f64 * self.scale) as u64);
            nodes.push(Node { n: at / 2, k: at % 2 == 1, v, o, c: self.nodes(group, same, depth + 1) });
        }
        nodes.sort_by_key(|node| (std::cmp::Reverse(node.v), node.n));
        nodes
    }
}

/// Returns the paths with step `at` at a depth. `paths` is sorted, and equal up to that depth.
fn same_step(paths: &[Path], depth: usize, at: u32) -> &[Path] {
    let from = paths.partition_point(|path| path.steps.get(depth) < Some(&at));
    let paths = &paths[from..];
    &paths[..paths.partition_point(|path| path.steps.get(depth) == Some(&at))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::recording::Wait;

    #[test]
    fn values_add_up_and_invisible_parts_are_left_out() {
        let mut recording = golden::idle();
        golden::add_samples(&mut recording, &["main", "call", "set"], 6_000);
        golden::add_samples(&mut recording, &["main", "call", "get"], 3_999);
        golden::add_samples(&mut recording, &["main", "rare"], 1);
        let mut names = Names::default();
        let graph = on_cpu(&recording, &mut names);
        let names = names.into_list();
        let (mut node, mut path) = (&graph.root, Vec::new());
        while let Some(child) = node.c.first() {
            path.push((names[child.n as usize].as_str(), child.v));
            node = child;
        }
        assert_eq!(path, [("redis-server (100)", 10_000), ("main", 10_000), ("call", 9_999), ("set", 6_000)]);
        assert_eq!(graph.root.c[0].c[0].c.len(), 1, "rare has less than a pixel");
    }

    #[test]
    fn the_combined_graph_has_computing_and_blocking_in_the_same_unit() {
        let mut recording = golden::idle();
        recording.threads[0].cpu_ns = 400_000_000;
        golden::add_samples(&mut recording, &["main", "compute"], 40);
        let stack = golden::add_stack(&mut recording, &["main", "save"]);
        let wait = |call: &str, blocked_ns| Wait {
            tid: golden::TID,
            stack,
            call: Some(call.to_string()),
            blocked_ns,
            ..Wait::default()
        };
        recording.waits = vec![wait("fdatasync", 100_000_000), wait("epoll_wait", 9_000_000_000)];
        let mut names = Names::default();
        let graph = combined(&recording, &mut names);
        let names = names.into_list();
        let main = &graph.root.c[0].c[0];
        let parts: Vec<_> = main.c.iter().map(|node| (names[node.n as usize].as_str(), node.v)).collect();
        assert_eq!(parts, [("compute", 400_000), ("save", 100_000)]);
        assert_eq!(names[main.c[1].c[0].n as usize], "blocked in fdatasync");
    }

    #[test]
    fn differential_graphs_show_the_parts_of_either_recording() {
        let (mut before, mut after) = (golden::idle(), golden::idle());
        golden::add_samples(&mut before, &["main", "old"], 100);
        golden::add_samples(&mut before, &["main", "both"], 100);
        golden::add_samples(&mut after, &["main", "both"], 300);
        golden::add_samples(&mut after, &["main", "new"], 100);
        let mut names = Names::default();
        let graphs = differences(&before, &after, &mut names);
        let names = names.into_list();
        let leaves = |graph: &Graph| -> Vec<(String, u64, Option<u64>)> {
            let main = &graph.root.c[0].c[0];
            main.c.iter().map(|node| (names[node.n as usize].clone(), node.v, node.o)).collect()
        };
        // 200 samples before are 400 after.
        let expected = [("both".to_string(), 300, Some(200)), ("new".to_string(), 100, Some(0))];
        assert_eq!(leaves(&graphs[0]), expected);
        let expected = [("old".to_string(), 100, Some(0)), ("both".to_string(), 100, Some(150))];
        assert_eq!(leaves(&graphs[1]), expected);
    }

    #[test]
    fn the_waker_of_a_waker_is_shown_below_it() {
        let waker = |tid, waker_tid, slept_ms: u64| Waker {
            tid,
            call: Some("futex".to_string()),
            waker_tid,
            waker_pid: waker_tid,
            waker_name: "other".to_string(),
            count: 1,
            across: 0,
            slept_ns: slept_ms * 1_000_000,
        };
        let mut recording = golden::idle();
        recording.wakers = vec![waker(1, 2, 10), waker(2, 0, 40)];
        let mut names = Names::default();
        let graph = wakers(&recording, &mut names);
        let names = names.into_list();
        let (mut node, mut path) = (&graph.root.c[1], Vec::new());
        loop {
            path.push((names[node.n as usize].as_str(), node.v));
            let Some(child) = node.c.first() else { break };
            node = child;
        }
        let expected = [
            ("thread 1", 10_000),
            ("futex", 10_000),
            ("thread 2", 10_000),
            ("futex", 10_000),
            ("an interrupt", 10_000),
        ];
        assert_eq!(path, expected);
        assert_eq!(graph.root.v, 50_000);
    }
}
