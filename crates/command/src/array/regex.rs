//! Regular expressions of ARGREP: POSIX' extended ones with the additions of TRE, Redis' library, over bytes.
//!
//! This module reads the syntax; crate `regex-automata` matches, in time that is linear in the text. Its own
//! syntax would differ: in brackets, backslashes, and many escapes.
//!
//! ```text
//! . [a-z] [^[:alpha:]]    any byte, one of several, one of all others
//! x* x+ x? x{2,5}         repetitions; a question mark behind them has no effect here
//! x|y (x) (?:x) (?i:x)    choices and groups; without regard to case
//! ^ $ \< \> \b \B         the ends of the text and of words
//! \w \W \s \S \d \D       classes;  \t \n \r \f \a \e \x41 \x{41} bytes;  \Q..\E literally
//! ```

use regex_automata::meta;
use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir, Look, Repetition};

use crate::error::Error;

/// Bytes of a compiled expression, and of the states that are made of it while it is used.
const COMPILED_MAX: usize = 1 << 20;
const CACHE_MAX: usize = 1 << 19;

/// Most groups inside each other.
const DEPTH_MAX: usize = 200;

/// Most repetitions.
const REPEATS_MAX: u32 = 255;

/// A compiled expression.
pub(super) struct Regex {
    compiled: meta::Regex,
    len: usize,
}

impl Regex {
    pub(super) fn new(text: &[u8], ignore_case: bool) -> Result<Regex, Error> {
        if text.is_empty() {
            return Err(Error::text("ERR regular expression is empty"));
        }
        let mut parser = Parser { text, at: 0, ignore_case, groups: 0, refers: None };
        let parsed = parser.choice(0).and_then(|hir| match parser.refers {
            Some(group) if group > parser.groups => Err("Invalid back reference"),
            _ => Ok(hir),
        });
        let hir = parsed.map_err(invalid)?;
        if parser.refers.is_some() {
            return Err(Error::text("ERR regular expression backreferences are not supported"));
        }
        let config = meta::Config::new()
            .utf8_empty(false)
            .nfa_size_limit(Some(COMPILED_MAX))
            .hybrid_cache_capacity(CACHE_MAX);
        let compiled = meta::Builder::new().configure(config).build_from_hir(&hir);
        Ok(Regex { compiled: compiled.map_err(|_| invalid("Out of memory"))?, len: text.len() })
    }

    pub(super) fn is_match(&self, text: &[u8]) -> bool {
        self.compiled.is_match(text)
    }

    /// The length of the expression.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

fn invalid(reason: &'static str) -> Error {
    Error::text(format!("ERR invalid regular expression: {reason}"))
}

/// The reason why a text is no expression, in TRE's words.
type Parsed<T> = Result<T, &'static str>;

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    ignore_case: bool,
    groups: usize,
    /// The highest group that is referred to.
    refers: Option<usize>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn rest(&self) -> &[u8] {
        &self.text[self.at..]
    }

    /// Passes a byte if it comes next.
    fn passes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Sequences between bars, up to the end of the group or of the text.
    fn choice(&mut self, depth: usize) -> Parsed<Hir> {
        if depth > DEPTH_MAX {
            return Err("Out of memory");
        }
        let mut branches = vec![self.sequence(depth)?];
        while self.passes(b'|') {
            branches.push(self.sequence(depth)?);
        }
        Ok(Hir::alternation(branches))
    }

    fn sequence(&mut self, depth: usize) -> Parsed<Hir> {
        let mut parts = Vec::new();
        while let Some(byte) = self.peek() {
            if byte == b'|' || byte == b')' && depth > 0 {
                break;
            }
            let atom = self.atom(depth)?;
            parts.push(self.repeated(atom)?);
        }
        Ok(Hir::concat(parts))
    }

    fn atom(&mut self, depth: usize) -> Parsed<Hir> {
        let Some(byte) = self.peek() else { return Ok(Hir::empty()) };
        if matches!(byte, b'*' | b'+' | b'?' | b'{') {
            return Ok(Hir::empty()); // repetitions of nothing
        }
        self.at += 1;
        match byte {
            b'(' => self.group(depth),
            b'[' => self.bracket(),
            b'\\' => self.escape(),
            b'.' => Ok(class_of([(0, 255)])),
            b'^' => Ok(Hir::look(Look::Start)),
            b'$' => Ok(Hir::look(Look::End)),
            byte => Ok(self.literal(byte)),
        }
    }

    fn literal(&self, byte: u8) -> Hir {
        if self.ignore_case && byte.is_ascii_alphabetic() {
            let (lower, upper) = (byte.to_ascii_lowercase(), byte.to_ascii_uppercase());
            return class_of([(lower, lower), (upper, upper)]);
        }
        Hir::literal([byte])
    }

    /// A group, behind its parenthesis.
    fn group(&mut self, depth: usize) -> Parsed<Hir> {
        let ignore_case = self.ignore_case;
        if self.passes(b'?') {
            if self.passes(b'#') {
                return self.comment();
            }
            if self.flags()? == b')' {
                return Ok(Hir::empty()); // for all that follows
            }
        } else {
            self.groups += 1;
        }
        let inside = self.choice(depth + 1)?;
        self.ignore_case = ignore_case;
        if self.passes(b')') { Ok(inside) } else { Err("Missing ')'") }
    }

    fn comment(&mut self) -> Parsed<Hir> {
        let end = self.rest().iter().position(|byte| *byte == b')').ok_or("Invalid regexp")?;
        self.at += end + 1;
        Ok(Hir::empty())
    }

    /// Letters that turn options on and, behind a minus, off. Returns the byte that ends them.
    fn flags(&mut self) -> Parsed<u8> {
        let mut on = true;
        loop {
            let byte = self.peek().ok_or("Invalid regexp")?;
            self.at += 1;
            match byte {
                b'i' => self.ignore_case = on,
                b'-' => on = false,
                // These change which of several matches is found, not whether there is one.
                b'r' | b'U' => {}
                b':' | b')' => return Ok(byte),
                _ => return Err("Invalid regexp"),
            }
        }
    }

    /// The repetitions behind an atom.
    fn repeated(&mut self, mut atom: Hir) -> Parsed<Hir> {
        loop {
            let (min, max) = match self.peek() {
                Some(b'*') => (0, None),
                Some(b'+') => (1, None),
                Some(b'?') => (0, Some(1)),
                Some(b'{') => {
                    let (min, max) = self.bound()?;
                    self.passes(b'?');
                    atom = repetition(atom, min, max);
                    continue;
                }
                _ => return Ok(atom),
            };
            self.at += 1;
            if matches!(self.peek(), Some(b'*' | b'+')) {
                return Err("Invalid use of repetition operators");
            }
            self.passes(b'?');
            atom = repetition(atom, min, max);
        }
    }

    /// The numbers in braces.
    fn bound(&mut self) -> Parsed<(u32, Option<u32>)> {
        const CONTENTS: &str = "Invalid contents of {}";
        self.at += 1;
        if self.peek().is_none() {
            return Err("Missing '}'");
        }
        let min = self.number();
        let max = if self.passes(b',') { self.number() } else { min };
        let is_open = self.text.get(self.at - 1) == Some(&b',');
        if self.peek().is_none() {
            return Err("Missing '}'");
        }
        if !self.passes(b'}') || min.is_none() && max.is_none() {
            return Err(CONTENTS);
        }
        let (least, most) = (min.unwrap_or(0), max.or(min).unwrap_or(0));
        if least.max(most) > REPEATS_MAX || !is_open && least > most {
            return Err(CONTENTS);
        }
        Ok((least, if is_open { None } else { Some(most) }))
    }

    fn number(&mut self) -> Option<u32> {
        let mut number = None;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            self.at += 1;
            number = Some(number.unwrap_or(0_u32).saturating_mul(10).saturating_add(u32::from(digit - b'0')));
        }
        number
    }

    /// What stands behind a backslash.
    fn escape(&mut self) -> Parsed<Hir> {
        let byte = self.peek().ok_or("Trailing backslash")?;
        self.at += 1;
        Ok(match byte {
            b'w' => class_of(WORD.iter().copied()),
            b'W' => negated(WORD),
            b's' => class_of(SPACE.iter().copied()),
            b'S' => negated(SPACE),
            b'd' => class_of(DIGIT.iter().copied()),
            b'D' => negated(DIGIT),
            b't' => Hir::literal(*b"\t"),
            b'n' => Hir::literal(*b"\n"),
            b'r' => Hir::literal(*b"\r"),
            b'f' => Hir::literal(*b"\x0c"),
            b'a' => Hir::literal(*b"\x07"),
            b'e' => Hir::literal(*b"\x1b"),
            b'x' => return self.hexadecimal(),
            b'Q' => self.quoted(),
            b'<' => Hir::look(Look::WordStartAscii),
            b'>' => Hir::look(Look::WordEndAscii),
            b'b' => Hir::look(Look::WordAscii),
            b'B' => Hir::look(Look::WordAsciiNegate),
            b'0'..=b'9' => {
                let group = usize::from(byte - b'0');
                self.refers = self.refers.max(Some(group));
                Hir::empty()
            }
            byte => self.literal(byte),
        })
    }

    /// Up to two digits, or any number of them in braces.
    fn hexadecimal(&mut self) -> Parsed<Hir> {
        let in_braces = self.passes(b'{');
        let (mut value, mut digits) = (0_u32, 0);
        while in_braces || digits < 2 {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(16)) else { break };
            value = value.saturating_mul(16).saturating_add(digit);
            (self.at, digits) = (self.at + 1, digits + 1);
        }
        if in_braces && !self.passes(b'}') {
            return Err("Missing '}'");
        }
        // No byte has a higher number.
        Ok(u8::try_from(value).map_or_else(|_| Hir::fail(), |byte| self.literal(byte)))
    }

    /// All up to `\E` or the end.
    fn quoted(&mut self) -> Hir {
        let rest = self.rest();
        let end = rest.windows(2).position(|pair| pair == b"\\E");
        let literals = rest[..end.unwrap_or(rest.len())].iter().map(|byte| self.literal(*byte)).collect();
        self.at += end.map_or(rest.len(), |end| end + 2);
        Hir::concat(literals)
    }

    /// The bytes between brackets, behind the first.
    fn bracket(&mut self) -> Parsed<Hir> {
        let is_negated = self.passes(b'^');
        let (first, mut class) = (self.at, ClassBytes::empty());
        loop {
            let byte = self.peek().ok_or("Missing ']'")?;
            if byte == b']' && self.at > first {
                self.at += 1;
                break;
            }
            let next = self.text.get(self.at + 1).copied();
            match (byte, next) {
                (b'[', Some(b'.' | b'=')) => return Err("Unknown collating element"),
                (b'[', Some(b':')) => self.named(&mut class)?,
                (b'-', Some(next)) if next != b']' && self.at > first => {
                    return Err("Invalid character range");
                }
                (low, _) => {
                    let high = match self.text.get(self.at + 1..self.at + 3) {
                        Some([b'-', high]) if *high != b']' => Some(*high),
                        _ => None,
                    };
                    self.at += if high.is_some() { 3 } else { 1 };
                    let high = high.unwrap_or(low);
                    if low > high {
                        return Err("Invalid character range");
                    }
                    class.push(ClassBytesRange::new(low, high));
                }
            }
        }
        if self.ignore_case {
            class.case_fold_simple();
        }
        if is_negated {
            class.negate();
        }
        Ok(Hir::class(Class::Bytes(class)))
    }

    /// Adds the bytes of a name: `[:alpha:]`.
    fn named(&mut self, class: &mut ClassBytes) -> Parsed<()> {
        const UNKNOWN: &str = "Unknown character class name";
        let rest = &self.text[self.at + 2..];
        let end = rest.windows(2).position(|pair| pair == b":]").ok_or(UNKNOWN)?;
        let ranges = match &rest[..end] {
            b"alpha" => &[(b'A', b'Z'), (b'a', b'z')][..],
            b"digit" => DIGIT,
            b"alnum" => &WORD[..3],
            b"upper" => &[(b'A', b'Z')],
            b"lower" => &[(b'a', b'z')],
            b"space" => SPACE,
            b"blank" => &[(b' ', b' '), (b'\t', b'\t')],
            b"punct" => &[(b'!', b'/'), (b':', b'@'), (b'[', b'`'), (b'{', b'~')],
            b"print" => &[(b' ', b'~')],
            b"graph" => &[(b'!', b'~')],
            b"cntrl" => &[(0, 31), (127, 127)],
            b"xdigit" => &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')],
            _ => return Err(UNKNOWN),
        };
        ranges.iter().for_each(|(low, high)| class.push(ClassBytesRange::new(*low, *high)));
        self.at += 2 + end + 2;
        Ok(())
    }
}

const WORD: &[(u8, u8)] = &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z'), (b'_', b'_')];
const SPACE: &[(u8, u8)] = &[(b'\t', b'\r'), (b' ', b' ')];
const DIGIT: &[(u8, u8)] = &[(b'0', b'9')];

fn bytes_of(ranges: impl IntoIterator<Item = (u8, u8)>) -> ClassBytes {
    ClassBytes::new(ranges.into_iter().map(|(low, high)| ClassBytesRange::new(low, high)))
}

fn class_of(ranges: impl IntoIterator<Item = (u8, u8)>) -> Hir {
    Hir::class(Class::Bytes(bytes_of(ranges)))
}

fn negated(ranges: &[(u8, u8)]) -> Hir {
    let mut class = bytes_of(ranges.iter().copied());
    class.negate();
    Hir::class(Class::Bytes(class))
}

fn repetition(atom: Hir, min: u32, max: Option<u32>) -> Hir {
    Hir::repetition(Repetition { min, max, greedy: true, sub: Box::new(atom) })
}

#[cfg(test)]
mod tests;
