//! The handover of connections to the replication thread, and the thread's start and wakeup.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::feed;
use crate::net::connection::Connection;
use crate::server::Server;
use evenkeel_net::poll::Wakeup;

/// The inbox of the replication thread.
pub(crate) struct ReplicaInbox {
    wakeup: Wakeup,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    arrivals: Vec<Connection>,
    /// Whether the thread runs, and takes the arrivals.
    runs: bool,
}

impl ReplicaInbox {
    pub(super) fn new() -> io::Result<ReplicaInbox> {
        Ok(ReplicaInbox { wakeup: Wakeup::new()?, inside: Mutex::default() })
    }

    /// Hands over the connection of a new replica.
    pub(crate) fn enter(&self, server: &Arc<Server>, connection: Connection) {
        let client = connection.client().clone();
        self.inside.lock().arrivals.push(connection);
        if let Err(error) = self.open(server) {
            log::warn!("Cannot start the replication thread: {error}");
            self.inside.lock().arrivals.clear();
            server.hub.clients.remove(client.id);
        }
    }

    /// Starts the thread, if it does not run, and wakes it.
    pub(crate) fn open(&self, server: &Arc<Server>) -> io::Result<()> {
        let mut inside = self.inside.lock();
        if !inside.runs {
            feed::start(server)?;
            inside.runs = true;
        }
        drop(inside);
        self.nudge();
        Ok(())
    }

    /// Wakes the thread, if it runs.
    pub(crate) fn nudge(&self) {
        self.wakeup.wake();
    }

    pub(super) fn take(&self) -> Vec<Connection> {
        std::mem::take(&mut self.inside.lock().arrivals)
    }

    /// Ends the thread, unless there are arrivals or there is a reader for it. Returns whether it ends.
    pub(super) fn close(&self, has_reader: impl FnOnce() -> bool) -> bool {
        let mut inside = self.inside.lock();
        inside.runs = !inside.arrivals.is_empty() || has_reader();
        !inside.runs
    }

    /// Marks that the thread ends with the server.
    pub(super) fn end(&self) {
        let mut inside = self.inside.lock();
        inside.arrivals.clear();
        inside.runs = false;
    }

    pub(super) fn is_open(&self) -> bool {
        self.inside.lock().runs
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wakeup.fd()
    }

    pub(super) fn drain(&self) {
        self.wakeup.drain();
    }
}
