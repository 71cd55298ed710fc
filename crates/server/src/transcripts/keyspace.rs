//! Transcripts of keyspace commands.

use crate::testing::{World, check};

#[test]
fn exists_counts_each_argument() {
    check(
        "
        > SET a 1
        > SET b 2
        > EXISTS a b c a           < :3
        > TOUCH a c b              < :2
        > TYPE a                   < string
        > TYPE c                   < none
        > DEL a c a                < :1
        > UNLINK b b               < :1
        > DEL                      < -ERR wrong number of arguments for 'del' command
        > DBSIZE                   < :0
    ",
    );
}

#[test]
fn renaming_takes_the_deadline_along() {
    check(
        "
        > RENAME a b               < -ERR no such key
        > RENAME a a               < -ERR no such key
        > RENAMENX a b             < -ERR no such key
        > SET a 1
        > RENAME a a               < OK
        > RENAMENX a a             < :0
        > EXPIRE a 100
        > SET b 2
        > RENAMENX a b             < :0
        > RENAME a b               < OK
        > GET b                    < \"1\"
        > TTL b                    < :100
        > EXISTS a                 < :0
        > RENAMENX b a             < :1
        > DBSIZE                   < :1
        > SET b 2
        > RENAME b a
        > TTL a                    < :-1
    ",
    );
}

#[test]
fn copy_to_another_key_or_database() {
    check(
        "
        > COPY a b                 < :0
        > COPY a a                 < -ERR source and destination objects are the same
        > SET a 1
        > EXPIRE a 100
        > COPY a b                 < :1
        > COPY a b                 < :0
        > TTL b                    < :100
        > SET a 2
        > COPY a b REPLACE         < :1
        > GET b                    < \"2\"
        > TTL b                    < :-1
        > COPY a a DB 0            < -ERR source and destination objects are the same
        > COPY a a db 1            < :1
        > COPY a a DB 1            < :0
        > COPY a a replace DB 2 DB 1 < :1
        > COPY a b DB              < -ERR syntax error
        > COPY a b NX              < -ERR syntax error
        > COPY a b DB x            < -ERR value is not an integer or out of range
        > COPY a b DB -1           < -ERR DB index is out of range
        > COPY a b DB 16 NX        < -ERR DB index is out of range
        > COPY a b DB 2147483648   < -ERR value is out of range, value must between -2147483648 and 2147483647
        > SELECT 1
        > GET a                    < \"2\"
        > DBSIZE                   < :1
    ",
    );
}

#[test]
fn move_to_another_database() {
    check(
        "
        > MOVE a 1                 < :0
        > MOVE a 0                 < -ERR source and destination objects are the same
        > MOVE a x                 < -ERR value is not an integer or out of range
        > MOVE a 16                < -ERR DB index is out of range
        > SET a 1
        > EXPIRE a 100
        > MOVE a 1                 < :1
        > EXISTS a                 < :0
        > SET a 2
        > MOVE a 1                 < :0
        > GET a                    < \"2\"
        > SELECT 1                 < OK
        > GET a                    < \"1\"
        > TTL a                    < :100
        > SELECT 2147483648        < -ERR value is out of range, value must between -2147483648 and 2147483647
        > SELECT 16                < -ERR DB index is out of range
    ",
    );
}

#[test]
fn databases_are_swapped_and_flushed() {
    check(
        "
        > SET a 0
        > SWAPDB 0 1               < OK
        > DBSIZE                   < :0
        > SWAPDB 0 0               < OK
        > SELECT 1
        > GET a                    < \"0\"
        > SWAPDB x 0               < -ERR invalid first DB index
        > SWAPDB 16 x              < -ERR invalid second DB index
        > SWAPDB 0 16              < -ERR DB index is out of range
        > SWAPDB -1 0              < -ERR DB index is out of range
        > FLUSHDB NOW              < -ERR syntax error
        > FLUSHALL ASYNC SYNC      < -ERR syntax error
        > DBSIZE                   < :1
        > FLUSHDB sync             < OK
        > DBSIZE                   < :0
        > SET a 1
        > SELECT 0
        > SET a 0
        > FLUSHALL async           < OK
        > DBSIZE                   < :0
        > SELECT 1
        > DBSIZE                   < :0
    ",
    );
}

/// Flushed keys cannot be seen, and a thread frees them. Their remaining memory is no reason to refuse
/// new keys.
#[test]
fn flushed_memory_is_freed() {
    let mut world = World::new();
    // The thread that frees has something else to do first.
    let (release, wait) = std::sync::mpsc::channel::<()>();
    struct Busy(std::sync::mpsc::Receiver<()>);
    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }
    world.server.core.lazy_free.free(Busy(wait));
    world.check("> SET k v\n > CONFIG SET maxmemory 1\n > SET k w < -OOM *");
    world.check("> FLUSHALL ASYNC < OK\n > DBSIZE < :0\n > SET k w < OK\n > DBSIZE < :1");
    drop(release);
    let started = std::time::Instant::now();
    while world.server.core.lazy_free.pending() > 0 {
        assert!(started.elapsed().as_secs() < 20, "nothing is freed");
        std::thread::yield_now();
    }
    world.check("> SET k x < -OOM *");
    world.check("> INFO memory < \"*lazyfree_pending_objects:0\\r\\nlazyfreed_objects:2\\r*\"");
    world.check("> CONFIG RESETSTAT\n > INFO memory < \"*\\nlazyfreed_objects:0\\r*\"");
}
