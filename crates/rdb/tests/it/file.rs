//! Files: written and read again, cut anywhere, changed anywhere.

use std::collections::BTreeMap;
use std::io::Read;

use evenkeel_rdb::file::{
    Access, Batch, Checksum, Failure, FilePart, FileReader, FileWriter, KeyMetadata, Origin, ReadLimits,
    Replication,
};
use evenkeel_rdb::{Encoder, Version};
use evenkeel_testkit::random::{Random, fresh_seed};

use crate::model::{Style, Value, styles, value, write};
use crate::random;

/// A key in its database.
pub(crate) type Place = (u64, Vec<u8>);

/// The whole content of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Content {
    pub(crate) aux: BTreeMap<String, String>,
    pub(crate) functions: Vec<Vec<u8>>,
    pub(crate) keys: BTreeMap<Place, (KeyMetadata, Value)>,
    pub(crate) sizes: Vec<(u64, u64, u64)>,
}

/// So small that most records have a batch of their own, and many are large.
pub(crate) const TINY: ReadLimits = ReadLimits { block: 50, whole_max: 300 };

/// Reads a whole file.
pub(crate) fn content(file: impl Read, limits: ReadLimits) -> Result<(Content, Checksum), Failure> {
    let mut reader = FileReader::new(file, None, limits)?;
    let mut content = Content::default();
    while let Some(part) = reader.next()? {
        match part {
            FilePart::Aux { name, value } => {
                let [name, value] = [name, value].map(|text| String::from_utf8_lossy(&text).into_owned());
                content.aux.insert(name, value);
            }
            FilePart::Function(code) => content.functions.push(code),
            FilePart::Database(_)
            | FilePart::ModuleAux { .. }
            | FilePart::SlotSizes { .. }
            | FilePart::SlotImport { .. } => {}
            FilePart::Sizes { keys, expiring } => content.sizes.push((reader.database(), keys, expiring)),
            FilePart::Keys(batch) => {
                add(&mut content, &batch)?;
                reader.reuse(batch);
            }
            FilePart::Large => {
                let database = reader.database();
                let record = reader.large()?.expect("it was announced");
                let (key, metadata) = (record.key.to_vec(), record.metadata);
                let read = record.object().and_then(value).map_err(|error| reader.failure(error))?;
                content.keys.insert((database, key), (metadata, read));
            }
            FilePart::End(checksum) => {
                reader.expect_no_more()?;
                return Ok((content, checksum));
            }
        }
    }
    unreachable!("a file ends with its end")
}

fn add(content: &mut Content, batch: &Batch) -> Result<(), Failure> {
    let mut records = batch.records();
    let mut count = 0;
    while let Some(record) = records.next()? {
        let (key, metadata) = (record.key.to_vec(), record.metadata);
        let read = record.object().and_then(value).map_err(|error| records.failure(error))?;
        content.keys.insert((batch.database, key), (metadata, read));
        count += 1;
    }
    assert_eq!(count, batch.keys);
    Ok(())
}

/// Writes the content as the records of three databases, each encoded on its own.
pub(crate) fn written(content: &Content, style: Style, checksum: bool) -> Vec<u8> {
    let mut writer = FileWriter::new(Vec::new(), style.version, checksum).expect("memory takes everything");
    for (name, value) in &content.aux {
        writer.aux(name.as_bytes(), value.as_bytes().into()).expect("memory takes everything");
    }
    content.functions.iter().for_each(|code| writer.function(code).expect("memory takes everything"));
    let mut database = None;
    for ((number, key), (metadata, value)) in &content.keys {
        if database != Some(*number) {
            database = Some(*number);
            writer.database(*number).expect("memory takes everything");
            if let Some((_, keys, expiring)) = content.sizes.iter().find(|sizes| sizes.0 == *number) {
                writer.sizes(*keys, *expiring).expect("memory takes everything");
            }
        }
        let mut encoder = Encoder::new(Vec::new(), style.version);
        if !style.compress {
            encoder = encoder.without_compression();
        }
        encoder.record(key.into(), metadata);
        encoder.raise(needed(value));
        write(value, &mut encoder, style).expect("it was raised where that is needed");
        let highest = encoder.highest();
        writer.append(&encoder.into_out(), highest).expect("memory takes everything");
    }
    let finished = writer.finish().expect("memory takes everything");
    let mut file = finished.out;
    assert_eq!(file.len() as u64, finished.len);
    if let Some(header) = finished.header {
        file[..header.len()].copy_from_slice(&header);
    }
    file
}

/// The lowest version that holds the value.
pub(crate) fn needed(value: &Value) -> Version {
    match value {
        Value::Hash(hash) if hash.values().any(|(_, expires)| expires.is_some()) => Version::V80,
        Value::Array(..) => Version::V14,
        _ => Version::V10,
    }
}

pub(crate) fn some_content(random: &mut Random, keys: usize) -> Content {
    let mut content = Content::default();
    for index in 0..keys {
        let metadata = KeyMetadata {
            expires: random.chance(30).then(|| random.between(4_000_000_000_000, 8_000_000_000_000) as u64),
            access: match random.below(6) {
                0 => Access::Idle(random.draw() >> random.between(32, 60)),
                1 => Access::Frequency(random.draw() as u8),
                _ => Access::Unknown,
            },
        };
        let key = match random.below(8) {
            0 => index.to_string().into_bytes(),
            1 => [&b"long ".repeat(30)[..], index.to_string().as_bytes()].concat(),
            _ => format!("key {index}").into_bytes(),
        };
        content.keys.insert((random.below(3) as u64 * 5, key), (metadata, random::value(random)));
    }
    let databases: Vec<u64> = content.keys.keys().map(|(database, _)| *database).collect();
    for database in [0, 5, 10] {
        let keys = databases.iter().filter(|one| **one == database).count() as u64;
        if keys > 0 {
            content.sizes.push((database, keys, keys / 2));
        }
    }
    content.aux.insert("redis-ver".into(), "7.0.15".into());
    content.aux.insert("ctime".into(), "1700000000".into());
    content.functions.push(b"#!lua name=lib\nredis.register_function('f', function() return 1 end)".to_vec());
    content
}

/// Returns the content as it is after a round trip through that version.
pub(crate) fn in_version(mut content: Content, style: Style) -> Content {
    for (_, value) in content.keys.values_mut() {
        *value = value.clone().in_version(style.version);
    }
    content
}

#[test]
fn written_values_are_read_back() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for round in 0..12 {
        let before = some_content(&mut random, if round == 0 { 200 } else { 12 });
        for version in [Version::V10, Version::V11, Version::V14, Version::V80] {
            for style in styles(version) {
                let checksum = random.chance(50);
                let file = written(&before, style, checksum);
                let expected = if checksum { Checksum::Right } else { Checksum::Absent };
                let after = in_version(before.clone(), style);
                for limits in [ReadLimits::default(), TINY, ReadLimits { block: 1, whole_max: 1 }] {
                    let read = content(&file[..], limits).unwrap_or_else(|failure| panic!("{failure}"));
                    assert!(read == (after.clone(), expected), "{style:?} {limits:?}");
                }
            }
        }
    }
}

/// As in a server: several threads encode records, a single thread cuts up the file, several decode batches.
#[test]
fn many_threads_write_and_read_one_file() {
    let mut random = Random::new(9);
    let style = styles(Version::V80)[0];
    let before = in_version(some_content(&mut random, 300), style);
    let keys: Vec<_> = before.keys.iter().filter(|((database, _), _)| *database == 0).collect();
    let mut writer = FileWriter::new(Vec::new(), style.version, true).expect("memory takes everything");
    std::thread::scope(|scope| {
        let encode = |share: &[(&Place, &(KeyMetadata, Value))]| {
            let mut encoder = Encoder::new(Vec::new(), style.version);
            for ((_, key), (metadata, value)) in share {
                encoder.record(key.into(), metadata);
                write(value, &mut encoder, style).expect("version 80 has a form for everything");
            }
            encoder.into_out()
        };
        let shares: Vec<_> = keys.chunks(20).map(|share| scope.spawn(move || encode(share))).collect();
        for share in shares {
            let records = share.join().expect("it encodes");
            writer.append(&records, style.version).expect("memory takes everything");
        }
    });
    let file = writer.finish().expect("memory takes everything").out;

    let limits = ReadLimits { block: 4_096, whole_max: 1 << 30 };
    let mut reader = FileReader::new(&file[..], None, limits).expect("a header");
    let mut batches = Vec::new();
    while let Some(part) = reader.next().expect("it was written here") {
        if let FilePart::Keys(batch) = part {
            batches.push(batch);
        }
    }
    assert!(batches.len() > 5);
    let found = std::thread::scope(|scope| {
        let decode = |batch: Batch| {
            let mut content = Content::default();
            add(&mut content, &batch).expect("it was written here");
            content.keys
        };
        let parts: Vec<_> = batches.into_iter().map(|batch| scope.spawn(move || decode(batch))).collect();
        parts.into_iter().flat_map(|part| part.join().expect("it decodes")).collect::<BTreeMap<_, _>>()
    });
    assert_eq!(found.len(), keys.len());
    assert!(found.iter().eq(keys));
}

/// A header with too low a version is corrected, and the checksum is the corrected file's.
#[test]
fn the_version_follows_the_content() {
    let mut random = Random::new(5);
    let style = styles(Version::V10)[0];
    let mut content = some_content(&mut random, 40);
    let highest = [(Version::V80, b"VALKEY080"), (Version::V14, b"REDIS0014"), (Version::V10, b"REDIS0010")];
    for (version, header) in highest {
        let keys = content.keys.len();
        content.keys.retain(|_, (_, value)| needed(value) <= version);
        assert!(version == Version::V80 || content.keys.len() < keys, "some need version {version:?}");
        assert_eq!(&written(&content, style, true)[..9], header);
    }
}

#[test]
fn an_empty_file_has_exact_bytes() {
    let mut writer = FileWriter::new(Vec::new(), Version::V10, true).expect("memory takes everything");
    let replication =
        Some(Replication { database: 0, id: "8371b4fb1155b71f4a04d3e1bc3e18c4a990aeeb", offset: 7 });
    let origin = Origin {
        redis_version: "7.0.15",
        created: 1_700_000_000,
        used_memory: 1 << 20,
        aof_base: true,
        replication,
    };
    writer.origin(&origin).expect("memory takes everything");
    writer.function(b"code").expect("memory takes everything");
    writer.database(3).expect("memory takes everything");
    writer.sizes(100, 7).expect("memory takes everything");
    let written = writer.written();
    let finished = writer.finish().expect("memory takes everything");
    assert_eq!(finished.header, None);
    let aux = b"\xfa\x09redis-ver\x067.0.15\xfa\x0aredis-bits\xc0\x40\xfa\x05ctime\xc2\x00\xf1\x53\x65\
        \xfa\x08used-mem\xc2\x00\x00\x10\x00\xfa\x0erepl-stream-db\xc0\x00\
        \xfa\x07repl-id\x288371b4fb1155b71f4a04d3e1bc3e18c4a990aeeb\xfa\x0brepl-offset\xc0\x07\
        \xfa\x08aof-base\xc0\x01";
    let body = [&b"REDIS0010"[..], aux, b"\xf5\x04code\xfe\x03\xfb\x40\x64\x07\xff"].concat();
    assert_eq!(finished.out[..body.len()], body);
    assert_eq!((written, finished.len), (body.len() as u64 - 1, body.len() as u64 + 8));
    assert_eq!(finished.out.len(), body.len() + 8);
}
