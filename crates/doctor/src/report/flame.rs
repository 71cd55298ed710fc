//! Stacks as trees for the page: each name once, each stack a path, and what is too small to be seen left out.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analyse::is_idle_wait;
use crate::recording::Recording;

/// Of a graph's total: a pixel and less on a wide screen. It bounds the page: at most 2,000 nodes a level.
const SMALLEST: f64 = 0.0005;
/// Outermost frames that are drawn; deeper ones are in the recording.
const DEPTH_MAX: usize = 160;

/// One graph. `total` is in `unit`.
#[derive(Debug, Serialize)]
pub(crate) struct Graph {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) root: Node,
}

/// `n` indexes the page's names; `k` marks the kernel's functions, `v` is with all below.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Node {
    n: u32,
    #[serde(skip_serializing_if = "is_false")]
    k: bool,
    v: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    c: Vec<Node>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The page's names, each once.
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

#[derive(Debug, Default)]
struct Growing {
    value: u64,
    kernel: bool,
    children: BTreeMap<u32, Growing>,
}

/// CPU samples by thread.
pub(crate) fn on_cpu(recording: &Recording, names: &mut Names) -> Graph {
    let mut root = Growing::default();
    for sample in &recording.samples {
        let thread = recording.thread_name(sample.tid);
        descend(&mut root, recording, names, &thread, sample.stack, sample.count);
    }
    Graph { title: "On CPU".to_string(), unit: "samples", root: finish(root, names) }
}

/// Time blocked by thread, with the system call innermost. `work`: whether waits for work are shown, or all else.
pub(crate) fn off_cpu(recording: &Recording, names: &mut Names, work: bool) -> Graph {
    let mut root = Growing::default();
    for wait in recording.waits.iter().filter(|wait| is_idle_wait(wait) == work) {
        let thread = recording.thread_name(wait.tid);
        let us = wait.blocked_ns / 1_000;
        let node = descend(&mut root, recording, names, &thread, wait.stack, us);
        let call = node.children.entry(names.add(wait.call.as_deref().unwrap_or("?"))).or_default();
        call.kernel = true;
        call.value += us;
    }
    let title = if work { "Waiting for work" } else { "Blocked" };
    Graph { title: title.to_string(), unit: "us", root: finish(root, names) }
}

/// Adds the value all along a path, and gives its last node.
fn descend<'a>(
    root: &'a mut Growing,
    recording: &Recording,
    names: &mut Names,
    thread: &str,
    stack: u32,
    value: u64,
) -> &'a mut Growing {
    root.value += value;
    let mut node = root.children.entry(names.add(thread)).or_default();
    node.value += value;
    for &index in recording.stacks[stack as usize].iter().rev().take(DEPTH_MAX) {
        let frame = &recording.frames[index as usize];
        node = node.children.entry(names.add(&frame.name)).or_default();
        node.kernel = frame.is_kernel();
        node.value += value;
    }
    node
}

fn finish(root: Growing, names: &mut Names) -> Node {
    let least = (root.value as f64 * SMALLEST) as u64;
    let name = names.add("all");
    prune(name, root, least)
}

fn prune(name: u32, growing: Growing, least: u64) -> Node {
    let children = growing.children.into_iter().filter(|(_, child)| child.value > least);
    let mut children: Vec<Node> = children.map(|(name, child)| prune(name, child, least)).collect();
    children.sort_by_key(|child| (std::cmp::Reverse(child.v), child.n));
    Node { n: name, k: growing.kernel, v: growing.value, c: children }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn values_add_up_and_what_cannot_be_seen_is_left_out() {
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
}
