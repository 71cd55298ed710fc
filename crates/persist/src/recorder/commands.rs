//! Keys as commands that recreate them: bases of append-only files with `aof-use-rdb-preamble no`, for
//! readers that support no other format.
//!
//! Any Redis 7 server can run them, so data without a command are lost, as in Redis: the last access of a
//! key, and the last time a consumer was seen. A pending entry can be claimed only while the entry exists. So
//! if entries with pending deliveries have been deleted, the groups come before the entries, with
//! placeholders for all pending ids.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;

use evenkeel_rdb::aof::{push_command, push_timestamp};
use evenkeel_rdb::file::KeyMetadata;
use evenkeel_resp::float;
use evenkeel_store::collection::stream::{Delivery, Group, StreamId};
use evenkeel_store::collection::{Array, Hash, Stream, ZSet};
use evenkeel_store::journal::select;
use evenkeel_store::rope::{Piece, Rope};

use super::{Form, PIECE, Sizes, Taken};
use crate::position::Position;
use evenkeel_command::value_codec::Value;

/// Words and bytes of a command, without its head, after which a new command begins: a reader holds a whole
/// command in memory.
const WORDS_MAX: usize = 1_000;
const BYTES_MAX: usize = 64 * 1024;

/// A buffer that a huge word has enlarged beyond this is shrunk.
const BUFFER_KEPT_MAX: usize = 1 << 20;

/// Writes each key as the commands that recreate it.
pub struct Commands<W> {
    out: W,
    piece: Vec<u8>,
    error: Option<io::Error>,
    written: u64,
    db: Option<u32>,
    /// A long string is written in several commands: the reader runs them as they come.
    in_pieces: bool,
    /// Encoded words of the command that is being built, and their number.
    words: Vec<u8>,
    count: usize,
}

impl<W: io::Write> Commands<W> {
    /// With a timestamp line at the beginning, if `annotation` gives the second of the Unix epoch.
    pub fn new(out: W, annotation: Option<u64>) -> Commands<W> {
        let mut piece = Vec::with_capacity(PIECE + PIECE / 4);
        if let Some(second) = annotation {
            push_timestamp(&mut piece, second as i64);
        }
        Commands {
            out,
            piece,
            error: None,
            written: 0,
            db: None,
            in_pieces: false,
            words: Vec::new(),
            count: 0,
        }
    }

    /// For a reader that runs the commands as they come, and holds a whole command in memory.
    pub fn in_pieces(out: W) -> Commands<W> {
        Commands { in_pieces: true, ..Commands::new(out, None) }
    }

    fn flush(&mut self) {
        if self.error.is_none() {
            self.error = self.out.write_all(&self.piece).err();
        }
        self.written += self.piece.len() as u64;
        self.piece.clear();
        self.piece.shrink_to(BUFFER_KEPT_MAX);
    }

    fn flush_if_full(&mut self) {
        if self.piece.len() >= PIECE {
            self.flush();
        }
    }

    fn command(&mut self, words: &[&[u8]]) {
        push_command(&mut self.piece, words);
        self.flush_if_full();
    }

    /// Writes commands that consist of `head` and a part of the words, in multiples of `step`.
    fn each<T: AsRef<[u8]>>(&mut self, head: &[&[u8]], step: usize, words: impl Iterator<Item = T>) {
        for word in words {
            self.next_word(head, step, word.as_ref());
        }
        self.end_words(head);
    }

    fn next_word(&mut self, head: &[&[u8]], step: usize, word: &[u8]) {
        self.word(word);
        let is_full = self.count >= WORDS_MAX || self.words.len() >= BYTES_MAX;
        if is_full && self.count.is_multiple_of(step) {
            self.end_command(head);
        }
    }

    fn end_words(&mut self, head: &[&[u8]]) {
        if self.count > 0 {
            self.end_command(head);
        }
    }

    /// Adds a word to the command that is being built.
    fn word(&mut self, word: &[u8]) {
        put_word(&mut self.words, word);
        self.count += 1;
    }

    fn end_command(&mut self, head: &[&[u8]]) {
        put_line(&mut self.piece, b'*', head.len() + self.count);
        head.iter().for_each(|word| put_word(&mut self.piece, word));
        self.piece.extend_from_slice(&self.words);
        self.words.clear();
        self.words.shrink_to(BUFFER_KEPT_MAX);
        self.count = 0;
        self.flush_if_full();
    }

    fn rope(&mut self, key: &[u8], rope: &Rope) {
        if rope.holes() > 0 || self.in_pieces {
            return self.rope_in_pieces(key, rope);
        }
        put_line(&mut self.piece, b'*', 3);
        put_word(&mut self.piece, b"SET");
        put_word(&mut self.piece, key);
        put_line(&mut self.piece, b'$', rope.len());
        for piece in rope.pieces(0..rope.len()) {
            self.piece.extend_from_slice(piece.as_slice());
            self.flush_if_full();
        }
        self.piece.extend_from_slice(b"\r\n");
    }

    /// Writes each chunk that is not a hole at its offset, and the last byte.
    fn rope_in_pieces(&mut self, key: &[u8], rope: &Rope) {
        let mut offset = 0;
        for piece in rope.pieces(0..rope.len()) {
            let bytes = piece.as_slice();
            offset += bytes.len();
            let (start, bytes) = match piece {
                Piece::Bytes(..) => (offset - bytes.len(), bytes),
                Piece::Zeros(_) if offset == rope.len() => (offset - 1, &b"\0"[..]),
                Piece::Zeros(_) => continue,
            };
            self.command(&[b"SETRANGE", key, start.to_string().as_bytes(), bytes]);
        }
    }

    fn zset(&mut self, key: &[u8], zset: &ZSet) {
        let words = zset.range(0..zset.len()).flat_map(|(member, score)| {
            [Cow::Owned(float::Text::new(score).as_bytes().to_vec()), Cow::Borrowed(member)]
        });
        self.each(&[b"ZADD", key], 2, words);
    }

    /// Expired fields are written as well: their reader has no clock yet.
    fn hash(&mut self, key: &[u8], hash: &Hash) {
        // In the order of the fields, which a small hash keeps.
        let head: &[&[u8]] = &[b"HSET", key];
        for field in hash.fields() {
            let Some(deadline) = field.deadline else {
                self.next_word(head, 2, field.name);
                self.next_word(head, 2, field.value);
                continue;
            };
            self.end_words(head);
            let (name, value, deadline) = (field.name, field.value, deadline.to_string());
            let deadline = deadline.as_bytes();
            self.command(&[b"HSETEX", key, b"PXAT", deadline, b"FIELDS", b"1", name, value]);
        }
        self.end_words(head);
    }

    fn array(&mut self, key: &[u8], array: &Array) {
        let words = array
            .range(0..array.count())
            .flat_map(|(index, value)| [Cow::Owned(index.to_string().into_bytes()), Cow::Borrowed(value)]);
        self.each(&[b"ARMSET", key], 2, words);
        if let Some(cursor) = array.cursor() {
            self.command(&[b"ARSEEK", key, (cursor + 1).to_string().as_bytes()]);
        }
    }

    fn stream(&mut self, key: &[u8], stream: &Stream) {
        let has_gone = pending(stream).any(|id| !stream.entries().contains(id));
        if has_gone {
            self.groups_alone(key, stream);
        }
        for entry in stream.entries().range(0..stream.len()) {
            let fields = entry.fields().flat_map(|(name, value)| [name, value]);
            let id = entry.id.to_string();
            fields.for_each(|word| self.word(word));
            self.end_command(&[b"XADD", key, id.as_bytes()]);
        }
        if !has_gone {
            if stream.len() == 0 {
                // XSETID below corrects this id, which cannot be zero.
                self.command(&[b"XADD", key, b"MAXLEN", b"0", b"0-1", b"x", b"y"]);
            }
            stream.groups().for_each(|(name, group)| self.group(key, name, group));
        }
        let log = stream.log();
        let [last, deleted] = [log.last_id(), log.max_deleted_id()].map(|id| id.to_string());
        let added = log.added().to_string();
        let (last, added, deleted) = (last.as_bytes(), added.as_bytes(), deleted.as_bytes());
        self.command(&[b"XSETID", key, last, b"ENTRIESADDED", added, b"MAXDELETEDID", deleted]);
        self.producers(key, stream);
    }

    /// What the stream remembers of its producers, in the words of Redis 8.6: no older server knows it.
    fn producers(&mut self, key: &[u8], stream: &Stream) {
        let Some(idmp) = stream.idmp() else { return };
        let [duration, most] = [idmp.duration_s, idmp.entries_max].map(|number| number.to_string());
        let words: [&[u8]; 4] = [b"IDMP-DURATION", duration.as_bytes(), b"IDMP-MAXSIZE", most.as_bytes()];
        self.command(&[&[b"XCFGSET", key][..], &words].concat());
        for (name, producer) in idmp.producers() {
            for (iid, id) in producer.entries().filter(|(_, id)| stream.entries().contains(*id)) {
                self.command(&[b"XIDMPRECORD", key, name, iid, id.to_string().as_bytes()]);
            }
        }
    }

    /// Writes groups with all their pending ids, into a stream that is as good as new afterwards: the
    /// placeholders are trimmed, since a stream remembers the highest id that was deleted.
    fn groups_alone(&mut self, key: &[u8], stream: &Stream) {
        for id in pending(stream).collect::<BTreeSet<_>>() {
            self.command(&[b"XADD", key, id.to_string().as_bytes(), b"x", b"y"]);
        }
        stream.groups().for_each(|(name, group)| self.group(key, name, group));
        self.command(&[b"XTRIM", key, b"MAXLEN", b"0"]);
        self.command(&[b"XSETID", key, b"0-0"]);
    }

    fn group(&mut self, key: &[u8], name: &[u8], group: &Group) {
        let (last, read) = (group.last_id().to_string(), group.entries_read());
        let read = read.map_or("-1".to_owned(), |read| read.to_string());
        let (last, read) = (last.as_bytes(), read.as_bytes());
        self.command(&[b"XGROUP", b"CREATE", key, name, last, b"ENTRIESREAD", read]);
        for (consumer, about) in group.consumers() {
            self.command(&[b"XGROUP", b"CREATECONSUMER", key, name, consumer]);
            let ids = about.pending_ids(StreamId::MIN, StreamId::MAX);
            let pending = ids.filter_map(|id| Some((id, group.pending(id)?.delivery)));
            self.claims(&[b"XCLAIM", key, name, consumer, b"0"], pending);
        }
        for released in group.released() {
            let (id, count) = (released.id.to_string(), released.delivery.count.to_string());
            let ids: [&[u8]; 3] = [b"IDS", b"1", id.as_bytes()];
            let options: [&[u8]; 3] = [b"RETRYCOUNT", count.as_bytes(), b"FORCE"];
            self.command(&[&[b"XNACK", key, name, b"FAIL"][..], &ids, &options].concat());
        }
    }

    /// Claims consecutive ids with equal deliveries in a single command.
    fn claims(&mut self, head: &[&[u8]], pending: impl Iterator<Item = (StreamId, Delivery)>) {
        let mut before = None;
        for (id, delivery) in pending {
            let is_alike = before == Some(delivery) && self.count < WORDS_MAX;
            if let Some(before) = before
                && !is_alike
            {
                self.end_claim(head, before);
            }
            self.word(id.to_string().as_bytes());
            before = Some(delivery);
        }
        if let Some(before) = before {
            self.end_claim(head, before);
        }
    }

    fn end_claim(&mut self, head: &[&[u8]], delivery: Delivery) {
        let (at, count) = (delivery.at_ms.to_string(), delivery.count.to_string());
        let words: [&[u8]; 6] =
            [b"TIME", at.as_bytes(), b"RETRYCOUNT", count.as_bytes(), b"FORCE", b"JUSTID"];
        words.iter().for_each(|word| self.word(word));
        self.end_command(head);
    }
}

impl<W: io::Write> Form for Commands<W> {
    /// The length in bytes.
    type Whole = u64;

    /// Ignored: no command sets a position.
    fn position(&mut self, _: &Position) -> io::Result<()> {
        Ok(())
    }

    fn library(&mut self, code: &[u8]) -> io::Result<()> {
        self.command(&[b"FUNCTION", b"LOAD", code]);
        self.error.take().map_or(Ok(()), Err)
    }

    fn begin(&mut self, _: Sizes) {}

    fn key(&mut self, db: u32, key: &[u8], metadata: &KeyMetadata, value: Taken<'_>) {
        if self.db != Some(db) {
            self.db = Some(db);
            select(&mut self.piece, db);
        }
        match value {
            Taken::Flat(bytes) => self.command(&[b"SET", key, bytes]),
            Taken::Other(Value::Flat(bytes)) => self.command(&[b"SET", key, bytes]),
            Taken::Other(Value::Rope(rope)) => self.rope(key, rope),
            Taken::Other(Value::List(list)) => self.each(&[b"RPUSH", key], 1, list.range(0..list.len())),
            Taken::Other(Value::Set(set)) => self.each(&[b"SADD", key], 1, set.iter()),
            Taken::Other(Value::ZSet(zset)) => self.zset(key, zset),
            Taken::Other(Value::Hash(hash)) => self.hash(key, hash),
            Taken::Other(Value::Stream(stream)) => self.stream(key, stream),
            Taken::Other(Value::Array(array)) => self.array(key, array),
        }
        if let Some(deadline) = metadata.expires {
            self.command(&[b"PEXPIREAT", key, deadline.to_string().as_bytes()]);
        }
    }

    fn error(&mut self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    fn written(&mut self) -> u64 {
        self.written
    }

    fn finish(mut self) -> io::Result<u64> {
        self.flush();
        self.error.map_or_else(|| self.out.flush(), Err)?;
        Ok(self.written)
    }
}

/// The pending ids of all groups, group by group. No entry can have the smallest id.
fn pending(stream: &Stream) -> impl Iterator<Item = StreamId> {
    let ids = stream.groups().flat_map(|(_, group)| group.pending_ids(StreamId::MIN, StreamId::MAX));
    ids.filter(|id| *id > StreamId::MIN)
}

fn put_word(out: &mut Vec<u8>, word: &[u8]) {
    put_line(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

fn put_line(out: &mut Vec<u8>, kind: u8, number: usize) {
    use io::Write;
    out.push(kind);
    write!(out, "{number}\r\n").expect("a Vec takes all that is written");
}
