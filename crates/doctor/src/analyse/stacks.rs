//! Samples as a tree of functions, to find the deepest of the server's own functions that matter.

use std::collections::BTreeMap;

use crate::recording::Frame;

#[derive(Debug, Default)]
pub(crate) struct Tree<'a> {
    nodes: Vec<Node<'a>>,
    roots: BTreeMap<u32, usize>,
    /// Name of each frame, and the name's number: frames of several files may share a name.
    names: Vec<(&'a str, u32)>,
}

#[derive(Debug, Default)]
struct Node<'a> {
    name: &'a str,
    number: u32,
    inclusive: u64,
    /// By the numbers of their names.
    children: BTreeMap<u32, usize>,
}

/// A function by name, with the samples in it and in its callees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hot<'a> {
    pub(crate) name: &'a str,
    pub(crate) inclusive: u64,
    /// The part of these without any of the tree's functions below it.
    pub(crate) itself: u64,
    /// Names from the root to the function.
    pub(crate) path: Vec<&'a str>,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(frames: &'a [Frame]) -> Tree<'a> {
        let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
        let number = |frame: &'a Frame| {
            let next = numbers.len() as u32;
            (frame.name.as_str(), *numbers.entry(&frame.name).or_insert(next))
        };
        Tree { names: frames.iter().map(number).collect(), ..Tree::default() }
    }

    /// Adds a stack of frame numbers, the outermost first.
    pub(crate) fn add(&mut self, frames: impl Iterator<Item = u32>, count: u64) {
        let mut parent: Option<usize> = None;
        for frame in frames {
            let (name, number) = self.names[frame as usize];
            // Direct recursion is a single level: its inclusive time would be counted twice.
            if parent.is_some_and(|index| self.nodes[index].number == number) {
                continue;
            }
            let next = self.nodes.len();
            let siblings = match parent {
                Some(index) => &mut self.nodes[index].children,
                None => &mut self.roots,
            };
            let index = *siblings.entry(number).or_insert(next);
            if index == next {
                self.nodes.push(Node { name, number, ..Node::default() });
            }
            self.nodes[index].inclusive += count;
            parent = Some(index);
        }
    }

    /// Functions with at least `least` samples and no callee with as many; each name once, the most samples
    /// first.
    pub(crate) fn deepest(&self, least: u64) -> Vec<Hot<'a>> {
        let mut found: Vec<Hot<'a>> = Vec::new();
        let mut open: Vec<(usize, Vec<&'a str>)> =
            self.roots.values().map(|&index| (index, Vec::new())).collect();
        while let Some((index, mut path)) = open.pop() {
            let node = &self.nodes[index];
            if node.inclusive < least {
                continue;
            }
            path.push(node.name);
            let heavy = |child: &&usize| self.nodes[**child].inclusive >= least;
            let deeper: Vec<usize> = node.children.values().filter(heavy).copied().collect();
            if deeper.is_empty() {
                let below: u64 = node.children.values().map(|&child| self.nodes[child].inclusive).sum();
                let itself = node.inclusive - below;
                found.push(Hot { name: node.name, inclusive: node.inclusive, itself, path: path.clone() });
            }
            open.extend(deeper.into_iter().map(|child| (child, path.clone())));
        }
        found.sort_by(|a, b| b.inclusive.cmp(&a.inclusive).then_with(|| a.name.cmp(b.name)));
        // A function reached on two paths is a single cause.
        let mut merged: Vec<Hot<'a>> = Vec::new();
        for hot in found {
            match merged.iter_mut().find(|other| other.name == hot.name) {
                Some(other) => {
                    other.inclusive += hot.inclusive;
                    other.itself += hot.itself;
                }
                None => merged.push(hot),
            }
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(names: &[&str]) -> Vec<Frame> {
        let frame = |name: &&str| Frame { name: name.to_string(), module: "s".to_string(), unnamed: None };
        names.iter().map(frame).collect()
    }

    #[test]
    fn the_deepest_function_that_matters_is_found() {
        let frames = frames(&["main", "loop", "call", "set", "alloc", "copy", "get"]);
        let mut tree = Tree::new(&frames);
        tree.add([0, 1, 2, 3, 4].into_iter(), 4);
        tree.add([0, 1, 2, 3, 5].into_iter(), 4);
        tree.add([0, 1, 2, 6].into_iter(), 92);
        let names: Vec<&str> = tree.deepest(5).iter().map(|hot| hot.name).collect();
        assert_eq!(names, ["get", "set"]);
        assert_eq!(tree.deepest(5)[1].inclusive, 8);
        assert_eq!(tree.deepest(5)[1].path, ["main", "loop", "call", "set"]);
    }

    #[test]
    fn recursion_counts_once_also_through_another_file() {
        let frames = frames(&["main", "walk", "walk"]);
        let mut tree = Tree::new(&frames);
        tree.add([0, 1, 2, 1].into_iter(), 10);
        let hot = tree.deepest(1);
        assert_eq!((hot.len(), hot[0].name, hot[0].inclusive), (1, "walk", 10));
    }
}
