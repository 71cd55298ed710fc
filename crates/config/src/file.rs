//! Reads configuration: lines to words, words to rows of the table, and the directives that control the
//! reading itself.
//!
//! A `Loader` holds the settings that result from the lines so far. Options of the command line go through it
//! as lines, too, so that they mean the same as in a file. It accesses the disk only for `include` and `dir`.
//! Relative paths start at the last `dir`, as in Redis, which changes to it at once, and before the first
//! `dir` at the initial directory of the process.

use super::directives::{Directive, Effect, find};
use super::errors::{ConfigError, Place};
use super::nearest::nearest;
use super::value::{Before, Reason, Value, ValueKind, Word};
use super::{Settings, line, paths};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Deepest nesting of includes: enough for any arrangement, and the end of a file that includes itself.
const INCLUDE_DEPTH_MAX: usize = 16;

/// Errors after which reading ends: files that include each other could have as many as there are paths
/// through them.
const MISTAKES_MAX: usize = 100;

/// Handles the words after the name, for a `line` row.
pub(super) type Handler = fn(&mut Loader<'_>, &[Word]) -> Result<(), Reason>;

/// The meaning of `user` lines, which the access control lists of a layer above know.
#[derive(Clone, Copy, Debug)]
pub struct UserLines {
    /// Returns why the words behind `user` are wrong.
    pub check: fn(&[Word]) -> Result<(), String>,
    /// Returns the `user` lines of all users that a start with these settings creates, in their normal form;
    /// `None` if it would fail.
    pub at_start: fn(&Settings) -> Option<Vec<Word>>,
}

/// Whether a name is a command's.
pub(super) type Commands<'a> = &'a dyn Fn(&[u8]) -> bool;

pub(super) struct Loader<'a> {
    pub(super) settings: Settings,
    /// Start of relative paths until there is a `dir`.
    here: &'a Path,
    /// Messages for the operator at start.
    pub(super) notices: Vec<String>,
    /// Malformed lines, and unreadable files. The settings result from all other lines.
    pub(super) mistakes: Vec<ConfigError>,
    /// A `dir` was refused, so relative paths start at a directory that the operator does not mean.
    pub(super) lacks_dir: bool,
    user_lines: UserLines,
    /// Without it, renaming is not checked.
    commands: Option<Commands<'a>>,
    /// Directives that a line has set.
    set: BTreeSet<&'static str>,
    depth: usize,
    /// Number of the included file being read, by the order of inclusion; zero: none.
    included: usize,
    includes: usize,
    /// The file in which a user was defined, by user name.
    users: BTreeMap<Word, usize>,
}

const BAD: &str = "Bad directive or wrong number of arguments";

impl<'a> Loader<'a> {
    pub(super) fn new(user_lines: UserLines, commands: Option<Commands<'a>>, here: &'a Path) -> Self {
        let settings = Settings::default();
        Loader {
            settings,
            here,
            notices: Vec::new(),
            mistakes: Vec::new(),
            lacks_dir: false,
            user_lines,
            commands,
            set: BTreeSet::new(),
            depth: 0,
            included: 0,
            includes: 0,
            users: BTreeMap::new(),
        }
    }

    pub(super) fn file(&mut self, path: &Path) {
        match std::fs::read(path) {
            Ok(text) => self.text(&text, |line| Place::File { path: path.to_owned(), line }),
            Err(error) => self.mistakes.push(ConfigError::Open { path: path.to_owned(), error }),
        }
    }

    /// Reads all lines; `place` names the line of a number, from 1 on.
    pub(super) fn text(&mut self, text: &[u8], place: impl Fn(usize) -> Place) {
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            if self.mistakes.len() >= MISTAKES_MAX {
                return;
            }
            self.line_at(line, || place(index + 1));
        }
    }

    /// Reads a line, and records an error if it is malformed.
    pub(super) fn line_at(&mut self, line: &[u8], place: impl FnOnce() -> Place) {
        if let Err(reason) = self.line(line) {
            let text = shown(line.trim_ascii());
            self.mistakes.push(ConfigError::Line { place: place(), text, reason });
        }
    }

    /// Reads a line; blank lines and comments have no effect. The error is the line's own: errors in an
    /// included file are recorded separately.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<(), Reason> {
        let Some(words) = words(line).ok_or("Unbalanced quotes in configuration line")? else {
            return Ok(());
        };
        let (name, words) = words.split_first().ok_or(BAD)?;
        let row = find(name).ok_or_else(|| unknown(name))?;
        match row.effect {
            Effect::Line(handler) => handler(self, words),
            _ => self.assign(row, words),
        }
    }

    fn assign(&mut self, row: &'static Directive, words: &[Word]) -> Result<(), Reason> {
        let value = match row.kind {
            ValueKind::Directory => Value::Text(self.folder().as_os_str().as_bytes().to_vec()),
            _ => self.settings.value(row),
        };
        let repeated = !self.set.insert(row.name);
        let value = row.kind.parse_line(words, Before { value: Some(&value), repeated });
        if let ValueKind::Directory = row.kind {
            self.lacks_dir = value.is_err();
        }
        self.settings.put(row, value?);
        Ok(())
    }

    /// Returns the present start of relative paths.
    fn folder(&self) -> &Path {
        let dir = &self.settings.dir;
        if dir.is_absolute() { dir } else { self.here }
    }

    /// Whether a name means a command after the renamings so far.
    fn is_command(&self, name: &[u8]) -> Option<bool> {
        let mut known = self.commands?(name);
        for (from, to) in &self.settings.rename_command {
            if from.eq_ignore_ascii_case(name) {
                known = false;
            }
            if !to.is_empty() && to.eq_ignore_ascii_case(name) {
                known = true;
            }
        }
        Some(known)
    }
}

/// Returns the error for an unknown directive.
fn unknown(name: &[u8]) -> Reason {
    match nearest(name) {
        Some(meant) => format!("{BAD}. Did you mean '{meant}'?").into(),
        None => BAD.into(),
    }
}

/// Returns a line as errors show it: without the rules of users and without passwords.
fn shown(line: &[u8]) -> Word {
    let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut words = words.map(<[u8]>::to_vec).collect::<Vec<_>>();
    let kept = match words.first().map(|name| name.to_ascii_lowercase()).as_deref() {
        Some(b"user") => 2,
        Some(name) if super::is_secret(name) => 1,
        _ => return line.to_vec(),
    };
    if words.len() > kept {
        words.truncate(kept);
        words.push(b"(redacted)".to_vec());
    }
    words.join(&b' ')
}

/// Splits a line into words. `None`: unbalanced quotes; `Some(None)`: a blank line or a comment.
pub(super) fn words(line: &[u8]) -> Option<Option<Vec<Word>>> {
    let line = line.trim_ascii();
    if line.is_empty() || line[0] == b'#' { Some(None) } else { line::split(line).map(Some) }
}

/// `include path`: a path without wildcards must exist, a pattern may match nothing.
pub(super) fn include(loader: &mut Loader<'_>, words: &[Word]) -> Result<(), Reason> {
    let [path] = words else { return Err(BAD.into()) };
    if loader.depth == INCLUDE_DEPTH_MAX {
        return Err("Include directives are nested too deeply".into());
    }
    let files = paths::expand(loader.folder(), Path::new(OsStr::from_bytes(path)));
    let including = loader.included;
    loader.depth += 1;
    for file in &files {
        loader.includes += 1;
        loader.included = loader.includes;
        loader.file(file);
    }
    loader.depth -= 1;
    loader.included = including;
    Ok(())
}

/// `rename-command old new`; an empty new name removes the command.
pub(super) fn rename_command(loader: &mut Loader<'_>, words: &[Word]) -> Result<(), Reason> {
    let [from, to] = words else { return Err(BAD.into()) };
    if loader.is_command(from) == Some(false) {
        return Err("No such command in rename-command".into());
    }
    let is_new = !to.eq_ignore_ascii_case(from);
    if is_new && !to.is_empty() && loader.is_command(to) == Some(true) {
        return Err("Target command name already exists".into());
    }
    loader.settings.fields.rename_command.push((from.clone(), to.clone()));
    Ok(())
}

/// `user name [rule ...]`: once in a file. Of several files, the last takes effect, as with all directives.
pub(super) fn user(loader: &mut Loader<'_>, words: &[Word]) -> Result<(), Reason> {
    let [name, ..] = words else { return Err(BAD.into()) };
    let shown = String::from_utf8_lossy(name);
    let before = loader.users.insert(name.clone(), loader.included);
    if before == Some(loader.included) {
        return Err(format!(
            "Error in user declaration '{shown}': Duplicate user found. A user can only be defined once in \
             config files"
        )
        .into());
    }
    (loader.user_lines.check)(words)?;
    let users = &mut loader.settings.fields.users;
    if before.is_some() {
        users.retain(|user| user[0] != *name);
        loader
            .notices
            .push(format!("User '{shown}' is defined in several files: the last definition is used"));
    }
    users.push(words.to_vec());
    Ok(())
}

/// Refuses modules: without them, their commands would be missing.
pub(super) fn load_module(_: &mut Loader<'_>, words: &[Word]) -> Result<(), Reason> {
    if words.is_empty() { Err(BAD.into()) } else { Err("Modules are not supported".into()) }
}

/// Accepts names that Redis has abandoned, but still reads.
pub(super) fn outdated(_: &mut Loader<'_>, words: &[Word]) -> Result<(), Reason> {
    if words.len() == 1 { Ok(()) } else { Err(BAD.into()) }
}

/// Refuses the first such line and skips the rest: a Sentinel's file has many of them, for a single reason.
pub(super) fn sentinel(loader: &mut Loader<'_>, _: &[Word]) -> Result<(), Reason> {
    if !loader.set.insert("sentinel") {
        return Ok(());
    }
    Err("sentinel directive while not in sentinel mode. Evenkeel has no sentinel mode: use this file with \
         the Sentinel of Redis or Valkey (redis-sentinel, valkey-sentinel), which can monitor Evenkeel \
         servers"
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Mistakes;
    use crate::testing::{USER_LINES, shown};
    use evenkeel_testkit::scratch::Scratch;

    fn known(name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(b"get") || name.eq_ignore_ascii_case(b"set")
    }

    fn load(text: &str) -> Result<Settings, String> {
        let mut loader = Loader::new(USER_LINES, Some(&known), Path::new("/"));
        loader.text(text.as_bytes(), |line| Place::Stdin { line });
        if loader.mistakes.is_empty() {
            Ok(loader.settings)
        } else {
            Err(Mistakes(&loader.mistakes).to_string())
        }
    }

    /// Checks the number of the malformed line, the line as it is repeated, and the reason.
    #[track_caller]
    fn refused(text: &str, number: usize, line: &str, reason: &str) {
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "\n*** FATAL CONFIG FILE ERROR (Evenkeel {version}) ***\nReading the configuration file, at line \
             {number} of the standard input\n>>> '{line}'\n{reason}"
        );
        assert_eq!(load(text).map(|_| ()), Err(expected), "{text}");
    }

    #[test]
    fn lines_comments_and_quotes() {
        let text = "# comment\n\n  port 7000 \r\n\t# more\nMAXMEMORY \"1gb\"\nslave-priority 7\n\
                    logfile 'a b'\ntimeout 5";
        let settings = load(text).expect("all lines are right");
        assert_eq!(settings.port, 7000);
        assert_eq!(settings.maxmemory, 1 << 30);
        assert_eq!(settings.logfile.as_deref(), Some(Path::new("a b")));
        assert_eq!(settings.timeout, 5);
        assert_eq!(shown(&settings, "replica-priority"), "7");
    }

    #[test]
    fn repeated_lines_replace_or_add_up() {
        let settings = load("timeout 1\ntimeout 2\nsave 1 1\nsave 2 2\n").expect("right");
        assert_eq!(settings.timeout, 2);
        assert_eq!(shown(&settings, "save"), "1 1 2 2");
        assert_eq!(shown(&load("save \"\"").expect("right"), "save"), "");
        assert_eq!(shown(&load("save\nsave 3 4").expect("right"), "save"), "3 4");
        let limits = load("client-output-buffer-limit replica 1kb 2 3\n").expect("right");
        assert_eq!(limits.client_output_buffer_limit.replica.hard_bytes, 1024);
        assert_eq!(limits.client_output_buffer_limit.pubsub.soft_seconds, 60);
    }

    #[test]
    fn wrong_lines_are_named() {
        refused(
            "port 0\n\n# c\n  maxmemory   abc  \n",
            4,
            "maxmemory   abc",
            "argument must be a memory value",
        );
        refused("port 0\nmaxmemory 1 2\n", 2, "maxmemory 1 2", "wrong number of arguments");
        refused("maxmemory", 1, "maxmemory", "wrong number of arguments");
        refused("zzz 1", 1, "zzz 1", BAD);
        refused("\"\" 1", 1, "\"\" 1", BAD);
        refused("zzz \"a", 1, "zzz \"a", "Unbalanced quotes in configuration line");
        refused("port 65536", 1, "port 65536", "argument must be between 0 and 65535 inclusive");
        refused("activedefrag maybe", 1, "activedefrag maybe", "argument must be 'yes' or 'no'");
        refused("dir /no/such/place", 1, "dir /no/such/place", "No such file or directory");
        refused("threads 257", 1, "threads 257", "argument must be between 0 and 256 inclusive");
        refused("include", 1, "include", BAD);
        refused("user", 1, "user", BAD);
        refused(
            "sentinel monitor a\nSENTINEL parallel-syncs a 1\n",
            1,
            "sentinel monitor a",
            "sentinel directive while not in sentinel mode. Evenkeel has no sentinel mode: use this file \
             with the Sentinel of Redis or Valkey (redis-sentinel, valkey-sentinel), which can monitor \
             Evenkeel servers",
        );
    }

    #[test]
    fn renaming_is_checked_against_the_names_so_far() {
        let renamed = load("rename-command GET fetch\nrename-command SET get\nrename-command fetch \"\"")
            .expect("right");
        assert_eq!(renamed.rename_command.len(), 3);
        let same = load("rename-command get GET\nrename-command GET get").expect("right");
        assert_eq!(same.rename_command.len(), 2);
        refused("rename-command NO x", 1, "rename-command NO x", "No such command in rename-command");
        refused("rename-command GET set", 1, "rename-command GET set", "Target command name already exists");
        let twice = "rename-command GET \"\"\nrename-command get x";
        refused(twice, 2, "rename-command get x", "No such command in rename-command");
    }

    #[test]
    fn includes_begin_at_dir_and_may_be_patterns() {
        let scratch = Scratch::new();
        scratch.write("b.part", "timeout 2\nmaxmemory 2\n");
        scratch.write("a.part", "timeout 1\n");
        scratch.write("wrong", "\nport x\n");
        let dir = scratch.path.display();
        let settings = load(&format!("dir {dir}\ninclude *.part\ninclude none*\n")).expect("right");
        assert_eq!((settings.timeout, settings.maxmemory), (2, 2));

        let missing = load(&format!("include {dir}/missing")).map(|_| ()).expect_err("no such file");
        assert_eq!(
            missing,
            format!("Fatal error, can't open config file '{dir}/missing': No such file or directory")
        );
        let wrong = load(&format!("include {dir}/wrong")).map(|_| ()).expect_err("a wrong line inside");
        assert!(wrong.contains(&format!("at line 2 of {dir}/wrong\n>>> 'port x'\n")), "{wrong}");
    }

    #[test]
    fn relative_paths_begin_where_the_server_is_started_and_then_at_dir() {
        let scratch = Scratch::new();
        scratch.write("a.part", "timeout 1\ndir in[ner\ninclude b.part\n");
        scratch.write("in[ner/b.part", "maxmemory 2\n");
        scratch.write("in[ner/most/c.part", "hz 9\n");
        let mut loader = Loader::new(USER_LINES, None, &scratch.path);
        let text = b"include a.part\ndir most\ninclude *.part\n";
        loader.text(text, |line| Place::Stdin { line });
        assert!(loader.mistakes.is_empty(), "{:?}", loader.mistakes);
        let settings = loader.settings;
        assert_eq!((settings.timeout, settings.maxmemory, settings.hz), (1, 2, 9));
        assert_eq!(settings.dir, scratch.path.join("in[ner/most"));
    }

    /// The form in which the command line and a word in quotes arrive.
    #[test]
    fn the_quotes_within_a_lone_word_of_a_list_are_undone() {
        for (line, name, value) in [
            (r#"save "\"\"""#, "save", ""),
            (r#"save '"3600" "1"'"#, "save", "3600 1"),
            (r#"bind '"127.0.0.1" "-::1"'"#, "bind", "127.0.0.1 -::1"),
            (r#"latency-tracking-info-percentiles '""'"#, "latency-tracking-info-percentiles", ""),
            (r#"shutdown-on-sigterm '"now" "force"'"#, "shutdown-on-sigterm", "now force"),
            (r#"replicaof '"127.0.0.1" "1"'"#, "replicaof", "127.0.0.1 1"),
            (r#"oom-score-adj-values "'1' 2 3""#, "oom-score-adj-values", "1 2 3"),
        ] {
            assert_eq!(shown(&load(line).expect(line), name), value, "{line}");
        }
        for line in [r#"save '"3600 1"'"#, r#"save '"" ""'"#, r#"save '"'"#, r#"save "'\"\"'""#] {
            refused(line, 1, line, "Invalid save parameters");
        }
        let line = r#"client-output-buffer-limit '""'"#;
        refused(line, 1, line, "Wrong number of arguments in buffer limit configuration.");
    }

    #[test]
    fn a_user_is_defined_once_in_a_file() {
        let scratch = Scratch::new();
        let part = scratch.write("part", "user ann on\nuser bob off\n");
        let duplicate = "Error in user declaration 'ann': Duplicate user found. A user can only be defined \
                         once in config files";
        refused("user ann on\nuser ann off\n", 2, "user ann (redacted)", duplicate);
        let users = |text: &str| {
            let settings = load(text).expect("right");
            let words =
                settings.users.iter().map(|words| String::from_utf8_lossy(&words.join(&b' ')).into_owned());
            words.collect::<Vec<_>>()
        };
        let include = format!("include {}\n", part.display());
        assert_eq!(users(&format!("user ann off\n{include}")), ["ann on", "bob off"]);
        assert_eq!(users(&format!("{include}user ann off\n")), ["bob off", "ann off"]);
        assert_eq!(users(&format!("{include}{include}")), ["ann on", "bob off"]);
        refused(&format!("{include}user ann\nuser ann\n"), 3, "user ann", duplicate);

        let mut loader = Loader::new(USER_LINES, None, Path::new("/"));
        loader.text(format!("{include}user ann\n").as_bytes(), |line| Place::Stdin { line });
        assert_eq!(loader.notices, ["User 'ann' is defined in several files: the last definition is used"]);
    }

    #[test]
    fn a_file_that_includes_itself_comes_to_an_end() {
        let scratch = Scratch::new();
        let include = format!("include {}/self\n", scratch.path.display());
        for (times, mistakes) in [(1, 1), (2, MISTAKES_MAX)] {
            let path = scratch.write("self", &include.repeat(times));
            let mut loader = Loader::new(USER_LINES, None, Path::new("/"));
            loader.file(&path);
            assert_eq!(loader.mistakes.len(), mistakes);
            let error = loader.mistakes[0].to_string();
            assert!(error.ends_with("Include directives are nested too deeply"), "{error}");
        }
    }

    #[test]
    fn all_mistakes_are_listed_and_the_other_lines_hold() {
        let scratch = Scratch::new();
        scratch.write("part", "hz x\nhz 20\n");
        let dir = scratch.path.display();
        let text =
            format!("port x\nmaxmemry 1\ninclude {dir}/part\ninclude {dir}/none\ndir /none\ntimeout 3\n");
        let mut loader = Loader::new(USER_LINES, None, Path::new("/"));
        loader.text(text.as_bytes(), |line| Place::Stdin { line });
        assert_eq!((loader.settings.hz, loader.settings.timeout), (20, 3));
        assert!(loader.lacks_dir);
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "\n*** FATAL CONFIG FILE ERROR (Evenkeel {version}) ***\n\
             Reading the configuration file, at line 1 of the standard input\n>>> 'port x'\n\
             argument couldn't be parsed into an integer\n\
             Reading the configuration file, at line 2 of the standard input\n>>> 'maxmemry 1'\n\
             {BAD}. Did you mean 'maxmemory'?\n\
             Reading the configuration file, at line 1 of {dir}/part\n>>> 'hz x'\n\
             argument couldn't be parsed into an integer\n\
             Fatal error, can't open config file '{dir}/none': No such file or directory\n\
             Reading the configuration file, at line 5 of the standard input\n>>> 'dir /none'\n\
             No such file or directory"
        );
        assert_eq!(Mistakes(&loader.mistakes).to_string(), expected);
    }
}
