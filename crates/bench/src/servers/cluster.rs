//! A cluster of three shards with a replica each, for a measurement; for Evenkeel with an etcd of its own.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::server::new_directory;
use super::{Launch, Server, ServerKind, ServerProgram, ask};
use crate::{interrupt, sys};

/// The slots of the shards.
const SLOTS: [[&str; 2]; 3] = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]];

/// The lease, or Valkey's `cluster-node-timeout`, where it does not matter.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(3);

/// The longest wait until a new cluster, or a node that comes back, is ready.
const READY_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Three primaries, and the replica of each behind them, at first.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
    _store: Option<Etcd>,
}

impl Cluster {
    /// Starts two primaries without replicas. The first has all slots.
    pub(crate) fn pair(program: &ServerProgram) -> Result<Cluster> {
        let (store, more) = Cluster::settings(program, DEFAULT_PATIENCE)?;
        let launch = Launch { threads: 1, more, ..Launch::default() };
        let nodes = (0..2).map(|_| Server::start(program, &launch)).collect::<Result<Vec<Server>>>()?;
        let cluster = Cluster { nodes, _store: store };
        cluster.until_ok(0, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
        if program.kind == ServerKind::Valkey {
            cluster.until_ok(0, &["CLUSTER", "SET-CONFIG-EPOCH", "1"])?;
            cluster.until_ok(1, &["CLUSTER", "SET-CONFIG-EPOCH", "2"])?;
        }
        let port = cluster.nodes[0].address.port().to_string();
        cluster.until_ok(1, &["CLUSTER", "MEET", "127.0.0.1", &port])?;
        let knows_all = |node: &Server| {
            let ask = |what| ask(node.address, &["CLUSTER", what]).unwrap_or_default();
            ask("INFO").contains("cluster_state:ok") && ask("NODES").matches('@').count() == 2
        };
        wait(|| cluster.nodes.iter().all(knows_all)).context("the nodes do not know each other")?;
        Ok(cluster)
    }

    /// Starts the nodes. `patience`: the time after which the cluster gives a node up, which is the lease, or
    /// Valkey's `cluster-node-timeout`.
    pub(crate) fn start(program: &ServerProgram, patience: Duration) -> Result<Cluster> {
        let (store, more) = Cluster::settings(program, patience)?;
        let launch = Launch { threads: 1, more, ..Launch::default() };
        let nodes = (0..6).map(|_| Server::start(program, &launch)).collect::<Result<Vec<Server>>>()?;
        let cluster = Cluster { nodes, _store: store };
        cluster.form()?;
        Ok(cluster)
    }

    /// The arguments of each node, and the store that they share.
    fn settings(
        program: &ServerProgram,
        patience: Duration,
    ) -> Result<(Option<Etcd>, &'static [&'static str])> {
        let (store, more) = match program.kind {
            ServerKind::Evenkeel => {
                let store = Etcd::start()?;
                let (url, lease) = (format!("etcd://{}", store.address), patience.as_secs().max(1));
                (
                    Some(store),
                    vec!["--cluster-store".into(), url, "--cluster-lease".into(), lease.to_string()],
                )
            }
            ServerKind::Valkey => {
                let timeout = ["--cluster-node-timeout".into(), patience.as_millis().to_string()];
                // A primary that has given its last slot away would become a replica.
                let stays = ["--cluster-allow-replica-migration".into(), "no".into()];
                (None, [timeout, stays].concat())
            }
            other => bail!("{} has no cluster mode here", other.name()),
        };
        let all =
            ["--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"];
        // A launch lives as long as the program.
        let more: Vec<&'static str> =
            all.into_iter().chain(more.into_iter().map(|word: String| &*word.leak())).collect();
        Ok((store, more.leak()))
    }

    fn form(&self) -> Result<()> {
        for (node, slots) in SLOTS.iter().enumerate() {
            let [first, last] = *slots;
            self.until_ok(node, &["CLUSTER", "ADDSLOTSRANGE", first, last])?;
            // The nodes begin with the same epoch, which Valkey settles by a collision otherwise.
            if self.nodes[node].kind() == ServerKind::Valkey {
                self.until_ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(node + 1).to_string()])?;
            }
        }
        for node in 1..6 {
            let port = self.nodes[node].address.port().to_string();
            self.until_ok(0, &["CLUSTER", "MEET", "127.0.0.1", &port])?;
        }
        for node in 3..6 {
            let id = ask(self.nodes[node - 3].address, &["CLUSTER", "MYID"])?;
            let id = id.lines().nth(1).context("CLUSTER MYID has an identity")?.to_owned();
            self.until_ok(node, &["CLUSTER", "REPLICATE", &id])?;
        }
        (0..3).try_for_each(|shard| self.wait_until_ready(shard))
    }

    fn until_ok(&self, node: usize, words: &[&str]) -> Result<()> {
        let mut last = String::new();
        wait(|| {
            last = ask(self.nodes[node].address, words).unwrap_or_else(|error| error.to_string());
            last.starts_with("+OK")
        })
        .with_context(|| format!("{}: {}", words.join(" "), last.trim()))
    }

    /// Waits until a shard has its primary and a replica that could take its place.
    pub(crate) fn wait_until_ready(&self, shard: usize) -> Result<()> {
        let is_ready = || -> Option<bool> {
            let primary = self.primary(shard)?;
            let [one, other] = Cluster::nodes_of(shard);
            let replica = self.nodes[if primary == one { other } else { one }].address;
            let (role, info) = (ask(replica, &["ROLE"]).ok()?, ask(replica, &["CLUSTER", "INFO"]).ok()?);
            let is_up =
                role.contains("slave") && role.contains("connected") && info.contains("cluster_state:ok");
            let in_sync = ask(self.nodes[primary].address, &["CLUSTER", "INFO"]).ok()?;
            let is_member = !in_sync.contains("cluster_in_sync_replicas:")
                || in_sync.contains("cluster_in_sync_replicas:1");
            Some(is_up && is_member)
        };
        wait(|| is_ready() == Some(true)).with_context(|| format!("shard {shard} is not ready"))
    }

    /// The nodes of a shard: its first primary, and its first replica.
    pub(crate) fn nodes_of(shard: usize) -> [usize; 2] {
        [shard, shard + 3]
    }

    /// The node that is the primary of a shard.
    pub(crate) fn primary(&self, shard: usize) -> Option<usize> {
        let leads = |node: &usize| {
            ask(self.nodes[*node].address, &["ROLE"]).is_ok_and(|role| role.contains("master"))
        };
        Cluster::nodes_of(shard).into_iter().find(leads)
    }
}

fn wait(mut holds: impl FnMut() -> bool) -> Result<()> {
    let until = Instant::now() + READY_MAX;
    while !holds() {
        if Instant::now() > until {
            bail!("not within {READY_MAX:?}");
        }
        interrupt::sleep(POLL_INTERVAL)?;
    }
    Ok(())
}

/// A single member of etcd, which ends with the value.
pub(crate) struct Etcd {
    child: Child,
    directory: PathBuf,
    address: SocketAddr,
}

impl Etcd {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn start() -> Result<Etcd> {
        let port =
            || -> Result<u16> { Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port()) };
        let (client, peer, directory) = (port()?, port()?, new_directory()?);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = Command::new("etcd");
        command
            .args(["--name", "m", "--data-dir"])
            .arg(directory.join("data"))
            .args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)])
            .args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)])
            .args(["--initial-cluster", &format!("m={}", url(peer))])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.join("log"))?)
            .process_group(0);
        // SAFETY: the call is allowed between fork and exec: no allocation, no locks.
        unsafe { command.pre_exec(sys::die_with_parent) };
        let child = command.spawn().context("etcd cannot be run (Debian: etcd-server)")?;
        Ok(Etcd { child, directory, address: SocketAddr::from((Ipv4Addr::LOCALHOST, client)) })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.child.kill()); // fails only when it has ended by itself
        drop(self.child.wait());
        drop(fs::remove_dir_all(&self.directory));
    }
}
