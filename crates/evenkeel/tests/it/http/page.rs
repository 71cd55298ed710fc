//! The page of the console in a browser: login, figures, keys, the command line, colours and narrow screens.
//!
//! The pictures in `target/console-screenshots` are for the eye; no test compares them.

mod webdriver;

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{WithHttp, start_http};
use crate::disk::Disk;
use webdriver::Browser;

const VIEWS: [&str; 10] =
    ["overview", "slow", "hot", "clients", "replication", "keys", "slots", "terminal", "settings", "users"];

/// Keys in the alphabet of WebDriver.
const ENTER: &str = "\u{e007}";
const TAB: &str = "\u{e004}";
const UP: &str = "\u{e013}";

/// A request without a session is refused, which a browser lists among its errors.
const NO_SESSION: &str = "/api/session - Failed to load resource: the server responded with a status of 401";

/// Opens the page of a server, and waits until it is drawn.
#[track_caller]
fn open(browser: &Browser, http: &WithHttp) {
    browser.resize(1280, 860);
    browser.open(&format!("http://127.0.0.1:{}/", http.port));
    browser.wait_for("document.querySelector('#login, #main')");
}

#[track_caller]
fn go(browser: &Browser, view: &str) {
    browser.run(&format!("location.hash = '#/{view}'"));
    browser.wait_for("document.querySelector('main h1')");
}

fn log_in(browser: &Browser, user: &str, password: &str) {
    browser.clear("#user");
    browser.enter("#user", user);
    browser.enter("#password", &format!("{password}{ENTER}"));
}

#[test]
fn a_login_opens_the_page() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&["--requirepass", "secret"]);
    open(&browser, &http);
    browser.picture("login");
    log_in(&browser, "default", "wrong");
    browser.wait_for("document.querySelector('#login-problem').innerText.includes('another password')");
    log_in(&browser, "default", "secret");
    browser.wait_for("document.querySelector('#tiles .value')");
    assert_eq!(browser.run("return document.cookie"), "", "scripts do not see the cookie");
    browser.open(&format!("http://127.0.0.1:{}/#/clients", http.port));
    browser.wait_for("document.querySelector('main table')");
    browser.click("#logout");
    browser.wait_for("document.querySelector('#login')");
    browser.open(&format!("http://127.0.0.1:{}/", http.port));
    browser.wait_for("document.querySelector('#login')");
    log_in(&browser, "default", "secret");
    browser.wait_for("document.querySelector('#tiles')");
    let mut client = http.server.connect();
    client.run("AUTH secret");
    client.run("CONFIG SET requirepass other");
    browser.wait_for("document.body.innerText.includes('The session has ended')");
    let expected = [NO_SESSION, "/api/login - Failed to load resource", "status of 401"];
    assert_eq!(browser.complaints(&expected), Vec::<String>::new());
}

/// Repeats `work` on a thread while `test` runs, also if the test fails.
fn beside(work: impl Fn() + Send + Sync, test: impl FnOnce()) {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                work();
            }
        });
        let _ends = Ends(&is_over);
        test();
    });
}

/// Keeps the server busy while `test` runs.
fn under_load(http: &WithHttp, test: impl FnOnce()) {
    let client = Mutex::new(http.server.connect());
    let work = || {
        let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
        (0..20).for_each(|turn| _ = client.run(&format!("SET key:{turn} v")));
        std::thread::sleep(Duration::from_millis(5));
    };
    beside(work, test);
}

#[test]
fn tiles_and_charts_follow_the_load() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&[]);
    open(&browser, &http);
    let rate = "Number(document.querySelector('#tile-commands .value').textContent.replace(/[^0-9.]/g, ''))";
    browser.wait_for(&format!("document.querySelector('#tile-commands') && {rate} < 60"));
    under_load(&http, || {
        browser.wait_for(&format!(
            "{rate} > 200 || document.querySelector('#tile-commands').innerText.includes('k')"
        ));
        browser.wait_for("document.querySelectorAll('.chart:not([hidden]) canvas').length >= 4");
        browser.wait_for("document.querySelector('.chart .legend b').textContent !== '\u{2013}'");
        browser.picture("overview-load");
    });
    // A drag shows its part of the span, in all charts.
    browser.drag(".chart:not([hidden]) .u-over", 0.2, 0.6);
    browser.wait_for("document.querySelector('#span').textContent.includes(' to ')");
    browser.click_on("Back");
    browser.wait_for("document.querySelector('#span').textContent === 'Live'");
    // A click into a chart shows twenty seconds around it, in all charts; Back returns to the present.
    browser.click(".chart:not([hidden]) .u-over");
    browser.wait_for("document.querySelector('#span').textContent.includes(' to ')");
    browser.click_on("Back");
    browser.wait_for("document.querySelector('#span').textContent === 'Live'");
    browser.wait_for("document.querySelector('#findings').innerText.length > 10");
    assert_eq!(browser.complaints(&[NO_SESSION]), Vec::<String>::new());
}

/// The causes of waits, as the page tells them: the first that is not the machine's.
const FIRST_CAUSE: &str = "[...document.querySelectorAll('.findings h3')].map(one => one.textContent)\
                           .filter(text => !/^(Workers? .*(CPU|stood)|The CPU limit)/.test(text))[0] ?? ''";

#[test]
fn a_provoked_wait_is_found_and_its_moment_shown() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&["--threads", "2"]);
    open(&browser, &http);
    under_load(&http, || {
        let script = "local x = 0 for i = 1, 40000000 do x = x + i end return x";
        http.server.connect().call(&["EVAL", script, "0"]);
        browser.wait_for(&format!("({FIRST_CAUSE}).startsWith('EVAL took')"));
    });
    browser.wait_for("document.querySelector('.events').innerText.includes('EVAL took')");
    browser.picture("findings");
    browser.click_on("Show the longest");
    browser.wait_for("document.querySelector('#span').textContent.includes(' to ')");
    browser.wait_for("document.querySelector('#findings').innerText.includes('EVAL took')");
    browser.picture("findings-longest");
    assert_eq!(browser.complaints(&[NO_SESSION]), Vec::<String>::new());
}

#[test]
fn a_disk_that_hangs_is_told_by_the_page() {
    let Some(disk) = Disk::mount("console", 64) else { return };
    let Some(browser) = Browser::start() else { return };
    let folder = disk.path().to_str().expect("a path of text").to_owned();
    let mut http = start_http(&["--appendonly", "yes", "--appendfsync", "always", "--dir", &folder]);
    http.server.connect().run("SET before 1");
    open(&browser, &http);
    let frozen = disk.freeze();
    let mut writer = http.server.connect();
    writer.send(&["SET", "k", "v"]).expect("the server reads");
    browser.wait_for(&format!("({FIRST_CAUSE}).includes('of the append-only file')"));
    drop(frozen);
    assert_eq!(writer.read().to_string(), "OK");
    assert_eq!(browser.complaints(&[NO_SESSION]), Vec::<String>::new());
    drop(browser);
    http.server.stop();
}

#[test]
fn a_storm_of_connections_is_told_by_the_page() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&["--threads", "1"]);
    open(&browser, &http);
    let connect = || (0..100).for_each(|_| drop(TcpStream::connect(http.server.address())));
    beside(connect, || browser.wait_for(&format!("({FIRST_CAUSE}).includes('connections')")));
    assert_eq!(browser.complaints(&[NO_SESSION]), Vec::<String>::new());
}

#[test]
fn keys_of_any_bytes_are_shown_and_changed() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&[]);
    let mut client = http.server.connect();
    let markup = "<img src=x onerror=window.wrong=1><script>window.wrong=1</script>";
    client.call(&[&b"HSET"[..], b"\xff\x00key\n", b"fi\xfeeld", markup.as_bytes()]);
    client.call(&[b"SET", markup.as_bytes(), b"{\"a\":1}"]);
    client.run("RPUSH numbers 1 2 3");
    for number in 0..250 {
        client.run(&format!("SET other:{number} v"));
    }
    open(&browser, &http);
    go(&browser, "keys");
    browser.wait_for("document.querySelectorAll('.keys tbody tr').length === 100");
    browser.click("#next");
    browser.wait_for("document.querySelector('.pager').innerText.includes('page 2')");
    let search = |pattern: &str, only: &str| {
        browser.clear("#pattern");
        browser.enter("#pattern", &format!("{pattern}{ENTER}"));
        let only = serde_json::json!([only]);
        browser.wait_for(&format!(
            "JSON.stringify([...document.querySelectorAll('.row-link')].map(one => one.textContent)) === \
             JSON.stringify({only})"
        ));
    };
    search("*onerror*", markup);
    browser.click(".row-link");
    browser.wait_for("document.querySelector('#value pre')?.textContent === '{\"a\":1}'");
    search("*key*", "\\xff\\x00key\\n");
    browser.click(".row-link");
    browser.wait_for("document.querySelector('#value tbody th')?.textContent === 'fi\\\\xfeeld'");
    browser.picture("keys-binary");
    // Without the switch there is no button that changes anything.
    assert_eq!(browser.run("return [...document.querySelectorAll('#value button')].length"), 4);
    browser.click("#edits");
    browser.wait_for("document.querySelector('.strip').checkVisibility()");
    browser.click_on("Edit");
    browser.clear("dialog textarea");
    browser.enter("dialog textarea", "new\\x00\\xff");
    browser.picture("keys-edit");
    browser.click("dialog button.primary");
    browser.wait_for("document.querySelector('#value tbody td')?.textContent === 'new\\\\x00\\\\xff'");
    let value = client.call(&[&b"HGET"[..], b"\xff\x00key\n", b"fi\xfeeld"]).to_string();
    assert_eq!(value, "\"new\\x00\\xff\"");
    browser.click_on("Delete");
    browser.wait_for("document.querySelector('dialog')");
    browser.click_on("Cancel");
    assert_eq!(client.call(&[&b"EXISTS"[..], b"\xff\x00key\n"]).to_string(), ":1");
    browser.click_on("Delete");
    browser.click("dialog button.danger");
    browser.wait_for("document.querySelector('#value').innerText.includes('Choose a key')");
    assert_eq!(client.call(&[&b"EXISTS"[..], b"\xff\x00key\n"]).to_string(), ":0");
    browser.click_on("New key");
    browser.enter("dialog #field-name", "made\\x00");
    browser.run("document.querySelector('#field-type').value = 'zset'");
    browser.enter("dialog #field-field", "1.5");
    browser.enter("dialog #field-value", "member");
    browser.click("dialog button.primary");
    browser.wait_for("document.querySelector('#value tbody th')?.textContent === 'member'");
    assert_eq!(client.call(&[&b"ZSCORE"[..], b"made\x00", b"member"]).to_string(), "\"1.5\"");
    assert_eq!(browser.text("return String(window.wrong)"), "undefined");
    assert_eq!(browser.complaints(&[NO_SESSION]), Vec::<String>::new());
}

#[test]
fn slots_are_a_heat_map() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&[]);
    let mut client = http.server.connect();
    (0..3_000).for_each(|number| _ = client.run(&format!("SET key:{number} v")));
    (0..40).for_each(|number| _ = client.run(&format!("SET {{tag}}:{number} v")));
    open(&browser, &http);
    go(&browser, "slots");
    browser.wait_for("document.querySelector('.slots-view tbody td')?.textContent === '40'");
    browser.wait_for("document.querySelector('.slots-view').innerText.includes('3,040')");
    // The cell of the fullest slot is the strongest.
    let slot = client.run("CLUSTER KEYSLOT {tag}").as_int().expect("a number");
    browser.wait_for(&format!(
        "document.querySelector('canvas.slots').getContext('2d')\
         .getImageData({slot} % 128 * 5 + 1, Math.floor({slot} / 128) * 5 + 1, 1, 1).data[3] === 255"
    ));
    browser.picture("slots");
    assert_eq!(browser.complaints(&[NO_SESSION]), Vec::<String>::new());
}

/// The text of a key or a value stands for its bytes, and for no others.
#[test]
fn text_with_escapes_stands_for_its_bytes() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&[]);
    open(&browser, &http);
    let wrong = browser.run(
        r#"return import('/console/format.js').then(({fromBytes, shown, toBytes, unescape}) => {
            const wrong = [];
            const check = (bytes) => {
                const text = shown(fromBytes(Uint8Array.from(bytes)));
                const back = [...toBytes(unescape(text))];
                if (JSON.stringify(back) !== JSON.stringify(bytes)) wrong.push([bytes, text]);
                if (/[\u0000-\u001f\u007f-\u009f\u202e\u200b]/.test(text)) wrong.push(['hidden', text]);
            };
            for (let byte = 0; byte < 256; byte++) { check([byte]); check([97, byte, 98]); }
            for (const text of ['\\x00', '\\n', 'é\u202eb', '\u200b', '😀', '"quotes"', '\\'])
                check([...new TextEncoder().encode(text)]);
            let seed = 7;
            const random = (below) => { seed = (seed * 48271) % 2147483647; return seed % below; };
            for (let turn = 0; turn < 2000; turn++) {
                const near = random(2) ? 256 : 128;
                check(Array.from({length: random(9)}, () => random(near)));
            }
            return wrong;
        });"#,
    );
    assert_eq!(wrong, serde_json::json!([]));
}

#[test]
fn the_command_line_is_that_of_redis_cli() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&[]);
    let mut client = http.server.connect();
    open(&browser, &http);
    go(&browser, "terminal");
    let run = |line: &str, expected: &str| {
        browser.enter("#line", &format!("{line}{ENTER}"));
        let expected = serde_json::Value::from(expected);
        browser.wait_for(&format!(
            "document.querySelector('.log').lastElementChild?.textContent === {expected}"
        ));
    };
    run("SET \"a\\x00b\" 'it''s'", "Invalid argument(s): the quotes are not balanced");
    run("SET \"a\\x00b\" 'it\\'s \\x'", "OK");
    assert_eq!(client.call(&[&b"GET"[..], b"a\x00b"]).to_string(), "\"it's \\\\x\"");
    run("GET \"a\\x00b\"", "\"it's \\\\x\"");
    run("INCRBY n 9007199254740993", "(integer) 9007199254740993");
    run("RPUSH l a \"\"", "(integer) 2");
    run("LRANGE l 0 -1", "1) \"a\"\n2) \"\"");
    run("GET none", "(nil)");
    run("NOSUCH", "(error) ERR unknown command 'NOSUCH', with args beginning with: ");
    run("SELECT 3", "OK");
    run("DBSIZE", "(integer) 0");
    run("SELECT 0", "OK");
    browser.enter("#line", &format!("{UP}{UP}"));
    assert_eq!(browser.text("return document.querySelector('#line').value"), "DBSIZE");
    browser.clear("#line");
    browser.wait_for("document.querySelector('#hint')");
    browser.enter("#line", "zad");
    browser.wait_for("document.querySelector('#hint').textContent.includes('ZADD')");
    browser.enter("#line", &format!("{TAB}k"));
    browser.wait_for("document.querySelector('#hint').textContent.includes('score member')");
    assert_eq!(browser.text("return document.querySelector('#line').value"), "ZADD k");
    browser.picture("terminal-hint");
    browser.clear("#line");
    browser.enter("#line", &format!("FLUSHALL{ENTER}"));
    browser.wait_for("document.querySelector('dialog')?.innerText.includes('removes all keys')");
    browser.click_on("Cancel");
    browser.wait_for("document.querySelector('.log').lastElementChild.textContent === '(not run)'");
    assert_eq!(client.run("DBSIZE").to_string(), ":3");
    assert_eq!(browser.complaints(&[NO_SESSION]), Vec::<String>::new());
}

#[test]
fn users_are_changed_behind_the_switch() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&["--slowlog-log-slower-than", "0"]);
    let mut client = http.server.connect();
    client.run("ACL SETUSER reader on >old-one ~app:* %R~more:* &news +@read -keys (~other +get)");
    open(&browser, &http);
    go(&browser, "users");
    browser.wait_for("document.querySelectorAll('main tbody tr').length === 2");
    let buttons = "document.querySelectorAll('main .panel button:not(.sort)').length";
    assert_eq!(browser.run(&format!("return {buttons}")), 0, "nothing is changed without the switch");
    browser.click("#edits");
    browser.wait_for("document.querySelector('[aria-label=\"Edit reader\"]')");
    assert_eq!(
        browser.run("return document.querySelector('[aria-label=\"Delete default\"]').disabled"),
        true
    );
    let of_reader = |client: &mut evenkeel_testkit::Client| {
        let lines = client.run("ACL LIST");
        let lines = lines.as_items().expect("an array");
        let line = lines.iter().map(ToString::to_string).find(|line| line.contains("user reader "));
        line.expect("the user is there").trim_matches('"').to_owned()
    };
    let before = of_reader(&mut client);
    // A form that is sent unchanged changes nothing.
    browser.click("[aria-label=\"Edit reader\"]");
    browser.click("dialog button.primary");
    browser.wait_for("document.querySelector('#status').textContent === 'The user was changed.'");
    assert_eq!(of_reader(&mut client), before);
    // A mistake is told in the form, and changes nothing.
    browser.wait_for("!document.querySelector('dialog')");
    browser.click("[aria-label=\"Edit reader\"]");
    browser.clear("dialog #field-rules");
    browser.enter("dialog #field-rules", "~app:* +nonsense");
    browser.enter("dialog #field-password", "sec-ret");
    browser.click("dialog button.primary");
    browser.wait_for("document.querySelector('dialog .note.bad')?.innerText.includes('nonsense')");
    assert_eq!(of_reader(&mut client), before);
    let refused = |rules: &str| {
        browser.clear("dialog #field-rules");
        browser.enter("dialog #field-rules", rules);
        browser.click("dialog button.primary");
        browser.wait_for(
            "document.querySelector('dialog .note.bad')?.innerText.includes('fields of their own')",
        );
    };
    refused("+get >other");
    for (width, height) in [(1280, 860), (375, 760)] {
        browser.resize(width, height);
        for colours in ["light", "dark"] {
            browser.run(&format!("document.documentElement.dataset.theme = '{colours}'"));
            browser.picture(&format!("users-edit-{width}-{colours}"));
        }
        let needed = browser.run("return document.documentElement.scrollWidth").as_u64();
        assert!(needed.is_some_and(|needed| needed <= width.into()), "{needed:?}");
    }
    browser.resize(1280, 860);
    browser.clear("dialog #field-rules");
    browser.enter("dialog #field-rules", "~new:* +get");
    browser.click("dialog #field-only");
    browser.click("dialog button.primary");
    browser.wait_for("document.querySelector('main tbody').innerText.includes('~new:*')");
    for width in [1280, 375] {
        browser.resize(width, 860);
        browser.picture(&format!("users-edits-{width}"));
    }
    browser.resize(1280, 860);
    let after = of_reader(&mut client);
    assert!(after.contains(" ~new:* ") && after.contains(" +get") && !after.contains("app:"), "{after}");
    assert_eq!(http.server.connect().run("AUTH reader sec-ret").to_string(), "OK");
    assert!(http.server.connect().run("AUTH reader old-one").is_error(), "the other password is gone");
    // Neither the page nor the server shows a password.
    let shown = browser.text("return document.documentElement.outerHTML");
    assert!(!shown.contains("sec-ret") && !shown.contains("old-one"), "the page has a password");
    let log = client.run("SLOWLOG GET 1000").to_string();
    assert!(log.contains("SETUSER") && !log.contains("sec-ret"), "{log}");
    browser.click_on("New user");
    browser.enter("dialog #field-name", "writer");
    browser.enter("dialog #field-password", "x y");
    browser.enter("dialog #field-rules", "~* +set");
    browser.click("dialog button.primary");
    browser.wait_for("document.querySelectorAll('main tbody tr').length >= 3");
    let mut writer = http.server.connect();
    let logged_in = writer.call(&["AUTH", "writer", "x y"]).to_string();
    assert_eq!(logged_in, "OK");
    assert_eq!(writer.run("SET k v").to_string(), "OK");
    browser.click("[aria-label=\"Delete writer\"]");
    browser.click("dialog button.danger");
    browser.wait_for("!document.querySelector('[aria-label=\"Delete writer\"]')");
    assert_eq!(client.run("ACL GETUSER writer").to_string(), "(nil)");
    assert_eq!(browser.complaints(&[NO_SESSION]), Vec::<String>::new());
}

#[test]
fn views_fit_wide_and_narrow_screens_in_both_colours() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&["--slowlog-log-slower-than", "0"]);
    let mut client = http.server.connect();
    client.run(&format!("HSET hash {}", "field value ".repeat(20)));
    client.run(&format!("SET {} {}", "k".repeat(500), "v".repeat(5000)));
    client.run("ACL SETUSER reader on >pass ~app:* +@read");
    open(&browser, &http);
    let background = || browser.text("return getComputedStyle(document.body).backgroundColor");
    let first = background();
    browser.click("#theme");
    let second = background();
    assert_ne!(first, second);
    browser.open(&format!("http://127.0.0.1:{}/", http.port));
    browser.wait_for("document.querySelector('#theme')");
    assert_eq!(background(), second, "the browser keeps the choice");
    for view in VIEWS {
        go(&browser, view);
        browser.wait_for("!document.querySelector('main').innerText.includes('Loading')");
        for (width, height) in [(1280, 860), (375, 760)] {
            browser.resize(width, height);
            if view == "keys" {
                browser.click("tbody tr:first-child .row-link");
                browser.wait_for("document.querySelector('#value .facts')");
            }
            for colours in ["light", "dark"] {
                browser.run(&format!(
                    "document.documentElement.dataset.theme = '{colours}';
                     window.dispatchEvent(new Event('theme'))"
                ));
                browser.picture(&format!("{view}-{width}-{colours}"));
            }
            let needed = browser.run("return document.documentElement.scrollWidth");
            assert!(
                needed.as_u64().is_some_and(|needed| needed <= width.into()),
                "{view}: {needed}, not {width}"
            );
        }
        browser.resize(1280, 860);
    }
    browser.resize(375, 760);
    assert_eq!(browser.run("return document.querySelector('.nav').checkVisibility()"), false);
    browser.click(".menu-button");
    browser.picture("menu-375");
    browser.click_on("Clients");
    browser.wait_for("document.querySelector('main h1').textContent === 'Clients'");
    assert_eq!(browser.run("return document.querySelector('.nav').checkVisibility()"), false);
    assert_eq!(browser.complaints(&[NO_SESSION]), Vec::<String>::new());
}

#[test]
fn views_name_the_permission_that_is_missing() {
    let Some(browser) = Browser::start() else { return };
    let http = start_http(&["--requirepass", "secret"]);
    let mut client = http.server.connect();
    client.run("AUTH secret");
    client.run("ACL SETUSER reader on >pass ~app:* +@read -@dangerous");
    open(&browser, &http);
    log_in(&browser, "reader", "pass");
    browser.wait_for("document.querySelector('#main')");
    for (view, command) in [
        ("slow", "slowlog|get"),
        ("clients", "client|list"),
        ("settings", "config|get"),
        ("users", "acl|list"),
    ] {
        go(&browser, view);
        let wanted = format!("ACL SETUSER reader +{command}");
        browser.wait_for(&format!("document.querySelector('main').innerText.includes('{wanted}')"));
    }
    go(&browser, "overview");
    browser.wait_for("document.querySelector('main').innerText.includes('ACL SETUSER reader +info')");
    browser.picture("missing-permission");
    let refused = "Failed to load resource: the server responded with a status of 403";
    assert_eq!(browser.complaints(&[NO_SESSION, refused]), Vec::<String>::new());
}
