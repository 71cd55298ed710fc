use std::sync::Arc;

use crate::testing::{World, check};
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::replica_hello::ReplicaHello;
use evenkeel_replication::replicas::{Progress, Replica};
use evenkeel_runtime::clock;

#[test]
fn replconf_options_before_psync() {
    let long = "x".repeat(256);
    check(&format!(
        "
        > REPLCONF                              < OK
        > REPLCONF a                            < -ERR syntax error
        > REPLCONF a b                          < -ERR Unrecognized REPLCONF option: a
        > REPLCONF listening-port x             < -ERR value is not an integer or out of range
        > REPLCONF listening-port 123 foo       < -ERR syntax error
        > REPLCONF listening-port 123           < OK
        > REPLCONF Listening-Port 99999         < OK
        > REPLCONF ip-address {long}
        < -ERR REPLCONF ip-address provided by replica instance is too long: 256 bytes
        > REPLCONF ip-address 10.0.0.1          < OK
        > REPLCONF capa nosuch capa eof         < OK
        > REPLCONF rdb-only x                   < -ERR value is not an integer or out of range
        > REPLCONF rdb-only 2                   < -ERR value is out of range, value must between 0 and 1
        > REPLCONF rdb-only 0                   < OK
        > REPLCONF rdb-filter-only x            < -ERR Unsupported rdb-filter-only option: x
        > REPLCONF rdb-filter-only 'functions x' < -ERR Unsupported rdb-filter-only option: x
        > REPLCONF rdb-filter-only \"'\"         < -ERR Missing rdb-filter-only values
        > REPLCONF rdb-filter-only Functions    < OK
        > REPLCONF rdb-filter-only ''           < OK
        > PSYNC ?                               < -ERR wrong number of arguments for 'psync' command
        > PSYNC ? x                             < -ERR value is not an integer or out of range
        > SYNC x                                < -ERR wrong number of arguments for 'sync' command
        > ROLE                                  < [\"master\", :0, []]
        > MULTI
        > PSYNC ? -1                            < -ERR Command 'psync' not allowed inside a transaction
        > EXEC                                  < -EXECABORT Transaction discarded because of previous errors.
        > MULTI
        > REPLCONF capa eof                     < QUEUED
        > ROLE                                  < QUEUED
        > EXEC                                  < [OK, [\"master\", :0, []]]
    "
    ));
    World::new().check("> REPLCONF version 9.1.0 < OK");
}

#[test]
fn min_replicas_to_write_refuses_writes() {
    check(
        "
        > SET k v                               < OK
        > CONFIG SET min-replicas-to-write 1    < OK
        > SET k w                               < -NOREPLICAS Not enough good replicas to write.
        > GET k                                 < \"v\"
        > MULTI
        > SET k w                               < -NOREPLICAS Not enough good replicas to write.
        > EXEC                                  < -EXECABORT Transaction discarded because of previous errors.
        > CONFIG SET min-replicas-max-lag 0     < OK
        > SET k w                               < OK
        > CONFIG SET min-slaves-max-lag 10 min-slaves-to-write 0 < OK
        > SET k x                               < OK
    ",
    );
}

#[test]
fn replicas_count_once_they_are_online() {
    let mut world = World::new();
    let client = ClientInfo::new(1, "10.0.0.1:999".into(), String::new(), -1, false, 0);
    let replica = Replica::new(Arc::new(client), &ReplicaHello::default(), clock::unix_ms());
    let replica = Arc::new(replica);
    world.server.replication.replicas.add(replica.clone());
    world.check(
        "
        > CONFIG SET min-replicas-to-write 1    < OK
        > SET k v                               < -NOREPLICAS Not enough good replicas to write.
    ",
    );
    replica.set_progress(Progress::Online);
    world.check(
        "
        > SET k v                               < OK
        > EVAL 'return redis.call(\"SET\", KEYS[1], \"w\")' 1 k < OK
    ",
    );
}
