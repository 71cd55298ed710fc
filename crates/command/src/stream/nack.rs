//! XNACK, as since Redis 8.8: a consumer gives entries back to its group without having processed them.
//!
//! Released entries stay pending and belong to no consumer. XREADGROUP with CLAIM takes them first, and
//! XCLAIM and XAUTOCLAIM take them however short they have been idle. The journal has the command as it came,
//! since no older server knows such entries.

use evenkeel_store::collection::stream::{COUNT_MAX, Stream, StreamId};
use evenkeel_store::{Concerns, Edit};

use super::id;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::{Args, Call};

/// The number of deliveries of a released entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The last delivery does not count.
    Silent,
    /// The last delivery counts.
    Fail,
    /// As many as there can be: nobody can process the entry.
    Fatal,
}

struct Options {
    mode: Mode,
    ids: Vec<StreamId>,
    retries: Option<u64>,
    force: bool,
}

impl Options {
    fn parse(args: &Args<'_>) -> Result<Options, Error> {
        let mode = match args.word(3).as_bytes() {
            b"SILENT" => Mode::Silent,
            b"FAIL" => Mode::Fail,
            b"FATAL" => Mode::Fatal,
            _ => return Err(Error::text("ERR mode must be SILENT, FAIL, or FATAL")),
        };
        let (mut ids, mut retries, mut force, mut at) = (None, None, false, 4);
        while at < args.len() {
            let more = args.len() - at - 1;
            at += match args.word(at).as_bytes() {
                b"IDS" if more > 0 => {
                    let count = ids_count(args, at + 1)?;
                    ids = Some(at + 2..at + 2 + count);
                    2 + count
                }
                b"RETRYCOUNT" if more > 0 => {
                    let negative = |_| Error::text("ERR Invalid RETRYCOUNT value, must be >= 0");
                    retries = Some(u64::try_from(args.int(at + 1)?).map_err(negative)?);
                    2
                }
                b"FORCE" => {
                    force = true;
                    1
                }
                _ => {
                    let text = [b"ERR Unrecognized XNACK option '", args.quoted(at, usize::MAX), b"'"];
                    return Err(Error::Bytes(text.concat()));
                }
            };
        }
        let ids = ids.ok_or(Error::text("ERR syntax error, expected IDS keyword"))?;
        let ids: Result<Vec<StreamId>, Error> = ids.map(|at| id::strict(args.at(at), 0)).collect();
        Ok(Options { mode, ids: ids?, retries, force })
    }

    fn count(&self, before: u64) -> u64 {
        match (self.retries, self.mode) {
            (Some(retries), _) => retries,
            (None, Mode::Silent) => before.saturating_sub(1),
            (None, Mode::Fail) => before,
            (None, Mode::Fatal) => COUNT_MAX,
        }
    }
}

/// Parses the number of IDs at an argument, which at least as many arguments must follow.
fn ids_count(args: &Args<'_>, at: usize) -> Result<usize, Error> {
    let count = args.int(at).ok().filter(|count| (1..=i64::from(i32::MAX)).contains(count));
    let count = count.ok_or(Error::text("ERR numids must be a positive integer"))? as usize;
    if count > args.len() - at - 1 {
        return Err(Error::text("ERR number of IDs doesn't match numids"));
    }
    Ok(count)
}

/// XNACK key group <SILENT | FAIL | FATAL> IDS numids id [id ...] [RETRYCOUNT count] [FORCE]
pub(super) fn xnack(call: &mut Call<'_, '_>) -> Done {
    let options = Options::parse(&call.args)?;
    let (key, name) = (&call.keys[0], call.args.at(2));
    let found = call.guard.collection::<Stream>(key)?;
    if found.is_none_or(|stream| stream.group(name).is_none()) {
        return Err(Error::Bytes(super::no_such_group(key.bytes, name)));
    }
    let released = call.guard.edit(key, |edit: &mut Edit<'_, Stream>| {
        let (group, log) = edit.group_mut(name).expect("seen above");
        let mut released = 0;
        for id in &options.ids {
            let count = match group.pending(*id).map(|pending| pending.delivery.count) {
                Some(count) => count,
                None if options.force && log.entries().contains(*id) => 0,
                None => continue,
            };
            group.release(*id, options.count(count));
            released += 1;
        }
        // Clients that wait with CLAIM can have the entries at once.
        (edit.changes, edit.concerns) = (released, Concerns::Waiters);
        released
    })?;
    call.reply.int(released as i64);
    Ok(Flow::Replied)
}
