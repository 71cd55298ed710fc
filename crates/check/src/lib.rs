//! `evenkeel check`: checks an RDB file, an append-only file or a directory of such files, reports intact and
//! lost parts, and repairs a torn end on request.
//!
//! It exits like redis-check-aof: 0 if everything is intact or repaired, 1 otherwise. Before it cuts bytes
//! off, it asks, unless `--yes` is given. redis-server's command line keeps its meaning: there `check` is a
//! configuration file, and only options may follow it, so `check FILE` has no other meaning. If no file of
//! that name exists, all arguments are for this tool.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use evenkeel_rdb::aof::check::{AofReport, Cut, aof_name, check};
use evenkeel_rdb::aof::tail::{self, Tail};
use evenkeel_rdb::aof::{Directory, Error};

use evenkeel_config::cause;
use evenkeel_persist::aof::boot;
use evenkeel_persist::lock::{self, What};

mod redis;
mod text;

/// Runs the tool that the command line asks for: `evenkeel check`, or the tool of Redis by whose name the
/// program was called. `args` are the arguments behind the program's name. Returns `None` if they are for the
/// server.
pub fn run(program: &OsStr, args: &[OsString]) -> Option<ExitCode> {
    if let Some(tool) = redis::Tool::from(program, args) {
        return Some(tool.run());
    }
    let is_file = |name: &OsString| Path::new(name).exists();
    Request::from(args, is_file).map(run_check)
}

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Look(Request),
    Help,
}

/// A file to check, and the requested changes.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    path: PathBuf,
    fix: bool,
    /// Do not ask.
    yes: bool,
    /// Rewind to this moment, in seconds since 1970.
    moment: Option<i64>,
}

impl Request {
    /// Parses the arguments after the program's name; `is_file`: whether a configuration file of this name
    /// exists. Returns `None` if the command line is not for this tool.
    fn from(args: &[OsString], is_file: impl FnOnce(&OsString) -> bool) -> Option<Result<Wish, String>> {
        let (first, rest) = args.split_first()?;
        if first != "check" {
            return None;
        }
        let wish = match rest {
            [help] if help == "--help" || help == "-h" => Ok(Wish::Help),
            _ => Request::parse(rest).map(Wish::Look),
        };
        let is_meant = matches!(wish, Ok(Wish::Look(_))) || !is_file(first);
        is_meant.then_some(wish)
    }

    /// Whether a change is requested.
    fn wants_a_change(&self) -> bool {
        self.fix || self.moment.is_some()
    }

    fn parse(mut rest: &[OsString]) -> Result<Request, String> {
        let mut request = Request { path: PathBuf::new(), fix: false, yes: false, moment: None };
        while let [word, behind @ ..] = rest {
            rest = behind;
            if let Some(option) = OPTIONS.iter().find(|option| word == option.name) {
                let value;
                (value, rest) = match option.value {
                    Some(_) => (rest.first(), rest.get(1..).unwrap_or_default()),
                    None => (None, rest),
                };
                (option.apply)(&mut request, value)?;
            } else if word.as_bytes().starts_with(b"-") {
                return Err(format!("unknown option '{}'", word.display()));
            } else if !request.path.as_os_str().is_empty() {
                return Err("only one file or directory can be given".into());
            } else {
                request.path = PathBuf::from(word);
            }
        }
        if request.path.as_os_str().is_empty() {
            return Err("a file or directory is required".into());
        }
        Ok(request)
    }
}

/// An option of `evenkeel check`.
#[derive(Debug)]
pub struct CheckOption {
    pub name: &'static str,
    /// Name of its value, if it takes a value.
    pub value: Option<&'static str>,
    pub help: &'static str,
    apply: fn(&mut Request, Option<&OsString>) -> Result<(), String>,
}

pub const OPTIONS: &[CheckOption] = &[
    CheckOption {
        name: "--fix",
        value: None,
        help: "restores data from the tail, and truncates a damaged end",
        apply: |request, _| {
            request.fix = true;
            Ok(())
        },
    },
    CheckOption {
        name: "--truncate-to-timestamp",
        value: Some("SECONDS"),
        help: "truncates at a timestamp annotation, in seconds of Unix time",
        apply: |request, value| {
            let seconds = value.and_then(|value| value.to_str()?.parse().ok());
            request.moment = Some(seconds.ok_or("--truncate-to-timestamp requires a number of seconds")?);
            Ok(())
        },
    },
    CheckOption {
        name: "--yes",
        value: None,
        help: "does not ask for confirmation",
        apply: |request, _| {
            request.yes = true;
            Ok(())
        },
    },
];

/// What the tool does, in a sentence.
pub const ABOUT: &str = "Checks an RDB file, an append-only file, a manifest or an AOF directory, \
                         and reports intact and lost data.";

fn usage() -> String {
    let line = |option: &CheckOption| {
        let words = format!("{} {}", option.name, option.value.unwrap_or_default());
        format!("\n  {words:<32}  {}", option.help)
    };
    let lines: String = OPTIONS.iter().map(line).collect();
    format!(
        "Usage: evenkeel check FILE|DIR [--fix] [--yes] [--truncate-to-timestamp SECONDS]\n{ABOUT}{lines}"
    )
}

/// Runs a request, with standard input and output.
fn run_check(wish: Result<Wish, String>) -> ExitCode {
    let request = match wish {
        Ok(Wish::Look(request)) => request,
        Ok(Wish::Help) => {
            println!("{}", usage());
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("evenkeel check: {reason}\n{}", usage());
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout().lock();
    match act(&request, &mut std::io::stdin().lock(), &mut out) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("Cannot write the report: {}", cause(&error));
            ExitCode::FAILURE
        }
    }
}

/// Checks a file or an append-only directory. With `wanted` changes, first restores missing bytes from its
/// tail; if that fails there is no report.
fn look(
    path: &Path,
    moment: Option<i64>,
    wanted: bool,
    out: &mut impl Write,
) -> std::io::Result<Option<Result<AofReport, Error>>> {
    let report = match check(path, moment) {
        Ok(report) if wanted => report,
        looked => return Ok(Some(looked)),
    };
    let Some(log) = log_of(&report, path) else { return Ok(Some(Ok(report))) };
    match tail::inspect(&log, boot()) {
        Ok(Tail::Nothing | Tail::Whole { .. }) => return Ok(Some(Ok(report))),
        Ok(_) => {}
        Err(error) => return writeln!(out, "{error}").map(|()| None),
    }
    let completed = keep_servers_off(&report, path)
        .map_err(|error| cause(&error))
        .and_then(|locks| Ok((locks, tail::complete(&log, boot()).map_err(|error| error.to_string())?)));
    let (_kept_off, restored) = match completed {
        Ok(completed) => completed,
        Err(error) => return writeln!(out, "Cannot restore the tail: {error}.").map(|()| None),
    };
    write!(out, "{}", text::restored(&restored))?;
    let checked = check(path, moment);
    // If damaged bytes follow, the tail says where they begin, until they are cut off.
    let is_whole = matches!(&checked, Ok(report) if report.is_whole());
    let removed = if is_whole { tail::restore(&log, boot()).map(drop) } else { Ok(()) };
    match removed {
        Ok(()) => Ok(Some(checked)),
        Err(error) => writeln!(out, "{error}").map(|()| None),
    }
}

/// Runs a request. Returns whether everything is intact in the end.
fn act(request: &Request, input: &mut impl BufRead, out: &mut impl Write) -> std::io::Result<bool> {
    let wanted = request.wants_a_change();
    let report = match look(&request.path, request.moment, wanted, out)? {
        None => return Ok(false),
        Some(Ok(report)) => report,
        Some(Err(error)) => {
            writeln!(out, "{error}")?;
            return Ok(false);
        }
    };
    out.write_all(text::report(&report).as_bytes())?;
    if let Some(log) = log_of(&report, &request.path).filter(|_| !wanted) {
        let tail = match tail::inspect(&log, boot()) {
            Ok(tail) => tail,
            Err(error) => {
                writeln!(out, "{error}")?;
                Tail::Nothing
            }
        };
        write!(out, "{}", text::tail(&tail))?;
        if matches!(tail, Tail::Lacks { .. }) {
            return Ok(false); // a change may resolve the remaining errors
        }
    }
    let cut = match request.moment {
        Some(_) => report.rewind_cut(),
        None => report.repair_cut(),
    };
    match cut {
        Err(refusal) => {
            writeln!(out, "{}", text::refusal(&refusal))?;
            Ok(false)
        }
        Ok(None) => {
            let nothing = request.moment.is_some();
            writeln!(
                out,
                "{}",
                if nothing { "No data is later than the timestamp." } else { "No errors found." }
            )?;
            Ok(true)
        }
        Ok(Some(cut)) => settle(request, &report, &cut, input, out),
    }
}

/// Makes the cut if it is requested; otherwise describes it.
fn settle(
    request: &Request,
    report: &AofReport,
    cut: &Cut,
    input: &mut impl BufRead,
    out: &mut impl Write,
) -> std::io::Result<bool> {
    let wanted = request.wants_a_change();
    let lead = if wanted { "This will truncate" } else { "--fix would truncate" };
    writeln!(out, "{lead} {}", text::cut(report, cut))?;
    if !wanted {
        return Ok(false);
    }
    let _kept_off = match ready_to_cut(report, cut) {
        Ok(locks) => locks,
        Err(error) => {
            writeln!(out, "Not truncated: {}.", cause(&error))?;
            return Ok(false);
        }
    };
    if !request.yes {
        write!(out, "Continue? [y/N]: ")?;
        out.flush()?;
        let mut answer = String::new();
        input.read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            writeln!(out, "Aborted, nothing was truncated.")?;
            return Ok(false);
        }
    }
    // No tail may remain that would restore the bytes that are cut off.
    let removed = log_of(report, &cut.path).map_or(Ok(()), |log| tail::restore(&log, boot()).map(drop));
    match removed.and_then(|()| cut.make()) {
        Ok(()) => {
            writeln!(out, "Done: {} was truncated to {} bytes.", cut.path.display(), cut.keep)?;
            Ok(true)
        }
        Err(error) => {
            writeln!(out, "{error}")?;
            Ok(false)
        }
    }
}

/// Returns the append-only directory that was checked, or to which a single checked file belongs.
fn log_of(report: &AofReport, path: &Path) -> Option<Directory> {
    let file = std::path::absolute(report.manifest.as_deref().unwrap_or(path)).ok()?;
    let (folder, name) = (file.parent()?, aof_name(file.file_name()?));
    Directory::open(folder.parent()?, folder.file_name()?, name).ok() // its errors have been reported
}

/// Like [`keep_servers_off`]. A file that lacks bytes from its tail differs from the checked file, and must
/// not be cut.
fn ready_to_cut(report: &AofReport, cut: &Cut) -> std::io::Result<[Option<File>; 2]> {
    let locks = keep_servers_off(report, &cut.path)?;
    if let Some(log) = log_of(report, &cut.path) {
        // A part that was checked alone may not be the last: later parts do not continue at the cut.
        let is_it = |path: &Path| path.canonicalize().ok() == cut.path.canonicalize().ok();
        let parts = log.parts().unwrap_or_default();
        if parts.iter().any(|part| !part.last && is_it(&part.path)) {
            return Err(std::io::Error::other("the file is not the last in the manifest"));
        }
        let tail = tail::inspect(&log, boot()).map_err(|error| std::io::Error::other(error.to_string()))?;
        if matches!(tail, Tail::Lacks { .. }) {
            return Err(std::io::Error::other("the tail has data that the file lacks, run the check again"));
        }
    }
    Ok(locks)
}

/// Locks the append-only directory of a file against servers while the value lives. Returns an error if a
/// server has it.
fn keep_servers_off(report: &AofReport, path: &Path) -> std::io::Result<[Option<File>; 2]> {
    let named_by = std::path::absolute(report.manifest.as_deref().unwrap_or(path))?;
    let (Some(folder), Some(file)) = (named_by.parent(), named_by.file_name()) else {
        return Ok([None, None]);
    };
    // In old versions `dir` itself contained the file.
    let beside = if report.manifest.is_none() { lock::keep_servers_off(folder, None)? } else { None };
    let (Some(dir), Some(name)) = (folder.parent(), folder.file_name()) else { return Ok([beside, None]) };
    let log = Path::new(name).join(aof_name(file));
    Ok([beside, lock::keep_servers_off(dir, Some((What::Log, &log)))?])
}

#[cfg(test)]
mod tests;
