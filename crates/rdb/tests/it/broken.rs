//! Changed payloads: each must be refused, or be a valid value.

use std::time::{Duration, Instant};

use evenkeel_rdb::{Decoder, Error, Feed, Object, Reason, Slice, Version};
use evenkeel_testkit::random::{Random, fresh_seed};

use crate::golden;
use crate::model::{Value, hex, open, read, seal, styles};

/// Duration of the seeded loop.
const LOOP: Duration = Duration::from_secs(2);

fn decode(body: &[u8], version: u16) -> Result<Value, Error> {
    let value = read(Decoder::new(Slice::new(body), version));
    let fed = read(Decoder::new(Feed::new(body, Some(body.len() as u64)), version));
    assert!(value == fed, "a reader and a slice differ: {}", hex(body));
    value
}

/// Checks that an accepted value can be written, and is read back equal.
fn check(body: &[u8], version: u16) -> bool {
    let Ok(value) = decode(body, version) else { return false };
    let [packed, plain, _] = styles(Version::V80);
    for style in [packed, plain] {
        let payload = seal(&value, style).expect("version 80 has a form for everything");
        assert_eq!(open(&payload), value, "{}", hex(body));
    }
    true
}

/// Visits each golden payload with each byte changed.
pub(crate) fn with_one_byte_changed(mut visit: impl FnMut(&golden::Golden, &[u8])) {
    for golden in golden::all() {
        let mut body = golden.body().to_vec();
        for at in 0..body.len() {
            let was = body[at];
            let others = [!was, was ^ 1, was ^ 0x80, was.wrapping_add(1), was.wrapping_sub(1), 0, 0xff, 0x40];
            for byte in others.into_iter().filter(|byte| *byte != was) {
                body[at] = byte;
                visit(&golden, &body);
            }
            body[at] = was;
        }
    }
}

#[test]
fn every_changed_byte_is_refused_or_gives_a_valid_value() {
    let (mut all, mut accepted) = (0, 0);
    with_one_byte_changed(|golden, body| {
        all += 1;
        accepted += usize::from(check(body, golden.version()));
    });
    println!("{accepted} of {all} accepted");
    assert!(all > 30_000 && accepted > all / 10 && accepted < all / 2, "{accepted} of {all}");
}

#[test]
fn every_truncation_is_refused() {
    for golden in golden::all() {
        for len in 0..golden.body().len() {
            assert!(decode(&golden.body()[..len], golden.version()).is_err(), "{} cut at {len}", golden.name);
        }
        let longer = [golden.body(), b"\0"].concat();
        let error = decode(&longer, golden.version()).expect_err("one byte more");
        assert_eq!((error.reason, error.at), (Reason::Trailing, golden.body().len() as u64));
    }
}

#[test]
fn random_changes_removals_and_insertions_are_survived() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let corpus = golden::all();
    let (start, mut accepted, mut all) = (Instant::now(), 0, 0);
    while start.elapsed() < LOOP {
        let golden = &corpus[random.below(corpus.len())];
        let mut body = golden.body().to_vec();
        for _ in 0..1 + random.below(4) {
            let other = &corpus[random.below(corpus.len())];
            mutate(&mut random, &mut body, other.body());
        }
        all += 1;
        accepted += usize::from(check(&body, golden.version()));
    }
    println!("{accepted} of {all} accepted");
}

pub(crate) fn mutate(random: &mut Random, body: &mut Vec<u8>, other: &[u8]) {
    if body.is_empty() {
        return body.extend_from_slice(other);
    }
    let at = random.below(body.len());
    match random.below(6) {
        0 | 1 => body[at] = random.draw() as u8,
        2 => {
            body[at] =
                random.pick(&[&[0x00][..], &[0xff], &[0x7f], &[0x80], &[0x81], &[0xc3], &[0xf0], &[0xfe]])[0]
        }
        3 => drop(body.drain(at..body.len().min(at + 1 + random.below(4)))),
        4 => drop(body.splice(at..at, random.bytes(4))),
        _ => {
            let start = random.below(other.len());
            let end = other.len().min(start + random.below(24));
            body.splice(at..at, other[start..end].iter().copied());
        }
    }
}

/// A body of the given type and bytes, decoded as version 10.
#[track_caller]
fn refused(body: &[u8], reason: Reason) {
    assert_eq!(decode(body, 10).expect_err("it is broken").reason, reason);
}

/// A listpack of these elements, as a string.
fn listpack(elements: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    for element in elements {
        body.push(0x80 | element.len() as u8);
        body.extend_from_slice(element);
        body.push(element.len() as u8 + 1);
    }
    let total = body.len() as u8 + 7;
    [&[total, total, 0, 0, 0, elements.len() as u8, 0][..], &body, &[0xff]].concat()
}

#[test]
fn impossible_values_are_named() {
    let with = |kind: u8, rest: &[u8]| [&[kind], rest].concat();
    // Empty collections.
    for kind in [1, 2, 3, 4, 5, 14, 18] {
        refused(&[kind, 0], Reason::Empty);
    }
    for kind in [16, 17, 20] {
        refused(&with(kind, &listpack(&[])), Reason::Empty);
    }
    refused(b"\x0b\x08\x02\0\0\0\0\0\0\0", Reason::Empty);
    refused(&with(18, &[&b"\x01\x02"[..], &listpack(&[])].concat()), Reason::Empty);
    // Duplicates, as text or as integer.
    refused(b"\x02\x02\x01a\x01a", Reason::Duplicate);
    refused(b"\x02\x02\xc0\x05\x015", Reason::Duplicate);
    refused(b"\x04\x02\x01a\x01x\x01a\x01y", Reason::Duplicate);
    refused(&with(20, &listpack(&[b"a", b"b", b"a"])), Reason::Duplicate);
    refused(&with(17, &listpack(&[b"a", b"1.5", b"a", b"2.5"])), Reason::Duplicate);
    refused(b"\x05\x02\x01a\0\0\0\0\0\0\0\0\x01a\0\0\0\0\0\0\xf0\x3f", Reason::Duplicate);
    // Order, scores, pairs.
    refused(&with(17, &listpack(&[b"a", b"2.5", b"b", b"1.5"])), Reason::Order);
    refused(&with(17, &listpack(&[b"b", b"1.5", b"a", b"1.5"])), Reason::Order);
    refused(&with(17, &listpack(&[b"a", b"nan"])), Reason::Score);
    refused(&with(17, &listpack(&[b"a", b"one"])), Reason::Score);
    refused(&with(17, &listpack(&[b"a", b"1.5", b"b"])), Reason::Unpaired);
    refused(&with(16, &listpack(&[b"a"])), Reason::Unpaired);
    refused(b"\x03\x01\x01a\xfd", Reason::Score);
    refused(b"\x03\x01\x01a\x01x", Reason::Score);
    refused(b"\x05\x01\x01a\0\0\0\0\0\0\xf8\x7f", Reason::Score);
    // Impossible counts, and items of the wrong form.
    refused(b"\x02\x80\xff\xff\xff\xff\x01a", Reason::TooLong);
    refused(b"\x04\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a\x01a", Reason::TooLong);
    refused(b"\x05\x02\x01a\0\0\0\0\0\0\0\0\x01b", Reason::TooLong); // 12 bytes, and two members take 18
    refused(b"\x00\x80\xff\xff\xff\xff", Reason::TooLong);
    refused(b"\x10\xc0\x05", Reason::StringForm);
    refused(b"\x02\xc0\x05", Reason::Length);
    refused(b"\x12\x01\x03\x01a", Reason::Container);
    refused(b"\x07", Reason::ModuleType);
}

#[test]
fn duplicates_are_left_to_the_caller_on_request() {
    for body in [&b"\x02\x03\x01a\x01b\x01a"[..], &[&[20][..], &listpack(&[b"a", b"b", b"a"])].concat()] {
        let mut decoder = Decoder::new(Slice::new(body), 11);
        decoder.leave_duplicates();
        let Ok(Object::Set(mut members)) = decoder.object() else { panic!("a set") };
        assert_eq!(members.expected(), 3);
        let mut all = Vec::new();
        while let Some(member) = members.next().expect("nothing else is wrong with it") {
            all.push(member.to_vec());
        }
        assert_eq!(all, [b"a", b"b", b"a"]);
    }
}

#[test]
fn times_out_of_range_are_refused() {
    let hash = |expiry: i64| [b"\x16\x01\x01f\x01v", &expiry.to_le_bytes()[..]].concat();
    assert!(decode(&hash(-1), 80).is_ok() && decode(&hash(i64::MAX), 80).is_ok());
    assert_eq!(decode(&hash(-2), 80).expect_err("before 1970").reason, Reason::Time);
    let redis = |earliest: u64, after: u8| {
        [b"\x18", &earliest.to_le_bytes()[..], &[1, after], b"\x01f\x01v"].concat()
    };
    assert!(decode(&redis(5, 0), 12).is_ok() && decode(&redis(0xffff_ffff_ffff, 1), 12).is_ok());
    assert_eq!(decode(&redis(0xffff_ffff_ffff, 2), 12).expect_err("too late").reason, Reason::Time);
    assert_eq!(decode(&redis(u64::MAX, 2), 12).expect_err("too late").reason, Reason::Time);
}

/// A node of a stream with the parts in which an entry can be wrong.
#[test]
fn stream_entries_that_contradict_their_headers_are_refused() {
    let with = |live: u8, deleted: u8, flags: u8, fields: u8, elements: u8| {
        let head = [live, 1, deleted, 1, 0, 1, 0, 1]; // no names to share
        let field: &[u8] = if fields == 1 { &[5, 1, 6, 1] } else { &[] };
        let entry = [&[flags, 1, 0, 1, 0, 1, fields, 1][..], field, &[elements, 1]].concat();
        let count = (8 + entry.len()) as u8 / 2;
        let total = (8 + entry.len() + 7) as u8;
        let block = [&[total, 0, 0, 0, count, 0][..], &head, &entry, &[0xff]].concat();
        let node = [&[16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, total][..], &block].concat();
        let length = if flags & 1 == 0 { 1 } else { 0 };
        let body = [&[15, 1][..], &node, &[length, 1, 1, 0]].concat();
        decode(&body, 10).map(|_| ()).map_err(|error| error.reason)
    };
    assert_eq!(with(1, 0, 0, 1, 6), Ok(()));
    assert_eq!(with(0, 1, 1, 1, 6), Ok(()), "deleted");
    assert_eq!(with(0, 0, 1, 1, 6), Err(Reason::Count), "more deleted than announced");
    assert_eq!(with(1, 1, 0, 1, 6), Err(Reason::Count), "fewer deleted than announced");
    assert_eq!(with(2, 0, 0, 1, 6), Err(Reason::Count), "fewer live than announced");
    assert_eq!(with(1, 0, 4, 1, 6), Err(Reason::StreamEntry), "an unknown flag");
    assert_eq!(with(1, 0, 0, 1, 5), Err(Reason::StreamEntry), "a wrong count of elements");
    assert_eq!(with(1, 0, 0, 0, 4), Err(Reason::StreamEntry), "no field");
    assert_eq!(with(1, 0, 2, 1, 6), Err(Reason::StreamEntry), "no names to share");
}

/// After XDEL 10-0 and XSETID 6-0; XSETID ENTRIESADDED, XGROUP ENTRIESREAD and XCLAIM RETRYCOUNT with the
/// greatest number and its successor: Redis 7.0 writes and reads all of these.
#[test]
fn extreme_stream_numbers_are_clamped() {
    let golden = golden::all().into_iter().find(|golden| golden.name == "redis-7.0: stream of small nodes");
    let body = golden.expect("it is there").body().to_vec();
    let beyond: &[u8] = &[0x81, 0x80, 0, 0, 0, 0, 0, 0, 0];
    let id = [&[0; 7][..], &[1], &[0; 8]].concat();
    let pending = [&[1][..], &id, &[1, 0, 0, 0, 0, 0, 0, 0], beyond].concat();
    let consumer = [&[1, 1, b'c', 1, 0, 0, 0, 0, 0, 0, 0, 1][..], &id].concat();
    let group = [&[1, 1, b'g', 9, 0][..], beyond, &pending, &consumer].concat();
    let body = [&body[..body.len() - 9], &[5, 6, 0, 1, 0, 10, 0], beyond, &group].concat();
    let Ok(Value::Stream(_, info, groups)) = decode(&body, 10) else { panic!("it is a stream") };
    assert_eq!(info.max_deleted_id, info.last_id);
    assert_eq!(info.entries_added, i64::MAX as u64);
    assert_eq!(groups[0].entries_read, Some(i64::MAX as u64));
    assert_eq!(groups[0].pending[0].deliveries, i64::MAX as u64);
}

/// Redis 7.0's stream with groups, with a part of its metadata replaced.
#[test]
fn streams_that_contradict_themselves_are_refused() {
    let golden = golden::all().into_iter().find(|golden| golden.name == "redis-7.0: stream of small nodes");
    let body = golden.expect("it is there").body().to_vec();
    // .. length 5 | last id 5-0 | first id 1-0 | none deleted | 5 added | no groups
    let tail = &[5, 5, 0, 1, 0, 0, 0, 5, 0];
    assert!(body.ends_with(tail));
    let with = |tail: &[u8]| {
        decode(&[&body[..body.len() - 9], tail].concat(), 10).map(|_| ()).map_err(|error| error.reason)
    };
    assert_eq!(with(tail), Ok(()));
    assert_eq!(with(&[4, 5, 0, 1, 0, 0, 0, 5, 0]), Err(Reason::StreamCounters), "length");
    assert_eq!(with(&[5, 4, 9, 1, 0, 0, 0, 5, 0]), Err(Reason::StreamCounters), "last id");
    assert_eq!(with(&[5, 5, 0, 1, 0, 0, 0, 4, 0]), Err(Reason::StreamCounters), "entries added");
    assert_eq!(with(&[5, 5, 0, 9, 9, 0, 0, 5, 0]), Ok(()), "the first id is known from the entries");
    assert_eq!(
        with(&[5, 5, 0, 1, 0, 5, 1, 5, 0]),
        Ok(()),
        "XSETID of Redis 7.0 goes back behind what was deleted"
    );

    let group = |pending: &[u8], consumers: &[u8]| {
        with(&[&tail[..8], &[1, 1, b'g', 0, 0, 0], pending, consumers].concat())
    };
    let id = |low: u8| [&[0; 7][..], &[low], &[0; 8]].concat();
    let pending = |ids: &[u8]| {
        let entry = |low: &u8| [&id(*low)[..], &[1, 0, 0, 0, 0, 0, 0, 0, 1]].concat();
        [&[ids.len() as u8][..], &ids.iter().flat_map(entry).collect::<Vec<u8>>()].concat()
    };
    let consumer = |name: u8, ids: &[u8]| {
        let ids_only: Vec<u8> = ids.iter().flat_map(|low| id(*low)).collect();
        [&[1, name, 1, 0, 0, 0, 0, 0, 0, 0, ids.len() as u8][..], &ids_only].concat()
    };
    let two = |a: &[u8], b: &[u8]| [&[2][..], &consumer(b'a', a), &consumer(b'b', b)].concat();
    assert_eq!(group(&pending(&[1, 2]), &two(&[1], &[2])), Ok(()));
    assert_eq!(group(&pending(&[1, 2]), &two(&[1], &[])), Err(Reason::Pending), "of nobody");
    assert_eq!(group(&pending(&[1, 2]), &two(&[1, 2], &[2])), Err(Reason::Pending), "of two");
    assert_eq!(group(&pending(&[1, 2]), &two(&[1], &[3])), Err(Reason::Pending), "of no group");
    assert_eq!(group(&pending(&[2, 1]), &two(&[1], &[2])), Err(Reason::Order));
    assert_eq!(group(&pending(&[1, 1]), &two(&[1], &[])), Err(Reason::Order));
    let twice = [&[2][..], &consumer(b'a', &[]), &consumer(b'a', &[])].concat();
    assert_eq!(group(&pending(&[]), &twice), Err(Reason::DuplicateConsumer));
}

/// Redis 7.0 loads all of these but the last, and shows the stored numbers.
#[test]
fn counters_of_streams_are_corrected_if_allowed() {
    let golden = golden::all().into_iter().find(|golden| golden.name == "redis-7.0: stream of small nodes");
    let body = golden.expect("it is there").body().to_vec();
    let corrected = |body: &[u8]| {
        let mut decoder = Decoder::new(Slice::new(body), 10);
        let Object::Stream(mut stream) = decoder.object()? else { panic!("it is a stream") };
        stream.allow_corrections();
        let (info, mut groups) = stream.finish()?;
        while groups.next()?.is_some() {}
        Ok::<_, Error>((groups.is_of_corrected(), info.length, info.last_id.ms, info.entries_added))
    };
    let with = |tail: &[u8]| corrected(&[&body[..body.len() - 9], tail].concat()).expect("it is corrected");
    assert_eq!(with(&[5, 5, 0, 1, 0, 0, 0, 5, 0]), (false, 5, 5, 5));
    assert_eq!(with(&[4, 5, 0, 1, 0, 0, 0, 5, 0]), (true, 5, 5, 5), "length");
    assert_eq!(with(&[9, 5, 0, 1, 0, 0, 0, 5, 0]), (true, 5, 5, 5), "length");
    assert_eq!(with(&[5, 4, 9, 1, 0, 0, 0, 5, 0]), (true, 5, 5, 5), "last id");
    assert_eq!(with(&[5, 7, 9, 1, 0, 0, 0, 4, 0]), (true, 5, 7, 5), "entries added");
    let none = [body[0], 0, 3, 5, 0, 1, 0, 0, 0, 5, 0];
    assert_eq!(corrected(&none).map_err(|error| error.reason), Err(Reason::StreamCounters), "all are lost");
}
