//! A capture of this process by evenkeel-doctor, for the console.
//!
//! The recorder sees the server from inside; the doctor sees functions, system calls and the other processes
//! of the machine, which needs root. It runs as a program of its own, so a fault in it is no fault of the
//! server. Starting it copies no page table, however large the server is: the standard library uses
//! `posix_spawn`.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::server::Server;
use evenkeel_runtime::random::random_hex;
use evenkeel_runtime::{clock, threads};

const PROGRAM: &str = "evenkeel-doctor";

/// Seconds of a capture, and the time that the doctor may take beyond them.
const SECONDS_MAX: u32 = 60;
const EXTRA: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of the report that are kept, and of the page.
const TEXT_MAX: u64 = 256 << 10;
const PAGE_MAX: u64 = 64 << 20;

/// The last capture. A single capture runs at a time.
#[derive(Default)]
pub(crate) struct Capture {
    state: Mutex<State>,
}

#[derive(Clone, Default)]
enum State {
    #[default]
    Never,
    Running {
        since_ms: u64,
        seconds: u32,
    },
    Done {
        at_ms: u64,
        text: String,
        page: Arc<Vec<u8>>,
    },
    Failed {
        at_ms: u64,
        reason: String,
    },
}

impl Capture {
    /// Returns whether a capture is possible, and the state of the last one.
    pub(crate) fn state(&self) -> Value {
        let why = program().err();
        let state = match &*self.state.lock() {
            State::Never => json!({"state": "never"}),
            State::Running { since_ms, seconds } => {
                json!({"state": "running", "since": since_ms, "seconds": seconds})
            }
            State::Done { at_ms, text, .. } => json!({"state": "done", "at": at_ms, "text": text}),
            State::Failed { at_ms, reason } => json!({"state": "failed", "at": at_ms, "reason": reason}),
        };
        json!({"available": why.is_none(), "why": why, "last": state})
    }

    /// Returns the page of the last capture.
    pub(crate) fn page(&self) -> Option<Arc<Vec<u8>>> {
        match &*self.state.lock() {
            State::Done { page, .. } => Some(page.clone()),
            _ => None,
        }
    }

    /// Starts a capture. Fails with the reason, if that is impossible or one is running.
    pub(crate) fn start(server: &Arc<Server>, seconds: u32) -> Result<(), String> {
        let program = program()?;
        let seconds = seconds.clamp(1, SECONDS_MAX);
        let mut state = server.capture.state.lock();
        if matches!(*state, State::Running { .. }) {
            return Err("A capture is running".to_owned());
        }
        let of_thread = server.clone();
        let started = threads::named("doctor").spawn(move || {
            let result = run(&program, seconds);
            *of_thread.capture.state.lock() = State::of(result);
        });
        started.map_err(|error| format!("Cannot start a thread: {error}"))?;
        *state = State::Running { since_ms: clock::unix_ms(), seconds };
        Ok(())
    }
}

impl State {
    fn of(result: io::Result<(String, Vec<u8>)>) -> State {
        let at_ms = clock::unix_ms();
        match result {
            Ok((text, page)) => State::Done { at_ms, text, page: Arc::new(page) },
            Err(error) => State::Failed { at_ms, reason: error.to_string() },
        }
    }
}

/// Returns the doctor's executable: beside this program, or on the PATH.
fn program() -> Result<PathBuf, String> {
    if !geteuid().is_root() {
        return Err("The doctor needs root, and this server does not run as root".to_owned());
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(PROGRAM));
    let mut candidates = beside.into_iter().chain(on_path);
    candidates.find(|program| program.is_file()).ok_or_else(|| format!("{PROGRAM} is not installed"))
}

/// Runs the doctor; returns its report and its page.
fn run(program: &Path, seconds: u32) -> io::Result<(String, Vec<u8>)> {
    let folder = Folder::create()?;
    let (text, page) = (folder.0.join("report.txt"), folder.0.join("page.html"));
    let child = Command::new(program)
        .args(["diagnose", "--pid", &std::process::id().to_string()])
        .args(["--seconds", &seconds.to_string(), "--html"])
        .arg(&page)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&text)?)
        .stderr(std::fs::File::create(folder.0.join("errors.txt"))?)
        .spawn()?;
    let has_succeeded = end_of(child, Duration::from_secs(seconds.into()) + EXTRA)?;
    let report = String::from_utf8_lossy(&read(&text, TEXT_MAX)?).into_owned();
    if !has_succeeded {
        let errors = read(&folder.0.join("errors.txt"), TEXT_MAX)?;
        let errors = String::from_utf8_lossy(&errors);
        let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it gave no reason");
        return Err(io::Error::other(format!("{PROGRAM} failed: {last}")));
    }
    Ok((report, read(&page, PAGE_MAX)?))
}

/// Waits for the end of a child; returns whether it succeeded. Kills it after `timeout`.
fn end_of(mut child: Child, timeout: Duration) -> io::Result<bool> {
    let until = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("{PROGRAM} did not end in time")));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn read(path: &Path, len_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(len_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A folder for the files of a capture, which no other user can enter. Dropping the value removes it.
struct Folder(PathBuf);

impl Folder {
    fn create() -> io::Result<Folder> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("evenkeel-doctor-{}", random_hex()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // left behind at worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_does_not_end_is_killed() {
        let child = |words: &[&str]| Command::new(words[0]).args(&words[1..]).spawn().expect("it is there");
        assert!(end_of(child(&["true"]), Duration::from_secs(10)).expect("it ends"));
        assert!(!end_of(child(&["false"]), Duration::from_secs(10)).expect("it ends"));
        let began = Instant::now();
        assert!(end_of(child(&["sleep", "60"]), Duration::from_millis(50)).is_err());
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_failure_is_told_by_the_last_line_of_its_errors() {
        let folder = Folder::create().expect("the temporary directory takes a new one");
        let program = folder.0.join("doctor");
        let write = |script: &str| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("writable");
            let mode = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(&program, mode).expect("own file");
        };
        write("echo first >&2; echo no rights >&2; exit 1");
        let error = run(&program, 1).expect_err("it fails").to_string();
        assert_eq!(error, "evenkeel-doctor failed: no rights");
        write("echo The report; echo '<html>' > \"$7\"");
        let (text, page) = run(&program, 1).expect("it succeeds");
        assert_eq!((text.as_str(), &page[..]), ("The report\n", &b"<html>\n"[..]));
    }
}
