//! MONITOR: shows every executed command to the watching clients, a line each.
//!
//! Without a watcher, a command pays a relaxed load. With watchers, each command's line is written once and
//! put into the push queue of every watcher under a single lock, so that all see the commands of all workers
//! in the same order. Administrative commands (CONFIG, CLIENT LIST) and secret words are not shown, as in
//! Redis.
//!
//! A script's calls follow the script without lines in between. A run that is taken back must not show, so
//! its lines wait until the run is known to count. Its lines, and the lines of a transaction, are sent with
//! the unit's other messages ([`crate::pubsub::unit`]).

use std::cell::RefCell;
use std::fmt::Display;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use evenkeel_store::SlotGuard;
use parking_lot::{Mutex, MutexGuard};

use crate::clients::ClientInfo;
use crate::pubsub::PubSub;
use crate::pubsub::unit::{self, Message};
use crate::session::Session;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::{Args, Flags, Spec, specs};
use evenkeel_runtime::clock;

/// The clients that have called MONITOR.
#[derive(Default)]
pub struct Monitors {
    watchers: Mutex<Vec<Arc<ClientInfo>>>,
    count: AtomicUsize,
}

impl Monitors {
    #[inline]
    pub fn is_any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    pub fn add(&self, client: &Arc<ClientInfo>) {
        let mut watchers = self.watchers.lock();
        watchers.push(client.clone());
        client.monitors.store(true, Relaxed);
        self.count.store(watchers.len(), Relaxed);
    }

    pub fn remove(&self, client: &ClientInfo) {
        if client.monitors.swap(false, Relaxed) {
            let mut watchers = self.watchers.lock();
            watchers.retain(|watcher| watcher.id != client.id);
            self.count.store(watchers.len(), Relaxed);
        }
    }

    /// Shows an executed command.
    #[cold]
    pub fn show(&self, pubsub: &PubSub, session: &Session, row: &Spec, args: &Args<'_>) {
        if is_shown(row) {
            self.send(pubsub, || line_of(session, row, args).into());
        }
    }

    /// Sends lines to all watchers. They are written under the lock, so that their times ascend.
    pub fn send(&self, pubsub: &PubSub, lines: impl FnOnce() -> Arc<[u8]>) {
        let watchers = self.watchers.lock();
        let lines = lines();
        watchers.iter().for_each(|watcher| pubsub.send(watcher, lines.clone()));
    }

    /// Locks the list of watchers. No other thread shows anything meanwhile.
    pub fn watchers(&self) -> MutexGuard<'_, Vec<Arc<ClientInfo>>> {
        self.watchers.lock()
    }
}

/// Shows a command that is part of a unit, or ends it, with the unit's other messages.
#[cold]
pub fn show_in_unit(guard: &mut SlotGuard<'_>, session: &Session, row: &Spec, args: &Args<'_>) {
    if is_shown(row) {
        keep_lines(guard, line_of(session, row, args));
    }
}

fn keep_lines(guard: &mut SlotGuard<'_>, lines: Vec<u8>) {
    unit::keep(Message::Lines(lines.into()));
    guard.record_messages();
}

thread_local! {
    /// Line of the script that this thread runs, until the run is known to count.
    static SCRIPT: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Begins a script.
#[cold]
pub fn begin_script(session: &Session, row: &Spec, args: &Args<'_>) {
    SCRIPT.set(is_shown(row).then(|| line_of(session, row, args)));
}

/// Shows the script's calls behind the script itself. The run counts.
#[cold]
pub fn show_calls(guard: &mut SlotGuard<'_>, calls: Vec<u8>) {
    let mut lines = SCRIPT.take().unwrap_or_default();
    lines.extend_from_slice(&calls);
    if !lines.is_empty() {
        keep_lines(guard, lines);
    }
}

/// Ends a script; a run that does not count is begun again, here or on another thread.
#[cold]
pub fn end_script(guard: &mut SlotGuard<'_>, done: &Done) {
    let is_over = matches!(done, Ok(Flow::Replied) | Err(_));
    if !is_over {
        SCRIPT.set(None);
    } else {
        show_calls(guard, Vec::new());
    }
}

fn line_of(session: &Session, row: &Spec, args: &Args<'_>) -> Vec<u8> {
    let mut line = Vec::new();
    let address = &session.client.address;
    match address.strip_suffix(":0").filter(|_| session.client.is_unix) {
        Some(path) => write_line(&mut line, session.db, format_args!("unix:{path}"), row, args),
        None => write_line(&mut line, session.db, address, row, args),
    }
    line
}

fn is_shown(row: &Spec) -> bool {
    !row.flags.has(Flags::ADMIN)
}

/// Appends a script's call to its lines, for [`show_calls`].
pub fn write_call(lines: &mut Vec<u8>, db: u32, row: &Spec, args: &Args<'_>) {
    if is_shown(row) {
        write_line(lines, db, "lua", row, args);
    }
}

/// Writes `+1700000000.123456 [0 127.0.0.1:5000] "GET" "key"`.
fn write_line(line: &mut Vec<u8>, db: u32, by: impl Display, row: &Spec, args: &Args<'_>) {
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
