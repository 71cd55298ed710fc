//! The thread `http`: listeners, TLS, and a task per connection.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_net::listener::{Accepted, Listener, Listeners};
use evenkeel_runtime::threads;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::body::SentBody;
use crate::connections::{Connections, Place};
use crate::routes::{Context, answer};
use crate::sessions::Sessions;
use crate::worker_connection::IdleConnections;
use crate::{Client, Host};

/// Bytes of a request's line and headers together.
const HEAD_MAX: usize = 16 << 10;

/// Requests at the same time on a connection of HTTP/2.
const STREAMS_MAX: u32 = 32;

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Pause after a connection could not be accepted for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Wakes the thread.
#[derive(Default)]
pub(crate) struct Signals {
    /// The listeners have changed.
    pub(crate) changed: Notify,
    pub(crate) stopped: Notify,
}

pub(crate) fn start(host: Arc<dyn Host>, listeners: Arc<Listeners>, signals: Arc<Signals>) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    threads::named("http").spawn(move || {
        threads::or_exit("HTTP thread", || runtime.block_on(run(host, &listeners, &signals)));
    })?;
    Ok(())
}

/// The state that all connections share.
#[derive(Clone)]
struct Shared {
    host: Arc<dyn Host>,
    connections: Arc<Connections>,
    sessions: Arc<Sessions>,
}

async fn run(host: Arc<dyn Host>, listeners: &Listeners, signals: &Signals) {
    let shared = Shared { host, connections: Arc::default(), sessions: Arc::default() };
    let mut accepting: Vec<(u64, JoinSet<()>)> = Vec::new();
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        tokio::select! {
            () = signals.stopped.notified() => return,
            () = signals.changed.notified() => {
                let open = listeners.all();
                // Dropping a set of tasks ends them, and closes the descriptor.
                accepting.retain(|(id, _)| open.iter().any(|listener| listener.id == *id));
                for listener in open {
                    if accepting.iter().all(|(id, _)| *id != listener.id) {
                        let (id, mut tasks) = (listener.id, JoinSet::new());
                        tasks.spawn(accept_all(listener, shared.clone()));
                        accepting.push((id, tasks));
                    }
                }
            }
            _ = sweep.tick() => shared.connections.sweep(),
        }
    }
}

/// A listener as the runtime watches it.
struct Watched(Arc<Listener>);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd().as_raw_fd()
    }
}

/// Accepts connections until the listener is closed.
async fn accept_all(listener: Arc<Listener>, shared: Shared) {
    // SAFETY: the listener that `Watched` owns keeps its descriptor open, and never changes it.
    let watched = unsafe { AsyncFd::register_with_interest(Watched(listener), Interest::READABLE) };
    let watched = match watched {
        Ok(watched) => watched,
        Err(error) => return log::warn!("HTTP: cannot listen: {error}"),
    };
    loop {
        let Ok(mut ready) = watched.readable().await else { return };
        let keepalive_s = shared.host.settings().tcp_keepalive;
        match ready.try_io(|watched| watched.get_ref().0.accept(keepalive_s)) {
            Err(_would_block) => {}
            Ok(Ok(accepted)) => begin(accepted, &shared),
            Ok(Err(error)) => match error.raw_os_error() {
                Some(libc::EINVAL) => return, // the listener was closed
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                    log::warn!("HTTP: accepting a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                _ => log::debug!("HTTP: accepting a connection: {error}"),
            },
        }
    }
}

/// Serves a connection, if there is a place for it.
fn begin(accepted: Accepted, shared: &Shared) {
    let max = shared.host.settings().http_max_connections as usize;
    let Some(place) = shared.connections.admit(max) else {
        return log::debug!("HTTP: {} has no place: http-max-connections {max}", accepted.address);
    };
    let stream = std::net::TcpStream::from(accepted.socket);
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    let client = Client {
        address: accepted.address,
        local_address: accepted.local_address,
        is_loopback: accepted.is_loopback,
    };
    let shared = shared.clone();
    let tls = if accepted.is_tls { shared.host.tls() } else { None };
    if accepted.is_tls && tls.is_none() {
        return;
    }
    tokio::spawn(async move {
        let place = Arc::new(place);
        tokio::select! {
            () = place.closed() => {}
            () = async {
                match tls {
                    None => serve(stream, shared, client, place.clone(), false).await,
                    Some(config) => match TlsAcceptor::from(config).accept(stream).await {
                        Ok(stream) => serve(stream, shared, client, place.clone(), true).await,
                        Err(error) => log::debug!("HTTP: TLS with {}: {error}", client.address),
                    },
                }
            } => {}
        }
    });
}

async fn serve<S>(stream: S, shared: Shared, client: Client, place: Arc<Place>, is_tls: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let address = client.address.clone();
    let Shared { host, connections: open, sessions } = shared;
    let idle = IdleConnections::default();
    let context = Arc::new(Context { host, client, idle, open, sessions, is_tls });
    let service = service_fn(move |request| {
        let (in_progress, context) = (place.begin(), context.clone());
        async move {
            let reply = answer(request, &context).await;
            let sending = in_progress.send();
            Ok::<_, Infallible>(reply.map(|content| SentBody { content, sending }))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().max_buf_size(HEAD_MAX);
    builder.http2().max_concurrent_streams(STREAMS_MAX).max_header_list_size(HEAD_MAX as u32);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        log::debug!("HTTP: the connection of {address} ended: {error}");
    }
}
