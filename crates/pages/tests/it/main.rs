//! The pages and completions as their readers see them: man, mandoc and the shells.
//!
//! A test whose tool is missing prints `SKIPPED` and passes; on CI it fails (`scripts/setup package`).

use std::path::Path;
use std::process::Command;

use evenkeel_pages::{SHELLS, pages, write};
use evenkeel_testkit::scratch::Scratch;

const DATE: &str = "2026-01-02";

fn written() -> Scratch {
    let scratch = Scratch::new();
    write(&scratch.path, DATE).expect("written");
    scratch
}

/// Runs a tool. Returns whether it succeeds, and its two outputs, or `None` if it is missing.
fn run(tool: &str, args: &[&str], dir: &Path) -> Option<(bool, String, String)> {
    let mut command = Command::new(tool);
    command.args(args).current_dir(dir).env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8");
    let Ok(output) = command.output() else {
        assert!(std::env::var_os("CI").is_none(), "no {tool}; CI must have one");
        eprintln!("SKIPPED: no {tool} on this machine");
        return None;
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((output.status.success(), text(&output.stdout), text(&output.stderr)))
}

fn text_of(name: &str) -> String {
    let page = pages(DATE).into_iter().find(|page| page.name == name).expect(name);
    String::from_utf8(page.text).expect("text")
}

#[test]
fn each_directive_is_in_the_page_of_the_configuration() {
    let page = text_of("evenkeel.conf.5");
    for directive in evenkeel_config::reference() {
        for name in [directive.name, directive.alias].into_iter().filter(|name| !name.is_empty()) {
            let tag = format!("\\fB{}\\fR", name.replace('-', "\\-"));
            let is_tag = |line: &str| {
                line == tag || line.starts_with(&format!("{tag}, ")) || line.ends_with(&format!(", {tag}"))
            };
            assert_eq!(page.lines().filter(|line| is_tag(line)).count(), 1, "{name}");
        }
    }
}

#[test]
fn each_option_is_in_the_page_of_its_program() {
    for (name, mut command) in [
        ("evenkeel-bench.1", evenkeel_bench::command()),
        ("evenkeel-doctor.1", evenkeel_doctor::command()),
        ("evenkeel-top.1", evenkeel_top::command()),
    ] {
        command.build();
        let page = text_of(name);
        let mut count = 0;
        for verb in [&command].into_iter().chain(command.get_subcommands()) {
            for long in verb.get_arguments().filter_map(|arg| arg.get_long()).filter(|long| *long != "help") {
                let tag = format!("\\fB\\-\\-{}\\fR", long.replace('-', "\\-"));
                assert!(page.contains(&tag), "{name}: {long}");
                count += 1;
            }
        }
        assert!(count > 10, "{name}: {count} options");
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            let heading = format!("\n.SS {}\n", verb.get_name().replace('-', "\\-"));
            assert!(page.contains(&heading), "{name}: {heading}");
        }
    }
    let (server, check) = (text_of("evenkeel.1"), text_of("evenkeel-check.1"));
    for name in evenkeel_config::FLAGS.iter().flat_map(|flag| flag.names) {
        assert!(server.contains(&name.replace('-', "\\-")), "{name}");
    }
    for option in evenkeel_check::OPTIONS {
        assert!(check.contains(&format!("\\fB{}\\fR", option.name.replace('-', "\\-"))), "{}", option.name);
    }
}

#[test]
fn man_and_mandoc_find_no_fault() {
    let scratch = written();
    let dir = scratch.path.join("man");
    for page in pages(DATE) {
        for (tool, args) in [
            ("mandoc", &["-Tlint", "-Wall", &page.name][..]),
            // The warnings of groff; the page itself goes nowhere.
            ("sh", &["-c", "man --warnings --encoding=utf-8 --local-file -Z \"$0\" >/dev/null", &page.name]),
        ] {
            if let Some((is_well, text, faults)) = run(tool, args, &dir) {
                assert!(is_well && text.is_empty() && faults.is_empty(), "{tool}: {text}{faults}");
            }
        }
    }
}

/// Each shell loads the file; bash is also asked for completions.
#[test]
fn shells_load_the_completions() {
    let scratch = written();
    for (shell, folder) in SHELLS {
        let dir = scratch.path.join(folder);
        let tool = shell.to_string();
        for file in std::fs::read_dir(&dir).expect("written") {
            let name = file.expect("listed").file_name().into_string().expect("text");
            let script = match folder {
                "bash" => format!("set -e; source ./{name}; complete -p {name}"),
                "zsh" => format!("autoload -Uz compinit; compinit -u -D; source ./{name}; whence -w {name}"),
                _ => format!("source ./{name}; complete -C '{} --'", name.trim_end_matches(".fish")),
            };
            let args: &[&str] = if folder == "zsh" { &["-f", "-c", &script] } else { &["-c", &script] };
            let Some((is_well, text, faults)) = run(&tool, args, &dir) else { continue };
            assert!(is_well && faults.is_empty(), "{tool}: {name}: {faults}");
            let expected = if folder == "fish" { "--" } else { "evenkeel" };
            assert!(text.contains(expected), "{tool}: {name}: {text}");
        }
    }
}

#[test]
fn bash_completes_directives_and_their_values() {
    let scratch = written();
    let complete = |words: &str| {
        let script = format!(
            "source ./evenkeel; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _evenkeel evenkeel \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             echo \"${{COMPREPLY[*]}}\""
        );
        run("bash", &["-c", &script], &scratch.path.join("bash")).expect("bash").1.trim().to_owned()
    };
    assert_eq!(complete("evenkeel --maxmemory-p"), "--maxmemory-policy");
    assert_eq!(complete("evenkeel --appendfsync e"), "everysec");
    assert_eq!(complete("evenkeel top --ask"), "--askpass");
    assert_eq!(complete("evenkeel check --tr"), "--truncate-to-timestamp");
}
