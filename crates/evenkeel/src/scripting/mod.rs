//! Scripts and functions: Lua 5.1 inside the server.
//!
//! docs/scripting.md has the whole: which locks a script holds and why nothing is lost, the sandbox, the limits. In short:
//!
//! - `machine` is a Lua state. Each thread that runs scripts makes one when it runs its first; nothing of it is shared.
//! - `run` is a script being run: its commands, and the ways in which it may have to be run anew.
//! - `raw` is what is done on Lua's own stack; `sandbox.lua` is what scripts see; `api` is `redis.*`.
//! - `pattern` is what Lua's patterns match, `search` the functions of strings that use it.
//! - `libraries` are cjson, cmsgpack, bit and struct.
//! - [`Scripts`] is what all threads share: the texts of EVAL's scripts by their digests, and the libraries of functions.
//!   A machine keeps what it has compiled, and looks at two numbers to see whether that still holds.

mod api;
pub(crate) mod busy;
pub(crate) mod functions;
mod libraries;
pub(crate) mod machine;
mod pattern;
mod raw;
mod run;
mod search;
pub(crate) mod shebang;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use parking_lot::{Mutex, RwLock};

use crate::scripting::busy::Busy;
use crate::scripting::functions::Libraries;
use crate::scripting::shebang::ScriptFlags;

/// Scripts kept that came by EVAL and were not loaded on purpose: clients that put their values into the text of the
/// script make a new one with every call.
const EVALUATED_MAX: usize = 500;

/// A script's name: the SHA-1 of its text in lower case hexadecimal digits.
pub(crate) type Sha = [u8; 40];

/// A text that EVAL or SCRIPT LOAD has brought.
pub(crate) struct Script {
    pub(crate) sha: Sha,
    pub(crate) body: Box<[u8]>,
    /// `None` without a shebang.
    pub(crate) flags: Option<ScriptFlags>,
    pub(crate) habits: Habits,
}

/// What earlier runs have shown: hints where to begin. A run that begins wrongly is begun again, so they need not be right.
#[derive(Default)]
pub(crate) struct Habits {
    /// It reaches for keys that it does not declare.
    outside: AtomicBool,
    /// It takes long.
    slow: AtomicBool,
    /// It does what cannot be taken back.
    for_good: AtomicBool,
}

impl Habits {
    pub(crate) fn reach_outside(&self) -> bool {
        self.outside.load(Relaxed)
    }

    /// Whether it is run by the thread for slow scripts. What cannot be taken back may never end, and the only worker is needed to
    /// tell others so.
    pub(crate) fn leaves_worker(&self, workers: usize) -> bool {
        self.slow.load(Relaxed) || workers == 1 && self.for_good.load(Relaxed)
    }
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Scripts {
    cache: Mutex<Cache>,
    /// Counts the scripts that others have pushed out.
    pub(crate) pushed_out: AtomicU64,
    /// Counts SCRIPT FLUSH.
    flushes: AtomicU64,
    libraries: RwLock<Arc<Libraries>>,
    libraries_version: AtomicU64,
    pub(crate) busy: Busy,
    /// DEBUG SET-DISABLE-DENY-SCRIPTS.
    pub(crate) denies_nothing: AtomicBool,
    /// Bytes of all Lua states, as of the last look of each.
    lua_bytes: AtomicU64,
}

#[derive(Default)]
struct Cache {
    scripts: HashMap<Sha, Arc<Script>>,
    /// Those that came by EVAL, oldest first.
    evaluated: VecDeque<Sha>,
    bytes: usize,
}

impl Scripts {
    /// The script of this name.
    pub(crate) fn find(&self, sha: &Sha) -> Option<Arc<Script>> {
        self.cache.lock().scripts.get(sha).cloned()
    }

    /// Keeps a script; if it came by EVAL, not for ever.
    fn keep(&self, script: Arc<Script>, evaluated: bool) -> Arc<Script> {
        let mut cache = self.cache.lock();
        if let Some(there) = cache.scripts.get(&script.sha).cloned() {
            let among_evaluated = cache.evaluated.iter().position(|sha| *sha == there.sha);
            if let Some(sha) = among_evaluated.and_then(|at| cache.evaluated.remove(at))
                && evaluated
            {
                cache.evaluated.push_back(sha); // those that are in use stay
            }
            return there;
        }
        cache.bytes += script.body.len();
        if evaluated {
            cache.evaluated.push_back(script.sha);
            if cache.evaluated.len() > EVALUATED_MAX
                && let Some(oldest) = cache.evaluated.pop_front()
                && let Some(gone) = cache.scripts.remove(&oldest)
            {
                cache.bytes -= gone.body.len();
                self.pushed_out.fetch_add(1, Relaxed);
            }
        }
        cache.scripts.insert(script.sha, script.clone());
        script
    }

    /// SCRIPT FLUSH. Machines forget what they have compiled when they next run a script.
    pub(crate) fn flush(&self) {
        *self.cache.lock() = Cache::default();
        self.flushes.fetch_add(1, Release);
    }

    /// How many scripts are kept, and the bytes of their texts.
    pub(crate) fn figures(&self) -> (usize, usize) {
        let cache = self.cache.lock();
        (cache.scripts.len(), cache.bytes)
    }

    /// Bytes of all Lua states.
    pub(crate) fn lua_bytes(&self) -> u64 {
        self.lua_bytes.load(Relaxed)
    }

    /// The libraries of functions, as they are now.
    pub(crate) fn libraries(&self) -> Arc<Libraries> {
        self.libraries.read().clone()
    }

    /// Replaces the libraries. Everything is held, or nobody else is there yet.
    pub(crate) fn set_libraries(&self, libraries: Libraries) {
        *self.libraries.write() = Arc::new(libraries);
        self.libraries_version.fetch_add(1, Release);
    }
}

/// The name of a script.
pub(crate) fn sha_of(body: &[u8]) -> Sha {
    let digest = sha1_smol::Sha1::from(body).digest().to_string();
    digest.into_bytes().try_into().expect("forty digits")
}
