//! Replies: values to bytes, in the protocol that the connection has chosen with HELLO.

use crate::float;

/// Appends replies to `bytes`. For types that RESP2 lacks, RESP2 clients get Redis' substitutes.
#[derive(Debug, Default)]
pub struct Encoder {
    pub bytes: Vec<u8>,
    pub resp3: bool,
}

impl Encoder {
    /// Appends `+text`. The text holds no CR or LF.
    #[inline]
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Appends a simple string of any bytes; line ends become blanks, as in errors.
    pub fn simple_bytes(&mut self, text: &[u8]) {
        let start = self.bytes.len();
        self.line(b'+', text);
        let end = self.bytes.len() - 2;
        blank_line_ends(&mut self.bytes[start..end]);
    }

    #[inline]
    pub fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }

    /// Appends `-text`. Line breaks inside become spaces, so that user data cannot end the error early; line
    /// breaks at the end of the text are dropped.
    #[cold]
    pub fn error(&mut self, text: &[u8]) {
        let len = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
        self.bytes.push(b'-');
        self.bytes
            .extend(text[..len].iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
        self.bytes.extend_from_slice(b"\r\n");
    }

    #[inline]
    pub fn int(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// Appends an integer, which may be too large for a signed number.
    pub fn uint(&mut self, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.int(value),
            Err(_) => self.line(b':', itoa::Buffer::new().format(value).as_bytes()),
        }
    }

    /// Appends `$len`, the bytes, CR LF.
    #[inline]
    pub fn bulk(&mut self, value: &[u8]) {
        self.bytes.reserve(value.len() + 16);
        self.bulk_start(value.len());
        self.bytes.extend_from_slice(value);
        self.bulk_end();
    }

    /// Appends the line before a bulk's `len` bytes, for callers that send the bytes themselves.
    #[inline]
    pub fn bulk_start(&mut self, len: usize) {
        self.header(b'$', len as i64);
    }

    #[inline]
    pub fn bulk_end(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Appends an integer as a bulk string.
    pub fn bulk_int(&mut self, value: i64) {
        let mut digits = itoa(value);
        self.bulk(digits.text());
    }

    #[inline]
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Appends the null that stands for an array.
    pub fn null_array(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// Opens an array; `len` replies follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len as i64);
    }

    /// Opens a map; `len` pairs follow.
    pub fn map(&mut self, len: usize) {
        if self.resp3 { self.header(b'%', len as i64) } else { self.header(b'*', 2 * len as i64) }
    }

    /// Opens a set; `len` replies follow.
    pub fn set(&mut self, len: usize) {
        self.header(if self.resp3 { b'~' } else { b'*' }, len as i64);
    }

    /// Opens a set whose `len` replies have already been appended, from `start` on: for callers that learn
    /// the number of replies only while writing them.
    pub fn set_before(&mut self, start: usize, len: usize) {
        let end = self.bytes.len();
        self.set(len);
        let header = self.bytes.len() - end;
        self.bytes[start..].rotate_right(header);
    }

    /// Opens an out-of-band message; `len` replies follow.
    pub fn push(&mut self, len: usize) {
        self.header(if self.resp3 { b'>' } else { b'*' }, len as i64);
    }

    pub fn bool(&mut self, value: bool) {
        match (self.resp3, value) {
            (true, true) => self.bytes.extend_from_slice(b"#t\r\n"),
            (true, false) => self.bytes.extend_from_slice(b"#f\r\n"),
            (false, value) => self.int(i64::from(value)),
        }
    }

    /// Appends a double: `,1.5` in RESP3, a bulk in RESP2; see [`float::Text`].
    #[inline]
    pub fn double(&mut self, value: f64) {
        self.double_text(float::Text::new(value).as_bytes());
    }

    /// Appends a double that the caller has printed in another format.
    pub fn double_text(&mut self, text: &[u8]) {
        if self.resp3 { self.line(b',', text) } else { self.bulk(text) }
    }

    pub fn big_number(&mut self, digits: &str) {
        if self.resp3 { self.line(b'(', digits.as_bytes()) } else { self.bulk(digits.as_bytes()) }
    }

    /// Appends a big number whose digits are unchecked; line ends become blanks.
    pub fn big_number_bytes(&mut self, digits: &[u8]) {
        if self.resp3 {
            self.line(b'(', digits)
        } else {
            self.bulk(digits)
        }
        let end = self.bytes.len() - 2;
        blank_line_ends(&mut self.bytes[end - digits.len()..end]);
    }

    /// Appends a text with an unchecked format: cut to three letters, or filled up with blanks.
    pub fn verbatim_bytes(&mut self, text: &[u8], format: &[u8]) {
        if !self.resp3 {
            return self.bulk(text);
        }
        self.header(b'=', text.len() as i64 + 4);
        (0..3).for_each(|at| self.bytes.push(format.get(at).copied().unwrap_or(b' ')));
        self.bytes.push(b':');
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Appends a text with a three-letter format such as `txt`.
    pub fn verbatim(&mut self, text: &str, format: &[u8; 3]) {
        if !self.resp3 {
            return self.bulk(text.as_bytes());
        }
        self.header(b'=', text.len() as i64 + 4);
        self.bytes.extend_from_slice(format);
        self.bytes.push(b':');
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.reserve(text.len() + 3);
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn header(&mut self, kind: u8, value: i64) {
        if let 0..=9 = value {
            return self.bytes.extend_from_slice(&[kind, b'0' + value as u8, b'\r', b'\n']);
        }
        if let 100..=999 = value {
            let value = value as u16;
            let (a, b, c) = ((value / 100) as u8, (value / 10 % 10) as u8, (value % 10) as u8);
            return self.bytes.extend_from_slice(&[kind, b'0' + a, b'0' + b, b'0' + c, b'\r', b'\n']);
        }
        let mut digits = itoa(value);
        self.line(kind, digits.text());
    }
}

fn blank_line_ends(text: &mut [u8]) {
    text.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')).for_each(|byte| *byte = b' ');
}

/// Returns an integer's decimal digits.
pub fn itoa(value: i64) -> Digits {
    Digits { buffer: itoa::Buffer::new(), value }
}

/// See [`itoa`].
#[derive(Clone)]
pub struct Digits {
    buffer: itoa::Buffer,
    value: i64,
}

impl Digits {
    pub fn text(&mut self) -> &[u8] {
        self.buffer.format(self.value).as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(write: impl Fn(&mut Encoder)) -> (String, String) {
        let encode = |resp3| {
            let mut encoder = Encoder { bytes: Vec::new(), resp3 };
            write(&mut encoder);
            String::from_utf8(encoder.bytes).expect("ASCII")
        };
        (encode(false), encode(true))
    }

    #[track_caller]
    fn check(write: impl Fn(&mut Encoder), resp2: &str, resp3: &str) {
        assert_eq!(both(write), (resp2.into(), resp3.into()));
    }

    #[test]
    fn each_type_in_both_protocols() {
        check(|r| r.simple("PONG"), "+PONG\r\n", "+PONG\r\n");
        check(|r| r.error(b"ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n");
        check(|r| r.error(b"ERR a \r\n"), "-ERR a \r\n", "-ERR a \r\n");
        check(|r| r.bulk(b"ab"), "$2\r\nab\r\n", "$2\r\nab\r\n");
        check(|r| r.bulk_int(-7), "$2\r\n-7\r\n", "$2\r\n-7\r\n");
        check(|r| r.null(), "$-1\r\n", "_\r\n");
        check(|r| r.null_array(), "*-1\r\n", "_\r\n");
        check(|r| r.map(2), "*4\r\n", "%2\r\n");
        check(|r| r.set(2), "*2\r\n", "~2\r\n");
        check(|r| r.push(3), "*3\r\n", ">3\r\n");
        let after = |r: &mut Encoder| {
            r.ok();
            (0..12).for_each(|digit| r.int(digit % 10));
            r.set_before(5, 12);
        };
        let digits = ":0\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:6\r\n:7\r\n:8\r\n:9\r\n:0\r\n:1\r\n";
        check(after, &format!("+OK\r\n*12\r\n{digits}"), &format!("+OK\r\n~12\r\n{digits}"));
        check(|r| r.bool(true), ":1\r\n", "#t\r\n");
        check(|r| r.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n");
        check(|r| r.big_number("12"), "$2\r\n12\r\n", "(12\r\n");
        check(|r| r.verbatim("hi", b"txt"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n");
    }

    #[test]
    fn integers_of_every_length() {
        for value in [0, 9, 10, 99, 100, 999, 1000, -1, -999, i64::MAX, i64::MIN] {
            check(|r| r.int(value), &format!(":{value}\r\n"), &format!(":{value}\r\n"));
        }
    }
}
