//! A pseudo-terminal with a program, and the text that its screen shows.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

const COLUMNS: usize = 100;
const LINES: usize = 30;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A program in a terminal of 100 columns and 30 lines.
pub(super) struct Screen {
    process: Child,
    /// The user's side.
    ours: File,
    /// The program's side, kept open to read its modes.
    theirs: File,
    modes: Termios,
    chunks: Receiver<Vec<u8>>,
    output: Vec<u8>,
}

impl Screen {
    pub(super) fn start(command: &mut Command) -> Screen {
        let (ours, theirs) = terminal();
        let modes = tcgetattr(&theirs).expect("modes");
        let process = spawn_in(&theirs, command);
        let chunks = reader(ours.try_clone().expect("a descriptor"));
        Screen { process, ours, theirs, modes, chunks, output: Vec::new() }
    }

    pub(super) fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    pub(super) fn signal(&self, signal: i32) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::from_named_raw(signal).expect("a signal")).expect("it runs");
    }

    /// Waits until the screen shows all these texts.
    #[track_caller]
    pub(super) fn wait_for(&mut self, texts: &[&str]) {
        let until = Instant::now() + TIMEOUT;
        loop {
            let shown = shown(&self.output);
            if texts.iter().all(|text| shown.contains(text)) {
                return;
            }
            assert!(Instant::now() < until, "not shown: {texts:?} in\n{shown}");
            if let Ok(chunk) = self.chunks.recv_timeout(Duration::from_millis(100)) {
                self.output.extend(chunk);
            }
        }
    }

    /// Waits for the program's end. Checks that the terminal has its first screen, its cursor and its modes
    /// again, and returns the exit status.
    #[track_caller]
    pub(super) fn end(&mut self) -> Option<i32> {
        let until = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < until, "the program does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        while let Ok(chunk) = self.chunks.recv_timeout(Duration::from_millis(200)) {
            self.output.extend(chunk);
        }
        let last = |mark: &[u8]| self.output.windows(mark.len()).rposition(|bytes| bytes == mark);
        assert!(last(b"\x1b[?1049l") > last(b"\x1b[?1049h"), "the first screen");
        assert!(last(b"\x1b[?25h") > last(b"\x1b[?25l"), "the cursor");
        let modes = tcgetattr(&self.theirs).expect("modes");
        assert_eq!(modes.local_modes, self.modes.local_modes);
        assert_eq!(
            (modes.input_modes, modes.output_modes),
            (self.modes.input_modes, self.modes.output_modes)
        );
        status.code()
    }

    /// Returns all bytes that the program has written.
    pub(super) fn output(&self) -> &[u8] {
        &self.output
    }
}

impl Screen {
    /// Returns the parameters of all colours and styles that the program has set.
    pub(super) fn styles(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.output);
        let mut rest = text.chars();
        let mut styles = Vec::new();
        while let Some(letter) = rest.next() {
            if letter == '\x1b'
                && let (style, 'm') = control_sequence(&mut rest)
            {
                styles.push(style);
            }
        }
        styles
    }
}

/// Returns the two sides of a new terminal: the user's and the program's.
fn terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&ours).expect("granted");
    unlockpt(&ours).expect("unlocked");
    let name = ptsname(&ours, Vec::new()).expect("its name");
    let theirs = open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
    let theirs = File::from(theirs.expect("the program's side"));
    let size = Winsize { ws_row: LINES as u16, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).expect("a size");
    (File::from(ours), theirs)
}

fn spawn_in(theirs: &File, command: &mut Command) -> Child {
    let same = || theirs.try_clone().expect("a descriptor");
    command.stdin(same()).stdout(same()).stderr(same()).env("TERM", "xterm-256color");
    // SAFETY: the closure makes system calls only.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        });
    }
    command.spawn().expect("started")
}

/// Starts a program in a terminal that is not the terminal of its session, takes the terminal away once the
/// screen shows `text`, and returns the program's exit status.
#[track_caller]
pub(super) fn status_without_terminal(command: &mut Command, text: &str) -> Option<i32> {
    let (mut ours, theirs) = terminal();
    let mut process = spawn_in(&theirs, command);
    let (mut output, mut buffer) = (Vec::new(), [0; 4096]);
    while !shown(&output).contains(text) {
        let len = ours.read(&mut buffer).expect("the program writes");
        output.extend_from_slice(&buffer[..len]);
    }
    drop((ours, theirs));
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = process.try_wait().expect("a child") {
            return status.code();
        }
        if Instant::now() >= until {
            let _ = process.kill();
            let _ = process.wait();
            panic!("the program goes on without a terminal");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads in a thread, which ends when both sides of the terminal are closed.
fn reader(mut ours: File) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(length) = ours.read(&mut chunk) {
            if length == 0 || sender.send(chunk[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Returns the text on the screen after these bytes. Of the control sequences, moves of the cursor and
/// clearing of the whole screen are followed; the program uses no others that matter.
fn shown(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let mut lines = vec![vec![' '; COLUMNS]; LINES];
    let (mut x, mut y) = (0, 0);
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\x1b' => {
                let (sequence, last) = control_sequence(&mut rest);
                match (last, sequence.split_once(';')) {
                    ('H', Some((line, column))) => {
                        let index = |number: &str| number.parse::<usize>().map_or(0, |number| number - 1);
                        (y, x) = (index(line), index(column));
                    }
                    ('J', None) => lines.iter_mut().for_each(|line| line.fill(' ')),
                    _ => {}
                }
            }
            _ if letter.is_control() => {}
            _ => {
                if let Some(cell) = lines.get_mut(y).and_then(|line| line.get_mut(x)) {
                    *cell = letter;
                }
                x += 1;
            }
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect::<String>() + "\n").collect()
}

/// Takes the rest of a control sequence, and returns its parameters and its last letter.
fn control_sequence(rest: &mut std::str::Chars<'_>) -> (String, char) {
    let mut parameters = String::new();
    for letter in rest.by_ref().skip(1) {
        if letter.is_ascii_alphabetic() {
            return (parameters, letter);
        }
        parameters.push(letter);
    }
    (parameters, ' ')
}
