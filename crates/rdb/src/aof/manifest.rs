//! The manifest: the list of the files that are the data, in order.
//!
//! ```text
//! file appendonly.aof.2.base.rdb seq 2 type b        once at most, in any line: loaded first
//! file appendonly.aof.1.incr.aof seq 1 type h        history: contained in the base, waits to be removed
//! file appendonly.aof.4.incr.aof seq 4 type i        in ascending order, gaps allowed: loaded next
//! # a comment
//! ```
//!
//! A line may have pairs with other keys, which are ignored, as Redis does for later versions. Stricter than
//! Redis: a number is digits only, a type is a single letter, no line repeats a key, no two lines name the
//! same file.

use std::fmt;

use crate::aof::line;

/// Longest line with its end, in bytes: Redis reads no longer line.
pub(crate) const LINE_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    pub base: Option<Entry>,
    /// Ascending by number.
    pub incremental: Vec<Entry>,
    pub history: Vec<Entry>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file name, without a folder.
    pub name: Vec<u8>,
    /// From 1 to `i64::MAX`; bases and incremental files are counted apart.
    pub seq: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    Base,
    Incremental,
    History,
}

impl PartKind {
    fn letter(self) -> char {
        match self {
            PartKind::Base => 'b',
            PartKind::Incremental => 'i',
            PartKind::History => 'h',
        }
    }

    fn of(word: &[u8]) -> Option<PartKind> {
        match word {
            b"b" => Some(PartKind::Base),
            b"i" => Some(PartKind::Incremental),
            b"h" => Some(PartKind::History),
            _ => None,
        }
    }
}

/// The fault of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// From 1; 0: the manifest as a whole.
    pub line: usize,
    /// The line, shortened where it is long.
    pub text: String,
    pub flaw: Flaw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    Empty,
    /// Too long, or cut off: without its end.
    TooLong,
    Format,
    Path,
    DuplicateBase,
    /// Not Redis' text: Redis reads such a file twice.
    DuplicateFile,
    Order,
    UnknownType,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flaw::Empty => "Found an empty AOF manifest",
            Flaw::TooLong => "The AOF manifest file contains too long line",
            Flaw::Format => "Invalid AOF manifest file format",
            Flaw::Path => "File can't be a path, just a filename",
            Flaw::DuplicateBase => "Found duplicate base file information",
            Flaw::DuplicateFile => "Found the same file in two lines",
            Flaw::Order => "Found a non-monotonic sequence number",
            Flaw::UnknownType => "Unknown AOF file type",
        })
    }
}

impl Manifest {
    pub fn parse(bytes: &[u8]) -> Result<Manifest, LineError> {
        if bytes.is_empty() {
            return Err(LineError { line: 0, text: String::new(), flaw: Flaw::Empty });
        }
        let mut manifest = Manifest::default();
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            manifest.take_line(line).map_err(|flaw| LineError {
                line: index + 1,
                text: String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES_MAX)]).trim().to_owned(),
                flaw,
            })?;
        }
        Ok(manifest)
    }

    /// Whether there are no data: neither a base nor incremental files.
    pub fn is_empty(&self) -> bool {
        self.base.is_none() && self.incremental.is_empty()
    }

    /// All files; the files to be loaded come first, in order.
    pub fn entries(&self) -> impl Iterator<Item = (PartKind, &Entry)> {
        let of = |kind| move |entry| (kind, entry);
        let incremental = self.incremental.iter().map(of(PartKind::Incremental));
        let history = self.history.iter().map(of(PartKind::History));
        self.base.iter().map(of(PartKind::Base)).chain(incremental).chain(history)
    }

    /// The files that are loaded, in order.
    pub fn data(&self) -> impl Iterator<Item = (PartKind, &Entry)> {
        self.entries().filter(|(kind, _)| *kind != PartKind::History)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        if self.entries().next().is_none() {
            return b"# no data yet\n".to_vec(); // Redis takes an empty file for a broken manifest
        }
        let mut out = Vec::new();
        let mut push = |kind: PartKind, entry: &Entry| {
            out.extend_from_slice(b"file ");
            line::push(&mut out, &entry.name);
            out.extend_from_slice(format!(" seq {} type {}\n", entry.seq, kind.letter()).as_bytes());
        };
        // In Redis' order, which puts history in the middle.
        self.base.iter().for_each(|entry| push(PartKind::Base, entry));
        self.history.iter().for_each(|entry| push(PartKind::History, entry));
        self.incremental.iter().for_each(|entry| push(PartKind::Incremental, entry));
        out
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), Flaw> {
        if line.len() >= LINE_BYTES_MAX || !line.ends_with(b"\n") {
            return Err(Flaw::TooLong);
        }
        if line.starts_with(b"#") {
            return Ok(());
        }
        let (kind, entry) = entry(line)?;
        if self.entries().any(|(_, other)| other.name == entry.name) {
            return Err(Flaw::DuplicateFile);
        }
        match kind {
            PartKind::Base if self.base.is_some() => return Err(Flaw::DuplicateBase),
            PartKind::Base => self.base = Some(entry),
            PartKind::History => self.history.push(entry),
            PartKind::Incremental => {
                if self.incremental.last().is_some_and(|last| last.seq >= entry.seq) {
                    return Err(Flaw::Order);
                }
                self.incremental.push(entry);
            }
        }
        Ok(())
    }
}

fn entry(line: &[u8]) -> Result<(PartKind, Entry), Flaw> {
    let words = line::split(line.trim_ascii()).ok_or(Flaw::Format)?;
    if words.len() % 2 != 0 {
        return Err(Flaw::Format);
    }
    let (mut name, mut seq, mut kind) = (None, None, None);
    for pair in words.chunks_exact(2) {
        let (key, value) = (&pair[0], &pair[1]);
        let slot = match key.to_ascii_lowercase().as_slice() {
            b"file" => &mut name,
            b"seq" => &mut seq,
            b"type" => &mut kind,
            _ => continue,
        };
        if slot.replace(value).is_some() {
            return Err(Flaw::Format);
        }
    }
    let (Some(name), Some(seq), Some(kind)) = (name, seq, kind) else { return Err(Flaw::Format) };
    let seq = sequence(seq).ok_or(Flaw::Format)?;
    if !is_file_name(name) {
        return Err(Flaw::Path);
    }
    let kind = PartKind::of(kind).ok_or(Flaw::UnknownType)?;
    Ok((kind, Entry { name: name.clone(), seq }))
}

fn sequence(word: &[u8]) -> Option<u64> {
    if !word.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    (1..=i64::MAX as u64).contains(&number).then_some(number)
}

/// A name that cannot lead out of its folder.
pub(crate) fn is_file_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flaw(text: &str) -> (usize, Flaw) {
        let error = Manifest::parse(text.as_bytes()).expect_err("it is broken");
        (error.line, error.flaw)
    }

    #[test]
    fn manifests_that_redis_accepts_are_accepted() {
        let text = "# by hand\nfile a.1.incr.aof seq 1 type h\n  TYPE i startoffset 5 FILE \"a 7\" SeQ 7\r\n\
                    file a.9 seq 9 type i\nfile a.2.base.rdb seq 2 type b\n";
        let manifest = Manifest::parse(text.as_bytes()).expect("it is well-formed");
        let entry = |name: &str, seq| Entry { name: name.into(), seq };
        assert_eq!(manifest.base, Some(entry("a.2.base.rdb", 2)));
        assert_eq!(manifest.incremental, [entry("a 7", 7), entry("a.9", 9)]);
        assert_eq!(manifest.history, [entry("a.1.incr.aof", 1)]);
        let written = "file a.2.base.rdb seq 2 type b\nfile a.1.incr.aof seq 1 type h\n\
                       file \"a 7\" seq 7 type i\nfile a.9 seq 9 type i\n";
        assert_eq!(String::from_utf8(manifest.to_bytes()).as_deref(), Ok(written));
        assert_eq!(Manifest::parse(written.as_bytes()), Ok(manifest));
    }

    #[test]
    fn a_manifest_of_no_files_is_not_an_empty_file() {
        let bytes = Manifest::default().to_bytes();
        assert_eq!(Manifest::parse(&bytes), Ok(Manifest::default()));
        assert_eq!(flaw(""), (0, Flaw::Empty));
    }

    #[test]
    fn manifests_that_redis_refuses_are_refused_with_its_messages() {
        for (text, expected) in [
            ("\n", (1, Flaw::Format)),
            ("file a seq 1 type i", (1, Flaw::TooLong)),
            ("file a seq 1 type i\nfile b seq 1 type i\n", (2, Flaw::Order)),
            ("file b seq 2 type i\nfile a seq 1 type i\n", (2, Flaw::Order)),
            ("file a seq 0 type i\n", (1, Flaw::Format)),
            ("file a seq 9223372036854775808 type i\n", (1, Flaw::Format)),
            ("file a seq 1 type x\n", (1, Flaw::UnknownType)),
            ("file a seq 1 type i odd\n", (1, Flaw::Format)),
            ("filx a seq 1 type i\n", (1, Flaw::Format)),
            ("file a type i\n", (1, Flaw::Format)),
            ("file \"a seq 1 type i\n", (1, Flaw::Format)),
            ("file x/a seq 1 type i\n", (1, Flaw::Path)),
            ("file a seq 1 type b\nfile b seq 2 type b\n", (2, Flaw::DuplicateBase)),
        ] {
            assert_eq!(flaw(text), expected, "{text:?}");
        }
        let line = |length: usize| format!("#{}\n", "x".repeat(length - 2));
        assert!(Manifest::parse(line(LINE_BYTES_MAX - 1).as_bytes()).is_ok());
        assert_eq!(flaw(&line(LINE_BYTES_MAX)), (1, Flaw::TooLong));
    }

    #[test]
    fn flaws_that_redis_misses_are_refused() {
        for (text, expected) in [
            ("file a seq 1x type i\n", (1, Flaw::Format)),
            ("file a seq +1 type i\n", (1, Flaw::Format)),
            ("file a seq 1 type incr\n", (1, Flaw::UnknownType)),
            ("file a file b seq 1 type i\n", (1, Flaw::Format)),
            ("file a seq 1 type i\nfile a seq 2 type i\n", (2, Flaw::DuplicateFile)),
            ("file .. seq 1 type i\n", (1, Flaw::Path)),
            ("file \"\" seq 1 type i\n", (1, Flaw::Path)),
        ] {
            assert_eq!(flaw(text), expected, "{text:?}");
        }
    }
}
