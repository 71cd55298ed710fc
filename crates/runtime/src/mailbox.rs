//! The part of an inbox that decides whether the owner must be woken, apart from the means of waking it.
//!
//! The bad interleaving: the owner finds its mailbox empty and goes to sleep while a sender puts a message in
//! and finds the owner still awake. So the owner first sets `sleeping` and then looks at the messages again;
//! the sender first puts the message in and then reads `sleeping`. With a full fence in between on both
//! sides, at least one thread sees the other's write. Every write of the flag is an exchange, so the writes
//! form a single order.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::*, fence};

/// Messages of many senders for a single owner; see the module's text.
pub struct Mailbox<T> {
    messages: Mutex<Vec<T>>,
    /// Set while the owner is about to wait or waits, until a sender or the owner itself clears it.
    sleeping: AtomicBool,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Mailbox<T> {
        Mailbox::new()
    }
}

impl<T> Mailbox<T> {
    pub fn new() -> Mailbox<T> {
        Mailbox { messages: Mutex::new(Vec::new()), sleeping: AtomicBool::new(false) }
    }

    /// Adds a message. Returns `true` if the owner sleeps and this sender has to wake it.
    pub fn put(&self, message: T) -> bool {
        self.messages.lock().push(message);
        fence(SeqCst);
        self.sleeping.load(Relaxed) && self.sleeping.swap(false, AcqRel)
    }

    /// Announces that the owner is about to wait. Returns `false` if there are messages, and the owner must
    /// not wait.
    pub fn may_sleep(&self) -> bool {
        self.sleeping.swap(true, AcqRel);
        fence(SeqCst);
        if self.messages.lock().is_empty() {
            return true;
        }
        self.awake();
        false
    }

    /// Marks the owner as awake.
    pub fn awake(&self) {
        if self.sleeping.load(Relaxed) {
            self.sleeping.swap(false, AcqRel);
        }
    }

    /// Takes all messages.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.messages.lock())
    }
}
