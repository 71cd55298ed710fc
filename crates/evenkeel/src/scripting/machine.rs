//! A Lua state, with what it has compiled. One per thread that runs scripts, made when it runs its first.
//!
//! It has a limit of memory, which also holds while Rust works for a script: who passes it gets Lua's own error, "not enough
//! memory". Between scripts the collector gives back what a large one has left, and what is kept compiled is bounded by number
//! and bytes, so that no script finds a state that others have filled.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use mlua::{Function as LuaFunction, Lua, LuaOptions, StdLib, Table, Value};

use super::functions::{Function, Libraries, Library};
use super::run::{self, Ended, Run};
use super::shebang::{self, ScriptFlags};
use super::{Script, Sha, api, libraries, raw, sha_of, watch};
use crate::blocking::Mode;
use crate::command::Call;
use crate::error::{Done, Error};
use crate::persist::{STALE, STALE_TEXT};
use crate::server::Server;
use evenkeel_runtime::clock;

/// Bytes of memory that a state may take.
pub(super) const MEMORY_MAX: usize = 512 << 20;

/// Bytes that a script may leave behind before all of it is collected at once.
const LEFT_MAX: usize = 32 << 20;

/// Scripts that are kept compiled, and bytes of their texts: compiled, a text takes up to some ten times as much. Beyond either, all are
/// forgotten, and compiled anew when they come.
const COMPILED_MAX: usize = 1_000;
const COMPILED_BYTES_MAX: usize = 16 << 20;

/// Bytes of keys and arguments of a script that may stay where it has found them.
const WORDS_MAX: usize = 64 * 1024;

const NO_MEMORY: &[u8] = b"not enough memory";

const KILLED: &str = "ERR Script killed by user with SCRIPT KILL...";

/// The functions of a library, by name.
type Callbacks = HashMap<Vec<u8>, LuaFunction>;

/// See the module's text.
pub(crate) struct Machine {
    lua: Lua,
    /// The server's, whose scripts these are: tests have several in one thread.
    server: String,
    envs: Environments,
    /// Calls a function with arguments; gives whether it went well, and its value or error.
    protected: LuaFunction,
    /// Shows libraries what they see while they are loaded, or what their functions see.
    set_loading: LuaFunction,
    scripts: HashMap<Arc<[u8]>, Compiled>,
    by_sha: HashMap<Sha, Arc<[u8]>>,
    /// Bytes of all texts.
    compiled_bytes: usize,
    flushes: u64,
    libraries: Arc<Libraries>,
    libraries_version: u64,
    /// Callbacks by the number of their library.
    loaded: HashMap<u64, Callbacks>,
    bytes: u64,
    /// All is collected when so many bytes are in use.
    collect_from: usize,
}

struct Environments {
    scripts: Table,
    functions: Table,
    /// Where KEYS and ARGV are put.
    behind_scripts: Table,
}

#[derive(Clone)]
struct Compiled {
    script: Arc<Script>,
    function: LuaFunction,
    /// How many scripts had been pushed out when this one was last known to be kept.
    pushed_out: u64,
}

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Calls `f` with the thread's machine.
pub(crate) fn with<R>(server: &Server, f: impl FnOnce(&mut Machine) -> R) -> Result<R, Error> {
    MACHINE.with_borrow_mut(|place| {
        if place.as_ref().is_none_or(|machine| machine.server != server.run_id) {
            *place = None;
            *place = Some(
                Machine::new(server)
                    .map_err(|error| Error::text(format!("ERR Cannot create a Lua state: {error}")))?,
            );
        }
        let machine = place.as_mut().expect("it was made");
        machine.follow(server);
        let result = f(machine);
        machine.tidy(server);
        Ok(result)
    })
}

/// There is no script of this name.
pub(crate) fn no_script() -> Error {
    Error::text("NOSCRIPT No matching script. Please use EVAL.")
}

/// What is to be run.
pub(crate) enum Target {
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

    pub(crate) fn habits(&self) -> &super::Habits {
        match self {
            Target::Script(script) => &script.habits,
            Target::Function(_, function) => &function.habits,
        }
    }
}

impl Machine {
    fn new(server: &Server) -> mlua::Result<Machine> {
        let libs = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::DEBUG;
        // SAFETY: what could break the state (the debug library, bytecode) is kept from scripts by the sandbox.
        let lua = unsafe { Lua::unsafe_new_with(libs, LuaOptions::new()) };
        lua.set_memory_limit(MEMORY_MAX)?;
        let native = api::natives(&lua)?;
        native.raw_set("libraries", libraries::all(&lua)?)?;
        let sandbox = lua.load(include_str!("sandbox.lua")).set_name("=sandbox").into_function()?;
        type Made = (Table, Table, LuaFunction, LuaFunction);
        let (envs, behind_scripts, on_error, set_loading): Made = sandbox.call(native)?;
        let protected = raw::closure(&lua, raw::protected, on_error)?;
        watch::watch(&lua)?;
        Ok(Machine {
            server: server.run_id.clone(),
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
            flushes: server.scripts.flushes.load(Acquire),
            libraries: server.scripts.libraries(),
            libraries_version: 0,
            loaded: HashMap::new(),
            bytes: 0,
            collect_from: LEFT_MAX,
            lua,
        })
    }

    /// Forgets what no longer holds.
    fn follow(&mut self, server: &Server) {
        let flushes = server.scripts.flushes.load(Acquire);
        let is_much = self.scripts.len() > COMPILED_MAX || self.compiled_bytes > COMPILED_BYTES_MAX;
        if flushes != self.flushes || is_much {
            self.flushes = flushes;
            self.forget_scripts();
        }
        let version = server.scripts.libraries_version.load(Acquire);
        if version != self.libraries_version {
            self.libraries_version = version;
            self.libraries = server.scripts.libraries();
            let libraries = &self.libraries;
            self.loaded.retain(|number, _| libraries.has_number(*number));
        }
    }

    fn forget_scripts(&mut self) {
        self.scripts.clear();
        self.by_sha.clear();
        self.compiled_bytes = 0;
    }

    /// Gives back what a script has left, and says how much is in use.
    fn tidy(&mut self, server: &Server) {
        if self.lua.used_memory() > self.collect_from {
            self.collect();
        }
        let bytes = self.lua.used_memory() as u64;
        if bytes.abs_diff(self.bytes) > 64 * 1024 {
            server.scripts.lua_bytes.fetch_add(bytes.wrapping_sub(self.bytes), Relaxed);
            self.bytes = bytes;
        }
    }

    fn collect(&mut self) {
        // Nothing can fail: finalisers are not scripts' to set.
        let _ = self.lua.gc_collect();
        // What libraries and scripts keep is looked at again only when there is as much more.
        self.collect_from = (self.lua.used_memory() * 2).clamp(LEFT_MAX, MEMORY_MAX / 2);
    }

    /// The script of this text, which is kept from now on; the error says why it cannot be compiled.
    pub(crate) fn script(&mut self, server: &Server, body: &[u8], evaluated: bool) -> Result<Target, Error> {
        let pushed_out = server.scripts.pushed_out.load(Relaxed);
        if evaluated && let Some(compiled) = self.scripts.get_mut(body) {
            if std::mem::replace(&mut compiled.pushed_out, pushed_out) != pushed_out {
                server.scripts.keep(compiled.script.clone(), evaluated); // it may be one of these
            }
            return Ok(Target::Script(compiled.script.clone()));
        }
        let flags = shebang::of_script(body)?;
        let function = self.compile(body)?;
        let script = Script { sha: sha_of(body), body: body.into(), flags, habits: super::Habits::default() };
        let script = server.scripts.keep(Arc::new(script), evaluated);
        self.keep_compiled(Compiled { script: script.clone(), function, pushed_out });
        Ok(Target::Script(script))
    }

    /// The script of this name.
    pub(crate) fn script_named(&mut self, server: &Server, sha: &[u8]) -> Result<Target, Error> {
        let sha: Sha = sha.to_ascii_lowercase().try_into().map_err(|_| no_script())?;
        let pushed_out = server.scripts.pushed_out.load(Relaxed);
        if let Some(compiled) = self.by_sha.get(&sha).and_then(|body| self.scripts.get_mut(body)) {
            // It may be one of these, and is not known to other workers either then.
            if compiled.pushed_out != pushed_out && server.scripts.find(&sha).is_none() {
                return Err(no_script());
            }
            compiled.pushed_out = pushed_out;
            return Ok(Target::Script(compiled.script.clone()));
        }
        let script = server.scripts.find(&sha).ok_or_else(no_script)?;
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

    /// Whether a script of this text is known to reach for more than it declares.
    pub(crate) fn text_reaches_outside(&self, body: &[u8]) -> bool {
        self.scripts.get(body).is_some_and(|compiled| compiled.script.habits.reach_outside())
    }

    /// The same for one of this name.
    pub(crate) fn name_reaches_outside(&self, sha: &[u8]) -> bool {
        let sha = Sha::try_from(sha.to_ascii_lowercase()).ok();
        sha.and_then(|sha| self.by_sha.get(&sha)).is_some_and(|body| self.text_reaches_outside(body))
    }

    /// The same for a function.
    pub(crate) fn function_reaches_outside(&self, name: &[u8]) -> bool {
        self.libraries.function(name).is_some_and(|(_, function)| function.habits.reach_outside())
    }

    /// The function of this name.
    pub(crate) fn function_named(&self, name: &[u8]) -> Result<Target, Error> {
        let found = self.libraries.function(name);
        let (library, function) = found.ok_or_else(|| Error::text("ERR Function not found"))?;
        Ok(Target::Function(library.clone(), function.clone()))
    }

    /// Compiles a script; if there is no memory, without all others.
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

    /// Runs a script or function. `Err(Error::NeedsAll)`: nothing has been done, and it is to be run with everything held.
    pub(crate) fn run(&mut self, call: &mut Call<'_, '_>, target: &Target, keys: usize, ro: bool) -> Done {
        let flags = target.flags();
        admit(call, flags, ro)?;
        let (db, keeps) = (call.session.db, call.guard.ctx.keep_expired);
        // What a read removes could not be put back.
        call.guard.ctx.keep_expired |= !call.guard.holds_all();
        let done = self.run_admitted(call, target, keys, ro);
        call.guard.ctx.keep_expired = keeps;
        if call.session.db != db {
            call.session.select(db);
        }
        done
    }

    fn run_admitted(&mut self, call: &mut Call<'_, '_>, target: &Target, keys: usize, ro: bool) -> Done {
        let flags = target.flags();
        let function = match target {
            Target::Script(script) => {
                self.scripts.get(&*script.body).map(|compiled| compiled.function.clone())
            }
            Target::Function(library, function) => self.callback(library, &function.name)?,
        };
        let function = function.ok_or_else(|| Error::text("ERR the script was flushed before it ran"))?;
        libraries::reset(&self.lua);
        let mark = call.reply.mark();
        let is_function = matches!(target, Target::Function(..));
        let args = call.args;
        let mut run = Run::new(call, target.name(), is_function);
        run.read_only = ro || flags.is_some_and(|flags| flags.has(ScriptFlags::NO_WRITES));
        run.allow_oom =
            flags.is_some_and(|flags| flags.has(ScriptFlags::NO_WRITES) || flags.has(ScriptFlags::ALLOW_OOM));
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

    /// Counts the bytes of the words.
    fn sequence<'b>(&self, words: impl Iterator<Item = &'b [u8]>, bytes: &mut usize) -> mlua::Result<Table> {
        let table = self.lua.create_table()?;
        for word in words {
            *bytes += word.len();
            table.raw_push(self.lua.create_string(word)?)?;
        }
        Ok(table)
    }

    /// What becomes of a run that is over.
    fn conclude(
        &self,
        mut run: Run<'_, '_, '_>,
        target: &Target,
        mark: crate::reply::Mark,
        result: mlua::Result<(bool, Value)>,
    ) -> Done {
        let server = run.call.server.clone();
        if run.is_announced {
            server.scripts.busy.end();
        }
        if run.ended.is_some() {
            // The next script is watched as usual again.
            let _ = watch::watch(&self.lua);
        }
        if let Some(again @ (Ended::HeapValue | Ended::ForOnce | Ended::Slow | Ended::ForGood)) = run.ended {
            if let Some(undo) = run.undo.take() {
                run.call.guard.undo(undo);
            }
            let habits = target.habits();
            let shown = match again {
                Ended::Slow => &habits.slow,
                Ended::ForGood => &habits.for_good,
                Ended::HeapValue => &habits.outside,
                _ => return Err(Error::NeedsAll),
            };
            shown.store(true, Relaxed);
            return if again == Ended::HeapValue { Err(Error::NeedsAll) } else { run.call.offload_script() };
        }
        let elapsed = clock::ticks().saturating_sub(run.since) / clock::ticks_per_us();
        if matches!(run.call.mode, Mode::Again(_)) && elapsed < run::SLOW_US / 2 {
            target.habits().slow.store(false, Relaxed);
        }
        if matches!(run.call.mode, Mode::Again(_)) && !run.for_good {
            target.habits().for_good.store(false, Relaxed);
        }
        for (level, line) in run.lines.drain(..) {
            server.log.line(level, line);
        }
        run.send_shown();
        for refusal in run.refusals.drain(..) {
            server.acl.log.note(refusal, run.call.settings.acllog_max_len);
        }
        match run.ended {
            Some(Ended::Panicked) => return Err(Error::abandoned()),
            Some(Ended::Stopped) => {
                run.call.guard.forget_log();
                return Err(Error::text("ERR the server is shutting down"));
            }
            _ => {}
        }
        match result {
            // It may have caught the error with the last that it did.
            Ok((true, _)) if run.ended == Some(Ended::Killed) => Err(Error::text(KILLED)),
            Ok((true, value)) => {
                let mut errors = Vec::new();
                let written = raw::write(&self.lua, &value, run.resp3, run.call.reply, &mut errors);
                errors.iter().for_each(|line| server.stats[run.call.worker].error(line));
                match written {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(raw::TooLong)) => {
                        run.call.reply.rewind(mark);
                        Err(Error::text("ERR the reply of the script is too long"))
                    }
                    Err(error) => {
                        run.call.reply.rewind(mark);
                        Err(Error::text(format!("ERR {error}")))
                    }
                }
            }
            Ok((false, error)) => self.report(run, error),
            Err(_) if run.ended == Some(Ended::Killed) => Err(Error::text(KILLED)),
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
            line = KILLED.into();
        }
        if let (Some(source), Some(number)) = (field("source"), field("line")) {
            line.extend_from_slice(
                &[b" script: ", name, b", on ", &source[..], b":", &number[..], b"."].concat(),
            );
        }
        if error.raw_get::<bool>("ignore_error_stats_update").unwrap_or(false) {
            run.call.reply.fail(&Error::Bytes(line));
            return Ok(());
        }
        Err(Error::Bytes(line))
    }

    /// The callback of a function, whose library is compiled if it has not been.
    fn callback(&mut self, library: &Library, name: &[u8]) -> Result<Option<LuaFunction>, Error> {
        if !self.loaded.contains_key(&library.number) {
            let (_, callbacks) = self.load(&library.code, true)?;
            self.loaded.insert(library.number, callbacks);
        }
        Ok(self.loaded[&library.number].get(name).cloned())
    }

    /// Runs the code of a library, which registers its functions. `again`: it has been run before, somewhere.
    fn load(&self, code: &[u8], again: bool) -> Result<(Vec<Function>, Callbacks), Error> {
        let chunk = self.compile_as(shebang::code(code), "@user_function", &self.envs.functions);
        let chunk =
            chunk.map_err(|text| Error::Bytes([b"ERR Error compiling function: ", &text[..]].concat()))?;
        let no_memory = |error| Error::text(format!("ERR Error registering functions: {error}"));
        self.set_loading.call::<()>(true).map_err(no_memory)?;
        api::begin_load(again);
        watch::begin();
        let result = self.protected.call::<(bool, Value)>(chunk);
        let registered = api::end_load();
        self.set_loading.call::<()>(false).map_err(no_memory)?;
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
            Err(error) => return Err(Error::text(format!("ERR Error registering functions: {error}"))),
        }
        if registered.functions.is_empty() {
            return Err(Error::text("ERR No functions registered"));
        }
        Ok((registered.functions, registered.callbacks))
    }

    /// Makes a library of its code. `again`: it has been one before, here or elsewhere.
    pub(crate) fn library(&mut self, code: &[u8], again: bool) -> Result<Library, Error> {
        let name = shebang::library_name(code)?;
        let (functions, callbacks) = self.load(code, again)?;
        let library = Library::new(name, code.to_vec(), functions);
        self.loaded.insert(library.number, callbacks);
        Ok(library)
    }
}

/// What a script's flags and the server's state have against it.
fn admit(call: &Call<'_, '_>, flags: Option<ScriptFlags>, ro: bool) -> Result<(), Error> {
    let is_stale = call.server.persist.blockers.any() & STALE != 0 && !call.session.replays;
    let may_be_stale = flags.is_some_and(|flags| flags.has(ScriptFlags::ALLOW_STALE));
    if is_stale && !may_be_stale {
        return Err(Error::text(STALE_TEXT));
    }
    let Some(flags) = flags else { return Ok(()) };
    if !flags.has(ScriptFlags::NO_WRITES) {
        if ro {
            return Err(Error::text("ERR Can not execute a script with write flag using *_ro command."));
        }
        let set = crate::command::table::table().find(b"SET").expect("a command of this name");
        let set = crate::command::table::table().row(set);
        // Whether it may be run on old data has been looked at.
        if call.server.persist.blockers.any() & !STALE != 0
            && let Some(error) = call.server.persist.refuses(call.server, (set, set.flags), call.session)
        {
            return Err(error);
        }
        if !flags.has(ScriptFlags::ALLOW_OOM) && call.guard.ctx.is_short_of_memory {
            return Err(Error::OutOfMemory);
        }
    }
    Ok(())
}
