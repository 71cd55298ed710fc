//! The manual page of a program whose command line clap parses.
//!
//! Subcommands are sections of the same page. Options that most subcommands share are described once.

use clap::{Arg, Command};

use crate::roff::{Page, Span};

/// What a page says beside the options.
pub(crate) struct Text<'a> {
    pub(crate) description: &'static [&'static str],
    /// Exit codes and their meanings.
    pub(crate) exit: &'static [(&'static str, &'static str)],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) examples: &'a str,
    pub(crate) see_also: &'static str,
}

const PASSWORD: &[(&str, &str)] = &[("REDISCLI_AUTH", "Password, as for redis-cli.")];

pub(crate) const BENCH: Text<'_> = Text {
    description: &[
        "evenkeel-bench measures servers that speak the Redis protocol, memcached's or HTTP. load and fill \
         put load on a server that runs; the other commands are experiments, which start the servers that \
         they compare.",
    ],
    exit: &[
        ("0", "The measurement is complete."),
        ("1", "It failed, or compare found a metric that is worse."),
    ],
    environment: PASSWORD,
    examples: "evenkeel-bench load --port 6379 --clients 50 --pipeline 16",
    see_also: "evenkeel(1), evenkeel-doctor(1)",
};

pub(crate) const DOCTOR: Text<'_> = Text {
    description: &[
        "evenkeel-doctor finds the bottleneck of a server process, with evidence: of Evenkeel, Redis, \
         Valkey, or any other process in C, Rust, Go, Java or Python, without changing it. diagnose is the \
         command to begin with; the other commands answer a single question.",
        "As root it loads programs into the kernel (eBPF). Without these rights it uses perf events and \
         /proc, and says which evidence is missing.",
    ],
    exit: &[("0", "A report was made."), ("1", "There is none, and standard error has the reason.")],
    environment: PASSWORD,
    examples: "evenkeel-doctor diagnose --port 6379\n\
               evenkeel-doctor diagnose --name redis-server --html page.html",
    see_also: "evenkeel(1), evenkeel-bench(1), evenkeel-top(1)",
};

pub(crate) const TOP: Text<'_> = Text {
    description: &[
        "evenkeel top shows a running server of Evenkeel, Valkey or Redis in the terminal, and polls it \
         once per interval. The key ? lists all keys, and q ends it.",
    ],
    exit: &[("0", "The user ended it, or the frame is printed."), ("1", "The server cannot be polled.")],
    environment: &[
        ("REDISCLI_AUTH", "Password, as for redis-cli."),
        ("NO_COLOR", "Any value but an empty value switches colours off."),
    ],
    examples: "evenkeel top --port 6379\nevenkeel top --once",
    see_also: "evenkeel(1), evenkeel-doctor(1)",
};

pub(crate) fn page(command: &Command, text: &Text<'_>, date: &str) -> Page {
    let mut command = command.clone();
    command.build();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    // The line is read by whatis(1), and is not wrapped.
    let brief = about.split(':').next().unwrap_or_default();
    let mut page = Page::new(command.get_name(), 1, brief, date);
    page.heading("SYNOPSIS");
    page.verbatim(&usage(&command));
    page.heading("DESCRIPTION");
    text.description.iter().for_each(|paragraph| page.paragraph(paragraph));
    page.heading("OPTIONS");
    shown(&command).for_each(|arg| entry(&mut page, arg));
    if command.has_subcommands() {
        subcommands(&mut page, &command);
    }
    page.end(text);
    page
}

impl Page {
    /// The sections behind the options.
    pub(crate) fn end(&mut self, text: &Text<'_>) {
        for (heading, entries) in [("EXIT STATUS", text.exit), ("ENVIRONMENT", text.environment)] {
            if !entries.is_empty() {
                self.heading(heading);
                entries.iter().for_each(|(name, text)| self.entry(&[Span::Bold(name)], text));
            }
        }
        if !text.examples.is_empty() {
            self.heading("EXAMPLES");
            self.verbatim(text.examples);
        }
        self.heading("SEE ALSO");
        self.paragraph(text.see_also);
    }
}

fn subcommands(page: &mut Page, command: &Command) {
    let verbs: Vec<&Command> = command.get_subcommands().filter(|verb| verb.get_name() != "help").collect();
    let common: Vec<&Arg> = common(&verbs);
    page.heading("COMMANDS");
    for verb in &verbs {
        page.subheading(verb.get_name());
        page.paragraph(&verb.get_about().map(|about| format!("{about}.")).unwrap_or_default());
        page.verbatim(&usage(verb));
        let (shared, own): (Vec<&Arg>, Vec<&Arg>) =
            shown(verb).partition(|arg| common.iter().any(|other| is_same(arg, other)));
        own.into_iter().for_each(|arg| entry(page, arg));
        let names: Vec<String> = shared.into_iter().map(name).collect();
        if !names.is_empty() {
            page.paragraph(&format!("Common options: {}.", names.join(", ")));
        }
        if let Some(below) = verb.get_after_long_help().or(verb.get_after_help()) {
            page.verbatim(&below.to_string());
        }
    }
    if !common.is_empty() {
        page.heading("COMMON OPTIONS");
        common.into_iter().for_each(|arg| entry(page, arg));
    }
}

/// Returns the options that at least three commands share.
fn common<'a>(verbs: &[&'a Command]) -> Vec<&'a Arg> {
    let mut found: Vec<&Arg> = Vec::new();
    for arg in verbs.iter().flat_map(|verb| shown(verb)).filter(|arg| !arg.is_positional()) {
        let users = verbs.iter().filter(|verb| shown(verb).any(|other| is_same(arg, other))).count();
        if users >= 3 && !found.iter().any(|other| is_same(arg, other)) {
            found.push(arg);
        }
    }
    found
}

fn is_same(one: &Arg, other: &Arg) -> bool {
    let text = |arg: &Arg| (name(arg), help(arg));
    text(one) == text(other)
}

/// Returns the arguments that belong to a page: options of the whole program are in the first section only.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_top = !command.get_bin_name().is_some_and(|name| name.contains(' '))
        || command.get_name() == "evenkeel-top";
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .filter(move |arg| is_top || (!arg.is_global_set() && arg.get_id() != "help"))
}

fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    usage.trim_start_matches("Usage:").lines().map(|line| line.trim().to_owned() + "\n").collect()
}

/// The name of an option as a user types it, or of a positional argument.
fn name(arg: &Arg) -> String {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    long.or(short).unwrap_or_else(|| values(arg).join(" "))
}

fn values(arg: &Arg) -> Vec<String> {
    match arg.get_value_names() {
        Some(names) => names.iter().map(ToString::to_string).collect(),
        None => vec![arg.get_id().as_str().to_uppercase()],
    }
}

fn help(arg: &Arg) -> String {
    let mut text = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    if !arg.get_action().takes_values() {
        return finished(text);
    }
    let words: Vec<String> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !words.is_empty() {
        text = format!("{}; one of {}", text.trim_end_matches('.'), words.join(", "));
    }
    let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let (text, default) = (finished(text), default.join(" "));
    if default.is_empty() { text } else { format!("{text} Default: {default}.") }
}

fn finished(text: String) -> String {
    let text = text.trim().trim_start_matches("; ").to_owned();
    if text.is_empty() || text.ends_with(['.', ']']) { text } else { text + "." }
}

fn entry(page: &mut Page, arg: &Arg) {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let values = values(arg).join(" ");
    let mut tag = Vec::new();
    if let Some(short) = &short {
        tag.push(Span::Bold(short));
        if long.is_some() {
            tag.push(Span::Plain(", "));
        }
    }
    if let Some(long) = &long {
        tag.push(Span::Bold(long));
    }
    if tag.is_empty() {
        tag.push(Span::Italic(&values));
    } else if arg.get_action().takes_values() {
        tag.extend([Span::Plain(" "), Span::Italic(&values)]);
    }
    page.entry(&tag, &help(arg));
}
