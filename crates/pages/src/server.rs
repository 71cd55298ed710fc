//! The server's command line: evenkeel(1), evenkeel-check(1), and a command of clap for completions.
//!
//! clap does not parse this command line, since it is redis-server's. Its tables are
//! `evenkeel_config::FLAGS`, `evenkeel_check::OPTIONS` and the directives.

use clap::{Arg, ArgAction, Command, ValueHint};
use evenkeel_check::OPTIONS;
use evenkeel_config::{DirectiveReference, FLAGS, USAGE, reference};

use crate::manual::Text;
use crate::roff::{Page, Span};

const ABOUT: &str = "In-memory data store for Redis clients that uses all cores";

/// Directives whose values are paths, by the end of the name.
const PATHS: &[(&str, ValueHint)] = &[
    ("dir", ValueHint::DirPath),
    ("file", ValueHint::FilePath),
    ("include", ValueHint::FilePath),
    ("unixsocket", ValueHint::FilePath),
];

pub(crate) fn page(date: &str) -> Page {
    let mut page = Page::new("evenkeel", 1, ABOUT, date);
    let (synopsis, examples) = USAGE.split_once("\n\n").unwrap_or((USAGE, ""));
    let examples: String = examples.lines().skip(1).map(|line| line.trim().to_owned() + "\n").collect();
    page.heading("SYNOPSIS");
    page.verbatim(&synopsis.replacen("Usage: ", "", 1).replace("\n       ", "\n"));
    page.heading("DESCRIPTION");
    page.paragraph(
        "Evenkeel serves clients of Redis and Valkey, with their commands, files and replication. It reads \
         redis.conf, and its command line is that of redis-server. It stays in the foreground, also with \
         daemonize yes.",
    );
    page.paragraph(
        "Called as redis-check-aof or redis-check-rdb, it is that tool. Called as redis-sentinel, or with \
         --sentinel, it exits with a message: the Sentinel of Redis or Valkey monitors Evenkeel servers.",
    );
    page.heading("OPTIONS");
    for flag in FLAGS {
        page.entry(&[Span::Bold(&flag.names.join(", "))], &format!("{}.", flag.help));
    }
    page.entry(
        &[Span::Bold("--"), Span::Italic("directive value"), Span::Plain(" ...")],
        "Each directive of evenkeel.conf(5) is an option. Options override the file.",
    );
    page.entry(&[Span::Bold("-")], "Reads further configuration from the standard input.");
    page.heading("SIGNALS");
    page.entry(
        &[Span::Bold("SIGTERM, SIGINT")],
        "End the server, after a snapshot if there are save points (directives shutdown-on-sigterm and \
         shutdown-on-sigint).",
    );
    page.entry(&[Span::Bold("SIGALRM")], "Writes the stacks of all threads into the server log.");
    page.heading("FILES");
    for (path, text) in [
        ("/etc/evenkeel/evenkeel.conf", "Configuration of the service."),
        ("/var/lib/evenkeel", "Data of the service."),
        ("/var/log/evenkeel/evenkeel.log", "Server log of the service."),
    ] {
        page.entry(&[Span::Italic(path)], text);
    }
    page.end(&Text {
        description: &[],
        exit: &[
            ("0", "The server was shut down, or the configuration is valid."),
            ("1", "It could not start or stop, or the configuration has errors."),
            ("70", "A defect of the program ended it. The server log has the place."),
        ],
        environment: &[],
        examples: &examples,
        see_also: "evenkeel.conf(5), evenkeel-check(1), evenkeel-top(1), evenkeel-doctor(1), \
        evenkeel-bench(1), redis-cli(1)",
    });
    page
}

pub(crate) fn check_page(date: &str) -> Page {
    let mut page = Page::new("evenkeel-check", 1, "Checks and repairs files of data", date);
    page.heading("SYNOPSIS");
    let options = OPTIONS.iter().map(|option| match option.value {
        Some(value) => format!(" [{} {value}]", option.name),
        None => format!(" [{}]", option.name),
    });
    page.verbatim(&format!("evenkeel check FILE|DIR{}", options.collect::<String>()));
    page.heading("DESCRIPTION");
    page.paragraph(evenkeel_check::ABOUT);
    page.paragraph(
        "It changes nothing without an option that says so, and asks first, unless --yes is given.",
    );
    page.heading("OPTIONS");
    for option in OPTIONS {
        let value = option.value.unwrap_or_default();
        let tag = [Span::Bold(option.name), Span::Plain(" "), Span::Italic(value)];
        page.entry(if value.is_empty() { &tag[..1] } else { &tag }, &capital(option.help));
    }
    page.end(&Text {
        description: &[],
        exit: &[
            ("0", "Everything is intact or repaired."),
            ("1", "Something is damaged, or cannot be read."),
        ],
        environment: &[],
        examples: "evenkeel check /var/lib/evenkeel/appendonlydir",
        see_also: "evenkeel(1)",
    });
    page
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", chars.as_str())
}

/// Returns the command line as a command of clap, for completions only.
pub(crate) fn command() -> Command {
    let flags = FLAGS.iter().map(|flag| {
        let mut arg = Arg::new(flag.names[0]).help(flag.help).action(ArgAction::SetTrue);
        for name in flag.names {
            arg = match name.strip_prefix("--") {
                Some(long) => arg.long(long),
                None => arg.short(name.chars().nth(1).expect("a letter behind the dash")),
            };
        }
        arg
    });
    let check = Command::new("check").about(evenkeel_check::ABOUT).disable_help_flag(true).args(
        OPTIONS.iter().map(|option| {
            let action = if option.value.is_some() { ArgAction::Set } else { ArgAction::SetTrue };
            let name = option.name.trim_start_matches('-');
            Arg::new(name).long(name).help(option.help).action(action)
        }),
    );
    Command::new("evenkeel")
        .about(ABOUT)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .arg(Arg::new("file").help("Configuration file").value_hint(ValueHint::FilePath))
        .args(flags)
        .args(reference().map(directive))
        .subcommand(check.arg(Arg::new("path").value_hint(ValueHint::AnyPath)))
        .subcommand(evenkeel_top::command().name("top").bin_name("evenkeel top"))
}

fn directive(directive: DirectiveReference) -> Arg {
    let arg = Arg::new(directive.name).long(directive.name).help(directive.summary).value_name("VALUE");
    let arg = if directive.alias.is_empty() { arg } else { arg.visible_alias(directive.alias) };
    let arg = arg.hide(directive.is_hidden);
    if !directive.words.is_empty() {
        return arg.value_parser(directive.words.to_vec());
    }
    let hint = PATHS.iter().find(|(end, _)| directive.name.ends_with(end)).map(|(_, hint)| *hint);
    arg.value_hint(hint.unwrap_or_default())
}
