//! Upgrades: a running server hands over to another process, and its clients notice nothing.

mod kills;
mod load;
mod memory;
mod roles;
mod sessions;

use std::ops::{Deref, DerefMut};
use std::process::{Command, Output};

use crate::wait_until;

/// A server that may be another process than that which the test has started.
struct Server(evenkeel_testkit::Server);

impl Deref for Server {
    type Target = evenkeel_testkit::Server;

    fn deref(&self) -> &evenkeel_testkit::Server {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut evenkeel_testkit::Server {
        &mut self.0
    }
}

impl Drop for Server {
    /// Kills the process that serves: if its first process has been killed, it is nobody's child.
    fn drop(&mut self) {
        let info = self.try_connect().and_then(|mut client| client.try_call(&["INFO", "server"]));
        let info = info.map(|info| info.to_string()).unwrap_or_default();
        let pid = info.split("process_id:").nth(1).and_then(|rest| {
            rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().ok()
        });
        pid.into_iter().for_each(kill);
    }
}

#[track_caller]
fn start(args: &[&str]) -> Server {
    Server(crate::start(args))
}

/// Kills a process, which may have ended.
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process");
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Upgrades a server to the program that it runs.
fn upgrade(server: &Server) -> Output {
    upgrade_by(server, &[])
}

fn upgrade_by(server: &Server, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["upgrade", "--port", &server.port().to_string()]).args(args);
    command.output().expect("the program runs")
}

/// Upgrades a server, and returns the lines about it.
#[track_caller]
fn must_upgrade(server: &Server) -> String {
    let before = server.info("process_id");
    let output = upgrade(server);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{errors}\n{}", server.log());
    assert_ne!(server.info("process_id"), before, "another process serves");
    // The first process executes itself anew: a test that kills it sooner would leave the server behind.
    let threads = format!("/proc/{}/task", server.pid());
    wait_until("the first process is the keeper", || {
        std::fs::read_dir(&threads).is_ok_and(|threads| threads.count() <= 2)
    });
    text
}
