//! Collections: read, changed in place, and set.

use std::ops::{Deref, DerefMut};

use super::{Concerns, SlotGuard, WrongType};
use crate::Millis;
use crate::guard::context::add;
use crate::key::Key;
use crate::notify::events::What;
use crate::notify::watch::Change;
use crate::table::entry::{EntryPtr, Ref, Value};
use crate::value::collection::{Collection, Cut};
use crate::value::heap_value::HeapValue;

/// A collection being changed.
pub struct Edit<'v, T> {
    value: &'v mut T,
    /// Number of changes to count. With zero, no subscriber is notified, and the form stays.
    pub changes: u64,
    /// `Everybody`, unless only the record that the collection keeps of its readers has changed.
    pub concerns: Concerns,
    /// The form for OBJECT ENCODING: zero for the most compact, three at most.
    pub form: u8,
    /// Expired fields that leave the hash are removed by the client. They do not count as expired.
    pub removes_expired: bool,
    cut: Vec<Cut>,
}

impl<'v, T> Edit<'v, T> {
    fn new(value: &'v mut T, form: u8) -> Edit<'v, T> {
        Edit {
            value,
            changes: 0,
            concerns: Concerns::Everybody,
            form,
            removes_expired: false,
            cut: Vec::new(),
        }
    }

    /// Frees a part that was cut off the collection; the lazy-free thread does so if it takes long.
    pub fn discard(&mut self, cut: Cut) {
        self.cut.push(cut);
    }
}

impl<T> Deref for Edit<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for Edit<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

impl SlotGuard<'_> {
    /// The collection at the key, as [`SlotGuard::read`].
    #[inline]
    pub fn collection<T: Collection>(&mut self, key: &Key<'_>) -> Result<Option<Ref<'_, T>>, WrongType> {
        match self.read(key) {
            None => Ok(None),
            Some(view) if view.kind() == T::KIND => Ok(Some(view.collection())),
            Some(_) => Err(WrongType),
        }
    }

    /// The collection at the key, as [`SlotGuard::peek`], for a caller about to change it.
    pub fn peek_collection<T: Collection>(&mut self, key: &Key<'_>) -> Result<Option<Ref<'_, T>>, WrongType> {
        match self.peek(key) {
            None => Ok(None),
            Some(view) if view.kind() == T::KIND => Ok(Some(view.collection())),
            Some(_) => Err(WrongType),
        }
    }

    /// Changes the collection at the key with `change`, which records in the [`Edit`] how much it has
    /// changed. If there is none, `change` gets an empty collection, which becomes the key's value unless it
    /// is still empty afterwards. If `change` leaves an empty collection, the key is removed.
    pub fn edit<T: Collection, R>(
        &mut self,
        key: &Key<'_>,
        change: impl FnOnce(&mut Edit<'_, T>) -> R,
    ) -> Result<R, WrongType> {
        let Some(found) = self.live_or_gone(key) else {
            let mut value = T::new();
            let mut edit = Edit::new(&mut value, 0);
            let result = change(&mut edit);
            let Edit { changes, form, cut, .. } = edit;
            cut.into_iter().for_each(|cut| self.ctx.discard_cut(cut));
            if !value.is_empty() {
                self.add_collection(key, value, form, None);
                self.changed_times(key, Change::Written, changes);
            }
            return Ok(result);
        };
        let entry = found.entry();
        if entry.kind() != T::KIND {
            return Err(WrongType);
        }
        self.mark(entry);
        self.preserve(key.place, entry);
        let (before, now) = (entry.times(), self.ctx.now_ms);
        let mut value = entry.collection_mut::<T>();
        let overdue = value.overdue(now);
        let mut edit = Edit::new(&mut *value, entry.form());
        let result = change(&mut edit);
        let Edit { changes, concerns, form, removes_expired, cut, .. } = edit;
        let is_empty = value.is_empty();
        let counts = overdue > 0 && !removes_expired;
        let expired = if counts { overdue.saturating_sub(value.overdue(now)) } else { 0 };
        drop(value);
        cut.into_iter().for_each(|cut| self.ctx.discard_cut(cut));
        let found = self.update_times(key.place, found, before);
        if expired > 0 {
            self.count_expired_fields(expired);
            self.emit(key.place, key.bytes, What::FieldsReplaced);
        }
        if is_empty {
            self.remove_found(key.place, found);
            add(&self.ctx.tally.dirty, changes.saturating_sub(1));
        } else if changes > 0 {
            entry.set_form(form);
            self.changed_for(key, Change::Written, changes, concerns);
        }
        Ok(result)
    }

    /// Like [`SlotGuard::edit`], but returns `None` if there is no collection.
    pub fn edit_if_there<T: Collection, R>(
        &mut self,
        key: &Key<'_>,
        change: impl FnOnce(&mut Edit<'_, T>) -> R,
    ) -> Result<Option<R>, WrongType> {
        if self.live(key).is_none() {
            return Ok(None);
        }
        self.edit(key, change).map(Some)
    }

    /// Notifies subscribers of the key of a write, and counts `changes`: for results that count as several
    /// changes.
    pub fn announce(&mut self, key: &Key<'_>, changes: u64) {
        self.changed_times(key, Change::Written, changes);
    }

    /// Sets the form of an existing collection, which does not change.
    pub fn set_form(&mut self, key: &Key<'_>, form: u8) {
        if let Some(found) = self.live(key) {
            found.entry().set_form(form);
        }
    }

    /// Sets the key to a collection of this form, whatever was there; an empty collection removes the key.
    pub fn set_collection<T: Collection>(
        &mut self,
        key: &Key<'_>,
        value: T,
        form: u8,
        deadline: Option<Millis>,
    ) {
        self.set_sharing_collection(key, (value, form, 0), deadline);
    }

    /// Like [`SlotGuard::set_collection`], for a value that shares `shared` bytes with the collections it was
    /// made from.
    pub fn set_sharing_collection<T: Collection>(
        &mut self,
        key: &Key<'_>,
        (value, form, shared): (T, u8, u64),
        deadline: Option<Millis>,
    ) {
        if value.is_empty() {
            self.remove(key);
            return;
        }
        let found = self.live_or_gone(key);
        let access = self.access_after(found.as_ref());
        let replaced = found.map(|found| {
            let old = self.detach(key.place, found);
            self.free(key.place, old);
        });
        let entry = self.entry_of(key, value, form, deadline);
        entry.set_access(access);
        self.record_shared(key.place, entry, shared);
        self.insert(key, entry);
        if replaced.is_none() {
            self.emit(key.place, key.bytes, What::Added);
        }
        self.changed(key, Change::Written);
    }

    /// Drops a collection that a command has shared with a key or made itself. If that was the last
    /// reference, it is freed, by the lazy-free thread if that takes long.
    pub fn discard<T: Collection>(&mut self, value: T) {
        // SAFETY: the raw value is of this kind, and its reference moves on.
        let value = unsafe { HeapValue::from_raw(T::KIND, value.into_raw().as_ptr()) };
        self.ctx.discard(Some(value));
    }

    fn add_collection<T: Collection>(&mut self, key: &Key<'_>, value: T, form: u8, deadline: Option<Millis>) {
        let entry = self.entry_of(key, value, form, deadline);
        self.add_entry(key, entry);
    }

    fn entry_of<T: Collection>(
        &self,
        key: &Key<'_>,
        value: T,
        form: u8,
        deadline: Option<Millis>,
    ) -> EntryPtr {
        let raw = value.into_raw();
        // SAFETY: the raw value is of this kind, and its reference moves on.
        let value = unsafe { HeapValue::from_raw(T::KIND, raw.as_ptr()) };
        EntryPtr::new(key.bytes, Value::HeapValue(value, form), deadline, self.new_access())
    }
}
