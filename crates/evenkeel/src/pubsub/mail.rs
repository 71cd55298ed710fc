//! A client's mail: what others have for it beside the replies to its own commands, on its way to its worker.
//!
//! Whoever has something puts it here, under a lock of the client's own, and does not care which worker serves it. The
//! worker takes the mail when it is told, after each command of the client itself, and when a connection comes from another
//! worker. It is told once for whatever has gathered until then.
//!
//! **Told per batch.** Clients with new mail are noted by the thread that puts it there, and their workers are told at the
//! end of its batch of commands ([`tell`]): one message, and at most one wake-up, per worker.
//!
//! **Bounded.** A client whose mail and unsent replies exceed its limit gets no more; what it had is given up at once, by
//! whoever finds that out, and its worker closes it. So nobody waits for a slow subscriber, whose worker may be busy, too.
//!
//! **Moving.** Bad interleaving: a publisher tells worker A of mail, and A finds that the connection is on its way to B. A
//! does nothing then. B looks into the mail when it adopts the connection, after it has said that it is the one to be told,
//! and whoever puts something there later tells B.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use crate::clients::ClientInfo;
use crate::net::inbox::Message;
use crate::server::Server;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Mail {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    letters: Vec<Arc<[u8]>>,
    bytes: usize,
    /// Its worker has been told, or will be at the end of a batch.
    is_noted: bool,
    /// More came than may wait for this client.
    is_over: bool,
}

/// What a worker finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Letters(Vec<Arc<[u8]>>),
    /// The client is to be closed, with so many bytes waiting.
    TooMuch {
        waiting: u64,
    },
}

thread_local! {
    static NOTED: RefCell<Vec<Arc<ClientInfo>>> = const { RefCell::new(Vec::new()) };
    static IS_ANY_NOTED: Cell<bool> = const { Cell::new(false) };
}

/// Puts something into a client's mail, unless that makes more than `limit` bytes wait for it.
pub(crate) fn put(client: &Arc<ClientInfo>, letter: Arc<[u8]>, limit: u64) {
    let mut state = client.mail.state.lock();
    if state.is_over {
        return;
    }
    state.bytes += letter.len();
    if (state.bytes + client.out_bytes.load(Relaxed)) as u64 > limit {
        state.is_over = true;
        state.letters = Vec::new();
    } else {
        state.letters.push(letter);
    }
    if !std::mem::replace(&mut state.is_noted, true) {
        drop(state);
        note(client);
    }
}

fn note(client: &Arc<ClientInfo>) {
    NOTED.with_borrow_mut(|noted| noted.push(client.clone()));
    IS_ANY_NOTED.set(true);
}

impl Mail {
    /// Takes what has come. Pushes that were encoded for the other protocol, which the client has left since, get the
    /// first byte that this one wants.
    pub(crate) fn take(&self, resp3: bool) -> Found {
        let mut state = self.state.lock();
        state.is_noted = false;
        if state.is_over {
            return Found::TooMuch { waiting: state.bytes as u64 };
        }
        state.bytes = 0;
        let mut letters = std::mem::take(&mut state.letters);
        drop(state);
        let (wanted, other) = if resp3 { (b'>', b'*') } else { (b'*', b'>') };
        for letter in letters.iter_mut().filter(|letter| letter.first() == Some(&other)) {
            let mut copy = letter.to_vec();
            copy[0] = wanted;
            *letter = copy.into();
        }
        Found::Letters(letters)
    }

    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.letters.is_empty() && !state.is_over
    }
}

/// Tells the workers of clients that have got mail from this thread. To be called at the end of each batch.
#[inline]
pub(crate) fn tell(server: &Server) {
    if IS_ANY_NOTED.get() {
        tell_noted(server);
    }
}

#[cold]
fn tell_noted(server: &Server) {
    IS_ANY_NOTED.set(false);
    let noted = NOTED.take();
    let mut by_worker: Vec<Vec<Arc<ClientInfo>>> = vec![Vec::new(); server.workers()];
    for client in noted {
        if let Some(list) = by_worker.get_mut(client.worker.load(Relaxed) as usize) {
            list.push(client);
        }
    }
    for (worker, clients) in by_worker.into_iter().enumerate().filter(|(_, clients)| !clients.is_empty()) {
        server.inboxes[worker].post(Message::Mail(clients));
    }
}
