//! A client's push queue: messages from other threads for it, beside the replies to its own commands, on
//! their way to its worker.
//!
//! A sender puts a message here, under a lock of the client's own, without knowing the worker that serves the
//! client. The worker takes the messages when it is notified, after each command of the client itself, and
//! when it adopts the connection from another worker. A single notification covers all messages that have
//! gathered until then.
//!
//! **Notified per batch.** The sending thread records clients with new messages, and notifies their workers
//! at the end of its batch of commands ([`tell`]): a message, and at most a wake-up, per worker. A thread
//! without batches keeps a [`Teller`], so that it does not end with recorded clients: no other thread would
//! record them again.
//!
//! **Bounded.** A client whose queue and unsent replies exceed its limit gets no more messages. The thread
//! that detects this drops its queue at once, and its worker closes it. So no thread waits for a slow
//! subscriber, whose worker may be busy, too.
//!
//! **Moving.** Bad interleaving: a publisher notifies worker A, and A finds that the connection is on its way
//! to B. A does nothing then. B looks into the queue when it adopts the connection, after it has registered
//! as the worker to be notified, and later senders notify B.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use crate::clients::ClientInfo;
use crate::hub::Hub;

/// A client's push queue; see the module's text.
#[derive(Default)]
pub struct PushQueue {
    state: Mutex<PushQueueState>,
}

/// A message in both protocols: the client may change its protocol before it has read this.
#[derive(Clone)]
pub enum PushMessage {
    /// The forms differ at most in their first byte.
    Alike(Arc<[u8]>),
    /// `None`: a client of RESP2 gets nothing.
    Unlike { resp2: Option<Arc<[u8]>>, resp3: Arc<[u8]> },
}

impl From<Arc<[u8]>> for PushMessage {
    fn from(bytes: Arc<[u8]>) -> PushMessage {
        PushMessage::Alike(bytes)
    }
}

impl From<Vec<u8>> for PushMessage {
    fn from(bytes: Vec<u8>) -> PushMessage {
        PushMessage::Alike(bytes.into())
    }
}

impl PushMessage {
    /// Returns the bytes of the longer form.
    fn len(&self) -> usize {
        match self {
            PushMessage::Alike(bytes) => bytes.len(),
            PushMessage::Unlike { resp2, resp3 } => {
                resp3.len().max(resp2.as_ref().map_or(0, |bytes| bytes.len()))
            }
        }
    }

    /// Returns the bytes to send, if any. A push that was encoded for the other protocol gets the first byte
    /// of this protocol.
    fn encoded(self, resp3: bool) -> Option<Arc<[u8]>> {
        let bytes = match self {
            PushMessage::Alike(bytes) => bytes,
            PushMessage::Unlike { resp3: bytes, .. } if resp3 => return Some(bytes),
            PushMessage::Unlike { resp2, .. } => return resp2,
        };
        let (wanted, other) = if resp3 { (b'>', b'*') } else { (b'*', b'>') };
        if bytes.first() != Some(&other) {
            return Some(bytes);
        }
        let mut copy = bytes.to_vec();
        copy[0] = wanted;
        Some(copy.into())
    }
}

#[derive(Default)]
struct PushQueueState {
    messages: Vec<PushMessage>,
    bytes: usize,
    /// Its worker has been notified, or will be at the end of a batch.
    is_noted: bool,
    /// More bytes arrived than may wait for this client.
    is_over: bool,
}

/// The content of a queue, as its worker takes it.
#[derive(Debug, PartialEq, Eq)]
pub enum Pending {
    Messages(Vec<Arc<[u8]>>),
    /// The client has to be closed, with this many bytes waiting.
    TooMuch {
        waiting: u64,
    },
}

thread_local! {
    static NOTED: RefCell<Vec<Arc<ClientInfo>>> = const { RefCell::new(Vec::new()) };
    static IS_ANY_NOTED: Cell<bool> = const { Cell::new(false) };
}

/// Puts a message into a client's queue, unless more than `limit` bytes would wait for the client then.
pub fn put(client: &Arc<ClientInfo>, message: impl Into<PushMessage>, limit: u64) {
    put_all(client, std::iter::once(message.into()), limit);
}

/// Like [`put`], for several messages without any other in between.
pub fn put_all(client: &Arc<ClientInfo>, messages: impl IntoIterator<Item = PushMessage>, limit: u64) {
    let mut state = client.push_queue.state.lock();
    if state.is_over {
        return;
    }
    for message in messages {
        state.bytes += message.len();
        if (state.bytes + client.out_bytes.load(Relaxed)) as u64 > limit {
            state.is_over = true;
            state.messages = Vec::new();
            break;
        }
        state.messages.push(message);
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

impl PushQueue {
    /// Takes all messages, in the client's present protocol.
    pub fn take(&self, resp3: bool) -> Pending {
        let mut state = self.state.lock();
        state.is_noted = false;
        if state.is_over {
            return Pending::TooMuch { waiting: state.bytes as u64 };
        }
        state.bytes = 0;
        let messages = std::mem::take(&mut state.messages);
        drop(state);
        Pending::Messages(messages.into_iter().filter_map(|message| message.encoded(resp3)).collect())
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.messages.is_empty() && !state.is_over
    }
}

/// Notifies the workers of clients that have got messages from this thread. Called at the end of each batch.
#[inline]
pub fn notify_workers(hub: &Hub) {
    if IS_ANY_NOTED.get() {
        notify_noted(hub);
    }
}

/// Notifies the workers when dropped, for a thread that ends without the end of a batch.
pub struct Teller<'a>(pub &'a Hub);

impl Drop for Teller<'_> {
    fn drop(&mut self) {
        notify_workers(self.0);
    }
}

#[cold]
fn notify_noted(hub: &Hub) {
    IS_ANY_NOTED.set(false);
    let noted = NOTED.take();
    let mut by_worker: Vec<Vec<Arc<ClientInfo>>> = vec![Vec::new(); hub.workers()];
    for client in noted {
        if let Some(list) = by_worker.get_mut(client.worker.load(Relaxed) as usize) {
            list.push(client);
        }
    }
    for (worker, clients) in by_worker.into_iter().enumerate().filter(|(_, clients)| !clients.is_empty()) {
        hub.push_queued(worker, clients);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: &[u8]) -> Arc<[u8]> {
        bytes.into()
    }

    #[test]
    fn push_messages_use_the_protocol_at_delivery() {
        let client = Arc::new(ClientInfo::new(1, "test:1".into(), "test:2".into(), -1, false, 0));
        let unlike = |resp2| PushMessage::Unlike { resp2, resp3: message(b">three") };
        for (sent, resp2, resp3) in [
            (message(b">push").into(), Some("*push"), Some(">push")),
            (message(b"*push").into(), Some("*push"), Some(">push")),
            (message(b"+line").into(), Some("+line"), Some("+line")),
            (unlike(None), None, Some(">three")),
            (unlike(Some(message(b"*two"))), Some("*two"), Some(">three")),
        ] {
            for (is_resp3, expected) in [(false, resp2), (true, resp3)] {
                put(&client, sent.clone(), u64::MAX);
                let expected: Vec<_> = expected.iter().map(|text| message(text.as_bytes())).collect();
                assert_eq!(client.push_queue.take(is_resp3), Pending::Messages(expected));
            }
        }
    }
}
