//! Several replicas share a snapshot, and one of them reads slowly or not at all: nothing waits for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Server};

use super::attached::limit_receive_buffer;
use super::{assert_same, attach, await_link, number, ok, primary, references, wait_until};
use crate::durability::full::Disk;

const MB: usize = 1 << 20;

/// Much more than the sockets and the snapshot's pipe in memory hold.
const KEYS: usize = 110;

/// A replica that reads when it is told to.
struct Slow {
    stream: BufReader<TcpStream>,
    /// The end mark of the snapshot.
    mark: String,
}

impl Slow {
    /// Asks for a full sync, and reads up to the start of the snapshot.
    fn attach(server: &Server, begins: impl FnOnce()) -> Slow {
        let mut stream = TcpStream::connect(server.address()).expect("it listens");
        limit_receive_buffer(&stream);
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("not zero");
        stream.write_all(b"REPLCONF capa eof capa psync2\r\nPSYNC ? -1\r\n").expect("it reads");
        begins();
        let mut slow = Slow { stream: BufReader::with_capacity(1_000, stream), mark: String::new() };
        assert_eq!(slow.line(), "+OK");
        assert!(slow.line().starts_with("+FULLRESYNC"));
        slow.mark = slow.line().strip_prefix("$EOF:").expect("a mark").to_owned();
        slow
    }

    /// The next line that is not blank.
    fn line(&mut self) -> String {
        let mut line = String::new();
        while line.trim_end().is_empty() {
            line.clear();
            assert_ne!(self.stream.read_line(&mut line).expect("it is sent"), 0);
        }
        line.trim_end().to_owned()
    }

    /// Reads the whole snapshot.
    fn snapshot(&mut self) -> Vec<u8> {
        let (mut got, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
        while !got.ends_with(self.mark.as_bytes()) {
            let len = self.stream.read(&mut piece).expect("it is sent");
            assert_ne!(len, 0, "behind {} bytes", got.len());
            got.extend_from_slice(&piece[..len]);
        }
        got.truncate(got.len() - self.mark.len());
        self.stream.get_mut().write_all(b"REPLCONF ACK 0\r\n").expect("it reads");
        got
    }
}

fn filled(args: &[&str]) -> (Server, Client) {
    let server = primary(&[&["--rdbcompression", "no", "--repl-ping-replica-period", "3600"], args].concat());
    let mut client = server.connect();
    // No zeros: a run of them would be a hole, which has nearly no bytes in a snapshot.
    let value = "x".repeat(MB);
    for key in 0..KEYS {
        ok(&mut client, &format!("SET key:{key} {value}{key}"));
    }
    (server, client)
}

fn follow(replica: &Server, primary: &Server) {
    ok(&mut replica.connect(), &format!("REPLICAOF 127.0.0.1 {}", primary.port()));
}

/// A server with the data of this snapshot.
fn loaded(snapshot: &[u8]) -> Server {
    let mut server = primary(&[]);
    server.kill();
    std::fs::write(server.folder().join("dump.rdb"), snapshot).expect("a file");
    server.start_again();
    server
}

/// The fastest replica sets the pace: slower replicas get the rest from the disk, and then the later writes.
#[test]
fn a_slow_replica_does_not_delay_a_fast_replica() {
    for followers in [vec![primary(&[])], references()] {
        let both = (followers.len() + 1).to_string();
        let options = ["--repl-diskless-sync-delay", "60", "--repl-diskless-sync-max-replicas", &both];
        let (server, mut client) = filled(&options);
        let mut slow = Slow::attach(&server, || followers.iter().for_each(|other| follow(other, &server)));
        followers.iter().for_each(await_link);
        assert_eq!(
            (server.info("connected_slaves"), number(&server, "sync_full")),
            (both, 1 + followers.len() as u64)
        );
        assert!(number(&server, "repl_snapshot_on_disk") > (KEYS * MB) as u64 / 2);
        assert!(number(&server, "mem_clients_slaves") < 64 << 20);
        assert_eq!(server.info("rdb_bgsave_in_progress"), "1", "it is not sent to the end");
        let as_it_was = loaded(&slow.snapshot());
        assert_same_data(&server, &as_it_was);
        wait_until("nothing is kept", || number(&server, "repl_snapshot_on_disk") == 0);
        ok(&mut client, "SET after 1");
        let words: Vec<String> = (0..12).map(|_| slow.line()).collect();
        assert_eq!(words.join(" "), "*2 $6 SELECT $1 0 *3 $3 SET $5 after $1 1");
        followers.iter().for_each(|other| assert_same(&server, other));
    }
}

fn assert_same_data(one: &Server, other: &Server) {
    let sum = |server: &Server| server.connect().run("DEBUG DIGEST").to_string();
    assert_eq!(sum(one), sum(other));
}

/// A replica that comes later gets a snapshot of its own, as soon as the first is taken.
#[test]
fn a_later_replica_does_not_wait_for_a_slow_replica() {
    let (server, mut client) = filled(&[]);
    let mut slow = Slow::attach(&server, || ());
    wait_until("nobody else wants it", || number(&server, "rdb_bgsave_in_progress") == 1);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(number(&server, "repl_snapshot_on_disk"), 0);
    let later = primary(&[]);
    attach(&later, &server);
    assert!(number(&server, "repl_snapshot_on_disk") > (KEYS * MB) as u64 / 2);
    ok(&mut client, "SET after 1");
    assert_same(&server, &later);
    assert_eq!(slow.snapshot().len() / MB, KEYS);
}

/// Nor do automatic snapshots wait, which walk through the keys as well.
#[test]
fn automatic_snapshots_do_not_wait_for_a_slow_replica() {
    let log =
        ["--appendonly", "yes", "--auto-aof-rewrite-min-size", "1mb", "--auto-aof-rewrite-percentage", "0"];
    let (server, mut client) = filled(&[&log[..], &["--save", "3 1000"]].concat());
    let saves = number(&server, "rdb_saves");
    let mut slow = Slow::attach(&server, || ());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(number(&server, "repl_snapshot_on_disk"), 0);
    for _ in 0..1_000 {
        client.call(&["INCR", "changes"]);
    }
    wait_until("it is saved", || number(&server, "rdb_saves") == saves + 1);
    assert_eq!(slow.snapshot().len() / MB, KEYS);
    // And a rewrite, beside another snapshot.
    let rewrites = number(&server, "aof_rewrites");
    let mut slow = Slow::attach(&server, || ());
    client.call(&["SET", "grows", &"x".repeat(4 * MB)]);
    ok(&mut client, "CONFIG SET auto-aof-rewrite-percentage 1");
    wait_until("it is rewritten", || number(&server, "aof_rewrites") == rewrites + 1);
    assert_eq!(slow.snapshot().len() / MB, KEYS);
}

/// Nor do requested snapshots.
#[test]
fn a_rewrite_does_not_wait_for_a_slow_replica() {
    let (server, mut client) = filled(&["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"]);
    let mut slow = Slow::attach(&server, || ());
    let before = number(&server, "aof_rewrites");
    assert_eq!(client.run("BGREWRITEAOF").to_string(), "Background append only file rewriting scheduled");
    wait_until("it is done", || number(&server, "aof_rewrites") == before + 1);
    assert_eq!(slow.snapshot().len() / MB, KEYS);
}

/// The spill for a slow replica leaves free space on the disk; beyond that the fast replica waits.
#[test]
fn the_spill_leaves_free_space_on_the_disk() {
    let Some(disk) = Disk::mount_sized("shared", 110) else { return };
    let both = ["--repl-diskless-sync-delay", "60", "--repl-diskless-sync-max-replicas", "2"];
    let (server, _client) = filled(&[&both[..], &["--dir", &disk.path().display().to_string()]].concat());
    let other = primary(&[]);
    let mut slow = Slow::attach(&server, || follow(&other, &server));
    let on_disk = || number(&server, "repl_snapshot_on_disk") / MB as u64;
    wait_until("some is there", || on_disk() > 30);
    std::thread::sleep(Duration::from_millis(300));
    assert!(on_disk() < 110 * 3 / 4 && other.info("master_link_status") == "down", "{} MB", on_disk());
    assert_eq!(slow.snapshot().len() / MB, KEYS);
    await_link(&other);
    assert_same(&server, &other);
    assert_eq!(number(&server, "connected_slaves"), 2);
}

/// Without a disk for the spill, faster replicas wait as long as the slow replica reads anything, and no
/// longer.
#[test]
fn without_a_spill_a_stalled_replica_is_closed() {
    let (server, _client) =
        filled(&["--repl-diskless-sync-delay", "60", "--repl-diskless-sync-max-replicas", "2"]);
    let other_folder = server.folder().with_extension("elsewhere");
    std::fs::rename(server.folder(), &other_folder).expect("the folder is ours");
    let began = Instant::now();
    let other = primary(&[]);
    let slow = Slow::attach(&server, || {
        follow(&other, &server);
    });
    await_link(&other);
    std::fs::rename(&other_folder, server.folder()).expect("the folder is ours");
    assert!(began.elapsed() >= Duration::from_secs(10), "it is given time");
    assert!(server.log().contains("spill the snapshot for slow replicas to disk"), "{}", server.log());
    assert!(server.log().contains("full sync, which delays other replicas"), "{}", server.log());
    assert_same(&server, &other);
    drop(slow);
}
