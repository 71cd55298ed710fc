//! The handover of connections to the replication thread, and the thread's start and wakeup.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Replication;
use super::feed;
use evenkeel_client::Session;
use evenkeel_net::Stream;
use evenkeel_net::poll::Wakeup;

/// The connection of a client that has asked for the stream, without its worker.
pub struct Arrival {
    pub stream: Stream,
    pub session: Session,
    /// Received bytes that have not been parsed.
    pub input: Vec<u8>,
    /// Replies that have not been sent.
    pub unsent: Vec<u8>,
}

/// The inbox of the replication thread.
pub struct ReplicaInbox {
    wakeup: Wakeup,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    arrivals: Vec<Arrival>,
    /// Whether the thread runs, and takes the arrivals.
    runs: bool,
}

impl ReplicaInbox {
    pub(super) fn new() -> io::Result<ReplicaInbox> {
        Ok(ReplicaInbox { wakeup: Wakeup::new()?, inside: Mutex::default() })
    }

    /// Hands over the connection of a new replica.
    pub fn enter(&self, replication: &Arc<Replication>, arrival: Arrival) {
        let client = arrival.session.client.clone();
        self.inside.lock().arrivals.push(arrival);
        if let Err(error) = self.open(replication) {
            log::warn!("Cannot start the replication thread: {error}");
            self.inside.lock().arrivals.clear();
            replication.hub.clients.remove(client.id);
        }
    }

    /// Starts the thread, if it does not run, and wakes it.
    pub fn open(&self, replication: &Arc<Replication>) -> io::Result<()> {
        let mut inside = self.inside.lock();
        if !inside.runs {
            feed::start(replication)?;
            inside.runs = true;
        }
        drop(inside);
        self.nudge();
        Ok(())
    }

    /// Wakes the thread, if it runs.
    pub fn nudge(&self) {
        self.wakeup.wake();
    }

    pub(super) fn take(&self) -> Vec<Arrival> {
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
