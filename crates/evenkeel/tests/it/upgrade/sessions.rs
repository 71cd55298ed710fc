//! What a session consists of.

use std::time::{Duration, Instant};

use evenkeel_testkit::Client;

use super::{must_upgrade, start, upgrade_by, wait_until};

fn text(client: &mut Client, line: &str) -> String {
    client.run(line).to_string()
}

#[test]
fn sessions_go_on() {
    let server = start(&["--threads", "2"]);
    let mut plain = server.connect();
    plain.run("ACL SETUSER ann on >secret ~* &* +@all");
    assert_eq!(text(&mut plain, "SELECT 3"), "OK");
    plain.run("CLIENT SETNAME plain");
    plain.run("CLIENT SETINFO LIB-NAME tests");
    plain.run("SET key here");
    plain.run("CLIENT NO-TOUCH ON");
    let id = text(&mut plain, "CLIENT ID");
    let mut user = server.connect3();
    user.run("AUTH ann secret");
    let mut queued = server.connect();
    queued.run("WATCH watched");
    queued.run("MULTI");
    assert_eq!(text(&mut queued, "INCR counter"), "QUEUED");
    assert_eq!(text(&mut queued, "CLIENT GETNAME"), "QUEUED");
    let mut outdated = server.connect();
    outdated.run("WATCH watched");
    plain.run("SELECT 0");
    plain.run("SET watched now");
    queued.run("DISCARD");
    queued.run("WATCH watched");
    queued.run("MULTI");
    queued.run("INCR counter");
    let mut listener = server.connect();
    listener.run("SUBSCRIBE news");
    listener.run("PSUBSCRIBE n*");
    let mut caching = server.connect3();
    caching.run("CLIENT TRACKING ON BCAST PREFIX w NOLOOP");
    let mut mute = server.connect();
    mute.send(&["CLIENT", "REPLY", "OFF"]).expect("it is sent");
    mute.send(&["SET", "mute", "1"]).expect("it is sent");
    wait_until("the mute client has written", || text(&mut plain, "EXISTS mute") == ":1");
    let mut monitor = server.connect();
    monitor.run("MONITOR");
    let run_id = server.info("run_id");

    must_upgrade(&server);

    plain.run("SELECT 3");
    assert_eq!(text(&mut plain, "GET key"), "\"here\"");
    assert_eq!(text(&mut plain, "CLIENT GETNAME"), "\"plain\"");
    assert_eq!(text(&mut plain, "CLIENT ID"), id);
    let info = text(&mut plain, "CLIENT INFO");
    assert!(info.contains("lib-name=tests") && info.contains("flags=T"), "{info}");
    assert_eq!(text(&mut user, "ACL WHOAMI"), "\"ann\"");
    assert!(text(&mut user, "CLIENT INFO").contains("resp=3"));
    assert_eq!(text(&mut queued, "EXEC"), "[:1]");
    outdated.run("MULTI");
    outdated.run("INCR counter");
    assert_eq!(text(&mut outdated, "EXEC"), "(nil array)", "the key had changed before");
    assert_eq!(text(&mut plain, "PUBLISH news hello"), ":2");
    assert_eq!(listener.read().to_string(), "[\"message\", \"news\", \"hello\"]");
    assert_eq!(listener.read().to_string(), "[\"pmessage\", \"n*\", \"news\", \"hello\"]");
    // The client drops its cache, since the keys that it has are not known any more; then changes follow.
    assert_eq!(caching.read().to_string(), ">[\"invalidate\", (null)]");
    plain.run("SELECT 0");
    plain.run("SET watched again");
    assert_eq!(caching.read().to_string(), ">[\"invalidate\", [\"watched\"]]");
    mute.send(&["CLIENT", "REPLY", "ON"]).expect("it is sent");
    assert_eq!(mute.read().to_string(), "OK");
    wait_until("the monitor sees it", || monitor.read().to_string().contains("again"));
    assert_eq!(server.info("run_id"), run_id);
    let mut fresh = server.connect();
    let newest = text(&mut fresh, "CLIENT ID").trim_start_matches(':').parse::<u64>().expect("a number");
    assert!(newest > id.trim_start_matches(':').parse::<u64>().expect("a number"));
}

#[test]
fn blocked_clients_wait_on_in_their_order() {
    let server = start(&["--threads", "2"]);
    let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    let mut pusher = server.connect();
    pusher.run("XADD stream 1-1 a b");
    for (at, client) in clients.iter_mut().enumerate() {
        client.send(&["BLPOP", "other", "list", "0"]).expect("it is sent");
        wait_until("it waits", || server.info("blocked_clients") == (at + 1).to_string());
    }
    let mut timed = server.connect();
    let began = Instant::now();
    timed.send(&["BLPOP", "nothing", "3"]).expect("it is sent");
    let mut reader = server.connect();
    reader.send(&["XREAD", "BLOCK", "0", "STREAMS", "stream", "$"]).expect("it is sent");
    wait_until("all wait", || server.info("blocked_clients") == "10");

    must_upgrade(&server);

    assert_eq!(server.info("blocked_clients"), "10");
    pusher.run("RPUSH list 0 1 2 3 4 5 6 7");
    for (at, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.read().to_string(), format!("[\"list\", \"{at}\"]"));
    }
    pusher.run("XADD stream 2-1 c d");
    assert!(reader.read().to_string().contains("2-1"));
    assert_eq!(timed.read().to_string(), "(nil array)");
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(2990) && waited < Duration::from_secs(20), "{waited:?}");
}

/// A pipeline is cut at every byte by an upgrade.
#[test]
fn requests_cut_anywhere_go_on() {
    let server = start(&["--threads", "2"]);
    let request = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\nPING\r\n*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";
    let mut clients: Vec<(usize, Client)> = (0..=request.len()).map(|at| (at, server.connect())).collect();
    for (at, client) in &mut clients {
        client.send_raw(&request[..*at]).expect("it is sent");
    }
    must_upgrade(&server);
    for (at, client) in &mut clients {
        client.send_raw(&request[*at..]).expect("it is sent");
        assert_eq!(client.read().to_string(), "OK", "cut at {at}");
        assert_eq!(client.read().to_string(), "PONG", "cut at {at}");
        assert!(client.read().to_string().starts_with(':'), "cut at {at}");
    }
    assert_eq!(server.connect().run("GET n").to_string(), format!("\"{}\"", request.len() + 1));
}

/// Replies that a client has not read yet, and a long request that has arrived in part.
#[test]
fn unsent_replies_and_long_requests_go_on() {
    let server = start(&["--threads", "2"]);
    let mut reader = server.connect();
    reader.run("SETRANGE big 20000000 x");
    for _ in 0..4 {
        reader.send(&["GET", "big"]).expect("it is sent");
    }
    let mut writer = server.connect();
    let value = vec![b'v'; 3_000_000];
    writer
        .send_raw(format!("*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n${}\r\n", value.len()).as_bytes())
        .expect("it is sent");
    writer.send_raw(&value[..1_000_000]).expect("it is sent");
    std::thread::sleep(Duration::from_millis(100));
    must_upgrade(&server);
    writer.send_raw(&value[1_000_000..]).expect("it is sent");
    writer.send_raw(b"\r\n").expect("it is sent");
    assert_eq!(writer.read().to_string(), "OK");
    assert_eq!(text(&mut writer, "STRLEN long"), ":3000000");
    for _ in 0..4 {
        assert_eq!(reader.read().to_string().len(), reader_len());
    }
    assert_eq!(text(&mut reader, "PING"), "PONG");
}

/// The length of the value of 20,000,001 bytes, as the client shows it.
fn reader_len() -> usize {
    let server = start(&["--threads", "1"]);
    let mut client = server.connect();
    client.run("SETRANGE big 20000000 x");
    client.run("GET big").to_string().len()
}

#[test]
fn scripts_functions_users_and_settings_go_on() {
    let server = start(&["--threads", "2", "--maxmemory-policy", "allkeys-lru"]);
    let mut client = server.connect();
    let sha = text(&mut client, "SCRIPT LOAD \"return 'script'\"");
    client.run("EVAL \"return 'evaluated'\" 0");
    let library = "#!lua name=lib\nserver.register_function('f', function() return 'function' end)";
    client.call(&["FUNCTION", "LOAD", library]);
    client.run("ACL SETUSER bob on >pw +get ~b*");
    client.run("CONFIG SET maxmemory 123mb slowlog-max-len 77 save \"900 1\" timeout 4000");
    for key in 0..3000 {
        client.run(&format!("SET key:{key} {key}"));
    }
    client.run("CONFIG SET maxclients 5000");
    let (mut seen, mut cursor) = (std::collections::BTreeSet::new(), "0".to_owned());
    let mut scan = |client: &mut Client, cursor: &str| -> String {
        let reply = client.run(&format!("SCAN {cursor} COUNT 100"));
        let parts = reply.as_items().expect("a cursor and keys").to_vec();
        seen.extend(parts[1].as_items().expect("keys").iter().map(ToString::to_string));
        parts[0].to_string().trim_matches('"').to_owned()
    };
    for _ in 0..10 {
        cursor = scan(&mut client, &cursor);
    }
    must_upgrade(&server);
    while cursor != "0" {
        cursor = scan(&mut client, &cursor);
    }
    assert_eq!(seen.len(), 3000, "a scan misses no key");
    assert_eq!(text(&mut client, &format!("EVALSHA {sha} 0")), "\"script\"");
    assert_eq!(text(&mut client, "FCALL f 0"), "\"function\"");
    assert!(text(&mut client, "ACL LIST").contains("user bob on"));
    for (name, value) in
        [("maxmemory", "128974848"), ("slowlog-max-len", "77"), ("save", "900 1"), ("timeout", "4000")]
    {
        let shown = text(&mut client, &format!("CONFIG GET {name}"));
        assert!(shown.contains(&format!("\"{value}\"")), "{shown}");
    }
    assert!(text(&mut client, "CONFIG GET maxmemory-policy").contains("allkeys-lru"));
    let changes = server.info("rdb_changes_since_last_save").parse::<u64>().expect("a number");
    assert!((3000..3100).contains(&changes), "{changes}");
}

/// The end of a wait that was taken over concerns that wait alone.
#[test]
fn a_later_wait_has_its_own_time() {
    let server = start(&["--threads", "1"]);
    let (mut client, mut pusher) = (server.connect(), server.connect());
    client.send(&["BLPOP", "list", "1000"]).expect("it is sent");
    wait_until("it waits", || server.info("blocked_clients") == "1");
    must_upgrade(&server);
    pusher.run("RPUSH list x");
    assert_eq!(client.read().to_string(), "[\"list\", \"x\"]");
    assert_eq!(text(&mut client, "BLPOP list 0.05"), "(nil array)");
}

/// The arguments of the first start lead to the same files, although the server has gone to its data.
#[test]
fn relative_paths_of_the_command_line_stay() {
    let server = start(&["--threads", "1", "--dir", "{dir}", "--enable-debug-command", "yes"]);
    let folder = server.folder().to_owned();
    drop(server);
    std::fs::create_dir_all(folder.join("data")).expect("a folder");
    std::fs::write(folder.join("own.conf"), "dir data\nloglevel verbose\n").expect("a file");
    let port = evenkeel_testkit::server::free_port();
    let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["own.conf", "--port", &port.to_string(), "--save", ""])
        .current_dir(&folder)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the program runs");
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    wait_until("it listens", || Client::connect(address).is_ok());
    let mut client = Client::connect(address).expect("it listens");
    client.run("SET a 1");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["upgrade", "--port", &port.to_string()])
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&mut client, "GET a"), "\"1\"");
    assert!(text(&mut client, "CONFIG GET loglevel").contains("verbose"));
    assert!(!text(&mut client, "CONFIG REWRITE").contains("ERR"));
    client.send(&["SHUTDOWN", "NOSAVE"]).expect("it is sent");
    assert!(process.wait().expect("it was started here").success());
    std::fs::remove_dir_all(&folder).expect("it is the test's own");
}

/// The server goes on if the new program ends at once, is not executable, or does not exist.
#[test]
fn a_program_that_cannot_take_over_changes_nothing() {
    let server = start(&["--threads", "2"]);
    let (mut client, mut waiting) = (server.connect(), server.connect());
    client.run("SET key value");
    waiting.send(&["BLPOP", "list", "0"]).expect("it is sent");
    let before = server.info("process_id");
    for program in ["/bin/false", "/etc/hostname", "/no/such/program"] {
        let output = upgrade_by(&server, &["--binary", program]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && errors.contains("goes on as before"), "{program}: {errors}");
        assert_eq!(text(&mut client, "GET key"), "\"value\"");
    }
    assert_eq!(server.info("process_id"), before);
    assert_eq!(text(&mut client, "RPUSH list x"), ":1");
    assert_eq!(waiting.read().to_string(), "[\"list\", \"x\"]");
    must_upgrade(&server);
    assert_eq!(text(&mut client, "GET key"), "\"value\"");
}

/// A signal does the same; and the process id that a supervisor knows stays.
#[test]
fn a_signal_upgrades_and_the_first_process_stays() {
    let mut server = start(&["--threads", "2"]);
    let mut client = server.connect();
    let before = server.info("process_id");
    for _ in 0..3 {
        let last = server.info("process_id");
        // The signal reaches the server through the keeper, from the second time on.
        server.signal(libc::SIGUSR2);
        wait_until("another process serves", || server.info("process_id") != last);
    }
    assert_eq!(text(&mut client, "PING"), "PONG");
    assert_eq!(before, server.pid().to_string());
    assert!(server.is_alive(), "the keeper");
    assert!(server.stop().success(), "it ends as the server does");
}

#[test]
fn a_killed_keeper_takes_the_server_with_it() {
    let mut server = start(&["--threads", "1"]);
    must_upgrade(&server);
    must_upgrade(&server);
    server.kill();
    wait_until("the server is gone", || server.try_connect().is_err());
}
