//! The bytes of requests: a command's fixed parts are made once, and each request is those parts with a key between.
//!
//! Copying 500 bytes of prepared value costs about 10 ns, a fiftieth of what the kernel takes to send them; so requests
//! are put together afresh for each batch, and any mix of commands needs no further machinery.

use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::endpoint::Protocol;
use super::keys::{self, KeyStream, Random};

/// What to send, as asked for on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Get,
    Set,
    /// GET, and SET for so many requests of a hundred.
    Mixed {
        writes_percent: u8,
    },
    /// Words of a command, in which `{key}` and `{value}` stand for a key and the value, `{same}` for the key before, and
    /// `{number}` for the digits of a key. Several commands, separated by ` ; `, come by turns.
    Words(String),
}

impl FromStr for Command {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(percent) = text.strip_prefix("mixed") {
            let percent = percent.strip_prefix(':').unwrap_or("10");
            let writes_percent = percent.parse().ok().filter(|percent| *percent <= 100);
            return Ok(Self::Mixed { writes_percent: writes_percent.context("mixed:PERCENT, 0 to 100")? });
        }
        match text {
            "get" => Ok(Self::Get),
            "set" => Ok(Self::Set),
            words if words.contains(' ') => Ok(Self::Words(words.to_owned())),
            word if !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase()) => {
                Ok(Self::Words(word.to_owned()))
            }
            _ => bail!("use get, set, mixed, mixed:PERCENT, or a command such as \"INCR {{key}}\""),
        }
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Get => f.write_str("GET"),
            Self::Set => f.write_str("SET"),
            Self::Mixed { writes_percent } => write!(f, "GET with {writes_percent}% SET"),
            Self::Words(words) => f.write_str(words),
        }
    }
}

/// A stretch of a request.
#[derive(Clone, Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// The next key.
    Key,
    /// The key before, once more.
    Same,
    /// The digits of the next key.
    Number,
}

/// One command.
#[derive(Debug)]
struct Template {
    pieces: Vec<Piece>,
    key_size: usize,
}

impl Template {
    fn new(words: &[&str], key_size: usize, value: &[u8]) -> Self {
        let mut template = Self { pieces: Vec::new(), key_size };
        template.add_bytes(format!("*{}\r\n", words.len()).as_bytes());
        words.iter().for_each(|word| template.add_word(word, value));
        template
    }

    /// A key between two stretches of text, and what follows.
    fn lines([before, after]: [&str; 2], key_size: usize, rest: &[u8]) -> Self {
        let pieces =
            vec![Piece::Bytes(before.into()), Piece::Key, Piece::Bytes([after.as_bytes(), rest].concat())];
        Self { pieces, key_size }
    }

    fn add_word(&mut self, word: &str, value: &[u8]) {
        let word = word.replace("{value}", &String::from_utf8_lossy(value));
        let (mut pieces, mut rest) = (Vec::new(), &word[..]);
        while let Some((at, name, piece)) = first_placeholder(rest) {
            pieces.extend([Piece::Bytes(rest[..at].into()), piece]);
            rest = &rest[at + name.len()..];
        }
        pieces.push(Piece::Bytes(rest.into()));
        let size: usize = pieces.iter().map(|piece| self.size(piece)).sum();
        self.add_bytes(format!("${size}\r\n").as_bytes());
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => self.add_bytes(&bytes),
                key => self.pieces.push(key),
            }
        }
        self.add_bytes(b"\r\n");
    }

    fn size(&self, piece: &Piece) -> usize {
        match piece {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Key | Piece::Same => self.key_size,
            Piece::Number => self.key_size - keys::PREFIX.len(),
        }
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        match self.pieces.last_mut() {
            Some(Piece::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.pieces.push(Piece::Bytes(bytes.into())),
        }
    }

    /// Appends a request; `last` is the number of the key before.
    fn append(&self, keys: &mut KeyStream, last: &mut u64, out: &mut Vec<u8>) {
        for piece in &self.pieces {
            match piece {
                Piece::Bytes(bytes) => out.extend_from_slice(bytes),
                Piece::Key => {
                    *last = keys.next();
                    keys::write(*last, self.key_size, out);
                }
                Piece::Same => keys::write(*last, self.key_size, out),
                Piece::Number => keys::write_digits(keys.next(), self.key_size - keys::PREFIX.len(), out),
            }
        }
    }
}

/// Where the first placeholder of a word is, and what it stands for.
fn first_placeholder(word: &str) -> Option<(usize, &'static str, Piece)> {
    let all = [("{key}", Piece::Key), ("{same}", Piece::Same), ("{number}", Piece::Number)];
    let found = all.into_iter().filter_map(|(name, piece)| Some((word.find(name)?, name, piece)));
    found.min_by_key(|(at, ..)| *at)
}

/// Writes one request after the other.
#[derive(Debug)]
pub(crate) struct Composer {
    /// They come by turns.
    often: Vec<Template>,
    turn: usize,
    /// The rarer one of a mix.
    rarely: Option<(Template, u8)>,
    keys: KeyStream,
    last_key: u64,
    random: Random,
}

impl Composer {
    pub(crate) fn new(
        protocol: Protocol,
        command: &Command,
        key_size: usize,
        value_size: usize,
        keys: KeyStream,
    ) -> Self {
        let value = value(value_size);
        let template = |words: &[&str]| Template::new(words, key_size, &value);
        let get = || match protocol {
            Protocol::Memcached => Template::lines(["get ", "\r\n"], key_size, b""),
            _ => template(&["GET", "{key}"]),
        };
        let set = || match protocol {
            Protocol::Memcached => Template::lines(
                ["set ", &format!(" 0 0 {value_size}\r\n")],
                key_size,
                &[&value[..], b"\r\n"].concat(),
            ),
            _ => template(&["SET", "{key}", "{value}"]),
        };
        let (often, rarely) = match command {
            Command::Get => (vec![get()], None),
            Command::Set => (vec![set()], None),
            Command::Mixed { writes_percent } => (vec![get()], Some((set(), *writes_percent))),
            Command::Words(commands) => {
                let words = |command: &str| template(&command.split_whitespace().collect::<Vec<_>>());
                (commands.split(" ; ").map(words).collect(), None)
            }
        };
        let turn = often.len() - 1;
        Self { often, turn, rarely, keys, last_key: 0, random: Random::new(0x5eed) }
    }

    pub(crate) fn append(&mut self, out: &mut Vec<u8>) {
        let template = match &self.rarely {
            Some((rarely, percent)) if self.random.below(100) < u64::from(*percent) => rarely,
            _ => {
                self.turn = if self.turn + 1 >= self.often.len() { 0 } else { self.turn + 1 };
                &self.often[self.turn]
            }
        };
        template.append(&mut self.keys, &mut self.last_key, out);
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
        let keys = KeyStream::new(KeyRange { first: 7, count: 100 }, Distribution::Sequential, 1);
        let command: Command = command.parse().expect("a command");
        let mut composer = Composer::new(protocol, &command, 8, 3, keys);
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
    fn what_is_no_command_is_refused() {
        for bad in ["gett", "mixed:", "mixed:101", "mixed:x", ""] {
            assert!(bad.parse::<Command>().is_err(), "{bad}");
        }
    }
}
