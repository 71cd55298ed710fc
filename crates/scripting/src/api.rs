//! `redis.*`, and the rest of the scripts' environment that is written in Rust.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use evenkeel_command::args::OwnedArgs;
use evenkeel_lua::native::{Raise, error_table, native};
use evenkeel_lua::shebang::{self, ScriptFlags};
use evenkeel_lua::values::{number, one, text, truncated};
use evenkeel_lua::{call, guarded, libraries, random};
use log::Level;
use mlua::{Function as LuaFunction, Lua, MultiValue, Table, Value};

use super::functions::Function;
use super::lua_host::LuaHost;
use super::run::with_current;
use super::{Habits, sha_of};

/// Longest time in which a library may register its functions; the second for a library that a server has
/// loaded before: a busy machine is no reason to refuse a file, or to let a replica lack a library of its
/// primary.
const LOAD_MAX: Duration = Duration::from_millis(500);
const LOAD_AGAIN_MAX: Duration = Duration::from_secs(30);

/// Returns `native` of sandbox.lua. `version`: the version of Redis that scripts are told.
pub(super) fn natives(lua: &Lua, version: &str) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    guarded::add::<LuaHost>(lua, &table)?;
    table.raw_set("random", native(lua, random::random)?)?;
    table.raw_set("randomseed", native(lua, random::random_seed)?)?;
    table.raw_set("registration", registration(lua, version)?)?;
    let libraries = libraries::all::<LuaHost>(lua)?;
    libraries.raw_set("redis", api(lua, version)?)?;
    libraries.raw_set("server", api(lua, version)?)?;
    table.raw_set("libraries", libraries)?;
    Ok(table)
}

/// Returns the library `redis` or `server`.
pub(super) fn api(lua: &Lua, version: &str) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("call", call::function::<LuaHost>(lua, true)?)?;
    table.raw_set("pcall", call::function::<LuaHost>(lua, false)?)?;
    table.raw_set("error_reply", native(lua, error_reply)?)?;
    table.raw_set("status_reply", native(lua, status_reply)?)?;
    table.raw_set("setresp", native(lua, set_resp)?)?;
    table.raw_set("sha1hex", native(lua, sha1_hex)?)?;
    table.raw_set("set_repl", native(lua, set_repl)?)?;
    table.raw_set("acl_check_cmd", native(lua, acl_check_cmd)?)?;
    let replies = |value: Value| native(lua, move |_, _| Ok(MultiValue::from_vec(vec![value.clone()])));
    table.raw_set("replicate_commands", replies(Value::Boolean(true))?)?;
    table.raw_set("breakpoint", replies(Value::Boolean(false))?)?;
    table.raw_set("debug", native(lua, |_, _| Ok(MultiValue::new()))?)?;
    for (name, flags) in [("NONE", 0), ("AOF", 1), ("SLAVE", 2), ("REPLICA", 2), ("ALL", 3)] {
        table.raw_set(format!("REPL_{name}"), flags)?;
    }
    add_log(lua, &table, version)?;
    table.raw_set("SERVER_NAME", "evenkeel")?;
    Ok(table)
}

/// Returns `redis` as it is while a library is loaded.
fn registration(lua: &Lua, version: &str) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("register_function", native(lua, register)?)?;
    add_log(lua, &table, version)?;
    Ok(table)
}

fn add_log(lua: &Lua, table: &Table, version: &str) -> mlua::Result<()> {
    table.raw_set("log", native(lua, log)?)?;
    for (level, name) in ["DEBUG", "VERBOSE", "NOTICE", "WARNING"].iter().enumerate() {
        table.raw_set(format!("LOG_{name}"), level)?;
    }
    let mut number = 0;
    for part in version.split('.') {
        number = number << 8 | part.parse::<u32>().unwrap_or(0);
    }
    table.raw_set("REDIS_VERSION", version)?;
    table.raw_set("REDIS_VERSION_NUM", number)
}

type Returned = Result<MultiValue, Raise>;

/// Returns the only argument, if it is a string.
fn only_text(args: &MultiValue) -> Option<Vec<u8>> {
    match (args.len(), args.front()) {
        (1, Some(Value::String(text))) => Some(text.as_bytes().to_vec()),
        _ => None,
    }
}

fn error_reply(lua: &Lua, args: MultiValue) -> Returned {
    let line = match only_text(&args) {
        None => b"ERR wrong number or type of arguments".to_vec(),
        Some(text) => {
            let text = text.strip_prefix(b"-").unwrap_or(&text);
            let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
            let start = text.iter().position(|byte| !is_end(byte)).unwrap_or(text.len());
            let end = text.iter().rposition(|byte| !is_end(byte)).map_or(start, |last| last + 1);
            let text = &text[start..end];
            if text.contains(&b' ') { text.to_vec() } else { [b"ERR ", text].concat() }
        }
    };
    one(Value::Table(error_table(lua, &line)?))
}

fn status_reply(lua: &Lua, args: MultiValue) -> Returned {
    let table = match only_text(&args) {
        None => error_table(lua, b"ERR wrong number or type of arguments")?,
        Some(text) => {
            let table = lua.create_table_with_capacity(0, 1)?;
            table.raw_set("ok", lua.create_string(text)?)?;
            table
        }
    };
    one(Value::Table(table))
}

fn set_resp(lua: &Lua, args: MultiValue) -> Returned {
    if args.len() != 1 {
        return Err(Raise::refuse(lua, "server.setresp() requires one argument."));
    }
    let version = truncated(number(lua, args.front()).unwrap_or(0.0));
    if version != 2 && version != 3 {
        return Err(Raise::refuse(lua, "RESP version must be 2 or 3."));
    }
    with_current(|run| run.resp3 = version == 3);
    Ok(MultiValue::new())
}

fn sha1_hex(lua: &Lua, args: MultiValue) -> Returned {
    if args.len() != 1 {
        return Err(Raise::refuse(lua, "wrong number of arguments"));
    }
    let digest = sha_of(&text(lua, args.front()).unwrap_or_default());
    one(Value::String(lua.create_string(digest)?))
}

/// Every effect of a script is propagated; the flags are checked and have no further effect.
fn set_repl(lua: &Lua, args: MultiValue) -> Returned {
    if args.len() != 1 {
        return Err(Raise::refuse(lua, "server.set_repl() requires one argument."));
    }
    let flags = number(lua, args.front()).map_or(0, truncated);
    if flags & !3 != 0 {
        const TEXT: &str = "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.";
        return Err(Raise::refuse(lua, TEXT));
    }
    Ok(MultiValue::new())
}

fn acl_check_cmd(lua: &Lua, args: MultiValue) -> Returned {
    let is_text = |value: &Value| matches!(value, Value::String(_) | Value::Number(_) | Value::Integer(_));
    if args.is_empty() {
        return Err(Raise::refuse(lua, "Please specify at least one argument for this call"));
    }
    if !args.iter().all(is_text) {
        return Err(Raise::refuse(lua, "Command arguments must be strings or integers"));
    }
    let words: Vec<Vec<u8>> = args.iter().filter_map(|word| text(lua, Some(word))).collect();
    let words = OwnedArgs::new(words.iter().map(Vec::as_slice));
    let may = with_current(|run| {
        let id = run.call.table.find_call(&words.as_args())?;
        Some(run.call.host.may_call(run.call.session, (id, &words.as_args())))
    });
    match may.flatten() {
        Some(may) => one(Value::Boolean(may)),
        None => Err(Raise::refuse(lua, "Invalid command passed to server.acl_check_cmd()")),
    }
}

fn log(lua: &Lua, args: MultiValue) -> Returned {
    if args.len() < 2 {
        return Err(Raise::refuse(lua, "server.log() requires two arguments or more."));
    }
    let Some(level) = number(lua, args.front()) else {
        return Err(Raise::refuse(lua, "First argument must be a number (log level)."));
    };
    let level = match truncated(level) {
        0 => Level::Trace,
        1 => Level::Debug,
        2 => Level::Info,
        3 => Level::Warn,
        _ => return Err(Raise::refuse(lua, "Invalid log level.")),
    };
    let words: Vec<Vec<u8>> = args.iter().skip(1).filter_map(|word| text(lua, Some(word))).collect();
    let line = String::from_utf8_lossy(&words.join(&b" "[..])).into_owned();
    with_current(|run| run.log(level, line));
    Ok(MultiValue::new())
}

// Registering functions.

/// Functions that the code of a library has registered.
pub(super) struct Registered {
    pub(super) functions: Vec<Function>,
    /// Their names in lower case.
    names: HashSet<Vec<u8>>,
    /// Their callbacks by name.
    pub(super) callbacks: Table,
    until: Instant,
    /// Registration has taken too long.
    pub(super) is_late: bool,
}

thread_local! {
    static REGISTERED: RefCell<Option<Registered>> = const { RefCell::new(None) };
}

/// Begins the registration. `again`: the library has been loaded before.
pub(super) fn begin_load(lua: &Lua, again: bool) -> mlua::Result<()> {
    let callbacks = lua.create_table()?;
    let until = Instant::now() + if again { LOAD_AGAIN_MAX } else { LOAD_MAX };
    let (functions, names) = (Vec::new(), HashSet::new());
    REGISTERED.set(Some(Registered { functions, names, callbacks, until, is_late: false }));
    Ok(())
}

pub(super) fn end_load() -> Registered {
    REGISTERED.take().expect("it was begun")
}

/// Returns `false` if a library is being loaded, and takes too long.
pub(super) fn load_in_time() -> bool {
    REGISTERED.with_borrow_mut(|registered| match registered {
        Some(registered) => {
            registered.is_late |= Instant::now() > registered.until;
            !registered.is_late
        }
        None => true,
    })
}

#[derive(Default)]
struct Registration {
    name: Option<Vec<u8>>,
    description: Option<Vec<u8>>,
    callback: Option<LuaFunction>,
    flags: ScriptFlags,
}

/// redis.register_function(name, callback), or with a table of named arguments.
fn register(lua: &Lua, args: MultiValue) -> Returned {
    let refuse = |text: &str| Raise::refuse(lua, text);
    let registration = match args.len() {
        1 => match args.front() {
            Some(Value::Table(named)) => by_name(lua, named).map_err(refuse)?,
            _ => {
                return Err(refuse(
                    "calling server.register_function with a single argument is only applicable to Lua table \
                     (representing named arguments).",
                ));
            }
        },
        2 => {
            let name = text(lua, args.front());
            let name =
                name.ok_or_else(|| refuse("first argument to server.register_function must be a string"))?;
            let Some(Value::Function(callback)) = args.get(1) else {
                return Err(refuse("second argument to server.register_function must be a function"));
            };
            Registration { name: Some(name), callback: Some(callback.clone()), ..Registration::default() }
        }
        _ => return Err(refuse("wrong number of arguments to server.register_function")),
    };
    let Registration { name, description, callback, flags } = registration;
    let name = name.ok_or_else(|| refuse("server.register_function must get a function name argument"))?;
    let callback = callback.ok_or_else(|| refuse("server.register_function must get a callback argument"))?;
    if !shebang::is_name(&name) {
        let text = "Function names can only contain letters, numbers, or underscores(_) and must be at least \
                    one character long";
        let line = format!("ERR {text}").into_bytes();
        return Err(Raise::As(Value::Table(error_table(lua, &line)?)));
    }
    let added = REGISTERED.with_borrow_mut(|registered| {
        let registered = registered.as_mut()?;
        if !registered.names.insert(name.to_ascii_lowercase()) {
            return Some(Ok(false));
        }
        let key = lua.create_string(&name);
        if let Err(error) = key.and_then(|key| registered.callbacks.raw_set(key, callback)) {
            return Some(Err(error));
        }
        registered.functions.push(Function { name, description, flags, habits: Habits::default() });
        Some(Ok(true))
    });
    match added.transpose()? {
        Some(true) => Ok(MultiValue::new()),
        Some(false) => Err(refuse("Function already exists in the library")),
        None => Err(refuse("server.register_function can only be called on FUNCTION LOAD command")),
    }
}

/// Numbers are taken as strings, as everywhere in Lua's C interface, and the keys ignore case.
fn by_name(lua: &Lua, named: &Table) -> Result<Registration, &'static str> {
    let mut registration = Registration::default();
    for pair in named.pairs::<Value, Value>() {
        let (key, value) = pair.map_err(|_| "not enough memory")?;
        let key = text(lua, Some(&key))
            .ok_or("named argument key given to server.register_function is not a string")?
            .to_ascii_lowercase();
        match (&key[..], value) {
            (b"function_name", value) => {
                let name = text(lua, Some(&value));
                registration.name = Some(
                    name.ok_or("function_name argument given to server.register_function must be a string")?,
                );
            }
            (b"description", value) => {
                let description = text(lua, Some(&value));
                registration.description = Some(
                    description
                        .ok_or("description argument given to server.register_function must be a string")?,
                );
            }
            (b"callback", Value::Function(callback)) => registration.callback = Some(callback),
            (b"callback", _) => {
                return Err("callback argument given to server.register_function must be a function");
            }
            (b"flags", Value::Table(names)) => registration.flags = flags(&names)?,
            (b"flags", _) => {
                return Err(
                    "flags argument to server.register_function must be a table representing function flags",
                );
            }
            _ => return Err("unknown argument given to server.register_function"),
        }
    }
    Ok(registration)
}

fn flags(names: &Table) -> Result<ScriptFlags, &'static str> {
    let mut flags = ScriptFlags::default();
    for name in names.sequence_values::<Value>() {
        let flag = match name {
            Ok(Value::String(name)) => ScriptFlags::named(&name.as_bytes()),
            _ => None,
        };
        flags |= flag.ok_or("unknown flag given")?;
    }
    Ok(flags)
}
