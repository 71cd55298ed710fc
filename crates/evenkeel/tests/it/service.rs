//! The server as a service: its unit and configuration in `contrib`, and a start as Sentinel.
//! `tests/packages` tests the installed package.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use evenkeel_testkit::scratch::Scratch;

use crate::program;

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

/// Returns the output of a tool of systemd, or `None` if it is missing.
fn analyze(args: &[&str]) -> Option<Output> {
    let output = Command::new("systemd-analyze").args(args).arg(contrib("evenkeel.service")).output();
    if output.is_err() {
        assert!(std::env::var_os("CI").is_none(), "no systemd-analyze; CI must have one");
        eprintln!("SKIPPED: no systemd-analyze on this machine");
    }
    output.ok()
}

#[test]
fn the_unit_gives_the_server_few_rights() {
    let Some(output) = analyze(&["security", "--offline=true", "--no-pager"]) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("Overall exposure level")).expect("a figure");
    let exposure: f64 =
        line.split_whitespace().find_map(|word| word.parse().ok()).expect("a number in the line");
    assert!(exposure <= 2.0, "{line}\n{text}");
}

#[test]
fn the_unit_has_no_mistakes() {
    let Some(output) = analyze(&["verify", "--man=no"]) else { return };
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // Units of this machine may have mistakes of their own, and the program need not be installed.
    let of_unit = |line: &&str| line.contains("evenkeel.service") && !line.contains("is not executable");
    assert_eq!(text.lines().filter(of_unit).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn the_configuration_of_the_service_is_valid() {
    if program().reference().is_some() {
        return; // the option is Evenkeel's
    }
    // The directories of the service need not be there, and another server may have the port.
    let scratch = Scratch::new();
    let here = scratch.path.to_str().expect("text");
    let mut text = fs::read_to_string(contrib("evenkeel.conf")).expect("there");
    for directory in ["/var/lib/evenkeel", "/var/log/evenkeel", "/run/evenkeel"] {
        assert!(text.contains(directory), "{directory}");
        text = text.replace(directory, here);
    }
    let file = scratch.write("evenkeel.conf", &text);
    let output = Command::new(program().path()).arg(file).args(["--port", "0", "--check-config"]).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, "The configuration is valid.\n");
}

/// A supervisor that starts Sentinel must not get a data server on Sentinel's port instead.
#[test]
fn a_start_as_sentinel_says_what_to_use_instead() {
    if program().reference().is_some() {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.write("sentinel.conf", "port 26379\nsentinel monitor a 127.0.0.1 6379 2\n");
    let file = file.to_str().expect("text");
    for (name, args) in [
        ("evenkeel", &["--sentinel"][..]),
        ("evenkeel", &[file, "--sentinel"]),
        ("redis-server", &[file, "--sentinel"]),
        ("/usr/bin/redis-sentinel", &[file]),
        ("valkey-sentinel", &[file, "--port", "26379"]),
    ] {
        let output = Command::new(program().path()).arg0(name).args(args).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name} {args:?}: {output:?}");
        assert!(
            text.contains("redis-sentinel") && text.contains("valkey-sentinel"),
            "{name} {args:?}: {text}"
        );
    }
}
