use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;
use evenkeel_scripting::sha_of;
use evenkeel_testkit::{Client, Program, Random, Reference, Server, Target, transcript};

use crate::testing::live::Live;
use crate::testing::{World, check, random};

/// Runs a script with EVAL and returns its reply as text.
fn eval(world: &mut World, script: &str, words: &[&str]) -> String {
    let command: Vec<Vec<u8>> =
        ["EVAL", script].iter().chain(words).map(|word| word.as_bytes().to_vec()).collect();
    world.send("", &command);
    world.receive("").expect("a reply").to_string()
}

/// Of the scripts that EVAL brought, the last 500 used stay; SCRIPT LOAD keeps scripts for good.
#[test]
fn the_least_recently_used_scripts_are_evicted() {
    let steps: Vec<Vec<String>> = {
        let step = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let body = |number: usize| format!("return {number}");
        let named = |number: usize| {
            let sha = sha_of(body(number).as_bytes());
            step(&["EVALSHA", std::str::from_utf8(&sha).expect("hexadecimal digits"), "0"])
        };
        let given = |number: usize| step(&["EVAL", &body(number), "0"]);
        let mut steps = vec![step(&["SCRIPT", "FLUSH"]), step(&["CONFIG", "RESETSTAT"])];
        steps.extend((1..=500).map(given));
        steps.extend([given(1), named(2), step(&["SCRIPT", "LOAD", &body(4)])]);
        // The first takes the place of script 4, which stays all the same; the others push out 3, 5 and 6.
        steps.extend((1000..=1003).map(given));
        steps.extend((1..=8).map(named));
        steps.extend([step(&["INFO", "memory"]), step(&["INFO", "stats"])]);
        steps.extend((1004..=1490).map(given));
        steps.extend([named(1), named(2), named(3), named(4), named(1004)]);
        steps
    };
    let numbers = |reply: &str| {
        let lines = reply.split("\\r\\n");
        let kept = |line: &&str| line.starts_with("number_of_cached_") || line.starts_with("evicted_scripts");
        if reply.len() < 200 { reply.to_owned() } else { lines.filter(kept).collect::<Vec<_>>().join(" ") }
    };
    let mut world = World::new();
    let ours: Vec<String> = steps
        .iter()
        .map(|words| {
            world.send("", &words.iter().map(|word| word.clone().into_bytes()).collect::<Vec<_>>());
            numbers(&world.receive("").expect("a reply").to_string())
        })
        .collect();
    let at = |first: usize, count: usize| ours[first..first + count].join("; ");
    let missing = "-NOSCRIPT No matching script.";
    assert_eq!(at(509, 8), format!(":1; :2; {missing}; :4; {missing}; {missing}; :7; :8"));
    assert_eq!(at(517, 2), "number_of_cached_scripts:501; evicted_scripts:3");
    let Some(oracle) = Program::oracle(Reference::Valkey) else { return };
    let server = Server::start(&oracle, &[]);
    let mut client = server.connect();
    for (words, ours) in steps.iter().zip(&ours) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(numbers(&client.call(&words).to_string()), *ours, "{words:?}");
    }
}

#[test]
fn values_convert_both_ways() {
    check(
        r#"
        > EVAL "return {KEYS[1], ARGV[1], 3.99, -3.99, true, false, {1, nil, 2}}" 1 k a
        < ["k", "a", :3, :-3, :1, (nil), [:1]]
        > EVAL "return redis.call('set', KEYS[1], 0.1)" 1 k          < OK
        > GET k                                                      < "0.1"
        > EVAL "return {ok='a\\r\\nb'}" 0                            < a  b
        > EVAL "return redis.error_reply('My error')" 0              < -My error
        > EVAL "return redis.error_reply('Error')" 0                 < -ERR Error
        > EVAL "return redis.pcall('nosuch')" 0
        < -ERR Unknown command called from script
        > EVAL "return type(redis.call('get', 'nokey'))" 0           < "boolean"
        > EVAL "return 1e300" 0                                      < :-9223372036854775808
        > HSET h f v                                                 < :1
        > EVAL "redis.setresp(3) return redis.call('hgetall', 'h').map.f" 0  < "v"
        > EVAL "redis.setresp(3) return {redis.call('get', 'nokey') == nil, false}" 0 < [:1, :0]
    "#,
    );
}

#[test]
fn errors_name_their_places() {
    check(
        r#"
        > EVAL "return x" 0
        < -ERR user_script:1: Script attempted to access nonexistent global variable 'x' script: on @user_script:1.
        > EVAL "_G.x=1" 0
        < -ERR user_script:1: Attempt to modify a readonly table script: on @user_script:1.
        > EVAL "rawset(_G,'x',1)" 0
        < -ERR Attempt to modify a readonly table script: on @user_script:1.
        > EVAL "error('boo')" 0
        < -ERR user_script:1: boo script: on @user_script:1.
        > EVAL "return redis.call('nosuch')" 0
        < -ERR Unknown command called from script script: on @user_script:1.
        > EVAL "return syntax error" 0
        < -ERR Error compiling script (new function): user_script:1: '<eof>' expected near 'error'
        > EVALSHA da39a3ee5e6b4b0d3255bfef95601890afd80709 0  < -NOSCRIPT No matching script.
        > EVAL "return 1" x        < -ERR value is not an integer or out of range
        > EVAL "return 1" 2 a      < -ERR Number of keys can't be greater than number of args
        > EVAL "return 1" -1       < -ERR Number of keys can't be negative
        > EVAL_RO "return redis.call('set', KEYS[1], 1)" 1 k
        < -ERR Write commands are not allowed from read-only scripts. script: on @user_script:1.
        > SCRIPT KILL              < -NOTBUSY No scripts in execution right now.
    "#,
    );
}

/// Attempts to break out of the sandbox: each ends in an error, and the next script sees no trace of it.
#[test]
fn the_sandbox_holds() {
    let mut world = World::new();
    for script in [
        "x = 1",
        "_G.x = 1",
        "rawset(_G, 'x', 1)",
        "table.insert(_G, 1)",
        "table.insert(redis, 1)",
        "redis.call = nil",
        "string.rep = nil",
        "cjson.encode = nil",
        "getmetatable('').__index = nil",
        "getmetatable(_G).__index = nil",
        "setmetatable(_G, {})",
        "setmetatable(redis, {})",
        "return debug.getinfo(1)",
        "return os.time()",
        "return io.open('x')",
        "return require('x')",
        "return dofile('x')",
        "return getfenv(1)",
        "return setfenv(1, {})",
        "return newproxy()",
        "return loadstring(string.dump(function() return 1 end))()",
        "local n = 0 \
         return load(function() n = n + 1 return n == 1 and string.dump(function() end) or nil end)()",
        "loadstring('y = 1')()",
        "coroutine.wrap(function() z = 1 end)()",
        "KEYS.x.y = 1",
    ] {
        let reply = eval(&mut world, script, &["0"]);
        assert!(reply.starts_with('-'), "{script}: {reply}");
    }
    for (script, reply) in [
        ("return loadstring('return 1 + 1')()", ":2"),
        ("return load(function() return nil end) ~= nil", ":1"),
        ("return collectgarbage('count') > 0 and collectgarbage() == 0", ":1"),
    ] {
        assert_eq!(eval(&mut world, script, &["0"]), reply, "{script}");
    }
    let leaked = "for k, v in pairs(_G) do if #k == 1 then return k end end return type(redis.call)";
    assert_eq!(eval(&mut world, leaked, &["0"]), "\"function\"");
    let seen = "local n = 0 for k in pairs(redis) do n = n + 1 end return n > 10 and next(_G) ~= nil";
    assert_eq!(eval(&mut world, seen, &["0"]), ":1");
}

/// The functions of `lua-enable-insecure-api` change what scripts see, and nothing else.
#[test]
fn insecure_functions_do_not_reach_the_process() {
    let mut world = World::with(&["--enable-protected-configs", "yes"]);
    let missing = eval(&mut world, "return getfenv()", &["0"]);
    assert!(missing.contains("nonexistent global variable 'getfenv'"), "{missing}");
    assert_eq!(world.run("CONFIG SET lua-enable-insecure-api yes"), "OK");
    for (script, reply) in [
        ("return getfenv()", "[]"),
        (
            "return {getfenv() == _G, getfenv(0) == _G, getfenv(1) == _G, \
             getfenv(string.rep) == _G}",
            "[:1, :1, :1, :1]",
        ),
        ("local function f() return x end setfenv(f, {x = 5}) return f()", ":5"),
        ("local function f() setfenv(1, {x = 6}) return x end return f()", ":6"),
        ("return type(newproxy()) .. type(newproxy(false))", "\"userdatauserdata\""),
        ("return {getfenv(getmetatable) == _G, getfenv(loadstring('return 1')) == _G}", "[:1, :1]"),
        (
            "local seen = 0 for i = 0, 20 do local ok, env = pcall(getfenv, i) \
             if ok and env ~= _G then seen = seen + 1 end end return seen",
            ":0",
        ),
    ] {
        assert_eq!(eval(&mut world, script, &["0"]), reply, "{script}");
    }
    for script in [
        "setfenv(0, {})",
        "setfenv(string.rep, {})",
        "setfenv(getmetatable, {})",
        "setfenv(loadstring, {})",
        "setfenv(redis.call, {})",
        "setfenv(1, 5)",
        "setfenv(50, {})",
        "getfenv(50)",
        "getfenv(-1)",
        "getfenv('x')",
        "newproxy(true)",
        "newproxy(5)",
        "for i = 2, 20 do setfenv(i, {}) end",
        "return getfenv(1).debug",
        "return getfenv(0).dofile",
        "getfenv().x = 1",
        "return loadstring(string.dump(function() return 1 end))()",
    ] {
        let reply = eval(&mut world, script, &["0"]);
        assert!(reply.starts_with('-'), "{script}: {reply}");
        assert_eq!(eval(&mut world, "return 1", &["0"]), ":1");
    }
    assert_eq!(world.run("CONFIG SET lua-enable-insecure-api no"), "OK");
    assert_eq!(eval(&mut world, "return getfenv()", &["0"]), missing);
}

#[test]
fn script_limits_hold() {
    // The same stack size as a worker's.
    let thread = evenkeel_runtime::threads::with_deep_stack("limits").spawn(meet_limits);
    thread.expect("a thread").join().expect("no limit is missed");
}

fn meet_limits() {
    let mut world = World::new();
    let mut fails = |script: &str, with: &str| {
        let reply = eval(&mut world, script, &["0"]);
        assert!(
            reply.starts_with('-') && reply.contains(with),
            "{script}: {}",
            &reply[..reply.len().min(200)]
        );
        assert_eq!(eval(&mut world, "return 1", &["0"]), ":1");
    };
    fails("local t = {} for i = 1, 1e9 do t[i] = string.rep('x', 1e6) .. i end", "not enough memory");
    fails("local s = 'x' while true do s = s .. s end", "not enough memory");
    fails("local function f() return 1 + f() end return f()", "stack overflow");
    fails("return ('x'):find(('a?'):rep(100000))", "pattern too long");
    fails("return (('a'):rep(1e6)):gsub(('.?'):rep(1e6), '', 1)", "pattern too long");
    fails("return (('a'):rep(1e6)):match(('.?'):rep(1e6), 1, true)", "pattern too long");
    fails("for a in (('a'):rep(1e6)):gmatch(('.?'):rep(1e6), 1, true) do end", "pattern too long");
    fails("for a in string.gfind(('a'):rep(1e6), ('.?'):rep(1e6)) do end", "pattern too long");
    fails("table.insert({}, -2147483648, 1)", "position out of bounds");
    fails("return ('x'):rep(2147483647)", "not enough memory");
    for call in ["insert(t, 1, 1)", "remove(t, 1)", "sort(t, rawequal)", "foreachi(t, type)"] {
        let sparse = "local t = {} for i = 29, 0, -1 do t[2 ^ i] = 1 end";
        fails(&format!("{sparse} return table.{call}"), "table is too long");
    }
    fails("local s, t = ('x'):rep(2^20), {} for i = 1, 2000 do t[i] = s end return t", "too long");
    fails("return unpack({}, 1, 1e8)", "too many results to unpack");
    fails(
        "local t = {} for i = 1, 5000 do t = {t} end cjson.encode_max_depth(1e6) return cjson.encode(t)",
        "nesting",
    );
    fails("cjson.decode_max_depth(1e6) return cjson.decode(('['):rep(1e5))", "nested");
    fails("return cmsgpack.unpack(('\\145'):rep(1e5))", "stack overflow");
    assert_eq!(eval(&mut world, "return ('x.?'):find(('.?'):rep(1), 1, true)", &["0"]), ":2");
    assert_eq!(eval(&mut world, "return ('x'):find(('.?'):rep(1e6), 1, true)", &["0"]), "(nil)");
    assert_eq!(eval(&mut world, "return (''):rep(2147483647)", &["0"]), "\"\"");
    // Byte by byte this would be ten million million comparisons.
    let plain = "return (('a'):rep(5000000)):find(('a'):rep(2500000) .. 'b', 1, true)";
    assert_eq!(eval(&mut world, plain, &["0"]), "(nil)");
    // A table that contains itself is written as deep as Lua's stack goes, deeper than clients here read.
    let command = ["EVAL", "local t = {} t[1] = t return t", "0"].map(|word| word.as_bytes().to_vec());
    world.send("deep", &command);
    assert_eq!(world.receive("deep").err().as_deref(), Some("TooDeep"));
}

/// A script that has written and then reaches outside its locks is taken back, and run again with all locks.
#[test]
fn undone_runs_apply_their_writes_once() {
    let mut world = World::new();
    let script = "redis.call('incr', KEYS[1]) redis.call('rpush', KEYS[2], 'a') redis.call('del', KEYS[3]) \
                  redis.call('hset', KEYS[4], 'f', 'new') redis.call('set', KEYS[5], 'x', 'EX', 100) \
                  return {redis.call('get', 'other'), redis.call('dbsize')}";
    transcript::check_on(
        &mut world,
        "
        > MSET n 5 gone v other o        < OK
        > RPUSH list z                   < :1
        > HSET hash f old                < :1
    ",
    );
    let mut recorder = world.record();
    let words = ["5", "n", "list", "gone", "hash", "fresh"];
    assert_eq!(eval(&mut world, script, &words), "[\"o\", :5]");
    let logged = recorder.take(&world);
    assert_eq!(logged.iter().filter(|line| line.starts_with("INCR")).count(), 1, "{logged:?}");
    assert_eq!(
        (logged.first().map(String::as_str), logged.last().map(String::as_str)),
        (Some("MULTI"), Some("EXEC"))
    );
    transcript::check_on(
        &mut world,
        "
        > GET n               < \"6\"
        > LRANGE list 0 -1    < [\"z\", \"a\"]
        > EXISTS gone         < :0
        > HGET hash f         < \"new\"
        > TTL fresh           < :100
    ",
    );
    // From now on the script's habit is known.
    assert_eq!(eval(&mut world, script, &words), "[\"o\", :5]");
    assert_eq!(eval(&mut world, "return redis.call('get', KEYS[1])", &["1", "n"]), "\"7\"");
    world.verify();
}

#[test]
fn undo_restores_expired_keys() {
    let mut world = World::new();
    transcript::check_on(&mut world, "> SET k v PX 10      < OK\n> DEBUG SET-ACTIVE-EXPIRE 0 < OK");
    world.now_ms += 1000;
    let mut recorder = world.record();
    let script =
        "redis.call('append', KEYS[1], 'x') return redis.call('get', 'other') or redis.call('get', KEYS[1])";
    assert_eq!(eval(&mut world, script, &["1", "k"]), "\"x\"");
    let logged = recorder.take(&world);
    assert_eq!(logged, ["MULTI", "UNLINK k", "APPEND k x", "EXEC"]);
    world.verify();
}

#[test]
fn effects_are_one_transaction() {
    let mut world = World::new();
    let mut recorder = world.record();
    let script = "redis.call('set', KEYS[1], 'a', 'EX', 10) return redis.call('incrbyfloat', KEYS[2], '1.5')";
    assert_eq!(eval(&mut world, script, &["2", "{t}a", "{t}b"]), "\"1.5\"");
    let logged = recorder.take(&world);
    assert_eq!(logged.len(), 4, "{logged:?}");
    assert!(logged[1].starts_with("SET {t}a a PXAT") && logged[2] == "SET {t}b 1.5 KEEPTTL", "{logged:?}");
    assert_eq!(eval(&mut world, "return redis.call('get', KEYS[1])", &["1", "{t}a"]), "\"a\"");
    assert_eq!(recorder.take(&world), [""; 0]);
}

#[test]
fn pushes_by_scripts_serve_blocked_clients() {
    let mut world = World::new();
    world.type_in("waiter", "BLPOP q 0");
    assert_eq!(eval(&mut world, "return redis.call('lpush', KEYS[1], 'a', 'b')", &["1", "q"]), ":2");
    assert_eq!(world.receive("waiter").expect("served").to_string(), "[\"q\", \"b\"]");
    // Also when the script had to be run again.
    world.type_in("waiter", "BLPOP q2 0");
    let script = "redis.call('lpush', KEYS[1], 'a') return redis.call('get', 'elsewhere')";
    assert_eq!(eval(&mut world, script, &["1", "q2"]), "(nil)");
    assert_eq!(world.receive("waiter").expect("served").to_string(), "[\"q2\", \"a\"]");
}

#[test]
fn a_command_that_panics_ends_the_script() {
    let mut world = World::new();
    let script = "pcall(redis.call, 'TEST.PANIC', KEYS[1]) redis.call('set', KEYS[1], 'after') return 1";
    let reply = eval(&mut world, script, &["1", "k"]);
    assert!(reply.starts_with("-ERR internal error"), "{reply}");
    assert_eq!(eval(&mut world, "return redis.call('get', KEYS[1])", &["1", "k"]), "\"half done\"");
}

#[test]
fn functions() {
    check(
        "
        > FUNCTION LOAD \"#!lua name=lib\\nredis.register_function('f', function(keys, \
            args) return {keys[1], args[1]} end)\\nredis.register_function{function_name='ro', \
            callback=function() return redis.call('set', 'x', 1) end, flags={'no-writes'}}\"
        < \"lib\"
        > FCALL f 1 k a          < [\"k\", \"a\"]
        > FCALL F 1 k a          < [\"k\", \"a\"]
        > FCALL_RO f 1 k a       < -ERR Can not execute a script with write flag using *_ro command.
        > FCALL_RO ro 0
        < -ERR Write commands are not allowed from read-only scripts. script: on @user_function:3.
        > FCALL none 0           < -ERR Function not found
        > FUNCTION LOAD \"#!lua name=lib\\nreturn 1\"   < -ERR Library 'lib' already exists
        > FUNCTION LOAD \"#!lua name=other\\nredis.register_function('f', function() end)\"
        < -ERR Function f already exists
        > FUNCTION LOAD \"#!lua name=other\\nx = 1\"
        < -ERR Error registering functions: ERR user_function:2: Attempt to modify a readonly table
        > FUNCTION STATS
        < [\"running_script\", (nil), \"engines\", [\"LUA\", [\"libraries_count\", :1, \"functions_count\", \
            :2]]]
        > FUNCTION DELETE lib    < OK
        > FCALL f 0              < -ERR Function not found
        > FUNCTION RESTORE bad   < -ERR DUMP payload version or checksum are wrong
    ",
    );
}

#[test]
fn shebang_lines() {
    check(
        r##"
        > EVAL "#!lua flags=\"no-writes\"\nreturn 1" 0            < :1
        > EVAL "#!lua \"flags=no-writes,allow-oom\"\nreturn 1" 0  < :1
        > EVAL "#!\"lua\" flags=\nreturn 1" 0        < :1
        > EVAL "#!lua flags=no-writes,\nreturn 1" 0   < -ERR Unexpected flag in script shebang: *
        > EVAL "#!lua flags=,no-writes\nreturn 1" 0   < -ERR Unexpected flag in script shebang: *
        > EVAL "#!lua FLAGS=no-writes\nreturn 1" 0    < -ERR Unknown lua shebang option: FLAGS=no-writes
        > EVAL "#!lua name=\"lib\nreturn 1" 0         < -ERR Invalid engine in script shebang
        > EVAL "#!lua\x00\nreturn 1" 0                < -ERR Invalid script shebang
        > EVAL "#!LUA\nreturn 1" 0                    < :1
        > FUNCTION LOAD "#!LUA Name=\"a\"\nredis.register_function('a', function() return 1 end)"  < "a"
        > FUNCTION LOAD "#!lua name=b\x00\nredis.register_function('b', function() return 1 end)"
        < -ERR Invalid library metadata
        > FUNCTION LOAD "#!lua name=b NAME=c\n"
        < -ERR Invalid metadata value, name argument was given multiple times
        > FUNCTION LOAD "#!lua names=b\n"             < -ERR Invalid metadata value given: names=b
        > FUNCTION LOAD "#!lua name\n"                < -ERR Invalid metadata value given: name
    "##,
    );
}

/// Lua's C interface takes numbers as strings, and argument names ignore case.
#[test]
fn registrations() {
    check(
        r##"
        > FUNCTION LOAD "#!lua name=a\nredis.register_function{Function_Name=1, description=2, \
            CALLBACK=function() return 3 end}"
        < "a"
        > FCALL 1 0      < :3
        > FUNCTION LIST
        < [["library_name", "a", "engine", "LUA", "functions", [["name", "1", "description", "2", "flags", \
            []]]]]
        > FUNCTION LOAD "#!lua name=b\nredis.register_function{'b'}"
        < -ERR Error registering functions: ERR unknown argument given to server.register_function
        > FUNCTION LOAD "#!lua name=b\nredis.register_function{[true]=1}"
        < -ERR Error registering functions: ERR named argument key given to server.register_function is not a \
            string
        > FUNCTION LOAD "#!lua name=b\nredis.register_function{function_name=true}"
        < -ERR Error registering functions: ERR function_name argument given to server.register_function must \
            be a string
    "##,
    );
}

/// Returns the payload of FUNCTION DUMP for libraries of a function each, as a word of a transcript.
fn payload(libraries: &[(&str, &str)]) -> String {
    let code = |(library, function): &(&str, &str)| {
        let call = format!("redis.register_function('{function}', function() return '{library}' end)");
        format!("#!lua name={library}\n{call}").into_bytes()
    };
    let codes: Vec<Vec<u8>> = libraries.iter().map(code).collect();
    let codes: Vec<&[u8]> = codes.iter().map(Vec::as_slice).collect();
    let bytes = evenkeel_rdb::functions::dump(&codes);
    format!("\"{}\"", bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>())
}

/// With two conflicting libraries, the name in Redis' error depends on the order of its hash table.
#[test]
fn restored_functions() {
    let twice = payload(&[("a", "fa"), ("a", "fb")]);
    let same = payload(&[("a", "f"), ("b", "f")]);
    let before = payload(&[("a", "fa"), ("b", "fb")]);
    let after = payload(&[("a", "fb"), ("b", "fa")]);
    check(&format!(
        "
        > FUNCTION RESTORE {twice}          < -ERR Library 'a' already exists
        > FUNCTION RESTORE {twice} REPLACE  < -ERR Library 'a' already exists
        > FUNCTION RESTORE {same} FLUSH     < -ERR Function f already exists
        > FUNCTION STATS
        < [\"running_script\", (nil), \"engines\", [\"LUA\", [\"libraries_count\", :0, \"functions_count\", \
            :0]]]
        > FUNCTION RESTORE {before}         < OK
        > FUNCTION RESTORE {after}          < -ERR Library *
        > FCALL fb 0                        < \"b\"
        > FUNCTION RESTORE {after} REPLACE  < OK
        > FCALL fb 0                        < \"a\"
        > FCALL fa 0                        < \"b\"
    "
    ));
}

#[test]
fn invalid_numbers_are_refused() {
    check(
        r##"
        > EVAL "return struct.pack('l', 0/0)" 0           < "\x00\x00\x00\x00\x00\x00\x00\x80"
        > EVAL "return struct.pack('>L', 0/0)" 0          < "\x80\x00\x00\x00\x00\x00\x00\x00"
        > EVAL "return struct.pack('l', 1/0)" 0           < "\x00\x00\x00\x00\x00\x00\x00\x00"
        > EVAL "return struct.pack('c1000000000', 'hello')" 0
        < -ERR user_script:1: bad argument #3 to 'pack' (string too short)*
        > EVAL "redis.setresp(3.9) return 1" 0            < :1
        > EVAL "return pcall(redis.setresp, 1.9) and 1 or 0" 0  < :0
    "##,
    );
}

/// Neither the number of libraries nor that of functions is limited, and a library costs the same whatever is
/// there already.
#[test]
fn thousands_of_libraries_are_loaded_one_by_one() {
    const COUNT: usize = 9_000;
    let mut world = World::new();
    let mut load = |name: usize, result: &str| {
        let code =
            format!("#!lua name=l{name}\nredis.register_function('f{name}', function() return {result} end)");
        let words = ["FUNCTION", "LOAD", "REPLACE", &code].map(|word| word.as_bytes().to_vec());
        world.send("", &words);
        assert_eq!(world.receive("").expect("a reply").to_string(), format!("\"l{name}\""));
    };
    (0..COUNT).for_each(|name| load(name, &name.to_string()));
    load(7, "-7");
    world.check(
        "
        > FCALL f7 0               < :-7
        > FCALL F8999 0            < :8999
        > FUNCTION DELETE l8       < OK
        > FCALL f8 0               < -ERR Function not found
        > FCALL f9 0               < :9
        > FUNCTION FLUSH           < OK
        > FCALL f9 0               < -ERR Function not found
    ",
    );
    let many: Vec<String> = (0..COUNT)
        .map(|name| format!("redis.register_function('f{name}', function() return {name} end)"))
        .collect();
    let code = format!("#!lua name=many\n{}", many.join("\n"));
    world.send("", &["FUNCTION", "LOAD", &code].map(|word| word.as_bytes().to_vec()));
    assert_eq!(world.receive("").expect("a reply").to_string(), "\"many\"");
    world.check("> FCALL f4321 0 < :4321");
}

/// A library that is refused since another has its function leaves nothing in the Lua state.
#[test]
fn refused_libraries_take_no_memory() {
    let mut world = World::new();
    world.check(
        "> FUNCTION LOAD \"#!lua name=a\\nredis.register_function('f', function() return 1 end)\" < \"a\"",
    );
    let lua_bytes = |world: &World| world.server.scripts.lua_bytes();
    let before = lua_bytes(&world);
    for number in 0..3_000 {
        let text = format!("{number}").repeat(2_000);
        let code = format!("#!lua name=b\nredis.register_function('f', function() return '{text}' end)");
        world.send("", &["FUNCTION", "LOAD", &code].map(|word| word.as_bytes().to_vec()));
        assert_eq!(world.receive("").expect("a reply").to_string(), "-ERR Function f already exists");
    }
    let after = lua_bytes(&world);
    assert!(after < before + (8 << 20), "{before} bytes before, {after} after");
    world.check("> FCALL f 0 < :1");
}

#[test]
fn functions_are_logged_and_replayed() {
    let (mut world, mut other) = (World::new(), World::timeless());
    let mut recorder = world.record();
    transcript::check_on(
        &mut world,
        "> FUNCTION LOAD \"#!lua name=lib\\nredis.register_function('f', function(k) return \
         redis.call('incr', k[1]) end)\" < \"lib\"
         > FCALL f 1 n  < :1
         > FUNCTION LOAD REPLACE \"#!lua name=lib\\nredis.register_function('g', \
             function(k) return redis.call('incr', k[1]) end)\"
         < \"lib\"",
    );
    recorder.take(&world);
    other.replay(&recorder.bytes);
    transcript::check_on(&mut other, "> FCALL f 1 n < -ERR Function not found\n> FCALL g 1 n < :2");
}

/// Returns a random value as a Lua literal.
fn literal(random: &mut Random, depth: usize) -> String {
    match random.below(if depth == 0 { 6 } else { 8 }) {
        0 => format!("{}", random.between(-40_000_000_000, 40_000_000_000) >> random.below(40)),
        1 => format!("{}", random.between(-1_000_000, 1_000_000) as f64 / 64.0),
        2 => format!(
            "{:e}",
            random.between(-99_999, 99_999) as f64 * 10f64.powi(random.between(-30, 30) as i32)
        ),
        3 => random.pick(&["true", "false"]).to_owned(),
        4 | 5 => {
            let bytes = random.bytes(12);
            format!("'{}'", bytes.iter().map(|byte| format!("\\{byte:03}")).collect::<String>())
        }
        6 => {
            let items: Vec<String> = (0..random.below(5)).map(|_| literal(random, depth - 1)).collect();
            format!("{{{}}}", items.join(","))
        }
        _ => format!("{{[{}]={}}}", key(random), literal(random, depth - 1)),
    }
}

fn key(random: &mut Random) -> String {
    random.pick(&["'a'", "'b/c'", "1", "2", "3", "12", "0.5", "-1"]).to_owned()
}

/// Compares the libraries with Redis' for random values.
#[test]
fn libraries_agree_with_redis() {
    let Some(oracle) = Program::oracle(Reference::Valkey) else { return };
    let server = Server::start(&oracle, &[]);
    let (mut client, mut world, mut random) = (server.connect(), World::new(), random());
    for _ in 0..1500 {
        let script = match random.below(9) {
            0 | 1 => format!("return cjson.encode({})", literal(&mut random, 3)),
            2 => format!("return cjson.encode(cjson.decode(cjson.encode({})))", literal(&mut random, 3)),
            3 => {
                let text = mutated_json(&mut random);
                format!("return cjson.encode({{cjson.decode('{text}')}})")
            }
            4 => format!("return cmsgpack.pack({}, {})", literal(&mut random, 3), literal(&mut random, 1)),
            5 => format!("return {{cmsgpack.unpack(cmsgpack.pack({}))}}", literal(&mut random, 3)),
            6 => {
                let bytes = random.bytes(12);
                let bytes: String = bytes.iter().map(|byte| format!("\\{byte:03}")).collect();
                format!("return cjson.encode({{cmsgpack.unpack('{bytes}')}})")
            }
            7 => {
                let name = random
                    .pick(&["band", "bor", "bxor", "lshift", "rshift", "arshift", "rol", "ror"])
                    .to_owned();
                let numbers = [random.draw() as i64 >> random.below(60), random.between(-40, 40)];
                format!(
                    "return {{bit.{name}({}, {}), bit.tohex({0}, {1}), bit.bswap({0})}}",
                    numbers[0], numbers[1]
                )
            }
            _ => structs(&mut random),
        };
        let ours = eval(&mut world, &script, &["0"]);
        let theirs = client.call(&["EVAL", &script, "0"]).to_string();
        assert!(ours == theirs || is_reordered(&ours, &theirs), "{script}\n{ours}\n{theirs}");
    }
}

/// Whether two texts of JSON, printed as replies, differ in the order of members of objects alone. The order
/// of a Lua table with several texts as keys depends on the hash function of its interpreter.
fn is_reordered(one: &str, other: &str) -> bool {
    let sorted = |reply: &str| {
        // A printed reply has a backslash before each quotation mark and each backslash.
        let parts: Vec<String> = reply.split(r"\\").map(|part| part.replace(r#"\""#, "\"")).collect();
        let bytes = parts.join(r"\").into_bytes();
        let (text, end) = with_sorted_members(&bytes, 1);
        (end + 1 == bytes.len()).then_some(text)
    };
    sorted(one).is_some() && sorted(one) == sorted(other)
}

/// Returns the value of JSON without spaces that starts at `at`, with the members of its objects sorted, and
/// where it ends.
fn with_sorted_members(text: &[u8], mut at: usize) -> (Vec<u8>, usize) {
    let start = at;
    let close = match text.get(at) {
        Some(b'{') => b'}',
        Some(b'[') => b']',
        Some(b'"') => {
            at += 1;
            while at < text.len() && text[at] != b'"' {
                at += if text[at] == b'\\' { 2 } else { 1 };
            }
            let end = (at + 1).min(text.len());
            return (text[start..end].to_vec(), end);
        }
        _ => {
            let length =
                text[at.min(text.len())..].iter().take_while(|byte| !b",:}]\"".contains(byte)).count();
            return (text[start.min(text.len())..at + length].to_vec(), at + length);
        }
    };
    let mut items = Vec::new();
    at += 1;
    while at < text.len() && text[at] != close {
        let (mut item, end) = with_sorted_members(text, at);
        at = end;
        if text.get(at) == Some(&b':') {
            let (value, end) = with_sorted_members(text, at + 1);
            item.push(b':');
            item.extend(value);
            at = end;
        }
        items.push(item);
        match text.get(at) {
            Some(b',') => at += 1,
            Some(&byte) if byte == close => {}
            _ => return (text[start..].to_vec(), text.len()),
        }
    }
    if close == b'}' {
        items.sort_unstable();
    }
    let whole = [&text[start..=start], &items.join(&b',')[..], &[close]].concat();
    (whole, at + 1)
}

#[test]
fn objects_are_compared_without_the_order_of_their_members() {
    let same = |one: &str, other: &str| is_reordered(&format!("{one:?}"), &format!("{other:?}"));
    assert!(same(r#"[{"a":1,"b":[]}]"#, r#"[{"b":[],"a":1}]"#));
    assert!(same(r#"{"a":{"x":1,"y":"}"},"b":2}"#, r#"{"b":2,"a":{"y":"}","x":1}}"#));
    assert!(same(r#"{"a\"":1,"b\\":2}"#, r#"{"b\\":2,"a\"":1}"#));
    assert!(!same("[1,2]", "[2,1]") && !same(r#"{"a":1,"b":2}"#, r#"{"a":2,"b":1}"#));
    assert!(!same("[1", "[1,") && !same("", "1"));
}

/// Compares patterns, also malformed ones, with Redis' on random texts.
#[test]
fn patterns_agree_with_redis() {
    const ITEMS: [&str; 44] = [
        "a", "b", "1", ".", "%a", "%d", "%s", "%w", "%W", "%z", "%%", "%p", "%U", "[ab]", "[^a]", "[a-c]",
        "[]a]", "[^]a]", "[a-]", "[%a_]", "[a-%d]", "[%", "[", "]", "%", "(", ")", "()", "(a", "%1", "%2",
        "%0", "%b()", "%bab", "%b", "%f[a]", "%f[^%w]", "%f", "*", "-", "?", "^", "$", "\\000",
    ];
    const TEXTS: [&str; 11] = ["a", "a", "b", "1", "(", ")", " ", "_", "\\000", "\\255", "]"];
    const TEMPLATES: [&str; 8] = ["x", "%1", "%0", "%2", "<%1>", "%", "%x\\000", "7"];
    let Some(oracle) = Program::oracle(Reference::Valkey) else { return };
    let server = Server::start(&oracle, &[]);
    let (mut client, mut world, mut random) = (server.connect(), World::new(), random());
    for _ in 0..3000 {
        let mut some =
            |of: &[&str], most: usize| (0..random.below(most)).map(|_| random.pick(of)).collect::<String>();
        let (subject, pattern, template) = (some(&TEXTS, 12), some(&ITEMS, 8), some(&TEMPLATES, 3));
        let number = random.between(-14, 15);
        let script = format!(
            "local s, p, r, n = '{subject}', '{pattern}', '{template}', {number} \
             local function all(...) \
               local t = {{}} for i = 1, select('#', ...) do t[i] = tostring((select(i, ...))) end return t \
             end \
             local function each() \
               local t = {{}} \
               for a, b in string.gmatch(s, p) do t[#t + 1] = tostring(a) .. ':' .. tostring(b) end \
               return unpack(t) \
             end \
             local function joined(...) return table.concat(all(...), '|') end \
             return {{all(pcall(string.find, s, p, n)), all(pcall(string.match, s, p, n)), all(pcall(each)), \
               all(pcall(string.gsub, s, p, r)), all(pcall(string.gsub, s, p, joined, n)), \
               all(pcall(string.gsub, s, p, {{a = 'x', ['1'] = false, ['('] = true}}))}}"
        );
        let ours = eval(&mut world, &script, &["0"]);
        let theirs = client.call(&["EVAL", &script, "0"]).to_string();
        assert_eq!(ours, theirs, "{script}");
    }
}

#[test]
fn string_search_arguments() {
    check(
        r##"
        > EVAL "return {string.find(121, 2), string.find('a.b', '.', 2, true), string.find('abc', 'b', -2)}" 0
        < [:2, :2, :2, :2]
        > EVAL "return {string.find('abc', '', 10), string.find('', '')}" 0       < [:4, :1, :0]
        > EVAL "return {string.gfind('ab', 'b')()}" 0                             < ["b"]
        > EVAL "return {string.gsub('abc', '', '-')}" 0                           < ["-a-b-c-", :4]
        > EVAL "return {string.gsub('abc', '%w', '%%%0', 2)}" 0                   < ["%a%bc", :2]
        > EVAL "return {string.gsub('abc', '^a', 'x', 4294967296)}" 0             < ["abc", :0]
        > EVAL "return string.find('a')" 0
        < -ERR user_script:1: bad argument #2 to 'find' (string expected, got no value)*
        > EVAL "return ('a'):find('a', {})" 0
        < -ERR user_script:1: bad argument #2 to 'find' (number expected, got table)*
        > EVAL "return string.gsub('a', 'a')" 0
        < -ERR user_script:1: bad argument #3 to 'gsub' (string/function/table expected)*
        > EVAL "return string.gsub('a', 'a', function() return {} end)" 0
        < -ERR user_script:1: invalid replacement value (a table)*
        > EVAL "return ('a'):match('(')" 0            < -ERR user_script:1: unfinished capture*
        > EVAL "return ('a'):match('%')" 0            < -ERR user_script:1: malformed pattern (ends with '%')*
    "##,
    );
}

fn mutated_json(random: &mut Random) -> String {
    let mut text: Vec<u8> = random
        .pick(&[
            "[1,2.5,{\"a\":[true,null]},\"x\\\\u00e9\"]",
            "{\"a\":1,\"b\":[],\"c\":{}}",
            "[-1e5,0x1F,inf,\"\"]",
            "\"\\\\ud83d\\\\ude00\"",
        ])
        .as_bytes()
        .to_vec();
    for _ in 0..random.below(3) {
        let at = random.below(text.len());
        text[at] = *random
            .pick(&[&b"{"[..], b"}", b"[", b"]", b",", b":", b"1", b"x", b" ", b"\""])
            .first()
            .expect("one");
    }
    String::from_utf8(text).expect("ASCII")
}

fn structs(random: &mut Random) -> String {
    let (mut format, mut args) = (String::new(), Vec::new());
    for _ in 0..1 + random.below(5) {
        let option = random.pick(&[
            "b", "B", "h", "H", "l", "L", "i3", "I2", "I", "f", "d", "s", "c3", "x", ">", "<", "!4", "!8",
        ]);
        format.push_str(option);
        match option.as_bytes()[0] {
            b's' | b'c' => args.push("'abcd'".to_owned()),
            b'x' | b'>' | b'<' | b'!' => {}
            _ => args.push(random.between(-70_000, 70_000).to_string()),
        }
    }
    let args = if args.is_empty() { String::new() } else { format!(", {}", args.join(", ")) };
    format!(
        "local p = struct.pack('{format}'{args}) return {{p, cjson.encode({{struct.unpack('{format}', p)}})}}"
    )
}

/// Threads transfer money by scripts, some of which reach for undeclared accounts, before or after they have
/// written. Nothing is lost, and no script waits for ever.
#[test]
fn scripts_on_all_workers_lose_nothing() {
    const ACCOUNTS: usize = 12;
    const START: i64 = 1_000;
    let live = Live::start(4, &[]);
    let mut client = live.connect();
    for account in 0..ACCOUNTS {
        client.run(&format!("SET acc{account} {START}"));
    }
    let scripts = [
        // Declares both accounts.
        "redis.call('decrby', KEYS[1], ARGV[1]) redis.call('incrby', KEYS[2], ARGV[1]) return 1",
        // Reaches outside its keys after it has written.
        "redis.call('decrby', KEYS[1], ARGV[1]) redis.call('incrby', ARGV[2], ARGV[1]) return 2",
        // Reaches outside only now and then, so that the habit is not known.
        "redis.call('decrby', KEYS[1], ARGV[1]) redis.call('incrby', KEYS[1], ARGV[1]) \
         if tonumber(ARGV[1]) % 7 == 0 then \
           redis.call('decrby', KEYS[1], 1) redis.call('incrby', ARGV[2], 1) \
         end return 3",
        // Reads all accounts.
        "local sum = 0 for i = 0, 11 do sum = sum + redis.call('get', 'acc' .. i) end return sum",
    ];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (live, stop, mut random) = (&live, &stop, random());
            scope.spawn(move || {
                let mut client = live.connect();
                let mut rounds = 0;
                while !stop.load(Relaxed) {
                    let kind = random.below(scripts.len());
                    // A script of unique text has no known habits.
                    let script = if random.chance(30) {
                        format!("{} -- {thread} {rounds}", scripts[kind])
                    } else {
                        scripts[kind].to_owned()
                    };
                    let [from, to] =
                        [random.below(ACCOUNTS), random.below(ACCOUNTS)].map(|at| format!("acc{at}"));
                    let amount = random.below(50).to_string();
                    let reply = match kind {
                        0 => client.call(&["EVAL", &script, "2", &from, &to, &amount]),
                        3 => client.call(&["EVAL", &script, "0"]),
                        _ => client.call(&["EVAL", &script, "1", &from, &amount, &to]),
                    };
                    let expected = if kind == 3 { START * ACCOUNTS as i64 } else { kind as i64 + 1 };
                    assert_eq!(reply, Value::Int(expected), "{script}");
                    if random.chance(20) {
                        client.run(&format!("GET {from}"));
                    }
                    rounds += 1;
                }
                assert!(rounds > 10, "thread {thread} got nowhere");
            });
        }
        std::thread::sleep(Duration::from_secs(3));
        stop.store(true, Relaxed);
    });
    let sum = client.call(&["EVAL", scripts[3], "0"]);
    assert_eq!(sum, Value::Int(START * ACCOUNTS as i64));
    live.verify();
    live.stop();
}

#[test]
fn value_ranges_wider_than_the_stack_are_refused() {
    for range in
        ["0, 2147483647", "-2, 2147483647", "-2147483648, 2147483646", "-2147483648, 2147483647", "1, 8001"]
    {
        check(&format!(
            "> EVAL \"return {{pcall(unpack, {{}}, {range})}}\" 0 < [(nil), \"too many results to unpack\"]"
        ));
    }
    check(
        r#"
        > EVAL "return {unpack({1, 2, 3})}" 0                         < [:1, :2, :3]
        > EVAL "return {unpack({1, 2, 3}, 2)}" 0                      < [:2, :3]
        > EVAL "return {unpack({1, 2, 3}, -1, 1) == nil, select('#', unpack({}, -1, 1))}" 0 < [:1, :3]
        > EVAL "return select('#', unpack({}, 1, 7000))" 0            < :7000
        > EVAL "return select('#', unpack({}, 2147483647, 1))" 0      < :0
        > EVAL "return unpack(1)" 0
        < -ERR user_script:1: bad argument #1 to 'unpack' (table expected, got number)*
        > EVAL "return {xpcall(function() return 1, 2 end, error)}" 0 < [:1, :1, :2]
        > EVAL "return {xpcall(function() error('x', 0) end, function(e) return e .. '!' end)}" 0
        < [(nil), "x!"]
        > EVAL "return {xpcall(function() error('x', 0) end, 5)}" 0   < [(nil), *]
        > EVAL "return xpcall(function() end)" 0
        < -ERR user_script:1: bad argument #2 to 'xpcall' (value expected)*
    "#,
    );
}

/// A table that contains itself is short to write, and long to count.
#[test]
fn endless_replies_are_abandoned() {
    let live = Live::start(1, &[]);
    let mut client = live.connect();
    for element in ["t", "{map = t}", "{set = t}"] {
        let script = format!("local t = {{}} for i = 1, 300000 do t[i] = {element} end return t");
        let reply = client.call(&["EVAL", &script, "0"]).to_string();
        assert_eq!(reply, "-ERR the reply of the script is too long", "{element}");
    }
    let script = "local t = {} for i = 1, 300000 do t[i] = {i} end return t";
    client.send(&["EVAL", script, "0"]).expect("open");
    assert!(client.read().to_string().ends_with("[:299999], [:300000]]"));
    live.stop();
}

fn wait_for(client: &mut Client, line: &str, with: &str) {
    let started = Instant::now();
    loop {
        let reply = client.run(line).to_string();
        if reply.contains(with) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{line}: {reply}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Holds for all workers, also workers that have the script compiled.
#[test]
fn evicted_scripts_are_unknown() {
    let mut world = World::new();
    world.check("> EVAL 'return 0' 0 < :0\n > EVALSHA 06d3d9b2060dd51343d5f19f0e531f15c507e3d1 0 < :0");
    (1..=500).for_each(|number| world.check(&format!("> EVAL 'return {number}' 0 < :{number}")));
    world.check("> EVALSHA 06d3d9b2060dd51343d5f19f0e531f15c507e3d1 0 < -NOSCRIPT *");
    world.check("> EVAL 'return 0' 0 < :0\n > EVALSHA 06d3d9b2060dd51343d5f19f0e531f15c507e3d1 0 < :0");
}

#[test]
fn a_busy_script_is_killed_while_others_are_answered() {
    let live = Live::start(1, &["--busy-reply-threshold", "20"]);
    let (mut busy, mut other, mut waiter) = (live.connect(), live.connect(), live.connect());
    waiter.send(&["BLPOP", "q", "0"]).expect("open");
    live.await_blocked(1);
    for script in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "return pcall(function() while true do end end)",
        // After an error that its hook has raised, Lua calls the error handler without hooks.
        "xpcall(function() while true do end end, function() while true do end end) return 5",
        // Each of these coroutines is over before the hook would run.
        "local function f(d) if d > 0 then for i = 1, 150 do coroutine.wrap(f)(d - 1) end end end f(5)",
        "local function f(d) \
           if d > 0 then for i = 1, 150 do coroutine.resume(coroutine.create(f), d - 1) end end \
         end f(5)",
        // Each of these calls takes some milliseconds.
        "local long = string.rep('x', 1e6) for i = 1, 1200 do redis.sha1hex(long) end",
        // A single call that tries an exponential number of ways.
        "return string.find(string.rep('a', 3000), string.rep('.-', 20) .. 'b')",
        "for _ in string.gmatch(string.rep('a', 3000), string.rep('a*', 20) .. 'b') do end",
        // Values that expand beyond the available time or memory.
        "local t = {} for i = 1, 40 do t = {t, t} end return cjson.encode(t)",
        "local t = {} for i = 1, 15 do t = {t, t, t, t, t, t} end return cmsgpack.pack(t)",
        "while true do pcall(string.gsub, string.rep('a', 3000), string.rep('a?.-', 20) .. 'b', '') end",
    ] {
        busy.send(&["EVAL", script, "1", "k"]).expect("open");
        wait_for(&mut other, "PING", "BUSY Evenkeel is busy running a script. You can only call SCRIPT KILL");
        assert!(other.run("GET k").to_string().contains("BUSY"));
        assert!(other.run("FUNCTION KILL").to_string().contains("BUSY"));
        drop(live.connect());
        assert_eq!(other.run("SCRIPT KILL").to_string(), "OK");
        let reply = busy.read().to_string();
        assert!(reply.starts_with("-ERR Script killed by user with SCRIPT KILL."), "{script}: {reply}");
        assert!(reply.ends_with(" script: on @user_script:1."), "{script}: {reply}");
        assert_eq!(other.run("PING").to_string(), "PONG");
    }
    assert_eq!(other.run("LPUSH q v").to_string(), ":1");
    assert_eq!(waiter.read().to_string(), "[\"q\", \"v\"]");
    live.verify();
    live.stop();
}

#[test]
fn a_busy_script_that_has_written_is_not_killed_but_ends_with_the_server() {
    // Also where the first base of the append-only file waits for the script.
    for appendonly in ["no", "yes"] {
        let args = ["--busy-reply-threshold", "10", "--save", "", "--appendonly", appendonly];
        let live = Live::start(2, &args);
        let (mut busy, mut other) = (live.connect(), live.connect());
        busy.send(&["EVAL", "redis.call('set', KEYS[1], 'x') while true do end", "1", "k"]).expect("open");
        wait_for(&mut other, "PING", "BUSY");
        assert!(other.run("SCRIPT KILL").to_string().contains("UNKILLABLE"));
        assert!(other.run("SHUTDOWN").to_string().contains("BUSY"));
        other.send(&["SHUTDOWN", "NOSAVE"]).expect("open");
        live.wait_until("it stops", || live.server.core.stopping.load(Relaxed));
        live.stop();
    }
}

/// A single script is killed. Clients whose scripts wait behind it read that it is busy, as in Redis.
#[test]
fn script_kill_ends_one_of_several_scripts() {
    const SCRIPTS: [&str; 3] = [
        "while true do end",
        "redis.call('dbsize') while true do end",
        "for i = 1, 300 do redis.call('get', 'key' .. i) end while true do end",
    ];
    let live = Live::start(2, &["--busy-reply-threshold", "300"]);
    let mut clients: Vec<Client> = (0..150).map(|_| live.connect()).collect();
    let mut other = live.connect();
    for (client, script) in clients.iter_mut().zip(SCRIPTS.iter().cycle()) {
        client.send(&["EVAL", script, "0"]).expect("open");
    }
    wait_for(&mut other, "PING", "BUSY");
    assert_eq!(other.run("SCRIPT KILL").to_string(), "OK");
    let replies: Vec<String> = clients.iter_mut().map(|client| client.read().to_string()).collect();
    let (killed, busy): (Vec<_>, Vec<_>) =
        replies.iter().partition(|reply| reply.starts_with("-ERR Script killed by user"));
    assert_eq!(killed.len(), 1, "{killed:?}");
    assert!(
        busy.iter().all(|reply| reply.starts_with("-BUSY Evenkeel is busy running a script.")),
        "{busy:?}"
    );
    wait_for(&mut other, "PING", "PONG");
    live.verify();
    live.stop();
}

/// The only worker is inside the gate when another script waits to close it, and then waits for the gate
/// itself.
#[test]
fn workers_blocked_by_a_script_answer_busy() {
    const REACHES_OUTSIDE: &str = "local at = os.clock() \
                                   repeat redis.call('time') until os.clock() - at > 3e-3 \
                                   return redis.call('dbsize')";
    for name in ["EVAL", "KEYS"] {
        let live = Live::start(1, &["--busy-reply-threshold", "100", "--enable-debug-command", "yes"]);
        let (mut busy, mut other) = (live.connect(), live.connect());
        other.run("DEBUG POPULATE 200000");
        // Either script may close the gate first. A script that has reached outside before would begin behind
        // the gate.
        for round in 0..20 {
            let script = format!("{REACHES_OUTSIDE} -- {round}");
            let command = if name == "EVAL" { vec![name, &script, "0"] } else { vec![name, "*"] };
            busy.send(&["EVAL", "while true do end", "0"]).expect("open");
            other.send(&command).expect("open");
            let was_refused = other.read().to_string().starts_with("-BUSY");
            wait_for(&mut other, "PING", "BUSY");
            assert_eq!(other.run("SCRIPT KILL").to_string(), "OK");
            assert!(busy.read().to_string().starts_with("-ERR Script killed by user"));
            assert!(!other.call(&command).is_error());
            if was_refused {
                break;
            }
        }
        live.verify();
        live.stop();
    }
}

/// CLIENT PAUSE WRITE delays scripts, except scripts whose flags declare that they do not write.
#[test]
fn scripts_that_only_read_are_not_paused() {
    let mut world = World::new();
    world.check(
        r##"
        > FUNCTION LOAD "#!lua name=lib\nredis.register_function{function_name='f', \
            callback=function() return 3 end, flags={'no-writes'}}"
        < "lib"
        > CLIENT PAUSE 60000 WRITE                        < OK
        > EVAL "#!lua flags=no-writes\nreturn 1" 0        < :1
        > EVAL "#!lua flags=no-writes\nreturn 1" 0        < :1
        > EVAL_RO "return 1" 0                            < :1
        > SCRIPT LOAD "#!lua flags=no-writes\nreturn 2"   < "ae33f9227913b24d053a555637f98260b23bd3a3"
        > EVALSHA ae33f9227913b24d053a555637f98260b23bd3a3 0 < :2
        > FCALL f 0                                       < :3
        > MULTI                                           < OK
        > EVAL "#!lua flags=no-writes\nreturn 1" 0        < QUEUED
        > EXEC                                            < [:1]
    "##,
    );
    for held_back in ["EVAL", "EVALSHA", "FCALL", "SET"] {
        assert!(world.is_paused(held_back), "{held_back}");
    }
}

/// Clients that put their values into the text of a script make a new script with every call.
#[test]
fn compiled_scripts_do_not_fill_the_lua_state() {
    let mut world = World::new();
    let text = "x".repeat(1 << 20);
    for number in 0..600 {
        let reply = eval(&mut world, &format!("return #'{number:04}{text}'"), &["0"]);
        assert_eq!(reply, ":1048580", "number {number}");
    }
}

/// A script's arguments are not kept until the next script.
#[test]
fn large_arguments_are_freed() {
    let mut world = World::new();
    let in_use = |world: &mut World| {
        let info = world.run("INFO memory");
        let field = info.split_once("used_memory_vm_eval:").expect("it is told").1;
        field.split('\\').next().and_then(|number| number.parse::<usize>().ok()).expect("a number")
    };
    let before = in_use(&mut world);
    for words in [["1", &"x".repeat(60 << 20)], ["0", &"x".repeat(60 << 20)]] {
        assert_eq!(eval(&mut world, "return #KEYS", &words), format!(":{}", words[0]));
    }
    let after = in_use(&mut world);
    assert!(after < before + (20 << 20), "{before} bytes before, {after} now");
}

/// A script that has flushed, or written to many keys, cannot be taken back. The only worker has to reply to
/// waiting clients and to notice that the server stops.
#[test]
fn scripts_without_undo_leave_the_only_worker_free() {
    let flushes = "redis.call('FLUSHALL') while true do end";
    let writes = "for i = 1, 1000 do redis.call('SET', 'key' .. i, i) end while true do end";
    let counts = "local t = {} for i = 1, 300 do t[i] = 'key' .. i end redis.call('PFCOUNT', unpack(t)) \
                  while true do end";
    let shows =
        "local long = string.rep('x', 1e6) for i = 1, 7 do redis.call('ECHO', long) end while true do end";
    for (script, kill) in [(flushes, "UNKILLABLE"), (writes, "UNKILLABLE"), (counts, "OK"), (shows, "OK")] {
        let live = Live::start(1, &["--busy-reply-threshold", "20", "--save", ""]);
        let (mut busy, mut other, mut watches) = (live.connect(), live.connect(), live.connect());
        watches.run("MONITOR");
        busy.send(&["EVAL", script, "0"]).expect("open");
        wait_for(&mut other, "PING", "BUSY");
        assert!(other.run("SCRIPT KILL").to_string().contains(kill), "{script}");
        if kill == "OK" {
            wait_for(&mut other, "PING", "PONG");
            live.stop();
            continue;
        }
        other.send(&["SHUTDOWN", "NOSAVE"]).expect("open");
        live.wait_until("it stops", || live.server.core.stopping.load(Relaxed));
        live.stop();
    }
    // A script that ends takes effect once. Its second run begins on the thread where it can stay; a script
    // that publishes stays on the worker.
    let live = Live::start(1, &[]);
    let mut client = live.connect();
    let writes = "for i = 1, 300 do redis.call('INCR', 'key' .. i) end return redis.call('GET', 'key1')";
    let publishes =
        "redis.call('INCR', 'own') redis.call('PUBLISH', 'channel', 'x') return redis.call('GET', 'own')";
    let calls = |client: &mut Client| {
        let text = client.run("INFO commandstats").to_string();
        let line = text.split("cmdstat_incr:calls=").nth(1).expect("it has been called");
        line.split(',').next().and_then(|calls| calls.parse::<u64>().ok()).expect("a number")
    };
    for (script, key, own) in [(writes, "key1", 300), (publishes, "own", 1)] {
        for round in 1..=4 {
            let before = if round == 1 { 0 } else { calls(&mut client) };
            assert_eq!(client.call(&["EVAL", script, "1", key]).to_string(), format!("\"{round}\""));
            let called = calls(&mut client) - before;
            assert!(round == 1 || called == own, "round {round}: {called} calls");
        }
    }
    // After a short run, the script stays on the worker. A run from which the system takes the processor
    // counts as long.
    let some = "for i = 1, ARGV[1] do redis.call('INCR', 'some' .. i) end";
    let mut leaves = |count| {
        let before = live.server.slow_scripts.total();
        client.call(&["EVAL", some, "0", count]);
        live.server.slow_scripts.total() > before
    };
    assert!(leaves("300") && leaves("1"));
    assert!((0..50).any(|_| !leaves("1")));
    live.verify();
}

/// Zero means no threshold: no script counts as slow.
#[test]
fn a_zero_threshold_disables_slow_scripts() {
    let live = Live::start(2, &["--busy-reply-threshold", "0"]);
    let (mut busy, mut other) = (live.connect(), live.connect());
    let script = "local at = os.clock() repeat redis.call('time') until os.clock() - at > 0.3";
    busy.send(&["EVAL", script, "0"]).expect("open");
    for _ in 0..30 {
        assert_eq!(other.run("PING").to_string(), "PONG");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(busy.read().to_string(), "(nil)");
    live.stop();
}

/// An expired key that is not removed yet shows no habit of the script.
#[test]
fn expired_keys_do_not_mark_scripts_as_undeclared() {
    const SCRIPT: &str = "return redis.call('del', KEYS[1], KEYS[2])";
    let mut world = World::new();
    let habit = |world: &World, script: &str| {
        let sha = sha_of(script.as_bytes());
        world.server.scripts.find(&sha).expect("it was run").habits.reach_outside()
    };
    world.check("> SET {t}a 1 PX 5 < OK\n > SET {t}b 1 < OK\n ~ 10ms");
    assert_eq!(eval(&mut world, SCRIPT, &["2", "{t}a", "{t}b"]), ":1");
    assert!(!habit(&world, SCRIPT));
    const OTHER: &str = "return redis.call('get', 'other')";
    assert_eq!(eval(&mut world, OTHER, &["0"]), "(nil)");
    assert!(habit(&world, OTHER), "this one does");
}
