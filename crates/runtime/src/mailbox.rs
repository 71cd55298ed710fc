//! The part of an inbox that decides who must be woken, apart from how.
//!
//! The bad interleaving: the owner finds its mailbox empty and goes to sleep while a sender puts a message in and finds it
//! still awake. So the owner first says that it is about to sleep and then looks once more; the sender first puts the
//! message in and then asks. With full fences between, at least one of the two sees the other. All writes of the flag
//! exchange it, so that they follow one another in the order in which they were made.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::*, fence};

/// See the module's text.
pub struct Mailbox<T> {
    messages: Mutex<Vec<T>>,
    /// The owner is about to wait, or waits, and nobody has woken it yet.
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

    /// Puts a message in; `true`: the owner sleeps, and it is this sender who has to wake it.
    pub fn put(&self, message: T) -> bool {
        self.messages.lock().push(message);
        fence(SeqCst);
        self.sleeping.load(Relaxed) && self.sleeping.swap(false, AcqRel)
    }

    /// The owner says that it is about to wait; `false` when there are messages, and it must not.
    pub fn may_sleep(&self) -> bool {
        self.sleeping.swap(true, AcqRel);
        fence(SeqCst);
        if self.messages.lock().is_empty() {
            return true;
        }
        self.awake();
        false
    }

    /// The owner is awake.
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
