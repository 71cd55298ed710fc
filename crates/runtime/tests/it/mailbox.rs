//! The mailbox, in every order of its threads: the file is compiled against loom, which explores all orders.

#[allow(unreachable_pub, reason = "public in the crate whose file this is")]
#[path = "../../src/mailbox.rs"]
mod model;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use model::Mailbox;

/// A mailbox and a bell, which stands for an inbox's eventfd. A ring stays until it is received.
struct Inbox {
    mailbox: Mailbox<u32>,
    bell: Mutex<u32>,
    rung: Condvar,
}

impl Inbox {
    /// Returns the number of rings.
    fn post(&self, message: u32) -> u32 {
        let asleep = self.mailbox.put(message);
        if asleep {
            let mut bell = self.bell.lock().expect("no thread panics");
            *bell += 1;
            self.rung.notify_one();
        }
        u32::from(asleep)
    }

    /// Takes messages until there have been `count`; if a wake-up can be lost, loom finds an endless wait.
    /// Also returns how often the receiver was about to sleep.
    fn receive(&self, count: usize) -> (Vec<u32>, u32) {
        let (mut received, mut sleeps) = (Vec::new(), 0);
        while received.len() < count {
            sleeps += 1;
            if self.mailbox.may_sleep() {
                let mut bell = self.bell.lock().expect("no thread panics");
                while *bell == 0 {
                    bell = self.rung.wait(bell).expect("no thread panics");
                }
                *bell = 0;
            }
            self.mailbox.awake();
            received.extend(self.mailbox.take());
        }
        (received, sleeps)
    }
}

fn explore(senders: u32, messages: u32) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let (mailbox, bell) = (Mailbox::new(), Mutex::new(0));
        let inbox = Arc::new(Inbox { mailbox, bell, rung: Condvar::new() });
        let threads: Vec<_> = (0..senders)
            .map(|sender| {
                let inbox = inbox.clone();
                thread::spawn(move || {
                    (0..messages).map(|message| inbox.post(sender * 10 + message)).sum::<u32>()
                })
            })
            .collect();
        let (mut received, sleeps) = inbox.receive((senders * messages) as usize);
        let rings: u32 = threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum();
        assert!(rings <= sleeps, "whoever is awake is not signalled: {rings} rings for {sleeps} sleeps");
        received.sort_unstable();
        let sent: Vec<u32> =
            (0..senders).flat_map(|sender| (0..messages).map(move |message| sender * 10 + message)).collect();
        assert_eq!(received, sent);
    });
}

#[test]
fn a_sender_of_two_never_leaves_the_owner_asleep() {
    explore(1, 2);
}

#[test]
fn two_senders_never_leave_the_owner_asleep() {
    explore(2, 1);
}
