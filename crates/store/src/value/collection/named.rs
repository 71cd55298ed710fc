//! A map from names to values that can be shared in O(1): a balanced binary tree of reference-counted nodes.
//!
//! For data that is too little, or too structured, to be packed into pages: the groups of a stream and their
//! consumers. A writer copies the nodes on the path to its change, if they are shared. Trees are balanced by
//! weight, since that needs only the size, which a node stores anyway (Adams, "Efficient sets: a balancing
//! act", with the factors of Hirai and Yamamoto): neither subtree has more than three times the other's
//! nodes.

use std::cmp::Ordering;

use crate::memory::block_vec::Bytes;
use crate::value::shared::Shared;

/// Maximum ratio of the sizes of two subtrees.
const HEAVIER_MAX: usize = 3;

/// A heavy subtree whose inner half has less than this many times the nodes of its outer half is rotated
/// once, otherwise twice.
const ONCE_BELOW: usize = 2;

/// See the module's documentation.
pub(crate) struct Named<V>(Option<Shared<Node<V>>>);

#[derive(Clone)]
struct Node<V> {
    name: Shared<Bytes>,
    value: V,
    size: usize,
    left: Named<V>,
    right: Named<V>,
}

impl<V> Clone for Named<V> {
    fn clone(&self) -> Named<V> {
        Named(self.0.clone())
    }
}

impl<V> Default for Named<V> {
    fn default() -> Named<V> {
        Named(None)
    }
}

impl<V> Named<V> {
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |node| node.size)
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&V> {
        let mut tree = self;
        while let Some(node) = &tree.0 {
            match name.cmp(&node.name) {
                Ordering::Less => tree = &node.left,
                Ordering::Equal => return Some(&node.value),
                Ordering::Greater => tree = &node.right,
            }
        }
        None
    }

    /// Names and values, in the order of the names.
    pub(crate) fn iter(&self) -> Iter<'_, V> {
        let mut iter = Iter { path: Vec::new() };
        iter.descend(self);
        iter
    }
}

impl<V: Clone> Named<V> {
    /// The value of a name, for changes.
    pub(crate) fn get_mut(&mut self, name: &[u8]) -> Option<&mut V> {
        // Looked up first: nothing is copied for a missing name.
        self.get(name)?;
        let mut tree = self;
        loop {
            let node = tree.0.as_mut()?.own();
            match name.cmp(&node.name) {
                Ordering::Less => tree = &mut node.left,
                Ordering::Equal => return Some(&mut node.value),
                Ordering::Greater => tree = &mut node.right,
            }
        }
    }

    /// Adds a name, or replaces its value.
    pub(crate) fn insert(&mut self, name: &[u8], value: V) {
        let Some(node) = &mut self.0 else {
            let (left, right) = (Named(None), Named(None));
            self.0 = Some(Shared::new(Node { name: Shared::new(name.into()), value, size: 1, left, right }));
            return;
        };
        let node = node.own();
        match name.cmp(&node.name) {
            Ordering::Less => node.left.insert(name, value),
            Ordering::Equal => node.value = value,
            Ordering::Greater => node.right.insert(name, value),
        }
        self.balance();
    }

    /// Removes a name.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<V> {
        self.get(name)?;
        Some(self.take(name))
    }

    /// Like [`Named::remove`], for a name that exists.
    fn take(&mut self, name: &[u8]) -> V {
        let node = self.0.as_mut().expect("the name is there").own();
        let value = match name.cmp(&node.name) {
            Ordering::Less => node.left.take(name),
            Ordering::Greater => node.right.take(name),
            Ordering::Equal => return self.take_root(),
        };
        self.balance();
        value
    }

    fn take_root(&mut self) -> V {
        let mut node = self.0.take().expect("the caller has seen it").into_value();
        if node.right.0.is_none() {
            *self = node.left;
            return node.value;
        }
        let (name, value) = node.right.take_first();
        let old = std::mem::replace(&mut node.value, value);
        self.0 = Some(Shared::new(Node { name, ..node }));
        self.balance();
        old
    }

    /// Removes the first name of a tree that is not empty.
    fn take_first(&mut self) -> (Shared<Bytes>, V) {
        let node = self.0.as_mut().expect("the caller has seen that there is one").own();
        if node.left.0.is_some() {
            let first = node.left.take_first();
            self.balance();
            return first;
        }
        let node = self.0.take().expect("seen above").into_value();
        *self = node.right;
        (node.name, node.value)
    }

    /// Restores the balance after a subtree of the root, which exists, has gained or lost a node.
    fn balance(&mut self) {
        let node = self.0.as_mut().expect("a tree that has just been worked on").own();
        let (left, right) = (node.left.len(), node.right.len());
        node.size = left + right + 1;
        if left + right <= 1 {
            return;
        }
        if right > HEAVIER_MAX * left {
            let (inner, outer) = node.right.sides();
            if inner >= ONCE_BELOW * outer {
                node.right.rotate_right();
            }
            self.rotate_left();
        } else if left > HEAVIER_MAX * right {
            let (outer, inner) = node.left.sides();
            if inner >= ONCE_BELOW * outer {
                node.left.rotate_left();
            }
            self.rotate_right();
        }
    }

    /// Sizes of both subtrees.
    fn sides(&self) -> (usize, usize) {
        self.0.as_ref().map_or((0, 0), |node| (node.left.len(), node.right.len()))
    }

    /// Makes the right child the root.
    fn rotate_left(&mut self) {
        let mut root = self.0.take().expect("there is a child");
        let old = root.own();
        let mut child = old.right.0.take().expect("the heavier side has nodes");
        let new = child.own();
        old.right = std::mem::take(&mut new.left);
        old.count();
        new.left = Named(Some(root));
        new.count();
        self.0 = Some(child);
    }

    /// Makes the left child the root.
    fn rotate_right(&mut self) {
        let mut root = self.0.take().expect("there is a child");
        let old = root.own();
        let mut child = old.left.0.take().expect("the heavier side has nodes");
        let new = child.own();
        old.left = std::mem::take(&mut new.right);
        old.count();
        new.right = Named(Some(root));
        new.count();
        self.0 = Some(child);
    }
}

impl<V> Node<V> {
    fn count(&mut self) {
        self.size = self.left.len() + self.right.len() + 1;
    }
}

/// See [`Named::iter`].
pub(crate) struct Iter<'a, V> {
    /// The next node, and above it its successors.
    path: Vec<&'a Node<V>>,
}

impl<'a, V> Iter<'a, V> {
    fn descend(&mut self, mut tree: &'a Named<V>) {
        while let Some(node) = &tree.0 {
            self.path.push(node);
            tree = &node.left;
        }
    }
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = (&'a [u8], &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.path.pop()?;
        self.descend(&node.right);
        Some((&node.name, &node.value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_testkit::random::{Random, fresh_seed};

    use super::*;

    type Plain = BTreeMap<Vec<u8>, u64>;

    fn check(tree: &Named<u64>, plain: &Plain) {
        check_shape(tree);
        assert_eq!(tree.len(), plain.len());
        assert!(tree.iter().eq(plain.iter().map(|(name, value)| (&name[..], value))));
    }

    fn check_shape(tree: &Named<u64>) {
        let Some(node) = &tree.0 else { return };
        let (left, right) = tree.sides();
        assert_eq!(node.size, left + right + 1);
        let (light, heavy) = (left.min(right), left.max(right));
        assert!(heavy <= 1 || heavy <= HEAVIER_MAX * light, "{left} and {right} are in balance");
        check_shape(&node.left);
        check_shape(&node.right);
    }

    #[test]
    fn random_operations_against_a_plain_map() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for _ in 0..if cfg!(miri) { 2 } else { 20 } {
            let (mut tree, mut plain) = (Named::default(), Plain::new());
            let mut clones: Vec<(Named<u64>, Plain)> = Vec::new();
            let names = 1 + random.below(200);
            for step in 0..if cfg!(miri) { 100 } else { 2000 } {
                let name = random.below(names).to_string().into_bytes();
                match random.below(10) {
                    0..=3 => {
                        tree.insert(&name, step);
                        plain.insert(name, step);
                    }
                    4..=6 => assert_eq!(tree.remove(&name), plain.remove(&name)),
                    7 => {
                        let (one, other) = (tree.get_mut(&name), plain.get_mut(&name));
                        assert_eq!(one.as_deref(), other.as_deref());
                        if let (Some(one), Some(other)) = (one, other) {
                            (*one, *other) = (step, step);
                        }
                    }
                    8 => assert_eq!(tree.get(&name), plain.get(&name)),
                    _ if random.below(20) == 0 => clones.push((tree.clone(), plain.clone())),
                    _ => {}
                }
                check_shape(&tree);
            }
            check(&tree, &plain);
            clones.iter().for_each(|(tree, plain)| check(tree, plain));
        }
    }

    #[test]
    fn names_that_come_in_order_leave_it_in_balance() {
        let mut tree = Named::default();
        (0..10_000_u64).for_each(|number| tree.insert(&number.to_be_bytes(), number));
        check_shape(&tree);
        (0..9_000_u64).for_each(|number| assert_eq!(tree.remove(&number.to_be_bytes()), Some(number)));
        check_shape(&tree);
        assert_eq!(tree.iter().next(), Some((&9_000_u64.to_be_bytes()[..], &9_000)));
    }
}
