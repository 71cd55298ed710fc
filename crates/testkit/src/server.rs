//! A private server process: a free port, a private folder, its log kept, and removed with the test.
//!
//! To choose a port, the test asks the kernel for a free port and releases it, so another process can take
//! the port before the server does; then the start is tried again on another port.
//!
//! A server in a `static` is never dropped, and an interrupted test run drops nothing. So the kernel is asked
//! to kill each server when its parent is gone. That signal follows the *thread* that started the process,
//! not the process, and threads of tests come and go. Hence a single thread, which lives as long as the test
//! binary, starts all servers.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::client::Client;
use crate::program::Program;

const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const PORTS_TRIED: u32 = 5;
const LOG_LINES_SHOWN: usize = 40;

pub struct Server {
    program: Program,
    args: Vec<String>,
    port: u16,
    folder: Folder,
    process: Child,
    connector: Option<Connector>,
}

/// Opens a connection other than over the plain port.
type Connector = Box<dyn Fn() -> io::Result<Client> + Send + Sync>;

impl Server {
    /// Starts the program with persistence off on a free port of 127.0.0.1 and waits until it answers there.
    ///
    /// `args` come last, so they win over the defaults; `{dir}` and `{port}` in them become the private
    /// folder and the port. With `--unixsocket` and `--port 0` the server is reached over that socket.
    #[track_caller]
    pub fn start(program: &Program, args: &[&str]) -> Server {
        match Server::try_start(program, args) {
            Ok(server) => server,
            Err(problem) => panic!("{} did not start: {problem}", program.path().display()),
        }
    }

    /// Like `start`, for a command line that the server may refuse: the error holds the server's output.
    pub fn try_start(program: &Program, args: &[&str]) -> Result<Server, String> {
        let mut problem = String::new();
        for _ in 0..PORTS_TRIED {
            let folder = Folder::create().map_err(|error| format!("no private folder: {error}"))?;
            let args = command_line(free_port(), folder.path(), args);
            let port =
                option(&args, "--port").and_then(|port| port.parse().ok()).ok_or("`--port` is no number")?;
            let process = launch(program, &args, folder.path())?;
            let mut server =
                Server { program: program.clone(), args, port, folder, process, connector: None };
            match server.wait_until_ready() {
                Ok(()) => return Ok(server),
                Err(why) => problem = format!("{why}\n{}", server.log()),
            }
            if !problem.contains("in use") {
                break;
            }
        }
        Err(problem)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the private folder: the server's working directory, removed with the server.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the server's standard output and error, over restarts.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(log_path(self.folder.path())).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[track_caller]
    pub fn connect(&self) -> Client {
        match self.try_connect() {
            Ok(client) => client,
            Err(error) => panic!("no connection to port {}: {error}", self.port),
        }
    }

    /// Makes all later connections to this server go through `connector`.
    pub fn connect_by(&mut self, connector: impl Fn() -> io::Result<Client> + Send + Sync + 'static) {
        self.connector = Some(Box::new(connector));
    }

    pub fn try_connect(&self) -> io::Result<Client> {
        if let Some(connector) = &self.connector {
            return connector();
        }
        match option(&self.args, "--unixsocket") {
            Some(path) if self.port == 0 => Client::connect_unix(Path::new(path)),
            _ => Client::connect(self.address()),
        }
    }

    /// Opens a connection that speaks RESP3.
    #[track_caller]
    pub fn connect3(&self) -> Client {
        let mut client = self.connect();
        let greeting = client.run("HELLO 3");
        assert!(matches!(greeting, Value::Map(_)), "HELLO 3 says {greeting}");
        client
    }

    /// Returns the resident memory of the process, in bytes.
    #[track_caller]
    pub fn rss(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the process lives");
        let line =
            status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process has a VmRSS line");
        let kilobytes = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
        kilobytes.expect("VmRSS is a number of kB") * 1024
    }

    /// Returns a field of INFO, read over a new connection.
    #[track_caller]
    pub fn info(&self, field: &str) -> String {
        let reply = self.connect().run("INFO everything");
        let text = reply.as_bytes().unwrap_or_else(|| panic!("INFO says {reply}"));
        let text = String::from_utf8_lossy(text).into_owned();
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("INFO has no field {field}")).to_owned()
    }

    /// Returns whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Panics unless the process runs and its log reports no panic and no crash.
    #[track_caller]
    pub fn assert_healthy(&mut self) {
        assert!(self.is_alive(), "the server has died:\n{}", self.log_tail());
        let log = self.log();
        for sign in ["panicked at", "REDIS BUG REPORT", "BUG REPORT START", "AddressSanitizer"] {
            assert!(!log.contains(sign), "the log holds `{sign}`:\n{}", self.log_tail());
        }
    }

    /// Asks the process to end, as an init system does, and waits for it.
    #[track_caller]
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            if let Some(status) = self.process.try_wait().expect("the child is ours to wait for") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "no end within {STOP_TIMEOUT:?} of SIGTERM:\n{}",
                self.log_tail()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the process as a power cut does.
    pub fn kill(&mut self) {
        let _ = self.process.kill(); // it may have ended by itself
        let _ = self.process.wait();
    }

    /// Starts a stopped or killed server again, with the same arguments, port and folder.
    #[track_caller]
    pub fn start_again(&mut self) {
        if let Err(why) = self.try_start_again() {
            panic!("no second start: {why}\n{}", self.log_tail());
        }
    }

    /// Like `start_again`, for a server that may end before it is ready.
    ///
    /// # Errors
    /// The exit status of a server that ended early.
    pub fn try_start_again(&mut self) -> Result<(), String> {
        assert!(!self.is_alive(), "stop the server first");
        self.process = launch(&self.program, &self.args, self.folder.path()).expect("it started before");
        self.wait_until_ready()
    }

    pub fn signal(&self, signal: i32) {
        let signal = Signal::from_named_raw(signal).expect("it has a name");
        // The child has not been waited for, so its pid names no other process.
        let _ = kill_process(Pid::from_child(&self.process), signal);
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(format!("it ended with {status}"));
            }
            // Any answer but "loading" will do: a server may refuse this client.
            let answer = self.try_connect().and_then(|mut client| {
                if let Some(password) = option(&self.args, "--requirepass") {
                    // before AUTH, the server does not report that it loads
                    client.try_call(&["AUTH", password])?;
                }
                let reply = client.try_call(&["PING"])?;
                Ok((reply, client))
            });
            if let Ok((reply, client)) = answer
                && !reply.to_string().starts_with("-LOADING")
            {
                return self.expect_own(client);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!("no answer within {START_TIMEOUT:?}"))
    }

    /// Fails if another process answers: a server of another test run may have taken the port between its
    /// choice and this server's start.
    fn expect_own(&self, mut client: Client) -> Result<(), String> {
        let info = client.try_call(&["INFO", "server"]).map(|reply| reply.to_string()).unwrap_or_default();
        // A server may refuse INFO to this client.
        let Some((_, rest)) = info.split_once("process_id:") else { return Ok(()) };
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        if digits == self.process.id().to_string() {
            return Ok(());
        }
        Err(format!("port {} is in use by process {digits}", self.port))
    }

    /// Returns the last lines of the log, or everything from a panic on.
    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.len().saturating_sub(LOG_LINES_SHOWN);
        let panic = lines.iter().position(|line| line.contains("panicked at"));
        lines[panic.map_or(last, |panic| panic.min(last))..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log of {} ---\n{}", self.program.path().display(), self.log_tail());
        } else if self.program.reference().is_none() {
            let log = self.log();
            let number = log.lines().find(|line| line.contains("(os error "));
            assert!(number.is_none(), "the log has the number of an error: {number:?}");
        }
    }
}

fn command_line(port: u16, folder: &Path, args: &[&str]) -> Vec<String> {
    let (port, folder) = (port.to_string(), folder.display().to_string());
    let defaults =
        ["--port", "{port}", "--bind", "127.0.0.1", "--dir", "{dir}", "--save", "", "--appendonly", "no"];
    let fill_in = |arg: &&str| arg.replace("{dir}", &folder).replace("{port}", &port);
    defaults.iter().chain(args).map(fill_in).collect()
}

/// Returns the value of an option on a command line; the last occurrence counts.
fn option<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    let at = args.iter().rposition(|arg| arg == name)?;
    args.get(at + 1).map(String::as_str)
}

fn log_path(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// Returns a port on which no process listens at the moment.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback has a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

fn launch(program: &Program, args: &[String], folder: &Path) -> Result<Child, String> {
    let log = File::options().create(true).append(true).open(log_path(folder));
    let log = log.map_err(|error| format!("no log file: {error}"))?;
    let mut command = program.command();
    let second = log.try_clone().map_err(|error| format!("no second handle of the log: {error}"))?;
    command.args(args).current_dir(folder).stdin(Stdio::null()).stdout(log).stderr(second);
    // SAFETY: between fork and exec the closure makes one system call and touches no memory of the parent.
    unsafe { command.pre_exec(die_with_parent) };
    spawn_on_lasting_thread(command).map_err(|error| error.to_string())
}

fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// The kernel ends a server with the thread that started it: see the head of this file.
fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static ORDERS: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in receiver {
                let _ = answer.send(command.spawn()); // a caller that is gone wants no child
            }
        });
        Mutex::new(sender)
    });
    let (answer, outcome) = mpsc::channel();
    orders.lock().expect("no holder panics").send((command, answer)).expect("the thread never ends");
    outcome.recv().expect("every order is answered")
}

/// A folder that is removed with its owner.
struct Folder(PathBuf);

impl Folder {
    fn create() -> io::Result<Folder> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("evenkeel-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // a folder left behind does not fail the test
    }
}
