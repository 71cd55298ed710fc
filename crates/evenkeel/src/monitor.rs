//! MONITOR: every command that is run, as a line to whoever wants to see them.
//!
//! While nobody does, a command pays one relaxed load. While somebody does, each command's line is written once and put into
//! the mail of all who watch, under one lock, so that all see the commands of all workers in one order. What operators do
//! (CONFIG, CLIENT LIST) and words that are secret are not shown, as in Redis.
//!
//! A script is shown before it runs, and behind it what it calls, in one piece: a run that is taken back has not been, so
//! its lines wait until it is known that it counts.

use std::fmt::Display;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::clients::ClientInfo;
use crate::clock;
use crate::command::{Args, Command, Flags, specs};
use crate::pubsub::PubSub;
use crate::session::Session;

/// Who watches.
#[derive(Default)]
pub(crate) struct Monitors {
    watchers: Mutex<Vec<Arc<ClientInfo>>>,
    count: AtomicUsize,
}

impl Monitors {
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    pub(crate) fn add(&self, client: &Arc<ClientInfo>) {
        let mut watchers = self.watchers.lock();
        watchers.push(client.clone());
        client.monitors.store(true, Relaxed);
        self.count.store(watchers.len(), Relaxed);
    }

    pub(crate) fn remove(&self, client: &ClientInfo) {
        if client.monitors.swap(false, Relaxed) {
            let mut watchers = self.watchers.lock();
            watchers.retain(|watcher| watcher.id != client.id);
            self.count.store(watchers.len(), Relaxed);
        }
    }

    /// Shows a command that has been run, or a script that is about to be.
    #[cold]
    pub(crate) fn show(&self, pubsub: &PubSub, session: &Session, row: &Command, args: &Args<'_>) {
        if is_shown(row) {
            self.send(pubsub, || {
                let mut line = Vec::new();
                let address = &session.client.address;
                match address.strip_suffix(":0").filter(|_| session.client.is_unix) {
                    Some(path) => write_line(&mut line, session.db, format_args!("unix:{path}"), row, args),
                    None => write_line(&mut line, session.db, address, row, args),
                }
                line
            });
        }
    }

    /// Shows what a script has called.
    #[cold]
    pub(crate) fn show_calls(&self, pubsub: &PubSub, calls: Vec<u8>) {
        self.send(pubsub, || calls);
    }

    fn send(&self, pubsub: &PubSub, lines: impl FnOnce() -> Vec<u8>) {
        let watchers = self.watchers.lock();
        let lines: Arc<[u8]> = lines().into();
        watchers.iter().for_each(|watcher| pubsub.send(watcher, lines.clone()));
    }
}

fn is_shown(row: &Command) -> bool {
    !row.flags.has(Flags::ADMIN)
}

/// Puts a command that a script has called behind others, for [`Monitors::show_calls`].
pub(crate) fn write_call(lines: &mut Vec<u8>, db: u32, row: &Command, args: &Args<'_>) {
    if is_shown(row) {
        write_line(lines, db, "lua", row, args);
    }
}

/// `+1700000000.123456 [0 127.0.0.1:5000] "GET" "key"`
fn write_line(line: &mut Vec<u8>, db: u32, by: impl Display, row: &Command, args: &Args<'_>) {
    let now_us = clock::unix_us();
    let (seconds, rest) = (now_us / 1_000_000, now_us % 1_000_000);
    // Writing to memory cannot fail, here and below.
    let _ = write!(line, "+{seconds}.{rest:06} [{db} {by}]");
    for at in 0..args.len() {
        line.push(b' ');
        let word = if specs::is_secret(row, args, at) { b"(redacted)" } else { args.at(at) };
        quote(line, word);
    }
    line.extend_from_slice(b"\r\n");
}

fn quote(line: &mut Vec<u8>, word: &[u8]) {
    line.push(b'"');
    for &byte in word {
        match byte {
            b'"' | b'\\' => line.extend([b'\\', byte]),
            b'\n' => line.extend(b"\\n"),
            b'\r' => line.extend(b"\\r"),
            b'\t' => line.extend(b"\\t"),
            7 => line.extend(b"\\a"),
            8 => line.extend(b"\\b"),
            b' '..=b'~' => line.push(byte),
            _ => {
                let _ = write!(line, "\\x{byte:02x}");
            }
        }
    }
    line.push(b'"');
}
