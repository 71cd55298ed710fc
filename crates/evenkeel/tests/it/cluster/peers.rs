//! The same commands on this server and on Valkey, each as a cluster of three nodes with the same files.

use evenkeel_testkit::{Program, Reference};

use super::{IDS, StaticCluster, text};
use crate::{program, wait_until};

/// Lines for the first node, on one connection. Valkey 9.1.2 gives the same replies.
const LINES: &str = r##"
    GET bar
    GET foo
    SET 1 v
    MGET foo bar
    MGET foo {foo}2
    MSET bar 1 {bar}2 2
    DEL bar b
    RENAME bar hi
    EVAL "return 1" 0
    EVAL "return 1" 1 foo
    EVAL "return 1" 2 bar hi
    EVAL "return redis.call('get', KEYS[1])" 1 bar
    EVAL "#!lua flags=no-cluster\nreturn 1" 0
    SELECT 1
    GET bar
    SELECT 4
    SELECT 0
    SWAPDB 0 1
    MOVE bar 1
    SET bar 1
    COPY bar {bar}3
    COPY bar hi
    COPY bar {bar}3 DB 1
    SORT bar BY w_*
    SORT {bar}none BY {bar}w_*
    SORT {bar}none BY nosort GET # GET x
    SORT {bar}none GET #
    SORT {bar}none BY x->y
    SORT {bar}none STORE hi
    SORT_RO {bar}none GET {bar}*
    DBSIZE
    ASKING
    READONLY
    READWRITE
    PFMERGE bar hi
    PFCOUNT bar hi
    SPUBLISH foo x
    SPUBLISH bar x
    PUBLISH foo x
    MULTI
    SET bar 1
    SET foo 1
    EXEC
    EXEC
    MULTI
    SET bar 1
    SET b 1
    EXEC
    GET b
    MULTI
    MSET bar 1 hi 1
    GET bar
    EXEC
    MULTI
    GET bar
    SELECT 1
    GET bar
    EXEC
    SELECT 0
    WATCH foo
    WATCH bar hi
    WATCH bar
    UNWATCH
    CLUSTERSCAN 0
    CLUSTERSCAN 0 SLOT 5
    CLUSTER COUNTKEYSINSLOT 5061
    CLUSTER COUNTKEYSINSLOT 99999
    CLUSTER COUNTKEYSINSLOT x
    CLUSTER GETKEYSINSLOT 5061 -1
    CLUSTER GETKEYSINSLOT 99999 1
    CLUSTER GETKEYSINSLOT 12000 1
    CLUSTER KEYSLOT x
    CLUSTER MYID
    CLUSTER MYSHARDID
    CLUSTER REPLICAS 15cc
    CLUSTER REPLICAS 2222222222222222222222222222222222222222
    CLUSTER COUNT-FAILURE-REPORTS x
    CLUSTER COUNT-FAILURE-REPORTS 2222222222222222222222222222222222222222
    CLUSTER FORGET x
    CLUSTER FORGET 1111111111111111111111111111111111111111
    CLUSTER REPLICATE x
    CLUSTER REPLICATE 1111111111111111111111111111111111111111
    CLUSTER MEET a b
    CLUSTER MEET 127.0.0.1 99999
    CLUSTER MEET 127.0.0.1 1 99999
    CLUSTER ADDSLOTS 1
    CLUSTER ADDSLOTS x
    CLUSTER ADDSLOTSRANGE 3 2
    CLUSTER ADDSLOTSRANGE 3
    CLUSTER ADDSLOTSRANGE 3 4 5
    CLUSTER DELSLOTSRANGE 3 4 5
    CLUSTER DELSLOTS 3 3
    CLUSTER FLUSHSLOTS
    CLUSTER SETSLOT 1
    CLUSTER SETSLOT 1 x
    CLUSTER SETSLOT 1 MIGRATING x
    CLUSTER SETSLOT 12000 MIGRATING x
    CLUSTER SETSLOT 12000 IMPORTING x
    CLUSTER SETSLOT 1 NODE x
    CLUSTER SETSLOT 1 FOO
    CLUSTER SETSLOT 1 STABLE
    CLUSTER SETSLOT 99999 STABLE
    CLUSTER SETSLOT 5061 IMPORTING 2222222222222222222222222222222222222222
    CLUSTER SETSLOT 5061 MIGRATING 1111111111111111111111111111111111111111
    CLUSTER SET-CONFIG-EPOCH 3
    CLUSTER SET-CONFIG-EPOCH x
    CLUSTER SET-CONFIG-EPOCH -1
    CLUSTER SAVECONFIG
    CLUSTER RESET foo
    CLUSTER REPLICATE NO
    CLUSTER REPLICATE NO two
    CLUSTER REPLICATE NO ONE
    CLUSTER REPLICATE a b c
    CLUSTER FLUSHSLOT
    CLUSTER FLUSHSLOT x
    CLUSTER FLUSHSLOT 16384
    CLUSTER FLUSHSLOT 5 later
    CLUSTER FLUSHSLOT 5 SYNC x
    CLUSTER FLUSHSLOT 5 async
    CLUSTER FLUSHSLOT 5
    SHUTDOWN SAFE ABORT
    SHUTDOWN SAFE
    CLUSTER RESET
    CLUSTER FAILOVER
    CLUSTER FAILOVER FORCE
    CLUSTER FAILOVER X
    CLUSTER SLOT-STATS SLOTSRANGE 3 0
    CLUSTER SLOT-STATS SLOTSRANGE 0 16384
    CLUSTER SLOT-STATS SLOTSRANGE 12000 12001
    CLUSTER SLOT-STATS SLOTSRANGE 5061 5061
    CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 0
    CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 2 LIMIT 3
    CLUSTER SLOT-STATS ORDERBY KEY-COUNT DESC ASC
    CLUSTER SLOT-STATS ORDERBY KEY-COUNT FOO
    CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 1
    CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 2 ASC
    CLUSTER SLOT-STATS ORDERBY X
    CLUSTER SLOT-STATS FOO BAR
    CLUSTER GETSLOTMIGRATIONS
    CLUSTER CANCELSLOTMIGRATIONS
    REPLICAOF NO ONE
    CLUSTER SLOTS
    CLUSTER SETSLOT 5061 MIGRATING 2222222222222222222222222222222222222222
    GET bar
    GET {bar}zz
    MGET {bar}zz {bar}yy
    MGET bar {bar}yy
    MGET bar {bar}2
    EXISTS bar {bar}yy
    SET {bar}zz 1
    MULTI
    GET bar
    GET {bar}zz
    EXEC
    MULTI
    GET bar
    EXEC
    EVAL "return 1" 1 {bar}zz
    EVAL "return 1" 2 {bar}zz bar
    WATCH {bar}zz
    COPY bar {bar}zz
    MIGRATE 127.0.0.1 1 {bar}zz 0 100
    CLUSTER SETSLOT 5061 NODE 2222222222222222222222222222222222222222
    CLUSTER SETSLOT 5061 STABLE
    CLUSTER SETSLOT 9842 IMPORTING 2222222222222222222222222222222222222222
    GET 1
    ASKING
    GET 1
    GET 1
    ASKING
    MGET 1 {1}2
    ASKING
    SET 1 v
    ASKING
    MGET 1 {1}2
    ASKING
    MULTI
    SET 1 5
    EXEC
    ASKING
    PING
    GET 1
    ASKING
    EVAL "return redis.call('get', KEYS[1])" 1 1
    RESTORE-ASKING {1}7 0 x
    CLUSTER SETSLOT 9842 STABLE
    CONFIG SET cluster-announce-hostname host.example
    CONFIG SET cluster-preferred-endpoint-type hostname
    GET foo
    CONFIG SET cluster-preferred-endpoint-type unknown-endpoint
    GET foo
    CLUSTER SLOTS
    CONFIG SET cluster-preferred-endpoint-type ip
"##;

/// Lines whose replies are shown in RESP3, too.
const LINES_OF_RESP3: &str = "
    CLUSTER SLOTS
    CLUSTER SLOT-STATS SLOTSRANGE 5061 5061
    COMMAND INFO clusterscan
";

#[test]
fn replies_are_valkeys() {
    let Some(valkey) = Program::oracle(Reference::Valkey) else { return };
    let args = ["--cluster-databases", "4", "--enable-debug-command", "yes"];
    let clusters = [StaticCluster::start(&program(), &args), StaticCluster::start(&valkey, &args)];
    wait_until("Valkey's cluster is up", || {
        text(&mut clusters[1].connect(0), "CLUSTER INFO").contains("cluster_state:ok")
    });
    let mut clients = [clusters[0].connect(0), clusters[1].connect(0)];
    let mut compare = |line: &str| {
        let mut replies = clients.iter_mut().zip(&clusters).map(|(client, cluster)| {
            cluster.shown(&text(client, line)).replace(" valkey", " ").to_ascii_lowercase()
        });
        let (own, theirs) = (replies.next().expect("ours"), replies.next().expect("theirs"));
        assert_eq!(own, theirs, "{line}");
    };
    for line in LINES.lines().map(str::trim).filter(|line| !line.is_empty()) {
        compare(line);
    }
    compare(&format!("CLUSTER REPLICAS {}", IDS[0]));
    let mut clients = [clusters[0].nodes[0].connect3(), clusters[1].nodes[0].connect3()];
    for line in LINES_OF_RESP3.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let replies = [0, 1].map(|at| clusters[at].shown(&text(&mut clients[at], line)));
        assert_eq!(replies[0], replies[1], "{line}");
    }
    shards_have_the_same_form(&clusters);
}

/// The order of shards differs, and so may the offsets.
fn shards_have_the_same_form(clusters: &[StaticCluster; 2]) {
    for resp in [2, 3] {
        let forms = clusters.each_ref().map(|cluster| {
            let mut client = cluster.connect(0);
            client.run(&format!("HELLO {resp}"));
            let reply = cluster.shown(&text(&mut client, "CLUSTER SHARDS"));
            let own = reply.split("\"slots\"").find(|part| part.contains(":5460")).expect("the first shard");
            let own = own.trim_end_matches([',', ' ', '[', '{', ']', '}', '%']);
            let (before, after) = own.split_once("replication-offset\"").expect("an offset");
            format!("{before}...{}", after.split_once("\"health").expect("health").1)
        });
        assert_eq!(forms[0], forms[1]);
    }
}
