//! Files that a server writes are no other server's.

use evenkeel_testkit::Server;

use super::exchange::rewrite;
use crate::{program, start};

/// The lock is where the files are, and not where `dir` points by now.
#[test]
fn nobody_else_writes_a_log_that_has_its_writer() {
    let server =
        start(&["--threads", "1", "--appendonly", "yes", "--save", "", "--enable-protected-configs", "yes"]);
    let folder = server.folder().display().to_string();
    let refused = || {
        let args = ["--threads", "1", "--appendonly", "yes", "--dir", &folder];
        let log = Server::try_start(&program(), &args).err().expect("it is refused");
        assert!(log.contains("another server keeps its data in"), "{log}");
    };
    refused();
    let elsewhere = server.folder().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("the folder is ours");
    let mut client = server.connect();
    assert!(!client.run(&format!("CONFIG SET dir {}", elsewhere.display())).is_error());
    assert!(!client.run("SET k v").is_error());
    rewrite(&server);
    refused();
}
