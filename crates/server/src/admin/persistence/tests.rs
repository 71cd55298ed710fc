use crate::testing::{World, check};

#[test]
fn options() {
    check(
        "
        > LASTSAVE                 < :*
        > SHUTDOWN nosuch          < -ERR syntax error
        > SHUTDOWN SAVE NOSAVE     < -ERR syntax error
        > SHUTDOWN ABORT           < -ERR No shutdown in progress.
        > SHUTDOWN ABORT NOW       < -ERR syntax error
        > SHUTDOWN FAILOVER        < -ERR SHUTDOWN FAILOVER is only supported in cluster mode.
        > BGSAVE nosuch            < -ERR syntax error
        > BGSAVE SCHEDULE x        < -ERR syntax error
        > SAVE now                 < -ERR wrong number of arguments for 'save' command
        > MULTI
        > SHUTDOWN                 < -ERR Command 'shutdown' not allowed inside a transaction
        > SAVE                     < -ERR Command 'save' not allowed inside a transaction
        > EXEC                     < -EXECABORT *
        > MULTI
        > BGSAVE                   < QUEUED
        > EXEC                     < [Background saving scheduled]
    ",
    );
}

/// As in Valkey.
#[test]
fn scheduled_saves_can_be_cancelled() {
    World::new().check(
        "
        > BGSAVE CANCEL            < -ERR Background saving is currently not in progress or scheduled
        > MULTI
        > BGSAVE
        > EXEC                     < [Background saving scheduled]
        > BGSAVE CANCEL            < Scheduled background saving cancelled
        > BGSAVE CANCEL            < -ERR Background saving is currently not in progress or scheduled
    ",
    );
}

#[test]
fn a_failed_save_is_reported() {
    let folder = crate::testing::folder("save");
    let file = folder.join("dump.rdb");
    std::fs::create_dir_all(&file).expect("a directory where the file should be");
    let mut world = World::with(&["--dir", folder.to_str().expect("a plain name"), "--save", "3600 1"]);
    world.check(
        "
        > SAVE                     < -ERR Failed saving the DB to */dump.rdb: Is a directory
        > INFO persistence         < \"*rdb_last_bgsave_status:err*\"
        > SET k v                  < -MISCONF Redis is configured to save RDB snapshots, *
        > PING                     < -MISCONF *
        > GET k                    < (nil)
        > MULTI
        > SET k v                  < -MISCONF *
        > EXEC                     < -EXECABORT *
        > SHUTDOWN SAVE
        < -ERR Errors trying to SHUTDOWN. Check logs. Failed saving the DB to */dump.rdb: Is a directory. \
            SHUTDOWN NOSAVE stops the server without a snapshot.
    ",
    );
    assert!(!world.server.core.stopping.load(std::sync::atomic::Ordering::Relaxed));
    std::fs::remove_dir(&file).expect("it is empty");
    world.check(
        "
        > SAVE                     < OK
        > SET k v                  < OK
        > PING                     < PONG
    ",
    );
    assert!(file.exists(), "it was saved");
    std::fs::remove_dir_all(&folder).expect("it can be removed");
}
