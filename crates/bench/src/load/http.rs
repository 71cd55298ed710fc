//! Counts the responses of HTTP/1.1, wherever the stream is cut. Every response has a `Content-Length`.

use anyhow::{Context, Result, bail};

use super::replies::Counts;

/// Longest head of a response.
const HEAD_MAX: usize = 16_384;
const HEAD_END: &[u8] = b"\r\n\r\n";

/// The state of a connection's stream.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// The beginning of an incomplete head.
    head: Vec<u8>,
    /// Bytes of a body that have not come.
    left: u64,
    error_text: String,
}

impl Responses {
    pub(super) fn error_text(&self) -> String {
        self.error_text.clone()
    }

    /// Takes the next bytes of the stream. A response counts once its body has come.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Result<Counts> {
        let mut counts = Counts::default();
        while !bytes.is_empty() {
            if self.left > 0 {
                let here = self.left.min(bytes.len() as u64);
                self.left -= here;
                bytes = &bytes[here as usize..];
                counts.replies += u64::from(self.left == 0);
                continue;
            }
            let before = self.head.len();
            self.head.extend_from_slice(bytes);
            let from = before.saturating_sub(HEAD_END.len() - 1);
            let end = self.head[from..].windows(HEAD_END.len()).position(|window| window == HEAD_END);
            let Some(end) = end else {
                if self.head.len() > HEAD_MAX {
                    bail!("the server's answer is not HTTP: a head of more than {HEAD_MAX} bytes");
                }
                break;
            };
            let end = from + end + HEAD_END.len();
            bytes = &bytes[end - before..];
            self.head.truncate(end);
            self.take_head(&mut counts)?;
            self.head.clear();
        }
        Ok(counts)
    }

    fn take_head(&mut self, counts: &mut Counts) -> Result<()> {
        let head = String::from_utf8_lossy(&self.head).into_owned();
        let status: u16 =
            head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no HTTP status")?;
        let len = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().ok())?
        });
        self.left = len.context("a response of HTTP without its length")?;
        counts.replies += u64::from(self.left == 0);
        if status >= 400 {
            counts.errors += 1;
            if self.error_text.is_empty() {
                self.error_text = head.lines().next().unwrap_or_default().to_owned();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\nHTTP/1.1 404 Not Found\r\nx: y\r\n\
        content-length:0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\r\n\r\nHTTP/1.1 200 OK\r\nCont";
    const EXPECTED: Counts = Counts { replies: 3, errors: 1, misses: 0 };

    #[test]
    fn responses_may_be_cut_at_every_byte() {
        for cut in 0..=STREAM.len() {
            let mut responses = Responses::default();
            let mut counts = responses.feed(&STREAM[..cut]).expect("well-formed");
            counts.add(responses.feed(&STREAM[cut..]).expect("well-formed"));
            assert_eq!(
                (counts, responses.error_text()),
                (EXPECTED, "HTTP/1.1 404 Not Found".into()),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn answers_in_another_protocol_are_errors() {
        for stream in [&[b'x'; 20_000][..], b"+PONG\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"] {
            assert!(Responses::default().feed(stream).is_err());
        }
    }
}
