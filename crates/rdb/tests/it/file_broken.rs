//! Changed files: each must be refused, or have other content. No file may cause a panic, or take memory
//! beyond its size.

use std::io::Read;

use evenkeel_rdb::file::{Access, Checksum, FilePart, FileReader, ReadLimits, Type, check};
use evenkeel_rdb::{Decoder, Object, Reason, Slice, Version};
use evenkeel_testkit::random::{Random, fresh_seed};

use crate::bounds::peak;
use crate::file::{Content, TINY, content, some_content, written};
use crate::model::{Value, styles};
use crate::{broken, golden};

/// Files saved by redis-server 7.0.15 and Valkey 9.1.2, with keys of every type in databases 0 and 9.
pub(crate) const FILES: [(&str, &[u8]); 2] = [
    ("redis-7.0", include_bytes!("files/redis-7.0.rdb")),
    ("valkey-9.1", include_bytes!("files/valkey-9.1.rdb")),
];

const FAR: u64 = 33_177_117_420_000;

fn expect_content(name: &str, content: &Content) {
    let valkey = name.starts_with("valkey");
    let key = |database: u64, key: &str| {
        let (metadata, value) =
            content.keys.get(&(database, key.into())).unwrap_or_else(|| panic!("{key} is there"));
        assert!(matches!(metadata.access, Access::Frequency(_)), "{key} has a frequency");
        (metadata.expires, value.clone())
    };
    assert_eq!(key(0, "text"), (None, Value::String(b"hello world".into())));
    assert_eq!(key(0, "number"), (None, Value::String(b"12345".into())));
    assert_eq!(key(0, "expiring"), (Some(FAR), Value::String(b"soon".into())));
    assert_eq!(key(9, "elsewhere"), (None, Value::String(b"1".into())));
    let words = ["a", "b", "c", "1", "2", "3"].map(|word| word.as_bytes().to_vec());
    assert_eq!(key(0, "list"), (None, Value::List(words.to_vec())));
    let pairs = [("f1", "v1"), ("f2", "2")].map(|(name, value)| (name.into(), (value.into(), None)));
    assert_eq!(key(0, "hash"), (Some(FAR + 1), Value::Hash(pairs.into_iter().collect())));
    assert!(matches!(key(0, "stream"), (None, Value::Stream(entries, _, groups))
            if entries.len() == 2 && groups.len() == 1));
    if valkey {
        let fields = [("a", "1", Some(FAR)), ("b", "2", None)];
        let fields = fields.map(|(name, value, expires)| (name.into(), (value.into(), expires)));
        assert_eq!(key(0, "fields"), (None, Value::Hash(fields.into_iter().collect())));
    }
    assert_eq!(content.keys.len(), if valkey { 13 } else { 11 });
    assert_eq!(content.functions.len(), 1);
    assert!(content.functions[0].starts_with(b"#!lua name=mylib\n"));
    assert_eq!(content.aux.get("aof-base").map(String::as_str), Some("0"));
    assert_eq!(content.sizes, [(0, if valkey { 12 } else { 10 }, 2), (9, 1, 0)]);
}

#[test]
fn files_of_servers_are_read() {
    for (name, file) in FILES {
        for limits in [ReadLimits::default(), TINY] {
            let (content, checksum) =
                content(file, limits).unwrap_or_else(|failure| panic!("{name}: {failure}"));
            assert_eq!(checksum, Checksum::Right);
            expect_content(name, &content);
        }
    }
}

/// A file may have any old form that its version has.
#[test]
fn all_forms_are_read_in_files() {
    for version in [12, 80] {
        let mut file = if version == 12 { b"REDIS0012".to_vec() } else { b"VALKEY080".to_vec() };
        let mut expected = Vec::new();
        for (index, golden) in golden::all().iter().enumerate() {
            if (golden.version() == 80) != (version == 80) {
                continue; // type 22 is not the same in both
            }
            let key = format!("{index:03}");
            file.push(golden.body()[0]);
            file.extend_from_slice(&[&[3], key.as_bytes(), &golden.body()[1..]].concat());
            expected.push((key.into_bytes(), crate::model::open(&golden.payload)));
        }
        file.extend_from_slice(&[&[255][..], &[0; 8]].concat());
        for limits in [ReadLimits::default(), TINY] {
            let (content, checksum) =
                content(&file[..], limits).unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(checksum, Checksum::Absent);
            let found: Vec<_> = content.keys.into_iter().map(|((_, key), (_, value))| (key, value)).collect();
            assert!(found == expected, "version {version}, {limits:?}");
        }
    }
}

/// Skipping and reading a value end at the same offset, whatever the bytes are.
#[test]
fn a_skipped_value_ends_where_a_read_value_ends() {
    let agree = |body: &[u8], version: u16| {
        let mut decoder = Decoder::new(Slice::new(body), version);
        let read = crate::model::object(&mut decoder).is_ok();
        let mut passing = Decoder::new(Slice::new(body), version);
        let passed = passing.byte().and_then(|kind| passing.pass_object_of(kind)).is_ok();
        if read {
            assert_eq!(decoder.finish(), passing.finish(), "{body:?}");
        }
        assert!(passed || !read, "{body:?}");
        read
    };
    for golden in golden::all() {
        assert!(agree(golden.body(), golden.version()), "{}", golden.name);
    }
    broken::with_one_byte_changed(|golden, body| _ = agree(body, golden.version()));
}

fn small_files() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = FILES.iter().map(|(name, file)| ((*name).to_owned(), file.to_vec())).collect();
    let mut random = Random::new(11);
    let mut content = some_content(&mut random, 30);
    content.keys.retain(|_, (_, value)| {
        crate::model::seal(value, styles(Version::V80)[1]).is_some_and(|all| all.len() < 300)
    });
    assert!(content.keys.len() > 4);
    for style in styles(Version::V11) {
        files.push((format!("{style:?}"), written(&content, style, true)));
    }
    files
}

#[test]
fn every_truncation_is_refused() {
    for (name, file) in small_files() {
        for len in 0..file.len() {
            for limits in [ReadLimits::default(), TINY] {
                let failure = content(&file[..len], limits).expect_err("it has no end");
                assert!(failure.error.at <= len as u64, "{name} cut at {len}: {failure}");
                assert!(
                    matches!(failure.error.reason, Reason::Truncated | Reason::TooLong | Reason::NoRdbFile),
                    "{name} cut at {len}: {failure}"
                );
            }
            let report = check(&file[..len], Some(len as u64));
            assert!(report.failure.is_some() && !report.is_sound(), "{name} cut at {len}");
            assert!(report.readable <= len as u64);
        }
    }
}

#[test]
fn every_byte_changed_is_noticed_by_the_checksum() {
    let (mut all, mut only_by_sum) = (0, 0);
    for (name, file) in small_files() {
        changed(&file, |at, bytes| {
            let failure =
                content(bytes, ReadLimits::default()).expect_err("a checksum finds any single byte");
            all += 1;
            only_by_sum += usize::from(failure.error.reason == Reason::Checksum);
            assert!(failure.error.at <= file.len() as u64, "{name}, byte {at}: {failure}");
        });
    }
    println!("{only_by_sum} of {all} by the checksum alone");
    assert!(all > 10_000);
}

/// Without a checksum a changed file may have other content, but that content can be written and read.
#[test]
fn every_byte_changed_without_a_checksum() {
    let (mut all, mut accepted) = (0, 0);
    for (name, mut file) in small_files() {
        let sum = file.len() - 8;
        file[sum..].fill(0);
        changed(&file[..], |at, bytes| {
            all += 1;
            let mut read = None;
            let taken = peak(|| read = Some(content(bytes, ReadLimits::default())));
            assert!(taken < 300_000 + 150 * bytes.len(), "{name}, byte {at}: {taken} bytes");
            let read = read.expect("it ran");
            let tiny = content(bytes, TINY);
            match (&read, &tiny) {
                (Ok(whole), Ok(pieces)) => assert!(whole == pieces, "{name}, byte {at}"),
                (Err(_), Err(_)) => {}
                (whole, pieces) => panic!("{name}, byte {at}: {whole:?}, {pieces:?}"),
            }
            let report = check(bytes, None);
            // The reader here allows no corrections.
            let is_whole = report.failure.is_none() && report.corrected == 0;
            assert_eq!(is_whole, read.is_ok(), "{name}, byte {at}: {:?}", report.failure);
            if let Ok((content, _)) = read {
                accepted += 1;
                if at % 7 == 0 {
                    rewritten(&content);
                }
            }
        });
    }
    println!("{accepted} of {all} accepted");
    assert!(accepted > all / 20 && accepted < all * 3 / 4, "{accepted} of {all}");
}

fn rewritten(before: &Content) {
    let file = written(before, styles(Version::V80)[0], true);
    let (after, _) = content(&file[..], ReadLimits::default()).expect("it was written here");
    assert!(after.keys == before.keys);
}

fn changed(file: &[u8], mut visit: impl FnMut(usize, &[u8])) {
    let mut bytes = file.to_vec();
    for at in 0..bytes.len() {
        let was = bytes[at];
        let others = [!was, was ^ 1, was ^ 0x80, was.wrapping_add(1), 0, 0xff, 0xfe, 0x81];
        for byte in others.into_iter().filter(|byte| *byte != was) {
            bytes[at] = byte;
            visit(at, &bytes);
        }
        bytes[at] = was;
    }
}

#[test]
fn random_changes_removals_and_insertions_are_survived() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let files = small_files();
    for _ in 0..20_000 {
        let (_, file) = &files[random.below(files.len())];
        let (_, other) = &files[random.below(files.len())];
        let mut bytes = file.clone();
        let sum = bytes.len() - 8;
        bytes[sum..].fill(0);
        for _ in 0..1 + random.below(4) {
            broken::mutate(&mut random, &mut bytes, other);
        }
        let whole = content(&bytes[..], ReadLimits::default());
        let pieces = content(&bytes[..], TINY);
        assert_eq!(whole.is_ok(), pieces.is_ok(), "{whole:?}, {pieces:?}");
        check(&bytes[..], Some(bytes.len() as u64));
    }
}

/// Plain lists and a string of this size take the memory of a few blocks, skipped or read.
#[test]
fn large_values_are_not_kept_in_memory() {
    const BYTES: u64 = 40 << 20;
    let limits = ReadLimits { block: 1 << 16, whole_max: 1 << 18 };
    let header = |start: &[u8], count: u64| [start, &count.to_be_bytes()].concat();
    let list = header(b"REDIS0010\x01\x04list\x81", BYTES);
    let string = header(b"\x00\x06string\x81", BYTES);
    let elements = || std::io::repeat(0).take(BYTES); // empty strings
    let end = &b"\x00\x01k\x01v\xff\0\0\0\0\0\0\0\0"[..];
    for reads in [true, false] {
        let mut keys = 0;
        let taken = peak(|| {
            let file = (&list[..]).chain(elements()).chain(&string[..]).chain(elements()).chain(end);
            let mut reader = FileReader::new(file, None, limits).expect("a header");
            while let Some(part) = reader.next().expect("nothing is wrong with it") {
                let FilePart::Large = part else { continue };
                keys += 1;
                if reads && keys == 1 {
                    let record = reader.large().expect("it has a key").expect("it was announced");
                    let Ok(Object::List(mut elements)) = record.object() else { panic!("a list") };
                    while elements.next().expect("nothing is wrong with it").is_some() {}
                }
            }
        });
        assert_eq!(keys, 2);
        assert!(taken < 2 << 20, "{taken} bytes");
    }
}

/// Clusters write sizes before each slot's keys. Moving the rest of a block for each slot would take a minute
/// here.
#[test]
fn few_keys_at_a_time_take_no_longer() {
    let mut file = b"REDIS0012".to_vec();
    let keys = 300_000;
    for n in 0..keys {
        let slot = n * 16_384 / keys;
        file.extend_from_slice(&[&[0xf4, 0x80], &(slot as u32).to_be_bytes()[..], &[1, 0]].concat());
        file.extend_from_slice(&[&[0, 4], &(n as u32).to_be_bytes()[..], b"\x01v"].concat());
    }
    file.extend_from_slice(b"\xff\0\0\0\0\0\0\0\0");
    let start = std::time::Instant::now();
    let report = check(&file[..], None);
    assert!(report.is_sound() && report.keys() == keys, "{:?}", report.failure);
    assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
    println!("{:?}", start.elapsed());
}

fn reason(file: &[u8]) -> Reason {
    content(file, ReadLimits::default()).expect_err("it is broken").error.reason
}

#[test]
fn foreign_files_are_named() {
    assert_eq!(reason(b""), Reason::Truncated);
    assert_eq!(reason(b"REDIS"), Reason::Truncated);
    assert_eq!(reason(b"RED1S"), Reason::NoRdbFile);
    assert_eq!(reason(b"*2\r\n$6\r\nSELECT\r\n"), Reason::NoRdbFile);
    assert_eq!(reason(b"REDIS0015\xff"), Reason::UnknownVersion(15));
    assert_eq!(reason(b"REDIS0010"), Reason::Truncated);
    assert_eq!(reason(b"REDIS0010\xf6"), Reason::UnknownOpcode(246));
    assert_eq!(reason(b"REDIS0010\xfe\x80"), Reason::Truncated);
    assert_eq!(reason(b"REDIS0010\x1a\x01k\x00"), Reason::UnknownType(26));
    assert_eq!(reason(b"REDIS0010\x1d\x01k\x00"), Reason::UnknownOpcode(29));
    assert_eq!(reason(b"REDIS0010\xfc\0\0\0\0\0\0\0\0\xfe\0"), Reason::UnknownOpcode(254));
    assert_eq!(reason(b"REDIS0010\xfc\xff\xff\xff\xff\xff\xff\xff\xff\0\x01k\x01v"), Reason::Time);
    assert_eq!(reason(b"REDIS0010\x08\x01k\x01v"), Reason::UnknownType(8));
    assert_eq!(reason(b"REDIS0010\x06\x01k\x01v"), Reason::ModuleType);
    assert_eq!(reason(b"REDIS0010\x07\x01k\x01\x00\xff"), Reason::ModuleType);
    assert_eq!(reason(b"REDIS0010\xff\x01\0\0\0\0\0\0\0"), Reason::Checksum);
    assert_eq!(content(&b"REDIS0004\xff"[..], TINY).map(|all| all.1), Ok(Checksum::Absent));
    let failure =
        content(&b"REDIS0010\xfe\x03\x02\x03k\n1\x02\x01a\x01a\xff"[..], TINY).expect_err("twice the same");
    assert_eq!(failure.to_string(), "a duplicate at byte 19, in key \"k\\n1\" of database 3");
}

/// Items between keys in files of clusters, of modules, and of old servers.
#[test]
fn parts_beside_keys_are_reported() {
    let mut file = b"VALKEY080".to_vec();
    file.extend_from_slice(
        b"\xf7\x81\x25\xfd\x12\x8d\x57\xdc\x04\x01\x02\x02\x05\x02hi\x03\0\0\0\0\x04\0\0\0\0\0\0\0\0\x01\
          \x07\x00",
    );
    file.extend_from_slice(b"\xf4\x40\x64\x05\x01");
    file.extend_from_slice(b"\xf3\x03job\x02\x00\x05\x07\x07");
    file.extend_from_slice(b"\xfd\x01\0\0\0\xf8\x40\x64\x00\x01k\x01v");
    file.extend_from_slice(b"\xff\0\0\0\0\0\0\0\0 and more");
    let mut reader = FileReader::new(&file[..], None, ReadLimits::default()).expect("a header");
    let mut parts = Vec::new();
    while let Some(part) = reader.next().expect("nothing is wrong with it") {
        parts.push(format!("{part:?}"));
    }
    assert_eq!(parts[0], r#"ModuleAux { module: "Jf0SjVfcB" }"#);
    assert_eq!(parts[1], "SlotSizes { slot: 100, keys: 5, expiring: 1 }");
    let ranges = "[Slots { first: 0, last: 5 }, Slots { first: 7, last: 7 }]";
    assert_eq!(parts[2], format!("SlotImport {{ job: [106, 111, 98], slots: {ranges} }}"));
    assert!(parts[3].starts_with("Keys(Batch { database: 0, keys: 1, at: 57,"), "{}", parts[3]);
    assert_eq!(parts[4], "End(Absent)");
    assert_eq!(reader.into_rest().0, b" and more");
}

#[test]
fn a_report_distinguishes_a_damaged_key_from_a_lost_rest() {
    let (_, file) = FILES[0];
    let sound = check(file, Some(file.len() as u64));
    assert!(sound.is_sound());
    assert_eq!((sound.keys(), sound.lost(), sound.readable), (11, 0, file.len() as u64));
    assert_eq!((sound.types[&Type::Set].keys, sound.types[&Type::Set].elements), (2, 6));
    assert_eq!((sound.databases[&0].expiring, sound.databases[&9].keys), (2, 1));
    assert_eq!(sound.types[&Type::Stream].largest_key, b"stream");

    // The end mark of the sorted set's block: all later keys can still be read.
    let mut bytes = file.to_vec();
    let end = file.windows(5).position(|five| five == b"2.5\x04\xff").expect("it is there") + 4;
    bytes[end] = 0;
    let report = check(&bytes[..], None);
    assert_eq!((report.keys(), report.lost(), report.damaged), (10, 1, 1));
    let failure = report.failure.as_ref().expect("it is damaged");
    assert_eq!(failure.place.as_ref().map(|place| &place.key[..]), Some(&b"zset"[..]));
    assert!(
        report.checksum.is_none() && report.readable == file.len() as u64 - 9,
        "the checksum is wrong as well"
    );

    // A length beyond the end: all later keys are lost.
    let at = file.windows(4).position(|four| four == b"long").expect("it is there") + 5;
    let mut bytes = file.to_vec();
    bytes[at..at + 2].copy_from_slice(b"\x7f\xff");
    let report = check(&bytes[..], Some(file.len() as u64));
    assert_eq!((report.keys(), report.lost()), (1, 9), "of the first database; nobody knows of the other");
    let mut longer = file.to_vec();
    longer.push(b'x');
    let report = check(&longer[..], None);
    assert_eq!(report.failure.as_ref().map(|failure| failure.error.reason), Some(Reason::Trailing));
    assert_eq!((report.checksum, report.readable), (Some(Checksum::Right), file.len() as u64));
}
