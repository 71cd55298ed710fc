//! Three nodes whose files agree.

use super::{IDS, KEYS, StaticCluster, text};
use crate::program;

#[test]
fn every_key_has_one_node() {
    let cluster = StaticCluster::start(&program(), &[]);
    for asked in 0..3 {
        let mut client = cluster.connect(asked);
        for (owner, keys) in KEYS.iter().enumerate() {
            for key in keys {
                let reply = cluster.shown(&text(&mut client, &format!("SET {key} v")));
                if owner == asked {
                    assert_eq!(reply, "OK");
                } else {
                    assert!(
                        reply.starts_with("-MOVED ") && reply.ends_with(&format!(":PORT{owner}")),
                        "{reply}"
                    );
                }
            }
        }
        let slots = cluster.shown(&text(&mut client, "CLUSTER SLOTS"));
        assert_eq!(slots.matches("127.0.0.1").count(), 3, "{slots}");
        assert_eq!(slots, cluster.shown(&text(&mut cluster.connect(0), "CLUSTER SLOTS")));
    }
}

/// The way of redis-cli's reshard: both ends are marked, the keys move one by one, both learn the owner.
#[test]
fn a_slot_moves_key_by_key() {
    let cluster = StaticCluster::start(&program(), &[]);
    let (mut from, mut to) = (cluster.connect(0), cluster.connect(1));
    for number in 0..20 {
        from.run(&format!("SET {{bar}}{number} {number}"));
    }
    assert_eq!(text(&mut to, &format!("CLUSTER SETSLOT 5061 IMPORTING {}", IDS[0])), "OK");
    assert_eq!(text(&mut from, &format!("CLUSTER SETSLOT 5061 MIGRATING {}", IDS[1])), "OK");
    let port = cluster.nodes[1].port();
    for number in 0..10 {
        assert_eq!(text(&mut from, &format!("MIGRATE 127.0.0.1 {port} {{bar}}{number} 0 5000")), "OK");
    }
    assert_eq!(cluster.shown(&text(&mut from, "GET {bar}3")), "-ASK 5061 127.0.0.1:PORT1");
    assert_eq!(text(&mut from, "GET {bar}13"), "\"13\"");
    assert_eq!(
        text(&mut from, "MGET {bar}3 {bar}13"),
        "-TRYAGAIN Multiple keys request during rehashing of slot"
    );
    assert!(text(&mut to, "GET {bar}3").starts_with("-MOVED "));
    to.run("ASKING");
    assert_eq!(text(&mut to, "GET {bar}3"), "\"3\"");
    let own = format!("CLUSTER SETSLOT 5061 NODE {}", IDS[1]);
    assert!(text(&mut from, &own).contains("while I still hold keys"));
    let keys: Vec<String> = (10..20).map(|number| format!("{{bar}}{number}")).collect();
    let rest = format!("MIGRATE 127.0.0.1 {port} '' 0 5000 KEYS {}", keys.join(" "));
    assert_eq!(text(&mut from, &rest), "OK");
    assert_eq!(text(&mut to, &own), "OK");
    assert_eq!(text(&mut from, &own), "OK");
    assert_eq!(text(&mut to, "CLUSTER COUNTKEYSINSLOT 5061"), ":20");
    assert_eq!(cluster.shown(&text(&mut from, "GET {bar}3")), "-MOVED 5061 127.0.0.1:PORT1");
    assert!(text(&mut to, "CLUSTER NODES").contains("5061 5461-10922"));
    let file = cluster.files[1].read("nodes.conf");
    assert!(file.contains(" 4 connected 5061 5461-10922\n"), "{file}");
}

#[test]
fn a_clusters_scan_finds_all_keys() {
    let cluster = StaticCluster::start(&program(), &[]);
    let mut clients: Vec<_> = (0..3).map(|node| cluster.connect(node)).collect();
    for number in 0..300 {
        let stored = clients
            .iter_mut()
            .map(|client| text(client, &format!("SET k{number} v")))
            .filter(|reply| reply == "OK")
            .count();
        assert_eq!(stored, 1);
    }
    let (mut cursor, mut found, mut node) = ("0".to_owned(), 0, 2);
    for _ in 0..1_000 {
        let reply = text(&mut clients[node], &format!("CLUSTERSCAN {cursor} COUNT 50"));
        if let Some(port) = reply.strip_prefix("-MOVED ").and_then(|rest| rest.rsplit(':').next()) {
            let owner = cluster.nodes.iter().position(|server| server.port().to_string() == port);
            node = owner.expect("a node of the cluster");
            continue;
        }
        found += reply.matches("\"k").count();
        cursor = reply.split('"').nth(1).expect("a cursor").to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!((found, cursor.as_str()), (300, "0"));
}
