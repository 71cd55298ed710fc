//! Records of the journal, to the lanes of a copy.
//!
//! Of a transaction, a lane gets the commands that use moving slots, as a transaction again.

use std::sync::Arc;

use evenkeel_command::table::table;
use evenkeel_command::{Args, Table};
use evenkeel_resp::request::{Parsed, Span, State, parse};
use evenkeel_store::SlotSet;
use evenkeel_store::journal::{Record, select};
use evenkeel_store::key::slot_of;

use super::lane::LaneQueue;
use crate::command_buffer::BULK_LEN_MAX;

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Commands without keys that change all slots.
const WHOLE: [&str; 3] = ["FLUSHALL", "FLUSHDB", "SWAPDB"];

pub(super) struct Router {
    slots: SlotSet,
    lanes: Vec<Arc<LaneQueue>>,
    /// The database selected at the end of each lane's queue.
    selected: Vec<Option<u32>>,
    /// A record that is being parsed, and the arguments of a command.
    record: Vec<u8>,
    spans: Vec<Span>,
}

/// A command of a record.
struct Found {
    db: u32,
    range: std::ops::Range<usize>,
    lane: usize,
}

/// What a record has for the lanes.
#[derive(Default)]
struct Sorted {
    found: Vec<Found>,
    is_transaction: bool,
}

/// The lane of a slot.
pub(super) fn lane_of(slot: u16, lanes: usize) -> usize {
    usize::from(slot) % lanes
}

impl Router {
    /// A router whose lanes have no database selected.
    pub(super) fn new(slots: SlotSet, lanes: Vec<Arc<LaneQueue>>) -> Router {
        let selected = vec![None; lanes.len()];
        Router { slots, lanes, selected, record: Vec::new(), spans: Vec::new() }
    }

    /// Appends a record to the queue of its lane, if it uses moving slots.
    ///
    /// # Errors
    /// The reason why the copy has to begin anew.
    pub(super) fn route(&mut self, record: &Record<'_>) -> Result<(), String> {
        if !record.is_data {
            return Ok(());
        }
        self.record.clear();
        self.record.extend_from_slice(record.bytes);
        let Sorted { found, is_transaction } = self.sort(record.first_db)?;
        let Some(lane) = found.first().map(|first| first.lane) else { return Ok(()) };
        if found.iter().any(|other| other.lane != lane) {
            return Err("a transaction has changed several slots, which are copied beside each other".into());
        }
        let mut bytes = Vec::with_capacity(self.record.len() + 64);
        let is_transaction = is_transaction && found.len() > 1;
        bytes.extend_from_slice(if is_transaction { MULTI } else { b"" });
        for command in &found {
            if self.selected[lane] != Some(command.db) {
                select(&mut bytes, command.db);
                self.selected[lane] = Some(command.db);
            }
            bytes.extend_from_slice(&self.record[command.range.clone()]);
        }
        bytes.extend_from_slice(if is_transaction { EXEC } else { b"" });
        self.lanes[lane].append(&bytes);
        Ok(())
    }

    /// Finds the commands of the record that use moving slots.
    fn sort(&mut self, first_db: u32) -> Result<Sorted, String> {
        let (mut sorted, mut db, mut at) = (Sorted::default(), first_db, 0);
        while at < self.record.len() {
            self.spans.clear();
            let parsed = parse(&mut self.record, State::start(at), &mut self.spans, BULK_LEN_MAX);
            let Ok(Parsed::Ready(end)) = parsed else {
                return Err("a record of the journal cannot be read".into());
            };
            let args = Args::new(&self.record, &self.spans);
            if args.is(0, "MULTI") || args.is(0, "EXEC") {
                sorted.is_transaction = true;
            } else if args.is(0, "SELECT") {
                let number = args.text(1).parse();
                db = number.map_err(|_| "a record of the journal cannot be read".to_owned())?;
            } else if let Some(slot) = moving_slot(table(), &args, db, &self.slots)? {
                let lane = lane_of(slot, self.lanes.len());
                sorted.found.push(Found { db, range: at..end, lane });
            }
            at = end;
        }
        Ok(sorted)
    }
}

/// The moving slot of a command, if it has one.
fn moving_slot(table: &Table, args: &Args<'_>, db: u32, slots: &SlotSet) -> Result<Option<u16>, String> {
    if let Some(name) = WHOLE.iter().find(|name| args.is(0, name)) {
        return Err(format!("{name} has changed the keys of all slots"));
    }
    let row = table.find_call(args).map(|id| table.row(id));
    let row = row.ok_or("the journal has a command without a row in the table")?;
    let (mut moving, mut stays) = (None, false);
    row.keys.for_each(args, db, u32::MAX, |index, _| {
        let slot = slot_of(args.at(index));
        match slots.contains(usize::from(slot)) {
            true => moving = Some(slot),
            false => stays = true,
        }
    });
    if moving.is_some() && stays {
        return Err(format!("{} has used a moving slot together with a slot that stays", row.name));
    }
    Ok(moving)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Routes records to two lanes, and returns what the lanes have.
    fn route(slots: &[u16], records: &[(u32, &str)]) -> Result<[String; 2], String> {
        crate::testing::install_commands();
        let lanes: Vec<_> = (0..2).map(|_| Arc::<LaneQueue>::default()).collect();
        let mut router = Router::new(slots.iter().copied().collect(), lanes.clone());
        for (first_db, text) in records {
            let mut bytes = Vec::new();
            for command in text.split(';') {
                let words: Vec<&[u8]> = command.split_whitespace().map(str::as_bytes).collect();
                evenkeel_rdb::aof::push_command(&mut bytes, &words);
            }
            let (first_db, last_db) = (*first_db, *first_db);
            router.route(&Record { number: 1, bytes: &bytes, first_db, last_db, is_data: true })?;
        }
        let text = |lane: &Arc<LaneQueue>| {
            let mut commands = Vec::new();
            let (mut bytes, mut spans, mut at) = (lane.bytes(), Vec::new(), 0);
            while let Ok(Parsed::Ready(end)) = parse(&mut bytes, State::start(at), &mut spans, 1 << 20) {
                let words: Vec<_> = Args::new(&bytes, &spans).from(0).map(String::from_utf8_lossy).collect();
                commands.push(words.join(" "));
                (at, spans) = (end, Vec::new());
                if at == bytes.len() {
                    break;
                }
            }
            commands.join(";")
        };
        Ok([text(&lanes[0]), text(&lanes[1])])
    }

    #[test]
    fn commands_of_moving_slots_go_to_their_lane() {
        // The slots of a, b and c are 15495, 3300 and 7365.
        let (a, b, c) = (slot_of(b"a"), slot_of(b"b"), slot_of(b"c"));
        assert_eq!((a, b, c), (15495, 3300, 7365));
        let found = route(&[a, b], &[(0, "SET a 1"), (0, "SET c 1"), (3, "DEL b"), (0, "INCR b")]);
        assert_eq!(found, Ok(["SELECT 3;DEL b;SELECT 0;INCR b".to_owned(), "SELECT 0;SET a 1".to_owned()]));
    }

    #[test]
    fn transactions_keep_their_moving_commands() {
        let b = slot_of(b"b");
        let found =
            route(&[b], &[(0, "MULTI;SET a 1;SET b 1;SELECT 2;INCR b;EXEC"), (2, "MULTI;DEL a;EXEC")]);
        let both = "MULTI;SELECT 0;SET b 1;SELECT 2;INCR b;EXEC".to_owned();
        assert_eq!(found, Ok([both, String::new()]));
        let one = route(&[b], &[(0, "MULTI;SET a 1;SET b 1;EXEC")]);
        assert_eq!(one, Ok(["SELECT 0;SET b 1".to_owned(), String::new()]));
    }

    #[test]
    fn what_cannot_be_split_begins_the_copy_anew() {
        let (a, b) = (slot_of(b"a"), slot_of(b"b"));
        for (slots, record, reason) in [
            (&[b][..], "FLUSHALL", "FLUSHALL has changed"),
            (&[b], "MSET a 1 b 1", "MSET has used a moving slot"),
            (&[a, b], "MULTI;SET a 1;SET b 1;EXEC", "a transaction has changed several slots"),
        ] {
            let error = route(slots, &[(0, record)]).expect_err("it cannot be split");
            assert!(error.starts_with(reason), "{error}");
        }
        assert_eq!(route(&[b], &[(0, "MSET a 1 c 1")]), Ok(Default::default()));
    }
}
