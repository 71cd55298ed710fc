//! Clients of the cases of real programs. All of them stop on drop.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(super) use crate::corpus::Clients;

const PATIENCE: Duration = Duration::from_millis(300);
/// CPU and priority as of `stage::LOAD`.
const CPU: usize = 1;
const PRIORITY: i32 = 5;

/// Starts clients on threads with the place of `stage::LOAD`, where the machine and the user have it.
fn start(count: usize, act: impl Fn(&AtomicBool) + Send + Clone + 'static) -> Clients {
    Clients::start(count, move |stop| {
        take_place();
        act(stop);
    })
}

fn take_place() {
    let priority = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the set and the parameter are alive for the calls; a set of zeros is empty.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(CPU, &mut cpus);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cpus);
        libc::sched_setscheduler(0, libc::SCHED_RR, &raw const priority);
    }
}

/// Clients of a line server, with a connection each: a line there, a line back.
pub(super) fn lines(port: u16, count: usize) -> Clients {
    Clients::start(count, move |stop| {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return };
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let Ok(reader) = stream.try_clone() else { return };
        let (mut reader, mut line) = (BufReader::new(reader), Vec::new());
        while !stop.load(Ordering::Relaxed) && stream.write_all(b"a line\n").is_ok() {
            line.clear();
            // A slow server's line comes in pieces between time-outs.
            while !line.ends_with(b"\n") && !stop.load(Ordering::Relaxed) {
                match reader.read_until(b'\n', &mut line) {
                    Ok(0) => return,
                    Err(error) if error.kind() != ErrorKind::WouldBlock => return,
                    _ => {}
                }
            }
        }
    })
}

/// HTTP clients with a connection for each request; each client waits for the reply, and rests after it.
pub(super) fn fetch(port: u16, path: &str, count: usize, rest: Duration) -> Clients {
    let request = format!("GET {path} HTTP/1.0\r\nHost: case\r\nAccept-Encoding: gzip\r\n\r\n");
    start(count, move |stop| {
        while !stop.load(Ordering::Relaxed) {
            let _ = ask(port, &request, stop);
            std::thread::sleep(rest);
        }
    })
}

fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a request, and reads until the server closes.
fn ask(port: u16, request: &str, stop: &AtomicBool) -> std::io::Result<()> {
    let mut stream = connect(port)?;
    stream.write_all(request.as_bytes())?;
    let mut room = vec![0; 64 << 10];
    while read_some(&mut stream, &mut room, stop)? > 0 {}
    Ok(())
}

/// Reads, and looks now and then whether to stop.
fn read_some(stream: &mut impl Read, room: &mut [u8], stop: &AtomicBool) -> std::io::Result<usize> {
    loop {
        match stream.read(room) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && !stop.load(Ordering::Relaxed) => {}
            other => return other,
        }
    }
}

/// HTTP clients that keep their connections. The replies must have a length.
pub(super) fn fetch_kept(port: u16, path: &str, count: usize) -> Clients {
    let request = format!("GET {path} HTTP/1.1\r\nHost: case\r\n\r\n");
    start(count, move |stop| {
        while !stop.load(Ordering::Relaxed) {
            let Ok(stream) = connect(port) else { return };
            let mut replies = BufReader::new(stream);
            while !stop.load(Ordering::Relaxed) && converse(&mut replies, &request, stop).is_some() {}
        }
    })
}

fn converse(stream: &mut BufReader<TcpStream>, request: &str, stop: &AtomicBool) -> Option<()> {
    stream.get_mut().write_all(request.as_bytes()).ok()?;
    let mut left = 0;
    loop {
        let line = line(stream, stop)?;
        match line.trim_end().split_once(": ") {
            Some((name, length)) if name.eq_ignore_ascii_case("content-length") => {
                left = length.parse().ok()?
            }
            _ if line == "\r\n" => break,
            _ => {}
        }
    }
    let mut room = vec![0; 64 << 10];
    while left > 0 {
        let most = left.min(room.len());
        left -= read_some(stream, &mut room[..most], stop).ok().filter(|len| *len > 0)?;
    }
    Some(())
}

fn line(stream: &mut BufReader<TcpStream>, stop: &AtomicBool) -> Option<String> {
    let mut line = String::new();
    loop {
        match stream.read_line(&mut line) {
            Ok(1..) => return Some(line),
            Err(error) if error.kind() == ErrorKind::WouldBlock && !stop.load(Ordering::Relaxed) => {}
            _ => return None,
        }
    }
}

/// Sends a request on each connection, and never reads.
pub(super) fn deaf(port: u16, request: &str, count: usize) -> Clients {
    let request = request.to_string();
    start(count, move |stop| {
        let Ok(mut stream) = connect(port) else { return };
        let _ = stream.write_all(request.as_bytes());
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    })
}

/// A client that sends half of a request, and its address.
pub(super) fn hesitant(port: u16) -> (TcpStream, String) {
    let mut stream = connect(port).expect("the server listens");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: ").expect("the server reads");
    let address = stream.local_addr().expect("connected").to_string();
    (stream, address)
}

/// Repeats a request on a kept connection, and reads whatever comes; `rest` after each.
pub(super) fn repeat(port: u16, request: &str, end: &'static str, count: usize, rest: Duration) -> Clients {
    let request = request.to_string();
    start(count, move |stop| {
        let Ok(mut stream) = connect(port) else { return };
        let mut room = vec![0; 1 << 20];
        while !stop.load(Ordering::Relaxed) && stream.write_all(request.as_bytes()).is_ok() {
            loop {
                match read_some(&mut stream, &mut room, stop) {
                    Ok(len) if room[..len].ends_with(end.as_bytes()) => break,
                    Ok(1..) => {}
                    _ => return,
                }
            }
            std::thread::sleep(rest);
        }
    })
}

/// Connects, sends nothing, and stays.
pub(super) fn silent(port: u16, count: usize) -> Clients {
    deaf(port, "", count)
}

/// Lets the kernel forget the cached pages of a file, many times a second.
pub(super) fn forget(path: &str) -> Clients {
    let file = Arc::new(std::fs::File::open(path).expect("it was written"));
    start(1, move |stop| {
        while !stop.load(Ordering::Relaxed) {
            forget_pages(&file);
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

fn forget_pages(file: &std::fs::File) {
    // SAFETY: no pointers.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// A client that fetches a file again and again, which the kernel has forgotten each time.
pub(super) fn fetch_cold(port: u16, path: &str, file: &str) -> Clients {
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    let file = Arc::new(std::fs::File::open(file).expect("it was written"));
    start(1, move |stop| {
        while !stop.load(Ordering::Relaxed) {
            forget_pages(&file);
            let _ = ask(port, &request, stop);
        }
    })
}
