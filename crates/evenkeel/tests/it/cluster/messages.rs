//! PUBLISH and SPUBLISH between the nodes of a cluster.

use evenkeel_testkit::Client;
use evenkeel_testkit::etcd::is_missing;

use super::store::{Shared, wait};
use super::text;

/// Nodes 0 and 2 are primaries, and node 1 is the replica of node 0.
#[track_caller]
fn two_shards() -> Shared {
    let cluster = Shared::start(3, &["--repl-diskless-sync-delay", "0"]);
    for (node, slots) in [(0, "0 8191"), (2, "8192 16383")] {
        assert_eq!(text(&mut cluster.connect(node), &format!("CLUSTER ADDSLOTSRANGE {slots}")), "OK");
    }
    let replicate = format!("CLUSTER REPLICATE {}", cluster.id(0));
    wait("replica", || text(&mut cluster.connect(1), &replicate) == "OK");
    wait("synchronization", || cluster.info(0, "cluster_in_sync_replicas") == "1");
    cluster.wait_until_served(0..3);
    cluster
}

/// Reads messages up to `end`, and returns their texts.
fn texts(client: &mut Client, end: &str) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.last().is_none_or(|last| last != end) {
        let message = client.read().to_string();
        texts.push(message.rsplit('"').nth(1).unwrap_or_default().to_owned());
    }
    texts
}

/// Each listener of each node gets each message once, in the order of its publisher, whether a client
/// published it alone, in a transaction or in a script.
#[test]
fn messages_reach_the_listeners_of_all_nodes() {
    if is_missing() {
        return;
    }
    let cluster = two_shards();
    for publisher in 0..3 {
        let mut listeners: Vec<Client> = (0..6).map(|number| cluster.connect(number % 3)).collect();
        for (number, listener) in listeners.iter_mut().enumerate() {
            let line = if number < 3 { "SUBSCRIBE news" } else { "PSUBSCRIBE n?ws" };
            assert!(text(listener, line).contains("subscribe"));
        }
        let mut client = cluster.connect(publisher);
        let mut expected = Vec::new();
        for number in 0..50 {
            client.run(&format!("PUBLISH news alone-{number}"));
            client.run("MULTI");
            client.run(&format!("PUBLISH news first-{number}"));
            client.run(&format!("PUBLISH news second-{number}"));
            client.run("EXEC");
            client.run(&format!("EVAL \"redis.call('publish', 'news', ARGV[1])\" 0 script-{number}"));
            expected.extend(["alone", "first", "second", "script"].map(|word| format!("{word}-{number}")));
        }
        client.run("PUBLISH news end");
        expected.push("end".into());
        for (number, listener) in listeners.iter_mut().enumerate() {
            assert_eq!(texts(listener, "end"), expected, "listener {number}, publisher {publisher}");
        }
    }
}

/// A replica serves the channels of its shard, and the listeners of all nodes of the shard get the messages.
#[test]
fn shard_channels_are_served_by_replicas() {
    if is_missing() {
        return;
    }
    let cluster = two_shards();
    let channel = "bar"; // slot 5061
    let mut listeners = [cluster.connect(0), cluster.connect(1)];
    for listener in &mut listeners {
        assert!(text(listener, &format!("SSUBSCRIBE {channel}")).contains("ssubscribe"));
    }
    let moved = cluster.shown(&text(&mut cluster.connect(2), &format!("SSUBSCRIBE {channel}")));
    assert_eq!(moved, "-MOVED 5061 127.0.0.1:PORT0");
    for publisher in [0, 1] {
        let mut client = cluster.connect(publisher);
        let end = format!("end-{publisher}");
        for message in ["one", "two", &end] {
            client.run(&format!("SPUBLISH {channel} {message}"));
        }
        for listener in &mut listeners {
            assert_eq!(texts(listener, &end), ["one", "two", &end]);
        }
    }
}

/// Messages for a node that is not there are dropped, and delay nobody; later ones reach it again.
#[test]
fn a_node_that_comes_back_gets_messages_again() {
    if is_missing() {
        return;
    }
    let mut cluster = two_shards();
    let mut client = cluster.connect(0);
    client.run("PUBLISH news before");
    wait("message", || cluster.info(2, "cluster_stats_messages_publish_received") == "1");
    cluster.nodes[2].kill();
    let counts = |field| cluster.info(0, field).parse::<u64>().expect("a number");
    client.run("PUBLISH news lost");
    wait("lost message", || counts("cluster_stats_messages_publish_dropped") > 0);
    cluster.nodes[2].start_again();
    let mut listener = cluster.connect(2);
    assert!(text(&mut listener, "SUBSCRIBE news").contains("subscribe"));
    let mut listener = listener;
    listener.set_reply_timeout(std::time::Duration::from_millis(100));
    wait("message", || {
        client.run("PUBLISH news after");
        listener.try_read().is_ok_and(|message| message.to_string().contains("after"))
    });
}
