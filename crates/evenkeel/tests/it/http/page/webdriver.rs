//! A client of WebDriver: it starts chromedriver, and drives a Chromium of its own.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(25);

/// The names of Chromium's binary on several systems.
const BINARIES: [&str; 3] = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/// A browser with a single window. Dropping it ends both processes.
pub(super) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts a browser. If there is none, prints a line in the test's output, or panics on CI.
    pub(super) fn start() -> Option<Browser> {
        let binary = BINARIES.iter().find(|binary| fs::exists(binary).unwrap_or(false));
        let started = binary.and_then(|binary| Browser::try_start(binary));
        if started.is_none() {
            let line = "SKIPPED: no chromium and chromedriver on this machine\n";
            assert!(std::env::var_os("CI").is_none(), "{line}; CI must have them");
            // Past the test harness' capture, which would swallow the line of a test that passes.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        started
    }

    fn try_start(binary: &str) -> Option<Browser> {
        let mut command = Command::new("chromedriver");
        let mut driver = command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let mut lines = BufReader::new(driver.stdout.take().expect("it is piped")).lines();
        let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        // Its output is read to the end, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser = Browser { driver, port: port.expect("a port"), session: String::new() };
        let flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
        let options = json!({"binary": binary, "args": flags});
        let wanted = json!({"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": options});
        let reply = browser.send("POST", "/session", &json!({"capabilities": {"alwaysMatch": wanted}}));
        browser.session = reply["sessionId"].as_str().expect("a session").to_owned();
        Some(browser)
    }

    /// Sends a request to chromedriver, and returns the value of its reply.
    #[track_caller]
    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let result = self.try_send(method, path, body);
        let value = result.unwrap_or_else(|error| panic!("chromedriver: {path}: {error}"));
        assert!(value["error"].is_null(), "{path} {body}: {value}");
        value
    }

    fn try_send(&self, method: &str, path: &str, body: &Value) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(TIMEOUT * 2))?;
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let len = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len}\r\n\r\n{body}")?;
        let (mut reader, mut len) = (BufReader::new(stream), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let line = line.trim().to_ascii_lowercase();
            if let Some(number) = line.strip_prefix("content-length:") {
                len = number.trim().parse().map_err(std::io::Error::other)?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut reply = vec![0; len];
        reader.read_exact(&mut reply)?;
        let mut reply: Value = serde_json::from_slice(&reply)?;
        Ok(reply["value"].take())
    }

    #[track_caller]
    fn of_session(&self, path: &str, body: &Value) -> Value {
        self.send("POST", &format!("/session/{}{path}", self.session), body)
    }

    #[track_caller]
    pub(super) fn open(&self, address: &str) {
        self.of_session("/url", &json!({"url": address}));
    }

    /// Sets the size of the page, as on a screen of these pixels.
    #[track_caller]
    pub(super) fn resize(&self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        let command = json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": params});
        self.of_session("/goog/cdp/execute", &command);
    }

    /// Runs the body of a function in the page, and returns its value.
    #[track_caller]
    pub(super) fn run(&self, script: &str) -> Value {
        self.of_session("/execute/sync", &json!({"script": script, "args": []}))
    }

    #[track_caller]
    pub(super) fn text(&self, script: &str) -> String {
        match self.run(script) {
            Value::String(text) => text,
            other => other.to_string(),
        }
    }

    /// Waits until the expression is true in the page.
    #[track_caller]
    pub(super) fn wait_for(&self, expression: &str) {
        let began = Instant::now();
        while self.run(&format!("return Boolean({expression})")) != Value::Bool(true) {
            if began.elapsed() > TIMEOUT {
                let text = self.text("return document.body.innerText");
                panic!("it never comes: {expression}\n{text}");
            }
            std::thread::sleep(POLL);
        }
    }

    /// Returns the first element of a CSS selector, as part of a path.
    #[track_caller]
    fn element(&self, selector: &str) -> String {
        self.wait_for(&format!("document.querySelector({})", Value::from(selector)));
        let found = self.of_session("/element", &json!({"using": "css selector", "value": selector}));
        let (_, id) = found.as_object().and_then(|object| object.iter().next()).expect("an element");
        format!("/element/{}", id.as_str().expect("text"))
    }

    #[track_caller]
    pub(super) fn click(&self, selector: &str) {
        let element = self.element(selector);
        self.of_session(&format!("{element}/click"), &json!({}));
    }

    /// Clicks on the button or link that has this text.
    #[track_caller]
    pub(super) fn click_on(&self, text: &str) {
        let text = Value::from(text);
        let find = format!(
            "[...document.querySelectorAll('button, a, summary')].findLast(one => \
             one.textContent.trim() === {text} && one.checkVisibility())"
        );
        self.wait_for(&find);
        self.run(&format!("{find}.setAttribute('data-wanted', '')"));
        self.click("[data-wanted]");
        self.run("document.querySelector('[data-wanted]')?.removeAttribute('data-wanted')");
    }

    /// Drags from one part of an element's width to another.
    #[track_caller]
    pub(super) fn drag(&self, selector: &str, from: f64, to: f64) {
        self.element(selector);
        let selector = Value::from(selector);
        let script = format!(
            "const box = document.querySelector({selector}).getBoundingClientRect();
             return [box.left, box.top + 20, box.width]"
        );
        let place = self.run(&script);
        let [left, top, width] = [0, 1, 2].map(|at| place[at].as_f64().expect("a number"));
        let move_to = |part: f64| {
            let x = (left + width * part).round();
            let (x, y) = (x as i64, top as i64);
            json!({"type": "pointerMove", "duration": 20, "x": x, "y": y, "origin": "viewport"})
        };
        let button = |kind: &str| json!({"type": kind, "button": 0});
        let actions = json!([
            move_to(from),
            button("pointerDown"),
            move_to((from + to) / 2.0),
            move_to(to),
            button("pointerUp")
        ]);
        let mouse = json!({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
            "actions": actions});
        self.of_session("/actions", &json!({"actions": [mouse]}));
    }

    /// Types text; the private letters of WebDriver stand for keys.
    #[track_caller]
    pub(super) fn enter(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.of_session(&format!("{element}/value"), &json!({"text": text}));
    }

    #[track_caller]
    pub(super) fn clear(&self, selector: &str) {
        let element = self.element(selector);
        self.of_session(&format!("{element}/clear"), &json!({}));
    }

    /// Writes a picture of the page to the folder of the build.
    #[track_caller]
    pub(super) fn picture(&self, name: &str) {
        let image = self.send("GET", &format!("/session/{}/screenshot", self.session), &Value::Null);
        let folder = folder();
        fs::create_dir_all(&folder).expect("a folder");
        let image = decode(image.as_str().expect("base64"));
        fs::write(folder.join(format!("{name}.png")), image).expect("written");
    }

    /// Returns the errors and warnings of the browser since the last call. A refused request counts as an
    /// error there; `expected` are parts of such lines.
    #[track_caller]
    pub(super) fn complaints(&self, expected: &[&str]) -> Vec<String> {
        let entries = self.of_session("/se/log", &json!({"type": "browser"}));
        let entries = entries.as_array().cloned().unwrap_or_default();
        let lines = entries.iter().filter(|entry| entry["level"] != "INFO" && entry["level"] != "DEBUG");
        let lines = lines.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned());
        lines.filter(|line| !expected.iter().any(|part| line.contains(part))).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.try_send("DELETE", &format!("/session/{}", self.session), &Value::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Returns `target/console-screenshots`.
fn folder() -> PathBuf {
    let binary = std::env::current_exe().expect("a path");
    let target = binary.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    target.expect("a folder of the build").join("console-screenshots")
}

fn decode(text: &str) -> Vec<u8> {
    let digit = |letter: u8| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().filter_map(digit).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let number = (0..4).fold(0, |all, at| all << 6 | u32::from(group.get(at).copied().unwrap_or(0)));
        bytes.extend_from_slice(&number.to_be_bytes()[1..group.len().max(1)]);
    }
    bytes
}
