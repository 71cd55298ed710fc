//! Connections to the server's own workers: the commands of a REST request run there, as those of any client,
//! under the rights of the request's user.
//!
//! Such a connection is one end of a pair of Unix sockets; a worker serves the other end. It belongs to a
//! connection of HTTP and stays for its next request, unless a command has left state on it.

use std::io;
use std::sync::Arc;

use evenkeel_acl::User;
use evenkeel_resp::value::Scanner;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::{Client, Host};

/// Connections kept for the next requests of a connection of HTTP: more than one is in use with HTTP/2 only.
const KEPT_MAX: usize = 4;
const READ_SIZE: usize = 64 << 10;

/// See the module's text.
pub(crate) struct WorkerConnection {
    stream: UnixStream,
    user: Arc<User>,
    /// Bytes after the last reply that was returned.
    received: Vec<u8>,
}

/// Connections to workers that a connection of HTTP keeps for its next requests.
#[derive(Default)]
pub(crate) struct IdleConnections(Mutex<Vec<WorkerConnection>>);

impl IdleConnections {
    /// Returns a connection of this user.
    pub(crate) fn take(
        &self,
        host: &dyn Host,
        user: Arc<User>,
        client: &Client,
    ) -> io::Result<WorkerConnection> {
        let mut idle = self.0.lock();
        if let Some(at) = idle.iter().position(|connection| connection.user.who.is(&user.who)) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let stream = host.connect(&user, client)?;
        let stream = UnixStream::from_std(stream)?;
        Ok(WorkerConnection { stream, user, received: Vec::with_capacity(READ_SIZE) })
    }

    /// Keeps a connection for a later request. Commands have left neither state nor messages on it.
    pub(crate) fn put_back(&self, connection: WorkerConnection) {
        let mut idle = self.0.lock();
        if idle.len() < KEPT_MAX && connection.received.is_empty() {
            idle.push(connection);
        }
    }
}

impl WorkerConnection {
    /// Sends the bytes of `count` commands, and returns as many replies, in RESP2. After an error, or if the
    /// caller gives up waiting, the connection is of no further use.
    pub(crate) async fn call(&mut self, commands: &[u8], count: usize) -> io::Result<Vec<Vec<u8>>> {
        // At the same time: the worker may send replies before it has read everything.
        let (mut reader, mut writer) = self.stream.split();
        let replies = read_replies(&mut reader, &mut self.received, count);
        let ((), replies) = tokio::try_join!(writer.write_all(commands), replies)?;
        Ok(replies)
    }

    /// Waits for the next message. A caller that gives up waiting loses none.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<u8>> {
        let replies = read_replies(&mut self.stream, &mut self.received, 1).await?;
        replies.into_iter().next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Reads the bytes of `count` replies; bytes behind them stay in `received`.
async fn read_replies(
    reader: &mut (impl AsyncReadExt + Unpin),
    received: &mut Vec<u8>,
    count: usize,
) -> io::Result<Vec<Vec<u8>>> {
    let mut replies = Vec::with_capacity(count.min(1024));
    let (mut scanner, mut start) = (Scanner::new(), 0);
    while replies.len() < count {
        if let Some(len) = scanner.scan(&received[start..]).map_err(io::Error::other)? {
            replies.push(received[start..start + len].to_vec());
            start += len;
            scanner = Scanner::new();
            continue;
        }
        received.drain(..start);
        start = 0;
        if reader.read_buf(received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    received.drain(..start);
    Ok(replies)
}
