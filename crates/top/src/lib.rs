//! `evenkeel top`: a terminal view of a running server, of Evenkeel, Valkey or Redis.
//!
//! ```text
//! options     the command line
//! connection  commands and replies over TCP, a Unix socket or TLS
//! poll        a sample: the replies to INFO, LATENCY HISTOGRAM and the command of a view
//! metrics     rates: the difference of two samples
//! poller      the thread that polls
//! app, ui     the state of the screen, and its drawing
//! screen      the terminal
//! ```
//!
//! Texts of the server (names of clients, arguments of commands, error texts) are escaped where they are
//! parsed, so that no control character of a client reaches the terminal.

mod app;
mod connection;
mod histogram;
mod info;
mod metrics;
mod options;
mod poll;
mod poller;
mod screen;
mod text;
mod tls;
mod ui;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use app::App;
use connection::Target;
use options::Options;
use poll::{Polls, Sample};
use poller::Update;
use ui::Theme;

/// Size of the frame that `--once` prints.
const FRAME: [u16; 2] = [100, 40];

/// Runs the tool if the arguments behind the program's name are for it. Returns `None` if they are for the
/// server.
pub fn run(args: &[OsString]) -> Option<ExitCode> {
    let options = match options::parse(args)? {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print(); // a closed standard error has no reader
            return Some(if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
    };
    Some(show(options).unwrap_or_else(|reason| {
        // The terminal may have gone.
        let _ = writeln!(std::io::stderr(), "evenkeel top: {reason}");
        ExitCode::FAILURE
    }))
}

/// Returns the command line, for manual pages and completions.
pub fn command() -> clap::Command {
    <Options as clap::CommandFactory>::command()
}

fn show(options: Options) -> Result<ExitCode, String> {
    let variable = |name: &str| std::env::var(name).ok();
    let password = options.password(variable, screen::ask_password)?;
    let (address, interval, is_once) = (options.address(), options.interval, options.once);
    let target = Target::new(options, password)?;
    let app = App::new(address, interval, is_once);
    if is_once {
        return print_once(&target, app, interval).map(|()| ExitCode::SUCCESS);
    }
    screen::run(target, app, theme())
}

/// Returns the theme that the environment asks for.
fn theme() -> Theme {
    Theme { has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
}

/// Prints a frame of two polls.
fn print_once(target: &Target, mut app: App, interval: Duration) -> Result<(), String> {
    let reason = |reason| format!("no connection to the server: {reason}");
    let mut connection = target.connect().map_err(reason)?;
    let mut polls = Polls::default();
    let mut forbidden = Vec::new();
    for pause in [Duration::ZERO, interval] {
        std::thread::sleep(pause);
        let sample: Sample = polls.poll(&mut connection, None).map_err(reason)?;
        forbidden.clone_from(&sample.forbidden);
        app.update(Update::Sample(Box::new(sample)));
    }
    let mut text = frame(&mut app);
    if !forbidden.is_empty() {
        text.push_str(&format!("no permission: {}\n", forbidden.join(", ")));
    }
    // A reader that has gone, such as `head`, is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// Draws the screen as plain text, without blanks at the ends of lines and without empty lines at the end.
fn frame(app: &mut App) -> String {
    let mut buffer = Buffer::empty(Rect::new(0, 0, FRAME[0], FRAME[1]));
    ui::draw(&mut buffer, app, Theme { has_colours: false });
    let line = |y| (0..FRAME[0]).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    let lines: Vec<String> = (0..FRAME[1]).map(line).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}
