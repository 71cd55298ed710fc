//! Strings: read, set, and changed in place.

use super::{SlotGuard, WrongType};
use crate::guard::context::Access;
use crate::key::Key;
use crate::notify::watch::Change;
use crate::table::entry::{EntryPtr, Value};
use crate::value::rope::{FLAT_MAX, Rope, Str};
use crate::value::{Expire, Kind};

/// A string that a command has made.
#[derive(Debug)]
pub enum Made {
    Flat(Vec<u8>),
    Rope(Rope),
}

/// Result of an edit in [`SlotGuard::edit_flat`].
#[derive(Debug, PartialEq, Eq)]
pub struct Edited {
    /// Number of changes to count; with zero, the string is unchanged.
    pub changes: u64,
    /// The string's replacement, if it could not be changed in place.
    pub instead: Option<Vec<u8>>,
}

impl SlotGuard<'_> {
    /// The string at the key, as [`SlotGuard::read`].
    #[inline]
    pub fn string(&mut self, key: &Key<'_>) -> Result<Option<Str<'_>>, WrongType> {
        match self.read(key) {
            None => Ok(None),
            Some(view) if view.kind() == Kind::String => Ok(Some(view.string())),
            Some(_) => Err(WrongType),
        }
    }

    /// Sets the key to a string.
    #[inline]
    pub fn set_string(&mut self, key: &Key<'_>, bytes: &[u8], expire: Expire) {
        let Some(found) = self.live_or_gone(key) else {
            let deadline = if let Expire::At(deadline) = expire { Some(deadline) } else { None };
            let entry = EntryPtr::new(key.bytes, Value::string(bytes), deadline, self.new_access());
            self.add_entry(key, entry);
            return self.changed(key, Change::Written);
        };
        let old = found.entry();
        let before = old.deadline();
        let deadline = match expire {
            Expire::Keep => before,
            Expire::Clear => None,
            Expire::At(deadline) => Some(deadline),
        };
        // A new value was used just now; the frequency stays with the key.
        if self.ctx.access == Access::Lru {
            old.set_access(self.new_access());
        } else {
            self.mark(old);
        }
        let fits = before == deadline && old.kind() == Kind::String && old.has_room_of(bytes.len());
        if fits {
            self.preserve(key.place, old);
            old.overwrite(bytes);
        } else {
            let entry = EntryPtr::new(key.bytes, Value::string(bytes), deadline, old.access());
            self.replace(key, found, entry);
        }
        self.changed(key, Change::Written);
    }

    /// Sets the key to a computed string that OBJECT ENCODING must not report as an integer, even if it reads
    /// like an integer: INCRBYFLOAT stores such strings.
    pub fn set_text(&mut self, key: &Key<'_>, bytes: &[u8], expire: Expire) {
        self.set_string(key, bytes, expire);
        if let Some(found) = self.live(key) {
            found.entry().set_text();
        }
    }

    /// Sets the key to a string made from other strings, as by BITOP: `raw`, and without a deadline.
    pub fn set_made(&mut self, key: &Key<'_>, made: Made) {
        self.remake(key, made, Expire::Clear, 1);
    }

    /// Like [`SlotGuard::set_made`], with a choice of the deadline and the number of changes to count.
    pub fn remake(&mut self, key: &Key<'_>, made: Made, expire: Expire, changes: u64) {
        let found = self.live_or_gone(key);
        let deadline = match expire {
            Expire::Keep => found.as_ref().and_then(|found| found.entry().deadline()),
            Expire::Clear => None,
            Expire::At(deadline) => Some(deadline),
        };
        let access = self.access_after(found.as_ref());
        // A rope may share chunks with the strings it was made from.
        let shared = if let Made::Rope(rope) = &made { rope.shared_memory(1) } else { 0 };
        let entry = EntryPtr::new(key.bytes, made.value(), deadline, access);
        self.record_shared(key.place, entry, shared as u64);
        match found {
            Some(found) => self.replace(key, found, entry),
            None => self.add_entry(key, entry),
        }
        self.changed_times(key, Change::Written, changes);
    }

    /// Lets `edit` change the flat string at the key in place, or return a replacement; the deadline stays.
    /// Returns the number of changes, or `None` if there is no key or its string is a rope. Counts as an
    /// access, and as an edit for OBJECT ENCODING even if nothing has changed. If `edit` fails, it has
    /// changed nothing, and nothing is done.
    pub fn edit_flat<E: From<WrongType>>(
        &mut self,
        key: &Key<'_>,
        edit: impl FnOnce(&mut [u8]) -> Result<Edited, E>,
    ) -> Result<Option<u64>, E> {
        let Some(found) = self.live(key) else { return Ok(None) };
        let entry = found.entry();
        if entry.kind() != Kind::String {
            return Err(WrongType.into());
        }
        self.mark(entry);
        self.preserve(key.place, entry);
        let Some(bytes) = entry.flat_mut() else { return Ok(None) };
        let Edited { changes, instead } = edit(bytes)?;
        match instead.map(Made::Flat) {
            None => entry.set_raw(),
            Some(made) => {
                let new = EntryPtr::new(key.bytes, made.value(), entry.deadline(), entry.access());
                self.replace(key, found, new);
            }
        }
        if changes > 0 {
            self.changed_times(key, Change::Written, changes);
        }
        Ok(Some(changes))
    }

    /// For a write of the bytes that are there already: an access, and an edit for OBJECT ENCODING, but no
    /// change.
    pub fn write_same(&mut self, key: &Key<'_>) -> Result<(), WrongType> {
        let Some(found) = self.live(key) else { return Ok(()) };
        let entry = found.entry();
        if entry.kind() != Kind::String {
            return Err(WrongType);
        }
        self.mark(entry);
        if let Str::Flat(_) = entry.string() {
            entry.patch(0, b"");
        }
        Ok(())
    }

    /// Appends to the string at the key, which is created if it does not exist; returns its new length.
    pub fn append(&mut self, key: &Key<'_>, bytes: &[u8]) -> Result<usize, WrongType> {
        match self.peek(key) {
            None => {
                self.set_string(key, bytes, Expire::Clear);
                Ok(bytes.len())
            }
            Some(view) if view.kind() == Kind::String => {
                let len = view.string().len();
                if bytes.is_empty() {
                    // Counts as a change, unlike an empty SETRANGE.
                    self.write_same(key)?;
                    self.changed(key, Change::Written);
                    return Ok(len);
                }
                self.write_range(key, len, bytes)
            }
            Some(_) => Err(WrongType),
        }
    }

    /// Writes into the string at the key from `offset` on, filling a gap with zeros; returns its new length.
    /// A missing key is created unless `bytes` is empty. The caller limits `offset`: each 64 KiB of gap takes
    /// 8 bytes.
    pub fn write_range(&mut self, key: &Key<'_>, offset: usize, bytes: &[u8]) -> Result<usize, WrongType> {
        let end = offset.checked_add(bytes.len()).expect("the caller limits the offset");
        let Some(found) = self.live_or_gone(key) else {
            if bytes.is_empty() {
                return Ok(0);
            }
            let fresh = edited(Str::Flat(b""), offset, bytes);
            let entry = EntryPtr::new(key.bytes, fresh.value(), None, self.new_access());
            self.add_entry(key, entry);
            self.changed(key, Change::Written);
            return Ok(end);
        };
        let entry = found.entry();
        if entry.kind() != Kind::String {
            return Err(WrongType);
        }
        self.mark(entry);
        let len = entry.string().len();
        if bytes.is_empty() {
            return Ok(len);
        }
        self.preserve(key.place, entry);
        if let Some(mut rope) = entry.rope_mut() {
            let before = rope.holes();
            rope.write(offset, bytes);
            let holes = rope.holes();
            drop(rope);
            self.holes_changed(key.place, before, holes);
        } else if end <= len {
            entry.patch(offset, bytes);
        } else {
            let grown = edited(entry.string(), offset, bytes);
            let new = EntryPtr::new(key.bytes, grown.value(), entry.deadline(), entry.access());
            self.replace(key, found, new);
        }
        self.changed(key, Change::Written);
        Ok(len.max(end))
    }
}

impl Made {
    /// The value, which is `raw`.
    fn value(&self) -> Value<'_> {
        match self {
            Made::Flat(bytes) if bytes.len() <= FLAT_MAX => Value::Flat { bytes, raw: true },
            Made::Flat(bytes) => Value::string(bytes),
            Made::Rope(rope) => Value::rope(rope.clone()),
        }
    }
}

/// A string after a write that made it longer or new.
fn edited(old: Str<'_>, offset: usize, bytes: &[u8]) -> Made {
    let len = old.len().max(offset + bytes.len());
    if len <= FLAT_MAX {
        let mut flat = old.bytes().into_owned();
        flat.resize(len, 0);
        flat[offset..offset + bytes.len()].copy_from_slice(bytes);
        return Made::Flat(flat);
    }
    let mut rope = Rope::new(&old.bytes());
    rope.write(offset, bytes);
    Made::Rope(rope)
}
