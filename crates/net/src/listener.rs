//! Listening sockets: accepting from them, and changing them while the server runs.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};

use evenkeel_config::{Bind, Settings, cause};
use evenkeel_runtime::temp_file;

/// Longest keep-alive time that the kernel takes, in seconds.
const KEEPALIVE_MAX_S: u32 = 32_767;

/// Error of a server without any address to listen on.
pub const NOWHERE: &str = "Configured to not listen anywhere, exiting.";

fn no_address(protocol: Protocol) -> String {
    let directive = if protocol == Protocol::Http { "http-bind" } else { "bind" };
    format!("no address of '{directive}' is available")
}

/// A listening socket, closed when dropped.
pub struct Listener {
    /// Unique among all listeners of this process, closed listeners included.
    pub id: u64,
    socket: Socket,
    endpoint: Endpoint,
    /// File of a Unix socket; removed at the end.
    file: Option<Identity>,
}

/// Identity of the file at a path: device and inode.
type Identity = (u64, u64);

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Endpoint {
    Tcp { address: String, port: u16, is_tls: bool },
    Unix(PathBuf),
}

/// A listening socket on its way to another process.
pub struct Passed {
    /// Its address, as [`take_over`] names it.
    pub name: String,
    pub socket: OwnedFd,
}

/// Listening sockets of the process whose clients this process takes over: they are used instead of new ones.
static PASSED: Mutex<Vec<Passed>> = Mutex::new(Vec::new());

/// Has the next listeners of these addresses use these sockets, which listen already: connections that wait
/// there are not lost.
pub fn take_over(sockets: Vec<Passed>) {
    PASSED.lock().extend(sockets);
}

/// Closes the sockets of [`take_over`] that no listener uses.
pub fn forget_passed() {
    PASSED.lock().clear();
}

/// A new connection.
pub struct Accepted {
    pub socket: OwnedFd,
    pub address: String,
    pub local_address: String,
    pub is_unix: bool,
    pub is_loopback: bool,
    pub is_tls: bool,
}

/// The protocol that is spoken on a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RESP: `bind`, `port`, `tls-port`, `unixsocket`.
    Resp,
    /// `http-bind`, `http-port`, `http-tls`.
    Http,
}

/// The listening sockets of the server for a protocol, which CONFIG SET may change.
#[derive(Default)]
pub struct Listeners(Mutex<Vec<Arc<Listener>>>);

impl Listeners {
    pub fn all(&self) -> Vec<Arc<Listener>> {
        self.0.lock().clone()
    }

    /// Closes all, once the workers have dropped them.
    pub fn close(&self) {
        self.0.lock().clear();
    }

    /// Opens the endpoints of `of` in these settings that are not open yet, and closes open endpoints that
    /// the settings no longer name. A listener that stays loses no waiting connection. Returns an error if an
    /// endpoint cannot be opened; then nothing has changed.
    pub fn follow(&self, of: Protocol, settings: &Settings) -> Result<(), String> {
        let wanted = endpoints(of, settings);
        if let Some(twice) = first_repeated(&wanted) {
            return Err(twice.refusal(&in_use()));
        }
        let is_wanted = |listener: &Arc<Listener>| wanted.iter().any(|(one, _)| *one == listener.endpoint);
        let mut open = self.0.lock();
        let (mut kept, leaving): (Vec<_>, Vec<_>) = open.drain(..).partition(is_wanted);
        let has = |one: &Endpoint| kept.iter().any(|listener: &Arc<Listener>| listener.endpoint == *one);
        let missing: Vec<_> = wanted.iter().filter(|(one, _)| !has(one)).cloned().collect();
        let mut opened = open_all(of, &missing, settings);
        // `*` and an address of this machine cannot be open on the same port, not even for a moment.
        let in_the_way =
            |listener: &Arc<Listener>| missing.iter().any(|(one, _)| one.meets(&listener.endpoint));
        if opened.is_err() && leaving.iter().any(in_the_way) {
            leaving.iter().for_each(|listener| listener.stop());
            opened = open_all(of, &missing, settings);
            if opened.is_err() {
                let back: Vec<_> = leaving.iter().map(|listener| (listener.endpoint.clone(), true)).collect();
                kept.extend(open_all(of, &back, settings).unwrap_or_default());
            }
        } else if opened.is_err() {
            kept.extend(leaving);
        } else {
            leaving.iter().for_each(|listener| listener.stop());
        }
        let result = opened.map(|opened| kept.extend(opened));
        *open = kept;
        result
    }
}

impl Endpoint {
    /// Whether both endpoints may need the same port.
    fn meets(&self, other: &Endpoint) -> bool {
        match (self, other) {
            (Endpoint::Tcp { port, .. }, Endpoint::Tcp { port: other, .. }) => port == other,
            _ => false,
        }
    }

    /// Returns the error text for a failure to listen there.
    fn refusal(&self, error: &io::Error) -> String {
        let cause = cause(error);
        match self {
            Endpoint::Tcp { address, port, .. } => {
                format!("Could not create server TCP listening socket {address}:{port}: {cause}")
            }
            Endpoint::Unix(path) => format!("Opening Unix socket {}: {cause}", path.display()),
        }
    }

    /// The name of the endpoint between processes.
    fn name(&self) -> String {
        match self {
            Endpoint::Tcp { address, port, is_tls: false } => format!("tcp {address} {port}"),
            Endpoint::Tcp { address, port, is_tls: true } => format!("tls {address} {port}"),
            Endpoint::Unix(path) => format!("unix {}", path.display()),
        }
    }

    /// The socket that another process has passed on for it.
    fn passed(&self) -> Option<Socket> {
        let (name, mut passed) = (self.name(), PASSED.lock());
        let at = passed.iter().position(|one| one.name == name)?;
        Some(passed.swap_remove(at).socket.into())
    }

    /// Returns the file of a Unix socket.
    fn path(&self) -> Option<&Path> {
        match self {
            Endpoint::Tcp { .. } => None,
            Endpoint::Unix(path) => Some(path),
        }
    }
}

/// Obstacles to listening at the addresses of the settings, and addresses in use now.
#[derive(Default)]
pub struct Rehearsal {
    pub mistakes: Vec<String>,
    pub in_use: Vec<String>,
}

/// Tries all addresses, without listening on any and without changing existing files. Skips paths that
/// `leads_somewhere` refuses.
pub fn rehearse(settings: &Settings, leads_somewhere: impl Fn(&Path) -> bool) -> Rehearsal {
    let mut found = Rehearsal::default();
    if endpoints(Protocol::Resp, settings).is_empty() {
        found.mistakes.push(NOWHERE.into());
    }
    for protocol in [Protocol::Resp, Protocol::Http] {
        rehearse_protocol(protocol, settings, &leads_somewhere, &mut found);
    }
    found
}

fn rehearse_protocol(
    protocol: Protocol,
    settings: &Settings,
    leads_somewhere: &impl Fn(&Path) -> bool,
    found: &mut Rehearsal,
) {
    let (wanted, mut missing) = (endpoints(protocol, settings), 0);
    if let Some(twice) = first_repeated(&wanted) {
        found.mistakes.push(twice.refusal(&in_use()));
    }
    for (endpoint, optional) in wanted.iter().filter(|(one, _)| one.path().is_none_or(&leads_somewhere)) {
        let tried = match endpoint {
            Endpoint::Tcp { address, port, .. } => bind_tcp(address, *port).map(drop),
            Endpoint::Unix(path) => try_unix(path),
        };
        match tried {
            Ok(()) => {}
            Err(error) if *optional && is_unavailable(&error) => missing += 1,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                found.in_use.push(endpoint.refusal(&error));
            }
            Err(error) => found.mistakes.push(endpoint.refusal(&error)),
        }
    }
    if missing > 0 && missing == wanted.len() {
        found.mistakes.push(no_address(protocol));
    }
}

/// Checks that a socket could be created there, in place of an existing file.
fn try_unix(path: &Path) -> io::Result<()> {
    SockAddr::unix(path)?;
    if std::fs::symlink_metadata(path).is_ok_and(|file| file.is_dir()) {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    temp_file::nameless(folder.unwrap_or(Path::new(".")), "check").map(drop)
}

fn in_use() -> io::Error {
    io::Error::from_raw_os_error(libc::EADDRINUSE)
}

fn first_repeated(endpoints: &[(Endpoint, bool)]) -> Option<&Endpoint> {
    let is_before = |at: usize, one: &Endpoint| endpoints[..at].iter().any(|(other, _)| other == one);
    endpoints.iter().enumerate().find(|(at, (one, _))| is_before(*at, one)).map(|(_, (one, _))| one)
}

/// Returns the endpoints of a protocol in the settings, and whether each may be missing.
fn endpoints(protocol: Protocol, settings: &Settings) -> Vec<(Endpoint, bool)> {
    let at = |binds: &[Bind], port: u16, is_tls: bool| {
        let binds = if port > 0 { binds } else { &[] };
        let endpoint =
            |bind: &Bind| (Endpoint::Tcp { address: bind.address.clone(), port, is_tls }, bind.optional);
        binds.iter().map(endpoint).collect::<Vec<_>>()
    };
    match protocol {
        Protocol::Resp => {
            let mut all = at(&settings.bind, settings.port, false);
            all.extend(at(&settings.bind, settings.tls_port, true));
            all.extend(settings.unixsocket.iter().map(|path| (Endpoint::Unix(path.clone()), false)));
            all
        }
        Protocol::Http => at(&settings.http_bind, settings.http_port, settings.http_tls),
    }
}

/// Opens all endpoints, except missing endpoints that may be missing. Errors name the address.
fn open_all(
    protocol: Protocol,
    endpoints: &[(Endpoint, bool)],
    settings: &Settings,
) -> Result<Vec<Arc<Listener>>, String> {
    static NEXT_ID: AtomicU64 = AtomicU64::new(0);
    let (mut listeners, mut missing) = (Vec::new(), 0);
    for (endpoint, optional) in endpoints {
        let opened = match (endpoint.passed(), endpoint) {
            (Some(socket), _) => Ok(socket),
            (None, Endpoint::Tcp { address, port, .. }) => open_tcp(address, *port, settings.tcp_backlog),
            (None, Endpoint::Unix(path)) => open_unix(path, settings.unixsocketperm, settings.tcp_backlog),
        };
        match (opened, endpoint) {
            (Ok(socket), _) => {
                let id = NEXT_ID.fetch_add(1, Relaxed);
                let file = if let Endpoint::Unix(path) = endpoint { identity(path) } else { None };
                listeners.push(Arc::new(Listener { id, socket, endpoint: endpoint.clone(), file }));
            }
            (Err(error), Endpoint::Tcp { .. }) if *optional && is_unavailable(&error) => missing += 1,
            (Err(error), _) => return Err(endpoint.refusal(&error)),
        }
    }
    if missing > 0 && missing == endpoints.len() {
        return Err(no_address(protocol));
    }
    Ok(listeners)
}

fn identity(path: &Path) -> Option<Identity> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn is_unavailable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ENOPROTOOPT)
    )
}

fn open_tcp(address: &str, port: u16, backlog: u32) -> io::Result<Socket> {
    let socket = bind_tcp(address, port)?;
    socket.listen(backlog.min(i32::MAX as u32) as i32)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bind_tcp(address: &str, port: u16) -> io::Result<Socket> {
    let address: SocketAddr = match address {
        "*" => (Ipv4Addr::UNSPECIFIED, port).into(),
        "::*" => (Ipv6Addr::UNSPECIFIED, port).into(),
        name => std::net::ToSocketAddrs::to_socket_addrs(&(name, port))?
            .next()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))?,
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn open_unix(path: &PathBuf, mode: u32, backlog: u32) -> io::Result<Socket> {
    // A socket left behind by a killed server would prevent binding.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if mode != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    socket.listen(backlog.min(i32::MAX as u32) as i32)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Formats a listener as INFO shows it.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.endpoint {
            Endpoint::Tcp { address, port, is_tls } => {
                write!(f, "name={},bind={address},port={port}", if *is_tls { "tls" } else { "tcp" })
            }
            Endpoint::Unix(path) => write!(f, "name=unix,bind={}", path.display()),
        }
    }
}

impl Listener {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The name of its address between processes; see [`take_over`].
    pub fn name(&self) -> String {
        self.endpoint.name()
    }

    /// Refuses connections from now on, although workers may keep the descriptor for a moment.
    pub fn stop(&self) {
        // It fails only if there is nothing left to stop.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Accepts a waiting connection; returns `WouldBlock` if there is none. `keepalive_s` 0 leaves keep-alive
    /// off.
    ///
    /// Errors with a system code come only from accepting: an error about a connection must not look like an
    /// error of the listener.
    pub fn accept(&self, keepalive_s: u32) -> io::Result<Accepted> {
        let (socket, peer) = self.socket.accept()?;
        socket.set_nonblocking(true).map_err(|error| io::Error::other(error.to_string()))?;
        if let Endpoint::Unix(path) = &self.endpoint {
            let name = format!("{}:0", path.display());
            return Ok(Accepted {
                socket: socket.into(),
                address: name.clone(),
                local_address: name,
                is_unix: true,
                is_loopback: true,
                is_tls: false,
            });
        }
        // A connection works without these options as well.
        let _ = socket.set_tcp_nodelay(true);
        if keepalive_s > 0 {
            // As in Redis: a dead client is detected after about twice the interval.
            let seconds = keepalive_s.min(KEEPALIVE_MAX_S);
            let keepalive = TcpKeepalive::new()
                .with_time(Duration::from_secs(seconds.into()))
                .with_interval(Duration::from_secs((seconds / 3).max(1).into()))
                .with_retries(3);
            let _ = socket.set_tcp_keepalive(&keepalive);
        }
        let peer = peer.as_socket();
        let local = socket.local_addr().ok().and_then(|local| local.as_socket());
        let name = |address: Option<SocketAddr>| address.map_or("?:0".into(), |address| address.to_string());
        Ok(Accepted {
            address: name(peer),
            local_address: name(local),
            is_unix: false,
            is_loopback: peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()),
            is_tls: matches!(self.endpoint, Endpoint::Tcp { is_tls: true, .. }),
            socket: socket.into(),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Endpoint::Unix(path) = &self.endpoint
            && self.file.is_some()
            && self.file == identity(path)
        {
            // Nothing depends on the removal. A file that is no longer ours belongs to a later server.
            let _ = std::fs::remove_file(path);
        }
    }
}
