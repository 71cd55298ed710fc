//! The end of a wait, in every order of its threads: the file is compiled against loom, which explores all
//! orders.

#[allow(unreachable_pub, reason = "public in the crate whose file this is")]
#[path = "../../src/claim.rs"]
mod model;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::*};
use loom::thread;

use model::Claim;

/// A waiting client.
struct Client {
    claim: Claim,
    /// Whether the socket is open: written by its owner alone. Loom reports a read that is not ordered with
    /// the write.
    open: UnsafeCell<bool>,
    replies: AtomicUsize,
}

/// Explores all orders with at most `preemptions` forced switches of threads.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

impl Client {
    fn new() -> Arc<Client> {
        Arc::new(Client { claim: Claim::new(), open: UnsafeCell::new(true), replies: AtomicUsize::new(0) })
    }

    /// A write to the key, with enough for this client or not; returns whether the write served it.
    fn serve(&self, is_enough: bool) -> bool {
        let Some(claimed) = self.claim.take() else { return false };
        // SAFETY: loom checks that no thread writes meanwhile.
        let open = self.open.with(|open| unsafe { *open });
        assert!(open, "a socket that was closed, and may be another's by now");
        if is_enough {
            self.replies.fetch_add(1, Relaxed);
            claimed.finish();
        }
        is_enough
    }

    /// A timeout, or CLIENT UNBLOCK.
    fn end(&self) -> bool {
        let ended = self.claim.end();
        if ended {
            self.replies.fetch_add(1, Relaxed);
        }
        ended
    }

    fn close(&self) {
        self.claim.end();
        // SAFETY: loom checks that no other thread reads or writes meanwhile.
        self.open.with_mut(|open| unsafe { *open = false });
    }
}

#[test]
fn a_claim_given_back_is_left_to_another_thread() {
    explore(3, || {
        let client = Client::new();
        let other = thread::spawn({
            let client = client.clone();
            move || client.serve(true)
        });
        // This thread has too little for the client, and must not keep the other thread from serving it.
        assert!(!client.serve(false));
        assert!(other.join().expect("no panic"), "it waits for a key that has what it wants");
        assert!(!client.serve(true), "taken twice");
        assert_eq!(client.replies.load(Relaxed), 1);
    });
}

/// A worker that has drained its inbox, some of which may refer to the reply, sees that there is a reply.
#[test]
fn a_reader_of_the_push_queue_sees_the_reply() {
    explore(3, || {
        let client = Client::new();
        let queue = Arc::new(AtomicUsize::new(0));
        let other = thread::spawn({
            let (client, queue) = (client.clone(), queue.clone());
            move || {
                client.serve(true);
                queue.store(1, Release);
            }
        });
        let refers_to_reply = queue.load(Acquire) == 1;
        assert!(client.claim.is_over() || !refers_to_reply);
        other.join().expect("no panic");
        assert!(client.claim.is_over());
    });
}

#[test]
fn a_wait_is_served_or_ends() {
    explore(3, || {
        let client = Client::new();
        let servers: Vec<_> = [true, false]
            .map(|is_enough| {
                let client = client.clone();
                thread::spawn(move || client.serve(is_enough))
            })
            .into();
        let ended = client.end();
        let served = servers.into_iter().map(|server| server.join().expect("no panic"));
        let served = served.filter(|served| *served).count();
        assert_eq!(usize::from(ended) + served, client.replies.load(Relaxed));
        assert_eq!(client.replies.load(Relaxed), 1, "ended: {ended}, served: {served}");
    });
}

#[test]
fn no_thread_uses_a_closed_socket() {
    explore(3, || {
        let client = Client::new();
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let client = client.clone();
                thread::spawn(move || if number == 0 { client.serve(false) } else { client.end() })
            })
            .collect();
        client.serve(true);
        client.close();
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert!(client.replies.load(Relaxed) <= 1);
    });
}
