//! The open connections: their limit, and the end of connections that do nothing.
//!
//! | a connection | ends |
//! |---|---|
//! | has sent no complete request | [`FIRST_REQUEST_MAX`] after its start |
//! | serves no request | after [`IDLE_MAX`] |
//! | sends a reply, of which the client takes nothing | after [`IDLE_MAX`] |
//! | serves no request, while a new client finds no place | at once, if no other is idle for longer |
//!
//! So clients that open connections and send nothing, or a byte a second, cannot keep others out: the
//! longest idle of them gives its place to the next client. Only connections with a request in progress, or a
//! reply that is being sent, are never closed for a new one; how long a request may take is bounded where it
//! is served.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) const FIRST_REQUEST_MAX: Duration = Duration::from_secs(10);
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(90);

/// The open connections by number.
#[derive(Default)]
pub(crate) struct Connections(Mutex<Table>);

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Arc<Connection>>,
}

/// A connection, as its requests and the registry know it.
struct Connection {
    state: Mutex<State>,
    close: Notify,
}

struct State {
    /// Requests whose reply is not known yet.
    active: usize,
    /// Replies that are being sent.
    sending: usize,
    has_served: bool,
    /// When the connection began, its last request ended, or the client last took a piece of a reply.
    since: Instant,
}

/// The place of a connection, which ends when this is dropped.
pub(crate) struct Place {
    registry: Arc<Connections>,
    number: u64,
    connection: Arc<Connection>,
}

/// A request in progress, until this is dropped.
pub(crate) struct InProgress(Arc<Connection>);

/// A reply that is being sent, until this is dropped.
pub(crate) struct Sending(Arc<Connection>);

impl Connections {
    /// Returns a place for a new connection, if need be the place of the longest idle connection, which is
    /// closed. `None`: `max` connections have requests in progress.
    pub(crate) fn admit(self: &Arc<Connections>, max: usize) -> Option<Place> {
        let mut table = self.0.lock();
        while table.open.len() >= max {
            let idle = table.open.iter().filter_map(|(number, one)| Some((one.idle_since()?, *number)));
            let (_, longest) = idle.min()?;
            if let Some(closed) = table.open.remove(&longest) {
                closed.close.notify_one();
            }
        }
        let number = table.next;
        table.next += 1;
        let state = State { active: 0, sending: 0, has_served: false, since: Instant::now() };
        let connection = Arc::new(Connection { state: Mutex::new(state), close: Notify::new() });
        table.open.insert(number, connection.clone());
        Some(Place { registry: self.clone(), number, connection })
    }

    /// Closes connections that have done nothing for too long.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        self.0.lock().open.retain(|_, connection| {
            let is_kept = !connection.is_overdue(now);
            if !is_kept {
                connection.close.notify_one();
            }
            is_kept
        });
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().open.len()
    }
}

impl Connection {
    fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (state.active == 0 && state.sending == 0).then_some(state.since)
    }

    fn is_overdue(&self, now: Instant) -> bool {
        let state = self.state.lock();
        let longest = if state.has_served { IDLE_MAX } else { FIRST_REQUEST_MAX };
        state.active == 0 && now.duration_since(state.since) >= longest
    }
}

impl Place {
    /// Begins a request.
    pub(crate) fn begin(&self) -> InProgress {
        let mut state = self.connection.state.lock();
        state.active += 1;
        state.has_served = true;
        InProgress(self.connection.clone())
    }

    /// Returns once the connection has to be closed.
    pub(crate) async fn closed(&self) {
        self.connection.close.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.registry.0.lock().open.remove(&self.number);
    }
}

impl InProgress {
    /// Ends the request and begins to send its reply.
    pub(crate) fn send(self) -> Sending {
        self.0.state.lock().sending += 1;
        Sending(self.0.clone())
    }
}

impl Sending {
    pub(crate) fn record_progress(&self) {
        self.0.state.lock().since = Instant::now();
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.sending -= 1;
        state.since = Instant::now();
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.active -= 1;
        state.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_closed(place: &Place) -> bool {
        tokio::time::timeout(Duration::ZERO, place.closed()).await.is_ok()
    }

    fn with_paused_time(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(test);
    }

    #[test]
    fn the_longest_idle_connection_gives_its_place_to_the_next() {
        with_paused_time(async {
            let all = Arc::new(Connections::default());
            let busy = all.admit(3).expect("a place");
            let _request = busy.begin();
            tokio::time::advance(Duration::from_secs(1)).await;
            let idle = all.admit(3).expect("a place");
            tokio::time::advance(Duration::from_secs(1)).await;
            let later = all.admit(3).expect("a place");
            let new = all.admit(3).expect("the place of an idle connection");
            assert!(is_closed(&idle).await);
            assert!(!is_closed(&busy).await && !is_closed(&later).await && !is_closed(&new).await);
            drop(idle);
            assert_eq!(all.count(), 3);
        });
    }

    #[test]
    fn connections_with_requests_are_never_closed_for_another() {
        with_paused_time(async {
            let all = Arc::new(Connections::default());
            let places = [all.admit(2).expect("a place"), all.admit(2).expect("a place")];
            let requests = [places[0].begin(), places[1].begin()];
            assert!(all.admit(2).is_none());
            drop(requests);
            assert!(all.admit(2).is_some());
        });
    }

    #[test]
    fn a_reply_keeps_its_connection_while_the_client_takes_it() {
        with_paused_time(async {
            let all = Arc::new(Connections::default());
            let place = all.admit(1).expect("a place");
            let sending = place.begin().send();
            for _ in 0..5 {
                tokio::time::advance(IDLE_MAX / 2).await;
                all.sweep();
                assert!(!is_closed(&place).await);
                assert!(all.admit(1).is_none(), "it is not idle");
                sending.record_progress();
            }
            tokio::time::advance(IDLE_MAX).await;
            all.sweep();
            assert!(is_closed(&place).await, "the client takes nothing");
        });
    }

    #[test]
    fn idle_connections_end() {
        with_paused_time(async {
            let all = Arc::new(Connections::default());
            let (silent, kept, busy) = (
                all.admit(9).expect("a place"),
                all.admit(9).expect("a place"),
                all.admit(9).expect("a place"),
            );
            let _request = busy.begin();
            drop(kept.begin());
            tokio::time::advance(FIRST_REQUEST_MAX).await;
            all.sweep();
            assert!(is_closed(&silent).await);
            assert!(!is_closed(&kept).await);
            tokio::time::advance(IDLE_MAX).await;
            all.sweep();
            assert!(is_closed(&kept).await);
            assert!(!is_closed(&busy).await);
        });
    }
}
