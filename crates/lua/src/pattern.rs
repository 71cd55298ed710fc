//! Lua's patterns, for `string.find`, `match`, `gmatch` and `gsub`.
//!
//! Lua's own matcher runs to its end: nothing can stop a script whose pattern tries an exponential number of
//! ways, and a pattern of many optional items overflows the stack. This matcher asks regularly whether the
//! script may go on, and takes patterns of a bounded length. It matches the same texts as Lua 5.1, mistakes
//! in patterns included.
//!
//! Source: the reference manual of Lua 5.1, section 5.4.1; for open points, the answers of redis-server.

use std::ffi::CStr;

/// Most captures of a pattern.
const CAPTURES_MAX: usize = 32;

/// Most bytes of a pattern: matching goes a frame deeper for each of its items.
pub(crate) const LEN_MAX: usize = 4096;

/// Steps between two calls of `may_continue`: some tens of microseconds.
const CHECK_STEPS: usize = 10_000;

/// Reasons for a match without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The pattern is malformed.
    Bad(&'static CStr),
    /// The script may not go on.
    Ended,
}

type Answer<T> = Result<T, Stop>;

/// The match of a pair of parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caught<'t> {
    Text(&'t [u8]),
    /// Position of an empty pair, from 1 on.
    Position(usize),
}

#[derive(Clone, Copy)]
enum Extent {
    /// The end has not been reached.
    Open,
    Position,
    Len(usize),
}

#[derive(Clone, Copy)]
struct Capture {
    start: usize,
    extent: Extent,
}

/// A pattern, a text, and the captures of the last match. It owns no memory: Lua's errors may jump over it.
pub(crate) struct Matcher<'t> {
    subject: &'t [u8],
    pattern: &'t [u8],
    captures: [Capture; CAPTURES_MAX],
    level: usize,
    /// Steps since the last call of `may_continue`.
    steps: usize,
    may_continue: fn() -> bool,
}

impl<'t> Matcher<'t> {
    /// Creates a matcher. The pattern ends at its first zero byte.
    pub(crate) fn new(subject: &'t [u8], pattern: &'t [u8], may_continue: fn() -> bool) -> Matcher<'t> {
        let len = pattern.iter().position(|byte| *byte == 0).unwrap_or(pattern.len());
        let captures = [Capture { start: 0, extent: Extent::Open }; CAPTURES_MAX];
        Matcher { subject, pattern: &pattern[..len], captures, level: 0, steps: 0, may_continue }
    }

    /// Returns the end of a match that begins exactly at `at`, which is at most the length of the text.
    pub(crate) fn match_at(&mut self, at: usize) -> Answer<Option<usize>> {
        self.level = 0;
        self.go(at, 0)
    }

    /// Returns the number of captures in the last match.
    pub(crate) fn captures(&self) -> usize {
        self.level
    }

    /// Returns the capture of this index, from 0 on, in the match `whole`. A pattern without pairs has the
    /// whole match as its capture 0.
    pub(crate) fn caught(&self, index: usize, whole: (usize, usize)) -> Answer<Caught<'t>> {
        if index == 0 && self.level == 0 {
            return Ok(Caught::Text(self.between(whole.0, whole.1)));
        }
        let capture = self.captures[..self.level].get(index).ok_or(Stop::Bad(c"invalid capture index"))?;
        match capture.extent {
            Extent::Open => Err(Stop::Bad(c"unfinished capture")),
            Extent::Position => Ok(Caught::Position(capture.start + 1)),
            Extent::Len(len) => Ok(Caught::Text(self.between(capture.start, capture.start + len))),
        }
    }

    /// Returns a part of the text.
    pub(crate) fn between(&self, start: usize, end: usize) -> &'t [u8] {
        &self.subject[start..end]
    }

    fn spend(&mut self, steps: usize) -> Answer<()> {
        self.steps += steps;
        if self.steps >= CHECK_STEPS {
            self.steps = 0;
            if !(self.may_continue)() {
                return Err(Stop::Ended);
            }
        }
        Ok(())
    }

    /// Returns the byte of the pattern at `at`; zero at its end.
    fn item(&self, at: usize) -> u8 {
        self.pattern.get(at).copied().unwrap_or(0)
    }

    /// Matches the pattern from `p` on against the text from `s` on.
    fn go(&mut self, mut s: usize, mut p: usize) -> Answer<Option<usize>> {
        loop {
            self.spend(1)?;
            match (self.item(p), self.item(p + 1)) {
                (0, _) => return Ok(Some(s)),
                (b'(', b')') => return self.open(s, p + 2, Extent::Position),
                (b'(', _) => return self.open(s, p + 1, Extent::Open),
                (b')', _) => return self.close(s, p + 1),
                (b'$', 0) => return Ok((s == self.subject.len()).then_some(s)),
                (b'%', b'b') => {
                    let Some(end) = self.balanced(s, p + 2)? else { return Ok(None) };
                    (s, p) = (end, p + 4);
                }
                (b'%', b'f') => {
                    let set = p + 2;
                    if self.item(set) != b'[' {
                        return Err(Stop::Bad(c"missing '[' after '%f' in pattern"));
                    }
                    let end = self.item_end(set)?;
                    let before = if s == 0 { 0 } else { self.subject[s - 1] };
                    let here = self.subject.get(s).copied().unwrap_or(0);
                    if self.is_in_set(before, set, end) || !self.is_in_set(here, set, end) {
                        return Ok(None);
                    }
                    p = end;
                }
                (b'%', digit @ b'0'..=b'9') => {
                    let Some(end) = self.repeated(s, digit)? else { return Ok(None) };
                    (s, p) = (end, p + 2);
                }
                _ => {
                    let end = self.item_end(p)?;
                    let is_match = self.is_match(s, p, end);
                    match self.item(end) {
                        b'?' => {
                            if is_match && let Some(found) = self.go(s + 1, end + 1)? {
                                return Ok(Some(found));
                            }
                            p = end + 1;
                        }
                        b'*' => return self.as_many_as_can_be(s, p, end),
                        b'+' if is_match => return self.as_many_as_can_be(s + 1, p, end),
                        b'-' => return self.as_few_as_can_be(s, p, end),
                        b'+' => return Ok(None),
                        _ if is_match => (s, p) = (s + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    fn as_many_as_can_be(&mut self, s: usize, p: usize, end: usize) -> Answer<Option<usize>> {
        let mut count = 0;
        while self.is_match(s + count, p, end) {
            count += 1;
            self.spend(1)?;
        }
        for count in (0..=count).rev() {
            if let Some(found) = self.go(s + count, end + 1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn as_few_as_can_be(&mut self, mut s: usize, p: usize, end: usize) -> Answer<Option<usize>> {
        loop {
            if let Some(found) = self.go(s, end + 1)? {
                return Ok(Some(found));
            }
            if !self.is_match(s, p, end) {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open(&mut self, s: usize, p: usize, extent: Extent) -> Answer<Option<usize>> {
        let capture = self.captures.get_mut(self.level).ok_or(Stop::Bad(c"too many captures"))?;
        *capture = Capture { start: s, extent };
        self.level += 1;
        let found = self.go(s, p)?;
        if found.is_none() {
            self.level -= 1;
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Answer<Option<usize>> {
        let is_open = |capture: &Capture| matches!(capture.extent, Extent::Open);
        let index = self.captures[..self.level].iter().rposition(is_open);
        let index = index.ok_or(Stop::Bad(c"invalid pattern capture"))?;
        self.captures[index].extent = Extent::Len(s - self.captures[index].start);
        let found = self.go(s, p)?;
        if found.is_none() {
            self.captures[index].extent = Extent::Open;
        }
        Ok(found)
    }

    /// `%b`: matches from the first of two bytes to the second byte that balances it.
    fn balanced(&mut self, s: usize, p: usize) -> Answer<Option<usize>> {
        let (first, last) = (self.item(p), self.item(p + 1));
        if first == 0 || last == 0 {
            return Err(Stop::Bad(c"unbalanced pattern"));
        }
        if self.subject.get(s) != Some(&first) {
            return Ok(None);
        }
        let mut depth = 1;
        for at in s + 1..self.subject.len() {
            self.spend(1)?;
            let byte = self.subject[at];
            if byte == last {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == first {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// `%1`: matches the text of a capture again.
    fn repeated(&mut self, s: usize, digit: u8) -> Answer<Option<usize>> {
        let index = usize::from(digit).checked_sub(usize::from(b'1'));
        let capture = index.and_then(|index| self.captures[..self.level].get(index));
        let (start, len) = match capture.copied() {
            None | Some(Capture { extent: Extent::Open, .. }) => {
                return Err(Stop::Bad(c"invalid capture index"));
            }
            Some(Capture { extent: Extent::Position, .. }) => return Ok(None),
            Some(Capture { start, extent: Extent::Len(len) }) => (start, len),
        };
        self.spend(len)?;
        Ok(self.subject[s..].starts_with(&self.subject[start..start + len]).then_some(s + len))
    }

    /// Returns the end of the item at `p`, without its quantifier.
    fn item_end(&self, p: usize) -> Answer<usize> {
        match self.item(p) {
            b'%' if self.item(p + 1) == 0 => Err(Stop::Bad(c"malformed pattern (ends with '%')")),
            b'%' => Ok(p + 2),
            b'[' => {
                let mut at = if self.item(p + 1) == b'^' { p + 2 } else { p + 1 };
                // The first byte may be a bracket, and then belongs to the set.
                loop {
                    match (self.item(at), self.item(at + 1)) {
                        (0, _) => return Err(Stop::Bad(c"malformed pattern (missing ']')")),
                        (b'%', escaped) if escaped != 0 => at += 2,
                        _ => at += 1,
                    }
                    if self.item(at) == b']' {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    /// Whether the text's byte at `s` matches the item from `p` to `end`.
    fn is_match(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(byte) = self.subject.get(s) else { return false };
        match self.item(p) {
            b'.' => true,
            b'%' => is_in_class(*byte, self.item(p + 1)),
            b'[' => self.is_in_set(*byte, p, end),
            literal => *byte == literal,
        }
    }

    /// Whether the set from `p` to `end`, brackets included, contains this byte.
    fn is_in_set(&self, byte: u8, p: usize, end: usize) -> bool {
        let (mut at, is_in) = if self.item(p + 1) == b'^' { (p + 2, false) } else { (p + 1, true) };
        let bracket = end - 1;
        while at < bracket {
            let (first, last) = (self.item(at), self.item(at + 2));
            if first == b'%' {
                if is_in_class(byte, self.item(at + 1)) {
                    return is_in;
                }
                at += 2;
            } else if self.item(at + 1) == b'-' && at + 2 < bracket {
                if (first..=last).contains(&byte) {
                    return is_in;
                }
                at += 3;
            } else {
                if first == byte {
                    return is_in;
                }
                at += 1;
            }
        }
        !is_in
    }
}

/// Whether a class contains this byte. An upper-case class is the complement; a byte that names no class
/// stands for itself.
fn is_in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, b' ' | 9..=13),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return byte == class,
    };
    is_in == class.is_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(subject: &str, pattern: &str) -> Answer<Option<usize>> {
        Matcher::new(subject.as_bytes(), pattern.as_bytes(), || true).match_at(0)
    }

    #[test]
    fn long_searches_are_interrupted() {
        let (subject, pattern) = ("a".repeat(3_000), ".-".repeat(20) + "b");
        let mut matcher = Matcher::new(subject.as_bytes(), pattern.as_bytes(), || false);
        assert_eq!(matcher.match_at(0), Err(Stop::Ended));
        // Also within a single item, and where there is a single way.
        let subject = "(".repeat(20_000);
        for pattern in ["%b()", ".*", "(.-)%1%1%1x"] {
            let mut matcher = Matcher::new(subject.as_bytes(), pattern.as_bytes(), || false);
            assert_eq!(matcher.match_at(0), Err(Stop::Ended), "{pattern}");
        }
        let mut short = Matcher::new(b"aaa", b"a*", || false);
        assert_eq!(short.match_at(0), Ok(Some(3)));
    }

    #[test]
    fn the_longest_pattern_fits_the_stack() {
        // A test's thread has a stack of 2 MiB; threads that run scripts have eight times as much.
        let subject = "a".repeat(LEN_MAX);
        for item in ["a?", "a*", "a-"] {
            assert_eq!(matched(&subject, &item.repeat(LEN_MAX / 2)).map(|end| end.is_some()), Ok(true));
        }
    }

    #[test]
    fn captures_are_of_the_last_match() {
        let mut matcher = Matcher::new(b"key=value", b"(%w+)=()(%w+)", || true);
        assert_eq!(matcher.match_at(0), Ok(Some(9)));
        assert_eq!(matcher.captures(), 3);
        assert_eq!(matcher.caught(0, (0, 9)), Ok(Caught::Text(b"key")));
        assert_eq!(matcher.caught(1, (0, 9)), Ok(Caught::Position(5)));
        assert_eq!(matcher.caught(3, (0, 9)), Err(Stop::Bad(c"invalid capture index")));
        assert_eq!(matcher.match_at(4), Ok(None));
        assert_eq!(matcher.captures(), 0);
    }
}
