//! A network that loses packets.

use std::io::Write;
use std::process::{Command, Stdio};

use evenkeel_testkit::Server;

use crate::stage::{self, LOAD, Load, SERVER, diagnose_with, stage};

/// A rule that drops some of the packets from a port of this machine, removed on drop.
struct Lossy(String);

impl Lossy {
    /// `None` if the user may make no rules, or nft is not installed.
    fn new(port: u16, percent: u32) -> Option<Lossy> {
        let lossy = Lossy(format!("doctor_case_{}", std::process::id()));
        let rules = format!(
            "table inet {} {{\n chain arrives {{\n  type filter hook input priority 0;\n  \
             tcp sport {port} numgen random mod 100 < {percent} drop\n }}\n}}\n",
            lossy.0
        );
        let nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut nft = nft.ok()?;
        nft.stdin.take()?.write_all(rules.as_bytes()).ok()?;
        nft.wait().ok()?.success().then_some(lossy)
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        let _ = Command::new("nft").args(["delete", "table", "inet", &self.0]).stderr(Stdio::null()).output();
    }
}

#[test]
#[ignore = "long"]
fn lost_packets_are_the_first_finding() {
    let _stage = stage();
    let server = Server::start(&stage::redis(SERVER), &["--save", ""]);
    let Some(_lossy) = Lossy::new(server.port(), 3) else {
        return println!("left out: scripts/setup corpus installs nft, and it needs root");
    };
    let _load = Load::start_at(LOAD, server.port(), &["-t", "set", "-c", "20"]);
    for more in [&[][..], &["--proc-only"]] {
        let seen = diagnose_with("redis-server, packets are lost", server.pid(), more);
        seen.expect_first("R28");
        assert!(seen.titles()[0].starts_with("Packets are lost on the network: "), "{seen}");
    }
}
