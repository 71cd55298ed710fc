//! A node alone, and a node of a static cluster, as their clients see them.

use crate::testing::World;
use evenkeel_cluster::nodes_file;
use evenkeel_testkit::Target;

const ME: &str = "0101010101010101010101010101010101010101";
const OTHER: &str = "0202020202020202020202020202020202020202";
const THIRD: &str = "0303030303030303030303030303030303030303";
const SHARD: &str = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a";

/// A node that is alone and owns all slots.
fn alone() -> World {
    World::with(&["--cluster-enabled", "yes", "--cluster-databases", "2"])
}

/// A server that is the first of three nodes with these words in its own line.
fn node_with(own: &str, args: &[&str]) -> World {
    let world = World::with(&[&["--cluster-enabled", "yes"], args].concat());
    publish(&world, own);
    world
}

/// Publishes a map in which this node has the words `own`, and others own what lies above slot 5460.
fn publish(world: &World, own: &str) {
    let text = format!(
        "{ME} 10.0.0.1:7001@17001,,tls-port=0,shard-id={SHARD} myself,{own}\n\
         {OTHER} 10.0.0.2:7002@17002,b.example,tls-port=7102 master - 0 0 2 connected 5461-10922\n\
         {THIRD} 10.0.0.3:7003@17003,,tls-port=0 master - 0 0 3 connected 10923-16383\n"
    );
    let content = nodes_file::read(&text).expect("a good file");
    world.server.publish_map(content.map, content.me);
}

const OWN: &str = "master - 0 0 1 connected 0-5460";

#[test]
fn a_node_alone_owns_all_slots() {
    alone().check(
        "
        > CLUSTER INFO
        < \"cluster_state:ok\\r\\ncluster_slots_assigned:16384\\r\\n*cluster_known_nodes:1\\r\\ncluster_size:1*\"
        > CLUSTER SLOTS            < [[:0, :16383, [*]]]
        > CLUSTER NODES            < \"* myself,master - 0 0 0 connected 0-16383\\n\"
        > CLUSTER LINKS            < []
        > CLUSTER GETSLOTMIGRATIONS < []
        > INFO cluster             < \"# Cluster\\r\\ncluster_enabled:1\\r\\n\"
        > INFO server              < \"*redis_mode:cluster*\"
        > HELLO                    < [\"server\", *\"mode\", \"cluster\"*]
        > SET foo 1                < OK
        > SET bar 2                < OK
        > MGET foo bar             < -CROSSSLOT Keys in request don't hash to the same slot
        > MSET {foo}1 1 {foo}2 2   < OK
        > CLUSTER COUNTKEYSINSLOT 12182 < :3
        > CLUSTER GETKEYSINSLOT 12182 2 < [*, *]
        > CLUSTER COUNTKEYSINSLOT 16384 < -ERR Invalid slot
        > CLUSTER GETKEYSINSLOT 1 -1 < -ERR Invalid slot or number of keys
        > CLUSTER SLOT-STATS SLOTSRANGE 12182 12182 < [[:12182, [\"key-count\", :3]]]
        > CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 2 DESC < [[:12182, *], [:5061, *]]
        > CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 0
        < -ERR Limit has to lie in between 1 and 16384 (maximum number of slots).
        > RENAME foo bar           < -CROSSSLOT *
        > SELECT 1                 < OK
        > GET foo                  < (nil)
        > SELECT 2                 < -ERR DB index is out of range
        > SELECT 0                 < OK
        > MOVE bar 1               < :1
        > COPY foo {foo}3 DB 1     < :1
        > SWAPDB 0 1               < -ERR SWAPDB is not allowed in cluster mode
        > REPLICAOF 127.0.0.1 1    < -ERR REPLICAOF not allowed in cluster mode.
        > KEYS *                   < [*, *, *]
        > RANDOMKEY                < \"*foo*\"
        > FLUSHALL                 < OK
        > ASKING                   < OK
        > READONLY                 < OK
        > READWRITE                < OK
    ",
    );
}

#[test]
fn slots_have_statistics() {
    alone().check(
        "
        > CLUSTER SLOT-STATS ORDERBY CPU-USEC < -ERR Unrecognized sort metric for ORDERBY.
        > CONFIG SET cluster-slot-stats-enabled yes < OK
        > SET foo 1                < OK
        > GET foo                  < \"1\"
        > MGET {foo}1 {foo}2       < [(nil), (nil)]
        > CLUSTER SLOT-STATS SLOTSRANGE 12182 12182
        < [[:12182, [\"key-count\", :1, \"cpu-usec\", :*, \"network-bytes-in\", :89, *out\", :26]]]
        > CLUSTER SLOT-STATS ORDERBY NETWORK-BYTES-IN LIMIT 1 < [[:12182, *]]
        > CONFIG RESETSTAT         < OK
        > CLUSTER SLOT-STATS SLOTSRANGE 12182 12182
        < [[:12182, [\"key-count\", :1, \"cpu-usec\", :0, \"network-bytes-in\", :0, *out\", :0]]]
    ",
    );
}

#[test]
fn keys_of_others_are_redirected() {
    node_with(OWN, &[]).check(
        "
        > SET bar 1                < OK
        > GET foo                  < -MOVED 12182 10.0.0.3:7003
        > GET 1                    < -MOVED 9842 10.0.0.2:7002
        > MGET foo bar             < -CROSSSLOT Keys in request don't hash to the same slot
        > MGET foo {foo}2          < -MOVED 12182 10.0.0.3:7003
        > EVAL \"return 1\" 1 foo  < -MOVED 12182 10.0.0.3:7003
        > EVAL \"return 1\" 0      < :1
        > PING                     < PONG
        > PUBLISH foo x            < :0
        > SPUBLISH foo x           < -MOVED 12182 10.0.0.3:7003
        > SSUBSCRIBE foo           < -MOVED 12182 10.0.0.3:7003
        > SSUBSCRIBE bar hi        < -CROSSSLOT *
        > SUNSUBSCRIBE foo         < -MOVED 12182 10.0.0.3:7003
        > WATCH foo                < -MOVED 12182 10.0.0.3:7003
        > CLUSTERSCAN 0            < -MOVED 13907 10.0.0.3:7003
        > BLPOP foo 0              < -MOVED 12182 10.0.0.3:7003
        > CONFIG SET cluster-preferred-endpoint-type hostname < OK
        > GET 1                    < -MOVED 9842 b.example:7002
        > GET foo                  < -MOVED 12182 ?:7003
        > CONFIG SET cluster-preferred-endpoint-type unknown-endpoint < OK
        > GET 1                    < -MOVED 9842 :7002
        > INFO errorstats          < \"*errorstat_CROSSSLOT:count=2*errorstat_MOVED*\"
        > INFO commandstats        < \"*cmdstat_get:calls=0,*rejected_calls=5,*\"
    ",
    );
}

#[test]
fn a_redirection_aborts_the_transaction() {
    node_with(OWN, &[]).check(
        "
        > MULTI                    < OK
        > SET bar 1                < QUEUED
        > SET foo 1                < -MOVED 12182 10.0.0.3:7003
        > EXEC                     < -EXECABORT Transaction discarded because of previous errors.
        > EXEC                     < -ERR EXEC without MULTI
        > MULTI                    < OK
        > SET bar 1                < QUEUED
        > SET b 1                  < QUEUED
        > EXEC                     < -CROSSSLOT Keys in request don't hash to the same slot
        > GET bar                  < (nil)
        > MULTI                    < OK
        > SET bar 1                < QUEUED
        > PING                     < QUEUED
        > SET {bar}2 1             < QUEUED
        > EXEC                     < [OK, PONG, OK]
    ",
    );
}

/// What one thread may lock at once, one command may use at once.
#[test]
fn slots_of_this_node_can_be_used_together() {
    node_with(OWN, &["--cluster-allow-cross-slot", "yes"]).check(
        "
        > MSET bar 1 b 2           < OK
        > MGET bar b               < [\"1\", \"2\"]
        > MGET bar foo             < -CROSSSLOT *
        > MGET foo hi              < -MOVED 12182 10.0.0.3:7003
        > MULTI                    < OK
        > INCR bar                 < QUEUED
        > INCR b                   < QUEUED
        > EXEC                     < [:2, :3]
        > EVAL \"return {redis.call('incr', KEYS[1]), redis.call('incr', KEYS[2])}\" 2 bar b < [:3, :4]
        > EVAL \"#!lua\\nreturn redis.call('mget', 'bar', 'b')\" 0 < [\"3\", \"4\"]
        > EVAL \"return redis.pcall('mget', 'bar', 'foo')\" 0
        < -ERR Attempted to access a non local key in a cluster node
        > RENAME bar b             < OK
    ",
    );
}

#[test]
fn scripts_stay_in_their_slots() {
    node_with(OWN, &[]).check(
        "
        > EVAL \"return redis.pcall('get', 'foo')\" 0
        < -ERR Attempted to access a non local key in a cluster node
        > EVAL \"redis.call('set', 'bar', 1) return redis.call('get', 'b')\" 0 < (nil)
        > EVAL \"#!lua\\nredis.call('get', 'bar') return redis.pcall('get', 'b')\" 0
        < -ERR Script attempted to access keys that do not hash to the same slot
        > EVAL \"#!lua\\nreturn redis.pcall('get', 'b')\" 1 bar
        < -ERR Script attempted to access keys that do not hash to the same slot
        > EVAL \"#!lua flags=allow-cross-slot-keys\\nreturn redis.pcall('get', 'b')\" 1 bar
        < (nil)
        > EVAL \"#!lua flags=no-cluster\\nreturn 1\" 0
        < -ERR Can not run script on cluster, 'no-cluster' flag is set.
        > EVAL \"return redis.pcall('mget', 'bar', 'b')\" 0
        < -ERR Attempted to access a non local key in a cluster node
        > EVAL \"return redis.call('publish', 'foo', 'x')\" 0 < :0
        > SORT bar BY w_*
        < -ERR BY option of SORT denied in Cluster mode when keys formed by the pattern may be in *
        > SORT list BY nosort GET x
        < -MOVED *
        > LPUSH {bar}l 1           < :1
        > SORT {bar}l BY {bar}w_* GET # < [\"1\"]
        > SORT_RO {bar}l GET x
        < -ERR GET option of SORT denied in Cluster mode when keys formed by the pattern may be in *
    ",
    );
}

/// Slot 5061 has the keys with the tag bar.
const MIGRATING: &str = "master - 0 0 1 connected 0-5460 [5061->-0202020202020202020202020202020202020202]";

#[test]
fn keys_that_have_left_are_asked_for_elsewhere() {
    let mut world = node_with(MIGRATING, &[]);
    world.check(
        "
        > GET bar                  < -ASK 5061 10.0.0.2:7002
    ",
    );
    publish(&world, OWN);
    world.check("> MSET bar 1 {bar}2 2 < OK\n> SELECT 0 < OK");
    publish(&world, MIGRATING);
    world.check(
        "
        > GET bar                  < \"1\"
        > GET {bar}none            < -ASK 5061 10.0.0.2:7002
        > SET {bar}none 1          < -ASK 5061 10.0.0.2:7002
        > MGET bar {bar}2          < [\"1\", \"2\"]
        > MGET bar {bar}none       < -TRYAGAIN Multiple keys request during rehashing of slot
        > MGET {bar}x {bar}none    < -ASK 5061 10.0.0.2:7002
        > RENAME bar {bar}none     < -TRYAGAIN *
        > MULTI                    < OK
        > GET bar                  < QUEUED
        > GET {bar}none            < QUEUED
        > EXEC                     < -TRYAGAIN *
        > MULTI                    < OK
        > INCR bar                 < QUEUED
        > EXEC                     < [:2]
        > EVAL \"return redis.call('get', KEYS[1])\" 1 bar < \"2\"
        > EVAL \"return 1\" 1 {bar}none < -ASK 5061 10.0.0.2:7002
        > EVAL \"return 1\" 2 bar {bar}none < -TRYAGAIN *
        > EVAL \"return redis.pcall('get', '{bar}none')\" 0
        < -ERR Attempted to access a non local key in a cluster node
        > SSUBSCRIBE bar           < [\"ssubscribe\", \"bar\", :1]
        a> GET b
        a< (nil)
        a> CLUSTER NODES
        a< \"*0-5460 [5061->-0202020202020202020202020202020202020202]*\"
        a> MIGRATE 127.0.0.1 1 {bar}none 0 100
        a< NOKEY
        a> SPUBLISH bar x
        a< :1
    ",
    );
}

/// Slot 9842 has the keys with the tag 1.
const IMPORTING: &str = "master - 0 0 1 connected 0-5460 [9842-<-0202020202020202020202020202020202020202]";

#[test]
fn asking_holds_for_a_command_or_a_transaction() {
    node_with(IMPORTING, &[]).check(
        "
        > GET 1                    < -MOVED 9842 10.0.0.2:7002
        > ASKING                   < OK
        > GET 1                    < (nil)
        > GET 1                    < -MOVED 9842 10.0.0.2:7002
        > ASKING                   < OK
        > SET 1 v                  < OK
        > ASKING                   < OK
        > MGET 1 {1}2              < -TRYAGAIN *
        > ASKING                   < OK
        > PING                     < PONG
        > GET 1                    < -MOVED 9842 10.0.0.2:7002
        > ASKING                   < OK
        > MULTI                    < OK
        > SET 1 w                  < QUEUED
        > GET 1                    < QUEUED
        > EXEC                     < [OK, \"w\"]
        > GET 1                    < -MOVED 9842 10.0.0.2:7002
        > ASKING                   < OK
        > EVAL \"return redis.call('get', KEYS[1])\" 1 1 < \"w\"
        > RESTORE-ASKING {1}7 0 x  < -ERR DUMP payload version or checksum are wrong
        > RESTORE {1}7 0 x         < -MOVED 9842 10.0.0.2:7002
        > ASKING                   < OK
        > GET foo                  < -MOVED 12182 10.0.0.3:7003
    ",
    );
}

#[test]
fn a_replica_serves_reads_to_clients_that_want_them() {
    let own = "slave 0202020202020202020202020202020202020202 0 0 2 connected";
    let mut world = World::with(&["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]);
    publish(&world, own);
    world.check(
        "
        > GET 1                    < -MOVED 9842 10.0.0.2:7002
        > READONLY                 < OK
        > GET 1                    < (nil)
        > SET 1 v                  < -MOVED 9842 10.0.0.2:7002
        > GET bar                  < -CLUSTERDOWN Hash slot not served
        > MULTI                    < OK
        > GET 1                    < QUEUED
        > EXEC                     < [(nil)]
        > CLUSTER SETSLOT 1 STABLE < -ERR Please use SETSLOT only with masters.
        > CLUSTER FAILOVER         < -ERR CLUSTER FAILOVER needs cluster-store: *
        > CLUSTER REPLICAS 0202020202020202020202020202020202020202
        < [\"0101010101010101010101010101010101010101 10.0.0.1:6379@16379 myself,slave *\"]
        > READWRITE                < OK
        > GET 1                    < -MOVED 9842 10.0.0.2:7002
    ",
    );
}

#[test]
fn a_cluster_with_a_hole_is_down() {
    let mut world = node_with("master - 0 0 1 connected 0-5000", &[]);
    world.check(
        "
        > CLUSTER INFO             < \"cluster_state:fail\\r\\ncluster_slots_assigned:15924*\"
        > GET b                    < -CLUSTERDOWN The cluster is down
        > GET bar                  < -CLUSTERDOWN Hash slot not served
        > GET foo                  < -CLUSTERDOWN The cluster is down
        > EVAL \"return redis.pcall('get', 'b')\" 0
        < -ERR Can not execute a command 'get' while the cluster is down
        > SPUBLISH b x             < :0
        > CONFIG SET cluster-allow-pubsubshard-when-down no cluster-allow-reads-when-down yes < OK
        > SPUBLISH b x             < -CLUSTERDOWN The cluster is down
        > GET b                    < (nil)
        > GET foo                  < -MOVED 12182 10.0.0.3:7003
        > SET b 1                  < -CLUSTERDOWN The cluster is down and only accepts read commands
        > CONFIG SET cluster-require-full-coverage no < OK
        > SET b 1                  < OK
        > GET bar                  < -CLUSTERDOWN Hash slot not served
    ",
    );
}

#[test]
fn what_waits_for_a_slot_ends_when_it_leaves() {
    let mut world = node_with(OWN, &[]);
    world.check(
        "
        > SET bar 1                < OK
        w> WATCH bar
        w< OK
        w> MULTI
        w< OK
        w> PING
        w< QUEUED
        t> HELLO 3
        t< *
        t> CLIENT TRACKING on
        t< OK
        t> GET bar
        t< \"1\"
    ",
    );
    world.type_in("b", "BLPOP {bar}l 0");
    world.type_in("c", "BLPOP b 0");
    publish(&world, "master - 0 0 1 connected 0-5000");
    world.check(
        "
        b< -CLUSTERDOWN The cluster is down
        c< -CLUSTERDOWN The cluster is down
        t< >[\"invalidate\", [\"bar\"]]
        w> EXEC
        w< (nil array)
    ",
    );
}

#[test]
fn a_scan_goes_over_all_slots() {
    let mut world = alone();
    for number in 0..100 {
        world.run(&format!("SET key:{number} x"));
    }
    let (mut cursor, mut found) = (b"0".to_vec(), std::collections::BTreeSet::new());
    loop {
        let words = [&b"CLUSTERSCAN"[..], &cursor, b"COUNT", b"7"];
        let reply = world.call(&words.map(<[u8]>::to_vec)).expect("a reply");
        let evenkeel_resp::value::Value::Array(parts) = reply else { panic!("{reply}") };
        let [evenkeel_resp::value::Value::Bulk(next), evenkeel_resp::value::Value::Array(keys)] = &parts[..]
        else {
            panic!("two parts")
        };
        found.extend(keys.iter().map(|key| key.to_string()));
        cursor = next.clone();
        if cursor == b"0" {
            break;
        }
    }
    assert_eq!(found.len(), 100);
    world.check(
        "
        > CLUSTERSCAN x                  < -ERR Invalid cursor
        > CLUSTERSCAN 0 SLOT x           < -ERR Invalid or out of range slot
        > CLUSTERSCAN 0 FOO              < -ERR syntax error
        > CLUSTERSCAN 0-{key:1}-0 SLOT 1 < -ERR Cursor slot mismatch with SLOT argument
        > CLUSTERSCAN 0-{key:1}-0 SLOT 7942 MATCH *
        < *
    ",
    );
}

#[test]
fn a_node_serves_its_slots_until_its_fence() {
    let mut world = node_with(OWN, &["--cluster-store", "etcd://127.0.0.1:1"]);
    let server = world.server.clone();
    let cluster = server.cluster.as_ref().expect("cluster mode");
    world.check(
        "
        > SET bar 1                     < -CLUSTERDOWN The cluster is down
        > GET bar                       < -CLUSTERDOWN The cluster is down
        > MGET {bar}1 {bar}2            < -CLUSTERDOWN The cluster is down
        > FLUSHALL                      < -CLUSTERDOWN The cluster is down
        > EVAL \"return redis.call('set', 'bar', 1)\" 0
        < -ERR Can not execute a command 'set' while the cluster is down*
        > GET foo                       < -MOVED 12182 10.0.0.3:7003
        > PING                          < PONG
        > CLUSTER INFO                  < \"cluster_state:fail*\"
        > CONFIG SET cluster-allow-reads-when-down yes < OK
        > GET bar                       < (nil)
        > SET bar 1                     < -CLUSTERDOWN The cluster is down and only accepts read commands
        > CONFIG SET cluster-allow-reads-when-down no < OK
    ",
    );
    cluster.fence.set(evenkeel_cluster::store::boot_clock() + 600_000);
    world.check("> SET bar 1 < OK");
    world.check("> CLUSTER INFO < \"cluster_state:ok*\"");
    cluster.fence.set(0);
    world.check("> GET bar < -CLUSTERDOWN The cluster is down");
}

#[test]
fn closed_slots_serve_nothing() {
    let mut world = node_with(OWN, &[]);
    world.check("> SET bar 1 < OK");
    world.check("> SET b 1 < OK");
    let view = world.server.cluster.as_ref().expect("cluster mode").view();
    let closed = std::iter::once(5061).collect();
    world.server.publish(super::Seen { closed, ..super::Seen::new(view.map.clone(), view.me) });
    world.check(
        "
        > GET bar                       < -TRYAGAIN *
        > SET bar 2                     < -TRYAGAIN *
        > EVAL \"return redis.call('set', 'bar', 2)\" 0 < -ERR *
        > GET b                         < \"1\"
    ",
    );
    world.server.publish(super::Seen::new(view.map.clone(), view.me));
    world.check("> GET bar < \"1\"");
}
