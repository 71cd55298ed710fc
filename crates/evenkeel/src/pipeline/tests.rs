//! Requests that come in parts.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::*;
use crate::clients::ClientInfo;
use crate::testing::World;

/// A request that comes in parts, the first of them behind another request: from the second part on, the arguments that
/// have come stay where they are, however many there are.
#[test]
fn the_arguments_of_a_long_request_are_not_moved_with_every_part() {
    const KEYS: usize = 1000;
    let mut world = World::new();
    let client = ClientInfo::new(1, "test:1".into(), "test:2".into(), -1, false, world.now_ms);
    let session = Session::of_newcomer(Arc::new(client), &world.server);
    let (socket, _peer) = UnixStream::pair().expect("two descriptors are free");
    let mut connection = Connection::new(socket.into(), session);
    let (mut pipeline, mut reply, executor) = (Pipeline::default(), Reply::default(), &mut world.workers[0]);
    let request = format!("*{}\r\n$4\r\nMGET\r\n{}", KEYS + 1, "$1\r\nk\r\n".repeat(KEYS));
    let all = [b"*1\r\n$4\r\nPING\r\n", request.as_bytes()].concat();
    let (ping, mut places) = (all.len() - request.len(), Vec::new());
    for (from, to, used_up) in [
        (0, 4995, ping),
        (ping, 4996, 0),
        (ping, 4997, 0),
        (ping, 4998, 0),
        (ping, all.len() - 1, 0),
        (ping, all.len(), request.len()),
    ] {
        let (mut input, mut used) = (all[from..to].to_vec(), 0);
        let ended = pipeline.run(executor, &mut connection, &mut input, &mut used, &mut reply);
        assert_eq!((ended, used), (Ended::Empty, used_up), "up to {to}");
        places.push(connection.args.as_ptr());
    }
    assert!(places[..4].iter().all(|place| *place == places[0]), "they were moved");
    assert_eq!(reply.plain(), Some(format!("+PONG\r\n*{KEYS}\r\n{}", "$-1\r\n".repeat(KEYS)).as_bytes()));
}
