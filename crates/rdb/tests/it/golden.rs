//! Payloads made by real servers, with the content that the servers showed.
//!
//! Each line of `golden.txt` has an origin, a payload and a value. Payloads marked "made" have forms that no
//! available server writes any more. They were put together by hand and restored by a server that still reads
//! them; the value is that server's output.

use std::io::Read;

use evenkeel_rdb::{Decoder, Encoder, Feed, Slice, Version};

use crate::model::{Style, describe, hex, object, open, read, seal, styles, unhex, write};

pub(crate) struct Golden {
    pub(crate) name: &'static str,
    pub(crate) payload: Vec<u8>,
    value: &'static str,
}

impl Golden {
    /// The payload without version and checksum.
    pub(crate) fn body(&self) -> &[u8] {
        &self.payload[..self.payload.len() - 10]
    }

    pub(crate) fn version(&self) -> u16 {
        let footer = &self.payload[self.payload.len() - 10..];
        u16::from_le_bytes([footer[0], footer[1]])
    }
}

pub(crate) fn all() -> Vec<Golden> {
    let lines = include_str!("golden.txt").lines();
    lines
        .map(|line| {
            let parts: Vec<&str> = line.split('|').collect();
            Golden { name: parts[0], payload: unhex(parts[1]), value: parts[2] }
        })
        .collect()
}

#[test]
fn each_payload_is_read_like_its_server_shows_it() {
    assert!(all().len() > 60);
    for golden in all() {
        assert_eq!(describe(&open(&golden.payload)), golden.value, "{}", golden.name);
    }
}

/// Gives two bytes at a time.
struct Drip<'a>(&'a [u8]);

impl Read for Drip<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let len = self.0.len().min(into.len()).min(2);
        self.0.read(&mut into[..len])
    }
}

#[test]
fn a_reader_gives_the_same_values() {
    for golden in all() {
        let feed = Feed::new(Drip(golden.body()), None);
        let value = read(Decoder::new(feed, golden.version())).expect("it is well-formed");
        assert_eq!(describe(&value), golden.value, "{}", golden.name);
    }
}

#[test]
fn values_follow_each_other_as_in_a_file() {
    for version in [12, 80] {
        let mut file = all();
        file.retain(|golden| (golden.version() == 80) == (version == 80)); // type 22 is not the same in both
        let bytes: Vec<u8> = file.iter().flat_map(|golden| golden.body()).copied().collect();
        let mut decoder = Decoder::new(Feed::new(&bytes[..], Some(bytes.len() as u64)), version);
        for golden in file {
            let value = object(&mut decoder).unwrap_or_else(|error| panic!("{}: {error}", golden.name));
            assert_eq!(describe(&value), golden.value, "{}", golden.name);
        }
        decoder.finish().expect("nothing is left");
    }
}

#[test]
fn each_value_survives_every_version_and_style() {
    let mut written = 0;
    for golden in all() {
        let value = open(&golden.payload);
        let versions = [Version::V10, Version::V11, Version::V14, Version::V80];
        for style in versions.iter().flat_map(|version| styles(*version)) {
            let Some(payload) = seal(&value, style) else {
                let needed = if golden.value.starts_with("array") { Version::V14 } else { Version::V80 };
                assert!(style.version < needed && (golden.value.contains('@') || needed == Version::V14));
                continue;
            };
            assert_eq!(open(&payload), value.clone().in_version(style.version), "{} {style:?}", golden.name);
            written += 1;
        }
    }
    assert!(written > 500);
}

#[test]
fn a_key_follows_the_type_on_request() {
    for golden in all() {
        let value = open(&golden.payload);
        let style = styles(Version::V80)[0];
        let mut encoder = Encoder::new(Vec::new(), style.version);
        encoder.key((&b"a key"[..]).into());
        write(&value, &mut encoder, style).expect("version 80 has a form for everything");
        let record = encoder.into_out();
        let mut decoder = Decoder::new(Slice::new(&record), 80);
        let kind = decoder.byte().expect("a type");
        assert_eq!(decoder.string().expect("a key").to_vec(), b"a key");
        decoder.object_of(kind).expect("a value");
        assert_eq!([&[kind], &record[7..]].concat(), {
            let payload = seal(&value, style).expect("as before");
            payload[..payload.len() - 10].to_vec()
        });
    }
}

/// Values with a single obvious form: nothing to compress, and no order of a hash table.
#[test]
fn payloads_of_servers_are_written_identically() {
    let same = [
        "string",
        "every byte",
        "8 bits",
        "16 bits",
        "32 bits",
        "33 bits",
        "small sorted set",
        "integers of 16 bits",
    ];
    for name in same {
        let golden =
            all().into_iter().find(|golden| golden.name == format!("redis-7.0: {name}")).expect(name);
        let style = Style { compress: false, ..styles(Version::V10)[0] };
        assert_eq!(
            seal(&open(&golden.payload), style).map(|payload| hex(&payload)),
            Some(hex(&golden.payload))
        );
    }
}
