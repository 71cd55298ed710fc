//! Manual pages and shell completions of all programs, from the tables that parse: clap's commands, the
//! options of `evenkeel` and `evenkeel check`, and the directives of `config`.
//!
//! | file | |
//! |---|---|
//! | `roff.rs` | text as roff, with the macros of man(7) |
//! | `manual.rs` | a page for a command of clap |
//! | `server.rs` | evenkeel(1), and its command line as a command of clap |
//! | `directives.rs` | evenkeel.conf(5) |
//!
//! The pages are not made by clap_mangen: it makes a page for each subcommand of the tools, some 50 with the
//! same options, and mandoc finds faults in them. A crate of its own keeps all of this out of the server.

mod directives;
mod manual;
mod roff;
mod server;

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// A generated file.
#[derive(Debug)]
pub struct File {
    /// Such as `evenkeel.1` or `_evenkeel`.
    pub name: String,
    pub text: Vec<u8>,
}

/// Shells, and the folder of each one's completions.
pub const SHELLS: [(Shell, &str); 3] = [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];

/// Writes `man/` and a folder of completions for each shell into `dir`.
pub fn write(dir: &Path, date: &str) -> io::Result<()> {
    let completions = SHELLS.map(|(shell, folder)| (folder, completions(shell)));
    for (folder, files) in [("man", pages(date))].into_iter().chain(completions) {
        let folder = dir.join(folder);
        fs::create_dir_all(&folder)?;
        for file in files {
            fs::write(folder.join(file.name), file.text)?;
        }
    }
    Ok(())
}

/// Returns all manual pages.
pub fn pages(date: &str) -> Vec<File> {
    let tools = [tool("bench"), tool("doctor"), tool("top")];
    let of_tools = tools.map(|(command, text)| manual::page(&command, &text, date));
    let of_server = [server::page(date), server::check_page(date), directives::page(date)];
    let file = |page: roff::Page| File { name: page.file_name(), text: page.finish().into_bytes() };
    of_server.into_iter().chain(of_tools).map(file).collect()
}

/// Returns the command of a tool, and the text about it that clap does not have.
fn tool(name: &str) -> (Command, manual::Text<'static>) {
    match name {
        "bench" => (evenkeel_bench::command(), manual::BENCH),
        "doctor" => (evenkeel_doctor::command(), manual::DOCTOR),
        _ => (evenkeel_top::command().name("evenkeel-top"), manual::TOP),
    }
}

/// Returns the completions of all programs for a shell.
pub fn completions(shell: Shell) -> Vec<File> {
    let commands = [server::command(), evenkeel_bench::command(), evenkeel_doctor::command()];
    let file = |mut command: Command| {
        let program = command.get_name().to_owned();
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, &program, &mut text);
        let name = match shell {
            Shell::Zsh => format!("_{program}"),
            Shell::Fish => format!("{program}.fish"),
            _ => program,
        };
        File { name, text }
    };
    commands.into_iter().map(file).collect()
}
