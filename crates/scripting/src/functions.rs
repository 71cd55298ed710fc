//! Libraries of functions, as FUNCTION LOAD, files and the journal bring them.
//!
//! The set of libraries is a value that is replaced as a whole, behind the closed gate, so that it changes at
//! a single moment of the journal and of a snapshot. Each thread's Lua state compiles a library when it first
//! calls one of its functions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use super::Habits;
use evenkeel_command::error::Error;
use evenkeel_lua::shebang::ScriptFlags;

/// A library of functions.
pub struct Library {
    /// Unique among all libraries since the start, also of the same name.
    pub(super) number: u64,
    pub name: Vec<u8>,
    /// The text as it was loaded, with the shebang line.
    pub code: Vec<u8>,
    /// By name.
    pub functions: BTreeMap<Vec<u8>, Arc<Function>>,
}

/// A function as its library has registered it.
pub struct Function {
    pub name: Vec<u8>,
    pub description: Option<Vec<u8>>,
    pub flags: ScriptFlags,
    pub habits: Habits,
}

impl Library {
    pub(super) fn new(name: Vec<u8>, code: Vec<u8>, functions: Vec<Function>) -> Library {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let functions = functions.into_iter().map(|function| (function.name.clone(), Arc::new(function)));
        Library { number: LAST.fetch_add(1, Relaxed) + 1, name, code, functions: functions.collect() }
    }
}

/// All libraries, and an index of their functions.
#[derive(Clone, Default)]
pub struct Libraries {
    by_name: BTreeMap<Vec<u8>, Arc<Library>>,
    /// By name in lower case: FCALL ignores case.
    functions: HashMap<Vec<u8>, (Arc<Library>, Arc<Function>)>,
    /// Grows whenever a library is removed.
    pub(super) removed: u64,
}

impl Libraries {
    /// Iterates over the libraries by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Library>> {
        self.by_name.values()
    }

    /// Returns the number of libraries.
    pub fn count(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the number of functions of all libraries.
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Returns the function of this name in any case of letters, and its library.
    pub fn function(&self, name: &[u8]) -> Option<&(Arc<Library>, Arc<Function>)> {
        self.functions.get(&name.to_ascii_lowercase()[..])
    }

    /// Whether there is a library of this name.
    pub fn has(&self, name: &[u8]) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns the numbers of the libraries.
    pub(super) fn numbers(&self) -> HashSet<u64> {
        self.by_name.values().map(|library| library.number).collect()
    }

    /// Adds a library. With `replace`, it takes the place of a library of the same name.
    ///
    /// # Errors
    /// Without `replace`, a library of this name exists; or another library has a function of the same name.
    /// Then the set is unchanged.
    pub fn add(&mut self, library: Arc<Library>, replace: bool) -> Result<(), Error> {
        let before = self.by_name.get(&library.name).cloned();
        if before.is_some() && !replace {
            return Err(Error::Bytes([b"ERR Library '", &library.name[..], b"' already exists"].concat()));
        }
        for name in library.functions.keys() {
            let other = self
                .functions
                .get(&name.to_ascii_lowercase()[..])
                .filter(|(owner, _)| owner.name != library.name);
            if other.is_some() {
                return Err(Error::Bytes([b"ERR Function ", &name[..], b" already exists"].concat()));
            }
        }
        if let Some(before) = before {
            self.take_out(&before);
        }
        for (name, function) in &library.functions {
            self.functions.insert(name.to_ascii_lowercase(), (library.clone(), function.clone()));
        }
        self.by_name.insert(library.name.clone(), library);
        Ok(())
    }

    /// Removes the library of this name. Returns `false` if there is none.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        match self.by_name.get(name).cloned() {
            Some(library) => {
                self.take_out(&library);
                true
            }
            None => false,
        }
    }

    fn take_out(&mut self, library: &Library) {
        self.removed += 1;
        self.by_name.remove(&library.name);
        library.functions.keys().for_each(|name| {
            self.functions.remove(&name.to_ascii_lowercase()[..]);
        });
    }
}
