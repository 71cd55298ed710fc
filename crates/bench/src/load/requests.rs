//! The bytes of requests: a command's fixed parts are made once, and each request joins these parts with
//! keys.
//!
//! Copying 500 bytes of prepared value costs about 10 ns, a fiftieth of the kernel's cost of sending them. So
//! requests are built afresh for each batch, and any mix of commands needs no further machinery. Values of
//! different sizes are prefixes of a shared buffer; a value whose size never changes is one of the fixed
//! parts.

use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::endpoint::Protocol;
use super::keys::{self, KeyStream, Random};
use super::sizes::{SizeStream, Sizes};
use super::weights::Weights;

/// Bases of the random seeds, to which each thread adds its own number.
const ORDER_SEED: u64 = 0x5eed;
const SIZES_SEED: u64 = 0x51_2e5;

/// Separates several commands.
const SEPARATOR: &str = " ; ";

/// The requests, as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Get,
    Set,
    /// GET, and SET for this percentage of the requests.
    Mixed {
        writes_percent: u8,
    },
    /// Words of a command, in which `{key}` and `{value}` stand for a key and the value, `{same}` for the key
    /// before, and `{number}` for the digits of a key. Several commands, separated by ` ; `, alternate.
    Words(String),
    /// Words of commands in any order, each with its share.
    Shares(Vec<(Share, String)>),
}

/// The share of a command among several, in thousandths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(u32);

impl Share {
    const ALL: u32 = 100_000;
}

impl FromStr for Command {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(percent) = text.strip_prefix("mixed") {
            let percent = percent.strip_prefix(':').unwrap_or("10");
            let writes_percent = percent.parse().ok().filter(|percent| *percent <= 100);
            return Ok(Self::Mixed { writes_percent: writes_percent.context("mixed:PERCENT, 0 to 100")? });
        }
        let commands: Vec<&str> = text.split(SEPARATOR).map(str::trim).collect();
        if commands.len() > 1 && commands.contains(&"") {
            bail!("there is nothing on one side of a \";\"");
        }
        if let Some(shares) = shares(&commands)? {
            return Ok(Self::Shares(shares));
        }
        match text.trim() {
            "get" => Ok(Self::Get),
            "set" => Ok(Self::Set),
            words if words.contains(' ') || words.starts_with('/') => Ok(Self::Words(words.to_owned())),
            word if !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase()) => {
                Ok(Self::Words(word.to_owned()))
            }
            _ => bail!("use get, set, mixed, mixed:PERCENT, or a command such as \"INCR {{key}}\""),
        }
    }
}

impl Command {
    /// Returns words that look like placeholders and are not: they may be intended, as the tag that several
    /// keys have in common, or mistyped.
    pub(crate) fn unknown_placeholders(&self) -> Vec<&str> {
        let commands: Vec<&str> = match self {
            Self::Words(words) => vec![words],
            Self::Shares(shares) => shares.iter().map(|(_, words)| words.as_str()).collect(),
            Self::Get | Self::Set | Self::Mixed { .. } => Vec::new(),
        };
        let braced = commands.into_iter().flat_map(|words| {
            words.split('{').skip(1).filter_map(|part| {
                let end = part.find('}')?;
                let at = part.as_ptr() as usize - words.as_ptr() as usize;
                Some(&words[at - 1..at + end + 1])
            })
        });
        braced.filter(|word| first_placeholder(word).is_none()).collect()
    }
}

/// Returns the commands with their shares, if any has a share. No command's name begins like a percentage.
fn shares(commands: &[&str]) -> Result<Option<Vec<(Share, String)>>> {
    let given: Vec<Option<(f64, &str)>> = commands.iter().map(|command| percentage(command)).collect();
    if given.iter().all(Option::is_none) {
        return Ok(None);
    }
    let mut all = Vec::new();
    for (given, command) in given.iter().zip(commands) {
        let (percent, words) = given.with_context(|| format!("{command:?} has no percentage; others do"))?;
        all.push((share(percent)?, spelled_out(words)?));
    }
    let sum: u64 = all.iter().map(|(share, _)| u64::from(share.0)).sum();
    if sum != u64::from(Share::ALL) {
        bail!("the percentages add up to {}, not to 100", sum as f64 / 1e3);
    }
    Ok(Some(all))
}

/// Splits `30% SET {key} {value}` in its two parts.
fn percentage(command: &str) -> Option<(f64, &str)> {
    let (percent, words) = command.split_once('%')?;
    Some((percent.parse().ok()?, words.trim()))
}

fn share(percent: f64) -> Result<Share> {
    let thousandths = (percent * 1e3).round();
    if !(1.0..=f64::from(Share::ALL)).contains(&thousandths) {
        bail!("a percentage is from 0.001 to 100, not {percent}");
    }
    Ok(Share(thousandths as u32))
}

/// Returns the words of a command in a mix, in which `get` and `set` have the same meaning as alone.
fn spelled_out(words: &str) -> Result<String> {
    match words {
        "" => bail!("a percentage stands before a command"),
        "get" => Ok("GET {key}".to_owned()),
        "set" => Ok("SET {key} {value}".to_owned()),
        words => Ok(words.to_owned()),
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Get => f.write_str("GET"),
            Self::Set => f.write_str("SET"),
            Self::Mixed { writes_percent } => write!(f, "GET with {writes_percent}% SET"),
            Self::Words(words) => f.write_str(words),
            Self::Shares(shares) => {
                let all: Vec<String> =
                    shares.iter().map(|(share, words)| format!("{share} {words}")).collect();
                f.write_str(&all.join(SEPARATOR))
            }
        }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 1e3)
    }
}

/// A part of a request.
#[derive(Clone, Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// The next key.
    Key,
    /// The key before, once more.
    Same,
    /// The digits of the next key.
    Number,
    /// Draws a value's size and writes, in digits, the total size of this many such values and `other` bytes.
    Length {
        other: usize,
        values: usize,
    },
    /// A value of the size drawn last.
    Value,
}

/// A command in prepared pieces.
#[derive(Debug)]
struct Template {
    pieces: Vec<Piece>,
    key_size: usize,
}

/// The settings for making templates.
struct Material {
    protocol: Protocol,
    key_size: usize,
    /// The value, if all values have the same size.
    value: Option<Vec<u8>>,
}

impl Material {
    fn get(&self) -> Template {
        match self.protocol {
            Protocol::Memcached => {
                let mut template = self.template();
                template.add_bytes(b"get ");
                template.pieces.push(Piece::Key);
                template.add_bytes(b"\r\n");
                template
            }
            _ => self.command("GET {key}"),
        }
    }

    fn set(&self) -> Template {
        match self.protocol {
            Protocol::Memcached => {
                let mut template = self.template();
                template.add_bytes(b"set ");
                template.pieces.push(Piece::Key);
                template.add_bytes(b" 0 0 ");
                self.add_length(0, 1, &mut template);
                self.add_value(&mut template);
                template.add_bytes(b"\r\n");
                template
            }
            _ => self.command("SET {key} {value}"),
        }
    }

    fn command(&self, words: &str) -> Template {
        if self.protocol == Protocol::Http {
            let mut template = self.template();
            template.add_bytes(format!("GET {words} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
            return template;
        }
        let (mut template, words) = (self.template(), words.split_whitespace().collect::<Vec<_>>());
        template.add_bytes(format!("*{}\r\n", words.len()).as_bytes());
        words.iter().for_each(|word| self.add_word(word, &mut template));
        template
    }

    fn template(&self) -> Template {
        Template { pieces: Vec::new(), key_size: self.key_size }
    }

    fn add_word(&self, word: &str, template: &mut Template) {
        let (mut pieces, mut rest) = (Vec::new(), word);
        while let Some((at, name, piece)) = first_placeholder(rest) {
            pieces.extend([Piece::Bytes(rest[..at].into()), piece]);
            rest = &rest[at + name.len()..];
        }
        pieces.push(Piece::Bytes(rest.into()));
        let other = pieces.iter().map(|piece| self.size(piece)).sum();
        let values = pieces.iter().filter(|piece| matches!(piece, Piece::Value)).count();
        template.add_bytes(b"$");
        self.add_length(other, values, template);
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => template.add_bytes(&bytes),
                Piece::Value => self.add_value(template),
                key => template.pieces.push(key),
            }
        }
        template.add_bytes(b"\r\n");
    }

    /// Returns the bytes of a piece, without values.
    fn size(&self, piece: &Piece) -> usize {
        match piece {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Key | Piece::Same => self.key_size,
            Piece::Number => self.key_size - keys::PREFIX.len(),
            Piece::Length { .. } | Piece::Value => 0,
        }
    }

    /// Adds the line that announces the length of the next piece.
    fn add_length(&self, other: usize, values: usize, template: &mut Template) {
        match &self.value {
            Some(value) => template.add_bytes((other + values * value.len()).to_string().as_bytes()),
            None if values == 0 => template.add_bytes(other.to_string().as_bytes()),
            None => template.pieces.push(Piece::Length { other, values }),
        }
        template.add_bytes(b"\r\n");
    }

    fn add_value(&self, template: &mut Template) {
        match &self.value {
            Some(value) => template.add_bytes(value),
            None => template.pieces.push(Piece::Value),
        }
    }
}

impl Template {
    fn add_bytes(&mut self, bytes: &[u8]) {
        match self.pieces.last_mut() {
            Some(Piece::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.pieces.push(Piece::Bytes(bytes.into())),
        }
    }

    /// Appends a request; `last` is the number of the key before.
    fn append(&self, keys: &mut KeyStream, last: &mut u64, values: &mut Values, out: &mut Vec<u8>) {
        for piece in &self.pieces {
            match piece {
                Piece::Bytes(bytes) => out.extend_from_slice(bytes),
                Piece::Key => {
                    *last = keys.next();
                    keys::write(*last, self.key_size, out);
                }
                Piece::Same => keys::write(*last, self.key_size, out),
                Piece::Number => keys::write_digits(keys.next(), self.key_size - keys::PREFIX.len(), out),
                Piece::Length { other, values: count } => write_number(other + count * values.draw(), out),
                Piece::Value => out.extend_from_slice(&values.longest[..values.size]),
            }
        }
    }
}

fn write_number(number: usize, out: &mut Vec<u8>) {
    let digits = number.checked_ilog10().map_or(1, |log| log as usize + 1);
    keys::write_digits(number as u64, digits, out);
}

/// Returns the offset of the first placeholder of a word, its name and its meaning.
fn first_placeholder(word: &str) -> Option<(usize, &'static str, Piece)> {
    let all = [
        ("{key}", Piece::Key),
        ("{same}", Piece::Same),
        ("{number}", Piece::Number),
        ("{value}", Piece::Value),
    ];
    let found = all.into_iter().filter_map(|(name, piece)| Some((word.find(name)?, name, piece)));
    found.min_by_key(|(at, ..)| *at)
}

/// Values of several sizes.
#[derive(Debug)]
struct Values {
    /// The longest value; all values are prefixes of it.
    longest: Vec<u8>,
    sizes: SizeStream,
    random: Random,
    /// The size drawn last.
    size: usize,
}

impl Values {
    fn draw(&mut self) -> usize {
        self.size = self.sizes.next(&mut self.random);
        self.size
    }
}

/// Decides which command comes next.
#[derive(Debug)]
enum Order {
    /// The commands alternate.
    Turns {
        last: usize,
    },
    Weights(Weights),
}

/// Writes requests in sequence.
#[derive(Debug)]
pub(crate) struct Composer {
    templates: Vec<Template>,
    order: Order,
    keys: KeyStream,
    last_key: u64,
    values: Values,
    random: Random,
}

impl Composer {
    /// Composers with the same `seed` and parameters write the same requests.
    pub(crate) fn new(
        protocol: Protocol,
        command: &Command,
        key_size: usize,
        sizes: &Sizes,
        keys: KeyStream,
        seed: u64,
    ) -> Self {
        // A value of fixed size is part of the templates.
        let longest = value(sizes.longest());
        let (value, longest) = if sizes.is_one() { (Some(longest), Vec::new()) } else { (None, longest) };
        let material = Material { protocol, key_size, value };
        let weights = |weights: Vec<u32>| Order::Weights(Weights::new(weights));
        let turns = |templates: Vec<Template>| {
            let last = templates.len() - 1;
            (templates, Order::Turns { last })
        };
        let (templates, order) = match command {
            Command::Get => turns(vec![material.get()]),
            Command::Set => turns(vec![material.set()]),
            Command::Mixed { writes_percent: writes } => {
                let reads = 100 - u32::from(*writes);
                (vec![material.set(), material.get()], weights(vec![u32::from(*writes), reads]))
            }
            Command::Words(words) => {
                turns(words.split(SEPARATOR).map(|words| material.command(words)).collect())
            }
            Command::Shares(shares) => {
                let templates = shares.iter().map(|(_, words)| material.command(words));
                (templates.collect(), weights(shares.iter().map(|(share, _)| share.0).collect()))
            }
        };
        let (sizes, random) = (SizeStream::new(sizes), Random::new(SIZES_SEED + seed));
        let values = Values { longest, sizes, random, size: 0 };
        Self { templates, order, keys, last_key: 0, values, random: Random::new(ORDER_SEED + seed) }
    }

    pub(crate) fn append(&mut self, out: &mut Vec<u8>) {
        let next = match &mut self.order {
            Order::Turns { last } => {
                *last = if *last + 1 >= self.templates.len() { 0 } else { *last + 1 };
                *last
            }
            Order::Weights(weights) => weights.pick(&mut self.random),
        };
        self.templates[next].append(&mut self.keys, &mut self.last_key, &mut self.values, out);
    }
}

/// Letters without a pattern, so that no server can profit from a regular value.
fn value(size: usize) -> Vec<u8> {
    let mut random = Random::new(0xda7a);
    (0..size).map(|_| b'a' + random.below(26) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::super::distribution::Distribution;
    use super::super::keys::KeyRange;
    use super::*;

    fn requests(command: &str, count: usize) -> String {
        requests_of(Protocol::Resp2, command, count)
    }

    fn requests_of(protocol: Protocol, command: &str, count: usize) -> String {
        requests_with(protocol, command, "3", count)
    }

    fn requests_with(protocol: Protocol, command: &str, sizes: &str, count: usize) -> String {
        let keys = KeyStream::new(KeyRange { first: 7, count: 100 }, Distribution::Sequential, 1);
        let command: Command = command.parse().expect("a command");
        let mut composer = Composer::new(protocol, &command, 8, &sizes.parse().expect(sizes), keys, 0);
        let mut out = Vec::new();
        (0..count).for_each(|_| composer.append(&mut out));
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn get_and_set() {
        assert_eq!(
            requests("get", 2),
            "*2\r\n$3\r\nGET\r\n$8\r\nkey:0007\r\n*2\r\n$3\r\nGET\r\n$8\r\nkey:0008\r\n"
        );
        let value = String::from_utf8(value(3)).expect("ASCII");
        assert_eq!(requests("set", 1), format!("*3\r\n$3\r\nSET\r\n$8\r\nkey:0007\r\n$3\r\n{value}\r\n"));
    }

    #[test]
    fn get_and_set_as_lines() {
        let requests = |command, count| requests_of(Protocol::Memcached, command, count);
        assert_eq!(requests("get", 2), "get key:0007\r\nget key:0008\r\n");
        let value = String::from_utf8(value(3)).expect("ASCII");
        assert_eq!(requests("set", 1), format!("set key:0007 0 0 3\r\n{value}\r\n"));
        assert_eq!(requests("mixed:100", 1), requests("set", 1));
    }

    #[test]
    fn any_command() {
        assert_eq!(
            requests("MGET {key} a{key}b", 1),
            "*3\r\n$4\r\nMGET\r\n$8\r\nkey:0007\r\n$10\r\nakey:0008b\r\n"
        );
        assert_eq!(requests("PING", 1), "*1\r\n$4\r\nPING\r\n");
        assert_eq!(requests("PING x", 1), "*2\r\n$4\r\nPING\r\n$1\r\nx\r\n");
    }

    #[test]
    fn commands_by_turns_with_the_same_key() {
        assert_eq!(
            requests("SADD s{key} a{number}b ; SPOP s{same}", 3),
            "*3\r\n$4\r\nSADD\r\n$9\r\nskey:0007\r\n$6\r\na0008b\r\n\
             *2\r\n$4\r\nSPOP\r\n$9\r\nskey:0007\r\n\
             *3\r\n$4\r\nSADD\r\n$9\r\nskey:0009\r\n$6\r\na0010b\r\n"
        );
    }

    #[test]
    fn a_mix_has_its_share_of_writes() {
        let writes = requests("mixed:30", 10_000).matches("SET").count();
        assert!((2_800..3_200).contains(&writes), "{writes}");
        assert!(requests("mixed:0", 100).matches("SET").count() == 0);
        assert!(requests("mixed:100", 100).matches("GET").count() == 0);
    }

    #[test]
    fn commands_come_as_often_as_their_shares_say() {
        let all = requests("70% GET {key} ; 29.5% SET {key} {value} ; 0.5% INCR c", 100_000);
        for (name, expected) in [("GET", 70_000), ("SET", 29_500), ("INCR", 500)] {
            let count = all.matches(&format!("{name}\r\n")).count();
            assert!(count.abs_diff(expected) < 700, "{name}: {count}");
        }
        assert_eq!(requests("100% GET {key}", 3), requests("get", 3));
        assert_eq!(requests("50% get ; 50% set", 20), requests("50% GET {key} ; 50% SET {key} {value}", 20));
    }

    #[test]
    fn shares_are_shown_as_they_are_written() {
        for text in ["30% SET {key} {value} ; 70% GET {key}", "99.999% PING ; 0.001% TIME", "100% PING"] {
            assert_eq!(text.parse::<Command>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_requests() {
        let requests = |seed| {
            let keys = KeyStream::new(KeyRange { first: 7, count: 100 }, Distribution::Uniform, 1);
            let command: Command = "30% set ; 70% get".parse().expect("a command");
            let sizes = "1-9".parse().expect("sizes");
            let mut composer = Composer::new(Protocol::Resp2, &command, 8, &sizes, keys, seed);
            let mut out = Vec::new();
            (0..100).for_each(|_| composer.append(&mut out));
            out
        };
        assert_eq!(requests(1), requests(1));
        assert_ne!(requests(1), requests(2));
    }

    #[test]
    fn values_of_several_sizes_are_as_long_as_is_said() {
        for (command, other) in [("SET {key} {value}", 0), ("SET {key} a{value}{key}", 9)] {
            let all = requests_with(Protocol::Resp2, command, "8-12", 1_000);
            let (mut lines, mut sizes) = (all.lines(), [0; 5]);
            while let Some(count) = lines.next() {
                assert_eq!(count, "*3");
                let words: Vec<(&str, &str)> =
                    (0..3).filter_map(|_| Some((lines.next()?, lines.next()?))).collect();
                assert!(words.iter().all(|(size, word)| *size == format!("${}", word.len())), "{words:?}");
                sizes[words[2].1.len() - other - 8] += 1;
            }
            assert!(sizes.iter().all(|count| (150..250).contains(count)), "{sizes:?}");
        }
        let value = String::from_utf8(value(1_000)).expect("ASCII");
        let twice = format!("*2\r\n$4\r\nECHO\r\n$2001\r\n{value}-{value}\r\n");
        assert_eq!(requests_with(Protocol::Resp2, "ECHO {value}-{value}", "1000:1", 1), twice);
        assert_eq!(requests_with(Protocol::Resp2, "ECHO {value}-{value}", "1000", 1), twice);
        let nothing = "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n";
        assert_eq!(requests_with(Protocol::Resp2, "ECHO {value}", "0-0", 1), nothing);
    }

    #[test]
    fn values_of_several_sizes_as_lines() {
        let all = requests_with(Protocol::Memcached, "set", "3:1,12:1", 100);
        for size in [3, 12] {
            let value = String::from_utf8(value(size)).expect("ASCII");
            let count = all.matches(&format!(" 0 0 {size}\r\n{value}\r\n")).count();
            assert!((30..70).contains(&count), "{size}: {count}");
        }
    }

    #[test]
    fn unreplaced_placeholders_are_detected() {
        let unknown = |text: &str| -> String {
            text.parse::<Command>().expect("a command").unknown_placeholders().join(" ")
        };
        assert_eq!(unknown("SET {key} {value}"), "");
        assert_eq!(unknown("GET {ky}"), "{ky}");
        assert_eq!(unknown("MSET {user}:{key} {val} ; GET {"), "{user} {val}");
        assert_eq!(unknown("50% GET {KEY} ; 50% GET {same}"), "{KEY}");
    }

    #[test]
    fn invalid_commands_are_refused() {
        for bad in ["gett", "mixed:", "mixed:101", "mixed:x", "", " ", "GET {key} ; ", " ; PING"] {
            assert!(bad.parse::<Command>().is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_that_make_no_sense_are_refused() {
        for (bad, said) in [
            ("30% PING ; 60% TIME", "add up to 90,"),
            ("70% PING ; 70% TIME", "add up to 140,"),
            ("100% PING ; TIME", "has no percentage"),
            ("100% PING ; 0% TIME", "from 0.001"),
            ("150% PING ; -50% TIME", "from 0.001"),
            ("NaN% PING", "from 0.001"),
            ("inf% PING", "from 0.001"),
            ("100%", "before a command"),
            ("50% PING ; 50% ", "before a command"),
        ] {
            let error = bad.parse::<Command>().expect_err(bad).to_string();
            assert!(error.contains(said), "{bad}: {error}");
        }
    }
}
