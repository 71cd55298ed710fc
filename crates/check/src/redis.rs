//! The same tool under the names redis-check-aof and redis-check-rdb: with their arguments, and the words
//! that operators' scripts search for.
//!
//! A file that is damaged in the middle, with whole commands behind, is handled as by `check --fix`: the
//! bytes to be cut off are reported before that is done. Lines are counted to the first incomplete command.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{look, ready_to_cut};
use evenkeel_config::cause;
use evenkeel_rdb::Reason;
use evenkeel_rdb::aof::PartKind;
use evenkeel_rdb::aof::check::{AofReport, Cut, CutRefusal, PartContent, PartReport};
use evenkeel_rdb::file::{self, Checksum, Header, Kind, Type};

/// The tool by whose name the program was called, and its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    Aof(Aof),
    Rdb(Rdb),
    /// The arguments are invalid.
    Usage(&'static str),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Aof {
    path: PathBuf,
    fix: bool,
    moment: Option<i64>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rdb {
    path: PathBuf,
    /// Show statistics in this format.
    stats: Option<StatsFormat>,
    /// The file that the statistics are written to.
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatsFormat {
    Table,
    Info,
    Csv,
}

/// Length of a file's header, behind which its version is known.
const HEADER: usize = 9;

const AOF_USAGE: &str =
    "Usage: redis-check-aof [--fix|--truncate-to-timestamp $timestamp] <file.manifest|file.aof>";
const RDB_USAGE: &str =
    "Usage: redis-check-rdb <rdb-file-name> [--format table|info|csv] [--stats] [--output <file>]";

impl Tool {
    /// Returns `None` if the program was called by another name.
    pub(crate) fn from(program: &OsStr, args: &[OsString]) -> Option<Tool> {
        match Path::new(program).file_name()?.to_str()? {
            "redis-check-aof" | "valkey-check-aof" => Some(Tool::aof(args).unwrap_or(Tool::Usage(AOF_USAGE))),
            "redis-check-rdb" | "valkey-check-rdb" => {
                Some(Rdb::parse(args).map_or(Tool::Usage(RDB_USAGE), Tool::Rdb))
            }
            _ => None,
        }
    }

    fn aof(args: &[OsString]) -> Option<Tool> {
        let (options, path) = match args {
            [path] => ((false, None), path),
            [option, path] if option == "--fix" => ((true, None), path),
            [option, seconds, path] if option == "--truncate-to-timestamp" => {
                ((false, Some(seconds.to_str()?.parse().ok()?)), path)
            }
            _ => return None,
        };
        Some(Tool::Aof(Aof { path: path.into(), fix: options.0, moment: options.1 }))
    }

    pub(crate) fn run(&self) -> ExitCode {
        let mut out = io::stdout().lock();
        let well = match self {
            Tool::Aof(aof) => aof.run(&mut io::stdin().lock(), &mut out),
            Tool::Rdb(rdb) => rdb.run(&mut out),
            Tool::Usage(text) => writeln!(out, "{text}").map(|()| false),
        };
        if well.unwrap_or(false) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Rdb {
    fn parse(args: &[OsString]) -> Option<Rdb> {
        let (path, mut rest) = args.split_first()?;
        let (mut shows, mut format, mut output) = (false, StatsFormat::Table, None);
        while let [option, behind @ ..] = rest {
            rest = behind;
            match (option.to_str()?, behind) {
                ("--stats", _) => shows = true,
                ("--format", [name, behind @ ..]) => {
                    format = match name.to_str()? {
                        "table" => StatsFormat::Table,
                        "info" => StatsFormat::Info,
                        "csv" => StatsFormat::Csv,
                        _ => return None,
                    };
                    rest = behind;
                }
                ("--output", [path, behind @ ..]) => {
                    output = Some(path.into());
                    rest = behind;
                }
                _ => return None,
            }
        }
        Some(Rdb { path: path.into(), stats: shows.then_some(format), output })
    }

    /// Runs the tool. Returns whether the file is intact.
    pub(super) fn run(&self, out: &mut impl Write) -> io::Result<bool> {
        let path = &self.path;
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) => {
                writeln!(out, "Cannot open file {}: {}", path.display(), cause(&error))?;
                return Ok(false);
            }
        };
        let len = file.metadata().map(|metadata| metadata.len()).ok();
        let report = file::check(file, len);
        say_snapshot(&report, report.failure.as_ref(), path, out)?;
        match (self.stats, &self.output) {
            (None, _) => {}
            (Some(format), None) => say_stats(&report, format, out)?,
            (Some(format), Some(output)) => match File::create(output) {
                Ok(mut output) => say_stats(&report, format, &mut output)?,
                Err(error) => {
                    writeln!(out, "Cannot open output file: '{}': {}", output.display(), cause(&error))?;
                    return Ok(false);
                }
            },
        }
        Ok(report.is_sound())
    }
}

const TYPES: [Type; 7] =
    [Type::String, Type::List, Type::Set, Type::SortedSet, Type::Hash, Type::Stream, Type::Array];

/// Returns a figure of a type as text.
type ShowStat = fn(&Kind) -> String;

/// Figures of the keys of a type in a database, with their names in the output of valkey-check-rdb.
#[rustfmt::skip]
const STATS: [(&str, ShowStat); 4] = [
    ("keys.total",        |kind| kind.keys.to_string()),
    ("expire_keys.total", |kind| kind.expiring.to_string()),
    ("elements.total",    |kind| kind.elements.to_string()),
    ("elements.num.avg",  |kind| format!("{:.2}", kind.elements as f64 / kind.keys.max(1) as f64)),
];

/// Shows the keys of each type, for the first database and each other that the file names.
fn say_stats(report: &file::FileReport, format: StatsFormat, out: &mut impl Write) -> io::Result<()> {
    let databases: BTreeSet<u64> = report.databases.keys().copied().chain([0]).collect();
    for database in databases {
        let kinds = TYPES.map(|of| (of, report.kinds.get(&(database, of)).copied().unwrap_or_default()));
        if format != StatsFormat::Info {
            let names = TYPES.map(|of| of.name().to_owned());
            say_row(&format!("db.{database}.type.name"), &names, format, out)?;
        }
        for (name, figure) in STATS {
            match format {
                StatsFormat::Info => {
                    for (of, kind) in &kinds {
                        writeln!(out, "[info] db.{database}.type.{}.{name}:{}", of.name(), figure(kind))?;
                    }
                }
                _ => {
                    let row = kinds.map(|(_, kind)| figure(&kind));
                    say_row(&format!("db.{database}.{name}"), &row, format, out)?;
                }
            }
        }
    }
    Ok(())
}

fn say_row(name: &str, cells: &[String], format: StatsFormat, out: &mut impl Write) -> io::Result<()> {
    match format {
        StatsFormat::Csv => writeln!(out, "{name},{}", cells.join(",")),
        _ => {
            write!(out, "{name:<30}")?;
            cells.iter().try_for_each(|cell| write!(out, "\t{cell:<5}"))?;
            writeln!(out)
        }
    }
}

impl Aof {
    /// Runs the tool. Returns whether everything is intact in the end.
    pub(super) fn run(&self, input: &mut impl BufRead, out: &mut impl Write) -> io::Result<bool> {
        let wanted = self.fix || self.moment.is_some();
        let report = match look(&self.path, self.moment, wanted, out)? {
            None => return Ok(false),
            Some(Ok(report)) => report,
            Some(Err(error)) => {
                writeln!(out, "Cannot open file {}: {error}", self.path.display())?;
                return Ok(false);
            }
        };
        let is_single = report.manifest.is_none();
        writeln!(out, "Start checking {}", if is_single { "Old-Style AOF" } else { "Multi Part AOF" })?;
        let mut kind_before = None;
        for part in &report.parts {
            if !is_single && kind_before != Some(part.kind) {
                kind_before = Some(part.kind);
                match part.kind {
                    PartKind::Base => writeln!(out, "Start to check BASE AOF ({} format).", format_of(part))?,
                    _ => writeln!(out, "Start to check INCR files.")?,
                }
            }
            if !self.part(&report, part, input, out)? {
                return Ok(false);
            }
        }
        if !is_single {
            writeln!(out, "All AOF files and manifest are valid")?;
        }
        Ok(true)
    }

    fn part(
        &self,
        report: &AofReport,
        part: &PartReport,
        input: &mut impl BufRead,
        out: &mut impl Write,
    ) -> io::Result<bool> {
        let name = name_of(report, part);
        let content = match &part.content {
            Ok(content) => content,
            Err(error) => {
                writeln!(out, "Cannot open file {name}: {error}")?;
                return Ok(false);
            }
        };
        if content.lacks_snapshot {
            writeln!(out, "{}AOF {name} is empty, a snapshot is expected", label(report, part))?;
            return Ok(false);
        }
        if content.size == 0 {
            writeln!(out, "{}AOF {name} is empty", label(report, part))?;
            return Ok(true);
        }
        if let Some(snapshot) = &content.snapshot {
            // Bytes behind a preamble are not an error of it.
            let trailing = |failure: &&file::Failure| failure.error.reason == Reason::Trailing;
            let failure = snapshot.failure.as_ref().filter(|failure| !trailing(failure));
            say_snapshot(snapshot, failure, &part.path, out)?;
            if content.whole == 0 {
                writeln!(out, "RDB preamble of AOF file is not sane, aborting.")?;
                return Ok(false);
            }
            writeln!(out, "RDB preamble is OK, proceeding with AOF tail...")?;
        }
        match self.moment {
            Some(moment) => self.rewind(report, part, content, moment, out),
            None => self.repair(report, part, content, input, out),
        }
    }

    fn rewind(
        &self,
        report: &AofReport,
        part: &PartReport,
        content: &PartContent,
        moment: i64,
        out: &mut impl Write,
    ) -> io::Result<bool> {
        let name = name_of(report, part);
        let alone = AofReport { manifest: None, parts: Vec::new(), strays: Vec::new() };
        match (content.later, content.illegible) {
            (_, Some(at)) => writeln!(out, "Invalid timestamp annotation in AOF {name} at offset {at}")?,
            (Some(0), _) => {
                writeln!(out, "AOF {name} has nothing before timestamp {moment}, aborting...")?;
            }
            (Some(keep), _) if !part.last => writeln!(
                out,
                "Failed to truncate AOF {name} to timestamp {moment} to offset {keep} because it is not the \
                 last file.\nIf you insist, please delete all files after this file according to the \
                 manifest file and delete the corresponding records in manifest file manually. Then re-run \
                 redis-check-aof."
            )?,
            (Some(keep), _) => {
                let cut = Cut { path: part.path.clone(), size: content.size, keep };
                let kept_off = ready_to_cut(report, &cut).map_err(|error| cause(&error));
                let made = kept_off.and_then(|_locks| cut.make().map_err(|error| error.to_string()));
                if let Err(error) = made {
                    writeln!(out, "Failed to truncate AOF {name}: {error}")?;
                    return Ok(false);
                }
                writeln!(out, "Successfully truncated AOF {name} to timestamp {moment}")?;
                return Ok(true);
            }
            (None, _) if !content.is_whole() => {
                return self.repair(&alone, part, content, &mut io::empty(), out);
            }
            (None, _) => {
                writeln!(out, "Truncate nothing in AOF {name} to timestamp {moment}")?;
                writeln!(out, "{}AOF {name} is valid", label(report, part))?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn repair(
        &self,
        report: &AofReport,
        part: &PartReport,
        content: &PartContent,
        input: &mut impl BufRead,
        out: &mut impl Write,
    ) -> io::Result<bool> {
        let name = name_of(report, part);
        if let Some(fault) = &content.fault {
            writeln!(out, "AOF {name} format error: {fault}")?;
        }
        let (size, whole) = (content.size, content.whole);
        let (line, lost) = (content.lines + 1, size - whole);
        writeln!(
            out,
            "AOF analyzed: filename={name}, size={size}, ok_up_to={whole}, ok_up_to_line={line}, diff={lost}"
        )?;
        if content.is_whole() {
            writeln!(out, "{}AOF {name} is valid", label(report, part))?;
            return Ok(true);
        }
        if !self.fix {
            writeln!(out, "AOF {name} is not valid. Use the --fix option to try fixing it.")?;
            return Ok(false);
        }
        match report.repair_cut() {
            Ok(Some(cut)) if cut.path == part.path => match ready_to_cut(report, &cut) {
                Ok(_locks) => shrink(&name, content, &cut, input, out),
                Err(error) => {
                    writeln!(out, "Failed to truncate AOF {name}: {}", cause(&error)).map(|()| false)
                }
            },
            Err(CutRefusal::NotLast(_)) => {
                writeln!(out, "Failed to truncate AOF {name} because it is not the last file")?;
                Ok(false)
            }
            _ => {
                writeln!(out, "Failed to truncate AOF {name}: truncation cannot repair it")?;
                Ok(false)
            }
        }
    }
}

fn shrink(
    name: &str,
    content: &PartContent,
    cut: &Cut,
    input: &mut impl BufRead,
    out: &mut impl Write,
) -> io::Result<bool> {
    let (size, lost, keep) = (cut.size, cut.lost(), cut.keep);
    writeln!(out, "This will shrink the AOF {name} from {size} bytes, with {lost} bytes, to {keep} bytes")?;
    if content.lost.commands > 0 {
        writeln!(out, "{} commands are still recognizable in the lost data", content.lost.commands)?;
    }
    write!(out, "Continue? [y/N]: ")?;
    out.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    if !matches!(answer.bytes().next(), Some(b'y' | b'Y')) {
        writeln!(out, "Aborting...")?;
        return Ok(false);
    }
    match cut.make() {
        Ok(()) => writeln!(out, "Successfully truncated AOF {name}").map(|()| true),
        Err(error) => writeln!(out, "Failed to truncate AOF {name}: {error}").map(|()| false),
    }
}

fn name_of(report: &AofReport, part: &PartReport) -> String {
    match (&report.manifest, part.path.file_name()) {
        (Some(_), Some(name)) => name.display().to_string(),
        _ => part.path.display().to_string(),
    }
}

fn label(report: &AofReport, part: &PartReport) -> &'static str {
    match (&report.manifest, part.kind) {
        (None, _) => "",
        (_, PartKind::Base) => "BASE ",
        _ => "INCR ",
    }
}

fn format_of(part: &PartReport) -> &'static str {
    let is_snapshot =
        part.content.as_ref().is_ok_and(|content| content.snapshot.is_some() || content.lacks_snapshot);
    if is_snapshot { "RDB" } else { "RESP" }
}

fn say_snapshot(
    report: &file::FileReport,
    failure: Option<&file::Failure>,
    path: &Path,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "[offset 0] Checking RDB file {}", path.display())?;
    if let Some(header) = report.header.filter(|header| !header.is_known()) {
        let age = if header.is_of_valkey() { "Future" } else { "Foreign" };
        writeln!(out, "[offset {HEADER}] {age} RDB version {} detected", header.version)?;
    }
    for (name, value) in &report.aux {
        writeln!(out, "[info] AUX FIELD {} = '{}'", name.escape_ascii(), value.escape_ascii())?;
    }
    let end = report.readable;
    if report.checksum == Some(Checksum::Right) {
        writeln!(out, "[offset {end}] Checksum OK")?;
    }
    match failure {
        None if report.header.is_some_and(|header| !header.is_known()) => writeln!(
            out,
            "[offset {end}] \\o/ RDB looks OK, but loading requires config 'rdb-version-check relaxed'"
        )?,
        None => writeln!(out, "[offset {end}] \\o/ RDB looks OK! \\o/")?,
        Some(failure) => {
            let reason = described(failure, report.header);
            writeln!(out, "--- RDB ERROR DETECTED ---\n[offset {}] {reason}", failure.error.at)?;
            if let Some(place) = &failure.place {
                writeln!(out, "[additional info] Reading key '{}'", place.key.escape_ascii())?;
            }
        }
    }
    let expiring: u64 = report.databases.values().map(|database| database.expiring).sum();
    writeln!(out, "[info] {} keys read", report.keys())?;
    writeln!(out, "[info] {expiring} expires")?;
    writeln!(out, "[info] {} functions", report.functions.len())
}

/// Describes a fault. An unknown type in a file of an unknown version is no damage.
fn described(failure: &file::Failure, header: Option<Header>) -> String {
    match (failure.error.reason, header.filter(|header| !header.is_known())) {
        (
            Reason::UnknownOpcode(number)
            | Reason::UnknownType(number)
            | Reason::ForeignOpcode { opcode: number, .. },
            Some(header),
        ) => {
            let age = if header.is_of_valkey() { "future" } else { "foreign" };
            format!("Unknown object type {number} in RDB file with {age} version {}", header.version)
        }
        _ => failure.to_string(),
    }
}
