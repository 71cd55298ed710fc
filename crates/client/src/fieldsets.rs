//! Fieldsets: named lists of field names, for the hashes that a client is about to create (HIMPORT).

use std::collections::HashMap;
use std::sync::Arc;

/// Names of fields, in the order in which their values come.
pub type Fieldset = Arc<[Box<[u8]>]>;

/// The fieldsets of a session, by their names.
#[derive(Default)]
pub struct Fieldsets {
    by_name: HashMap<Box<[u8]>, Fieldset>,
    memory: usize,
}

impl Fieldsets {
    /// Sets a fieldset; a fieldset of the same name is replaced.
    pub fn set(&mut self, name: &[u8], fields: Fieldset) {
        self.memory += memory(name, &fields);
        if let Some(old) = self.by_name.insert(name.into(), fields) {
            self.memory -= memory(name, &old);
        }
    }

    pub fn find(&self, name: &[u8]) -> Option<&Fieldset> {
        self.by_name.get(name)
    }

    /// Removes a fieldset; returns false if there is none of this name.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let removed = self.by_name.remove(name);
        self.memory -= removed.as_ref().map_or(0, |fields| memory(name, fields));
        removed.is_some()
    }

    /// All names and fieldsets.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Fieldset)> {
        self.by_name.iter().map(|(name, fields)| (&**name, fields))
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Bytes that they take.
    pub fn memory(&self) -> usize {
        self.memory
    }
}

fn memory(name: &[u8], fields: &[Box<[u8]>]) -> usize {
    let names: usize = fields.iter().map(|field| size_of::<Box<[u8]>>() + field.len()).sum();
    size_of::<(Box<[u8]>, Fieldset)>() + name.len() + names
}
