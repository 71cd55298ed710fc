//! The journal, in every order of a few threads: its file is compiled against loom. And with real threads on
//! a keyspace: the replayed journal gives the keyspace's content.

#[path = "../../src/journal/mod.rs"]
#[allow(dead_code, unreachable_pub, unused_imports)]
mod model;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_store::journal::{Journal, Reader, Record};
use evenkeel_store::{Expire, Key, Keyspace, SLOTS, SlotGuard, ThreadContext, Watch};
use evenkeel_testkit::Random;
use loom::sync::Arc;
use loom::thread;

use crate::gate::explore;
use crate::sync::Mutex;
use crate::world::{START_MS, random, scaled};

/// The journal, slots with their number of writes, and the number of the last record.
struct Shared {
    journal: model::Journal,
    slots: Vec<Mutex<(u64, u64)>>,
}

/// Writes to a slot, and logs the slot's index and its number of writes.
fn write(shared: &Shared, buffer: &mut model::JournalBuffer, ctx: usize, slot: usize) {
    let mut writes = shared.slots[slot].lock();
    writes.0 += 1;
    let words = [slot.to_string(), writes.0.to_string()];
    buffer.push(0, words.iter().map(String::as_bytes));
    writes.1 = buffer.commit(&shared.journal, ctx, writes.1);
}

/// Parses a record.
fn written(record: model::Record<'_>) -> (usize, u64) {
    let text = std::str::from_utf8(record.bytes).expect("digits");
    let mut words = text.split("\r\n").skip(2).step_by(2);
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("two numbers");
    (number() as usize, number())
}

/// Each of `writers` writes to its slots in sequence, and publishes a page after every `page` writes. A
/// reader that sleeps when there is nothing gets all of them, the writes of each slot in order.
fn explore_writers(preemptions: usize, writers: &'static [&'static [usize]], page: usize) {
    explore(preemptions, move || {
        let slots = (0..2).map(|_| Mutex::new((0, 0))).collect();
        let shared = Arc::new(Shared { journal: model::Journal::new(writers.len()), slots });
        let reader = shared.journal.join();
        let threads: Vec<_> = writers
            .iter()
            .enumerate()
            .map(|(ctx, slots)| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let mut buffer = model::JournalBuffer::default();
                    for slots in slots.chunks(page) {
                        slots.iter().for_each(|slot| write(&shared, &mut buffer, ctx, *slot));
                        shared.journal.publish(ctx, &mut buffer);
                    }
                })
            })
            .collect();
        let total: usize = writers.iter().map(|slots| slots.len()).sum();
        read_all(&shared, reader, total as u64);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(shared.journal.unread(), 0);
    });
}

#[test]
fn two_threads_write_to_the_same_slot() {
    explore_writers(3, &[&[0], &[0]], 1);
}

#[test]
fn readers_wait_for_late_pages() {
    explore_writers(2, &[&[0, 1], &[1]], 2);
}

#[test]
fn a_buffer_follows_a_page_of_several_records() {
    explore_writers(2, &[&[0, 1, 0], &[1]], 2);
}

#[test]
fn a_thread_publishes_two_pages() {
    explore_writers(2, &[&[0, 0], &[0]], 1);
}

/// Reads until `total` records have come, and sleeps when there are none.
fn read_all(shared: &Shared, mut reader: model::Reader, total: u64) {
    let mut seen = [0, 0];
    let mut last = 0;
    loop {
        reader.read(&shared.journal, |record| {
            let (slot, writes) = written(record);
            assert_eq!(writes, seen[slot] + 1, "the writes of a slot are numbered in their order");
            assert!(record.number > last, "no record comes behind a later one");
            (seen[slot], last) = (writes, record.number);
            true
        });
        if seen.iter().sum::<u64>() == total {
            return;
        }
        reader.sleep(&shared.journal, Duration::MAX);
    }
}

/// A thread writes, two threads read: each gets everything. A page that both readers finish at the same time
/// is freed or given back, but never reused while a reader has it.
#[test]
fn two_readers_share_pages() {
    explore(2, || {
        let shared = Arc::new(Shared { journal: model::Journal::new(1), slots: vec![Mutex::new((0, 0))] });
        let [here, there] = [shared.journal.join(), shared.journal.join()];
        let other = thread::spawn({
            let shared = shared.clone();
            move || read_all(&shared, there, 2)
        });
        let writer = thread::spawn({
            let shared = shared.clone();
            move || {
                let mut buffer = model::JournalBuffer::default();
                for _ in 0..2 {
                    write(&shared, &mut buffer, 0, 0);
                    shared.journal.publish(0, &mut buffer);
                }
            }
        });
        read_all(&shared, here, 2);
        [other, writer].into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(shared.journal.unread(), 0);
    });
}

// Real threads.

/// As many as there are cores, and enough to meet on a machine with few.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(4, |cores| cores.get().max(4))
}

const KEYS: usize = 200;

/// Half of the keys share a slot.
fn name(at: usize) -> (u32, Vec<u8>) {
    let name = if at.is_multiple_of(2) { format!("{{tag}}{at}") } else { format!("key{at}") };
    (at as u32 % 2, name.into_bytes())
}

struct Writer<'a> {
    keyspace: &'a Keyspace,
    ctx: ThreadContext,
    random: Random,
    written: u64,
}

impl Writer<'_> {
    /// A batch: some commands, a single page.
    fn act(&mut self) {
        self.keyspace.enter(&mut self.ctx);
        for _ in 0..=self.random.below(4) {
            match self.random.below(500) {
                0 => self.flush(),
                1 => _ = self.keyspace.hold_none(&mut self.ctx).sweep(0, 0, SLOTS, || false),
                _ => self.write(),
            }
        }
        self.keyspace.leave(&mut self.ctx);
        if self.random.chance(10) {
            self.ctx.now_ms += 1;
        }
    }

    /// Sets and removes up to four keys in any slots.
    fn write(&mut self) {
        let names: Vec<_> = (0..=self.random.below(4)).map(|_| name(self.random.below(KEYS))).collect();
        let keys: Vec<Key<'_>> = names.iter().map(|(db, name)| self.keyspace.key(*db, name)).collect();
        let mut places = keys.iter().map(|key| key.place).collect();
        let mut guard = self.keyspace.hold(&mut self.ctx, &mut places);
        for key in &keys {
            self.written += 1;
            change(&mut guard, key, &mut self.random, self.written);
            if self.random.chance(5) {
                std::thread::yield_now(); // on few cores, threads hardly ever meet by themselves
            }
        }
    }

    fn flush(&mut self) {
        let mut guard = self.keyspace.hold_all(&mut self.ctx);
        let flushed = guard.flush(1);
        guard.log(1, [&b"FLUSHDB"[..]].into_iter());
        drop(guard);
        drop(flushed);
    }
}

fn change(guard: &mut SlotGuard<'_>, key: &Key<'_>, random: &mut Random, value: u64) {
    let db = key.place.db() as u32;
    if random.chance(25) {
        if guard.remove(key) {
            guard.log(db, [b"DEL", key.bytes].into_iter());
        }
        return;
    }
    let value = format!("{value} by {:?}", std::thread::current().id());
    let expire = if random.chance(30) { Expire::At(guard.ctx.now_ms + 3) } else { Expire::Clear };
    guard.set_string(key, value.as_bytes(), expire);
    guard.log(db, [b"SET", key.bytes, value.as_bytes()].into_iter());
}

/// Another reader comes, reads some records, and goes, repeatedly. Returns for each the record before its
/// first, its last record, and the number of its records.
fn come_and_go(keyspace: &Keyspace, seed: u64, writing: &AtomicUsize) -> Vec<(u64, u64, usize)> {
    let (mut ctx, mut random) = (keyspace.thread_context(), Random::new(seed));
    let mut stretches = Vec::new();
    while writing.load(Relaxed) > 0 {
        keyspace.enter(&mut ctx);
        let mut reader = keyspace.hold_all(&mut ctx).join_log();
        keyspace.leave(&mut ctx);
        let first = reader.last();
        let count = |reader: &mut Reader, journal: &Journal| {
            let mut count = 0;
            reader.read(journal, |record| {
                count += 1;
                assert!(record.number > first);
                true
            });
            count
        };
        let mut records = 0;
        for _ in 0..random.below(20) {
            records += count(&mut reader, &keyspace.journal);
            std::thread::yield_now();
        }
        keyspace.enter(&mut ctx);
        let mut guard = keyspace.hold_all(&mut ctx);
        guard.dismiss(reader.place());
        let last = keyspace.journal.last();
        drop(guard);
        keyspace.leave(&mut ctx);
        if random.chance(50) {
            records += count(&mut reader, &keyspace.journal);
            assert_eq!(reader.last(), last, "all of it, and nothing of what came later");
            stretches.push((first, last, records));
            assert_eq!(reader.unread(&keyspace.journal), 0);
        }
        reader.end(&keyspace.journal);
    }
    stretches
}

type Keys = HashMap<(u32, Vec<u8>), Vec<u8>>;

/// Applies a record.
fn replay(keys: &mut Keys, record: &Record<'_>) {
    let (mut db, mut rest) = (record.first_db, record.bytes);
    while let Some((command, used)) = first_command(rest) {
        rest = &rest[used..];
        match (&command[0][..], &command[1..]) {
            (b"SET", [key, value]) => drop(keys.insert((db, key.clone()), value.clone())),
            (b"DEL" | b"UNLINK", [key]) => {
                assert!(keys.remove(&(db, key.clone())).is_some(), "what is removed was there")
            }
            (b"SELECT", [to]) => db = String::from_utf8_lossy(to).parse().expect("a number"),
            (b"FLUSHDB", []) => keys.retain(|(key_db, _), _| *key_db != db),
            (b"MULTI" | b"EXEC", []) => {}
            other => panic!("nobody logs {other:?}"),
        }
    }
    assert_eq!(db, record.last_db);
}

/// The words of the first command, and its length.
fn first_command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let line = |at: usize| {
        let end = at + bytes[at..].windows(2).position(|two| two == b"\r\n").expect("a line has an end");
        let number = std::str::from_utf8(&bytes[at + 1..end]).expect("digits").parse::<usize>();
        (number.expect("a length"), end + 2)
    };
    if bytes.is_empty() {
        return None;
    }
    let (count, mut at) = line(0);
    let words = (0..count).map(|_| {
        let (len, start) = line(at);
        at = start + len + 2;
        bytes[start..start + len].to_vec()
    });
    let words = words.collect();
    Some((words, at))
}

#[test]
fn a_replayed_journal_gives_the_written_data() {
    let (mut seeds, threads) = (random("a_replayed_journal_gives_the_written_data"), threads());
    // No result may depend on the clock.
    let clock = [|| 0, clock, wrong_clock][seeds.below(3)];
    let keyspace = Keyspace::new(2, threads + 2, START_MS, seeds.draw()).with_clock(clock);
    let mut ctx = keyspace.thread_context();
    ctx.now_ms = START_MS;
    keyspace.enter(&mut ctx);
    let mut reader = keyspace.hold_all(&mut ctx).join_log();
    keyspace.leave(&mut ctx);
    let place = [reader.place()];
    let (batches, writing) = (scaled(30, 15_000, 150_000), AtomicUsize::new(threads));
    let (mut keys, mut numbers) = (Keys::new(), Vec::new());
    let mut read = |reader: &mut Reader| {
        reader.read(&keyspace.journal, |record| {
            replay(&mut keys, &record);
            numbers.push(record.number);
            true
        });
    };
    let stretches = std::thread::scope(|scope| {
        for _ in 0..threads {
            let (keyspace, writing, random) = (&keyspace, &writing, Random::new(seeds.draw()));
            let place = &place;
            let mut ctx = keyspace.thread_context();
            ctx.now_ms = START_MS;
            scope.spawn(move || {
                let mut writer = Writer { keyspace, ctx, random, written: 0 };
                (0..batches).for_each(|_| writer.act());
                writing.fetch_sub(1, Relaxed);
                place.iter().for_each(|place| keyspace.journal.wake(*place));
            });
        }
        let seed = seeds.draw();
        let (keyspace, writing) = (&keyspace, &writing);
        let other = scope.spawn(move || come_and_go(keyspace, seed, writing));
        while writing.load(Relaxed) > 0 {
            read(&mut reader);
            reader.sleep(&keyspace.journal, Duration::from_secs(60));
        }
        other.join().expect("it does not panic")
    });
    read(&mut reader);
    assert!(numbers.is_sorted());
    for (first, last, records) in stretches {
        let all = numbers.partition_point(|number| *number <= last)
            - numbers.partition_point(|number| *number <= first);
        assert_eq!(records, all, "an unbroken stretch, with nothing of what came later");
    }
    assert_eq!((reader.last(), keyspace.journal.unread()), (keyspace.journal.last(), 0), "all was read");
    ctx.now_ms = 0; // nothing is expired: only removed keys are gone
    let mut there = Keys::new();
    for at in 0..KEYS {
        let (db, bytes) = name(at);
        let key = keyspace.key(db, &bytes);
        keyspace.enter(&mut ctx);
        let mut guard = keyspace.hold_one(&mut ctx, key.place);
        let value = guard.string(&key).expect("a string").map(|value| value.bytes().into_owned());
        drop(guard);
        keyspace.leave(&mut ctx);
        if let Some(value) = value {
            there.insert((db, bytes), value);
        }
    }
    assert!(keys == there, "{} keys in the log, {} in the keyspace", keys.len(), there.len());
}

/// A clock for all threads.
fn clock() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64 / 100
}

/// A clock that jumps to and fro.
fn wrong_clock() -> u64 {
    static READINGS: AtomicUsize = AtomicUsize::new(0);
    Random::new(READINGS.fetch_add(1, Relaxed) as u64).below(1 << 20) as u64
}

/// Threads write in turns, each after it has heard of the previous write, to slots of their own: the records
/// come in that order. Other threads write as well, so that all threads' numbers differ.
#[test]
fn records_follow_the_order_of_observed_writes() {
    let threads = threads();
    let keyspace = Keyspace::new(1, threads + 2, START_MS, 1).with_clock(clock);
    let mut ctx = keyspace.thread_context();
    keyspace.enter(&mut ctx);
    let mut reader = keyspace.hold_all(&mut ctx).join_log();
    keyspace.leave(&mut ctx);
    let (turns, turn) = (scaled(20, 2_000, 20_000), AtomicUsize::new(0));
    let set = |ctx: &mut ThreadContext, name: &str, value: usize| {
        let (key, value) = (keyspace.key(0, name.as_bytes()), value.to_string());
        keyspace.enter(ctx);
        let mut guard = keyspace.hold_one(ctx, key.place);
        guard.set_string(&key, value.as_bytes(), Expire::Clear);
        guard.log(0, [b"SET", key.bytes, value.as_bytes()].into_iter());
        drop(guard);
        keyspace.leave(ctx);
    };
    let mut last = None;
    let mut read = |reader: &mut Reader| {
        reader.read(&keyspace.journal, |record| {
            let (words, _) = first_command(record.bytes).expect("a command");
            if words[1].starts_with(b"turn") {
                let turn: usize = String::from_utf8_lossy(&words[2]).parse().expect("a number");
                assert_eq!(Some(turn), last.map_or(Some(0), |last: usize| Some(last + 1)));
                last = Some(turn);
            }
            true
        });
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (turn, mut ctx, set, turns) = (&turn, keyspace.thread_context(), &set, turns);
            scope.spawn(move || {
                let mut now = 0;
                while now < turns {
                    now = turn.load(std::sync::atomic::Ordering::Acquire);
                    if now < turns && now % threads == thread {
                        set(&mut ctx, &format!("turn of {thread}"), now);
                        turn.store(now + 1, std::sync::atomic::Ordering::Release);
                    } else if thread > 0 {
                        set(&mut ctx, &format!("own of {thread}"), 0);
                    }
                    std::thread::yield_now();
                }
            });
        }
        while turn.load(Relaxed) < turns {
            read(&mut reader);
            std::thread::yield_now();
        }
    });
    read(&mut reader);
    assert_eq!(last, Some(turns - 1), "all have come");
}

/// Sets a key and logs it. The thread is inside the gate.
fn set(keyspace: &Keyspace, ctx: &mut ThreadContext, name: &str) {
    let key = keyspace.key(0, name.as_bytes());
    let mut guard = keyspace.hold_one(ctx, key.place);
    guard.set_string(&key, b"", Expire::Clear);
    guard.log(0, [b"SET", key.bytes].into_iter());
}

/// The keys of all present records, concatenated.
fn names(keyspace: &Keyspace, reader: &mut Reader) -> String {
    let mut names = Vec::new();
    reader.read(&keyspace.journal, |record| {
        let (words, _) = first_command(record.bytes).expect("a command");
        names.push(String::from_utf8_lossy(&words[1]).into_owned());
        true
    });
    names.join(" ")
}

fn keyspace_with_a_reader(clock: fn() -> u64) -> (Keyspace, [ThreadContext; 2], Reader) {
    let keyspace = Keyspace::new(1, 2, START_MS, 1).with_clock(clock);
    let [mut one, other] = [keyspace.thread_context(), keyspace.thread_context()];
    keyspace.enter(&mut one);
    let reader = keyspace.hold_all(&mut one).join_log();
    keyspace.leave(&mut one);
    (keyspace, [one, other], reader)
}

/// A slot's last write is known with the slot, also during and after a watch of its keys.
#[test]
fn a_slots_writes_need_no_clock() {
    let (keyspace, [mut one, mut other], mut reader) = keyspace_with_a_reader(|| 0);
    let (key, watch) = (keyspace.key(0, b"{s}"), std::sync::Arc::new(Watch::default()));
    keyspace.enter(&mut one);
    keyspace.enter(&mut other);
    for name in ["a", "b", "c", "{s}1"] {
        set(&keyspace, &mut one, name);
    }
    set(&keyspace, &mut other, "{s}2");
    for name in ["d", "e", "{s}3"] {
        set(&keyspace, &mut one, name);
    }
    keyspace.hold_one(&mut one, key.place).watch(&key, &watch);
    set(&keyspace, &mut other, "{s}4");
    for name in ["f", "g", "{s}5"] {
        set(&keyspace, &mut one, name);
    }
    keyspace.hold_one(&mut one, key.place).unwatch(&key, &watch);
    set(&keyspace, &mut other, "{s}6");
    // A read value's own write comes before the write that was made from it.
    let mut places = [&b"x"[..], b"{s}"].map(|name| keyspace.key(0, name).place).to_vec();
    let mut guard = keyspace.hold(&mut one, &mut places);
    guard.log(0, [b"MADE".as_slice(), b"x"].into_iter());
    drop(guard);
    set(&keyspace, &mut other, "{s}7");
    keyspace.leave(&mut one);
    keyspace.leave(&mut other);
    let mut names = names(&keyspace, &mut reader);
    names.retain(|letter| letter.is_ascii_digit() || letter == 'x');
    assert_eq!(names, "123456x7");
}

/// Between two writes of a batch, a thread may have seen another thread's write to another slot.
#[test]
fn records_come_in_the_order_of_the_clock() {
    fn counting() -> u64 {
        static READINGS: AtomicUsize = AtomicUsize::new(0);
        READINGS.fetch_add(1, Relaxed) as u64
    }
    let (keyspace, [mut one, mut other], mut reader) = keyspace_with_a_reader(counting);
    keyspace.enter(&mut one);
    set(&keyspace, &mut one, "a");
    keyspace.enter(&mut other);
    ["b", "c", "d"].into_iter().for_each(|name| set(&keyspace, &mut other, name));
    keyspace.leave(&mut other);
    assert_eq!(names(&keyspace, &mut reader), "", "what comes before is still in a draft");
    set(&keyspace, &mut one, "e");
    keyspace.leave(&mut one);
    assert_eq!(names(&keyspace, &mut reader), "a b c d e");
}

/// Before the first reader and after the last, a write takes no number, no memory and no clock reading.
#[test]
fn nothing_is_logged_without_a_reader() {
    static READINGS: AtomicUsize = AtomicUsize::new(0);
    let keyspace = Keyspace::new(1, 1, START_MS, 1).with_clock(|| READINGS.fetch_add(1, Relaxed) as u64);
    let mut ctx = keyspace.thread_context();
    let write = |ctx: &mut ThreadContext| {
        keyspace.enter(ctx);
        (0..2_000).for_each(|number| set(&keyspace, ctx, &format!("key:{number}")));
        keyspace.leave(ctx);
        (keyspace.journal.last(), keyspace.journal.published(), READINGS.load(Relaxed))
    };
    assert_eq!(write(&mut ctx), (0, 0, 0));
    keyspace.enter(&mut ctx);
    let reader = keyspace.hold_all(&mut ctx).join_log();
    keyspace.leave(&mut ctx);
    let with_reader = write(&mut ctx);
    assert!(with_reader.0 > 0 && with_reader.1 > 0 && with_reader.2 > 0, "{with_reader:?}");
    keyspace.enter(&mut ctx);
    keyspace.hold_all(&mut ctx).dismiss(reader.place());
    keyspace.leave(&mut ctx);
    reader.end(&keyspace.journal);
    let after = (keyspace.journal.last(), keyspace.journal.published(), READINGS.load(Relaxed));
    assert_eq!(write(&mut ctx), after);
}
