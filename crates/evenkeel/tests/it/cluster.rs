//! Cluster mode over sockets: a node alone, static clusters, whose nodes have files that agree, and nodes
//! that share a map in etcd.

mod alone;
mod faults;
mod messages;
mod moves;
mod peers;
mod replicas;
mod statics;
mod store;
mod tools;

use std::fmt::Write;

use evenkeel_testkit::scratch::Scratch;
use evenkeel_testkit::{Client, Program, Server};

const IDS: [&str; 4] = [
    "1111111111111111111111111111111111111111",
    "2222222222222222222222222222222222222222",
    "3333333333333333333333333333333333333333",
    "4444444444444444444444444444444444444444",
];

/// The slots of the primaries of a static cluster.
const SLOTS: [&str; 3] = ["0-5460", "5461-10922", "10923-16383"];

/// Keys in the slots of each primary: 5061 and 3300; 9842 and 5649; 12182 and 16140.
const KEYS: [[&str; 2]; 3] = [["bar", "b"], ["1", "2"], ["foo", "hi"]];

/// Three primaries whose files agree.
struct StaticCluster {
    nodes: Vec<Server>,
    files: Vec<Scratch>,
}

impl StaticCluster {
    #[track_caller]
    fn start(program: &Program, args: &[&str]) -> StaticCluster {
        // A port may be taken between its choice and the start.
        for _ in 0..5 {
            let ports: Vec<u16> = free_ports();
            let files: Vec<Scratch> = (0..3).map(|_| Scratch::new()).collect();
            let nodes: Result<Vec<Server>, String> = files
                .iter()
                .enumerate()
                .map(|(node, folder)| {
                    folder.write("nodes.conf", &nodes_file(&ports, node));
                    let (port, dir) = (ports[node].to_string(), folder.path.display().to_string());
                    let own = ["--port", &port, "--dir", &dir, "--cluster-enabled", "yes"];
                    Server::try_start(program, &[&own, args].concat())
                })
                .collect();
            match nodes {
                Ok(nodes) => return StaticCluster { nodes, files },
                Err(problem) => assert!(problem.contains("in use"), "{problem}"),
            }
        }
        panic!("no free ports");
    }

    fn connect(&self, node: usize) -> Client {
        self.nodes[node].connect()
    }

    /// Returns a reply with the ports of the nodes replaced by their numbers.
    fn shown(&self, text: &str) -> String {
        let ports = self.nodes.iter().enumerate();
        ports.fold(text.to_owned(), |text, (node, server)| {
            text.replace(&format!(":{}", server.port()), &format!(":PORT{node}"))
        })
    }
}

/// Ports with room for the port of a cluster bus, which Valkey needs.
fn free_ports() -> Vec<u16> {
    let mut ports = Vec::new();
    while ports.len() < 3 {
        let port = evenkeel_testkit::server::free_port();
        let base = 10_000 + port % 20_000;
        let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(base) && is_free(base + 10_000) && !ports.contains(&base) {
            ports.push(base);
        }
    }
    ports
}

fn nodes_file(ports: &[u16], me: usize) -> String {
    let mut text = String::new();
    for (node, port) in ports.iter().enumerate() {
        let (id, slots, bus, epoch) = (IDS[node], SLOTS[node], port + 10_000, node + 1);
        let mine = if node == me { "myself," } else { "" };
        let _ = writeln!(
            text,
            "{id} 127.0.0.1:{port}@{bus},,tls-port=0,shard-id={id} {mine}master - 0 0 {epoch} connected \
             {slots}"
        );
    }
    text + "vars currentEpoch 3 lastVoteEpoch 0\n"
}

fn text(client: &mut Client, line: &str) -> String {
    client.run(line).to_string()
}
