//! Keeps the id of the first process, for whoever waits for that process: a shell, a container's runtime, a
//! supervisor that knows the process as its child. They would take the end of the process for the end of the
//! server.
//!
//! After a hand-over the first process becomes a keeper: it executes itself anew, without any data or socket,
//! passes signals on to the server, and ends with the server's exit status. The server of the next hand-over
//! is the keeper's child as well, since the kernel gives the keeper the children of a process that ends, so
//! there is a single keeper however many upgrades follow. A service manager that has been told of the new
//! process needs none.
//!
//! Whoever kills the keeper wants the server gone, and may start another at its address. So the keeper holds
//! an end of a socket, over which it has sent a byte, and the server ends at once when that is closed.
//! Without the byte, the first process was killed during the hand-over, and the server goes on.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use evenkeel_core::sd_notify::Manager;
use evenkeel_net::poll::await_events;
use evenkeel_runtime::server_log;
use evenkeel_runtime::threads;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::server::Server;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

/// The name of the variable that makes the program a keeper: its value is the server's process id.
const KEEPER_VARIABLE: &str = "EVENKEEL_KEEPER";

/// The first byte that a keeper sends. The others are numbers of signals.
const THERE: u8 = b'k';

/// The signals that a keeper passes on.
const PASSED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The socket that this process' keeper holds the other end of, if it has a keeper.
static KEEPER: OnceLock<OwnedFd> = OnceLock::new();

/// Who keeps the process id for a successor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Keeper {
    /// Nobody: a service manager is told of the successor.
    #[default]
    None,
    /// The predecessor, which holds the other end of the channel.
    Predecessor,
    /// The predecessor's own keeper; the predecessor passes the socket on.
    Another,
}

/// Who keeps the process id for the successor of this process.
pub(super) fn of_successor(manager: &Manager) -> Keeper {
    if KEEPER.get().is_some() {
        Keeper::Another
    } else if manager.is_there() {
        Keeper::None
    } else {
        Keeper::Predecessor
    }
}

/// The socket to pass on to the successor.
pub(super) fn socket() -> Option<BorrowedFd<'static>> {
    KEEPER.get().map(OwnedFd::as_fd)
}

/// Whether this process has ended its part as a server, and leaves what the keeper sends to its successor.
static IS_OVER: Mutex<bool> = Mutex::new(false);

/// Leaves the keeper's messages to the successor from now on: each signal reaches exactly one of the two.
pub(super) fn leave() {
    *IS_OVER.lock() = true;
}

/// Follows the keeper, which holds the other end of this socket: gets signals from it, and ends when it is
/// gone. `is_there`: the keeper has sent its first byte.
pub(super) fn follow(server: &Arc<Server>, socket: OwnedFd, is_there: bool) {
    if is_there && KEEPER.set(socket.try_clone().expect("a descriptor more")).is_err() {
        return;
    }
    let server = server.clone();
    let spawned = threads::named("keeper").spawn(move || follow_on(&server, &socket, is_there));
    if let Err(error) = spawned {
        log::warn!("This process gets no signals by way of the first process: {error}");
    }
}

fn follow_on(server: &Server, socket: &OwnedFd, mut is_there: bool) {
    loop {
        let seen = await_events(socket.as_raw_fd(), libc::POLLIN, Duration::from_secs(3600));
        let is_over = IS_OVER.lock();
        if *is_over {
            return;
        }
        if !seen.is_ok_and(|seen| seen != 0) {
            continue;
        }
        let mut byte = [0; 1];
        match rustix::io::read(socket, &mut byte) {
            Ok(0) if is_there => break,
            Ok(0) => {
                return log::warn!(
                    "The first process was killed during the hand-over. This process goes on."
                );
            }
            Ok(_) if byte[0] == THERE => {
                is_there = true;
                let _ = socket.try_clone().map(|socket| KEEPER.set(socket));
            }
            Ok(_) => {
                let signal = i32::from(byte[0]);
                if !server.handover.take_signal(signal)
                    && let Some(signal) = Signal::from_named_raw(signal)
                {
                    let _ = kill_process(rustix::process::getpid(), signal);
                }
            }
            Err(_) => {} // interrupted
        }
    }
    log::warn!("The first process has been killed, and this process ends with it.");
    server_log::flush();
    let _ = kill_process(rustix::process::getpid(), Signal::KILL);
}

/// Becomes a keeper for the process that has taken over, which watches the other end of this channel. Returns
/// if that is not possible.
pub(super) fn become_keeper(server: u32, channel: BorrowedFd<'_>) {
    // The channel stays open in the keeper.
    if let Err(error) = rustix::io::fcntl_setfd(channel, rustix::io::FdFlags::empty()) {
        return log::warn!("The first process ends, although another may wait for it: {error}");
    }
    // A signal that comes before the keeper can pass it on waits.
    set_blocked(&PASSED, true);
    let Ok(program) = std::env::current_exe() else { return };
    // A file that has been replaced is reached through this link all the same.
    let running = std::path::Path::new("/proc/self/exe");
    let program = if program.exists() { program.as_path() } else { running };
    let what = format!("{server} {}", channel.as_raw_fd());
    let error = Command::new(program).env(KEEPER_VARIABLE, what).exec();
    log::warn!("This process ends, although another may wait for it: it cannot execute itself: {error}");
}

/// Runs the keeper, if this process is one. Returns when the server has ended.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let what = std::env::var(KEEPER_VARIABLE).ok()?;
    let (server, channel) = what.split_once(' ')?;
    let server = server.parse::<i32>().ok().and_then(Pid::from_raw)?;
    let channel = channel.parse::<RawFd>().ok().filter(|channel| *channel > 2)?;
    // SAFETY: the process that has executed this program has left the descriptor open for the keeper alone.
    let channel = unsafe { OwnedFd::from_raw_fd(channel) };
    let _ = rustix::io::write(&channel, &[THERE]);
    Some(keep(server, channel))
}

fn keep(mut server: Pid, channel: OwnedFd) -> ExitCode {
    // Without this the server of the next hand-over would be another process's child.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    if let Ok(mut signals) = signal_hook::iterator::Signals::new(PASSED) {
        std::thread::spawn(move || {
            for signal in signals.forever() {
                // Whichever process serves by then reads it.
                let _ = rustix::io::write(&channel, &[signal as u8]);
            }
        });
    }
    set_blocked(&PASSED, false);
    let mut status = ExitCode::SUCCESS;
    // Children come and go: the server, the server that takes over from it, programs that a server has
    // started.
    while let Ok(ended) = rustix::process::wait(WaitOptions::empty()) {
        let Some((pid, how)) = ended else { continue };
        if pid == server {
            status = status_of(how);
            match child() {
                Some(next) => server = next,
                None => return status,
            }
        }
    }
    status
}

/// Blocks signals in the calling thread and in the program that it executes, or no longer.
fn set_blocked(signals: &[i32], is_blocked: bool) {
    let how = if is_blocked { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    // SAFETY: zeros are a valid set, which these calls fill and read.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        signals.iter().for_each(|signal| _ = libc::sigaddset(&raw mut set, *signal));
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
    }
}

fn status_of(how: WaitStatus) -> ExitCode {
    let code = how.exit_status().or_else(|| Some(128 + how.terminating_signal()?));
    ExitCode::from(code.unwrap_or(1) as u8)
}

/// The child that has taken over: the newest, as any program that a server has started ends with it.
fn child() -> Option<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).ok()?;
    children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).next_back()
}
