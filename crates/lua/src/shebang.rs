//! The first line of a script or library: `#!lua name=mylib flags=no-writes,allow-oom`.

use bitflags::bitflags;
use evenkeel_resp::request::{Parsed, State, parse};

use evenkeel_command::error::Error;

bitflags! {
    /// The flags that a script or a function declares.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ScriptFlags: u8 {
        const NO_WRITES = 1 << 0;
        const ALLOW_OOM = 1 << 1;
        const ALLOW_STALE = 1 << 2;
        const NO_CLUSTER = 1 << 3;
        const ALLOW_CROSS_SLOT = 1 << 4;
    }
}

impl ScriptFlags {
    /// The names that scripts use.
    const NAMES: [(&'static str, ScriptFlags); 5] = [
        ("no-writes", ScriptFlags::NO_WRITES),
        ("allow-oom", ScriptFlags::ALLOW_OOM),
        ("allow-stale", ScriptFlags::ALLOW_STALE),
        ("no-cluster", ScriptFlags::NO_CLUSTER),
        ("allow-cross-slot-keys", ScriptFlags::ALLOW_CROSS_SLOT),
    ];

    pub fn has(self, flag: ScriptFlags) -> bool {
        self.contains(flag)
    }

    /// Returns the flag of this name.
    pub fn named(name: &[u8]) -> Option<ScriptFlags> {
        let of_name = |(known, _): &&(&str, ScriptFlags)| known.as_bytes() == name;
        Self::NAMES.iter().find(of_name).map(|(_, flag)| *flag)
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(_, flag)| self.has(*flag)).map(|(name, _)| name)
    }
}

/// Returns the first line without its end, which must precede any zero byte. `None`: the text does not begin
/// with a shebang.
fn first_line(text: &[u8]) -> Option<Result<&[u8], ()>> {
    text.starts_with(b"#!").then(|| match text.iter().position(|byte| matches!(byte, b'\n' | 0)) {
        Some(end) if text[end] == b'\n' => Ok(&text[..end]),
        _ => Err(()),
    })
}

/// Splits a line into words, some of which may be quoted, as in an inline command.
fn quoted_words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut line, mut spans) = ([line, b"\n"].concat(), Vec::new());
    let limit = line.len();
    match parse(&mut line, State::start(0), &mut spans, limit) {
        Ok(Parsed::Ready(_)) => Some(spans.iter().map(|span| span.of(&line).to_vec()).collect()),
        _ => None,
    }
}

fn quoting(text: &str, word: &[u8]) -> Error {
    Error::Bytes([text.as_bytes(), word].concat())
}

/// Returns the flags of a script; `None` without a shebang.
pub fn of_script(body: &[u8]) -> Result<Option<ScriptFlags>, Error> {
    let line = match first_line(body) {
        None => return Ok(None),
        Some(line) => line.map_err(|()| Error::text("ERR Invalid script shebang"))?,
    };
    let words = quoted_words(line).ok_or_else(|| Error::text("ERR Invalid engine in script shebang"))?;
    let mut words = words.iter().map(Vec::as_slice);
    let engine = words.next().and_then(|word| word.strip_prefix(b"#!")).unwrap_or_default();
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err(Error::Bytes([b"ERR Could not find scripting engine '", engine, b"'"].concat()));
    }
    let mut flags = ScriptFlags::default();
    for word in words {
        let Some(list) = word.strip_prefix(b"flags=") else {
            return Err(quoting("ERR Unknown lua shebang option: ", word));
        };
        if list.is_empty() {
            continue;
        }
        for name in list.split(|byte| *byte == b',') {
            let flag = ScriptFlags::named(name);
            flags |= flag.ok_or_else(|| quoting("ERR Unexpected flag in script shebang: ", name))?;
        }
    }
    Ok(Some(flags))
}

/// Returns the text for Lua: without the shebang but with its line end, so that lines keep their numbers.
pub fn code(text: &[u8]) -> &[u8] {
    match first_line(text) {
        Some(Ok(line)) => &text[line.len()..],
        _ => text,
    }
}

/// Returns the name that a library declares.
pub fn library_name(code: &[u8]) -> Result<Vec<u8>, Error> {
    let line = match first_line(code) {
        None => return Err(Error::text("ERR Missing library metadata")),
        Some(line) => line.map_err(|()| Error::text("ERR Invalid library metadata"))?,
    };
    let words = quoted_words(line).ok_or_else(|| Error::text("ERR Invalid library metadata"))?;
    let mut words = words.iter().map(Vec::as_slice);
    let engine = words.next().and_then(|word| word.strip_prefix(b"#!"));
    let engine = engine.ok_or_else(|| Error::text("ERR Invalid library metadata"))?;
    let mut name = None;
    for word in words {
        let given = word.split_at_checked(5).filter(|(key, _)| key.eq_ignore_ascii_case(b"name="));
        let (_, given) = given.ok_or_else(|| quoting("ERR Invalid metadata value given: ", word))?;
        if name.replace(given.to_vec()).is_some() {
            return Err(Error::text("ERR Invalid metadata value, name argument was given multiple times"));
        }
    }
    let name = name.ok_or_else(|| Error::text("ERR Library name was not given"))?;
    if !is_name(&name) {
        return Err(bad_name());
    }
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err(Error::Bytes([b"ERR Engine '", engine, b"' not found"].concat()));
    }
    Ok(name)
}

/// Whether `name` is valid for a library or a function.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn bad_name() -> Error {
    Error::text(
        "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one \
         character long",
    )
}
