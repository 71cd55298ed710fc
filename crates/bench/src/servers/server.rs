//! A server that was started for a measurement, and ends with it.
//!
//! It runs in its own directory under the system's temporary directory, on a port that was free, pinned
//! before its first instruction, in its own process group (so that Ctrl-C reaches it through the bench, in
//! order). When the value is dropped, the server is ended by its number; if this process is killed outright,
//! the kernel ends the server (`die_with_parent`).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{ServerKind, ServerProgram};
use crate::load::endpoint::{Endpoint, Protocol};
use crate::load::replies::Skipper;
use crate::{interrupt, sys};

/// Longest time from start to the first PONG.
const START_TIME_MAX: Duration = Duration::from_secs(20);
/// Longest time that a server may take to end by itself after SIGTERM.
const END_TIME_MAX: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// Tries to start, when another process takes the port in between.
const START_TRIES: u32 = 3;
/// Lines shown of a failed server's log.
const LOG_LINES: usize = 5;

/// The parameters of a start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launch {
    /// CPUs for all of its threads; empty: anywhere.
    pub(crate) cpus: Vec<usize>,
    /// Worker threads (evenkeel) or I/O threads (valkey).
    pub(crate) threads: usize,
    /// Arguments behind the usual arguments.
    pub(crate) more: &'static [&'static str],
}

#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    directory: PathBuf,
    /// The directory is removed with the server.
    owns_directory: bool,
    pub(crate) address: SocketAddr,
    /// Parameters for a restart.
    program: ServerProgram,
    launch: Launch,
}

impl Server {
    /// Starts `program` and waits until it answers.
    pub(crate) fn start(program: &ServerProgram, launch: &Launch) -> Result<Self> {
        Self::start_in(program, launch, None)
    }

    /// Like [`start`](Self::start), in an existing directory that stays, with the log beside it; `None`: in a
    /// new directory, which is removed with the server.
    pub(crate) fn start_in(
        program: &ServerProgram,
        launch: &Launch,
        directory: Option<&Path>,
    ) -> Result<Self> {
        let mut tries = 1;
        loop {
            match Self::try_start(program, launch, directory) {
                Err(error) if tries == START_TRIES => return Err(error),
                Err(error) => eprintln!("{error:#}; trying again"),
                started => return started,
            }
            interrupt::check()?;
            tries += 1;
        }
    }

    fn try_start(program: &ServerProgram, launch: &Launch, directory: Option<&Path>) -> Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let owns_directory = directory.is_none();
        let directory = directory.map_or_else(new_directory, |directory| Ok(directory.to_owned()))?;
        let log = log_path(&directory, owns_directory);
        let child = spawn(program, launch, port, &directory, &log, &[]).inspect_err(|_| {
            if owns_directory {
                drop(fs::remove_dir_all(&directory));
            }
        })?;
        let (program, launch) = (program.clone(), launch.clone());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Self { child, directory, owns_directory, address, program: program.clone(), launch };
        server.wait_until_it_answers().with_context(|| format!("{} does not start", program.kind.name()))?;
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kind(&self) -> ServerKind {
        self.program.kind
    }

    /// Ends the server as a power cut does.
    pub(crate) fn kill(&mut self) {
        drop(self.child.kill()); // fails only when it has ended by itself
        drop(self.child.wait());
    }

    /// Returns the server's program.
    pub(crate) fn program(&self) -> &Path {
        &self.program.path
    }

    /// Returns whether an idle server takes a core: Valkey's I/O threads go on spinning when a load ends
    /// abruptly.
    fn is_spinner(&self) -> bool {
        self.program.kind == ServerKind::Valkey && self.launch.threads > 1
    }

    /// Stops a server that would spin until it is needed, so that it takes nothing from other servers.
    pub(crate) fn rest(&self) {
        if self.is_spinner() {
            sys::signal_child(self.child.id(), libc::SIGSTOP);
        }
    }

    /// Continues a stopped server.
    pub(crate) fn resume(&self) {
        if self.is_spinner() {
            sys::signal_child(self.child.id(), libc::SIGCONT);
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kills the server and restarts it over its files, with these additional arguments; returns the moment
    /// of the start. The server may still be loading the files.
    pub(crate) fn restart(&mut self, more: &[&str]) -> Result<Instant> {
        self.kill();
        let began = Instant::now();
        self.child =
            spawn(&self.program, &self.launch, self.address.port(), &self.directory, &self.log(), more)?;
        Ok(began)
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIME_MAX;
        while Instant::now() < deadline {
            interrupt::sleep(POLL_INTERVAL)?;
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}: {}", self.log_tail());
            }
            if self.answers() {
                return Ok(());
            }
        }
        bail!("no answer within {} s: {}", START_TIME_MAX.as_secs(), self.log_tail())
    }

    fn answers(&self) -> bool {
        match self.program.kind.protocol() {
            Protocol::Memcached => has_version(self.address).unwrap_or(false),
            _ => ask(self.address, &["PING"]).is_ok_and(|answer| answer.starts_with("+PONG")),
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint { protocol: self.program.kind.protocol(), ..Endpoint::from(self.address) }
    }

    fn log(&self) -> PathBuf {
        log_path(&self.directory, self.owns_directory)
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join(" | ")
    }

    fn end(&mut self) {
        self.resume(); // a stopped process does not handle SIGTERM
        sys::signal_child(self.child.id(), libc::SIGTERM);
        let deadline = Instant::now() + END_TIME_MAX;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        drop(self.child.kill()); // fails only when it has ended meanwhile
        drop(self.child.wait());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        if self.owns_directory {
            // remaining files are left to the cleanup of the temporary directory
            drop(fs::remove_dir_all(&self.directory));
        } else {
            drop(fs::remove_file(self.log()));
        }
    }
}

fn log_path(directory: &Path, owns_directory: bool) -> PathBuf {
    if owns_directory { directory.join("log") } else { directory.with_extension("log") }
}

fn spawn(
    program: &ServerProgram,
    launch: &Launch,
    port: u16,
    directory: &Path,
    log: &Path,
    more: &[&str],
) -> Result<Child> {
    let log = File::create(log).context("cannot write the server's log")?;
    let mut command = Command::new(&program.path);
    command
        .args(program.kind.arguments(port, launch.threads.max(1)))
        .args(launch.more)
        .args(more)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share the log")?)
        .stderr(log)
        .process_group(0);
    if let Some(library) = &program.preload {
        command.env("LD_PRELOAD", library);
    }
    let cpus = launch.cpus.clone();
    let prepare = move || {
        sys::die_with_parent()?;
        sys::pin(&cpus)
    };
    // SAFETY: both calls are allowed between fork and exec: no allocation, no locks.
    unsafe { command.pre_exec(prepare) };
    command
        .spawn()
        .with_context(|| format!("cannot start {} on cpus {:?}", program.path.display(), launch.cpus))
}

/// Creates a directory for the files of a server.
pub(super) fn new_directory() -> Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("evenkeel-bench-{}-{number}", std::process::id()));
    fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory)
}

/// Sends a command on a new connection and returns the bytes of the reply.
pub(crate) fn ask(server: SocketAddr, words: &[&str]) -> Result<String> {
    ask_within(server, words, ANSWER_TIME_MAX)
}

/// Like [`ask`], for slow commands: the reply may pause for up to `timeout`.
pub(crate) fn ask_within(server: SocketAddr, words: &[&str], timeout: Duration) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&server, ANSWER_TIME_MAX)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut request = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
    stream.write_all(request.as_bytes())?;
    let (mut replies, mut answer, mut piece) = (Skipper::new(), Vec::new(), [0; 4096]);
    loop {
        let size = stream.read(&mut piece)?;
        if size == 0 {
            bail!("the server closed the connection");
        }
        answer.extend_from_slice(&piece[..size]);
        if replies.feed(&piece[..size])?.replies > 0 {
            return Ok(String::from_utf8_lossy(&answer).into_owned());
        }
    }
}

/// Returns whether a memcached replies with its version.
fn has_version(server: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect_timeout(&server, ANSWER_TIME_MAX)?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    stream.write_all(b"version\r\n")?;
    let mut answer = [0; 64];
    let size = stream.read(&mut answer)?;
    Ok(answer[..size].starts_with(b"VERSION"))
}

/// Returns the first address of `host`.
pub(crate) fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let mut addresses = (host, port).to_socket_addrs().with_context(|| format!("unknown host {host:?}"))?;
    addresses.next().with_context(|| format!("host {host:?} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a listener that answers a single connection with `answer`, in pieces.
    fn answering(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_nodelay(true).expect("a TCP socket");
            for byte in answer.chunks(3) {
                stream.write_all(byte).expect("the other side reads");
            }
        });
        address
    }

    #[test]
    fn a_query_gets_its_whole_reply() {
        assert_eq!(ask(answering(b"$5\r\nhello\r\n"), &["GET", "k"]).expect("answered"), "$5\r\nhello\r\n");
        assert!(ask(answering(b"$5\r\nhel"), &["GET", "k"]).is_err());
    }

    /// Under `make test`, Valkey is installed.
    #[test]
    fn a_spinning_server_is_stopped_while_idle() {
        let programs = crate::servers::ProgramPaths::default().find().expect("looked for");
        let valkey = programs
            .iter()
            .find(|program| program.kind == ServerKind::Valkey)
            .expect("scripts/setup peers gets it");
        let state = |server: &Server| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).expect("it is there");
            stat.rsplit_once(") ").expect("a name in parentheses").1.chars().next()
        };
        let in_state = |server: &Server, wanted: char| {
            let until = Instant::now() + Duration::from_secs(10);
            while (state(server) == Some('T')) != (wanted == 'T') {
                assert!(Instant::now() < until, "{:?}", state(server));
                std::thread::sleep(POLL_INTERVAL);
            }
        };
        let several = Server::start(valkey, &Launch { threads: 2, ..Launch::default() }).expect("it starts");
        several.rest();
        in_state(&several, 'T');
        several.resume();
        assert!(ask(several.address, &["PING"]).expect("an answer").starts_with("+PONG"));
        several.rest();
        in_state(&several, 'T');
        let (pid, began) = (several.pid(), Instant::now());
        drop(several);
        assert!(began.elapsed() < END_TIME_MAX, "it had to be killed");
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        let alone = Server::start(valkey, &Launch { threads: 1, ..Launch::default() }).expect("it starts");
        alone.rest();
        assert!(ask(alone.address, &["PING"]).expect("an answer").starts_with("+PONG"));
    }

    #[test]
    fn directories_are_distinct() {
        let (one, two) = (new_directory().expect("created"), new_directory().expect("created"));
        assert_ne!(one, two);
        for directory in [one, two] {
            fs::remove_dir(directory).expect("empty");
        }
    }
}
