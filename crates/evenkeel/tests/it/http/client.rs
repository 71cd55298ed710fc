//! An HTTP client for tests: it sends the bytes of a request unchecked, so that a test can send any.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Reply {
    /// Returns the value of a header, whose name is in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(one, _)| one == name).map(|(_, value)| value.as_str())
    }

    fn parse(bytes: &[u8]) -> io::Result<Reply> {
        let text = String::from_utf8_lossy(bytes);
        let unexpected = || io::Error::other(format!("no reply of HTTP: {text:?}"));
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(unexpected)?;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        });
        Ok(Reply {
            status: status.ok_or_else(unexpected)?,
            headers: headers.collect(),
            body: body.to_owned(),
        })
    }
}

pub(super) fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends these bytes on a new connection, and reads until the server closes it.
pub(super) fn request(port: u16, bytes: &str) -> io::Result<Reply> {
    exchange(&mut connect(port)?, bytes)
}

pub(super) fn exchange(stream: &mut (impl Read + Write), bytes: &str) -> io::Result<Reply> {
    stream.write_all(bytes.as_bytes())?;
    let mut reply = Vec::new();
    match stream.read_to_end(&mut reply) {
        // The server may close before it has read everything.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !reply.is_empty() => {}
        result => _ = result?,
    }
    Reply::parse(&reply)
}

/// Sends a request of HTTP/1.1 with these headers; `Host` is 127.0.0.1 unless it is among them.
pub(super) fn get(port: u16, path: &str, headers: &[(&str, &str)]) -> io::Result<Reply> {
    request(port, &text_of(path, headers))
}

pub(super) fn text_of(path: &str, headers: &[(&str, &str)]) -> String {
    let host = if headers.iter().any(|(name, _)| *name == "Host") { "" } else { "Host: 127.0.0.1\r\n" };
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("GET {path} HTTP/1.1\r\n{host}{lines}Connection: close\r\n\r\n")
}

pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let number = (0..3).fold(0, |sum, at| sum << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for digit in 0..4 {
            let is_there = digit <= group.len();
            let index = number >> (18 - 6 * digit) & 63;
            text.push(if is_there { char::from(DIGITS[index as usize]) } else { '=' });
        }
    }
    text
}
