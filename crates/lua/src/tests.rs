use std::cell::RefCell;

use evenkeel_command::reply::Reply;
use mlua::{FromLuaMulti, Lua, Table, Value};

use crate::call::{Arg, Called, Stack};
use crate::{Host, call, guarded, libraries, reply};

/// Replies its first argument, which is a reply in RESP.
struct Echo;

thread_local! {
    static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

// SAFETY: the bytes are the thread's until the next call.
unsafe impl Host for Echo {
    fn call(stack: &Stack) -> Called {
        REPLY.with_borrow_mut(|bytes| {
            bytes.clear();
            match stack.arg(0) {
                Arg::Text(text) => bytes.extend_from_slice(text),
                Arg::Number(_) | Arg::Other => return Called::Ended,
            }
            match &bytes[..] {
                [b'-', line @ .., b'\r', b'\n'] => Called::Failed { bytes: line.as_ptr(), len: line.len() },
                bytes => Called::Replied { bytes: bytes.as_ptr(), len: bytes.len() },
            }
        })
    }

    fn may_continue() -> bool {
        true
    }
}

/// The host of a script that is over.
struct Over;

// SAFETY: there are no bytes.
unsafe impl Host for Over {
    fn call(_: &Stack) -> Called {
        Called::Ended
    }

    fn may_continue() -> bool {
        false
    }
}

/// Runs a script that finds this crate's functions: `redis`, the libraries, and Lua's own by their names.
fn run<H: Host, R: FromLuaMulti>(lua: &Lua, script: &str) -> mlua::Result<R> {
    let env: Table = libraries::all::<H>(lua)?;
    guarded::add::<H>(lua, &env)?;
    let of_lua: Table = env.raw_get("guarded")?;
    for name in ["string", "coroutine"] {
        env.raw_set(name, of_lua.raw_get::<Value>(name)?)?;
    }
    let redis = lua.create_table()?;
    redis.raw_set("call", call::function::<H>(lua, true)?)?;
    redis.raw_set("pcall", call::function::<H>(lua, false)?)?;
    env.raw_set("redis", redis)?;
    lua.load(script).set_name("=script").set_environment(env).call(())
}

#[test]
fn a_reply_goes_through_lua_and_back() {
    for bytes in [
        "+OK\r\n",
        ":-7\r\n",
        "$3\r\na\r\n\r\n",
        "_\r\n",
        "#t\r\n",
        "#f\r\n",
        ",1.5\r\n",
        "(12345678901234567890\r\n",
        "=7\r\ntxt:abc\r\n",
        "*0\r\n",
        "*3\r\n:1\r\n*1\r\n$1\r\na\r\n+b\r\n",
        "%1\r\n$1\r\nk\r\n*1\r\n:1\r\n",
        "~1\r\n$1\r\nm\r\n",
        "*1\r\n-ERR inside\r\n",
    ] {
        let lua = Lua::new();
        let value: Value = run::<Echo, _>(&lua, &format!("return redis.call({bytes:?})")).expect(bytes);
        let (mut written, mut errors) = (Reply::default(), Vec::new());
        written.resp3 = true;
        let done = reply::write(&lua, &value, true, &mut written, &mut errors).expect(bytes);
        assert!(done.is_ok(), "{bytes}");
        assert_eq!(String::from_utf8_lossy(written.plain().expect("it is short")), bytes);
        assert_eq!(errors.len(), usize::from(bytes.contains("-ERR")), "{bytes}");
    }
}

#[test]
fn a_failed_command_raises_in_call_and_returns_in_pcall() {
    let script = r"
        local fails = function() redis.call('-ERR no\r\n') end
        local _, raised = pcall(fails)
        local returned = redis.pcall('-ERR no\r\n')
        return raised, returned.err, returned.ignore_error_stats_update";
    let result: (String, String, bool) = run::<Echo, _>(&Lua::new(), script).expect("no error is left");
    assert_eq!(result, ("ERR no".into(), "ERR no".into(), true));
}

#[test]
fn whatever_takes_long_ends_with_the_script() {
    for (script, error) in [
        ("return redis.call('+OK\\r\\n')", "the script was stopped"),
        ("return string.find(('a'):rep(3000), ('.-'):rep(20)..'b')", "the script was stopped"),
        ("return coroutine.create(redis.call)", "the script was stopped"),
        ("local t = {} for i = 1, 5000 do t[i] = i end return cjson.encode(t)", "interrupted"),
        ("local t = {} for i = 1, 5000 do t[i] = i end return cmsgpack.pack(t)", "interrupted"),
    ] {
        let failed = run::<Over, Value>(&Lua::new(), script).expect_err(script).to_string();
        assert!(failed.contains(error), "{script}: {failed}");
    }
}

#[test]
fn libraries_take_their_own_results() {
    let script = "
        local value = cjson.decode(cjson.encode({ a = { 1, 2.5, 'x', true, cjson.null } }))
        local same = cmsgpack.unpack(cmsgpack.pack(value)).a
        local number = struct.unpack('>I2', struct.pack('>I2', 513))
        return same[1], same[2], same[3], same[4], number, bit.bxor(5, 1)";
    let result: (f64, f64, String, bool, f64, f64) = run::<Echo, _>(&Lua::new(), script).expect("no error");
    assert_eq!(result, (1.0, 2.5, "x".into(), true, 513.0, 4.0));
}
