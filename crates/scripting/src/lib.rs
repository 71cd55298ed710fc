//! Scripts and functions: Lua states, the sandbox, running scripts, libraries of functions.
//!
//! docs/scripting.md describes the whole: the locks of a script and why nothing is lost, the sandbox, the
//! limits.
//!
//! | module | |
//! |---|---|
//! | `machine` | a Lua state: each thread that runs scripts makes its own for its first script |
//! | `run` | a script being run: its commands, and the ways in which it may have to be run again |
//! | `host` | the call of a script, and the decisions of the server |
//! | `api`, `sandbox.lua` | `redis.*`; the environment of scripts |
//! | `lua_host`, `watch` | the running script as crate `lua` sees it; the checks while it runs |
//! | `functions`, `declared` | libraries of functions; the flags that a script declares of itself |
//! | `busy` | the script that keeps all clients waiting |
//!
//! [`Scripts`] is shared by all threads: the texts of EVAL's scripts by their digests, and the libraries of
//! functions. A machine compares two counters to see whether its compiled scripts are still valid.
//!
//! Absent: the way in which a command is admitted, run and counted, for which [`host::ScriptHost`] stands;
//! the commands EVAL, SCRIPT and FUNCTION; the thread for slow scripts. The functions that scripts call,
//! except `redis.*`, are those of crate `lua`.

mod api;
pub mod busy;
pub mod declared;
pub mod functions;
pub mod host;
mod lua_host;
pub mod machine;
mod run;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use evenkeel_lua::shebang::ScriptFlags;
use parking_lot::{Mutex, RwLock};

use crate::busy::Busy;
use crate::functions::{Function, Libraries, Library};

/// Most scripts kept that came by EVAL and were not loaded on purpose: clients that put their values into the
/// text of the script make a new script with every call.
const EVALUATED_MAX: usize = 500;

/// A script's name: the SHA-1 of its text in lower-case hexadecimal digits.
pub type Sha = [u8; 40];

/// A script that EVAL or SCRIPT LOAD has brought.
pub struct Script {
    pub sha: Sha,
    pub body: Box<[u8]>,
    /// `None` without a shebang.
    pub flags: Option<ScriptFlags>,
    pub habits: Habits,
    /// [`Scripts::brought`] when the script was last used.
    used_at: AtomicU64,
}

impl Script {
    fn new(sha: Sha, body: &[u8], flags: Option<ScriptFlags>) -> Script {
        Script { sha, body: body.into(), flags, habits: Habits::default(), used_at: AtomicU64::new(0) }
    }
}

/// Observations of earlier runs, used as hints where to begin. A run that begins in the wrong place is begun
/// again, so hints may be wrong.
#[derive(Default)]
pub struct Habits {
    /// The script reaches for undeclared keys.
    outside: AtomicBool,
    /// The script takes long.
    slow: AtomicBool,
    /// The script makes changes that cannot be taken back.
    for_good: AtomicBool,
}

impl Habits {
    /// Whether the script has reached for undeclared keys.
    pub fn reach_outside(&self) -> bool {
        self.outside.load(Relaxed)
    }

    /// Whether the thread for slow scripts runs it, on a server with this number of workers. A script that
    /// cannot be taken back may never end, and a single worker is needed to answer other clients.
    pub fn leaves_worker(&self, workers: usize) -> bool {
        self.slow.load(Relaxed) || workers == 1 && self.for_good.load(Relaxed)
    }
}

/// State of scripting that all threads share; see the crate's text.
pub struct Scripts {
    /// Unique in this process.
    number: u64,
    redis_version: Box<str>,
    cache: Mutex<Cache>,
    /// Number of scripts that newer scripts have pushed out.
    pushed_out: AtomicU64,
    /// `pushed_out` at the last [`Scripts::reset_stat`].
    forgotten: AtomicU64,
    /// Number of scripts that EVAL has brought.
    brought: AtomicU64,
    /// Number of SCRIPT FLUSH calls.
    flushes: AtomicU64,
    libraries: RwLock<Arc<Libraries>>,
    libraries_version: AtomicU64,
    pub busy: Busy,
    /// DEBUG SET-DISABLE-DENY-SCRIPTS.
    pub denies_nothing: AtomicBool,
    /// `lua-enable-insecure-api`: scripts have getfenv, setfenv and newproxy. A thread makes a new Lua state
    /// when this has changed.
    pub is_insecure: AtomicBool,
    /// Bytes of all Lua states, as last recorded by each.
    lua_bytes: AtomicU64,
}

#[derive(Default)]
struct Cache {
    scripts: HashMap<Sha, Arc<Script>>,
    /// Scripts that came by EVAL, with [`Script::used_at`] as of when they were queued: the least recently
    /// used first, except for those used since.
    evaluated: VecDeque<(Sha, u64)>,
    bytes: usize,
}

impl Cache {
    /// Removes the least recently used script that came by EVAL.
    fn push_out(&mut self) {
        while let Some((sha, queued)) = self.evaluated.pop_front() {
            let used_at = self.scripts.get(&sha).map_or(queued, |script| script.used_at.load(Relaxed));
            if used_at > queued {
                self.evaluated.push_back((sha, used_at));
                continue;
            }
            if let Some(gone) = self.scripts.remove(&sha) {
                self.bytes -= gone.body.len();
            }
            return;
        }
    }
}

impl Scripts {
    /// Creates a state without scripts and libraries. `redis_version` is what scripts are told.
    pub fn new(redis_version: &[u8]) -> Scripts {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Scripts {
            number: LAST.fetch_add(1, Relaxed) + 1,
            redis_version: String::from_utf8_lossy(redis_version).into(),
            cache: Mutex::default(),
            pushed_out: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            brought: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            libraries: RwLock::default(),
            libraries_version: AtomicU64::new(0),
            busy: Busy::default(),
            denies_nothing: AtomicBool::new(false),
            is_insecure: AtomicBool::new(false),
            lua_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the script of this digest.
    pub fn find(&self, sha: &Sha) -> Option<Arc<Script>> {
        self.cache.lock().scripts.get(sha).cloned()
    }

    /// Keeps a script; a script that came by EVAL may be pushed out later.
    fn keep(&self, script: Arc<Script>, evaluated: bool) -> Arc<Script> {
        let mut cache = self.cache.lock();
        if let Some(there) = cache.scripts.get(&script.sha).cloned() {
            if evaluated {
                self.mark_used(&there);
            } else {
                cache.evaluated.retain(|(sha, _)| *sha != there.sha);
            }
            return there;
        }
        if evaluated {
            if cache.evaluated.len() >= EVALUATED_MAX {
                cache.push_out();
                self.pushed_out.fetch_add(1, Relaxed);
            }
            self.brought.fetch_add(1, Relaxed);
            self.mark_used(&script);
            cache.evaluated.push_back((script.sha, script.used_at.load(Relaxed)));
        }
        cache.bytes += script.body.len();
        cache.scripts.insert(script.sha, script.clone());
        script
    }

    /// Makes the script one of the last to be pushed out.
    fn mark_used(&self, script: &Script) {
        let now = self.brought.load(Relaxed);
        // Workers that run the same script share its cache line, so they write to it rarely.
        if script.used_at.load(Relaxed) != now {
            script.used_at.store(now, Relaxed);
        }
    }

    /// Returns the number of scripts pushed out since the start or the last [`Scripts::reset_stat`].
    pub fn evicted(&self) -> u64 {
        self.pushed_out.load(Relaxed).saturating_sub(self.forgotten.load(Relaxed))
    }

    /// Resets [`Scripts::evicted`] to zero.
    pub fn reset_stat(&self) {
        self.forgotten.store(self.pushed_out.load(Relaxed), Relaxed);
    }

    /// Drops all scripts, for SCRIPT FLUSH. A machine drops its compiled scripts when it next runs a script.
    pub fn flush(&self) {
        *self.cache.lock() = Cache::default();
        self.flushes.fetch_add(1, Release);
    }

    /// Returns the texts of all scripts kept, and whether each came by EVAL, and so may be pushed out.
    pub fn texts(&self) -> Vec<(Arc<Script>, bool)> {
        let cache = self.cache.lock();
        let evaluated = |script: &Script| cache.evaluated.iter().any(|(sha, _)| *sha == script.sha);
        cache.scripts.values().map(|script| (script.clone(), evaluated(script))).collect()
    }

    /// Returns the number of scripts kept, and the bytes of their texts.
    pub fn cached_texts(&self) -> (usize, usize) {
        let cache = self.cache.lock();
        (cache.scripts.len(), cache.bytes)
    }

    /// Returns the bytes of all Lua states.
    pub fn lua_bytes(&self) -> u64 {
        self.lua_bytes.load(Relaxed)
    }

    /// Returns the current libraries of functions.
    pub fn libraries(&self) -> Arc<Libraries> {
        self.libraries.read().clone()
    }

    /// Replaces the libraries. The caller holds all locks, or the server is starting.
    pub fn set_libraries(&self, mut libraries: Libraries) {
        let mut current = self.libraries.write();
        libraries.removed = libraries.removed.max(current.removed) + 1;
        *current = Arc::new(libraries);
        drop(current);
        self.libraries_version.fetch_add(1, Release);
    }

    /// Changes the libraries, like [`Scripts::set_libraries`]: in place, unless a thread keeps the value that
    /// [`Scripts::libraries`] returned. If `change` fails, it has changed nothing.
    pub fn change_libraries<E>(&self, change: impl FnOnce(&mut Libraries) -> Result<(), E>) -> Result<(), E> {
        change(Arc::make_mut(&mut *self.libraries.write()))?;
        self.libraries_version.fetch_add(1, Release);
        Ok(())
    }

    /// Returns the function of this name in any case of letters, and its library.
    fn function(&self, name: &[u8]) -> Option<(Arc<Library>, Arc<Function>)> {
        self.libraries.read().function(name).cloned()
    }
}

/// Returns the digest of a script.
pub fn sha_of(body: &[u8]) -> Sha {
    let digest = sha1_smol::Sha1::from(body).digest().to_string();
    digest.into_bytes().try_into().expect("forty digits")
}
