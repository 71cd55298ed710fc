//! A list of chunks, named by their numbers, whose links lie in the chunks' descriptions.

use std::cell::Cell;

/// No chunk.
const NONE: u32 = u32::MAX;

/// The neighbours of a chunk in a list, which is a circle.
pub(crate) struct Links {
    previous: Cell<u32>,
    next: Cell<u32>,
}

/// A list: its first chunk. Each call gets a function that finds the links of a chunk, always the same one
/// for a list.
#[derive(Debug)]
pub(crate) struct List(u32);

impl List {
    pub(crate) const EMPTY: List = List(NONE);

    /// The chunk that was added last, or to which the list was turned.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.0 != NONE).then_some(self.0)
    }

    /// Adds, at the front, a chunk that is in no list with these links.
    pub(crate) fn push(&mut self, links: impl Fn(u32) -> &'static Links, chunk: u32) {
        let own = links(chunk);
        if self.0 == NONE {
            own.previous.set(chunk);
            own.next.set(chunk);
        } else {
            let next = links(self.0);
            let previous = next.previous.replace(chunk);
            links(previous).next.set(chunk);
            own.previous.set(previous);
            own.next.set(self.0);
        }
        self.0 = chunk;
    }

    /// Appends a list with the same links.
    pub(crate) fn append(&mut self, links: impl Fn(u32) -> &'static Links, other: List) {
        match (self.0, other.0) {
            (_, NONE) => {}
            (NONE, first) => self.0 = first,
            (first, second) => {
                let (one, two) = (links(first), links(second));
                let (end, last) = (one.previous.get(), two.previous.get());
                links(end).next.set(second);
                two.previous.set(end);
                links(last).next.set(first);
                one.previous.set(last);
            }
        }
    }

    /// Takes a chunk of this list out.
    pub(crate) fn remove(&mut self, links: impl Fn(u32) -> &'static Links, chunk: u32) {
        let own = links(chunk);
        let (previous, next) = (own.previous.get(), own.next.get());
        links(previous).next.set(next);
        links(next).previous.set(previous);
        if self.0 == chunk {
            self.0 = if next == chunk { NONE } else { next };
        }
    }

    /// Takes out the chunk that was added last.
    pub(crate) fn pop_newest(&mut self, links: impl Fn(u32) -> &'static Links) -> Option<u32> {
        let newest = self.first()?;
        self.remove(links, newest);
        Some(newest)
    }

    /// Takes out the chunk that was added first.
    pub(crate) fn pop_oldest(&mut self, links: impl Fn(u32) -> &'static Links) -> Option<u32> {
        let oldest = links(self.first()?).previous.get();
        self.remove(links, oldest);
        Some(oldest)
    }

    /// Turns the list until `is_wanted` accepts the first chunk, past at most `looks` chunks. Returns that
    /// chunk.
    pub(crate) fn look_for(
        &mut self,
        links: impl Fn(u32) -> &'static Links,
        looks: usize,
        mut is_wanted: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        let end = self.first()?;
        for _ in 0..looks {
            if is_wanted(self.0) {
                return Some(self.0);
            }
            self.0 = links(self.0).next.get();
            if self.0 == end {
                break;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use evenkeel_testkit::Random;

    use super::*;

    #[test]
    fn random_operations_match_a_plain_queue() {
        const LEN: usize = 20;
        let table = || (0..LEN).map(|_| Links { previous: Cell::new(7), next: Cell::new(7) });
        let table: &'static [Links] = Vec::leak(table().collect());
        let links = |chunk: u32| &table[chunk as usize];
        let mut random = Random::new(1);
        let (mut list, mut plain) = (List::EMPTY, VecDeque::new());
        for _ in 0..if cfg!(miri) { 300 } else { 30_000 } {
            let chunk = random.below(LEN) as u32;
            match random.below(5) {
                0 | 1 if !plain.contains(&chunk) => {
                    list.push(links, chunk);
                    plain.push_front(chunk);
                }
                0 if random.chance(10) => {
                    list.remove(links, chunk);
                    plain.retain(|it| *it != chunk);
                }
                1 if random.chance(20) => {
                    let mut other = List::EMPTY;
                    let others: Vec<u32> = (0..LEN as u32).filter(|it| !plain.contains(it)).take(3).collect();
                    others.iter().for_each(|it| other.push(links, *it));
                    list.append(links, other);
                    plain.extend(others.into_iter().rev());
                }
                2 => assert_eq!(list.pop_newest(links), plain.pop_front()),
                3 => assert_eq!(list.pop_oldest(links), plain.pop_back()),
                4 => {
                    let looks = random.below(LEN + 3);
                    let found = list.look_for(links, looks, |it| it == chunk);
                    let wanted = plain.iter().take(looks).position(|it| *it == chunk);
                    assert_eq!(found, wanted.map(|_| chunk));
                    let passed = wanted.unwrap_or(looks.min(plain.len()));
                    plain.rotate_left(passed);
                }
                _ => {}
            }
            assert_eq!(list.first(), plain.front().copied());
        }
    }
}
