//! The command line, with redis-server's meaning: `evenkeel [file] [--directive value ...]... [-]`, `-` for
//! more configuration on the standard input.
//!
//! Each `--directive` and the words up to the next one make a line, read after the file's lines, so that an
//! option overrides the file. A word right after a `--directive` is its value even when it begins with `--`,
//! since a value may; only `save`, which can stand alone, takes none then.

use super::directives::{self, Directive};
use super::errors::{ConfigError, Place};
use super::file::{Commands, Loader, UserLines};
use super::value::{Value, ValueKind, Word};
use super::{ConfigFile, Settings, line};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The request of the command line, read and checked. With errors in it, the settings result from all other
/// lines.
#[derive(Debug)]
pub struct Launch {
    pub action: Action,
    pub settings: Settings,
    /// The file that CONFIG REWRITE writes.
    pub config_file: Option<ConfigFile>,
    /// The standard input or options contain configuration, too.
    pub has_more: bool,
    /// Messages for the server log at start, a line each.
    pub notices: Vec<String>,
    /// Directives that are switched on and have no effect.
    pub without_effect: Vec<NoEffect>,
    /// With any error, the server does not start.
    pub mistakes: Vec<ConfigError>,
    /// A `dir` is among the errors: relative paths start elsewhere.
    pub lacks_dir: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Run,
    Version,
    Help,
    CheckConfig,
}

/// An option of the command line that is no directive.
#[derive(Debug)]
pub struct Flag {
    pub names: &'static [&'static str],
    pub action: Action,
    /// Must be the only argument. Otherwise it may be the first or the last.
    is_alone: bool,
    pub help: &'static str,
}

pub const FLAGS: &[Flag] = &[
    Flag {
        names: &["--check-config"],
        action: Action::CheckConfig,
        is_alone: false,
        help: "Check the configuration, list problems that would prevent startup or saving, and exit",
    },
    Flag { names: &["-v", "--version"], action: Action::Version, is_alone: true, help: "Print the version" },
    Flag { names: &["-h", "--help"], action: Action::Help, is_alone: true, help: "Print help" },
];

impl Flag {
    fn is_named(&self, arg: &Word) -> bool {
        self.names.iter().any(|name| name.as_bytes() == arg)
    }
}

pub const USAGE: &str = "\
Usage: evenkeel [/path/to/redis.conf] [options] [-]
       evenkeel -                 reads the configuration from standard input
       evenkeel --check-config    checks the configuration, lists problems that would prevent startup or
                                  saving, and exits
       evenkeel check FILE|DIR [--fix] [--truncate-to-timestamp SECONDS] [--yes]
                                  checks an RDB file, an append-only file or an AOF directory, and repairs a
                                  damaged end
       evenkeel top [HOST:PORT]   shows a running server in the terminal
       evenkeel upgrade           replaces the program of a running server, which keeps its clients
       evenkeel -v | --version
       evenkeel -h | --help

Every directive of redis.conf is an option:
       evenkeel --port 7777 --save \"\" --maxmemory 2gb --maxmemory-policy allkeys-lfu
       evenkeel /etc/evenkeel.conf --loglevel verbose --threads 4
       echo 'maxmemory 128mb' | evenkeel - --port 7777
";

impl Launch {
    /// Reads `args`, without the program's name, and the files to which they lead.
    ///
    /// `commands` returns whether a name is a command's, for `rename-command`.
    pub fn from_args(
        args: impl Iterator<Item = OsString>,
        user_lines: UserLines,
        commands: impl Fn(&[u8]) -> bool,
    ) -> Result<Launch, ConfigError> {
        let here = std::env::current_dir().map_err(|error| ConfigError::Open { path: ".".into(), error })?;
        let args: Vec<Word> = args.map(OsStringExt::into_vec).collect();
        Ok(launch(&args, &here, &mut io::stdin(), user_lines, &commands))
    }
}

fn launch(
    args: &[Word],
    here: &Path,
    stdin: &mut dyn Read,
    user_lines: UserLines,
    commands: Commands<'_>,
) -> Launch {
    let request = Request::from(args);
    let mut loader = Loader::new(user_lines, Some(commands), here);
    let config_file = request.file.map(|file| ConfigFile::new(&file, here, user_lines));
    if let Some(file) = &config_file {
        loader.file(&file.path);
    }
    if request.stdin {
        let mut text = Vec::new();
        match stdin.read_to_end(&mut text) {
            Ok(_) => loader.text(&text, |line| Place::Stdin { line }),
            Err(error) => loader.mistakes.push(ConfigError::Open { path: "-".into(), error }),
        }
    }
    for (index, option) in request.options.iter().enumerate() {
        loader.line_at(option, || Place::Option { number: index + 1 });
    }
    let mut settings = std::mem::take(&mut loader.settings);
    if settings.dir.is_relative() {
        settings.fields.dir = here.to_owned();
    }
    let without_effect = without_effect(&settings, directives::settings()).collect();
    let has_more = request.stdin || !request.options.is_empty();
    let (action, Loader { notices, mistakes, lacks_dir, .. }) = (request.action, loader);
    Launch { action, settings, config_file, has_more, notices, without_effect, mistakes, lacks_dir }
}

/// A directive that is switched on and has no effect.
#[derive(Debug, PartialEq, Eq)]
pub struct NoEffect {
    pub name: &'static str,
    pub why: &'static str,
    /// The operator may rely on the effect. Otherwise nothing is lacking without it.
    pub is_missed: bool,
}

impl fmt::Display for NoEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' has no effect: {}", self.name, self.why)
    }
}

/// Returns the directives among `rows` that switch on a feature that the server lacks. Switching such a
/// feature off is no error.
pub(super) fn without_effect(
    settings: &Settings,
    rows: impl Iterator<Item = &'static Directive>,
) -> impl Iterator<Item = NoEffect> {
    rows.filter_map(|row| {
        let (value, why) = (settings.value(row), row.why_no_effect()?);
        let no_effect = NoEffect { name: row.name, why, is_missed: row.missed };
        (value != row.default_value() && !is_off(&value)).then_some(no_effect)
    })
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Flag(on) => !on,
        Value::Text(text) => text.is_empty(),
        Value::Words(words) => words.is_empty(),
        Value::Numbers(numbers) => numbers.is_empty(),
        Value::Number(_) | Value::Choice(_) | Value::Decimals(_) => false,
    }
}

/// The parsed command line.
#[derive(Debug, PartialEq)]
struct Request {
    action: Action,
    file: Option<PathBuf>,
    stdin: bool,
    /// Lines in the form of a file's.
    options: Vec<Word>,
}

impl Request {
    fn from(args: &[Word]) -> Request {
        let mut request = Request { action: Action::Run, file: None, stdin: false, options: Vec::new() };
        let rest = request.take_action(args);
        let rest = request.take_file(rest);
        let rest = request.take_stdin(rest);
        request.options = options(rest);
        request
    }

    /// Takes the action, which is the first argument; `--check-config` may be the last, too.
    fn take_action<'a>(&mut self, args: &'a [Word]) -> &'a [Word] {
        for flag in FLAGS {
            let rest = match args {
                [first, rest @ ..] if flag.is_named(first) && (!flag.is_alone || rest.is_empty()) => rest,
                [rest @ .., last] if flag.is_named(last) && !flag.is_alone => rest,
                _ => continue,
            };
            self.action = flag.action;
            return rest;
        }
        args
    }

    fn take_file<'a>(&mut self, args: &'a [Word]) -> &'a [Word] {
        match args {
            [first, rest @ ..] if !first.starts_with(b"-") => {
                let path = PathBuf::from(OsString::from_vec(first.clone()));
                self.file = Some(path).filter(|path| !path.as_os_str().is_empty());
                rest
            }
            _ => args,
        }
    }

    /// Takes `-`, which is the first argument, follows the file, or is the last.
    fn take_stdin<'a>(&mut self, args: &'a [Word]) -> &'a [Word] {
        let (stdin, rest) = match args {
            [first, rest @ ..] if first == b"-" => (true, rest),
            [rest @ .., last] if last == b"-" => (true, rest),
            _ => (false, args),
        };
        self.stdin = stdin;
        rest
    }
}

/// Returns a line for each option: its name unquoted, so that `"--port 7777"` in a single word works, its
/// values in quotes.
fn options(args: &[Word]) -> Vec<Word> {
    let mut options: Vec<Word> = Vec::new();
    // Whether the last line is an option without a value so far.
    let mut bare = false;
    for arg in args {
        let alone = options.last().is_some_and(|last| may_stand_alone(last));
        match arg.strip_prefix(b"--") {
            Some(name) if !bare || alone => {
                options.push(name.to_vec());
                // Name and value may arrive as a single word of the command line: then the value is there.
                bare = line::split(name).is_none_or(|words| words.len() <= 1);
            }
            _ => {
                add_value(&mut options, arg);
                bare = false;
            }
        }
    }
    options
}

/// Whether the directive's empty line has a meaning.
fn may_stand_alone(name: &[u8]) -> bool {
    directives::find(name).is_some_and(|row| matches!(row.kind, ValueKind::List(list) if list.adds_up))
}

fn add_value(options: &mut Vec<Word>, value: &[u8]) {
    if options.is_empty() {
        options.push(Word::new());
    }
    let last = options.last_mut().expect("one at least");
    if !last.is_empty() {
        last.push(b' ');
    }
    last.extend(line::quoted(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Mistakes;
    use crate::testing::{USER_LINES, shown};
    use evenkeel_testkit::scratch::Scratch;

    fn words(args: &[&str]) -> Vec<Word> {
        args.iter().map(|arg| arg.as_bytes().to_vec()).collect()
    }

    fn start_with(args: &[&str], stdin: &str) -> Result<Launch, String> {
        let launch = launch(&words(args), Path::new("/"), &mut stdin.as_bytes(), USER_LINES, &|_| true);
        if launch.mistakes.is_empty() { Ok(launch) } else { Err(Mistakes(&launch.mistakes).to_string()) }
    }

    fn start(args: &[&str]) -> Launch {
        start_with(args, "").unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    #[track_caller]
    fn check(args: &[&str], name: &str, value: &str) {
        assert_eq!(shown(&start(args).settings, name), value, "{args:?}");
    }

    #[track_caller]
    fn refused(args: &[&str], number: usize, line: &str, reason: &str) {
        let error = start_with(args, "").map(|_| ()).expect_err(line);
        let expected = format!("Reading the command line, at option {number}\n>>> '{line}'\n{reason}");
        assert!(error.ends_with(&expected), "{error}");
    }

    #[test]
    fn actions() {
        for (args, action) in [
            (&["-v"][..], Action::Version),
            (&["--version"], Action::Version),
            (&["--help"], Action::Help),
            (&["-h"], Action::Help),
            (&["--check-config", "--port", "1"], Action::CheckConfig),
            (&["--port", "1", "--check-config"], Action::CheckConfig),
            (&[], Action::Run),
            (&["--port", "1"], Action::Run),
        ] {
            assert_eq!(start(args).action, action, "{args:?}");
        }
        refused(&["--port", "1", "--help"], 2, "help", "Bad directive or wrong number of arguments");
    }

    #[test]
    fn the_help_names_each_flag() {
        for name in FLAGS.iter().flat_map(|flag| flag.names) {
            assert!(USAGE.contains(name), "{name}");
        }
    }

    #[test]
    fn options_as_lines() {
        check(&["--port", "7000", "--maxmemory", "1gb"], "port", "7000");
        check(&["--PORT", "7000"], "port", "7000");
        check(&["--port 7000"], "port", "7000");
        check(&["--maxmemory 700mb", "--maxmemory-policy volatile-lru"], "maxmemory-policy", "volatile-lru");
        check(&["--maxmemory '700mb'", "--port", "7000"], "port", "7000");
        check(&["--save", "3600", "1", "--save", "60 1000"], "save", "3600 1 60 1000");
        check(&["--save", "3600 1", "--save", "", "--save", "1", "2"], "save", "1 2");
        check(&["--save"], "save", "");
        check(&["--save", "--port", "7000"], "save", "");
        check(&["--save", "\"\""], "save", "");
        check(&["--bind", "\"127.0.0.1\" \"-::1\""], "bind", "127.0.0.1 -::1");
        check(&["--save", "--port", "7000"], "port", "7000");
        check(&["--replicaof", "--host", "6379"], "replicaof", "--host 6379");
        check(&["--list-max-listpack-size", "-1", "--port", "1"], "list-max-listpack-size", "-1");
        check(&["--bind", "127.0.0.1", "-::1"], "bind", "127.0.0.1 -::1");
        check(&["--shutdown-on-sigterm", "force", "now"], "shutdown-on-sigterm", "now force");
        check(&["--requirepass", "a b\"\n"], "requirepass", "a b\"\n");
        check(&["--logfile", "", "--port", "1"], "logfile", "");
    }

    #[test]
    fn wrong_options() {
        refused(&["--port", "abc"], 1, "port \"abc\"", "argument couldn't be parsed into an integer");
        refused(&["--timeout", "1", "--port"], 2, "port", "wrong number of arguments");
        refused(&["--port", "--save"], 1, "port \"--save\"", "argument couldn't be parsed into an integer");
        refused(&["--port", "1", "2"], 1, "port \"1\" \"2\"", "wrong number of arguments");
        let unknown = "Bad directive or wrong number of arguments";
        refused(&["--zzz", "1"], 1, "zzz \"1\"", unknown);
        let meant = |name: &str| format!("{unknown}. Did you mean '{name}'?");
        refused(&["--maxmemory=1gb"], 1, "maxmemory=1gb", &meant("maxmemory"));
        refused(&["--", "--port", "1"], 1, "\"--port\" \"1\"", &meant("port"));
        refused(&["-x"], 1, "\"-x\"", unknown);
        refused(&["--bind", "::1", "--::1"], 2, "::1", unknown);
        let missing = start_with(&["missing.conf"], "").map(|_| ()).expect_err("no such file");
        assert_eq!(missing, "Fatal error, can't open config file '/missing.conf': No such file or directory");
    }

    #[test]
    fn file_then_standard_input_then_options() {
        let scratch = Scratch::new();
        let path = scratch.write("x.conf", "port 1\ntimeout 1\nmaxmemory 1\nsave 1 1\n");
        let path = path.to_str().expect("text");
        let args = [path, "--maxmemory", "3", "--save", "7", "7", "-"];
        let launch = start_with(&args, "timeout 2\nmaxmemory 2\n").expect("right");
        let settings = &launch.settings;
        assert_eq!((settings.port, settings.timeout, settings.maxmemory), (1, 2, 3));
        assert_eq!(shown(settings, "save"), "1 1 7 7");
        assert_eq!(launch.config_file.map(|file| file.path), Some(PathBuf::from(path)));

        let piped = start_with(&["-", "--port", "5"], "port 4\ntimeout 4").expect("right");
        assert_eq!((piped.settings.port, piped.settings.timeout), (5, 4));
        assert!(piped.config_file.is_none());
        let unread = start_with(&["--port", "5"], "port 4").expect("right");
        assert_eq!(unread.settings.port, 5);
    }

    #[test]
    fn dir_is_absolute() {
        assert_eq!(start(&[]).settings.dir, Path::new("/"));
        let scratch = Scratch::new();
        scratch.write("inner/file", "");
        let path = scratch.path.to_str().expect("text");
        assert_eq!(start(&["--dir", path, "--dir", "inner"]).settings.dir, scratch.path.join("inner"));
    }

    /// Ignoring them would lead to unexpected errors.
    #[test]
    fn modules_are_refused() {
        let reason = "Modules are not supported";
        refused(&["--loadmodule", "x.so", "1"], 1, "loadmodule \"x.so\" \"1\"", reason);
    }

    #[test]
    fn a_start_knows_where_its_configuration_came_from() {
        assert!(!start(&[]).has_more);
        assert!(start(&["--port", "1"]).has_more);
        assert!(start_with(&["-"], "port 1").expect("right").has_more);
    }

    #[test]
    fn notices_name_what_was_asked_for_in_vain() {
        let shown = |args: &[&str]| -> Vec<(String, bool)> {
            let all = start(args).without_effect;
            all.iter().map(|one| (one.to_string(), one.is_missed)).collect()
        };
        for args in [&[][..], &["--port", "7", "--appendonly", "no"], &["--io-threads", "1", "--save", ""]] {
            assert_eq!(shown(args), []);
        }
        let lines = [
            (
                "'active-expire-effort' has no effect: expired keys are found by deadline and removed in \
                 time slices until none is left"
                    .to_owned(),
                false,
            ),
            (
                "'daemonize' has no effect: the server always runs in the foreground, for a service manager"
                    .to_owned(),
                true,
            ),
            (
                "'io-threads' has no effect: each worker thread serves its own connections, see 'threads'"
                    .to_owned(),
                false,
            ),
        ];
        assert_eq!(shown(&["--io-threads", "4", "--active-expire-effort", "5", "--daemonize", "yes"]), lines);
    }
}
