-- What scripts see. Run once per Lua state, before any script; `native` holds what is written in Rust.
--
-- All scripts of a state share their libraries, so nothing of them may be changed: a script is given an empty table in
-- place of each, whose metatable leads to the real one and refuses writes. Functions of Lua's that pass metatables by
-- (rawset, table.insert, next and their like) are replaced by ones that know these tables. What could load bytecode, reach
-- another function's environment or the metatable of strings is not there.
local native = ...
local debug, real = debug, _G
local setfenv, newproxy, loadstring_, collect = setfenv, newproxy, loadstring, collectgarbage
local type, tostring, select, concat, byte = type, tostring, select, table.concat, string.byte

local behind = native.behind -- a protected table -> what is behind it

local function protect(table)
  local shown = {}
  behind[shown] = table
  return setmetatable(shown, { __index = table, __newindex = native.refuse_write, __metatable = false })
end

-- Functions in the place of Lua's own: they respect protection, and end when they are told to.
local guarded = native.guarded

local function names(of, list)
  local kept = {}
  for name in list:gmatch('%S+') do kept[name] = of[name] end
  return kept
end

local string_ = names(string, 'byte char dump format len lower reverse sub upper')
for name, wrapped in pairs(guarded.string) do string_[name] = wrapped end
local table_ = names(table, 'concat getn maxn')
for name, wrapped in pairs(guarded.table) do table_[name] = wrapped end
local math_ = names(math, [[abs acos asin atan2 atan ceil cos cosh deg exp floor fmod frexp huge ldexp log10 log max min
  mod modf pi pow rad sin sinh sqrt tan tanh]])
math_.random, math_.randomseed = native.random, native.randomseed
local coroutine_ = names(coroutine, 'resume running status yield')
for name, wrapped in pairs(guarded.coroutine) do coroutine_[name] = wrapped end

local globals = names(real, [[_VERSION assert error gcinfo ipairs rawequal select tonumber tostring type]])
for name, wrapped in pairs(guarded.base) do globals[name] = wrapped end
globals.pcall, globals.xpcall = native.pcall, native.xpcall
globals.string, globals.table, globals.math = protect(string_), protect(table_), protect(math_)
globals.coroutine = protect(coroutine_)
for name, library in pairs(native.libraries) do globals[name] = protect(library) end

debug.setmetatable('', { __index = string_ })
local string_meta = protect({ __index = globals.string })

-- A metatable is shown where Redis shows one; those of protected libraries are not.
local getmetatable_, env_meta = getmetatable, {}
function globals.getmetatable(...)
  local of = ...
  if select('#', ...) > 0 then
    if type(of) == 'string' then return string_meta end
    if type(of) == 'table' and behind[of] ~= nil then return env_meta[of] end
  end
  return getmetatable_(...)
end

-- An environment: what a function takes for its global variables.
local function environment(fields)
  local shown = {}
  behind[shown] = fields
  fields._G = shown
  setmetatable(fields, { __index = native.missing_global })
  local meta = { __index = fields, __newindex = native.refuse_write, __metatable = false }
  env_meta[shown] = protect({ __index = native.missing_global })
  return setmetatable(shown, meta), meta
end

local function copy(of)
  local fields = {}
  for name, value in pairs(of) do fields[name] = value end
  return fields
end

-- Text only: bytecode that was made up could do anything.
local function load_text(env, text, name)
  if byte(text, 1) == 27 then
    return nil, '[string "' .. '\27LuaQ' .. '"]:1: unexpected symbol near \'char(27)\''
  end
  local chunk, message = loadstring_(text, name or text)
  if chunk then setfenv(chunk, env) end
  return chunk, message
end

local function add_loaders(fields, env)
  function fields.loadstring(text, name)
    if type(text) == 'number' then text = tostring(text) end
    if type(text) ~= 'string' then return loadstring_(text, name) end
    return load_text(env, text, name)
  end
  function fields.load(read, name)
    if type(read) ~= 'function' then return real.load(read, name) end
    local pieces = {}
    while true do
      local piece = read()
      if piece == nil or piece == '' then break end
      if type(piece) ~= 'string' then return nil, 'reader function must return a string' end
      pieces[#pieces + 1] = piece
    end
    return load_text(env, concat(pieces), name or '=(load)')
  end
end

-- The collector serves all scripts: one may ask it to work, not to stop.
function globals.collectgarbage(option, ...)
  if option == nil or option == 'collect' or option == 'count' or option == 'step' then
    return collect(option or 'collect', ...)
  end
  return 0
end

local function on_error(err)
  local i = debug.getinfo(2, 'nSl')
  if i and i.what == 'C' then
    i = debug.getinfo(3, 'nSl')
  end
  if type(err) ~= 'table' then
    err = { err = 'ERR ' .. tostring(err) }
  end
  if i then
    err.source = i.source
    err.line = i.currentline
  end
  return err
end
globals.__redis__err__handler = on_error
globals.__server__err__handler = on_error

local scripts, functions, loading = copy(globals), copy(globals), {}
local env, env_of_functions = {}, nil
env.scripts = environment(scripts)
env.functions, env_of_functions = environment(functions)
add_loaders(scripts, env.scripts)
add_loaders(functions, env.functions)
setmetatable(native.registration, { __index = native.missing_global })
loading.redis = protect(native.registration)
loading.server = loading.redis
setmetatable(loading, { __index = native.missing_global })

-- For lua-enable-insecure-api: scripts that share a function may change its environment for one another. Lua's own
-- environment and the functions that live in it stay out of reach, and so do finalizers, which run in the middle of
-- anything.
local function add_insecure(fields, shown)
  fields.getfenv, fields.setfenv = native.insecure(shown)
  function fields.newproxy(of)
    if of == true then error('newproxy(true) is not available', 2) end
    return newproxy(of)
  end
end
if native.insecure then
  add_insecure(scripts, env.scripts)
  add_insecure(functions, env.functions)
end

-- While a library is loaded, it sees nothing but what registers its functions; these see all the rest when they are run.
local function set_loading(is_loading)
  local fields = is_loading and loading or functions
  env_of_functions.__index = fields
  behind[env.functions] = fields
end

-- The environments, where KEYS and ARGV go, what errors become, and what is to be called around the loading of a library.
return env, scripts, on_error, set_loading
