//! `evenkeel check`: looks through an RDB file, an append-only file or a directory of them, says what is whole and what is
//! lost, and mends a torn end if asked to.
//!
//! It ends as redis-check-aof does: 0 if all is whole or has been mended, 1 otherwise; and before it cuts anything off it
//! asks, unless it is told not to. redis-server's command line is left as it is: `check` is a configuration file there,
//! and nothing but options may follow it, so `check FILE` has no other meaning. Where there is no such file, whatever follows
//! is meant for us.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use evenkeel_rdb::aof::check::{Cut, Report, check, name_of_log};
use evenkeel_rdb::aof::tail::{self, Tail};
use evenkeel_rdb::aof::{Directory, Error};

use crate::persist::aof::boot;
use crate::persist::lock::{self, What};
use evenkeel_config::cause;

pub(crate) mod redis;
mod text;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Look(Request),
    Help,
}

/// What is to be looked through, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    path: PathBuf,
    fix: bool,
    /// Do not ask.
    yes: bool,
    /// Go back to this moment, in seconds since 1970.
    moment: Option<i64>,
}

impl Request {
    /// `None`: the command line asks for something else. Without the program's name; `is_file` says whether there is a
    /// configuration file of this name.
    pub(crate) fn from(
        args: &[OsString],
        is_file: impl FnOnce(&OsString) -> bool,
    ) -> Option<Result<Wish, String>> {
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

    /// Something is to be done about what is found.
    fn wants_a_change(&self) -> bool {
        self.fix || self.moment.is_some()
    }

    fn parse(mut rest: &[OsString]) -> Result<Request, String> {
        let (mut path, mut fix, mut yes, mut moment) = (None, false, false, None);
        while let [word, behind @ ..] = rest {
            rest = behind;
            match word.as_bytes() {
                b"--fix" => fix = true,
                b"--yes" => yes = true,
                b"--truncate-to-timestamp" => {
                    let value = rest.first().and_then(|value| value.to_str()?.parse().ok());
                    moment = Some(value.ok_or("--truncate-to-timestamp requires a number of seconds")?);
                    rest = &rest[1..];
                }
                other if other.starts_with(b"-") => {
                    return Err(format!("unknown option '{}'", word.display()));
                }
                _ if path.is_some() => return Err("only one file or directory can be given".into()),
                _ => path = Some(PathBuf::from(word)),
            }
        }
        Ok(Request { path: path.ok_or("a file or directory is required")?, fix, yes, moment })
    }
}

const USAGE: &str = "\
Usage: evenkeel check FILE|DIR [--fix] [--yes] [--truncate-to-timestamp SECONDS]
Checks an RDB file, an append-only file, a manifest or an AOF directory, and reports intact and lost data.
  --fix                             restores data from the tail, and truncates a damaged end
  --truncate-to-timestamp SECONDS   truncates at a timestamp annotation, in seconds of Unix time
  --yes                             does not ask for confirmation";

/// Does what is asked, with standard input and output.
pub(crate) fn run(wish: Result<Wish, String>) -> ExitCode {
    let request = match wish {
        Ok(Wish::Look(request)) => request,
        Ok(Wish::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("evenkeel check: {reason}\n{USAGE}");
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

/// Looks a file or log through. If something is to be done about it (`wanted`), it gets what it lacks of its tail before, and where
/// that fails there is no report.
fn look(
    path: &Path,
    moment: Option<i64>,
    wanted: bool,
    out: &mut impl Write,
) -> std::io::Result<Option<Result<Report, Error>>> {
    let report = match check(path, moment) {
        Ok(report) if wanted => report,
        looked => return Ok(Some(looked)),
    };
    let Some(log) = log_of(&report, path) else { return Ok(Some(Ok(report))) };
    match tail::look(&log, boot()) {
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
    // Where something is wrong behind it, the tail says where that begins, until it is cut off.
    let is_whole = matches!(&checked, Ok(report) if report.is_whole());
    let removed = if is_whole { tail::restore(&log, boot()).map(drop) } else { Ok(()) };
    match removed {
        Ok(()) => Ok(Some(checked)),
        Err(error) => writeln!(out, "{error}").map(|()| None),
    }
}

/// Whether all is whole in the end.
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
        let tail = match tail::look(&log, boot()) {
            Ok(tail) => tail,
            Err(error) => {
                writeln!(out, "{error}")?;
                Tail::Nothing
            }
        };
        write!(out, "{}", text::tail(&tail))?;
        if matches!(tail, Tail::Lacks { .. }) {
            return Ok(false); // whatever else is wrong may be right then
        }
    }
    let cut = match request.moment {
        Some(_) => report.rewind(),
        None => report.mend(),
    };
    match cut {
        Err(hopeless) => {
            writeln!(out, "{}", text::hopeless(&hopeless))?;
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

/// Makes the cut, if that is wanted, or says what it would be.
fn settle(
    request: &Request,
    report: &Report,
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
    // Nothing is in a tail any more that would put back what is cut off.
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

/// The log that was looked through, or that a file is one of, which was looked through alone.
fn log_of(report: &Report, path: &Path) -> Option<Directory> {
    let file = std::path::absolute(report.manifest.as_deref().unwrap_or(path)).ok()?;
    let (folder, name) = (file.parent()?, name_of_log(file.file_name()?));
    Directory::open(folder.parent()?, folder.file_name()?, name).ok() // what is wrong with it has been told
}

/// As [`keep_servers_off`]. A file that lacks something of its tail is not what was looked through, and must not be cut.
fn ready_to_cut(report: &Report, cut: &Cut) -> std::io::Result<[Option<File>; 2]> {
    let locks = keep_servers_off(report, &cut.path)?;
    if let Some(log) = log_of(report, &cut.path) {
        // A part that was looked through alone may not be the last: what follows does not go on where the cut is.
        let is_it = |path: &Path| path.canonicalize().ok() == cut.path.canonicalize().ok();
        let parts = log.parts().unwrap_or_default();
        if parts.iter().any(|part| !part.last && is_it(&part.path)) {
            return Err(std::io::Error::other("the file is not the last in the manifest"));
        }
        let tail = tail::look(&log, boot()).map_err(|error| std::io::Error::other(error.to_string()))?;
        if matches!(tail, Tail::Lacks { .. }) {
            return Err(std::io::Error::other("the tail has data that the file lacks, run the check again"));
        }
    }
    Ok(locks)
}

/// As long as the value lives, no server has the log that a file belongs to. An error: one has it.
fn keep_servers_off(report: &Report, path: &Path) -> std::io::Result<[Option<File>; 2]> {
    let named_by = std::path::absolute(report.manifest.as_deref().unwrap_or(path))?;
    let (Some(folder), Some(file)) = (named_by.parent(), named_by.file_name()) else {
        return Ok([None, None]);
    };
    // Before there were folders, `dir` itself held the file.
    let beside = if report.manifest.is_none() { lock::keep_servers_off(folder, None)? } else { None };
    let (Some(dir), Some(name)) = (folder.parent(), folder.file_name()) else { return Ok([beside, None]) };
    let log = Path::new(name).join(name_of_log(file));
    Ok([beside, lock::keep_servers_off(dir, Some((What::Log, &log)))?])
}

#[cfg(test)]
mod tests;
