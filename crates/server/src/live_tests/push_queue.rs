use std::sync::Arc;

use crate::testing::World;
use crate::worker::inbox::Message;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::pubsub::push_queue::{Teller, put};

/// Otherwise later messages would never be announced, either.
#[test]
fn ending_threads_notify_recorded_workers() {
    let world = World::new();
    let id = world.server.hub.clients.next_id();
    let client = Arc::new(ClientInfo::new(id, "test:1".into(), "test:2".into(), -1, false, 0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _teller = Teller(&world.server.hub);
            put(&client, Arc::<[u8]>::from(&b"+line"[..]), u64::MAX);
        });
    });
    let messages = world.server.inboxes[0].take();
    assert!(matches!(&messages[..], [Message::PushQueued(clients)] if clients[0].id == client.id));
}
