//! A revocation is complete when its reply arrives. After the reply to CLIENT KILL, ACL DELUSER, ACL SETUSER
//! or CONFIG SET, no command takes effect that comes from a killed client, from a deleted or restricted user,
//! or that a new setting refuses. In Redis and Valkey a single thread runs all commands, so the same holds
//! there.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_testkit::{Client, Server};

use crate::{Ends, start, wait_until};

/// Ways to keep user `writer` from writing. `{ids}` are the ids of its clients.
#[derive(Clone, Copy, Debug)]
enum Revocation {
    KillClients,
    TakeRights,
    DeleteUser,
    ChangeSetting,
}

use Revocation::*;

impl Revocation {
    const ALL: [Revocation; 4] = [KillClients, TakeRights, DeleteUser, ChangeSetting];

    fn run(self, admin: &mut Client) {
        let line = match self {
            KillClients => "CLIENT KILL USER writer",
            TakeRights => "ACL SETUSER writer -@all",
            DeleteUser => "ACL DELUSER writer",
            ChangeSetting => "CONFIG SET min-replicas-to-write 1",
        };
        let reply = admin.run(line);
        assert!(!reply.is_error(), "{line}: {reply}");
    }
}

fn start_with_writer() -> Server {
    let server = start(&["--threads", "4", "--save", ""]);
    server.connect().run("ACL SETUSER writer on nopass ~* +@all");
    server
}

fn writer(server: &Server) -> Client {
    let mut client = server.connect();
    assert_eq!(client.run("AUTH writer any").to_string(), "OK");
    client
}

fn number(client: &mut Client, key: &str) -> String {
    client.run(&format!("GET {key}")).to_string()
}

/// A script holds the lock of the slot for a while, and the writers' commands wait for it.
#[test]
fn a_command_that_waits_for_a_lock_does_not_run_after_the_reply() {
    let busy = "redis.call('SET', KEYS[2], 'v') local from = os.clock() \
                while os.clock() - from < 0.5 do end return 1";
    for revocation in Revocation::ALL {
        let server = start_with_writer();
        let (mut admin, mut holder) = (server.connect(), server.connect());
        let mut writers: Vec<Client> = (0..6).map(|_| writer(&server)).collect();
        holder.send(&["EVAL", busy, "2", "{k}n", "{k}held"]).expect("it is sent");
        std::thread::sleep(Duration::from_millis(50));
        writers.iter_mut().for_each(|writer| writer.send(&["INCR", "{k}n"]).expect("it is sent"));
        std::thread::sleep(Duration::from_millis(50));
        revocation.run(&mut admin);
        // Without reading the key: that would wait for the lock, behind the writers.
        let after = increments(&mut admin);
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(increments(&mut admin), after, "{revocation:?}");
    }
}

/// Number of INCRs executed.
fn increments(client: &mut Client) -> String {
    let stats = client.run("INFO commandstats").to_string();
    let (_, of_incr) = stats.split_once("cmdstat_incr:calls=").unwrap_or(("", "0,"));
    of_incr.split(',').next().unwrap_or_default().to_owned()
}

/// Writers with pipelines, so that a batch is in progress on each worker.
#[test]
fn under_load_no_command_runs_after_the_reply() {
    const ROUNDS: usize = 6;
    for revocation in Revocation::ALL {
        for _ in 0..ROUNDS {
            let server = start_with_writer();
            let mut admin = server.connect();
            let ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _ends = Ends(&ended);
                for _ in 0..6 {
                    let mut writer = writer(&server);
                    let ended = &ended;
                    let commands = vec![vec![&b"INCR"[..], b"n"]; 64];
                    scope.spawn(move || {
                        let sent = commands.iter().map(|args| [args[0], args[1]]).collect::<Vec<_>>();
                        while !ended.load(Relaxed)
                            && sent.iter().all(|args| writer.send(args).is_ok())
                            && (0..sent.len()).all(|_| writer.try_read().is_ok())
                        {}
                    });
                }
                wait_until("writes are under way", || number(&mut admin, "n").len() > 4);
                revocation.run(&mut admin);
                let after = number(&mut admin, "n");
                std::thread::sleep(Duration::from_millis(50));
                assert_eq!(number(&mut admin, "n"), after, "{revocation:?}");
            });
        }
    }
}

/// A long command is computed without locks, and stores its result at the end.
#[test]
fn a_long_command_stores_nothing_after_the_reply() {
    for revocation in Revocation::ALL {
        let server = start_with_writer();
        let mut admin = server.connect();
        fill(&mut admin, 200_000);
        let mut writer = writer(&server);
        writer.send(&["SORT", "big", "ALPHA", "STORE", "sorted"]).expect("it is sent");
        wait_until("it is being sorted", || server.info("long_commands_running") == "1");
        revocation.run(&mut admin);
        assert_eq!(admin.run("EXISTS sorted").to_string(), ":0", "it takes longer than that");
        wait_until("it has been sorted", || server.info("long_commands_running") == "0");
        assert_eq!(admin.run("EXISTS sorted").to_string(), ":0", "{revocation:?}");
    }
}

/// The revoking client waits for another client's long command; the remaining clients do not.
#[test]
fn only_the_revoking_client_waits_for_a_long_command() {
    let server = start(&["--threads", "4", "--save", ""]);
    let (mut holder, mut admin) = (server.connect(), server.connect());
    let mut others: Vec<Client> = (0..12).map(|_| server.connect()).collect();
    fill(&mut admin, 400_000);
    let id = admin.run("CLIENT ID").to_string();
    // In a transaction, a long command is not offloaded: it keeps its worker, and the lock of its key.
    holder.run("MULTI");
    holder.run("SORT big ALPHA STORE sorted");
    holder.send(&["EXEC"]).expect("it is sent");
    wait_until("the transaction runs", || admin.run("CLIENT LIST").to_string().contains(" cmd=exec "));
    // The caller closes its own connection.
    admin.send(&["CLIENT", "KILL", "ID", id.trim_start_matches(':'), "SKIPME", "no"]).expect("it is sent");
    others.iter_mut().for_each(|other| other.send(&["PING"]).expect("it is sent"));
    others.iter_mut().for_each(|other| other.set_reply_timeout(Duration::from_millis(10)));
    let answered = others.iter_mut().filter_map(|other| other.try_read().ok()).count();
    assert!(answered >= 6, "{answered} of 12, where one of four workers sorts");
    admin.set_reply_timeout(Duration::from_millis(10));
    assert!(admin.try_read().is_err(), "the transaction was let in before, and goes on");
    admin.set_reply_timeout(Duration::from_secs(60));
    assert_eq!(admin.read().to_string(), ":1", "the reply comes before the caller is closed");
    assert!(admin.try_read().is_err(), "it is closed behind its reply");
    holder.set_reply_timeout(Duration::from_millis(500));
    assert!(holder.try_read().is_ok(), "the transaction has ended");
}

/// A list of `elements` different strings at `big`.
fn fill(client: &mut Client, elements: u32) {
    let script = "local n = tonumber(ARGV[1]) \
                  for i = 1, n do redis.call('RPUSH', KEYS[1], 'element:' .. (i * 7919 % n)) end return n";
    let reply = client.call(&["EVAL", script, "1", "big", &elements.to_string()]);
    assert_eq!(reply.to_string(), format!(":{elements}"));
}
