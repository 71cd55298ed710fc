//! Compaction: every block moves, at any moment between two operations, and nothing else changes.

use evenkeel_slab::{Compaction, Kind as BlockKind};
use evenkeel_store::collection::stream::{NodeLimits, StreamId};
use evenkeel_store::collection::{Array, Collection, Hash, List, Set, Stream, ZSet};
use evenkeel_store::{CompactionWalk, Edit, Expire, Keyspace, Moved, SlotGuard, ThreadContext};
use evenkeel_testkit::Random;

use crate::world::{World, random, scaled};

/// Moves all blocks of the calling thread, one kind after the other, bit by bit.
#[derive(Default)]
pub(crate) struct Compactor {
    pass: Option<(Compaction, CompactionWalk)>,
    is_pages_turn: bool,
    pub(crate) moved: Moved,
    pub(crate) passes: usize,
}

impl Compactor {
    /// Does a part of the work: some visits of slots.
    pub(crate) fn step(&mut self, keyspace: &Keyspace, ctx: &mut ThreadContext, random: &mut Random) {
        let Some((mut compaction, mut walk)) = self.pass.take() else {
            self.is_pages_turn = !self.is_pages_turn;
            let kind = if self.is_pages_turn { BlockKind::Page } else { BlockKind::Entry };
            let mut compaction = Compaction::new(kind);
            compaction.survey(|| false);
            compaction.choose_all();
            compaction.mark(|| false);
            self.pass = Some((compaction, CompactionWalk::default()));
            return;
        };
        keyspace.enter(ctx);
        let mut guard = keyspace.hold_none(ctx);
        let has_more = guard.compact(&compaction, &mut walk, &mut self.moved, || random.chance(30));
        drop(guard);
        keyspace.leave(ctx);
        if has_more {
            self.pass = Some((compaction, walk));
        } else {
            self.passes += 1;
            compaction.end(|| false);
        }
    }

    /// Goes on to the end of a pass.
    fn finish(&mut self, world: &mut World, random: &mut Random) {
        let passes = self.passes;
        while self.passes == passes {
            self.step(&world.keyspace, &mut world.ctx, random);
        }
    }
}

fn element(random: &mut Random) -> Vec<u8> {
    let len = if random.chance(2) { random.below(6000) } else { random.below(60) };
    let mut element = vec![random.draw() as u8; len];
    element.extend((random.draw() as u32 % 5000).to_string().into_bytes());
    element
}

/// Changes a collection of the type of the key's name.
fn change(world: &mut World, number: usize, random: &mut Random, changes: usize) {
    let name = format!("{}:{number}", number % 6).into_bytes();
    let hasher = world.keyspace.hasher.clone();
    let now = world.ctx.now_ms;
    world.one(0, &name, |guard, key| {
        for _ in 0..changes {
            let (element, at) = (element(random), random.draw() % 3000);
            match number % 6 {
                0 => edit(guard, key, |list: &mut List| list.push_back(&element)),
                1 => edit(guard, key, |set: &mut Set| set.insert(&hasher, &element)),
                2 => edit(guard, key, |set: &mut ZSet| set.insert(&hasher, &element, at as f64)),
                3 => edit(guard, key, |hash: &mut Hash| {
                    let expire = if at < 100 { Expire::At(now + 1_000_000) } else { Expire::Clear };
                    hash.set(&hasher, now, &element, b"value", expire);
                }),
                4 => edit(guard, key, |array: &mut Array| array.set(at, &element)),
                _ => edit(guard, key, |stream: &mut Stream| {
                    let id = StreamId::new(stream.log().last_id().ms + 1, 0);
                    let fields = [&b"field"[..], &element];
                    stream.append(id, fields.into_iter(), NodeLimits::new(100, 4096));
                }),
            }
        }
    });
}

fn edit<T: Collection, R>(
    guard: &mut SlotGuard<'_>,
    key: &evenkeel_store::Key<'_>,
    f: impl FnOnce(&mut T) -> R,
) {
    guard.edit(key, |edit: &mut Edit<'_, T>| drop(f(edit))).expect("the key has this type");
}

/// All that a collection has in it.
fn content(world: &mut World, name: &[u8]) -> Vec<Vec<u8>> {
    let number = name[0] - b'0';
    world.one(0, name, |guard, key| {
        fn of<T: Collection>(
            guard: &mut SlotGuard<'_>,
            key: &evenkeel_store::Key<'_>,
            f: impl FnOnce(&T) -> Vec<Vec<u8>>,
        ) -> Vec<Vec<u8>> {
            f(&guard.collection::<T>(key).expect("this type").expect("it is there"))
        }
        match number {
            0 => of(guard, key, |list: &List| list.range(0..u64::MAX).map(<[u8]>::to_vec).collect()),
            1 => of(guard, key, |set: &Set| set.iter().map(|member| member.to_vec()).collect()),
            2 => of(guard, key, |set: &ZSet| {
                let item = |(member, score): (&[u8], f64)| [member, &score.to_le_bytes()].concat();
                set.range(0..u64::MAX).map(item).collect()
            }),
            3 => of(guard, key, |hash: &Hash| {
                let item = |field: evenkeel_store::collection::Field<'_>| {
                    [field.name, field.value, format!("{:?}", field.deadline).as_bytes()].concat()
                };
                hash.fields().map(item).collect()
            }),
            4 => of(guard, key, |array: &Array| {
                let item = |(index, value): (u64, &[u8])| [&index.to_le_bytes(), value].concat();
                array.range(0..u64::MAX).map(item).collect()
            }),
            _ => of(guard, key, |stream: &Stream| {
                let item = |entry: evenkeel_store::collection::stream::Entry<'_>| {
                    let fields = entry.fields().flat_map(|(name, value)| [name, value]);
                    [format!("{:?}", entry.id).as_bytes(), &fields.collect::<Vec<_>>().concat()].concat()
                };
                stream.entries().range(0..u64::MAX).map(item).collect()
            }),
        }
    })
}

/// Collections of all types and sizes, and copies that share their pages, keep their content.
#[test]
fn collections_keep_their_content() {
    let random = &mut random("collections_keep_their_content");
    let mut world = World::new(1);
    let numbers = 0..scaled(12, 120, 300);
    let names: Vec<_> = numbers.clone().map(|number| format!("{}:{number}", number % 6)).collect();
    let mut compactor = Compactor::default();
    for round in 0..4 {
        for number in numbers.clone() {
            let most = if number % 20 < 6 { 3000 } else { 40 };
            let changes = 1 + random.below(scaled(30, most, most));
            change(&mut world, number, random, changes);
        }
        if round == 2 {
            // From here on, a part of the pages is shared.
            for name in names.iter().step_by(3) {
                let copy = format!("{name}:copy");
                world.two((0, name.as_bytes()), (0, copy.as_bytes()), |guard, from, to| {
                    guard.copy(from, to, 1);
                });
            }
        }
        let before: Vec<_> = names.iter().map(|name| content(&mut world, name.as_bytes())).collect();
        let moved = compactor.moved;
        compactor.finish(&mut world, random);
        compactor.finish(&mut world, random);
        let pages = compactor.moved.blocks - moved.blocks;
        assert!(pages > names.len() as u64, "{pages} blocks were moved");
        world.verify();
        for (name, before) in names.iter().zip(before) {
            assert_eq!(content(&mut world, name.as_bytes()), before, "{name}");
        }
    }
    assert!(!compactor.moved.has_failed);
}

/// A page that somebody else has a reference to stays where it is.
#[test]
fn shared_pages_stay() {
    let random = &mut random("shared_pages_stay");
    let mut world = World::new(1);
    for number in 0..6 {
        change(&mut world, number, random, 2000);
        let name = format!("{number}:{number}");
        world.two((0, name.as_bytes()), (0, format!("{name}:copy").as_bytes()), |guard, from, to| {
            guard.copy(from, to, 1);
        });
    }
    let mut compactor = Compactor::default();
    compactor.finish(&mut world, random);
    assert_eq!((compactor.moved.blocks, compactor.passes), (0, 1), "all pages are shared");
    for number in 0..6 {
        let name = format!("{number}:{number}:copy");
        assert!(world.one(0, name.as_bytes(), |guard, key| guard.remove(key)));
    }
    world.lazy_free.clear();
    compactor.finish(&mut world, random);
    compactor.finish(&mut world, random);
    assert!(compactor.moved.blocks > 100, "none is shared any more: {:?}", compactor.moved);
}

/// Tables of slots of all sizes: a directory, segments with and without deadlines, entries of all lengths.
#[test]
fn slots_of_all_sizes_move() {
    let random = &mut random("slots_of_all_sizes_move");
    let mut world = World::new(2);
    let keys = scaled(100, 20_000, 60_000);
    let name = |at: usize| match at % 3 {
        0 => format!("{{tag}}{at}"),
        _ => format!("key:{at}"),
    };
    let value = |at: usize| vec![at as u8; at * 7 % 300];
    for at in 0..keys {
        let expire = if at % 5 == 0 { Expire::At(u64::MAX) } else { Expire::Clear };
        world.set((at % 2) as u32, name(at).as_bytes(), &value(at), expire);
    }
    let mut compactor = Compactor { is_pages_turn: true, ..Compactor::default() };
    compactor.finish(&mut world, random);
    assert!(compactor.moved.blocks > keys as u64, "entries and tables: {:?}", compactor.moved);
    assert!(!compactor.moved.has_failed);
    world.verify();
    for at in 0..keys {
        assert_eq!(world.get((at % 2) as u32, name(at).as_bytes()), Some(value(at)));
    }
    assert_eq!(world.timed_len(0) + world.timed_len(1), keys.div_ceil(5));
}
