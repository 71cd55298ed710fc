use evenkeel_testkit::random::{Random, fresh_seed};

use super::inner::FANOUT;
use super::*;
use crate::value::collection::page::PAGE_MAX;
use crate::value::collection::sample::Dice;

/// Asserts the invariants of every tree; returns its height.
fn check_shape(tree: &Tree) -> usize {
    match tree.node() {
        Node::Page(page) => {
            assert!(
                page.len() <= 1 || page.bytes() <= PAGE_MAX,
                "a page of several items is of ordinary size"
            );
            0
        }
        Node::Inner(inner) => {
            assert_eq!(inner.count, inner.branches.iter().map(|branch| branch.count).sum::<u64>());
            let heights: Vec<usize> = inner
                .branches
                .iter()
                .map(|branch| {
                    assert!(branch.count > 0, "no branch is empty");
                    assert_eq!(branch.count, branch.node.len());
                    check_shape(&branch.node)
                })
                .collect();
            assert!(heights.windows(2).all(|pair| pair[0] == pair[1]), "all pages are at one depth");
            heights[0] + 1
        }
    }
}

fn check(tree: &Tree, plain: &[Vec<u8>]) {
    check_shape(tree);
    assert_eq!(tree.len(), plain.len() as u64);
    assert!(tree.iter().eq(plain.iter()));
    assert!(tree.iter().rev().eq(plain.iter().rev()));
}

/// Random operations on positions, with clones taken at random moments that must keep their content.
#[test]
fn random_operations_against_a_plain_vector() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    for round in 0..if cfg!(miri) { 4 } else { 20 } {
        let longest = [8, 40, 400, 3000][round % 4];
        // In two of five rounds, nearly all items have the same length.
        let (usual, others) = [(0, 100), (0, 100), (0, 100), (1, 1), (16, 1)][round % 5];
        let (mut tree, mut plain) = (Tree::new(), Vec::new());
        let mut clones: Vec<(Tree, Vec<Vec<u8>>)> = Vec::new();
        for step in 0..if cfg!(miri) { 150 } else { 6000 } {
            let long = if random.below(500) == 0 { 9000 } else { longest };
            let is_other = long == 9000 || random.chance(others);
            let item = vec![random.below(256) as u8; if is_other { random.below(long) } else { usual }];
            let at = random.below(plain.len() + 1);
            // Grows for a while, then shrinks, then grows again.
            let growing = step / 1500 % 2 == 0;
            match random.below(12) {
                0..=3 if growing => {
                    tree.insert_at(at as u64, &[&item]);
                    plain.insert(at, item);
                }
                4..=6 if growing => {
                    tree.insert_at(plain.len() as u64, &[&item]);
                    plain.push(item);
                }
                7 if growing => {
                    tree.insert_at(0, &[&item]);
                    plain.insert(0, item);
                }
                8 if at < plain.len() => {
                    tree.replace_at(at as u64, &[&item]);
                    plain[at] = item;
                }
                0..=5 if at < plain.len() => {
                    let to = (at + 1 + random.below(3)).min(plain.len());
                    drop(tree.remove_range(at as u64..to as u64));
                    plain.drain(at..to);
                }
                6 if random.below(200) == 0 => {
                    let to = at + random.below(plain.len() - at + 1);
                    drop(tree.remove_range(at as u64..to as u64));
                    plain.drain(at..to);
                }
                10 if random.below(300) == 0 => {
                    let positions = Dice::new(random.draw()).positions(at as u64, plain.len() as u64);
                    tree.remove_each(&positions);
                    positions.iter().rev().for_each(|at| _ = plain.remove(*at as usize));
                    check(&tree, &plain);
                }
                9 if random.below(100) == 0 && clones.len() < 12 => {
                    clones.push((tree.clone(), plain.clone()))
                }
                _ => {}
            }
            assert_eq!(tree.get(at as u64), plain.get(at).map(Vec::as_slice));
            if step % 500 == 0 {
                check(&tree, &plain);
                let at = random.below(plain.len() + 1);
                let to = at + random.below(plain.len() - at + 1);
                assert!(tree.range(at as u64..to as u64).eq(plain[at..to].iter()));
            }
        }
        check(&tree, &plain);
        clones.iter().for_each(|(tree, plain)| check(tree, plain));
        drop(tree);
        clones.iter().for_each(|(tree, plain)| check(tree, plain));
    }
}

#[test]
fn an_item_of_another_length_divides_a_page_of_small_ones_seldom() {
    for (len, odd) in [(1, 2), (1, 4000), (1, 9000), (2, 3), (16, 15), (16, 17)] {
        let mut tree = Tree::new();
        while tree.is_page() {
            tree.insert_at(tree.len(), &[&vec![b'x'; len]]);
        }
        let (full, pages) = (tree.len(), tree.pages().count());
        tree.insert_at(full - 3, &[&vec![b'y'; odd]]);
        tree.replace_at(2, &[&vec![b'z'; odd]]);
        let more = tree.pages().count() - pages;
        assert!(more <= 4, "{more} pages more, {len} and {odd}");
        assert_eq!((tree.len(), tree.get(full - 3)), (full + 1, Some(&vec![b'y'; odd][..])));
        assert_eq!(tree.get(2), Some(&vec![b'z'; odd][..]));
        check_shape(&tree);
    }
}

#[test]
fn appending_fills_pages_and_cutting_is_quick() {
    let mut tree = Tree::new();
    let item = [b'x'; 16];
    let count = if cfg!(miri) { 2_000 } else { 300_000 };
    for at in 0..count {
        tree.insert_at(at, &[&item]);
    }
    check_shape(&tree);
    let per_item = tree.memory() as f64 / count as f64;
    assert!(per_item < 16.6, "{per_item} bytes per item of 16");
    let gone = tree.remove_range(10..count - 10);
    assert!(gone.len() < 4 * FANOUT, "{} branches", gone.len());
    assert_eq!(tree.len(), 20);
    check_shape(&tree);
}

/// Seeks a number of eight bytes at the start of an item.
struct ByNumber(u64);

fn number(item: &[u8]) -> u64 {
    u64::from_be_bytes(*item.first_chunk().expect("eight bytes"))
}

impl Seek for ByNumber {
    fn branch(&mut self, inner: &Inner) -> usize {
        inner.seek(|bound| bound[0].cmp(&self.0))
    }

    fn within(&mut self, page: &Page) -> (usize, bool) {
        let at = (0..page.len()).find(|at| number(page.get(*at)) >= self.0).unwrap_or(page.len());
        (at, at < page.len() && number(page.get(at)) == self.0)
    }
}

/// Items lie between the bounds of their branches.
fn check_bounds(tree: &Tree, from: u64, to: u64) {
    match tree.node() {
        Node::Page(page) => {
            assert!(
                (0..page.len()).all(|at| (from..to).contains(&number(page.get(at)))),
                "inside {from}..{to}"
            );
        }
        Node::Inner(inner) => {
            for (index, branch) in inner.branches.iter().enumerate() {
                let from = if index == 0 { from } else { branch.bound[0] };
                let to = inner.branches.get(index + 1).map_or(to, |next| next.bound[0]);
                check_bounds(&branch.node, from, to);
            }
        }
    }
}

/// Whole runs of a tree of three levels come and go, so that inner nodes are split, merged and removed,
/// mostly at their ends.
#[test]
fn bounds_hold_while_nodes_are_split_and_merged() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let (mut tree, mut plain) = (Tree::new(), std::collections::BTreeSet::new());
    let all = if cfg!(miri) { 1000 } else { 30_000 };
    for round in 0..if cfg!(miri) { 4 } else { 40 } {
        let (from, len) = (random.below(all), 1 + random.below(all / 2));
        let adds = random.below(2) == 0 || round < 3;
        for at in 0..len {
            let at = (from + if random.below(2) == 0 { at } else { len - 1 - at }) as u64;
            let item = [&at.to_be_bytes()[..], &[b'x'; 500]].concat();
            let bound = |item: &[u8]| [number(item), 0];
            tree.change(&mut ByNumber(at), |page, position, found| match (adds, found) {
                (true, false) => ((), insert(page, position, &[&item], bound)),
                (false, true) => {
                    page.remove(position, position + 1);
                    ((), Vec::new())
                }
                _ => ((), Vec::new()),
            });
            if adds {
                plain.insert(at)
            } else {
                plain.remove(&at)
            };
        }
        check_shape(&tree);
        check_bounds(&tree, 0, u64::MAX);
        assert!(tree.iter().map(number).eq(plain.iter().copied()), "round {round}");
    }
}
