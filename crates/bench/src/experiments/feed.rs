//! Writes an experiment's data into a server: any commands, in order, over a single connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, bail};

use crate::interrupt;
use crate::load::keys::Random;
use crate::load::replies::Skipper;

/// Commands sent before their replies are read.
const BATCH: u64 = 200;

/// A command under construction.
#[derive(Default)]
pub(super) struct Words {
    count: usize,
    bytes: Vec<u8>,
}

impl Words {
    pub(super) fn add(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        let word = word.as_ref();
        self.count += 1;
        self.bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        self.bytes.extend_from_slice(word);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// Adds all words of a line.
    pub(super) fn line(&mut self, line: &str) -> &mut Self {
        line.split_whitespace().for_each(|word| _ = self.add(word));
        self
    }

    fn append_to(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("*{}\r\n", self.count).as_bytes());
        out.append(&mut self.bytes);
        self.count = 0;
    }
}

/// Sends commands number 0 to `count`, each built by `compose`; fails on an error reply.
pub(super) fn feed(server: SocketAddr, count: u64, mut compose: impl FnMut(u64, &mut Words)) -> Result<()> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    let (mut words, mut out, mut piece) = (Words::default(), Vec::new(), vec![0; 64 * 1024]);
    let mut skipper = Skipper::new();
    let mut sent = 0;
    while sent < count {
        interrupt::check()?;
        let batch = BATCH.min(count - sent);
        out.clear();
        for number in sent..sent + batch {
            compose(number, &mut words);
            words.append_to(&mut out);
        }
        stream.write_all(&out)?;
        let mut answered = 0;
        while answered < batch {
            let size = stream.read(&mut piece)?;
            if size == 0 {
                bail!("the server closed the connection");
            }
            let counts = skipper.feed(&piece[..size])?;
            answered += counts.replies;
            if counts.errors > 0 {
                bail!("an error while filling: {}", skipper.error_text());
            }
        }
        sent += batch;
    }
    Ok(())
}

/// Returns sixteen letters and digits that belong to a number, without an order or a common prefix.
pub(super) fn member(number: u64) -> [u8; 16] {
    let mut random = Random::new(number);
    let (high, low) = (random.next(), random.next());
    std::array::from_fn(|at| {
        let bits = if at < 8 { high >> (8 * at) } else { low >> (8 * (at - 8)) };
        b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[bits as usize & 63]
    })
}
