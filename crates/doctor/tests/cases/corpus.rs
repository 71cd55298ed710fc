//! Programs with a known fault, and clients with a known fault.
//!
//! A program is this test binary, started again with the program's name in its environment; the test `play`
//! runs it, and does nothing otherwise. So there is nothing to install, and the doctor sees a separate
//! process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_testkit::Random;

use crate::stage::{ANYWHERE, Place, prefix};

const VARIABLE: &str = "EVENKEEL_DOCTOR_CASE";
/// Names the file that the program `reader` reads.
pub(crate) const FILE_VARIABLE: &str = "EVENKEEL_DOCTOR_FILE";
const BACKLOG: i32 = 5;
const WORKERS: usize = 4;

/// A program of the corpus, killed on drop.
pub(crate) struct Program {
    child: Child,
    port: u16,
}

impl Program {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a process that it has started.
    pub(crate) fn child(&self) -> u32 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        let children = tasks.flatten().find_map(|task| {
            let pids = std::fs::read_to_string(task.path().join("children")).ok()?;
            pids.split_ascii_whitespace().next()?.parse().ok()
        });
        children.expect("it has started one")
    }

    /// The port on which it listens; 0 if none.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn start(name: &str, place: Place) -> Program {
    start_by(&prefix(place), &std::env::current_exe().expect("this test has a path"), name)
}

/// As `start`, with a command prefix and a copy of this test binary.
pub(crate) fn start_by(prefix: &[&str], own: &Path, name: &str) -> Program {
    let own = own.to_str().expect("a path of text").to_string();
    let mut words: Vec<String> = prefix.iter().map(ToString::to_string).collect();
    words.extend([own, "corpus::play".to_string(), "--exact".to_string(), "--nocapture".to_string()]);
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env(VARIABLE, name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("this test can be started again");
    // Its standard input closes when this process ends, for whatever reason; then the program ends too.
    let lines = BufReader::new(child.stdout.take().expect("it was asked for")).lines();
    let ready =
        lines.map_while(Result::ok).find_map(|line| Some(line.split_once("ready on ")?.1.to_string()));
    let port = ready.expect("the program says that it is ready").parse().expect("a port");
    Program { child, port }
}

#[test]
fn play() {
    let Ok(name) = std::env::var(VARIABLE) else { return };
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match name.as_str() {
        "hog" => hog(),
        "writer" => writer(),
        "mutex" => workers(true),
        "no-mutex" => workers(false),
        "slow-accept" => slow_accept(),
        "one-accept" => one_accept(),
        "pool" => pool(),
        "many" => many(),
        "ping-pong" => ping_pong(),
        "reader" => reader(),
        "cron" => cron(),
        "origin" => origin(Duration::ZERO),
        "slow-origin" => origin(Duration::from_millis(200)),
        "map-log" => map_log(),
        "slow-upstream" => upstream(Duration::from_millis(200)),
        "fast-upstream" => upstream(Duration::ZERO),
        "front-of-slow" => front("slow-upstream"),
        "front-of-fast" => front("fast-upstream"),
        "sleeper" => sleeper(),
        "fifo-writer" => fifo_writer(),
        "fifo-reader" => fifo_reader(),
        "lock-sleeper" => lock_sleeper(),
        "name-asker" => name_asker(),
        other => panic!("no program {other}"),
    }
}

fn ready(port: u16) {
    println!("ready on {port}");
}

#[inline(never)]
fn hog() {
    ready(0);
    loop {
        spin(Duration::from_millis(10));
    }
}

/// Spends most of its time in the kernel.
fn writer() {
    let mut nobody = std::fs::File::options().write(true).open("/dev/null").expect("it is there");
    ready(0);
    loop {
        write_to_nobody(&mut nobody);
    }
}

#[inline(never)]
fn write_to_nobody(file: &mut std::fs::File) {
    file.write_all(b"line\n").expect("it takes everything");
}

pub(crate) const MANY_THREADS: usize = 10_000;
pub(crate) const MANY_DESCRIPTORS: usize = 50_000;

/// As many idle threads as the machine allows, and nearly as many descriptors: some stay free.
fn many() {
    let want = MANY_DESCRIPTORS as u64 + 100;
    let limit = libc::rlimit { rlim_cur: want, rlim_max: want };
    // SAFETY: the limit is alive for the call.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let null = std::fs::File::open("/dev/null").expect("it is there");
    let mut files: Vec<_> = (0..MANY_DESCRIPTORS).map_while(|_| null.try_clone().ok()).collect();
    files.truncate(files.len() * 9 / 10);
    // Starting takes locks, so the threads contend until all have started.
    static SLEEPERS: AtomicUsize = AtomicUsize::new(0);
    let sleep = || {
        SLEEPERS.fetch_add(1, Ordering::Relaxed);
        std::thread::park();
    };
    let sleeper = |_| std::thread::Builder::new().stack_size(16 << 10).spawn(sleep).ok();
    let threads: Vec<_> = (0..MANY_THREADS).map_while(sleeper).collect();
    while SLEEPERS.load(Ordering::Relaxed) < threads.len() {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{} threads, {} descriptors", threads.len(), files.len());
    ready(0);
    loop {
        std::thread::park();
    }
}

#[inline(always)] // so that its time is its caller's
fn spin(length: Duration) {
    let start = Instant::now();
    while start.elapsed() < length {
        std::hint::spin_loop();
    }
}

/// Threads that take a task and write to a log. Queue and log are shared by all threads, or separate for
/// each. Their lengths vary: with fixed lengths all threads would queue for the slower lock, and never for
/// the faster.
fn workers(shared: bool) {
    ready(0);
    let (queue, log) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
    let worker = |number: usize| {
        let mut random = Random::new(number as u64);
        let own = |common: &Arc<Mutex<u64>>| if shared { Arc::clone(common) } else { Arc::default() };
        let (queue, log) = (own(&queue), own(&log));
        std::thread::spawn(move || {
            loop {
                take_task(&queue, Duration::from_micros(random.below(120) as u64));
                append_to_log(&log, Duration::from_micros(random.below(200) as u64));
            }
        })
    };
    let threads: Vec<JoinHandle<()>> = (0..WORKERS).map(worker).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a worker runs for good"));
}

#[inline(never)]
fn take_task(queue: &Mutex<u64>, length: Duration) {
    let mut tasks = queue.lock().expect("no worker panics");
    spin(length);
    *tasks += 1;
}

#[inline(never)]
fn append_to_log(log: &Mutex<u64>, length: Duration) {
    let mut lines = log.lock().expect("no worker panics");
    spin(length);
    *lines += 1;
}

/// Reads random pages of a file, past the kernel's cache. The file belongs to the test, and goes with its
/// folder.
fn reader() {
    const PAGE: usize = 4096;
    const PAGES: usize = 4096;
    let path = std::env::var(FILE_VARIABLE).expect("the test says which file");
    let mut file = std::fs::File::create(&path).expect("a file");
    file.write_all(&vec![b'x'; PAGES * PAGE]).and_then(|()| file.sync_all()).expect("room on the disk");
    let file =
        std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).expect("it is there");
    let mut random = Random::new(1);
    // O_DIRECT requires page-aligned memory.
    let mut room = vec![0_u8; 2 * PAGE];
    let start = room.as_ptr().align_offset(PAGE);
    ready(0);
    loop {
        let at = random.below(PAGES) * PAGE;
        let read = file.read_at(&mut room[start..start + PAGE], at as u64);
        assert_eq!(read.expect("what was written can be read"), PAGE);
    }
}

/// A short backlog, and a connection accepted every 20 ms.
fn slow_accept() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    // SAFETY: listen(2) on our own descriptor; again, since std listens with 128.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) }, 0);
    ready(listener.local_addr().expect("bound").port());
    loop {
        std::thread::sleep(Duration::from_millis(20));
        drop(listener.accept());
    }
}

/// Pre-forked processes that accept from a shared listener with a short backlog.
fn pool() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    // SAFETY: listen(2) on our own descriptor; again, since std listens with 128.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) }, 0);
    for _ in 0..WORKERS {
        // SAFETY: the child makes system calls alone, and ends with this process.
        unsafe {
            if libc::fork() == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                serve_one_by_one(&listener);
            }
        }
    }
    ready(listener.local_addr().expect("bound").port());
    loop {
        std::thread::park();
    }
}

fn serve_one_by_one(listener: &TcpListener) -> ! {
    let mut request = [0; 64];
    loop {
        let Ok((mut stream, _)) = listener.accept() else { continue };
        if stream.read(&mut request).is_ok_and(|len| len > 0) {
            std::thread::sleep(Duration::from_millis(1)); // a backend call
            let _ = stream.write_all(b"+PONG\r\n");
        }
    }
}

const FOR_GOOD: Duration = Duration::MAX;

/// Waits for an event of a descriptor, for at most `length`.
fn wait_for_events(epoll: i32, length: Duration) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let ms = i32::try_from(length.as_millis() + 1).unwrap_or(-1);
    // SAFETY: `event` has room for the single event that is requested.
    unsafe { libc::epoll_wait(epoll, &raw mut event, 1, ms) };
}

fn epoll_of(fd: i32, events: i32) -> i32 {
    let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: 0 };
    // SAFETY: the event is alive for the call.
    unsafe {
        let epoll = libc::epoll_create1(0);
        assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
        epoll
    }
}

/// Four threads with an eventfd each; each woken thread wakes the next.
fn ping_pong() {
    // SAFETY: no pointers.
    let fds: Vec<i32> = (0..WORKERS).map(|_| unsafe { libc::eventfd(0, 0) }).collect();
    ready(0);
    let one = 1_u64.to_ne_bytes();
    // SAFETY: eight bytes, as an eventfd takes them.
    let wake = move |fd: i32| unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
    let worker = |number: usize| {
        let (own, next) = (fds[number], fds[(number + 1) % WORKERS]);
        std::thread::spawn(move || {
            let epoll = epoll_of(own, libc::EPOLLIN);
            let mut count = [0_u8; 8];
            loop {
                wait_for_events(epoll, FOR_GOOD);
                // SAFETY: eight bytes, as an eventfd gives them.
                unsafe { libc::read(own, count.as_mut_ptr().cast(), count.len()) };
                wake(next);
            }
        })
    };
    let threads: Vec<JoinHandle<()>> = (0..WORKERS).map(worker).collect();
    wake(fds[0]);
    wake(fds[WORKERS / 2]);
    threads.into_iter().for_each(|thread| thread.join().expect("a worker runs for good"));
}

/// An event loop that accepts, and does a chore four times a second.
fn cron() {
    const PERIOD: Duration = Duration::from_millis(250);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    ready(listener.local_addr().expect("bound").port());
    let epoll = epoll_of(listener.as_raw_fd(), libc::EPOLLIN);
    let mut next = Instant::now() + PERIOD;
    loop {
        wait_for_events(epoll, next.saturating_duration_since(Instant::now()));
        if Instant::now() >= next {
            sweep();
            next += PERIOD;
        }
    }
}

#[inline(never)]
fn sweep() {
    spin(Duration::from_millis(70));
}

/// An edge-triggered listener that accepts a single connection per event.
fn one_accept() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    ready(listener.local_addr().expect("bound").port());
    let epoll = epoll_of(listener.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET);
    loop {
        wait_for_events(epoll, FOR_GOOD);
        let Ok((mut stream, _)) = listener.accept() else { continue };
        // The work on a request: other connections arrive meanwhile. Short, or the sleep itself were a cause.
        std::thread::sleep(Duration::from_micros(200));
        let _ = stream.write_all(b"+PONG\r\n");
    }
}

/// A server that logs each request, and maps a new buffer for each line.
fn map_log() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut log = std::fs::File::options().write(true).open("/dev/null").expect("it is there");
    ready(listener.local_addr().expect("bound").port());
    for mut stream in listener.incoming().flatten() {
        let mut requests = [0; 4096];
        while let Ok(len @ 1..) = stream.read(&mut requests) {
            let lines = requests[..len].iter().filter(|&&byte| byte == b'\n').count();
            (0..lines).for_each(|_| log_line(&mut log));
            if stream.write_all(&b"+PONG\r\n".repeat(lines)).is_err() {
                break;
            }
        }
    }
}

#[inline(never)]
fn log_line(log: &mut std::fs::File) {
    const LEN: usize = 1 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory that nothing else uses, unmapped after its last use.
    unsafe {
        let line = libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(line, libc::MAP_FAILED, "no memory for a line");
        libc::memset(line, i32::from(b'.'), 64 * 1024);
        let _ = log.write_all(std::slice::from_raw_parts(line.cast(), 100));
        libc::munmap(line, LEN);
    }
}

/// The origin behind a proxy: the same reply to every request, after a while.
fn origin(length: Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    ready(listener.local_addr().expect("bound").port());
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            let mut requests = BufReader::new(&stream).lines().map_while(Result::ok);
            // A request ends with an empty line.
            while requests.by_ref().any(|line| line.is_empty()) {
                std::thread::sleep(length);
                let sent = (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
                if sent.is_err() {
                    return;
                }
            }
        });
    }
}

/// Replies to each line after a while.
fn upstream(length: Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    ready(listener.local_addr().expect("bound").port());
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let requests = BufReader::new(&stream).lines().map_while(Result::ok);
            for _ in requests {
                std::thread::sleep(length);
                if (&stream).write_all(b"+PONG\r\n").is_err() {
                    return;
                }
            }
        });
    }
}

/// A server of one thread that asks another server for each request.
fn front(upstream: &str) {
    let upstream = start(upstream, ANYWHERE);
    let mut asks = TcpStream::connect(("127.0.0.1", upstream.port())).expect("it listens");
    asks.set_nodelay(true).expect("a TCP socket");
    serve(move || {
        asks.write_all(b"PING\r\n").expect("it reads");
        asks.read_exact(&mut [0; 7]).expect("it replies");
    });
}

/// Serves a connection after the other, and does `work` for each request.
fn serve(mut work: impl FnMut()) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    ready(listener.local_addr().expect("bound").port());
    let mut request = [0; 64];
    for mut stream in listener.incoming().flatten() {
        if stream.read(&mut request).is_ok_and(|len| len > 0) {
            work();
            let _ = stream.write_all(b"+PONG\r\n");
        }
    }
}

/// A handler that sleeps.
fn sleeper() {
    serve(|| std::thread::sleep(Duration::from_millis(50)));
}

/// Writes to a named pipe, by the name that the test gives, whose reader takes a line now and then.
fn fifo_writer() {
    let path = std::env::var(FILE_VARIABLE).expect("the test says which file");
    let name = std::ffi::CString::new(path.clone()).expect("a path");
    // SAFETY: the path is alive for the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let _reader = start("fifo-reader", ANYWHERE);
    let mut pipe = std::fs::File::options().write(true).open(path).expect("the reader has it open");
    ready(0);
    loop {
        pipe.write_all(&[b'x'; 1000]).expect("it is read");
    }
}

fn fifo_reader() {
    let path = std::env::var(FILE_VARIABLE).expect("the test says which file");
    ready(0);
    let mut pipe = std::fs::File::open(path).expect("it was made");
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let _ = pipe.read(&mut [0; 1000]);
    }
}

/// Six threads that serve connections, with one lock that is taken over a sleep.
fn lock_sleeper() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let totals = Arc::new(Mutex::new(0));
    let port = listener.local_addr().expect("bound").port();
    let thread = |_| {
        let (listener, totals) = (listener.try_clone().expect("a second handle"), Arc::clone(&totals));
        std::thread::spawn(move || {
            let mut request = [0; 64];
            for mut stream in listener.incoming().flatten() {
                while stream.read(&mut request).is_ok_and(|len| len > 0) {
                    update_totals(&totals);
                    let _ = stream.write_all(b"+PONG\r\n");
                }
            }
        })
    };
    let threads: Vec<JoinHandle<()>> = (0..6).map(thread).collect();
    ready(port);
    threads.into_iter().for_each(|thread| thread.join().expect("it runs for good"));
}

#[inline(never)]
fn update_totals(totals: &Mutex<u64>) {
    let mut totals = totals.lock().expect("no thread panics");
    std::thread::sleep(Duration::from_millis(50));
    *totals += 1;
}

/// A handler that asks a name server that does not answer, twice for each request.
fn name_asker() {
    serve(|| {
        for _ in 0..2 {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
            socket.connect("127.0.0.1:53").expect("an address");
            socket.set_read_timeout(Some(Duration::from_millis(80))).expect("a timeout");
            let _ = socket.send(&[0; 17]);
            // Refused at once if nobody listens there.
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(80) {
                if socket.recv(&mut [0; 64]).is_err() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    });
}

/// Clients on threads of this process, stopped on drop.
pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    pub(crate) fn start(count: usize, act: impl Fn(&AtomicBool) + Send + Clone + 'static) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = |_| {
            let (stop, act) = (Arc::clone(&stop), act.clone());
            std::thread::spawn(move || act(&stop))
        };
        Clients { threads: (0..count).map(thread).collect(), stop }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts");
    stream.set_nodelay(true).expect("a TCP socket");
    stream.set_read_timeout(Some(Duration::from_millis(500))).expect("a TCP socket");
    stream
}

/// Many clients that connect and soon give up.
pub(crate) fn crowd(port: u16) -> Clients {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    Clients::start(20, move |stop| {
        while !stop.load(Ordering::Relaxed) {
            let _ = TcpStream::connect_timeout(&address, Duration::from_millis(100));
        }
    })
}

/// A new connection for each request, by `clients` threads.
pub(crate) fn short_connections(port: u16, clients: usize) -> Clients {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    Clients::start(clients, move |stop| {
        while !stop.load(Ordering::Relaxed) {
            let connected = TcpStream::connect_timeout(&address, Duration::from_millis(500));
            let Ok(mut stream) = connected else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
            ping(&mut stream, &[b"PING\r\n"]);
        }
    })
}

/// Requests a large value many times, and reads nothing.
pub(crate) fn deaf_client(port: u16) -> Clients {
    Clients::start(1, move |stop| {
        let mut stream = connect(port);
        let value = "x".repeat(1 << 20);
        let set = format!("*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n${}\r\n{value}\r\n", value.len());
        stream.write_all(set.as_bytes()).expect("it reads");
        stream.write_all("GET large\r\n".repeat(64).as_bytes()).expect("it reads");
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    })
}

fn ping(stream: &mut TcpStream, pieces: &[&[u8]]) -> bool {
    let sent = pieces.iter().all(|piece| stream.write_all(piece).is_ok());
    sent && stream.read_exact(&mut [0; 7]).is_ok()
}

/// Sends single requests, with a rest after each.
pub(crate) fn calm_clients(port: u16, rest: Duration) -> Clients {
    Clients::start(2, move |stop| {
        let mut stream = connect(port);
        while !stop.load(Ordering::Relaxed) && ping(&mut stream, &[b"PING\r\n"]) {
            std::thread::sleep(rest);
        }
    })
}

/// Sends sixteen requests at a time, without a rest.
pub(crate) fn busy_client(port: u16) -> Clients {
    Clients::start(1, move |stop| {
        let (mut stream, mut answers) = (connect(port), [0; 16 * 7]);
        while !stop.load(Ordering::Relaxed) {
            let sent = stream.write_all(&b"PING\r\n".repeat(16));
            if sent.is_err() || stream.read_exact(&mut answers).is_err() {
                return;
            }
        }
    })
}

/// Six clients with a connection each, which wait for replies.
pub(crate) fn patient_six(port: u16) -> Clients {
    Clients::start(6, move |stop| {
        let mut stream = connect(port);
        while !stop.load(Ordering::Relaxed) {
            ping(&mut stream, &[b"PING\r\n"]);
        }
    })
}

/// Two clients with a connection for each request, which wait for the reply.
pub(crate) fn patient_pair(port: u16) -> Clients {
    Clients::start(2, move |stop| {
        while !stop.load(Ordering::Relaxed) {
            ping(&mut connect(port), &[b"PING\r\n"]);
        }
    })
}

/// A new connection for each request; each client waits for the reply.
pub(crate) fn patient_crowd(port: u16) -> Clients {
    Clients::start(12, move |stop| {
        while !stop.load(Ordering::Relaxed) {
            ping(&mut connect(port), &[b"PING\r\n"]);
        }
    })
}

/// Sends each byte of a request in a packet of its own.
pub(crate) fn chatty_clients(port: u16) -> Clients {
    Clients::start(4, move |stop| {
        let mut stream = connect(port);
        let request: Vec<&[u8]> = b"PING                                    \r\n".chunks(1).collect();
        while !stop.load(Ordering::Relaxed) && ping(&mut stream, &request) {}
    })
}

/// Requests through a proxy, with long addresses for its log.
pub(crate) fn proxied(proxy: u16, origin: u16) -> Clients {
    let path = "x".repeat(1_000);
    let request = format!("GET http://127.0.0.1:{origin}/{path} HTTP/1.1\r\nHost: case\r\n\r\n");
    Clients::start(4, move |stop| {
        let mut stream = connect(proxy);
        let mut answers = BufReader::new(stream.try_clone().expect("a second handle"));
        let mut line = String::new();
        while !stop.load(Ordering::Relaxed) && stream.write_all(request.as_bytes()).is_ok() {
            while line != "\r\n" {
                line.clear();
                if answers.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
            }
            line.clear();
            if answers.read_exact(&mut [0; 5]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1)); // else its log daemon gets no CPU
        }
    })
}
