//! A Lua state, with its compiled scripts. Each thread that runs scripts has a machine, made for its first
//! script.
//!
//! The memory limit also holds while Rust works for a script: beyond it the script gets Lua's own error, "not
//! enough memory". Between scripts the collector frees the remains of a large script. Compiled scripts are
//! bounded in number and bytes, so that no script finds a state filled by earlier scripts.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use evenkeel_lua::shebang::{self, ScriptFlags};
use evenkeel_lua::{MEMORY_MAX, guarded, libraries, reply};
use mlua::{Function as LuaFunction, Lua, LuaOptions, StdLib, Table, Value};

use super::functions::{Function, Libraries, Library};
use super::run::{self, Ended, Run};
use super::{Script, Scripts, Sha, api, sha_of, watch};
use crate::host::ScriptCall;
use evenkeel_command::error::Error;
use evenkeel_command::flow::Mode;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_core::blockers::Blockers;
use evenkeel_runtime::clock;

/// Most bytes that scripts may leave behind before a full collection.
const LEFT_MAX: usize = 32 << 20;

/// Most compiled scripts, and most bytes of their texts: compiled, a text takes up to some ten times as much.
/// Beyond either, all are dropped, and compiled again when they are next run.
const COMPILED_MAX: usize = 1_000;
const COMPILED_BYTES_MAX: usize = 16 << 20;

/// Most bytes of keys and arguments that may stay in the state after a script.
const WORDS_MAX: usize = 64 * 1024;

const NO_MEMORY: &[u8] = b"not enough memory";

fn killed(is_function: bool) -> &'static str {
    if is_function {
        "ERR Script killed by user with FUNCTION KILL."
    } else {
        "ERR Script killed by user with SCRIPT KILL."
    }
}

/// A thread's Lua state; see the module's text.
pub struct Machine {
    lua: Lua,
    /// The number of the [`Scripts`] that it belongs to: tests have several servers in a thread.
    owner: u64,
    /// Whether scripts have the functions of [`Scripts::is_insecure`].
    is_insecure: bool,
    envs: Environments,
    /// Calls a function with arguments; returns whether it succeeded, and its value or error.
    protected: LuaFunction,
    /// Switches the environment of libraries between the view while loading and the view of their functions.
    set_loading: LuaFunction,
    scripts: HashMap<Arc<[u8]>, Compiled>,
    by_sha: HashMap<Sha, Arc<[u8]>>,
    /// Bytes of all texts.
    compiled_bytes: usize,
    flushes: u64,
    /// Functions by their names as called, found since the libraries changed last. The machine does not keep
    /// the libraries themselves, which would have to be copied for a change.
    functions: HashMap<Vec<u8>, (Arc<Library>, Arc<Function>)>,
    libraries_version: u64,
    /// `Libraries::removed` when `loaded` was cleared of removed libraries.
    libraries_removed: u64,
    /// Numbers of the libraries that have been run here.
    loaded: HashSet<u64>,
    /// A table for each of them: its callbacks by name. They are kept in Lua, since the number of values of a
    /// Lua state that Rust can hold is limited to about 8,000.
    callbacks: Table,
    bytes: u64,
    /// Bytes in use from which a full collection runs.
    collect_from: usize,
}

struct Environments {
    scripts: Table,
    functions: Table,
    /// Table for KEYS and ARGV.
    behind_scripts: Table,
}

#[derive(Clone)]
struct Compiled {
    script: Arc<Script>,
    function: LuaFunction,
    /// [`Scripts::pushed_out`](super::Scripts) when this script was last known to be kept.
    pushed_out: u64,
}

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Calls `f` with the thread's machine, which is made if there is none.
pub fn with<R>(scripts: &Scripts, f: impl FnOnce(&mut Machine) -> R) -> Result<R, Error> {
    MACHINE.with_borrow_mut(|place| {
        let is_valid = |machine: &Machine| {
            machine.owner == scripts.number && machine.is_insecure == scripts.is_insecure.load(Relaxed)
        };
        if !place.as_ref().is_some_and(is_valid) {
            *place = None;
            *place = Some(
                Machine::new(scripts)
                    .map_err(|error| Error::text(format!("ERR Cannot create a Lua state: {error}")))?,
            );
        }
        let machine = place.as_mut().expect("it was made");
        machine.follow(scripts);
        let result = f(machine);
        machine.tidy(scripts);
        Ok(result)
    })
}

/// Returns the error for an unknown digest.
pub fn no_script() -> Error {
    Error::text("NOSCRIPT No matching script.")
}

/// The script or function to be run.
pub enum Target {
    Script(Arc<Script>),
    Function(Arc<Library>, Arc<Function>),
}

impl Target {
    fn name(&self) -> &[u8] {
        match self {
            Target::Script(script) => &script.sha,
            Target::Function(_, function) => &function.name,
        }
    }

    fn flags(&self) -> Option<ScriptFlags> {
        match self {
            Target::Script(script) => script.flags,
            Target::Function(_, function) => Some(function.flags),
        }
    }

    pub fn habits(&self) -> &super::Habits {
        match self {
            Target::Script(script) => &script.habits,
            Target::Function(_, function) => &function.habits,
        }
    }
}

impl Machine {
    fn new(scripts: &Scripts) -> mlua::Result<Machine> {
        let libs = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::DEBUG;
        // SAFETY: the sandbox denies scripts everything that could break the state (the debug library,
        // bytecode).
        let lua = unsafe { Lua::unsafe_new_with(libs, LuaOptions::new()) };
        lua.set_memory_limit(MEMORY_MAX)?;
        let native = api::natives(&lua, &scripts.redis_version)?;
        let is_insecure = scripts.is_insecure.load(Relaxed);
        if is_insecure {
            let functions = |lua: &Lua, shown: Table| guarded::environments(lua, &shown);
            native.raw_set("insecure", lua.create_function(functions)?)?;
        }
        let sandbox = lua.load(include_str!("sandbox.lua")).set_name("=sandbox").into_function()?;
        type Made = (Table, Table, LuaFunction, LuaFunction);
        let (envs, behind_scripts, on_error, set_loading): Made = sandbox.call(native)?;
        let protected = guarded::protected_call(&lua, on_error)?;
        watch::watch(&lua)?;
        Ok(Machine {
            owner: scripts.number,
            is_insecure,
            envs: Environments {
                scripts: envs.raw_get("scripts")?,
                functions: envs.raw_get("functions")?,
                behind_scripts,
            },
            protected,
            set_loading,
            scripts: HashMap::new(),
            by_sha: HashMap::new(),
            compiled_bytes: 0,
            flushes: scripts.flushes.load(Acquire),
            functions: HashMap::new(),
            libraries_version: 0,
            libraries_removed: 0,
            loaded: HashSet::new(),
            callbacks: lua.create_table()?,
            bytes: 0,
            collect_from: LEFT_MAX,
            lua,
        })
    }

    /// Drops compiled scripts and libraries that are no longer valid.
    fn follow(&mut self, scripts: &Scripts) {
        let flushes = scripts.flushes.load(Acquire);
        let is_much = self.scripts.len() > COMPILED_MAX || self.compiled_bytes > COMPILED_BYTES_MAX;
        if flushes != self.flushes || is_much {
            self.flushes = flushes;
            self.forget_scripts();
        }
        let version = scripts.libraries_version.load(Acquire);
        if version != self.libraries_version {
            self.libraries_version = version;
            self.functions.clear();
            let libraries = scripts.libraries.read();
            if self.libraries_removed != libraries.removed {
                self.libraries_removed = libraries.removed;
                self.forget_libraries(&libraries);
            }
        }
    }

    /// Drops the callbacks of all libraries that are not among these.
    fn forget_libraries(&mut self, libraries: &Libraries) {
        let (numbers, callbacks) = (libraries.numbers(), &self.callbacks);
        self.loaded.retain(|number| {
            // This cannot fail: the table has no metatable, and a field goes.
            numbers.contains(number) || callbacks.raw_set(*number as i64, Value::Nil).is_err()
        });
    }

    fn forget_scripts(&mut self) {
        self.scripts.clear();
        self.by_sha.clear();
        self.compiled_bytes = 0;
    }

    /// Collects the remains of a script, and records the bytes in use.
    fn tidy(&mut self, scripts: &Scripts) {
        if self.lua.used_memory() > self.collect_from {
            self.collect();
        }
        let bytes = self.lua.used_memory() as u64;
        if bytes.abs_diff(self.bytes) > 64 * 1024 {
            scripts.lua_bytes.fetch_add(bytes.wrapping_sub(self.bytes), Relaxed);
            self.bytes = bytes;
        }
    }

    fn collect(&mut self) {
        // This cannot fail: scripts can set no finalisers.
        let _ = self.lua.gc_collect();
        // The memory that libraries and scripts keep is collected again only when as much again is in use.
        self.collect_from = (self.lua.used_memory() * 2).clamp(LEFT_MAX, MEMORY_MAX / 2);
    }

    /// Returns the script of this text, and keeps it from now on. The error says why it cannot be compiled.
    pub fn script(&mut self, scripts: &Scripts, body: &[u8], evaluated: bool) -> Result<Target, Error> {
        let pushed_out = scripts.pushed_out.load(Relaxed);
        if evaluated && let Some(compiled) = self.scripts.get_mut(body) {
            if std::mem::replace(&mut compiled.pushed_out, pushed_out) != pushed_out {
                // this script may be one of the pushed out
                scripts.keep(compiled.script.clone(), evaluated);
            } else {
                scripts.mark_used(&compiled.script);
            }
            return Ok(Target::Script(compiled.script.clone()));
        }
        let flags = shebang::of_script(body)?;
        let function = self.compile(body)?;
        let script = scripts.keep(Arc::new(Script::new(sha_of(body), body, flags)), evaluated);
        self.keep_compiled(Compiled { script: script.clone(), function, pushed_out });
        Ok(Target::Script(script))
    }

    /// Returns the script of this digest.
    pub fn script_named(&mut self, scripts: &Scripts, sha: &[u8]) -> Result<Target, Error> {
        let sha: Sha = sha.to_ascii_lowercase().try_into().map_err(|_| no_script())?;
        let pushed_out = scripts.pushed_out.load(Relaxed);
        if let Some(compiled) = self.by_sha.get(&sha).and_then(|body| self.scripts.get_mut(body)) {
            // This script may be pushed out; then other workers do not know it either.
            if compiled.pushed_out != pushed_out && scripts.find(&sha).is_none() {
                return Err(no_script());
            }
            compiled.pushed_out = pushed_out;
            scripts.mark_used(&compiled.script);
            return Ok(Target::Script(compiled.script.clone()));
        }
        let script = scripts.find(&sha).ok_or_else(no_script)?;
        scripts.mark_used(&script);
        let function = self.compile(&script.body)?;
        self.keep_compiled(Compiled { script: script.clone(), function, pushed_out });
        Ok(Target::Script(script))
    }

    fn keep_compiled(&mut self, compiled: Compiled) {
        let body: Arc<[u8]> = compiled.script.body.as_ref().into();
        self.by_sha.insert(compiled.script.sha, body.clone());
        let len = body.len();
        if self.scripts.insert(body, compiled).is_none() {
            self.compiled_bytes += len;
        }
    }

    /// Whether a script of this text is known to reach for undeclared keys.
    pub fn text_reaches_outside(&self, body: &[u8]) -> bool {
        self.scripts.get(body).is_some_and(|compiled| compiled.script.habits.reach_outside())
    }

    /// Like [`Machine::text_reaches_outside`], for a digest.
    pub fn name_reaches_outside(&self, sha: &[u8]) -> bool {
        let sha = Sha::try_from(sha.to_ascii_lowercase()).ok();
        sha.and_then(|sha| self.by_sha.get(&sha)).is_some_and(|body| self.text_reaches_outside(body))
    }

    /// Like [`Machine::text_reaches_outside`], for a function.
    pub fn function_reaches_outside(&mut self, scripts: &Scripts, name: &[u8]) -> bool {
        self.function(scripts, name).is_some_and(|(_, function)| function.habits.reach_outside())
    }

    /// Returns the function of this name.
    pub fn function_named(&mut self, scripts: &Scripts, name: &[u8]) -> Result<Target, Error> {
        let found = self.function(scripts, name);
        let (library, function) = found.ok_or_else(|| Error::text("ERR Function not found"))?;
        Ok(Target::Function(library.clone(), function.clone()))
    }

    fn function(&mut self, scripts: &Scripts, name: &[u8]) -> Option<&(Arc<Library>, Arc<Function>)> {
        /// A name may be spelled in many ways.
        const NAMES_MAX: usize = 10_000;
        if !self.functions.contains_key(name) {
            if self.functions.len() >= NAMES_MAX {
                self.functions.clear();
            }
            self.functions.insert(name.to_vec(), scripts.function(name)?);
        }
        self.functions.get(name)
    }

    /// Compiles a script; when memory is short, drops all compiled scripts and tries again.
    fn compile(&mut self, body: &[u8]) -> Result<LuaFunction, Error> {
        let compile = |machine: &Machine| {
            machine.compile_as(shebang::code(body), "@user_script", &machine.envs.scripts)
        };
        let mut compiled = compile(self);
        if compiled.as_ref().is_err_and(|text| text == NO_MEMORY) {
            self.forget_scripts();
            self.collect();
            compiled = compile(self);
        }
        compiled.map_err(|text| {
            Error::Bytes([b"ERR Error compiling script (new function): ", &text[..]].concat())
        })
    }

    fn compile_as(&self, code: &[u8], name: &str, env: &Table) -> Result<LuaFunction, Vec<u8>> {
        let chunk = self.lua.load(code).set_name(name).set_mode(mlua::chunk::ChunkMode::Text);
        chunk.set_environment(env.clone()).into_function().map_err(|error| match error {
            mlua::Error::SyntaxError { message, .. } => message.into_bytes(),
            mlua::Error::MemoryError(_) => NO_MEMORY.to_vec(),
            error => error.to_string().into_bytes(),
        })
    }

    /// Runs a script or function. `Flow::RetryHoldingAll`: nothing has been done, and the caller has to run
    /// it with all locks.
    pub fn run(&mut self, call: &mut ScriptCall<'_, '_, '_>, target: &Target, keys: usize, ro: bool) -> Done {
        let flags = target.flags();
        admit(call, flags, ro)?;
        let (db, keeps) = (call.session.db, call.base.guard.ctx.keep_expired);
        // An expired key that a read removes could not be restored.
        call.base.guard.ctx.keep_expired |= !call.base.guard.holds_all();
        let done = self.run_admitted(call.reborrow(), target, keys, ro);
        call.base.guard.ctx.keep_expired = keeps;
        if call.session.db != db {
            call.session.select(db);
        }
        done
    }

    fn run_admitted(&mut self, call: ScriptCall<'_, '_, '_>, target: &Target, keys: usize, ro: bool) -> Done {
        let flags = target.flags();
        let function = match target {
            Target::Script(script) => {
                self.scripts.get(&*script.body).map(|compiled| compiled.function.clone())
            }
            Target::Function(library, function) => self.callback(library, &function.name)?,
        };
        let function = function.ok_or_else(|| Error::text("ERR the script was flushed before it ran"))?;
        libraries::reset(&self.lua);
        let mark = call.base.reply.mark();
        let is_function = matches!(target, Target::Function(..));
        let args = call.base.args;
        let mut run = Run::new(call, target.name(), is_function);
        run.read_only = ro || flags.is_some_and(|flags| flags.has(ScriptFlags::NO_WRITES));
        run.allow_oom =
            flags.is_some_and(|flags| flags.has(ScriptFlags::NO_WRITES) || flags.has(ScriptFlags::ALLOW_OOM));
        if run.call.base.settings.cluster_enabled {
            run.slot = run.call.base.keys.first().map(|key| key.place.slot() as u16);
            run.crosses_slots = flags.is_none_or(|flags| flags.has(ScriptFlags::ALLOW_CROSS_SLOT))
                || run.call.base.settings.cluster_allow_cross_slot;
        }
        watch::begin();
        let result = run.enter(|| self.execute(&function, is_function, args.from(3), keys));
        self.conclude(run, target, mark, result)
    }

    fn execute<'b>(
        &self,
        function: &LuaFunction,
        is_function: bool,
        mut args: impl Iterator<Item = &'b [u8]>,
        keys: usize,
    ) -> mlua::Result<(bool, Value)> {
        let mut bytes = 0;
        let named = self.sequence(args.by_ref().take(keys), &mut bytes)?;
        let rest = self.sequence(args, &mut bytes)?;
        if is_function {
            return self.protected.call((function, named, rest));
        }
        let behind = &self.envs.behind_scripts;
        behind.raw_set("KEYS", named)?;
        behind.raw_set("ARGV", rest)?;
        let result = self.protected.call(function);
        if bytes > WORDS_MAX {
            // The next script brings its own, and needs the memory.
            behind.raw_set("KEYS", Value::Nil)?;
            behind.raw_set("ARGV", Value::Nil)?;
        }
        result
    }

    /// Creates a table of the words and adds their bytes to `bytes`.
    fn sequence<'b>(&self, words: impl Iterator<Item = &'b [u8]>, bytes: &mut usize) -> mlua::Result<Table> {
        let table = self.lua.create_table()?;
        for word in words {
            *bytes += word.len();
            table.raw_push(self.lua.create_string(word)?)?;
        }
        Ok(table)
    }

    /// Turns the outcome of a run into the command's outcome.
    fn conclude(
        &self,
        mut run: Run<'_, '_, '_>,
        target: &Target,
        mark: evenkeel_command::reply::Mark,
        result: mlua::Result<(bool, Value)>,
    ) -> Done {
        let (scripts, host) = (run.call.scripts, run.call.host);
        if run.is_announced {
            scripts.busy.end();
        }
        if run.ended.is_some() {
            // The next script is watched as usual again.
            let _ = watch::watch(&self.lua);
        }
        if let Some(again @ (Ended::UnlockedKey | Ended::ForOnce | Ended::Slow | Ended::ForGood)) = run.ended
        {
            if let Some(undo) = run.undo.take() {
                run.call.base.guard.undo(undo);
            }
            let habits = target.habits();
            let shown = match again {
                Ended::Slow => &habits.slow,
                Ended::ForGood => &habits.for_good,
                Ended::UnlockedKey => &habits.outside,
                _ => return Ok(Flow::RetryHoldingAll),
            };
            shown.store(true, Relaxed);
            return Ok(if again == Ended::UnlockedKey { Flow::RetryHoldingAll } else { Flow::OffloadScript });
        }
        let elapsed = clock::ticks().saturating_sub(run.since) / clock::ticks_per_us();
        if matches!(run.call.base.mode, Mode::Again(_)) && elapsed < run::SLOW_US / 2 {
            target.habits().slow.store(false, Relaxed);
        }
        if matches!(run.call.base.mode, Mode::Again(_)) && !run.for_good {
            target.habits().for_good.store(false, Relaxed);
        }
        for (level, line) in run.lines.drain(..) {
            log::log!(level, "{line}");
        }
        run.send_shown();
        for refusal in run.refusals.drain(..) {
            run.call.acl.log.note(refusal, run.call.base.settings.acllog_max_len);
        }
        match run.ended {
            Some(Ended::Panicked) => return Err(Error::abandoned()),
            Some(Ended::Stopped) => {
                run.call.base.guard.forget_log();
                return Err(Error::text("ERR the server is shutting down"));
            }
            _ => {}
        }
        match result {
            // The script may have caught the error in its last instructions.
            Ok((true, _)) if run.ended == Some(Ended::Killed) => Err(Error::text(killed(run.is_function))),
            Ok((true, value)) => {
                let mut errors = Vec::new();
                let written = reply::write(&self.lua, &value, run.resp3, run.call.base.reply, &mut errors);
                errors.iter().for_each(|line| host.record_error(line));
                match written {
                    Ok(Ok(())) => Ok(Flow::Replied),
                    Ok(Err(reply::TooLong)) => {
                        run.call.base.reply.rewind(mark);
                        Err(Error::text("ERR the reply of the script is too long"))
                    }
                    Err(error) => {
                        run.call.base.reply.rewind(mark);
                        Err(Error::text(format!("ERR {error}")))
                    }
                }
            }
            Ok((false, error)) => self.report(run, error),
            Err(_) if run.ended == Some(Ended::Killed) => Err(Error::text(killed(run.is_function))),
            Err(error) => Err(Error::text(format!("ERR Error running script: {error}"))),
        }
    }

    /// Replies an error that the script has raised.
    fn report(&self, run: Run<'_, '_, '_>, error: Value) -> Done {
        let name = run.name;
        let Value::Table(error) = error else {
            let text = error.to_string().unwrap_or_else(|_| "execution failure".into());
            let text = text.get(..100).unwrap_or(&text);
            let line = [b"ERR Error running script ", name, b", ", text.as_bytes()].concat();
            return Err(Error::Bytes(line));
        };
        let field = |name: &str| -> Option<Vec<u8>> {
            let value = error.raw_get::<Value>(name).ok()?;
            let text = self.lua.coerce_string(value).ok()??;
            Some(text.as_bytes().to_vec())
        };
        let mut line = field("err").unwrap_or_else(|| b"ERR unknown error".to_vec());
        if run.ended == Some(Ended::Killed) {
            line = killed(run.is_function).into();
        }
        if let (Some(source), Some(number)) = (field("source"), field("line")) {
            line.extend_from_slice(&[b" script: on ", &source[..], b":", &number[..], b"."].concat());
        }
        if error.raw_get::<bool>("ignore_error_stats_update").unwrap_or(false) {
            run.call.base.reply.fail(&Error::Bytes(line));
            return Ok(Flow::Replied);
        }
        Err(Error::Bytes(line))
    }

    /// Returns the callback of a function, and compiles its library if necessary.
    fn callback(&mut self, library: &Library, name: &[u8]) -> Result<Option<LuaFunction>, Error> {
        if !self.loaded.contains(&library.number) {
            let (_, callbacks) = self.load(&library.code, true)?;
            self.keep_callbacks(library.number, callbacks)?;
        }
        let callbacks = self.callbacks.raw_get::<Table>(library.number as i64);
        let name = self.lua.create_string(name);
        callbacks.and_then(|callbacks| callbacks.raw_get(name?)).map_err(|error| failed(&error))
    }

    fn keep_callbacks(&mut self, number: u64, callbacks: Table) -> Result<(), Error> {
        self.callbacks.raw_set(number as i64, callbacks).map_err(|error| failed(&error))?;
        self.loaded.insert(number);
        Ok(())
    }

    /// Runs the code of a library, which registers its functions. `again`: some server has run it before.
    fn load(&self, code: &[u8], again: bool) -> Result<(Vec<Function>, Table), Error> {
        let chunk = self.compile_as(shebang::code(code), "@user_function", &self.envs.functions);
        let chunk =
            chunk.map_err(|text| Error::Bytes([b"ERR Error compiling function: ", &text[..]].concat()))?;
        self.set_loading.call::<()>(true).map_err(|error| failed(&error))?;
        if let Err(error) = api::begin_load(&self.lua, again) {
            let _ = self.set_loading.call::<()>(false);
            return Err(failed(&error));
        }
        watch::begin();
        let result = self.protected.call::<(bool, Value)>(chunk);
        let registered = api::end_load();
        self.set_loading.call::<()>(false).map_err(|error| failed(&error))?;
        if registered.is_late {
            let _ = watch::watch(&self.lua);
            return Err(Error::text("ERR Error registering functions: ERR FUNCTION LOAD timeout"));
        }
        match result {
            Ok((true, _)) => {}
            Ok((false, Value::Table(error))) => {
                let text = error.raw_get::<mlua::LuaString>("err").map(|text| text.as_bytes().to_vec());
                let text = text.unwrap_or_else(|_| b"ERR unknown error".to_vec());
                return Err(Error::Bytes([b"ERR Error registering functions: ", &text[..]].concat()));
            }
            Ok((false, error)) => {
                let text = error.to_string().unwrap_or_default();
                return Err(Error::text(format!("ERR Error registering functions: {text}")));
            }
            Err(error) => return Err(failed(&error)),
        }
        if registered.functions.is_empty() {
            return Err(Error::text("ERR No functions registered"));
        }
        Ok((registered.functions, registered.callbacks))
    }

    /// Makes a library of its code. `again`: it was a library before, on this server or another.
    pub fn library(&mut self, scripts: &Scripts, code: &[u8], again: bool) -> Result<Library, Error> {
        /// Libraries run here and then refused, beside as many as there are libraries.
        const REFUSED_MAX: usize = 100;
        let libraries = scripts.libraries.read();
        if self.loaded.len() > 2 * libraries.count() + REFUSED_MAX {
            self.forget_libraries(&libraries);
        }
        drop(libraries);
        let name = shebang::library_name(code)?;
        let (functions, callbacks) = self.load(code, again)?;
        let library = Library::new(name, code.to_vec(), functions);
        self.keep_callbacks(library.number, callbacks)?;
        Ok(library)
    }
}

/// The error for a library that Lua cannot take, for want of memory.
fn failed(error: &mlua::Error) -> Error {
    Error::text(format!("ERR Error registering functions: {error}"))
}

/// Checks a script's flags against the state of the server.
fn admit(call: &ScriptCall<'_, '_, '_>, flags: Option<ScriptFlags>, ro: bool) -> Result<(), Error> {
    let is_stale = call.core.blockers.any().contains(Blockers::STALE) && !call.session.replays;
    let may_be_stale = flags.is_some_and(|flags| flags.has(ScriptFlags::ALLOW_STALE));
    if is_stale && !may_be_stale {
        return Err(Error::stale());
    }
    let Some(flags) = flags else { return Ok(()) };
    if flags.has(ScriptFlags::NO_CLUSTER) && call.base.settings.cluster_enabled {
        return Err(Error::text("ERR Can not run script on cluster, 'no-cluster' flag is set."));
    }
    if !flags.has(ScriptFlags::NO_WRITES) {
        if ro {
            return Err(Error::text("ERR Can not execute a script with write flag using *_ro command."));
        }
        let set = evenkeel_command::table::table().find(b"SET").expect("a command of this name");
        let set = evenkeel_command::table::table().row(set);
        // STALE has been checked above.
        if !(call.core.blockers.any() - Blockers::STALE).is_empty()
            && let Some(error) = call.host.refusal((set, set.flags), call.session)
        {
            return Err(error);
        }
        if !flags.has(ScriptFlags::ALLOW_OOM) && call.base.guard.ctx.is_short_of_memory {
            return Err(Error::OutOfMemory);
        }
    }
    Ok(())
}
