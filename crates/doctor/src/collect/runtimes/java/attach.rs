//! HotSpot's attach socket: how a process asks a JVM for its threads.
//!
//! A JVM opens the socket when it is first asked to: by a file of a certain name beside a SIGQUIT. It serves
//! processes of its own user and group alone (newer JVMs root too), so this thread takes on the user of the
//! JVM for each request; other threads are not concerned.
//!
//! The doctor may run outside the container of the JVM. The paths are those of the JVM's root, resolved
//! without leaving it, and the number in them is the JVM's in its PID namespace.

use std::ffi::CString;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::options::permit_attach;
use crate::collect::procfs;

/// Time for the JVM to open its socket.
const OPEN_MAX: Duration = Duration::from_secs(1);
const OPEN_STEP: Duration = Duration::from_millis(5);
/// Time of a request with its reply.
const REPLY_TIME_MAX: Duration = Duration::from_secs(2);
/// A thread takes 1 to 10 KB in a dump.
const REPLY_LEN_MAX: usize = 16 << 20;

/// A process that may open an attach socket.
#[derive(Debug)]
pub(super) struct Jvm {
    pid: i32,
    /// Its PID in its own namespace.
    inner_pid: i32,
    uid: u32,
    gid: u32,
    /// Signals go to this process, never to a later one with the same PID.
    handle: OwnedFd,
    /// Its /tmp.
    tmp: OwnedFd,
    /// Why nothing is asked any more.
    refusal: Option<String>,
}

/// The user that this thread takes on, until dropped.
struct AsUser {
    before: Option<(u32, u32)>,
}

impl Jvm {
    pub(super) fn open(pid: i32) -> Result<Jvm> {
        // SAFETY: takes two integers and returns a descriptor or -1.
        let handle = unsafe { owned(libc::syscall(libc::SYS_pidfd_open, pid, 0)) }.context("pidfd_open")?;
        let status = procfs::read(procfs::path(pid, "status")).context("it ended")?;
        let second =
            |name| procfs::status_field(&status, name)?.split_ascii_whitespace().nth(1)?.parse().ok();
        let inner_pid = procfs::status_field(&status, "NSpid")
            .and_then(|pids| pids.split_ascii_whitespace().last()?.parse().ok())
            .unwrap_or(pid);
        let (uid, gid) = second("Uid").zip(second("Gid")).context("its user is unknown")?;
        let tmp = folder_in_root(pid).context("its /tmp cannot be opened")?;
        Ok(Jvm { pid, inner_pid, uid, gid, handle, tmp, refusal: None })
    }

    /// Sends a request and returns the reply; an error if the JVM refuses it.
    pub(super) fn ask(&mut self, request: &[u8]) -> Result<String> {
        Ok(body_of(&self.ask_raw(request)?)?.to_string())
    }

    /// As [`Jvm::ask`]; `None` if the JVM refuses it.
    pub(super) fn ask_optional(&mut self, request: &[u8]) -> Result<Option<String>> {
        Ok(body_of(&self.ask_raw(request)?).ok().map(str::to_string))
    }

    /// Returns the whole reply. A request that fails is the last: the JVM may run it later, when nobody waits
    /// for it.
    fn ask_raw(&mut self, request: &[u8]) -> Result<String> {
        if let Some(refusal) = &self.refusal {
            bail!("{refusal}");
        }
        let state = procfs::stat(self.pid).context("it ended")?.state;
        ensure!(!matches!(state, 'T' | 't'), "it is stopped");
        let user = AsUser::become_user(self.uid, self.gid);
        let reply = user.and_then(|_user| {
            if !self.has_socket() {
                self.request_socket()?;
            }
            self.exchange(request)
        });
        reply.inspect_err(|error| self.refusal = Some(format!("{error:#}")))
    }

    fn socket_name(&self) -> String {
        format!(".java_pid{}", self.inner_pid)
    }

    /// A path that leads into a folder of the JVM, whatever this thread's user may see of /proc.
    fn path_in(folder: &OwnedFd, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
    }

    fn has_socket(&self) -> bool {
        let found = std::fs::symlink_metadata(Jvm::path_in(&self.tmp, &self.socket_name()));
        found
            .is_ok_and(|found| found.st_mode() & libc::S_IFMT == libc::S_IFSOCK && found.st_uid() == self.uid)
    }

    /// Asks the JVM to open its socket, and waits for it.
    fn request_socket(&self) -> Result<()> {
        permit_attach(self.pid)?;
        let request = self.create_request().context("no file can be made that requests its socket")?;
        // SAFETY: the descriptor is open, and without siginfo the kernel makes the usual.
        let sent = unsafe {
            let no_info = std::ptr::null::<libc::siginfo_t>();
            libc::syscall(libc::SYS_pidfd_send_signal, self.handle.as_raw_fd(), libc::SIGQUIT, no_info, 0)
        };
        let error = std::io::Error::last_os_error();
        let start = Instant::now();
        while sent == 0 && !self.has_socket() && start.elapsed() < OPEN_MAX {
            std::thread::sleep(OPEN_STEP);
        }
        if let Some(request) = request {
            let _ = std::fs::remove_file(request);
        }
        ensure!(sent == 0, "SIGQUIT: {error}");
        ensure!(self.has_socket(), "it did not open its attach socket within a second");
        Ok(())
    }

    /// Makes the file beside which SIGQUIT is a request. `None` if another process has just made it.
    fn create_request(&self) -> std::io::Result<Option<PathBuf>> {
        let name = format!(".attach_pid{}", self.inner_pid);
        let create = |path: PathBuf| match std::fs::File::create_new(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            made => made.map(|_| Some(path)),
        };
        create(Jvm::path_in(&self.tmp, &name))
            .or_else(|_| create(procfs::path(self.pid, &format!("cwd/{name}"))))
    }

    fn exchange(&self, request: &[u8]) -> Result<String> {
        let deadline = Instant::now() + REPLY_TIME_MAX;
        let late = "it did not reply within two seconds";
        let mut stream = self.connect().context("its attach socket")?;
        stream.set_write_timeout(Some(REPLY_TIME_MAX))?;
        stream.write_all(request).context(late)?;
        let mut reply = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), late);
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => reply.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    bail!(late)
                }
                Err(error) => return Err(error).context("its attach socket"),
            }
            ensure!(reply.len() <= REPLY_LEN_MAX, "its reply is longer than {} MB", REPLY_LEN_MAX >> 20);
        }
        // An empty reply: the user or the group are not the JVM's, as it sees them.
        ensure!(!reply.is_empty(), "it closed the connection to its attach socket without a reply");
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    /// Connects without waiting for a JVM that accepts nothing, and to this JVM only: containers that share
    /// a /tmp have sockets of the same name.
    fn connect(&self) -> Result<UnixStream> {
        let path = CString::new(format!("/proc/self/fd/{}/{}", self.tmp.as_raw_fd(), self.socket_name()))?;
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: zeroes are a valid address; the path is shorter than its field, which `zip` bounds anyway.
        let socket = unsafe {
            let socket = owned(libc::socket(libc::AF_UNIX, kind, 0).into())?;
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as libc::sa_family_t;
            let (_, room) = address.sun_path.split_last_mut().context("no room")?;
            for (to, from) in room.iter_mut().zip(path.as_bytes()) {
                *to = *from as libc::c_char;
            }
            let length = std::mem::size_of_val(&address) as libc::socklen_t;
            if libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            socket
        };
        let listener = listener_of(&socket).context("its listener is unknown")?;
        ensure!(listener == self.pid, "it belongs to process {listener}");
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

/// The process that listens at the other end.
fn listener_of(socket: &OwnedFd) -> Option<i32> {
    // SAFETY: zeroes are a valid `ucred`, and the call writes at most its length.
    unsafe {
        let mut other: libc::ucred = std::mem::zeroed();
        let mut length = std::mem::size_of_val(&other) as libc::socklen_t;
        let into = (&raw mut other).cast();
        let got =
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut length);
        (got == 0).then_some(other.pid)
    }
}

/// The text behind the line with the result; an error if that is not 0.
fn body_of(reply: &str) -> Result<&str> {
    let (code, body) = reply.split_once('\n').unwrap_or((reply, ""));
    ensure!(code == "0", "it refused: {}", body.lines().next().unwrap_or(code).trim());
    Ok(body)
}

/// Opens /tmp as the process sees it: a symbolic link in its root stays within it.
fn folder_in_root(pid: i32) -> Result<OwnedFd> {
    let root = CString::new(format!("/proc/{pid}/root"))?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the paths end with a zero, and the kernel reads as many bytes of `how` as its length says.
    unsafe {
        let root = owned(libc::open(root.as_ptr(), flags).into())?;
        let mut how: libc::open_how = std::mem::zeroed();
        how.flags = flags as u64;
        how.resolve = libc::RESOLVE_IN_ROOT;
        let length = std::mem::size_of_val(&how);
        let opened =
            libc::syscall(libc::SYS_openat2, root.as_raw_fd(), c"tmp".as_ptr(), &raw const how, length);
        Ok(owned(opened)?)
    }
}

/// # Safety
/// `fd` is negative, or a descriptor that nothing else owns; in the first case errno is the reason.
unsafe fn owned(fd: libc::c_long) -> std::io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: by this function's contract.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl AsUser {
    /// Takes on a user and a group. Unlike the functions of libc, the system calls concern this thread alone.
    fn become_user(uid: u32, gid: u32) -> Result<AsUser> {
        // SAFETY: they read and cannot fail.
        let before = unsafe { (libc::geteuid(), libc::getegid()) };
        if before == (uid, gid) {
            return Ok(AsUser { before: None });
        }
        ensure!(
            before.0 == 0 || before.0 == uid,
            "it serves its own user only: run the doctor as that, or root"
        );
        let user = AsUser { before: Some(before) };
        ensure!(set_group(gid) && set_user(uid), "its user cannot be taken on");
        Ok(user)
    }
}

impl Drop for AsUser {
    fn drop(&mut self) {
        if let Some((uid, gid)) = self.before {
            // The user first: only root may set the group.
            let _ = set_user(uid) && set_group(gid);
        }
    }
}

fn set_user(uid: u32) -> bool {
    // SAFETY: takes integers; -1 leaves the real and the saved user, by which this can be undone.
    unsafe { libc::syscall(libc::SYS_setresuid, u32::MAX, uid, u32::MAX) == 0 }
}

fn set_group(gid: u32) -> bool {
    // SAFETY: as for the user.
    unsafe { libc::syscall(libc::SYS_setresgid, u32::MAX, gid, u32::MAX) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_begins_with_its_result() {
        assert_eq!(body_of("0\nFull thread dump\n").expect("a dump"), "Full thread dump\n");
        assert_eq!(body_of("0").expect("an empty one"), "");
        let refused = body_of("101\nOperation x not recognized!\n").expect_err("not 0").to_string();
        assert_eq!(refused, "it refused: Operation x not recognized!");
        assert!(body_of("").is_err() && body_of("\n").is_err() && body_of("00\n").is_err());
    }

    #[test]
    fn a_process_without_attach_socket_and_handler_is_sent_nothing() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let mut jvm = Jvm::open(sleeper.id().cast_signed()).expect("it runs");
        let first = jvm.ask(b"1\0threaddump\0\0\0\0").expect_err("no JVM").to_string();
        let second = jvm.ask(b"1\0threaddump\0\0\0\0").expect_err("no JVM").to_string();
        assert!(first.contains("would end it"), "{first}");
        assert_eq!(first, second);
        assert!(sleeper.try_wait().expect("it is a child").is_none(), "SIGQUIT would have ended it");
        sleeper.kill().expect("it runs");
        sleeper.wait().expect("it is a child");
    }

    /// Its attach socket is this process's, and replies to the first request alone.
    #[test]
    fn a_jvm_that_does_not_reply_is_given_up() {
        let pid = std::process::id().cast_signed();
        let folder = std::env::temp_dir().join(format!("evenkeel-doctor-attach-{pid}"));
        std::fs::create_dir(&folder).expect("a new folder");
        let mut jvm = Jvm::open(pid).expect("this process runs");
        jvm.tmp = std::fs::File::open(&folder).expect("it is there").into();
        let path = folder.join(jvm.socket_name());
        let listener = std::os::unix::net::UnixListener::bind(path).expect("a new socket");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the first request");
            let mut request = [0; 4];
            stream.read_exact(&mut request).expect("the request");
            stream.write_all(b"0\nFull thread dump\n").expect("the doctor reads");
            drop(stream);
            (request, listener)
        });
        assert_eq!(jvm.ask(b"1\0x\0").expect("a reply"), "Full thread dump\n");
        let (request, listener) = server.join().expect("no panic");
        assert_eq!(&request, b"1\0x\0");
        let start = Instant::now();
        let late = jvm.ask(b"1\0x\0").expect_err("nobody accepts").to_string();
        assert_eq!(late, "it did not reply within two seconds");
        assert!(start.elapsed() < REPLY_TIME_MAX * 2);
        let start = Instant::now();
        assert_eq!(jvm.ask(b"1\0x\0").expect_err("it was given up").to_string(), late);
        assert!(start.elapsed() < REPLY_TIME_MAX / 2, "it is not asked again");
        drop(listener);
        std::fs::remove_dir_all(folder).expect("it is there");
    }
}
