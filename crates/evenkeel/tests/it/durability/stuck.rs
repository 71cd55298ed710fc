//! The end of a server whose snapshots do not get on. A pipe that nobody reads stands for a disk that hangs: it is where the
//! unfinished file would be, and opening it waits.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use evenkeel_testkit::Server;

use crate::{start, wait_until};

fn with_stuck_snapshots() -> Server {
    let server = start(&["--threads", "1", "--save", ""]);
    assert_eq!(server.connect().run("SET k 1").to_string(), "OK");
    let path = server.folder().join(format!("temp-{}.rdb", server.pid()));
    let path = CString::new(path.as_os_str().as_bytes()).expect("no zero in it");
    // SAFETY: the path ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    server
}

#[test]
fn an_end_that_waits_for_a_stuck_snapshot_can_be_aborted() {
    for is_taken_before in [true, false] {
        let server = with_stuck_snapshots();
        let (mut client, mut asker, mut writer) = (server.connect(), server.connect(), server.connect());
        if is_taken_before {
            assert_eq!(client.run("BGSAVE").to_string(), "Background saving started");
        }
        asker.send(&["SHUTDOWN", "SAVE"]).expect("it reads");
        wait_until("the last one is to be taken", || server.log().contains("Saving the final RDB snapshot"));
        writer.send(&["INCR", "k"]).expect("it reads");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(client.run("SHUTDOWN ABORT").to_string(), "OK");
        assert_eq!(asker.read().to_string(), "-ERR Errors trying to SHUTDOWN. Check logs.");
        assert_eq!(writer.read().to_string(), ":2", "writes go on");
        assert_eq!(client.run("SHUTDOWN ABORT").to_string(), "-ERR No shutdown in progress.");
    }
}

#[test]
fn an_end_without_a_snapshot_does_not_wait_for_a_stuck_one() {
    let mut server = with_stuck_snapshots();
    assert_eq!(server.connect().run("BGSAVE").to_string(), "Background saving started");
    let before = Instant::now();
    assert!(server.stop().success());
    assert!(before.elapsed() < Duration::from_secs(30), "{:?}", before.elapsed());
    assert!(server.log().contains("is stuck in a write to its disk"), "{}", server.log());
}
