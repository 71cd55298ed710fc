//! Counts the replies of memcached's text protocol, wherever the stream is cut: lines, and values behind
//! lines that announce a value. A GET is answered by a value and END, or by END alone, which is a miss.

use anyhow::{Context, Result, bail};

use super::replies::Counts;

/// Longest line: a value's line holds its key, 250 bytes at most, and three numbers.
const LINE_MAX: usize = 2_048;

/// The state of a connection's stream.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The beginning of an incomplete line.
    part: Vec<u8>,
    /// Bytes of a value and its line end that have not come.
    left: u64,
    /// The current reply has had a value.
    found: bool,
    error_text: String,
}

impl Lines {
    pub(super) fn error_text(&self) -> String {
        self.error_text.clone()
    }

    /// Takes the next bytes of the stream.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Result<Counts> {
        let mut counts = Counts::default();
        while !bytes.is_empty() {
            if self.left > 0 {
                let here = self.left.min(bytes.len() as u64);
                self.left -= here;
                bytes = &bytes[here as usize..];
                continue;
            }
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let (line, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            if self.part.len() + line.len() > LINE_MAX {
                bail!("the server's answer is not memcached's: a line of more than {LINE_MAX} bytes");
            }
            match end {
                None => self.part.extend_from_slice(line),
                Some(_) if self.part.is_empty() => self.take(line, &mut counts)?,
                Some(_) => {
                    let whole = [&std::mem::take(&mut self.part)[..], line].concat();
                    self.take(&whole, &mut counts)?;
                }
            }
        }
        Ok(counts)
    }

    fn take(&mut self, line: &[u8], counts: &mut Counts) -> Result<()> {
        let line = line.trim_ascii_end();
        if line.starts_with(b"VALUE ") {
            let size =
                line.rsplit(|&byte| byte == b' ').next().and_then(|size| std::str::from_utf8(size).ok());
            let size: u32 = size.and_then(|size| size.parse().ok()).context("a value without a size")?;
            self.left = u64::from(size) + 2;
            self.found = true;
            return Ok(());
        }
        counts.replies += 1;
        let found = std::mem::take(&mut self.found);
        if line == b"END" {
            counts.misses += u64::from(!found);
        } else if line.ends_with(b"ERROR") || line.windows(7).any(|word| word == b"_ERROR ") {
            counts.errors += 1;
            if self.error_text.is_empty() {
                self.error_text = String::from_utf8_lossy(line).into_owned();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"STORED\r\nVALUE key:1 0 7\r\nEND\r\nab\r\nEND\r\nEND\r\nERROR\r\nVALUE k 0 0\r\n\r\nEND\r\n\
          SERVER_ERROR object too large for cache\r\nSTO";
    const HELD: Counts = Counts { replies: 6, errors: 2, misses: 1 };

    fn feed_all<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Counts, Lines) {
        let (mut lines, mut sum) = (Lines::default(), Counts::default());
        for piece in pieces {
            let counts = lines.feed(piece).expect("well-formed");
            sum.replies += counts.replies;
            sum.errors += counts.errors;
            sum.misses += counts.misses;
        }
        (sum, lines)
    }

    #[test]
    fn replies_may_be_cut_at_every_byte() {
        for cut in 0..=STREAM.len() {
            let (counts, lines) = feed_all([&STREAM[..cut], &STREAM[cut..]]);
            assert_eq!((counts, lines.error_text()), (HELD, "ERROR".to_owned()), "cut at {cut}");
        }
        assert_eq!(feed_all(STREAM.chunks(1)).0, HELD);
    }

    #[test]
    fn replies_in_another_protocol_are_errors_for_memcached() {
        for stream in [&[b'x'; 3_000][..], b"VALUE k 0 x\r\n", b"VALUE k 0 -1\r\n"] {
            assert!(Lines::default().feed(stream).is_err(), "{stream:?}");
        }
    }
}
