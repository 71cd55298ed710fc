//! The bytes of requests: a command's fixed parts are made once, and each request is those parts with a key between.
//!
//! Copying 500 bytes of prepared value costs about 10 ns, a fiftieth of what the kernel takes to send them; so requests
//! are put together afresh for each batch, and any mix of commands needs no further machinery.

use std::str::FromStr;

use anyhow::{Context, Result, bail};

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
    /// Words of a command, in which `{key}` and `{value}` stand for a key and the value.
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

/// One command: `parts[0]`, a key, `parts[1]`, a key, ... `parts[n]`.
#[derive(Debug)]
struct Template {
    parts: Vec<Vec<u8>>,
    key_size: usize,
}

impl Template {
    fn new(words: &[&str], key_size: usize, value: &[u8]) -> Self {
        let mut parts = vec![format!("*{}\r\n", words.len()).into_bytes()];
        for word in words {
            Self::add_word(&mut parts, word, key_size, value);
        }
        Self { parts, key_size }
    }

    fn add_word(parts: &mut Vec<Vec<u8>>, word: &str, key_size: usize, value: &[u8]) {
        let word = word.replace("{value}", &String::from_utf8_lossy(value));
        let texts: Vec<&str> = word.split("{key}").collect();
        let size: usize = texts.iter().map(|text| text.len()).sum::<usize>() + (texts.len() - 1) * key_size;
        let mut last = parts.pop().expect("starts with one part and each pop is followed by a push");
        last.extend_from_slice(format!("${size}\r\n").as_bytes());
        for (index, text) in texts.iter().enumerate() {
            if index > 0 {
                parts.push(std::mem::take(&mut last));
            }
            last.extend_from_slice(text.as_bytes());
        }
        last.extend_from_slice(b"\r\n");
        parts.push(last);
    }

    fn append(&self, keys: &mut KeyStream, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.parts[0]);
        for part in &self.parts[1..] {
            keys::write(keys.next(), self.key_size, out);
            out.extend_from_slice(part);
        }
    }
}

/// Writes one request after the other.
#[derive(Debug)]
pub(crate) struct Composer {
    /// The command, and the rarer one of a mix.
    often: Template,
    rarely: Option<(Template, u8)>,
    keys: KeyStream,
    random: Random,
}

impl Composer {
    pub(crate) fn new(command: &Command, key_size: usize, value_size: usize, keys: KeyStream) -> Self {
        let value = value(value_size);
        let template = |words: &[&str]| Template::new(words, key_size, &value);
        let (get, set) = (["GET", "{key}"], ["SET", "{key}", "{value}"]);
        let (often, rarely) = match command {
            Command::Get => (template(&get), None),
            Command::Set => (template(&set), None),
            Command::Mixed { writes_percent } => (template(&get), Some((template(&set), *writes_percent))),
            Command::Words(words) => (template(&words.split_whitespace().collect::<Vec<_>>()), None),
        };
        Self { often, rarely, keys, random: Random::new(0x5eed) }
    }

    pub(crate) fn append(&mut self, out: &mut Vec<u8>) {
        let template = match &self.rarely {
            Some((rarely, percent)) if self.random.below(100) < u64::from(*percent) => rarely,
            _ => &self.often,
        };
        template.append(&mut self.keys, out);
    }
}

/// Letters without a pattern, so that no server can profit from a regular value.
fn value(size: usize) -> Vec<u8> {
    let mut random = Random::new(0xda7a);
    (0..size).map(|_| b'a' + random.below(26) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::super::keys::{Distribution, KeyRange};
    use super::*;

    fn requests(command: &str, count: usize) -> String {
        let keys = KeyStream::new(KeyRange { first: 7, count: 100 }, Distribution::Sequential, 1);
        let command: Command = command.parse().expect("a command");
        let mut composer = Composer::new(&command, 8, 3, keys);
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
    fn any_command() {
        assert_eq!(
            requests("MGET {key} a{key}b", 1),
            "*3\r\n$4\r\nMGET\r\n$8\r\nkey:0007\r\n$10\r\nakey:0008b\r\n"
        );
        assert_eq!(requests("PING", 1), "*1\r\n$4\r\nPING\r\n");
        assert_eq!(requests("PING x", 1), "*2\r\n$4\r\nPING\r\n$1\r\nx\r\n");
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
