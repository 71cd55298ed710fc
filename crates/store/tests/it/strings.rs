//! Strings: the place of their bytes, and shared memory.

use std::panic::{AssertUnwindSafe, catch_unwind};

use evenkeel_store::rope::{self, Bytes, CHUNK, Chunk, FLAT_MAX, Rope};
use evenkeel_store::{Edited, Expire, Key, Made, SlotGuard, Str, WrongType};

use crate::memory::guard as held_memory;
use crate::world::World;

fn is_raw(world: &mut World, key: &[u8]) -> bool {
    world.one(0, key, |guard, key| guard.peek(key).expect("there").is_raw())
}

fn append(world: &mut World, key: &[u8], bytes: &[u8]) -> usize {
    world.one(0, key, |guard, key| guard.append(key, bytes)).expect("a string")
}

/// OBJECT ENCODING distinguishes edited values; these are the replies of a Redis server.
#[test]
fn edited_values_are_raw() {
    let mut world = World::new(1);
    assert_eq!(append(&mut world, b"appended", b"12"), 2);
    assert!(!is_raw(&mut world, b"appended"), "APPEND to nothing is SET");
    assert_eq!(append(&mut world, b"appended", b"3"), 3);
    assert!(is_raw(&mut world, b"appended"));
    world.set(0, b"appended", b"456", Expire::Clear);
    assert!(!is_raw(&mut world, b"appended"));
    let len = world.one(0, b"range", |guard, key| guard.write_range(key, 3, b"abc"));
    assert_eq!(len, Ok(6));
    assert!(is_raw(&mut world, b"range"));
    assert_eq!(world.get(0, b"range"), Some(b"\0\0\0abc".to_vec()));
}

/// PFADD changes a few of many bytes in place; a longer value replaces the string and keeps its deadline.
#[test]
fn flat_strings_are_edited_where_they_lie() {
    let mut world = World::new(1);
    let dirty = |world: &World| world.keyspace.total().dirty;
    let edit = |world: &mut World, key: &[u8], changes, instead: Option<&[u8]>| {
        let edited = Edited { changes, instead: instead.map(<[u8]>::to_vec) };
        world.one(0, key, |guard, key| {
            guard.edit_flat::<WrongType>(key, |bytes| {
                bytes[0] = b'X';
                Ok(edited)
            })
        })
    };
    assert_eq!(edit(&mut world, b"key", 1, None), Ok(None));
    world.set(0, b"key", b"string", Expire::At(u64::MAX));
    let before = dirty(&world);
    let refuse = |guard: &mut SlotGuard<'_>, key: &Key<'_>| guard.edit_flat(key, |_| Err(WrongType));
    assert_eq!(world.one(0, b"key", refuse), Err(WrongType));
    assert!(!is_raw(&mut world, b"key"));
    assert_eq!(edit(&mut world, b"key", 3, None), Ok(Some(3)));
    assert_eq!((world.get(0, b"key"), dirty(&world)), (Some(b"Xtring".to_vec()), before + 3));
    assert!(is_raw(&mut world, b"key"));
    for longer in [b"longer than before".to_vec(), vec![b'x'; FLAT_MAX + 1]] {
        assert_eq!(edit(&mut world, b"key", 1, Some(&longer)), Ok(Some(1)));
        assert_eq!(world.get(0, b"key"), Some(longer));
        let deadline = world.one(0, b"key", |guard, key| guard.peek(key).expect("there").deadline());
        assert_eq!(deadline, Some(u64::MAX));
    }
    assert_eq!(edit(&mut world, b"key", 1, None), Ok(None), "a rope is not flat");

    let before = dirty(&world);
    world.one(0, b"key", |guard, key| guard.remake(key, Made::Flat(b"short".to_vec()), Expire::Keep, 5));
    assert_eq!((world.get(0, b"key"), dirty(&world)), (Some(b"short".to_vec()), before + 5));
    assert!(is_raw(&mut world, b"key"));
    world.verify();
}

/// BITOP sets a new value. SETBIT of a bit that is already set counts as an edit, but changes nothing; so
/// does APPEND of nothing.
#[test]
fn created_and_unchanged_values_are_raw() {
    let mut world = World::new(1);
    let dirty = |world: &World| world.keyspace.total().dirty;
    world.set(0, b"key", b"12", Expire::At(u64::MAX));
    world.one(0, b"key", |guard, key| guard.set_made(key, Made::Flat(b"34".to_vec())));
    assert!(is_raw(&mut world, b"key"));
    assert_eq!(world.get(0, b"key"), Some(b"34".to_vec()));
    assert_eq!(world.one(0, b"key", |guard, key| guard.peek(key).expect("there").deadline()), None);

    world.set(0, b"key", b"12", Expire::At(u64::MAX));
    let before = dirty(&world);
    assert_eq!(world.one(0, b"key", |guard, key| guard.write_same(key)), Ok(()));
    assert!(is_raw(&mut world, b"key"));
    assert_eq!(dirty(&world), before);

    world.set(0, b"key", b"12", Expire::At(u64::MAX));
    let before = dirty(&world);
    assert_eq!(append(&mut world, b"key", b""), 2);
    assert!(is_raw(&mut world, b"key"));
    assert_eq!(dirty(&world), before + 1);
    world.verify();
}

/// The result of INCRBYFLOAT is a text under any name and deadline, until it is written to.
#[test]
fn texts_stay_texts_until_written_to() {
    let mut world = World::new(1);
    let is_text = |world: &mut World, key: &[u8]| {
        world.one(0, key, |guard, key| guard.peek(key).expect("there").is_text())
    };
    world.set(0, b"key", b"1", Expire::At(u64::MAX));
    world.one(0, b"key", |guard, key| guard.set_text(key, b"3", Expire::Keep));
    assert!(is_text(&mut world, b"key"));
    assert!(world.one(0, b"key", |guard, key| guard.set_deadline(key, None)));
    world.two((0, b"key"), (0, b"copy"), |guard, key, copy| guard.copy(key, copy, 0));
    world.two((0, b"key"), (0, b"name"), |guard, key, name| guard.rename(key, name));
    assert!(is_text(&mut world, b"copy") && is_text(&mut world, b"name"));
    world.set(0, b"copy", b"4", Expire::Clear);
    assert!(!is_text(&mut world, b"copy"));
    world.set(0, b"name", b"55", Expire::Clear);
    assert!(!is_text(&mut world, b"name"));
    world.verify();
}

#[test]
fn a_built_rope_is_stored_unchanged() {
    let mut world = World::new(1);
    let chunk = Chunk::from(Bytes::of(b'c', CHUNK));
    let rope = Rope::from_chunks(2 * CHUNK + 3, vec![None, Some(chunk.clone()), rope::chunk_of(b"end")]);
    world.one(0, b"new", |guard, key| guard.set_made(key, Made::Rope(rope.clone())));
    world.set(0, b"old", &vec![b'o'; CHUNK], Expire::At(u64::MAX));
    world.one(0, b"old", |guard, key| guard.set_made(key, Made::Rope(rope)));
    assert_eq!(chunk.refs(), 2, "one here, one in the rope");
    let expected = [vec![0; CHUNK], vec![b'c'; CHUNK], b"end".to_vec()].concat();
    assert!(world.get(0, b"new").as_deref() == Some(&expected) && world.get(0, b"old") == Some(expected));
    world.verify();
}

#[test]
fn writing_nothing_makes_a_key_only_by_append() {
    let mut world = World::new(1);
    assert_eq!(append(&mut world, b"appended", b""), 0);
    assert_eq!(world.get(0, b"appended"), Some(Vec::new()));
    assert_eq!(world.one(0, b"range", |guard, key| guard.write_range(key, 1 << 40, b"")), Ok(0));
    assert_eq!(world.get(0, b"range"), None);
}

/// A command that panics during a write leaves the value unchanged, and no lock held.
#[test]
fn a_panic_in_a_write_leaves_the_key_alone() {
    let mut world = World::new(1);
    for len in [10, FLAT_MAX + 1] {
        let value = vec![b'v'; len];
        world.set(0, b"key", &value, Expire::Clear);
        world.keyspace.enter(&mut world.ctx);
        let key = world.keyspace.key(0, b"key");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut guard = world.keyspace.hold_one(&mut world.ctx, key.place);
            let _ = guard.write_range(&key, usize::MAX - 1, b"two bytes too many");
        }));
        assert!(panicked.is_err());
        world.keyspace.leave(&mut world.ctx);
        assert_eq!(world.get(0, b"key"), Some(value));
        world.verify();
    }
}

/// COPY of a large value takes next to no memory, and a write to either copy does not show in the other.
#[test]
fn copies_share_memory_until_written_to() {
    let before = held_memory();
    let mut world = World::new(2);
    let value = vec![b'v'; 100 * CHUNK];
    world.set(0, b"one", &value, Expire::At(u64::MAX));
    let alone = held_memory();
    world.two((0, b"one"), (1, b"other"), |guard, one, other| guard.copy(one, other, 0));
    assert!(held_memory() - alone < (600 << 10), "a database is half a megabyte, and the value is shared");
    let shared = held_memory();
    world.one(1, b"other", |guard, key| guard.write_range(key, 50 * CHUNK, b"w").expect("a string"));
    let copied = held_memory() - shared;
    assert!(copied < 2 * CHUNK as isize, "{copied} bytes for one chunk and a spine");
    assert_eq!(world.get(0, b"one"), Some(value));
    let byte = |at| world.one(1, b"other", |guard, key| guard.peek(key).expect("there").string().byte(at));
    assert_eq!([50 * CHUNK - 1, 50 * CHUNK, 50 * CHUNK + 1].map(byte), *b"vwv");
    world.one(0, b"one", |guard, key| guard.remove(key));
    world.one(1, b"other", |guard, key| guard.remove(key));
    assert_eq!(world.lazy_free.len(), 2, "values of many chunks are freed elsewhere");
    drop(world);
    assert_eq!(held_memory(), before);
}

/// The memory that a reply holds does not change.
#[test]
fn a_chunk_being_sent_is_not_written_to() {
    let mut world = World::new(1);
    world.set(0, b"key", &vec![b'v'; 3 * CHUNK], Expire::Clear);
    let sent = world.one(0, b"key", |guard, key| {
        let Some(Str::Rope(rope)) = guard.string(key).expect("a string") else { panic!("a rope") };
        rope.pieces(CHUNK..2 * CHUNK)
            .map(|piece| match piece {
                evenkeel_store::rope::Piece::Bytes(chunk, _) => chunk.clone(),
                evenkeel_store::rope::Piece::Zeros(_) => panic!("it has no holes"),
            })
            .next()
            .expect("one piece")
    });
    world.one(0, b"key", |guard, key| guard.write_range(key, CHUNK, b"written").expect("a string"));
    assert!(sent.iter().all(|byte| *byte == b'v'));
    assert_eq!(&world.get(0, b"key").expect("there")[CHUNK..CHUNK + 7], b"written");
}

/// Appending single bytes does not copy the whole string each time: chunks of 64 KiB grow by doubling.
#[test]
fn appending_bytes_is_cheap() {
    let mut world = World::new(1);
    let bytes = crate::world::scaled(100, 200_000, 1_000_000);
    let start = std::time::Instant::now();
    (0..bytes).for_each(|_| _ = append(&mut world, b"key", b"x"));
    println!("{bytes} appends of one byte: {:?}", start.elapsed());
    assert_eq!(world.get(0, b"key").expect("there").len(), bytes);
    let memory = world.one(0, b"key", |guard, key| guard.peek(key).expect("there").memory());
    assert!(memory < bytes + 3 * CHUNK / 2, "{memory}");
}
