//! The commands that are logged in place of a command: their effect is the same at any time and place.
//!
//! The journal's readers are servers for which nothing has expired yet and whose clock shows another time, or
//! none. A command that depends on the clock, on chance, on expired keys or on waiting clients is logged by
//! its effect. docs/journal.md has the whole list.
//!
//! The effect may be a million words, which a reader need not take all at once. They are logged as several
//! commands in a single record, which is a single transaction to the reader.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use evenkeel_resp::float;
use evenkeel_store::collection::{List, ZSet};
use evenkeel_store::{Key, SlotGuard};

use crate::Call;
use crate::value_codec::{Value, payload};

/// Words behind the head of a logged command, and bytes of them, after which the next command begins.
const WORDS_MAX: usize = 1_024;
const BYTES_MAX: usize = 64 * 1024;

/// Calls `each` with the words in pieces of bounded length, each a multiple of `step` words.
fn in_pieces<W: AsRef<[u8]>>(words: impl IntoIterator<Item = W>, step: usize, mut each: impl FnMut(&[W])) {
    let (mut piece, mut bytes) = (Vec::new(), 0);
    for word in words {
        bytes += word.as_ref().len();
        piece.push(word);
        if piece.len() % step == 0 && (piece.len() >= WORDS_MAX || bytes >= BYTES_MAX) {
            each(&piece);
            piece.clear();
            bytes = 0;
        }
    }
    if !piece.is_empty() {
        each(&piece);
    }
}

/// Logs commands that begin with `head` and go on with the words, of which `step` belong together.
pub fn log_each<W: AsRef<[u8]>>(
    guard: &mut SlotGuard<'_>,
    db: u32,
    head: &[&[u8]],
    step: usize,
    words: impl IntoIterator<Item = W>,
) {
    if !guard.is_logged() {
        return;
    }
    in_pieces(words, step, |piece| {
        let args: Vec<&[u8]> = head.iter().copied().chain(piece.iter().map(AsRef::as_ref)).collect();
        guard.log(db, args.into_iter());
    });
}

/// Logs that a key now holds exactly this list; for an empty list, that the key is gone.
pub fn log_list(guard: &mut SlotGuard<'_>, db: u32, key: &[u8], list: &List) {
    guard.log(db, [b"DEL", key].into_iter());
    log_each(guard, db, &[b"RPUSH", key], 1, list.range(0..list.len()));
}

/// [`log_list`] for a sorted set.
pub fn log_zset(guard: &mut SlotGuard<'_>, db: u32, key: &[u8], zset: &ZSet) {
    guard.log(db, [b"DEL", key].into_iter());
    let words = zset.range(0..zset.len()).flat_map(|(member, score)| {
        [Cow::Owned(float::Text::new(score).as_bytes().to_vec()), Cow::Borrowed(member)]
    });
    log_each(guard, db, &[b"ZADD", key], 2, words);
}

impl Call<'_, '_> {
    /// Logs the removal of a key, by UNLINK if it is `lazy`.
    pub(crate) fn log_removal(&mut self, key: &Key<'_>, lazy: bool) {
        self.log(&[if lazy { &b"UNLINK"[..] } else { b"DEL" }, key.bytes]);
    }

    /// Logs commands that begin with `head` and go on with the words, of which `step` belong together.
    pub fn log_each<W: AsRef<[u8]>>(
        &mut self,
        head: &[&[u8]],
        step: usize,
        words: impl IntoIterator<Item = W>,
    ) {
        log_each(self.guard, self.db, head, step, words);
    }

    /// [`Call::log_each`] for commands that take the number of fields that follow.
    pub fn log_fields<W: AsRef<[u8]>>(
        &mut self,
        head: &[&[u8]],
        step: usize,
        words: impl IntoIterator<Item = W>,
    ) {
        if !self.is_logged() {
            return;
        }
        in_pieces(words, step, |piece| {
            let count = (piece.len() / step).to_string();
            let fields: [&[u8]; 2] = [b"FIELDS", count.as_bytes()];
            let args = head.iter().chain(&fields).copied().chain(piece.iter().map(AsRef::as_ref));
            let args: Vec<&[u8]> = args.collect();
            self.guard.log(self.db, args.into_iter());
        });
    }

    /// Logs the command as it came.
    pub(crate) fn log_as_it_came(&mut self) {
        let row = self.spec;
        let args = self.args;
        // By the name that every server knows, whatever the configuration renames the command to.
        let is_its_name = args.at(0).eq_ignore_ascii_case(row.name.as_bytes());
        let name = if is_its_name { row.name } else { row.name.split('|').next().unwrap_or(row.name) };
        if (is_its_name || args.at(0).eq_ignore_ascii_case(name.as_bytes()))
            && let Some(sent) = args.as_sent()
        {
            return self.guard.log_as_sent(self.db, sent);
        }
        let arg = |at| if at == 0 { name.as_bytes() } else { args.at(at) };
        self.guard.log(self.db, (0..args.len()).map(arg));
    }

    /// Logs the current values of the command's keys, for a command that panicked half way.
    #[cold]
    pub(crate) fn log_wreck(&mut self) {
        for key in self.keys {
            // Half a change may have left a value that cannot be written; then the journal's value of the key
            // stays.
            let state = catch_unwind(AssertUnwindSafe(|| self.state_of(key)));
            let (db, Ok(state)) = (key.place.db() as u32, state) else { continue };
            self.guard.log(db, [b"DEL", key.bytes].into_iter());
            if let Some((payload, deadline)) = state {
                let args: [&[u8]; 5] = [b"RESTORE", key.bytes, deadline.as_bytes(), &payload, b"ABSTTL"];
                self.guard.log(db, args.into_iter());
            }
        }
    }

    /// Returns a key's value as RESTORE takes it, and its deadline, which is zero if it has none.
    fn state_of(&mut self, key: &Key<'_>) -> Option<(Vec<u8>, String)> {
        let view = self.guard.peek(key)?;
        let deadline = view.deadline().unwrap_or(0).to_string();
        Some((payload(&Value::of(view), self.settings), deadline))
    }
}
