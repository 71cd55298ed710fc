use std::collections::{BTreeMap, BTreeSet};

use evenkeel_testkit::random::{Random, fresh_seed};

use super::*;

type Texts = Vec<Vec<u8>>;

/// A stream in plain containers.
#[derive(Clone, Default)]
struct Plain {
    entries: BTreeMap<StreamId, Texts>,
    last_id: StreamId,
    max_deleted_id: StreamId,
    added: u64,
    groups: BTreeMap<Vec<u8>, PlainGroup>,
}

#[derive(Clone, Default)]
struct PlainGroup {
    consumers: BTreeSet<Vec<u8>>,
    pending: BTreeMap<StreamId, (Vec<u8>, Delivery)>,
}

fn texts(fields: &Texts) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
    fields.iter().map(|text| &text[..])
}

fn flat(entry: &Entry<'_>) -> Texts {
    entry.fields().flat_map(|(name, value)| [name.to_vec(), value.to_vec()]).collect()
}

#[track_caller]
fn check(stream: &Stream, plain: &Plain) {
    stream.verify();
    let log = stream.log();
    assert_eq!(
        (stream.len(), log.last_id(), log.max_deleted_id(), log.added()),
        (plain.entries.len() as u64, plain.last_id, plain.max_deleted_id, plain.added)
    );
    let all = || stream.entries().range(0..u64::MAX);
    assert!(all().map(|entry| (entry.id, flat(&entry))).eq(plain.entries.clone()));
    assert!(all().rev().map(|entry| entry.id).eq(plain.entries.keys().rev().copied()));
    assert_eq!(stream.groups_len(), plain.groups.len());
    for ((name, group), (plain_name, plain)) in stream.groups().zip(&plain.groups) {
        assert_eq!(name, plain_name);
        assert!(group.consumers().map(|(name, _)| name).eq(plain.consumers.iter().map(|name| &name[..])));
        let pending = group.pending_range(StreamId::MIN, StreamId::MAX);
        let pending = pending.map(|one| (one.id, (one.consumer.to_vec(), one.delivery)));
        assert!(pending.eq(plain.pending.clone()));
    }
}

/// An entry of the usual fields, or of other fields.
fn fields(random: &mut Random) -> Texts {
    let text = |random: &mut Random, len| vec![b'a' + random.below(26) as u8; random.below(len)];
    match random.below(40) {
        0..=30 => vec![b"name".to_vec(), text(random, 20), b"other".to_vec(), text(random, 200)],
        31..=36 => vec![b"name".to_vec(), text(random, 20)],
        37 => vec![text(random, 5000), text(random, 200)],
        38 => vec![text(random, 20), text(random, 9000)],
        _ => (0..2 * (1 + random.below(60))).map(|_| text(random, 30)).collect(),
    }
}

struct Round<'r> {
    random: &'r mut Random,
    stream: Stream,
    plain: Plain,
}

impl Round<'_> {
    fn id(&mut self) -> StreamId {
        match self.plain.entries.len() {
            0 => StreamId::new(1, 1),
            len if self.random.below(8) > 0 => {
                let at = self.random.below(len);
                *self.plain.entries.keys().nth(at).expect("below the number")
            }
            _ => StreamId::new(self.random.below(3000) as u64, self.random.below(3) as u64),
        }
    }

    fn name(&mut self, prefix: &str, count: usize) -> Vec<u8> {
        format!("{prefix}{}", self.random.below(count)).into_bytes()
    }

    fn append(&mut self) {
        let last = self.plain.last_id;
        let id = match self.random.below(4) {
            0 => StreamId::new(last.ms, last.seq + 1),
            1 => StreamId::new(last.ms + 1 + self.random.below(300) as u64, self.random.below(3) as u64),
            2 => StreamId::new(last.ms + 1, 0),
            _ => StreamId::new(last.ms, last.seq + 1 + self.random.below(70_000) as u64),
        };
        let fields = fields(self.random);
        let limits = NodeLimits::new(self.random.below(150), self.random.below(3) * 2000);
        assert!(self.stream.append(id, texts(&fields), limits).is_some());
        assert!(self.stream.append(id, texts(&fields), limits).is_none(), "an id comes once");
        self.plain.entries.insert(id, fields);
        (self.plain.last_id, self.plain.added) = (id, self.plain.added + 1);
    }

    fn remove(&mut self) {
        let id = self.id();
        let was_there = self.plain.entries.remove(&id).is_some();
        assert_eq!(self.stream.delete(id), was_there);
        if was_there {
            self.plain.max_deleted_id = self.plain.max_deleted_id.max(id);
        }
    }

    fn trim(&mut self) {
        let len = self.plain.entries.len();
        let most = if self.random.below(10) == 0 { len } else { len.min(7) };
        let count = self.random.below(most + 1);
        let whole = self.stream.entries().whole_pages(count as u64);
        assert!(whole <= count as u64);
        let count = if self.random.below(2) == 0 { count } else { whole as usize };
        drop(self.stream.trim(count as u64));
        (0..count).for_each(|_| _ = self.plain.entries.pop_first());
    }

    fn look(&mut self) {
        let (a, b) = (self.id(), self.id());
        let (from, to) = (a.min(b), a.max(b));
        let entries = self.stream.entries();
        let range = entries.range(entries.positions(from, to)).map(|entry| entry.id);
        assert!(range.eq(self.plain.entries.range(from..=to).map(|(id, _)| *id)));
        assert_eq!(entries.get(a).map(|entry| flat(&entry)), self.plain.entries.get(&a).cloned());
        let first = self.plain.entries.keys().next();
        assert_eq!(self.stream.log().first_id(), first.copied().unwrap_or_default());
        assert_eq!(entries.last().map(|entry| entry.id).as_ref(), self.plain.entries.keys().next_back());
    }

    fn change_groups(&mut self) {
        let name = self.name("group", 4);
        if self.random.below(5) > 0 {
            let added = self.stream.add_group(&name, Group::new(StreamId::MIN, None));
            assert_eq!(added, !self.plain.groups.contains_key(&name));
            self.plain.groups.entry(name).or_default();
        } else {
            assert_eq!(self.stream.remove_group(&name).is_some(), self.plain.groups.remove(&name).is_some());
        }
    }

    fn change_consumers(&mut self) {
        let (name, consumer) = (self.name("group", 4), self.name("consumer", 150));
        let goes = self.random.below(3) == 0;
        let Some((group, _)) = self.stream.group_mut(&name) else { return };
        let plain = self.plain.groups.get_mut(&name).expect("a group like it");
        if goes {
            let removed = group.remove_consumer(&consumer).map(|(pending, _)| pending);
            let before = plain.pending.len();
            plain.pending.retain(|_, (owner, _)| *owner != consumer);
            let gone = (before - plain.pending.len()) as u64;
            assert_eq!(removed, plain.consumers.remove(&consumer).then_some(gone));
        } else {
            assert_eq!(group.add_consumer(&consumer, 7), plain.consumers.insert(consumer));
        }
    }

    fn change_pending(&mut self) {
        let (id, name, pick) = (self.id(), self.name("group", 4), self.random.below(1000));
        let delivery = Delivery { at_ms: self.random.below(5000) as u64, count: 1 + pick as u64 % 300 };
        let Some((group, _)) = self.stream.group_mut(&name) else { return };
        let plain = self.plain.groups.get_mut(&name).expect("a group like it");
        let Some(consumer) = plain.consumers.iter().nth(pick % plain.consumers.len().max(1)).cloned() else {
            return;
        };
        match pick % 5 {
            0 => {
                let ids: Vec<StreamId> = self.plain.entries.range(id..).take(20).map(|(id, _)| *id).collect();
                group.deliver(&consumer, ids.iter().copied(), 77);
                let first = Delivery { at_ms: 77, count: 1 };
                ids.into_iter().for_each(|id| _ = plain.pending.insert(id, (consumer.clone(), first)));
            }
            1 | 2 => {
                group.give(id, &consumer, delivery);
                plain.pending.insert(id, (consumer, delivery));
            }
            _ => assert_eq!(group.forget(id), plain.pending.remove(&id).is_some()),
        }
    }

    fn step(&mut self, growing: bool) {
        match self.random.below(20) {
            0..=7 if growing => self.append(),
            0..=4 => self.remove(),
            5 => self.trim(),
            8 | 9 => self.remove(),
            10 | 11 => self.look(),
            12 => self.change_groups(),
            13 | 14 => self.change_consumers(),
            _ => self.change_pending(),
        }
    }
}

/// Random operations, with clones taken at random moments that must keep their content.
#[test]
fn random_operations_against_plain_containers() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    for _ in 0..if cfg!(miri) { 2 } else { 10 } {
        let mut clones: Vec<(Stream, Plain)> = Vec::new();
        let mut round = Round { random: &mut random, stream: Stream::new(), plain: Plain::default() };
        for step in 0..if cfg!(miri) { 150 } else { 4000 } {
            round.step(step / 1000 % 2 == 0);
            if round.random.below(200) == 0 {
                clones.push((round.stream.clone(), round.plain.clone()));
            }
            if step % 500 == 0 {
                check(&round.stream, &round.plain);
            }
        }
        check(&round.stream, &round.plain);
        clones.iter().for_each(|(stream, plain)| check(stream, plain));
    }
}

fn stream_of(entries: u64, limits: NodeLimits) -> Stream {
    let mut stream = Stream::new();
    let fields: [&[u8]; 4] = [b"temperature", b"21.5", b"humidity", b"0.71"];
    for number in 0..entries {
        let id = StreamId::new(1_700_000_000_000 + number, 0);
        assert!(stream.append(id, fields.into_iter(), limits).is_some());
    }
    stream
}

#[test]
fn names_are_kept_once_a_page() {
    let stream = stream_of(10_000, NodeLimits::new(100, 4096));
    // Flags, two bytes of milliseconds, two values with their lengths, and the offset, without the common
    // part of a page.
    let each = stream.memory() as f64 / 10_000.0;
    assert!((14.0..20.0).contains(&each), "{each}");
    assert_eq!(stream.entries().pages(), 100);
}

#[test]
fn an_entry_tells_what_it_takes() {
    let limits = NodeLimits::new(100, 4096);
    let (mut stream, long) = (Stream::new(), vec![b'n'; 2000]);
    let mut append = |ms, name: &[u8]| {
        let fields: [&[u8]; 2] = [name, b"v"];
        stream.append(StreamId::new(ms, 0), fields.into_iter(), limits).expect("a greater id")
    };
    assert!(append(1, b"temperature") > 11, "it brings the names");
    assert!(append(2, b"temperature") < 11, "it shares them");
    assert!(append(3, &long) > 2000 && append(4, &long) > 2000, "long names are not shared");
}

#[test]
fn pages_hold_what_the_limits_admit() {
    for (entries, bytes, pages) in [(10, 0, 10), (0, 0, 1), (1, 4096, 100), (100, 1, 100), (0, 1 << 30, 1)] {
        assert_eq!(stream_of(100, NodeLimits::new(entries, bytes)).entries().pages(), pages, "{entries}");
    }
    let stream = stream_of(100, NodeLimits::new(30, 0));
    let whole = [0, 29, 30, 31, 89, 99, 100].map(|at| stream.entries().whole_pages(at));
    assert_eq!(whole, [0, 0, 30, 30, 60, 90, 100]);
}

#[test]
fn a_stream_is_there_as_soon_as_something_was_done_to_it() {
    let mut stream = Stream::new();
    assert!(stream.is_empty() && !stream.delete(StreamId::MAX) && stream.is_empty());
    let fields: [&[u8]; 2] = [b"name", b"value"];
    assert!(stream.append(StreamId::MIN, fields.into_iter(), NodeLimits::new(0, 0)).is_none());
    assert!(stream.is_empty());
    assert!(stream.append(StreamId::MAX, fields.into_iter(), NodeLimits::new(0, 0)).is_some());
    assert!(stream.delete(StreamId::MAX) && !stream.is_empty() && stream.len() == 0);
    assert_eq!((stream.log().last_id(), stream.log().first_id()), (StreamId::MAX, StreamId::MIN));
}

/// A million entries, a million of them pending: no single operation takes longer than it should.
#[test]
fn nothing_takes_long_in_a_long_stream() {
    if cfg!(miri) {
        return;
    }
    const COUNT: u64 = 1_000_000;
    let mut stream = stream_of(COUNT, NodeLimits::new(100, 4096));
    stream.add_group(b"group", Group::new(StreamId::MIN, None));
    let ids: Vec<StreamId> = stream.entries().range(0..COUNT).map(|entry| entry.id).collect();
    let (group, _) = stream.group_mut(b"group").expect("just added");
    assert!(group.add_consumer(b"a", 0) && group.add_consumer(b"b", 0));
    group.deliver(b"a", ids.iter().copied(), 1);
    let snapshot = stream.clone();
    let started = std::time::Instant::now();
    let (group, _) = stream.group_mut(b"group").expect("still there");
    for id in ids.iter().step_by(1000) {
        group.give(*id, b"b", Delivery { at_ms: 2, count: 2 });
        assert_eq!(group.pending_range(*id, StreamId::MAX).next().map(|one| one.consumer), Some(&b"b"[..]));
        assert!(group.forget(*id));
    }
    let cut = stream.trim(COUNT - 1000);
    let elapsed = started.elapsed();
    assert!(elapsed.as_millis() < 500, "3,000 operations took {elapsed:?}");
    assert!(cut.weight() > 1000, "what is to be freed was cut off");
    assert_eq!((stream.len(), snapshot.len()), (1000, COUNT));
    snapshot.verify();
    stream.verify();
}

#[test]
fn counters_stay_where_clients_can_read_them() {
    let mut stream = stream_of(2, NodeLimits::new(0, 0));
    let last_id = stream.log().last_id();
    stream.set_history(last_id, u64::MAX, StreamId::MAX);
    assert_eq!((stream.log().added(), stream.log().max_deleted_id()), (COUNT_MAX, last_id));
    let fields: [&[u8]; 2] = [b"name", b"value"];
    assert!(stream.append(StreamId::MAX, fields.into_iter(), NodeLimits::new(0, 0)).is_some());
    assert_eq!(stream.log().added(), COUNT_MAX);
    let mut group = Group::new(last_id, Some(COUNT_MAX));
    stream.set_history(StreamId::MAX, COUNT_MAX, StreamId::MIN);
    group.advance(&[StreamId::MAX], stream.log());
    assert_eq!((group.entries_read(), group.lag(stream.log())), (Some(COUNT_MAX), Some(0)));
}

/// Unreferenced entries are found by walking along the lists of pending entries, without a lookup for each
/// entry.
#[test]
fn unreferenced_entries_are_those_that_are_not_referenced() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    for _ in 0..if cfg!(miri) { 5 } else { 200 } {
        let mut stream = Stream::new();
        let fields: [&[u8]; 2] = [b"name", b"value"];
        for ms in 1..=30 {
            assert!(stream.append(StreamId::new(ms, 0), fields.into_iter(), NodeLimits::new(7, 0)).is_some());
        }
        for number in 0..random.below(4) {
            let name = [b'a' + number as u8];
            stream.add_group(&name, Group::new(StreamId::new(random.below(40) as u64, 0), None));
            let (group, _) = stream.group_mut(&name).expect("just added");
            group.add_consumer(b"c", 0);
            for _ in 0..random.below(40) {
                let id = StreamId::new(1 + random.below(35) as u64, 0);
                group.give(id, b"c", Delivery { at_ms: 0, count: 1 });
            }
        }
        (0..random.below(10)).for_each(|_| _ = stream.delete(StreamId::new(random.below(30) as u64, 0)));
        for count in [0, 5, stream.len()] {
            let ids = stream.entries().range(0..count).map(|entry| entry.id);
            let expected: Vec<StreamId> = ids.filter(|id| !stream.is_referenced(*id)).collect();
            assert_eq!(stream.unreferenced(count).collect::<Vec<_>>(), expected);
        }
    }
}

/// A group that has read nothing or little prevents any removal: that is seen at once, however long the
/// stream is.
#[test]
fn what_nobody_was_given_is_not_looked_at() {
    if cfg!(miri) {
        return;
    }
    let mut stream = stream_of(1_000_000, NodeLimits::new(100, 4096));
    stream.add_group(b"behind", Group::new(StreamId::new(1_700_000_000_010, 0), None));
    stream.add_group(b"further", Group::new(StreamId::new(1_700_000_000_500, 0), None));
    let started = std::time::Instant::now();
    for _ in 0..1000 {
        assert_eq!(stream.unreferenced(u64::MAX).count(), 11);
    }
    let elapsed = started.elapsed();
    assert!(elapsed.as_millis() < 500, "1,000 looks took {elapsed:?}");
}
