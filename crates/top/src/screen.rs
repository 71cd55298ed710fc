//! The terminal: its modes, keys and signals, and the loop that draws.

use std::io::{IsTerminal, Stdout, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::{cursor, execute, terminal};
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::app::{App, Effect};
use crate::connection::Target;
use crate::poller::{self, Update};
use crate::ui::{self, Theme};

/// Longest time until a signal or a sample is noticed.
const TICK: Duration = Duration::from_millis(50);
const TICK_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Shows the server until the user quits or a signal ends the process.
pub(crate) fn run(target: Target, mut app: App, theme: Theme) -> Result<ExitCode, String> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err("the screen needs a terminal; --once prints a single frame".into());
    }
    let signal = signals().map_err(|error| error.to_string())?;
    let (to_poller, requests) = mpsc::channel();
    let (updates, from_poller) = mpsc::channel();
    let request = app.request;
    std::thread::Builder::new()
        .name("poller".into())
        .spawn(move || poller::run(&target, request, requests, updates))
        .map_err(|error| error.to_string())?;
    restore_on_panic();
    let mut screen = Screen::open().map_err(|error| error.to_string())?;
    let ended = screen.show(&mut app, theme, &signal, &to_poller, &from_poller);
    if ended.is_ok() {
        drop(screen);
    } else {
        // ratatui's destructor reports errors on the terminal, and panics if that is gone.
        restore();
        std::mem::forget(screen);
    }
    match ended {
        Ok(()) => Ok(match signal.load(Ordering::Relaxed) {
            0 => ExitCode::SUCCESS,
            signal => ExitCode::from(128 + signal as u8),
        }),
        // The terminal has gone, as after SIGHUP.
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the number of the signal that arrived last, 0 before any.
fn signals() -> std::io::Result<Arc<AtomicUsize>> {
    let last = Arc::new(AtomicUsize::new(0));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register_usize(signal, last.clone(), signal as usize)?;
    }
    Ok(last)
}

/// The terminal in raw mode and on its second screen, until it is dropped.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn open() -> std::io::Result<Screen> {
        terminal::enable_raw_mode()?;
        let opened = execute!(std::io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(std::io::stdout())));
        match opened {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    fn show(
        &mut self,
        app: &mut App,
        theme: Theme,
        signal: &AtomicUsize,
        to_poller: &mpsc::Sender<poller::Request>,
        from_poller: &mpsc::Receiver<Update>,
    ) -> std::io::Result<()> {
        let mut drawn: Option<Instant> = None;
        while signal.load(Ordering::Relaxed) == 0 {
            let mut is_new = false;
            while let Ok(update) = from_poller.try_recv() {
                // A sample that was under way when the user paused would change the screen once more.
                is_new |= !app.request.is_paused || !matches!(update, Update::Sample(_));
                if !(app.request.is_paused && matches!(update, Update::Sample(_))) {
                    app.update(update);
                }
            }
            // The header counts the seconds to the next attempt to connect.
            let is_stale = drawn.is_none_or(|drawn| app.lost.is_some() && drawn.elapsed() > TICK * 10);
            if is_new || is_stale {
                self.draw(app, theme)?;
                drawn = Some(Instant::now());
            }
            match keys(app, to_poller)? {
                Effect::Quit => return Ok(()),
                Effect::Redraw => drawn = None,
                Effect::Nothing => {}
            }
        }
        Ok(())
    }

    fn draw(&mut self, app: &mut App, theme: Theme) -> std::io::Result<()> {
        self.terminal.draw(|frame| ui::draw(frame.buffer_mut(), app, theme)).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Waits a tick for keys, and handles the keys that arrived.
fn keys(app: &mut App, to_poller: &mpsc::Sender<poller::Request>) -> std::io::Result<Effect> {
    let mut effect = Effect::Nothing;
    wait_for_terminal()?;
    while event::poll(Duration::ZERO)? {
        let before = app.request;
        let caused = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => app.key(key),
            Event::Resize(..) => Effect::Redraw,
            _ => Effect::Nothing,
        };
        if app.request != before {
            let _ = to_poller.send(app.request); // the poller ends with the screen only
        }
        match caused {
            Effect::Quit => return Ok(Effect::Quit),
            Effect::Redraw => effect = Effect::Redraw,
            Effect::Nothing => {}
        }
    }
    Ok(effect)
}

/// Waits a tick for input. Fails if the terminal has gone: a process that is not of its session gets no
/// SIGHUP, and crossterm would read the end of the input again and again.
fn wait_for_terminal() -> std::io::Result<()> {
    let input = std::io::stdin();
    let mut polled = [PollFd::new(&input, PollFlags::IN)];
    match rustix::event::poll(&mut polled, Some(&TICK_TIME)) {
        // A signal, perhaps of another size.
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    if polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
        return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the terminal has gone"));
    }
    Ok(())
}

/// Makes a panic of any thread restore the terminal before its message is printed, and end the process.
fn restore_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        print(info);
        std::process::exit(70); // as the server's
    }));
}

/// Gives the terminal its former modes and contents. Errors mean that the terminal has gone.
fn restore() {
    let _ = execute!(std::io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
    let _ = terminal::disable_raw_mode();
    let _ = std::io::stdout().flush();
}

/// Reads a password from the terminal without showing it.
pub(crate) fn ask_password() -> Result<String, String> {
    if !std::io::stdin().is_terminal() {
        return Err("a password is needed: name its variable with --password-env".into());
    }
    eprint!("Password: ");
    terminal::enable_raw_mode().map_err(|error| error.to_string())?;
    let typed = typed_line();
    let _ = terminal::disable_raw_mode();
    eprintln!();
    typed
}

fn typed_line() -> Result<String, String> {
    let mut line = String::new();
    loop {
        let Event::Key(key) = event::read().map_err(|error| error.to_string())? else { continue };
        match key.code {
            KeyCode::Enter => return Ok(line),
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Err("no password was given".into());
            }
            KeyCode::Backspace => drop(line.pop()),
            KeyCode::Char(letter) if key.kind != KeyEventKind::Release => line.push(letter),
            _ => {}
        }
    }
}
