//! Access control over sockets: closed connections, ACL files, and changes under traffic.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Program, Reference, Server};

use crate::{program, start, wait_until};

#[track_caller]
fn ok(client: &mut Client, line: &str) {
    assert_eq!(client.run(line).to_string(), "OK", "{line}");
}

/// Connects as this user, with the password `pw`.
#[track_caller]
fn connect_as(server: &Server, name: &str) -> Client {
    let mut client = server.connect();
    ok(&mut client, &format!("AUTH {name} pw"));
    client
}

#[track_caller]
fn assert_hung_up(client: &mut Client, what: &str) {
    let end = client.try_read();
    let kind = end.as_ref().map_err(|error| error.kind());
    let expected = [std::io::ErrorKind::UnexpectedEof, std::io::ErrorKind::ConnectionReset];
    assert!(kind.is_err_and(|kind| expected.contains(&kind)), "{what}: {end:?}");
}

#[test]
fn connections_of_a_deleted_user_are_closed() {
    let server = start(&[]);
    let mut operator = server.connect();
    ok(&mut operator, "ACL SETUSER ann on >pw +@all allkeys allchannels");
    let mut idle = connect_as(&server, "ann");
    let mut waiting = connect_as(&server, "ann");
    let mut itself = connect_as(&server, "ann");
    waiting.send(&["BLPOP", "l", "0"]).expect("sent");
    wait_until("it waits", || operator.run("INFO clients").to_string().contains("blocked_clients:1"));
    assert_eq!(itself.run("ACL DELUSER ann").to_string(), ":1");
    for (what, client) in [("idle", &mut idle), ("waiting", &mut waiting), ("itself", &mut itself)] {
        assert_hung_up(client, what);
    }
    assert_eq!(operator.run("RPUSH l x").to_string(), ":1");
    // A new user of the same name is another user.
    ok(&mut operator, "ACL SETUSER ann on >pw +@all allkeys");
    let mut ann = connect_as(&server, "ann");
    assert_eq!(operator.run("CLIENT KILL USER ann").to_string(), ":1");
    assert_hung_up(&mut ann, "killed");
}

#[test]
fn subscribers_of_revoked_channels_are_disconnected() {
    let server = start(&[]);
    let mut operator = server.connect();
    ok(&mut operator, "ACL SETUSER ann on >pw +@all &a* &b &p*");
    let subscribe = |line: &str| {
        let mut client = connect_as(&server, "ann");
        assert!(!client.run(line).is_error(), "{line}");
        client
    };
    let mut kept = [subscribe("SUBSCRIBE a1"), subscribe("SSUBSCRIBE a2"), subscribe("PSUBSCRIBE p*")];
    let mut lost = [subscribe("SUBSCRIBE b"), subscribe("SSUBSCRIBE b"), subscribe("PSUBSCRIBE b")];
    let mut plain = connect_as(&server, "ann");
    ok(&mut operator, "ACL SETUSER ann +get");
    assert_eq!(plain.run("PING").to_string(), "PONG");
    ok(&mut operator, "ACL SETUSER ann resetchannels &a* &p* &c");
    lost.iter_mut().for_each(|client| assert_hung_up(client, "has lost b"));
    assert_eq!(operator.run("PUBLISH a1 m").to_string(), ":1");
    assert_eq!(operator.run("SPUBLISH a2 m").to_string(), ":1");
    assert_eq!(operator.run("PUBLISH p m").to_string(), ":1");
    kept.iter_mut().for_each(|client| assert!(client.read().to_string().contains("\"m\"")));
    ok(&mut operator, "ACL SETUSER ann resetchannels &p?");
    let mut all = kept;
    all.iter_mut().for_each(|client| assert_hung_up(client, "its pattern is another one"));
    assert_eq!(plain.run("PING").to_string(), "PONG");
}

#[test]
fn unauthenticated_clients_may_send_little() {
    let server = start(&["--requirepass", "secret"]);
    for (request, reply) in [
        ("*11\r\n", "-ERR Protocol error: unauthenticated multibulk length\r\n"),
        ("*1\r\n$16385\r\n", "-ERR Protocol error: unauthenticated bulk length\r\n"),
    ] {
        let mut client = server.connect();
        client.send_raw(request.as_bytes()).expect("sent");
        assert_eq!(client.read_to_end().expect("the end"), reply.as_bytes());
    }
    // In the same packet as AUTH.
    let mut client = server.connect();
    let many: Vec<String> = "MSET a 1 b 2 c 3 d 4 e 5 f 6 g 7".split(' ').map(str::to_owned).collect();
    let auth = vec!["AUTH".to_owned(), "secret".to_owned()];
    let replies = client.pipeline(&[vec!["PING".to_owned()], auth, many]);
    let replies: Vec<String> = replies.iter().map(|reply| reply.to_string()).collect();
    assert_eq!(replies, ["-NOAUTH Authentication required.", "OK", "OK"]);
}

#[test]
fn users_are_saved_and_loaded() {
    let folder = std::env::temp_dir().join(format!("evenkeel-acl-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("writable");
    let path = folder.join("users.acl");
    std::fs::write(&path, "user ann on >pw +@all ~* &*\r\n\nuser bob off (+get ~x)").expect("writable");
    let server = start(&["--aclfile", path.to_str().expect("text")]);
    let mut client = server.connect();
    const PW: &str = "30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4";
    let lines = [
        format!("user ann on #{PW} ~* &* +@all"),
        "user bob off resetchannels -@all (~x resetchannels -@all +get)".to_owned(),
        "user default on nopass ~* &* +@all".to_owned(),
    ];
    let shown: Vec<String> = lines.iter().map(|line| format!("\"{line}\"")).collect();
    assert_eq!(client.run("ACL LIST").to_string(), format!("[{}]", shown.join(", ")));
    ok(&mut client, "ACL SETUSER bob on +set");
    ok(&mut client, "ACL SAVE");
    let saved = std::fs::read_to_string(&path).expect("there");
    assert_eq!(
        saved,
        format!(
            "{}\nuser bob on resetchannels -@all +set (~x resetchannels -@all +get)\n{}\n",
            lines[0], lines[2]
        )
    );

    // The error lists all faults, and no line of the file takes effect.
    let mut ann = connect_as(&server, "ann");
    std::fs::write(
        &path,
        "user ann on >hidden -@all\nuser bob +nosuch\n\n# x\nuser ann on\nuser cat (+get\n\
         user dan %X~a >secret\n",
    )
    .expect("writable");
    let error = client.run("ACL LOAD").to_string();
    let place = path.display();
    assert_eq!(
        error,
        format!(
            "-ERR {place}:2: Error in applying operation '+nosuch': Unknown command or category name in \
             ACL. {place}:4 should start with user keyword followed by the username. WARNING: Duplicate user \
             'ann' found on line 5. {place}:6: Unmatched parenthesis in selector definition. {place}:7: \
             Syntax error. WARNING: ACL errors detected, \
             no change to the previously active ACL rules was performed"
        )
    );
    assert_eq!(ann.run("ACL WHOAMI").to_string(), "\"ann\"");
    std::fs::remove_file(&path).expect("there");
    let error = client.run("ACL LOAD").to_string();
    assert_eq!(error, format!("-ERR Error loading ACLs, opening file '{place}': No such file or directory"));

    // A load replaces all users, and closes the connections of users that are gone.
    std::fs::write(&path, &saved).expect("writable");
    ok(&mut client, "ACL LOAD");
    assert_eq!(ann.run("ACL WHOAMI").to_string(), "\"ann\"", "the user is still there");
    let without = saved.lines().filter(|line| !line.starts_with("user ann ")).collect::<Vec<_>>().join("\n");
    std::fs::write(&path, without).expect("writable");
    ok(&mut ann, "ACL LOAD");
    assert_hung_up(&mut ann, "its own load");
    assert_eq!(client.run("PING").to_string(), "PONG");
    // A new user of the name is another user.
    std::fs::write(&path, saved).expect("writable");
    ok(&mut client, "ACL LOAD");
    assert_eq!(connect_as(&server, "ann").run("ACL WHOAMI").to_string(), "\"ann\"");
    std::fs::remove_dir_all(&folder).expect("there");
}

/// Returns the error message of a start that fails.
#[track_caller]
fn refused(args: &[&str]) -> String {
    match Server::try_start(&program(), args) {
        Ok(_) => panic!("{args:?} should have been refused"),
        Err(why) => why,
    }
}

#[test]
fn users_of_the_configuration() {
    let server = start(&[
        "--user", "ann", "on", ">pw", "+get", "(+set", "~x)", "--user", "default", "on", "nopass", "+@all",
    ]);
    let mut client = server.connect();
    let list = client.run("ACL LIST").to_string();
    assert!(list.contains("resetchannels -@all +get (~x resetchannels -@all +set)"), "{list}");
    assert!(list.contains("user default on nopass resetchannels +@all"), "{list}");
    assert!(client.run("GET k").to_string().starts_with("-NOPERM"));
    let said = refused(&["--user", "ann", "on", ">hidden", "+nosuch"]);
    assert!(said.contains("rule '+nosuch': Unknown command or category name in ACL"), "{said}");
    assert!(!said.contains("hidden"), "{said}");
    let said = refused(&["--user", "ann", "on", "--user", "ann", "off"]);
    assert!(said.contains("Duplicate user"), "{said}");
    let said = refused(&["--user", "ann", "on", "--aclfile", "{dir}/x"]);
    assert!(said.contains("at the same time is invalid"), "{said}");
    let said = refused(&["--aclfile", "{dir}/x"]);
    assert!(said.contains("Error loading ACLs, opening file"), "{said}");
}

/// The replica must authenticate, as a user with the necessary permissions and no more.
#[test]
fn a_replica_authenticates_as_its_user() {
    let Some(reference) = Program::oracle(Reference::Redis) else { return };
    let primary_args = ["--repl-diskless-sync-delay", "0"];
    for (primary, replica) in [(&reference, &program()), (&program(), &reference), (&program(), &program())] {
        let primary = Server::start(primary, &primary_args);
        let mut client = primary.connect();
        ok(&mut client, "ACL SETUSER rep on >pw +psync +replconf +ping");
        ok(&mut client, "SET k v");
        ok(&mut client, "ACL SETUSER default >other resetpass >other");
        let port = primary.port().to_string();
        let follow = ["--replicaof", "127.0.0.1", &port, "--masteruser", "rep"];
        let replica = Server::start(replica, &[&follow[..], &["--masterauth", "wrong"]].concat());
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(replica.info("master_link_status"), "down");
        let mut other = replica.connect();
        ok(&mut other, "CONFIG SET masterauth pw");
        wait_until("it follows", || replica.info("master_link_status") == "up");
        assert_eq!(other.run("GET k").to_string(), "\"v\"");
        ok(&mut client, "SET k w");
        wait_until("it goes on", || other.run("GET k").to_string() == "\"w\"");
        // An attached replica loses the permissions that its user loses.
        ok(&mut client, "ACL SETUSER rep reset");
        wait_until("it is dropped", || replica.info("master_link_status") == "down");
        ok(&mut client, "SET k x");
        ok(&mut client, "ACL SETUSER rep on >pw +psync +replconf +ping");
        wait_until("it comes again", || replica.info("master_link_status") == "up");
        wait_until("it goes on", || other.run("GET k").to_string() == "\"x\"");
        // A replica that is dropped at its first command does not reconnect at once.
        let count = |client: &mut Client| {
            let stats = client.run("INFO stats").to_string();
            let (_, rest) = stats.split_once("total_connections_received:").expect("a field");
            rest.split(|c: char| !c.is_ascii_digit())
                .next()
                .and_then(|n| n.parse::<u64>().ok())
                .expect("a number")
        };
        let before = count(&mut client);
        ok(&mut client, "ACL SETUSER rep -replconf");
        std::thread::sleep(Duration::from_secs(2));
        let came = count(&mut client) - before;
        assert!(came < 20, "{came} connections");
        ok(&mut client, "ACL SETUSER rep +replconf");
        client.run("SET k y");
        wait_until("it goes on", || other.run("GET k").to_string() == "\"y\"");
    }
}

/// Users are changed and deleted under traffic; connections see each change whole, and at once.
#[test]
fn changes_during_traffic() {
    const RUN: Duration = Duration::from_millis(2_500);
    let mut server = start(&["--threads", "4"]);
    let until = Instant::now() + RUN;
    // Odd: `ann` may use `a` alone; even: `b` alone. A single change sets both.
    let (begun, done, denied, granted) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let mut operator = server.connect();
    ok(&mut operator, "ACL SETUSER ann on >pw +@all ~b");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = connect_as(&server, "ann");
                while Instant::now() < until {
                    let before = done.load(SeqCst);
                    let replies = client.pipeline(&[["GET", "a"].to_vec(), ["GET", "b"].to_vec()]);
                    let after = begun.load(SeqCst);
                    let may: Vec<bool> = replies.iter().map(|reply| !reply.is_error()).collect();
                    if before == after {
                        // No change was in progress: exactly the last change's permissions hold.
                        let expected = if before % 2 == 1 { [true, false] } else { [false, true] };
                        assert_eq!(may, expected, "after {before} changes");
                    }
                    granted.fetch_add(may.iter().filter(|may| **may).count() as u64, SeqCst);
                    denied.fetch_add(may.iter().filter(|may| !**may).count() as u64, SeqCst);
                }
            });
        }
        // A client that connects and is dropped with its user.
        scope.spawn(|| {
            let mut operator = server.connect();
            while Instant::now() < until {
                ok(&mut operator, "ACL SETUSER bob on >pw +@all ~* &*");
                let mut client = connect_as(&server, "bob");
                assert!(!client.run("SUBSCRIBE c").is_error());
                assert_eq!(operator.run("ACL DELUSER bob").to_string(), ":1");
                assert_hung_up(&mut client, "bob is gone");
            }
        });
        scope.spawn(|| {
            let mut number = 0;
            while Instant::now() < until {
                number += 1;
                begun.store(number, SeqCst);
                let key = if number % 2 == 1 { "a" } else { "b" };
                ok(&mut operator, &format!("ACL SETUSER ann resetkeys ~{key}"));
                done.store(number, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    });
    server.assert_healthy();
    println!("{begun:?} changes, {granted:?} granted, {denied:?} denied");
    assert!(begun.into_inner() > 100 && granted.into_inner() > 1_000 && denied.into_inner() > 1_000);
}
